"""Every misuse is an exception that says what is wrong: never a crash, SystemError or
a wrong value."""
import collections
import copy
import gc
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import types
import weakref

import numpy as np

import bags
from run import HERE, python, raises, without

SPEC = {'n': 'int', 'w': 'utf8[]', 'a': 'array(float32,1000)'}


def _point(i):
    return {'n': i, 'w': [f'{i}.{k}' for k in range(i % 4)], 'a': np.full(1000, i, 'f4')}


def _write(path, count=50, spec=SPEC, point=_point):
    with bags.DatasetWriter(path, spec) as writer:
        for i in range(count):
            writer.append(point(i))


def a_closed_object_raises_value_error():
    _write('x')
    reader, bag = bags.DatasetReader('x'), bags.BagReader('x/n.bag')
    row, view = reader[3], bag.view(3)
    for one in (reader, bag):
        one.close()
        one.close()
        assert one.closed
        for call in (lambda: one[0], lambda: len(one), lambda: one.size, one.__enter__,
                     lambda: next(iter(one))):
            raises(ValueError, call, says='closed')
    raises(ValueError, lambda: bag.view(0))
    raises(ValueError, reader.items, 0, 'w')
    raises(ValueError, reader.values, 'n')
    # Views stay valid.
    del reader, bag
    gc.collect()
    assert bytes(view) == b'\3' and (row['a'] == 3).all()
    for writer in (bags.BagWriter('y.bag'), bags.DatasetWriter('y', SPEC)):
        writer.close()
        writer.close()
        for call in (writer.flush, lambda: writer.append(b'x'), writer.__enter__):
            raises((ValueError, TypeError), call)
        assert len(writer) == 0


def an_object_that_was_not_opened_raises():
    for kind in (bags.BagReader, bags.DatasetReader, bags.BagWriter, bags.DatasetWriter,
                 bags.ShardedDatasetWriter):
        one = kind.__new__(kind)
        for call in (lambda: one[0], lambda: len(one), lambda: one.append({}), lambda: one.size,
                     lambda: one.view(0), lambda: one.flush(), lambda: one.copy(),
                     lambda: one.values('n'), lambda: one.spec):
            try:
                call()
            except (ValueError, TypeError, AttributeError):
                pass
        one.close()
        raises(TypeError, kind)
    raises((TypeError, ValueError, KeyError), bags.encoders['int'], None)


def wrong_types_raise():
    _write('x')
    for call in (lambda: bags.BagReader(3), lambda: bags.DatasetReader(None),
                 lambda: bags.DatasetReader('x', 5), lambda: bags.DatasetWriter('y', [1]),
                 lambda: bags.DatasetWriter('y', {1: 'int'}), lambda: bags.DatasetWriter(1, SPEC),
                 lambda: bags.DatasetWriter('y', {'a': 3}), lambda: bags.BagWriter(3),
                 lambda: bags.DatasetReader('x', bags.decoders, shard_step='a'),
                 lambda: bags.DatasetWriter('y', {'a': 'A B'}),
                 lambda: bags.DatasetReader('x', nonsense=1)):
        raises(TypeError, call)
    for call in (lambda: bags.DatasetReader('x', unfinished='maybe'),
                 lambda: bags.DatasetReader('x\0y'), lambda: bags.DatasetWriter('y', {'a\0': 'int'}),
                 lambda: bags.DatasetReader('x', shard_start=2, shard_step=1),
                 lambda: bags.DatasetReader('x', shard_step=-1), lambda: bags.verify('x', max_faults=2**64),
                 lambda: bags.DatasetReader('x', shard_stop=2**64), lambda: bags.Loader('x', 2**32 + 1),
                 lambda: bags.ShardedDatasetWriter('y', SPEC, shard_size=-1), lambda: bags.Loader('x', rank=-1, ranks=2),
                 lambda: bags.ShardedDatasetWriter('y', SPEC, shard_step=-1)):
        raises(ValueError, call)
    for one in (bags.DatasetReader('x').column('n'), bags.BagReader('x/n.bag').view(0)):
        raises(TypeError, pickle.dumps, one)
    for kind in (bags.Column, bags.Index, bags.codecs.Codec):
        raises(TypeError, kind)
    assert copy.deepcopy(bags.DatasetReader('x'))[2]['n'] == copy.copy(bags.BagReader('x/n.bag'))[2][0] == 2
    raises((KeyError, ValueError), bags.DatasetWriter, 'y', {'refs': 'int'})
    for kind in ('imt(4)', 'float33', 'utf9[]'):
        raises(KeyError, bags.DatasetWriter, 'y', {'a': 'int', 'b': kind}, says=f'field "b": no encoder for type "{kind}"')
        assert not os.path.exists('y')
    bags.DatasetWriter('y', {'b': 'imt(4)'}, None).close()
    shutil.rmtree('y')
    with bags.DatasetWriter('y', {'a': 'float32', 'b': 'bool[]', 'c': 'int16(2)'}) as writer:
        writer.append({'a': np.float32(1.5), 'b': [np.bool_(True)], 'c': np.zeros(2, 'i2')})
    reader = bags.DatasetReader('y')
    assert reader.spec == {'a': 'array(float32)', 'b': 'array(bool)[]', 'c': 'array(int16,2)'}
    assert reader[0]['a'] == np.float32(1.5) and reader[0]['b'][0] == np.bool_(True)
    shutil.rmtree('y')
    own = {'float32': lambda value: b'own', 'array': bags.encoders['array']}
    with bags.DatasetWriter('y', {'a': 'float32', 'b': 'float64'}, own) as writer:
        writer.append({'a': None, 'b': np.float64(2)})
    reader = bags.DatasetReader('y', {'float32': bytes, 'array': bags.decoders['array']})
    assert reader.spec == {'a': 'float32', 'b': 'array(float64)'}
    assert reader[0] == {'a': b'own', 'b': 2.0}
    shutil.rmtree('y')
    raises(FileExistsError, bags.DatasetWriter, 'x', SPEC)
    raises(FileExistsError, bags.BagWriter, 'x/n.bag')
    error = raises(FileNotFoundError, bags.DatasetReader, 'none', says='none')
    assert error.errno == 2 and error.filename == 'none'
    assert raises(FileNotFoundError, bags.BagReader, 'none.bag').filename == 'none.bag'
    reader, bag = bags.DatasetReader('x'), bags.BagReader('x/n.bag')
    for one in (reader, bag):
        for index in ('a', None, 1.5, (1, 2, 3), [1.5], (0,)):
            raises(TypeError, lambda: one[index])
        for index in (50, -51, 2**70, -2**70):
            raises(IndexError, lambda: one[index], says=str(index)[:3] if abs(index) < 99 else '')
    raises(TypeError, reader.values, 3)
    raises(KeyError, reader.values, 'no\0')
    raises(TypeError, bags.BagWriter('y.bag').append, 'text')
    with bags.DatasetWriter('z', SPEC) as writer:
        for value in (b'1234', 'text', [1.0] * 999, np.zeros(3, 'f4'), np.zeros(1000),
                      None, np.zeros(1000, 'U3'), memoryview(b'1234'), object()):
            raises((TypeError, ValueError), writer.append, {**_point(0), 'a': value})
        raises(TypeError, writer.append, [1])
        raises(ValueError, writer.append, {**_point(0), 'w': ['\ud800']})
        writer.append({**_point(0), 'a': np.zeros(2000, 'f4')[::2]})
    assert len(bags.DatasetReader('z')) == 1
    raises((TypeError, ValueError), writer.__init__, 'q', SPEC)
    raises(TypeError, reader.__init__, 'x')


def messages_name_the_path_the_field_and_the_value():
    _write('x')
    reader, bag, point = bags.DatasetReader('x'), bags.BagReader('x/n.bag'), _point(1)
    for index in (50, -51, 2**63, -2**63 - 1, 2**200):
        raises(IndexError, lambda: reader[index], says=f'x: datapoint index {index} out of range (length 50)')
        raises(IndexError, lambda: bag[index], says=f'x/n.bag: blob index {index} out of range (length 50)')
    raises(IndexError, lambda: bags.BagReader(bytes(8))[0], says='memory: blob index 0 out of range')
    with bags.DatasetWriter('y', SPEC) as writer:
        for change, kind, says in (
                ({'n': 2**65}, ValueError, 'y: field "n": datapoint 0: value out of range (36893488147419103232,'),
                ({'n': -2**65}, ValueError, 'y: field "n": datapoint 0: value out of range'),
                ({'n': 'a'}, TypeError, 'y: field "n": datapoint 0: '), ({'w': None}, TypeError, 'y: field "w": a sequence'),
                ({'w': 3}, TypeError, 'y: field "w": a sequence'), ({'w': [3]}, TypeError, 'y: field "w": datapoint 0: str'),
                ({'n': (k for k in range(3))}, TypeError, 'y: field "n": datapoint 0: '),
                ({'a': 5}, ValueError, 'y: field "a": datapoint 0: shape mismatch (0 dimensions'),
                ({'a': '5'}, TypeError, 'y: field "a": datapoint 0: an array')):
            raises(kind, writer.append, {**point, **change}, says=says)
        raises(KeyError, writer.append, {'n': 1, 'w': []}, says='y: the datapoint has no field "a"')
        error = raises(KeyError, writer.append, {**point, 'more': np.ones(3)}, says="y: the spec has no field 'more'")
        assert 'array' not in str(error)

        # Iteration would store keys, or an order by chance.
        texts = {'b': 1, 'a': 2}
        for value in (texts, collections.OrderedDict(texts), collections.UserDict(texts), types.MappingProxyType(texts),
                      collections.ChainMap(texts), collections.Counter('ab'), {'a', 'b'}, frozenset('ab')):
            raises(TypeError, writer.append, {**point, 'w': value},
                   says=f'y: field "w": a sequence of values is required, not {type(value)}')
        for value in (texts.keys(), list(texts), tuple(texts), iter(texts), collections.deque(texts), np.array(list(texts))):
            writer.append({**point, 'w': value})

        def items():
            raise TypeError('mine')
            yield
        assert str(raises(TypeError, writer.append, {**point, 'w': items()})) == 'mine'
    assert [row['w'] for row in bags.DatasetReader('y')] == [['b', 'a']] * 6
    reader.close()
    raises(ValueError, lambda: reader[0], says='x: this DatasetReader is closed')
    raises(ValueError, writer.append, point, says='y: this DatasetWriter is closed')
    for call, says in (
            (lambda: bags.Loader('x', batch=-1), 'x: batch: -1 is'), (lambda: bags.Loader('x', 0), 'x: batch: 0'),
            (lambda: bags.Loader('x', threads=2**33), 'x: threads: 8589934592 is above'),
            (lambda: bags.Loader('x', threads=-1), 'x: threads: -1 is not from 0'),
            (lambda: bags.Loader('x', threads=2**32 - 1), 'x: threads: 4294967295 is above 2^31-1'),
            (lambda: bags.Loader('x', window_start=-1), 'x: window_start: -1 is not from 0'),
            (lambda: bags.Loader('x', seed=2**64), 'x: seed: '), (lambda: bags.Loader('x', fields=[]), 'fields: none'),
            (lambda: bags.Loader('x', fields={'a': {'width': 4, 'mean': [1, 2]}}),
             'x: field "a": mean: a number'),
            (lambda: bags.Loader('x', fields={'a': {'height': 4, 'mean': range(5)}}),
             'x: field "a": mean: a number'),
            (lambda: bags.Loader('x', fields={'a': {'width': -1}}), 'x: field "a": width: -1 is'),
            (lambda: bags.Loader('x', fields={'a': {'shape': [-1]}}), 'x: field "a": shape: -1 is'),
            (lambda: bags.Loader('x', weights=[1, 2]), 'weights: 2 for 1'),
            (lambda: bags.Loader([]), 'no dataset'), (lambda: bags.DatasetReader('x', max_files=2**70), 'not from 0')):
        raises(ValueError, call, says=says)
    for call, says in ((lambda: bags.Loader('x', nope=1), 'x: nope: unknown option'),
                       (lambda: bags.Loader('x', fields=3), 'fields: 3'),
                       (lambda: bags.Loader('x', fields={'a': {'nope': 1}}), 'x: field "a": nope')):
        raises(TypeError, call, says=says)
    assert set(bags.__all__) <= set(dir(bags)) and not {'atexit', 'os', 'shutil'} & set(bags.__all__)


def every_wrong_use_says_what_is_wrong_where_and_what_to_do():
    _write('x')
    os.mkdir('empty')
    reader, bag, closed = bags.DatasetReader('x'), bags.BagReader('x/n.bag'), bags.DatasetReader('x')
    closed.close()
    writer, loader, point = bags.DatasetWriter('y', SPEC), bags.Loader('x'), _point(1)
    bags.build_index('x', 'n')
    index = 'x: the index of a datapoint must be an int, a slice or a range, not '
    known = 'did you mean verify_checksums?'
    for kind, call, says in (
            # Paths. An OSError appends its path.
            (FileNotFoundError, lambda: bags.DatasetReader('no'), "[Errno 2] cannot open: No such file or directory: 'no'"),
            (FileNotFoundError, lambda: bags.DatasetReader(pathlib.Path('no')), "[Errno 2] cannot open: No such"),
            (FileNotFoundError, lambda: bags.DatasetReader('empty'), "not a dataset (no spec.json, no shards): 'empty'"),
            (FileNotFoundError, lambda: bags.DatasetReader('x/n.bag'), "a file, not the directory of a dataset: 'x/n.bag'"),
            (IsADirectoryError, lambda: bags.BagReader('x'), "[Errno 21] cannot open: Is a directory: 'x'"),
            (FileNotFoundError, lambda: bags.verify('no'), "[Errno 2] cannot open: No such file or directory: 'no'"),
            (FileExistsError, lambda: bags.write_zip('x', 'x/n.bag'), "write to a new path: 'x/n.bag'"),
            (FileExistsError, lambda: bags.DatasetWriter('x', SPEC), "already exists; remove it, or write to a new path: 'x'"),
            (ValueError, lambda: bags.DatasetReader('ftp://a/b'), 'ftp://a/b: unknown protocol (http, https and s3'),
            # Options
            (TypeError, lambda: bags.DatasetReader('x', verify_checksum=1), 'x: verify_checksum: unknown option; ' + known),
            (TypeError, lambda: bags.BagReader('x/n.bag', checksums=1), 'x/n.bag: checksums: unknown option; ' + known),
            (TypeError, lambda: bags.BagReader('x/n.bag', nope=1), 'known are cache_index, no_mmap, allow_empty_file'),
            (TypeError, lambda: bags.BagWriter('z.bag', checksums=1), 'z.bag: checksums: unknown option; did you mean checksum?'),
            (TypeError, lambda: bags.ShardedDatasetWriter('z', SPEC, shardlen=3), 'did you mean shard_length or shard_step?'),
            (TypeError, lambda: bags.Loader('x', shufle=False), 'x: shufle: unknown option; did you mean shuffle?'),
            (TypeError, lambda: bags.Loader('x', fields={'n': {'widht': 1}}), 'x: field "n": widht: unknown option; did you mean width?'),
            (TypeError, lambda: bags.Loader('x', fields={'n': {'warp': {'degree': 1}}}), 'x: field "n": warp: degree: unknown option; did'),
            (TypeError, lambda: bags.Loader('x', tokens={'field': 'n', 'parallell': 1}), 'did you mean parallel?'),
            (TypeError, lambda: bags.Loader('x', tokens={'field': 'n', 'window': 4}, rows=[True] * 50), 'rows: bools are of datapoints; with tokens'),
            (TypeError, lambda: bags.verify('x', decoded=1), 'x: decoded: unknown option; did you mean decode?'),
            (TypeError, lambda: bags.DatasetReader('http://x', storage={'keey': 'a'}), 'storage: keey: unknown option; did you mean key?'),
            (TypeError, lambda: bags.DatasetReader('http://x', storage={'key': 3}), 'storage: key: 3 is not a str'),
            (TypeError, lambda: bags.DatasetReader('x', no_mmap='no'), "x: no_mmap: 'no' is not True or False"),
            (ValueError, lambda: bags.DatasetReader('x', unfinished=True), 'x: unfinished: True is none of: refuse skip read'),
            (ValueError, lambda: bags.DatasetReader('x', shard_start=3), 'x: shard_start out of range (3, shard_stop is 1)'),
            (TypeError, lambda: bags.DatasetReader('x', shard_step='a'), "x: shard_step: 'str' object"),
            (ValueError, lambda: bags.DatasetReader('x', shard_step=3, shard_stop=2), 'x: shard_stop: 2 contradicts shard_step 3'),
            (ValueError, lambda: bags.verify('x', shard_step=3, shard_stop=2), 'shard_stop: 2 contradicts shard_step 3'),
            (TypeError, lambda: bags.encoders['array'](np.array(['2020'], 'M8[D]')), "an array of datetime64[D] is not supported"),
            (TypeError, lambda: bags.encoders['array'](np.ma.array([1, 2], mask=[0, 1])), "a mask are required, not <class 'numpy.ma.core.MaskedArray'>"),
            (TypeError, lambda: bags.encoders['tree']([np.ma.array([1, 2])]), 'values without a mask are required'),
            (TypeError, lambda: bags.encoders['zstd'](np.ma.array([1, 2])), 'values without a mask are required'),
            (TypeError, lambda: bags.Loader('x', fields={'n': {'dtype': 3}}), "dtype: 3 is not a dtype, such as 'float32'"),
            (TypeError, lambda: bags.Loader('x', fields={'n': {'decode': 3}}), 'x: field "n": decode: 3 is not a function'),
            (TypeError, lambda: bags.Loader(bag), "source: <bags.BagReader 'x/n.bag', 50 blobs> (expected a path or a DatasetReader"),
            (TypeError, lambda: bags.Loader('x', weights=['a']), "weights: ['a'] (expected a number for each dataset)"),
            # Fields and indices
            (TypeError, lambda: reader[1.0], index + "<class 'float'>"), (TypeError, lambda: reader['n'], index + "<class 'str'>"),
            (TypeError, lambda: reader[np.array([1.5])], 'x: 1.5 is not the index of a datapoint (expected an int)'),
            (TypeError, lambda: reader[[True]], 'x: True is not the index of a datapoint (expected an int)'),
            (IndexError, lambda: reader[[1, 50]], 'x: index 50 out of range (length 50)'),
            (TypeError, lambda: reader.items('a', 'w'), index + "<class 'str'>"),
            (TypeError, lambda: bag[None], 'x/n.bag: the index of a blob must be'), (TypeError, lambda: bag.view('a'), 'x/n.bag: the index of a blob'),
            (IndexError, lambda: bag[range(-3, 2)], 'x/n.bag: range(-3, 2) has negative bounds (length 50)'),
            (IndexError, lambda: reader[range(0, 60, 2)], 'x: range(0, 60, 2) out of range (length 50)'),
            (TypeError, lambda: reader[0, 1, 2], 'reader[...] takes an index, or an index and a mask'),
            (TypeError, lambda: reader[0, 'n'], "x: a mask must be a dict of fields, or a tuple of their names, not <class 'str'>"),
            (TypeError, lambda: reader[0:2, 'n'], "x: a mask must be a dict of fields, or a tuple of their names, not <class 'str'>"),
            (TypeError, lambda: reader[0, {'n': range(2)}], 'x: field "n": the mask of a plain field must be True or False, not range(0, 2)'),
            (TypeError, lambda: reader[0, {'n': np.True_}], "True_ of <class 'numpy.bool" if int(np.__version__[0]) > 1 else "True or False, not True of <class 'numpy.bool"),
            (ValueError, lambda: reader[0, {'w': range(-1, 2)}], 'x: field "w": range(-1, 2) has negative numbers'),
            (TypeError, lambda: reader[0:2, {'w': range(1)}], 'x: field "w": of several datapoints'),
            (KeyError, lambda: reader[0, ('nn',)], 'x: field "nn": unknown; did you mean n?'),
            (KeyError, lambda: reader.values('label'), 'x: field "label": unknown; known are a, n, w'),
            (KeyError, lambda: bags.Loader('x', fields=['label']), 'x: field "label": unknown; known are a, n, w'),
            (TypeError, lambda: bags.build_index('x', 3), "the name of a field must be a str, not <class 'int'>"),
            (TypeError, lambda: reader.items(0), 'items() takes exactly 2 arguments'),
            (ValueError, lambda: reader.index('n').find('a'), 'x: field "n": a key of this field is a number'),
            # Types and codecs
            (KeyError, lambda: bags.DatasetReader('x', {})[0], 'x: field "a": no decoder for type "array(float32,1000)"; those that were passed'),
            (KeyError, lambda: bags.DatasetWriter('z1', {'n': 'utf-8'}).append({'n': ''}), 'no encoder for type "utf-8"; did you mean utf8?'),
            (TypeError, lambda: bags.DatasetReader('x', 3), 'decoders: 3 (expected a dict of types and functions)'),
            (TypeError, lambda: bags.DatasetReader('x', {'int': 3}), 'x: field "n": 3 is not a decoder (expected a function, or None)'),
            (TypeError, lambda: bags.DatasetReader('x', bags.encoders), 'x: field "a": <bags encoder of array> is not a decoder'),
            (TypeError, lambda: bags.DatasetWriter('z2', {'n': 'int('}), 'z2: field "n": invalid type ("int("'),
            (TypeError, lambda: bags.DatasetWriter('z3', {'n': int}), 'z3: spec: a name and a type must be str'),
            # Values
            (TypeError, lambda: writer.append({**point, 'n': 1.5}), 'y: field "n": datapoint 0: an int is required, not <class \'float\'>'),
            (ValueError, lambda: writer.append({**point, 'w': ['\ud800']}), 'y: field "w": datapoint 0: \'\\ud800\' has surrogates'),
            (TypeError, lambda: writer.append({**point, 'a': {}}), 'y: field "a": datapoint 0: an array is required, not <class \'dict\'>; numpy.asarray'),
            (ValueError, lambda: writer.append({**point, 'a': [1]}), 'y: field "a": datapoint 0: shape mismatch (1, expected 1000 for dimension 0)'),
            (TypeError, lambda: writer.append({**point, 'a': np.ones(3, '>f4')}), 'elements ">f" is not supported (expected bool'),
            (ValueError, lambda: writer.append({**point, 'a': np.ones(1000)}), 'y: field "a": datapoint 0: dtype mismatch (float64, expected float32)'),
            (TypeError, lambda: writer.append(None), 'append() argument 1 must be dict'),
            # Objects
            (ValueError, lambda: closed[0], 'x: this DatasetReader is closed'),
            (TypeError, lambda: pickle.dumps(writer), "<class 'bags.DatasetWriter'> cannot be pickled; open one in each process"),
            (ValueError, lambda: loader.load_state_dict({}), 'x: not a state of this Loader'),
            (TypeError, lambda: loader.load_state_dict(3), "x: a dict of state_dict is required, not <class 'int'>")):
        raises(kind, call, says=says)
    assert repr(reader).startswith("<bags.DatasetReader 'x', 50 datapoints, ") and repr(closed) == "<bags.DatasetReader 'x', closed>"
    assert repr(writer) == "<bags.DatasetWriter 'y', 0 datapoints>" and repr(loader) == "<bags.Loader 'x', batch 0 of epoch 0>"
    assert repr(reader.column('n')) == '<bags.Column "n" of \'x\', 50 datapoints>'
    assert repr(reader.index('n')) == "<bags.Index of 'x'>" and bag.path == 'x/n.bag' and writer.path == 'y'
    assert repr(bags.BagReader.__new__(bags.BagReader)) == '<bags.BagReader, not opened>'


def messages_name_what_python_has():
    spec = {'in_order': 'int', 's': 'int[]', 'j': 'jpeg', 'z': 'zstd(npy)'}
    with bags.ShardedDatasetWriter('x in_order', spec, {**bags.encoders, 'jpeg': None}, shard_length=1) as writer:
        for i in range(3):
            writer.append({'in_order': i, 's': [1], 'j': b'x', 'z': np.zeros(3)})

    def loader(**options):
        return lambda: bags.Loader('x in_order', 2, **options)

    def field(name, **options):
        return loader(fields={name: options})
    state = loader()().state_dict()
    for kind, call, says in (
            (ValueError, loader(shuffle=False, weights=[1]), 'x in_order: shuffle=False and weights are'),
            (ValueError, loader(shuffle=False, chunk=2), 'shuffle=False and chunk are mutually exclusive'),
            (ValueError, loader(shuffle=False, replacement=True), 'replacement and shuffle=False are mutually exclusive'),
            (ValueError, loader(sampler=lambda epoch: []), 'sampler: epoch 0 has no datapoint'),
            (ValueError, loader(sampler=lambda epoch: [1], shuffle=False), 'sampler and shuffle=False are'),
            (ValueError, loader(sampler=lambda epoch: [1], rows=[1]), 'sampler and rows are mutually exclusive'),
            (ValueError, field('in_order', shape=[1]), 'x in_order: field "in_order": shape, of at most 6 numbers, and dtype'),
            (ValueError, field('j', width=3, height=3, resize=5), 'resize needs crop \'center\''),
            (ValueError, field('j', width=3, height=3, area=(.1, .2)), 'need crop \'random\''),
            (ValueError, lambda: loader(shuffle=False)().load_state_dict(state), 'weights, shuffle=False, drop_last'),
            (TypeError, lambda: next(field('z', decode=len)()), 'needs the blob inside zstd: only utf8, bytes, msgpack and tree have one'),
            (TypeError, lambda: next(field('in_order', decode=lambda blob: np.ones(2, '>f4'))()), 'elements ">f" is not supported'),
            (FileNotFoundError, lambda: bags.DatasetReader('x in_order').index('in_order'),
             "bags.build_index('x in_order', 'in_order') builds one: 'x in_order'"),
            (ValueError, lambda: bags.DatasetReader('s3://b/x', storage={'key': 'k'}), 'storage: key without secret')):
        raises(kind, call, says=says)
    bags.build_index('x in_order', 'in_order')
    with open('x in_order/000001/refs.bag', 'ab') as file:
        file.write(bytes(8))
    raises(bags.DataError, lambda: bags.DatasetReader('x in_order').index('in_order'), says='x in_order')
    shutil.rmtree('x in_order/000001')
    raises(bags.DataError, bags.DatasetReader, 'x in_order', says='close gaps with bags.finalize')
    raises(ValueError, lambda: bags.DatasetReader('x in_order', allow_gaps=True, shard_start=3), says='x in_order: shard_start')


def an_empty_slice_of_a_rank_has_no_rows():
    _write('x', 101, {'n': 'i64'}, lambda i: {'n': i})
    for drop in (False, True):
        lengths = [[len(batch['n']) for batch in bags.Loader('x', 100, rank=rank, ranks=2, drop_last=drop)]
                   for rank in (0, 1)]
        assert lengths == ([[50], [50]] if drop else [[50, 0], [50, 1]])


def a_type_that_this_build_lacks_names_the_package_to_install():
    assert bags.build.keys() == {'jpeg', 'png', 'webp', 'msgpack', 'zstd', 'mp4', 'http'}
    spec = {'image': 'jpeg', 'm': 'msgpack', 'n': 'int', 'z': 'zstd(msgpack)'}
    plain = dict.fromkeys(('jpeg', 'msgpack', 'zstd'))
    with bags.DatasetWriter('x', spec, {**bags.encoders, **plain}) as writer:
        writer.append({'image': b'j', 'm': b'\1', 'n': 7, 'z': b'z'})
    with without('jpeg', 'msgpack', 'http'):
        assert not {'jpeg', 'jpg', 'msgpack', 'tree'} & {*bags.decoders, *bags.encoders}
        assert {'int', 'png', 'zstd'} <= {*bags.decoders}
        for decoders in ..., bags.decoders, {**bags.decoders, 'jpeg': None}, {**bags.decoders, **plain, 'zstd': bags.decoders['zstd']}:
            error = raises(KeyError, bags.DatasetReader, 'x', decoders, says='this build of bags has no ')
            assert 'install lib' in str(error) and '-dev, and build it again' in str(error)
        raises(KeyError, bags.DatasetReader, 'x', says='x: field "image": no decoder for type "jpeg"; this build of bags has no jpeg; install libjpeg-dev')
        raises(KeyError, bags.DatasetWriter, 'y', {'n': 'jpeg'}, says='install libjpeg-dev')
        row = {'image': b'j', 'm': b'\1', 'n': 7, 'z': b'z'}
        assert bags.DatasetReader('x', {**bags.decoders, **plain})[0] == row
        assert bags.DatasetReader('x', {**plain, 'int': len, 'jpeg': len})[0]['image'] == 1
        assert bags.DatasetReader('x', None)[0] == {**row, 'n': b'\7'}
        raises(KeyError, bags.Loader, 'x', fields='image', says='x: field "image": values of type jpeg cannot be decoded; this build')
        raises(KeyError, bags.Loader, 'x', says='install libjpeg-dev')
        batch = next(bags.Loader('x', fields={'image': {'decode': bytes}, 'm': {}}))
        assert (batch['image'], batch['m'], batch['indices'].tolist()) == ([b'j'], [b'\1'], [0])
        raises(ValueError, bags.DatasetReader, 'http://127.0.0.1:9/x', says='has no http; install libcurl4-openssl-dev')


def long_a_build_without_libraries_says_so():
    root = HERE.parent.parent
    built = subprocess.run(['make', 'python', 'FLAVOUR=lean', 'FORMATS=png', 'CC_lean=gcc', 'FLAGS_lean=-O0', 'JSON='],
                           cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert built.returncode == 0 and 'includes: png; without' in built.stdout, built.stdout
    image = np.zeros((4, 4, 3), 'u1')
    with bags.DatasetWriter('x', {'image': 'jpeg', 'n': 'int'}) as writer:
        writer.append({'image': image, 'n': 7})
    bags.DatasetWriter('y', {'m': 'zstd(utf8)', 'png': 'png', 't': 'tree', 'v': 'mp4'}).close()
    text = '''
import sys; sys.path.insert(0, sys.argv[1])
import bags
print([name for name, here in bags.build.items() if here], sorted(bags.decoders))
for path in 'xy':
    try:
        bags.DatasetReader(path)
    except KeyError as error:
        print(error)
print(bags.DatasetReader('x', {**bags.decoders, 'jpeg': None})[0]['image'][:2])
print(next(bags.Loader('x', fields={'image': {'decode': len}}))['image'][0] > 99)
'''
    said = python(text, root / 'build' / 'lean' / 'python')
    assert said == ("""['png'] ['array', 'bytes', 'i64', 'int', 'npy', 'png', 'u64', 'utf8']
'x: field "image": no decoder for type "jpeg"; this build of bags has no jpeg; install libjpeg-dev, and build it again'
'y: field "m": no decoder for type "zstd(utf8)"; this build of bags has no zstd; install libzstd-dev, and build it again'
b'\\xff\\xd8'
True
"""), said


def errors_of_codecs_have_a_note_of_the_place():
    def bad(value, *args):
        raise ZeroDivisionError('mine')
    _write('x')
    codecs = {**bags.decoders, 'utf8': bad}
    for call, point in ((lambda r: r[2], 2), (lambda r: r[2, ('w',)], 2), (lambda r: r.values('w', 1, 4), 1)):
        error = raises(ZeroDivisionError, call, bags.DatasetReader('x', codecs), says='mine')
        assert error.__notes__ == [f'x: field "w": datapoint {point}'], error.__notes__
    error = raises(ZeroDivisionError, lambda: bags.DatasetReader('x', {'int': bad}).values('n', 5))
    assert error.__notes__ == ['x: field "n": datapoint 5']
    with bags.DatasetWriter('y', {'n': 'int'}, {'int': lambda n: bytes(1) if n else bad(n)}) as writer:
        writer.append({'n': 1})
        error = raises(ZeroDivisionError, writer.append, {'n': 0})
        assert error.__notes__ == ['y: field "n": datapoint 1']


def pickles_lead_to_the_same_files_after_chdir():
    _write('x')
    pickles = [pickle.dumps(one) for one in (bags.DatasetReader('x'), bags.BagReader('x/n.bag'),
                                             bags.BagReader(source=open('x/n.bag', 'rb')))]
    copies = bags.DatasetReader('x'), bags.BagReader('x/n.bag')
    os.mkdir('d')
    os.chdir('d')
    assert [len(pickle.loads(p)) for p in pickles] == [50] * 3
    assert [len(one.copy()) for one in copies] == [50] * 2
    assert copies[0].path == 'x'


def bytes_in_memory_are_no_path_and_mappings_may_raise():
    with bags.BagWriter('x.bag') as writer:
        writer.append(b'ftp://a/b.zip/')
    assert bags.BagReader(pathlib.Path('x.bag').read_bytes())[0] == b'ftp://a/b.zip/'
    _write('x')

    class Codecs(dict):
        def __getitem__(self, key):
            raise self.error
    for kind, error in ((TypeError, TypeError()), (ValueError, UnicodeDecodeError('a', b'', 0, 1, 'mine'))):
        codecs = Codecs()
        codecs.error = error
        raises(kind, bags.DatasetReader, 'x', codecs, says='x: field "a": ')
        raises(kind, bags.DatasetWriter, 'y', SPEC, codecs, says='y: field "a": ')


def codecs_that_raise_leave_everything_as_it_was():
    def bad(value):
        raise ZeroDivisionError('mine')
    _write('x')
    reader = bags.DatasetReader('x', {**bags.decoders, 'utf8': bad})
    for _ in range(3):
        raises(ZeroDivisionError, lambda: reader[1], says='mine')
        assert reader[1, ('n',)] == {'n': 1} and reader[0]['w'] == []
    with bags.DatasetWriter('y', {'n': 'int', 'z': 'utf8'}, {'int': len, 'utf8': bad}) as writer:
        raises(TypeError, writer.append, {'n': 'abc', 'z': 'x'}, says='bytes')
    with bags.DatasetWriter('z', {'n': 'int[]', 'z': 'utf8'}) as writer:
        def items():
            yield 1
            raise ZeroDivisionError('mine')
        raises(ZeroDivisionError, writer.append, {'n': items(), 'z': 'x'})
        writer.append({'n': [5], 'z': 'y'})
    assert list(bags.DatasetReader('z')) == [{'n': [5], 'z': 'y'}]
    assert len(bags.BagReader('z/n.bag')) == 1


def a_decoder_may_read_its_own_reader_and_close_it():
    _write('x')
    reader = None

    def decode(blob):
        number = int.from_bytes(blob, 'little')
        other = reader[(number + 7) % 50, {'w': True}]['w']
        return number, other
    for no_mmap in (False, True):
        reader = bags.DatasetReader('x', {**bags.decoders, 'int': decode}, no_mmap=no_mmap)
        for i in range(50):
            row = reader[i]
            assert row['n'] == (i, _point((i + 7) % 50)['w'])
            assert row['w'] == _point(i)['w'] and (row['a'] == i).all()
    closing = bags.DatasetReader('x', {**bags.decoders, 'int': lambda b: closing.close()})
    assert closing[4]['w'] == [] and closing.closed
    with_weakref = type('Reader', (bags.DatasetReader,), {})
    reader = with_weakref('x', {'int': lambda b, r=[]: r.append(reader)})
    reader.self = reader
    gone = weakref.ref(reader)
    del reader, closing
    gc.collect()
    assert gone() is None


def an_encoder_may_append_to_its_own_writer():
    depth = []

    def encode(value):
        if not depth:
            depth.append(1)
            writer.append({'n': 99, 't': 'inner'})
        return value.encode()
    with bags.DatasetWriter('x', {'n': 'int', 't': 'utf8'}, {**bags.encoders, 'utf8': encode}) as writer:
        assert writer.append({'n': 1, 't': 'outer'}) == 1
    assert list(bags.DatasetReader('x')) == [{'n': 99, 't': 'inner'}, {'n': 1, 't': 'outer'}]


def a_mask_may_change_while_it_is_read():
    _write('x')
    mask = {}

    class Index:
        def __index__(self):
            mask.clear()
            return -1
    with bags.DatasetReader('x') as reader:
        for _ in range(100):
            mask['s'] = slice(Index(), 3)
            raises((ValueError, KeyError, RuntimeError), lambda: reader[0, mask])


def a_value_may_close_its_writer_and_change_its_datapoint():
    writer = bags.DatasetWriter('x', {'n': 'int[]', 'z': 'utf8'})
    point = {'z': 'x'}
    point['n'] = (point.update(more=k) or k for k in range(3))
    raises(KeyError, writer.append, point, says='more')
    raises(ValueError, writer.append, {'n': (writer.close() or k for k in range(3)), 'z': 'x'}, says='closed')
    assert len(bags.DatasetReader('x')) == 0
    loop = []
    loop.append(loop)
    slices = memoryview(b'abcd')[::2]
    for bad in (loop, {'a': object()}, 2**64, -2**63 - 1, '\ud800', {1, 2}, slices):
        raises((TypeError, ValueError), bags.encoders['msgpack'], bad)
    for bad in (slices, np.array([1, None]), np.str_('x'), 'x', None):  # of objects it has pointers
        raises(TypeError, bags.encoders['bytes'], bad)
        raises(TypeError, bags.BagWriter(f'{id(bad)}.bag').append, bad)
    bags.BagWriter('x.bag').append(np.float32(1))
    assert bags.BagReader(np.str_('x.bag'))[0] == np.float32(1).tobytes()
    for bad in (b'', b'\xc1', b'\x91', b'\x01\x01', b'\xdd\xff\xff\xff\xff', b'\x81\x90\x01'):
        raises((TypeError, ValueError), bags.decoders['msgpack'], bad)
        raises((TypeError, ValueError), bags.decoders['tree'], bad)


def what_msgpack_cannot_hold_is_refused_when_it_is_written():
    pair = collections.namedtuple('Pair', 'a b')(1, 2)
    known = {1: 2, -1: 'a', 'k': None, b'k': [(1, 2)], 1.5: {'n': {2: 3}}, None: 0, False: 1}
    read = {**known, b'k': [[1, 2]]}
    key = ' cannot be a key in msgpack (expected None, bool, int, float, str or bytes)'
    for name in ('msgpack', 'tree', 'zstd(msgpack)', 'zstd(tree)'):
        with bags.DatasetWriter('x', {'m': name, 's': f'{name}[]'}) as writer:
            writer.append({'m': known, 's': [known, 1]})
            for bad, kind, says in (
                    ({(1, 2): 3}, TypeError, "<class 'tuple'>" + key), ([{'a': {(): 3}}], TypeError, "<class 'tuple'>" + key),
                    ({pair: 3}, TypeError, "Pair'>" + key), ({('x',) * 70000: 3}, TypeError, key),
                    ('a\ud800', ValueError, "'a\\ud800' has surrogates: invalid in UTF-8"),
                    ({'\udc80': 3}, ValueError, "'\\udc80' has surrogates: invalid in UTF-8"),
                    ([2**64], ValueError, 'value out of range'), ([{1, 2}], TypeError, "msgpack has no form of <class 'set'>")):
                for point, field in (({'m': bad, 's': []}, 'm'), ({'m': 0, 's': [0, bad]}, 's')):
                    error = raises(kind, writer.append, point, says=says)
                    assert type(error) is kind and str(error).startswith(f'x: field "{field}": datapoint 1: ')
        assert list(bags.DatasetReader('x')) == [{'m': read, 's': [read, 1]}]
        shutil.rmtree('x')


def a_msgpack_that_python_cannot_hold_is_an_error_that_names_its_place():
    key = 'msgpack with an array or a map as a key cannot become a dict'
    bad = [(b'\x81\x92\x01\x02\x03', key), (b'\x91\x81\x80\x03', key), (b'\xa2a\xff', 'invalid UTF-8 (byte 0xff at offset 1)'),
           (b'\x81\xa1\xff\x01', 'invalid UTF-8 (byte 0xff at offset 0)')]
    arrays = [(b'\x94\xa1_\xa3|u2\x91\x01\xc4\x01\0', ''), (b'\x94\xa1_\xa3|O8\x91\x01\xc4\x01\0', 'unsupported dtype "|O8"')]
    for name in ('msgpack', 'tree', 'zstd(msgpack)', 'zstd(tree)'):
        cases = bad + arrays * ('tree' in name)
        pack = {True: lambda blob: bags.encoders['zstd'](blob, 'bytes'), False: bytes}['zstd' in name]
        with bags.DatasetWriter('x', {'m': name, 's': f'{name}[]'}, None) as writer:
            for blob in (b'\x01', *(blob for blob, _ in cases)):
                writer.append({'m': pack(blob), 's': [pack(b'\x01'), pack(blob)]})
        reader = bags.DatasetReader('x')
        assert reader[0] == {'m': 1, 's': [1, 1]}
        for i, (blob, says) in enumerate(cases, 1):
            kind = OverflowError if says.startswith('unsupported') else bags.DataError
            for call, place in ((lambda: reader[i], f'm": datapoint {i}: '), (lambda: reader[i:], f'm": datapoint {i}: '),
                                (lambda: reader[i, ('s',)], f's": datapoint {i}: item 1: ')):
                raises(kind, call, says=f'x: field "{place}{says}')
            if 'zstd' not in name:
                raises(kind, bags.decoders[name], blob, says=says)
        raises(bags.DataError, reader.values, 'm', says='x: field "m": datapoint 1: ' + key)
        shutil.rmtree('x')


def a_child_process_cannot_write_what_its_parent_writes():
    writers = bags.DatasetWriter('x', SPEC), bags.BagWriter('y.bag')
    writers[0].append(_point(0))
    writers[1].append(b'parent')
    child = os.fork()
    if child == 0:
        code = 0
        for writer, value in zip(writers, (_point(1), b'child' * 1000000)):
            for call in (lambda: writer.append(value), writer.flush, writer.close):
                try:
                    call()
                    code |= call is not writer.close and len(writer) > 2
                except RuntimeError:
                    pass
                except BaseException:
                    code |= 2
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    for writer in writers:
        writer.close()
    assert [row['n'] for row in bags.DatasetReader('x')] == [0]
    assert list(bags.BagReader('y.bag')) == [b'parent']


def a_value_that_is_written_through_a_tensor_changes_no_file():
    _write('x')
    text = '''
import ctypes, bags
array = bags.DatasetReader('x')[3]['a']
ctypes.memset(array.ctypes.data, 255, 4)
print(bags.DatasetReader('x')[3]['a'][0])'''
    assert python(text).strip() == '3.0'


def damaged_files_raise():
    _write('x')
    for name in ('n', 'w', 'a', 'refs'):
        data = open(f'x/{name}.bag', 'rb').read()
        for bad in (data[:-1], data[:-8], b'', b'\xff' * len(data), data[:5]):
            with open(f'x/{name}.bag', 'wb') as file:
                file.write(bad)
            raises(bags.DataError, lambda: [row for row in bags.DatasetReader('x')])
        with open(f'x/{name}.bag', 'wb') as file:
            file.write(data)
    assert issubclass(bags.DataError, ValueError) and issubclass(bags.DataError, OSError)


def long_a_million_operations_do_not_grow():
    spec = {'n': 'int', 'w': 'utf8[]', 'a': 'array(float32,4)', 'm': 'msgpack'}

    def point(i):
        return {'n': i, 'w': ['x', 'y'], 'a': np.ones(4, 'f4'), 'm': {'k': [i]}}
    _write('x', 100, spec, point)
    reader, writer = bags.DatasetReader('x'), bags.DatasetWriter('y', spec)
    bag = bags.BagReader('x/a.bag')

    def work(count):
        for i in range(count):
            reader[i % 100]
            reader[i % 100, {'w': range(1), 'a': True}]
            bag.view(i % 100)
            writer.append(point(i))
            for bad in (lambda: reader[1000], lambda: writer.append({}), lambda: bag['x']):
                try:
                    bad()
                except (LookupError, TypeError):
                    pass

    def resident():
        gc.collect()
        return int(open('/proc/self/statm').read().split()[1]) * 4096
    work(60000)  # the writer's buffers grow to 3 MiB a field
    before = resident()
    work(140000)  # seven operations each
    assert resident() < before + (1 << 23), (before, resident())


def only_bools_are_bools():
    _write('x', 3)
    bags.write('t', [{'ids': np.arange(9, dtype='u2')}])
    calls = (
        ('copy', lambda it: bags.derive('x', 'y', copy=it)), ('sync', lambda it: bags.derive('x', 'y', sync=it)),
        ('unsharded', lambda it: bags.derive('x', 'y', copy=True, unsharded=it)),
        ('checksum', lambda it: bags.split('x', 'y', {'a': 1}, copy=True, checksum=it)),
        ('whole', lambda it: bags.copy('x', 'y', whole=it)), ('compact', lambda it: bags.copy('x', 'y', compact=it)),
        ('whole', lambda it: bags.zip('x', 'y.zip', whole=it)), ('sync', lambda it: bags.zip('x', 'y.zip', sync=it)),
        ('exact', lambda it: bags.diff('x', 'x', exact=it)), ('decode', lambda it: bags.verify('x', decode=it)),
        ('allow_gaps', lambda it: bags.diff('x', 'x', allow_gaps=it)),
        ('allow_gaps', lambda it: bags.sql('x', 'SELECT 1', allow_gaps=it)),
        ('allow_gaps', lambda it: bags.stats('x', 'a', allow_gaps=it)),
        ('dry_run', lambda it: bags.recover('x', dry_run=it)), ('replace', lambda it: bags.checksum('x', replace=it)),
        ('dry_run', lambda it: bags.import_('x', 'y', dry_run=it)),
        ('resume', lambda it: bags.import_('x', 'y', resume=it)),
        ('any_type', lambda it: bags.import_('x', 'y', any_type=it)),
        ('resume', lambda it: bags.export('x', 'y.tar', resume=it)),
        ('sync', lambda it: bags.DatasetWriter('y', SPEC, sync=it)),
        ('keep_idx', lambda it: bags.BagWriter('y.bag', keep_idx=it)),
        ('checksum', lambda it: bags.write('y', [{'a': 1}], checksum=it)),
        ('no_mmap', lambda it: bags.DatasetReader('x', no_mmap=it)),
        ('cache_index', lambda it: bags.BagReader('x/n.bag', it)),
        ('shuffle', lambda it: bags.Loader('x', shuffle=it, fields=['n'])),
        ('drop_last', lambda it: bags.Loader('x', drop_last=it, fields=['n'])),
        ('same_draw', lambda it: bags.Loader('x', same_draw=it, fields=['n'])),
        ('pack', lambda it: bags.Loader('t', tokens={'field': 'ids', 'length': 2, 'pack': it})),
        ('browser', lambda it: bags.view('x', browser=it)), ('live', lambda it: bags.view('x', live=it)))
    for name, call in calls:
        for value in ('no', 'yes', b'', 0, 1, [], None, 0.5):
            if value is None and name == 'checksum':
                continue  # the default of derive
            raises(TypeError, call, value, says=f'{name}: {value!r} is not True or False')
        assert not os.path.exists('y') and not os.path.exists('y.zip'), name
    assert bags.verify('x', decode=np.True_) == [] and bags.diff('x', 'x', exact=np.array(True))['exact'] is True
