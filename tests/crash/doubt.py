"""A disk that refuses a job's bytes once: what the repeat with the same id is worth.

The kernel tells of a page that it could not write once; then it calls the page clean. A second flush of that file succeeds and
writes nothing, and on ext4 the same bytes written over themselves go into a block that the disk still calls unwritten. A
repeat that trusts either says "already queued" of a job that is on no disk. Here the FUSE server below the file system answers
EIO to the writes that hold a certain payload. The enqueue must fail (74), its repeat must succeed, and in the image as of that
moment, with everything lost that was not flushed, the job must be there, whole.

The bench proves itself: where R/doubt is emptied between the two, as if no flush had ever failed, the job must be missing.
"""

import errno
import json
import os
import re

from tests.crash import device
from tests.crash.images import Builder, Cut, Log
from tests.crash.workload import Shipped

PAYLOAD = '{"refused":1}'
REFUSED = b'"payload":' + PAYLOAD.encode()
WHOLE = rb'\{"id":"%s".*' + re.escape(REFUSED) + rb'\}\n'
ARM, DISARM = b'{"k":"arm"}', b'{"k":"disarm"}'


class Refusing(device.Server):
    """Refuses writes of job bytes while armed."""

    is_armed = False

    def _answer(self, operation, node, body):
        if operation == device.WRITE and node == device.MARK and body[40:] in (ARM, DISARM):
            self.is_armed = body[40:] == ARM
        if operation == device.WRITE and node == device.DISK and self.is_armed and REFUSED in bytes(body[40:]):
            return errno.EIO
        return super()._answer(operation, node, body)


def words(id, by_key):
    return ["enqueue", "ok", PAYLOAD] + (["--key", id] if by_key else ["--id", id])


def lines(id):
    return ('{"id":"%s","type":"ok","payload":%s}\n' % (id, PAYLOAD)).encode()


# id -> (who fails, who repeats): True the wrapper, False Python; whether the key names the job
CASES = {"shell-shell": (True, True, False), "python-python": (False, False, False), "shell-python": (True, False, False),
         "python-shell": (False, True, False), "key-shell": (True, True, True), "key-python": (False, False, True)}


def refuse(mount, mark, run, rng, etc):
    """The recorded writer: each case once, and the canary."""
    board = Shipped(mount, mark, run, rng, etc)
    doubt = run + "/default/doubt"
    board.edgeq("work", "--once", shell=False)

    def repeat(id, fails, repeats, by_key, forget=False):
        os.truncate(doubt, 0)  # as after a boot: each of the writers must find out by itself
        os.write(board.notes.fd, ARM)
        board.edgeq(*words(id, by_key), ok=(74,), shell=fails)
        os.write(board.notes.fd, DISARM)
        assert os.path.getsize(doubt), "%s: the flush failed, and nobody noted it" % id
        if forget:
            os.truncate(doubt, 0)
        told = board.edgeq(*words(id, by_key), shell=repeats)
        board.notes.say("sure", case=id, id=told[0])

    for id, case in CASES.items():
        repeat(id, *case)
    os.truncate(doubt, 0)
    os.write(board.notes.fd, ARM)
    board.edgeq("enqueue", "--batch", shell=False, stdin=lines("batch"), ok=(74,))
    os.write(board.notes.fd, DISARM)
    # syncfs told of the error, the file itself has not yet: the first repeat may fail on that
    for _ in range(3):
        if board.edgeq("enqueue", "--batch", shell=False, stdin=lines("batch"), ok=(0, 74)):
            break
    else:
        raise AssertionError("the batch cannot be repeated")
    board.notes.say("sure", case="batch", id="batch")
    for id, by_shell in (("canary-shell", True), ("canary-python", False)):
        repeat(id, by_shell, by_shell, False, forget=True)
    board.notes.close()


def examine(run, fs, base):
    """([what is missing], how many repeats, how many canaries were caught)."""
    log = Log(run.record(fs, refuse, base, "refused", Refusing))
    missing, repeats_n, caught_n = [], 0, 0
    builder = Builder(log, base, run.root + "/refused")
    for at in log.notes:
        note = json.loads(log.entries[at][2])
        if note["k"] != "sure":
            continue
        builder.build(Cut(log, log.last_flush(at), at + 1, (), "lost"))
        is_whole = find_job(run, fs, note["id"])
        if note["case"].startswith("canary"):
            caught_n += not is_whole
            continue
        repeats_n += 1
        if not is_whole:
            missing.append("%s, %s: repeated, told yes, and lost" % (fs.name, note["case"]))
    assert repeats_n == len(CASES) + 1
    return missing, repeats_n, caught_n


def find_job(run, fs, id):
    """True when the image holds the job, whole."""
    mount, result = run.root + "/refused.d", run.root + "/refused.found"
    os.makedirs(mount, exist_ok=True)

    def look():
        device.own_mounts()
        loop = device.Loop(run.root + "/refused", run.root + "/dev")
        try:
            device.mount(loop.path, mount, fs.kind, 0, fs.check_options)
            incoming = mount + "/spool/default/incoming/"
            texts = [open(incoming + name, "rb").read() for name in os.listdir(incoming) if name.endswith(".%s.json" % id)]
            device.umount(mount)
        finally:
            loop.detach()
        with open(result, "w") as file:
            file.write("%d" % any(re.fullmatch(WHOLE % id.encode(), text) for text in texts))
    if device.await_child(device.spawn(look), 60) != 0:
        raise RuntimeError("%s: the image could not be looked at" % fs.name)
    with open(result) as file:
        return file.read() == "1"
