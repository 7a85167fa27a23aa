"""Print the version of bags.h, its header directories, or its libraries, one per line:
NAME;PACKAGE...;FILE...

    libraries.py version | folders | libraries

Packages are named as in pkg-config; for A|B, either is enough. The first line is libbags,
and needs no package. formats/packages.mk lists the others.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent


def libraries():
    makefile = (ROOT / 'formats/packages.mk').read_text()
    variables = dict(re.findall(r'^((?:PKG|PARTS)_[a-z0-9_/]+) := (.*)$', makefile, re.M))
    for name, words in variables.items():
        if 'call have,' in words:
            variables[name] = '|'.join(dict.fromkeys(re.findall(r'have,([a-z0-9-]+)', words)))
    files = {'bags': []}
    owners = {}
    for name in variables:
        kind, library = name.split('_', 1)
        if kind == 'PKG':
            files[library] = []
            for part in [library, *variables.get(f'PARTS_{library}', '').split()]:
                owners[part] = library
    for path in sorted([*ROOT.glob('formats/*.c'), *ROOT.glob('formats/*/*.c')]):
        name = path.relative_to(ROOT / 'formats').with_suffix('').as_posix()
        name = re.sub(r'^(load|storage|data)/', '', name)
        files[owners.get(name, 'bags')].append(path.relative_to(ROOT).as_posix())
    for library, paths in files.items():
        packages = re.sub(r'\$\((PKG_\w+)\)', lambda match: variables[match[1]],
                          variables.get(f'PKG_{library}', ''))
        yield library.replace('/', '-'), packages, ' '.join(paths)


if sys.argv[1] == 'version':
    print(re.search(r'define BAGS_VERSION "(.*)"', (ROOT / 'bags.h').read_text())[1])
elif sys.argv[1] == 'folders':
    print('.', *sorted({path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob('formats/**/*.h')}))
else:
    for line in libraries():
        print(';'.join(line))
