#!/usr/bin/python3
"""Count constructions that a reader stumbles over, in comments, strings and READMEs.

    tests/words.py            fail if a file has more of one than tests/words.txt allows
    tests/words.py --write    lower the numbers there to what the files have
    tests/words.py --show     print every line that is counted

A line counts once for each construction. A file that is not in the table may have none.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / 'tests/words.txt'
# Name the thing; one fact per sentence; nothing in front of the subject but a condition.
CONSTRUCTIONS = {
    'what': r'(?:^|[.:;] |/\* )What (?!if\b|for\b)[^?]*$',
    'that of': r'\b(?:that of|those of|those that)\b',
    'which': r', which\b',
    'of a': r'(?:^|[.:;] |/\* )Of (?:an?|the|all|each|these|those) [^.;]*,',
    'one that': r'\b[Oo]ne that\b',
    'is that of': r'\b(?:is that|are those) of\b',
    'at hand': r'\bat hand\b',
    'alone': r'\balone\b',
}
C_TEXT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def texts(path):
    """The lines of a file that people read, without marks of comments."""
    source = path.read_text(encoding='utf-8')
    if path.suffix == '.md':
        fenced = False
        for line in source.split('\n'):
            fenced ^= line.startswith('```')
            if not fenced:
                yield line.lstrip('#>-*| ')
        return
    for match in C_TEXT.finditer(source):
        text = match.group(0)
        if text.startswith('"'):
            yield text[1:-1]
        elif not text.startswith("'"):
            for line in text.split('\n'):
                yield re.sub(r'^\s*(?:/\*+|//+|\*+(?!/))?\s*|\s*\*/$', '', line)


def count(path):
    found = {}
    for line in texts(path):
        for name, pattern in CONSTRUCTIONS.items():
            if re.search(pattern, line):
                found.setdefault(name, []).append(line)
    return found


def read_table():
    allowed = {}
    for line in TABLE.read_text(encoding='utf-8').splitlines() if TABLE.exists() else ():
        if line and not line.startswith('#'):
            path, *numbers = line.split()
            allowed[path] = dict(zip(CONSTRUCTIONS, map(int, numbers)))
    return allowed


def main():
    files = subprocess.run(['git', 'ls-files', '*.c', '*.h', '*.md'], cwd=ROOT, text=True,
                           stdout=subprocess.PIPE, check=True).stdout.split()
    allowed = read_table()
    first = not allowed and '--write' in sys.argv
    rows, failed = [], 0
    for name in files:
        if name.startswith('tests/data/') or not (ROOT / name).exists():
            continue
        found = count(ROOT / name)
        most = allowed.get(name, {})
        for what, lines in found.items():
            if '--show' in sys.argv:
                print(*(f'{name}: {what}: {line}' for line in lines), sep='\n')
            if len(lines) > most.get(what, 0) and not first:
                failed += 1
                print(f'{name}: "{what}" in {len(lines)} lines (allowed: {most.get(what, 0)}):',
                      *lines, sep='\n    ')
        now = {what: len(found.get(what, ())) for what in CONSTRUCTIONS}
        if not first:
            now = {what: min(now[what], most.get(what, 0)) for what in now}
        if any(now.values()):
            rows.append([name, *now.values()])
    if '--write' in sys.argv:
        width = max(len(row[0]) for row in rows)
        with open(TABLE, 'w', encoding='utf-8') as table:
            print('# Lines of each file with a construction that tests/words.py counts. The numbers only fall.', file=table)
            print('#', *CONSTRUCTIONS, sep=' | ', file=table)
            for name, *numbers in rows:
                print(name.ljust(width), *(str(n).rjust(3) for n in numbers), file=table)
    print(f'{len(files)} files, {failed} counts have grown')
    return failed > 0


sys.exit(main())
