#!/usr/bin/python3
"""The scripts of examples/clusters, with the engines that are installed: eight workers, of
which one is killed and starts again, pack a dataset; it is verified, and three ranks load
it. Prints the log of each.

    tests/command/clusters.py build/release/bags [slurm mpi parallel dask]

Slurm is a cluster of one node, which this script starts and stops."""
import contextlib
import glob
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / 'examples/clusters'
WORKERS, RANKS, LENGTH = 8, 3, 240_000
SPEC = 'n=int(4),text=utf8'
SYSTEM_PATH = os.environ['PATH'] + ':/usr/sbin'
KILLED = 3  # this worker, once


HANG = 600  # seconds


class Skipped(Exception):
    pass


class TooFast(Exception):
    """Where this script is stopped while the others are not; they are started again."""


def needs(*programs):
    for program in programs:
        if not shutil.which(program, path=SYSTEM_PATH):
            raise Skipped(f'{program} not found')


def writers(directory):
    """The processes that have a file open below a directory: this test started them."""
    found = set()
    for link in glob.glob('/proc/[0-9]*/fd/*'):  # passes over what ends meanwhile
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith(f'{directory}/'):
                found.add(int(link.split('/')[2]))
    return found


def kill_worker(dataset, process):
    """Kill the worker when it has written some of its shard."""
    shard = dataset / f'{KILLED:06}'
    until = time.monotonic() + HANG
    while time.monotonic() < until:
        # More than is written between two flushes.
        text = shard / 'text.bag'
        begun = text.exists() and text.stat().st_size > 1 << 21
        pids = writers(shard) if begun else set()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while pids & writers(shard) and time.monotonic() < until:
            time.sleep(0.01)
        if (shard / 'spec.json').exists():
            raise TooFast('worker 3 was too fast to be killed')
        if pids:
            return
        assert process.poll() is None, 'it ended too early'
    raise AssertionError('worker 3 did not start')


def lines_of(dataset):
    done = subprocess.run(['bags', 'get', dataset, ':', 'n'], check=True,
                          capture_output=True)
    return sorted(json.loads(line)['n'] for line in done.stdout.splitlines())


def check_packed(dataset):
    """All of it, each datapoint once, in one shard per worker."""
    print(subprocess.run(['bags', 'verify', dataset], check=True, capture_output=True,
                         text=True).stdout, end='')
    assert sorted(os.listdir(dataset)) == [f'{i:06}' for i in range(WORKERS)]
    assert lines_of(dataset) == list(range(LENGTH))


def check_loaded(dataset, text):
    """The digests of the ranks add up to those of one process."""
    alone = subprocess.run(['bags', 'load', dataset, '--digest'], check=True,
                           capture_output=True, text=True).stdout
    batches = {}
    for line in filter(lambda line: line.startswith('{'), text.splitlines()):
        one = json.loads(line)
        batches.setdefault(one['batch'], []).append(int(one['digest'], 16))
    assert all(len(digests) == RANKS for digests in batches.values())
    expected = {one['batch']: int(one['digest'], 16)
                for one in map(json.loads, alone.splitlines())}
    assert expected == {i: sum(d) % 2**64 for i, d in batches.items()}


def environment(dataset, manifest):
    return {**os.environ, 'MANIFEST': str(manifest), 'OUT': str(dataset), 'SPEC': SPEC}


def run_script(dataset, manifest, pack, load, **more):
    """A script that waits: kill one worker, and let it start again."""
    env = {**environment(dataset, manifest), **more}
    log = dataset.with_name('log')
    with open(log, 'wb') as out:
        process = subprocess.Popen(list(map(str, pack)), env=env, stdout=out, stderr=out)
    try:
        kill_worker(dataset, process)
        assert process.wait(HANG) == 0
    finally:
        process.kill()
        process.wait()
        print(log.read_text(), end='')
    assert 'that existed' in log.read_text(), 'the killed worker did not continue'
    check_packed(dataset)
    check_loaded(dataset, subprocess.run(list(map(str, load)), env=env, check=True,
                                         capture_output=True, text=True).stdout)


def mpi(directory, manifest):
    needs('mpirun')
    run_script(directory / 'ds', manifest, [SCRIPTS / 'mpi.sh', 'pack', WORKERS],
               [SCRIPTS / 'mpi.sh', 'load', RANKS],
               MPIRUN='mpirun --oversubscribe --allow-run-as-root')


def parallel(directory, manifest):
    needs('parallel')
    run_script(directory / 'ds', manifest, [SCRIPTS / 'parallel.sh', 'pack', WORKERS],
               [SCRIPTS / 'parallel.sh', 'load', RANKS])


def dask(directory, manifest):
    if subprocess.run(['/usr/bin/python3', '-c', 'import distributed'],
                      stderr=subprocess.DEVNULL).returncode:
        raise Skipped('python3-distributed not found')
    script = ['/usr/bin/python3', SCRIPTS / 'with_dask.py']
    dataset = directory / 'ds'
    run_script(dataset, manifest, [*script, 'pack', manifest, dataset, SPEC, WORKERS],
               [*script, 'load', dataset, RANKS])


class Slurm:
    """munged, slurmctld and slurmd, with their files in a directory."""

    def __init__(self, directory):
        self.directory = directory
        self.daemons = []
        host = socket.gethostname().split('.')[0]
        with socket.socket() as one, socket.socket() as other:
            one.bind(('127.0.0.1', 0))
            other.bind(('127.0.0.1', 0))
            ports = one.getsockname()[1], other.getsockname()[1]
        munge = directory / 'munge'
        munge.mkdir(mode=0o755)
        (munge / 'key').write_bytes(os.urandom(1024))
        (munge / 'key').chmod(0o600)
        for name in ('state', 'spool'):
            (directory / name).mkdir()
        config = directory / 'slurm.conf'
        config.write_text(f'''ClusterName=bags
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={munge}/socket
CryptoType=crypto/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=requeue_delay=1
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
''')
        os.environ['SLURM_CONF'] = str(config)
        self.start('munged', '--force', '--foreground', f'--key-file={munge}/key',
                   f'--socket={munge}/socket', f'--pid-file={munge}/pid',
                   f'--log-file={munge}/log', f'--seed-file={munge}/seed')
        self.wait(lambda: (munge / 'socket').exists())
        self.start('slurmctld', '-D', '-f', config)
        self.start('slurmd', '-D', '-f', config)
        self.wait(lambda: 'idle' in self.ask('sinfo', '--noheader', '-o', '%T'))

    def start(self, *words):
        program = shutil.which(words[0], path=SYSTEM_PATH)
        with open(self.directory / f'{words[0]}.out', 'wb') as out:
            self.daemons.append(subprocess.Popen(
                [program, *map(str, words[1:])], stdout=out, stderr=out))

    def ask(self, *words):
        return subprocess.run(list(map(str, words)), capture_output=True,
                              text=True).stdout

    def wait(self, ready):
        until = time.monotonic() + HANG
        while not ready():
            assert time.monotonic() < until, 'Slurm does not get on'
            assert all(one.poll() is None for one in self.daemons), 'a daemon ended'
            time.sleep(.2)

    def poll(self):
        return None

    def finish(self):
        """Wait until no job is left. A requeued one would wait for two minutes; but what
        starts at once is refused, since the credential of its first run was revoked."""
        seen = {}

        def done():
            jobs = self.ask('squeue', '--noheader', '-o', '%A %T %r').splitlines()
            for job in jobs:
                number, state, reason = job.split(' ', 2)
                waits = state == 'PENDING' and reason == 'BeginTime'
                if waits and time.time() - seen.setdefault(number, time.time()) > 3:
                    self.ask('scontrol', 'update', f'JobId={number}', 'StartTime=now')
            return not jobs
        self.wait(done)

    def stop(self):
        for one in reversed(self.daemons):
            one.terminate()
        for one in self.daemons:
            one.wait()
        os.environ.pop('SLURM_CONF')


def slurm(directory, manifest):
    needs('sbatch', 'srun', 'munged')
    if os.getuid():
        raise Skipped('not root, which starts the daemons')
    dataset = directory / 'ds'
    env = environment(dataset, manifest)
    cluster = Slurm(directory)
    try:
        env['SLURM_CONF'] = os.environ['SLURM_CONF']
        script = SCRIPTS / 'slurm.sh'
        subprocess.run(['sbatch', f'--array=0-{WORKERS - 1}', '-o',
                        directory / 'pack.%a', script], env=env, check=True)
        kill_worker(dataset, cluster)
        cluster.finish()
        for log in sorted(directory.glob('pack.*')):
            print(log.read_text(), end='')
        killed = (directory / f'pack.{KILLED}').read_text()
        assert 'that existed' in killed, 'the killed worker did not continue'
        check_packed(dataset)
        subprocess.run(['sbatch', f'--ntasks={RANKS}', '-o', directory / 'load', script],
                       env=env, check=True)
        cluster.finish()
        check_loaded(dataset, (directory / 'load').read_text())
        # The script itself is none of the tasks.
        print(subprocess.run(
            ['sbatch', '--wait', '--ntasks=3', '-o', directory / 'script', '--wrap',
             f'bags load {dataset} --worker auto || true'], env=env, check=True,
            capture_output=True, text=True).stdout, end='')
        assert 'is the script of the batch job' in (directory / 'script').read_text()
    except Exception:
        print(cluster.ask('squeue'))
        for log in (*directory.glob('*.log'), *directory.glob('pack.*')):
            print(log.name, log.read_text()[-3000:], sep='\n')
        raise
    finally:
        cluster.stop()


def attempt(engine):
    """In a directory of its own; again where the worker was too fast."""
    for tries in range(8):
        directory = pathlib.Path(tempfile.mkdtemp(prefix='bags-clusters-'))
        try:
            manifest = directory / 'm.jsonl'
            with open(manifest, 'w', encoding='ascii') as out:
                for i in range(LENGTH):
                    out.write(f'{{"n": {i}, "text": "{"word " * 40}{i}"}}\n')
            return engine(directory, manifest)
        except TooFast:
            if tries == 7:
                raise
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    engines = [slurm, mpi, parallel, dask]
    chosen = sys.argv[2:] or [one.__name__ for one in engines]
    counts = {'passed': 0, 'failed': 0, 'skipped': 0}
    os.environ['PATH'] = f'{program.parent}:{os.environ["PATH"]}'
    for engine in engines:
        if engine.__name__ not in chosen:
            continue
        begun = time.time()
        try:
            attempt(engine)
            result = 'passed'
        except Skipped as reason:
            result = 'skipped'
            print(f'skipped {engine.__name__}: {reason}')
        except Exception as fault:
            result = 'failed'
            print(f'FAILED {engine.__name__}: {fault!r}')
        counts[result] += 1
        print(f'{result} {engine.__name__}, {time.time() - begun:.0f} s', flush=True)
    print(', '.join(f'{count} {name}' for name, count in counts.items()
                    if count or name != 'skipped'))
    sys.exit(counts['failed'] > 0)


main()
