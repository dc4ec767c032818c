"""A real redis-server on a free port of the loopback, for the tests."""

import atexit
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

LIMIT_S = 20


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(look, limit_s=LIMIT_S, what="it"):
    """What `look` says as soon as that is true; AssertionError after the limit."""
    end = time.monotonic() + limit_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, "%s did not happen within %g s" % (what, limit_s)
        select.select([], [], [], 0.02)


class Server:
    """One server. options: words for its command line."""

    def __init__(self, *options, port=None):
        self.port, self.options = port or free_port(), options
        self.folder = tempfile.mkdtemp(prefix="edgeq-redis-")
        self.child = None
        self.start()

    @property
    def url(self):
        return "redis://127.0.0.1:%d/0" % self.port

    def start(self):
        program = shutil.which("redis-server")
        assert program, "no redis-server: tools/setup-test.sh installs it"
        self.child = subprocess.Popen(
            [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder, "--appendonly", "yes",
             "--appendfsync", "everysec", "--save", "", *self.options],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers, what="redis-server")

    def _answers(self):
        assert self.child.poll() is None, "redis-server ended: %s" % self.child.returncode
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as s:
                s.sendall(b"PING\r\n")
                return s.recv(100)[:5] in (b"+PONG", b"-NOAU")
        except OSError:
            return False

    def signal(self, number):
        self.child.send_signal(number)

    def stop(self):
        self.child.send_signal(signal.SIGCONT)
        self.child.kill()
        self.child.wait()

    def close(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


_shared = None


def shared():
    """The server of this test process, started when first asked for."""
    global _shared
    if _shared is None:
        _shared = Server()
        atexit.register(_shared.close)
    return _shared
