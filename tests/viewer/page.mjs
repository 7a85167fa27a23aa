// page.mjs - the viewer in Chromium: what it shows, faults, hostile data, requests.
//
//     node tests/viewer/page.mjs build/viewer.html DATA build/release/bags     (DATA by data.py)
import path from 'node:path';
import fs from 'node:fs';
import crypto from 'node:crypto';
import {spawn} from 'node:child_process';
import {launch, serve, serve_nginx} from './browser.mjs';
import {golden, manifests, read, compare} from './manifests.mjs';

const [html, data, bags] = process.argv.slice(2);
let passed = 0, failed = 0;
const servers = [];
const server = async (roots, options) => { servers.push(await serve(roots, options)); return servers.at(-1); };
const site = await server({page: path.dirname(html)});
const near = await server({d: data, golden}), far = await serve_nginx(data, 30) ?? await server({d: data}, {delay: 30});
servers.push(far);
const blind = await server({d: data}, {cors: false}), whole = await server({d: data}, {ranges: false});
const browser = await launch(), page = await browser.page();
const show = (name, from = near) => page.open(`${site.url}/page/${path.basename(html)}#ds=${from.url}/d/${name}`);
const titled = title => page.wait(`document.title === ${JSON.stringify(title)}`);
const field = (index, name) => `document.querySelector('[data-index="${index}"] [data-field="${name}"]')`;
const alert_has = words => page.wait(`${JSON.stringify(words)}.every(w => document.querySelector('[role=alert]').textContent.includes(w))`);
const assert = (value, what) => { if (!value) throw Error(what); };

async function test(name, run) {
  try {
    await page.size(1280, 800);
    await run();
    const thrown = page.events.find(event => event.method === 'Runtime.exceptionThrown');
    assert(!thrown, `exception: ${JSON.stringify(thrown?.params.exceptionDetails.exception?.description)}`);
    console.log(`ok      ${name}`);
    passed++;
  } catch (error) {
    console.log(`FAILED  ${name}: ${error.message}`);
    failed++;
  }
}

await test('it has one file, whose policy names hashes', async () => {
  const text = fs.readFileSync(html, 'utf8'), policy = /Content-Security-Policy" content="([^"]*)"/.exec(text)[1];
  const hash = kind => crypto.createHash('sha256').update(new RegExp(`<${kind}[^>]*>([^]*?)</${kind}>`).exec(text)[1]).digest('base64');
  assert(policy.startsWith("default-src 'none'; "), policy);
  assert(policy.includes(`script-src 'sha256-${hash('script')}' 'wasm-unsafe-eval';`), policy);
  assert(policy.includes(`style-src 'sha256-${hash('style')}';`) && !/unsafe-inline|'unsafe-eval'/.test(policy), policy);
  assert(!/(src|href)=["']?https?:/.test(text), 'it refers to another file');
});
await test('the golden data have the digests that an independent reader recorded', async () => {
  const lines = fs.readFileSync(html, 'utf8').split('\n'), url = `${site.url}/page/${path.basename(html)}`;
  await page.within(url, lines.lastIndexOf('follow();'), 'window.page = {Dataset, Http}');
  const digest = `async data => [...new Uint8Array(await crypto.subtle.digest('SHA-256', data))].map(byte => byte.toString(16).padStart(2, '0')).join('')`;
  const all = manifests();
  for (const manifest of all) {
    const address = JSON.stringify(`${near.url}/golden/${manifest.data}`);
    const why = await compare(manifest, () => page.run(`(${read})(new page.Dataset(new page.Http(${address})), ${digest})`));
    assert(!why, `${manifest.name}: ${why}`);
  }
  assert(all.length > 90, `${all.length} of them`);
});
await test('folders and files that are dropped or picked', async () => {
  const pets = path.resolve(data, 'pets'), sound = path.resolve(golden, 'bags-0.5.1/sh-length/data');
  const again = () => page.run(`document.querySelector('#other').click()`);
  await page.open(`${site.url}/page/${path.basename(html)}`);
  for (const [give, name] of [[() => page.drop([pets]), 'pets'], [() => page.drop([`${pets}.zip`]), 'pets.zip'],
    [() => page.drop([`${pets}/label.bag`]), 'label.bag'], [() => page.pick('#folder', [pets]), 'pets'], [() => page.pick('#zip', [`${pets}.zip`]), 'pets.zip']]) {
    await page.wait(`!document.querySelector('#start').hidden`);
    await give();
    await titled(`${name}: 60 datapoints`);
    await again();
  }
  await page.open(`file://${path.resolve(html)}`);
  await page.wait(`!document.querySelector('#start').hidden`);
  await page.drop([sound]);
  await page.wait(`/^data: [1-9]\\d* datapoints$/.test(document.title)`);
  await page.wait(`document.querySelector('.card .value').textContent`);
});
await test('a dataset, its fields and its datapoints', async () => {
  await show('pets');
  await titled('pets: 60 datapoints');
  const names = await page.run(`[...document.querySelectorAll('[data-name]')].map(e => e.dataset.name + ' ' + e.textContent)`);
  assert(names.length === 6 && names[0].includes('caption') && names[0].includes('utf8'), names.join());
  await page.wait(`${field(4, 'image')}.querySelector('img').naturalWidth === 32`);
  assert((await page.run(`${field(4, 'caption')}.textContent`)).includes('a dog'), 'caption');
  await page.wait(`/caption utf8 ?300 B, 0\\.1 %/.test(document.querySelector('[data-name=caption]').textContent)`);
  const asked = page.events.filter(({method}) => method === 'Network.requestWillBeSent').map(({params}) => params.request.url);
  assert(asked.every(url => url.startsWith(`${site.url}/page/${path.basename(html)}`) || url.startsWith(`${near.url}/d/pets/`) || url.startsWith('blob:')), asked.join());
});
await test('the sizes of fields are those of all shards, or estimates', async () => {
  await show('shards');
  await page.wait(`/\u2248 120 KB, /.test(document.querySelector('[data-name=label]').textContent)`);
});
await test('one datapoint by its address, then another', async () => {
  await show('pets&i=7');
  await page.wait(`document.querySelector('#detail').dataset.index === '7' && ${field(7, 'frames')}.querySelectorAll('img').length === 3`);
  assert((await page.run(`${field(7, 'label')}.textContent`)).includes('1'), 'label');
  await page.run(`location.hash = location.hash.replace('i=7', 'i=8')`);
  await page.wait(`${field(8, 'caption')}.textContent.includes('owl')`);
  await page.run(`document.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))`);
  await page.wait(`location.hash.endsWith('&i=9') && ${field(9, 'wave')}.querySelector('canvas')`);
});
await test('faults of the address', async () => {
  await show('pets&i=60');
  await alert_has(['60', 'out of range', '60)']);
  await show('pets&i=x');
  await alert_has(['not the number']);
  await page.open(`${site.url}/page/${path.basename(html)}#ds=file:///etc`);
  await alert_has(['http://']);
  await page.open(`${site.url}/page/${path.basename(html)}#ds=javascript:alert(1)`);
  await alert_has(['http://']);
  await show('nothing');
  await alert_has(['nothing']);
});
await test('compressed fields, with and without dictionaries', async () => {
  if (!fs.readFileSync(html, 'utf8').includes('decoder of libzstd')) return console.log('        skipped: the page was built without libzstd');
  for (const [name, i] of [['compressed', 7], ['dictionaries', 7], ['dictionaries', 31], ['dictionaries', 37]]) {
    await show(`${name}&i=${i}`);
    await page.wait(`${field(i, 'image')}.querySelector('img').naturalWidth === 32 && document.querySelector('#detail canvas')`);
    for (const [name, text] of [['caption', ['a cat', 'a dog', 'a owl'][i % 3]], ['label', String(i % 3)], ['meta', `id${i}`], ['wave', i === 7 ? 'float32 32, 0 to 0' : 'float32 32, 0 to 6']])
      assert((await page.run(`document.querySelector('#detail [data-field=${name}]').textContent`)).includes(text), name);
  }
});
await test('a zip', async () => {
  await show('pets.zip');
  await titled('pets.zip: 60 datapoints');
  await page.wait(`${field(3, 'image')}.querySelector('img').naturalWidth === 32`);
});
await test('a wrong checksum is in its field', async () => {
  await show('sum');
  await page.wait(`${field(0, 'caption')}.textContent.includes('checksum mismatch')`);
  await page.wait(`${field(1, 'caption')}.textContent.includes('number 1')`);
});
await test('a damaged image is in its field', async () => {
  await show('torn');
  await page.wait(`${field(0, 'image')}.textContent.includes('damaged')`);
  await page.wait(`${field(5, 'image')}.querySelector('img').naturalWidth === 32`);
});
await test('a missing shard', async () => {
  await show('gap');
  await alert_has(['missing shards 3', 'found 5 of 6']);
  await titled('gap: 50 datapoints');
});
await test('a server without CORS headers', async () => {
  await show('pets', blind);
  await alert_has(['Access-Control-Allow-Origin']);
});
await test('a server without ranges', async () => {
  await show('pets', whole);
  await alert_has(['ranges']);
  await show('long', whole);
  await alert_has(['ranges']);
});
await test('a hostile dataset runs no script', async () => {
  await show('hostile&i=0');
  await titled('hostile: 1 datapoints');
  await page.wait(`document.querySelectorAll('#detail [data-field] .value').length === 12`);
  await page.wait(`[...document.querySelectorAll('#detail .value')].every(e => e.textContent || e.querySelector('img'))`);
  assert(!(await page.run(`window.attacked`)), 'a script ran');
  assert(!(await page.run(`document.querySelector('#detail img, #detail script, svg')`)), 'an element of the dataset');
  for (const [name, words] of [['vast', '65,535 x 65,535'], ['vast2', '65,535 x 65,535'], ['vast3', 'without a size'], ['vast4', '65,536 x 65,536']])
    assert((await page.run(`${field(0, name)}.textContent`)).includes(words), name);
  assert(/larger than|too large|without libzstd/.test(await page.run(`${field(0, 'bomb')}.textContent`)), 'bomb');
});
await test('60,000 fields, a million, and a blob of 4 GB, hang nothing', async () => {
  await show('million');
  await alert_has(['million/spec.json: too large']);
  await show('million.zip');
  await alert_has(['spec.json: too large', 'maximum']);
  await show('wide&i=0');
  await titled('wide: 1 datapoints');
  await page.run('1 + 1');
  await show('endless&i=0');
  await page.wait(`/too large .*4294967296 bytes/.test(${field(0, 'image')}.textContent)`);
});
await test('1,000 shards, 30 ms away', async () => {
  await show('pets', far);
  await titled('pets: 60 datapoints');
  const begin = Date.now();
  await show('shards', far);
  const end = await page.when(`[...document.querySelectorAll('.card img')].filter(e => e.naturalWidth === 32).length >= 20`);
  const {requests, bytes} = page.traffic(far.url, 0, end);
  console.log(`        first thumbnails: ${end - begin} ms, ${requests} requests, ${bytes} bytes`);
  assert(requests <= 40 && bytes <= 1e6, 'more than 40 requests or 1 MB');
  await titled('shards: 30000 datapoints');
  console.log(`        all shards: ${Date.now() - begin} ms, ${page.traffic(far.url).requests} requests`);
});
await test('10 million rows, 30 ms away', async () => {
  await show('long', far);
  await titled('long: 10000000 datapoints');
  await page.wait(`${field(0, 'label')}.textContent.includes('0')`);
  const begin = Date.now(), before = page.events.length;
  await page.run(`{ const grid = document.querySelector('#grid'); grid.scrollTop = (grid.scrollHeight - grid.clientHeight) / 2; }`);
  const end = await page.when(`[...document.querySelectorAll('.card')].some(c => Math.abs(c.dataset.index - 5e6) < 1e4 && c.querySelector('.value').textContent === c.dataset.index)`);
  const {requests, bytes} = page.traffic(far.url, before, end);
  console.log(`        the middle: ${end - begin} ms, ${requests} requests, ${bytes} bytes`);
  assert(requests <= 40 && bytes <= 1e6, 'more than 40 requests or 1 MB');
  await page.run(`document.querySelector('#jump').value = '9999999'; document.querySelector('#jump').onchange()`);
  await page.wait(`${field(9999999, 'label')}.textContent.includes('9999999')`);
});
await test('bags view', async () => {
  const job = spawn(bags, ['view', `${data}/gap`, '--no-browser'], {env: {...process.env, BAGS_VIEWER: html}});
  try {
    const address = await new Promise((done, gone) => { job.stdout.once('data', text => done(String(text).trim())); job.once('exit', gone); });
    await page.open(address);
    await alert_has(['missing shards 3']);
    await titled('gap: 50 datapoints');
    await page.wait(`${field(4, 'image')}.querySelector('img').naturalWidth === 32`);
  } finally { job.kill(); }
});
await test('a first shard that is damaged', async () => {
  await show('first');
  await alert_has(['000000']);
  await titled('first: 40 datapoints');
});
await test('video, in place', async () => {
  await show('video&i=0');
  await page.wait(`${field(0, 'clip')}.querySelector('video').videoWidth > 0`);
});
await test('filter, and histogram', async () => {
  await show('pets');
  await titled('pets: 60 datapoints');
  await page.wait(`${field(3, 'caption')}.textContent.includes('cat')`);
  await page.run(`{ const f = document.querySelector('#filter'); f.value = 'dog, label=1'; f.oninput(); }`);
  await page.wait(`document.querySelector('#note').textContent.includes('that were loaded match')`);
  await page.wait(`[...document.querySelectorAll('.card')].every(c => c.textContent.includes('a dog'))`);
  await page.run(`document.querySelector('#chart').click()`);
  await page.wait(`document.querySelector('#dialog').textContent.includes('0 to 2, mean 1; all 60 datapoints')`);
});
await test('the filter compares exact numbers, and says what it did not search', async () => {
  const note = words => page.wait(`${JSON.stringify(words)}.every(w => document.querySelector('#note').textContent.includes(w))`);
  const type = text => page.run(`{ const f = document.querySelector('#filter'); f.value = ${JSON.stringify(text)}; f.oninput(); }`);
  const load = () => page.run(`[...document.querySelectorAll('#note button')].find(b => b.textContent.startsWith('Load')).click()`);
  await show('numbers');
  await titled('numbers: 40 datapoints');
  await page.wait(`${field(4, 'text')}.textContent.includes('needle4')`);
  assert((await page.run(`${field(1, 't')}.textContent`)).includes('1700000123.75'), 't');
  await type('z=7'); // more fields than a card has
  await note(['0 of the ', 'Not searched: ', 'list, ', 'z of ', '(not loaded)', 'text of 1 datapoint after 2,000 characters', 'wave']);
  await load();
  await note(['1 of the 40 datapoints that were loaded match (of 40). Not searched: list, text of 1 datapoint after 2,000 characters, wave.']);
  assert(!(await page.run(`document.querySelector('#note').textContent.includes('Load')`)), 'nothing more can be loaded');
  for (const [words, count] of [['t=1700000123.5', 1], ['t=1.7000001235e9', 1], ['t=1700000124', 1], ['t=1700000123.6', 0], ['h=0.10', 1], ['h=0.3', 1], ['needle3', 10], ['needle39, z=39', 1], ['wave=1', 0]]) {
    await type(words);
    await note([`${count} of the 40 datapoints`]);
  }
  await page.run(`document.querySelector('#chart').click()`);
  for (const [name, text] of [['t', '1700000123.5 to 1700000133.25, mean 1700000128.375; all 40 datapoints'], ['h', '0 to 3.9, mean 1.95']]) {
    await page.run(`{ const s = document.querySelector('#dialog select'); s.selectedIndex = [...s.options].findIndex(o => o.textContent === '${name}'); s.onchange(); }`);
    await page.wait(`document.querySelector('#dialog').textContent.includes(${JSON.stringify(text)})`);
  }
});
await test('a key', async () => {
  const find = text => page.run(`document.querySelector('#key').value = ${JSON.stringify(text)}; document.querySelector('#key').onchange()`);
  const choose = name => page.run(`{ const f = document.querySelector('#key_field'); f.selectedIndex = [...f.options].findIndex(o => o.textContent === '${name}'); f.onchange(); }`);
  for (const name of ['pets', 'pets.zip', 'six']) {
    await show(name);
    await page.wait(`!document.querySelector('#keys').hidden`);
    if (name !== 'six') await choose('label');
    await find('2');
    await page.wait(`document.querySelector('#note').textContent.includes('20 datapoints have label = 2')`);
    await page.wait(`[...document.querySelectorAll('.card')].every(c => c.dataset.index % 3 === 2) && location.hash.endsWith('&i=2')`);
    await find('7');
    await alert_has(['no datapoint has label = 7']);
    await find('x');
    await alert_has(['"x" is not a number']);
    await find('');
    await page.wait(`document.querySelector('[role=alert]').hidden && document.querySelector('#note').hidden`);
  }
  await show('pets');
  await page.wait(`!document.querySelector('#keys').hidden`);
  await choose('caption');
  await find('a d*');
  await page.wait(`document.querySelector('#note').textContent.includes('20 datapoints have caption = a d*')`);
  await find('a d**');
  await alert_has(['no datapoint has caption']);
});
await test('a telephone', async () => {
  await page.size(400, 800);
  await show('pets&i=5');
  await page.wait(`${field(5, 'caption')}.textContent.includes('owl')`);
  assert(await page.run(`document.documentElement.scrollWidth <= 400`), 'it is wider than the screen');
});

await browser.close();
for (const one of servers) one.close();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed || !passed ? 1 : 0);
