"""Datasets in the Bag and Bags formats: the API of the package `bags` 0.5.1, in C.

    with bags.DatasetWriter('pets', {'label': 'int(4)', 'words': 'utf8[]'}) as writer:
        writer.append({'label': 7, 'words': ['a', 'cat']})
    with bags.DatasetReader('pets') as reader:
        print(reader[0])
"""
import atexit
import copy
import math
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping

from . import _core
from ._core import DataError
from .arrays import Column, stream
from .closable import Closable, Dataset
from .codecs import build, choose, complete, decoders, encoders
from .loader import Drawn, Loader
from .options import pack, suggest
from .storage import hooks, writable
from .tools import (Index, build_index, checksum, diff, finalize, recover, stats, verify,
                    write_zip)

__all__ = ['BagReader', 'BagWriter', 'Column', 'DataError', 'DatasetReader', 'DatasetWriter',
           'Drawn', 'GB', 'Index', 'Loader', 'ShardedDatasetReader', 'ShardedDatasetWriter',
           'build', 'build_index', 'checksum', 'decoders', 'diff', 'encoders', 'finalize', 'recover', 'stats',
           'verify', 'write_zip']
__version__ = '0.5.1'
GB = 1024 ** 3


def _rebuild(kind, base, args, options):
    """What a pickle calls: a subclass may have another __init__ than its base."""
    reader = kind.__new__(kind)
    base.__init__(reader, *args, **options)
    return reader


def _fixed(path, storage):
    """The path in a pickle: after chdir it still leads there."""
    path = os.fsdecode(path)
    local = '://' not in path and (storage is None or isinstance(storage, dict))
    return os.path.join(os.getcwd(), path) if local and not os.path.isabs(path) else path


def _worker(start, step, stop):
    """What differs from the defaults, 0 of 1. shard_stop is the name of C for shard_step."""
    given = ('shard_start', start, 0), ('shard_step', step, 1), ('shard_stop', stop, 0)
    return {name: value for name, value, default in given if value != default}


def _limit(number):
    """A limit of shards; None: 0. A float, such as 0.5 * GB, is reached by the next integer."""
    if isinstance(number, float):
        number = 0 if number == math.inf else math.ceil(number) if number >= 0 else -1
    return number or 0


# Open files of writers, by folder, and these writers. Not attributes: when a cycle is freed,
# a file may be closed before its writer.
_files, _writers = {}, weakref.WeakSet()


@atexit.register
def _close_writers():
    for writer in list(_writers):
        writer.close()


class BagReader(Closable, _core.BagReader):
    """BagReader(source, cache_index=True, *, no_mmap=False, allow_empty_file=False,
    unfinished='refuse', verify_checksums=False, storage=None)

    A Bag: r[i] is blob i as bytes, r[2:5] a list of them, len(r) their number.

    source is a path, bytes, or an open binary file, which is read into memory.
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
        """r[2:5], clamped like the slice of a list; C calls it."""
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
        """Another reader of the same Bag."""
        return copy.copy(self)

    def __reduce__(self):
        return _rebuild, (type(self), BagReader, *self._arguments), vars(self)


class BagWriter(Closable, _core.BagWriter):
    """BagWriter(path, *, keep_idx=False, sync=False, checksum=False, flush_seconds=1)

    Create a Bag, which must not exist (FileExistsError).

    flush_seconds: an append flushes if the last flush is as old, so that a process that is
    killed loses no more; 0: never. path may be an open binary file: it is written, and closed, by close(). sync: close
    waits for stable storage. A writer that is dropped is closed.
    """

    _folder, _unit = None, 'blobs'

    def __init__(self, path, *, sync=False, flush_seconds=1, **options):
        file = path if hasattr(path, 'write') and not hasattr(path, '__fspath__') else None
        if file:
            if sync or options.get('keep_idx') or options.get('checksum'):
                raise ValueError(f'{path}: an open file is not synchronized, and has no other files '
                                 'next to it: pass a path')
            file.write(b'')  # not of text, nor read-only
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
            if file and self.closed:  # not in the child of a fork
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

    A dataset, sharded or not: r[i] is datapoint i as a dict of values.

    r[i, mask] is a part of it: mask is a dict of field names, each True, False or, for
    sequences, a range; of videos the frames, a range or a list; or a tuple of names. r[2:5],
    r[2:5, mask]: {name: [values]}.
    decoders maps types to functions of a blob; None: bytes. Large arrays are read-only and
    over the map. Threads may share a reader; it can be pickled. The directory may be in a
    .zip or .tar (pets.zip/train), or a URL (http, https, s3; storage: a dict with key,
    secret, token, region, endpoint, user, query, ca_file, and cache, a directory that keeps
    what was read, up to cache_size bytes); or storage is a file system of fsspec.
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
        """Another reader of the same dataset."""
        return copy.copy(self)

    def _rows(self, rows, *masks):
        """r[2:5] and r[2:5, mask]: {name: [values]}; C calls it."""
        length = len(self)
        points = range(length)[rows] if isinstance(rows, slice) else rows
        if points.step != 1:
            raise ValueError(f'{self.path}: {rows} has another step than 1; read each '
                             'datapoint with an int')
        if points and not (0 <= points.start and points.stop <= length):
            raise IndexError(f'{self.path}: {rows} out of range (length {length})')
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
        return {name: self.values(name, points.start, points.stop) for name in mask}

    def values(self, name, start=0, stop=None):
        """The values of a field in datapoints start to stop, clamped like a slice, as a list; of
        a sequence a list of lists."""
        points = range(len(self))[start:stop]
        return self._values(self._field(name), points.start, max(points.start, points.stop))

    def _check(self, names):
        """KeyError for the first that is no field's; C calls it."""
        for name in names:
            self._field(name)

    def _refuse(self, name):
        """What C calls with a name that is no field's."""
        if not isinstance(name, str):
            raise TypeError(f'the name of a field must be a str, not {type(name)}')
        raise KeyError(f'{self.path}: field "{name}": unknown; {suggest(name, self.spec)}')

    def index(self, name):
        """The index of a field, which build_index has made: an Index."""
        return Index(self._source, self._field(name), self.path, name)

    def column(self, name):
        """A field of all datapoints as one read-only array: see Column."""
        return Column(self._source, self._field(name))

    def __arrow_c_stream__(self, requested_schema=None):
        """The dataset as a stream of Arrow: a batch for each shard."""
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

    Create a dataset, which must not exist (FileExistsError). spec: {name: type}.
    encoders maps types to functions of a value that return bytes; None: values are
    bytes. "float32" is short for "array(float32)". KeyError: it lacks a type.
    existing='resume': continue what a crashed writer left, after `resumed` datapoints.
    checksum: of every blob. keep_idx: granular 0.22 reads it.
    sync: close waits for stable storage. flush_seconds: an append flushes if the last flush
    is as old, so that a process that is killed loses no more; 0: never. A writer that is
    dropped, or whose `with` ends by
    an exception, is closed: what was appended is then a complete dataset.
    """

    def __init__(self, directory, spec, encoders=encoders, *, sync=False, flush_seconds=1,
                 **options):
        if not isinstance(spec, Mapping):
            raise TypeError(f'spec: {spec!r} (expected a dict of names and types)')
        if not all(isinstance(text, str) for pair in spec.items() for text in pair):
            raise TypeError(f'{directory}: spec: a name and a type must be str')
        writable(directory)
        self._spec = dict(sorted(complete(spec.items(), encoders)))
        super().__init__(directory, choose(self._spec.items(), encoders, False, directory)[1],
                         pack('writer', {'sync': sync, 'flush_seconds': flush_seconds, **options},
                              f'{directory}: '))

    def _check(self, datapoint):
        """KeyError if a datapoint has other fields; C calls it."""
        names = dict.fromkeys(type(datapoint).keys(datapoint))  # a field may be "keys"
        for name in self._spec:
            if name not in names:
                raise KeyError(f'{self.path}: the datapoint has no field "{name}"')
        for name in names:
            if name not in self._spec:
                raise KeyError(f'{self.path}: the spec has no field {name!r}')


class ShardedDatasetWriter(DatasetWriter):
    """ShardedDatasetWriter(directory, spec, encoders=bags.encoders,
    shard_size=10 * bags.GB, shard_length=None, shard_start=0, shard_step=1, *,
    existing='refuse', checksum=False, keep_idx=False, sync=False, flush_seconds=1)

    Like DatasetWriter, in shards: one ends when its Bags reach shard_size bytes, or
    shard_length datapoints. Worker W of K writes the shards W, W + K, ...: shard_start
    is W, shard_step (or shard_stop) K. existing='append': add shards of new
    inputs.
    """

    def __init__(self, directory, spec, encoders=encoders, shard_size=10 * GB,
                 shard_length=None, shard_start=0, shard_step=1, *, shard_stop=0, **options):
        options.update(_worker(shard_start, shard_step, shard_stop),
                       shard_size=_limit(shard_size), shard_length=_limit(shard_length))
        if not shard_stop and shard_step in (0, 1):
            options['shard_step'] = 1  # shards, also without a limit
        super().__init__(directory, spec, encoders, **options)


for _class in (Column, DataError, Drawn, Index, Loader):
    _class.__module__ = 'bags'
