"""bags.write, and plain numbers in array types."""
import collections
import ctypes
import itertools
import os
import shutil
import signal
import threading
import types
import warnings

import numpy as np

import bags
from run import raises

COUNT = itertools.count()


def _path():
    return f'd{next(COUNT)}'


def _round(kind, value):
    """A value, written as this type and read again."""
    path = _path()
    with bags.DatasetWriter(path, {'a': kind}) as writer:
        writer.append({'a': value})
    with bags.DatasetReader(path) as reader:
        return reader[0]['a']


def numbers_and_lists_go_into_array_types():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for kind, value, dtype, shape in (
                ('array(float32)', 0.1, 'f4', ()), ('array(float32)', 2 ** 24, 'f4', ()),
                ('array(float32)', float('-inf'), 'f4', ()), ('array(float16)', 0.1, 'f2', ()),
                ('array(float64)', np.float32(0.1), 'f8', ()), ('array(float32)', np.float64(0.1), 'f4', ()),
                ('array(int8)', -128, 'i1', ()), ('array(int64)', 2.0, 'i8', ()),
                ('array(uint64)', 2 ** 64 - 1, 'u8', ()), ('array(int32)', np.uint64(7), 'i4', ()),
                ('array(bool)', True, '?', ()), ('array(int32)', True, 'i4', ()),
                ('array(complex64)', 1 + 2j, 'c8', ()), ('array(float32,0)', [], 'f4', (0,)),
                ('array(float32,2,2)', [[1, 2], (3, 4.5)], 'f4', (2, 2)),
                ('array(float32,2,2)', [np.arange(2), [3, 4]], 'f4', (2, 2)),
                ('array(float32,-1)', [1, 2, 3], 'f4', (3,)), ('array', [1, 2], 'i8', (2,)),
                ('array', [1, 2.5], 'f8', (2,)), ('npy', [True, False], '?', (2,)),
                ('zstd(array)', [1, 2], 'i8', (2,))):
            got = _round(kind, value)
            assert got.dtype == dtype and got.shape == shape, (kind, value, got)
            assert (got == np.asarray(value).astype(dtype)).all(), (kind, value, got)
        assert np.isnan(_round('array(float32)', float('nan')))
        got = _round('array(float32)[]', [1, 2.5, np.float64(3)])
        assert np.array_equal(got, [1, 2.5, 3]) and got[0].dtype == 'f4'


def a_number_that_does_not_fit_is_an_error():
    for kind, value, error, says in (
            ('array(int8)', 128, ValueError, 'out of range for int8 (128, minimum -128, maximum 127)'),
            ('array(int8)', np.int64(-129), ValueError, '(-129, minimum -128'),
            ('array(uint8)', -1, ValueError, '(-1, minimum 0'),
            ('array(int64)', 2 ** 63, ValueError, 'out of range'),
            ('array(int64)', float('inf'), ValueError, 'out of range'),
            ('array(int64)', 2.5, ValueError, '2.5 is not a value of int64'),
            ('array(int64)', float('nan'), ValueError, 'nan is not'),
            ('array(bool)', 2, ValueError, '2 is not a value of bool'),
            ('array(float32)', 2 ** 24 + 1, ValueError, '16777217 is not a value of float32'),
            ('array(float64)', 10 ** 400, ValueError, 'not a value of float64'),
            ('array(float32)', 1e300, ValueError, 'out of range for float32'),
            ('array(float32)', 1j, TypeError, 'a real number is required'),
            ('array(int16,2)', [1, 2 ** 20], ValueError, 'element 1: value out of range'),
            ('array(float32,2)', [1, None], TypeError, "not <class 'NoneType'>"),
            ('array(float32,2)', [1], ValueError, 'shape mismatch'),
            ('array(float32,2,2)', [[1, 2], [3]], TypeError, 'lists of one length'),
            ('array(int32)', np.zeros((), 'i8'), ValueError, 'dtype mismatch'),
            ('array', [2 ** 53 + 1, 0.5], ValueError, 'element 0: 9007199254740993'),
            ('array', ['a'], TypeError, 'numbers are required'),
            ('png', [1, 2], TypeError, 'an array is required'),
            ('array(float32)', None, TypeError, 'an array is required')):
        path = _path()
        with bags.DatasetWriter(path, {'a': kind}) as writer:
            found = raises(error, writer.append, {'a': value}, says=says)
            assert str(found).startswith(f'{path}: field "a": datapoint 0: '), found
            assert len(writer) == 0


def the_spec_is_inferred_from_the_first_dict():
    point = {'f': 0.5, 'i': 3, 'b': True, 't': 'é', 'y': b'\0x', 'n': np.float32(2),
             'a': np.arange(6, dtype='u1').reshape(2, 3), 'w': ['a', 'b'], 'l': [1, 2.5],
             'p': [[1, 2, 3], [4, 5, 6]], 'z': (np.zeros(2), np.ones(2)), 'c': 1j}
    spec = bags.write('x', [point, {**point, 'i': -2 ** 63, 'w': [], 'l': [7]}])
    assert spec == {
        'a': 'array(uint8,2,3)', 'b': 'array(bool)', 'c': 'array(complex128)', 'f': 'array(float64)',
        'i': 'array(int64)', 'l': 'array(float64)[]', 'n': 'array(float32)', 'p': 'array(int64,3)[]',
        't': 'utf8', 'w': 'utf8[]', 'y': 'bytes', 'z': 'array(float64,2)[]'}, spec
    with bags.DatasetReader('x') as reader:
        assert reader.spec == spec and len(reader) == 2
        row = reader[0]
        for name, value in point.items():
            assert np.array_equal(row[name], value), (name, row[name])
        assert reader[1]['i'] == -2 ** 63 and reader[1]['w'] == []
    for value, says in ((None, 'NoneType'), ([], 'an empty list'), ({}, 'dict'), ([1, 'a'], 'utf8'),
                        (np.array(['a']), '<U1'), (np.array('2020', 'M8[D]'), 'datetime64'),
                        ([['a']], 'lists of lists'), ([[1], [1, 2]], 'lists of lists')):
        raises(TypeError, bags.write, 'y', [{'v': value}], says='y: field "v": datapoint 0: ')
        raises(TypeError, bags.write, 'y', [{'v': value}], says=says)
    assert not os.path.exists('y')


def without_a_datapoint_an_error_leaves_nothing():
    def broken(first):
        yield from first
        raise RuntimeError('broken')
    spec = {'a': 'int'}
    for options in ({}, {'shard_length': 2}):
        raises(TypeError, bags.write, 'x', [{'a': 'text'}], spec, **options)
        raises(KeyError, bags.write, 'x', [{'b': 1}], spec, **options)
        raises(RuntimeError, bags.write, 'x', broken([]), spec, **options)
        assert not os.path.exists('x'), options
        raises(RuntimeError, bags.write, 'x', broken([{'a': 1}]), spec, **options)
        with bags.DatasetReader('x') as reader:
            assert [*reader] == [{'a': 1}]
        if options:
            raises(RuntimeError, bags.write, 'x', broken([]), spec, existing='append', **options)
        else:
            raises(FileExistsError, bags.write, 'x', broken([]), spec)
        assert len(bags.DatasetReader('x')) == 1
        shutil.rmtree('x')


def every_datapoint_has_the_fields_of_the_first():
    point = {'a': 1, 'b': 'x'}
    for wrong, kind, says in (
            ({'a': 1}, KeyError, 'no field "b" (datapoint 2)'),
            ({**point, 'c': 1}, KeyError, "no field 'c' (datapoint 2)"),
            ({'a': None, 'b': 'x'}, TypeError, 'field "a": datapoint 2: '),
            ({'a': 1, 'b': None}, TypeError, 'field "b": datapoint 2: '),
            ({'a': 2 ** 63, 'b': 'x'}, ValueError, 'field "a": datapoint 2: value out of range'),
            ({'a': 1.5, 'b': 'x'}, ValueError, 'field "a": datapoint 2: 1.5'),
            (3, TypeError, "datapoint 2: <class 'int'>")):
        path = _path()
        raises(kind, bags.write, path, iter([point, point, wrong, point]), says=says)
        with bags.DatasetReader(path) as reader:
            assert len(reader) == 2
    raises(ValueError, bags.write, 'x', [], says='x: no datapoints')
    assert bags.write('x', [], {'a': 'int'}) == {'a': 'int'}
    raises(FileExistsError, bags.write, 'x', [], {'a': 'int'})
    raises(TypeError, bags.write, 'y', 'text')
    raises(TypeError, bags.write, 'y', 3)
    raises(TypeError, bags.write, 'y', [point], wrong=1, says='wrong')
    assert not os.path.exists('y')


def an_error_of_an_inferred_type_says_how_to_pass_a_spec():
    points = [{'ids': np.arange(5)}, {'ids': np.arange(6)}]
    error = raises(ValueError, bags.write, 'x', points, says='field "ids": datapoint 1: shape mismatch')
    assert "{'ids': 'array(int64,5)'}. Pass spec=" in error.__notes__[0], error.__notes__
    error = raises(ValueError, bags.write, 'y', points, {'ids': 'array(int64,5)'})
    assert not hasattr(error, '__notes__')
    bags.write('z', points, {'ids': 'array(int64,-1)'})
    raises(TypeError, bags.write, 'w', [{'a': 1}], {'a': int}, says="must be str, not 'a': <class 'int'>")
    raises(TypeError, bags.write, 'w', [{0: 1}], says="must be str, not 0: 'array(int64)'")
    raises(TypeError, bags.write, 'w', 'text', says='expected an iterable of dicts')


def a_tensor_with_a_gradient_is_an_error_that_names_it():
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError('requires grad')
    raises(TypeError, bags.write, 'x', [{'a': Tensor()}], says='x: field "a": datapoint 0: requires grad')
    raises(TypeError, bags.write, 'x', [{'a': np.zeros(2)}, {'a': Tensor()}],
           says='x: field "a": datapoint 1: requires grad')


def options_are_those_of_the_writers():
    points = [{'a': i} for i in range(10)]
    bags.write('x', iter(points), shard_length=4, checksum=True)
    with bags.DatasetReader('x') as reader:
        assert reader.shards == 3 and [int(row['a']) for row in reader] == [*range(10)]
    assert bags.verify('x') == []
    assert bags.write('z', [{'a': b'j'}], {'a': 'jpeg'}, encoders={'jpeg': None}) == {'a': 'jpeg'}
    # A crashed writer's dataset is continued.
    if not (child := os.fork()):
        writer = bags.DatasetWriter('y', {'a': 'array(int64)'})
        for point in points[:4]:
            writer.append(point)
        writer.flush()
        os._exit(0)
    os.waitpid(child, 0)
    bags.write('y', points, existing='resume')
    with bags.DatasetReader('y') as reader:
        assert [int(row['a']) for row in reader] == [*range(10)]


def _values_of_a_reader_are_copied():
    """Unless the reader has decoders of its own, or another spec or encoders are passed."""
    noise = np.random.default_rng(0).integers(0, 255, (20, 20, 3), 'u1')
    spec = {'image': 'jpeg(50)', 'few': 'jpeg[]', 'text': 'zstd(utf8)', 'n': 'int(4)'}
    bags.write('from', [{'image': noise, 'few': [noise] * i, 'text': 'é' * i, 'n': i} for i in range(5)],
               spec, shard_length=2)
    with bags.DatasetReader('from') as reader:
        assert bags.write('to', reader) == reader.spec
        assert not any(bags.diff('from', 'to', exact=True)[name] for name in ('added', 'removed', 'changed'))
        bags.write('again', reader, encoders=bags.encoders)
        assert set(bags.diff('from', 'again', exact=True)['changed']) == {'image', 'few'}
    with bags.DatasetReader('from', {**bags.decoders, 'int': lambda *_: 7}) as reader:
        bags.write('seven', reader)
    with bags.DatasetReader('seven') as reader:
        assert [row['n'] for row in reader] == [7] * 5
    raises(ValueError, bags.write, 'closed', reader, says='closed')


def arrays_are_written_by_rows():
    columns = {'x': np.arange(12, dtype='f4').reshape(4, 3), 'y': np.arange(4),
               't': np.array(['a', 'bc', 'd', 'e'], object)}
    assert bags.write('x', columns) == {'x': 'array(float32,3)', 'y': 'array(int64)', 't': 'utf8'}
    with bags.DatasetReader('x') as reader:
        assert len(reader) == 4 and np.array_equal(reader.column('x'), columns['x'])
        assert np.array_equal(reader.column('y'), columns['y'])
        copy = bags.write('y', reader)
        assert copy == reader.spec
    _values_of_a_reader_are_copied()
    raises(ValueError, bags.write, 'z', {**columns, 'y': np.arange(3)}, says='field "y": 3 rows')
    raises(TypeError, bags.write, 'z', {'x': 1}, says='field "x"')
    raises(TypeError, bags.write, 'z', {'x': np.ma.array([1, 2], mask=[0, 1])}, says='mask')
    # What pandas has: columns, and an array of each.
    columns = {'n': np.arange(2), 's': np.array(['a', None], object)}

    class Frame(dict):
        iloc, columns = None, ['n', 's']

        def __getitem__(self, name):
            return types.SimpleNamespace(to_numpy=lambda: columns[name])
    table = collections.UserList()
    table.iloc, table.columns = None, ['n', 's']
    table.__class__ = type('Frame', (collections.UserList,), {'__getitem__': Frame.__getitem__})
    raises(TypeError, bags.write, 'p', table, says='field "s": datapoint 1: ')
    columns['s'][1] = 'b'
    table.index = types.SimpleNamespace(names=[None])
    assert bags.write('q', table) == {'n': 'array(int64)', 's': 'utf8'}
    table.index = types.SimpleNamespace(names=['id'])
    raises(ValueError, bags.write, 'r', table, says='r: the index "id" of the table is not a column')


class _Table:
    """A table with only an Arrow stream."""

    def __init__(self, stream):
        self.__arrow_c_stream__ = stream


def arrow_streams_are_read():
    spec = {'i': 'array(int16)', 'b': 'array(bool)', 't': 'utf8', 'y': 'bytes', 'f': 'array(float32,2,3)',
            's': 'utf8[]', 'n': 'array(float64)[]', 'u': 'int(4)'}
    points = [{'i': -i, 'b': i % 3 == 0, 't': 'é' * i, 'y': bytes(i), 'f': np.full((2, 3), i, 'f4'),
               's': ['x'] * (i % 3 + 1), 'n': [0.5] * (i % 4 + 1), 'u': i} for i in range(20)]
    bags.write('x', points, spec, shard_length=8)
    with bags.DatasetReader('x') as reader:
        found = bags.write('y', _Table(reader.__arrow_c_stream__))
        with bags.DatasetReader('y') as copy:
            assert found == {**spec, 'u': 'array(int64)', 'b': 'array(uint8)'}, found
            for one, other in zip(reader, copy, strict=True):
                for name in spec:
                    assert np.array_equal(one[name], other[name]), (name, one[name], other[name])
    with bags.DatasetReader('x') as reader:
        stream = reader.__arrow_c_stream__()
    rows = bags.tables.rows('z', _Table(lambda: stream))
    assert int(next(rows)['i']) == 0  # it stays valid, also when it is not read to its end
    del rows, stream


def nulls_dictionaries_and_views_of_arrow():
    """Arrays as other libraries make them, built by hand."""
    tables = bags.tables
    keep = []

    def array(length, buffers, offset=0, nulls=0, children=(), dictionary=None):
        data = [None if one is None else ctypes.create_string_buffer(bytes(one), len(bytes(one)) or 1)
                for one in buffers]
        pointers = (ctypes.c_void_p * max(len(data), 1))(
            *[None if one is None else ctypes.addressof(one) for one in data])
        kids = (ctypes.POINTER(tables._Array) * max(len(children), 1))(*map(ctypes.pointer, children))
        keep.extend((data, pointers, kids, children, dictionary))
        made = tables._Array(length=length, null_count=nulls, offset=offset, n_buffers=len(data),
                             n_children=len(children),
                             buffers=ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p)),
                             children=kids)
        if dictionary:
            made.dictionary = ctypes.pointer(dictionary)
        return made

    def schema(kind, name='v', dictionary=None):
        made = tables._Schema(format=kind.encode(), name=name.encode())
        if dictionary:
            made.dictionary = ctypes.pointer(dictionary)
            keep.append(dictionary)
        return made
    ints = np.arange(10, dtype='i4')
    assert list(tables._values(schema('i'), array(4, [None, ints], offset=3), 1, 3)) == [4, 5, 6]
    bits = np.packbits([0, 1, 1, 1, 0, 1, 1, 1, 1, 1], bitorder='little')
    valid = array(3, [bits, ints], offset=1, nulls=-1)
    assert list(tables._values(schema('i'), valid, 0, 3)) == [1, 2, 3]
    null = raises(ValueError, tables._values, schema('i'), array(9, [bits, ints], nulls=2), 1, 8)
    assert null.args == (3,)
    assert list(tables._values(schema('b'), array(9, [None, bits]), 3, 6)) == [1, 0, 1, 1, 1, 1]
    words = array(2, [None, np.array([0, 1, 3], 'i4'), b'abc'])
    coded = array(3, [None, np.array([1, 0, 1], 'i1')], dictionary=words)
    assert tables._values(schema('c', dictionary=schema('u')), coded, 0, 3) == ['bc', 'a', 'bc']
    long = ctypes.create_string_buffer(b'..a long text that is elsewhere')
    views = np.zeros((3, 16), 'u1')
    views[0, :5] = [1, 0, 0, 0, ord('x')]
    views[2] = np.array([20, 0, 0, 2], 'i4').view('u1')
    many = array(3, [None, views, long.raw, b''])
    assert tables._values(schema('vu'), many, 0, 3) == ['x', '', 'a long text that is ']
    raises(TypeError, tables._values, schema('tdD'), array(1, [None, ints]), 0, 1, says='"tdD"')


def images_of_pil_become_png():
    try:
        from PIL import Image
    except ImportError:
        return
    pixels = np.arange(4 * 5 * 3, dtype='u1').reshape(4, 5, 3)
    assert bags.write('x', [{'image': Image.fromarray(pixels), 'label': 1}])['image'] == 'png'
    bags.write('y', [Image.fromarray(pixels[..., 0]), Image.fromarray(pixels)])
    with bags.DatasetReader('x') as one, bags.DatasetReader('y') as two:
        assert np.array_equal(one[0]['image'], pixels) and np.array_equal(two[1]['image'], pixels)
        assert two.spec == {'image': 'png'} and two[0]['image'].shape == (4, 5)
    raises(TypeError, bags.write, 'z', [Image.fromarray(pixels).convert('CMYK')],
           says='z: field "image": datapoint 0: an image of mode CMYK')
    for mode in 'P', 'PA':  # its array has numbers of colours
        raises(TypeError, bags.write, _path(), [Image.fromarray(pixels).convert(mode)], {'image': 'png'},
               says=f'an image of mode {mode}: convert("RGB")')
        raises(TypeError, _round, 'jpeg', Image.fromarray(pixels).convert(mode), says='of its colours')


def webp_keeps_every_pixel():
    if not bags.build['webp']:
        return
    random = np.random.default_rng(0)
    for channels in 3, 4:
        pixels = random.integers(0, 256, (9, 7, channels), np.uint8)
        assert np.array_equal(_round('webp', pixels), pixels)
        assert np.array_equal(_round('webp(9)[]', [pixels, pixels[:2]])[1], pixels[:2])
        with bags.DatasetWriter('x' * channels, {'a': 'webp', 'b': 'npy'}) as writer:
            writer.append({'a': pixels, 'b': pixels})
        options = {'width': 4, 'height': 5, 'crop': 'random', 'dtype': 'float32'}
        batch = next(bags.Loader('x' * channels, 1, fields={'a': options, 'b': options}))
        assert batch['a'].shape == (1, 5, 4, 3) and np.array_equal(batch['a'], batch['b'])
    raises(ValueError, _round, 'webp', pixels[..., 0], says='H x W x 3')


def progress_is_called_and_can_end_it():
    calls = []
    bags.write('x', [{'a': i} for i in range(200)], progress=lambda *args: calls.append(args))
    assert calls[-1] == (200, 200) and len(calls) > 1 and calls == sorted(calls)
    bags.write('y', iter([{'a': 1}]), progress=lambda *args: calls.append(args))
    assert calls[-1][0] == 1

    def stop(done, total):
        raise RuntimeError('enough')
    raises(RuntimeError, bags.write, 'z', [{'a': 1}] * 100, progress=stop, says='enough')
    raises(TypeError, bags.write, 'w', [{'a': 1}], progress=3, says='progress')
    assert not os.path.exists('w')


def an_interrupt_ends_it():
    def endless():
        yield {'a': 1}
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            yield {'a': 1}
    raises(KeyboardInterrupt, bags.write, 'x', endless())
    with bags.DatasetReader('x') as reader:
        assert len(reader) > 0
