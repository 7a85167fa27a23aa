"""Functions on datasets, and Index."""
import os
import sys
import warnings

from . import _core, codecs
from .options import number, pack, placed, suggest, unpack
from .storage import hooks, local, writable


class Index(_core.Index):
    """The index of a field, which build_index has made: see DatasetReader.index."""

    def __init__(self, source, field, path, name):
        try:
            super().__init__(source, field)
        except (FileNotFoundError, _core.DataError) as error:
            build = f'bags.build_index({os.fsdecode(path)!r}, {name!r})'
            what = (error.strerror or str(error)).replace('build one', f'{build} builds one').replace(
                'build the index again', f'{build} builds it again')
            raise type(error)(*(error.errno, what, path) if error.errno else (what,)) from None
        self._path = path

    def find(self, key):
        """Numbers of the datapoints with this key, a list; IndexError never."""
        return self._key('=', key)

    def prefix(self, key):
        """Datapoints whose key begins with it."""
        return self._key('p', key)

    def range(self, start, stop):
        """Datapoints with start <= key < stop, in the order of the keys; None: no bound."""
        return self._find('r', start, stop)

    def _key(self, how, key):
        if key is None:
            raise TypeError('a key must not be None')
        return self._find(how, key, None)

    def __repr__(self):
        return f'<bags.Index of {self._path!r}>'


def _run(name, path, other=b'', options=b'', values=()):
    """The report of a function of C, as bytes."""
    return _core.tool(name, writable(path), other, options, None, list(values))


def _count(name, path, **options):
    return unpack(f'{name} report', _run(name, path, b'', pack(name, options, f'{path}: ')))


def _blobs(path, values):
    """A name and a blob for each of the values: of the types that their fields have."""
    from . import DatasetReader
    writable(path)
    with DatasetReader(path, None, unfinished='read', allow_gaps=True) as reader:
        spec = reader.spec
    for name, value in values.items():
        kind = spec.get(name)
        if kind is None:
            raise KeyError(f'{path}: values: field "{name}": unknown; {suggest(name, spec)}')
        try:
            if kind.endswith('[]'):
                value = b''  # C refuses a sequence
            elif codecs.parse(kind)[1] in codecs.encoders or not isinstance(value, bytes):
                value = _core.encode(kind, value)
        except (TypeError, ValueError, KeyError) as error:
            raise placed(error, f'{path}: values: field "{name}"') from None
        yield name, value


def recover(path, *, dry_run=False, keep_idx=False, drop_partial=False, values=None, sync=True,
            shard_start=0, shard_step=0):
    """Finish what crashed writers left; a dict of numbers of shards, datapoints and bytes.

    A datapoint that a program in C flushed and did not end is kept with what was flushed,
    or with drop_partial removed. If it has no value for a field, that is a DataError; values,
    a dict, gives it one for each such field, and the others keep theirs.
    """
    options = {**locals()}
    del options['path'], options['values']
    blobs = _blobs(path, values) if values else ()
    return unpack('recover report', _run('recover', path, b'',
                                         pack('recover', options, f'{path}: '), blobs))


def verify(path, *, storage=None, **options):
    """verify(path, *, quick=False, decode=False, allow_gaps=False, allow_empty_file=False,
    unfinished='refuse', shard_start=0, shard_step=0, max_faults=0, storage=None)

    Every fault of a dataset or Bag: a list of dicts, empty if there is none. With decode, a
    field whose type this build cannot decode is one, too; a type that no build knows is a
    warning.
    """
    found, skipped = [], {}
    _core.tool('verify', os.fsencode(path), b'', pack('verify', options, f'{path}: '),
               hooks(path, storage, True), found)
    for one in found:
        if isinstance(one, tuple):  # of a shard
            skipped[one[:2]] = skipped.get(one[:2], 0) + one[2]
    faults = [one for one in found if isinstance(one, dict)]
    for (name, kind), blobs in skipped.items():
        message = (f'{path}: field "{name}": blobs that were not decoded: {blobs}: '
                   f'{codecs.missing(kind, True)}')
        if not codecs.lacks(kind):
            warnings.warn(message, stacklevel=2)
            continue
        faults.append({'path': os.fsdecode(path), 'field': name, 'kind': 'file', 'index': 0,
                       'offset': 0, 'message': message})
    return faults


def checksum(path, *, replace=False, sync=True, shard_start=0, shard_step=0):
    """Write checksums next to the Bags; a dict of numbers."""
    return _count('checksum', **locals())


def finalize(path):
    """Close the gaps between shards, as Python's bags needs; the number of shards that were
    renamed."""
    return int.from_bytes(_run('finalize', path)[:8], sys.byteorder)


def write_zip(dataset, path, *, whole=False):
    """Write a dataset as one zip file, which readers open as PATH. whole: also with blobs that no
    datapoint refers to, such as those that `bags derive` did not select."""
    _core.tool('zip', local(dataset), local(path), bytes([bool(whole)]), None, [])


_STATISTICS = ('mean', 'std', 'min', 'max', 'count', 'q01', 'q10', 'q50', 'q90', 'q99')


def stats(path, *fields, rows=None, threads=0, storage=None, **options):
    """stats(path, *fields, rows=None, threads=0, storage=None, allow_gaps=False,
    unfinished='refuse')

    Statistics of the numbers in fields, for the options mean and std of a Loader: for each
    field a dict of mean, std, min, max, count, q01, q10, q50, q90 and q99. Each is a list
    with a number for each element of the field's arrays; of images and videos for each
    channel, 0 to 255 (the mean of a Loader is of x / 255); of all items of sequences. NaN is
    not counted; what has no number is None. The result does not depend on the order of
    datapoints, on shards or on threads. rows: only these datapoints, as for a Loader.
    Errors: KeyError (no such field), TypeError (values without numbers), ValueError (an
    infinite number, arrays of several shapes, no values).
    """
    from . import DatasetReader
    from .loader import index_array
    if not fields or not all(isinstance(name, str) for name in fields):
        raise TypeError(f'{path}: fields: {fields!r} (expected names)')
    with DatasetReader(path, None, storage=storage, **options) as reader:
        for name in fields:
            reader._field(name)
        if rows is not None:
            rows = index_array('rows', rows, len(reader)).tobytes()
    found = _core.stats(os.fsencode(path), hooks(path, storage), pack('reader', options, f'{path}: '),
                        fields, rows, number(threads, 31))
    return {name: {key: [one[i] for one in elements] for i, key in enumerate(_STATISTICS)}
            for name, elements in zip(fields, found)}


def diff(a, b, *, key=None, exact=False, allow_gaps=False, storage=None):
    """The differences of two datasets: a dict, in which equal datasets have only empty lists.

    added, removed, moved: lists of numbers of datapoints or, with the name of a field as key, of
    its values. Numbers are those of a, and of b for added. changed: for each field with changed
    datapoints such a list. fields: a dict of lists of names, added, removed, and type for those
    that have another type. exact: True if bytes were compared. If both datasets have checksums
    and exact is False, these and sizes are compared, and equality is probable.

    With a key, a datapoint has moved if its place among the datapoints of both differs. Blobs are
    compared as they are stored. storage, for both paths: as of DatasetReader.
    """
    if key is not None and not isinstance(key, str):
        raise TypeError(f'key must be the name of a field, not {type(key)}')
    if key == '':
        raise KeyError(f'{a}: field "": unknown')
    found = []
    exact = _core.diff(os.fsencode(a), os.fsencode(b), (key or '').encode(), exact, allow_gaps,
                       hooks(a, storage, True), hooks(b, storage, True), found)
    lists = {name: [] for name in ('added', 'removed', 'moved')}
    fields = {name: [] for name in ('added', 'removed', 'type')}
    changed = {}
    for kind, number, value, field in found:
        one = number if key is None else value
        if kind < 3:
            [*lists.values()][kind].append(one)
        elif kind == 3:
            changed.setdefault(field, []).append(one)
        else:
            [*fields.values()][kind - 4].append(field)
    return {**lists, 'changed': dict(sorted(changed.items())), 'fields': fields, 'exact': exact}


def build_index(path, field):
    """Build the index of a field, for reader.index."""
    if not isinstance(field, str):
        raise TypeError(f'the name of a field must be a str, not {type(field)}')
    _run('index', path, field.encode())
