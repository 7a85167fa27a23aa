"""bags export --to lerobot: rows, packets, metadata, what is refused, resuming."""
import json
import os
import pathlib
import random
import resource
import shutil
import subprocess

import harness
import lerobot
from harness import each, files, pack, refuse, run

NO_LEAKS = lerobot.NO_LEAKS  # of a run that fails in DuckDB, which has its own memory
CAMERAS = lerobot.CAMERAS


def _is_here():
    said = refuse('export', 'x', 'x.unknown', says='one of: ', code=2).err
    return 'lerobot' in said.split('one of: ')[1].split() and lerobot._is_here()


def _select(query):
    """The rows of a query, as text."""
    lerobot._sql(f"COPY (SELECT CAST(COLUMNS(*) AS VARCHAR) FROM ({query})) TO 'found.csv' "
                 "(FORMAT csv, HEADER false, DELIMITER '|', QUOTE '')")
    return [line.split('|') for line in pathlib.Path('found.csv').read_text().splitlines()]


def _same_rows(left, right):
    """Two sets of Parquet files have equal rows: columns, values, order."""
    a, b = (f"read_parquet('{path}/**/*.parquet', hive_partitioning=false)"
            if os.path.isdir(path) else f"read_parquet('{path}')" for path in (left, right))
    assert _select(f'SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {a})') == \
        _select(f'SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {b})')
    assert _select(f'SELECT count(*) FROM ((SELECT * FROM {a} EXCEPT ALL SELECT * FROM {b}) '
                   f'UNION ALL (SELECT * FROM {b} EXCEPT ALL SELECT * FROM {a}))') == [['0']]
    assert _select(f'SELECT * FROM {a}') == _select(f'SELECT * FROM {b}')


def _rows(path):
    return run('get', path, ':', '--lists').lines


def _videos(root, camera):
    paths = sorted(pathlib.Path(root).glob(f'videos/{camera}/chunk-*/file-*.mp4'))
    return [packet for path in paths for packet in lerobot._packets(path)]


def _hashes(root, camera):
    return [data for _, _, data in _videos(root, camera)]


def _metadata(root, name):
    return json.loads(pathlib.Path(root, 'meta', name).read_text(encoding='utf-8'))


def an_import_exported_again_has_equal_rows_and_packets():
    if not _is_here():
        return
    lerobot._make_3()
    path = pathlib.Path('v3/meta/info.json')
    info = {**json.loads(path.read_text()), 'robot_type': 'arm', 'fps': 10.0,
            'note': {'any': ['ü', 1.5]}}
    path.write_text(json.dumps(info))
    stats = {CAMERAS[0]: {'mean': [[[0.5]], [[0.25]], [[0.125]]], 'count': [36]},
             'action': {'max': [14.0, 2 / 7], 'q99': [13.5, 0.28]}}
    lerobot._save('v3/meta/stats.json', stats)
    done = run('import', 'v3', 'ds')
    assert 'left out' not in done.err, done.err
    assert json.loads(pathlib.Path('ds/info.json').read_text())['lerobot']['info'] == info
    assert 'in 7 files' in run('export', 'ds', 'out', '--to', 'lerobot').out.decode()
    _same_rows('v3/data', 'out/data')
    tasks = 'SELECT task_index, {} FROM read_parquet(\'{}/meta/tasks.parquet\') ORDER BY 1'
    assert _select(tasks.format('task', 'out')) == \
        _select(tasks.format('__index_level_0__', 'v3')) == [['0', 'fold "it"'],
                                                           ['1', 'put ü away']]
    for camera in CAMERAS:
        assert _hashes('out', camera) == _hashes('v3', camera), camera
        times = [time for time, _, _ in _videos('out', camera)]
        assert sorted(round(time, 4) for time in times) == [i / 10 for i in range(36)], times
    found = _metadata('out', 'info.json')
    info['features'][CAMERAS[1]] = {  # its videos are wider than this says
        **found['features'][CAMERAS[1]], 'shape': [64, 96, 3]}
    for name in ('fps', 'robot_type', 'note', 'features', 'total_frames', 'codebase_version'):
        assert found[name] == info[name], name
    assert list(found['features']) == list(info['features'])
    found = _metadata('out', 'stats.json')
    assert found['action'] == stats['action'] and found[CAMERAS[0]] == stats[CAMERAS[0]]
    assert abs(found['done']['mean'][0] - 12 / 36) < 1e-12 and found[CAMERAS[1]] == {'count': [36]}
    # Once more: nothing changes.
    run('import', 'out', 'back')
    before, after = _rows('ds'), _rows('back')
    for old, new in zip(before, after):
        for camera in CAMERAS:
            old.pop(camera), new.pop(camera)
    assert before == after
    for e in range(3):
        for camera in CAMERAS:
            for name, of in (('a.mp4', 'ds'), ('b.mp4', 'back')):
                pathlib.Path(name).write_bytes(run('get', of, e, camera, '--raw').out)
            assert lerobot._packets('a.mp4') == lerobot._packets('b.mp4')
            assert lerobot._pixels('a.mp4') == lerobot._pixels('b.mp4')
    run('export', 'back', 'again', '--to', 'lerobot')
    assert files('again') == files('out')


def statistics_of_other_values_are_computed():
    if not _is_here():
        return
    lerobot._make_3()
    lerobot._save('v3/meta/stats.json', {'action': {'max': [99.0, 2 / 7]},
                                         CAMERAS[0]: {'mean': [0.5]}})
    run('import', 'v3', 'ds')
    run('export', 'ds', 'out', '--to', 'lerobot')
    found = _metadata('out', 'stats.json')
    assert found['action']['max'][0] == 14 and found['action']['count'] == [36]
    # Of other frames, even those of a video are not kept.
    pathlib.Path('rows').write_text('2\n0\n')
    run('export', 'ds', 'some', '--to', 'lerobot', '--rows', 'rows')
    found = _metadata('some', 'stats.json')
    assert found[CAMERAS[0]] == {'count': [27]} and found['index']['max'] == [26]
    run('import', 'some', 'back')
    for i, row in enumerate(_rows('back')):  # grid[1][0] was the number of the episode
        assert row['episode_index'] == i and row['grid'][0][1][0] == (2, 0)[i], row


def version_2_becomes_version_3():
    if not _is_here():
        return
    run('import', lerobot._make_2(), 'ds')
    run('export', 'ds', 'out', '--to', 'lerobot')
    for camera, name in enumerate(CAMERAS):
        assert _hashes('out', name) == [
            data for e in range(3) for _, _, data in lerobot._packets(f'parts/{camera}/{e}.mp4')]
        assert len(list(pathlib.Path('out/videos', name).rglob('*.mp4'))) == 1
    run('import', 'out', 'back')
    assert [json.loads(row['stats']) for row in _rows('ds')] == [
        json.loads(row['stats']) for row in _rows('back')]
    for e in range(3):
        for name in CAMERAS:
            for at, of in (('a.mp4', 'ds'), ('b.mp4', 'back')):
                pathlib.Path(at).write_bytes(run('get', of, e, name, '--raw').out)
            assert lerobot._packets('a.mp4') == lerobot._packets('b.mp4')
    assert 'total_chunks' not in _metadata('out', 'info.json')


SPEC = {'state': 'array(float32,3)[]', 'grid': 'array(float64,2,2)[]', 'done': 'array(bool)[]',
        'one': 'array(int16,1)[]', 'n': 'i64[]', 'big': 'u64[]', 'said': 'utf8[]',
        'photo': 'png[]', 'task': 'utf8'}
TEXTS = ['', "it's", 'é "q"', 'a\nb', '\u4e2d', '| ;--', '{}', 'x' * 300]


def _png():
    lerobot._ffmpeg('-f', 'lavfi', '-i', 'testsrc2=size=6x4', '-frames:v', 1, 'a.png')
    return {'file': 'a.png'}


def _episode(rng, photo):
    frames = rng.choice([1, 2, 5, 30])
    number = lambda: rng.choice([0.0, -1.5, 0.25, 2.0**-20, 1e6])  # noqa: E731
    make = {
        'state': lambda: [number() for _ in range(3)],
        'grid': lambda: [[number(), number()], [number(), 0.1]],
        'done': lambda: rng.random() < 0.5,
        'one': lambda: [rng.randint(-2**15, 2**15 - 1)],
        'n': lambda: rng.choice([0, -1, 2**63 - 1, -2**63]),
        'big': lambda: rng.choice([0, 2**64 - 1]),
        'said': lambda: rng.choice(TEXTS),
        'photo': lambda: photo,
    }
    return {name: rng.choice(TEXTS) if name == 'task' else [make[name]() for _ in range(frames)]
            for name in SPEC}


def an_import_of_an_export_is_the_dataset():
    if not _is_here():
        return
    photo = _png()
    for seed in range(3 if os.environ.get('BAGS_QUICK') else 12):
        rng = random.Random(seed)
        names = sorted(rng.sample(sorted(SPEC), rng.randint(3, len(SPEC))))
        rows = [{name: value for name, value in _episode(rng, photo).items() if name in names}
                for _ in range(rng.choice([1, 3, 9]))]
        pack(rows, ','.join(f'{name}={SPEC[name]}' for name in names), 'ds')
        words = rng.choice([[], ['--shard-length', 2], ['--shard-size', 500]])
        fps = rng.choice(['30', '29.97', '0.5'])
        run('export', 'ds', 'out', '--to', 'lerobot', '--fps', fps, *words)
        run('import', 'out', 'back', '--no-sync')
        before, after = _rows('ds'), _rows('back')
        assert len(before) == len(after)
        for i, (old, new) in enumerate(zip(before, after)):
            for name in names:
                if name == 'task':
                    assert new['tasks'] == [old['task']], (seed, new['tasks'])
                else:
                    assert old[name] == new[name], (seed, name, old[name], new[name])
            assert new['episode_index'] == i
            frames = len(new['frame_index'])
            assert new['frame_index'] == list(range(frames))
            assert all(abs(time - k / float(fps)) < 1e-3
                       for k, time in enumerate(new['timestamp']))
        spec = {name: SPEC[name] for name in names if name != 'task'}
        assert {k: v for k, v in harness.read('back')['spec'].items() if k in spec} == spec
        assert _metadata('out', 'info.json')['fps'] == float(fps)
        for path in ('ds', 'out', 'back'):
            shutil.rmtree(path)


def tasks_have_numbers_as_they_appear():
    if not _is_here():
        return
    rows = [{'x': [1.5] * 3, 'tasks': ['b', 'a', 'b']}, {'x': [1.5] * 2, 'tasks': ['a']},
            {'x': [1.5], 'tasks': []}]
    pack(rows, 'x=array(float32)[],tasks=utf8[]', 'ds')
    run('export', 'ds', 'out', '--to', 'lerobot', '--fps', 10)
    assert _select("SELECT task FROM read_parquet('out/meta/tasks.parquet')") == [
        ['b'], ['a'], ['']]
    assert _select("SELECT task_index FROM read_parquet('out/data/*/*.parquet')") == [
        [str(n)] for n in (0, 1, 0, 1, 1, 2)]
    assert _select("SELECT len(tasks), tasks[1] FROM "
                   "read_parquet('out/meta/episodes/*/*.parquet')") == [
        ['2', 'b'], ['1', 'a'], ['1', '']]
    # With the numbers of a field, the texts are theirs.
    rows = [{'x': [1.5] * 4, 'tasks': ['p', 'q'], 'task_index': [7, 7, 3, 7]}]
    pack(rows, 'x=array(float32)[],tasks=utf8[],task_index=i64[]', 'ds2')
    run('export', 'ds2', 'out2', '--to', 'lerobot', '--fps', 10)
    assert _select("SELECT task_index FROM read_parquet('out2/data/*/*.parquet')") == [
        ['0'], ['0'], ['1'], ['0']]


def files_have_the_size_that_is_asked_for():
    if not _is_here():
        return
    run('import', lerobot._make_2(), 'ds')
    for words, data, video in ((['--shard-length', 1], 3, 3), (['--shard-length', 2], 2, 2),
                               (['--shard-size', 16000], 1, 2), (['--shard-size', 1], 3, 3)):
        run('export', 'ds', 'out', '--to', 'lerobot', *words)
        assert len(list(pathlib.Path('out/data').rglob('*.parquet'))) == data, words
        assert len(list(pathlib.Path('out/meta/episodes').rglob('*.parquet'))) == data
        assert len(list(pathlib.Path('out/videos', CAMERAS[0]).rglob('*.mp4'))) == video, words
        run('import', 'out', 'back')
        before, after = _rows('ds'), _rows('back')
        for row in before + after:
            for name in CAMERAS + ['stats']:
                row.pop(name)
        assert before == after
        shutil.rmtree('out')
        shutil.rmtree('back')


# ---- what is refused ----

NUMBERS = {'x': [1.5, 2.5]}
REFUSED = [
    ('x=array(float16)[]', NUMBERS, ('"x"', 'float16')),
    ('x=array(float32,-1)[]', {'x': [[1], [1, 2]]}, ('"x"', 'one shape')),
    ('x=array(float32,1,1,2)[]', {'x': [[[[1, 2]]]]}, ('"x"', 'two dimensions')),
    ('x=array(float32)', {'x': 1.5}, ('"x"', 'per frame', '--fields')),
    ('x=array(float32)[],b=bytes[]', {**NUMBERS, 'b': [{'base64': ''}] * 2}, ('"b"', 'bytes[]')),
    ('x=array(float32)[],note=utf8', {**NUMBERS, 'note': 'a'}, ('"note"', 'per frame')),
    ('x=array(float32)[],X=array(float32)[]', {**NUMBERS, 'X': [1, 2]}, ('"x"', 'case')),
    ('x=array(float32)[],index=utf8[]', {**NUMBERS, 'index': ['a', 'b']},
     ('"index"', 'whole number')),
    ('x=array(float32)[],timestamp=i64[]', {**NUMBERS, 'timestamp': [0, 1]},
     ('"timestamp"', 'seconds')),
    ('x=array(float32)[],task_index=i64[]', {**NUMBERS, 'task_index': [0, 0]},
     ('"task_index"', 'texts')),
    ('x=array(float32)[],task=utf8,tasks=utf8[]', {**NUMBERS, 'task': 'a', 'tasks': ['b']},
     ('"tasks"', '"task"')),
    ('task=utf8', {'task': 'a'}, ('no frames',)),
    ('x=array(float32)[],clip=webm', {**NUMBERS, 'clip': {'file': 'a.bin'}}, ('"clip"', 'webm')),
]


@each(REFUSED)
def a_field_that_lerobot_lacks_is_refused_before_anything_is_written(case):
    if not _is_here():
        return
    spec, row, says = case
    pathlib.Path('a.bin').write_bytes(b'\x1a\x45\xdf\xa3')
    pack([row], spec, 'ds', '--any-type')
    before = sorted(os.listdir())
    refuse('export', 'ds', 'out', '--to', 'lerobot', '--fps', 10, says=says, env=NO_LEAKS)
    assert sorted(os.listdir()) == before


BAD = [
    ('x=array(float32)[],y=array(float32)[]', {'x': [1, 2], 'y': [1]},
     ('"y"', 'datapoint 1', '1 items', '"x" has 2')),
    ('x=array(float32)[]', {'x': []}, ('"x"', 'datapoint 1', 'without frames')),
    ('x=array(float32)[],timestamp=array(float32)[]', {'x': [1, 2], 'timestamp': [0, 0.5]},
     ('"timestamp"', 'datapoint 1', 'frame 1', '--fps')),
    ('x=array(float32)[],timestamp=array(float32)[]', {'x': [1, 2], 'timestamp': [5, 5.1]},
     ('"timestamp"', 'datapoint 1', 'begins at 5')),
    ('x=array(float32)[],index=i64[]', {'x': [1, 2], 'index': [4, 6]},
     ('"index"', 'datapoint 1', 'frame 1', 'expected 5')),
    ('x=array(float32)[],frame_index=i64[]', {'x': [1, 2], 'frame_index': [1, 2]},
     ('"frame_index"', 'datapoint 1', 'frame 0')),
    ('x=array(float32)[],tasks=utf8[]', {'x': [1, 2, 3], 'tasks': ['a', 'b']},
     ('"tasks"', 'datapoint 1', '2 texts for 3 frames')),
    ('x=array(float32)[],task_index=i64[],tasks=utf8[]',
     {'x': [1, 2], 'task_index': [0, 1], 'tasks': ['a']},
     ('"tasks"', 'datapoint 1', '1 texts', '2 numbers')),
    ('x=array(float32)[],stats=utf8', {'x': [1], 'stats': '{"x": {"mean": ["a"]}}'},
     ('"stats"', 'datapoint 1', 'mean of x')),
    ('x=array(float32)[],stats=utf8', {'x': [1], 'stats': '{"x": {"mean": [1], "max": [1]}}'},
     ('"stats"', 'datapoint 1', 'other statistics')),
    ('x=array(float32)[],clip=mp4', {'x': [1], 'clip': {'file': 'a.bin'}},
     ('"clip"', 'datapoint 1', 'moov')),
]
GOOD = {'x': [1, 2], 'y': [1, 2], 'timestamp': [0, 0.1], 'index': [8, 9], 'frame_index': [0, 1],
        'tasks': ['a'], 'task_index': [0, 0], 'stats': '{"x": {"mean": [1.5]}}',
        'clip': {'file': 'good.mp4'}}


@each(BAD)
def a_value_that_lerobot_lacks_is_named(case):
    if not _is_here():
        return
    spec, row, says = case
    pathlib.Path('a.bin').write_bytes(b'no video')
    if 'clip' in spec:
        lerobot._encode('good.mp4', 0, 0, 2)
    pack([{name: GOOD[name] for name in row}, row], spec, 'ds', '--unchecked')
    before = sorted(os.listdir())
    refuse('export', 'ds', 'out', '--to', 'lerobot', '--fps', 10, says=says, env=NO_LEAKS)
    assert [name for name in sorted(os.listdir()) if name != 'out'] == before
    assert files('out') == {}
    pack([{name: GOOD[name] for name in row}], spec, 'good')
    run('export', 'good', 'out', '--to', 'lerobot', '--fps', 10)


def the_rate_is_found_or_an_error():
    if not _is_here():
        return
    pack([NUMBERS], 'x=array(float32)[]', 'none')
    refuse('export', 'none', 'out', '--to', 'lerobot', says='--fps', code=2, env=NO_LEAKS)
    for bad in ('0', '-1', 'x', '1e9', 'nan', ''):
        refuse('export', 'none', 'out', '--to', 'lerobot', '--fps', bad, says='--fps', code=2)
    refuse('export', 'none', 'out.tar', '--fps', 5, says='--fps', code=2)
    assert not os.path.exists('out')
    run('export', 'none', 'some/out//', '--to', 'lerobot', '--fps', 29.97)
    assert '"fps":29.97,' in pathlib.Path('some/out/meta/info.json').read_text()
    assert os.listdir('some') == ['out']
    pack([{'x': [1.5] * 4, 'timestamp': [i / 15 for i in range(4)]}],
         'x=array(float32)[],timestamp=array(float32)[]', 'times')
    run('export', 'times', 'a', '--to', 'lerobot')
    assert _metadata('a', 'info.json')['fps'] == 15
    lerobot._encode('clip.mp4', 0, 0, 7)
    pack([{'clip': {'file': 'clip.mp4'}}], 'clip=mp4', 'video')
    run('export', 'video', 'b', '--to', 'lerobot')
    assert _metadata('b', 'info.json')['fps'] == lerobot.RATE
    assert _metadata('b', 'info.json')['features']['clip']['shape'] == [64, 64, 3]
    refuse('export', 'video', 'c', '--to', 'lerobot', '--fps', 12, env=NO_LEAKS,
           says=('"clip"', 'frame 3', 'its row'))


def images_and_videos_have_one_shape():
    if not _is_here():
        return
    for size in ('6x4', '8x4'):
        lerobot._ffmpeg('-f', 'lavfi', '-i', 'testsrc2=size=' + size, '-frames:v', 1, size + '.png')
    pack([{'p': [{'file': '6x4.png'}] * 2}, {'p': [{'file': '6x4.png'}, {'file': '8x4.png'}]}],
         'p=png[]', 'ds')
    refuse('export', 'ds', 'out', '--to', 'lerobot', '--fps', 1, env=NO_LEAKS,
           says=('"p"', 'datapoint 1', 'frame 1', '4 x 8 x 3', '4 x 6 x 3'))
    for camera in range(2):
        lerobot._encode(f'{camera}.mp4', camera, 0, 4)
    pack([{'v': {'file': f'{camera}.mp4'}} for camera in range(2)], 'v=mp4', 'videos')
    refuse('export', 'videos', 'out2', '--to', 'lerobot', env=NO_LEAKS,
           says=('"v"', 'datapoint 1', '64 x 96'))


def a_video_with_sound_is_refused():
    if not _is_here():
        return
    lerobot._ffmpeg('-f', 'lavfi', '-i', 'testsrc2=size=64x64:rate=10', '-f', 'lavfi', '-i',
                    'sine', '-t', 1, '-c:v', 'libx264', '-pix_fmt', 'yuv420p', 'a.mp4')
    pack([{'v': {'file': 'a.mp4'}}], 'v=mp4', 'ds')
    refuse('export', 'ds', 'out', '--to', 'lerobot', env=NO_LEAKS,
           says=('"v"', 'datapoint 0', 'other tracks', 'ffmpeg'))


@each(['a/b', '..', '.x', 'a:b', 'x\\y', 'a"b'])
def a_hostile_name_is_refused(name):
    if not _is_here():
        return
    pack([NUMBERS], 'x=array(float32)[]', 'ds')
    before = sorted(os.listdir())
    refuse('export', 'ds', 'out', '--to', 'lerobot', '--fps', 1, '--fields', 'x=' + name,
           says='"x"', env=NO_LEAKS)
    assert sorted(os.listdir()) == before


def names_of_sql_are_names():
    if not _is_here():
        return
    rows = [{"it's": [1.5], 'select': ['a'], '{video_key}': [2], 'éü': [3], 'task': "'); DROP"}]
    pack(rows, "it's=array(float32)[],select=utf8[],{video_key}=i64[],éü=i64[],task=utf8", 'ds')
    run('export', 'ds', "o'ut", '--to', 'lerobot', '--fps', 1)
    run('import', "o'ut", 'back')
    row, = _rows('back')
    assert row['tasks'] == ["'); DROP"] and row["it's"] == [1.5] and row['éü'] == [3]


def metadata_that_are_not_json_are_an_error():
    if not _is_here():
        return
    pack([NUMBERS], 'x=array(float32)[]', 'ds')
    for bad in ('{', '[1]', '{} x', ''):
        pathlib.Path('ds/info.json').write_text(bad)
        refuse('export', 'ds', 'out', '--to', 'lerobot', '--fps', 1,
               says=('ds', 'info.json', 'JSON object'), env=NO_LEAKS)
    pathlib.Path('ds/info.json').write_text('{"lerobot": {"info": 3, "tasks": {"a": 9}}}')
    run('export', 'ds', 'out', '--to', 'lerobot', '--fps', 1)
    pathlib.Path('ds/info.json').write_text(
        '{"lerobot": {"info": {"fps": "x", "features": {"x": {"dtype": 3, "shape": "s"}}}}}')
    run('export', 'ds', 'two', '--to', 'lerobot', '--fps', 1)
    assert _metadata('two', 'info.json')['features']['x']['dtype'] == 'float32'


def workers_and_arrow_are_refused():
    pack([NUMBERS], 'x=array(float32)[]', 'ds')
    for out, words in (('out', ['--to', 'arrow']), ('x.arrow', []), ('x.feather', [])):
        said = refuse('export', 'ds', out, *words, says=('.arrow()', 'parquet'), code=2).err
        assert said.count('\n') == 1, said
    if _is_here():
        refuse('export', 'ds', 'out', '--to', 'lerobot', '--fps', 1, '--shard-stop', 2,
               '--shard-start', 0, says='one process', code=2, env=NO_LEAKS)
    assert not os.path.exists('out')


# ---- resuming ----

def _long():
    """Episodes of random rows, and of a video that is longer with each."""
    rng = random.Random(5)
    rows = []
    for e in range(12):
        frames = 40 + 10 * e
        if e < 3:
            lerobot._encode(f'{e}.mp4', 0, e, frames)
        rows.append({'x': [[rng.random() for _ in range(64)] for _ in range(40 + 10 * (e % 3))],
                     'v': {'file': f'{e % 3}.mp4'}, 'task': f'task {e}'})
    pack(rows, 'x=array(float64,64)[],v=mp4,task=utf8', 'ds')
    return ['export', 'ds', 'out', '--to', 'lerobot', '--shard-size', '60000']


def a_killed_export_is_resumed():
    if not _is_here():
        return
    words = _long()
    run(*words)
    whole = files('out')
    assert len(whole) > 10
    shutil.rmtree('out')
    for most in (0, 1, 100000, 200000, 400000):
        job = subprocess.Popen([harness.PROGRAM, *words], stdout=subprocess.DEVNULL)
        while job.poll() is None:
            try:
                if sum(p.stat().st_size for p in pathlib.Path('out').rglob('*')
                       if p.is_file()) >= most and os.path.exists('out.unfinished'):
                    break
            except FileNotFoundError:
                pass
        job.kill()
        job.wait()
        if os.path.exists('out.unfinished'):
            refuse(*words, says=('unfinished', '--resume'))
        run(*words, '--resume')
        assert files('out') == whole, most
        assert not os.path.exists('out.unfinished')
        shutil.rmtree('out')


def a_full_disk_is_an_error_and_resumed():
    if not _is_here():
        return
    words = _long()
    run(*words)
    whole = files('out')
    shutil.rmtree('out')

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    refuse(*words, preexec_fn=limit, says='out', env=NO_LEAKS)
    run(*words, '--resume')
    assert files('out') == whole
    assert b'already has' in run(*words, '--resume').out
    refuse(*words, says='not an empty directory')
    pathlib.Path('out/data/chunk-000/file-999.parquet').write_bytes(b'')
    refuse(*words, '--resume', says='not of this export')
    os.remove('out/data/chunk-000/file-999.parquet')
    refuse(*words[:-1], '50000', '--resume', says='differs', env=NO_LEAKS)
    with open('out/videos/v/chunk-000/file-000.mp4', 'ab') as file:
        file.write(b'x')
    refuse(*words, '--resume', says=('file-000.mp4', 'differs'), env=NO_LEAKS)


def statistics_of_images_are_those_of_their_episodes():
    if not _is_here():
        return
    photo = _png()
    rows = []
    for mean, std, count in ((1.0, 0.0, 1), (4.0, 3.0, 3)):
        stats = {name: [[[value]], [[value + 1]]] for name, value in
                 (('max', mean + std), ('mean', mean), ('min', mean - std), ('std', std))}
        stats['std'] = [[[std]], [[std]]]
        rows.append({'p': [photo] * 2, 'stats': json.dumps({'p': {**stats, 'count': [count]}})})
    pack(rows, 'p=png[],stats=utf8', 'ds')
    run('export', 'ds', 'out', '--to', 'lerobot', '--fps', 1)
    found = _metadata('out', 'stats.json')['p']
    # Of 1 and three values: 13 / 4, and the root of (27 + 3 * 9 / 4) / 4.
    assert found['mean'] == [[[3.25]], [[4.25]]] and found['count'] == [4], found
    assert found['max'] == [[[7.0]], [[8.0]]] and found['min'] == [[[1.0]], [[2.0]]], found
    assert abs(found['std'][0][0][0] - (33.75 / 4) ** 0.5) < 1e-12, found
    rows[1]['stats'] = json.dumps({'p': {**json.loads(rows[1]['stats'])['p'], 'count': [0]}})
    pack(rows, 'p=png[],stats=utf8', 'none')
    run('export', 'none', 'two', '--to', 'lerobot', '--fps', 1)
    assert _metadata('two', 'stats.json')['p'] == {'count': [4]}


def other_metadata_are_a_member_of_info():
    if not _is_here():
        return
    pack([{'x': [1, 2, 3]}, {'x': [4]}], 'x=i64[]', 'ds')
    more = {'license': 'cc0-1.0', 'classes': ['a', {'b': 1.5}], 'n': None}
    pathlib.Path('ds/info.json').write_text(json.dumps(more))
    run('export', 'ds', 'out', '--to', 'lerobot', '--fps', 10)
    assert _metadata('out', 'info.json')['bags'] == more
    run('import', 'out', 'back')
    found = json.loads(pathlib.Path('back/info.json').read_text())
    info = found.pop('lerobot')['info']
    assert found == more and 'bags' not in info and info['fps'] == 10, (found, info)
    run('export', 'back', 'again', '--to', 'lerobot')
    assert _metadata('again', 'info.json') == _metadata('out', 'info.json')
