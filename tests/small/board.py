"""The smallest board: a read-only root with BusyBox, a trimmed Python (tools/trim.py) whose library is byte code only, and edgeq.

No /tmp, no home, nothing in the environment but PATH; only /data and /run can be written. BusyBox init is process 1 of a mount
and a pid namespace, as in tests/init/board.py.
"""

import shutil
import subprocess
from pathlib import Path

from tests.init import board as init
from tests.init.board import PATH, wait_for
from tests.shell.board import REPO, tool
from tools import trim

FOLDERS = ("bin dev proc run data var usr/bin usr/lib usr/lib64 usr/lib/edgeq etc/init.d etc/default etc/edgeq/handlers"
           " etc/edgeq.conf.d")
ABSENT = "zlib ssl sqlite3 decimal _uuid curses multiprocessing".split()

SETUP = """set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount -t tmpfs -o mode=755 tmpfs "$1/run"
mount -t tmpfs -o mode=755 tmpfs "$1/dev"
for node in null zero full random urandom tty; do : >"$1/dev/$node"; mount --bind /dev/$node "$1/dev/$node"; done
ln -s ../run/log "$1/dev/log"
mount --bind "$2" "$1/data"
mount -o remount,bind,ro "$1"
exec chroot "$1" /bin/init
"""

# Names what it imports: the interpreter of the board, with its import times in a file that nothing else goes to.
NOTING = """#!/bin/sh
exec /usr/bin/python3 -X importtime "$@" 2>>/run/imports
"""


class SmallBoard(init.Board):
    def __init__(self, root, device_bin, python, pyz=REPO / "dist/edgeq.pyz"):
        self.root, self.init, self.started, self.python = root, None, [], python
        self.data = root.parent / (root.name + "-data")
        self.data.mkdir()
        for folder in FOLDERS.split():
            (root / folder).mkdir(parents=True)
        for link, target in (("sbin", "bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64"), ("var/run", "../run")):
            (root / link).symlink_to(target)
        shutil.copy(device_bin.parent / "busybox", root / "bin/busybox")
        for applet in device_bin.iterdir():
            (root / "bin" / applet.name).symlink_to("busybox")
        (root / "bin/flock").unlink(missing_ok=True)
        shutil.copy(tool("flock"), root / "bin/flock")
        self.lay_program(pyz)
        shutil.copy(REPO / "overlay/usr/bin/edgeq", root / "usr/bin/edgeq")
        self.write("etc/init.d/S85edgeq", (REPO / "init.d/S85edgeq").read_text(), 0o755)
        self.write("etc/init.d/S01syslogd", "#!/bin/sh\n[ \"$1\" != start ] || syslogd -O /run/messages\n", 0o755)
        self.write("etc/init.d/S99booted", "#!/bin/sh\n[ \"$1\" != start ] || : >/run/booted\n", 0o755)
        self.write("etc/init.d/rcS", init.RC_S.replace("/S??*", "/S[0-79]?*"), 0o755)  # edgeq itself is started by the tests
        self.write("etc/init.d/rcK", init.RC_K, 0o755)
        self.write("etc/inittab", init.INITTAB)
        self.write("etc/passwd", "root:x:0:0:root:/nowhere:/bin/sh\nedgeq:x:871:871:edgeq:/nowhere:/bin/false\n")
        self.write("etc/group", "root:x:0:\nedgeq:x:871:\n")
        self.write("usr/bin/noting", NOTING, 0o755)
        self.handler("ok", "cat >/dev/null; echo \"$EDGEQ_ID $EDGEQ_ATTEMPT\" >>/run/ran")
        self.handler("bad", "echo broken; exit 65")
        self.configure(SPOOL="/data/edgeq", REQUIRE_MOUNT="/data")

    def lay_program(self, pyz):
        """Python and what runs on it."""
        trim.lay_python(self.python, self.root)
        # flock is this machine's: it takes the libraries of the board, which may be newer
        for name, path in trim.Python("/usr/bin/python3", "python3.11").find_libraries([self.root / "bin/flock"]).items():
            target = self.root / (name.lstrip("/") if name.startswith("/") else "usr/lib/" + name)
            if not target.exists():
                shutil.copy(path, target)
        shutil.copy(pyz, self.root / "usr/lib/edgeq/edgeq.pyz")

    def command(self):
        return [tool("unshare"), "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-c", SETUP, "setup",
                str(self.root), str(self.data)]

    def boot(self):
        self.console = open(str(self.root) + ".console", "ab")
        self.unshare = subprocess.Popen(self.command(), env={"PATH": PATH}, stdin=subprocess.DEVNULL, stdout=self.console,
                                        stderr=self.console)
        wait_for(self.is_up, "the board boots")
        return self

    def is_up(self):
        """init has run rcS. Asked from outside: nothing of the board can be entered before."""
        assert self.unshare.poll() is None, Path(str(self.root) + ".console").read_text(errors="replace")
        children = Path("/proc/%d/task/%d/children" % (self.unshare.pid, self.unshare.pid)).read_text().split()
        if not children:
            return False
        self.init = int(children[0])
        return Path("/proc/%d/root/run/booted" % self.init).exists()

    def log(self):
        return self.sh("cat /run/messages.0 /run/messages 2>/dev/null").out

    def ran(self):
        return [line.split()[0] for line in self.sh("cat /run/ran 2>/dev/null").out.splitlines()]
