// reader.mjs - the npm package as a program for tests/conformance/run.py:
//
//     node tests/packages/reader.mjs PACKAGE PATH
import fs from 'node:fs';
import path from 'node:path';
import {pathToFileURL} from 'node:url';

const [where, data] = process.argv.slice(2);
const {open} = await import(pathToFileURL(path.resolve(where, 'node.mjs')));
const base64 = bytes => Buffer.from(bytes).toString('base64');

async function lines() {
  const dataset = await open(data), out = [];
  for (let i = 0; i < dataset.length; i++) {
    const row = {};
    for (const {name, number, sequence} of dataset.fields) {
      const items = [];
      for (let item = 0; item < await dataset.items(i, number); item++) items.push(base64(await dataset.blob(i, number, item)));
      row[name] = sequence ? items : items[0];
    }
    out.push(`${JSON.stringify(row)}\n`);
  }
  dataset.close();
  return out;
}

lines().then(out => fs.writeSync(1, out.join('')), error => {
  console.error(error.message);
  process.exit(1);
});
