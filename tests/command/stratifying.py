"""bags derive --split --stratify: every part has its share of each value."""
import base64
import os
import random
import shutil
from fractions import Fraction

from harness import has_codec, pack, refuse, run

CASES = 15 if 'BAGS_QUICK' in os.environ else 40


def _numbers(path):
    return [row['n'] for row in run('get', path, ':').lines]


def parts_have_each_values_share():
    for seed in range(CASES):
        chance = random.Random(seed)
        for name in ['a', 'out', 'again', 'other']:
            shutil.rmtree(name, ignore_errors=True)
        type = chance.choice(['utf8', 'int(2)', 'i64', 'bytes', 'uint8'])
        many = chance.choice([1, 2, 5, 30])
        values = [chance.randrange(many) for _ in range(chance.randrange(1, 120))]
        made = {'utf8': str, 'bytes': lambda v: {'base64': base64.b64encode(
            b'x' * v).decode()}}.get(type, int)
        pack([{'v': made(v), 'n': i} for i, v in enumerate(values)], f'v={type},n=int(2)', 'a',
             *chance.choice([[], ['--shard-length', 25]]))
        shares = chance.choice([(90, 10), (50, 50), (29, 71), (33, 33), (70, 20, 10), (5,)])
        split = ','.join(f'p{k}={share / 100}' for k, share in enumerate(shares))
        words = ['--split', split, '--stratify', 'v', '--seed', seed]
        chosen = list(range(len(values)))
        if chance.random() < 0.4:
            words += ['--where', 'n % 4 <> 1']
            chosen = [i for i in chosen if i % 4 != 1]
        run('derive', 'a', 'out', *words)
        parts = [_numbers(f'out/p{k}') for k in range(len(shares))]
        together = sum(parts, [])
        assert len(set(together)) == len(together) and set(together) <= set(chosen)
        for value in range(many):
            count = sum(values[i] == value for i in chosen)
            for part, share in zip(parts, shares):
                found = sum(values[i] == value for i in part)
                assert abs(found - Fraction(share * count, 100)) < 1, (seed, value, found)
        for part, share in zip(parts, shares):
            assert abs(len(part) - Fraction(share * len(chosen), 100)) < 1, (seed, len(part))
        run('derive', 'a', 'again', *words)
        assert parts == [_numbers(f'again/p{k}') for k in range(len(shares))]
        run('derive', 'a', 'other', *words[:4], '--seed', seed + 1000, *words[6:])
        if len(chosen) > 60 and many < 5 and len(shares) > 1:
            assert parts != [_numbers(f'other/p{k}') for k in range(len(shares))]


def errors_name_the_field():
    pack([{'f': 0.5, 's': ['x'], 'g': 1}], 'f=float64,s=utf8[],g=int(1)', 'a')
    words = ['derive', 'a', 'out', '--split', 'x=0.5,y=0.5', '--stratify']
    refuse(*words, 'f', says='a: field "f": values of type array(float64) cannot be stratified')
    refuse(*words, 's', says='a: field "s": values of type utf8[] cannot be stratified')
    refuse(*words, 'none', says='a: no field "none"')
    refuse('derive', 'a', 'out', '--stratify', 'g', says='--split', code=2)
    assert not os.path.exists('out') and not os.path.exists('out.parts')


def compressed_values_are_strata():
    if not has_codec('zstd(utf8)'):
        return
    pack([{'v': 'ab'[i % 2] * 50, 'n': i} for i in range(40)], 'v=zstd(utf8),n=int(2)', 'a')
    run('derive', 'a', 'out', '--split', 'x=0.75,y=0.25', '--stratify', 'v')
    assert sum(n % 2 for n in _numbers('out/x')) == 15
    assert sum(n % 2 for n in _numbers('out/y')) == 5
