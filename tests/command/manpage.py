"""The man page, made from the help of the command:

    python3 tests/command/manpage.py build/bags >examples/bags/bags.1
"""
import re
import subprocess
import sys
import textwrap

HEAD = '''.\\" Made from `bags help` by tests/command/manpage.py.
.Dd {date}
.Dt BAGS 1
.Os
.Sh NAME
.Nm bags
.Nd pack, show and unpack machine-learning datasets
.Sh SYNOPSIS
'''
DATE = 'November 22, 2026'


def escaped(text):
    """A line of text as mdoc has it."""
    text = text.replace('\\', '\\e').replace('-', '\\-').replace("'", '\\(aq')
    return '\\&' + text if text.startswith(('.', '\\(aq')) else text


def filled(text):
    """Sentences, each from a new line."""
    sentences = re.split(r'(?<=[\w\])`"]\.) (?=[A-Z`])', text)
    return [escaped(line) for sentence in sentences for line in textwrap.wrap(
        sentence, 76, break_on_hyphens=False, break_long_words=False)]


def parts(text):
    """The usage, the paragraphs, the options and the example lines of a help."""
    head, *rest = text.split('\n\n')
    usage = head.removeprefix('usage: bags ')
    example = rest.pop().splitlines()[1:]
    options = []
    if rest and rest[-1].startswith('  --'):
        for line in rest.pop().splitlines():
            entry = re.match(r'  --(\S+)(?: (\S+))?  +(.*)', line)
            if entry:
                options.append(list(entry.groups()))
            else:
                options[-1][2] += ' ' + line.strip()
    return usage, ' '.join(rest).replace('\n', ' '), options, example


def page(ask):
    """ask(command) is the help of a command; ask() lists them."""
    listing = ask().split('\n\n')
    names = re.findall(r'^  (\w+)  ', listing[2], re.M)
    helps = {name: parts(ask(name)) for name in names if name != 'help'}
    out = [HEAD.format(date=DATE).rstrip()]
    for usage, *_ in helps.values():
        name, _, operands = usage.partition(' ')
        out += ['.Nm', f'.Cm {name}', f'.Li {escaped(operands)}']
    out += ['.Nm', '.Cm help', '.Op Ar command | Cm types', '.Nm',
            '.Fl Fl version', '.Sh DESCRIPTION',
            *filled(listing[3].replace('\n', ' ')), '.Pp', 'The commands are:', '.Bl -tag -width Ds']
    for usage, about, options, _ in helps.values():
        out += [f'.It Cm {usage.split()[0]}', *filled(about)]
        if options:
            out += ['.Bl -tag -width Ds']
            for option, value, words in options:
                out += [f'.It Fl Fl {option}' +
                        (f' Ar {value}' if value else ''), *filled(words)]
            out += ['.El']
    out += ['.It Cm help', 'Print the help of one command, of all, or of the types.',
            '.El', '.Sh TYPES', '.Bd -literal',
            *(escaped(line) for line in ask('types').splitlines()), '.Ed',
            '.Sh EXIT STATUS', *filled(listing[-1].strip()), '.Sh EXAMPLES',
            '.Bd -literal -offset indent']
    for *_, example in helps.values():
        out += [escaped(line.strip()) for line in example]
    return '\n'.join(out + ['.Ed', ''])


def main():
    def ask(*words):
        return subprocess.run([sys.argv[1], 'help', *words], check=True,
                              stdout=subprocess.PIPE).stdout.decode()
    sys.stdout.write(page(ask))


if __name__ == '__main__':
    main()
