"""Handlers of signals run while C works or waits, and what they interrupt loses nothing."""
import contextlib
import itertools
import os
import random
import signal
import socket
import threading
import time

import numpy  # noqa: F401  before a handler can interrupt its import

import bags
from run import Skip, raises


class Tick(Exception):
    pass


def _raise(*_):
    raise Tick


@contextlib.contextmanager
def _ticks(handler, first, interval=0):
    """Call it when SIGALRM arrives, after a time, and then at an interval."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, first, interval)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _interrupt(call, handler=_raise):
    with _ticks(handler, 0.05):
        raises(Tick, call)


def _write(path, count, **options):
    kind = bags.ShardedDatasetWriter if options else bags.DatasetWriter
    with kind(path, {'k': 'i64', 'n': 'int', 's': 'int[]'}, **options) as writer:
        for i in range(count):
            writer.append({'k': i * 7919 % count, 'n': i, 's': [i]})


def _number(blob):
    return int.from_bytes(blob, 'little')


def a_loader_that_is_interrupted_loses_no_batch():
    _write('x', 40)
    random.seed(1)

    def slow(blob):
        time.sleep(0.0003)
        return _number(blob)

    def tick(*_):
        if armed and (trial % 2 or len(seen) < 20):  # after the last one, next(loader) begins an epoch
            raise Tick

    armed = False
    for trial in range(60):
        seen = []
        with bags.Loader('x', 2, fields={'n': {'decode': slow}}, shuffle=False, threads=1) as loader:
            # Both call the loader from C: between its return and a name in Python, a handler may run.
            each = iter(loader) if trial % 2 else map(next, itertools.repeat(loader))
            with _ticks(tick, random.uniform(.0005, .02), .004 if trial % 3 == 0 else 0):
                while True:
                    try:
                        armed = True
                        seen.extend(each)
                        armed = False
                        break
                    except Tick:
                        armed = False
                        loader.state_dict()
            found = [n for batch in seen for n in batch['n']]
            assert (found, loader.epoch, loader.batch) == (list(range(40)), 1, 0), (trial, found)


def a_handler_may_use_and_close_the_loader_that_it_interrupts():
    _write('x', 40)
    for use in 'state', 'next', 'close', 'threads':
        go, seen = threading.Event(), []

        def wait(blob, go=go):  # that of its loader
            assert go.wait(600)
            return _number(blob)
        loader = bags.Loader('x', 2, fields={'n': {'decode': wait}}, shuffle=False, threads=1)

        def handler(*_):
            go.set()
            if use == 'state':
                seen.append(loader.state_dict()['batch'])
            elif use == 'next':
                seen.append(next(loader)['n'])
            elif use == 'close':
                loader.close()
        with _ticks(handler, 0.05):
            if use == 'close':
                raises(ValueError, next, loader, says='closed')
                assert loader.closed
                continue
            rows = [batch['n'] for batch in loader]
        assert seen == {'state': [0], 'next': [[0, 1]], 'threads': []}[use]
        assert sum(seen * (use == 'next'), []) + sum(rows, []) == list(range(40))


def closing_is_interrupted_and_calls_nothing_again():
    _write('x', 100)
    go, calls = threading.Event(), []

    def wait(blob):
        calls.append(1)
        assert go.wait(600)
        return _number(blob)
    for kind in ('close', 'with', 'drop'):
        go.clear()
        calls.clear()
        loader = bags.Loader('x', 50, fields={'n': {'decode': wait}}, threads=1)
        _interrupt(loader.__next__)
        assert calls == [1]
        if kind == 'drop':
            threading.Timer(0.05, go.set).start()
            del loader
        else:
            _interrupt(loader.close if kind == 'close' else lambda: loader.__exit__(None, None, None))
            raises(ValueError, next, loader, says='closed')
            go.set()
            loader.close()
            assert loader.closed
        assert calls == [1]


def handlers_run_during_long_calls():
    def runs(call, path):
        """How often the handler ran before the call returned."""
        ran = []
        with _ticks(lambda *_: ran.append(1), 0.002, 0.002):
            call(path)
            return len(ran)

    def reader(path, **options):
        return bags.DatasetReader(path, **options)
    calls = {
        'values': lambda path: reader(path).values('k'), 'slice': lambda path: reader(path)[:],
        'no_mmap': lambda path: reader(path, no_mmap=True).values('n'),
        'sequences': lambda path: reader(path).values('s'), 'bag': lambda path: bags.BagReader(f'{path}/k.bag')[:],
        'column': lambda path: reader(path).column('n'), 'build_index': lambda path: bags.build_index(path, 'k'),
        'checksum': lambda path: bags.checksum(path, replace=True), 'verify': lambda path: bags.verify(path, decode=True),
        'zip': lambda path: bags.write_zip(path, f'{path}{time.monotonic_ns()}.zip')}
    done = set()
    for count in 30_000, 400_000:  # enough for this machine to be slow
        _write(f'x{count}', count)
        for name, call in calls.items():
            if name not in done and runs(call, f'x{count}') > 1:  # once after it
                done.add(name)
        if done == set(calls):
            return
    assert done | {'zip', 'checksum', 'verify', 'column', 'build_index'} >= set(calls), set(calls) - done


def what_was_interrupted_can_be_done_again():
    _write('x', 150_000)
    with _ticks(_raise, 0.06):
        raises(Tick, lambda: [bags.build_index('x', 'k') for _ in range(100)])
    bags.build_index('x', 'k')
    reader = bags.DatasetReader('x')
    assert reader[reader.index('k').find(77)[0]]['k'] == 77
    for call in lambda: reader.values('k'), lambda: reader.column('n'):
        with _ticks(_raise, 0.002):
            raises(Tick, lambda: [call() for _ in range(10000)])
    assert len(reader.values('k')) == 150_000 and bags.verify('x') == []


def a_server_that_never_answers_is_interrupted():
    if not bags.build['http']:
        raise Skip('no http')
    _write('x', 20)
    silent = socket.create_server(('127.0.0.1', 0))
    url = f'http://127.0.0.1:{silent.getsockname()[1]}/x'
    for storage in None, {'cache': 'kept'}:
        for call in bags.DatasetReader, bags.BagReader, bags.verify:
            _interrupt(lambda: call(url, storage=storage))
        _interrupt(lambda: bags.DatasetReader(f'{url}.zip', storage=storage))
    _interrupt(lambda: bags.Loader(url))
    silent.close()


def a_server_that_stands_still_later_is_interrupted():
    if not bags.build['http']:
        raise Skip('no http')
    import sys
    from run import HERE
    sys.path.insert(0, str(HERE.parent / 'command'))
    import server
    sys.path.pop(0)
    _write('x', 20)
    stuck, go = threading.Event(), threading.Event()

    class Slow(server.Handler):
        def do_GET(self):
            if self.path.endswith('n.bag') and not go.is_set():
                stuck.set()
                go.wait(600)
            super().do_GET()
        do_HEAD = do_GET
    one = server.Server('.', index=True)
    one.RequestHandlerClass = Slow
    for storage in None, {'cache': 'kept'}:
        go.clear()
        reader = bags.DatasetReader(f'{one.url}/x', storage=storage)
        assert reader[3, ('k',)] == {'k': 3 * 7919 % 20}

        def nested(*_):
            raises(RuntimeError, lambda: reader[0], says='a handler of a signal cannot use the reader')
            raise Tick
        for handler in _raise, nested:
            for call in (lambda: reader[3], lambda: reader.values('n'), lambda: reader.column('n')):
                _interrupt(call, handler)
        loader = bags.Loader(reader, 4, shuffle=False, prefetch=True)
        _interrupt(loader.__next__)
        assert stuck.is_set()
        loader.close()  # its threads wait for the server
        loader = bags.Loader(reader, 4, shuffle=False)
        _interrupt(loader.__next__)
        go.set()
        assert [n for batch in loader for n in batch['n']] == list(range(20))
        assert [row['n'] for row in reader] == list(range(20))
        reader.close()
    one.shutdown()
    one.server_close()


def an_interrupt_in_a_file_system_of_python_is_raised():
    class Files:
        def info(self, path):
            if path.endswith('n.bag'):
                raise KeyboardInterrupt
            if not os.path.exists(path):
                raise FileNotFoundError(path)
            return {'type': 'directory' if os.path.isdir(path) else 'file', 'size': os.path.getsize(path)}

        def ls(self, path, detail=False):
            return [os.path.join(path, name) for name in os.listdir(path)]

        def cat_file(self, path, start, stop):
            with open(path, 'rb') as file:
                file.seek(start)
                return file.read(stop - start)
    _write('x', 20)
    reader = bags.DatasetReader(os.path.abspath('x'), storage=Files())
    assert reader[3, ('s',)] == {'s': [3]}
    raises(KeyboardInterrupt, lambda: reader[3])
    raises(KeyboardInterrupt, lambda: reader.values('n'))
    assert reader[3, ('s',)] == {'s': [3]}


def a_selection_ends_at_once():
    _write('x', 300)
    endless = '(SELECT count(*) FROM data a, data b, data c, data d, data e) > 0'
    for call in (lambda: bags.derive('x', 'out', where=endless),
                 lambda: bags.split('x', 'out', {'a': 0.5}, where=endless),
                 lambda: bags.export('x', 'out.csv', fields=['n'], where=endless)):
        _interrupt(call)
    assert os.listdir() == ['x'], os.listdir()
