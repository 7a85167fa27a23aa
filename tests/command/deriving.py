"""bags derive: versions of datasets that share their Bags."""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess

from harness import GOLDEN, each, files, pack, read, refuse, run, wait_for, write_lines

QUICK = 'BAGS_QUICK' in os.environ
CHAINS = 1000 if 'BAGS_SOAK' in os.environ else 30 if QUICK else 60
SPEC = {'id': 'utf8', 'label': 'int(2)', 'words': 'utf8[]'}


def _rows(count, seed=0):
    chance = random.Random(seed)
    return [{'id': f'x{i}', 'label': chance.randrange(10),
             'words': [f'w{chance.randrange(5)}' for _ in range(chance.randrange(4))]}
            for i in range(count)]


def _words(spec):
    return ','.join(f'{name}={type}' for name, type in spec.items())


def _pack(rows, out, *options, spec=SPEC):
    pack(rows, _words(spec), out, *options)


def _values(path):
    """As of the independent reader, for Bags with blobs that no row refers to."""
    def value(blob):
        return blob.get('value', blob.get('hex'))
    return [{k: b['digest'] if b.get('list') and 'items' not in b
             else [value(e) for e in b.get('items', [])] if 'list' in b else value(b)
             for k, b in row.items()} for row in read(path, strict=False)['data']]


def _numbers(path, numbers):
    pathlib.Path(path).write_text(''.join(f'{n}\n' for n in numbers))
    return path


def _same(path, rows):
    assert _values(path) == rows, (_values(path)[:3], rows[:3])
    run('verify', '--decode', path)


def what_was_not_selected_is_not_passed_on_unasked():
    texts = [f'text {i}' if i != 7 else 'SECRET' for i in range(20)]
    _pack([{'id': f'x{i}', 'text': t, 'n': [i] * (i % 3)} for i, t in enumerate(texts)], 'src',
          '--shard-length', 6, spec={'id': 'utf8', 'text': 'utf8', 'n': 'int(4)[]'})
    done = run('derive', 'src', 'out', '--where', "text NOT LIKE '%SECRET%'")
    assert done.out.decode().splitlines()[1:] == [
        'out: shares the files of src; --copy omits the blobs that were not selected']
    rows = _values('out')
    assert len(rows) == 19
    assert run('info', 'out', '--json').json['unreferenced'] == {'blobs': 3, 'bytes': 2 + 6 + 4}
    assert 'unreferenced  12 bytes of 3 blobs' in run('info', 'out').out.decode()
    run('catalogue', 'out')  # as a copy has
    before = files('out')
    for words in [['zip', 'out', 'out.zip'], ['copy', 'out', 'to'], ['copy', 'out/000001', 'to']]:
        refuse(*words, says=['field "', 'that no datapoint refers to; --compact writes', '--whole'])
        refuse(*words, '--compact', '--whole', code=2)
    assert sorted(os.listdir('.')) == ['manifest.jsonl', 'out', 'src']
    assert files('out') == before

    run('zip', 'out', 'out.zip', '--compact')
    run('copy', 'out', 'to', '--compact')
    for path in ['out.zip', 'to']:
        run('verify', '--decode', path)
        assert run('get', path, ':').out == run('get', 'out', ':').out
        about = run('info', path, '--json').json
        assert about['unreferenced'] == {'blobs': 0, 'bytes': 0}
        assert about['checksums'] == about['shards'] == 4
    for data in [*files('to').values(), pathlib.Path('out.zip').read_bytes()]:
        assert b'SECRET' not in data
    run('zip', 'out', 'whole.zip', '--whole')
    assert b'SECRET' in pathlib.Path('whole.zip').read_bytes()
    run('copy', 'out', 'whole', '--whole')
    assert files('whole') == before
    assert sorted(os.listdir('.')) == ['manifest.jsonl', 'out', 'out.zip', 'src', 'to', 'whole',
                                       'whole.zip']
    # All of them are referred to: of the source, what is compact, all fields, repeats, an order.
    run('derive', 'src', 'all', '--drop', 'id', '--rows',
        _numbers('rows', [*range(6), 11, 8, 8, 7, 6, 9, 10, *range(12, 20)]))
    for path in ['src', 'to', 'out.zip', 'all']:
        run('zip', path, 'x.zip')
        run('copy', path, 'x')
        os.remove('x.zip')
        shutil.rmtree('x')
    for out in ['out.zip', 'to']:
        refuse('zip' if out == 'out.zip' else 'copy', 'out', out, '--compact', says='exists')
    refuse('copy', 'out/000000/id.bag', 'x.bag', '--compact', says='a Bag', code=2)
    refuse('copy', 'out', 's3://x/y', '--compact', says='local', code=2)
    os.mkdir('y.zip.compact')
    refuse('zip', 'out', 'y.zip', '--compact', says='y.zip.compact')
    assert os.path.isdir('y.zip.compact')


def some_datapoints_and_fields():
    rows = _rows(50)
    _pack(rows, 'src', '--shard-length', 20, '--checksum')
    before = files('src')
    run('derive', 'src', 'out', '--rows', _numbers('rows', [3, 3, 1, 45, 44]),
        '--drop', 'label', '--rename', 'id=words,words=id', '--no-sync')
    _same('out', [{'words': rows[i]['id'], 'id': rows[i]['words']}
                  for i in [3, 3, 1, 45, 44]])
    # The middle shard is left out, and the numbers closed.
    assert sorted(os.listdir('out')) == ['000000', '000001']
    assert os.path.samefile('src/000002/id.bag', 'out/000001/words.bag')
    assert (pathlib.Path('out/000000/spec.json').read_text() ==
            '{"id": "utf8[]", "words": "utf8"}')
    assert run('info', 'out', '--json').json['checksums'] is not None
    assert files('src') == before
    run('copy', 'out', 'copied', '--whole')
    _same('copied', _values('out'))
    shutil.rmtree('src')
    _same('out', _values('copied'))


def checksums_are_carried_over():
    _pack(_rows(30), 'src', '--shard-length', 10, '--checksum')
    run('derive', 'src', 'out', '--range', '::3', '--rename', 'id=name')
    run('get', 'out', ':', '--check')
    one = pathlib.Path('src/000000/id.bag')
    data = bytearray(one.read_bytes())
    data[1] ^= 1
    one.write_bytes(data)  # the same file
    assert 'checksum mismatch' in run('verify', 'out', code=1).out.decode()
    crc = pathlib.Path('src/000001/id.crc')
    data = bytearray(crc.read_bytes())
    data[0] ^= 1
    crc.write_bytes(data)
    refuse('derive', 'src', 'other', says='damaged')
    assert not os.path.exists('other')


@each([(['--shard-length', 20], []), (['--shard-length', 20], ['--copy']), ([], []), ([], ['--copy'])])
def nothing_selected_makes_an_empty_dataset_and_one_line(case):
    shards, words = case
    _pack(_rows(50), 'src', *shards, '--checksum')
    line = ': nothing selected: made an empty dataset\n'
    for out, chosen in [('where', ['--where', 'label > 100']), ('range', ['--range', '3:3']),
                        ('none', ['--rows', _numbers('numbers', [])])]:
        done = run('derive', 'src', out, *chosen, *words)
        assert (done.out.decode(), done.err) == (out + line, '')
        assert _values(out) == []
        run('verify', '--decode', out)
        about = run('info', out, '--json').json
        assert about['length'] == 0 and about['shards'] == 1 and about['checksums'] == 1
        assert about['fields']['id'] == {'blobs': 0, 'bytes': 0}
        assert os.path.exists(f'{out}/000000') == bool(shards)
    done = run('derive', 'src', 'parts', '--split', 'train=0.999,val=0.001', *words)
    assert done.out.decode().splitlines()[1] + '\n' == 'parts/val' + line
    assert len(_values('parts/train')) == 50 and _values('parts/val') == []
    # What is derived of it, packed after it, and made by workers.
    run('derive', 'where', 'again', *words)
    assert _values('again') == []
    for worker in [1, 0]:
        run('derive', 'src', 'workers', '--where', 'label > 100', '--shard-start', worker,
            '--shard-stop', 2, *words, *(['--shard-length', 3] if words and not shards else []))
    assert _values('workers') == []


def _replace(path):
    os.rename(path, 'old')
    os.rename('next', path)


def _versions():
    """Two datasets, src and next, whose labels differ."""
    for path, first in [('src', 0), ('next', 1)]:
        _pack([{'id': f'{path}{i}', 'label': (first + i) % 2, 'name': f'{(first + i) % 2}'}
               for i in range(20)], path, spec={'id': 'utf8', 'label': 'int(2)', 'name': 'zstd(utf8)'})
    _pack([{'more': 'src'}] * 20, 'more', spec={'more': 'utf8'})
    shutil.copytree('more', 'more2')


@each([['--where', 'label = 1'], ['--where', 'label = 1', '--copy'], ['--add', 'more'],
       ['--split', 'a=0.5,b=0.5', '--by', 'name'], ['--split', 'a=0.5,b=0.5', '--copy']])
def a_dataset_that_is_replaced_after_the_selection_is_refused(words):
    _versions()
    os.mkfifo('not')
    job = subprocess.Popen([*_program(), 'derive', 'src', 'out', '--exclude', 'not', *words],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pipe = []

    def opened():
        try:
            pipe.append(os.open('not', os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True
    wait_for(opened, job)  # what precedes --exclude was computed
    if '--add' in words:
        os.rename('more', 'old')
        os.rename('more2', 'more')
    else:
        _replace('src')
    os.close(pipe[0])
    out, error = job.communicate()
    assert job.returncode == 1 and out == '', (job.returncode, out, error)
    assert 'replaced it' in error, error
    assert not any(name.startswith('out') for name in os.listdir('.'))


@each([[], ['--copy']])
def all_parts_of_a_split_are_of_one_version(words):
    if not shutil.which('strace'):
        print('skipped: no strace')
        return
    _versions()
    environment = {**os.environ, 'ASAN_OPTIONS': os.environ['ASAN_OPTIONS'] + ':detect_leaks=0'}
    job = subprocess.Popen(
        ['strace', '-qq', '-f', '-o', '/dev/null', '-e', 'trace=rename', '-e',
         f'inject=rename:delay_exit=300000:when={1 + len(words)}', *_program(), 'derive', 'src',
         'out', '--split', 'a=0.5,b=0.5', *words], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=environment)
    wait_for(lambda: os.path.exists('out.parts/a/spec.json') or job.poll() is not None)
    _replace('src')
    out, error = job.communicate()
    if job.returncode == 0:  # it was faster
        assert all(row['id'].startswith('src') for part in 'ab' for row in _values(f'out/{part}'))
    else:
        assert 'replaced' in error and out == '', error
        assert not any(name.startswith('out') for name in os.listdir('.'))


def a_split_is_exact_disjoint_and_repeatable():
    rows = _rows(103)
    _pack(rows, 'src', '--shard-length', 10)
    for out in ['a', 'b']:
        run('derive', 'src', out, '--split', 'train=0.9,val=0.1', '--seed', 7)
    train, val = _values('a/train'), _values('a/val')
    assert len(train) == 93 and len(val) == 10
    assert sorted(r['id'] for r in train + val) == sorted(r['id'] for r in rows)
    assert _values('b/train') == train
    run('derive', 'src', 'c', '--split', 'val=0.1', '--seed', 8)
    assert _values('c/val') != val
    for bad in ['train=0.9,val=0.2', 'a=0', 'a=x', 'a', '0=0.5', '../a=0.5', 'a=0.1,a=0.1']:
        refuse('derive', 'src', 'd', '--split', bad, code=2)
    refuse('derive', 'src', 'a', '--split', 'train=1', says='exists')
    # The directory of the parts is not a dataset.
    for words in [['info', 'a'], ['verify', 'a'], ['get', 'a', '0'], ['load', 'a'], ['zip', 'a', 'a.zip'],
                  ['copy', 'a', 'd'], ['derive', 'a', 'd'], ['index', 'a', 'id'], ['checksum', 'a']]:
        refuse(*words, says='a: not a dataset (no spec.json, no shards); it contains the datasets '
               'a/train, a/val')
    refuse('info', '.', says='it contains the dataset src')


def a_stratified_split_has_the_share_of_each_value():
    chance = random.Random(4)
    rows = [{'id': f'x{i}', 'group': chance.choice('aaab'), 'pair': f'{i // 2}'} for i in range(150)]
    _pack(rows, 'src', '--shard-length', 40, spec={name: 'utf8' for name in rows[0]})
    run('derive', 'src', 'out', '--split', 'train=0.8,val=0.2', '--stratify', 'group')
    for name, part in ('train', 0.8), ('val', 0.2):
        found = _values(f'out/{name}')
        assert len(found) == round(150 * part)
        for group in 'ab':
            every = sum(row['group'] == group for row in rows)
            assert abs(sum(row['group'] == group for row in found) - part * every) < 2
    refuse('derive', 'src', 'no', '--split', 'a=0.5', '--stratify', 'grop', says='group')
    refuse('derive', 'src', 'no', '--split', 'a=0.5', '--stratify', 'group', '--by', 'pair',
           says='have equal values of field "pair", but different values of field "group"')
    refuse('derive', 'src', 'no', '--stratify', 'group', code=2)


@each(range(20))
def a_split_keeps_equal_values_together(seed):
    chance = random.Random(seed)
    length = chance.randrange(1, 200)
    names = [f'g{chance.randrange(chance.randrange(1, 60))}' for _ in range(length)]
    rows = [{'id': f'x{i}', 'words': [n, n[1:]], 'group': n}
            for i, n in enumerate(names)]
    _pack(rows, 'src', *(['--shard-length', 30] if seed % 2 else []),
          spec={'id': 'utf8', 'words': 'utf8[]', 'group': 'utf8'})
    parts = {'a': 0.6, 'b': 0.3, 'c': 0.1} if seed % 3 else {'a': 0.5, 'b': 0.2}
    words = ['--split', ','.join(f'{n}={p}' for n, p in parts.items()), '--seed', seed,
             '--drop', 'group', '--by', 'group' if seed % 4 else 'words']
    for out in ['out', 'again']:
        run('derive', 'src', out, *words, '--no-sync')
    found = {n: _values(f'out/{n}') if os.path.exists(f'out/{n}') else [] for n in parts}
    assert {n: _values(f'again/{n}') if os.path.exists(f'again/{n}') else []
            for n in parts} == found
    ids = [row['id'] for part in found.values() for row in part]
    assert len(ids) == len(set(ids))
    groups = [{row['words'][0] for row in part} for part in found.values()]
    assert sum(map(len, groups)) == len(set.union(*groups))
    # A group is in one part, or in none; a part misses by less than a group.
    largest = max(names.count(n) for n in names)
    for name, part in parts.items():
        assert abs(len(found[name]) - part * length) <= largest + 0.5
    if sum(parts.values()) > 0.99:
        assert len(ids) == length
    refuse('derive', 'src', 'bad', '--split', 'a=1', '--by', 'groups', says='group')
    refuse('derive', 'src', 'bad', '--by', 'group', code=2)
    for out in ['src/000007', 'src/7/x']:
        refuse('derive', 'src', out, *words, says='in the directory', code=2)
    assert not os.path.exists('src/000007') and not os.path.exists('src/7')


def sizes_are_as_exact_as_groups_allow():
    groups = ['a'] * 6 + ['b'] * 2 + ['c'] * 2 + ['d'] * 10 + list('efghijklmnopqrstuvwx')
    _pack([{'g': g} for g in groups], 'src', spec={'g': 'utf8'})
    run('derive', 'src', 'out', '--split', 'a=0.5,b=0.5', '--by', 'g', '--no-sync')
    assert [len(_values(f'out/{p}')) for p in 'ab'] == [20, 20]


def lines_are_new_fields():
    rows = _rows(25)
    _pack(rows, 'src', '--shard-length', 10, '--checksum')
    before = files('src')
    added = [{'score': i / 4, 'tags': [f't{i}'] * (i % 3)} for i in range(25)]
    spec = ['--spec', 'score=float32,tags=utf8[]']
    write_lines('add.jsonl', added + ['\n'])
    chosen = [24, 3, 3, 0]
    numbers = _numbers('rows', chosen)
    expected = [{**rows[i], 'score': [added[i]['score']], 'tags': added[i]['tags']}
                for i in chosen]

    run('derive', 'src', 'out', '--copy', '--rows', numbers, '--add', 'add.jsonl', *spec)
    found = run('get', 'out', ':').lines
    assert [{**r, 'score': [r['score']] if not isinstance(r['score'], list)
             else r['score']} for r in found] == expected
    run('derive', 'src', 'linked', '--range', '5:22:3', '--add', 'add.jsonl', *spec,
        '--rename', 'id=name')
    found = run('get', 'linked', ':').lines
    assert [(r['name'], r['tags']) for r in found] == [
        (rows[i]['id'], added[i]['tags']) for i in range(5, 22, 3)]
    assert run('info', 'linked', '--json').json['checksums'] is not None
    run('verify', '--decode', 'linked')
    run('get', 'linked', ':', '--check')
    for worker in [1, 0]:
        run('derive', 'src', 'workers', '--range', '5:22:3', '--add', 'add.jsonl', *spec,
            '--rename', 'id=name', '--shard-start', worker, '--shard-stop', 2)
    assert files('workers') == files('linked')
    run('derive', 'src', 'parts', '--split', 'a=0.5,b=0.5', '--add', 'add.jsonl', *spec)
    for row in run('get', 'parts/a', ':').lines + run('get', 'parts/b', ':').lines:
        assert row['tags'] == added[int(row['id'][1:])]['tags']
    assert files('src') == before
    made = sorted(os.listdir('.'))
    for count in [24, 26, 50]:
        write_lines('wrong.jsonl', (added + added)[:count])
        refuse('derive', 'src', 'bad', '--add', 'wrong.jsonl', *spec,
               says=[f'{count} lines', '25 datapoints'])
    write_lines('wrong.jsonl', added[:7] + [{'score': 'x', 'tags': []}] + added[8:])
    refuse('derive', 'src', 'bad', '--add', 'wrong.jsonl', *spec,
           says=['line 8', 'score'])
    refuse('derive', 'src', 'bad', '--add', 'add.jsonl', says='--spec', code=2)
    refuse('derive', 'src', 'bad', '--spec', 'score=float32', says='--add', code=2)
    refuse('derive', 'src', 'bad', '--add', 'add.jsonl', '--spec', 'id=float32,tags=utf8[]')
    os.remove('wrong.jsonl')
    assert sorted(os.listdir('.')) == made
    os.mkdir('bad.lines')
    refuse('derive', 'src', 'bad', '--add', 'add.jsonl', *spec,
           says=['bad.lines', 'rmdir'])


def fields_of_another_dataset():
    rows = _rows(25)
    _pack(rows, 'src', '--shard-length', 10)
    _pack([{'score': i} for i in range(25)], 'more', '--shard-length', 10,
          spec={'score': 'int(4)'})
    run('derive', 'src', 'out', '--add', 'more', '--range', '5:22:3')
    _same('out', [{**rows[i], 'score': i} for i in range(5, 22, 3)])
    _pack([{'score': i} for i in range(25)], 'other', spec={'score': 'int(4)'})
    refuse('derive', 'src', 'bad', '--add', 'other', says='lengths')
    refuse('derive', 'src', 'bad', '--add', 'src', says='duplicate')


def workers_make_one_dataset():
    rows = _rows(50)
    _pack(rows, 'src', '--shard-length', 8)
    for worker in [1, 0, 2]:
        run('derive', 'src', 'out', '--range', '3:45', '--shard-start', worker,
            '--shard-stop', 3)
    _same('out', rows[3:45])
    refuse('derive', 'src', 'out', '--shard-start', 0, '--shard-stop', 3, says='exists')
    refuse('derive', 'src', 'out', says='already exists')
    _same('out', rows[3:45])


def what_links_cannot_do_needs_a_copy():
    rows = _rows(20)
    _pack(rows, 'src', '--shard-length', 10, '--checksum')
    run('zip', 'src', 'src.zip')
    _split('split', ['a', 'bc', ''])
    numbers = _numbers('rows', [11, 3])

    def both(says, chosen, *words, out='out'):
        refused = refuse('derive', *words, out, says=[says, '--copy'])
        size = int(re.search(r'about (\d+) bytes', refused.err)[1])
        assert not os.path.exists(out)
        run('derive', *words, out, '--copy')
        _same(out, chosen)
        shutil.rmtree(out)
        return size
    whole = both('archive', rows, 'src.zip')
    part = both('across shards', [rows[11], rows[3]], 'src', '--rows', numbers)
    assert 0 < part < whole / 9
    two = both('several', rows + rows, 'src', 'src')
    assert two > 1.9 * whole
    both('split', [{'name': t} for t in ['a', 'bc', '']], 'split')
    if os.stat('/dev/shm').st_dev != os.stat('.').st_dev:
        both('another file system', rows, 'src',
             out=f'/dev/shm/bags-derive-{os.getpid()}/out')
        os.rmdir(f'/dev/shm/bags-derive-{os.getpid()}')


def _split(path, texts):
    """As granular 0.22 has it: an .idx per field, and no refs."""
    os.mkdir(path)
    path = pathlib.Path(path)
    ends = [sum(len(t) for t in texts[:i + 1]) for i in range(len(texts))]
    (path / 'name.bag').write_bytes(''.join(texts).encode())
    (path / 'name.idx').write_bytes(b''.join(e.to_bytes(8, 'little') for e in ends))
    (path / 'spec.json').write_text('{"name": "utf8"}')


def a_copy_has_what_is_referred_to():
    rows = _rows(50)
    _pack(rows, 'src', '--shard-length', 20, '--checksum')
    _pack(rows[:7], 'one', '--no-checksum')
    before = files('src')
    numbers = _numbers('rows', [44, 3, 3, 21, 0])
    chosen = [rows[i] for i in [44, 3, 3, 21, 0]]
    # The longest shard decides, and checksums are those of the source.
    done = run('derive', 'src', 'copy', '--copy', '--rows', numbers, '--drop', 'label',
               '--rename', 'id=words,words=id', '--no-sync')
    assert 'copied 5 datapoints in 1 shard' in done.out.decode()
    assert os.listdir('copy') == ['000000'] and not os.path.exists('copy.derived')
    assert run('info', 'copy', '--json').json['checksums'] is not None
    _same('copy', [{'words': r['id'], 'id': r['words']} for r in chosen])
    assert os.path.getsize('copy/000000/words.bag') <= 6 * 8 + sum(
        len(r['id']) for r in chosen)
    run('derive', 'src', 'plain', '--copy', '--unsharded', '--no-checksum')
    assert not os.path.exists('plain/id.crc')
    _same('plain', rows)
    run('derive', 'src', 'sizes', '--copy', '--shard-size', 600)
    assert len(os.listdir('sizes')) > 2
    _same('sizes', rows)
    # Numbers continue: 50 is the first one of the second dataset.
    run('derive', 'src', 'one', 'both', '--copy', '--rows', _numbers('rows', [56, 2, 50]),
        '--where', "id <> 'x0'", '--shard-length', 1)
    _same('both', [rows[6], rows[2]])
    assert not os.path.exists('both/000000/id.crc')
    assert files('src') == before
    # Damage is found before it gets a new checksum.
    path = pathlib.Path('src/000002/id.bag')
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    refuse('derive', 'src', 'bad', '--copy', says='checksum')
    assert not os.path.exists('bad') and not os.path.exists('bad.derived')
    _pack([{'id': 'a'}], 'other', spec={'id': 'utf8'})
    refuse('derive', 'one', 'other', 'bad', '--copy', says='other: field "')
    for words in [['--shard-length', 3], ['--unsharded'], ['--checksum']]:
        refuse('derive', 'one', 'bad', *words, says=('need', '--copy'), code=2)
    refuse('derive', 'one', 'bad', '--copy', '--unsharded', '--shard-size', 1, code=2)


def a_copy_stores_shared_blobs_once_per_shard():
    rows = [{'id': f'question {i}', 'image': f'image {i // 9}' * 50, 'words': ['w', f'{i // 5}']}
            for i in range(90)]
    spec = {'id': 'utf8', 'image': 'utf8', 'words': 'utf8[]'}
    _pack(rows, 'src', '--shard-length', 30, '--dedup', 'image', spec=spec)
    _pack(rows[:20], 'more', '--dedup', 'image', spec=spec)

    def blobs(path):
        return [int.from_bytes(p.read_bytes()[-8:], 'little') for p in
                sorted(pathlib.Path(path).rglob('image.bag'))]
    stored = [len(f'image {i}' * 50) for i in range(10)]
    run('derive', 'src', 'one', '--copy', '--unsharded', '--shuffle', 7)
    # An image of two shards of the source is stored twice.
    assert blobs('one') == [sum(stored) + stored[3] + stored[6]]
    assert sorted(r['id'] for r in _values('one')) == sorted(r['id'] for r in rows)
    for row in _values('one'):
        assert row == rows[int(row['id'].split()[1])]
    run('derive', 'src', 'same', '--copy')
    assert blobs('same') == blobs('src')
    _same('same', rows)
    run('derive', 'src', 'more', 'both', '--copy', '--shard-length', 45, '--rename',
        'words=image,image=words')
    _same('both', [{'id': r['id'], 'image': r['words'], 'words': r['image']}
                   for r in rows + rows[:20]])
    # Those of a datapoint that comes several times, in any of its shards.
    numbers = [5, 5, 88, 5, 88, 0]
    run('derive', 'src', 'times', '--copy', '--rows', _numbers('rows', numbers),
        '--shard-length', 4)
    _same('times', [rows[i] for i in numbers])
    assert blobs('times') == [stored[0] + stored[9], stored[9] + stored[0]]


def what_reads_datasets_reads_derived_ones_like_copies():
    rows = _rows(200)
    _pack(rows, 'src', '--shard-length', 30, '--checksum')
    numbers = _numbers('rows', [i for i in range(0, 200, 3) for _ in range(1 + i % 2)])
    run('derive', 'src', 'linked', '--rows', numbers, '--rename', 'id=name')
    run('derive', 'src', 'copied', '--rows', numbers, '--rename', 'id=name', '--copy')
    shutil.rmtree('src')
    run('zip', 'linked', 'linked.zip', '--whole')
    run('copy', 'linked', 'again', '--whole')
    for path in ['linked', 'copied', 'linked.zip', 'again']:
        run('verify', '--decode', path)
    words = ['--digest', '--batch', 16, '--epochs', 2, '--seed', 5, '--check']
    digests = [sorted(run('load', path, *words, '--fields', 'name,label').out.splitlines())
               for path in ['linked', 'linked.zip', 'again']]
    assert digests[0] == digests[1] == digests[2] and len(digests[0]) > 10
    # A copy has other shards: its random order is another one.
    for path in ['linked', 'copied']:
        words[-2:] = ['0', '--in-order']
        digests.append(run('load', path, *words, '--fields', 'name,label').out)
    assert digests[3] == digests[4]


def a_shuffle_is_a_function_of_the_seed():
    rows = _rows(50)
    _pack(rows, 'one')
    _pack(rows, 'src', '--shard-length', 20)
    refuse('derive', 'src', 'out', '--shuffle', 1, says='--copy')
    run('derive', 'one', 'linked', '--shuffle', 1)
    run('derive', 'src', 'copied', '--shuffle', 1, '--copy')
    run('derive', 'src', 'other', '--shuffle', 2, '--copy')
    found = _values('linked')
    assert os.path.samefile('one/id.bag', 'linked/id.bag')
    assert found == _values('copied') != _values('other')
    assert found != rows and sorted(r['id'] for r in found) == sorted(
        r['id'] for r in rows)


@each([('linked', []), ('copied', ['--copy', '--shard-length', 2])])
def a_source_that_is_replaced_between_workers_is_noticed_by_its_types(case):
    """And by nothing else: README.md states that."""
    _, words = case
    for name, kind, value in [('one', 'int(1)', 1), ('other', 'int(1)', 2), ('wider', 'int(2)', 3)]:
        pack([{'n': value}] * 9, f'n={kind}', name, '--shard-length', 3)

    def work(worker, source, **options):
        shutil.copytree(source, 'src')
        done = run('derive', 'src', 'out', '--range', '2:', '--shard-start', worker, '--shard-stop', 2,
                   *words, **options)
        shutil.rmtree('src')
        return done
    work(0, 'one')
    work(1, 'other')
    run('verify', 'out')
    assert {row['n'] for row in _values('out')} == {1, 2}
    shutil.rmtree('out')
    work(0, 'one')
    said = 'field "n": type mismatch (int(2), int(1) in '
    if words:
        assert said in work(1, 'wider', code=1).err
    else:
        work(1, 'wider')
        refuse('get', 'out', ':', says=f'out/000001/spec.json: {said}')


def workers_make_the_copy_that_one_process_makes():
    rows = _rows(50)
    _pack(rows, 'src', '--shard-length', 8)
    words = ['--range', '3:45', '--copy', '--shuffle', 5]
    run('derive', 'src', 'alone', *words)
    for worker in [1, 0, 2]:
        run('derive', 'src', 'out', *words, '--shard-start', worker, '--shard-stop', 3)
    assert files('out') == files('alone')
    refuse('derive', 'src', 'out', *words, '--shard-start', 1, '--shard-stop', 3,
           says=['000001', 'write to a new path'])
    assert files('out') == files('alone')
    for bad in [['--shard-size', 100], ['--unsharded']]:
        refuse('derive', 'src', 'bad', '--copy', *bad, '--shard-stop', 3, code=2)


def nothing_is_written_into_a_dataset():
    """Of the source or another, of a shard, through links, from a directory in it."""
    _pack(_rows(6), 'ds', '--shard-length', 2)
    _pack(_rows(6), 'one')
    _pack(_rows(6), 'next/000003', '--no-checksum')
    write_lines('lines', [{'n': 1}])
    os.mkdir('ds/deep')
    os.symlink('ds/deep', 'link')
    before = files('.')
    commands = ['derive one OUT', 'derive one OUT --copy', 'derive ds/000001 OUT',
                'derive one OUT --split a=0.5', 'copy one OUT', 'copy ds/000001 OUT',
                'copy one/id.bag OUT.bag', 'export one OUT', 'zip one OUT.zip',
                'pack lines OUT --spec n=int', 'pack lines OUT.bag', 'import lines OUT',
                'images . OUT', 'get one 0 --out OUT', 'sheet one OUT.png']
    for out in ['ds/x', 'ds/000001/x', 'ds/new/x', 'link/x', 'one/x', './one//x']:
        for command in commands:
            refuse(*command.replace('OUT', out).split(),
                   says='is in the directory of the dataset', code=2)
    assert files('.') == before
    os.chdir('ds/deep')
    refuse('derive', '../../one', 'x', says='is in the directory of the dataset', code=2)
    assert os.listdir('.') == []
    os.chdir('../..')
    # A spec.json by itself, as an export has it, and a number as a name are no dataset.
    run('export', 'one', 'exported')
    run('pack', 'exported/manifest.jsonl', 'exported/again')
    run('derive', 'one', 'next/000004')
    # A writer that has not finished.
    os.rename('one/spec.json', 'one/spec.json.partial')
    refuse('derive', 'ds', 'one/x', says='is in the directory of the dataset one', code=2)


def only_what_a_killed_process_has_left_is_to_be_removed():
    _pack(_rows(6), 'ds', '--shard-length', 2)
    _pack(_rows(6), 'one')
    for path in ['empty', 'home', 'recordings', 'deep/000000/work', 'out', 'x.parts', 'y.lines']:
        os.makedirs(path)
    for path in ['home/thesis.txt', 'recordings/a.bag', 'deep/000000/work/a.bag', 'x.parts/notes',
                 'y.lines/notes', 'home/spec.json', 'file']:
        pathlib.Path(path).write_text('precious')
    for path in ['home', 'recordings', 'deep', '.', 'file', 'ds', 'one', 'empty']:
        for words in [[], ['--copy'], ['--split', 'a=0.5']]:
            for source in ['ds', 'one']:
                said = refuse('derive', source, path, *words).err
                assert 'remove it' not in said, said
                assert ('already exists' in said) or path in ('.', 'ds', 'one'), said
    said = refuse('derive', 'one', 'x', '--split', 'a=0.5', says='x.parts: already exists').err
    assert 'remove it' not in said
    # What a derivation has left.
    for source in ['ds', 'one']:
        run('derive', source, 'left')
        for spec in pathlib.Path('left').rglob('spec.json'):
            os.rename(spec, f'{spec}.derived')
            break
        refuse('derive', source, 'left', says='left: already exists; '
               'if an earlier run was killed, remove it')
        os.rename('left', 'to.derived')
        refuse('derive', source, 'to', '--copy', says='to.derived: already exists; if an earlier')
        shutil.rmtree('to.derived')


def hostile_sources_and_destinations():
    _pack(_rows(20), 'src', '--shard-length', 10)
    before = files('src')
    refuse('derive', 'src', 'src', says='exists')
    refuse('derive', 'src', 'src/000002', says='in the directory', code=2)
    refuse('derive', 'src', 'out', '--rename', 'id=refs', says='reserved')
    refuse('derive', 'src', 'out', '--rename', 'id=../x', says='field')
    refuse('derive', 'src', 'out', '--rename', 'id=a,id=b', says='duplicate', code=2)
    refuse('derive', 'src', 'out', '--rename', 'id=label', says='duplicate')
    refuse('derive', 'src', 'out', '--drop', 'ids', says='did you mean')
    refuse('derive', 'src', 'out', '--rows', _numbers('rows', [20]), says='out of range')
    refuse('derive', 'nothing', 'out', says='nothing')
    assert files('src') == before and not os.path.exists('out')
    # An unfinished shard, and what a killed derivation leaves.
    os.rename('src/000001/spec.json', 'src/000001/spec.json.partial')
    refuse('derive', 'src', 'out', says='unfinished')
    os.rename('src/000001/spec.json.partial', 'src/000001/spec.json')
    run('derive', 'src', 'out')
    os.rename('out/000001/spec.json', 'out/000001/spec.json.derived')
    refuse('get', 'out', '0', says='unfinished')
    refuse('recover', 'out')
    refuse('derive', 'src', 'out', says='remove it')
    assert files('src') == before
    # A link is followed.
    shutil.copy('src/000000/id.bag', 'elsewhere.bag')
    os.remove('src/000000/id.bag')
    os.symlink('../../elsewhere.bag', 'src/000000/id.bag')
    run('derive', 'src', 'followed')
    assert not os.path.islink('followed/000000/id.bag')


def _golden():
    found = []
    for path in sorted(GOLDEN.rglob('*')):
        if path.name == 'data' and (path / 'refs.bag').is_file():
            found.append(str(path.relative_to(GOLDEN)))
    return found


@each(_golden())
def golden_datasets(name):
    shutil.copytree(GOLDEN / name, 'src')
    if subprocess.run([*_program(), 'verify', 'src'], capture_output=True).returncode:
        return  # damaged on purpose
    rows = _values('src')
    run('derive', 'src', 'out', '--range', '::2')
    assert _values('out') == rows[::2]
    run('verify', 'out')

    def layout(path):
        data = path.read_bytes()
        start = int.from_bytes(data[-8:], 'little') if data else 0
        return data and data[start:start + 8] == bytes(8)
    if rows[::2] and all(layout(p) for p in pathlib.Path('src').glob('*.bag')):
        assert layout(pathlib.Path('out/refs.bag'))
    if rows[::2] and not any(layout(p) for p in pathlib.Path('src').glob('*.bag')):
        assert not layout(pathlib.Path('out/refs.bag'))


def _program():
    import harness
    return [harness.PROGRAM]


def _copy_step(chance, step, shards, spec):
    """Any datapoints of a dataset, or of it and itself, in any order and shards."""
    froms = [f'v{step}'] * chance.randrange(1, 3)
    rows = [row for s in shards for row in s] * len(froms)
    size = len(rows)
    chosen = chance.choices(range(size), k=chance.randrange(1, 40))
    words = ['--rows', _numbers('rows', chosen)]
    rows = [rows[i] for i in chosen]
    sharded = os.path.exists(f'v{step}/000000')
    length = max(map(len, shards)) if sharded else len(rows)
    if chance.random() < 0.4:
        length = chance.randrange(1, 30)
        words += ['--shard-length', length]
    elif chance.random() < 0.5:
        length = len(rows)
        words += ['--unsharded']
    if chance.random() < 0.3:
        words += [chance.choice(['--checksum', '--no-checksum'])]
    if chance.random() < 0.3:
        name = f'n{step}'
        more = [chance.randrange(100) for _ in range(size)]
        write_lines(f'add{step}', [{name: n} for n in more])
        words += ['--add', f'add{step}', '--spec', f'{name}=int(4)']
        rows = [{**row, name: more[i]} for row, i in zip(rows, chosen)]
        spec[name] = 'int(4)'
    run('derive', *froms, f'v{step + 1}', '--copy', *words, '--no-sync')
    _same(f'v{step + 1}', rows)
    return [rows[i:i + length] for i in range(0, len(rows), length)]


def _chain(seed):
    """A random chain of derivations, of the dataset and of lists of its rows."""
    chance = random.Random(seed)
    sharded = chance.random() < 0.7
    length = chance.randrange(1, 60)
    rows = _rows(length, seed)
    options = ['--shard-length', chance.randrange(1, 25)] if sharded else []
    if chance.random() < 0.5:
        options.append('--checksum')
    _pack(rows, 'v0', *options)
    size = options[1] if sharded else length
    shards = [rows[i:i + size] for i in range(0, length, size)]
    before = files('v0')
    spec = dict(SPEC)
    for step in range(chance.randrange(1, 5)):
        if chance.random() < 0.3:
            shards = _copy_step(chance, step, shards, spec)
            continue
        words = []
        if chance.random() < 0.3:
            other = [[{f'n{step}': chance.randrange(100)} for _ in s] for s in shards]
            sharded = os.path.exists(f'v{step}/000000')
            if chance.random() < 0.5:
                write_lines(f'add{step}', [row for part in other for row in part])
                words += ['--spec', f'n{step}=int(4)']
            for i, part in enumerate([] if words else other):
                _pack(part, 'shard', *(o for o in options if o == '--checksum'),
                      spec={f'n{step}': 'int(4)'})
                out = f'add{step}' + (f'/{i:06}' if sharded else '')
                os.makedirs(os.path.dirname(out) or '.', exist_ok=True)
                os.rename('shard', out)
            words += ['--add', f'add{step}']
        add = other if words else [[{} for _ in s] for s in shards]
        starts = [sum(map(len, shards[:i])) for i in range(len(shards))]
        chosen = [chance.choices(range(len(s)), k=chance.randrange(len(s) + 1))
                  if chance.random() < 0.6 else list(range(len(s))) for s in shards]
        if not any(chosen):
            chosen[0] = [0]
        _numbers('rows', [starts[i] + k for i, c in enumerate(chosen) for k in c])
        words += ['--rows', 'rows']
        kept = [f for f in sorted(spec) if chance.random() < 0.8]
        if chance.random() < 0.5:
            words += ['--fields', ','.join(kept)] if kept else []
            kept = kept or sorted(spec)
        else:
            drop = [f for f in sorted(spec) if f not in kept]
            words += ['--drop', ','.join(drop)] if drop else []
        names = list(kept)
        if chance.random() < 0.4:
            chance.shuffle(names)
            pairs = [f'{a}={b}' for a, b in zip(kept, names) if a != b]
            words += ['--rename', ','.join(pairs)] if pairs else []
        run('derive', f'v{step}', f'v{step + 1}', *words, '--no-sync')
        shards = [[{**{b: s[k][a] for a, b in zip(kept, names)}, **add[i][k]}
                   for k in c] for i, (s, c) in enumerate(zip(shards, chosen))]
        shards = [s for s in shards if s]
        spec = {b: spec[a] for a, b in zip(kept, names)}
        spec.update({f: 'int(4)' for s in add for r in s for f in r})
        _same(f'v{step + 1}', [row for s in shards for row in s])
    assert files('v0') == before


@each(range(0, CHAINS, 10))
def chains_equal_the_same_operations_on_lists(first):
    for seed in range(first, first + 10):
        os.mkdir(f'chain{seed}')
        os.chdir(f'chain{seed}')
        _chain(seed)
        os.chdir('..')


@each([[], ['--copy', '--shard-length', '4'], ['--add', 'add', '--spec', 'n=int(4)'],
       ['--split', 'a=0.5,b=0.5'], ['--split', 'a=0.5,b=0.5', '--copy']])
def a_kill_at_any_step_leaves_nothing_or_all(words):
    if QUICK or not shutil.which('strace'):
        print('skipped: no strace' if not QUICK else 'skipped: in make check')
        return
    rows = _rows(12)
    _pack(rows, 'src', '--shard-length', 5, '--checksum')
    write_lines('add', [{'n': i} for i in range(12)])
    before = files('src')
    calls = 'mkdir,linkat,pwrite64,rename,unlink,rmdir,close'
    words = [*words, '--no-sync']
    outs = ['out/a', 'out/b'] if '--split' in words else ['out']
    stride = 1 if 'BAGS_SOAK' in os.environ else 4
    # LeakSanitizer cannot work in a process that strace controls.
    environment = {**os.environ, 'ASAN_OPTIONS': os.environ['ASAN_OPTIONS'] + ':detect_leaks=0'}
    complete, step = 0, -random.randrange(stride)
    while complete < 1:
        step += stride
        done = subprocess.run(
            ['strace', '-qq', '-f', '-o', '/dev/null', '-e', f'trace={calls}', '-e',
             f'inject={calls}:signal=KILL:when={step}', *_program(), 'derive', 'src',
             'out', '--range', '1:11', *words], capture_output=True, env=environment)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        complete += done.returncode == 0
        read = [subprocess.run([*_program(), 'get', out, ':', 'id'], capture_output=True)
                for out in outs]
        if all(r.returncode == 0 for r in read):
            assert sorted(json.loads(line)['id'] for r in read
                          for line in r.stdout.splitlines()) == sorted(
                              r['id'] for r in rows[1:11])
        else:
            assert all(r.returncode for r in read), words
            # Each call names the next directory to be removed.
            for _ in range(3):
                done = subprocess.run([*_program(), 'derive', 'src', 'out', *words],
                                      capture_output=True, text=True)
                if done.returncode == 0:
                    break
                assert 'remove it' in done.stderr or 'rmdir' in done.stderr, done.stderr
                shutil.rmtree(done.stderr.split(': ')[1])
            assert done.returncode == 0
        for path in pathlib.Path('.').glob('out*'):
            shutil.rmtree(path)
        assert files('src') == before
    assert step > 40
