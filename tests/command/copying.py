"""bags copy between local directories: at the same time, of what changes, of what is
damaged, into itself."""
import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

import harness
from harness import HANG, PATIENT, each, files, pack, refuse, run, stop, wait_for
from server import Server

LOCKED = 'locked by another running copy'


def _pack(name, first, *options):
    pack([{'n': first + i, 'm': i} for i in range(200)], 'n=int(4),m=int(4)', name,
         *options)
    if '--shard-length' in options:
        run('catalogue', name)  # a copy has one, too


@contextlib.contextmanager
def _lock(path):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('w') as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
        assert path.exists()
    path.unlink()


def _start(*words):
    return subprocess.Popen([harness.PROGRAM, *words], stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, env=PATIENT)


@each([(), ('--shard-length', 50)])
def two_copies_at_once_do_not_mix(options):
    _pack('a', 0, *options)
    _pack('b', 1000, *options)
    for _ in range(8):
        copies = {name: _start('copy', name, 'out') for name in 'ab'}
        errors = {name: copy.communicate(timeout=HANG)[1] for name, copy in copies.items()}
        done = [name for name, copy in copies.items() if copy.returncode == 0]
        assert len(done) == 1, errors
        assert files('out') == files(done[0])
        shutil.rmtree('out')


def a_running_copy_excludes_others():
    _pack('a', 0)
    _pack('s', 0, '--shard-length', 50)
    with _lock('out/spec.json.copied'):
        refuse('copy', 'a', 'out', says=('out: ', LOCKED))
        refuse('copy', 's', 'out', says=('out: ', LOCKED))
        assert list(files('out')) == ['spec.json.copied']
    run('copy', 's', 'out/')
    assert files('out') == files('s')
    refuse('copy', 's', '', says='empty', code=2)
    with _lock('m.bag.copied'):
        refuse('copy', 'a/m.bag', 'm.bag', says=('m', LOCKED))
    run('copy', 'a/m.bag', 'm.bag')
    assert files('.')['m.bag'] == files('a')['m.bag']


@each([(), ('--shard-length', 50)])
def a_copy_that_was_killed_is_continued(options):
    _pack('a', 0, *options)
    _pack('b', 1000, *options)
    shutil.copytree('b', 'out')
    for spec in pathlib.Path('out').rglob('spec.json'):
        spec.rename(f'{spec}.copy')
        spec.with_name('n.bag.copy').write_text('left')
    pathlib.Path('out/spec.json.copied').write_text('left')
    run('copy', 'a', 'out')
    assert files('out') == files('a')
    # The shard's name was given, and the other not yet removed.
    spec = 'out/000000/spec.json' if options else 'out/spec.json'
    os.link(spec, f'{spec}.copy')
    refuse('copy', 'b', 'out', says='different content')
    run('copy', 'a', 'out')
    assert files('out') == files('a')
    shutil.copyfile(spec, f'{spec}.copy')
    run('copy', 'a', 'out')
    assert os.path.exists(f'{spec}.copy')
    os.remove(spec)
    os.symlink('spec.json.copy', spec)
    run('copy', 'a', 'out')
    assert os.path.exists(spec)


def _damage(how):
    if how == 'missing':
        os.remove('a/m.bag')
    else:
        os.truncate('a/m.bag', 20)


@each(['missing', 'truncated'])
def a_dataset_with_a_damaged_bag_is_not_copied(how):
    _pack('a', 0)
    _damage(how)
    said = refuse('info', 'a', says='a/m.bag').err
    for words in ('copy', 'a', 'out'), ('zip', 'a', 'out.zip'):
        assert refuse(*words).err == said
    assert not os.path.exists('out') and not os.path.exists('out.zip')


def a_field_of_which_a_part_has_no_name_is_not_copied():
    name = 'f' * 251
    pack([{name: 1}], f'{name}=int', 'a')
    error = refuse('copy', 'a', 'out', says=f'out/{name}.bag.copy: cannot create').err
    assert 'again' not in error, error


def _stopped_copy():
    """A copy of `a` that is stopped before its end."""
    while True:
        copy = _start('copy', 'a', 'out')
        while not os.path.exists('out/data.bag.copy') and copy.poll() is None:
            time.sleep(0.001)
        if stop(copy) and os.path.exists('out/data.bag.copy'):
            return copy
        copy.send_signal(signal.SIGCONT)
        copy.communicate(timeout=HANG)
        shutil.rmtree('out')


@each(['replaced', 'written'])
def a_dataset_that_changes_while_it_is_copied_is_not_copied(how):
    for name in 'a', 'b':
        with open('large', 'wb') as file:
            file.truncate(40 << 20)
        pack([{'data': {'file': 'large'}, 'n': ord(name)}], 'data=bytes,n=int(4)', name)
    copy = _stopped_copy()
    if how == 'replaced':
        os.rename('a', 'before')
        os.rename('b', 'a')
    else:
        shutil.copyfile('b/n.bag', 'a/n.bag')
    copy.send_signal(signal.SIGCONT)
    error = copy.communicate(timeout=HANG)[1].decode()
    assert copy.returncode == 1, error
    assert 'changed while it was read' in error, error
    assert not os.path.exists('out/spec.json')
    assert not [name for name in files('out') if name.endswith('.copy')]


def a_dataset_is_not_copied_into_itself():
    _pack('a', 0, '--shard-length', 50)
    before = files('a')
    for to in 'a/000004', 'a/none/more':
        refuse('copy', 'a', to, says=f'{to}: is in the directory of the dataset', code=2)
    os.symlink('a', 'link')
    for to in './a/000004', 'link/000004', os.path.abspath('a/none/more'):
        refuse('copy', 'a', to, says=f'{to}: is in the directory of the dataset', code=2)
    for to in '000004', '../a/000004', 'x/y':
        refuse('copy', '.', to, says='is in the directory of the dataset', code=2, cwd='a')
    run('copy', '.', '../beside', cwd='a')
    run('derive', '.', '../derived', cwd='a')
    assert files('beside') == files('a')
    refuse('copy', 'a/000001', 'a', says='a: already has another dataset')
    run('copy', 'a', './a')
    assert files('a') == before
    run('copy', 'a/000001', 'b/000000')


def what_a_writer_has_left_is_not_replaced():
    _pack('a', 0)
    _pack('s', 0, '--shard-length', 50)
    rows = [{'n': 7, 'm': 8}, 'bad']
    # While the writer runs, that is said, and nothing of a crash.
    for name, options in ('one', ()), ('some', ('--shard-length', 50)):
        with subprocess.Popen([harness.PROGRAM, 'pack', '-', name, '--spec', 'n=int(4)',
                               *map(str, options)], stdin=subprocess.PIPE) as writer:
            writer.stdin.write(b'{"n": 1}\n')
            writer.stdin.flush()
            wait_for(lambda: any(path.stat().st_size for path in pathlib.Path(name).rglob('n.bag')),
                     writer)
            said = refuse('copy', 's', name, says=f'{name}: already has an unfinished dataset: {name}').err
            assert said.endswith(': unfinished (no spec.json): its writer is running\n'), said
            writer.stdin.close()
            assert writer.wait() == 0
        shutil.rmtree(name)
    for name, options in ('one', ()), ('some', ('--shard-length', 50)):
        pack(rows, 'n=int(4),m=int(4)', name, *options, code=1)
        before = files(name)
        for source in 'a', 's', 'a':
            says = 'already has' if source == 'a' else 'has an unfinished dataset'
            refuse('copy', source, name,
                   says=(says, 'and no writer has locked it; run `bags recover`'))
            assert files(name) == before
        run('recover', name)
        assert run('get', name, ':').lines == [{'n': 7, 'm': 8}]


def a_copy_has_no_files_of_one_that_was_interrupted():
    _pack('a', 0, '--checksum', '--idx')
    _pack('b', 1000)
    run('copy', 'a', 'out')
    os.remove('out/spec.json')
    for left in sorted(set(files('a')) - set(files('b'))):
        refuse('copy', 'b', 'out', says='but the source has no such file')
        os.remove(pathlib.Path('out', left))
    run('copy', 'b', 'out')
    assert files('out') == files('b')
    run('copy', 'a/n.bag', 'n.bag')
    pathlib.Path('n.crc').write_bytes(b'left')
    os.remove('n.bag')
    refuse('copy', 'a/n.bag', 'n.bag', says='n.crc: already exists')
    # What is finished keeps its checksums.
    run('checksum', 'out')
    run('copy', 'b', 'out')
    run('verify', 'out')
    assert os.path.exists('out/n.crc')


def _far(name, letter, count, size):
    """A dataset in which the fields differ, and so does another letter."""
    os.makedirs('files', exist_ok=True)
    for i in range(count):
        with open(f'files/{i}', 'wb') as file:
            file.write((letter + b'%06d\n' % i) * (size // 8))
    pack([{f'f{i}': {'file': f'files/{i}'} for i in range(count)}],
         ','.join(f'f{i}=bytes' for i in range(count)), name, '--no-sync')
    shutil.rmtree('files')


def _starts(path, letter):
    try:
        with open(path, 'rb') as file:
            return file.read(1) == letter
    except FileNotFoundError:
        return False


def _killed_copy(server, words, most):
    """Kill a copy once this many bytes were sent, after which none are."""
    before, killed = server.sent, threading.Event()
    server.fault = lambda handler, _: server.sent - before >= most and killed.wait()
    copy = _start(*words)
    wait_for(lambda: server.sent - before >= most, copy)
    copy.kill()
    copy.communicate()
    server.fault = None
    killed.set()


@each([(40, 300_000), (1, 64 << 20)])
def many_transfers_are_in_flight(case):
    """Of many small files, and of one large one in ranges."""
    count, size = case
    _far('site/ds', b'a', count, size)
    waiting, enough, lock = 0, threading.Event(), threading.Lock()

    def fault(handler, _):
        nonlocal waiting
        if '.bag' not in handler.path or handler.headers['Range'].startswith('bytes=-'):
            return False
        with lock:
            waiting += 1
        if waiting >= (16 if count > 1 else 4):
            enough.set()
        return not enough.wait(HANG)

    with Server('site', index=True, fault=fault) as server:
        run('copy', server.url + '/ds', 'out', env=PATIENT)
    assert files('out') == files('site/ds') and enough.is_set()


def a_small_part_is_requested_in_advance():
    """Also when the first files of many start: that is lost if the copy is killed."""
    _far('site/ds', b'a', 8, 28 << 20)
    lengths, ended = [], threading.Event()

    def fault(handler, _):
        first, _, last = handler.headers.get('Range', 'bytes=-')[6:].partition('-')
        if '.bag' in handler.path and first:
            lengths.append(int(last) + 1 - int(first))
            ended.wait()
        return False

    with Server('site', index=True, fault=fault) as server:
        copy = _start('copy', server.url + '/ds', 'out')
        wait_for(lambda: sum(lengths) > 4 << 20, copy)
        time.sleep(1)
        assert copy.poll() is None
        copy.kill()
        copy.communicate()
        assert sum(lengths) <= 20 << 20, lengths
        ended.set()


def a_download_that_was_killed_continues():
    """At most 15% is sent again: what had arrived and was not written yet."""
    _far('site/ds', b'a', 8, 28 << 20)
    with Server('site', index=True) as server:
        words = ['copy', server.url + '/ds', 'out']
        _killed_copy(server, words, 110 << 20)
        run(*words, env=PATIENT)
        assert server.sent <= 1.15 * (224 << 20), server.sent / (224 << 20)
    assert files('out') == files('site/ds')


def a_download_of_a_bag_that_failed_continues():
    """After a kill, and after the server has failed."""
    _far('site/ds', b'a', 1, 40 << 20)
    with Server('site') as server:
        words = ['copy', server.url + '/ds/f0.bag', 'out.bag']
        _killed_copy(server, words, 10 << 20)
        most = server.sent + (10 << 20)
        server.fault = lambda handler, _: server.sent > most and handler.answer(503)
        refuse(*words, says=('HTTP 503', 'call it again to continue'),
               env={**os.environ, 'BAGS_RETRY_SECONDS': '0.1'})
        server.fault = None
        run(*words, env=PATIENT)
        assert server.sent <= 1.15 * (40 << 20), server.sent / (40 << 20)
    assert files('.')['out.bag'] == files('site/ds')['f0.bag']
    assert [name for name in os.listdir() if name.startswith('out')] == ['out.bag']


@each(['a hash', 'an ETag', 'a time', 'both'])
def a_complete_copy_transfers_nothing_again(what):
    """Unless the file, or the version of the source, is another one."""
    times = {'ds': 'Mon, 01 Jan 2024 00:00:00 GMT'}

    def fault(handler, number):
        words = handler.path.partition('?')
        handler.path = words[0]
        if words[2].startswith('v='):
            handler.path = words[0].replace('/ds', '/other')
        if not handler.local.is_file():
            return False
        data = handler.local.read_bytes()
        tag = handler.etag(data) if what == 'a hash' else f'"65000000-{len(data):x}"'
        handler.send_range(data, None if what == 'a time' else tag, **(
            {} if what in ('a hash', 'an ETag') else {'Last_Modified': times['ds']}))
        return True

    _far('site/ds', b'a', 2, 1 << 20)
    _far('site/other', b'b', 2, 1 << 20)
    with Server('site', index=True, fault=fault) as server:
        def copy(words=''):
            before = server.sent
            done = run('copy', server.url + '/ds' + words, 'out', env=PATIENT).out
            assert b' 0 files copied' in done or before == 0, done
            assert files('out') == files('site/ds')
            return server.sent - before

        assert copy() > 2 << 20
        assert copy() < 300_000
        assert copy('?sig=b') < 300_000
        if what == 'a time':
            times['ds'] = 'Mon, 01 Jan 2024 00:00:01 GMT'
            assert copy() > 2 << 20
        differs = (': out/', 'already exists with different content')  # whichever is copied first
        refuse('copy', server.url + '/ds?v=2', 'out', says=differs, env=PATIENT)
        path = pathlib.Path('out/f0.bag')
        data = path.read_bytes()
        path.write_bytes(b'x' + data[1:])
        refuse('copy', server.url + '/ds', 'out', says=differs, env=PATIENT)
        path.write_bytes(data)
        # It is compared: its hash of the content is enough, its time is not.
        assert (copy() < 300_000) == (what == 'a hash')


@each(['same', 'replaced', 'replaced twice', 'another source', 'another boot',
       'another query', 'another user', 'another signature'])
def a_download_is_never_a_mixture(how):
    """A field has arrived, one partly, and one not."""
    matches = []

    def fault(handler, _):
        given = handler.headers.get('Range') or ''
        first = int(given[6:].split('-')[0] or 0)
        if 'v=b' in handler.path or handler.headers.get('Authorization'):
            handler.path = handler.path.replace('/ds', '/b')
        if how in ('another query', 'another user'):
            handler.server.etags[handler.local] = '"65000000-7"'
        if waits and (handler.path.endswith('f2.bag') and '=-' not in given or
                      handler.path.endswith('f1.bag') and first > 3 << 20):
            waits.wait()
        if '=-' not in given and given:
            matches.append((handler.path.split('?')[0][-6:], first, handler.headers.get('If-Match')))
        return False

    def kill(letter):
        copy = _start(*words)
        part = pathlib.Path('out/f1.bag.copy')
        wait_for(lambda: _starts('out/f0.bag', letter) and _starts(part, letter) and
                 part.stat().st_size > 1 << 20, copy)
        copy.kill()
        copy.communicate()
        matches.clear()

    def choose(name):
        os.symlink(name, 'site/new')
        os.rename('site/new', 'site/ds')

    for letter in b'ab':
        _far(f'site/{letter:c}', b'%c' % letter, 3, 6 << 20)
    choose('a')
    waits = threading.Event()
    with Server('site', index=True, fault=fault) as server:
        words = ['copy', server.url + '/ds', 'out']
        kill(b'a')
        if how == 'replaced twice':
            choose('b')
            kill(b'b')
        choose('b' if how == 'replaced' else 'a')
        if how == 'another source':
            words[1] = server.url + '/b'
        if how == 'another query':
            words[1] += '?v=b'
        if how == 'another user':
            words[1] = words[1].replace('//', '//bob:pw@')
        if how == 'another signature':
            words[1] += '?sig=b&se=2030'
        if how == 'another boot':
            for record in pathlib.Path('out').glob('*.copied'):
                record.write_text('another ' + record.read_text().split(' ', 1)[1])
            part = pathlib.Path('out/f1.bag.copy')
            part.write_bytes(bytes(part.stat().st_size))
        waits.set()
        run(*words, env=PATIENT)
    letter = 'b' if how in ('replaced', 'another source', 'another query',
                            'another user') else 'a'
    assert files('out') == files(f'site/{letter}')
    starts = {name: min(first for path, first, _ in matches if path == name)
              for name in {path for path, _, _ in matches}}
    assert all(match for _, _, match in matches), matches
    kept = how in ('same', 'another signature')
    assert ('f0.bag' in starts) == (not kept and how != 'another boot'), starts
    assert (starts['f1.bag'] > 0) == kept, starts
