#!/usr/bin/python3
"""Run the tests of the Python package:

    tests/python/run.py PACKAGE [MODULE...]    PACKAGE: build/python, where bags/ is

A test is a function of a module in this directory whose name has no leading _; it runs
in a directory of its own, and passes if it returns. One whose name begins with `long_`
runs only without BAGS_QUICK, and the others only without BAGS_LONG. `Skip(reason)` of
this module, raised, skips a test.
"""
import contextlib
import importlib
import inspect
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent


class Skip(Exception):
    pass


def forks_while_threads_allocate():
    """Skip it under AddressSanitizer, whose allocator may be locked in the child."""
    if 'asan' in os.environ.get('LD_PRELOAD', ''):
        raise Skip('the child could not allocate under AddressSanitizer')


def raises(kinds, call, *args, says='', **kwargs):
    """Call it; it must raise one of these, never SystemError, with these words."""
    try:
        call(*args, **kwargs)
    except kinds as error:
        assert says in str(error), (says, str(error))
        return error
    except BaseException as error:
        raise AssertionError(f'{kinds} expected, not {error!r}') from error
    raise AssertionError(f'{kinds} expected')


def python(text, *args, code=0):
    """Run a program in another interpreter; its output."""
    done = subprocess.run([sys.executable, '-c', text, *map(str, args)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1500)
    assert done.returncode == code, (done.returncode, done.stdout)
    return done.stdout


@contextlib.contextmanager
def without(*formats):
    """As if this build lacked them; what C has of them is not missing."""
    import bags
    with mock.patch.dict(bags.build, dict.fromkeys(formats, False)):
        names = [name for name in bags.decoders if bags.codecs.lacks(name)]
        with mock.patch.dict(bags.decoders), mock.patch.dict(bags.encoders):
            for name in names:
                del bags.decoders[name], bags.encoders[name]
            yield


def main():
    package = pathlib.Path(sys.argv[1]).resolve()
    if not (package / 'bags' / '_core.abi3.so').exists():
        print(f'skipped the Python package: {sys.argv[1]} was not built (python3-dev)')
        print('0 passed, 0 failed, 1 skipped')
        return 0
    sys.path.insert(0, str(package))
    os.environ['PYTHONPATH'] = str(package)
    sys.modules['run'] = sys.modules['__main__']
    names = sys.argv[2:] or sorted(p.stem for p in HERE.glob('*.py') if p.stem != 'run')
    passed = failed = skipped = 0
    start = os.getcwd()
    for name in names:
        module = importlib.import_module(name)
        for test, function in vars(module).copy().items():
            if (test[0] == '_' or not inspect.isfunction(function) or
                    function.__module__ != name):
                continue
            long = test.startswith('long_')
            if os.environ.get('BAGS_QUICK' if long else 'BAGS_LONG'):
                continue
            with tempfile.TemporaryDirectory() as directory:
                os.chdir(directory)
                try:
                    function()
                    passed += 1
                except Skip as reason:
                    print(f'skipped {name}.{test}: {reason}')
                    skipped += 1
                except BaseException:
                    print(f'FAILED {name}.{test}', flush=True)
                    traceback.print_exc(file=sys.stdout)
                    failed += 1
                os.chdir(start)
    print(f'{passed} passed, {failed} failed' + (f', {skipped} skipped' if skipped else ''))
    return failed > 0 or passed + skipped == 0


if __name__ == '__main__':
    sys.exit(main())
