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


def _dataset():
    pack([{'n': 7, 'photo': {'file': str(JPEG)}, 'clip': {'file': str(VIDEO)}}],
         'n=int,photo=jpeg,clip=mp4', 'set')


def _quick():
    """Calls that meet no video."""
    return [['--version'], ['help'], ['help', 'types'], ['info', 'set'], ['get', 'set', '0', 'n'],
            ['get', 'set', '0', 'photo'], ['get', 'set', '0', 'photo', '--raw'], ['verify', 'set']]


def _loaded(words):
    """The shared libraries that a call loads, as glibc reports them."""
    environment = dict(os.environ, LD_DEBUG='files', LD_DEBUG_OUTPUT=os.path.abspath('loaded'))
    subprocess.run([harness.PROGRAM, *words], env=environment, check=True,
                   stdout=subprocess.DEVNULL)
    lines = ''
    for path in pathlib.Path().glob('loaded.*'):
        lines += path.read_text()
        path.unlink()
    return {line.split()[-1] for line in lines.splitlines() if 'calling init: ' in line}


def _cpu_seconds(words):
    """The least CPU time of a call, which does not depend on other programs."""
    null = os.open(os.devnull, os.O_RDWR)
    least = 1e9
    for _ in range(15):
        actions = [(os.POSIX_SPAWN_DUP2, null, 1)]
        process = os.posix_spawn(words[0], words, os.environ, file_actions=actions)
        _, status, usage = os.wait4(process, 0)
        assert status == 0, (words, status)
        least = min(least, usage.ru_utime + usage.ru_stime)
    os.close(null)
    return least


def a_call_without_video_loads_at_most_20_libraries():
    _dataset()
    for words in _quick():
        loaded = _loaded(words)
        assert len(loaded) <= 20, (words, len(loaded), sorted(loaded))
        assert not [name for name in loaded if 'libav' in name or 'curl' in name], (words, loaded)


def a_call_without_video_takes_10_ms_more_than_an_empty_program():
    if '/release/' not in str(pathlib.Path(harness.PROGRAM).resolve()):
        return  # sanitizers start slowly
    _dataset()
    nothing = _cpu_seconds(['/bin/true'])
    for words in _quick():
        seconds = _cpu_seconds([harness.PROGRAM, *words]) - nothing
        assert seconds <= 0.010, (words, seconds)


if LIBRARIES:
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
            for words, format in [(['get', 'set', '0', 'clip', '--npy'], 'mp4'),
                                  (['info', 'http://127.0.0.1:1/set'], 'http'),
                                  (['import', 'set', 'out', '--from', 'hdf5'], 'import/hdf5'),
                                  (['import', str(JPEG), 'out'], 'import/hdf5')]:
                name = f'libbags-{format.replace("/", "-")}.so.'
                refuse(*words, says=[name, f'formats/{format}.c is in {name}', '../lib'])
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
