"""Types of zstd: what is packed, shown, exported, imported, loaded and verified."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
from random import Random

import harness
from harness import has_codec, refuse, run
from server import Server

SPEC = 'a=zstd(array,float32,8),m=zstd(msgpack),n=zstd(int),s=zstd(utf8)[],t=zstd(utf8)'
ROWS = [{'a': [i + j / 2 for j in range(8)], 'm': {'id': i, 'x': ['y', None]}, 'n': i * 1000,
         's': ['abc' * j for j in range(i % 3)], 't': f'the words of {i}, the words of {i}'}
        for i in range(30)]


def _has(name):
    lines = subprocess.run([harness.PROGRAM, '--version'], check=True,
                           stdout=subprocess.PIPE).stdout.decode().splitlines()
    return name in next(line for line in lines if line.startswith('formats:')).split()


def _pack(rows, spec, path='ds', *words, **options):
    pathlib.Path('rows.jsonl').write_text(
        ''.join(json.dumps(row) + '\n' for row in rows))
    return run('pack', 'rows.jsonl', path, '--spec', spec, *words, **options)


def _same(left, right):
    return all((pathlib.Path(left) / name).read_bytes() ==
               (pathlib.Path(right) / name).read_bytes() for name in os.listdir(left)
               if name.endswith('.bag'))


def what_is_compressed_is_shown_and_packed_again_to_the_byte():
    if not _has('zstd') or not _has('msgpack'):
        return
    _pack(ROWS, SPEC)
    spec = json.loads(pathlib.Path('ds/spec.json').read_text())
    assert spec['a'] == 'zstd(array,float32,8)' and spec['s'] == 'zstd(utf8)[]'
    shown = run('get', 'ds', '0:30', '--lists').lines
    assert shown == ROWS, shown[0]
    run('verify', 'ds', '--decode')
    run('export', 'ds', 'out')
    run('pack', 'out/manifest.jsonl', 'again')
    assert _same('ds', 'again')
    run('export', 'ds', 'raw', '--raw')
    run('pack', 'raw/manifest.jsonl', 'third')
    assert _same('ds', 'third')


def every_kind_of_file_is_compressed():
    if not _has('zstd'):
        return
    pathlib.Path('x.bin').write_bytes(bytes(range(256)) * 4)
    pathlib.Path('x.txt').write_text('text, text, text, text, text')
    _pack([{'b': {'from': 'x.bin'}, 't': {'from': 'x.txt'}}], 'b=zstd(bytes),t=zstd(utf8)')
    assert run('get', 'ds', '0', 'b', '--raw').out[:4] == b'\x28\xb5\x2f\xfd'
    assert run('get', 'ds', '0').lines[0]['t'] == 'text, text, text, text, text'
    _pack([{'a': [1.5, 2]}], 'a=zstd(float32,2)', 'floats')
    assert json.loads(pathlib.Path('floats/spec.json').read_text()) == {
        'a': 'zstd(array,float32,2)'}
    pathlib.Path('x.zst').write_bytes(run('get', 'ds', '0', 'b', '--raw').out)
    _pack([{'b': {'file': 'x.zst'}}], 'b=zstd(bytes)', 'again')
    assert pathlib.Path('ds/b.bag').read_bytes() == pathlib.Path('again/b.bag').read_bytes()


def bytes_are_of_any_file():
    files = {'x.bin': bytes(range(256)), 'x.npy': b'no array', 'x.jpg': b'\xff\xd8\xff\xe0 no image',
             'x.txt': b'\xff no text', 'empty': b'', 'x.zst': b'\x28\xb5\x2f\xfd no frame'}
    types = ['bytes', 'zstd(bytes)'] if _has('zstd') else ['bytes']
    for name, content in files.items():
        pathlib.Path(name).write_bytes(content)
    for i, type in enumerate(types):
        _pack([{'b': {'from': name}, 's': [{'from': name}] * 2} for name in files],
              f'b={type},s={type}[]', f'ds{i}')
    for k, content in enumerate(files.values()):
        assert run('get', 'ds0', str(k), 'b', '--raw').out == content
        assert all(run('get', path, str(k), 'b', '--raw').out[:4] == b'\x28\xb5\x2f\xfd'
                   for path in ['ds1'][:len(types) - 1])
    loaded = [run('load', f'ds{i}', '--in-order', '--digest').out for i in range(len(types))]
    assert len(set(loaded)) == 1, loaded


def what_is_not_a_frame_is_refused():
    if not _has('zstd'):
        return
    pathlib.Path('x.bin').write_bytes(b'plain')
    pathlib.Path('rows.jsonl').write_text('{"b": {"file": "x.bin"}}\n')
    refuse('pack', 'rows.jsonl', 'ds', '--spec', 'b=zstd(bytes)',
           says=['line 1', 'not encoded as zstd(bytes)', 'not a zstd frame', '--unchecked'])
    # Blocks that repeat one byte: 33 KB that state, and are, more than 1 GiB.
    blocks = [(1 << 20 | 2).to_bytes(3, 'little') + b'x'] * 8300
    blocks[-1] = (1 << 20 | 3).to_bytes(3, 'little') + b'x'
    pathlib.Path('x.bin').write_bytes(bytes.fromhex('28b52ffdc098') + (8300 << 17).to_bytes(
        8, 'little') + b''.join(blocks))
    refuse('pack', 'rows.jsonl', 'large', '--spec', 'b=zstd(bytes)',
           says=['line 1', '1087897600 bytes, maximum 1073741824'])
    pathlib.Path('rows.jsonl').write_text('{"b": 5}\n')
    for type, words in (('zstd(nonsense)', 'nonsense'), ('zstd', 'expected zstd(TYPE)'),
                        ('zstd(array,float31)', 'float31'), ('zstd(zstd,utf8)', 'inside of zstd'),
                        ('zstd(utf8,1)', 'no arguments'), ('zstd(msgpack,1)', 'no arguments'),
                        ('zstd(png,10)', 'invalid argument'), ('zstd(webm,0)', 'frame rate')):
        if not has_codec(type[5:].split(',')[0]):
            continue
        refuse('pack', 'rows.jsonl', 'no', '--spec', f'b={type}', says=words, code=2)
    assert not os.path.exists('no')
    _pack([{'t': 'words, words, words, words'}], 't=zstd(utf8)', 'ds2')
    bag = bytearray(pathlib.Path('ds2/t.bag').read_bytes())
    bag[1] ^= 1
    pathlib.Path('ds2/t.bag').write_bytes(bag)
    for path in pathlib.Path('ds2').glob('*.crc'):
        path.unlink()
    done = run('verify', 'ds2', '--decode', code=1)
    assert 'not a zstd frame' in done.out.decode() + done.err
    assert run('get', 'ds2', '0', code=1).lines[0]['t']['error']


def sources_are_compressed_when_they_are_imported():
    if not _has('zstd'):
        return
    pathlib.Path('x.csv').write_text('id,text\n1,some words\n2,more words\n')
    run('import', 'x.csv', 'ds', '--type', 'text=zstd(utf8),id=zstd(int)')
    assert run('get', 'ds', '0:2').lines == [{'id': 1, 'text': 'some words'},
                                             {'id': 2, 'text': 'more words'}]


def keys_and_the_loader_read_what_is_compressed():
    if not _has('zstd'):
        return
    _pack([{'t': f'name {i}', 'n': i} for i in range(40)], 't=zstd(utf8),n=zstd(u64)')
    _pack([{'t': f'name {i}', 'n': i} for i in range(40)], 't=utf8,n=u64', 'plain')
    run('index', 'ds', 't')
    assert run('get', 'ds', '--key', 't=name 17').lines[0]['n'] == 17
    words = ['--batch', '8', '--batches', '5', '--digest']
    assert (run('load', 'ds', *words).out == run('load', 'plain', *words).out)


def older_readers_receive_the_values():
    if not _has('zstd'):
        return
    _pack([{'t': 'some words', 'a': [1.5, 2]}], 't=zstd(utf8),a=zstd(array,float32,2)', 'ds',
          '--for', 'bags-0.5')
    assert json.loads(pathlib.Path('ds/spec.json').read_text()) == {
        'a': 'array(float32,2)', 't': 'utf8'}
    assert run('get', 'ds', '0', '--lists').lines == [{'a': [1.5, 2], 't': 'some words'}]


def a_crash_loses_nothing_that_is_compressed():
    if not _has('zstd') or os.name != 'posix':
        return
    rows = [{'t': f'text {i} ' * 20} for i in range(300)]
    lines = ''.join(json.dumps(row) + '\n' for row in rows)
    writer = subprocess.Popen([harness.PROGRAM, 'pack', '-', 'ds', '--spec', 't=zstd(utf8)'],
                              stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    writer.stdin.write(lines[:len(lines) // 2].encode())
    writer.stdin.flush()
    harness.wait_for(lambda: os.path.exists('ds/refs.idx') and
                     os.path.getsize('ds/refs.idx') > 80, writer)
    writer.kill()
    writer.wait()
    writer.stdin.close()
    shutil.copytree('ds', 'recovered')
    run('recover', 'recovered')
    kept = run('get', 'recovered', ':').lines
    assert 0 < len(kept) < 300 and kept == rows[:len(kept)]
    run('verify', 'recovered', '--decode')
    pathlib.Path('rows.jsonl').write_text(lines)
    run('pack', 'rows.jsonl', 'ds', '--spec', 't=zstd(utf8)', '--resume')
    _pack(rows, 't=zstd(utf8)', 'other')
    assert _same('ds', 'other')
    run('copy', 'ds', 'copied')
    assert _same('ds', 'copied')
    run('zip', 'ds', 'ds.zip')
    assert run('get', 'ds.zip', '299').lines == rows[-1:]
    with Server('.') as server:
        environment = {**harness.PATIENT, **server.environment}
        done = subprocess.run([harness.PROGRAM, 'get', server.url + '/ds', '298:'],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines == rows[-2:] or b'not linked' in done.stderr, done.stderr


def info_estimates_what_compression_saves():
    if not _has('zstd'):
        return
    _pack([{'a': [i + j / 2 for j in range(8)], 't': 'the words, ' * 20, 's': ['x' * 50, 'y' * 50],
            'z': 'the words, ' * 20} for i in range(30)],
          'a=array(float32,8),s=utf8[],t=utf8,z=zstd(utf8)')
    found = {name: run('info', 'ds', '--ratio', name, '--json').json for name in 'astz'}
    assert found['a']['type'] == 'zstd(array,float32,8)' and found['a']['bytes'] == 30 * 32
    assert found['s']['blobs'] == 60 and found['s']['bytes'] == 60 * 50
    assert found['t']['type'] == found['z']['type'] == 'zstd(utf8)'
    # What it estimates is what is stored.
    stored = run('info', 'ds', '--json').json['fields']
    assert found['t'] == {**found['z'], 'field': 't'}
    assert found['z']['zstd'] == stored['z']['bytes']
    assert found['z']['bytes'] == stored['t']['bytes']
    assert b'as zstd(utf8)[] ' in run('info', 'ds', '--ratio', 's').out
    assert b'too few for a dictionary' in run('info', 'ds', '--ratio', 's').out
    assert all(found[name]['dictionary'] == 0 and found[name]['with_dictionary'] ==
               found[name]['zstd'] for name in found), found
    refuse('info', 'ds', '--ratio', 'nonsense', says='no field')


def info_estimates_what_a_dictionary_saves():
    if not _has('zstd'):
        _pack([{'t': 'word'}], 't=utf8')
        refuse('info', 'ds', '--ratio', 't', says='formats/zstd.c')
        return
    random = Random(1)
    rows = [{'a': [(i + j) % 5 / 8 + j for j in range(16)], 'r': random.getrandbits(64),
             's': [f'item {random.randrange(99)} of {i}, which is an item of these'] * (i % 4),
             't': json.dumps({'user': f'name {random.randrange(500)}', 'seen': True,
                              'score': random.randrange(1000) / 1000})} for i in range(9000)]
    _pack(rows, 'a=array(float32,16),r=u64,s=utf8[],t=utf8')
    _pack(rows, 'a=zstd(array,float32,16),r=zstd(u64),s=zstd(utf8)[],t=zstd(utf8)', 'stored',
          '--flush-seconds', 86400)
    for name in 'arst':
        found = run('info', 'ds', '--ratio', name, '--json').json
        again = run('info', 'stored', '--ratio', name, '--json').json
        assert again == found, (found, again)
        # What a writer stores. Its dictionary is made of the values before the first flush,
        # and may have another size.
        dictionary = pathlib.Path(f'stored/{name}.dict')
        assert (found['dictionary'] > 0) == dictionary.exists()
        bag = pathlib.Path(f'stored/{name}.bag').read_bytes()
        table = int.from_bytes(bag[-8:], 'little')
        ends = struct.unpack(f'<{(len(bag) - table) // 8}Q', bag[table:])
        stored = ends[-1] / (len(ends) - 1)
        assert abs(found['with_dictionary'] / found['blobs'] / stored - 1) < 0.05, (found, stored)
        assert 500 < found['blobs'] <= 1000 and dictionary.exists() == (name != 'r'), found
    assert 2 * found['with_dictionary'] < found['zstd'], found
    assert b' per shard)' in run('info', 'ds', '--ratio', 't').out
    assert b'a dictionary would not help' in run('info', 'ds', '--ratio', 'r').out
