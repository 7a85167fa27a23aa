#!/usr/bin/python3
"""Write the datasets of tests/viewer/page.mjs: data.py BAGS OUT. Sound ones, damaged
ones and hostile ones."""
import base64
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile

import zstandard

bags, out = sys.argv[1:]
photos = [open(f'tests/data/photos/{name}', 'rb').read() for name in ('china.jpg', 'flower.jpg')]


def blob(data):
    return {'base64': base64.b64encode(data).decode()}


def pack(name, spec, rows, *options):
    subprocess.run([bags, 'pack', '-', f'{out}/{name}', '--no-sync', '--spec', spec, *options],
                   input=''.join(json.dumps(row) + '\n' for row in rows).encode(), check=True, stdout=subprocess.DEVNULL)


def small(seed):
    """A PNG of 32 x 24 pixels."""
    import zlib
    pixels = b''.join(b'\0' + bytes((x * 8 + seed * 37) & 255 if c == seed % 3 else y * 10 for x in range(32) for c in range(3)) for y in range(24))
    chunk = lambda kind, data: struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 32, 24, 8, 2, 0, 0, 0)) + chunk(b'IDAT', zlib.compress(pixels)) + chunk(b'IEND', b'')


# What a bag file contains: blobs and a table.
def write_bag(path, blobs):
    table, at = [0], 0
    for data in blobs:
        at += len(data)
        table.append(at)
    with open(path, 'wb') as file:
        file.write(b''.join(blobs) + struct.pack(f'<{len(table)}Q', *table))


def flip(path, at):
    with open(path, 'r+b') as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


words = ['cat', 'dog', 'owl']
pets = [{'image': blob(small(i)), 'label': i % 3, 'caption': f'a {words[i % 3]}', 'wave': [k * i % 7 for k in range(32)],
         'frames': [blob(small(k)) for k in range(i % 4)], 'meta': {'id': i, 'tags': ['x', 'y']}} for i in range(60)]
spec = 'image=png,label=int(4),caption=utf8,wave=array(float32,32),frames=png[],meta=msgpack'
pack('pets', spec, pets)
pack('six', spec, pets, '--shard-length', '10')
for name, *keys in (('pets', 'caption', 'label'), ('six', 'label')):
    for key in keys:
        subprocess.run([bags, 'index', f'{out}/{name}', key], check=True, stdout=subprocess.DEVNULL)
subprocess.run([bags, 'zip', f'{out}/pets', f'{out}/pets.zip'], check=True, stdout=subprocess.DEVNULL)
kinds = {'image': 'png', 'label': 'int,4', 'caption': 'utf8', 'wave': 'array,float32,32', 'meta': 'msgpack'}
pack('compressed', ','.join(f'{name}=zstd({kind})' for name, kind in kinds.items()),
     [{**{name: row[name] for name in kinds}, 'image': blob(zstandard.compress(small(i)))} for i, row in enumerate(pets)])
# The same with dictionaries, of which each shard has its own.
sys.path.append('tests/lib')
import msgpack  # noqa: E402
import zstdref  # noqa: E402
inner = [{'image': small(i), 'label': struct.pack('<I', i % 3), 'caption': pets[i]['caption'].encode(), 'meta': msgpack.packb(pets[i]['meta']),
          'wave': zstdref.transpose(struct.pack('<32f', *pets[i]['wave']), 4)} for i in range(60)]
for i in range(2):
    rows = inner[30 * i:30 * i + 30]
    own = {name: zstdref.train([row[name] + bytes([i, k]) for k, row in enumerate(rows)] * 9, 4000) for name in ('image', 'caption', 'meta', 'wave')}
    zstdref.write_shard(f'{out}/dictionaries/{i:06}', {name: f'zstd({kind})' for name, kind in kinds.items()}, rows, own, 3)
more = [f'y{i}' for i in range(9)]  # so that a card does not have z
pack('numbers', 't=array(float64),h=array(float32),text=utf8,list=utf8[],wave=array(float32,32),z=int(4),' + ','.join(f'{name}=int(1)' for name in more),
     [{'t': 1700000123.5 + i / 4, 'h': 0.1 * i, 'text': 'b' * 2100 * (i == 3) + f'needle{i}', 'list': ['x'], 'wave': [i] * 32, 'z': i, **dict.fromkeys(more, 0)} for i in range(40)])
pack('shards', 'image=png,label=int(4)', [{'image': blob(small(i)), 'label': i % 10} for i in range(30000)], '--shard-length', '30')
pack('gap', spec, pets, '--shard-length', '10')
shutil.rmtree(f'{out}/gap/000003')
pack('first', spec, pets[:50], '--shard-length', '10')
with open(f'{out}/first/000000/refs.bag', 'wb') as file:
    file.write(b'nothing')
with open('tests/data/video/vp8_hidden.webm', 'rb') as file:
    pack('video', 'clip=webm', [{'clip': blob(file.read())}])
pack('sum', 'caption=utf8,label=int(4)', [{'caption': f'number {i}', 'label': i} for i in range(20)])
flip(f'{out}/sum/caption.bag', 3)
pack('torn', 'image=png,label=int(4)', [{'image': blob(small(i)), 'label': i} for i in range(9)], '--no-checksum')
with open(f'{out}/torn/image.bag', 'r+b') as file:
    file.seek(0)
    file.write(b'nothing of an image')

script = '<img src=x onerror="window.attacked=1"><script>window.attacked=1</script>'
svg = b'<svg xmlns="http://www.w3.org/2000/svg" onload="parent.attacked=1"><script>window.attacked=1</script></svg>'
os.makedirs(f'{out}/hostile')
huge = struct.pack('>II', 65535, 65535)
fields = {'<script>window.attacked=1<|script>': ('utf8', script.encode()), 'svg': ('bytes', svg), 'svg2': ('png', svg),
          'vast': ('png', small(1)[:16] + huge + small(1)[24:]), 'vast2': ('jpeg', b'\xff\xd8\xff\xc0\0\x11\x08' + b'\xff' * 4 + bytes(20)),
          'vast3': ('jpeg', photos[0][:2] + b'\xff\xdb\0\x04\0\0\1' + photos[0][2:]), 'vast4': ('bytes', b'RIFF\xff\xff\0\0WEBPVP8X' + b'\n\0\0\0' * 2 + b'\xff' * 6 + bytes(20)),
          'bomb': ('zstd(utf8)', zstandard.compress(bytes(257 << 20))), 'tree': ('msgpack', b'\xdd\xff\xff\xff\xff'),
          'deep': ('msgpack', b'\x91' * 100000), 'claim': ('array(float32,60000,60000)', b'1234'), 'text': ('utf8', script.encode() * 5000)}
names = sorted(fields)
json.dump({name: fields[name][0] for name in names}, open(f'{out}/hostile/spec.json', 'w'))
for name in names:
    write_bag(f'{out}/hostile/{name}.bag', [fields[name][1]])
write_bag(f'{out}/hostile/refs.bag', [bytes([0x90 | len(names)]) + bytes(len(names))])

os.makedirs(f'{out}/wide')  # more fields than any program needs
count = 60000
json.dump({f'f{i:05}': 'i64' for i in range(count)}, open(f'{out}/wide/spec.json', 'w'))
write_bag(f'{out}/wide/refs.bag', [b'\xdd' + struct.pack('>I', count) + bytes(count)])
for i in range(500):
    write_bag(f'{out}/wide/f{i:05}.bag', [bytes(8)])

os.makedirs(f'{out}/million')  # and a million of them
write_bag(f'{out}/million/refs.bag', [b'\xdd' + struct.pack('>I', 10 ** 6) + bytes(10 ** 6)])
json.dump({f'f{i:07}': 'i64' for i in range(10 ** 6)}, open(f'{out}/million/spec.json', 'w'))
with zipfile.ZipFile(f'{out}/million.zip', 'w') as archive:
    for name in 'refs.bag', 'spec.json':
        archive.write(f'{out}/million/{name}', name)

os.makedirs(f'{out}/endless')  # a blob of 4 GB
json.dump({'image': 'png'}, open(f'{out}/endless/spec.json', 'w'))
write_bag(f'{out}/endless/refs.bag', [b'\x91\0'])
with open(f'{out}/endless/image.bag', 'wb') as file:
    file.seek(4 << 30)
    file.write(struct.pack('<2Q', 0, 4 << 30))

import numpy as np  # noqa: E402: 10 million rows
rows = 10_000_000
os.makedirs(f'{out}/long')
json.dump({'label': 'int(4)'}, open(f'{out}/long/spec.json', 'w'))
numbers = np.arange(rows, dtype='<u4')
refs = np.zeros((rows, 6), 'u1')
refs[:, 0:2] = 0x91, 0xCE
refs[:, 2:] = numbers.astype('>u4').view('u1').reshape(-1, 4)
for name, data, size in ('refs', refs, 6), ('label', numbers, 4):
    with open(f'{out}/long/{name}.bag', 'wb') as file:
        data.tofile(file)
        (np.arange(rows + 1, dtype='<u8') * size).tofile(file)
