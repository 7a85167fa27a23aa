// Made the files in arrow/, with apache-arrow 21 and nodejs-polars 0.22:
//   node tests/data/import/make_arrow.mjs
import fs from 'fs';
import * as A from 'apache-arrow';
import pl from 'nodejs-polars';

const to = 'tests/data/import/arrow/';
const field = (name, type) => new A.Field(name, type, true);
const list = type => new A.List(field('item', type));
const bytes = (...values) => new Uint8Array(values);
const column = (type, values) => A.vectorFromArray(values, type);
const columns = {
  b: column(new A.Bool(), [true, false, true, true]),
  bin: column(new A.Binary(), [bytes(255, 216, 255, 1), bytes(255, 216, 255),
    bytes(255, 216, 255, 2, 3), bytes(255, 216, 255)]),
  day: column(new A.DateDay(), ['2024-01-01', '1969-12-31', 0, 0].map(t => new Date(t))),
  dec: column(new A.Decimal(2, 10, 128), [[12345, 0, 0, 0], [5, 0, 0, 0],
    [2 ** 32 - 1, 2 ** 32 - 1, 2 ** 32 - 1, 2 ** 32 - 1], [0, 0, 0, 0]].map(w => new Uint32Array(w))),
  dict: column(new A.Dictionary(new A.Utf8(), new A.Int8()), ['x', 'y', 'x', 'x']),
  dur: column(new A.DurationSecond(), [1n, 2n, 3n, 4n]),
  f16: column(new A.Float16(), [1, 2, 3, .5]),
  f32: column(new A.Float32(), [1, 2, 3, .5]),
  fb: column(new A.FixedSizeBinary(3), [bytes(1, 2, 3), bytes(1, 2, 4), bytes(1, 2, 3), bytes(1, 2, 3)]),
  fl: column(new A.FixedSizeList(2, field('item', new A.Float32())), [[1, 2], [3, 4], [5, 6], [7, 8]]),
  i8: column(new A.Int8(), [1, -2, null, 4]),
  im: column(new A.Struct([field('bytes', new A.Binary()), field('path', new A.Utf8())]),
    [0, 1, 2, 3].map(i => ({bytes: bytes(255, 216, 255, i), path: 'p'}))),
  l: column(list(new A.Int64()), [[1n, 2n], [], [3n], null]),
  ll: column(list(list(new A.Float32())), [[[1, 2], [3]], [], [[]], [[4]]]),
  ls: column(new A.LargeUtf8(), ['a', 'bé', '', 'x']),
  lst: column(list(new A.Struct([field('k', new A.Int32())])), [[{k: 1}, {k: 2}], [], [{k: 3}], [{k: 9}]]),
  nil: column(new A.Null(), [null, null, null, null]),
  s: column(new A.Utf8(), ['a', 'bé', '', null]),
  st: column(new A.Struct([field('x', new A.Int32()), field('y', new A.Utf8())]),
    [{x: 1, y: 'p'}, {x: 2, y: 'q'}, {x: 3, y: 'r'}, {x: 4, y: 's'}]),
  ts: column(new A.TimestampMicrosecond(), [1, 2, 3, 4]),
  u64: column(new A.Uint64(), [1n, 2n, 3n, 2n ** 63n]),
};
const table = new A.Table(columns);
fs.mkdirSync(to, {recursive: true});
fs.writeFileSync(to + 'types.arrow', A.tableToIPC(table, 'file'));
fs.writeFileSync(to + 'types.arrows', A.tableToIPC(table, 'stream'));
fs.writeFileSync(to + 'two.arrow', A.tableToIPC(new A.Table([table.batches[0], table.batches[0]]), 'file'));
const frame = pl.DataFrame({a: [1, 2, 3], s: ['a', 'bcdefghijklmnopqrstuvwxyz', null],
  l: [[1, 2], [3], []], d: [new Date(0), new Date(1), new Date(2)]});
for (const compression of ['lz4', 'zstd'])
  frame.writeIPC(to + `polars-${compression}.arrow`, {compression});
frame.withColumn(pl.col('s').cast(pl.Categorical).alias('cat'))
  .writeIPC(to + 'category.feather', {compression: 'lz4'});
// Images whose bytes are NULL and whose path is not: in a column, a list, a member.
const image = new A.Struct([field('bytes', new A.Binary()), field('path', new A.Utf8())]);
const stored = {bytes: bytes(255, 216, 255), path: 'a.jpg'}, elsewhere = {bytes: null, path: '/data/cat.jpg'};
const none = {bytes: null, path: null};
const bad = {
  column: column(image, [stored, none, elsewhere]),
  list: column(list(image), [[stored], [], [stored, elsewhere]]),
  member: column(list(new A.Struct([field('i', new A.Struct([field('image', image)]))])),
    [[{i: {image: stored}}], null, [{i: {image: elsewhere}}]]),
};
for (const name in bad)
  fs.writeFileSync(to + `bad-path-${name}.arrow`, A.tableToIPC(new A.Table({x: bad[name]}), 'file'));
