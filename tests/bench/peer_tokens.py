#!/usr/bin/python3
"""Batches of 64 windows of 2,048 tokens of uint16 at random, by NumPy's memmap: the bare
loop, and as nanoGPT's get_batch makes inputs and labels of int64:

    tests/bench/peer_tokens.py [N]     of N million tokens (1,000), in TMPDIR

Medians, in microseconds of the processor per batch, to be compared with bench_tokens.
The second needs Debian's python3-torch."""

import statistics
import sys
import tempfile
import time

import numpy

try:
    import torch
except ImportError:
    torch = None

WINDOW, BATCH = 2048, 64


def bare(tokens):
    starts = numpy.random.randint(0, len(tokens) - WINDOW, BATCH)
    return numpy.stack([tokens[i:i + WINDOW + 1] for i in starts])


def get_batch(tokens):
    tokens = numpy.memmap(tokens.filename, numpy.uint16, 'r')  # as it does for each batch
    starts = torch.randint(len(tokens) - WINDOW, (BATCH,))
    return [torch.stack([torch.from_numpy(tokens[i + k:i + k + WINDOW].astype(numpy.int64))
                         for i in starts]) for k in (0, 1)]


def main():
    millions = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    if torch:
        torch.set_num_threads(1)
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(millions):
            file.write(numpy.random.randint(0, 1 << 16, 10 ** 6, numpy.uint16).tobytes())
        file.flush()
        tokens = numpy.memmap(file.name, numpy.uint16, 'r')
        for name, make in (('memmap', bare), ('get_batch', get_batch)):
            if name == 'get_batch' and not torch:
                print('skipped get_batch: no torch')
                continue
            times = []
            for _ in range(300):
                start = time.thread_time()
                make(tokens)
                times.append(time.thread_time() - start)
            print(f'{name:10} {statistics.median(times) * 1e6:6.0f} us')


if __name__ == '__main__':
    main()
