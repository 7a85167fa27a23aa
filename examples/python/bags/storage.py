"""Access to paths that are not local directories: archives, servers, fsspec file systems."""
import contextlib
import errno
import os
import posixpath
import re

from . import _core, codecs
from .options import number, placed, suggest

# Keys of fsspec info that tell versions of a file apart, if the file system has them.
_VERSIONS = ('ETag', 'etag', 'generation', 'VersionId', 'version_id', 'mtime', 'LastModified',
             'last_modified', 'modified', 'updated', 'created', 'ino')
# Options for servers, in the order that C expects.
_TEXTS = 'query user key secret token region endpoint ca_file cache'.split()


class FileSystem:
    """An fsspec file system, as called by the C hooks in storage.c."""

    def __init__(self, fs):
        if not all(hasattr(fs, name) for name in ('info', 'ls', 'cat_file')):
            raise TypeError(f'storage: {fs!r} (expected a dict, or a file system of fsspec)')
        self.fs = fs

    def __call__(self, method, *args):
        try:
            return 0, getattr(self, method)(*args)
        except Exception as error:
            missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
            known = getattr(error, 'errno', None)
            known = known if isinstance(known, int) and known > 0 else 0
            return known or (errno.ENOENT if missing else errno.EIO), repr(error)

    def forget(self, path):
        """Drop cached information about a path, since it may be outdated."""
        with contextlib.suppress(Exception):
            self.fs.invalidate_cache(path)

    def info(self, path, fresh):
        """(is it a file, size, a number for its version). fresh: bypass the cache."""
        if fresh:
            self.forget(path)
        info = self.fs.info(path)
        version = hash(repr([info.get(name) for name in _VERSIONS])) % 2 ** 64
        file = info['type'] != 'directory'
        return file, number(info['size']) if file else 0, version

    def read(self, path, start, stop, *opened):
        data = bytes(self.fs.cat_file(path, start, stop))
        if self.info(path, True)[1:] != opened:
            raise OSError(errno.ESTALE, 'another version replaced it')
        return data

    def list(self, path):
        self.forget(path)
        names = (posixpath.basename(name.rstrip('/')) for name in self.fs.ls(path, detail=False))
        return [name for name in names if name]


def _server(options):
    known = (*_TEXTS, 'cache_size')
    for name, value in options.items():
        if name not in known:
            raise TypeError(f'storage: {name}: unknown option; {suggest(str(name), known)}')
        if name in _TEXTS and not isinstance(value, str):
            raise TypeError(f'storage: {name}: {value!r} is not a str')
    if options.get('key') and not options.get('secret'):
        raise ValueError('storage: key without secret')
    try:
        size = number(options.get('cache_size', 0))
    except (TypeError, ValueError) as error:
        raise placed(error, 'storage: cache_size') from None
    return *(options.get(name) for name in _TEXTS), size


def _archive(path):
    """The archive at the start of a path: pets.zip for pets.zip/train."""
    start = 0
    while (dot := path.find('.', start)) >= 0:
        start, name = dot + 1, path[:dot + 4]
        if name[dot:] in ('.zip', '.tar') and path[dot + 4:dot + 5] in ('', '/') and (
                '://' in name or os.path.isfile(name)):
            return name
    return None


def shown(path):
    """The path for messages: parts of a URL with a user or a query may be secret."""
    return re.sub('(?<=://)(?=.*[@?]).*', '...', os.fsdecode(path))


def local(path):
    """The path as bytes. Raises ValueError for a URL."""
    text = os.fsdecode(path)
    if '://' in text:
        raise ValueError(f'{shown(text)}: a URL, but a local path is required; `bags copy` copies datasets '
                         'from servers, and to s3://')
    return os.fsencode(path)


def writable(path):
    """The path of an output, as bytes. Raises ValueError for a URL or an archive."""
    text = os.fsdecode(path)
    if text.rstrip('/').endswith(('.zip', '.tar')) or _archive(text):
        raise ValueError(f'{text}: an archive, which is only read; choose another name, and '
                         'bags.write_zip makes a .zip of a dataset')
    return local(path)


def hooks(path, storage, tool=False, part_size=0, read_ahead=True, catalogues=True):
    """The _core.Storage for reading a path; None for local files. storage: None, server options,
    or an fsspec file system. tool: the operation may take long. part_size: of uploads."""
    path = os.fsdecode(path)
    if storage is not None and not isinstance(storage, dict):
        return _core.Storage(FileSystem(storage), None, None, tool)
    server, archive = path.startswith(('http://', 'https://', 's3://')), _archive(path)
    if '://' in path and not server:
        raise ValueError(f'{path}: unknown protocol (http, https and s3 are known); for others pass '
                         'storage=fsspec.filesystem(...)')
    if not server and not archive:
        return None
    if server and not codecs.build['http']:
        raise ValueError(f'{path}: {codecs.lacking("http")}')
    texts = (*_server(storage or {}), part_size, read_ahead, catalogues) if server else None
    return _core.Storage(None, texts, archive, tool)
