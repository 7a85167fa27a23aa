"""Workers, shards, gaps, flushing, and what is left when packing stops."""
import base64
import ctypes
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess

import harness
from harness import (HANG, each, files, pack, read, refuse, run, values, wait_for,
                     write_lines)

SPEC = 'n=int(4),words=utf8[]'


def _rows(count):
    return [{'n': i, 'words': [str(i)] * (i % 3)} for i in range(count)]


def _workers(count, *options, manifest='manifest.jsonl', out='shards'):
    """Pack with this many processes at once."""
    jobs = [subprocess.Popen(
        [harness.PROGRAM, 'pack', manifest, out, '--spec', SPEC, '--shard-start',
         str(w), '--shard-stop', str(count), *options],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for w in range(count)]
    for job in jobs:
        _, err = job.communicate(timeout=HANG)
        assert job.returncode == 0, err


def four_processes_pack_what_one_packs():
    rows = _rows(203)
    pack(rows, SPEC, 'one')
    _workers(4, '--shard-length', '10', '--no-sync')
    everything = values('one')
    assert sorted(values('shards'), key=lambda row: row['n']) == everything
    # Worker W writes the lines W, W + 4, ... into the shards W, W + 4, ...
    for shard in pathlib.Path('shards').iterdir():
        worker = int(shard.name) % 4
        start = int(shard.name) // 4 * 10
        assert values(shard) == everything[worker::4][start:start + 10]


def workers_of_different_load_leave_gaps_that_finalize_closes():
    rows = _rows(30)
    pack(rows[:20], SPEC, 'shards', '--shard-length', '2', '--shard-stop', '3')
    pack(rows[20:29], SPEC, 'shards', '--shard-length', '2', '--shard-start',
         '1', '--shard-stop', '3')
    # Worker 0 had 7 lines: the shards 0, 3, 6, 9; worker 1 had 3: 1, 4.
    names = sorted(f.name for f in pathlib.Path('shards').iterdir())
    assert names == ['000000', '000001', '000003', '000004', '000006', '000009']
    refuse('info', 'shards', says=('missing', '2, ', '5, ', '7, ', '8'))
    got = run('info', 'shards', '--json', '--allow-gaps').json
    assert got['missing'] == [2, 5, 7, 8] and got['length'] == 10
    before = run('get', 'shards', '0:99', '--allow-gaps').out
    content = {n: files(f'shards/{n}') for n in names}
    assert b'4 shards' in run('finalize', 'shards').out
    content['000000']['finalized'] = \
        pathlib.Path('shards/000000/finalized').read_bytes()
    content['000000']['catalogue'] = \
        pathlib.Path('shards/000000/catalogue').read_bytes()
    assert sorted(f.name for f in pathlib.Path('shards').iterdir()) == \
        [f'{i:06}' for i in range(6)]
    assert [files(f'shards/{i:06}') for i in range(6)] == \
        [content[n] for n in names]
    assert run('get', 'shards', '0:99').out == before
    assert read('shards')['count'] == 10
    assert b' 0 shards' in run('finalize', 'shards').out


def the_same_worker_twice_is_an_error_and_harms_nothing():
    write_lines('manifest.jsonl', _rows(9))
    words = ['pack', 'manifest.jsonl', 'shards', '--spec', SPEC,
             '--shard-length', '3', '--shard-start', '1', '--shard-stop', '2']
    run(*words)
    before = files('shards')
    refuse(*words, says='000001')
    assert files('shards') == before


def two_living_workers_of_one_number_do_not_mix():
    first = subprocess.Popen(
        [harness.PROGRAM, 'pack', '-', 'shards', '--spec', 'n=int',
         '--shard-length', '2'], stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL)
    first.stdin.write(b'{"n": 1}\n')
    first.stdin.flush()
    wait_for(lambda: pathlib.Path('shards/000000').exists(), first)
    refuse('pack', '-', 'shards', '--spec', 'n=int', '--shard-length', '2',
           stdin=b'{"n": 5}\n', says='000000')
    first.communicate(b'{"n": 2}\n{"n": 3}\n')
    assert first.returncode == 0
    assert values('shards') == [{'n': 1}, {'n': 2}, {'n': 3}]


@each([('--shard-size', '0'), ('--shard-length', '0'), ('--shard-start', '0'),
       ('--shard-stop', '0'), ('--shard-stop', '1'), ('--shard-size', '1T')])
def any_shard_option_makes_shards(options):
    pack(_rows(3), SPEC, 'out', *options)
    assert [f.name for f in pathlib.Path('out').iterdir()] == ['000000']
    assert read('out')['shards'] == [3]


def without_a_shard_option_there_are_none():
    pack(_rows(3), SPEC)
    assert read('out')['kind'] == 'dataset'


@each([('100', 100), ('1K', 1024), ('1KiB', 1024), ('2M', 2 << 20),
       ('100B', 100)])
def sizes_have_units_of_1024(case):
    words, size = case
    blob = {'base64': 'A' * (size // 4 // 4 * 4)}
    pack([{'b': blob}] * 20, 'b=bytes', 'out', '--shard-size', words)
    each_one = len(blob['base64']) // 4 * 3 + 8 + 2 + 8
    most = next(i for i in range(1, 99) if 16 + i * each_one >= size)
    assert read('out')['shards'][0] == most


def a_worker_without_lines_writes_nothing_and_says_so():
    result = pack(_rows(2), SPEC, 'out', '--shard-start', '2', '--shard-stop', '3')
    assert b'no shard' in result.out, result.out
    assert not pathlib.Path('out').exists()


def a_worker_does_not_look_at_the_lines_of_others():
    write_lines('m.jsonl', ['nonsense\n', {'n': 1}, 'nonsense\n', {'n': 2}])
    run('pack', 'm.jsonl', 'out', '--spec', 'n=int', '--shard-start', '1',
        '--shard-stop', '2')
    assert values('out/000001') == [{'n': 1}, {'n': 2}]


def idx_files_are_left_for_newest_granular():
    pack(_rows(5), 'n=int(4),words=utf8[]', 'out', '--idx')
    assert pathlib.Path('out/n.idx').read_bytes() == struct.pack(
        '<5Q', 4, 8, 12, 16, 20)
    assert values('out') == values('out')
    bag = pathlib.Path('x.bag')
    run('pack', '-', bag, '--idx', stdin=b'{"blob": {"base64": "AAAA"}}')
    assert pathlib.Path('x.idx').read_bytes() == struct.pack('<Q', 3)
    assert run('get', bag, '0', '--raw').out == bytes(3)


def _size(path):
    path = pathlib.Path(path)
    return path.stat().st_size if path.exists() else 0


def what_waits_for_the_next_line_is_flushed():
    job = subprocess.Popen(
        [harness.PROGRAM, 'pack', '-', 'out', '--spec', 'n=int(4)'],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    job.stdin.write(b'{"n": 1}\n{"n": 2}\n{"n"')
    job.stdin.flush()
    wait_for(lambda: _size('out/refs.idx') == 16, job)
    job.send_signal(signal.SIGKILL)
    job.wait()
    job.stdin.close()
    assert _size('out/n.bag') == 8 and _size('out/n.idx') == 16
    assert not pathlib.Path('out/spec.json').exists()
    refuse('info', 'out', says='recover')


def it_is_flushed_after_a_second_and_every_mebibyte():
    job = subprocess.Popen(
        [harness.PROGRAM, 'pack', '-', 'out', '--spec', 'b=bytes'],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    line = json.dumps({'b': {'base64': 'AAAA' * 200_000}}).encode() + b'\n'
    job.stdin.write(line)
    job.stdin.flush()
    wait_for(lambda: _size('out/b.bag') == 600_000, job)  # no other line follows it
    libc, IN_MODIFY = ctypes.CDLL(None), 2
    changes = libc.inotify_init()
    watches = [libc.inotify_add_watch(changes, f'out/b.{name}'.encode(), IN_MODIFY)
               for name in ('bag', 'idx')]
    job.stdin.write(line * 20)
    job.stdin.close()
    wait_for(lambda: job.poll() is not None)
    assert job.returncode == 0
    # A file that changes again before another one does is one event.
    events = [event[0] for event in struct.iter_unpack('=iIII', os.read(changes, 1 << 16))]
    os.close(changes)
    assert events.count(watches[1]) >= 9, events


def a_full_disk_keeps_what_was_flushed():
    def limit():
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
    rows = [{'b': {'base64': 'AAAA' * 100_000}}] * 30
    write_lines('m.jsonl', rows)
    refuse('pack', 'm.jsonl', 'out', '--spec', 'b=bytes', preexec_fn=limit,
           says=('b.bag', 'File too large', 'kept'))
    assert not pathlib.Path('out/spec.json').exists()
    assert _size('out/refs.idx') >= 8
    refuse('info', 'out', says='recover')


def a_full_disk_before_anything_was_flushed_does_not_say_that_something_was():
    def limit():
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    write_lines('m.jsonl', _rows(1000))
    refuse('pack', 'm.jsonl', 'out', '--spec', SPEC, preexec_fn=limit,
           says='; out: the data that was flushed, if any, is kept, --resume')
    assert run('info', 'out', '--live', '--json').json['length'] == 0


def finished_shards_stay_when_a_line_is_bad():
    rows = _rows(7) + ['{"n": 1}\n']
    write_lines('m.jsonl', rows)
    refuse('pack', 'm.jsonl', 'out', '--spec', SPEC, '--shard-length', '3',
           says=('m.jsonl: line 8: ', '"words"', '7 datapoints are kept'))
    assert values('out/000000') + values('out/000001') == rows[:6]
    run('recover', 'out')
    assert values('out') == rows[:7]


def a_pack_that_failed_is_called_again_with_resume():
    write_lines('bad.jsonl', [{'n': i} for i in range(5)] + ['x'])
    write_lines('good.jsonl', [{'n': i} for i in range(6)])
    for out, options in (('one', []), ('set', ['--shard-length', '2'])):
        refuse('pack', 'bad.jsonl', out, '--spec', 'n=int', *options, says='--resume continues')
        refuse('pack', 'good.jsonl', out, '--spec', 'n=int', *options, says='pass --resume to continue it')
        run('pack', 'good.jsonl', out, '--spec', 'n=int', *options, '--resume')
        assert len(values(out)) == 6
    refuse('pack', 'good.jsonl', 'one', '--spec', 'n=int',
           says='one: already exists; remove it, or write to a new path')
    refuse('pack', 'good.jsonl', 'set', '--spec', 'n=int', '--shard-length', '2',
           says=('same --shard-start', 'pass --resume to continue it', 'pass --append to add'))
    write_lines('blobs.jsonl', [{'blob': {'base64': 'AA=='}}, 'x'])
    refuse('pack', 'blobs.jsonl', 'x.bag', says='`bags export x.bag OUT --live` reads it')
    refuse('pack', 'blobs.jsonl', 'x.bag', says=('x.bag: ', 'exists', 'write to a new path'))


@each(['nothing', 'file', 'dataset', 'unfinished', 'two'])
def finalize_refuses_what_is_no_set_of_finished_shards(what):
    path = pathlib.Path('x')
    if what == 'file':
        path.write_text('mine')
    if what == 'dataset':
        pack(_rows(2), SPEC, 'x')
    if what in ('unfinished', 'two'):
        pack(_rows(4), SPEC, 'x', '--shard-length', '1')
        if what == 'unfinished':
            (path / '000003/spec.json').rename(path / '000003/spec.json.partial')
        else:
            (path / '000003').rename(path / '01')
    before = files('.')
    refuse('finalize', 'x', says='x')
    assert files('.') == before


def an_export_overwrites_nothing():
    pack(_rows(2), SPEC)
    pathlib.Path('full').mkdir()
    pathlib.Path('full/manifest.jsonl.partial').write_text('mine')
    pathlib.Path('file').write_text('mine')
    before = files('.')
    refuse('export', 'out', 'full', says='full')
    refuse('export', 'out', 'file', says='file')
    refuse('export', 'out', 'out', says='out')
    assert files('.') == before
    pathlib.Path('empty').mkdir()
    run('export', 'out', 'empty/')
    assert len(pathlib.Path('empty/manifest.jsonl').read_text()
               .splitlines()) == 2
    run('export', 'out', 'new/and/deep')
    assert files('new/and/deep') == files('empty')


def a_failed_export_leaves_an_empty_directory_as_it_was():
    pack([{'b': {'base64': 'AAAA' * 100}}] * 3, 'b=bytes')
    path = pathlib.Path('out/refs.bag')
    raw = bytearray(path.read_bytes())
    raw[5] = 99
    path.write_bytes(raw)
    pathlib.Path('empty').mkdir()
    for options in ([], ['--raw']):
        refuse('export', 'out', 'empty', *options, says='2')
        assert pathlib.Path('empty').exists() and not files('empty')
        refuse('export', 'out', 'new', *options)
        assert not pathlib.Path('new').exists()


def _export_rows(count=40):
    """Some values in lines, others in files."""
    pack([{'n': i, 't': 'x' * (i % 7), 'v': [i] * 3,
           'b': {'base64': base64.b64encode(bytes([i]) * (300 * i % 1000)).decode()},
           's': [{'base64': base64.b64encode(b'%d' % i).decode()}] * (i % 3)}
          for i in range(count)], 'n=int(4),t=utf8,v=int64(3),b=bytes,s=bytes[]')


def _interrupt(whole, size, path='x'):
    """What an export that was killed leaves: lines up to this byte, and the files of
    the next line, of which the last one is truncated."""
    shutil.copytree(whole, path)
    manifest = pathlib.Path(path, 'manifest.jsonl')
    data = manifest.read_bytes()
    manifest.unlink()
    pathlib.Path(path, 'manifest.jsonl.partial').write_bytes(data[:size])
    done = data[:size].count(b'\n')
    for file in pathlib.Path(path, 'files').rglob('*.bin'):
        if int(file.name[:6]) > done:
            file.unlink()
        elif int(file.name[:6]) == done and file.parent.name == 'b':
            file.write_bytes(file.read_bytes()[:size % 200])


@each([(), ('--raw',), ('--npy', '--live')])
def an_interrupted_export_is_resumed(options):
    _export_rows()
    run('export', 'out', 'whole', *options)
    whole = files('whole')
    last = len(whole['manifest.jsonl'])
    for size in [*range(0, last, last // (3 if options else 10)), last - 1, last]:
        _interrupt('whole', size)
        run('export', 'out', 'x', '--resume', *options)
        assert files('x') == whole, size
        shutil.rmtree('x')
    _interrupt('whole', last)
    refuse('export', 'out', 'x', *options, says=('x: ', 'interrupted', '--resume'))
    run('export', 'out', 'x', '--resume', *options)
    # It is complete: nothing is written.
    before = [(f, f.stat().st_mtime_ns) for f in sorted(pathlib.Path('x').rglob('*'))]
    assert b'already has 40 datapoints' in run(
        'export', 'out', 'x', '--resume', *options).out
    assert before == [(f, f.stat().st_mtime_ns)
                      for f in sorted(pathlib.Path('x').rglob('*'))]
    for path in 'new', 'empty':
        os.makedirs('empty', exist_ok=True)
        run('export', 'out', path, '--resume', *options)
        assert files(path) == whole


def a_killed_export_is_resumed():
    _export_rows(250)
    run('export', 'out', 'whole')
    whole = files('whole')
    for most in (1, 100, 300):
        job = subprocess.Popen([harness.PROGRAM, 'export', 'out', 'x'],
                               stdout=subprocess.DEVNULL)
        while job.poll() is None:
            try:
                if sum(1 for _ in pathlib.Path('x').rglob('*.bin')) >= most:
                    break
            except FileNotFoundError:
                pass
        job.kill()
        job.wait()
        run('export', 'out', 'x', '--resume')
        assert files('x') == whole, most
        shutil.rmtree('x')


def an_export_of_another_source_is_not_resumed():
    _export_rows()
    run('export', 'out', 'whole')
    size = len(files('whole')['manifest.jsonl'])
    for k, (where, change) in enumerate([
            ('manifest.jsonl.partial', lambda old: old.replace(b'"n": 3', b'"n": 4')),
            ('manifest.jsonl.partial', lambda old: old[:-9] + bytes(9)),
            ('manifest.jsonl.partial', lambda old: old * 3),
            ('spec.json', lambda old: old.replace(b'bytes', b'utf8')),
            ('files/b/000003.bin', lambda old: old[:-1] + b'x'),
            ('files/b/000003.bin', lambda old: old + b'x'),
            ('files/b/000003.bin', lambda old: None),
            ('files/b/000039.png', lambda old: b''),
            ('files/c/000001.bin', lambda old: b'')]):
        _interrupt('whole', size // 2)
        path = pathlib.Path('x', where)
        new = change(path.read_bytes() if path.exists() else b'')
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        if new is not None:
            path.write_bytes(new)
        before = files('x')
        named = 'x/files' if k in (2, 7, 8) else f'{path}: '
        refuse('export', 'out', 'x', '--resume',
               says=(named, 'same source and options', 'remove x'))
        if k < 7:
            assert files('x') == before
        assert not pathlib.Path('x/manifest.jsonl').exists()
        shutil.rmtree('x')
    _interrupt('whole', size // 2)
    before = files('x')
    for options in (['--raw'], ['--npy']):
        refuse('export', 'out', 'x', '--resume', *options, says='same source and')
        assert files('x') == before
    pack([{'n': 1}], 'n=int(4)', 'other')
    refuse('export', 'other', 'x', '--resume', says='x/spec.json')
    assert files('x') == before
    # Nor is a complete one continued.
    shutil.rmtree('x')
    shutil.copytree('whole', 'x')
    pathlib.Path('x/files/b/000009.bin').unlink()
    before = files('x')
    refuse('export', 'out', 'x', '--resume', says=('x/files/b/000009.bin', 'missing'))
    assert files('x') == before
    os.mkdir('mine')
    pathlib.Path('mine/file').write_text('')
    refuse('export', 'out', 'mine', '--resume', says=('mine', 'interrupted'))


def two_exports_do_not_write_to_one_directory():
    import fcntl
    _export_rows()
    run('export', 'out', 'whole')
    _interrupt('whole', 500)
    with open('x/manifest.jsonl.partial', 'rb+') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = files('x')
        refuse('export', 'out', 'x', '--resume', says=('x: ', 'another process'))
        assert files('x') == before
    run('export', 'out', 'x', '--resume')
    assert files('x') == files('whole')


def an_export_that_fails_late_is_kept():
    pack([{'t': 'x' * 200} for _ in range(3000)], 't=utf8')
    path = pathlib.Path('out/refs.bag')
    right = path.read_bytes()
    path.write_bytes(right[:2900] + b'\x63' + right[2901:])
    refuse('export', 'out', 'x', says=('refs.bag', 'x: ', 'kept, --resume continues'))
    assert len(files('x')['manifest.jsonl.partial']) >= 1 << 16
    path.write_bytes(right)
    run('export', 'out', 'x', '--resume')
    run('export', 'out', 'whole')
    assert files('x') == files('whole')


NAMES = ['a', 'A', 'a b', 'con', 'CON', 'x' * 200, 'X' * 200, 'ä', 'é', '-r',
         'a~0', 'manifest.jsonl', 'spec.json', 'file;rm -rf', '%s', "a'b",
         'a.b', 'end.', 'end ', ' ', '💡', '~', '$HOME', 'a,b', 'a=b', '(']


def fields_of_any_name_are_exported_to_safe_files():
    # The names that the writer refuses come from Python: a dataset by hand.
    names = sorted(NAMES + ['a\nb', 'a"b', 'a:b', 'tab\t', 'nul', '..', '.x',
                            '', 'a\\b', 'x*', '\x7f'])
    out = pathlib.Path('out')
    out.mkdir()
    (out / 'spec.json').write_text(json.dumps(dict.fromkeys(names, 'bytes')))
    head = b'\xdc' + struct.pack('>H', len(names)) + bytes(len(names))
    for i, name in enumerate(names + ['refs']):
        blob = head if name == 'refs' else bytes([i]) * 300
        (out / f'{name}.bag').write_bytes(
            blob + struct.pack('<2Q', 0, len(blob)))
    for options in ([], ['--raw']):
        run('export', 'out', 'x', *options)
        row = json.loads(pathlib.Path('x/manifest.jsonl').read_text())
        assert list(row) == names
        paths = [row[name]['file'] for name in names]
        assert len({p.lower() for p in paths}) == len(paths)
        for i, path in enumerate(paths):
            assert path.isascii() and len(path) < 100 and '..' not in path
            assert not set(path) & set(' \\:*?"<>|\n\t;$%\'')
            assert pathlib.Path('x', path).read_bytes() == bytes([i]) * 300
            assert pathlib.Path('x', path).resolve().is_relative_to(
                pathlib.Path('x').resolve())
        subprocess.run(['rm', '-r', 'x'], check=True)
    assert list(run('get', 'out', '0').json) == names
    assert b'\n\n' in run('info', 'out').out
    got = run('get', 'out', '0', '--out', 'd').json
    assert len(files('d')) == len(names) == len(got)


def packed_names_are_exported_and_packed_again():
    names = [n for n in NAMES if n[0] not in '.' and n not in ('con', 'CON')]
    spec = pathlib.Path('spec.json')
    spec.write_text(json.dumps(dict.fromkeys(names, 'utf8[]')))
    write_lines('m.jsonl', [{n: [n, 'x'] for n in names}])
    run('pack', 'm.jsonl', 'out')
    run('export', 'out', 'x', '--raw')
    run('pack', 'x/manifest.jsonl', 'again')
    assert files('again') == files('out')


def many_fields_are_no_problem():
    names = [f'field{i}' for i in range(300)]
    pathlib.Path('spec.json').write_text(
        json.dumps(dict.fromkeys(names, 'int')))
    write_lines('m.jsonl', [dict.fromkeys(names, 7)] * 3)
    run('pack', 'm.jsonl', 'out', '--no-sync', preexec_fn=_few_files)
    assert run('get', 'out', '2', preexec_fn=_few_files).json == \
        dict.fromkeys(names, 7)
    # More than the limit that may be raised.
    run('pack', 'm.jsonl', 'more', '--no-sync', preexec_fn=_few_at_first)
    assert files('more') == files('out')


def _few_files():
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))


def _few_at_first():
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 1024))


def many_shards_are_read_with_few_files():
    def limit():
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    pack([{'n': i} for i in range(400)], 'n=int', 'out', '--shard-length', '1')
    rows = run('get', 'out', '0:400', preexec_fn=limit).lines
    assert rows == [{'n': i} for i in range(400)]
    run('verify', 'out', preexec_fn=limit)
    assert run('info', 'out', '--json', preexec_fn=limit).json['shards'] == 400


def unreadable_files_are_named():
    if os.getuid() != 0 or not pathlib.Path('/usr/bin/setpriv').exists():
        return
    pack(_rows(2), SPEC)
    os.chmod('out/n.bag', 0)
    os.chmod('.', 0o755)
    done = subprocess.run(['setpriv', '--reuid=65534', '--clear-groups',
                           harness.PROGRAM, 'get', 'out', '0'],
                          capture_output=True)
    assert done.returncode in (1, 126, 127)
    if done.returncode == 1:
        assert b'n.bag' in done.stderr, done.stderr


def _blobs(path, field):
    size = pathlib.Path(path, f'{field}.bag').stat().st_size
    data = pathlib.Path(path, f'{field}.bag').read_bytes()
    return (size - struct.unpack('<Q', data[-8:])[0]) // 8 - 1


def equal_values_are_stored_once_per_shard():
    photo = [{'base64': base64.b64encode(bytes([i]) * 3000).decode()} for i in range(4)]
    rows = [{'photo': photo[i // 9], 'question': f'q{i}', 'same': ''} for i in range(36)]
    spec = 'photo=bytes,question=utf8,same=utf8'
    pack(rows, spec, 'all')
    pack(rows, spec, 'once', '--dedup', 'photo,same')
    assert values('once') == values('all')
    assert [_blobs('once', f) for f in ['photo', 'question', 'same']] == [4, 36, 1]
    assert pathlib.Path('once/photo.bag').stat().st_size == 4 * 3000 + 8 * 5
    run('verify', 'once', '--decode')
    # A shard refers to its own blobs only; so does a worker.
    pack(rows, spec, 'shards', '--dedup', 'photo', '--shard-length', '12')
    assert values('shards') == values('all')
    assert [_blobs(f'shards/00000{i}', 'photo') for i in range(3)] == [2, 2, 2]
    for worker in range(2):
        pack(rows, spec, 'workers', '--dedup', 'photo', '--shard-start', worker,
             '--shard-stop', 2)
    assert [_blobs(f'workers/00000{i}', 'photo') for i in range(2)] == [4, 4]
    # What was stored before --resume is stored again, once.
    write_lines('torn', rows[:20])
    with open('torn', 'a') as file:
        file.write('bad\n')
    refuse('pack', 'torn', 'resumed', '--spec', spec, '--dedup', 'photo', says='torn: line 21')
    pack(rows, spec, 'resumed', '--dedup', 'photo', '--resume')
    assert values('resumed') == values('all') and _blobs('resumed', 'photo') == 5
    run('verify', 'resumed')
    # Compressed values are compared as they are stored.
    if 'zstd' in run('--version').out.decode().split():
        pack([{'text': str(i % 3)} for i in range(9)], 'text=zstd(utf8)', 'small', '--dedup',
             'text')
        assert run('get', 'small', ':', 'text').lines == \
            [{'text': t} for t in '012' * 3]
        assert _blobs('small', 'text') == 3
    for options, says in [(['--dedup', 'phot'], 'phot'), (['--dedup', 'photo=1'], 'FIELD'),
                          (['--dedup', 'photo', '--idx'], 'mutually exclusive'),
                          (['--dedup', 'photo', '--for', 'granular-0.22'], 'exclusive')]:
        refuse('pack', 'manifest.jsonl', 'no', '--spec', spec, *options, says=says, code=2)
        assert not os.path.exists('no')
    refuse('pack', 'manifest.jsonl', 'no', '--spec', 'photo=bytes[],question=utf8,same=utf8',
           '--dedup', 'photo', says='sequence', code=2)


def more_values_than_dedup_remembers_are_stored_again():
    if 'BAGS_QUICK' in os.environ:
        return
    rows = [{'n': i % 1100000} for i in range(1200000)]
    pack(rows, 'n=int(4)', 'out', '--dedup', 'n', '--no-sync', '--no-checksum')
    assert 1100000 < _blobs('out', 'n') <= 1200000
    for i in [0, 1099999, 1100000, 1199999]:
        assert run('get', 'out', i, 'n').lines == [{'n': i % 1100000}]
