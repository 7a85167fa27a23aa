"""bags import of Zarr 3 and of replay buffers: by a writer of its own, and hostile ones."""
import base64
import gzip
import itertools
import json
import math
import pathlib
import random
import shutil
import struct
import zipfile

from harness import each, files, refuse, run
from importing import _kinds

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)

LETTERS = {'bool': '?', 'int8': 'b', 'int16': 'h', 'int32': 'i', 'int64': 'q', 'uint8': 'B',
           'uint16': 'H', 'uint32': 'I', 'uint64': 'Q', 'float32': 'f', 'float64': 'd'}
BYTES = {'name': 'bytes', 'configuration': {'endian': 'little'}}
CRC = {'name': 'crc32c'}
GZIP = {'name': 'gzip', 'configuration': {'level': 5}}


def _crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return struct.pack('<I', crc ^ 0xFFFFFFFF)


def _zstd(data):
    """A frame of blocks that are stored."""
    out = b'\x28\xb5\x2f\xfd\xa0' + struct.pack('<I', len(data))
    parts = [data[i:i + 65536] for i in range(0, len(data), 65536)] or [b'']
    for i, part in enumerate(parts):
        out += struct.pack('<I', len(part) << 3 | (i + 1 == len(parts)))[:3] + part
    return out


def _blosc(data):
    return struct.pack('<BBBBIII', 2, 1, 2, 1, len(data), len(data), len(data) + 16) + data


ENCODE = {'gzip': gzip.compress, 'zstd': _zstd, 'blosc': _blosc,
          'crc32c': lambda data: data + _crc32c(data)}


def _cells(shape):
    return itertools.product(*map(range, shape))


def _encode(at, shape, dtype, codecs):
    """The bytes of a chunk whose element at an index is at(index)."""
    elements = {cell: at(cell) for cell in _cells(shape)}
    for codec in codecs:
        name = codec if isinstance(codec, str) else codec['name']
        how = {} if isinstance(codec, str) else codec.get('configuration', {})
        if name == 'transpose':
            order = how['order']
            elements = {tuple(cell[d] for d in order): value for cell, value in elements.items()}
        elif name == 'bytes':
            sign = '>' if how.get('endian') == 'big' else '<'
            data = struct.pack(f'{sign}{len(elements)}{LETTERS[dtype]}',
                               *(elements[cell] for cell in sorted(elements)))
        else:
            data = ENCODE[name](data)
    return data


def _shard(at, shape, dtype, how):
    """The same of a shard. Chunks whose elements are all None are missing."""
    inner = how['chunk_shape']
    counts = [a // b for a, b in zip(shape, inner)]
    sign = '>' if how['index_codecs'][0]['configuration']['endian'] == 'big' else '<'
    crc = len(how['index_codecs']) > 1
    first = how.get('index_location') == 'start'
    base = (16 * math.prod(counts) + 4 * crc) if first else 0
    body, index = b'', b''
    for cell in _cells(counts):
        def inside(i, cell=cell):
            return at(tuple(c * n + k for c, n, k in zip(cell, inner, i)))
        if all(inside(i) is None for i in _cells(inner)):
            index += b'\xff' * 16
            continue
        data = _encode(inside, inner, dtype, how['codecs'])
        index += struct.pack(sign + 'QQ', base + len(body), len(data))
        body += data
    index += _crc32c(index) if crc else b''
    return index + body if first else body + index


def _array(shape, grid, at, dtype='int32', codecs=(BYTES,), fill=0, encoding=None, **more):
    """The files of an array; at(index) is None where the chunk may be missing."""
    about = {'zarr_format': 3, 'node_type': 'array', 'shape': shape, 'data_type': dtype,
             'chunk_grid': {'name': 'regular', 'configuration': {'chunk_shape': grid}},
             'chunk_key_encoding': encoding or {'name': 'default'}, 'fill_value': fill,
             'codecs': list(codecs), **more}
    names = about['chunk_key_encoding']
    default = names['name'] == 'default'
    separator = names.get('configuration', {}).get('separator', '/' if default else '.')
    made = {'zarr.json': json.dumps(about).encode()}
    for cell in _cells([-(-a // b) for a, b in zip(shape, grid)]):
        def inside(i, cell=cell):
            index = tuple(c * n + k for c, n, k in zip(cell, grid, i))
            return at(index) if all(k < n for k, n in zip(index, shape)) else None
        def filled(i, inside=inside):
            value = inside(i)
            return fill if value is None else value
        words = (['c'] if default else []) + [str(i) for i in cell]
        name = separator.join(words) or '0'
        if all(inside(i) is None for i in _cells(grid)):
            continue
        codec = about['codecs'][0]
        if isinstance(codec, dict) and codec['name'] == 'sharding_indexed':
            def part(i, inside=inside, grid=grid, codec=codec):
                """The fill value, unless all of its chunk is missing."""
                inner = codec['configuration']['chunk_shape']
                start = [k // n * n for k, n in zip(i, inner)]
                value = inside(i)
                if value is None and any(
                        inside(tuple(s + k for s, k in zip(start, j))) is not None
                        for j in _cells(inner)):
                    return fill
                return value
            made[name] = _shard(part, grid, dtype, codec['configuration'])
        else:
            made[name] = _encode(filled, grid, dtype, about['codecs'])
    return made


def _group(**arrays):
    made = {'zarr.json': b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'}
    for name, content in arrays.items():
        made.update({f'{name.replace("__", "/")}/{file}': data for file, data in content.items()})
    return made


def _save(path, content):
    if str(path).endswith('.zip'):
        with zipfile.ZipFile(path, 'w') as out:
            for name, data in content.items():
                out.writestr(name, data)
        return path
    for name, data in content.items():
        file = pathlib.Path(path) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return path


def _sharding(chunk, codecs=(BYTES,), index=('little', True), **more):
    return {'name': 'sharding_indexed', 'configuration': {
        'chunk_shape': chunk, 'codecs': list(codecs), 'index_codecs': [
            {'name': 'bytes', 'configuration': {'endian': index[0]}}] + [CRC] * index[1], **more}}


def _rows(path, field='data'):
    return [row[field] for row in run('get', path, ':', '--lists').lines]


def _nested(at, shape, fill):
    def build(index):
        if len(index) == len(shape):
            value = at(index)
            return fill if value is None else value
        return [build(index + (i,)) for i in range(shape[len(index)])]
    return build(())


def _random_array(chance):
    dims = chance.randint(1, 3)
    shape = [chance.randint(1, 7) for _ in range(dims)]
    inner = [chance.randint(1, 3) for _ in range(dims)]
    dtype = chance.choice(list(LETTERS))
    codecs = []
    for _ in range(chance.randint(0, 2)):
        codecs.append({'name': 'transpose', 'configuration': {
            'order': chance.sample(range(dims), dims)}})
    endian = chance.choice(['little', 'big'])
    codecs.append('bytes' if dtype in ('bool', 'int8', 'uint8') and chance.random() < .3 else
                  {'name': 'bytes', 'configuration': {'endian': endian}})
    for _ in range(chance.randint(0, 3)):
        codecs.append({'name': chance.choice(list(ENCODE)), 'configuration': {}})
    if chance.random() < .5:
        grid = [n * chance.randint(1, 3) for n in inner]
        codecs = [_sharding(inner, codecs, (chance.choice(['little', 'big']),
                                            chance.random() < .7),
                            **chance.choice([{}, {'index_location': 'start'},
                                             {'index_location': 'end'}]))]
    else:
        grid = inner
    values = {}
    for cell in _cells(shape):
        some = chance.randint(0, 120)
        values[cell] = bool(some & 1) if dtype == 'bool' else some / 4 if dtype[0] == 'f' else some
    # Some chunks are missing.
    gone = {tuple(i // n for i, n in zip(cell, inner)) for cell in values
            if chance.random() < .1}
    values = {cell: None if tuple(i // n for i, n in zip(cell, inner)) in gone else value
              for cell, value in values.items()}
    fill = {'b': True, 'f': 2.5}.get(dtype[0], 7) if chance.random() < .7 else \
        {'b': False, 'f': 0.0}.get(dtype[0], 0)
    encoding = chance.choice([
        {'name': 'default'}, {'name': 'default', 'configuration': {'separator': '.'}},
        {'name': 'v2'}, {'name': 'v2', 'configuration': {'separator': '/'}}])
    content = _array(shape, grid, values.get, dtype, codecs, fill, encoding)
    return content, _nested(values.get, shape, fill)


@each(range(6))
def arrays_of_every_layout_and_codec_are_what_was_written(part):
    """Shards, transposed chunks, byte orders, missing chunks, all names; also in a .zip."""
    if 'zarr' not in _kinds():
        return
    chance = random.Random(part)
    # One source has all arrays of a length.
    arrays = [_random_array(chance) for _ in range(40)]
    for length in range(1, 8):
        same = {f'a{i}': pair for i, pair in enumerate(arrays) if len(pair[1]) == length}
        content = {f'root/{name}': data
                   for name, data in _group(**{n: pair[0] for n, pair in same.items()}).items()}
        if not same:
            continue
        source = _save(f'{length}.zip' if part % 2 else f'{length}.zarr', content)
        run('import', source if part % 2 else f'{source}/root', f'out{length}')
        for name, (_, expected) in same.items():
            found = _rows(f'out{length}', name)
            assert found == expected, (content[f'root/{name}/zarr.json'], found, expected)


def an_array_without_dimensions_is_repeated():
    if 'zarr' not in _kinds():
        return
    for number, (codecs, encoding) in enumerate((
            ([BYTES], None), ([BYTES, GZIP, CRC], {'name': 'v2'}),
            ([_sharding([], [BYTES, CRC])], None))):
        content = _group(x=_one(), rate=_array([], [], lambda i: 30, 'int16', codecs, 7, encoding),
                         none=_array([], [], lambda i: None, 'int16', codecs, 7, encoding))
        for source in (f'{number}.zarr', f'{number}.zip'):
            out = source.replace('.', '')
            assert not run('import', _save(source, content), out).err
            assert run('get', out, ':').lines == [
                {'none': 7, 'rate': 30, 'x': x} for x in range(1, 5)]


def _one(**more):
    return _array([4], [2], lambda i: i[0] + 1, **more)


def _with(content, change):
    """The same array, its zarr.json changed."""
    about = json.loads(content['zarr.json'])
    change(about)
    return {**content, 'zarr.json': json.dumps(about).encode()}


def _set(*path):
    *path, value = path
    def change(about):
        for key in path[:-1]:
            about = about[key]
        if value is None:
            about.pop(path[-1])
        else:
            about[path[-1]] = value
    return change


REFUSED = [
    (_set('zarr_format', 2), 'zarr_format not supported (2)'),
    (_set('node_type', 'link'), 'node_type not supported (link)'),
    (_set('data_type', 'string'), 'data_type not supported (string)'),
    (_set('data_type', 'bfloat16'), 'data_type not supported (bfloat16)'),
    (_set('data_type', 'r12'), 'data_type not supported (r12)'),
    (_set('data_type', {'name': 'structured', 'configuration': {}}), 'data_type not supported'),
    (_set('data_type', None), 'data_type not supported (none)'),
    (_set('chunk_grid', 'name', 'rectilinear'), 'chunk_grid not supported (rectilinear)'),
    (_set('chunk_grid', 'configuration', 'chunk_shape', [0]), 'invalid shape or chunk_shape'),
    (_set('chunk_grid', 'configuration', 'chunk_shape', [2, 2]), 'invalid shape or chunk_shape'),
    (_set('shape', [-4]), 'invalid shape or chunk_shape'),
    (_set('chunk_key_encoding', 'name', 'hash'), 'chunk_key_encoding not supported'),
    (_set('chunk_key_encoding', 'configuration', {'separator': '-'}), 'separator not supported'),
    (_set('storage_transformers', [{'name': 'x'}]), 'storage_transformers not supported'),
    (_set('rotation', {'name': 'x'}), 'member not supported (rotation)'),
    (_set('fill_value', None), 'no fill_value'),
    (_set('fill_value', 'x'), 'fill_value: not a value of its dtype'),
    (_set('fill_value', 1 << 31), 'fill_value: not a value of its dtype'),
    (_set('codecs', []), 'codecs: neither bytes nor sharding_indexed'),
    (_set('codecs', [{'name': 'vlen-utf8'}]), 'codec not supported (vlen-utf8)'),
    (_set('codecs', [BYTES, {'name': 'numcodecs.lzma'}]), 'codec not supported (numcodecs.lzma)'),
    (_set('codecs', [GZIP, BYTES]), 'codec at this position of its list not supported (gzip)'),
    (_set('codecs', [BYTES, BYTES]), 'codec at this position of its list not supported (bytes)'),
    (_set('codecs', [BYTES, _sharding([1])]),
     'codec at this position of its list not supported (sharding_indexed)'),
    (_set('codecs', [_sharding([1]), GZIP]),
     'codec at this position of its list not supported (sharding_indexed)'),
    (_set('codecs', [_sharding([1], [_sharding([1])])]),
     'codec at this position of its list not supported (sharding_indexed)'),
    (_set('codecs', [_sharding([3])]), 'its chunks do not divide the shards'),
    (_set('codecs', [_sharding([0])]), 'codec sharding_indexed: invalid chunk_shape'),
    (_set('codecs', [_sharding([1], index_location='middle')]), 'index_location not supported'),
    (_set('codecs', [_sharding([1], index_codecs=[BYTES, GZIP])]),
     "codec of a shard's index not supported (gzip)"),
    (_set('codecs', [_sharding([1], index_codecs=[])]), 'no index_codecs'),
    (_set('codecs', ['bytes']), 'codec bytes of endian not supported (none)'),
    (_set('codecs', [{'name': 'transpose', 'configuration': {'order': [1]}}, BYTES]),
     'codec transpose: not an order of the dimensions'),
    (_set('codecs', [{'name': 'transpose', 'configuration': {'order': 'F'}}, BYTES]),
     'codec transpose of order not supported (F)'),
    (_set('codecs', [BYTES] + [CRC] * 9), 'codec'),
    (_set('shape', [1 << 40, 1 << 40]), 'invalid shape or chunk_shape'),
    (_set('chunk_grid', 'configuration', 'chunk_shape', [1 << 40]), 'too large'),
]


def metadata_that_are_not_understood_are_an_error_that_names_the_array():
    if 'zarr' not in _kinds():
        return
    for number, (change, says) in enumerate(REFUSED):
        content = _group(x=_with(_one(), change))
        refuse('import', _save(f'{number}.zarr', content), 'out',
               says=[f'{number}.zarr: x/zarr.json: ', says])
    source = _save('must.zarr', _with(_one(), _set('hint', {'must_understand': False})))
    assert run('import', source, '--dry-run').json['length'] == 4
    for where, says in (('x/.zarray', 'both Zarr 2 ("x/") and Zarr 3 ("'),
                        ('.zgroup', 'both Zarr 2 ("") and Zarr 3 ("')):
        content = {**_group(x=_one()), where: b'{"zarr_format": 2}'}
        name = where.replace('/', '')
        refuse('import', _save(f'{name}.zarr', content), 'out', says=says)
        refuse('import', _save(f'{name}.zip', content), 'out', says=says)


def dtypes_of_zarr_3_have_their_fill_values():
    """No chunk exists: every element is the fill value."""
    if 'zarr' not in _kinds():
        return
    def type_(name, **how):
        return {'name': name, 'configuration': how}
    cases = [
        ('float32', '0x7fc00001', 'array(float32)', b'\x01\x00\xc0\x7f'),
        ('float32', '-Infinity', 'array(float32)', b'\0\0\x80\xff'),
        ('float16', 1.5, 'array(float16)', b'\0\x3e'),
        ('complex64', [1, '0x40000000'], 'array(complex64)', struct.pack('<2f', 1, 2)),
        ('r16', [1, 255], 'bytes', b'\1\xff'),
        (type_('raw_bytes', length_bytes=2), base64.b64encode(b'ab').decode(), 'bytes', b'ab'),
        (type_('null_terminated_bytes', length_bytes=4), base64.b64encode(b'abc').decode(),
         'bytes', b'abc'),
        (type_('fixed_length_utf32', length_bytes=12), 'hé', 'utf8', 'hé'.encode()),
        ('uint64', (1 << 64) - 1, 'u64', b'\xff' * 8),
    ]
    for number, (dtype, fill, kind, data) in enumerate(cases):
        for endian in ('little', 'big'):
            about = _with(_one(codecs=[{'name': 'bytes', 'configuration': {'endian': endian}}]),
                          lambda a, d=dtype, f=fill: a.update(data_type=d, fill_value=f))
            out = f'{endian}{number}'
            run('import', _save(f'{out}.zarr', {'zarr.json': about['zarr.json']}), out)
            assert json.loads(pathlib.Path(f'{out}/spec.json').read_text()) == {'data': kind}
            assert files(out)['data.bag'][:4 * len(data)] == data * 4, (dtype, endian)
    for dtype, name in ((type_('numpy.datetime64', unit='s', scale_factor=25), 'data_25s'),
                        (type_('numpy.timedelta64', unit='D', scale_factor=1), 'data_days'),
                        (type_('numpy.datetime64', unit='generic'), 'data')):
        about = _with(_one(), lambda a, d=dtype: a.update(data_type=d, fill_value=-1))
        run('import', _save(f'{name}.zarr', {'zarr.json': about['zarr.json']}), name)
        assert _rows(name, name) == [-1] * 4
    for dtype, fill in (('r16', [1]), ('r16', [1, 256]), ('r16', [1, -1]), ('float32', '0x7fc0'),
                        ('float32', '0x7fc0000g'), ('bool', 'true')):
        about = _with(_one(), lambda a, d=dtype, f=fill: a.update(data_type=d, fill_value=f))
        name = f'bad{len(files("."))}.zarr'
        refuse('import', _save(name, {'zarr.json': about['zarr.json']}), 'bad',
               says='fill_value: not a value')


def chunks_and_shards_that_are_damaged_are_an_error_or_the_same():
    """Every byte of a shard and of a chunk, and every length."""
    if 'zarr' not in _kinds():
        return
    for name, codecs in (('shard', [_sharding([1], [BYTES, CRC])]), ('crc', [BYTES, CRC]),
                         ('zstd', [BYTES, {'name': 'zstd'}]), ('two', [BYTES, GZIP, CRC])):
        content = _array([4], [4], lambda i: i[0] + 1, codecs=codecs)
        data = content['c/0']
        for at in range(0, len(data), 5):
            for bad in (data[:at], data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1:]):
                _save('x.zarr', {**content, 'c/0': bad})
                if name == 'zstd' and len(bad) == len(data):
                    continue  # it has no checksum
                refuse('import', 'x.zarr', 'out', '--no-sync', says='x.zarr')
                shutil.rmtree('out', ignore_errors=True)


def a_shard_that_states_impossible_places_is_an_error():
    if 'zarr' not in _kinds():
        return
    for number, (offset, size) in enumerate(((1 << 63, 4), (0, 1 << 62), (60, 8), (0, 3),
                                             (0, 5), ((1 << 64) - 1, 4), (0, (1 << 64) - 1))):
        content = _one(codecs=[_sharding([1], index=('little', False))])
        content['c/0'] = content['c/0'][:8] + struct.pack('<QQ', offset, size) + \
            content['c/0'][24:]
        for source in (f'{number}.zarr', f'{number}.zip'):
            refuse('import', _save(source, content), 'out', says=source)
            shutil.rmtree('out', ignore_errors=True)
    for cut in (0, 10, 35):
        content = _one(codecs=[_sharding([1])])
        content['c/0'] = content['c/0'][:cut]
        refuse('import', _save(f'cut{cut}.zarr', content), 'cut',
               says=['c/0: codec sharding_indexed: the shard is smaller than its index'])
        shutil.rmtree('cut', ignore_errors=True)


def files_and_attributes_of_zarr_3_are_counted_or_an_error():
    if 'zarr' not in _kinds():
        return
    content = _group(x=_with(_one(), _set('attributes', {'unit': 'm'})), y__z=_one())
    content['x/notes.txt'] = b'more'
    content['y/zarr.json'] = json.dumps({
        'zarr_format': 3, 'node_type': 'group', 'attributes': {'rate': 3},
        'consolidated_metadata': {'metadata': {'gone': {}}, 'must_understand': False}}).encode()
    for source in ('x.zarr', 'x.zip'):
        said = run('import', _save(source, content), '--dry-run').err
        for part in ('2 attributes (', 'x/@unit', 'y/@rate', '1 other file (x/notes.txt)'):
            assert part in said, said
    moved = _one(encoding={'name': 'default'})
    moved = {name.replace('c/', 'c.'): data for name, data in moved.items()}
    for source in ('bad.zarr', 'bad.zip'):
        refuse('import', _save(source, moved), 'out', says=[
            'no chunk has a name that zarr.json states (found c.', 'expected c/0)',
            'its chunk_key_encoding has another separator'])


def _sparse(version, rows, grid, files, item=1):
    """An array of `rows` rows of `item` numbers, of which these chunks exist."""
    rest = [item] if item > 1 else []
    if version == 2:
        about = {'zarr_format': 2, 'shape': [rows, *rest], 'chunks': [grid, *rest], 'order': 'C',
                 'dtype': '|u1', 'fill_value': 7, 'filters': None, 'compressor': None}
        made = {'.zarray': json.dumps(about).encode()}
    else:
        about = {'zarr_format': 3, 'node_type': 'array', 'shape': [rows, *rest],
                 'data_type': 'uint8', 'codecs': [BYTES], 'fill_value': 7,
                 'chunk_grid': {'name': 'regular', 'configuration': {'chunk_shape': [grid, *rest]}},
                 'chunk_key_encoding': {'name': 'v2'}}
        made = {'zarr.json': json.dumps(about).encode()}
    return made | {'.'.join([str(i)] + ['0'] * len(rest)): b'x' * (grid * item if i == 0 else 10)
                   for i in files}


@each(list(itertools.product((2, 3), ('x.zarr', 'x.zip'))))
def a_source_of_fill_values_alone_is_an_error(case):
    version, path = case
    if 'zarr' not in _kinds():
        return

    def save(content):
        shutil.rmtree(path, ignore_errors=True)
        _save(path, content)

    for files in ([0, 9], [10**11 - 1], []):
        save(_sparse(version, 10**12, 10, files))
        refuse('import', path, 'out', says=[
            'array "data" of shape [1000000000000]', f'{len(files)} of 100000000000 chunks', '1e+12 bytes'])
    # Real data may be sparse, next to other arrays or alone.
    half = _sparse(version, 2**31, 2**25, [5])
    mask, image = _sparse(version, 2**31, 2**20, [5], 5), _sparse(version, 2**31, 2**20, range(200))
    group = {'.zgroup': b'{"zarr_format": 2}'} if version == 2 else {
        'zarr.json': b'{"zarr_format": 3, "node_type": "group"}'}
    for content in (half, group | {f'mask/{k}': v for k, v in mask.items()} |
                    {f'image/{k}': v for k, v in image.items()}):
        save(content)
        assert b'2147483648' in run('import', path, '--dry-run').out
    save(group | {f'mask/{k}': v for k, v in mask.items()})
    refuse('import', path, '--dry-run', says=['array "mask"', '[2147483648, 5]', '1 of 2048'])


def _replay(version, ends, arrays, **more):
    """A replay buffer: name to (dtype, rows)."""
    content = {}
    shapes = {'meta/episode_ends': ('int64', ends), **more}
    shapes.update({f'data/{name}': array for name, array in arrays.items()})
    for name, (dtype, rows) in shapes.items():
        wide = len(rows[0]) if rows and isinstance(rows[0], list) else 0
        shape, grid = [len(rows)] + [wide] * (wide > 0), [2] + [2] * (wide > 0)
        def at(i, rows=rows, wide=wide):
            return rows[i[0]][i[1]] if wide else rows[i[0]]
        array = _array(shape, grid, at, dtype,
                       encoding={'name': 'v2'} if version == 2 else None,
                       codecs=[BYTES, GZIP] if version == 3 else [BYTES])
        if version == 2:
            array.pop('zarr.json')
            array['.zarray'] = json.dumps({
                'zarr_format': 2, 'shape': shape, 'chunks': grid, 'compressor': None,
                'filters': None, 'order': 'C', 'fill_value': 0,
                'dtype': {'int64': '<i8', 'float32': '<f4', 'uint8': '|u1'}[dtype]}).encode()
        content.update({f'{name}/{file}': data for file, data in array.items()})
    for group in ('', 'data/', 'meta/'):
        content[group + ('zarr.json' if version == 3 else '.zgroup')] = \
            b'{"zarr_format": %d, "node_type": "group"}' % version
    return content


ACTIONS = [[i / 2, i + 1.0, -1.0] for i in range(7)]
REWARDS = [3, 1, 4, 1, 5, 9, 2]


@each([2, 3])
def a_replay_buffer_is_its_episodes(version):
    if 'zarr' not in _kinds():
        return
    content = _replay(version, [3, 4, 7], {'action': ('float32', ACTIONS),
                                           'obs/reward': ('int64', REWARDS)},
                      **{'meta/seeds': ('int64', [1, 2])})
    for source in ('buffer.zarr', 'buffer.zarr.zip'):
        out = source[-3:]
        said = run('import', _save(source, content), out).err
        assert '1 array of the ends of episodes (meta.episode_ends)' in said, said
        assert '1 array (meta.seeds)' in said, said
        assert json.loads(pathlib.Path(f'{out}/spec.json').read_text()) == {
            'action': 'array(float32,3)[]', 'obs.reward': 'i64[]'}
        rows = run('get', out, ':', '--lists').lines
        parts = [slice(0, 3), slice(3, 4), slice(4, 7)]
        assert [row['action'] for row in rows] == [ACTIONS[part] for part in parts]
        assert [row['obs.reward'] for row in rows] == [REWARDS[part] for part in parts]
    # A group of it is an ordinary one.
    assert run('import', 'buffer.zarr/data', '--dry-run').json['length'] == 7
    empty = _replay(version, [], {'action': ('float32', [])})
    assert run('import', _save('empty.zarr', empty), '--dry-run').json['length'] == 0


@each([2, 3])
def ends_of_episodes_that_do_not_fit_are_an_error(version):
    if 'zarr' not in _kinds():
        return
    actions = {'action': ('float32', ACTIONS)}
    cases = [
        ([3, 3, 7], actions, {}, 'meta.episode_ends: index 1: not increasing (3, the episode'),
        ([5, 4, 7], actions, {}, 'meta.episode_ends: index 1: not increasing (4, the episode'),
        ([0, 7], actions, {}, 'meta.episode_ends: index 0: not increasing (0, '),
        ([-2, 7], actions, {}, 'meta.episode_ends: index 0: negative (-2)'),
        ([3, 4, 8], actions, {}, 'meta.episode_ends: index 2: beyond the array data.action '
                                 '(8, it has 7 rows)'),
        ([3, 5], actions, {}, 'data.action: index 5: rows of no episode (it has 7 rows, '
                              'meta.episode_ends ends at 5)'),
        ([3, 7], {**actions, 'reward': ('int64', REWARDS[:4])}, {},
         'meta.episode_ends: index 1: beyond the array data.reward (7, it has 4 rows)'),
        ([3, 7], actions, {'other': ('int64', [1])}, 'other/: neither in data/ nor in meta/'),
        ([3, 7], {}, {}, 'no array in data/'),
    ]
    for number, (ends, arrays, more, says) in enumerate(cases):
        for source in (f'{number}.zarr', f'{number}.zip'):
            refuse('import', _save(source, _replay(version, ends, arrays, **more)), 'out',
                   says=[source, says])
    for number, (dtype, ends) in enumerate((('float32', [3.0, 7.0]), ('int64', [[3, 7]]))):
        content = _replay(version, [1], actions, **{'meta/episode_ends': (dtype, ends)})
        refuse('import', _save(f'type{number}.zarr', content), 'out',
               says='meta.episode_ends: not an array of one dimension of integers')
