"""bags pack: what a manifest may say, and what is refused."""
import base64
import gzip
import json
import math
import os
import pathlib
import resource
import struct
import subprocess

import harness
from harness import each, files, has_codec, pack, read, refuse, run, values, write_lines


def _blob(text):
    return {'base64': base64.b64encode(text).decode()}


def every_kind_of_value_is_packed():
    pathlib.Path('in').mkdir()
    pathlib.Path('in/b.dat').write_bytes(b'bytes')
    outside = pathlib.Path('abs.dat').resolve()
    outside.write_bytes(b'outside')
    write_lines('in/m.jsonl', [
        {'n': 7, 'i': -1, 't': 'ü\0', 's': ['a', 'b'], 'f': {'file': 'b.dat'},
         'g': [{'file': str(outside)}, _blob(b'x')]},
        {'g': [], 'f': {'file': '../abs.dat'}, 's': [], 't': '', 'i': 5,
         'n': 0}])
    run('pack', 'in/m.jsonl', 'out', '--spec',
        'n=int(2),i=i64,t=utf8,s=utf8[],f=bytes,g=bytes[]')
    first, second = values('out')
    assert first == {'f': b'bytes'.hex(), 'g': [b'outside'.hex(), '78'],
                     'i': -1, 'n': 7, 's': ['a', 'b'], 't': 'ü\0'}
    assert second == {'f': b'outside'.hex(), 'g': [], 'i': 5, 'n': 0, 's': [],
                      't': ''}


def the_order_of_fields_does_not_matter():
    pack([{'a': 1, 'b': 2}, {'b': 2, 'a': 1}], 'b=int,a=int')
    assert values('out') == [{'a': 1, 'b': 2}] * 2


SPEC = 'n=int(2),t=utf8,s=utf8[],i=i64,r=bytes'
GOOD = {'n': 1, 't': 'x', 's': ['y'], 'i': 1, 'r': {'base64': ''}}


def _with(**changes):
    row = dict(GOOD, **changes)
    return json.dumps({k: v for k, v in row.items() if v != 'DROP'}) + '\n'


def _text(old, new):
    return json.dumps(GOOD).replace(old, new) + '\n'


BAD = [
    ('no JSON', 'nonsense\n', 'line 2'),
    ('cut off', '{"n": 1,\n', 'line 2'),
    ('a list', '[1]\n', 'object'),
    ('a number', '7\n', 'object'),
    ('null', 'null\n', 'object'),
    ('text', '"x"\n', 'object'),
    ('two objects', json.dumps(GOOD) + ' {}\n', 'line 2'),
    ('an empty line before another', '\n' + _with(), 'empty'),
    ('Latin-1', b'{"t": "\xe9"}\n', 'UTF-8'),
    ('overlong UTF-8', b'{"t": "\xc0\x80"}\n', 'UTF-8'),
    ('a surrogate in UTF-8', b'{"t": "\xed\xa0\x80"}\n', 'UTF-8'),
    ('half a surrogate', _text('"x"', '"\\ud800"'), 'surrogate'),
    ('the other half', _text('"x"', '"\\udc00 "'), 'surrogate'),
    ('a zero byte', b'{"t": "\0"}\n', 'line 2'),
    ('a control character', '{"t": "\x01"}\n', 'control'),
    ('a byte order mark', '\ufeff' + _with(), 'line 2'),
    ('single quotes', _text('"', "'"), 'line 2'),
    ('a trailing comma', _with().replace('}\n', ',}\n'), 'line 2'),
    ('a comment', _with().replace('}\n', '} // x\n'), 'line 2'),
    ('a wrong escape', _text('"x"', '"\\x41"'), 'line 2'),
    ('a field missing', _with(n='DROP'), '"n": missing'),
    ('a field too many', _with(zzz=1), '"zzz"'),
    ('a field twice', _with().replace('{', '{"n": 2, '), 'duplicate'),
    ('a field twice, escaped', _with().replace('{', '{"\\u006e": 2, '),
     'duplicate'),
    ('U+0000 in a name', _with().replace('"n"', '"n\\u0000x"'), 'U+0000'),
    ('a fraction', _with(n=1.5), '"n"'),
    ('a whole fraction', _with(n=1.0), '"n"'),
    ('an exponent', _text('"n": 1', '"n": 1e2'), '"n"'),
    ('a number that does not fit', _with(n=65536), '"n"'),
    ('a negative number', _with(n=-1), '"n"'),
    ('above 64 bits', _with(n=2**64), '2^64'),
    ('far above 64 bits', _with(n=10**30), '2^64'),
    ('below 64 bits', _with(i=-2**63 - 1), '2^63'),
    ('above i64', _with(i=2**63), '"i"'),
    ('a leading zero', _text('"n": 1', '"n": 01'), 'line 2'),
    *[(f'the number {number}', _text('"n": 1', f'"n": {number}'),
       ('column', 'not a JSON number'))
      for number in ('00', '-00', '00.5', '01.5', '1.', '-.5', '1.e2', '1e', '-')],
    ('a plus', _text('"n": 1', '"n": +1'), 'line 2'),
    ('NaN', _text('"n": 1', '"n": NaN'), 'line 2'),
    ('Infinity', _text('"n": 1', '"n": -Infinity'), 'line 2'),
    ('text for a number', _with(n='1'), '"n"'),
    ('a number for text', _with(t=1), '"t"'),
    ('true', _with(n=True), '"n"'),
    ('null for a number', _with(n=None), '"n"'),
    ('null for text', _with(t=None), '"t"'),
    ('null for a sequence', _with(s=None), '"s"'),
    ('null in a sequence', _with(s=['a', None]), ('"s"', 'item 1')),
    ('a list for a plain field', _with(n=[1]), '"n"'),
    ('no list for a sequence', _with(s='y'), '"s"'),
    ('a list in a sequence', _with(s=[['y']]), '"s"'),
    ('text for bytes', _with(r='x'), '"r"'),
    ('an unknown object', _with(r={'path': 'x'}), '"r"'),
    ('an object with more', _with(r={'base64': '', 'x': 1}), '"r"'),
    ('a file that is a number', _with(r={'file': 1}), '"r"'),
    ('a file that is not there', _with(r={'file': 'no/such'}),
     ('"r"', 'no/such')),
    ('a file that is a directory', _with(r={'file': '.'}), '"r"'),
    ('a file that is a device', _with(r={'file': '/dev/zero'}), '"r"'),
    ('a file that is a pipe', _with(r={'file': 'pipe'}), '"r"'),
    ('a file without a name', _with(r={'file': ''}), '"r"'),
    ('a file with U+0000', _with(r={'file': 'ok\0no'}), '"r"'),
    ('base64 with spaces', _with(r={'base64': 'AA AA'}), '"r"'),
    ('base64 without padding', _with(r={'base64': 'AAA'}), '"r"'),
    ('base64 with too much padding', _with(r={'base64': 'A==='}), '"r"'),
    ('base64 padding alone', _with(r={'base64': '===='}), '"r"'),
    ('base64 padding within', _with(r={'base64': 'AA==AAAA'}), '"r"'),
    ('base64 for URLs', _with(r={'base64': '-_-_'}), '"r"'),
    ('base64 with bits left', _with(r={'base64': 'AB=='}), '"r"'),
    ('base64 with U+0000', _with(r={'base64': 'AA\0A'}), '"r"'),
    ('from nothing', _with(r={'from': 'no/such.npy'}), '"r"'),
    ('too deep', _text('"x"', '[' * 600 + ']' * 600), 'deep'),
    ('much too deep', _text('"x"', '[' * 200000), 'deep'),
]


@each([(name,) for name, *_ in BAD])
def a_bad_line_is_named_and_what_came_before_it_is_kept(case):
    line, says = next((line, says) for name, line, says in BAD
                      if name == case[0])
    os.mkfifo('pipe')
    line = line if isinstance(line, bytes) else line.encode()
    pathlib.Path('m.jsonl').write_bytes(_with().encode() + line)
    says = (says,) if isinstance(says, str) else says
    refuse('pack', 'm.jsonl', 'out', '--spec', SPEC, '--no-sync',
           says=('m.jsonl: line 2: ', '1 datapoint is kept', '--resume', *says))
    pathlib.Path('m.jsonl').write_bytes(_with().encode())
    again = run('pack', 'm.jsonl', 'out', '--spec', SPEC, '--resume')
    assert b'0 datapoints, after 1 that existed' in again.out, again.out
    assert read('out')['count'] == 1
    pathlib.Path('m.jsonl').write_bytes(_with().encode() + line)
    refuse('pack', 'm.jsonl', 'sharded', '--spec', SPEC, '--shard-length', '1',
           '--no-sync', says=('m.jsonl: line 2: ', '1 datapoint is kept'))
    assert [f.name for f in pathlib.Path('sharded').iterdir()] == ['000000']
    assert read('sharded')['count'] == 1


def a_first_line_that_is_bad_leaves_nothing():
    for options in ([], ['--shard-length', '1'], ['--idx']):
        write_lines('m.jsonl', ['nonsense\n'])
        refuse('pack', 'm.jsonl', 'out', '--spec', 'n=int', *options)
        assert not pathlib.Path('out').exists(), options


def lines_may_end_as_they_like():
    good = json.dumps({'n': 1})
    for text in (good, good + '\n', good + '\r\n', good + '\n\n \n',
                 f' {good}\t\n', '\r\n'.join([good] * 3), ):
        pathlib.Path('m.jsonl').write_bytes(text.encode())
        run('pack', 'm.jsonl', 'out', '--spec', 'n=int')
        assert read('out')['count'] == text.count('{')
        subprocess.run(['rm', '-r', 'out'], check=True)


def an_empty_manifest_makes_an_empty_dataset_and_is_refused_for_shards():
    for text in (b'', b'\n'):
        pathlib.Path('m.jsonl').write_bytes(text)
        run('pack', 'm.jsonl', 'out', '--spec', 'n=int,s=utf8[]')
        assert read('out')['count'] == 0
        subprocess.run(['rm', '-r', 'out'], check=True)
        for more in ([], ['--shard-stop', '2'], ['--shard-start', '1', '--shard-stop', '2']):
            refuse('pack', 'm.jsonl', 'shards', '--spec', 'n=int', '--shard-size',
                   '0', *more, says='m.jsonl: contains no datapoint')
        assert not pathlib.Path('shards').exists()
        run('pack', 'm.jsonl', 'x.bag')
        assert pathlib.Path('x.bag').read_bytes() == bytes(8)
        pathlib.Path('x.bag').unlink()
        pathlib.Path('x.crc').unlink()


def a_spec_without_fields_is_a_spec():
    pathlib.Path('spec.json').write_text('{}')
    write_lines('m.jsonl', [{}, {}])
    run('pack', 'm.jsonl', 'out')
    assert read('out')['count'] == 2
    assert run('get', 'out', '0:2').lines == [{}, {}]
    run('export', 'out', 'raw', '--raw')
    run('pack', 'raw/manifest.jsonl', 'again')
    assert files('again') == files('out')


def the_spec_is_words_or_a_file_or_beside_the_manifest():
    write_lines('m.jsonl', [{'b': 1, 'a,c': {'base64': ''}, 'x=y': []}])
    spec = {'b': 'int(8)', 'a,c': 'array(float32,0)', 'x=y': 'utf8[]'}
    pathlib.Path('given.json').write_text(json.dumps(spec))
    run('pack', 'm.jsonl', 'one', '--spec', 'given.json')
    pathlib.Path('no-ending').write_text(json.dumps(spec))
    run('pack', 'm.jsonl', 'two', '--spec', 'no-ending')
    pathlib.Path('spec.json').write_text(json.dumps(spec, indent=3))
    run('pack', 'm.jsonl', 'three')
    assert files('one') == files('two') == files('three')
    assert pathlib.Path('one/spec.json').read_text() == json.dumps(
        dict(sorted(spec.items())))
    write_lines('n.jsonl', [{'b': 1, 'c': {'base64': ''}, 'x': []}])
    run('pack', 'n.jsonl', 'four', '--spec=c=array(float32,0),b=int(8),x=utf8[]')
    assert read('four')['spec'] == {'b': 'int(8)', 'c': 'array(float32,0)', 'x': 'utf8[]'}


@each(['a', 'a=int,', 'a=int,,b=int', '=', ',', 'a=int,b'])
def a_spec_that_makes_no_sense_leaves_nothing(spec):
    write_lines('m.jsonl', [])
    refuse('pack', 'm.jsonl', 'out', '--spec', spec, code=2)
    assert not pathlib.Path('out').exists()


@each([('x=Int', 'x'), ('x=int(', 'x'), ('x=int[][]', 'x'), ('x=', 'x'),
       ('refs=int', 'refs'), ('../x=int', 'x'), ('a/b=int', 'a/b'),
       ('.x=int', '.x'), ('=int', ''), ('x=int,x=utf8', 'x'), ('a:b=int', 'a:b'),
       ('a\tb=int', ''), ('x=int(a)', ''), ('x=array(nonsense,2)', '')])
def a_bad_field_is_refused_and_leaves_nothing(case):
    spec, says = case
    write_lines('m.jsonl', [{spec.split('=')[0]: 1}])
    refuse('pack', 'm.jsonl', 'out', '--spec', spec, says=says, code=2)
    assert not pathlib.Path('out').exists()


@each(['', '[]', 'nonsense', '{"a": 1}', '{"a": "int", "a": "int"}',
       '{"a": "int"} x', '{"a\\u0000": "int"}', '{"a": "int\\u0000"}', '"a"',
       '{"a": null}', '{"a": ["int"]}'])
def a_spec_file_that_is_bad_is_named(text):
    write_lines('m.jsonl', [])
    pathlib.Path('bad.json').write_text(text)
    refuse('pack', 'm.jsonl', 'out', '--spec', 'bad.json', says='bad.json')
    pathlib.Path('spec.json').write_text(text)
    refuse('pack', 'm.jsonl', 'out', says='spec.json')
    refuse('pack', 'm.jsonl', 'out', '--spec', 'no-such.json',
           says='no-such.json')
    assert not pathlib.Path('out').exists()


def without_a_spec_it_says_what_is_missing():
    write_lines('m.jsonl', [])
    refuse('pack', 'm.jsonl', 'out', says='--spec', code=2)
    refuse('pack', '-', 'out', says='--spec', code=2)


def an_output_that_exists_is_not_touched():
    write_lines('m.jsonl', [{'n': 1}])
    pathlib.Path('file').write_text('mine')
    pathlib.Path('directory').mkdir()
    pathlib.Path('directory/mine').write_text('mine')
    pathlib.Path('x.bag').write_text('mine')
    before = files('.')
    for out in ('file', 'directory', 'file/below'):
        refuse('pack', 'm.jsonl', out, '--spec', 'n=int', says='file' if 'file'
               in out else 'directory')
    write_lines('b.jsonl', [{'blob': {'base64': ''}}])
    refuse('pack', 'b.jsonl', 'x.bag', says='x.bag')
    refuse('pack', 'm.jsonl', 'file', '--spec', 'n=int', '--shard-size', '1')
    pathlib.Path('b.jsonl').unlink()
    assert files('.') == before
    pathlib.Path('out').mkdir()
    refuse('pack', 'm.jsonl', 'out', '--spec', 'n=int', says='out')
    assert pathlib.Path('out').exists()


def a_manifest_that_cannot_be_read_leaves_nothing():
    refuse('pack', 'no/such.jsonl', 'out', '--spec', 'n=int',
           says='no/such.jsonl')
    refuse('pack', '.', 'out', '--spec', 'n=int', says='directory')
    assert not any(pathlib.Path().iterdir())


def a_manifest_comes_from_standard_input():
    text = b'{"n": 1}\n{"n": 2}'
    run('pack', '-', 'out', '--spec', 'n=int', stdin=text)
    assert values('out') == [{'n': 1}, {'n': 2}]
    pathlib.Path('b').write_bytes(b'file')
    run('pack', '-', 'x.bag', stdin=b'{"blob": {"file": "b"}}')
    assert run('get', 'x.bag', '0', '--raw').out == b'file'
    refuse('pack', '-', 'bad', '--spec', 'n=int', stdin=b'{"n": 1}\n{"n": ""}',
           says='line 2')
    run('pack', '-', 'bad', '--spec', 'n=int', '--resume',
        stdin=b'{"n": 1}\n{"n": 2}')
    assert values('bad') == [{'n': 1}, {'n': 2}]


@each(['{"blob": "x"}', '{"blob": 1}', '{"blob": null}', '{"blob": []}',
       '{"blob": {"from": "no-such"}}', '{}', '{"x": {"base64": ""}}',
       '{"blob": {"base64": ""}, "x": 1}',
       '{"blob": {"base64": ""}, "blob": {"base64": ""}}',
       '{"blob": {"file": "no-such"}}'])
def a_bad_line_for_a_bag_keeps_what_came_before(line):
    write_lines('m.jsonl', [line + '\n'])
    refuse('pack', 'm.jsonl', 'x.bag', says='m.jsonl: line 1: ')
    assert sorted(f.name for f in pathlib.Path().iterdir()) == ['m.jsonl']
    write_lines('m.jsonl', ['{"blob": {"base64": "AAAA"}}\n', line + '\n'])
    refuse('pack', 'm.jsonl', 'x.bag',
           says=('m.jsonl: line 2: ', '1 blob is kept', 'bags export'))
    assert run('get', 'x.bag', '0', '--raw', '--live').out == bytes(3)


def a_bag_has_no_spec_and_no_shards():
    write_lines('m.jsonl', [])
    refuse('pack', 'm.jsonl', 'x.bag', '--spec', 'n=int', code=2)
    refuse('pack', 'm.jsonl', 'x.bag', '--shard-size', '0', code=2)
    refuse('pack', 'm.jsonl', 'x.bag', '--resume', code=2)
    assert not pathlib.Path('x.bag').exists()


def a_long_line_is_a_line():
    text = 'x' * 20_000_000
    pack([{'t': text, 'b': {'base64': 'AAAA' * 1_000_000}}], 't=utf8,b=bytes')
    assert run('get', 'out', '0', 't', '--raw').out == text.encode()
    assert run('get', 'out', '0', 'b', '--raw').out == bytes(3_000_000)


def _memory():
    resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))


def _pack_spaces(mebibytes, says, **options):
    process = subprocess.Popen(
        [harness.PROGRAM, 'pack', '-', 'out', '--spec', 't=utf8'],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    sent = 0
    try:
        for sent in range(mebibytes):
            process.stdin.write(b' ' * (1 << 20))
    except BrokenPipeError:
        pass
    _, err = process.communicate(timeout=harness.HANG)
    assert process.returncode == 1 and says in err, err
    assert not pathlib.Path('out').exists()
    return sent


def a_line_larger_than_memory_is_an_error():
    if b'__asan' not in pathlib.Path(harness.PROGRAM).read_bytes():
        _pack_spaces(600, b'memory', preexec_fn=_memory)


def a_line_that_is_too_long_is_an_error():
    sent = _pack_spaces(600, b'line 1: too long (maximum 256 MiB)')
    assert sent < 260


MSGPACK = [None, True, False, 0, 127, 128, 255, 256, 2**16, 2**32, 2**64 - 1,
           -1, -32, -33, -128, -129, -2**63, 0.5, 1.0, 1e300, '', 'x' * 31,
           'x' * 32, 'x' * 70000, 'ü\0', [], [[[]]], list(range(20)), {},
           {'a': {'b': [None, 1.5]}}, {'file': 1}, {'x': 'y'},
           {'file': 'x', 'more': 1}]


def _has_msgpack():
    write_lines('probe.jsonl', [{'m': 1}])
    done = subprocess.run([harness.PROGRAM, 'pack', 'probe.jsonl', 'probe',
                           '--spec', 'm=msgpack'], capture_output=True)
    return done.returncode == 0


def json_becomes_msgpack_and_json_again():
    if not _has_msgpack():
        return
    pack([{'m': m, 's': [m, m]} for m in MSGPACK], 'm=msgpack,s=msgpack[]')
    bag = harness.reference.Bag(pathlib.Path('out/m.bag'))
    for i, want in enumerate(MSGPACK):
        got = harness.reference.unpack(bag[i])
        assert got == want and type(got) is type(want), (got, want)
    rows = run('get', 'out', '0:99').lines
    assert rows == [{'m': m, 's': [m, m]} for m in MSGPACK]
    assert b'18446744073709551615' in run('get', 'out', '10').out
    refuse('pack', write_lines('n.jsonl', ['{"m": 1e999}\n']), 'bad', '--spec',
           'm=msgpack', says='line 1')
    refuse('pack', write_lines('n.jsonl', ['{"m": {"a": 1, "a": 2}}\n']), 'bad',
           '--spec', 'm=msgpack', says='line 1')


def _arrays(spec, *rows, code=0, **more):
    write_lines('m.jsonl', [{'v': row} for row in rows])
    return run('pack', 'm.jsonl', 'out', '--spec', spec, '--no-sync', code=code,
               **more)


def _hex(form, *numbers):
    return struct.pack('<' + form, *numbers).hex()


NUMBERS = [
    ('array(float32,2)', [1, 2.5], _hex('2f', 1, 2.5)),
    ('array(float32)', 0.1, _hex('f', 0.1)),
    ('array(float64)', -3, _hex('d', -3)),
    ('array(float64,2)', ['NaN', '-Infinity'], _hex('2d', math.nan, -math.inf)),
    ('array(int16,2,2)', [[1, -2], [3, 4]], _hex('4h', 1, -2, 3, 4)),
    ('array(int8,2)', [-128, 127], _hex('2b', -128, 127)),
    ('array(int64,2)', [-2**63, 2**63 - 1], _hex('2q', -2**63, 2**63 - 1)),
    ('array(uint64,1)', [2**64 - 1], _hex('Q', 2**64 - 1)),
    ('array(bool,3)', [True, False, True], '010001'),
    ('array(int8,-1,2)', [[1, 2], [3, 4], [5, 6]], '010203040506'),
    ('array(int8,-1,2)', [], ''),
    ('array(int8,0)', [], ''),
    ('array(int8,2,0,3)', [[], []], ''),
]


@each(NUMBERS)
def lists_and_numbers_become_arrays(case):
    spec, value, blob = case
    _arrays('v=' + spec, value)
    (row,) = read('out')['data']
    assert row['v']['hex'] == blob, row


def halves_are_rounded_as_everywhere():
    numbers = [0, -0.0, 1, 65504, 65519.99, 2**-24, 2**-25, 1.5 * 2**-24, 2**-14,
               2**-14 - 2**-25, 1 / 3, -2049, 2051, 1e-8, 5.96e-8]
    _arrays(f'v=array(float16,{len(numbers)})', numbers)
    (row,) = read('out')['data']
    want = [struct.pack('<e', 65504 if n == 65519.99 else n) for n in numbers]
    assert row['v']['hex'] == b''.join(want).hex()


def an_array_of_any_type_says_its_dtype_or_has_that_of_its_numbers():
    rows = [[1, 2], [1, 2.5], [[True], [False]], [], 7,
            {'dtype': 'uint8', 'list': [[1, 2]]}]
    _arrays('v=array', *rows)
    shown = [line['v'] for line in run('get', 'out', ':', '--lists').lines]
    assert shown == [
        {'dtype': 'int64', 'list': [1, 2]},
        {'dtype': 'float64', 'list': [1, 2.5]},
        {'dtype': 'bool', 'list': [[True], [False]]},
        {'dtype': 'float64', 'list': []}, {'dtype': 'int64', 'list': 7},
        {'dtype': 'uint8', 'list': [[1, 2]]}], shown


BAD_LISTS = [
    ('array(float32,2)', [1], 'field "v"'),
    ('array(float32,2)', 1, 'field "v"'),
    ('array(float32,2)', [1, [2]], '"v": [1]: a list is not a number'),
    ('array(float32,2)', [1, None], '"v": [1]: null is not a number'),
    ('array(float32,2)', [1, 'x'], '"v": [1]: "x" is not a number'),
    ('array(float32,2)', [1e39, 0], '"v": [0]: 1e+39 is too large'),
    ('array(float16,1)', [65520], '"v": [0]: 65520 is too large'),
    ('array(uint8,2)', [0, 256], '"v": [1]: 256 is out of range (uint8)'),
    ('array(uint8,2)', [-1, 0], '"v": [0]: -1 is out of range (uint8)'),
    ('array(int8,2)', [-129, 0], '"v": [0]: -129 is out of range (int8)'),
    ('array(int8,1)', [128], '"v": [0]: 128 is out of range (int8)'),
    ('array(int8,1)', [1.0], '"v": [0]: 1.0 is not a whole number'),
    ('array(bool,1)', [1], '"v": [0]: 1 is not true or false'),
    ('array(int8,2,2)', [[1, 2], [3]], '"v": [1]: a list is not as long'),
    ('array(int8,2,2)', [[1, 2], 3], '"v": [1]: 3 is not as long'),
    ('array(int8,1,1,1)', [[[1.5]]], '"v": [0][0][0]: 1.5 is not a whole number'),
    ('array(int8,2)[]', [[1, 2], [3]], 'item 1'),
    ('array', {'dtype': 'float31', 'list': []}, 'not a dtype'),
    ('array', {'list': []}, '"dtype"'),
    ('array(complex64,1)', ['1+2'], '"v": [0]: "1+2" is not a complex number'),
    ('array(complex128,1)', ['1e400+1j'], '"v": [0]: "1e400+1j" is too large'),
    ('array(complex128,1)', ['inf-1e400j'], '"v": [0]: "inf-1e400j" is too large'),
    ('int', [1], 'a sequence has type int[]'),
    ('int', 1.5, 'expected a whole number'),
    ('utf8', 1.5, 'expected text'),
]


@each(BAD_LISTS)
def lists_that_are_no_array_of_the_type_are_refused(case):
    spec, value, says = case
    said = _arrays('v=' + spec, value, code=1).err.replace('1e39', '1e+39')
    assert says in said, said
    assert not pathlib.Path('out').exists()


def lists_that_are_exported_are_packed_to_the_same_bytes():
    rows = [{'s': 0.1, 'v': [1 / 3, -0.0], 'w': [[1, 2]] * i, 'a': [i, 2]}
            for i in range(4)]
    pack(rows, 's=array(float32),v=array(float64,2),w=array(int8,2)[],a=array')
    run('export', 'out', 'x', '--lists')
    assert not pathlib.Path('x/files').exists()
    run('pack', 'x/manifest.jsonl', 'again', '--no-sync')
    assert files('out') == files('again')


def a_bare_nan_is_read_as_python_writes_it():
    rows = [{'v': [math.nan, math.inf, -math.inf], 's': math.nan}]
    pack(rows, 'v=array(float32,3),s=float64')
    assert 'NaN' in pathlib.Path('manifest.jsonl').read_text()
    assert run('get', 'out', '0', 'v', '--raw').out == struct.pack(
        '<3f', math.nan, math.inf, -math.inf)
    assert run('get', 'out', '0', 's').json == {'s': 'NaN'}
    if _has_msgpack():
        pack(['{"m": [NaN, -Infinity]}\n'], 'm=msgpack', 'm')
        got = harness.reference.unpack(
            harness.reference.Bag(pathlib.Path('m/m.bag'))[0])
        assert math.isnan(got[0]) and got[1] == -math.inf
    for bad in ('nan', 'Nan', '-NaN', 'infinity', 'Infinit'):
        refuse('pack', write_lines('n.jsonl', [f'{{"s": {bad}}}\n']), 'bad',
               '--spec', 's=float64', says='line 1')


def names_of_dtypes_are_types_of_numbers():
    spec = ' f = float32, i=int32 ,b=bool,s=uint8[], m=float32(2,2), l=int16(-1)[]'
    row = {'f': 0.5, 'i': -7, 'b': True, 's': [1, 2], 'm': [[1, 2], [3, 4]],
           'l': [[1], [2, 3]]}
    pack([row], spec)
    assert read('out')['spec'] == {
        'b': 'array(bool)', 'f': 'array(float32)', 'i': 'array(int32)',
        'l': 'array(int16,-1)[]', 'm': 'array(float32,2,2)', 's': 'array(uint8)[]'}
    got = run('get', 'out', '0').json
    assert (got['f'], got['i'], got['b'], got['s']) == (0.5, -7, True, [1, 2])
    assert run('get', 'out', '0', '--lists').json == row
    run('export', 'out', 'x')
    line = json.loads(pathlib.Path('x/manifest.jsonl').read_text())
    assert (line['f'], line['i'], line['b'], line['s']) == (0.5, -7, True, [1, 2])
    run('pack', 'x/manifest.jsonl', 'again')
    assert files('again') == files('out')


def an_unknown_type_is_refused_unless_it_is_allowed():
    write_lines('m.jsonl', [{'jpg': {'base64': 'AAAA'}}])
    refuse('pack', 'm.jsonl', 'out', '--spec', 'jpg=jepg',
           says=('"jpg"', '"jepg"', 'bags help types', '--any-type'), code=2)
    pathlib.Path('given.json').write_text('{"jpg": "jepg[]"}')
    refuse('pack', 'm.jsonl', 'out', '--spec', 'given.json', says='jepg')
    assert not pathlib.Path('out').exists()
    run('pack', 'm.jsonl', 'out', '--spec', 'jpg=jepg', '--any-type')
    assert run('get', 'out', '0', '--raw', 'jpg').out == bytes(3)
    # What was exported is packed again; it is only remarked upon.
    run('export', 'out', 'x')
    again = run('pack', 'x/manifest.jsonl', 'again')
    assert 'jepg' in again.err and files('again') == files('out')
    write_lines('m.jsonl', [{'jpg': 7}])
    refuse('pack', 'm.jsonl', 'bad', '--spec', 'jpg=jepg', '--any-type',
           says=('line 1', 'no codec for type "jepg"'))


def encoded_values_are_checked_before_they_are_written():
    cases = [('utf8', b'\xff'), ('array(uint8,4)', b'abc'), ('i64', b'abc'),
             ('array', b'\xc1'), ('jpeg', b'\x89PNG\r\n\x1a\n'), ('png', b'GIF89a'),
             ('mp4', b'\xff\xd8\xff'), ('int(4)', b'abc')]
    if _has_msgpack():
        cases += [('msgpack', b'\xc1'), ('msgpack', b'\x91'), ('tree', b'')]
    for spec, raw in cases:
        pathlib.Path('raw').write_bytes(raw)
        for value, path in ((_blob(raw), ''), ({'file': 'raw'}, 'raw')):
            write_lines('m.jsonl', [{'v': value}])
            refuse('pack', 'm.jsonl', 'out', '--spec', 'v=' + spec,
                   says=('m.jsonl: line 1: field "v": ',))
            assert not pathlib.Path('out').exists(), spec
            run('pack', 'm.jsonl', 'out', '--spec', 'v=' + spec, '--unchecked')
            assert run('get', 'out', '0', 'v', '--raw').out == raw
            subprocess.run(['rm', '-r', 'out'], check=True)
    write_lines('m.jsonl', [{'v': [{'base64': ''}, _blob(b'\xff')]}])
    refuse('pack', 'm.jsonl', 'out', '--spec', 'v=utf8[]', says='item 1')
    # A video without frames has no bytes; numbers above 64 bits are no fault.
    pack([{'v': {'base64': ''}, 'n': _blob(b'\1' * 9)}], 'v=mp4,n=int', 'good')


def small_arrays_are_exported_into_the_lines():
    rows = [{'v': [1] * n, 'w': [[[0.5] * 8] * 2] * 2, 's': [[i] * 3 for i in range(n)]}
            for n in (0, 1, 64, 65)]
    spec = 'v=array(int8,-1),w=array(float32,2,2,8),s=array(int8,3)[]'
    pack(rows, spec)
    assert run('export', 'out', 'x').out.endswith(b'with 1 file\n')
    lines = [json.loads(line) for line in
             pathlib.Path('x/manifest.jsonl').read_text().splitlines()]
    assert lines[:3] == rows[:3] and lines[3]['w'] == rows[3]['w']
    assert lines[3]['v'] == {'file': 'files/v/000003.bin'}
    run('pack', 'x/manifest.jsonl', 'again', '--no-sync')
    assert files('out') == files('again')
    # With --npy, arrays are for other programs.
    assert run('export', 'out', 'y', '--npy').out.endswith(b'with 138 files\n')
    run('pack', 'y/manifest.jsonl', 'new', '--no-sync')
    assert files('out') == files('new')


def what_a_line_does_not_give_back_exactly_is_a_file():
    def header(text, data):
        text += ' ' * (-(len(text) + 11) % 64) + '\n'
        return b'\x93NUMPY\1\0' + struct.pack('<H', len(text)) + text.encode() + data

    in_lines = [('array(int64,2)', struct.pack('<2q', 2**53 + 1, -2**63)),
                ('array(uint64,1)', struct.pack('<Q', 2**64 - 1)),
                ('array(float64,2)', struct.pack('<2d', -0.0, 5e-324)),
                ('array(float32,2)', struct.pack('<2I', 1 << 31, 0x3DCCCCCD)),
                ('array(int8,-1)', b''), ('array(int8,0)', b''),
                ('int(4,big)', b'\0\0\1\0'),
                ('array', b'\x93\xa3|u1\x91\2\xc4\2\1\2')]
    in_files = [('array(float64,1)', struct.pack('<Q', 0x7FF8 << 48 | 1)),
                ('array(bool,2)', b'\1\2'), ('array(int8,0,3)', b''),
                ('array(int8,-1,3)', b''), ('int(9)', b'\1' * 9),
                ('array', b'\x93\xa3|u1\xdc\0\1\2\xc4\2\1\2')]
    if has_codec('npy'):
        order = "{'descr': '<f4', 'fortran_order': %s, 'shape': (2, 2), }"
        in_lines.append(('npy', header(order % False, bytes(16))))
        in_files += [('npy', header(order % True, bytes(16))),
                     ('npy', header(order % False + ' ' * 64, bytes(16)))]
    for where, cases in (('list', in_lines), ('file', in_files)):
        for i, (type, blob) in enumerate(cases):
            out = f'{where}{i}'
            pack([{'v': _blob(blob)}] * 2, f'v={type}', out, '--unchecked')
            run('export', out, 'x' + out)
            manifest = pathlib.Path('x' + out, 'manifest.jsonl')
            value = json.loads(manifest.read_text().splitlines()[0])['v']
            is_file = isinstance(value, dict) and 'file' in value
            assert is_file == (where == 'file'), (type, blob, value)
            run('pack', manifest, 'again' + out, '--unchecked', '--no-sync')
            assert files(out) == files('again' + out), (type, blob)


def large_arrays_are_not_exported_as_lists():
    _arrays('v=array(int8,-1)', [1] * 1024, [1] * 1025)
    run('export', 'out', 'x', '--lists')
    small, large = pathlib.Path('x/manifest.jsonl').read_text().splitlines()
    assert json.loads(small)['v'] == [1] * 1024
    assert 'file' in json.loads(large)['v']
    assert run('get', 'out', '1', '--lists').json['v']['shape'] == [1025]
    refuse('export', 'out', 'y', '--lists', '--raw', code=2)


WRONG_TYPES = ['int(0)', 'int(x)', 'array(float31,2)', 'utf8(3)', 'i64(8)']
# Their codecs are used, and so refuse the arguments, only for decoded values.
WRONG_ARGUMENTS = ['jpeg(0)', 'jpeg(101)', 'jpeg(a)', 'jpeg()', 'jpeg(90,1)',
                   'png(10)', 'png(-1)[]', 'msgpack(1)', 'npy(1)']


@each(WRONG_TYPES + WRONG_ARGUMENTS)
def a_type_that_cannot_be_meant_is_refused_at_once(spec):
    if not has_codec(spec):
        return
    said = _arrays('v=' + spec, code=2).err
    assert '"v"' in said and spec.removesuffix('[]') in said, said
    pathlib.Path('given.json').write_text(json.dumps({'v': spec}))
    write_lines('m.jsonl', [])
    refuse('pack', 'm.jsonl', 'out', '--spec', 'given.json',
           says=('"v"', spec.removesuffix('[]')))
    assert not pathlib.Path('out').exists()


def what_another_writer_gave_wrong_arguments_is_packed_with_others():
    if not has_codec('jpeg'):
        return
    pathlib.Path('v').write_bytes(b'\xff\xd8\xff\xe0')
    write_lines('m.jsonl', [{'v': {'file': 'v'}}])
    run('pack', 'm.jsonl', 'out', '--spec', 'v=jpeg')
    right = files('out')
    pathlib.Path('out/spec.json').write_text('{"v": "jpeg(101)"}')
    run('export', 'out', 'x')
    refuse('pack', 'x/manifest.jsonl', 'again',
           says=('x/spec.json: field "v"', 'jpeg(101)', '1 to 100'))
    pathlib.Path('x/spec.json').write_text('{"v": "jpeg"}')
    run('pack', 'x/manifest.jsonl', 'again')
    assert files('again') == right


# The bits of values that JSON cannot say: NaN with a sign or other bits, bools that
# are neither 0 nor 1.
NOT_IN_JSON = [('float16', '<H', (0xFE00, 0x7C01)),
               ('float32', '<I', (0xFFC00000, 0x7F800001)),
               ('float64', '<Q', (0xFFF8 << 48, 0x7FF0 << 48 | 1)),
               ('complex64', '<Q', (0x7F800001, 0x7FC00001 << 32)),
               ('bool', '<B', (2, 255))]
IN_JSON = [('float16', '<H', (0x7E00, 0x8000, 0x7C00, 0xFC00, 1, 0x7BFF)),
           ('float32', '<I', (0x7FC00000, 1 << 31, 0x7F800000, 0xFF800000, 1)),
           ('float64', '<Q', (0x7FF8 << 48, 1 << 63, 0x7FF0 << 48, 1)),
           ('complex64', '<Q', (1 << 31, 1 << 63, 0x7F800000)),
           ('bool', '<B', (0, 1))]


@each([()] + [(option,) for option in ('--lists', '--npy', '--raw')])
def every_bit_of_an_array_is_exported_and_packed_again(options):
    for in_lines, cases in ((False, NOT_IN_JSON), (True, IN_JSON)):
        for dtype, code, numbers in cases:
            blobs = [_blob(struct.pack(code, n)) for n in numbers]
            for out in ('out', 'x', 'again'):
                subprocess.run(['rm', '-rf', out], check=True)
            pack([{'a': blob, 's': blobs} for blob in blobs],
                 f'a={dtype},s={dtype}(1)[]')
            run('export', 'out', 'x', *options)
            line = json.loads(
                pathlib.Path('x/manifest.jsonl').read_text().splitlines()[0])
            if options != ('--raw',):
                assert isinstance(line['a'], dict) != in_lines, line
            run('pack', 'x/manifest.jsonl', 'again')
            assert files('again') == files('out'), dtype


def text_that_is_not_utf8_is_exported_and_packed_unchecked():
    write_lines('m.jsonl', [{'t': _blob(b'\xff\0\x80'), 's': [_blob(b'\xed\xa0\x80')]}])
    run('pack', 'm.jsonl', 'out', '--spec', 't=utf8,s=utf8[]', '--unchecked')
    run('export', 'out', 'x')
    refuse('pack', 'x/manifest.jsonl', 'again', says=('line 1', 'UTF-8', '--unchecked'))
    run('pack', 'x/manifest.jsonl', 'again', '--unchecked')
    assert files('again') == files('out')


@each([('float', 'float32'), ('double(2,3)[]', 'float64(2,3)[]'), ('str[]', 'utf8[]'),
       ('String', 'utf8'), ('image', 'jpeg'), ('image(90)', 'jpeg(90)'), ('flaot32', 'float32'),
       ('utf-8', 'utf8'), ('int_', 'int'), ('unit8(3)', 'uint8(3)'), ('video', 'mp4'), ('foo', ''),
       ('float32(2', ''), ('int[3]', '')])
def an_unknown_type_is_named_with_what_it_may_mean(case):
    type, meant = case
    said = pack([], f'x={type}', code=2).err
    assert not meant or f'; did you mean "{meant}"?' in said, said
    assert meant or 'did you mean' not in said, said


@each(['a=b=int', 'a b=int', 'x=int y=utf8', 'x=int\ny=utf8'])
def a_name_with_an_equals_sign_or_spaces_is_refused_in_words(spec):
    said = pack([], spec, code=2).err
    assert f'"{spec}" contains = or spaces'.replace('\n', '\\x0a') in said, said
    name = spec[:spec.rindex('=')].replace('\n', ' ')
    pathlib.Path('s.json').write_text(json.dumps({name: 'int'}))
    run('pack', write_lines('m.jsonl', [{name: 3}]), 'out', '--spec', 's.json')
    assert values('out') == [{name: 3}]


def a_byte_order_mark_before_the_first_line_is_read():
    pack(['\ufeff{"n": 1}\n', '{"n": 2}\n'], 'n=int')
    assert values('out') == [{'n': 1}, {'n': 2}]
    pack(['\ufeff'], 'n=int', 'none')
    assert values('none') == []
    refuse('pack', write_lines('m.jsonl', ['\ufeff\ufeff{"n": 1}\n']), 'no', '--spec', 'n=int',
           says='line 1')


def _gzip_is_read():
    pathlib.Path('t.gz').write_bytes(gzip.compress(b''))
    done = subprocess.run([harness.PROGRAM, 'pack', 't.gz', 't', '--spec', 'n=int'],
                          capture_output=True)
    if b'zlib was not found' in done.stderr:
        print('skipped: the command was built without zlib')
    return b'zlib was not found' not in done.stderr


def a_manifest_that_gzip_compressed_is_read():
    if not _gzip_is_read():
        return
    lines = [json.dumps({'n': i, 't': str(i) * 50}).encode() + b'\n' for i in range(30000)]
    text = b''.join(lines)
    spec = 'n=int(4),t=utf8'
    pathlib.Path('m.jsonl').write_bytes(text)
    run('pack', 'm.jsonl', 'plain', '--spec', spec)
    cut = 1234567 - 7  # in the middle of a line
    for name, packed in [('one', gzip.compress(text)), ('stored', gzip.compress(text, 0)),
                         ('members', gzip.compress(b'\xef\xbb\xbf' + text[:cut]) +
                          gzip.compress(b'') + gzip.compress(text[cut:]))]:
        path = pathlib.Path(name + '.jsonl.gz')
        path.write_bytes(packed)
        run('pack', path, name, '--spec', spec)
        assert files(name) == files('plain'), name
        run('pack', '-', name + '2', '--spec', spec, stdin=packed)
        assert files(name + '2') == files('plain'), name
    for damaged in (packed[:-1], packed[:-5000], packed[:11], packed[:2], packed + b'x',
                    packed[:-8] + bytes(4) + packed[-4:]):
        path.write_bytes(damaged)
        refuse('pack', path, 'bad', '--spec', spec, says=f'{path}: gzip: ')
        subprocess.run(['rm', '-rf', 'bad'], check=True)


def lines_of_gzip_arrive_one_by_one():
    if not _gzip_is_read():
        return
    job = subprocess.Popen([harness.PROGRAM, 'pack', '-', 'out', '--spec', 'n=int(4)'],
                           stdin=subprocess.PIPE)
    packed = gzip.compress(b'{"n": 7}\n')
    for byte in packed:  # also the first bytes, which show what it is
        job.stdin.write(bytes([byte]))
        job.stdin.flush()
    harness.wait_for(lambda: os.path.exists('out/refs.idx') and
                     os.path.getsize('out/refs.idx') == 8, job)
    job.stdin.close()
    assert job.wait() == 0 and values('out') == [{'n': 7}]


@each(['float32(4294967296,4294967296)', 'array(uint8,4294967296,4294967296)[]'])
def an_array_above_2_to_the_64_bytes_is_no_type(type):
    write_lines('m.jsonl', [])
    refuse('pack', 'm.jsonl', 'out', '--spec', f'x={type}', says=('"x"', '2^64 bytes'),
           code=2)
