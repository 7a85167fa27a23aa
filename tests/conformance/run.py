#!/usr/bin/python3
"""Run any reader of Bags over the conformance set.

    tests/conformance/run.py [--only TEXT] [--jobs N] COMMAND [ARGUMENT...]

COMMAND is run once for each case. Its argument {} is replaced by the path of the case; if none
is {}, the path is the last argument. tests/data/conformance/README.md states what it must print.
Prints a line for each case that fails, and the number of cases at the end. The exit code is 0
only if all pass.
"""
import argparse
import base64
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import make  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent.parent / 'data' / 'conformance'
SECONDS = 120  # a reader that takes longer hangs


def blobs(value):
    return [blobs(item) for item in value] if isinstance(value, list) else \
        base64.b64decode(value, validate=True)


def found(case, output):
    """What differs from the expected data; None: nothing."""
    columns = {name: [] for name in case['fields']}
    count = 0
    for line in output.decode().splitlines():
        row = json.loads(line)
        if row.keys() != columns.keys():
            return f'datapoint {count} has the fields {list(row)}, not {list(columns)}'
        for name, value in row.items():
            columns[name].append(blobs(value))
        count += 1
    if count != case['count']:
        return f'{count} datapoints, not {case["count"]}'
    for name, told in case['fields'].items():
        digest = make.fields_of({name: columns[name]})[name]
        if digest != told:
            return f'field "{name}": {digest}, not {told}'
    return None


def run(command, case):
    """What is wrong with what the command does in a case; None: nothing."""
    path = str(HERE / case['path'])
    words = [path if word == '{}' else word for word in command]
    words += [path] if '{}' not in command else []
    try:
        done = subprocess.run(words, capture_output=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    except OSError as error:
        return f'did not start: {error}'
    except subprocess.TimeoutExpired:
        return f'still running after {SECONDS} seconds'
    said = done.stderr.decode('utf-8', 'replace').strip()[-300:]
    if not 0 <= done.returncode < 126:
        return f'crashed (exit code {done.returncode}): {said}'
    if 'Sanitizer' in said or 'runtime error:' in said:
        return said
    if done.returncode:
        return None if case['expect'] != 'data' else f'refused: {said}'
    if case['expect'] == 'refusal':
        return f'accepted, although {case["about"]!r} ({len(done.stdout)} bytes of output)'
    try:
        return found(case, done.stdout)
    except (ValueError, AttributeError, TypeError) as error:
        return f'invalid output: {error!r}'


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', default='', help='the cases whose path contains this')
    parser.add_argument('--jobs', type=int, default=os.cpu_count())
    parser.add_argument('command', nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if not given.command:
        parser.error('expected a COMMAND')
    cases = json.loads((HERE / 'manifest.json').read_text())['cases']
    cases = [case for case in cases if given.only in case['path']]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(max(given.jobs, 1)) as pool:
        for case, wrong in zip(cases, pool.map(lambda case: run(given.command, case), cases)):
            if wrong:
                print(f'FAILED {case["path"]} ({case["about"]}): {wrong}')
                failed += 1
    print(f'{len(cases) - failed} passed, {failed} failed')
    return failed > 0 or not cases


if __name__ == '__main__':
    sys.exit(main())
