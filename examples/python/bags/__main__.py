"""python -m bags ...: run the installed command `bags`, or else the part of it in Python."""
import argparse
import json
import os
import shutil
import sys

import bags


def info(path):
    """describe a dataset"""
    with bags.DatasetReader(path, None, allow_gaps=True, unfinished='skip') as reader:
        return {'datapoints': len(reader), 'size': reader.size, 'shards': reader.shards,
                'spec': reader.spec}


def get(path, index):
    """print a datapoint"""
    with bags.DatasetReader(path) as reader:
        return repr(reader[int(index)])


def main():
    command = shutil.which('bags')
    if command:
        os.execv(command, [command, *sys.argv[1:]])
    parser = argparse.ArgumentParser('python -m bags', description=__doc__)
    commands = parser.add_subparsers(required=True, metavar='COMMAND')
    for name, call, *more in (
            ('info', info), ('get', get, 'index'), ('verify', bags.verify),
            ('recover', bags.recover), ('checksum', bags.checksum), ('finalize', bags.finalize),
            ('index', bags.build_index, 'field'), ('zip', bags.write_zip, 'to')):
        one = commands.add_parser(name, help=call.__doc__.split('\n\n')[-1].strip())
        one.set_defaults(call=call)
        for argument in ('path', *more):
            one.add_argument(argument)
    args = vars(parser.parse_args())
    try:
        result = args.pop('call')(*args.values())
    except (OSError, ValueError, LookupError, RuntimeError) as error:
        sys.exit(error)
    if isinstance(result, list):  # faults
        sys.exit('\n'.join(fault['message'] for fault in result) or 0)
    if result is not None:
        print(result if isinstance(result, str) else json.dumps(result))


if __name__ == '__main__':
    main()
