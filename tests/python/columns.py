"""Columns: the buffer protocol, NumPy, DLPack and Arrow."""
import ctypes
import gc
import shutil
import tracemalloc

import numpy as np

import bags
from run import Skip, raises

SPEC = {'n': 'int(4)', 'u': 'u64', 'i': 'i64', 'v': 'int', 'b': 'int(2,big)', 't': 'utf8',
        'f': 'array(float32,2,3)', 'c': 'array(complex64)', 'o': 'array(bool,2)', 'y': 'bytes',
        's': 'utf8[]', 'q': 'array(int16,2)[]', 'm': 'msgpack', 'e': 'array(float64,0)'}


def _point(i):
    return {'n': i, 'u': 2**63 + i, 'i': -i, 'v': i * 1000, 'b': 256 + i, 't': 'x' * (i % 3),
            'f': np.full((2, 3), i, 'f4'), 'c': np.array(i + 1j, 'c8'), 'o': np.array([1, i % 2], bool),
            'y': b'ab', 's': [f'{i}{k}' for k in range(i % 4)], 'm': [i],
            'q': np.full((i % 3, 2), i, 'i2'), 'e': np.zeros(0)}


def _write(path, count=20, **options):
    make = bags.ShardedDatasetWriter if options else bags.DatasetWriter
    with make(path, SPEC, **options) as writer:
        for i in range(count):
            writer.append(_point(i))


DTYPES = {'n': 'i8', 'u': 'u8', 'i': 'i8', 'v': 'i8', 'b': 'i8', 'f': 'f4', 'c': 'c8', 'o': '?', 'e': 'f8'}


def a_column_is_an_array_without_a_copy():
    _write('x')
    _write('y', shard_length=7)
    for path, options in (('x', {}), ('x', {'no_mmap': True}), ('y', {}), ('y', {'shard_step': 3})):
        reader = bags.DatasetReader(path, None, **options)
        count = len(reader)
        for name, dtype in DTYPES.items():
            column = reader.column(name)
            array = np.asarray(column)
            expected = np.array([_point(i)[name] for i in range(count)]).astype(dtype)
            assert array.dtype == dtype and array.shape == expected.shape == (
                count, *expected.shape[1:]) and (array == expected).all(), name
            assert not array.flags.writeable and len(column) == count
            assert np.shares_memory(array, np.asarray(column)) or array.size == 0
            assert memoryview(column).readonly and memoryview(column).c_contiguous
            assert np.array(column).flags.writeable
            assert np.asarray(column, np.complex128).dtype == np.complex128
        flat = np.asarray(reader.column('q'))
        lists = [_point(i)['q'] for i in range(count)]
        offsets = reader.column('q').offsets
        assert flat.shape == (sum(map(len, lists)), 2) and flat.dtype == 'i2' and len(reader.column('q')) == count
        assert len(offsets) == count + 1 and all(
            (flat[offsets[i]:offsets[i + 1]] == lists[i]).all() for i in range(count))
        assert len(reader.column('s').offsets) == count + 1
        raises(TypeError, lambda: reader.column('n').offsets, says='plain field')
        for name in ('t', 'y', 's', 'm'):
            raises(TypeError, np.asarray, reader.column(name), says=name)
            raises(BufferError, memoryview, reader.column(name))
        raises(KeyError, reader.column, 'no')
        reader.close()
        del reader, column
        gc.collect()
        assert (array == expected).all()
        raises(ValueError, bags.DatasetReader.column, _closed(path), 'n')


def _closed(path):
    reader = bags.DatasetReader(path)
    reader.close()
    return reader


def a_column_of_wrong_sizes_is_refused():
    with bags.DatasetWriter('x', {'n': 'int(4)'}, None) as writer:
        writer.append({'n': b'1234'})
        writer.append({'n': b'123'})
    raises(bags.DataError, bags.DatasetReader('x').column, 'n', says='3 bytes')


def a_column_is_given_to_dlpack():
    _write('x')
    reader = bags.DatasetReader('x')
    for name in ('n', 'i', 'f'):
        column = reader.column(name)
        assert column.__dlpack_device__() == (1, 0)
        assert (np.from_dlpack(column) == np.asarray(column)).all()
        column.__dlpack__()  # that nobody takes
        column.__dlpack__(max_version=(1, 0))
        raises(BufferError, column.__dlpack__, copy=False)
    raises(BufferError, reader.column('t').__dlpack__)


def long_pytorch_takes_a_column_and_may_write_to_it():
    try:
        import torch
    except ImportError:
        raise Skip('no PyTorch')
    _write('x')
    reader = bags.DatasetReader('x')
    tensor = torch.from_dlpack(reader.column('f'))
    tensor += 1
    assert tensor.shape == (20, 2, 3) and (np.asarray(reader.column('f'))[3] == 3).all()


# ---- a consumer of Arrow's C data interface ----

class _Schema(ctypes.Structure):
    pass


class _Array(ctypes.Structure):
    pass


class _Stream(ctypes.Structure):
    pass


_P = ctypes.POINTER
_Schema._fields_ = [('format', ctypes.c_char_p), ('name', ctypes.c_char_p), ('metadata', ctypes.c_char_p),
                    ('flags', ctypes.c_int64), ('n_children', ctypes.c_int64), ('children', _P(_P(_Schema))),
                    ('dictionary', ctypes.c_void_p), ('release', ctypes.CFUNCTYPE(None, _P(_Schema))),
                    ('private', ctypes.c_void_p)]
_Array._fields_ = [('length', ctypes.c_int64), ('null_count', ctypes.c_int64), ('offset', ctypes.c_int64),
                   ('n_buffers', ctypes.c_int64), ('n_children', ctypes.c_int64),
                   ('buffers', _P(ctypes.c_void_p)), ('children', _P(_P(_Array))),
                   ('dictionary', ctypes.c_void_p), ('release', ctypes.CFUNCTYPE(None, _P(_Array))),
                   ('private', ctypes.c_void_p)]
_Stream._fields_ = [('get_schema', ctypes.CFUNCTYPE(ctypes.c_int, _P(_Stream), _P(_Schema))),
                    ('get_next', ctypes.CFUNCTYPE(ctypes.c_int, _P(_Stream), _P(_Array))),
                    ('get_last_error', ctypes.CFUNCTYPE(ctypes.c_char_p, _P(_Stream))),
                    ('release', ctypes.CFUNCTYPE(None, _P(_Stream))), ('private', ctypes.c_void_p)]


def _pointer(capsule, name, kind):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.cast(get(capsule, name), _P(kind))


_FORMATS = {b'C': 'u1', b'S': 'u2', b'I': 'u4', b'L': 'u8', b'c': 'i1', b's': 'i2', b'i': 'i4', b'l': 'i8',
            b'e': 'f2', b'f': 'f4', b'g': 'f8'}


def _values(schema, array):
    """The values of an Arrow array, as lists."""
    def buffer(i, count, dtype):
        size = count * np.dtype(dtype).itemsize
        return np.frombuffer(ctypes.string_at(array.buffers[i], size), dtype).tolist() if size else []
    form, count = schema.format, array.length
    assert array.offset == 0 and (array.null_count > 0) == bool(array.buffers[0])
    if array.null_count:
        assert schema.flags & 2
        there = np.unpackbits(np.array(buffer(0, -(-count // 8), 'u1'), 'u1'), bitorder='little')[:count]
        assert (there == 0).sum() == array.null_count
        validity, array.null_count, array.buffers[0] = array.buffers[0], 0, None
        values = [value if known else None for value, known in zip(_values(schema, array), there)]
        array.buffers[0] = validity
        return values
    if form == b'+s':
        columns = {schema.children[k].contents.name.decode(): _values(
            schema.children[k].contents, array.children[k].contents) for k in range(schema.n_children)}
        return [dict(zip(columns, row)) for row in zip(*columns.values())]
    if form in (b'U', b'Z'):
        ends = buffer(1, count + 1, 'i8')
        data = ctypes.string_at(array.buffers[2], ends[-1])
        return [data[a:b].decode() if form == b'U' else data[a:b] for a, b in zip(ends, ends[1:])]
    if form in _FORMATS:
        return buffer(1, count, _FORMATS[form])
    below = _values(schema.children[0].contents, array.children[0].contents)
    if form == b'+L':
        ends = buffer(1, count + 1, 'i8')
        return [below[a:b] for a, b in zip(ends, ends[1:])]
    size = int(form[3:])
    assert form[:3] == b'+w:' and len(below) == count * size
    return [below[k * size:(k + 1) * size] for k in range(count)]


def _arrow_values(column):
    schema, array = column.__arrow_c_array__()
    return _values(_pointer(schema, b'arrow_schema', _Schema).contents,
                   _pointer(array, b'arrow_array', _Array).contents)


def _expected(i):
    row = _point(i)
    row['c'] = [float(i), 1.0]
    row['m'] = bags.encoders['msgpack'](row['m'])
    return {k: v.astype('u1' if v.dtype == bool else v.dtype).tolist() if isinstance(v, np.ndarray) else v
            for k, v in row.items()}


def a_dataset_is_a_stream_of_arrow():
    _write('x')
    _write('y', shard_length=7)
    for path, batches in (('x', 1), ('y', 3)):
        for no_mmap in (False, True):
            reader = bags.DatasetReader(path, no_mmap=no_mmap)
            capsule = reader.__arrow_c_stream__()
            reader.close()
            stream, schema = _pointer(capsule, b'arrow_array_stream', _Stream), _Schema()
            assert stream.contents.get_schema(stream, schema) == 0 and schema.format == b'+s'
            rows, arrays = [], []
            for _ in range(batches + 1):
                arrays.append(_Array())
                assert stream.contents.get_next(stream, arrays[-1]) == 0
                if arrays[-1].release:
                    rows += _values(schema, arrays[-1])
            assert not arrays[-1].release and len(rows) == 20
            for i, row in enumerate(rows):
                assert row == _expected(i), (row, _expected(i))
            stream.contents.release(stream)
            # A child that was moved lives longer than what it was moved from.
            child, kept = arrays[0].children[0].contents, _Array()
            ctypes.memmove(ctypes.byref(kept), ctypes.byref(child), ctypes.sizeof(_Array))
            ctypes.memset(ctypes.byref(child, _Array.release.offset), 0, 8)
            for array in arrays[:-1]:
                array.release(array)
            del capsule
            gc.collect()
            assert _values(schema.children[0].contents, kept)[3] == 259
            kept.release(kept)
            schema.release(schema)


def a_column_is_an_array_of_arrow():
    _write('x')
    reader = bags.DatasetReader('x')
    for name in SPEC:
        got = _arrow_values(reader.column(name))
        assert got == [_expected(i)[name] for i in range(20)], name


def text_that_is_not_utf8_is_an_error():
    good, bad = {'t': 'é'.encode(), 's': [b'ok', b'']}, {'t': b'x\xff', 's': [b'ok', b'', b'\xc3']}
    for options in ({}, {'shard_length': 3}):
        shutil.rmtree('x', ignore_errors=True)
        make = bags.ShardedDatasetWriter if options else bags.DatasetWriter
        with make('x', {'t': 'utf8', 's': 'utf8[]'}, {'utf8': None}, **options) as writer:
            for row in [good] * 4 + [bad, good]:
                writer.append(row)
        for no_mmap in (False, True):
            reader = bags.DatasetReader('x', no_mmap=no_mmap)
            raises(bags.DataError, reader.column, 't', says='x: field "t": datapoint 4: invalid UTF-8 (byte 0xff at offset 1)')
            raises(bags.DataError, reader.column, 's', says='x: field "s": datapoint 4: item 2: invalid UTF-8 (byte 0xc3 at offset 0)')
            stream, array = _pointer(capsule := reader.__arrow_c_stream__(), b'arrow_array_stream', _Stream), _Array()
            for failed in [False, True] if options else [True]:
                assert (stream.contents.get_next(stream, array) != 0) == failed
                if not failed:
                    array.release(array)
            assert b'datapoint 4: ' in stream.contents.get_last_error(stream)
            del capsule


def a_stream_of_a_damaged_dataset_says_why():
    _write('x')
    with open('x/t.bag', 'r+b') as file:
        file.seek(-24, 2)
        file.write(b'\xff' * 8)
    stream = _pointer(capsule := bags.DatasetReader('x').__arrow_c_stream__(), b'arrow_array_stream', _Stream)
    array = _Array()
    assert stream.contents.get_next(stream, array) != 0 and not array.release
    assert b't.bag' in stream.contents.get_last_error(stream)
    del capsule


def long_a_million_numbers_are_an_array_without_an_object_each():
    with bags.DatasetWriter('x', {'f': 'array(float32)'}) as writer:
        value = np.array(1.5, 'f4')
        for _ in range(1000000):
            writer.append({'f': value})
    reader = bags.DatasetReader('x')
    tracemalloc.start()
    array = np.asarray(reader.column('f'))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert array.shape == (1000000,) and (array == 1.5).all()
    assert peak < 5000000, peak  # 4 bytes each, and no object
