"""bags import of RLDS: datasets of TensorFlow Datasets, by a writer of its own."""
import gzip
import json
import pathlib
import random
import shutil
import struct
import zlib

from harness import ROOT, each, files, read, refuse, run, values
from importing import _kinds, _record

CORE = 'tensorflow_datasets.core.features.'
JPEG = (ROOT / 'tests/data/photos/china.jpg').read_bytes()[:400]
PNG = b'\x89PNG\r\n\x1a\n' + bytes(40)


# ---- protocol buffers ----

def _varint(number):
    number &= (1 << 64) - 1
    out = b''
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def _part(number, data):
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _feature(items, packed=True):
    """A Feature of the kind of its items."""
    if all(isinstance(item, bytes) for item in items) and items:
        return _part(1, b''.join(_part(1, item) for item in items))
    if any(isinstance(item, float) for item in items):
        data = struct.pack(f'<{len(items)}f', *items)
        return _part(2, _part(1, data) if packed else
                     b''.join(b'\x0d' + data[i:i + 4] for i in range(0, len(data), 4)))
    data = b''.join(map(_varint, items))
    return _part(3, _part(1, data) if packed else
                 b''.join(b'\x08' + _varint(item) for item in items))


def _example(features):
    return _part(1, b''.join(_part(1, _part(1, name.encode()) + _part(
        2, data if isinstance(data, bytes) else _feature(data)))
        for name, data in features.items()))


# ---- features.json ----

def _shape(*sizes):
    return {'dimensions': [str(size) for size in sizes]} if sizes else {}


def _tensor(dtype, *shape, encoding='none'):
    return {'pythonClassName': CORE + 'tensor_feature.Tensor',
            'tensor': {'shape': _shape(*shape), 'dtype': dtype, 'encoding': encoding}}


def _image(*shape, dtype='uint8', **more):
    return {'pythonClassName': CORE + 'image_feature.Image',
            'image': {'shape': _shape(*shape), 'dtype': dtype, **more}}


TEXT = {'pythonClassName': CORE + 'text_feature.Text', 'text': {}}
LABEL = {'pythonClassName': CORE + 'class_label_feature.ClassLabel',
         'classLabel': {'numClasses': '10'}}


def _dict(**features):
    return {'pythonClassName': CORE + 'features_dict.FeaturesDict', 'featuresDict': {
        'features': features}}


def _steps(kind='dataset_feature.Dataset', length='-1', **features):
    inner = features.pop('feature', None) or _dict(**features)
    return {'pythonClassName': CORE + kind, 'sequence': {'feature': inner, 'length': length}}


def _save(path, features, shards, split='train', zipped=False, **more):
    """Write a dataset: the records of each shard."""
    path = pathlib.Path(path)
    path.mkdir(parents=True, exist_ok=True)
    (path / 'features.json').write_text(json.dumps(features))
    info = path / 'dataset_info.json'
    about = json.loads(info.read_text()) if info.exists() else {
        'name': 'robot', 'version': '1.0.0', 'fileFormat': 'tfrecord', 'splits': []}
    about['splits'].append({
        'name': split, 'shardLengths': [str(len(records)) for records in shards],
        'filepathTemplate': '{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}', **more})
    info.write_text(json.dumps(about))
    for i, records in enumerate(shards):
        data = b''.join(_record(_example(record) if isinstance(record, dict) else record)
                        for record in records)
        (path / f'robot-{split}.tfrecord-{i:05}-of-{len(shards):05}').write_bytes(
            gzip.compress(data) if zipped else data)
    return path


def _spec(path):
    return json.loads((pathlib.Path(path) / 'spec.json').read_text())


EPISODES = [3, 1, 0, 5]
FEATURES = _dict(
    steps=_steps(
        observation=_dict(image=_image(None, None, 3), state=_tensor('float32', 2, 3),
                          gray=_image(4, 4, 1, encodingFormat='png')),
        action=_tensor('float64', 7), reward=_tensor('float32'), is_last=_tensor('bool'),
        code=_tensor('uint8', 2), label=LABEL, language_instruction=TEXT,
        key=_tensor('int64')),
    episode_metadata=_dict(file_path=TEXT, number=_tensor('int32'), big=_tensor('uint64'),
                           grid=_tensor('int16', 2, 2), track=_tensor('float32', -1, 2)))
SPEC = {
    'steps_observation_image': 'jpeg[]', 'steps_observation_gray': 'png[]',
    'steps_observation_state': 'array(float32,2,3)[]', 'steps_action': 'array(float64,7)[]',
    'steps_reward': 'array(float32)[]', 'steps_is_last': 'array(bool)[]',
    'steps_code': 'array(uint8,2)[]', 'steps_label': 'i64[]',
    'steps_language_instruction': 'utf8[]', 'steps_key': 'i64[]',
    'episode_metadata_file_path': 'utf8', 'episode_metadata_number': 'i64',
    'episode_metadata_big': 'u64', 'episode_metadata_grid': 'array(int16,2,2)',
    'episode_metadata_track': 'array(float32,-1,2)'}


def _episode(number, steps):
    """The features of an episode, and what must be read."""
    chance = random.Random(number)
    def halves(count):
        return [chance.randint(-99, 99) / 2 for _ in range(count)]
    made = {
        'steps/observation/image': [JPEG + bytes([i]) for i in range(steps)],
        'steps/observation/gray': [PNG + bytes([i]) for i in range(steps)],
        'steps/observation/state': halves(6 * steps), 'steps/action': halves(7 * steps),
        'steps/reward': halves(steps), 'steps/is_last': [i + 1 == steps for i in range(steps)],
        'steps/code': [chance.randint(0, 255) for _ in range(2 * steps)],
        'steps/label': [chance.randint(0, 9) for _ in range(steps)],
        'steps/language_instruction': [f'pick {i} up ✓'.encode() for i in range(steps)],
        'steps/key': [chance.randint(-1 << 63, (1 << 63) - 1) for _ in range(steps)],
        'episode_metadata/file_path': [f'/tmp/{number}'.encode()],
        'episode_metadata/number': [-number], 'episode_metadata/big': [(1 << 64) - 1 - number],
        'episode_metadata/grid': [1, -2, 3, -4],
        'episode_metadata/track': halves(2 * number)}
    def rows(name, *shape):
        data = made[name]
        for size in reversed(shape):
            data = [data[i:i + size] for i in range(0, len(data), size)]
        return data
    expected = {name.replace('/', '_'): data for name, data in made.items()}
    expected.update({
        'steps_observation_state': rows('steps/observation/state', 2, 3),
        'steps_action': rows('steps/action', 7), 'steps_code': rows('steps/code', 2),
        'steps_language_instruction': [t.decode() for t in made['steps/language_instruction']],
        'episode_metadata_file_path': f'/tmp/{number}', 'episode_metadata_number': -number,
        'episode_metadata_big': (1 << 64) - 1 - number,
        'episode_metadata_grid': [[1, -2], [3, -4]],
        'episode_metadata_track': rows('episode_metadata/track', 2)})
    for name in ('image', 'gray'):
        expected.pop(f'steps_observation_{name}')
    made['steps/observation/state'] = _feature(
        made['steps/observation/state'] or [0.0], packed=False) if steps else _part(2, b'')
    for name in ('steps/action', 'steps/reward', 'episode_metadata/track'):
        if not made[name]:
            made[name] = _part(2, b'')
    for name in ('steps/observation/image', 'steps/observation/gray',
                 'steps/language_instruction'):
        if not made[name]:
            made[name] = _part(1, b'')
    return made, expected


def _plain(value):
    """What --lists shows, with all arrays as lists."""
    if isinstance(value, dict) and 'preview' in value:
        assert 0 in value['shape'], value
        return []
    if isinstance(value, dict) and 'list' in value:
        return value['list']
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else \
        [_plain(v) for v in value] if isinstance(value, list) else value


def _same(out, episodes):
    """The values of a dataset are those of these episodes."""
    shown = [_plain(row) for row in run('get', out, ':', *episodes[0], '--lists').lines]
    assert shown == episodes, [(a, b) for a, b in zip(shown, episodes) if a != b][:1]


def episodes_have_the_shapes_names_and_dtypes_of_features_json():
    """Plain and compressed, with one file and several."""
    if 'rlds' not in _kinds():
        return
    pairs = [_episode(number, steps) for number, steps in enumerate(EPISODES)]
    records, expected = [p[0] for p in pairs], [p[1] for p in pairs]
    for name, shards, zipped in (('one', [records], False), ('zip', [records], True),
                                 ('many', [records[:1], records[1:1], records[1:]], False)):
        run('import', _save(name, FEATURES, shards, zipped=zipped), f'out-{name}')
        assert _spec(f'out-{name}') == SPEC
        _same(f'out-{name}', expected)
        items = read(f'out-{name}')['data'][3]['steps_observation_image']['items']
        assert len(items) == 5
        assert bytes([*JPEG, 4]) in files(f'out-{name}')['steps_observation_image.bag']
        run('verify', f'out-{name}')
    # Names are also those of features.json.
    run('import', 'one', 'few', '--fields', 'steps/action=action,episode_metadata/number')
    assert _spec('few') == {'action': 'array(float64,7)[]', 'episode_metadata_number': 'i64'}
    # A record whose size begins like gzip is not compressed.
    extra = len(_example({'x': [bytes(0x8B1F)]})) - 0x8B1F
    record = _example({'x': [bytes(0x8B1F - extra)]})
    assert _record(record)[:2] == b'\x1f\x8b'
    path = pathlib.Path('plain.tfrecord')
    path.write_bytes(_record(record))
    assert run('import', path, '--dry-run').json['length'] == 1


def tfrecords_that_are_compressed_are_read():
    if 'tfrecord' not in _kinds():
        return
    data = b''.join(_record(_example({'x': [i], 't': [b'word']})) for i in range(50))
    for name, content in (('a.tfrecord', data), ('b.tfrecord.gz', gzip.compress(data)),
                          ('c.tfrecord.gz', gzip.compress(data[:300]) + gzip.compress(data[300:])),
                          ('d.tfrecord', gzip.compress(data))):
        pathlib.Path(name).write_bytes(content)
        run('import', name, f'out{name[0]}')
        assert values(f'out{name[0]}') == values('outa')
    assert [row['x'] for row in values('outa')] == list(range(50))
    zipped = gzip.compress(data)
    for number, bad in enumerate((gzip.compress(data[:-1]), gzip.compress(data[:-20] + b'!' * 20),
                                  zipped[:-9], zipped[:-30], gzip.compress(b'short'))):
        pathlib.Path(f'{number}.tfrecord').write_bytes(bad)
        refuse('import', f'{number}.tfrecord', 'out', says=f'{number}.tfrecord: ')


def nested_sequences_and_encoded_tensors_are_arrays():
    if 'rlds' not in _kinds():
        return
    def packed(count, *items):
        return struct.pack(f'<{count}', *items)
    features = _dict(
        steps=_steps(points=_steps('sequence_feature.Sequence', feature=_tensor('float32', 2)),
                     ids=_steps('sequence_feature.Sequence', feature=_tensor('uint16')),
                     depth=_tensor('uint16', 2, 2, encoding='zlib'),
                     any=_tensor('int32', -1, 2, encoding='bytes'),
                     free=_tensor('float32', -1, -1, encoding='zlib')),
        tags=_steps('sequence_feature.Sequence', feature=TEXT),
        words=_tensor('string', 2), box={'pythonClassName': CORE + 'x.BBoxFeature',
                                         'boundingBox': {'shape': _shape(4)}},
        half=_tensor('float16', 2), blob=_tensor('string'),
        film={'pythonClassName': CORE + 'video_feature.Video',
              'video': {'shape': _shape(-1, 8, 8, 3), 'encodingFormat': 'jpeg'}})
    record = {
        'steps/points/ragged_flat_values': [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        'steps/points/ragged_row_lengths_0': [2, 0, 1],
        'steps/ids/ragged_flat_values': [7, 8, 9], 'steps/ids/ragged_row_lengths_0': [0, 3, 0],
        'steps/depth': [zlib.compress(packed('4H', i, 2, 3, 65535)) for i in range(3)],
        'steps/any': [packed('2i', 1, -2), packed('4i', 3, 4, 5, 6), b''],
        'steps/free/value': [zlib.compress(packed('2f', .5, 1)), zlib.compress(b''),
                             zlib.compress(packed('2f', 2, 3))],
        'steps/free/shape': [2, 1, 0, 9, 1, 2],
        'tags': [b'a', b'b'], 'words': [b'c', b''], 'box': [.25, .5, .75, 1.0],
        'half': [.5, -2.0], 'blob': [b'\0\xff'], 'film': [JPEG, JPEG]}
    source = _save('x', features, [[record]])
    run('import', source, 'out')
    assert _spec('out') == {
        'steps_points': 'array(float32,-1,2)[]', 'steps_ids': 'array(uint16,-1)[]',
        'steps_depth': 'array(uint16,2,2)[]', 'steps_any': 'array(int32,-1,2)[]',
        'steps_free': 'array[]', 'tags': 'utf8[]', 'words': 'utf8[]',
        'box': 'array(float32,4)', 'half': 'array(float16,2)', 'blob': 'bytes',
        'film': 'jpeg[]'}, _spec('out')
    row = run('get', 'out', 0, 'steps_points', 'steps_ids', 'steps_depth', 'steps_any',
              'steps_free', 'tags', 'words', 'box', 'half', '--lists').json
    row = _plain(row)
    assert row == {
        'steps_points': [[[1, 2], [3, 4]], [], [[5, 6]]], 'steps_ids': [[], [7, 8, 9], []],
        'steps_depth': [[[i, 2], [3, 65535]] for i in range(3)],
        'steps_any': [[[1, -2]], [[3, 4], [5, 6]], []],
        'steps_free': [[[.5], [1]], [], [[2, 3]]], 'tags': ['a', 'b'], 'words': ['c', ''],
        'box': [.25, .5, .75, 1], 'half': [.5, -2]}, row
    bad = [
        ({'steps/points/ragged_row_lengths_0': [2, 0, 2]}, 'the lengths of its items are 4, but'),
        ({'steps/points/ragged_row_lengths_0': [2, -1, 2]}, 'item 1: invalid length (-1)'),
        ({'steps/points/ragged_row_lengths_0': [2, 1]}, '3 items, but "steps/points" has 2'),
        ({'steps/points/ragged_flat_values': [1.0] * 5}, '5 values are not items of 2'),
        ({'steps/depth': [zlib.compress(bytes(8))] * 2}, '2 items, but "steps/points" has 3'),
        ({'steps/depth': [zlib.compress(bytes(6))] * 3}, 'item 0: wrong size (6 bytes)'),
        ({'steps/depth': [zlib.compress(bytes(10))] * 3}, 'not a tensor compressed by zlib'),
        ({'steps/depth': [b'none'] * 3}, 'not a tensor compressed by zlib'),
        ({'steps/any': [bytes(12)] * 3}, 'item 0: wrong size (12 bytes)'),
        ({'steps/free/shape': [2, 1, 0, 9, 1]}, '5 numbers of shapes (expected 6)'),
        ({'steps/free/shape': [2, 1, 0, 9, 1, 1 << 40]}, 'item 2: '),
        ({'words': [b'c']}, '1 values (expected 2)'), ({'box': [1.0] * 5}, '5 values'),
        ({'half': [1e-9, 1.0]}, 'value 0: not a float16'), ({'half': [1e9, 1.0]}, 'not a float16'),
        ({'steps/ids/ragged_flat_values': [7, 8, 65536]}, 'value 2: out of range for uint16'),
        ({'blob': [b'a', b'b']}, '2 values (expected 1)'),
    ]
    for number, (change, says) in enumerate(bad):
        source = _save(f'bad{number}', features, [[record, {**record, **change}]])
        refuse('import', source, 'none', says=[
            f'bad{number}/robot-train.tfrecord-00000-of-00001: record 1 at byte ',
            f'feature "{next(iter(change)).split("/ragged")[0].split("/shape")[0]}"'
            if 'items, but' not in says else 'feature "steps/', says])
        shutil.rmtree('none', ignore_errors=True)


def values_that_do_not_fit_are_an_error_with_file_record_and_feature():
    if 'rlds' not in _kinds():
        return
    good = _episode(2, 3)[0]
    bad = [
        ({'steps/action': [1.0] * 20}, 'feature "steps/action": 20 values are not items of 7'),
        ({'steps/action': [1.0] * 14}, 'feature "steps/action": 2 items, but '
                                       '"steps/observation/image" has 3'),
        ({'steps/action': [1] * 21}, 'feature "steps/action": a list of int64 (expected float)'),
        ({'steps/action': None}, 'feature "steps/action": 0 items, but'),
        ({'steps/code': [1, 2, 3, 4, 5, 256]}, 'feature "steps/code": value 5: out of range '
                                               'for uint8 (256)'),
        ({'steps/code': [1, 2, 3, 4, 5, -1]}, 'out of range for uint8 (-1)'),
        ({'steps/is_last': [0, 1, 2]}, 'feature "steps/is_last": value 2: out of range for bool'),
        ({'steps/label': [b'x'] * 3}, 'feature "steps/label": a list of bytes (expected int64)'),
        ({'episode_metadata/number': [1 << 31]}, 'out of range for int32'),
        ({'episode_metadata/number': None}, 'feature "episode_metadata/number": missing'),
        ({'episode_metadata/number': [1, 2]}, '2 values (expected 1)'),
        ({'episode_metadata/grid': [1, 2, 3]}, '3 values are not items of 4'),
        ({'episode_metadata/grid': [1] * 8}, '8 values (expected 4)'),
        ({'episode_metadata/track': [1.0]}, '1 values are not items of 2'),
        ({'episode_metadata/file_path': [b'a', b'b']}, '2 values (expected 1)'),
    ]
    for number, (change, says) in enumerate(bad):
        changed = {k: v for k, v in {**good, **change}.items() if v is not None}
        source = _save(f'{number}', FEATURES, [[good], [good, changed]])
        refuse('import', source, 'out', says=[
            f'{number}/robot-train.tfrecord-00001-of-00002: record 1 at byte ', says])
        shutil.rmtree('out', ignore_errors=True)
    said = run('import', _save('more', FEATURES, [[{**good, 'steps/extra': [1]}]]), '--dry-run')
    assert '1 unknown feature (steps/extra)' in said.err, said.err
    source = _save('text', FEATURES, [[{**good, 'steps/language_instruction': [b'\xff'] * 3,
                                       'steps/observation/image': [JPEG, PNG, JPEG]}]])
    spec = run('import', source, '--dry-run').json['spec']
    assert spec['steps_language_instruction'] == spec['steps_observation_image'] == 'bytes[]'


def files_of_splits_are_those_of_dataset_info_json():
    if 'rlds' not in _kinds():
        return
    features = _dict(x=_tensor('int64'))
    def rows(*numbers):
        return [{'x': [number]} for number in numbers]
    def source(name):
        shutil.rmtree(name, ignore_errors=True)
        _save(name, features, [rows(0, 1), rows(2)])
        return _save(name, features, [rows(3, 4)], 'val')
    path = source('a')
    run('import', path, 'all')
    assert values('all') == [{'split': 'val' if x > 2 else 'train', 'x': x} for x in range(5)]
    run('import', path / 'val', 'val', '--from', 'rlds')
    assert values('val') == [{'x': 3}, {'x': 4}]
    assert run('import', path / 'train', '--dry-run').json['length'] == 3
    refuse('import', path / 'test', 'out',
           says='dataset_info.json: no split test (it has train, val)')
    (path / 'README').write_text('a')
    assert 'other file (README)' in run('import', path, '--dry-run').err
    (path / 'x.labels.txt').write_text('left\nright ✓\n')
    run('import', path, 'named')
    assert json.loads(pathlib.Path('named/info.json').read_text()) == {'rlds': {
        'features': features, 'info': json.loads((path / 'dataset_info.json').read_text()),
        'labels': {'x': ['left', 'right ✓']}}}
    (path / 'x.labels.txt').write_bytes(b'\xff')
    assert 'x.labels.txt' in run('import', path, '--dry-run').err
    second = 'robot-train.tfrecord-00001-of-00002'
    (path / second).unlink()
    refuse('import', path, 'out', says=f'a: split "train": file 1 is missing ({second})')
    path = source('b')
    (path / second).rename(path / f'{second}.gz')
    assert run('import', path, '--dry-run').json['length'] == 5
    first = path / 'robot-train.tfrecord-00000-of-00002'
    data = first.read_bytes()
    half = len(data) // 2
    for bad, says in ((data[:half], 'wrong number of records (1, dataset_info.json has 2)'),
                      (data + data[:half], 'wrong number of records (3, dataset_info.json has 2)'),
                      (b'', 'wrong number of records (0, dataset_info.json has 2)'),
                      (data[:half] + bytes([data[half] ^ 1]) + data[half + 1:],
                       f'record at byte {half}: checksum mismatch of its size'),
                      (data[:-1], f'record at byte {half}: truncated'),
                      (data[:-1] + bytes([data[-1] ^ 1]),
                       f'record at byte {half}: checksum mismatch of its bytes')):
        first.write_bytes(bad)
        refuse('import', path, 'out', says=[f'{first}: ', says])
    changes = [
        ({'fileFormat': 'array_record'}, 'fileFormat not supported (array_record)'),
        ({'splits': []}, 'no split'), ({'splits': [{'name': 'train'}]}, 'no shardLengths'),
        ({'splits': [{'name': 'train', 'shardLengths': []}]}, 'no shardLengths'),
        ({'splits': [{'name': 'train', 'shardLengths': ['x']}]}, 'invalid shardLengths'),
        ({'splits': [{'name': 'train', 'shardLengths': ['-1']}]}, 'invalid shardLengths'),
        ({'splits': [{'name': 'train', 'shardLengths': ['2', '1']}] * 2}, 'duplicate split'),
        ({'splits': [{'name': 'train', 'shardLengths': ['2'],
                      'filepathTemplate': '{SPLIT}-{HASH}'}]}, 'filepathTemplate not supported'),
        ({'splits': [{'name': 'train', 'shardLengths': ['2'],
                      'filepathTemplate': '../{SPLIT}'}]}, 'not the name of a file'),
        ({'name': '/etc/passwd'}, 'not the name of a file'),
    ]
    for number, (change, says) in enumerate(changes):
        path = source(f'c{number}')
        info = path / 'dataset_info.json'
        info.write_text(json.dumps({**json.loads(info.read_text()), **change}))
        refuse('import', path, 'out', says=[f'c{number}: ', 'dataset_info.json: ', says])
    path = source('d')
    for name in path.glob('*train*'):
        name.rename(path / f'train.{name.name[-14:-9]}_{name.name[-5:]}')
    info = path / 'dataset_info.json'
    info.write_text(info.read_text().replace('{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}',
                                             '{SPLIT}.{SHARD_INDEX}_{NUM_SHARDS}', 1))
    assert run('import', path / 'train', '--dry-run').json['length'] == 3


REFUSED = [
    (_tensor('complex64'), 'dtype not supported (complex64)'),
    (_tensor('bfloat16'), 'dtype not supported (bfloat16)'),
    (_tensor('<i4'), 'dtype not supported'),
    (_tensor('int32', 0), 'dimension not supported (0)'),
    (_tensor('int32', 'x'), 'dimension not supported (x)'),
    (_tensor('int32', 2, -1), 'shape not supported'),
    (_tensor('int32', encoding='gzip'), 'encoding not supported (gzip)'),
    (_tensor('string', encoding='zlib'), 'encoding of text not supported'),
    (_image(2, 2, 4, dtype='float32'), 'dtype of images not supported (float32)'),
    (_image(2, 2, 3, encodingFormat='webp'), 'encodingFormat not supported (webp)'),
    (_steps(feature=_steps(feature=_image(2, 2, 3))), 'a sequence in a sequence of'),
    (_steps(feature=_steps(feature=_steps(feature=LABEL))), 'depth of sequences not supported'),
    (_steps(feature=_tensor('int32', -1)), 'shape not supported'),
    (_steps(feature=_tensor('string', 2)), 'an array of text not supported'),
    (_steps(length='x', feature=LABEL), 'length not supported (x)'),
    ({'pythonClassName': CORE + 'translation_feature.Translation', 'translation': {}},
     f'feature not supported ({CORE}translation_feature.Translation)'),
    ({}, 'feature not supported (no pythonClassName)'),
    ({'pythonClassName': 'x', 'tensor': {'shape': {}, 'dtype': 'int32', 'optional': True}},
     'option not supported (optional)'),
]


def features_that_are_not_understood_are_an_error_that_names_them():
    if 'rlds' not in _kinds():
        return
    for number, (feature, says) in enumerate(REFUSED):
        source = _save(f'{number}', _dict(deep=_dict(one=feature)), [[{'deep/one': [1]}]])
        refuse('import', source, 'out',
               says=[f'{number}: features.json: feature "deep/one": ', says])
    clash = _dict(**{'a/b': LABEL, 'a': _dict(b=LABEL)})
    refuse('import', _save('clash', clash, []), 'out', says='two features are stored as "a/b"')
    refuse('import', _save('empty', _dict(), []), 'out', says='features.json: no feature')
    nested = LABEL
    for _ in range(40):
        nested = _dict(x=nested)
    refuse('import', _save('deep', nested, []), 'out', says='depth not supported (32 at most)')
    (_save('json', _dict(), []) / 'features.json').write_text('{')
    refuse('import', 'json', 'out', says='json/features.json: invalid JSON')


@each(range(3))
def damage_of_a_dataset_is_an_error_or_without_effect(part):
    """Every byte of a file of records."""
    if 'rlds' not in _kinds():
        return
    features = _dict(steps=_steps(x=_tensor('float32', 2), t=TEXT))
    record = {'steps/x': [1.0, 2.0, 3.0, 4.0], 'steps/t': [b'a', b'b']}
    path = _save('x', features, [[record]], zipped=part == 2)
    file = path / 'robot-train.tfrecord-00000-of-00001'
    data = file.read_bytes()
    run('import', path, 'good')
    for at in range(part, len(data), 3):
        for bad in (data[:at], data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1:]):
            file.write_bytes(bad)
            if part == 2 and 4 <= at < 10 and len(bad) == len(data):
                continue  # the time and system in the header of gzip
            refuse('import', path, '--dry-run', says=f'{file}: ')
