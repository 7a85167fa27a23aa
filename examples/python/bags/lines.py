"""Fields of JSON lines, or of dicts, that bags.derive adds to a dataset."""
import base64
import gzip
import json
import os

from . import _core, codecs
from .metadata import unique
from .options import placed


class _Blob(bytes):
    """The encoded form of a value."""


def _file(folder, name):
    with open(os.path.join(folder, name), 'rb') as file:
        return _Blob(file.read())


def _value(value, kind, folder):
    """A value of a line, as the command's `pack` describes it."""
    if isinstance(value, dict) and len(value) == 1:
        (how, text), = value.items()
        if how == 'file' and isinstance(text, str):
            return _file(folder, text)
        if how == 'base64' and isinstance(text, str):
            return _Blob(base64.b64decode(text, validate=True))
        if how == 'from' and isinstance(text, str):
            raise ValueError('{"from": PATH} is converted by `python -m bags derive` only')
    _, name, args = codecs.parse(kind)
    inner = args[0] if name == 'zstd' and args else name
    if isinstance(value, bool) and inner in ('int', 'i64', 'u64'):
        raise TypeError(f'{value!r} is not a whole number')
    if inner == 'array' and isinstance(value, str):
        value = float(value) if value in ('NaN', 'Infinity', '-Infinity') else value
    return value


def _encode(kind):
    """An encoder of a type for values of lines."""
    def encode(value):
        if not isinstance(value, _Blob):
            return _core.encode(kind, value)
        if codecs.parse(kind)[1] in codecs.decoders:
            _core.decode(kind, value)
        return bytes(value)
    return encode


def encoders(spec):
    """Encoders of the types of a spec, for values of json_lines."""
    kinds = {codecs.parse(_core.complete(kind))[0] for kind in spec.values()}
    return {kind: _encode(kind) for kind in kinds}


def _constant(text):
    raise ValueError(f'{text} is not JSON')


def json_lines(path, spec):
    """The rows of a file, which may be compressed by gzip: a dict for each line."""
    shown, folder = os.fsdecode(path), os.path.dirname(os.fsdecode(path))
    with open(path, 'rb') as file:
        packed = file.read(2) == b'\x1f\x8b'
    blank = None
    with (gzip.open if packed else open)(path, 'rb') as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                blank = blank or number
                continue
            if blank:
                raise ValueError(f'{shown}: line {blank}: empty')
            try:
                text = line.decode('utf-8-sig' if number == 1 else 'utf-8')
                row = json.loads(text, object_pairs_hook=unique, parse_constant=_constant)
                if not isinstance(row, dict):
                    raise ValueError('not a JSON object')
            except ValueError as error:
                raise ValueError(f'{shown}: line {number}: {error}') from None
            for name, value in row.items():
                kind = spec.get(name, '')
                try:
                    whole = kind.removesuffix('[]')
                    if kind.endswith('[]') and isinstance(value, list):
                        row[name] = [_value(one, whole, folder) for one in value]
                    elif kind:
                        row[name] = _value(value, whole, folder)
                except (TypeError, ValueError) as error:
                    raise placed(error, f'{shown}: line {number}: field "{name}"') from None
            yield row
