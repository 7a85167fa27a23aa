"""File systems of fsspec, as the hooks of C in storage.c call them."""
import contextlib
import posixpath

# What tells two versions of a file apart, where a file system has it.
_VERSIONS = ('ETag', 'etag', 'generation', 'VersionId', 'version_id', 'mtime', 'LastModified',
             'last_modified', 'modified', 'updated', 'created', 'ino')


class FileSystem:

    def __init__(self, fs):
        if not all(hasattr(fs, name) for name in ('info', 'ls', 'cat_file')):
            raise TypeError(f'storage: {fs!r} (expected a dict, or a file system of fsspec)')
        self.fs = fs

    def info(self, path, fresh):
        """(is a file, size, a number of its version); fresh: not what it remembers."""
        if fresh:
            with contextlib.suppress(Exception):
                self.fs.invalidate_cache(path)
        info = self.fs.info(path)
        version = hash(repr([info.get(name) for name in _VERSIONS])) % 2 ** 64
        file = info['type'] != 'directory'
        return file, info['size'] if file else 0, version

    def read(self, path, start, stop):
        return self.fs.cat_file(path, start, stop)

    def list(self, path):
        names = (posixpath.basename(name.rstrip('/')) for name in self.fs.ls(path, detail=False))
        return [name for name in names if name]
