#!/usr/bin/python3
"""For bench_lance: values of a dataset through the Python package in build/python.

    peer_lance.py DATASET    prints a line for each batch size: microseconds per value by
                             the clock, and of the processor

One by one is reader[i]['v'], a batch is reader[[i, j, ...]]['v']. Value i begins with i
as 32 bits, little-endian."""
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'build/python'))
import bags  # noqa: E402

TURNS = [(1, 20000), (32, 600), (1000, 20)]  # batch size, batches


def main():
    with bags.DatasetReader(sys.argv[1]) as reader:
        for batch, batches in TURNS:
            asked = [random.sample(range(len(reader)), batch) for _ in range(batches)]
            took, used, wrong = 0, 0, 0
            for indices in asked:
                start, cpu = time.perf_counter_ns(), time.process_time_ns()
                if batch == 1:
                    values = [reader[indices[0]]['v']]
                else:
                    values = reader[indices]['v']
                took += time.perf_counter_ns() - start
                used += time.process_time_ns() - cpu
                found = [int.from_bytes(value[:4], 'little') for value in values]
                wrong += found != indices
            if wrong:
                sys.exit('other values than asked for')
            print(took / 1e3 / batch / batches, used / 1e3 / batch / batches)


main()
