"""The API of granular, versions 0.16 to 0.22, over bags. The arguments tell which version
is meant. What differs from granular is listed in README.md."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import bags
from bags.granular import sources
from bags.granular.loader import Loader

__all__ = ['BagReader', 'BagWriter', 'DatasetReader', 'DatasetWriter', 'Loader',
           'ShardedDatasetReader', 'ShardedDatasetWriter', 'decoders', 'encoders', 'sources']

_Path = str | os.PathLike[str]
_Bytes = bytes | bytearray | memoryview
_Codecs = Mapping[str, Any] | None
_NAMES = 'bytes utf8 msgpack int i64 u64 array tree jpg png mp4 webm'.split()
encoders = {name: bags.encoders[name] for name in _NAMES if name in bags.encoders}
decoders = {name: bags.decoders[name] for name in _NAMES if name in bags.decoders}


def _is_path(object):
    return isinstance(object, (str, os.PathLike))


def _index_of(bag):
    return os.path.abspath(os.path.splitext(bag)[0] + '.idx')


def _content(source):
    if not _is_path(source) and not hasattr(source, 'open'):
        return source
    with open(source, 'rb') if _is_path(source) else source.open('rb') as file:
        return file.read()


def _check_decoders(codecs, spec):
    for text in () if codecs is None or hasattr(codecs, '__missing__') else spec.values():
        kind = str(text).removesuffix('[]')
        if kind not in codecs and kind.partition('(')[0] not in codecs:
            raise KeyError(f'no decoder for type "{text}"')


class BagWriter(bags.BagWriter):
    """Write a Bag: BagWriter(path); also version=1 (0.20), idx_path (0.22).

    With idx_path the file NAME.idx stays, so that granular 0.22 reads the Bag too.
    FileExistsError: the file exists. ValueError: version=2, or an idx_path elsewhere.
    """

    def __init__(self, filepath: _Path | BinaryIO | None = None, version: int | _Path | None = None,
                 idx_path: _Path | None = None, *, bag_path: _Path | None = None, **options: Any):
        filepath = bag_path if filepath is None else filepath
        if _is_path(version):  # 0.22: BagWriter(bag_path, idx_path)
            version, idx_path = None, version
        if version not in (None, 1):
            raise ValueError(f'version={version!r} (expected 1, which all versions read)')
        if idx_path is not None:
            if os.path.abspath(idx_path) != _index_of(filepath):
                raise ValueError(f'{idx_path}: not next to its Bag ({_index_of(filepath)})')
            options['keep_idx'] = True
        super().__init__(filepath, **options)


class BagReader(bags.BagReader):
    """Read a Bag of any version: BagReader(path or bytes); the cache options do nothing.

    0.22: idx_source=path or bytes; if it is not NAME.idx next to NAME.bag, both are read
    into memory. single_file=True ignores NAME.idx.
    """

    def __init__(self, source: _Path | _Bytes | None = None,
                 idx_source: _Path | _Bytes | bool | None = None, cache_index: bool = True,
                 cache_data: bool = False, single_file: bool = False, *,
                 bag_source: _Path | _Bytes | None = None, **options: Any):
        source = bag_source if source is None else source
        if isinstance(idx_source, bool):  # 0.16 to 0.21: BagReader(source, cache_index)
            idx_source = None
        if idx_source is not None and single_file:
            raise ValueError('idx_source and single_file are mutually exclusive')
        if idx_source is None:
            if not _is_path(source) or single_file and os.path.exists(_index_of(source)):
                source = _content(source)
        elif not (_is_path(source) and _is_path(idx_source) and
                  os.path.exists(_index_of(source)) and
                  os.path.samefile(idx_source, _index_of(source))):
            blobs, ends = memoryview(_content(source)), memoryview(_content(idx_source))
            ends = ends[:len(ends) // 8 * 8]  # a torn entry is ignored
            size = int.from_bytes(ends[-8:], 'little')
            if size > len(blobs):
                raise bags.DataError(f'a Bag of {len(blobs)} bytes (its index: {size})')
            source = b''.join((blobs[:size], bytes(8), ends))
        super().__init__(source, **options)


class DatasetWriter(bags.DatasetWriter):
    """Write a dataset. encoders: {type: function of a value to bytes}, or None: bytes.

    KeyError: a type has no encoder. FileExistsError: the directory exists (existing='append' and
    existing='resume' continue a dataset).
    """

    def __init__(self, directory: _Path, spec: Mapping[str, str], encoders: _Codecs,
                 **options: Any):
        super().__init__(directory, spec, encoders, **options)


class ShardedDatasetWriter(bags.ShardedDatasetWriter):
    """Write shards of shardlen datapoints, as worker shardstart of shardstep workers.

    ValueError: shardstart or shardstep without shardlen.
    """

    def __init__(self, directory: _Path, spec: Mapping[str, str], encoders: _Codecs,
                 shardlen: int | None = None, shardstart: int = 0, shardstep: int = 1,
                 **options: Any):
        if (shardstart != 0 or shardstep != 1) and not shardlen:
            raise ValueError('shardstart and shardstep require shardlen')
        super().__init__(directory, spec, encoders, shard_size=None, shard_length=shardlen,
                         shard_start=shardstart, shard_step=shardstep, **options)


class DatasetReader(bags.DatasetReader):
    """Read a dataset. decoders: {type: function of bytes}, or None: bytes.

    reader[i], reader[i, mask]: {field: value}. mask: {field: True, False, or a range of
    items}, or a tuple of fields. reader[a:b], reader[a:b, mask]: {field: [values]}.
    cache_index, cache_keys and parallel do nothing. KeyError: a type has no decoder.
    """

    def __init__(self, directory: _Path, decoders: _Codecs, cache_index: bool = True,
                 cache_keys: Sequence[str] = (), parallel: bool = False, **options: Any):
        super().__init__(directory, decoders, **options)
        try:
            if not isinstance(cache_keys, (tuple, list)):
                raise TypeError(f'cache_keys: {cache_keys!r} (expected a tuple or list)')
            for name in cache_keys:
                if name not in self.spec and name != 'refs':
                    raise KeyError(f'cache_keys: no field "{name}"')
            _check_decoders(decoders, self.spec)
        except BaseException:
            self.close()
            raise

    def available(self, index: int) -> dict[str, bool | range]:
        """The mask of all that a datapoint has: {field: True, or range(its items)}."""
        return {name: range(self.items(index, name)) if kind.endswith('[]') else True
                for name, kind in self.spec.items()}


class ShardedDatasetReader(DatasetReader):
    """Read shards shardstart, shardstart + shardstep, ..., as a DatasetReader."""

    def __init__(self, directory: _Path, decoders: _Codecs, cache_index: bool = True,
                 cache_keys: Sequence[str] = (), parallel: bool = False, shardstart: int = 0,
                 shardstep: int = 1, **options: Any):
        super().__init__(directory, decoders, cache_index, cache_keys, parallel,
                         shard_start=shardstart, shard_step=shardstep, **options)
