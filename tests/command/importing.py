"""bags import: sources that the formats' own writers made, and hostile ones."""
import base64
import gzip
import io
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
import warnings
import zipfile

import harness
from harness import ROOT, each, files, read, refuse, run, values

SOURCES = ROOT / 'tests/data/import'
MANIFEST = json.loads((SOURCES / 'manifest.json').read_text())
KINDS = None


def _kinds():
    """The importers of this build."""
    global KINDS
    if KINDS is None:
        lines = subprocess.run([harness.PROGRAM, '--version'], check=True,
                               stdout=subprocess.PIPE).stdout.decode().splitlines()
        KINDS = next(line for line in lines if line.startswith('importers:')).split()[1:]
    return KINDS


def _sources():
    return [name for name in MANIFEST if name.split('/')[0] in _kinds()]


def _hashes(path):
    """The SHA-256 of every blob: what manifest.json has."""
    return [{key: [blob['sha256'] for blob in (value['items'] if 'list' in value else [value])]
             for key, value in row.items()} for row in read(path)['data']]


def _tar(path, members, mode='w'):
    with tarfile.open(path, mode) as out:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path


def _crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF


def _record(data):
    head = struct.pack('<Q', len(data))
    return head + struct.pack('<I', _crc(head)) + data + struct.pack('<I', _crc(data))


def _part(number, data):
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def _example(features):
    """features: name to (1: bytes, 3: int64) and the list's bytes."""
    return _part(1, b''.join(_part(1, _part(1, name.encode()) + _part(2, _part(kind, data)))
                             for name, (kind, data) in features.items()))


@each(_sources)
def what_the_writers_wrote_is_imported_bit_for_bit(name):
    expected = MANIFEST[name]
    run('import', SOURCES / name, 'out')
    assert read('out')['spec'] == expected['spec'], read('out')['spec']
    assert _hashes('out') == expected['data']
    run('verify', 'out', '--decode')


@each(lambda: ['gulp'] if 'gulp' in _kinds() else [])
def videos_of_gulp_are_as_its_manifest_has_them(kind):
    ids = json.loads((SOURCES / 'gulp/manifest.json').read_text())['ids']
    run('import', SOURCES / kind, 'out')
    found = read('out')
    assert found['spec'] == {'frames': 'jpeg[]', 'id': 'utf8', 'meta': 'msgpack'}
    shown = {row['id']: row for row in run('get', 'out', ':', 'id', 'meta').lines}
    assert len(shown) == found['count'] == len(ids)
    for row, name in zip(_hashes('out'), shown):
        assert row['frames'] == [frame['sha256'] for frame in ids[name]['frames']]
        assert shown[name]['meta'] == ids[name]['meta_data']
    for name in ('data_1.gulp', 'meta_1.gmeta'):
        run('import', SOURCES / 'gulp' / name, name)
        assert _hashes(name) == _hashes('out')[-read(name)['count']:]
    pathlib.Path('bad').mkdir()
    for name, text in (('[0, 4, 3]', 'out of range'), ('[0, 0, 99999999]', 'out of range'),
                       ('[1, 0, 9]', 'not a JPEG'), ('[0, 0]', 'not [offset'),
                       ('[-1, 0, 9]', 'not [offset'), ('7', 'not [offset')):
        shutil.copy(SOURCES / 'gulp/data_0.gulp', 'bad/data_0.gulp')
        pathlib.Path('bad/meta_0.gmeta').write_text(
            f'{{"v": {{"frame_info": [{name}], "meta_data": []}}}}')
        refuse('import', 'bad', 'x', says=['bad/data_0.gulp: id "v": frame 0: ', text])
        shutil.rmtree('x', ignore_errors=True)


@each(lambda: [
    ('[18446744073709551616]', 'an integer outside -2^63 .. 2^64-1'),
    ('[-9223372036854775809]', 'an integer outside -2^63 .. 2^64-1'),
    ('["\\ud800"]', 'an unpaired surrogate'),
    ('[{"a\\u0000b": 1}]', 'U+0000 in a name'),
    ('[{"a": 1, "a": 2}]', 'duplicate name'),
    ('[1e999]', 'a number above 1.8e308'),
] if 'gulp' in _kinds() else [])
def metadata_of_gulp_that_would_change_are_an_error(case):
    pathlib.Path('in').mkdir()
    pathlib.Path('in/data_0.gulp').write_bytes(b'')
    meta = pathlib.Path('in/meta_0.gmeta')
    meta.write_text('{"v": {"frame_info": [], "meta_data": %s}}' % case[0])
    refuse('import', 'in', 'out', says=['in/meta_0.gmeta: invalid JSON', case[1]])
    meta.write_text('{"v": {"frame_info": [], "meta_data": '
                    '[18446744073709551615, -9223372036854775808, NaN, {"é\\u0000": {}}]}}')
    refuse('import', 'in', 'out', says='U+0000 in a name')
    meta.write_text('{"v": {"frame_info": [], "meta_data": '
                    '[18446744073709551615, -9223372036854775808, "\\u0000", {"é": {}}]}}')
    run('import', 'in', 'out')
    assert run('get', 'out', '0', 'meta').json['meta'] == [
        2**64 - 1, -2**63, '\0', {'é': {}}]


def a_chunk_of_gulp_that_lacks_a_file_is_an_error():
    if 'gulp' not in _kinds():
        return
    for missing in ('data_1.gulp', 'meta_1.gmeta'):
        shutil.copytree(SOURCES / 'gulp', 'in')
        os.remove(f'in/{missing}')
        for path in ('in', 'in/*_1.*'):
            refuse('import', path, 'out', says=f'in/{missing}: cannot open')
        shutil.rmtree('in')


@each(_sources)
def a_dry_run_shows_what_an_import_would_write_and_writes_nothing(name):
    shown = run('import', SOURCES / name, '--dry-run').json
    assert list(shown) == ['spec', 'length', 'first'] and os.listdir('.') == []
    assert shown['spec'] == MANIFEST[name]['spec']
    assert shown['length'] in (None, len(MANIFEST[name]['data']))
    run('import', SOURCES / name, 'out', '--dry-run')
    assert os.listdir('.') == []
    run('import', SOURCES / name, 'out')
    assert run('get', 'out', '0').json == shown['first']


def fields_are_selected_renamed_and_converted():
    if 'webdataset' not in _kinds():
        return
    source = SOURCES / 'webdataset/samples.tar'
    run('import', source, 'out', '--fields', 'jpg=photo,cls,json', '--type',
        'cls=int(4),photo=jpg,json=msgpack')
    assert read('out')['spec'] == {'cls': 'int(4)', 'json': 'msgpack', 'photo': 'jpg'}
    assert [row['cls'] for row in run('get', 'out', ':').lines] == [0, 1, 2, 3, 4]
    assert run('get', 'out', '2', 'json').json['json'] == {'i': 2, 'naïve': [2, 2]}
    assert [row['photo'] for row in _hashes('out')] == \
        [row['jpg'] for row in MANIFEST['webdataset/samples.tar']['data']]
    for words, says, code in (
            (('--fields', 'jpg,nothing'), ['no field "nothing"', '__key__, bin'], 1),
            (('--fields', 'jpg=a,cls=a'), 'would both be named "a"', 2),
            (('--fields', 'jpg,jpg=b'), 'duplicate field "jpg"', 2),
            (('--fields', 'jpg=a/b'), '"a/b"', 1),
            (('--type', 'jpg'), 'not FIELD=TYPE', 2),
            (('--type', 'jpg=png'), ['samples.tar: datapoint 0: field "jpg"'], 1),
            (('--type', 'bin=int(4)'), ['samples.tar: datapoint 0: field "bin"'], 1),
            (('--type', 'json=int(4)'), ['field "json"', 'not a number'], 1),
            (('--type', 'cls=array'), ['field "cls"', 'text is not a value of type array'], 1),
            (('--type', 'cls=array(float32,2)'), ['field "cls"', 'shape'], 1),
            (('--type', 'seg.png=png'), ['field "seg.png"', '0 items'], 1),
            (('--type', 'jpg=flac'), 'no codec for type "flac"', 1),
            (('--type', 'jpg=int(0)'), 'int(0)', 1),
            (('--type', 'jpg=utf8', '--type', 'cls=utf8'), 'duplicate option', 2),
            (('--fields', 'jpg', '--type', 'cls=utf8'), 'not among --fields', 2)):
        refuse('import', source, 'bad', *words, says=says, code=code)
        if code == 2:
            refuse('import', source, 'bad2', '--dry-run', *words, code=code)
        assert not os.path.exists('bad2')
        shutil.rmtree('bad', ignore_errors=True)
    run('import', source, 'flac', '--type', 'jpg=flac', '--any-type')
    run('import', source, 'many', '--type', 'jpg=jpeg[]')
    assert read('many')['spec']['jpg'] == 'jpeg[]'


def features_without_a_list_are_missing_values():
    """tf.train.Feature(), as TFX writes them: also in the first records, before others."""
    if 'tfrecord' not in _kinds():
        return
    one = _record(_example({'x': (3, _part(1, b'\1'))}))
    unset = _record(_part(1, _part(1, _part(1, b'x') + _part(2, b''))))
    for first in (unset, _record(b''), _record(_part(1, b'')), unset * 2 + _record(b'')):
        for records, at in ((first + one, -1), (one + first, 0)):
            pathlib.Path('x.tfrecord').write_bytes(records)
            shutil.rmtree('out', ignore_errors=True)
            run('import', 'x.tfrecord', 'out')
            assert read('out')['spec'] == {'x': 'i64[]'}
            rows = run('get', 'out', ':').lines
            assert rows.pop(at) == {'x': [1]} and rows and all(row == {'x': []} for row in rows)
    for other in (b'raw', b'\x0a\x05'):
        pathlib.Path('x.tfrecord').write_bytes(_record(b'') + unset + _record(other))
        shutil.rmtree('out', ignore_errors=True)
        run('import', 'x.tfrecord', 'out')
        assert read('out')['spec'] == {'record': 'bytes'}
        assert values('out')[2] == {'record': other.hex()}
    pathlib.Path('x.tfrecord').write_bytes(one + _record(b'raw'))
    refuse('import', 'x.tfrecord', 'bad', says='not a tf.train.Example')


def names_that_files_cannot_have_are_replaced():
    if 'tfrecord' not in _kinds():
        return
    source = pathlib.Path('x.tfrecord')
    one = (3, _part(1, b'\x05'))
    source.write_bytes(_record(_example({'a/b': one, 'c:d*': one, '.e': one})))
    run('import', source, 'out', '--fields', 'a/b,c:d*=f,_e')
    assert read('out')['spec'] == {'_e': 'i64', 'a_b': 'i64', 'f': 'i64'}
    source.write_bytes(_record(_example({'a/b': one, 'a:b': one})))
    refuse('import', source, 'bad', says=['x.tfrecord', '"a/b"', '"a:b"', '"a_b"'])
    source.write_bytes(_record(_example({'refs': one})))
    refuse('import', source, 'bad', says='refs')
    run('import', source, 'good', '--fields', 'refs=ref')


def an_existing_destination_and_unknown_sources_are_refused():
    source = SOURCES / 'tfrecord/examples.tfrecord'
    pathlib.Path('out').mkdir()
    pathlib.Path('file').write_text('x')
    pathlib.Path('some.txt').write_text('nothing known')
    if 'tfrecord' in _kinds():
        refuse('import', source, 'out', says='already exists')
        refuse('import', source, 'file', says='file')
        refuse('import', source, 'x.bag', says='not a Bag', code=2)
        refuse('import', 'some.txt', 'new', '--from', 'tfrecord', says='some.txt: record at byte 0')
        run('import', source, 'again')
        before = files('again')
        refuse('import', source, 'again', says='exists')
        assert files('again') == before
        run('import', source, 'again', '--resume')
        assert files('again') == before
        run('import', source, 'out', '--resume')  # as if killed before its first file
        assert files('out') == before
    refuse('import', 'some.txt', 'new', says='some.txt: unknown format')
    refuse('import', 'nothing', 'new', says='nothing: cannot open')
    refuse('import', 'some.txt', 'new', '--from', 'x', says='"x" is not one of ', code=2)
    refuse('import', 'some.txt', says='expected SRC DST', code=2)
    assert not os.path.exists('new')


def a_folder_or_a_pattern_is_the_files_of_one_set():
    if 'tfrecord' not in _kinds():
        return
    pathlib.Path('in').mkdir()
    for i in range(12):
        name = pathlib.Path(f'in/train.tfrecord-{i:05}-of-00012')
        name.write_bytes(_record(b'train %d' % i) if i != 3 else b'')
    run('import', 'in', 'out')
    assert [row['record'] for row in values('out')] == \
        [(b'train %d' % i).hex() for i in range(12) if i != 3]
    shutil.copy(name, 'in/val.tfrecord-00000-of-00001')
    refuse('import', 'in', 'bad', says='not of one set')
    run('import', 'in/val*', 'val')
    run('import', 'in/train*', 'train')
    assert files('train') == files('out')
    os.remove('in/train.tfrecord-00007-of-00012')
    refuse('import', 'in/train*', 'bad', says='file 7 of 12 is missing')
    pathlib.Path('plain').mkdir()
    for i in (2, 10, 1):
        pathlib.Path(f'plain/{i}.tfrecord').write_bytes(_record(b'%d' % i))
    run('import', 'plain', 'sorted')
    assert [bytes.fromhex(row['record']) for row in values('sorted')] == [b'1', b'2', b'10']
    pathlib.Path('empty').mkdir()
    refuse('import', 'empty', 'bad', '--from', 'tfrecord', says='empty: no file')


def samples_of_webdataset_are_grouped_as_it_groups_them():
    if 'webdataset' not in _kinds():
        return
    _tar('a.tar', [('__info__', b'x'), ('d/1.JPG', b'\xff\xd8\xff1'), ('d/1.txt', b'one'),
                   ('README', b'none'), ('d/.hidden', b''), ('d/2.txt', b'two'),
                   ('2.txt', b'other'), ('2.x.y', bytes(3)), ('d/1.1/1.txt', b'again')])
    run('import', 'a.tar', 'out')
    assert read('out')['spec'] == {'__key__': 'utf8', 'jpg': 'jpeg[]', 'txt': 'utf8',
                                   'x.y': 'bytes[]'}
    assert [(row['__key__'], row['txt'], len(row['jpg']), len(row['x.y']))
            for row in run('get', 'out', ':', code=1).lines] == \
        [('d/1', 'one', 1, 0), ('d/2', 'two', 0, 0), ('2', 'other', 0, 1),
         ('d/1.1/1', 'again', 0, 0)]
    _tar('twice.tar', [('1.txt', b'a'), ('1.TXT', b'b')])
    refuse('import', 'twice.tar', 'bad', says=['twice.tar', '1.txt', 'duplicate'])
    _tar('wrong.tar', [('1.jpg', b'\xff\xd8\xff'), ('2.jpg', b'\x89PNG\r\n\x1a\n'),
                       ('2.txt', b'\xff')])
    assert run('import', 'wrong.tar', '--dry-run').json['spec'] == \
        {'__key__': 'utf8', 'jpg': 'bytes', 'txt': 'bytes[]'}
    _tar('none.tar', [])
    assert run('import', 'none.tar', '--dry-run').json == \
        {'spec': {'__key__': 'utf8'}, 'length': 0, 'first': None}
    pathlib.Path('folder').mkdir()
    _tar('folder/0.tar', [('1.txt', b'a')])
    _tar('folder/1.tar.gz', [('1.txt', b'b')], 'w:gz')
    _tar('folder/2.tar.xz', [('1.txt', b'c')], 'w:xz')
    _tar('folder/3.txz', [('1.txt', b'd')], 'w:xz')
    _tar('folder/4.tbz2', [('1.txt', b'e')], 'w:bz2')
    run('import', 'folder', 'five')
    assert [row['txt'] for row in values('five')] == ['a', 'b', 'c', 'd', 'e']


def a_link_in_a_sample_of_a_tar_is_an_error():
    if 'webdataset' not in _kinds():
        return
    for kind, words in ((tarfile.LNKTYPE, ['hard link', 'the tar with --hard-dereference']),
                        (tarfile.SYMTYPE, ['symbolic link', 'the tar with --dereference'])):
        for name in ('b.txt', 'README'):
            with tarfile.open('links.tar', 'w') as tar:
                about = tarfile.TarInfo('a.txt')
                about.size = 3
                tar.addfile(about, io.BytesIO(b'one'))
                link = tarfile.TarInfo(name)
                link.type, link.linkname = kind, 'a.txt'
                tar.addfile(link)
            if name == 'b.txt':
                refuse('import', 'links.tar', 'bad', says=['links.tar: member "b.txt": ', *words])
        assert 'left out: 1 member (README)' in run('import', 'links.tar', '--dry-run').err


def a_key_that_appears_again_in_its_tar_is_an_error():
    if 'webdataset' not in _kinds():
        return
    def member(name):
        return name, name.encode()
    orders = {'interleaved': ['a.jpg', 'b.jpg', 'a.json', 'b.json'],
              'again': ['b.txt', 'c.txt', 'b.txt'],
              'after a folder': ['d/b.txt', 'd/b/c.txt', 'd/b.json']}
    pathlib.Path('in').mkdir()
    _tar('in/0.tar', [member('b.txt'), member('d/b.txt')])
    _tar('in/2.tar', [member('z.txt')])
    for name, members in orders.items():
        key = 'd/b' if 'folder' in name else 'b' if name == 'again' else 'a'
        for ending in ('', '.gz'):
            _tar(f'in/1.tar{ending}', map(member, members), 'w:' + ending[1:])
            for source in (f'in/1.tar{ending}', 'in'):
                refuse('import', source, 'bad', says=[
                    f'in/1.tar{ending}: key "{key}" appears again', 'tar --sort=name'])
            os.remove(f'in/1.tar{ending}')
    # Of other tar files a key may come again; members of no sample do not end a sample.
    _tar('in/1.tar', map(member, ['b.txt', 'README', 'b.json', 'b2.txt', 'd/b.txt']))
    assert [row['__key__'] for row in run('import', 'in', 'out') and values('out')] == \
        ['b', 'd/b', 'b', 'b2', 'd/b', 'z']


def damage_of_a_tar_is_found():
    if 'webdataset' not in _kinds():
        return
    data = (SOURCES / 'webdataset/samples.tar.gz').read_bytes()
    for name, bad in (('cut.tar.gz', data[:-1]), ('flip.tar.gz', data[:-8] + b'\0' + data[-7:]),
                      ('more.tar.gz', data + b'x')):
        pathlib.Path(name).write_bytes(bad)
        refuse('import', name, 'bad', says=[f'{name}: gzip before byte'])
    data = (SOURCES / 'webdataset/samples.tar').read_bytes()
    pathlib.Path('cut.tar').write_bytes(data[:1536])
    refuse('import', 'cut.tar', 'bad', says=['cut.tar: truncated: the tar ends at byte 1536'])


def a_member_that_is_nothing_but_compression_is_refused():
    if 'webdataset' not in _kinds():
        return
    info = tarfile.TarInfo('1.bin')
    info.size = 1 << 40
    with gzip.open('bomb.tar.gz', 'wb', 1) as out:
        out.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(300):
            out.write(bytes(1 << 20))
    refuse('import', 'bomb.tar.gz', 'bad', says='bomb.tar.gz: member "1.bin": too large when')


def hashes_and_sizes_of_mds_are_checked():
    if 'mds' not in _kinds():
        return
    for name, file in (('raw', 'shard.00001.mds'), ('zstd', 'shard.00001.mds.zstd')):
        shutil.copytree(SOURCES / 'mds' / name, name)
        path = pathlib.Path(name, file)
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        refuse('import', name, f'{name}-out', says=[
            f'{path}: checksum mismatch of its sha1', 'datapoints are kept'])
        path.write_bytes(data[:-1])
        refuse('import', name, f'{name}-out', '--resume', says=[f'{path}: ', 'expected'])
        path.write_bytes(data)
        run('import', name, f'{name}-out', '--resume')
        assert _hashes(f'{name}-out') == MANIFEST[f'mds/{name}']['data']
    index = json.loads(pathlib.Path('raw/index.json').read_text())
    for change, says in (
            (lambda s: s['raw_data'].update(basename='../raw/shard.00000.mds'), 'basename'),
            (lambda s: s['column_encodings'].__setitem__(0, 'mystery'), 'unknown encoding'),
            (lambda s: s.update(samples=10**6), 'too short'),
            (lambda s: s.update(version=1), 'version 2'),
            (lambda s: s['column_names'].__setitem__(0, 'dada'), 'other columns than in raw'),
            (lambda s: s['column_sizes'].__setitem__(4, 23), '"fixed": unknown encoding'),
            (lambda s: s['column_encodings'].__setitem__(4, 'ndarray:int32:2,,3'), 'unknown enc'),
            (lambda s: s['raw_data']['hashes'].update(crc99='00'), 'unknown hash "crc99"')):
        bad = json.loads(json.dumps(index))
        bad['shards'] = bad['shards'][:1]
        change(bad['shards'][0])
        pathlib.Path('raw/index.json').write_text(json.dumps(bad))
        refuse('import', 'raw', 'bad', says=['raw/index.json', says] if 'too' not in says and 'than' not in says
               else ['shard.00000.mds', says])
        shutil.rmtree('bad', ignore_errors=True)


def _mds(columns, samples):
    """A shard by hand: columns are (name, encoding, size)."""
    rows = []
    for sample in samples:
        head = b''.join(struct.pack('<I', len(value))
                        for value, column in zip(sample, columns) if not column[2])
        rows.append(head + b''.join(sample))
    at = 4 + 4 * (len(rows) + 1)
    ends = [at]
    for row in rows:
        ends.append(ends[-1] + len(row))
    data = struct.pack(f'<{len(rows) + 2}I', len(rows), *ends) + b''.join(rows)
    pathlib.Path('mds').mkdir(exist_ok=True)
    pathlib.Path('mds/0.mds').write_bytes(data)
    names, encodings, sizes = zip(*columns)
    pathlib.Path('mds/index.json').write_text(json.dumps({'version': 2, 'shards': [{
        'column_names': names, 'column_encodings': encodings, 'column_sizes': sizes,
        'compression': None, 'format': 'mds', 'hashes': [], 'samples': len(rows),
        'size_limit': None, 'version': 2, 'zip_data': None,
        'raw_data': {'basename': '0.mds', 'bytes': len(data), 'hashes': {}}}]}))


def arrays_images_and_lists_of_mds_become_arrays_and_sequences():
    if 'mds' not in _kinds():
        return
    jpeg = b'\xff\xd8\xff0'
    pil = struct.pack('<3I', 2, 1, 3) + b'RGB' + bytes(range(6))
    columns = [('a', 'ndarray', None), ('b', 'ndarray:uint16', None), ('c', 'pil', None),
               ('d', 'jpeg_array:90', None), ('e', 'list[pil]', None), ('f', 'jpeg:75', None),
               ('g', 'ndarray:', None), ('h', 'ndarray:int16:1,2', 4)]
    good = [bytes([34, 2 << 2, 1, 2]) + struct.pack('<2f', 0.5, -1),
            bytes([1 << 2 | 1, 3, 0]) + struct.pack('<3H', 7, 8, 9), pil,
            struct.pack('<3I', 2, 4, 5) + jpeg + jpeg + b'1',
            struct.pack('<3I', 0, 1, len(pil)) + pil, jpeg, bytes([8, 1 << 2, 1, 5]),
            struct.pack('<2h', -1, 1)]
    _mds(columns, [good])
    run('import', 'mds', 'out')
    assert _shown('out', '0', '--lists')[0] == {
        'a': {'dtype': 'float32', 'list': [[0.5, -1]]},
        'b': {'dtype': 'uint16', 'list': [7, 8, 9]},
        'c': {'dtype': 'uint8', 'list': [[[0, 1, 2], [3, 4, 5]]]},
        'd': [{'type': 'jpeg', 'bytes': 4}, {'type': 'jpeg', 'bytes': 5}],
        'e': [{'dtype': 'uint8', 'list': [[[0, 1, 2], [3, 4, 5]]]}],
        'f': {'type': 'jpeg', 'bytes': 4}, 'g': {'dtype': 'uint8', 'list': [5]}, 'h': [[-1, 1]]}
    for encoding in ('jpeg:x', 'png:9', 'str:utf8', 'jpeg:9:9', 'int:4'):
        _mds([('a', encoding, None)], [[jpeg]])
        refuse('import', 'mds', 'bad', says=f'column "a": unknown encoding "{encoding}"')
    for column, value in ((0, b'\x07' + good[0][1:]), (0, good[0][:-1]), (0, b''),
                          (1, good[1] + b'x'), (1, b'\xff'), (2, pil[:5]),
                          (2, pil.replace(b'RGB', b'1  ')), (3, good[3][:9]),
                          (3, struct.pack('<I', 2**31)), (3, good[3].replace(jpeg, b'nojp')),
                          (4, good[4][:-1]), (4, b'x')):
        bad = list(good)
        bad[column] = value
        _mds(columns, [good, bad])
        refuse('import', 'mds', 'bad', says=f'0.mds: sample 1: column "{columns[column][0]}": ')
        shutil.rmtree('bad')


def _shown(*words):
    """The lines of `bags get`, with images that are none: without what is wrong with them."""
    def plain(value):
        if isinstance(value, list):
            return [plain(item) for item in value]
        return {key: item for key, item in value.items() if key != 'error'} if isinstance(
            value, dict) else value
    out = subprocess.run([harness.PROGRAM, 'get', *words], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL).stdout
    return [{key: plain(value) for key, value in json.loads(line).items()}
            for line in out.splitlines()]


def columns_of_arrow_are_what_its_writers_wrote():
    if 'arrow' not in _kinds():
        return
    jpeg = [{'type': 'jpeg', 'bytes': size} for size in (4, 3, 5, 3)]
    rows = {
        'b': [True, False, True, True], 'bin': jpeg, 'day_days': [19723, -1, 0, 0],
        'dec': ['123.45', '0.05', '-0.01', '0.00'], 'dict': ['x', 'y', 'x', 'x'],
        'dur_s': [1, 2, 3, 4], 'f16': [1, 2, 3, .5], 'f32': [1, 2, 3, .5],
        'fb': [{'type': 'bytes', 'bytes': 3}] * 4,
        'fl': [[1, 2], [3, 4], [5, 6], [7, 8]], 'i8': [[1], [-2], [], [4]],
        'im': [{'type': 'jpeg', 'bytes': 4}] * 4, 'l': [[1, 2], [], [3], []],
        'll': [[[1, 2], [3]], [], [[]], [[4]]], 'ls': ['a', 'bé', '', 'x'],
        'lst.k': [[1, 2], [], [3], [9]], 'nil': [[]] * 4, 's': [['a'], ['bé'], [''], []],
        'st.x': [1, 2, 3, 4], 'st.y': ['p', 'q', 'r', 's'], 'ts_us': [1000, 2000, 3000, 4000],
        'u64': [1, 2, 3, 2**63]}

    def plain(value):
        """Without the dtypes that --lists adds."""
        if isinstance(value, dict) and 'list' in value:
            return value['list']
        return [plain(item) for item in value] if isinstance(value, list) else value

    expected = [{name: values[i] for name, values in rows.items()} for i in range(4)]
    for name, times in (('types.arrow', 1), ('types.arrows', 1), ('two.arrow', 2)):
        run('import', SOURCES / 'arrow' / name, name)
        found = [{key: plain(value) for key, value in row.items()}
                 for row in _shown(name, ':', '--lists')]
        assert found == expected * times, found
    assert read('types.arrow')['spec'] == {
        'b': 'array(bool)', 'bin': 'jpeg', 'day_days': 'i64', 'dec': 'utf8', 'dict': 'utf8',
        'dur_s': 'i64', 'f16': 'array(float16)', 'f32': 'array(float32)', 'fb': 'bytes',
        'fl': 'array(float32,2)', 'i8': 'i64[]', 'im': 'jpeg', 'l': 'i64[]',
        'll': 'array(float32,-1)[]', 'ls': 'utf8', 'lst.k': 'i64[]', 'nil': 'i64[]',
        's': 'utf8[]', 'st.x': 'i64', 'st.y': 'utf8', 'ts_us': 'i64', 'u64': 'u64'}
    texts = [['a'], ['bcdefghijklmnopqrstuvwxyz'], []]
    for name in ('polars-lz4.arrow', 'polars-zstd.arrow', 'category.feather'):
        run('import', SOURCES / 'arrow' / name, name)
        found = run('get', name, ':', '--lists').lines
        assert [row['s'] for row in found] == texts and [row['d_ms'] for row in found] == [0, 1, 2]
        assert [plain(row['l']) for row in found] == [[1, 2], [3], []]
        assert 'cat' not in found[0] or [row['cat'] for row in found] == texts


def a_column_of_csv_has_any_type_that_holds_its_text():
    if 'csv' not in _kinds():
        return
    def write(*lines):
        pathlib.Path('x.csv').write_text(''.join(line + '\n' for line in lines))
        shutil.rmtree('out', ignore_errors=True)
    def check(type, *shown):
        write('a,x', *(f'{i},{cell}' for i, (cell, _) in enumerate(shown)))
        run('import', 'x.csv', 'out', '--type', f'x={type}')
        assert read('out')['spec']['x'] == type
        found = [row['x'] for row in run('get', 'out', ':').lines]
        assert found == [value for _, value in shown], found
    check('array(float32)', ('1.50', 1.5), (' .1', .1), ('-2e3', -2000), ('7', 7), ('nan', 'NaN'))
    check('array(float16)', ('0.1', .099975586), ('Infinity', 'Infinity'))
    check('array(float64)', ('1', 1), ('3', 3))
    check('array(int8)', ('-128', -128), ('127', 127))
    check('array(bool)', ('TRUE', True), ('false', False))
    check('int(2)', ('65535', 65535), ('0', 0))
    check('u64', ('18446744073709551615', 2**64 - 1))
    check('utf8', ('1.50', '1.50'), ('007', '007'), (' 2', ' 2'), ('""', ''))
    check('utf8', ('TRUE', 'TRUE'), ('true', 'true'))
    check('msgpack', ('1.5', 1.5), ('-3', -3))
    check('array(float32)[]', ('1.5', [1.5]), ('', []), ('""', []))
    check('zstd(utf8)', ('1.0', '1.0'))
    write('a,x', '1,2.50')
    run('import', 'x.csv', 'out', '--fields', 'x=y', '--type', 'y=utf8')
    assert run('get', 'out', '0').json == {'y': '2.50'}
    for type, cell, says in (
            ('array(float32)', '1.23456789', '"1.23456789" would be rounded (float32)'),
            ('array(float32)', '16777217', 'would be rounded'),
            ('array(float16)', '65536', 'is too large'), ('array(uint8)', '256', 'is out of range'),
            ('array(int64)', '1.5', '"1.5" is not a whole number'), ('array(bool)', '1', 'true or false'),
            ('i64', '1.0', 'is not a number of 64 bits'), ('u64', '-1', '-1'),
            ('array(float32)', 'TRUE', '"true" is not a number')):
        write('a,x', '1,' + cell)
        refuse('import', 'x.csv', '--dry-run', '--type', f'x={type}', says=['x.csv: ', 'field "x": ', says])
    for cell in ('007', '+5', 'abc', '2024-01-01'):
        write('a,x', '1,2', '2,' + cell)
        refuse('import', 'x.csv', 'out', '--type', 'x=i64', says='column "x": line 3: not a number, or it')


def files_in_a_zip_of_zarr_that_are_no_chunks_are_an_error_or_counted():
    if 'zarr' not in _kinds():
        return
    def array(**more):
        return json.dumps({'zarr_format': 2, 'shape': [2, 2], 'chunks': [1, 2], 'dtype': '|u1',
                           'order': 'C', 'filters': None, 'fill_value': 0, 'compressor': None,
                           **more})
    def write(name, root='', slash='.', **files):
        with zipfile.ZipFile(name, 'w') as out:
            out.writestr(root + '.zgroup', '{"zarr_format": 2}')
            for key in 'xy':
                out.writestr(f'{root}{key}/.zarray', array(dimension_separator=slash))
                out.writestr(f'{root}{key}/1{files.get(key, slash)}0', b'ab')
            for key in files.get('more', ()):
                out.writestr(root + key, b'x')
    for root in ('', 'data.zarr/'):
        for slash, other in './', '/.':
            write('bad.zip', root, slash, y=other)
            refuse('import', 'bad.zip', 'bad', says=[
                f'bad.zip: no chunk has a name that {root}y/.zarray states (found '
                f'{root}y/1{other}0, expected {root}y/0{slash}0)',
                f'; set "dimension_separator": "{other}" in {root}y/.zarray'])
            write('good.zip', root, slash, more=['README', f'x/0{other}0', 'y/.hidden', 'z/'])
            shutil.rmtree('good', ignore_errors=True)
            said = run('import', 'good.zip', 'good').err
            assert f'left out: 2 other files (README, x/0{other}0)' in said, said
            assert [row['x']['hex'] for row in read('good')['data']] == ['0000', '6162']


def what_is_left_out_is_counted_and_named():
    """By every importer, in the same words."""
    _tar('x.tar', [('README', b''), ('1.txt', b'a'), ('.hidden', b''), ('__x__', b'')])
    for kind, source, says in (
            ('webdataset', 'x.tar', ['left out: 3 members (README, .hidden, __x__)']),
            ('benzina', SOURCES.parent / 'golden/benzina/data.bzna',
             ['left out: 1 track (bzna_thumb)']),
            ('mcap', SOURCES / 'mcap/plain.mcap',
             ['left out: 1 attachment (a)', 'left out: 1 metadata record (m)']),
            ('mcap', SOURCES / 'mcap/no-index.mcap',
             ['left out: 1 attachment (a)', 'left out: 1 metadata record (m)']),
            ('arrow', SOURCES / 'arrow/types.arrow', ['left out: 1 column (im.path)']),
            ('hdf5', SOURCES / 'steps.h5',
             ['left out: 1 attribute (action@unit)', 'left out: 1 named type (kind)'])):
        if kind in _kinds():
            for options in (['--dry-run'], ['out']):
                said = run('import', source, *options).err.splitlines()
                assert sorted(line for line in said if 'left out' in line) == sorted(
                    line for part in says for line in said if part in line), said
                assert len([line for line in said if 'left out' in line]) == len(says), said
            shutil.rmtree('out')
    if 'tfrecord' in _kinds():
        pathlib.Path('in').mkdir()
        pathlib.Path('in/x.tfrecord').write_bytes(_record(b'1'))
        for i in range(7):
            pathlib.Path(f'in/{i}').write_bytes(b'')
        said = run('import', 'in', '--dry-run').err
        assert 'in: left out: 7 other files (' in said and ', ...)' in said, said


def _box(kind, data):
    return struct.pack('>I', len(data) + 8) + kind + data


def files_of_a_folder_are_datapoints_as_they_are():
    if 'npy' not in _kinds():
        return
    pathlib.Path('in').mkdir()
    head = b"{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (1,), }"
    npy = b'\x93NUMPY\1\0' + struct.pack('<H', len(head)) + head
    for i in (10, 9, 1):
        pathlib.Path(f'in/{i}.npy').write_bytes(npy + struct.pack('<q', i))
    pathlib.Path('in/notes.txt').write_text('x')
    assert 'left out: 1 other file (notes.txt)' in run('import', 'in', 'out').err
    assert read('out')['spec'] == {'array': 'npy', 'path': 'utf8'}
    assert [row['path'] for row in values('out')] == ['1.npy', '9.npy', '10.npy']
    assert pathlib.Path('out/array.bag').read_bytes().startswith(npy + struct.pack('<q', 1) + npy)
    pathlib.Path('in/9.npy').write_bytes(npy)
    refuse('import', 'in', 'bad', says=['in/9.npy: ', '.npy'])
    shutil.rmtree('bad')
    mp4 = _box(b'ftyp', b'isom\0\0\0\0') + _box(b'moov', b'x') + _box(b'mdat', bytes(9))
    webm = (b'\x1a\x45\xdf\xa3\x87\x42\x82\x84webm' + b'\x18\x53\x80\x67\x85' + bytes(5))
    avi = b'RIFF\4\0\0\0AVI '
    for name, videos, type_ in (
            ('mp4', {'2.mp4': mp4, '10.MOV': mp4}, 'mp4'), ('webm', {'a.webm': webm}, 'webm'),
            ('mixed', {'a.mp4': mp4, 'b.webm': webm}, 'bytes'),
            ('mkv', {'a.mkv': webm.replace(b'\x87\x42\x82\x84webm', b'\x80')}, 'bytes'),
            ('avi', {'a.avi': avi}, 'bytes')):
        pathlib.Path(name).mkdir()
        for file, data in videos.items():
            pathlib.Path(name, file).write_bytes(data)
        run('import', name, name + '.out')
        assert read(name + '.out')['spec'] == {'path': 'utf8', 'video': type_}, name
        assert [row['path'] for row in values(name + '.out')] == list(videos)
        bag = pathlib.Path(name + '.out/video.bag').read_bytes()
        assert bag.startswith(b''.join(videos.values()))
    run('import', 'mp4/*.mp4', 'pattern')
    for file, data in (('mp4/2.mp4', mp4[:-1]), ('mp4/2.mp4', mp4[:16]), ('webm/a.webm', webm[:-1]),
                       ('webm/a.webm', webm[:12])):
        pathlib.Path(file).write_bytes(data)
        refuse('import', file, 'bad', says=[f'{file}: ', 'not a complete video'])
        shutil.rmtree('bad', ignore_errors=True)
    pathlib.Path('mp4/2.mp4').write_bytes(b'text')
    refuse('import', 'mp4', 'bad', says='mp4/2.mp4: not an MP4, WebM, Matroska or AVI file')
    shutil.copy('in/1.npy', 'mp4')
    refuse('import', 'mp4', 'bad', says=['npy or video', '--from'], code=2)


def an_ambiguous_header_of_csv_needs_an_option():
    if 'csv' not in _kinds():
        return
    pathlib.Path('x.csv').write_text('Country,1960\nAruba,54211\n')
    refuse('import', 'x.csv', 'bad', says=[
        'x.csv: line 1: header or data? (Country,1960)', '--header yes', '--header no'])
    run('import', 'x.csv', 'yes', '--header', 'yes')
    assert run('get', 'yes', ':').lines == [{'1960': 54211, 'Country': 'Aruba'}]
    run('import', 'x.csv', 'no', '--header', 'no')
    assert run('get', 'no', ':').lines == [
        {'column0': 'Country', 'column1': 1960}, {'column0': 'Aruba', 'column1': 54211}]
    refuse('import', 'x.csv', 'bad', '--header', 'maybe', says='yes, no', code=2)
    refuse('import', SOURCES / 'mcap/plain.mcap', 'bad', '--header', 'no', says='only CSV', code=2)


def csv_needs_no_duckdb():
    if 'csv' not in _kinds():
        return
    text = b'\xef\xbb\xbfid,zip,note\r\n1,007,"a,\r\n""b"""\r\n2,010,\r\n'
    pathlib.Path('x.csv').write_bytes(text)
    with gzip.open('y.csv.gz', 'wb') as out:
        out.write(text)
    for source in ('x.csv', 'y.csv.gz'):
        run('import', source, source + '.out')
        assert read(source + '.out')['spec'] == {'id': 'i64', 'note': 'utf8[]', 'zip': 'utf8'}
        assert run('get', source + '.out', ':').lines == [
            {'id': 1, 'note': ['a,\r\n"b"'], 'zip': '007'}, {'id': 2, 'note': [], 'zip': '010'}]
    pathlib.Path('y.csv.gz').write_bytes(pathlib.Path('y.csv.gz').read_bytes()[:-1])
    refuse('import', 'y.csv.gz', 'bad', says='y.csv.gz: gzip before byte')
    pathlib.Path('ragged.csv').write_bytes(b'a,b\n1,2\n3\n')
    refuse('import', 'ragged.csv', 'bad', says=['ragged.csv: ', 'line 3: 1, the first line: 2'])
    if 'parquet' in _kinds():  # DuckDB may be installed
        done = subprocess.run([harness.PROGRAM, 'import', SOURCES / 'types.parquet', '--dry-run'],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert done.returncode == 0 or b'Parquet and SQL need' in done.stderr, done.stderr


def an_ambiguous_hdf5_file_needs_a_layout():
    if 'hdf5' not in _kinds():
        return
    refuse('import', SOURCES / 'equal.h5', 'out', says=[
        'equal.h5: ambiguous', '2 datasets (3 of each)', '2 groups (0, ...)',
        '--layout rows or --layout episodes'])
    rows = run('import', SOURCES / 'equal.h5', '--dry-run', '--layout', 'rows').json
    assert rows['length'] == 3 and rows['spec'] == {'0.x': 'i64', '1.x': 'i64'}
    run('import', SOURCES / 'equal.h5', 'out', '--layout', 'episodes')
    assert read('out')['spec'] == {'group': 'utf8', 'x': 'i64[]'}
    assert values('out') == [{'group': str(i), 'x': [0, 1, 2]} for i in range(2)]
    shutil.rmtree('out')
    refuse('import', SOURCES / 'equal.h5', 'out', '--layout', 'row', says='rows, episodes',
           code=2)
    refuse('import', SOURCES / 'mcap/plain.mcap', 'out', '--layout', 'rows', says='only HDF5',
           code=2) if 'mcap' in _kinds() else None
    assert not os.path.exists('out')


def hdf5_is_rows_or_episodes_by_its_structure():
    """Of robomimic, with and without lists of demonstrations; of RLDS."""
    if 'hdf5' not in _kinds():
        return
    demos = {'actions': 'array(float64,2)[]', 'group': 'utf8', 'obs.joints': 'array(float32,3)[]'}
    for source in (SOURCES / 'robot.h5', SOURCES / 'robot.h5/data'):
        found = run('import', source, '--dry-run').json
        assert found['length'] == 3 and found['spec'] == demos, found
    run('import', SOURCES / 'robot.h5', 'out')
    assert [row['group'] for row in values('out')] == ['demo_0', 'demo_1', 'demo_10']
    steps = run('import', SOURCES / 'steps.h5', '--dry-run').json
    assert steps['length'] == 5 and 'observation.state' in steps['spec'], steps
    refuse('import', SOURCES / 'demos.h5', 'bad', says=[
        'demos.h5: the datasets differ in length (data/demo_0/x 3, mask/train 2)',
        'such as FILE/data'])
    refuse('import', SOURCES / 'steps.h5', 'bad', '--layout', 'episodes',
           says='not episodes: no groups')


def _zarray(dtype, fill):
    return json.dumps({'zarr_format': 2, 'shape': [4], 'chunks': [2], 'dtype': dtype,
                       'compressor': None, 'filters': None, 'order': 'C', 'fill_value': fill})


def a_zip_that_zarr_changed_has_what_was_written_last():
    """zarr-python adds a chunk again to a .zip, with a warning."""
    if 'zarr' not in _kinds():
        return
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        with zipfile.ZipFile('x.zip', 'w') as out:
            out.writestr('.zarray', _zarray('<i4', 0))
            out.writestr('0', struct.pack('<2i', 1, 0))
            out.writestr('1', struct.pack('<2i', 3, 4))
            out.writestr('0', struct.pack('<2i', 1, 2))
    run('import', 'x.zip', 'out')
    assert [row['data'] for row in run('get', 'out', ':').lines] == [1, 2, 3, 4]


def a_structure_of_one_member_has_a_fill_value():
    if 'zarr' not in _kinds():
        return
    pathlib.Path('x.zarr').mkdir()
    pathlib.Path('x.zarr/.zarray').write_text(
        _zarray([['centroid', '<i2', [2]]], base64.b64encode(struct.pack('<2h', 5, 6)).decode()))
    pathlib.Path('x.zarr/0').write_bytes(struct.pack('<4h', 1, 2, 3, 4))
    run('import', 'x.zarr', 'out')
    assert [row['centroid'] for row in run('get', 'out', ':', '--lists').lines] == [
        [1, 2], [3, 4], [5, 6], [5, 6]]


def elements_of_an_array_are_no_number_and_no_text():
    """The 8 bytes of 1.0 would be a u64; those of 0.0 would be text."""
    if 'zarr' not in _kinds():
        return
    pathlib.Path('x.zarr').mkdir()
    for dtype, fill in (('<f8', 1), ('<f8', 0)):
        pathlib.Path('x.zarr/.zarray').write_text(_zarray(dtype, fill))
        for kind, says in (('u64', 'expected number'), ('i64[]', 'expected number'),
                           ('zstd(u64)', 'expected number'), ('utf8', 'expected text'),
                           ('int(4)', 'expected number')):
            options = ['--type', f'data={kind}']
            refuse('import', 'x.zarr', 'out', *options,
                   says=['x.zarr: datapoint 0: ', 'field "data"', 'array', says])
            refuse('import', 'x.zarr', '--dry-run', *options, says=['field "data"', says])
    # Bytes are bytes.
    for dtype, fill, kind, value in (('|b1', True, 'int(1)', 1), ('|u1', 65, 'u64', 65)):
        pathlib.Path('x.zarr/.zarray').write_text(_zarray(dtype, fill))
        run('import', 'x.zarr', kind, '--type', f'data={kind}')
        assert [row['data'] for row in run('get', kind, ':').lines] == [value] * 4
    # So is an integer alone a number.
    spec = json.loads(_zarray('<i2', -5))
    spec['shape'], spec['chunks'] = [*spec['shape'][:1], 1], [*spec['chunks'][:1], 1]
    for dtype, fill, kind, value in (('<i2', -5, 'i64', -5), ('<i8', 7, 'int(1)', 7),
                                     ('|i1', 65, 'utf8', 'A')):
        pathlib.Path('x.zarr/.zarray').write_text(
            json.dumps({**spec, 'dtype': dtype, 'fill_value': fill}))
        run('import', 'x.zarr', dtype[1:], '--type', f'data={kind}')
        rows = run('get', dtype[1:], ':').lines
        assert [row['data'] for row in rows] == [value] * len(rows) and rows
    spec['shape'][1] = spec['chunks'][1] = 2
    pathlib.Path('x.zarr/.zarray').write_text(json.dumps(spec))
    refuse('import', 'x.zarr', 'two', '--type', 'data=i64', says='expected number')


def what_is_too_large_does_not_exhaust_memory():
    if 'tfrecord' not in _kinds():
        return
    head = struct.pack('<Q', 2**50)
    pathlib.Path('x.tfrecord').write_bytes(head + struct.pack('<I', _crc(head)) + b'xxxx')
    refuse('import', 'x.tfrecord', 'bad', says='record at byte 0: truncated (1125899906842624')


def workers_share_a_source():
    for kind, source in (('webdataset', 'samples.tar.gz'), ('tfrecord', 'examples.tfrecord'),
                         ('mds', 'zstd')):
        if kind not in _kinds():
            continue
        for worker in (1, 0):
            run('import', SOURCES / kind / source, kind, '--shard-start', worker, '--shard-stop',
                2, '--shard-length', 100, '--checksum')
        rows = MANIFEST[f'{kind}/{source}']['data']
        assert _hashes(kind) == rows[::2] + rows[1::2]
        run('verify', kind, '--decode')


def _data(path):
    """The files of a dataset without the journals of finished shards: a kill while they
    are removed leaves some, and readers ignore them."""
    return {name: content for name, content in files(path).items()
            if not name.endswith('.idx')}


def _large_source(path):
    if 'webdataset' in _kinds():
        return _tar(path, [(f'{i:04}.{ending}', bytes([i % 256]) * size * (1 + i % 3))
                           for i in range(400) for ending, size in (('bin', 30_000), ('x', 7))])


@each(['one directory', 'shards', 'worker 1 of 2'])
def a_killed_import_is_resumed_until_it_is_done(which):
    options = {'one directory': [], 'shards': ['--shard-size', '2M'],
               'worker 1 of 2': ['--shard-size', '1M', '--shard-start', '1', '--shard-stop',
                                 '2']}[which]
    source = _large_source('large.tar')
    if not source:
        return
    started = time.monotonic()
    run('import', source, 'whole', '--no-sync', *options)
    took = time.monotonic() - started
    random.seed(which)
    kills = 0
    for _ in range(8 if os.environ.get('BAGS_QUICK') else 17):
        job = subprocess.Popen([harness.PROGRAM, 'import', source, 'out', '--no-sync',
                                '--resume', *options], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
        time.sleep(took * random.random())
        job.send_signal(signal.SIGKILL)
        kills += job.wait() == -signal.SIGKILL
        job.stderr.close()
        if job.returncode == 0:
            took /= 2
            assert _data('out') == _data('whole')
            shutil.rmtree('out')
    assert kills > 0
    run('import', source, 'out', '--no-sync', '--resume', *options)
    assert _data('out') == _data('whole')


def a_crash_of_libhdf5_is_an_error():
    """Version 1.10 crashes on this file; another may refuse it."""
    if 'hdf5' not in _kinds() or '/asan/' in harness.PROGRAM:
        return
    content = bytearray((SOURCES / 'bad-link.h5').read_bytes())
    content[812] ^= 255
    pathlib.Path('damaged.h5').write_bytes(content)
    refuse('import', 'damaged.h5', 'out', says='damaged.h5: ')
    assert not os.path.exists('out')


def another_source_is_not_resumed():
    if 'webdataset' not in _kinds():
        return
    _tar('a.tar', [(f'{i}.txt', b'%d' % i) for i in range(9)])
    _tar('b.tar', [(f'{i}.txt', b'%d' % (i + 1)) for i in range(9)])
    run('import', 'a.tar', 'out', '--shard-length', 4)
    refuse('import', 'b.tar', 'out', '--shard-length', 4, '--resume', says='value differs')
    _tar('c.tar', [(f'{i}.txt', b'%d' % i) for i in range(5)])
    refuse('import', 'c.tar', 'out', '--shard-length', 4, '--resume', says='has only 5')


def a_tar_larger_than_memory_needs_little_memory():
    if 'webdataset' not in _kinds():
        return
    size = 500 * 1024
    count = (10 << 30 if os.environ.get('BAGS_SOAK') else 400 << 20) // size
    with open('large.tar', 'wb') as out:  # sparse: only headers are written
        for i in range(count):
            info = tarfile.TarInfo(f'{i:08}.bin')
            info.size = size
            out.seek(i * (512 + size))
            out.write(info.tobuf(tarfile.USTAR_FORMAT))
        out.truncate(count * (512 + size) + 1024)
    # A new process counts the memory of the one that started it: a small one does.
    measure = ('import resource, subprocess, sys\n'
               'subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n'
               'print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)')
    peak = int(subprocess.run(
        [sys.executable, '-c', measure, harness.PROGRAM, 'import', 'large.tar', 'out',
         '--no-sync', '--shard-start', '3', '--shard-stop', '8'],
        check=True, stdout=subprocess.PIPE).stdout)
    assert run('info', 'out', '--json', '--allow-gaps').json['length'] == len(range(3, count, 8))
    # A sanitizer keeps what is freed.
    limit = 1000 if '/asan/' in harness.PROGRAM else 200
    assert peak < limit << 10, peak
