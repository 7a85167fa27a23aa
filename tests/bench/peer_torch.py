#!/usr/bin/python3
"""The loader next to PyTorch's and granular's, which take turns, one thread or process
each:

    tests/bench/peer_torch.py build/release/tests/bench/bench_loader [JSON [ROUNDS]]

Both make batches of 32 tensors, 3 x 224 x 224, of the same photographs of 500 x 375:
random resized crop, flip, normalised. PyTorch's are torchvision's transforms of Pillow's
images. A second pair of figures is of images that are also turned, sheared, scaled and
moved, and whose colours are changed: at once by a matrix, or one step after the other.
granular's come from a function on Pillow and NumPy, which its Loader calls.
Figures are microseconds of the processor per image, so that other programs disturb them
little. Needs Debian's python3-torch and python3-torchvision; granular (0.22) is left out
if it cannot be imported."""

import glob
import io
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import PIL
    import torch
    import torchvision
    from PIL import Image
    from torchvision import transforms
except ImportError as error:
    print('skipped torch:', error)
    sys.exit()

try:
    import granular
    import numpy
except ImportError:
    granular = None

IMAGES, BATCH = 512, 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Photos(torch.utils.data.Dataset):
    def __init__(self, folder, *more):
        self.paths = sorted(glob.glob(folder + '/*.jpg'))
        self.transform = transforms.Compose([
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            *more,
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.transform(Image.open(self.paths[index]).convert('RGB'))


def by_torch(photos):
    loader = torch.utils.data.DataLoader(photos, batch_size=BATCH, shuffle=True)
    start, count = time.process_time(), 0
    for batch in loader:
        assert batch.shape[1:] == (3, 224, 224) and batch.dtype == torch.float32
        count += len(batch)
    return (time.process_time() - start) / count * 1e6


class Transform:
    """What granular's Loader calls in its processes."""

    def __init__(self, folder):
        self.folder, self.source = folder, None

    def __call__(self, step):
        if not self.source:
            reader = granular.DatasetReader(self.folder, {'jpeg': bytes})
            self.source = granular.sources.Epochs(reader, shuffle=True)
        image = Image.open(io.BytesIO(self.source(step)['image'])).convert('RGB')
        width, height = image.size
        w = h = math.inf
        while w > width or h > height:
            area = width * height * random.uniform(0.08, 1)
            aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        left, top = random.randint(0, width - w), random.randint(0, height - h)
        image = image.crop((left, top, left + w, top + h)).resize((224, 224), Image.BILINEAR)
        pixels = numpy.asarray(image, numpy.float32) / numpy.float32(255)
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        pixels = (pixels - numpy.array(MEAN, numpy.float32)) / numpy.array(STD, numpy.float32)
        return {'image': pixels.transpose(2, 0, 1)}


class Granular:
    """Its Loader with one process, which stays for all rounds."""

    def __init__(self, folder):
        copy = folder + '/granular'
        with granular.DatasetWriter(copy, {'image': 'jpeg'}, {'jpeg': bytes}) as writer:
            for path in sorted(glob.glob(folder + '/*.jpg')):
                with open(path, 'rb') as file:
                    writer.append({'image': file.read()})
        self.loader = granular.Loader(Transform(copy), BATCH, prefetch=2, workers=1,
                                      recycle_after=2)
        self.batches = iter(self.loader)
        next(self.batches)

    def used(self):
        with open(f'/proc/{self.loader.workers[0].pid}/stat', encoding='utf-8') as file:
            ticks = sum(map(int, file.read().rsplit(')', 1)[1].split()[11:13]))
        return ticks / os.sysconf('SC_CLK_TCK') + time.process_time()

    def measure(self):
        start, count = self.used(), IMAGES // BATCH
        for _ in range(count):
            assert next(self.batches)['image'].shape == (BATCH, 3, 224, 224)
        return (self.used() - start) / (count * BATCH) * 1e6


def main():
    program = sys.argv[1]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 7
    torch.set_num_threads(1)
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, 'write', folder, str(IMAGES)], check=True)
        photos = Photos(folder)
        warped = Photos(
            folder, transforms.RandomAffine(
                15, (0.1, 0.1), (0.8, 1.2), 10, transforms.InterpolationMode.BILINEAR),
            transforms.ColorJitter(0.4, 0.4, 0.4, 0.1))
        warps = []
        theirs = {'PyTorch': lambda: by_torch(photos)}
        if granular:
            theirs['granular'] = Granular(folder).measure
        by_torch(photos)
        for _ in range(rounds):
            ours = subprocess.run([program, 'images', folder], check=True,
                                  stdout=subprocess.PIPE).stdout.split()
            warps.append((float(subprocess.run([program, 'warps', folder], check=True,
                                               stdout=subprocess.PIPE).stdout),
                          by_torch(warped)))
            figures.append([*map(float, ours), *(measure() for measure in theirs.values())])
        if granular:
            theirs['granular'].__self__.loader.close()
    names = ('bags.h loader', 'bare loop', *theirs)
    medians = [statistics.median(column) for column in zip(*figures)]
    ratios = [statistics.median(row[i] / row[0] for row in figures)
              for i in range(len(names))]
    print(f'{rounds} rounds, load {os.getloadavg()[0]:.0f}, torch {torch.__version__}, '
          f'torchvision {torchvision.__version__}, Pillow {PIL.__version__}')
    for name, figure, ratio in zip(names, medians, ratios):
        print(f'{name:15} {figure:7.0f} us/image {1e6 / figure:6.0f} images/s   '
              f'the loader is {ratio:.2f} times as fast')
    times = statistics.median(theirs / own for own, theirs in warps)
    print('turned, sheared, scaled, moved, other colours: bags.h loader %.0f us/image, PyTorch '
          '%.0f; the loader is %.2f times as fast' % (
              *(statistics.median(column) for column in zip(*warps)), times))
    if len(sys.argv) > 2:
        results = [{'part': 'JPEG 500 x 375 to 224 x 224', 'operation': 'load an image',
                    'who': name, 'unit': 'ns', 'figure': figure * 1e3}
                   for name, figure in zip(names, medians)]
        with open(sys.argv[2], 'w', encoding='utf-8') as file:
            json.dump({'rounds': rounds, 'load': os.getloadavg()[0], 'results': results},
                      file, indent=1)
    return 0 if ratios[1] >= 0.95 and ratios[2] >= 2 and times >= 1.5 else 1


if __name__ == '__main__':
    sys.exit(main())
