"""Commands as functions: derive, split, sql, copy, zip, index."""
import builtins
import contextlib
import errno
import itertools
import os
import re
import shutil
import warnings
from collections.abc import Mapping

from . import _core
from .arrays import is_inside
from .lines import encoders as line_encoders
from .lines import json_lines
from .loader import index_array
from .options import flags, number, numbered, pack, stepping, suggest, unpack
from .storage import hooks, local, writable
from .writing import inferred_rows


def _paths(path):
    """A path or several, as a list."""
    several = isinstance(path, (list, tuple))
    if several and not path:
        raise ValueError('path: no dataset')
    return list(path) if several else [path]


def _names(what, names, reader):
    """A list of fields that exist, without duplicates."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f'{what}: {names!r} (expected a list of names)')
    names = list(names)
    for i, name in enumerate(names):
        reader._field(name)
        if name in names[:i]:
            raise ValueError(f'{reader.path}: {what}: duplicate field "{name}"')
    return names


class _Sources:
    """The datasets that a command reads. Numbers of datapoints continue from each to the
    next."""

    def __init__(self, path, storage, options=None):
        self.storage, self.stack, self.readers, self.others = storage, contextlib.ExitStack(), [], []
        self.options = options or {}
        try:
            for one in _paths(path):
                self.readers.append(self.open(one))
        except BaseException:
            self.close()
            raise
        self.first = self.readers[0]
        self.length = sum(map(len, self.readers))

    def open(self, path):
        from . import DatasetReader
        return self.stack.enter_context(
            DatasetReader(path, None, storage=self.storage, **self.options))

    def close(self):
        self.stack.close()

    def place(self, reader):
        """As passed to C: a path, its hooks, and the version that was opened."""
        return (os.fsencode(reader.path), hooks(reader.path, self.storage, True),
                _core.facts(reader, False)[0])

    def where(self, text):
        """The numbers of the datapoints for which an expression is true."""
        import numpy as np
        if not isinstance(text, str):
            raise TypeError(f'where: {text!r} (expected an SQL expression)')
        _sql_needed()
        found, start = [], 0
        for reader in self.readers:
            with _sql_errors(reader):
                found.append(np.frombuffer(_core.where(reader, start, text), np.uint64))
            start += len(reader)
        return np.concatenate(found)

    def select(self, rows=None, where=None, exclude=None, range=None, shuffle=None):
        """The numbers of the selected datapoints, as an array; None: all."""
        if all(part is None for part in (rows, where, exclude, range, shuffle)):
            return None
        import numpy as np
        chosen = None if rows is None else self.numbers('rows', rows)
        if where is not None:
            found = self.where(where)
            chosen = found if chosen is None else chosen[np.isin(chosen, found)]
        if exclude is not None:
            chosen = np.arange(self.length, dtype=np.uint64) if chosen is None else chosen
            chosen = chosen[~np.isin(chosen, self.numbers('exclude', exclude))]
        if range is not None:
            if not isinstance(range, (slice, builtins.range)):
                raise TypeError(f'range: {range!r} (expected a slice or a range)')
            chosen = np.arange(self.length, dtype=np.uint64) if chosen is None else chosen
            if isinstance(range, builtins.range) and not is_inside(range, len(chosen)):
                raise IndexError(f'range: {range!r} out of range (length {len(chosen)})')
            chosen = chosen[range if isinstance(range, slice) else np.asarray(range, np.int64)]
        if shuffle is not None:
            chosen = np.arange(self.length, dtype=np.uint64) if chosen is None else chosen
            chosen = chosen[np.frombuffer(_core.permute(_seed('shuffle', shuffle), len(chosen)),
                                          np.uint64)]
        return chosen

    def numbers(self, what, rows):
        numbers = index_array(what, rows, self.length)
        if numbers.size and numbers.max() >= self.length:
            raise IndexError(f'{self.first.path}: {what}: index {numbers.max()} out of range '
                             f'(length {self.length})')
        return numbers

    def fields(self, fields, drop, rename):
        """The derived fields, as passed to C."""
        names = list(self.first.spec)
        if fields is not None and drop is not None:
            raise ValueError('fields and drop are mutually exclusive')
        if fields is not None:
            given = _names('fields', fields, self.first)
            names = [name for name in names if name in given]
        if drop is not None:
            given = _names('drop', drop, self.first)
            names = [name for name in names if name not in given]
        rename = dict(rename or {})
        for name in _names('rename', rename, self.first):
            if name not in names:
                raise ValueError(f'{self.first.path}: rename: the field "{name}" is left out')
            if not isinstance(rename[name], str):
                raise TypeError(f'rename: {rename[name]!r} (expected a name)')
        return [(rename.get(name, name), name, None) for name in names]


def _seed(what, value):
    if isinstance(value, bool):  # shuffle=False would shuffle with seed 0
        raise TypeError(f'{what}: {value!r} (expected a seed, which is an integer)')
    return numbered(what, value)


@contextlib.contextmanager
def _sql_errors(reader):
    """Explain errors in SQL that name a column or a table."""
    try:
        yield
    except ValueError as error:
        text, unknown = str(error), 'no such column: '
        if unknown in text:
            word = text.split(unknown)[1].rpartition('.')[2]
            raise type(error)(f"{text}; {suggest(word, reader.spec)}; text needs 'single quotes'"
                              ) from None
        if 'no such table: ' in text:
            raise type(error)(f'{text}; the dataset is the table data') from None
        raise


def _sql_needed():
    if not hasattr(_core, 'sql'):
        raise TypeError('this build has no SQL: SQLite was not found; install libsqlite3-dev and '
                        'build again')


def _out(path):
    text = os.fsdecode(path)
    if text.endswith(('.bag', '.zip')):
        raise ValueError(f'{text}: the name of a dataset must not end in .bag or .zip')
    return writable(text.rstrip('/') or text)


def _copying(sources, copy, shard_size, shard_length, unsharded, checksum, shard_step):
    """The options of the writer of a copy, and its shard_length; None, 0 for links."""
    given = {'shard_size': shard_size, 'shard_length': shard_length, 'unsharded': unsharded,
             'checksum': checksum is not None}
    for name, value in given.items():
        if value and not copy:
            raise ValueError(f'{name} needs copy=True')
    if not copy:
        return None, 0
    if unsharded and (shard_size or shard_length or shard_step > 1):
        raise ValueError('unsharded excludes shard_size, shard_length and shard_step')
    options = {'shard_size': shard_size, 'shard_length': shard_length}
    facts = [_core.facts(reader, checksum is None) for reader in sources.readers]
    if not (shard_size or shard_length or unsharded) and any(fact[2] for fact in facts):
        options.update(shard_length=max(fact[1] for fact in facts), shard_step=1)
    if shard_step > 1 and (not options['shard_length'] or shard_size):
        raise ValueError('workers copy shards of a given shard_length, without a shard_size')
    facts += [_core.facts(reader, checksum is None) for reader in sources.others]
    options['checksum'] = all(fact[3] for fact in facts) if checksum is None else checksum
    return pack('writer', options), options['shard_length']


def _at_row(error, shard, shown, row):
    """An error of a writer of added rows, which names the row instead of the writer's path."""
    place = ''.join(f'{note}: ' for note in getattr(error, '__notes__', ()))
    text = f'{place}{error.args[0]}'.removeprefix(f'{shard}: ')
    text = re.sub(r'\bdatapoint \d+', f'row {row}', text, count=1)
    return next(kind for kind in (TypeError, KeyError, ValueError) if isinstance(error, kind))(
        f'{shown}: {text}')


class _Derive:
    """What derive and split have in common: the sources, the selection and the options."""

    warned = False

    def __init__(self, path, out, *, where=None, rows=None, exclude=None, range=None,
                 shuffle=None, fields=None, drop=None, rename=None, add=None, spec=None,
                 on=None, missing='error', duplicate='error', copy=False, shard_size=0, shard_length=0,
                 unsharded=False, checksum=None, sync=True, shard_start=0, shard_step=0, storage=None, pixels=None):
        copy, unsharded, sync = flags(copy=copy, unsharded=unsharded, sync=sync)
        checksum = None if checksum is None else flags(checksum=checksum)[0]
        self.out, self.sources = _out(out), _Sources(path, storage)
        self.sync, self.start, self.pixels, self.rows_added = sync, shard_start, [], None
        try:
            sources, writer = self.sources, {'shard_start': shard_start, 'shard_step': shard_step}
            self.options = pack('derive', {**writer, 'sync': sync}, f'{os.fsdecode(out)}: ')
            if number(shard_start) >= max(number(shard_step), 1):
                raise ValueError(f'shard_start out of range ({shard_start}, shard_step is '
                                 f'{max(shard_step, 1)})')
            self.workers = number(shard_step)
            self.fields = sources.fields(fields, drop, rename)
            for name, value, known in (('missing', missing, ('error', 'drop')),
                                       ('duplicate', duplicate, ('error', 'first'))):
                if value not in known:
                    raise ValueError(f'{name}: {value!r} is none of: {" ".join(known)}')
                if value != 'error' and on is None:
                    raise ValueError(f'{name} needs on')
            if on is not None and add is None:
                raise ValueError('on needs add')
            self.join = None
            lines = isinstance(add, (str, bytes, os.PathLike)) and (
                spec is not None or os.fsdecode(add).endswith('.jsonl'))
            rows_of = add is not None and (lines or not isinstance(add, (str, bytes, os.PathLike)))
            if spec is not None and not rows_of:
                raise ValueError('spec needs add, of JSON lines or dicts')
            if rows_of and on is not None:
                raise ValueError('on needs a dataset to add: bags.write makes one of dicts')
            if lines and spec is None:
                raise ValueError(f'add: {os.fsdecode(add)} needs spec')
            if rows_of:
                self.prepare_rows(add, spec, lines)
            elif add is not None:
                self.add(add, on, missing == 'drop', duplicate == 'first')
            self.writer, self.length = _copying(sources, copy, shard_size, shard_length, unsharded,
                                                checksum, self.workers)
            self.rows = sources.select(rows, where, exclude, range, shuffle)
            if pixels is not None:
                self.pixels = self.sizes(pixels)
        except BaseException:
            self.sources.close()
            raise

    @classmethod
    def open(cls, call, path, out, options):
        known = cls.__init__.__kwdefaults__
        for name in options:
            if name not in known:
                raise TypeError(f'{name}: unknown option; {suggest(name, [*call.__kwdefaults__, *known])}')
        return cls(path, out, **options)

    def add(self, add, on, drop, first):
        """Add the fields of another dataset, by position or by the key `on`."""
        other = self.sources.open(add)
        self.sources.others.append(other)
        place, key = self.sources.place(other), None
        if on is not None:
            if not isinstance(on, str):
                raise TypeError(f'on: {on!r} (expected the name of a field)')
            own, equals, key = on.partition('=')
            key = key if equals else own
            self.sources.first._field(own)
            other._field(key)
            self.join = (*place, own, key, drop, first)
        self.fields += [(name, None, place) for name in other.spec if name != key]

    def prepare_rows(self, add, spec, lines):
        """Add the fields of JSON lines, or of dicts: a row for each datapoint, in their order."""
        if spec is not None and not isinstance(spec, Mapping):
            raise TypeError(f'spec: {spec!r} (expected a dict of names and types)')
        if lines:
            spec = {name: _core.complete(kind) for name, kind in spec.items()}
            rows, codecs, shown = json_lines(local(add), spec), line_encoders(spec), os.fsdecode(add)
        else:
            rows, spec, codecs, shown = *inferred_rows('add', add, spec), 'add'
        for name in spec:
            if any(name == field[0] for field in self.fields):
                raise KeyError(f'{self.sources.first.path}: duplicate field "{name}": {shown} has it, too; '
                               'rename it, or leave it out')
        self.rows_added = rows, spec, codecs, shown
        place = self.lines_path(), None, 0
        self.fields += [(name, None, place) for name in sorted(spec)]

    def lines_path(self):
        return self.out + b'.lines' + (b'-%d' % self.start if self.workers > 1 else b'')

    @contextlib.contextmanager
    def encoded(self):
        """Write the rows of prepare_rows to OUT.lines, in shards like those of the sources, and
        remove it at the end."""
        from . import DatasetWriter
        if self.rows_added is None:
            yield
            return
        rows, spec, codecs, shown = self.rows_added
        if os.path.lexists(self.out) and self.workers < 2:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(self.out))
        out, number_of, found = self.lines_path(), 0, 0
        os.mkdir(out)
        try:
            for reader in self.sources.readers:
                for length in _core.shard_lengths(reader):
                    shard = os.path.join(os.fsdecode(out), f'{number_of:06}')
                    with DatasetWriter(shard, spec, codecs, sync=self.sync) as writer:
                        for row in itertools.islice(rows, length):
                            try:
                                writer.append(row)
                            except (TypeError, ValueError, KeyError) as error:
                                raise _at_row(error, shard, shown, found) from None
                            found += 1
                    number_of += 1
            found += sum(1 for _ in rows)
            if found != self.sources.length:
                raise ValueError(f'{shown}: has {found} rows, but {self.sources.first.path} has '
                                 f'{self.sources.length} datapoints')
            yield
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def sizes(self, pixels):
        """pixels, as a list of (name, width, height)."""
        if not isinstance(pixels, Mapping):
            raise TypeError(f'pixels: {pixels!r} (expected a dict of names and (width, height))')
        kept, sizes = [field[1] for field in self.fields if field[2] is None], []
        for name in _names('pixels', pixels, self.sources.first):
            if name not in kept:
                raise ValueError(f'{self.sources.first.path}: pixels: the field "{name}" is left '
                                 'out')
            try:
                width, height = map(number, pixels[name])
            except (TypeError, ValueError):
                raise TypeError(f'pixels: {name}: {pixels[name]!r} (expected (width, height))'
                                ) from None
            if not (1 <= width <= 65535 and 1 <= height <= 65535):
                raise ValueError(f'pixels: {name}: {pixels[name]!r} (sides are 1 to 65535)')
            sizes.append((name, width, height))
        return sizes

    @contextlib.contextmanager
    def decoded(self, rows, step=None):
        """Decode the images of pixels to OUT.pixels, and remove it at the end."""
        if not self.pixels:
            yield
            return
        out = self.out + b'.pixels' + (b'-%d' % self.start if self.workers > 1 else b'')
        if os.path.lexists(self.out) and self.workers < 2:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(self.out))
        os.makedirs(out)
        try:
            if self.writer is None:  # decoding takes long: find out now what prevents links
                self.run(os.path.join(out, b'checked'), rows, None)
                shutil.rmtree(os.path.join(out, b'checked'), ignore_errors=True)
            checksum = all(_core.facts(reader, True)[3] for reader in self.sources.readers)
            _core.pixels(out, self.sources.readers, self.pixels,
                         None if rows is None else rows.tobytes(), self.start, self.workers,
                         self.length, checksum, self.sync, step)
            place = out, hooks(os.fsdecode(out), None, True), 0
            sized = [name for name, _, _ in self.pixels]
            self.fields = [(name, old, place if other is None and old in sized else other)
                           for name, old, other in self.fields]
            yield
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.sources.close()

    def run(self, out, rows, step):
        if step:  # before anything is written
            step(0, self.sources.length if rows is None else len(rows))
        places = [self.sources.place(reader) for reader in self.sources.readers]
        report, metadata = _core.derive(
            out, places, self.fields, self.join, None if rows is None else rows.tobytes(), self.options,
            self.writer, step)
        if metadata and not self.warned:
            warnings.warn(f'{metadata}: its info.json differs from the info.json of '
                          f'{self.sources.first.path}, and is not carried', stacklevel=4)
            self.warned = True
        return unpack('derive report', report)


def derive(path, out, *, progress=None, **options):
    """derive(path, out, *, where=None, rows=None, exclude=None, range=None, shuffle=None,
    fields=None, drop=None, rename=None, add=None, spec=None, on=None, missing='error',
    duplicate='error', copy=False, shard_size=0, shard_length=0, unsharded=False, checksum=None,
    sync=True, shard_start=0, shard_step=0, storage=None, pixels=None, progress=None)

    Make another version of a dataset. Its Bags are hard links: nothing is copied, and out must
    be on the same file system. Returns a dict of numbers: shards, length (datapoints), linked
    and made (bytes), and missing (datapoints that `add` lacks).

    Selections apply in this order: rows are numbers of datapoints, in the order of the result,
    or a bool for each; where is an SQL expression ('label = 3 AND score > 0.5'); exclude are
    numbers of datapoints; range is a slice or a range of what is left; shuffle is a seed.
    fields or drop are lists of names. rename is a dict of new names. add is another dataset,
    whose fields are added: by position or, with on='id' (or 'id=name_there'), to the datapoint
    with an equal value of that field. missing='drop' drops datapoints whose value add lacks, and
    duplicate='first' uses the first of several with an equal value; otherwise both are errors.
    add may also be a file of JSON lines, with the types of its fields as spec ('scores.jsonl',
    spec={'score': 'float32'}), or an iterable of dicts, a table or a dict of arrays, as for
    bags.write: a row for each datapoint of path, in their order.

    copy=True copies the blobs instead, which allows any order, shards of other sizes, a list of
    several datasets of one spec as path, and a path on a server or in an archive. checksum=None:
    the copy has checksums if all datasets have them. Worker W of K makes the shards W, W + K, ...
    with shard_start=W and shard_step=K.

    pixels={'image': (256, 256)} decodes the images of a field once, and stores their pixels as
    array(uint8,HEIGHT,WIDTH,3): the entire image resized to (width, height) as bags.Loader does,
    not turned by EXIF data. A Loader then reads crops without decoding.

    progress: see bags.copy.
    Errors: FileExistsError (out exists), KeyError (no such field), IndexError (a number out of
    range), OverflowError (needs copy=True), ValueError, OSError.
    """
    with _Derive.open(derive, path, out, options) as work, stepping(progress) as step, \
            work.encoded(), work.decoded(work.rows):
        return work.run(work.out, work.rows, step)


def _parts(parts):
    """The names and the sizes of the parts of a split."""
    if not isinstance(parts, Mapping) or not parts:
        raise TypeError(f'parts: {parts!r} (expected a dict of names and fractions)')
    for name, size in parts.items():
        if not isinstance(name, str):
            raise TypeError(f'parts: {name!r} (expected a name)')
        if not name or name[0] == '.' or set(name) & set('/\\:\0') or name.isdecimal():
            raise ValueError(f'parts: {name!r} cannot be the name of a dataset: it must not be a '
                             'number, begin with a dot, or contain / \\ or :')
        if isinstance(size, bool) or not hasattr(size, '__float__'):
            raise TypeError(f'parts: {name}: {size!r} (expected a fraction)')
        if not 0 < size <= 1:
            raise ValueError(f'parts: {name}: {size!r} is not above 0 and up to 1')
    if sum(parts.values()) > 1 + 1e-9:
        raise ValueError(f'parts: they add up to {sum(parts.values()):g}, more than 1')
    return list(parts), [float(size) for size in parts.values()]


def split(path, out, parts, *, seed=0, by=None, stratify=None, progress=None, **options):
    """Split a dataset at random: split('pets', 'parts', {'train': 0.9, 'val': 0.1}) makes the
    datasets parts/train and parts/val, which share the files of pets. Returns a dict of what
    bags.derive returns for each.

    The sizes are exact, rounded to whole datapoints. by: datapoints with equal values of this
    field are in one part. stratify: each value of this field has its share in each part. seed
    selects other random parts. The other options are those of bags.derive, and are applied
    first; all parts appear at once.

    progress: see bags.copy; it counts the datapoints of all parts.
    """
    names, sizes = _parts(parts)
    with _Derive.open(split, path, out, options) as work, stepping(progress) as step:
        import numpy as np
        first, rows = work.sources.first, work.rows
        if options.get('missing') == 'drop':
            raise ValueError("missing='drop': the parts would not be exact; derive the dataset "
                             'first, and split it then')
        for name in by, stratify:
            if name is not None:
                first._field(name)
        places = [work.sources.place(reader) for reader in work.sources.readers]
        part_of = np.frombuffer(_core.split(
            places, None if rows is None else rows.tobytes(), sizes, _seed('seed', seed), by,
            stratify, None), np.uint32)
        if rows is None:
            rows = np.arange(work.sources.length, dtype=np.uint64)
        shared = work.workers > 1
        at = work.out if shared else work.out + b'.parts'
        for one in () if shared else (work.out, at):
            if os.path.lexists(one):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(one))
        done, total, made = 0, int((part_of < len(names)).sum()), {}
        if step:
            step(0, total)

        def within(part, _):
            step(done + part, total)
        if shared and work.pixels:
            raise ValueError('pixels: with split, each worker would decode all images; derive the '
                             'dataset with pixels first, and split it then')
        os.makedirs(at, exist_ok=shared)
        try:
            with work.encoded(), work.decoded(rows[part_of < len(names)]):
                for k, name in enumerate(names):
                    chosen = rows[part_of == k]
                    made[name] = work.run(os.path.join(at, os.fsencode(name)), chosen,
                                          step and within)
                    done += len(chosen)
            if not shared:
                os.rename(at, work.out)
        except BaseException:
            if not shared:
                shutil.rmtree(at, ignore_errors=True)
            raise
        return made


class Rows(list):
    """The result of bags.sql: a list of dicts. columns are the names, also of an empty
    result."""

    def __init__(self, columns, kinds, values):
        super().__init__(dict(builtins.zip(columns, row)) for row in builtins.zip(*values))
        self.columns, self._kinds, self._values = columns, kinds, values

    def _kind(self, i):
        """The kind of values in a column: i for 64-bit integers, f for float64, U for text, Z for
        bytes. NULL fits all. None: values of several kinds."""
        kinds = {type(value) for value in self._values[i]} - {type(None)}
        if not kinds:
            return {'INTEGER': 'i', 'TEXT': 'U', 'BLOB': 'Z'}.get(self._kinds[i], 'f')
        if kinds == {int, float}:
            exact = all(abs(value) <= 2 ** 53 for value in self._values[i] if type(value) is int)
            return 'f' if exact else None
        return {int: 'i', float: 'f', str: 'U', bytes: 'Z'}[kinds.pop()] if len(kinds) == 1 else None

    def numpy(self):
        """A dict of one array for each column: int64, float64 or object. In a column of numbers,
        NULL is NaN, and the array is float64, or an object array if float64 cannot represent all
        of them exactly."""
        import numpy as np
        out = {}
        for i, name in enumerate(self.columns):
            values, kind = self._values[i], self._kind(i)
            null = None in values
            if kind == 'i' and null:
                exact = all(value is None or abs(value) <= 2 ** 53 for value in values)
                kind = 'f' if exact else None
            array = np.empty(len(values), {'i': 'i8', 'f': 'f8'}.get(kind, object))
            array[:] = [np.nan if value is None else value for value in values] if kind == 'f' else values
            out[name] = array
        return out

    def __arrow_c_stream__(self, requested_schema=None):
        """The result as an Arrow stream of one batch."""
        schemas, arrays = builtins.zip(*map(self._tree, range(len(self.columns))))
        batch = len(self._values[0]), (None,), arrays
        return _core.arrow_stream(('+s', '', schemas), iter([batch]))

    def _tree(self, i):
        """The Arrow schema and array of a column."""
        import numpy as np
        name, values, kind = self.columns[i], self._values[i], self._kind(i)
        if kind is None:
            raise TypeError(f'column "{name}": values of several types; use CAST')
        there = np.array([value is not None for value in values], bool)
        nulls = len(values) - int(there.sum())
        bits = np.packbits(there, bitorder='little') if nulls else None
        if kind in 'if':
            data = np.array([value or 0 for value in values], {'i': 'i8', 'f': 'f8'}[kind])
            buffers = bits, data
            kind = {'i': 'l', 'f': 'g'}[kind]
        else:
            blobs = [value.encode() if isinstance(value, str) else value or b'' for value in values]
            ends = np.cumsum([0, *map(len, blobs)], dtype='i8')
            buffers = bits, ends, b''.join(blobs)
        return (kind, name, (), 2), (len(values), buffers, (), nulls)  # 2: nullable

    def arrow(self):
        """A pyarrow.Table or, without pyarrow, this object: it has __arrow_c_stream__, which
        Polars, DuckDB and others read."""
        try:
            import pyarrow
        except ImportError:
            for i in range(len(self.columns)):  # an error now rather than later
                self._tree(i)
            return self
        return pyarrow.table(self)


def sql(path, query, *, storage=None, progress=None, **options):
    """sql(path, query, *, storage=None, progress=None, allow_gaps=False, unfinished='refuse',
    verify_checksums=False)

    Run an SQL query on a dataset, which is the table `data`: 'SELECT label, count(*) FROM data
    GROUP BY label'. Returns a list of dicts that map the names of the columns to int, float, str,
    bytes or None, with the methods numpy() (a dict of arrays) and arrow() (a table of pyarrow, or
    an object with __arrow_c_stream__).

    rowid is the number of a datapoint. Numbers, text and arrays of one element are values,
    sequences are text in JSON, and others, such as images, are bytes, with length(image),
    width(image) and height(image). `FIELD = VALUE` uses the field's index. Whatever writes is
    refused. progress: see bags.copy; done is the number of rows so far.
    Errors: ValueError (in the query, or of a value), FileNotFoundError, DataError.
    """
    from . import DatasetReader
    _sql_needed()
    if not isinstance(query, str):
        raise TypeError(f'query: {query!r} (expected a str)')
    with stepping(progress) as step, DatasetReader(
            path, None, storage=storage, **options) as reader, _sql_errors(reader):
        columns, values = _core.sql(reader, query, step)
    names, kinds = map(list, builtins.zip(*columns))
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ValueError(f'{os.fsdecode(path)}: two columns are called "{name}"; use AS')
    return Rows(names, kinds, values)


def _without_blobs(path, out, sync, storage, progress):
    """Copy a dataset without the blobs that no datapoint refers to."""
    return derive(path, out, copy=True, sync=sync, storage=storage, progress=progress)


def zip(dataset, path, *, whole=False, compact=False, sync=True, storage=None, progress=None):
    """Write a dataset as a single zip file that readers can open as path, with its indexes.

    A dataset may have blobs that no datapoint refers to, such as blobs that bags.derive did not
    select. whole=True includes them, compact=True leaves them (and the indexes) out; without
    either, such a dataset is a ValueError. progress: see bags.copy.
    """
    from . import DatasetReader
    whole, compact, sync = flags(whole=whole, compact=compact, sync=sync)
    if whole and compact:
        raise ValueError('whole and compact are mutually exclusive')
    out = local(path)
    if not out.endswith(b'.zip') and not os.path.lexists(path):
        raise ValueError(f'{os.fsdecode(path)}: the name of the zip file must end in .zip')
    with stepping(progress) as step:
        if not compact:
            with DatasetReader(dataset, None, storage=storage) as reader:
                files = _core.index_files(reader, hooks(dataset, storage, True))
            return _core.zip(os.fsencode(dataset), hooks(dataset, storage, True), out, whole,
                             not sync, files, step)
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(path))
        made = out + b'.compact'
        _without_blobs(dataset, made, sync, storage, step)
        try:
            return _core.zip(made, None, out, False, not sync, [], step)
        finally:
            shutil.rmtree(made)


def index(path, field, *, memory=16 << 20, progress=None):
    """Build an index of a field, for use with reader.index and bags.sql. memory: sort with this
    many bytes. progress: see bags.copy."""
    if not isinstance(field, str):
        raise TypeError(f'the name of a field must be a str, not {type(field)}')
    with stepping(progress) as step:
        _core.tool('index', writable(path), field.encode(), b'', [], numbered('memory', memory), step)


def copy(path, out, *, whole=False, compact=False, part_size=0, storage=None, out_storage=None,
         progress=None):
    """Copy a finished dataset, or a Bag, to a directory or to s3://BUCKET/PATH. Returns a dict
    of numbers: files copied and kept, and the size of all files.

    The copy is unfinished until it is complete. After an interruption, call it again: complete
    files are kept, and a partial local file continues at its end. If the copy is complete, all
    files are compared. Finished files that differ are never replaced (FileExistsError).

    whole and compact are as for bags.zip. With compact, the copy is local, cannot be continued,
    and the result is as from bags.derive. part_size: upload larger files in parts of this many
    bytes (default 64 MiB). storage is as in DatasetReader, and is used for both paths unless
    out_storage is given.

    progress: a function progress(done, total), which is called at least once, about every 100 ms,
    and at the end with done == total. Here they count bytes, for bags.derive, bags.index,
    bags.stats and bags.diff datapoints. total is 0 while it is unknown. An exception that it
    raises ends the call, and so does Ctrl-C. It may also be a bar of tqdm, or the class tqdm:

        bags.copy('pets', 's3://datasets/pets', progress=tqdm)
    """
    text = os.fsdecode(out)
    remote = text.startswith('s3://')
    whole, compact = flags(whole=whole, compact=compact)
    if whole and compact:
        raise ValueError('whole and compact are mutually exclusive')
    if compact and remote:
        raise ValueError(f'{text}: compact: a local path is required; copy the result to the URL')
    if not remote:
        writable(out)
    out_storage = storage if out_storage is None else out_storage
    if remote and out_storage is not None and not isinstance(out_storage, dict):
        raise TypeError(f'{text}: out_storage: {out_storage!r} (expected a dict)')
    part_size = numbered('part_size', part_size)
    if compact:
        return _without_blobs(path, out, True, storage, progress)
    with stepping(progress) as step:
        files = []
        if remote and not os.fsdecode(path).endswith('.bag'):
            from . import DatasetReader
            with DatasetReader(path, None, storage=storage) as reader:
                files = _core.index_files(reader, hooks(path, storage, True))
        there = hooks(out, out_storage, True, part_size) if remote else None
        return unpack('copy report', _core.copy(
            os.fsencode(path), hooks(path, storage, True, read_ahead=False), os.fsencode(out), there,
            whole, files, step))
