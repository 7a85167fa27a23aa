"""Readers as text and as HTML, for consoles and notebooks."""
import base64
import html as escaping

_FIELDS = 20  # most fields that are listed
_IMAGES = 4  # most images per field
_LARGEST = 200_000  # bytes of an image that is shown
_ALL = 2_000_000  # bytes of all images together
_FILES = 100  # most files that are opened for a repr
_PLAIN = {'jpeg': 'jpeg', 'jpg': 'jpeg', 'png': 'png', 'webp': 'webp'}


def _printable(text):
    """Text without control characters, which may come from a file."""
    return text if text.isprintable() else ascii(text)[1:-1]


def size(count):
    """A size in words."""
    for unit in 'bytes', 'KB', 'MB', 'GB':
        if count < 1000:
            break
        count /= 1000
    else:
        unit = 'TB'
    return f'{count:.4g} {unit}'


def text(reader):
    """The repr of a reader: path, length and fields."""
    name = f'<bags.{type(reader).__name__}'
    if reader.path is None:
        return f'{name}, not opened>'
    if reader.closed:
        return f'{name} {reader.path!r}, closed>'
    about = f'{len(reader)} datapoints'
    if reader.shards * len(reader.spec) <= _FILES and '://' not in str(reader.path):
        try:
            about += f', {size(reader.size)}'
        except (OSError, ValueError):  # damaged
            pass
    fields = [_printable(f'{name} {kind}') for name, kind in list(reader.spec.items())[:_FIELDS]]
    if len(reader.spec) > _FIELDS:
        fields.append(f'and {len(reader.spec) - _FIELDS} more')
    return f'{name} {reader.path!r}, {about}: {", ".join(fields) or "no fields"}>'


def _image(blob, kind, left):
    """An img element, or the size of an image that is too large. Returns it and its bytes."""
    if len(blob) > min(_LARGEST, left):
        return f'{size(len(blob))} ', 0
    data = base64.b64encode(blob).decode()
    return f'<img src="data:image/{kind};base64,{data}" style="max-height: 96px" alt=""> ', len(blob)


def _images(raw, name, kind, left):
    """The first images of a field. raw: a reader that returns blobs."""
    out, used = [], 0
    sequence = kind.endswith('[]')
    image = _PLAIN[kind.removesuffix('[]').partition('(')[0]]
    for i in range(min(len(raw), _IMAGES)):
        try:
            value = raw[i, {name: range(_IMAGES) if sequence else True}][name]
        except Exception as error:  # damage
            return [*out, escaping.escape(_printable(str(error)))], used
        for blob in value if sequence else [value]:
            shown, more = _image(blob, image, left - used)
            out.append(shown)
            used += more
            if len(out) == _IMAGES:
                return out, used
    return out, used


def _value(reader, name):
    """The value of a field in datapoint 0, in few words."""
    try:
        value = reader[0, (name,)][name]
    except Exception as error:  # damage, or raised by a decoder
        return str(error)
    if hasattr(value, 'shape') and hasattr(value, 'tolist'):
        if value.size > 8:
            return f'{value.dtype} {" x ".join(map(str, value.shape))}'
        value = value.tolist()
    if isinstance(value, (list, dict)) and len(value) > 8:
        return f'{len(value)} items'
    if isinstance(value, (str, bytes)):
        value = value[:200]
    shown = repr(value)
    return shown if len(shown) <= 80 else f'{shown[:77]}...'


def html(reader, open_raw):
    """A table of the fields, with the first images. open_raw() opens a reader of blobs. Text from
    the dataset is escaped, and images are data of img elements, which run no scripts."""
    rows, left, raw = [], _ALL, None
    kinds = list(reader.spec.items())
    try:
        sizes = list(map(size, reader._sizes))
        about = f'{len(reader)} datapoints, {size(reader.size)}'
    except (OSError, ValueError) as error:  # damaged
        sizes, about = [''] * len(kinds), f'{len(reader)} datapoints, {error}'
    try:
        for (name, kind), one in zip(kinds[:_FIELDS], sizes):
            if not len(reader):
                shown = ''
            elif kind.removesuffix('[]').partition('(')[0] in _PLAIN:
                raw = raw or open_raw()
                images, used = _images(raw, name, kind, left)
                left -= used
                shown = ''.join(images)
            elif kind.removesuffix('[]').partition('(')[0] in ('mp4', 'webm'):
                shown = ''  # decoding takes long
            else:
                shown = escaping.escape(_printable(_value(reader, name)))
            cells = *map(escaping.escape, map(_printable, (name, kind, one))), shown
            rows.append(f'<tr>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>')
    finally:
        if raw:
            raw.close()
    if len(kinds) > _FIELDS:
        rows.append(f'<tr><td colspan="4">and {len(kinds) - _FIELDS} more</td></tr>')
    title = escaping.escape(_printable(f'{reader.path}: {about}'))
    return (f'<table><caption>{title}</caption><tr><th>field</th><th>type</th><th>size</th><th>first values</th></tr>'
            f'{"".join(rows)}</table>')
