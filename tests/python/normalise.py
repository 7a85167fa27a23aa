"""bags.stats, and what a Loader makes of it."""
import json
import math
import pathlib
import signal
import threading

import bags
import numpy as np
from run import raises

KEYS = ['mean', 'std', 'min', 'max', 'count', 'q01', 'q10', 'q50', 'q90', 'q99']
QUANTILES = {'q01': .01, 'q10': .1, 'q50': .5, 'q90': .9, 'q99': .99}
TYPES = {'a': 'float32(2,3)', 'b': 'uint8(3)', 'f': 'float16', 'i': 'i64', 'n': 'int', 's': 'float64(4)[]',
         'u': 'u64', 'v': 'float32(-1,2)', 'w': 'array', 'z': 'int16(2)[]'}


def _rows(count):
    rng = np.random.default_rng(1)
    for i in range(count):
        yield {'a': rng.normal(5, 3, (2, 3)).astype('f4'), 'b': rng.integers(0, 256, 3).astype('u1'),
               'f': np.float16(rng.normal()), 'i': int(rng.integers(-2**63, 2**63 - 1)), 'n': i,
               's': [rng.normal(-2, 9, 4) for _ in range(i % 3)],
               'u': int(rng.integers(0, 2**64 - 1, dtype='u8')),
               'v': rng.normal(1e6, 1e-3, (i % 5, 2)).astype('f4'), 'w': rng.normal(size=(1, 2)),
               'z': [rng.integers(-300, 300, 2).astype('i2')] * 2}


def _columns(rows, name):
    """An array of all values, (numbers, elements)."""
    parts = []
    for row in rows:
        value = np.asarray(row[name], {'u': 'u8', 'i': 'i8'}.get(name))
        inner = value.shape[1:] if name in 'svz' else value.shape
        parts.append(value.reshape(-1, math.prod(inner) if value.size else 1))
    return np.concatenate([part for part in parts if part.size])


def _check(found, columns):
    assert list(found) == KEYS and all(len(part) == columns.shape[1] for part in found.values())
    numbers = columns.astype('f8')
    assert found['count'] == [len(columns)] * columns.shape[1]
    assert found['min'] == columns.min(0).tolist() and found['max'] == columns.max(0).tolist()
    assert np.allclose(found['mean'], numbers.mean(0), rtol=1e-12, atol=0)
    assert np.allclose(found['std'], numbers.std(0), rtol=1e-9, atol=0)
    for key, q in QUANTILES.items():
        assert (np.quantile(numbers, q, axis=0) == found[key]).all()


def statistics_are_those_of_numpy():
    rows = list(_rows(700))
    with bags.ShardedDatasetWriter('x', TYPES, shard_length=123) as writer:
        for row in rows:
            writer.append(row)
    found = bags.stats('x', *TYPES)
    assert list(found) == list(TYPES)
    for name in TYPES:
        _check(found[name], _columns(rows, name))
    assert found == bags.stats(pathlib.Path('x'), *TYPES, threads=1) == json.loads(json.dumps(found))
    chosen = [5, 600, 5, 7]
    _check(bags.stats('x', 'a', rows=chosen)['a'], _columns([rows[i] for i in chosen], 'a'))
    mask = np.arange(700) % 3 == 0
    assert bags.stats('x', 'n', rows=mask) == bags.stats('x', 'n', rows=range(0, 700, 3))


def images_have_statistics_of_channels():
    rng = np.random.default_rng(2)
    images = [rng.integers(0, 256, (9, 7, 3)).astype('u1') for _ in range(20)]
    grays = [rng.integers(0, 256, (5, 6)).astype('u1') for _ in range(7)]
    depth = [rng.integers(0, 65536, (5, 6)).astype('u2') for _ in range(20)]
    with bags.DatasetWriter('x', {'p': 'png', 'd': 'png[]', 'v': 'png'}) as writer:
        for i, image in enumerate(images):
            writer.append({'p': image if i % 3 else grays[i // 3], 'd': [depth[i]] * (i % 2), 'v': grays[i % 7]})
    used = [images[i] if i % 3 else np.repeat(grays[i // 3][..., None], 3, 2) for i in range(20)]
    found = bags.stats('x', 'p', 'd', 'v')
    _check(found['p'], np.concatenate([image.reshape(-1, 3) for image in used]))
    _check(found['d'], np.concatenate([image.reshape(-1, 1) for image in depth[1::2]]))
    _check(found['v'], np.concatenate([grays[i % 7].reshape(-1, 1) for i in range(20)]))


def palettes_are_colours():
    from PIL import Image
    image = Image.new('P', (4, 2))
    image.putpalette([10, 20, 30, 200, 100, 0])
    image.putdata([0, 1, 1, 0, 1, 1, 1, 1])
    image.save('p.png')
    with bags.DatasetWriter('x', {'p': 'png'}, {**bags.encoders, 'png': None}) as writer:
        writer.append({'p': pathlib.Path('p.png').read_bytes()})
    found = bags.stats('x', 'p')['p']
    assert found['mean'] == [152.5, 80.0, 7.5] and found['max'] == [200, 100, 30]


def a_loader_applies_them():
    with bags.DatasetWriter('x', {'a': 'float32(2)', 's': 'float64(3)[]'}) as writer:
        for i in range(64):
            writer.append({'a': np.float32([i, 5]), 's': [np.array([i, -i, 1e9 + k]) for k in range(3)]})
    found = bags.stats('x', 'a', 's')
    fields = {name: {'dtype': 'float32', 'mean': of['mean'], 'std': of['std']} for name, of in found.items()}
    fields['s']['window'] = 3
    batch = next(bags.Loader('x', 64, fields=fields))
    for name in fields:
        numbers = batch[name].reshape(-1, batch[name].shape[-1]).astype('f8')
        assert np.allclose(numbers.mean(0), 0, atol=1e-6)
        assert np.allclose(numbers.std(0), np.array(found[name]['std']) > 0, atol=1e-6)


def results_of_large_numbers_are_finite():
    with bags.DatasetWriter('x', {'a': 'float64(2)'}) as writer:
        for number in (-1e308, 1e308, 1e308):
            writer.append({'a': np.array([number, 1.7e308])})
    found = bags.stats('x', 'a')['a']
    assert np.allclose([found[q][0] / 1e308 for q in QUANTILES], [-.96, -.6, 1, 1, 1])
    assert [found[key][1] for key in KEYS if key not in ('count', 'std')] == [1.7e308] * 8


def mistakes_are_refused():
    with bags.DatasetWriter('x', {'a': 'float32(2)', 't': 'utf8', 'w': 'array', 'e': 'int[]'}) as writer:
        for i in range(4):
            writer.append({'a': np.float32([i, np.nan if i < 3 else np.inf]), 't': 'x', 'w': np.zeros(i), 'e': []})
    assert bags.stats('x', 'a', rows=[0, 1])['a'] == {
        'mean': [.5, None], 'std': [.5, None], 'min': [0, None], 'max': [1, None], 'count': [2, 0],
        'q01': [.01, None], 'q10': [.1, None], 'q50': [.5, None], 'q90': [.9, None], 'q99': [.99, None]}
    raises(ValueError, bags.stats, 'x', 'a', says='x: field "a": datapoint 3: element 1: statistics need finite')
    raises(ValueError, bags.stats, 'x', 'w', says='field "w": datapoint 1: another shape')
    raises(ValueError, bags.stats, 'x', 'e', says='field "e": no values')
    raises(TypeError, bags.stats, 'x', 't', says='field "t": values of type utf8 have no statistics')
    raises(KeyError, bags.stats, 'x', 'no', says='x: field "no": unknown')
    raises(TypeError, bags.stats, 'x')
    raises(TypeError, bags.stats, 'x', 3)
    raises(IndexError, bags.stats, 'x', 'a', rows=[4])
    raises(ValueError, bags.stats, 'x', 'a', threads=-1)
    raises(FileNotFoundError, bags.stats, 'none', 'a')
    raises(TypeError, bags.stats, 'x', 'a', nothing=3, says='nothing')


def a_signal_ends_it():
    with bags.DatasetWriter('x', {'a': 'float64(1000)'}) as writer:
        for i in range(2000):
            writer.append({'a': np.full(1000, i / 7)})
    class Stopped(Exception):
        pass
    def stop(*ignored):
        raise Stopped
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        for _ in range(50):  # it may end before the signal is sent
            timer = threading.Timer(0.02, signal.raise_signal, (signal.SIGUSR1,))
            try:
                timer.start()
                bags.stats('x', 'a')
                timer.join()
            except Stopped:
                return
        raise AssertionError('no signal was noticed')
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
