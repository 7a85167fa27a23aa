"""bags load --tokens and --pack: equal to a model in Python, over random datasets."""
import array
import collections
import json
import math
import os
import pathlib
import random
import shutil
import struct

import harness
from harness import each, pack, refuse, run

ROUNDS = 200 if 'BAGS_SOAK' in os.environ else 6 if os.environ.get('BAGS_QUICK') else 50
FORMATS = {'uint16': 'H', 'uint32': 'I', 'int32': 'i', 'uint8': 'B'}


class _Model:
    """A dataset of documents, by shard: lists of (datapoint, tokens, mask)."""

    def __init__(self, chance, path, dtype='uint16', as_bytes=False, mask=False,
                 derive=False):
        self.path, self.dtype, self.mask = path, dtype, mask
        count = chance.choice([1, 2, 5, 30, 80])
        longest = chance.choice([1, 3, 10, 60])
        most = {'uint16': 65535, 'uint32': 2**32 - 1, 'int32': 2**31 - 1,
                'uint8': 255}[dtype]
        self.documents = [
            [chance.randint(0, most) for _ in range(
                chance.choice([0, 1, chance.randint(0, longest),
                               chance.randint(0, longest) * 4]))]
            for _ in range(count)]
        rows = []
        for tokens in self.documents:
            raw = struct.pack(f'<{len(tokens)}{FORMATS[dtype]}', *tokens)
            row = {'t': tokens}
            if as_bytes:
                pathlib.Path('blobs').mkdir(exist_ok=True)
                name = f'blobs/{len(rows)}'
                pathlib.Path(name).write_bytes(raw)
                row = {'t': {'file': name}}
            if mask:
                row['m'] = [len(rows) * 7 + i & 1 for i in range(len(tokens))]
            rows.append(row)
        self.masks = [row.get('m') for row in rows]
        spec = 't=bytes' if as_bytes else f't=array({dtype},-1)'
        each = chance.choice([0, 1, 7, 100])
        pack(rows, spec + (',m=array(uint8,-1)' if mask else ''), path,
             *(['--shard-length', each] if each else []), '--no-checksum')
        shutil.rmtree('blobs', ignore_errors=True)
        each = each or count
        self.shards = [list(range(i, min(i + each, count)))
                       for i in range(0, count, each)]
        if derive:
            self.derive(chance)

    def derive(self, chance):
        """Refer to other documents of the same shard, in another order."""
        parts = sorted(p for p in pathlib.Path(self.path).iterdir() if p.is_dir())
        documents, masks, shards = [], [], []
        for part, shard in zip(parts or [pathlib.Path(self.path)], self.shards,
                               strict=True):
            old = chance.choice([
                [chance.randrange(len(shard)) for _ in range(chance.randint(1, 9))],
                chance.sample(range(len(shard)), len(shard)),
                [i for i in range(len(shard)) if i != len(shard) // 2] or [0]])
            fields = 2 if self.mask else 1
            blobs = [bytes([0x90 + fields] + [i] * fields) for i in old]
            ends = [0]
            for blob in blobs:
                ends.append(ends[-1] + len(blob))
            (part / 'refs.bag').write_bytes(
                b''.join(blobs) + struct.pack(f'<{len(ends)}Q', *ends))
            shards.append(list(range(len(documents), len(documents) + len(old))))
            documents += [self.documents[shard[i]] for i in old]
            masks += [self.masks[shard[i]] for i in old]
        self.documents, self.masks, self.shards = documents, masks, shards

    def streams(self, bos, eos):
        """Of each shard (token, mask, document, position)."""
        for shard in self.shards:
            stream = []
            for i in shard:
                tokens, mask = self.documents[i], self.masks[i]
                marked = [(t, mask[k] if mask else 0) for k, t in enumerate(tokens)]
                marked = [(x, 0) for x in bos] + marked + [(x, 0) for x in eos]
                stream += [(t, m, i, k) for k, (t, m) in enumerate(marked)]
            yield stream

    def windows(self, size, stride, bos, eos):
        found, unused = [], 0
        for stream in self.streams(bos, eos):
            used = set()
            for start in range(0, len(stream) - size, stride):
                found.append(stream[start:start + size + 1])
                used.update(range(start, start + size))
            unused += len(stream) - len(used)
        return found, unused

    def whole(self, i, bos, eos):
        return bos + self.documents[i] + eos


def _words(chance, model, as_bytes):
    bos = [chance.randint(0, 255)] if chance.random() < .3 else []
    eos = [chance.randint(0, 255)] if chance.random() < .3 else []
    words = (['--bos', bos[0]] if bos else []) + (['--eos', eos[0]] if eos else []) + \
        (['--fields', 'm'] if model.mask else []) + \
        (['--dtype', model.dtype] if as_bytes else [])
    return bos, eos, words


def _models():
    chance = random.Random(29)
    for number in range(ROUNDS):
        as_bytes = chance.random() < .3
        dtype = chance.choice(['uint16', 'uint32', 'int32'] + ['uint8'] * as_bytes)
        yield chance, as_bytes, _Model(chance, f'd{number}', dtype, as_bytes,
                                      chance.random() < .4, chance.random() < .3)


def windows_are_those_of_a_model():
    for chance, as_bytes, model in _models():
        size = chance.choice([1, 2, 5, 16, 100])
        stride = chance.choice([size, size, 1, size + 3])
        bos, eos, words = _words(chance, model, as_bytes)
        expected, unused = model.windows(size, stride, bos, eos)
        words = ['load', model.path, '--tokens', f't={size}', '--indices', *words,
                 '--batch', chance.choice([1, 3, 32])]
        if stride != size:
            words += ['--stride', stride]
        longest = max(map(len, model.streams(bos, eos)), default=0)
        if not expected and longest:
            refuse(*words, says=f'field "t": no window: a window has {size + 1} tokens, and the longest '
                                f'shard has {longest}; ')
            shutil.rmtree(model.path)
            continue
        done = run(*words, '--values', '--epochs', 2, '--seed', 3)
        assert f'{unused} trailing token' in done.err, done.err
        for epoch in range(2):
            found = []
            for line in done.lines:
                if line['epoch'] != epoch:
                    continue
                for i, k in enumerate(line['indices']):
                    window = expected[k]
                    found.append(k)
                    assert line["t"][i] == [x[0] for x in window], (line["t"][i], window, k)
                    assert line['documents'][i] == [x[2] for x in window[:-1]]
                    assert line['positions'][i] == [x[3] for x in window[:-1]]
                    if model.mask:
                        assert line['m'][i] == [x[1] for x in window]
            assert sorted(found) == list(range(len(expected))), (found, len(expected))
        plain = run(*words, '--in-order').lines
        assert sum((line['indices'] for line in plain), []) == list(range(len(expected)))
        same = [run(*words, '--digest', *more).lines for more in (
            ['--threads', '1'], ['--threads', '4'])]
        assert same[0] == same[1]
        shutil.rmtree(model.path)


def changed_places_are_found_among_many_documents():
    count = 120000
    documents = [[i % 60000 + 2, i // 60000 + 2] + [2] * (i % 3) + [1] for i in range(count)]

    def make(path, documents):
        raw = array.array('H', [x for document in documents for x in document])
        pathlib.Path('raw.bin').write_bytes(raw.tobytes())
        run('import', 'raw.bin', path, '--dtype', 'uint16', '--separator', '1', '--no-checksum')

    def load(path, *how):
        return run('load', path, *how, '--batch', 4096, '--digest', '--in-order').lines

    make('raw', documents)
    before = load('raw', '--tokens', 'tokens=7')
    for change in [{100001: 100002, 100002: 100001}, {110000: 110001}, {0: count - 1}]:
        rows = [change.get(i, i) for i in range(count)]
        pathlib.Path('rows').write_text('\n'.join(map(str, rows)))
        run('derive', 'raw', 'derived', '--rows', 'rows')
        make('same', [documents[i] for i in rows])
        expected = load('same', '--tokens', 'tokens=7')
        assert load('derived', '--tokens', 'tokens=7') == expected != before, change
        assert load('derived', '--pack', 'tokens=64') == load('same', '--pack', 'tokens=64')
        shutil.rmtree('derived')
        shutil.rmtree('same')


def each_document_is_packed_once():
    for chance, as_bytes, model in _models():
        size = chance.choice([1, 2, 5, 16, 100])
        drop = chance.random() < .4
        bos, eos, words = _words(chance, model, as_bytes)
        words = ['load', model.path, '--pack', f't={size}', '--indices', *words,
                 '--batch', chance.choice([1, 3, 32])]
        words += ['--long', 'drop'] if drop else []
        done = run(*words, '--values', '--epochs', 2, '--seed', 3)
        used, space, dropped = 0, 0, 0
        expected = collections.Counter()
        for i in range(len(model.documents)):
            length = len(model.whole(i, bos, eos))
            if drop and length > size:
                dropped += 1
                continue
            for first in range(0, length, size):
                expected[i, first, min(size, length - first)] += 1
        for epoch in range(2):
            found, batches = collections.Counter(), []
            for line in done.lines:
                if line['epoch'] != epoch:
                    continue
                batches.append(len(line['indices']))
                for row, tokens, ends, mask in zip(
                        line['indices'], line['t'], line['cu_seqlens'],
                        line.get('m', line['t']), strict=True):
                    assert 0 < len(tokens) <= size and len(ends) == len(row) + 1
                    assert ends[0] == 0 and ends[-1] == len(tokens)
                    used, space = used + len(tokens), space + size
                    for k, (i, first, length) in enumerate(row):
                        found[i, first, length] += 1
                        whole = model.whole(i, bos, eos)
                        part = slice(ends[k], ends[k + 1])
                        assert tokens[part] == whole[first:first + length]
                        if model.mask:
                            marks = [0] * len(bos) + model.masks[i] + [0] * len(eos)
                            assert mask[part] == marks[first:first + length]
            assert found == expected
            assert len(set(batches[:-1])) < 2
        if space:
            assert f'fill {100 * used / space:.2f} %' in done.err, done.err
        times = 2 if space else 1
        assert (f'{times * dropped} document' in done.err) == (dropped > 0), done.err
        same = [run(*words, '--digest', *more).lines for more in (
            ['--threads', '1'], ['--threads', '4'])]
        assert same[0] == same[1]
        shutil.rmtree(model.path)


def _texts(count=300, path='x', *options):
    chance = random.Random(count)
    documents = [[chance.randint(0, 999) for _ in range(chance.randint(0, 40))]
                 for _ in range(count)]
    pack([{'t': tokens} for tokens in documents], 't=array(uint16,-1)', path, *options)
    return documents


def _merged(ranks):
    merged = []
    for lines in zip(*ranks, strict=True):
        total = sum(int(line['digest'], 16) for line in lines)
        merged.append((lines[0]['epoch'], lines[0]['batch'], f'{total % 2**64:016x}',
                       sorted(sum((line['indices'] for line in lines), []))))
    return merged


@each([(['--tokens', 't=16'], 7), (['--tokens', 't=16', '--stride', '5'], 32),
       (['--pack', 't=64'], 5), (['--pack', 't=30', '--long', 'drop'], 9),
       (['--pack', 't=64', '--take', '100', '--eos', '1'], 16),
       (['--tokens', 't=16', '--take', '50', '--replacement'], 7),
       (['--pack', 't=64', '--chunk', '10'], 200)])
def ranks_threads_and_resumes_load_the_same(case):
    how, batch = case
    _texts(300, 'x', '--shard-length', '70')
    words = ['load', 'x', *how, '--indices', '--digest', '--batch', batch,
             '--epochs', 3, '--seed', 9]
    whole = run(*words, '--threads', 1).lines
    assert run(*words, '--threads', 3).lines == whole
    assert _merged([whole]) == _merged([
        run(*words, '--rank', r, '--ranks', 3).lines for r in range(3)])
    # In parts, each of which is continued by another rank of other ranks.
    for stop in (1, 4, len(whole) // 3, len(whole) // 3 + 1):
        found, done = [], 0
        pathlib.Path('s').unlink(missing_ok=True)
        for ranks in (1, 2, 3):
            part, state = [], pathlib.Path('s')
            saved = state.read_bytes() if state.exists() else None
            for r in range(ranks):
                if saved is None:
                    state.unlink(missing_ok=True)
                else:
                    state.write_bytes(saved)
                part.append(run(*words, '--rank', r, '--ranks', ranks, '--state', 's',
                                *(['--batches', stop] if ranks < 3 else [])).lines)
            found += _merged(part)
        assert found == _merged([whole]), stop


def two_datasets_have_pairs_and_weights():
    _texts(100, 'x')
    _texts(60, 'y')
    lines = run('load', 'x', 'y', '--tokens', 't=16', '--indices', '--batch', 64,
                '--weights', '3,1', '--batches', 16).lines
    pairs = [tuple(pair) for line in lines for pair in line['indices']]
    assert len(pairs) == 1024 and sum(d for d, _ in pairs) == 256
    rows = run('load', 'x', 'y', '--pack', 't=64', '--indices').lines
    pieces = sorted(tuple(p) for line in rows for row in line['indices'] for p in row)
    assert {len(p) for p in pieces} == {4} and {p[0] for p in pieces} == {0, 1}
    assert len(set(pieces)) == len(pieces)
    # Of windows --rows are windows, of rows documents.
    pathlib.Path('r').write_text('3\n1\n1\n')
    lines = run('load', 'x', '--tokens', 't=16', '--rows', 'r', '--in-order',
                '--indices').lines
    assert lines[0]['indices'] == [3, 1, 1]
    rows = run('load', 'x', '--pack', 't=64', '--rows', 'r', '--indices').lines
    assert sorted(p[0] for row in rows[0]['indices'] for p in row) == [1, 1, 3]


def what_has_no_tokens_is_refused_by_name():
    _texts(20)
    pathlib.Path('odd').write_bytes(b'abc')
    pathlib.Path('even').write_bytes(b'abcd')
    pack([{'t': {'file': 'even'}, 'u': 'text', 'f': [1.5], 's': [[1], [2]], 'n': 1,
           'g': [1, 2, 3]},
          {'t': {'file': 'odd'}, 'u': 'text', 'f': [1.5], 's': [[1]], 'n': 1,
           'g': [1, 2, 3]}],
         't=bytes,u=utf8,f=array(float32,-1),s=array(uint16,-1)[],n=int(2),'
         'g=array(uint16,3)', 'y')
    for words, says in (
            (['y', '--tokens', 't=4'], 'field "t": of type bytes: its dtype must be'),
            (['y', '--tokens', 't=4', '--dtype', 'uint16'],
             'field "t": datapoint 1: 3 bytes, not a multiple of 2'),
            (['y', '--tokens', 't=4', '--dtype', 'uint32'],
             'field "t": datapoint 1: 3 bytes, not a multiple of 4'),
            (['y', '--pack', 't=4', '--dtype', 'uint16'], 'field "t": datapoint 1'),
            (['y', '--tokens', 'u=4'], 'field "u": not of a type whose blobs'),
            (['y', '--tokens', 'f=4'], 'field "f": tokens must be uint16'),
            (['y', '--tokens', 's=4'], 'field "s": a sequence'),
            (['y', '--tokens', 'n=4'], 'field "n": not of a type'),
            (['y', '--tokens', 'g=4'], 'field "g": not of a type'),
            (['x', '--tokens', 't=4', '--dtype', 'int32'],
             'field "t": its type has another dtype'),
            (['x', '--tokens', 'z=4'], 'field "z"'),
            (['x', '--tokens', 't=4', '--fields', 't'], 'field "t": listed twice'),
            (['x', '--tokens', 't=4', '--bos', '65536'], 'field "t": bos or eos'),
            (['y', '--tokens', 't=1', '--dtype', 'uint8', '--fields', 'u'],
             'field "u"')):
        result = refuse('load', *words, '--indices', says=says)
        assert result.out == b''
    assert run('load', 'y', '--tokens', 't=3', '--dtype', 'uint8', '--indices',
               '--values', '--in-order').lines[0]['t'] == [[97, 98, 99, 100],
                                                           [100, 97, 98, 99]]
    # A parallel field has an element for each token.
    pack([{'t': [1, 2, 3], 'm': [1, 1, 0]}, {'t': [4, 5], 'm': [1]}, {'t': [6], 'm': [1, 1]},
          {'t': [7] * 9, 'm': [1] * 9}],
         't=array(uint16,-1),m=array(uint8,-1)', 'z')
    for how, says in (('--tokens', 'datapoint 1: 1 elements, but field "t" has 2'),
                      ('--pack', 'elements, but field "t" has')):
        refuse('load', 'z', how, 't=4', '--fields', 'm', '--indices', '--in-order',
               says=('z: field "m": datapoint ', says))


@each([(['--tokens', 't'], 'FIELD=S'), (['--tokens', '=3'], 'FIELD=S'),
       (['--tokens', 't=0'], 'FIELD=S'), (['--tokens', 't=-1'], 'FIELD=S'),
       (['--tokens', 't=1e9'], 'FIELD=S'), (['--pack', 't=268435457'], 'FIELD=S'),
       (['--tokens', 't=3', '--pack', 't=3'], 'mutually exclusive'),
       (['--stride', '3'], '--stride needs'), (['--pack', 't=3', '--stride', '3'], 'needs'),
       (['--tokens', 't=3', '--long', 'drop'], '--long needs'),
       (['--pack', 't=3', '--long', 'cut'], 'split, drop'),
       (['--values'], '--values needs'), (['--bos', '1'], '--bos needs'),
       (['--dtype', 'uint16'], '--dtype needs'),
       (['--tokens', 't=3', '--crop', '8'], '--tokens and --crop are mutually exclusive'),
       (['--pack', 't=3', '--skip-damaged'], 'mutually exclusive')])
def invalid_command_lines_of_tokens_are_refused(case):
    words, says = case
    _texts(5)
    refuse('load', 'x', *words, says=says, code=2)


def a_state_is_of_one_kind_of_sequences():
    _texts(100)
    kinds = [['--tokens', 't=16'], ['--tokens', 't=17'], ['--tokens', 't=16', '--eos', '1'],
             ['--tokens', 't=16', '--stride', '4'], ['--pack', 't=16'],
             ['--pack', 't=16', '--long', 'drop'], ['--pack', 't=17'], []]
    for kind in kinds:
        pathlib.Path('s').unlink(missing_ok=True)
        words = ['load', 'x', '--indices', '--batch', 4, '--state', 's', '--batches', 2]
        run(*words, *kind)
        for other in kinds:
            if other != kind:
                refuse(*words, *other, says='s: a state of other datasets or options')
    # Nor is it of tokens of another size in bytes, where there are as many documents.
    pack([{'t': {'base64': 'YWJjZGVmZ2g='}}] * 100, 't=bytes', 'y')
    sizes = ['uint8', 'uint16', 'uint32']
    for size in sizes:
        pathlib.Path('s').unlink()
        words = ['load', 'y', '--pack', 't=8', '--state', 's', '--batch', 4, '--batches', 2]
        run(*words, '--dtype', size)
        for other in sizes:
            if other != size:
                refuse(*words, '--dtype', other, says='s: a state of other datasets or opt')


def an_empty_stream_has_nothing():
    pack([{'t': []}] * 5, 't=array(uint16,-1)', 'x')
    pack([], 't=array(uint16,-1)', 'y')
    for path in 'xy':
        for words in (['--tokens', 't=4'], ['--pack', 't=4']):
            for more in ([], ['--state', path + words[0]]):
                result = run('load', path, *words, *more, '--indices', '--epochs', 3)
                assert result.out == b'', result.out
    assert run('load', 'x', '--pack', 't=4', '--eos', '7', '--values').lines[0]['t']


def derived_datasets_have_their_own_documents():
    documents = _texts(60, 'x', '--shard-length', '20')
    chosen = [3, 1, 19, 3, 25, 39, 21, 55]  # shard by shard, in any order within one
    pathlib.Path('r').write_text('\n'.join(map(str, chosen)))
    run('derive', 'x', 'y', '--rows', 'r')
    streams = [sum((documents[i] for i in chosen if i // 20 == k), []) for k in range(3)]
    lines = run('load', 'y', '--tokens', 't=8', '--in-order', '--values', '--batch',
                1000).lines
    assert lines[0]['t'] == [stream[k:k + 9] for stream in streams
                             for k in range(0, len(stream) - 8, 8)]
    rows = run('load', 'y', '--pack', 't=40', '--indices', '--values').lines
    found = sorted((piece[0], tokens[a:b]) for line in rows for row, tokens, ends in
                   zip(line['indices'], line['t'], line['cu_seqlens'])
                   for piece, a, b in zip(row, ends, ends[1:]))
    assert found == [(i, documents[k]) for i, k in enumerate(chosen) if documents[k]]


# ---- Megatron ----

CODES = {'uint8': (1, 'B'), 'int8': (2, 'b'), 'int16': (3, 'h'), 'int32': (4, 'i'),
         'int64': (5, 'q'), 'float64': (6, 'd'), 'float32': (7, 'f'),
         'uint16': (8, 'H')}


def _megatron(path, sequences, boundaries, dtype, legacy=False, modes=False, code=None):
    """Write X.idx and X.bin; boundaries None: an index without documents."""
    number, letter = CODES[dtype]
    size, raw, pointers = struct.calcsize(letter), b'', [0]
    for sequence in sequences:
        raw += struct.pack(f'<{len(sequence)}{letter}', *sequence)
        pointers.append(len(raw))
    count = len(sequences)
    documents = boundaries or []
    if legacy:
        index = b'TNTIDX\0\0' + struct.pack('<QQQQQ', 1, code or number, size, count,
                                            count)
        if boundaries is not None:
            index += struct.pack('<Q', len(documents))
        index += struct.pack(f'<{count + 1}q', *range(count + 1))
        index += struct.pack(f'<{count + 1}q', *[p // size for p in pointers])
        index += struct.pack(f'<{count}q', *map(len, sequences))
    else:
        index = b'MMIDIDX\0\0' + struct.pack('<QBQQ', 1, code or number, count,
                                             len(documents))
        index += struct.pack(f'<{count}i', *map(len, sequences))
        index += struct.pack(f'<{count}q', *pointers[:-1])
    index += struct.pack(f'<{len(documents)}q', *documents)
    index += bytes(count) if modes else b''
    pathlib.Path(path + '.idx').write_bytes(index)
    pathlib.Path(path + '.bin').write_bytes(raw)


@each([(dtype, legacy) for dtype in CODES for legacy in (False, True)])
def pairs_of_megatron_are_imported(case):
    dtype, legacy = case
    chance = random.Random(str(case))
    documents = [[[chance.randint(0, 100) for _ in range(chance.randint(0, 9))]]
                 for _ in range(20)]
    for several in (False, True):
        if several:
            documents[3].append([1, 2])
            documents[5] = []
        sequences = sum(documents, [])
        boundaries = [0]
        for document in documents:
            boundaries.append(boundaries[-1] + len(document))
        _megatron('x', sequences, boundaries, dtype, legacy)
        shutil.rmtree('out', ignore_errors=True)
        run('import', 'x.idx', 'out', '--no-sync')
        assert json.loads(pathlib.Path('out/spec.json').read_text())['tokens'] == \
            f'array({dtype},-1)' + several * '[]'
        for i, document in enumerate(documents):
            got = run('get', 'out', i, 'tokens', '--lists').json['tokens']
            assert got == (document if several else document[0]), (got, document)
        # Back: what Megatron writes of the same documents, to the byte.
        run('export', 'out', 'y.idx')
        _megatron('z', sequences, boundaries, dtype)
        for end in ('.idx', '.bin'):
            assert pathlib.Path('y' + end).read_bytes() == \
                pathlib.Path('z' + end).read_bytes(), end
            pathlib.Path('y' + end).unlink()
    if dtype in ('uint16', 'int32'):
        shutil.rmtree('out')
        _megatron('x', sequences, None if legacy else range(len(sequences) + 1), dtype,
                  legacy, modes=not legacy)
        run('import', 'x.idx', 'out', '--no-sync')
        lines = run('load', 'out', '--tokens', 'tokens=4', '--in-order', '--values').lines
        stream = sum(sequences, [])
        assert lines[0]['tokens'] == [stream[k:k + 5]
                                      for k in range(0, len(stream) - 4, 4)]


def a_field_becomes_a_pair_or_is_refused_by_name():
    most = 2**31
    pack([{'t': [1, 2**31 - 1], 'u': [most], 'x': 'a', 'f': [1], 'b': [True]},
          {'t': [], 'u': [], 'x': 'b', 'f': [2], 'b': []}],
         't=array(uint32,-1),u=array(uint32,-1),x=utf8,f=array(int32,1),b=array(bool,-1)',
         'd', '--shard-length', 1)
    run('export', 'd', 'sub.idx', '--tokens', 't')
    _megatron('z', [[1, 2**31 - 1], []], [0, 1, 2], 'int32')
    for end in ('.idx', '.bin'):
        assert pathlib.Path('sub' + end).read_bytes() == \
            pathlib.Path('z' + end).read_bytes()
    for words, says in (
            (['sub.idx', '--tokens', 't'], 'sub.idx: already exists'),
            (['n.idx'], 'no field "tokens"'), (['n.idx', '--tokens', 'x'], 'field "x": of'),
            (['n.idx', '--tokens', 'f'], 'field "f": of type array(int32,1)'),
            (['n.idx', '--tokens', 'b'], 'field "b": of type'),
            (['n.idx', '--tokens', 'u'],
             'd: field "u": datapoint 0: [0]: 2147483648 is out of range (int32')):
        refuse('export', 'd', *words, says=says)
    refuse('export', 'd', 'n', '--tokens', 't', says='--tokens needs', code=2)
    refuse('export', 'd', 'n.idx', '--raw', says='--raw is not', code=2)
    pathlib.Path('sub.idx').unlink()
    refuse('export', 'd', 'sub.idx', '--tokens', 't', says='sub.bin: already exists')
    assert not list(pathlib.Path().glob('n*')) + list(pathlib.Path().glob('*.partial'))
    pack([], 'tokens=array(uint16,-1)', 'e')
    run('export', 'e', 'e.idx')
    assert len(run('import', 'e.idx', 'f', '--dry-run').out) and \
        run('import', 'e.idx', '--dry-run').json['length'] == 0


def damaged_pairs_of_megatron_are_refused():
    sequences = [[1, 2, 3], [4], [], [5, 6]]
    refuse('import', 'no.idx', 'out', says='no.idx')
    for legacy in (False, True):
        _megatron('x', sequences, [0, 1, 2, 3, 4], 'uint16', legacy)
        index, raw = (pathlib.Path('x' + end).read_bytes() for end in ('.idx', '.bin'))
        pathlib.Path('x.bin').write_bytes(raw[:-1])
        refuse('import', 'x.idx', 'out', says=('x.bin', 'sequence 3 out of range'))
        pathlib.Path('x.bin').unlink()
        refuse('import', 'x.idx', 'out', says='x.bin: cannot open')
        pathlib.Path('x.bin').write_bytes(raw + b'zz')
        result = run('import', 'x.idx', 'more', '--no-sync')
        assert '2 bytes' in result.err, result.err
        shutil.rmtree('more')
        pathlib.Path('x.bin').write_bytes(raw)
        for size in range(len(index)):
            if size % (1 if size < 60 else 7):
                continue
            pathlib.Path('x.idx').write_bytes(index[:size])
            refuse('import', '--from', 'megatron', 'x.idx', 'out', says='x.idx')
        chance = random.Random(3)
        for _ in range(30 if os.environ.get('BAGS_QUICK') else 300):
            bad = bytearray(index)
            for _ in range(chance.randint(1, 3)):
                bad[chance.randrange(len(bad))] = chance.choice([0, 1, 127, 255])
            pathlib.Path('x.idx').write_bytes(bad)
            shutil.rmtree('out', ignore_errors=True)
            words = [harness.PROGRAM, 'import', '--from', 'megatron', 'x.idx', 'out',
                     '--no-sync']
            done = harness.subprocess.run(words, capture_output=True, timeout=harness.HANG)
            assert done.returncode in (0, 1), (bad, done)
        shutil.rmtree('out', ignore_errors=True)
    for boundaries, says in (([0, 2, 1, 4], 'boundary 2'), ([1, 4], 'boundary 0'),
                             ([0, 5], 'boundary 1'), ([0, 3], 'end at sequence 3 of 4')):
        _megatron('x', sequences, boundaries, 'uint16')
        refuse('import', 'x.idx', 'out', says=('x.idx', says))
    _megatron('x', sequences, [0, 4], 'uint16', code=9)
    refuse('import', 'x.idx', 'out', says='unknown dtype (code 9)')
    # Older versions called float64 number 7.
    _megatron('x', [[1.5, 2.5]], [0, 1], 'float64', code=7)
    run('import', 'x.idx', 'old', '--no-sync')
    assert run('get', 'old', 0, '--lists').json['tokens'] == [1.5, 2.5]


# ---- raw tokens ----

def _npy(path, descr, shape, raw):
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    head += ' ' * (-(len(head) + 11) % 64) + '\n'
    pathlib.Path(path).write_bytes(
        b'\x93NUMPY\1\0' + struct.pack('<H', len(head)) + head.encode() + raw)


def _documents(path):
    return [json.loads(line)['tokens'] for line in run(
        'export', path, path + '.lines', '--lists') and
        pathlib.Path(path + '.lines/manifest.jsonl').read_text().splitlines()]


@each(['uint8', 'uint16', 'uint32', 'int32', 'int64'])
def raw_tokens_are_imported_by_document(dtype):
    letter = {**FORMATS, 'int64': 'q'}[dtype]
    size = struct.calcsize(letter)
    chance = random.Random(dtype)
    tokens = [[chance.randint(0, 20) for _ in range(n)] for n in (100, 0, 1, 63)]
    raw = [struct.pack(f'<{len(part)}{letter}', *part) for part in tokens]
    for i, part in enumerate(raw):
        pathlib.Path(f'x{i}.bin').write_bytes(part)
    options = ['--dtype', dtype, '--no-sync', '--no-checksum']
    if dtype == 'int64':
        options += ['--type', 'tokens=array(uint16,-1)']
    # A document ends after the separator, or with its file.
    expected = []
    for part in tokens:
        document = []
        for token in part:
            document.append(token)
            if token == 7:
                expected.append(document)
                document = []
        expected += [document] if document else []
    assert len(expected) > 6
    for words, result in (
            (['--separator', 7], expected),
            (['--separator', 99], [part for part in tokens if part]),
            ([], [part for part in tokens if part]),
            (['--document', 30], [part[i:i + 30] for part in tokens
                                  for i in range(0, len(part), 30)])):
        run('import', 'x*.bin', 'out', *options, *words)
        assert _documents('out') == result, words
        shutil.rmtree('out')
        shutil.rmtree('out.lines')
    # .npy: one dimension as above, of two each row is a document; any byte order.
    order = '|' if size == 1 else '<'
    code = f'{"i" if dtype.startswith("i") else "u"}{size}'
    _npy('x.npy', order + code, '(100,)', raw[0])
    swapped = struct.pack(f'>100{letter}', *tokens[0])
    _npy('y.npy', '>' + code if size > 1 else order + code, '(100,)', swapped)
    for name in 'xy':
        run('import', name + '.npy', name, '--from', 'tokens', '--separator', 7, *options)
        found = _documents(name)
        assert found == expected[:len(found)] and sum(found, []) == tokens[0]
    _npy('z.npy', order + code, '(10, 10)', raw[0])
    run('import', 'z.npy', 'z', '--from', 'tokens', *options)
    assert _documents('z') == [tokens[0][i:i + 10] for i in range(0, 100, 10)]
    # The documents, one after another, are the file.
    if dtype in ('uint16', 'uint32', 'int32'):
        line = run('load', 'x', '--tokens', 'tokens=99', '--values').lines[0]
        assert line['tokens'] == [tokens[0]]


def raw_tokens_that_are_not_are_refused():
    pathlib.Path('x.bin').write_bytes(bytes(6))
    refuse('import', 'x.bin', 'out', says='x.bin: the dtype of its tokens is unknown')
    refuse('import', 'x.bin', 'out', '--dtype', 'int32',
           says='x.bin: 6 bytes, not a multiple of 4')
    for dtype, most in (('uint8', 255), ('uint16', 65535), ('int16', 32767)):
        refuse('import', 'x.bin', 'out', '--dtype', dtype, '--separator', most + 1,
               says=f'separator out of range for {dtype} ({most + 1}, maximum {most})')
    refuse('import', 'x.bin', 'out', '--dtype', 'float32', says='not one of uint8',
           code=2)
    refuse('import', 'x.bin', 'out', '--dtype', 'uint16', '--separator', 1, '--document',
           2, says='mutually exclusive', code=2)
    pathlib.Path('x.idx').write_bytes(b'')
    refuse('import', 'x.bin', 'out', '--dtype', 'uint16', says='import x.idx')
    _npy('f.npy', '<f4', '(2,)', bytes(8))
    _npy('c.npy', '<u2', '(1, 2, 2)', bytes(8))
    _npy('r.npy', '<u2', '(2, 2)', bytes(8))
    _npy('n.npy', '<i8', '(2,)', struct.pack('<2q', 3, -1))
    _npy('s.npy', '<u2', '(9,)', bytes(8))
    for words, says in (
            (['f.npy'], 'f.npy: its elements are not integers'),
            (['c.npy'], 'c.npy: 3 dimensions'),
            (['r.npy', '--separator', 1], 'r.npy: 2 dimensions'),
            (['s.npy'], 's.npy: size of .npy elements'),
            (['n.npy', '--dtype', 'uint16'], 'n.npy: dtype mismatch (int64, expected'),
            (['[nr].npy'], '[nr].npy'), (['x.idx'], 'x.idx')):
        refuse('import', words[0], 'out', '--from', 'tokens', *words[1:], says=says)
    refuse('import', 'n.npy', 'out', '--separator', 3, says='--from tokens', code=2)
    # What does not fit is named, and never the bytes of another dtype.
    pathlib.Path('l.jsonl').write_text('{"t": [1]}\n{"t": [2, 65536]}\n')
    refuse('pack', 'l.jsonl', 'out2', '--spec', 't=array(uint16,-1)',
           says='line 2: field "t": [1]: 65536 is out of range (uint16)')
    refuse('import', 'n.npy', 'out', '--from', 'tokens', '--type',
           'tokens=array(uint16,-1)',
           says='datapoint 0: field "tokens": [1]: -1 is out of range (uint16)')
    refuse('import', 'n.npy', 'out', '--from', 'tokens', '--type',
           'tokens=array(float32,-1)', says='float32')


def a_list_of_numbers_becomes_an_array():
    pathlib.Path('q.sql').write_text(
        'SELECT * FROM (VALUES (1, [1, 2, 65535]), (2, []), (3, NULL), (4, [-2]), '
        '(5, [65536])) t(k, ids)')
    if harness.subprocess.run([harness.PROGRAM, 'import', 'q.sql', '--dry-run'],
                              capture_output=True).returncode:
        print('        skipped: libduckdb.so not found')
        return
    for dtype, row, value in (('uint16', 3, -2), ('int16', 0, 65535)):
        refuse('import', 'q.sql', 'out', '--type', f'ids=array({dtype},-1)', '--no-sync',
               says=f'datapoint {row}: field "ids": [{0 if row else 2}]: {value} is out')
        shutil.rmtree('out', ignore_errors=True)
    run('import', 'q.sql', 'out', '--fields', 'ids=t', '--type', 't=array(int32,-1)')
    assert [json.loads(line)['t'] for line in run(
        'export', 'out', 'lines') and pathlib.Path('lines/manifest.jsonl').read_text(
        ).splitlines()] == [[1, 2, 65535], [], [], [-2], [65536]]
    refuse('import', 'q.sql', 'out2', '--type', 'ids=array(int32,3)', says='datapoint 1')
