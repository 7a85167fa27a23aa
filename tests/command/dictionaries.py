"""Fields of zstd with dictionaries, NAME.dict next to NAME.bag: what another writer has
made is read everywhere, and the dictionary is where its blobs are."""
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time

import harness
from harness import HANG, PATIENT, each, files, has_codec, has_sql, has_urls, refuse, run, write_lines
from server import Server

sys.path.append(str(harness.ROOT / 'tests/lib'))

SPEC = {'a': 'zstd(array,float32,4)', 'id': 'int(4)', 'm': 'zstd(msgpack)', 'n': 'zstd(int)',
        's': 'zstd(utf8)[]', 't': 'zstd(utf8)'}
LENGTH, SHARD = 360, 120


def _row(i):
    return {'a': [i, i / 2, -i, 1.5], 'id': i, 'm': {'id': i, 'name': f'name {i % 7}'},
            'n': i * 1000, 's': [f'item {i * k} of a list of items' for k in range(i % 4)],
            't': f'the words of datapoint number {i * 7919 % 5000}, and some others: {i % 9}'}


ROWS = [_row(i) for i in range(LENGTH)]


def _text(text):
    data = text.encode()
    return (bytes([0xa0 + len(data)]) if len(data) < 32 else b'\xd9' + bytes([len(data)])) + data


def _blobs(row, transpose):
    m = row['m']
    number = harness.reference.pack_uint(m['id'])
    size = (row['n'].bit_length() + 7) // 8
    n = row['n'].to_bytes(size, 'little')
    return {'a': transpose(struct.pack('<4f', *row['a']), 4),
            'id': struct.pack('<I', row['id']),
            'm': b'\x82' + _text('id') + number + _text('name') + _text(m['name']),
            'n': n + b'\0' if n and n[-1] & 0x80 else n,
            's': [item.encode() for item in row['s']], 't': row['t'].encode()}


def _write(path='ds', shards=3, own=False, early=5, number=None):
    """False if the command, or this Python, has no zstd. own: each shard has dictionaries
    of its own, as of several workers, in which a number may be the same."""
    formats = run('--version').out.decode().split()
    try:
        import zstdref
    except ImportError:
        return False
    if 'zstd' not in formats or not has_codec('msgpack'):
        return False
    rows = [_blobs(row, zstdref.transpose) for row in ROWS]
    length = LENGTH // shards
    dictionaries = {}
    for i in range(shards):
        if own or not i:
            some = rows[i * length:(i + 1) * length] if own else rows
            dictionaries = {name: zstdref.train([row[name] for row in some] if name != 's'
                                                else [item for row in some for item in row['s']])
                            for name in ('a', 'm', 's', 't')}
        if number:
            dictionaries = {name: own[:4] + struct.pack('<I', number) + own[8:]
                            for name, own in dictionaries.items()}
        zstdref.write_shard(f'{path}/{i:06}' if shards > 1 else path, SPEC,
                            rows[i * length:(i + 1) * length], dictionaries, early)
    return True


def _same(path, rows=ROWS, **options):
    shown = run('get', path, ':', '--lists', **options).lines
    assert shown == rows, next((got, row) for got, row in zip(shown, rows) if got != row)


def _frames(path):
    """The frames of every Bag of a field of zstd, each with its dictionary."""
    import zstdref
    for bag in sorted(pathlib.Path(path).rglob('*.bag')):
        spec = json.loads((bag.parent / 'spec.json').read_text())
        if spec.get(bag.stem, '').startswith('zstd('):
            found = bag.with_suffix('.dict')
            own = found.read_bytes() if found.exists() else None
            data = zstdref.bagref.Bag(bag)
            yield bag.stem, [(data[i], own) for i in range(data.n)]


def _flip(path):
    data = bytearray(pathlib.Path(path).read_bytes())
    data[len(data) // 2] ^= 1
    pathlib.Path(path).unlink()
    pathlib.Path(path).write_bytes(data)


@each([(1, False, None), (3, False, None), (3, True, None), (3, True, 4711)])
def every_command_reads_the_values(case):
    shards, own, number = case
    if not _write(shards=shards, own=own, number=number):
        return
    _same('ds')
    report = run('verify', 'ds', '--decode').out.decode()
    assert 'dict' not in report, report
    assert run('info', 'ds', '--json').json['length'] == LENGTH
    assert run('get', 'ds', '7', 's[1]').lines == [{'s': ROWS[7]['s'][1]}]
    assert run('get', 'ds', '200:300:7', 't', 'n').lines == [
        {key: row[key] for key in ('t', 'n')} for row in ROWS[200:300:7]]
    if has_sql():
        found = run('sql', 'ds', 'SELECT t, n FROM data WHERE n >= 100000 AND t LIKE \'%: 3\'',
                    '--json').lines
        assert found == [{key: row[key] for key in ('t', 'n')} for row in ROWS
                         if row['n'] >= 100000 and row['t'].endswith(': 3')] != []
        refuse('sql', 'ds', 'SELECT m FROM data', says=['field "m"', 'needs a dictionary'])
    run('index', 'ds', 't')
    assert run('get', 'ds', '--key', f't={ROWS[333]["t"]}').lines[0]['id'] == 333
    fields = 'a=array(float32,4),id=int(4),n=int,s=utf8[],t=utf8'
    harness.pack([{key: row[key] for key in row if key != 'm'} for row in ROWS], fields,
                 'plain', *(['--shard-length', LENGTH // shards] if shards > 1 else []))
    words = ['--batch', '16', '--digest', '--fields', 'a,id,n,s,t', '--threads', '2']
    assert run('load', 'ds', *words).out == run('load', 'plain', *words).out != b''


def a_dictionary_that_is_not_that_of_its_bag_is_an_error():
    if not _write(own=True):
        return
    for path in pathlib.Path('ds').glob('*/*.crc'):
        path.unlink()
    first, second = (pathlib.Path(f'ds/00000{i}/t.dict') for i in (0, 1))
    own = first.read_bytes()
    for other, words in ((None, '.dict'), (second.read_bytes(), 'dictionary'),
                         (b'', 'dict'), (own[:40], 'dict'), (b'x' * 5000, 'dict')):
        first.unlink()
        if other is not None:
            first.write_bytes(other)
        shown = run('get', 'ds', '50', 't', code=1).lines[0]['t']
        assert words in shown['error'], (words, shown)
        assert run('get', 'ds', '0', 't').lines == [{'t': ROWS[0]['t']}]  # it needs none
        assert run('get', 'ds', '150', 't').lines == [{'t': ROWS[150]['t']}]
        assert 'dict' in run('verify', 'ds', '--decode', code=1).out.decode()
        if not first.exists():
            first.touch()
    first.write_bytes(own)
    _same('ds')


def _sent(server):
    """Dictionaries, but not the byte that shows whether they are the same as before."""
    return sorted(path for path, status, size in server.answers
                  if path.endswith('.dict') and status in (200, 206) and size > 1)


@each(['', 'zip', 'tar', 'http', 'cache', 'http zip'])
def wherever_it_is(how):
    if not _write('site/ds', own=True):
        return
    if 'zip' in how:
        run('zip', 'site/ds', 'site/ds.zip')
    if how == 'tar':
        with tarfile.open('site/ds.tar', 'w') as tar:
            tar.add('site/ds', '.')
    path = f'site/ds.{how}' if how in ('zip', 'tar') else 'site/ds'
    if 'http' not in how and how != 'cache':
        _same(path)
        run('copy', path, 'out')
        assert files('out') == files('site/ds')
        return
    if not has_urls():
        return
    words = ['--cache', 'cache'] if how == 'cache' else []
    with Server('site', index=True) as server:
        url = f'{server.url}/ds{".zip" if "zip" in how else ""}'
        for again in range(2):
            shown = run('get', url, ':', '--lists', *words, env=PATIENT).lines
            assert shown == ROWS
            sent = _sent(server)
            # Each once: of three shards, of four fields. n has none.
            most = 0 if 'zip' in how or (again and words) else 12
            assert len(sent) == len(set(sent)) == most, (again, server.answers)
            del server.answers[:]
        run('copy', url, 'out', *words, env=PATIENT)
    assert files('out') == files('site/ds')


def a_dictionary_is_requested_with_its_bag():
    """And the checksums, with which it is compared: all before the Bag is answered."""
    if not _write('site/ds', own=True) or not has_urls():
        return
    run('checksum', 'site/ds')
    for words, names in ((['100', 'id'], ''), (['100', 'n'], ''), (['2', 't'], 't'),
                         (['100', 't'], 't'), (['[100,101,102]', 't', 'a'], 'at')):
        missing = {f'/ds/000000/{name}.{ending}' for name in names for ending in ('dict', 'crc')}
        late = []

        def fault(handler, number):
            missing.discard(handler.path)
            end = time.monotonic() + HANG
            while handler.path.endswith('.bag') and handler.path[-5] in names and missing:
                if time.monotonic() > end:
                    late.extend(missing)
                    break
                time.sleep(0.01)

        with Server('site', index=True, fault=fault) as server:
            run('get', server.url + '/ds', *words, env=PATIENT)
            assert _sent(server) == [f'/ds/000000/{name}.dict' for name in names]
            assert not late


@each([(403, 'text/plain'), (404, 'text/html'), (200, 'text/html'), (200, 'application/json')])
def verify_needs_what_the_blobs_need(case):
    """A server may answer a file that is missing in many ways."""
    status, kind = case
    if not _write('site/ds', own=True) or not has_urls():
        return
    run('checksum', 'site/ds')

    def fault(handler, number):
        return not handler.local.is_file() and handler.answer(
            status, b'[]', Content_Type=kind)

    with Server('site', fault=fault) as server:
        for words in [], ['--decode']:
            del server.log[:]
            run('verify', server.url + '/ds', *words, env=PATIENT)
            asked = {path for _, path, _ in server.log if path.endswith('.dict')}
            assert asked == {f'/ds/00000{i}/{name}.dict' for i in range(3) for name in 'amst'}


def verify_finds_frames_without_their_dictionary():
    """Also without checksums, and if not all values are decoded."""
    if not _write(own=True):
        return
    first, second = (pathlib.Path(f'ds/00000{i}/t.dict') for i in (0, 1))
    own, other = first.read_bytes(), second.read_bytes()
    for made, says in ((None, 't.dict: cannot open'), (other, 'that needs another'),
                       (b'x' * 5000, 't.dict: not a dictionary'), (b'', 't.dict: empty'),
                       (own + bytes(1 << 24), 't.dict: too large')):
        first.unlink()
        if made is not None:
            first.write_bytes(made)
        shown = run('verify', 'ds', code=1).out.decode()
        assert f'ds/000000/t.bag: blob 119: ' in shown and says in shown and ': 1 fault;' in shown
        assert says in run('verify', 'ds', '--decode', code=1).out.decode()
        assert says in run('get', 'ds', '50', 't', code=1).lines[0]['t']['error']
        for words in (['export', 'ds', 'out'], ['load', 'ds', '--fields', 't', '--digest'],
                      ['sql', 'ds', "SELECT id FROM data WHERE t LIKE '%x'"],
                      ['index', 'ds', 't'], ['derive', 'ds', 'none', '--split', 'a=1', '--by', 't']):
            if words[0] != 'sql' or has_sql():
                refuse(*words, says=says)
        shutil.rmtree('out', ignore_errors=True)
        if made is None:
            first.touch()
    first.write_bytes(own)
    run('verify', 'ds')


def a_copy_that_was_interrupted_is_continued():
    if not _write('site/ds'):
        return
    if not shutil.which('strace') or 'BAGS_QUICK' in os.environ:
        return
    environment = {**os.environ, 'ASAN_OPTIONS': os.environ['ASAN_OPTIONS'] + ':detect_leaks=0'}
    calls, step, complete = 'pwrite64,rename,renameat2,fsync', 1, False
    while not complete:
        done = subprocess.run(
            ['strace', '-qq', '-f', '-o', '/dev/null', '-e', f'trace={calls}', '-e',
             f'inject={calls}:signal=KILL:when={step}', harness.PROGRAM, 'copy', 'site/ds', 'out'],
            capture_output=True, env=environment)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        complete = done.returncode == 0
        if not complete:
            run('get', 'out', '0', code=1)
            if step % 2:
                run('copy', 'site/ds', 'out')
                assert files('out') == files('site/ds')
                shutil.rmtree('out')
        step += 5
    assert files('out') == files('site/ds') and step > 20


def a_dataset_is_copied_to_a_store_and_back():
    if not _write() or not has_urls():
        return
    os.makedirs('store/bucket')
    with Server('store', s3=True) as server:
        environment = {**PATIENT, **server.environment}
        run('copy', 'ds', 's3://bucket/ds', env=environment)
        assert files('store/bucket/ds') == files('ds')
        _same('s3://bucket/ds', env=environment)
        run('copy', 's3://bucket/ds', 'out', env=environment)
    assert files('out') == files('ds')


def a_bag_is_copied_with_its_dictionary():
    if not _write(shards=1):
        return
    run('copy', 'ds/t.bag', 'other.bag')
    assert pathlib.Path('other.dict').read_bytes() == pathlib.Path('ds/t.dict').read_bytes()
    import zstdref
    bag = zstdref.bagref.Bag(pathlib.Path('other.bag'))
    assert zstdref.content(bag[50], pathlib.Path('other.dict').read_bytes()).decode() == ROWS[50]['t']


@each([(False, None), (True, None), (True, 99)])
def derived_datasets_have_the_dictionaries_of_their_bags(case):
    checksums, number = case
    if not _write(own=True, number=number):
        return
    if checksums:
        run('checksum', 'ds')
    check = ['--check'] if checksums else []
    numbers = [3, 1, 50, 130, 359]
    write_lines('rows', [f'{n}\n' for n in numbers])
    run('derive', 'ds', 'some', '--rows', 'rows', '--rename', 't=s,s=t', '--drop', 'm')
    _same('some', [{**{key: ROWS[i][key] for key in ('a', 'id', 'n')}, 's': ROWS[i]['t'],
                    't': ROWS[i]['s']} for i in numbers])
    run('verify', '--decode', 'some')
    run('get', 'some', ':', *check)
    for new, old in (('000000/s.dict', '000000/t.dict'), ('000001/t.dict', '000001/s.dict')):
        assert os.stat(f'some/{new}').st_ino == os.stat(f'ds/{old}').st_ino
    assert not list(pathlib.Path('some').glob('*/m.*'))
    run('derive', 'ds', 'parts', '--split', 'a=0.8,b=0.2')
    shown = run('get', 'parts/a', ':', '--lists').lines + run('get', 'parts/b', ':', '--lists').lines
    assert sorted(shown, key=lambda row: row['id']) == ROWS
    run('derive', 'ds', 'less', '--fields', 'id')
    run('derive', 'ds', 'others', '--drop', 'id')
    run('derive', 'less', 'more', '--add', 'others')
    _same('more')
    # Damage is not passed on as sound.
    shutil.copytree('ds', 'damaged')
    _flip('damaged/000001/t.dict')
    if checksums:
        for options in (['--drop', 'm'], ['--copy']):
            refuse('derive', 'damaged', 'none', *options, says='000001/t.crc')
        refuse('get', 'damaged', '200', 't', '--check', says='000001/t.crc')
    # Whatever fails leaves nothing.
    refuse('derive', 'ds', 'none/out', '--rows', write_lines('bad', ['999\n']),
           says='out of range')
    pathlib.Path('ds/000001/t.bag').unlink()
    refuse('derive', 'ds', 'none', '--where', 'id >= 0', code=1, says='t.bag')
    assert not list(pathlib.Path('.').glob('none/**/*.dict'))
    shutil.rmtree('ds')
    _same('more')


def a_copy_has_no_blob_next_to_another_dictionary():
    if not _write('one', own=True, number=5) or not _write('two', shards=1, number=5):
        return
    for path in ('one', 'two'):
        run('checksum', path)
    import zstdref
    run('derive', 'one', 'two', 'all', '--copy', '--shuffle', '1', '--shard-length', '250')
    order = [row['id'] for row in run('get', 'all', ':', 'id').lines]
    assert sorted(order) == sorted(2 * list(range(LENGTH)))
    _same('all', [ROWS[i] for i in order])
    run('verify', '--decode', 'all')
    for _, frames in _frames('all'):
        for frame, dictionary in frames:
            zstdref.content(frame, dictionary)
    # The same, without a shard for each of the dictionaries.
    run('derive', 'one', 'single', '--copy', '--unsharded', '--range', '100:300')
    _same('single', ROWS[100:300])


def equal_values_are_equal_in_all_shards():
    """Their frames differ: in each shard, and of early blobs."""
    if not _write(own=True):
        return
    run('derive', 'ds', 'parts', '--split', 'a=0.5,b=0.5', '--by', 'm')
    names = [{json.dumps(row['m']['name'] and row['m']) for row in run(
        'get', f'parts/{part}', ':', 'm').lines} for part in 'ab']
    assert not names[0] & names[1]
    import zstdref
    rows = [{'t': f'some text, {i % 2}, some text, and some more of it'.encode()}
            for i in range(200)]
    for i in range(2):
        own = zstdref.train([row['t'] + bytes([j, i]) for j, row in enumerate(rows)])
        zstdref.write_shard(f'twice/{i:06}', {'t': 'zstd(utf8)'}, rows, {'t': own}, early=3)
    run('derive', 'twice', 'halves', '--split', 'a=0.5,b=0.5', '--by', 't')
    values = [{row['t'] for row in run('get', f'halves/{part}', ':').lines} for part in 'ab']
    assert [len(of) for of in values] == [1, 1] and values[0] != values[1], values


@each([(), ('--raw',), ('--npy',), ('--lists',)])
def what_is_exported_needs_no_dictionary(options):
    if not _write(own=True):
        return
    import zstdref
    run('export', 'ds', 'out', *options)
    for path in pathlib.Path('out').rglob('*.zst'):
        zstdref.content(path.read_bytes())
    run('export', 'ds', 'out', *options, '--resume')
    run('pack', 'out/manifest.jsonl', 'again')
    _same('again')
    run('verify', '--decode', 'again')


def a_blob_in_a_file_of_its_own_needs_no_dictionary():
    if not _write():
        return
    import zstdref
    frame = run('get', 'ds', '50', 't', '--raw').out
    own = pathlib.Path('ds/000000/t.dict').read_bytes()
    assert zstdref.content(frame, own).decode() == ROWS[50]['t']
    pathlib.Path('frame').write_bytes(frame)
    write_lines('rows', [{'t': {'file': 'frame'}}])
    refuse('pack', 'rows', 'new', '--spec', 't=zstd(utf8)', says=['dictionary'])
    shown = run('get', 'ds', '50:52', 't', 's[1:3]', '--out', 'files').lines
    for row, i in zip(shown, (50, 51)):
        assert zstdref.content(pathlib.Path(row['t']['file']).read_bytes()).decode() == ROWS[i]['t']
        assert [zstdref.content(pathlib.Path(item['file']).read_bytes()).decode()
                for item in row['s']] == ROWS[i]['s'][1:3]


def a_folder_of_images_may_have_them():
    if not has_codec('png'):
        return
    png = (harness.GOLDEN.parent / 'photos/china.jpg').read_bytes()
    os.makedirs('folder/x')
    for name in ('a.jpg', 'b.dict', 'c.bag'):
        pathlib.Path(f'folder/x/{name}').write_bytes(png)
    run('images', 'folder', 'out')
    assert len(run('get', 'out', ':').lines) == 1


def _records(count=9000):
    return [{'i': i, 't': f'{{"id": {i * 7919 % 5000}, "name": "the name of number {i % 900}"}}'}
            for i in range(count)]


@each([(1000, 1000), (5000, 1000), (6000, 2500), (6000, None)])
def small_shards_of_documents_have_dictionaries(case):
    """With the dictionaries."""
    length, shard = case
    if not _write('foreign'):
        return
    rows = [{'t': json.dumps({
        'id': i, 'user': f'name{i * 7919 % 1000}', 'time': f'2026-{i % 12 + 1:02}-{i % 28 + 1:02}',
        'event': ('click', 'purchase')[i % 3 == 0], 'price': i * 104729 % 100000 / 100,
        'tags': [f'tag{i * 31 % 40}', f'tag{i * 17 % 40}'], 'seen': i % 5 > 0,
        'country': ('DE', 'FR')[i % 2], 'ms': i * 15485863 % 10 ** 8})} for i in range(length)]
    write_lines('rows', rows)
    run('pack', 'rows', 'ds', '--spec', 't=zstd(utf8)', '--flush-seconds', 86400,
        *(['--shard-length', shard] if shard else []))
    size, stored, needing = sum(len(row['t']) for row in rows), 0, 0
    for path in pathlib.Path('ds').rglob('t.dict'):
        stored += path.stat().st_size
    import zstdref
    for _, frames in _frames('ds'):
        stored += sum(len(frame) for frame, _ in frames)
        needing += sum(zstdref.number(frame) > 0 for frame, _ in frames)
    assert size > 1.7 * stored and needing == length, (size, stored, needing)
    assert run('get', 'ds', ':').lines == rows
    run('verify', 'ds', '--decode')
    found = run('info', 'ds', '--ratio', 't', '--json').json
    blobs = sum(len(frame) for _, frames in _frames('ds') for frame, _ in frames) / length
    assert abs(found['with_dictionary'] / found['blobs'] / blobs - 1) < 0.05, (found, blobs)


def pack_makes_a_dictionary_or_takes_one():
    if not _write('foreign'):
        return
    import zstdref
    rows, spec = _records(), 'i=int(4),t=zstd(utf8)'
    write_lines('rows', rows)
    words = ['pack', 'rows', '--spec', spec, '--no-sync', '--flush-seconds', 86400]
    run(*words, 'own')
    frames = next(_frames('own'))[1]
    assert [zstdref.content(*frame).decode() for frame in frames] == [row['t'] for row in rows]
    assert run('get', 'own', ':').lines == rows
    run(*words, 'given', '--dictionary', 'own/t.dict', '--shard-length', '5000')
    for shard in ('given/000000', 'given/000001'):
        assert (files(shard)['t.dict'] == files('own')['t.dict'])
    assert run('get', 'given', ':').lines == rows
    run(*words, 'none', '--dictionary', 'none')
    assert 't.dict' not in files('none')
    sizes = [len(files(path)['t.bag']) for path in ('own', 'none')]
    # All values of both use it.
    given = sum(len(bag) for name, bag in files('given').items() if name.endswith('t.bag'))
    assert sizes[0] <= given < 1.01 * sizes[0] and 1.7 * sizes[0] < sizes[1], (sizes, given)
    assert all(zstdref.number(frame) for frame, _ in frames)
    # A frame is packed with the dictionary that it needs.
    pathlib.Path('frame').write_bytes(run('get', 'own', '8999', 't', '--raw').out)
    write_lines('one', [{'t': {'file': 'frame'}}])
    run('pack', 'one', 'frames', '--spec', 't=zstd(utf8)', '--dictionary', 'own/t.dict')
    assert run('get', 'frames', '0').lines == [{'t': rows[8999]['t']}]
    pathlib.Path('empty').touch()
    own = pathlib.Path('own/t.dict').read_bytes()
    pathlib.Path('large').write_bytes(own + bytes((16 << 20) + 1 - len(own)))
    for name, says in (('empty', 'empty: not a dictionary'), ('missing', 'missing'),
                       ('rows', 'rows: not a dictionary of zstd'),
                       ('large', 'large: dictionary of zstd too large (16777217 bytes, '
                                 'maximum 16 MiB)')):
        refuse(*words, 'no', '--dictionary', name, says=says)
    refuse('pack', 'rows', 'no', '--spec', 'i=int,t=utf8', '--dictionary', 'none', code=2,
           says='no field is of zstd')


def values_are_compared_not_frames():
    """--resume and --dedup: equal values have other frames once there is a dictionary."""
    if not _write('foreign'):
        return
    rows, spec = _records(20000), 'i=int(4),t=zstd(utf8)'
    write_lines('rows', rows)
    words = ['pack', 'rows', 'ds', '--spec', spec, '--no-sync', '--shard-length', '15000']
    run(*words)
    before = files('ds')
    run(*words, '--resume')
    assert files('ds') == before
    for i in (0, 19999):
        write_lines('rows', [{**row, 't': 'other'} if k == i else row
                             for k, row in enumerate(rows)])
        refuse(*words, '--resume', says=['field "t": value differs from datapoint'])
    write_lines('rows', rows)
    run('pack', 'rows', 'shared', '--spec', spec, '--no-sync', '--dedup', 't')
    assert run('get', 'shared', ':').lines == rows
    assert run('info', 'shared', '--json').json['fields']['t']['blobs'] == len(
        {row['t'] for row in rows})


def a_kill_of_pack_loses_nothing():
    if not _write('foreign') or os.name != 'posix':
        return
    rows, spec = _records(12000), 'i=int(4),t=zstd(utf8)'
    write_lines('rows', rows)
    words = ['pack', '-', 'ds', '--spec', spec, '--shard-length', '10000']
    writer = subprocess.Popen([harness.PROGRAM, *words], stdin=subprocess.PIPE)
    data = pathlib.Path('rows').read_bytes()
    writer.stdin.write(data[:len(data) * 19 // 20])
    writer.stdin.flush()
    flushed = pathlib.Path('ds/000001/refs.idx')
    while writer.poll() is None and not (flushed.exists() and flushed.stat().st_size > 8):
        time.sleep(0.05)
    assert writer.poll() is None and pathlib.Path('ds/000000/t.dict').exists()
    writer.kill()
    writer.wait()
    writer.stdin.close()
    run('get', 'ds', ':', '--live')
    with open('rows', 'rb') as file:
        done = subprocess.run([harness.PROGRAM, *words, '--resume'], stdin=file,
                              capture_output=True)
    assert done.returncode == 0, done.stderr
    assert run('get', 'ds', ':').lines == rows
    assert files('ds/000000')['t.dict'] == files('ds/000001')['t.dict']
    run('verify', 'ds', '--decode')
