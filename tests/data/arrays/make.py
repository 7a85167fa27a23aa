#!/usr/bin/python3
"""Made the files of this directory, with NumPy 1.24.2 and msgpack 1.0.3:

  /usr/bin/python3 tests/data/arrays/make.py

npy/NAME.npy           an array as numpy.save writes it
npy/NAME.HOW.npy       the same array stored in another way: read and written
                       again it must give NAME.npy (structures keep their
                       spelling)
bad/FAULT.npy          to be refused
msgpack/NAME.msgpack   as msgpack.packb writes it, NAME.json what to print of it
golden/DATASET.FIELD.json    every msgpack and tree value of the golden datasets,
                             one a line
golden/DATASET.FIELD.npys    every array of them as numpy.save writes it, one
                             .npy file behind the other; of a tree the arrays in
                             it, in the order in which they stand
"""
import base64
import io
import json
import math
import pathlib
import struct
import warnings

import msgpack
import numpy as np

warnings.simplefilter('ignore')
HERE = pathlib.Path(__file__).parent
GOLDEN = HERE.parent / 'golden'


def write(name, data):
    path = HERE / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


def npy(array, version=None):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def header(text, version=1, data=b'', encoding='latin1'):
    text = text.encode(encoding)
    size = struct.pack('<H' if version == 1 else '<I', len(text))
    return b'\x93NUMPY' + bytes([version, 0]) + size + text + data


# ------------------------------------------------------------------ npy

def fill(shape, dtype):
    """Bytes that count up, so that no two elements are alike."""
    dtype = np.dtype(dtype)
    count = math.prod(shape)
    if dtype.kind in 'biufc' and dtype.char not in 'gG':
        return np.arange(count).reshape(shape).astype(dtype)
    raw = bytes((7 * i + i // 256) % 251 for i in range(count * dtype.itemsize))
    return np.ndarray(shape, dtype, buffer=raw)


def store(name, array):
    write(f'npy/{name}.npy', npy(array))
    if array.ndim > 1:
        # By way of raw bytes: NumPy does not copy what is between fields.
        raw = np.ndarray(array.shape, f'V{array.itemsize}', buffer=array.tobytes())
        turned = np.ndarray(array.shape, array.dtype, order='F',
                            buffer=raw.tobytes('F'))
        write(f'npy/{name}.fortran.npy', npy(turned))


def arrays():
    for dtype in '? u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8'.split():
        array = fill((2, 3, 4), dtype)
        name = array.dtype.name
        store(name, array)
        if array.itemsize > 1:
            swapped = array.astype(array.dtype.newbyteorder('>'))
            write(f'npy/{name}.big.npy', npy(swapped))
            write(f'npy/{name}.big-fortran.npy', npy(np.asfortranarray(swapped)))
    for name, dtype in {
            'complex64': 'c8', 'complex128': 'c16', 'longdouble': 'g',
            'clongdouble': 'G', 'bytes': 'S5', 'text': 'U3', 'raw': 'V7',
            'date': 'M8[D]', 'date-25s': 'M8[25s]', 'date-generic': 'M8',
            'span': 'm8[ns]', 'text-big': '>U2',
            'date-big': '>M8[ms]', 'bytes-0': 'S0', 'text-0': 'U0'}.items():
        store(name, fill((2, 3), dtype) if np.dtype(dtype).itemsize
              else np.ndarray((2,), dtype, buffer=b' '))
    swapped = fill((2, 3), '>c8')
    write('npy/complex64.big.npy', npy(swapped))
    write('npy/complex64.big-fortran.npy', npy(np.asfortranarray(swapped)))
    store('scalar', np.float64(2.5).reshape(()))
    store('empty', np.zeros((3, 0, 2), 'i4'))
    store('ones', fill((1, 5, 1), 'u2'))
    store('axes', fill((1, 2, 1, 3, 2, 1, 1, 2), 'u1'))
    store('long', fill((1000,), 'u1'))

    ordinary = fill((2, 3), 'f4')
    write('npy/ordinary.npy', npy(ordinary))
    for version in (2, 3):
        write(f'npy/ordinary.version{version}.npy', npy(ordinary, (version, 0)))
    data = ordinary.tobytes()
    write('npy/ordinary.python2.npy', header(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L)}\n", 1, data))
    write('npy/ordinary.other-text.npy', header(
        ' {\t"shape":(2,3,),\n"descr" :u\'float32\', \'fortran_order\' :False} ',
        1, data))

    store('structure', fill((3, 2), [
        ('pos', '<f4', (3,)), ('id', '<i8'), ('flag', '?'), ('label', 'S6')]))
    store('structure-nested', fill((2,), [
        (('a title', 'name'), '>i2'),
        ('inner', [('x', '<f8'), ('deep', [('y', 'u1', (2, 2)), ('z', 'M8[us]')])],
         (2,)), ('last', 'c8')]))
    store('structure-aligned', fill((2, 2), np.dtype(
        [('a', 'u1'), ('b', '<f8'), ('c', '<u2'), ('d', [('e', 'i1'), ('f', '<i4')])],
        align=True)))
    store('structure-offsets', fill((3,), np.dtype({
        'names': ['late', 'later'], 'formats': ['<u4', '<f2'], 'offsets': [5, 20],
        'itemsize': 32, 'titles': [None, 'the second']})))
    store('structure-empty', np.ndarray((2,), np.dtype([]), buffer=b' '))
    names = ["it's", 'q"uote', '\'"', 'back\\slash', 'tab\t', 'line\nend', 'a b',
             '\x7f', '.']
    store('names-ascii', fill((1,), [(name, 'u1') for name in names]))
    store('names-latin1', fill((1,), [('é', 'u1'), ('ü\x85', '<i2')]))
    store('names-unicode', fill((1,), [('日本語', 'u1'), ('😀', '<i2'), ('é', 'i1')]))
    store('names-version2', fill((1,), [
        (f'a rather long name of a field, number {i}', 'u1') for i in range(1250)]))
    plain = fill((2,), [('a', '<i2', (3, 2))])
    store('array-in-array', plain)
    write('npy/array-in-array.nested.npy', npy(np.ndarray(
        (2,), [('a', np.dtype(('<i2', (2,))), (3,))], buffer=plain.tobytes())))
    same = fill((2,), [('é', '<i2')])
    store('escapes', same)
    write('npy/escapes.escaped.npy', header(
        "{'descr': [('\\xe9', '<i2')], 'fortran_order': False, 'shape': (2,), }",
        1, same.tobytes()))
    write('npy/escapes.python2.npy', header(
        "{'descr': [(u'\xe9', '<i2')], 'fortran_order': False, 'shape': (2L,), }",
        1, same.tobytes()))
    far = fill((1,), [('日', '<i2'), ('😀', '?'), ('\r\n', 'u1')])
    store('escapes-far', far)
    write('npy/escapes-far.escaped.npy', header(
        "{'descr': [('\\u65e5', '<i2'), ('\\U0001F600', '?'), ('\\r\\x0a', 'u1')], "
        "'fortran_order': False, 'shape': (1,), }", 1, far.tobytes()))


def text(descr="'<f4'", order='False', shape='(2, 3)'):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


def bad_arrays():
    data = bytes(24)
    good = header(text(), 1, data)

    def bad(name, data):
        write(f'bad/{name}.npy', data)

    bad('nothing', b'')
    bad('magic-alone', good[:6])
    bad('wrong-magic', b'\x94' + good[1:])
    bad('version-0', good[:6] + b'\0' + good[7:])
    bad('version-4', good[:6] + b'\4' + good[7:])
    bad('version-1.1', good[:7] + b'\1' + good[8:])
    bad('cut-in-header', good[:40])
    bad('header-beyond-file', good[:8] + b'\xff\xff' + good[10:])
    bad('header-of-4-gigabytes', b'\x93NUMPY\2\0\xff\xff\xff\xff' + good[10:])
    bad('one-byte-less', good[:-1])
    bad('one-byte-more', good + b'\0')
    bad('no-elements', good[:-24])
    for name, words in {
            'objects': text("'|O'"),
            'objects-in-a-field': text("[('a', '<f4'), ('b', 'O')]"),
            'unknown-dtype': text("'<q4'"), 'float-of-3-bytes': text("'<f3'"),
            'int-of-16-bytes': text("'<i16'"), 'dtype-without-kind': text("'<4'"),
            'dtype-size-overflows': text("'|S99999999999999999999'"),
            'text-size-overflows': text("'<U2147483648'"),
            'date-with-wrong-unit': text("'<M8[xs]'", shape='(3,)'),
            'date-without-bracket': text("'<M8[ns'", shape='(3,)'),
            'dtype-is-a-number': text('4'), 'dtype-is-empty': text("''"),
            'dtype-is-an-array': text("('<f4', (3,))", shape='(2,)'),
            'shape-is-a-number': text(shape='6'), 'shape-without-comma': text(shape='(6)'),
            'shape-negative': text(shape='(-2, -3)'), 'shape-float': text(shape='(2., 3)'),
            'shape-leading-zero': text(shape='(02, 3)'),
            'shape-too-large-a-number': text(shape='(99999999999999999999,)'),
            'shape-product-overflows': text(shape='(4294967296, 4294967296, 4)'),
            'shape-overflows-but-for-0': text(shape='(4294967296, 4294967296, 0)'),
            'shape-of-65-dimensions': text(shape='(' + '1, ' * 65 + ')'),
            'shape-of-a-pixel-bomb': text("'|u1'", shape='(1000000, 1000000)'),
            'order-is-a-number': text(order='0'), 'order-is-none': text(order='None'),
            'key-missing': "{'descr': '<f4', 'shape': (2, 3), }\n",
            'key-twice': text().replace("{", "{'shape': (2, 3), "),
            'key-unknown': text().replace("{", "{'more': 1, "),
            'not-a-dictionary': "('<f4', False, (2, 3))\n", 'header-empty': '',
            'header-of-spaces': ' ' * 118, 'text-behind': text() + 'x',
            'no-end': text()[:-3], 'string-without-end': text("'<f4"),
            'code': text("__import__('os').abort()"),
            'field-of-one': text("[('a',)]"), 'field-is-a-string': text("['a']"),
            'field-twice': text("[('a', '<f4'), ('a', '<f4')]", shape='(3,)'),
            'field-named-as-a-title': text("[(('a', 'b'), '<f4'), ('a', '<f4')]", shape='(3,)'),
            'field-with-a-zero': text("[('a\\x00b', '<f4')]"),
            'field-with-half-a-surrogate': text("[('\\ud800', '<f4')]"),
            'escape-unknown': text("[('\\q', '<f4')]"),
            'escape-of-no-digits': text("[('\\xg0', '<f4')]"),
            'escape-above-unicode': text("[('\\U00110000', '<f4')]"),
            'field-name-without-end': "{'descr': [('a, '",
            'field-name-of-two-lines': text("[('a\nb', '<f4')]"),
            'field-shape-of-65-dimensions': text("[('a', '<f4', (" + '1, ' * 65 + '))]'),
            'array-in-array-of-66-dimensions': text(
                "[('a', ('<f4', (" + '1, ' * 33 + ')), (' + '1, ' * 33 + '))]'),
            'array-in-array-without-end': text("[('a', ('<f4', (2,), 3))]"),
            'fields-too-large-together': text(
                "[('a', '|S2147483647', (4294967297,)), ('b', '|S2147483647', (4294967297,))]"),
            'field-too-large': text("[('a', '|S2147483647', (4294967296, 4294967296))]"),
            'fields-4097': text(
                '[' + ''.join(f"('{i}', '|V0')," for i in range(4097)) + ']'),
            'nested-40': text("[('a', " * 40 + "'<f4'" + ')]' * 40),
            'nested-brackets': text('[' * 3000),
            'nested-tuples': text('(' * 3000)}.items():
        bad(name, header(words, 1, data))
    bad('names-not-utf8', header(text("[('\xff', '<f4')]"), 3, data))


# -------------------------------------------------------------- msgpack

def shown(value):
    """What JSON does not have, as formats.h says."""
    if isinstance(value, float) and not math.isfinite(value):
        return {'float': 'NaN' if math.isnan(value)
                else 'Infinity' if value > 0 else '-Infinity'}
    if isinstance(value, msgpack.Timestamp):
        data = base64.b64encode(value.to_bytes()).decode()
        return {'ext': -1, 'base64': data}
    if isinstance(value, msgpack.ExtType):
        data = base64.b64encode(value.data).decode()
        return {'ext': value.code, 'base64': data}
    if isinstance(value, bytes):
        return {'base64': base64.b64encode(value).decode()}
    if isinstance(value, (list, tuple)):
        return [shown(item) for item in value]
    if not isinstance(value, dict):
        return value
    if all(isinstance(key, str) for key in value):
        return {key: shown(item) for key, item in value.items()}
    return {'map': [[shown(key), shown(item)] for key, item in value.items()]}


def line(value):
    return json.dumps(shown(value), ensure_ascii=False)


def messages():
    deep = None
    for _ in range(510):
        deep = [deep]
    documents = {
        'nothing': None,
        'document': {'episode': 12, 'seed': 2**64 - 1, 'tags': ['a', 'é', '日本', '😀'],
                     'gravity': 9.80665, 'valid': True, 'none': None,
                     'sub': {'list': [], 'map': {}, 'no': False}},
        'numbers': sorted({sign * (1 << bit) + more for bit in range(65)
                           for sign in (1, -1) for more in (-1, 0, 1)
                           if -2**63 <= sign * (1 << bit) + more < 2**64}),
        'floats': [0.0, -0.0, 1.0, -2.5, 0.1, 1e300, -1e-300, 5e-324, 1 / 3, 1e22,
                   1.7976931348623157e308, 2.2250738585072014e-308, 100000.0,
                   math.pi, 1e-05, 0.0001, 123456789.123],
        'not-finite': [math.nan, math.inf, -math.inf],
        'texts': ['', 'a', 'x' * 31, 'x' * 32, 'y' * 255, 'z' * 256, 'é' * 200,
                  '"\\/\b\f\n\r\t\0\x1f\x7f\u2028'],
        'bytes': [bytes(range(size % 256)) * (size // 256 + 1)
                  for size in (0, 1, 2, 3, 4, 255, 256)],
        'extensions': [msgpack.ExtType(n % 128, bytes(n))
                       for n in (0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 255, 256)]
                      + [msgpack.Timestamp(1, 0), msgpack.Timestamp(2**35, 5)],
        'keys': [{1: 2, 'a': None}, {b'x': []}, {None: 1, True: 2, 0.5: 3}, {(1, 2): 3},
                 {'only': 'text'}],
        'lengths': [list(range(n)) for n in (0, 15, 16, 300)]
                   + [{str(i): i for i in range(n)} for n in (0, 15, 16, 300)],
        'deep': deep,
    }
    for name, value in documents.items():
        write(f'msgpack/{name}.msgpack', msgpack.packb(value))
        if name == 'deep':
            write('msgpack/deep.json', b'[' * 510 + b'null' + b']' * 510)
        else:
            write(f'msgpack/{name}.json', line(value).encode())


# --------------------------------------------------------------- golden

def blobs(path):
    data = path.read_bytes()
    index = path.with_suffix('.idx')
    if index.exists():
        ends = index.read_bytes()
    elif len(data) > 8:
        ends = data[struct.unpack('<Q', data[-8:])[0]:]
    else:
        ends = b''
    ends = list(struct.unpack(f'<{len(ends) // 8}Q', ends))
    if ends[:1] != [0]:
        ends.insert(0, 0)
    return [data[start:end] for start, end in zip(ends, ends[1:])]


def decode_array(blob, kind):
    if '(' in kind:
        dtype, *shape = kind[kind.index('(') + 1:kind.index(')')].split(',')
        return np.frombuffer(blob, dtype).reshape([int(size) for size in shape])
    dtype, shape, data = msgpack.unpackb(blob)
    return np.frombuffer(data, dtype).reshape(shape)


def leaves(value):
    if isinstance(value, list) and len(value) == 4 and value[0] == '_':
        yield np.frombuffer(value[3], value[1]).reshape(value[2])
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)


def values_of_manifest(dataset, field):
    for row in json.loads((dataset / 'manifest.json').read_text())['data']:
        for item in row[field].get('items', [row[field]]):
            yield item.get('value')


def golden():
    for spec in sorted(GOLDEN.glob('*/*/data/spec.json')):
        dataset = spec.parent.parent
        for field, kind in json.loads(spec.read_text()).items():
            base = kind.removesuffix('[]').split('(')[0]
            if base not in ('array', 'msgpack', 'tree'):
                continue
            name = f'golden/{dataset.parent.name}.{dataset.name}.{field}'
            all_blobs = blobs(spec.parent / f'{field}.bag')
            if base in ('msgpack', 'tree'):
                values = [msgpack.unpackb(blob) for blob in all_blobs]
                expected = list(values_of_manifest(dataset, field))
                if len(expected) == len(values):
                    for value, wanted in zip(values, expected):
                        assert wanted is None or value == wanted
                write(name + '.json', '\n'.join(map(line, values)).encode() + b'\n')
            arrays = []
            if base == 'array':
                arrays = [decode_array(blob, kind) for blob in all_blobs]
            if base == 'tree':
                arrays = list(leaves(values))
            if arrays:
                write(name + '.npys', b''.join(map(npy, arrays)))


arrays()
bad_arrays()
messages()
golden()
