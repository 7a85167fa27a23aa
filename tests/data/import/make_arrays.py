#!/usr/bin/python3
"""Made the sources in this directory with zarr 2.13.6, numcodecs 0.11, h5py 3.7 and
NumPy 1.24.2, and NAME.expected, which states what an importer must return:

  /usr/bin/python3 tests/data/import/make_arrays.py
  node tests/data/import/make_mcap.mjs            (mcap/, with @mcap/core 2.2)
  node tests/data/import/make_polars.mjs          (polars.parquet)

The first line of NAME.expected is the number of datapoints. Each other line is a
field: its type, a SHA-256, its name. The digest is that of every datapoint's values:
each is its size in 8 little-endian bytes and its blob; the items of a sequence follow
their number in 8 bytes. l5kit and benzina are in ../golden. types.parquet was written
by DuckDB 1.5 with this query:

  COPY (SELECT -i::TINYINT AS "int8", -i::BIGINT AS "int64", i::UINTEGER AS "uint32",
  i::DOUBLE / 4 AS "double", i::FLOAT AS "single", i % 2 = 0 AS even, 'té' || i AS text,
  TIMESTAMP '2024-01-01' + INTERVAL (i) HOUR AS time, DATE '2024-01-01' + i::INT AS day,
  CASE WHEN i % 3 = 0 THEN NULL ELSE i END AS some, range(i) AS list, ['a',
  'bcdefghijklmnopq' || i] AS texts, [[1.5::FLOAT, 2], [i::FLOAT]] AS boxes, {'bytes':
  ('\\xFF\\xD8\\xFF' || repeat('x', i::INT))::BLOB, 'path': 'p'} AS image, [{'bytes':
  '\\x89PNG\\x0D\\x0A\\x1A\\x0Ax'::BLOB, 'path': NULL}] AS images, {'x': i, 'y': {'z': 'q'}} AS
  struct, [{'k': i, 'v': 'w'}] AS structs, i::DECIMAL(10, 2) AS price, 'abc'::BLOB AS blob
  FROM range(7) t(i)) TO 'tests/data/import/types.parquet' (FORMAT parquet)
"""
import hashlib
import io
import json
import pathlib
import shutil
import struct
import warnings
import zipfile

import h5py
import numcodecs
import numpy as np
import zarr

HERE = pathlib.Path(__file__).parent
rng = np.random.default_rng(7)


def blob(value, scalar):
    """The blob of a NumPy value, bytes or str."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return bytes(value)
    value = np.asarray(value)
    if value.dtype.kind == 'V':
        return value.tobytes()
    if scalar and value.dtype.kind in 'iuMm':
        return value.astype('<u8' if value.dtype.kind == 'u' else '<i8').tobytes()
    return np.ascontiguousarray(value.astype(value.dtype.newbyteorder('<'))).tobytes()


def kind(dtype, shape):
    if dtype.kind in 'UO':
        return 'utf8'
    if dtype.kind in 'SV':
        return 'bytes'
    if not shape and dtype.kind in 'iuMm':
        return 'u64' if dtype.kind == 'u' else 'i64'
    return 'array(%s)' % ','.join([dtype.newbyteorder('=').name, *map(str, shape)])


def expect(name, length, fields):
    """fields: (name, type, values), the values of a sequence being lists of blobs."""
    lines = [str(length)]
    for field, type_, values in fields:
        digest = hashlib.sha256()
        assert len(values) == length
        for value in values:
            if isinstance(value, list):
                digest.update(struct.pack('<Q', len(value)))
            for item in value if isinstance(value, list) else [value]:
                digest.update(struct.pack('<Q', len(item)) + item)
        lines.append(f'{type_} {digest.hexdigest()} {field}')
    (HERE / f'{name}.expected').write_text('\n'.join(lines) + '\n')


def fields_of(name, array):
    """The fields of an array: one per member of a structured dtype."""
    if array.dtype.names:
        for member in array.dtype.names:
            yield from fields_of(f'{name}.{member}' if name else member, array[member])
    else:
        shape = array.shape[1:]
        unit = np.datetime_data(array.dtype)[0] if array.dtype.kind in 'Mm' else ''
        yield name + '_' * bool(unit) + unit, kind(array.dtype, shape), [blob(x, not shape) for x in array]


def group(path, arrays, **options):
    store = zarr.ZipStore(str(path), mode='w') if path.suffix == '.zip' else \
        zarr.DirectoryStore(str(path))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        root = zarr.group(store, overwrite=True)
        for name, (data, chunks, more) in arrays.items():
            root.create_dataset(name, data=data, chunks=chunks, **more)
    if path.suffix == '.zip':
        store.close()


def codecs():
    data = np.cumsum(rng.integers(0, 3, (7, 40)), axis=1).astype('<i4')
    made = {'raw': None, 'zlib': numcodecs.Zlib(6), 'gzip': numcodecs.GZip(6),
            'zstd': numcodecs.Zstd(3), 'lz4': numcodecs.LZ4()}
    for name in ('lz4', 'lz4hc', 'blosclz', 'zlib', 'zstd', 'snappy'):
        if name in numcodecs.blosc.list_compressors():
            for shuffle in (0, 1, 2):
                made[f'blosc-{name}-{shuffle}'] = numcodecs.Blosc(name, 5, shuffle)
    group(HERE / 'codecs.zip', {n: (data, (4, 25), {'compressor': c})
                                for n, c in made.items()})
    expect('codecs', 7, [f for n in made for f in fields_of(n, data)])


    group(HERE / 'small.zip', {'x': (data[:, :5], (4, 5), {'compressor': numcodecs.Blosc('lz4')})})


def bad_zips():
    """bad-member-FAULT.zip: an array with a chunk that is refused or damaged."""
    about = {'zarr_format': 2, 'shape': [1000], 'chunks': [1000], 'dtype': '|u1',
             'compressor': None, 'filters': None, 'order': 'C', 'fill_value': 0}

    def zip_of(name, method, change=lambda *_: None):
        file = io.BytesIO()
        with zipfile.ZipFile(file, 'w') as archive:
            for key, data, how in ('x/.zarray', json.dumps(about), zipfile.ZIP_STORED), (
                    'x/0', bytes(1000), method):
                info = zipfile.ZipInfo(key)
                info.compress_type = how
                archive.writestr(info, data)
        data = bytearray(file.getvalue())
        local = data.rindex(b'PK\3\4')
        change(data, local, data.rindex(b'PK\1\2'))
        (HERE / f'bad-member-{name}.zip').write_bytes(data)

    def put(place, value):
        """In the header of the member and in that of the directory."""
        def change(data, local, directory):
            for at in local + place, directory + place + 2:
                data[at:at + len(value)] = value
        return change

    def flip(data, local, directory):
        data[data.index(b'PK\1\2') - 1] ^= 1

    zip_of('method', zipfile.ZIP_BZIP2)
    zip_of('claims', zipfile.ZIP_DEFLATED, put(22, b'\0\0\0\x7f'))
    zip_of('encrypted', zipfile.ZIP_DEFLATED, put(6, b'\1\0'))
    zip_of('damaged', zipfile.ZIP_STORED, flip)
    about['chunks'] = [500]
    zip_of('large', zipfile.ZIP_STORED)


def types():
    record = np.dtype([('a', '<i2'), ('in', [('x', '>f8'), ('y', 'S3'), ('m', '<f4', (2, 2))]),
                       ('t', '<U4')])
    n = 6
    data = {k.replace('>', 'big-').strip('<|'): rng.integers(0, 100, n).astype(k) for k in
            ('<i1', '>i2', '<i8', '<u2', '>u8', '<f2', '>f4', '<f8', '<c8', '>c16')}
    data['b1'] = np.array([True, False] * 3)
    data['date'] = np.arange(n).astype('<M8[ns]')
    data['text'] = np.array(['', 'a', 'é', '€', '\U0001f600', 'abcdefg'], '<U7')
    data['bytes'] = np.array([b'', b'a', b'ab\0c', b'abcdefg', b'x', b'y'], 'S7')
    data['image'] = rng.integers(0, 255, (n, 4, 5, 3)).astype('u1')
    record = np.zeros(n, record)
    record['a'], record['in']['x'] = -np.arange(n), rng.random(n)
    record['in']['y'], record['in']['m'] = b'ab', rng.random((n, 2, 2))
    record['t'] = 'hé'
    data['record'] = record
    arrays = {}
    for i, (name, values) in enumerate(data.items()):
        fill = {'record': None, 'date': 0, 'b1': True, 'text': '', 'bytes': b'zz'}.get(name, 0)
        if name == 'i8':
            fill = -7
        if name == 'f8':
            fill = np.nan
        chunks = (4, 3, 2, 3) if name == 'image' else (4,)
        arrays['sub/' + name if i % 3 == 0 else name] = values, chunks, {
            'fill_value': fill, 'dimension_separator': '/' if i % 2 else '.'}
    path = HERE / 'types.zarr'
    group(path, arrays)
    # Missing chunks are the fill value.
    for chunk in ('i8/0', 'f8/1', 'image/0.0.1.0', 'image/0/0/1/0', 'sub/b1/1', 'bytes/1'):
        for place in (path / chunk, path / 'sub' / chunk):
            if place.exists():
                place.unlink()
    root = zarr.open(str(path), mode='r')
    expect('types', n, [f for name in arrays
                        for f in fields_of(name.replace('/', '.'), root[name][:])])


def l5kit():
    for name in ('chunked-dataset', 'small-chunks'):
        source = HERE.parent / 'golden/l5kit-zarr' / name
        arrays = {k: np.load(source / f'{k}.npy')
                  for k in ('scenes', 'frames', 'agents', 'tl_faces')}
        frames, fields = arrays['frames'], []
        index = [i for i, (start, stop) in enumerate(arrays['scenes']['frame_index_interval'])
                 for _ in range(start, stop)]
        fields.append(('scene_index', 'i64', [struct.pack('<q', i) for i in index]))
        fields += fields_of('', frames)
        fields += fields_of('scenes', arrays['scenes'][index])
        for key, prefix, interval in (
                ('agents', 'agents', 'agent_index_interval'),
                ('tl_faces', 'traffic_light_faces', 'traffic_light_faces_index_interval')):
            for field, type_, values in fields_of(prefix, arrays[key]):
                fields.append((field, type_ + '[]',
                               [values[a:b] for a, b in frames[interval]]))
        expect(name, len(frames), fields)


def hdf5():
    n = 5
    record = np.zeros(n, np.dtype([('a', '<i2'), ('in', [('x', '>f8'), ('y', '<f4', (2, 3))])]))
    record['a'], record['in']['x'] = -np.arange(n), rng.random(n)
    record['in']['y'] = rng.random((n, 2, 3))
    data = {k.replace('>', 'g/big-').strip('<|'): rng.integers(0, 100, n).astype(k) for k in
            ('<i4', '>i2', '|u1', '<u8', '<f2', '>f4', '<f8', '<c8', '>c16')}
    data['b1'] = np.array([True, False, True, True, False])
    data['image'] = rng.integers(0, 255, (n, 4, 5, 3)).astype('u1')
    fields = []
    with h5py.File(HERE / 'rows.h5', 'w') as f:
        for name, values in data.items():
            f.create_dataset(name, data=values, chunks=(2,) + values.shape[1:] if
                             name == 'image' else None,
                             compression='gzip' if name == 'image' else None)
            fields += fields_of(name.replace('/', '.'), values)
        f['record'] = record
        fields += fields_of('record', record)
        texts = ['', 'a', 'é', '€', 'abc']
        f.create_dataset('text', data=texts, dtype=h5py.string_dtype())
        f.create_dataset('fixed', data=np.array([t.encode() for t in texts], 'S6'))
        fields += [(k, 'utf8', [t.encode() for t in texts]) for k in ('text', 'fixed')]
        f.create_dataset('opaque', data=np.array([b'ab\0d'] * n, 'V4'))
        fields.append(('opaque', 'bytes', [b'ab\0d'] * n))
        lists = f.create_dataset('lists', (n,), dtype=h5py.vlen_dtype(np.dtype('<i4')))
        for i in range(n):
            lists[i] = np.arange(i)
        fields.append(('lists', 'array(int32,-1)',
                       [np.arange(i, dtype='<i4').tobytes() for i in range(n)]))
        f['scalar'] = np.float32(3.5)
        fields.append(('scalar', 'array(float32)', [np.float32(3.5).tobytes()] * n))
    expect('rows', n, fields)

    lengths, fields = [3, 1, 0, 2, 4, 2, 1, 1, 1, 1, 2], {}
    with h5py.File(HERE / 'episodes.h5', 'w') as f:
        for i, length in enumerate(lengths):
            for name, values in (('obs/image', rng.integers(0, 255, (length, 3, 3, 3)).astype('u1')),
                                 ('actions', rng.random((length, 7))),
                                 ('rewards', rng.random(length)),
                                 ('dones', rng.integers(0, 2, length))):
                f[f'data/demo_{i}/{name}'] = values
                shape = values.shape[1:]
                field = fields.setdefault(name.replace('/', '.'), (kind(values.dtype, shape) + '[]', []))
                field[1].append([blob(x, not shape) for x in values])
        f['mask/train'] = np.array([b'demo_0', b'demo_1'])
    expect('episodes', len(lengths), [(k, t, v) for k, (t, v) in fields.items()] + [
        ('group', 'utf8', [b'demo_%d' % i for i in range(len(lengths))])])

    with h5py.File(HERE / 'small.h5', 'w') as f:
        f['x'] = np.arange(3)

    def bad(name):
        return h5py.File(HERE / f'bad-{name}.h5', 'w')
    with bad('reference') as f:
        set_ = f.create_dataset('x', data=[1, 2])
        f.create_dataset('r', data=[set_.ref, set_.ref], dtype=h5py.ref_dtype)
    with bad('link') as f:
        f['x'] = h5py.ExternalLink('rows.h5', '/i4')
    with bad('external') as f:
        f.create_dataset('x', (10,), dtype='u1', external=[('/etc/passwd', 0, 10)])
    with bad('large') as f:
        f.create_dataset('x', (10, 10**6, 10**6), dtype='f8', chunks=(1, 100, 100))
    with bad('lengths') as f:
        f['train/x'], f['train/y'], f['test/x'] = np.arange(3), np.arange(3), np.arange(2)
    with bad('episode') as f:
        for i in range(3):
            f[f'ep{i}/x'] = np.zeros((2 + i, 2 + (i == 2)))
    with bad('empty') as f:
        f['x'] = h5py.Empty('f4')
    with bad('filter') as f:  # one of h5py's own
        f.create_dataset('x', data=np.arange(3), compression='lzf')


def layouts():
    """Files that can be read as rows or as episodes, and types that are not what they seem."""
    def file(name):
        return h5py.File(HERE / f'{name}.h5', 'w', libver='latest')
    for name, second in (('cameras', 4), ('rates', 2)):
        with file(name) as f:
            f['time'] = np.arange(4)
            f['cameras/cam_0/x'], f['cameras/cam_1/x'] = np.arange(4), np.arange(second)
    with file('equal') as f:
        f['0/x'], f['1/x'] = np.arange(3), np.arange(3)
    # As robomimic writes them, without and with the lists of demonstrations.
    for name, lengths in (('robot', {0: 2, 1: 3, 10: 1}), ('single', {0: 3})):
        with file(name) as f:
            for i, length in lengths.items():
                demo = f.create_group(f'data/demo_{i}')
                demo.attrs['num_samples'] = length
                demo['actions'] = np.zeros((length, 2))
                demo['obs/joints'] = np.zeros((length, 3), 'f4')
    with file('demos') as f:
        for i in range(2):
            f[f'data/demo_{i}/x'] = np.arange(3)
            f[f'data/demo_{i}'].attrs['num_samples'] = 3
        f['mask/train'] = np.array([b'demo_0', b'demo_1'])
        f['mask'].attrs['a'] = 1
        f['kind'] = np.dtype('i4')
    with file('steps') as f:  # the steps of all episodes, as RLDS has them
        f['observation/image'] = np.zeros((5, 4, 4, 3), 'u1')
        f['observation/state'] = np.zeros((5, 7), 'f4')
        f['action'], f['is_first'] = np.zeros((5, 2), 'f4'), np.arange(5) % 3 == 0
        f['action'].attrs['unit'] = 'm'
        f['kind'] = np.dtype('i4')
    with file('members') as f:
        f['mixed'] = np.array([(1.5, 2.25)], np.dtype([('r', '<f4'), ('i', '<f8')]))
        f['half'] = np.array([(1.5, 2.25)], np.dtype([('r', '<f2'), ('i', '<f2')]))
        for name, values in (('not', {'FALSE': 1, 'TRUE': 0}), ('bool', {'TRUE': 1, 'FALSE': 0}),
                             ('color', {'RED': 5, 'BLUE': 7})):
            f.create_dataset(name, data=np.array([1], 'i1'), dtype=h5py.enum_dtype(values, 'i1'))
        date = np.array(['2024-01-01T00:00:01'], '<M8[us]')
        f['date'] = date.astype(h5py.opaque_dtype(date.dtype))
        f['dates'] = np.array([date] * 1).astype(h5py.opaque_dtype(date.dtype))
        big = np.array([[1, -2]], '>m8[ms]')
        f['big'] = big[:, 0].astype(h5py.opaque_dtype(big.dtype))
        f['bigs'] = big.astype(h5py.opaque_dtype(big.dtype))
        f['other'] = np.array([b'ab'], 'V2')
    fields = [('mixed.r', 'array(float32)', np.float32(1.5)), ('mixed.i', 'array(float64)', 2.25),
              ('half.r', 'array(float16)', np.float16(1.5)),
              ('half.i', 'array(float16)', np.float16(2.25)),
              ('not', 'i64', np.int64(1)), ('bool', 'array(bool)', True), ('color', 'i64', np.int64(1)),
              ('date_us', 'i64', np.int64(1704067201000000)),
              ('dates_us', 'array(int64,1)', np.int64(1704067201000000)),
              ('big_ms', 'i64', np.int64(1)), ('bigs_ms', 'array(int64,2)', np.array([1, -2])),
              ('other', 'bytes', b'ab')]
    expect('members', 1, [(n, t, [blob(v, False)]) for n, t, v in fields])


def benzina():
    manifest = json.loads((HERE.parent / 'golden/benzina/manifest.json').read_text())
    data = (HERE.parent / 'golden/benzina/data.bzna').read_bytes()
    fields = []
    for name, type_ in (('bzna_input', 'mp4'), ('bzna_target', 'i64'), ('bzna_fname', 'utf8')):
        blobs = [data[s['offset']:s['offset'] + s['len']]
                 for s in manifest['tracks'][name]['samples']]
        for b, sample in zip(blobs, manifest['tracks'][name]['samples']):
            assert hashlib.sha256(b).hexdigest() == sample['sha256']
        fields.append((name, type_, [b[:-1] for b in blobs] if type_ == 'utf8' else blobs))
    expect('benzina', len(manifest['images']), fields)


def i64(value):
    return struct.pack('<q', value)


def tables():
    n, days = 7, 19723
    f32, f64 = np.float32, np.float64
    expect('types.parquet', n, [
        ('int8', 'i64', [i64(-i) for i in range(n)]),
        ('int64', 'i64', [i64(-i) for i in range(n)]),
        ('uint32', 'u64', [i64(i) for i in range(n)]),
        ('double', 'array(float64)', [f64(i / 4).tobytes() for i in range(n)]),
        ('single', 'array(float32)', [f32(i).tobytes() for i in range(n)]),
        ('even', 'array(bool)', [bytes([i % 2 == 0]) for i in range(n)]),
        ('text', 'utf8', [f'té{i}'.encode() for i in range(n)]),
        ('time_us', 'i64', [i64((days * 24 + i) * 3600 * 10**6) for i in range(n)]),
        ('day_days', 'i64', [i64(days + i) for i in range(n)]),
        ('some', 'i64[]', [[i64(i)] if i % 3 else [] for i in range(n)]),
        ('list', 'i64[]', [[i64(k) for k in range(i)] for i in range(n)]),
        ('texts', 'utf8[]', [[b'a', b'bcdefghijklmnopq%d' % i] for i in range(n)]),
        ('boxes', 'array(float32,-1)[]',
         [[f32([1.5, 2]).tobytes(), f32(i).tobytes()] for i in range(n)]),
        ('image', 'jpeg', [b'\xff\xd8\xff' + b'x' * i for i in range(n)]),
        ('images', 'png[]', [[b'\x89PNG\r\n\x1a\nx']] * n),
        ('struct.x', 'i64', [i64(i) for i in range(n)]),
        ('struct.y.z', 'utf8', [b'q'] * n),
        ('structs.k', 'i64[]', [[i64(i)] for i in range(n)]),
        ('structs.v', 'utf8[]', [[b'w']] * n),
        ('price', 'utf8', [b'%d.00' % i for i in range(n)]),
        ('blob', 'bytes', [b'abc'] * n)])
    n = 300
    expect('polars.parquet', n, [
        ('id', 'i64', [i64(i) for i in range(n)]),
        ('small', 'i64', [i64(i % 100 - 50) for i in range(n)]),
        ('half', 'array(float32)', [f32(i / 2).tobytes() for i in range(n)]),
        ('third', 'array(float64)', [f64(i / 4).tobytes() for i in range(n)]),
        ('text', 'utf8', [('é' * (i % 9) + str(i)).encode() for i in range(n)]),
        ('odd', 'array(bool)', [bytes([i % 2 == 1]) for i in range(n)]),
        ('some', 'i64[]', [[i64(i)] if i % 7 else [] for i in range(n)]),
        ('list', 'array(float64)[]',
         [[f64(k).tobytes() for k in range(i % 5)] for i in range(n)])])
    expect('table.csv', 3, [
        ('id', 'i64', [i64(i) for i in (1, 2, 3)]),
        ('name', 'utf8[]', [[b'a,b'], ['é'.encode()], []]),
        ('score', 'array(float64)', [f64(x).tobytes() for x in (0.5, 1.25, 2)])])


for old in ('types.zarr',):
    shutil.rmtree(HERE / old, ignore_errors=True)
codecs()
bad_zips()
types()
l5kit()
hdf5()
layouts()
benzina()
tables()
