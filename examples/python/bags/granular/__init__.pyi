import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import bags
from bags.granular import sources as sources
from bags.granular.loader import Loader as Loader

_Path = str | os.PathLike[str]
_Bytes = bytes | bytearray | memoryview
_Codecs = Mapping[str, Callable[[Any], Any] | None] | None
_Rows = slice | range
_Mask = Mapping[str, bool | slice | range] | Sequence[str]

encoders: dict[str, Callable[..., bytes]]
decoders: dict[str, Callable[..., Any]]

class BagWriter(bags.BagWriter):
    def __init__(self, filepath: _Path | BinaryIO | None = None,
                 version: int | _Path | None = None, idx_path: _Path | None = None, *,
                 bag_path: _Path | None = None, **options: Any) -> None: ...

class BagReader(bags.BagReader):
    def __init__(self, source: _Path | _Bytes | None = None,
                 idx_source: _Path | _Bytes | bool | None = None,
                 cache_index: bool = True, cache_data: bool = False,
                 single_file: bool = False, *, bag_source: _Path | _Bytes | None = None,
                 **options: Any) -> None: ...

class DatasetWriter(bags.DatasetWriter):
    def __init__(self, directory: _Path, spec: Mapping[str, str], encoders: _Codecs,
                 **options: Any) -> None: ...

class ShardedDatasetWriter(bags.ShardedDatasetWriter):
    def __init__(self, directory: _Path, spec: Mapping[str, str], encoders: _Codecs,
                 shardlen: int | None = None, shardstart: int = 0, shardstep: int = 1,
                 **options: Any) -> None: ...

class DatasetReader(bags.DatasetReader):
    def __init__(self, directory: _Path, decoders: _Codecs, cache_index: bool = True,
                 cache_keys: Sequence[str] = (), parallel: bool = False,
                 **options: Any) -> None: ...
    def __getitem__(
        self, index: int | _Rows | tuple[int | _Rows, _Mask]) -> dict[str, Any]: ...
    def available(self, index: int) -> dict[str, bool | range]: ...

class ShardedDatasetReader(DatasetReader):
    def __init__(self, directory: _Path, decoders: _Codecs, cache_index: bool = True,
                 cache_keys: Sequence[str] = (), parallel: bool = False,
                 shardstart: int = 0, shardstep: int = 1, **options: Any) -> None: ...
