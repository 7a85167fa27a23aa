"""python -m bags ...: the installed command `bags`, or else what is here of it."""
import argparse
import json
import os
import shutil
import sys

import bags


def info(args):
    with bags.DatasetReader(args.path, None, allow_gaps=True, unfinished='skip') as reader:
        print(json.dumps({'datapoints': len(reader), 'size': reader.size,
                          'shards': reader.shards, 'spec': reader.spec}))


def get(args):
    with bags.DatasetReader(args.path) as reader:
        print(reader[args.index])


def verify(args):
    faults = bags.verify(args.path)
    for fault in faults:
        print(fault['message'], file=sys.stderr)
    return len(faults) > 0


def main():
    command = shutil.which('bags')
    if command:
        os.execv(command, [command, *sys.argv[1:]])
    parser = argparse.ArgumentParser('python -m bags', description=__doc__)
    commands = parser.add_subparsers(required=True, metavar='COMMAND')
    for name, call, text in (
            ('info', info, 'describe a dataset'), ('get', get, 'print a datapoint'),
            ('verify', verify, 'find every fault'),
            ('recover', lambda a: print(json.dumps(bags.recover(a.path))),
             'finish what crashed writers left'),
            ('checksum', lambda a: print(json.dumps(bags.checksum(a.path))),
             'write checksums'),
            ('finalize', lambda a: print(bags.finalize(a.path)), 'close gaps between shards'),
            ('index', lambda a: bags.build_index(a.path, a.field), 'build an index'),
            ('zip', lambda a: bags.write_zip(a.path, a.to), 'write one zip file')):
        one = commands.add_parser(name, help=text)
        one.set_defaults(call=call)
        one.add_argument('path')
        if name == 'get':
            one.add_argument('index', type=int)
        elif name in ('index', 'zip'):
            one.add_argument('field' if name == 'index' else 'to')
    args = parser.parse_args()
    try:
        return args.call(args)
    except (OSError, ValueError, LookupError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == '__main__':
    sys.exit(main())
