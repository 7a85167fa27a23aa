"""Checksums beside Bags: made by pack, added by checksum, looked at by others."""
import json
import pathlib

from harness import each, files, pack, read, refuse, run

SPEC = 'n=int(4),words=utf8[]'
ROWS = [{'n': i, 'words': ['abc', 'defg', 'x'][:i % 4]} for i in range(25)]
SHARDS = ['--shard-length', '10']


def _crc(data):
    """CRC-32C, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return (crc ^ 0xFFFFFFFF).to_bytes(4, 'little')


def _bound(directory):
    """The CRC that binds a shard together: over spec.json, the names and their CRCs."""
    text = (directory / 'spec.json').read_bytes()
    for name in [*sorted(json.loads(text)), 'refs']:
        trailer = (directory / f'{name}.crc').read_bytes()[-44:]
        text += name.encode() + trailer[20:24]
    return _crc(text)


def _sidecar(directory, name, blobs):
    """What NAME.crc must hold, by the description of the format."""
    file = (directory / f'{name}.bag').read_bytes()
    sums = b''.join(map(_crc, blobs))
    end = (len(blobs).to_bytes(8, 'little') + len(file).to_bytes(8, 'little') +
           _crc(file[sum(map(len, blobs)):]) + _crc(sums) + _crc(name.encode()) +
           _bound(directory) + b'BAGSCRC2')
    return sums + end + _crc(end)


def _flip(path, at):
    data = bytearray(pathlib.Path(path).read_bytes())
    data[at] ^= 0x10
    pathlib.Path(path).write_bytes(data)


def _refuse_verify(path, *says):
    found = run('verify', path, code=1).out.decode()
    for part in says:
        assert part in found, found


def _without_checksums(path):
    return {k: v for k, v in files(path).items() if not k.endswith('.crc')}


@each([[], SHARDS])
def pack_makes_what_checksum_adds(options):
    pack(ROWS, SPEC, 'plain', '--no-checksum', *options)
    pack(ROWS, SPEC, 'out', *options)
    pack(ROWS, SPEC, 'asked', '--checksum', *options)
    assert files('asked') == files('out')
    refuse('pack', 'manifest.jsonl', 'both', '--spec', SPEC, '--checksum',
           '--no-checksum', code=2, says='--no-checksum')
    assert _without_checksums('out') == files('plain')
    bags = 9 if options else 3
    assert len(files('out')) == len(files('plain')) + bags
    said = run('checksum', 'plain').out.decode()
    assert f'in {bags} Bags, kept 0' in said
    assert files('plain') == files('out')
    assert f'in 0 Bags, kept {bags}' in \
        run('checksum', 'out').out.decode()
    assert read('out')['count'] == len(ROWS)
    run('verify', 'out')


def the_bytes_are_as_described():
    pack(ROWS, SPEC, 'out', '--checksum')
    out = pathlib.Path('out')
    numbers = [row['n'].to_bytes(4, 'little') for row in ROWS]
    words = [word.encode() for row in ROWS for word in row['words']]
    assert (out / 'n.crc').read_bytes() == _sidecar(out, 'n', numbers)
    assert (out / 'words.crc').read_bytes() == _sidecar(out, 'words', words)


def a_changed_byte_is_found_and_not_handed_out():
    pack(ROWS, SPEC, 'out', '--checksum')
    run('get', 'out', '0:25', '--check')
    run('export', 'out', 'before', '--check')
    _flip('out/n.bag', 4 * 7 + 1)
    assert b'"n": 4103' in run('get', 'out', '7').out
    refuse('get', 'out', '7', '--check',
           says=('n.bag', 'blob 7'))
    run('get', 'out', '6', '--check')
    refuse('export', 'out', 'after', '--check', says='blob 7')
    _refuse_verify('out', 'n.bag', 'blob 7')
    run('checksum', 'out')
    _refuse_verify('out')
    run('checksum', 'out', '--replace')
    run('verify', 'out')


def a_changed_spec_or_checksum_is_found():
    pack(ROWS, SPEC, 'out', '--checksum')
    _flip('out/words.crc', 3)
    _refuse_verify('out', 'words.bag', 'blob 0')
    _flip('out/words.crc', 3)
    spec = pathlib.Path('out/spec.json')
    spec.write_text(spec.read_text().replace('utf8', 'jpeg'))
    _refuse_verify('out', 'spec.json')
    refuse('get', 'out', '0', '--check', says='spec.json')


def to_check_what_has_no_checksums_is_an_error():
    pack(ROWS, SPEC, 'out', '--no-checksum')
    refuse('get', 'out', '0', '--check', says='crc')
    pack(ROWS, SPEC, 'shards', '--no-checksum', '--shard-length', '1')
    said = refuse('get', 'shards', '0', '--check', says='000000/').err
    assert said.endswith('`bags checksum` writes them\n'), said
    pathlib.Path('m.jsonl').write_text('{"blob": {"base64": "YWJj"}}\n')
    run('pack', 'm.jsonl', 'x.bag', '--no-checksum')
    refuse('get', 'x.bag', '0', '--check', says='x.')


def a_lone_bag_can_have_checksums():
    pathlib.Path('m.jsonl').write_text('{"blob": {"base64": "YWJj"}}\n' * 3)
    run('pack', 'm.jsonl', 'x.bag')
    run('pack', 'm.jsonl', 'y.bag', '--no-checksum')
    run('checksum', 'y.bag')
    assert pathlib.Path('x.crc').read_bytes() == \
        pathlib.Path('y.crc').read_bytes()
    run('get', 'x.bag', '1', '--check')
    _flip('x.bag', 4)
    refuse('get', 'x.bag', '1', '--check', says='blob 1')
    _refuse_verify('x.bag', 'blob 1', ' (at byte 3)')


def info_says_whether_there_are_checksums():
    pack(ROWS, SPEC, 'out', '--no-checksum', *SHARDS)
    assert 'checksums' not in run('info', 'out').out.decode()
    run('checksum', 'out')
    assert 'checksums  yes\n' in run('info', 'out').out.decode()
    assert run('info', 'out', '--json').json['checksums'] == 3
    for path in pathlib.Path('out/000001').glob('*.crc'):
        path.unlink()
    assert 'in 2 shards of 3' in run('info', 'out').out.decode()


def unfinished_shards_get_none():
    pack(ROWS, SPEC, 'out', *SHARDS)
    pathlib.Path('out/000002/spec.json').rename('out/000002/spec.json.partial')
    before = files('out')
    refuse('checksum', 'out', says='000002')
    assert files('out') == before
    refuse('checksum', 'nowhere', says='nowhere')
    refuse('checksum', 'out/000000/n.bag', says='dataset', code=2)
