"""Independent writer of datasets whose fields are zstd(...) with dictionaries, on
python3-zstandard. A value is the content of a frame: the blob of the type inside, of an
array with its bytes transposed."""
import importlib.util
import json
import pathlib
import struct

import zstandard

spec = importlib.util.spec_from_file_location(
    'bagref', pathlib.Path(__file__).resolve().parent / 'bagref.py')
bagref = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bagref)


def train(contents, size=8192):
    return zstandard.train_dictionary(size, contents).as_bytes()


def transpose(blob, size):
    """Byte 0 of every element, then byte 1, and so on."""
    return b''.join(blob[k::size] for k in range(size))


def frame(content, dictionary=None):
    options = {'dict_data': zstandard.ZstdCompressionDict(dictionary)} if dictionary else {}
    return zstandard.ZstdCompressor(**options).compress(content)


def content(frame, dictionary=None):
    options = {'dict_data': zstandard.ZstdCompressionDict(dictionary)} if dictionary else {}
    return zstandard.ZstdDecompressor(**options).decompress(frame)


def number(frame):
    """Of the dictionary that a frame needs; 0: none."""
    return zstandard.get_frame_parameters(frame).dict_id


def write_bag(path, blobs):
    ends = [0]
    for blob in blobs:
        ends.append(ends[-1] + len(blob))
    path.write_bytes(b''.join(blobs) + struct.pack(f'<{len(ends)}Q', *ends))


def write_shard(path, spec, rows, dictionaries, early=0):
    """Rows of blobs, or lists of blobs. The first `early` frames of each field need no
    dictionary."""
    path = pathlib.Path(path)
    path.mkdir(parents=True)
    names, refs, bags = sorted(spec), [], {name: [] for name in spec}
    for row in rows:
        ref = []
        for name in names:
            items = row[name] if spec[name].endswith('[]') else [row[name]]
            first = len(bags[name])
            for item in items:
                if spec[name].startswith('zstd('):
                    known = len(bags[name]) >= early
                    item = frame(item, dictionaries.get(name) if known else None)
                bags[name].append(item)
            ref.append(first if not spec[name].endswith('[]') else
                       [first, len(items)] if items else [])
        refs.append(bagref.pack_row(ref))
    for name in names:
        write_bag(path / f'{name}.bag', bags[name])
        if name in dictionaries:
            (path / f'{name}.dict').write_bytes(dictionaries[name])
    write_bag(path / 'refs.bag', refs)
    (path / 'spec.json').write_text(json.dumps(spec, sort_keys=True))
