"""Encoders and decoders, and how to choose them for a field."""
import functools

from . import _core
from .options import placed, suggest

_NAMES = 'array bytes i64 int jpeg jpg mp4 msgpack npy png tree u64 utf8 webm webp zstd'.split()
# For each optional format, the Debian packages that it needs, and its types.
_FORMATS = {
    'jpeg': ('libjpeg-dev', 'jpeg jpg'), 'png': ('libpng-dev', 'png'),
    'webp': ('libwebp-dev', 'webp'),
    'msgpack': ('libmsgpack-dev', 'msgpack tree'), 'zstd': ('libzstd-dev', 'zstd'),
    'mp4': ('libavformat-dev libavcodec-dev libswscale-dev', 'mp4 webm'),
    'http': ('libcurl4-openssl-dev libssl-dev', '')}

build = {name: name in _core.built for name in _FORMATS}


def lacks(kind, packed=False):
    """What this build lacks for a type, and how to install it; None if it lacks nothing. packed:
    msgpack contents stay bytes."""
    _, name, args = parse(kind)
    for one, (_, types) in _FORMATS.items():
        if name in types.split() and not build[one] and not (packed and one == 'msgpack'):
            return lacking(one)
    return lacks(args[0], packed) if name == 'zstd' and args else None


def lacking(name):
    return f'this build of bags has no {name}; install {_FORMATS[name][0]}, and build it again'


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


parse = functools.lru_cache(1024)(_core.parse)
encoders = {name: Codec(name, False) for name in _NAMES if not lacks(name)}
decoders = {name: Codec(name, True) for name in _NAMES if not lacks(name)}


def _choose(kind, codecs, decodes):
    """The key and the codec of a type as passed to C: True for our own, None for bytes."""
    whole, name, args = parse(kind)
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
        if codec.name == name and not lacks(kind):
            return key, True
        if codec.name == name:
            raise KeyError(missing(kind, decodes))
    if not callable(codec):
        raise TypeError(f'{codec!r} is not {what} (expected a function, or None)')
    return key, (lambda value: codec(value, *args)) if key != whole and args else codec


def missing(kind, decodes):
    """The message about a type that is not among the given codecs."""
    whole, name, _ = parse(kind)
    advice = (lacks(kind) or 'those that were passed lack it' if name in _NAMES else
              f'did you mean array({whole})?' if _core.dtype(name) else suggest(whole, _NAMES))
    return f'no {"decoder" if decodes else "encoder"} for type "{kind}"; {advice}'


def _refuse(message):
    def codec(value):
        raise KeyError(message)
    return codec


def complete(fields, codecs):
    """The fields, with float32 expanded to array(float32) unless a codec has the short name."""
    def completed(kind):
        full = _core.complete(kind)
        if full == kind or codecs is None or codecs is ... or not hasattr(codecs, '__contains__'):
            return full
        whole, name, _ = parse(kind)
        return kind if whole in codecs or name in codecs else full
    return [(name, completed(kind)) for name, kind in fields]


def choose(fields, codecs, decodes, path):
    """The codecs used by fields, {key: codec}, and a list of (name, type, codec) for C. A missing
    encoder raises a KeyError at once, and so does a decoder for a type that this build lacks.
    Any other missing decoder raises one when it is used."""
    if codecs is ...:
        for name, kind in fields:
            if lacks(kind):
                raise KeyError(f'{path}: field "{name}": {missing(kind, decodes)}')
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
            elif decodes and not lacks(kind):
                codec = _refuse(f'{path}: field "{name}": {missing(kind, decodes)}')
            else:
                raise KeyError(missing(kind, decodes))
        except (TypeError, ValueError, KeyError) as error:
            raise placed(error, f'{path}: field "{name}"') from None
        chosen.append((name, kind, codec))
    return used, chosen
