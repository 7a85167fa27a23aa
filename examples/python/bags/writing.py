"""bags.write: a dataset from an iterable of dicts, a table or arrays."""
import contextlib
import itertools
import operator
from collections.abc import Mapping

from . import _core, tables
from .metadata import info_text, set_info
from .options import stepping

_SHARDS = ('shard_size', 'shard_length', 'shard_start', 'shard_step', 'shard_stop')


def _is_image(value):
    """True for an image of PIL, which is not imported here."""
    return hasattr(value, 'mode') and hasattr(value, 'getbands') and hasattr(value, 'size')


def _array(value):
    """The type of an array, a tensor or a scalar of NumPy."""
    import numpy as np
    array = np.asarray(value)
    name = array.dtype.newbyteorder('=').name
    if not _core.dtype(name):
        raise TypeError(f'arrays of {array.dtype} have no type (expected bool, int, uint, float or '
                        'complex)')
    return f'array({",".join(map(str, (name, *array.shape)))})'


def _items(values):
    """The type of a list: a sequence of its items."""
    kinds = list(dict.fromkeys(map(_type, values)))
    if sorted(kinds) == ['array(float64)', 'array(int64)']:
        kinds = ['array(float64)']
    if len(kinds) != 1:
        raise TypeError(f'a list of {" and ".join(kinds)} has no type' if kinds else
                        'an empty list has no type')
    if kinds[0].endswith('[]'):
        raise TypeError('lists of lists of text, bytes or different lengths have no type')
    return f'{kinds[0]}[]'


def _type(value):
    """The type for a value."""
    if isinstance(value, (bool, int, float, complex)) and not hasattr(value, 'dtype'):
        return 'array({})'.format(
            'bool' if isinstance(value, bool) else 'int64' if isinstance(value, int) else
            'float64' if isinstance(value, float) else 'complex128')
    if isinstance(value, str):
        return 'utf8'
    if isinstance(value, (bytes, bytearray)):
        return 'bytes'
    if isinstance(value, (list, tuple)):
        return _list(value)
    if _is_image(value):
        return 'png'
    if hasattr(value, '__array__') or hasattr(value, '__array_interface__'):
        return _array(value)
    raise TypeError(f'{type(value)} has no type')


def _list(values):
    """The type of a list. Lists of numbers inside it, all of one shape, are arrays."""
    import numpy as np
    if values and all(isinstance(one, (list, tuple)) for one in values):
        arrays = [np.asarray(one) for one in values if np.ndim(np.asarray(one, object)) > 0]
        shapes = {array.shape for array in arrays}
        kinds = {array.dtype.kind for array in arrays}
        if len(shapes) == 1 and kinds <= {'b', 'i', 'f', 'c'} and 0 not in shapes.pop():
            return f'{_array(np.asarray(values)[0])}[]'
    return _items(values)


def _infer(path, datapoint):
    """The spec for a datapoint."""
    spec = {}
    for name, value in datapoint.items():
        try:
            spec[name] = _type(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f'{path}: field "{name}": datapoint 0: {error}; pass spec=') from None
        except RuntimeError as error:  # a tensor that requires a gradient
            raise TypeError(f'{path}: field "{name}": datapoint 0: {error}') from None
    return spec


def _columns(path, columns):
    """The datapoints of a dict of arrays: one for each row, along axis 0."""
    lengths = {}
    for name, column in columns.items():
        if not getattr(column, 'shape', ()):
            raise TypeError(f'{path}: field "{name}": {type(column)} (expected an array with rows '
                            'along axis 0, since a dict was passed; for datapoints pass a list of '
                            'dicts)')
        if getattr(column, 'mask', None) is not None and hasattr(column, 'filled'):
            raise TypeError(f'{path}: field "{name}": an array with a mask; filled() makes one '
                            'without')
        lengths[name] = len(column)
    for name, length in lengths.items():
        first = next(iter(lengths))
        if length != lengths[first]:
            raise ValueError(f'{path}: field "{name}": {length} rows, but field "{first}" has '
                             f'{lengths[first]}')
    names, rows = tuple(columns), next(iter(lengths.values()), 0)
    return (dict(zip(names, row)) for row in zip(*columns.values())), rows


def _datapoints(path, source):
    """An iterator of datapoints, their number or 0, and the spec or None."""
    from . import DatasetReader
    if isinstance(source, DatasetReader):
        return iter(source), len(source), source.spec
    if isinstance(source, Mapping):
        return *_columns(path, source), None
    if hasattr(source, 'iloc') and hasattr(source, 'columns'):  # of pandas
        for level in getattr(getattr(source, 'index', None), 'names', ()):
            if level is not None:
                raise ValueError(f'{path}: the index "{level}" of the table is not a column; '
                                 'reset_index() makes it one, reset_index(drop=True) removes it')
        columns = {name: source[name].to_numpy() for name in source.columns}
        if len(columns) != len(source.columns):
            raise ValueError(f'{path}: two columns of the table have the same name')
        return *_columns(path, columns), None
    if hasattr(source, '__arrow_c_stream__'):
        return tables.rows(path, source), getattr(source, 'num_rows', 0), None
    if isinstance(source, (str, bytes)):
        raise TypeError(f'{path}: {type(source)} (expected an iterable of dicts, a table or a dict '
                        'of arrays)')
    try:
        return iter(source), operator.length_hint(source, 0), None
    except TypeError:
        raise TypeError(f'{path}: {type(source)} (expected an iterable of dicts, a table or a dict '
                        'of arrays)') from None


def _checked(path, points):
    """The datapoints as dicts; an image by itself is the field "image"."""
    for i, point in enumerate(points):
        if _is_image(point):
            point = {'image': point}
        if not isinstance(point, Mapping):
            raise TypeError(f'{path}: datapoint {i}: {type(point)} (expected a dict)')
        yield point if type(point) is dict else dict(point)


def inferred_rows(path, iterable, spec=None):
    """The rows of what bags.write accepts as dicts, their spec and encoders."""
    from . import encoders
    points, _, known = _datapoints(path, iterable)
    points = _checked(path, points)
    if spec is None and known is None:
        first = next(points, None)
        if first is None:
            raise ValueError(f'{path}: no rows; pass spec=')
        known = _infer(path, first)
        points = itertools.chain([first], points)
    return points, known if spec is None else spec, encoders


@contextlib.contextmanager
def _without_empty(writer):
    """After an exception before the first datapoint, remove the dataset."""
    try:
        yield
    except BaseException:
        if not (writer.closed or len(writer) or writer.resumed):
            writer._abort()
        raise


def write(path, iterable, spec=None, *, encoders=None, info=None, progress=None, **options):
    """write(path, iterable, spec=None, *, encoders=bags.encoders, info=None, progress=None,
    shard_size=None, shard_length=None, shard_start=0, shard_step=1, shard_stop=0, existing='refuse',
    checksum=False, keep_idx=False, sync=False, flush_seconds=1)

    Write a dataset, and return its spec. iterable: dicts, a table of pandas, any table with
    __arrow_c_stream__ (pyarrow, polars), a dict of arrays with rows along axis 0, a
    DatasetReader, whose values are copied as they are stored unless it has decoders of its own, or
    images of PIL, which become a field "image".

    Without a spec, the first datapoint determines the types. A bool, int or float becomes
    array(bool), array(int64) or array(float64), a scalar or array of NumPy an array of its dtype and
    shape, str utf8, bytes bytes, a PIL image png (without loss, even if it was read from a JPEG
    file), and a list a sequence of the type of its items. Each datapoint must have the
    fields of the spec, and values that its types can hold: pass a spec if they differ.
    encoders, and the other options, are as for ShardedDatasetWriter, which is used if one of
    the options of shards is given, and for DatasetWriter. existing='resume' skips as many
    datapoints of the iterable as the dataset has. info: a dict of metadata, see bags.set_info.
    progress: a function of done and total (0 if unknown), or tqdm. It is called now and then, and
    at the end. An exception that it raises ends the call. After an exception, the
    datapoints before it are a complete dataset; without any, nothing is left.
    Errors: KeyError (a field is missing or unknown), TypeError, ValueError, FileExistsError.
    """
    from . import DatasetReader, DatasetWriter, ShardedDatasetWriter
    from . import encoders as ours
    if info is not None:
        info_text(path, info)  # an error now rather than later
    codecs = ours if encoders is None else encoders
    if isinstance(iterable, DatasetReader) and spec is None and encoders is None and not (
            iterable.closed or iterable._converts()):
        iterable, codecs = iterable._stored(), None  # a JPEG is not encoded again
    points, total, known = _datapoints(path, iterable)
    points = _checked(path, points)
    inferred = None
    if spec is None:
        spec = known
    if spec is None:
        first = next(points, None)
        if first is None:
            raise ValueError(f'{path}: no datapoints; pass spec=')
        spec = inferred = _infer(path, first)
        points = itertools.chain([first], points)
    kind = ShardedDatasetWriter if any(name in options for name in _SHARDS) else DatasetWriter
    with stepping(progress) as step, kind(path, spec, codecs, **options) as writer, \
            _without_empty(writer):
        done = writer.resumed
        for point in itertools.islice(points, done, None):
            try:
                writer.append(point)
            except (TypeError, ValueError) as error:
                if inferred:
                    length = "; 'array(int64,-1)' has any length" * ('shape mismatch' in str(error))
                    error.add_note(f'The types are those of datapoint 0: {inferred}. Pass spec= for '
                                   f'others{length}.')
                raise
            done += 1
            if step and done % 64 == 0:
                step(done, total)
        if step:
            step(done, total)
    if info is not None:
        set_info(path, info, sync=options.get('sync', False))
    return writer.spec
