#!/usr/bin/python3
"""Makes the sources in this directory with the writers of their formats:

    make.py WEBDATASET/src VAHIDK_TFRECORD STREAMING

Each argument is a copy of a public repository: webdataset/webdataset (1.0.2),
vahidk/tfrecord (1.14.6), mosaicml/streaming (0.13). Modules that the writers import but
do not need here are replaced by empty ones. manifest.json has, for every source, the
type of each field and, for each datapoint and field, the SHA-256 of its blobs.
"""
import hashlib
import importlib.machinery
import io
import json
import os
import random
import shutil
import struct
import sys
import types
from unittest import mock

import numpy as np
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))
manifest = {}


class Missing:
    """Finds any module that is not installed, as one that contains anything."""
    NAMES = ('torch', 'transformers', 'boto3', 'botocore', 'azure', 'google.cloud',
             'google.auth', 'oci', 'paramiko', 'databricks', 'huggingface_hub', 'catalogue')

    def find_spec(self, name, path=None, target=None):
        if name.startswith(self.NAMES):
            return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec):
        module = mock.MagicMock(name=spec.name)
        module.__path__ = []
        module.__spec__ = spec
        module.IterableDataset = module.Dataset = object
        return module

    def exec_module(self, module):
        pass


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def image(seed, size, kind):
    random.seed(seed)
    pixels = bytes(random.randrange(256) for _ in range(3)) * (size[0] * size[1])
    out = io.BytesIO()
    Image.frombytes('RGB', size, pixels).save(out, kind)
    return out.getvalue()


def record(name, types_, rows):
    """rows: for each datapoint a dict of blobs, or lists of them for sequences."""
    manifest[name] = {
        'spec': types_,
        'data': [{key: [hashlib.sha256(blob).hexdigest() for blob in
                        (value if isinstance(value, list) else [value])]
                  for key, value in row.items()} for row in rows]}


def make_webdataset():
    import webdataset
    rows = []
    for name in ('samples.tar', 'samples.tar.gz'):
        rows = []
        with webdataset.TarWriter(os.path.join(HERE, 'webdataset', name), mtime=1) as out:
            for i in range(5):
                row = {'jpg': image(i, (8, 8), 'JPEG'), 'seg.png': image(i, (4, 4), 'PNG'),
                       'json': json.dumps({'i': i, 'naïve': [i] * i}).encode(),
                       'cls': str(i).encode(), 'bin': bytes(range(256)) * i}
                if i % 2:
                    del row['seg.png']
                out.write({'__key__': f'a/{i:06d}', **row})
                rows.append({'__key__': f'a/{i:06d}'.encode(),
                             **{key: row[key] for key in row},
                             'seg.png': [row['seg.png']] if 'seg.png' in row else []})
        record(f'webdataset/{name}',
               {'__key__': 'utf8', 'bin': 'bytes', 'cls': 'utf8', 'jpg': 'jpeg',
                'json': 'utf8', 'seg.png': 'png[]'}, rows)


def make_tfrecord():
    from tfrecord.writer import TFRecordWriter
    out = TFRecordWriter(os.path.join(HERE, 'tfrecord', 'examples.tfrecord'))
    rows = []
    for i in range(5):
        jpeg, box, ids = image(i, (8, 8), 'JPEG'), [0.5 * i, 1.25, -3.0], list(range(-1, i))
        out.write({'image/encoded': (jpeg, 'byte'), 'label': (-i, 'int'),
                   'name': (f'näme {i}'.encode(), 'byte'), 'score': (i / 4, 'float'),
                   'box': (box, 'float'), 'ids': (ids, 'int'),
                   'raw': (bytes([i, 255, 0]), 'byte'),
                   'parts': ([b'\xff' * j for j in range(i % 3 + 1)], 'byte'),
                   **({'maybe': (i << 40, 'int')} if i % 2 else {})})
        rows.append({'image_encoded': jpeg, 'label': struct.pack('<q', -i),
                     'name': f'näme {i}'.encode(), 'score': struct.pack('<f', i / 4),
                     'box': struct.pack('<3f', *box), 'raw': bytes([i, 255, 0]),
                     'ids': struct.pack(f'<{len(ids)}q', *ids),
                     'parts': [b'\xff' * j for j in range(i % 3 + 1)],
                     'maybe': [struct.pack('<q', i << 40)] if i % 2 else []})
    out.close()
    record('tfrecord/examples.tfrecord',
           {'box': 'array(float32,-1)', 'ids': 'array(int64,-1)', 'image_encoded': 'jpeg',
            'label': 'i64', 'maybe': 'i64[]', 'name': 'utf8', 'parts': 'bytes[]',
            'raw': 'bytes', 'score': 'array(float32)'}, rows)


def make_mds():
    for name in ('streaming', 'streaming.base'):  # without what its __init__ imports
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [os.path.join(sys.argv[3], *name.split('.'))]
    from streaming.base.format.mds.encodings import mds_encode
    from streaming.base.format.mds.writer import MDSWriter
    columns = {'text': 'str', 'data': 'bytes', 'label': 'int', 'u8': 'uint8', 'i16': 'int16',
               'f32': 'float32', 'f64': 'float64', 'u64': 'uint64', 'photo': 'jpeg',
               'mask': 'png', 'info': 'json', 'fixed': 'ndarray:int32:2,3', 'pickle': 'pkl',
               'digits': 'str_int'}
    types_ = {'text': 'utf8', 'data': 'bytes', 'label': 'i64', 'u8': 'array(uint8)',
              'i16': 'array(int16)', 'f32': 'array(float32)', 'f64': 'array(float64)',
              'u64': 'u64', 'photo': 'jpeg', 'mask': 'png', 'info': 'utf8',
              'fixed': 'array(int32,2,3)', 'pickle': 'bytes', 'digits': 'utf8'}
    for name, compression in (('raw', None), ('zstd', 'zstd:7')):
        rows = []
        with MDSWriter(out=os.path.join(HERE, 'mds', name), columns=columns,
                       compression=compression, hashes=['sha1', 'xxh64'],
                       size_limit=1 << 12) as out:
            for i in range(7):
                photo, mask = image(i, (8, 8), 'JPEG'), image(i, (4, 4), 'PNG')
                fixed = np.arange(6, dtype=np.int32).reshape(2, 3) * i
                sample = {'text': 'ü' * i, 'data': bytes([i, 255]) * i, 'label': -i, 'u8': i,
                          'i16': -i, 'f32': i / 2, 'f64': -i / 4, 'u64': 2**64 - 1 - i,
                          'photo': Image.open(io.BytesIO(photo)),
                          'mask': Image.open(io.BytesIO(mask)), 'info': {'i': [i, None]},
                          'fixed': fixed, 'pickle': {i: i}, 'digits': 10**20 + i}
                out.write(sample)
                rows.append({key: mds_encode(columns[key], value)
                             for key, value in sample.items()})
        record(f'mds/{name}', types_, rows)


def main():
    sys.path[:0] = sys.argv[1:4]
    sys.modules['crc32c'] = types.ModuleType('crc32c')
    sys.modules['crc32c'].crc32c = crc32c
    sys.meta_path.append(Missing())
    for make in (make_webdataset, make_tfrecord, make_mds):
        folder = os.path.join(HERE, make.__name__[5:])
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        make()
    with open(os.path.join(HERE, 'manifest.json'), 'w', encoding='utf-8') as out:
        json.dump(manifest, out, indent=1, sort_keys=True)
        out.write('\n')


main()
