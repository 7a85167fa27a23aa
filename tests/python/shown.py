"""Readers as text and HTML; several datapoints at once; columns as sequences; one dtype for integers."""
import base64
import html.parser
import json
import pathlib
import re

import bags
import numpy as np
from run import raises


class _Page(html.parser.HTMLParser):

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.images = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == 'img':
            self.images.append(dict(attributes)['src'])

    def handle_data(self, data):
        self.text.append(data)


HOSTILE = '<script>alert("&amp;\'</script>\n\x1b[2J\u202e'


def readers_show_fields_and_first_images():
    spec = {'im': 'png', 'cams': 'jpeg[]', 'n': 'int(4)', 't': 'utf8', 'a': 'array(float32,3)', 'big': 'array(uint8,100)',
            'deep': 'msgpack', 'no': 'bytes'}
    images = [np.full((8, 9, 3), 40 * i, 'u1') for i in range(6)]
    with bags.DatasetWriter('x', spec) as writer:
        for i in range(6):
            writer.append({'im': images[i], 'cams': images[:i], 'n': i, 't': HOSTILE, 'a': np.arange(3, dtype='f4'),
                           'big': np.zeros(100, 'u1'), 'deep': {'k': HOSTILE}, 'no': HOSTILE.encode()})
    reader = bags.DatasetReader('x')
    shown = repr(reader)
    assert shown.startswith("<bags.DatasetReader 'x', 6 datapoints, ") and ' KB: a array(float32,3), big' in shown and 'n int(4)' in shown
    page = _Page(reader._repr_html_())
    assert set(page.tags) == {'table', 'caption', 'tr', 'th', 'td', 'img'}
    for name, kind in spec.items():
        assert name in page.text and kind in page.text
    assert '72 bytes' in page.text and '600 bytes' in page.text  # of a and big
    assert 'uint8 100' in page.text and '[0.0, 1.0, 2.0]' in page.text and '6 datapoints' in ''.join(page.text)
    blobs = [base64.b64decode(src.removeprefix(f'data:image/{kind};base64,'))
             for src, kind in zip(page.images, 4 * ['jpeg'] + 4 * ['png'], strict=True)]
    raw = bags.DatasetReader('x', None)
    assert blobs == raw[3]['cams'][:0] + [raw[1]['cams'][0], *raw[2]['cams'], raw[3]['cams'][0]] + [
        raw[i]['im'] for i in range(4)]
    assert re.search(r'[\n\x1b\u202e]', ''.join(page.text)) is None
    reader.close()
    assert reader._repr_html_() is None and repr(reader) == "<bags.DatasetReader 'x', closed>"


def hostile_datasets_cannot_inject_html():
    name = '<img src=x onerror="alert(1)">'
    path = f'p{name}'.replace('/', '')
    with bags.DatasetWriter(path, {'f': 'png', 'g': 'jpeg', 'h': 'png'}, {'png': None, 'jpeg': None}) as writer:
        writer.append({'f': b'"><script>alert(1)</script>', 'g': bytes(300_000), 'h': b''})
    spec = pathlib.Path(path, 'spec.json')
    kinds = json.loads(spec.read_text())
    for old, new in (('h', name),):
        for end in '.bag', '.idx', '.crc':
            if pathlib.Path(path, old + end).exists():
                pathlib.Path(path, old + end).rename(pathlib.Path(path, new + end))
        kinds[new] = kinds.pop(old)
    spec.write_text(json.dumps(kinds))
    with bags.DatasetWriter('y', {'n': 'int'}) as writer:
        writer.append({'n': 1})
    for of in path, 'y':
        try:
            reader = bags.DatasetReader(of, {'png': bytes, 'jpeg': bytes, 'int': lambda blob: 1 / 0})
        except ValueError:
            assert of == path  # this name is refused
            continue
        page = _Page(reader._repr_html_())
        assert set(page.tags) <= {'table', 'caption', 'tr', 'th', 'td', 'img'}, page.tags
        assert all(src.startswith('data:image/') for src in page.images)
        repr(reader)
    assert 'division by zero' in ''.join(page.text)
    pathlib.Path('y/n.bag').write_bytes(pathlib.Path('y/n.bag').read_bytes()[:-3])
    reader = bags.DatasetReader('y', no_mmap=True)
    assert 'n int' in repr(reader) and 'y/n.bag' in reader._repr_html_()
    many = {f'field{i}': 'int' for i in range(50)}
    with bags.DatasetWriter('many', many):
        pass
    reader = bags.DatasetReader('many')
    assert repr(reader).endswith('and 30 more>') and 'and 30 more' in reader._repr_html_()


def _write(path='x', count=10, **options):
    kind = bags.ShardedDatasetWriter if options else bags.DatasetWriter
    with kind(path, {'n': 'int(4)', 's': 'int(2)[]', 't': 'utf8', 'w': 'utf8[]', 'a': 'array(float32,2)',
                     'z': 'bytes'}, **options) as writer:
        for i in range(count):
            writer.append({'n': i, 's': list(range(i % 4)), 't': f'é{i}', 'w': ['a'] * (i % 3),
                           'a': np.array([i, -i], 'f4'), 'z': b'%d' % i})
    return bags.DatasetReader(path)


def several_datapoints_are_read_at_once():
    for reader in _write(), _write('sharded', shard_length=3):
        rows = [reader[i] for i in range(10)]
        for index in ([1, 5], [-1, 0, -1], [], np.array([3, 2]), np.array([], 'i4'), np.array([1, -2], 'i1'),
                      [np.int64(4)], slice(None, None, 2), slice(None, None, -1), slice(8, 2, -3), slice(2, 5),
                      slice(7, 100, 2), range(1, 9, 3), range(9, -1, -4), slice(0, 0, 2), range(3, 3, 2)):
            points = list(range(10)[index] if isinstance(index, slice) else index)
            got = reader[index]
            assert list(got) == list(reader.spec)
            for name in got:
                assert list(map(repr, got[name])) == [repr(rows[i][name]) for i in points], (index, name)
            assert reader[index, ('n', 't')] == {'n': got['n'], 't': got['t']}
            assert reader[index, {'n': True, 't': False}] == {'n': got['n']}
        for bad, kind in (([True, False], TypeError), (np.array([True] * 10), TypeError), ([1.0], TypeError),
                          (np.array([1.5]), TypeError), (['n'], TypeError), ([None], TypeError), ([[1]], TypeError),
                          (np.zeros((2, 2), int), TypeError), ([10], IndexError), ([0, -11], IndexError),
                          (range(0, 20, 5), IndexError), (range(3, -2, -1), IndexError), ([np.bool_(True)], TypeError)):
            raises(kind, lambda: reader[bad], says=reader.path)
        raises(KeyError, lambda: reader[[1], ('n', 'no')], says='field "no"')
        raises(TypeError, lambda: reader[[1], {'s': range(2)}], says='True or False')


def columns_are_sequences_of_values():
    for reader in _write(), _write('sharded', shard_length=3), _write('none', 0):
        rows = [reader[i] for i in range(len(reader))]
        for name in reader.spec:
            column = reader.column(name)
            values = list(column)
            assert len(values) == len(column) == len(rows)
            for value, row in zip(values, rows):
                if name in 'tw':
                    assert value == row[name]
                elif name == 'z':
                    assert value == row[name] and type(value) is bytes
                else:
                    assert np.array_equal(value, row[name])
            if name in 'twz':
                assert column.dtype == object and len(column.shape) == 1
                raises(TypeError, np.asarray, column)
            else:
                array = np.asarray(column)
                assert column.dtype == array.dtype and column.shape == array.shape
        assert reader.column('s').shape == (sum(len(row['s']) for row in rows),)
        assert reader.column('w').shape == (sum(len(row['w']) for row in rows),)


def an_int_has_one_dtype_everywhere():
    kinds = {f'n{i}': f'int({i})' for i in (1, 2, 3, 4, 8)} | {'n': 'int', 'big': 'int(4,big)', 'i': 'i64', 'u': 'u64'}
    try:
        bags.DatasetWriter('try', {'big': kinds['big']}).close()
    except ValueError:
        del kinds['big']
    spec = kinds | {f'{name}s': f'{kind}[]' for name, kind in kinds.items()}
    for path, options in ('x', {}), ('y', {'shard_length': 2}):
        with (bags.ShardedDatasetWriter if options else bags.DatasetWriter)(path, spec, **options) as writer:
            for i in range(5):
                writer.append({name: [i, 200] if kind.endswith('[]') else i + 100 for name, kind in spec.items()})
        reader, batch = bags.DatasetReader(path), next(bags.Loader(path, 5, shuffle=False))
        for name, kind in spec.items():
            dtype = np.uint64 if kind.startswith('u64') else np.int64
            column = reader.column(name)
            assert column.dtype == dtype, (name, column.dtype)
            if kind.endswith('[]'):
                assert [part.tolist() for part in column] == [[i, 200] for i in range(5)]
                assert reader.array(2, name).dtype == dtype and reader.array(2, name).tolist() == [2, 200]
                assert reader.array(3, name, range(1, 2)).tolist() == [200]
                assert reader.array(3, name, range(0, 0)).tolist() == []
                assert all(part.dtype == dtype for part in batch[name])
            else:
                assert np.asarray(column).tolist() == [100, 101, 102, 103, 104]
                assert batch[name].dtype == dtype


def ints_that_int64_does_not_hold_are_errors():
    with bags.DatasetWriter('x', {'n': 'int(8)', 's': 'int(8)[]', 'u': 'u64'}) as writer:
        for i in range(3):
            writer.append({'n': 2 ** 63 * (i == 1), 's': [1, 2 ** 64 - 1], 'u': 2 ** 64 - 1})
    reader = bags.DatasetReader('x')
    assert reader[1]['n'] == 2 ** 63 and np.asarray(reader.column('u')).tolist() == [2 ** 64 - 1] * 3
    raises(ValueError, reader.column, 'n', says='x: field "n": datapoint 1: value out of range for int64')
    raises(ValueError, reader.column, 's', says='x: field "s": datapoint 0: item 1: value out of range for int64')
    raises(ValueError, reader.array, 2, 's', says='x: field "s": datapoint 2: item 1: value out of range')
    raises(ValueError, reader.array, 2, 's', range(1, 2), says='x: field "s": datapoint 2: item 1: value out of range')
    assert reader.array(2, 's', range(1)).tolist() == [1]
