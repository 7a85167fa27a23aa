"""Datasets in the Bag and Bags formats, with the API of the package `bags` 0.5.1, in C.

    with bags.DatasetWriter('pets', {'label': 'int(4)', 'words': 'utf8[]'}) as writer:
        writer.append({'label': 7, 'words': ['a', 'cat']})
    with bags.DatasetReader('pets') as reader:
        print(reader[0])
"""
import array
import atexit
import copy as _copy
import math
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping

from . import _core
from ._core import DataError
from . import show
from .arrays import Column, indices_of, is_inside, stream
from .closable import Closable, Dataset
from .codecs import build, choose, complete, decoders, encoders
from .commands import Rows, copy, derive, index, split, sql, zip
from .doors import export, formats, images, import_
from .metadata import read_info, set_info
from .loader import Drawn, Loader
from .options import pack, suggest
from .storage import hooks, writable
from .tools import Index, checksum, diff, finalize, recover, stats, verify
from .viewing import View, view
from .writing import write

build_index, write_zip = index, zip  # their names in earlier versions

__all__ = ['BagReader', 'BagWriter', 'Column', 'DataError', 'DatasetReader', 'DatasetWriter',
           'Drawn', 'GB', 'Index', 'Loader', 'Rows', 'ShardedDatasetReader', 'ShardedDatasetWriter',
           'View', 'build', 'build_index', 'checksum', 'copy', 'decoders', 'derive', 'diff', 'encoders',
           'export', 'finalize', 'formats', 'images', 'import_', 'index', 'recover', 'set_info', 'split', 'sql',
           'stats', 'verify', 'view', 'write', 'write_zip', 'zip']
__version__ = _core.version
GB = 1024 ** 3
_AT_ONCE = 256  # datapoints requested together


def __dir__():
    return sorted([*__all__, *(name for name in globals() if name.startswith('__'))])


def _rebuild(kind, base, args, options):
    """Called to unpickle: a subclass may have a different __init__ than its base class."""
    reader = kind.__new__(kind)
    base.__init__(reader, *args, **options)
    return reader


def _fixed(path, storage):
    """The path for a pickle. It stays valid after chdir."""
    path = os.fsdecode(path)
    local = '://' not in path and (storage is None or isinstance(storage, dict))
    return os.path.join(os.getcwd(), path) if local and not os.path.isabs(path) else path


def _worker(start, step, stop):
    """The options that differ from the default, worker 0 of 1. shard_step is shard_stop in C."""
    given = ('shard_start', start, 0), ('shard_step', step, 1), ('shard_stop', stop, 0)
    return {name: value for name, value, default in given if value != default}


def _limit(number):
    """A limit for shards; None means 0. A float, such as 0.5 * GB, is rounded up."""
    if isinstance(number, float):
        number = 0 if number == math.inf else math.ceil(number) if number >= 0 else -1
    return number or 0


# Writers' open files by folder, and these writers. They are not attributes, since a file may
# be closed before its writer when a cycle is freed.
_files, _writers = {}, weakref.WeakSet()


@atexit.register
def _close_writers():
    for writer in list(_writers):
        writer.close()


class BagReader(Closable, _core.BagReader):
    """BagReader(source, cache_index=True, *, no_mmap=False, allow_empty_file=False,
    unfinished='refuse', verify_checksums=False, storage=None)

    Read a Bag: r[i] is blob i as bytes, r[2:5] is a list of blobs, len(r) is their number.

    source is a path, bytes, or an open binary file. A file is read into memory.
    Errors: FileNotFoundError, DataError (not a Bag, or damaged), OSError.
    """

    _unit = 'blobs'

    def __init__(self, source, cache_index=True, *, storage=None, **options):
        options['cache_index'] = cache_index
        file = not isinstance(source, (str, os.PathLike)) and hasattr(source, 'read')
        if file and not isinstance(source, mmap.mmap):
            source.seek(0)
            source = source.read()
            if isinstance(source, str):
                raise TypeError('a file that is opened in binary mode is required, not text')
        path = isinstance(source, (str, os.PathLike))  # bytes are a Bag in memory
        super().__init__(source, hooks(source, storage) if path else None,
                         pack('bag reader', options, f'{source if path else "memory"}: '))
        if path:
            source = _fixed(source, storage)
        self._arguments = (source,), {**options, 'storage': storage}

    def _slice(self, part):
        """r[2:5], clamped like a list slice. Called by C."""
        if not isinstance(part, (slice, range)):
            raise TypeError(f'{self.path}: the index of a blob must be an int, a slice or a '
                            f'range, not {type(part)}')
        length = len(self)
        if isinstance(part, range):
            if min(part.start, part.stop) < 0:
                raise IndexError(f'{self.path}: {part} has negative bounds (length {length})')
            part = slice(part.start, part.stop, part.step)
        points = range(length)[part]
        return (self._range(points.start, max(points.start, points.stop)) if points.step == 1 else
                [self[i] for i in points])

    def copy(self):
        """Another reader for the same Bag."""
        return _copy.copy(self)

    def __reduce__(self):
        return _rebuild, (type(self), BagReader, *self._arguments), vars(self)


class BagWriter(Closable, _core.BagWriter):
    """BagWriter(path, *, keep_idx=False, sync=False, checksum=False, flush_seconds=1)

    Create a Bag. It must not exist (FileExistsError).

    flush_seconds: an append flushes if the last flush was at least this long ago, which limits
    what a killed process can lose; 0: never. path may be an open binary file; close() writes
    and closes it. sync: close waits until the data is on stable storage. A writer is closed
    when it is garbage-collected.
    """

    _folder, _unit = None, 'blobs'

    def __init__(self, path, *, sync=False, flush_seconds=1, **options):
        file = path if hasattr(path, 'write') and not hasattr(path, '__fspath__') else None
        if file:
            if sync or options.get('keep_idx') or options.get('checksum'):
                raise ValueError(f'{path}: an open file is not synchronized, and has no other files '
                                 'next to it: pass a path')
            file.write(b'')  # fails for text files and read-only files
            folder = tempfile.mkdtemp(prefix='bags-')
            path = os.path.join(folder, 'x.bag')
        try:
            writable(path)
            super().__init__(path, flush_seconds,
                             pack('bag writer', {'sync': sync, **options}, f'{path}: '))
        except BaseException:
            if file:
                shutil.rmtree(folder)
            raise
        if file:
            self._folder, _files[folder] = folder, file
            _writers.add(self)

    def close(self):
        folder, self._folder = self._folder, None
        file = _files.pop(folder, None)
        try:
            super().close()
            if file and self.closed:  # not open in the child of a fork
                with open(os.path.join(folder, 'x.bag'), 'rb') as bag:
                    shutil.copyfileobj(bag, file)
        finally:
            if file and self.closed:
                shutil.rmtree(folder)
                file.close()

    def __del__(self):
        if self._folder:
            self.close()


class DatasetReader(Dataset, _core.DatasetReader):
    """DatasetReader(directory, decoders=bags.decoders, cache_index=True, shard_start=0,
    shard_step=1, *, shard_stop=0, no_mmap=False, unfinished='refuse', allow_gaps=False,
    verify_checksums=False, no_read_ahead=False, max_files=0, storage=None)

    Read a dataset, sharded or not: r[i] is datapoint i as a dict of values.

    r[i, mask] reads part of a datapoint. mask is a tuple of field names, or a dict that maps
    each name to True, False, a range of items (for sequences), or a range or list of frames
    (for videos). r[2:5], r[::2], r[[1, 5]] and r[2:5, mask] return
    {name: [values]}.
    decoders maps types to functions of a blob; None returns bytes. Large arrays are read-only
    and refer to the mapped file. Threads may share a reader, and it can be pickled. The
    directory may be inside a .zip or .tar (pets.zip/train), or be a URL (http, https, s3).
    For a URL, storage is a dict with key, secret, token, region, endpoint, user, query,
    ca_file, and cache, a directory that stores up to cache_size bytes already read. storage
    may also be an fsspec file system.
    Errors: IndexError, KeyError (no such field, no decoder), FileNotFoundError, DataError
    (damaged, unfinished, a gap between shards), ValueError (closed).
    """

    def __init__(self, directory, decoders=..., cache_index=True, shard_start=0, shard_step=1,
                 *, shard_stop=0, storage=None, **options):
        options.update(_worker(shard_start, shard_step, shard_stop), cache_index=cache_index)

        def codecs(fields):
            self._spec = dict(fields)
            self._decoders, chosen = choose(complete(fields, decoders), decoders, True, directory)
            return chosen
        super().__init__(directory, codecs, hooks(directory, storage),
                         pack('reader', options, f'{directory}: '))
        self._arguments = (_fixed(directory, storage),), {**options, 'storage': storage}

    def copy(self):
        """Another reader for the same dataset."""
        return _copy.copy(self)

    def _rows(self, rows, *masks):
        """r[2:5], r[::2], r[[1, 5]], also with a mask: {name: [values]}. Called by C."""
        length = len(self)
        points = range(length)[rows] if isinstance(rows, slice) else rows
        if isinstance(points, range):
            if not is_inside(points, length):
                raise IndexError(f'{self.path}: {rows} out of range (length {length})')
        else:
            points = indices_of(points, length, self.path)
        mask = masks[0] if masks else tuple(self.spec)
        if isinstance(mask, dict):
            for name, part in mask.items():
                if not isinstance(part, bool) and part is not None:
                    raise TypeError(f'{self.path}: field "{name}": of several datapoints, its '
                                    'mask must be True or False')
            self._check(mask)
            mask = [name for name in self.spec if mask.get(name)]
        elif not isinstance(mask, (tuple, list)):
            raise TypeError(f'{self.path}: a mask must be a dict of fields, or a tuple of '
                            f'their names, not {type(mask)}')
        if isinstance(points, range) and points.step == 1:
            return {name: self.values(name, points.start, points.stop) for name in mask}
        self._check(mask)
        mask, found = tuple(mask), []
        for start in range(0, len(points), _AT_ONCE):
            part = points[start:start + _AT_ONCE]
            self._announce(array.array('Q', part).tobytes(), mask)
            found += [self[i, mask] for i in part]
        return {name: [row[name] for row in found] for name in mask}

    def values(self, name, start=0, stop=None):
        """The values of a field in datapoints start to stop, clamped like a slice. Returns a list;
        for a sequence, a list of lists."""
        points = range(len(self))[start:stop]
        return self._values(self._field(name), points.start, max(points.start, points.stop))

    @property
    def info(self):
        """The metadata of the dataset, info.json, as a dict; empty if there is none. See
        bags.set_info."""
        (path,), options = self._arguments
        return read_info(self, path, options['storage'])

    def _check(self, names):
        """Raise KeyError for the first name that is not a field. Called by C."""
        for name in names:
            self._field(name)

    def _refuse(self, name):
        """Called by C with a name that is not a field."""
        if not isinstance(name, str):
            raise TypeError(f'the name of a field must be a str, not {type(name)}')
        raise KeyError(f'{self.path}: field "{name}": unknown; {suggest(name, self.spec)}')

    def __repr__(self):
        return show.text(self)

    def _repr_html_(self):
        """The fields, and the first images, for notebooks."""
        return None if self.closed else show.html(self, self._stored)

    def _stored(self):
        """Another reader for the same dataset, of values as they are stored."""
        return _rebuild(DatasetReader, DatasetReader, (*self._arguments[0], None), self._arguments[1])

    def _converts(self):
        """True if values may differ from those of bags.decoders."""
        own = self._decoders if isinstance(self._decoders, Mapping) else {}
        return type(self) not in (DatasetReader, ShardedDatasetReader) or any(
            codec not in (None, decoders.get(kind)) for kind, codec in own.items())

    def index(self, name):
        """The Index of a field, as built by bags.index."""
        return Index(self._source, self._field(name), self.path, name)

    def column(self, name):
        """One field of all datapoints as a read-only array: see Column."""
        return Column(self._source, self._field(name))

    def __arrow_c_stream__(self, requested_schema=None):
        """The dataset as an Arrow stream, with one batch per shard."""
        return stream(self._source, len(self.spec), self.shards)

    def __reduce__(self):
        (path,), options = self._arguments
        return (_rebuild, (type(self), DatasetReader, (path, self._decoders), options),
                vars(self))


class ShardedDatasetReader(DatasetReader):
    __doc__ = DatasetReader.__doc__


class DatasetWriter(Dataset, _core.DatasetWriter):
    """DatasetWriter(directory, spec, encoders=bags.encoders, *, existing='refuse', checksum=False,
    keep_idx=False, sync=False, flush_seconds=1)

    Create a dataset. It must not exist (FileExistsError). spec: {name: type}.
    encoders maps types to functions of a value that return bytes; None if values are already
    bytes. KeyError: encoders lacks a type. "float32" is short for "array(float32)".
    existing='resume': continue the dataset of a crashed writer, after `resumed` datapoints.
    checksum: write a checksum for every blob. keep_idx: keep .idx files for granular 0.22.
    sync: close waits until the data is on stable storage. flush_seconds: an append flushes if
    the last flush was at least this long ago, which limits what a killed process can lose;
    0: never. A writer is closed when it is garbage-collected, and when an exception ends its
    `with` block. The datapoints appended so far are then a complete dataset.
    """

    def __init__(self, directory, spec, encoders=encoders, *, sync=False, flush_seconds=1,
                 **options):
        if not isinstance(spec, Mapping):
            raise TypeError(f'spec: {spec!r} (expected a dict of names and types)')
        if not all(isinstance(text, str) for pair in spec.items() for text in pair):
            wrong = next((name, kind) for name, kind in spec.items()
                         if not (isinstance(name, str) and isinstance(kind, str)))
            raise TypeError(f'{directory}: spec: a name and a type must be str, not {wrong[0]!r}: '
                            f'{wrong[1]!r}')
        writable(directory)
        self._spec = dict(sorted(complete(spec.items(), encoders)))
        super().__init__(directory, choose(self._spec.items(), encoders, False, directory)[1],
                         pack('writer', {'sync': sync, 'flush_seconds': flush_seconds, **options},
                              f'{directory}: '))

    def _check(self, datapoint):
        """Raise KeyError if a datapoint has other fields. Called by C."""
        names = dict.fromkeys(type(datapoint).keys(datapoint))  # a field may be "keys"
        for name in self._spec:
            if name not in names:
                raise KeyError(f'{self.path}: the datapoint has no field "{name}" '
                               f'(datapoint {len(self)})')
        for name in names:
            if name not in self._spec:
                raise KeyError(f'{self.path}: the spec has no field {name!r} '
                               f'(datapoint {len(self)})')


class ShardedDatasetWriter(DatasetWriter):
    """ShardedDatasetWriter(directory, spec, encoders=bags.encoders,
    shard_size=10 * bags.GB, shard_length=None, shard_start=0, shard_step=1, *,
    existing='refuse', checksum=False, keep_idx=False, sync=False, flush_seconds=1)

    Like DatasetWriter, but writes shards. A shard ends when its Bags reach shard_size bytes, or
    shard_length datapoints. Worker W of K writes the shards W, W + K, ...: pass W as
    shard_start, and K as shard_step (or shard_stop). existing='append': add shards for new
    inputs.
    """

    def __init__(self, directory, spec, encoders=encoders, shard_size=10 * GB,
                 shard_length=None, shard_start=0, shard_step=1, *, shard_stop=0, **options):
        options.update(_worker(shard_start, shard_step, shard_stop),
                       shard_size=_limit(shard_size), shard_length=_limit(shard_length))
        if not shard_stop and shard_step in (0, 1):
            options['shard_step'] = 1  # write shards even without a limit
        super().__init__(directory, spec, encoders, **options)


for _class in (Column, DataError, Drawn, Index, Loader, Rows):
    _class.__module__ = 'bags'
