"""Datasets in the Bag and Bags formats: the API of the package `bags` 0.5.1, in C.

    with bags.DatasetWriter('pets', {'label': 'int(4)', 'words': 'utf8[]'}) as writer:
        writer.append({'label': 7, 'words': ['a', 'cat']})
    with bags.DatasetReader('pets') as reader:
        print(reader[0])
"""
import atexit
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping

from . import _core
from ._core import (BagReader, Column, DataError, DatasetReader, Index, build_index,
                    checksum, finalize, recover, verify, write_zip)

__all__ = ['BagReader', 'BagWriter', 'Column', 'DataError', 'DatasetReader', 'DatasetWriter',
           'GB', 'Index', 'Loader', 'ShardedDatasetReader', 'ShardedDatasetWriter',
           'build_index', 'checksum', 'decoders', 'encoders', 'finalize', 'recover', 'verify',
           'write_zip']
__version__ = '0.5.1'
GB = 1024 ** 3

encoders = {name: _core.Codec(name, False) for name in _core.codec_names}
decoders = {name: _core.Codec(name, True) for name in _core.codec_names}


class BagWriter(_core.BagWriter):
    __doc__ = _core.BagWriter.__doc__ + '\n\npath may be an open binary file: it is ' \
        'written, and closed, by close().'
    _file = None

    def __init__(self, path, **options):
        if not hasattr(path, 'write') or hasattr(path, '__fspath__'):
            return super().__init__(path, **options)
        folder = tempfile.mkdtemp(prefix='bags-')
        self._file, self._folder = path, folder
        super().__init__(os.path.join(folder, 'x.bag'), **options)

    def close(self):
        super().close()
        file, self._file = self._file, None
        if file:
            with open(os.path.join(self._folder, 'x.bag'), 'rb') as bag:
                shutil.copyfileobj(bag, file)
            shutil.rmtree(self._folder)
            file.close()


class ShardedDatasetReader(DatasetReader):
    __doc__ = DatasetReader.__doc__


class DatasetWriter(_core.Writer):
    """DatasetWriter(directory, spec, encoders=bags.encoders, *, resume=False,
    checksum=False, keep_idx=False, sync=False)

    Create a dataset, which must not exist (FileExistsError). spec: {name: type}.
    encoders maps types to functions of a value that return bytes; None: values are
    bytes. resume: continue what a crashed writer left, after `resumed` datapoints.
    checksum: of every blob. keep_idx: granular 0.22 reads it. sync: close waits for
    stable storage. A writer that is dropped is closed.
    """

    def __init__(self, directory, spec, *args, **options):
        if len(args) > 1:
            raise TypeError('directory, spec and encoders are the positional arguments')
        super().__init__(directory, spec, *args, **options)


class ShardedDatasetWriter(_core.Writer):
    """ShardedDatasetWriter(directory, spec, encoders=bags.encoders,
    shard_size=10 * bags.GB, shard_length=None, shard_start=0, shard_step=1, *,
    resume=False, append=False, checksum=False, keep_idx=False, sync=False)

    Like DatasetWriter, in shards: one ends when its Bags reach shard_size bytes, or
    shard_length datapoints. Worker W of K writes the shards W, W + K, ...: shard_start
    is W, shard_step (or shard_stop) K. append: add shards of new inputs.
    """

    def __init__(self, directory, spec, encoders=encoders, shard_size=10 * GB,
                 shard_length=None, shard_start=0, shard_step=1, **options):
        step = options.pop('shard_stop', shard_step)
        super().__init__(directory, spec, encoders, shard_size, shard_length,
                         shard_start, step, sharded=True, **options)


_loaders = weakref.WeakSet()


@atexit.register
def _close_loaders():  # whose threads may call Python
    for loader in list(_loaders):
        loader.close()


class Loader(_core.Loader):
    """Loader(source, batch=32, *, fields=None, seed=0, shuffle=True, chunk=0, window=0,
    weights=None, tokens=None, drop_last=False, rank=0, ranks=0, threads=0, ahead=0,
    skip_damaged=False, prefetch=False, random_window=False, window_start=0)

    Shuffled batches of a dataset, by threads of C. One iteration is one epoch, the next
    one the next; len() is the number of batches. A batch is a dict: numbers and arrays
    whose type states a shape are arrays (N, *shape), sequences of them lists of arrays,
    texts and bytes lists, everything else a list of arrays or bytes.

    source: a path, a DatasetReader, or a list of them. batch: datapoints, of all ranks
    together; rank loads its slice of ranks. fields: names, or {name: options}:
    width, height, channels, crop ('none', 'center', 'random'), resize, filter
    ('bilinear', 'bicubic'), flip, nchw, scaled, orient, dtype, shape, mean, std, window,
    stride, or decode, a function of a blob that returns an array. The options are
    those of bags_load_field in formats/loader.h. chunk, window: shuffle chunks of
    neighbours, for disks and servers. tokens: (field, S) loads windows of S + 1 tokens of
    its documents, arrays (N, S + 1); or a dict with field, length, and others of
    bags_tokens_options: stride, bos, eos, dtype, places, parallel (names of fields),
    or pack=True: rows of entire documents, lists of arrays, and `cu_seqlens`; then
    len() is unknown, and long_documents 'split' or 'drop'.
    """

    def __init__(self, source, batch=32, *, fields=None, weights=None, tokens=None, **options):
        sources = source if isinstance(source, (list, tuple)) else [source]
        readers = [s if isinstance(s, DatasetReader) else DatasetReader(s) for s in sources]
        if fields is not None:
            fields = [fields] if isinstance(fields, str) else fields
            if not isinstance(fields, Iterable):
                raise TypeError(f'fields: {fields!r} (expected names, or a dict of them)')
            fields = {f: dict(fields[f] or {}) if isinstance(fields, Mapping) else {}
                      for f in fields}
            if not fields:
                raise ValueError('fields: none is listed')
        if tokens is not None and not isinstance(tokens, Mapping):
            tokens = dict(zip(('field', 'length'), tokens, strict=True))
        super().__init__(readers, fields, weights, tokens and dict(tokens),
                         {'batch': batch, **options})
        _loaders.add(self)

    def __iter__(self):
        super().__iter__()  # the epoch begins now
        self._iteration = object()
        return self._rest(self._iteration)

    def _rest(self, iteration):
        while self._iteration is iteration:
            try:
                batch = super().__next__()
            except StopIteration:
                return
            yield batch
        raise RuntimeError('another iteration of this Loader has begun')


for _class in (BagReader, Column, DataError, DatasetReader):
    _class.__module__ = 'bags'
