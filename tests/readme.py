#!/usr/bin/env python3
"""Compile and run every code block of a README, in order, in one directory.

    tests/readme.py README.md

```c     with a main: a program, under the name in its first line (/* pets.c */).
         Without: the pieces of one section, between two ## headings, are put
         together into one program, those that begin with `static` or `#`
         before main, the others into it.
```sh    runs under bash -eu, with the command `bags` in the path.
```text  that follows a block with nothing but blank lines between is its output;
         a line ... stands for any lines. Elsewhere it is a picture.
```cmake and ```meson are built by tests/install.sh.
Other languages are an error, so that no block goes unchecked.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CFLAGS = ['-std=c99', '-g', '-Wall', '-Wextra', '-Wpedantic', '-Werror',
          '-fsanitize=address,undefined', '-fno-sanitize-recover=all']
PRELUDE = '''#define BAGS_IMPLEMENTATION
#include "bags.h"
#include "formats/formats.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
'''


class Block:
    def __init__(self, language, line, section):
        self.language, self.line, self.section = language, line, section
        self.text, self.expected = '', None


def blocks_of(path):
    """The blocks, each with the text block that is its output."""
    blocks, block, section, adjacent = [], None, '', False
    for number, line in enumerate(path.read_text(encoding='utf-8').splitlines(), 1):
        fence = re.match(r'```(\w*)$', line)
        if block is None and fence:
            block = Block(fence[1], number, section)
        elif block is not None and line == '```':
            if block.language == 'text' and adjacent:
                blocks[-1].expected = block.text
                adjacent = False
            elif block.language != 'text':
                blocks.append(block)
                adjacent = True
            block = None
        elif block is not None:
            block.text += line + '\n'
        elif line.startswith('## '):
            section, adjacent = line, False
        elif line.strip():
            adjacent = False
    return blocks


def matches(expected, got):
    pattern = ''.join('(?s:.*\n)?' if line == '...' else re.escape(line + '\n')
                      for line in expected.splitlines())
    if not got.endswith('\n'):
        got += '\n'
    return re.fullmatch(pattern, got) is not None


def make_flags():
    """How the formats were built, and what to link with: two lists of words."""
    done = subprocess.run(['make', '-s', 'print-formats'], cwd=ROOT, check=True,
                          stdout=subprocess.PIPE, text=True)
    compiling, linking = done.stdout.splitlines()
    return compiling.split(), [str(ROOT / word) if word.endswith('.o') else word
                               for word in linking.split()]


class Runner:
    def __init__(self, directory):
        self.directory = directory
        self.passed = self.failed = 0
        self.compiling, self.linking = make_flags()
        for name in ('bags.h', 'formats'):
            os.symlink(ROOT / name, directory / name)
        (directory / 'photos').mkdir()
        for photo in (ROOT / 'tests' / 'data' / 'photos').glob('*.jpg'):
            shutil.copy(photo, directory / 'photos')
        self.env = {**os.environ, 'PATH': f'{ROOT / "build"}:{os.environ["PATH"]}'}

    def run(self, *command):
        done = subprocess.run(command, cwd=self.directory, env=self.env, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=300)
        return done.returncode, done.stdout

    def compile(self, source, name, extra):
        (self.directory / name).write_text(source, encoding='utf-8')
        code, output = self.run(
            'gcc', *CFLAGS, *extra, '-I.', name, '-o', 'program', '-pthread',
            *(self.linking if 'formats/formats.h' in source else []))
        return (code, output) if code else self.run('./program')

    def check(self, title, code, output, expected):
        if code == 0 and (expected is None or matches(expected, output)):
            print(f'ok      {title}')
            self.passed += 1
            return
        print(f'FAILED  {title}, exit code {code}:\n{output}', end='')
        if expected is not None:
            print(f'expected:\n{expected}', end='')
        self.failed += 1

    def program(self, block):
        name = re.match(r'/\* (\w+\.c) \*/', block.text)
        result = self.compile(block.text, name[1] if name else 'program.c', [])
        self.check(f'program, line {block.line}', *result, block.expected)

    def pieces(self, blocks):
        outside = [b for b in blocks if re.match(r'static|#', b.text)]
        inside = [b for b in blocks if b not in outside]
        def text(some):
            return ''.join(f'#line {b.line + 1} "README.md"\n{b.text}' for b in some)
        source = (PRELUDE + text(outside) +
                  'int main(void) {\n    bags_error err;\n    (void)err;\n' +
                  text(inside) + 'return 0;\n}\n')
        expected = ''.join(b.expected or '' for b in blocks)
        result = self.compile(source, 'pieces.c', ['-Wno-unused', *self.compiling])
        self.check(f'pieces, lines {", ".join(str(b.line) for b in blocks)}',
                   *result, expected)

    def shell(self, block):
        result = self.run('bash', '-euc', block.text)
        self.check(f'shell, line {block.line}', *result, block.expected)

    def all(self, blocks):
        done = set()
        for block in blocks:
            if block.language == 'sh':
                self.shell(block)
            elif block.language in ('cmake', 'meson'):
                continue
            elif block.language != 'c':
                self.check(f'language, line {block.line}', 1,
                           f'unknown: {block.language!r}\n', None)
            elif re.search(r'^int main\(', block.text, re.M):
                self.program(block)
            elif block.section not in done:
                done.add(block.section)
                self.pieces([b for b in blocks if b.section == block.section and
                             b.language == 'c' and 'int main(' not in b.text])


def main():
    with tempfile.TemporaryDirectory() as directory:
        runner = Runner(pathlib.Path(directory))
        runner.all(blocks_of(pathlib.Path(sys.argv[1])))
    print(f'{runner.passed} passed, {runner.failed} failed')
    sys.exit(runner.failed > 0 or runner.passed == 0)


if __name__ == '__main__':
    main()
