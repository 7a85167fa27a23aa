// golden.mjs - the viewer's WebAssembly reader under node: the golden data have the
// digests that an independent reader recorded, and what is damaged is refused.
//
//     node tests/viewer/golden.mjs build/viewer.wasm
import fs from 'node:fs';
import path from 'node:path';
import crypto from 'node:crypto';
import {start, Dataset, Local} from '../../examples/viewer/reader.mjs';
import {files_of} from './files.mjs';

const golden = 'tests/data/golden';
let passed = 0, failed = 0;

function number(value) {
  const out = Buffer.alloc(8);
  out.writeBigUInt64LE(BigInt(value));
  return out;
}

async function open(where) {
  const name = path.basename(where), files = files_of(where);
  if (where.endsWith('.bag') && fs.existsSync(where.replace(/bag$/, 'idx')))
    for (const [key, file] of files_of(where.replace(/bag$/, 'idx'))) files.set(key, file);
  const dataset = new Dataset(new Local(name, files));
  await dataset.open();
  await dataset.count();
  if (dataset.faults.length) throw Error(dataset.faults.join('; '));
  return dataset;
}

// The digest of a field, as MANIFESTS.md states it.
async function digest(dataset, field) {
  const hash = crypto.createHash('sha256');
  for (let i = 0; i < dataset.length; i++) {
    const count = await dataset.items(i, field.number);
    if (field.sequence) hash.update(number(count));
    for (let item = 0; item < count; item++) {
      const blob = await dataset.get(i, field.number, item);
      hash.update(number(blob.length)).update(blob);
    }
  }
  return hash.digest('hex');
}

async function check(where, lines) {
  const facts = kind => lines.filter(line => line[0] === kind);
  const refused = facts('error').length > 0;
  let dataset, error = null;
  try {
    dataset = await open(where);
    if (refused) // by the blobs, if not when it is opened
      for (const field of dataset.fields) await digest(dataset, field);
  } catch (thrown) { error = thrown; }
  if (refused) {
    // 0 bytes may be an empty Bag.
    if (!error && !where.includes('err-bag-0-bytes')) return 'was not refused';
    return error && !/^[^:]*data|unfinished|missing shards/.test(error.message) ? `message: ${error.message}` : null;
  }
  if (error) return error.message;
  if (dataset.length !== Number(facts('count')[0][1])) return `length ${dataset.length}`;
  const expected = facts('col').map(line => [line.slice(6).join('\t'), line[2], line[5]]);
  if (facts('digest').length) expected.push(['blob', 'bytes', facts('digest')[0][3]]);
  if (expected.length !== dataset.fields.length) return `${dataset.fields.length} fields`;
  for (const [i, [name, type, hash]] of expected.entries()) {
    const field = dataset.fields[i];
    if (field.name !== name || field.type !== type) return `field ${field.name}: ${field.type}`;
    if (await digest(dataset, field) !== hash) return `the digest of ${name} differs`;
  }
  dataset.close();
  return null;
}

await start(() => fs.readFileSync(process.argv[2]));
for (const writer of fs.readdirSync(golden)) {
  for (const name of fs.statSync(path.join(golden, writer)).isDirectory() ? fs.readdirSync(path.join(golden, writer)) : []) {
    const manifest = path.join(golden, writer, name, 'manifest.txt');
    if (!fs.existsSync(manifest)) continue;
    const where = ['data', 'data.bag'].map(file => path.join(golden, writer, name, file)).find(file => fs.existsSync(file));
    if (!where) continue;
    const why = await check(where, fs.readFileSync(manifest, 'utf8').split('\n').map(line => line.split('\t')));
    if (why) console.log(`FAILED ${writer}/${name}: ${why}`);
    if (why) failed++; else passed++;
  }
}
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed || !passed ? 1 : 0);
