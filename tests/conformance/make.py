#!/usr/bin/python3
"""Make the conformance set again: the files that no program wrote, and the manifest.

    tests/conformance/make.py

Writes tests/data/conformance. The expected bytes of golden data are those that their own
manifests state; of the files that are made here, those from which they are made.
"""
import hashlib
import json
import pathlib
import shutil
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / 'data'
HERE = DATA / 'conformance'


def u64(*numbers):
    return struct.pack(f'<{len(numbers)}Q', *numbers)


def ends(blobs):
    total, out = 0, []
    for blob in blobs:
        total += len(blob)
        out.append(total)
    return out


def v1(*blobs):
    return b''.join(blobs) + u64(0, *ends(blobs))


def v2(*blobs):
    return b''.join(blobs) + u64(*ends(blobs))


def uint(number):
    return bytes([number]) if number < 128 else b'\xcc' + bytes([number])


def row(*refs):
    """A row of refs.bag: an index, or (first, count), or [] for each field."""
    out = bytes([0x90 + len(refs)])
    for ref in refs:
        out += uint(ref) if isinstance(ref, int) else \
            bytes([0x90 + len(ref)]) + b''.join(map(uint, ref))
    return out


class Set:
    """The files of a case, by their paths, and what its fields contain."""

    def __init__(self, files, expected=None, why=''):
        self.files, self.expected, self.why = files, expected, why


def good(why, files, **fields):
    return Set(files, fields, why)


def bad(why, files):
    return Set(files, None, why)


SPEC = b'{"s": "utf8[]", "x": "utf8"}'
# Two datapoints: x is "one", "two"; s is ["a", "b"], [].
ONE = {'spec.json': SPEC, 'x.bag': v1(b'one', b'two'), 's.bag': v1(b'a', b'b'),
       'refs.bag': v1(row((0, 2), 0), row((), 1))}
VALUES = {'s': [[b'a', b'b'], []], 'x': [b'one', b'two']}


def changed(**files):
    """The files of ONE, some replaced; None: without it. x_bag is x.bag."""
    out = dict(ONE)
    for name, content in files.items():
        name = name.replace('_', '.', 1)
        out.pop(name, None)
        if content is not None:
            out[name] = content
    return out


def sharded(*shards):
    return {f'{name}/{file}': content for name, files in shards
            for file, content in files.items()}


BAG = v1(b'one', b'', b'three')
CASES = {
    # ---- one Bag ----
    'bag-v1': good('Table with a leading 0; an empty blob.', {'data.bag': BAG},
                   blob=[b'one', b'', b'three']),
    'bag-v2': good('Table without the leading 0.', {'data.bag': v2(b'one', b'three')},
                   blob=[b'one', b'three']),
    'bag-split': good('Ends in NAME.idx.', {'data.bag': b'onethree', 'data.idx': u64(3, 8)},
                      blob=[b'one', b'three']),
    'bag-split-torn': good('The last entry of NAME.idx is torn, and ignored.',
                           {'data.bag': b'onethree', 'data.idx': u64(3, 8)[:-2]}, blob=[b'one']),
    'bag-idx-kept': good('A Bag with its table and the same ends in NAME.idx.',
                         {'data.bag': BAG, 'data.idx': u64(3, 3, 8)},
                         blob=[b'one', b'', b'three']),
    'bag-looks-like-a-table': good('A blob that looks like a table.',
                                   {'data.bag': v1(u64(0, 8), b'')}, blob=[u64(0, 8), b'']),
    'err-bag-1-byte': bad('Shorter than a table.', {'data.bag': b'\0'}),
    'err-bag-table-past-end': bad('The last entry is past the end of the file.',
                                  {'data.bag': b'one' + u64(0, 99)}),
    'err-bag-table-at-end': bad('The last entry leaves no table.',
                                {'data.bag': b'one' + u64(0, 19)}),
    'err-bag-table-misaligned': bad('The size of the table is not a multiple of 8.',
                                    {'data.bag': b'onex' + u64(0, 3)}),
    'err-bag-table-huge': bad('The last entry is 2^64 - 1.', {'data.bag': u64(0, 2**64 - 1)}),
    'err-bag-order': bad('An entry is less than the one before.',
                         {'data.bag': b'onethree' + u64(0, 5, 3, 8)}),
    'err-bag-past-table': bad('An entry in the middle is past the table.',
                              {'data.bag': b'onethree' + u64(0, 3, 40, 8)}),
    'err-bag-truncated': bad('The last byte is missing.', {'data.bag': BAG[:-1]}),
    'err-bag-idx-past-end': bad('An entry of NAME.idx is past the end of the blobs.',
                                {'data.bag': b'one', 'data.idx': u64(3, 9)}),
    'err-bag-idx-order': bad('An entry of NAME.idx is less than the one before.',
                             {'data.bag': b'onethree', 'data.idx': u64(5, 3, 8)}),
    'err-bag-idx-differs': bad('NAME.idx contradicts a valid table.',
                               {'data.bag': BAG, 'data.idx': u64(3, 5)}),
    # ---- one directory ----
    'ds-plain': good('A plain field and a sequence.', ONE, **VALUES),
    'ds-v2': good('The same in v2.', {
        'spec.json': SPEC, 'x.bag': v2(b'one', b'two'), 's.bag': v2(b'a', b'b'),
        'refs.bag': v2(row((0, 2), 0), row((), 1))}, **VALUES),
    'ds-split': good('No refs.bag: blob n of each field belongs to datapoint n.', {
        'spec.json': b'{"x": "utf8", "y": "bytes"}', 'x.bag': b'onetwo', 'x.idx': u64(3, 6),
        'y.bag': b'ab', 'y.idx': u64(1, 2)}, x=[b'one', b'two'], y=[b'a', b'b']),
    'ds-no-fields': good('A spec without fields; two datapoints.',
                         {'spec.json': b'{}', 'refs.bag': v1(b'\x90', b'\x90')}),
    'ds-no-datapoints': good('Empty Bags.', {'spec.json': b'{"x": "utf8"}', 'x.bag': v1(),
                                             'refs.bag': v1()}, x=[]),
    'ds-spec-spaces': good('Other white space in spec.json.', changed(
        spec_json=b' {\n "s" : "utf8[]" ,\r\n\t"x":"utf8"}\n'), **VALUES),
    'ds-spec-escapes': good('A name that is escaped.', {
        'spec.json': b'{"\\u00e9": "utf8"}', '\u00e9.bag': v1(b'one'), 'refs.bag': v1(row(0))},
        **{'\u00e9': [b'one']}),
    'ds-unknown-type': good('A type that no reader knows: its blobs are bytes.', changed(
        spec_json=b'{"s": "thing(1,b)[]", "x": "x-y_z"}'), **VALUES),
    'ds-refs-wide': good('Integers and arrays of refs.bag that are not in their shortest form.',
                         changed(refs_bag=v1(
                             b'\xdc\0\2' + b'\x92\xcd\0\0\xce\0\0\0\2' + b'\xcf' + bytes(8),
                             b'\xdd\0\0\0\2' + b'\xdc\0\0' + b'\xd0\1')), **VALUES),
    'ds-shared': good('Datapoints that share a blob.', changed(
        refs_bag=v1(row((1, 1), 1), row((0, 2), 1))),
        s=[[b'b'], [b'a', b'b']], x=[b'two', b'two']),
    'ds-orphans': good('Blobs that no datapoint refers to.', changed(
        refs_bag=v1(row((1, 1), 1))), s=[[b'b']], x=[b'two']),
    'ds-other-files': good('Other files in the directory are ignored.', changed(
        notes_txt=b'hello', y_bag=b'x'), **VALUES),
    'ds-checksums-ignored': good('A damaged NAME.crc, which a reader may ignore.', changed(
        x_crc=b'xxxx'), **VALUES),
    'err-ds-no-spec': bad('No spec.json.', changed(spec_json=None)),
    'err-ds-unfinished': bad('spec.json.partial: the writer has not finished.', {
        **changed(spec_json=None), 'spec.json.partial': SPEC}),
    'err-ds-spec-empty': bad('An empty spec.json.', changed(spec_json=b'')),
    'err-ds-spec-truncated': bad('A truncated spec.json.', changed(spec_json=SPEC[:-1])),
    'err-ds-spec-list': bad('spec.json is a list.', changed(spec_json=b'["utf8"]')),
    'err-ds-spec-number': bad('A type is not a string.', changed(
        spec_json=b'{"s": "utf8[]", "x": 8}')),
    'err-ds-spec-order': bad('The keys are not sorted.', changed(
        spec_json=b'{"x": "utf8", "s": "utf8[]"}')),
    'err-ds-spec-twice': bad('A key comes twice.', changed(
        spec_json=b'{"s": "utf8[]", "x": "utf8", "x": "utf8"}')),
    'err-ds-spec-more': bad('Bytes after the object.', changed(spec_json=SPEC + b'x')),
    'err-ds-spec-not-utf8': bad('spec.json is not UTF-8.', changed(
        spec_json=b'{"s": "utf8[]", "x\xff": "utf8"}')),
    'err-ds-type-invalid': bad('A type with a capital.', changed(
        spec_json=b'{"s": "utf8[]", "x": "Utf8"}')),
    'err-ds-type-open': bad('A type whose parenthesis is not closed.', changed(
        spec_json=b'{"s": "utf8[]", "x": "int(8"}')),
    'err-ds-name-slash': bad('The name of a field leads out of the directory.', {
        'data/spec.json': b'{"../x": "utf8"}', 'data/refs.bag': v1(row(0)),
        'x.bag': v1(b'secret')}),
    'err-ds-name-refs': bad('A field is called refs.', {
        'spec.json': b'{"refs": "bytes"}', 'refs.bag': v1(row(0))}),
    'err-ds-no-bag': bad('The Bag of a field is missing.', changed(x_bag=None)),
    'err-ds-no-refs': bad('refs.bag is missing, and there are no .idx files.',
                          changed(refs_bag=None)),
    'err-ds-refs-past-end': bad('An index is past the end of its Bag.', changed(
        refs_bag=v1(row((0, 2), 2)))),
    'err-ds-refs-range': bad('A range is past the end of its Bag.', changed(
        refs_bag=v1(row((1, 2), 0)))),
    'err-ds-refs-overflow': bad('first + count is above 2^64.', changed(
        refs_bag=v1(b'\x92\x92\xcf' + b'\xff' * 8 + b'\x02\x00'))),
    'err-ds-refs-short': bad('A row has fewer elements than fields.', changed(
        refs_bag=v1(b'\x91\x00'))),
    'err-ds-refs-long': bad('A row has more elements than fields.', changed(
        refs_bag=v1(b'\x93\x90\x00\x00'))),
    'err-ds-refs-more': bad('Bytes after a row.', changed(refs_bag=v1(row((0, 2), 0) + b'\0'))),
    'err-ds-refs-truncated': bad('A row is truncated.', changed(
        refs_bag=v1(row((0, 2), 0)[:-1]))),
    'err-ds-refs-shape': bad('A number where a sequence needs a range.', changed(
        refs_bag=v1(row(0, 0)))),
    'err-ds-refs-array': bad('A range where a plain field needs an index.', changed(
        refs_bag=v1(row((0, 2), (0, 1))))),
    'err-ds-refs-one': bad('A range of one element.', changed(refs_bag=v1(b'\x92\x91\x00\x00'))),
    'err-ds-refs-negative': bad('A negative index.', changed(refs_bag=v1(b'\x92\x90\xff'))),
    'err-ds-refs-text': bad('Text in place of an index.', changed(refs_bag=v1(b'\x92\x90\xa10'))),
    'err-ds-refs-float': bad('A float in place of an index.', changed(
        refs_bag=v1(b'\x92\x90\xca\0\0\0\0'))),
    'err-ds-split-unequal': bad('Fields of unequal length without refs.bag.', {
        'spec.json': b'{"x": "utf8", "y": "bytes"}', 'x.bag': b'onetwo', 'x.idx': u64(3, 6),
        'y.bag': b'a', 'y.idx': u64(1)}),
    'err-ds-empty-file': bad('A Bag of 0 bytes next to Bags of v1.', changed(s_bag=b'')),
    'err-ds-bag-damaged': bad('The table of a field is damaged.', changed(
        x_bag=b'onetwo' + u64(0, 5, 3))),
    # ---- shards ----
    'sh-two': good('Two shards.', sharded(('000000', ONE), ('000001', ONE)),
                   s=VALUES['s'] * 2, x=VALUES['x'] * 2),
    'sh-digits': good('Names of other lengths, in the order of their numbers.', sharded(
        ('0', ONE), ('01', changed(x_bag=v1(b'un', b'deux'))), ('002', ONE)),
        s=VALUES['s'] * 3, x=VALUES['x'] + [b'un', b'deux'] + VALUES['x']),
    'sh-other-entries': good('Other entries are ignored.', {
        **sharded(('000000', ONE)), 'index/x.bag': b'x', 'notes.txt': b'x'}, **VALUES),
    'sh-finalized': good('The mark of a dataset that was renumbered.', {
        **sharded(('000000', ONE)), '000000/finalized': b''}, **VALUES),
    'err-sh-gap': bad('A number is missing.', sharded(('000000', ONE), ('000002', ONE))),
    'err-sh-no-first': bad('Number 0 is missing.', sharded(('000001', ONE))),
    'err-sh-twice': bad('Two names for one number.', sharded(('000000', ONE), ('0', ONE))),
    'err-sh-specs': bad('Shards with different fields.', sharded(
        ('000000', ONE), ('000001', changed(spec_json=b'{"s": "utf8[]", "x": "bytes"}')))),
    'err-sh-unfinished': bad('A shard without spec.json.', sharded(
        ('000000', ONE), ('000001', {**changed(spec_json=None), 'spec.json.partial': SPEC}))),
    'err-sh-mixed': bad('spec.json next to shards.', {**ONE, **sharded(('000000', ONE))}),
    'err-sh-none': bad('Nothing but other files.', {'notes.txt': b'x'}),
}


class Digest:
    """See tests/data/conformance/README.md."""

    def __init__(self):
        self.hash, self.blobs, self.bytes = hashlib.sha256(), 0, 0

    def number(self, number):
        self.hash.update(u64(number))

    def add(self, value):
        if isinstance(value, list):
            self.number(len(value))
        for blob in value if isinstance(value, list) else [value]:
            self.number(len(blob))
            self.hash.update(blob)
            self.blobs += 1
            self.bytes += len(blob)

    def done(self):
        return {'blobs': self.blobs, 'bytes': self.bytes, 'sha256': self.hash.hexdigest()}


def fields_of(columns):
    out = {}
    for name, values in columns.items():
        digest = Digest()
        for value in values:
            digest.add(value)
        out[name] = digest.done()
    return out


def made(name, case):
    for file, content in case.files.items():
        path = HERE / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    inner = name if not name.startswith(('bag-', 'err-bag-')) else f'{name}/data.bag'
    if name == 'err-ds-name-slash':
        inner += '/data'
    out = {'path': inner, 'about': case.why}
    if case.expected is None:
        return {**out, 'expect': 'refusal'}
    count = max(map(len, case.expected.values()), default=2)
    return {**out, 'expect': 'data', 'count': count,
            'fields': fields_of(dict(sorted(case.expected.items())))}


def golden(manifest):
    """A case of what the original programs wrote."""
    told = json.loads(manifest.read_text())
    data = 'data.bag' if (manifest.parent / 'data.bag').exists() else 'data'
    out = {'path': f'../golden/{manifest.parent.relative_to(DATA / "golden")}/{data}',
           'about': told.get('about', '')}
    if 'error' in told:
        empty = manifest.parent.name == 'err-bag-0-bytes'
        return {**out, 'expect': 'either' if empty else 'refusal', **(
            {'count': 0, 'fields': fields_of({'blob': []})} if empty else {})}
    one = {'blob': told} if told['kind'] == 'bag' else told['columns']
    return {**out, 'expect': 'data', 'count': told['count'], 'fields': {
        name: {'blobs': d['count'] if told['kind'] == 'bag' else d['blobs'],
               'bytes': d['bytes'], 'sha256': d['digest']} for name, d in one.items()}}


def main():
    for old in HERE.iterdir() if HERE.exists() else ():
        if old.is_dir():
            shutil.rmtree(old)
    cases = [golden(path) for path in sorted((DATA / 'golden').glob('*-*/*/manifest.json'))
             if path.parent.parent.name != 'l5kit-zarr']
    cases += [made(name, case) for name, case in CASES.items()]
    lines = ',\n'.join(' ' + json.dumps(case) for case in cases)
    (HERE / 'manifest.json').write_text(f'{{"version": 1, "cases": [\n{lines}\n]}}\n')
    print(f'{len(cases)} cases')


if __name__ == '__main__':
    sys.exit(main())
