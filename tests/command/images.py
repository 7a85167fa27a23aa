"""bags images, .npy files and contact sheets."""
import base64
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import zlib

import harness
from harness import each, files, pack, read, refuse, run, wait_for, write_lines

# A complete JPEG to the command: a frame of 1 x 1, a scan, the end, after which cameras
# may write anything. It is not decoded here.
JPEG = (b'\xff\xd8\xff\xc0\0\x0b\x08\0\1\0\1\1\1\x11\0'
        b'\xff\xda\0\x08\1\1\0\0\x3f\0 not really a picture \xff\xd9')


def _png(width=4, height=3, color=(10, 200, 30)):
    def chunk(kind, data):
        return (struct.pack('>I', len(data)) + kind + data +
                struct.pack('>I', zlib.crc32(kind + data)))
    row = b'\0' + bytes(color) * width
    return (b'\x89PNG\r\n\x1a\n' +
            chunk(b'IHDR', struct.pack('>2I5B', width, height, 8, 2, 0, 0, 0)) +
            chunk(b'IDAT', zlib.compress(row * height)) + chunk(b'IEND', b''))


def _tree(files_of):
    for name, content in files_of.items():
        path = pathlib.Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _images(path='out'):
    rows = run('get', path, '0:99', 'label', 'path').lines
    blobs = [run('get', path, str(i), 'image', '--raw').out
             for i in range(len(rows))]
    return [(r['label'], r['path'], b) for r, b in zip(rows, blobs)]


def _webp(name):
    return (harness.GOLDEN.parent / f'images/{name}.webp').read_bytes()


def files_of_webp_are_images():
    lossy, clear, upright = map(_webp, ('webp-lossy', 'webp-lossless-alpha', 'webp-exif'))
    _tree({'d/a/1.webp': lossy, 'd/b/2.jpg': clear, 'd/b/animated.webp': _webp('bad-webp-animated')})
    refuse('images', 'd', 'out', says=('animated.webp', 'animated WebP'))
    shutil.rmtree('out')
    said = run('images', 'd', 'out', '--skip-damaged').out.decode()
    assert '2 images of type webp (0 JPEG, 0 PNG, 2 WebP), 2 labels' in said, said
    assert _images() == [('a', 'a/1.webp', lossy), ('b', 'b/2.jpg', clear)]
    run('export', 'out', 'x.tar')
    assert b'000001.image.webp' in pathlib.Path('x.tar').read_bytes()
    run('export', 'out', 'folder', '--to', 'images')
    assert files('folder') == {'a/1.webp': lossy, 'b/2.jpg.webp': clear}
    run('import', 'x.tar', 'again')
    assert read('again')['spec']['image.webp'] == 'webp'
    _tree({'d/c/3.png': _png()})
    refuse('images', 'd', 'mixed', code=2, says=('1 PNG and 3 WebP files (c/3.png)', '--type webp'))
    pack([{'w': {'base64': base64.b64encode(lossy).decode()}}], 'w=webp', 'w')
    refuse('pack', write_lines('bad.jsonl', [{'w': {'file': 'd/c/3.png'}}]), 'bad', '--spec', 'w=webp',
           says='not a WebP file but png')
    if not harness.has_codec('webp') or not harness.has_codec('png'):
        refuse('get', 'w', '0', 'w', '--npy', says=('no codec', 'formats/webp.c'))
        return
    assert run('get', 'w', 0).json['w'] == {
        'type': 'webp', 'bytes': len(lossy), 'height': 23, 'width': 37, 'channels': 3}
    # Pixels are the same as a PNG, upright; and batches of them have one digest.
    _tree({'1.webp': lossy, '2.webp': clear, '3.webp': upright})
    rows = [{'i': {'from': f'{i}.webp'}} for i in (1, 2, 3)]
    for kind in 'webp', 'png', 'array':
        pack(rows, f'i={kind}', kind)
        assert 'good' in run('verify', kind, '--decode').out.decode()
    assert [line['i']['height'] for line in run('get', 'webp', ':').lines] == [23, 23, 37]
    for i in range(3):
        arrays = {run('get', kind, i, 'i', '--npy').out for kind in ('webp', 'png', 'array')}
        assert len(arrays) == 1
    digests = {run('load', kind, '--crop', 16, '--digest').json['digest'] for kind in ('webp', 'png')}
    assert len(digests) == 1
    run('derive', 'webp', 'pixels', '--pixels', 'i=8x6')
    assert read('pixels')['spec'] == {'i': 'array(uint8,6,8,3)'}
    run('sheet', 'webp', 'sheet.png')
    gray = str(harness.GOLDEN.parent / 'images/gray.png')
    refuse('pack', write_lines('gray.jsonl', [{'i': {'from': gray}}]), 'gray', '--spec', 'i=webp',
           says='H x W x 3')


def class_folders_become_labels_in_sorted_order():
    _tree({'d/dog/2.jpg': JPEG + b'2', 'd/dog/10.JPEG': JPEG + b'10',
           'd/cat/deep/er/x.jpg': JPEG + b'x', 'd/cat-b/y.jpg': JPEG + b'y',
           'd/top.jpg': JPEG, 'd/cat/a.txt': b'text', 'd/cat/empty.jpg': b'',
           'd/.hidden/z.jpg': JPEG, 'd/dog/.DS_Store': b'x'})
    result = run('images', 'd', 'out')
    assert _images() == [
        ('', 'top.jpg', JPEG), ('cat', 'cat/deep/er/x.jpg', JPEG + b'x'),
        ('cat-b', 'cat-b/y.jpg', JPEG + b'y'),
        ('dog', 'dog/10.JPEG', JPEG + b'10'),
        ('dog', 'dog/2.jpg', JPEG + b'2')]
    assert read('out')['spec'] == {'image': 'jpeg', 'label': 'utf8',
                                   'path': 'utf8'}
    text = result.out.decode()
    assert '5 images' in text and '4 labels' in text
    assert 'left out: 2 files (neither JPEG nor PNG nor WebP)' in text
    assert 'left out: 2 hidden files' in text
    assert 'a.txt' in result.err and 'empty.jpg' in result.err
    run('images', 'd/', 'again')
    assert files('again') == files('out')


def the_type_is_what_all_files_are_or_must_be_chosen():
    _tree({'p/a/1.png': _png(), 'm/a/1.png': JPEG, 'm/a/2.jpg': _png(),
           'm/a/3.jpg': JPEG})
    run('images', 'p', 'png')
    assert read('png')['spec']['image'] == 'png'
    refuse('images', 'm', 'mixed', code=2,
           says=('2 JPEG and 1 PNG', 'a/2.jpg', '--type'))
    assert not pathlib.Path('mixed').exists()
    run('images', 'm', 'mixed', '--type', 'bytes')
    assert read('mixed')['spec']['image'] == 'bytes'
    assert [b for _, _, b in _images('mixed')] == [JPEG, _png(), JPEG]
    run('images', 'p', 'bytes', '--type', 'bytes')
    assert read('bytes')['spec']['image'] == 'bytes'


def links_in_a_circle_end():
    _tree({'d/a/1.jpg': JPEG, 'other/2.jpg': JPEG + b'2'})
    os.symlink('..', 'd/a/up')
    os.symlink('.', 'd/a/self')
    os.symlink('../../d', 'd/a/root')
    os.symlink('../other', 'd/b')
    os.symlink('a', 'd/again')
    os.symlink('nowhere', 'd/dangling')
    os.symlink('loop', 'd/loop')
    os.symlink('1.jpg', 'd/a/3.jpg')
    os.mkfifo('d/a/pipe.jpg')
    result = run('images', 'd', 'out')
    assert _images() == [('a', 'a/1.jpg', JPEG), ('a', 'a/3.jpg', JPEG),
                         ('again', 'again/1.jpg', JPEG),
                         ('again', 'again/3.jpg', JPEG),
                         ('b', 'b/2.jpg', JPEG + b'2')]
    assert 'left out: 6 links (to directories' in result.out.decode(), result.out


def links_neither_hide_nor_rename_a_class():
    _tree({'all/cat/1.jpg': JPEG + b'1', 'all/dog/2.jpg': JPEG + b'2',
           'd/ant/3.jpg': JPEG + b'3'})
    for name, to in [('aaa', '../all'), ('cat', '../all/cat'),
                     ('dog', '../all/dog'), ('hound', '../all/dog'),
                     ('insect', 'ant'), ('ant/more', '../../all/cat')]:
        os.symlink(to, f'd/{name}')
    run('images', 'd', 'out')
    assert [row[:2] for row in _images()] == [
        ('aaa', 'aaa/cat/1.jpg'), ('aaa', 'aaa/dog/2.jpg'),
        ('ant', 'ant/3.jpg'),
        ('cat', 'cat/1.jpg'), ('dog', 'dog/2.jpg'), ('hound', 'hound/2.jpg'),
        ('insect', 'insect/3.jpg')]


def bags_in_the_folder_are_no_images():
    _tree({'d/a/1.jpg': JPEG, 'd/a/2.jpg': JPEG + b'2'})
    run('images', 'd', 'd/out', '--idx')
    run('images', 'd', 'd/shards', '--shard-length', '1')
    assert pathlib.Path('d/out/image.bag').read_bytes().startswith(JPEG)
    for name in 'b.bag', 'B.BAG', 'c.idx', 'd.crc', 'e.crc.partial':
        pathlib.Path('d', name).write_bytes(JPEG)
    done = run('images', 'd', 'again', '--no-checksum')
    assert files('again') == {name: content for name, content in
                              files('d/out').items()
                              if not name.endswith(('.crc', '.idx'))}
    assert '1 label' in done.out.decode(), done.out


@each(['jpeg(0)', 'jpeg(101)', 'jpeg(a)', 'jpeg()', 'png(10)', 'png(1,2)', 'gif',
       'bytes(3)', 'jpeg[]', 'npy', ''])
def a_type_of_images_that_no_codec_accepts_is_refused(kind):
    _tree({'c/a.jpg': _png(), 'c/b.png': _png()})
    if not harness.has_codec(kind):
        return
    refuse('images', 'in', 'out', '--type', kind, says=('--type', f'"{kind}"'), code=2)
    assert not pathlib.Path('out').exists()


@each(['missing', 'a-file', 'empty', 'no-images'])
def a_folder_without_images_leaves_nothing(name):
    _tree({'a-file': JPEG, 'no-images/x.txt': b'x'})
    pathlib.Path('empty').mkdir()
    refuse('images', name, 'out', says=name)
    assert not pathlib.Path('out').exists()


def names_that_are_not_utf8_are_escaped():
    _tree({'d/a/1.jpg': JPEG})
    os.mkdir(b'd/\xe9t\xc3\xa9')
    for name in (b'd/a/\xff.jpg', b'd/\xe9t\xc3\xa9/\xfe'):
        with open(name, 'wb') as file:
            file.write(JPEG + name)
    done = run('images', 'd', 'out').out.decode()
    assert '2 paths are not UTF-8' in done, done
    assert _images() == [
        ('a', 'a/1.jpg', JPEG),
        ('a', 'a/\\xff.jpg', JPEG + b'd/a/\xff.jpg'),
        ('\\xe9té', '\\xe9té/\\xfe', JPEG + b'd/\xe9t\xc3\xa9/\xfe')]


def labels_are_numbers_of_lines_in_a_file_of_classes():
    _tree({'d/dog/1.jpg': JPEG, 'd/cat/2.jpg': JPEG, 'd/top.jpg': JPEG,
           'more/dog/3.jpg': JPEG + b'3', 'new/fox/4.jpg': JPEG})
    run('images', 'd', 'out', '--classes', 'names.txt', '--shard-length', '2')
    assert pathlib.Path('names.txt').read_text() == '\ncat\ndog\n'
    assert read('out')['spec']['label'] == 'int(4)'
    assert [r[:2] for r in _images()] == [
        (0, 'top.jpg'), (1, 'cat/2.jpg'), (2, 'dog/1.jpg')]
    run('images', 'more', 'out', '--classes', 'names.txt', '--append')
    assert _images()[3] == (2, 'dog/3.jpg', JPEG + b'3')
    refuse('images', 'new', 'out', '--classes', 'names.txt', '--append',
           says=('names.txt', '"fox"', 'fox/4.jpg'))
    pathlib.Path('names.txt').write_bytes(b'fox\r\ncat')
    run('images', 'new', 'windows', '--classes', 'names.txt')
    assert _images('windows')[0][0] == 0
    assert sorted(os.listdir()) == ['d', 'more', 'names.txt', 'new', 'out',
                                    'windows']


def of_equal_lines_in_a_file_of_classes_the_first_counts():
    _tree({'d/a/1.jpg': JPEG, 'd/b/2.jpg': JPEG})
    pathlib.Path('names.txt').write_text('b\na\nb\n')
    run('images', 'd', 'out', '--classes', 'names.txt')
    assert [r[0] for r in _images()] == [1, 0]


def _slow_images(seconds):
    """False if it was not slow enough: what followed met the classes without its own."""
    for path in ['d', 'slow', 'out']:
        shutil.rmtree(path, ignore_errors=True)
    pathlib.Path('names.txt').unlink(missing_ok=True)
    _tree({'d/a/1.jpg': JPEG, 'd/c/3.jpg': JPEG})
    slow = subprocess.Popen(
        ['strace', '-o', '/dev/null', '-e', 'trace=rename,link', '-e',
         f'inject=rename,link:delay_enter={seconds * 1000000}', harness.PROGRAM, 'images',
         'd', 'slow', '--no-sync', '--classes', 'names.txt'],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, 'ASAN_OPTIONS': 'detect_leaks=0'})
    wait_for(lambda: list(pathlib.Path().glob('names.txt.*')) or slow.poll() is not None)
    _tree({'d/b/2.jpg': JPEG})
    done = subprocess.run([harness.PROGRAM, 'images', 'd', 'out', '--classes', 'names.txt'],
                          capture_output=True)
    assert slow.wait() == 0, slow.stderr.read()
    return done.returncode == 0


def the_first_file_of_classes_counts():
    if not shutil.which('strace'):
        print('skipped: no strace on this machine')
        return
    assert any(_slow_images(2 ** i) for i in range(1, 7))
    assert pathlib.Path('names.txt').read_text() == 'a\nb\nc\n'
    assert [r[0] for r in _images('slow')] == [0, 2]
    assert sorted(os.listdir()) == ['d', 'names.txt', 'out', 'slow']


def jpegs_that_are_not_decoded_are_counted():
    """CMYK, and 12 bits per channel, in `images` and `pack`, also in sequences."""
    cmyk = (harness.ROOT / 'tests/data/images/bad-cmyk.jpg').read_bytes()
    at = cmyk.index(b'\xff\xc0') + 4
    deep = cmyk[:at] + b'\x0c' + cmyk[at + 1:]
    pathlib.Path('in').mkdir()
    for name, data in (('a', cmyk), ('b', deep), ('c', JPEG)):
        pathlib.Path(f'in/{name}.jpg').write_bytes(data)
    says = ': 2 JPEGs in CMYK or with more than 8 bits per channel'
    assert 'out' + says in run('images', 'in', 'out').out.decode()
    assert says not in run('images', 'in', 'bytes', '--type', 'bytes').out.decode()
    files = [{'file': f'in/{name}.jpg'} for name in 'abc']
    for value, spec in ((files, 'x=jpeg[]'), (files[1], 'x=jpeg'), (files[2], 'x=jpeg')):
        pathlib.Path('m.jsonl').write_text(json.dumps({'x': value}) + '\n')
        said = run('pack', 'm.jsonl', f'o{len(value)}{value is files[2]}', '--spec', spec).out.decode()
        count = 2 if value is files else int(value is files[1])
        assert (f': {count} JPEG' in said) == bool(count), said


def images_are_resumed_and_appended():
    _tree({f'd/{i % 3}/{i:02}.jpg': JPEG + bytes([i]) for i in range(11)})
    _tree({'e/x/1.jpg': JPEG})
    shards = ['--shard-length', '3']
    run('images', 'd', 'out', *shards)
    whole = files('out')
    assert b'0 datapoints, after 11' in run('images', 'd', 'out', '--resume',
                                            *shards).out
    assert files('out') == whole
    pathlib.Path('d/1/01.jpg').write_bytes(JPEG + b'other')
    refuse('images', 'd', 'out', '--resume', *shards,
           says=('1/01.jpg', '"image"', 'datapoint', 'out/000001'))
    pathlib.Path('d/1/01.jpg').write_bytes(JPEG + b'\1')
    pathlib.Path('d/2/11.jpg').write_bytes(JPEG + b'late')
    run('images', 'd', 'out', '--resume', *shards)
    assert _images()[-1] == ('2', '2/11.jpg', JPEG + b'late')
    run('images', 'e', 'out', '--append', *shards)
    assert len(_images()) == 13 and _images()[-1][1] == 'x/1.jpg'
    run('images', 'd', 'plain')
    assert b'already complete' in run('images', 'd', 'plain', '--resume').out
    refuse('images', 'e', 'plain', '--append', says='not sharded: cannot append')


def images_are_sharded_and_shared_by_workers():
    _tree({f'd/{i % 3}/{i:02}.jpg': JPEG + bytes([i]) for i in range(11)})
    run('images', 'd', 'one', '--no-sync')
    for worker in range(3):
        run('images', 'd', 'out', '--shard-start', worker, '--shard-stop', '3',
            '--shard-length', '2', '--no-sync')
    assert sorted(_images('out')) == sorted(_images('one'))
    assert len(run('get', 'out', ':', '--allow-gaps').lines) == 11
    refuse('images', 'd', 'one', says='one')


def _fnv(path):
    value = 0xcbf29ce484222325
    for byte in path.encode():
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return value


def the_images_of_a_worker_do_not_depend_on_other_images():
    _tree({f'd/{i % 3}/{i:02}.jpg': JPEG + bytes([i]) for i in range(40)})

    def shares(out):
        """The paths that each worker packs."""
        words = ['--shard-stop', '3', '--no-sync', '--shard-start']
        for worker in range(3):
            run('images', 'd', out, *words, worker)
        return [[row['path'] for row in run('get', f'{out}/{w:06}', ':').lines]
                for w in range(3)]

    before = shares('before')
    assert all(len(share) > 5 for share in before)
    assert all(_fnv(path) % 3 == w for w in range(3) for path in before[w])
    _tree({'d/0/00-new.jpg': JPEG, 'd/1/zz.jpg': JPEG})
    after = shares('after')
    for w in range(3):
        assert set(before[w]) <= set(after[w])


def images_of_many_pixels_need_an_option():
    if not _has('png', 'png', _png()):
        return
    def chunk(kind, data):
        return (struct.pack('>I', len(data)) + kind + data +
                struct.pack('>I', zlib.crc32(kind + data)))
    line = bytes(1 + (1 << 14) // 8)
    big = (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack(
        '>2I5B', 1 << 14, (1 << 14) + 1, 1, 0, 0, 0, 0)) +
        chunk(b'IDAT', zlib.compress(line * ((1 << 14) + 1))) +
        chunk(b'IEND', b''))
    pathlib.Path('big.png').write_bytes(big)
    write_lines('m.jsonl', [{'p': {'file': 'big.png'}}])
    run('pack', 'm.jsonl', 'out', '--spec', 'p=png')
    for words in (['sheet', 'out', 's.png'], ['get', 'out', '0', 'p', '--npy'],
                  ['verify', 'out', '--decode']):
        refuse(*words, says=('too many pixels', '16385 x 16384', '268435456'))
        refuse(*words, '--max-pixels', '1000', says='maximum 1000')
    run('verify', 'out', '--decode', '--max-pixels', 1 << 29)


def _palette_png(extra=b''):
    """2 x 2 pixels of index 1, which is (200, 30, 40)."""
    def chunk(kind, data):
        return (struct.pack('>I', len(data)) + kind + data +
                struct.pack('>I', zlib.crc32(kind + data)))
    return (b'\x89PNG\r\n\x1a\n' +
            chunk(b'IHDR', struct.pack('>2I5B', 2, 2, 8, 3, 0, 0, 0)) +
            chunk(b'PLTE', bytes([0, 0, 0, 200, 30, 40])) +
            (chunk(b'tRNS', extra) if extra else b'') +
            chunk(b'IDAT', zlib.compress(b'\0\1\1\0\1\1')) +
            chunk(b'IEND', b''))


def palettes_become_the_colours_of_a_jpeg():
    if not harness.has_codec('jpeg') or not harness.has_codec('png'):
        return
    _tree({'d/p.png': _palette_png(), 'e/transparent.png': _palette_png(b'\xff\0')})

    def check_colour(path, field):
        shape, data = _shape_and_data(run('get', path, '0', field, '--npy').out)
        assert shape == (2, 2, 3), shape
        for i in range(12):
            assert abs(data[i] - (200, 30, 40)[i % 3]) < 8, data
    run('images', 'd', 'out', '--type', 'jpeg(100)')
    check_colour('out', 'image')
    refuse('images', 'e', 'refused', '--type', 'jpeg', says='transparent.png')
    # Arrays and PNG, which may be class masks, are of the indices, whatever the order.
    pack([{name: {'from': 'd/p.png'} for name in 'abcd'}],
         'a=array,b=jpeg(100),c=png,d=jpg(100)', 'packed')
    check_colour('packed', 'b')
    check_colour('packed', 'd')
    for name in 'ac':
        npy = run('get', 'packed', '0', name, '--npy').out
        assert _shape_and_data(npy) == ((2, 2), bytes([1] * 4)), npy


def a_sheet_shows_the_colours_of_palettes():
    if not _has('png', 'png', _png()):
        return
    png = _palette_png()
    pack([{'p': {'base64': base64.b64encode(png).decode()}}], 'p=png')
    run('sheet', 'out', 'sheet.png')
    assert _color(_pixels('sheet.png')[2], 68, 68) == (200, 30, 40)
    # As a value it is what it stores: the indices.
    npy = run('get', 'out', '0', 'p', '--npy').out
    assert b"'shape': (2, 2)" in npy and npy.endswith(bytes([1] * 4)), npy


def _has(spec, kind, content):
    """Whether this program was built with a format."""
    pathlib.Path(f'probe.{kind}').write_bytes(content)
    write_lines('probe.jsonl', [{'a': {'from': f'probe.{kind}'}}])
    done = subprocess.run([harness.PROGRAM, 'pack', 'probe.jsonl',
                           f'probe-{spec}', '--spec', f'a={spec}'],
                          capture_output=True)
    if done.returncode:
        assert b'no codec' in done.stderr, done.stderr
    return done.returncode == 0


def _npy(fmt, descr, numbers, shape=None):
    head = repr({'descr': descr, 'fortran_order': False,
                 'shape': shape or (len(numbers),)}).encode()
    head += b' ' * (-(len(head) + 11) % 64) + b'\n'
    return (b'\x93NUMPY\1\0' + struct.pack('<H', len(head)) + head +
            struct.pack(f'<{len(numbers)}{fmt}', *numbers))


def npy_files_are_read_and_written():
    npy = _npy('f', '<f4', [1.5, -2.0, 3.25, 0.0, 9.0, 8.0], (2, 3))
    if not _has('array(float32,2,3)', 'npy', npy):
        return
    raw = struct.pack('<6f', 1.5, -2.0, 3.25, 0.0, 9.0, 8.0)
    pathlib.Path('in').mkdir()
    pathlib.Path('in/a.npy').write_bytes(npy)
    write_lines('in/m.jsonl', [{'a': {'from': 'a.npy'}, 's': [
        {'from': 'a.npy'}, {'base64': base64.b64encode(raw).decode()}]}])
    run('pack', 'in/m.jsonl', 'out', '--spec',
        'a=array(float32,2,3),s=array(float32,2,3)[]')
    assert run('get', 'out', '0', 'a', '--raw').out == raw
    assert run('get', 'out', '0', 'a', '--npy').out.endswith(raw)
    assert run('get', 'out', '0', 's[1]', '--npy').out.startswith(b'\x93NUMPY')
    run('export', 'out', 'x', '--npy')
    row = json.loads(pathlib.Path('x/manifest.jsonl').read_text())
    assert row['a']['from'].endswith('.npy')
    assert pathlib.Path('x', row['a']['from']).read_bytes().endswith(raw)
    run('pack', 'x/manifest.jsonl', 'again')
    assert files('again') == files('out')
    write_lines('n.jsonl', [{'a': {'from': 'in/a.npy'}}])
    for spec in ('a=array(float32,3,2)', 'a=array(float64,2,3)', 'a=int',
                 'a=utf8'):
        refuse('pack', 'n.jsonl', 'bad', '--spec', spec,
               says=('n.jsonl: line 1: ', '"a"'))
    pathlib.Path('in/a.npy').write_bytes(npy[:-1])
    refuse('pack', 'n.jsonl', 'bad', '--spec', 'a=array(float32,2,3)',
           says=('line 1', 'in/a.npy'))


def what_is_not_an_array_has_no_npy():
    pack([{'n': 1, 't': 'x'}], 'n=int,t=utf8')
    for name in ('n', 't'):
        result = refuse('get', 'out', '0', name, '--npy', says='not an array')
        assert result.out == b''


def text_files_are_read_as_text():
    pathlib.Path('a.txt').write_text('ünï\n')
    pathlib.Path('b.txt').write_bytes(b'\xff')
    write_lines('m.jsonl', [{'t': {'from': 'a.txt'}}])
    run('pack', 'm.jsonl', 'out', '--spec', 't=utf8')
    assert run('get', 'out', '0').json == {'t': 'ünï\n'}
    write_lines('m.jsonl', [{'t': {'from': 'b.txt'}}])
    refuse('pack', 'm.jsonl', 'bad', '--spec', 't=utf8', says='UTF-8')


def _pixels(path):
    """Width, height and the rows of an RGB PNG that uses whatever filter."""
    raw = pathlib.Path(path).read_bytes()
    width, height, depth, color = struct.unpack('>2I2B', raw[16:26])
    assert (depth, color) == (8, 2)
    data, at = b'', 8
    while at < len(raw):
        size, = struct.unpack('>I', raw[at:at + 4])
        if raw[at + 4:at + 8] == b'IDAT':
            data += raw[at + 8:at + 8 + size]
        at += 12 + size
    data = zlib.decompress(data)
    rows, above = [], bytearray(width * 3)
    for y in range(height):
        line = bytearray(data[y * (width * 3 + 1) + 1:][:width * 3])
        kind = data[y * (width * 3 + 1)]
        for x in range(width * 3):
            a = line[x - 3] if x > 2 else 0
            b, c = above[x], above[x - 3] if x > 2 else 0
            p = a + b - c
            near = min((abs(p - a), 0, a), (abs(p - b), 1, b),
                       (abs(p - c), 2, c))[2]
            line[x] = (line[x] + [0, a, b, (a + b) // 2, near][kind]) % 256
        rows.append(line)
        above = line
    return width, height, rows


def _color(rows, x, y):
    return tuple(rows[y][3 * x:3 * x + 3])


def a_sheet_shows_the_first_images():
    if not _has('png', 'png', _png()):
        pack([{'p': {'base64': base64.b64encode(_png()).decode()}}], 'p=png')
        refuse('sheet', 'out', 'sheet.png', says=('no codec', 'formats/png.c'))
        return
    blobs = [base64.b64encode(_png(4, 3, (i, 100, 200 - i))).decode()
             for i in range(11)]
    pack([{'p': {'base64': b}, 's': [{'base64': b}] * 3} for b in blobs],
         'p=png,s=png[]')
    run('sheet', 'out', 'sheet.png', '--rows', '1')
    width, height, rows = _pixels('sheet.png')
    assert (width, height) == (4 + 8 * 132, 136)
    for i in range(8):
        assert _color(rows, 4 + i * 132 + 64, 68) == (i, 100, 200 - i)
    run('sheet', 'out', 'two.png')
    assert _pixels('two.png')[:2] == (4 + 8 * 132, 4 + 2 * 132)
    run('sheet', 'out', 'three.png', '--field', 's', '--rows', '5')
    assert _pixels('three.png')[:2] == (4 + 3 * 132, 4 + 5 * 132)
    before = files('.')
    refuse('sheet', 'out', 'two.png', says='two.png')
    refuse('sheet', 'out', 'x.png', '--field', 'nonsense', says='nonsense')
    assert files('.') == before


def a_sheet_takes_the_first_field_that_contains_images():
    if not _has('png', 'png', _png()):
        return
    pixels = {'base64': base64.b64encode(bytes([9] * 12)).decode()}
    pack([{'a': [1, 2], 'b': [[1.5, 2], [1, 2]], 'c': [], 'd': pixels},
          {'a': [1, 2], 'b': [[1.5, 2], [1, 2]], 'c': [pixels], 'd': pixels}],
         'a=array(uint8,2),b=array(float32,2,2),c=array(uint8,2,2,3)[],'
         'd=array(uint8,2,2,3)')
    assert b'field c' in run('sheet', 'out', 'c.png').out
    refuse('sheet', 'out', 'b.png', '--field', 'b', says=('"b"', 'not an image'))
    pack([{'a': [1, 2]}], 'a=array(float32,2)', 'none')
    refuse('sheet', 'none', 'a.png', says=('none', 'no field'))
    pack([{'a': pixels, 'p': {'base64': base64.b64encode(_png()).decode()}}],
         'a=array(uint8,2,2,3),p=png', 'both')
    assert b'field p' in run('sheet', 'both', 'p.png').out


def a_sheet_is_written_in_the_format_of_its_name():
    if not _has('png', 'png', _png()) or not _has('jpeg', 'png', _png()):
        return
    pack([{'p': {'base64': base64.b64encode(_png()).decode()}}], 'p=png')
    for name in ('s.jpg', 's.JPEG'):
        run('sheet', 'out', name)
        assert pathlib.Path(name).read_bytes().startswith(b'\xff\xd8\xff')
    run('sheet', 'out', 's.PNG')
    assert _pixels('s.PNG')[:2] == (4 + 132, 136)
    refuse('sheet', 'out', 's.gif', code=2, says=('s.gif', '.png', '.jpg'))
    assert not pathlib.Path('s.gif').exists()


def arrays_and_videos_of_uint8_are_pictures_too():
    if not _has('png', 'png', _png()):
        return
    video = b''.join(bytes([10 * t]) * 6 for t in range(20))
    pack([{'v': {'base64': base64.b64encode(video).decode()},
           'f': {'base64': base64.b64encode(bytes(24)).decode()}}] * 2,
         'v=array(uint8,20,2,1,3),f=array(float32,2,3)')
    refuse('sheet', 'out', 'f.png', '--field', 'f', says='"f"')
    run('sheet', 'out', 'v.png', '--field', 'v')
    width, height, rows = _pixels('v.png')
    assert (width, height) == (4 + 8 * 132, 4 + 2 * 132)
    assert _color(rows, 4 + 64, 68) == (0, 0, 0)
    assert _color(rows, 4 + 7 * 132 + 64, 68 + 132) == (190, 190, 190)


@each([('bag', 'x.bag'), ('no field', 'text'), ('no picture', 'none')])
def what_has_no_pictures_has_no_sheet(case):
    pathlib.Path('x.bag').write_bytes(bytes(8))
    pack([{'t': 'x'}], 't=utf8', 'text')
    pack([], 'p=png', 'none')
    refuse('sheet', case[1], 'out.png')
    assert not pathlib.Path('out.png').exists()


def images_of_the_other_format_are_converted_when_chosen():
    _tree({'d/a/1.png': _png(), 'd/a/2.png': _png(5, 5)})
    if not _has('png', 'png', _png()):
        return
    if not _has('jpeg', 'png', _png()):
        return
    done = run('images', 'd', 'out', '--type', 'jpeg(90)').out
    assert b'converted: 2 PNG to JPEG' in done, done
    assert read('out')['spec']['image'] == 'jpeg(90)'
    for i in range(2):
        blob = run('get', 'out', i, 'image', '--raw').out
        assert blob.startswith(b'\xff\xd8\xff')
    run('images', 'd', 'same', '--type', 'png')
    assert [b for _, _, b in _images('same')] == [_png(), _png(5, 5)]


def _photo(orientation, big=False):
    """The file exif.jpg, 75 x 53, with another orientation."""
    raw = pathlib.Path(harness.ROOT, 'tests/data/images/exif.jpg').read_bytes()
    old = b'MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0'
    new = struct.pack('>2sHLHHHLHH' if big else '<2sHLHHHLHH', b'MM' if big else b'II',
                      42, 8, 1, 0x0112, 3, 1, orientation, 0)
    assert raw.count(old) == 1 and len(new) == len(old)
    return raw.replace(old, new)


def _shape_and_data(npy):
    """Of the output of get --npy."""
    size, = struct.unpack('<H', npy[8:10])
    shape = eval(npy[10:10 + size])['shape']
    return shape, npy[10 + size:]


def _turned(shape, data, orientation):
    """The pixels of an RGB image, turned upright."""
    height, width = shape[:2]
    at = {1: lambda u, v: (u, v), 2: lambda u, v: (width - 1 - u, v),
          3: lambda u, v: (width - 1 - u, height - 1 - v),
          4: lambda u, v: (u, height - 1 - v), 5: lambda u, v: (v, u),
          6: lambda u, v: (v, height - 1 - u),
          7: lambda u, v: (width - 1 - v, height - 1 - u),
          8: lambda u, v: (width - 1 - v, u)}[orientation]
    columns, lines = (height, width) if orientation > 4 else (width, height)
    out = b''
    for v in range(lines):
        for u in range(columns):
            x, y = at(u, v)
            out += data[3 * (y * width + x):][:3]
    return (lines, columns, 3), out


def converted_images_are_turned_upright():
    if not harness.has_codec('jpeg') or not harness.has_codec('png'):
        return
    photos = {f'd/{o}.jpg': _photo(o, o % 2) for o in range(1, 9)}
    _tree(photos)
    done = run('images', 'd', 'kept').out.decode()
    assert '7 images with an EXIF orientation' in done, done
    assert [row[2] for row in _images('kept')] == list(photos.values())
    stored = _shape_and_data(run('get', 'kept', '0', 'image', '--npy').out)
    done = run('images', 'd', 'out', '--type', 'png').out.decode()
    assert 'turned upright: 7' in done and 'with an EXIF' not in done, done
    write_lines('m.jsonl', [{'i': {'from': path}} for path in photos])
    run('pack', 'm.jsonl', 'packed', '--spec', 'i=array')
    for o in range(1, 9):
        def pixels(path, field, index=o - 1):
            return _shape_and_data(run('get', path, index, field, '--npy').out)
        wanted = _turned(*stored, o)
        assert pixels('out', 'image') == wanted, o
        assert pixels('packed', 'i') == wanted, o
        # Reading leaves the pixels as they are stored.
        assert pixels('kept', 'image') == stored


def sheet_and_load_turn_images_upright():
    if not harness.has_codec('jpeg') or not harness.has_codec('png'):
        return
    _tree({f'd/{o}.jpg': _photo(o) for o in range(1, 9)})
    run('images', 'd', 'jpeg')
    run('images', 'd', 'png', '--type', 'png')
    for name in 'jpeg', 'png':
        run('sheet', name, name + '-sheet.png')
    assert files('.')['jpeg-sheet.png'] == files('.')['png-sheet.png']
    for words in ([], ['--crop', '32']):
        words += ['--fields', 'image', '--digest']
        upright = run('load', 'png', *words).json
        assert run('load', 'jpeg', '--orient', *words).json == upright
        assert run('load', 'jpeg', *words).json != upright
    refuse('load', 'png', '--fields', 'label', '--orient', code=2,
           says='--orient: no field that is loaded is an image')


@each([[], ['--classes', 'names.txt'], ['--type', 'bytes', '--skip-damaged'],
       ['--type', 'jpeg(80)', '--skip-damaged'], ['--type', 'png'],
       ['--skip-damaged', '--classes', 'names.txt', '--type', 'bytes', '--shard-length', '2'],
       ['--shard-stop', '3', '--shard-start', '1', '--type', 'bytes', '--skip-damaged']])
def images_are_a_source_of_import(options):
    if not harness.has_codec('jpeg') or not harness.has_codec('png'):
        return
    _tree({'d/b/1.jpg': _photo(6), 'd/b/2.png': _png(), 'd/a/3.jpg': JPEG, 'd/x.txt': b'text',
           'd/a/deep/4.jpg': JPEG + b'4', 'd/.hidden': b'', 'd/5.png': _png()[:40]})
    results = []
    for words in (['images', 'd', 'out', *options],
                  ['import', '--from', 'images', 'd', 'out', *(
                      'image=' + word if before == '--type' else word
                      for before, word in zip(['', *options], options))]):
        shutil.rmtree('out', ignore_errors=True)
        pathlib.Path('names.txt').unlink(missing_ok=True)
        done = subprocess.run([harness.PROGRAM, *words], capture_output=True, text=True)
        said = done.stderr.replace('import', 'images').replace('--type image=', '--type ')
        results.append((done.returncode, done.stdout, said, files('.')))
    assert results[0] == results[1], results
    assert results[0][0] == (2 if '--type' not in options else '--skip-damaged' not in options)


def a_dry_run_of_images_writes_nothing():
    _tree({'d/b/1.jpg': JPEG, 'd/a/2.jpg': JPEG + b'2'})
    before = files('.')
    words = ['import', 'd', '--from', 'images', '--dry-run', '--classes', 'names.txt']
    for lines, label in ((None, 0), ('b\n\na\n', 2)):
        if lines:
            before['names.txt'] = lines.encode()
            pathlib.Path('names.txt').write_text(lines)
        shown = run(*words).json
        assert shown['spec'] == {'image': 'jpeg', 'label': 'int(4)', 'path': 'utf8'}
        assert shown['length'] == 2 and shown['first']['path'] == 'a/2.jpg'
        assert shown['first']['label'] == label and files('.') == before
    refuse(*words, '--classes', 'more.txt', code=2)
    run('import', 'd', 'out', '--from', 'images', '--fields', 'image=photo,label')
    assert read('out')['spec'] == {'photo': 'jpeg', 'label': 'utf8'}
    for given in 'photo', 'image':
        run('import', 'd', given, '--from', 'images', '--fields', 'image=photo', '--type',
            f'{given}=bytes')
        assert read(given)['spec'] == {'photo': 'bytes'}
    for option in ['--classes=x', '--skip-damaged', '--max-pixels=1']:
        refuse('import', 'd/b/*.npy', 'x', '--from', 'npy', option, code=2,
               says=(option.split('=')[0], '--from images'))
    refuse('import', 'd', 'x', '--from', 'images', '--type', 'image=gif', code=2, says='"gif"')


def a_bag_is_not_made_of_images():
    os.mkdir('d')
    refuse('images', 'd', 'x.bag', says=('x.bag', 'not a Bag'), code=2)
    refuse('images', 'd', 'out', says='contains no JPEG')


def truncated_images_are_refused_or_left_out():
    png, half = _png(), _png()[:40]
    _tree({'d/a/1.jpg': JPEG, 'd/a/2.jpg': JPEG[:-2], 'd/b/3.jpg': JPEG + b'trailer',
           'd/b/4.png': half, 'd/b/5.png': png})
    words = ['images', 'd', 'out', '--type', 'bytes', '--shard-length', '2']
    done = refuse(*words, says=('d/a/2.jpg: truncated JPEG', '--skip-damaged',
                                '1 datapoint'))
    assert done.err.count('2.jpg') == 1, done.err
    done = run(*words, '--resume', '--skip-damaged')
    assert [row[1:] for row in _images()] == [
        ('a/1.jpg', JPEG), ('b/3.jpg', JPEG + b'trailer'), ('b/5.png', png)]
    assert done.err.splitlines() == [
        f'bags: d/a/2.jpg: left out: truncated JPEG ({len(JPEG) - 2} bytes)',
        'bags: d/b/4.png: left out: truncated PNG (40 bytes)'], done.err
    text = done.out.decode()
    assert '3 images' in text and '(2 JPEG, 1 PNG)' in text, text
    assert 'left out: 2 images (damaged' in text, text
    # Those that are left out are not datapoints to --resume either.
    assert b'0 datapoints, after 3' in run(*words, '--resume', '--skip-damaged').out


def what_cannot_be_converted_is_refused_or_left_out():
    if not harness.has_codec('jpeg') or not harness.has_codec('png'):
        return
    data = harness.ROOT / 'tests/data/images'
    shutil.copytree(data, 'all', ignore=lambda _, names: [
        name for name in names
        if not name.endswith('.jpg') and (name[:4] == 'bad-' or name[-4:] != '.png')])
    shutil.copytree('all', 'd', ignore=lambda _, names: [
        name for name in names if name not in ('420.jpg', 'bad-cmyk.jpg', 'rgba.png')])
    for kind, bad, good in (('png', 'bad-cmyk.jpg', ['420.jpg', 'rgba.png']),
                            ('jpeg', 'rgba.png', ['420.jpg', 'bad-cmyk.jpg'])):
        refuse('images', 'd', 'refused', '--type', kind, says=(f'd/{bad}: ', '--skip'))
        shutil.rmtree('refused', ignore_errors=True)
        done = run('images', 'd', kind, '--type', kind, '--skip-damaged')
        assert [row[1] for row in _images(kind)] == good
        assert f'd/{bad}: left out: ' in done.err, done.err
    done = run('images', 'all', 'out', '--type', 'png', '--skip-damaged')
    left_out = re.findall('all/(.*): left out', done.err)
    assert f'left out: {len(left_out)} image' in done.out.decode()
    assert all(name.startswith('bad-') for name in left_out), left_out
    run('verify', 'out', '--decode')


def a_damaged_image_is_an_empty_tile():
    if not _has('png', 'png', _png()):
        return
    good, bad = ({'base64': base64.b64encode(x).decode()} for x in (_png(), _png()[:40]))
    pack([{'p': good, 's': [good, bad]}, {'p': bad, 's': [bad]}, {'p': good, 's': []}],
         'p=png,s=png[]')
    done = run('sheet', 'out', 'p.png')
    assert 'datapoint 1' in done.err and 'tile left empty' in done.err, done.err
    assert done.err.count('\n') == 1, done.err
    width, height, rows = _pixels('p.png')
    assert (width, height) == (4 + 3 * 132, 136)
    assert [_color(rows, 4 + 132 * i + 64, 68) for i in range(3)] == [
        (10, 200, 30), (24, 24, 24), (10, 200, 30)]
    run('sheet', 'out', 's.png', '--field', 's')
    assert _pixels('s.png')[:2] == (4 + 2 * 132, 4 + 2 * 132)
    pack([{'p': bad}] * 2, 'p=png', 'none')
    refuse('sheet', 'none', 'none.png', says=('none', 'datapoint 0', 'truncated'))
    assert not pathlib.Path('none.png').exists()


def a_damaged_image_is_named_once():
    if not _has('png', 'png', _png()) or not _has('jpeg', 'png', _png()):
        return
    _tree({'d/a/bad.png': _png()[:40]})
    error = refuse('images', 'd/', 'out', '--type', 'jpeg', says='d/a/bad.png: ').err
    assert error.count('bad.png') == 1, error
