// view.mjs - the page: the address, the grid, one datapoint, the filter, the histogram.
import {start, dataset_of, Live} from './reader.mjs';
import {element, grouped, bytes_text, kind_of, show, plot, typed, SEARCH_MOST} from './values.mjs';
import {episode} from './episode.mjs';

const CARD_BYTES = 4 << 20; // larger blobs are not loaded for the grid,
const DETAIL_BYTES = 64 << 20; // and these not for one datapoint, except by a click
const CARD_LINES = 8, CARD_ITEMS = 3; // fields without images, and items per sequence
const ITEMS_MOST = 100; // items of a sequence shown at first
const FIELDS_MOST = 400; // fields shown at first
const SPACER_MOST = 8e6; // pixels; browsers limit the height of an element
const LOADED_MOST = 50000; // datapoints whose values the filter keeps
const SAMPLE_RUNS = 32, SAMPLE_RUN = 16; // datapoints in a histogram

const at = id => document.getElementById(id);
let dataset = null, selected = null, generation = 0;
let opened = ''; // the part of the fragment that names the dataset: ds=URL, or live
const loaded = new Map(); // by index: {field number: text, or null if it cannot be searched}
const searches = new Map(); // by field number: how many of these were loaded, are cut, and are null

// ---- the address ----

// #ds=URL&i=N&at=N, or #live&i=N&at=N; the URL may contain "&", encoded or not.
function parse_fragment() {
  let rest = location.hash.replace(/^#/, '');
  const out = {};
  if (!/^(ds=|live(&|$))/.test(rest)) return out;
  for (let match; (match = rest.match(/^(.*)&(i|at)=([^&]*)$/));) {
    out[match[2]] ??= match[3];
    rest = match[1];
  }
  out.live = rest === 'live';
  if (rest.startsWith('ds=')) out.ds = /^ds=https?%3A/i.test(rest) ? decodeURIComponent(rest.slice(3)) : rest.slice(3);
  return out;
}

function link() {
  if (!opened) return;
  const top = selected === null && !grid.order ? grid.first() : 0;
  const hash = `#${opened}${selected === null ? '' : `&i=${selected}`}${top ? `&at=${top}` : ''}`;
  if (location.hash !== hash) history.replaceState(null, '', hash);
}

function number_of(text, what) {
  if (!/^\d{1,15}$/.test(text)) throw Error(`${what}: "${text.slice(0, 40)}" is not the number of a datapoint`);
  return Number(text);
}

// ---- messages ----

let failure = '';
function alerts() {
  const messages = [failure, ...dataset ? dataset.faults : []].filter(Boolean);
  if (dataset?.source.without_ranges)
    messages.push(`${dataset.source.host} ignores ranges: every file is loaded in full. Use a server with ranges, such as nginx or \`bags view\``);
  const text = messages.slice(0, 20).join('\n');
  at('alert').hidden = !text;
  if (at('alert').textContent !== text) at('alert').textContent = text;
}

function fail(error) {
  failure = error.message;
  alerts();
}

// ---- opening ----

async function open_source(from, address) {
  close_dataset();
  const mine = ++generation;
  failure = '';
  opened = address;
  at('start').hidden = true;
  at('name').textContent = 'opening ...';
  alerts();
  try {
    dataset = address === 'live' ? new Live(from.href) : dataset_of(from);
    at('name').textContent = dataset.name;
    document.title = `${dataset.name}: opening`;
    dataset.changed = () => { if (mine === generation) describe(); };
    await dataset.open();
    if (mine !== generation) return;
    document.querySelector('main').hidden = at('tools').hidden = false;
    list_fields();
    grid.reset();
    describe();
    const wanted = parse_fragment();
    if (dataset.state && wanted.i === undefined && wanted.at === undefined) grid.move(Infinity);
    // Load what is visible first, unless its shard is not known yet.
    const far = Number(wanted.i ?? wanted.at) >= dataset.length;
    if (!far) {
      await go(wanted, null, mine).catch(fail);
      if (!dataset.state) await grid.filled();
    }
    const counted = dataset.count().catch(error => { if (mine === generation) fail(error); });
    if (far) await go(wanted, counted, mine).catch(fail);
    await counted;
    if (mine !== generation) return;
    describe();
    if (dataset.state) return;
    await measure_fields();
    await list_indexes();
  } catch (error) {
    if (mine !== generation) return;
    if (!dataset?.fields.length) {
      at('name').textContent = dataset?.name || 'bags viewer';
      document.title = 'bags viewer';
      at('start').hidden = false;
    }
    fail(error);
  }
}

function close_dataset() {
  select(null);
  dataset?.close();
  dataset = null;
  loaded.clear();
  searches.clear();
  at('filter').value = at('jump').value = at('key').value = '';
  at('keys').hidden = true;
  at('fields').replaceChildren();
  at('facts').textContent = at('live').textContent = '';
  at('note').hidden = at('tools').hidden = document.querySelector('main').hidden = true;
  grid.order = null;
  grid.clear();
}

// Show the place given by a fragment, once enough shards are known.
async function go({i, at: top}, counted, mine) {
  failure = '';
  alerts();
  const text = i ?? top;
  if (text === undefined) return select(null);
  const index = number_of(text, dataset.name);
  if (index >= dataset.length) {
    while (!dataset.complete && index >= dataset.length) {
      const done = await Promise.race([counted.then(() => true), new Promise(go_on => setTimeout(go_on, 100))]);
      if (mine !== generation || done) break;
    }
    if (mine !== generation) return;
  }
  if (index >= dataset.length)
    throw Error(`${dataset.name}: datapoint ${index} out of range (length ${dataset.length})`);
  grid.show(index, i === undefined);
  select(i === undefined ? null : index);
}

let current = Promise.resolve();
function follow() {
  const {ds, live, ...rest} = parse_fragment(), address = live ? 'live' : `ds=${ds}`;
  if (!ds && !live) {
    if (opened) return;
    at('start').hidden = false;
    return;
  }
  if (dataset && dataset.fields.length && address === opened) {
    go(rest, current, generation).catch(error => { select(null, false); fail(error); });
    return;
  }
  current = open_source(new URL(live ? 'live' : ds, location.href), address);
}

// ---- the header ----

function describe() {
  const {name, length, shards, known, complete, verified} = dataset;
  if (!dataset.fields.length) return alerts();
  const count = shards.length === 1 ? '' : complete ? `, ${grouped(shards.length)} shards` : '';
  const at_end = dataset.state && selected === null && grid.is_at_end();
  at('name').textContent = name;
  at('live').textContent = dataset.state ? dataset.words() : '';
  at('live').classList.toggle('running', dataset.state?.writers > 0 && !dataset.silent);
  at('facts').textContent = complete
    ? `${grouped(length)} datapoint${length === 1 ? '' : 's'}${count}${dataset.state ? '' : verified ? ', checksums compared' : ', no checksums'}`
    : `${grouped(length)} datapoints so far, ${grouped(known)} of ${shards.length > 1 ? grouped(shards.length) : '...'} shards`;
  document.title = complete ? `${name}: ${length} datapoints` : `${name}: opening, ${known} shards`;
  alerts();
  show_total();
  grid.resize();
  if (at_end) grid.move(Infinity); // scroll new datapoints into view
}

function list_fields() {
  const items = dataset.fields.slice(0, FIELDS_MOST).map(({name, type}) => {
    const item = element('li', '', element('b', '', name), ' ', element('code', '', type));
    item.dataset.name = name;
    item.title = `${name}: ${type}`;
    return item;
  });
  if (dataset.fields.length > FIELDS_MOST)
    items.push(element('li', '', `and ${grouped(dataset.fields.length - FIELDS_MOST)} more`));
  at('fields').replaceChildren(...items);
}

// Show how many bytes each field takes.
async function measure_fields() {
  if (dataset.fields.length > 64) return;
  const of = dataset, [count, sizes] = await of.sizes();
  if (of !== dataset) return;
  const total = sizes.reduce((a, b) => a + b, 0) || 1;
  [...at('fields').children].forEach((item, i) => {
    const share = 100 * sizes[i] / total, words = share > 0 && share < 0.1 ? '< 0.1' : share.toFixed(share < 10 ? 1 : 0);
    const part = count < of.shards.length;
    item.append(element('span', 'soft', `${part ? '\u2248 ' : ''}${bytes_text(sizes[i])}, ${words} %`));
    if (part) item.title += ` (the size is estimated from ${count} of ${of.shards.length} shards)`;
  });
}

// List the fields with an index, in which keys can be found.
async function list_indexes() {
  const of = dataset, fields = await of.indexed();
  if (of !== dataset || !fields.length) return;
  at('key_field').replaceChildren(...fields.map(field => Object.assign(element('option', '', field.name), {value: field.number})));
  at('keys').hidden = false;
  at('key_field').onchange();
}

// ---- one field of one datapoint ----

async function load(index, field, item, most) {
  const size = await dataset.size(index, field.number, item);
  if (size > most) return {size};
  try {
    return {data: await dataset.blob(index, field.number, item, most)};
  } catch (error) {
    if (error.refused && most < DETAIL_BYTES) return {size: error.refused};
    throw error;
  }
}

const is_searched = field => !field.sequence && ['text', 'number', 'msgpack'].includes(kind_of(field));

// No text means that the value could not be read, or is too large to load.
function remember(index, field, {text = null, cut = false}) {
  if (!is_searched(field) || loaded.size >= LOADED_MOST && !loaded.has(index)) return;
  if (!loaded.has(index)) loaded.set(index, {});
  if (!searches.has(field.number)) searches.set(field.number, {loaded: 0, cut: 0, none: 0});
  const values = loaded.get(index), counts = searches.get(field.number), before = values[field.number];
  if (typeof before === 'string') return;
  counts.loaded += before === undefined;
  counts.none += (text === null) - (before === null);
  counts.cut += cut;
  values[field.number] = text;
}

// Shorten the message about a faulty value. It begins with a URL, the datapoint and the field,
// but these are already shown next to it, and would fill the card.
function told(error) {
  const node = element('span', 'fault', error.message.replace(/^\S+: field ".*?": datapoint \d+: /, ''));
  node.title = error.message;
  return node;
}

// Show a datapoint's field in `out`, or its fault instead of the value.
async function fill(index, field, out, full, is_stale) {
  const kind = kind_of(field);
  const one = async (item, into) => {
    try {
      const most = full ? DETAIL_BYTES : kind === 'video' ? 1 << 20 : CARD_BYTES;
      const {data, size} = await load(index, field, item, most);
      if (is_stale()) return;
      if (!data) {
        remember(index, field, {});
        const text = `${kind}, ${bytes_text(size)}`;
        const button = element(full ? 'button' : 'span', full ? '' : 'soft', full ? `Load ${text}` : text);
        if (full)
          button.onclick = async () => {
            button.disabled = true;
            try {
              into.replaceChildren(show(field, await dataset.blob(index, field.number, item), full).node);
            } catch (error) { into.replaceChildren(told(error)); }
          };
        into.replaceChildren(button);
        return;
      }
      try {
        const shown = show(field, data, full, most);
        remember(index, field, shown);
        into.replaceChildren(shown.node);
      } catch (error) {
        remember(index, field, {});
        into.replaceChildren(element('span', 'fault', `${error.message} (${bytes_text(data.length)})`));
      }
    } catch (error) {
      if (is_stale()) return;
      remember(index, field, {});
      into.replaceChildren(told(error));
    }
  };
  if (!field.sequence) return one(0, out);
  let count;
  try { count = await dataset.items(index, field.number); } catch (error) {
    if (!is_stale()) out.replaceChildren(told(error));
    return;
  }
  if (is_stale()) return;
  if (!count) return out.replaceChildren(element('span', 'soft', 'empty'));
  const visual = kind === 'image' || kind === 'video' || kind === 'array' || kind === 'bytes';
  if (!full) {
    const parts = Array.from({length: Math.min(count, visual ? CARD_ITEMS : 8)}, () => element('span', 'item'));
    out.replaceChildren(...parts.flatMap((part, i) => i && !visual ? [', ', part] : [part]));
    if (count > parts.length) out.append(element('span', 'more', ` ${visual ? '\u00D7' : '... \u00D7'}${grouped(count)}`));
    out.classList.toggle('many', visual && count > 1);
    await Promise.all(parts.map((part, i) => one(i, part)));
    if (visual) parts.forEach(part => part.replaceWith(...part.childNodes));
    return;
  }
  const strip = element('div', visual ? 'strip' : 'rows');
  out.replaceChildren(element('div', 'soft', `${grouped(count)} item${count === 1 ? '' : 's'}`), strip);
  const more = async from => {
    const figures = Array.from({length: Math.min(count - from, ITEMS_MOST)}, (_, i) => {
      const into = element('div'), caption = element('figcaption', '', String(from + i));
      const figure = visual ? element('figure', '', into, caption) : element('figure', '', caption, into);
      strip.append(figure);
      return one(from + i, into);
    });
    const next = from + figures.length;
    await Promise.all(figures);
    if (next >= count) return;
    const button = element('button', '', `${grouped(count - next)} more`);
    button.onclick = () => { button.remove(); more(next); };
    strip.append(button);
  };
  return more(0);
}

// ---- the grid: only what is visible exists ----

const grid = {
  order: null, // the indices found by a filter; null: all
  cards: new Map(), // by position
  position: 0, // pixels from the top of all rows
  columns: 1, row: 1, work: Promise.resolve(),

  count() { return this.order ? this.order.length : dataset ? dataset.length : 0; },
  index(position) { return this.order ? this.order[position] : position; },
  view() { return at('grid').clientHeight; },
  height() { return Math.ceil(this.count() / this.columns) * this.row + 12; },
  spacer() { return Math.min(this.height(), SPACER_MOST); },
  first() { return Math.min(Math.round(this.position / this.row) * this.columns, Math.max(this.count() - 1, 0)); },
  clear() {
    for (const card of this.cards.values()) card.remove();
    this.cards.clear();
  },

  // The layout depends on the fields: fields with images are on top.
  reset() {
    const of_kind = kind => dataset.fields.filter(field => kind_of(field) === kind).sort((a, b) => a.sequence - b.sequence);
    this.media = of_kind('image')[0] ?? of_kind('video')[0] ?? (dataset.fields.length < 4 ? of_kind('array')[0] : null);
    const order = field => field === this.media ? 0 : !['text', 'number', 'msgpack'].includes(kind_of(field)) ? 3 : field.sequence ? 2 : 1;
    this.ordered = [...dataset.fields].sort((a, b) => order(a) - order(b));
    this.lines = this.ordered.slice(this.media ? 1 : 0).slice(0, CARD_LINES);
    this.position = 0;
    this.clear();
    at('grid').scrollTop = 0;
    this.resize();
  },

  resize() {
    if (!dataset?.fields.length) return;
    const narrow = window.innerWidth <= 700, width = at('grid').clientWidth - 12;
    const top = this.first(), least = this.media ? narrow ? 150 : 190 : narrow ? 320 : 260;
    if (width <= 0) return;
    const columns = Math.max(1, Math.floor(width / least));
    const row = (this.media ? narrow ? 120 : 140 : 26) + this.lines.length * 21 + (this.lines.length ? 15 : 2) + 12;
    const moved = columns !== this.columns || row !== this.row || width !== this.width;
    Object.assign(this, {columns, row, width});
    at('spacer').style.height = `${this.spacer()}px`;
    this.laid = this.count();
    if (moved) {
      this.clear();
      this.move(Math.floor(top / columns) * row);
    }
    this.draw();
  },

  // True if the last datapoint in the layout is in view.
  is_at_end() { return this.position + this.view() >= Math.ceil((this.laid ?? 0) / this.columns) * this.row - this.row / 2; },

  // Move to a position; the scroll bar follows.
  move(position) {
    const most = Math.max(0, this.height() - this.view());
    this.position = Math.min(Math.max(position, 0), most);
    const bar = this.spacer() - this.view();
    this.bar = at('grid').scrollTop = this.height() > SPACER_MOST ? this.position / most * bar : this.position;
    this.bar = at('grid').scrollTop;
    this.draw();
  },

  // The scroll bar was moved. If there are more rows than it has pixels, a small step moves by as
  // many pixels, and a large one jumps to that part of the rows.
  scrolled() {
    const bar = at('grid').scrollTop, step = bar - this.bar;
    if (!dataset || Math.abs(step) < 0.5) return;
    const end = this.spacer() - this.view(), most = Math.max(0, this.height() - this.view());
    if (this.height() <= SPACER_MOST) this.position = bar;
    else if (bar <= 0 || bar >= end - 1 || Math.abs(step) > this.view()) this.position = bar / end * most;
    else this.position = Math.min(Math.max(this.position + step, 0), most);
    this.bar = bar;
    this.draw();
    clearTimeout(this.later);
    this.later = setTimeout(() => {
      if (this.height() > SPACER_MOST) this.move(this.position);
      link();
    }, 150);
  },

  show(index, on_top) {
    const position = this.order ? this.order.indexOf(index) : index;
    if (position < 0) return;
    const top = Math.floor(position / this.columns) * this.row;
    if (on_top) this.move(top);
    else if (top < this.position || top + this.row > this.position + this.view())
      this.move(top - Math.max(0, (this.view() - this.row) / 2));
  },

  draw() {
    const from = Math.max(0, Math.floor(this.position / this.row) * this.columns);
    const to = Math.min(this.count(), (Math.floor((this.position + this.view()) / this.row) + 1) * this.columns);
    for (const [position, card] of this.cards)
      if (position < from || position >= to) {
        card.remove();
        this.cards.delete(position);
      }
    const wide = (this.width - 12 * this.columns) / this.columns + 12;
    for (let position = from; position < to; position++) {
      let card = this.cards.get(position);
      if (!card) {
        card = this.make(this.index(position));
        this.cards.set(position, card);
        at('layer').append(card);
      }
      const x = 12 + position % this.columns * wide, y = 12 + Math.floor(position / this.columns) * this.row - this.position;
      card.style.transform = `translate(${x.toFixed(1)}px, ${y.toFixed(1)}px)`;
      card.style.width = `${wide - 12}px`;
      card.style.height = `${this.row - 12}px`;
    }
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.fill(), this.drawn && performance.now() - this.drawn < 100 ? 60 : 0);
    this.drawn = performance.now();
  },

  make(index) {
    const card = element('div', this.media ? 'card' : 'card plain', element('span', 'index', grouped(index)));
    card.dataset.index = index;
    card.tabIndex = -1;
    card.parts = [];
    const part = (field, className) => {
      const value = element('span', 'value'), line = element('div', className, element('span', 'key', field.name), ' ', value);
      line.dataset.field = field.name;
      card.parts.push([field, value]);
      return line;
    };
    if (this.media) card.append(part(this.media, 'media'));
    if (this.lines.length) card.append(element('div', 'lines', ...this.lines.map(field => part(field, 'line'))));
    card.classList.toggle('on', index === selected);
    card.onclick = () => select(index);
    return card;
  },

  // Load what is visible, all at once.
  fill() {
    const cards = [...this.cards.values()].filter(card => !card.started);
    this.work = Promise.all(cards.flatMap(card => {
      card.started = true;
      return card.parts.map(([field, value]) => fill(Number(card.dataset.index), field, value, false, () => !card.isConnected));
    }));
  },

  async filled() {
    await new Promise(done => setTimeout(done, 0));
    clearTimeout(this.soon);
    this.fill();
    await this.work;
  },
};

// ---- one datapoint ----

function select(index, keep_address = true) {
  const detail = at('detail'), changed = index !== selected;
  for (const out of detail.querySelectorAll('video')) out.release?.();
  selected = index;
  for (const card of grid.cards.values()) card.classList.toggle('on', Number(card.dataset.index) === index);
  detail.hidden = index === null;
  document.querySelector('main').classList.toggle('open', index !== null);
  delete detail.dataset.index;
  if (index === null) detail.replaceChildren();
  else if (changed) show_detail(index);
  if (changed && dataset?.fields.length) {
    grid.resize();
    if (index !== null) grid.show(index, false);
  }
  if (keep_address) link();
}

function show_total() {
  for (const total of document.querySelectorAll('.total')) total.textContent = ` of ${grouped(dataset.length)}${dataset.complete ? '' : ' so far'}`;
}

function show_detail(index) {
  const detail = at('detail'), mine = dataset;
  const stale = () => selected !== index || dataset !== mine;
  const button = (text, title, click) => {
    const out = element('button', '', text);
    out.title = out.ariaLabel = title;
    out.onclick = click;
    return out;
  };
  detail.replaceChildren(element('div', 'bar', element('b', '', `#${grouped(index)}`, element('span', 'soft total')),
    button('\u2190', 'previous', () => step(-1)), button('\u2192', 'next', () => step(1)), button('\u2715', 'close', () => select(null))));
  show_total();
  detail.dataset.index = index;
  detail.scrollTop = 0;
  const all = element('div', 'episode');
  detail.append(all);
  episode(dataset, index, all, stale).catch(error => { if (!stale()) all.replaceChildren(told(error)); });
  const add = from => {
    const fields = grid.ordered.slice(from, from + FIELDS_MOST);
    for (const field of fields) {
      const value = element('div', 'value');
      const part = element('div', 'field', element('div', 'key', element('b', '', field.name), element('code', '', field.type)), value);
      part.dataset.field = field.name;
      detail.append(part);
      fill(index, field, value, true, stale);
    }
    const next = from + fields.length;
    if (next >= dataset.fields.length) return;
    const more = button(`${grouped(dataset.fields.length - next)} more fields`, 'more', () => { more.remove(); add(next); });
    detail.append(more);
  };
  add(0);
}

function step(by) {
  const position = grid.order ? grid.order.indexOf(selected) : selected;
  const next = selected === null ? grid.first() : position + by;
  if (next >= 0 && next < grid.count()) select(grid.index(next));
}

// ---- the filter, of what was loaded ----

// [{word, field, value}]: field and value for FIELD=VALUE, only the word otherwise.
const filter_words = () => at('filter').value.trim().toLowerCase().split(/\s*,\s*/).filter(Boolean).map(word => {
  const cut = word.indexOf('='), name = word.slice(0, cut);
  const field = cut > 0 ? dataset.fields.find(of => of.name.toLowerCase() === name) : undefined;
  return {word, field, value: field && typed(field, word.slice(cut + 1)).toLowerCase()};
});

// The fields that "load more" loads: the first ones, and all fields named by the filter.
const filter_fields = () => [...new Set([...dataset.fields.filter(is_searched).slice(0, 20),
  ...filter_words().map(({field}) => field).filter(field => field && is_searched(field))])];

// Describe which values of loaded datapoints the filter cannot search.
function unsearched() {
  const parts = dataset.fields.flatMap(field => {
    if (!is_searched(field)) return [field.name];
    const {loaded: known, cut, none} = searches.get(field.number) ?? {loaded: 0, cut: 0, none: 0}, of = count => `of ${grouped(count)} datapoint${count === 1 ? '' : 's'}`;
    return [[loaded.size - known, count => `${field.name} ${of(count)} (not loaded)`], [none, count => `${field.name} ${of(count)} (damaged or too large)`],
      [cut, count => `${field.name} ${of(count)} after ${grouped(SEARCH_MOST)} characters`]].filter(([count]) => count).map(([count, text]) => text(count));
  });
  return parts.length ? ` Not searched: ${parts.slice(0, 12).join(', ')}${parts.length > 12 ? ` and ${grouped(parts.length - 12)} more` : ''}.` : '';
}

function filter() {
  if (!dataset?.fields.length) return;
  const words = filter_words();
  const matches = values => words.every(({word, field, value}) => field ? values[field.number]?.toLowerCase() === value
    : Object.values(values).some(text => text?.toLowerCase().includes(word)));
  at('key').value = '';
  if (!words.length) return show_only(null);
  const order = [...loaded.keys()].filter(index => matches(loaded.get(index))).sort((a, b) => a - b);
  const more = element('button', '', 'Load 500 more');
  more.onclick = () => { more.disabled = true; load_more(500).then(filter); };
  const lacks = filter_fields().some(({number}) => (searches.get(number)?.loaded ?? 0) < Math.min(dataset.length, LOADED_MOST));
  show_only(order, `${grouped(order.length)} of the ${grouped(loaded.size)} datapoints that were loaded match (of ${grouped(dataset.length)}).${unsearched()}`,
    ...lacks ? [more] : []);
}

// Show only these datapoints, and a note. null: show all.
function show_only(order, ...words) {
  grid.order = order;
  at('note').hidden = !words.length;
  at('note').replaceChildren(...words);
  if (order) {
    const all = element('button', '', 'Show all');
    all.onclick = () => { at('filter').value = at('key').value = ''; show_only(null); };
    at('note').append(all);
  }
  grid.clear();
  grid.resize();
  grid.move(0);
}

// ---- a key, of a field with an index ----

async function find_key() {
  const text = at('key').value, of = dataset, field = of.fields[Number(at('key_field').value)];
  failure = at('filter').value = '';
  alerts();
  if (!text) return show_only(null);
  show_only(null, `looking for ${field.name} = ${text.slice(0, 100)} ...`);
  try {
    const {count, found} = await of.find_text(field, text);
    if (of !== dataset || at('key').value !== text) return;
    if (!count) throw Error(`${of.name}: no datapoint has ${field.name} = ${text.slice(0, 100)}`);
    const part = count > found.length ? ` (the first ${grouped(found.length)} are shown)` : '';
    if (count === 1) show_only(null);
    else show_only(found, `${grouped(count)} datapoints have ${field.name} = ${text.slice(0, 100)}${part}`);
    select(found[0]);
  } catch (error) {
    if (of !== dataset || at('key').value !== text) return;
    show_only(null);
    fail(error);
  }
}

// Load the text and numbers of datapoints that are not loaded yet.
async function load_more(count) {
  const fields = filter_fields(), indices = [];
  const lacking = index => fields.filter(field => loaded.get(index)?.[field.number] === undefined);
  for (let index = 0; index < dataset.length && indices.length < count; index++)
    if ((loaded.has(index) || loaded.size + indices.length < LOADED_MOST) && lacking(index).length) indices.push(index);
  for (let from = 0; from < indices.length; from += 100)
    await Promise.all(indices.slice(from, from + 100).flatMap(index => lacking(index).map(field => fill(index, field, element('span'), false, () => false))));
}

// ---- the histogram, of a sample ----

async function histogram() {
  const dialog = at('dialog'), choice = element('select'), out = element('div'), close = element('button', '', '\u2715');
  for (const field of dataset.fields.slice(0, FIELDS_MOST)) {
    if (!field.sequence && kind_of(field) === 'number' && !/^array\(\w+,(?!1\)|1,)/.test(field.inside))
      choice.append(Object.assign(element('option', '', field.name), {value: `n${field.number}`}));
  }
  for (const field of dataset.fields.slice(0, FIELDS_MOST))
    choice.append(Object.assign(element('option', '', `${field.name}: ${field.sequence ? 'items' : 'bytes'}`), {value: `s${field.number}`}));
  close.onclick = () => dialog.close();
  close.title = 'close';
  dialog.replaceChildren(element('div', 'bar', element('b', '', 'Histogram'), choice, close), out);
  const of = dataset;
  const draw = async () => {
    const chosen = choice.value, field = of.fields[Number(chosen.slice(1))], indices = [];
    out.replaceChildren(element('div', 'soft', 'loading the sample ...'));
    const runs = of.length <= SAMPLE_RUNS * SAMPLE_RUN ? 1 : SAMPLE_RUNS, run = runs === 1 ? of.length : SAMPLE_RUN;
    for (let i = 0; i < runs; i++)
      for (let k = 0; k < run; k++) indices.push(Math.floor(i * (of.length - run) / Math.max(runs - 1, 1)) + k);
    let faults = 0;
    const shown = (await Promise.all(indices.map(async index => {
      try {
        if (chosen[0] === 's') return {number: field.sequence ? await of.items(index, field.number) : await of.size(index, field.number)};
        return show(field, await of.blob(index, field.number), false);
      } catch { faults++; }
    }))).filter(one => typeof one?.number === 'bigint' || Number.isFinite(one?.number));
    const numbers = shown.map(({number}) => number);
    if (of !== dataset || choice.value !== chosen) return;
    if (!numbers.length) return out.replaceChildren(element('div', 'soft', 'no numbers in the sample'));
    const low = numbers.reduce((a, b) => a < b ? a : b), high = numbers.reduce((a, b) => a > b ? a : b);
    const above = numbers.map(number => Number(number - low)), width = Number(high - low); // exact, also for large integers
    const whole = numbers.every(number => typeof number === 'bigint' || Number.isInteger(number)), bins = new Array(whole ? Math.min(width + 1, 40) : 40).fill(0);
    for (const number of above) bins[Math.min(Math.floor(number / ((width + (whole ? 1 : 0)) || 1) * bins.length), bins.length - 1)]++;
    const mean = Number(low) + above.reduce((a, b) => a + b, 0) / above.length;
    const words = number => shown.find(one => one.number === number).text ?? String(number);
    out.replaceChildren(plot(bins, true, 1200, 440), element('div', 'axis soft', element('span', '', words(low)), element('span', '', words(high))), element('div', '',
      `${words(low)} to ${words(high)}, mean ${mean}; ${numbers.length === of.length ? `all ${grouped(of.length)} datapoints`
        : `a sample: ${grouped(numbers.length)} of ${grouped(of.length)} datapoints, in ${runs} runs`}${faults ? `; ${faults} could not be read` : ''}`));
  };
  choice.onchange = draw;
  dialog.showModal();
  await draw();
}

// ---- files of this computer ----

// files: File objects, or a map of paths to them.
function open_files(files) {
  if (!(files.size ?? files.length)) return fail(Error('nothing to read in what was dropped'));
  history.replaceState(null, '', location.pathname + location.search);
  current = open_source(files, '');
}

// Chromium allows a page opened from disk to read handles, but not entries.
async function dropped(items) {
  const files = new Map(), by_handle = location.protocol === 'file:' && 'getAsFileSystemHandle' in items[0];
  const walk = async (of, name) => {
    const children = [];
    if (of.kind === 'file') return files.set(name, await of.getFile());
    if (of.isFile) return files.set(name, await new Promise((done, failed) => of.file(done, failed)));
    if (of.values) for await (const child of of.values()) children.push(child);
    const reader = of.createReader?.();
    for (let some; reader && (some = await new Promise((done, failed) => reader.readEntries(done, failed))).length;) children.push(...some);
    return Promise.all(children.map(child => walk(child, `${name}/${child.name}`)));
  };
  const roots = (await Promise.all([...items].map(item => by_handle ? item.getAsFileSystemHandle() : item.webkitGetAsEntry()))).filter(Boolean);
  if (!roots.length) return;
  await Promise.all(roots.map(root => walk(root, root.name)));
  open_files(files);
}

// ---- events ----

at('form').onsubmit = event => {
  event.preventDefault();
  location.hash = `ds=${at('url').value.trim()}`;
};
at('folder').onchange = at('zip').onchange = ({target}) => open_files(target.files);
at('other').onclick = () => {
  generation++;
  close_dataset();
  opened = failure = '';
  alerts();
  history.replaceState(null, '', location.pathname + location.search);
  at('name').textContent = document.title = 'bags viewer';
  at('start').hidden = false;
};
at('chart').onclick = () => histogram().catch(fail);
at('jump').onchange = () => {
  const text = at('jump').value.replace(/[\s,.#]/g, '');
  at('jump').value = '';
  if (text) go({i: text}, current, generation).catch(fail);
};
at('key').onchange = find_key;
at('key').onsearch = () => at('key').value || find_key(); // the field was cleared
at('key_field').onchange = () => {
  const {length, selectedOptions: [option]} = at('key_field');
  at('key_field').hidden = length === 1;
  at('key').placeholder = length === 1 ? `find ${option.textContent}` : 'find';
};
let typing;
at('filter').oninput = () => {
  clearTimeout(typing);
  typing = setTimeout(filter, 150);
};
at('grid').onscroll = () => grid.scrolled();
document.ondragover = event => {
  event.preventDefault();
  document.body.classList.add('drop');
};
document.ondragleave = () => document.body.classList.remove('drop');
document.ondrop = event => {
  event.preventDefault();
  document.body.classList.remove('drop');
  dropped(event.dataTransfer.items).catch(fail);
};
document.onkeydown = event => {
  if (!dataset?.fields.length || event.ctrlKey || event.metaKey || event.altKey || at('dialog').open) return;
  if (/^(INPUT|SELECT|VIDEO)$/.test(event.target.tagName)) {
    if (event.key === 'Escape') event.target.blur();
    return;
  }
  const rows = by => () => selected === null ? grid.move(grid.position + by * grid.row) : step(by * grid.columns);
  const pages = by => () => grid.move(grid.position + by * (grid.view() - grid.row / 2));
  const keys = {ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowDown: rows(1), ArrowUp: rows(-1), PageDown: pages(1),
    PageUp: pages(-1), Home: () => grid.move(0), End: () => grid.move(Infinity), Escape: () => select(null), Enter: () => step(0),
    '/': () => at('filter').focus(), k: () => at('key').focus(), g: () => at('jump').focus(), h: () => histogram().catch(fail)};
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
};
window.onresize = () => grid.resize();
window.onhashchange = follow;

start(() => {
  const text = atob(WASM), out = new Uint8Array(text.length);
  for (let i = 0; i < out.length; i++) out[i] = text.charCodeAt(i);
  return out;
});
follow();
