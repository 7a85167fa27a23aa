#!/usr/bin/python3
"""Independent reader of the Bag / Bags format, standard library only.

  bagref.py PATH [--text] [--raw] [--unsigned] [--variant V] [--strict]
            [--check manifest.json]
  bagref.py --check-all FIXTURES [same options]
  bagref.py --lines PATH

PATH: a bag file, a dataset directory or a directory of shards.  Prints the
manifest described in tests/data/golden/MANIFESTS.md.

--variant auto     tell the three index layouts apart (default)
          zero     index table begins with the offset 0     (bags, granular <= 0.19)
          nozero   index table of blob ends only             (granular 0.20, 0.21)
          idx      ends in a separate .idx file              (granular >= 0.22)
--signed     `int` values are two's complement (granular >= 0.17.1); --unsigned
             for older data.  Default: signed unless a table has the leading zero
             (wrong only for granular 0.17.1 to 0.19, of which there are no fixtures).
--lines      print a JSON object per datapoint, with blobs in base64, as
             tests/data/conformance/README.md describes it.
--strict     also check that the files are byte for byte what upstream's writer
             would write for these blobs (spec.json text, refs widths, order);
             datapoints may share blobs.
"""
import argparse
import base64
import hashlib
import json
import os
import pathlib
import re
import struct
import sys

MAXROWS, MAXITEMS = 400, 64


class Bad(Exception):
    pass


# ------------------------------------------------------------------ msgpack

def unpack(buf):
    """Decode one msgpack object that fills the whole buffer."""
    obj, pos = _unpack(buf, 0)
    if pos != len(buf):
        raise Bad('bytes after the msgpack object')
    return obj


def _num(buf, pos, fmt):
    size = struct.calcsize(fmt)
    if pos + size > len(buf):
        raise Bad('msgpack object cut short')
    return struct.unpack_from(fmt, buf, pos)[0], pos + size


def _take(buf, pos, n):
    if pos + n > len(buf):
        raise Bad('msgpack object cut short')
    return bytes(buf[pos:pos + n]), pos + n


def _unpack(buf, pos):
    tag, pos = _num(buf, pos, '>B')
    if tag < 0x80:
        return tag, pos
    if tag >= 0xe0:
        return tag - 256, pos
    if tag < 0x90:
        return _map(buf, pos, tag & 15)
    if tag < 0xa0:
        return _array(buf, pos, tag & 15)
    if tag < 0xc0:
        raw, pos = _take(buf, pos, tag & 31)
        return raw.decode('utf-8'), pos
    if tag in (0xc0, 0xc2, 0xc3):
        return {0xc0: None, 0xc2: False, 0xc3: True}[tag], pos
    fixed = {0xca: '>f', 0xcb: '>d', 0xcc: '>B', 0xcd: '>H', 0xce: '>I', 0xcf: '>Q',
             0xd0: '>b', 0xd1: '>h', 0xd2: '>i', 0xd3: '>q'}
    if tag in fixed:
        return _num(buf, pos, fixed[tag])
    counted = {0xc4: '>B', 0xc5: '>H', 0xc6: '>I', 0xd9: '>B', 0xda: '>H', 0xdb: '>I',
               0xdc: '>H', 0xdd: '>I', 0xde: '>H', 0xdf: '>I'}
    if tag not in counted:
        raise Bad(f'msgpack tag {tag:#x}')
    n, pos = _num(buf, pos, counted[tag])
    if tag in (0xdc, 0xdd):
        return _array(buf, pos, n)
    if tag in (0xde, 0xdf):
        return _map(buf, pos, n)
    raw, pos = _take(buf, pos, n)
    return (raw.decode('utf-8') if tag >= 0xd9 else raw), pos


def _array(buf, pos, n):
    out = []
    for _ in range(n):
        obj, pos = _unpack(buf, pos)
        out.append(obj)
    return out, pos


def _map(buf, pos, n):
    out = {}
    for _ in range(n):
        key, pos = _unpack(buf, pos)
        out[key], pos = _unpack(buf, pos)
    return out, pos


def pack_uint(x):
    if x < 128:
        return bytes([x])
    for tag, fmt, top in ((0xcc, '>B', 1 << 8), (0xcd, '>H', 1 << 16),
                          (0xce, '>I', 1 << 32), (0xcf, '>Q', 1 << 64)):
        if x < top:
            return bytes([tag]) + struct.pack(fmt, x)


def pack_row(row):
    def head(n):
        return bytes([0x90 + n]) if n < 16 else b'\xdc' + struct.pack('>H', n)
    return head(len(row)) + b''.join(
        pack_uint(x) if isinstance(x, int) else
        head(len(x)) + b''.join(map(pack_uint, x)) for x in row)


# ---------------------------------------------------------------------- bag

class Bag:
    """All of one bag in memory: .n, .size, .variant, bag[i]."""

    def __init__(self, path, variant='auto'):
        path = pathlib.Path(path)
        self.raw = path.read_bytes()
        idx = path.with_suffix('.idx')
        if variant == 'auto' and idx.exists() and self.has_table():
            last = self.u64s(self.raw[-8:])[0]
            ends = idx.read_bytes()
            ends = self.u64s(ends[:len(ends) // 8 * 8])
            if last != (ends[-1] if ends else 0):
                raise Bad('the table and .idx differ')
            variant = 'zero'
        if variant == 'idx' or variant == 'auto' and idx.exists():
            self.variant = 'idx'
            table = idx.read_bytes()
            table = table[:len(table) // 8 * 8]      # an entry cut short is no entry
            self.ends = self.u64s(table)
            self.limits = [0, *self.ends]
            self.size = self.limits[-1] + len(table)
            last = len(self.raw)
        else:
            self.size = len(self.raw)
            if self.size == 0 and variant != 'zero':
                self.variant, self.limits = 'nozero', [0]
                self.n = 0
                return
            if self.size < 8:
                raise Bad('shorter than 8 bytes')
            last = struct.unpack('<Q', self.raw[-8:])[0]
            if last > self.size - 8 or (self.size - last) % 8:
                raise Bad('damaged index: end of data at %d of %d' % (last, self.size))
            table = self.u64s(self.raw[last:])
            self.variant = 'zero' if table[0] == 0 else 'nozero'
            if variant not in ('auto', 'table', self.variant):
                raise Bad('index layout is ' + self.variant)
            self.limits = table if self.variant == 'zero' else [0, *table]
        self.n = len(self.limits) - 1
        for a, b in zip(self.limits, self.limits[1:]):
            if a > b:
                raise Bad('damaged index: not monotonic')
        if self.limits[-1] > last:
            raise Bad('damaged index: past the end of the data')

    def has_table(self):
        """True if the file ends in a valid table with the leading zero."""
        size = len(self.raw)
        last = self.u64s(self.raw[-8:])[0] if size >= 16 else size
        if last > size - 16 or (size - last) % 8:
            return False
        table = self.u64s(self.raw[last:])
        return table[0] == 0 and table == sorted(table)

    @staticmethod
    def u64s(raw):
        return list(struct.unpack('<%dQ' % (len(raw) // 8), raw))

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise Bad(f'blob {i} of {self.n}')
        return self.raw[self.limits[i]:self.limits[i + 1]]


# ------------------------------------------------------------------ dataset

TYPE = re.compile(r'[a-z0-9_-]+(\([a-z0-9_,.-]*\))?(\[\])?')


class Pairs(list):
    """The members of a JSON object in their order."""


class Dataset:

    def __init__(self, path, variant='auto', strict=False):
        text = (path / 'spec.json').read_bytes()
        pairs = json.loads(text, object_pairs_hook=Pairs)
        if not isinstance(pairs, Pairs) or len(dict(pairs)) < len(pairs):
            raise Bad('spec.json is not an object, or a key comes twice')
        self.spec = dict(pairs)
        for k, t in self.spec.items():
            if k == 'refs' or '/' in k:
                raise Bad(f'key {k!r}')
            if not TYPE.fullmatch(t):
                raise Bad(f'type {t!r}')
        if list(self.spec) != sorted(self.spec):
            raise Bad('keys are not sorted')
        refs = path / 'refs.bag'
        if variant == 'auto' and refs.exists():
            variant = 'table'  # .idx files are ignored
        self.cols = {k: Bag(path / f'{k}.bag', variant) for k in self.spec}
        plain = not refs.exists() and all(
            c.variant == 'idx' for c in self.cols.values())
        self.refs = None if plain else Bag(refs, variant)
        self.bags = [*self.cols.values()] + ([] if plain else [self.refs])
        self.size = sum(b.size for b in self.bags)
        self.variants = {b.variant for b in self.bags}
        if plain:
            lens = {c.n for c in self.cols.values()}
            if len(lens) > 1:
                raise Bad('columns of unequal length')
            self.n = lens.pop() if lens else 0
        else:
            self.n = self.refs.n
        if strict:
            if text != json.dumps(self.spec).encode():
                raise Bad('spec.json is not the text upstream writes')
            if len(self.variants) > 1:
                raise Bad('mixed index layouts')
            self.strict_refs()

    def refs_of(self, i):
        if self.refs is None:
            return [i] * len(self.spec)
        row = unpack(self.refs[i])
        if not isinstance(row, list) or len(row) != len(self.spec):
            raise Bad('row of refs.bag')
        for (k, t), ref in zip(self.spec.items(), row):
            want = 'list' if t.endswith('[]') else 'int'
            if type(ref).__name__ != want or want == 'list' and not (
                    ref == [] or len(ref) == 2 and ref[1] > 0):
                raise Bad(f'refs entry of {k!r}: {ref!r}')
        return row

    def row(self, i):
        out = {}
        for (k, t), ref in zip(self.spec.items(), self.refs_of(i)):
            col = self.cols[k]
            if t.endswith('[]'):
                a, n = ref if ref else (0, 0)
                out[k] = [col[j] for j in range(a, a + n)]
            else:
                out[k] = col[ref]
        return out

    def strict_refs(self):
        if self.refs is None:
            return
        nxt = dict.fromkeys(self.spec, 0)
        for i in range(self.n):
            row = self.refs_of(i)
            if pack_row(row) != self.refs[i]:
                raise Bad(f'row {i} of refs.bag is not in the shortest form')
            for (k, t), ref in zip(self.spec.items(), row):
                if ref == []:
                    continue
                start, n = ref if isinstance(ref, list) else (ref, 1)
                if start > nxt[k]: # earlier ones may be shared
                    raise Bad(f'row {i}: {k!r} leaves blobs out')
                nxt[k] = max(nxt[k], start + n)
        for k, c in self.cols.items():
            if nxt[k] != c.n:
                raise Bad(f'{k!r} has blobs no row refers to')


def open_shards(path, variant, strict):
    names = sorted((name for name in os.listdir(path) if strict or name.isdecimal()),
                   key=lambda name: (int(name) if name.isdecimal() else -1, name))
    for i, name in enumerate(names):
        if not name.isdecimal() or int(name) != i:
            raise Bad(f'{name!r} where shard {i} should be')
        if strict and name != f'{i:06}':
            raise Bad(f'{name!r} is not named as upstream names it')
    if not names:
        raise Bad('no shards')
    return [Dataset(path / name, variant, strict) for name in names]


# ----------------------------------------------------------------- manifest

NOVALUE = object()


def value_of(raw, t, signed):
    t = t[:-2] if t.endswith('[]') else t
    name, _, args = t.partition('(')
    args = args.rstrip(')').split(',')
    try:
        if name in ('int', 'i64', 'u64'):
            order = args[1] if len(args) > 1 else 'little'
            sign = name == 'i64' or name == 'int' and signed
            return int.from_bytes(raw, order, signed=sign)
        if name == 'utf8':
            return raw.decode('utf-8')
        if name == 'msgpack':
            return json.loads(json.dumps(unpack(raw)))
    except (TypeError, ValueError):
        pass
    return NOVALUE


class Printer:

    def __init__(self, values=True, signed=None):
        self.values, self.signed = values, signed

    def blob(self, raw, t=None):
        d = {'len': len(raw), 'sha256': hashlib.sha256(raw).hexdigest()}
        if len(raw) <= 32:
            d['hex'] = raw.hex()
        if t and self.values and len(raw) <= 4096:
            v = value_of(raw, t, self.signed)
            if v is not NOVALUE:
                d['value'] = v
        return d

    def bag(self, bag):
        d = Digest()
        for i in range(bag.n):
            d.add(bag[i])
        m = {'kind': 'bag', 'count': bag.n, 'size': bag.size, **d.done()}
        if bag.n <= MAXROWS:
            m['data'] = [self.blob(bag[i]) for i in range(bag.n)]
        return m

    def dataset(self, shards, kind):
        spec = shards[0].spec
        if any(list(s.spec.items()) != list(spec.items()) for s in shards):
            raise Bad('shards have different specs')
        if self.signed is None:
            self.signed = 'zero' not in set().union(*(s.variants for s in shards))
        m = {'kind': kind, 'count': sum(s.n for s in shards),
             'size': sum(s.size for s in shards), 'spec': spec}
        if kind == 'sharded':
            m['shards'] = [s.n for s in shards]
        sums = {k: Digest() for k in spec}
        data = []
        for s in shards:
            for i in range(s.n):
                out = {}
                for k, v in s.row(i).items():
                    if not isinstance(v, list):
                        sums[k].add(v)
                        out[k] = self.blob(v, spec[k])
                        continue
                    one = Digest()
                    sums[k].count(len(v))
                    for raw in v:
                        one.add(raw)
                        sums[k].add(raw)
                    out[k] = {'list': len(v), 'bytes': one.bytes,
                              'digest': one.hash.hexdigest()}
                    if len(v) <= MAXITEMS:
                        out[k]['items'] = [self.blob(raw, spec[k]) for raw in v]
                data.append(out)
        m['columns'] = {k: d.done() for k, d in sums.items()}
        if m['count'] <= MAXROWS:
            m['data'] = data
        return m


class Digest:

    def __init__(self):
        self.hash, self.blobs, self.bytes = hashlib.sha256(), 0, 0

    def count(self, n):
        self.hash.update(struct.pack('<Q', n))

    def add(self, raw):
        self.count(len(raw))
        self.hash.update(raw)
        self.blobs += 1
        self.bytes += len(raw)

    def done(self):
        return {'blobs': self.blobs, 'bytes': self.bytes,
                'digest': self.hash.hexdigest()}


def read(path, variant='auto', strict=False, values=True, signed=None):
    path = pathlib.Path(path)
    kind = ('bag' if path.is_file() else 'dataset'
            if (path / 'spec.json').exists() or any(path.glob('*.bag'))
            else 'sharded')
    out = Printer(values, signed)
    try:
        if kind == 'bag':
            return out.bag(Bag(path, variant))
        if kind == 'dataset':
            return out.dataset([Dataset(path, variant, strict)], kind)
        return out.dataset(open_shards(path, variant, strict), kind)
    except (Bad, OSError, ValueError) as e:
        return {'kind': kind, 'error': f'{type(e).__name__}: {e}'}


def lines(path):
    """Every datapoint as a line, after all of them were read."""
    def shown(value):
        return [shown(v) for v in value] if isinstance(value, list) else \
            base64.b64encode(value).decode()
    if path.is_file():
        bag = Bag(path)
        rows = [{'blob': bag[i]} for i in range(bag.n)]
    elif (path / 'spec.json').exists() or any(path.glob('*.bag')):
        if any(name.isdecimal() for name in os.listdir(path)):
            raise Bad('spec.json and shards')
        one = Dataset(path)
        rows = [one.row(i) for i in range(one.n)]
    else:
        shards = open_shards(path, 'auto', False)
        if any(shard.spec != shards[0].spec for shard in shards):
            raise Bad('shards have different specs')
        rows = [shard.row(i) for shard in shards for i in range(shard.n)]
    return [json.dumps({k: shown(v) for k, v in row.items()}) for row in rows]


def text(m):
    if 'error' in m:
        return f'bag-manifest\t1\nkind\t{m["kind"]}\nerror\t{m["error"]}\n'
    out = [('bag-manifest', 1), ('kind', m['kind']), ('count', m['count']),
           ('size', m['size'])]
    if m['kind'] == 'bag':
        out.append(('digest', m['blobs'], m['bytes'], m['digest']))
        out += [('b', i, b['len'], b['sha256'])
                for i, b in enumerate(m.get('data', []))]
    else:
        if 'shards' in m:
            out.append(('shards', *m['shards']))
        for c, (k, t) in enumerate(m['spec'].items()):
            d = m['columns'][k]
            out.append(('col', c, t, d['blobs'], d['bytes'], d['digest'], k))
        for i, row in enumerate(m.get('data', [])):
            for c, b in enumerate(row.values()):
                if 'list' not in b:
                    out.append(('v', i, c, b['len'], b['sha256']))
                    continue
                out.append(('l', i, c, b['list'], b['bytes'], b['digest']))
                out += [('i', i, c, j, e['len'], e['sha256'])
                        for j, e in enumerate(b.get('items', []))]
    return ''.join('\t'.join(map(str, line)) + '\n' for line in out)


def strip(m):
    if isinstance(m, dict):
        return {k: strip(v) for k, v in m.items() if k != 'value'}
    return [strip(v) for v in m] if isinstance(m, list) else m


def compare(got, want, raw):
    want = {k: v for k, v in want.items() if k not in ('about', 'writer', 'options')}
    if raw:
        got, want = strip(got), strip(want)
    if 'error' in got and 'error' in want:
        return None
    if 'error' in got or 'error' in want:
        return f'got {got.get("error", "data")!r}, want {want.get("error", "data")!r}'
    for k in want:
        if got.get(k) != want[k]:
            return f'differs at {k!r}'
    if list(got.get('spec', ())) != list(want.get('spec', ())):
        return 'order of keys'
    return None if set(got) == set(want) else 'fields'


def main():
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('path', type=pathlib.Path)
    ap.add_argument('--variant', default='auto',
                    choices=('auto', 'zero', 'nozero', 'idx'))
    for flag in ('text', 'raw', 'strict', 'signed', 'unsigned', 'check-all', 'lines'):
        ap.add_argument('--' + flag, action='store_true')
    ap.add_argument('--check', type=pathlib.Path)
    a = ap.parse_args()
    opts = dict(variant=a.variant, strict=a.strict, values=not a.raw,
                signed=True if a.signed else False if a.unsigned else None)
    if a.lines:
        try:
            sys.stdout.write(''.join(line + '\n' for line in lines(a.path)))
        except (Bad, OSError, ValueError, RecursionError) as e:
            sys.exit(f'{type(e).__name__}: {e}')
        return
    if a.check_all:
        bad = 0
        for mf in sorted(a.path.glob('*/manifest.json')):
            data = mf.parent / 'data.bag'
            got = read(data if data.exists() else mf.parent / 'data', **opts)
            want = json.loads(mf.read_text())
            res = compare(got, want, a.raw)
            if res is None and text(got) != (mf.parent / 'manifest.txt').read_text(
                    encoding='utf-8') and 'error' not in want:
                res = 'manifest.txt differs'
            print(f'{"BAD" if res else "ok"}\t{mf.parent.name}\t{res or ""}' + (
                f' [{got["error"]}]' if 'error' in got else ''))
            bad += res is not None
        sys.exit(bad > 0)
    m = read(a.path, **opts)
    if a.check:
        res = compare(m, json.loads(a.check.read_text()), a.raw)
        print('BAD: ' + res if res else 'ok')
        sys.exit(res is not None)
    sys.stdout.write(text(m) if a.text else json.dumps(m, indent=1) + '\n')
    sys.exit('error' in m)


if __name__ == '__main__':
    main()
