"""bags index, and bags get --key."""
import base64
import math
import os
import pathlib
import shutil

from harness import each, files, pack, read, refuse, run, write_lines

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
        {'id': 'k4', 'tag': 'a'}]
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
