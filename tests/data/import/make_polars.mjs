// Made polars.parquet with nodejs-polars: node tests/data/import/make_polars.mjs, where
// npm has installed it. See make_arrays.py, which has what it contains.
import pl from 'nodejs-polars';
import path from 'path';
import url from 'url';

const here = path.dirname(url.fileURLToPath(import.meta.url));
const n = 300, numbers = [...Array(n).keys()];
pl.DataFrame({
  id: pl.Series('id', numbers, pl.Int64),
  small: pl.Series('small', numbers.map(i => i % 100 - 50), pl.Int8),
  half: pl.Series('half', numbers.map(i => i / 2), pl.Float32),
  third: pl.Series('third', numbers.map(i => i / 4), pl.Float64),
  text: pl.Series('text', numbers.map(i => 'é'.repeat(i % 9) + i)),
  odd: pl.Series('odd', numbers.map(i => i % 2 == 1)),
  some: pl.Series('some', numbers.map(i => i % 7 ? i : null), pl.Int32),
  list: pl.Series('list', numbers.map(i => numbers.slice(0, i % 5))),
}).writeParquet(`${here}/polars.parquet`);
