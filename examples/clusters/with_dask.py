#!/usr/bin/python3
"""Pack a manifest with tasks of Dask, then load it with others:

    with_dask.py pack birds.jsonl birds 'name=utf8' 8
    with_dask.py load birds 3

The tasks run the command. SCHEDULER is the address of a cluster, whose nodes share the
paths; without it, processes of this computer run them. A task that fails, or whose
process is killed, runs again, and continues by --resume."""
import os
import subprocess
import sys

import distributed


def run(words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f'exit code {done.returncode}')
    return done.stdout


def pack(manifest, out, spec, workers):
    return [['bags', 'pack', manifest, out, '--spec', spec, '--resume',
             '--shard-start', str(i), '--shard-stop', workers]
            for i in range(int(workers))]


def load(out, ranks):
    return [['bags', 'load', out, '--epochs', os.environ.get('EPOCHS', '1'), '--digest',
             '--rank', str(i), '--ranks', ranks] for i in range(int(ranks))]


def main():
    tasks = {'pack': pack, 'load': load}[sys.argv[1]](*sys.argv[2:])
    address = os.environ.get('SCHEDULER')
    with distributed.Client(address) if address else distributed.Client(
            n_workers=len(tasks), threads_per_worker=1, dashboard_address=None) as client:
        # Without pure=False, tasks with equal words would run once.
        done = client.map(run, tasks, retries=3, pure=False)
        for line in client.gather(done):
            print(line, end='')


if __name__ == '__main__':
    main()
