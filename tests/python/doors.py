"""bags.import_, images, export and view."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
import warnings
from unittest import mock

import numpy as np

import bags
from run import HERE, Skip, forks_while_threads_allocate, python, raises

PHOTOS = HERE.parent / 'data' / 'photos'


def _rows(path):
    with bags.DatasetReader(path) as reader:
        return [*reader]


def _csv(count, path='in.csv'):
    pathlib.Path(path).write_text('name,n\n' + ''.join(f'row {i},{i}\n' for i in range(count)))


def _needs(what, name):
    if name not in bags.formats()[what]:
        raise Skip(f'{name} was not built')


def all_formats_of_the_command_are_here():
    command = bags.program.command()
    if not command or str(bags.program.HERE) not in command:
        raise Skip('the command was not built')
    said = subprocess.run([command, '--version'], stdout=subprocess.PIPE, text=True, check=True).stdout
    listed = next(line for line in said.split('\n') if line.startswith('importers: '))
    assert listed.split()[1:] == bags.formats()['import'], listed
    said = subprocess.run([command, 'export', 'none', 'x.unknown'], stderr=subprocess.PIPE, text=True).stderr
    listed = said.partition('one of: ')[2].partition(' (')[0].split()
    assert listed == ['lines', *bags.formats()['export']], listed


def a_file_of_text_is_imported():
    _needs('import', 'csv')
    _csv(100)
    calls = []
    done = bags.import_('in.csv', 'a', progress=lambda *args: calls.append(args))
    assert done['datapoints'] == 100 and done['spec'] == {'n': 'i64', 'name': 'utf8'}
    assert calls[-1] == (100, 100)
    assert _rows('a') == [{'n': i, 'name': f'row {i}'} for i in range(100)]
    assert not bags.verify('a')
    done = bags.import_('in.csv', 'b', fields={'n': 'm'}, type={'n': 'int(4)'}, shard_length=30)
    assert done['spec'] == {'m': 'int(4)'} and [row['m'] for row in _rows('b')] == [*range(100)]
    assert bags.import_('in.csv', 'c', dry_run=True)['spec'] == {'n': 'i64', 'name': 'utf8'}
    assert not os.path.exists('c')
    for worker in range(3):
        bags.import_('in.csv', 'w', shard_start=worker, shard_step=3)
    assert [row['n'] for row in _rows('w')] == [n for k in range(3) for n in range(k, 100, 3)]


def what_is_wrong_is_an_error_and_nothing_is_written():
    _needs('import', 'csv')
    _csv(3)
    bags.import_('in.csv', 'a')
    pathlib.Path('x.bin').write_bytes(b'abcd')
    for kind, says, args, options in (
            (FileNotFoundError, 'cannot open', ('none',), {}),
            (TypeError, 'a: is a dataset already', ('a',), {}),
            (TypeError, 'unknown format; pass from_= if it is one of: ', (__file__,), {}),
            (ValueError, "from_: 'x'", ('in.csv',), {'from_': 'x'}),
            (KeyError, 'field "q": unknown; known are', ('in.csv',), {'fields': ['q']}),
            (KeyError, 'type: field "q": unknown', ('in.csv',), {'type': {'q': 'int'}}),
            (ValueError, 'duplicate', ('in.csv',), {'fields': {'n': 'a', 'name': 'a'}}),
            (ValueError, 'not among fields', ('in.csv',), {'fields': ['n'], 'type': {'name': 'bytes'}}),
            (TypeError, "type: 'int' (expected a dict", ('in.csv',), {'type': 'int'}),
            (ValueError, "header: 'on' is none of", ('in.csv',), {'header': 'on'}),
            (ValueError, 'column "name": line 2: not a number', ('in.csv',), {'type': {'name': 'int'}}),
            (ValueError, 'datapoint 0: field "name": column 1: unexpected character', ('in.csv',), {'type': {'name': 'msgpack'}}),
            (TypeError, 'field "n": no encoder for type "flac"', ('in.csv',), {'type': {'n': 'flac'}}),
            (TypeError, 'layout: an option of hdf5 only', ('in.csv',), {'layout': 'rows'}),
            (TypeError, 'classes: an option of images only', ('in.csv',), {'classes': 'c'}),
            (TypeError, 'bogus: unknown option', ('in.csv',), {'bogus': 1}),
            (TypeError, 'frm: unknown option; did you mean from_', ('in.csv',), {'frm': 'csv'}),
            (TypeError, 'pass dtype, such as uint16', ('x.bin',), {}),
            (ValueError, 'mutually exclusive', ('in.csv',), {'resume': True, 'append': True}),
            (ValueError, 'out of range for int(1)', ('in.csv',), {'type': {'n': 'int(1)'}})):
        if 'int(1)' in str(options):
            _csv(300)
            raises(kind, bags.import_, *args, 'big', says='big: field "n": datapoint 256', **options)
            continue
        raises(kind, bags.import_, *args, 'out', says=says, **options)
        assert not os.path.exists('out'), (args, options)
    raises(FileExistsError, bags.import_, 'in.csv', 'a')
    raises(TypeError, bags.import_, 'in.csv', says='out is missing')
    raises(ValueError, bags.import_, 'in.csv', 'a.bag')
    pathlib.Path('large.csv').write_text(f'u\n{2 ** 64 - 1}\n')
    raises(ValueError, bags.import_, 'large.csv', 'out', says="state a type: type={'u': 'u64'}")
    bags.import_('large.csv', 'large', type={'u': 'u64'})
    assert _rows('large') == [{'u': 2 ** 64 - 1}]
    for header, names in (True, ['n', 'name']), (False, ['column0', 'column1']):
        done = bags.import_('in.csv', 'out', header=header, dry_run=True)
        assert sorted(done['spec'])[:2] == names and done['datapoints'] in (3, 4, 300, 301), done
    done = bags.import_('in.csv', dry_run=True, type={'n': 'float32', 'name': 'zstd(utf8)'})
    assert done['first'] == {'n': 0, 'name': 'row 0'} and done['first']['n'].dtype == 'f4', done
    raises(ValueError, bags.import_, 'https://host/in.csv', 'out')


def _files(folder):
    folder = pathlib.Path(folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def the_command_and_python_import_the_same_bytes():
    command = bags.program.command()
    if not command or str(bags.program.HERE) not in command:
        raise Skip('the command was not built')
    sources = HERE.parent / 'data' / 'import'
    pathlib.Path('x.csv').write_text('a,x\n' + ''.join(f'{i},{i * 7}\n' for i in range(50)))
    pathlib.Path('j.csv').write_text('x\n"{""a"": [1, 2.5, null, ""é""]}"\n"[]"\n')
    pathlib.Path('b.csv').write_text('x,first name\ntrue,1.5\nfalse,-2\n')
    pathlib.Path('ids.bin').write_bytes(np.arange(100, dtype='<u2').tobytes())
    samples = sources / 'webdataset/samples.tar'
    cases = [('csv', 'x.csv', {'type': {'x': kind}}) for kind in (
        'int(2)', 'u64', 'i64', 'float32', 'array(float64)', 'utf8', 'bytes', 'zstd(utf8)', 'msgpack',
        'zstd(msgpack)', 'float32[]', 'array(int16)', 'zstd(array,int16)', 'int(1)', 'jpeg', 'array(bool)')]
    cases += [('csv', 'j.csv', {'type': {'x': kind}}) for kind in (
        'msgpack', 'tree', 'zstd(msgpack)', 'zstd(tree)', 'i64')]
    cases += [('csv', 'b.csv', {'type': {'x': 'bool', 'first name': 'float16'}}),
              ('csv', 'b.csv', {'fields': {'first name': 'n'}, 'type': {'n': 'float32'}}),
              ('csv', 'b.csv', {'fields': {'x': 'y'}, 'type': {'x': 'flac'}, 'any_type': True}),
              ('csv', 'b.csv', {'fields': ['x', 'first name'], 'shard_length': 1}),
              ('tokens', 'ids.bin', {'dtype': 'uint16', 'document': 7, 'type': {'tokens': 'array(int64,-1)'}}),
              ('tokens', 'ids.bin', {'dtype': 'uint16', 'document': 7, 'type': {'tokens': 'array(uint8,-1)'}}),
              ('tokens', 'ids.bin', {'dtype': 'uint16', 'separator': 60, 'type': {'tokens': 'npy'}})]
    cases += [('webdataset', samples, {'type': one}) for one in (
        {'cls': 'int(4)', 'json': 'msgpack'}, {'json': 'zstd(msgpack)', 'cls': 'float32'},
        {'jpg': 'jpeg[]'}, {'jpg': 'bytes'}, {'jpg': 'png'}, {'bin': 'int(4)'}, {'json': 'int(4)'},
        {'cls': 'array'}, {'seg.png': 'png'}, {'jpg': 'zstd(jpeg)'}, {'jpg': 'int(0)'})]
    cases += [('tfrecord', one, {}) for one in sorted(sources.glob('tfrecord/*.tfrecord'))[:3]]
    same = failed = 0
    for i, (importer, path, options) in enumerate(cases):
        if importer not in bags.formats()['import']:
            continue
        words = []
        for name, value in options.items():
            if isinstance(value, dict):
                value = ','.join(f'{key}={one}' for key, one in value.items())
            value = ','.join(value) if isinstance(value, list) else value
            words += [f'--{name.replace("_", "-")}'] + [str(value)] * (value is not True)
        done = subprocess.run([command, 'import', path, f'c{i}', *words], capture_output=True, text=True)
        try:
            bags.import_(path, f'p{i}', **options)
        except (ValueError, TypeError) as error:
            assert done.returncode == 1, (path, options, error, done)
            why = str(error).rpartition(': ')[2].partition(';')[0]
            assert why in done.stderr or 'codec' in done.stderr, (done.stderr, error)
            failed += 1
            continue
        assert done.returncode == 0, (path, options, done)
        assert _files(f'c{i}') == _files(f'p{i}'), (path, options)
        same += 1
    assert same > 15 and failed > 5, (same, failed)


def an_interrupted_import_is_resumed():
    _needs('import', 'csv')
    _csv(1000)

    def stop(done, total):
        time.sleep(0.06)
        if done > 1:
            raise RuntimeError('enough')
    for path, options in (('a', {}), ('b', {'shard_length': 300})):
        error = raises(RuntimeError, bags.import_, 'in.csv', path, progress=stop, says='enough', **options)
        assert 'datapoints are kept, resume=True continues' in error.__notes__[0]
        raises(bags.DataError, bags.DatasetReader, path, says='unfinished')
        kept = int(error.__notes__[0].split()[1])
        assert bags.import_('in.csv', path, resume=True, **options)['datapoints'] == 1000 - kept
        assert [row['n'] for row in _rows(path)] == [*range(1000)] and not bags.verify(path)

    def at_once(done, total):
        raise RuntimeError('no')
    raises(RuntimeError, bags.import_, 'in.csv', 'c', progress=at_once)
    assert not os.path.exists('c') or not os.listdir('c')
    bags.import_('in.csv', 'd', append=False, shard_length=600)
    bags.import_('in.csv', 'd', append=True)
    assert [row['n'] for row in _rows('d')] == [*range(1000)] * 2


def a_signal_ends_an_import_and_an_export():
    _needs('import', 'csv')
    _csv(300000)

    def interrupted(call, *args):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        try:
            call(*args)
        except KeyboardInterrupt:
            return True
        time.sleep(max(0, 0.3 - (time.monotonic() - start)))
        return False
    try:
        assert interrupted(bags.import_, 'in.csv', 'a')
    finally:
        shutil.rmtree('a', ignore_errors=True)
    bags.write('b', {'n': np.arange(200000)})
    assert interrupted(bags.export, 'b', 'b.tar')
    assert os.path.exists('b.tar.unfinished')
    assert bags.export('b', 'b.tar', resume=True)['datapoints'] == 200000


def folders_of_images_are_imported():
    if not bags.build['jpeg'] or not bags.build['png']:
        raise Skip('jpeg or png was not built')
    names = sorted(path.name for path in PHOTOS.glob('*.jpg'))
    for i, name in enumerate(names):
        os.makedirs(f'in/{"ab"[i % 2]}', exist_ok=True)
        shutil.copy(PHOTOS / name, f'in/{"ab"[i % 2]}')
    done = bags.images('in', 'x')
    assert done['spec'] == {'image': 'jpeg', 'label': 'utf8', 'path': 'utf8'}
    assert done['images']['jpegs'] == done['datapoints'] == len(names)
    with bags.DatasetReader('x', None) as reader:
        for row in reader:
            assert row['image'] == pathlib.Path('in', row['path'].decode()).read_bytes()
    done = bags.images('in', 'y', type='png', classes='names.txt')
    assert done['spec']['label'] == 'int(4)' and done['images']['converted'] == len(names)
    assert pathlib.Path('names.txt').read_text() == 'a\nb\n'
    assert all(row['label'] == 'ab'.index(row['path'][0]) for row in _rows('y'))
    pathlib.Path('names.txt').write_text('b\nz\na\n')
    bags.images('in', 'z', classes='names.txt')
    assert all(row['label'] == 'bza'.index(row['path'][0]) for row in _rows('z'))
    pathlib.Path('names.txt').write_text('b\n')
    raises(ValueError, bags.images, 'in', 'w', classes='names.txt', says='no line "a"')
    raises(ValueError, bags.images, 'in', 'w', type='utf8')
    pathlib.Path('in/a/bad.jpg').write_bytes(b'\xff\xd8\xff' + bytes(20))
    raises(bags.DataError, bags.images, 'in', 'v', says='bad.jpg')
    assert bags.images('in', 'u', skip_damaged=True)['images']['damaged'] == 1
    bags.export('x', 'out', to='images', label='label', key='path')
    pathlib.Path('in/a/other.png').write_bytes(b'\x89PNG\r\n\x1a\n' + bytes(20))
    raises(ValueError, bags.images, 'in', 't', says="1 PNG files (a/other.png); pass 'jpeg'")
    assert sorted(os.listdir('out')) == ['a', 'b'][:len(names)]


def exports_are_imported_again():
    rng = np.random.default_rng(1)
    spec = {'n': 'i64', 't': 'utf8', 'x': 'array(float32,3)', 'y': 'bytes'}
    points = [{'n': int(rng.integers(-9, 9)), 't': f'é{i}', 'x': rng.random(3, 'f4'), 'y': bytes([i, 0, 255])}
              for i in range(20)]
    bags.write('a', points, spec)
    for to, out in (('tfrecord', 'a.tfrecord'), ('mds', 'mds'), ('webdataset', 'a.tar'), ('hdf5', 'a.h5')):
        if to not in bags.formats()['export']:
            continue
        calls = []
        fields = ['n', 'x'] if to == 'hdf5' else None
        done = bags.export('a', out, to=to if to == 'mds' else None, fields=fields,
                           progress=lambda *args: calls.append(args))
        assert done['datapoints'] == 20 and done['files'] >= 1 and calls[-1] == (20, 20)
        if to not in bags.formats()['import']:
            continue
        back = f'{to} back'
        options = {'layout': 'rows'} if to == 'hdf5' else {}
        bags.import_(out, back, **options)
        for one, other in zip(points, _rows(back), strict=True):
            found = next(value for name, value in other.items() if name.split('.')[0] == 'x')
            assert np.array_equal(np.ravel(found), one['x']), (to, one, other)


def metadata_are_exported_or_a_warning_says_that_they_are_not():
    bags.write('a', [{'n': n} for n in range(3)])
    pathlib.Path('a/info.json').write_text('{"licence": "cc0"}')
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        bags.export('a', 'm', to='mds')
    bags.import_('m', 'back')
    assert pathlib.Path('back/info.json').read_text() == '{"licence": "cc0"}'
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        bags.export('a', 'a.tfrecord')
    assert [str(one.message) for one in said] == [
        'a: its info.json is not exported: tfrecord has no place for it'], said


def rows_and_fields_of_an_export_are_chosen():
    bags.write('a', [{'n': i, 't': str(i)} for i in range(10)], {'n': 'i64', 't': 'utf8'})
    bags.export('a', 'a.tfrecord', rows=[7, 2], fields={'n': 'm'})
    bags.import_('a.tfrecord', 'b')
    assert [row['m'] for row in _rows('b')] == [7, 2]
    assert bags.export('a', 'w', to='mds', where='n >= 8')['datapoints'] == 2
    for kind, says, args, options in (
            (ValueError, 'unknown ending .x', ('a', 'o.x'), {}), (ValueError, 'no ending', ('a', 'o'), {}),
            (ValueError, "to: 'lines'", ('a', 'o'), {'to': 'lines'}),
            (ValueError, 'ends like csv, but to is mds', ('a', 'o.csv'), {'to': 'mds'}),
            (TypeError, 'key: an option of webdataset', ('a', 'o.tfrecord'), {'key': 'n'}),
            (TypeError, 'layout: an option of hdf5', ('a', 'o.tfrecord'), {'layout': 'rows'}),
            (KeyError, 'field "z": unknown', ('a', 'o.tar'), {'fields': ['z']}),
            (KeyError, 'field "z": unknown', ('a', 'o.tar'), {'key': 'z'}),
            (ValueError, 'no field is named', ('a', 'o.tar'), {'fields': []}),
            (IndexError, 'out of range', ('a', 'o.tar'), {'rows': [10]}),
            (TypeError, 'bogus', ('a', 'o.tar'), {'bogus': 1}),
            (FileExistsError, 'a.tfrecord', ('a', 'a.tfrecord'), {}),
            (FileNotFoundError, 'none', ('none', 'o.tar'), {}),
            (ValueError, 'URL', ('a', 's3://b/o.tar'), {})):
        raises(kind, bags.export, *args, says=says, **options)
        assert not os.path.exists(args[1]) or args[1] == 'a.tfrecord'

    def stop(done, total):
        raise RuntimeError('enough')
    raises(RuntimeError, bags.export, 'a', 'o.tar', progress=stop, says='enough')


def _can_serve():
    try:
        bags._core.serve_check()
    except RuntimeError as error:
        raise Skip(str(error)) from None


def _children():
    tasks = pathlib.Path('/proc/self/task')
    return {child for task in tasks.iterdir() for child in (task / 'children').read_text().split()}


def _page():
    pathlib.Path('page.html').write_text('<html>the page')
    return mock.patch.dict(os.environ, BAGS_VIEWER='page.html')


def _get(view, path=''):
    return urllib.request.urlopen(view.url.partition('#')[0] + path).read()


def servers_share_a_process():
    """Each has its own port, token and dataset; closing one leaves the other; no child is started."""
    _can_serve()
    bags.write('a', [{'n': 1}], {'n': 'int'})
    bags.write('b', [{'t': 'x'}], {'t': 'utf8'})
    bags.zip('a', 'a.zip')
    before = _children()
    with _page():
        first, second = bags.view('a', browser=False), bags.view('b', browser=False)
        third = bags.view('a.zip', browser=False)
    assert _children() == before
    assert len({view.url for view in (first, second, third)}) == 3
    assert _get(first) == _get(second) == b'<html>the page'
    assert _get(first, 'a/spec.json') == pathlib.Path('a/spec.json').read_bytes()
    assert _get(third, 'a.zip') == pathlib.Path('a.zip').read_bytes()
    for path in ('a/spec.json', 'live'):
        raises(urllib.error.HTTPError, _get, second, path)
    port = int(second.url.split(':')[2].split('/')[0])
    with _page():
        error = raises(RuntimeError, bags.view, 'b', browser=False, port=port)
    assert f'port {port}: ' in str(error) and str(error).endswith('; choose another with port, or leave it out')
    first.close()
    first.close()
    assert first.closed and not second.closed
    raises(urllib.error.URLError, _get, first)
    assert _get(second, 'b/spec.json') == pathlib.Path('b/spec.json').read_bytes()
    files = len(os.listdir('/proc/self/fd'))
    second.close()
    third.close()
    assert len(os.listdir('/proc/self/fd')) < files


def a_child_leaves_the_server_of_its_parent():
    """There, it has no thread that close() could wait for."""
    _can_serve()
    forks_while_threads_allocate()
    bags.write('a', [{'n': 1}], {'n': 'int'})
    with _page(), bags.view('a', browser=False) as view:
        child = os.fork()
        if not child:
            view.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert _get(view) == b'<html>the page'


def a_running_writer_is_served():
    """Also after the working directory changed, and blobs in zstd as they are inside."""
    _can_serve()
    kind = 'zstd(utf8)' if bags.build['zstd'] else 'utf8'
    with bags.DatasetWriter('robot', {'n': 'int', 't': kind}, flush_seconds=0) as writer, _page():
        writer.append({'n': 1, 't': 'one'})
        writer.flush()
        with bags.view('robot', browser=False, live=True) as view:
            os.mkdir('below')
            os.chdir('below')
            try:
                state = json.loads(_get(view, 'live'))
                assert (state['length'], state['writers'], state['trouble']) == (1, 1, None), state
                writer.append({'n': 2, 't': 'two'})
                writer.flush()
                assert json.loads(_get(view, 'live'))['length'] == 2
                assert _get(view, 'live/1/1/0') == b'two'
                raises(urllib.error.HTTPError, _get, view, 'live/2/1/0')
            finally:
                os.chdir('..')


def what_cannot_be_served_is_a_runtime_error():
    _can_serve()
    bags.write('a', [{'n': 1}], {'n': 'int'})
    os.mkdir('empty')
    pathlib.Path('file').write_bytes(b'x')
    with _page():
        for path, says, options in (('none', 'none: ', {}), ('empty', 'not a dataset', {}), ('file', '.zip', {}),
                                    ('a', '65535', {'port': 65536}), ('a', '-1', {'port': -1}),
                                    ('file', 'live: file is not a local directory', {'live': True}),
                                    ('s3://bucket/a', 'address of the bucket', {}),
                                    ('ftp://me:secret@host/a', 'ftp://...: ', {})):
            raises(RuntimeError, bags.view, path, browser=False, says=says, **options)
    with mock.patch.dict(os.environ, BAGS_VIEWER='none.html'):
        raises(RuntimeError, bags.view, 'a', browser=False, says='none.html: not found')


def a_signal_ends_the_wait_for_a_server():
    _can_serve()
    bags.write('a', [{'n': 1}], {'n': 'int'})
    with _page():
        said = python("""
import os, signal, threading, urllib.request
import bags
view = bags.view('a', browser=False)
page = view.url.partition('#')[0]
def interrupt():
    urllib.request.urlopen(page).read()  # this needs the GIL
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    view.wait()
except KeyboardInterrupt:
    print('interrupted', view.closed)
other = bags.view('a', browser=False)
threading.Thread(target=other.close).start()
other.wait()
print('closed', other.closed)
left = bags.view('a', browser=False)  # the end of the program closes it
""")
    assert said == 'interrupted True\nclosed True\n', said


def a_dataset_is_served():
    _can_serve()
    if not (pathlib.Path(bags.program.HERE) / 'viewer.html').exists():
        raise Skip('the viewer was not built')
    bags.write('a', [{'n': 1}], {'n': 'int'})
    with bags.view('a', browser=False) as view:
        page = view.url.partition('#')[0]
        assert b'<html' in urllib.request.urlopen(page).read()
        assert b'"int"' in urllib.request.urlopen(page + 'a/spec.json').read()
        assert not view.closed
    assert view.closed
    raises(urllib.error.URLError, urllib.request.urlopen, page)
    assert 'none' in str(raises(RuntimeError, bags.view, 'none', browser=False))
