"""bags derive --add --on: datapoints of two datasets are matched by key."""
import base64
import os
import pathlib
import random
import shutil

from harness import each, has_codec, pack, refuse, run, values
from server import Server

CASES = 15 if 'BAGS_QUICK' in os.environ else 60
TYPES = [('int(4)', 'int(4)'), ('int(2)', 'i64'), ('i64', 'int(4)'), ('utf8', 'utf8'),
         ('bytes', 'bytes'), ('utf8', 'bytes'), ('bytes', 'utf8'), ('uint8', 'int16'),
         ('u64', 'int(2)')]


def _key(number, type):
    """A key as JSON; equal numbers have equal keys in all types of text, or of numbers."""
    text = 'k' * (number % 11) + str(number)
    return (text if type == 'utf8' else number if type != 'bytes'
            else {'base64': base64.b64encode(text.encode()).decode()})


def _get(path):
    return run('get', path, ':').lines


class _Case:
    """Two random datasets, and for each datapoint of `a` its match in `b`."""

    def __init__(self, seed):
        self.chance = chance = random.Random(seed)
        here, there = chance.choice(TYPES)
        many = chance.choice([1, 5, 40])
        numbers = [chance.randrange(many) for _ in range(chance.randrange(1, 60))]
        others = chance.sample(range(many), chance.randint(1, many))
        self.twice = chance.random() < 0.3
        if self.twice:
            others.append(chance.choice(others))
        self.name = chance.choice(['id', 'key'])
        self.a = [{'id': _key(k, here), 'n': i, 'w': ['w'] * (i % 3)}
                  for i, k in enumerate(numbers)]
        self.b = [{self.name: _key(k, there), 'm': i + 1000, 'x': [i] * (i % 4)}
                  for i, k in enumerate(others)]
        self.match = [others.index(k) if k in others else None for k in numbers]
        self.sharded = chance.random() < 0.5
        shards = chance.choice([[], ['--shard-length', chance.randint(1, 20)]])
        pack(self.a, f'id={here},n=int(4),w=utf8[]', 'a', *shards,
             *chance.choice([[], ['--checksum']]))
        pack(self.b, f'{self.name}={there},m=int(4),x=int(2)[]', 'b',
             *(['--shard-length', 9] if self.sharded else []))


def joins_equal_a_model():
    for seed in range(CASES):
        for name in ['a', 'b', 'out']:
            shutil.rmtree(name, ignore_errors=True)
        case = _Case(seed)
        words = ['--add', 'b', '--on', 'id' if case.name == 'id' else 'id=key']
        chosen = range(len(case.a))
        if case.chance.random() < 0.5:
            chosen = [i for i in chosen if i % 3]
            words += ['--where', 'n % 3 <> 0']
        if case.twice:
            refuse('derive', 'a', 'out', *words,
                   says=[f'b: field "{case.name}": datapoints ', ' have the same key ('])
            words += ['--duplicate', 'first']
        lost = [i for i in chosen if case.match[i] is None]
        if lost:
            refuse('derive', 'a', 'out', *words, says=[
                f'a: field "id": datapoint {lost[0]}: b has no datapoint with this key (',
                f'{len(lost)} of {len(chosen)} datapoints have no match; use --missing drop'])
            words += ['--missing', 'drop']
        assert not os.path.exists('out')
        expected = [{**case.a[i], 'm': case.match[i] + 1000, 'x': case.b[case.match[i]]['x']}
                    for i in chosen if case.match[i] is not None]
        # Each shard of `a` needs one shard of `b`, unless blobs are copied.
        shard_of = {case.a[i]['n']: case.match[i] // 9 for i in chosen
                    if case.match[i] is not None}
        starts = run('info', 'a', '--json').json['shards']
        for copy in [[], ['--copy']]:
            if not copy and case.sharded and len(set(shard_of.values())) > 1:
                if starts == 1:
                    refuse('derive', 'a', 'out', *words, says=[
                        "b: one shard's datapoints match datapoints in several shards; "
                        'a copy of the data needs about', 'bytes: use --copy'])
                continue
            done = run('derive', 'a', 'out', *words, *copy)
            assert (f'out: {len(lost)} datapoint' in done.err) == bool(lost)
            for row in expected:  # bytes are shown as their number
                if isinstance(row['id'], dict) and 'base64' in row['id']:
                    size = len(base64.b64decode(row['id']['base64']))
                    row['id'] = {'type': 'bytes', 'bytes': size}
            assert _get('out') == expected, seed
            run('verify', 'out')
            if not copy and expected and not case.sharded:
                (bag,) = {p.stat().st_ino for p in pathlib.Path('out').glob('**/m.bag')}
                assert bag == os.stat('b/m.bag').st_ino
            shutil.rmtree('out')


def _pair():
    pack([{'id': f'x{i % 4}', 'n': i} for i in range(8)], 'id=utf8,n=int(2)', 'a',
         '--shard-length', 3)
    pack([{'id': f'x{i}', 'text': f't{i}', 'n': -1} for i in range(4)],
         'id=utf8,text=utf8,n=i64', 'b')


def errors_name_the_field_and_the_datapoints():
    _pair()
    words = ['derive', 'a', 'out', '--add', 'b']
    refuse(*words, '--on', 'id', says='out: duplicate field "n" ("n" of a, "n" of b)')
    refuse(*words, '--on', 'none', says='a: no field "none"; the fields are id, n')
    refuse(*words, '--on', 'n=id', '--drop', 'n',
           says=['a: field "n": text cannot match numbers (b: field "id")'])
    refuse(*words, '--on', 'id=none', says='b: no field "none"; the fields are id, n, text')
    refuse(*words, '--on', 'id', '--missing', 'skip', says='--missing', code=2)
    refuse(*words, '--missing', 'drop', says='--on', code=2)
    refuse('derive', 'a', 'out', '--on', 'id', says='--add', code=2)
    refuse(*words, '--on', 'id', '--missing', 'drop', '--split', 'x=1', says='exact', code=2)
    refuse(*words, '--drop', 'id,n', says='b: its length differs from a (4 datapoints, expected 8)')
    run(*words, '--on', 'id', '--rename', 'n=number')
    assert _get('out')[5] == {'id': 'x1', 'n': -1, 'number': 5, 'text': 't1'}
    pack([{'f': 0.5, 's': ['x']}], 'f=float64,s=utf8[]', 'c')
    refuse('derive', 'a', 'other', '--add', 'c', '--on', 'id=f', says=[
        'c: field "f": values of type array(float64) cannot match (only whole numbers, utf8 and bytes)'])
    refuse('derive', 'a', 'other', '--add', 'c', '--on', 'id=s', says='c: field "s": ')
    pack([{'id': 'x0'}, {'id': 'x1'}, {'id': 'x0'}], 'id=utf8', 'd')
    refuse('derive', 'a', 'other', '--add', 'd', '--on', 'id',
           says='d: field "id": datapoints 0 and 2 have the same key ("x0")')
    refuse('derive', 'a', 'other', '--add', 'd', '--on', 'id', '--duplicate', 'first', says=[
        'a: field "id": datapoint 2: d has no datapoint with this key ("x2"); 4 of 8 datapoints '])
    assert not os.path.exists('other')
    # Without fields of its own, it selects.
    run('derive', 'a', 'other', '--add', 'd', '--on', 'id', '--duplicate', 'first', '--missing',
        'drop')
    assert [row['n'] for row in _get('other')] == [0, 1, 4, 5]


@each([[], ['--copy', '--shard-length', 3]])
def workers_and_parts_join(copy):
    _pair()
    words = ['--add', 'b', '--on', 'id', '--drop', 'n', *copy]
    run('derive', 'a', 'all', *words)
    for worker in range(2):
        run('derive', 'a', 'out', *words, '--shard-start', worker, '--shard-stop', 2)
    assert _get('out') == _get('all')
    assert _get('all') == [{'id': f'x{i % 4}', 'text': f't{i % 4}', 'n': -1} for i in range(8)]
    run('derive', 'a', 'parts', '--split', 'x=0.5,y=0.5', *words)
    both = _get('parts/x') + _get('parts/y')
    assert sorted(map(str, both)) == sorted(map(str, _get('all')))


def several_sources_archives_and_servers_join():
    _pair()
    run('zip', 'b', 'b.zip')
    expected = [{'id': f'x{i % 4}', 'text': f't{i % 4}', 'n': -1} for i in range(8)]
    run('derive', 'a', 'a', 'twice', '--add', 'b.zip', '--on', 'id', '--drop', 'n', '--copy')
    assert _get('twice') == 2 * expected
    refuse('derive', 'a', 'out', '--add', 'b.zip', '--on', 'id', '--drop', 'n', says='use --copy')
    with Server('.', index=True) as server:
        run('derive', 'a', 'out', '--add', f'{server.url}/b', '--on', 'id', '--drop', 'n', '--copy')
    assert _get('out') == expected


def compressed_keys_join():
    if not has_codec('zstd(utf8)'):
        return
    _pair()
    pack([{'id': f'x{i}', 'm': i} for i in range(4)], 'id=zstd(utf8),m=int(2)', 'z')
    run('derive', 'a', 'out', '--add', 'z', '--on', 'id')
    assert [row['m'] for row in _get('out')] == [0, 1, 2, 3, 0, 1, 2, 3]
    run('derive', 'z', 'back', '--add', 'b', '--on', 'id', '--copy')
    assert [row['text'] for row in _get('back')] == ['t0', 't1', 't2', 't3']
    assert values('back')
