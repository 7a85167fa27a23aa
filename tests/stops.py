#!/usr/bin/python3
"""Run a command while its processes are stopped at random, each for 0.1 to 3 seconds, as on
a machine that is too busy:

    tests/stops.py SEED make test

No test may fail of it. Needs Linux, root and the freezer of control groups; signals would
continue what tests stop themselves. The exit code is that of the command.
"""
import os
import pathlib
import random
import subprocess
import sys
import threading
import time

V1 = pathlib.Path('/sys/fs/cgroup/freezer')
TOGETHER = 2  # processes that are stopped at the same time


def below(root):
    """The processes that a process has started, and what those have started."""
    children = {}
    for entry in pathlib.Path('/proc').glob('[0-9]*'):
        try:
            parent = int((entry / 'stat').read_text().rpartition(')')[2].split()[1])
        except (OSError, ValueError):
            continue  # it has ended
        children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def put(path, text):
    try:
        path.write_text(str(text))
    except OSError:
        pass  # the process has ended


def stop_at_random(group, chance, job, count):
    frozen, home = group, group.parent
    file, on, off = ('freezer.state', 'FROZEN', 'THAWED') if home == V1 else \
        ('cgroup.freeze', 1, 0)
    frozen.mkdir(exist_ok=True)
    while job.poll() is None:
        put(frozen / 'cgroup.procs', chance.choice(below(job.pid)))
        put(frozen / file, on)
        time.sleep(chance.uniform(0.1, 3))
        put(frozen / file, off)
        for pid in (frozen / 'cgroup.procs').read_text().split():
            put(home / 'cgroup.procs', pid)
        count.append(1)
    frozen.rmdir()


def main():
    seed, *command = sys.argv[1:]
    home = V1 if V1.is_dir() else pathlib.Path('/sys/fs/cgroup')
    job, count = subprocess.Popen(command), []
    threads = [threading.Thread(target=stop_at_random, args=(
        home / f'stops-{os.getpid()}-{i}', random.Random(f'{seed} {i}'), job, count))
        for i in range(TOGETHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f'{len(count)} stops')
    sys.exit(job.returncode)


main()
