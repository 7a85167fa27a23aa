// manifests.mjs - the golden data, and what their manifests say of them.
import fs from 'node:fs';
import path from 'node:path';

export const golden = 'tests/data/golden';

// {name, data, refused, length, fields: [[name, type, digest]]}, data below golden.
export function manifests() {
  const out = [];
  for (const writer of fs.readdirSync(golden))
    for (const name of fs.statSync(path.join(golden, writer)).isDirectory() ? fs.readdirSync(path.join(golden, writer)) : []) {
      const manifest = path.join(golden, writer, name, 'manifest.txt');
      const data = ['data', 'data.bag'].map(file => path.join(writer, name, file)).find(file => fs.existsSync(path.join(golden, file)));
      if (!data || !fs.existsSync(manifest)) continue;
      const lines = fs.readFileSync(manifest, 'utf8').split('\n').map(line => line.split('\t'));
      const facts = kind => lines.filter(line => line[0] === kind);
      const fields = facts('col').map(line => [line.slice(6).join('\t'), line[2], line[5]]);
      if (facts('digest').length) fields.push(['blob', 'bytes', facts('digest')[0][3]]);
      out.push({name: `${writer}/${name}`, data, refused: facts('error').length > 0, length: Number(facts('count')[0]?.[1]), fields});
    }
  return out;
}

// What a manifest is compared with: opened as a dataset, by code that runs in a page, too.
// `sha256` takes an array of bytes, and returns hexadecimal digits.
export async function read(dataset, sha256) {
  if (!dataset.complete) {
    await dataset.open();
    await dataset.count();
  }
  if (dataset.faults.length) throw Error(dataset.faults.join('; '));
  const number = value => new Uint8Array(new BigUint64Array([BigInt(value)]).buffer);
  const fields = [];
  for (const field of dataset.fields) {
    const parts = [];
    for (let i = 0; i < dataset.length; i++) {
      const count = await dataset.items(i, field.number);
      if (field.sequence) parts.push(number(count));
      for (let item = 0; item < count; item++) {
        const blob = await dataset.blob(i, field.number, item);
        parts.push(number(blob.length), blob);
      }
    }
    const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    for (let at = 0, part; (part = parts.shift()); at += part.length) all.set(part, at);
    fields.push([field.name, field.type, await sha256(all)]);
  }
  const length = dataset.length;
  dataset.close();
  return {length, fields};
}

// Why a dataset is not what its manifest says; NULL: it is. `run` is read() of it.
export async function compare({name, refused, length, fields}, run) {
  let found, message = '';
  try { found = await run(); } catch (error) { message = error.message; }
  if (!refused) return message || (JSON.stringify([found.length, found.fields]) === JSON.stringify([length, fields]) ? null : 'it differs');
  // 0 bytes may be an empty Bag.
  if (found) return name.endsWith('err-bag-0-bytes') ? null : 'it was not refused';
  return /data(\.bag|\/|:)|unfinished|missing shards/.test(message) ? null : `message: ${message}`;
}
