"""Epochs of `bags load` from the cache on disk, next to a local copy: 1,500 JPEG files of
300 x 300 pixels, and a server that answers after 30 ms. All epochs after the first, in
turns; the machine must be idle.

    tests/bench/cached.py [build/release/bags [ROUNDS]]
"""
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / 'command'))
import numpy
import PIL.Image
import server

PROGRAM = os.path.abspath(sys.argv[1] if sys.argv[1:] else 'build/release/bags')
ROUNDS = int(sys.argv[2]) if sys.argv[2:] else 7
EPOCHS = 8


def make(path):
    random = numpy.random.default_rng(1)
    with open('rows', 'w', encoding='utf-8') as rows:
        for i in range(1500):
            if i < 100:
                pixels = random.integers(0, 256, (40, 40, 3), dtype=numpy.uint8)
                PIL.Image.fromarray(pixels).resize((300, 300), PIL.Image.BICUBIC).save(
                    f'{i}.jpg', quality=90)
            rows.write(json.dumps({'image': {'file': f'{i % 100}.jpg'}}) + '\n')
    subprocess.run([PROGRAM, 'pack', 'rows', path, '--spec', 'image=jpeg', '--no-sync'],
                   check=True, stdout=subprocess.DEVNULL)


def load(path, epochs):
    """Wall time and processor time."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([PROGRAM, 'load', path, '--crop', '224', '--epochs', str(epochs)],
                   check=True, stdout=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return numpy.array([time.monotonic() - start, used.ru_utime - before.ru_utime +
                        used.ru_stime - before.ru_stime])


def main():
    make('site/ds')
    os.environ['BAGS_CACHE'] = 'cache'
    with server.Server('site', True, fault=lambda *_: time.sleep(0.03)) as remote:
        paths = 'site/ds', remote.url + '/ds'
        load(paths[1], 1)
        remote.sent, ratios = 0, []
        for i in range(ROUNDS):
            local, cached = [load(path, EPOCHS) - load(path, 1) for path in paths]
            ratios.append(local / cached)
            print(f'local {local[0]:.2f} s, processor {local[1]:.2f}; '
                  f'cached {cached[0]:.2f} s, processor {cached[1]:.2f}', flush=True)
        wall, processor = numpy.median(ratios, axis=0)
        print(f'local / cached, median: {wall:.2f}, processor {processor:.2f}; '
              f'{remote.sent} bytes sent; load {os.getloadavg()[0]:.1f}')


with tempfile.TemporaryDirectory() as directory:
    os.chdir(directory)
    main()
