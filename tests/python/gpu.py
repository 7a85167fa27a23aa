"""The Loader's device, with cuda_mock.c in place of the driver, whose GPU shares the memory of the
process."""
import os
import pathlib
import subprocess
import sys

import bags
from run import HERE, Skip, raises

IMAGES = HERE.parent / 'data' / 'images'
NAMES = '420 422 440 444 gray progressive restart odd 420 422 440 444'.split()

PROGRAM = '''if True:
    import ctypes, gc
    import bags, numpy as np

    class Managed(ctypes.Structure):
        _fields_ = [('data', ctypes.c_void_p), ('kind', ctypes.c_int), ('number', ctypes.c_int),
                    ('dims', ctypes.c_int), ('code', ctypes.c_ubyte), ('bits', ctypes.c_ubyte),
                    ('lanes', ctypes.c_ushort), ('shape', ctypes.POINTER(ctypes.c_int64)),
                    ('strides', ctypes.c_void_p), ('offset', ctypes.c_uint64),
                    ('owner', ctypes.c_void_p), ('deleter', ctypes.CFUNCTYPE(None, ctypes.c_void_p))]

    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]

    def read(tensor):
        assert tensor.__dlpack_device__() == (2, 0)
        capsule = tensor.__dlpack__(stream=1)
        address = pointer(capsule, b'dltensor')
        managed = Managed.from_address(address)
        assert (managed.kind, managed.number, managed.lanes, managed.strides) == (2, 0, 1, None)
        shape = tuple(managed.shape[:managed.dims])
        assert shape == tensor.shape
        kind = {(1, 8): 'uint8', (2, 32): 'float32'}[managed.code, managed.bits]
        assert kind == tensor.dtype
        size = int(np.prod(shape)) * managed.bits // 8
        out = np.frombuffer(ctypes.string_at(managed.data, size), kind).reshape(shape)
        rename(capsule, USED)
        del capsule
        return out, lambda: managed.deleter(address)

    USED = b'used_dltensor'  # as a consumer does
    mock = ctypes.CDLL('libcuda.so.1')
    for dtype in 'uint8', 'float32':
        fields = {'image': {'width': 24, 'height': 16, 'crop': 'random', 'flip_x': .5, 'dtype': dtype,
                            'nchw': True, 'matrix': True}, 'n': None}
        on_gpu = bags.Loader('x', 5, fields=fields, seed=3, device=0)
        kept = []
        for got, expected in zip(on_gpu, bags.Loader('x', 5, fields=fields, seed=3), strict=True):
            assert got.keys() == expected.keys()
            assert np.array_equal(got['n'], expected['n'])
            assert np.array_equal(got['image_matrix'], expected['image_matrix'])
            array, done = read(got['image'])
            assert np.array_equal(array, expected['image'])
            kept.append(done)
        assert on_gpu.on_cpu == 2, on_gpu.on_cpu  # progressive, odd
        tensor = got['image']
        for wrong in {'stream': 5}, {'copy': True}:
            try:
                tensor.__dlpack__(**wrong)
            except BufferError:
                continue
            assert False, wrong
        tensor.__dlpack__()  # is never consumed
        on_gpu.close()
        again, done = read(tensor)
        assert np.array_equal(again, array)
        del tensor, got
        gc.collect()
        assert mock.mock_objects() > 0
        for done in *kept, done:
            done()
        assert mock.mock_objects() == 0
    print('equal')
'''


def _mock():
    path = pathlib.Path(bags.__file__).resolve().parents[1]
    flavour = path.parent if path.name == 'python' and path.parent.name != 'build' else path.parent / 'release'
    mock = flavour / 'tests/formats/load/mock'
    if not (mock / 'libcuda.so.1').exists():
        raise Skip(f'{mock} was not built: make programs NAMES=test_cuda')
    return mock


def _dataset():
    encoders = {**bags.encoders, 'jpeg': None}
    with bags.DatasetWriter('x', {'image': 'jpeg', 'n': 'int'}, encoders) as writer:
        for n, name in enumerate(NAMES):
            writer.append({'image': (IMAGES / f'{name}.jpg').read_bytes(), 'n': n})


def batches_on_a_gpu_equal_those_of_the_cpu():
    mock = _mock()
    _dataset()
    done = subprocess.run([sys.executable, '-c', PROGRAM], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=300,
                          env={**os.environ, 'LD_LIBRARY_PATH': str(mock)})
    assert (done.returncode, done.stdout) == (0, 'equal\n'), done


VIDEO_PROGRAM = '''if True:
    import ctypes
    import bags, numpy as np

    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    fields = {'view': {'width': 24, 'height': 16, 'crop': 'random', 'nchw': True, 'offsets': (-1, 0, 3)}, 'clock': None}
    options = {'fields': fields, 'frames': 'clock', 'seed': 3}
    on_gpu = bags.Loader('v', 7, device=0, **options)
    for got, expected in zip(on_gpu, bags.Loader('v', 7, **options), strict=True):
        assert np.array_equal(got['clock'], expected['clock'])
        assert np.array_equal(got['view_pad'], expected['view_pad'])
        capsule = got['view'].__dlpack__()
        size = int(np.prod(got['view'].shape))
        bytes = ctypes.string_at(ctypes.c_uint64.from_address(pointer(capsule, b'dltensor')).value, size)
        array = np.frombuffer(bytes, 'u1').reshape(got['view'].shape)
        assert array.shape == expected['view'].shape
        # Colours depend on the processor for which libswscale is compiled.
        assert np.abs(array.astype('i2') - expected['view']).max() <= 3
    assert on_gpu.on_cpu == 60, on_gpu.on_cpu  # of 10 bits
    print('equal')
'''


def frames_on_a_gpu_equal_those_of_the_cpu():
    if not bags.build['mp4']:
        raise Skip('no mp4')
    mock = _mock()
    with bags.DatasetWriter('v', {'clock': 'int(4)[]', 'view': 'mp4'}, {**bags.encoders, 'mp4': None}) as writer:
        for name in 'h264_bt709', 'hevc_10_bit', 'av1':
            writer.append({'clock': list(range(20)), 'view': (IMAGES.parent / 'video' / f'{name}.mp4').read_bytes()})
    done = subprocess.run([sys.executable, '-c', VIDEO_PROGRAM], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=300,
                          env={**os.environ, 'LD_LIBRARY_PATH': str(mock)})
    assert (done.returncode, done.stdout) == (0, 'equal\n'), done


def images_of_float16_are_rounded_numbers_of_float32():
    _dataset()
    for std in 1, .3, 1e-3, 1000, 1e6:
        options = {'width': 24, 'height': 16, 'mean': (.1, .2, .5), 'std': (std, std, 1)}
        wide, narrow = (next(iter(bags.Loader('x', 5, fields={'image': {**options, 'dtype': dtype}}, seed=3)))
                        for dtype in ('float32', 'float16'))
        assert narrow['image'].dtype == 'float16'
        assert (narrow['image'] == wide['image'].astype('float16')).all()
    raises(ValueError, bags.Loader, 'x', fields={'image': {**options, 'dtype': 'float16', 'std': (1e-6, 1, 1)}},
           says='out of range for float16')


def a_device_that_cannot_be_used_is_an_error():
    _dataset()
    fields = {'image': {'width': 24, 'height': 16}}
    raises(ValueError, bags.Loader, 'x', fields=fields, device=-1, says='device: -1')
    raises(TypeError, bags.Loader, 'x', fields=fields, device='gpu')
    raises((OSError, bags.DataError), bags.Loader, 'x', fields=fields, device=2 ** 31 - 1, says='GPU')
