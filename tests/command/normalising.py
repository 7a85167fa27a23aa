"""bags stats."""
import json
import math
import pathlib
import statistics
import subprocess

import harness
from harness import ROOT, each, has_codec, has_sql, pack, refuse, run

KEYS = ['mean', 'std', 'min', 'max', 'count', 'q01', 'q10', 'q50', 'q90', 'q99']


def _rows(count):
    return [{'n': i * i, 'a': [[i / 8, -i], [3, i % 7]], 't': f'text {i}',
             's': [k + i / 4 for k in range(i % 3)]} for i in range(count)]


def _pack(rows, *options):
    pack(rows, 'n=int(4),a=array(float32,2,2),t=utf8,s=float64[]', 'x', *options)


def _stats(*words, **options):
    return run('stats', *words, **options).json


def _quantile(values, q):
    values = sorted(values)
    at = (len(values) - 1) * q
    low, part = values[math.floor(at)], at - math.floor(at)
    return low + (values[min(math.floor(at) + 1, len(values) - 1)] - low) * part


def _check(found, columns):
    assert list(found) == KEYS
    for i, values in enumerate(columns):
        assert found['count'][i] == len(values)
        assert found['min'][i] == min(values) and found['max'][i] == max(values)
        assert math.isclose(found['mean'][i], statistics.fmean(values), rel_tol=1e-14, abs_tol=1e-14)
        assert math.isclose(found['std'][i], statistics.pstdev(values), rel_tol=1e-14)
        for key, q in zip(KEYS[5:], (.01, .1, .5, .9, .99)):
            assert math.isclose(found[key][i], _quantile(values, q), rel_tol=1e-14, abs_tol=1e-14)
    assert all(len(numbers) == len(columns) for numbers in found.values())


def statistics_are_those_of_python():
    rows = _rows(150)
    _pack(rows)
    found = _stats('x', 'n', 'a', 's')
    assert list(found) == ['n', 'a', 's']
    _check(found['n'], [[row['n'] for row in rows]])
    _check(found['a'], [[row['a'][i][k] for row in rows] for i in (0, 1) for k in (0, 1)])
    _check(found['s'], [[item for row in rows for item in row['s']]])
    assert found['n']['min'] == [0] and isinstance(found['n']['min'][0], int)
    assert isinstance(found['a']['max'][1], float)


def neither_shards_nor_threads_change_the_output():
    rows = _rows(130)
    _pack(rows)
    one = run('stats', 'x', 'a', 's', '--threads', 1).out
    assert run('stats', 'x', 'a', 's', '--threads', 5).out == one
    pack(rows, 'n=int(4),a=array(float32,2,2),t=utf8,s=float64[]', 'y', '--shard-length', '9')
    assert run('stats', 'y', 'a', 's').out == one
    run('zip', 'y', 'y.zip', '--no-sync')
    assert run('stats', 'y.zip', 'a', 's').out == one


def datapoints_are_selected():
    rows = _rows(50)
    _pack(rows)
    pathlib.Path('r').write_text('7\n3\n3\n49\n')
    _check(_stats('x', 'n', '--rows', 'r')['n'], [[49, 9, 9, 2401]])
    if has_sql():
        _check(_stats('x', 'n', '--where', 'n < 100')['n'], [[i * i for i in range(10)]])
        refuse('stats', 'x', 'n', '--where', 'n < 0', says='x: field "n": no values (0 datapoints)')


def images_have_statistics_of_channels():
    if not has_codec('jpeg') or not has_codec('png'):
        return
    photo = ROOT / 'tests/data/photos/china.jpg'
    pack([{'p': {'file': str(photo)}}] * 2, 'p=jpeg', 'x')
    found = _stats('x', 'p')['p']
    assert found['count'] == [2 * 640 * 427] * 3 and found['min'] == [0] * 3
    assert all(0 < mean < 255 for mean in found['mean'])
    assert all(isinstance(most, int) and most <= 255 for most in found['max'])


def what_is_damaged_is_named():
    rows = _rows(5)
    rows[3]['a'] = [[1, 2], [math.inf, 4]]
    pack([json.dumps(row) + '\n' for row in rows], 'n=int(4),a=array(float32,2,2),t=utf8,s=float64[]', 'x')
    refuse('stats', 'x', 'a', says='x: field "a": datapoint 3: element 2: statistics need finite numbers (inf)')
    rows[3]['a'] = [[1, 2], [math.nan, 4]]
    pack([json.dumps(row) + '\n' for row in rows], 'n=int(4),a=array(float32,2,2),t=utf8,s=float64[]', 'y')
    assert _stats('y', 'a')['a']['count'] == [5, 5, 4, 5]
    pack([{'a': math.nan}] * 2, 'a=float32', 'z')
    assert _stats('z', 'a')['a'] == {key: [0 if key == 'count' else None] for key in KEYS}


@each([(['t'], 'x: field "t": values of type utf8 have no statistics'),
       (['m'], 'no field "m"'), (['n', 'n'], 'x: field "n": listed twice'),
       ([], 'expected'), (['n', '--threads', '0'], 'threads')])
def mistakes_are_refused(case):
    words, says = case
    _pack(_rows(3))
    refuse('stats', 'x', *words, says=says, code=2 if not words or '--threads' in words else 1)


def a_running_writer_is_read():
    job = subprocess.Popen([harness.PROGRAM, 'pack', '-', 'live', '--spec', 'n=int(4)'],
                           stdin=subprocess.PIPE)
    try:
        job.stdin.write(b'{"n": 4}\n{"n": 6}\n')
        job.stdin.flush()
        harness.wait_for(lambda: run('info', 'live', '--live', '--json').json['length'] == 2
                         if pathlib.Path('live/spec.json.partial').exists() else False, job)
        refuse('stats', 'live', 'n', says='--live')
        assert _stats('live', 'n', '--live')['n']['mean'] == [5.0]
    finally:
        job.communicate()
