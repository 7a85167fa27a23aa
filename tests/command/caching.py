"""--cache: what is read from servers is kept; damage, kills, full disks and changes cost a
download, and are never a wrong byte."""
import email.utils
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import threading
import time

import harness
from harness import PATIENT, each, refuse, run, wait_for
from server import Server

QUICK = 'BAGS_QUICK' in os.environ
CACHED = ['--cache', 'cache']


def _pack(out='site/ds', count=120, size=9000, seed=1, *options):
    """Datapoints of random bytes: an equal seed makes equal bytes."""
    import base64
    numbers = random.Random(seed)
    pathlib.Path(out).parent.mkdir(parents=True, exist_ok=True)
    harness.pack([{'n': i, 'data': {'base64': base64.b64encode(
        numbers.randbytes(size)).decode()}} for i in range(count)],
        'n=int(4),data=bytes', out, '--no-checksum', *options)


def _digest(path, *words, **options):
    return run('load', path, '--digest', '--in-order', *words, env=PATIENT,
               **options).out


def _data(server):
    """Bytes of objects that were sent."""
    return sum(size for path, status, size in server.answers if status in (200, 206)
               and not path.endswith('/'))


def _forget(server):
    """Also what processes that have ended no longer waited for: their connections were
    accepted before the last one."""
    with socket.create_connection(server.server_address) as last:
        wait_for(lambda: last.getsockname() in list(server.clients.values()))
    wait_for(lambda: not server.clients)
    del server.answers[:], server.log[:]


def _files():
    return sorted(f for f in pathlib.Path('cache').rglob('*') if f.is_file())


def _used(path='cache'):
    return sum(f.lstat().st_blocks * 512 for f in pathlib.Path(path).rglob('*'))


@each([(), ('--shard-length', '13')])
def a_second_run_requests_no_data(options):
    _pack('site/ds', 120, 9000, 1, *options)
    local = _digest('site/ds')
    with Server('site', index=True) as server:
        url = server.url + '/ds'
        epochs = _digest(url, '--epochs', '2', *CACHED)
        first = _data(server)
        assert epochs == _digest('site/ds', '--epochs', '2')
        assert 120 * 9000 < first < 120 * 9000 * 1.5, first
        _forget(server)
        assert _digest(url, *CACHED) == local
        assert _data(server) == 0, server.answers
        # By the environment, and every command.
        for words in (['get', url, ':'], ['info', '--json', url], ['verify', url],
                      ['copy', url, 'copied']):
            run(*words, env={**PATIENT, 'BAGS_CACHE': 'cache'})
        assert _data(server) == 0, server.answers
        assert harness.files('copied') == harness.files('site/ds')


@each([(page, shards) for page in ('[]', 'not here') for shards in (False, True)])
def the_page_of_a_server_that_answers_every_path_is_no_file(case):
    """Also when the answers to lookups are those of the run before."""
    page, shards = case
    _pack('site/ds', 120, 900, 1, *(['--shard-length', '50'] if shards else []))
    pathlib.Path('site/page').write_text(page)

    def fault(handler, number):
        if not handler.local.is_file():
            handler.path = '/page'
        return False

    local = run('get', 'site/ds', ':').out
    with Server('site', fault=fault) as server:
        for _ in range(3):
            assert run('get', server.url + '/ds', ':', *CACHED, env=PATIENT).out == local


def datasets_in_archives_and_bags_are_kept():
    _pack()
    run('zip', 'site/ds', 'site/ds.zip')
    with Server('site') as server:
        for name in ('ds.zip', 'ds/data.bag'):
            word = ['get', f'{server.url}/{name}', ':']
            local = run('get', f'site/{name}', ':').out
            assert run(*word, *CACHED, env=PATIENT).out == local
            _forget(server)
            assert run(*word, *CACHED, env=PATIENT).out == local
            assert _data(server) == 0, server.answers


def ranks_transfer_each_byte_once():
    _pack('site/ds', 100 if QUICK else 400, 30000)
    size = sum(map(len, harness.files('site/ds').values()))
    with Server('site', index=True) as server:
        ranks = [subprocess.Popen(
            [harness.PROGRAM, 'load', server.url + '/ds', '--rank', str(i), '--ranks', '4',
             '--digest', *CACHED], env=PATIENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            for i in range(4)]
        found = [rank.communicate()[0].decode() for rank in ranks]
        assert not any(rank.returncode for rank in ranks)
        assert _data(server) < size * 1.02 + 4 * 32768 * 4, _data(server) / size
    for i, text in enumerate(found):
        assert text == run('load', 'site/ds', '--rank', i, '--ranks', 4,
                           '--digest').out.decode()


def damage_is_downloaded_again():
    """Flipped bits, truncated and lengthened files, exchanged files, files of zeros."""
    _pack()
    local = _digest('site/ds')
    numbers = random.Random(7)
    with Server('site') as server:
        url = server.url + '/ds'
        _digest(url, *CACHED)
        for path in _files():
            original = path.read_bytes()
            size = len(original)
            for turn in range(1 if QUICK else 30):
                data = bytearray(original)
                kind = (turn + len(str(path))) % 6
                if kind in (0, 3) and size:
                    data[numbers.randrange(size)] ^= 1 << numbers.randrange(8)
                elif kind == 4 and size:  # in what is not data
                    data[numbers.randrange(min(size, 4096))] ^= 1 << numbers.randrange(8)
                elif kind == 1:
                    del data[numbers.randrange(size + 1):]
                elif kind == 2:
                    data = bytearray(size)
                else:
                    data += b'more'
                path.write_bytes(data)
                assert _digest(url, *CACHED) == local, (path, kind)
            path.write_bytes(original)
        segments = [f for f in _files() if f.name.count('-') == 2]
        one, two = segments[0].read_bytes(), segments[-1].read_bytes()
        segments[0].write_bytes(two)
        segments[-1].write_bytes(one)
        assert _digest(url, *CACHED) == local
        for path in segments:  # and then it is whole again
            assert path.stat().st_size > 0
        _forget(server)
        assert _digest(url, *CACHED) == local
        assert _data(server) == 0


def what_is_replaced_is_read_anew():
    """Also where size and names are equal; the former version is still kept."""
    _pack('site/ds', seed=1)
    _pack('other/ds', seed=2)
    digests = [_digest('site/ds'), _digest('other/ds')]
    assert digests[0] != digests[1]
    with Server('site') as server:
        for turn in range(4):
            _forget(server)
            assert _digest(server.url + '/ds', *CACHED) == digests[turn % 2]
            # Of a version that comes back, the ends of files come with their lookups.
            assert (_data(server) > 500_000) == (turn < 2), (turn, server.answers)
            os.rename('site/ds', 'site/aside')
            os.rename('other/ds', 'site/ds')
            os.rename('site/aside', 'other/ds')


@each([('same', '?v=1', '?v=1'), ('other', '?v=1', '?v=2'), ('other', 'alice:pw@', 'bob:pw@'),
       ('same', '?v=1&se=1&sig=1', '?se=2&sig=2&v=1'),
       ('other', '?v=1&se=1&sig=1', '?v=2&se=1&sig=1')])
def a_query_and_a_user_are_of_the_identity_and_signatures_are_not(case):
    """Of two versions with equal sizes and ETags, as nginx makes them."""
    what, one, two = case
    _pack('site/ds', 30, seed=1)
    _pack('other/ds', 30, seed=2)
    first = []

    def address(server, more):
        return (server.url + '/ds' + more if more.startswith('?') or not more
                else server.url.replace('//', '//' + more) + '/ds')

    def fault(handler, number):
        words = handler.path.partition('?')[2], handler.headers.get('Authorization')
        first[:] = first or [words]
        if what == 'other' and words != first[0]:
            handler.root = pathlib.Path('other').resolve()
        handler.server.etags[handler.local] = '"65000000-7"'
        return False

    with Server('site', fault=fault) as server:
        expected = [_digest('site/ds'), _digest('other/ds' if what == 'other' else 'site/ds')]
        assert _digest(address(server, one), *CACHED) == expected[0]
        _forget(server)
        assert _digest(address(server, two), *CACHED) == expected[1]
        assert (_data(server) > 0) == (what == 'other'), server.answers
        _forget(server)
        for more, digest in zip((one, two), expected):
            assert _digest(address(server, more), *CACHED) == digest
        assert _data(server) == 0, server.answers


def an_endpoint_is_of_the_identity():
    """Two object stores with a bucket of the same name."""
    for where in ('one', 'two'):
        _pack(f'{where}/bucket/ds', 30, seed=len(where) + ord(where[0]))

    def fault(handler, number):
        handler.server.etags[handler.local] = '"65000000-7"'
        return False

    for where in ('one', 'two'):
        with Server(where, s3=True, fault=fault) as server:
            out = run('load', 's3://bucket/ds', '--digest', '--in-order', *CACHED,
                      env={**PATIENT, **server.environment}).out
            assert out == _digest(f'{where}/bucket/ds')


def a_last_modified_in_the_future_is_not_waited_for():
    """Nothing is looked up twice, and the next run requests no data."""
    _pack('site/ds', 30, 9000, 1, '--shard-length', '3')
    later = email.utils.formatdate(time.time() + 3600, usegmt=True)

    def fault(handler, number):
        if handler.local.is_file():
            data = handler.local.read_bytes()
            handler.send_range(data, f'"{len(data):x}"', Last_Modified=later)
        return handler.local.is_file()

    with Server('site', fault=fault) as server:
        url = server.url + '/ds'
        local = _digest(url)
        requests = len(server.log)
        _forget(server)
        assert _digest(url, *CACHED) == local
        assert len(server.log) <= requests, (len(server.log), requests)
        _forget(server)
        assert _digest(url, *CACHED) == local
        assert len(server.log) <= requests and _data(server) == 0, server.answers


def what_a_weak_etag_alone_identifies_is_not_kept():
    """It states that the content means the same, not that its bytes are the same."""
    _pack('site/ds', 30, seed=1)
    _pack('other/ds', 30, seed=2)

    def fault(handler, number):
        if not handler.local.is_file():
            return False
        data = handler.local.read_bytes()
        first, last = handler.headers['Range'][6:].split('-')
        start = int(first) if first else max(0, len(data) - int(last))
        stop = int(last) + 1 if first and last else len(data)
        return handler.answer(206, data[start:stop], ETag=f'W/"{handler.local.name}"',
                              Content_Range=f'bytes {start}-{stop - 1}/{len(data)}')

    with Server('site', fault=fault) as server:
        for name in ('site/ds', 'other/ds'):
            assert _digest(server.url + '/ds', *CACHED) == _digest(name)
            server.root = pathlib.Path('other').resolve()


@each([10, 25, 40])
def a_dataset_that_is_replaced_while_it_is_read_is_of_one_version_or_an_error(at):
    _pack('site/ds', 400, 20000, 1, '--shard-length', '100')
    _pack('other/ds', 400, 20000, 2, '--shard-length', '100')
    epochs = ['--epochs', '2']
    expected = [_digest(f'{where}/ds', *epochs) for where in ('site', 'other')]
    replaced = threading.Event()

    def fault(handler, number):
        if number == at and not replaced.is_set():
            replaced.set()
            os.rename('site/ds', 'site/aside')
            os.rename('other/ds', 'site/ds')
        return False

    with Server('site', fault=fault) as server:
        done = subprocess.run(
            [harness.PROGRAM, 'load', server.url + '/ds', '--digest', '--in-order',
             *epochs, *CACHED], env=PATIENT, capture_output=True)
        assert replaced.is_set()
        # What was read, and checked, before is not changed.
        if done.returncode == 0:
            assert done.stdout in expected, done
        else:
            assert done.returncode == 1 and (  # between the renames there is no dataset
                b'changed' in done.stderr or b'replaced' in done.stderr or
                b'missing' in done.stderr or b'HTTP 404' in done.stderr), done.stderr
        server.fault = None
        assert _digest(server.url + '/ds', *epochs, *CACHED) in expected


def it_stays_within_its_size():
    _pack('site/ds', 300, 20000)
    local = _digest('site/ds', '--epochs', '2')
    most = 0
    with Server('site') as server:
        work = subprocess.Popen(
            [harness.PROGRAM, 'load', server.url + '/ds', '--digest', '--in-order',
             '--epochs', '2', *CACHED, '--cache-size', '1M'], env=PATIENT,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

        # It is stopped while sizes are added up: what it deletes would be counted with
        # what it writes then.
        def watch():
            nonlocal most
            while harness.stop(work):
                most = max(most, _used())
                work.send_signal(signal.SIGCONT)
                time.sleep(.001)
        watcher = threading.Thread(target=watch)
        watcher.start()
        found = work.stdout.read()
        watcher.join()
        assert found == local
    # Between two evictions each of the threads adds blocks, also at the end.
    assert most <= 1.5 * (1 << 20), most
    assert 0 < _used() <= 1.5 * (1 << 20), _used()


def a_size_without_a_cache_is_an_error():
    _pack('ds')
    refuse('get', 'ds', '0', '--cache-size', '1M', code=2,
           says='--cache-size needs --cache')
    assert run('get', 'ds', '0', 'n', '--cache-size', '1M',
               env={**os.environ, 'BAGS_CACHE': 'cache'}).out
    refuse('get', 'ds', '0', '--cache-size', '1M', code=2, says='needs --cache',
           env={**os.environ, 'BAGS_CACHE': ''})


def other_files_stay():
    _pack()
    os.makedirs('cache/bags-cache-1')
    pathlib.Path('cache/bags-cache-1/x').write_text('mine')
    with Server('site') as server:
        refuse('load', server.url + '/ds', *CACHED, says='was not made by this program')
        shutil.rmtree('cache/bags-cache-1')
        pathlib.Path('cache/mine').write_bytes(bytes(1 << 20))
        _digest(server.url + '/ds', *CACHED, '--cache-size', '300K')
        pathlib.Path('cache/bags-cache-1/mine').write_bytes(bytes(1 << 20))
        _digest(server.url + '/ds', *CACHED, '--cache-size', '300K')
    assert pathlib.Path('cache/mine').stat().st_size == 1 << 20
    assert pathlib.Path('cache/bags-cache-1/mine').stat().st_size == 1 << 20


def a_cache_may_be_deleted_while_it_is_in_use():
    _pack('site/ds', 200, 20000)
    local = _digest('site/ds', '--epochs', '6')
    with Server('site') as server:
        work = subprocess.Popen(
            [harness.PROGRAM, 'load', server.url + '/ds', '--digest', '--in-order',
             '--epochs', '6', *CACHED], env=PATIENT, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE)

        def delete():
            while work.poll() is None:
                if os.path.exists('cache/bags-cache-1/usage'):
                    shutil.rmtree('cache', ignore_errors=True)
                time.sleep(.05)
        deleter = threading.Thread(target=delete)
        deleter.start()
        out, err = work.communicate()
        deleter.join()
    assert out == local and work.returncode == 0, err
    assert err.count(b'the cache cannot be written') <= 1, err


def a_killed_process_leaves_no_wrong_byte():
    _pack('site/ds', 200, 20000)
    local = _digest('site/ds')
    numbers = random.Random(3)
    with Server('site') as server:
        for _ in range(4 if QUICK else 100):
            work = subprocess.Popen(
                [harness.PROGRAM, 'load', server.url + '/ds', *CACHED,
                 '--cache-size', numbers.choice(['2M', '10G'])], env=PATIENT,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(numbers.uniform(.005, .25))
            work.send_signal(signal.SIGKILL)
            work.wait()
            if numbers.random() < .3:
                assert _digest(server.url + '/ds', *CACHED) == local
            if numbers.random() < .2:
                shutil.rmtree('cache', ignore_errors=True)
        assert _digest(server.url + '/ds', *CACHED) == local


def a_full_disk_is_said_once_and_reading_continues():
    _pack('site/ds', 200, 20000)
    local = _digest('site/ds')
    os.mkdir('cache')
    if os.getuid() or subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs',
                                      'cache'], stderr=subprocess.DEVNULL).returncode:
        return
    try:
        with Server('site') as server:
            for _ in range(2):
                done = run('load', server.url + '/ds', '--digest', '--in-order', *CACHED,
                           env=PATIENT)
                assert done.out == local
                said = [line for line in done.err.splitlines() if 'cache' in line]
                assert len(said) == 1 and 'No space left' in said[0], done.err
    finally:
        subprocess.run(['umount', 'cache'], check=True)


def what_cannot_be_a_cache_is_refused():
    _pack()
    with Server('site') as server:
        url = server.url + '/ds'
        refuse('load', url, '--cache', '', code=2, says='empty')
        refuse('load', url, '--cache', 'http://host/x', code=2, says='local')
        refuse('load', url, *CACHED, '--cache-size', '1', code=2, says='at least')
        pathlib.Path('cache').write_text('a file')
        refuse('load', url, *CACHED, says='cache')
        run('load', url, env={**PATIENT, 'BAGS_CACHE': ''})


if not harness.has_urls():
    print('skipped --cache: no libcurl')
    for name, value in list(globals().items()):
        if callable(value) and getattr(value, '__module__', '') == __name__ and \
                not name.startswith('_'):
            del globals()[name]
