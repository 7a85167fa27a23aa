"""bags.Loader(frames=...): windows, masks, indices, misuse."""
import numpy as np

import bags
from run import Skip, raises

SPEC = {'state': 'array(float32,2)[]', 'action': 'array(float32,3)[]', 'cam': 'png[]',
        'cam_time': 'array(float64)[]', 'time': 'array(float64)[]', 'task': 'utf8', 'id': 'int(2)'}
LENGTHS = [7, 0, 20, 1, 12]
FIELDS = {'state': {'offsets': (-1, 0), 'times': 'time'}, 'action': {'offsets': range(4)},
          'cam': {'seconds': (-0.1, 0.0), 'times': 'cam_time', 'width': 4, 'height': 4}, 'task': {}}


def _episode(e):
    count = LENGTHS[e % len(LENGTHS)]
    cams = (count + 1) // 2
    return {'state': [np.array([e, i], 'f4') for i in range(count)],
            'action': [np.array([e, i, -i], 'f4') for i in range(count)],
            'time': [np.array(i / 10) for i in range(count)],
            'cam': [np.full((6, 6, 3), 10 * i, 'u1') for i in range(cams)],
            'cam_time': [np.array(i / 5) for i in range(cams)], 'task': f'task {e}', 'id': e}


def _write(path, count=len(LENGTHS), **options):
    with bags.ShardedDatasetWriter(path, SPEC, shard_length=2) as writer:
        for e in range(count):
            writer.append({**_episode(e), **options})
    return path


def _frames(count=len(LENGTHS)):
    return [(e, t) for e in range(count) for t in range(LENGTHS[e % len(LENGTHS)])]


def _check(batch):
    for k, (e, t) in enumerate(batch['indices']):
        count = LENGTHS[e % len(LENGTHS)]
        for name, offsets, value in (('state', (-1, 0), lambda i: [e, i]),
                                     ('action', range(4), lambda i: [e, i, -i])):
            items = [min(max(t + o, 0), count - 1) for o in offsets]
            assert batch[name][k].tolist() == [value(i) for i in items], (e, t)
            assert batch[f'{name}_pad'][k].tolist() == [not 0 <= t + o < count for o in offsets]
        times = [i / 5 for i in range((count + 1) // 2)]
        for j, seconds in enumerate((-0.1, 0.0)):
            want = t / 10 + seconds
            item = min(range(len(times)), key=lambda i: abs(times[i] - want))
            assert (batch['cam'][k][j] == 10 * item).all(), (e, t, j)
            assert batch['cam_pad'][k][j] == (want < times[0] or want > times[-1])
        assert batch['task'][k] == f'task {e}'


def a_sample_is_a_frame_with_a_window_of_each_field():
    loader = bags.Loader(_write('x'), 9, frames='state', fields=FIELDS, seed=3)
    assert len(loader) == 5
    epochs = []
    for _ in range(2):
        batches = list(loader)
        for batch in batches:
            assert sorted(batch) == sorted(['state', 'action', 'cam', 'task', 'state_pad', 'action_pad',
                                            'cam_pad', 'indices'])
            n = len(batch['indices'])
            assert batch['indices'].shape == (n, 2) and batch['indices'].dtype == 'i8'
            assert batch['state'].shape == (n, 2, 2) and batch['action'].shape == (n, 4, 3)
            assert batch['cam'].shape == (n, 2, 4, 4, 3) and batch['cam'].dtype == 'u1'
            assert batch['cam_pad'].shape == (n, 2) and batch['cam_pad'].dtype == bool
            _check(batch)
        epochs.append([tuple(pair) for batch in batches for pair in batch['indices'].tolist()])
        assert sorted(epochs[-1]) == _frames()
    assert epochs[0] != epochs[1]


def pad_drop_leaves_frames_out():
    loader = bags.Loader(_write('x'), 64, frames='state', fields=FIELDS, pad='drop')
    batch, = loader
    _check(batch)
    assert not any(batch[name].any() for name in ('state_pad', 'action_pad', 'cam_pad'))
    assert sorted(map(tuple, batch['indices'].tolist())) == [
        (e, t) for e, t in _frames() if 1 <= t < LENGTHS[e] - 3
        and t / 10 <= ((LENGTHS[e] + 1) // 2 - 1) / 5]


def a_state_continues_on_other_ranks():
    _write('x', 20)

    def run(state, stop, **options):
        loader = bags.Loader('x', 10, frames='state', fields=FIELDS, seed=8, **options)
        if state:
            loader.load_state_dict(state)
        got = [[tuple(p) for p in next(loader)['indices'].tolist()] for _ in range(stop)]
        return got, loader.state_dict()
    whole, _ = run(None, 16)
    for stop in (1, 5, 15):
        first, state = run(None, stop, threads=1)
        rest = [run(state, 16 - stop, rank=rank, ranks=3)[0] for rank in range(3)]
        merged = [sum(parts, []) for parts in zip(*rest)]
        assert first + merged == whole
    raises(ValueError, run, run(None, 1)[1], 1, pad='drop', says='other datasets or options')


def rows_select_episodes():
    _write('x')
    for rows, expected in (([2, 0, 2], [2, 0, 2]), (range(1, 4), [1, 2, 3]),
                           (np.array([True, False, False, True, False]), [0, 3])):
        loader = bags.Loader('x', 100, frames='state', fields=['state', 'id'], rows=rows, shuffle=False)
        batch, = loader
        assert [tuple(p) for p in batch['indices'].tolist()] == [
            (e, t) for e in expected for t in range(LENGTHS[e])]
        assert batch['state'].tolist() == batch['indices'].tolist() and batch['id'].tolist() == [
            e for e, _ in batch['indices'].tolist()]
    batch, = bags.Loader('x', 100, frames='state', fields=['state'], take=1)
    assert sorted(batch['indices'].tolist()) == [[0, t] for t in range(LENGTHS[0])]


def several_datasets_have_three_indices():
    _write('x')
    _write('y', 2)
    loader = bags.Loader(['x', 'y'], 16, frames='state', fields=['state'], weights=[1, 3])
    batches = list(loader)
    assert batches[0]['indices'].shape == (16, 3)
    datasets = np.concatenate([batch['indices'][:, 0] for batch in batches])
    assert len(datasets) == 1024 and datasets.sum() == 768
    for batch in batches:
        assert (batch['state'] == batch['indices'][:, 1:]).all()


def without_fields_the_clock_and_plain_fields_are_loaded():
    batch = next(bags.Loader(_write('x'), 8, frames='action'))
    assert sorted(batch) == ['action', 'id', 'indices', 'task'] and batch['action'].shape == (8, 3)


def every_kind_of_batch_has_indices():
    with bags.DatasetWriter('x', {'n': 'int(4)', 't': 'array(uint16,-1)'}) as writer:
        for n in range(30):
            writer.append({'n': n, 't': np.full(n, n, 'u2')})
    for batch in bags.Loader('x', 7, fields=['n']):
        assert (batch['indices'] == batch['n']).all()
    for batch in bags.Loader(['x', 'x'], 7, fields=['n']):
        assert (batch['indices'][:, 1] == batch['n']).all() and batch['indices'][:, 0].max() <= 1
    batch = next(bags.Loader('x', 7, rank=1, ranks=100, fields=['n']))
    assert batch['indices'].shape == (0,)
    for batch in bags.Loader(['x', 'x'], 5, tokens={'field': 't', 'length': 64, 'pack': True}):
        for row, pieces in zip(batch['t'], batch['indices'], strict=True):
            assert [n for _, d, _, count in pieces.tolist() for n in [d] * count] == row.tolist()
    # None is hidden by a field of this name.
    with bags.DatasetWriter('y', {'indices': 'int(4)', 'n': 'int(4)'}) as writer:
        writer.append({'indices': 1, 'n': 2})
    raises(ValueError, bags.Loader, 'y', says='field "indices": batches have the indices')
    assert next(bags.Loader('y', fields='n'))['indices'].tolist() == [0]


def cameras_are_cropped_alike_if_asked():
    pixels = np.arange(20 * 20 * 3).reshape(20, 20, 3).astype('u1')
    with bags.DatasetWriter('x', {'s': 'int(2)[]', 'a': 'png[]', 'b': 'png[]'}) as writer:
        for _ in range(4):
            writer.append({'s': range(8), 'a': [pixels] * 8, 'b': [pixels] * 8})
    how = {'offsets': (-1, 0), 'width': 5, 'height': 5, 'crop': 'random', 'flip_x': 0.5}
    for same in (False, True):
        batch, = bags.Loader('x', 64, frames='s', fields={'a': how, 'b': how}, same_draw=same)
        assert (batch['a'][:, 0] == batch['a'][:, 1]).all()
        assert (batch['a'] == batch['b']).all(axis=(1, 2, 3, 4)).sum() == (32 if same else 0)
        assert len(np.unique(batch['a'][:, 0], axis=0)) > 20


def items_of_a_video_are_its_frames():
    if not bags.build['mp4']:
        raise Skip('no mp4')

    def video(count, step):
        return np.stack([np.full((32, 48, 3), step * i + 20, 'u1') for i in range(count)])
    lengths = [12, 20, 5]
    with bags.DatasetWriter('x', {'s': 'int(2)[]', 'time': 'array(float64)[]', 'v': 'mp4(10,h264)',
                                  'w': 'mp4(5,h264)', 'w_time': 'array(float64)[]'}) as writer:
        for n in lengths:
            writer.append({'s': range(n), 'time': [np.array(i / 10) for i in range(n)],
                           'v': video(n, 10), 'w': video(n // 2, 20),
                           'w_time': [np.array(i / 5) for i in range(n // 2)]})
    size = {'width': 24, 'height': 16}
    for threads in 1, 3:
        loader = bags.Loader('x', 5, frames='s', seed=threads, threads=threads, fields={
            's': {'times': 'time'}, 'v': {'offsets': (-1, 0), **size},
            'w': {'seconds': (-0.2, 0), 'times': 'w_time', **size}})
        found = []
        for batch in loader:
            for k, (e, t) in enumerate(batch['indices'].tolist()):
                times = [i / 5 for i in range(lengths[e] // 2)]
                near = [min(range(len(times)), key=lambda i: abs(times[i] - t / 10 - s)) for s in (-0.2, 0)]
                wanted = [max(t - 1, 0) * 10 + 20, t * 10 + 20] + [20 * i + 20 for i in near]
                means = [image.mean() for image in (*batch['v'][k], *batch['w'][k])]
                assert np.allclose(means, wanted, atol=4), (e, t, means, wanted)
                assert batch['v_pad'][k].tolist() == [t == 0, False]
                assert batch['w_pad'][k].tolist() == [t < 2, t / 10 > times[-1]]
                found.append((e, t))
        assert sorted(found) == [(e, t) for e, n in enumerate(lengths) for t in range(n)]
    # Without a window the frame; without a list of fields no video is decoded.
    batch = next(bags.Loader('x', 4, frames='s', fields=['v']))
    for image, (_, t) in zip(batch['v'], batch['indices'], strict=True):
        assert image.shape == (32, 48, 3) and abs(image.mean() - t * 10 - 20) < 4
    assert sorted(next(bags.Loader('x', 4, frames='s'))) == ['indices', 's']
    raises(ValueError, lambda: list(bags.Loader('x', 4, frames='s', fields={'w': {'offsets': [0]}})),
           says=' items, but field "s" has ')


def a_tolerance_absorbs_rounding():
    with bags.DatasetWriter('x', {'state': 'int(1)[]'}) as writer:
        writer.append({'state': [0, 1, 2, 3]})
    for tolerance in ({}, {'tolerance': 0.05}):  # 0.2 + 0.1 is more than 0.3
        state = {'rate': 10, 'seconds': [0.1], **tolerance}
        batch, = bags.Loader('x', 4, shuffle=False, frames='state', fields={'state': state})
        assert batch['state'].tolist() == [[1], [2], [3], [3]]
        assert batch['state_pad'].tolist() == [[False], [False], [not tolerance], [True]]


def wrong_use_names_the_field_and_the_option():
    _write('x')

    def refuse(kind, says, fields=None, **options):
        raises(kind, bags.Loader, 'x', 4, says=says, **{'frames': 'state', 'fields': fields, **options})
    refuse(KeyError, 'field "stat": unknown', frames='stat')
    refuse(TypeError, 'frames: 3 is not the name of a field', frames=3)
    refuse(TypeError, 'field "task": not a sequence', frames='task')
    refuse(ValueError, "pad: 'keep' is none of: edge drop", pad='keep')
    refuse(ValueError, 'pad and same_draw need frames', frames=None, pad='drop')
    refuse(ValueError, 'frames and sampler are mutually exclusive', sampler=lambda e: [0])
    refuse(ValueError, 'frames and tokens are mutually exclusive', tokens=('t', 3))
    for offsets in ({-1, 0}, {0: 1}, [True, False]):  # a set has no order
        refuse(TypeError, f'field "action": offsets: {offsets!r} (expected a list', {'action': {'offsets': offsets}})
    refuse(ValueError, 'field "action": offsets: an empty window', {'action': {'offsets': range(0)}})
    refuse(TypeError, 'field "action": offsets: 3 (expected a list', {'action': {'offsets': 3}})
    refuse(TypeError, 'field "action": offsets', {'action': {'offsets': [0.5]}})
    refuse(ValueError, 'field "action": offsets', {'action': {'offsets': [2 ** 64]}})
    refuse(TypeError, 'field "cam": seconds', {'cam': {'seconds': ['a'], 'times': 'cam_time'}})
    refuse(ValueError, 'field "cam": seconds must be finite', {
        'state': {'times': 'time'}, 'cam': {'seconds': [float('nan')], 'times': 'cam_time'}})
    refuse(TypeError, 'field "cam": times: 3 is not the name', {'cam': {'seconds': [0], 'times': 3}})
    refuse(KeyError, 'field "nope"', {'state': {'times': 'time'}, 'cam': {'seconds': [0], 'times': 'nope'}})
    refuse(ValueError, 'field "cam": rate: 0', {'cam': {'seconds': [0], 'rate': 0}})
    refuse(ValueError, 'field "state": rate: 0', {'state': {'rate': 0}})
    refuse(ValueError, 'rate of the clock', {'state': {'rate': -3}})
    refuse(ValueError, 'field "cam": seconds need the times of the clock', {
        'cam': {'seconds': [0], 'times': 'cam_time'}})
    refuse(ValueError, 'field "cam": datapoint 0: 4 items, but field "state" has 7', ['cam'])
    refuse(ValueError, 'field "cam_time": datapoint 0: 4 items', {
        'state': {'times': 'cam_time'}, 'cam': {'seconds': [0], 'times': 'cam_time'}})
    refuse(TypeError, 'field "action": offset: unknown option; did you mean offsets', {
        'action': {'offset': [0]}})
    refuse(ValueError, 'field "action": offsets, seconds, times', {'action': {'offsets': [0]}}, frames=None)
    loader = bags.Loader('x', 4, frames='state', fields={
        'state': {'times': 'time'}, 'cam': {'seconds': [0.05], 'times': 'cam_time', 'tolerance': 0.01}})
    error = raises(ValueError, lambda: list(loader), says='s: no item within 0.01 s of ')
    assert 'field "cam": datapoint ' in str(error) and ' s (the nearest is at ' in str(error)
    with bags.DatasetWriter('y', {'state': 'int(1)[]', 'state_pad': 'utf8'}) as writer:
        writer.append({'state': [1, 2], 'state_pad': 'a'})
    raises(KeyError, bags.Loader, 'y', frames='state', fields={'state': {'offsets': [0]}, 'state_pad': {}},
           says='field "state_pad": has the name of a mask')


def batches_become_tensors():
    try:
        import torch
    except ImportError:
        raise Skip('no torch') from None
    batch = next(bags.Loader(_write('x'), 4, frames='state', fields=FIELDS))
    assert torch.from_numpy(batch['state']).dtype == torch.float32
    assert torch.from_numpy(batch['action_pad']).dtype == torch.bool
    assert torch.from_numpy(batch['indices']).dtype == torch.int64
