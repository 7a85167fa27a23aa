"""Functions on datasets, and datasets in archives, on servers and in file systems of
Python."""
import inspect
import os
import pathlib
import pickle
import shutil
import signal
import struct
import sys
import tarfile
import threading
import warnings
from unittest import mock

import numpy as np

import bags
import bags.granular as granular
from run import HERE, Skip, python, raises

SPEC = {'n': 'int', 't': 'utf8', 's': 'int[]', 'a': 'array(float32,500)'}


def _point(i):
    return {'n': i * 3, 't': f'name {i:03}', 's': list(range(i % 4)), 'a': np.full(500, i, 'f4')}


def _write(path, count=50, **options):
    with bags.ShardedDatasetWriter(path, SPEC, shard_length=20, **options) as writer:
        for i in range(count):
            writer.append(_point(i))


def _check(reader, count=50):
    assert len(reader) == count
    for i in range(count):
        row, want = reader[i], _point(i)
        assert (row.pop('a') == want.pop('a')).all() and row == want


def _crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def a_killed_writer_is_recovered_or_resumed():
    program = ('import bags, os\nfrom elsewhere import SPEC, _point\n'
               'w = bags.ShardedDatasetWriter("x", SPEC, shard_length=20)\n'
               'for i in range(33): w.append(_point(i))\n'
               'w.flush()\nw.append(_point(33))\nos.kill(os.getpid(), 9)')
    os.environ['PYTHONPATH'] += f':{HERE}'
    python(program, code=-signal.SIGKILL)
    shutil.copytree('x', 'y')
    assert 'run bags.recover' in bags.verify('x')[0]['message']
    assert not bags.verify('x', unfinished='skip')
    assert bags.recover('x', dry_run=True)['length'] == 13
    report = bags.recover('x')
    assert (report['finished_before'], report['finished_now'], report['length']) == (1, 1, 13)
    _check(bags.DatasetReader('x'), 33)
    # As a program in C leaves it that flushed a datapoint with one value.
    draft = struct.pack(f'<{1 + 2 * len(SPEC)}Q', 13, 0, 1, *[0] * (2 * len(SPEC) - 2))
    shutil.copytree('y', 'z')
    pathlib.Path('z/000001/refs.partial').write_bytes(draft + struct.pack('<I', _crc32c(draft)))
    shutil.copytree('z', 'v')
    raises(bags.DataError, bags.recover, 'z', says='datapoint 13: no value')
    for values, error, says in (({'x': 1}, KeyError, 'field "x": unknown; known are'),
                                ({'s': [1]}, KeyError, 'a sequence needs no value'),
                                ({'n': 'one'}, TypeError, 'v: values: field "n": '),
                                ({'t': 'text'}, bags.DataError, 'no value')):
        raises(error, bags.recover, 'v', values=values, says=says)
    # The field that was flushed keeps its value, which is not that of `values`.
    values = {'n': 39, 't': 'name 013', 'a': np.full(500, 13, 'f4')}
    assert bags.recover('v', values=values)['length'] == 14
    row = bags.DatasetReader('v')[33]
    assert (row['n'], row['t'], row['s'], row['a'][0]) == (39, 'name 013', [], 20), row
    assert bags.recover('z', drop_partial=True)['length'] == 13
    _check(bags.DatasetReader('z'), 33)
    with bags.ShardedDatasetWriter('y', SPEC, shard_length=20, existing='resume') as writer:
        assert writer.resumed == 33
        for i in range(33, 50):
            writer.append(_point(i))
    _check(bags.DatasetReader('y'))
    raises(FileNotFoundError, bags.recover, 'none')


def verify_says_what_it_could_not_decode():
    with bags.ShardedDatasetWriter('x', {'a': 'strange', 'n': 'int'}, {'strange': None, 'int': bags.encoders['int']},
                                   shard_length=2) as writer:
        for i in range(5):
            writer.append({'a': b'a', 'n': i})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        assert bags.verify('x') == [] and not said
        assert bags.verify('x', decode=True) == []
    assert len(said) == 1 and said[0].filename == __file__, said
    assert str(said[0].message).startswith('x: field "a": blobs that were not decoded: 5: no decoder for type "strange"')
    # A type that other builds decode.
    with mock.patch.dict(bags.codecs._FORMATS, {'odd': ('libodd-dev', 'strange')}), \
            mock.patch.dict(bags.build, {'odd': False}), \
            mock.patch.object(bags.codecs, '_NAMES', [*bags.codecs._NAMES, 'strange']):
        faults = bags.verify('x', decode=True)
    assert len(faults) == 1 and faults[0]['field'] == 'a', faults
    assert 'install libodd-dev' in faults[0]['message'], faults


def bytes_after_an_image_are_ignored():
    images = HERE.parent / 'data/images'
    files = {'jpeg': 'bad-trailing.jpg', 'png': 'bad-trailing.png', 'webp': 'bad-webp-trailing.webp'}
    for kind, name in files.items():
        if not bags.build[kind]:
            continue
        with bags.DatasetWriter(kind, {'a': kind}, {kind: None}) as writer:
            writer.append({'a': (images / name).read_bytes()})
        assert bags.verify(kind, decode=True) == bags.verify(kind, decode=True, max_pixels=10 ** 6) == []
        assert bags.DatasetReader(kind)[0]['a'].ndim == 3
        assert len(bags.verify(kind, decode=True, max_pixels=3)) == 1
        assert bags.stats(kind, 'a')['a']


def what_is_appended_before_the_last_second_survives_a_kill():
    program = ('import bags, os, sys, time\n'
               'how = dict(flush_seconds=float(sys.argv[1]))\n'
               'w = bags.DatasetWriter(sys.argv[2], {"n": "int"}, **how)\n'
               'b = bags.BagWriter(sys.argv[2] + ".bag", **how)\n'
               'w.append({"n": 0}), b.append(b"0")\n'
               'time.sleep(0.05)\n'
               'w.append({"n": 1}), b.append(b"1")\n'
               'w.append({"n": 2}), b.append(b"2")\n'
               'os.kill(os.getpid(), 9)')
    for seconds, kept in (0.04, 2), (0, 0):
        path = f'x{kept}'
        python(program, seconds, path, code=-signal.SIGKILL)
        raises(bags.DataError, bags.DatasetReader, path)
        if kept:  # or all three, if the process was slow
            rows = list(bags.DatasetReader(path, unfinished='read'))
            assert rows in ([{'n': 0}, {'n': 1}], [{'n': 0}, {'n': 1}, {'n': 2}])
        assert len(bags.BagReader(path + '.bag', unfinished='read')) in range(kept, kept * 3 // 2 + 1)
    for kind, *args in (bags.DatasetWriter, {'n': 'int'}), (bags.BagWriter,):
        raises(ValueError, kind, 'y', *args, flush_seconds=-1, says='y: flush_seconds')
        assert inspect.signature(kind).parameters['flush_seconds'].default == 1


def nothing_is_written_to_a_url_or_an_archive():
    _write('x')
    bags.write_zip('x', 'x.zip')
    before = sorted(os.listdir())
    for path in ('s3://b/y', 'gs://b/y', 'hf://y', 'http://h/y', pathlib.Path('y.zip'), 'y.tar/', 'x.zip/y'):
        says = 'archive' if ':' not in str(path) else 'a URL'
        for call in (bags.DatasetWriter, bags.ShardedDatasetWriter, granular.DatasetWriter):
            raises(ValueError, call, path, SPEC, bags.encoders, says=says)
        for call in bags.BagWriter, bags.recover, bags.checksum, bags.finalize, granular.BagWriter:
            raises(ValueError, call, path, says=says)
        raises(ValueError, bags.build_index, path, 'n', says=says)
    raises(ValueError, bags.write_zip, 'x', 's3://b/y.zip', says='a URL')
    secret = str(raises(ValueError, bags.DatasetWriter, 'http://me:secret@h/y?key', SPEC))
    assert 'secret' not in secret and 'key' not in secret
    assert sorted(os.listdir()) == before


def faults_are_listed():
    _write('x', checksum=True)
    assert bags.verify('x') == [] and bags.verify('x', decode=True) == []
    with open('x/000001/t.bag', 'r+b') as file:
        file.write(b'?')
    faults = bags.verify('x')
    assert faults[0]['field'] == 't' and faults[0]['kind'] == 'blob' and faults[0]['index'] == 0
    raises(bags.DataError, lambda: list(bags.DatasetReader('x', verify_checksums=True)), says='checksum')
    raises(FileNotFoundError, bags.verify, 'none')
    assert bags.checksum('x/000000')['kept'] == 5
    assert bags.checksum('x', replace=True)['made'] == 15 and bags.verify('x') == []


def gaps_are_closed():
    _write('x')
    os.rename('x/000001', 'x/000004')
    raises(bags.DataError, bags.DatasetReader, 'x')
    assert len(bags.DatasetReader('x', allow_gaps=True)) == 50
    assert bags.finalize('x') == 2 and sorted(os.listdir('x'))[:3] == ['000000', '000001', '000002']


def datapoints_are_found_by_key():
    _write('x')
    reader = bags.DatasetReader('x')
    raises(FileNotFoundError, reader.index, 'n')
    bags.build_index('x', 'n')
    bags.build_index('x', 't')
    numbers, texts = reader.index('n'), reader.index('t')
    reader.close()
    assert numbers.find(21) == [7] and numbers.find(22) == [] and numbers.range(3, 10) == [1, 2, 3]
    assert numbers.range(None, None) == list(range(50)) and numbers.range(140, None) == [47, 48, 49]
    assert texts.find('name 007') == [7] and texts.prefix('name 04') == list(range(40, 50))
    for call, key in ((numbers.find, 'x'), (texts.find, 3), (numbers.find, None), (numbers.prefix, 1),
                      (texts.find, [1]), (numbers.find, 2**70)):
        raises((TypeError, ValueError, OverflowError), call, key)
    raises((TypeError, ValueError), bags.build_index, 'x', 's')
    raises(KeyError, bags.build_index, 'x', 'no')


def a_zip_has_no_blob_that_no_row_refers_to_unless_it_is_whole():
    _write('x')
    rows = len(bags.DatasetReader('x'))
    # As a derived dataset of which a shard has no row: another refs.bag.
    refs = pathlib.Path('x/000000/refs.bag')
    refs.unlink()
    refs.write_bytes(bytes(8))
    for crc in pathlib.Path('x').rglob('*.crc'):
        crc.unlink()
    raises(ValueError, bags.write_zip, 'x', 'x.zip', says='that no datapoint refers to; whole=True writes all of them')
    assert not os.path.exists('x.zip')
    bags.write_zip('x', 'x.zip', whole=True)
    assert len(bags.DatasetReader('x.zip')) < rows


def archives_are_read_in_place():
    _write('x')
    bags.write_zip('x', 'x.zip')
    with tarfile.open('y.tar', 'w') as tar:
        tar.add('x', 'train')
    os.mkdir('dir.zip')
    shutil.copytree('x', 'dir.zip/x')
    for path in ('x.zip', 'y.tar/train', 'dir.zip/x', pathlib.Path('x.zip')):
        reader = bags.DatasetReader(path)
        _check(reader)
        _check(pickle.loads(pickle.dumps(reader)))
        kept = reader[5]['a'], np.asarray(reader.column('n'))
        reader.close()
        del reader
        assert kept[0][0] == 5 and kept[1][7] == 21
    assert bags.BagReader('x.zip/000001/t.bag')[0] == b'name 020'
    assert len(list(bags.Loader('x.zip', 10))) == 5 and bags.verify('x.zip') == []
    raises(FileExistsError, bags.write_zip, 'x', 'x.zip')
    raises(FileNotFoundError, bags.DatasetReader, 'x.zip/none')
    pathlib.Path('bad.zip').write_bytes(b'no')
    raises(bags.DataError, bags.DatasetReader, 'bad.zip')


def file_systems_of_python_are_hooks():
    try:
        import fsspec
    except ImportError:
        raise Skip('no fsspec')
    _write('x')
    fs = fsspec.filesystem('memory')
    fs.put('x', '/data/x', recursive=True)
    reader = bags.DatasetReader('/data/x', storage=fs)
    _check(reader)
    assert np.asarray(reader.column('n')).tolist() == [i * 3 for i in range(50)]
    assert len(list(bags.Loader(reader, 10, threads=2))) == 5
    threads = [threading.Thread(target=_check, args=(reader,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bags.BagReader('/data/x/000000/t.bag', storage=fs)[3] == b'name 003'
    assert bags.verify('/data/x', storage=fs) == []
    raises(FileNotFoundError, bags.DatasetReader, '/data/none', storage=fs)

    # A file that another version replaces is an error, even if its size is the same.
    fs.put('x', '/data/z', recursive=True)
    reader, bag = bags.DatasetReader('/data/z', storage=fs), bags.BagReader('/data/z/000000/t.bag', storage=fs)
    assert reader[3]['t'] == 'name 003' and bag[3] == b'name 003'
    with fs.open('/data/z/000000/t.bag') as file:
        content = file.read()
    fs.rm('/data/z/000000/t.bag')
    fs.pipe('/data/z/000000/t.bag', content.replace(b'name', b'else'))
    raises(RuntimeError, lambda: reader[4, ('t',)], says='t.bag')
    raises(RuntimeError, lambda: bag[4], says='t.bag')
    assert reader[4, ('n',)] == {'n': 12}

    # What it remembers of a directory hides no shard.
    class Remembers(type(fs)):
        cachable, lists = False, {}

        def ls(self, path, detail=True, **kwargs):
            if path not in self.lists:
                self.lists[path] = super().ls(path, detail=False, **kwargs)
            return self.lists[path]

        def invalidate_cache(self, path=None):
            self.lists.pop(path, None)
    remembers = Remembers()
    fs.put('x/000000', '/data/w/000000', recursive=True)
    assert len(remembers.ls('/data/w')) == 1
    fs.put('x/000001', '/data/w/000001', recursive=True)
    assert len(bags.DatasetReader('/data/w', storage=remembers)) == 40

    class Bad(type(fs)):
        cachable = False
        broken = True

        def cat_file(self, path, *args, **kwargs):
            if self.broken and path.endswith('t.bag'):
                raise ZeroDivisionError('mine')
            return super().cat_file(path, *args, **kwargs)
    bad = Bad()
    reader = bags.DatasetReader('/data/x', storage=bad)
    for _ in range(2):
        raises(OSError, lambda: reader[3], says='mine')
        assert reader[3, ('n',)] == {'n': 9}
    raises(OSError, list, bags.Loader(reader, skip_damaged=True), says='mine')
    bad.broken = False
    _check(reader)
    raises((OSError, TypeError, AttributeError), bags.DatasetReader, 'x', storage=3)


def servers_are_read():
    sys.path.insert(0, str(HERE.parent / 'command'))
    import server
    sys.path.pop(0)
    _write('x')
    bags.write_zip('x', 'x.zip')
    one = server.Server('.', index=True)
    url = one.url
    try:
        reader = bags.DatasetReader(f'{url}/x')
    except ValueError as error:
        one.shutdown()
        raise Skip(str(error))
    _check(reader)
    assert len(list(bags.Loader(reader, 10, prefetch=True))) == 5
    _check(bags.DatasetReader(f'{url}/x.zip'))
    _check(pickle.loads(pickle.dumps(reader)))
    raises(FileNotFoundError, bags.DatasetReader, f'{url}/none')
    for _ in range(2):  # the second time from the cache
        kept = bags.DatasetReader(f'{url}/x', storage={'cache': 'kept', 'cache_size': 1 << 24})
        _check(kept)
        _check(pickle.loads(pickle.dumps(kept)))
    assert sum(len(files) for _, _, files in os.walk('kept')) > 0
    for storage, kind in (({'nope': 1}, TypeError), ({'key': 3}, TypeError), ({'cache_size': -1}, ValueError),
                          ({'cache': 'kept', 'cache_size': 7}, ValueError)):
        raises(kind, bags.DatasetReader, f'{url}/x', storage=storage)
    child = os.fork()
    if child == 0:
        try:
            bags.DatasetReader('x')[0]
            reader[0]
            os._exit(1)
        except OSError:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    reader.close()
    one.shutdown()
    one.server_close()
