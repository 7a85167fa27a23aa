"""Encoders and decoders, and which of them a field uses."""
import functools

from . import _core
from .options import placed, suggest

_NAMES = 'array bytes i64 int jpeg jpg mp4 msgpack npy png tree u64 utf8 webm zstd'.split()


class Codec:
    """Our own encoder or decoder of a type, which readers and writers run in C.

    Call it with a value (a blob) and the arguments of the type: encoders['int'](5, 4).
    """

    def __init__(self, name, decodes):
        if name not in _NAMES:
            raise KeyError(f'no codec for type {name!r}')
        self.name, self.decodes = name, decodes

    def __call__(self, value, *args):
        kind = f'{self.name}({",".join(map(str, args))})' if args else self.name
        return (_core.decode if self.decodes else _core.encode)(kind, value)

    def __repr__(self):
        return f'<bags {"decoder" if self.decodes else "encoder"} of {self.name}>'


encoders = {name: Codec(name, False) for name in _NAMES}
decoders = {name: Codec(name, True) for name in _NAMES}


_parse = functools.lru_cache(1024)(_core.parse)


def _choose(kind, codecs, decodes):
    """The key and the codec of a type, as C takes it: True is our own, None bytes."""
    whole, name, args = _parse(kind)
    for key in (whole, name):
        try:
            codec = codecs[key]
            break
        except KeyError:
            pass
    else:
        return None, None
    if codec is None:
        return key, None
    what = 'a decoder' if decodes else 'an encoder'
    if isinstance(codec, Codec):
        if codec.decodes != decodes:
            raise TypeError(f'{codec!r} is not {what}')
        if codec.name == name:
            return key, True
    if not callable(codec):
        raise TypeError(f'{codec!r} is not {what} (expected a function, or None)')
    return key, (lambda value: codec(value, *args)) if key != whole and args else codec


def _missing(kind, decodes):
    """What is wrong with a type that is not among the codecs that were passed."""
    whole, name, _ = _parse(kind)
    advice = ('those that were passed lack it' if name in _NAMES else
              f'did you mean array({whole})?' if _core.dtype(name) else suggest(whole, _NAMES))
    return f'no {"decoder" if decodes else "encoder"} for type "{kind}"; {advice}'


def _refuse(message):
    def codec(value):
        raise KeyError(message)
    return codec


def complete(fields, codecs):
    """The same fields, with array(float32) for float32, unless a codec has that name."""
    def completed(kind):
        full = _core.complete(kind)
        if full == kind or codecs is None or codecs is ... or not hasattr(codecs, '__contains__'):
            return full
        whole, name, _ = _parse(kind)
        return kind if whole in codecs or name in codecs else full
    return [(name, completed(kind)) for name, kind in fields]


def choose(fields, codecs, decodes, path):
    """The codecs that fields use, {key: codec}, and a list of (name, type, codec) for C. An
    encoder that is missing is a KeyError at once, a decoder when it is used."""
    if codecs is None or codecs is ...:
        return codecs, [(name, kind, codecs) for name, kind in fields]
    if isinstance(codecs, str) or not hasattr(codecs, '__getitem__'):
        raise TypeError(f'{path}: {"de" if decodes else "en"}coders: {codecs!r} (expected a dict of '
                        'types and functions)')
    used, chosen = {}, []
    for name, kind in fields:
        try:
            key, codec = _choose(kind, codecs, decodes)
            if key is not None:
                used[key] = codecs[key]
            elif decodes:
                codec = _refuse(f'{path}: field "{name}": {_missing(kind, decodes)}')
            else:
                raise KeyError(_missing(kind, decodes))
        except (TypeError, ValueError, KeyError) as error:
            raise placed(error, f'{path}: field "{name}"') from None
        chosen.append((name, kind, codec))
    return used, chosen
