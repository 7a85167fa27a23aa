"""bags.granular: the API of granular 0.16 to 0.22."""
import collections
import multiprocessing
import os
import pathlib
import pickle
import signal
import struct
import subprocess
import sys

import numpy as np

import bags
import bags.granular as granular
from bags.granular import sources
from run import python, raises

SPEC = {'foo': 'utf8', 'bar': 'int', 'baz': 'utf8[]'}
FORK = multiprocessing.get_context('fork')


def _point(i):
    return {'foo': f'row {i}', 'bar': i, 'baz': [f'word{j}' for j in range(i % 4)]}


def _write(path='x', count=10, spec=SPEC, **options):
    make = granular.ShardedDatasetWriter if options else granular.DatasetWriter
    with make(path, spec, granular.encoders, **options) as writer:
        for i in range(count):
            assert writer.append({k: v for k, v in _point(i).items() if k in spec}) == i
    return writer


def _same(a, b):
    if isinstance(a, np.ndarray):
        return type(b) is type(a) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and a == b


def a_dataset_with_every_type():
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    values = {
        'bytes': b'\0ab', 'utf8': 'h\xe9', 'msgpack': {'a': [1, 2.5, None, 'x', b'y']},
        'int': 200, 'i64': -5, 'u64': 2 ** 64 - 1, 'png': image,
        'array': np.arange(6, dtype='<f4').reshape(2, 3),
        'tree': {'a': [np.ones(3), {'b': np.zeros((2, 2), np.int16)}], 'c': 'text'}}
    spec = {f'f{i}': kind for i, kind in enumerate([*values, 'jpg'])}
    point = dict(zip(spec, [*values.values(), image]))
    with granular.DatasetWriter('x', spec, granular.encoders) as writer:
        writer.append(point)
    with granular.DatasetReader('x', granular.decoders) as reader:
        got = reader[0]
        assert got.pop('f9').shape == point.pop('f9').shape and _same(got, point), got
    with granular.DatasetReader('x', None) as reader:
        assert reader[0, ('f0', 'f5')] == {'f0': b'\0ab', 'f5': b'\xff' * 8}
    for name, value in values.items():
        assert _same(granular.decoders[name](granular.encoders[name](value)), value)
    assert set(granular.encoders) == set(granular.decoders) == {
        *values, 'jpg', 'mp4', 'webm'}
    assert pickle.loads(pickle.dumps(granular.decoders))['int'](b'\5') == 5


def masks_are_dicts_or_tuples():
    _write()
    with granular.DatasetReader('x', granular.decoders, True, ['refs', 'foo'], True) as reader:
        assert reader[7] == _point(7) and reader[-1] == _point(9) and len(reader) == 10
        assert reader[3, {}] == reader[3, ()] == {}
        assert reader[3, {'foo': True, 'baz': False}] == {'foo': 'row 3'}
        assert list(reader[3, ('foo', 'bar')]) == ['foo', 'bar']
        assert list(reader[3, {'foo': True, 'bar': True}]) == ['bar', 'foo']
        assert reader[3, {'baz': range(1, 10)}] == {'baz': ['word1', 'word2']}
        assert reader[3, {'baz': range(3, 3)}] == {'baz': []}
        assert reader[3, {'baz': slice(0, 2)}] == {'baz': ['word0', 'word1']}
        assert reader.available(6) == {'foo': True, 'bar': True, 'baz': range(2)}
        assert reader[6, reader.available(6)] == _point(6)
        raises(TypeError, lambda: reader[3, {'foo': 12}])
        raises(TypeError, lambda: reader[3, {'bar': range(1)}])
        raises(TypeError, lambda: reader[3, 'foo'])
        raises(KeyError, lambda: reader[3, ('nothing',)], says='nothing')
        raises(IndexError, lambda: reader[10], says='10')
        raises(IndexError, reader.available, 10, says='10')
    raises(ValueError, lambda: reader[0])


def slices_are_lists_of_a_field():
    for options in ({}, {'shardlen': 3}):
        path = f'x{len(options)}'
        _write(path, **options)
        kind = granular.ShardedDatasetReader if options else granular.DatasetReader
        with kind(path, granular.decoders) as reader:
            assert reader[2:8, ('foo', 'bar')] == {
                'foo': [f'row {i}' for i in range(2, 8)], 'bar': list(range(2, 8))}
            assert reader[range(2, 3)] == {k: [v] for k, v in _point(2).items()}
            assert list(reader[0:1, {'foo': True, 'bar': True, 'baz': False}]) == [
                'bar', 'foo']
            assert reader[-2:, ['bar']] == reader[8:99, ['bar']] == {'bar': [8, 9]}
            assert reader[5:2, ('bar',)] == reader[range(7, 7), ('bar',)] == {'bar': []}
            raises(IndexError, lambda: reader[range(5, 11)], says='11')
            assert reader[0:6:2, ('bar',)] == reader[[0, 2, 4], ('bar',)] == {'bar': [0, 2, 4]}
            raises(TypeError, lambda: reader[0:2, {'baz': range(1)}], says='baz')
            raises(TypeError, lambda: reader[0:2, 'foo'])
            raises(KeyError, lambda: reader[0:2, ('foo', 'nothing')], says='nothing')


def codecs_are_checked_when_a_dataset_is_opened():
    raises(KeyError, granular.DatasetWriter, 'y', {'a': 'nothing'}, granular.encoders,
           says='nothing')
    assert not os.path.exists('y')
    _write()
    raises(KeyError, granular.DatasetReader, 'x', {'int': bytes}, says='utf8')
    raises(TypeError, granular.DatasetReader, 'x', None, cache_keys='foo')
    raises(KeyError, granular.DatasetReader, 'x', None, cache_keys=['nothing'])
    anything = granular.DatasetReader('x', collections.defaultdict(lambda: None))
    assert anything[3, ('foo',)] == {'foo': b'row 3'}
    own = {**granular.decoders, 'int': lambda blob: -blob[0]}
    assert granular.DatasetReader('x', own)[3, ('bar', 'foo')] == {'bar': -3, 'foo': 'row 3'}


def readers_are_copied_and_pickled():
    _write('s', shardlen=4)
    _write()
    for reader in (granular.DatasetReader('x', granular.decoders),
                   granular.ShardedDatasetReader('s', granular.decoders)):
        for copy in (reader.copy(), pickle.loads(pickle.dumps(reader))):
            assert type(copy) is type(reader) and copy[9] == _point(9)
            assert copy[1:3, ('bar',)] == {'bar': [1, 2]}


def workers_write_every_third_shard():
    sizes = 0
    for worker in range(3):
        with granular.ShardedDatasetWriter('s', SPEC, granular.encoders, 2, worker,
                                           shardstep=3) as writer:
            for i in range(4):
                writer.append(_point(worker * 4 + i))
        assert writer.shards == 2 and len(writer) == 4
        sizes += writer.size
    assert sorted(os.listdir('s')) == [f'{i:06}' for i in range(6)]
    with granular.ShardedDatasetReader('s', granular.decoders) as reader:
        assert reader.shards == 6 and len(reader) == 12 and reader.size == sizes
        assert [x['bar'] for x in reader] == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]
    with granular.ShardedDatasetReader('s', granular.decoders, shardstart=1,
                                       shardstep=3) as reader:
        assert reader[0:4, ('bar',)] == {'bar': [4, 5, 6, 7]}
    raises(ValueError, granular.ShardedDatasetWriter, 't', SPEC, granular.encoders,
           shardstart=1, shardstep=3, says='shardlen')


def bags_of_every_version():
    blobs = [b'hello', b'x' * 300, b'world']
    ends = [5, 305, 310]
    index = struct.pack('<3Q', *ends)
    with granular.BagWriter('v1.bag', version=1) as writer:
        for blob in blobs:
            writer.append(blob, flush=False)
    files = {'v1.bag': None, 'v2.bag': b''.join(blobs) + index, 'split.bag': b''.join(blobs),
             'split.idx': index + b'torn', 'elsewhere': index, 'alone.bag': b''.join(blobs)}
    for name, data in files.items():
        if data:
            pathlib.Path(name).write_bytes(data)
    path = pathlib.Path('v1.bag')
    assert path.read_bytes() == b''.join(blobs) + bytes(8) + index
    for args, options in (
            (('v1.bag',), {}), ((path, False), {}), ((path, True, True), {}),
            ((path, None, False, True), {}), ((path,), {'single_file': True}),
            ((path.read_bytes(),), {}),
            (('v2.bag',), {}), (('v2.bag',), {'single_file': True}),
            ((pathlib.Path('v2.bag').read_bytes(), True, True), {}),
            (('split.bag',), {}), (('split.bag', 'split.idx'), {}),
            (('split.bag', 'elsewhere'), {}), (('alone.bag', 'elsewhere'), {}), (('split.bag', index + b'torn'), {}),
            ((b''.join(blobs) + b'not yet', bytearray(index)), {}),
            ((), {'bag_source': 'split.bag', 'idx_source': pathlib.Path('elsewhere')})):
        with granular.BagReader(*args, **options) as reader:
            assert list(reader) == reader[0:9] == blobs, (args, options)
            assert pickle.loads(pickle.dumps(reader))[2] == b'world', (args, options)
    assert len(granular.BagReader(b'', b'')) == 0
    assert list(granular.BagReader(b'ab', struct.pack('<2Q', 0, 2))) == [b'', b'ab']
    raises(bags.DataError, granular.BagReader, b'ab', index, says='310')
    raises(ValueError, granular.BagReader, 'v1.bag', index, single_file=True)
    raises(FileNotFoundError, granular.BagReader, 'v1.bag', 'v1.idx')
    raises(TypeError, granular.BagReader, 'v1.bag', 3)
    pathlib.Path('v1.idx').write_bytes(index)  # single_file does not read it
    with granular.BagReader('v1.bag', single_file=True) as reader:
        assert list(reader) == blobs
    raises(ValueError, granular.BagWriter, 'y.bag', version=2, says='version=2')
    raises(ValueError, granular.BagWriter, 'y.bag', 'z.idx', says='z.idx')
    raises(FileExistsError, granular.BagWriter, 'v1.bag')
    assert not os.path.exists('y.bag')
    with granular.BagWriter(bag_path='y.bag', idx_path='y.idx') as writer:
        writer.append(b'abc')
    assert pathlib.Path('y.idx').read_bytes() == struct.pack('<Q', 3)
    assert granular.BagReader('y.bag', 'y.idx')[0] == b'abc'


def sources_are_functions_of_a_step():
    data = list(range(10))
    ordered = sources.Epochs(data, shuffle=False)
    assert [ordered(i) for i in range(12)] == [*data, 0, 1]
    for seed in (0, 7):
        epochs = sources.Epochs(data, seed=seed)
        for epoch in (0, 3, 1):
            expected = np.random.default_rng([seed, epoch]).permutation(10).tolist()
            assert [epochs(epoch * 10 + i) for i in range(10)] == expected
    assert pickle.loads(pickle.dumps(epochs))(31) == epochs(31)
    assert sources.Truncate(data, 3)(7) == 1 and sources.Truncate(data, 99)(11) == 1
    assert sources.Transform(data, lambda x, seed: (x, seed), seed=5)(4) == (4, [5, 4])
    turns = sources.Interleave([data, 'abcdefghij'])
    assert [turns(i) for i in range(5)] == [0, 'a', 1, 'b', 2]
    sample = sources.Sample(data, seed=3)
    assert {sample(i) for i in range(200)} == set(data)
    assert [sample(i) for i in range(9)] == [sources.Sample(data, seed=3)(i) for i in range(9)]
    mix = sources.Mix([sample, lambda step: -1], [1, 3])
    assert 600 < sum(mix(i) == -1 for i in range(1000)) < 900
    for wrong in (lambda: sources.Mix([data], [1, 2]), lambda: sources.Mix([data], [-1]),
                  lambda: sources.Mix([data], [0]), lambda: sources.Epochs([]),
                  lambda: sources.Sample(data, 0), lambda: sources.Truncate(data, 0),
                  lambda: sources.Interleave([])):
        raises(ValueError, wrong)
    raises(TypeError, sources.Transform, 5, len)


def _batches(field, *args, count=6, load=None, **options):
    batches = iter(granular.Loader(*args, mp=FORK, **options))
    if load:
        batches.load(load)
    try:
        return [next(batches)[field] for _ in range(count)], batches.save()
    finally:
        batches.close()


def _double(point, seed):
    return {'bar': point['bar'] * 2}


def a_loader_returns_batches_in_order():
    _write(spec={'bar': 'int', 'foo': 'utf8'})
    reader = granular.DatasetReader('x', granular.decoders)
    source = sources.Epochs(reader, shuffle=False)
    batches = iter(granular.Loader(source, 4, workers=2, prefetch=2))
    first = next(batches)
    kept = first['bar'].copy()
    assert first['bar'].dtype == np.int64 and list(first['foo'][:2]) == ['row 0', 'row 1']
    for i in range(4, 40, 4):
        assert np.array_equal(next(batches)['bar'], np.arange(i, i + 4) % 10)
    assert np.array_equal(kept, first['bar']) and batches.consumed == 40
    batches.close()
    assert np.array_equal(kept, first['bar'])
    raises(ValueError, next, batches, says='closed')
    # An object with [i] and shuffle, as in 0.16 to 0.20.
    got, state = _batches('bar', reader, 5, workers=3, shuffle=False, count=4)
    assert np.concatenate(got).tolist() == [*range(10), *range(10)]
    got, state = _batches('bar', reader, 5, workers=1, seed=4, count=2)
    assert np.concatenate(got).tolist() == (
        np.random.default_rng([4, 0]).permutation(10).tolist()) and state['seed'] == 4
    got, state = _batches('bar', reader, 2, [_double], False, workers=2, count=2)
    assert np.concatenate(got).tolist() == [0, 2, 4, 6]


def loaders_share_and_continue_the_steps():
    source = sources.Epochs([{'a': np.full((2, 2), i)} for i in range(7)])
    expected = [source(i)['a'][0, 0] for i in range(48)]
    got = [_batches('a', source, 3, workers=2, shard_id=i, num_shards=2) for i in range(2)]
    again = [_batches('a', source, 3, workers=4, shard_id=i, num_shards=2, count=2,
                      load=got[i][1]) for i in range(2)]
    for count, part in ((6, [x[0] for x in got]), (2, [x[0] for x in again])):
        rows = [batch[:, 0, 0] for pair in zip(*part) for batch in pair]
        assert np.concatenate(rows).tolist() == expected[:6 * count]
        expected = expected[6 * count:]
    batches = iter(granular.Loader(source, 3, workers=2, recycle_after=1, mp=FORK))
    batches.load({'step': 3})
    one, two = next(batches)['a'], next(batches)['a']
    assert one[0, 0, 0] == source(3)['a'][0, 0] and two[0, 0, 0] == source(6)['a'][0, 0]
    batches.close()
    assert two[2, 0, 0] == source(8)['a'][0, 0]  # memory outlives the loader


def a_worker_that_cannot_start_is_not_called_killed():
    pathlib.Path('main.py').write_text('''
import bags.granular as granular, numpy as np
def source(step):
    return {'a': np.ones(2)}
try:
    next(iter(granular.Loader(source, 1, workers=1)))
except RuntimeError as error:
    print(error)
    raise SystemExit(0 if __name__ == '__main__' and 'did not start' in str(error) else 3)
''')
    done = subprocess.run([sys.executable, 'main.py'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and b'ended with exit code' in done.stdout, done.stdout


def _fails(points, says, kind=RuntimeError, **options):
    batches = granular.Loader(points.__getitem__, 2, workers=2, mp=FORK, prefetch=1, **options)

    def run():
        iter(batches)
        for _ in range(3):
            next(batches)
    raises(kind, run, says=says)


def what_a_loader_cannot_batch_is_an_error():
    good = [{'a': np.zeros(3), 'b': 'abc'}] * 4
    _fails(good, 'IndexError')
    _fails(good + [{'a': np.zeros((1, 3)), 'b': 'abc'}] * 4, 'field "a"')
    _fails(good + [{'a': np.zeros(1), 'b': 'abc'}] * 4, 'field "a"')
    _fails(good + [{'a': np.zeros(3, int), 'b': 'abc'}] * 4, 'field "a"')
    _fails(good + [{'a': np.zeros(3), 'b': 'longer'}] * 4, 'field "b"')
    _fails(good + [{'a': np.zeros(3)}] * 4, "['a']")
    _fails(good + [7] * 4, 'int')
    _fails([{'a': None}], 'field "a"', TypeError)
    reader = [{'a': 1}] * 5
    for options in ({'batch': 0}, {'workers': 0}, {'shard_id': 1}, {'prefetch': 0}):
        raises(ValueError, granular.Loader, reader, **{'batch': 1, **options})
    raises(TypeError, granular.Loader, reader, 2, 8)
    raises(ValueError, granular.Loader, sources.Epochs(reader), 2, shuffle=True)
    raises(TypeError, next, granular.Loader(reader, 2), says='iter')
    raises(TypeError, pickle.dumps, granular.Loader(reader, 2))


def a_killed_worker_is_an_error():
    batches = iter(granular.Loader([{'a': i} for i in range(5)], 2, workers=2, mp=FORK))
    next(batches)
    child = multiprocessing.active_children()[0]
    os.kill(child.pid, signal.SIGKILL)
    raises(RuntimeError, lambda: [next(batches) for _ in range(100)], says='killed')
    assert not multiprocessing.active_children()


def long_a_killed_program_leaves_no_worker():
    text = '''if True:
        import os, signal, sys, multiprocessing as mp
        import bags.granular as granular
        if __name__ == '__main__':
            batches = iter(granular.Loader([{'a': i} for i in range(5)], 2, workers=2,
                           mp=mp.get_context(sys.argv[1])))
            next(batches)
            print(*(child.pid for child in mp.active_children()), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    '''
    for method in ('fork', 'forkserver'):
        for pid in python(text, method, code=-9).split():
            for _ in range(12000):
                if not os.path.exists(f'/proc/{pid}'):
                    break
                multiprocessing.Event().wait(0.05)
            else:
                raise AssertionError(f'{method}: {pid} lives')


def a_tree_has_arrays_that_can_be_read():
    with granular.DatasetWriter('x', {'t': 'tree'}, granular.encoders) as writer:
        for array in (np.array([None]), np.array(['ab']), np.array(['2020'], 'M8[D]'),
                      np.zeros(2, 'i4,f4'), np.zeros(2, 'g')):
            raises(TypeError, writer.append, {'t': {'a': [array]}}, says='dtype')
        arrays = [np.zeros(2, kind) for kind in '?bBhHiIqQefdFD']
        assert writer.append({'t': arrays}) == 0
    assert _same(granular.DatasetReader('x', granular.decoders)[0]['t'], arrays)


def a_forked_child_does_not_append():
    writers = [(granular.BagWriter('x.bag'), b'abc'), (
        granular.DatasetWriter('x', {'a': 'bytes'}, granular.encoders), {'a': b'abc'})]
    for writer, value in writers:
        writer.append(value)
        pid = os.fork()
        if pid == 0:
            try:
                raises(RuntimeError, writer.append, value, says='fork')
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        writer.append(value)
        writer.close()
        assert len(writer) == 2
