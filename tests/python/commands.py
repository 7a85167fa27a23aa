"""derive, split, sql, copy, zip and index as functions, and progress=."""
import os
import pathlib
import random
import shutil
import signal
import sys
from unittest import mock

import numpy as np

import bags
import columns
from run import HERE, Skip, raises

SPEC = {'n': 'int', 'label': 'int', 'f': 'array(float32)', 't': 'utf8', 's': 'int[]', 'b': 'bytes'}


def _point(i):
    return {'n': i, 'label': i % 4, 'f': np.float32(np.nan if i % 5 == 0 else i / 2), 't': f't{i % 3}',
            's': [i] * (i % 3), 'b': bytes([i % 128 + 128])}


def _write(path, count, **options):
    with bags.ShardedDatasetWriter(path, SPEC, **{'shard_length': 10, **options}) as writer:
        for i in range(count):
            writer.append(_point(i))


def _read(path, name='n'):
    with bags.DatasetReader(path) as reader:
        return [point[name] for point in reader]


class Mine(Exception):
    pass


def _raise(done, total):
    raise Mine


class Bar:
    """The interface of tqdm that a bar of progress needs."""
    bars = []

    def __init__(self):
        self.n, self.total, self.closed = 0, None, False
        Bar.bars.append(self)

    def update(self, n=1):
        self.n += n

    def close(self):
        self.closed = True


def _calls():
    """A call of each function with progress=, by name; none of them changes `x`."""
    def each(name, call):
        def run(progress, names=iter(range(1000))):
            return call(f'{name}{next(names)}', progress)
        return run
    calls = {'derive': lambda out, p: bags.derive('x', out, progress=p),
             'derive copy': lambda out, p: bags.derive('x', out, copy=True, progress=p),
             'split': lambda out, p: bags.split('x', out, {'a': 0.5, 'b': 0.5}, progress=p),
             'sql': lambda out, p: bags.sql('x', 'SELECT count(*) AS n FROM data', progress=p),
             'zip': lambda out, p: bags.zip('x', f'{out}.zip', progress=p),
             'zip compact': lambda out, p: bags.zip('x', f'{out}.zip', compact=True, progress=p),
             'copy': lambda out, p: bags.copy('x', out, progress=p),
             'copy compact': lambda out, p: bags.copy('x', out, compact=True, progress=p),
             'index': lambda out, p: bags.index('x', 'n', progress=p),
             'verify': lambda out, p: bags.verify('x', progress=p),
             'stats': lambda out, p: bags.stats('x', 'n', progress=p),
             'diff': lambda out, p: bags.diff('x', 'x', progress=p)}
    return {name: each(name, call) for name, call in calls.items()}


def progress_is_called_and_ends_the_call():
    _write('x', 35)
    for name, call in _calls().items():
        seen = []
        call(lambda done, total: seen.append((done, total)))
        assert seen and seen[-1][0] == seen[-1][1], (name, seen)
        raises(Mine, call, _raise)
        raises(TypeError, call, 3, says='progress: 3')
        bar = Bar()
        call(bar)
        assert bar.n == bar.total and not bar.closed, name
        call(Bar)
        assert Bar.bars[-1].n == Bar.bars[-1].total and Bar.bars[-1].closed, name
    assert not [path for path in os.listdir() if path.endswith(('.partial', '.compact'))]


def what_progress_raises_leaves_nothing():
    _write('x', 35)
    before = os.listdir()
    for copy in False, True:
        raises(Mine, bags.derive, 'x', 'y', copy=copy, progress=_raise)
        assert os.listdir() == before


def a_signal_ends_a_long_query():
    _write('x', 400)
    before = signal.signal(signal.SIGALRM, lambda *_: _raise(0, 0))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        raises(Mine, bags.sql, 'x', 'SELECT count(*) FROM data a, data b, data c, data d')
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---- derive ----


def selections_are_as_by_brute_force():
    draw = random.Random(5)
    _write('x', 40)
    for i in range(40):
        options, chosen = {}, list(range(40))
        if draw.random() < .5:
            options['rows'] = chosen = draw.choices(chosen, k=20)
        if draw.random() < .5:
            options['where'], chosen = 'label = 1 OR n > 30', [n for n in chosen if n % 4 == 1 or n > 30]
        if draw.random() < .5:
            options['exclude'] = draw.sample(range(40), 5)
            chosen = [n for n in chosen if n not in options['exclude']]
        if draw.random() < .5:
            options['range'], chosen = slice(2, -1, 2), chosen[2:-1:2]
        if draw.random() < .5:
            options['shuffle'] = i
        bags.derive('x', f'y{i}', copy=True, **options)
        found = _read(f'y{i}')
        assert sorted(found) == sorted(chosen), (options, found)
        assert found == chosen or 'shuffle' in options, (options, found)


def a_derived_dataset_has_the_fields_and_checksums_that_were_chosen():
    _write('x', 35, checksum=True)
    report = bags.derive('x', 'y', where='n > 4 AND n < 22', fields=['n', 't'], rename={'n': 'm'})
    assert report['length'] == 17 and report['shards'] == 3 and report['linked'] > 0
    with bags.DatasetReader('y', verify_checksums=True) as reader:
        assert reader.spec == {'m': 'int', 't': 'utf8'} and reader[0] == {'m': 5, 't': 't2'}
    bags.derive(pathlib.Path('x'), pathlib.Path('z'), drop=['s', 'b'], rows=np.arange(35) % 2 == 0)
    assert _read('z') == list(range(0, 35, 2))
    bags.derive('z', 'scores', fields=['n'], rename={'n': 'score'}, copy=True, unsharded=True)
    bags.derive('z', 'added', add='scores', copy=True, shard_length=5)
    with bags.DatasetReader('added') as reader:
        assert reader.shards == 4 and reader[7]['score'] == reader[7]['n'] == 14
    bags.derive(['z', 'z'], 'twice', copy=True)
    assert _read('twice') == 2 * _read('z')
    for worker in range(2):
        bags.derive('x', 'shared', copy=True, shard_length=4, shard_start=worker, shard_step=2)
    assert _read('shared') == list(range(35))


def fields_are_added_by_a_key():
    _write('x', 12)
    order = [5, 2, 9, 0, 7]
    for path, ids in (('y', order), ('twice', order + [5])):
        with bags.DatasetWriter(path, {'id': 'int', 'score': 'float32'}) as writer:
            for n in ids:
                writer.append({'id': n, 'score': np.float32(n / 2)})
    raises(ValueError, bags.derive, 'x', 'out', add='y', on='n=id',
           says='x: field "n": datapoint 1: y has no datapoint with this key')
    assert not os.path.exists('out')
    report = bags.derive('x', 'out', add='y', on='n=id', missing='drop', copy=True)
    assert report['length'] == 5 and report['missing'] == 7
    with bags.DatasetReader('out') as reader:
        assert [(p['n'], p['score']) for p in reader] == [(n, n / 2) for n in sorted(order)]
        assert 'id' not in reader.spec
    raises(ValueError, bags.derive, 'x', 'no', rows=[5], add='twice', on='n=id', copy=True, says='twice')
    bags.derive('x', 'first', rows=[5], add='twice', on='n=id', duplicate='first', copy=True)
    assert _read('first', 'score') == [2.5]
    for kind, options, says in (
            (KeyError, {'on': 'q=id'}, 'x: field "q"'), (KeyError, {'on': 'n=q'}, 'y: field "q"'), (TypeError, {'on': 3}, 'on: 3'),
            (ValueError, {'missing': 'drop'}, 'missing needs on'), (ValueError, {'on': 'n=id', 'missing': 'no'}, "missing: 'no'")):
        raises(kind, bags.derive, 'x', 'no', add='y', says=says, **options)
    raises(ValueError, bags.split, 'x', 'no', {'a': .5}, add='y', on='n=id', missing='drop', says='would not be exact')


def what_is_wrong_with_a_selection_is_an_error():
    _write('x', 35)
    _write('y', 4)
    for kind, options, says in (
            (IndexError, {'rows': [35]}, 'x: rows: index 35 out of range (length 35)'),
            (IndexError, {'exclude': [35]}, 'exclude: index 35 out of range'),
            (ValueError, {'rows': [-1]}, 'negative'),
            (ValueError, {'where': 'labl = 1'}, 'no such column: labl; did you mean label?'),
            (TypeError, {'where': 3}, 'where: 3'),
            (TypeError, {'range': 3}, 'range: 3 (expected a slice or a range)'),
            (KeyError, {'fields': ['n', 'q']}, 'x: field "q": unknown'),
            (TypeError, {'fields': 'n'}, "fields: 'n' (expected a list of names)"),
            (ValueError, {'fields': ['n'], 'drop': ['b']}, 'mutually exclusive'),
            (ValueError, {'fields': ['n', 'n']}, 'duplicate field "n"'),
            (ValueError, {'fields': ['n'], 'rename': {'t': 'u'}}, 'the field "t" is left out'),
            (KeyError, {'rename': {'n': 't'}}, 'duplicate field "t"'),
            (ValueError, {'on': 'n'}, 'on needs add'),
            (ValueError, {'shard_length': 3}, 'shard_length needs copy=True'),
            (ValueError, {'checksum': True}, 'checksum needs copy=True'),
            (ValueError, {'copy': True, 'unsharded': True, 'shard_size': 9}, 'unsharded excludes'),
            (ValueError, {'shard_start': 2, 'shard_step': 2}, 'shard_start out of range'),
            (OverflowError, {'rows': [20, 3]}, 'use copy=True'),
            (TypeError, {'row': [1]}, 'row: unknown option; did you mean rows'),
            (ValueError, {'add': 'y', 'rename': {name: f'{name}2' for name in SPEC}}, 'y: ')):
        raises(kind, bags.derive, 'x', 'out', says=says, **options)
        assert not os.path.exists('out')
    raises(FileExistsError, bags.derive, 'x', 'y')
    raises(FileNotFoundError, bags.derive, 'none', 'out')
    raises(ValueError, bags.derive, [], 'out', says='no dataset')
    raises(ValueError, bags.derive, 'x', 'out.zip', says='must not end in')
    raises(ValueError, bags.derive, 'x', 's3://b/out', says='a URL')


# ---- split ----


def a_seed_is_not_a_bool_and_a_range_is_inside():
    _write('x', 20)
    for wrong in True, False:
        raises(TypeError, bags.derive, 'x', 'y', shuffle=wrong, copy=True, says='shuffle: ')
        raises(TypeError, bags.split, 'x', 'y', {'a': 0.5}, seed=wrong, says='seed: ')
    for wrong in range(-1, 3), range(15, 21), range(3, -2, -1), range(2 ** 70):
        raises(IndexError, bags.derive, 'x', 'y', range=wrong, copy=True, says='out of range (length 20)')
    assert not os.path.exists('y')
    with bags.DatasetReader('x') as reader:
        raises(IndexError, lambda: reader[range(2 ** 70)], says='out of range (length 20)')
    bags.derive('x', 'y', range=range(19, -1, -1), copy=True)
    assert _read('y') == _read('x')[::-1]
    bags.derive('x', 'z', range=range(30, 20))
    assert _read('z') == []
    done = bags.split('x', 'parts', {'a': np.float32(0.5), 'b': np.float64(0.25)})
    assert (done['a']['length'], done['b']['length']) == (10, 5)


def the_parts_of_a_split_are_exact():
    _write('x', 40)
    made = bags.split('x', 'out', {'train': 0.75, 'val': 0.25}, seed=3)
    assert {name: report['length'] for name, report in made.items()} == {'train': 30, 'val': 10}
    assert sorted(_read('out/train') + _read('out/val')) == list(range(40)) and sorted(os.listdir('out')) == [
        'train', 'val']
    bags.split('x', 'again', {'train': 0.75, 'val': 0.25}, seed=3)
    bags.split('x', 'other', {'train': 0.75, 'val': 0.25}, seed=4, copy=True)
    assert _read('again/val') == _read('out/val') != _read('other/val')
    bags.split('x', 'some', {'a': 0.5}, where='n < 20', fields=['n'])
    assert len(_read('some/a')) == 10 and max(_read('some/a')) < 20
    bags.split('x', 'by', {'a': 0.5, 'b': 0.5}, by='label')
    assert not {n % 4 for n in _read('by/a')} & {n % 4 for n in _read('by/b')}


def a_stratified_split_has_each_value_in_each_part():
    draw, kinds = random.Random(3), ('int', 'zstd(utf8)') if bags.build['zstd'] else ('int',)
    for kind in kinds:
        labels = [draw.choice([0, 0, 0, 0, 0, 1, 1, 2]) for _ in range(200)]
        with bags.ShardedDatasetWriter(f'x{kind}', {'n': 'int', 'label': kind, 'id': 'int'}, shard_length=60) as writer:
            for n, label in enumerate(labels):
                writer.append({'n': n, 'label': label if kind == 'int' else f'{label}', 'id': n // 2})
        sizes = {'train': 0.7, 'val': 0.2, 'test': 0.1}
        made = bags.split(f'x{kind}', f'out{kind}', sizes, stratify='label', seed=1)
        for name, size in sizes.items():
            found = _read(f'out{kind}/{name}')
            assert abs(len(found) - 200 * size) < 1 and made[name]['length'] == len(found)
            for label in range(3):
                count = sum(labels[n] == label for n in found)
                assert abs(count - size * labels.count(label)) < 2, (name, label, count)
        raises(ValueError, bags.split, f'x{kind}', 'no', sizes, stratify='label', by='id',
               says='have equal values of field "id", but different values of field "label"')
        raises(KeyError, bags.split, f'x{kind}', 'no', sizes, stratify='lable', says='did you mean label')


def what_is_wrong_with_a_split_is_an_error():
    _write('x', 10)
    half = {'a': 0.5}
    for kind, parts, options, says in (
            (TypeError, None, {}, 'parts: None'), (TypeError, {}, {}, 'parts: {}'), (TypeError, {'a': '1'}, {}, "a: '1'"),
            (ValueError, {'a': 0}, {}, 'a: 0 is not above 0'), (ValueError, {'a': .6, 'b': .6}, {}, 'add up to 1.2'),
            (ValueError, {'1': .5}, {}, "'1' cannot be the name"), (ValueError, {'a/b': .5}, {}, 'cannot be the name'),
            (TypeError, {1: .5}, {}, '1 (expected a name)'), (ValueError, half, {'seed': -1}, 'seed'),
            (ValueError, half, {'rows': [1, 1]}, 'datapoint 1 is selected twice'), (KeyError, half, {'by': 'q'}, '"q"'),
            (TypeError, half, {'sed': 1}, 'sed: unknown option; did you mean seed?')):
        raises(kind, bags.split, 'x', 'out', parts, says=says, **options)
    raises(Mine, bags.split, 'x', 'out', half, progress=_raise)
    assert os.listdir() == ['x']
    raises(FileExistsError, bags.split, 'x', 'x', half)
    os.mkdir('y.parts')
    raises(FileExistsError, bags.split, 'x', 'y', half, says='y.parts')


# ---- sql ----


def a_query_gives_dicts_and_arrays():
    _write('x', 35)
    found = bags.sql('x', 'SELECT n, f, t, s, b, NULL AS z FROM data WHERE n >= 10 AND n < 13')
    assert found == [{'n': n, 'f': _point(n)['f'] if n % 5 else None, 't': f't{n % 3}', 's': str([n] * (n % 3)),
                      'b': bytes([n + 128]), 'z': None} for n in (10, 11, 12)], found
    assert found.columns == ['n', 'f', 't', 's', 'b', 'z'] and isinstance(found, list)
    arrays = found.numpy()
    assert arrays['n'].dtype == 'int64' and arrays['n'].tolist() == [10, 11, 12]
    assert arrays['f'].dtype == 'float64' and np.array_equal(arrays['f'], [np.nan, 5.5, 6], equal_nan=True)
    assert arrays['t'].tolist() == ['t1', 't2', 't0'] and np.isnan(arrays['z']).all()
    assert arrays['b'].tolist() == [bytes([n + 128]) for n in (10, 11, 12)]
    big = bags.sql('x', f'SELECT {2 ** 62 + 1} AS n UNION ALL SELECT NULL').numpy()['n']
    assert big.tolist() == [2 ** 62 + 1, None]
    empty = bags.sql('x', 'SELECT n, t FROM data WHERE n < 0')
    assert empty == [] and empty.columns == ['n', 't'] and empty.numpy()['n'].dtype == 'int64'
    assert bags.sql('x', "SELECT 'a' || char(0) || 'b' AS t, '' AS e, x'' AS b") == [
        {'t': 'a\0b', 'e': '', 'b': b''}]
    for query, says in (('SELECT labl FROM data', 'did you mean label'), ('SELECT n FROM dat', 'the table data'),
                        ('SELECT n, n FROM data', 'two columns are called "n"'),
                        ('DELETE FROM data', 'may not be modified'), ('SELECT 1; SELECT 2', 'more than one'),
                        (' ', 'an empty query'), ('SELECT ?', 'has no value'),
                        ("SELECT CAST(x'ff' AS TEXT)", 'decode')):
        raises(ValueError, bags.sql, 'x', query, says=says)
    raises(TypeError, bags.sql, 'x', 3)
    raises(FileNotFoundError, bags.sql, 'none', 'SELECT 1')


def _arrow(rows):
    """The rows of an Arrow stream of one batch."""
    capsule = rows.__arrow_c_stream__()
    stream = columns._pointer(capsule, b'arrow_array_stream', columns._Stream)
    schema, array, end = columns._Schema(), columns._Array(), columns._Array()
    assert not stream.contents.get_schema(stream, schema) and not stream.contents.get_next(stream, array)
    assert not stream.contents.get_next(stream, end) and not end.release
    found = columns._values(schema, array)
    array.release(array)
    schema.release(schema)
    return found


def a_result_is_a_stream_of_arrow():
    _write('x', 35)
    rows = bags.sql('x', "SELECT n, f, t, b, NULL AS z, nullif(n, 3) AS i, nullif(t, 't1') AS u FROM data")
    assert _arrow(rows) == rows
    assert _arrow(bags.sql('x', 'SELECT n, t FROM data WHERE n < 0')) == []
    with mock.patch.dict(sys.modules, {'pyarrow': None}):
        assert rows.arrow() is rows
        mixed = bags.sql('x', "SELECT 1 AS n UNION ALL SELECT 'x'")
        raises(TypeError, mixed.arrow, says='column "n": values of several types')
    pyarrow = mock.Mock()
    with mock.patch.dict(sys.modules, {'pyarrow': pyarrow}):
        assert rows.arrow() is pyarrow.table.return_value
    pyarrow.table.assert_called_once_with(rows)


# ---- zip ----


def a_zip_file_has_the_indexes():
    _write('x', 35)
    bags.index('x', 'n')
    bags.zip('x', 'x.zip')
    with bags.DatasetReader('x.zip') as reader:
        assert reader.index('n').find(7) == [7]
    raises(FileExistsError, bags.zip, 'x', 'x.zip')
    raises(FileExistsError, bags.zip, 'x', 'x.zip', compact=True)
    raises(ValueError, bags.zip, 'x', 'y.zip', whole=True, compact=True, says='mutually exclusive')
    raises(ValueError, bags.zip, 'x', 'y', says='y: the name of the zip file must end in .zip')
    bags.derive('x', 'y', rows=[1, 3])
    raises(ValueError, bags.zip, 'y', 'y.zip', says='that no datapoint refers to; whole=True writes all of them, compact=True none')
    bags.zip('y', 'y.zip', compact=True)
    assert _read('y.zip') == [1, 3] and bags.write_zip is bags.zip
    assert sorted(os.listdir()) == ['x', 'x.zip', 'y', 'y.zip']
    assert bags.build_index is bags.index
    shutil.rmtree('y')


# ---- copy ----


def _files(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in pathlib.Path(path).rglob('*')
            if file.is_file()}


def a_copy_has_the_same_bytes():
    _write('x', 35, checksum=True)
    size = sum(map(len, _files('x').values()))
    assert bags.copy('x', 'out/y') == {'copied': len(_files('x')), 'kept': 0, 'size': size}
    assert _files('out/y') == _files('x')
    assert bags.copy(pathlib.Path('x'), pathlib.Path('out/y'))['kept'] == len(_files('x'))
    bags.copy('x/000000/n.bag', 'n.bag')
    assert _files('.')['n.bag'] == _files('x')['000000/n.bag'] and not os.path.exists('n.crc')
    bags.zip('x', 'x.zip')
    bags.copy('x.zip', 'unpacked')
    assert _files('unpacked') == _files('x')
    bags.derive('x', 'some', rows=[1, 3])
    raises(ValueError, bags.copy, 'some', 'z', says='whole=True writes all of them')
    bags.copy('some', 'whole', whole=True)
    assert _files('whole') == _files('some')
    assert bags.copy('some', 'compact', compact=True)['length'] == 2 and _read('compact') == [1, 3]
    _write('other', 4)
    for kind, arguments, options, says in (
            (FileExistsError, ('other', 'out/y'), {}, 'already has another dataset'),
            (ValueError, ('x', 'x/y'), {}, 'is in the directory of the dataset x'),
            (FileNotFoundError, ('none', 'z'), {}, "'none'"),
            (ValueError, ('x', 'z.zip'), {}, 'an archive'), (ValueError, ('x', 'http://h/z'), {}, 'a URL'),
            (ValueError, ('x/000000/n.bag', 'z'), {}, 'must end in .bag'), (ValueError, ('x', ''), {}, ''),
            (ValueError, ('x', 'z'), {'whole': True, 'compact': True}, 'mutually exclusive'),
            (ValueError, ('x', 's3://b/z'), {'compact': True}, 'a local path is required'),
            (TypeError, ('x', 's3://b/z'), {'storage': object()}, 'expected a dict'),
            (ValueError, ('x', 'z'), {'part_size': -1}, 'part_size')):
        raises(kind, bags.copy, *arguments, says=says, **options)
    assert not os.path.exists('z')


def _photos(path, count):
    """Images of noise in several sizes, for pixels=."""
    spec = {'i': 'png', 'n': 'int'}
    with bags.ShardedDatasetWriter(path, spec, shard_length=4) as writer:
        for i in range(count):
            shape = (9 + i, 30 - i, 3) if i % 3 else (9 + i, 30 - i)
            writer.append({'i': np.random.default_rng(i).integers(0, 256, shape, np.uint8), 'n': i})


def pixels_equal_the_loaders_resized_images():
    if not bags.build['png']:
        raise Skip('no png')
    _photos('x', 11)
    made = bags.derive('x', 'y', pixels={'i': (8, 6)})
    assert made['length'] == 11 and made['shards'] == 3 and not os.path.exists('y.pixels')
    with bags.DatasetReader('y') as reader:
        assert reader.spec == {'i': 'array(uint8,6,8,3)', 'n': 'int'}
    assert os.path.samefile('x/000001/n.bag', 'y/000001/n.bag')
    jitter = {'brightness': (0.5, 1.5), 'hue': (-0.1, 0.1)}
    for how in ({}, {'flip_x': .5, 'dtype': 'float32', 'mean': .5, 'std': .2, 'nchw': True},
                {'jitter': jitter}, {'channels': 3, 'flip_y': .5}):
        tensors = []
        for path in 'xy':
            fields = {'i': {'width': 8, 'height': 6, **how}}
            with bags.Loader(path, 4, fields=fields, seed=3) as loader:
                tensors.append([next(loader)['i'].copy() for _ in range(3)])
        assert all((a == b).all() for a, b in zip(*tensors, strict=True)), how
    some = bags.derive('x', 'z', rows=[1, 2, 9], pixels={'i': (8, 6)}, copy=True)
    assert some['length'] == 3 and [p.tobytes() for p in _read('z', 'i')] == [
        _read('y', 'i')[i].tobytes() for i in (1, 2, 9)]
    for w in 0, 1:
        bags.derive('x', 'w', pixels={'i': (8, 6)}, shard_start=w, shard_step=2)
    assert _files('w') == _files('y')
    bags.split('x', 'parts', {'a': .5, 'b': .5}, pixels={'i': (8, 6)})
    assert sorted(_read('parts/a') + _read('parts/b')) == list(range(11))
    for kind, pixels, options, says in (
            (TypeError, {'i': 8}, {}, 'expected (width, height)'),
            (TypeError, 8, {}, 'expected a dict'),
            (ValueError, {'i': (0, 8)}, {}, 'sides are 1 to 65535'),
            (KeyError, {'j': (8, 8)}, {}, '"j"'),
            (TypeError, {'n': (8, 8)}, {}, 'cannot become images'),
            (ValueError, {'i': (8, 8)}, {'drop': ['i']}, 'left out'),
            (OverflowError, {'i': (8, 8)}, {'shuffle': 1}, 'copy=True'),
            (FileExistsError, {'i': (8, 8)}, {'out': 'y'}, 'y')):
        options = dict(options)
        raises(kind, bags.derive, 'x', options.pop('out', 'new'), pixels=pixels, says=says, **options)
    assert not os.path.exists('new') and not os.path.exists('new.pixels')


def a_copy_that_was_ended_is_continued():
    with bags.DatasetWriter('x', {'b': 'bytes', 'n': 'int'}) as writer:
        for i in range(40):
            writer.append({'b': os.urandom(4 << 20), 'n': i})
    raises(Mine, bags.copy, 'x', 'y', progress=_raise)
    assert not os.path.exists('y/b.bag') and not os.path.exists('y/spec.json')

    def late(done, total):
        if done:
            raise Mine
    seen = []
    for end in 'progress', 'signal':
        shutil.rmtree('y', ignore_errors=True)
        before = signal.signal(signal.SIGALRM, lambda *_: _raise(0, 0))
        try:
            if end == 'signal':
                signal.setitimer(signal.ITIMER_REAL, 0.02)
            bags.copy('x', 'y', progress=late if end == 'progress' else None)
        except Mine:
            assert not os.path.exists('y/spec.json')
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        bags.copy('x', 'y', progress=lambda *numbers: seen.append(numbers))
        assert _files('y') == _files('x') and seen[-1][0] == seen[-1][1]


def a_dataset_is_copied_to_an_object_store_and_back():
    if not bags.build['http']:
        raise Skip('no http')
    sys.path.insert(0, str(HERE.parent / 'command'))
    import server
    sys.path.pop(0)
    _write('x', 35, checksum=True)
    bags.index('x', 'n')
    os.makedirs('store/bucket')
    with server.Server('store', s3=True) as one:
        storage = {'endpoint': one.url, 'key': server.KEY, 'secret': server.SECRET, 'region': server.REGION}
        seen = []
        made = bags.copy('x', 's3://bucket/x', storage=storage, progress=lambda *numbers: seen.append(numbers))
        assert _files('store/bucket/x') == _files('x') and made['copied'] == len(_files('x'))
        assert seen[-1] == (made['size'], made['size'])
        assert bags.copy('x', 's3://bucket/x', storage=storage)['copied'] == 0
        bags.copy('s3://bucket/x', 'back', storage=storage)
        assert _files('back') == {name: data for name, data in _files('x').items() if 'index' not in name}
        assert bags.copy('s3://bucket/x', 'back', storage=storage)['copied'] == 0
        bags.copy('s3://bucket/x', 's3://bucket/y', storage=storage)
        assert _files('store/bucket/y') == _files('x')
        raises(Mine, bags.copy, 's3://bucket/x', 'other', storage=storage, progress=_raise)
        raises(ValueError, bags.copy, 'x', 's3://bucket/z', storage=storage, part_size=1)
