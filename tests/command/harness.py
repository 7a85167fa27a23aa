"""What the tests of the command share: running it, and counting checks."""
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import traceback

PROGRAM = None
GOLDEN = pathlib.Path(os.environ['BAGS_GOLDEN'])
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
passed = failed = 0
part, parts, number = 1, 1, 0  # this process runs every check whose number is of its part
# Of the cases of `each`, those whose number has this remainder by 3; all if it is not set.
third = os.environ.get('BAGS_THIRD')
cases_seen = 0

# Under a sanitizer its faults must not look like the command's own errors.
os.environ['ASAN_OPTIONS'] = ':'.join(
    filter(None, [os.environ.get('ASAN_OPTIONS'), 'exitcode=99']))

# What a shell starts in the background ignores it, and so would the command.
signal.signal(signal.SIGINT, signal.default_int_handler)

HANG = 600  # seconds: more than anything takes on a machine that is slow and busy
# Where no server is broken, one that pauses is waited for.
PATIENT = {**os.environ, 'BAGS_RETRY_SECONDS': '100', 'BAGS_STALL_SECONDS': '100'}


def load_reference():
    path = os.environ['BAGS_REFERENCE']
    spec = importlib.util.spec_from_file_location('bagref', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = load_reference()


class Result:

    def __init__(self, done):
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr.decode('utf-8', 'replace')

    @property
    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def json(self):
        return json.loads(self.out)


def run(*words, code=0, stdin=b'', **options):
    """Run the command and demand this exit code."""
    done = subprocess.run([PROGRAM, *map(str, words)], input=stdin,
                          stdout=options.pop('stdout', subprocess.PIPE),
                          stderr=subprocess.PIPE, timeout=HANG, **options)
    result = Result(done)
    for sign in ('Sanitizer', 'runtime error:'):
        assert sign not in result.err, result.err
    assert result.code == code, (
        f'bags {" ".join(map(str, words))}: exit code {result.code}, '
        f'not {code}: {result.err}')
    # The faults that verify finds are not its own: they are what it prints.
    if code and not ('verify' in words and result.out and not result.err):
        assert result.err.startswith('bags: '), result.err
    return result


def refuse(*words, says=(), code=1, **options):
    """It must fail and say all of this."""
    result = run(*words, code=code, **options)
    said = result.err or ('verify' in words and result.out.decode()) or ''
    for part in [says] if isinstance(says, str) else says:
        assert part in said, f'{part!r} is not in {said!r}'
    return result


def wait_for(ready, job=None):
    """Until this is true; a job must not end before."""
    end = time.monotonic() + HANG
    while not ready():
        assert job is None or job.poll() is None, job.communicate()
        assert time.monotonic() < end, 'it does not come'
        time.sleep(0.005)


def stop(job):
    """Stop a process; True unless it has ended."""
    if job.poll() is None:
        job.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, job.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return job.poll() is None


def at_most(most, measure, tries=8):
    """One of some attempts needs no more: a machine that is busy may delay the others."""
    found = []
    while not found or (found[-1] > most and len(found) < tries):
        found.append(measure())
    if len(found) > 1:
        print(f'        after {len(found)} attempts')
    assert found[-1] <= most, found


def check(name, function, *arguments):
    """Run one check in a directory of its own."""
    global passed, failed, number
    number += 1
    if number % parts != part % parts:
        return
    before = os.getcwd()
    directory = pathlib.Path(tempfile.mkdtemp(prefix='bags-command-'))
    os.chdir(directory)
    start, spent = time.monotonic(), sum(os.times()[:4])
    try:
        function(*arguments)
        passed += 1
        took, spent = time.monotonic() - start, sum(os.times()[:4]) - spent
        print('ok    ', name, f'({took:.1f} s, {spent:.1f} s of the processor)'
              if took >= 1 else '', flush=True)
    except Exception as fault:
        failed += 1
        print('FAILED', name, flush=True)
        where = traceback.extract_tb(fault.__traceback__)[-1]
        print('       ', f'{type(fault).__name__}: {fault}'[:2000],
              f'({pathlib.Path(where.filename).name}:{where.lineno})')
    finally:
        os.chdir(before)
        shutil.rmtree(directory, ignore_errors=True)


def checks(module):
    """Run the functions of a module whose names begin with an article or so:
    all that are public and defined there."""
    global cases_seen
    for name, function in list(vars(module).items()):
        if callable(function) and getattr(function, '__module__', '') == \
                module.__name__ and not name.startswith('_'):
            cases = getattr(function, 'cases', None)
            if cases is None:
                check(name.replace('_', ' '), function)
                continue
            for case in cases():
                cases_seen += 1
                if third and cases_seen % 3 != int(third):
                    continue
                words = ' '.join(map(str, case)) if isinstance(case, tuple) \
                    else str(case)
                check(f'{name.replace("_", " ")}: {words[:70]}', function, case)


def each(cases):
    """Run a check for each of these."""
    def mark(function):
        function.cases = cases if callable(cases) else lambda: cases
        return function
    return mark


def has_codec(type):
    """True if the command was built with the codec of this type."""
    name = type.split('(')[0].split('[')[0]
    formats = {'jpeg': 'jpeg', 'jpg': 'jpeg', 'png': 'png', 'webp': 'webp', 'npy': 'numpy',
               'msgpack': 'msgpack', 'tree': 'msgpack', 'mp4': 'mp4', 'webm': 'mp4'}
    return name not in formats or \
        formats[name] in run('--version').out.decode().split()


def has_sql():
    """True if the command was built with SQLite. (The importer "sql" of --version needs none.)"""
    done = subprocess.run([PROGRAM, 'sql', 'absent', 'SELECT 1'], capture_output=True, timeout=HANG)
    assert done.returncode == 1 and done.stderr, done
    return b'this build has no SQL' not in done.stderr


def has_urls():
    """True if the command was built with libcurl."""
    done = subprocess.run([PROGRAM, 'info', 'http://127.0.0.1:1/x'], stderr=subprocess.PIPE,
                          env={**os.environ, 'BAGS_RETRY_SECONDS': '1'})
    return b'not linked' not in done.stderr


def write_lines(path, rows):
    pathlib.Path(path).write_text(
        ''.join(row if isinstance(row, str) else json.dumps(row) + '\n'
                for row in rows), encoding='utf-8')
    return path


def pack(rows, spec, out='out', *options, **more):
    """Pack these rows; a row that is a string goes as it is."""
    return run('pack', write_lines('manifest.jsonl', rows), out, '--spec', spec,
               '--no-sync', *options, **more)


def files(path):
    """Every file below a path with its bytes."""
    path = pathlib.Path(path)
    return {str(f.relative_to(path)): f.read_bytes()
            for f in sorted(path.rglob('*')) if f.is_file()}


def read(path, strict=True):
    """What the independent reader finds, every blob included."""
    found = reference.read(path, strict=strict)
    assert 'error' not in found, found
    return found


def values(path):
    """The values of a dataset by the independent reader, as far as it knows
    the types."""
    def value(blob):
        return blob.get('value', blob.get('hex'))
    return [{k: [value(e) for e in b['items']] if 'list' in b and 'items' in b
             else value(b) if 'list' not in b else [] for k, b in row.items()}
            for row in read(path)['data']]
