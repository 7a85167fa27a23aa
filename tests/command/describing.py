"""info.json, the metadata of a dataset, is carried by the commands that make datasets."""
import json
import os
import pathlib
import signal
import subprocess
import zipfile

import harness
from harness import HANG, each, pack, refuse, run, write_lines
from server import Server

ABOUT = b'{"classes": ["a", "b"], "rate": 2.50, "license": "mit"}\n'
ROWS = [{'id': f'x{i}', 'n': i} for i in range(20)]


def _pack(name, *options, about=ABOUT):
    pack(ROWS, 'id=utf8,n=int(2)', name, *options)
    first = pathlib.Path(name, '000000' if options else '')
    (first / 'info.json').write_bytes(about)


def _about(path):
    """The only info.json of a dataset, which is in its first shard."""
    (found,) = pathlib.Path(path).glob('**/info.json')
    shards = [p for p in pathlib.Path(path).iterdir() if p.is_dir()]
    assert found.parent == (min(shards) if shards else pathlib.Path(path))
    run('verify', path)
    return found.read_bytes()


@each([(), ('--shard-length', 6)])
def every_command_that_makes_a_dataset_carries_it(options):
    _pack('src', *options)
    ways = [['copy'], ['copy', '--compact'], ['derive'], ['derive', '--where', 'n > 12'],
            ['derive', '--where', 'n > 99'], ['derive', '--copy', '--shard-length', 1],
            ['derive', '--copy', '--unsharded', '--range', '::2'],
            ['derive', '--copy', '--where', 'n > 99'],
            ['derive', '--drop', 'n', '--rename', 'id=info']]
    for i, (command, *words) in enumerate(ways):
        run(command, 'src', f'out{i}', *words)
        assert _about(f'out{i}') == ABOUT, words
    run('derive', 'src', 'parts', '--split', 'a=0.5,b=0.3')
    assert _about('parts/a') == _about('parts/b') == ABOUT
    for i, words in enumerate([[], ['--compact']]):
        run('zip', 'src', f'{i}.zip', *words)
        with zipfile.ZipFile(f'{i}.zip') as file:
            assert file.read('000000/info.json' if options else 'info.json') == ABOUT
        run('derive', f'{i}.zip', f'of{i}', '--copy')
        run('copy', f'{i}.zip', f'unzipped{i}')
        assert _about(f'of{i}') == _about(f'unzipped{i}') == ABOUT
    # It is a copy, not a link: changing one does not change the other.
    assert not os.path.samefile(next(pathlib.Path('src').glob('**/info.json')),
                                next(pathlib.Path('out2').glob('**/info.json')))


@each([[], ['--copy', '--shard-length', 3]])
def of_several_workers_the_first_carries_it(words):
    _pack('src', '--shard-length', 5)
    for worker in [2, 0, 1]:
        run('derive', 'src', 'out', *words, '--shard-start', worker, '--shard-stop', 3)
    assert _about('out') == ABOUT


def finalize_and_appending_keep_it():
    _pack('src', '--shard-length', 6)
    for one in pathlib.Path('src/000001').iterdir():
        one.unlink()
    os.rmdir('src/000001')
    run('finalize', 'src')
    assert _about('src') == ABOUT
    write_lines('more', ROWS[:3])
    run('pack', 'more', 'src', '--spec', 'id=utf8,n=int(2)', '--append')
    assert _about('src') == ABOUT
    assert run('info', 'src', '--json').json['length'] == 17


@each([([], ['--flush-seconds', '1'], ['recover', 'out']),
       (['--shard-length', '3'], [], ['pack', '-', 'out', '--spec', 'id=utf8,n=int(2)', '--resume',
                                      '--shard-length', '3'])])
def packing_that_was_killed_keeps_it(case):
    shards, flush, again = case
    first = pathlib.Path('out', '000000' if shards else '')
    lines = ''.join(f'{json.dumps(row)}\n' for row in ROWS).encode()
    job = subprocess.Popen(
        [harness.PROGRAM, 'pack', '-', 'out', '--spec', 'id=utf8,n=int(2)', *shards, *flush],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    job.stdin.write(lines[:200])
    job.stdin.flush()
    harness.wait_for(lambda: (first / 'refs.bag').exists() and
                     (first / 'refs.bag').stat().st_size > 0, job)
    (first / 'info.json').write_bytes(ABOUT)
    job.send_signal(signal.SIGKILL)
    job.wait(HANG)
    run(*again, stdin=lines)
    assert _about('out') == ABOUT


def of_several_sources_the_first_gives_it():
    _pack('a')
    _pack('b', about=b'{"b": 1}')
    _pack('c', about=ABOUT)
    pack(ROWS, 'id=utf8,n=int(2)', 'none')
    says = '{}: its info.json differs from the info.json of {}, and is not carried\n'
    run('derive', 'a', 'f', '--fields', 'id')
    for i, (sources, about, warning) in enumerate([
            ('ab', ABOUT, says.format('b', 'a')), ('ba', b'{"b": 1}', says.format('a', 'b')),
            ('ac', ABOUT, ''), ('acb', ABOUT, says.format('b', 'a'))]):
        done = run('derive', *sources, f'out{i}', '--copy')
        assert done.err == (f'bags: {warning}' if warning else '')
        assert _about(f'out{i}') == about
    done = run('derive', 'none', 'a', 'out', '--copy')
    assert 'a: its info.json differs' in done.err
    assert not os.path.exists('out/info.json')
    assert not run('derive', 'a', 'none', 'also', '--copy').err
    # A joined dataset is a source, too; parts of a split say it once.
    pack([{'m': i} for i in range(20)], 'm=int(2)', 'm')
    pathlib.Path('m/info.json').write_bytes(b'{}')
    done = run('derive', 'a', 'parts', '--add', 'm', '--split', 'x=0.5,y=0.5')
    assert done.err.count('m: its info.json differs') == done.err.count('\n') == 1
    assert _about('parts/x') == _about('parts/y') == ABOUT


def a_copy_continues_and_never_replaces_it():
    _pack('src', '--shard-length', 6)
    run('copy', 'src', 'out')
    os.remove('out/000000/info.json')
    assert '1 file copied' in run('copy', 'src', 'out').out.decode()
    assert _about('out') == ABOUT
    pathlib.Path('out/000000/info.json').write_bytes(b'{}')
    refuse('copy', 'src', 'out', says='000000/info.json: already exists with different content')
    assert _about('out') == b'{}'


def servers_send_it():
    _pack('src', '--shard-length', 6)
    pack(ROWS, 'id=utf8,n=int(2)', 'none', '--shard-length', 6)
    with Server('.', index=True) as server:
        run('copy', f'{server.url}/src', 'out')
        run('derive', f'{server.url}/src', 'derived', '--copy')
        assert run('info', f'{server.url}/src', '--json').json['metadata'] == json.loads(ABOUT)
        run('copy', f'{server.url}/none', 'without')
    assert _about('out') == _about('derived') == ABOUT
    assert not list(pathlib.Path('without').glob('**/info.json'))


def info_shows_it():
    _pack('src', '--shard-length', 6)
    assert 'metadata   classes, rate, license\n' in run('info', 'src').out.decode()
    done = run('info', 'src', '--json')
    assert done.json['metadata'] == json.loads(ABOUT)
    assert b'2.50' in done.out  # as it was written
    for text, says in [('[1]', 'not a JSON object'), ('{', 'column 2'), ('', 'column 1'),
                       ('{"a": 1, "a": 2}', 'duplicate')]:
        pathlib.Path('src/000000/info.json').write_text(text)
        done = run('info', 'src', '--json')
        assert 'metadata' not in done.json
        assert 'src/000000/info.json: ' in done.err and says in done.err, done.err
        refuse('card', 'src', says=['src/000000/info.json: ', says])
    os.remove('src/000000/info.json')
    assert 'metadata' not in run('info', 'src', '--json').json


def only_a_json_object_is_exported_and_packed():
    valid = ['{}', ' {"a" : [ ] , "b":{} }\r\n\t', '{"a": [1, -0, 0.5, 1e5, 1E-5, 2e+3, -1.25e0]}',
             '{"a": [true, false, null, "", "\\u00e9\\n\\"\\\\\\/"]}', '{"": {"\u00e9": [[], [{}]]}}',
             '{"a": ' + '[' * 499 + ']' * 499 + '}']
    invalid = ['', ' ', '[]', '1', '"{}"', '{', '}', '{]', '{}}', '{} {}', '{"a"}', '{"a":}', '{"a": 1,}',
               '{"a" 1}', '{a: 1}', "{'a': 1}", '{"a": 1 "b": 2}', '{,}', '{"a": [1,]}', '{"a": [,1]}',
               '{"a": [1 2]}', '{"a": [1}', '{"a": 01}', '{"a": 1.}', '{"a": .5}', '{"a": -}', '{"a": 1e}',
               '{"a": +1}', '{"a": 0x1}', '{"a": NaN}', '{"a": tru}', '{"a": truex}', '{"a": "\n"}', '{"a": "\\x"}',
               '{"a": "\\u12g4"}', '{"a": "\\u12"}', '{"a": "', '{"a', '{"a": "\\', '\ufeff{}', '{"a": 1}\0',
               '{"a": ' + '[' * 500 + ']' * 500 + '}']
    for text in valid:
        json.loads(text)
    pack(ROWS[:1], 'id=utf8,n=int(2)', 'src')
    run('export', 'src', 'lines')
    for number, text in enumerate(valid + invalid):
        pathlib.Path('src/info.json').write_bytes(text.encode())
        pathlib.Path('lines/info.json').write_bytes(text.encode())
        if text in valid:
            run('export', 'src', f'out{number}')
            run('pack', 'lines/manifest.jsonl', f'again{number}')
            for path in f'out{number}', f'again{number}':
                assert pathlib.Path(path, 'info.json').read_bytes() == text.encode()
        else:
            refuse('export', 'src', 'bad', says='src: info.json: not a JSON object')
            refuse('pack', 'lines/manifest.jsonl', 'bad', says='lines/info.json: not a JSON object')
            assert not os.path.exists('bad'), text
