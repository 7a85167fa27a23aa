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


def _gradients(path, count=12, kind='png'):
    """Images whose red and green are the coordinates."""
    rng = np.random.default_rng(1)
    with bags.DatasetWriter(path, {'im': kind, 'n': 'int(4)'}) as writer:
        for i in range(count):
            height, width = (int(n) for n in rng.integers(60, 256, 2))
            y, x = np.mgrid[:height, :width]
            writer.append({'im': np.stack([x, y, x * 0 + i + 50], 2).astype('u1'), 'n': i})
    return path


def _check_matrices(images, matrices, least=0.3, close=1.0):
    """The colours of each pixel are its place in the image, as the matrix states."""
    assert matrices.dtype == np.float64 and matrices.shape == (len(images), 2, 3)
    height, width = images.shape[1:3]
    y, x = np.mgrid[:height, :width] + 0.5
    for image, matrix in zip(images.astype(float), matrices):
        back = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))
        u, v = back[:2, :2] @ [x.ravel(), y.ravel()] + back[:2, 2:]
        red, green, blue = image.reshape(-1, 3).T
        inside = blue == blue.max()  # not the fill colour
        assert inside.mean() > least, inside.mean()
        wrong = np.maximum(abs(u - 0.5 - red), abs(v - 0.5 - green))[inside]
        assert np.quantile(wrong, 0.9) < close, (np.quantile(wrong, 0.9), matrix)  # edges are repeated


def matrices_say_where_pixels_come_from():
    _gradients('x')
    size = {'width': 48, 'height': 40, 'matrix': True}
    affine = {'degrees': (-30, 30), 'scale': (0.7, 1.3), 'shear_x': (-10, 10), 'translate_y': (-0.1, 0.1)}
    for options in ({}, {'crop': 'center'}, {'crop': 'center', 'resize': 57}, {'crop': 'random'},
                    {'crop': 'random', 'flip_x': 0.5, 'flip_y': 0.5}, {'filter': 'nearest', 'flip_x': 1},
                    {'warp': affine}, {'warp': affine, 'crop': 'random', 'flip_x': 0.5, 'flip_y': 0.5},
                    {'crop': 'center', 'warp': {}, 'resize': 61, 'flip_y': 1},
                    {'warp': {}, 'draw': lambda d: {'matrix': d.matrix @ [[1, 0.1, 2], [0.2, 1, -3], [0, 0, 1]]}}):
        images = []
        for batch in bags.Loader('x', 5, seed=6, fields={'im': {**size, **options}, 'n': {}}):
            assert list(batch) == ['im', 'n', 'im_matrix', 'indices']
            _check_matrices(batch['im'], batch['im_matrix'], close=4 if 'filter' in options else 2)
            images.append(batch['im'])
        options = {**size, **options, 'matrix': False}
        for one, batch in zip(images, bags.Loader('x', 5, seed=6, fields={'im': options}), strict=True):
            assert (one == batch['im']).all() and 'im_matrix' not in batch
    for bad, says in (({'warp': {'perspective': 0.5}}, 'matrix and perspective'),
                      ({'warp': {}, 'draw': lambda d: {'matrix': [[1, 0, 0], [0, 1, 0], [0.001, 0, 1]]}}, 'perspective'),
                      ({'warp': {}, 'draw': lambda d: {'matrix': np.diag([1, 0, 1])}}, 'no inverse')):
        raises((ValueError, RuntimeError), lambda: next(bags.Loader('x', fields={'im': {**size, **bad}})), says=says)
    raises(ValueError, bags.Loader, 'x', fields={'n': {'matrix': True}}, says='width and height')
    with bags.DatasetWriter('y', {'im': 'png', 'im_matrix': 'int'}):
        pass
    raises(KeyError, bags.Loader, 'y', fields={'im': size, 'im_matrix': {}}, says='name of a mask or matrix')


def matrices_of_scaled_jpegs_are_exact():
    _gradients('x', kind='jpeg(100)')
    fields = {'im': {'width': 16, 'height': 16, 'matrix': True, 'crop': 'random', 'scaled': True, 'flip_x': 0.5}}
    for batch in bags.Loader('x', 5, seed=6, fields=fields):
        y, x = np.mgrid[:16, :16] + 0.5
        for image, matrix in zip(batch['im'].astype(float), batch['im_matrix']):
            back = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))
            u, v = back[:2, :2] @ [x.ravel(), y.ravel()] + back[:2, 2:]
            assert abs((u - 0.5).mean() - image[..., 0].mean()) < 2.5 and abs((v - 0.5).mean() - image[..., 1].mean()) < 2.5


def matrices_belong_to_the_images_of_windows_and_sequences():
    rng = np.random.default_rng(1)
    def image(n):
        height, width = (int(n) for n in rng.integers(60, 200, 2))
        y, x = np.mgrid[:height, :width]
        return np.stack([x, y, x * 0 + n + 50], 2).astype('u1')
    with bags.DatasetWriter('x', {'cam': 'png[]', 's': 'int(1)[]'}) as writer:
        for i in range(6):
            writer.append({'cam': [image(i * 10 + k) for k in range(i)], 's': list(range(i))})
    how = {'width': 32, 'height': 32, 'crop': 'random', 'flip_x': 0.5, 'matrix': True}
    for batch in bags.Loader('x', 4, fields={'cam': how}):  # of different lengths
        assert [len(m) for m in batch['cam_matrix']] == batch['indices'].tolist() == [len(m) for m in batch['cam']]
        for images, matrices in zip(batch['cam'], batch['cam_matrix']):
            _check_matrices(images, matrices, close=2)
    for batch in bags.Loader('x', 4, frames='s', fields={'s': {}, 'cam': {**how, 'offsets': (-1, 0, 1)}}):
        assert list(batch) == ['s', 'cam', 'cam_pad', 'cam_matrix', 'indices']
        for images, matrices in zip(batch['cam'], batch['cam_matrix'], strict=True):
            _check_matrices(images, matrices, close=2)
    damaged = bags.Loader('x', 4, fields={'cam': how}, skip_damaged=True)
    assert sum(len(b['cam_matrix']) for b in damaged) == 6


def deep_images_stay_deep():
    depth = np.arange(12 * 20, dtype='u2').reshape(12, 20) * 250
    with bags.DatasetWriter('x', {'depth': 'png', 'n': 'int'}) as writer:
        for i in range(3):
            writer.append({'depth': depth + np.uint16(i), 'n': i})
    assert bags.DatasetReader('x')[1]['depth'].dtype == np.uint16
    for dtype in 'uint16', 'float32', 'int32':
        batch = next(bags.Loader('x', 3, shuffle=False, fields={'depth': {'dtype': dtype, 'shape': depth.shape}}))
        assert batch['depth'].dtype == dtype and batch['depth'].shape == (3, 12, 20)
        assert (batch['depth'] == depth + np.arange(3, dtype='u2')[:, None, None]).all()
