"""The program with its own interpreter (tools/binary.py) in a root that has BusyBox and libc and nothing else.

For `make check-binary`, which names this file: building takes minutes, so `make test` does not. EDGEQ_BINARIES=arm: one alone.
"""

import os
import re
import shutil
import subprocess

import pytest

from tests.image.test_boot import STATUS, Machine
from tests.shell.board import REPO
from tests.shell.conftest import device_bin  # noqa: F401 the fixture
from tests.small.board import SETUP, SmallBoard
from tests.small.session import Session, with_the_service, without_a_worker
from tools import binary, image, trim

ARCHS = os.environ.get("EDGEQ_BINARIES", "x86_64 arm").split()


class BinaryBoard(SmallBoard):
    def __init__(self, root, device_bin, arch):  # noqa: F811
        self.arch, self.program = arch, binary.build(arch)
        super().__init__(root, device_bin, None)

    def lay_program(self, _):
        """The program; for another machine its BusyBox too, and the libc that all of it needs."""
        debian = REPO / "build/binary-root" / self.arch
        shutil.rmtree(debian, ignore_errors=True)
        image.unpack_all(image.Apt(self.arch).fetch_all(["busybox-static", "libc6", "util-linux"]), debian)
        if binary.emulation(self.arch)[1]:
            self.replace_busybox(debian / "bin/busybox")
        shutil.copy(debian / "usr/bin/flock", self.root / "bin/flock")
        shutil.copytree(self.program / "slim", self.root / "usr/lib/edgeq/slim", symlinks=True)
        shutil.copy(self.program / "edgeq.pyz", self.root / "usr/lib/edgeq/edgeq.pyz")
        own = {path.name for path in self.program.rglob("*.so*")}
        files = [self.root / "bin/flock", self.program / "slim/edgeq", *self.program.rglob("*.so*")]
        python = trim.Python(debian / "python3", "python3.11", debian, [self.program / "slim/_internal"])
        for name, path in python.find_libraries(files).items():
            if name not in own:
                assert trim.OF_LIBC.match(name.rpartition("/")[2]), "%s is neither in slim/ nor of libc" % name
                target = self.root / (name.lstrip("/") if name.startswith("/") else "usr/lib/" + name)
                shutil.copy(path, target)

    def replace_busybox(self, busybox):
        names = image.applets(busybox)
        for link in (self.root / "bin").iterdir():
            link.unlink()
        shutil.copy(busybox, self.root / "bin/busybox")
        for name in set(names) - {"flock"}:
            (self.root / "bin" / name).symlink_to("busybox")

    def command(self):
        apart, magic = binary.emulation(self.arch)
        setup = SETUP
        if magic:
            setup = SETUP.replace("set -e\n", 'set -e\nmount -t binfmt_misc binfmt "$1/var"\nprintf %s "$3" >"$1/var/register"\n')
        return [*apart, "/bin/sh", "-c", setup, "setup", str(self.root), str(self.data), magic]

    def argv(self, script, *words):
        found = super().argv(script, *words)
        return [found[0], "-U", *found[1:]] if binary.emulation(self.arch)[1] else found

    def workers(self, queue="default"):
        return [pid for pid, words in self.processes().items() if re.search(r"slim/edgeq work --queue %s( |$)" % queue, words)]


@pytest.fixture(params=ARCHS)
def arch(request):
    return request.param


@pytest.mark.timeout(900)
def test_every_verb(arch, tmp_path, device_bin):  # noqa: F811
    board = BinaryBoard(tmp_path / "board", device_bin, arch)
    board.boot()
    try:
        assert not [path for path in board.root.rglob("*") if re.search(r"python3?(\.\d+)?$", path.name) and path.is_file()]
        without_a_worker(Session(board))
        if not binary.emulation(arch)[1]:
            with_the_service(Session(board))  # under qemu-user a process is told another start time of itself than others are
        print("\n" + binary.describe(arch, board.program))
    finally:
        board.power_off()


@pytest.mark.timeout(1800)
def test_enqueue_work_kill_recover_status(arch, tmp_path):
    """On a kernel of its own, in QEMU: guard and worker are killed in the middle of a job, then the power goes."""
    folder = image.build(arch)
    image.build_without_python(arch, binary.build(arch), tmp_path / "root.squashfs")
    with open(tmp_path / "data.img", "wb") as file:
        file.truncate(24 << 20)
    subprocess.run([image.tool("mkfs.ext4", "e2fsprogs"), "-q", "-F", str(tmp_path / "data.img")], check=True)
    with open(folder / "binary.log", "wb") as transcript:
        machine = Machine(arch, tmp_path / "data.img", transcript)
        try:
            kill_and_recover(machine, tmp_path / "root.squashfs")
        finally:
            machine.pull_the_plug()


def kill_and_recover(machine, root):
    machine.power_on(root)
    machine.await_text("Starting edgeq: OK")
    machine.await_console()
    assert machine.do("command -v python3 || ls /usr/bin/python* /usr/lib/python*")[0] != 0
    assert machine.ok("edgeq enqueue note --id first") == "first"
    machine.until("cat /tmp/ran", lambda said: "first " in said)
    machine.ok("edgeq enqueue slow --id slow1")
    machine.until("cat /tmp/began", lambda said: said == "slow1")
    machine.ok("set -- $(cat /run/edgeq/default.guard); kill -KILL $1 $3")
    assert "Starting edgeq: OK" in machine.ok("/etc/init.d/S85edgeq start")
    machine.until("cat /tmp/began", lambda said: said.split() == ["slow1"] * 2)  # it runs again, once
    assert machine.ok("ps | grep -c '[s]leep 600'") == "1"  # and what the dead worker left was ended first (P5)
    acked = [machine.ok("edgeq enqueue note --id n%d" % n) for n in range(5)]
    machine.pull_the_plug()
    machine.power_on(root)
    machine.await_text("Starting edgeq: OK")
    machine.await_console()
    machine.await_done(acked)
    machine.ok("edgeq cancel --running slow1")
    status = machine.until("edgeq status", lambda said: " ready=0 processing=0 " in said)
    assert STATUS.match(status) and " dead=0 " in status and " worker=up " in status
    assert "Stopping edgeq: OK (stopped)" in machine.ok("/etc/init.d/S85edgeq stop")
