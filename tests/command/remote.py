"""Datasets on web servers and in object stores."""
import json
import os
import pathlib
import subprocess
import tarfile
import threading
import time

import harness
from harness import each, files, refuse, run
from server import KEY, SECRET, Server

ROWS = [{'n': i, 'words': ['a' * (i % 5), 'é'], 'data': {'base64': 'AAAA' * 3000}}
        for i in range(40)]
SPEC = 'n=int(4),words=utf8[],data=bytes'
FAST = {'BAGS_RETRY_SECONDS': '1', 'BAGS_STALL_SECONDS': '1'}


def _is_linked():
    """Without libcurl the command has no such paths."""
    done = subprocess.run([harness.PROGRAM, 'info', 'http://127.0.0.1:1/x'],
                          stderr=subprocess.PIPE)
    return b'not linked' not in done.stderr


def _environment(server=None, **more):
    return {**os.environ, **FAST, **(server.environment if server else {}), **more}


def _pack(out='site/ds', *options):
    pathlib.Path(out).parent.mkdir(exist_ok=True)
    harness.pack(ROWS, SPEC, out, *options)
    return out


def _same(path, url, **more):
    """The same values, and what info shows."""
    for words in (['get', ':'], ['info', '--json'], ['verify', '--json']):
        word, rest = words[0], words[1:]
        local = run(word, path, *rest, **more).out.decode()
        remote = run(word, url, *rest, **more).out.decode()
        assert local.replace(path, '') == remote.replace(url, ''), (local, remote)


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
    done = set()

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
            time.sleep(1.5)
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
        out = run('get', server.url + '/ds', ':',
                  env=_environment(BAGS_RETRY_SECONDS='5')).out
        assert out == run('get', path, ':').out
        assert which == 'redirect' or done


@each(['503', '429', 'truncated', 'stall', 'close', '403', '401', '500 XML'])
def a_lasting_fault_is_an_error_in_time(which):
    _pack()

    def fault(handler, number):
        if which == '429':
            return handler.answer(429, Retry_After='3600')
        if which == '500 XML':
            return handler.answer(500, b'<Error><Code>InternalError</Code></Error>')
        if which.isdigit():
            return handler.answer(int(which))
        if which == 'stall':
            time.sleep(30)
        if which == 'truncated':
            handler.answer(200, b'x', length=100)
        handler.close_connection = True
        return True

    with Server('site', fault=fault) as server:
        start = time.monotonic()
        says = {'stall': 'stall', 'truncated': '', 'close': '',
                '500 XML': 'HTTP 500 InternalError'}.get(which, 'HTTP ' + which)
        refuse('get', server.url + '/ds', '0', says=[server.url, says],
               env=_environment())
        assert time.monotonic() - start < 12


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
            'other size': 'changed while open', 'whole': 'ignores ranges',
            'more bytes': 'contradicting', 'less bytes': 'contradicting',
            'an other object': 'changed while open'}[which]
    with Server('site', fault=fault) as server:
        refuse('get', server.url + '/ds', '3', says=[server.url, says],
               env=_environment())


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


def few_requests_and_bytes_are_needed():
    os.mkdir('site')
    rows = [{'data': {'base64': 'ABCD' * 20_000}, 'n': i, 'text': str(i)}
            for i in range(1000)]
    path = 'site/ds'
    harness.pack(rows, 'data=bytes,n=int(4),text=utf8', path)
    for words, most in ((['info'], 2 << 20), (['get', '777'], 3 << 20)):
        with Server('site', index=True) as server:
            run(words[0], server.url + '/ds', *words[1:], env=_environment())
            assert server.sent <= most, server.sent
            assert len(server.log) <= 20, server.log


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


def _copy(path, to, **more):
    run('copy', path, to, **more)
    return to


@each([[], ['--shard-length', '7', '--checksum'], ['--idx']])
def a_dataset_is_copied_to_a_store_and_back(options):
    path = _pack('here/ds', *options)
    os.makedirs('site/bucket')
    with Server('site', s3=True) as server:
        environment = _environment(server)
        _copy(path, 's3://bucket/a b/ds', env=environment)
        assert files('site/bucket/a b/ds') == files(path)
        puts = [p for m, p, _ in server.log if m == 'PUT']
        specs = [i for i, p in enumerate(puts) if p.endswith('spec.json')]
        assert specs == list(range(len(puts) - len(specs), len(puts)))
        assert puts == sorted(puts[:specs[0]], key=puts.index) + \
            sorted(puts[specs[0]:], reverse=True)
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
                 '--shard-length', '7')
    os.makedirs('site/bucket')
    with Server('site', s3=True) as server:
        environment = _environment(server)
        for place in ('there', 's3://bucket/ds'):
            _copy(path, place, env=environment)
            for other, says in (('one', 'another dataset'), ('two', 'another dataset'),
                                ('changed', 'differs')):
                refuse('copy', other, place, says=[place, says], env=environment)
        assert files('there') == files('site/bucket/ds') == files(path)


def a_large_bag_is_uploaded_in_parts():
    os.makedirs('site/bucket')
    row = {'blob': {'file': 'large'}}
    with open('large', 'wb') as file:
        file.truncate(66 << 20)
    run('pack', harness.write_lines('m.jsonl', [row, row]), 'x.bag', '--no-sync')
    with Server('site', s3=True) as server:
        environment = _environment(server)
        _copy('x.bag', 's3://bucket/x.bag', env=environment)
        assert [m for m, _, _ in server.log if m in ('PUT', 'POST')] == \
            ['POST', 'PUT', 'PUT', 'PUT', 'POST']
        assert files('site/bucket')['x.bag'] == pathlib.Path('x.bag').read_bytes()
        assert b' 0 files copied' in run(
            'copy', 'x.bag', 's3://bucket/x.bag', env=environment).out


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


def a_host_that_does_not_exist_is_an_error():
    environment = {k: v for k, v in os.environ.items() if 'AWS' not in k}
    for url in ('http://none.invalid/ds', 'https://none.invalid/ds', 's3://none/ds'):
        environment['AWS_ENDPOINT_URL'] = 'https://none.invalid'
        refuse('info', url, says=['none', 'resolve'], env=environment, timeout=20)
        refuse('copy', url, 'out', says='resolve', env=environment, timeout=20)


def nothing_is_written_to_a_url():
    refuse('pack', harness.write_lines('m.jsonl', [{'n': 1}]), 's3://b/out',
           '--spec', 'n=int(4)', says='bags copy')


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


if not _is_linked():
    print('skipped the tests of URLs: libcurl not found')
    for _name in [n for n, f in list(globals().items())
                  if callable(f) and getattr(f, '__module__', '') == __name__]:
        del globals()[_name]
