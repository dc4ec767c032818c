"""The program with its own interpreter (tools/binary.py) in a root that has BusyBox and libc and nothing else.

`make test` tries the one of this machine's kind when it was built; `make check-binary` builds both and tries them, ARM under qemu-user.
"""

import os
import re
import shutil

import pytest

from tests.init.board import wait_for
from tests.shell.board import REPO
from tests.shell.conftest import device_bin  # noqa: F401 the fixture
from tests.small.board import SETUP, SmallBoard
from tests.small.session import Session, with_the_service, without_a_worker
from tools import binary, image, trim

ARCHS = os.environ.get("EDGEQ_BINARIES", "").split()


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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", ARCHS)
def test_enqueue_work_kill_recover_status(arch, tmp_path, device_bin):  # noqa: F811
    board = BinaryBoard(tmp_path / "board", device_bin, arch)
    board.boot()
    try:
        assert not [path for path in board.root.rglob("*") if re.search(r"python3?(\.\d+)?$", path.name) and path.is_file()]
        without_a_worker(Session(board))
        with_the_service(Session(board))
        recovers_what_a_kill_left(board)
        print("\n" + binary.describe(arch, board.program))
    finally:
        board.power_off()


def recovers_what_a_kill_left(board):
    """Guard and worker are killed in the middle of a job; the next start runs it again and says that it may have run."""
    board.write("etc/edgeq/handlers/once", "#!/bin/sh\n[ \"$EDGEQ_REDELIVERED\" = 1 ] || { : >/run/began; exec sleep 611; }\n"
                "echo \"$EDGEQ_ID $EDGEQ_ATTEMPT\" >>/run/ran\n", 0o755)
    assert board.s85("start").code == 0
    board.await_worker()
    board.enqueue("once", "--id", "again")
    wait_for(lambda: board.sh("[ -e /run/began ]").code == 0, "the job runs")
    board.sh("kill -KILL %s" % " ".join(map(str, board.guards() + board.workers())))
    assert board.s85("start").code == 0
    wait_for(lambda: "again" in board.ran(), "the job ran again")
    assert not board.sleeps(611)  # what the dead worker left was ended first (P5)
    wait_for(lambda: int(board.status()["done"]) >= 1 and board.status()["processing"] == "0", "it is recorded")
    assert board.sh("edgeq status").code == 0 and board.s85("stop").code == 0
