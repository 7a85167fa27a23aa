"""bags export --to: what other formats contain, read by parsers of our own; imports of
exports; resuming; what is refused."""
import base64
import csv
import json
import os
import pathlib
import random
import resource
import shutil
import struct
import subprocess
import tarfile

import harness
from harness import ROOT, each, files, pack, refuse, run

PHOTOS = sorted((ROOT / 'tests/data/photos').glob('*.jpg'))
FORMATS = {'webdataset': 'x.tar', 'tfrecord': 'x.tfrecord', 'mds': 'x.mds', 'csv': 'x.csv',
           'parquet': 'x.parquet', 'hdf5': 'x.h5'}


def _importers():
    lines = run('--version').out.decode().splitlines()
    return next(line for line in lines if line.startswith('importers:')).split()[1:]


def _exporters():
    said = refuse('export', 'x', 'x.unknown', says='one of: ', code=2).err
    return said.split('one of: ')[1].split(' (')[0].split()


def _has(format):
    """True if the command writes and reads the format here."""
    if format in ('csv', 'parquet'):
        if not os.path.exists('probe'):
            pack([{'n': 1}], 'n=int(4)', 'probe')
        pathlib.Path('probe.' + format).unlink(missing_ok=True)
        done = subprocess.run([harness.PROGRAM, 'export', 'probe', 'probe.' + format],
                              capture_output=True, timeout=harness.HANG)
        if done.returncode:
            assert b'libduckdb' in done.stderr and not os.path.exists('probe.' + format), done
            return False
    return format in _exporters() and format in _importers()


def _rows(path):
    return run('get', path, ':', '--lists').lines


# ---- import(export(x)) = x ----

# Of each format: the types of its fields, and those of the import if they are stated.
NUMBERS = {'a': 'int(4)', 'b': 'i64', 'c': 'int'}
FLOATS = {'d': 'array(float32)', 'e': 'array(float64)', 'f': 'array(int16)',
          'g': 'array(bool)'}
SPECS = {
    'webdataset': ({'a.cls': 'int(4)', 'b.id': 'i64', 'c.cls': 'int', 't.txt': 'utf8',
                    'v.npy': 'array(float32,2,3)', 'w.npy': 'array(int16,-1)',
                    'blob.bin': 'bytes', 'maybe.txt': 'utf8[]', 'tags.json': 'utf8[]'},
                   {'a.cls': 'int(4)', 'b.id': 'i64', 'c.cls': 'int'}),
    'tfrecord': ({'a': 'int(4)', 'b': 'i64', 'c': 'int', 't': 'utf8', 'd': 'array(float32)',
                  'v': 'array(float32,-1)', 'w': 'array(int64,-1)', 'm': 'array(float64,2,2)',
                  'tags': 'utf8[]', 'blob': 'bytes'}, {}),
    'mds': ({**NUMBERS, 't': 'utf8', 'd': 'array(float32)', 'e': 'array(float64)',
             'f': 'array(int16)', 'u': 'u64', 'v': 'array(float32,2,3)',
             'w': 'array(int16,-1)', 'y': 'array(uint8,2,-1)', 'blob': 'bytes'}, {}),
    'csv': ({**NUMBERS, **FLOATS, 't': 'utf8', 'maybe': 'i64[]'},
            {'d': 'array(float32)', 'f': 'array(int16)', 't': 'utf8'}),
    'parquet': ({**NUMBERS, **FLOATS, 't': 'utf8', 'u': 'u64', 'tags': 'utf8[]',
                 'n': 'i64[]', 'blob': 'bytes'}, {}),
    'hdf5': ({**NUMBERS, **FLOATS, 't': 'utf8', 'u': 'u64', 'v': 'array(float32,2,3)'}, {}),
}
TEXTS = ['', 'a', 'é', 'x,y', 'a "q"', 'two\nlines', ' sp ', '\u4e2d\U0001f600', 'NULL',
         "it's", '\\N', 'a\tb', 'a\r\nb', 'a\rb', '#c', '007', '1e5', 'nan', 'true', '"']


def _value(rng, name, type):
    item = type.replace('[]', '')
    if type.endswith('[]'):
        most = 1 if name.startswith('maybe') else 3
        return [_value(rng, name, item) for _ in range(rng.randint(0, most))]
    if item in ('int(4)', 'int', 'u64', 'i64'):
        most = {'int(4)': 2**32 - 1, 'int': 2**63 - 1, 'u64': 2**64 - 1, 'i64': 2**63 - 1}[item]
        return rng.choice([0, 1, 255, 256, most, -most - 1 if item == 'i64' else most,
                           rng.randint(0, most)])
    if item == 'utf8':
        return rng.choice(TEXTS) + rng.choice(['', 'z'])
    if item == 'bytes':
        size = rng.choice([0, 1, 511, 512, 513])
        blob = bytes([0xFE]) + rng.randbytes(size)
        return {'base64': base64.b64encode(blob).decode()}
    dtype, *shape = item[6:-1].split(',')
    shape = [rng.randint(0, 4) if s == '-1' else int(s) for s in shape]

    def element():
        if dtype == 'bool':
            return rng.random() < 0.5
        if dtype.startswith('float'):
            return rng.choice([0.0, -1.5, 0.25, 3.0, 2.0**-20, 1e6])
        return rng.randint(0, 255) if dtype == 'uint8' else rng.randint(-32768, 32767)

    def array(shape):
        return [array(shape[1:]) for _ in range(shape[0])] if shape else element()

    return array(shape)


def _plain(value):
    """The value as `get --lists` shows it, arrays as nested lists."""
    return value['list'] if isinstance(value, dict) and 'list' in value else value


@each(sorted(SPECS))
def an_import_of_an_export_is_the_dataset(format):
    if not _has(format):
        return
    spec, types = SPECS[format]
    for seed in range(3 if os.environ.get('BAGS_QUICK') else 8):
        rng = random.Random(seed)
        rows = [{name: _value(rng, name, type) for name, type in spec.items()}
                for _ in range(rng.choice([1, 5, 40]))]
        # The types of an import follow the values: let lists have several lengths.
        for name, two in (('tags', ['p', 'q']), ('tags.json', ['p', 'q']), ('v', [1.5, 2.5]),
                          ('w', [1, 2]), ('n', [1, 2])):
            if spec.get(name, '').endswith(('[]', ',-1)')):
                rows[0][name] = two
        pack(rows, ','.join(f'{k}={v}' for k, v in spec.items()), 'ds')
        out = FORMATS[format]
        run('export', 'ds', out)
        words = ['--header', 'yes'] if format == 'csv' else []
        if types:
            words += ['--type', ','.join(f'{k}={v}' for k, v in types.items())]
        run('import', out, 'back', '--no-sync', *words)
        before, after = _rows('ds'), _rows('back')
        assert len(before) == len(after)
        for old, new in zip(before, after):
            for name in spec:
                _same(format, name, spec[name], old[name], new.get(name, []))
        for path in ('ds', 'back'):
            shutil.rmtree(path)
        shutil.rmtree(out) if os.path.isdir(out) else os.remove(out)


def _same(format, name, type, old, new):
    if format == 'webdataset' and name == 'tags.json':
        new = json.loads(new)
    if format == 'webdataset' and name == 'maybe.txt' and new in ([], None):
        assert old == [], (name, old, new)
        return
    if format in ('csv', 'webdataset') and type.endswith('[]') and not isinstance(new, list):
        new = [new]  # if every datapoint has one, it is no sequence
    assert _plain(old) == _plain(new), (format, name, old, new)


# ---- parsers ----

def _crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _masked(data):
    crc = _crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(data, at):
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return number, at


def _message(data):
    """The parts of a protobuf message: (number, bytes)."""
    at, parts = 0, []
    while at < len(data):
        tag, at = _varint(data, at)
        assert tag & 7 == 2
        size, at = _varint(data, at)
        parts.append((tag >> 3, data[at:at + size]))
        assert at + size <= len(data)
        at += size
    return parts


def _feature(data):
    (kind, list_), = _message(data)
    parts = [value for number, value in _message(list_)]
    if kind == 1:
        return parts
    packed = b''.join(parts)
    if kind == 2:
        return list(struct.unpack(f'<{len(packed) // 4}f', packed))
    at, numbers = 0, []
    while at < len(packed):
        number, at = _varint(packed, at)
        numbers.append(number - 2**64 if number >> 63 else number)
    return numbers


def _examples(path):
    data, at, found = pathlib.Path(path).read_bytes(), 0, []
    while at < len(data):
        size, check = struct.unpack_from('<QI', data, at)
        assert check == _masked(data[at:at + 8])
        record = data[at + 12:at + 12 + size]
        assert struct.unpack_from('<I', data, at + 12 + size)[0] == _masked(record)
        at += size + 16
        example = {}
        (number, features), = _message(record)
        assert number == 1
        for _, entry in _message(features):
            (_, name), (_, feature) = _message(entry)
            example[name.decode()] = _feature(feature)
        found.append(example)
    return found


def a_tfrecord_has_examples_with_their_checksums():
    rows = [{'a': -7, 'f': 1.5, 'n': [1, -2, 300], 't': 'é', 'tags': ['x', ''], 'e': [],
             'b': True, 'm': [[1, 2], [3, 4]]},
            {'a': 2**62, 'f': -0.25, 'n': [], 't': '', 'tags': [], 'e': [5], 'b': False,
             'm': [[0, 0], [0, 9]]}]
    pack(rows, 'a=i64,f=array(float32),n=array(int16,-1),t=utf8,tags=utf8[],e=i64[],'
               'b=array(bool),m=array(float64,2,2)', 'ds')
    run('export', 'ds', 'x.tfrecord')
    for row, example in zip(rows, _examples('x.tfrecord')):
        assert sorted(example) == sorted(row)
        assert example['a'] == [row['a']] and example['f'] == [row['f']]
        assert example['n'] == row['n'] and example['e'] == row['e']
        assert example['t'] == [row['t'].encode()] and example['b'] == [int(row['b'])]
        assert example['tags'] == [tag.encode() for tag in row['tags']]
        assert example['m'][0].startswith(b'\x93NUMPY')
        assert struct.unpack('<4d', example['m'][0][-32:]) == tuple(sum(row['m'], []))


def a_tar_has_a_sample_per_datapoint():
    long = 'd' * 90 + '/' + 'k' * 60
    rows = [{'id': key, 'jpg': {'file': str(photo)}, 'cls': i, 'caption': 'text é',
             'pose': [0.5, i]} for i, (key, photo) in
            enumerate(zip(['a/b', 'é', long, 'z'], (PHOTOS * 4)[:4]))]
    pack(rows, 'id=utf8,jpg=jpeg,cls=int(4),caption=utf8,pose=array(float32,2)', 'ds')
    run('export', 'ds', 'x.tar', '--key', 'id')
    with tarfile.open('x.tar') as tar:
        members = {m.name: tar.extractfile(m).read() for m in tar.getmembers()}
    assert len(members) == 20
    for row in rows:
        key = row['id']
        assert members[key + '.jpg'] == pathlib.Path(row['jpg']['file']).read_bytes()
        assert members[key + '.cls'] == str(row['cls']).encode()
        assert members[key + '.caption.txt'].decode() == row['caption']
        assert members[key + '.pose.npy'][-8:] == struct.pack('<2f', *row['pose'])
    run('export', 'ds', 'y.tar', '--fields', 'caption=txt,cls')
    with tarfile.open('y.tar') as tar:
        assert tar.getnames() == [f'{i:06}.{e}' for i in range(4) for e in ('cls', 'txt')]
    # The key need not be a member.
    run('export', 'ds', 'z.tar', '--fields', 'cls', '--key', 'id')
    with tarfile.open('z.tar') as tar:
        assert tar.getnames() == [row['id'] + '.cls' for row in rows]
    assert subprocess.run(['tar', 'tf', 'x.tar'], capture_output=True).returncode == 0


def _mds(path):
    """The samples of a directory of MDS, by the description of the format."""
    index = json.loads(pathlib.Path(path, 'index.json').read_text())
    assert index['version'] == 2
    found = []
    for shard in index['shards']:
        data = pathlib.Path(path, shard['raw_data']['basename']).read_bytes()
        assert len(data) == shard['raw_data']['bytes'] and shard['format'] == 'mds'
        count, = struct.unpack_from('<I', data)
        assert count == shard['samples']
        offsets = struct.unpack_from(f'<{count + 1}I', data, 4)
        assert offsets[-1] == len(data)
        config = json.loads(data[8 + 4 * count:offsets[0]])
        for name in ('column_names', 'column_encodings', 'column_sizes'):
            assert config[name] == shard[name]
        assert shard['column_names'] == sorted(shard['column_names'])
        for start, stop in zip(offsets, offsets[1:]):
            sizes = []
            for size in shard['column_sizes']:
                if size is None:
                    size, = struct.unpack_from('<I', data, start)
                    start += 4
                sizes.append(size)
            sample = {}
            for name, encoding, size in zip(shard['column_names'],
                                            shard['column_encodings'], sizes):
                sample[name] = (encoding, data[start:start + size])
                start += size
            assert start == stop
            found.append(sample)
    return found


def mds_has_the_encodings_of_streaming():
    rows = [{'a': 7 + i, 't': 'é' * i, 'x': 0.5, 'v': [1.5, i], 'w': [1] * i,
             'jpg': {'file': str(PHOTOS[0])}, 'tags': ['p'] * i, 'u': 2**64 - 1}
            for i in range(5)]
    pack(rows, 'a=int(4),t=utf8,x=array(float32),v=array(float32,2),w=array(int16,-1),'
               'jpg=jpeg,tags=utf8[],u=u64', 'ds')
    run('export', 'ds', 'out', '--to', 'mds', '--shard-length', 2)
    assert sorted(os.listdir('out')) == ['index.json'] + [f'shard.0000{i}.mds' for i in range(3)]
    samples = _mds('out')
    assert len(samples) == 5
    for i, (row, sample) in enumerate(zip(rows, samples)):
        assert sample == {
            'a': ('int', struct.pack('<q', row['a'])), 't': ('str', row['t'].encode()),
            'x': ('float32', struct.pack('<f', 0.5)),
            'v': ('ndarray:float32:2', struct.pack('<2f', *row['v'])),
            'w': ('ndarray:int16', bytes([4, i]) + b'\1\0' * i),
            'jpg': ('jpeg', PHOTOS[0].read_bytes()),
            'tags': ('json', json.dumps(row['tags']).encode()),
            'u': ('uint64', b'\xFF' * 8)}, i


def images_are_in_folders_of_their_labels():
    rows = [{'image': {'file': str((PHOTOS * 4)[i])}, 'label': ['cat', 'dog', 'é è'][i % 3]}
            for i in range(6)]
    pack(rows, 'image=jpeg,label=utf8', 'ds')
    run('export', 'ds', 'out', '--to', 'images')
    assert files('out') == {
        f'{row["label"]}/{i:06}.jpg': pathlib.Path(row['image']['file']).read_bytes()
        for i, row in enumerate(rows)}
    # A folder that was imported becomes the same folder.
    run('images', 'out', 'back', '--no-sync')
    run('export', 'back', 'again', '--to', 'images')
    assert files('again') == files('out')
    run('export', 'back', 'named', '--to', 'images', '--key', 'path', '--label', 'label')
    assert files('named') == files('out')


def csv_is_read_by_other_programs():
    if not _has('csv'):
        return
    rows = [{'a': i, 't': t, 'm': [i] * (i % 2)} for i, t in enumerate(TEXTS)]
    pack(rows, 'a=int(4),t=utf8,m=i64[]', 'ds')
    run('export', 'ds', 'x.csv')
    with open('x.csv', newline='', encoding='utf-8') as file:
        read = list(csv.DictReader(file))
    assert [row['t'] for row in read] == TEXTS
    assert [row['m'] for row in read] == [str(i) if i % 2 else '' for i in range(len(TEXTS))]


def hdf5_is_read_by_h5py():
    try:
        import h5py
    except ImportError:
        return
    if not _has('hdf5'):
        return
    rows = [{'n': i, 'u': 2**64 - 1, 't': 'é' * i, 'b': i % 2 == 1, 'v': [[i, 1, 2], [3, 4, 5]],
             'w': [1.5] * i, 'jpg': {'file': str(PHOTOS[0])}, 's': [i] * (i % 3)}
            for i in range(1030)]
    pack(rows, 'n=int(4),u=u64,t=utf8,b=array(bool),v=array(float32,2,3),'
               'w=array(float16,-1),jpg=jpeg,s=i64[]', 'ds')
    run('export', 'ds', 'x.h5')
    with h5py.File('x.h5') as file:
        assert sorted(file) == sorted(rows[0])
        assert all(len(file[name]) == len(rows) for name in file)
        assert file['b'].dtype == bool and file['v'].dtype == 'f4' and file['n'].dtype == 'i8'
        for i in (0, 1, 2, 1023, 1024, 1029):
            row = rows[i]
            assert file['n'][i] == i and file['u'][i] == 2**64 - 1 and file['b'][i] == row['b']
            assert file['t'][i].decode() == row['t']
            assert file['v'][i].tolist() == row['v'] and file['w'][i].tolist() == row['w']
            assert file['s'][i].tolist() == row['s']
            assert file['jpg'][i].tobytes() == PHOTOS[0].read_bytes()


def episodes_of_hdf5_are_groups():
    if not _has('hdf5'):
        return
    rows = [{'actions': [[i, j] for j in range(i + 1)], 'obs.state': [float(j) for j in
             range(i + 1)], 'task': f'task {i}'} for i in range(12)]
    pack(rows, 'actions=array(float32,2)[],obs.state=array(float64)[],task=utf8', 'ds')
    run('export', 'ds', 'x.h5', '--layout', 'episodes')
    run('import', 'x.h5/data', 'back', '--layout', 'episodes', '--no-sync')
    back = _rows('back')
    assert [row['group'] for row in back] == [f'demo_{i}' for i in range(12)]
    for old, new in zip(rows, back):
        assert [_plain(v) for v in new['actions']] == old['actions'], new
        assert [_plain(v) for v in new['obs.state']] == old['obs.state']
        assert new['task'] in (old['task'], [old['task']])
    try:
        import h5py
    except ImportError:
        return
    with h5py.File('x.h5') as file:
        assert file['data'].attrs['total'] == sum(i + 1 for i in range(12))
        assert file['data/demo_3'].attrs['num_samples'] == 4
        assert file['data/demo_3/obs/state'][:].tolist() == [0, 1, 2, 3]


# ---- options ----

def _numbers(length=10, path='ds'):
    pack([{'n': i, 't': f't{i}'} for i in range(length)], 'n=int(4),t=utf8', path)


def datapoints_and_fields_are_selected():
    _numbers()
    pathlib.Path('rows').write_text('7\n2\n3\n')
    run('export', 'ds', 'x.tfrecord', '--rows', 'rows', '--fields', 'n=number')
    assert _examples('x.tfrecord') == [{'number': [i]} for i in (7, 2, 3)]
    if harness.has_sql():
        run('export', 'ds', 'y.tfrecord', '--where', 'n > 7')
        assert [e['n'] for e in _examples('y.tfrecord')] == [[8], [9]]
    refuse('export', 'ds', 'z.tar', '--fields', 'nn', says=('"nn"', 'the fields are'))
    refuse('export', 'ds', 'z.tar', '--fields', 'n=t,t', says='"t"')
    refuse('export', 'ds', 'z', '--fields', 'n', says='--fields needs --to', code=2)
    assert not os.path.exists('z') and not os.path.exists('z.tar')


def shards_are_numbered_in_the_order_of_their_datapoints():
    _numbers(10)
    run('export', 'ds', 'whole.tfrecord')
    whole = pathlib.Path('whole.tfrecord').read_bytes()
    for out, words, names in (
            ('x.tfrecord', ['--shard-length', 4], [f'x-{i:06}.tfrecord' for i in range(3)]),
            ('dir', ['--to', 'tfrecord', '--shard-length', 4],
             [f'dir/{i:06}.tfrecord' for i in range(3)]),
            ('y.tfrecord', ['--shard-size', 20], None)):
        run('export', 'ds', out, *words)
        names = names or sorted(map(str, pathlib.Path().glob('y-*')))
        assert len(names) > 2 and not os.path.exists('x.tfrecord')
        assert b''.join(pathlib.Path(n).read_bytes() for n in names) == whole
        refuse('export', 'ds', out, *words, says='exist')
        assert b'already has' in run('export', 'ds', out, *words, '--resume').out
    # Shards of another export would be read with these.
    refuse('export', 'ds', 'x.tfrecord', '--shard-length', 5, '--resume', says='differs')
    shutil.copy('x-000000.tfrecord', 'x-000003.tfrecord')
    refuse('export', 'ds', 'x.tfrecord', '--shard-length', 4, '--resume',
           says=('x-000003.tfrecord', 'not a file of this export'))


@each(['x.tfrecord', 'x.tar', 'out'])
def workers_write_what_one_process_writes(out):
    words = ['--to', 'mds'] if out == 'out' else []
    _numbers(11)
    run('export', 'ds', 'one/' + out, *words, '--shard-length', 3)
    for w in (2, 0, 1):
        run('export', 'ds', 'all/' + out, *words, '--shard-length', 3, '--shard-stop', 3,
            '--shard-start', w)
    assert files('one') == files('all')
    refuse('export', 'ds', 'all/' + out, *words, '--shard-length', 3, '--shard-stop', 3,
           '--shard-start', 1, says='exist')
    for w in (0, 1):
        run('export', 'ds', 'two/' + out, *words, '--shard-stop', 2, '--shard-start', w)
    assert sum(1 for name in files('two') if '00' in name) == 2
    refuse('export', 'ds', 'z.tar', '--shard-size', 9, '--shard-stop', 2, says='shard-size',
           code=2)


def an_ending_states_the_format():
    _numbers(2)
    for out in ('x.foo', 'x.tar.gz', 'd/x.v2', 'x.foo/'):
        refuse('export', 'ds', out, says=('unknown ending', '--to'), code=2)
        assert not os.path.exists(out)
    refuse('export', 'ds', 'x.csv', '--to', 'tfrecord', says='ends like csv', code=2)
    refuse('export', 'ds', 'x.tar', '--to', 'lines', says='ends like', code=2)
    refuse('export', 'ds', 'x.arrow', says='Parquet', code=2)
    refuse('export', 'ds', 'x.tfrecord', '--key', 'n', says='--key', code=2)
    refuse('export', 'ds', 'x.tar', '--label', 'n', says='--label', code=2)
    refuse('export', 'ds', 'x.tar', '--raw', says='--raw', code=2)
    run('export', 'ds', 'X.TAR')
    assert tarfile.is_tarfile('X.TAR')
    run('export', 'ds', 'x.v2', '--to', 'tfrecord')
    assert len(_examples('x.v2')) == 2
    run('export', 'ds', 'lines.v2', '--to', 'lines')
    assert os.path.exists('lines.v2/manifest.jsonl')
    run('export', 'ds', '.hidden')
    assert os.path.exists('.hidden/manifest.jsonl')


# ---- what is refused ----

@each([
    ('tfrecord', 'u=u64', [{'u': 1}], ('"u"', 'unsigned')),
    ('tfrecord', 'u=array(uint64,2)', [{'u': [1, 2]}], ('"u"', 'unsigned')),
    ('tfrecord', 'u=int', [{'u': 1}, {'u': 2**63}], ('"u"', 'datapoint 1', '2^63-1')),
    ('tfrecord', 'u=int(8)', [{'u': 2**64 - 1}], ('"u"', '2^63-1')),
    ('webdataset', 'Up=utf8', [{'Up': 'a'}], ('"Up"', 'lower case')),
    ('webdataset', 'v=array(float32,2)[]', [{'v': [[1, 2], [3, 4]]}], ('"v"', '2 items')),
    ('webdataset', 'v=utf8[]', [{'v': ['a']}, {'v': []}], ('datapoint 1', 'no field')),
    ('mds', 'v=array(bool)', [{'v': True}], ('"v"', 'array(bool)')),
    ('mds', 'v=array(float32,0)', [{'v': []}], ('"v"',)),
    ('images', 'n=int(4)', [{'n': 1}], ('no field is of type jpeg',)),
    ('hdf5', 'v=array(float32,2)[]', [{'v': [[1, 2]]}], ('"v"', 'rows')),
    ('hdf5', 'v=array', [{'v': 1.5}], ('"v"',)),
    ('csv', 'v=array(float32,2)', [{'v': [1, 2]}], ('"v"', 'CSV')),
    ('csv', 'v=utf8[]', [{'v': ['a', 'b']}], ('"v"', '2 items')),
    ('parquet', 'a=int,A=int', [{'a': 1, 'A': 2}], ('"a"', 'case')),
    ('csv', 'Straße=int,straße=int', [{'Straße': 1, 'straße': 2}], ('"straße"', 'case')),
    ('webdataset', 'a.txt=bytes,a=utf8', [{'a.txt': {'base64': ''}, 'a': 'x'}],
     ('"a.txt"', 'another field')),
    ('webdataset', '__url__=bytes', [{'__url__': {'base64': ''}}], ('"__url__"', '__key__')),
    ('lerobot', 'a=i64[],Index=i64[]', [{'a': [1], 'Index': [0]}], ('"Index"', 'case', 'index')),
    ('lerobot', 'a=i64[],A=i64[]', [{'a': [1], 'A': [0]}], ('"a"', 'case')),
])
def a_field_that_a_format_lacks_is_refused_before_anything_is_written(case):
    format, spec, rows, says = case
    if format not in _exporters():
        return
    pack(rows, spec, 'ds')
    before = sorted(os.listdir())
    refuse('export', 'ds', 'out', '--to', format, says=says)
    assert sorted(os.listdir()) == before


@each(['a,a.b', 'a,a.b.c', 'a.b,a.b.c', 'a,a..b', 'a.', 'a..b', 'a.b,a.b-c,a.b.c'])
def groups_of_hdf5_that_are_datasets_are_refused_before_anything_is_written(names):
    if 'hdf5' not in _exporters():
        return
    names = names.split(',')
    pack([dict.fromkeys(names, 1)] * 3, ','.join(f'{name}=int(4)' for name in names), 'ds')
    before = sorted(os.listdir())
    refuse('export', 'ds', 'x.h5', '--layout', 'episodes', says=('field "a', 'group'))
    assert sorted(os.listdir()) == before
    run('export', 'ds', 'x.h5')  # rows have no groups
    refuse('export', 'ds', 'y.h5', '--fields', f'{names[0]}=b/c', says='b/c')


def names_of_hdf5_next_to_each_other_are_not_refused():
    if 'hdf5' not in _exporters():
        return
    pack([{'a': 1, 'ab': 2, 'b.c': 3, 'b.d': 4, 'b.cd': 5, 'A': 6}],
         'a=int,ab=int,b.c=int,b.d=int,b.cd=int,A=int', 'ds')
    run('export', 'ds', 'x.h5', '--layout', 'episodes')
    run('import', 'x.h5/data', 'back', '--layout', 'episodes')
    row = _rows('back')[0]
    assert [row[name] for name in ('a', 'ab', 'b.c', 'b.d', 'b.cd', 'A')] == [1, 2, 3, 4, 5, 6]


@each(['a.b', '', '/x', '../x', 'x/../y', '__a__', 'a\nb', 'x/', '.x', 'a\\b', 'x//y'])
def a_hostile_key_is_refused(key):
    pack([{'k': 'fine', 't': 'x'}, {'k': key, 't': 'y'}], 'k=utf8,t=utf8', 'ds')
    before = sorted(os.listdir())
    refuse('export', 'ds', 'x.tar', '--key', 'k', says=('"k"', 'datapoint 1', 'the key'))
    assert sorted(os.listdir()) == before


def equal_keys_are_refused():
    pack([{'k': k, 't': 'x'} for k in ('a', 'b', 'a')], 'k=utf8,t=utf8', 'ds')
    refuse('export', 'ds', 'x.tar', '--key', 'k', says=('"k"', '"a"', 'not unique'))
    assert not os.path.exists('x.tar')


@each(['a/b', '..', '.x', 'a\nb', 'a:b', 'x\\y', 'y' * 300])
def a_hostile_label_is_refused(label):
    photo = {'file': str(PHOTOS[0])}
    pack([{'image': photo, 'label': 'ok'}, {'image': photo, 'label': label}],
         'image=jpeg,label=utf8', 'ds')
    before = sorted(os.listdir())
    refuse('export', 'ds', 'out', '--to', 'images', says=('"label"', 'datapoint 1'))
    assert sorted(os.listdir()) == before


@each([('Cat', 'x', 'cat', 'y'), ('cat', 'x', 'cat', 'X'), ('a', 'b/x', 'a', 'B/y'),
       ('', 'cat', 'cat.jpg', 'x'), ('a', 'x.jpg', 'a', 'x.jpg/y'), ('z', 'A', 'z', 'a-b/../a')])
def images_that_cannot_be_next_to_each_other_are_refused(names):
    photo = {'file': str(PHOTOS[0])}
    pack([{'image': photo, 'label': label, 'path': path} for label, path in
          (names[:2], ('a', '0'), ('m', 'm'), ('z', 'z'), names[2:])],
         'image=jpeg,label=utf8,path=utf8', 'ds')
    before = sorted(os.listdir())
    refuse('export', 'ds', 'out', '--to', 'images', says='field "path"')
    assert sorted(os.listdir()) == before


def images_lose_no_field_and_no_file():
    photo = {'file': str(PHOTOS[0])}
    pack([{'image': photo, 'label': 'a', 'path': 'x.jpg', 'more': 1},
          {'image': photo, 'label': 'a', 'path': 'a/x.jpg', 'more': 2}],
         'image=jpeg,label=utf8,path=utf8,more=int(4)', 'ds')
    refuse('export', 'ds', 'out', '--to', 'images', says=('"more"', '--fields'))
    refuse('export', 'ds', 'out', '--to', 'images', '--fields', 'image,label,path',
           says=('two images', 'a/x.jpg'))
    run('export', 'ds', 'out', '--to', 'images', '--fields', 'image,label')
    run('export', 'ds', 'one', '--to', 'images', '--fields', 'image', '--label', 'label')
    assert files('one') == files('out')
    pathlib.Path('out/a/stray.jpg').write_bytes(b'')
    refuse('export', 'ds', 'out', '--to', 'images', '--fields', 'image,label', '--resume',
           says='3 files')


def csv_and_parquet_say_which_library_is_missing():
    _numbers(1)
    done = subprocess.run([harness.PROGRAM, 'export', 'ds', 'x.csv'], capture_output=True,
                          env={**os.environ, 'LD_LIBRARY_PATH': '/nonexistent'})
    assert done.returncode == 0 or b'libduckdb.so' in done.stderr, done
    assert done.returncode == 0 or not os.path.exists('x.csv')


# ---- resuming ----

def _blobs():
    rng = random.Random(3)
    rows = []
    for i in range(300):
        pathlib.Path(f'b{i}').write_bytes(rng.randbytes(30000))
        rows.append({'bin': {'file': f'b{i}'}, 'n': i})
    pack(rows, 'bin=bytes,n=int(4)', 'ds')


CASES = [('x.tar', []), ('x.tfrecord', []), ('x.mds', ['--shard-length', '70']),
         ('x.tar', ['--shard-length', '70']), ('x.parquet', ['--shard-length', '70']),
         ('x.h5', ['--shard-length', '70'])]


@each(CASES)
def a_killed_export_is_resumed(case):
    out, words = case
    if not _has({'parquet': 'parquet', 'h5': 'hdf5'}.get(out.split('.')[1], 'tfrecord')):
        return
    _blobs()
    stem = out.split('.')[0]
    for most in (0, 1, 3000000, 8000000):
        job = subprocess.Popen([harness.PROGRAM, 'export', 'ds', out, *words],
                               stdout=subprocess.DEVNULL)
        while job.poll() is None:
            try:
                if sum(p.stat().st_size for p in pathlib.Path().rglob(stem + '*')
                       if p.is_file()) >= most:
                    break
            except FileNotFoundError:
                pass
        job.kill()
        job.wait()
        finished = not os.path.exists(out + '.unfinished')
        if not finished:
            refuse('export', 'ds', out, *words, says=('unfinished', '--resume'))
        run('export', 'ds', out, *words, '--resume')
        found = _tree(stem)
        assert not [name for name in found if 'partial' in name or 'unfinished' in name]
        for path in list(pathlib.Path().glob(stem + '*')):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        run('export', 'ds', out, *words)
        assert _tree(stem) == found, most
        for path in list(pathlib.Path().glob(stem + '*')):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _tree(stem):
    found = {}
    for path in pathlib.Path().glob(stem + '*'):
        found.update({f'{path}/{k}': v for k, v in files(path).items()} if path.is_dir()
                     else {str(path): path.read_bytes()})
    return found


@each(CASES)
def a_full_disk_is_an_error_and_resumed(case):
    out, words = case
    if not _has({'parquet': 'parquet', 'h5': 'hdf5'}.get(out.split('.')[1], 'tfrecord')):
        return
    _blobs()
    run('export', 'ds', 'whole/' + out, *words)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500000, 1500000))

    refuse('export', 'ds', 'full/' + out, *words, preexec_fn=limit, says='full/x')
    assert not any(name.endswith('.tar') and 'partial' not in name
                   for name in files('full'))
    run('export', 'ds', 'full/' + out, *words, '--resume')
    assert files('full') == files('whole')


def an_export_of_another_source_is_not_resumed():
    _numbers(10)
    _numbers(11, 'more')
    run('export', 'ds', 'x.tar')
    refuse('export', 'ds', 'x.tar', says='already exists')
    refuse('export', 'more', 'x.tar', '--resume', says='differs')
    refuse('export', 'ds', 'x.tar', '--key', 't', '--resume', says='differs')
    before = pathlib.Path('x.tar').read_bytes()
    assert b'already has' in run('export', 'ds', 'x.tar', '--resume').out
    assert pathlib.Path('x.tar').read_bytes() == before
    pathlib.Path('x.tar').write_bytes(before[:-600])
    refuse('export', 'ds', 'x.tar', '--resume', says='differs')


def an_export_is_locked():
    import fcntl
    _numbers(10)
    with open('x.tar.unfinished', 'w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refuse('export', 'ds', 'x.tar', '--resume', says='locked')
    run('export', 'ds', 'x.tar', '--resume')
    assert sorted(os.listdir()) == ['ds', 'manifest.jsonl', 'x.tar']


def a_shard_without_datapoints_is_a_file():
    _numbers(0)
    for format, out in FORMATS.items():
        if format in ('tfrecord', 'mds') or _has(format):
            run('export', 'ds', out)
            assert os.path.exists(out)
    with tarfile.open('x.tar') as tar:
        assert tar.getnames() == []
    assert _mds('x.mds') == [] and _examples('x.tfrecord') == []


def compressed_fields_are_decompressed():
    if 'zstd' not in run('--version').out.decode().split():
        return
    rows = [{'t': 'text ' * 40 + str(i), 'v': [i, 2]}
            for i in range(20)]
    pack(rows, 't=zstd(utf8),v=zstd(array,float32,2)', 'ds')
    run('export', 'ds', 'x.tfrecord')
    for row, example in zip(rows, _examples('x.tfrecord')):
        assert example == {'t': [row['t'].encode()], 'v': row['v']}


@each(['x.tar', 'x.tfrecord', 'x.csv', 'x.mds', 'x.parquet'])
def an_import_of_no_datapoints_has_the_fields_or_says_that_it_does_not_know_them(out):
    format = next(name for name, usual in FORMATS.items() if usual == out)
    if not _has(format):
        return
    pack([], 'a=i64,t=utf8', 'ds')
    run('export', 'ds', out)
    said = run('import', out, 'back', *(['--header', 'yes'] if format == 'csv' else [])).err
    if format in ('mds', 'parquet'):
        assert harness.read('back')['spec'] == {'a': 'i64', 't': 'utf8'} and not said, said
    else:
        assert f'{out}: no ' in said and 'not known' in said, said


INFOS = ['{"classes": ["a", "it\'s"], "x": {"y": 1.50}}\n', ' {"é\\n": "\\"\'{}%s"}',
         json.dumps({'many': ['x' * 100] * 1000}), '{}']


@each(['x.mds', 'x.parquet', 'x.h5', 'two.parquet', 'episodes.h5'])
def metadata_are_carried_by_formats_that_have_a_place_for_them(out):
    format = next(name for name, usual in FORMATS.items() if usual[1:] == pathlib.Path(out).suffix)
    if not _has(format):
        return
    more = {'two.parquet': ['--shard-length', 2], 'episodes.h5': ['--layout', 'episodes']}
    _numbers(5)
    for number, text in enumerate(INFOS):
        pathlib.Path('ds/info.json').write_text(text, encoding='utf-8')
        for path in pathlib.Path().glob('*.parquet'):
            path.unlink()
        shutil.rmtree('x.mds', ignore_errors=True)
        for path in pathlib.Path().glob('*.h5'):
            path.unlink()
        assert 'info.json' not in run('export', 'ds', out, *more.get(out, [])).err
        again = run('export', 'ds', out, '--resume', *more.get(out, [])).out
        assert b'already has' in again, again
        source = {'two.parquet': 'two-*.parquet', 'episodes.h5': 'episodes.h5/data'}.get(out, out)
        said = run('import', source, f'back{number}',
                   *(more[out] if 'episodes' in out else [])).err
        assert 'metadata' not in said and '(info.json' not in said, said
        assert pathlib.Path(f'back{number}/info.json').read_text(encoding='utf-8') == text
    for text in b'{"a": "\xff"}', b'{"a": 1]}', b'[1]':
        pathlib.Path('ds/info.json').write_bytes(text)
        refuse('export', 'ds', 'bad', '--to', format, says='info.json: not a JSON object')
        assert not os.path.exists('bad')


def metadata_of_images_are_next_to_their_folders():
    photo = {'file': str(PHOTOS[0])}
    pack([{'image': photo, 'label': name} for name in 'aab'], 'image=jpeg,label=utf8', 'ds')
    pathlib.Path('ds/info.json').write_text(INFOS[0])
    run('export', 'ds', 'out', '--to', 'images')
    assert pathlib.Path('out/info.json').read_text() == INFOS[0]
    run('export', 'ds', 'out', '--to', 'images', '--resume')
    assert 'left out' not in run('images', 'out', 'back').err
    assert pathlib.Path('back/info.json').read_text() == INFOS[0] and len(_rows('back')) == 3
    for number, text in enumerate(['[1]', '{]}', '{"a": 1}}']):
        pathlib.Path('out/info.json').write_text(text)
        assert '1 metadata value (info.json)' in run('images', 'out', f'list{number}').err
        assert not os.path.exists(f'list{number}/info.json')
    for worker in range(2):
        run('export', 'ds', 'two', '--to', 'images', '--shard-stop', 2, '--shard-start', worker)
    assert pathlib.Path('two/info.json').read_text() == INFOS[0]
    pack([{'image': photo, 'label': 'Info.json'}], 'image=jpeg,label=utf8', 'ds2')
    run('export', 'ds2', 'fine', '--to', 'images')
    pathlib.Path('ds2/info.json').write_text(INFOS[0])
    refuse('export', 'ds2', 'out2', '--to', 'images', says=('"label"', 'info.json'))
    assert not os.path.exists('out2')


@each(['webdataset', 'tfrecord', 'csv'])
def metadata_without_a_place_are_named(format):
    if not _has(format):
        return
    _numbers(2)
    assert not run('export', 'ds', 'first', '--to', format).err
    pathlib.Path('ds/info.json').write_text(INFOS[0])
    said = run('export', 'ds', 'second', '--to', format).err
    assert f'ds: its info.json is not exported: {format} has no place for it' in said, said
    assert pathlib.Path('first').read_bytes() == pathlib.Path('second').read_bytes()


def metadata_of_lines_are_next_to_their_spec():
    _numbers(3)
    pathlib.Path('ds/info.json').write_text(INFOS[0])
    run('export', 'ds', 'out')
    run('export', 'ds', 'out', '--resume')
    assert pathlib.Path('out/info.json').read_text() == INFOS[0]
    run('pack', 'out/manifest.jsonl', 'back')
    assert files('back') == files('ds')
    run('pack', 'out/manifest.jsonl', 'other', '--spec', 'out/spec.json')
    assert not os.path.exists('other/info.json')
    pathlib.Path('out/info.json').write_text('{}')
    refuse('export', 'ds', 'out', '--resume', says='info.json')
