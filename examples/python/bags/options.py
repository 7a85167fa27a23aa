"""Pack options into the bytes of C structs. _core.structs lists their members."""
import contextlib
import operator
import struct

from . import _core

# For kinds made of several numbers: how an error describes them, and the maximum for bytes.
_SEVERAL = {'2d': ('the lowest and the highest number', 0), '3f': ('a number, or 3 of them,', 0),
            '3B': ('a number, or 3 of them,', 255), '4B': ('4 numbers', 3), '9d': ('3 x 3 numbers', 0)}


def suggest(name, names):
    """The end of a message about a name that is not in the list."""
    import difflib  # slow to import, and only needed for mistakes
    close = difflib.get_close_matches(name, names, 2)
    return f'did you mean {" or ".join(close)}?' if close else f'known are {", ".join(names)}'


def number(value, bits=64):
    integer = operator.index(value)
    if not 0 <= integer < 2 ** 64:
        raise ValueError(f'{value!r} is not from 0 to 2^64-1')
    if integer >= 2 ** bits:
        raise ValueError(f'{value!r} is above 2^{bits}-1')
    return integer


def numbered(name, value, bits=64):
    """The number of an option; errors name it."""
    try:
        return number(value, bits)
    except (TypeError, ValueError) as error:
        raise placed(error, name) from None


def flag(value):
    """A bool, of Python or NumPy. A TypeError for other values, since 'no' would be true."""
    if isinstance(value, bool) or getattr(getattr(value, 'dtype', None), 'kind', '') == 'b' and (
            getattr(value, 'ndim', 0) == 0):
        return bool(value)
    raise TypeError(f'{value!r} is not True or False')


def flags(**options):
    """Check bools by their names, and return them in a list."""
    found = []
    for name, value in options.items():
        try:
            found.append(flag(value))
        except TypeError as error:
            raise TypeError(f'{name}: {error}') from None
    return found


def dtype(value):
    """The number of a NumPy or PyTorch dtype, or of a dtype name."""
    name = getattr(value, '__name__', None) or str(value)
    found = _core.dtype(name.rpartition('.')[2])
    if not found:
        raise (ValueError if isinstance(value, str) else TypeError)(
            f"{value!r} is not a dtype, such as 'float32'")
    return found


def _several(kind, value):
    what, most = _SEVERAL[kind]
    if kind == '9d':
        import numpy as np
        value = np.asarray(value, 'float64').ravel()
    values, count = list(value) if hasattr(value, '__len__') else [value], int(kind[0])
    if len(values) == 1 and what.startswith('a '):
        values *= count
    if len(values) != count:
        raise ValueError(f'{what} are required')
    if most and not all(0 <= one <= most for one in values):
        raise ValueError(f'0 to {most} are required')
    if most:
        values = [int(one) for one in values]
    if kind == '2d' and values == [0, 0]:
        raise ValueError('0 to 0 is the default: leave it out')
    return values


def put(out, members, name, value):
    """Set a member of a struct."""
    kind, offset = members.get(name, ('', 0))
    if not kind:
        raise TypeError(f'unknown option; {suggest(str(name), members)}')
    if kind in _SEVERAL:
        values = _several(kind, value)
    elif ' ' in kind:
        kind, names = 'I', kind.split()
        if value not in names:
            raise ValueError(f'{value!r} is none of: {" ".join(names)}')
        values = [names.index(value)]
    elif kind == 'dtype':
        kind, values = 'I', [dtype(value)]
    elif kind == 'start':
        kind, values = 'q', [-1 if value == 'random' else number(value, 63)]
    elif kind in '?!':
        kind, values = '?', [flag(value) == (kind == '?')]
    else:
        values = [value if kind == 'd' else number(value, {'I': 32, 'i': 31}.get(kind, 64))]
    try:
        struct.pack_into(kind, out, offset, *values)
    except struct.error:
        raise TypeError(f'{value!r} is not a number') from None


def placed(error, where):
    """A copy of a TypeError, KeyError or ValueError with a place before its message."""
    kind = next(kind for kind in (TypeError, KeyError, ValueError) if isinstance(error, kind))
    return kind(f'{where}: {error.args[0] if len(error.args) == 1 else error}')


def pack(name, options, where='', out=None):
    """Pack options into a new struct, or into a copy of `out`. where: prefix for messages."""
    size, members = _core.structs[name]
    out, option, given = bytearray(size) if out is None else bytearray(out), None, {}
    try:
        for option, value in options.items():
            put(out, members, option, value)
            first = given.setdefault(members[option][1], option)
            if first != option:  # two names for the same member
                other = bytearray(out)
                put(other, members, first, options[first])
                if other != out:
                    raise ValueError(f'{value!r} contradicts {first} {options[first]!r}')
    except (TypeError, ValueError) as error:
        raise placed(error, f'{where}{option}') from None
    return bytes(out)


def layout(name):
    """A struct.Struct of all members in the order of their offsets, for unpack_from."""
    text, at = '=', 0
    for kind, offset in sorted(_core.structs[name][1].values(), key=operator.itemgetter(1)):
        text += f'{offset - at}x{kind}'
        at = offset + struct.calcsize(f'={kind}')
    return struct.Struct(text)


def unpack(name, data):
    """The members of a struct, as a dict of numbers."""
    return {member: struct.unpack_from(kind, data, offset)[0]
            for member, (kind, offset) in _core.structs[name][1].items()}


@contextlib.contextmanager
def stepping(progress):
    """Convert an argument `progress` to what C calls: None, or a function of done and total.

    It may be such a function, a bar of tqdm, or the class tqdm, of which a bar is opened and
    closed.
    """
    bar = progress() if isinstance(progress, type) else progress
    if progress is None or callable(bar) and not hasattr(bar, 'update'):
        yield progress
        return
    if not hasattr(bar, 'update'):
        raise TypeError(f'progress: {progress!r} (expected a function of done and total, or tqdm)')

    def step(done, total):
        bar.total = total or None
        bar.update(done - bar.n)
    try:
        yield step
    finally:
        if bar is not progress:
            bar.close()
