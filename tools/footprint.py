"""What edgeq costs a board, next to the bare interpreter, measured in the same run: here, and on 32-bit ARM under QEMU.

    python3 tools/footprint.py [--json] [--no-arm] [--jobs N] [--waiting N] [--pairs N] [--gate]

start      CPU of `edgeq.pyz work --once` on an empty spool, against `python -IS -c pass`:
           the median over pairs that ran one after the other (user + system, by wait4)
import     the same for importing the worker and no more
dirty      Private_Dirty of an idle worker, blocked in poll, against an interpreter
           blocked in read: RAM that cannot be dropped. RSS counts shared text too
growth     of dirty after N jobs; and dirty of a worker that found N jobs waiting
CPU a job  of the worker alone: what its handlers use is not in it
on demand  dirty of the guard, when it is alone; CPU of a burst of one job, from the poke
           until the guard is alone again
size       the zipapp as it is, and as a squashfs root keeps it
idle       calls that write below the spool, and wake-ups, over some safety scans

On ARM the image of tools/image.py boots with -icount: its clock counts instructions, so the ratios are those of the program and
do not depend on this machine. tools/probe.py measures in both places.

Figures over their aim are marked; --gate makes them exit 1.
"""

import argparse
import ast
import json
import os
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, REPO)
from tools import image  # noqa: E402

PYZ = os.path.join(REPO, "dist", "edgeq.pyz")
BUILDER = os.path.join(REPO, "tools/build_pyz.py")
WRAPPER = os.path.join(REPO, "dist/edgeq")
PROBE = os.path.join(REPO, "tools/probe.py")
RAM = "/dev/shm"
LIMIT_S, ARM_LIMIT_S = 300, 1800
SCANS = 4
BURSTS, ARM_JOBS = 5, 500
KB = 1024

WRITES = set("""
    open openat openat2 creat write writev pwrite64 pwritev truncate ftruncate fallocate
    rename renameat renameat2 unlink unlinkat mkdir mkdirat rmdir link linkat symlink symlinkat
    chmod fchmod fchmodat chown fchown fchownat utimensat fsync fdatasync sync syncfs sync_file_range
""".split())


def stop(message):
    raise SystemExit("footprint: " + message)


def need(tool, package):
    path = shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/sbin")
    return path or stop("no %s here: apt-get install %s" % (tool, package))


def cpu_ms(command, environment):
    """User and system time of one run, which must succeed."""
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = child.stderr.read().decode()
    child.stderr.close()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        stop("%s: exit %d: %s" % (" ".join(command), child.returncode, said.strip()))
    return (usage.ru_utime + usage.ru_stime) * 1000


def pair_runs(bare, ours, environment, pairs):
    """(median ms of bare, of ours, median of the ratios); the first pair warms up."""
    runs = [(cpu_ms(bare, environment), cpu_ms(ours, environment)) for _ in range(pairs + 1)][1:]
    return {"bare_ms": statistics.median(b for b, _ in runs), "ms": statistics.median(o for _, o in runs),
            "ratio": statistics.median(o / b for b, o in runs)}


def wait_for(question, what, process):
    end = time.monotonic() + LIMIT_S
    while not question():
        if process.poll() is not None:
            stop("the process ended, exit %d, before %s" % (process.returncode, what))
        if time.monotonic() > end:
            stop("waited %d s in vain for this: %s" % (LIMIT_S, what))
        time.sleep(0.05)


def sleeps(pid):
    with open("/proc/%d/stat" % pid) as f:
        return f.read().rpartition(")")[2].split()[0] == "S"


class Place:
    """A spool, a configuration and a handler that does nothing."""

    def __init__(self, root, python):
        self.root, self.python = root, python
        self.environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "EDGEQ_PYTHON": python,
                            "EDGEQ_CONF": os.path.join(root, "edgeq.conf")}
        for name in ("spool", "run", "handlers"):
            os.mkdir(os.path.join(root, name))
        shutil.copy("/bin/true", os.path.join(root, "handlers", "noop"))
        self.configure(SAFETY_SCAN_S=60)

    def configure(self, **keys):
        with open(self.environment["EDGEQ_CONF"], "w") as f:
            f.write("SPOOL={0}/spool\nRUN_DIR={0}/run\nHANDLERS={0}/handlers\nLOG=stderr\nMIN_FREE_KB=16\n".format(self.root))
            f.writelines("%s=%s\n" % pair for pair in keys.items())

    def command(self, *words):
        return ["/bin/sh", PYZ, *words]

    def start_worker(self):
        with open(os.path.join(self.root, "log"), "a") as log:
            worker = subprocess.Popen(self.command("work"), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.wait_idle(worker)
        return worker

    def wait_idle(self, worker):
        """Until the worker sleeps in its poll, having said so."""
        wake = os.path.join(self.root, "run/default/wake")
        wait_for(lambda: os.path.isdir(wake) and any(n.endswith(".asleep") for n in os.listdir(wake)) and sleeps(worker.pid),
                 "the worker sleeps", worker)

    def stop_worker(self, worker):
        worker.send_signal(signal.SIGTERM)
        if worker.wait(LIMIT_S):
            stop("the worker ended with exit %d" % worker.returncode)


def measure_import(place, pairs):
    bare = [place.python, "-IS", "-c", "pass"]
    imported = [place.python, "-IS", "-c", "import sys; sys.path.insert(0, sys.argv[1]); import edgeq.worker", PYZ]
    return pair_runs(bare, imported, place.environment, pairs)


def measure_costs(place, jobs, waiting, pairs):
    """What tools/probe.py finds on this machine."""
    root = os.path.join(place.root, "probe")
    os.mkdir(root)
    if not os.access(RAM, os.W_OK):
        stop("no %s to write to: the RAM folder of a board is on a tmpfs" % RAM)
    with tempfile.TemporaryDirectory(prefix="edgeq-footprint-", dir=RAM) as ram:
        words = [place.python, "-IS", PROBE, root, ram, PYZ, WRAPPER, str(jobs), str(waiting), str(pairs), str(BURSTS),
                 need("busybox", "busybox-static"), "sh"]
        return read_probe(subprocess.run(words, capture_output=True, text=True))


def read_probe(done):
    if done.returncode:
        stop("probe.py: exit %d: %s" % (done.returncode, done.stderr.strip()))
    return ast.literal_eval(done.stdout.strip().splitlines()[-1])


def measure_arm(jobs, waiting, pairs):
    """The same in the ARM image, by its console. The data partition brings probe.py along."""
    folder = image.build("arm")
    with tempfile.TemporaryDirectory(prefix="edgeq-footprint-") as root:
        os.mkdir(root + "/files")
        shutil.copy(PROBE, root + "/files")
        data = root + "/data.img"
        with open(data, "wb") as file:
            file.truncate(64 << 20)
        subprocess.run([image.tool("mkfs.ext4", "e2fsprogs"), "-q", "-F", "-N", "16384", "-d", root + "/files", data], check=True)
        command = image.qemu("arm", data) + ["-icount", "shift=5,sleep=off"]
        with open(folder / "footprint.log", "wb") as transcript:
            return ask_board(command, transcript, (jobs, waiting, pairs, BURSTS))


def ask_board(command, transcript, numbers):
    line = ("/etc/init.d/S85edgeq stop; mkdir /data/probe /run/probe; python3 -IS /data/probe.py /data/probe /run/probe"
            " /usr/lib/edgeq/edgeq.pyz /usr/bin/edgeq %d %d %d %d /bin/sh 2>&1; echo END $?\n" % numbers)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as qemu:
        try:
            said = ""
            for what in ("CONSOLE is ready", "\nEND "):
                end = time.monotonic() + ARM_LIMIT_S
                while what not in said:
                    if not select.select([qemu.stdout], [], [], 1)[0]:
                        if time.monotonic() > end or qemu.poll() is not None:
                            stop("the ARM board did not answer; its console ends: " + said[-500:])
                        continue
                    part = os.read(qemu.stdout.fileno(), 65536).replace(b"\r", b"")
                    transcript.write(part)
                    said += part.decode("utf-8", "replace")
                if what.startswith("CONSOLE"):
                    qemu.stdin.write(line.encode())
                    qemu.stdin.flush()
        finally:
            qemu.kill()
    found = re.search(r"(?m)^\{'jobs_n'.*\}$", said)
    return ast.literal_eval(found[0]) if found else stop("no figures from the ARM board: " + said[-500:])


def measure_idle(place):
    """What an idle worker does in SCANS safety scans of 1 s: calls, returns of poll, calls that write below the spool."""
    strace = need("strace", "strace")
    place.configure(SAFETY_SCAN_S=1)
    worker = place.start_worker()
    trace = os.path.join(place.root, "trace")
    tracer = subprocess.Popen([strace, "-f", "-y", "-qq", "-o", trace, "-p", str(worker.pid)], stderr=subprocess.DEVNULL)
    wait_for(lambda: tracer_of(worker.pid), "strace has attached", tracer)
    time.sleep(SCANS)                                                   # the window itself, not a wait for something
    tracer.send_signal(signal.SIGINT)
    tracer.wait()
    place.stop_worker(worker)
    with open(trace) as f:
        calls = [line.split(None, 1)[1] for line in f if "(" in line and "<detached" not in line]
    waits = [call for call in calls if re.match(r"(p?poll|epoll_p?wait|p?select6?|restart_syscall)\(", call)]
    writes = [call for call in calls if call.split("(")[0] in WRITES and place.root + "/spool" in call
              and not re.search(r" = -1 E\w+ ", call)                   # a call that failed wrote nothing
              and (not call.startswith("open") or re.search(r"O_WRONLY|O_RDWR|O_CREAT", call))]
    return {"scans": SCANS, "calls_a_scan": len(calls) / SCANS, "wakeups_a_scan": len(waits) / SCANS,
            "writes_below_spool": len(writes), "writes": [call.strip() for call in writes[:5]]}


def tracer_of(pid):
    with open("/proc/%d/status" % pid) as f:
        return int(re.search(r"^TracerPid:\s+(\d+)", f.read(), re.M)[1])


def measure_size(place):
    mksquashfs = need("mksquashfs", "squashfs-tools")
    entries = zipfile.ZipFile(PYZ).infolist()
    sizes = {"zipapp": os.path.getsize(PYZ), "byte_code": sum(e.file_size for e in entries if e.filename.endswith(".pyc")),
             "source": sum(e.file_size for e in entries if e.filename.endswith(".py"))}
    lean = os.path.join(place.root, "lean.pyz")
    subprocess.run([place.python, BUILDER, "--no-source", "--no-sqlite", "-o", lean], check=True, stdout=subprocess.DEVNULL)
    sizes["lean"] = os.path.getsize(lean)
    for name, file in (("", PYZ), ("lean_", lean)):
        for kind in ("xz", "gzip"):
            image = os.path.join(place.root, kind)
            subprocess.run([mksquashfs, file, image, "-comp", kind, "-noappend", "-nopad", "-all-root"], check=True,
                           stdout=subprocess.DEVNULL)
            sizes[name + "squashfs_" + kind] = os.path.getsize(image)
    return sizes


def list_modules(place):
    """What the worker adds to the modules of the bare interpreter, ours and the standard library's."""
    code = ("import sys; bare = set(sys.modules); sys.path.insert(0, sys.argv[1]); from edgeq.cli import main;"
            " main(['work', '--once']); print(*sorted(set(sys.modules) - bare))")
    names = subprocess.run([place.python, "-IS", "-c", code, PYZ], env=place.environment, check=True, capture_output=True,
                           text=True).stdout.split()
    ours = [name for name in names if name.split(".")[0] == "edgeq"]
    return {"edgeq": ours, "stdlib": [name for name in names if name not in ours]}


def measure(python, pairs, jobs, waiting, arm):
    if not os.path.exists(PYZ):
        stop("no %s: make pyz" % PYZ)
    with tempfile.TemporaryDirectory(prefix="edgeq-footprint-") as root:
        place = Place(root, python)
        version = subprocess.run([python, "-IS", "-V"], capture_output=True, text=True).stdout.strip()
        figures = {"python": version, "machine": os.uname().machine, "import": measure_import(place, pairs),
                   "costs": {os.uname().machine: measure_costs(place, jobs, waiting, pairs)}, "idle": measure_idle(place),
                   "size": measure_size(place), "modules": list_modules(place)}
    if arm:
        # with instructions counted, one run is like the other; emulated jobs are slow
        figures["costs"]["ARM"] = measure_arm(min(jobs, ARM_JOBS), waiting, min(pairs, 3))
    return figures


# what, unit, aim (on ARM another one), how to get it from what the probe found
COSTS = (
    ("start: bare", "ms CPU", None, lambda c: c["start"]["bare_ms"]),
    ("start: work --once", "ms CPU", None, lambda c: c["start"]["ms"]),
    ("start: ratio", "x", 1.8, lambda c: c["start"]["ratio"]),
    ("dirty: bare, idle", "KiB", None, lambda c: c["bare"]["dirty"]),
    ("dirty: worker, idle", "KiB", None, lambda c: c["jobs"]["idle"]["dirty"]),
    ("dirty: over bare", "KiB", {"ARM": 400, "": 600}, lambda c: c["jobs"]["idle"]["dirty"] - c["bare"]["dirty"]),
    ("dirty: growth after %(jobs_n)d jobs", "KiB", 256, lambda c: c["jobs"]["after"]["dirty"] - c["jobs"]["idle"]["dirty"]),
    ("dirty: %(waiting_n)d jobs waiting, over bare", "KiB", None, lambda c: c["waiting"]["dirty"] - c["bare"]["dirty"]),
    ("RSS: bare", "KiB", None, lambda c: c["bare"]["rss"]),
    ("RSS: worker", "KiB", None, lambda c: c["jobs"]["idle"]["rss"]),
    ("CPU of the worker a job", "us", {"": 200}, lambda c: c["jobs"]["cpu_us"]),
    ("  of a bare start", "x", None, lambda c: c["jobs"]["cpu_us"] / 1000 / c["start"]["bare_ms"]),
    ("on demand: dirty of the guard, alone", "KiB", 100, lambda c: c["on_demand"]["dirty"]),
    ("on demand: CPU of a burst of one job", "ms", None, lambda c: c["on_demand"]["burst_ms"]),
    ("  of a bare start", "x", None, lambda c: c["on_demand"]["burst_ms"] / c["start"]["bare_ms"]),
)


def rows(figures):
    """(what, machine, value, unit, aim or None)"""
    size, idle = figures["size"], figures["idle"]
    for what, unit, aim, get in COSTS:
        for machine, costs in figures["costs"].items():
            wanted = aim.get(machine, None if machine == "ARM" else aim[""]) if isinstance(aim, dict) else aim
            yield what % costs, machine, get(costs), unit, wanted
    here = figures["machine"]
    yield "import of the worker: ratio", here, figures["import"]["ratio"], "x", None
    yield "modules of the standard library", here, len(figures["modules"]["stdlib"]), "", None
    yield "zipapp, stored", "", size["zipapp"] / KB, "KB", 320
    yield "  of which byte code", "", size["byte_code"] / KB, "KB", 160
    yield "zipapp in squashfs, xz", "", size["squashfs_xz"] / KB, "KB", 110
    yield "zipapp in squashfs, gzip", "", size["squashfs_gzip"] / KB, "KB", None
    yield "zipapp without source and SQLite, stored", "", size["lean"] / KB, "KB", None
    yield "  in squashfs, xz", "", size["lean_squashfs_xz"] / KB, "KB", None
    yield "idle: writes below the spool", here, idle["writes_below_spool"], "", 0
    yield "idle: wake-ups a safety scan", here, idle["wakeups_a_scan"], "", 1 + 1 / idle["scans"]
    yield "idle: system calls a safety scan", here, idle["calls_a_scan"], "", None


def print_table(figures):
    print("footprint of %s, %s on %s; %s" % (os.path.relpath(PYZ, REPO), figures["python"], figures["machine"],
                                             "ARM: Debian's armhf image in QEMU, time in instructions of 32 ns"
                                             if "ARM" in figures["costs"] else "no ARM"))
    for what, machine, value, unit, aim in rows(figures):
        number = "%d" % value if value == int(value) or value >= 1000 else "%.2f" % value if value < 20 else "%.0f" % value
        note = "" if aim is None else "aim <= %g%s" % (aim, "" if value <= aim else "  OVER")
        print(("  %-42s %-7s %9s %-7s %s" % (what, machine, number, unit, note)).rstrip())
    modules = figures["modules"]
    print("  modules of the worker: %d of edgeq and %s" % (len(modules["edgeq"]), " ".join(modules["stdlib"]) or "no other"))
    for call in figures["idle"]["writes"]:
        print("  written while idle: " + call[:100])


def main(argv):
    parser = argparse.ArgumentParser(prog="footprint.py", description="What edgeq costs, next to the bare interpreter.")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--jobs", type=int, default=3000, metavar="N", help="jobs to run before dirty is read again (0: none)")
    parser.add_argument("--waiting", type=int, default=10000, metavar="N", help="jobs that wait when dirty is read once more")
    parser.add_argument("--pairs", type=int, default=21, metavar="N", help="paired runs for the start")
    parser.add_argument("--python", default=os.path.realpath(sys.executable), metavar="PATH",
                        help="the interpreter to measure with")
    parser.add_argument("--gate", action="store_true", help="exit 1 when a figure is over its aim")
    parser.add_argument("--no-arm", action="store_true", help="do not boot the ARM image")
    options = parser.parse_args(argv)
    figures = measure(options.python, options.pairs, options.jobs, options.waiting, not options.no_arm)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print_table(figures)
    over = [what for what, _, value, _, aim in rows(figures) if aim is not None and value > aim]
    return 1 if over and options.gate else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
