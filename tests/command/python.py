"""What --for writes for the versions of the Python packages, and the table of it."""
import json
import os
import pathlib
import re

import harness
from harness import each, files, has_codec, pack, read, refuse, run, values, write_lines

VERSIONS = ('bags-0.5', 'granular-0.16', 'granular-0.21', 'granular-0.22')


def _table():
    """The table of the help: {form: cells}; "" has the versions."""
    lines = run('help', 'types').out.decode().split('\n\n')
    head, *rows = next(part for part in lines if part.split()[0] == 'bags').splitlines()
    table = {}
    for row in rows:
        title, *cells = re.split(' {2,}', row)
        table[title] = cells
    packages = head.split()
    table[''] = [f'{name}-{number}' for name, number in zip(packages, table.pop('type'))]
    return table


def the_table_names_the_versions_and_every_type():
    table = _table()
    assert table[''] == list(VERSIONS)
    assert all(len(cells) == 4 for cells in table.values()), table
    text = run('help', 'types').out.decode()
    forms = [form for line in text.split('\n\n')[1].splitlines() if line[0] != ' '
             for form in line.split(', ')]
    assert [form for form in table if form and ':' not in form] == forms


def the_table_is_that_of_the_readme():
    path = pathlib.Path(harness.ROOT, 'formats/README.md')
    section = path.read_text().split('\n## Python\n')[1].split('\n## ')[0]
    rows = [[cell.strip().replace('`', '') for cell in line.strip('|').split('|')]
            for line in section.splitlines() if line.startswith('|')]
    head, rule, *rows = rows
    assert head == ['type', *(name.replace('-', ' ') for name in VERSIONS)], head
    table = _table()
    del table['']
    assert {title: cells for title, *cells in rows} == table
    readme = pathlib.Path(harness.ROOT, 'README.md').read_text()
    assert '](formats/README.md#python)' in readme


def _example(form):
    """A type of this form, and a value."""
    type = form.replace('DTYPE,D0,D1,...', 'float32,2,3').replace('TYPE,ARGUMENTS', 'int,4')
    type = type.replace('TYPE', 'utf8')
    for word, argument in (('N', '2'), ('QUALITY', '90'), ('LEVEL', '3'), ('FPS', '10'),
                           ('CODEC', 'vp9')):
        type = re.sub(rf'\b{word}\b', argument, type)
    name = {'zstd(utf8)': 'utf8', 'zstd(int,4)': 'int'}.get(type, type.split('(')[0])
    value = {'utf8': 'text', 'int': 200, 'u64': 2**64 - 1, 'i64': -3, 'msgpack': {'x': [1]},
             'tree': {'x': [1]}, 'npy': [[1, 2]],
             'array': [[1, 2, 3], [4, 5, 6]]}.get(name, {'base64': 'AAAA'})
    return type, value


@each(VERSIONS)
def every_type_is_stored_as_the_table_says_or_refused(version):
    number = VERSIONS.index(version)
    table = _table()
    for form, cells in table.items():
        if ':' in form or not form:
            continue
        type, value = _example(form)
        if not has_codec(type):
            continue
        says = (cells[number] if cells[number] not in ('yes', '-') else type).replace('QUALITY', '90')
        if says == 'TYPE':  # stored as the type inside is
            inner = {'zstd(utf8)': 'utf8', 'zstd(int,4)': 'int(N)'}[type]
            says = table[inner][number].replace('yes', inner.replace('N', '4'))
        for suffix, rows in (('', [{'x': value}]), ('[]', [{'x': [value, value]}, {'x': []}])):
            out = f'{type}{suffix}'
            options = ['--for', version, '--unchecked']
            if cells[number] == '-' or (suffix and table['sequences: TYPE[]'][number] == '-'):
                said = pack(rows, f'x={type}{suffix}', out, *options, code=2).err
                assert f'field "x": {version} reads no ' in said and out in said, said
                assert ('sequences' in said) == (cells[number] != '-' or bool(suffix) and number == 3)
                assert not os.path.exists(out)
                continue
            pack(rows, f'x={type}{suffix}', out, *options)
            assert read(out)['spec'] == {'x': says + suffix}, (form, says)
            assert os.path.exists(f'{out}/x.idx') == (table['.idx files: --idx'][number] == 'needed')
            pack(rows, f'x={type}{suffix}', 'plain', '--unchecked')
            # The value is the same; of an image or a video, the bytes.
            if isinstance(value, dict):
                same = [run('get', path, '0', 'x' + ('[0]' if suffix else ''), '--raw').out
                        for path in (out, 'plain')]
            else:
                same = [run('get', path, ':', '--lists').out.replace(
                    b'{"dtype": "float32", "list": [[1, 2, 3], [4, 5, 6]]}', b'[[1, 2, 3], [4, 5, 6]]')
                    for path in (out, 'plain')]
            assert same[0] == same[1], (form, same)
            for path in ('plain', out):
                for file in pathlib.Path(path).iterdir():
                    file.unlink()
                os.rmdir(path)


NUMBERS = [0, 1, 127, 128, 200, 255, 256, 32767, 32768, 2**31, 2**32 - 1]


@each(VERSIONS)
def numbers_of_a_fixed_size_are_read_by_the_decoder_of_every_version(version):
    pack([{'n': n} for n in NUMBERS], 'n=int(4)', 'out', '--for', version)
    kept = version == 'bags-0.5'
    assert read('out')['spec'] == {'n': 'int(4)' if kept else 'int'}
    signed = version not in ('bags-0.5', 'granular-0.16')
    for i, n in enumerate(NUMBERS):
        blob = run('get', 'out', i, 'n', '--raw').out
        assert int.from_bytes(blob, 'little', signed=signed) == n, (version, n, blob)
        assert not kept or len(blob) == 4


def a_value_is_checked_as_the_type_of_the_spec():
    pack([{'n': 300}], 'n=int(1)', 'out', '--for', 'granular-0.21', code=1)
    said = pack([{'a': [1, 2]}], 'a=float32(3)', 'out2', '--for', 'granular-0.21', code=1).err
    assert 'field "a"' in said, said
    refuse('pack', write_lines('m', [{'n': {'base64': 'AAA='}}]), 'out3', '--spec', 'n=int(4)',
           '--for', 'granular-0.22', says=('line 1', 'field "n"'))
    run('pack', write_lines('m', [{'n': {'base64': 'yAAAAA=='}}]), 'out4', '--spec', 'n=int(4)',
        '--for', 'granular-0.22')
    assert values('out4') == [{'n': 200}] and files('out4')['n.bag'][:2] == b'\xc8\0'


def an_unknown_version_lists_the_four():
    for name in ('granular-0.23', 'granular', '0.21', 'bags-0.5.1', ''):
        refuse('pack', 'm', 'out', '--for', name, says=', '.join(VERSIONS), code=2)
    refuse('images', 'd', 'out', '--for', 'granular-0.2', says='did you mean "granular-0.21"?', code=2)


def numbers_of_64_bits_that_a_version_does_not_read_are_named_with_another_type():
    said = pack([], 'n=i64', 'out', '--for', 'bags-0.5', code=2).err
    assert 'reads no such type (i64); numbers from 0 can be int: NAME=int' in said, said


def a_type_that_no_version_reads_is_refused():
    for version in VERSIONS:
        said = pack([], 'x=flac', 'out', '--any-type', '--for', version, code=2).err
        assert f'field "x": {version} reads no such type (flac)' in said, said


def an_interrupted_dataset_for_a_version_is_resumed():
    rows = [{'n': n, 'j': {'base64': '/9j/'}} for n in range(5)]
    options = ['--for', 'granular-0.22', '--unchecked', '--shard-length', '2']
    pack(rows, 'n=int(4),j=jpeg(80)', 'whole', *options)
    pack(rows[:3] + ['x'], 'n=int(4),j=jpeg(80)', 'out', *options, code=1)
    pack(rows, 'n=int(4),j=jpeg(80)', 'out', *options, '--resume')
    assert files('out') == files('whole')
    assert read('out')['spec'] == {'j': 'jpg', 'n': 'int'}
    rows[0]['n'] = 7
    said = pack(rows, 'n=int(4),j=jpeg(80)', 'out', *options, '--resume', code=1).err
    assert 'value differs from datapoint 0' in said, said


@each(['--resume', '--append'])
def what_exists_without_idx_files_is_not_continued_for_a_version_that_needs_them(option):
    pack([{'n': 1}], 'n=int', 'out', '--shard-length', '1')
    said = pack([{'n': 1}, {'n': 2}], 'n=int', 'out', '--shard-length', '1', option, '--for',
                'granular-0.22', code=1).err
    assert 'out: has no .idx files; omit --for' in said, said


def a_dataset_without_datapoints_is_refused_for_a_version_that_does_not_read_it():
    for version in VERSIONS[:3]:
        pack([], 'n=int', version, '--for', version)
    said = pack([], 'n=int', 'out', '--for', VERSIONS[3], code=1).err
    assert 'granular-0.22 reads no empty dataset' in said and not os.path.exists('out'), said


def images_and_imports_are_written_for_a_version():
    if not has_codec('jpeg'):
        return
    photos = pathlib.Path(harness.ROOT, 'tests/data/photos')
    os.makedirs('d/china')
    for i, path in enumerate(sorted(photos.glob('*.jpg'))):
        pathlib.Path(f'd/china/{i}.jpg').write_bytes(path.read_bytes())
    run('images', 'd', 'out', '--classes', 'c.txt', '--for', 'granular-0.22')
    assert json.loads(pathlib.Path('out/spec.json').read_text()) == \
        {'image': 'jpg', 'label': 'int', 'path': 'utf8'}
    assert run('get', 'out', '0', 'image', '--raw').out == pathlib.Path('d/china/0.jpg').read_bytes()
    source = pathlib.Path(harness.ROOT, 'tests/data/import/webdataset/samples.tar')
    if 'webdataset' not in run('--version').out.decode():
        return
    run('import', source, 'set', '--type', 'cls=int(4)', '--for', 'granular-0.16')
    spec = read('set')['spec']
    assert spec['jpg'] == 'jpg' and spec['cls'] == 'int', spec
    run('import', source, 'again', '--type', 'cls=int(4)')
    assert run('get', 'set', ':', 'cls').out == run('get', 'again', ':', 'cls').out


def a_bag_is_written_for_a_version():
    for version in VERSIONS:
        run('pack', write_lines('m', [{'blob': {'base64': 'AAAA'}}]), f'{version}.bag', '--for', version)
        assert os.path.exists(f'{version}.idx') == (version == VERSIONS[3])
