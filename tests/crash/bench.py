"""Crash images: nothing that was acknowledged is lost, whatever moment the power goes.

    python -m tests.crash.bench [--full] [--images N] [--seed S] [--jobs N] [--keep DIR]     (make check-crash [FULL=1])

Records edgeq at work below ext4 and xfs (device.py, workload.py), builds what a cut could leave (images.py), mounts each image on a
loop device, compares it with what was acknowledged, recovers and runs every job (facts.py). Six canaries, each with one fault,
go first: a bench that does not catch them fails. So does one whose batches did not go by one fsync where that is allowed.

Exit 0: nothing lost, every canary caught. 1: a loss, or a canary that got away. 69: this machine lacks something (named).
Needs root, loop devices, /dev/fuse, and mkfs.ext4 (e2fsprogs), mkfs.xfs (xfsprogs), busybox. Leaves nothing behind: the mounts
are ours alone; on SIGTERM the devices are detached, after SIGKILL the next run does it.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import edgeq.store.audit  # noqa: F401 before the first fork: all of one version, whoever edits the tree meanwhile
import edgeq.store.bounds  # noqa: F401
import edgeq.store.carry  # noqa: F401
from tests.crash import device, doubt, facts, workload
from tests.crash.images import Builder, Log, choose

UNAVAILABLE = 69
IMAGES, FULL_IMAGES = 2200, 10_500
CANARY_IMAGES = 40  # at a time, until it is caught or no image is left
CHECK_LIMIT_S = 600


class FileSystem:
    """kind: its driver; make: mkfs and its options; options: of the mount. share: of the images. is_gate: a loss fails the run."""

    def __init__(self, name, kind, mebibytes, make, share, options="", is_gate=True):
        self.name, self.kind, self.mebibytes, self.make, self.share = name, kind, mebibytes, make, share
        self.options, self.is_gate = options, is_gate

    def format(self, path):
        with open(path, "wb") as file:
            file.truncate(self.mebibytes << 20)
        done = subprocess.run(self.make + [path], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit("%s: %s" % (" ".join(self.make), done.stderr.strip()))

    @property
    def check_options(self):
        """xfs refuses a second image with the same uuid at the same time."""
        return ",".join(option for option in (self.options, "nouuid" if self.kind == "xfs" else "") if option)


MAKE_EXT4 = ["mkfs.ext4", "-q", "-F", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-b"]
FILE_SYSTEMS = (
    FileSystem("ext4", "ext4", 24, MAKE_EXT4 + ["4096"], 0.45),
    FileSystem("ext4 data=writeback", "ext4", 24, MAKE_EXT4 + ["1024"], 0.2, "data=writeback"),
    FileSystem("xfs", "xfs", 32, ["mkfs.xfs", "-q", "-f", "--unsupported", "-d", "agcount=1"], 0.35),
    FileSystem("ext4 fast_commit", "ext4", 24, MAKE_EXT4 + ["4096", "-O", "fast_commit"], 0.04, is_gate=False),
)

# What is recorded, below what disk, and its share of a file system's images. The boots after a cut begin on images of the first.
WORKLOADS = (
    ("driver", workload.drive, device.Server, 0.25),
    ("driver beside syncs", workload.drive_beside_syncs, device.Server, 0.15),
    ("driver step by step", workload.drive_step_by_step, device.Server, 0.1),
    ("batches, bytes late", workload.drive_batches, device.Late, 0.05),
    ("wrapper and zipapp", workload.ship, device.Server, 0.15),
    ("move", workload.drive_and_move, device.Server, 0.15),
)
AGAIN_SHARE, AGAIN_N = 0.15, 3


class Tally:
    """What became of the images of one file system."""

    def __init__(self):
        self.images_n = self.after_ack_n = self.boundaries_n = self.torn_n = self.lost_n = 0
        self.losses, self.batches = [], []  # sentences; of each recorded batch the calls that made it safe

    def add(self, cut, found, where):
        self.images_n += 1
        self.after_ack_n += cut.is_after_ack
        self.boundaries_n += cut.way == "boundary"
        self.torn_n += cut.way in ("torn", "shredded")
        if found:
            self.lost_n += 1
            self.losses.append("%s, %s: %s" % (where, cut, "; ".join(found)))


class Run:
    """One run of the bench. rng: seeded, and the seed is printed."""

    def __init__(self, options):
        self.options = options
        self.rng = random.Random(options.seed)
        self.bench = device.Bench()
        self.root = self.bench.root

    # --- recording

    def record(self, fs, write, base, name, make_server=device.Server):
        log = "%s/%s.log" % (self.root, name)
        seed = self.rng.random()
        run, etc = ("%s/%s.%d" % (self.root, word, os.getpid()) for word in ("run", "etc"))
        extra = (etc,) if write in (workload.ship, doubt.refuse) else ()

        def recorded(mount, mark):
            write(mount, mark, run, random.Random(seed), *extra)

        try:
            self.bench.record(base, log, fs.kind, fs.options, recorded, make_server)
        finally:
            shutil.rmtree(run, ignore_errors=True)
        return log

    # --- checking

    def check(self, fs, log, base, cuts, tally, where):
        """Mount and judge the images of `cuts`, on as many processors as there are."""
        jobs = min(self.options.jobs, len(cuts)) or 1
        results = ["%s/result.%d" % (self.root, job) for job in range(jobs)]
        seeds = [self.rng.random() for _ in cuts]
        children = [device.spawn(lambda job=job: self._check_some(
            fs, log, base, list(zip(cuts, seeds))[job::jobs], job, results[job])) for job in range(jobs)]
        codes = [device.await_child(pid, CHECK_LIMIT_S) for pid in children]
        if any(codes):
            raise RuntimeError("%s: a checker ended with %s" % (where, codes))
        for job in range(jobs):
            with open(results[job]) as file:
                for cut, found in zip(cuts[job::jobs], json.load(file)):
                    tally.add(cut, found, where)

    def _check_some(self, fs, log, base, cuts, job, result):
        device.own_mounts()
        image, mount, run = ("%s/%s.%d" % (self.root, word, job) for word in ("image", "mount", "run"))
        os.makedirs(mount, exist_ok=True)
        builder = Builder(log, base, image)
        loop = device.Loop(image, self.root + "/dev")
        answers = []
        try:
            for cut, seed in cuts:
                builder.build(cut)
                notes = [note for note in log.notes_before(cut.end) if fs.is_gate or json.loads(note)["k"] != "whole"]
                answers.append(self._judge(fs, loop, mount, run, notes, random.Random(seed)))
                if answers[-1] and self.options.keep:
                    self._keep(fs, builder, cut, answers[-1], log)
        finally:
            loop.detach()
        with open(result, "w") as file:
            json.dump(answers, file)

    def _judge(self, fs, loop, mount, run, notes, rng):
        try:
            device.mount(loop.path, mount, fs.kind, 0, fs.check_options)
        except OSError as error:
            return ["it does not mount: %s" % error]
        try:
            return facts.judge(mount, run, notes, rng)
        except Exception as error:  # a bug of edgeq or of the bench: as good as a loss
            line = error.__traceback__
            while line.tb_next:
                line = line.tb_next
            return ["%s: %s (%s:%d)" % (type(error).__name__, error, line.tb_frame.f_code.co_filename, line.tb_lineno)]
        finally:
            device.forget_changes(mount)
            device.umount(mount)

    def _keep(self, fs, builder, cut, found, log):
        """The image as the cut left it, and its story, for whoever looks for the cause."""
        name = "%s/%s-%d-%d" % (self.options.keep, fs.name.replace(" ", "-"), cut.end, os.getpid())
        builder.build(cut)
        shutil.copy(builder.path, name + ".img")
        with open(name + ".txt", "w") as file:
            file.write("%s\n%s\n\n" % (cut, "\n".join(found)))
            file.writelines(note.decode() + "\n" for note in log.notes_before(cut.end))

    # --- the whole

    def prove(self, fs, base):
        """{canary: (images, losses)}."""
        found = {}
        for name, (make_disk, make_store, make_server) in workload.CANARIES.items():
            def write(mount, mark, run, rng):
                workload.drive(mount, mark, run, rng, make_disk, make_store, boots=1, steps=20)

            tally = Tally()
            log = Log(self.record(fs, write, base, "canary", make_server))
            cuts = choose(log, self.rng, CANARY_IMAGES, facts.is_ack)
            self.rng.shuffle(cuts)
            while cuts and not tally.lost_n:
                self.check(fs, log, base, sorted(cuts[:CANARY_IMAGES], key=lambda cut: cut.safe), tally, name)
                del cuts[:CANARY_IMAGES]
            found[name] = (tally.images_n, tally.lost_n)
        return found

    def repeat(self, fs, base, escaped, unsafe):
        """Enqueues whose write the disk refused once, and their repeats (doubt.py)."""
        missing, repeats_n, caught_n = doubt.examine(self, fs, base)
        print("refused  %-20s %5d enqueues, repeated after the error: lost %d; the clean page believed: caught %d of 2" % (
            fs.name, repeats_n, len(missing), caught_n), flush=True)
        for sentence in missing:
            print("    LOST %s" % sentence, flush=True)
        unsafe += missing
        if not caught_n:
            escaped.append("the clean page believed on %s" % fs.name)

    def examine(self, fs, base):
        """The Tally of a file system."""
        tally, images = Tally(), self.options.images * fs.share
        for name, write, make_server, share in WORKLOADS:
            if self.options.only and self.options.only not in name and write is not workload.drive:
                continue
            log = Log(self.record(fs, write, base, "log", make_server))
            tally.batches += batch_calls(log)
            self._examine(fs, log, base, images * share, tally, name)
            if write is workload.drive:
                first = log
        for _ in range(AGAIN_N):
            cut = self.rng.choice(choose(first, self.rng, 50, facts.is_ack))
            second = self.root + "/second"
            Builder(first, base, second).build(cut)
            log = Log(self.record(fs, workload.again, second, "log"), first.notes_before(cut.end))
            self._examine(fs, log, second, images * AGAIN_SHARE / AGAIN_N, tally, "the boot after a cut")
        return tally

    def _examine(self, fs, log, base, images, tally, name):
        boundaries = len(log.flushes)
        cuts = choose(log, self.rng, int(max(images - boundaries, images / 2, 10)), facts.is_ack)
        if not fs.is_gate:
            cuts = sorted(self.rng.sample(cuts, min(int(images) + 5, len(cuts))), key=lambda cut: cut.safe)
        began = time.monotonic()
        self.check(fs, log, base, cuts, tally, "%s, %s" % (fs.name, name))
        if self.options.verbose:
            print("  %-20s %-22s writes %5d flushes %4d notes %4d images %4d  %.1f s" % (
                fs.name, name, len(log.writes), boundaries, len(log.notes), len(cuts), time.monotonic() - began), flush=True)

    def go(self):
        """The exit code."""
        began = time.monotonic()
        tallies, escaped, unsafe = {}, [], []
        for fs in FILE_SYSTEMS:
            base = self.root + "/base"
            fs.format(base)
            if fs.is_gate:
                for name, (images_n, lost_n) in self.prove(fs, base).items():
                    print("canary   %-20s %-38s caught in %d of %d images" % (fs.name, name, lost_n, images_n), flush=True)
                    if not lost_n:
                        escaped.append("%s on %s" % (name, fs.name))
                self.repeat(fs, base, escaped, unsafe)
            try:
                tally = tallies[fs] = self.examine(fs, base)
            except RuntimeError as error:
                if fs.is_gate:
                    raise
                print("images   %-20s not a gate, and it could not be recorded: %s" % (fs.name, error))
                continue
            print("images   %-20s %5d: %d at flushes, %d after an acknowledgement, %d torn; lost %d%s" % (
                fs.name, tally.images_n, tally.boundaries_n, tally.after_ack_n, tally.torn_n, tally.lost_n,
                "" if fs.is_gate else " (reported, not a gate)"), flush=True)
            for loss in tally.losses[:self.options.show]:
                print("    LOST %s" % loss[:1500], flush=True)
            by_fsync = tally.batches.count(["sync_file_range"])
            print("batches  %-20s %5d: %d by one fsync" % (fs.name, len(tally.batches), by_fsync), flush=True)
            if fs.is_gate and not 0 < by_fsync == len(tally.batches):
                unsafe.append("a batch on %s went by %s" % (fs.name, tally.batches))
                print("    UNSAFE %s" % unsafe[-1], flush=True)
        gated = [tally for fs, tally in tallies.items() if fs.is_gate]
        images_n, lost_n = sum(tally.images_n for tally in gated), sum(tally.lost_n for tally in gated)
        print("crash images: %d checked, %d lost, canaries %s; seed %d, %.0f s" % (
            images_n, lost_n, "not caught: " + ", ".join(escaped) if escaped else "all caught", self.options.seed,
            time.monotonic() - began), flush=True)
        if images_n < self.options.images:
            print("only %d images, not %d" % (images_n, self.options.images))
        return 1 if lost_n or escaped or unsafe or images_n < self.options.images else 0


def batch_calls(log):
    """[[call]] of the batches in a log."""
    notes = (json.loads(log.entries[at][2]) for at in log.notes)
    return [note["calls"] for note in notes if note["k"] == "batch"]


# --- what this machine must have -----------------------------------------------------------------------------


def missing():
    """[sentence] of what is not here."""
    found = []
    if os.geteuid() != 0:
        found.append("root: run as root")
    for command, package in (("mkfs.ext4", "e2fsprogs"), ("mkfs.xfs", "xfsprogs"), ("busybox", "busybox-static"),
                             ("flock", "util-linux")):
        if not shutil.which(command):
            found.append("%s: apt-get install %s" % (command, package))
    for path, why in (("/dev/fuse", "modprobe fuse"), ("/dev/loop-control", "modprobe loop")):
        if not os.path.exists(path):
            found.append("%s: %s" % (path, why))
    with open("/proc/filesystems") as file:
        known = file.read().split()
    for kind in ("fuse", "ext4", "xfs"):
        if kind not in known and subprocess.call(["modprobe", kind], stderr=subprocess.DEVNULL):
            found.append("the file system %s: modprobe %s" % (kind, kind))
    if not os.path.exists(workload.REPO + "/dist/edgeq.pyz"):
        found.append("dist/edgeq.pyz: make pyz")
    return found


def main(argv):
    parser = argparse.ArgumentParser(prog="bench", description="crash images of edgeq")
    parser.add_argument("--full", action="store_true", help="%d images" % FULL_IMAGES)
    parser.add_argument("--images", type=int, help="how many images at least (%d)" % IMAGES)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="checkers at once")
    parser.add_argument("--keep", help="folder for the images that lost something")
    parser.add_argument("--show", type=int, default=5, help="losses to tell of each file system")
    parser.add_argument("--only", help="recordings whose name holds this, for whoever looks for a cause")
    parser.add_argument("--verbose", action="store_true", help="a line for each recording")
    parser.add_argument("--with-parent", action="store_true", help="end when whoever started us ends")
    parser.add_argument("--clean", action="store_true", help="only detach what a killed run left")
    options = parser.parse_args(argv)
    options.images = options.images or (FULL_IMAGES if options.full else IMAGES)
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    lacking = missing()
    if lacking:
        print("crash images need: " + "; ".join(lacking), file=sys.stderr)
        return UNAVAILABLE
    if options.with_parent:
        device.die_with_parent(os.getppid())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run = Run(options)
    if options.clean:
        print("crash images: %d loop devices of a killed run detached" % run.bench.leftovers_n)
        return 0
    left = ", %d loop devices of a killed run detached" % run.bench.leftovers_n if run.bench.leftovers_n else ""
    print("crash images: seed %d%s" % (options.seed, left), flush=True)
    try:
        return run.go()
    finally:
        run.bench.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
