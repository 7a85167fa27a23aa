"""Datasets on web servers and in object stores."""
import base64
import gzip
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import threading
import time
import urllib.parse
import zlib

import harness
from harness import at_most, each, files, refuse, run
from server import KEY, SECRET, Server

ROWS = [{'n': i, 'words': ['a' * (i % 5), 'é'], 'data': {'base64': 'AAAA' * 3000}}
        for i in range(40)]
SPEC = 'n=int(4),words=utf8[],data=bytes'
# A server that answers at all is waited for, but what it refuses is soon an error.
FAST = {'BAGS_RETRY_SECONDS': '1', 'BAGS_STALL_SECONDS': '100'}


def _environment(server=None, **more):
    return {**os.environ, **FAST, **(server.environment if server else {}), **more}


def _pack(out='site/ds', *options):
    pathlib.Path(out).parent.mkdir(exist_ok=True)
    if '--checksum' not in options: # requests and files are counted
        options += ('--no-checksum',)
    harness.pack(ROWS, SPEC, out, *options)
    return out


class _Together:
    """This many requests are on their way at once: until then each waits for others."""

    def __init__(self, server, count):
        self.count, self.waiting, self.peak = count, 0, 0
        self.changed = threading.Condition()
        server.fault = self.wait

    def wait(self, handler, number):
        with self.changed:
            self.waiting += 1
            self.peak = max(self.peak, self.waiting)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.peak >= self.count, 0.1)
            self.waiting -= 1

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        assert kind or self.peak >= self.count, self.peak


def _shown(out, path):
    """Without the path, and what info does not find out on a server."""
    return re.sub(r'"unreferenced": ({.*?}|null), ', '', out.decode().replace(path, ''))


def _same(path, url, **more):
    """The same values, and what info shows."""
    for words in (['get', ':'], ['info', '--json'], ['verify', '--json']):
        word, rest = words[0], words[1:]
        local = _shown(run(word, path, *rest, **more).out, path)
        remote = _shown(run(word, url, *rest, **more).out, url)
        assert local == remote, (local, remote)


@each(['index', 'probing', 's3'])
def an_unsharded_dataset_is_the_same(how):
    _pack()
    with Server('site', how == 'index', how == 's3') as server:
        url = 's3://bucket/ds' if how == 's3' else server.url + '/ds'
        if how == 's3':
            os.mkdir('site/bucket')
            os.rename('site/ds', 'site/bucket/ds')
        _same('site/bucket/ds' if how == 's3' else 'site/ds', url,
              env=_environment(server))


@each(['index', 'probing', 's3'])
def a_sharded_dataset_is_the_same(how):
    path = 'site/bucket/é &+ds'
    os.mkdir('site')
    _pack(path, '--shard-length', '7', '--checksum')
    with Server('site', how == 'index', how == 's3') as server:
        url = server.url + '/bucket/é &+ds' if how != 's3' else 's3://bucket/é &+ds'
        _same(path, url, env=_environment(server))


def golden_data_is_the_same():
    with Server(harness.GOLDEN, index=True) as server:
        for version in sorted(harness.GOLDEN.iterdir()):
            for data in sorted(version.glob('ds-types/data')) + \
                    sorted(version.glob('sh-length/data')) + \
                    sorted(version.glob('bag-mixed-empty/data.bag')):
                url = server.url + '/' + str(data.relative_to(harness.GOLDEN))
                run('export', data, 'local', '--raw')
                run('export', url, 'remote', '--raw', env=_environment())
                assert files('local') == files('remote'), url
                subprocess.run(['rm', '-r', 'local', 'remote'], check=True)


def many_shards_are_listed_page_by_page():
    os.mkdir('site')
    harness.pack([{'n': i} for i in range(230)], 'n=int(4)', 'site/bucket/ds',
                 '--shard-length', '1')
    with Server('site', s3=True) as server:
        shown = run('info', 's3://bucket/ds', '--json', env=_environment(server)).json
        assert shown['length'] == shown['shards'] == 230


CLOUDS = {'azure': 'http://account.blob.core.windows.net/b/',
          'google': 'http://storage.googleapis.com/b/',
          'google host': 'http://b.storage.googleapis.com/'}


def _cloud(server, **more):
    """An environment in which this server answers for these hosts."""
    return _environment(http_proxy=server.url, no_proxy='127.0.0.1', **more)


@each([(cloud, query) for cloud in CLOUDS for query in (False, True)])
def many_shards_of_azure_and_google_are_listed_page_by_page(case):
    cloud, query = case
    host = cloud == 'google host'
    harness.pack([{'n': i} for i in range(260)], 'n=int(4)', 'site/b/a ds', '--shard-length',
                 '1', '--no-checksum')
    shutil.rmtree('site/b/a ds/000130')
    url = CLOUDS[cloud] + 'a%20ds' + ('?sv=1&sig=hidden' if query else '')
    with Server('site/b' if host else 'site', s3=True) as server:
        environment = _cloud(server)
        if host:  # the bucket is the server's root
            server.root = server.root.parent
            server.fault = lambda handler, _: setattr(
                handler, 'path', handler.path.replace('.com', '.com/b', 1))
        # The shard is missing because it is not listed: no request looks it up.
        refuse('get', url, '0', says='missing shards 130', env=environment)
        harness.pack([{'n': 1}], 'n=int(4)', 'one', '--shard-length', '1', '--no-checksum')
        shutil.copytree('one/000000', 'site/b/a ds/000130')
        result = run('get', url, ':', 'n', env=environment)
        assert len(result.lines) == 260
        pages = [path for _, path, _ in server.log if 'prefix=' in path]
        assert len(pages) == 6, pages
        assert all(('sig=hidden' in path) == query for _, path, _ in server.log)


@each([*CLOUDS][:2])
def shards_are_found_where_azure_or_google_refuses_to_list(cloud):
    os.makedirs('site/b')
    path = _pack('site/b/ds', '--shard-length', '7')
    for status, code in ((403, 'AuthenticationFailed'), (403, 'AccessDenied'),
                         (404, 'ResourceNotFound'), (401, 'NoAuthenticationInformation')):
        with Server('site', s3=True) as server:
            server.fault = lambda handler, _: (
                'prefix=' in handler.path and handler.refuse(status, code))
            local = run('get', path, ':').out
            assert run('get', CLOUDS[cloud] + 'ds', ':', env=_cloud(server)).out == local
            assert [True for _, path, _ in server.log if 'prefix=' in path]


def a_gap_is_an_error():
    _pack('site/ds', '--shard-length', '7')
    subprocess.run(['rm', '-r', 'site/ds/000002'], check=True)
    for index in (True, False):
        with Server('site', index) as server:
            refuse('info', server.url + '/ds', says='missing shards 2',
                   env=_environment())


@each(['0: 503, 503', '0: 429', '3: truncated', '3: wrong length', '2: close',
       '2: stall', 'redirect'])
def a_passing_fault_is_survived(which):
    path = _pack()
    done, ended = set(), threading.Event()

    def fault(handler, number):
        at, _, what = which.partition(': ')
        if which == 'redirect' and handler.path.startswith('/elsewhere/'):
            handler.path = handler.path.replace('/elsewhere', '')
            return False
        if which == 'redirect':
            return handler.answer(302, Location='/elsewhere' + handler.path)
        if number < int(at) or len(done) >= (2 if '503, 503' in what else 1):
            return False
        if what in ('truncated', 'wrong length') and not handler.local.is_file():
            return False
        done.add(number)
        if '503' in what:
            return handler.answer(503)
        if '429' in what:
            return handler.answer(429, Retry_After='0')
        if what == 'stall':
            ended.wait()
        if what in ('close', 'stall'):
            handler.close_connection = True
            return True
        data = handler.local.read_bytes()
        first, last = handler.headers['Range'].partition('=')[2].split('-')
        start = int(first) if first else max(0, len(data) - int(last))
        stop = min(len(data), int(last) + 1) if first and last else len(data)
        handler.answer(206, data[start:(start + stop) // 2], length=stop - start,
                       Content_Range=f'bytes {start}-{stop - 1}/{len(data)}')
        handler.close_connection = True
        return True

    with Server('site', fault=fault) as server:
        out = run('get', server.url + '/ds', ':', env=_environment(
            BAGS_RETRY_SECONDS='100',
            BAGS_STALL_SECONDS='1' if 'stall' in which else '100')).out
        ended.set()
        assert out == run('get', path, ':').out
        assert which == 'redirect' or done


@each(['503', '429', 'truncated', 'truncated files', 'stall', 'close', '403', '401',
       '500 XML'])
def a_lasting_fault_is_an_error(which):
    _pack()
    ended = threading.Event()

    def fault(handler, number):
        if which == '429':
            return handler.answer(429, Retry_After='3600')
        if which == '500 XML':
            return handler.answer(500, b'<Error><Code>InternalError</Code></Error>')
        if which.isdigit():
            return handler.answer(int(which))
        if which == 'truncated files' and not handler.local.is_file():
            return handler.answer(403)
        if which == 'stall':
            ended.wait()
        if 'truncated' in which:
            handler.answer(200, b'x', length=100)
        handler.close_connection = True
        return True

    with Server('site', fault=fault) as server:
        says = {'stall': 'stall', 'truncated': 'remaining', 'close': '',
                'truncated files': 'remaining',
                '500 XML': 'HTTP 500 InternalError'}.get(which, 'HTTP ' + which)
        stall = {'BAGS_STALL_SECONDS': '1'} if which == 'stall' else {}
        refuse('get', server.url + '/ds', '0', says=[server.url, says],
               env=_environment(**stall))
        ended.set()


@each(['503', 'stall'])
def a_lasting_fault_takes_the_time_of_one(which):
    """Whatever number of files is looked up: all are requested before one is given up."""
    ended = threading.Event()

    def fault(handler, number):
        if which == '503':
            return handler.answer(503)
        ended.wait()
        handler.close_connection = True
        return True

    os.mkdir('site')
    with Server('site', fault=fault) as server:
        for name in 'ds', 'a.zip/ds', 'a.zip/b.zip/ds':
            def late():
                """The files that were first requested after the last try of another."""
                begin = len(server.log)
                refuse('info', server.url + '/' + name, says=server.url, env=_environment(
                    BAGS_RETRY_SECONDS='2', BAGS_STALL_SECONDS='1'))
                first, last = {}, {}
                for i, (_, path, _) in enumerate(server.log[begin:]):
                    first.setdefault(path, i)
                    last[path] = i
                return sum(i > min(last.values()) for i in first.values())
            at_most(0, late)
        ended.set()


@each(['http', 's3'])
def what_is_missing_may_be_forbidden(how):
    """S3 answers 403 where the list is not permitted."""
    def fault(handler, number):
        return not handler.local.is_file() and handler.refuse(403, 'AccessDenied')

    for options in [], ['--shard-length', '7'], ['--shard-length', '7', '--checksum']:
        subprocess.run(['rm', '-rf', 'site', 'back'], check=True)
        path = _pack('site/ds', *options)
        if '--checksum' in options:
            run('catalogue', path)
        with Server('site', fault=fault) as server:
            url = server.url + '/ds' if how == 'http' else 's3://site/ds'
            server.root = server.root if how == 'http' else server.root.parent
            environment = _environment(server)
            _same(path, url, env=environment)
            _copy(url, 'back', env=environment)
            assert files('back') == files(path)
            missing = url.rpartition('/')[0] + '/nothing'
            refuse('info', missing, says=[missing, '403'], env=environment)


def a_list_that_is_truncated_without_a_token_is_an_error():
    os.mkdir('site')
    _pack('site/bucket/ds', '--shard-length', '7')

    def fault(handler, number):
        return 'list-type' in handler.path and handler.answer(
            200, b'<ListBucketResult><IsTruncated>true</IsTruncated>'
            b'<CommonPrefixes><Prefix>ds/000000/</Prefix></CommonPrefixes>'
            b'</ListBucketResult>', Content_Type='application/xml')

    with Server('site', s3=True, fault=fault) as server:
        refuse('info', 's3://bucket/ds', says=['s3://bucket/ds', 'truncated list'],
               env=_environment(server))


@each(['head', 'list'])
def an_answer_that_ends_in_its_head_is_truncated(what):
    """It is repeated: nothing says how long its body is."""
    os.mkdir('site')
    shards = 3 if what == 'head' else 110  # of which a page lists 100
    harness.pack([{'n': i} for i in range(shards)], 'n=int(4)', 'site/bucket/ds',
                 '--shard-length', '1')
    done = []

    def fault(handler, number):
        if done or {'head': '/n.bag', 'list': 'continuation'}[what] not in handler.path:
            return False
        done.append(number)
        handler.send_response(206 if what == 'head' else 200)
        handler.flush_headers()
        handler.wfile.write(b'Content-Ty')
        handler.close_connection = True
        return True

    with Server('site', s3=True, fault=fault) as server:
        shown = run('info', 's3://bucket/ds', '--json',
                    env=_environment(server, BAGS_RETRY_SECONDS='100')).json
        assert shown['length'] == shards and done


@each(['n.bag', 'n.crc'])
def only_an_object_of_no_bytes_is_empty(name):
    """416 states a size that contradicts it."""
    _pack('site/ds', '--checksum')

    def fault(handler, number):
        return handler.path.endswith(name) and handler.answer(
            416, Content_Range='bytes */40')

    with Server('site', fault=fault) as server:
        refuse('copy', server.url + '/ds', 'back', says=[name, 'HTTP 416'],
               env=_environment())


@each(['other range', 'no range', 'other size', 'more bytes', 'less bytes',
       'whole', 'an other object'])
def a_wrong_answer_is_never_data(which):
    """It is about ranges after the first one, which looks an object up."""
    os.mkdir('site')
    harness.pack([{'data': {'base64': 'ABCD' * 50_000}} for _ in range(60)],
                 'data=bytes', 'site/ds')

    def fault(handler, number):
        bounds = (handler.headers.get('Range') or 'bytes=-').split('=')[1].split('-')
        if not bounds[0] or not handler.local.is_file():
            return False
        first, last = map(int, bounds)
        data = handler.local.read_bytes()
        etag, size = handler.etag(data), len(data)
        shown = f'bytes {first}-{last}/{size}'
        body = data[first:last + 1]
        if which == 'other range':
            shown = f'bytes {first + 1}-{last + 1}/{size}'
        if which == 'other size':
            shown += '0'
        if which == 'more bytes':
            body += b'x'
        if which == 'less bytes':
            body = body[:-1]
        if which == 'an other object':
            etag = '"other"'
        if which == 'whole':
            return handler.answer(200, data, ETag=etag)
        return handler.answer(206, body, ETag=etag, **(
            {} if which == 'no range' else {'Content_Range': shown}))

    says = {'other range': 'another range', 'no range': 'Content-Range',
            'other size': 'changed while open', 'whole': 'nginx, Apache and S3 serve ranges',
            'more bytes': 'contradicting', 'less bytes': 'contradicting',
            'an other object': 'changed while open'}[which]
    with Server('site', fault=fault) as server:
        refuse('get', server.url + '/ds', '3', says=[server.url, says],
               env=_environment())


@each(['another end', 'another total', 'more bytes', 'less bytes', 'multipart', 'chunks',
       'compressed chunks', 'no length', 'truncated without a length', '206 of 200'])
def a_wrong_answer_to_a_lookup_is_never_data(which):
    """An error, or what is there; some of these are as they should be."""
    path = _pack('site/ds')

    def fault(handler, number):
        wanted = handler.headers.get('Range') or ''
        tail = wanted.startswith('bytes=-')
        if not handler.local.is_file() or not (tail or 'length' in which):
            return False
        data = handler.local.read_bytes()
        start, size = max(0, len(data) - int(wanted[7:])) if tail else 0, len(data)
        body, shown = data[start:], f'bytes {start}-{size - 1}/{size}'
        if 'length' in which or 'chunks' in which:
            handler.send_response(200 if 'length' in which else 206)
            handler.send_header('ETag', handler.etag(data))
            if 'length' in which:
                handler.close_connection = True
                handler.send_header('Connection', 'close')
                handler.end_headers()
                handler.wfile.write(data[:size // 2 if 'truncated' in which else size])
                return True
            zipped = gzip.compress(body) if 'compressed' in which else body
            handler.send_header('Content-Range', shown)
            handler.send_header('Transfer-Encoding',
                                'gzip, chunked' if 'compressed' in which else 'chunked')
            handler.end_headers()
            handler.wfile.write(b'%x\r\n%s\r\n0\r\n\r\n' % (len(zipped), zipped))
            return True
        if which == 'another end':
            shown = f'bytes {start}-{size - 1}/{size + 5}'
        if which == 'another total':
            shown = f'bytes {start + 5}-{size + 4}/{size + 5}'
        if which == 'more bytes':
            body += b'more'
        if which == 'less bytes':
            body = body[:-1]
        if which == 'multipart':
            return handler.answer(206, b'--x\r\n\r\n' + body + b'\r\n--x--',
                                  Content_Type='multipart/byteranges; boundary=x',
                                  ETag=handler.etag(data))
        if which == '206 of 200':
            return handler.answer(206, data, ETag=handler.etag(data))
        return handler.answer(206, body, ETag=handler.etag(data), Content_Range=shown)

    with Server('site', fault=fault) as server:
        done = subprocess.run([harness.PROGRAM, 'get', server.url + '/ds', ':'],
                              env=_environment(), capture_output=True)
    if done.returncode == 0:
        assert done.stdout == run('get', path, ':').out
    else:
        assert done.returncode == 1 and b'HTTP 20' in done.stderr or \
            b'changed while open' in done.stderr or b'runcated' in done.stderr, done.stderr
    assert (done.returncode == 0) == ('chunks' in which), done.stderr


def a_server_without_ranges_serves_small_files():
    path = _pack('site/ds', '--shard-length', '10')

    def fault(handler, number):
        del handler.headers['Range']

    with Server('site', fault=fault) as server:
        _same(path, server.url + '/ds', env=_environment())


def an_object_that_is_replaced_is_an_error():
    """Between the lookup and the first range: the same size, other bytes."""
    os.mkdir('site')
    rows = [{'data': {'base64': 'ABCD' * 50_000}} for _ in range(60)]
    harness.pack(rows, 'data=bytes', 'site/ds')

    def fault(handler, number):
        bag = handler.server.root / 'ds' / 'data.bag'
        if not (handler.headers.get('Range') or 'bytes=-').startswith('bytes=-'):
            bag.write_bytes(bytes(150_000) + bag.read_bytes()[150_000:])

    with Server('site', fault=fault) as server:
        refuse('get', server.url + '/ds', ':', says=['changed while open', 'data.bag'],
               env=_environment())


@each(['', '--shard-length 100'])
def few_requests_and_bytes_are_needed(how):
    """Of 60 MB: unsharded and in 10 shards; as a directory, a zip and a tar."""
    os.mkdir('site')
    rows = [{'data': {'base64': 'ABCD' * 20_000}, 'n': i, 'text': str(i)}
            for i in range(1000)]
    harness.pack(rows, 'data=bytes,n=int(4),text=utf8', 'site/ds', '--no-checksum',
                 *how.split())
    run('zip', 'site/ds', 'site/ds.zip')
    with tarfile.open('site/ds.tar', 'w') as tar:
        tar.add('site/ds', '.')
    batch = '[' + ','.join(str(i * 997 % 1000) for i in range(32)) + ']'
    # Files of a directory are looked up one by one: there are 50 of 10 shards, and as
    # many that may exist, for which their directories have no list at hand. How many
    # headers of a tar are read with the tables before them depends on the threads.
    # ETags that are hashes: what was looked up is looked at again, and of all shards
    # before the first datapoint.
    lookups = {'': None, '.zip': [0, 0, 10], '.tar': [20 if how else 0, 0, 15]}
    lookups[''] = [155, 42, 182] if how else [14, 2, 8]
    for ending, more in lookups.items():
        first = 4 if ending == '.zip' else 20
        for words, size, most in (
                (['info'], 2 << 20, 20 + more[0]),
                (['get', '0'], 3 << 20, first + more[1]),
                (['get', '777', 'n'], 3 << 20, 20 + more[1]),
                (['get', batch], 6 << 20, 40 + more[2])):
            # Files are looked at again together. Where a busy machine answers one late,
            # some are looked at twice: of a few attempts one must do without.
            def requests():
                with Server('site', index=True) as server:
                    run(words[0], f'{server.url}/ds{ending}', *words[1:],
                        env=_environment())
                assert server.sent <= size, (ending, words, server.sent)
                return len(server.log)

            at_most(most, requests)


def shards_are_verified_in_a_few_round_trips():
    _pack('site/ds', '--shard-length', '1', '--checksum')
    with Server('site', index=True) as server, _Together(server, 32):
        run('verify', server.url + '/ds', env=_environment())


@each(['refs.bag', 'spec.json'])
def verify_reads_the_files_that_a_catalogue_replaces(name):
    path = _pack('site/ds', '--shard-length', '7', '--checksum')
    run('catalogue', path)
    file = pathlib.Path(path, '000001', name)
    file.write_bytes(file.read_bytes().replace(b'utf8', b'utf9', 1) if name == 'spec.json' else
                     file.read_bytes()[:-1] + b'\1')
    with Server('site', index=True) as server:
        out = run('verify', server.url + '/ds', code=1, env=_environment()).out.decode()
        assert f'/000001/{name}' in out or f'000001/refs.crc: {name}' in out, out


@each(['neither', 'an ETag', 'a time'])
def a_server_that_identifies_nothing_is_named(what):
    _pack()

    def fault(handler, number):
        if not handler.local.is_file():
            return False
        data = handler.local.read_bytes()
        first, last = handler.headers['Range'][6:].split('-')
        start = int(first) if first else max(0, len(data) - int(last))
        stop = int(last) + 1 if first else len(data)
        return handler.answer(206, data[start:stop],
                              Content_Range=f'bytes {start}-{stop - 1}/{len(data)}',
                              **{'neither': {}, 'an ETag': {'ETag': '"1"'},
                                 'a time': {'Last_Modified': 'today'}}[what])

    with Server('site', fault=fault) as server:
        said = run('get', server.url + '/ds', ':', env=_environment()).err
        assert said.count('neither an ETag nor a Last-Modified') == (what == 'neither')


def a_compressed_answer_is_refused():
    _pack()
    with Server('site', fault=lambda handler, number: handler.local.is_file() and
                handler.answer(200, b'x', Content_Encoding='gzip')) as server:
        refuse('info', server.url + '/ds', says='Content-Encoding gzip', env=_environment())


@each([('copy', 'probing'), ('copy', 's3'), ('export', 'index'),
       ('export', 'short hashes'), ('verify', 'index')])
def a_dataset_that_is_replaced_is_of_one_version_or_an_error(case):
    """At a third of the requests, and at two thirds. tests/formats/storage/test_http.c replaces one
    before every request; here are those that only the command makes."""
    word, how = case
    for v in 'ab':
        harness.pack([{'x': f'{v}{i}', 'y': [f'{v}{i}'] * (i % 3 + 1)} for i in range(9)],
                     'x=utf8,y=utf8[]', f'{v}/bucket/ds', '--shard-length', '3',
                     *(['--checksum'] if word == 'verify' else []))
    roots = [pathlib.Path(v).resolve() for v in 'ab']
    out = [] if word == 'verify' else ['out']

    def read(path, **more):
        done = subprocess.run([harness.PROGRAM, word, path, *out], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, **more)
        found = files('out') if out and not done.returncode else done.stdout
        subprocess.run(['rm', '-rf', 'out'], check=True)
        return done.returncode, found

    def read_replaced(at):
        def fault(handler, number):
            handler.root = roots[number >= at]
            if how == 's3' or not handler.local.is_file():
                return False
            data = handler.local.read_bytes()
            handler.send_range(data, f'"{zlib.crc32(data):x}"' if how == 'short hashes'
                               else f'"{number >= at} {len(data)}"')
            return True

        with Server('.', how == 'index', how == 's3', fault=fault) as server:
            url = 's3://bucket/ds' if how == 's3' else server.url + '/bucket/ds'
            return *read(url, env=_environment(server)), len(server.log)

    results = [read(f'{v}/bucket/ds') for v in 'ab']
    code, found, requests = read_replaced(10**9)
    assert code == 0 and (word == 'verify' or (code, found) == results[0]), found
    for at in requests // 3, requests * 2 // 3:
        code, found, _ = read_replaced(at)
        if code == 0:
            assert word == 'verify' or (code, found) in results, (at, found)
        else:
            assert code == 1 and b'/ds' in found and (
                b' replaced' in found or b'changed' in found), found


@each(['ds refs.bag', 'ds 000001/refs.bag', 'ds/x.bag x.bag', 'q.bag q.bag', 'q.bag q.crc'])
def what_is_requested_before_its_spec_is_found_is_looked_up_again(case):
    """This file is answered before the dataset is replaced, all others after that; as is
    one file of a Bag that is in no dataset."""
    path, early = case.split()
    for v in range(2):
        harness.pack([{'x': f'{v}{i}', 'y': [f'{v}{i}'] * (1 + (i + v) % 2)}
                      for i in range(8)], 'x=utf8,y=utf8[]', f'{v}/ds', '--no-checksum',
                     *(['--shard-length', '4'] if '0' in early else []))
        run('pack', harness.write_lines('m.jsonl', [{'blob': {'base64': f'AAA{v}'}}]),
            f'{v}/q.bag', '--no-sync')
    answered = threading.Event()

    def fault(handler, number):
        is_early = handler.path.endswith('/' + early)
        spec = early.replace('refs.bag', 'spec.json')
        if handler.path.endswith('/' + spec) and spec != early:
            assert answered.wait(harness.HANG)
        handler.root = pathlib.Path('01'[answered.is_set() or not is_early]).resolve()
        if not handler.local.is_file():
            return False
        data = handler.local.read_bytes()
        handler.send_range(data, f'"{handler.root.name} {len(data)}"',
                           Last_Modified='Sat, 03 Oct 2026 10:00:00 GMT')
        if is_early:
            answered.set()
        return True

    with Server('.', True, fault=fault) as server:
        refuse(*(['get', f'{server.url}/ds', ':'] if path == 'ds' else
                 ['copy', f'{server.url}/{path}', 'out.bag']),
               says='replaced', env=_environment())
    assert answered.is_set()


@each([(how, answer) for how in ('probing', 'index') for answer in (206, 404, 500)])
def shards_that_are_added_while_a_dataset_is_opened_are_an_error(case):
    """Whatever is read of the last shard, if only its refs, waits for the answer whether
    there is another one."""
    how, status = case
    harness.pack([{'x': f'{i}', 'y': []} for i in range(9)], 'x=utf8,y=utf8[]', 'site/ds',
                 '--shard-length', '3')

    def fault(handler, number):
        if not handler.path.endswith('/000003/spec.json') or (
                how == 'probing' and handler.headers['Range'] != 'bytes=-1'):
            return False
        time.sleep(0.2)
        return handler.answer(status, b'}' * (status == 206), Content_Range='bytes 9-9/10')

    for words in ['get', '8', 'x'], ['get', '-1', 'y'], ['get', ':'], ['info', '--json']:
        with Server('site', how == 'index', fault=fault) as server:
            words[1:1] = [server.url + '/ds']
            if status == 404:
                run(*words, env=_environment())
            else:
                refuse(*words, says='a shard was added' if status == 206 else 'HTTP 500',
                       env=_environment())


_PAGES = {'HTML': '<!doctype html><title>app</title>', 'a list': '[]', 'nothing': '',
          'JSON': '{"error": "not found"}', 'JSON of a path': '{"error": "no %s"}',
          'JSON of numbers': '{"code": 404}', 'text': 'spec.json'}


@each([(page, how) for page in _PAGES for how in ('whole', 'shards', 'nothing')])
def a_server_that_answers_every_path_ends(case):
    """With what is there, or an error that shows the answer; the page is never stored."""
    page, how = case
    os.mkdir('site')
    if how != 'nothing':
        _pack('site/ds', *(['--shard-length', '7'] if how == 'shards' else []))

    def fault(handler, number):
        kind = 'text/html' if page == 'HTML' else 'application/json'
        body = _PAGES[page].replace('%s', handler.path).encode()
        return not handler.local.is_file() and handler.answer(200, body, Content_Type=kind)

    with Server('site', fault=fault) as server:
        for words in ['info', '--json'], ['get', ':'], ['copy', 'out']:
            before = len(server.log)
            done = subprocess.run([harness.PROGRAM, words[0], server.url + '/ds', *words[1:]],
                                  env=_environment(), stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, timeout=60)
            assert len(server.log) - before < 250
            assert done.returncode in (0, 1), done.stderr
            assert not done.returncode or b'/ds' in done.stderr, done.stderr
            if how == 'nothing':
                assert done.returncode == 1
            elif page in ('HTML', 'a list', 'nothing', 'text'):
                assert done.returncode == 0, (words, done.stderr)
            if done.returncode == 0 and words[0] == 'copy':
                assert files('out') == files('site/ds')
            elif done.returncode == 0:
                local = run(words[0], 'site/ds', *words[1:]).out
                assert _shown(done.stdout, server.url + '/ds') == _shown(local, 'site/ds')
            elif how == 'nothing' and page == 'HTML':
                assert b'<!doctype html>' in done.stderr, done.stderr
            if os.path.exists('out'):
                stored = b''.join(files('out').values())
                assert page == 'nothing' or _PAGES[page][:12].encode() not in stored or \
                    page == 'text' or page == 'a list'


@each(['the last folder', 'numbers', 'six digits'])
def a_server_that_ignores_a_folder_ends(which):
    """It has every shard: a dataset is what its own spec.json states, or an error."""
    _pack('site/ds')
    pattern = {'the last folder': r'(/x)(/.*)?/', 'numbers': r'(/x)/\d+/',
               'six digits': r'(/x)/\d{6}/'}[which]

    def fault(handler, number):
        handler.path = re.sub('^' + pattern, '/ds/', handler.path)
        return False

    with Server('site', fault=fault) as server:
        for words in ['info'], ['get', ':'], ['verify']:
            before = len(server.log)
            if which == 'the last folder':
                local = run(words[0], 'site/ds', *words[1:]).out
                out = run(words[0], server.url + '/x', *words[1:], env=_environment()).out
                assert out.replace(server.url.encode() + b'/x', b'site/ds') == local
            else:
                refuse(words[0], server.url + '/x', *words[1:], env=_environment(),
                       says='the server has every shard up to 999999')
            assert len(server.log) - before < 50


@each(['401', '403', '403 of all that is missing'])
def a_shard_that_is_refused_is_an_error(which):
    _pack('site/ds', '--shard-length', '7')

    def fault(handler, number):
        if 'all' in which and not handler.local.is_file():
            return handler.answer(403)
        return 'all' not in which and '/00000' in handler.path and \
            handler.path > '/ds/000003' and handler.answer(int(which[:3]))

    with Server('site', fault=fault) as server:
        if 'all' in which:
            run('info', server.url + '/ds', env=_environment())
        else:
            refuse('info', server.url + '/ds', says='HTTP ' + which, env=_environment())


@each(['trailers', 'error', 'slow error', 'list', 'redirect'])
def an_answer_without_an_end_is_an_error(what):
    _pack()
    sent = [0]

    def fault(handler, number):
        write = handler.wfile.write
        handler.close_connection = True
        if what == 'list':
            sent[0] += 9 << 20
            return handler.answer(200, b'<ListBucketResult><NextContinuationToken>x%d'
                                  b'</NextContinuationToken>' % number + b' ' * (9 << 20))
        handler.send_response(
            404 if 'error' in what else 302 if what == 'redirect' else 200)
        if what == 'redirect':
            handler.send_header('Location', '/')
        handler.send_header('Transfer-Encoding', 'chunked')
        handler.end_headers()
        if what == 'trailers':
            write(b'1\r\nx\r\n0\r\n')
        chunk = b'X-More: ' + b'x' * 50_000 + b'\r\n' if what == 'trailers' else \
            b'8\r\nnothing!\r\n' * 200
        try:
            while sent[0] < 200 << 20:
                write(chunk)
                sent[0] += len(chunk)
                time.sleep(0.3 if what == 'slow error' else 0)
        except OSError:
            pass
        return True

    with Server('site', s3=what == 'list', fault=fault) as server:
        url = 's3://b/ds' if what == 'list' else server.url + '/ds'
        refuse('info', url, says='/ds', env=_environment(server))
        # More than one request per page, if the machine is slow.
        assert sent[0] < (600 if what == 'list' else 190) << 20, sent


def the_code_of_an_error_contains_no_secret():
    _pack()
    with Server('site', fault=lambda handler, number: handler.answer(
            500, b'<Error><Code>Bad.1?sig=hidden&amp;x</Code></Error>')) as server:
        said = refuse('info', server.url + '/ds', says='HTTP 500 Bad.1', env=_environment()).err
        assert 'hidden' not in said and 'sig' not in said, said


def the_name_of_a_field_is_not_encoded():
    pathlib.Path('spec.json').write_text(json.dumps({'%41': 'int(4)', 'A': 'int(4)'}))
    run('pack', harness.write_lines('m.jsonl', [{'%41': i, 'A': 9} for i in range(3)]),
        'site/ds', '--spec', 'spec.json', '--no-sync', '--shard-length', '1')
    for index in True, False:
        with Server('site', index) as server:
            _same('site/ds', server.url + '/ds', env=_environment())
            run('verify', server.url + '/ds', env=_environment())  # does not wait for spec.json


def what_the_server_does_not_list_is_not_requested():
    _pack()
    with Server('site', index=True) as server:
        run('info', server.url + '/ds', env=_environment())
        asked = {path for _, path, _ in server.log if '/index/' not in path}
        assert not [path for path in asked if path.endswith(('.crc', '.partial'))], asked


def an_index_needs_a_local_dataset():
    _pack()
    with Server('site', index=True) as server:
        refuse('index', server.url + '/ds', 'n', says='DATASET must be a local path', code=2,
               env=_environment())


def a_batch_is_loaded_in_a_few_round_trips():
    os.mkdir('site')
    rows = [{'data': {'base64': 'ABCD' * 10_000}} for _ in range(256)]
    harness.pack(rows, 'data=bytes', 'site/ds')
    with Server('site', index=True) as server, _Together(server, 32):
        run('load', server.url + '/ds', '--batch', '64', '--threads', '1', env=_environment())


@each([30_000, 8])
def reading_in_order_reads_ahead(size):
    os.mkdir('site')
    count = 300 if size > 8 else 20_000
    rows = [{'data': f'{i:08}' * (size // 8)} for i in range(count)]
    harness.pack(rows, 'data=utf8', 'site/ds')
    with Server('site', index=True) as server:
        run('export', server.url + '/ds', 'remote', env=_environment())
        run('export', 'site/ds', 'local')
        assert files('remote') == files('local')
        assert len(server.log) < 40, len(server.log)
        size = sum(len(data) for data in files('site/ds').values())
        assert server.sent < 1.2 * size + 100_000


def a_wrong_key_is_refused_by_name():
    os.mkdir('site')
    _pack('site/bucket')
    os.mkdir('site/b')
    os.rename('site/bucket', 'site/b/ds')
    with Server('site', s3=True) as server:
        for name, value, says in (
                ('AWS_ACCESS_KEY_ID', 'other', 'InvalidAccessKeyId'),
                ('AWS_SECRET_ACCESS_KEY', 'other', 'SignatureDoesNotMatch'),
                ('AWS_SESSION_TOKEN', 'other', 'InvalidToken'),
                ('AWS_REGION', 'other', 'SignatureDoesNotMatch')):
            result = refuse('info', 's3://b/ds', says=['s3://b/ds', says],
                            env=_environment(server, **{name: value}))
            assert SECRET not in result.err and 'AKID' not in result.err


def settings_are_read_from_files():
    os.mkdir('site')
    _pack('site/ds')
    os.mkdir('site/b')
    os.rename('site/ds', 'site/b/ds')
    os.mkdir('.aws')
    with Server('site', s3=True, token='a token') as server:
        pathlib.Path('.aws/credentials').write_text(
            f'[default]\naws_access_key_id = wrong\n[work]\n'
            f'aws_access_key_id={KEY}\naws_secret_access_key = {SECRET}\n'
            f'aws_session_token = a token\n')
        pathlib.Path('.aws/config').write_text(
            f'[profile work]\nregion = eu-test-1\nendpoint_url = {server.url}/\n')
        environment = {k: v for k, v in os.environ.items() if 'AWS' not in k}
        run('info', 's3://b/ds', env=dict(environment, HOME=os.getcwd(),
                                          AWS_PROFILE='work'))


def secrets_of_a_url_are_not_shown():
    path = _pack()
    seen = []

    def fault(handler, number):
        seen.append((handler.path, handler.headers.get('Authorization')))
        return False

    with Server('site', fault=fault) as server:
        url = server.url.replace('//', '//me:pass@') + '/ds?sig=abc%2Fdef'
        out = run('info', url, '--json', env=_environment()).out.decode()
        assert 'sig' not in out and 'pass' not in out
        assert server.url + '/ds' in out
        assert all('sig=abc%2Fdef' in p and a for p, a in seen), seen
        result = refuse('get', url.replace('/ds', '/none'), '0', says='/none',
                        env=_environment())
        assert 'sig' not in result.err and 'pass' not in result.err


@each([['info'], ['copy', 'ds'], ['zip', 'ds'], ['recover'], ['checksum'], ['finalize'],
       ['pack', 'manifest.jsonl', '--spec', 'n=int(4)']])
def secrets_of_a_url_that_is_refused_are_not_shown(words):
    harness.pack([{'n': 1}], 'n=int(4)', 'ds')
    before = files('.')
    for front in ['HTTP://user:hidden@', 'ftp://user:hidden@', 'http:///hidden@',
                  'http://user:p/hidden@', 'http://user:p?hidden@', 's3://key:hidden@',
                  's3://key:p/hidden@', 'http://user:hidden@',
                  'http://127.0.0.1:1?hidden']:
        operands = [words[0], *words[1:2], front + '127.0.0.1:1', *words[2:]]
        done = subprocess.run([harness.PROGRAM, *operands], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=_environment())
        assert done.returncode in (1, 2), (front, done)
        assert b'hidden' not in done.stdout and b'Sanitizer' not in done.stdout, done
        assert files('.') == before


def one_path_with_two_queries_is_refused():
    """Of which the second dataset would be the first again."""
    _pack()
    with Server('site', index=True) as server:
        url = server.url + '/ds'
        bob = url.replace('//', '//bob:pw@')
        for one, two in ((url + '?v=1', url + '?v=2'), (url, url + '?v=2'),
                         (url + '?v=1', url), (url + '?v=1', url + '/000000'),
                         (url + '/n.bag?v=1', url), (url, bob), (bob, url)):
            result = refuse('verify', one, two, code=2, says='one query and one user',
                            env=_environment())
            assert 'pw' not in result.err and 'v=' not in result.err, result.err
        run('verify', url + '?v=1', url + '?v=1', server.url + '/ds/n.bag?v=1',
            env=_environment())


@each(['me:p%40s%25s', 'me:p@s%25s'])
def a_password_is_encoded_in_a_url(user):
    _pack()
    expected = 'Basic ' + base64.b64encode(b'me:p@s%s').decode()
    with Server('site', fault=lambda handler, number: handler.headers.get(
            'Authorization') != expected and handler.answer(401)) as server:
        url = server.url.replace('//', f'//{user}@') + '/ds'
        out = run('info', url, '--json', env=_environment()).json
        assert out['path'] == server.url + '/ds'


@each([('the listing does not end', 3000), ('the list repeats a page', 20)])
def a_listing_without_an_end_is_an_error(case):
    says, most = case
    os.makedirs('site/b')
    with Server('site', s3=True, fault=lambda handler, number: 'list-type' in handler.path
                and handler.answer(200, b'<ListBucketResult><NextContinuationToken>' +
                                   (b'%d' % number if most == 3000 else b'x') +
                                   b'</NextContinuationToken></ListBucketResult>')
                ) as server:
        refuse('info', 's3://b/ds', says=says, env=_environment(server))
        assert len(server.log) < most


def a_user_is_not_passed_to_another_host():
    _pack()
    seen = []

    def fault(handler, number):
        seen.append(handler.headers.get('Authorization'))

    with Server('site', fault=fault) as other:
        away = other.url.replace('127.0.0.1', 'localhost')
        with Server('site', fault=lambda handler, number: handler.answer(
                302, Location=away + handler.path)) as server:
            run('info', server.url.replace('//', '//me:pass@') + '/ds',
                env=_environment())
    assert seen and not any(seen)


def _copy(path, to, *options, **more):
    run('copy', path, to, *options, **more)
    return to


@each([[], ['--shard-length', '7', '--checksum'], ['--idx']])
def a_dataset_is_copied_to_a_store_and_back(options):
    path = _pack('here/ds', *options)
    os.makedirs('site/bucket')
    if '--checksum' in options:
        run('catalogue', path)
    with Server('site', s3=True) as server:
        environment = _environment(server)
        _copy(path, 's3://bucket/a b/ds', env=environment)
        assert files('site/bucket/a b/ds') == files(path)
        puts = [p for m, p, _ in server.log if m == 'PUT']
        if '--checksum' in options:
            assert puts.pop().endswith('/000000/catalogue')
        specs = [i for i, p in enumerate(puts) if p.endswith('spec.json')]
        assert specs == list(range(len(puts) - len(specs), len(puts)))
        assert puts[-1] == min(puts[specs[0]:])
        _copy('s3://bucket/a b/ds', 'back', env=environment)
        assert files('back') == files(path)
        # Nothing is sent again.
        server.log.clear()
        out = run('copy', path, 's3://bucket/a b/ds', env=environment).out
        assert b' 0 files copied' in out
        assert not [m for m, _, _ in server.log if m != 'GET']
    with Server('here', index=True) as server:
        _copy(server.url + '/ds', 'web', env=_environment())
        assert files('web') == files(path)
        _copy(server.url + '/ds', 'web', env=_environment())
    _copy(path, 'other')
    assert files('other') == files(path)
    assert b' 0 files copied' in run('copy', path, 'other').out


@each(['s3://bucket/ds/', 's3://bucket//', 's3://bucket/a?b@c/'])
def slashes_at_the_end_of_a_url_are_ignored(url):
    path = _pack('here/ds')
    os.makedirs('site/bucket')
    with Server('site', s3=True) as server:
        environment = _environment(server)
        _copy(path, url, env=environment)
        plain = url.rstrip('/')
        assert not [p for _, p, _ in server.log if '//' in p]
        assert files('site/' + plain[5:]) == files(path)
        for there in (plain, url):
            assert run('get', there, ':', env=environment).out == run('get', path, ':').out


@each(['503', '429', 'close', '500 of the last request',
       'no answer to the last request, which was carried out'])
def a_passing_fault_of_an_upload_is_survived(which):
    path = _pack('here/ds')
    os.makedirs('site/bucket')
    with open('large', 'wb') as file:
        file.truncate(6 << 20)
    run('pack', harness.write_lines('m.jsonl', [{'blob': {'file': 'large'}}]), 'x.bag',
        '--no-sync')
    seen = set()

    def fault(handler, number):
        if handler.command == 'GET' or (handler.command, handler.path) in seen:
            return False
        if 'last' in which and not b'CompleteMultipart' in handler.body:
            return False
        seen.add((handler.command, handler.path))
        if 'carried out' in which:
            handler.wfile = io.BytesIO()
            handler.close_connection = True
            return False
        handler.close_connection = which == 'close'
        return which == 'close' or handler.answer(int(which[:3]))

    with Server('site', s3=True, fault=fault) as server:
        environment = _environment(server, BAGS_RETRY_SECONDS='100')
        _copy(path, 's3://bucket/ds', env=environment)
        _copy('x.bag', 's3://bucket/x.bag', '--part-size', '5M', env=environment)
        assert files('site/bucket/ds') == files(path)
        assert files('site/bucket')['x.bag'] == pathlib.Path('x.bag').read_bytes()
        assert not server.uploads and seen


def parts_of_a_failed_upload_are_discarded():
    os.makedirs('site/bucket')
    with open('large', 'wb') as file:
        file.truncate(6 << 20)
    run('pack', harness.write_lines('m.jsonl', [{'blob': {'file': 'large'}}]), 'x.bag',
        '--no-sync', '--no-checksum')
    with Server('site', s3=True, fault=lambda handler, number: 'partNumber=2' in
                handler.path and handler.refuse(403, 'QuotaExceeded')) as server:
        refuse('copy', 'x.bag', 's3://bucket/x.bag', '--part-size', '5M',
               env=_environment(server),
               says=['s3://bucket/x.bag', 'QuotaExceeded'])
        assert not server.uploads and not files('site/bucket')


def an_interrupted_upload_continues():
    path = _pack('here/ds', '--shard-length', '7')
    os.makedirs('site/bucket')
    puts = []

    def fault(handler, number):
        if handler.command == 'PUT':
            puts.append(handler.path)
            return len(puts) > 9 and handler.refuse(403, 'AccessDenied')
        return False

    with Server('site', s3=True, fault=fault) as server:
        environment = _environment(server)
        refuse('copy', path, 's3://bucket/ds', says=['AccessDenied', 'again'],
               env=environment)
        assert 9 <= len(list(pathlib.Path('site').rglob('*.bag'))) <= 9
        refuse('info', 's3://bucket/ds', says='s3://bucket/ds', env=environment)
        server.fault = None
        out = run('copy', path, 's3://bucket/ds', env=environment).out
        assert b' 9 already equal' in out, out
        assert files('site/bucket/ds') == files(path)


def an_interrupted_download_continues():
    path = _pack('site/ds', '--shard-length', '7')
    with Server('site', index=True, fault=lambda handler, number: (
            handler.path.endswith('000003/words.bag') and handler.answer(403))) as server:
        refuse('copy', server.url + '/ds', 'back', says='403', env=_environment())
        assert not list(pathlib.Path('back').rglob('spec.json'))
        assert not list(pathlib.Path('back').rglob('*.copy'))
        server.fault = None
        _copy(server.url + '/ds', 'back', env=_environment())
        assert files('back') == files(path)


def a_finished_dataset_is_not_replaced():
    path = _pack('here/ds', '--shard-length', '7')
    harness.pack([{'n': 1}], 'n=int(4)', 'one')
    harness.pack([{'n': 1}], 'n=int(4)', 'two', '--shard-length', '1')
    harness.pack([dict(row, n=row['n'] + 1) for row in ROWS], SPEC, 'changed',
                 '--shard-length', '7', '--no-checksum')
    os.makedirs('site/bucket')
    with Server('site', s3=True) as server:
        environment = _environment(server)
        for place in ('there', 's3://bucket/ds'):
            _copy(path, place, env=environment)
            for other, says in (('one', 'another dataset'), ('two', 'another dataset'),
                                ('changed', 'different content')):
                refuse('copy', other, place, says=[place, says], env=environment)
        assert files('there') == files('site/bucket/ds') == files(path)


def a_finished_dataset_in_a_store_whose_etags_are_no_hashes_is_compared():
    """As those of encrypted objects: a copy that is repeated is no other dataset."""
    path = _pack('here/ds', '--shard-length', '7')
    harness.pack([dict(row, n=row['n'] + 1) for row in ROWS], SPEC, 'changed',
                 '--shard-length', '7', '--no-checksum')
    os.makedirs('site/bucket')
    with Server('site', s3=True) as server:
        environment = _environment(server)
        _copy(path, 's3://bucket/ds', env=environment)
        for i, file in enumerate(sorted(pathlib.Path('site/bucket').resolve().rglob('*.*'))):
            server.etags[file] = f'"{i:032x}"' if i % 2 else f'"opaque-{i}"'
        out = run('copy', path, 's3://bucket/ds', env=environment).out
        assert b' 0 files copied' in out, out
        refuse('copy', 'changed', 's3://bucket/ds', env=environment,
               says=('s3://bucket/ds', 'already exists with different content'))
        assert files('site/bucket/ds') == files(path)


def a_finished_dataset_receives_no_field_of_another():
    harness.pack([{'n': 1}], 'n=int(4)', 'one')
    harness.pack([{'m': 1}], 'm=int(4)', 'two')
    before = files('one')
    error = refuse('copy', 'two', 'one', says='one/spec.json: already exists with different content').err
    assert 'again' not in error, error
    assert files('one') == before


@each(['there', 's3://bucket/ds'])
def an_interrupted_copy_leaves_no_file_to_another_dataset(place):
    one = _pack('here/one', '--checksum', '--idx')
    two = _pack('here/two')
    os.makedirs('site/bucket')
    with Server('site', s3=True) as server:
        environment = _environment(server)
        _copy(one, place, env=environment)
        root = pathlib.Path('site' if '://' in place else '.', place.replace('s3://', ''))
        (root / 'spec.json').unlink()
        refuse('copy', two, place, says=[place, 'already exists', 'no such file'],
               env=environment)
        assert not (root / 'spec.json').exists()
        for file in root.iterdir():
            if file.suffix != '.bag':
                file.unlink()
        _copy(two, place, env=environment)
        # What is made of a finished copy is its own.
        (root / 'n.crc').write_bytes(b'')
        _copy(two, place, env=environment)


def a_bag_of_a_dataset_is_copied_without_the_checksums_of_the_dataset():
    harness.pack([{'n': 1}], 'n=int(4)', 'ds', '--checksum')
    assert b' 1 file copied' in run('copy', 'ds/n.bag', 'n.bag').out
    run('verify', 'n.bag')
    run('checksum', 'n.bag')
    assert b' 2 files copied' in run('copy', 'n.bag', 'm.bag').out
    assert b'with checksums' in run('verify', 'm.bag').out


def a_large_bag_is_uploaded_in_parts():
    os.makedirs('site/bucket')
    row = {'blob': {'file': 'large'}}
    with open('large', 'wb') as file:
        file.truncate(6 << 20)
    run('pack', harness.write_lines('m.jsonl', [row, row]), 'x.bag', '--no-sync',
        '--no-checksum')
    with Server('site', s3=True) as server:
        environment = _environment(server)
        _copy('x.bag', 's3://bucket/x.bag', '--part-size', '5M', env=environment)
        assert [m for m, _, _ in server.log if m in ('PUT', 'POST')] == \
            ['POST', 'PUT', 'PUT', 'PUT', 'POST']
        assert files('site/bucket')['x.bag'] == pathlib.Path('x.bag').read_bytes()
        assert b' 0 files copied' in run(
            'copy', 'x.bag', 's3://bucket/x.bag', '--part-size', '5M', env=environment).out


def an_unfinished_dataset_is_not_copied():
    _pack('ds', '--shard-length', '7')
    os.remove('ds/000002/spec.json')
    refuse('copy', 'ds', 'out', says='000002')
    assert not os.path.exists('out')


def what_does_not_exist_is_missing():
    os.mkdir('site')
    with Server('site', index=True) as server:
        refuse('info', server.url + '/none', says='No such file',
               env=_environment())
        refuse('get', server.url + '/none.bag', '0', says=server.url,
               env=_environment())
    refuse('info', server.url + '/none', says=server.url, env=_environment())


@each(['index', 'no index', 's3'])
def a_directory_without_a_dataset_is_said_to_be_one(how):
    """As locally. The datasets in it are named where the server lists them."""
    os.makedirs('site/bucket/files')
    _pack('site/bucket/ds')
    _pack('site/bucket/sh', '--shard-length', '7')
    pathlib.Path('site/bucket/files/a.txt').write_text('a')
    with Server('site', how == 'index', how == 's3') as server:
        base = 's3://' if how == 's3' else server.url + '/'
        for name in ('bucket', 'bucket/files', 'bucket/none'):
            for words in ['info'], ['get', ':1'], ['verify'], ['copy', 'out']:
                local = refuse(words[0], 'site/' + name, *words[1:]).err
                before = len(server.log)
                found = refuse(words[0], base + name, *words[1:],
                               env=_environment(server)).err
                if how == 'no index':
                    local = local.split('; it contains')[0].rstrip() + '\n'
                assert found.replace(base, 'site/') == local, (found, local)
                assert len(server.log) - before < 30


def a_host_that_does_not_exist_is_an_error():
    environment = {k: v for k, v in os.environ.items() if 'AWS' not in k}
    for url in ('http://none.invalid/ds', 'https://none.invalid/ds', 's3://none/ds'):
        environment['AWS_ENDPOINT_URL'] = 'https://none.invalid'
        refuse('info', url, says=['none', 'resolve'], env=environment)
        refuse('copy', url, 'out', says='resolve', env=environment)


def nothing_is_written_to_a_url():
    refuse('pack', harness.write_lines('m.jsonl', [{'n': 1}]), 's3://b/out',
           '--spec', 'n=int(4)', says='bags copy', code=2)
    harness.pack([{'n': 1}], 'n=int(4)', 'ds')
    result = refuse('export', 'ds', 'http://user:pass@127.0.0.1:1/out', says='bags copy',
                    code=2)
    assert 'pass' not in result.err and not pathlib.Path('http:').exists()


@each(['whole', 'shards'])
def a_zip_file_on_a_server_is_read_in_place(how):
    _pack('site/ds', *(['--shard-length', '7'] if how == 'shards' else []))
    run('zip', 'site/ds', 'site/ds.zip', '--no-sync')
    with tarfile.open('site/ds.tar', 'w') as archive:
        archive.add('site/ds', arcname='in')
    with Server('site') as server:
        for name in 'ds.zip', 'ds.tar/in':
            _same('site/' + name, f'{server.url}/{name}', env=_environment(server))
        refuse('info', server.url + '/none.zip', says='none.zip',
               env=_environment(server))


def a_zip_is_made_of_a_dataset_on_a_server():
    rows = [{'n': i, 'data': {'base64': 'AAAA' * 10000}} for i in range(40)]
    harness.pack(rows, 'n=int(4),data=bytes', 'site/ds', '--shard-length', '20')
    run('zip', 'site/ds', 'a.zip', '--no-sync')
    with Server('site', index=True) as server:
        run('zip', server.url + '/ds', 'b.zip', '--no-sync',
            env=_environment(server))
    assert files('.')['a.zip'] == files('.')['b.zip']


@each([[], ['--shard-length', '7']])
def what_was_not_selected_is_not_downloaded_unasked(options):
    path = _pack('here/ds', *options)
    os.mkdir('site')
    run('derive', path, 'site/ds', '--range', '::2', '--no-sync')
    run('zip', 'site/ds', 'site/ds.zip', '--whole')
    with Server('site', index=True) as server:
        for name in 'ds', 'ds.zip':
            words = ['copy', f'{server.url}/{name}', 'out']
            refuse(*words, says='no datapoint refers to; --compact', env=_environment(server))
            refuse('zip', *words[1:2], 'out.zip', says='no datapoint refers to; --compact',
                   env=_environment(server))
            assert not os.path.exists('out') and not os.path.exists('out.zip')
            run(*words, '--compact', env=_environment(server))
            run('zip', 'out', 'out.zip')
            assert run('get', 'out', ':').out == run('get', 'site/ds', ':').out
            shutil.rmtree('out')
            os.remove('out.zip')
        run('copy', server.url + '/ds', 'out', '--whole', env=_environment(server))
        assert files('out') == files('site/ds')
        assert run('info', server.url + '/ds', '--json',
                   env=_environment(server)).json['unreferenced'] is None
    with Server('here', index=True) as server:
        run('copy', server.url + '/ds', 'all', env=_environment(server))
    assert files('all') == files(path)


def a_copy_reads_the_refs_once_more_in_few_requests():
    rows = [{'n': i, 'data': {'base64': 'AAAA' * 100}} for i in range(50000)]
    harness.pack(rows, 'n=int(4),data=bytes', 'site/ds')
    counts = []
    for words in ['--whole'], []:
        with Server('site', index=True) as server:
            run('copy', server.url + '/ds', 'out', *words, env=_environment(server))
            counts.append((len(server.log), server.sent))
        assert files('out') == files('site/ds')
        shutil.rmtree('out')
    (few, least), (count, sent) = counts
    refs = os.path.getsize('site/ds/refs.bag')
    assert count <= few + 30 and sent <= least + 2 * refs + (1 << 20), counts


def a_zip_of_shards_takes_few_requests():
    rows = [{'n': i, 'data': {'base64': 'AAAA' * 10000}} for i in range(200)]
    harness.pack(rows, 'n=int(4),data=bytes', 'ds', '--shard-length', '20')
    os.mkdir('site')
    run('zip', 'ds', 'site/ds.zip', '--no-sync')
    assert pathlib.Path('site/ds.zip').stat().st_size > 5 << 20
    with Server('site') as server:
        for words, most in (['get', '57'], 6), (['info'], 20):
            before = len(server.log)
            run(words[0], server.url + '/ds.zip', *words[1:],
                env=_environment(server))
            assert len(server.log) - before <= most, len(server.log) - before
        assert server.sent < 4 << 20, server.sent


def the_first_datapoint_of_a_zip_takes_four_requests():
    rows = [{'n': i, 'data': {'base64': 'AAAA' * 10000}} for i in range(100)]
    harness.pack(rows, 'n=int(4),data=bytes', 'ds')
    os.mkdir('site')
    run('zip', 'ds', 'site/ds.zip', '--no-sync')
    assert pathlib.Path('site/ds.zip').stat().st_size > 2 << 20
    with Server('site') as server:
        for index in '0', '57':
            before = len(server.log)
            row = run('get', server.url + '/ds.zip', index,
                      env=_environment(server)).json
            assert row['n'] == int(index) and row['data']['bytes'] == 30000
            assert len(server.log) - before <= 4


@each(['ignored', '400', '416', '501', '500'])
def a_server_may_not_know_ranges_from_the_end(how):
    os.mkdir('site')
    harness.pack([{'data': {'base64': 'ABCD' * 50_000}} for _ in range(60)],
                 'data=bytes', 'site/ds')

    def fault(handler, number):
        if not (handler.headers.get('Range') or '').startswith('bytes=-'):
            return False
        if how == 'ignored':
            del handler.headers['Range']
            return False
        return handler.answer(int(how))

    with Server('site', fault=fault) as server:
        # Four requests of 500 are repeated first.
        out = run('get', server.url + '/ds', '7',
                  env=_environment(BAGS_RETRY_SECONDS='100')).out
        assert out == run('get', 'site/ds', '7').out
        assert server.sent < 12 << 20, server.sent


@each(['strong', 'weak', 'modified', 'strong, then none', 'modified, then none'])
def what_identifies_an_object_is_compared(how):
    """The bytes change after the lookup, the size does not."""
    os.mkdir('site')
    rows = [{'data': {'base64': 'ABCD' * 50_000}} for _ in range(60)]
    harness.pack(rows, 'data=bytes', 'site/ds')

    def fault(handler, number):
        if not handler.local.is_file():
            return False
        data = handler.local.read_bytes()
        later = not (handler.headers.get('Range') or '').startswith('bytes=-')
        etag = f'"{later and handler.local.suffix == ".bag"}"'
        kind, none = how.split(',')[0], 'none' in how and later
        headers = {'weak': {'ETag': 'W/' + etag}, 'strong': {'ETag': etag},
                   'modified': {'Last_Modified': etag.strip('"')}}[kind]
        first, last = (handler.headers.get('Range') or 'bytes=-')[6:].split('-')
        start = int(first) if first else max(0, len(data) - int(last or 0))
        stop = int(last) + 1 if first and last else len(data)
        return handler.answer(206, data[start:stop], **({} if none else headers),
                              Content_Range=f'bytes {start}-{stop - 1}/{len(data)}')

    with Server('site', fault=fault) as server:
        refuse('get', server.url + '/ds', '7', says=['changed while open', 'data.bag'],
               env=_environment())


@each(['index', 'probing', 's3'])
def any_name_is_found(how):
    names = ['a b', 'a+b', 'é', '漢', '100%', '%zz', 'a#b', 'a&b', "a'b", 'a;b=c',
             '~!$(),@[]', 'a%2bc' if how == 's3' else 'ab']
    pathlib.Path('spec.json').write_text(json.dumps({n: 'int(4)' for n in names}))
    places = ['x y', 'a+b', '50% & more', "it's #1", '&amp;', 'é']
    for i, place in enumerate(places):
        path = pathlib.Path('site/bucket', place, 'ds')
        path.parent.mkdir(parents=True)
        run('pack', harness.write_lines('m.jsonl', [{n: i for n in names}] * 3), path,
            '--spec', 'spec.json', '--no-sync', *(['--shard-length', '2'] * (i % 2)))
    with Server('site', how == 'index', how == 's3') as server:
        base = server.url + '/bucket/' if how != 's3' else 's3://bucket/'
        for place in places:
            _same(f'site/bucket/{place}/ds', base + place + '/ds',
                  env=_environment(server))
        if how != 's3':
            encoded = urllib.parse.quote(f'site/bucket/{places[2]}/ds'[5:])
            run('get', f'{server.url}/{encoded}', '0', env=_environment(server))


def four_missing_shards_end_the_search():
    """As documented; a listing shows the rest."""
    _pack('site/ds', '--shard-length', '1')
    for i in range(8, 11):
        subprocess.run(['rm', '-r', f'site/ds/{i:06}'], check=True)
    with Server('site') as server:
        refuse('info', server.url + '/ds', says='missing shards 8, 9, 10 ',
               env=_environment())
        server.index = True
        subprocess.run(['rm', '-r', 'site/ds/000011'], check=True)
        refuse('info', server.url + '/ds', says='missing shards 8',
               env=_environment())


def keys_do_not_follow_redirects():
    os.makedirs('site/b')
    _pack('site/b/ds')
    seen = []

    def fault(handler, number):
        seen.append(str(handler.headers))

    with Server('site', s3=True, fault=fault) as other:
        away = other.url.replace('127.0.0.1', 'localhost')
        with Server('site', s3=True, fault=lambda handler, number: handler.answer(
                307, Location=away + handler.path)) as server:
            refuse('info', 's3://b/ds', says=['s3://b/ds', 'HTTP 307', 'another region'],
                   env=_environment(server))
        with Server('site', fault=lambda handler, number: handler.answer(
                302, Location=away + handler.path.split('?')[0])) as server:
            url = server.url.replace('//', '//me:pass@') + '/b/ds?sig=abc'
            result = refuse('info', url, env=_environment(server))
            assert 'pass' not in result.err and 'abc' not in result.err
    assert seen and not [s for s in seen if 'uthorization' in s or 'amz' in s]


def a_key_is_never_used_with_the_secret_or_token_of_another():
    os.makedirs('site/b')
    _pack('site/b/ds')
    os.mkdir('.aws')
    pathlib.Path('.aws/credentials').write_text(
        f'[default]\naws_access_key_id=x\naws_secret_access_key={SECRET}\n'
        'aws_session_token=of another\n')
    with Server('site', s3=True) as server:
        environment = _environment(server, HOME=os.getcwd())
        run('info', 's3://b/ds', env=environment)
        del environment['AWS_SECRET_ACCESS_KEY']
        result = refuse('info', 's3://b/ds', says='a key without a secret',
                        env=environment)
        assert KEY not in result.err and SECRET not in result.err
        assert server.log[-1] and not [p for _, p, _ in server.log if KEY in p]


def a_bucket_is_a_host_without_an_endpoint():
    environment = {k: v for k, v in os.environ.items() if 'AWS' not in k}
    environment.update(AWS_REGION='none-1', AWS_EC2_METADATA_DISABLED='true')
    refuse('info', 's3://my-bucket/ds', says='my-bucket.s3.none-1.amazonaws.com',
           env=environment)
    refuse('info', 's3://my.bucket/ds', says='host: s3.none-1.amazonaws.com',
           env=environment)


def every_request_of_a_signed_url_has_its_query():
    """Lookups, ranges, listings and probes, as Azure and Google Cloud require it."""
    os.makedirs('site/box')
    path = _pack('site/box/ds', '--shard-length', '7')
    query = 'sv=2022-11-02&sr=c&sp=rl&sig=a%2Fb%2Bc%3D'

    def fault(handler, number):
        if handler.path.partition('?')[2] == query:
            return False
        return handler.answer(403, b'<?xml version="1.0"?><Error><Code>'
                              b'AuthenticationFailed</Code></Error>')

    for index in (False, True):
        with Server('site', index, fault=fault) as server:
            url = f'{server.url}/box/ds'
            for words in (['get', ':'], ['verify'], ['info', '--json']):
                out = run(words[0], url + '?' + query, *words[1:], env=_environment()).out
                assert _shown(out, url) == _shown(run(words[0], path, *words[1:]).out, path)
            run('copy', url + '?' + query, f'copy{index}', env=_environment())
            result = refuse('info', url + '?sig=secret', env=_environment(),
                            says='HTTP 403 AuthenticationFailed')
            assert 'secret' not in result.err


def a_batch_takes_at_most_one_and_a_quarter_requests_per_datapoint():
    os.mkdir('site')
    rows = [{'data': {'base64': 'ABCD' * 10_000}} for _ in range(2000)]
    harness.pack(rows, 'data=bytes', 'site/ds')
    indices = [str(i * 997 % 2000) for i in range(32)]

    def requests():
        with Server('site', index=True) as server:
            out = run('get', server.url + '/ds', '[' + ','.join(indices) + ']',
                      env=_environment()).out
        assert len(out.splitlines()) == 32
        return len(server.log)

    at_most(42, requests)


def _start(*words, **more):
    return subprocess.Popen([harness.PROGRAM, *words], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=_environment(**more))


def a_server_that_starts_late_is_read():
    path = _pack('site/ds', '--shard-length', '7')
    found = []

    def attempt():
        server = Server('site', starts=False)
        job = _start('get', server.url + '/ds', ':', BAGS_RETRY_SECONDS='50')
        time.sleep(2)  # more than two tries take
        with server:
            out, error = job.communicate(timeout=harness.HANG)
        found.append((job.returncode, error))
        assert job.returncode or out == run('get', path, ':').out

    # It is too late where the machine is too busy.
    while not found or (found[-1][0] and len(found) < 20):
        attempt()
    assert found[-1][0] == 0, found


@each([(50, 5), (1, 0)])
def a_server_that_does_not_start_is_an_error(case):
    retry, least = case
    server = Server('site', starts=False)
    start = time.monotonic()
    error = refuse('verify', server.url + '/ds', says='connect',
                   env=_environment(BAGS_RETRY_SECONDS=str(retry))).err
    assert time.monotonic() - start > least, error
    server.server_close()


@each(['load', 'copy', 's3'])
def a_server_that_restarts_ends_no_training(which):
    """It accepts no connection for a second: more than two tries take."""
    os.mkdir('site')
    _pack('site/bucket/ds', '--shard-length', '4')
    down = threading.Event()

    def fault(handler, number):
        reads = handler.headers.get('Range', '').startswith('bytes=0')
        if reads if which == 'load' else number == 20:  # files are looked up
            down.set()
        if down.is_set():  # it is killed: nothing is answered any more
            handler.close_connection = True
            return True
        return False

    with Server('site', s3=which == 's3', fault=fault) as server:
        url = ('s3:/' if which == 's3' else server.url) + '/bucket/ds'
        again = Server('site', s3=which == 's3', port=server.server_address[1],
                       starts=False)
        words = {'load': ['--digest', '--epochs', '3', '--batch', '4'],
                 'copy': ['out'], 's3': [':']}[which]
        word = 'get' if which == 's3' else which
        job = _start(word, url, *words, **server.environment, BAGS_RETRY_SECONDS='50')
        assert down.wait(harness.HANG)
    time.sleep(1)
    assert job.poll() is None, job.communicate()
    with again:
        out, error = job.communicate(timeout=harness.HANG)
    assert job.returncode == 0, error
    if which == 'copy':
        assert files('out') == files('site/bucket/ds')
    else:
        assert out == run(word, 'site/bucket/ds', *words).out


if not harness.has_urls():
    print('skipped the tests of URLs: libcurl not found')
    for _name in [n for n, f in list(globals().items())
                  if callable(f) and getattr(f, '__module__', '') == __name__]:
        del globals()[_name]
