"""Completion in bash and zsh themselves, at a terminal."""
import os
import pathlib
import select
import shutil
import subprocess
import time

import harness
from harness import each, run

SETUP = {
    'bash': (['bash', '--norc', '--noprofile', '-i'],
             'bind "set bell-style none"; source ./completion\n'),
    'zsh': (['zsh', '-f', '-i'],
            'fpath=($PWD $fpath); autoload -U compinit; compinit -u -D\n'),
}


def _start(shell):
    """A shell at a terminal, whose `bags` writes its words to a file; or None."""
    words, setup = SETUP[shell]
    if not shutil.which(shell):
        print(f'skipped: {shell} is not installed')
        return None
    try:
        master, slave = os.openpty()
    except OSError:
        print('skipped: no pseudo-terminals on this machine')
        return None
    name = 'completion' if shell == 'bash' else '_bags'
    pathlib.Path(name).write_bytes(run('help', shell).out)
    os.makedirs('bin', exist_ok=True)
    os.symlink(harness.PROGRAM, 'bin/bags')
    job = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                           env=dict(os.environ, TERM='dumb', PS1='$ ', HOME=os.getcwd(),
                                    PATH=f'{os.getcwd()}/bin:{os.environ["PATH"]}'))
    os.close(slave)
    os.write(master, setup.encode())
    os.write(master, b'bags() { printf "%s\\n" "$@" >new; mv new words; }; touch ready\n')
    return job, master


def _wait_for(path, master, seen):
    end = time.monotonic() + harness.HANG
    while not os.path.exists(path):
        assert time.monotonic() < end, seen
        if select.select([master], [], [], 0.02)[0]:
            seen += os.read(master, 4096)


def _complete(shell, lines):
    """The words with which bags is called when these lines are typed."""
    started = _start(shell)
    if not started:
        return None
    job, master = started
    seen, found = bytearray(), []
    try:
        _wait_for('ready', master, seen)
        for line in lines:
            os.write(master, line.encode() + b'\n')
            _wait_for('words', master, seen)
            found.append(pathlib.Path('words').read_text().splitlines())
            os.remove('words')
    finally:
        job.kill()
        job.wait()
        os.close(master)
    return found


LINES = [
    ('bags pa\t', ['pack']),
    ('bags --ver\t', ['--version']),
    ('bags help check\t', ['help', 'checksum']),
    ('bags info only\t', ['info', 'only one.bag']),
    ('bags info "only\t', ['info', 'only one.bag']),
    ('bags info only\\ o\t', ['info', 'only one.bag']),
    ('bags verify deep/in\t', ['verify', 'deep/inner dir/']),
    ('bags verify x only\t', ['verify', 'x', 'only one.bag']),
    ('bags get only\t 0:3 only\t', ['get', 'only one.bag', '0:3', 'only']),
    ('bags get only\t only\t', ['get', 'only one.bag', 'only']),
    ('bags pack m.j\t out --fo\t granular-0.1\t', ['pack', 'm.jsonl', 'out', '--for', 'granular-0.16']),
    ('bags pack --for=bags\t m.j\t', ['pack', '--for=bags-0.5', 'm.jsonl']),
    ('bags images --classes on\t', ['images', '--classes', 'only one.bag']),
    ('bags images --classes=on\t', ['images', '--classes=only one.bag']),
    ('bags index --mem\t 1M dee\t only\t', ['index', '--memory', '1M', 'deep/', 'only']),
    ('bags sheet --rows 3 --field only\t', ['sheet', '--rows', '3', '--field', 'only']),
    ('bags get x 0 y --js\t --ra\t', ['get', 'x', '0', 'y', '--js', '--raw']),
    ('bags verify --qui\t --dec\t', ['verify', '--quick', '--decode']),
]


@each(list(SETUP))
def words_are_completed(shell):
    os.makedirs('deep/inner dir')
    for name in ('only one.bag', 'm.jsonl'):
        pathlib.Path(name).touch()
    found = _complete(shell, [line for line, _ in LINES])
    if found is None:
        return
    # A directory may be completed with or without its slash.
    wrong = [(line, got, words) for (line, words), got in zip(LINES, found)
             if [word.rstrip('/') for word in got] != [word.rstrip('/') for word in words]]
    assert not wrong, wrong


def every_command_and_option_is_completed():
    def possible(*words):
        return run('help', 'complete', *words).out.decode().split()
    for line in run('help').out.decode().splitlines():
        name = line.split()[0] if line.startswith('  ') and line.split() else ''
        if not name.isalpha() or name in ('help', 'bags'):
            continue
        assert name in possible('') and name in possible('help', '')
        for option in run('help', name).out.decode().split('\n'):
            if option.startswith('  --'):
                assert option.split()[0] in possible(name, '--'), (name, option)
    assert possible('nothing', '') == possible('get', 'x', '') == []
    assert possible('get', '') == possible('images', '--classes', '=', 'x') == ['FILES']
    assert possible('pack', '--for=g') == possible('pack', '--for', 'g') != []
