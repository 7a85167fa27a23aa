"""What batches contain: converted tokens, ranks from the environment, states as JSON."""
import json
import os
import pickle
from unittest import mock

import bags
import numpy as np
from run import python, raises


def _tokens(path, kind, documents):
    with bags.DatasetWriter(path, {'ids': kind, 'm': 'array(uint8,-1)'}) as writer:
        for document in documents:
            writer.append({'ids': document.tobytes() if kind == 'bytes' else document,
                           'm': np.ones(len(document), 'u1')})
    return path


def tokens_are_converted_to_the_dtype_that_is_asked_for():
    rng = np.random.default_rng(0)
    for stored, most in ('u2', 60000), ('u4', 2 ** 32 - 1), ('i4', 2 ** 31 - 1):
        documents = [rng.integers(0, most, n, endpoint=True).astype(stored) for n in (9, 0, 40, 17, 3)]
        kind = np.dtype(stored).name
        arrays, raw = _tokens(f'{stored}a', f'array({kind},-1)', documents), _tokens(f'{stored}b', 'bytes', documents)
        for path, more in (arrays, {}), (raw, {'stored': kind}):
            for extra in {'length': 8}, {'length': 8, 'bos': 1, 'eos': 2, 'parallel': ['m']}, {
                    'length': 32, 'pack': True, 'eos': 2}:
                def load(**options):
                    return list(bags.Loader(path, 3, seed=4, tokens={'field': 'ids', **extra, **more, **options}))
                plain = load()
                for dtype in 'int64', 'uint64', 'float64', kind:
                    other = load(dtype=dtype)
                    assert len(plain) == len(other) > 0
                    for a, b in zip(plain, other):
                        assert a.keys() == b.keys()
                        for name in a:
                            for x, y in zip(a[name], b[name], strict=True):
                                assert np.array_equal(x, y)
                                assert y.dtype == (dtype if name == 'ids' else x.dtype), name


def tokens_that_do_not_fit_name_their_window():
    _tokens('x', 'array(uint32,-1)', [np.arange(16, dtype='u4'), np.array([3, 2 ** 24 + 1, 5, 6, 7], 'u4')])
    how = {'field': 'ids', 'length': 4}
    for dtype, says in (('int8', 'value out of range for int8 (16777217)'), ('uint16', 'value out of range for uint16 (16777217)'),
                        ('float32', 'not exactly representable as float32 (16777217)')):
        loader = bags.Loader('x', 9, shuffle=False, tokens={**how, 'dtype': dtype})
        error = raises(ValueError, next, loader, says=says)
        assert 'x: field "ids": window 4: element 1: ' in str(error), error
        loader = bags.Loader('x', 9, tokens={**how, 'dtype': dtype}, skip_damaged=True, shuffle=False)
        assert next(loader)['indices'].tolist() == list(range(4)) and loader.skipped == 1
    packed = bags.Loader('x', 9, tokens={**how, 'pack': True, 'dtype': 'uint16', 'length': 32})
    raises(ValueError, next, packed, says='x: field "ids": datapoint 1: element 1: value out of range')
    _tokens('y', 'bytes', [np.arange(20, dtype='u2')])
    raises(TypeError, bags.Loader, 'y', tokens={**how, 'dtype': 'int32'}, says='`stored`')
    raises(TypeError, bags.Loader, 'x', tokens={**how, 'stored': 'uint16'}, says='another dtype than the option `stored`')
    raises(TypeError, bags.Loader, 'x', tokens={**how, 'dtype': 'complex64'}, says='cannot become complex64')
    raises(ValueError, bags.Loader, 'x', tokens={**how, 'dtype': 'int65'}, says='not a dtype')


def _numbers(path='n', count=101):
    with bags.DatasetWriter(path, {'n': 'int(4)'}) as writer:
        for i in range(count):
            writer.append({'n': i})
    return path


_RANKED = """
import bags, sys
loaders = [bags.Loader('n', 10, shuffle=False, **eval(sys.argv[1])) for _ in range(2)]
print([b['n'].tolist() for b in loaders[0]][0])
"""


def ranks_are_those_of_the_environment():
    _numbers()
    known = ('RANK WORLD_SIZE SLURM_PROCID SLURM_NTASKS OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PMI_RANK '
             'PMI_SIZE SLURM_ARRAY_TASK_ID SLURM_ARRAY_TASK_COUNT').split()
    clean = {name: value for name, value in os.environ.items() if name not in known}

    def run(options, code=0, **variables):
        with mock.patch.dict(os.environ, {**clean, **variables}, clear=True):
            return python(_RANKED, options, code=code)
    for rank, ranks in zip(known[:8:2], known[1:8:2]):
        said, batch = run({}, **{rank: '1', ranks: '2'}).splitlines()  # once, for two loaders
        assert said == f'bags: rank 1 of 2, from {rank} and {ranks}' and batch == '[5, 6, 7, 8, 9]'
        said = run({}, code=1, **{rank: '1'}).splitlines()[-1]
        assert said.startswith('ValueError: n: rank: ') and rank in said and ranks in said, said
        said = run({}, code=1, **{ranks: '2'}).splitlines()[-1]
        assert said.startswith('ValueError: n: rank: ') and rank in said and ranks in said, said
    contradictory = {'RANK': '0', 'WORLD_SIZE': '2', 'SLURM_PROCID': '1', 'SLURM_NTASKS': '2'}
    assert 'contradict' in run({}, code=1, **contradictory)
    assert run({'rank': 0, 'ranks': 2}, **contradictory) == '[0, 1, 2, 3, 4]\n'
    assert run({'rank': 0, 'ranks': 1}, **contradictory) == f'{list(range(10))}\n'
    assert run({}) == run({}, SLURM_ARRAY_TASK_ID='1', SLURM_ARRAY_TASK_COUNT='2') == f'{list(range(10))}\n'
    for half in {'rank': 0}, {'ranks': 2}:
        raises(ValueError, bags.Loader, 'n', says='must be stated together', **half)
    raises(ValueError, bags.Loader, 'n', rank=2, ranks=2, says='rank out of range')


def states_are_json_and_older_states_load():
    _numbers()
    loader = bags.Loader('n', 10, seed=3)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = loader.state_dict()
    rest = [b['n'].tolist() for b in iterator]
    old = {**state, 'state': bytes.fromhex(state['state'])}
    for one in json.loads(json.dumps(state)), pickle.loads(pickle.dumps(state)), old:
        other = bags.Loader('n', 10, seed=3, rank=0, ranks=1)
        other.load_state_dict(one)
        assert [b['n'].tolist() for b in other] == rest
    for bad in 'zz', '', 'é', state['state'][2:], '00' * 64, 7:
        raises(ValueError, loader.load_state_dict, {**state, 'state': bad}, says='state')
