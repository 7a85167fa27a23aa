"""bags.Loader: batches, epochs, states, callbacks; PyTorch."""
import gc
import os
import pickle
import threading

import numpy as np

import bags
from run import Skip, python, raises

SPEC = {'n': 'int(4)', 'a': 'array(float32,2)', 't': 'utf8', 's': 'int(2)[]', 'w': 'utf8[]',
        'j': 'png', 'y': 'bytes', 'm': 'msgpack'}


def _point(i):
    return {'n': i, 'a': np.full(2, i, 'f4'), 't': f'text {i}', 's': list(range(i % 4)),
            'w': [f'{i}'] * (i % 3), 'j': np.full((4 + i % 3, 5, 3), i, 'u1'), 'y': b'%d' % i,
            'm': [i]}


def _write(path, count=100):
    with bags.ShardedDatasetWriter(path, SPEC, shard_length=30) as writer:
        for i in range(count):
            writer.append(_point(i))
    return path


def _check(batch):
    for k, n in enumerate(batch['n']):
        want = _point(int(n))
        assert (batch['a'][k] == want['a']).all() and batch['t'][k] == want['t']
        assert batch['s'][k].tolist() == want['s'] and batch['w'][k] == want['w']
        assert (batch['j'][k] == want['j']).all() and batch['y'][k] == want['y']
        assert batch['m'][k] == bags.encoders['msgpack'](want['m'])


def an_iteration_is_an_epoch():
    loader = bags.Loader(_write('x'), batch=16, seed=5, threads=2)
    assert len(loader) == 7
    epochs = []
    for _ in range(3):
        batches = list(loader)
        assert [len(b['n']) for b in batches] == [16] * 6 + [4]
        for batch in batches:  # all are kept, and none changed
            _check(batch)
        epochs.append([int(n) for b in batches for n in b['n']])
        assert sorted(epochs[-1]) == list(range(100))
    assert epochs[0] != epochs[1] != epochs[2]
    again = bags.Loader(bags.DatasetReader('x'), batch=16, seed=5, threads=1)
    assert [[int(n) for b in again for n in b['n']] for _ in range(3)] == epochs
    # Leaving early ends the epoch.
    early = bags.Loader('x', 16, seed=5)
    next(iter(early))
    assert [int(n) for b in early for n in b['n']] == epochs[1]
    assert [int(n) for b in bags.Loader('x', 7, shuffle=False) for n in b['n']] == list(range(100))
    loader.close()
    raises(ValueError, lambda: next(loader))


def large_batches_are_in_the_same_pages_again():
    import resource

    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    image = np.zeros((512, 512), 'f4')
    with bags.DatasetWriter('x', {'a': 'array(float32,512,512)', 's': 'array(float32,512)[]'}) as writer:
        for i in range(4):
            writer.append({'a': image + i, 's': list(image[:20 + 10 * i])})
    # 40 MiB, which malloc maps anew each time, and about 3 MiB. As many blocks as the loader
    # has slots and the program holds are needed, whatever the number of batches.
    rows, pages = [i % 4 for i in range(400)], 43 * 256
    with bags.Loader('x', 40, rows=rows, threads=1, ahead=1) as loader:
        for held, count in (1, 30), (3, 10):
            before = faults()
            for _ in range(count):
                batches = [next(loader, None) or next(loader) for _ in range(held)]
                assert all(len(batch['a']) == 40 for batch in batches)
            assert faults() - before < 20 * pages, (held, (faults() - before) / pages)
        del batches
        before = faults()
        for _ in range(10):
            batch = next(loader, None) or next(loader)
            del batch
        assert faults() - before < 5 * pages, (faults() - before) / pages


def arrays_of_batches_are_the_callers():
    with bags.DatasetWriter('x', {'n': 'i64', 'a': 'array(float32,64,64)', 's': 'i64[]'}) as writer:
        for i in range(50):
            writer.append({'n': i, 'a': np.full((64, 64), i, 'f4'), 's': range(i)})
    loader = bags.Loader('x', 7, threads=2)
    batches = [next(loader) for _ in range(5)] + list(loader)
    del loader
    gc.collect()
    for batch in batches:
        for n, a, s in zip(batch['n'], batch['a'], batch['s']):
            assert (a == n).all() and s.tolist() == list(range(n))
        batch['a'] += 1  # they are writable, and no two share memory
        batch['n'][:] = -1
    seen = sorted(float(a[0, 0]) for batch in batches for a in batch['a'])
    assert set(seen) == set(map(float, range(1, 51))), seen


def a_child_frees_the_arrays_of_its_parent():
    with bags.DatasetWriter('x', {'a': 'array(float32,64,64)'}) as writer:
        for i in range(50):
            writer.append({'a': np.full((64, 64), i, 'f4')})
    loader = bags.Loader('x', 3, threads=3)
    for _ in range(20):
        batch = next(loader, None)
        child = os.fork()
        if child == 0:
            del batch
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def an_iterator_continues_until_its_epoch_ends():
    _write('x')
    with bags.Loader('x', 10, fields='n', shuffle=False) as loader:
        first = iter(loader)
        got = list(next(first)['n'])
        for batch in first:
            got += list(batch['n'])
        assert got == list(range(100)), got
        assert next(first, None) is None and next(first, None) is None
        old, new = iter(loader), iter(loader)
        assert len(list(zip(new, range(3)))) == 3
        raises(RuntimeError, lambda: next(old), says='another iteration')
        state = loader.state_dict()
        for wrong in ({'batch': 11}, {'batch': 10**9}, {'epoch': -1}):
            raises(ValueError, lambda: loader.load_state_dict({**state, **wrong}), says='not a state')


def a_state_continues_after_the_last_batch():
    _write('x')
    def run(loader, epochs):
        return [[int(n) for b in loader for n in b['n']] for _ in range(epochs)]
    whole = run(bags.Loader('x', 16, seed=5), 3)
    for stop in (0, 1, 3, 6, 7, 8, 14):
        loader = bags.Loader('x', 16, seed=5)
        seen, state = [[]], loader.state_dict()
        for _ in range(stop):
            batch = next(loader, None)
            if batch is None:
                seen.append([])
            else:
                seen[-1] += map(int, batch['n'])
            state = loader.state_dict()
        loader = bags.Loader('x', 16, seed=5, threads=1)
        loader.load_state_dict(pickle.loads(pickle.dumps(state)))
        rest = run(loader, 3 - len(seen) + 1)
        assert seen[:-1] + [seen[-1] + rest[0]] + rest[1:] == whole, stop
    loader = bags.Loader('x', 16, seed=6)
    raises(ValueError, loader.load_state_dict, state)
    for bad in ({}, 3, {**state, 'state': b''}, {**state, 'epoch': 'x'}, {**state, 'more': 1}):
        raises((TypeError, ValueError, KeyError), loader.load_state_dict, bad)


def ranks_share_every_batch():
    _write('x')
    parts = [[[int(n) for n in b['n']] for b in bags.Loader('x', 16, seed=1, rank=r, ranks=3)]
             for r in range(3)]
    whole = [[int(n) for n in b['n']] for b in bags.Loader('x', 16, seed=1)]
    assert [sum(slices, []) for slices in zip(*parts)] == whole


def fields_have_options():
    _write('x')
    fields = {'j': {'width': 8, 'height': 6, 'dtype': 'float32', 'mean': (1, 2, 3), 'std': 2.0,
                    'nchw': True, 'crop': 'center'}, 'n': None}
    batch = next(bags.Loader('x', 10, fields=fields, shuffle=False))
    assert list(batch) == ['j', 'n', 'indices'] and batch['j'].shape == (10, 3, 6, 8)
    assert batch['j'].dtype == np.float32 and batch['n'].dtype.kind in 'iu'
    assert np.allclose(batch['j'][9, :, 3, 3], (9 / 255 - np.array([1, 2, 3])) / 2)
    batch = next(bags.Loader('x', 10, fields={'a': {'dtype': np.dtype('f8')}}))
    assert batch['a'].dtype == np.float64 and batch['a'].flags.writeable
    assert list(next(bags.Loader('x', fields=['t', 'n']))) == ['t', 'n', 'indices']
    for bad in ({'j': {'crop': 'no'}}, {'j': {'width': -1}}, {'j': {'nothing': 1}}, {'n': {'dtype': 'x'}},
                {'j': {'mean': 'abc'}}, {'j': {'shape': 5}}, {'no': {}}, {'t': {'dtype': 'int8'}},
                {'n': {'decode': 3}}, {'n': {'width': 3}}, {3: {}}):
        raises((TypeError, ValueError, KeyError, OverflowError), bags.Loader, 'x', fields=bad)
    for bad in ({'batch': 0}, {'rank': 3, 'ranks': 2}, {'weights': [1, 2]}, {'nothing': 1}, {'batch': 'a'}):
        raises((TypeError, ValueError), bags.Loader, 'x', **bad)
    raises(FileNotFoundError, bags.Loader, 'none')
    raises(TypeError, bags._core.Loader, [3])
    raises(TypeError, pickle.dumps, bags.Loader('x'))


def arrays_have_a_mean_and_a_deviation():
    rng = np.random.default_rng(1)
    rows = [{'a': rng.normal(5, 3, (2, 3)).astype('f4'), 'n': i,
             's': [rng.normal(-2, 9, 4) for _ in range(i % 3)]} for i in range(30)]
    with bags.DatasetWriter('m', {'a': 'float32(2,3)', 'n': 'int', 's': 'float64(4)[]'}) as writer:
        for row in rows:
            writer.append(row)
    mean, std = np.arange(6).reshape(2, 3), np.full((2, 3), 0.5)
    fields = {'a': {'dtype': 'float32', 'mean': mean, 'std': std},
              'n': {'dtype': 'float64', 'mean': 3}, 's': {'dtype': 'float32', 'std': [1, 2, 4, 0]}}
    batch = next(bags.Loader('m', 30, fields=fields, shuffle=False))
    assert (batch['a'] == ((np.array([row['a'] for row in rows], 'f8') - mean) / std).astype('f4')).all()
    assert list(batch['n']) == [i - 3 for i in range(30)]
    for row, items in zip(rows, batch['s']):
        assert len(items) == len(row['s'])
        for item, one in zip(items, row['s']):
            assert (item == (one / [1, 2, 4, 1]).astype('f4')).all()
    for options, says in (({'mean': [1, 2]}, 'mean and std have 2 elements (a value has 6)'),
                          ({'mean': mean, 'std': [1]}, 'mean and std differ in length'),
                          ({'std': -std}, 'std at least 0'), ({'mean': 'x'}, 'a number for each element')):
        raises((ValueError, TypeError), bags.Loader, 'm', says=says,
               fields={'a': {'dtype': 'float32', **options}})
    raises(ValueError, bags.Loader, 'm', fields={'a': {'mean': mean}}, says='need dtype float32 or float64')


def a_function_decodes_in_the_threads_of_the_loader():
    _write('x')
    threads = set()
    def decode(blob):
        threads.add(threading.get_ident())
        return np.frombuffer(blob, 'u1').astype('f4').sum()[None]
    how = {'y': {'decode': decode, 'dtype': 'float32', 'shape': (1,)}, 'n': {}}
    for batch in bags.Loader('x', 10, fields=how, threads=2):
        for n, y in zip(batch['n'], batch['y']):
            assert y.tolist() == [sum(b'%d' % n)]
    assert threading.get_ident() not in threads
    numbers = [0, 2**64 - 1, -2**63, True]
    loader = bags.Loader('x', 4, fields={'n': {'decode': lambda b: numbers[b[0]]}}, shuffle=False)
    assert next(loader)['n'] == numbers

    def bad(blob):
        if blob == b'37':
            raise IndexError('mine')
        return np.zeros(1, 'f4')
    for skip in (False, True):  # an exception is no damage
        loader = bags.Loader('x', 10, fields={'y': {'decode': bad, 'dtype': 'f4', 'shape': [1]}},
                             shuffle=False, skip_damaged=skip)
        for _ in range(3):
            next(loader)
        for _ in range(2):
            raises(IndexError, lambda: next(loader), says='mine')
    loader = bags.Loader('x', fields={'y': {'decode': lambda b: object()}})
    raises(TypeError, lambda: next(loader))
    for use in (lambda b: loader.close(), lambda b: next(loader), lambda b: loader.state_dict()):
        assigned = threading.Event()  # its threads begin before `loader` is that one
        loader = bags.Loader('x', fields={'y': {'decode': lambda b: assigned.wait() and use(b)}})
        assigned.set()
        raises(RuntimeError, lambda: next(loader), says='x: a function of a Loader')
        loader.close()
    loader = bags.Loader('x', fields={'y': {'decode': lambda b: loader and None}})
    del loader
    gc.collect()


def damaged_datapoints_are_skipped_and_counted():
    with bags.DatasetWriter('x', {'n': 'int', 'p': 'png'}, {**bags.encoders, 'png': bytes}) as writer:
        for i in range(20):
            writer.append({'n': i, 'p': b'no' if i % 5 == 0 else bags.encoders['png'](np.zeros((2, 2, 3), 'u1'))})
    raises(bags.DataError, list, bags.Loader('x', 4))
    loader = bags.Loader('x', 4, skip_damaged=True)
    assert sum(len(b['n']) for b in loader) == 16 and loader.skipped == 4


def a_child_cannot_use_its_parents_loader():
    loader = bags.Loader(_write('x'), 10)
    next(loader)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            next(loader)
        except RuntimeError:
            code = 0
        loader.close()
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(loader)) == 10


def a_program_may_end_in_the_middle():
    _write('x')
    for last in ('', 'loader.me = loader', 'raise SystemExit(0)'):
        python('import bags, time\n'
               'class L(bags.Loader): pass\n'
               'loader = L("x", 2, fields={"n": {"decode": lambda b: time.sleep(.001) or len(b)}})\n'
               'next(loader)\n' + last)


def _numbers(epochs=1, source='x', **options):
    with bags.Loader(source, 8, fields='n', **{'seed': 1, 'threads': 2, **options}) as loader:
        return [[int(n) for batch in loader for n in batch['n']] for _ in range(epochs)]


def rows_are_a_part_of_the_dataset():
    _write('x')
    for rows, want in ((range(20, 50), range(20, 50)), ([7, 3, 3], [3, 3, 7]), (np.array([5], 'i8'), [5]),
                       (range(90, 0, -30), [30, 60, 90]), (np.arange(100) % 9 == 0, range(0, 100, 9))):
        (epoch, other) = _numbers(2, rows=rows)
        assert sorted(epoch) == sorted(other) == list(want), rows
        assert _numbers(rows=rows, shuffle=False) == [list(np.flatnonzero(rows) if len(rows) == 100 else rows)]
    assert sorted(_numbers(take=9)[0]) == list(range(9)) and _numbers(rows=[5, 4, 3], take=2, shuffle=False) == [[5, 4]]
    assert sorted(_numbers(take=None)[0]) == list(range(100))
    for options, says in (({'take': 0}, 'x: take: 0 (expected at least 1)'), ({'take': -1}, 'take'),
                          ({'rank': 0, 'ranks': 0}, 'x: ranks: 0 (expected at least 1)')):
        raises(ValueError, bags.Loader, 'x', says=says, **options)
    drawn = _numbers(2, rows=range(50), replacement=True)
    assert all(len(e) == 50 and set(e) < set(range(50)) for e in drawn) and drawn[0] != drawn[1]
    both = _numbers(source=['x', 'x'], rows=[range(10), None], shuffle=False)
    assert both == [[*range(10), *range(100)]] and _numbers(source=['x'], rows=[[1]]) == [[1]]
    parts = [_numbers(rows=range(10), rank=rank, ranks=2)[0] for rank in range(2)]
    assert sorted(sum(parts, [])) == list(range(10))
    loader, other = (bags.Loader('x', 4, rows=range(n, 20)) for n in (0, 1))
    raises(ValueError, other.load_state_dict, loader.state_dict(), says='other datasets or options')
    for rows, kind, says in (([-1], ValueError, 'rows: -1 is negative'), ([1.5], TypeError, 'rows: [1.5] (expected'),
                             ('abc', TypeError, 'rows: '), ([[1]], TypeError, 'rows: '), (5, TypeError, 'rows: 5'),
                             ([100], IndexError, '100'), (range(101), IndexError, ''), (range(-1, 5), ValueError, 'rows: -1'),
                             (np.ones(99, bool), IndexError, 'rows: bools of shape (99,) for 100 datapoints'),
                             (np.zeros(101, bool), IndexError, 'for 100 datapoints')):
        raises(kind, bags.Loader, 'x', rows=rows, says=says)
    raises(IndexError, bags.Loader, 'x', sampler=lambda epoch: [True, False], says='sampler: bools of shape (2,)')
    raises(ValueError, bags.Loader, ['x', 'x'], rows=[None], says='rows: 1 for 2 datasets')
    assert _numbers(rows=[]) == _numbers(rows=range(5, 2)) == [[]]


def a_function_orders_the_datapoints_of_an_epoch():
    _write('x')
    def order(epoch):
        return (np.arange(60) * 7 + epoch) % 100
    for threads in (1, 3):
        assert _numbers(3, sampler=order, threads=threads) == [list(order(epoch)) for epoch in range(3)]
    assert _numbers(source=['x', 'x'], sampler=lambda e: [0, 100, 199, 99]) == [[0, 0, 99, 99]]
    parts = [_numbers(sampler=order, rank=rank, ranks=3)[0] for rank in range(3)]
    assert sorted(sum(parts, [])) == sorted(order(0))
    first, rest = (bags.Loader('x', 8, fields='n', sampler=order) for _ in range(2))
    for _ in range(10):
        next(first, None)
    rest.load_state_dict(first.state_dict())
    assert [int(n) for b in rest for n in b['n']] == list(order(1)[8:])
    other = bags.Loader('x', 8, sampler=lambda epoch: np.arange(60))
    raises(ValueError, other.load_state_dict, first.state_dict(), says='other datasets or options')
    for sampler, kind, says in ((3, TypeError, 'sampler: 3 (expected a function'), (lambda e: None, TypeError, 'sampler: None'),
                                (lambda e: [100], IndexError, 'index 100 out of range (length 100)'),
                                (lambda e: [-1], ValueError, 'sampler: -1'), (lambda e: [], ValueError, ''),
                                (lambda e: 1 / 0, ZeroDivisionError, '')):
        raises(kind, bags.Loader, 'x', sampler=sampler, says=says)
    loader = bags.Loader('x', 8, sampler=lambda epoch: range(8 + epoch))
    error = raises(ValueError, lambda: [list(loader) for _ in range(2)], says='sampler: epoch 1 has 9 datapoints (epoch 0 has 8)')
    assert error.__notes__ == ['sampler raised this']
    raises(ValueError, bags.Loader, 'x', sampler=order, take=3)
    raises(ValueError, bags.Loader, 'x', sampler=order, tokens=('n', 3), says='sampler and tokens')


def gray_images_of_16_bits_are_loaded_unchanged():
    if not bags.build['png']:
        raise Skip('no png')
    wanted = [np.random.default_rng(i).integers(0, 65536, (6, 8), np.uint16) for i in range(5)]
    spec = {'d': 'png', 'a': 'array(uint16,6,8)', 's': 'png[]', 'c': 'png'}
    with bags.DatasetWriter('x', spec) as writer:
        for image in wanted:
            writer.append({'d': image, 'a': image, 's': [image] * 2,
                           'c': np.full((6, 8, 3), 9, np.uint8)})

    def load(**options):
        fields = {name: dict(options) for name in 'das'}
        with bags.Loader('x', 5, fields=fields, shuffle=False) as loader:
            return next(loader)
    stacked = np.stack(wanted)
    for dtype in 'uint16', 'float32':
        batch = load(dtype=dtype, shape=(6, 8))
        for name in 'da':
            assert batch[name].dtype == dtype and (batch[name] == stacked).all()
        assert all(len(pair) == 2 and (pair == image).all() and pair.dtype == dtype
                   for pair, image in zip(batch['s'], wanted, strict=True))
    deep = {'dtype': 'uint16', 'filter': 'nearest'}
    batch = load(width=8, height=6, **deep)
    assert batch['d'].shape == (5, 6, 8, 1) and batch['d'].dtype == np.uint16
    assert (batch['d'][..., 0] == stacked).all() and (batch['a'][..., 0] == stacked).all()
    batch = load(width=8, height=6, nchw=True, flip_x=1, flip_y=1, **deep)
    assert (batch['d'][:, 0] == stacked[:, ::-1, ::-1]).all() and batch['d'].shape == (5, 1, 6, 8)
    batch = load(width=4, height=3, **deep)
    assert (batch['d'][..., 0] == stacked[:, 1::2, 1::2]).all()
    batch = load(width=4, height=3, crop='random', warp={'degrees': (-20, 20)}, **deep)
    assert (batch['d'] == batch['a']).all() and set(batch['d'].ravel()) <= {0, *stacked.ravel()}
    for bad, says in (({'dtype': 'uint16'}, "need filter 'nearest'"),
                      ({**deep, 'channels': 3}, 'channels 1'), ({**deep, 'mean': .5}, 'float32'),
                      ({**deep, 'jitter': {'hue': (0, .1)}}, 'exclude jitter'),
                      ({**deep, 'warp': {'fill': 1}}, 'a fill colour'),
                      ({'dtype': 'int32'}, 'uint8, uint16, float16 or float32')):
        raises((ValueError, TypeError), bags.Loader, 'x', 2, fields={'d': {'width': 8, 'height': 6, **bad}}, says=says)
    for name, how, says in (('c', deep, 'field "c": datapoint 0: image has 3 channels of 8 bits'),
                            ('d', {}, 'field "d": datapoint 0: image has 16 bits')):
        loader = bags.Loader('x', 2, fields={name: {'width': 8, 'height': 6, **how}}, shuffle=False)
        raises(ValueError, next, loader, says=says)


def warps_and_colours_are_drawn_from_ranges():
    _write('x')
    size = dict(width=8, height=8)

    def load(threads=1, **options):
        loader = bags.Loader('x', 20, fields={'j': dict(size, **options)}, seed=3,
                             threads=threads, shuffle=False)
        return next(iter(loader))['j'].tobytes()
    seen = {load()}
    for options in (dict(warp=dict(degrees=(-30, 30), perspective=0.3, fill=(1, 2, 3))),
                    dict(warp=dict(translate_x=(0.5, 0.5), scale=(0.5, 1)), filter='nearest'),
                    dict(jitter=dict(brightness=(0.5, 0.7), hue=(0.3, 0.3))),
                    dict(warp=dict(scale=(0.5, 0.5)), flip_x=0.3, flip_y=1, crop='random',
                         area=(0.2, 0.3), aspect=(2, 2))):
        made = load(**options)
        assert made == load(3, **options) and made not in seen, options
        seen.add(made)
    for options, says in ((dict(warp=dict(degrees=(-999, 0))), 'degrees out of range'),
                          (dict(warp=dict(blur=1)), 'unknown option'),
                          (dict(warp=dict(fill=256)), '0 to 255'),
                          (dict(warp=3), 'a dict of options'),
                          (dict(warp=dict(degrees=15)), 'the lowest and the highest'),
                          (dict(jitter=dict(contrast=(0, 0))), '0 to 0 is the default'),
                          (dict(jitter=dict(hue=(1, 2, 3))), 'the lowest and the highest'),
                          (dict(flip_x='x'), 'flip_x')):
        raises((TypeError, ValueError), load, says=says, **options)


def _images(path, count=40):
    """Each datapoint has another image of 6 x 4 to 7 x 4 pixels, and its number."""
    with bags.DatasetWriter(path, {'j': 'png', 'n': 'int(4)'}) as writer:
        for i in range(count):
            shape = 4, 6 + i % 2, 3
            writer.append({'j': (np.arange(np.prod(shape)) * 3 + i).astype('u1').reshape(shape), 'n': i})


def _load(threads=3, epochs=1, **options):
    how = {'width': 6, 'height': 4, 'filter': 'nearest', **options}
    with bags.Loader('x', 8, fields={'j': how, 'n': {}}, seed=7, threads=threads, shuffle=False) as loader:
        return np.concatenate([batch['j'] for _ in range(epochs) for batch in loader])


def a_function_changes_what_is_drawn():
    _images('x')
    plain, seen = _load(), []
    assert (_load(draw=lambda drawn: seen.append(drawn)) == plain).all()
    assert {(d.datapoint, d.dataset, d.item, d.width, d.height, d.channels) for d in seen} == {
        (i, 0, 0, 6 + i % 2, 4, 3) for i in range(40)}
    for one in seen:
        assert (one.brightness, one.contrast, one.saturation, one.hue, one.order) == (1, 1, 1, 0, (0, 1, 2, 3))
        assert one.matrix.shape == (3, 3) and (one.matrix == np.diag([one.width / 6, 1, 1])).all()
        assert one.mean == one.std == (0, 0, 0)
        raises(AttributeError, setattr, one, 'brightness', 2)
    # Its random numbers are those of the datapoint, whatever thread it is in, and of the epoch.
    def numbers(threads, epochs):
        out = _load(threads, epochs, draw=lambda d: {'mean': d.random % 1000}, dtype='float32')
        return [round(-float(n)) for n in out[:, 0, 0, 0]]
    assert numbers(1, 2) == numbers(4, 2) and numbers(2, 1) == numbers(1, 2)[:40]
    assert len(set(numbers(1, 2))) > 60  # of 80 that are 77 on average
    # What it returns is what the options do.
    flip = np.array([[-1, 0, 6], [0, 1, 0], [0, 0, 1]])
    assert (_load(draw=lambda d: {'matrix': d.matrix @ flip}, warp={}) == _load(flip_x=1)).all()
    assert (_load(draw=lambda d: {'matrix': (d.matrix @ flip).tolist()}) == plain[:, :, ::-1]).all()
    half = _load(draw=lambda d: {'brightness': 0.5})
    assert (half == plain // 2).all() and (half == _load(jitter={'brightness': (0.5, 0.5)})).all()
    order = _load(draw=lambda d: {'brightness': 0.5, 'contrast': 2, 'order': (1, 0, 2, 3)})
    assert (order != _load(draw=lambda d: {'brightness': 0.5, 'contrast': 2})).any()
    norm = _load(draw=lambda d: {'mean': d.datapoint, 'std': (1, 2, 4)}, dtype='float32')
    want = (plain.astype('f4') / 255 - np.arange(40, dtype='f4')[:, None, None, None]) / np.array([1, 2, 4], 'f4')
    assert np.array_equal(norm, want)
    assert (_load(decode=bags.decoders['png'], draw=lambda d: {'brightness': 0.5}) == half).all()
    # Without matrix or nearest, the crop and flips are resized, and the colours changed.
    resized = dict(filter='bilinear', crop='random')
    assert (_load(draw=lambda d: d.matrix and 1, **resized) == _load(**resized)).all()


def what_is_drawn_is_the_same_after_a_resume():
    _images('x')
    def draw(drawn):
        random = np.random.default_rng(drawn.random)
        turn = np.array([[1, random.random(), 0], [0, 1, random.random()], [0, 0, 1]])
        return {'matrix': drawn.matrix @ turn, 'hue': random.random() - 0.5}
    def loader(threads):
        return bags.Loader('x', 6, fields={'j': dict(width=6, height=4, warp={}, draw=draw), 'n': {}}, seed=2,
                           threads=threads)
    one = loader(2)
    batches = [[b['j'].tobytes() for b in one] for _ in range(2)]
    assert batches[0] != batches[1]
    for cut in (1, 5):
        first, rest = loader(1), loader(4)
        assert [next(first)['j'].tobytes() for _ in range(cut)] == batches[0][:cut]
        rest.load_state_dict(first.state_dict())
        assert [[b['j'].tobytes() for b in rest] for _ in range(2)] == [batches[0][cut:], batches[1]]


def errors_of_functions_name_the_datapoint():
    _images('x')
    def fails(draw, kind, says, note='draw raised this', **options):
        error = raises(kind, lambda: _load(draw=draw, **options), says=says)
        assert getattr(error, '__notes__', [f'x: field "j": datapoint 0: {note}']) == [
            f'x: field "j": datapoint 0: {note}'], error.__notes__
        return error

    def mine(drawn):
        raise ZeroDivisionError(drawn.datapoint)
    for _ in range(20):  # the first of the order, not of the time
        assert fails(mine, ZeroDivisionError, '0').args == (0,)
    for draw, kind, says in (
            (lambda d: 3, TypeError, "draw returned <class 'int'>"), (lambda d: d, TypeError, 'draw returned'),
            (lambda d: {'britness': 1}, TypeError, 'britness: unknown option; did you mean brightness?'),
            (lambda d: {'width': 1}, TypeError, 'known are matrix, brightness'), (lambda d: {3: 1}, TypeError, 'unknown'),
            (lambda d: {'matrix': [1, 2]}, ValueError, 'matrix: 3 x 3'), (lambda d: {'matrix': 'abc'}, ValueError, ''),
            (lambda d: {'matrix': np.full((3, 3), np.nan)}, ValueError, 'datapoint 0: '),
            (lambda d: {'brightness': -1}, ValueError, 'datapoint 0: '), (lambda d: {'hue': 'a'}, TypeError, 'hue'),
            (lambda d: {'order': (0, 0, 1, 2)}, ValueError, 'datapoint 0: '),
            (lambda d: {'order': (0, 1, 2)}, ValueError, 'order: 4 '), (lambda d: {'order': 3}, ValueError, 'order: 4 '),
            (lambda d: {'order': (0, 1, 2, 4)}, ValueError, 'order: 0 to 3'), (lambda d: {'mean': range(5)}, ValueError, 'mean: '),
            (lambda d: {'mean': 0.5}, ValueError, "mean: needs the option dtype='float32'")):
        fails(draw, kind, says)
    fails(lambda d: {'std': -1}, ValueError, 'std at least 0', dtype='float32')
    fails(lambda d: {'matrix': np.eye(3)}, ValueError, 'matrix: needs the option warp', filter='bilinear')
    fails(None, TypeError, 'x: field "j": draw: None is not a function')
    raises(ValueError, bags.Loader, 'x', fields={'n': {'draw': mine}}, says='options of images')
    assigned = threading.Event()
    loader = bags.Loader('x', fields={'j': dict(width=4, height=4, draw=lambda d: assigned.wait() and next(loader))})
    assigned.set()
    raises(RuntimeError, lambda: next(loader), says='x: a function of a Loader')

    def decode(blob):
        if blob[0] >= 13:
            raise KeyError('mine')
        return blob
    for skip in (False, True):  # no damage, and the same again
        loader = bags.Loader('x', 8, fields={'n': {'decode': decode}}, shuffle=False, skip_damaged=skip, threads=3)
        next(loader)
        for _ in range(2):
            error = raises(KeyError, lambda: next(loader), says='mine')
            assert error.__notes__ == ['x: field "n": datapoint 13: decode raised this']


TRAIN = '''
import sys, os, pickle, torch, bags
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
fields = {'j': dict(width=8, height=8, dtype='float32', nchw=True, crop='random', flip_x=0.5), 'n': {}}
loader = bags.Loader('x', 10, fields=fields, seed=3)
start = 0
if os.path.exists('state'):
    saved = torch.load('state')
    model.load_state_dict(saved['model'])
    loader.load_state_dict(saved['loader'])
    start = saved['epoch']
count = 0
for epoch in range(start, 2):
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(batch['j'])), torch.from_numpy(batch['n'] % 2))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(f'{loss.item():.9f}', flush=True)
        torch.save({'model': model.state_dict(), 'loader': loader.state_dict(), 'epoch': epoch}, 'state')
        count += 1
        if len(sys.argv) > 1 and count == int(sys.argv[1]):
            os.kill(os.getpid(), 9)
'''


def long_training_that_was_killed_continues_with_the_same_losses():
    try:
        import torch  # noqa: F401
    except ImportError:
        raise Skip('no PyTorch')
    _write('x')
    whole = python(TRAIN).split()
    assert len(whole) == 20
    for stop in (3, 10, 13):
        os.unlink('state')
        assert python(TRAIN, stop, code=-9).split() + python(TRAIN).split() == whole, stop


def long_a_dataloader_reads_with_workers():
    try:
        import torch.utils.data as data
    except ImportError:
        raise Skip('no PyTorch')
    _write('x')
    reader = bags.DatasetReader('x', {**bags.decoders, 'unused': lambda b: b})
    for context in ('fork', 'spawn'):
        loader = data.DataLoader(_Rows(reader), batch_size=None, num_workers=4,
                                 multiprocessing_context=context)
        assert [int(n) for n, _ in loader] == list(range(100))


class _Rows:

    def __init__(self, reader):
        self.reader = reader

    def __len__(self):
        return len(self.reader)

    def __getitem__(self, i):
        row = self.reader[i]
        return row['n'], row['a']


def options_of_other_types_are_errors():
    _write('x')
    raises(TypeError, bags.Loader, 'x', tokens={}, says='tokens: {}')
    raises(TypeError, bags.Loader, 'x', tokens=(), says='tokens: ()')
    raises(TypeError, bags.Loader, 'x', tokens={'field': 'ids', 'length': 3, 'parallel': 'ids'},
           says="parallel: 'ids' (expected a list of names)")
    raises(TypeError, bags.Loader, 'x', storage=None, says='storage: an option of DatasetReader')
    raises(TypeError, bags.DatasetReader, 'http://localhost:1/x', storage={'cache_size': 'x'},
           says='storage: cache_size: ')


def windows_and_packed_rows_of_tokens_are_batches():
    rng = np.random.default_rng(0)
    with bags.ShardedDatasetWriter('x', {'ids': 'array(uint16,-1)', 'm': 'array(uint8,-1)'}, shard_length=70) as w:
        for i in range(200):
            n = int(rng.integers(0, 40))
            w.append({'ids': rng.integers(1, 1000, n).astype('u2'), 'm': np.ones(n, 'u1')})
    documents = [row['ids'] for row in bags.DatasetReader('x')]

    def same(a, b):
        return len(a) == len(b) and all(
            (p == q).all() for x, y in zip(a, b) for p, q in zip(x['ids'], y['ids'], strict=True))
    loader = bags.Loader('x', 8, tokens=('ids', 16), shuffle=False)
    batches = list(loader)
    assert len(batches) == len(loader) and batches[0]['ids'].shape == (8, 17)
    stream = np.concatenate(documents[:70])
    assert (batches[0]['ids'][1] == stream[16:33]).all() and batches[0]['ids'].dtype == 'u2'
    batch = next(iter(bags.Loader('x', 8, tokens={'field': 'ids', 'length': 16, 'places': True,
                                                  'parallel': np.array(['m']), 'bos': 1, 'eos': 2})))
    assert {k: v.shape for k, v in batch.items()} == {
        'ids': (8, 17), 'm': (8, 17), 'documents': (8, 16), 'positions': (8, 16),
        'indices': (8,)}
    assert batches[0]['indices'].tolist() == list(range(8))

    def packed(**options):
        return bags.Loader('x', 8, seed=5, tokens={'field': 'ids', 'length': 64, 'pack': True, **options})
    loader = packed()
    epochs = [list(loader) for _ in range(2)]
    raises(TypeError, len, loader, says='unknown')
    for epoch in epochs:
        rows = [d for b in epoch for r, ends in zip(b['ids'], b['cu_seqlens']) for d in np.split(r, ends[1:-1])]
        assert sorted(map(bytes, rows)) == sorted(bytes(d) for d in documents if len(d))
        for batch in epoch:
            for row, pieces in zip(batch['ids'], batch['indices'], strict=True):
                parts = [documents[d][first:first + count] for d, first, count in pieces]
                assert (np.concatenate(parts) == row).all()
    for cut in (0, 1, 3, len(epochs[0])):
        loader, other = packed(), packed()
        iterator = iter(loader)
        for _ in range(cut):
            next(iterator)
        other.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
        assert same(list(other), epochs[0][cut:]) and same(list(other), epochs[1])
        if cut == len(epochs[0]):  # after StopIteration
            assert not list(iterator) and loader.state_dict()['epoch'] == 1
            other.load_state_dict(loader.state_dict())
            assert same(list(other), epochs[1]) and same(list(loader), epochs[1])
    next(iter(loader := packed()))
    assert same(list(loader), epochs[1])  # leaving early ends the epoch
    for bad, kind in ((('ids', 0), ValueError), (('no', 4), KeyError), ({'field': 'ids'}, ValueError),
                      ({'field': 'ids', 'length': 4, 'nope': 1}, TypeError), ('ab', TypeError), (3, TypeError),
                      (('ids', -1), ValueError), ({'field': 'ids', 'length': 4, 'bos': 70000}, ValueError)):
        raises(kind, bags.Loader, 'x', 8, tokens=bad)
    raises(ValueError, bags.Loader, 'x', 8, tokens=('ids', 4), fields=['m'])
    raises(ValueError, bags.Loader, 'x', 8, tokens=('ids', 2 ** 20),
           says='x: field "ids": no window: a window has 1048577 tokens, and the longest shard has ')
    bags.write('none', [], {'ids': 'array(uint16,-1)'})
    assert not list(bags.Loader('none', 8, tokens=('ids', 16)))


def windows_of_sequences_have_an_entry_for_each_datapoint():
    spec = {'n': 'int[]', 'w': 'utf8[]', 'y': 'zstd(bytes)[]', 'a': 'array(uint8,-1)[]', 'm': 'msgpack[]'}
    def point(i):
        return {'n': [i, i + 1, i + 2], 'w': [f'{i}', '', 'c'], 'y': [b'%d' % i, b'', b'y'],
                'a': [np.full(i + k, k, 'u1') for k in range(3)], 'm': [i, [i], 'm']}
    with bags.DatasetWriter('x', spec) as writer:
        for i in range(7):
            writer.append(point(i))
    for start, starts in (0, {0}), (1, {1}), ('random', {0, 1}):
        loader = bags.Loader('x', 8, fields={'n': {'window': 2}}, shuffle=False, window_start=start)
        epochs = [next(iter(loader))['n'] for _ in range(9)]
        assert {int(n[0]) - i for batch in epochs for i, n in enumerate(batch)} == starts
        loader.close()
    window = {'window': 2, 'stride': 2}
    for ranks in (1, 9):  # this rank has nothing of the batch of 7
        batch = next(bags.Loader('x', 8, fields=dict.fromkeys(spec, window), shuffle=False, rank=0, ranks=ranks))
        assert {name: len(value) for name, value in batch.items()} == dict.fromkeys(
            [*spec, 'indices'], 0 if ranks > 1 else 7)
        for i, n in enumerate(batch['n']):
            want = point(i)
            assert n.tolist() == want['n'][::2] and batch['w'][i] == want['w'][::2] and batch['y'][i] == want['y'][::2]
            assert [a.tolist() for a in batch['a'][i]] == [a.tolist() for a in want['a'][::2]]
            assert batch['m'][i] == [bags.encoders['msgpack'](m) for m in want['m'][::2]]


def epochs_without_a_packed_row_are_empty():
    for documents in ([], [0, 0], [9, 9]):
        with bags.DatasetWriter(f'x{sum(documents)}{len(documents)}', {'ids': 'array(uint16,-1)'}) as w:
            for n in documents:
                w.append({'ids': np.ones(n, 'u2')})
        def packed():
            return bags.Loader(w.path, 2, tokens={'field': 'ids', 'length': 8, 'pack': True, 'long_documents': 'drop'})
        loader, other = packed(), packed()
        assert [list(loader) for _ in range(2)] == [[], []] and loader.epoch == 2
        other.load_state_dict(loader.state_dict())
        assert list(other) == [] and other.epoch == 3
