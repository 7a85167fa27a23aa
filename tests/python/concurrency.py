"""Threads that share an object; `run.sh tsan` runs them under ThreadSanitizer."""
import os
import signal
import threading

import numpy as np

import bags
from run import HERE, Skip, forks_while_threads_allocate

SPEC = {'n': 'int', 'w': 'utf8[]', 'a': 'array(float32,1000)', 'm': 'msgpack'}


def _point(i):
    return {'n': i, 'w': [f'{i}.{k}' for k in range(i % 4)], 'a': np.full(1000, i, 'f4'), 'm': {'k': [i]}}


def _write(path, count=50, **options):
    kind = bags.ShardedDatasetWriter if options else bags.DatasetWriter
    with kind(path, SPEC, **options) as writer:
        for i in range(count):
            writer.append(_point(i))


def _together(work, count=2, then=lambda: None):
    """Run work(number) in threads, and `then` in this one; raise what one of them raised."""
    raised = []

    def run(number):
        try:
            work(number)
        except BaseException as error:
            raised.append(error)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    then()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def _same(row, i):
    want = _point(i)
    return (row.pop('a') == want.pop('a')).all() and row == want


def threads_share_a_reader():
    _write('x', checksum=True)
    _write('y', shard_length=20, checksum=True)
    for path in 'xy':
        for options in ({}, {'no_mmap': True}, {'verify_checksums': True}, {'max_files': 2, 'no_mmap': True}):
            reader = bags.DatasetReader(path, **options)

            def work(number):
                for k in range(150):
                    i = (k * 17 + number) % 50
                    assert _same(reader[i], i) and reader[i, ('n',)] == {'n': i}
                    assert reader.items(i, 'w') == i % 4
                assert reader.values('n') == list(range(50)) and reader[3:5, ('n',)] == {'n': [3, 4]}
                assert (np.asarray(reader.column('a'))[:, 5] == range(50)).all()
            _together(work)


def threads_share_a_bag_its_views_and_an_index():
    _write('x')
    bags.build_index('x', 'n')
    for options in ({}, {'no_mmap': True}):
        bag, index = bags.BagReader('x/n.bag', **options), bags.DatasetReader('x', **options).index('n')

        def work(number):
            for k in range(300):
                i = (k * 17 + number) % 49 + 1
                assert bag[i] == bytes(bag.view(i)) == bytes([i]) and bag[i:i + 1] == [bytes([i])]
                assert index.find(i) == [i]
        _together(work)


def threads_may_close_and_append_at_the_same_time():
    _write('x')
    for attempt in range(20):
        reader = bags.DatasetReader('x')
        writer, bag = bags.DatasetWriter(f'y{attempt}', {'n': 'int'}), bags.BagWriter(f'z{attempt}.bag')

        def work(number):
            try:
                for i in range(50):
                    assert reader[i]['n'] == i
                    writer.append({'n': i})
                    bag.append(b'x')
                    assert len(writer) and len(bag) and writer.size and bag.size
            except ValueError as error:
                assert 'closed' in str(error)
        _together(work, 3, lambda: [one.close() for one in (reader, bag, writer)])
        assert len(bags.DatasetReader(f'y{attempt}')) == len(writer)
        assert len(bags.BagReader(f'z{attempt}.bag')) == len(bag)


def threads_share_a_loader_whose_functions_read_its_dataset():
    _write('x')
    reader = bags.DatasetReader('x')

    def decode(blob):
        number = int.from_bytes(blob, 'little')
        return np.array([reader[number]['n']])
    loader = bags.Loader(reader, 5, fields={'n': {'decode': decode, 'shape': [1], 'dtype': 'int64'}, 'a': {}}, threads=2)
    seen = []

    def work(number):
        for _ in range(5):
            batch = loader.__next__()
            loader.state_dict()
            assert (batch['a'][:, 0] == batch['n'][:, 0]).all()
            seen.extend(batch['n'][:, 0])
    _together(work)
    assert sorted(seen) == list(range(50)) and loader.batch == 10
    _together(lambda number: loader.close())


def functions_that_draw_run_in_the_threads_of_loaders():
    with bags.DatasetWriter('x', {'j': 'png', 'n': 'int'}) as writer:
        for i in range(60):
            writer.append({'j': np.full((4, 5, 3), i, 'u1'), 'n': i})
    reader, calls = bags.DatasetReader('x'), []

    def draw(drawn):
        calls.append(threading.get_ident())
        number = reader[drawn.datapoint]['n']
        return {'matrix': drawn.matrix, 'brightness': 0.5 if number % 2 else 1}

    def work(number):
        how = {'j': dict(width=3, height=3, warp={}, draw=draw), 'n': {}}
        with bags.Loader(reader, 7, fields=how, threads=3, seed=number) as loader:
            for batch in loader:
                want = np.where(batch['n'] % 2, batch['n'] // 2, batch['n'])
                assert (batch['j'] == want[:, None, None, None]).all()
    _together(work)
    assert len(calls) >= 120 and threading.get_ident() not in calls


def _child(work):
    """Its status: whether `work` is true in a child, which a hang ends after a while."""
    child = os.fork()
    if child == 0:
        signal.alarm(300)
        try:
            os._exit(not work())
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(2)
    return os.waitpid(child, 0)[1]


def readers_work_in_children():
    forks_while_threads_allocate()
    _write('x', shard_length=3)
    bags.write_zip('x', 'x.zip')
    for path, options in (('x', {}), ('x', {'no_mmap': True, 'max_files': 4}), ('x.zip', {})):
        for attempt in range(8):
            reader, stop = bags.DatasetReader(path, **options), threading.Event()

            def check():
                return all(_same(reader[i], i) for i in range(0, 50, 4))

            def work(number):
                while not stop.is_set():
                    assert check()

            def fork():
                try:
                    for _ in range(2):
                        status = _child(check)
                        assert status == 0, (path, status)
                finally:
                    stop.set()
            _together(work, 1, fork)
            reader.close()


def a_file_system_that_is_busy_during_fork_is_an_error_in_the_child():
    _write('x')
    busy, go = threading.Event(), threading.Event()

    class Files:
        def info(self, path):
            if path.endswith('n.bag') and not go.is_set():
                busy.set()
                go.wait(600)
            if not os.path.exists(path):
                raise FileNotFoundError(path)
            return {'type': 'directory' if os.path.isdir(path) else 'file', 'size': os.path.getsize(path)}

        def ls(self, path, detail=False):
            return [os.path.join(path, name) for name in os.listdir(path)]

        def cat_file(self, path, start, stop):
            with open(path, 'rb') as file:
                file.seek(start)
                return file.read(stop - start)
    reader, idle = (bags.DatasetReader(os.path.abspath('x'), storage=Files()) for _ in range(2))

    def in_child():
        try:
            reader[0]
        except RuntimeError as error:
            assert 'during fork(); open it in the child' in str(error), error
        go.set()
        reader.close()
        return _same(idle[7], 7)

    def work(number):
        assert reader[3]['n'] == 3

    def fork():
        try:
            assert busy.wait(600)
            assert _child(in_child) == 0
        finally:
            go.set()
    _together(work, 1, fork)


def a_reader_with_a_cache_is_an_error_in_a_child():
    if not bags.build['http']:
        raise Skip('no http')
    import sys
    sys.path.insert(0, str(HERE.parent / 'command'))
    import server
    sys.path.pop(0)
    _write('x')
    one = server.Server('.', index=True)
    reader = bags.DatasetReader(f'{one.url}/x', storage={'cache': 'kept'})
    other = bags.DatasetReader(f'{one.url}/x', storage={'cache': 'kept'})
    loader = bags.Loader(reader, 5, prefetch=True)
    next(loader)
    assert other[3]['n'] == 3

    def in_child():
        for call in (lambda: reader[0], lambda: next(loader)):
            try:
                call()
                return False
            except (OSError, RuntimeError):
                pass
        for opened in loader, reader, other:
            opened.close()
        return True
    assert _child(in_child) == 0
    loader.close()
    reader.close()
    one.shutdown()
    one.server_close()
