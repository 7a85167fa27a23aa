"""bags.view: a dataset in a browser."""
import atexit
import os
import threading
import weakref
import webbrowser

from . import _core
from .options import flags
from .program import HERE
from .storage import shown

_open = weakref.WeakSet()


class View:
    """A dataset that is being served: see view. A context manager."""

    def __init__(self, server, url):
        self.url, self._server, self._ended = url, server, threading.Event()
        _open.add(self)

    def close(self):
        """Stop serving it."""
        _core.serve_close(self._server)
        self._ended.set()

    def wait(self):
        """Wait until the server ends, or until Ctrl-C, and close."""
        try:
            self._ended.wait()
        finally:
            self.close()

    @property
    def closed(self):
        return self._ended.is_set()

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


def _page():
    """The page that shows a dataset: at BAGS_VIEWER, or of this package."""
    path = os.environ.get('BAGS_VIEWER') or os.path.join(HERE, 'viewer.html')
    try:
        with open(path, 'rb') as file:
            return file.read()
    except FileNotFoundError:
        raise RuntimeError(f'{path}: not found; build it with `make viewer`, or set BAGS_VIEWER to '
                           'its path') from None
    except OSError as error:
        raise RuntimeError(str(error)) from None


def view(path, *, port=0, browser=True, live=False):
    """Serve a dataset, a zip or tar file or a Bag, and the page that shows it, to the browser of
    this computer. Returns a View whose url is the address. It is served until its close(), or
    until it is garbage-collected; wait() serves it until Ctrl-C.

    port: of the server; 0: any. browser: also open the address in a browser. live: show a
    dataset that is being written. The server is a thread of this process that needs no GIL.
    Errors: RuntimeError, with the reason.
    """
    browser, live = flags(browser=browser, live=live)
    port, path = int(port), os.fspath(path)
    if not 0 <= port <= 65535:
        raise RuntimeError(f'view: port {port} out of range (maximum 65535)')
    _core.serve_check()
    name = os.fsencode(shown(path))
    if live and '://' not in os.fsdecode(path):  # it is opened again when it changes
        path = os.path.join(os.getcwd(), os.fsdecode(path))
    served = View(*_core.serve(os.fsencode(path), name, _page(), port, live))
    if browser and (os.environ.get('DISPLAY') or os.environ.get('WAYLAND_DISPLAY')):
        webbrowser.open(served.url)
    return served
