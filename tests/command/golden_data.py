"""Datasets that the original programs wrote, unpacked and packed again."""
import base64
import hashlib
import json
import pathlib

from harness import (GOLDEN, each, files, reference, refuse, run)

WRITERS = ('bags-0.5.1', 'granular-0.16.1', 'granular-0.21.0',
           'granular-0.22.0a1')
V1 = WRITERS[:2]


def _path(fixture):
    folder = GOLDEN / fixture
    bag = folder / 'data.bag'
    return bag if bag.exists() else folder / 'data'


def _manifest(fixture):
    return json.loads((GOLDEN / fixture / 'manifest.json').read_text())


def _fixtures(writers, good=True):
    return [f'{w}/{f.name}' for w in writers
            for f in sorted((GOLDEN / w).iterdir())
            if f.is_dir() and f.name.startswith('err-') != good]


def _good():
    found = _fixtures(WRITERS)
    assert len(found) > 70, f'golden data is missing from {GOLDEN}'
    return found


def _blob(value, directory):
    (kind, text), = value.items()
    if kind == 'file':
        raw = (directory / text).read_bytes()
        assert len(raw) > 256
        return raw
    assert kind == 'base64'
    raw = base64.b64decode(text, validate=True)
    assert len(raw) <= 256
    return raw


def _agrees(raw, want):
    assert len(raw) == want['len']
    assert hashlib.sha256(raw).hexdigest() == want['sha256']


def _column_agrees(rows, key, want, directory):
    """A field against its digest, and blob for blob where they are listed."""
    digest = reference.Digest()
    for row in rows:
        value = row[key]
        if isinstance(value, list):
            digest.count(len(value))
        for one in value if isinstance(value, list) else [value]:
            digest.add(_blob(one, directory))
    assert digest.done() == want


@each(_good)
def a_raw_export_has_exactly_the_blobs_that_were_written(fixture):
    want = _manifest(fixture)
    run('export', _path(fixture), 'out', '--raw')
    out = pathlib.Path('out')
    rows = [json.loads(line)
            for line in (out / 'manifest.jsonl').read_text().splitlines()]
    assert len(rows) == want['count']
    if want['kind'] == 'bag':
        keys = {'blob': {k: want[k] for k in ('blobs', 'bytes', 'digest')}}
        assert not (out / 'spec.json').exists()
    else:
        keys = want['columns']
        assert json.loads((out / 'spec.json').read_text()) == want['spec']
    for key, column in keys.items():
        _column_agrees(rows, key, column, out)
    for row, listed in zip(rows, want.get('data', [])):
        if want['kind'] == 'bag':
            listed = {'blob': listed}
        assert set(row) == set(listed)
        for key, blob in listed.items():
            if 'list' not in blob:
                _agrees(_blob(row[key], out), blob)


@each(_good)
def info_tells_length_shards_size_spec_and_fields(fixture):
    want = _manifest(fixture)
    got = run('info', _path(fixture), '--json').json
    assert set(got) == {'path', 'length', 'shards', 'skipped', 'unfinished',
                        'missing', 'size', 'checksums', 'unreferenced', 'spec', 'fields',
                        'indexes'}
    assert got['path'] == str(_path(fixture))
    assert got['length'] == want['count']
    assert got['size'] == want['size']
    assert got['shards'] == len(want.get('shards', [0]))
    assert got['skipped'] == got['checksums'] == 0
    assert got['missing'] == got['indexes'] == []
    assert got['spec'] == want.get('spec', {})
    assert list(got['spec']) == list(want.get('spec', {}))
    if want['kind'] != 'bag':
        columns = {k: {'blobs': c['blobs'], 'bytes': c['bytes']}
                   for k, c in want['columns'].items()}
        assert got['fields'] == columns
    run('info', _path(fixture))
    run('verify', _path(fixture))


def _shard_options(options):
    out = []
    for word, names in (('--shard-length', ('shard_length', 'shardlen')),
                        ('--shard-size', ('shard_size',))):
        given = [options[name] for name in names if name in options]
        if given:
            out += [word, str(given[0] or 0)]
    return out or ['--shard-length', '0']


def _for_workers(lines, counts, workers):
    """Lines in such an order that worker W, taking W, W + K, ..., gets those of
    the shards W, W + K, ..."""
    shards = []
    for count in counts:
        shards.append(lines[:count])
        lines = lines[count:]
    lots = [sum(shards[w::workers], []) for w in range(workers)]
    assert len({len(lot) for lot in lots}) == 1
    return [line for together in zip(*lots) for line in together]


@each(lambda: _fixtures(V1))
def packing_a_raw_export_gives_the_same_bytes(fixture):
    want = _manifest(fixture)
    run('export', _path(fixture), 'raw', '--raw')
    manifest = pathlib.Path('raw/manifest.jsonl')
    if want['kind'] == 'bag':
        run('pack', manifest, 'again.bag', '--no-sync', '--no-checksum')
        again = pathlib.Path('again.bag').read_bytes()
        assert again == _path(fixture).read_bytes()
        assert not pathlib.Path('again.idx').exists()
        return
    options = want['options']
    workers = options.get('workers', 1)
    plain = ['--no-sync', '--no-checksum']
    if want['kind'] == 'dataset':
        run('pack', manifest, 'again', *plain)
    elif workers == 1:
        run('pack', manifest, 'again', *plain, *_shard_options(options))
    else:
        lines = manifest.read_text().splitlines(keepends=True)
        manifest.write_text(
            ''.join(_for_workers(lines, want['shards'], workers)))
        for worker in range(workers):
            run('pack', manifest, 'again', *plain, *_shard_options(options),
                '--shard-start', worker, '--shard-stop', workers)
    assert files('again') == files(_path(fixture))


def _ints_as_written_now(want):
    """The columns of ds-int. An int whose top bit is set is the exception to the
    same bytes: a zero byte follows, so that newer granular reads no sign."""
    columns = dict(want['columns'])
    for key in ('free', 'many'):
        digest = reference.Digest()
        for row in want['data']:
            if 'list' in row[key]:
                digest.count(row[key]['list'])
            for one in row[key].get('items', [row[key]]):
                raw = bytes.fromhex(one['hex'])
                digest.add(raw + b'\0' if raw[-1:] >= b'\x80' else raw)
        assert digest.bytes > columns[key]['bytes']
        columns[key] = digest.done()
    return columns


@each(lambda: [f for f in _good()
               if not f.endswith(('/ds-widths', '/bag-tiny'))])
def packing_a_plain_export_gives_the_same_blobs(fixture):
    want = _manifest(fixture)
    run('export', _path(fixture), 'plain')
    rows = [json.loads(line) for line in
            pathlib.Path('plain/manifest.jsonl').read_text().splitlines()]
    for row, listed in zip(rows, want.get('data', [])):
        for key, blob in listed.items() if want['kind'] != 'bag' else ():
            kind = want['spec'][key].split('(')[0].rstrip('[]')
            items = blob.get('items', []) if 'list' in blob else [blob]
            for got, one in zip(row[key] if 'list' in blob else [row[key]],
                                items):
                if kind in ('int', 'utf8', 'i64', 'u64'):
                    # Newer granular reads an int as signed; it is not.
                    if kind == 'int':
                        one = {'value': int.from_bytes(bytes.fromhex(one['hex']),
                               'big' if 'big' in want['spec'][key] else
                               'little')}
                    assert got == one['value'], (key, got, one)
                elif isinstance(got, dict) and 'file' in got:
                    _agrees(pathlib.Path('plain', got['file']).read_bytes(),
                            one)
                else:
                    assert kind == 'array', (key, got)
    if want['kind'] == 'bag':
        run('pack', 'plain/manifest.jsonl', 'again.bag', '--no-sync')
        again = reference.read(pathlib.Path('again.bag'), strict=True)
        assert again['digest'] == want['digest']
        return
    run('pack', 'plain/manifest.jsonl', 'again', '--no-sync')
    again = reference.read('again', strict=True)
    assert 'error' not in again, again
    assert again['count'] == want['count'] and again['spec'] == want['spec']
    if fixture == 'bags-0.5.1/ds-int':
        want['columns'] = _ints_as_written_now(want)
        for row in reference.read('again', signed=True)['data']:
            assert row['free']['value'] >= 0
    # Newer granular stores an int in other bytes.
    for key, type in want['spec'].items():
        assert again['columns'][key] == want['columns'][key] or (
            type.startswith('int') and fixture.split('/')[0] != 'bags-0.5.1'), key


@each(lambda: [f for f in _fixtures(WRITERS, good=False)
               if not f.endswith('err-bag-0-bytes')])
def what_the_original_refuses_is_refused_and_leaves_nothing(fixture):
    for words in (['info'], ['info', '--json'], ['verify'], ['get', '0'],
                  ['export', 'out'], ['sheet', 'out.png']):
        command, *rest = words
        refuse(command, _path(fixture), *rest)
        assert not any(pathlib.Path().iterdir())


@each(lambda: [f for f in _fixtures(WRITERS, good=False)
               if f.endswith('err-shard-gap')])
def a_gap_is_refused_by_number_and_read_when_allowed(fixture):
    refuse('info', _path(fixture), says='5')
    got = run('info', _path(fixture), '--json', '--allow-gaps').json
    assert got['missing'] == [5, 7, 8] and got['shards'] == 7
    assert '000005' in run('info', _path(fixture), '--allow-gaps').out.decode()
    run('export', _path(fixture), 'out', '--raw', '--allow-gaps')
    lines = pathlib.Path('out/manifest.jsonl').read_text().splitlines()
    assert len(lines) == got['length']
    run('verify', _path(fixture), '--allow-gaps')
    assert run('get', _path(fixture), 0, '--allow-gaps').json


def a_file_of_no_bytes_is_an_empty_bag_with_a_warning():
    pathlib.Path('x.bag').write_bytes(b'')
    got = run('info', 'x.bag', '--json')
    assert got.json['length'] == 0 and '0 bytes' in got.err
