"""Functions on datasets, and Index."""
import os
import sys
import warnings

from . import _core, codecs
from .options import flags, numbered, pack, placed, stepping, suggest, unpack
from .storage import hooks, writable


class Index(_core.Index):
    """The index of a field, as built by bags.index: see DatasetReader.index."""

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
        """The indices of all datapoints with this key, as a list, which may be empty."""
        return self._key('=', key)

    def prefix(self, key):
        """The datapoints whose key starts with this text."""
        return self._key('p', key)

    def range(self, start, stop):
        """The datapoints with start <= key < stop, in key order. None means no bound."""
        return self._find('r', start, stop)

    def _key(self, how, key):
        if key is None:
            raise TypeError('a key must not be None')
        return self._find(how, key, None)

    def __repr__(self):
        return f'<bags.Index of {self._path!r}>'


def _run(name, path, options=b'', values=()):
    """Run a C function, and return its report as bytes."""
    return _core.tool(name, writable(path), b'', options, list(values), 0, None)


def _count(name, path, **options):
    return unpack(f'{name} report', _run(name, path, pack(name, options, f'{path}: ')))


def _blobs(path, values):
    """Yield a name and a blob for each value, encoded as the type of its field."""
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
    """Finish the shards of crashed writers. Returns a dict that counts shards, datapoints and
    bytes.

    If a C program flushed part of a datapoint but did not end it, the flushed part is kept, or
    removed with drop_partial. A field without a value then raises a DataError, unless the dict
    `values` provides a value for it. Fields that have a value keep it.
    """
    options = {**locals()}
    del options['path'], options['values']
    blobs = _blobs(path, values) if values else ()
    return unpack('recover report', _run('recover', path, pack('recover', options, f'{path}: '), blobs))


def verify(path, *, live=False, jobs=0, max_pixels=0, storage=None, progress=None, **options):
    """verify(path, *, quick=False, decode=False, live=False, jobs=0, max_pixels=0,
    allow_gaps=False, allow_empty_file=False, unfinished='refuse', shard_start=0, shard_step=0,
    max_faults=0, storage=None, progress=None)

    Find every fault in a dataset or Bag. Returns a list of dicts, empty if there are no faults.
    With decode, a field whose type this build cannot decode is a fault, too; a type that no
    build knows only causes a warning. live checks the datapoints that were flushed to unfinished
    shards, which are then not faults; neither are missing shards. jobs: threads, 0 for the number
    of processors. max_pixels: larger images are faults. progress: see bags.copy; done is the number
    of bytes read, and total is 0, until the last call.
    """
    found, skipped, (live,) = [], {}, flags(live=live)
    if live and (options.get('quick') or options.get('unfinished', 'refuse') != 'refuse'):
        raise ValueError(f'{path}: live excludes quick and unfinished')
    with stepping(progress) as step:
        _core.verify(os.fsencode(path), pack('verify', options, f'{path}: '),
                     hooks(path, storage, True, catalogues=False),
                     found, numbered('jobs', jobs, 32), live, numbered('max_pixels', max_pixels), step)
    for one in found:
        if isinstance(one, tuple):  # for one shard
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
    """Write checksums next to the Bags. Returns a dict of numbers."""
    return _count('checksum', **locals())


def finalize(path):
    """Close the gaps in the shard numbers, as Python's bags requires. Returns how many shards
    were renamed."""
    return int.from_bytes(_run('finalize', path)[:8], sys.byteorder)


_STATISTICS = ('mean', 'std', 'min', 'max', 'count', 'q01', 'q10', 'q50', 'q90', 'q99')


def stats(path, *fields, rows=None, where=None, threads=0, max_pixels=0, storage=None, progress=None,
          **options):
    """stats(path, *fields, rows=None, where=None, threads=0, max_pixels=0, storage=None,
    progress=None, allow_gaps=False, unfinished='refuse', verify_checksums=False)

    Compute statistics of the numbers in fields, for a Loader's options mean and std. Returns
    for each field a dict of mean, std, min, max, count, q01, q10, q50, q90 and q99. Each is a
    list with one number per element of the field's arrays or, for images and videos, per
    channel, from 0 to 255 (a Loader's mean refers to x / 255). Sequences contribute all items.
    NaN is not counted; an element without numbers gets None. The result does not depend on
    the order of datapoints, on shards or on threads. rows: only use these datapoints, as for a
    Loader; where: only those for which an SQL expression is true. Images of more than max_pixels
    are errors. progress: see bags.copy.
    Errors: KeyError (no such field), TypeError (values without numbers), ValueError (an
    infinite number, arrays of several shapes, no values).
    """
    from .commands import _Sources
    if not fields or not all(isinstance(name, str) for name in fields):
        raise TypeError(f'{path}: fields: {fields!r} (expected names)')
    sources = _Sources(os.fsdecode(path), storage, options)
    try:
        for name in fields:
            sources.first._field(name)
        chosen = sources.select(rows, where)
    finally:
        sources.close()
    with stepping(progress) as step:
        found = _core.stats(os.fsencode(path), hooks(path, storage),
                            pack('reader', options, f'{path}: '), fields,
                            None if chosen is None else chosen.tobytes(), numbered('threads', threads, 31),
                            numbered('max_pixels', max_pixels), step)
    return {name: {key: [one[i] for one in elements] for i, key in enumerate(_STATISTICS)}
            for name, elements in zip(fields, found)}


def diff(a, b, *, key=None, exact=False, allow_gaps=False, storage=None, progress=None):
    """Compare two datasets. Returns a dict; if the datasets are equal, all its lists are empty.

    added, removed, moved: lists of datapoint indices in a (for added, in b) or, if key is the
    name of a field, of key values. changed: a dict with such a list for each field that has
    changed datapoints. fields: a dict of lists of field names: added, removed, and type for
    fields whose type differs. exact: True if bytes were compared. If both datasets have
    checksums and exact is False, only checksums and sizes are compared, so equality is
    probable but not certain.

    With a key, a datapoint has moved if its position among the datapoints in both datasets
    differs. Blobs are compared as stored. storage is used for both paths, as in DatasetReader.
    progress: see bags.copy.
    """
    exact, allow_gaps = flags(exact=exact, allow_gaps=allow_gaps)
    if key is not None and not isinstance(key, str):
        raise TypeError(f'key must be the name of a field, not {type(key)}')
    if key == '':
        raise KeyError(f'{a}: field "": unknown')
    found = []
    with stepping(progress) as step:
        exact = _core.diff(os.fsencode(a), os.fsencode(b), (key or '').encode(), exact, allow_gaps,
                           hooks(a, storage, True), hooks(b, storage, True), found, step)
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
