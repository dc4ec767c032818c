"""Power cuts in QEMU on a disk that really drops what was not flushed.

A chain is one spool that lives through cut after cut. A guest enqueues from two shells while its service runs the jobs; every id
that `edgeq enqueue` returned is told on the console and marked in the disk's log. At a random moment QEMU is killed. From the log
come several images that this cut (or one a little earlier in the same run) can leave. The next boot has one of them as /data: the
service recovers it as on any board. The others are mounted in turn and recovered by `check --repair`, or by a worker at once. In
each, every acknowledged id must be in the journal or in dlq/, exactly once, with its payload unharmed. Then the writers go on, to
the next cut.

The bench proves itself first in each chain: ids of `enqueue --fast` taken for acknowledged must come out as losses.

FULL=1: 200 cuts on two machines. build/image/cuts-*.log are the consoles, cuts-*.json the figures; an image with a finding is kept.
"""

import hashlib
import json
import os
import random
import re
import select
import shutil
import subprocess
import time
import zlib

import pytest

from tests.crash import images
from tests.image import nbd
from tests.image.test_boot import LIMIT_S, Machine, die_with_parent
from tools import image

FULL = os.environ.get("FULL", "") not in ("", "0")
MAKE = {"ext4": (24 << 20, ["mkfs.ext4", "-q", "-F"], "e2fsprogs"), "f2fs": (64 << 20, ["mkfs.f2fs", "-q", "-f"], "f2fs-tools")}
# cuts of a chain, images of a cut
CUTS_N, IMAGES_N = (10, 3) if FULL else (5, 4)
ARCHS = ("arm", "x86_64") if FULL else ("arm",)
CHAINS = [(arch, kind, number) for number in range(4 if FULL else 1) for arch in ARCHS for kind in MAKE]
ACK = re.compile(r"^ack (\S+) (\d+)\n", re.M)
WAITING = ("incoming", "processing", "failed")
HARMLESS = ("note:", "code ", "python: no module ctypes", "clock: earlier than the newest job")
FILLER = "x" * 1600
DEVICE = {"ubifs": "ubi0:data"}

# In the guest. Jobs of every size up to two blocks; each sixth fails until it is dead.
SCRIPT = r"""
a=xxxxxxxxxxxxxxxx; a=$a$a$a$a$a; a=$a$a$a$a$a; A=$a$a$a$a
write_jobs() { # first number, prefix of the ids or nothing, more options
    n=$1
    while :; do
        t=cut; [ $((n % 6)) != 5 ] || t=bad
        case $((n % 4)) in 0) p=; ;; 3) p=$A$n-$A$n-$A$n ;; *) p=$n-$n-$n-$n-$n-$n-$n ;; esac
        id=$(edgeq enqueue $t "{\"n\":$n,\"pad\":\"$p\"}" $3 ${2:+--id $2$n} 2>/dev/null) && echo "ack $id $n"
        n=$((n + 1))
    done
}
list() { # what is in the spool at $1
    for f in incoming processing failed dlq corrupt; do
        for j in "$1/default/$f"/*; do [ ! -e "$j" ] || echo "$f/${j##*/}"; done
    done
    cat "$1"/default/done/*.log 2>/dev/null | tr -s '\n'
}
is_waiting() {
    for j in "$1"/default/incoming/* "$1"/default/processing/* "$1"/default/failed/*; do [ ! -e "$j" ] || return 0; done
    return 1
}
look() { # the rest of a verification
    echo @check; edgeq $C check 2>&1; echo "code $?"
    echo @after; list "$1"
    echo @ran; cat /tmp/ran 2>/dev/null
    echo @end
}
on_data() {
    i=600; while is_waiting /data/edgeq && [ $i -gt 0 ]; do sleep 0.2; i=$((i - 1)); done
    C= look /data/edgeq
}
open_other() { # device, file system
    case $2 in ubifs) flash_open "$1" 1 /tmp/m ;; *) mount -t "$2" "/dev/$1" /tmp/m ;; esac
}
close_other() {
    case $1 in ubifs) flash_close 1 /tmp/m ;; *) umount /tmp/m ;; esac
}
on_other() { # device (or slot), file system, way
    mkdir -p /tmp/m /tmp/c; cp -r /etc/edgeq.conf.d /tmp/c
    sed '/^SPOOL=/d; /^REQUIRE_MOUNT=/d' /etc/edgeq.conf >/tmp/c/edgeq.conf
    printf '%s\n' SPOOL=/tmp/m/edgeq REQUIRE_MOUNT=/tmp/m RUN_DIR=/run/cut CONCURRENCY=4 >>/tmp/c/edgeq.conf
    C='--config /tmp/c/edgeq.conf'
    rm -rf /run/cut /tmp/ran
    open_other "$1" "$2" || { echo "@unmountable"; echo @end; return; }
    echo @before; list /tmp/m/edgeq
    if [ $3 = repair ]; then
        edgeq $C check --repair >/tmp/said 2>&1
        echo @repaired; edgeq $C check 2>&1; echo "code $?"
    fi
    i=50
    while :; do
        edgeq $C work --once >/tmp/said 2>&1
        is_waiting /tmp/m/edgeq && [ $i -gt 0 ] || break
        i=$((i - 1)); sleep 0.2
    done
    look /tmp/m/edgeq
    close_other "$2" || echo @busy
}
"""


def payload(n):
    pad = {0: "", 3: "-".join([FILLER + str(n)] * 3)}.get(n % 4, "-".join([str(n)] * 7))
    return b'{"n":%d,"pad":"%s"}' % (n, pad.encode())


class Board(Machine):
    """A machine whose /data is a disk that remembers, with other images beside it."""

    def power_on(self, disk, kind, others=()):
        self.disk, self.kind, self.noted = disk, kind, 0
        self.qemu = subprocess.Popen(image.qemu(self.arch, disk.address, kind, others), stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=die_with_parent)
        self.text, self.at, self.acks_at = "", 0, 0
        self.await_text("Starting edgeq: OK")
        self.await_console()
        self.ok("grep -q '^%s /data %s rw' /proc/mounts" % (DEVICE.get(kind, "/dev/vdb"), kind))
        self._load_script()

    def _load_script(self):
        lines = SCRIPT.strip().encode()
        for at in range(0, len(lines), 500):
            word = "".join("\\%03o" % byte if byte in b"\\'%-\n" else chr(byte) for byte in lines[at:at + 500])
            self.ok("printf '%s' >>/tmp/script" % word)
        self.ok(". /tmp/script")
        if self.kind == "ubifs":
            self.ok(". /mnt/flash.sh")

    def until_acks(self, count):
        """Take what the console says, and note each acknowledgement, until there are so many of this boot."""
        end = time.monotonic() + LIMIT_S
        while self.noted < count:
            assert time.monotonic() < end, "%d of %d acknowledgements; the console: %s" % (self.noted, count, self.text[-1500:])
            if select.select([self.qemu.stdout], [], [], 1)[0]:
                assert self.take(), "QEMU ended; the console ends: %s" % self.text[-1500:]

    def take(self):
        data = super().take()
        for found in ACK.finditer(self.text, self.acks_at):
            self.disk.note(("%s %s" % found.groups()).encode())
            self.acks_at = found.end()
            self.noted += 1
        return data

    def cut(self):
        self.qemu.kill()
        self.qemu.wait()
        while self.take():
            pass
        self.pull_the_plug()
        self.disk.close()

    def leave(self):
        self.pull_the_plug()
        self.disk.close()

    def freeze(self):
        """Everybody but the console stands still. A line of theirs that is told in half is no acknowledgement."""
        self.type("kill -STOP -1; echo @stopped")
        self.await_text(r"@stopped\n=0 done=\n")

    def thaw(self):
        self.ok("kill -CONT -1")

    def verify(self, command):
        """{part: [line]} of what a verification printed."""
        said = self.ok(command)
        parts, part = {}, None
        for line in said.splitlines():
            if line.startswith("@"):
                part = parts.setdefault(line[1:], [])
            elif part is not None:
                part.append(line)
        assert "end" in parts, said[-1500:]
        return parts


def read_list(lines):
    """({id: [folder]}, {id: lines of the journal})."""
    places, done = {}, {}
    for line in lines:
        folder, slash, name = line.partition("/")
        body, blank, crc = line.rpartition(" ")
        if slash and folder in WAITING + ("dlq", "corrupt") and " " not in line:
            parts = name.split(".")
            places.setdefault(parts[5] if folder in WAITING and len(parts) > 6 else parts[0], []).append(folder)
        elif blank and crc == "%08x" % zlib.crc32((body + blank).encode()):
            done[body.split(" ")[0]] = done.get(body.split(" ")[0], 0) + 1
    return places, done


def judge(parts, acks):
    """[sentence]: what is wrong with a verified image. acks: {id: number}. A loss begins with `lost:`."""
    if "unmountable" in parts:
        return ["the file system cannot be mounted: " + "; ".join(parts["unmountable"])[:300]]
    found = ["the mount is busy"] if "busy" in parts else []
    for part in ("repaired", "check"):
        lines = parts.get(part, [])
        # Debian's python3-minimal has no ctypes, and the next machine's clock may be set back by the seconds that an emulated
        # one runs fast: edgeq says so, and nothing else
        bad = [line for line in lines if not line.startswith(HARMLESS) and line not in ("clean", "1 finding", "2 findings")]
        if part in parts and (bad or not {"code 0", "code 1"} & set(lines)):
            found.append("%s: %s" % (part, " / ".join(lines)[:600]))
    places, done = read_list(parts["after"])
    ran = {}
    for words in (line.split() for line in parts["ran"]):
        ran.setdefault(words[0], []).append(words[1])
    for id, n in acks.items():
        where = places.get(id, [])
        if done.get(id, 0) + where.count("dlq") != 1 or len(where) - where.count("dlq"):
            kind = "lost" if not done.get(id) and "dlq" not in where else "twice"
            found.append("%s: %s: %d lines in the journal, files in %s" % (kind, id, done.get(id, 0), where or "no folder"))
        if any(digest != hashlib.md5(payload(n)).hexdigest() for digest in ran.get(id, ())):
            found.append("%s ran with another payload than %d's" % (id, n))
        if n % 6 != 5 and len(ran.get(id, ())) > 1:
            found.append("%s ran %d times after one cut" % (id, len(ran[id])))
    if "before" in parts:
        places, done = read_list(parts["before"])
        for id, n in acks.items():
            if id not in done and not set(places.get(id, ())) - {"corrupt"}:
                found.append("lost: %s: nowhere before anything ran" % id)
            if id in done and id in ran:
                found.append("%s ran again, its line was in the journal" % id)
            where = places.get(id, ())
            is_at_its_end = "dlq" in where or n % 6 == 5 and "processing" in where  # the cut may have cost it its last try
            if id not in done and id not in ran and not is_at_its_end:
                found.append("%s was not done and did not run" % id)
    return found


def count_losses(sentences):
    return len({sentence.split(" ")[1] for sentence in sentences if sentence.startswith("lost:")})


def read_acks(notes):
    return {id: int(n) for id, n in (note.decode().split() for note in notes)}


def test_the_judge_sees_what_is_wrong():
    def line(id):
        body = "%s 1 5 1795992076 1 cut 917 - " % id
        return body + "%08x" % zlib.crc32(body.encode())

    def ran(id, n):
        return "%s %s" % (id, hashlib.md5(payload(n)).hexdigest())

    def judged(**changed):
        parts = {"before": ["incoming/5.1.0.0.cut.a.json", "dlq/b.json", line("c")], "ran": [ran("a", 1)],
                 "after": [line("a"), "dlq/b.json", line("c")], "check": ["clean", "code 0"]}
        return judge(dict(parts, **changed), {"a": 1, "b": 5, "c": 3})

    assert judged() == []
    assert judged(before=["incoming/5.1.0.0.cut.a.json", "processing/5.1.2.2.bad.b.t-1-2-3.json", line("c")]) == []
    for changed, wanted in (
            ({"after": [line("a"), "dlq/b.json", line("c")[:-1] + "x"]}, "lost: c"),
            ({"after": [line("a"), line("c")]}, "lost: b"),
            ({"after": [line("a"), line("a"), "dlq/b.json", line("c")]}, "twice: a"),
            ({"after": [line("a"), "dlq/a.json", "dlq/b.json", line("c")]}, "twice: a"),
            ({"after": [line("a"), "dlq/b.json", line("c"), "processing/5.1.0.1.cut.c.t-1-2-3.json"]}, "twice: c"),
            ({"before": ["corrupt/a", "dlq/b.json", line("c")]}, "lost: a"),
            ({"ran": []}, "a was not done and did not run"),
            ({"ran": [ran("a", 2)]}, "a ran with another payload"),
            ({"ran": [ran("a", 1)] * 2}, "a ran 2 times"),
            ({"ran": [ran("a", 1), ran("c", 3)]}, "c ran again"),
            ({"check": ["store: torn", "1 finding", "code 1"]}, "check: store"),
            ({"unmountable": []}, "the file system cannot")):
        assert any(sentence.startswith(wanted) for sentence in judged(**changed)), changed


class Chain:
    """One spool through its cuts."""

    cuts_n, images_n = CUTS_N, IMAGES_N

    def __init__(self, arch, kind, chain, folder, transcript):
        self.arch, self.kind, self.folder = arch, kind, folder
        self.seed = int.from_bytes(os.urandom(4), "big")
        self.rng = random.Random(self.seed)
        self.name = "%s-%s-%d" % (arch, kind, chain)
        self.board = Board(arch, None, transcript)
        self.figures = {"seed": self.seed, "cuts": 0, "images": 0, "acks": 0, "acks_verified": 0, "findings": 0, "losses": 0,
                        "canary_losses": 0}
        for path in image.IMAGES.glob("cuts-%s-*.img" % self.name):
            path.unlink()
        self.told = []  # acknowledgements of the life of what /data begins with
        self.boots_n, self.begun, self.cpu_s = 0, time.monotonic(), sum(os.times()[:4])

    def make_disk(self):
        size, command, package = MAKE[self.kind]
        path = self.folder / "fresh.img"
        with open(path, "wb") as file:
            file.truncate(size)
        subprocess.run([image.tool(command[0], package), *command[1:], str(path)], check=True, stdout=subprocess.DEVNULL)
        return path

    def boot(self, base, step, others=()):
        self.boots_n += 1
        self.board.step(step)
        self.base, self.log = base, self.folder / ("%d.log" % self.boots_n)
        try:
            self.board.power_on(nbd.Disk(base, self.folder / ("%d.sock" % self.boots_n), self.log), self.kind, others)
        except AssertionError:
            shutil.copy(base, image.IMAGES / ("cuts-%s-no-boot.img" % self.name))
            raise

    def cut(self):
        """The log of this boot's disk, up to a cut that comes now."""
        self.board.cut()
        return images.Log(self.log, self.told)

    def build(self, log, cuts):
        """[(path, cut)], in any order of cuts."""
        made = []
        builder = images.Builder(log, self.base, self.folder / "scratch.img")
        for n, cut in enumerate(sorted(cuts, key=lambda cut: cut.safe)):
            builder.path = self.folder / ("%d-%d.img" % (self.boots_n, n))
            builder.path.touch()
            builder.build(cut)
            made.append((builder.path, cut))
        return made

    def choose(self, log):
        """The cut as it came, and others in the same run: half of them right after an acknowledgement."""
        first = log.notes[0]
        pool = [cut for cut in images.choose(log, self.rng, 8 * self.images_n, lambda note: True) if cut.end > first]
        last = [cut for cut in pool if cut.safe == log.last_flush(len(log.entries))] or [pool[-1]]
        chosen = [self.rng.choice(last)]
        for is_after_ack in [True, False] * self.images_n:
            rest = [cut for cut in pool if cut.is_after_ack == is_after_ack and cut not in chosen]
            if self.rng.random() < 0.75:
                rest = [cut for cut in rest if cut.kept] or rest
            if rest and len(chosen) < self.images_n:
                chosen.append(self.rng.choice(rest))
        return chosen

    def write(self, number):
        """Until a random moment of a boot's work."""
        self.begin_to_write(number)
        self.write_on(6, 30)

    def begin_to_write(self, number):
        """Two shells enqueue while the service works."""
        first = 100000 * number
        self.board.ok("rm -f /tmp/ran; write_jobs %d c%d- & write_jobs %d '' &" % (first, number, first + 50000))

    def write_on(self, least, most):
        """A random number of acknowledgements and a moment."""
        self.board.until_acks(self.board.noted + self.rng.randint(least, most))
        end = time.monotonic() + self.rng.uniform(0, 0.5)
        while time.monotonic() < end:
            self.board.until_acks(self.board.noted)
            time.sleep(0.002)

    def canary(self):
        """Images of a writer that does not flush, its ids taken for acknowledged."""
        self.boot(self.make_disk(), "the bench proves itself: enqueue --fast")
        self.board.ok("/etc/init.d/S85edgeq stop")
        self.board.type("write_jobs 0 '' --fast")
        self.board.until_acks(8)
        log = self.cut()
        ends = [len(log.entries), log.notes[4] + 1]
        return log, self.build(log, [images.Cut(log, log.last_flush(end), end, (), "lost") for end in ends])

    def device(self, n):
        """What the guest calls the n-th of the others."""
        return "vd%s" % chr(ord("c") + n)

    def verify_others(self, log, made):
        """{path: [sentence]}."""
        found = {}
        for n, (path, cut) in enumerate(made):
            way = self.rng.choice(("repair", "worker"))
            self.board.step("%s, by %s: %s" % (path.name, way, cut))
            parts = self.board.verify("on_other %s %s %s" % (self.device(n), self.kind, way))
            found[path] = judge(parts, read_acks(log.notes_before(cut.end)))
            self.board.say("\n=== %s: %s\n" % (path.name, "; ".join(found[path]) or "nothing is lost"))
        return found

    def go(self):
        canary_log, canaries = self.canary()
        self.boot(self.make_disk(), "a fresh disk, and what the canary left", [path for path, _ in canaries])
        found = self.verify_others(canary_log, canaries)
        self.figures["canary_losses"] = sum(map(count_losses, found.values()))
        assert self.figures["canary_losses"], "a writer that does not flush was not caught: the bench is blind: %s" % found
        wrong = []
        for number in range(1, self.cuts_n + 1):
            self.write(number)
            log = self.cut()
            cuts = self.choose(log)
            made = self.build(log, cuts)
            data, cut = made.pop(self.rng.randrange(len(made)))
            self.told = log.notes_before(cut.end)
            self.boot(data, "cut %d; /data is %s: %s" % (number, data.name, cut), [path for path, _ in made])
            found = {data: judge(self.board.verify("on_data"), read_acks(self.told))}
            self.board.say("\n=== %s: %s\n" % (data.name, "; ".join(found[data]) or "nothing is lost"))
            found.update(self.verify_others(log, made))
            self.figures["cuts"] += 1
            self.figures["images"] += len(found)
            self.figures["acks"] += len(log.notes)
            self.figures["acks_verified"] += sum(len(log.notes_before(cut.end)) for cut in cuts)
            self.figures["losses"] += sum(map(count_losses, found.values()))
            for path, sentences in found.items():
                wrong += ["cut %d, %s: %s" % (number, path.name, sentence) for sentence in sentences]
                if sentences:
                    shutil.copy(path, image.IMAGES / ("cuts-%s-%s" % (self.name, path.name)))
            self.figures["findings"] = len(wrong)
            self.figures["cpu_s"] = round(sum(os.times()[:4]) - self.cpu_s)
            self.figures["wall_s"] = round(time.monotonic() - self.begun)
            (image.IMAGES / ("cuts-%s.json" % self.name)).write_text(json.dumps(self.figures, indent=1) + "\n")
            for path in self.folder.glob("*"):
                if path.name.startswith("%d" % (self.boots_n - 1)) and path != self.base:
                    path.unlink()
        print("\n%s: %s" % (self.name, self.figures))
        assert not wrong, "\n".join(wrong)


def survive(kind_of_chain, arch, kind, number, folder):
    image.build(arch)
    with open(image.IMAGES / ("cuts-%s-%s-%d.log" % (arch, kind, number)), "wb") as transcript:
        chain = kind_of_chain(arch, kind, number, folder, transcript)
        try:
            chain.go()
        finally:
            chain.board.leave()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("arch,kind,number", CHAINS)
def test_nothing_acknowledged_is_lost_in_a_power_cut(arch, kind, number, tmp_path):
    survive(Chain, arch, kind, number, tmp_path)
