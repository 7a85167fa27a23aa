"""python -m bags: the command of the package, and what serves without one."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import bags
from run import Skip

PACKAGE = pathlib.Path(bags.__file__).parent


def _run(*words, code=0, package=PACKAGE.parent, path='/nowhere'):
    """Run the module in an interpreter of its own; what it writes to both outputs."""
    done = subprocess.run([sys.executable, '-m', 'bags', *map(str, words)], text=True, timeout=600,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={**os.environ, 'PYTHONPATH': str(package), 'PATH': path})
    assert done.returncode == code, (words, done)
    return done.stdout, done.stderr


def _without_command():
    """A copy of the package that was built without the command."""
    shutil.copytree(PACKAGE, 'package/bags', ignore=shutil.ignore_patterns('command'),
                    dirs_exist_ok=True)
    return pathlib.Path('package').resolve()


def _write():
    bags.write('x', [{'n': i, 't': f'name {i}'} for i in range(50)], {'n': 'int', 't': 'utf8'},
               shard_length=20)


def every_subcommand_works():
    if not (PACKAGE / 'command' / 'bags').exists():
        raise Skip('the command was not built')
    _write()
    listed, said = _run()
    assert said == ''
    names = re.findall(r'^  (?!bags)([a-z]+) ', listed, re.M)
    assert len(names) > 15 and {'info', 'import', 'export', 'view', 'derive', 'sql'} <= set(names)
    for name in names:
        assert f'bags {name}' in _run('help', name)[0], name
    assert _run('--version')[0].split('\n')[0] == f'bags {bags.__version__}'
    assert '50 datapoints' in _run('info', 'x')[0]
    assert json.loads(_run('get', 'x', '3')[0]) == {'n': 3, 't': 'name 3'}
    _run('derive', 'x', 'y', '--where', 'n < 10')
    with bags.DatasetReader('y') as reader:
        assert len(reader) == 10
    said = _run('verfy', 'x', code=2)[1]
    assert 'verfy' in said and said.count('\n') == 1


def without_the_command_the_functions_serve():
    _write()
    package = _without_command()

    def run(*words, code=0):
        return _run(*words, code=code, package=package)
    listed = run()[0]
    for name in ('info', 'get', 'verify', 'recover', 'checksum', 'finalize', 'index', 'zip', 'diff'):
        assert re.search(rf'^    {name} +\w', listed, re.M), (name, listed)
    assert run('--version')[0] == f'bags {bags.__version__}\n'
    assert '"datapoints": 50' in run('info', 'x')[0]
    assert "'t': 'name 7'" in run('get', 'x', 7)[0]
    assert 'out of range' in run('get', 'x', 50, code=1)[1]
    assert run('index', 'x', 'n')[0] == '' and bags.DatasetReader('x').index('n').find(7) == [7]
    assert '"made": 9' in run('checksum', 'x')[0] and run('verify', 'x')[0] == ''
    assert run('finalize', 'x')[0].strip() == '0'
    run('zip', 'x', 'x.zip')
    assert '"finished_before": 3' in run('recover', 'x')[0]
    for name in ('import', 'view', 'sql'):
        said = run(name, 'x', code=1)[1]
        assert said.startswith(f'bags: {name}: ') and said.count('\n') == 1, said
    assert "'nonsense'" in run('nonsense', code=2)[1]
    for words, says in ((('stats', 'x', 't'), 'bags: x: field "t": '), (('stats', 'x', 'no'), 'bags: x: field "no": ')):
        said = run(*words, code=1)[1]
        assert said.startswith(says) and said.count('\n') == 1, said
    assert "'one'" in run('get', 'x', 'one', code=2)[1]
    os.truncate('x/000000/t.bag', 3)
    assert 't.bag' in run('verify', 'x', code=1)[1]


def an_installed_command_serves_but_not_the_script_that_asks_for_it():
    package = _without_command()
    os.makedirs('scripts')
    os.makedirs('programs')
    script = pathlib.Path('scripts/bags')
    script.write_text(f'#!{sys.executable}\nfrom bags.__main__ import main\nmain()\n')
    script.chmod(0o755)
    assert 'functions of the package' in _run(package=package, path=os.path.abspath('scripts'))[0]
    echo = shutil.which('echo')
    shutil.copy(echo, 'programs/bags')
    path = f'{os.path.abspath("scripts")}:{os.path.abspath("programs")}'
    assert _run('import', 'x', package=package, path=path)[0] == 'import x\n'


def the_version_is_that_of_the_library():
    header = pathlib.Path(__file__).parents[2] / 'bags.h'
    assert bags.__version__ == re.search(r'define BAGS_VERSION "(.*)"', header.read_text())[1]
