#!/usr/bin/python3
"""The sections of bags.h, in this directory: none calls a function of a later one; all but
three are short; and the contents at the top list them, each with its number of lines."""
import re
import sys

LONG = ('platform', 'dataset-write', 'dataset-read')
SHORT = 800
text = open('bags.h', encoding='utf-8').read()
parts = re.split(r'(?m)^/\* =+\n \* >>([\w-]+)\n', text)
tags, bodies = parts[1::2], parts[2::2]
bodies[-1] = bodies[-1].split('#undef')[0]
failures = []

# A section begins in its comment. The API only declares functions.
ignored = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
code = [ignored.sub(' ', '/*' + body) for body in bodies]
first = tags.index('platform')
defined = {}
for i in range(first, len(tags)):
    for name in re.findall(r'(?m)^\w[^;{}=#]*?\b(bag\w+)\([^;{}=]*\)\s*\{', code[i]):
        defined.setdefault(name, i)
for i in range(first, len(tags)):
    for name in sorted(set(re.findall(r'\bbag\w+', code[i]))):
        if defined.get(name, 0) > i:
            failures.append(f'>>{tags[i]} uses {name} of >>{tags[defined[name]]}')

lines = [body.count('\n') + 2 for body in bodies]
for tag, count in zip(tags, lines):
    if count > SHORT and tag not in LONG:
        failures.append(f'>>{tag} has {count} lines, and may have {SHORT}')

contents = parts[0].split(' * CONTENTS')[1].split('\n *\n')[0]
listed = re.findall(r'>>([\w-]+) +(\d+)', contents)
if [tag for tag, _ in listed] != tags:
    failures.append('the contents list other sections, or in another order: ' + ' '.join(tags))
for (tag, count), actual in zip(listed, lines):
    if abs(int(count) - actual) > actual / 10:
        failures.append(f'>>{tag} has {actual} lines, not {count}: write {round(actual, -1)}')

print(*failures, sep='\n', end='\n' if failures else '')
print(f'{len(tags) + len(defined) - len(failures)} passed, {len(failures)} failed')
sys.exit(bool(failures))
