"""Each option of the command is a parameter of the function with its name, or is listed
here with the parameter or the reason."""
import inspect
import re
import subprocess

import bags
from run import HERE, Skip, raises

_READING = {'check': 'verify_checksums', 'skip-unfinished': 'unfinished', 'live': 'unfinished',
            'cache': 'storage', 'cache-size': 'storage'}
_WRITING = {'idx': 'keep_idx', 'no-sync': 'sync', 'no-checksum': 'checksum', 'shard-stop': 'shard_step'}
_NONE = {
    'json': 'results are objects', 'csv': 'results are objects',
    'worker': 'shard_start and shard_step are passed',
    'dedup': 'only the command compares values while it writes',
    'for': 'only the command converts for older versions: write their types',
    'sync-size': 'flush() and sync() of a writer',
    'lists': 'of JSON lines, which only the command writes', 'npy': 'of JSON lines', 'raw': 'of JSON lines',
    'tokens': 'of Megatron files, which only the command writes'}
_FUNCTIONS = {
    'import': (bags.import_, {**_WRITING, 'from': 'from_'}, 'dedup for sync-size worker'),
    'images': (bags.images, _WRITING, 'dedup for sync-size worker'),
    'export': (bags.export, {**_READING, **_WRITING}, 'lists npy raw tokens worker'),
    'copy': (bags.copy, _READING, ''), 'zip': (bags.zip, {**_READING, **_WRITING}, ''),
    'derive': (bags.derive, {**_READING, **_WRITING, 'split': 'bags.split', 'by': 'bags.split',
                             'stratify': 'bags.split', 'seed': 'bags.split'}, 'worker'),
    'sql': (bags.sql, {**_READING, 'rows': 'bags.sql'}, 'json csv'),
    'stats': (bags.stats, _READING, ''), 'index': (bags.index, {}, ''),
    'verify': (bags.verify, {**_READING, 'live': 'live'}, 'json'),
    'view': (bags.view, {'no-browser': 'browser'}, 'cache cache-size'),
    'recover': (bags.recover, {**_WRITING, 'set': 'values'}, ''),
    'checksum': (bags.checksum, _WRITING, ''), 'finalize': (bags.finalize, {}, ''),
    'diff': (bags.diff, _READING, 'json')}


def _options(command, name):
    said = subprocess.run([command, name, '--help'], capture_output=True, text=True, check=True).stdout
    return dict.fromkeys(re.findall(r'^  --([a-z-]+)', said, re.M))


def _parameters(function):
    """Of the signature, or of the one that a docstring begins with."""
    names = set(inspect.signature(function).parameters)
    first = inspect.getdoc(function).partition('\n\n')[0]
    return names | set(re.findall(r'(\w+)(?==)', first)) if first.startswith(function.__name__ + '(') else names


def every_option_of_the_command_is_a_parameter():
    command = bags.program.command()
    if not command or str(bags.program.HERE) not in command:
        raise Skip('the command was not built')
    for name, (function, others, without) in _FUNCTIONS.items():
        parameters = _parameters(function)
        without = without.split()
        for option in _options(command, name):
            if option in without:
                continue
            same = others.get(option, option.replace('-', '_'))
            found = hasattr(bags, same[5:]) if same.startswith('bags.') else same in parameters
            assert found, f'bags.{function.__name__}: --{option} of `bags {name}` has no parameter'
        for option in without:
            assert option in _options(command, name), (name, option)
            assert option in _NONE or name == 'view', option


def documented_parameters_are_accepted():
    """An unknown option is refused by its name, and a documented one is not."""
    bags.write('x', [{'n': 1}], {'n': 'int'})
    for function, args in ((bags.verify, ['x']), (bags.stats, ['x', 'n']), (bags.sql, ['x', 'SELECT 1']),
                           (bags.export, ['x', 'y.tfrecord']), (bags.import_, ['x.csv', 'y']),
                           (bags.derive, ['x', 'y']), (bags.split, ['x', 'y', {'a': 1}])):
        raises(TypeError, function, *args, bogus=1, says='bogus')
    bags.write('z', [{'n': n} for n in range(5)], {'n': 'int'}, checksum=True)
    assert bags.stats('z', 'n', where='n > 1', rows=[0, 2, 4], verify_checksums=True)['n']['mean'] == [3]
    assert bags.sql('z', 'SELECT max(n) AS n FROM data', verify_checksums=True) == [{'n': 4}]
    assert bags.export('z', 'z.tfrecord', verify_checksums=True, unfinished='skip')['datapoints'] == 5
    bags.index('z', 'n', memory=1 << 20)
    assert bags.DatasetReader('z').index('n').find(3) == [3]
    raises(TypeError, bags.index, 'z', 'n', memory='1', says='memory: ')
    raises(TypeError, bags.stats, 'z', 'n', threads='2', says='threads: ')


def verification_has_threads_and_reads_what_was_flushed():
    spec = {'n': 'int', 't': 'utf8'}
    with bags.ShardedDatasetWriter('x', spec, shard_length=20, checksum=True) as writer:
        for i in range(100):
            writer.append({'n': i, 't': str(i)})
    for jobs in (0, 1, 3, 1000):
        assert bags.verify('x', jobs=jobs, decode=True) == []
    with open('x/000003/n.bag', 'r+b') as file:
        file.write(b'\xff')
    for jobs in (1, 4):
        faults = bags.verify('x', jobs=jobs)
        assert faults and {fault['field'] for fault in faults} == {'n'}, faults
    writer = bags.DatasetWriter('y', spec, checksum=True)
    for i in range(10):
        writer.append({'n': i, 't': str(i)})
    writer.flush()
    assert 'running' in bags.verify('y')[0]['message']
    assert bags.verify('y', live=True) == [] == bags.verify('y', live=True, decode=True, jobs=2)
    with open('y/t.bag', 'r+b') as file:
        file.seek(5)
        file.write(b'\xff')
    fault, = bags.verify('y', live=True)
    assert 'checksum mismatch' in fault['message'], fault
    raises(ValueError, bags.verify, 'y', live=True, quick=True, says='live excludes')
    raises(TypeError, bags.verify, 'y', jobs='2', says='jobs: ')
    writer.close()

    def stop(done, total):
        raise KeyError('enough')
    bags.write('large', [{'a': bytes(1 << 20)}] * 40, checksum=True)
    raises(KeyError, bags.verify, 'large', jobs=4, progress=stop, says='enough')
