"""The API of bags 0.5.1: what a program that uses it relies on."""
import collections
import gc
import io
import json
import os
import pathlib
import pickle
import sys
import tempfile

import numpy as np

import bags
from run import Skip, python, raises

SPEC = {'foo': 'utf8', 'bar': 'int(4)', 'baz': 'utf8[]'}


def _point(i):
    return {'foo': f'row {i}', 'bar': i, 'baz': [f'word{j}' for j in range(i % 5)]}


def _write(path, count=10, spec=SPEC, point=_point, make=bags.DatasetWriter, **options):
    with make(path, spec, bags.encoders, **options) as writer:
        for i in range(count):
            assert writer.append(point(i)) == i
            assert len(writer) == i + 1
    return writer


def a_bag_is_written_and_read():
    blobs = [b'x' * i for i in range(20)]
    with bags.BagWriter(pathlib.Path('x.bag')) as writer:
        for i, blob in enumerate(blobs):
            assert writer.append(blob) == i == len(writer) - 1
        size = writer.size
    assert writer.closed and len(writer) == 20 and writer.size == size
    assert pathlib.Path('x.bag').stat().st_size == size == sum(map(len, blobs)) + 8 * 21
    for source in ('x.bag', pathlib.Path('x.bag'), open('x.bag', 'rb'),
                   pathlib.Path('x.bag').read_bytes(),
                   io.BytesIO(pathlib.Path('x.bag').read_bytes())):
        for cache in (True, False):
            with bags.BagReader(source, cache) as reader:
                assert len(reader) == 20 and reader.size == size
                assert list(reader) == blobs
                assert reader[range(3, 30)] == reader[3:] == blobs[3:]
                assert reader[range(0)] == [] and reader[50:60] == []
                assert reader[range(5, 1, -2)] == [blobs[5], blobs[3]] == reader[5:1:-2]
                raises(IndexError, lambda: reader[range(5, -1, -1)], says='negative')
                assert reader[-1] == blobs[-1] and reader[::-3] == blobs[::-3]
                assert bytes(reader.view(7)) == blobs[7] and reader.view(7).readonly


def a_bag_is_written_to_an_open_file():
    with bags.BagWriter(open('x.bag', 'wb')) as writer:
        writer.append(b'abc')
    assert bags.BagReader('x.bag')[0] == b'abc' and writer._folder is None
    file = open('dropped.bag', 'wb')
    bags.BagWriter(file).append(b'abc')
    assert file.closed and bags.BagReader('dropped.bag')[0] == b'abc'
    for text in (open('text', 'w'), io.StringIO('x.bag')):
        raises(TypeError, bags.BagWriter, text)
        raises((TypeError, OSError), bags.BagReader, text)
    raises(OSError, bags.BagWriter, open('x.bag', 'rb'))
    for option in ('sync', 'checksum', 'keep_idx'):
        raises(ValueError, bags.BagWriter, io.BytesIO(), says='pass a path', **{option: True})
        bags.BagWriter(io.BytesIO(), **{option: False}).close()
    with bags.BagWriter(open('forked.bag', 'wb')) as writer:
        writer.append(b'abc')
        child = os.fork()
        if child == 0:
            try:
                writer.close()
                os._exit(0)
            finally:  # never into the other tests
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        writer.append(b'd')
    assert list(bags.BagReader('forked.bag')) == [b'abc', b'd']
    unraised, sys.unraisablehook, tempfile.tempdir = [], lambda e: unraised.append(e), os.getcwd()
    try:
        raises(TypeError, bags.BagWriter, io.BytesIO(), unknown=1)
        cycle = [bags.BagWriter(open('cycle.bag', 'wb'))]
        cycle[0].append(b'abc')
        cycle.append(cycle)
        del cycle
        gc.collect()
    finally:
        sys.unraisablehook, tempfile.tempdir = sys.__unraisablehook__, None
    assert not unraised and list(bags.BagReader('cycle.bag')) == [b'abc']
    assert not list(pathlib.Path().glob('bags-*'))
    python("""import bags, sys
sys.keep = bags.BagWriter(open('exit.bag', 'wb'))
sys.keep.append(b'abc')""")
    assert list(bags.BagReader('exit.bag')) == [b'abc']


def a_dataset_is_written_and_read():
    _write('x')
    assert {p.name for p in pathlib.Path('x').iterdir()} == {
        'spec.json', 'refs.bag', 'foo.bag', 'bar.bag', 'baz.bag'}
    assert json.loads(pathlib.Path('x/spec.json').read_text()) == SPEC
    for options in ({}, {'no_mmap': True}, {'cache_index': False, 'no_mmap': True}):
        with bags.DatasetReader('x', bags.decoders, **options) as reader:
            assert [reader[i] for i in range(len(reader))] == [_point(i) for i in range(10)]
            assert list(reader[3]) == sorted(SPEC) and reader.spec == SPEC
            assert reader.size == sum(p.stat().st_size for p in pathlib.Path('x').glob('*.bag'))
            assert reader.values('bar', 2, 5) == [2, 3, 4] and reader.items(4, 'baz') == 4
            assert reader.values('baz', 3)[0] == _point(3)['baz']


def a_mask_selects_fields_and_items():
    _write('x')
    with bags.DatasetReader('x', bags.decoders) as reader:
        words = _point(4)['baz']
        assert reader[4, {}] == {} and reader[4, ()] == {}
        assert reader[4, {'foo': True, 'bar': False}] == {'foo': 'row 4'}
        assert list(reader[4, {'foo': True, 'bar': True}]) == ['bar', 'foo']
        assert list(reader[4, ('foo', 'bar')]) == ['foo', 'bar']
        for part in (range(1), range(1, 10), range(0, 4, 2), range(3, 3), range(9, 12)):
            expected = [words[k] for k in part if k < 4]
            assert reader[4, {'baz': part}] == {'baz': expected}, part
        assert reader[4, {'baz': slice(1, None)}] == {'baz': words[1:]}
        for mask in ({'foo': 12}, {'bar': range(1)}, {'baz': 'x'}, 'foo', 3):
            raises(TypeError, lambda: reader[4, mask])
        raises(KeyError, lambda: reader[4, {'no': True}], says='no')
        raises(ValueError, lambda: reader[4, {'baz': range(-1, 2)}])
        assert reader[4, ('foo',) * 99] == {'foo': reader[4]['foo']}


def shards_are_cut_and_shared_among_workers():
    for size, shards in ((None, 1), (1, 10), (200, 4)):
        writer = _write(f'x{size}', make=bags.ShardedDatasetWriter, shard_size=size)
        assert writer.shards == len(list(pathlib.Path(f'x{size}').iterdir()))
        assert size == 200 or writer.shards == shards
        with bags.ShardedDatasetReader(f'x{size}', bags.decoders) as reader:
            assert reader.shards == writer.shards and reader.size == writer.size
            assert list(reader) == [_point(i) for i in range(10)]
    for i, (limits, lengths) in enumerate((({'shard_length': 2.5}, [3, 3, 3, 1]), ({'shard_size': 10 / 3}, [1] * 10),
                                           ({'shard_size': float('inf'), 'shard_length': 0.}, [10]))):
        _write(f'f{i}', make=bags.ShardedDatasetWriter, **limits)
        assert [len(bags.DatasetReader(shard)) for shard in sorted(pathlib.Path(f'f{i}').iterdir())] == lengths
    raises(ValueError, bags.ShardedDatasetWriter, 'nan', SPEC, shard_size=float('nan'))
    raises(TypeError, bags.ShardedDatasetWriter, 'text', SPEC, shard_size='1')
    for worker in range(3):
        with bags.ShardedDatasetWriter('y', SPEC, shard_length=2, shard_start=worker,
                                       shard_step=3) as writer:
            for i in range(worker, 12, 3):
                writer.append(_point(i))
    got = [r['bar'] for w in range(3) for r in bags.ShardedDatasetReader(
        'y', shard_start=w, shard_step=3)]
    assert sorted(got) == list(range(12))
    writer = bags.ShardedDatasetWriter('z', SPEC)
    writer.close()
    assert writer.shards == 0 and not pathlib.Path('z').exists()


def every_type_is_encoded_in_c_and_decoded():
    values = {
        'a': ('utf8', 'h\u00e9llo'), 'b': ('int(4)', 2**32 - 1), 'c': ('int', 200),
        'd': ('msgpack', {'a': [1, -2, 2.5, None, True, b'x', 2**63], 'b': {}}),
        'e': ('i64', -5), 'f': ('bytes', b'\0\1'), 'g': ('u64', 2**64 - 1),
        'h': ('array(float32,2,3)', np.arange(6, dtype=np.float32).reshape(2, 3)),
        'i': ('array', np.arange(4, dtype=np.complex128)[::2]),
        'j': ('png', np.arange(48, dtype=np.uint8).reshape(4, 4, 3)),
        'k': ('tree', [{'x': np.ones(3)}, 'y', (1, 2)]), 'l': ('npy', np.arange(3.)),
        'm': ('array(uint8,-1,2)', np.zeros((5, 2), np.uint8)), 'n': ('int(2,big)', 258),
        'o': ('array(bool)', np.array(True)), 'p': ('array(int16,0,4)', np.zeros((0, 4), 'i2')),
        'q': ('array(float16,3000)', np.arange(3000).astype('f2'))}
    with bags.DatasetWriter('x', {k: t for k, (t, _) in values.items()}) as writer:
        writer.append({k: v for k, (_, v) in values.items()})
    for options in ({}, {'no_mmap': True}):
        row = bags.DatasetReader('x', **options)[0]
        for key, (type, value) in values.items():
            got = row[key]
            if isinstance(value, np.ndarray):
                assert got.dtype == value.dtype and got.shape == value.shape, (key, got)
                assert (got == value).all(), key
            elif key == 'k':
                assert (got[0]['x'] == 1).all() and got[1:] == ['y', [1, 2]]
            else:
                assert got == value and type[0] != 'n', (key, got)
    kept = row['q'], row['j']
    assert not kept[0].flags.writeable and kept[1].flags.writeable


def arrays_of_npy_have_every_dtype():
    record = [('a', [('b', '>i2')]), ('c', '<f4', (2,)), ('d', 'U2')]
    arrays = [np.array(['2024-01-01', 'NaT'], '>M8[25s]'), np.array([['a', 'b\u00e9']]), np.array([b'a', b'\xff']),
              np.array([1.5], np.longdouble), np.zeros(3, 'V2'), np.array(((1,), (2, 3), 'x'), record)]
    with bags.DatasetWriter('x', {'n': 'npy'}, encoders={'npy': None}) as writer:
        for array in arrays:
            file = io.BytesIO()
            np.save(file, array)
            writer.append({'n': file.getvalue()})
    for array, row in zip(arrays, bags.DatasetReader('x')):
        assert (row['n'].dtype, row['n'].shape, row['n'].tobytes()) == \
            (array.dtype, array.shape, array.tobytes()), row
    file = io.BytesIO()
    np.save(file, np.array([{}]))
    raises(ValueError, bags.decoders['npy'], file.getvalue(), says='allow_pickle=True')


def msgpack_has_the_extensions_of_its_package():
    try:
        import msgpack
    except ImportError:
        raise Skip('no msgpack') from None
    value = {'a': [msgpack.ExtType(5, b'abc'), collections.namedtuple('Two', 'a b')(1, 2)],
             'b': msgpack.Timestamp(-1, 5), 'c': msgpack.Timestamp(2**33, 0), 'd': msgpack.ExtType(127, b'')}
    encode, decode = bags.encoders['msgpack'], bags.decoders['msgpack']
    blob = encode(value)
    assert blob == msgpack.packb(value) and decode(blob) == msgpack.unpackb(blob) == {**value, 'a': [(5, b'abc'), [1, 2]]}
    assert type(decode(blob)['a'][0]) is msgpack.ExtType
    for bad in ((300, b''), (-2, b''), (2**70, b''), (1, 'x'), ('x', b'')):
        raises((TypeError, ValueError, OverflowError), encode, msgpack.ExtType._make(bad))
    for bad in (b'\xc7\x03\xffabc', b'\xd4\xfe\0'):
        raises(ValueError, decode, bad)
    blob = bags.encoders['tree'](value)  # as granular: a tuple
    assert bags.decoders['tree'](blob) == {**value, 'a': [[5, b'abc'], [1, 2]], 'd': [127, b'']}


def codecs_are_called_and_pickled():
    assert bags.encoders['int'](5, 4) == b'\5\0\0\0' == bags.encoders['int'](5, '4', 'little')
    assert bags.decoders['int'](b'\1\2', '2', 'big') == 258
    assert bags.encoders['utf8']('\u00e9') == '\u00e9'.encode()
    image = np.zeros((8, 6, 3), np.uint8)
    assert bags.decoders['jpeg'](bags.encoders['jpeg'](image)).shape == (8, 6, 3)
    for codec in (*bags.encoders.values(), *bags.decoders.values()):
        again = pickle.loads(pickle.dumps(codec))
        assert again.name == codec.name and repr(again) == repr(codec)
    assert pickle.loads(pickle.dumps(bags.encoders))['int'](7) == b'\7'
    raises(TypeError, bags.encoders['int'])
    raises(TypeError, bags.encoders['int'], 'x')
    raises(ValueError, bags.encoders['int'], 300, 1)
    raises(ValueError, bags.decoders['utf8'], b'\xff')
    raises(KeyError, bags.codecs.Codec, 'nothing', True)


def foreign_codecs_get_bytes_and_the_arguments_of_the_type():
    seen = []
    encoders = {**bags.encoders, 'shout': lambda x, *a: (x * 2).encode()}
    decoders = {**bags.decoders, 'shout': lambda b, *a: seen.append((b, a)) or len(b)}
    with bags.DatasetWriter('x', {'s': 'shout(1,b)', 't': 'shout[]', 'u': 'int'}, encoders) as w:
        w.append({'s': 'ab', 't': ('x', 'y'), 'u': 1})
    with bags.DatasetReader('x', decoders) as reader:
        assert reader[0] == {'s': 4, 't': [2, 2], 'u': 1}
    assert seen == [(b'abab', ('1', 'b')), (b'xx', ()), (b'yy', ())]
    assert bags.DatasetReader('x', {**decoders, 'shout(1,b)': bytes})[0, ('s',)] == {'s': b'abab'}
    assert bags.DatasetReader('x', None)[0] == {'s': b'abab', 't': [b'xx', b'yy'], 'u': b'\1'}
    assert bags.DatasetReader('x')[0]['s'] == b'abab'
    reader = bags.DatasetReader('x', bags.decoders)
    assert reader[0, ('u',)] == {'u': 1}
    raises(KeyError, lambda: reader[0], says='shout')


def values_may_be_any_iterable_of_the_right_type():
    with bags.DatasetWriter('x', {'n': 'int[]', 'm': 'int'}) as writer:
        for value in ([1, 2], (1, 2), iter([1, 2]), (i for i in (1, 2)), {1: 0, 2: 0}.keys(),
                      np.array([1, 2]), range(1, 3)):
            writer.append({'n': value, 'm': np.int64(3)})
        for bad in ({'n': [1], 'm': (i for i in (1, 2))}, {'n': 5, 'm': 1},
                    {'n': '12', 'm': 1}, {'n': [1.5], 'm': 1}, {'n': [1], 'm': None},
                    {'n': [1], 'm': 'x'}):
            raises(TypeError, writer.append, bad)
        for bad in ({'n': []}, {'n': [], 'm': 1, 'x': 2}, {}):
            raises(KeyError, writer.append, bad)
        for kind in (lambda d: collections.defaultdict(int, d), collections.Counter):
            raises(KeyError, writer.append, kind({'n': [1]}), says='no field "m"')
            raises(KeyError, writer.append, kind({'n': [1], 'x': 2}), says='no field "m"')
            raises(KeyError, writer.append, kind({'n': [1], 'm': 1, 'x': 2}), says="no field 'x'")
        raises((ValueError, OverflowError), writer.append, {'n': [], 'm': -1})
        raises(ValueError, writer.append, {'n': [], 'm': 2**64}, says='x: field "m": datapoint 7: value out of range')
    with bags.DatasetReader('x') as reader:
        assert list(reader) == [{'n': [1, 2], 'm': 3}] * 7

    class Attributes(dict):
        __getattr__ = dict.__getitem__
    with bags.DatasetWriter('y', {'keys': 'int', 'b': 'int'}) as writer:
        writer.append(Attributes(keys=1, b=2))
    assert list(bags.DatasetReader('y')) == [{'keys': 1, 'b': 2}]


def a_value_is_taken_before_code_that_may_change_it_runs():
    array, data = np.zeros(4, 'f4'), bytearray(4)

    def frames():
        for i in range(40):
            array[:] = i
            yield array

    def blobs():
        for i in range(3):
            data[:] = bytes([i]) * 4
            yield data

    class Frames:
        def __len__(self):
            return 3

        def __getitem__(self, i):
            array[:] = range(3)[i]
            return array.reshape(2, 2)

    class Lazy(dict):
        def __getitem__(self, name):
            array[:] = ord(name)
            return array

    class Tensor:
        def __init__(self, i):
            self.i = i

        def __array__(self, *args, **more):
            array[:] = self.i
            return array

    def shift(value):
        value += 1
        return value.tobytes()
    spec = {'a': 'array(float32,4)', 'b': 'array(float32,4)[]', 'c': 'bytes[]', 'd': 'array[]', 'e': 'shift'}
    encoders = {**bags.encoders, 'shift': shift}
    with bags.DatasetWriter('x', spec, encoders) as writer:
        array[:] = 7
        writer.append({'a': array, 'b': frames(), 'c': blobs(), 'd': Frames(), 'e': array})
        writer.append({'a': array, 'b': [array] * 2, 'c': [data], 'd': np.nditer([array], ['external_loop', 'buffered'], buffersize=2),
                       'e': array})
    with bags.DatasetWriter('y', dict.fromkeys('ab', 'array(float32,4)')) as writer:
        writer.append(Lazy(a=0, b=0))
        writer.append({'a': Tensor(97), 'b': Tensor(98)})
    row, last = bags.DatasetReader('x')
    assert row['a'].tolist() == [7] * 4 and [b.tolist() for b in row['b']] == [[i] * 4 for i in range(40)]
    assert row['c'] == [bytes([i]) * 4 for i in range(3)]
    assert [d.tolist() for d in row['d']] == [[[i] * 2] * 2 for i in range(3)]
    assert np.frombuffer(row['e'], 'f4').tolist() == [3] * 4 == last['a'].tolist()
    assert [b.tolist() for b in last['b']] == [[3] * 4] * 2 and np.frombuffer(last['e'], 'f4').tolist() == [4] * 4
    assert [d.tolist() for d in last['d']] == [[3, 3]] * 2
    for row in bags.DatasetReader('y'):
        assert {name: value[0] for name, value in row.items()} == {'a': 97, 'b': 98}


def readers_are_pickled_and_copied():
    _write('x')
    bags.BagWriter('y.bag').close()

    for reader in (bags.DatasetReader('x'), bags.DatasetReader('x', bags.decoders),
                   bags.DatasetReader('x', None), bags.ShardedDatasetReader('x', no_mmap=True),
                   bags.DatasetReader('x', {'utf8': len, 'int(4)': len}),
                   bags.BagReader('y.bag'), bags.BagReader(b'\0' * 8)):
        for again in (pickle.loads(pickle.dumps(reader)), reader.copy()):
            assert type(again) is type(reader) and list(again) == list(reader)
    mine = _Mine('x')
    assert pickle.loads(pickle.dumps(mine)).note == 'kept'
    lambdas = bags.DatasetReader('x', {**bags.decoders, 'unused': lambda b: b})
    assert pickle.loads(pickle.dumps(lambdas))[0] == _point(0)
    for writer in (bags.DatasetWriter('z', SPEC), bags.BagWriter('z.bag')):
        raises(TypeError, pickle.dumps, writer)


class _Mine(bags.DatasetReader):

    def __init__(self, path):
        super().__init__(path, bags.decoders)
        self.note = 'kept'


def a_crashed_writer_is_resumed_and_live_data_is_read():
    writer = bags.ShardedDatasetWriter('x', SPEC, shard_length=4)
    for i in range(6):
        writer.append(_point(i))
    writer.flush()
    raises(bags.DataError, bags.DatasetReader, 'x', says='its writer is running')
    assert len(bags.DatasetReader('x', unfinished='skip')) == 4
    live = bags.DatasetReader('x', unfinished='read')
    assert [row['bar'] for row in live] == list(range(6))
    assert 'its writer is running' in bags.verify('x')[0]['message']
    raises(BlockingIOError, bags.ShardedDatasetWriter, 'x', SPEC, shard_length=4, existing='resume')
    writer.close()
    with bags.ShardedDatasetWriter('x', SPEC, shard_length=4, existing='append') as writer:
        writer.append(_point(6))
    assert [row['bar'] for row in bags.DatasetReader('x')] == list(range(7))


def slices_are_lists_of_values():
    with bags.ShardedDatasetWriter('x', {'n': 'int', 'w': 'utf8[]'}, shard_length=4) as writer:
        for i in range(10):
            writer.append({'n': i, 'w': ['a'] * (i % 3)})
    reader = bags.DatasetReader('x')
    assert reader[3:5] == {'n': [3, 4], 'w': [[], ['a']]} and reader[-1:] == {'n': [9], 'w': [[]]}
    assert reader[range(3, 5), ('n',)] == {'n': [3, 4]} == reader[3:5, {'n': True, 'w': False}]
    assert reader[8:99, ('n',)] == {'n': [8, 9]} and reader[5:2] == {'n': [], 'w': []} == reader[range(0)]
    for rows in (range(8, 11), range(-1, 2), range(10, 11)):
        raises(IndexError, lambda: reader[rows], says='out of range (length 10)')
    for rows in (slice(0, 5, 2), slice(None, None, -1), range(0, 6, 2)):
        points = range(10)[rows] if isinstance(rows, slice) else rows
        assert reader[rows] == {'n': list(points), 'w': [['a'] * (i % 3) for i in points]}
    raises(TypeError, lambda: reader[0:2, {'w': range(2)}], says='field "w"')
    raises(TypeError, lambda: reader['a':'b'])
    for mask in (None, 3, 'n', {'n': 1}):
        raises(TypeError, lambda: reader[0:2, mask])
    assert reader[0:2, ('n', 'n')] == {'n': [0, 1]} == reader[0:2, {'n': True, 'w': None}]
    raises(KeyError, lambda: reader[0:2, ('no',)])
