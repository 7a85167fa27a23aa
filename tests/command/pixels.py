"""derive --pixels: images are decoded once, and load --crop crops the pixels."""
import base64
import os
import shutil
import struct
import zlib

import harness
from harness import each, has_codec, pack, refuse, run, write_lines

COUNT = 12


def _png(number):
    width, height = 20 + 3 * number, 40 - 2 * number

    def chunk(kind, data):
        return (struct.pack('>I', len(data)) + kind + data +
                struct.pack('>I', zlib.crc32(kind + data)))
    rows = b''.join(b'\0' + bytes((x * 7 + y * (number + 3)) % 256 for x in range(3 * width))
                    for y in range(height))
    return (b'\x89PNG\r\n\x1a\n' +
            chunk(b'IHDR', struct.pack('>2I5B', width, height, 8, 2, 0, 0, 0)) +
            chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))


def _row(number):
    text = base64.b64encode(_png(number)).decode()
    return {'image': {'base64': text}, 'many': [{'base64': text}] * (number % 3), 'id': number}


def _source(*options):
    pack([_row(i) for i in range(COUNT)], 'image=png,many=png[],id=int(4)', 'src',
         '--shard-length', 5, '--checksum', *options)


def _pixels(path):
    """The pixels of each datapoint, by its id."""
    ids = [line['id'] for line in run('get', path, ':', 'id').lines]
    many = [line['many'] for line in run('get', path, ':', 'many').lines]
    assert [len(items) for items in many] == [one % 3 for one in ids]
    return {one: (run('get', path, i, 'image', '--raw').out, str(many[i]))
            for i, one in enumerate(ids)}


def selected_images_are_stored_as_pixels():
    if not has_codec('png'):
        return
    _source()
    run('derive', 'src', 'all', '--pixels', 'image=8x6,many=5x4')
    made = harness.read('all')
    assert made['spec'] == {'image': 'array(uint8,6,8,3)', 'many': 'array(uint8,4,5,3)[]',
                            'id': 'int(4)'}
    assert 'good' in run('verify', 'all', '--decode').out.decode()
    assert os.path.samefile('all/000001/id.bag', 'src/000001/id.bag')
    assert os.path.exists('all/000001/image.crc') and not os.path.exists('all.pixels')
    all_pixels = _pixels('all')
    assert len({pixels for pixels, _ in all_pixels.values()}) == COUNT
    assert all(len(pixels) == 8 * 6 * 3 for pixels, _ in all_pixels.values())
    write_lines('rows', [11, 2, 7])
    for words, ids in (
            (['--range', '1:8'], range(1, 8)), (['--range', '6:7'], [6]),
            (['--copy', '--range', '3:12', '--shuffle', 5, '--shard-length', 2], range(3, 12)),
            (['--range', '4:11', '--shard-start', 0, '--shard-stop', 2], [4, 10]),
            (['--copy', '--shuffle', 1, '--shard-length', 12, '--shard-start', 0,
              '--shard-stop', 2], range(COUNT))):
        run('derive', 'src', 'some', '--pixels', 'image=8x6,many=5x4', *words)
        if '--shard-stop' in words:  # without the other worker's shards
            for name in sorted(os.listdir('some')):
                os.rename(f'some/{name}', f'some/{int(name) // 2:06}')
        run('verify', 'some', '--decode')
        assert _pixels('some') == {i: all_pixels[i] for i in ids}, words
        shutil.rmtree('some')
    run('derive', 'src', 'parts', '--pixels', 'image=8x6,many=5x4', '--split', 'a=0.5,b=0.5')
    assert {**_pixels('parts/a'), **_pixels('parts/b')} == all_pixels
    run('derive', 'src', 'named', '--pixels', 'image=8x6', '--rename', 'image=i', '--drop', 'many')
    assert run('get', 'named', 3, 'i', '--raw').out == all_pixels[3][0]
    assert sorted(os.listdir('.')) == ['all', 'manifest.jsonl', 'named', 'parts', 'rows', 'src']


def stored_pixels_are_cropped():
    if not has_codec('png'):
        return
    _source()
    run('derive', 'src', 'all', '--pixels', 'image=16x16', '--drop', 'many')
    lines = run('load', 'all', '--crop', 4, '--digest', '--seed', 3).lines
    assert lines == run('load', 'all', '--crop', 4, '--digest', '--seed', 3, '--threads', 1).lines
    assert lines != run('load', 'all', '--crop', 5, '--digest', '--seed', 3).lines
    assert '12 images' not in run('load', 'all').out.decode()
    refuse('load', 'all', '--crop', 4, '--orient', says='--orient: no field', code=2)
    refuse('load', 'all', '--orient', says='--orient: no field', code=2)


@each([('image=8', 'is not WIDTHxHEIGHT', 2), ('image=8x', 'is not WIDTHxHEIGHT', 2),
       ('image=0x8', 'sides of 1 to 65535', 2), ('image=8x65536', 'sides of 1 to 65535', 2),
       ('image=8x8x8', 'is not WIDTHxHEIGHT', 2), ('image=8x8,image=4x4', 'duplicate field', 2),
       ('imag=8x8', 'no field "imag"', 1), ('image', 'expected FIELD=', 2),
       ('id=8x8', 'field "id": values of type int(4) cannot become images', 1)])
def sizes_and_fields_that_cannot_be_are_refused(case):
    given, says, code = case
    if not has_codec('png'):
        return
    _source()
    refuse('derive', 'src', 'out', '--pixels', given, says=says, code=code)
    assert sorted(os.listdir('.')) == ['manifest.jsonl', 'src']


def what_prevents_the_dataset_is_found_before_decoding():
    if not has_codec('png'):
        return
    rows = [_row(i) for i in range(COUNT)]
    os.mkdir('there')
    rows[7]['image'] = {'base64': base64.b64encode(b'no image').decode()}
    pack(rows, 'image=png,many=png[],id=int(4)', 'src', '--shard-length', 5, '--unchecked')
    refuse('derive', 'src', 'out', '--pixels', 'image=8x8', '--shuffle', 1, says='use --copy')
    refuse('derive', 'src', 'there', '--pixels', 'image=8x8', says='exists')
    refuse('derive', 'src', 'out', '--pixels', 'image=8x8', '--split', 'a=1', '--shard-start', 0,
           '--shard-stop', 2, says='derive the dataset with --pixels first', code=2)
    refuse('derive', 'src', 'out', '--pixels', 'image=8x8', '--drop', 'image', says='left out',
           code=2)
    refuse('derive', 'src', 'out', '--pixels', 'image=8x8',
           says='field "image": datapoint 7: not a PNG')
    assert sorted(os.listdir('.')) == ['manifest.jsonl', 'src', 'there']
    run('derive', 'src', 'out', '--pixels', 'image=8x8', '--range', ':7')
