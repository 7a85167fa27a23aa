"""bags.diff."""
import random

import numpy as np

import bags
from run import raises

SPEC = {'id': 'utf8', 'n': 'int', 's': 'int[]', 'a': 'array(float32,3)'}


def _point(i, n=0):
    return {'id': f'k{i}', 'n': n, 's': [n] * (n % 3), 'a': np.full(3, n, 'f4')}


def _write(path, points, spec=SPEC, **options):
    with bags.ShardedDatasetWriter(path, spec, shard_length=7, **options) as writer:
        for point in points:
            writer.append({name: point[name] for name in spec})


def _brute(a, b, key):
    """The same of lists of points."""
    name = (lambda i, p: p[key]) if key else (lambda i, p: i)
    ours = {name(i, p): p for i, p in enumerate(a)}
    theirs = {name(i, p): p for i, p in enumerate(b)}
    changed = {}
    for k, p in ours.items():
        for field in SPEC if k in theirs else ():
            if not np.array_equal(p[field], theirs[k][field]):
                changed.setdefault(field, []).append(k)
    both = [[k for k in one if k in other] for one, other in ((ours, theirs), (theirs, ours))]
    return {'added': [k for k in theirs if k not in ours],
            'removed': [k for k in ours if k not in theirs],
            'moved': [k for k, other in zip(*both) if k != other],
            'changed': dict(sorted(changed.items()))}


def random_pairs_are_as_by_brute_force():
    draw = random.Random(7)
    for pair in range(20):
        a = [_point(i, draw.randrange(4)) for i in range(draw.randrange(1, 30))]
        b = [_point(i, draw.choice([draw.randrange(4), 1])) for i in range(draw.randrange(1, 30))]
        if pair % 2:
            draw.shuffle(b)
        for path, points in (('a', a), ('b', b)):
            _write(f'{path}{pair}', points, checksum=pair % 3 > 0)
        for key in (None, 'id'):
            for exact in (False, True):
                found = bags.diff(f'a{pair}', f'b{pair}', key=key, exact=exact)
                assert found.pop('exact') == (exact or pair % 3 == 0)
                assert not any(found.pop('fields').values())
                assert found == _brute(a, b, key), (pair, key, exact)


def keys_have_the_values_of_their_types():
    values = {'int': [3, 200], 'i64': [-3, 200], 'u64': [2 ** 63, 5], 'utf8': ['ä', ''],
              'bytes': [b'\xff', b'x'], 'float32': [0.5, -1.5], 'array(int16)': [-7, 9]}
    for i, (kind, keys) in enumerate(values.items()):
        for path, key in zip((f'a{i}', f'b{i}'), keys):
            with bags.DatasetWriter(path, {'k': kind}) as writer:
                value = np.array(key, 'f4' if 'float' in kind else 'i2') if kind in (
                    'float32', 'array(int16)') else key
                writer.append({'k': value})
        found = bags.diff(f'a{i}', f'b{i}', key='k')
        assert found['removed'] == keys[:1] and found['added'] == keys[1:], (kind, found)


def fields_of_one_dataset_are_listed():
    points = [_point(i) for i in range(9)]
    _write('a', points)
    _write('b', points, {'id': 'bytes', 'n': 'int', 's': 'int[]'}, encoders={
        **bags.encoders, 'bytes': lambda text: text.encode()})
    found = bags.diff('a', 'b')
    assert found['fields'] == {'added': [], 'removed': ['a'], 'type': ['id']}
    assert not found['changed']


def what_is_wrong_is_an_error():
    _write('a', [_point(1), _point(2)])
    _write('twice', [_point(1), _point(1)])
    raises(FileNotFoundError, bags.diff, 'a', 'none')
    raises(FileNotFoundError, bags.diff, 'none', 'a')
    raises(KeyError, bags.diff, 'a', 'a', key='no')
    raises(KeyError, bags.diff, 'a', 'a', key='')
    raises(TypeError, bags.diff, 'a', 'a', key=3)
    raises(TypeError, bags.diff, 'a', 'a', key='s', says='cannot be keys')
    raises((ValueError, bags.DataError), bags.diff, 'a', 'twice', key='id',
           says='datapoint 1: has the key of datapoint 0')


def an_archive_is_compared_with_its_dataset():
    _write('a', [_point(i) for i in range(9)], checksum=True)
    bags.write_zip('a', 'a.zip')
    assert bags.diff('a', 'a.zip') == {
        'added': [], 'removed': [], 'moved': [], 'changed': {}, 'exact': False,
        'fields': {'added': [], 'removed': [], 'type': []}}
