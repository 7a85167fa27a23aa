#!/usr/bin/python3
"""The includes of formats/: they lead down, without a circle. bags.h includes no other file. A
file of formats/ itself, such as a codec, includes no header of a folder. A file of a folder
includes headers of formats/, of its folder, and the public header of another folder."""
import glob
import os
import re
import sys

PUBLIC = ('load.h', 'storage.h', 'datasets.h', 'import.h')
files = ['bags.h', *glob.glob('formats/*.[ch]'), *glob.glob('formats/*/*.[ch]')]
paths, failures = {}, []
for path in files:
    if not path.startswith('formats/import/') or path.endswith('.h'):
        other = paths.setdefault(os.path.basename(path), path)
        if other != path:
            failures.append(f'{path}: {other} has the same name')


def included(path):
    with open(path, encoding='utf-8') as file:
        return re.findall(r'(?m)^ *# *include "([^"]*)"', file.read())


def check(path, name):
    target = paths.get(name)
    if not target or path == 'bags.h':
        return f'{path}: includes {name}, which is not a header of formats/'
    here, there = os.path.dirname(path), os.path.dirname(target)
    if there in ('', 'formats', here) or name in PUBLIC and here != 'formats':
        return None
    return None if path == 'formats/formats.h' else f'{path}: includes {target}'


def find_circle(path, above):
    if path in above:
        return [*above[above.index(path):], path]
    names = [paths[name] for name in included(path) if name in paths]
    return next(filter(None, (find_circle(name, [*above, path]) for name in names)), None)


for path in files:
    failures += filter(None, (check(path, name) for name in included(path)))
    circle = find_circle(path, [])
    if circle and circle[0] == path:
        failures.append('a circle: ' + ' > '.join(circle))
print(*failures, sep='\n', end='\n' if failures else '')
print(f'{len(files) - len(failures)} passed, {len(failures)} failed')
sys.exit(bool(failures))
