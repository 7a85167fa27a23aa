"""import_, images and export: datasets from and to the formats of other programs."""
import contextlib
import os
import tempfile
import warnings
from collections.abc import Mapping

from . import _core, codecs
from .commands import _Sources
from .options import flags, number, pack, stepping, suggest
from .storage import hooks, local, writable

_SOURCE = ('layout', 'header', 'dtype', 'separator', 'document', 'skip_damaged', 'decode', 'max_pixels')
_WRITER = ('shard_size', 'shard_length', 'shard_start', 'shard_step', 'shard_stop', 'checksum',
           'keep_idx', 'sync', 'flush_seconds')
_OF = {'layout': 'hdf5', 'header': 'csv', 'dtype': 'tokens', 'separator': 'tokens',
       'document': 'tokens', 'classes': 'images', 'skip_damaged': 'images', 'max_pixels': 'images',
       'decode': 'mcap'}


def _unknown(call, options, known):
    """Raise TypeError for an option that is not known. The message may suggest any of the call's."""
    for name in options:
        if name not in known:
            raise TypeError(f'{name}: unknown option; {suggest(name, [*call.__kwdefaults__, *known])}')


def _renamed(what, fields):
    """A list of names, or a dict of names and new names, as a dict."""
    named = fields if isinstance(fields, dict) else {name: name for name in fields}
    if isinstance(fields, str) or not all(isinstance(text, str) for pair in named.items()
                                          for text in pair):
        raise TypeError(f'{what}: {fields!r} (expected a list of names, or a dict of new names)')
    if len(named) != len(fields) or len(set(named.values())) != len(named):
        raise ValueError(f'{what}: {fields!r} has a duplicate name')
    return named


def _known_type(where, kind):
    """Raise TypeError for a type that this build cannot check: see any_type of import_."""
    _, name, args = codecs.parse(kind)
    if name not in codecs.encoders:
        raise TypeError(f'{where}: {codecs.missing(kind, False)}; any_type=True accepts it, unchecked')
    if name == 'zstd' and args:
        _known_type(where, args[0])


class _Source:
    """An open source, and the fields of the dataset that it becomes."""

    def __init__(self, path, importer, options, fields, types, any_type, classes):
        self.path, self.images = path, importer == 'images'
        for name in options:
            if name in _OF and _OF[name] != importer:
                raise TypeError(f'{path}: {name}: an option of {_OF[name]} only (this is {importer})')
        if classes is not None and not self.images:
            raise TypeError(f'{path}: classes: an option of images only (this is {importer})')
        max_pixels = number(options.pop('max_pixels', 0))
        how = {**options, 'has_separator': 'separator' in options,
               'class_numbers': classes is not None}
        if types is not None and not (isinstance(types, Mapping) and all(
                isinstance(text, str) for pair in types.items() for text in pair)):
            raise TypeError(f'{path}: type: {types!r} (expected a dict of names and types)')
        names = None if fields is None else _renamed('fields', fields)
        olds = {new: old for old, new in (names or {}).items()}
        types = {olds.get(name, name): kind for name, kind in (types or {}).items()}
        for name, kind in types.items():
            if not any_type and not (self.images and name == 'image'):
                _known_type(f'{path}: type: field "{name}"', _core.complete(kind))
        number_of = _core.formats()[0].index(importer)
        packed = pack('source', how, f'{path}: ')
        try:
            (self.source, found, self.length, self.left_out, self.classes, self.notes,
             self.metadata) = _core.source(local(path), number_of, packed,
                                           types.get('image') if self.images else None,
                                           [*types.items()], max_pixels)
        except ValueError as error:
            if not self.images or 'image' in types or isinstance(error, _core.DataError):
                raise
            raise ValueError(f"{error}; pass 'jpeg', 'png' or 'webp' as the type of image to convert "
                             "them, or 'bytes' to store them without decoding") from None
        self.found = dict(found)
        self.numbers = None if classes is None else self.class_numbers(classes)
        self.plan(names, types)

    def find(self, what, name):
        """The field of the source that a name, perhaps the original one, refers to."""
        field = _core.field_name(name)
        if field not in self.found:
            raise KeyError(f'{self.path}: {what}: field "{name}": unknown; {suggest(name, self.found)}')
        return field

    def plan(self, names, types):
        """Set spec, and plans as passed to C."""
        chosen, kinds = {}, {}
        for name, new in ({name: name for name in self.found} if names is None else names).items():
            field = self.find('fields', name)
            if field in chosen:
                raise ValueError(f'{self.path}: fields: duplicate field "{field}"')
            chosen[field] = field if new == name else new
        for name, kind in types.items():
            field = self.find('type', name)
            if field in kinds:
                raise ValueError(f'{self.path}: type: duplicate field "{field}"')
            if field not in chosen:
                raise ValueError(f'{self.path}: type: field "{name}" is not among fields')
            kinds[field] = _core.complete(kind)
        self.spec, self.plans = {}, []
        order = list(self.found)
        for field, new in sorted(chosen.items(), key=lambda pair: pair[1]):
            image = self.images and field == 'image'  # the importer converts it
            converted = None if image else kinds.get(field)
            self.spec[new] = converted or self.found[field]
            self.plans.append((order.index(field), new, self.spec[new], converted,
                               self.images and field == 'label'))

    def class_numbers(self, path):
        """The number of each class of the source: its line in a file, which is written if it is
        missing."""
        import numpy as np
        if not os.path.exists(path):
            partial = f'{os.fsdecode(path)}.{os.getpid()}.partial'
            with open(partial, 'x', encoding='utf-8', errors='surrogateescape') as file:
                file.writelines(f'{name}\n' for name in self.classes)
            try:
                os.link(partial, path)  # another worker may have written it
            except FileExistsError:
                pass
            finally:
                os.unlink(partial)
        with open(path, encoding='utf-8', errors='surrogateescape') as file:
            lines = file.read().splitlines()
        for name in self.classes:
            if name not in lines:
                raise ValueError(f'{os.fsdecode(path)}: no line "{name}"')
        return np.array([lines.index(name) for name in self.classes], np.uint64).tobytes()


def _existing(resume, append):
    if resume and append:
        raise ValueError('resume and append are mutually exclusive')
    return 'resume' if resume else 'append' if append else 'refuse'


def import_(source, out=None, *, from_=None, fields=None, type=None, any_type=False, classes=None,
            dry_run=False, resume=False, append=False, checksum=True, progress=None, **options):
    """import_(source, out, *, from_=None, fields=None, type=None, any_type=False, layout='detect',
    header='detect', dtype=None, separator=None, document=0, decode=False, classes=None,
    skip_damaged=False, max_pixels=0, dry_run=False, resume=False, append=False, checksum=True,
    shard_size=0, shard_length=0, shard_start=0, shard_step=0, keep_idx=False, sync=True,
    flush_seconds=1, progress=None)

    Import a file or directory in the format of another program: see bags.formats. from_ is its
    name, if it is not recognized. Encoded values are stored unchanged. The options are those of
    `bags import`: fields is a list of names, or a dict of names and new names; header of a CSV file
    is 'yes' or True if its first line has names; type is a dict of names and other types. Text
    becomes numbers, array(DTYPE) or msgpack (from JSON), integers other integers, lists of integers
    arrays, and other bytes must be a blob of the type; any_type accepts types without a codec,
    unchecked. Images become jpeg, png, webp or bytes; those above max_pixels are errors.

    Returns a dict: spec, datapoints (written now; with dry_run, which writes nothing, those of
    the source, or None if it does not state their number), left_out (the number of things of
    each kind that no field has), notes (a list of sentences), for images their numbers, and with
    dry_run the first datapoint, as `first`: a dict in which images and videos are bytes, or None.
    Datapoints written before a failure are kept: resume=True continues the same import.
    progress: see bags.copy. It is called with the number of datapoints.
    Errors: TypeError (unknown format, or a type), ValueError (two formats are possible, or a
    value), KeyError (no such field), DataError (damaged), FileNotFoundError, FileExistsError.
    """
    from . import DatasetWriter, ShardedDatasetWriter
    _unknown(import_, options, (*_SOURCE, *_WRITER))
    any_type, dry_run, resume, append = flags(
        any_type=any_type, dry_run=dry_run, resume=resume, append=append)
    importers, path = _core.formats()[0], os.fsdecode(source)
    if from_ is None:
        from_ = importers[_core.recognize(local(source))]
    if from_ not in importers:
        raise ValueError(f'{path}: from_: {from_!r} (expected one of: {" ".join(importers)})')
    given = {name: value for name, value in options.items() if name in _SOURCE}
    if isinstance(given.get('header'), bool):
        given['header'] = 'yes' if given['header'] else 'no'
    writing = {name: value for name, value in options.items() if name in _WRITER}
    if not dry_run:
        if out is None:
            raise TypeError(f'{path}: out is missing')
        _check_out(out)
    with stepping(progress) as step:
        opened = _Source(path, from_, given, fields, type, any_type, classes)
        done = {'spec': opened.spec, 'datapoints': opened.length, 'left_out': opened.left_out,
                'notes': opened.notes}
        if dry_run:
            if step:
                step(0, opened.length or 0)
            return {**done, 'first': _first(opened)}
        shards = append or any(name.startswith('shard') for name in writing)
        kind = ShardedDatasetWriter if shards else DatasetWriter
        if shards:
            writing.setdefault('shard_size', 0)
        writer = kind(out, opened.spec, None, existing=_existing(resume, append),
                      checksum=checksum, **writing)
        worker = (writing.get('shard_start', 0),
                  writing.get('shard_step', 0) or writing.get('shard_stop', 0))
        try:
            done['datapoints'], images = _core.copy_source(
                opened.source, writer, opened.plans, *map(number, worker), writer.resumed, 0,
                bool(given.get('skip_damaged')), append, opened.numbers, step)
        except BaseException as error:
            with contextlib.suppress(ValueError, OSError, RuntimeError):
                writer.close()  # the shard stays unfinished
            if len(writer) and not append:
                error.add_note(f'{os.fsdecode(out)}: {len(writer)} datapoints are kept, resume=True '
                               'continues')
            raise
        writer.close()
        if opened.metadata and not worker[0] and not _core.describe(
                os.fsencode(out), opened.metadata, not writing.get('sync', True), False):
            opened.notes.append(f'{os.fsdecode(out)}: its info.json is kept, and does not have the '
                                f'metadata of {path}')
        return done if images is None else {**done, 'images': images}


def _first(opened):
    """The first datapoint of a source, as it would be stored."""
    from . import DatasetReader, DatasetWriter
    decoders = {**codecs.decoders, **dict.fromkeys(('jpeg', 'jpg', 'png', 'webp', 'mp4', 'webm'))}
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, 'first')
        with DatasetWriter(out, opened.spec, None) as writer:
            _core.copy_source(opened.source, writer, opened.plans, 0, 0, 0, 1, True, False,
                              opened.numbers, None)
        with DatasetReader(out, decoders) as reader:
            return reader[0] if len(reader) else None


def _check_out(out):
    text = os.fsdecode(out)
    if text.endswith('.bag'):
        raise ValueError(f'{text}: a dataset is written, not a Bag: its name must not end in .bag')
    writable(out)


def images(folder, out, *, type=None, **options):
    """images(folder, out, *, type=None, classes=None, skip_damaged=False, max_pixels=0,
    resume=False, append=False, checksum=True, shard_size=0, shard_length=0, shard_start=0,
    shard_step=0, keep_idx=False, sync=True, flush_seconds=1, progress=None)

    Import the JPEG, PNG and WebP files of a folder into the fields image, label (the folder in it
    that contains the file) and path, as they are. type converts the images to 'jpeg', 'jpeg(90)',
    'png' or 'webp'; 'bytes' keeps every file, but readers do not decode it. It is required if
    several formats occur. classes is a file of names: labels are then the numbers of their lines,
    from 0; it is written if it is missing. Returns and raises what import_ does.
    """
    _unknown(images, options, (*_WRITER, 'classes', 'skip_damaged', 'max_pixels', 'resume', 'append',
                       'progress'))
    if type is not None and not isinstance(type, str):
        raise TypeError(f'type: {type!r} (expected a str)')
    if type is not None and _core.parse(type)[1] not in ('jpeg', 'jpg', 'png', 'webp', 'bytes'):
        raise ValueError(f'type: {type!r} is not jpeg, png, webp or bytes')
    return import_(folder, out, from_='images', type=type and {'image': type}, **options)


def formats():
    """The names of the formats that this build imports, and of those that it exports, in a
    dict."""
    importers, exporters = _core.formats()
    return {'import': importers, 'export': [name for name, _ in exporters]}


def _target(out, to):
    """The number of the exporter for a path."""
    exporters = _core.formats()[1]
    names = [name for name, _ in exporters]
    text = os.fsdecode(out)
    ending = os.path.splitext(text.rstrip('/'))[1].lower()
    if to == 'arrow' or to is None and ending in ('.arrow', '.feather'):
        raise ValueError(f'{text}: Arrow files are not written: use to="parquet", or '
                         'bags.sql(path, query).arrow(), whose arrays need no file')
    found = [name for name, endings in exporters if ending and ending in endings.split()]
    if to is not None and to not in names:
        raise ValueError(f'{text}: to: {to!r} (expected one of: {" ".join(names)}; JSON lines are '
                         'written by `python -m bags export`)')
    if to is None and not found:
        raise ValueError(f'{text}: {f"unknown ending {ending}" if ending else "no ending"}; pass to=, '
                         f'one of: {" ".join(names)}')
    if to is not None and found and to not in found:
        raise ValueError(f'{text}: ends like {found[0]}, but to is {to}')
    return names.index(to or found[0]), to or found[0]


def export(path, out, *, to=None, fields=None, rows=None, where=None, key=None, label=None,
           allow_gaps=False, unfinished='refuse', verify_checksums=False, storage=None, progress=None,
           **options):
    """export(path, out, *, to=None, fields=None, rows=None, where=None, key=None, label=None,
    layout='rows', fps=None, shard_size=0, shard_length=0, shard_start=0, shard_step=0,
    resume=False, sync=True, allow_gaps=False, unfinished='refuse', verify_checksums=False,
    storage=None, progress=None)

    Write a dataset in the format of another program: see bags.formats. Without `to`, out's
    ending states it. The options are those of `bags export`: fields is a list of names, or a
    dict of names and new names; rows are numbers of datapoints, in the order of the export; where
    is an SQL expression; key is the field of webdataset's keys, label the field of the folders of
    images; layout is 'rows' or 'episodes', for HDF5; fps are LeRobot's frames per second, unless
    the dataset states them; allow_gaps, unfinished and verify_checksums are as in DatasetReader.
    Returns a dict: datapoints and files.

    info.json is exported to formats that have a place for it, otherwise a warning says so.
    What a format cannot hold is an error before anything is written. After another failure,
    what was exported is kept, and resume=True continues. progress: see bags.copy.
    Errors: TypeError (a field that the format cannot hold), KeyError (no such field), ValueError,
    FileExistsError, OSError.
    """
    known = [name for name in _core.structs['export'][1]]
    _unknown(export, options, known)
    exporter, to = _target(out, to)
    for name, value, of in (('key', key, ('webdataset', 'images')), ('label', label, ('images',)),
                            ('layout', options.get('layout'), ('hdf5',)),
                            ('fps', options.get('fps'), ('lerobot',))):
        if value is not None and to not in of:
            raise TypeError(f'{name}: an option of {" and ".join(of)} only (this is {to})')
    fps = options.get('fps')
    if fps is not None and (isinstance(fps, bool) or not hasattr(fps, '__float__')):
        raise TypeError(f'fps: {fps!r} is not a number')
    if fps is not None and not 0 < fps <= 1e6:
        raise ValueError(f'fps: {fps!r} is not a number above 0, and up to 1000000')
    options = {name: value for name, value in options.items()
               if value is not None or name not in ('fps', 'layout')}
    if os.fsdecode(out).startswith(('http://', 'https://', 's3://')):
        raise ValueError(f'{os.fsdecode(out)}: a URL, but a local path is required')
    reading = {'allow_gaps': allow_gaps, 'unfinished': unfinished, 'verify_checksums': verify_checksums}
    sources = _Sources(os.fsdecode(path), storage, reading)
    try:
        names = {} if fields is None else _renamed('fields', fields)
        for name in (*names, *(one for one in (key, label) if one is not None)):
            sources.first._field(name)
        if fields is not None and not names:
            raise ValueError(f'{os.fsdecode(path)}: fields: no field is named')
        chosen = sources.select(rows, where)
    finally:
        sources.close()
    with stepping(progress) as step:
        datapoints, files, dropped = _core.export_to(
            os.fsencode(path), hooks(path, storage, True), pack('reader', reading, f'{path}: '), exporter,
            os.fsencode(out), pack('export', options, f'{os.fsdecode(out)}: '), list(names.items()),
            None if chosen is None else chosen.tobytes(), key, label, step)
    if dropped:
        warnings.warn(f'{os.fsdecode(path)}: its info.json is not exported: {to} has no place for it',
                      stacklevel=2)
    return {'datapoints': datapoints, 'files': files}
