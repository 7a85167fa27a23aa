"""bags import of LMDB databases, written by liblmdb: values, damage, what is refused."""
import hashlib
import pathlib
import pickle
import random
import shutil
import struct

import msgpack

import harness
from harness import read, refuse, run
from messages import element, part, varint

try:
    import lmdb
except ImportError:
    lmdb = None
    print('skipped: python3-lmdb not found')


def _write(path, entries, **options):
    shutil.rmtree(path, ignore_errors=True)
    with lmdb.open(str(path), map_size=64 << 20, **options.pop('env', {})) as env:
        db = env.open_db(options.pop('name', None), **options)
        with env.begin(write=True, db=db) as transaction:
            for key, value in entries:
                transaction.put(key, value)


def _datum(shape, data=None, floats=None, label=None, encoded=None):
    out = b''.join(part(i, size) for i, size in enumerate(shape, 1))
    out += b'' if data is None else part(4, data)
    out += b'' if label is None else part(5, label)
    if floats is not None:  # packed and not
        out += b''.join(varint(6 << 3 | 5) + element('float32', one) for one in floats[:1])
        out += part(6, b''.join(element('float32', one) for one in floats[1:]))
    return out + (b'' if encoded is None else part(7, int(encoded)))


def entries_come_in_the_order_of_their_keys():
    """Small values, and values with pages of their own; a tree of several levels."""
    if not lmdb:
        return
    rng = random.Random(1)
    for count in (0, 1, 3, 200):
        entries = {f'{rng.randrange(10**8):08}-ü'.encode(): rng.randbytes(
            rng.choice([0, 1, 100, 900, 2000, 4000, 4096, 20000]))
            for _ in range(count)}
        _write('db', entries.items())
        shutil.rmtree('out', ignore_errors=True)
        run('import', 'db', 'out')
        found = read('out')
        assert found['spec'] == {'key': 'utf8' if count else 'bytes', 'value': 'bytes'} or \
            count == 0, found['spec']
        assert [row['key']['value'].encode() for row in found['data']] == sorted(entries)[:len(found['data'])]
        assert found['count'] == len(entries)
        for row in found['data']:
            wanted = entries[row['key']['value'].encode()]
            assert row['value']['sha256'] == hashlib.sha256(wanted).hexdigest()
        shutil.copy('db/data.mdb', 'file.lmdb')
        shutil.rmtree('file', ignore_errors=True)
        run('import', 'file.lmdb', 'file')
        shutil.rmtree('again', ignore_errors=True)
        run('import', 'db', 'again', '--from', 'lmdb')
        assert read('file') == read('out') == read('again')


def a_database_that_changed_has_its_last_state():
    if not lmdb:
        return
    with lmdb.open('db', map_size=1 << 20) as env:
        for i in range(20):
            with env.begin(write=True) as transaction:
                transaction.put(b'%03d' % i, b'v' * (i * 100))
                if i > 2:
                    transaction.delete(b'%03d' % (i - 3))
            shutil.rmtree('out', ignore_errors=True)
            run('import', 'db', 'out')
            assert [row['key']['value'] for row in read('out')['data']] == [
                f'{k:03}' for k in range(max(0, i - 2), i + 1)]


def images_have_their_type():
    if not lmdb:
        return
    jpeg, png = b'\xff\xd8\xff\xe0' + bytes(30), b'\x89PNG\r\n\x1a\n' + bytes(30)
    for values, type in (([jpeg] * 2, 'jpeg'), ([png] * 2, 'png'), ([jpeg, png], 'bytes'),
                         ([b'text', b'more'], 'bytes')):
        _write('db', [(b'%d.x' % i, value) for i, value in enumerate(values)])
        spec = run('import', 'db', '--dry-run').json['spec']
        assert spec == {'key': 'utf8', 'value': type}, spec


def keys_may_be_bytes_or_integers():
    if not lmdb:
        return
    _write('db', [(b'\xff\0', b'x')])
    assert run('import', 'db', '--dry-run').json['spec']['key'] == 'bytes'
    _write('db', [(struct.pack('<Q', 7), b'x'), (struct.pack('<Q', 256), b'y')])
    data = bytearray(pathlib.Path('db/data.mdb').read_bytes())
    for page in (0, 1):  # python3-lmdb 1.4 has no MDB_INTEGERKEY for the main database
        at = page * 4096 + 16 + 24 + 48 + 4
        data[at] |= 8
    pathlib.Path('db/data.mdb').write_bytes(data)
    run('import', 'db', 'out')
    assert read('out')['spec']['key'] == 'u64'
    assert [row['key']['value'] for row in read('out')['data']] == [256, 7]


def datums_of_caffe_become_arrays_and_labels():
    if not lmdb:
        return
    _write('db', [(b'%08d' % i, _datum((3, 2, 4), bytes(range(i, i + 24)), label=i - 1))
                  for i in range(3)])
    run('import', 'db', 'out')
    found = read('out')
    assert found['spec'] == {'data': 'array(uint8,3,2,4)', 'key': 'utf8', 'label': 'i64'}
    for i, row in enumerate(found['data']):
        assert row['data']['hex'] == bytes(range(i, i + 24)).hex()
        assert row['label']['value'] == i - 1
    floats = [1.5, -2.0, 3.25]
    _write('db', [(b'a', _datum((3, 1, 1), floats=floats)),
                  (b'b', _datum((1, 1, 3), floats=floats, label=2))])
    run('import', 'db', 'floats')
    found = read('floats')
    assert found['spec'] == {'float_data': 'array', 'key': 'utf8', 'label': 'i64[]'}
    assert [row['label'].get('items', [])[:1] == [] for row in found['data']] == [True, False]
    assert [msgpack.unpackb(bytes.fromhex(row['float_data']['hex']))[1:] for row in found['data']] == [
        [shape, b''.join(element('float32', one) for one in floats)]
        for shape in ([3, 1, 1], [1, 1, 3])]
    jpeg = b'\xff\xd8\xff\xe0' + bytes(30)
    _write('db', [(b'a', _datum((3, 9, 9), jpeg, label=1, encoded=True))])
    assert run('import', 'db', '--dry-run').json['spec'] == {
        'data': 'jpeg', 'key': 'utf8', 'label': 'i64'}
    _write('db', [(b'a', _datum((1, 1, 1), b'x', label=1)), (b'b', b'other')])
    refuse('import', 'db', 'bad', says='datapoint 1: not a Datum of Caffe, unlike the first value')
    _write('db', [(b'a', _datum((1, 1, 1), b'x', label=1)),
                  (b'b', _datum((3, 9, 9), jpeg, encoded=True))])
    refuse('import', 'db', 'bad', says='datapoint 1: an encoded image, unlike earlier ones')
    # Its size contradicts its shape: no Datum.
    _write('db', [(b'a', _datum((1, 2, 1), b'x', label=1))])
    assert run('import', 'db', '--dry-run').json['spec'] == {'key': 'utf8', 'value': 'bytes'}


def pickles_and_msgpack_stay_bytes_with_a_warning():
    if not lmdb:
        return
    values = [pickle.dumps({'a': i}, protocol=2 + i) for i in range(4)]
    _write('db', [(b'%d' % i, value) for i, value in enumerate(values)])
    said = run('import', 'db', 'out').err
    assert 'db: 4 values are pickled: stored as bytes, not decoded' in said, said
    assert [row['value']['sha256'] for row in read('out')['data']] == [
        hashlib.sha256(value).hexdigest() for value in values]
    packed = msgpack.packb({'a': [1, -2, 2.5, 'text', b'bytes' * 99, None, True, -2**40, 2**63,
                                  list(range(20)), {str(i): i for i in range(17)},
                                  msgpack.ExtType(3, b'abcd'), msgpack.ExtType(3, b'abc')]})
    for value, count in ((packed, 1), (packed + b'\0', 0), (packed[:-1], 0), (b'\x91', 0)):
        _write('db', [(b'a', value)])
        assert ('db: 1 value is msgpack' in run('import', 'db', '--dry-run').err) == count
    _write('db', [(b'a', b'plain')])
    assert 'value' not in run('import', 'db', '--dry-run').err


def what_is_no_plain_database_is_refused():
    if not lmdb:
        return
    _write('db', [(b'k', b'v')], name=b'names', env={'max_dbs': 2})
    refuse('import', 'db', 'out', says='data.mdb: contains a named database ("names")')
    with lmdb.open('dup', map_size=1 << 20, max_dbs=2) as env:
        db = env.open_db(b'several', dupsort=True)
        with env.begin(write=True, db=db) as transaction:
            transaction.put(b'k', b'v')
    refuse('import', 'dup', 'out', says='named database ("several")')
    good = pathlib.Path('plain')
    _write(good, [(b'%04d' % i, b'v' * (i % 50 * 100)) for i in range(200)])
    data = (good / 'data.mdb').read_bytes()
    meta = max((0, 1), key=lambda n: struct.unpack_from('<Q', data, n * 4096 + 144)[0]) * 4096

    def changed(*edits):
        out = bytearray(data)
        for at, new in edits:
            out[at:at + len(new)] = new
        (good / 'data.mdb').write_bytes(out)

    for edits, says in (
            ([(16, b'\xbe\xef\xc0\xde')], '32-bit or big-endian'),
            ([(16, b'nope')], 'not an LMDB database'),
            ([(20, b'\2')], 'version of the format not supported (2'),
            ([(40, struct.pack('<I', 1000))], 'invalid page size (1000)'),
            ([(40, struct.pack('<I', 8192))], 'page 1: not a description'),
            ([(meta + 32, struct.pack('<Q', 4096))], 'map size too small (4096 bytes'),
            ([(meta + 92, b'\4')], 'MDB_DUPSORT'),
            ([(meta + 94, b'\x40')], 'invalid depth (64)'),
            ([(meta + 94, b'\1')], 'not a page of the expected kind'),
            ([(meta + 120, struct.pack('<Q', 201))], 'fewer entries than stated (201)'),
            ([(meta + 120, struct.pack('<Q', 199))], 'more entries than stated (199)'),
            ([(meta + 120, struct.pack('<Q', 2**60))], 'invalid number of entries'),
            ([(meta + 128, struct.pack('<Q', 2**40))], f'page {2**40}: out of range')):
        changed(*edits)
        refuse('import', good, 'out', says=['data.mdb: ', says])
    for size in (0, 100, 4096, 4096 + 100, len(data) // 2, len(data) - 1):
        (good / 'data.mdb').write_bytes(data[:size])
        refuse('import', '--from', 'lmdb', good, 'out', says='truncated')
    assert not pathlib.Path('out').exists()


def no_damage_crashes():
    """A change to any byte is an error, or changes what is imported."""
    if not lmdb:
        return
    rng = random.Random(2)
    _write('db', [(b'%04d' % i, rng.randbytes(rng.choice([10, 5000]))) for i in range(40)])
    data = pathlib.Path('db/data.mdb').read_bytes()
    for seed in range(20 if harness.os.environ.get('BAGS_QUICK') else 150):
        out = bytearray(data)
        for _ in range(3):
            page = rng.randrange(len(data) // 4096) * 4096
            out[page + rng.choice([rng.randrange(60), rng.randrange(4096)])] = rng.randrange(256)
        pathlib.Path('db/data.mdb').write_bytes(out)
        done = harness.subprocess.run([harness.PROGRAM, 'import', '--from', 'lmdb', 'db', '--dry-run'],
                                      capture_output=True, timeout=60)
        assert done.returncode in (0, 1), (seed, done)
