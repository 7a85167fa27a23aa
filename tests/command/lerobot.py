"""bags import of LeRobot datasets, written by DuckDB and ffmpeg: rows, packets, defects."""
import ctypes
import json
import os
import pathlib
import shutil
import subprocess

import harness
from harness import read, refuse, run

LIBRARIES = sorted(pathlib.Path(harness.PROGRAM).resolve().parent.glob('libbags-*.so.*'))
LENGTHS = [12, 9, 15]
RATE = 10
TASKS = ['fold "it"', 'put ü away']
CAMERAS = ['observation.images.front', 'observation.images.wrist']
FIRST = [0, 12, 21]  # index of each episode's first row
NUMBERS = {
    'observation.state': {'dtype': 'float32', 'shape': [3], 'names': ['x', 'y', 'z']},
    'action': {'dtype': 'float32', 'shape': [2], 'names': None},
    'grid': {'dtype': 'float64', 'shape': [2, 3], 'names': None},
    'done': {'dtype': 'bool', 'shape': [1], 'names': None},
    'timestamp': {'dtype': 'float32', 'shape': [1], 'names': None},
    'frame_index': {'dtype': 'int64', 'shape': [1], 'names': None},
    'episode_index': {'dtype': 'int64', 'shape': [1], 'names': None},
    'index': {'dtype': 'int64', 'shape': [1], 'names': None},
    'task_index': {'dtype': 'int64', 'shape': [1], 'names': None},
}
ROWS = '''
    SELECT [(i + e) / 3, i, -i]::FLOAT[] AS "observation.state", [i, e / 7]::FLOAT[] AS action,
        [[i, 0.1, 2], [e, 4, 5]]::DOUBLE[][] AS grid, i % 3 = 0 AS done,
        (i / {rate})::FLOAT AS timestamp, i::BIGINT AS frame_index, e::BIGINT AS episode_index,
        (i + first)::BIGINT AS "index", CASE WHEN e = 1 AND i > 4 THEN 1 ELSE e % 2 END::BIGINT
        AS task_index
    FROM (SELECT unnest([0, 1, 2]) AS e, unnest([12, 9, 15]) AS n, unnest([0, 12, 21]) AS first),
        range(20) t(i)
    WHERE i < n ORDER BY e, i'''.format(rate=RATE)


def _is_here():
    lines = run('--version').out.decode().splitlines()
    kinds = next(line for line in lines if line.startswith('importers:')).split()[1:]
    try:
        ctypes.CDLL('libduckdb.so')
    except OSError:
        print("skipped: libduckdb.so not found")
        return False
    return 'lerobot' in kinds and shutil.which('ffmpeg') and shutil.which('ffprobe')


def without_duckdb_the_error_names_it():
    if 'import-lerobot' not in ' '.join(path.name for path in LIBRARIES):
        return
    _save('v3/meta/info.json', _info('v3.0', data_path='d', video_path='{video_key}'))
    environment = {**os.environ, 'LD_LIBRARY_PATH': ''}
    done = subprocess.run([harness.PROGRAM, 'import', 'v3', 'out'], env=environment,
                          stderr=subprocess.PIPE)
    assert done.returncode == 1, done  # with DuckDB, the files are missing
    assert b'Parquet and SQL need' in done.stderr or b'tasks.parquet' in done.stderr, done


def _sql(*queries):
    """Run queries of DuckDB, whose results are files."""
    duckdb = ctypes.CDLL('libduckdb.so')
    database, connection = ctypes.c_void_p(), ctypes.c_void_p()
    duckdb.duckdb_result_error.restype = ctypes.c_char_p
    assert duckdb.duckdb_open(None, ctypes.byref(database)) == 0
    assert duckdb.duckdb_connect(database, ctypes.byref(connection)) == 0
    for query in queries:
        result = ctypes.create_string_buffer(64)
        assert duckdb.duckdb_query(connection, query.encode(), result) == 0, \
            duckdb.duckdb_result_error(result)
        duckdb.duckdb_destroy_result(result)
    duckdb.duckdb_disconnect(ctypes.byref(connection))
    duckdb.duckdb_close(ctypes.byref(database))


def _parquet(path, query):
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    _sql(f"COPY ({query}) TO '{path}.new' (FORMAT parquet)")
    os.replace(f'{path}.new', path)


def _change(path, select):
    """Write a Parquet file again, with these columns."""
    _parquet(path, f"SELECT {select} FROM read_parquet('{path}')" if 'FROM' not in select
             else select.replace('FILE', f"read_parquet('{path}')"))


def _ffmpeg(*words):
    subprocess.run(['ffmpeg', '-v', 'error', '-y', *map(str, words)], check=True,
                   stdin=subprocess.DEVNULL)


def _encode(path, camera, episode, frames, *options):
    """A video like those of LeRobot; the first camera has B-frames."""
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    order = ['-g', 6, '-bf', 2] if camera == 0 else ['-g', 2, '-bf', 0]
    _ffmpeg('-f', 'lavfi', '-i', f'testsrc2=size={64 + 32 * camera}x64:rate={RATE}',
            '-vf', f'hue=h={episode * 50}', '-frames:v', frames, '-c:v', 'libx264', '-threads', 1,
            '-pix_fmt', 'yuv420p', *order, *options, path)


def _join(path, parts):
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path('list.txt').write_text(''.join(f"file '{os.path.abspath(p)}'\n" for p in parts))
    _ffmpeg('-f', 'concat', '-safe', 0, '-i', 'list.txt', '-c', 'copy', path)


def _packets(path):
    """The time and the hash of every packet."""
    out = subprocess.run(['ffprobe', '-v', 'error', '-show_packets', '-show_data_hash', 'md5',
                          '-of', 'json', path], check=True, stdout=subprocess.PIPE).stdout
    return [(float(packet['pts_time']), packet['flags'], packet['data_hash'])
            for packet in json.loads(out)['packets']]


def _pixels(path):
    """The hash of every frame."""
    out = subprocess.run(['ffmpeg', '-v', 'error', '-i', path, '-f', 'framemd5', '-'], check=True,
                         stdout=subprocess.PIPE, stdin=subprocess.DEVNULL).stdout.decode()
    return [line.split(',')[-1] for line in out.splitlines() if not line.startswith('#')]


def _info(version, **more):
    features = dict(NUMBERS)
    for number, camera in enumerate(CAMERAS):
        features[camera] = {'dtype': 'video', 'shape': [64, 64 + 32 * number, 3],
                            'names': ['height', 'width', 'channels']}
    return {'codebase_version': version, 'fps': RATE, 'total_episodes': len(LENGTHS),
            'total_frames': sum(LENGTHS), 'chunks_size': 1000, 'features': features, **more}


def _save(path, *rows):
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(path).write_text(''.join(json.dumps(row) + '\n' for row in rows),
                                  encoding='utf-8')


def _videos():
    for camera in range(2):
        for episode, length in enumerate(LENGTHS):
            _encode(f'parts/{camera}/{episode}.mp4', camera, episode, length)


# Per episode: the file of its rows; per camera, the file of its frames and where they begin.
DATA = [0, 0, 1]
VIDEO = [[(0, 0), (0, 1.2), (0, 2.1)], [(0, 0), (1, 0), (1, 0.9)]]


def _episodes():
    names = ['episode_index', 'length', '"data/chunk_index"', '"data/file_index"',
             'dataset_from_index', 'dataset_to_index', 'tasks']
    for camera in CAMERAS:
        names += [f'"videos/{camera}/{part}"' for part in
                  ('chunk_index', 'file_index', 'from_timestamp', 'to_timestamp')]
    names += ['"stats/action/max"', '"stats/action/min"', '"stats/front/mean"']
    rows = []
    for e, length in enumerate(LENGTHS):
        row = [e, length, 0, DATA[e], FIRST[e], FIRST[e] + length, "['a']"]
        for camera in range(2):
            file, start = VIDEO[camera][e]
            row += [0, file, f'{start}::DOUBLE', f'{start + length / RATE}::DOUBLE']
        row += [f'[{e}, 0.5]::DOUBLE[]', "['-inf', 'nan']::DOUBLE[]", '[[[0.25]]]::DOUBLE[][][]']
        rows.append('(' + ', '.join(map(str, row)) + ')')
    return f"SELECT * FROM (VALUES {', '.join(rows)}) t({', '.join(names)})"


def _make_3(root='v3'):
    _videos()
    _save(f'{root}/meta/info.json', _info(
        'v3.0', data_path='data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet',
        video_path='videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4'))
    _save(f'{root}/meta/stats.json', {})
    tasks = ', '.join(f"({i}, '{text}')" for i, text in enumerate(TASKS))
    _parquet(f'{root}/meta/tasks.parquet',
             f'SELECT * FROM (VALUES {tasks}) t(task_index, __index_level_0__)')
    _parquet(f'{root}/meta/episodes/chunk-000/file-000.parquet', _episodes())
    for file in range(2):
        numbers = [e for e in range(3) if DATA[e] == file]
        _parquet(f'{root}/data/chunk-000/file-{file:03d}.parquet',
                 f'SELECT * FROM ({ROWS}) WHERE episode_index IN {tuple(numbers + [-1])}')
        for camera in range(2):
            parts = [f'parts/{camera}/{e}.mp4' for e in range(3) if VIDEO[camera][e][0] == file]
            if parts:
                _join(f'{root}/videos/{CAMERAS[camera]}/chunk-000/file-{file:03d}.mp4', parts)
    return root


def _make_2(root='v2'):
    _videos()
    _save(f'{root}/meta/info.json', _info(
        'v2.1', data_path='data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet',
        video_path='videos/chunk-{episode_chunk:03d}/{video_key}/'
                   'episode_{episode_index:06d}.mp4'))
    _save(f'{root}/meta/tasks.jsonl',
          *({'task_index': i, 'task': text} for i, text in enumerate(TASKS)))
    _save(f'{root}/meta/episodes.jsonl',
          *({'episode_index': e, 'tasks': ['a'], 'length': n} for e, n in enumerate(LENGTHS)))
    _save(f'{root}/meta/episodes_stats.jsonl',
          *({'episode_index': e, 'stats': {'action': {'max': [e, 0.5]}}} for e in range(3)))
    for e in range(3):
        _parquet(f'{root}/data/chunk-000/episode_{e:06d}.parquet',
                 f'SELECT * FROM ({ROWS}) WHERE episode_index = {e}')
        for camera in range(2):
            path = f'{root}/videos/chunk-000/{CAMERAS[camera]}/episode_{e:06d}.mp4'
            pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(f'parts/{camera}/{e}.mp4', path)
    return root


def _joined(camera, episode):
    """The packets of an episode in the file of version 3; ffmpeg's concat adds parameter sets."""
    file, start = VIDEO[camera][episode]
    before = sum(LENGTHS[e] for e in range(episode) if VIDEO[camera][e][0] == file)
    packets = _packets(f'v3/videos/{CAMERAS[camera]}/chunk-000/file-{file:03d}.mp4')
    return [(round(time - start, 6), flags, data)
            for time, flags, data in packets[before:before + LENGTHS[episode]]]


def _check(out, packets=_joined):
    """Rows equal those that DuckDB writes, packets those of the source, and frames those of the
    video of the episode before it was joined."""
    _sql(f"COPY ({ROWS}) TO 'rows.csv' (FORMAT csv, HEADER false, DELIMITER '|')")
    spec = read(out)['spec']
    assert spec['observation.state'] == 'array(float32,3)[]', spec
    assert spec['grid'] == 'array(float64,2,3)[]' and spec['done'] == 'array(bool)[]', spec
    assert spec['index'] == 'i64[]' and spec[CAMERAS[0]] == 'mp4', spec
    rows = run('get', out, ':', '--lists').lines
    places = {row['episode_index']: i for i, row in enumerate(rows)}
    assert sorted(places) == [0, 1, 2]
    rows.sort(key=lambda row: row['episode_index'])
    assert [row['tasks'] for row in rows] == [TASKS[:1], TASKS[1:], TASKS[:1]]
    found = []
    for row in rows:
        count = LENGTHS[row['episode_index']]
        for i in range(count):
            found.append([row[name] if name == 'episode_index' else row[name][i]
                          for name in NUMBERS])
    expected = []
    for line in pathlib.Path('rows.csv').read_text().splitlines():
        expected.append([json.loads(cell) for cell in line.split('|')])
    assert len(found) == len(expected) == sum(LENGTHS)
    for ours, theirs in zip(found, expected):
        assert json.loads(json.dumps(ours)) == theirs, (ours, theirs)
    for camera, name in enumerate(CAMERAS):
        for e in range(3):
            pathlib.Path('cut.mp4').write_bytes(run('get', out, places[e], name, '--raw').out)
            assert _packets('cut.mp4') == packets(camera, e), (name, e)
            assert _pixels('cut.mp4') == _pixels(f'parts/{camera}/{e}.mp4'), (name, e)
    return rows


def rows_and_packets_of_version_3_are_equal():
    if not _is_here():
        return
    done = run('import', _make_3(), 'out')
    assert 'left out' not in done.err, done.err
    kept = json.loads(pathlib.Path('out/info.json').read_text(encoding='utf-8'))['lerobot']
    assert kept == {'info': json.loads(pathlib.Path('v3/meta/info.json').read_text()),
                    'stats': {}, 'tasks': {text: i for i, text in enumerate(TASKS)}}
    rows = _check('out')
    assert json.loads(rows[1]['stats']) == {
        'action': {'max': [1, 0.5], 'min': ['-Infinity', 'NaN']}, 'front': {'mean': [[[0.25]]]}}
    run('verify', 'out', '--decode')
    for worker in range(2):
        run('import', 'v3/', 'two', '--shard-stop', 2, '--shard-start', worker)
    _check('two')
    _parquet('v3/meta/tasks.parquet', "SELECT task_index, __index_level_0__ AS task FROM "
             "read_parquet('v3/meta/tasks.parquet')")
    run('import', 'v3', 'three')
    _check('three')


def rows_and_packets_of_version_2_are_equal():
    if not _is_here():
        return
    run('import', _make_2(), 'out')
    rows = _check('out', lambda camera, e: _packets(f'parts/{camera}/{e}.mp4'))
    assert json.loads(rows[2]['stats']) == {'action': {'max': [2, 0.5]}}
    for camera, name in enumerate(CAMERAS):
        for e in range(3):
            assert run('get', 'out', e, name, '--raw').out == \
                pathlib.Path(f'parts/{camera}/{e}.mp4').read_bytes()
    video = f'v2/videos/chunk-000/{CAMERAS[1]}/episode_000001.mp4'
    shutil.copy('parts/1/0.mp4', video)
    refuse('import', 'v2', 'bad', says=['episode 1: camera ' + CAMERAS[1], video, '12 frames',
                                        '9 rows'], env=NO_LEAKS)
    os.remove(video)
    refuse('import', 'v2', 'bad', says=['episode 1: camera ' + CAMERAS[1], video, 'missing'],
           env=NO_LEAKS)


def images_and_text_in_rows_are_sequences():
    if not _is_here():
        return
    _ffmpeg('-f', 'lavfi', '-i', 'testsrc2=size=16x16', '-frames:v', 1, 'a.png')
    numbers = {name: NUMBERS[name] for name in (
        'timestamp', 'frame_index', 'episode_index', 'index', 'task_index')}
    _save('v3/meta/info.json', _info(
        'v3.0', data_path='data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet',
        video_path=None, total_episodes=1, total_frames=3, features={
            **numbers, 'cam': {'dtype': 'image', 'shape': [16, 16, 3]},
            'said': {'dtype': 'string', 'shape': [1]}, 'x': {'dtype': 'float32', 'shape': [1]}}))
    _parquet('v3/meta/tasks.parquet', "SELECT 0 AS task_index, 'a' AS task")
    _parquet(META, 'SELECT 4 AS episode_index, 3 AS length, 0 AS "data/chunk_index", 0 AS '
             '"data/file_index", 0 AS dataset_from_index, 3 AS dataset_to_index')
    _parquet(ROWS_0, """
        SELECT {'bytes': (SELECT content FROM read_blob('a.png')), 'path': 'a.png'} AS cam,
            'word ' || i AS said, [i]::FLOAT[] AS x, (i / 10)::FLOAT AS timestamp,
            i::BIGINT AS frame_index, 4::BIGINT AS episode_index, i::BIGINT AS "index",
            0::BIGINT AS task_index FROM range(3) t(i)""")
    run('import', 'v3', 'out')
    assert read('out')['spec'] == {
        'cam': 'png[]', 'episode_index': 'i64', 'frame_index': 'i64[]', 'index': 'i64[]',
        'said': 'utf8[]', 'task_index': 'i64[]', 'tasks': 'utf8[]',
        'timestamp': 'array(float32)[]', 'x': 'array(float32,1)[]'}, read('out')['spec']
    row = run('get', 'out', 0, '--lists').lines[0]
    assert row['said'] == ['word 0', 'word 1', 'word 2'] and row['x'] == [[0], [1], [2]], row
    assert run('get', 'out', 0, 'cam[2]', '--raw').out == pathlib.Path('a.png').read_bytes()


def rows_and_videos_of_no_episode_are_counted():
    if not _is_here():
        return
    _make_3()
    _parquet('v3/data/chunk-000/file-002.parquet',
             f'SELECT * REPLACE (7 AS episode_index) FROM ({ROWS}) WHERE episode_index = 1')
    _join(FRONT, [f'parts/0/{e}.mp4' for e in (0, 1, 2, 1)])
    extra = f'v3/videos/{CAMERAS[0]}/chunk-000/file-005.mp4'
    shutil.copy('parts/0/0.mp4', extra)
    done = run('import', 'v3', 'out')
    for text in ('9 orphaned rows', 'episode 7 is not in meta: v3/data/chunk-000/',
                 '1 unused video (', extra, '9 unused video frames', FRONT):
        assert text in done.err, done.err
    _check('out')


ROWS_0, ROWS_1 = 'v3/data/chunk-000/file-000.parquet', 'v3/data/chunk-000/file-001.parquet'
META = 'v3/meta/episodes/chunk-000/file-000.parquet'
FRONT = f'v3/videos/{CAMERAS[0]}/chunk-000/file-000.mp4'
WRIST = f'v3/videos/{CAMERAS[1]}/chunk-000/file-001.mp4'


def _meta(camera, part, value, episode):
    name = f'videos/{CAMERAS[camera]}/{part}'
    _change(META, f'SELECT * REPLACE (CASE WHEN episode_index = {episode} THEN {value} ELSE '
            f'"{name}" END AS "{name}") FROM FILE')


def _truncate(path, size):
    data = pathlib.Path(path).read_bytes()
    pathlib.Path(path).write_bytes(data[:size])


def _replace_info(**more):
    path = pathlib.Path('v3/meta/info.json')
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))


def _shift(by, where='TRUE'):
    """Change the times in the metadata of episodes, of both cameras."""
    columns = ', '.join(
        f'CASE WHEN {where} THEN "videos/{camera}/{part}_timestamp" + {by} ELSE '
        f'"videos/{camera}/{part}_timestamp" END AS "videos/{camera}/{part}_timestamp"'
        for camera in CAMERAS for part in ('from', 'to'))
    _change(META, f'SELECT * REPLACE ({columns}) FROM FILE')


def _swap(column, first, second):
    """Swap a column of the metadata of two episodes."""
    _change(META, f"""SELECT * REPLACE (CASE episode_index
        WHEN {first} THEN (SELECT "{column}" FROM FILE WHERE episode_index = {second})
        WHEN {second} THEN (SELECT "{column}" FROM FILE WHERE episode_index = {first})
        ELSE "{column}" END AS "{column}") FROM FILE""")


def _swap_videos(camera, first, second, parts=('from_timestamp', 'to_timestamp')):
    for part in parts:
        _swap(f'videos/{CAMERAS[camera]}/{part}', first, second)


DEFECTS = {
    'the times of two episodes are swapped': (
        lambda: _swap_videos(1, 1, 2),
        ['episode 2', 'camera ' + CAMERAS[1], WRIST, 'episode 1', 'swapped']),
    'the files of two episodes are swapped': (
        lambda: _swap_videos(1, 0, 1, ['file_index']),
        ['episode 1', 'camera ' + CAMERAS[1], 'file-000.mp4', 'episode 0', 'swapped']),
    'two data files are swapped': (
        lambda: _swap('data/file_index', 1, 2),
        ['episode 2', 'meta/episodes', 'file-000.parquet', 'order']),
    'the index overlaps the episode before it': (
        lambda: _change(META, 'SELECT * REPLACE (dataset_from_index - episode_index AS '
                        'dataset_from_index, dataset_to_index - episode_index AS '
                        'dataset_to_index) FROM FILE'),
        ['episode 1', 'meta/episodes', 'dataset_from_index 11', 'episode 0 (12)']),
    'indexes are at the ends of their range': (
        lambda: _change(ROWS_1, f'SELECT * REPLACE (CASE "index" WHEN 21 THEN {-2**63} WHEN 22 '
                        f'THEN {2**63 - 1} ELSE "index" END AS "index") FROM FILE'),
        ['episode 2', ROWS_1, 'gaps']),
    'an index ends before it begins': (
        lambda: _change(META, f'SELECT * REPLACE ({-2**63} AS dataset_to_index) FROM FILE'),
        ['episode 0', 'meta/episodes', 'contradict']),
    'the frames begin later than stated': (
        lambda: _shift(0.1), ['camera ' + CAMERAS[0], FRONT, 'episode']),
    'the times are those of no frames': (
        lambda: _shift(50), ['episode 0', 'camera ' + CAMERAS[0], FRONT, '0 frames']),
    'a time is not a number': (
        lambda: _meta(0, 'from_timestamp', "'nan'::DOUBLE", 1),
        ['episode 1', 'camera ' + CAMERAS[0], FRONT, 'invalid times']),
    'the rate contradicts the videos': (
        lambda: _replace_info(fps=30),
        ['episode 0', 'camera ' + CAMERAS[0], FRONT, '10 per second', 'fps 30']),
    'the rate is missing': (lambda: _replace_info(fps=None), ['info.json', 'fps']),
    'all cameras have one file': (
        lambda: _replace_info(video_path='videos/chunk-{chunk_index:03d}/{file_index}.mp4'),
        ['info.json', 'video_path', '{video_key}']),
    'all episodes have one file of rows': (
        lambda: _replace_info(data_path='data/chunk-000/file-000.parquet'),
        ['episode 2', ROWS_1, 'another file', ROWS_0]),
    'a row is missing': (
        lambda: _change(ROWS_0, 'SELECT * FROM FILE WHERE "index" <> 14'),
        ['episode 1', ROWS_0, '8 rows', 'length 9']),
    'the index has a gap': (
        lambda: _change(ROWS_1, 'SELECT * REPLACE (CASE WHEN "index" > 30 THEN "index" + 2 ELSE '
                        '"index" END AS "index") FROM FILE'),
        ['episode 2', ROWS_1, 'gaps']),
    'the index of an episode is another': (
        lambda: _change(ROWS_1, 'SELECT * REPLACE ("index" + 1 AS "index") FROM FILE'),
        ['episode 2', ROWS_1, 'index begins at 22', 'dataset_from_index is 21']),
    'rows are not in order': (
        lambda: _change(ROWS_0, 'SELECT * FROM FILE ORDER BY episode_index, frame_index DESC'),
        ['episode 0', ROWS_0, 'frame 0', 'not in order']),
    'a file of rows is not finished': (
        lambda: _truncate(ROWS_1, 300), [ROWS_1]),
    'a file of rows is missing': (
        lambda: os.remove(ROWS_1), ['episode 2', ROWS_1, 'missing']),
    'rows are in another file': (
        lambda: os.rename(ROWS_1, 'v3/data/chunk-000/file-003.parquet'),
        ['episode 2', 'file-003.parquet', 'another file', ROWS_1]),
    'metadata is missing': (
        lambda: _change(META, 'SELECT * FROM FILE WHERE episode_index < 2'),
        ['info.json', 'total_episodes is 3', 'has 2', 'finalize']),
    'metadata is there twice': (
        lambda: _change(META, 'SELECT * FROM FILE UNION ALL SELECT * FROM FILE WHERE '
                        'episode_index = 1'), ['episode 1', 'two rows']),
    'lengths contradict each other': (
        lambda: _change(META, 'SELECT * REPLACE (length + 1 AS length) FROM FILE'),
        ['episode 0', 'meta/episodes', 'length 13', 'contradict']),
    'a state has another shape': (
        lambda: _change(ROWS_0, 'SELECT * REPLACE (CASE WHEN "index" = 13 THEN [1, 2]::FLOAT[] '
                        'ELSE "observation.state" END AS "observation.state") FROM FILE'),
        ['episode 1', ROWS_0, 'frame 1', 'observation.state']),
    'a state has another dtype': (
        lambda: _change(ROWS_1, 'SELECT * REPLACE ("observation.state"::DOUBLE[] AS '
                        '"observation.state") FROM FILE'),
        ['episode 2', ROWS_1, 'observation.state']),
    'a value is NULL': (
        lambda: _change(ROWS_0, 'SELECT * REPLACE (CASE WHEN "index" <> 3 THEN done END AS done) '
                        'FROM FILE'), ['episode 0', ROWS_0, 'frame 3', 'done']),
    'a feature has no column': (
        lambda: _change(ROWS_0, 'SELECT * EXCLUDE (done) FROM FILE'), [ROWS_0, 'done']),
    'a task has no text': (
        lambda: _change(ROWS_0, 'SELECT * REPLACE (5 AS task_index) FROM FILE'),
        ['episode 0', ROWS_0, 'task_index 5']),
    'a row has the time of another': (
        lambda: _change(ROWS_0, 'SELECT * REPLACE (CASE WHEN "index" = 5 THEN 0.4::FLOAT ELSE '
                        'timestamp END AS timestamp) FROM FILE'),
        ['episode 0', 'camera ' + CAMERAS[0], FRONT, 'frame 5', '0.400000']),
    'the video is that of another episode': (
        lambda: _meta(1, 'from_timestamp', '0.0', 2) or _meta(1, 'to_timestamp', '1.5', 2),
        ['camera ' + CAMERAS[1], WRIST, 'episode 1', 'episode 2', 'has the same frames']),
    'the video is in another file': (
        lambda: _meta(1, 'file_index', '3', 2),
        ['episode 2', 'camera ' + CAMERAS[1], 'file-003.mp4', 'missing']),
    'the video is that of another camera': (
        lambda: shutil.copy(FRONT, WRIST),
        ['episode 1', 'camera ' + CAMERAS[1], WRIST, 'the size of camera ' + CAMERAS[0]]),
    'the metadata has no video': (
        lambda: _meta(0, 'file_index', 'NULL', 1), ['episode 1', 'camera ' + CAMERAS[0], 'NULL']),
    'the metadata lacks a column': (
        lambda: _change(META, f'SELECT * EXCLUDE ("videos/{CAMERAS[0]}/file_index") FROM FILE'),
        ['meta/episodes', CAMERAS[0] + '/file_index']),
    'a video lacks frames': (
        lambda: _join(WRIST, ['parts/1/1.mp4', 'parts/1/1.mp4']),
        ['episode 2', 'camera ' + CAMERAS[1], WRIST, '9 frames', '15 rows']),
    'a cut is not at a keyframe': (
        lambda: _encode(WRIST, 1, 0, 24, '-g', 100),
        ['episode 2', 'camera ' + CAMERAS[1], WRIST, 'keyframe']),
    'a video is not finished': (
        lambda: _truncate(FRONT, 4000), ['episode 0', 'camera ' + CAMERAS[0], FRONT, 'truncated']),
    'a template leaves the directory': (
        lambda: _replace_info(video_path='../{video_key}.mp4'), ['info.json', '../{video_key}']),
    'the version is unknown': (
        lambda: _replace_info(codebase_version='v4.0'), ['info.json', 'v4.0']),
    'a feature has no known dtype': (
        lambda: _replace_info(features={**NUMBERS, 'x': {'dtype': 'float8', 'shape': [1]}}),
        ['info.json', 'feature x', 'float8']),
    'a side is no integer': (
        lambda: _replace_info(features={**NUMBERS, 'x': {'dtype': 'int8', 'shape': [2.5]}}),
        ['info.json', 'feature x', 'shape']),
}


# The command exits without closing the source. LeakSanitizer does not see the memory in which
# DuckDB has its pointers.
NO_LEAKS = {**os.environ, 'ASAN_OPTIONS': 'detect_leaks=0'}


def _set_lengths(lengths):
    """Datasets of three episodes with other lengths; the wrist's second file has two of them."""
    global LENGTHS, FIRST, ROWS, VIDEO
    first = [sum(lengths[:i]) for i in range(3)]
    ROWS = ROWS.replace(f'unnest({LENGTHS})', f'unnest({lengths})')
    ROWS = ROWS.replace(f'unnest({FIRST})', f'unnest({first})')
    LENGTHS, FIRST = lengths, first
    VIDEO = [[(0, start / RATE) for start in first], [(0, 0), (1, 0), (1, lengths[1] / RATE)]]


def swapped_episodes_of_one_length_are_noticed():
    if not _is_here():
        return
    usual = LENGTHS
    try:
        _set_lengths([12, 12, 12])
        _make_3()
        run('import', 'v3', 'out')
        _check('out')
        shutil.rmtree('out')
        os.rename('v3', 'whole')
        for camera, first, second in ((0, 0, 1), (0, 1, 2), (0, 0, 2), (1, 1, 2)):
            shutil.copytree('whole', 'v3')
            _swap_videos(camera, first, second)
            refuse('import', 'v3', 'out', env=NO_LEAKS, says=[
                'camera ' + CAMERAS[camera], 'v3/videos/' + CAMERAS[camera], 'episode 1',
                'swapped'])
            shutil.rmtree('v3')
    finally:
        _set_lengths(usual)


def a_rate_that_was_rounded_is_kept_and_a_false_one_is_an_error():
    """Rows without videos at 29.97 frames per second: info.json has 30. 31 would be another."""
    if not _is_here():
        return
    numbers = {name: NUMBERS[name] for name in (
        'timestamp', 'frame_index', 'episode_index', 'index', 'task_index')}
    _save('v3/meta/info.json', _info(
        'v3.0', data_path='data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet',
        video_path=None, fps=30, total_episodes=1, total_frames=3000, features=numbers))
    _parquet('v3/meta/tasks.parquet', "SELECT 0 AS task_index, 'a' AS task")
    _parquet(META, 'SELECT 0 AS episode_index, 3000 AS length, 0 AS "data/chunk_index", 0 AS '
             '"data/file_index", 0 AS dataset_from_index, 3000 AS dataset_to_index')
    _parquet(ROWS_0, """
        SELECT (i * 1001 / 30000)::FLOAT AS timestamp, i::BIGINT AS frame_index,
            0::BIGINT AS episode_index, i::BIGINT AS "index", 0::BIGINT AS task_index
        FROM range(3000) t(i)""")
    run('import', 'v3', 'out')
    time = run('get', 'out', 0, 'timestamp[2999]').lines[0]['timestamp']
    assert abs(time - 2999 * 1001 / 30000) < 1e-4, time
    for rate in (31, 25, 3, 300):
        _replace_info(fps=rate)
        refuse('import', 'v3', 'bad', env=NO_LEAKS, says=[
            'episode 0', ROWS_0, 'timestamps', '29.97', f'fps {rate}'])


def every_defect_is_named():
    if not _is_here():
        return
    _make_3('whole')
    for damage, says in DEFECTS.values():
        shutil.copytree('whole', 'v3')
        damage()
        result = refuse('import', 'v3', 'out', says=says, env=NO_LEAKS)
        assert 'Internal' not in result.err, result.err
        shutil.rmtree('v3')
        shutil.rmtree('out', ignore_errors=True)  # the datapoints before the defect
