"""python -m bags ...: the command `bags`.

The package contains it, unless it was built without the command's libraries. Another installed
command serves then, and otherwise the functions of this package.
"""
import argparse
import json
import os
import re
import sys

import bags
from bags.program import command

_WHY = ('is not in this build of the package, which was made without json-c; install '
        'libjson-c-dev and build it again')
# The subcommands that the command has, and the package does not, without it.
_OTHERS = 'export pack images import sheet view derive sql load catalogue card copy'.split()


def info(path):
    """describe a dataset"""
    with bags.DatasetReader(path, None, allow_gaps=True, unfinished='skip') as reader:
        return {'datapoints': len(reader), 'size': reader.size, 'shards': reader.shards,
                'spec': reader.spec}


def get(path, index):
    """print a datapoint"""
    with bags.DatasetReader(path) as reader:
        return repr(reader[index])


def stats(path, field):
    """print statistics of a field's numbers"""
    return bags.stats(path, field)


_COMMANDS = (
    ('info', info), ('get', get, 'index'), ('stats', stats, 'field'), ('diff', bags.diff, 'other'),
    ('verify', bags.verify), ('recover', bags.recover), ('checksum', bags.checksum),
    ('finalize', bags.finalize), ('index', bags.build_index, 'field'), ('zip', bags.write_zip, 'to'))


def _summary(call):
    """The first sentence of a function's description."""
    text = next(part for part in call.__doc__.split('\n\n') if not part.startswith(call.__name__ + '('))
    return re.split(r'\.\s', ' '.join(text.split()) + ' ')[0]


def _run(words):
    parser = argparse.ArgumentParser('python -m bags', description='The functions of the package, '
                                     'since the command is not in it.')
    parser.add_argument('--version', action='version', version=f'bags {bags.__version__}')
    commands = parser.add_subparsers(required=True, metavar='COMMAND')
    for name, call, *more in _COMMANDS:
        one = commands.add_parser(name, help=_summary(call))
        one.set_defaults(call=call)
        for argument in ('path', *more):
            one.add_argument(argument, type=int if argument == 'index' else str)
    if not words or words[0] == 'help':
        words = ['--help']
    if words[0] in _OTHERS:
        sys.exit(f'bags: {words[0]}: {_WHY}')
    args = vars(parser.parse_args(words))
    try:
        result = args.pop('call')(*args.values())
    except (OSError, ValueError, LookupError, RuntimeError, TypeError) as error:
        sys.exit(f'bags: {error.args[0] if isinstance(error, KeyError) else error}')
    if isinstance(result, list):  # faults
        sys.exit('\n'.join(fault['message'] for fault in result) or 0)
    if result is not None:
        print(result if isinstance(result, str) else json.dumps(result))


def main():
    words, program = sys.argv[1:] or ['help'], command()
    if program:
        os.execv(program, [program, *words])
    _run(words)


if __name__ == '__main__':
    main()
