#!/usr/bin/python3
"""Compare a program that prints datasets with the manifests of the golden data.

    tests/packages/golden.py COMMAND...

COMMAND PATH prints what examples/packages/rust/examples/dump.rs states, or fails.
"""
import hashlib
import pathlib
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / 'tests/data/golden'


def facts(manifest, kind):
    lines = [line.split('\t') for line in manifest.read_text().split('\n')]
    return [line for line in lines if line[0] == kind]


def expected(manifest):
    """(length, [(name, type, digest)]); None: it must be refused."""
    if facts(manifest, 'error'):
        return None
    fields = [('\t'.join(line[6:]), line[2], line[5]) for line in facts(manifest, 'col')]
    fields += [('blob', 'bytes', line[3]) for line in facts(manifest, 'digest')]
    return int(facts(manifest, 'count')[0][1]), fields


def printed(text):
    """The same from the lines of a program."""
    length, fields, values = None, [], 0
    for line in text.splitlines():
        kind, *parts = line.split('\t')
        if kind == 'length':
            length = int(parts[0])
        elif kind == 'field':
            assert int(parts[0]) == len(fields), line
            fields.append(('\t'.join(parts[2:]), parts[1], hashlib.sha256()))
        elif kind == 'value':
            index, number, count = map(int, parts[:3])
            assert (index, number) == divmod(values, len(fields)), line
            values += 1
            items = [bytes.fromhex(item) for item in parts[3].split(',')] if count else []
            assert len(items) == count, line
            _, type_, digest = fields[number]
            if type_.endswith('[]'):
                digest.update(struct.pack('<Q', count))
            for item in items:
                digest.update(struct.pack('<Q', len(item)) + item)
    assert values == length * len(fields), f'{values} values'
    return length, [(name, type_, digest.hexdigest()) for name, type_, digest in fields]


def fault(manifest, data, command):
    """Why a program is wrong about a dataset; None: it is right."""
    run = subprocess.run([*command, str(data)], capture_output=True, timeout=300)
    said = run.stderr.decode(errors='replace').strip()
    # A file of 0 bytes is an empty Bag of some writers, and what a crash leaves of others.
    if data.is_file() and data.stat().st_size == 0:
        return None if run.returncode in (0, 1) else f'exit code {run.returncode}: {said}'
    want = expected(manifest)
    if want is None:
        return None if run.returncode == 1 and said else f'it was not refused: exit code {run.returncode}'
    if run.returncode:
        return f'exit code {run.returncode}: {said}'
    got = printed(run.stdout.decode())
    return None if got == want else f'{got} is not {want}'


def main(command):
    passed = failed = 0
    for manifest in sorted(GOLDEN.glob('*/*/manifest.txt')):
        found = [manifest.with_name(name) for name in ('data', 'data.bag') if manifest.with_name(name).exists()]
        if not found:
            continue
        why = fault(manifest, found[0], command)
        if why:
            print(f'FAILED {manifest.parent.relative_to(GOLDEN)}: {why}')
        passed, failed = passed + (not why), failed + bool(why)
    print(f'{passed} golden data sets agree, {failed} do not')
    return failed > 0 or passed < 20


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
