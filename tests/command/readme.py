#!/usr/bin/python3
"""Compile and run every code block of README files, and follow their links.

    tests/command/readme.py [README.md...]    without a name: all of the repository

Each file is tried in a directory of its own, which looks like the root of the
repository with the command `bags` on the path; blocks run in order.

```c     with a main: a program, whose first line is its name (/* pets.c */). It
         is compiled with all warnings and, unless BAGS_QUICK is set, with
         sanitizers, and run; in a directory
         of its own if a later ```sh block compiles it too. Without a main: the
         blocks of one section, between two ## headings, are joined into one
         program; those that begin with `static`, `typedef` or `#` precede main, the
         others are inside it, with a `bags_error err`.
```sh    runs under bash -eu.
```text  right after a block is its output; a line ... matches any lines.
         Elsewhere it is an illustration.
```python runs with the package in build/python, if that was built.
```cmake and ```meson are built by tests/command/install.sh and tests/packages/build.sh,
         ```js, ```rust and ```go by the others of tests/packages.
Other languages are an error, so that no block goes unchecked.

A link to a file must name one, and its #anchor a heading of that file. Each codec of a
table is compiled and linked from a copy of the files that its row names.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CFLAGS = ['-std=c99', '-g', '-Wall', '-Wextra', '-Wpedantic', '-Werror']
if not os.environ.get('BAGS_QUICK'):  # they triple the time of compilation
    CFLAGS += ['-fsanitize=address,undefined', '-fno-sanitize-recover=all']
PRELUDE = '''#include "bags.h"
#include "formats/formats.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
'''


def all_documents():
    found = [ROOT / 'README.md']
    for top in ('examples', 'formats', 'tests'):
        found += sorted((ROOT / top).rglob('*.md'))
    return found


class Block:
    def __init__(self, language, line, section):
        self.language, self.line, self.section = language, line, section
        self.text, self.expected = '', None

    def has_main(self):
        return re.search(r'^int main\(', self.text, re.M) is not None

    def name(self):
        found = re.match(r'/\* (\w+\.c) \*/', self.text)
        return found[1] if found else 'program.c'


def blocks_of(text):
    """The blocks, each with the text block that is its output."""
    blocks, block, section, adjacent = [], None, '', False
    for number, line in enumerate(text.splitlines(), 1):
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


def prose_of(text):
    """The text without its code."""
    return re.sub(r'`[^`\n]*`', '', re.sub(r'^```.*?^```$', '', text, flags=re.M | re.S))


def anchors_of(path):
    """The anchors that GitHub makes of the headings."""
    text = re.sub(r'^```.*?^```$', '', path.read_text(encoding='utf-8'), flags=re.M | re.S)
    for heading in re.findall(r'^#+ (.*)$', text, re.M):
        yield re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')


def broken_links(path):
    text = prose_of(path.read_text(encoding='utf-8'))
    for link in re.findall(r'\]\(([^)\s]+)\)', text):
        if re.match(r'[a-z]+:', link):
            continue
        name, _, anchor = link.partition('#')
        target = path.parent / name if name else path
        if not target.exists():
            yield f'{link}: no such file'
        elif anchor and anchor not in anchors_of(target):
            yield f'{link}: no such heading'


def matches(expected, got):
    pattern = ''.join('(?s:.*\n)?' if line == '...' else re.escape(line + '\n')
                      for line in expected.splitlines())
    if got and not got.endswith('\n'):
        got += '\n'
    return re.fullmatch(pattern, got) is not None


def make_flags():
    """How the formats were built, and what to link with: two lists of words."""
    done = subprocess.run(['make', '-s', 'print-formats'], cwd=ROOT, check=True,
                          stdout=subprocess.PIPE, text=True)
    compiling, linking = done.stdout.splitlines()
    return compiling.split(), [str(ROOT / word) if word.endswith('.o') else word
                               for word in linking.split()]


class Compiler:
    """How blocks are compiled. The implementation is compiled once for all."""

    def __init__(self, directory):
        self.compiling, self.linking = make_flags()
        self.implementation = directory / 'implementation.o'
        subprocess.run(['gcc', *CFLAGS, '-DBAGS_IMPLEMENTATION', '-x', 'c', '-c',
                        ROOT / 'bags.h', '-o', self.implementation], check=True)


class Document:
    """The blocks of one file, and where they run."""

    def __init__(self, path, directory, compiler):
        self.path, self.directory, self.compiler = path, directory, compiler
        self.title = os.path.relpath(path, ROOT)
        self.passed = self.failed = 0
        directory.mkdir()
        for name in ('bags.h', 'build', 'examples', 'formats', 'tests'):
            os.symlink(ROOT / name, directory / name)
        self.env = {**os.environ, 'PATH': f'{ROOT / "build"}:{os.environ["PATH"]}'}

    def run(self, *command, where=None):
        done = subprocess.run(command, cwd=where or self.directory, env=self.env,
                              text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=1500)
        return done.returncode, done.stdout

    def compile_and_run(self, source, name, compiling, linking, where=None):
        (self.directory / name).write_text(source, encoding='utf-8')
        program = self.directory / 'program'
        code, output = self.run('gcc', *CFLAGS, *compiling, '-I.', name, *linking,
                                '-o', program, '-pthread')
        return (code, output) if code else self.run(program, where=where)

    def check(self, what, code, output, expected):
        if code == 0 and (expected is None or matches(expected, output)):
            print(f'ok      {self.title}: {what}')
            self.passed += 1
            return
        print(f'FAILED  {self.title}: {what}, exit code {code}:\n{output}', end='')
        if expected is not None:
            print(f'expected:\n{expected}', end='')
        self.failed += 1

    def program(self, block, compiled_again):
        where = self.directory
        if compiled_again:
            where = self.directory / f'line {block.line}'
            where.mkdir()
            os.symlink(ROOT / 'tests', where / 'tests')
        linking = self.compiler.linking if 'include "formats/' in block.text else []
        result = self.compile_and_run(block.text, block.name(), [], linking, where)
        self.check(f'program, line {block.line}', *result, block.expected)

    def pieces(self, blocks):
        outside = [b for b in blocks if re.match(r'static|typedef|#', b.text)]
        inside = [b for b in blocks if b not in outside]

        def text(some):
            return ''.join(f'#line {b.line + 1} "{self.title}"\n{b.text}' for b in some)
        source = (PRELUDE + text(outside) +
                  'int main(void) {\n    bags_error err;\n    (void)err;\n' +
                  text(inside) + 'return 0;\n}\n')
        expected = ''.join(b.expected or '' for b in blocks)
        result = self.compile_and_run(
            source, 'pieces.c', ['-Wno-unused', *self.compiler.compiling],
            [self.compiler.implementation, *self.compiler.linking])
        self.check(f'pieces, lines {", ".join(str(b.line) for b in blocks)}',
                   *result, expected)

    def shell(self, block):
        result = self.run('bash', '-euc', block.text)
        self.check(f'shell, line {block.line}', *result, block.expected)

    def cpp(self, block):
        (self.directory / 'program.cc').write_text(block.text, encoding='utf-8')
        program = self.directory / 'program'
        result = self.run('g++', '-std=c++17', *CFLAGS[1:], '-Wold-style-cast',
                          '-Wno-missing-field-initializers', '-I.', 'program.cc',
                          self.compiler.implementation, '-pthread', '-o', program)
        self.check(f'C++, line {block.line}', *(result if result[0] else self.run(program)),
                   block.expected)

    def python(self, block):
        if not (ROOT / 'build/python/bags/_core.abi3.so').exists():
            print(f'skipped {self.title}: python, line {block.line}: build/python is missing')
            return
        if 'torch' in block.text and (os.environ.get('BAGS_QUICK') or self.run(
                '/usr/bin/python3', '-c', 'import torch')[0]):
            print(f'skipped {self.title}: python, line {block.line}: PyTorch')
            return
        result = self.run('env', f'PYTHONPATH={ROOT / "build/python"}', '/usr/bin/python3', '-c',
                          block.text)
        self.check(f'python, line {block.line}', *result, block.expected)

    def all(self, blocks):
        done = set()
        for block in blocks:
            if block.language == 'sh':
                self.shell(block)
            elif block.language == 'python':
                self.python(block)
            elif block.language in ('cmake', 'meson', 'js', 'rust', 'go'):
                continue
            elif block.language == 'cpp':
                self.cpp(block)
            elif block.language != 'c':
                self.check(f'language, line {block.line}', 1,
                           f'unknown: {block.language!r}\n', None)
            elif block.has_main():
                self.program(block, any(b.language == 'sh' and block.name() in b.text
                                        for b in blocks))
            elif block.section not in done:
                done.add(block.section)
                self.pieces([b for b in blocks if b.section == block.section and
                             b.language == 'c' and not b.has_main()])

    def codecs(self, text):
        """Rows of | codec | types | library | copy | link |."""
        for file, copy, link in re.findall(
                r'^\| (\w+\.c) (?:\|[^|\n]*){2}\| ([\w.]*) ?\| (?:`(.*)` )?\|$', text, re.M):
            if f'-DBAGS_WITH_{file[:-2].upper()}=1' not in self.compiler.compiling:
                print(f'skipped {self.title}: {file}: its library is missing')
                continue
            where = self.directory / f'copy of {file}'
            where.mkdir()
            for name in filter(None, ('bags.h', 'formats/codecs.h', f'formats/{file}',
                                      copy and f'formats/{copy}')):
                shutil.copy(ROOT / name, where)
            (where / 'program.c').write_text(
                '#include "codecs.h"\nint main(void) { return bags_version()[0] == 0; }\n')
            result = self.run('gcc', *CFLAGS, *self.compiler.compiling, '-I.', 'program.c', file,
                              self.compiler.implementation, *link.split(), '-o', 'program',
                              where=where)
            self.check(f'a copy of {file}', *result, None)

    def links(self):
        broken = list(broken_links(self.path))
        self.check('links', len(broken), '\n'.join(broken) + '\n', None)


def main():
    paths = [pathlib.Path(name).resolve() for name in sys.argv[1:]] or all_documents()
    passed = failed = 0
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        compiler = Compiler(directory)
        for number, path in enumerate(paths):
            document = Document(path, directory / str(number), compiler)
            text = path.read_text(encoding='utf-8')
            document.links()
            document.codecs(text)
            document.all(blocks_of(text))
            passed += document.passed
            failed += document.failed
    print(f'{passed} passed, {failed} failed')
    sys.exit(failed > 0)


if __name__ == '__main__':
    main()
