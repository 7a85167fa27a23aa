// corpus.mjs - what fuzzers found to be interesting, in the viewer's WebAssembly
// reader under node: nothing traps, and nothing fails but with a message.
//
//     node tests/viewer/corpus.mjs build/viewer.wasm
import fs from 'node:fs';
import path from 'node:path';
import {start, decode, Dataset, Local} from '../../examples/viewer/reader.mjs';
import {msgpack} from '../../examples/viewer/values.mjs';

// As in tests/fuzz/fuzz_dataset.c.
const NAMES = ['spec.json', 'refs.bag', 'refs.idx', 'a.bag', 'a.idx', 'b.bag', 'b.idx', 'c.bag', 'c.idx', 'spec.json.partial'];
const SHARDS = [null, '000000', '000001', '000002', '3', '01', '000009', '0000000000000000000000001', '999999999999999999',
  '1000000000000000000', '99999999999999999999', 'x', '-1', '1a', ' 1', '00'];
let inputs = 0, read = 0, refused = 0, failed = 0;

const file = data => ({size: data.length, slice: (from, to) => ({arrayBuffer: async () => new Uint8Array(data.subarray(from, to)).buffer})});

async function attempt(what, run) {
  inputs++;
  try {
    await run();
    read++;
  } catch (error) {
    refused++;
    if (!(error instanceof Error) || error instanceof WebAssembly.RuntimeError || error instanceof TypeError || !error.message) {
      failed++;
      console.log(`FAILED  ${what}: ${error?.stack ?? error}`);
    }
  }
}

async function read_all(name, files) {
  const dataset = new Dataset(new Local(name, files));
  await dataset.open();
  await dataset.count();
  let error = null;
  const trapped = thrown => {
    if (thrown instanceof WebAssembly.RuntimeError || thrown instanceof TypeError) throw thrown;
    error = thrown;
  };
  for (let i = 0; i < Math.min(dataset.length, 100); i++)
    for (const field of dataset.fields.slice(0, 20)) {
      const count = await dataset.items(i, field.number).catch(trapped) ?? 0;
      for (let item = 0; item < Math.min(count, 20); item++) {
        await dataset.size(i, field.number, item).catch(trapped);
        const blob = await dataset.blob(i, field.number, item).catch(trapped);
        if (blob) try { decode(field.inside, blob); } catch (thrown) { trapped(thrown); }
      }
    }
  dataset.close();
  if (error) throw error;
}

function unpack(data) {
  const files = new Map();
  for (let at = 1; at + 3 <= data.length;) {
    const name = NAMES[data[at] & 15], shard = SHARDS[data[at] >> 4], size = data[at + 1] | data[at + 2] << 8;
    const content = data.subarray(at + 3, at + 3 + size);
    at += 3 + content.length;
    if (name) files.set(['x', shard, name].filter(part => part !== null).join('/'), file(content));
  }
  return files;
}

await start(() => fs.readFileSync(process.argv[2]));
const corpus = kind => fs.readdirSync(`tests/fuzz/corpus/${kind}`).map(name => [`${kind}/${name}`, fs.readFileSync(path.join('tests/fuzz/corpus', kind, name))]);
for (const [name, data] of [...corpus('dataset'), ...corpus('recover')]) await attempt(name, () => read_all('x', unpack(data)));
for (const [name, data] of corpus('archive')) await attempt(name, () => read_all('x.zip', new Map([['x.zip', file(data)]])));
for (const [name, data] of corpus('bag')) await attempt(name, () => read_all('x.bag', new Map([['x.bag', file(data)]])));
for (const [name, data] of corpus('npy')) await attempt(name, () => decode('npy', data));
for (const [name, data] of corpus('msgpack')) await attempt(name, () => msgpack(data));

// Every byte of a sound dataset, changed.
const where = 'tests/data/golden/bags-0.5.1/ds-small/data';
const sound = fs.readdirSync(where).map(name => [name, fs.readFileSync(path.join(where, name))]);
for (const [changed, data] of sound)
  for (let at = 0; at < data.length; at++) {
    const other = Buffer.from(data);
    other[at] ^= 1 << at % 8;
    await attempt(`${changed}, byte ${at}`, () => read_all('x', new Map(sound.map(([name, same]) => [`x/${name}`, file(name === changed ? other : same)]))));
  }

// A dataset that is closed while it is read.
const closed = new Dataset(new Local('x', new Map(sound.map(([name, data]) => [`x/${name}`, file(data)]))));
await closed.open();
const reads = closed.fields.map(field => closed.blob(closed.length - 1, field.number).then(() => 'read', error => error.message));
closed.close();
for (const message of await Promise.all(reads))
  if (message !== 'x: closed') {
    failed++;
    console.log(`FAILED  closed while it is read: ${message}`);
  }
console.log(`${inputs} inputs: ${read} were read, ${refused} refused`);
console.log(`${failed || !read || !refused ? 0 : 1} passed, ${failed} failed`);
process.exit(failed || !read || !refused ? 1 : 0);
