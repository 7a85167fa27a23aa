"""`bags view`: the page and the dataset for one browser, and nothing for anybody else."""
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import time

import harness
from harness import GOLDEN, HANG, at_most, pack, refuse, run

ROWS = [{'n': i, 'words': ['x']} for i in range(50)]
PAGE = '<!doctype html><title>the page</title>'


def _built():
    """Without libmicrohttpd there is one sentence."""
    done = subprocess.run([harness.PROGRAM, 'view', 'missing'], stderr=subprocess.PIPE)
    if b'built without libmicrohttpd' in done.stderr:
        print('skipped: bags view was built without libmicrohttpd')
        return False
    return True


class _View:
    """A running one; `path` begins with the token."""

    def __init__(self, *words):
        pathlib.Path('page.html').write_text(PAGE)
        self.job = subprocess.Popen([harness.PROGRAM, 'view', '--no-browser', *map(str, words)], stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, env={**os.environ, 'BAGS_VIEWER': 'page.html'})
        self.address = self.job.stdout.readline().decode().strip()
        found = re.fullmatch(r'http://127\.0\.0\.1:(\d+)/([0-9a-f]{20,})/#(?:ds=)?(.*)', self.address)
        assert found, (self.address, self.job.stderr.read())
        self.port, self.token, self.name = int(found[1]), found[2], found[3]

    def raw(self, request):
        with socket.create_connection(('127.0.0.1', self.port), timeout=HANG) as link:
            link.sendall(request)
            out = b''
            with contextlib.suppress(ConnectionResetError):
                while part := link.recv(65536):
                    out += part
        return out

    def get(self, path, method='GET', host=None, headers=()):
        """(status, headers in lower case, body); `path` follows the token."""
        lines = [f'{method} {path} HTTP/1.1', *(f'Host: {h}' for h in (host if isinstance(host, list) else
                 [f'127.0.0.1:{self.port}' if host is None else host])), 'Connection: close', *headers]
        head, _, body = self.raw(('\r\n'.join(lines) + '\r\n\r\n').encode()).partition(b'\r\n\r\n')
        assert head.startswith(b'HTTP/1.1 '), head
        return int(head.split()[1]), head.decode('latin-1').lower(), body

    def file(self, rest, *more, **options):
        return self.get(f'/{self.token}/{self.name}{rest}', *more, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.job.terminate()
        self.code = self.job.wait(HANG)
        self.job.stdout.close()
        self.job.stderr.close()


def view_page_and_files():
    if not _built():
        return
    pack(ROWS, 'n=int(4),words=utf8[]', 'pets')
    with _View('pets') as view:
        assert view.name == 'pets'
        status, head, body = view.get(f'/{view.token}/')
        assert status == 200 and body == PAGE.encode() and 'text/html' in head
        for name in sorted(path.name for path in pathlib.Path('pets').iterdir()):
            data = pathlib.Path('pets', name).read_bytes()
            status, head, body = view.file(f'/{name}')
            assert (status, body) == (200, data), name
            assert 'x-content-type-options: nosniff' in head and 'access-control' not in head
            assert 'last-modified: ' in head
        data = pathlib.Path('pets/n.bag').read_bytes()
        for words, part in [('0-0', data[:1]), ('3-9', data[3:10]), ('100-99999999', data[100:]), ('5-', data[5:])]:
            status, head, body = view.file('/n.bag', headers=[f'Range: bytes={words}'])
            assert (status, body) == (206, part), words
            assert f'/{len(data)}\r\n' in head + '\r\n'
        assert view.file('/n.bag', headers=[f'Range: bytes={len(data)}-{len(data) + 5}'])[0] == 416
        for words in ('bytes=5-3', 'bytes=-7', 'bytes=1-2,4-5', 'bytes=x', 'bytes=99999999999999999999999-'):
            assert view.file('/n.bag', headers=[f'Range: {words}'])[2] in (data, b'the file is shorter\n'), words
        status, head, body = view.file('/n.bag', 'HEAD')
        assert status == 200 and not body and f'content-length: {len(data)}' in head
        other = view.token
    assert view.code in (0, -signal.SIGTERM, 143), view.code
    with _View('pets') as view:
        assert view.token != other


def view_shards_and_archives():
    if not _built():
        return
    pack(ROWS, 'n=int(4),words=utf8[]', 'sh', '--shard-length', '20')
    run('zip', 'sh', 'a b.zip')
    run('index', 'sh', 'n')
    pathlib.Path('sh/000002/words.dict').write_bytes(b'of zstd')
    with _View('sh') as view:
        assert view.file('/000002/words.dict')[2] == b'of zstd'
        assert view.file('/000000/index/n.bag')[2] == pathlib.Path('sh/000000/index/n.bag').read_bytes()
        for rest in ('/000000/000000/n.bag', '/index/000000/n.bag', '/000000/index', '/000000/index/', '/index/n.bag'):
            assert view.file(rest)[0] == 404, rest
        assert view.file('/000002/n.bag')[2] == pathlib.Path('sh/000002/n.bag').read_bytes()
        status, _, body = view.file('/')
        assert status == 200 and body.count(b'href="0000') == 3
        assert view.file('/000009/n.bag')[0] == 404
    with _View('a b.zip') as view:
        assert view.name == 'a%20b.zip'
        assert view.file('')[2] == pathlib.Path('a b.zip').read_bytes()
        assert view.file('/spec.json')[0] == 404
    with _View(GOLDEN / 'bags-0.5.1/bag-tiny/data.bag') as view:
        assert view.file('')[2] == (GOLDEN / 'bags-0.5.1/bag-tiny/data.bag').read_bytes()
        assert view.get(f'/{view.token}/manifest.json')[0] == 404
    with _View('https://host.example/pets') as view:
        assert view.name == 'https://host.example/pets'
        assert view.get(f'/{view.token}/pets/spec.json')[0] == 404


def view_strangers():
    """Nothing but the page and the dataset's files, for nobody without the token."""
    if not _built():
        return
    pack(ROWS, 'n=int(4),words=utf8[]', 'pets')
    pathlib.Path('secret.bag').write_bytes(b'secret')
    pathlib.Path('pets/notes.txt').write_bytes(b'secret')
    pathlib.Path('pets/.hidden.bag').write_bytes(b'secret')
    pathlib.Path('pets/link.bag').symlink_to('../secret.bag')
    pathlib.Path('pets/000000').symlink_to('..')
    pathlib.Path('pets/index').symlink_to('..')
    os.mkfifo('pets/pipe.bag')
    os.mkdir('pets/dir.bag')
    with _View('pets') as view:
        port, token = view.port, view.token
        for path in ('/', '/index.html', f'/{token}', f'/{token[:-1]}/', f'/{token}x/', f'/{token.upper()}/'.replace(token, token.upper()),
                     f'/{"0" * len(token)}/', f'//{token}/', '/../', '*', '/' + 'a' * 5000):
            if path.strip('/') != token:
                status, _, body = view.get(path)
                assert 400 <= status < 500 and PAGE.encode() not in body, path
        for rest in ('', '/notes.txt', '/.hidden.bag', '/link.bag', '/pipe.bag', '/dir.bag', '/000000/secret.bag', '/index/secret.bag', '/index/../secret.bag', '/000000/', '/../secret.bag',
                     '/%2e%2e/secret.bag', '/..%2fsecret.bag', '/./n.bag', '//n.bag', '/n.bag/', '/000000/../n.bag', '/x/../../secret.bag',
                     '/../../../../../../etc/passwd', '\\..\\secret.bag', '/spec.json/../../secret.bag'):
            status, _, body = view.file(rest)
            assert 400 <= status < 500 and b'secret' not in body, rest
        # What follows a NUL is part of a name.
        assert view.file('/n%2Ebag')[0] == 200 and view.file('/%6e.bag')[0] == 200
        for rest in ('/spec.json%00.bag', '/spec.json%00', '/n.bag%00.crc', '/%00', '/%00spec.json', '%00/spec.json',
                     '/spec.json%', '/spec.json%0', '/spec.json%zz'):
            status, _, body = view.file(rest)
            assert 400 <= status < 500 and b'{' not in body, (rest, status)
        assert view.file('/spec.json%00.bag')[0] == 404
        for path in ('/secret.bag', '/pets2/n.bag', '/../secret.bag', '//etc/passwd', '/page.html'):
            status, _, body = view.get(f'/{token}{path}')
            assert 400 <= status < 500 and b'secret' not in body, path
        # DNS rebinding: a name of another site that leads to 127.0.0.1.
        for host in ('evil.example', f'evil.example:{port}', '127.0.0.1', f'127.0.0.1:{port + 1}', f'127.0.0.1:{port}.evil.example',
                     f'localhost.evil.example:{port}', '', [], [f'127.0.0.1:{port}', 'evil.example'], ['evil.example', f'127.0.0.1:{port}'],
                     [f'127.0.0.1:{port}'] * 2):
            status, _, body = view.get(f'/{token}/', host=host)
            assert 400 <= status < 500 and PAGE.encode() not in body, host
        assert view.get(f'/{token}/', host=f'localhost:{port}')[0] == 200
        assert 400 <= int(view.raw(f'GET /{token}/ HTTP/1.0\r\n\r\n'.encode()).split()[1]) < 500
        for method in ('POST', 'PUT', 'DELETE', 'OPTIONS', 'PATCH', 'TRACE', 'PROPFIND', 'X'):
            status, head, body = view.file('/n.bag', method)
            assert 400 <= status < 500 or status == 501, (method, status)
            assert 'access-control' not in head and len(body) < 100
        with socket.create_connection(('127.0.0.1', port)) as link:
            link.sendall(b'\0\xff garbage\r\n\r\n')
        assert view.get(f'/{token}/')[0] == 200
    assert pathlib.Path('pets/n.bag').exists()


def view_slow_clients():
    """Those that send half a request, or do not read the answer, keep nobody waiting, and are closed."""
    if not _built():
        return
    pack([{'data': 'x' * (1 << 20)} for _ in range(20)], 'data=utf8', 'large')
    with _View('large') as view:
        slow = []

        def closed():
            """The slow ones that were closed before others had their answers."""
            while slow:
                slow.pop().close()
            slow[:] = [socket.create_connection(('127.0.0.1', view.port), timeout=HANG) for _ in range(100)]
            for i, link in enumerate(slow):
                link.sendall(f'GET /{view.token}/large/data.bag HTTP/1.1\r\nHost: 127.0.0.1:{view.port}\r\n'.encode() + (b'\r\n' if i % 2 else b''))
            assert view.file('/spec.json')[0] == 200
            assert len(view.file('/data.bag')[2]) > 20 << 20
            slow[0].setblocking(False)
            try:
                return len(slow[0].recv(1)) == 0
            except BlockingIOError:
                return 0
        at_most(0, closed)  # it does not wait for them
        slow[0].settimeout(HANG)
        assert slow[0].recv(1) == b'', 'half a request is not closed'
        for link in slow:
            link.close()


def view_thousand_connections():
    """Those beyond a limit are refused, and the rest ends after a while."""
    if not _built():
        return
    pack(ROWS, 'n=int(4),words=utf8[]', 'pets')
    with _View('pets') as view:
        links = []
        for _ in range(1000):
            try:
                links.append(socket.create_connection(('127.0.0.1', view.port), timeout=1))
            except OSError:
                break
        files = len(os.listdir(f'/proc/{view.job.pid}/fd')) if os.path.isdir('/proc') else 0
        assert files < 300, files
        for link in links:
            link.close()
        end = time.monotonic() + HANG
        while True:
            try:
                assert view.file('/spec.json')[0] == 200
                break
            except (AssertionError, OSError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)


def view_faults():
    if not _built():
        return
    pack(ROWS, 'n=int(4),words=utf8[]', 'pets')
    pathlib.Path('empty').mkdir()
    pathlib.Path('file').write_bytes(b'x')
    pathlib.Path('page.html').write_text(PAGE)
    env = {**os.environ, 'BAGS_VIEWER': 'page.html'}
    refuse('view', 'missing', says=['missing', 'No such file'], env=env)
    refuse('view', 'empty', says='not a dataset', env=env)
    refuse('view', 'file', says='.zip', env=env)
    refuse('view', 's3://bucket/pets', says='https://', code=2, env=env)
    refuse('view', 'pets', '--port', '70000', says='65535', code=2, env=env)
    refuse('view', 'pets', says=['none.html', 'make viewer'], env={**env, 'BAGS_VIEWER': 'none.html'})
    with _View('pets') as view:
        refuse('view', 'pets', '--port', view.port, says=[str(view.port), 'in use'], env=env)
        view.job.send_signal(signal.SIGINT)
        assert view.job.wait(HANG) in (0, -signal.SIGINT, 130)
    # What lacks a shard is shown, with a remark.
    pack(ROWS, 'n=int(4),words=utf8[]', 'gap', '--shard-length', '20')
    shutil.rmtree('gap/000001')
    with _View('gap') as view:
        assert view.file('/000002/spec.json')[0] == 200


def view_live():
    """A running writer, its crash, its recovery; datapoints keep their numbers."""
    if not _built():
        return
    job = subprocess.Popen([harness.PROGRAM, 'pack', '-', 'robot', '--spec', 'n=int(4),x=float32(2)[]', '--shard-length', '2'],
                           stdin=subprocess.PIPE)
    write = lambda rows: (job.stdin.write(b''.join(b'{"n": %d, "x": [[%d, 0.5], [7, 8], [9, 1]]}\n' % (n, n) for n in rows)), job.stdin.flush())
    write(range(3))
    harness.wait_for(lambda: pathlib.Path('robot/000001/refs.idx').exists() and os.path.getsize('robot/000001/refs.idx') == 8, job)
    with _View('robot', '--live') as view:
        assert view.name == 'live' and view.get(f'/{view.token}/')[2] == PAGE.encode()
        state = lambda: json.loads(view.get(f'/{view.token}/live')[2])
        found = state()
        assert found == {'name': 'robot', 'length': 3, 'shards': 2, 'unfinished': 1, 'writers': 1, 'gone': 0, 'trouble': None,
                         'fields': [{'name': 'n', 'type': 'int(4)'}, {'name': 'x', 'type': 'array(float32,2)[]'}]}
        part = lambda rest: view.get(f'/{view.token}/live/{rest}')
        assert part('2/1')[2] == b'3' and part('2/0')[2] == b'1'
        assert part('2/0/0')[2] == struct.pack('<I', 2) and part('1/1/2')[2] == struct.pack('<ff', 9, 1)
        assert view.get(f'/{view.token}/live/1/1/2', 'HEAD')[1].count('content-length: 8') == 1
        assert struct.unpack('<5d', part('2/1/0:3:2')[2]) == (2, 2, .5, 9, 1)
        assert struct.unpack('<3d', part('0/1/1:2:1')[2]) == (2, 7, 8)
        for rest in ('3/0', '3/0/0', '0/2', '0/2/0', '0/1/3', '0/0/1', '0', '0/', '0/0/0/0', '0/1/0:1', '0/1/0:1:2:3', '0/0/0:1:1', '0/1/2:1:1', 'x',
                     '../spec.json', '/0/0', '-1/0', '99999999999999999999999/0', '0/0/0?x/'):
            status, _, body = part(rest)
            assert status == 404 or rest == '0/0/0?x/', (rest, status, body)
        assert view.file('/spec.json')[0] == 404 and view.get(f'/{view.token}/robot/000000/spec.json')[0] == 404
        assert view.get(f'/{"0" * len(view.token)}/live')[0] == 404
        assert view.get(f'/{view.token}/live', host='evil.example')[0] == 403
        write(range(3, 4))
        harness.wait_for(lambda: state()['length'] == 4, job)
        job.kill()
        job.wait()
        job.stdin.close()
        harness.wait_for(lambda: state()['writers'] == 0)
        found = state()
        assert (found['length'], found['gone'], found['trouble']) == (4, 0, None)
        run('recover', 'robot')
        pack([{'n': 4, 'x': []}], 'n=int(4),x=float32(2)[]', 'robot', '--append')
        found = state()
        assert (found['length'], found['unfinished'], found['writers'], found['gone']) == (5, 0, 0, 0)
        assert [part(f'{i}/0/0')[2] for i in range(5)] == [struct.pack('<I', i) for i in range(5)]
        assert part('4/1')[2] == b'0' and struct.unpack('<d', part('4/1/0:9:1')[2]) == (0,)
        shutil.rmtree('robot/000001')
        found = state()
        assert found['length'] == 5 and found['gone'] == 2, found
        assert b'gone' in part('2/0/0')[2] and part('1/0/0')[0] == 200
        shutil.rmtree('robot')
        found = state()
        assert found['length'] == 5 and 'No such file' in found['trouble'], found
    refuse('view', 'robot.zip', '--live', says='local directory', code=2, env={**os.environ, 'BAGS_VIEWER': 'page.html'})


def view_live_numbers():
    """Shards of random workers: what was seen once keeps its number."""
    if not _built():
        return
    rng = random.Random(1)
    expected, shards = [], [0, 0, 0]
    os.mkdir('many')

    def add(worker, rows):
        """A shard of a worker: between those of the others, whatever was shown of them."""
        pack([{'n': n} for n in rows], 'n=int(4)', 'part')
        os.rename('part', f'many/{worker + 3 * shards[worker]:06}')
        shards[worker] += 1
        expected.extend(rows)
    for worker in range(3):
        add(worker, [worker])
    with _View('many', '--live') as view:
        for step in range(20):
            add(rng.randrange(3), [100 * step + 10 + i for i in range(rng.randrange(1, 4))])
            found = json.loads(view.get(f'/{view.token}/live')[2])
            assert found['length'] == len(expected), (found, len(expected))
        values = [struct.unpack('<I', view.get(f'/{view.token}/live/{i}/0/0')[2])[0] for i in range(len(expected))]
        assert values == expected
