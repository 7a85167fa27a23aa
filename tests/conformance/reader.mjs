// reader.mjs - the viewer's reader under node as a program for run.py:
//
//     node tests/conformance/reader.mjs build/viewer.wasm PATH
import fs from 'node:fs';
import path from 'node:path';
import {start, Dataset, Local} from '../../examples/viewer/reader.mjs';
import {files_of} from '../viewer/files.mjs';

const [wasm, where] = process.argv.slice(2);
// What is next to a Bag belongs to it.
const files = files_of(where), index = where.replace(/\.bag$/, '.idx');
if (index !== where && fs.existsSync(index))
  for (const [name, file] of files_of(index)) files.set(name, file);

async function main() {
  await start(() => fs.readFileSync(wasm));
  const dataset = new Dataset(new Local(path.basename(where), files)), lines = [];
  await dataset.open();
  await dataset.count();
  if (dataset.faults.length) throw Error(dataset.faults.join('; '));
  for (let i = 0; i < dataset.length; i++) {
    const row = {};
    for (const field of dataset.fields) {
      const count = await dataset.items(i, field.number), items = [];
      for (let item = 0; item < count; item++)
        items.push(Buffer.from(await dataset.blob(i, field.number, item)).toString('base64'));
      row[field.name] = field.sequence ? items : items[0];
    }
    lines.push(`${JSON.stringify(row)}\n`);
  }
  dataset.close();
  fs.writeSync(1, lines.join(''));
}

main().catch(error => { console.error(error.message); process.exit(1); });
