#!/usr/bin/python3
"""Compare resample.c, warp.c, the images of crop.c, and images
that are turned upright, with Pillow, NumPy and torchvision, byte by byte:

    tests/formats/load/pillow.py [N]     N random resizes (10,000), N / 5 transformed images
                                    and changes of colours, N / 100 batches, N blocks of
                                    EXIF
    tests/formats/load/pillow.py write   write what test_resample.c and test_warp.c expect

Needs Debian's python3-pil and python3-numpy, and a C compiler; for what is torchvision's,
python3-torchvision."""

import ctypes
import hashlib
import io
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import warnings

try:
    import numpy
    from PIL import Image, ImageOps
except ImportError as error:
    print('skipped pillow:', error)
    print('0 passed, 0 failed, 1 skipped')
    sys.exit()

try:
    import torchvision
    from torchvision.transforms import functional
except ImportError:
    torchvision = None

TESTS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXPECTED = TESTS + '/data/resample.txt'
EXPECTED_WARPS = TESTS + '/data/warp.txt'
FILTERS = (Image.BILINEAR, Image.BICUBIC, Image.NEAREST)
NEAREST = 2
MODES = {1: 'L', 2: 'LA', 3: 'RGB', 4: 'RGBA'}


def pixels(case):
    """The image of a case, as test_resample.c makes it: of noise, in every
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
        file.write('# Written by tests/formats/load/pillow.py: what Pillow makes of images.\n'
                   '# seed channels width height filter left top right bottom'
                   ' new-width new-height SHA-256\n')
        for seed in range(300):
            case = random_case(seed, 40)
            box = case[5] or (0, 0, case[2], case[3])
            digest = hashlib.sha256(by_pillow(case, pixels(case)).tobytes())
            print(*case[:5], *map(repr, box), *case[6:], digest.hexdigest(), file=file)


def write_warps():
    """A transformation, the fill colour of which is 200, then a change of colours."""
    random.seed(29)
    with open(EXPECTED_WARPS, 'w') as file:
        file.write('# Written by tests/formats/load/pillow.py: what Pillow and torchvision make of'
                   ' images.\n# seed channels width height filter new-width new-height'
                   ' matrix-by-rows brightness contrast saturation hue order SHA-256\n')
        for seed in range(300):
            case = (seed, random.choice((1, 3, 3)), random.randint(1, 40),
                    random.randint(1, 40))
            image = pixels(case)
            image = image[:, :, 0] if case[1] == 1 else image
            matrix, size = random_transformation(image)
            factors, order = random_colours()
            kind = random.choice((0, 1, 2))
            made = transform(Image.fromarray(image), matrix, kind, [200] * 3, size)
            made = change_colours(made, factors, order)
            digest = hashlib.sha256(numpy.asarray(made).tobytes())
            print(*case, kind, *size, *map(repr, matrix + factors),
                  ''.join(map(str, order)), digest.hexdigest(), file=file)


FIELDS = (('seed', 'Q'), ('epoch', 'Q'), ('batch', 'Q'), ('length', 'I'), ('width', 'I'),
          ('height', 'I'), ('channels', 'I'), ('resize', 'I'), ('crop', 'i'), ('filter', 'i'),
          ('nchw', 'i'), ('real', 'i'), ('orient', 'i'), ('warp', 'i'), ('mean', 'f' * 3),
          ('std', 'f' * 3), ('area', 'dd'), ('aspect', 'dd'), ('flips', 'dd'),
          ('degrees', 'dd'), ('scale', 'dd'), ('shear_x', 'dd'), ('shear_y', 'dd'),
          ('translate_x', 'dd'), ('translate_y', 'dd'), ('perspective', 'd'),
          ('fill', 'B' * 3), ('brightness', 'dd'), ('contrast', 'dd'), ('saturation', 'dd'),
          ('hue', 'dd'))
TYPES = {'Q': ctypes.c_uint64, 'I': ctypes.c_uint32, 'i': ctypes.c_int32, 'f': ctypes.c_float,
         'd': ctypes.c_double, 'B': ctypes.c_ubyte}
CROP_NONE, CROP_CENTER, CROP_RANDOM = range(3)


def type_of(kind):
    return TYPES[kind[0]] * len(kind) if len(kind) > 1 else TYPES[kind]


class Request(ctypes.Structure):
    """The same as in tests/formats/load/pillow.c."""
    _fields_ = [(name, type_of(kind)) for name, kind in FIELDS]

    def __str__(self):
        values = {name: getattr(self, name) for name, _ in FIELDS}
        return str({k: v if isinstance(v, (int, float)) else list(v) for k, v in values.items()})


class Library:
    """tests/formats/load/pillow.c, compiled with the code that it calls."""

    def __init__(self, folder):
        path = folder + '/calls.so'
        found = subprocess.run(['pkg-config', '--cflags', '--libs', 'libjpeg', 'libpng'],
                               stdout=subprocess.PIPE, universal_newlines=True)
        self.images = found.returncode == 0
        names = ['load/resample', 'load/warp']
        if self.images:
            names += ['load/' + part for part in 'loader opening convert crop state order frames'.split()]
            names += ['image', 'jpeg', 'png']
        files = ['formats/load/pillow.c'] + ['../formats/%s.c' % name for name in names]
        subprocess.run(
            [os.environ.get('CC', 'gcc'), '-O2', '-shared', '-fPIC', '-I' + TESTS + '/..'] +
            ['-I' + TESTS + '/../formats' + folder for folder in ('', '/load', '/storage', '/data')] +
            ['-DWITH_IMAGES'] * self.images + [TESTS + '/' + file for file in files] +
            ['-o', path] + found.stdout.split() + ['-lm', '-pthread'], check=True)
        self.library = ctypes.CDLL(path)

    def call(self, name, what, *arguments):
        message = ctypes.create_string_buffer(1024)
        function = getattr(self.library, name)
        function.restype = ctypes.c_bool
        if not function(*arguments, message):
            raise SystemExit('%s: %s: %s' % (name, what, message.value.decode()))

    def resize(self, case, image):
        _, channels, width, height, kind, box, new_width, new_height = case
        out = numpy.empty((new_height, new_width, channels), numpy.uint8)
        self.call('resize_image', case, ctypes.c_void_p(image.ctypes.data), width, height,
                  channels, (ctypes.c_double * 4)(*box) if box else None, kind, new_width,
                  new_height, ctypes.c_void_p(out.ctypes.data))
        return out

    def warp(self, image, matrix, kind, fill, width, height):
        out = numpy.empty((height, width) + image.shape[2:], numpy.uint8)
        self.call('warp_image', matrix, ctypes.c_void_p(image.ctypes.data), image.shape[1],
                  image.shape[0], 3 if image.ndim == 3 else 1, (ctypes.c_double * 9)(*matrix),
                  kind, (ctypes.c_ubyte * 3)(*fill), width, height,
                  ctypes.c_void_p(out.ctypes.data))
        return out

    def jitter(self, image, factors, order):
        out = image.copy()
        self.call('jitter_image', factors, ctypes.c_void_p(out.ctypes.data), image.shape[1],
                  image.shape[0], 3 if image.ndim == 3 else 1, (ctypes.c_double * 4)(*factors),
                  (ctypes.c_ubyte * 4)(*order))
        return out

    def orientation(self, file):
        class View(ctypes.Structure):
            _fields_ = [('data', ctypes.c_char_p), ('size', ctypes.c_size_t)]
        return self.library.bags_image_orientation(View(file, len(file)))

    def upright(self, file, kind):
        out = ctypes.create_string_buffer(1 << 20)
        shape = (ctypes.c_uint32 * 3)()
        self.call('decode_upright', kind, file, ctypes.c_size_t(len(file)), kind == 'png',
                  out, ctypes.c_size_t(len(out)), shape)
        shape = tuple(shape)[:2] if shape[2] == 1 else tuple(shape)
        count = int(numpy.prod(shape))
        return numpy.frombuffer(out.raw[:count], numpy.uint8).reshape(shape)

    def write(self, path, kind, files):
        self.call('write_images', path, path.encode(), kind.encode(),
                  (ctypes.c_char_p * len(files))(*files),
                  (ctypes.c_size_t * len(files))(*map(len, files)),
                  ctypes.c_size_t(len(files)))

    def load(self, path, r):
        shape = (r.channels, r.height, r.width) if r.nchw else (r.height, r.width, r.channels)
        out = numpy.empty((r.length,) + shape, numpy.float32 if r.real else numpy.uint8)
        indices = (ctypes.c_uint64 * r.length)()
        self.call('load_batch', path, path.encode(), ctypes.byref(r),
                  ctypes.c_void_p(out.ctypes.data), indices)
        return out, list(indices)


class Random:
    """The random numbers of a datapoint, which depend on seed, epoch and position."""
    MASK, GOLDEN = 2 ** 64 - 1, 0x9E3779B97F4A7C15

    @classmethod
    def mix(cls, x):
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & cls.MASK
        x = (x ^ x >> 27) * 0x94D049BB133111EB & cls.MASK
        return x ^ x >> 31

    def __init__(self, state):
        self.state = state

    @classmethod
    def of(cls, seed, epoch, position):
        return cls(cls.mix(cls.key(~seed & cls.MASK, epoch) + position & cls.MASK))

    @classmethod
    def key(cls, seed, number):
        return cls.mix(cls.mix(seed + cls.GOLDEN & cls.MASK) + number & cls.MASK)

    def next(self):
        self.state = self.state + self.GOLDEN & self.MASK
        return self.mix(self.state)

    def uniform(self, low=0, high=1):
        return low + (high - low) * ((self.next() >> 11) / 2 ** 53)

    def below(self, most):
        return (self.next() >> 32) * (most + 1) >> 32


def random_box(rng, width, height, r):
    """torchvision's RandomResizedCrop."""
    areas = tuple(r.area) if r.area[1] else (0.08, 1)
    least, most = tuple(r.aspect) if r.aspect[1] else (3 / 4, 4 / 3)
    low, high = math.log(least), math.log(most)
    for _ in range(10):
        area = width * height * rng.uniform(*areas)
        aspect = math.exp(rng.uniform(low, high))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top, left = rng.below(height - h), rng.below(width - w)
            return left, top, left + w, top + h
    w, h = width, height
    if width / height < least:
        h = max(round(width / least), 1)
    elif width / height > most:
        w = max(round(height * most), 1)
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def times(a, b):
    return [sum(a[i // 3 * 3 + k] * b[i % 3 + 3 * k] for k in range(3)) for i in range(9)]


def corners_matrix(x, y, width, height):
    """What transforms four corners, clockwise, to those of an image."""
    dx1, dx2, dx3 = x[1] - x[2], x[3] - x[2], x[0] - x[1] + x[2] - x[3]
    dy1, dy2, dy3 = y[1] - y[2], y[3] - y[2], y[0] - y[1] + y[2] - y[3]
    det = dx1 * dy2 - dx2 * dy1
    g, h = (dx3 * dy2 - dx2 * dy3) / det, (dx1 * dy3 - dx3 * dy1) / det
    a, b, c = x[1] - x[0] + g * x[1], x[3] - x[0] + h * x[3], x[0]
    d, e, f = y[1] - y[0] + g * y[1], y[3] - y[0] + h * y[3], y[0]
    return [(e - f * h) * width, (c * h - b) * width, (b * f - c * e) * width,
            (f * g - d) * height, (a - c * g) * height, (c * d - a * f) * height,
            d * h - e * g, b * g - a * h, a * e - b * d]


def random_matrix(r, state, size, crop, resized):
    """From the tensor to the image."""
    width, height = size
    sides = r.width, r.height
    box = [0.0] * 8 + [1]
    for i in 0, 1:
        scale = (crop[i + 2] - crop[i]) / resized[i]
        start = crop[i] + round((resized[i] - sides[i]) / 2) * scale
        box[4 * i] = -scale if r.flipped[i] else scale
        box[3 * i + 2] = start + sides[i] * scale if r.flipped[i] else start
    if not r.warp:
        return box
    rng = Random(Random.key(state, 1))
    angle, scale = rng.uniform(*r.degrees), rng.uniform(*r.scale)
    shift = [rng.uniform(*r.translate_x) * width, rng.uniform(*r.translate_y) * height]
    shear = [rng.uniform(*r.shear_x), rng.uniform(*r.shear_y)]
    matrix = functional._get_inverse_affine_matrix(
        [width * 0.5, height * 0.5], angle, shift, scale or 1.0, shear) + [0, 0, 1]
    x, y = [], []
    for i in range(4):
        right, down = (rng.uniform() * r.perspective * side * 0.5 for side in size)
        x.append(width - right if i in (1, 2) else right)
        y.append(height - down if i in (2, 3) else down)
    if r.perspective:
        matrix = times(matrix, corners_matrix(x, y, width, height))
    matrix = times(matrix, box)
    return [number / matrix[8] for number in matrix]


def transform(image, matrix, kind, fill, size):
    """By Pillow."""
    method = Image.PERSPECTIVE if matrix[6] or matrix[7] else Image.AFFINE
    fill = tuple(fill) if image.mode == 'RGB' else fill[0]
    return image.transform(size, method, matrix, FILTERS[kind], fillcolor=fill)


def change_colours(image, factors, order):
    """By torchvision. Its ColorJitter leaves the hue out if none is requested."""
    for i in order:
        if i < 3 or factors[i]:
            image = (functional.adjust_brightness, functional.adjust_contrast,
                     functional.adjust_saturation, functional.adjust_hue)[i](image, factors[i])
    return image


def random_jitter(r, state):
    rng, order = Random(Random.key(state, 2)), [0, 1, 2, 3]
    factors = []
    for i, ranges in enumerate((r.brightness, r.contrast, r.saturation, r.hue)):
        drawn = rng.uniform(*ranges)
        factors.append(drawn if any(ranges) else float(i < 3))
    for i in 3, 2, 1:
        k = int(rng.uniform() * (i + 1))
        order[i], order[k] = order[k], order[i]
    return factors, order


def make_tensor(r, file, position):
    """What the loader should make of a file, by Pillow, NumPy and torchvision."""
    rng = Random.of(r.seed, r.epoch, position)
    state = rng.state
    r.flipped = [bool(p and rng.uniform() >= 1 - p) for p in r.flips]
    image = Image.open(io.BytesIO(file))
    if r.orient:
        image = ImageOps.exif_transpose(image)
    size, crop, resized = image.size, (0, 0) + image.size, (r.width, r.height)
    if r.crop == CROP_RANDOM:
        crop = random_box(rng, *size, r)
    if r.crop == CROP_CENTER:
        width, height = size
        if width <= height:
            resized = r.resize, r.resize * height // width
        else:
            resized = r.resize * width // height, r.resize
    mode = 'RGB' if r.channels == 3 else 'L'
    if r.warp or r.filter == NEAREST:
        matrix = random_matrix(r, state, size, crop, resized)
        image = transform(image.convert(mode), matrix, r.filter, r.fill, (r.width, r.height))
    else:
        left, top = (round((a - b) / 2) for a, b in zip(resized, (r.width, r.height)))
        image = image.crop(crop).convert(mode).resize(resized, FILTERS[r.filter])
        image = image.crop((left, top, left + r.width, top + r.height))
        if torchvision:
            image = change_colours(image, *random_jitter(r, state))
        if r.flipped[0]:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        if r.flipped[1]:
            image = image.transpose(Image.FLIP_TOP_BOTTOM)
    if torchvision and (r.warp or r.filter == NEAREST):
        image = change_colours(image, *random_jitter(r, state))
    out = numpy.asarray(image).reshape((r.height, r.width, r.channels))
    if r.real:
        f = numpy.float32
        out = (out.astype(f) / f(255) - numpy.array(r.mean[:r.channels], f))
        out = out / numpy.array(r.std[:r.channels], f)
    return out.transpose(2, 0, 1) if r.nchw else out


def random_file(kind):
    """A smooth picture with some noise, as a file."""
    width, height = random.randint(8, 300), random.randint(8, 300)
    if random.random() < 0.1:
        width = random.randint(1, 8)  # too narrow for most crops
    mode = random.choice(('RGB', 'RGB', 'L') if kind == 'jpeg' else
                         ('RGB', 'RGBA', 'L', 'LA', 'P'))
    small = numpy.random.randint(0, 256, (5, 7, 4), numpy.uint8)
    noise = numpy.random.randint(0, 30, (height, width, 4), numpy.uint8)
    image = numpy.asarray(Image.fromarray(small, 'RGBA').resize((width, height)))
    image = Image.fromarray(image // 9 * 8 + noise, 'RGBA')
    if mode in ('P', 'L', 'RGB'):
        image = image.convert('RGB')
    file = io.BytesIO()
    options = {'quality': random.choice((50, 75, 95)), 'subsampling': random.choice((0, 1, 2)),
               'progressive': random.random() < 0.2}
    options = options if kind == 'jpeg' else {}
    image.convert(mode).save(file, kind, exif=exif_block(random.randint(0, 9)), **options)
    return file.getvalue()


def exif_block(orientation, order='<>', entries=0):
    """EXIF data with an orientation, and before it some other entries, as in a file."""
    order = random.choice(order)
    block = (b'II' if order == '<' else b'MM') + struct.pack(order + 'HLH', 42, 8, entries + 1)
    for i in range(entries):
        block += struct.pack(order + 'HHLL', 0x100 + i, 4, 1, i)
    block += struct.pack(order + 'HHLHHL', 0x0112, 3, 1, orientation, 0, 0)
    return b'Exif\0\0' + block


def hostile_block():
    """EXIF data with a few damaged bytes, or truncated, without fractions: Pillow accepts
    6.0 as an orientation."""
    block = bytearray(exif_block(random.randint(1, 8), entries=random.randint(0, 3)))
    for _ in range(random.randint(0, 3)):
        block[random.randrange(6, len(block))] = random.choice(
            (0, 1, 2, 3, 4, 6, 7, 8, 9, 13, 14, 16, 18, 20, 30, 255, random.randrange(256)))
    if random.random() < 0.3:
        del block[random.randrange(6, len(block)):]
    return bytes(block)


def orientation_by_pillow(file):
    """None: it does not open the file, or uses a fraction."""
    try:
        value = Image.open(io.BytesIO(file)).getexif().get(0x0112, 1)
    except SyntaxError:
        return 1
    except (struct.error, OSError):
        return None
    if isinstance(value, int):
        return value if 1 <= value <= 8 else 1
    return None if isinstance(value, float) or hasattr(value, 'numerator') else 1


def compare_orientations(library, count):
    failed = done = 0
    for kind, mode in (('jpeg', 'L'), ('jpeg', 'RGB'), ('png', 'L'), ('png', 'RGB'),
                       ('png', 'RGBA'), ('png', 'LA'), ('png', 'P')):
        for orientation in range(10):
            for order in '<', '>':
                image = pixels((orientation, 4, 37, 21))
                image = Image.fromarray(image, 'RGBA').convert('RGB').convert(mode)
                file = io.BytesIO()
                image.save(file, kind, exif=exif_block(orientation, order, orientation % 3))
                wanted = ImageOps.exif_transpose(Image.open(file))
                got = library.upright(file.getvalue(), kind)
                done += 1
                if not numpy.array_equal(numpy.asarray(wanted), got):
                    failed += 1
                    print('FAILED', kind, mode, orientation, order)
    file = io.BytesIO()
    Image.new('L', (1, 1)).save(file, 'jpeg')
    plain = file.getvalue()
    warnings.simplefilter('ignore')
    for _ in range(count):
        block = hostile_block()
        segment = b'\xff\xe1' + struct.pack('>H', len(block) + 2) + block
        jpeg = plain[:20] + segment + plain[20:]
        wanted = orientation_by_pillow(jpeg)
        done += 1
        if wanted not in (None, library.orientation(jpeg)):
            failed += 1
            print('FAILED', block.hex(), wanted, library.orientation(jpeg))
    print('%d images and blocks of EXIF oriented as by Pillow' % (done - failed))
    return failed


def random_request():
    r = Request(seed=random.getrandbits(64), epoch=random.getrandbits(20),
                batch=random.randint(0, 3), length=8, channels=random.choice((1, 3, 3)),
                width=random.randint(1, 120), height=random.randint(1, 120))
    r.crop = random.choice((CROP_NONE, CROP_CENTER, CROP_RANDOM, CROP_RANDOM))
    if r.crop == CROP_CENTER:
        r.resize = max(r.width, r.height) + random.randint(0, 40)
    r.filter = random.choice((0, 0, 1, 1, NEAREST))
    r.nchw, r.real, r.orient = (random.choice((0, 1)) for _ in range(3))
    r.flips[:] = random.choice((0, 0.5, 0.5, 1)), random.choice((0, 0, 0.5))
    if r.crop == CROP_RANDOM and random.random() < 0.3:
        r.area[:] = sorted((random.uniform(0.01, 1), random.uniform(0.01, 1)))
        r.aspect[:] = sorted((random.uniform(0.1, 8), random.uniform(0.1, 8)))
    r.warp = random.choice((0, 1)) if torchvision else 0
    for name, low, high in (('degrees', -180, 180), ('scale', 0.5, 2), ('shear_x', -30, 30),
                            ('shear_y', -30, 30), ('translate_x', -0.3, 0.3),
                            ('translate_y', -0.3, 0.3)):
        if r.warp and random.random() < 0.4:
            getattr(r, name)[:] = sorted((random.uniform(low, high), random.uniform(low, high)))
    r.perspective = random.choice((0, 0, 0.3, 0.6)) if r.warp else 0
    r.fill[:] = random.choices(range(256), k=3) if r.warp else (0, 0, 0)
    for name, low, high in (('brightness', 0, 2), ('contrast', 0, 2), ('saturation', 0, 3),
                            ('hue', -0.5, 0.5)):
        if torchvision and random.random() < 0.4:
            getattr(r, name)[:] = sorted((random.uniform(low, high), random.uniform(low, high)))
    if r.real:
        r.mean[:] = 0.485, 0.456, 0.406
        r.std[:] = 0.229, 0.224, 0.225
    return r


def compare_batches(library, folder, count):
    """The number of batches that differ."""
    failed = 0
    for kind in 'jpeg', 'png':
        files = [random_file(kind) for _ in range(32)]
        path = folder + '/' + kind
        library.write(path, kind, files)
        for _ in range(count):
            r = random_request()
            got, indices = library.load(path, r)
            wanted = numpy.stack([make_tensor(r, files[index], r.batch * r.length + i)
                                  for i, index in enumerate(indices)])
            if not numpy.array_equal(wanted, got):
                failed += 1
                print('FAILED', kind, r,
                      numpy.abs(wanted.astype(float) - got).max(axis=(1, 2, 3)))
    print('%d batches of images equal those by Pillow and NumPy %s' % (
        2 * count - failed, numpy.__version__))
    return failed


def random_image():
    width, height = random.randint(1, 60), random.randint(1, 60)
    shape = (height, width, 3) if random.random() < 0.7 else (height, width)
    return numpy.random.randint(0, 256, shape, numpy.uint8)


def random_transformation(image):
    """A matrix, and the size of its result. Some only scale, or need points far away."""
    factor = random.choice((0.01, 0.3, 1, 1, 3))
    matrix = [random.uniform(-2, 2) * factor for _ in range(6)] + [0.0, 0.0, 1]
    matrix[2] *= image.shape[1] * random.choice((0.5, 0.5, 1000))
    matrix[5] *= image.shape[0] / 2
    kind = random.random()
    if kind < 0.2:
        matrix[1] = matrix[3] = 0.0
    if kind < 0.1:
        matrix = [round(x * 4) / 4 for x in matrix]
    if kind > 0.6:
        matrix[6:8] = random.uniform(-0.03, 0.03), random.uniform(-0.03, 0.03)
    return matrix, (random.randint(1, 90), random.randint(1, 90))


def random_colours():
    factors = [random.choice((0, 1, random.uniform(0, 2), random.uniform(0, 9)))
               for _ in range(3)]
    factors.append(random.choice((0, -0.5, 0.5, random.uniform(-0.5, 0.5))))
    return factors, random.sample(range(4), 4)


def compare_warps(library, count):
    failed = 0
    for _ in range(count):
        image = random_image()
        matrix, size = random_transformation(image)
        fill = random.choices(range(256), k=3)
        kind = random.choice((0, 1, 2))
        wanted = transform(Image.fromarray(image), matrix, kind, fill, size)
        got = library.warp(image, matrix, kind, fill, *size)
        if not numpy.array_equal(numpy.asarray(wanted), got):
            failed += 1
            print('FAILED', image.shape, size, matrix, kind)
    print('%d images transformed as by Pillow' % (count - failed))
    return failed


def compare_jitters(library, count):
    """Random colours, and all 2^24 once."""
    failed = 0
    cases = [(random_image(), *random_colours()) for _ in range(count)]
    every = numpy.arange(1 << 24, dtype=numpy.uint32).reshape((4096, 4096))
    every = numpy.dstack((every >> 16, every >> 8, every)).astype(numpy.uint8)
    cases.append((every, (1, 1, 1.7, random.uniform(-0.5, 0.5)), (3, 0, 1, 2)))
    for image, factors, order in cases:
        wanted = change_colours(Image.fromarray(image), factors, order)
        if not numpy.array_equal(numpy.asarray(wanted), library.jitter(image, factors, order)):
            failed += 1
            print('FAILED', image.shape, factors, order)
    print('%d changes of colours as by torchvision %s' % (
        len(cases) - failed, torchvision.__version__))
    return failed


def compare_resizes(library, count):
    failed = 0
    for seed in range(count):
        case = random_case(seed, random.choice((20, 60, 160)))
        image = pixels(case)
        wanted, got = by_pillow(case, image), library.resize(case, image)
        if not numpy.array_equal(wanted, got):
            failed += 1
            print('FAILED', case, '%d bytes differ' % (wanted != got).sum())
    print('%d images resized as by Pillow %s' % (count - failed, Image.__version__))
    return failed


def compare(count):
    random.seed(count)
    numpy.random.seed(count)
    with tempfile.TemporaryDirectory() as folder:
        library = Library(folder)
        results = [compare_resizes(library, count), compare_warps(library, count // 5)]
        if torchvision:
            results.append(compare_jitters(library, count // 5))
        else:
            print('skipped colours, and warps of batches: no torchvision')
        if library.images:
            results.append(compare_batches(library, folder, count // 100))
            results.append(compare_orientations(library, count))
        else:
            print('skipped batches: libjpeg or libpng not found')
    bad = sum(result > 0 for result in results)
    print('%d passed, %d failed' % (len(results) - bad, bad))
    return bad


if sys.argv[1:] == ['write']:
    write()
    write_warps()
else:
    sys.exit(compare(int(sys.argv[1]) if sys.argv[1:] else 10000) > 0)
