#!/usr/bin/python3
"""Compare formats/resample.c with Pillow, pixel by pixel:

    tests/pillow.py [N]     N random resizes (10,000)
    tests/pillow.py write   write what tests/test_resample.c expects, from Pillow

Needs Debian's python3-pil and python3-numpy, and a C compiler."""

import ctypes
import hashlib
import os
import random
import subprocess
import sys
import tempfile

try:
    import numpy
    from PIL import Image
except ImportError as error:
    print('skipped pillow:', error)
    print('0 passed, 0 failed, 1 skipped')
    sys.exit()

HERE = os.path.dirname(os.path.abspath(__file__))
EXPECTED = HERE + '/data/resample.txt'
FILTERS = (Image.BILINEAR, Image.BICUBIC)
MODES = {1: 'L', 2: 'LA', 3: 'RGB', 4: 'RGBA'}


def pixels(case):
    """The image of a case, as tests/test_resample.c makes it: of noise, in every
    second case of black and white only, which is what overflows."""
    seed, channels, width, height = case[:4]
    with numpy.errstate(over='ignore'):
        z = numpy.arange(1, width * height * channels + 1, dtype=numpy.uint64)
        z = z * numpy.uint64(0x9e3779b97f4a7c15) + numpy.uint64(seed)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94d049bb133111eb)
    z = ((z ^ (z >> numpy.uint64(31))) >> numpy.uint64(56)).astype(numpy.uint8)
    if seed % 2:
        z = (z >> 7) * numpy.uint8(255)
    return z.reshape((height, width, channels))


def random_case(seed, most):
    """(seed, channels, width, height, filter, box or None, new width, new height)"""
    def side():
        return random.randint(1, most if random.random() < 0.9 else 3)
    channels, width, height = random.choice((1, 2, 3, 3, 3, 4)), side(), side()
    new = [side(), side()]
    box, kind = None, random.random()
    if kind < 0.4:  # a crop
        x = sorted(random.sample(range(width + 1), 2))
        y = sorted(random.sample(range(height + 1), 2))
        box = (x[0], y[0], x[1], y[1])
        if kind < 0.15:
            new = [x[1] - x[0], y[1] - y[0]]
    elif kind < 0.7:
        x = sorted((random.uniform(0, width), width * random.choice((1, random.random()))))
        y = sorted((random.uniform(0, height), height * random.choice((1, random.random()))))
        box = (x[0], y[0], x[1], y[1])
    sides = (width, height) if box is None else (box[2] - box[0], box[3] - box[1])
    for axis in 0, 1:  # one pass or none
        if random.random() < 0.2 and sides[axis] == int(sides[axis]):
            new[axis] = int(sides[axis])
    return (seed, channels, width, height, random.choice((0, 1)), box, *new)


def by_pillow(case, image):
    _, channels, _, _, kind, box, width, height = case
    squeezed = image[:, :, 0] if channels == 1 else image
    resized = Image.fromarray(squeezed, MODES[channels]).resize(
        (width, height), FILTERS[kind], box)
    return numpy.asarray(resized).reshape((height, width, channels))


def write():
    random.seed(14)
    with open(EXPECTED, 'w') as file:
        file.write('# Written by tests/pillow.py: what Pillow makes of images.\n'
                   '# seed channels width height filter left top right bottom'
                   ' new-width new-height SHA-256\n')
        for seed in range(300):
            case = random_case(seed, 40)
            box = case[5] or (0, 0, case[2], case[3])
            digest = hashlib.sha256(by_pillow(case, pixels(case)).tobytes())
            print(*case[:5], *map(repr, box), *case[6:], digest.hexdigest(), file=file)


class Library:
    """tests/pillow/calls.c, compiled with the code that it calls."""

    def __init__(self, folder):
        path = folder + '/calls.so'
        subprocess.run([os.environ.get('CC', 'gcc'), '-O2', '-shared', '-fPIC', '-I' + HERE + '/..',
                        HERE + '/pillow/calls.c', '-o', path, '-lm'], check=True)
        self.library = ctypes.CDLL(path)

    def resize(self, case, image):
        _, channels, width, height, kind, box, new_width, new_height = case
        out = numpy.empty((new_height, new_width, channels), numpy.uint8)
        message = ctypes.create_string_buffer(1024)
        if not self.library.resize_image(
                ctypes.c_void_p(image.ctypes.data), width, height, channels,
                (ctypes.c_double * 4)(*box) if box else None, kind, new_width, new_height,
                ctypes.c_void_p(out.ctypes.data), message):
            raise SystemExit('%s: %s' % (case, message.value.decode()))
        return out


def compare(count):
    random.seed(count)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        library = Library(folder)
        for seed in range(count):
            case = random_case(seed, random.choice((20, 60, 160)))
            image = pixels(case)
            wanted, got = by_pillow(case, image), library.resize(case, image)
            if not numpy.array_equal(wanted, got):
                failed += 1
                print('FAILED', case, '%d bytes differ' % (wanted != got).sum())
    print('%d images resized as by Pillow %s' % (count - failed, Image.__version__))
    print('%d passed, %d failed' % (not failed, failed > 0))
    return failed


if sys.argv[1:] == ['write']:
    write()
else:
    sys.exit(compare(int(sys.argv[1]) if sys.argv[1:] else 10000) > 0)
