"""Packs that are killed or fail: recover, --resume and --append."""
import json
import os
import pathlib
import shutil
import signal
import subprocess

import harness
from harness import each, files, read, refuse, run, wait_for

SPEC = 'n=int(4),words=utf8[]'
ROWS = [{'n': i, 'words': [str(i) * 40_000, 'x'][:i % 3]} for i in range(60)]
LINES = [json.dumps(row).encode() + b'\n' for row in ROWS]
OPTIONS = {
    'one directory': [],
    'shards': ['--shard-length', '7'],
    'worker 1 of 2': ['--shard-size', '300K', '--shard-start', '1',
                      '--shard-stop', '2'],
}


def _start(out, *options):
    return subprocess.Popen(
        [harness.PROGRAM, 'pack', '-', out, '--spec', SPEC, '--no-sync',
         *options], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE)


def _flushed(path):
    """The number of datapoints that were flushed."""
    done = subprocess.run([harness.PROGRAM, 'info', path, '--live', '--allow-gaps', '--json'],
                          capture_output=True)
    return json.loads(done.stdout)['length'] if done.returncode == 0 else 0


def _kill_after(lines, out, *options, all_of_them=True):
    """Feed some lines, wait until they, or some of them, were flushed, and kill it."""
    before = _flushed(out)
    own = len(LINES[1:lines:2] if '--shard-stop' in options else LINES[:lines])
    want = before + 1 if not all_of_them else own if '--resume' in options else before + own
    job = _start(out, *options)
    job.stdin.write(b''.join(LINES[:lines]))
    job.stdin.flush()
    wait_for(lambda: _flushed(out) >= want, job)
    job.send_signal(signal.SIGKILL)
    job.communicate()


@each(list(OPTIONS))
def a_killed_pack_is_started_again_until_it_is_done(which):
    options = OPTIONS[which]
    whole = b''.join(LINES)
    run('pack', '-', 'whole', '--spec', SPEC, '--no-sync', *options,
        stdin=whole)
    for lines in (3, 29, 44):
        _kill_after(lines, 'out', '--resume', *options, all_of_them=lines == 44)
    again = run('pack', '-', 'out', '--spec', SPEC, '--no-sync', '--resume',
                *options, stdin=whole)
    assert b'that existed' in again.out, again.out
    assert files('out') == files('whole')
    # What is done is done: starting it once more changes nothing.
    pathlib.Path('m.jsonl').write_bytes(whole)
    run('pack', 'm.jsonl', 'out', '--spec', SPEC, '--resume', *options)
    assert files('out') == files('whole')


def recover_finishes_what_was_flushed():
    _kill_after(25, 'out', '--shard-length', '10')
    before = files('out')
    assert '000002/spec.json' not in before
    refuse('info', 'out', says='out/000002: unfinished (no spec.json), and no writer has locked '
           'it; run `bags recover`; --live')
    dry = run('recover', 'out', '--dry-run').out.decode()
    assert '000002: to be finished, 5 datapoints kept' in dry, dry
    assert 'out: 3 shards: 2 finished before, 1 to be finished\n' in dry, dry
    assert files('out') == before
    done = run('recover', 'out').out.decode()
    assert '000002: finished, 5 datapoints kept' in done, done
    assert '2 finished before, 1 finished now' in done, done
    found = read('out')
    assert found['count'] == 25 and found['shards'] == [10, 10, 5]
    after = files('out')
    assert run('recover', 'out').out == b'out: 3 shards: 3 finished before\n'
    assert files('out') == after


def _crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _flush_begun(path, n, words):
    """Add what a program left that began a datapoint, flushed it and died: its fields are
    n and words. None: a field has no value."""
    path = pathlib.Path(path)
    rows = (path / 'refs.idx').stat().st_size // 8
    draft = rows.to_bytes(8, 'little')
    for name, blobs in ('n', [] if n is None else [n.to_bytes(4, 'little')]), \
            ('words', [word.encode() for word in words]):
        table = (path / f'{name}.idx').read_bytes()
        table = table[:len(table) // 8 * 8]
        first, end = len(table) // 8, int.from_bytes(table[-8:], 'little')
        data = (path / f'{name}.bag').read_bytes()[:end]
        sums = path / f'{name}.crc'
        if sums.exists():
            sums.write_bytes(sums.read_bytes()[:4 * first] + b''.join(
                _crc32c(blob).to_bytes(4, 'little') for blob in blobs))
        for blob in blobs:
            data += blob
            table += len(data).to_bytes(8, 'little')
        (path / f'{name}.bag').write_bytes(data)
        (path / f'{name}.idx').write_bytes(table)
        draft += first.to_bytes(8, 'little') + len(blobs).to_bytes(8, 'little')
    draft += _crc32c(draft).to_bytes(4, 'little')
    (path / 'refs.partial').write_bytes(draft)


@each(['one directory', 'shards'])
def recover_keeps_what_was_flushed_of_a_datapoint_that_was_not_ended(which):
    _kill_after(5, 'out', *OPTIONS[which])
    left = 'out/000000' if which == 'shards' else 'out'
    _flush_begun(left, 7, ['new'] * 1000)
    before = files('out')
    words = '6 datapoints kept, the last with 1000 of its items: it was not ended'
    assert f'{left}: to be finished, {words}' in \
        run('recover', 'out', '--dry-run').out.decode()
    assert files('out') == before
    assert run('recover', 'out').out.decode().startswith(f'{left}: finished, {words}')
    rows = [json.loads(line) for line in LINES[:5]] + [{'n': 7, 'words': ['new'] * 1000}]
    assert run('get', 'out', ':').lines == rows
    run('verify', 'out')
    assert 'refs.partial' not in str(list(files('out')))


def recover_stops_at_a_datapoint_without_a_value_which_set_gives():
    _kill_after(5, 'out')
    _flush_begun('out', None, ['new'] * 3)
    before = files('out')
    for options in [], ['--dry-run']:
        refuse('recover', 'out', *options,
               says=('out: field "n": datapoint 5: no value', '`bags recover`',
                     '--set FIELD=JSON', '--drop-partial'))
    refuse('pack', '-', 'out', '--spec', SPEC, '--resume', stdin=b''.join(LINES),
           says=('field "n": datapoint 5: no value', '`bags recover`', '--set', '--drop-partial'))
    refuse('recover', 'out', '--set', 'word=3',
           says=('no field "word"', 'did you mean "words"'))
    refuse('recover', 'out', '--set', 'words=[]', says=('words', 'a list is not a value'))
    refuse('recover', 'out', '--set', 'words="x"', says=('words', 'sequence'))
    refuse('recover', 'out', '--set', 'n="x"', says=('--set n="x": ', 'text'))
    refuse('recover', 'out', '--set', 'n=', says='--set n=')
    refuse('recover', 'out', '--set', 'n', code=2, says='FIELD=JSON')
    refuse('recover', 'out', '--set', 'n=1', '--set=n=2', code=2, says='two values')
    refuse('recover', 'out', '--set', 'n=1', '--drop-partial', code=2, says='exclusive')
    assert files('out') == before
    said = run('recover', 'out', '--set', 'n=9').out.decode()
    assert 'the last with 3 of its items: it was not ended' in said, said
    assert run('get', 'out', '5').lines == [{'n': 9, 'words': ['new'] * 3}]


@each([0, 5])
def recover_drops_a_datapoint_on_request(length):
    if length:
        _kill_after(length, 'out')
    else:
        os.mkdir('out')
        pathlib.Path('out/spec.json.partial').write_text('{"n": "int(4)", "words": "utf8[]"}')
        for name in 'n', 'words', 'refs':
            for suffix in '.bag', '.idx':
                pathlib.Path(f'out/{name}{suffix}').write_bytes(b'')
    _flush_begun('out', None, ['12345678'] * 1000)
    said = run('recover', 'out', '--drop-partial').out.decode()
    assert said.endswith('the last datapoint was not ended, and is removed\n'), said
    if length:  # 8 bytes, and 8 of the journal and 4 of the checksums, for each
        assert 'out: finished, 5 datapoints kept; 20000 bytes' in said, said
        assert run('get', 'out', ':').lines == [json.loads(line) for line in LINES[:5]]
    else:  # without checksums
        assert said.startswith('out: contains no datapoint, removed with 16000 bytes: '), said
        assert not os.path.exists('out')


def recover_leaves_a_living_writer_alone():
    job = _start('out', '--shard-length', '10')
    job.stdin.write(b''.join(LINES[:15]))
    job.stdin.flush()
    wait_for(lambda: _flushed('out') == 15, job)
    said = refuse('recover', 'out', says='000001').out.decode()
    assert said.startswith('out/000001: unchanged: '), said
    assert said.endswith('1 finished before, 1 unchanged\n'), said
    said = refuse('info', 'out', says='out/000001: unfinished (no spec.json): its writer is '
                  'running; --live').err
    assert 'crash' not in said and 'recover' not in said, said
    job.communicate(b''.join(LINES[15:]))
    assert job.returncode == 0
    assert read('out')['count'] == len(ROWS)


def what_was_flushed_is_read_while_it_is_written():
    job = _start('out', '--shard-length', '10')
    job.stdin.write(b''.join(LINES[:15]))
    job.stdin.flush()
    wait_for(lambda: _flushed('out') == 15, job)
    refuse('get', 'out', '0', says=('000001', '--live'))
    want = [{'n': row['n']} for row in ROWS[:15]]
    assert run('get', 'out', '0:99', 'n', '--live').lines == want
    got = run('info', 'out', '--json', '--live').json
    assert (got['length'], got['shards'], got['unfinished'], got['skipped']) \
        == (15, 2, 1, 0)
    assert b'unfinished 1, with the data that was flushed' in \
        run('info', 'out', '--live').out
    run('export', 'out', 'so far', '--live')
    lines = pathlib.Path('so far/manifest.jsonl').read_text().splitlines()
    assert len(lines) == 15
    job.communicate(b''.join(LINES[15:]))
    assert job.returncode == 0
    assert run('get', 'out', ':', 'n', '--live').lines == \
        [{'n': row['n']} for row in ROWS]
    assert run('info', 'out', '--json', '--live').json['unfinished'] == 0


def a_bag_is_read_while_it_is_written():
    job = subprocess.Popen([harness.PROGRAM, 'pack', '-', 'out.bag'],
                           stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    job.stdin.write(b'{"blob": {"base64": "b25l"}}\n' * 3)
    job.stdin.flush()
    wait_for(lambda: os.path.exists('out.idx') and os.path.getsize('out.idx') == 24, job)
    for options in [], ['--live']:
        assert run('get', 'out.bag', '2', '--raw', *options).out == b'one'
    job.send_signal(signal.SIGKILL)
    job.communicate()
    with open('out.idx', 'ab') as journal:
        journal.write(bytes(16))
    assert run('info', 'out.bag', '--json', '--live').json['length'] == 3


def a_bag_whose_pack_failed_is_copied_and_not_recovered():
    refuse('pack', '-', 'out.bag', stdin=b'{"blob": {"base64": "b25l"}}\n' * 3 + b'bad',
           says='`bags export out.bag OUT --live` reads it')
    for options in [], ['--dry-run']:
        refuse('recover', 'out.bag', *options, code=2,
               says=('out.bag: is a file', 'bags export'))
    run('export', 'out.bag', 'OUT', '--live')
    run('pack', 'OUT/manifest.jsonl', 'new.bag')
    assert read('new.bag')['count'] == 3
    run('verify', 'new.bag')


def packs_that_sync_now_and_then_are_the_same():
    whole = b''.join(LINES)
    for kind in [], ['--shard-length', '7']:
        name = f'out{len(kind)}'
        run('pack', '-', name, '--spec', SPEC, *kind, stdin=whole)
        run('pack', '-', name + 's', '--spec', SPEC, '--sync-size', '100K',
            *kind, stdin=whole)
        assert files(name) == files(name + 's')
    refuse('pack', '-', 'x', '--spec', SPEC, '--sync-size', '1', '--no-sync',
           code=2, says='mutually exclusive')
    refuse('pack', '-', 'x', '--spec', SPEC, '--flush-seconds', '0', code=2,
           says='--flush-seconds must be at least 1')
    refuse('pack', '-', 'x', '--spec', SPEC, '--sync-size', 'much', code=2,
           says='size')
    assert not pathlib.Path('x').exists()


def _pack(lines, out, *options, call=run, **more):
    return call('pack', '-', out, '--spec', SPEC, '--no-sync', *options,
                stdin=b''.join(lines), **more)


@each(list(OPTIONS))
def resuming_with_another_input_is_refused_and_harms_nothing(which):
    options = OPTIONS[which]
    _kill_after(44, 'out', *options)
    first = 1 if 'worker' in which else 0
    step = first + 1
    changed = {'words': ['other'], 'n': 999}
    packed = run('info', 'out', '--live', '--json', '--allow-gaps').json['length']
    last = first + step * (packed - 1)
    before = files('out')
    for at in (first, last):
        for key, value in changed.items():
            lines = list(LINES)
            lines[at] = json.dumps({**ROWS[at], key: value}).encode() + b'\n'
            _pack(lines, 'out', '--resume', *options, call=refuse,
                  says=(f'standard input: line {at + 1}: field "{key}": ',
                        'datapoint', 'out', '--resume', '--append'))
    # Fewer lines than there are datapoints; all lines shifted by one.
    _pack(LINES[:20], 'out', '--resume', *options, call=refuse,
          says=(f'has {packed} datapoints', f'only {len(LINES[first:20:step])}'))
    _pack(LINES[1:], 'out', '--resume', *options, call=refuse, says='line')
    refuse('pack', '-', 'out', '--spec', 'n=int(4)', '--resume', *options,
           stdin=b'{"n": 1}\n' * 2, says='field "')
    spec = 'spec.json.partial'
    changes = {name for name in files('out').keys() | before.keys()
               if files('out').get(name) != before.get(name)}
    assert not [name for name in changes if name.endswith(spec)], changes
    _pack(LINES, 'out', '--resume', *options)
    _pack(LINES, 'whole', *options)
    assert files('out') == files('whole')


def a_hundred_datapoints_in_between_are_compared():
    rows = [{'n': i} for i in range(1000)]
    lines = [json.dumps(row).encode() + b'\n' for row in rows]
    run('pack', '-', 'out', '--spec', 'n=int', stdin=b''.join(lines))
    assert b'1000 datapoints, already complete' in run(
        'pack', '-', 'out', '--spec', 'n=int', '--resume',
        stdin=b''.join(lines)).out
    found = 0
    for at in range(300, 320):
        changed = list(lines)
        changed[at] = b'{"n": 5}\n'
        done = subprocess.run(
            [harness.PROGRAM, 'pack', '-', 'out', '--spec', 'n=int', '--resume'],
            input=b''.join(changed), capture_output=True)
        found += done.returncode
    assert found >= 2, found


def a_finished_dataset_is_resumed_if_there_is_nothing_left_to_do():
    _pack(LINES[:3], 'out')
    before = files('out')
    assert b'3 datapoints, already complete' in \
        _pack(LINES[:3], 'out', '--resume').out
    _pack(LINES[:4], 'out', '--resume', call=refuse,
          says=('line 4', 'finished', '3 datapoints'))
    _pack(LINES[1:4], 'out', '--resume', call=refuse, says=('line 1', 'value differs'))
    _pack(LINES[:2], 'out', '--resume', call=refuse, says=('has 3', 'only 2'))
    assert files('out') == before
    _pack(LINES[:7], 'shards', '--shard-length', '3')
    _pack(LINES, 'shards', '--shard-length', '3', '--resume')
    _pack(LINES, 'whole', '--shard-length', '3')
    assert _datapoints('shards') == ROWS == _datapoints('whole')


def _datapoints(path):
    return run('get', path, ':').lines


def append_adds_every_line_to_a_sharded_dataset():
    shards = ['--shard-length', '4']
    _pack(LINES[:6], 'out', *shards)
    done = _pack(LINES[2:5], 'out', '--append', *shards).out
    assert done == b'out: 3 datapoints\n', done
    assert _datapoints('out') == ROWS[:6] + ROWS[2:5]
    assert read('out')['shards'] == [4, 2, 3]
    _pack(LINES[:1], 'out', '--append')
    assert _datapoints('out') == ROWS[:6] + ROWS[2:5] + ROWS[:1]
    # What a killed pack left unfinished is part of an input: it is finished and
    # counted first, and the rest of that input appended after that.
    _kill_after(2, 'out', '--append', *shards)
    before = files('out')
    _pack(LINES[7:8], 'out', '--append', *shards, call=refuse,
          says=('out/000004: unfinished (datapoints: 2)', 'bags recover',
                'bags info', 'append the rest'))
    assert files('out') == before
    assert b'out/000004: finished, 2 datapoints kept' in run(
        'recover', 'out').out
    _pack(LINES[7:8], 'out', '--append', *shards)
    assert _datapoints('out')[10:] == ROWS[:2] + ROWS[7:8]
    _pack(LINES[:2], 'plain')
    before = files('plain')
    for options in [], shards:
        _pack(LINES, 'plain', '--append', *options, call=refuse,
              says=('plain', 'not sharded: cannot append'))
    assert files('plain') == before
    _pack(LINES[:2], 'new', '--append', call=refuse, says='new: does not exist; omit --append')
    assert not os.path.exists('new')


@each([[], ['--idx'], ['--no-checksum'], ['--no-checksum', '--idx']])
def append_follows_the_dataset_and_needs_no_spec(options):
    shards = ['--shard-length', '2']
    _pack(LINES[:2], 'out', *shards, *options)
    pathlib.Path('more.jsonl').write_bytes(LINES[2])
    run('pack', 'more.jsonl', 'out', '--append')
    run('pack', '-', 'out', '--append', stdin=LINES[3])
    _pack(LINES[:6], 'out', *shards, '--resume')
    assert _datapoints('out') == ROWS[:6]
    crc, idx = '--no-checksum' not in options, '--idx' in options
    for number in range(4):
        names = {name.split('.')[-1] for name in os.listdir(f'out/{number:06}')}
        assert ('crc' in names, 'idx' in names) == (crc, idx), names
    said = run('verify', 'out').out.decode()
    assert said.endswith('with checksums\n' if crc else 'without checksums\n')
    before = files('out')
    for word, wrong in (('--checksum', not crc), ('--no-checksum', crc),
                        ('--idx', not idx)):
        for how in '--append', '--resume':
            if wrong:
                _pack(LINES[:7], 'out', *shards, how, word, call=refuse,
                      says=('out: has ', word))
    assert files('out') == before
    refuse('pack', 'more.jsonl', 'new', '--append', code=2, says='--spec')
    pathlib.Path('spec.json').write_text('{"n": "int(8)"}')
    refuse('pack', 'more.jsonl', 'out', '--append')


def a_finalized_dataset_is_appended_to_and_not_resumed():
    shards = ['--shard-length', '4', '--shard-stop', '2']
    for worker in '0', '1':
        _pack(LINES[:18], 'out', *shards, '--shard-start', worker)
    # Without a gap there is nothing to renumber, and workers may go on.
    run('catalogue', 'out')
    before = files('out')
    run('finalize', 'out')
    assert files('out') == before
    os.rename('out/000005', 'out/000007')
    run('finalize', 'out')
    before['000000/finalized'] = b''
    assert files('out') == before
    for worker in '0', '1':
        for options in [], ['--resume']:
            if worker == '0' or options:
                _pack(LINES[:18], 'out', *shards, '--shard-start', worker,
                      *options, call=refuse, says='out')
    _pack(LINES[:18], 'out', *shards, '--resume', call=refuse,
          says=('out: finalized', '--append'))
    assert files('out') == before
    # A copy is finalized as well.
    run('copy', 'out', 'copy')
    assert files('copy') == before
    _pack(LINES[18:24], 'out', '--append', '--shard-length', '4')
    _pack(LINES[24:25], 'out', '--append')
    assert _datapoints('out')[18:] == ROWS[18:25]
    assert sorted(row['n'] for row in _datapoints('out')) == list(range(25))
    assert read('out')['shards'] == [4, 4, 4, 4, 1, 1, 4, 2, 1]
    # Two at once: their shards follow all others, with a gap that finalize closes.
    for worker in '0', '1':
        _pack(LINES[25:40], 'out', '--append', *shards, '--shard-start', worker)
    run('finalize', 'out')
    assert sorted(row['n'] for row in _datapoints('out')) == list(range(40))
    run('verify', 'out')


def an_append_killed_at_the_start_of_a_later_shard_is_not_repeated():
    _pack(LINES[:4], 'out', '--shard-length', '4')
    # As a kill leaves it before the first flush. The datapoints of 000000 may be those
    # of the same input.
    os.mkdir('out/000001')
    shutil.copy('out/000000/spec.json', 'out/000001/spec.json.partial')
    before = files('out')
    _pack(LINES[:5], 'out', '--append', call=refuse,
          says=('out/000001: unfinished (datapoints: 0)', 'bags recover', 'bags info',
                'append the rest'))
    assert files('out') == before
    assert b'out/000001: contains no datapoint, removed' in run('recover', 'out').out
    _pack(LINES[4:6], 'out', '--append')
    assert _datapoints('out') == ROWS[:6]
    # There is nothing before the first shard.
    os.makedirs('new/000000')
    shutil.copy('out/000000/spec.json', 'new/000000/spec.json.partial')
    _pack(LINES[:2], 'new', '--append')
    assert _datapoints('new') == ROWS[:2]


def a_killed_append_after_finalize_is_not_repeated():
    _pack(LINES[:4], 'out', '--shard-length', '4')
    os.rename('out/000000', 'out/000001')
    run('finalize', 'out')
    _kill_after(2, 'out', '--append', '--shard-length', '4')
    before = files('out')
    # With 2, the shard that was left would be full.
    for length in '4', '2':
        _pack(LINES[:5], 'out', '--append', '--shard-length', length, call=refuse,
              says=('out/000001: unfinished (datapoints: 2)', 'bags recover',
                    'bags info', 'append the rest'))
        assert files('out') == before
    run('recover', 'out')
    assert run('info', 'out', '--json').json['length'] == 6
    _pack(LINES[2:5], 'out', '--append', '--shard-length', '4')
    assert _datapoints('out') == ROWS[:4] + ROWS[:5]


def a_worker_whose_shard_was_lost_does_not_resume():
    options = ['--shard-length', '4', '--shard-start', '1', '--shard-stop', '2']
    _pack(LINES[:30], 'out', *options)
    assert sorted(os.listdir('out')) == ['000001', '000003', '000005', '000007']
    subprocess.run(['rm', '-r', 'out/000003'], check=True)
    before = files('out')
    for how in '--resume', '--append':
        _pack(LINES, 'out', how, *options, call=refuse,
              says=('out: missing shards 3 (found 3 of 4)', 'other worker'))
    subprocess.run(['rm', '-r', 'out/000001'], check=True)
    before = files('out')
    for how in [], ['--resume']:
        _pack(LINES, 'out', *how, *options, call=refuse,
              says=('out: missing shards 1, 3 (found 2 of 4)', 'other worker'))
    assert files('out') == before


@each(['1 of 1', '0 of 3', '1 of 3'])
def resuming_as_another_worker_is_noticed(which):
    start, stop = which.split(' of ')
    for worker in '0', '1':
        _pack(LINES[:30], 'out', '--shard-length', '4', '--shard-stop', '2',
              '--shard-start', worker)
    before = files('out')
    start = '0' if stop == '1' else start
    _pack(LINES, 'out', '--shard-length', '4', '--shard-stop', stop,
          '--shard-start', start, '--resume', call=refuse, says='value differs')
    assert {name: files('out').get(name) for name in before} == before


def resuming_after_recover_continues():
    for options in [], ['--shard-length', '10']:
        out = f'out{len(options)}'
        _kill_after(25, out, *options)
        run('recover', out)
        if options:
            assert b'35 datapoints, after 25' in \
                _pack(LINES, out, '--resume', *options).out
            assert _datapoints(out) == ROWS
            continue
        _pack(LINES, out, '--resume', call=refuse,
              says=('line 26', 'finished with 25 datapoints'))
        assert b'already complete' in _pack(LINES[:25], out, '--resume').out
        changed = json.dumps({**ROWS[24], 'n': 7}).encode()
        _pack(LINES[:24] + [changed], out, '--resume', call=refuse,
              says=('line 25', '"n"', 'value differs from datapoint 24'))


def the_loser_of_a_race_is_not_told_to_remove_what_the_other_writes():
    for i in range(40):
        words = [harness.PROGRAM, 'pack', '-', f'out{i}', '--spec', 'n=int',
                 '--no-sync', '--resume']
        jobs = [subprocess.Popen(words, stdin=subprocess.PIPE,
                                 stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE) for _ in range(4)]
        said = [job.communicate(b'{"n": 1}\n')[1].decode() for job in jobs]
        assert not [line for line in said if 'remove it' in line], said
        assert '' in said, said


def a_pack_without_checksums_is_not_resumed_with_them():
    bad = LINES[0] + LINES[1] + b'{'
    _pack([bad], 'out', '--no-checksum', call=refuse, says='2 datapoints are kept')
    before = files('out')
    for options in [], ['--checksum']:
        _pack(LINES[:3], 'out', '--resume', *options, call=refuse,
              says=('out: was started without checksums', '--no-checksum', 'bags recover'))
    assert files('out') == before
    _pack(LINES[:3], 'out', '--resume', '--no-checksum')
    assert _datapoints('out') == ROWS[:3]


def resuming_with_other_shard_lengths_goes_on_with_those():
    _pack(LINES[:15], 'out', '--shard-length', '10')
    _pack(LINES, 'out', '--shard-length', '20', '--resume')
    assert _datapoints('out') == ROWS
    assert read('out')['shards'] == [10, 5, 20, 20, 5]


def a_manifest_from_a_closed_standard_input_is_an_error():
    for out in 'out', 'out.bag':
        words = [harness.PROGRAM, 'pack', '-', out]
        spec = [] if 'bag' in out else ['--spec', 'n=int']
        done = subprocess.run(
            ['sh', '-c', '"$@" <&-', 'sh', *words, *spec], capture_output=True)
        assert done.returncode == 1, done
        assert b'standard input: cannot read' in done.stderr, done.stderr
        assert not os.path.exists(out)
    done = subprocess.run(['sh', '-c', '"$@" <&-', 'sh', harness.PROGRAM, 'help'],
                          capture_output=True)
    assert done.returncode == 0


def a_bad_line_keeps_what_came_before_it():
    bad = LINES[:30] + [b'{"n": "x", "words": []}\n'] + LINES[31:]
    for which, options in OPTIONS.items():
        if 'worker' in which:
            continue
        out = which.replace(' ', '-')
        _pack(bad, out, *options, call=refuse,
              says=('line 31: field "n"', out, '30 datapoints are kept',
                    '--resume continues'))
        done = _pack(LINES, out, '--resume', *options).out
        assert b'30 datapoints, after 30 that existed' in done, done
        assert _datapoints(out) == ROWS
    _pack(LINES[:10], 'out', '--shard-length', '4')
    _pack(bad[28:], 'out', '--append', '--shard-length', '4', call=refuse,
          says=('line 3', '2 datapoints are kept', 'append only the others'))
    _pack(LINES[30:], 'out', '--append', '--shard-length', '4')
    assert _datapoints('out') == ROWS[:10] + ROWS[28:]


def what_is_complete_must_have_the_spec_and_the_checksums_asked_for():
    pathlib.Path('m.jsonl').write_bytes(b'{"n": 1}\n{"n": 2}\n')

    def again(spec, *options, **says):
        call = refuse if says else run
        return call('pack', 'm.jsonl', 'out', '--spec', spec, '--resume',
                    *options, **says).out

    run('pack', 'm.jsonl', 'out', '--spec', 'n=int(4)', '--no-checksum')
    assert b'already complete' in again('n=int(4)')
    again('n=int(8)', says='out: exists: field "n": type mismatch (int(8), int(4) in out)')
    again('n=int(4),more=utf8', says='out: exists: field "more": missing in out (utf8)')
    again('n=int(4)', '--checksum', says='bags checksum')
    run('checksum', 'out')
    assert b'already complete' in again('n=int(4)', '--checksum')
    again('n=int(4)', '--no-checksum', says='omit --no-checksum')


def recover_refuses_what_is_finished_and_damaged():
    for options in [], ['--shard-length', '4']:
        _pack(LINES[:9], 'out', *options)
        assert b'finished' in run('recover', 'out').out
        shard = 'out/000001' if options else 'out'
        bag = pathlib.Path(shard, 'words.bag')
        bag.write_bytes(bag.read_bytes()[:-9])
        before = files('out')
        done = refuse('recover', 'out', says=(str(bag), 'finished', 'bags verify'))
        assert done.out == b'' and files('out') == before
        shutil.rmtree('out')


def recover_of_an_empty_directory_has_nothing_to_do():
    os.mkdir('out')
    for options in [], ['--dry-run']:
        assert run('recover', 'out', *options).out == b'out: nothing to recover\n'
    assert os.listdir('out') == []


def recover_says_in_one_line_what_it_truncated_and_why():
    _kill_after(25, 'out', '--shard-length', '10')
    idx = pathlib.Path('out/000002/n.idx')
    idx.write_bytes(idx.read_bytes()[:-12])
    lines = run('recover', 'out', '--dry-run').out.decode().splitlines()
    assert len(lines) == 2 and lines[0].startswith(
        'out/000002: to be finished, 3 datapoints kept; '), lines
    assert ' bytes after them to be truncated: ' in lines[0], lines
    lines = run('recover', 'out').out.decode().splitlines()
    assert lines[0].startswith('out/000002: finished, 3 datapoints kept; '), lines
    assert lines[0].count('out/000002') == 1 and ' truncated: ' in lines[0], lines


def what_has_no_shards_is_recovered_with_one_line():
    _kill_after(5, 'out')
    assert run('recover', 'out', '--dry-run').out == \
        b'out: to be finished, 5 datapoints kept\n'
    assert run('recover', 'out').out == b'out: finished, 5 datapoints kept\n'
    assert run('recover', 'out').out == b'out: already finished\n'


def a_shard_that_is_not_recovered_is_named_once_in_its_line():
    _kill_after(25, 'out', '--shard-length', '10')
    pathlib.Path('out/000002/n.bag').write_bytes(b'')
    pathlib.Path('out/000002/spec.json.partial').write_text('{')
    out = refuse('recover', 'out', says=('out/000002', 'spec.json.partial')).out
    first, second = out.decode().splitlines()
    assert first.startswith('out/000002: not recovered: '), out
    assert first.count('out/000002') == 1 and 'spec.json.partial' in first, out
    assert second == 'out: 3 shards: 2 finished before, 1 not recovered', out


def resuming_needs_the_shard_options_of_before():
    _kill_after(25, 'out', '--shard-length', '10')
    refuse('pack', '-', 'out', '--spec', SPEC, '--resume', stdin=LINES[0],
           says=('out: ', 'shard options'))
    run('pack', '-', 'plain', '--spec', SPEC, stdin=LINES[0])
    refuse('pack', '-', 'plain', '--spec', SPEC, '--resume', '--shard-length',
           '10', stdin=LINES[0], says=('plain: ', 'not sharded: cannot append'))


def a_lost_spec_is_said_to_be_lost():
    run('pack', '-', 'out', '--spec', SPEC, '--no-sync', stdin=LINES[0])
    os.remove('out/spec.json')
    for command in ['info', 'out'], ['verify', 'out'], ['recover', 'out']:
        refuse(*command, says=('out', 'spec.json'))


def missing_paths_are_said_in_one_way():
    for words in (['info', 'no'], ['get', 'no', '0'], ['export', 'no', 'x'],
                  ['verify', 'no'], ['recover', 'no'], ['finalize', 'no'],
                  ['checksum', 'no']):
        refuse(*words, says=('no: ', 'No such file or directory'))


def recover_of_what_nobody_left_is_an_error():
    refuse('recover', 'nowhere', says='nowhere')
    pathlib.Path('mine/0').mkdir(parents=True)
    pathlib.Path('mine/0/precious.bag').write_bytes(b'precious')
    refuse('recover', 'mine', says='mine')
    assert pathlib.Path('mine/0/precious.bag').read_bytes() == b'precious'
    refuse('recover', code=2)


def the_remedies_are_options_of_the_command():
    harness.write_lines('m.jsonl', [{'n': i} for i in range(4)] + ['bad\n'])
    refuse('pack', 'm.jsonl', 'a; b', '--spec', 'n=int', '--shard-length', '3')
    for words in (['info'], ['get', ':'], ['export', 'x'], ['sheet', 'x.png']):
        said = refuse(words[0], 'a; b', *words[1:]).err
        assert said.startswith('bags: a; b/000001: unfinished'), said
        assert 'BAGS_' not in said and said.count('--live') == 1, said
        assert said.count('recover') == said.count('--skip-unfinished') == 1, said
    run('recover', 'a; b')
    subprocess.run(['rm', '-r', 'a; b/000000'], check=True)
    said = refuse('info', 'a; b', says='missing').err
    assert said.count('--allow-gaps') == 1 and 'allow_gaps' not in said, said
    assert said.count('finalize') == 1, said


def an_unfinished_shard_is_named_before_the_gap_that_it_explains():
    run('pack', '-', 'out', '--spec', SPEC, '--no-sync', '--shard-length', '20',
        stdin=b''.join(LINES))
    pathlib.Path('out/000005').mkdir()
    said = refuse('info', 'out', says='000005').err
    assert 'missing' not in said, said
    refuse('info', 'out', '--skip-unfinished', says=('missing', '3, ', '4'))


def finalize_prints_which_numbers_were_missing():
    harness.pack([{'n': i} for i in range(4)], 'n=int', 'out', '--shard-length', '1')
    for before, after in (('000003', '000007'), ('000002', '000004')):
        pathlib.Path('out', before).rename(pathlib.Path('out', after))
    assert run('finalize', 'out').out == \
        b'out: 2 shards renamed; missing before: 000002 to 000003, 000005 to 000006\n'
    assert run('finalize', 'out').out == b'out: 0 shards renamed\n'
