// live.mjs - `bags view --live` in Chromium: what is flushed appears within a second, while
// writers run, crash and are continued, and nothing that was shown is taken back; episodes.
//
//     node tests/viewer/live.mjs build/viewer.html DIR build/release/bags [KILLS]
import {spawn, spawnSync} from 'node:child_process';
import fs from 'node:fs';
import {launch} from './browser.mjs';

const [html, dir, bags, kills = process.env.BAGS_QUICK ? 5 : 50] = process.argv.slice(2);
const POLLS_MOST = 5; // of 200 ms
const ROW = 1100000; // bytes: `bags pack` flushes after a MiB
const path = name => `${dir}/${name}`;
let passed = 0, failed = 0;
const assert = (value, what) => { if (!value) throw Error(what); };
const browser = await launch(), page = await browser.page();
const jobs = new Set();

function start(...words) {
  const job = spawn(bags, words, {stdio: ['pipe', 'pipe', 'pipe'], env: {...process.env, BAGS_VIEWER: html}});
  jobs.add(job);
  job.said = '';
  job.stderr.on('data', text => { job.said += text; });
  job.stdin.on('error', () => {});
  job.ended = new Promise(done => job.once('exit', code => { jobs.delete(job); done(code); }));
  return job;
}

async function until(ready, what) {
  for (let i = 0; i < 60000; i++, await new Promise(done => setTimeout(done, 10))) if (ready()) return;
  throw Error(`it does not come: ${what}`);
}

const size = name => { try { return fs.statSync(path(name)).size; } catch { return -1; } };
const row = n => JSON.stringify({n, pad: String.fromCharCode(97 + n % 26).repeat(ROW)}) + '\n';
const SPEC = ['--spec', 'n=int(4),pad=utf8', '--no-sync'];

// Write a row, and wait until the writer has flushed it: `count` datapoints of the shard.
async function put(job, shard, n, count) {
  job.stdin.write(row(n));
  await until(() => size(`${shard}/refs.idx`) >= 8 * count || job.exitCode !== null, `row ${n}`);
  assert(job.exitCode === null, job.said);
}

async function view(name) {
  const job = start('view', path(name), '--live', '--no-browser');
  const address = await new Promise((done, gone) => { job.stdout.once('data', text => done(String(text).trim())); job.once('exit', () => gone(Error(job.said))); });
  assert(/^http:\/\/127\.0\.0\.1:\d+\/[0-9a-f]+\/#live$/.test(address), address);
  await page.open(address);
  await page.wait(`/datapoints$/.test(document.title)`);
  // What a card showed at any time must stay: its number, and that there are as many.
  await page.run(`{
    window.most = 0; window.shown = new Map(); window.lost = [];
    const look = () => {
      const length = Number(/(\\d+) datapoints$/.exec(document.title)?.[1] ?? -1);
      if (length < most) lost.push(document.title);
      most = Math.max(most, length);
      for (const card of document.querySelectorAll('.card')) {
        const text = card.querySelector('[data-field=n] .value').textContent, before = shown.get(card.dataset.index);
        if (before && text !== before && text) lost.push(card.dataset.index + ': ' + before + ' became ' + text);
        if (text) shown.set(card.dataset.index, text);
      }
    };
    new MutationObserver(look).observe(document.documentElement, {subtree: true, childList: true, characterData: true, attributes: true});
    look();
  }`);
  return job;
}

const says = words => page.wait(`document.querySelector('#live').textContent.includes(${JSON.stringify(words)})`);
const polls = () => page.events.filter(({method, params}) => method === 'Network.requestWillBeSent' && params.request.url.endsWith('/live')).length;
const visible = (index, n) => `document.querySelector('.card[data-index="${index}"] [data-field=n] .value')?.textContent === '${n}'`;

// It was flushed: the page shows it after few of its looks.
async function appears(index, n) {
  const before = polls();
  await page.wait(visible(index, n));
  const used = polls() - before;
  assert(used <= POLLS_MOST, `datapoint ${index} was shown after ${used} looks`);
}

async function test(name, run) {
  let viewer = null;
  try {
    await page.size(1280, 800);
    await run(async of => { viewer = await view(of); });
    const thrown = page.events.find(event => event.method === 'Runtime.exceptionThrown');
    assert(!thrown, `exception: ${JSON.stringify(thrown?.params.exceptionDetails.exception?.description)}`);
    console.log(`ok      ${name}`);
    passed++;
  } catch (error) {
    console.log(`FAILED  ${name}: ${error.message}`);
    failed++;
  }
  for (const job of jobs) job.kill('SIGKILL');
  await viewer?.ended;
}

const untouched = async () => { const lost = await page.run('lost'); assert(!lost.length, lost.slice(0, 5).join('; ')); };

await test('datapoints that are flushed appear, and their writer', async open => {
  const job = start('pack', '-', path('one'), ...SPEC);
  await put(job, 'one', 0, 1);
  await open('one');
  await page.wait(visible(0, 0));
  await says('a writer is running and holds the lock');
  for (let n = 1; n < 30; n++) {
    await put(job, 'one', n, n + 1);
    await appears(n, n); // the grid follows the end
  }
  job.stdin.end();
  assert(await job.ended === 0, job.said);
  await says('no writer is running: the dataset is finished');
  await page.run(`document.querySelector('#grid').scrollTop = 0; document.querySelector('#grid').onscroll()`);
  await page.wait(visible(0, 0));
  await page.run(`location.hash = '#live&i=7'`);
  await page.wait(`document.querySelector('#detail').dataset.index === '7' && document.querySelector('#detail [data-field=n] .value').textContent === '7'`);
  await untouched();
});

await test(`a writer is killed ${kills} times`, async open => {
  let n = 0, opened = false;
  for (let kill = 0; kill < kills; kill++) {
    const shard = `killed/${String(kill).padStart(6, '0')}`;
    const job = start('pack', '-', path('killed'), ...SPEC, '--shard-length', '1000', ...kill ? ['--append'] : []);
    await put(job, shard, n, 1);
    if (!opened) await open('killed');
    opened = true;
    await appears(n, n);
    await says('a writer is running');
    await put(job, shard, n + 1, 2);
    job.stdin.write(row(1000000).slice(0, ROW / 2)); // half a row
    job.kill('SIGKILL');
    await job.ended;
    await appears(n + 1, n + 1);
    await says('no writer is running: it crashed');
    n += 2;
    const recovered = spawnSync(bags, ['recover', path('killed')]);
    assert(recovered.status === 0, String(recovered.stderr));
  }
  await says('the dataset is finished');
  assert(await page.run(`document.title === 'killed: ${n} datapoints'`), 'the length');
  for (let index = 0; index < n; index += 7) {
    await page.run(`location.hash = '#live&i=${index}'`);
    await page.wait(`document.querySelector('#detail').dataset.index === '${index}' && document.querySelector('#detail [data-field=n] .value').textContent === '${index}'`);
  }
  await untouched();
});

await test('of several workers, each datapoint keeps its number', async open => {
  const job = [0, 1].map(w => start('pack', '-', path('two'), ...SPEC, '--shard-length', '1000', '--shard-start', String(w), '--shard-stop', '2'));
  // pack gives worker w the rows w, w + 2, ...: each gets all of them.
  const write = async n => {
    job.forEach(one => one.stdin.write(row(n)));
    await until(() => size(`two/00000${n % 2}/refs.idx`) >= 8 * (Math.floor(n / 2) + 1), `row ${n}`);
  };
  await write(0);
  await open('two');
  for (let n = 1; n < 16; n++) {
    await write(n);
    await appears(n, n);
  }
  await says('2 writers are running and hold their locks');
  job[0].kill('SIGKILL');
  await says('a writer is running');
  job[1].stdin.end();
  await job[1].ended;
  await says('it crashed');
  assert(spawnSync(bags, ['recover', path('two')]).status === 0, 'recover');
  await says('the dataset is finished');
  assert(spawnSync(bags, ['finalize', path('two')]).status === 0, 'finalize');
  await page.run(`location.hash = '#live&i=11'`);
  await page.wait(`document.querySelector('#detail [data-field=n] .value').textContent === '11'`);
  await untouched();
});

await test('a dataset that is replaced is gone, and stays on the page', async open => {
  const make = (from, count) => {
    const input = Array.from({length: count}, (_, i) => JSON.stringify({n: from + i, pad: 'x'}) + '\n').join('');
    const made = spawnSync(bags, ['pack', '-', path('other'), ...SPEC], {input});
    assert(made.status === 0, String(made.stderr));
  };
  make(0, 3);
  await open('other');
  await page.wait(visible(2, 2));
  fs.rmSync(path('other'), {recursive: true});
  await says('nothing new is shown');
  make(100, 2);
  await page.wait(visible(4, 101)); // numbers 3 and 4
  await page.wait(`document.querySelector('[role=alert]').textContent.includes('3 datapoints are gone')`);
  await untouched();
});

await test('the server ends', async open => {
  await open('one');
  for (const job of jobs) job.kill('SIGKILL');
  await says('it is not known whether a writer is running');
  assert(await page.run(`document.title === 'one: 30 datapoints' && document.querySelectorAll('.card').length > 5`), 'what was shown');
});

// Two cameras at 10 and 5 Hz, a vector at 100 Hz, numbers without times.
await test('curves and cameras of an episode', async () => {
  const times = (count, hz) => Array.from({length: count}, (_, i) => 100 + i / hz);
  const picture = shade => Array.from({length: 4}, () => Array.from({length: 6}, () => [shade, shade, shade]));
  const episode = count => JSON.stringify({left: Array.from({length: count}, (_, i) => picture(i)), left_time: times(count, 10),
    right: Array.from({length: count / 2}, (_, i) => picture(255 - i)), right_time: times(count / 2, 5),
    joints: Array.from({length: count * 10}, (_, i) => [Math.sin(i / 50), i === 7 ? NaN : i]), joints_time: times(count * 10, 100),
    mode: Array.from({length: 5}, (_, i) => i % 2), task: 'wave'}).replaceAll('null', 'NaN') + '\n';
  const spec = 'left=array(uint8,4,6,3)[],right=array(uint8,4,6,3)[],joints=array(float32,2)[],mode=int(4)[],task=utf8,' +
    ['left', 'right', 'joints'].map(name => `${name}_time=array(float64)[]`).join(',');
  const made = spawnSync(bags, ['pack', '-', path('robot'), '--no-sync', '--spec', spec], {input: episode(20) + episode(40)});
  assert(made.status === 0, String(made.stderr));
  const viewer = start('view', path('robot'), '--no-browser');
  const still = await new Promise(done => viewer.stdout.once('data', text => done(String(text).trim())));
  const following = start('view', path('robot'), '--live', '--no-browser');
  const live = await new Promise(done => following.stdout.once('data', text => done(String(text).trim())));
  for (const address of [`${still}&i=1`, `${live}&i=1`]) {
    await page.open(address);
    await page.wait(`document.querySelector('[data-curve=joints]')?.dataset.drawn === '400' && document.querySelector('[data-curve=mode]')?.dataset.drawn === '5'`);
    const words = await page.run(`document.querySelector('.episode').innerText`);
    assert(words.includes('400 items over joints_time, -0.999971 to 399') && words.includes('5 items without times: spread evenly, 0 to 1'), words);
    assert(await page.run(`[...document.querySelectorAll('[data-curve]')].map(e => e.dataset.curve).join() === 'joints,mode'`), 'times are no curves');
    const frames = `[...document.querySelectorAll('[data-camera] figcaption')].map(e => e.dataset.frame).join()`;
    await page.wait(`${frames} === '0,0'`);
    // 40 frames at 10 Hz and 20 at 5 Hz, up to joints_time 103.99: the frames at or before a time.
    for (const [part, expected] of [[500, '19,9'], [1000, '39,19'], [251, '10,5'], [0, '0,0']]) {
      await page.run(`{ const bar = document.querySelector('.player input'); bar.value = ${part}; bar.oninput(); }`);
      await page.wait(`${frames} === '${expected}'`);
    }
    assert(await page.run(`document.querySelectorAll('[data-camera] canvas').length === 2`), 'cameras');
    await page.run(`document.querySelector('.player button').click()`);
    await page.wait(`Number(${frames}.split(',')[0]) >= 5`); // it plays
    await page.run(`document.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft'}))`);
    await page.wait(`document.querySelector('#detail').dataset.index === '0' && document.querySelector('[data-curve=joints]')?.dataset.drawn === '200'`);
  }
});

await test('a video is a camera', async () => {
  const input = JSON.stringify({clip: {file: `${process.cwd()}/tests/data/video/vp8_hidden.webm`}, clip_time: [0, 1, 2, 3], level: [4, 5, 6, 7], level_time: [0, 1, 2, 3]}) + '\n';
  const made = spawnSync(bags, ['pack', '-', path('video'), '--no-sync', '--spec', 'clip=webm,clip_time=float64[],level=int[],level_time=float64[]'], {input});
  assert(made.status === 0, String(made.stderr));
  const job = start('view', path('video'), '--live', '--no-browser');
  const address = await new Promise(done => job.stdout.once('data', text => done(String(text).trim())));
  await page.open(`${address}&i=0`);
  const video = `document.querySelector('[data-camera=clip] video')`;
  await page.wait(`${video}?.videoWidth > 0 && document.querySelector('[data-curve=level]')?.dataset.drawn === '4'`);
  for (const [part, share] of [[1000, 3.5 / 4], [500, 1.5 / 4]]) { // the middle of the frame at or before the time
    await page.run(`{ const bar = document.querySelector('.player input'); bar.value = ${part}; bar.oninput(); }`);
    await page.wait(`Math.abs(${video}.currentTime / ${video}.duration - ${share}) < 0.1`);
  }
});

await browser.close();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed || !passed ? 1 : 0);
