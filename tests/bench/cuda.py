#!/usr/bin/env python3
"""Measure the decoding of images on a GPU, in at most nine minutes:

    tests/bench/cuda.py [PACKAGE [VIDEOS]]
        PACKAGE  build/python (the default), where bags/ is
        VIDEOS   a folder for the videos, which ffmpeg makes unless they are there: a run on another
                 computer may make them

It prints which libraries exist; how far the GPU's pixels are from the CPU's; images/s and the
use of the CPU, on the GPU and on all cores; the growth of memory in 10^5 images; two epochs of
a small network in PyTorch; and for videos of H.264, HEVC and AV1 of 480p and 1080p the PSNR, frames/s
of shuffled frames and of neighbours, and the growth. With BAGS_QUICK it does all that with few
images. Without a GPU it prints why, and ends with 0. Needs NumPy and Pillow, and for videos FFmpeg;
PyTorch if it exists. It ends with 1 if a PSNR is below 45 dB, if memory grows, or if no image of a
kind was made by the GPU.
"""
import ctypes
import io
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
END = time.monotonic() + 480  # every part stops then
QUICK = bool(os.environ.get('BAGS_QUICK'))
PHOTOS = HERE.parent / 'data' / 'photos'
FIELD = {'width': 224, 'height': 224, 'crop': 'random', 'flip_x': .5}
FLOAT = {**FIELD, 'dtype': 'float32', 'nchw': True, 'mean': (.485, .456, .406), 'std': (.229, .224, .225)}
ENCODERS = {'h264': ('-c:v', 'libx264', '-preset', 'veryfast'),
            'hevc': ('-c:v', 'libx265', '-preset', 'ultrafast', '-x265-params', 'log-level=none:open-gop=0'),
            'av1': ('-c:v', 'libsvtav1', '-preset', '10')}
failures = []


def left():
    return END - time.monotonic()


def libraries():
    """Print which libraries exist. The driver, or None."""
    found = {}
    for names in (('libcuda.so.1',), ('libnvjpeg.so.13', 'libnvjpeg.so.12', 'libnvjpeg.so.11', 'libnvjpeg.so'),
                  ('libnvcuvid.so.1',)):
        for name in names:
            try:
                found[names[0]] = ctypes.CDLL(name)
                break
            except OSError:
                continue
        print(f'{names[0].split(".")[0]:12}{name if names[0] in found else "not found"}')
    return found.get('libcuda.so.1')


class Gpu:
    """Memory of the GPU, read by the driver."""

    def __init__(self, driver):
        self.driver = driver
        name, context = ctypes.create_string_buffer(100), ctypes.c_void_p()
        self.check(driver.cuInit(0))
        device = ctypes.c_int()
        self.check(driver.cuDeviceGet(ctypes.byref(device), 0))
        self.check(driver.cuDeviceGetName(name, 100, device))
        self.check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self.check(driver.cuCtxSetCurrent(context))
        print(f'GPU         {name.value.decode()}; {os.cpu_count()} CPU cores')

    def check(self, code):
        if code:
            raise RuntimeError(f'the driver returned {code}')

    def used(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check(self.driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        return total.value - free.value

    def read(self, tensor):
        """A DeviceTensor as an array."""
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        capsule = tensor.__dlpack__()
        address = ctypes.c_uint64.from_address(pointer(capsule, b'dltensor')).value
        out = np.empty(tensor.shape, tensor.dtype)
        self.check(self.driver.cuMemcpyDtoH_v2(ctypes.c_void_p(out.ctypes.data), ctypes.c_uint64(address),
                                               ctypes.c_size_t(out.nbytes)))
        return out


def jpegs(width, height, count):
    """Different JPEGs of a size: parts of the photographs."""
    from PIL import Image
    photos = [Image.open(path).convert('RGB') for path in sorted(PHOTOS.glob('*.jpg'))]
    random = np.random.default_rng(0)
    for i in range(count):
        photo = photos[i % len(photos)]
        x, y = random.integers(0, photo.width // 4), random.integers(0, photo.height // 4)
        part = photo.crop((x, y, x + photo.width * 3 // 4, y + photo.height * 3 // 4))
        out = io.BytesIO()
        part.resize((width, height)).save(out, 'JPEG', quality=90)
        yield out.getvalue()


def dataset(path, width, height, different, length):
    """A dataset of `length` images, `different` of which differ."""
    encoders = {**bags.encoders, 'jpeg': None}
    length = length // 128 if QUICK else length
    blobs = list(jpegs(width, height, different))
    with bags.DatasetWriter(path, {'image': 'jpeg', 'label': 'int'}, encoders) as writer:
        for i in range(length):
            writer.append({'image': blobs[i % different], 'label': i % 2})


def psnr(gpu, path):
    for name, field in ('uint8', FIELD), ('float32', FLOAT), ('whole', {'width': 500, 'height': 375}):
        options = {'fields': {'image': field}, 'seed': 1}
        worst, scale = 1e9, 1 if name != 'float32' else .224 * 255
        for a, b, _ in zip(bags.Loader(path, 64, device=0, **options), bags.Loader(path, 64, **options), range(2)):
            differences = (gpu.read(a['image']).astype('f8') - b['image'].astype('f8')) * scale
            errors = (differences ** 2).reshape(len(differences), -1).mean(1)
            worst = min(worst, 10 * np.log10(255 ** 2 / max(errors.max(), 1e-9)))
        print(f'PSNR        {name}: the worst image {worst:.1f} dB')
        if worst < 45:
            failures.append(f'PSNR {name}')


def speed(path, name, seconds, field='image', **options):
    """Load for some seconds, and print images/s and the use of the CPU."""
    seconds = min(.1 if QUICK else seconds, left())
    if seconds < 3 and not QUICK:
        return print(f'speed       {name}: no time left')
    loader = bags.Loader(path, 256 if field == 'image' else 32, fields={field: FLOAT}, seed=2, **options)
    images, start, used = 0, None, None
    try:
        while start is None or time.monotonic() < start + seconds:
            for batch in loader:
                if start is None or time.monotonic() > start + seconds:
                    if start is not None:
                        break
                    start, used = time.monotonic(), os.times()
                    continue
                images += batch[field].shape[0]
    finally:
        loader.close()
    took, after = time.monotonic() - start, os.times()
    cpu = (after.user + after.system - used.user - used.system) / took
    print(f'speed       {name}: {images / took:.0f} images/s, {cpu:.1f} CPU cores'
          + (f', {loader.on_cpu} images made by the CPU' if 'device' in options else ''), flush=True)


def growth(gpu, path, count, spare, field='image', **options):
    loader = bags.Loader(path, 256 if field == 'image' else 32, fields={field: FIELD}, seed=3, device=0, **options)
    images, before = 0, None
    while images < count and left() > spare:
        for batch in loader:
            images += batch[field].shape[0]
            if before is None and images >= count // 4:
                before = gpu.used(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    after = gpu.used(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loader.close()
    if before is None:
        return print('growth      no time left')
    more = (after[0] - before[0]) / 1e6, (after[1] - before[1]) / 1e3
    print(f'growth      {images} images: GPU {more[0]:+.1f} MB, process {more[1]:+.1f} MB')
    if more[0] > 100 or more[1] > 100:
        failures.append('growth')


def make_video(path, codec, width, height, photo, length):
    """Write a video of a part of a photograph that moves, with a keyframe every 12 frames. Returns the
    reason if that fails."""
    photo = photo.resize((width + 2 * length, height + length))
    raw = b''.join(photo.crop((2 * k, k, 2 * k + width, k + height)).tobytes() for k in range(length))
    if not shutil.which('ffmpeg'):
        return 'ffmpeg not found'
    made = subprocess.run(
        ['ffmpeg', '-v', 'error', '-f', 'rawvideo', '-pix_fmt', 'rgb24', '-s', f'{width}x{height}', '-r', '30',
         '-i', '-', '-pix_fmt', 'yuv420p', '-g', '12', *ENCODERS[codec], '-movflags', '+faststart', '-y', path],
        input=raw, stderr=subprocess.PIPE)
    return made.stderr.decode().strip().split('\n')[0] if made.returncode else None


def make_videos(store):
    """Datasets of videos, each with the reason why it was not made, or None."""
    from PIL import Image
    photos = [Image.open(path).convert('RGB') for path in sorted(PHOTOS.glob('*.jpg'))]
    count, length = (2, 24) if QUICK else (8, 48)
    for codec in ENCODERS if bags.build['mp4'] else ():
        for width, height in ((854, 480),) if QUICK else ((854, 480), (1920, 1080)):
            path, reason = store / f'{codec}-{height}p', None
            if path.exists():
                yield path.name, None
                continue
            encoders = {**bags.encoders, 'mp4': None}
            file = store / 'made.mp4'
            with bags.DatasetWriter(path, {'clock': 'int(4)[]', 'view': 'mp4'}, encoders) as writer:
                for i in range(count):
                    reason = reason or make_video(file, codec, width, height, photos[i % len(photos)], length)
                    if not reason:
                        writer.append({'clock': list(range(length)), 'view': file.read_bytes()})
            if reason:
                shutil.rmtree(path)
            yield path.name, reason


def frames(gpu, path, name):
    """The PSNR, frames/s and growth of a dataset of videos."""
    options = {'fields': {'view': {'width': 224, 'height': 224, 'crop': 'random'}}, 'frames': 'clock', 'seed': 1}
    worst, on_gpu = 1e9, bags.Loader(path, 32, device=0, **options)
    for a, b, _ in zip(on_gpu, bags.Loader(path, 32, **options), range(2)):
        errors = (gpu.read(a['view']).astype('f8') - b['view']) ** 2
        worst = min(worst, 10 * np.log10(255 ** 2 / max(errors.reshape(len(errors), -1).mean(1).max(), 1e-9)))
    if on_gpu.on_cpu:
        print(f'videos      {name}: the CPU made {on_gpu.on_cpu} frames')
        failures.append(f'{name}: not on the GPU')
    on_gpu.close()
    print(f'PSNR        {name}: the worst frame {worst:.1f} dB')
    if worst < 45:
        failures.append(f'PSNR {name}')
    for order, shuffle in ('shuffled', True), ('in order', False):
        for threads in (1, 8):
            speed(path, f'GPU, {name}, {order}, {threads} threads', 4, 'view', device=0, threads=threads, frames='clock',
                  shuffle=shuffle)
        speed(path, f'all cores, {name}, {order}', 4, 'view', frames='clock', shuffle=shuffle)
    growth(gpu, path, 200 if QUICK else 3000, 10, 'view', frames='clock')


def train(path):
    try:
        import torch
    except ImportError:
        return print('training    skipped: torch not found')
    if not torch.cuda.is_available():
        return print('training    skipped: this torch has no CUDA')
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 7, 4), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, 2), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 2)).cuda()
    adam = torch.optim.Adam(net.parameters(), 1e-3)
    loader = bags.Loader(path, 128, fields={'image': FLOAT, 'label': {'dtype': 'int64'}}, seed=4, device=0)
    for epoch in range(2):
        start, losses = time.monotonic(), []
        for batch in loader:
            images = torch.from_dlpack(batch['image'])
            assert images.is_cuda and images.shape[1:] == (3, 224, 224)
            loss = torch.nn.functional.cross_entropy(net(images), torch.from_numpy(batch['label']).cuda())
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses.append(loss.detach())
        losses = torch.stack(losses).cpu()
        print(f'training    epoch {epoch}: loss {losses[:3].mean():.3f} to {losses[-3:].mean():.3f}, '
              f'{time.monotonic() - start:.1f} s')
        if not bool(torch.isfinite(losses).all()):
            failures.append('training')


def main():
    driver = libraries()
    if not driver:
        print('skipped: no NVIDIA driver')
    if not driver and len(sys.argv) < 3:
        return 0
    global bags, np  # imported here, so that a computer without a GPU needs neither
    sys.path.insert(0, os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else HERE.parents[1] / 'build/python'))
    import bags
    import numpy as np
    folder = pathlib.Path(tempfile.mkdtemp())
    store = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else folder
    try:
        store.mkdir(exist_ok=True)
        refused = dict(make_videos(store))
        if not driver:
            return 0
        gpu = Gpu(driver)
        dataset(folder / 'a', 500, 375, 64, 10240)
        psnr(gpu, folder / 'a')
        speed(folder / 'a', 'GPU, 500 x 375 to 224', 20, device=0)
        for threads in 1, 2, 4, 8:
            speed(folder / 'a', f'GPU, {threads} threads', 10, device=0, threads=threads)
        speed(folder / 'a', 'all cores', 20)
        for width, height in (854, 480), (1920, 1080):
            dataset(folder / f'{height}', width, height, 16, 2048)
            speed(folder / f'{height}', f'GPU, {height}p', 10, device=0)
            speed(folder / f'{height}', f'all cores, {height}p', 10)
        growth(gpu, folder / 'a', 500 if QUICK else 100000, 280)
        train(folder / 'a')
        for name, reason in refused.items():
            if reason or left() < 40:
                print(f'videos      {name}: skipped: {reason or "no time left"}')
            else:
                frames(gpu, store / name, name)
    finally:
        shutil.rmtree(folder)
    print('failed: ' + ', '.join(failures) if failures else 'passed')
    return bool(failures)


if __name__ == '__main__':
    sys.exit(main())
