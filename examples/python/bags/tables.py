"""Rows of any table that exports an Arrow stream, without a library of Arrow.

The structs are those of Arrow's C data interface, whose specification names the formats.
"""
import ctypes
import os


class _Schema(ctypes.Structure):
    pass


class _Array(ctypes.Structure):
    pass


class _Stream(ctypes.Structure):
    pass


_Schema._fields_ = [
    ('format', ctypes.c_char_p), ('name', ctypes.c_char_p), ('metadata', ctypes.c_void_p),
    ('flags', ctypes.c_int64), ('n_children', ctypes.c_int64),
    ('children', ctypes.POINTER(ctypes.POINTER(_Schema))), ('dictionary', ctypes.POINTER(_Schema)),
    ('release', ctypes.CFUNCTYPE(None, ctypes.POINTER(_Schema))), ('private', ctypes.c_void_p)]
_Array._fields_ = [
    ('length', ctypes.c_int64), ('null_count', ctypes.c_int64), ('offset', ctypes.c_int64),
    ('n_buffers', ctypes.c_int64), ('n_children', ctypes.c_int64),
    ('buffers', ctypes.POINTER(ctypes.c_void_p)),
    ('children', ctypes.POINTER(ctypes.POINTER(_Array))), ('dictionary', ctypes.POINTER(_Array)),
    ('release', ctypes.CFUNCTYPE(None, ctypes.POINTER(_Array))), ('private', ctypes.c_void_p)]
_Stream._fields_ = [
    ('get_schema', ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream),
                                    ctypes.POINTER(_Schema))),
    ('get_next', ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Array))),
    ('get_last_error', ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(_Stream))),
    ('release', ctypes.CFUNCTYPE(None, ctypes.POINTER(_Stream))), ('private', ctypes.c_void_p)]

_NUMBERS = dict(zip('cCsSiIlLefg', 'i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8'.split()))


class _Null(ValueError):
    """A null. Its argument is the row."""


def _buffer(array, which, dtype, start, count):
    """A copy of elements of a buffer; the array is released before its values are used."""
    import numpy as np
    dtype = np.dtype(dtype)
    if not count:
        return np.empty(0, dtype)
    at = array.buffers[which] + start * dtype.itemsize
    return np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(at), dtype).copy()


def _bits(array, which, start, count):
    import numpy as np
    data = _buffer(array, which, 'u1', start // 8, (start + count + 7) // 8 - start // 8)
    return np.unpackbits(data, bitorder='little')[start % 8:start % 8 + count].astype(bool)


def _check_nulls(kind, array, start, count):
    if kind == 'n' and count:
        raise _Null(0)
    if array.null_count and array.n_buffers and array.buffers[0]:
        valid = _bits(array, 0, start, count)
        if not valid.all():
            raise _Null(int(valid.argmin()))


def _texts(kind, array, start, count):
    offsets = _buffer(array, 1, 'i4' if kind in 'uz' else 'i8', start, count + 1)
    first = int(offsets[0])
    data = _buffer(array, 2, 'u1', first, int(offsets[-1]) - first).tobytes()
    return [data[a - first:b - first] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist())]


def _views(array, start, count):
    """Texts of 16 bytes: the size, then the text, or its start, buffer and offset."""
    out = []
    for size, _, which, at in _buffer(array, 1, '4i4', start, count).tolist() if count else ():
        inline = size <= 12
        place = array.buffers[1] + 16 * (start + len(out)) + 4 if inline else (
            array.buffers[2 + which] + at)
        out.append(ctypes.string_at(place, size))
    return out


def _lists(schema, array, start, count, offsets):
    first, stop = int(offsets[0]), int(offsets[-1])
    items = _values(schema.children[0][0], array.children[0][0], first, stop - first)
    ends = (offsets - first).tolist()
    return [list(items[a:b]) for a, b in zip(ends[:-1], ends[1:])]


def _values(schema, array, start, count):
    """Elements of an array: an array of NumPy, or a list."""
    import numpy as np
    kind = schema.format.decode()
    start += array.offset
    _check_nulls(kind, array, start, count)
    if schema.dictionary:
        words = array.dictionary[0]
        known = _values(schema.dictionary[0], words, 0, words.length)
        indices = _buffer(array, 1, _NUMBERS[kind], start, count)
        return known[indices] if isinstance(known, np.ndarray) else [known[i] for i in indices]
    if kind in _NUMBERS:
        return _buffer(array, 1, _NUMBERS[kind], start, count)
    if kind == 'b':
        return _bits(array, 1, start, count)
    if kind in ('u', 'U', 'z', 'Z', 'vu', 'vz'):
        texts = _views(array, start, count) if kind[0] == 'v' else _texts(kind, array, start, count)
        return [text.decode() for text in texts] if kind[-1] in 'uU' else texts
    if kind in ('+l', '+L'):
        offsets = _buffer(array, 1, 'i4' if kind == '+l' else 'i8', start, count + 1)
        return _lists(schema, array, start, count, offsets)
    if kind.startswith('+w:'):
        size = int(kind[3:])
        items = _values(schema.children[0][0], array.children[0][0], start * size, count * size)
        if isinstance(items, np.ndarray):
            return items.reshape(count, size, *items.shape[1:])
        return [items[i * size:(i + 1) * size] for i in range(count)]
    raise TypeError(f'a column of Arrow type "{kind}" is not supported (expected numbers, text, '
                    'bytes, or lists of them)')


def _columns(path, schema, array, done):
    """The columns of a batch. done: the datapoints before it."""
    if schema.format != b'+s':
        raise TypeError(f'{path}: an Arrow stream of "{schema.format.decode()}", not of a table')
    columns = {}
    for i in range(schema.n_children):
        name = schema.children[i][0].name.decode()
        if name in columns:
            raise ValueError(f'{path}: field "{name}": two columns of the table have this name')
        try:
            columns[name] = _values(schema.children[i][0], array.children[i][0], array.offset,
                                    array.length)
        except _Null as null:
            row = f'datapoint {done + null.args[0]}' if schema.children[i][0].format[:1] != b'+' else (
                f'datapoints {done} to {done + array.length}')
            raise ValueError(f'{path}: field "{name}": {row}: null') from None
        except (TypeError, UnicodeDecodeError) as error:
            raise TypeError(f'{path}: field "{name}": {error}') from None
    return columns


def rows(path, table):
    """Yield the rows of a table as dicts."""
    capsule = table.__arrow_c_stream__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    stream = _Stream.from_address(pointer(capsule, b'arrow_array_stream'))  # in the capsule
    schema, done = _Schema(), 0

    def check(code):
        if code:
            text = stream.get_last_error(stream)
            raise OSError(code, text.decode(errors='replace') if text else os.strerror(code), path)
    check(stream.get_schema(stream, schema))
    try:
        while True:
            array = _Array()
            check(stream.get_next(stream, array))
            if not array.release:
                return
            try:
                columns, count = _columns(path, schema, array, done), array.length
            finally:
                array.release(array)
            done += count
            for row in zip(*columns.values()):
                yield dict(zip(columns, row))
    finally:
        if schema.release:
            schema.release(schema)
        del capsule
