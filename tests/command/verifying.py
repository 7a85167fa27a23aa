"""Finding every fault: what is printed, by how many threads, and the summary."""
import contextlib
import os
import pathlib
import struct
import subprocess

import harness
from harness import each, has_sql, pack, refuse, run
from server import Server

ONLY = 'only tables and references compared'
SPEC = 'n=int(4),words=utf8[]'


def _dataset(shards=4):
    pack([{'n': i, 'words': [str(i)] * (i % 3)} for i in range(9 * shards)],
         SPEC, 'out', '--no-checksum', '--shard-length', '9')


def _patch(path, offset, data):
    path = pathlib.Path(path)
    raw = bytearray(path.read_bytes())
    raw[offset:offset + len(data)] = data
    path.write_bytes(raw)


def _lines(result):
    return sorted(result.out.decode().splitlines()[:-1])


def _damage():
    """Six faults, as they are printed."""
    _patch('out/000000/n.bag', 36 + 16, struct.pack('<Q', 3))
    _patch('out/000001/refs.bag', 1, b'\x63')
    pathlib.Path('out/000002/words.bag').unlink()
    pathlib.Path('out/000003/spec.json').rename('out/000003/spec.json.partial')
    pathlib.Path('out/000004').rename('out/000005')
    _patch('out/000005/words.bag', 0, b'\xff')
    return [('out/000000', 'blob 1', '(at byte 52)'),
            ('out/000001', 'datapoint 0', '99', '(at byte 0)'),
            ('out/000002', 'words', 'No such file or directory'),
            ('out/000003', 'finished'),
            ('out: ', '4', 'missing'),
            ('out/000005', 'words', 'blob 0')]


@each(['1', '2', '7'])
def verify_prints_every_fault_once(jobs):
    _dataset(5)
    good = run('verify', 'out', '--jobs', jobs, '--decode')
    assert good.out == (b'out: good: 45 datapoints in 5 shards, tables and references '
                        b'compared and values decoded, without checksums\n')
    faults = _damage()
    result = refuse('verify', 'out', '--jobs', jobs, '--decode',
                    says='out: 6 faults')
    assert result.err == ''
    lines = _lines(result)
    assert len(lines) == 6, lines
    # Each is named by its shard, what it is about, and an index in the shard.
    for fault in faults:
        found = [line for line in lines if line.startswith(fault[0])
                 and all(fact in line for fact in fault[1:])]
        assert len(found) == 1, (fault, lines)
    assert result.out.decode().splitlines()[-1].startswith('out: 6 faults; checked ')
    result = refuse('verify', 'out', '--jobs', jobs, '--allow-gaps',
                    '--skip-unfinished', says='out: 3 faults')
    assert len(_lines(result)) == 3


def verify_prints_json_too():
    _dataset(5)
    _damage()
    *faults, summary = refuse('verify', 'out', '--json', '--decode').lines
    assert summary['path'] == 'out' and summary['faults'] == len(faults) == 6
    assert summary['shown'] == 6
    assert summary['shards'] == 4 and summary['unfinished'] == 1
    found = {(f['path'], f['field'], f.get('blob'), f.get('datapoint'),
              f['offset']) for f in faults}
    assert found == {
        ('out/000000', 'n', 1, None, 52), ('out/000001', 'refs', None, 0, 0),
        ('out/000002', 'words', None, None, 0),
        ('out/000003', None, None, None, 0), ('out', None, None, None, 0),
        ('out/000005', 'words', 0, None, 0)}, found
    assert all(f['error'] and f['message'] for f in faults)


def verify_takes_several_paths():
    _dataset()
    pack([{'b': {'base64': 'AAAA'}}], 'b=bytes', 'bytes', '--no-checksum')
    result = run('verify', 'out', 'bytes', 'bytes/b.bag')
    assert result.out.decode() == (
        f'out: good: 36 datapoints in 4 shards, {ONLY}, without checksums\n'
        f'bytes: good: 1 datapoint, {ONLY}, without checksums\n'
        'bytes/b.bag: good: 1 blob, only the table compared, without checksums\n')
    _patch('bytes/refs.bag', 0, b'\xc0')
    result = refuse('verify', 'bytes', 'no/such', 'out', says='no/such')
    assert result.out.decode().endswith(
        f'out: good: 36 datapoints in 4 shards, {ONLY}, without checksums\n')


def verify_says_what_it_compared():
    """Of a URL, too."""
    _dataset(2)
    with contextlib.ExitStack() as stack:
        places = ['.']
        if harness.has_urls():
            places.append(stack.enter_context(Server('.')).url)

        def check(path, says, *options):
            for place in places:
                out = run('verify', f'{place}/{path}', *options).out.decode()
                assert out == f'{place}/{path}: good: {says}\n', out

        check('out', f'18 datapoints in 2 shards, {ONLY}, without checksums')
        check('out', '18 datapoints in 2 shards, tables and references compared and values '
              'decoded, without checksums', '--decode')
        check('out', '18 datapoints in 2 shards, quick check', '--quick')
        check('out/000000/n.bag', '9 blobs, only the table compared, without checksums')
        run('checksum', 'out')
        check('out', '18 datapoints in 2 shards, with checksums')


def what_is_not_decoded_is_named():
    """A type that no build decodes is no failure; see install.sh for one that others do."""
    pack([{'n': i, 'x': {'base64': 'AA=='}} for i in range(9)], 'n=int(4),x=strange', 'out',
         '--any-type', '--shard-length', '3')
    assert run('verify', 'out').out == b'out: good: 9 datapoints in 3 shards, with checksums\n'
    line = 'out: field "x": 9 blobs not decoded: no codec for type "strange"'
    said = run('verify', 'out', '--decode', '--jobs', '2').out.decode()
    assert said == (f'{line}\nout: no fault found; checked 9 datapoints in 3 shards, 9 blobs without '
                    'a codec not decoded, with checksums\n'), said
    one, summary = run('verify', 'out', '--decode', '--json').lines
    assert one == {'path': 'out', 'field': 'x', 'undecoded': 9, 'message': line}, one
    assert summary['undecoded'] == 9 and summary['faults'] == 0


def quick_verify_reads_no_tables():
    _dataset(1)
    _patch('out/000000/n.bag', 36 + 32, struct.pack('<Q', 3))
    run('verify', 'out', '--quick')
    refuse('verify', 'out')
    path = pathlib.Path('out/000000/n.bag')
    path.write_bytes(path.read_bytes()[:-1])
    refuse('verify', 'out', '--quick')


def faults_without_end_are_not_all_printed():
    table = [0] + [1 << 40, 0] * 20000 + [0]
    pathlib.Path('x.bag').write_bytes(struct.pack(f'<{len(table)}Q', *table))
    result = refuse('verify', 'x.bag', says='20000 faults, not all of them shown')
    assert len(_lines(result)) == 1000


def the_bad_table_of_a_dataset_stops_an_export():
    _dataset(1)
    _patch('out/000000/n.bag', 36 + 16, struct.pack('<Q', 3))
    run('export', 'out', 'x', code=1)
    assert not pathlib.Path('x').exists()


def a_reference_that_leads_nowhere_spoils_its_datapoint_alone():
    _dataset(1)
    _patch('out/000000/refs.bag', 1, b'\x63')
    refuse('get', 'out', '0', says='0')
    assert run('get', 'out', '1').json['n'] == 1


def what_is_no_regular_file_is_named_and_not_waited_for():
    _dataset(2)
    os.remove('out/000000/n.bag')
    os.mkfifo('out/000000/n.bag')
    os.remove('out/000001/refs.bag')
    os.symlink('refs.bag', 'out/000001/refs.bag')
    lines = _lines(refuse('verify', 'out'))
    assert len(lines) == 2, lines
    assert lines[0].startswith('out/000000/n.bag: cannot open: not a regular')
    assert lines[1].startswith('out/000001/refs.bag: cannot ')


def flushed_data_is_verified():
    """--live: finished shards, and the datapoints that a running or crashed writer has flushed."""
    for options in [], ['--no-checksum']:
        out = f'live{len(options)}'
        job = subprocess.Popen([harness.PROGRAM, 'pack', '-', out, '--spec', SPEC, '--shard-length', '2', *options], stdin=subprocess.PIPE)
        job.stdin.write(b''.join(b'{"n": %d, "words": ["a", "b"]}\n' % n for n in range(5)))
        job.stdin.flush()
        refs = pathlib.Path(out, '000002/refs.idx')
        harness.wait_for(lambda: refs.exists() and refs.stat().st_size == 8, job)
        refuse('verify', out, says='its writer is running')
        for words in [], ['--decode']:
            said = run('verify', out, '--live', *words).out.decode()
            assert said.startswith(f'{out}: good: 5 datapoints in 2 shards, with the flushed data of 1 unfinished shard, '), said
        job.kill()
        job.communicate()
        found = run('verify', out, '--live', '--json').lines[-1]
        assert (found['datapoints'], found['faults'], found['unfinished']) == (5, 0, 1)
        # A blob that is no UTF-8, or a checksum that differs.
        _patch(f'{out}/000002/words.bag', 0, b'\xff')
        said = run('verify', out, '--live', '--decode', code=1).out.decode()
        assert f'{out}: field "words": datapoint 4: item 0: invalid UTF-8' in said, said
        if options:
            run('verify', out, '--live')
        else:
            assert 'does not match its checksum' in run('verify', out, '--live', code=1).out.decode()
        refuse('verify', out, '--live', '--skip-unfinished', says='mutually exclusive', code=2)
        _patch(f'{out}/000001/n.bag', 8, struct.pack('<Q', 77))
        assert ': 1 fault' not in run('verify', out, '--live', '--decode', code=1).out.decode()


def commands_read_what_was_flushed_alike():
    job = subprocess.Popen([harness.PROGRAM, 'pack', '-', 'x', '--spec', SPEC], stdin=subprocess.PIPE)
    job.stdin.write(b'{"n": 3, "words": []}\n{"n": 4, "words": ["a"]}\n')
    job.stdin.flush()
    harness.wait_for(lambda: os.path.exists('x/refs.idx') and os.path.getsize('x/refs.idx') == 16, job)
    commands = [(['info', 'x', '--json'], b'"length": 2'), (['get', 'x', ':'], b'"n": 4'), (['verify', 'x'], b'2 datapoints'),
                (['load', 'x', '--in-order', '--indices'], b'[0, 1]'), (['stats', 'x', 'n'], b'"mean": [3.5]')]
    if has_sql():
        commands.append((['sql', 'x', 'SELECT sum(n) FROM data'], b'7'))
    for running in True, False:
        for words, part in commands:
            refuse(*words, says='unfinished')
            assert part in run(*words, '--live').out, words
        if running:
            job.kill()
            job.communicate()
