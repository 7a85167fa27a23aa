"""bags.view: a dataset in a browser."""
import atexit
import os
import subprocess
import tempfile
import weakref

from .options import flags
from .program import HERE, command

_open = weakref.WeakSet()


class View:
    """A dataset that is being served: see view. A context manager."""

    def __init__(self, server, url):
        self.url, self._server = url, server
        _open.add(self)

    def close(self):
        """Stop serving it."""
        self._server.terminate()
        self._server.wait()

    def wait(self):
        """Wait until the server ends, or until Ctrl-C, and close."""
        try:
            self._server.wait()
        finally:
            self.close()

    @property
    def closed(self):
        return self._server.poll() is not None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __del__(self):
        if not self.closed:
            self.close()

    def __repr__(self):
        return f'<bags.View of {self.url}{", closed" if self.closed else ""}>'


@atexit.register
def _close_all():
    for view in list(_open):
        view.close()


def view(path, *, port=0, browser=True, live=False):
    """Serve a dataset, a zip or tar file or a Bag, and the page that shows it, to the browser of
    this computer. Returns a View whose url is the address. It is served until its close(), or
    until it is garbage-collected; wait() serves it until Ctrl-C.

    port: of the server; 0: any. browser: also open the address in a browser. live: show a
    dataset that is being written. The server is the package's command, in a process of its own.
    Errors: RuntimeError, with the reason.
    """
    browser, live = flags(browser=browser, live=live)
    program = command()
    if not program:
        raise RuntimeError('view: this build of the package has no command bags; install '
                           'libjson-c-dev and libmicrohttpd-dev and build it again')
    options = [f'--port={int(port)}'] if port else []
    options += ['--live'] * live + ['--no-browser'] * (not browser)
    page = os.path.join(HERE, 'viewer.html')
    known = {'BAGS_VIEWER': page} if os.path.exists(page) and 'BAGS_VIEWER' not in os.environ else {}
    with tempfile.TemporaryFile() as said:
        server = subprocess.Popen([program, 'view', *options, '--', os.fspath(path)],
                                  env={**os.environ, **known}, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=said)
        try:
            with server.stdout:
                url = os.fsdecode(server.stdout.readline().strip())
        except BaseException:
            server.kill()
            server.wait()
            raise
        if url:
            return View(server, url)
        server.wait()
        said.seek(0)
        raise RuntimeError(said.read().decode(errors='replace').strip().removeprefix('bags: '))
