"""bags load --device, with cuda_mock.c in place of the driver."""
import os
import pathlib
import shutil

import harness
from harness import pack, refuse, run

IMAGES = pathlib.Path(__file__).resolve().parents[1] / 'data' / 'images'
VIDEOS = IMAGES.parent / 'video'


def _dataset():
    pathlib.Path('d').mkdir()
    for name in '420 422 444 gray progressive restart'.split():
        shutil.copy(IMAGES / f'{name}.jpg', 'd')
    run('images', 'd', 'x')


def images_are_made_on_a_gpu():
    mock = pathlib.Path(harness.PROGRAM).resolve().parent / 'tests/formats/load/mock'
    if not (mock / 'libcuda.so.1').exists():
        print(f'skipped gpu: {mock} was not built: make programs NAMES=test_cuda')
        return
    _dataset()
    env = {**os.environ, 'LD_LIBRARY_PATH': str(mock)}
    words = ['load', 'x', '--crop', '32', '--batch', '4', '--indices']
    on_gpu = run(*words, '--device', '0', env=env)
    assert on_gpu.lines == run(*words).lines
    assert '; the CPU made 1 image\n' in on_gpu.err, on_gpu.err
    refuse(*words, '--device', '1', env=env, says='no GPU 1 (GPUs found: 1)')


def frames_of_videos_are_made_on_a_gpu():
    mock = pathlib.Path(harness.PROGRAM).resolve().parent / 'tests/formats/load/mock'
    if not (mock / 'libnvcuvid.so.1').exists():
        print(f'skipped gpu: {mock} was not built: make programs NAMES=test_cuda')
        return
    videos = 'h264_bt709 hevc_10_bit av1'.split()
    pack([{'clock': list(range(20)), 'view': {'file': f'{VIDEOS}/{name}.mp4'}} for name in videos],
         'clock=int(4)[],view=mp4', 'v')
    env = {**os.environ, 'LD_LIBRARY_PATH': str(mock)}
    words = ['load', 'v', '--frames', 'clock', '--fields', 'view', '--crop', '32', '--batch', '4', '--indices']
    on_gpu = run(*words, '--device', '0', env=env)
    assert on_gpu.lines == run(*words).lines
    assert '; the CPU made 20 images\n' in on_gpu.err, on_gpu.err  # of 10 bits


def what_excludes_a_gpu_is_refused():
    _dataset()
    refuse('load', 'x', '--device', '0', says='--device needs --crop', code=2)
    refuse('load', 'x', '--device', '0', '--crop', '8', '--digest',
           says='--device and --digest are mutually exclusive', code=2)
    refuse('load', 'x', '--device', '4000000000', '--crop', '8', says='GPU')
