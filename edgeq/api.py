"""edgeq from Python, for servers: `from edgeq import open_store, Worker`. docs/python.md has a runnable example.

    queue = open_store("redis://127.0.0.1:6379/0?queue=app_jobs")
    queue.put("send_welcome_email", {"email": "user@example.com"})
    Worker(queue, {"send_welcome_email": send_welcome_email}).run()

A handler is a function at the top of a module; it gets the payload as a Python value. Each call runs in a process of its own, so a
timeout or a crash cannot hurt the worker. It returns: done. It raises: another try, with the traceback's end as the reason.
`raise SystemExit(65)`, and every other code of docs/handlers.md: as a shell handler's exit code.

Settings are the keys of /etc/edgeq.conf in lower case: open_store(url, concurrency=4, lease_s=30).
"""

import json
import os
import sys

from edgeq import config as configuration
from edgeq import enqueue as front
from edgeq import store as stores
from edgeq import worker as walk
from edgeq.clock import open_clock
from edgeq.errors import BadConfig
from edgeq.job import check_word
from edgeq.log import Log

HANDLER = """#!%s
import sys
sys.path[:0] = %r
from edgeq.api import call
call(%r, %r, %r)
"""


class Queue:
    """A queue that is open. store: the Store below it, with every verb of edgeq/store/base.py."""

    def __init__(self, config, clock, log):
        self.config, self.clock, self.log = config, clock, log
        self.store = stores.open_store(config, clock, log)
        self.store.make_folders()

    def put(self, type, payload=None, **wishes):
        """Queue a job; its id. payload: anything JSON can say. wishes: id, priority, max_attempts, timeout_s, expires_s, key,
        delay_s, at, latest. It is accepted when this returns; the same id again is the same job.
        """
        data = json.dumps({} if payload is None else payload).encode()
        job = front.make_job(self.config, type, data, **wishes)
        return self.store.enqueue(job, self.clock.read()).id

    def find(self, id):
        """The state of a job as a word: incoming, processing, failed, dlq, done; None when nobody knows it."""
        return self.store.find(id)[0]

    def counts(self):
        """How many jobs are in which state: ready, delayed, failed, processing, done, dead."""
        return self.store.counts(self.clock.read())


def open_store(url, folder=None, **settings):
    """The Queue at `url`. folder: where this host keeps its own marks; not shared between hosts."""
    if folder is None:
        folder = "/var/lib/edgeq" if os.geteuid() == 0 else os.path.expanduser("~/.local/state/edgeq")
    config = configuration.Config(folder + "/edgeq.conf")
    given = {"STORE": url, "SPOOL": folder, "RUN_DIR": folder + "/run", "BALLAST_KB": "0"}
    given.update((key.upper(), str(value)) for key, value in settings.items())
    for key, value in given.items():
        if key not in configuration.KEYS:
            raise BadConfig("open_store", key.lower(), "no such setting", "see docs/configuration.md")
        setattr(config, key.lower(), configuration.KEYS[key][1](value))
    clock = open_clock(os.environb)
    return Queue(config, clock, Log(clock, config.log, "info"))


class Worker:
    """A worker of `queue`. handlers: {type: function}."""

    def __init__(self, queue, handlers, once=False):
        self.queue, self.once = queue, once
        queue.config.handlers = "%s/handlers.%d" % (queue.config.run_path, os.getpid())
        os.makedirs(queue.config.handlers, exist_ok=True)
        for type, function in handlers.items():
            self._install(check_word(type, "type"), function)

    def _install(self, type, function):
        """An executable that calls `function`: found again by its module and name, as multiprocessing does it."""
        if "<" in function.__qualname__:
            raise BadConfig("Worker", type, "a function inside a function cannot be found again", "put it at the top of a module")
        module, file = function.__module__, ""
        if module == "__main__":
            file = os.path.abspath(sys.modules["__main__"].__file__)
        path = "%s/%s" % (self.queue.config.handlers, type)
        with open(path + "~", "w") as f:
            os.fchmod(f.fileno(), 0o755)
            f.write(HANDLER % (sys.executable, [os.path.abspath(part) for part in sys.path], module, function.__qualname__, file))
        os.rename(path + "~", path)

    def run(self):
        """Work until SIGTERM (with `once`: until nothing is ready); the exit code of `edgeq work`."""
        queue = self.queue
        queue.store.start(queue.clock.read())
        return walk.Worker(queue.store, queue.config, queue.clock, queue.log, self.once).run()


def call(module, name, file):
    """In the handler's process: the payload from stdin to the function."""
    text = sys.stdin.read()
    try:
        payload = json.loads(text)
    except ValueError:
        payload = text  # a JSON string arrives as its text
    if file:
        import runpy
        found = runpy.run_path(file, run_name="__edgeq_main__")
    else:
        found = vars(__import__(module, None, None, [name]))
    head, *rest = name.split(".")
    function = found[head]
    for part in rest:
        function = getattr(function, part)
    function(payload)
