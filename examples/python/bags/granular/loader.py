"""granular's Loader: endless batches of a source, made by processes in shared memory.

    parent: (slot, places, step) --pipe--> worker: source(step) to the places of the slot
    parent: counts them <------------pipe-- worker: (slot, how many), or (None, traceback)

A slot is the memory of one batch; it is used again when the batch was copied, or when
`recycle_after` more were returned. bags.Loader is the loader of C, and faster: this one is
for Python functions. Nothing is left in /dev/shm when a process is killed.
"""

import collections
import contextlib
import mmap
import multiprocessing
import operator
import os
import pickle
import signal
import tempfile
import threading
import traceback
import weakref
from multiprocessing import connection, reduction

import numpy as np

from bags.granular import sources

try:
    import cloudpickle
except ImportError:
    cloudpickle = pickle  # then functions must be importable


class SharedArray:
    """An array in unnamed shared memory; its pickle is the same array elsewhere."""

    def __init__(self, shape, dtype, fd=None):
        array = np.broadcast_to(np.empty((), dtype), shape)
        if fd is None:
            with tempfile.TemporaryFile(dir='/dev/shm' if os.path.isdir('/dev/shm') else None) as f:
                f.truncate(array.nbytes or 1)
                fd = os.dup(f.fileno())
        self.fd = fd
        weakref.finalize(self, os.close, fd)
        self.array = np.ndarray(shape, dtype, mmap.mmap(fd, array.nbytes or 1))

    def result(self):
        return self.array

    def close(self):
        self.array = None

    def __reduce__(self):
        return _attach, (self.array.shape, self.array.dtype.str, reduction.DupFd(self.fd))


def _attach(shape, dtype, fd):
    return SharedArray(shape, dtype, fd.detach())


class _Steps:
    """A source of steps, of Loader(source, shuffle=, fns=) of 0.16 to 0.20."""

    def __init__(self, source, fns, shuffle, seed):
        self.epochs, self.fns = sources.Epochs(source, shuffle=shuffle, seed=seed), fns

    def __call__(self, step):
        point = _arrays(self.epochs, step)
        for fn in self.fns:
            point = fn(point, seed=[self.epochs.seed, step])
        return point


def _arrays(source, step):
    point = source(step)
    if not isinstance(point, dict):
        raise TypeError(f'step {step}: the source returned a {type(point).__name__}, not a dict')
    return {name: np.asarray(value) for name, value in point.items()}


def _worker(pipe, source, rings):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the parent handles it
    parent = multiprocessing.parent_process().sentinel
    try:
        source = pickle.loads(source)
        while parent not in connection.wait([pipe, parent]):
            slot, places, first = pipe.recv()
            for step, place in enumerate(places, first):
                point = _arrays(source, step)
                if point.keys() != rings.keys():
                    raise ValueError(f'step {step}: fields {list(point)}, not {list(rings)}')
                for name, value in point.items():
                    batch = rings[name].array[slot]
                    if value.shape != batch.shape[1:] or value.dtype.kind != batch.dtype.kind or (
                            value.dtype.itemsize > batch.dtype.itemsize):
                        raise ValueError(
                            f'step {step}: field "{name}": {value.dtype} of shape {value.shape} '
                            f'(step 0: {batch.dtype} of shape {batch.shape[1:]})')
                    batch[place] = value
            pipe.send((slot, len(places)))
    except (EOFError, ConnectionError):
        pass  # closed by the parent
    except BaseException:
        pipe.send((None, traceback.format_exc()))


def _stop(pid, pipes, processes):
    if os.getpid() == pid:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.terminate()
            process.join()


class Loader:
    """Batches without end: iter(loader), then next(loader): {field: array}.

    source: a callable of a step (see sources), or, as in 0.16 to 0.20, an object with [i]
    and len() and the options shuffle=True, fns=(), seed=0. Every field must have the dtype
    and shape that it has in step 0. Loader shard_id of num_shards returns every
    num_shards-th batch. With recycle_after=N an array is overwritten after N more batches.

    RuntimeError: a worker failed (its traceback) or was killed. TypeError: a field has no
    dtype. ValueError: options that exclude each other, or the loader is closed.
    """

    def __init__(self, source, batch, fns=(), shuffle=None, prefetch=8, workers=32,
                 recycle_after=False, shard_id=0, num_shards=1, mp=None, seed=0):
        if isinstance(fns, int):
            raise TypeError('pass prefetch and the options after it by name (versions of '
                            'granular disagree on their order)')
        if not callable(source):
            source = _Steps(source, tuple(fns), shuffle is not False, seed)
        elif shuffle is not None or tuple(fns):
            raise ValueError('shuffle and fns require a source with [i]; for a source of steps '
                             'use sources.Epochs and sources.Transform')
        batch, workers, prefetch, num_shards, shard_id, recycle_after = map(
            operator.index, (batch, workers, prefetch, num_shards, shard_id, recycle_after))
        if min(batch, workers, prefetch, num_shards) < 1:
            raise ValueError(f'batch={batch}, workers={workers}, prefetch={prefetch}, '
                             f'num_shards={num_shards} (minimum 1)')
        if not 0 <= shard_id < num_shards:
            raise ValueError(f'shard_id={shard_id} (maximum {num_shards - 1})')
        self.source, self.batch, self.prefetch, self.workers = source, batch, prefetch, workers
        self.recycle_after, self.shard_id = recycle_after, shard_id
        self.num_shards, self.mp = num_shards, mp or multiprocessing.get_context('spawn')
        self.step = self.consumed = 0  # the next to request and to return, of all shards
        self._spec, self._stop, self._lock = None, None, threading.Lock()

    @property
    def spec(self):
        """{field: (dtype, shape)} of a datapoint."""
        if self._spec is None:
            spec = {k: (v.dtype, v.shape) for k, v in _arrays(self.source, 0).items()}
            for name, (dtype, _) in spec.items():
                if dtype.hasobject:
                    raise TypeError(f'field "{name}": not a number, text or array')
            self._spec = spec
        return self._spec

    def __iter__(self):
        if self._stop is None:
            slots = self.prefetch + 1 + self.recycle_after
            self._rings = {name: SharedArray((slots, self.batch, *shape), dtype)
                           for name, (dtype, shape) in self.spec.items()}
            self._free, self._pending = collections.deque(range(slots)), collections.deque()
            self._left, self._turn, self._pipes = [0] * slots, 0, []
            self._processes = processes = []
            source, self._pid = cloudpickle.dumps(self.source), os.getpid()
            # Also at exit, and when the loader is no longer referred to.
            self._stop = weakref.finalize(self, _stop, self._pid, self._pipes, processes)
            for _ in range(self.workers):
                ours, theirs = self.mp.Pipe()
                processes.append(self.mp.Process(
                    target=_worker, args=(theirs, source, self._rings), daemon=True))
                processes[-1].start()
                theirs.close()
                self._pipes.append(ours)
            with self._used():
                self._request(self.prefetch)
        return self

    def __next__(self):
        if self._stop is None:
            raise TypeError('not started: call iter(loader) first')
        with self._used():
            self._request(1)
            while self._left[self._pending[0]]:
                self._collect(None)
            slot = self._pending.popleft()
            self._free.append(slot)
            self.consumed += self.batch * self.num_shards
            batch = {name: ring.array[slot] for name, ring in self._rings.items()}
            return batch if self.recycle_after else {k: v.copy() for k, v in batch.items()}

    def save(self):
        """A dict for load(): where all shards are, after the batch that was returned last."""
        seed = {'seed': self.source.epochs.seed} if isinstance(self.source, _Steps) else {}
        return {'step': self.consumed, **seed}

    def load(self, state):
        """Continue after save(). ValueError: another seed than the workers started with."""
        step = operator.index(state['step'])
        if step < 0:
            raise ValueError(f'step {step} (minimum 0)')
        if isinstance(self.source, _Steps) and 'seed' in state:
            if self._stop is not None and state['seed'] != self.source.epochs.seed:
                raise ValueError(f"seed {state['seed']} (started with {self.source.epochs.seed}); "
                                 'call load before iter')
            self.source.epochs.seed = state['seed']
        if self._stop is None:
            self.step = self.consumed = step
            return
        with self._used():
            while any(self._left):
                self._collect(None)
            self._free.extend(self._pending)
            self._pending.clear()
            self.step = self.consumed = step
            self._request(self.prefetch)

    def close(self):
        """Stop the workers. Arrays that were returned stay valid."""
        if self._stop is not None:
            self._stop()

    def __reduce__(self):
        raise TypeError('a Loader cannot be pickled; pickle what save() returns')

    @contextlib.contextmanager
    def _used(self):
        if os.getpid() != self._pid:
            raise RuntimeError('the loader belongs to the process that started it')
        with self._lock:
            if not self._stop.alive:
                raise ValueError('the loader is closed')
            try:
                yield
            except BaseException:
                self.close()
                raise

    def _ended(self, number):
        """Why a worker does not answer."""
        process = self._processes[number]
        process.join(10)
        if process.exitcode is not None and process.exitcode < 0:
            return f'a worker process was killed by signal {-process.exitcode}'
        return (f'a worker process ended with exit code {process.exitcode}; if it did not start, as '
                'its output says, begin the main program with if __name__ == "__main__":, and let '
                'the source be importable')

    def _request(self, batches):
        for _ in range(batches):
            self._collect(0)  # so that no pipe fills in both directions
            slot, first = self._free.popleft(), self.step + self.shard_id * self.batch
            part = -(-self.batch // self.workers)
            for place in range(0, self.batch, part):
                places = range(place, min(place + part, self.batch))
                with contextlib.suppress(ConnectionError):  # _collect says why
                    self._pipes[self._turn].send((slot, places, first + place))
                self._turn = (self._turn + 1) % len(self._pipes)
            self._left[slot] = self.batch
            self._pending.append(slot)
            self.step += self.num_shards * self.batch

    def _collect(self, timeout):
        for pipe in connection.wait(self._pipes, timeout):
            try:
                slot, what = pipe.recv()
            except (EOFError, ConnectionError):
                raise RuntimeError(self._ended(self._pipes.index(pipe))) from None
            if slot is None:
                raise RuntimeError(what)
            self._left[slot] -= what
