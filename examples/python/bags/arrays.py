"""A field of all datapoints as one array, for NumPy, DLPack and Arrow."""
import operator

from . import _core


def is_inside(points, length):
    """True if all numbers of a range, which may be very long, are from 0 to length - 1."""
    return not points or 0 <= min(points[0], points[-1]) and max(points[0], points[-1]) < length


def indices_of(indices, length, path):
    """The datapoints that a list or an array of NumPy selects, as ints from 0."""
    found = []
    if getattr(indices, 'ndim', 1) != 1:
        raise TypeError(f'{path}: an array of {indices.ndim} dimensions (expected a list of indices)')
    for index in indices.tolist() if hasattr(indices, 'tolist') else indices:
        if isinstance(index, bool) or not hasattr(index, '__index__') or (
                getattr(index, 'dtype', None) == bool):
            raise TypeError(f'{path}: {index!r} is not the index of a datapoint (expected an int)')
        number = operator.index(index)
        if not -length <= number < length:
            raise IndexError(f'{path}: index {number} out of range (length {length})')
        found.append(number % length)
    return found


class Column(_core.Column):
    """One field of all datapoints, read-only. np.asarray(column) has shape (N, *shape), and is
    not a copy for arrays, i64 and u64 if the dataset is not sharded; int is int64. A sequence
    column contains the items of all datapoints: the items of datapoint i are at offsets[i] to
    offsets[i + 1]. Text and bytes are available by iterating, and through Arrow. An iteration
    has one entry per datapoint; of a sequence, an array or a list. The column stays valid after
    close. DLPack before 1.0, or with NumPy before 2.1, gets a copy."""

    @property
    def _text(self):
        return self._parts[1] in 'UZ'

    @property
    def dtype(self):
        """The dtype of np.asarray(column); object for text and bytes."""
        import numpy as np
        return np.dtype(object) if self._text else np.asarray(self).dtype

    @property
    def shape(self):
        """The shape of np.asarray(column): values, then the shape of each. The values of a
        sequence are the items of all datapoints."""
        return (self._parts[5 if self._parts[3] else 4],) if self._text else memoryview(self).shape

    def __iter__(self):
        import numpy as np
        _, leaf, _, sequence, length, items, _, ends, data = self._parts
        if self._text:
            ends, values = memoryview(ends).cast('B').cast('Q'), memoryview(data)

            def value(i):
                blob = bytes(values[ends[i]:ends[i + 1]])
                return blob.decode() if leaf == 'U' else blob
        else:
            value = np.asarray(self).__getitem__
        if not sequence:
            return map(value, range(items))
        starts = self.offsets.tolist()
        parts = map(slice, starts[:-1], starts[1:])
        if self._text:
            return ([value(i) for i in range(part.start, part.stop)] for part in parts)
        return map(value, parts)

    @property
    def offsets(self):
        """For a sequence: where the items of each datapoint start, and where the last items
        end, as an array of int64."""
        import numpy as np
        name, _, _, sequence, *_, lists, _, _ = self._parts
        if not sequence:
            raise TypeError(f'field "{name}": a plain field has no offsets')
        return np.frombuffer(lists, 'i8')

    def __array__(self, dtype=None, copy=None):
        import numpy as np  # slow to import, so only when needed
        try:
            view = memoryview(self)
        except BufferError as error:
            raise TypeError(*error.args) from None
        return (np.array if copy else np.asarray)(view, dtype)

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        import numpy as np
        if max_version is not None and max_version >= (1, 0) and not copy and (
                np.lib.NumpyVersion(np.__version__) >= '2.1.0'):
            return np.asarray(self).__dlpack__(max_version=max_version, copy=copy)
        if copy is False:
            raise BufferError('a column is read-only, which DLPack states from version 1.0, and '
                              'NumPy from 2.1 on: allow a copy')
        return np.array(memoryview(self)).__dlpack__()

    def __arrow_c_array__(self, requested_schema=None):
        schema, array = _trees(self)
        return _core.arrow_schema(schema), _core.arrow_array(array)


def _trees(column):
    """The Arrow schema and array: nested types around a leaf."""
    name, leaf, shape, sequence, length, items, lists, ends, data = column._parts
    counts = [items if sequence else length]
    for size in shape:
        counts.append(counts[-1] * size)
    kind, children, array = leaf, (), (
        counts.pop(), (None, ends, data) if leaf in 'UZ' else (None, data), ())
    for size in reversed(shape):
        kind, children, array = f'+w:{size}', ((kind, 'item', children),), (
            counts.pop(), (None,), (array,))
    if sequence:
        kind, children, array = '+L', ((kind, 'item', children),), (
            length, (None, lists), (array,))
    return (kind, name, children), array


def stream(source, count, shards):
    """The dataset as an Arrow stream of `count` fields, with one batch per shard."""
    if not count:
        raise ValueError('the dataset has no fields')

    def batch(start, stop):
        columns = [Column(source, field, start, stop) for field in range(count)]
        schemas, arrays = zip(*map(_trees, columns))
        return ('+s', '', schemas), (len(columns[0]), (None,), arrays)
    arrays = (batch(shard, shard + 1)[1] for shard in range(shards))
    return _core.arrow_stream(batch(0, 0)[0], arrays)
