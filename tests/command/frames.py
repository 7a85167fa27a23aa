"""bags load --frames: equal to a model in Python, over random datasets."""
import bisect
import contextlib
import json
import os
import pathlib
import random
import shutil
import subprocess

import harness
import server
from harness import each, pack, refuse, run

ROUNDS = 200 if 'BAGS_SOAK' in os.environ else 8 if os.environ.get('BAGS_QUICK') else 50
SPEC = ('state=array(float32,2)[],action=array(int16)[],when=array(float64)[],'
        'cam=utf8[],cam_when=array(float64)[],task=utf8,n=int(2)')


def _times(chance, count, rate, start):
    """Times of items: at a rate, jittered, with gaps, or some twice."""
    kind, out = chance.choice(['rate', 'jitter', 'gaps', 'twice']), []
    for i in range(count):
        at = i / rate
        if kind == 'jitter':
            at += chance.random() / rate / 3
        if kind == 'gaps':
            at += 2 * (i > count // 3) + 5 * (i > count // 2)
        if kind == 'twice':
            at = (i // 2) / rate
        out.append(start + at)
    return out


class _Model:
    """Episodes, and samples of them as the README states them."""

    def __init__(self, chance, path):
        self.path, self.chance = path, chance
        longest = chance.choice([1, 3, 30, 200])
        self.episodes = [self._episode(e, longest) for e in range(chance.choice([1, 2, 7, 20]))]
        self.each = chance.choice([0, 1, 3])
        pack([{**e, 'state': [list(row) for row in e['state']]} for e in self.episodes], SPEC, path,
             *(['--shard-length', self.each] if self.each else []), '--no-checksum')

    def _episode(self, number, longest):
        chance = self.chance
        count = chance.choice([0, 1, longest, chance.randint(0, longest)])
        rate, cam_rate = chance.choice([1, 10, 29.97]), chance.choice([1, 7, 30])
        cams = max(1, int(count * cam_rate / rate)) if count else 0
        start = chance.choice([0, 0, 0.5, 1e9])
        return {'state': [(number + i / 4, -i) for i in range(count)],
                'action': [number * 300 + i for i in range(count)],
                'when': _times(chance, count, rate, start),
                'cam': [f'{number}/{i}' for i in range(cams)],
                'cam_when': _times(chance, cams, cam_rate, start + chance.choice([0, 0.01])),
                'task': f'task {number}', 'n': number}

    def derive(self, path):
        """Some of the episodes, in another order within their shard, some several times."""
        rows = [self.chance.randrange(len(self.episodes)) for _ in range(self.chance.randint(1, 9))]
        rows.sort(key=lambda row: row // self.each if self.each else 0)
        pathlib.Path('rows').write_text('\n'.join(map(str, rows)) + '\n')
        run('derive', self.path, path, '--rows', 'rows')
        self.episodes, self.path = [self.episodes[row] for row in rows], path


def _nearest(times, target):
    """The first of the items that are nearest, by all distances."""
    near = bisect.bisect_left(times, target)
    return min(range(max(0, near - 3), min(len(times), near + 3)) or [0],
               key=lambda i: (abs(times[i] - target), times[i], i))


class _Window:
    """How a field is loaded, as words of the command and in Python."""

    def __init__(self, chance, name, clock_timed):
        self.name, self.tolerance, self.rate = name, None, None
        self.offsets = self.seconds = None
        if not clock_timed or (name != 'cam' and chance.random() < .6):
            start = chance.randint(-4, 3)
            self.offsets = range(start, start + chance.choice([1, 2, 9]))
            return
        start, step = chance.choice([-0.5, -0.1, 0, 0.05]), chance.choice([0.1, 0.03125, 1])
        self.words = f'{start}:{start + step * chance.choice([0.5, 1, 3, 4.5])}:{step}'
        start, stop, step = map(float, self.words.split(':'))
        self.seconds = [s for s in (start + k * step for k in range(9)) if s < stop - step * 1e-9]
        if chance.random() < .3:
            self.tolerance = chance.choice([0, 0.02, 0.5])
        if name == 'action' and chance.random() < .5:
            self.rate = chance.choice([5, 29.97])

    def times(self, episode):
        if self.rate:
            return [i / self.rate for i in range(len(episode[self.name]))]
        return episode['cam_when' if self.name == 'cam' else 'when']

    def items(self, episode, frame, now):
        """(items, mask), or the message of a sample without an item."""
        count, tolerance = len(episode[self.name]), self.tolerance or 0
        if self.offsets is not None:
            at = [frame + o for o in self.offsets]
            return [min(max(i, 0), count - 1) for i in at], [not 0 <= i < count for i in at]
        times, items, mask = self.times(episode), [], []
        for seconds in self.seconds:
            target = now + seconds
            if not count:
                return None
            early, late = times[0] - target > tolerance, target - times[-1] > tolerance
            item = 0 if early else count - 1 if late else _nearest(times, target)
            if not (early or late) and self.tolerance is not None and \
                    abs(times[item] - target) > tolerance:
                return None
            items.append(item)
            mask.append(early or late)
        return items, mask


def _setup(chance, path):
    model = _Model(chance, path)
    timed = chance.random() < .7
    names = [name for name in ('state', 'action', 'cam') if name != 'cam' or timed]
    windows = {name: _Window(chance, name, timed) for name in names if chance.random() < .8}
    drop = chance.random() < .4
    words = ['--frames', 'state', '--pad', 'drop' if drop else 'edge', '--fields',
             ','.join([*windows, 'task', 'n'])]
    lists = {'offsets': [], 'seconds': [], 'times': ['state=when'] if timed else [], 'rate': [],
             'tolerance': []}
    for name, window in windows.items():
        if window.offsets is not None:
            lists['offsets'].append(f'{name}={window.offsets.start}:{window.offsets.stop}')
            continue
        lists['seconds'].append(f'{name}={window.words}')
        if window.rate:
            lists['rate'].append(f'{name}={window.rate}')
        elif name != 'state':
            lists['times'].append(f'{name}={"cam_when" if name == "cam" else "when"}')
        if window.tolerance is not None:
            lists['tolerance'].append(f'{name}={window.tolerance}')
    for option, values in lists.items():
        words += [f'--{option}', ','.join(values)] if values else []
    return model, windows, timed, drop, words


def _samples(model, windows, timed, drop):
    """{(episode, frame): sample or None}: None fails."""
    out = {}
    for e, episode in enumerate(model.episodes):
        for frame in range(len(episode['state'])):
            now = episode['when'][frame] if timed else None
            sample, kept = {'task': episode['task'], 'n': episode['n']}, True
            for name, window in windows.items():
                found = window.items(episode, frame, now)
                if found is None:
                    # What is not inside is dropped before its distance matters.
                    sample = None
                    kept = kept and bool(episode[name]) and not (
                        drop and _outside(window, episode, now))
                    continue
                kept = kept and not any(found[1])
                if sample:
                    values = [episode[name][i] for i in found[0]]
                    sample[name] = [list(v) if isinstance(v, tuple) else v for v in values]
                    sample[f'{name}_pad'] = found[1]
            if kept or not drop:
                out[e, frame] = sample
    return out


def _outside(window, episode, now):
    times, tolerance = window.times(episode), window.tolerance or 0
    return any(times[0] - (now + s) > tolerance or now + s - times[-1] > tolerance
               for s in window.seconds)


@contextlib.contextmanager
def _served(chance, model, number):
    """Its path: as it is, derived, in a zip, or on a server."""
    how = chance.choice(['plain', 'derived', 'zip', 'server'])
    if how == 'derived':
        model.derive(f'derived{number}')
    if how == 'zip':
        run('zip', model.path, f'{model.path}.zip')
        yield f'{model.path}.zip'
    elif how == 'server':
        with server.Server('.', index=True) as site:
            yield f'{site.url}/{model.path}'
    else:
        yield model.path


def frames_are_those_of_a_model():
    chance, failed = random.Random(39), 0
    for number in range(ROUNDS):
        model, windows, timed, drop, words = _setup(chance, f'd{number}')
        with _served(chance, model, number) as path:
            expected = _samples(model, windows, timed, drop)
            words = ['load', path, *words, '--indices', '--seed', number,
                     '--batch', chance.choice([1, 7, 64])]
            if None in expected.values():
                said = refuse(*words, says=['no item', 'datapoint ']).err
                assert any(f'datapoint {e}: frame {f}, at' in said for (e, f), sample in
                           expected.items() if sample is None), said
                failed += 1
                words.append('--skip-damaged')
                expected = {key: sample for key, sample in expected.items() if sample}
            epochs = [[], []]
            for line in run(*words, '--values', '--epochs', 2).lines:
                for i, key in enumerate(map(tuple, line['indices'])):
                    epochs[line['epoch']].append(key)
                    sample = {name: line[name][i] for name in line
                              if name not in ('epoch', 'batch', 'indices')}
                    assert sample == expected[key], (key, sample, expected[key], words)
            assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(expected)
            assert len(expected) < 20 or epochs[0] != epochs[1]
            plain = run(*words, '--in-order').lines
            assert [tuple(k) for line in plain for k in line['indices']] == sorted(expected)
            one, many = (run(*words, '--digest', '--threads', n).lines for n in (1, 3))
            assert one == many
            if '--skip-damaged' not in words:
                assert _merged([run(*words, '--digest', '--rank', r, '--ranks', 4).lines
                                for r in range(4)]) == _merged([one])
        for path in pathlib.Path().glob(f'*{number}'):
            shutil.rmtree(path, ignore_errors=True)
    assert failed > 0 or ROUNDS < 50


def _merged(ranks):
    merged = []
    for lines in zip(*ranks, strict=True):
        total = sum(int(line['digest'], 16) for line in lines)
        merged.append((lines[0]['epoch'], lines[0]['batch'], f'{total % 2**64:016x}',
                       sorted(sum((line['indices'] for line in lines), []))))
    return merged


def _write(path, lengths=(13, 0, 40, 1, 200, 77), *options):
    rows = [{'state': [[e, i] for i in range(count)], 'action': list(range(count)),
             'when': [i / 10 for i in range(count)], 'cam': [f'{e}/{i}' for i in range(2 * count)],
             'cam_when': [i / 20 for i in range(2 * count)], 'task': f'task {e}', 'n': e}
            for e, count in enumerate(lengths)]
    pack(rows, SPEC, path, *options)
    return [(e, i) for e, count in enumerate(lengths) for i in range(count)]


WINDOWS = ['--frames', 'state', '--fields', 'state,cam', '--offsets', 'state=-1:3',
           '--times', 'state=when,cam=cam_when', '--seconds', 'cam=-0.1:0.1:0.05']


@each([[], ['--pad', 'drop'], ['--chunk', 16], ['--take', 4], ['--replacement']])
def ranks_threads_and_resumes_load_the_same(how):
    _write('x', (13, 0, 40, 1, 200, 77), '--shard-length', 2)
    words = ['load', 'x', *WINDOWS, *how, '--indices', '--digest', '--batch', 50, '--epochs', 2]
    whole = run(*words, '--threads', 1).lines
    assert run(*words, '--threads', 3).lines == whole
    assert _merged([whole]) == _merged(
        [run(*words, '--rank', r, '--ranks', 4).lines for r in range(4)])
    for stop in (1, len(whole) // 2, len(whole) - 1):
        pathlib.Path('s').unlink(missing_ok=True)
        found = run(*words, '--state', 's', '--batches', stop).lines
        found = _merged([found]) + _merged([_resumed(words, r) for r in range(3)])
        assert found == _merged([whole]), stop


def _resumed(words, rank):
    shutil.copy('s', f's{rank}')
    return run(*words, '--state', f's{rank}', '--rank', rank, '--ranks', 3).lines


def a_killed_run_loses_no_frame():
    frames, chance = _write('x', (60, 3, 200)), random.Random(3)
    words = ['load', 'x', *WINDOWS, '--indices', '--batch', 3, '--threads', 1, '--state', 's']
    seen = []
    for _ in range(1000):
        job = subprocess.Popen([harness.PROGRAM, *map(str, words)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
        for _ in range(chance.randint(1, 20)):
            line = job.stdout.readline()
            if line:
                seen.append(json.loads(line))
        job.kill()
        seen += [json.loads(line) for line in job.stdout.read().splitlines(True)
                 if line.endswith(b'\n')]
        job.wait()
        job.stdout.close()
        job.stderr.close()
        if seen and len({line['batch'] for line in seen}) == -(-len(frames) // 3):
            break
    by_batch = {line['batch']: line['indices'] for line in seen}
    assert all(by_batch[line['batch']] == line['indices'] for line in seen)
    assert sorted(tuple(pair) for pairs in by_batch.values() for pair in pairs) == frames


def several_datasets_rows_and_conditions():
    frames = _write('x')
    _write('y', (5, 6))
    lines = run('load', 'x', 'y', *WINDOWS, '--indices', '--values').lines
    found = sorted(tuple(i) for line in lines for i in line['indices'])
    assert found == [(0, *f) for f in frames] + [(1, e, i) for e in (0, 1) for i in range(5 + e)]
    for line in lines:
        for (_, e, i), state in zip(line['indices'], line['state'], strict=True):
            assert state[1] == [e, i]
    lines = run('load', 'x', 'y', '--frames', 'state', '--fields', 'n', '--indices', '--batch', 512,
                '--weights', '1,3', '--batches', 2).lines
    assert sum(d for line in lines for d, _, _ in line['indices']) == 768
    pathlib.Path('rows').write_text('3\n0\n3\n')
    rows = ['load', 'x', '--frames', 'state', '--indices', '--in-order']
    found = [i for line in run(*rows, '--rows', 'rows').lines for i in line['indices']]
    assert found == [[3, 0]] + [[0, i] for i in range(13)] + [[3, 0]]
    if 'sql' in run('--version').out.decode().split():
        found = [i for line in run(*rows, '--where', 'n < 3').lines for i in line['indices']]
        assert found == [[0, i] for i in range(13)] + [[2, i] for i in range(40)]


def frames_without_fields_are_the_clock_and_what_is_plain():
    _write('x', (3,))
    line, = run('load', 'x', '--frames', 'action', '--values', '--in-order').lines
    assert line == {'epoch': 0, 'batch': 0, 'action': [0, 1, 2], 'task': ['task 0'] * 3, 'n': [0] * 3}
    line, = run('load', 'x', '--frames', 'action', '--values', '--in-order', '--offsets',
                'state=1:2').lines
    assert line['state'] == [[[0, 1]], [[0, 2]], [[0, 2]]]
    assert line['state_pad'] == [[False], [False], [True]]


@each([(['--frames', 'stat'], 'x: no field "stat"; did you mean "state"?'),
       (['--frames', 'task'], 'field "task": not a sequence'),
       (['--offsets', 'state=0:2'], '--offsets needs --frames'),
       (['--pad', 'drop'], '--pad needs --frames'),
       (['--values'], '--values needs --tokens, --pack or --frames'),
       (['--frames', 'state', '--tokens', 'n=3'], '--tokens and --frames are mutually exclusive'),
       (['--frames', 'state', '--offsets', 'state'], '--offsets: expected FIELD=START:STOP'),
       (['--frames', 'state', '--offsets', 'state=1'], '"state=1": expected FIELD=START:STOP'),
       (['--frames', 'state', '--offsets', 'state=a:3'], '"state=a:3": expected'),
       (['--frames', 'state', '--offsets', 'state=2:2'], '"state=2:2" is empty'),
       (['--frames', 'state', '--offsets', 'state=3:1'], '"state=3:1" is empty'),
       (['--frames', 'state', '--offsets', 'state=0:9999999'], 'too large'),
       (['--frames', 'state', '--offsets', 'state=0:99999999999999999999'], 'expected'),
       (['--frames', 'state', '--offsets', 'state=0:1,state=0:2'], '"state" is listed twice'),
       (['--frames', 'state', '--offsets', 'nope=0:1'], 'x: no field "nope"'),
       (['--frames', 'state', '--fields', 'n', '--offsets', 'state=0:1'],
        'field "state" is not loaded'),
       (['--frames', 'state', '--offsets', 'task=0:1'], 'field "task": offsets and seconds need'),
       (['--frames', 'state', '--offsets', 'cam=0:1'],
        'field "cam": datapoint 0: 26 items, but field "state" has 13'),
       (['--frames', 'state', '--seconds', 'cam=0:1'], '"cam=0:1": expected FIELD=START:STOP:STEP'),
       (['--frames', 'state', '--seconds', 'cam=0:1:0'], '"cam=0:1:0" is empty'),
       (['--frames', 'state', '--seconds', 'cam=0:1:-1'], 'is empty'),
       (['--frames', 'state', '--seconds', 'cam=1:1:0.1'], 'is empty'),
       (['--frames', 'state', '--seconds', 'cam=0:1e9:1e-9'], 'too large'),
       (['--frames', 'state', '--seconds', 'cam=0:nan:1'], 'expected'),
       (['--frames', 'state', '--seconds', 'cam=0:1:1', '--times', 'cam=cam_when'],
        'field "cam": seconds need the times of the clock'),
       (['--frames', 'state', '--seconds', 'cam=0:1:1', '--times', 'state=when'],
        'field "cam": seconds need the times of its items'),
       (['--frames', 'state', '--seconds', 'cam=0:1:1', '--times', 'state=when,cam=when'],
        'field "when": datapoint 0: 13 items, but field "cam" has 26'),
       (['--frames', 'state', '--times', 'state=cam_when'],
        'field "cam_when": datapoint 0: 26 items, but field "state" has 13'),
       (['--frames', 'state', '--times', 'state=task'], 'field "task": of type utf8; the times of'),
       (['--frames', 'state', '--times', 'state=nope'], 'no field "nope"'),
       (['--frames', 'state', '--times', 'cam=cam_when', '--fields', 'n'],
        'field "cam" is not loaded'),
       (['--frames', 'state', '--rate', 'state=0'], '"state=0" is not above 0'),
       (['--frames', 'state', '--rate', 'state=x'], 'expected FIELD=HZ'),
       (['--frames', 'state', '--rate', 'state=5', '--times', 'state=when'], 'mutually exclusive'),
       (['--frames', 'state', '--tolerance', 'state=-1'], '"state=-1" is below 0'),
       (['--frames', 'state', '--tolerance', 'state=1'], 'tolerance need seconds'),
       (['--frames', 'state', '--pad', 'keep'], '"keep" is not one of edge, drop')])
def wrong_options_of_frames_are_refused_by_name(case):
    words, says = case
    _write('x', (13, 2))
    data = says.startswith(('x: no field', 'no field')) or 'datapoint 0' in says or \
        'of type' in says or 'not a sequence' in says
    refuse('load', 'x', *words, '--indices', says=says, code=1 if data else 2)


def times_that_fall_name_field_and_episode():
    for spoilt, says in (([0, .1, .05, .3], 'item 2: times must not decrease (0.05 after 0.1)'),
                         ([0, .1, .2], '3 items, but field "state" has 4')):
        pack([{'state': [0] * 4, 'when': [0, .1, .2, .3]}, {'state': [0] * 4, 'when': spoilt}],
             'state=int(1)[],when=array(float64)[]', 'x')
        refuse('load', 'x', '--frames', 'state', '--times', 'state=when', '--seconds', 'state=0:1:1',
               says=f'x: field "when": datapoint 1: {says}')
        shutil.rmtree('x')
    pack([{'state': [0] * 4, 'when': [0, 1, 2, 3]}],
         'state=int(1)[],when=array(float32)[]', 'x')
    refuse('load', 'x', '--frames', 'state', '--times', 'state=when',
           says='field "when": of type array(float32)[]; the times of field "state" must be '
                'array(float64)[]')
