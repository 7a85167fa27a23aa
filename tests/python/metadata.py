"""info.json, rows that derive adds, and lists of datapoints from a server."""
import contextlib
import json
import os
import pathlib
import sys
import threading
import time

import numpy as np

import bags
from run import HERE, Skip, raises

INFO = {'classes': ['cat', 'é'], 'fps': 30.5, 'nested': {'a': [None, True]}}


@contextlib.contextmanager
def _server(**options):
    if not bags.build['http']:
        raise Skip('no http')
    sys.path.insert(0, str(HERE.parent / 'command'))
    import server
    sys.path.pop(0)
    with server.Server('.', index=True, **options) as one:
        yield one


def metadata_is_read_written_and_carried():
    for path, options in (('x', {}), ('s', {'shard_length': 2})):
        bags.write(path, [{'n': n} for n in range(6)], info=INFO, **options)
        with bags.DatasetReader(path) as reader:
            assert reader.info == INFO and len(reader) == 6
            assert os.path.exists(f'{path}/000000/info.json') == bool(options)
        bags.derive(path, f'{path} derived', where='n > 1')
        bags.copy(path, f'{path} copied')
        bags.zip(path, f'{path}.zip')
        parts = bags.split(path, f'{path} split', {'a': 0.5, 'b': 0.5})
        for one in (f'{path} derived', f'{path} copied', f'{path}.zip', *(f'{path} split/{a}' for a in parts)):
            with bags.DatasetReader(one) as reader:
                assert reader.info == INFO, one
        assert not bags.verify(path)
    bags.set_info('x', {})
    assert bags.DatasetReader('x').info == {} and json.loads(pathlib.Path('x/info.json').read_text()) == {}
    bags.set_info('x', {'b': 1})
    assert bags.DatasetReader('x').info == {'b': 1}
    os.remove('x/info.json')
    assert bags.DatasetReader('x').info == {}
    with _server() as server:
        assert bags.DatasetReader(f'{server.url}/s').info == INFO
        assert bags.DatasetReader(f'{server.url}/s.zip').info == INFO
        assert bags.DatasetReader(f'{server.url}/x').info == {}


def metadata_that_is_none_is_an_error():
    bags.write('x', [{'n': 1}])
    for kind, info, says in ((TypeError, [1], 'x: info: [1] (expected a dict)'),
                             (TypeError, {'a': {1}}, 'x: info: '), (ValueError, {'a': float('nan')}, 'x: info: '),
                             (TypeError, None, 'x: info: None')):
        raises(kind, bags.set_info, 'x', info, says=says)
        if info is not None:
            raises(kind, bags.write, 'y', [{'n': 1}], info=info, says='y: info: ')
    assert not os.path.exists('y') and not os.path.exists('x/info.json')
    raises(FileNotFoundError, bags.set_info, 'none', {})
    raises(ValueError, bags.set_info, 'http://host/x', {}, says='a URL')
    for text in ('[1]', '{"a": 1, "a": 2}', '{', '\udcff'):
        pathlib.Path('x/info.json').write_bytes(text.encode('utf-8', 'surrogateescape'))
        raises(bags.DataError, lambda: bags.DatasetReader('x').info, says='x: info.json: ')


def rows_are_added_to_a_dataset():
    bags.write('x', [{'n': n} for n in range(7)], {'n': 'int'}, shard_length=3)
    lines = [{'s': n / 2, 'w': ['a'] * n, 'm': {'q': n}, 'b': {'base64': 'AAE='}, 'f': {'file': 'one'}}
             for n in range(7)]
    pathlib.Path('one').write_bytes(b'content')
    pathlib.Path('in.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    spec = {'s': 'float32', 'w': 'utf8[]', 'm': 'msgpack', 'b': 'bytes', 'f': 'zstd(bytes)'}
    if not bags.build['zstd'] or not bags.build['msgpack']:
        raise Skip('zstd or msgpack was not built')
    spec['f'] = 'bytes'
    bags.derive('x', 'y', add='in.jsonl', spec=spec, where='n <> 3')
    with bags.DatasetReader('y') as reader:
        assert reader.spec == {'n': 'int', **spec, 's': 'array(float32)'}
        rows = [*reader]
    assert [row['n'] for row in rows] == [0, 1, 2, 4, 5, 6]
    for row in rows:
        n = row['n']
        assert row['s'] == n / 2 and row['w'] == ['a'] * n and row['m'] == {'q': n} and row['b'] == b'\0\1'
        assert row['f'] == b'content'
    command = bags.program.command()
    if command and str(bags.program.HERE) in command:
        import subprocess
        words = ','.join(f'{name}={kind}' for name, kind in spec.items())
        subprocess.run([command, 'derive', 'x', 'z', '--add', 'in.jsonl', '--spec', words, '--where', 'n <> 3'],
                       check=True)
        differing = bags.diff('y', 'z', exact=True)
        assert not any(differing[name] for name in ('added', 'removed', 'moved', 'changed')), differing
    for i, add in enumerate(([{'p': n * .5} for n in range(7)], {'p': np.arange(7) / 2},
                             ({'p': n / 2} for n in range(7)))):
        bags.derive('x', f'd{i}', add=add, rename={'n': 'm'})
        assert [*bags.DatasetReader(f'd{i}')] == [{'m': n, 'p': n / 2} for n in range(7)]
    bags.derive(['x', 'x'], 'twice', add={'p': np.arange(14)}, copy=True)
    assert [row['p'] for row in bags.DatasetReader('twice')] == [*range(14)]
    parts = bags.split('x', 'parts', {'a': 0.5, 'b': 0.5}, add={'p': np.arange(7)})
    for name in parts:
        assert all(row['n'] == row['p'] for row in bags.DatasetReader(f'parts/{name}'))


def rows_that_do_not_fit_are_an_error_and_leave_nothing():
    bags.write('x', [{'n': n} for n in range(7)], {'n': 'int'}, shard_length=3)
    pathlib.Path('bad.jsonl').write_text('{"s": 1}\n' * 4 + '{"s": 1.5}\n' + '{"s": 1}\n' * 2)
    pathlib.Path('dup.jsonl').write_text('{"s": 1, "s": 2}\n' * 7)
    pathlib.Path('bytes.jsonl').write_bytes(b'{"s": 1}\n{"s": "\xff"}\n')
    pathlib.Path('name.jsonl').write_text('{"s": {"file": "\\ud800"}}\n')
    pathlib.Path('gap.jsonl').write_text('{"s": 1}\n\n' + '{"s": 1}\n' * 6)
    pathlib.Path('bool.jsonl').write_text('{"s": true}\n' * 7)
    before = sorted(os.listdir())
    for kind, says, options in (
            (ValueError, 'has 6 rows, but x has 7 datapoints', {'add': [{'p': 1}] * 6}),
            (ValueError, 'has 8 rows', {'add': [{'p': 1}] * 8}),
            (ValueError, 'needs spec', {'add': 'bad.jsonl'}),
            (TypeError, 'bad.jsonl: field "s": row 4: ', {'add': 'bad.jsonl', 'spec': {'s': 'int'}}),
            (ValueError, "bytes.jsonl: line 2: 'utf-8' codec", {'add': 'bytes.jsonl', 'spec': {'s': 'int'}}),
            (ValueError, 'name.jsonl: line 1: field "s": ', {'add': 'name.jsonl', 'spec': {'s': 'bytes'}}),
            (ValueError, 'dup.jsonl: line 1: an object has a duplicate', {'add': 'dup.jsonl', 'spec': {'s': 'int'}}),
            (ValueError, 'gap.jsonl: line 2: empty', {'add': 'gap.jsonl', 'spec': {'s': 'int'}}),
            (TypeError, 'line 1: field "s": True is not a whole', {'add': 'bool.jsonl', 'spec': {'s': 'int'}}),
            (KeyError, 'no field "t" (row 0)', {'add': 'bad.jsonl', 'spec': {'t': 'int'}}),
            (TypeError, 'field "p": row 5: ', {'add': [{'p': 1}] * 5 + [{'p': 'x'}] * 2}),
            (KeyError, 'x: duplicate field "n": add has it, too', {'add': [{'n': 1}] * 7}),
            (ValueError, 'spec needs add', {'spec': {'a': 'int'}}),
            (ValueError, 'on needs a dataset', {'add': [{'p': 1}] * 7, 'on': 'n'}),
            (TypeError, "spec: 'int'", {'add': 'bad.jsonl', 'spec': 'int'}),
            (FileNotFoundError, 'none', {'add': 'none.jsonl', 'spec': {'s': 'int'}})):
        raises(kind, bags.derive, 'x', 'out', says=says, **options)
        assert sorted(os.listdir()) == before, options


def a_list_of_datapoints_is_requested_at_once():
    bags.write('x', [{'n': n, 'w': ['a'] * (n % 3), 'b': bytes([n % 251]) * 3000} for n in range(3000)],
               {'n': 'int', 'w': 'utf8[]', 'b': 'bytes'})
    with _server() as server:
        lock, running, waves = threading.Lock(), [0], [0]
        handler = server.RequestHandlerClass

        class Slow(handler):
            def do_GET(self):
                with lock:
                    waves[0] += running[0] == 0
                    running[0] += 1
                time.sleep(0.01)
                try:
                    super().do_GET()
                finally:
                    with lock:
                        running[0] -= 1
        server.RequestHandlerClass = Slow
        with bags.DatasetReader(f'{server.url}/x') as reader:
            picks = [(i * 1237) % 3000 for i in range(60)]
            waves[0] = 0
            found = reader[picks]
            assert found['n'] == picks and [b[0] for b in found['b']] == [n % 251 for n in picks]
            assert found['w'] == [['a'] * (n % 3) for n in picks]
            together = waves[0]
            waves[0] = 0
            assert reader[::300, ('b',)]['b'] == [bytes([n % 251]) * 3000 for n in range(0, 3000, 300)]
            assert waves[0] <= 8, waves
            waves[0] = 0
            for i in picks[:20]:
                reader[(i + 7) % 3000]
            alone = waves[0]
            raises(IndexError, lambda: reader[[1, 3000]])
        assert together <= 12 < alone, (together, alone)
