"""bags diff and bags card."""
import hashlib
import json
import pathlib
import subprocess

import harness
from harness import each, pack, refuse, run

SPEC = 'id=utf8,n=int(4),s=utf8[]'
ROWS = [{'id': f'k{i}', 'n': i, 's': ['a', 'b'][:i % 3]} for i in range(12)]


def _diff(*words, code):
    """Its output: the exit code 1 means that something differs, and is no failure."""
    done = subprocess.run([harness.PROGRAM, 'diff', *words], capture_output=True,
                          timeout=harness.HANG)
    assert done.returncode == code, (words, done)
    return done.stdout.decode(), done.stderr.decode()


def _changed():
    rows = [dict(row) for row in ROWS]
    rows[4]['n'] = 7
    rows[5]['s'] = ['x']
    del rows[8]
    rows[1], rows[2] = rows[2], rows[1]
    rows.append({'id': 'new "one"', 'n': 1, 's': []})
    return rows


@each([[], ['--shard-length', '5']])
def it_prints_what_differs(options):
    pack(ROWS, SPEC, 'a', *options)
    pack(_changed(), SPEC, 'b')
    lines, said = _diff('a', 'b', '--key', 'id', code=1)
    assert not said and lines.splitlines() == [
        'moved "k1": 1 -> 2', 'moved "k2": 2 -> 1', 'changed "k4": n', 'changed "k5": s',
        'removed "k8"', 'added "new \\"one\\""'], lines
    lines, _ = _diff('a', 'b', '--exact', '--json', code=1)
    assert json.loads(lines) == {
        'added': [], 'removed': [], 'moved': [], 'exact': True,
        'changed': {'id': [1, 2, 8, 9, 10, 11], 'n': [1, 2, 4, 8, 9, 10, 11],
                    's': [1, 2, 5, 8, 9, 10, 11]},
        'fields': {'added': [], 'removed': [], 'type': []}}


def equality_is_said_to_be_probable():
    pack(ROWS, SPEC, 'a')
    pack(ROWS, SPEC, 'b', '--shard-length', '4')
    pack(ROWS, SPEC, 'c', '--no-checksum')
    assert 'probability' in _diff('a', 'b', code=0)[1]
    assert _diff('a', 'b', '--exact', code=0) == ('', '')
    assert _diff('a', 'c', code=0) == ('', '')
    assert json.loads(_diff('a', 'b', '--json', code=0)[0])['exact'] is False


def fields_that_one_has_are_listed():
    pack(ROWS, SPEC, 'a')
    run('derive', 'a', 'b', '--rename', 's=a b', '--drop', 'n')
    assert _diff('a', 'b', code=1)[0].splitlines() == [
        'field added: "a b"', 'field removed: n', 'field removed: s']


def an_error_is_2():
    pack(ROWS, SPEC, 'a')
    pack(ROWS + ROWS[:1], SPEC, 'twice')
    for words, says in ((('a', 'none'), 'none: '), (('a', 'a', '--key', 'x'), '"x"'),
                        (('a', 'twice', '--key', 'id'), 'twice: field "id": datapoint 12'),
                        (('a',), 'expected A B'), (('a', 'a', '--no'), '--no')):
        out, said = _diff(*words, code=2)
        assert not out and says in said, said


# ---- card ----

def _card(path):
    card = run('card', path).json
    found = {f['contentUrl']: f for f in card['distribution']}
    return card, found


@each([[], ['--shard-length', '5']])
def a_card_lists_every_file_with_its_hash(options):
    pack(ROWS, SPEC, 'a', *options)
    run('index', 'a', 'id')
    pathlib.Path('a/README.md').write_text('x')
    card, found = _card('a')
    files = {str(p.relative_to('a')): p.read_bytes()
             for p in pathlib.Path('a').rglob('*') if p.is_file() and p.name != 'README.md'}
    assert found.keys() == files.keys()
    for name, content in files.items():
        assert found[name]['sha256'] == hashlib.sha256(content).hexdigest(), name
        assert found[name]['contentSize'] == f'{len(content)} B'
        assert found[name]['@type'] == 'cr:FileObject'
    assert card['conformsTo'] == 'http://mlcommons.org/croissant/1.1'
    assert card['@type'] == 'sc:Dataset' and card['name'] == 'a'
    (records,) = card['recordSet']
    types = {f['name']: (f['dataType'], f.get('arrayShape')) for f in records['field']}
    assert types == {'id': ('sc:Text', None), 'n': ('sc:Integer', None), 's': ('sc:Text', '-1')}
    sources = [f['source']['fileObject'] for f in records['field']]
    for source in sources:
        for one in source if isinstance(source, list) else [source]:
            assert one['@id'] in files


def info_states_what_files_do_not():
    pack(ROWS, SPEC, 'a', '--shard-length', '5')
    about = {'name': 'My set', 'description': 'of "birds"', 'license': 'mit',
             'url': 'https://example.org', 'datePublished': '2026-01-02',
             'creator': {'@type': 'Person', 'name': 'N'}, 'keywords': ['a', 'b']}
    pathlib.Path('a/000000/info.json').write_text(json.dumps(about))
    done = run('card', 'a')
    assert not done.err
    for name, value in about.items():
        assert done.json[name] == value
    head = run('card', 'a', '--readme').out.decode()
    assert head.startswith('---\npretty_name: "My set"\nlicense: "mit"\n')
    pathlib.Path('a/000000/info.json').write_text('[1]')
    refuse('card', 'a', says='info.json: not a JSON object')
    pathlib.Path('a/000000/info.json').write_text('{"name": 3}')
    refuse('card', 'a', says='info.json: "name" is not a string')


def the_head_of_a_readme_has_all_types():
    spec = 'a=float32(2,3),b=float32(-1),c=bool,d=uint8(4)[],e=bytes,f=int(2),g=float64[]'
    row = {'a': [[1, 2, 3]] * 2, 'b': [1], 'c': True, 'd': [[1, 2, 3, 4]], 'f': 3, 'g': [2],
           'e': {'base64': 'AA=='}}
    pack([row], spec, 'a')
    lines = run('card', 'a', '--readme').out.decode().split('  features:\n')[1].split('  splits')[0]
    assert lines == '''  - name: "a"
    dtype:
      array2_d:
        shape:
        - 2
        - 3
        dtype: float32
  - name: "b"
    sequence: float32
  - name: "c"
    dtype: bool
  - name: "d"
    sequence:
      sequence: uint8
  - name: "e"
    dtype: binary
  - name: "f"
    dtype: int64
  - name: "g"
    sequence: float64
''', lines


def a_hash_covers_files_of_any_size():
    for size in (0, 1, 55, 56, 63, 64, 65, 119, 128, 262144, 262145, 700001):
        pathlib.Path('x').write_bytes(bytes(i * 7 % 251 for i in range(size)))
        pack([{'x': {'file': 'x'}}], 'x=bytes', f'd{size}')
        data = pathlib.Path(f'd{size}/x.bag').read_bytes()
        assert _card(f'd{size}')[1]['x.bag']['sha256'] == hashlib.sha256(data).hexdigest()
