// browser.mjs - drives headless Chromium by its DevTools protocol, over pipes; nginx with
// latency; and a web server with ranges, and the faults that tests ask for.
import {spawn} from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';

export async function launch() {
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'bags-chromium-'));
  const chromium = spawn('chromium', ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
    '--disable-background-networking', '--disable-component-update', '--disable-sync', '--remote-debugging-pipe', `--user-data-dir=${profile}`, '--force-device-scale-factor=1', 'about:blank'],
  {stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe']});
  const waiting = new Map(), listeners = [];
  let id = 0, text = '';
  chromium.stdio[4].setEncoding('utf8').on('data', part => {
    text += part;
    for (let end; (end = text.indexOf('\0')) >= 0; text = text.slice(end + 1)) {
      const message = JSON.parse(text.slice(0, end));
      const done = waiting.get(message.id);
      if (done) {
        waiting.delete(message.id);
        if (message.error) done.failed(Error(message.error.message)); else done.ok(message.result);
      } else for (const listener of listeners) listener(message);
    }
  });
  const send = (method, params = {}, sessionId = undefined) => new Promise((ok, failed) => {
    waiting.set(++id, {ok, failed});
    chromium.stdio[3].write(JSON.stringify({id, method, params, sessionId}) + '\0');
  });
  const page = async () => {
    const {targetId} = await send('Target.createTarget', {url: 'about:blank'});
    const {sessionId} = await send('Target.attachToTarget', {targetId, flatten: true});
    const call = (method, params) => send(method, params, sessionId), events = [];
    listeners.push(message => { if (message.sessionId === sessionId) events.push(message); });
    for (const domain of ['Page', 'Runtime', 'Network', 'Log', 'DOM']) await call(`${domain}.enable`);
    const run = async expression => {
      const {result, exceptionDetails} = await call('Runtime.evaluate', {expression, awaitPromise: true, returnByValue: true});
      if (exceptionDetails) throw Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
      return result.value;
    };
    const wait = async (expression, seconds = 600) => {
      const end = Date.now() + 1000 * seconds;
      for (;;) {
        const value = await run(expression).catch(() => undefined);
        if (value) return value;
        if (Date.now() > end) throw Error(`not within ${seconds} s: ${expression}`);
        await new Promise(done => setTimeout(done, 20));
      }
    };
    // When this became true, by the clock of the page, which does not request more before it is noticed.
    const when = expression => wait(`(async () => {
      for (let i = 0; i < 20000; i++, await new Promise(done => setTimeout(done, 5))) if (${expression}) return Date.now();
    })()`);
    // The requests to a server, and the bytes of their answers, since the page was opened or `begin`, up to a time.
    const traffic = (url, begin = 0, until = Infinity) => {
      const sent = new Set(), of = name => events.slice(begin).filter(({method}) => method === `Network.${name}`).map(({params}) => params);
      for (const {requestId, request, wallTime} of of('requestWillBeSent'))
        if (request.url.startsWith(url) && 1000 * wallTime <= until) sent.add(requestId);
      const bytes = of('dataReceived').reduce((sum, part) => sum + (sent.has(part.requestId) ? part.encodedDataLength : 0), 0);
      return {requests: sent.size, bytes};
    };
    const drop = async files => {
      for (const type of ['dragEnter', 'dragOver', 'drop'])
        await call('Input.dispatchDragEvent', {type, x: 200, y: 300, data: {items: [], files, dragOperationsMask: 1}});
    };
    const pick = async (selector, files) => {
      const {root} = await call('DOM.getDocument'), {nodeId} = await call('DOM.querySelector', {nodeId: root.nodeId, selector});
      await call('DOM.setFileInputFiles', {nodeId, files});
    };
    // Open a page, and evaluate an expression where a line of its script has access to, before that line runs.
    const within = async (url, lineNumber, expression) => {
      await call('Debugger.enable');
      await call('Debugger.setBreakpointByUrl', {url, lineNumber});
      events.length = 0;
      await call('Page.navigate', {url});
      for (let paused; !paused; await new Promise(done => setTimeout(done, 20))) {
        paused = events.find(({method}) => method === 'Debugger.paused');
        if (paused) await call('Debugger.evaluateOnCallFrame', {callFrameId: paused.params.callFrames[0].callFrameId, expression});
      }
      await call('Debugger.disable');
    };
    return {call, run, wait, when, events, traffic, drop, pick, within,
      open: async url => {
        events.length = 0;
        await call('Page.navigate', {url: 'about:blank'});
        await call('Page.navigate', {url});
      },
      size: (width, height) => call('Emulation.setDeviceMetricsOverride', {width, height, deviceScaleFactor: 1, mobile: width < 600}),
      dark: dark => call('Emulation.setEmulatedMedia', {features: [{name: 'prefers-color-scheme', value: dark ? 'dark' : 'light'}]}),
      shot: async name => fs.writeFileSync(name, Buffer.from((await call('Page.captureScreenshot', {format: 'png'})).data, 'base64')),
      close: () => send('Target.closeTarget', {targetId})};
  };
  const close = () => new Promise(done => {
    chromium.on('exit', () => { fs.rmSync(profile, {recursive: true, force: true, maxRetries: 20}); done(); });
    send('Browser.close').catch(() => {});
  });
  return {page, close};
}

// Serve a directory by nginx, whose answers wait `trip` ms; NULL: it is not installed.
export async function serve_nginx(root, trip, tries = 8) {
  const modules = '/usr/lib/nginx/modules', free = net.createServer();
  if (!fs.existsSync(`${modules}/ngx_http_lua_module.so`)) return null;
  await new Promise(done => free.listen(0, '127.0.0.1', done));
  const {port} = free.address(), dir = fs.mkdtempSync(path.join(os.tmpdir(), 'bags-nginx-'));
  await new Promise(done => free.close(done));
  const answers = () => new Promise(done => net.connect(port, '127.0.0.1').once('connect', function () { this.destroy(); done(true); }).once('error', () => done(false)));
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(name => `${name}_temp_path ${dir}/${name};`).join(' ');
  fs.writeFileSync(`${dir}/conf`, `load_module ${modules}/ndk_http_module.so; load_module ${modules}/ngx_http_lua_module.so;
    daemon off; pid ${dir}/pid; error_log ${dir}/error.log; ${process.getuid() ? '' : 'user root;'} events { worker_connections 2048; }
    http { access_log off; ${temporary} sendfile on; tcp_nopush on; autoindex on; server { listen 127.0.0.1:${port};
      access_by_lua_block { ngx.sleep(${trip / 1000}) } add_header Access-Control-Allow-Origin *; location /d/ { alias ${root}/; } } }`);
  const job = spawn('nginx', ['-e', `${dir}/error.log`, '-c', `${dir}/conf`], {stdio: 'ignore'});
  while (job.exitCode === null && !await answers()) await new Promise(done => setTimeout(done, 20));
  if (job.exitCode !== null && tries > 1) return serve_nginx(root, trip, tries - 1); // another program has the port
  return {url: `http://127.0.0.1:${port}`, close: () => { job.kill(); fs.rmSync(dir, {recursive: true, force: true}); }};
}

// Serve `roots`, {name: directory}. Options: delay (ms), cors, ranges, missing_cors.
export async function serve(roots, {delay = 0, cors = true, ranges = true, missing_cors = false} = {}) {
  const server = http.createServer(async (request, answer) => {
    const [, name, ...rest] = decodeURIComponent(new URL(request.url, 'http://x').pathname).split('/');
    const where = roots[name] === undefined || rest.includes('..') ? null : path.join(roots[name], ...rest);
    const headers = {};
    await new Promise(done => setTimeout(done, delay));
    const info = where && fs.existsSync(where) ? fs.statSync(where) : null;
    if (cors && (info?.isFile() || missing_cors)) headers['Access-Control-Allow-Origin'] = '*';
    if (!info?.isFile()) return answer.writeHead(404, headers).end();
    headers['Last-Modified'] = info.mtime.toUTCString();
    if (/\.(html|mjs)$/.test(where)) headers['Content-Type'] = where.endsWith('.html') ? 'text/html' : 'text/javascript';
    let start = 0, stop = info.size, status = 200;
    const range = ranges && /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? '');
    if (range) {
      start = Number(range[1]);
      stop = Math.min(Number(range[2]) + 1, info.size);
      status = 206;
      if (start >= stop) return answer.writeHead(416, headers).end();
      headers['Content-Range'] = `bytes ${start}-${stop - 1}/${info.size}`;
    }
    headers['Content-Length'] = stop - start;
    answer.writeHead(status, headers);
    if (request.method === 'HEAD' || start === stop) return answer.end();
    fs.createReadStream(where, {start, end: stop - 1}).pipe(answer);
  });
  await new Promise(done => server.listen(0, '127.0.0.1', done));
  return {url: `http://127.0.0.1:${server.address().port}`, close: () => { server.closeAllConnections?.(); server.close(); }};
}
