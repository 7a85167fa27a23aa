"""bags get: what is selected, how it is shown, and what is refused."""
import base64
import json
import os
import pathlib
import struct
import subprocess
import zlib

import harness
from harness import each, has_codec, pack, refuse, run

SPEC = 'n=int(4),words=utf8[],raw=bytes,frames=bytes[],text=utf8'


def _row(i):
    blob = base64.b64encode(b'%d' % i).decode()
    return {'n': i, 'words': [f'w{j}' for j in range(i)], 'text': f't{i}',
            'raw': {'base64': blob}, 'frames': [{'base64': blob}] * i}


def _dataset(count=10):
    pack([_row(i) for i in range(count)], SPEC)


def _get(*words):
    return run('get', 'out', *words).lines


def without_a_selection_all_fields_are_shown():
    _dataset()
    assert _get('2') == [{
        'n': 2, 'words': ['w0', 'w1'], 'text': 't2',
        'raw': {'type': 'bytes', 'bytes': 1},
        'frames': [{'type': 'bytes', 'bytes': 1}] * 2}]


def a_range_gives_a_line_a_datapoint():
    _dataset()
    assert _get('2:5', 'n') == [{'n': 2}, {'n': 3}, {'n': 4}]
    assert _get('8:99', 'n') == [{'n': 8}, {'n': 9}]
    assert _get('8:18446744073709551615', 'n') == [{'n': 8}, {'n': 9}]
    assert _get('0:99999999999999999999999', 'n') == _get('0:10', 'n')
    assert _get('10:12', 'n') == _get('99:100', 'n') == _get('3:3', 'n') == []


def indices_have_steps_lists_and_count_from_the_end():
    _dataset()

    def numbers(index):
        return [row['n'] for row in _get(index, 'n')]

    assert numbers('0:10:3') == [0, 3, 6, 9] and numbers('1::4') == [1, 5, 9]
    assert numbers('::') == numbers(':') == list(range(10))
    assert numbers('5:6:9223372036854775807') == [5]
    assert numbers('[3,1,4]') == [3, 1, 4]
    assert numbers('[ 3, 3 ,-1]') == [3, 3, 9]
    assert numbers('-1') == [9] and numbers('-10') == [0]
    assert numbers('-2:') == [8, 9] and numbers(':-8') == [0, 1]
    assert numbers('-3:-1') == [7, 8] and numbers('-99:2') == [0, 1]
    assert numbers('8:-5') == [] and numbers('-4::2') == [6, 8]
    assert run('get', 'out', '-1', 'text', '--raw').out == b't9'
    refuse('get', 'out', '-11', says=('-11', 'out', 'length 10'))


@each([('words[1]', 'w1'), ('words[0]', 'w0'), ('words[5]', 'w5'),
       ('words[-1]', 'w5'), ('words[-6]', 'w0'), ('words[-2:]', ['w4', 'w5']),
       ('words[:-4]', ['w0', 'w1']), ('words[-3::2]', ['w3', 'w5']),
       ('words[-1:2]', []), ('words[::3]', ['w0', 'w3']),
       ('words[1:3]', ['w1', 'w2']), ('words[1:99]', [f'w{i}' for i in
                                                      range(1, 6)]),
       ('words[0:0]', []), ('words[6:9]', []), ('words[99:99]', []),
       ('words[0:6:2]', ['w0', 'w2', 'w4']), ('words[1:6:3]', ['w1', 'w4']),
       ('words[0:6:99]', ['w0']), ('words[5:6:1]', ['w5']),
       ('words[2:18446744073709551615:18446744073709551615]', ['w2']),
       ('words[0:1]', ['w0']), ('words[6:6]', []), ('words[100:200:3]', []),
       ('words[2:99999999999999999999999]', ['w2', 'w3', 'w4', 'w5']),
       ('words[0:1:1]', ['w0']), ('words', [f'w{i}' for i in range(6)])])
def items_are_selected(case):
    select, want = case
    pack([_row(6)], SPEC)
    assert _get('0', select) == [{'words': want}]
    assert _get('0', select, 'n') == [{'words': want, 'n': 6}]


@each(['words[6]', 'words[-7]', 'words[99999999999999999999]', 'nonsense', 'n[0]',
       'n[0:1]', 'words[18446744073709551615]', 'nonsense[0]', 'words]'])
def what_is_not_there_is_an_error(select):
    pack([_row(6)], SPEC)
    result = refuse('get', 'out', '0', select)
    assert result.out == b''


@each(['words[]', 'words[x]', 'words[1:2:3:4]', 'words[1.5]', 'words[ 1]',
       'words[+1]', 'words[0x1]', 'words[3:1]', 'words[-1:-3]', 'words[0:5:-1]',
       'words[0:2:0]'])
def a_selection_that_makes_no_sense_is_a_usage_error(select):
    pack([_row(6)], SPEC)
    refuse('get', 'out', '0', select, code=2)


@each([('10',), ('-11',), ('[1,10]', '10'), ('[-11]', '-11'),
       ('99999999999999999999',), ('-99999999999999999999',),
       ('[ 0 , 99999999999999999999 ]', '99999999999999999999'),
       ('18446744073709551615',), ('-9223372036854775809',)])
def an_index_that_is_not_there_is_named_as_it_was_given(words):
    _dataset()
    result = refuse('get', 'out', words[0],
                    says=f'out: datapoint {words[-1]} out of range (length 10)')
    assert result.out == b''


def a_range_that_is_empty_is_named_as_it_was_given():
    _dataset()
    for start, stop in (('5', '3'), ('-2', '-4'), ('99999999999999999999', '3')):
        for index in (f'{start}:{stop}', f'{start}:{stop}:2'):
            refuse('get', 'out', index, code=2, says=(
                f'{index}: invalid range (start {start} > stop {stop})'))


def an_item_that_is_not_there_is_named_as_it_was_given():
    _dataset()
    for item in ('99999999999999999999', '-99999999999999999999', '77'):
        refuse('get', 'out', '0', f'words[{item}]', says=f'item {item} out of range')


@each([('x',), ('1:2:3:4',), ('',), ('5:3',), ('-2:-4',), ('0:5:0',), ('0:5:-1',),
       ('[]',), ('[1',), ('[1,]',), ('[1;2]',), ('[1,2]x',), ('1,2',),
       ('0', 'n', 'n'), ('0', 'words[0]', 'words'),
       ('0', '--raw'), ('0', 'words', '--raw'), ('0:1', 'n', '--raw'),
       ('0', 'n', 'text', '--raw'), ('0', 'words[0:1]', '--raw'),
       ('0', 'n', '--raw', '--npy'), ('0', 'n', '--raw', '--out', 'x')])
def a_command_line_that_makes_no_sense_is_a_usage_error(words):
    _dataset()
    assert refuse('get', 'out', *words, code=2).out == b''


def an_error_names_file_field_and_index():
    _dataset()
    refuse('get', 'out', '3', 'words[7]', says=('words', '3', '7'))
    refuse('get', 'out', '12', says=('out', '12', '10'))


def an_unknown_field_is_answered_with_the_fields_there_are():
    pack([{f'f{i:03}': 1 for i in range(30)}], ','.join(
        f'f{i:03}=int' for i in range(30)))
    said = refuse('get', 'out', '0', 'x', says=('"x"', 'f000, f001')).err
    assert said.endswith('f019, ...\n'), said


def raw_bytes_go_to_standard_output():
    pack([{'b': [{'base64': base64.b64encode(bytes(range(256))).decode()}],
           'e': {'base64': ''}}], 'b=bytes[],e=bytes')
    assert run('get', 'out', '0', 'b[0]', '--raw').out == bytes(range(256))
    assert run('get', 'out', '0', '--raw', 'e').out == b''


def files_get_names_and_endings():
    jpeg = base64.b64encode(b'\xff\xd8\xff\xe0 picture').decode()
    pathlib.Path('s.json').write_text(json.dumps(
        {'b': 'bytes[]', 'p': 'png', 't': 'utf8', 'v': 'mp4(5)', 'm': 'msgpack',
         'F O\u00d6[1]': 'int(2)', 'audio': 'flac'}))
    pack([{'b': [{'base64': jpeg}, {'base64': ''}], 'p': {'base64': jpeg},
           't': 'text', 'v': {'base64': ''}, 'm': {'base64': 'wA=='},
           'F O\u00d6[1]': 7, 'audio': {'base64': ''}}],
         's.json', 'out', '--any-type', '--unchecked')
    got = run('get', 'out', '0', '--out', 'deep/er').json
    names = {k: [e['file'] for e in v] if isinstance(v, list) else v['file']
             for k, v in got.items()}
    assert names['b'] == ['deep/er/000000-b-000000.jpg',
                          'deep/er/000000-b-000001.bin']
    assert names['p'].endswith('p.png') and names['t'].endswith('t.txt')
    assert names['v'].endswith('.mp4') and names['m'].endswith('.msgpack')
    assert names['audio'].endswith('.flac')
    assert pathlib.Path(names['t']).read_text() == 'text'
    other = pathlib.Path(names['F O\u00d6[1]'])
    assert other.read_bytes() == b'\7\0' and other.name.isascii()
    assert len(list(pathlib.Path('deep/er').iterdir())) == 8
    refuse('get', 'out', '0', '--out', 'deep/er', says='exists')
    got = run('get', 'out', '0', 'b[1:2]', '--out', 'other').json
    assert got == {'b': [{'file': 'other/000000-b-000001.bin'}]}


DATA = harness.ROOT / 'tests/data'


def images_are_shown_with_their_size():
    if not has_codec('jpeg') or not has_codec('png'):
        return
    jpeg = (DATA / 'photos/china.jpg').read_bytes()
    gray = b'\x89PNG\r\n\x1a\n'
    for name, data in ((b'IHDR', struct.pack('>IIBBBBB', 3, 2, 8, 4, 0, 0, 0)),
                       (b'IDAT', zlib.compress((b'\0' + b'ab' * 3) * 2)), (b'IEND', b'')):
        gray += struct.pack('>I', len(data)) + name + data + struct.pack(
            '>I', zlib.crc32(name + data))
    rows = [{'j': {'base64': base64.b64encode(j).decode()},
             'p': [{'base64': base64.b64encode(p).decode()} for p in ps]}
            for j, ps in ((jpeg, [gray, gray]), (b'\xff\xd8\xff', []),
                          (jpeg[:300], [gray[:30]]))]
    pack(rows, 'j=jpeg,p=png[]', 'out', '--unchecked')
    png = {'type': 'png', 'bytes': len(gray), 'height': 2, 'width': 3, 'channels': 2}
    assert run('get', 'out', '0').json == {
        'j': {'type': 'jpeg', 'bytes': 196653, 'height': 427, 'width': 640,
              'channels': 3}, 'p': [png, png]}
    assert run('get', 'out', '0', 'p[1]').json == {'p': png}
    assert len(refuse('get', 'out', ':', says='out: 3 values not decoded').lines) == 3
    for row in 1, 2:
        done = refuse('get', 'out', row, says='not decoded')
        got = done.json
        assert got['j']['error'] and 'height' not in got['j'], got
        assert all('error' in p and 'height' not in p for p in got['p']), got


def videos_are_shown_with_their_frames():
    if not has_codec('mp4'):
        return
    pack([{'v': {'file': str(DATA / 'video/mpeg4_odd.mp4')},
           'w': [{'file': str(DATA / 'video/vp9_odd.webm')}] * 2},
          {'v': {'base64': ''}, 'w': []}], 'v=mp4,w=webm[]')
    video = {'type': 'mp4', 'bytes': 5343, 'frames': 12, 'height': 49, 'width': 65}
    got = run('get', 'out', '0').json
    assert got['v'] == video and len(got['w']) == 2, got
    assert (got['w'][0]['height'], got['w'][0]['width']) == (49, 65), got
    assert run('get', 'out', '1').json == {
        'v': {'type': 'mp4', 'bytes': 0, 'frames': 0, 'height': 0, 'width': 0}, 'w': []}
    # The same frames as of the entire video, of which frame 5 is what PyAV decodes.
    size = 49 * 65 * 3
    frames = run('get', 'out', '0', 'v', '--npy').out[-12 * size:]
    assert frames[5 * size:6 * size] == \
        (DATA / 'video/mpeg4_odd.mp4.pyav.rgb').read_bytes()
    for select, i in (('v[3]', 3), ('v[0]', 0), ('v[-1]', 11), ('v[-12]', 0)):
        raw = run('get', 'out', '0', select, '--npy').out
        assert raw[-size:] == frames[i * size:(i + 1) * size], select
        assert b"'shape': (49, 65, 3)" in raw
        assert run('get', 'out', '0', select).json == {'v': {
            'dtype': 'uint8', 'shape': [49, 65, 3],
            'preview': list(frames[i * size:i * size + 8])}}
    raw = run('get', 'out', '0', 'v[1:8:3]', '--npy').out
    assert b"'shape': (3, 49, 65, 3)" in raw
    assert raw[-3 * size:] == b''.join(frames[i * size:][:size] for i in (1, 4, 7))
    got = run('get', 'out', '0', 'v[-2:]', 'w[1]').json
    assert [frame['preview'] for frame in got['v']] == [
        list(frames[i * size:][:8]) for i in (10, 11)]
    assert got['w']['type'] == 'webm'
    assert run('get', 'out', '0', 'v[5:5]').json == {'v': []}
    assert run('get', 'out', '0', 'v[10:99]', 'w[0:0]').json['w'] == []
    assert run('get', 'out', '1', 'v[:]').json == {'v': []}
    for select in ('v[12]', 'v[-13]', 'v[99999999999999999999]'):
        result = refuse('get', 'out', '0', select, says=(
            f'datapoint 0: frame {select[2:-1]} out of range (length 12)'))
        assert result.out == b''
    refuse('get', 'out', '1', 'v[0]', says='frame 0 out of range (length 0)')
    refuse('get', 'out', '0', 'v[3]', '--raw', says=('--raw', '--npy'), code=2)
    refuse('get', 'out', '0', 'v[x]', code=2)
    refuse('get', 'out', '0', 'v', 'v[1]', code=2)
    if has_codec('png'):
        got = run('get', 'out', '0', 'v[3]', '--out', 'd').json
        assert got == {'v': {'file': 'd/000000-v-000003.png'}}
        got = run('get', 'out', '0', 'v[1:3]', '--out', 'd').json
        assert [f['file'][-10:] for f in got['v']] == ['000001.png', '000002.png']
        pack([{'p': {'file': 'd/000000-v-000003.png'}}], 'p=png', 'png')
        assert run('get', 'png', '0', 'p', '--npy').out[-size:] == \
            frames[3 * size:4 * size]


def a_video_that_does_not_decode_has_no_frames():
    if not has_codec('mp4'):
        return
    good = (DATA / 'video/mpeg4_odd.mp4').read_bytes()
    pack([{'v': {'base64': base64.b64encode(bad).decode()}}
          for bad in (good, good[:3000], b'no video')], 'v=mp4', 'out', '--unchecked')
    for row in 1, 2:
        got = refuse('get', 'out', row, says='not decoded').json['v']
        assert got['error'] and 'frames' not in got, got
        refuse('get', 'out', row, 'v[0]', '--npy', says=f'"v": datapoint {row}: ')
        assert refuse('get', 'out', row, 'v[0]', says=f'"v": datapoint {row}: ').out == b''


def a_field_whose_name_ends_in_brackets_is_found():
    pack([{'a[0]': 1, 'a': ['x', 'y']}], 'a[0]=int,a=utf8[]')
    assert _get('0', 'a[0]') == [{'a[0]': 1}]
    assert _get('0', 'a[1]') == [{'a': 'y'}]


def numbers_are_exact_to_64_bits():
    pack([{'u': 2**64 - 1, 'i': -2**63, 'n': 2**64 - 1, 'w': 2**53 + 1},
          {'u': 0, 'i': 2**63 - 1, 'n': 0, 'w': 255}],
         'u=u64,i=i64,n=int,w=int(8,big)')
    assert _get('0:2') == [
        {'i': -2**63, 'n': 2**64 - 1, 'u': 2**64 - 1, 'w': 2**53 + 1},
        {'i': 2**63 - 1, 'n': 0, 'u': 0, 'w': 255}]
    assert b'18446744073709551615' in run('get', 'out', '0', 'u').out


def numbers_above_64_bits_are_shown_by_their_size():
    big = base64.b64encode(b'\1' * 9).decode()
    zero = base64.b64encode(b'\1' * 8 + b'\0').decode()
    pack([{'n': {'base64': big}, 'm': {'base64': big}},
          {'n': {'base64': zero}, 'm': {'base64': zero}}], 'n=int,m=int(9)')
    want = 0x0101010101010101
    assert _get('0:2') == [
        {'m': {'type': 'int(9)', 'bytes': 9}, 'n': {'type': 'int', 'bytes': 9}},
        {'m': want, 'n': want}]
    run('export', 'out', 'plain')
    first, second = [json.loads(line) for line in
                     pathlib.Path('plain/manifest.jsonl').read_text()
                     .splitlines()]
    assert list(first['n']) == list(first['m']) == ['file']
    assert second == {'m': want, 'n': want}


TEXTS = ['', 'a\0b', '"\\/\b\f\n\r\t\x7f\x1f', 'ünï 💡 \u2028', '\ufeff\uffff']


def text_is_whole():
    pack([{'t': t} for t in TEXTS], 't=utf8')
    assert [row['t'] for row in _get('0:9')] == TEXTS
    assert run('get', 'out', '1', 't', '--raw').out == b'a\0b'


def text_that_is_not_utf8_never_becomes_wrong_json():
    bad = base64.b64encode(b'a\xff\xed\xa0\x80').decode()
    pack([{'t': {'base64': bad}}], 't=utf8', 'out', '--unchecked')
    got = run('get', 'out', '0', code=1).json
    assert got['t']['type'] == 'utf8' and got['t']['bytes'] == 5
    run('export', 'out', 'plain')
    line = json.loads(pathlib.Path('plain/manifest.jsonl').read_text())
    assert pathlib.Path('plain', line['t']['file']).read_bytes() == \
        b'a\xff\xed\xa0\x80'
    run('pack', 'plain/manifest.jsonl', 'again', '--unchecked')
    assert run('get', 'again', '0', 't', '--raw').out == b'a\xff\xed\xa0\x80'


def _array(fmt, dtype, numbers):
    raw = struct.pack(f'<{len(numbers)}{fmt}', *numbers)
    pack([{'a': {'base64': base64.b64encode(raw).decode()}}],
         f'a=array({dtype},{len(numbers)})', out := f'out-{dtype}')
    return run('get', out, '0').json['a']


@each([('b', 'int8', [-128, 127]), ('B', 'uint8', [0, 255]),
       ('h', 'int16', [-2**15]), ('H', 'uint16', [2**16 - 1]),
       ('i', 'int32', [-2**31]), ('I', 'uint32', [2**32 - 1]),
       ('q', 'int64', [-2**63, 2**63 - 1]), ('Q', 'uint64', [2**64 - 1]),
       ('?', 'bool', [True, False]), ('d', 'float64', [0.1, -1e300, 5e-324]),
       ('e', 'float16', [0.5, -2.0, 65504.0, 6e-08]),
       ('f', 'float32', [0.5, -2.0, 16777216.0])])
def arrays_are_shown_with_dtype_shape_and_first_elements(case):
    fmt, dtype, numbers = case
    got = _array(fmt, dtype, numbers)
    want = [struct.unpack(fmt, struct.pack(fmt, n))[0] for n in numbers]
    assert got['dtype'] == dtype and got['shape'] == [len(numbers)]
    if fmt == 'e':
        want = [struct.pack(fmt, n) for n in want]
        got['preview'] = [struct.pack(fmt, n) for n in got['preview']]
    assert got['preview'] == want


def arrays_with_infinities_are_still_json():
    got = _array('f', 'float32', [float('inf'), float('-inf'), float('nan')])
    assert got['preview'] == ['Infinity', '-Infinity', 'NaN']


def complex_numbers_are_shown_as_text():
    raw = struct.pack('<4d', 1.5, -2.0, 0.0, 0.1)
    pack([{'a': {'base64': base64.b64encode(raw).decode()},
           's': '1.5-2j', 'l': [1, '0-0.1j']}],
         'a=array(complex128,2),s=complex64,l=array(complex64,2)')
    got = run('get', 'out', '0', '--lists').json
    assert got == {'a': ['1.5-2j', '0+0.1j'], 's': '1.5-2j',
                   'l': ['1+0j', '0-0.1j']}
    assert run('get', 'out', '0', 's', '--raw').out == struct.pack('<2f', 1.5, -2)


def long_arrays_are_shown_in_part():
    got = _array('B', 'uint8', list(range(100)))
    assert got['shape'] == [100] and got['preview'] == list(range(8))


def an_array_of_the_wrong_size_is_shown_by_its_size():
    pack([{'a': {'base64': 'AAAA'}}], 'a=array(uint8,4)', 'out', '--unchecked')
    got = refuse('get', 'out', '0', says='1 value not decoded').json['a']
    assert got['type'] == 'array(uint8,4)' and got['bytes'] == 3


def a_bag_has_blobs_and_no_fields():
    pathlib.Path('x.bag').write_bytes(b'aabbb' + struct.pack('<3Q', 0, 2, 5))
    assert run('get', 'x.bag', '0').json == \
        {'blob': {'type': 'bytes', 'bytes': 2}}
    assert run('get', 'x.bag', '1', '--raw').out == b'bbb'
    assert len(run('get', 'x.bag', '0:7').lines) == 2
    refuse('get', 'x.bag', '2', says='x.bag')
    refuse('get', 'x.bag', '0', 'blob', code=2)
    got = run('get', 'x.bag', '1', '--out', 'd').json
    assert pathlib.Path(got['blob']['file']).read_bytes() == b'bbb'


def an_unfinished_shard_is_refused_or_left_out():
    pack([{'n': i} for i in range(4)], 'n=int', 'out', '--shard-length', '2')
    shard = pathlib.Path('out/000001')
    (shard / 'spec.json').rename(shard / 'spec.json.partial')
    refuse('get', 'out', '0', says=('000001', 'recover', '--live',
                                    '--skip-unfinished'))
    refuse('export', 'out', 'x')
    refuse('verify', 'out')
    refuse('finalize', 'out')
    assert run('get', 'out', '0:9', '--skip-unfinished').lines == \
        [{'n': 0}, {'n': 1}]
    got = run('info', 'out', '--json', '--skip-unfinished').json
    assert (got['length'], got['shards'], got['skipped'], got['missing']) == \
        (2, 1, 1, [])
    run('export', 'out', 'x', '--skip-unfinished')
    run('verify', 'out', '--skip-unfinished')


@each([1, 6])
def a_shard_that_is_left_out_is_not_missing(digits):
    pack([{'n': i} for i in range(8)], 'n=int', 'out', '--shard-length', '1')
    shards = [pathlib.Path('out', f'{i:0{digits}}') for i in range(8)]
    for i, path in enumerate(shards):
        pathlib.Path('out', f'{i:06}').rename(path)
    for i in (1, 3, 5, 6):
        subprocess.run(['rm', '-r', shards[i]], check=True)
    for i in (2, 7):
        (shards[i] / 'spec.json').rename(shards[i] / 'spec.json.partial')
    words = ['info', 'out', '--skip-unfinished', '--allow-gaps']
    got = run(*words, '--json').json
    assert (got['length'], got['skipped'], got['missing']) == (2, 2, [1, 3, 5, 6])
    text = run(*words).out.decode()
    assert 'missing    000001, 000003, 000005 to 000006\n' in text, text


def very_many_missing_shards_do_not_make_it_endless():
    pack([{'n': 0}, {'n': 1}], 'n=int', 'out', '--shard-length', '1')
    pathlib.Path('out/000001').rename('out/999999999999999')
    refuse('info', 'out', '--json', '--allow-gaps')
    text = run('info', 'out', '--allow-gaps').out.decode()
    assert '000001 to 999999999999998' in text
    assert _get('1', 'n', '--allow-gaps') == [{'n': 1}]


def a_file_that_is_no_bag_is_not_shown_as_an_offset():
    pathlib.Path('x.bag').write_bytes(b'some text, not a Bag')
    result = refuse('info', 'x.bag', says=('x.bag', 'not a Bag', 'truncated'))
    assert not any(c.isdigit() for c in result.err.replace('8 bytes', '')), result.err


def what_was_exported_is_printed():
    pack([{'s': 'a', 'b': {'base64': 'AA=='}}], 's=utf8, b=bytes')
    assert run('export', 'out', 'x').out == \
        b'x: wrote 1 datapoint of out, with 1 file\n'
    assert run('export', 'out/b.bag', 'y').out == \
        b'y: wrote 1 blob of out/b.bag, with 1 file\n'
    pack([{'s': 'a'}, {'s': 'b'}], 's=utf8', 'z')
    assert run('export', 'z', 'w').out == b'w: wrote 2 datapoints of z, with 0 files\n'


def _truncate_while(path, *words):
    """Truncate this file while the command waits until its output is read."""
    job = subprocess.Popen([harness.PROGRAM, *words], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE)
    assert job.stdout.read(1)
    os.truncate(path, 4096)
    said = job.communicate()[1].decode()
    assert job.returncode == 1, (job.returncode, said)
    return said


@each([('get', 'out', ':'), ('get', 'out/n.bag', ':'),
       ('load', 'out', '--batch', '1', '--indices'),
       ('load', 'out', 'more', '--batch', '1', '--indices')])
def a_file_truncated_while_it_is_read_is_an_error(words):
    pack([{'n': i} for i in range(30_000)], 'n=int(4)')
    pack([{'n': 1}], 'n=int(4)', 'more')
    names = '' if 'more' in words else f'{words[1]}: '
    assert _truncate_while('out/n.bag', *words) == \
        f'bags: {names}a file was truncated while it was read, or its disk failed\n'


def a_file_truncated_while_a_blob_is_printed_is_an_error():
    pack([{'b': {'base64': 'AAAA' * 500_000}}], 'b=bytes')
    assert _truncate_while('out/b.bag', 'get', 'out', '0', '--raw') == \
        'bags: out: a file was truncated while it was read, or its disk failed\n'


def directories_that_have_numbers_as_names_are_not_shards():
    os.makedirs('photos/2023')
    pathlib.Path('photos/2023/a.jpg').touch()
    for words in (('info',), ('verify',)):
        error = refuse(*words, 'photos',
                       says='photos/2023: not a shard (it has no file of one)').err
        assert '--live' not in error, error
    pack([{'n': 1}], 'n=int', 'photos/2024')
    os.rename('photos/2024', 'photos/pets')
    refuse('info', 'photos', says='photos/2023: not a shard')
    assert run('info', 'photos/pets').out
    os.makedirs('claimed/000000')
    refuse('info', 'claimed', says='claimed/000000: unfinished')
    pathlib.Path('claimed/000000/n.bag').touch()
    refuse('info', 'claimed', says='claimed/000000: unfinished')


def _npy(name, descr, shape, data):
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b' ' * (-(len(head) + 11) % 64) + b'\n'
    pathlib.Path(name).write_bytes(b'\x93NUMPY\1\0' + struct.pack('<H', len(head)) + head + data)
    return json.dumps({'x': {'file': name}}) + '\n'


def npy_files_of_every_dtype_are_shown():
    """Dates as their number of units, text, structures; bytes that JSON cannot hold by size."""
    structure = "[('a', [('b', '>i2'), ('', '|V1'), ('c', '<U1')]), ('d', '<f4', (1, 2)), ('e', '>c8')]"
    record = struct.pack('>hx', -2) + 'é'.encode('utf-32-le') + struct.pack('<2f', 1, .5) + \
        struct.pack('>2f', 1, -2)
    shown = {'a': {'b': -2, 'c': 'é'}, 'd': [[1, .5]], 'e': '1-2j'}
    text = ''.join(('a\0\0', 'é\0😀', '\0\0\0')).encode('utf-32-be')
    most = [(1 << 63) - 1, -1 << 63]
    cases = [
        ("'<M8[25s]'", (2,), struct.pack('<2q', *most), [most[0], 'NaT']),
        ("'>m8[ns]'", (2, 1), struct.pack('>2q', 1, -1), [[1], [-1]]),
        ("'>U3'", (3,), text, ['a', 'é\0😀', '']),
        ("'<U1'", (2,), struct.pack('<2I', 0xD800, 0x110000), [{'bytes': 4}] * 2),
        ("'|S2'", (3,), b'a\0\xff\xff\0\0', ['a', {'bytes': 2}, '']),
        ("'|V3'", (1,), b'abc', [{'bytes': 3}]),
        ("'<f16'", (1,), bytes(16), [{'bytes': 16}]),
        (structure, (2,), record * 2, [shown] * 2),
        ("'<M8[D]'", (), struct.pack('<q', 7), 7),
        ("'<U2'", (0,), b'', []),
    ]
    pathlib.Path('m.jsonl').write_text(''.join(
        _npy(f'{i}.npy', *case[:3]) for i, case in enumerate(cases)))
    run('pack', 'm.jsonl', 'out', '--spec', 'x=npy')
    pathlib.Path('z.jsonl').write_text(
        pathlib.Path('m.jsonl').read_text().replace('"file"', '"from"'))
    has_zstd = 'zstd' in run('--version').out.decode().split()
    if has_zstd:
        run('pack', 'z.jsonl', 'zstd', '--spec', 'x=zstd(npy)')
    def flat(value, dims):
        return [b for a in value for b in flat(a, dims - 1)] if dims else [value]
    for path in ('out', 'zstd')[:1 + has_zstd]:
        for (descr, shape, data, value), row, whole in zip(
                cases, run('get', path, ':').lines, run('get', path, ':', '--lists').lines):
            dtype = descr.strip("'")
            assert whole == {'x': {'dtype': dtype, 'list': value}}, whole
            assert row == {'x': {'dtype': dtype, 'shape': list(shape), 'preview':
                                 flat(value, len(shape))} if shape else value}, row
    # Elements that are large, or many lists without elements.
    descr = "[('a', '|i1', (99, 999))]"
    pathlib.Path('m.jsonl').write_text(
        _npy('0.npy', descr, (1,), bytes(99 * 999)) +
        _npy('1.npy', "[('a', '|i1', (1099511627776, 0))]", (1,), b''))
    run('pack', 'm.jsonl', 'large', '--spec', 'x=npy')
    for options in ([], ['--lists']):
        first, second = run('get', 'large', ':', *options).lines
        assert first == {'x': {'dtype': descr, 'shape': [1], 'preview': []}}
        assert second['x']['preview'] == []


def the_stored_bytes_are_shown_in_base64():
    pack([{'n': 258, 't': 'a', 's': ['b', '']}], 'n=int(4),t=utf8,s=utf8[]', 'set')
    assert run('get', 'set', ':', '--base64').json == {
        'n': 'AgEAAA==', 't': 'YQ==', 's': ['Yg==', '']}
    assert run('get', 'set', '0', 's[1:]', '--base64').json == {'s': ['']}
    assert run('get', 'set/t.bag', '0', '--base64').json == {'blob': 'YQ=='}
    refuse('get', 'set', '0', 't', '--base64', '--raw', code=2, says='--base64')
