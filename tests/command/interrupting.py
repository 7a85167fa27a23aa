"""Ctrl-C and SIGTERM: what is kept, the command that continues, and how it ended."""
import io
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tarfile
import threading
import time
import zlib

import harness
from harness import (HANG, each, files, has_codec, pack, refuse, run, stop, wait_for,
                     write_lines)
from server import Server

SIGNALS = [signal.SIGINT, signal.SIGTERM]
SPEC = ('--spec', 'n=int(4)')
# A server that does not answer is waited for until a signal comes.
ENVIRONMENT = {**os.environ, 'BAGS_RETRY_SECONDS': '9999', 'BAGS_STALL_SECONDS': '9999'}


def _start(*words, **options):
    return subprocess.Popen([harness.PROGRAM, *map(str, words)],
                            stdin=options.pop('stdin', subprocess.DEVNULL),
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=ENVIRONMENT, **options)


def _end(job, number):
    """It ended by this signal; returns the reason, and the command that continues."""
    return _parse(job, number, job.communicate(timeout=HANG)[1].decode())


def _parse(job, number, error):
    assert job.returncode == -number, (job.returncode, error)
    lines = error.splitlines()
    assert lines[0].startswith('bags: interrupted'), error
    next_step, _, command = ''.join(lines[1:]).partition(': ')[2].partition(': ')
    return lines[0], next_step, command


def _interrupt(number, ready, *words):
    """Interrupt a command once this is true; None: it has ended before."""
    job = _start(*words)
    while not ready() and job.poll() is None:
        time.sleep(0.0005)
    job.send_signal(number)
    error = job.communicate(timeout=HANG)[1].decode()
    return _parse(job, number, error) if job.returncode else None


def _shell(command):
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, env=ENVIRONMENT,
                          stdout=subprocess.PIPE, timeout=HANG)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout.decode()


def _png():
    def chunk(name, data):
        return struct.pack('>I', len(data)) + name + data + struct.pack(
            '>I', zlib.crc32(name + data))
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack(
        '>IIBBBBB', 1, 1, 8, 0, 0, 0, 0)) + chunk(
            b'IDAT', zlib.compress(b'\0\0')) + chunk(b'IEND', b'')


def _manifest(count):
    return write_lines('the manifest.jsonl', [{'n': i} for i in range(count)])


def _images(count):
    os.mkdir('the images')
    for i in range(count):
        pathlib.Path(f'the images/{i:05}.png').write_bytes(_png())
    return 'the images'


def _tar(count):
    with tarfile.open('the.tar', 'w') as archive:
        for i in range(count):
            member = tarfile.TarInfo(f'{i:06}.txt')
            member.size = 6
            archive.addfile(member, io.BytesIO(b'%06d' % i))
    return 'the.tar'


WRITERS = {
    'pack': lambda count: ('pack', _manifest(200 * count), *SPEC),
    'pack in shards': lambda count: (
        'pack', _manifest(200 * count), *SPEC, '--shard-length', 90 * count),
    'images': lambda count: ('images', _images(count)),
    'import': lambda count: ('import', _tar(4 * count)),
}


@each([(name, number) for number in SIGNALS for name in WRITERS])
def a_writer_keeps_its_datapoints_and_names_the_command(case):
    which, number = case
    if which == 'images' and not has_codec('png'):
        return
    count, said = 100, None
    while said is None:
        shutil.rmtree('the images', ignore_errors=True)
        shutil.rmtree('the out', ignore_errors=True)
        words = [*WRITERS[which](count)]
        words[2:2] = ['the out', '--no-sync']
        said = _interrupt(number, lambda: list(pathlib.Path().rglob('refs.bag')), *words)
        count *= 2
    reason, next_step, command = said
    if 'kept' in reason:
        assert 'the out' in reason and next_step == 'continue with', said
        assert ' --resume ' in command and "'the out'" in command, said
        assert not list(pathlib.Path('the out').rglob('*.bag')) or not \
            (pathlib.Path('the out') / 'spec.json').exists()
    else:
        assert next_step == 'start again with', said
        assert not os.path.exists('the out'), said
    _shell(command)
    words[2] = 'whole'
    run(*words)
    assert files('the out') == files('whole')


def a_writer_that_waits_for_input_is_interrupted():
    job = _start('pack', '-', 'out', *SPEC, stdin=subprocess.PIPE)
    job.stdin.write(b'{"n": 1}\n{"n": 2}\n')
    job.stdin.flush()
    refs = pathlib.Path('out/refs.idx')
    wait_for(lambda: refs.exists() and refs.stat().st_size == 16, job)
    job.send_signal(signal.SIGTERM)
    reason, next_step, command = _end(job, signal.SIGTERM)
    assert 'out: 2 datapoints are kept' in reason, reason
    run('pack', '--resume', '-', 'out', *SPEC,
        stdin=b'{"n": 1}\n{"n": 2}\n{"n": 3}\n')
    assert command == f'{harness.PROGRAM} pack --resume - out --spec n=int(4)'.replace(
        'n=int(4)', "'n=int(4)'"), command


def a_bag_and_a_dataset_to_which_was_appended_keep_their_blobs():
    pack([{'n': 0}], 'n=int(4)', 'y', '--shard-length', 9)
    for out, flushed, options, said in (
            ('x.bag', 'x.bag', [], '`bags export x.bag OUT --live` reads it'),
            ('y', 'y/000001/n.bag', ['--append', *SPEC], 'append only the others')):
        job = _start('pack', '-', out, *options, stdin=subprocess.PIPE)
        line = b'{"blob": {"base64": "AAAA"}}\n' if out == 'x.bag' else b'{"n": 1}\n'
        job.stdin.write(line)
        job.stdin.flush()
        bag = pathlib.Path(flushed)
        wait_for(lambda: bag.exists() and bag.stat().st_size, job)
        job.send_signal(signal.SIGINT)
        reason, _, command = _end(job, signal.SIGINT)
        assert '1 ' in reason and said in reason and not command, reason
    assert b'1 blob' in run('export', 'x.bag', 'OUT', '--live').out
    assert run('get', 'y', ':').lines == [{'n': 0}, {'n': 1}]


def a_signal_that_is_ignored_stays_ignored():
    job = _start('pack', '-', 'out', *SPEC, stdin=subprocess.PIPE,
                 preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    job.stdin.write(b'{"n": 1}\n')
    job.stdin.flush()
    wait_for(lambda: os.path.exists('out/refs.bag'), job)
    job.send_signal(signal.SIGINT)
    job.communicate(b'{"n": 2}\n', timeout=HANG)
    assert job.returncode == 0
    assert run('get', 'out', ':').lines == [{'n': 1}, {'n': 2}]


def _shards(count):
    pack([{'n': i} for i in range(count)], 'n=int(4)', 'pets', '--shard-length', 1,
         '--no-checksum')


def _unfinished(count):
    refuse('pack', write_lines('m.jsonl', [{'n': 1}, 'bad\n']), 'pets', *SPEC,
           '--shard-length', 9, says='1 datapoint is kept')
    for i in range(1, count):
        shutil.copytree('pets/000000', f'pets/{i:06}')


def _gap(count):
    _shards(count)
    shutil.rmtree('pets/000000')


LOCAL = {
    'checksum': (_shards, ['checksum', 'pets'],
                 lambda: list(pathlib.Path('pets').rglob('*.crc'))),
    'recover': (_unfinished, ['recover', 'pets'],
                lambda: list(pathlib.Path('pets').rglob('spec.json'))),
    'finalize': (_gap, ['finalize', 'pets'], lambda: os.path.exists('pets/000000')),
    'index': (lambda count: pack([{'n': i} for i in range(100 * count)], 'n=int(4)',
                                 'pets', '--no-checksum'), ['index', 'pets', 'n'],
              lambda: len(os.listdir('pets')) > 3),
}


@each(list(LOCAL))
def what_changes_a_dataset_is_continued(which):
    make, words, ready = LOCAL[which]
    count, said = 60, None
    while said is None:
        shutil.rmtree('pets', ignore_errors=True)
        make(count)
        said = _interrupt(signal.SIGINT, ready, *words)
        count *= 2
    assert said[1] in ('continue with', 'start again with'), said
    assert said[2].endswith(' '.join(words)), said
    _shell(said[2])
    run('verify', 'pets')
    assert ready()


@each(['copy', 'zip', 'load', 'sheet', 'verify', 'export', 'derive', 'sql', 'get'])
def a_command_that_waits_for_a_server_ends_at_once(which):
    pack([{'n': i, 'data': {'base64': 'AAAA' * 30000}, 'photo': {
        'base64': 'iVBORw0KGgo='}} for i in range(9)], 'n=int(4),data=bytes,photo=png',
         'site/pets', '--unchecked')
    waiting, go = threading.Event(), threading.Event()

    def fault(handler, _):
        name = handler.path.split('?')[0]
        is_tail = (handler.headers.get('Range') or '')[6:7] == '-'
        if name.endswith('photo.bag' if which == 'sheet' else 'data.bag') and \
                not (is_tail and which in ('copy', 'zip', 'export')):
            waiting.set()
            go.wait()
        return False

    with Server('site', index=True, fault=fault) as server:
        url = server.url.replace('://', '://me:secret@') + '/pets?key=hidden'
        words = {'copy': [url, 'out'], 'zip': [url, 'out.zip'], 'load': [url],
                 'sheet': [url, 'out.png'], 'verify': [url], 'export': [url, 'out'],
                 'derive': [url, 'out', '--copy', '--where', 'hex(data) > 3'],
                 'sql': [url, 'SELECT hex(data) FROM data'], 'get': [url, ':']}[which]
        if which == 'sheet' and not has_codec('png') or \
                which in ('derive', 'sql') and 'sql' not in run('--version').out.decode():
            return
        job = _start(which, *words)
        wait_for(waiting.is_set, job)
        if which == 'zip':
            wait_for(lambda: os.path.exists('out.zip.partial'), job)
        job.send_signal(signal.SIGINT)
        reason, next_step, command = _end(job, signal.SIGINT)
        go.set()
    assert 'secret' not in command and 'hidden' not in command, command
    if which in ('copy', 'export'):
        assert 'kept' in reason and next_step == 'continue with', reason
    if which not in ('copy', 'export', 'get'):
        assert next_step == 'start again with' and server.url + '/pets' in command
    if which not in ('copy', 'export'):
        assert not [name for name in os.listdir() if name.startswith('out')]


def a_second_signal_ends_a_writer_that_does_not_react():
    """It waits for the reader of a pipe that is full."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, bytes(4096))
    except BlockingIOError:
        os.set_blocking(writer, True)
    job = subprocess.Popen(
        [harness.PROGRAM, 'pack', write_lines('m.jsonl', [{'n': 1}]), 'out', *SPEC],
        stdout=writer, stderr=subprocess.PIPE)
    wait_for(lambda: os.path.exists('out/spec.json'), job)
    stop(job)  # so that both come at once
    job.send_signal(signal.SIGINT)
    job.send_signal(signal.SIGTERM)  # the same, passed on by a parent process
    job.send_signal(signal.SIGCONT)
    time.sleep(2)
    assert job.poll() is None
    job.send_signal(signal.SIGTERM)
    reason, next_step, command = _end(job, signal.SIGTERM)
    os.close(reader)
    os.close(writer)
    assert 'out: the data that was flushed is kept' in reason, reason
    assert ' --resume ' in command and next_step == 'continue with', command
    assert 'already complete' in _shell(command)


def a_zip_that_was_killed_leaves_nothing_to_a_later_one():
    pack([{'data': {'base64': 'AAAA' * 300000}}], 'data=bytes', 'pets')
    killed = False
    while not killed:
        job = _start('zip', 'pets', 'out.zip')
        while not os.path.exists('out.zip.partial') and job.poll() is None:
            pass
        job.kill()
        job.communicate()
        killed = os.path.exists('out.zip.partial')
        pathlib.Path('out.zip').unlink(missing_ok=True)
    run('zip', 'pets', 'out.zip')
    assert [name for name in os.listdir() if name.startswith('out')] == ['out.zip']
