"""Runs the tests of the command; see command.sh."""
import importlib
import sys

import harness

MODULES = [
    'golden_data',
    'help_and_output',
    'getting',
    'manifests',
    'writing',
    'recovery',
    'verifying',
    'images',
    'checksums',
    'keys',
    'archives',
    'copying',
    'remote',
    'importing',
    'loading',
]


def main():
    harness.PROGRAM = sys.argv[1]
    for name in MODULES:
        harness.checks(importlib.import_module(name))
    print(f'{harness.passed} passed, {harness.failed} failed')
    sys.exit(harness.failed > 0 or harness.passed == 0)


main()
