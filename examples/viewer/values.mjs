// values.mjs - shows values. All text in a dataset is shown as text nodes, and only images and
// videos in known formats reach the browser's decoders.
import {decode, numbers} from './reader.mjs';

const PIXELS_MOST = 1 << 26; // largest image that is shown
const CANVAS_MOST = 512; // pixels in each direction, for a plotted array
const TEXT_MOST = 200000;
const NODES_MOST = 20000; // in a msgpack tree
const FEW = 8; // arrays of up to this many elements are shown as numbers
const CHILDREN_MOST = 200; // shown at first for a node
export const SEARCH_MOST = 2000; // characters per value that the filter searches

export const element = (tag, className = '', ...children) => {
  const out = document.createElement(tag);
  if (className) out.className = className;
  out.append(...children);
  return out;
};

const english = new Intl.NumberFormat('en-US');
export const grouped = number => english.format(number);

export const bytes_text = size => {
  const units = ['B', 'KB', 'MB', 'GB', 'TB'];
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) { size /= 1000; unit++; }
  return `${unit && size < 100 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
};

// How a field is shown: as image, video, text, number, array, msgpack or bytes. Arrays with
// few elements are shown as numbers.
const kinds = {jpeg: 'image', jpg: 'image', png: 'image', webp: 'image', mp4: 'video', webm: 'video', utf8: 'text', int: 'number', u64: 'number', i64: 'number',
  array: 'array', npy: 'array', msgpack: 'msgpack', tree: 'msgpack'};
export const kind_of = field => {
  const shape = /^array\(\w+((?:,\d+)*)\)/.exec(field.inside);
  return shape && shape[1].split(',').reduce((a, b) => a * (b || 1), 1) <= FEW ? 'number' : kinds[field.base] ?? 'bytes';
};

const u16 = (data, at) => data[at] << 8 | data[at + 1];
const little16 = (data, at) => data[at] | data[at + 1] << 8;
const u32 = (data, at) => u16(data, at) * 65536 + u16(data, at + 2);
const ascii = (data, at, size) => String.fromCharCode(...data.subarray(at, at + size));

// Detect the format of a file by its first bytes: {mime, width, height}; null if it cannot be
// shown.
export function media_of(data) {
  if (data.length > 24 && u32(data, 0) === 0x89504E47) return {mime: 'image/png', width: u32(data, 16), height: u32(data, 20)};
  if (data.length > 10 && ascii(data, 0, 4) === 'GIF8') return {mime: 'image/gif', width: little16(data, 6), height: little16(data, 8)};
  if (data.length > 30 && ascii(data, 0, 4) === 'RIFF' && ascii(data, 8, 4) === 'WEBP') {
    const sizes = {'VP8X': [little16(data, 24) + 1, little16(data, 27) + 1, data[26] | data[29]], 'VP8 ': [little16(data, 26) & 16383, little16(data, 28) & 16383, 0],
      'VP8L': [(little16(data, 21) & 16383) + 1, (data[22] >> 6 | little16(data, 23) << 2 & 16383) + 1, 0]};
    const [width, height, more] = sizes[ascii(data, 12, 4)] ?? [0, 0, 0];
    return {mime: 'image/webp', width: more ? 65536 : width, height: more ? 65536 : height};
  }
  if (data.length > 12 && ascii(data, 4, 4) === 'ftyp') return {mime: 'video/mp4'};
  if (data.length > 4 && u32(data, 0) === 0x1A45DFA3) return {mime: 'video/webm'};
  if (data.length > 4 && data[0] === 0xFF && data[1] === 0xD8) {
    for (let at = 2; at + 9 < data.length && data[at] === 0xFF; at += 2 + u16(data, at + 2)) {
      const mark = data[at + 1];
      if (mark >= 0xC0 && mark <= 0xCF && mark !== 0xC4 && mark !== 0xC8 && mark !== 0xCC)
        return {mime: 'image/jpeg', width: u16(data, at + 7), height: u16(data, at + 5)};
      if (mark === 0xFF) at -= 1 + u16(data, at + 2);
    }
    return {mime: 'image/jpeg', width: 0, height: 0};
  }
  return null;
}

const fault = message => element('span', 'fault', message);

function image(data, media) {
  if (!media.width || !media.height) return fault(`damaged: an image without a size (${bytes_text(data.length)})`);
  if (media.width * media.height > PIXELS_MOST)
    return fault(`image of ${grouped(media.width)} x ${grouped(media.height)} pixels: not shown (maximum ${grouped(PIXELS_MOST)})`);
  const out = element('img'), url = URL.createObjectURL(new Blob([data], {type: media.mime}));
  out.decoding = 'async';
  out.alt = '';
  if (media.width < 128) out.classList.add('small', 'pixels');
  out.onload = () => URL.revokeObjectURL(url);
  out.onerror = () => {
    URL.revokeObjectURL(url);
    out.replaceWith(fault(`damaged: not an image that this browser decodes (${bytes_text(data.length)})`));
  };
  out.src = url;
  return out;
}

// The name of an MP4's first codec, from its sample description.
function codec_of(data) {
  for (let at = data.indexOf(0x73); at >= 0; at = data.indexOf(0x73, at + 1))
    if (at + 20 <= data.length && ascii(data, at, 4) === 'stsd') return ` ${ascii(data, at + 16, 4).replace(/\W/g, '?')}`;
  return '';
}

// Show a video with controls if `full`, otherwise only its first frame.
function video(data, media, full) {
  const out = element('video'), url = URL.createObjectURL(new Blob([data], {type: media.mime}));
  out.controls = full;
  out.muted = out.loop = out.playsInline = true;
  out.release = () => URL.revokeObjectURL(url);
  if (!full) out.onloadeddata = out.release;
  out.onerror = () => {
    out.release();
    out.replaceWith(full ? fault(`this browser does not play this${codec_of(data)} video (${bytes_text(data.length)}); \`bags get\` writes it to a file`)
      : video_words(data.length));
  };
  out.src = url;
  return out;
}

const video_words = size => element('span', 'soft', `\u25B6 video, ${bytes_text(size)}`);

export function hex(data, most = 1024) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, most); at += 16) {
    const row = [...data.subarray(at, Math.min(at + 16, most))];
    lines.push(at.toString(16).padStart(6, '0') + '  ' + row.map(byte => byte.toString(16).padStart(2, '0')).join(' ').padEnd(48) + '  ' +
      row.map(byte => byte >= 32 && byte < 127 ? String.fromCharCode(byte) : '.').join(''));
  }
  return element('pre', '', lines.join('\n') + (data.length > most ? '\n...' : ''));
}

// ---- arrays ----

// Round to the nearest 16-bit float, ties to even.
function to_half(number) {
  const step = 2 ** (Math.max(Math.floor(Math.log2(Math.abs(number))), -14) - 10), steps = number / step;
  const out = (Math.abs(steps % 1) === 0.5 ? 2 * Math.round(steps / 2) : Math.round(steps)) * step;
  return Math.abs(out) > 65504 ? Math.sign(out) * Infinity : out;
}

// Use the fewest digits that read back as the same number of a dtype.
const nearest = {float16: to_half, float32: Math.fround, complex64: Math.fround};
function exact(number, dtype) {
  if (dtype === 'bool') return number ? 'true' : 'false';
  if (Object.is(number, -0)) return '-0';
  for (let digits = 1; nearest[dtype] && Number.isFinite(number) && digits <= 9; digits++) {
    const few = Number(number.toPrecision(digits));
    if (nearest[dtype](few) === number) return String(few);
  }
  return String(number);
}

// Convert a typed number to the text that `exact` shows in a field.
export function typed(field, text) {
  const [, dtype] = /^array\((float\d+)/.exec(field.inside) ?? [], number = Number(text);
  return dtype && text.trim() && !Number.isNaN(number) ? exact((nearest[dtype] ?? Number)(number), dtype) : text;
}

// Dark blue to yellow, through green.
function colour(at) {
  const stops = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const place = Math.min(Math.max(at, 0), 1) * 4, low = Math.min(Math.floor(place), 3), part = place - low;
  return [0, 1, 2].map(i => stops[low][i] + (stops[low + 1][i] - stops[low][i]) * part);
}

// The minimum and maximum of the finite elements, and how many elements are not finite.
function range_of(all) {
  let low = Infinity, high = -Infinity, others = 0;
  for (const number of all) {
    if (typeof number === 'number' && !Number.isFinite(number)) { others++; continue; }
    if (number < low) low = number;
    if (number > high) high = number;
  }
  return low <= high ? [low, high, others] : [0, 0, others];
}

function range_text(all, dtype) {
  const [low, high, others] = range_of(all);
  return (others === all.length ? '' : `${exact(low, dtype)} to ${exact(high, dtype)}${others ? ', ' : ''}`) + (others ? `${grouped(others)} not finite` : '');
}

function picture(all, dtype, height, width, channels) {
  const step = Math.max(1, Math.ceil(Math.max(height, width) / CANVAS_MOST));
  const canvas = element('canvas'), w = canvas.width = Math.ceil(width / step), h = canvas.height = Math.ceil(height / step);
  const context = canvas.getContext('2d'), out = context.createImageData(w, h);
  const [low, high] = dtype === 'uint8' ? [0, 255] : range_of(all).map(Number), scale = high > low ? 1 / (high - low) : 0;
  for (let y = 0; y < h; y++)
    for (let x = 0; x < w; x++) {
      const from = (y * step * width + x * step) * channels, to = (y * w + x) * 4;
      const at = channel => (Number(all[from + channel]) - low) * scale;
      const pixel = channels >= 3 ? [at(0) * 255, at(1) * 255, at(2) * 255] : colour(at(0));
      for (let i = 0; i < 3; i++) out.data[to + i] = pixel[i];
      out.data[to + 3] = channels === 4 ? at(3) * 255 : Number.isNaN(at(0)) ? 0 : 255;
    }
  context.putImageData(out, 0, 0);
  canvas.className = 'pixels';
  return canvas;
}

export function plot(all, bars = false, width = 480, height = 120) {
  const canvas = element('canvas'), context = canvas.getContext('2d');
  canvas.width = width;
  canvas.height = height;
  const [low, high] = bars ? [0, range_of(all)[1]] : range_of(all).map(Number);
  const y = number => high > low ? height - 4 - (Number(number) - low) / (high - low) * (height - 8) : height / 2;
  context.strokeStyle = context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--accent').trim();
  context.lineWidth = 2;
  if (bars) {
    const wide = width / all.length;
    all.forEach((number, i) => context.fillRect(i * wide + 1, y(number), Math.max(wide - 2, 1), height - y(number)));
    return canvas;
  }
  const step = Math.max(1, Math.ceil(all.length / (4 * width)));
  context.beginPath();
  for (let i = 0; i < all.length; i += step) context.lineTo(i / Math.max(all.length - 1, 1) * (width - 4) + 2, y(all[i]));
  context.stroke();
  return canvas;
}

function array(value, full) {
  const {dtype, shape} = value, all = numbers(value), count = shape.reduce((a, b) => a * b, 1);
  const title = `${dtype} ${shape.join(' \u00D7 ')}`, is_complex = dtype.startsWith('complex');
  if (!all) return element('span', 'soft', title);
  const part = (i, sign) => { const text = exact(all[i], dtype); return sign && text[0] !== '-' ? `+${text}` : text; };
  const text = i => is_complex ? `${part(2 * i, false)}${part(2 * i + 1, true)}j` : exact(all[i], dtype);
  const values = most => Array.from({length: Math.min(count, most)}, (_, i) => text(i)).join(', ') + (count > most ? ', ...' : '');
  if (count === 0) return element('span', 'soft', `${title}: no elements`);
  if (count <= FEW) return element('span', count === 1 ? 'number' : 'array', values(FEW));
  if (is_complex) return element('span', 'array', full ? element('div', 'soft', title) : title, ...full ? [element('pre', '', values(256))] : []);
  const rank = shape.length, is_image = rank === 3 && [1, 3, 4].includes(shape[2]);
  const [height, width, channels] = is_image ? shape : [...shape.slice(-2), 1];
  const canvas = rank === 1 ? plot(all, false, full ? 960 : 160, full ? 240 : 40) : picture(all, dtype, height, width, channels);
  const out = element('span', 'array', canvas), drawn = rank === 1 ? count : height * width * channels;
  canvas.title = range_text(all, dtype);
  if (!full) return out;
  out.append(element('div', 'soft', `${title}, ${canvas.title}${drawn < count ? '; the first slice is drawn' : ''}`),
    element('pre', '', values(256)));
  return out;
}

// ---- msgpack ----

// Decode msgpack: arrays to Array, maps to {pairs}, bytes to Uint8Array, extensions to
// {extension, data}, and text that is not UTF-8 to {invalid, data}.
export function msgpack(data) {
  const view = new DataView(data.buffer, data.byteOffset, data.length), utf8 = new TextDecoder('utf-8', {fatal: true, ignoreBOM: true});
  let at = 0, nodes = 0;
  const need = size => { if (size > data.length - at) throw Error('not msgpack: it ends too early'); };
  const number = (size, get) => { need(size); const out = get(at); at += size; return out; };
  const unsigned = size => Number(number(size, from => size === 8 ? view.getBigUint64(from) : size === 4 ? view.getUint32(from)
    : size === 2 ? view.getUint16(from) : view.getUint8(from)));
  const take = size => { need(size); at += size; return data.subarray(at - size, at); };
  const read = depth => {
    if (depth > 64) throw Error('msgpack: nested too deeply to be shown');
    if (++nodes > NODES_MOST) throw Error('msgpack: too large to be shown as a tree');
    const list = count => {
      need(count);
      return Array.from({length: count}, () => read(depth + 1));
    };
    const map = count => {
      need(count);
      return {pairs: Array.from({length: count}, () => [read(depth + 1), read(depth + 1)])};
    };
    const text = count => {
      const found = take(count);
      try { return utf8.decode(found); } catch { return {invalid: true, data: found}; }
    };
    const extension = count => ({extension: number(1, from => view.getInt8(from)), data: take(count)});
    const byte = unsigned(1);
    if (byte < 0x80) return byte;
    if (byte < 0x90) return map(byte & 15);
    if (byte < 0xA0) return list(byte & 15);
    if (byte < 0xC0) return text(byte & 31);
    if (byte >= 0xE0) return byte - 256;
    const kinds = {0xC0: () => null, 0xC2: () => false, 0xC3: () => true, 0xC4: () => take(unsigned(1)), 0xC5: () => take(unsigned(2)),
      0xC6: () => take(unsigned(4)), 0xC7: () => extension(unsigned(1)), 0xC8: () => extension(unsigned(2)), 0xC9: () => extension(unsigned(4)),
      0xCA: () => Number(exact(number(4, from => view.getFloat32(from)), 'float32')), 0xCB: () => number(8, from => view.getFloat64(from)),
      0xCC: () => unsigned(1), 0xCD: () => unsigned(2), 0xCE: () => unsigned(4), 0xCF: () => number(8, from => view.getBigUint64(from)),
      0xD0: () => number(1, from => view.getInt8(from)), 0xD1: () => number(2, from => view.getInt16(from)),
      0xD2: () => number(4, from => view.getInt32(from)), 0xD3: () => number(8, from => view.getBigInt64(from)),
      0xD4: () => extension(1), 0xD5: () => extension(2), 0xD6: () => extension(4), 0xD7: () => extension(8), 0xD8: () => extension(16),
      0xD9: () => text(unsigned(1)), 0xDA: () => text(unsigned(2)), 0xDB: () => text(unsigned(4)), 0xDC: () => list(unsigned(2)),
      0xDD: () => list(unsigned(4)), 0xDE: () => map(unsigned(2)), 0xDF: () => map(unsigned(4))};
    if (!kinds[byte]) throw Error(`not msgpack: byte ${byte} at ${at - 1}`);
    return kinds[byte]();
  };
  const out = read(0);
  if (at !== data.length) throw Error(`not msgpack: ${data.length - at} trailing bytes`);
  return out;
}

function leaf_text(value) {
  if (typeof value === 'string') return `"${value.slice(0, 2000)}"`;
  if (value?.invalid) return `not UTF-8, ${leaf_text(value.data)}`;
  if (value instanceof Uint8Array) return `${bytes_text(value.length)}: ${[...value.subarray(0, 32)].map(b => b.toString(16).padStart(2, '0')).join(' ')}${value.length > 32 ? ' ...' : ''}`;
  if (value && value.data) return `extension ${value.extension}, ${bytes_text(value.data.length)}`;
  return typeof value === 'number' ? exact(value) : String(value);
}

// Summarize a value as text: up to `most` entries per node, up to `depth` nested nodes.
export function brief(value, most = 6, depth = 3) {
  const entries = Array.isArray(value) ? value : value?.pairs;
  if (!entries) return leaf_text(value);
  if (!depth) return '...';
  const inside = item => brief(item, most, depth - 1), name = key => typeof key === 'string' ? key : inside(key);
  const text = entries.slice(0, most).map(entry => value.pairs ? `${name(entry[0])}: ${inside(entry[1])}` : inside(entry)).join(', ') + (entries.length > most ? ', ...' : '');
  return value.pairs ? `{${text}}` : `[${text}]`;
}

function tree(value, key, open) {
  const label = key === undefined ? [] : [element('span', 'k', typeof key === 'string' ? key : brief(key))];
  const entries = Array.isArray(value) ? value.map((item, i) => [String(i), item]) : value?.pairs;
  if (!entries) return element('div', 'leaf', ...label, element('span', '', leaf_text(value)));
  const out = element('details', '', element('summary', '', ...label, ` ${Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`}`));
  let filled = 0;
  const fill = () => {
    for (const [name, item] of entries.slice(filled, filled + CHILDREN_MOST)) out.append(tree(item, name, false));
    filled += CHILDREN_MOST;
    if (filled < entries.length) {
      const more = element('button', '', `${grouped(entries.length - filled)} more`);
      more.onclick = () => { more.remove(); fill(); };
      out.append(more);
    }
  };
  out.ontoggle = () => { if (out.open && !filled) fill(); };
  if (open) { fill(); out.open = true; }
  return out;
}

// ---- any value ----

// Returns {node, text, cut, number}. The filter searches the text (`cut` if it was truncated at
// SEARCH_MOST), and histograms use the number. A value may have at most `most` bytes.
export function show(field, data, full, most = Infinity) {
  const kind = kind_of(field);
  const searched = text => ({text: text.slice(0, SEARCH_MOST), cut: text.length > SEARCH_MOST});
  const media = kind === 'image' || kind === 'video' || kind === 'bytes' ? media_of(data) : null;
  if (media && media.mime.startsWith('image')) return {node: image(data, media)};
  if (media) return {node: video(data, media, full)};
  if (kind === 'image' || kind === 'video') {
    const node = element('div', '', fault(`damaged: not ${kind === 'image' ? 'an image' : 'a video'} (${bytes_text(data.length)})`));
    if (full) node.append(hex(data, 256));
    return {node};
  }
  if (kind === 'bytes') {
    const node = element('div', '', element('span', 'soft', bytes_text(data.length) + (full || !data.length ? '' : ': ')));
    if (full && data.length) node.append(hex(data));
    else node.append([...data.subarray(0, 16)].map(byte => byte.toString(16).padStart(2, '0')).join(' '));
    return {node};
  }
  if (kind === 'msgpack') {
    const value = msgpack(data);
    return {node: full ? tree(value, undefined, true) : element('span', '', brief(value).slice(0, 400)), ...searched(brief(value, Infinity, Infinity))};
  }
  const value = decode(field.inside, data, most);
  if (kind === 'text') {
    const most = full ? TEXT_MOST : 200;
    return {node: element('span', 'text', value.slice(0, most) + (value.length > most ? '...' : '')), ...searched(value)};
  }
  if (typeof value === 'bigint') return {node: element('span', 'number', String(value)), text: String(value), number: value};
  if (!value || !value.shape) return {node: hex(data)};
  const node = array(value, full);
  return kind === 'number' ? {node, text: node.textContent, number: value.dtype.startsWith('complex') ? undefined : numbers(value)?.[0]} : {node};
}
