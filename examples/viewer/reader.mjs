// reader.mjs - reads datasets with viewer.c, from URLs or from files that the user selects.
// It runs in a browser and in node.
//
//     Source    the bytes of files: a cache of pages, and a list of pending requests
//     Http      a source on web servers: ranges, sizes
//     Local     a source of File objects: nothing is uploaded
//     Dataset   shards, datapoints, items
//     Live      a Dataset that `bags view --live` follows while it is being written

const PAGE = 4096; // bytes; the unit of caching
const CACHE = 64 << 20; // bytes of the cache
const BIG = 8 << 20; // bytes; larger reads bypass the cache
const AHEAD = 4; // minimum number of pages per request
const GAP = 4; // pages; ranges that are closer are requested as one
const NO_RANGES_MOST = 16 << 20; // bytes; largest file loaded in full if the server has no ranges
const SPEC_MOST = 1 << 20;
const SMALL = 1 << 16; // bytes; smaller files may be loaded by one request,
const DICTIONARY = 1 << 17; // and so may smaller dictionaries
const FIRST = 1 << 15; // bytes of a Bag requested together with its size
const EXPECT_MOST = 9; // fields of a shard that are looked up in advance
const INDEXES_MOST = 16; // fields for which an index is looked up
const FIRST_TRIES = 20; // shards to try until one can be opened
const SIZES_MOST = 48; // Bags on a server to open for estimating all sizes
const TOGETHER = 256; // datapoints of a column requested together
const OPEN_MOST = 64; // shards open at the same time
const RETRY_MS = 400;
const REQUESTS_MOST = 64; // at the same time; browsers fail with thousands
const LIVE_MS = 200; // between two looks at a dataset that is being written
// errno of wasi-libc
const EAGAIN = 6, EIO = 29, ENOENT = 44, ESTALE = 72;
const NONE = 0, FILE = 1, DIRECTORY = 2; // bags_path_kind
const AGAIN = Symbol('the bytes have not arrived');

const join = (...parts) => parts.filter(part => part !== '').join('/');
// Call a function for each element, several calls at a time.
const for_all = (list, run, waiting = [...list]) => Promise.all(Array.from({length: 12}, async () => {
  while (waiting.length) await run(waiting.shift());
}));
const name_of = path => path.replace(/\/+$/, '').split('/').pop();
const digits = name => /^\d+$/.test(name);

class Source {
  constructor() {
    this.files = new Map(); // by path
    this.pages = new Map(); // by file and page number; oldest first
    this.used = 0;
    this.big = []; // {file, offset, data}: at most two
    this.lacks = false; // the running call lacks bytes
    this.lacking = new Set(); // files with something to request
    this.round = null; // the requests that calls are waiting for
    this.requests = this.bytes = 0;
  }

  file(path) {
    let file = this.files.get(path);
    if (!file) {
      file = {path, id: this.files.size, size: undefined, wanted: new Set(), flying: new Map(),
        failed: null, why: '', big: null};
      this.files.set(path, file);
    }
    return file;
  }

  key(file, page) { return file.id * 2 ** 32 + page; }

  keep(file, page, data) {
    const key = this.key(file, page);
    if (!this.pages.has(key)) this.used += PAGE;
    this.pages.set(key, data.slice());
  }

  keep_all(file, offset, data) {
    for (let at = 0; at < data.length; at += PAGE)
      this.keep(file, (offset + at) / PAGE, data.subarray(at, at + PAGE));
  }

  // Evict pages. Called after the calls that needed them have run.
  evict() {
    for (const key of this.pages.keys()) {
      if (this.used <= CACHE) break;
      this.pages.delete(key);
      this.used -= PAGE;
    }
  }

  again(file) {
    this.lacks = true;
    this.lacking.add(file);
    return -EAGAIN;
  }

  fail(file, why, error = EIO) {
    file.failed = {time: Date.now(), why, error};
    file.why = why;
  }

  // Look up a file now. The promise never fails.
  look(file) {
    file.sizing ??= this.look_up(file).catch(error => this.fail(file, error.message, error.errno))
      .finally(() => { file.sizing = null; });
    return file.sizing;
  }

  // Prepare for a file that will be needed.
  expect(path) {
    const file = this.file(path);
    if (file.size === undefined && !file.failed) this.look(file);
  }

  // Prepare for the files of a shard with these fields.
  expect_bags(path, names, endings = ['.bag', '.crc']) {
    const plain = names.filter(name => /^[\w-][\w .-]*$/.test(name)); // the library decides about others
    for (const name of [...plain.slice(0, EXPECT_MOST), 'refs'])
      for (const ending of endings) this.expect(join(path, name + ending));
  }

  // Prepare for a shard whose fields are not known yet.
  async expect_shard(path) {
    const spec = join(path, 'spec.json');
    this.expect(spec);
    await this.file(spec).sizing;
    const data = this.size(spec) > 0 ? this.read(spec, 0, SPEC_MOST) : 0;
    // The library refuses anything that is not JSON.
    try { if (typeof data !== 'number') this.expect_bags(path, Object.keys(JSON.parse(decoder.decode(data)))); } catch { /* empty */ }
  }

  // The size of a file, or -errno.
  size(path) {
    const file = this.file(path);
    if (file.size !== undefined) return file.size;
    if (file.failed && Date.now() - file.failed.time < 3000) return -file.failed.error;
    file.wants_size = true;
    return this.again(file);
  }

  // The bytes, or -errno.
  read(path, offset, size) {
    const file = this.file(path);
    const stop = Math.min(offset + size, file.size);
    if (offset >= stop) return new Uint8Array(0);
    if (file.failed && Date.now() - file.failed.time < 3000) return -file.failed.error;
    if (stop - offset > BIG) {
      const found = this.big.find(big => big.file === file && big.offset === offset &&
        big.data.length === stop - offset);
      if (found) return found.data;
      file.big = {offset, stop};
      return this.again(file);
    }
    const out = new Uint8Array(stop - offset);
    let complete = true;
    for (let page = Math.floor(offset / PAGE); page * PAGE < stop; page++) {
      const key = this.key(file, page), data = this.pages.get(key);
      if (!data) {
        file.wanted.add(page);
        complete = false;
      } else if (complete) {
        this.pages.delete(key);
        this.pages.set(key, data);
        const from = Math.max(offset - page * PAGE, 0);
        out.set(data.subarray(from, Math.min(stop - page * PAGE, PAGE)), Math.max(page * PAGE - offset, 0));
      }
    }
    return complete ? out : this.again(file);
  }

  explain(path) {
    const file = this.files.get(path);
    return file ? file.why : '';
  }

  // Request, all at once, everything that calls have lacked since the last time.
  settle() {
    this.round ??= Promise.resolve().then(() => {
      this.round = null;
      const waits = [];
      const lacking = this.lacking;
      this.lacking = new Set();
      for (const file of lacking) {
        if (file.wants_size) {
          file.wants_size = false;
          waits.push(this.look(file));
        }
        if (file.big) {
          const {offset, stop} = file.big;
          file.big = null;
          waits.push(this.fetch(file, offset, stop).then(data => {
            this.big = [{file, offset, data}, ...this.big.slice(0, 1)];
          }).catch(error => this.fail(file, error.message, error.errno)));
        }
        if (file.wanted.size) this.fetch_pages(file, waits);
      }
      return Promise.all(waits);
    });
    return this.round;
  }

  // Load the end of a file that was looked up: a table, or checksums.
  async keep_end(file) {
    const start = Math.max(0, Math.ceil(file.size / PAGE) - AHEAD) * PAGE;
    if (file.size) this.keep_all(file, start, await this.fetch(file, start, file.size));
  }

  fetch_pages(file, waits) {
    const last = Math.ceil(file.size / PAGE);
    const wanted = [...file.wanted].sort((a, b) => a - b);
    const ranges = [];
    file.wanted.clear();
    for (const page of wanted) {
      const flying = file.flying.get(page), range = ranges[ranges.length - 1];
      if (flying) waits.push(flying);
      else if (range && page <= range.stop + GAP) range.stop = Math.max(range.stop, page + 1);
      else ranges.push({start: page, stop: Math.min(page + AHEAD, last)});
    }
    for (const {start, stop} of ranges) {
      const flight = this.fetch(file, start * PAGE, Math.min(stop * PAGE, file.size))
        .then(data => this.keep_all(file, start * PAGE, data))
        .catch(error => this.fail(file, error.message, error.errno))
        .finally(() => { for (let page = start; page < stop; page++) file.flying.delete(page); });
      for (let page = start; page < stop; page++) file.flying.set(page, flight);
      waits.push(flight);
    }
  }
}

// ---- web servers ----

export class Http extends Source {
  // `base` is the URL of a directory, an archive or a Bag; files are below it.
  constructor(url) {
    super();
    const parsed = new URL(url);
    if (parsed.protocol !== 'http:' && parsed.protocol !== 'https:')
      throw Error(`${url}: a dataset's address is http://HOST/PATH or https://HOST/PATH; open a local ` +
        'folder with the button, or run `bags view PATH`');
    this.query = parsed.search;
    this.path = (parsed.origin + parsed.pathname).replace(/\/+$/, '');
    this.host = parsed.host;
    const archive = this.path.match(/^(.*\.(?:zip|tar))(\/.*)?$/i);
    this.archive = archive ? archive[1] : null;
    this.running = 0; // requests
    this.queue = []; // waiting requests
    this.answered = false; // a response was readable for this page
    this.blocked = false; // a response was not readable
    this.without_ranges = false;
    this.numbers = null; // shard numbers, from an index page or found one by one
  }

  url(path) {
    const base = this.archive ?? this.path.replace(/\.bag$/, ''); // .crc and .idx are next to a Bag
    return base + path.slice(base.length).split('/').map(encodeURIComponent).join('/') + this.query;
  }

  // Uses only headers and responses that need no preflight. `null`: the file does not exist.
  async request(path, method, range) {
    while (this.running >= REQUESTS_MOST) await new Promise(done => this.queue.push(done));
    this.running++;
    try { return await this.request_now(this.url(path), method, range); } finally {
      this.running--;
      this.queue.shift()?.();
    }
  }

  async request_now(url, method, range) {
    const stop = new AbortController();
    const send = () => {
      this.requests++;
      return fetch(url, {method, signal: stop.signal, cache: 'no-store', credentials: 'same-origin',
        headers: range ? {Range: `bytes=${range[0]}-${range[1] - 1}`} : {}}).catch(() => null);
    };
    for (let attempt = 0; ; attempt++) {
      let answer = await send();
      if (!answer) {
        // The network failed, or the server omits the headers because the file is missing.
        const [again, opaque] = await Promise.all([this.answered && send(), this.is_opaque(url)]);
        answer = again;
        if (!answer && opaque) {
          this.blocked = true;
          return null;
        }
        if (!answer && attempt < 2) {
          await new Promise(done => setTimeout(done, RETRY_MS << attempt));
          continue;
        }
        if (!answer) throw Error(`cannot connect to ${this.host}`);
      }
      this.answered = true;
      if (answer.status === 404 || answer.status === 403 || answer.status === 410) return null;
      if ((answer.status === 429 || answer.status >= 500) && attempt < 3) {
        await new Promise(done => setTimeout(done, RETRY_MS << attempt));
        continue;
      }
      if (!answer.ok) throw Error(`the server answers ${answer.status} ${answer.statusText}`);
      const length = Number(answer.headers.get('content-length') ?? NaN);
      const body = async limit => {
        const parts = [], reader = answer.body.getReader();
        let size = 0;
        for (let part; !(part = await reader.read()).done;) {
          parts.push(part.value);
          size += part.value.length;
          this.bytes += part.value.length;
          if (size > limit) {
            stop.abort();
            throw Error(`too large (more than ${limit} bytes)`);
          }
        }
        const data = new Uint8Array(size);
        for (let at = 0; parts.length;) { data.set(parts[0], at); at += parts.shift().length; }
        return data;
      };
      return {status: answer.status, length, time: answer.headers.get('last-modified'), body,
        cancel: () => stop.abort()};
    }
  }

  // True if a server responds, but does not allow pages from other origins.
  async is_opaque(url) {
    this.requests++;
    try {
      await fetch(url, {method: 'HEAD', mode: 'no-cors', cache: 'no-store', credentials: 'omit'});
      return true;
    } catch { return false; }
  }

  missing(file) {
    file.size = -ENOENT;
    return true;
  }

  // A small file takes one request. For others, request the size together with the first
  // bytes, then the end, where the table is.
  async look_up(file) {
    if (/\.json$/.test(file.path)) {
      const answer = await this.request(file.path, 'GET');
      if (!answer) return this.missing(file);
      const data = await answer.body(SPEC_MOST);
      this.keep_all(file, 0, data);
      file.size = data.length;
      return;
    }
    const small = /(\.crc|\.idx|\.dict|\/refs\.bag)$/.test(file.path);
    const most = /\.dict$/.test(file.path) ? DICTIONARY : small ? SMALL : /\.bag$/.test(file.path) ? FIRST : 0;
    const first = most > 0 && this.look_first(file, most).catch(() => false);
    if (small && await first) return;
    const answer = await this.request(file.path, 'HEAD');
    if (await first) return;
    if (!answer) return this.missing(file);
    if (!(answer.length >= 0))
      throw Error('the server does not state its size (Content-Length)');
    this.compare(file, answer);
    file.size = answer.length;
    await this.keep_end(file);
  }

  // Request the first bytes. True if these are all, or the file is missing.
  async look_first(file, most) {
    const answer = await this.request(file.path, 'GET', [0, most]);
    if (!answer) return this.missing(file);
    if (answer.status !== 206) return answer.cancel();
    const data = await answer.body(most);
    this.compare(file, answer);
    this.keep_all(file, 0, data);
    if (data.length < most) file.size = data.length;
    return data.length < most;
  }

  // All responses must come from the same version of a file.
  compare(file, answer) {
    file.time ??= answer.time;
    if (!answer.time || file.time === answer.time) return;
    answer.cancel();
    throw Object.assign(Error('changed on the server since it was opened; reload this page'), {errno: ESTALE});
  }

  async fetch(file, start, stop) {
    const answer = await this.request(file.path, 'GET', [start, stop]);
    if (!answer) throw Error('it does not exist any more');
    this.compare(file, answer);
    if (answer.status === 206) {
      const data = await answer.body(stop - start);
      if (data.length !== stop - start) throw Error('truncated by the server');
      return data;
    }
    this.without_ranges = true;
    if (file.size > NO_RANGES_MOST) {
      answer.cancel();
      throw Error(`${this.host} ignores ranges, and the file is too large to be loaded in full; ` +
        'use a server with ranges, such as nginx');
    }
    const data = await answer.body(NO_RANGES_MOST);
    this.keep_all(file, 0, data);
    return data.slice(start, stop);
  }

  kind(path) {
    const file = () => {
      const size = this.size(path);
      return size === -ENOENT ? NONE : size < 0 ? size : FILE;
    };
    if (/\.(bag|idx|crc|dict|json|zip|tar)$/i.test(path) || path === this.archive || /\/finalized$/.test(path)) return file();
    if (/\.partial$/.test(path)) {
      // A .partial file cannot exist next to a finished record or to shards.
      const others = [path.replace(/\.partial$/, ''), ...path === this.path + '/spec.json.partial' ? [this.path + '/000000/spec.json'] : []];
      const found = others.map(other => this.size(other)).find(size => size !== -ENOENT);
      return found === undefined ? file() : found < 0 ? found : NONE;
    }
    return path === this.path || this.shard_names().includes(name_of(path)) ? DIRECTORY : NONE;
  }

  shard_names() {
    if (this.only !== undefined) return this.only === null ? [] : [this.only];
    return this.names ?? [];
  }

  list() { return this.shard_names(); }

  // The names of shards to which the directory's index page links; null: there is no such page.
  async index() {
    try {
      const answer = await this.request(this.path + '/', 'GET');
      if (!answer) return null;
      const page = new TextDecoder().decode(await answer.body(64 << 20));
      const names = [...page.matchAll(/href\s*=\s*["']?(?:\.\/)?(\d{1,18})\/?["'\s>]/gi)].map(match => match[1]);
      return names.length ? [...new Set(names)] : null;
    } catch { return null; }
  }

  async exists(path) {
    const answer = await this.request(path, 'HEAD').catch(() => null);
    return answer !== null;
  }

  // Find the shards if nothing lists them, by doubling and halving. Assumes that the last one
  // was found if the next four are missing.
  async probe() {
    const name = number => String(number).padStart(6, '0');
    const has = number => this.exists(join(this.path, name(number), 'spec.json'));
    const names = [];
    let from = 0; // exists
    for (;;) {
      let low = from, step = 1;
      while (await has(low + step)) { low += step; step *= 2; }
      let high = low + step; // is missing
      while (high - low > 1) {
        const middle = Math.floor((low + high) / 2);
        if (await has(middle)) low = middle; else high = middle;
      }
      for (let number = from; number <= low; number++) names.push(name(number));
      const next = await Promise.all([2, 3, 4].map(more => has(low + more)));
      const found = next.indexOf(true);
      if (found < 0) return names;
      from = low + 2 + found;
    }
  }
}

// ---- files that a user picked ----

export class Local extends Source {
  // files: Map of paths below `path` to File objects.
  constructor(path, files) {
    super();
    this.path = path;
    this.objects = files;
    this.archive = /\.(zip|tar)$/i.test(path) ? path : null;
    const children = new Map();
    for (const name of files.keys()) {
      const parts = name.split('/');
      for (let depth = 1; depth < parts.length; depth++) {
        const parent = parts.slice(0, depth).join('/');
        if (!children.has(parent)) children.set(parent, new Set());
        children.get(parent).add(parts[depth]);
      }
    }
    this.children = children;
    this.names = [...children.get(path) ?? []].filter(name => digits(name) && children.has(join(path, name)));
  }

  async look_up(file) {
    const object = this.objects.get(file.path);
    file.size = object ? object.size : -ENOENT;
    if (object && /\.(bag|crc)$/.test(file.path)) await this.keep_end(file);
  }

  async fetch(file, start, stop) {
    this.requests++;
    this.bytes += stop - start;
    try {
      return new Uint8Array(await this.objects.get(file.path).slice(start, stop).arrayBuffer());
    } catch { throw Error('cannot be read; was it changed or removed?'); }
  }

  kind(path) { return this.objects.has(path) ? FILE : this.children.has(path) ? DIRECTORY : NONE; }

  list(path) {
    if (path === this.path && this.only !== undefined) return this.only === null ? [] : [this.only];
    return [...this.children.get(path) ?? []];
  }

  async index() { return this.names; }
}

// ---- the library ----

let library, memory, ready, source; // the source of the running call
const decoder = new TextDecoder('utf-8', {ignoreBOM: true}), encoder = new TextEncoder();
const bytes = () => new Uint8Array(memory.buffer);
const string = (at, size) => decoder.decode(bytes().subarray(at, at + size));

const c_string = at => {
  const all = bytes();
  return decoder.decode(all.subarray(at, all.indexOf(0, at)));
};

// Call a function with a copy of bytes, or of text with a final NUL.
const with_bytes = (data, call) => {
  const at = library.view_allocate(data.length + 1);
  if (!at) throw Error('out of memory');
  bytes().set(data, at);
  try { return call(at, data.length); } finally { library.view_free(at); }
};
const with_string = (text, call) => with_bytes(encoder.encode(text + '\0'), call);

// Compile the library, but let code that is running now make its first requests before.
// Datasets wait for it.
export function start(wasm) { return ready = Promise.resolve().then(wasm).then(compile); }

async function compile(wasm) {
  const page = {
    size: (path, length) => source.size(string(path, length)),
    kind: (path, length) => source.kind(string(path, length)),
    read: (path, length, offset, to, size) => {
      const data = source.read(string(path, length), offset, size);
      if (typeof data === 'number') return data;
      bytes().set(data, to);
      return data.length;
    },
    list: (path, length, to, size) => {
      const names = encoder.encode(source.list(string(path, length)).map(name => name + '\0').join(''));
      if (to) bytes().set(names.subarray(0, size), to);
      return names.length;
    },
    expect: (path, length) => {
      const file = source.file(string(path, length));
      if (file.size !== undefined || /\.partial$/.test(file.path)) return; // kind() rarely needs .partial
      file.wants_size = true;
      source.lacking.add(file);
    },
    explain: (path, length, to, size) => encoder.encodeInto(source.explain(string(path, length)),
      bytes().subarray(to, to + size)).written,
  };
  const system = {fd_close: () => 8, fd_seek: () => 8, fd_write: () => 8};
  const {instance} = await WebAssembly.instantiate(wasm, {page, wasi_snapshot_preview1: system});
  library = instance.exports;
  memory = library.memory;
  library._initialize();
}

const megabytes = size => `${(size / 2 ** 20).toFixed(size < 2 ** 30 ? 0 : 1)} MiB`;

// Why the last library call failed.
function failure_of() {
  const refused = library.view_refused();
  return Object.assign(Error(refused ? `${megabytes(refused)}: larger than this page loads; read it with \`bags get\``
    : c_string(library.view_error())), {refused});
}

// Decode bytes by their type, using at most `most` bytes of memory. Returns a number, text,
// bytes or {dtype, shape, data}.
export function decode(type, data, most = Infinity) {
  return with_bytes(data, (at, size) => {
    const kind = with_string(type.replace(/\[\]$/, ''), text => library.view_decode(text, at, size, most));
    if (kind < 0) throw failure_of();
    const from = library.view_value_data(), content = () => bytes().slice(from, from + library.view_value_size());
    const kinds = {2: content, 3: () => decoder.decode(content()), 4: () => BigInt.asUintN(64, library.view_value_uint()),
      5: () => library.view_value_int(), 6: () => ({dtype: c_string(library.view_value_dtype()),
        shape: Array.from({length: library.view_value_dims()}, (_, i) => library.view_value_dim(i)), data: content()})};
    return kinds[kind] ? kinds[kind]() : null;
  });
}

// ---- values ----

const half = bits => {
  const exponent = bits >> 10 & 31, fraction = bits & 1023, sign = bits & 0x8000 ? -1 : 1;
  return exponent === 31 ? fraction ? NaN : sign * Infinity
    : sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
};

// The elements as numbers, two for each complex number; null for any other dtype.
export function numbers({dtype, data}) {
  const types = {bool: Uint8Array, uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array, int8: Int8Array,
    int16: Int16Array, int32: Int32Array, int64: BigInt64Array, float16: Uint16Array, float32: Float32Array, float64: Float64Array,
    complex64: Float32Array, complex128: Float64Array};
  const type = types[dtype];
  if (!type) return null;
  const all = new type(data.buffer, data.byteOffset, Math.floor(data.length / type.BYTES_PER_ELEMENT));
  return dtype === 'float16' ? Float32Array.from(all, half) : all;
}

// Convert a blob to text, a number (a bigint if a number would not be exact), bytes, or
// {dtype, shape, data}. Types without a decoder here, such as jpeg, become bytes.
function value_of(field, data) {
  if (!/^(utf8|int|u64|i64|array|npy)$/.test(field.base)) return data;
  const value = decode(field.inside, data), exact = number => Number.isSafeInteger(Number(number)) ? Number(number) : number;
  if (typeof value === 'bigint') return exact(value);
  if (!value?.shape) return value;
  const {dtype, shape} = value, elements = numbers(value);
  return shape.length || elements.length !== 1 ? {dtype, shape, data: elements} : typeof elements[0] === 'bigint' ? exact(elements[0]) : elements[0];
}

// Parse a key to search for in an index: {kind, data, prefix}. A final * matches any ending; a
// final ** stands for a literal *.
function key_of(field, text) {
  const number = new DataView(new ArrayBuffer(8)), data = new Uint8Array(number.buffer);
  if (/^(zstd\()?(utf8|bytes)/.test(field.type)) {
    const prefix = /(^|[^*])\*$/.test(text);
    return {kind: 3, data: encoder.encode(/\*$/.test(text) ? text.slice(0, -1) : text), prefix};
  }
  if (/^-?\d+$/.test(text)) {
    const whole = BigInt(text);
    number.setBigUint64(0, BigInt.asUintN(64, whole), true);
    if (whole >= -(2n ** 63n) && whole < 2n ** 64n) return {kind: whole < 0 ? 5 : 4, data, prefix: false};
  }
  number.setFloat64(0, Number(text), true);
  if (!text.trim() || !Number.isFinite(Number(text))) throw Error(`field "${field.name}": "${text.slice(0, 100)}" is not a number`);
  return {kind: 6, data, prefix: false};
}

// ---- datasets ----

export class Dataset {
  constructor(from) {
    this.source = from;
    this.name = decodeURIComponent_or(name_of(from.path)) || from.host;
    this.fields = [];
    this.shards = []; // {name, start, length, view}; length undefined: not known yet
    this.open_shards = new Set();
    this.faults = []; // messages
    this.known = this.length = 0; // shards before the first one of unknown length; their datapoints
    this.complete = false; // all lengths are known
    this.verified = undefined; // true if checksums are compared
    this.whole = 0; // a view of all shards, opened by the first search for a key
    this.indexes = new Map(); // open indexes, by field
    this.changed = () => {};
  }

  // Repeat a library call until it has its bytes, or the dataset is closed.
  async attempt(call) {
    for (let tries = 0; tries < 100000; tries++) {
      if (this.closed) throw Error(`${this.name}: closed`);
      try {
        const out = call();
        this.source.evict();
        return out;
      } catch (error) {
        if (error !== AGAIN) throw error;
      }
      await this.source.settle();
    }
    throw Error(`${this.name}: no progress`);
  }

  // Make one library call. `failed` tests its result.
  call(run, failed) {
    source = this.source;
    source.lacks = false;
    const out = run();
    if (!failed(out)) return out;
    if (source.lacks) throw AGAIN;
    throw failure_of();
  }

  fault(message) {
    if (!this.faults.includes(message)) this.faults.push(message);
    this.changed();
  }

  open_view(number, verify, keys = 0) {
    return this.call(() => with_string(this.source.path, text => library.view_open(text, this.archive ?? 0, number, verify, keys)),
      view => view === 0);
  }

  // Compare checksums, if there are any. It is a fault if only some Bags have them.
  open_checked(shard) {
    const {source: from} = this, beside = join(from.path, shard.name ?? '', 'refs.crc');
    if (!shard.plain) {
      try {
        const view = this.open_view(shard.number, 1);
        this.verified ??= true;
        return view;
      } catch (error) {
        if (error === AGAIN || !/\.crc is missing\)/.test(error.message)) throw error;
        const other = from.archive ? -ENOENT : from.size(beside);
        if (other === -EAGAIN) throw AGAIN;
        if (other >= 0 || this.verified) this.fault(`${error.message}; nothing is compared`);
        shard.plain = true;
        this.verified = false;
      }
    }
    return this.open_view(shard.number, 0);
  }

  // The view of a shard. Opens it if necessary.
  view(shard) {
    if (shard.error) throw shard.error;
    this.open_shards.delete(shard);
    if (!shard.view) {
      if (shard.name !== null && this.fields.length && !shard.expected) {
        shard.expected = true;
        this.source.expect_bags(join(this.source.path, shard.name), this.fields.map(field => field.name), this.verified ? ['.bag', '.crc'] : ['.bag']);
      }
      this.source.only = shard.name;
      try {
        shard.view = this.open_checked(shard);
      } catch (error) {
        if (error !== AGAIN) shard.error = error;
        throw error;
      } finally { this.source.only = undefined; }
    }
    this.open_shards.add(shard);
    for (const old of this.open_shards) {
      if (this.open_shards.size <= OPEN_MOST) break;
      library.view_close(old.view);
      old.view = 0;
      this.open_shards.delete(old);
    }
    return shard.view;
  }

  close() {
    for (const shard of this.open_shards) library.view_close(shard.view);
    this.open_shards.clear();
    for (const index of this.indexes.values()) library.view_index_close(index);
    if (this.whole) library.view_close(this.whole);
    if (this.archive) library.view_archive_close(this.archive);
    this.closed = true;
  }

  measure(shard) {
    if (shard.length === undefined) shard.length = library.view_length(this.view(shard));
  }

  // Open just enough to read the first datapoints.
  async open() {
    const {source: from} = this, path = from.path;
    if (!from.archive && !/\.bag$/.test(path))
      for (const directory of from.names ? [] : [path, join(path, '000000')]) from.expect_shard(directory);
    await ready;
    if (from.archive) {
      this.archive = await this.attempt(() => this.call(
        () => with_string(from.archive, text => library.view_archive(text)), archive => archive === 0));
      this.shards = [{name: null, number: -1}];
    } else if (/\.bag$/.test(path)) {
      this.shards = [{name: null, number: -1}];
    } else {
      const single = await this.attempt(() => {
        const own = from.size(join(path, 'spec.json'));
        const first = from.names ? -ENOENT : from.size(join(path, '000000', 'spec.json'));
        if (own === -EAGAIN || first === -EAGAIN) throw AGAIN;
        if (own < 0 && own !== -ENOENT) throw Error(`${path}/spec.json: ${from.explain(join(path, 'spec.json'))}`);
        return own >= 0 || (first < 0 && !(from.names && from.names.length));
      });
      if (single) {
        const names = from.names ?? [];
        this.shards = [{name: names[0] ?? null, number: -1}];
      } else {
        from.names ??= ['000000'];
        this.set_names(from.names);
      }
      this.single = single;
    }
    let first = await this.find_first();
    if (!first && from instanceof Http && this.single === false) {
      this.set_names(from.names = await from.index() ?? await from.probe());
      first = await this.find_first();
    }
    const why = this.shards[0]?.error ?? Error(this.faults[0] ?? `${path}: not a dataset (no spec.json, no shards)`);
    if (!first) {
      if (from.blocked && !from.answered)
        throw Error(`${path}: ${from.host} does not let this page read it: its answers lack the header ` +
          'Access-Control-Allow-Origin; or nothing exists at this address. Let the server send ' +
          '"Access-Control-Allow-Origin: *" (for S3, set a CORS rule), or download the dataset and drop it here');
      throw why;
    }
    for (const shard of this.shards) if (shard.error) this.fault(shard.error.message);
    const count = library.view_fields(first.view);
    for (let i = 0; i < count; i++)
      this.fields.push(field_of(i, c_string(library.view_name(first.view, i)), c_string(library.view_type(first.view, i))));
    this.add_up();
    if (this.shards.length === 1 && this.single !== false) this.complete = true;
  }

  // The first shard that can be opened, or undefined. Shards that fail keep their errors.
  async find_first() {
    for (const shard of this.shards.slice(0, FIRST_TRIES)) {
      if (shard.error) continue;
      try {
        await this.attempt(() => this.measure(shard));
        return shard;
      } catch (error) {
        if (!shard.error) throw error;
        shard.length = 0;
      }
    }
    return undefined;
  }

  set_names(names) {
    const known = new Map(this.shards.map(shard => [shard.name, shard]));
    const all = names.map(name => ({name, number: Number(name)})).sort((a, b) => a.number - b.number);
    const sorted = all.filter(({number}) => Number.isSafeInteger(number));
    if (sorted.length < all.length) this.fault(`${this.source.path}: a shard's number is too large (${all.at(-1).name})`);
    this.shards = sorted.map(shard => known.get(shard.name) ?? shard);
    const missing = [], twice = [];
    let next = 0, count = 0;
    for (const {number} of sorted) {
      if (number < next) { twice.push(number); continue; }
      count += number - next;
      for (; next < number && missing.length < 20; next++) missing.push(next);
      next = number + 1;
    }
    if (count)
      this.fault(`${this.source.path}: missing shards ${missing.join(', ')}${count > 20 ? ', ...' : ''} (found ` +
        `${sorted.length} of ${sorted.length + count}): lost, or their workers are not done; the others are shown`);
    if (twice.length)
      this.fault(`${this.source.path}: two shards have the number ${twice[0]}`);
    this.known = this.length = 0;
    this.add_up();
  }

  // Find all shards, and their lengths, in the background.
  async count() {
    if (this.complete) return;
    const names = this.source instanceof Http ? await this.source.index() ?? await this.source.probe() : this.source.names;
    this.source.names = names;
    this.set_names(names);
    await for_all(this.shards.filter(shard => shard.length === undefined), async shard => {
      if (this.closed) return;
      await this.attempt(() => this.look_at(shard)).catch(error => {
        shard.error = error;
        shard.length = 0;
        this.fault(error.message);
      });
      this.add_up();
    });
    this.complete = true;
    this.add_up();
  }

  // Find out the length of a shard without keeping it open.
  look_at(shard) {
    if (shard.length !== undefined) return;
    this.source.only = shard.name;
    try {
      const view = this.open_view(shard.number, 0);
      const count = library.view_fields(view);
      const same = count === this.fields.length && this.fields.every((field, i) =>
        c_string(library.view_name(view, i)) === field.name && c_string(library.view_type(view, i)) === field.type);
      const length = library.view_length(view);
      library.view_close(view);
      if (!same) throw Error(`${join(this.source.path, shard.name)}: spec.json differs from that of the first shard`);
      shard.length = length;
    } finally { this.source.only = undefined; }
  }

  add_up() {
    for (let shard; (shard = this.shards[this.known])?.length !== undefined; this.known++) {
      shard.start = this.length;
      this.length += shard.length;
    }
    this.changed();
  }

  locate(index) {
    if (!(Number.isSafeInteger(index) && index >= 0 && index < this.length)) throw Error(`${this.name}: datapoint ${index} out of range (length ${this.length})`);
    let low = 0, high = this.known - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.shards[middle].start <= index) low = middle; else high = middle - 1;
    }
    while (index - this.shards[low].start >= this.shards[low].length) low--; // skip empty shards
    return [this.shards[low], index - this.shards[low].start];
  }

  // The number of items in a sequence; 1 for a plain field.
  items(index, field) {
    const [shard, at] = this.locate(index);
    return this.attempt(() => {
      const view = this.view(shard);
      return this.call(() => library.view_items(view, at, field), count => count < 0);
    });
  }

  // The size of a blob, without reading it. NaN: unknown, in a file of 4 GiB or more.
  size(index, field, item = 0) {
    const [shard, at] = this.locate(index);
    return this.attempt(() => {
      const view = this.view(shard);
      return this.call(() => library.view_size(view, at, field, item), size => size < 0);
    });
  }

  // ---- values, by the names of fields ----

  field(name) {
    const field = this.fields.find(of => of.name === name);
    if (!field) throw Error(`${this.name}: no field "${name}" (${this.fields.map(of => of.name).join(', ')})`);
    return field;
  }

  // The values of a datapoint by field name, for some or all fields. A sequence is a list.
  async get(index, names = this.fields.map(field => field.name)) {
    const fields = [names].flat().map(name => this.field(name)), at = Number(index);
    const values = await Promise.all(fields.map(async field => {
      const read = async item => value_of(field, await this.blob(at, field.number, item));
      if (!field.sequence) return read(0);
      return Promise.all(Array.from({length: await this.items(at, field.number)}, (_, item) => read(item)));
    }));
    return Object.fromEntries(fields.map((field, i) => [field.name, values[i]]));
  }

  // The values of a field from datapoint start to stop - 1: a typed array if all are numbers
  // of one dtype, otherwise a list. Integers become float64, or int64 or uint64 if these are
  // not exact.
  async column(name, start = 0, stop = this.length) {
    const field = this.field(name), out = [];
    if (!(Number.isSafeInteger(start) && Number.isSafeInteger(stop) && start >= 0 && start <= stop && stop <= this.length))
      throw Error(`${this.name}: invalid range (start ${start}, stop ${stop}, length ${this.length})`);
    for (let from = start; from < stop; from += TOGETHER) {
      const some = Array.from({length: Math.min(TOGETHER, stop - from)}, (_, i) => this.get(from + i, name));
      out.push(...(await Promise.all(some)).map(row => row[name]));
    }
    if (!out.length || field.sequence || !out.every(value => /^(number|bigint)$/.test(typeof value))) return out;
    if (out.every(value => typeof value === 'number')) return Float64Array.from(out);
    const whole = out.map(value => BigInt(value));
    return whole.every(value => value >= 0n) ? BigUint64Array.from(whole) : BigInt64Array.from(whole);
  }

  // The numbers of the datapoints with a key, in a field with an index; with `prefix`, of
  // the texts that begin with it.
  async find(name, key, {prefix = false} = {}) {
    const field = this.field(name), is_text = /^(zstd\()?(utf8|bytes)/.test(field.type), out = [];
    if (prefix && !is_text) throw Error(`${this.name}: field "${name}" is not text, and has no prefixes`);
    if (is_text && typeof key !== 'string') throw Error(`${this.name}: field "${name}" is text, and ${key} is not`);
    const wanted = is_text ? {kind: 3, data: encoder.encode(key), prefix} : key_of(field, String(key));
    for (let count = Infinity; out.length < count;) {
      const part = await this.find_key(field, wanted, out.length);
      count = part.count;
      out.push(...part.found);
    }
    return out;
  }

  // ---- blobs, by the numbers of fields ----

  // A blob of at most `most` bytes, whose checksum was compared if the dataset has checksums;
  // of a compressed field, the blob of the type inside.
  blob(index, field, item = 0, most = Infinity) {
    const [shard, at] = this.locate(index);
    return this.attempt(() => {
      const view = this.view(shard);
      this.call(() => library.view_get(view, at, field, item, most), code => code !== 0);
      const data = library.view_data();
      return bytes().slice(data, data + library.view_data_size());
    });
  }

  // The items start, start + step, ... in a sequence of numbers or vectors, as float64.
  curve(index, field, start, stop, step) {
    const [shard, at] = this.locate(index);
    return this.attempt(() => {
      const view = this.view(shard);
      this.call(() => library.view_curve(view, at, field, start, stop, step), code => code !== 0);
      const data = library.view_data();
      return curve_of(bytes().slice(data, data + library.view_data_size()));
    });
  }

  // The fields that have an index, next to the first shard.
  async indexed() {
    const shard = this.shards.find(of => of.length !== undefined && !of.error), path = this.source.path;
    if (!shard || /\.bag$/.test(path)) return [];
    const able = this.fields.filter(field => !field.sequence && /^(utf8|bytes|int|u64|i64|array|zstd)$/.test(field.base)).slice(0, INDEXES_MOST);
    const has = await Promise.all(able.map(field => this.attempt(() => {
      const view = this.view(shard);
      return this.call(() => with_string(path, text => library.view_has_index(view, text, this.archive ?? 0, field.number)), out => out < 0);
    }).catch(() => 0)));
    return able.filter((field, i) => has[i]);
  }

  // Find the datapoints with a key as typed: how many there are, and the first of them.
  find_text(field, text) { return this.find_key(field, key_of(field, text), 0); }

  async find_key(field, {kind, data, prefix}, skip) {
    const path = this.source.path;
    this.whole ||= await this.attempt(() => this.open_view(-1, 0, 1));
    if (!this.indexes.has(field))
      this.indexes.set(field, await this.attempt(() => this.call(
        () => with_string(path, of => library.view_index(this.whole, of, this.archive ?? 0, field.number)), index => index === 0)));
    const index = this.indexes.get(field);
    const count = await this.attempt(() => this.call(
      () => with_bytes(data, (at, size) => library.view_find(this.whole, index, kind, at, size, prefix, skip)), out => out < 0));
    const first = new BigUint64Array(memory.buffer, library.view_found(), Math.min(count - skip, library.view_find_most()));
    return {count, found: [...first].map(Number)};
  }

  // The size of each field in all shards, estimated from some: [how many shards, sizes].
  async sizes() {
    const all = this.shards.filter(shard => !shard.error && shard.length > 0);
    const count = Math.min(all.length, Math.max(2, Math.floor((this.source instanceof Http ? SIZES_MOST : 100 * SIZES_MOST) / this.fields.length)));
    const some = Array.from({length: count}, (_, i) => all[Math.floor(i * all.length / count)]);
    const sizes = this.fields.map(() => 0), scale = count && this.length / some.reduce((sum, shard) => sum + shard.length, 0);
    await for_all(some, async shard => {
      for (const field of this.fields) {
        const size = await this.attempt(() => {
          const view = this.view(shard);
          return this.call(() => library.view_field_size(view, field.number), out => out < 0);
        });
        sizes[field.number] += size;
      }
    });
    return [some.length, sizes.map(size => size * scale)];
  }
}

const curve_of = data => {
  const all = new Float64Array(data.buffer, data.byteOffset, data.length / 8);
  return {elements: all[0], numbers: all.subarray(1)};
};

// Describe a field by its type.
export function field_of(number, name, type) {
  // The compressed type: array(float32,8) for zstd(array,float32,8).
  const inside = type.replace(/^zstd\(([^,)]+),?(.*)\)/, (_, outer, words) => words ? `${outer}(${words})` : outer);
  return {number, name, type, inside, base: inside.replace(/[([].*/, ''), sequence: type.endsWith('[]')};
}

// ---- a dataset that is being written ----

// The server reads the dataset, and numbers its datapoints. The numbers never change. Shown
// data stays visible, whatever happens to the writer or the server.
export class Live extends Dataset {
  constructor(url) {
    super({path: url, host: new URL(url).host});
    this.url = url;
    this.state = null; // see live_state in examples/bags/live.c
    this.silent = ''; // why the server does not respond
  }

  async request(path, method = 'GET') {
    const answer = await fetch(this.url + path, {method, cache: 'no-store', credentials: 'same-origin'});
    if (!answer.ok) throw Error((await answer.text()).trim() || `${this.name}: the server answers ${answer.status}`);
    return answer;
  }

  async look() {
    const before = JSON.stringify([this.state, this.silent]);
    try {
      this.state = await (await this.request('')).json();
      this.silent = '';
    } catch (error) {
      if (!this.state) throw error;
      this.silent = error.message;
    }
    if (JSON.stringify([this.state, this.silent]) === before) return;
    this.length = Math.max(this.length, this.state.length);
    this.shards = Array.from({length: this.state.shards}, () => ({}));
    this.known = this.shards.length;
    this.faults = this.state.gone ? [`${this.state.gone} datapoints are gone: their shard was removed or replaced`] : [];
    this.changed();
  }

  async open() {
    await ready;
    await this.look();
    this.name = this.state.name;
    this.fields = this.state.fields.map(({name, type}, i) => field_of(i, name, type));
    this.complete = true;
    this.changed();
  }

  // Follow the writer until the dataset is closed.
  async count() {
    (async () => {
      while (!this.closed) {
        await new Promise(done => setTimeout(done, LIVE_MS));
        if (!this.closed) await this.look();
      }
    })();
  }

  // Says in words whether there is a writer.
  words() {
    const {writers, unfinished, trouble} = this.state;
    const of = this.silent ? 'it is not known whether a writer is running: `bags view` does not answer'
      : writers ? writers === 1 ? 'a writer is running and holds the lock' : `${writers} writers are running and hold their locks`
        : unfinished ? 'no writer is running: it crashed; the data that it flushed is shown, and `bags recover` finishes it'
          : 'no writer is running: the dataset is finished';
    return trouble ? `${of}; nothing new is shown: ${trouble}` : of;
  }

  async items(index, field) { return Number(await (await this.request(`/${index}/${field}`)).text()); }

  async size(index, field, item = 0) { return Number((await this.request(`/${index}/${field}/${item}`, 'HEAD')).headers.get('content-length')); }

  async blob(index, field, item = 0) { return new Uint8Array(await (await this.request(`/${index}/${field}/${item}`)).arrayBuffer()); }

  async curve(index, field, start, stop, step) {
    return curve_of(new Uint8Array(await (await this.request(`/${index}/${field}/${start}:${stop}:${step}`)).arrayBuffer()));
  }

  async indexed() { return []; }
}

// ---- opening ----

// The dataset at an address (text or URL), in a file (a zip, a tar or a Bag), or in a folder:
// a list of File objects as an <input webkitdirectory> has it, or a map of paths to them.
// It is not opened.
export function dataset_of(from) {
  if (typeof from === 'string' || from instanceof URL) return new Dataset(new Http(String(from)));
  const files = from instanceof Map ? from : new Map([...(from?.[Symbol.iterator] ? from : [from])].map(file => [file?.webkitRelativePath || file?.name, file]));
  const tops = [...new Set([...files.keys()].map(name => String(name).split('/')[0]))];
  if (![...files.values()].every(file => typeof file?.slice === 'function')) throw Error('expected an address, a File, or several');
  if (!tops.length) throw Error('no files');
  return new Dataset(new Local(tops.find(name => /\.bag$/.test(name)) ?? tops[0], files));
}

// Open a dataset, and find out the lengths of all shards. Missing and damaged shards are
// errors.
export async function open(from) {
  const dataset = dataset_of(from);
  try {
    await dataset.open();
    await dataset.count();
    if (dataset.faults.length) throw Error(dataset.faults.join('; '));
  } catch (error) {
    dataset.close();
    throw error;
  }
  return dataset;
}

function decodeURIComponent_or(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}
