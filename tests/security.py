#!/usr/bin/python3
"""formats/SECURITY.md: every sentence of its tables names tests, and they exist.

    tests/security.py
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / 'formats' / 'SECURITY.md'


def defined(source, name):
    """True if a file of tests has a test of this name, and runs it."""
    text = source.read_text(encoding='utf-8')
    if source.suffix == '.c':
        return f'TEST({name})' in text
    if source.suffix == '.py':
        return re.search(rf'^ *def {re.escape(name)}\(', text, re.M) is not None
    return f"test('{name}'" in text


def find(program):
    """The source of "core/test_hostile", "fuzz/fuzz_bag" or "viewer/page.mjs"."""
    for suffix in ('', '.c', '.py'):
        path = ROOT / 'tests' / (program + suffix)
        if path.is_file():
            return path
    return None


def faults(cell):
    """What is wrong with the tests that a row names."""
    named = 0
    for part in cell.split(';'):
        program, _, names = part.strip().partition(': ')
        # "fuzz/fuzz_bag, fuzz/fuzz_refs" has no names.
        for one in ([program] if names else program.split(', ')):
            source = find(one)
            if source is None:
                yield f'no such file of tests: {one!r}'
                continue
            named += 1
        # A name may contain a comma: those of the viewer are sentences.
        rest = names
        while names and source is not None and rest:
            ends = [m.start() for m in re.finditer(', ', rest)] + [len(rest)]
            good = next((end for end in ends if defined(source, rest[:end])), None)
            if good is None:
                yield f'{program}: no test {rest!r}'
                break
            rest = rest[good + 2:]
    if not named:
        yield 'names no test'


def main():
    passed = failed = 0
    for line in PAGE.read_text(encoding='utf-8').splitlines():
        cells = [cell.strip() for cell in re.split(r'(?<!\\)\|', line)[1:-1]]
        if len(cells) != 2 or cells[1] in ('tests', '---'):
            continue
        wrong = list(faults(cells[1]))
        for what in wrong:
            print(f'FAILED {cells[0]!r}: {what}')
        passed, failed = passed + (not wrong), failed + bool(wrong)
    print(f'{passed} passed, {failed} failed')
    return failed > 0 or passed < 20


if __name__ == '__main__':
    sys.exit(main())
