"""Sources: functions of a step, that turn readers into endless streams for a Loader.

A source is a callable, or an object with [i] such as a reader or a list. The same step
returns the same datapoint in every process, whatever was asked for before.
"""

import numpy as np


def convert(source):
    """A function of a step. TypeError: neither a callable nor an object with [i]."""
    if callable(source):
        return source
    if hasattr(source, '__getitem__'):
        return source.__getitem__
    raise TypeError(f'{type(source)} is not a source (a callable, or an object with [i])')


def _length(source, length):
    length = len(source) if length is None else length
    if length < 1:
        raise ValueError(f'a source of {length} datapoints')
    return length


class Transform:
    """fn(datapoint, seed=[seed, step]) of every datapoint."""

    def __init__(self, source, fn, seed=0):
        self.source, self.fn, self.seed = convert(source), fn, seed

    def __call__(self, step):
        return self.fn(self.source(step), seed=[self.seed, step])


class Sample:
    """Datapoints at random, with replacement."""

    def __init__(self, source, length=None, seed=0):
        self.source, self.length, self.seed = convert(source), _length(source, length), seed

    def __call__(self, step):
        rng = np.random.default_rng(seed=[self.seed, step])
        return self.source(int(rng.choice(self.length)))


class Epochs:
    """All datapoints again and again, in an order of each epoch's own if shuffle."""

    def __init__(self, source, length=None, shuffle=True, seed=0):
        self.source, self.length = convert(source), _length(source, length)
        self.shuffle, self.seed = shuffle, seed
        self._order = None, None

    def __call__(self, step):
        epoch, index = divmod(step, self.length)
        if self.shuffle:
            known, order = self._order  # one object: another thread may replace it
            if known != (self.seed, epoch):
                rng = np.random.default_rng(seed=[self.seed, epoch])
                order = rng.permutation(np.arange(self.length))
                self._order = (self.seed, epoch), order
            index = int(order[index])
        return self.source(index)

    def __getstate__(self):
        return {**self.__dict__, '_order': (None, None)}


class Truncate:
    """The first `limit` datapoints, again and again."""

    def __init__(self, source, limit, length=None):
        self.source = convert(source)
        self.limit = min(_length(source, length), _length(source, limit))

    def __call__(self, step):
        return self.source(step % self.limit)


class Interleave:
    """One datapoint of each source in turn."""

    def __init__(self, sources):
        self.sources = [convert(source) for source in sources]
        _length(self.sources, None)

    def __call__(self, step):
        inner, outer = divmod(step, len(self.sources))
        return self.sources[outer](inner)


class Mix:
    """A source at random for every step, in proportion to weights."""

    def __init__(self, sources, weights, seed=0):
        self.sources, self.seed = [convert(source) for source in sources], seed
        weights = np.asarray(weights, np.float32)
        if weights.shape != (len(self.sources),) or not (
                np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0):
            raise ValueError(f'weights {weights.tolist()} for {len(self.sources)} sources '
                             '(expected one of at least 0 for each, not all 0)')
        self.weights = weights / weights.sum()

    def __call__(self, step):
        rng = np.random.default_rng(seed=[self.seed, step])
        return self.sources[int(rng.choice(len(self.sources), p=self.weights))](step)
