"""bags load --frames: equal to a model in Python, over random datasets."""
import bisect
import contextlib
import os
import pathlib
import random
import shutil
import subprocess
import sys

import server
from harness import each, pack, refuse, run

ROUNDS = 8 if os.environ.get('BAGS_QUICK') else 200
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
            sample, kept = {'task': episode['task'], 'n': e and episode['n']}, True
            sample['n'] = episode['n']
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
