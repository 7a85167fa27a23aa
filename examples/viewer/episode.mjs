// episode.mjs - shows an episode: the numbers in its sequences as curves over time, next to
// all its cameras, in sync.
import {element, grouped, kind_of, show} from './values.mjs';

const CURVE_ITEMS = 20000; // if a sequence is longer, every n-th item is drawn
const CURVE_ELEMENTS = 64; // per vector
const CURVES_MOST = 24, CAMERAS_MOST = 12;
const WIDTH = 1200, HEIGHT = 180; // size of a curve in pixels
const FRAME_BYTES = 16 << 20;
const ITEMS_PER_SECOND = 10; // playback speed, if there are no times

const elements_of = field => {
  const shape = /^array\(\w+((?:,\d+)*)\)/.exec(field.inside);
  return shape ? shape[1].split(',').reduce((a, b) => a * (b || 1), 1) : /^(int|u64|i64)$/.test(field.base) ? 1 : Infinity;
};
const is_frame = field => /^array\(uint8,\d+,\d+,[134]\)/.test(field.inside);
const is_camera = field => kind_of(field) === 'video' || field.sequence && (kind_of(field) === 'image' || is_frame(field));
const is_curve = field => field.sequence && field.type.startsWith(field.inside) && !/complex/.test(field.type) &&
  elements_of(field) <= CURVE_ELEMENTS;
const is_times = field => /^array\(float64\)\[\]$/.test(field.type);

// The times of a field are in a field with the same number of items called NAME_time,
// NAME_times or NAME_timestamp(s), or one of these without NAME.
function times_of(field, count, all) {
  const fits = all.filter(one => one.count === count && one.field !== field);
  const named = pattern => fits.find(one => pattern.test(one.field.name));
  const name = field.name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
  return named(RegExp(`^${name}[_./ -]?(time|times|timestamp|timestamps|t)$`, 'i')) ?? named(/^(time|times|timestamp|timestamps|t)$/i) ?? null;
}

const ascends = numbers => numbers.every((number, i) => Number.isFinite(number) && (i === 0 || number >= numbers[i - 1]));

// The last item at or before a time, or the first item if there is none.
function item_at(times, time) {
  let low = 0, high = times.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (times[middle] <= time) low = middle; else high = middle - 1;
  }
  return low;
}

const shown_number = number => Number.isFinite(number) ? String(Number(number.toPrecision(6))) : String(number);

// Draw a line for each element.
function draw(canvas, {elements, numbers}, times, low_x, high_x) {
  const context = canvas.getContext('2d'), count = elements ? numbers.length / elements : 0;
  let low = Infinity, high = -Infinity;
  for (const number of numbers)
    if (Number.isFinite(number)) { low = Math.min(low, number); high = Math.max(high, number); }
  const x = i => (times[i] - low_x) / (high_x - low_x || 1) * WIDTH;
  const y = number => high > low ? HEIGHT - 6 - (number - low) / (high - low) * (HEIGHT - 12) : HEIGHT / 2;
  context.clearRect(0, 0, WIDTH, HEIGHT);
  context.lineWidth = 2;
  for (let k = 0; k < elements; k++) {
    context.strokeStyle = `hsl(${(215 + 360 * k / elements) % 360} 70% 50%)`;
    context.beginPath();
    let broken = true; // a number that is not finite breaks the line
    for (let i = 0; i < count; i++) {
      const number = numbers[i * elements + k];
      if (!Number.isFinite(number)) broken = true;
      else if (broken) { context.moveTo(x(i), y(number)); broken = false; }
      else context.lineTo(x(i), y(number));
    }
    context.stroke();
  }
  return low <= high ? `${shown_number(low)} to ${shown_number(high)}` : 'no finite number';
}

// Show an episode in `out`. It stays empty if the datapoint has neither curves nor cameras.
export async function episode(dataset, index, out, is_stale) {
  const counted = await Promise.all(dataset.fields.filter(field => is_curve(field) || is_camera(field)).slice(0, 200).map(async field =>
    ({field, count: field.sequence ? await dataset.items(index, field.number).catch(() => 0) : 1})));
  const sequences = counted.filter(({field, count}) => count > 1 && is_curve(field));
  const cameras = counted.filter(({field, count}) => is_camera(field) && (field.sequence && kind_of(field) !== 'video' ? count > 1 : count > 0)).slice(0, CAMERAS_MOST);
  if (is_stale() || !sequences.length && !cameras.some(({field}) => field.sequence)) return;
  const read = async (field, count) => {
    const step = Math.ceil(count / CURVE_ITEMS);
    return {step, ...await dataset.curve(index, field.number, 0, count, step)};
  };

  // Times in seconds. Times that do not ascend are drawn as a curve instead.
  const clocks = [];
  await Promise.all(sequences.filter(({field}) => is_times(field)).map(async ({field, count}) => {
    const {step, numbers} = await read(field, count).catch(() => ({numbers: []}));
    if (numbers.length && ascends(numbers)) clocks.push({field, count, step, numbers});
  }));
  if (is_stale()) return;
  const curves = sequences.filter(one => !is_camera(one.field)).map(one => ({...one, clock: times_of(one.field, one.count, clocks)}));
  const views = cameras.map(one => {
    const clock = times_of(one.field, one.count, clocks) ?? (kind_of(one.field) === 'video' && !one.field.sequence
      ? clocks.find(({field}) => RegExp(`^${one.field.name.replace(/\W/g, '.')}[_./ -]?(time|times|timestamp|timestamps|t)$`, 'i').test(field.name)) : null);
    return {...one, clock: clock ?? null};
  });
  const used = new Set([...curves, ...views].map(({clock}) => clock).filter(Boolean));
  const drawn = curves.filter(({field}) => ![...used].some(clock => clock.field === field)).slice(0, CURVES_MOST);
  const has_times = used.size > 0;
  const longest = Math.max(1, ...[...curves, ...views].map(({count}) => count - 1));
  const low = has_times ? Math.min(...[...used].map(({numbers}) => numbers[0])) : 0;
  const high = has_times ? Math.max(...[...used].map(({numbers}) => numbers[numbers.length - 1])) : longest;
  // Without times, items are spread evenly.
  const spread = count => Float64Array.from({length: count}, (_, i) => low + (high - low) * i / Math.max(count - 1, 1));

  const unit = has_times ? ' s' : '', bar = element('input'), play = element('button', '', '\u25B6'), now = element('span', 'soft');
  Object.assign(bar, {type: 'range', min: 0, max: 1000, step: 'any', value: 0, ariaLabel: 'Time'});
  play.title = play.ariaLabel = 'play';
  const figures = element('div', 'cameras');
  const rows = drawn.map(one => {
    const canvas = Object.assign(element('canvas'), {width: WIDTH, height: HEIGHT}), words = element('span', 'soft');
    const cursor = element('div', 'cursor'), area = element('div', 'curve', canvas, cursor);
    const row = element('div', '', element('div', 'key', element('b', '', one.field.name), words), area);
    row.dataset.curve = one.field.name;
    const from = one.clock ? `over ${one.clock.field.name}` : has_times ? 'without times: spread evenly' : 'over items';
    words.textContent = `${grouped(one.count)} items ${from}`;
    area.onclick = event => seek(low + (high - low) * event.offsetX / Math.max(area.clientWidth, 1));
    (async () => {
      try {
        const found = await read(one.field, one.count);
        if (is_stale()) return;
        const times = (one.clock ? one.clock.numbers : spread(one.count).filter((_, i) => i % found.step === 0));
        words.textContent += `, ${draw(canvas, found, times, low, high)}${found.step > 1 ? `; every ${found.step}th item is drawn` : ''}`;
        row.dataset.drawn = found.numbers.length / (found.elements || 1);
      } catch (error) { area.replaceChildren(element('span', 'fault', error.message)); }
    })();
    return row;
  });
  for (const view of views) {
    view.times = view.clock ? view.clock.numbers : spread(view.count);
    view.step = view.clock ? view.clock.step : 1;
    view.into = element('div');
    view.caption = element('figcaption', '', view.field.name);
    const figure = element('figure', '', view.into, view.caption);
    figure.dataset.camera = view.field.name;
    figures.append(figure);
  }
  out.append(...views.length ? [figures] : [], element('div', 'player', play, bar, now), ...rows);

  // Load a camera's frame at a time. Returns a function that shows it.
  const frame_at = async (view, time) => {
    const {field, times, count} = view;
    const item = field.sequence && kind_of(field) !== 'video' ? Math.min(item_at(times, time) * view.step, count - 1) : 0;
    if (kind_of(field) === 'video') {
      view.video ??= (async () => {
        const {node} = show(field, await dataset.blob(index, field.number, 0), true);
        view.into.replaceChildren(node);
        if (node.tagName !== 'VIDEO') return null;
        node.controls = false;
        await new Promise(done => { node.onloadedmetadata = done; node.addEventListener('error', done); });
        return node.duration > 0 ? node : null;
      })();
      const node = await view.video;
      if (!node) return () => {};
      const part = view.clock ? (item_at(times, time) + 0.5) / times.length : (time - low) / (high - low || 1);
      const to = view.clock || !has_times ? part * node.duration : time - low;
      await new Promise(done => {
        node.onseeked = done;
        node.currentTime = Math.min(Math.max(to, 0), Math.max(node.duration - 1e-3, 0));
        setTimeout(done, 1000);
      });
      return () => { view.caption.textContent = `${field.name}, ${node.currentTime.toFixed(2)} s`; };
    }
    if (view.item === item) return () => {};
    let node;
    try {
      node = show(field, await dataset.blob(index, field.number, item, FRAME_BYTES), false, FRAME_BYTES).node;
      await node.decode?.();
    } catch (error) { node = node?.isConnected === false && node.tagName !== 'IMG' ? node : element('span', 'fault', error.message); }
    return () => {
      view.item = item;
      view.into.replaceChildren(node);
      view.caption.textContent = `${field.name}, frame ${grouped(item)} of ${grouped(count)}`;
      view.caption.dataset.frame = item;
    };
  };

  // All cameras show the same time; they advance once all of them have loaded their frames.
  let time = low, wanted = null, busy = null;
  const paint = async () => {
    while (wanted !== null && !is_stale()) {
      const next = wanted;
      wanted = null;
      const shows = await Promise.all(views.map(view => frame_at(view, next).catch(error => () => view.into.replaceChildren(element('span', 'fault', error.message)))));
      if (is_stale()) return;
      for (const put of shows) put();
      out.dataset.time = next;
    }
    busy = null;
  };
  function seek(to) {
    time = Math.min(Math.max(to, low), high);
    const part = (time - low) / (high - low || 1);
    bar.value = 1000 * part;
    now.textContent = has_times ? `${(time - low).toFixed(2)} of ${(high - low).toFixed(2)}${unit}` : `item ${Math.round(time)} of ${grouped(longest + 1)}`;
    for (const row of rows) row.querySelector('.cursor')?.style.setProperty('left', `${100 * part}%`);
    wanted = time;
    busy ??= paint();
    return busy;
  }
  bar.oninput = () => seek(low + (high - low) * bar.value / 1000);
  let playing = false;
  play.onclick = async () => {
    playing = !playing;
    play.textContent = playing ? '\u23F8' : '\u25B6';
    if (time >= high) time = low;
    for (let before = performance.now(); playing && time < high && !is_stale();) {
      await new Promise(done => requestAnimationFrame(done));
      const after = performance.now(), seconds = (after - before) / 1000;
      before = after;
      await seek(time + seconds * (has_times ? 1 : ITEMS_PER_SECOND));
    }
    playing = false;
    play.textContent = '\u25B6';
  };
  seek(low);
}
