"""A web server and object store for tests, which misbehaves on demand: ranges, ETags,
an index page, S3's API with signatures that are checked, and faults."""
import hashlib
import hmac
import html
import http.server
import os
import pathlib
import re
import socket
import threading
import time
import urllib.parse

KEY, SECRET, REGION = 'AKIDEXAMPLE', 'a/secret+key', 'eu-test-1'


_kept = {}


def _read(path):
    """A file and its MD5, which are kept while it does not change."""
    with path.open('rb') as file:  # another one may have its name at any time
        about = os.fstat(file.fileno())
        identity = path, about.st_ino, about.st_mtime_ns, about.st_size
        found = _kept.get(identity)
        if not found:
            data = file.read()
            found = data, hashlib.md5(data).hexdigest()
            if len(_kept) >= 16:
                _kept.clear()
            _kept[identity] = found
        return found


def signature_fault(handler, keys, service, payload):
    """The code for what is wrong with a request's SigV4, as AWS documents it, or None.

    keys: (secret, token, end) by key. payload: the hash of the body, as it is signed.
    """
    given = re.fullmatch(
        r'AWS4-HMAC-SHA256 Credential=([^/]+)/(\d+)/([^/]+)/(\w+)/aws4_request, '
        r'SignedHeaders=([^,]+), Signature=([0-9a-f]{64})',
        handler.headers.get('Authorization', ''))
    if not given or given[4] != service:
        return 'AccessDenied'
    key, day, region, _, names, signature = given.groups()
    if key not in keys:
        return 'InvalidAccessKeyId'
    secret, token, end = keys[key]
    if handler.headers.get('x-amz-security-token') != token:
        return 'InvalidToken'
    if end and time.time() > end:
        return 'ExpiredToken'
    path, _, query = handler.path.partition('?')
    headers = ''.join(f'{name}:{handler.headers.get(name, "").strip()}\n'
                      for name in names.split(';'))
    query = '&'.join(sorted(
        part if '=' in part else part + '=' for part in query.split('&') if part))
    request = '\n'.join([handler.command, path, query, headers, names, payload])
    scope = f'{day}/{region}/{service}/aws4_request'
    text = '\n'.join(['AWS4-HMAC-SHA256', handler.headers['x-amz-date'], scope,
                      hashlib.sha256(request.encode()).hexdigest()])
    if not {'host', 'x-amz-date'} <= set(names.split(';')) <= {
            name.lower() for name in handler.headers}:
        return 'SignatureDoesNotMatch'
    secret = ('AWS4' + secret).encode()
    for part in (day, region, service, 'aws4_request', text):
        secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
    if region != REGION or secret.hex() != signature:
        return 'SignatureDoesNotMatch'
    return None


class Server(http.server.ThreadingHTTPServer):
    """Serves a directory, /NAME/... as root/NAME/...

    index: serve index pages. s3: an object store; directories at the top are buckets.
    fault(handler, number): called for every request, `number` from 0; True: it has
    answered.
    """
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, root, index=False, s3=False, fault=None, token=None, port=0,
                 starts=True):
        super().__init__(('127.0.0.1', port), Handler, bind_and_activate=False)
        # One that starts later, with `with`, has its port already, and shares it with one
        # that ends before.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.server_bind()
        self.root = pathlib.Path(root).resolve()
        self.index, self.s3, self.fault, self.token = index, s3, fault, token
        self.lock = threading.Lock()
        self.log = []  # (method, path, range) of every request
        self.answers = []  # (path, status, bytes) of every answer
        self.sent = 0
        self.clients = {}  # addresses, by open connection
        self.uploads = {}
        self.issued = {}  # temporary credentials: (secret, token, end) by key
        self.etags = {}
        self.url = f'http://127.0.0.1:{self.server_address[1]}'
        self.started = False
        if starts:
            self.start()

    def start(self):
        self.started = True
        self.server_activate()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self):
        if not self.started:
            self.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def process_request(self, request, client_address):
        self.clients[request] = client_address
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        super().shutdown_request(request)
        self.clients.pop(request, None)

    def handle_error(self, *_):
        pass  # the client went away

    @property
    def environment(self):
        return {'AWS_ENDPOINT_URL_S3': self.url, 'AWS_ACCESS_KEY_ID': KEY,
                'AWS_SECRET_ACCESS_KEY': SECRET, 'AWS_REGION': REGION,
                'AWS_SESSION_TOKEN': self.token or ''}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def answer(self, status, body=b'', length=None, **headers):
        self.server.answers.append((self.path, status, len(body)))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace('_', '-'), value)
        self.send_header('Content-Length', len(body) if length is None else length)
        self.end_headers()
        if self.command != 'HEAD':
            with self.server.lock:
                self.server.sent += len(body)
            self.wfile.write(body)
        return True

    def refuse(self, status, code):
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code></Error>'
        return self.answer(status, body.encode(), Content_Type='application/xml')

    root = None  # of a fault that replaces the server's, which all threads share

    @property
    def local(self):
        path = urllib.parse.unquote(self.path.split('?')[0])
        if '://' in path:  # of another host: this server is its proxy
            path = path.split('://')[1].partition('/')[2]
        return (self.root or self.server.root) / path.lstrip('/')

    @property
    def query(self):
        return dict(urllib.parse.parse_qsl(self.path.partition('?')[2],
                                           keep_blank_values=True))

    def begin(self):
        """Count a request, check its signature; True: it is answered."""
        server = self.server
        size = int(self.headers.get('Content-Length') or 0)
        self.body = self.rfile.read(size)
        with server.lock:
            number = len(server.log)
            server.log.append((self.command, self.path, self.headers.get('Range')))
        if server.fault and server.fault(self, number):
            return True
        if '://' in self.path:  # Azure or Google Cloud
            return self.headers.get('Authorization') is not None and self.answer(400)
        return bool(server.s3 and not self.signed())

    def signed(self):
        keys = {KEY: (SECRET, self.server.token, None), **self.server.issued}
        wrong = signature_fault(self, keys, 's3', self.headers['x-amz-content-sha256'])
        if wrong:
            return self.refuse(400 if wrong == 'ExpiredToken' else 403, wrong) and False
        return True

    def list_blobs(self):
        """A page of Azure's List Blobs."""
        query = self.query
        if query.get('comp') != 'list' or query.get('restype') != 'container':
            return self.refuse(400, 'InvalidQueryParameterValue')
        names = self.names(query.get('prefix', ''), query.get('delimiter'))
        start = int(query.get('marker', '0=').split('=')[0])
        page, more = names[start:start + 100], len(names) > start + 100
        body = ('\ufeff<?xml version="1.0" encoding="utf-8"?><EnumerationResults '
                'ContainerName="x"><Prefix>' + html.escape(query.get('prefix', '')) +
                '</Prefix><Blobs>')
        for name, is_prefix in page:
            kind = 'BlobPrefix' if is_prefix else 'Blob'
            body += f'<{kind}><Name>{html.escape(name)}</Name></{kind}>'
        body += '</Blobs>' + (
            f'<NextMarker>{start + 100}=/+</NextMarker>' if more else '<NextMarker />')
        return self.answer(200, (body + '</EnumerationResults>').encode(),
                           Content_Type='application/xml')

    def names(self, prefix, slash):
        """The keys of a bucket and the prefixes, (name, is_prefix), in order."""
        keys, prefixes = [], set()
        for file in sorted(self.local.rglob('*')):
            name = file.relative_to(self.local).as_posix()
            if not file.is_file() or not name.startswith(prefix):
                continue
            rest = name[len(prefix):]
            if slash and slash in rest:
                prefixes.add(prefix + rest.split(slash)[0] + slash)
            else:
                keys.append(name)
        return sorted([(name, True) for name in prefixes] +
                      [(name, False) for name in keys])

    def list_bucket(self):
        query, bucket = self.query, self.local
        if not bucket.is_dir():
            return self.refuse(404, 'NoSuchBucket')
        if 'blob.core' in self.path:
            return self.list_blobs()
        names = self.names(query.get('prefix', ''), query.get('delimiter'))
        start = int(query.get('continuation-token', '0=').split('=')[0])
        page, more = names[start:start + 100], len(names) > start + 100
        body = '<?xml version="1.0"?><ListBucketResult>'
        if more:
            body += f'<NextContinuationToken>{start + 100}=/+</NextContinuationToken>'
        for name, is_prefix in page:
            name = html.escape(name)
            body += (f'<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>'
                     if is_prefix else f'<Contents><Key>{name}</Key></Contents>')
        return self.answer(200, (body + '</ListBucketResult>').encode(),
                           Content_Type='application/xml')

    def list_directory(self):
        names = sorted(file.name + '/' * file.is_dir() for file in self.local.iterdir())
        body = '<html><a href="../">../</a>' + ''.join(
            f'<a href="{urllib.parse.quote(name)}">{html.escape(name)}</a>\n'
            for name in names)
        return self.answer(200, body.encode(), Content_Type='text/html')

    def etag(self, data):
        return self.server.etags.get(
            self.local, '"' + hashlib.md5(data).hexdigest() + '"')

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        if self.begin():
            return None
        if self.server.s3 and self.local.parent == (self.root or self.server.root):
            return self.list_bucket()
        if self.local.is_dir():
            if not self.path.split('?')[0].endswith('/'):
                return self.answer(301, Location=self.path + '/')
            if self.server.index:
                return self.list_directory()
            return self.answer(403)
        try:
            data, md5 = _read(self.local)
        except (FileNotFoundError, NotADirectoryError):
            return (self.refuse(404, 'NoSuchKey') if self.server.s3
                    else self.answer(404))
        return self.send_range(data, self.server.etags.get(self.local, f'"{md5}"'))

    def send_range(self, data, etag, **headers):
        if self.headers.get('If-Match', etag) != etag:
            return self.answer(412)
        if etag:
            headers['ETag'] = etag
        if etag and self.headers.get('If-None-Match') == etag:
            return self.answer(304, **headers)
        wanted = re.fullmatch(r'bytes=(\d*)-(\d*)', self.headers.get('Range', ''))
        if not wanted:
            return self.answer(200, data, **headers)
        first, last = wanted.groups()
        start = int(first) if first else max(0, len(data) - int(last))
        stop = min(len(data), int(last) + 1 if first and last else len(data))
        if start >= len(data):
            return self.answer(416, Content_Range=f'bytes */{len(data)}')
        return self.answer(206, data[start:stop], **headers,
                           Content_Range=f'bytes {start}-{stop - 1}/{len(data)}')

    def store(self, data):
        self.local.parent.mkdir(parents=True, exist_ok=True)
        self.local.write_bytes(data)
        self.server.etags.pop(self.local, None)

    def do_PUT(self):
        if self.begin():
            return None
        query = self.query
        if 'uploadId' in query:
            parts = self.server.uploads.get(query['uploadId'])
            if parts is None:
                return self.refuse(404, 'NoSuchUpload')
            parts[int(query['partNumber'])] = self.body
            return self.answer(200, ETag=self.etag_of(self.body))
        self.store(self.body)
        return self.answer(200, ETag=self.etag_of(self.body))

    @staticmethod
    def etag_of(data):
        return '"' + hashlib.md5(data).hexdigest() + '"'

    def do_POST(self):
        if self.begin():
            return None
        query = self.query
        if 'uploads' in query:
            name = f'upload-{len(self.server.uploads)}'
            self.server.uploads[name] = {}
            return self.answer(200, (
                '<InitiateMultipartUploadResult><UploadId>' + name +
                '</UploadId></InitiateMultipartUploadResult>').encode())
        parts = self.server.uploads.get(query.get('uploadId'))
        if parts is None:
            return self.refuse(404, 'NoSuchUpload')
        wanted = re.findall(r'<PartNumber>(\d+)</PartNumber>\s*<ETag>([^<]+)</ETag>',
                            self.body.decode())
        listed = [(int(n), html.unescape(etag)) for n, etag in wanted]
        if listed != sorted((n, self.etag_of(d)) for n, d in parts.items()):
            return self.refuse(400, 'InvalidPart')
        if any(len(d) < 5 << 20 for n, d in parts.items() if n != max(parts)):
            return self.refuse(400, 'EntityTooSmall')
        self.store(b''.join(parts[n] for n in sorted(parts)))
        self.server.etags[self.local] = '"' + hashlib.md5(b''.join(
            hashlib.md5(parts[n]).digest() for n in sorted(parts))).hexdigest() + \
            f'-{len(parts)}"'
        del self.server.uploads[query['uploadId']]
        return self.answer(200, (
            '<CompleteMultipartUploadResult><ETag>' + self.server.etags[self.local] +
            '</ETag></CompleteMultipartUploadResult>').encode())

    def do_DELETE(self):
        if self.begin():
            return None
        self.server.uploads.pop(self.query.get('uploadId'), None)
        return self.answer(204)
