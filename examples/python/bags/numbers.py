"""Plain numbers and lists as the arrays that an array type requires."""
import math

# What a dtype's kind turns a number into, and the dtype of that.
_WIDE = {'f': (float, 'f8'), 'c': (complex, 'c16'), 'b': (bool, '?')}


def contiguous(values):
    """What has __array__, as an array in C order. Called by C."""
    import numpy as np
    mode = getattr(values, 'mode', None)
    if mode in ('CMYK', 'YCbCr', 'HSV', 'LAB') and hasattr(values, 'convert'):
        raise TypeError(f'an image of mode {mode}: convert("RGB") makes one that can be stored')
    if mode in ('P', 'PA') and hasattr(values, 'convert'):
        raise TypeError(f'an image of mode {mode}: convert("RGB") makes one of its colours, '
                        'numpy.asarray an array of its numbers')
    try:
        return np.asarray(values, order='C')
    except RuntimeError as error:  # a tensor that requires a gradient
        raise TypeError(str(error)) from None


def _explain(number, dtype):
    import numpy as np
    kind = dtype.kind
    if kind in 'iu' and number == number and (math.isinf(number) or number == int(number)):
        limits = np.iinfo(dtype)
        return (f'value out of range for {dtype} ({number}, minimum {limits.min}, '
                f'maximum {limits.max})')
    if kind == 'f' and isinstance(number, float):
        return f'value out of range for {dtype} ({number}, maximum {np.finfo(dtype).max})'
    return f'{number!r} is not a value of {dtype}'


def _convert(number, dtype, kind, limits):
    """A number as the kind of a dtype, or None if the dtype cannot hold it."""
    try:
        value = kind(number)
    except (OverflowError, ValueError):  # an infinite number, or no number, as an int
        return None
    if limits and not (value == number and limits.min <= value <= limits.max):
        return None
    return value


def exact(values, dtype):
    """Numbers, or nested lists of numbers, as an array of a dtype; None: of NumPy's choice. Called
    by C. A float is rounded to a smaller dtype of floats. Any other number must fit exactly
    (ValueError)."""
    import numpy as np
    if dtype is None:
        dtype = np.asarray(values).dtype
        if dtype.kind not in 'biufc':
            raise TypeError(f'numbers are required, not {dtype}')
    objects = np.asarray(values, object)
    numbers = [one.item() if isinstance(one, np.generic) else one for one in objects.ravel()]
    for kind in dict.fromkeys(map(type, numbers)):
        if not issubclass(kind, (int, float, complex)):
            raise TypeError('lists of one length are required' if issubclass(kind, (list, tuple))
                            else f'a number is required, not {kind}')
        if issubclass(kind, complex) and dtype.kind != 'c':
            raise TypeError(f'a real number is required for {dtype}, not {kind}')
    limits = np.iinfo(dtype) if dtype.kind in 'iu' else None
    kind, wide = _WIDE.get(dtype.kind, (int, dtype))
    converted = [_convert(number, dtype, kind, limits) for number in numbers]
    with np.errstate(all='ignore'):  # checked below
        out = np.array([0 if one is None else one for one in converted], wide).astype(dtype)
    rounds = (float, complex) if dtype.kind in 'fc' else ()
    for i, (number, value, back) in enumerate(zip(numbers, converted, out.tolist())):
        same = value is not None and (back == number or number != number)
        if not same and not (isinstance(number, rounds) and np.isfinite(back)):
            place = np.unravel_index(i, objects.shape)
            where = f'element {", ".join(map(str, place))}: ' if place else ''
            raise ValueError(where + _explain(number, dtype))
    return out.reshape(objects.shape)
