#!/usr/bin/python3
"""Bags by Python, with what comes with it, as the Python package reads and writes
them: a file object, two offsets and one read a blob; the table read when the file
is opened.

    peer_python.py OPERATION PATH COUNT SIZE STEPS

prints the nanoseconds that a blob takes. check does all of it once, and prints the
sum of the words that consume() of peers.h adds.
"""
import os
import random
import struct
import sys
import time


class Writer:
    def __init__(self, path):
        self.file = open(path, 'xb')
        self.ends = [0]

    def append(self, blob):
        self.file.write(blob)
        self.ends.append(self.ends[-1] + len(blob))

    def close(self, sync=False):
        self.file.write(b''.join(end.to_bytes(8, 'little') for end in self.ends))
        self.file.flush()
        if sync:
            os.fsync(self.file.fileno())
        self.file.close()


class Reader:
    def __init__(self, path):
        self.file = open(path, 'rb')
        size = os.path.getsize(path)
        self.file.seek(-8, os.SEEK_END)
        start = int.from_bytes(self.file.read(8), 'little')
        self.length = (size - 8 - start) // 8
        self.file.seek(start)
        self.table = self.file.read()

    def offsets(self, start, stop):
        return struct.unpack_from('<%dQ' % (stop - start + 1), self.table, 8 * start)

    def __getitem__(self, index):
        start = int.from_bytes(self.table[8 * index:8 * index + 8], 'little')
        stop = int.from_bytes(self.table[8 * index + 8:8 * index + 16], 'little')
        self.file.seek(start)
        return self.file.read(stop - start)

    def range(self, start, stop):
        ends = self.offsets(start, stop)
        self.file.seek(ends[0])
        data = self.file.read(ends[-1] - ends[0])
        return [data[a - ends[0]:b - ends[0]] for a, b in zip(ends, ends[1:])]

    def close(self):
        self.file.close()


def write(path, count, size, sync, clock=time.perf_counter_ns):
    pool = os.urandom(size + 4096)
    blobs = [pool[i:i + size] for i in range(min(64, 1 + (1 << 20) // size))]
    start = clock()
    writer = Writer(path)
    for i in range(count):
        writer.append(blobs[i % len(blobs)])
    writer.close(sync)
    return (clock() - start) / count


def open_first(path):
    times = []
    for _ in range(5):
        start = time.perf_counter_ns()
        reader = Reader(path)
        reader[0]
        times.append(time.perf_counter_ns() - start)
        reader.close()
    return sorted(times)[2]


def each(path, steps, width):
    reader = Reader(path)
    width = min(width, reader.length)
    indices = [random.randrange(reader.length - width + 1) for _ in range(steps)]
    start = time.process_time_ns()
    if width == 1:
        for i in indices:
            reader[i]
    else:
        for i in indices:
            reader.range(i, i + width)
    return (time.process_time_ns() - start) / steps


def scan(path):
    reader = Reader(path)
    start = time.process_time_ns()
    for i in range(0, reader.length, 16):
        reader.range(i, min(i + 16, reader.length))
    return (time.process_time_ns() - start) / reader.length


def check(path):
    reader, total = Reader(path), 0
    for i in range(reader.length):
        blob = reader[i]
        assert reader.range(i, i + 1) == [blob]
        for at in range(0, len(blob) - 7, 64):
            total += int.from_bytes(blob[at:at + 8], 'little')
    copy = path + '.copy'
    write(copy, reader.length, 100, True)
    assert Reader(copy).length == reader.length
    for measured in open_first(path), each(path, 9, 1), each(path, 9, 16), scan(path):
        assert measured > 0
    return total % 2**64


def main():
    operation, path = sys.argv[1:3]
    count, size, steps = map(int, sys.argv[3:6])
    if operation == 'write, CPU':
        print(write(path, count, size, False, time.process_time_ns))
    elif operation in ('write', 'write, synced'):
        print(write(path, count, size, operation != 'write'))
    elif operation == 'open, first get':
        print(open_first(path))
    elif operation == 'copy':
        print(each(path, steps, 1))
    elif operation == 'range of 16':
        print(each(path, max(1, steps // 16), 16))
    elif operation == 'scan':
        print(scan(path))
    else:
        print(check(path))


main()
