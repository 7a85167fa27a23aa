#!/usr/bin/python3
"""Say which lines and branches of bags.h the counters in build/coverage have
seen, and judge it: tests/coverage.py [LINES BRANCHES], in percent.

Every line counts, and every branch that the compiler made, those of functions
that were never called too. The program fails below either bar; if a line that
was not executed has no reason in tests/coverage.txt; and if a reason there is of
a line that bags.h does not have any more.

A reason is three lines and an empty one: the function, the text of the line as it
stands in bags.h, and why no test executes it. It holds for every line of this text
in this function; `...` for all lines of the function.
"""

import json
import os
import subprocess
import sys

HEADER = 'bags.h'
COUNTERS = ['build/coverage/bags.gcda']


def count(path):
    """What gcov says of the header in one file of counters."""
    done = subprocess.run(
        ['gcov', '--json-format', '--stdout', '--branch-probabilities',
         os.path.basename(path)],
        cwd=os.path.dirname(path), capture_output=True, check=True)
    for line in done.stdout.splitlines():
        for file in json.loads(line)['files']:
            if os.path.basename(file['file']) == HEADER:
                return file
    raise SystemExit(f'{path} has no counters of {HEADER}')


def add_up(files):
    """Counts by (line number, function): of the line, and of each branch. The
    header is compiled twice with the same options, so that the branches are the
    same."""
    lines, functions = {}, {}
    for file in files:
        for line in file['lines']:
            key = line['line_number'], line.get('function_name', '')
            branches = [branch['count'] for branch in line['branches']]
            before = lines.get(key, (0, [0] * len(branches)))
            if len(before[1]) != len(branches):
                raise SystemExit(f'line {key[0]} has other branches elsewhere')
            lines[key] = (before[0] + line['count'],
                          [a + b for a, b in zip(before[1], branches)])
        for function in file['functions']:
            name = function['name']
            functions[name] = (functions.get(name, 0)
                               + function['execution_count'])
    return lines, functions


def read_reasons(path):
    reasons = {}
    with open(path, encoding='utf-8') as file:
        blocks = [block.splitlines() for block in file.read().split('\n\n')]
    for block in blocks:
        block = [line for line in block if line and not line.startswith('#')]
        if len(block) == 3:
            reasons[block[0].strip(), block[1].strip()] = block[2].strip()
        elif block:
            raise SystemExit(f'{path}: three lines are wanted, not {block}')
    return reasons


def reason_for(reasons, function, text):
    return reasons.get((function, text)) or reasons.get((function, '...'))


def judge(lines, functions, source, reasons):
    """Print what was not executed. How many lines have no reason, or reasons no
    line."""
    wrong = 0
    texts = {(name, source[number - 1].strip()) for number, name in lines}
    texts |= {(name, '...') for name in functions}
    print('Lines that were not executed, and why:')
    for (number, name), (times, _) in sorted(lines.items()):
        if times:
            continue
        text = source[number - 1].strip()
        why = reason_for(reasons, name, text)
        wrong += not why
        print(f'  {HEADER}:{number} {name}: {text}\n'
              f'      {why or "NO REASON in tests/coverage.txt"}')
    print('Branches that were not taken, in lines that were executed:')
    for (number, name), (times, branches) in sorted(lines.items()):
        if times and not all(branches):
            print(f'  {HEADER}:{number} {name}: {branches.count(0)} of '
                  f'{len(branches)}: {source[number - 1].strip()}')
    for key in reasons:
        if key not in texts:
            wrong += 1
            print(f'tests/coverage.txt: no line of {key[0]} is: {key[1]}')
    return wrong


def share(part, whole):
    return 100 * part / whole


def main(line_bar=98.0, branch_bar=92.0):
    files = [count(path) for path in COUNTERS if os.path.exists(path)]
    if not files:
        raise SystemExit('nothing was counted: see `make coverage`')
    lines, functions = add_up(files)
    with open(HEADER, encoding='utf-8') as file:
        source = file.read().split('\n')
    wrong = judge(lines, functions, source, read_reasons('tests/coverage.txt'))
    never = sorted(name for name, times in functions.items() if not times)
    seen = sum(times > 0 for times, _ in lines.values())
    branches = [times for _, each in lines.values() for times in each]
    taken = sum(times > 0 for times in branches)
    line_share = share(seen, len(lines))
    branch_share = share(taken, len(branches))
    print(f'functions: {len(functions) - len(never)} of {len(functions)}'
          + (f'; never called: {", ".join(never)}' if never else ''))
    print(f'lines: {seen} of {len(lines)}, {line_share:.2f} %, at least '
          f'{line_bar:g}')
    print(f'branches: {taken} of {len(branches)}, {branch_share:.2f} %, at '
          f'least {branch_bar:g}')
    if wrong:
        print(f'{wrong} lines of bags.h without a reason, or reasons without '
              'a line')
    return wrong > 0 or line_share < line_bar or branch_share < branch_bar


if __name__ == '__main__':
    sys.exit(main(*map(float, sys.argv[1:])))
