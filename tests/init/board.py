"""A board without a kernel of its own: BusyBox init as process 1 of a mount and a pid namespace, the device's root file system
laid out as `make install` and Buildroot's skeleton do, S85edgeq and the wrapper run unchanged by BusyBox ash.

Whatever a test leaves running dies with the namespace.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.shell.board import REPO, Result, start_time, tool

LIMIT_S = 120  # for conditions; the machine may be busy
PATH = "/sbin:/usr/sbin:/bin:/usr/bin"  # as rcS gives it
FOLDERS = ("bin dev proc root run tmp data usr/bin usr/lib/edgeq etc/init.d etc/default etc/edgeq/handlers etc/edgeq.conf.d"
           " var/lib").split()

# Buildroot's package/initscripts and skeleton, as far as they matter here.
RC_S = """#!/bin/sh
for i in /etc/init.d/S??*; do
    [ ! -f "$i" ] || "$i" start
done
"""
RC_K = """#!/bin/sh
for i in $(ls -r /etc/init.d/S??*); do
    [ ! -f "$i" ] || "$i" stop
done
"""
INITTAB = """::sysinit:/etc/init.d/rcS
::shutdown:/etc/init.d/rcK
"""

# In the new namespaces: what a board mounts, then init.
SETUP = """set -e
mount -t proc proc "$1/proc"
mount -t tmpfs -o mode=755 tmpfs "$1/run"
mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
mount -t tmpfs -o mode=755 tmpfs "$1/dev"
for node in null zero full random urandom tty; do : >"$1/dev/$node"; mount --bind /dev/$node "$1/dev/$node"; done
ln -s ../tmp/log "$1/dev/log"
while read -r from; do
    if [ -d "$from" ]; then mkdir -p "$1$from"; else mkdir -p "$1${from%/*}"; : >"$1$from"; fi
    mount --bind "$from" "$1$from"
done <"$1/binds"
exec chroot "$1" /bin/init
"""


def wait_for(question, what, limit_s=LIMIT_S):
    """The first true answer of question(), asked again and again."""
    end = time.monotonic() + limit_s
    while True:
        answer = question()
        if answer:
            return answer
        assert time.monotonic() < end, "waited %d s in vain for: %s" % (limit_s, what)
        time.sleep(0.05)


def python_binds():
    """Files and folders of this machine that its Python needs, and the interpreter's path."""
    python = os.path.realpath(sys._base_executable)
    prefix = os.path.realpath(sys.base_prefix)
    library = "%s/lib/python%d.%d" % ((prefix,) + sys.version_info[:2])
    found = [python, library if prefix == "/usr" else prefix + "/lib"]
    found += [path for path in ("/lib64", "/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
                                "/lib/aarch64-linux-gnu") if os.path.isdir(path)]
    return found, python


class Board:
    """A board's root below `root`. boot() starts it; everything else then goes through its own shell."""

    def __init__(self, root, device_bin):
        self.root, self.init, self.started = root, None, []
        for folder in FOLDERS:
            (root / folder).mkdir(parents=True)
        for link, target in (("sbin", "bin"), ("var/run", "../run"), ("var/log", "../tmp"), ("var/spool", "../tmp")):
            (root / link).symlink_to(target)
        shutil.copy(device_bin.parent / "busybox", root / "bin/busybox")
        for applet in device_bin.iterdir():
            (root / "bin" / applet.name).symlink_to("busybox")
        (root / "bin/flock").unlink(missing_ok=True)
        shutil.copy(tool("flock"), root / "bin/flock")
        binds, python = python_binds()
        (root / "binds").write_text("".join(path + "\n" for path in binds))
        (root / "usr/bin/python3").symlink_to(python)
        shutil.copy(REPO / "overlay/usr/bin/edgeq", root / "usr/bin/edgeq")
        shutil.copy(REPO / "dist/edgeq.pyz", root / "usr/lib/edgeq/edgeq.pyz")
        self.write("etc/init.d/S85edgeq", (REPO / "init.d/S85edgeq").read_text(), 0o755)
        self.write("etc/init.d/S01syslogd", "#!/bin/sh\n[ \"$1\" != start ] || syslogd -O /tmp/messages\n", 0o755)
        self.write("etc/init.d/rcS", RC_S, 0o755)
        self.write("etc/init.d/rcK", RC_K, 0o755)
        self.write("etc/inittab", INITTAB)
        self.write("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"
                                 "edgeq:x:871:871:edgeq:/var/lib/edgeq:/bin/false\nann:x:1001:1001::/:/bin/sh\n")
        self.write("etc/group", "root:x:0:\nedgeq:x:871:ann\nann:x:1001:\n")
        self.handler("ok", "cat >/dev/null; echo \"$EDGEQ_ID $EDGEQ_ATTEMPT\" >>/tmp/ran")
        self.configure()

    def write(self, path, text, mode=0o644):
        (self.root / path).write_text(text)
        (self.root / path).chmod(mode)

    def configure(self, **keys):
        """The configuration as shipped, and faster than that; a key of None is left out."""
        lines = {"SAFETY_SCAN_S": 2, "GRACE_S": 2, "LOG": "syslog", "MIN_FREE_KB": 16, "BASE_DELAY_S": 1}
        lines.update(keys)
        self.write("etc/edgeq.conf", "".join("%s=%s\n" % pair for pair in lines.items() if pair[1] is not None))

    def handler(self, type, script):
        self.write("etc/edgeq/handlers/" + type, "#!/bin/sh\n%s\n" % script, 0o755)

    # --- life -------------------------------------------------------------------------------------------

    def boot(self):
        """Start init and wait until it has run rcS."""
        (self.root / "booted").unlink(missing_ok=True)
        self.write("etc/init.d/S99booted", "#!/bin/sh\n[ \"$1\" != start ] || : >/booted\n", 0o755)
        self.console = open(self.root / "console", "ab")
        self.unshare = subprocess.Popen([tool("unshare"), "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private",
                                         "/bin/sh", "-c", SETUP, "setup", str(self.root)], env={"PATH": PATH},
                                        stdin=subprocess.DEVNULL, stdout=self.console, stderr=self.console)
        wait_for(lambda: (self.root / "booted").exists() or self.unshare.poll() is not None, "the board boots")
        assert self.unshare.poll() is None, self.console_text()
        self.init = int(Path("/proc/%d/task/%d/children" % (self.unshare.pid, self.unshare.pid)).read_text().split()[0])
        return self

    def power_off(self):
        """Pull the plug: everything dies at once."""
        if self.init is not None:
            self.unshare.kill()
            for process in [self.unshare] + self.started:
                process.wait(LIMIT_S)
            self.console.close()
            self.init = None

    def console_text(self):
        return (self.root / "console").read_text(errors="replace")

    # --- on the board -------------------------------------------------------------------------------------

    def argv(self, script, *words):
        return [tool("nsenter"), "-t", str(self.init), "-m", "-p", "-r", "-w", "--", "/bin/sh", "-c", script, "sh", *words]

    def sh(self, script, *words, **more):
        return Result(subprocess.run(self.argv(script, *words), env={"PATH": PATH}, stdin=subprocess.DEVNULL, capture_output=True,
                                     timeout=LIMIT_S, **more))

    def start(self, script):
        """A command that goes on running."""
        self.started.append(subprocess.Popen(self.argv(script), env={"PATH": PATH}, stdin=subprocess.DEVNULL,
                                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return self.started[-1]

    def s85(self, verb):
        return self.sh("/etc/init.d/S85edgeq " + verb)

    def enqueue(self, *words):
        result = self.sh('edgeq enqueue "$@"', *words)
        assert result.code == 0, result
        return result.out.strip()

    def log(self):
        """What syslogd has written."""
        return self.sh("cat /tmp/messages.0 /tmp/messages 2>/dev/null").out

    def ran(self):
        """Ids that the handlers have noted, one a run."""
        return [line.split()[0] for line in self.sh("cat /tmp/ran 2>/dev/null").out.splitlines()]

    # --- who lives, as the board numbers them -----------------------------------------------------------------

    def processes(self):
        """{pid: arguments} of everything on the board, its first process left out."""
        return {pid: words for pid, (_, words) in self._find_processes().items()}

    def host_pid(self, pid):
        """The number that a process of the board has on this machine."""
        return self._find_processes()[pid][0]

    def _find_processes(self):
        found, mine = {}, os.readlink("/proc/%d/ns/pid" % self.init)
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(path / "ns/pid") != mine:
                    continue
                pid = int(re.search(r"^NSpid:.*\s(\d+)$", (path / "status").read_text(), re.M)[1])
                words = (path / "cmdline").read_bytes().replace(b"\0", b" ").replace(b"\n", b" ").decode(errors="replace").strip()
            except OSError:
                continue  # it has just gone
            if pid > 1 and words:
                found[pid] = int(path.name), words
        return found

    def workers(self, queue="default"):
        return [pid for pid, words in self.processes().items()
                if "edgeq_start" in words and " work --queue %s " % queue in words + " "]

    def guards(self, queue="default"):
        return [pid for pid, words in self.processes().items() if "# edgeq guard --queue %s " % queue in words]

    def sleeps(self, seconds):
        return [pid for pid, words in self.processes().items() if words.split() == ["sleep", str(seconds)]]

    def await_worker(self, queue="default"):
        """The one worker, up and asleep."""
        def up():
            found = self.workers(queue)
            if len(found) != 1:
                return None
            here = "/run/edgeq/%s/wake/%d-" % (queue, found[0])
            return found[0] if self.sh("ls %s*.asleep" % here).code == 0 else None
        return wait_for(up, "one worker that sleeps")

    def status(self, queue="default"):
        """The status line's fields."""
        line = self.sh("edgeq status --queue " + queue).out
        return dict(re.findall(r'(\w+)=("[^"]*"|\S*)', line))


__all__ = ["Board", "wait_for", "start_time", "LIMIT_S"]
