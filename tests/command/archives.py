"""Datasets in zip and tar files, those of bags zip and those of others."""
import fcntl
import io
import json
import os
import pathlib
import re
import resource
import shutil
import struct
import subprocess
import tarfile
import zipfile

import golden_data
import harness
from harness import GOLDEN, each, files, pack, refuse, run

SPEC = 'n=int(4),words=utf8[],photo=bytes'


def _rows(count=5):
    return [{'n': i, 'words': [f'w{k}' for k in range(i)],
             'photo': {'base64': 'AAAA' * (9 + i)}} for i in range(count)]


def _dataset(*options):
    pack(_rows(), SPEC, 'pets', *options)


def _python_zip(path, folder, top='', **how):
    with zipfile.ZipFile(path, 'w', **how) as archive:
        for name in sorted(files(folder)):
            archive.write(pathlib.Path(folder) / name, top + name)


def _python_tar(path, folder, top='', form=tarfile.PAX_FORMAT):
    with tarfile.open(path, 'w', format=form) as archive:
        archive.add(folder, arcname=top or '.')


def _same(command, plain, packed):
    """The command prints the same for both paths, but for the paths."""
    def result(path):
        done = subprocess.run([harness.PROGRAM, *command, path],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        text = (done.stdout + done.stderr).decode('utf-8', 'replace')
        assert 'Sanitizer' not in text, text
        return done.returncode, text.replace(str(path), 'PATH')
    one, two = result(plain), result(packed)
    assert one == two, (one, two)
    return one[0]


def _all(path):
    return run('get', path, ':').out


def _folder(fixture):
    return GOLDEN / fixture / 'data'


def _good():
    return [f for f in golden_data._good() if _folder(f).is_dir()]


def _bad():
    return [f for f in golden_data._fixtures(golden_data.WRITERS, good=False)
            if _folder(f).is_dir()]


@each(_good)
def a_golden_dataset_is_the_same_in_archives(fixture):
    folder = _folder(fixture)
    want = _all(folder)
    _python_zip('a.zip', folder, 'top/dir/')
    _python_tar('a.tar', folder)
    run('zip', folder, 'ours.zip', '--no-sync')
    paths = ['a.zip/top/dir', 'a.tar', 'ours.zip']
    for path in paths:
        assert _all(path) == want
    run('verify', '--jobs', '1', *paths)
    with zipfile.ZipFile('ours.zip') as archive:
        archive.extractall('out')
        assert archive.testzip() is None
    written = files(folder)
    assert files('out') == {name: data for name, data in written.items()
                            if name.endswith(('.bag', '.idx', 'spec.json'))}


@each(_bad)
def a_golden_fault_is_the_same_in_archives(fixture):
    folder = _folder(fixture)
    _python_zip('a.zip', folder, 'top/')
    _python_tar('a.tar', folder, 'top')
    for path in 'a.zip/top', 'a.tar/top':
        _same(['info'], folder, path)
        _same(['verify', '--jobs', '1'], folder, path)
    refuse('zip', folder, 'ours.zip')
    assert not pathlib.Path('ours.zip').exists()


def golden_bags_are_read_in_an_archive():
    _python_tar('all.tar', GOLDEN, 'all')
    for fixture in golden_data._good():
        bag = GOLDEN / fixture / 'data.bag'
        if bag.exists():
            path = f'all.tar/all/{fixture}/data.bag'
            assert _same(['info'], bag, path) == 0
            assert _same(['verify'], bag, path) == 0


def every_command_that_reads_accepts_archives():
    _dataset('--shard-length', '2', '--checksum')
    made = run('zip', 'pets', 'a.zip', '--no-sync').out.decode()
    assert made == f"a.zip: wrote pets in {os.path.getsize('a.zip')} bytes\n", made
    _python_tar('a.tar', 'pets', 'in/side')
    run('catalogue', 'pets')  # as a copy has
    for path in 'a.zip', 'a.tar/in/side':
        out = run('copy', path, 'out').out.decode()
        assert 'files copied out of the archive, 0 already equal' in out, out
        refuse('copy', path, 'b.zip', says='a directory; copy the archive itself', code=2)
        assert files('out') == files('pets')
        shutil.rmtree('out')
    refuse('copy', 'pets', 'b.zip', says='`bags zip`', code=2)
    refuse('info', 'a.tar', says='; there is a directory a.tar/in')
    refuse('info', 'a.tar/in', says='; it contains the dataset a.tar/in/side')
    for path in 'a.zip', 'a.tar/in/side', './a.tar//in/./side/':
        assert _same(['info'], 'pets', path) == 0
        plain, packed = run('info', 'pets', '--json'), run('info', path, '--json')
        assert {**plain.json, 'path': 0} == {**packed.json, 'path': 0}
        assert packed.json['checksums'] == 3 and packed.json['path'] == path
        assert run('get', path, '1:', '--check').out == \
            run('get', 'pets', '1:', '--check').out
        assert 'with checksums' in run('verify', path, '--decode').out.decode()
        shutil.rmtree('out', ignore_errors=True)
        run('export', path, 'out')
        run('export', 'pets', 'plain')
        assert files('out') == files('plain')
        shutil.rmtree('plain')
    shard = run('get', 'a.zip/000001', '0').json
    assert shard['n'] == 2
    assert run('info', 'a.zip/000001/n.bag', '--json').json['checksums'] == 1
    assert len(run('verify', 'a.zip', 'a.tar/in/side', 'pets').out.splitlines()) == 3


def a_damaged_byte_is_found_in_a_zip():
    _dataset('--checksum')
    run('zip', 'pets', 'a.zip', '--no-sync')
    data = bytearray(pathlib.Path('a.zip').read_bytes())
    data[data.index(b'w0')] ^= 1
    pathlib.Path('a.zip').write_bytes(data)
    refuse('verify', 'a.zip', says=('a.zip/words.bag', 'checksum mismatch'))


def verify_continues_after_an_archive_that_is_invalid():
    _dataset()
    pathlib.Path('bad.zip').write_bytes(b'PK')
    result = run('verify', 'bad.zip', 'pets', code=1)
    assert 'bad.zip: neither a zip file' in result.err, result.err
    assert 'pets: good' in result.out.decode(), result.out


def archives_are_not_written_to():
    _dataset()
    run('zip', 'pets', 'a.zip', '--no-sync')
    before = pathlib.Path('a.zip').read_bytes()
    for words in (['recover', 'a.zip'], ['finalize', 'a.zip'],
                  ['checksum', 'a.zip'], ['zip', 'pets', 'a.zip/b.zip'],
                  ['index', 'a.zip', 'n'], ['index', 'a.zip/sub', 'n'],
                  ['pack', 'manifest.jsonl', 'a.zip/more', '--spec', SPEC],
                  ['pack', 'manifest.jsonl', 'a.zip', '--spec', SPEC]):
        refuse(*words, says=('a.zip', 'archive is only read'))
    assert pathlib.Path('a.zip').read_bytes() == before


def what_cannot_be_read_in_place_is_refused_by_name():
    _dataset()
    _python_zip('a.zip', 'pets', compression=zipfile.ZIP_DEFLATED)
    refuse('info', 'a.zip', says=('a.zip', 'n.bag', 'compressed', 'zip -0'))
    with tarfile.open('a.tar.gz', 'w:gz') as archive:
        archive.add('pets')
    refuse('info', 'a.tar.gz', says=('a.tar.gz', 'decompress it'))
    pathlib.Path('link.bag').symlink_to('pets/n.bag')
    with tarfile.open('links.tar', 'w') as archive:
        archive.add('link.bag')
    refuse('info', 'links.tar', says=('links.tar', 'link.bag', 'a link'))
    with zipfile.ZipFile('evil.zip', 'w') as archive:
        archive.write('pets/n.bag', 'n.bag')
        archive.writestr('../evil', 'x')
    refuse('info', 'evil.zip', says=('evil.zip', '../evil', 'outside'))
    _python_tar('top.tar', 'pets', 'top')
    refuse('info', 'top.tar', says=('not a dataset', 'top.tar/top'))
    refuse('info', 'top.tar/none', says='top.tar/none')


def a_zip_appears_once_and_complete():
    _dataset('--checksum')
    leftover = pathlib.Path('a.zip.partial')
    with leftover.open('w') as file:
        file.write('of a killed process' * 9999)
        fcntl.flock(file, fcntl.LOCK_EX)
        refuse('zip', 'pets', 'a.zip', says=('a.zip', 'locked'))
    assert leftover.exists()
    run('zip', 'pets', 'a.zip')
    assert not leftover.exists()
    first = pathlib.Path('a.zip').read_bytes()
    refuse('zip', 'pets', 'a.zip', says=('a.zip', 'exists'))
    run('zip', 'pets/', 'b.zip')
    assert pathlib.Path('b.zip').read_bytes() == first
    with zipfile.ZipFile('a.zip') as archive:
        names = archive.namelist()
        assert names[-1] == 'spec.json' and 'n.crc' in names
        for entry in archive.infolist():
            header = first[entry.header_offset:entry.header_offset + 30]
            start = entry.header_offset + 30 + int.from_bytes(
                header[26:28], 'little') + int.from_bytes(header[28:], 'little')
            assert not entry.filename.endswith('.bag') or start % 4096 == 0
            assert entry.date_time == (1980, 1, 1, 0, 0, 0)
    before = sorted(p.name for p in pathlib.Path().iterdir())
    refuse('zip', 'pets', 'c.zip', says='c.zip', preexec_fn=lambda:
           resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)))
    refuse('zip', 'pets', 'none/c.zip', says='none/c.zip')
    refuse('zip', 'pets/n.bag', 'c.zip', says='not a dataset')
    refuse('zip', 'pets', 'c.tar', says='.zip', code=2)
    refuse('zip', 'pets', '-', says='.zip', code=2)
    pathlib.Path('pets/spec.json').rename('pets/spec.json.partial')
    refuse('zip', 'pets', 'c.zip', says='unfinished')
    pathlib.Path('pets/spec.json.partial').rename('pets/spec.json')
    assert sorted(p.name for p in pathlib.Path().iterdir()) == before


def a_zip_carries_the_mark_of_finalize():
    _dataset('--shard-length', '2')
    shutil.rmtree('pets/000001')
    run('finalize', 'pets')
    os.remove('pets/000000/catalogue')  # a zip has none
    run('zip', 'pets', 'a.zip', '--no-sync')
    with zipfile.ZipFile('a.zip') as archive:
        archive.extractall('out')
    assert 'finalized' in files('out/000000') and files('out') == files('pets')
    refuse('pack', 'manifest.jsonl', 'out', '--resume', '--shard-length', '2',
           '--spec', SPEC, says='finalized')


def a_zip_of_shards_ends_with_small_files():
    rows = [{'n': i, 'photo': {'base64': 'AAAA' * 30000}, 'words': []}
            for i in range(4)]
    pack(rows, SPEC, 'pets', '--shard-length', '2')
    run('zip', 'pets', 'a.zip', '--no-sync')
    with zipfile.ZipFile('a.zip') as archive:
        names = archive.namelist()
        first = [entry.header_offset for entry in archive.infolist()]
    assert first == sorted(first)
    assert names[:2] == ['000000/photo.bag', '000001/photo.bag'], names
    assert names[-2:] == ['000000/spec.json', '000001/spec.json'], names


def a_zip_is_made_of_an_archive_like_of_files():
    _dataset('--shard-length', '2', '--checksum')
    run('zip', 'pets', 'a.zip', '--no-sync')
    _python_tar('a.tar', 'pets', 'in')
    for source in 'a.zip', 'a.tar/in':
        run('zip', source, 'b.zip', '--no-sync')
        assert files('.')['b.zip'] == files('.')['a.zip']
        pathlib.Path('b.zip').unlink()


def names_of_shards_may_have_many_digits():
    _dataset('--shard-length', '2')
    want = _all('pets')
    for i in range(3):
        pathlib.Path(f'pets/{i:06d}').rename(f'pets/{i:0100d}')
    run('zip', 'pets', 'a.zip', '--no-sync')
    assert _all('a.zip') == want
    run('index', 'pets', 'n')
    assert run('get', 'pets', '--key', 'n=3', 'n').json == {'#': 3, 'n': 3}
    run('zip', 'pets', 'b.zip', '--no-sync')
    assert run('get', 'b.zip', '--key', 'n=3', 'n').json == {'#': 3, 'n': 3}


def a_field_of_any_script_is_found():
    pathlib.Path('given.json').write_text(json.dumps({'größe ü': 'utf8'}))
    pack([{'größe ü': 'x'}], 'given.json', 'pets')
    want = _all('pets')
    run('zip', 'pets', 'ours.zip', '--no-sync')
    _python_zip('a.zip', 'pets')
    for path in 'ours.zip', 'a.zip':
        assert _all(path) == want
    for tool in WRITERS:
        if _has(tool):
            path = WRITERS[tool]()
            assert _all(path) == want, tool


def _tool(*words, **options):
    subprocess.run([str(w) for w in words], check=True, timeout=60,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   **options)


def _written(path, *words):
    pathlib.Path(path).unlink(missing_ok=True)
    _tool(*words, cwd='pets')
    return path


# What other programs write: each returns the path of the dataset in it.
WRITERS = {
    'zip': lambda: _written('z.zip', 'zip', '-r0', '../z.zip', '.'),
    'tar': lambda: _written('g.tar', 'tar', 'cf', '../g.tar', '.'),
    'tar --format=pax': lambda: _written(
        'p.tar', 'tar', 'cf', '../p.tar', '--format=pax', '.'),
    'tar --format=v7': lambda: _written(
        'v.tar', 'tar', 'cf', '../v.tar', '--format=v7', '.'),
    'bsdtar': lambda: _written('b.tar', 'bsdtar', 'cf', '../b.tar', '.'),
    'bsdtar --format zip': lambda: _written(
        'b.zip', 'bsdtar', 'cf', '../b.zip', '--format', 'zip', '--options',
        'zip:compression=store', '.'),
    '7z': lambda: _written('7.zip', '7z', 'a', '-tzip', '-mx0', '../7.zip', '.'),
    '7z -ttar': lambda: _written('7.tar', '7z', 'a', '-ttar', '../7.tar', '.'),
}

# What other programs unpack, into out/.
READERS = {
    'unzip': ('unzip', '-q', '../a.zip'),
    'bsdtar': ('bsdtar', 'xf', '../a.zip'),
    '7z': ('7z', 'x', '../a.zip'),
}


def _has(tool):
    found = shutil.which(tool.split()[0])
    if not found:
        print(f'skipped {tool}: not found')
    return found


@each(list(WRITERS))
def the_archives_of_others_are_read(tool):
    if not _has(tool):
        return
    for options in (), ('--shard-length', '2', '--checksum'):
        shutil.rmtree('pets', ignore_errors=True)
        _dataset(*options)
        path = WRITERS[tool]()
        assert _all(path) == _all('pets')
        assert _same(['verify', '--jobs', '1'], 'pets', path) == 0


@each(list(READERS))
def others_unpack_our_zip_files(tool):
    if not _has(tool):
        return
    _dataset('--shard-length', '2', '--checksum')
    run('zip', 'pets', 'a.zip', '--no-sync')
    if tool == 'unzip':
        _tool('unzip', '-t', 'a.zip')
    pathlib.Path('out').mkdir()
    _tool(*READERS[tool], cwd='out')
    assert files('out') == files('pets')


@each([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def long_names_of_python_are_read(form):
    _dataset()
    top = '/'.join(['a directory'] * (12 if form == tarfile.USTAR_FORMAT else 40))
    _python_tar('a.tar', 'pets', top, form)
    assert _all('a.tar/' + top) == _all('pets')


def a_zip_that_was_streamed_or_has_a_front_is_read():
    _dataset()

    class Pipe(io.RawIOBase):
        data = b''

        def writable(self):
            return True

        def write(self, more):
            self.data += bytes(more)
            return len(more)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, 'w') as archive:
        for name, data in files('pets').items():
            with archive.open(name, 'w', force_zip64=name == 'n.bag') as file:
                file.write(data)
        archive.comment = b'a comment'
    pathlib.Path('a.zip').write_bytes(b'#!/bin/sh\n' + pipe.data)
    assert _all('a.zip') == _all('pets')


def the_disk_of_a_member_may_be_in_zip64():
    _dataset()
    with zipfile.ZipFile('a.zip', 'w') as archive:
        for name, data in files('pets').items():
            info = zipfile.ZipInfo(name)
            info.extra = struct.pack('<HHI', 1, 4, 0)
            archive.writestr(info, data)
    data = bytearray(pathlib.Path('a.zip').read_bytes())
    for entry in re.finditer(b'PK\1\2', bytes(data)):
        data[entry.start() + 34:entry.start() + 36] = b'\xff\xff'
    pathlib.Path('a.zip').write_bytes(data)
    assert _all('a.zip') == _all('pets')
