"""Runs the tests of the command; see command.sh."""
import importlib
import sys

import harness

MODULES = [
    'remote',
    'roles',
    'pacing',
    'caching',
    'recovery',
    'interrupting',
    'lerobot',
    'loading',
    'tokens',
    'frames',
    'golden_data',
    'manifests',
    'images',
    'pixels',
    'archives',
    'importing',
    'decoding',
    'lmdbs',
    'zarr3',
    'rlds',
    'exporting',
    'lerobot_out',
    'help_and_output',
    'getting',
    'writing',
    'python',
    'keys',
    'copying',
    'deriving',
    'describing',
    'joining',
    'stratifying',
    'differing',
    'selecting',
    'normalising',
    'asking',
    'checksums',
    'completion',
    'verifying',
    'compressing',
    'dictionaries',
    'modules',
    'viewing',
]


def main():
    harness.PROGRAM = sys.argv[1]
    if sys.argv[2:]:
        harness.part, harness.parts = map(int, sys.argv[2].split('/'))
    for name in MODULES:
        harness.checks(importlib.import_module(name))
    print(f'{harness.passed} passed, {harness.failed} failed')
    sys.exit(harness.failed > 0 or harness.passed == 0)


main()
