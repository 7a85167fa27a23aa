"""bags load: what is loaded, in which order, by how many ranks; after kills; what is
refused."""
import collections
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

import harness
from harness import each, pack, refuse, run

LENGTH = 103


def _dataset(out='x', length=LENGTH, first=0, *options):
    pack([{'n': i, 'a': [i, i + .5], 't': f'text {i}', 'w': ['a', str(i)][:i % 3]}
          for i in range(first, first + length)],
         'n=int(4),a=array(float32,2),t=utf8,w=utf8[]', out, *options)


def _load(*words, **options):
    return run('load', *words, **options).lines


def _merged(ranks):
    """The lines of all ranks as those of one."""
    merged = []
    for lines in zip(*ranks, strict=True):
        one = {key: lines[0][key] for key in ('epoch', 'batch')}
        assert all(line[key] == one[key] for line in lines for key in one)
        if 'indices' in lines[0]:
            sizes = [len(line['indices']) for line in lines]
            assert max(sizes) - min(sizes) <= 1, sizes
            one['indices'] = sorted(sum((line['indices'] for line in lines), []))
        if 'digest' in lines[0]:
            total = sum(int(line['digest'], 16) for line in lines)
            one['digest'] = f'{total % 2**64:016x}'
        merged.append(one)
    return merged


def an_epoch_has_each_datapoint_once():
    _dataset()
    lines = _load('x', '--indices', '--batch', '10', '--epochs', '2', '--seed', '5')
    assert [(line['epoch'], line['batch'], len(line['indices'])) for line in lines] \
        == [(e, b, 10 if b < 10 else 3) for e in range(2) for b in range(11)]
    epochs = [sum((line['indices'] for line in lines if line['epoch'] == e), [])
              for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(LENGTH))
    assert epochs[0] != epochs[1] and epochs[0] != sorted(epochs[0])
    assert lines == _load('x', '--indices', '--batch', '10', '--epochs', '2',
                          '--seed', '5', '--threads', '1')
    assert lines != _load('x', '--indices', '--batch', '10', '--epochs', '2')
    ordered = _load('x', '--indices', '--batch', '200', '--in-order')
    assert ordered == [{'epoch': 0, 'batch': 0, 'indices': list(range(LENGTH))}]


@each([(1, 3), (2, 7), (5, 4), (3, 8), (10, 200)])
def ranks_share_each_batch(case):
    batch, ranks = case
    _dataset('x', 23)
    words = ['x', '--indices', '--digest', '--batch', batch, '--epochs', '2']
    alone = _merged([_load(*words, '--threads', '1')])
    for threads in ('2', '7'):
        assert alone == _merged([
            _load(*words, '--rank', r, '--ranks', ranks, '--threads', threads)
            for r in range(ranks)])


def chunks_stay_together():
    _dataset('x', 96)
    lines = _load('x', '--indices', '--batch', '16', '--chunk', '4', '--window', '4')
    assert sorted(sum((line['indices'] for line in lines), [])) == list(range(96))
    for line in lines:
        chunks = collections.Counter(i // 4 for i in line['indices'])
        assert set(chunks.values()) == {4} and len(chunks) == 4
        assert line['indices'] != sorted(line['indices'])
    assert any(max(line['indices']) - min(line['indices']) > 48 for line in lines)


def several_datasets_are_mixed():
    _dataset('x', 60)
    _dataset('y', 40, 1000)
    lines = _load('x', 'y', '--indices', '--batch', '25')
    pairs = sorted(tuple(p) for line in lines for p in line['indices'])
    assert pairs == [(0, i) for i in range(60)] + [(1, i) for i in range(40)]
    for line in lines:
        assert {d for d, _ in line['indices']} == {0, 1}


def weights_are_exact_shares():
    _dataset('x', 1500)
    _dataset('y', 40, 1000)
    lines = _load('x', 'y', '--indices', '--batch', '1024', '--weights', '3,1',
                  '--epochs', '3')
    assert [len(line['indices']) for line in lines] == [1024] * 6
    times = [collections.Counter(), collections.Counter()]
    for line in lines:
        assert sum(d for d, _ in line['indices']) == 256
        for d, i in line['indices']:
            assert times[d][i] == sum(times[d].values()) // (1500, 40)[d]
            times[d][i] += 1
    shares = _load('x', 'y', 'x', '--indices', '--batch', '1024', '--weights',
                   '1,1,1', '--batches', '1')[0]['indices']
    assert collections.Counter(d for d, _ in shares) == {0: 342, 1: 341, 2: 341}


def rows_select_and_keep_their_order():
    _dataset('x', 20)
    rows = [5, 7, 7, 3, 19, 0]
    pathlib.Path('r').write_text('\n'.join(map(str, rows)) + '\n\n')
    words = ['x', '--rows', 'r', '--indices', '--batch', '4']
    assert sum((line['indices'] for line in _load(*words, '--in-order')), []) == rows
    lines = _load(*words, '--epochs', '2', '--seed', '2')
    for epoch in range(2):
        assert sorted(sum((line['indices'] for line in lines
                           if line['epoch'] == epoch), [])) == sorted(rows)
    assert lines[:2] != lines[2:]
    first = _load('x', '--take', '4', '--epochs', '2', '--indices')
    assert [sorted(line['indices']) for line in first] == [[0, 1, 2, 3]] * 2
    assert _load(*words, '--take', '3', '--in-order')[0]['indices'] == rows[:3]
    _dataset('y', 10)
    both = _load('x', 'y', '--take', '2', '--in-order', '--indices')
    assert both[0]['indices'] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    drawn = _load(*words, '--replacement', '--epochs', '200')
    drawn = collections.Counter(i for line in drawn for i in line['indices'])
    assert set(drawn) == set(rows) and sum(drawn.values()) == 1200
    assert drawn[7] > 1.5 * drawn[5] and 140 < drawn[5] < 260
    # Over ranks, and resumed, it is the same.
    for more in ([], ['--replacement'], ['--take', '5']):
        whole = _load(*words, *more, '--digest', '--epochs', '3')
        assert _merged([whole]) == _merged(
            [_load(*words, *more, '--digest', '--epochs', '3', '--rank', r, '--ranks',
                   3) for r in range(3)])
        parts = [_load(*words, *more, '--digest', '--epochs', '3', '--state',
                       's' + '.'.join(more), *stop) for stop in (['--batches', '2'], [])]
        assert sum(parts, []) == whole


def a_state_of_another_selection_is_refused():
    _dataset('x', 20)
    pathlib.Path('r').write_text('1\n2\n3\n')
    pathlib.Path('list').write_text('[1, 2, 3]')
    pathlib.Path('other').write_text('1\n3\n2\n')
    words = ['x', '--batch', '1', '--indices', '--state', 's', '--epochs', '9']
    _load(*words, '--rows', 'r', '--batches', '2')
    for other in (['--rows', 'other'], ['--rows', 'r', '--replacement'],
                  ['--take', '3']):
        refuse('load', *words, *other, says=('s: a state of other', 'selections'))
    _load(*words, '--rows', 'list', '--batches', '1')
    refuse('load', *words, '--rows', 'no-such', says='no-such: cannot open')


def a_state_continues_where_it_was_saved():
    _dataset()
    words = ['x', '--indices', '--digest', '--batch', '10', '--epochs', '3']
    whole = _load(*words)
    found = []
    while True:
        more = _load(*words, '--state', 's', '--batches', '4')
        if not more:
            break
        assert len(more) == 4 or len(found) + len(more) == len(whole)
        found += more
    assert found == whole
    done = run('load', *words, '--state', 's')
    assert done.out == b'' and done.err == ''
    assert pathlib.Path('s').stat().st_size == 64
    # Another rank's state serves every rank, also if their number changes.
    for batches in (1, 5, 20):
        pathlib.Path('s').unlink()
        before = _merged([
            _load(*words, '--rank', r, '--ranks', 4, '--batches', batches,
                  *(['--state', 's'] if r == 2 else [])) for r in range(4)])
        shutil.copy('s', 't')
        after = _merged([_load(*words, '--rank', r, '--ranks', 2, '--state', f)
                         for r, f in ((0, 's'), (1, 't'))])
        assert before + after == _merged([whole])
    assert sorted(os.listdir()) == ['manifest.jsonl', 's', 't', 'x']


def a_state_of_something_else_is_refused_and_stays():
    _dataset()
    _dataset('y', LENGTH + 1)
    _dataset('z', LENGTH, 7)
    words = ['--indices', '--state', 's', '--epochs', '2']
    _load('x', *words, '--batches', '3')
    saved = pathlib.Path('s').read_bytes()
    for other, says in ((['y'], f'number of datapoints differs ({LENGTH}, here'),
                        (['z'], 'content'), (['x', 'x'], 'number of datapoints'),
                        (['x', '--seed', '1'], 'seed'),
                        (['x', '--batch', '31'], 'batch size'),
                        (['x', '--chunk', '2'], 'chunk, window'),
                        (['x', '--in-order'], 'in_order'),
                        (['x', '--weights', '1'], 'weights')):
        refuse('load', *words, *other, says=('bags: s: ', says))
        assert pathlib.Path('s').read_bytes() == saved
    for bad in (b'', saved[:63], saved + b'\0', b'x' * 64,
                saved[:20] + b'\1' + saved[21:]):
        pathlib.Path('s').write_bytes(bad)
        refuse('load', 'x', *words, says='bags: s: ')
        assert pathlib.Path('s').read_bytes() == bad
    pathlib.Path('s').unlink()
    pathlib.Path('s').mkdir()
    refuse('load', 'x', *words, says='s')
    for words in ([], ['--indices'], ['--digest', '--batches', '1']):
        result = refuse('load', 'x', *words, '--state', 'no/such/s',
                        says='bags: no/such/s.new0: cannot create')
        assert result.out == b''
    _load('x', '--indices', '--batches', '1', '--state', 't')
    assert not [name for name in os.listdir() if '.new' in name]
    pathlib.Path('t.new0').write_bytes(b'of a run that was killed')
    _load('x', '--indices', '--batches', '1', '--state', 't')
    assert not [name for name in os.listdir() if '.new' in name]
    # A state at the end is only read.
    pathlib.Path('t.new0').mkdir()
    run('load', 'x', '--indices', '--epochs', '0', '--state', 't')
    refuse('load', 'x', '--indices', '--state', 't', says='t.new0')
    pathlib.Path('t.new0').rmdir()


def killed_at_any_moment_no_line_is_lost():
    _dataset('x', 400)
    words = [harness.PROGRAM, 'load', 'x', '--digest', '--indices', '--batch', '3',
             '--epochs', '40', '--state', 's', '--threads', '2']
    start = time.monotonic()
    whole = _load(*words[2:])
    seconds = time.monotonic() - start
    assert len(whole) == 134 * 40
    chance = random.Random(1)
    for _ in range(1 if os.environ.get('BAGS_QUICK') else 10):
        pathlib.Path('s').unlink(missing_ok=True)
        found = []
        for kills in range(6):
            with open('out', 'wb') as out:
                process = subprocess.Popen(words, stdout=out,
                                           stderr=subprocess.DEVNULL)
                if kills < 5:
                    time.sleep(chance.uniform(0, seconds / 3))
                    process.kill()
                process.wait()
            text = pathlib.Path('out').read_bytes()
            # What was not flushed is not a line.
            lines = [json.loads(x) for x in text[:text.rfind(b'\n') + 1].splitlines()]
            if found and lines and lines[0] == found[-1]:
                lines = lines[1:]
            found += lines
        assert found == whole


def damage_stops_or_is_skipped():
    _dataset('x', 60)
    # The blob of datapoint 33 is no UTF-8.
    path = pathlib.Path('x/t.bag')
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'text 33', b'text \xff3'))
    words = ['x', '--indices', '--digest', '--batch', '7', '--threads']
    outs = set()
    for threads in ('1', '5'):
        result = refuse('load', *words, threads,
                        says=('x: field "t": datapoint 33', 'UTF-8'))
        outs.add(result.out)
        printed = [i for line in result.lines for i in line['indices']]
        assert 33 not in printed and len(printed) % 7 == 0
        assert 'state' not in os.listdir()
    assert len(outs) == 1
    lines = _load(*words, '2', '--skip-damaged')
    assert sorted(i for line in lines for i in line['indices']) == [
        i for i in range(60) if i != 33]
    assert '1 damaged datapoint left out' in run('load', 'x', '--skip-damaged'
                                                 ).out.decode()
    # What is not loaded is not decoded.
    run('load', 'x', '--fields', 'n,a')
    refuse('load', 'x', '--indices', '--batch', '60', says='datapoint 33')
    assert len(_load('x', '--indices', '--batch', '60', '--fields', 'a')) == 1


def the_summary_names_the_speed():
    _dataset('x', 60)
    out = run('load', 'x', '--batch', '7').out.decode()
    assert re.fullmatch(r'60 datapoints in 9 batches, [0-9.]+ s: \d+ datapoints/s, '
                        r'[0-9.]+ MB/s\n', out), out
    result = run('load', 'x', '--digest', '--epochs', '2', '--batches', '3')
    assert len(result.lines) == 3
    assert '92 datapoints in 3 batches' in run(
        'load', 'x', '--epochs', '2', '--batches', '3').out.decode()
    # Nothing to load is no failure.
    run('load', 'x', '--epochs', '0', '--indices')
    pack([], 'n=int(4)', 'empty')
    assert _load('empty', '--indices') == []


@each([(['--batch', '0'], '--batch must be'), (['--batch', '5000000000'], '--batch'),
       (['--rank', '1'], '--rank needs --ranks'),
       (['--rank', '2', '--ranks', '2'], 'below --ranks'),
       (['--ranks', '0'], '--ranks'), (['--threads', '0'], '--threads'),
       (['--chunk', '0'], '--chunk'), (['--window', '4'], '--window needs --chunk'),
       (['--in-order', '--chunk', '2'], 'mutually exclusive'),
       (['--in-order', '--weights', '2'], 'mutually exclusive'),
       (['--in-order', '--replacement'], 'mutually exclusive'),
       (['--chunk', '2', '--replacement'], 'mutually exclusive'),
       (['--take', '0'], '--take'), (['x', '--rows', 'r'], '--rows needs a single'),
       (['--weights', '1,2'], '2 weights for 1 dataset'),
       (['--weights', '0'], 'not a positive number'),
       (['--weights', 'nan'], 'not a positive number'),
       (['--weights', '1x'], 'not a positive number'),
       (['--state', ''], 'name of the file is empty'),
       (['--crop', '8'], 'no field that is loaded is an image')])
def invalid_command_lines_are_refused(case):
    words, says = case
    _dataset('x', 5)
    refuse('load', 'x', *words, says=says, code=2)


def what_is_not_there_is_named():
    _dataset('x', 5)
    refuse('load', 'x', '--fields', 'n,y', says='field "y"')
    refuse('load', 'x', '--fields', 'n,n', says='"n": listed twice')
    refuse('load', 'x', 'no-such', '--indices', says='no-such')
    refuse('load', 'x/n.bag', says='x/n.bag')
    pack([{'m': 1}], 'm=int(4)', 'other')
    refuse('load', 'x', 'other', says='field "a"')
    pack([{'n': 1}], 'n=array(float32)', 'y')
    pack([{'n': [1]}], 'n=int(4)[]', 'z')
    for other, is_type in (('y', 'array(float32)'), ('z', 'int(4)[]')):
        result = refuse('load', 'x', other, '--fields', 'n', says=(
            f'{other}: field "n": type mismatch ({is_type}, expected int(4) as in x)'))
        assert 'dtype' not in result.err
    run('load', code=2)


def a_closed_pipe_and_an_interrupt_end_it():
    _dataset('x', 60)
    words = [harness.PROGRAM, 'load', 'x', '--indices', '--digest', '--batch', '2',
             '--epochs', '1000000']
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for _ in range(3):
        json.loads(process.stdout.readline())
    process.stdout.close()
    assert process.stderr.read() == b''
    assert process.wait(harness.HANG) == 1
    process.stderr.close()
    process = subprocess.Popen([*words, '--state', 's'], stdout=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=harness.HANG)
    assert process.returncode == -signal.SIGINT
    assert pathlib.Path('s').stat().st_size == 64


def a_full_disk_is_an_error_and_the_state_stays():
    if not os.path.exists('/dev/full'):
        return
    _dataset('x', 60)
    _load('x', '--indices', '--batch', '2', '--batches', '2', '--state', 's')
    saved = pathlib.Path('s').read_bytes()
    with open('/dev/full', 'wb') as full:
        refuse('load', 'x', '--indices', '--batch', '2', '--state', 's', stdout=full,
               says='standard output')
    assert pathlib.Path('s').read_bytes() == saved


def nothing_is_printed_if_the_state_does_not_fit_on_the_disk():
    _dataset('x', 60)
    words = [harness.PROGRAM, 'load', 'x', '--indices', '--state', 's']
    done = subprocess.run(
        ['sh', '-c', 'trap "" XFSZ; ulimit -f 0; exec "$@"', 'sh', *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=harness.HANG)
    assert done.returncode == 1, done
    assert done.stdout == b'' and b'bags: s.new0: cannot write' in done.stderr, done
    assert not list(pathlib.Path('.').glob('s*'))
