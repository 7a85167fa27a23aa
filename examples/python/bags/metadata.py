"""Metadata of datasets: info.json."""
import json
import os

from . import _core
from .options import flags
from .storage import hooks, writable


def unique(pairs):
    """A JSON object without duplicate names, as a dict."""
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError('an object has a duplicate name')
    return names


def read_info(reader, path, storage):
    """The content of info.json, as a dict."""
    text = _core.info(reader, os.fsencode(path), hooks(path, storage, True))
    if text is None:
        return {}
    try:
        found = json.loads(text, object_pairs_hook=unique)
    except ValueError as error:
        raise _core.DataError(f'{os.fsdecode(path)}: info.json: {error}') from None
    if not isinstance(found, dict):
        raise _core.DataError(f'{os.fsdecode(path)}: info.json: not a JSON object')
    return found


def info_text(path, info):
    """A dict as the content of info.json."""
    if not isinstance(info, dict):
        raise TypeError(f'{os.fsdecode(path)}: info: {info!r} (expected a dict)')
    try:
        return json.dumps(info, indent=2, ensure_ascii=False, allow_nan=False) + '\n'
    except (TypeError, ValueError) as error:
        raise type(error)(f'{os.fsdecode(path)}: info: {error}') from None


def set_info(path, info, *, sync=True):
    """Write the metadata of a local dataset: a dict of facts that do not belong to a field, such
    as class names, rates or the licence, as info.json. It replaces an existing one; the files of
    fields are unchanged. reader.info returns it; bags.copy, zip, derive and split carry it.

    Errors: TypeError, ValueError (no JSON), FileNotFoundError, OSError.
    """
    sync, = flags(sync=sync)
    _core.describe(writable(path), info_text(path, info), not sync, True)
