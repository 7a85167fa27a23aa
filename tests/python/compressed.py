"""Types of zstd: values of every type inside, written and read."""
import os
import pathlib
import sys
import threading
import time

import numpy as np

import bags
from columns import _arrow_values
from run import Skip, forks_while_threads_allocate, raises

SPEC = {'a': 'zstd(array,float32,4)', 'b': 'zstd(bytes)', 'm': 'zstd(msgpack)', 'n': 'zstd(int)',
        's': 'zstd(utf8)[]', 't': 'zstd(utf8)', 'x': 'zstd(npy)'}
ROWS = [{'a': np.arange(4, dtype='f4') + i, 'b': b'bytes' * i, 'm': {'k': [i, 'x']},
         'n': i * 1000, 's': ['a' * j for j in range(i % 3)], 't': f'text {i}',
         'x': np.arange(6).reshape(2, 3) + i} for i in range(20)]


def _write(path):
    try:
        bags.encoders['zstd']('x', 'utf8')
    except Exception as error:
        if 'no codec' in str(error):
            raise Skip('the package was built without libzstd') from error
        raise
    with bags.DatasetWriter(path, SPEC) as writer:
        for row in ROWS:
            writer.append(row)


def _same(got, row):
    for key, value in row.items():
        if isinstance(value, np.ndarray):
            assert got[key].dtype == value.dtype and np.array_equal(got[key], value), key
        else:
            assert got[key] == value, (key, got[key])


def values_of_every_type_inside_survive():
    _write('x')
    for options in ({}, {'no_mmap': True}):
        reader = bags.DatasetReader('x', **options)
        rows = [reader[i] for i in range(len(reader))]
        for got, row in zip(rows, ROWS):  # each is valid after the next was read
            _same(got, row)


def blobs_are_frames():
    _write('x')
    reader = bags.DatasetReader('x', None)
    assert reader[3]['t'][:4] == b'\x28\xb5\x2f\xfd'
    assert bags.decoders['zstd'](reader[3]['t'], 'utf8') == 'text 3'


def compressed_fields_can_have_an_index():
    _write('x')
    for name in 'nt':
        bags.build_index('x', name)
    reader = bags.DatasetReader('x')
    assert reader.index('n').range(3000, 6000) == [3, 4, 5] and reader.index('t').find('text 7') == [7]
    assert reader.index('t').prefix('text 1') == [1, *range(10, 20)]


def damage_is_an_error():
    raises(ValueError, bags.decoders['zstd'], b'text 3', 'utf8', says='zstd frame')
    raises(TypeError, bags.encoders['zstd'], 5, 'utf8')


def _dictionaries(path, own=False):
    """ROWS, many times, in two shards of another writer: their rows."""
    sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / 'lib'))
    try:
        import zstdref
    except ImportError as error:
        raise Skip('python3-zstandard not found') from error
    _write(path + '.plain')
    blobs = {'a': lambda value: zstdref.transpose(value.tobytes(), 4), 'b': bytes,
             'm': bags.encoders['msgpack'], 'n': bags.encoders['int'], 't': str.encode,
             's': lambda value: [item.encode() for item in value],
             'x': bags.encoders['npy']}
    rows = [{key: blobs[key](value) for key, value in row.items()} for row in ROWS * 8]
    kept = {}
    for i in range(2):
        some = rows[80 * i:80 * i + 80]
        for name in 'abmtx' if own or not i else ():  # of n and s there is too little
            kept[name] = zstdref.train([row[name] + bytes([i]) for row in some] * 9, 2000)
        zstdref.write_shard(f'{path}/{i:06}', SPEC, some, kept, early=4)
    return ROWS * 8


def values_with_dictionaries_are_read():
    for own in (False, True):
        path = f'own {own}'
        rows = _dictionaries(path, own)
        for options in ({}, {'no_mmap': True}):
            reader = bags.DatasetReader(path, **options)
            assert len(reader) == len(rows)
            for got, row in zip([reader[i] for i in range(len(reader))], rows):
                _same(got, row)
            some = reader[60:100]  # of both shards
            for i in range(40):
                _same({key: values[i] for key, values in some.items()}, rows[60 + i])
            assert reader[99, {'s': range(1, 2)}] == {'s': rows[99]['s'][1:]}
            assert [reader[i, ('t',)]['t'] for i in (150, 3, 90)] == [rows[i]['t'] for i in (150, 3, 90)]
        blob = bags.DatasetReader(path, None)[50]['m']
        raises(ValueError, bags.decoders['zstd'], blob, 'msgpack', says='dictionary')


def columns_and_batches_have_the_values():
    rows = _dictionaries('d', True)
    reader = bags.DatasetReader('d')
    assert np.array_equal(np.asarray(reader.column('n')), [row['n'] for row in rows])
    assert np.array_equal(np.asarray(reader.column('a')), [row['a'] for row in rows])
    at = 0
    for batch in bags.Loader('d', batch=16, shuffle=False, fields=['a', 'b', 'm', 'n', 't']):
        for k, row in enumerate(rows[at:at + 16]):
            assert np.array_equal(batch['a'][k], row['a']) and batch['n'][k] == row['n']
            assert batch['t'][k] == row['t'] and batch['b'][k] == row['b']
            assert bags.decoders['msgpack'](batch['m'][k]) == row['m']
        at += 16
    assert at == len(rows)
    inside = {name: {'decode': lambda blob: blob} for name in 'tbm'}
    batch = next(bags.Loader('d', batch=16, shuffle=False, fields=inside))
    for k, row in enumerate(rows[:16]):
        assert batch['t'][k] == row['t'].encode() and batch['b'][k] == row['b']
        assert bags.decoders['msgpack'](batch['m'][k]) == row['m']
    raises(TypeError, next, bags.Loader('d', fields={'a': {'decode': bytes}}), says='the blob inside zstd')
    raises(TypeError, reader.column, 'x', says='type zstd(npy)')
    raises(TypeError, reader.__arrow_c_stream__, says='field "x"')
    for name, expected in (('m', bags.encoders['msgpack']), ('t', str), ('s', list), ('b', bytes)):
        assert _arrow_values(reader.column(name)) == [expected(row[name]) for row in rows], name


def a_writer_makes_a_dictionary():
    _write('x')
    rows = [{**ROWS[i % 20], 't': f'the words of datapoint number {i * 7919 % 5000}: {i % 9}',
             'm': {'id': i, 'name': f'some words of {i * 7919 % 5000}', 'x': [i, i]}}
            for i in range(30000)]
    with bags.DatasetWriter('many', SPEC) as writer:
        for row in rows:
            writer.append(row)
    assert os.path.exists('many/t.dict') and os.path.exists('many/m.dict')
    reader = bags.DatasetReader('many')
    for i in (*range(0, 30000, 997), 29999):
        _same(reader[i], rows[i])


def values_before_a_flush_have_a_dictionary_too():
    """Of 200 bytes, 1.7 times smaller with the dictionaries of short shards."""
    _write('x')
    rows = [{'t': f'{{"id": {i}, "name": "user {i * 7919 % 500}", "seen": true, "tags": ["some", '
                  f'"words of {i % 40}"], "place": {{"country": "DE", "city": "Berlin"}}, '
                  f'"price": {i * 104729 % 10000 / 100}, "comment": "the {i % 90}th of all comments", "events": []}}'}
            for i in range(2500)]
    with bags.DatasetWriter('docs', {'t': 'zstd(utf8)'}, shard_length=1000, flush_seconds=1e6) as writer:
        for i, row in enumerate(rows):
            writer.append(row)
            if i == 300:
                writer.flush()
                with bags.DatasetReader('docs', unfinished='read') as live:
                    assert len(live) == 301 and live[0] == rows[0] and live[300] == rows[300]
    stored = sum(path.stat().st_size for path in pathlib.Path('docs').rglob('t.*')
                 if path.suffix in ('.bag', '.dict'))
    size = sum(len(row['t']) for row in rows)
    assert 190 < size / 2500 < 220 and size > 1.7 * (stored - 8 * 2503), (size, stored)
    reader = bags.DatasetReader('docs')
    assert all(reader[i] == row for i, row in enumerate(rows))
    for i in (0, 300, 2499):
        frame = bags.DatasetReader('docs', None)[i]['t']
        raises(ValueError, bags.decoders['zstd'], frame, 'utf8', says='dictionary')


def a_child_reads_while_threads_of_its_parent_do():
    forks_while_threads_allocate()
    _write('x')
    reader = bags.DatasetReader('x')
    reader[0], reader[19]  # what opens its files holds a lock, also in the child
    stop = threading.Event()

    def read():
        while not stop.is_set():
            reader[0], reader[19]

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            child = os.fork()
            if not child:
                os._exit(reader[19]['t'] != 'text 19')
            end = time.monotonic() + 600
            while (status := os.waitpid(child, os.WNOHANG)) == (0, 0):
                if time.monotonic() > end:
                    os.kill(child, 9)
                time.sleep(0.001)
            assert status[1] == 0, status
    finally:
        stop.set()
        for thread in threads:
            thread.join()
