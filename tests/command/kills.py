"""Two workers of `bags pack` are killed (SIGKILL) at random moments and started
again with --resume, until both are done; then the dataset must be byte for byte
that of workers that were not killed. Again, until COUNT kills hit the work:

    tests/command/kills.py build/bags COUNT [SEED]

Ends with a count of where the kills hit, and "N passed, 0 failed": N datasets.
"""
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

LINES = 1600
WORKERS = 2
SPEC = ['--spec', 'clip=bytes[],id=int(8),text=utf8']
# In turn: long shards, which are flushed in their middle; and many short ones.
SHARDS = [['--shard-size', '2500K'], ['--shard-size', '300K'],
          ['--shard-length', '25']]


class Trial:
    """One dataset, packed by workers that are killed."""

    def __init__(self, program, out, shards, seconds, seed):
        self.program, self.out, self.shards = program, out, shards
        self.seconds = seconds  # that a worker takes undisturbed
        self.hits = collections.Counter()
        self.faults = []
        self.seeds = [random.Random(f'{seed} {w}') for w in range(WORKERS)]

    def start(self, worker):
        return subprocess.Popen(
            [self.program, 'pack', self.out.parent / 'manifest.jsonl', self.out,
             '--resume', '--shard-start', str(worker),
             '--shard-stop', str(WORKERS), *SPEC, *self.shards],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE)

    def live(self, worker):
        """One life. Whether it came to its end. Lives get longer, so that they
        all end where the machine has become slower."""
        process = self.start(worker)
        longest = self.seconds * (0.8 + sum(self.hits.values()) / 50)
        time.sleep(self.seeds[worker].uniform(0, longest))
        process.send_signal(signal.SIGKILL)
        _, err = process.communicate()
        if process.returncode == -signal.SIGKILL:
            self.hits[where(self.out, worker)] += 1
            return False
        if process.returncode:
            self.faults.append(err.decode('utf-8', 'replace'))
        return True

    def work(self, worker):
        while not self.live(worker):
            pass

    def run(self):
        threads = [threading.Thread(target=self.work, args=(w,))
                   for w in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def idle(hits):
    return hits['before its first shard'] + hits['between shards']


def where(out, worker):
    """What the worker was doing when it was killed, by what it left."""
    shards = sorted(int(p.name) for p in out.glob('*')
                    if int(p.name) % WORKERS == worker) if out.exists() else []
    if not shards:
        return 'before its first shard'
    shard = out / f'{shards[-1]:06}'
    if (shard / 'spec.json').exists():
        journals = list(shard.glob('*.idx'))
        return ('removing journals' if journals else
                'between shards')
    journal = shard / 'refs.idx'
    if not (shard / 'spec.json.partial').exists() or not journal.exists():
        return 'creating a shard'
    for bag in shard.glob('*.bag'):
        if has_table(bag):
            return 'finishing a shard'
    return ('in a shard that was flushed' if journal.stat().st_size else
            'in a shard not yet flushed')


def has_table(bag):
    """Whether something stands behind the last blob of the journal."""
    ends = bag.with_suffix('.idx').read_bytes()
    ends = ends[:len(ends) // 8 * 8]
    size = struct.unpack('<Q', ends[-8:])[0] if ends else 0
    data = bag.read_bytes()
    return len(data) > size and data[size:size + 8] == bytes(8)


def write_manifest(path):
    rng = random.Random(4)
    with open(path, 'w') as file:
        for i in range(LINES):
            clip = [{'base64': 'AAEC' * rng.randrange(60)}
                    for _ in range(rng.randrange(4))]
            text = 'word ' * rng.choice([0, 3, 100, 2000, 14000])
            row = {'id': i, 'clip': clip, 'text': text}
            if 'zstd' in SPEC[1]:
                row['small'] = text[:400]
            print(json.dumps(row), file=file)


def files(path):
    """Of a finished shard the journals that a kill left behind do not count."""
    found = {}
    for each in sorted(path.rglob('*')):
        leftover = (each.suffix == '.idx'
                    and (each.parent / 'spec.json').exists())
        if each.is_file() and not leftover:
            found[str(each.relative_to(path))] = each.read_bytes()
    return found


def differences(trial, expected):
    found = files(trial.out)
    wrong = [name for name in sorted(found.keys() | expected.keys())
             if found.get(name) != expected.get(name)]
    for command in 'finalize', 'verify':
        done = subprocess.run([trial.program, command, trial.out],
                              capture_output=True)
        if done.returncode:
            wrong.append(done.stderr.decode('utf-8', 'replace'))
    return trial.faults + wrong


def undisturbed(program, out, shards):
    """The files as they should be, and the seconds that a worker takes."""
    trial = Trial(program, out, shards, 0, 0)
    start = time.monotonic()
    workers = [trial.start(w) for w in range(WORKERS)]
    for worker in workers:
        _, err = worker.communicate()
        assert worker.returncode == 0, err
    seconds = time.monotonic() - start
    found = files(out)
    shutil.rmtree(out)
    return found, seconds


def kill_until(count, program, directory, seed):
    """The counts of where the kills hit, and of datasets right and wrong."""
    whole = [undisturbed(program, directory / 'out', shards)
             for shards in SHARDS]
    scale = 1  # of the time that a worker took, when the machine was less or more busy
    hits = collections.Counter()
    done = [0, 0]
    # Kills before or after the work would show nothing.
    while sum(hits.values()) - idle(hits) < count:
        turn = sum(done) % len(SHARDS)
        expected, seconds = whole[turn]
        trial = Trial(program, directory / 'out', SHARDS[turn], scale * seconds,
                      f'{seed} {sum(done)}')
        trial.run()
        hits += trial.hits
        kills = sum(trial.hits.values())
        scale *= 1.5 if idle(trial.hits) > kills / 2 else 0.7 if kills < WORKERS else 1
        wrong = differences(trial, expected)
        done[bool(wrong)] += 1
        for text in wrong:
            print('wrong:', *trial.shards, text)
        shutil.rmtree(trial.out)
    return hits, done


def main(program, count, seed='1'):
    parent = '/dev/shm' if os.access('/dev/shm', os.W_OK) else None
    directory = pathlib.Path(tempfile.mkdtemp(prefix='bags-kills-', dir=parent))
    formats = subprocess.run([program, '--version'], check=True, stdout=subprocess.PIPE)
    if b' zstd' in formats.stdout:
        SPEC[1] += ',small=zstd(utf8)'
    try:
        write_manifest(directory / 'manifest.jsonl')
        hits, (passed, failed) = kill_until(int(count), program, directory,
                                            seed)
    finally:
        shutil.rmtree(directory)
    print(f'{sum(hits.values())} kills (seed {seed})')
    for place, number in hits.most_common():
        print(f'{number:6} {place}')
    print(f'{passed} passed, {failed} failed')
    return failed > 0


if __name__ == '__main__':
    sys.exit(main(os.path.realpath(sys.argv[1]), *sys.argv[2:]))
