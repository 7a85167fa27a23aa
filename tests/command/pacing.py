"""Requests per second and server, and rests, of all processes of a machine."""
import os
import subprocess
import time

import harness
from harness import each, refuse, run, wait_for
from server import Server

ROWS = [{'n': i} for i in range(12)]
FILE = next((path for path in (f'{folder}/bags-requests-1-{os.geteuid()}'
                               for folder in ('/dev/shm', '/tmp'))
             if os.access(os.path.dirname(path), os.W_OK)), None)


def _pack():
    os.makedirs('site')
    for name in ('ds', 'other'):
        harness.pack(ROWS, 'n=int(4)', f'site/{name}', '--shard-length', '1')


def _start(url, **more):
    return subprocess.Popen(
        [harness.PROGRAM, 'get', url, ':', 'n'], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, 'BAGS_RETRY_SECONDS': '100', **more})


def _end(job):
    out, err = job.communicate(timeout=harness.HANG)
    assert job.returncode == 0 and len(out.splitlines()) == len(ROWS), err


@each([1, 3])
def requests_per_second_are_limited(processes):
    _pack()
    with Server('site') as server:
        rate = 60 * processes  # about 60 requests each
        start = time.monotonic()
        jobs = [_start(server.url + '/ds', BAGS_REQUESTS_PER_SECOND=str(rate))
                for _ in range(processes)]
        for job in jobs:
            _end(job)
        # A slow machine only takes longer. 10 ms are made up for.
        least = (len(server.log) - 1) / rate - 0.02
        assert time.monotonic() - start >= least, (time.monotonic() - start, least)


@each(['429', '503', 'SlowDown'])
def other_processes_rest_too(which):
    """A process that starts while another one waits, as the server demands."""
    _pack()
    with Server('site') as server:
        first, others = [], []

        def fault(handler, _):
            if '/other' in handler.path:
                others.append(time.monotonic())
            elif not first or time.monotonic() < first[0] + 0.2:
                first.append(time.monotonic())
                body = b'<Error><Code>SlowDown</Code></Error>' * (which == 'SlowDown')
                return handler.answer(429 if which == '429' else 503, body,
                                      Retry_After='4')
            return False
        server.fault = fault
        job = _start(server.url + '/ds')
        wait_for(lambda: first, job)
        time.sleep(1.5)  # until the process has read the answer
        _end(_start(server.url + '/other'))
        assert others[0] >= first[0] + 4, (others[0] - first[0])
        _end(job)


def other_failures_are_of_one_process():
    """503 alone says nothing about other requests."""
    _pack()
    with Server('site') as server:
        refused = []

        def fault(handler, _):
            if '/ds' in handler.path and len(refused) < 400:
                refused.append(handler.path)
                return handler.refuse(503, 'InternalError')
            return False
        server.fault = fault
        job = _start(server.url + '/ds')
        wait_for(lambda: len(refused) > 20, job)
        seen = len(refused)
        _end(_start(server.url + '/other'))
        assert len(refused) < 400, seen
        job.kill()
        job.communicate()


def killed_processes_leave_nothing_to_wait_for():
    _pack()
    with Server('site') as server:
        jobs = [_start(server.url + '/ds', BAGS_REQUESTS_PER_SECOND='5')
                for _ in range(4)]
        wait_for(lambda: len(server.log) > 3)
        for job in jobs:
            job.kill()
            job.communicate()
        before = len(server.log)
        _end(_start(server.url + '/other', BAGS_REQUESTS_PER_SECOND='1000'))
        assert len(server.log) > before


def an_invalid_table_is_ignored():
    if not FILE or not os.path.exists(FILE):
        return
    _pack()
    with Server('site') as server:
        with open(FILE, 'r+b') as file:
            file.write(b'\xff' * 65536)
        _end(_start(server.url + '/ds'))
        _end(_start(server.url + '/ds', BAGS_REQUESTS_PER_SECOND='1000'))


@each(['0', '-1', 'x', '1x', 'nan'])
def an_invalid_limit_is_refused(value):
    _pack()
    with Server('site') as server:
        refuse('info', server.url + '/ds', code=2,
               says='BAGS_REQUESTS_PER_SECOND must be a number above 0',
               env={**os.environ, 'BAGS_REQUESTS_PER_SECOND': value})
        assert not server.log
        run('info', server.url + '/ds')
