"""Types of zstd: values of every type inside, written and read."""
import numpy as np

import bags
from run import Skip, raises

SPEC = {'a': 'zstd(array,float32,4)', 'b': 'zstd(bytes)', 'm': 'zstd(msgpack)', 'n': 'zstd(int)',
        's': 'zstd(utf8)[]', 't': 'zstd(utf8)', 'x': 'zstd(npy)'}
ROWS = [{'a': np.arange(4, dtype='f4') + i, 'b': b'bytes' * i, 'm': {'k': [i, 'x']},
         'n': i * 1000, 's': ['a' * j for j in range(i % 3)], 't': f'text {i}',
         'x': np.arange(6).reshape(2, 3) + i} for i in range(20)]


def _write(path):
    try:
        bags.encoders['zstd']('x', 'utf8')
    except Exception as error:
        if 'no codec' in str(error):
            raise Skip('the package was built without libzstd') from error
        raise
    with bags.DatasetWriter(path, SPEC) as writer:
        for row in ROWS:
            writer.append(row)


def _same(got, row):
    for key, value in row.items():
        if isinstance(value, np.ndarray):
            assert got[key].dtype == value.dtype and np.array_equal(got[key], value), key
        else:
            assert got[key] == value, (key, got[key])


def values_of_every_type_inside_survive():
    _write('x')
    for options in ({}, {'no_mmap': True}):
        reader = bags.DatasetReader('x', **options)
        rows = [reader[i] for i in range(len(reader))]
        for got, row in zip(rows, ROWS):  # each is valid after the next was read
            _same(got, row)


def blobs_are_frames():
    _write('x')
    reader = bags.DatasetReader('x', None)
    assert reader[3]['t'][:4] == b'\x28\xb5\x2f\xfd'
    assert bags.decoders['zstd'](reader[3]['t'], 'utf8') == 'text 3'


def damage_is_an_error():
    raises(ValueError, bags.decoders['zstd'], b'text 3', 'utf8', says='zstd frame')
    raises(TypeError, bags.encoders['zstd'], 5, 'utf8')
