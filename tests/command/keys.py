"""bags index, and bags get --key."""
import base64
import math
import os
import pathlib
import shutil
import subprocess
import tarfile
import zipfile

import harness
from harness import each, files, pack, read, refuse, run, write_lines
from server import Server

SPEC = 'id=utf8,t=i64,x=float32,n=int(4),tag=utf8[],raw=bytes'


def _row(i):
    return {'id': f'k{i % 7}', 't': i * 10 - 50, 'x': i / 10, 'n': i,
            'tag': ['a'], 'raw': {'base64': base64.b64encode(b'r%d' % i).decode()}}


def _dataset(count=20, *options):
    pack([_row(i) for i in range(count)], SPEC, 'out', *options)
    for field in ('id', 't', 'x', 'n', 'raw'):
        run('index', 'out', field)


def _numbers(key, *words):
    return [line['n'] for line in run('get', 'out', '--key', key, 'n').lines]


@each([(), ('--shard-length', 6)])
def a_key_finds_its_datapoints(options):
    _dataset(20, *options)
    assert _numbers('id=k3') == [3, 10, 17]
    assert _numbers('t=-50') == [0] and _numbers('t=140') == [19]
    assert _numbers('t=100:130') == [15, 16, 17]
    assert _numbers('t=:-20') == [0, 1, 2] and _numbers('t=125:') == [18, 19]
    assert _numbers('t=:') == list(range(20)) and _numbers('t=1:2') == []
    assert _numbers('x=0.7') == [7] and _numbers('x=0.25:0.5') == [3, 4]
    assert _numbers('raw=r12') == [12] and _numbers('n=12') == [12]
    # A range is a set of keys: its ends may be outside the type.
    assert _numbers('n=-1:2') == [0, 1] and _numbers('n=18:70000') == [18, 19]
    assert _numbers('t=125:18446744073709551616') == [18, 19]
    assert _numbers('n=:-1') == []
    assert run('get', 'out', '--key', 'n=4', 'id', 'tag[0]').lines == [
        {'#': 4, 'id': 'k4', 'tag': 'a'}]
    assert run('get', 'out', '--key', 'n=4', 'raw', '--raw').out == b'r4'
    # Python's datasets have no such directory: nothing but the index is new.
    read('out')


def a_missing_key_names_the_value_and_prints_nothing():
    _dataset()
    for key, value in [('id=k9', 'k9'), ('t=7', '7'), ('x=0.05', '0.05'),
                       ('id=', '"id"'), ('raw=r', 'r')]:
        result = refuse('get', 'out', '--key', key, says=('out', value))
        assert result.out == b''


@each([('t=x', 'x'), ('t=1:x', 'x'), ('t=', 'number'), ('t', 'FIELD=KEY'),
       ('t=0x10', '0x10'), ('t=5:3', 'start > stop'), ('t=0.5', 'whole number'),
       ('n=1e0', 'whole number'), ('t=18446744073709551616', 'out of range'),
       ('n=-1', 'below 0'), ('x=1e400', '1.8e308'), ('x=NaN', '"NaN"'),
       ('x=infinity', '"infinity"'), ('x=Infinity0', '"Infinity0"')])
def what_is_not_a_key_is_refused(case):
    _dataset()
    where = f'out: --key {case[0]}: ' if '=' in case[0] else case[0]
    refuse('get', 'out', '--key', case[0], says=(where, case[1]), code=2)


def infinities_are_keys():
    rows = [{'x': x, 'y': x} for x in (math.inf, 0, -math.inf, 1)]
    pack(rows, 'x=float32,y=float64')
    for field in 'xy':
        run('index', 'out', field)
        for key, want in [('Infinity', [0]), ('-Infinity', [2]),
                          ('-Infinity:1', [2, 1]), ('1:Infinity', [3]),
                          ('-Infinity:Infinity', [2, 1, 3]), ('Infinity:', [0])]:
            found = run('get', 'out', '--key', f'{field}={key}', field).lines
            assert [float(line[field]) for line in found] == \
                [rows[i]['x'] for i in want], key


def what_cannot_be_found_is_refused():
    _dataset()
    refuse('get', 'out', '--key', 'y=1', says=('no field "y"', 'id, n, raw, t, tag, x'))
    refuse('get', 'out', '--key', 'tag=a', says=('tag', 'utf8[]'))
    refuse('get', 'out', '--key', 'id=k3', 'raw', '--raw', code=2, says='--raw')
    refuse('get', 'out', code=2, says='INDEX')
    refuse('index', 'out', 'tag', says=('tag', 'utf8[]'))
    refuse('index', 'out', 'y', says=('no field "y"', 'id, n, raw, t, tag, x'))
    refuse('index', 'nowhere', 'id', says='nowhere')
    pathlib.Path('out/index').rename('out/elsewhere')
    pathlib.Path('out/index').write_text('')
    refuse('index', 'out', 'id', says='bags: out/index/id.partial: cannot create')


def what_was_indexed_is_printed():
    pack([_row(i) for i in range(3)], SPEC)
    assert run('index', 'out', 'id').out == b'out: indexed 3 datapoints by id\n'
    pack([], 'n=int', 'none')
    assert run('index', 'none', 'n').out == b'none: indexed 0 datapoints by n\n'


def a_range_of_float32_is_that_of_the_numbers_shown():
    _dataset()
    assert _numbers('x=0.7:0.8') == [7] and _numbers('x=0.6:0.7') == [6]
    # float32 has neither of these; between 0.7 and 0.70000001 is no float32.
    assert _numbers('x=0.6:0.70000001') == [6, 7]
    assert _numbers('x=0.70000001:0.8') == []
    refuse('get', 'out', '--key', 'x=0:1:2', says='1:2', code=2)


def an_index_that_is_missing_or_old_is_an_error():
    _dataset(20, '--shard-length', 6)
    for name in pathlib.Path('out/000000/index').glob('x.*'):
        name.unlink()
    refuse('get', 'out', '--key', 'x=1', says=('"x"', 'bags index out x'))
    run('pack', write_lines('more.jsonl', [_row(20)]), 'out', '--append',
        '--shard-length', 6, '--spec', SPEC, '--no-sync')
    refuse('get', 'out', '--key', 'id=k3', says=('id.bag', 'build'))
    run('index', 'out', 'id')
    assert _numbers('id=k6') == [6, 13, 20]


def a_dataset_replaced_in_place_is_noticed():
    _dataset()
    pack([dict(_row(i), id=f'k{(i + 1) % 7}') for i in range(20)], SPEC, 'new')
    for name, data in files('new').items():
        (pathlib.Path('out') / name).write_bytes(data)
    refuse('get', 'out', '--key', 'id=k3', says=('id.bag', 'older'))


@each([(), ('--shard-length', 6)])
def an_index_does_not_leave_its_dataset(options):
    pack([_row(i) for i in range(20)], SPEC, 'out', *options)
    shutil.copytree('out', 'evil')
    first = 'evil/000000' if options else 'evil'
    run('index', 'out', 'n')
    # A build would replace files of these names, and remove the others.
    os.mkdir('precious')
    for name in ('keys.bag', 'keys.crc', 'runs.bag', 'n.bag', 'n.crc'):
        (pathlib.Path('precious') / name).write_text('precious')
    before = files('precious')
    paths = [f'{first}/index', f'{first}/index/n.partial'] + [first] * bool(options)
    for path in paths:
        if path.endswith('.partial'):
            os.mkdir(f'{first}/index')
        elif path == first:
            os.rename(first, 'moved')
        os.symlink(os.path.abspath('moved' if path == first else 'precious'), path)
        refuse('index', 'evil', 'n', says=(path, 'symbolic links'))
        assert files('precious') == before
        os.remove(path)
        shutil.rmtree(f'{first}/index', ignore_errors=True)
    if options:
        os.rename('moved', first)
    there = os.path.abspath('out/000000/index' if options else 'out/index')
    os.symlink(there, f'{first}/index')
    refuse('get', 'evil', '--key', 'n=3', says=(f'{first}/index', 'symbolic links'))
    os.remove(f'{first}/index')
    shutil.copytree(there, f'{first}/index')
    for name in 'n.bag', 'n.crc':
        path = f'{first}/index/{name}'
        os.remove(path)
        os.symlink(f'{there}/{name}', path)
        refuse('get', 'evil', '--key', 'n=3', says=(path, 'symbolic links'))
        os.remove(path)
        shutil.copyfile(f'{there}/{name}', path)


def the_number_of_a_datapoint_is_printed():
    _dataset()
    lines = run('get', 'out', '--key', 'id=k3', 'n').lines
    assert [list(line) for line in lines] == [['#', 'n']] * 3
    assert [line['#'] for line in lines] == [3, 10, 17]
    for line in lines:
        assert run('get', 'out', line['#'], 'n').json == {'n': line['n']}
    got = run('get', 'out', '--key', 'n=7', 'raw', '--out', 'd').json
    assert got == {'#': 7, 'raw': {'file': 'd/000007-raw.bin'}}
    assert run('get', 'out', '--key', 'n=7', 'raw', '--raw').out == b'r7'
    pack([{'#': 'x'}], '#=utf8', 'odd')
    run('index', 'odd', '#')
    refuse('get', 'odd', '--key', '#=x', says='as "#", but a field has this name')


NAMES = ['abc', 'ab', 'b', 'abd', 'a*', 'ab*', 'ab**', 'ab', 'aé', '', '*', 'ab\\*']


def keys_are_found_by_what_they_begin_with():
    pack([{'t': t, 'n': i, 'b': {'base64': base64.b64encode(b).decode()}}
          for i, (t, b) in enumerate(zip(NAMES, [
              b'\xff', b'\xff\xff', b'\xfe', b'', b'\xff\0', b'\xff*', b'\xff\xff\xff',
              b'a', b'b', b'\xfe\xff', b'*', b'**']))], 't=utf8,n=int,b=bytes')
    for field in 'tbn':
        run('index', 'out', field)

    def numbers(key):
        return [line['#'] for line in run('get', 'out', '--key', key, 'n').lines]

    def names(key):
        return [NAMES[i] for i in numbers(key)]

    for prefix in ('', 'a', 'ab', 'abc', 'b', 'aé', 'a*b', 'ab\\', 'x'):
        assert names(f't={prefix}*') == sorted(
            [n for n in NAMES if n.startswith(prefix)], key=lambda n: n.encode()), prefix
    # Two stars are one that the key has.
    for key in ('a*', 'ab*', 'ab**', '*', 'ab\\*'):
        assert names(f't={key}*') == [key], key
    refuse('get', 'out', '--key', 't=b**', says=('"t"', 'no datapoint has the key b*\n'))
    assert names('t=ab') == ['ab', 'ab']
    for prefix in (b'\xff', b'\xff\xff', b'\xff\xff\xff', b'\xff\xff\xff\xff', b'\xfe'):
        found = numbers(os.fsdecode(b'b=' + prefix + b'*'))
        assert len(found) == {b'\xff': 5, b'\xff\xff': 2, b'\xff\xff\xff': 1,
                              b'\xff\xff\xff\xff': 0, b'\xfe': 2}[prefix], prefix
    refuse('get', 'out', '--key', 'n=1*', says='"1*" is not a number', code=2)


@each([(), ('--shard-length', 3)])
def the_last_key_at_or_before_is_found(options):
    # Of equal keys, the datapoint with the highest number.
    rows = [{'t': t, 'u': u, 'x': x, 'id': i} for t, u, x, i in [
        (20, 7, 0.5, 'b'), (-5, 0, -1.5, 'a'), (10, 7, 0.1, 'b'), (20, 2**64 - 1, 0.5, ''),
        (-5, 0, math.inf, 'bb'), (10, 8, 2, 'a')]]
    pack(rows, 't=i64,u=u64,x=float32,id=utf8', 'out', *options)
    for field in ('t', 'u', 'x', 'id'):
        run('index', 'out', field)
    for key, number in [
            ('t<=20', 3), ('t<=19', 5), ('t<=10', 5), ('t<=9', 4), ('t<=-5', 4),
            ('t<=18446744073709551616', 3), ('t<=1e300', 3), ('u<=0', 4), ('u<=6', 4),
            ('u<=7', 2), ('u<=18446744073709551615', 3), ('u<=18446744073709551614', 5),
            ('x<=0.1', 2), ('x<=0.09', 1), ('x<=0.5', 3), ('x<=Infinity', 4),
            ('x<=1e30', 5), ('id<=', 3), ('id<=a', 5), ('id<=b', 2), ('id<=b*', 2),
            ('id<=bb', 4), ('id<=zz', 4)]:
        lines = run('get', 'out', '--key', key, 'id').lines
        assert [line['#'] for line in lines] == [number], (key, lines)
    for key in ('t<=-6', 't<=-1e300', 'u<=-1', 'x<=-2', 'x<=-Infinity'):
        result = refuse('get', 'out', '--key', key, says=(
            f'field "{key[0]}": no datapoint has a key at or before {key[3:]}\n'))
        assert result.out == b''
    for key in ('t<=', 't<=x', 't<=1:2', 't<=0.5', 'x<=NaN'):
        refuse('get', 'out', '--key', key, says=key, code=2)
    refuse('get', 'out', '--key', 'y<=1', says='y')
    assert run('get', 'out', '--key', 'u<=6', 'id', '--raw').out == b'bb'
    # A field's own name comes first.
    pack([{'t': 5, 't_': 3}], 't=int,t_=int', 'odd')
    for path in pathlib.Path('odd').glob('*.crc'):
        path.unlink()
    os.rename('odd/t_.bag', 'odd/t<.bag')
    spec = pathlib.Path('odd/spec.json')
    spec.write_text(spec.read_text().replace('t_', 't<'))
    for field in ('t', 't<'):
        run('index', 'odd', field)
    assert run('get', 'odd', '--key', 't<=3', 't').json == {'#': 0, 't': 5}
    refuse('get', 'odd', '--key', 't<=4', says='"t<": no datapoint has the key 4')
    assert run('get', 'odd', '--key', 't<<=4', 't').json == {'#': 0, 't': 5}


def info_lists_the_indexes():
    pack([_row(i) for i in range(20)], SPEC, 'out', '--shard-length', 6)
    assert run('info', 'out', '--json').json['indexes'] == []
    assert b'indexes' not in run('info', 'out').out
    run('index', 'out', 't')
    run('index', 'out', 'id')
    assert run('info', 'out', '--json').json['indexes'] == ['id', 't']
    shown = run('info', 'out')
    assert b'\nindexes    id, t\n' in shown.out and not shown.err
    run('pack', write_lines('more.jsonl', [_row(20)]), 'out', '--append',
        '--shard-length', 6, '--spec', SPEC, '--no-sync')
    run('index', 'out', 't')
    shown = run('info', 'out')
    assert b'\nindexes    t\n' in shown.out, shown.out
    assert 'index/id.bag' in shown.err and 'build the index again' in shown.err
    assert len(shown.err.splitlines()) == 1


@each([(), ('--shard-length', 6)])
def keys_are_found_in_archives(options):
    _dataset(20, *options)
    keys = ('id=k3', 't=100:130', 'id=k*', 't<=35', 'x=0.7', 'raw=r1*', 'n<=300')
    want = [_numbers(key) for key in keys]
    run('zip', 'out', 'ours.zip', '--no-sync')
    with tarfile.open('out.tar', 'w') as tar:
        tar.add('out', 'in/side')
    with zipfile.ZipFile('python.zip', 'w') as archive:
        for name in files('out'):
            archive.write(f'out/{name}', name)
    for path in ('ours.zip', 'python.zip', 'out.tar/in/side'):
        assert [[line['n'] for line in run('get', path, '--key', key, 'n').lines]
                for key in keys] == want, path
        assert run('info', path, '--json').json['indexes'] == [
            'id', 'n', 'raw', 't', 'x']
        refuse('get', path, '--key', 't<=-51', says='at or before -51')
        refuse('get', path, '--key', 'tag=a', says='utf8[]')
    # An index of other data, and none.
    run('zip', 'ours.zip', 'again.zip', '--no-sync')
    assert files('.')['again.zip'] == files('.')['ours.zip']
    first = 'out/000000' if options else 'out'
    path = pathlib.Path(first, 'index/id.bag')
    path.rename(pathlib.Path(first, 'index/n.bag'))
    pathlib.Path(first, 'index/id.crc').rename(pathlib.Path(first, 'index/n.crc'))
    with tarfile.open('bad.tar', 'w') as tar:
        tar.add('out', '.')
    refuse('get', 'bad.tar', '--key', 'n=3', says=('n.bag', 'build the index again'))
    refuse('get', 'bad.tar', '--key', 'id=k3',
           says=('"id" has no index', 'where the dataset was written'))
    assert run('info', 'bad.tar', '--json').json['indexes'] == ['raw', 't', 'x']
    # What cannot be used is not passed on.
    said = run('zip', 'out', 'other.zip', '--no-sync').err
    assert 'index/n.bag' in said, said
    with zipfile.ZipFile('other.zip') as archive:
        assert not [n for n in archive.namelist() if n.endswith(('/n.bag', '/id.crc'))
                    and 'index' in n]


@each(['index', 'probing', 's3'])
def keys_are_found_on_servers(how):
    if b'not linked' in subprocess.run([harness.PROGRAM, 'info', 'http://127.0.0.1:1/x'],
                                       capture_output=True).stderr:
        return
    os.makedirs('site/bucket')
    keys = ('id=k3', 't=100:130', 'id=k*', 't<=35', 'id=none*')
    _dataset(300, '--shard-length', 60)
    want = [_numbers(key) for key in keys]
    with Server('site', how == 'index', how == 's3') as server:
        env = {**harness.PATIENT, **server.environment}
        if how == 's3':
            url = 's3://bucket/set'
            run('copy', 'out', url, env=env)
            first = files('site')
            again = run('copy', 'out', url, env=env).out
            assert b': 0 files copied' in again, again
            # A new index replaces the former one; nothing else is replaced.
            os.utime('out/000001/t.bag')
            run('index', 'out', 't')
            again = run('copy', 'out', url, env=env).out
            assert b': 2 files copied' in again, again
            changed = {name for name, data in files('site').items()
                       if first.get(name) != data}
            assert changed == {f'bucket/set/000000/index/t.{end}' for end in
                               ('bag', 'crc')}, changed
        else:
            url = server.url + '/set'
            shutil.copytree('out', 'site/set')
        for key, numbers in zip(keys, want):
            server.log.clear()
            found = run('get', url, '--key', key, 'n', env=env).lines
            assert [line['n'] for line in found] == numbers, key
            assert len(server.log) < 200, len(server.log)
        assert run('info', url, '--json', env=env).json['indexes'] == [
            'id', 'n', 'raw', 't', 'x']
        refuse('get', url, '--key', 't<=-51', says='at or before', env=env)
        refuse('get', url, '--key', 'x=77.5', says='no datapoint', env=env)
        refuse('get', url, '--key', 'tag=a', says='utf8[]', env=env)
        # A dataset of other values, with the index of the former.
        root = 'site/bucket/set' if how == 's3' else 'site/set'
        pack([dict(_row(i), id=f'k{(i + 1) % 7}', t=i) for i in range(300)], SPEC, 'new',
             '--shard-length', 60)
        for name, data in files('new').items():
            pathlib.Path(root, name).write_bytes(data)
        for key in ('id=k3', 't=100'):
            refuse('get', url, '--key', key, says='build the index again', env=env)
        # Half of an index, and a page in its place.
        path = pathlib.Path(root, '000000/index/n.bag')
        data = path.read_bytes()
        for bad in (data[:len(data) // 2], b'<html>not found</html>', b''):
            path.write_bytes(bad)
            refuse('get', url, '--key', 'n=3', says='n.bag', env=env)
        path.unlink()
        refuse('get', url, '--key', 'n=3', says='"n" has no index', env=env)


def a_local_copy_has_no_indexes():
    _dataset()
    run('copy', 'out', 'copy')
    assert not pathlib.Path('copy/index').exists()
    refuse('get', 'copy', '--key', 'n=3', says='bags index copy n')
