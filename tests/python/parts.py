"""Parts of datapoints: frames of videos, and items of sequences as one array."""
import gc
import shutil
import threading

import numpy as np

import bags
from run import Skip, python, raises

SPEC = {'action': 'array(float32,14)[]', 'big': 'int(4,big)[]', 'n': 'i64[]', 'name': 'utf8', 'pose': 'array(float64,2,2)[]',
        'texts': 'utf8[]', 'video': 'mp4', 'web': 'webm'}


def _frames(count, seed):
    ramp = np.arange(32 * 64, dtype='u4').reshape(32, 64)
    return np.stack([np.stack([ramp // 9 + seed + 3 * t, ramp // 17 + 2 * t, ramp // 5 - t], -1) % 200
                     for t in range(count)]).astype('u1')


def _point(i):
    return {'action': np.arange(i * 7 * 14, dtype='f4').reshape(i * 7, 14) + i, 'big': [i * 70000 + k for k in range(i)],
            'n': list(range(-i, i)), 'name': f'{i}', 'pose': np.full((i, 2, 2), i / 3), 'texts': ['a'] * i,
            'video': _frames(30 + i, i), 'web': _frames(4, i)}


def _write(path, count=4, **options):
    if not bags.build['mp4']:
        raise Skip('this build has no videos')
    make = bags.ShardedDatasetWriter if options else bags.DatasetWriter
    with make(path, SPEC, **options) as writer:
        for i in range(count):
            writer.append(_point(i))


def frames_of_a_video_are_those_of_all():
    _write('x')
    _write('y', shard_length=3)
    for path, options in (('x', {}), ('x', {'no_mmap': True}), ('y', {}), ('x', {'verify_checksums': False})):
        reader = bags.DatasetReader(path, **options)
        for i in (2, 0, 3):
            for name in ('video', 'web'):
                every = reader[i][name]
                count = len(every)
                for mask in (range(10, 12), [3, count - 1], (0,), [], range(5, 5), range(0, 99, 7), slice(2, None),
                             slice(1, 3), [2, 2, 0], np.arange(3).tolist(), range(count, 99), range(3, 1)):
                    if isinstance(mask, (list, tuple)) and any(k >= count for k in mask):
                        continue
                    part = reader[i, {name: mask, 'name': True}]
                    assert list(part) == (['video', 'name'] if name < 'name' else ['name', name])
                    rows = mask if isinstance(mask, slice) else [k for k in mask if k < count]
                    assert part[name].dtype == np.uint8 and part[name].flags.writeable
                    assert part[name].shape == every[rows].shape == (len(every[rows]), 32, 64, 3)
                    assert (part[name] == every[rows]).all()
        assert list(reader[1, {'web': [0], 'action': range(1), 'video': [1], 'texts': True}]) == [
            'action', 'texts', 'video', 'web']
        assert reader[1, {'video': True}]['video'].shape == (31, 32, 64, 3)
        assert list(reader[1, {'video': False, 'name': True}]) == ['name']
        reader.close()
        raises(ValueError, reader.__getitem__, (0, {'video': [1]}))


def wrong_frames_are_named():
    _write('x')
    reader = bags.DatasetReader('x')
    for mask, error, says in (([31], IndexError, 'x: field "video": datapoint 1: frame 31 out of range (length 31)'),
                              ([-1], IndexError, 'x: field "video": frame -1 out of range'), ([2**64], IndexError, 'frame 18446744073709551616'),
                              ([1.5], TypeError, 'x: field "video"'), (range(-1, 2), ValueError, 'x: field "video": range(-1, 2)'),
                              (slice(5, 1, -1), ValueError, 'negative'), (3, TypeError, 'a range, a slice or a list of frames'),
                              ('ab', TypeError, 'video')):
        raises(error, reader.__getitem__, (1, {'video': mask}), says=says)
    raises(TypeError, reader.__getitem__, (1, {'name': [1]}), says='plain field')
    raises(TypeError, reader.__getitem__, (1, {'n': [1]}), says='sequence')
    raises(TypeError, bags.DatasetReader('x', None).__getitem__, (1, {'video': [1]}), says='plain field')
    raises(TypeError, reader.__getitem__, (slice(0, 2), {'video': [1]}), says='several datapoints')
    with bags.DatasetWriter('bad', {'video': 'mp4'}, None) as writer:
        writer.append({'video': b'not a video'})
        writer.append({'video': b''})
    reader = bags.DatasetReader('bad')
    raises(bags.DataError, reader.__getitem__, (0, {'video': [1]}), says='bad: field "video": datapoint 0: ')
    raises(IndexError, reader.__getitem__, (1, {'video': [0]}), says='(length 0)')
    assert reader[1, {'video': range(9)}]['video'].shape == (0, 0, 0, 3)


def threads_read_frames_of_one_reader():
    _write('x')
    reader = bags.DatasetReader('x')
    every, wrong = [reader[i]['video'] for i in range(4)], []

    def work(seed):
        for k in range(40):
            i, t = (seed + k) % 4, (seed * 7 + k * 5) % 30
            if not (reader[i, {'video': [t]}]['video'][0] == every[i][t]).all():
                wrong.append((i, t))
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def items_are_one_array():
    _write('x')
    for options in ({}, {'no_mmap': True}):
        reader = bags.DatasetReader('x', **options)
        for i in range(4):
            point = _point(i)
            for name in ('action', 'big', 'n', 'pose'):
                items = np.asarray(point[name])
                if not i:  # no items
                    assert reader.array(i, name).shape[0] == 0
                    continue
                every = reader.array(i, name)
                assert every.shape == items.shape and (every == items).all() and not every.flags.writeable
                assert every.dtype == {'action': 'f4', 'big': 'i8', 'n': 'i8', 'pose': 'f8'}[name]
                for part in (range(2, 18), slice(1, None), range(0, 9, 3), range(4, 4), slice(None), range(99, 100)):
                    rows = part if isinstance(part, slice) else slice(part.start, part.stop, part.step)
                    array = reader.array(i, name, part)
                    assert array.shape == items[rows].shape and (array == items[rows]).all()
            assert reader.array(i, 'action').shape == (7 * i, 14)
            assert isinstance(reader[i]['action'], list)
        for arguments, error, says in (((1, 'name'), TypeError, 'plain field'), ((1, 'texts'), TypeError, 'no size in common'),
                                       ((9, 'n'), IndexError, 'out of range (length 4)'), ((1, 'no'), KeyError, 'no'),
                                       ((1, 'n', range(-1, 2)), ValueError, 'negative'), ((1, 'n', 3), TypeError, 'range'),
                                       ((1, 'n', False), TypeError, 'range'), ((1, 'n', [0]), TypeError, 'range')):
            raises(error, reader.array, *arguments, says=says)
        reader.close()
        raises(ValueError, reader.array, 1, 'n')


def an_array_of_a_mapped_dataset_is_a_view():
    _write('x')
    reader = bags.DatasetReader('x')
    every, part = reader.array(3, 'action'), reader.array(3, 'action', range(2, 4))
    assert np.shares_memory(every, part) and not np.shares_memory(every, reader.array(3, 'action', range(0, 9, 4)))
    reader.close()
    del reader
    gc.collect()
    shutil.rmtree('x')
    assert (every == _point(3)['action']).all() and (part == every[2:4]).all()
    _write('x')
    reader = bags.DatasetReader('x', no_mmap=True)
    assert not np.shares_memory(reader.array(3, 'action'), reader.array(3, 'action'))


def damaged_items_are_an_error():
    with bags.DatasetWriter('x', {'v': 'array(uint8,2)[]'}, None) as writer:
        writer.append({'v': [b'ab', b'cde']})
    reader = bags.DatasetReader('x')
    raises(bags.DataError, reader.array, 0, 'v', says='x: field "v": datapoint 0: item 1: size mismatch')
    assert reader.array(0, 'v', range(1)).tolist() == [[97, 98]]


COUNTS = [20, 0, 31, 7]


def _episodes(path, **options):
    """Videos of one frame per state, and of a slower camera with times; episode 1 has none."""
    spec = {'video': 'mp4', 'cam': 'mp4', 'time': 'array(float64)[]', 'state': 'array(float32,3)[]', 'name': 'utf8'}
    make = bags.ShardedDatasetWriter if options else bags.DatasetWriter
    with make(path, spec, **options) as writer:
        for i, count in enumerate(COUNTS):
            slow = count // 2 + 1
            writer.append({'video': _frames(count, i) if count else np.zeros((0, 32, 64, 3), 'u1'), 'cam': _frames(slow, 9 - i),
                           'time': [np.float64(k * 0.2) for k in range(slow)],
                           'state': [np.full(3, i * 100 + t, 'f4') for t in range(count)], 'name': f'{i}'})


def frames_of_videos_are_items_of_the_loader():
    if not bags.build['mp4']:
        raise Skip('this build has no videos')
    _episodes('x')
    _episodes('y', shard_length=3)
    reader, offsets = bags.DatasetReader('x'), (-1, 0, 2)
    videos, cams = ([reader[i][name] for i in range(4)] for name in ('video', 'cam'))
    for path, threads in (('x', 1), ('y', 3)):
        fields = {'state': {}, 'video': {'offsets': offsets, 'width': 64, 'height': 32, 'nchw': True},
                  'cam': {'seconds': (-0.2, 0.0), 'times': 'time', 'dtype': 'uint8', 'shape': (32, 64, 3)}, 'name': {}}
        fields['state']['rate'] = 10
        seen = []
        for batch in bags.Loader(path, 8, frames='state', threads=threads, fields=fields):
            assert batch['video'].shape[1:] == (3, 3, 32, 64) and batch['cam'].shape[1:] == (2, 32, 64, 3)
            for k, (episode, frame) in enumerate(batch['indices'].tolist()):
                seen.append((episode, frame))
                for j, offset in enumerate(offsets):
                    at = frame + offset
                    want = videos[episode][min(max(at, 0), COUNTS[episode] - 1)]
                    assert (batch['video'][k, j] == want.transpose(2, 0, 1)).all()
                    assert batch['video_pad'][k, j] == (not 0 <= at < COUNTS[episode])
                # One frame in two: of two at the same distance the first is the nearest.
                assert (batch['cam'][k, 1] == cams[episode][frame // 2]).all() or frame % 2
                assert batch['state'][k].tolist() == [episode * 100 + frame] * 3 and batch['name'][k] == f'{episode}'
        assert sorted(seen) == [(i, t) for i, count in enumerate(COUNTS) for t in range(count)]
    batch = next(iter(bags.Loader('x', 2, frames='state', fields={'video': {}})))
    assert [frame.shape for frame in batch['video']] == [(32, 64, 3)] * 2
    drop = bags.Loader('x', 100, frames='state', pad='drop', fields={'video': {'offsets': (-1, 2)}})
    assert sum(len(batch['indices']) for batch in drop) == sum(max(count - 3, 0) for count in COUNTS)


def a_loader_names_the_video_that_is_wrong():
    if not bags.build['mp4']:
        raise Skip('this build has no videos')
    with bags.DatasetWriter('x', {'s': 'i64[]', 'video': 'mp4'}) as writer:
        writer.append({'s': [1, 2, 3], 'video': _frames(3, 0)})
        writer.append({'s': [1, 2], 'video': _frames(3, 0)})
    raises(ValueError, list, bags.Loader('x', 2, frames='s', fields={'s': {}, 'video': {}}),
           says='x: field "video": datapoint 1: 3 items, but field "s" has 2')
    with bags.DatasetWriter('y', {'s': 'i64[]', 'video': 'mp4'}, {**bags.encoders, 'mp4': None}) as writer:
        writer.append({'s': [1], 'video': b'no video at all'})
    raises(bags.DataError, list, bags.Loader('y', 2, frames='s', fields={'s': {}, 'video': {}}),
           says='y: field "video": datapoint 0: ')


def blobs_of_videos_are_written_by_a_fresh_process():
    python('''import bags
if bags.build['mp4']:
    with bags.DatasetWriter('x', {'video': 'mp4', 'web': 'webm'}, {'mp4': None, 'webm': bytes}) as writer:
        writer.append({'video': b'a', 'web': b'b'})
    assert bags.DatasetReader('x', None)[0] == {'video': b'a', 'web': b'b'}
''')


def videos_are_read_by_a_fresh_process():
    if not bags.build['mp4']:
        raise Skip('no mp4')
    with bags.DatasetWriter('x', {'v': 'mp4'}) as writer:
        writer.append({'v': np.zeros((3, 16, 16, 3), np.uint8)})
    # None of these calls is preceded by one that uses videos.
    for call in ("bags.DatasetReader('x')[0]['v'].shape == (3, 16, 16, 3)",
                 "next(bags.Loader('x', fields=['v']))['v'][0].shape == (3, 16, 16, 3)",
                 "bags.stats('x', 'v')['v']['count'] == [3 * 16 * 16] * 3",
                 "bags.verify('x', decode=True) == []",
                 "bags.derive('x', 'derived')['length'] == 1",
                 "bags.split('x', 'parts', {'all': 1})['all']['length'] == 1",
                 "bags.derive('x', 'copied', copy=True)['length'] == 1",
                 "bags.write('written', bags.DatasetReader('x')) == {'v': 'mp4'}"):
        python('import bags\nassert ' + call + '\n')


def numbers_of_frames_are_not_bools():
    _write('x', 1)
    raises(TypeError, bags.DatasetReader('x').__getitem__, (0, {'video': [True, False]}),
           says='x: field "video": the mask of a video lists the numbers of frames, not True')
