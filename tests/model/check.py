#!/usr/bin/python3
"""Check the model shard.pml with SPIN, and the traces of test_power with the model.

    tests/model/check.py [--long] [TEST_POWER]     build/release/tests/core/test_power

- Every configuration is searched completely, without an error.
- Every mutant of the model has an error.
- Every trace is allowed: a call at a place where the model makes none is a failure.
- Every mutant of a trace is refused: it is what the code would do with one fault.
- Every mutant of bags.h makes calls that are refused.
- --long also searches two datapoints with two failures.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE / 'shard.pml'
CC = ['gcc', '-w', '-DSAFETY', '-DNOREDUCE', '-DCOLLAPSE', '-DVECTORSZ=1024', '-DMEMLIM=3000']
CONFIGURATIONS = {
    'POWER, 1 datapoint, 2 failures': ['-DPOWER', '-DN=1'],
    'POWER, 2 datapoints, 1 failure': ['-DPOWER', '-DCRASHES=1'],
    'PAIR': ['-DPAIR', '-DN=1', '-DCRASHES=1'], 'FINALIZE': ['-DFINALIZE'], 'DERIVE': ['-DDERIVE'],
}
LONG = {'POWER, 2 datapoints, 2 failures': ['-DPOWER']}  # two minutes
ONE, TWO = [*CONFIGURATIONS][:2]
# Fault, and where it must be found.
MUTANTS = {
    1: (ONE, 'sync does not sync refs.idx'),
    2: (ONE, 'the record is renamed before refs.bag is synced'),
    3: ('PAIR', 'a lock that another process holds is taken'),
    4: (TWO, 'recovery truncates a complete datapoint'),
    5: ('PAIR', 'refs are written before X.idx'),
    6: ('PAIR', 'a reader compares the record before it opens a file, not after'),
    7: ('FINALIZE', 'a claim looks for the mark before mkdir'),
    8: ('FINALIZE', 'finalize does not list again after its mark'),
    9: ('DERIVE', 'the source is not compared after its Bags were linked'),
    10: ('DERIVE', 'the derived record is renamed before anything is synced'),
    11: ('PAIR', 'a writer removes its X.idx by its path alone'),
}


def run(directory, *words, **more):
    return subprocess.run(words, cwd=directory, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **more)


def build(directory, options, optimize='-O2'):
    """Make ./pan, the program that searches; what went wrong, or ''."""
    made = run(directory, 'spin', '-a', *options, str(MODEL))
    built = run(directory, *CC, optimize, '-o', 'pan', 'pan.c')
    return made.stdout + built.stdout if made.returncode or built.returncode else ''


def pan(directory, **more):
    """The output of the search."""
    return run(directory, './pan', '-E', '-m100000', '-w22', **more).stdout


def errors(output):
    """The number of errors of a search that was complete or found one; -1: it was neither."""
    found = re.search(r'errors: (\d+)', output)
    if not found or ('Search not completed' in output and found[1] == '0') or \
            'max search depth too small' in output:
        return -1
    return int(found[1])


# ---- traces ----

NAMES = 'XB XI RB RI REC DRAFTS DICT'.split()
MARKS = {'crash': 'CRASHED', 'synced': 'SYNCED', 'closed': 'CLOSED', 'closed_no_sync': 'CLOSED',
         'recovered': 'RECOVERED', 'open': 'OPEN', 'open_no_sync': 'OPENLAZY', 'end': 'CRASHED'}


def file_of(name):
    name = name.rsplit('/', 1)[-1]
    if name.startswith('spec.json'):
        return 'REC'
    if name == 'refs.partial':
        return 'DRAFTS'
    stem, ending = name.split('.', 1)
    if ending.startswith('dict'):
        return 'DICT'
    return ('R' if stem == 'refs' else 'X') + ('I' if ending == 'idx' else 'B')


def events(lines):
    """The events of the model: those of all fields, and of a Bag and its .crc, are one."""
    shards = {line.split()[1] for line in lines if re.match(r'link \S+ spec\.json\.partial', line)}
    out = []
    for line in lines:
        words = line.split()
        if len(words) == 1:
            out.append(MARKS[line])
            continue
        call, where, *rest = words
        inside = f'{where}/{rest[0]}'.removeprefix('./') if rest else ''
        if call == 'sync_dir':
            out.append('SYNCDIR' if where in shards else 'SYNCPARENT')
        elif call == 'link' and rest[-1] == 'directory':
            out += ['MKDIR'] if inside in shards else []
        elif call == 'unlink' and inside in shards:
            out.append('RMDIR')
        elif call == 'rename':
            out.append('RENAME' if rest[0].startswith('spec.json') else 'RENAMEDICT')
        elif call in ('link', 'unlink'):
            out.append(f'{call.upper()}({file_of(rest[0])})')
        else:
            out.append(f'{call.upper()}({file_of(where)})')
    return merged(out)


def merged(out):
    """Without repetitions of one event, or of a pair: of X.bag and X.idx, in any order."""
    done = []
    for event in out:
        if done[-1:] == [event]:
            continue
        done.append(event)
        while len(done) >= 4 and done[-4:-2] == done[-2:] and all(
                re.search(r'\((XB|XI)\)', one) for one in done[-2:]):
            del done[-2:]
    return done


def numbers():
    """The number of each event, as the model defines it."""
    text = MODEL.read_text()
    files = {name: int(number) for name, number in re.findall(r'#define (\w+) (\d+)\b', text)}
    calls = re.findall(r'#define (\w+)\(f\) \((\d+) \+ f\)', text)
    return {**files, **{f'{call}({file})': int(first) + files[file]
                        for call, first in calls for file in NAMES}}


def allowed(directory, trace):
    """True if the model can make these calls in this order."""
    known = numbers()
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(known[event] for event in [*trace, 'END']))
        file.flush()
        output = pan(directory, env={**os.environ, 'TRACE': file.name})
    found = errors(output)
    if found < 0:
        raise RuntimeError(output[-2000:])
    return found > 0 and 'assertion violated 0' in output


def without(trace, event, number=0):
    """The trace without an event: its n-th from the end."""
    places = [i for i, one in enumerate(trace) if one == event]
    place = places[-1 - number]
    return trace[:place] + trace[place + 1:]


def swapped(trace, first, second):
    """The trace with two neighbouring events exchanged, the last ones that are."""
    for i in range(len(trace) - 2, -1, -1):
        if trace[i:i + 2] == [first, second]:
            return [*trace[:i], second, first, *trace[i + 2:]]
    raise AssertionError((first, second))


def moved(trace, event, before):
    """The trace with the last `event` moved before the last `before`."""
    place = len(trace) - 1 - trace[::-1].index(event)
    out = trace[:place] + trace[place + 1:]
    target = len(out) - 1 - out[::-1].index(before)
    return [*out[:target], event, *out[target:]]


def faults(traces):
    """What the code would do with one fault each."""
    plain = next(t for t in traces if 'SYNCED' in t and t[-1] == 'CLOSED' and 'CRASHED' not in t
                 and 'OPENLAZY' not in t and t.count('MKDIR') == 1)
    recovery = next(t for t in traces if t[-1] == 'RECOVERED' and 'TRUNCATE(RI)' in t)
    removal = next(t for t in traces if 'UNLINK(REC)' in t)
    return {
        'commit without a sync of X.bag': without(plain, 'SYNC(XB)'),
        'commit before the sync of refs.bag': moved(plain, 'RENAME', 'SYNC(RB)'),
        'commit before the directory is synced': without(plain, 'SYNCDIR', 1),
        'close before the name is on the disk': without(plain, 'SYNCDIR'),
        'the journals are removed before the commit': moved(plain, 'UNLINK(XI)', 'RENAME'),
        'sync without refs.idx': without(plain, 'SYNC(RI)'),
        'sync without the name of the shard': without(plain, 'SYNCPARENT', 1),
        'flush writes refs.idx before refs.bag': swapped(plain, 'WRITE(RB)', 'WRITE(RI)'),
        'flush writes X.idx before X.bag': swapped(plain, 'WRITE(XB)', 'WRITE(XI)'),
        'the record is created after the Bags': moved(plain, 'LINK(REC)', 'LINK(XI)'),
        'the record is not synced': without(plain, 'SYNC(REC)', 1),
        'recovery does not truncate refs.idx': without(recovery, 'TRUNCATE(RI)'),
        'removal begins with the record': moved(removal, 'UNLINK(REC)', 'UNLINK(RI)'),
    }


# ---- mutants of the code ----

ROOT = HERE.parent.parent
# A fault of bags.h: what is replaced, and by what.
CODE = {
    'the directory is not synced before the commit': (
        """    if (!failure->code && !no_sync)
        bagi_sync_dir(env, dir->path, failure);
    if (!failure->code && !writer->sharded)""", '    if (!failure->code && !writer->sharded)'),
    'the parents are not synced after the commit': (
        """    if (!no_sync)
        bagi_writer_sync_parents(writer);
""", ''),
    'a sync leaves out the journals': (
        'bagi_writer_each(writer, BAGI_STREAMS, bagi_stream_sync);',
        'bagi_writer_each(writer, BAGI_CONTENT, bagi_stream_sync);'),
    'refs are flushed before the fields': (
        """    bagi_writer_flush_fields(writer);
    bagi_output_flush(&writer->outputs[writer->spec.count]);""",
        """    bagi_output_flush(&writer->outputs[writer->spec.count]);
    bagi_writer_flush_fields(writer);"""),
    'the journals of fields are flushed before their blobs': (
        """BAGI_CONTENT, bagi_stream_flush);
    bagi_outputs_each(writer->outputs, count, BAGI_JOURNAL, bagi_stream_flush);""",
        """BAGI_JOURNAL, bagi_stream_flush);
    bagi_outputs_each(writer->outputs, count, BAGI_CONTENT, bagi_stream_flush);"""),
    'a shard is removed beginning with its fields': (
        'for (size_t i = writer->spec.count + 1; i-- > 0 && remove;)',
        'for (size_t i = 0; i <= writer->spec.count && remove; i++)'),
    'the record is not synced when a shard is claimed': (
        """    if (!no_sync)
        bagi_stream_sync(record);
""", ''),
    'the journals are removed before the commit': (
        """    /* Commit: spec.json.partial becomes spec.json. */
""", """    bagi_writer_each(writer, BAGI_JOURNAL, bagi_stream_remove);
"""),
}


def mutated(directory, program, number, fault):
    """Build test_power with a fault of bags.h; the different traces that it records."""
    old, new = fault
    text = (ROOT / 'bags.h').read_text()
    if text.count(old) != 1:
        raise RuntimeError(f'bags.h has {text.count(old)} times: {old}')
    header = pathlib.Path(directory, f'bags{number}.h')
    header.write_text(text.replace(old, new))
    objects = pathlib.Path(program).resolve().parent
    made = run(directory, 'gcc', '-w', '-O0', '-DBAGS_IMPLEMENTATION', '-o', f'power{number}',
               '-x', 'c', header, '-x', 'none', objects / 'test_power.o',
               *(objects.parent / 'lib').glob('*.o'), '-lcmocka', '-pthread')
    if made.returncode:
        raise RuntimeError(made.stdout)
    return record(pathlib.Path(directory, f'power{number}').resolve())


def record(program):
    """The different traces of test_power, with the name of the first file of each."""
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run([program], env={**os.environ, 'BAGS_TRACES': directory},
                              capture_output=True, text=True, cwd=directory)
        traces = {}
        for path in sorted(pathlib.Path(directory).glob('*.trace')):
            traces.setdefault(tuple(events(path.read_text().splitlines())), path.name)
    return done.returncode, traces


# ---- all ----

def report(name, good, more=''):
    print('ok    ' if good else 'FAILED', name, more, flush=True)
    return good


def model(configurations):
    def search(item):
        name, options = item
        with tempfile.TemporaryDirectory() as directory:
            optimize = '-O2' if name in configurations else '-O0'  # a mutant ends early
            return name, build(directory, options, optimize) or pan(directory)
    work = [*configurations.items()]
    work += [(f'mutant {number}: {why}', [*CONFIGURATIONS[where], f'-DMUTANT={number}'])
             for number, (where, why) in MUTANTS.items()]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, output in pool.map(search, work):
            states = re.search(r'(\S+) states, stored', output)
            count = f'{int(float(states[1])):,} states' if states else output[-500:]
            broken = re.search(r'assertion violated (.*) \(at', output)
            wanted = name in configurations
            good = errors(output) == 0 if wanted else bool(broken)
            yield report(name, good, count if wanted else f'found: {broken[1]}' if broken else count)


def replays(program):
    code, traces = record(program)
    yield report('test_power records traces', code == 0 and len(traces) > 50,
                 f'{len(traces)} different ones')
    with (tempfile.TemporaryDirectory() as directory,
          concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool):
        yield report('the model compiles', not build(directory, ['-DREPLAY', '-DN=1'], '-O1'))
        wrong = faults([list(trace) for trace in traces])
        work = [(f'trace {name}', list(trace), True) for trace, name in traces.items()]
        work += [(f'fault: {name}', trace, False) for name, trace in wrong.items()]
        for (name, trace, wanted), found in zip(
                work, pool.map(lambda w: allowed(directory, w[1]), work)):
            if wanted and found:
                yield True
            else:
                yield report(name, found == wanted, ' '.join(trace) if found or wanted else 'refused')
        # Only the traces that the fault changes are new.
        for number, (name, fault) in enumerate(CODE.items()):
            _, other = mutated(directory, program, number, fault)
            new = [list(trace) for trace in other if trace not in traces]
            refused = next((t for t in new if not allowed(directory, t)), None)
            yield report(f'code: {name}', refused is not None, f'{len(new)} new traces')


def main():
    if subprocess.run(['which', 'spin'], capture_output=True).returncode:
        print('skipped the model: spin not found')
        print('0 passed, 0 failed, 1 skipped')
        return 0
    words = [word for word in sys.argv[1:] if word != '--long']
    program = pathlib.Path(words[0] if words else 'build/release/tests/core/test_power').resolve()
    searched = {**CONFIGURATIONS, **(LONG if '--long' in sys.argv else {})}
    results = [*replays(program), *model(searched)]
    print(f'{sum(results)} passed, {len(results) - sum(results)} failed')
    return not all(results)


if __name__ == '__main__':
    sys.exit(main())
