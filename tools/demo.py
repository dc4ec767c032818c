"""`make demo`: edgeq at work, in a temporary folder, without root, in half a minute.

A worker, the shell wrapper under BusyBox ash, three handlers that do real work, a
receiver of webhooks that misbehaves, a kill -9 in the middle, a file dropped by hand
and a corrupt one. At the end it is proved, from the files alone, that every accepted
job is accounted for and that every webhook arrived. Exit 0: the proof holds.

    python3 tools/demo.py [--keep]

--keep leaves the folder, to look around in. A demo that fails leaves it too.
"""

import argparse
import binascii
import collections
import glob
import gzip
import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WEBHOOKS, LOGS, AREAS = 30, 15, 15
REFUSED, HANGS = 7, 11              # webhook 7 is answered 400, webhook 11 not at all at first
KILLED = 9                          # the worker is killed while the receiver holds webhook 9
LIMIT_S = 45

SWEEP = """#!/bin/sh
# sweep AREA: remove the temporary files of one area of the cache.
cd "{root}/cache/$1" || exit 65
n=0
for f in *.tmp; do
    [ -e "$f" ] || continue
    rm -f "$f" || exit 75
    n=$((n + 1))
done
echo "removed $n files of $1"
"""


class Failed(Exception):
    """What ends the demo early."""


class Receiver(http.server.BaseHTTPRequestHandler):
    """Somebody's server: now and then 500, once 400, once no answer."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number, key, server = body["n"], self.headers["Idempotency-Key"], self.server
        with server.lock:
            server.tries[number] += 1
            first = server.tries[number] == 1
        if number == HANGS and first:
            server.answers["nothing"] += 1
            server.closing.wait(LIMIT_S)
            return
        if number == KILLED and first:
            server.holding.set()
            server.killed.wait(LIMIT_S)
        if number == REFUSED:
            self.answer(400)
        elif number % 6 == 2 and first:
            self.answer(500)
        else:
            with server.lock:
                server.arrived.append((key, number))
            self.answer(200)

    def answer(self, status):
        with self.server.lock:
            self.server.answers[status] += 1
        try:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
        except OSError:
            pass                    # the handler was ended meanwhile

    def log_message(self, *arguments):
        pass


def start_receiver():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.daemon_threads = True
    server.lock = threading.Lock()
    server.tries, server.answers, server.arrived = collections.Counter(), collections.Counter(), []
    server.holding, server.killed, server.closing = threading.Event(), threading.Event(), threading.Event()
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    server.url = "http://127.0.0.1:%d/hook" % server.server_port
    return server


class Device:
    """A root folder laid out as a device's, and what a shell on it can do."""

    def __init__(self, root):
        self.root, self.worker = root, None
        self.busybox = shutil.which("busybox")
        if not self.busybox:
            raise Failed("there is no busybox here: apt-get install busybox-static, or \"make setup\" as root")
        self.spool = os.path.join(root, "var/lib/edgeq/default")
        shutil.copytree(os.path.join(REPO, "overlay"), root, dirs_exist_ok=True)
        shutil.copy(os.path.join(REPO, "dist/edgeq.pyz"), self.path("usr/lib/edgeq/edgeq.pyz"))
        self.write("etc/edgeq.conf", """\
            SPOOL={0}/var/lib/edgeq
            RUN_DIR={0}/run/edgeq
            HANDLERS={0}/etc/edgeq/handlers
            LOG=stderr
            CONCURRENCY=3
            MAX_ATTEMPTS=3
            BASE_DELAY_S=1
            MAX_DELAY_S=4
            LEASE_S=5
            GRACE_S=2
            SAFETY_SCAN_S=2
            """.format(root))
        self.write("etc/edgeq.conf.d/send_webhook.conf", "TIMEOUT_S=3\n")
        self.write("etc/edgeq/handlers.conf", """\
            LOG_ROOT={0}/var/log
            ARCHIVE_DIR={0}/var/archive
            SCRIPT_DIR={0}/etc/edgeq/scripts
            """.format(root))
        self.write("etc/edgeq/scripts/sweep", SWEEP.format(root=root), 0o755)
        for n in range(LOGS):
            lines = ["Jul 20 10:%02d:%02d board service-%02d: sample %d\n" % (i // 60, i % 60, n, i * n) for i in range(900)]
            self.write("var/log/service-%02d.log" % n, "".join(lines))
        for n in range(AREAS):
            for i in range(6):
                self.write("cache/area-%02d/%d.%s" % (n, i, "tmp" if i % 2 else "dat"), "x" * 100)
        self.environment = {"PATH": self.link_applets(), "EDGEQ_CONF": self.path("etc/edgeq.conf"),
                            "EDGEQ_PYZ": self.path("usr/lib/edgeq/edgeq.pyz"), "EDGEQ_PYTHON": sys.executable}

    def path(self, name):
        return os.path.join(self.root, name)

    def write(self, name, text, mode=0o644):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text if text.startswith("#!") else textwrap.dedent(text))
        os.chmod(path, mode)

    def link_applets(self):
        """A folder of BusyBox's applets, which the handlers find first, as on a device."""
        os.mkdir(self.path("bin"))
        for applet in subprocess.run([self.busybox, "--list"], check=True, stdout=subprocess.PIPE, text=True).stdout.split():
            os.symlink(self.busybox, self.path("bin/" + applet))
        return self.path("bin") + ":/usr/sbin:/usr/bin:/sbin:/bin"

    def command(self, *words):
        return [self.busybox, "sh", self.path("usr/bin/edgeq"), *words]

    def edgeq(self, *words):
        """(exit code, what it said) of the wrapper with WORDS."""
        child = subprocess.run(self.command(*words), env=self.environment, stdin=subprocess.DEVNULL, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S)
        return child.returncode, child.stdout.strip()

    def enqueue(self, kind, payload, *options):
        code, said = self.edgeq("enqueue", kind, json.dumps(payload), *options)
        if code or not re.fullmatch(r"[A-Za-z0-9_-]+", said):
            raise Failed("enqueue %s: exit %d: %s" % (kind, code, said))
        return said

    def start(self):
        with open(self.path("worker.log"), "a") as log:
            self.worker = subprocess.Popen(self.command("work"), env=self.environment, cwd="/", stdin=subprocess.DEVNULL,
                                           stdout=log, stderr=log, start_new_session=True)
        return self.worker.pid

    def end(self, number):
        self.worker.send_signal(number)
        return self.worker.wait(LIMIT_S)

    def status(self):
        """(the line, its fields)"""
        line = self.edgeq("status")[1]
        return line, dict(re.findall(r"(\w+)=(\S+)", line))

    def wait(self, question, what):
        """Wait until QUESTION of the status' fields is true, with a limit."""
        end = time.monotonic() + LIMIT_S
        while True:
            line, fields = self.status()
            if question(fields):
                return line
            if self.worker.poll() is not None:
                raise Failed("the worker ended by itself, exit %d" % self.worker.returncode)
            if time.monotonic() > end:
                raise Failed("waited %d s in vain until %s:\n%s" % (LIMIT_S, what, line))
            time.sleep(0.1)

    def journal(self):
        """Ids of the finished jobs, in order, a line each."""
        ids = []
        for name in sorted(glob.glob(os.path.join(self.spool, "done/*.log"))):
            with open(name, "rb") as f:
                for line in f.read().split(b"\n"):
                    head, blank, check = line.rpartition(b" ")
                    if check and int(check, 16) == binascii.crc32(head + blank):
                        ids.append(head.split(b" ")[0].decode())
        return ids

    def left_in(self, folder):
        return sorted(name for name in os.listdir(os.path.join(self.spool, folder)) if not name.startswith("."))


def say(text=""):
    print(textwrap.fill(text, 78, subsequent_indent="   ", break_on_hyphens=False, break_long_words=False), flush=True)


def show(text):
    """What a program printed, as it is but for long lines, which are folded."""
    for line in text.splitlines():
        print(textwrap.fill(line, 78, initial_indent="   | ", subsequent_indent="   |    ",
                            break_on_hyphens=False, break_long_words=False), flush=True)


def play(device, receiver):
    """The story. Returns what was accepted: {id: (type, number)}."""
    accepted = {}

    def enqueue_some(numbers):
        for n in numbers:
            if n < WEBHOOKS:
                job = device.enqueue("send_webhook", {"url": receiver.url, "body": {"n": n, "at": "10:%02d" % n}})
                accepted[job] = ("send_webhook", n)
            if n < LOGS:
                job = device.enqueue("archive_log", {"path": device.path("var/log/service-%02d.log" % n)})
                accepted[job] = ("archive_log", n)
            if n < AREAS:
                job = device.enqueue("run_script", {"script": "sweep", "args": ["area-%02d" % n]})
                accepted[job] = ("run_script", n)

    say("1. A worker starts: pid %d. Its handlers: %s." % (
        device.start(), ", ".join(sorted(os.listdir(device.path("etc/edgeq/handlers"))))))
    say("   A receiver of webhooks listens at %s. It answers 500 now and then, 400 to number %d,"
        " and lets number %d hang." % (receiver.url, REFUSED, HANGS))
    say()
    say("2. A device script enqueues through the wrapper (pure shell, no Python):")
    enqueue_some(range(14))
    say("   %d jobs accepted, each with exit 0: a power cut now loses none." % len(accepted))
    show(device.status()[0])
    say()
    if not receiver.holding.wait(LIMIT_S):
        raise Failed("webhook %d never came" % KILLED)
    pid = device.worker.pid
    device.end(signal.SIGKILL)
    receiver.killed.set()
    say("3. kill -9 %d, while the receiver holds webhook %d: it arrives, but nobody is left to write that down."
        " It will be sent again." % (pid, KILLED))
    say()
    enqueue_some(range(14, WEBHOOKS))
    job = device.enqueue("archive_log", {"path": device.path("var/log/no-such.log")})
    accepted[job] = ("archive_log", None)
    job = device.enqueue("run_script", {"script": "sweep", "args": ["no-such-area"]}, "--id", "job-20260720-001")
    accepted[job] = ("run_script", None)
    say("4. With no worker the queue still accepts: %d jobs now. Two of them cannot succeed." % len(accepted))
    incoming = os.path.join(device.spool, "incoming")
    with open(os.path.join(incoming, "please-run-this.json"), "w") as f:
        json.dump({"id": "dropped-by-hand", "type": "send_webhook", "payload": {"url": receiver.url, "body": {"n": WEBHOOKS}}}, f)
        f.write("\n")
    accepted["dropped-by-hand"] = ("send_webhook", WEBHOOKS)
    with open(os.path.join(incoming, "broken.json"), "w") as f:
        f.write('{"type":"send_webhook","payl\n')
    say("   A person drops two files into incoming/: one is a job, one is rubbish.")
    show(device.status()[0])
    say()
    say("5. The worker starts again: pid %d. It takes back what the dead one held, and works"
        " until nothing is left ..." % device.start())
    line = device.wait(lambda s: [s.get(k) for k in ("ready", "processing", "failed", "delayed")] == ["0"] * 4
                       and s.get("corrupt") == "1" and s.get("worker") == "up", "all is done")
    say()
    say("6. The status line, as a script or the serial console sees it:")
    show(line)
    say()
    say("   The dead letters (edgeq ls dlq), and why (edgeq why ID):")
    show(device.edgeq("ls", "dlq")[1])
    for name in device.left_in("dlq"):
        show(device.edgeq("why", name.rpartition(".")[0])[1])
    say("   Set aside in corrupt/:")
    for name in device.left_in("corrupt"):
        if name.endswith(".why"):
            with open(os.path.join(device.spool, "corrupt", name)) as f:
                show(name[:-len(".why")] + ": " + f.read())
    say("   What the receiver answered: %s." % ", ".join(
        "%s %d times" % pair for pair in sorted(receiver.answers.items(), key=str)))
    code = device.end(signal.SIGTERM)
    say("   SIGTERM: the worker ends, exit %d." % code)
    if code:
        raise Failed("the worker did not stop cleanly")
    return accepted


def prove(device, receiver, accepted):
    """Every claim that does not hold, as a sentence. Reads files and the receiver's own list, asks no edgeq."""
    faults = []

    def claim(holds, sentence):
        say("   %s %s" % ("yes" if holds else "NO ", sentence))
        if not holds:
            faults.append(sentence)

    done, dead = device.journal(), [name.rpartition(".")[0] for name in device.left_in("dlq")]
    say("7. Proof, from the files alone:")
    lost = sorted(set(accepted) - set(done) - set(dead))
    claim(not lost, "%d accepted = %d in the journal + %d dead letters; lost: %s" % (
        len(accepted), len(done), len(dead), ", ".join(lost) or "none"))
    claim(len(set(done)) == len(done) and not set(done) & set(dead), "no job is recorded twice")
    claim(not set(done + dead) - set(accepted), "nothing is recorded that was not accepted")
    left = [name for folder in ("incoming", "processing", "failed") for name in device.left_in(folder)]
    claim(not left, "nothing is left waiting or half done")
    failing = {job for job, (kind, n) in accepted.items() if n is None or (kind, n) == ("send_webhook", REFUSED)}
    claim(set(dead) == failing, "dead are the %d jobs that cannot succeed, and only they" % len(failing))
    rubbish = [name for name in device.left_in("corrupt") if not name.endswith(".why")]
    claim(len(rubbish) == 1, "the rubbish is set aside, whole, and was not run")

    arrived = collections.Counter(key for key, _ in receiver.arrived)
    wanted = {job: n for job, (kind, n) in accepted.items() if kind == "send_webhook" and job not in failing}
    missing = sorted(job for job in wanted if not arrived[job])
    claim(not missing, "%d webhooks to deliver, %d arrived; missing: %s" % (
        len(wanted), len(set(arrived) & set(wanted)), ", ".join(missing) or "none"))
    claim(all(wanted.get(key) == n for key, n in receiver.arrived), "each under its own Idempotency-Key, none invented")
    twice = {job: n for job, n in arrived.items() if n > 1}
    for job, n in sorted(twice.items()):
        say("       duplicate: %s arrived %d times (webhook %d), known by its key" % (job, n, wanted.get(job, -1)))
    killed_for = {job for job in wanted if wanted[job] == KILLED}
    claim(killed_for <= set(twice), "the one that was under way at the kill is among the duplicates")

    manifest = open(device.path("var/archive/MANIFEST")).read().split("\n")[:-1]
    logs = {"service-%02d.log.%s.gz" % (n, job): n for job, (kind, n) in accepted.items()
            if kind == "archive_log" and job not in failing}
    good = set()
    for line in manifest:
        checksum, _, name = line.partition("  ")
        with open(device.path("var/archive/" + os.path.basename(name)), "rb") as f:
            data = f.read()
        with open(device.path("var/log/service-%02d.log" % logs.get(name, 0)), "rb") as f:
            if hashlib.sha256(data).hexdigest() == checksum and gzip.decompress(data) == f.read():
                good.add(name)
    claim(good == set(logs) and len(manifest) == len(logs), "%d logs archived, each once in MANIFEST, checksums hold" % len(logs))
    swept = [n for n in range(AREAS) if sorted(os.listdir(device.path("cache/area-%02d" % n))) == ["0.dat", "2.dat", "4.dat"]]
    claim(len(swept) == AREAS, "%d areas of the cache swept, nothing else removed" % len(swept))
    return faults


def main(argv):
    parser = argparse.ArgumentParser(prog="demo.py", description="edgeq at work in a temporary folder.")
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    options = parser.parse_args(argv)
    begun = time.monotonic()
    root = tempfile.mkdtemp(prefix="edgeq-demo-")
    device, receiver, faults = None, start_receiver(), []
    try:
        device = Device(root)
        say("edgeq, the demo. Everything happens in %s" % root)
        say()
        accepted = play(device, receiver)
        say()
        faults = prove(device, receiver, accepted)
    except (Failed, OSError, subprocess.TimeoutExpired) as error:
        faults = [str(error)]
        say("demo: failed: %s" % error)
        if device and os.path.exists(device.path("worker.log")):
            say("The worker's last words:")
            with open(device.path("worker.log")) as f:
                show("\n".join(f.read().splitlines()[-15:]))
    finally:
        receiver.killed.set()
        receiver.closing.set()
        if device and device.worker and device.worker.poll() is None:
            device.end(signal.SIGKILL)
    say()
    say("%s after %.0f s." % ("The proof FAILS: %d claims do not hold" % len(faults) if faults else "The proof holds",
                              time.monotonic() - begun))
    if faults or options.keep:
        say("Look around: %s" % root)
    else:
        shutil.rmtree(root)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
