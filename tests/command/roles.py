"""Temporary AWS credentials: their sources, their renewal, and what goes wrong."""
import contextlib
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import stat
import sys
import threading
import time
import urllib.parse

import harness
from harness import each, refuse, run
from server import REGION, Server, signature_fault

FAST = {'BAGS_RETRY_SECONDS': '5', 'BAGS_STALL_SECONDS': '1'}
ROWS = [{'n': i} for i in range(12)]
TOKEN = 'hidden-identity-token'
ROLE = 'role+=,.@-_1'
ARN = 'arn:aws:iam::1:role/R'
PATHS = {
    'web': '/',
    'sso': '/federation/credentials',
    'container': '/role',
    'instance': '/latest/meta-data/iam/security-credentials/' + ROLE,
}
SOURCES = ['web', 'profile', 'sso', 'sso_session', 'sso_renewed', 'process', 'container',
           'container_file', 'instance', 'role', 'role_of_instance']
KEYS = ('SOURCEHIDDEN', 'SOURCESECRETHIDDEN', 'SOURCETOKENHIDDEN')


class _Services(http.server.ThreadingHTTPServer):
    """STS, the portal of SSO, the service of containers and the one of instances.

    answer(handler): called instead of a service; True: it has answered.
    """
    daemon_threads = True

    def __init__(self, store, lasts=3600):
        super().__init__(('127.0.0.1', 0), _Service)
        self.store, self.lasts, self.answer = store, lasts, None
        self.asked = []  # the paths for credentials
        self.secrets = [TOKEN, *KEYS, 'hidden-refresh', 'hidden-client']
        self.session, self.role = 'hidden-session-token', ROLE
        self.assumed, self.renewed = [], []
        self.refresh, self.token_lasts = 'hidden-refresh', 3600
        self.url = f'http://127.0.0.1:{self.server_address[1]}'
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, *_):
        pass

    def issue(self):
        """New credentials, which the store accepts until their end."""
        number = len(self.store.issued)
        key, secret, token = (f'{name}{number}HIDDEN' for name in ('KEY', 'SEC/+', 'TOK'))
        end = time.time() + self.lasts if self.lasts else None
        self.store.issued[key] = secret, token, end
        self.secrets += key, secret, token
        return key, secret, token, end


def _utc(end):
    return time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(end))


class _Service(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *_):
        pass

    def reply(self, status, body, **headers):
        body = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header('Content-Length', len(body))
        self.end_headers()
        self.wfile.write(body)
        return True

    def keys(self, token='Token'):
        key, secret, session, end = self.server.issue()
        found = {'AccessKeyId': key, 'SecretAccessKey': secret, token: session}
        return {**found, 'Expiration': _utc(end)} if end else found

    def do_POST(self):
        body = self.body()
        if self.path == '/token':
            return self.renew(json.loads(body))
        form = dict(urllib.parse.parse_qsl(body))
        self.server.asked.append(self.path)
        if self.server.answer and self.server.answer(self):
            return None
        if form.get('Action') == 'AssumeRole':
            return self.assume(form, body)
        if form != {'Action': 'AssumeRoleWithWebIdentity', 'Version': '2011-06-15',
                    'RoleArn': ARN, 'RoleSessionName': 'a session',
                    'WebIdentityToken': TOKEN}:
            return self.reply(400, '<Error><Code>ValidationError</Code></Error>')
        keys = self.keys('SessionToken')
        return self.reply(200, '<R><Credentials>' + ''.join(
            f'<{name}>{value}</{name}>' for name, value in keys.items()) +
            '</Credentials></R>')

    def assume(self, form, body):
        """Only for the source's keys, or the ones issued last, with a right signature."""
        keys = {KEYS[0]: (*KEYS[1:], None), **self.server.store.issued}
        wrong = signature_fault(
            self, keys, 'sts', hashlib.sha256(body.encode()).hexdigest())
        if wrong:
            return self.reply(403, f'<Error><Code>{wrong}</Code></Error>')
        expected = {'Action': 'AssumeRole', 'Version': '2011-06-15', 'RoleArn': ARN,
                    'RoleSessionName': 'a session', 'ExternalId': 'an id/',
                    'DurationSeconds': '900'}
        if form != expected:
            return self.reply(400, '<Error><Code>ValidationError</Code></Error>')
        self.server.assumed.append(self.headers['x-amz-security-token'])
        return self.reply(200, '<R>' + ''.join(
            f'<{name}>{value}</{name}>'
            for name, value in self.keys('SessionToken').items()) + '</R>')

    def renew(self, form):
        self.server.renewed.append(form)
        if form.get('refreshToken') != self.server.refresh:
            return self.reply(400, '{"error": "invalid_grant"}')
        self.server.refresh = 'hidden-refresh-%d' % len(self.server.renewed)
        return self.reply(200, json.dumps({
            'accessToken': TOKEN, 'expiresIn': self.server.token_lasts,
            'refreshToken': self.server.refresh}))

    def do_PUT(self):
        self.body()
        if self.path != '/latest/api/token' or not self.headers.get(
                'X-aws-ec2-metadata-token-ttl-seconds'):
            return self.reply(400, '')
        return self.reply(200, self.server.session)

    def body(self):
        return self.rfile.read(int(self.headers.get('Content-Length') or 0)).decode()

    def do_GET(self):
        path, _, query = self.path.partition('?')
        if path == PATHS['instance'].rpartition('/')[0] + '/':
            if self.headers.get('X-aws-ec2-metadata-token') != self.server.session:
                return self.reply(401, '')
            return self.reply(200 if self.server.role else 404, self.server.role + '\n')
        self.server.asked.append(self.path)
        if self.server.answer and self.server.answer(self):
            return None
        if path == PATHS['sso']:
            if (self.headers.get('x-amz-sso_bearer_token') != TOKEN or
                    dict(urllib.parse.parse_qsl(query)) != {
                        'role_name': 'the role', 'account_id': '123'}):
                return self.reply(401, '')
            key, secret, token, end = self.server.issue()
            return self.reply(200, json.dumps({'other': {'accessKeyId': 'wrong'},
                'roleCredentials': {
                    'accessKeyId': key, 'secretAccessKey': secret, 'sessionToken': token,
                    'expiration': int((end or time.time() + 9999) * 1000)}}))
        if path == PATHS['container']:
            if self.headers.get('Authorization') != TOKEN:
                return self.reply(401, '')
            return self.reply(200, json.dumps(self.keys()))
        if path == PATHS['instance']:
            if self.headers.get('X-aws-ec2-metadata-token') != self.server.session:
                return self.reply(401, '')
            return self.reply(200, json.dumps({'Code': 'Success', **self.keys()}))
        return self.reply(404, '')


CHAIN = (f'role_arn = {ARN}\nrole_session_name = a session\nexternal_id = an id/\n'
         'duration_seconds = 900\n')
BASE = ('aws_access_key_id = {}\naws_secret_access_key = {}\n'
        'aws_session_token = {}\n').format(*KEYS)
ENDED = {'expiresAt': '2020-01-01T00:00:00Z', 'refreshToken': 'hidden-refresh',
         'clientId': 'hidden-client', 'clientSecret': 'hidden-client-secret',
         'registrationExpiresAt': '2099-01-01T00:00:00Z'}


def _config(text):
    os.makedirs('.aws', exist_ok=True)
    pathlib.Path('.aws/config').write_text(text)


def _cache(name, **more):
    os.makedirs('.aws/sso/cache', exist_ok=True)
    pathlib.Path('.aws/sso/cache', hashlib.sha1(name.encode()).hexdigest() +
                 '.json').write_text(json.dumps({
                     'startUrl': 'https://x', 'accessToken': TOKEN,
                     'expiresAt': _utc(time.time() + 99), **more}))


def _program(text):
    path = pathlib.Path('a program.py').resolve()
    path.write_text(f'#!{sys.executable}\n' + text)
    path.chmod(stat.S_IRWXU)
    return str(path)


def _environment(store, services, source=None):
    """The environment of one source, and its files."""
    shutil.rmtree('.aws', ignore_errors=True)
    environment = {k: v for k, v in os.environ.items()
                   if 'AWS' not in k and 'proxy' not in k.lower()}
    environment.update(FAST, HOME=os.getcwd(), AWS_ENDPOINT_URL_S3=store.url,
                       AWS_REGION=REGION, AWS_EC2_METADATA_DISABLED='true')
    url = services.url
    pathlib.Path('token').write_text(TOKEN + '\n')
    if source == 'web':
        environment.update(AWS_WEB_IDENTITY_TOKEN_FILE='token', AWS_ROLE_ARN=ARN,
                           AWS_ROLE_SESSION_NAME='a session', AWS_ENDPOINT_URL_STS=url)
    elif source == 'profile':
        environment.update(AWS_PROFILE='work', AWS_ENDPOINT_URL=url + '/')
        _config(f'[profile work]\nrole_arn = {ARN}\nweb_identity_token_file = token\n'
                'role_session_name = a session\n')
    elif source == 'sso':
        environment['AWS_ENDPOINT_URL_SSO'] = url
        _cache('https://x')
        _config('[default]\nsso_start_url = https://x\nsso_region = r\n'
                'sso_account_id = 123\nsso_role_name = the role\n')
    elif source == 'sso_renewed':
        environment.update(AWS_ENDPOINT_URL=url)
        services.refresh = 'hidden-refresh'
        _cache('https://x', accessToken='hidden-old', **ENDED)
        _config('[default]\nsso_start_url = https://x\nsso_region = r\n'
                'sso_account_id = 123\nsso_role_name = the role\n')
    elif source == 'role':
        environment.update(AWS_PROFILE='work', AWS_ENDPOINT_URL_STS=url)
        _config(f'[profile work]\n{CHAIN}source_profile = base\n'
                '[profile base]\n' + BASE)
    elif source == 'role_of_instance':
        environment.update(AWS_ENDPOINT_URL_STS=url)
        del environment['AWS_EC2_METADATA_DISABLED']
        environment['AWS_EC2_METADATA_SERVICE_ENDPOINT'] = url
        _config(f'[default]\n{CHAIN}credential_source = Ec2InstanceMetadata\n')
    elif source == 'sso_session':
        environment.update(AWS_ENDPOINT_URL_SSO=url, AWS_PROFILE='work')
        _cache('mine')
        _config('[profile work]\nsso_session = mine\nsso_account_id = 123\n'
                'sso_role_name = the role\n[sso-session mine]\n'
                'sso_start_url = https://x\nsso_region = r\n')
    elif source == 'process':
        path = _program(
            'import json, sys, urllib.request\n'
            'assert sys.argv[1:] == ["a \'b", "$HOME", "*", "c d", ""], sys.argv\n'
            'assert sys.stdin.read() == ""\n'
            f'print("{TOKEN}", file=sys.stderr)\n'
            f'request = urllib.request.Request("{url}{PATHS["container"]}")\n'
            f'request.add_header("Authorization", "{TOKEN}")\n'
            'found = json.load(urllib.request.urlopen(request))\n'
            'found["SessionToken"] = found.pop("Token")\n'
            'print(json.dumps({"Version": 1, **found}))\n')
        _config(f'[default]\ncredential_process = "{path}" "a \'b" $HOME * \'c d\' ""\n')
    elif source and source.startswith('container'):
        environment['AWS_CONTAINER_CREDENTIALS_FULL_URI'] = url + PATHS['container']
        if source == 'container':
            environment['AWS_CONTAINER_AUTHORIZATION_TOKEN'] = TOKEN
        else:
            environment['AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE'] = 'token'
    elif source == 'instance':
        del environment['AWS_EC2_METADATA_DISABLED']
        environment['AWS_EC2_METADATA_SERVICE_ENDPOINT'] = url + '/'
    return environment


@contextlib.contextmanager
def _cloud(lasts=3600):
    os.makedirs('site/b')
    harness.pack(ROWS, 'n=int(4)', 'site/b/ds', '--shard-length', '1')
    with Server('site', s3=True) as store, _Services(store, lasts) as services:
        yield store, services


def _reads(services, environment, *words):
    words = words or ('get', 's3://b/ds', ':', 'n')
    result = run(*words, env=environment)
    shown = result.out.decode() + result.err
    assert not [text for text in services.secrets if text in shown], shown
    return result


def _refuses(services, environment, says, code=1):
    result = refuse('get', 's3://b/ds', '0', 'n', says=says, code=code, env=environment)
    shown = result.out.decode() + result.err
    secrets = [*services.secrets, services.session, 'hidden', 'HIDDEN']
    assert not [text for text in secrets if text in shown], shown
    return result


@each(SOURCES)
def a_source_of_credentials_is_used(source):
    with _cloud() as (store, services):
        environment = _environment(store, services, source)
        result = _reads(services, environment)
        assert len(result.out.splitlines()) == len(ROWS), result.out
        # For many requests.
        assert len(services.asked) == 1 + (source == 'role_of_instance'), services.asked
        if source.startswith('role'):
            assert len(services.assumed) == 1
        if source == 'sso_renewed':
            assert len(services.renewed) == 1
        assert len(store.log) > 12
        _reads(services, environment, 'copy', 'site/b/ds', 's3://b/copy')
        assert pathlib.Path('site/b/copy/000003/spec.json').exists()


@each(['web', 'sso', 'process', 'container', 'instance'])
def credentials_that_end_are_renewed_while_a_command_runs(source):
    with _cloud(lasts=2) as (store, services):
        # A few round trips, longer in all than credentials last.
        store.fault = lambda handler, number: time.sleep(0.8)
        result = _reads(services, _environment(store, services, source))
        assert len(result.out.splitlines()) == len(ROWS)
        assert len(services.asked) > 1, services.asked


def credentials_that_end_at_once_are_renewed_each_time():
    with _cloud() as (store, services):
        environment = _environment(store, services, 'container')

        def ends(handler):  # the first ones have ended for the store alone
            if len(services.asked) < 4:
                services.lasts = -5
            else:
                services.lasts = 3600
        services.answer = ends
        _reads(services, environment)
        assert len(services.asked) >= 4, services.asked


def credentials_are_renewed_while_valid_ones_are_used():
    """A renewal that fails, or hangs, disturbs nothing while the old ones are valid."""
    with _cloud(lasts=6) as (store, services):
        environment = _environment(store, services, 'container')
        environment['BAGS_STALL_SECONDS'] = '2'

        def later(handler):
            if len(services.asked) == 2:
                time.sleep(3)
            return len(services.asked) in (2, 3) and handler.reply(500, '')
        services.answer = later
        store.fault = lambda handler, number: time.sleep(0.9)
        result = run('get', 's3://b/ds', ':', 'n', env=environment)
        assert len(result.out.splitlines()) == len(ROWS)


def static_keys_come_first():
    with _cloud() as (store, services):
        for source in SOURCES:
            environment = {**_environment(store, services, source), **store.environment}
            del environment['AWS_SESSION_TOKEN']
            _reads(services, environment)
        assert not services.asked, services.asked


def sources_are_searched_in_order():
    with _cloud() as (store, services):
        environment = {}
        for source in ('instance', 'container', 'process', 'sso', 'web'):
            config = pathlib.Path('.aws/config')
            before = config.read_text() if config.exists() else ''
            environment.update(_environment(store, services, source))
            if before:  # of the later sources, in the same profile
                _config((config.read_text() if config.exists() else '[default]\n') +
                        before.replace('[default]\n', ''))
            services.asked.clear()
            _reads(services, environment)
            expected = PATHS['container' if source == 'process' else source]
            assert [path.split('?')[0] for path in services.asked] == [expected]


@each(['http', 'nothing'])
def without_a_source_requests_are_not_signed(case):
    with _cloud() as (store, services):
        if case == 'http':
            with Server('site') as web:
                environment = _environment(store, services, 'instance')
                _reads(services, environment, 'get', web.url + '/b/ds', ':', 'n')
        else:
            environment = _environment(store, services)
            _refuses(services, environment, 'AccessDenied')
        assert not services.asked, services.asked


def an_instance_without_a_role_is_skipped():
    with _cloud() as (store, services):
        environment = _environment(store, services, 'instance')
        services.role = ''
        _refuses(services, environment, 'AccessDenied')


WRONG = {
    'denied': lambda h: h.reply(403, f'<Code>AccessDenied</Code>{TOKEN} hidden'),
    'fails': lambda h: h.reply(503, 'hidden'),
    'empty': lambda h: h.reply(200, ''),
    'garbage': lambda h: h.reply(200, bytes(range(256)) * 9 + b'hidden'),
    'open': lambda h: h.reply(200, '{"AccessKeyId": "hidden'),
    'other': lambda h: h.reply(200, '{"AccessKeyId": ["hidden"], "a": {"SecretAccessKey": '
                                    '"hidden"}}'),
    'lines': lambda h: h.reply(200, json.dumps({
        'Version': 1, 'AccessKeyId': 'hidden', 'SecretAccessKey': 'x\r\nx: hidden'})),
    'no time': lambda h: h.reply(200, json.dumps({
        'AccessKeyId': 'hidden', 'SecretAccessKey': 'x', 'Expiration': 'tomorrow'})),
    'huge': lambda h: h.reply(200, 'hidden' * 99999),
    'slow': lambda h: time.sleep(2) or h.reply(200, '{}'),
    'moved': lambda h: h.reply(302, '', Location=h.server.url + '/elsewhere?hidden'),
}
NAMES = {
    'web': 'web identity (AWS_WEB_IDENTITY_TOKEN_FILE): ',
    'sso': 'SSO: ',
    'container': 'container role (AWS_CONTAINER_CREDENTIALS_FULL_URI): ',
    'instance': 'instance role (EC2): ',
}
SAYS = {
    'denied': 'HTTP 403', 'fails': 'HTTP 503', 'empty': 'no valid credentials',
    'garbage': 'no valid credentials', 'open': 'no valid credentials',
    'other': 'no valid credentials', 'lines': 'no valid credentials',
    'no time': '', 'huge': 'too large', 'slow': 'in time',
    'moved': 'HTTP 302: redirects are refused',
}


@each([(source, case) for source in NAMES for case in WRONG])
def a_wrong_answer_is_an_error_that_names_the_source(case):
    source, what = case
    with _cloud() as (store, services):
        services.answer = WRONG[what]
        environment = _environment(store, services, source)
        _refuses(services, environment, (NAMES[source], SAYS[what]))
        assert not [line for line in services.asked if 'elsewhere' in line]
        assert not [line for line in store.log if line[0] != 'GET'], store.log


def a_service_that_does_not_exist_is_an_error():
    with _cloud() as (store, services):
        pass
    with Server('site', s3=True) as store:
        for source in NAMES:
            environment = _environment(store, services, source)
            _refuses(services, environment, NAMES[source])


@each(['no file', 'no role', 'no profile', 'source_profile', 'a circle', 'no keys',
       'two sources', 'a device', 'the environment', 'no session', 'ended', 'a bad cache', 'far', 'no slash', 'a token of lines', 'no account'])
def a_source_that_is_configured_wrong_is_an_error(case):
    with _cloud() as (store, services):
        environment = _environment(store, services)
        if case == 'no file':
            environment.update(AWS_WEB_IDENTITY_TOKEN_FILE='missing', AWS_ROLE_ARN=ARN)
            says = 'cannot read the token in missing: No such file'
        elif case == 'no role':
            environment.update(AWS_WEB_IDENTITY_TOKEN_FILE='token')
            says = 'set AWS_ROLE_ARN'
        elif case == 'no profile':
            environment.update(AWS_PROFILE='other')
            says = 'AWS_PROFILE: no profile "other"'
        elif case == 'source_profile':
            _config('[default]\nrole_arn = x\nsource_profile = y\n')
            says = 'source_profile: no profile "y"'
        elif case == 'a circle':
            _config('[default]\nrole_arn = x\nsource_profile = y\n'
                    '[profile y]\nrole_arn = x\nsource_profile = default\n')
            says = 'or a circle'
        elif case == 'no keys':
            _config('[default]\nrole_arn = x\nsource_profile = y\n[profile y]\n')
            says = 'role_arn in ~/.aws/config: no keys in y'
        elif case == 'two sources':
            _config('[default]\nrole_arn = x\nsource_profile = y\n'
                    'credential_source = EcsContainer\n[profile y]\n' + BASE)
            says = 'either source_profile or credential_source'
        elif case == 'a device':
            _config('[default]\nrole_arn = x\nsource_profile = default\n'
                    'mfa_serial = z\n' + BASE)
            says = 'for mfa_serial'
        elif case == 'the environment':
            _config('[default]\nrole_arn = x\ncredential_source = Environment\n')
            says = 'credential_source must be'
        elif case == 'no session':
            environment = _environment(store, services, 'sso')
            pathlib.Path('.aws/config').write_text(
                pathlib.Path('.aws/config').read_text().replace('https://x', 'https://y'))
            says = 'SSO: no token in ~/.aws/sso/cache; run `aws sso login`'
        elif case == 'ended':
            environment = _environment(store, services, 'sso')
            _cache('https://x', expiresAt='2020-01-01T00:00:00UTC')
            says = 'SSO: the token has ended'
        elif case == 'a bad cache':
            environment = _environment(store, services, 'sso')
            _cache('https://x', accessToken=['hidden'])
            says = 'SSO: no valid token'
        elif case == 'no account':
            _config('[default]\nsso_start_url = https://x\nsso_region = r\n')
            says = 'SSO: the profile needs sso_account_id'
        elif case == 'far':
            environment.update(
                AWS_CONTAINER_CREDENTIALS_FULL_URI='http://127.0.0.1.example.com/hidden')
            says = 'neither https:// nor'
        elif case == 'no slash':
            environment.update(
                AWS_CONTAINER_CREDENTIALS_RELATIVE_URI='@example.com/hidden')
            says = 'must begin with a slash'
        else:
            environment = _environment(store, services, 'container_file')
            pathlib.Path('token').write_text('hidden\r\nX-A: b')
            says = 'AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE: more than one line'
        _refuses(services, environment, says)
        assert not services.asked


PROGRAMS = {
    'fails': ('import sys; print("hidden"); sys.exit("hidden")', 'exit code 1'),
    'killed': ('import os; os.kill(os.getpid(), 15)', 'signal 15'),
    'huge': ('print("hidden" * 99999)', 'its output is too large'),
    'endless': ('while True: print("hidden")', 'its output is too large'),
    'garbage': ('print("hidden")', 'not JSON with Version 1'),
    'empty': ('', 'not JSON with Version 1'),
    'version': ('print(\'{"Version": 2, "AccessKeyId": "hidden"}\')', 'Version 1'),
    'keys': ('print(\'{"Version": 1, "AccessKeyId": "hidden"}\')',
             'no valid credentials'),
}


@each([*PROGRAMS, 'missing', 'quote', 'words'])
def a_program_that_is_wrong_is_an_error(case):
    with _cloud() as (store, services):
        environment = _environment(store, services)
        text, says = PROGRAMS.get(case, ('', ''))
        command = f'"{_program(text)}"'
        if case == 'missing':
            command, says = './none hidden', 'cannot run ./none: No such file'
        elif case == 'quote':
            command, says = 'a "b', 'not a command'
        elif case == 'words':
            command, says = 'a ' * 65, 'not a command'
        _config(f'[default]\ncredential_process = {command}\n')
        _refuses(services, environment, ('credential_process in ~/.aws/config: ', says))


def a_program_is_ended_with_the_programs_it_started():
    """When its output is refused; a shell and its child must not stay."""
    with _cloud() as (store, services):
        environment = _environment(store, services)
        pathlib.Path('script').write_text(
            'echo $$ > pid\n(echo hidden; while :; do echo hidden; done) &\nsleep 600\n')
        _config('[default]\ncredential_process = sh script\n')
        _refuses(services, environment, 'its output is too large')
        group = int(pathlib.Path('pid').read_text())
        harness.wait_for(lambda: not _group_exists(group))


def _group_exists(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def a_failure_that_passes_is_survived():
    with _cloud() as (store, services):
        for source in NAMES:
            services.asked.clear()
            services.answer = lambda handler: (
                len(services.asked) < 3 and handler.reply(503, ''))
            _reads(services, _environment(store, services, source))
            assert len(services.asked) == 3, services.asked


def a_renewed_token_of_sso_is_kept_for_other_programs():
    """It lasts 1 s here: the next command renews it again, with the new secret."""
    with _cloud() as (store, services):
        environment = _environment(store, services, 'sso_renewed')
        services.token_lasts = 0
        for number in range(1, 3):
            _reads(services, environment)
            path, = pathlib.Path('.aws/sso/cache').iterdir()
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            found = json.loads(path.read_text())
            assert found == {**ENDED, 'startUrl': 'https://x', 'accessToken': TOKEN,
                             'refreshToken': f'hidden-refresh-{number}',
                             'expiresAt': found['expiresAt']}, found
            assert len(services.renewed) == number
        services.refresh = 'another'
        _refuses(services, environment, 'SSO: HTTP 400; run `aws sso login`')
        _cache('https://x', **{**ENDED, 'registrationExpiresAt': '2020-01-01T00:00:00Z'})
        _refuses(services, environment, 'SSO: the token has ended')


def a_chain_of_roles_is_followed_and_renewed():
    with _cloud(lasts=2) as (store, services):
        environment = _environment(store, services, 'role')
        _config(f'[profile work]\n{CHAIN}source_profile = middle\n'
                f'[profile middle]\n{CHAIN}source_profile = base\n'
                '[profile base]\n' + BASE)
        store.fault = lambda handler, number: time.sleep(0.8)
        result = _reads(services, environment)
        assert len(result.out.splitlines()) == len(ROWS)
        assert len(services.assumed) > 2 and KEYS[2] == services.assumed[0]
        assert services.assumed[1] == 'TOK0HIDDEN', services.assumed


def the_keys_of_a_profile_with_a_role_only_assume_it():
    with _cloud() as (store, services):
        environment = _environment(store, services, 'role')
        _config(f'[profile work]\n{CHAIN}source_profile = work\n' + BASE)
        _reads(services, environment)
        assert services.assumed == [KEYS[2]]
        store.token = None
        services.answer = lambda handler: handler.reply(
            403, f'<Error><Code>AccessDenied</Code>{KEYS[1]}</Error>')
        _refuses(services, environment, ('role_arn in ~/.aws/config: ',
                                         'HTTP 403 AccessDenied'))
