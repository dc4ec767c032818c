"""The real thing: a BusyBox-init image boots in QEMU, and everything happens over its serial console.

One test a machine, its steps in order; build/image/ARCH/console.log keeps the transcript with the steps' names in it, and
figures.json what was measured. Software emulation: slow, and the same everywhere.
"""

import ctypes
import json
import os
import re
import select
import signal
import subprocess
import time

import pytest

from tools import image

LIMIT_S = 240  # a boot on a busy machine
STATUS = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ queue=default ready=\d+ processing=\d+ done=\d+ dead=\d+ oldest_ready_s=\d+"
                    r' retries_1m=\d+ .* last_error="[^"]*"$')
ENDED = re.compile(r"^=(\d+) done=\n", re.M)


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Machine:
    """A QEMU, its console, and the transcript."""

    def __init__(self, arch, data, transcript):
        self.arch, self.data, self.transcript = arch, data, transcript
        self.qemu, self.text, self.at = None, "", 0

    def say(self, text):
        self.transcript.write(text.encode())
        self.transcript.flush()

    def step(self, name):
        self.say("\n=== %s: %s\n" % (self.arch, name))

    def power_on(self, root=None):
        self.qemu = subprocess.Popen(image.qemu(self.arch, self.data, root=root), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, preexec_fn=die_with_parent)
        self.text, self.at = "", 0

    def pull_the_plug(self):
        if self.qemu is not None:
            self.qemu.kill()
            self.qemu.wait()
            self.qemu.stdin.close()
            self.qemu.stdout.close()
            self.qemu = None

    def take(self):
        """What the console says now; nothing: QEMU ended."""
        data = os.read(self.qemu.stdout.fileno(), 65536)
        self.transcript.write(data.replace(b"\r", b""))
        self.transcript.flush()
        self.text += data.decode("utf-8", "replace").replace("\r", "")
        return data

    def await_text(self, pattern, limit_s=LIMIT_S):
        """Read until `pattern` comes after what was already matched; the match."""
        end = time.monotonic() + limit_s
        pattern = re.compile(pattern) if isinstance(pattern, str) else pattern
        while True:
            found = pattern.search(self.text, self.at)
            if found:
                self.at = found.end()
                return found
            left_s = end - time.monotonic()
            assert left_s > 0, "no %r within %d s; the console ends: %s" % (pattern.pattern, limit_s, self.text[-1500:])
            if select.select([self.qemu.stdout], [], [], min(left_s, 1))[0]:
                assert self.take(), "QEMU ended; the console ends: %s" % self.text[-1500:]

    def await_console(self):
        self.await_text("CONSOLE is ready")

    def type(self, line):
        assert len(line) < 1000, "the console takes 1,000 bytes a line"
        self.say("# %s\n" % line)
        self.qemu.stdin.write(line.encode() + b"\n")
        self.qemu.stdin.flush()

    def do(self, line):
        """Run a line on the console: (exit code, what it printed)."""
        begin = self.at
        self.type(line)
        ended = self.await_text(ENDED)
        return int(ended[1]), self.text[begin:ended.start()].strip("\n")

    def ok(self, line):
        code, said = self.do(line)
        assert code == 0, (line, code, said)
        return said

    def until(self, line, question, limit_s=LIMIT_S):
        """Run `line` again and again until question(what it printed)."""
        end = time.monotonic() + limit_s
        while True:
            said = self.do(line)[1]
            if question(said):
                return said
            assert time.monotonic() < end, "waited in vain: %s: %s" % (line, said)
            time.sleep(0.3)

    def ran(self):
        return [words.split()[0] for words in self.do("cat /tmp/ran 2>/dev/null")[1].splitlines()]

    def await_done(self, ids):
        """Until the journal has every one of them."""
        listing = "cat /data/edgeq/default/done/*.log | cut -d' ' -f1 | tr -s '\\n' | tr '\\n' ' '; echo"
        self.until(listing, lambda said: set(ids) <= set(said.split()))

    def available_kb(self):
        return int(self.ok("sed -n 's/^MemAvailable: *//p' /proc/meminfo").split()[0])


@pytest.fixture(params=["x86_64", "arm"])
def machine(request, tmp_path):
    arch = request.param
    folder = image.build(arch)
    data = tmp_path / "data.img"
    with open(data, "wb") as file:
        file.truncate(24 << 20)
    subprocess.run([image.tool("mkfs.ext4", "e2fsprogs"), "-q", "-F", str(data)], check=True)
    with open(folder / "console.log", "wb") as transcript:
        machine = Machine(arch, data, transcript)
        yield machine
        machine.pull_the_plug()


def past_2038(machine):
    """Another queue, 20 years on: names, due times, the status line, the journal and retries are right."""
    machine.ok("mkdir -p /run/y; echo 631152000 >/run/y/clock; grep -v SPOOL= /etc/edgeq.conf >/run/y/conf;"
               " printf '%s\\n' SPOOL=/data/y RUN_DIR=/run/y LOG=stderr >>/run/y/conf;"
               " y() { EDGEQ_CONF=/run/y/conf EDGEQ_TEST_CLOCK=/run/y/clock edgeq \"$@\"; }")
    machine.ok("y enqueue note --id old; y enqueue note --id far --at 2099-12-31T23:59:59Z; y enqueue note --id soon --delay 9000")
    assert machine.do("y work --once 2>&1")[0] == 0
    assert "old" in machine.ran() and not {"far", "soon"} & set(machine.ran())
    assert re.match(r"20[4-9]\d-.* ready=0 .* done=1 .* delayed=2 .* clock=ok ", machine.do("y status")[1])
    assert re.search(r"runs in (8[89]|90)\d\d s", machine.ok("y why soon"))
    assert re.search(r"(?m)^20[4-9]\d-\S+ done id=old ", machine.ok("y log"))
    assert "2099-12-31T23:59:59Z" in machine.ok("y ls")
    note = "note: clock: time has 32 bits in this image"
    assert (note in machine.do("y check")[1]) == (machine.arch == "arm")  # libc itself ends there: it is told beforehand
    machine.ok("rm -r /run/y /data/y")


def reboot_by_job(machine):
    """P4, with a real reboot: what was not flushed is gone, and the boot id is another."""
    machine.step("a job that reboots the board: at most once more than its tries, then it is dead, others go on")
    machine.type("edgeq enqueue note --id beside2 --delay 3; edgeq enqueue boom --id boom1")
    letter = "/data/edgeq/default/dlq/boom1.json"
    while True:  # the board may go down in the middle of any line
        machine.type("until [ -e %s ]; do sleep 0.2; done; echo it is dead" % letter)
        if machine.await_text(r"(it is dead\n=0 done=\n)|CONSOLE is ready")[1]:
            break
    again = re.findall(r"boom boom1 ([01])\.", machine.text)
    assert again in (["0", "1"], ["0", "1", "1"]), again
    assert '"attempts":2,"last_error":"worker died"' in machine.ok("cat " + letter)
    machine.await_done(["beside2"])
    assert not re.search(r"^store:", machine.do("edgeq check")[1], re.M)


@pytest.mark.timeout(900)
def test_boot_reboot_power_cut_and_shutdown(machine):
    figures = {}

    machine.step("power on: the service comes up, and the job that S84 queued runs")
    machine.power_on()
    early = machine.await_text(r"(?m)^(\d{16}-[0-9a-f]{8})\n")[1]
    machine.await_text("Starting edgeq: OK\n")
    machine.await_console()
    line = machine.until("cat /tmp/ran", lambda said: said.startswith(early))
    figures["first_job_s"] = float(line.split()[1])
    is_up = re.compile(r"edgeq: default: running \(guard \d+, worker \d+\)")
    machine.until("/etc/init.d/S85edgeq status", is_up.fullmatch)

    machine.step("the root is read-only, the spool lies on the data partition")
    assert machine.do("touch /etc/x")[0] != 0
    machine.ok("grep -q '^/dev/vdb /data ext4 rw' /proc/mounts && [ -d /data/edgeq/default/incoming ]")

    machine.step("enqueue from the shell, as root and as a member of the group; the jobs run")
    ids = [machine.ok("edgeq enqueue note '{\"n\":1}'"), machine.ok("su -s /bin/sh -c 'edgeq enqueue note' ann")]
    machine.until("cat /tmp/ran", lambda said: set(ids) <= {words.split()[0] for words in said.splitlines()})

    machine.step("status line")
    code, line = machine.do("edgeq status")
    assert code == 0 and STATUS.match(line), (code, line)
    assert " worker=up durable=yes clock=ok " in line
    machine.until("edgeq status", lambda said: " done=3 dead=0 " in said)
    assert "edgeq: status" in machine.ok("cat /tmp/messages")

    machine.step("RAM")
    figures["available_kb"] = machine.available_kb()
    assert figures["available_kb"] > 4096
    assert "Stopping edgeq: OK (stopped)" in machine.ok("/etc/init.d/S85edgeq stop")
    figures["available_without_kb"] = machine.available_kb()
    machine.ok("/etc/init.d/S85edgeq start")

    machine.step("a clock past 2038, on ARM with a time_t of 32 bits")
    past_2038(machine)

    machine.step("reboot with waiting jobs; they run afterwards")
    machine.ok("edgeq pause")
    waiting = [machine.ok("edgeq enqueue note --id w%d" % n) for n in range(5)]
    machine.type("reboot")
    machine.await_text(r"Stopping edgeq: OK \(stopped\)")
    machine.await_text("Starting edgeq: OK")
    machine.await_console()
    machine.until("edgeq status", lambda said: "worker=up" in said)
    assert "paused=1" in machine.ok("edgeq status") and machine.ran() == []
    machine.ok("edgeq resume")
    machine.await_done(waiting)
    assert set(waiting) <= set(machine.ran())

    machine.step("pull the plug in the middle of a batch; every acknowledged job is done afterwards")
    machine.type("i=0; while edgeq enqueue note --id plug$i; do i=$((i + 1)); done")
    for n in range(25):
        machine.await_text(r"(?m)^plug%d\n" % n)
    machine.pull_the_plug()
    acked = re.findall(r"^(plug\d+)$", machine.text, re.M)
    machine.power_on()
    machine.await_text("Starting edgeq: OK")
    machine.await_console()
    machine.await_done(acked)
    status = machine.until("edgeq status", lambda said: " ready=0 processing=0 " in said)
    assert " dead=0 " in status
    said = machine.do("edgeq check")[1]
    assert not re.search(r"^store:", said, re.M), said

    if machine.arch == "arm":  # three boots: one of the two does
        reboot_by_job(machine)

    machine.step("power off while a job runs: the stop is bounded, the job is kept, nothing is lost")
    machine.ok("edgeq enqueue slow --id slow1")
    machine.until("cat /tmp/began", lambda said: said == "slow1")
    begun = time.monotonic()
    machine.type("poweroff")
    machine.await_text(r"Stopping edgeq: OK \((.*)\)")
    took_s = time.monotonic() - begun
    assert took_s < 10 + 5 + 15, took_s  # GRACE_S + 5 s, and what a busy machine adds
    assert machine.qemu.wait(LIMIT_S) == 0
    listed = subprocess.run([image.tool("debugfs", "e2fsprogs"), "-R", "ls -p /edgeq/default/incoming", str(machine.data)],
                            capture_output=True, text=True, check=True).stdout
    assert re.search(r"/5\.\d{16}\.0\.0r\.slow\.slow1\.json/", listed), listed

    path = image.IMAGES / machine.arch / "figures.json"
    figures = dict(json.loads(path.read_text()), **figures)
    path.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n%s: %s" % (machine.arch, figures))
