"""Batches made by the threads of the C loader. Positions and states are handled here."""
import array
import atexit
import collections
import operator
import os
import sys
import weakref
import zlib
from collections.abc import Iterable, Mapping, Set

import bags

from . import _core
from .closable import Closable
from .codecs import lacks
from .options import dtype, flags, layout, number, pack, placed

_loaders = weakref.WeakSet()
_said = set()  # what was said about ranks


@atexit.register
def _close_loaders():  # their threads may call Python
    for loader in list(_loaders):
        loader.close()


def index_array(name, values, length):
    """Selected indices of `length` datapoints, as an array of uint64."""
    import numpy as np  # slow to import, so only when needed
    indices = np.asarray(values)
    if indices.dtype == bool:
        if length is None:
            raise TypeError(f'{name}: bools are of datapoints; with tokens, numbers of windows '
                            f'are expected')
        if indices.shape != (length,):
            raise IndexError(f'{name}: bools of shape {indices.shape} for {length} datapoints')
        indices = np.flatnonzero(indices)
    if indices.ndim != 1 or indices.size and indices.dtype.kind not in 'iu':
        raise TypeError(f'{name}: {values!r} (expected integers, a range or bools)')
    if indices.size and indices.min() < 0:
        raise ValueError(f'{name}: {indices.min()} is negative')
    return indices.astype(np.uint64)


def _selection(rows, length):
    """(is it a range, its bytes), as passed to C. length is None for windows of tokens."""
    if isinstance(rows, range) and rows.step == 1 and rows.start >= 0:
        return True, array.array('Q', [rows.start, max(rows.start, rows.stop)]).tobytes()
    return False, index_array('rows', rows, length).tobytes()


class _Picks:
    """A sampler as called by C: returns parts of an epoch. Keeps the last two epochs."""

    def __init__(self, sampler, lengths):
        if not callable(sampler):
            raise TypeError(f'sampler: {sampler!r} (expected a function of an epoch)')
        self.sampler, self.lengths, self.epochs, self.length = sampler, lengths, {}, None
        first = self.epoch(0)
        self.length, self.hash = len(first), zlib.crc32(first.tobytes())
        if not self.length:
            raise ValueError('sampler: epoch 0 has no datapoint')

    def epoch(self, number):
        import numpy as np
        picks = self.epochs.get(number)  # another thread may replace them
        if picks is None:
            indices = index_array('sampler', self.sampler(number), sum(self.lengths))
            ends = np.cumsum(self.lengths)
            if self.length is not None and len(indices) != self.length:
                raise ValueError(f'sampler: epoch {number} has {len(indices)} datapoints '
                                 f'(epoch 0 has {self.length})')
            if indices.size and indices.max() >= ends[-1]:
                raise IndexError(f'sampler: index {indices.max()} out of range (length {ends[-1]})')
            dataset = np.searchsorted(ends, indices, 'right')
            starts = (ends - self.lengths).astype(np.uint64)
            picks = np.stack([dataset.astype(np.uint64), indices - starts[dataset]], 1)
            self.epochs = {**dict(list(self.epochs.items())[-1:]), number: picks}
        return picks

    def __call__(self, epoch, start, count):
        return self.epoch(epoch)[start:start + count].tobytes()


Drawn = collections.namedtuple('Drawn', (
    'dataset datapoint item random width height channels matrix brightness contrast saturation '
    'hue order mean std'))
Drawn.__doc__ = """The random choices for an image, as passed to the option `draw` of bags.Loader.

dataset: its position in the Loader's list; datapoint: its index in the dataset; item: its number
in a sequence, otherwise 0. random: a number from 0 to 2^64-1 that depends only on seed, epoch and
position in the epoch, and is the same for all fields of a datapoint. width, height, channels:
the size of the entire image. matrix: 3 x 3 numbers that map pixels of the result to pixels of
the image, combining the chosen crop, flips and warp; None without the option warp. brightness,
contrast, saturation: factors; hue: -0.5 to 0.5; order: the order in which these four are applied.
mean, std: 3 numbers each; a std of 0 counts as 1.
"""


_DRAW = layout('draw')


class _Draw:
    """Calls a user's `draw` for C: takes a bags_load_draw, and returns the changed one."""

    def __init__(self, function, options):
        import numpy as np
        self.function, self.lacks, self.array = function, {}, np.array
        self.matrix = 'warp' in options or options.get('filter') == 'nearest'
        if not self.matrix:
            self.lacks['matrix'] = 'warp, which may be {}'
        if not options.get('dtype') or dtype(options['dtype']) not in (dtype('float32'), dtype('float16')):
            self.lacks.update(dict.fromkeys(('mean', 'std'), "dtype='float32'"))

    def __call__(self, draw, *item):
        parts = _DRAW.unpack_from(draw)  # 9 of the matrix, 4, 4 of the order, 3 and 3
        matrix = self.array(parts[:9]).reshape(3, 3) if self.matrix else None
        changes = self.function(Drawn(*item, matrix, *parts[9:13], parts[13:17], parts[17:20],
                                      parts[20:]))
        if changes is None:
            return None
        if not isinstance(changes, dict):
            raise TypeError(f'draw returned {type(changes)} (expected a dict of what it changes, or '
                            'None)')
        for name in changes:
            if name in self.lacks:
                raise ValueError(f'{name}: needs the option {self.lacks[name]}')
        return pack('draw', changes, out=draw)


def _elements(where, part, value):
    """One number for each element of an array, as the bytes of float64."""
    import numpy as np
    try:
        return np.asarray(value, 'float64').tobytes()
    except (TypeError, ValueError):
        raise TypeError(f'{where}{part}: {value!r} (expected a number for each element)') from None


def _field(name, options, where):
    """A field as passed to C: its name, a struct, and the objects that the struct refers to."""
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f'fields: {name!r}: {options!r} (expected a dict of options)')
    options, where, apart = dict(options or {}), f'{where}field "{name}": ', {}
    if 'tolerance' in options:
        options['has_tolerance'] = True
    for part in 'shape warp jitter offsets seconds times decode draw'.split():
        apart[part] = value = options.pop(part, ...)
        try:
            if value is ...:
                apart[part] = None
            elif part == 'shape':
                if len(value) > 6:
                    raise ValueError('more than 6 dimensions')
                apart[part] = array.array('Q', map(number, value)).tobytes()
            elif part in ('offsets', 'seconds'):
                apart[part] = _window(value, *{'offsets': ('q', 'integers'),
                                               'seconds': ('d', 'numbers')}[part])
            elif part == 'times':
                if not isinstance(value, str):
                    raise TypeError(f'{value!r} is not the name of a field')
            elif part in ('warp', 'jitter'):
                if not isinstance(value, dict):
                    raise TypeError('a dict of options is required')
                apart[part] = pack(part, value)
            elif not callable(value):
                raise TypeError(f'{value!r} is not a function')
        except (TypeError, ValueError, OverflowError) as error:
            raise placed(error, f'{where}{part}') from None
    for part in ('mean', 'std'):  # for images, three numbers in the struct
        image = 'width' in options or 'height' in options
        apart[part] = None if image or part not in options else _elements(where, part, options.pop(part))
    packed = pack('field', _rated(options, where), where)
    if apart['draw']:
        has = {part: value for part, value in apart.items() if value is not None}
        apart['draw'] = _Draw(apart['draw'], {**options, **has})
    return name, packed, *apart.values()


def _window(values, kind, what):
    """The offsets or seconds of a window, as bytes."""
    if isinstance(values, (str, bytes, Mapping, Set)) or not isinstance(values, Iterable):
        raise TypeError(f'{values!r} (expected a list of {what})')
    values = list(values)
    if not values:
        raise ValueError('an empty window')
    if any(isinstance(value, bool) for value in values):
        raise TypeError(f'{values!r} (expected a list of {what})')
    if kind == 'q':
        values = [operator.index(value) for value in values]
    try:
        return array.array(kind, values).tobytes()
    except TypeError:
        raise TypeError(f'{values!r} (expected a list of {what})') from None
    except OverflowError:
        raise ValueError(f'{values!r} (a number of more than 64 bits)') from None


def _rated(options, where):
    """Refuse a rate of 0, since C takes it for no rate. Returns the options."""
    if 'rate' in options and not options['rate']:
        raise ValueError(f"{where}rate: {options['rate']!r} (expected a number above 0)")
    return options


def _frames(clock, fields, where, spec, **options):
    """Frames as passed to C: the clock, the field with its times, and a struct. Also returns all
    fields, without the clock's times."""
    if not isinstance(clock, str):
        raise TypeError(f'{where}frames: {clock!r} is not the name of a field')
    if fields is None:
        fields = {name: None for name in spec
                  if name == clock or not spec[name].endswith('[]') and not _is_video(spec[name])}
    own, times, rated = fields.get(clock), None, {}
    if isinstance(own, Mapping) and ('times' in own or 'rate' in own):
        own = dict(own)
        times = own.pop('times', None)
        if times is not None and not isinstance(times, str):
            raise TypeError(f'{where}field "{clock}": times: {times!r} is not the name of a field')
        if 'rate' in own:
            rated['rate'] = own.pop('rate')
        fields = {**fields, clock: own}
    packed, place = pack('frames', options, where), f'{where}field "{clock}": '
    videos = any(_is_video(spec[name]) for name in fields)
    return (clock, times, pack('frames', _rated(rated, place), place, packed), videos), fields


def _is_video(kind):
    return kind.partition('(')[0] in ('mp4', 'webm')


def _refuse_indices(names, where):
    if 'indices' in names:
        raise ValueError(f'{where}field "indices": batches have the indices of datapoints under '
                         'this name; load other fields, or rename it')


def _tokens(options, where):
    """Tokens as passed to C: the field, a struct, and the names of parallel fields."""
    if not isinstance(options, Mapping):
        if not isinstance(options, (tuple, list)) or len(options) != 2:
            raise TypeError(f'tokens: {options!r} (expected a field and a length, or a dict)')
        options = dict(zip(('field', 'length'), options))
    options = {**options, **{f'has_{name}': True for name in ('bos', 'eos') if name in options}}
    field, parallel = options.pop('field', None), options.pop('parallel', ())
    if not isinstance(field, str):
        raise TypeError(f'{where}field: {field!r} is not a str')
    if isinstance(parallel, (str, bytes)):
        raise TypeError(f'{where}parallel: {parallel!r} (expected a list of names)')
    _refuse_indices((field, *parallel), where)
    return field, pack('tokens', options, where), tuple(parallel)


def _ranks(rank, ranks, where):
    """The rank and the number of ranks, from the environment if neither is stated."""
    if rank is not None and ranks is not None:
        if ranks == 0:
            raise ValueError(f'{where}ranks: 0 (expected at least 1)')
        return rank, ranks
    if rank is not None or ranks is not None:
        missing, stated = ('ranks', 'rank') if ranks is None else ('rank', 'ranks')
        raise ValueError(f'{where}{missing}: must be stated together with {stated}')
    try:
        rank, ranks, variable, count = _core.rank()
    except ValueError as error:
        raise placed(error, where[:-2]) from None
    text = f'bags: rank {rank} of {ranks}, from {variable} and {count}'
    if variable and text not in _said:
        _said.add(text)
        print(text, file=sys.stderr)
    return rank, ranks


class Loader(Closable, _core.Loader):
    """Loader(source, batch=32, *, fields=None, seed=0, shuffle=True, chunk=0, window=0,
    weights=None, rows=None, take=None, replacement=False, sampler=None, tokens=None,
    drop_last=False, rank=None, ranks=None, threads=0, ahead=0, skip_damaged=False,
    prefetch=False, window_start=0, frames=None, pad='edge', same_draw=False, device=None)

    Load shuffled batches of a dataset with C threads. Each iteration is one epoch; len() is the
    number of batches in it. A batch is a dict. Numbers, and arrays whose type states a shape,
    become arrays (N, *shape), and sequences of them become lists of arrays. Text and bytes
    become lists; everything else becomes a list of arrays or bytes. With a window, these are
    arrays (N, window, *shape), or lists of lists. `indices` contains the indices of the
    datapoints as an array (N,) or, with several datasets, [dataset, index] as an array (N, 2).

    source: a path, a DatasetReader (its decoders are not used), or a list of them. batch: the
    number of datapoints for all ranks together. Each rank loads one of `ranks` slices, whose
    lengths differ by at most one. With 101 datapoints, a batch of 100 and 2 ranks, the last
    batch of rank 0 has no rows: its arrays are (0, *shape). drop_last omits a last batch of
    fewer than 100 on all ranks. chunk, window: shuffle chunks of neighbours, for disks and
    servers. skip_damaged omits and counts datapoints that are damaged or do not fit the
    options.

    fields: names, or {name: options}. A pair gives the minimum and maximum of a random number.

        dtype             of the array: numbers are converted if it represents them exactly
        shape             combine arrays that all have this shape into one
        window, stride    load this many items of a sequence, each `stride` after the last,
                          starting at item window_start or, with 'random', anywhere
        width, height     decode images to this size
        channels          1: gray, 3: RGB (the default)
        mean, std         with dtype 'float32' or 'float16': (x / 255 - mean) / std per channel; for
                          numbers and arrays of one shape, (x - mean) / std for each element;
                          a std of 0 counts as 1
        nchw              (N, channels, height, width)
        crop              'none'; 'center', after scaling the shorter side to `resize`;
                          'random', with area (0.08, 1) and aspect (3/4, 4/3)
        filter            'bilinear', 'bicubic' or 'nearest'
        flip_x, flip_y    the probability of mirroring left and right, top and bottom
        warp, jitter      dicts of pairs: degrees, scale, shear_x, shear_y, translate_x,
                          translate_y, and perspective and fill; brightness, contrast,
                          saturation, hue
        scaled            decode random crops of JPEGs at 1/2, 1/4 or 1/8, to save time
        orient            turn images upright according to their EXIF orientation
        matrix            also load NAME_matrix, (N, 2, 3) float64: maps points of each image,
                          such as boxes and key points, to points of its array; see below
        decode, draw      functions, see below

    device: the number of an NVIDIA GPU. It decodes, crops and normalizes the images of fields with
    width and height, and batches have a DeviceTensor in its memory for each of these fields:
    torch.from_dlpack(batch['image']) makes no copy. Use it in the default stream. The CPU makes
    the images that the GPU cannot decode or change; on_cpu counts them. With frames, it decodes
    h264, hevc and av1 videos (4:2:0, 8 bits), too.

    decode is a function that converts a stored blob to an array, bytes or an int. For
    zstd(utf8), zstd(bytes), zstd(msgpack) and zstd(tree), it gets the decompressed blob; other
    zstd types raise a TypeError. draw is a function of a bags.Drawn, the random choices for an
    image. It returns None or a dict of changes: matrix (with warp), brightness, contrast,
    saturation, hue, order, mean and std (with float32). Both are called by C threads, one call
    at a time, in any order. They must return the same result each time, so draw should take
    its random numbers from drawn.random. Their exceptions are raised again, with the datapoint
    in a note.

    A matrix m maps (x, y) to m[:, :2] @ (x, y) + m[:, 2], combining crop, size, flips and warp.
    Pixel (0, 0) is the square from (0, 0) to (1, 1). With orient, (x, y) is a point of the upright
    image. A perspective has no such matrix.

    rows: load only these datapoints: indices, a range, or a bool for each datapoint (for
    several datasets, a list with one of these or None for each). take: only the first N of
    them. replacement: choose any of them each time. weights: the shares of several datasets.
    sampler: a function that returns the indices for an epoch, counted through all datasets. It
    must return the same number of indices for every epoch, and the same indices for the same
    epoch.
    tokens: (field, S) loads windows of S + 1 tokens from its documents as arrays (N, S + 1).
    It may also be a dict with field, length, and the options stride, bos, eos, dtype (of the
    arrays, such as 'int64'; otherwise as stored), stored (the dtype of the tokens in a field of
    bytes), places, parallel (names of fields), or pack=True. The latter loads rows of entire documents, as
    lists of arrays, with `cu_seqlens`; len() is then unknown, and long_documents may be
    'split' or 'drop'.

    frames: the name of a sequence. Its items (frames) are loaded instead of datapoints
    (episodes): order, chunk and weights apply to frames, rows and take to episodes. A sample
    contains the plain fields of its episode and, from each sequence, the item with the frame's
    number, or a window. A window comes with a mask NAME_pad that is True where the first or
    last item is repeated to fill it; pad='drop' omits such frames. `indices` is (N, 2) with
    [episode, frame], or (N, 3) with the dataset first. In a sample, all images of a field are
    cropped alike or, with same_draw, all images of all fields. The items of a video are its
    frames. Options for a sequence or video:

        offsets           a window: the items at these distances, a list or a range
        seconds           a window: the items nearest to the frame's time plus these
        times             a field array(float64)[] with the time of each item, or
        rate              items per second. For the clock, set these in the options of its field
        tolerance         in seconds: an item farther away from its time is an error
    """

    def __init__(self, source, batch=32, *, fields=None, weights=None, rows=None, take=None,
                 sampler=None, tokens=None, frames=None, pad='edge', same_draw=False, rank=None, ranks=None,
                 device=None, **options):
        if device is not None and not 0 <= operator.index(device) < 2 ** 31:
            raise ValueError(f'device: {device!r} (expected the number of a GPU)')
        sources = source if isinstance(source, (list, tuple)) else [source]
        for one in sources:
            if not isinstance(one, (str, bytes, os.PathLike, _core.DatasetReader)):
                raise TypeError(f'source: {one!r} (expected a path or a DatasetReader, or a '
                                'list of them)')
        readers = [s if isinstance(s, _core.DatasetReader) else bags.DatasetReader(s, None)
                   for s in sources]
        where, spec = f'{readers[0].path}: ' if readers else '', readers[0].spec if readers else {}
        if fields is not None:
            fields = [fields] if isinstance(fields, str) else fields
            if not isinstance(fields, Iterable):
                raise TypeError(f'fields: {fields!r} (expected names, or a dict of them)')
            fields = fields if isinstance(fields, Mapping) else dict.fromkeys(fields)
            if not fields:
                raise ValueError('fields: none is listed')
            for name in fields:
                readers[0]._field(name)
        if tokens is not None and not tokens:
            raise TypeError(f'tokens: {tokens!r} (expected a field and a length, or a dict)')
        if 'storage' in options:
            raise TypeError('storage: an option of DatasetReader; pass DatasetReader(path, '
                            'storage=...) as source')
        if frames is None and (pad != 'edge' or flags(same_draw=same_draw)[0]):
            raise ValueError(f'{where}pad and same_draw need frames')
        if frames is not None and (tokens or sampler is not None):
            raise ValueError(f'{where}frames and {"tokens" if tokens else "sampler"} are mutually '
                             'exclusive')
        if frames is not None:
            frames, fields = _frames(frames, fields, where, spec, pad=pad, same_draw=same_draw)
            readers[0]._field(frames[0])
        if not tokens:
            _refuse_indices(fields or spec, where)
        for name in () if tokens else fields or spec:
            lacking = lacks(spec[name], True)
            if lacking and not (fields and (fields[name] or {}).get('decode')):
                raise KeyError(f'{where}field "{name}": values of type {spec[name]} cannot be decoded; '
                               f'{lacking}, or pass a function decode')
        texts = bytes(spec[name].startswith(('utf8', 'zstd(utf8')) for name in fields or spec)
        if weights is not None:
            try:
                weights = array.array('d', weights).tobytes()
            except (TypeError, ValueError):
                raise TypeError(f'weights: {weights!r} (expected a number for each dataset)') from None
        packed = isinstance(tokens, Mapping) and tokens.get('pack', False) is True
        if rows is not None:
            rows = list(rows) if isinstance(source, (list, tuple)) else [rows]
            if len(rows) != len(readers):
                raise ValueError(f'rows: {len(rows)} for {len(readers)} datasets')
            rows = [part if part is None else
                    _selection(part, None if tokens and not packed else len(reader))
                    for part, reader in zip(rows, readers)]
        if sampler is not None:
            if tokens:
                raise ValueError('sampler and tokens are mutually exclusive')
            sampler = _Picks(sampler, [len(reader) for reader in readers])
        rank, ranks = _ranks(rank, ranks, where)
        if take == 0:
            raise ValueError(f'{where}take: 0 (expected at least 1)')
        if take is not None:
            options['take'] = take
        super().__init__(
            readers, pack('loader', {'batch': batch, 'rank': rank, 'ranks': ranks, **options}, where),
            tuple(_field(name, how, where) for name, how in (fields or {}).items()),
            b'' if tokens else texts, tokens and _tokens(tokens, where), frames, weights, rows, sampler,
            sampler.length if sampler else 0, sampler.hash if sampler else 0,
            -1 if device is None else operator.index(device))
        self.path = readers[0].path
        _loaders.add(self)

    def __repr__(self):
        where = 'closed' if self.closed else f'batch {self.batch} of epoch {self.epoch}'
        return f'<bags.{type(self).__name__} {self.path!r}, {where}>'

    def __len__(self):
        if self._packed:
            raise TypeError('how many batches of packed rows an epoch has is unknown before its '
                            'end')
        return self._batches

    def state_dict(self):
        """The position after the last returned batch, as a dict of numbers and text, which can be
        written as JSON. It can be loaded with any number of ranks and threads."""
        epoch, batch, state = self._save()
        return {'epoch': epoch, 'batch': batch, 'state': state.hex()}

    def load_state_dict(self, state):
        """Continue at a saved position: the next iteration is the rest of that epoch. Raises
        ValueError if the state belongs to other datasets or options."""
        self._check()
        if not isinstance(state, dict):
            raise TypeError(f'{self.path}: a dict of state_dict is required, not {type(state)}')
        epoch, batch, saved = (state.get(name) for name in ('epoch', 'batch', 'state'))
        if isinstance(saved, str):  # older states have bytes
            try:
                saved = bytes.fromhex(saved)
            except ValueError:
                saved = None
        if not (isinstance(epoch, int) and isinstance(batch, int) and isinstance(saved, bytes) and
                0 <= epoch < 2 ** 63 and 0 <= batch <= self._batches):
            count = '' if self._packed else f' (it has {self._batches} batches per epoch)'
            raise ValueError(f'{self.path}: not a state of this Loader: epoch {epoch!r}, batch '
                             f'{batch!r}{count}')
        self._restore(epoch, batch, saved)
