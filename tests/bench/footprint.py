#!/usr/bin/python3
"""Measure what it costs to include bags.h in a program.

    tests/bench/footprint.py                print the table of tests/bench/README.md
    tests/bench/footprint.py README.md ...  compare the rows of it that these files
                                            contain: sizes may differ by a quarter;
                                            times are not compared

Both fail if a function, of bags.h or of a format, has a stack frame above 4 KiB.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MOST = {'bags.h': 4096, 'formats/': 9216}  # bytes of the largest stack frame
# Reads any dataset with the built-in types.
READER = '''#define BAGS_STATIC
#include "bags.h"
int use(const char *path, const char *field, bags_value *value, bags_row *row,
    bags_error *err);
int use(const char *path, const char *field, bags_value *value, bags_row *row,
    bags_error *err) {
    bags_select select = bags_select_all(0);
    bags_reader *reader = bags_reader_open(path, NULL, err);
    int code = !reader || bags_reader_field(reader, field, &select.field, err) ||
               bags_reader_get(reader, bags_reader_length(reader) - 1, &select,
                   1, row, err) ||
               bags_row_value(row, 0, 0, NULL, value, err);
    bags_row_free(row);
    bags_reader_close(reader);
    return code;
}
'''
EVERYTHING = '#define BAGS_IMPLEMENTATION\n#include "bags.h"\n'


class Call(dict):
    """The frames of functions, and `calls`, what each may call."""

    def __init__(self, path):
        super().__init__()
        self.calls = {}
        text = path.read_text()
        for name, label in re.findall(r'^node: { title: "(.*?)" label: "(.*?)"', text, re.M):
            frame = re.search(r'\\n(\d+) bytes \((.*?)\)', label)
            self[name] = int(frame[1]) if frame else 0
            self.calls[name] = set()
            assert not frame or frame[2] in ('static', 'dynamic,bounded'), (name, label)
        for source, target in re.findall(r'sourcename: "(.*?)" targetname: "(.*?)"', text):
            self.calls[source].add(target)
        called = {target for some in self.calls.values() for target in some}
        # Hooks, codecs and callbacks are static, and never called by name.
        if '__indirect_call' in self:
            self.calls['__indirect_call'] = {
                name for name in self if name not in called and ':' in name}

    def deepest(self):
        """Bytes of the deepest chain of calls. Each function counts once: recursion
        is limited, but the limits are not visible here."""
        depth, done = {}, []

        def order(name, seen):
            stack = [(name, iter(self.calls[name]))]
            seen.add(name)
            while stack:
                at, rest = stack[-1]
                following = next((c for c in rest if c not in seen), None)
                if following is None:
                    done.append(at)
                    stack.pop()
                else:
                    seen.add(following)
                    stack.append((following, iter(self.calls[following])))

        seen = set()
        for name in self:
            if name not in seen:
                order(name, seen)
        position = {name: i for i, name in enumerate(done)}
        for name in done:  # callees first, except for calls that close a circle
            depth[name] = self[name] + max(
                (depth[c] for c in self.calls[name] if position[c] < position[name]),
                default=0)
        return max(depth.values())


def compile_one(directory, source, level, *flags):
    """Seconds of processor time, the object, the calls."""
    path, out = directory / 'x.c', directory / 'x.o'
    path.write_text(source)
    before = os.times().children_user
    subprocess.run(['gcc', '-std=c99', level, '-fcallgraph-info=su', f'-I{ROOT}', *flags,
                    '-c', path, '-o', out], check=True)
    seconds = os.times().children_user - before
    return seconds, out, Call(directory / 'x.ci')


def object_size(path):
    """Code and constants and data."""
    done = subprocess.run(['size', path], check=True, stdout=subprocess.PIPE, text=True)
    return sum(int(number) for number in done.stdout.splitlines()[1].split()[:3])


def names(path, *flags):
    done = subprocess.run(['nm', *flags, path], check=True, stdout=subprocess.PIPE, text=True)
    return len([line for line in done.stdout.splitlines()
                if line.split()[-1] not in ('use', '_GLOBAL_OFFSET_TABLE_')])


def column(directory, source):
    seconds, out, calls = compile_one(directory, source, '-O2')
    column = {'seconds to compile, -O2': seconds,
              'bytes of code, -O2': object_size(out),
              'names that it defines': names(out, '-g', '--defined-only'),
              'names that it needs of libc': names(out, '-u'),
              'bytes of the largest stack frame': max(calls.values()),
              'bytes of stack, deepest call': calls.deepest()}
    column['bytes of code, -Os'] = object_size(compile_one(directory, source, '-Os')[1])
    column['bytes of code without checksums, -O2'] = object_size(
        compile_one(directory, source, '-O2', '-DBAGS_NO_CHECKSUM')[1])
    return column


def formats_frames(directory):
    done = subprocess.run(['make', '-s', 'print-formats'], cwd=ROOT, check=True,
                          stdout=subprocess.PIPE, text=True)
    flags = done.stdout.splitlines()[0].split()
    for name in re.findall(r'-DBAGS_WITH_(\w+)=1', done.stdout):
        folder, file = re.fullmatch('(?:(import|export)_)?(.*)', name.lower()).groups()
        path = next(path for path in ROOT.glob(f'formats/**/{file}.c')
                    if folder == (path.parent.name if path.parent.name in ('import', 'export') else None))
        source = f'#include "{path}"\n'
        yield from compile_one(directory, source, '-O2', *flags)[2].items()


def number(value, seconds):
    return f'{value:.1f}' if seconds else f'{value:,}'


def table(reader, everything):
    lines = (ROOT / 'bags.h').read_text(encoding='utf-8').splitlines()
    rows = [('lines of bags.h', '', f'{len(lines):,}')]
    for key in sorted(reader):
        rows.append((key, *(number(c[key], key.startswith('seconds'))
                            for c in (reader, everything))))
    return rows


def compare(path, rows):
    """The rows in this file whose figures are wrong."""
    text = pathlib.Path(path).read_text(encoding='utf-8')
    compared = 0
    for title, *values in rows:
        found = re.search(rf'^\| {re.escape(title)} \|(.*)\|(.*)\|$', text, re.M)
        if not found:
            continue
        if title.startswith('seconds'):
            continue
        compared += 1
        for stated, value in zip(found.groups(), values):
            a, b = (float(x.replace(',', '').strip() or 0) for x in (stated, value))
            if not (a == b or (a and b and max(a / b, b / a) <= 1.25)):
                yield f'{path}: {title}: stated {stated.strip()}, measured {value}'
    if not compared:
        yield f'{path}: no row of the table'


def main():
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        reader, everything = column(directory, READER), column(directory, EVERYTHING)
        frames = dict(formats_frames(directory))
    rows = table(reader, everything)
    frames['bags.h'] = everything['bytes of the largest stack frame']
    faults = [f'{name}: a frame of {size} bytes' for name, size in frames.items()
              if size > MOST['bags.h' if name == 'bags.h' else 'formats/']]
    if len(sys.argv) > 1:
        wrong = [fault for path in sys.argv[1:] for fault in compare(path, rows)]
        faults += wrong + ['(make footprint prints the table)'] * bool(wrong)
    else:
        print('| | reader only | everything |\n| --- | ---: | ---: |')
        for row in rows:
            print('| ' + ' | '.join(row) + ' |')
    for fault in faults:
        print(f'FAILED  {fault}')
    sys.exit(bool(faults))


if __name__ == '__main__':
    main()
