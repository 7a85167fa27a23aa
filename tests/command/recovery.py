"""Packs that are killed: recover, and --append."""
import json
import os
import pathlib
import signal
import subprocess
import time

import harness
from harness import each, files, read, refuse, run

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


def _kill_after(lines, out, *options):
    """Feed these many lines, wait until they were flushed, and kill it."""
    job = _start(out, *options)
    job.stdin.write(b''.join(LINES[:lines]))
    job.stdin.flush()
    time.sleep(1.3)
    assert job.poll() is None, job.stderr.read()
    job.send_signal(signal.SIGKILL)
    job.communicate()


@each(list(OPTIONS))
def a_killed_pack_is_started_again_until_it_is_done(which):
    options = OPTIONS[which]
    whole = b''.join(LINES)
    run('pack', '-', 'whole', '--spec', SPEC, '--no-sync', *options,
        stdin=whole)
    for lines in (3, 29, 44):
        _kill_after(lines, 'out', '--append', *options)
    again = run('pack', '-', 'out', '--spec', SPEC, '--no-sync', '--append',
                *options, stdin=whole)
    assert b'that were there' in again.out, again.out
    assert files('out') == files('whole')
    # What is done is done: starting it once more changes nothing.
    pathlib.Path('m.jsonl').write_bytes(whole)
    run('pack', 'm.jsonl', 'out', '--spec', SPEC, '--append', *options)
    assert files('out') == files('whole')


def recover_finishes_what_was_flushed():
    _kill_after(25, 'out', '--shard-length', '10')
    before = files('out')
    assert '000002/spec.json' not in before
    refuse('info', 'out', says=('000002', 'recover'))
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


def recover_leaves_a_living_writer_alone():
    job = _start('out', '--shard-length', '10')
    job.stdin.write(b''.join(LINES[:15]))
    job.stdin.flush()
    time.sleep(1.3)
    said = refuse('recover', 'out', says=('000001', 'a writer is at work'))
    assert 'out/000001: left alone: is not finished: a writer is at work on it\n' \
        in said.out.decode(), said.out
    job.communicate(b''.join(LINES[15:]))
    assert job.returncode == 0
    assert read('out')['count'] == len(ROWS)


def what_was_flushed_is_read_while_it_is_written():
    job = _start('out', '--shard-length', '10')
    job.stdin.write(b''.join(LINES[:15]))
    job.stdin.flush()
    time.sleep(1.3)
    refuse('get', 'out', '0', says='000001')
    want = [{'n': row['n']} for row in ROWS[:15]]
    assert run('get', 'out', '0:99', 'n', '--live').lines == want
    got = run('info', 'out', '--json', '--live').json
    assert (got['length'], got['shards'], got['unfinished'], got['skipped']) \
        == (15, 2, 1, 0)
    assert b'unfinished 1, as far as flushed' in run('info', 'out', '--live').out
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
    time.sleep(1.3)
    for options in [], ['--live']:
        assert run('get', 'out.bag', '2', '--raw', *options).out == b'one'
    job.send_signal(signal.SIGKILL)
    job.communicate()
    with open('out.idx', 'ab') as journal:
        journal.write(bytes(16))
    assert run('info', 'out.bag', '--json', '--live').json['length'] == 3


def a_bag_whose_pack_was_killed_is_recovered():
    for options in [], ['--checksum']:
        job = subprocess.Popen(
            [harness.PROGRAM, 'pack', '-', 'out.bag', *options],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        job.stdin.write(b'{"blob": {"base64": "b25l"}}\n' * 3)
        job.stdin.flush()
        time.sleep(1.3)
        refuse('recover', 'out.bag', says='writer is at work')
        job.send_signal(signal.SIGKILL)
        job.communicate()
        dry = run('recover', 'out.bag', '--dry-run').out
        assert dry == b'out.bag: to be finished, 3 blobs kept\n', dry
        assert pathlib.Path('out.idx').exists()
        done = run('recover', 'out.bag').out
        assert done == b'out.bag: finished, 3 blobs kept\n', done
        assert not pathlib.Path('out.idx').exists()
        assert read('out.bag')['count'] == 3
        run('verify', 'out.bag')
        again = run('recover', 'out.bag').out
        assert again == b'out.bag: finished already\n', again
        for path in pathlib.Path().glob('out.*'):
            path.unlink()


def packs_that_sync_now_and_then_are_the_same():
    whole = b''.join(LINES)
    for kind in [], ['--shard-length', '7']:
        name = f'out{len(kind)}'
        run('pack', '-', name, '--spec', SPEC, *kind, stdin=whole)
        run('pack', '-', name + 's', '--spec', SPEC, '--sync-size', '100K',
            *kind, stdin=whole)
        assert files(name) == files(name + 's')
    refuse('pack', '-', 'x', '--spec', SPEC, '--sync-size', '1', '--no-sync',
           code=2, says='exclude')
    refuse('pack', '-', 'x', '--spec', SPEC, '--sync-size', 'much', code=2,
           says='size')
    assert not pathlib.Path('x').exists()


def what_another_manifest_packed_is_not_appended_to():
    _kill_after(25, 'out', '--shard-length', '10')
    refuse('pack', '-', 'out', '--spec', SPEC, '--append', '--shard-length',
           '10', stdin=b''.join(LINES[:20]), says='another manifest')
    refuse('pack', '-', 'out', '--spec', 'n=int(4)', '--append',
           '--shard-length', '10', stdin=b'{"n": 1}\n', says='other fields')
    run('recover', 'out')
    assert read('out')['count'] == 25


def what_is_complete_must_have_the_spec_and_the_checksums_asked_for():
    pathlib.Path('m.jsonl').write_bytes(b'{"n": 1}\n{"n": 2}\n')

    def again(spec, *options, **says):
        call = refuse if says else run
        return call('pack', 'm.jsonl', 'out', '--spec', spec, '--append',
                    *options, **says).out

    run('pack', 'm.jsonl', 'out', '--spec', 'n=int(4)')
    assert b'complete already' in again('n=int(4)')
    again('n=int(8)', says='other fields')
    again('n=int(4),more=utf8', says='other fields')
    again('n=int(4)', '--checksum', says='bags checksum')
    run('checksum', 'out')
    assert b'complete already' in again('n=int(4)', '--checksum')


def recover_says_in_one_line_what_it_cut_and_why():
    _kill_after(25, 'out', '--shard-length', '10')
    idx = pathlib.Path('out/000002/n.idx')
    idx.write_bytes(idx.read_bytes()[:-12])
    lines = run('recover', 'out', '--dry-run').out.decode().splitlines()
    assert len(lines) == 2 and lines[0].startswith(
        'out/000002: to be finished, 3 datapoints kept; '), lines
    assert lines[0].endswith(
        ' bytes behind to be cut off: a journal ends before its blobs'), lines
    lines = run('recover', 'out').out.decode().splitlines()
    assert lines[0].startswith('out/000002: finished, 3 datapoints kept; '), lines
    assert lines[0].count('out/000002') == 1 and ' cut off: ' in lines[0], lines


def what_has_no_shards_is_recovered_with_one_line():
    _kill_after(5, 'out')
    assert run('recover', 'out', '--dry-run').out == \
        b'out: to be finished, 5 datapoints kept\n'
    assert run('recover', 'out').out == b'out: finished, 5 datapoints kept\n'
    assert run('recover', 'out').out == b'out: finished already\n'


def a_shard_that_is_not_recovered_is_named_once_in_its_line():
    _kill_after(25, 'out', '--shard-length', '10')
    pathlib.Path('out/000002/n.bag').write_bytes(b'')
    pathlib.Path('out/000002/spec.json.partial').write_text('{')
    out = refuse('recover', 'out', says='out/000002: its spec.json.partial').out
    assert out.decode().splitlines() == [
        'out/000002: not recovered: its spec.json.partial is damaged',
        'out: 3 shards: 2 finished before, 1 not recovered'], out


def append_without_the_shard_options_says_the_way():
    _kill_after(25, 'out', '--shard-length', '10')
    refuse('pack', '-', 'out', '--spec', SPEC, '--append', stdin=LINES[0],
           says=('out: is a dataset with shards', 'shard_length'))


def a_lost_spec_is_said_to_be_lost():
    run('pack', '-', 'out', '--spec', SPEC, '--no-sync', stdin=LINES[0])
    os.remove('out/spec.json')
    for command in ['info', 'out'], ['verify', 'out'], ['recover', 'out']:
        refuse(*command, says='out: its spec.json is lost')


def missing_paths_are_said_in_one_way():
    for words in (['info', 'no'], ['get', 'no', '0'], ['export', 'no', 'x'],
                  ['verify', 'no'], ['recover', 'no'], ['finalize', 'no'],
                  ['checksum', 'no']):
        said = refuse(*words).err
        assert said == \
            'bags: no: cannot open: No such file or directory\n', (words, said)


def recover_of_what_nobody_left_is_an_error():
    refuse('recover', 'nowhere', says='nowhere')
    pathlib.Path('empty').mkdir()
    refuse('recover', 'empty', says='no dataset')
    pathlib.Path('mine/0').mkdir(parents=True)
    pathlib.Path('mine/0/precious.bag').write_bytes(b'precious')
    refuse('recover', 'mine', says='spec.json.partial')
    assert pathlib.Path('mine/0/precious.bag').read_bytes() == b'precious'
    refuse('recover', code=2)


def an_unfinished_shard_is_named_before_the_gap_that_it_explains():
    run('pack', '-', 'out', '--spec', SPEC, '--no-sync', '--shard-length', '20',
        stdin=b''.join(LINES))
    pathlib.Path('out/000005').mkdir()
    said = refuse('info', 'out', says='000005').err
    assert 'missing' not in said, said
    refuse('info', 'out', '--skip-unfinished', says='missing: 000003, 000004')
