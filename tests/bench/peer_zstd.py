#!/usr/bin/python3
"""For bench_zstd: English sentences, and the same values in zarr and in Parquet.

    peer_zstd.py sentences        those of this repository's documents and comments,
                                  each once, one a line
    peer_zstd.py BAG TYPE LENGTH  the blobs of a Bag, of utf8, agents, or LENGTH float32
                                  or uint16: bytes per blob, and microseconds of
                                  processor's time to read a random one, by zarr-python
                                  and by DuckDB; nan: not installed

zarr has chunks of 1,000 values (blosc, zstd, shuffle), Parquet has row groups of 2,048,
DuckDB's least, and zstd. Both take turns of 50 reads.
"""
import ctypes
import itertools
import json
import pathlib
import re
import shutil
import statistics
import struct
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
AGENT = [('centroid', '<f8', (2,)), ('extent', '<f4', (3,)), ('yaw', '<f4'),
         ('velocity', '<f4', (2,)), ('track_id', '<u8'), ('label_probabilities', '<f4', (17,))]
COLUMNS = {'utf8': {'v': 'VARCHAR'}, 'float32': {'v': 'FLOAT[]'}, 'uint16': {'v': 'USMALLINT[]'},
           'agents': {'centroid': 'DOUBLE[]', 'extent': 'FLOAT[]', 'yaw': 'FLOAT',
                      'velocity': 'FLOAT[]', 'track_id': 'UBIGINT',
                      'label_probabilities': 'FLOAT[]'}}


def paragraphs(path):
    text = path.read_text()
    if path.suffix in ('.c', '.h'):
        comments = re.findall(r'/\*(.*?)\*/', text, re.S)
        text = '\n\n'.join(re.sub(r'(?m)^ *\* ?', '', comment) for comment in comments)
    text = re.sub(r'(?ms)^```.*?^```|^\s*[|#=].*?$', '\n\n', text)
    return [' '.join(part.split()) for part in re.split(r'\n\s*\n', text)]


def sentences():
    found = {}
    paths = [ROOT / 'LICENSE', ROOT / 'README.md', ROOT / 'bags.h']
    for folder in ('formats', 'examples', 'tests'):
        paths += sorted(path for path in (ROOT / folder).rglob('*')
                        if path.suffix in ('.md', '.c', '.h'))
    for path in paths:
        for part in paragraphs(path):
            for text in re.split(r'(?<=[.:;?!])\s+(?=[A-Z])', part):
                letters = sum(c.isalpha() or c == ' ' for c in text)
                if len(text) >= 40 and letters > 0.85 * len(text):
                    found.setdefault(text)
    return list(found)


def blobs(path):
    data = pathlib.Path(path).read_bytes()
    table = int.from_bytes(data[-8:], 'little')
    ends = struct.unpack(f'<{(len(data) - table) // 8}Q', data[table:])
    return [data[start:stop] for start, stop in zip(ends, ends[1:])]


def plain(value):
    """A value as JSON has it: of a record, its columns."""
    if hasattr(value, 'dtype') and value.dtype.names:
        return {name: value[name].tolist() for name in value.dtype.names}
    return {'v': value.tolist() if hasattr(value, 'tolist') else value}


class Zarr:
    def __init__(self, path, values, kind):
        import numcodecs
        import zarr
        shutil.rmtree(path, ignore_errors=True)
        options = {'object_codec': numcodecs.VLenUTF8()} if kind == 'utf8' else {}
        self.array = zarr.open(
            path, 'w', shape=values.shape, dtype=values.dtype, fill_value=None,
            chunks=(1000, *values.shape[1:]),
            compressor=numcodecs.Blosc('zstd', shuffle=numcodecs.Blosc.SHUFFLE), **options)
        self.array[:] = values
        self.size = sum(file.stat().st_size for file in pathlib.Path(path).iterdir())

    def read(self, i):
        return self.array[i]


class Result(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in 'abcdef']


class Parquet:
    def __init__(self, path, values, kind):
        self.lib = ctypes.CDLL('libduckdb.so')
        for name in ('fetch_chunk', 'data_chunk_get_vector', 'vector_get_data',
                     'list_vector_get_child', 'result_error'):
            self.function(name).restype = ctypes.c_void_p
        self.function('data_chunk_get_size').restype = ctypes.c_uint64
        database, self.connection = ctypes.c_void_p(), ctypes.c_void_p()
        self.call('open', None, ctypes.byref(database))
        self.call('connect', database, ctypes.byref(self.connection))
        self.columns = COLUMNS[kind]
        lines = (json.dumps({'id': i, **plain(value)}) for i, value in enumerate(values))
        rows = pathlib.Path(path).with_suffix('.jsonl')
        rows.write_text('\n'.join(lines))
        types = ', '.join(f"{name}: '{type}'" for name, type in self.columns.items())
        for query in (
                'SET threads = 1', 'SET enable_object_cache = true',
                f"COPY (SELECT * FROM read_json('{rows}', format = 'newline_delimited', "
                f"columns = {{id: 'UBIGINT', {types}}})) TO '{path}' "
                '(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 2048)'):
            self.call('query', self.connection, query.encode(), None)
        self.size = pathlib.Path(path).stat().st_size
        self.statement = ctypes.c_void_p()
        self.call('prepare', self.connection,
                  f"SELECT {', '.join(self.columns)} FROM '{path}' WHERE id = ?".encode(),
                  ctypes.byref(self.statement))

    def function(self, name):
        return getattr(self.lib, 'duckdb_' + name)

    def call(self, name, *arguments):
        if self.function(name)(*arguments):
            sys.exit(f'duckdb_{name} failed: {arguments}')

    def read(self, i):
        """The first column as bytes."""
        result = Result()
        self.call('bind_uint64', self.statement, 1, ctypes.c_uint64(int(i)))
        self.call('execute_prepared', self.statement, ctypes.byref(result))
        chunk = ctypes.c_void_p(self.function('fetch_chunk')(result))
        assert self.function('data_chunk_get_size')(chunk) == 1
        vector = ctypes.c_void_p(self.function('data_chunk_get_vector')(chunk, 0))
        data = self.function('vector_get_data')(vector)
        type = next(iter(self.columns.values()))
        if type == 'VARCHAR':  # 4 bytes of size; 12 bytes, or 4 and a pointer
            size = ctypes.c_uint32.from_address(data).value
            if size > 12:
                data = ctypes.c_uint64.from_address(data + 8).value - 4
            found = ctypes.string_at(data + 4, size)
        else:
            start, count = (ctypes.c_uint64 * 2).from_address(data)
            width = {'FLOAT[]': 4, 'DOUBLE[]': 8, 'USMALLINT[]': 2}[type]
            child = ctypes.c_void_p(self.function('list_vector_get_child')(vector))
            found = ctypes.string_at(
                self.function('vector_get_data')(child) + start * width, count * width)
        self.function('destroy_data_chunk')(ctypes.byref(chunk))
        self.function('destroy_result')(ctypes.byref(result))
        return found


def check(peer, values, i):
    """What was read is what was written."""
    found, value = peer.read(i), values[i]
    if isinstance(peer, Zarr):
        assert (found == value) if isinstance(value, str) else found.tobytes() == value.tobytes()
    else:
        first = next(iter(plain(value)))
        value = value if first == 'v' else value[first]
        assert found == (value.encode() if isinstance(value, str) else value.tobytes())


def main(path, kind, length):
    import numpy
    found = blobs(path)
    if kind == 'utf8':
        values = numpy.array([blob.decode() for blob in found], object)
    elif kind == 'agents':
        values = numpy.frombuffer(b''.join(found), AGENT)
    else:
        values = numpy.frombuffer(b''.join(found), kind).reshape(-1, int(length))
    peers, times = [], []
    for make, ending in ((Zarr, '.zarr'), (Parquet, '.parquet')):
        try:
            peers.append(make(str(path) + ending, values, kind))
        except (ImportError, OSError):
            peers.append(None)
        times.append([])
    order = itertools.cycle(numpy.random.default_rng(1).permutation(len(values)))
    for turn in range(12):
        for peer, spent in zip(peers, times):
            for i in itertools.islice(order, 3) if peer and not turn else ():
                check(peer, values, i)
            start = time.process_time()
            for i in itertools.islice(order, 50) if peer else ():
                peer.read(i)
            spent.append((time.process_time() - start) / 50 * 1e6 if peer else float('nan'))
    print(*(f'{peer.size / len(values) if peer else float("nan"):.1f} '
            f'{statistics.median(spent):.1f}' for peer, spent in zip(peers, times)))


if sys.argv[1] == 'sentences':
    print('\n'.join(sentences()))
else:
    main(*sys.argv[1:])
