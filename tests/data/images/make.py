"""Make the images in this directory, and the pixels that are expected of them.

Run it in the repository's root. It needs Pillow, NumPy, and cjpeg and djpeg of
libjpeg-turbo. README.md says what is in the files.
"""

import io
import json
import pathlib
import struct
import subprocess
import tempfile
import zlib

import numpy as np
from PIL import Image

HERE = pathlib.Path('tests/data/images')
GOLDEN = pathlib.Path('tests/data/golden')
PHOTO = Image.open('tests/data/photos/china.jpg')


def run(*command, data):
    return subprocess.run(command, input=data, stdout=-1, check=True).stdout


def photo(width, height):
    """Some of a photograph, with hard edges and strong colours in it."""
    part = PHOTO.resize((width * 2, height * 2)).crop((
        width // 2, height // 2, width // 2 + width, height // 2 + height))
    pixels = np.array(part)
    pixels[height // 3:height // 2, ::3] = (255, 0, 40)
    pixels[::5, width // 2:width // 2 + 4] = (0, 60, 255)
    return Image.fromarray(pixels)


def ppm(image):
    out = io.BytesIO()
    image.save(out, 'PPM')
    return out.getvalue()


def save(name, data):
    (HERE / name).write_bytes(data)


def jpeg(name, data):
    """A JPEG file beside what djpeg makes of it."""
    save(name + '.jpg', data)
    save(name + '.ppm', run('djpeg', '-dct', 'int', '-pnm', data=data))


def pillow(image, *args, **kwargs):
    out = io.BytesIO()
    image.save(out, *args, **kwargs)
    return out.getvalue()


def jpegs():
    colour = photo(75, 53)
    gray = colour.convert('L')
    for name, sample in {
            '444': '1x1', '422': '2x1', '440': '1x2', '420': '2x2',
            '411': '4x1', '441': '1x4', 'mixed': '2x1,1x2,1x1', 'sample-4x2': '4x2',
            'sample-2x4': '2x4', 'odd': '2x2,1x4,1x1'}.items():
        jpeg(name, run('cjpeg', '-quality', '80', '-sample', sample,
                       data=ppm(colour)))
    jpeg('gray', run('cjpeg', data=ppm(gray)))
    jpeg('gray-2x2', run('cjpeg', '-sample', '2x2', data=ppm(gray)))
    jpeg('progressive', run('cjpeg', '-progressive', data=ppm(colour)))
    progressive = (HERE / 'progressive.jpg').read_bytes()
    cut = progressive[:progressive.rindex(b'\xff\xc4')]
    jpeg('lacks-scans', cut + b'\xff\xd9')
    jpeg('progressive-gray', run('cjpeg', '-progressive', data=ppm(gray)))
    jpeg('restart', run('cjpeg', '-restart', '1', data=ppm(colour)))
    jpeg('arithmetic', run('cjpeg', '-arithmetic', data=ppm(colour)))
    jpeg('rgb', run('cjpeg', '-rgb', data=ppm(colour)))
    jpeg('quality-100', run('cjpeg', '-quality', '100', data=ppm(colour)))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    jpeg('exif', pillow(colour, 'JPEG', exif=exif))
    for width, height in (1, 1), (2, 3), (3, 1), (1, 17), (17, 2), (16, 16):
        jpeg(f'size-{width}x{height}', run(
            'cjpeg', '-sample', '2x2', data=ppm(photo(width, height))))
    for name in '420', '422', 'progressive', 'gray':
        data = (HERE / f'{name}.jpg').read_bytes()
        for scale in 2, 4, 8:
            save(f'{name}.{scale}.ppm', run(
                'djpeg', '-dct', 'int', '-pnm', '-scale', f'1/{scale}',
                data=data))
    save('420.gray.ppm', run('djpeg', '-dct', 'int', '-pnm', '-grayscale',
                             data=(HERE / '420.jpg').read_bytes()))
    save('rgb.gray.ppm', run('djpeg', '-dct', 'int', '-pnm', '-grayscale',
                             data=(HERE / 'rgb.jpg').read_bytes()))
    save('input.ppm', ppm(colour))
    save('input.pillow.jpg', pillow(colour, 'JPEG'))
    save('bad-cmyk.jpg', pillow(colour.convert('CMYK'), 'JPEG'))
    data = run('cjpeg', data=ppm(colour))
    save('bad-trailing.jpg', data + b'behind the end')
    at = data.index(b'\xff\xc0')
    save('bad-bomb.jpg', data[:at + 5] + struct.pack('>HH', 65500, 65500)
         + data[at + 9:])
    save('bad-too-short.jpg', data[:at + 5] + struct.pack('>HH', 9000, 9000)
         + data[at + 9:])
    save('bad-entropy.jpg', data[:-400] + bytes(range(1, 200)) + data[-201:])
    with tempfile.NamedTemporaryFile('w') as script:
        script.writelines(f'0: {i}-{i}, 0, 0;\n' for i in range(64))
        script.flush()
        jpeg('scans-64', run('cjpeg', '-scans', script.name,
                             data=ppm(photo(16, 16).convert('L'))))


def chunk(name, data):
    return (struct.pack('>I', len(data)) + name + data +
            struct.pack('>I', zlib.crc32(name + data)))


def png_file(width, height, depth, colour, raw, extra=b'', interlace=0,
             behind=b''):
    head = struct.pack('>IIBBBBB', width, height, depth, colour, 0, 0,
                       interlace)
    return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', head) + extra +
            chunk(b'IDAT', zlib.compress(raw, 9)) + behind +
            chunk(b'IEND', b''))


def rows(array):
    """An array's bytes as PNG has them: big-endian, a filter byte a row."""
    array = array.astype(array.dtype.newbyteorder('>'))
    return b''.join(b'\0' + row.tobytes() for row in array)


ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4),
         (1, 0, 2, 2), (0, 1, 1, 2))


def adam7(array):
    parts = (array[y::dy, x::dx] for x, y, dx, dy in ADAM7)
    return b''.join(rows(part) for part in parts if part.size)


def png(name, data, pixels):
    """A PNG file and the samples that it contains, little-endian."""
    save(name + '.png', data)
    shape = ' '.join(map(str, pixels.shape))
    save(name + '.raw', f'{pixels.dtype} {shape}\n'.encode() +
         pixels.astype(pixels.dtype.newbyteorder('<')).tobytes())


def as_pillow(name):
    """NAME.pillow.raw, where Pillow's array is not the expanded one of NAME.raw:
    bool as 0 and 1, 16-bit gray as uint16."""
    data = (HERE / f'{name}.png').read_bytes()
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    pixels = pixels.astype({'bool': np.uint8, 'int32': np.uint16}.get(
        pixels.dtype.name, pixels.dtype))
    shape = ' '.join(map(str, pixels.shape))
    raw = (f'{pixels.dtype} {shape}\n'.encode() +
           pixels.astype(pixels.dtype.newbyteorder('<')).tobytes())
    if raw != (HERE / f'{name}.raw').read_bytes():
        save(f'{name}.pillow.raw', raw)


def check(data, pixels):
    """Pillow must agree, where it can show all that there is."""
    image = Image.open(io.BytesIO(data))
    assert np.array_equal(np.asarray(image), pixels), image


def pngs():
    random = np.random.default_rng(0)
    colour = np.array(photo(37, 23))
    alpha = random.integers(0, 256, (23, 37, 1), np.uint8)
    shapes = {1: ('gray', 0, colour[..., 0]),
              2: ('gray-alpha', 4, np.concatenate([colour[..., :1], alpha], 2)),
              3: ('rgb', 2, colour),
              4: ('rgba', 6, np.concatenate([colour, alpha], 2))}
    for name, kind, pixels in shapes.values():
        data = pillow(Image.fromarray(pixels), 'PNG')
        check(data, pixels)
        png(name, data, pixels)
        data = png_file(37, 23, 8, kind, adam7(pixels), interlace=1)
        check(data, pixels)
        png(name + '-interlaced', data, pixels)
        wide = pixels.astype(np.uint16) * 255 + alpha.reshape(
            alpha.shape if pixels.ndim == 3 else alpha.shape[:2])
        data = png_file(37, 23, 16, kind, rows(wide))
        png(name + '-16', data, wide)
    wide = colour[..., 0].astype(np.uint16) * 257
    check(png_file(37, 23, 16, 0, rows(wide)), wide)
    small = Image.fromarray(colour).quantize(13)
    pixels = np.array(small.convert('RGB'))
    png('palette', pillow(small, 'PNG'), pixels)
    data = pillow(small, 'PNG', transparency=bytes(range(0, 200, 20)))
    pixels = np.array(Image.open(io.BytesIO(data)).convert('RGBA'))
    png('palette-alpha', data, pixels)
    for bits in 1, 2, 4:
        few = Image.fromarray(colour).quantize(1 << bits)
        png(f'palette-{bits}-bit', pillow(few, 'PNG', bits=bits),
            np.array(few.convert('RGB')))
        levels = random.integers(0, 1 << bits, (11, 13), np.uint8)
        raw = b''.join(b'\0' + pack(row, bits) for row in levels)
        data = png_file(13, 11, bits, 0, raw)
        pixels = levels * np.uint8(255 // ((1 << bits) - 1))
        check(data, pixels if bits > 1 else pixels > 0)
        png(f'gray-{bits}-bit', data, pixels)
    key = struct.pack('>H', int(colour[5, 5, 0]))
    seen = np.where(colour[..., 0] == colour[5, 5, 0], 0, 255).astype(np.uint8)
    png('gray-key', png_file(37, 23, 8, 0, rows(colour[..., 0]),
                             chunk(b'tRNS', key)),
        np.stack([colour[..., 0], seen], 2))
    key = struct.pack('>HHH', *map(int, colour[5, 5]))
    seen = np.where((colour == colour[5, 5]).all(2), 0, 255).astype(np.uint8)
    png('rgb-key', png_file(37, 23, 8, 2, rows(colour), chunk(b'tRNS', key)),
        np.concatenate([colour, seen[..., None]], 2))
    for width, height in (1, 1), (1, 9), (7, 1):
        pixels = colour[:height, :width]
        png(f'size-{width}x{height}', pillow(Image.fromarray(pixels), 'PNG'),
            pixels)
    extra = (chunk(b'gAMA', struct.pack('>I', 45455)) +
             chunk(b'tEXt', b'Title\0extra chunks') +
             chunk(b'abCd', b'of no one'))
    png('chunks', png_file(37, 23, 8, 2, rows(colour), extra,
                           behind=chunk(b'tIME', bytes(7))), colour)
    for path in sorted(HERE.glob('*.png')):
        # Pillow reduces colours of 16 bits to 8.
        if not path.name.startswith('bad-') and (
                not path.stem.endswith('-16') or path.stem == 'gray-16'):
            as_pillow(path.stem)
    good = png_file(37, 23, 8, 2, rows(colour))
    save('bad-trailing.png', good + b'behind the end')
    save('bad-bomb.png', png_file(30000, 30000, 8, 6, rows(colour)))
    save('bad-too-short.png', png_file(9000, 9000, 8, 6, rows(colour)))
    save('bad-checksum.png', good[:100] + bytes([good[100] ^ 1]) + good[101:])
    save('bad-too-few-rows.png', png_file(37, 24, 8, 2, rows(colour)))
    save('bad-too-many-rows.png', png_file(37, 22, 8, 2, rows(colour)))
    save('bad-zero-width.png', png_file(0, 23, 8, 2, rows(colour)))
    crooked = bytearray(chunk(b'tRNS', b'\0\1\0\2\0\3'))
    crooked[9] ^= 1
    save('bad-extra-checksum.png',
         png_file(37, 23, 8, 2, rows(colour), bytes(crooked)))


def webp(name, image, **kwargs):
    """A WebP file beside the array that Pillow returns. Returns the file."""
    data = pillow(image, 'WEBP', exact=True, **kwargs)
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    save(f'webp-{name}.webp', data)
    shape = ' '.join(map(str, pixels.shape))
    save(f'webp-{name}.raw', f'{pixels.dtype} {shape}\n'.encode() + pixels.tobytes())
    return data


def riff(*chunks):
    """A WebP file of these chunks: (name, data)."""
    body = b'WEBP' + b''.join(
        name + struct.pack('<I', len(data)) + data + bytes(len(data) % 2) for name, data in chunks)
    return b'RIFF' + struct.pack('<I', len(body)) + body


def webps():
    colour = photo(37, 23)
    alpha = np.random.default_rng(0).integers(0, 256, (23, 37, 1), np.uint8)
    clear = Image.fromarray(np.concatenate([np.array(colour), alpha], 2))
    exif = Image.Exif()
    exif[0x0112] = 6
    webp('lossy', colour, quality=80)
    webp('lossy-alpha', clear, quality=80)
    lossless = webp('lossless', colour, lossless=True)
    webp('lossless-alpha', clear, lossless=True)
    webp('exif', colour, lossless=True, exif=exif)
    webp('size-1x1', photo(1, 1), lossless=True)
    webp('size-7x1', photo(7, 1), quality=80)
    pixels = lossless[20:]
    canvas = struct.pack('<I', 0) + (37).to_bytes(3, 'little') + (22).to_bytes(3, 'little')
    save('bad-webp-trailing.webp', lossless + b'behind the end')
    save('bad-webp-animated.webp', pillow(
        colour, 'WEBP', save_all=True, append_images=[colour.rotate(180)]))
    save('bad-webp-size.webp', lossless[:4] + struct.pack('<I', len(lossless)) + lossless[8:])
    save('bad-webp-chunk.webp', lossless[:16] + struct.pack('<I', len(lossless)) + lossless[20:])
    save('bad-webp-no-pixels.webp', riff((b'VP8X', canvas)))
    save('bad-webp-canvas.webp', riff((b'VP8X', canvas), (b'VP8L', pixels)))
    save('bad-webp-damaged.webp', riff((b'VP8L', pixels[:5] + b'\xff' * (len(pixels) - 5))))
    save('bad-webp-no-header.webp', pixels)


def pack(row, bits):
    text = ''.join(format(level, f'0{bits}b') for level in row)
    text += '0' * (-len(text) % 8)
    return bytes(int(text[i:i + 8], 2) for i in range(0, len(text), 8))


def blobs(directory, field):
    """A field's blobs, by the end that each has in the table of its Bag."""
    data = (directory / f'{field}.bag').read_bytes()
    index = directory / f'{field}.idx'
    table = (index.read_bytes() if index.exists() else
             data[struct.unpack('<Q', data[-8:])[0]:])
    ends = struct.unpack(f'<{len(table) // 8}Q', table)
    ends = ends if ends[0] == 0 else (0,) + ends
    return [data[start:stop] for start, stop in zip(ends, ends[1:])]


def golden():
    """The pixels of all images of a field, one behind the other. The three
    versions of granular wrote the same."""
    for version, short in ('bags-0.5.1', 'bags'), ('granular-0.16.1', 'granular'):
        for fixture in 'ds-types', 'ds-lists':
            directory = GOLDEN / version / fixture / 'data'
            spec = json.loads((directory / 'spec.json').read_text())
            for field, kind in spec.items():
                if not kind.startswith(('jpeg', 'jpg', 'png')):
                    continue
                pixels = b''.join(
                    np.asarray(Image.open(io.BytesIO(blob))).tobytes()
                    if kind.startswith('png') else
                    run('djpeg', '-dct', 'int', '-pnm', data=blob).split(
                        b'\n255\n', 1)[1]
                    for blob in blobs(directory, field))
                save(f'golden-{short}-{field}.raw', pixels)


jpegs()
pngs()
webps()
golden()
