"""The formats whose libraries are opened when they are needed, and without them."""
import os
import pathlib
import shutil
import subprocess

import harness
from harness import pack, refuse, run

LIBRARIES = sorted(pathlib.Path(harness.PROGRAM).resolve().parent.glob('libbags-*.so.*'))
JPEG = harness.ROOT / 'tests/data/photos/china.jpg'
VIDEO = harness.ROOT / 'tests/data/video/mpeg4_odd.mp4'


# What a call may need whose data has no field of a format: as many times what /bin/true needs.
FAULTS, LOADED = 3, 4


def _dataset():
    pack([{'n': 7, 'photo': {'file': str(JPEG)}, 'clip': {'file': str(VIDEO)}}],
         'n=int,photo=jpeg,clip=mp4', 'set')


def _loaded(words):
    """The shared libraries that a call loads, as glibc reports them."""
    environment = dict(os.environ, LD_DEBUG='files', LD_DEBUG_OUTPUT=os.path.abspath('loaded'))
    subprocess.run(words, env=environment, check=True, stdout=subprocess.DEVNULL)
    lines = ''
    for path in pathlib.Path().glob('loaded.*'):
        lines += path.read_text()
        path.unlink()
    return {line.split()[-1] for line in lines.splitlines() if 'calling init: ' in line}


def _faults(words):
    """The fewest page faults of a call: they vary with the addresses of libraries."""
    null = os.open(os.devnull, os.O_RDWR)
    counts = []
    for _ in range(5):
        actions = [(os.POSIX_SPAWN_DUP2, null, 1)]
        process = os.posix_spawn(words[0], words, os.environ, file_actions=actions)
        _, status, usage = os.wait4(process, 0)
        assert status == 0, (words, status)
        counts.append(usage.ru_minflt + usage.ru_majflt)
    os.close(null)
    return min(counts)


if LIBRARIES:
    # Sanitizers have libraries and memory of their own.
    if '/release/' in str(pathlib.Path(harness.PROGRAM).resolve()):
        def a_call_without_formats_needs_little_more_than_an_empty_program():
            pack([{'n': 7, 's': ['x'], 'a': [1, 2]}], 'n=int,s=utf8[],a=array(float32,-1)', 'plain')
            faults, loaded = _faults(['/bin/true']), len(_loaded(['/bin/true']))
            for words in [['--version'], ['help'], ['help', 'types'], ['help', 'man'],
                          ['info', 'plain'], ['get', 'plain', '0'], ['get', 'plain', '0', 'n'],
                          ['verify', 'plain']]:
                call = [harness.PROGRAM, *words]
                assert _faults(call) <= FAULTS * faults, (words, _faults(call), faults)
                assert len(_loaded(call)) <= LOADED * loaded, (words, _loaded(call))

    def a_call_opens_the_libraries_of_the_formats_that_it_needs():
        _dataset()
        pack([{'text': 'x', 'tree': {'a': 1}}], 'text=zstd(utf8),tree=msgpack', 'other')
        pathlib.Path('some.csv').write_text('a,b\n1,2\n')
        for words, formats in [('info set', ''), ('get set 0 n', ''), ('verify set', ''),
                               ('get set 0 photo --raw', ''), ('get set 0 photo', 'jpeg'),
                               ('get set 0 clip', 'mp4'), ('verify other', ''),
                               ('get other 0 text --raw', ''), ('get other 0 text', 'zstd'),
                               ('get other 0 tree', 'msgpack'),
                               ('sql set SELECT(n)FROM(data)', 'sql'),
                               ('import some.csv out', 'import-csv')]:
            loaded = {os.path.basename(name) for name in
                      _loaded([harness.PROGRAM, *words.split(' ')])}
            found = {name.split('.')[0] for name in loaded if name.startswith('libbags-')}
            assert found == {f'libbags-{format}' for format in formats.split()}, (words, found)

    def every_importer_of_a_library_is_found():
        for name in run('--version').out.decode().split('importers: ')[1].split():
            said = refuse('import', 'nothing', 'out', '--from', name).err
            assert 'nothing' in said and 'libbags' not in said, said

    def _alone():
        """A copy of the command, without the libraries next to it."""
        os.mkdir('bin')
        shutil.copy(harness.PROGRAM, 'bin/bags')
        harness.PROGRAM, before = os.path.abspath('bin/bags'), harness.PROGRAM
        return before

    def all_but_a_missing_format_works():
        before = _alone()
        try:
            _dataset()
            assert run('get', 'set', '0', 'n').json['n'] == 7
            run('verify', 'set')
            run('get', 'set', '0', 'clip', '--raw')
            run('export', 'set', 'exported')
            for field in 'photo', 'clip':
                shown = run('get', 'set', '0', field)
                assert list(shown.json[field]) == ['type', 'bytes']
                assert 'libbags-' in shown.err, shown.err
            said = run('verify', 'set', '--decode', code=1)
            lines = said.out.decode().splitlines()
            for field in 'clip', 'photo':
                (line,) = (line for line in lines if f'field "{field}"' in line)
                assert '1 blob not decoded: no codec for type' in line, line
            assert len(lines) == 3 and 'no fault found' in lines[-1], lines
            pack([{'text': 'x'}], 'text=utf8', 'text')
            pathlib.Path('some.csv').write_text('a,b\n1,2\n')
            for words, format in [(['get', 'set', '0', 'clip', '--npy'], 'mp4'),
                                  (['get', 'set', '0', 'photo', '--npy'], 'jpeg'),
                                  (['sql', 'set', 'SELECT 1'], 'sql'),
                                  (['derive', 'set', 'out', '--where', 'n = 7'], 'sql'),
                                  (['load', 'set', '--crop', '8'], 'jpeg'),
                                  (['info', 'text', '--ratio', 'text'], 'zstd'),
                                  (['info', 'http://127.0.0.1:1/set'], 'http'),
                                  (['import', 'set', 'out', '--from', 'hdf5'], 'import/hdf5'),
                                  (['import', 'some.csv', 'out'], 'import/csv')]:
                name = f'libbags-{format.replace("/", "-")}.so.'
                refuse(*words, says=[name, f'format {format}: install {name}', '../lib'])
        finally:
            harness.PROGRAM = before

    def a_format_is_found_in_lib_next_to_bin_and_not_in_the_current_directory():
        before = _alone()
        try:
            _dataset()
            for library in LIBRARIES:
                shutil.copy(library, library.name)
            refuse('get', 'set', '0', 'clip', '--npy', says='libbags-mp4.so.')
            os.mkdir('lib')
            for library in LIBRARIES:
                shutil.move(library.name, 'lib')
            assert run('get', 'set', '0', 'clip', '--npy').out.startswith(b'\x93NUMPY')
        finally:
            harness.PROGRAM = before

    def a_video_is_decoded_and_encoded():
        _dataset()
        video = run('get', 'set', '0', 'clip', '--npy').out
        assert b"'shape': (12, 49, 65, 3)" in video[:128] and len(video) == 128 + 12 * 9555
        pathlib.Path('video.npy').write_bytes(video)
        pack([{'clip': {'from': 'video.npy'}}], 'clip=webm(12)', 'again')
        again = run('get', 'again', '0', 'clip', '--npy').out
        assert again[:128] == video[:128]
        refuse('pack', 'manifest.jsonl', 'bad', '--spec', 'clip=webm(0)',
               says='invalid frame rate', code=2)
