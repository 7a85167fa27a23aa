#!/usr/bin/python3
"""The package of examples/python as a program for run.py: reader.py PATH"""
import base64
import json
import os
import sys

import bags


class Encoded(dict):
    """A table of decoders by which every value is its bytes."""

    def __contains__(self, name):
        return True

    def __missing__(self, name):
        return None


def shown(value):
    if isinstance(value, (list, tuple)):
        return [shown(item) for item in value]
    return base64.b64encode(value).decode()


def main(path):
    if os.path.isfile(path):
        with bags.BagReader(path, allow_empty_file=True) as reader:
            rows = [{'blob': blob} for blob in reader]
    else:
        with bags.DatasetReader(path, Encoded()) as reader:
            rows = list(reader)
    for row in rows:
        print(json.dumps({name: shown(value) for name, value in row.items()}))


try:
    main(sys.argv[1])
except (OSError, ValueError, LookupError, RuntimeError) as error:
    sys.exit(f'{type(error).__name__}: {error}')
