// npm.mjs - the npm package in node and, with `page`, in Chromium and a worker there.
//
//     node tests/packages/npm.mjs PACKAGE DATA [page]      (DATA by npm.sh)
import crypto from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import {pathToFileURL} from 'node:url';
import {golden, manifests, read, compare} from '../viewer/manifests.mjs';
import {launch, serve} from '../viewer/browser.mjs';

const [where, data, page_too] = process.argv.slice(2);
const {open} = await import(pathToFileURL(path.resolve(where, 'node.mjs')));
let passed = 0, failed = 0;
const assert = (value, what) => { if (!value) throw Error(what); };
const plain = value => JSON.stringify(value, (key, item) => typeof item === 'bigint' ? `${item}n` : ArrayBuffer.isView(item) ? [item.constructor.name, ...item] : item);
const equal = (a, b) => assert(plain(a) === plain(b), `${plain(a)} is not ${plain(b)}`);

async function test(name, run) {
  try {
    await run();
    console.log(`ok      npm: ${name}`);
    passed++;
  } catch (error) {
    console.log(`FAILED  npm: ${name}: ${error.stack}`);
    failed++;
  }
}

async function fails(promise, words) {
  const message = await promise.then(() => 'no error', error => error.message);
  assert(words.test(message), `${message} is not ${words}`);
}

// ---- node ----

const sha256 = bytes => crypto.createHash('sha256').update(bytes).digest('hex');

await test('the golden data in node', async () => {
  const all = manifests();
  for (const manifest of all) {
    const why = await compare(manifest, async () => read(await open(path.join(golden, manifest.data)), sha256));
    assert(!why, `${manifest.name}: ${why}`);
  }
  assert(all.length > 90, `${all.length} of them`);
});

// Compare the values of the dataset that npm.sh makes: 600 datapoints in shards.
async function check(pets) {
  equal(pets.length, 600);
  equal(pets.fields.map(({name, type, sequence}) => [name, type, sequence]), [['big', 'u64', false], ['label', 'int(4)', false],
    ['name', 'utf8', false], ['photo', 'bytes', false], ['score', 'array(float32)', false], ['shape', 'array(int16,2)', false], ['words', 'utf8[]', true]]);
  equal(await pets.get(7), {big: 9007199254740993n, label: 7, name: 'pet 7', photo: Uint8Array.of(7, 0), score: 3.5,
    shape: {dtype: 'int16', shape: [2], data: Int16Array.of(7, -7)}, words: ['a', 'cat 7']});
  equal(await pets.get(8n, 'words'), {words: []});
  equal(await pets.get(599, ['label', 'big']), {label: 9, big: 599});
  equal(await pets.column('score', 2, 5), Float64Array.of(1, 1.5, 2));
  equal([...await pets.column('label')].reduce((a, b) => a + b, 0), 2700);
  equal(await pets.column('big', 6, 8), BigUint64Array.of(6n, 9007199254740993n));
  equal(await pets.column('name', 0, 2), ['pet 0', 'pet 1']);
  equal(await pets.column('name', 3, 3), []);
  equal((await pets.find('label', 7)).length, 60);
  equal((await pets.find('name', 'pet 12')), [12]);
  equal((await pets.find('name', 'pet ', {prefix: true})).length, 600);
  equal((await pets.find('name', 'pet 1*')), []);
  equal(await pets.find('label', 11), []);
  for (const [run, words] of [[() => pets.get(600), /datapoint 600 out of range \(length 600\)/], [() => pets.get(-1), /-1 out of range/],
    [() => pets.get(1.5), /1.5 out of range/], [() => pets.get(0, 'none'), /no field "none" \(big, label/], [() => pets.column('label', 3, 601), /stop 601, length 600/],
    [() => pets.find('photo', 'x'), /photo/], [() => pets.find('name', 7), /is text/], [() => pets.find('label', 'x'), /not a number/]])
    await fails(run(), words);
}

await test('values, columns and keys of a directory', async () => {
  for (const from of [path.join(data, 'pets'), pathToFileURL(path.resolve(data, 'pets')), `${path.join(data, 'pets')}/`, path.join(data, 'pets.zip')]) {
    const pets = await open(from);
    if (String(from).endsWith('zip')) equal(await pets.get(7, 'words'), {words: ['a', 'cat 7']}); else await check(pets);
    pets.close();
    await fails(pets.get(0), /closed/);
  }
});
const near = await serve({d: data, npm: where, golden}), address = `${near.url}/d/pets`;
await test('a server', async () => {
  const pets = await open(address);
  await check(pets);
  pets.close();
  await fails(open(`${near.url}/d/none`), /none: not a dataset/);
});
await test('files', async () => {
  const bytes = fs.readFileSync(path.join(data, 'pets.zip'));
  const file = Object.assign(new Blob([bytes]), {name: 'pets.zip'});
  for (const from of [file, [file], new Map([['pets.zip', file]])]) equal((await open(from)).length, 600);
  for (const wrong of [undefined, 7, [], {}, [7]]) await fails(open(wrong), /expected an address|no files/);
});
await test('damaged data is an error', async () => {
  await fails(open(path.join(data, 'none')), /none/);
  const pets = await open(path.join(data, 'damaged'));
  await fails(pets.column('photo'), /checksum mismatch/);
  await fails(open(path.join(data, 'gap')), /missing shards 1/);
});

// ---- Chromium ----

if (page_too) {
  const browser = await launch(), page = await browser.page();
  fs.writeFileSync(path.join(data, 'page.html'), '<!doctype html><title>page</title>');
  await page.open(`${near.url}/d/page.html`);
  const digest = `async data => [...new Uint8Array(await crypto.subtle.digest('SHA-256', data))].map(byte => byte.toString(16).padStart(2, '0')).join('')`;
  const library = JSON.stringify(`${near.url}/npm/index.mjs`), pets = JSON.stringify(address);
  await test('the golden data in Chromium', async () => {
    for (const manifest of manifests()) {
      const from = JSON.stringify(`${near.url}/golden/${manifest.data}`);
      const why = await compare(manifest, () => page.run(`import(${library}).then(async ({open}) => (${read})(await open(${from}), ${digest}))`));
      assert(!why, `${manifest.name}: ${why}`);
    }
  });
  const words = `const pets = await open(${pets}), zip = await (await fetch(${pets} + '.zip')).blob();
    const file = new File([zip], 'pets.zip'), found = await pets.find('label', 7);
    return [pets.length, (await pets.get(7, 'words')).words[1], found.length, (await open(file)).length].join()`;
  await test('a page', async () => equal(await page.run(`import(${library}).then(async ({open}) => { ${words} })`), '600,cat 7,60,600'));
  await test('a worker', async () => {
    const code = JSON.stringify(`import {open} from ${library}; const run = async () => { ${words} }; run().then(postMessage, error => postMessage(error.message));`);
    equal(await page.run(`new Promise(done => {
      const worker = new Worker(URL.createObjectURL(new Blob([${code}], {type: 'text/javascript'})), {type: 'module'});
      worker.onmessage = ({data}) => done(data);
      worker.onerror = ({message}) => done(message);
    })`), '600,cat 7,60,600');
  });
  await browser.close();
}
near.close();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed || !passed ? 1 : 0);
