"""Functions on datasets."""
import os

from . import _core


def suggest(name, names):
    """The end of a message about a name that is none of these; C calls it."""
    import difflib  # which takes long, for those who make no mistakes
    close = difflib.get_close_matches(name, names, 2)
    return f'did you mean {" or ".join(close)}?' if close else f'known are {", ".join(names)}'


def _run(name, path, other=b'', **options):
    return _core.tool(name, os.fsencode(path), other, options, None, [])


def recover(path, *, dry_run=False, keep_idx=False, sync=True, shard_start=0, shard_step=0):
    """Finish what crashed writers left; a dict of numbers of shards, datapoints and bytes."""
    return _run('recover', **locals())


def verify(path, *, storage=None, **options):
    """verify(path, *, quick=False, decode=False, allow_gaps=False, allow_empty_file=False,
    unfinished='refuse', shard_start=0, shard_step=0, max_faults=0, storage=None)

    Every fault of a dataset or Bag: a list of dicts, empty if there is none.
    """
    faults = []
    _core.tool('verify', os.fsencode(path), b'', options, storage, faults)
    return faults


def checksum(path, *, replace=False, sync=True, shard_start=0, shard_step=0):
    """Write checksums next to the Bags; a dict of numbers."""
    return _run('checksum', **locals())


def finalize(path):
    """Close the gaps between shards, as Python's bags needs; the number of shards that were
    renamed."""
    return _run('finalize', path)['renamed']


def write_zip(dataset, path):
    """Write a dataset as one zip file, which readers open as PATH."""
    _run('zip', dataset, os.fsencode(path))


def build_index(path, field):
    """Build the index of a field, for reader.index."""
    if not isinstance(field, str):
        raise TypeError(f'the name of a field must be a str, not {type(field)}')
    _run('index', path, field.encode())
