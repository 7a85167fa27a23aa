#!/usr/bin/env python3
"""Pack a manifest with eight tasks of Ray. Not run here: no test covers it.

    with_ray.py birds.jsonl birds 'name=utf8' 8

The tasks run the command; the nodes share the paths. A task that fails, or whose node
does, runs again, and continues by --resume."""
import subprocess
import sys

import ray


@ray.remote(num_cpus=1, max_retries=3, retry_exceptions=True)
def pack(manifest, out, spec, worker, workers):
    words = ['bags', 'pack', manifest, out, '--spec', spec, '--resume',
             '--shard-start', str(worker), '--shard-stop', str(workers)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f'exit code {done.returncode}')
    return done.stdout


def main():
    manifest, out, spec, workers = sys.argv[1:]
    ray.init()
    done = [pack.remote(manifest, out, spec, i, int(workers)) for i in range(int(workers))]
    for line in ray.get(done):
        print(line, end='')


if __name__ == '__main__':
    main()
