"""The device edition on what a small board has: docs/python-modules.txt and nothing else of the standard library.

On each Python from 3.11 on that this machine has, and on 3.13, where it has none, from Debian 13's packages (FULL=1: on that in any
case, and on the one of Debian's unstable). The zipapp is the one of dist/, whose byte code is for one of them only.
"""

import os
import re
import shutil
import sys

import pytest

from tests.init.board import wait_for
from tests.shell.conftest import device_bin  # noqa: F401 the fixture
from tests.small.board import ABSENT, SmallBoard
from tests.small.session import Session, with_the_service, without_a_worker
from tools import trim

FULL = os.environ.get("FULL", "") not in ("", "0")
HERE = trim.find_pythons()
SUITES = ["trixie", "sid"] if FULL else [] if 13 in HERE else ["trixie"]
# Part of every interpreter: Modules/Setup.bootstrap.in, Modules/config.c.in and what is frozen (Python/frozen.c)
CORE = set("""_abc _codecs _collections _collections_abc _contextvars _frozen_importlib_external _functools _io _operator _signal
    _sre _stat _types abc builtins codecs errno gc genericpath importlib io itertools
    marshal posix posixpath pwd stat sys time zipimport""".split())

OPTIONAL = {"difflib"}  # "did you mean": tried, and done without


@pytest.fixture(params=sorted(HERE) + SUITES, ids=lambda which: "here-3.%d" % which if which in HERE else "debian-" + which)
def board(request, tmp_path, device_bin):  # noqa: F811
    python = HERE[request.param] if request.param in HERE else trim.debian_python(request.param)
    board = SmallBoard(tmp_path / "board", device_bin, python)
    board.boot()
    yield board
    board.power_off()


def imported(board):
    """Names of all that Python loaded, or tried to, since the noting interpreter is used, edgeq's own left out."""
    text = (board.sh("cat /run/imports").out)
    names = set(re.findall(r"(?m)^import time: +\d+ \| +\d+ \| +(\S+)$", text))
    return {name for name in names if name.split(".")[0] not in ("edgeq", "edgeq_start")}


def test_every_verb_with_the_listed_modules_alone(board):
    """Read-only root, no /tmp, no HOME, no LANG, a library of byte code."""
    ask = ("import sys\nfor name in sys.argv[1:]:\n    try:\n        __import__(name); print(name)\n"
           "    except ImportError:\n        pass")
    there = board.sh('/usr/bin/python3 -IS -c "$0" ' + " ".join(ABSENT), ask).out.split()
    assert set(there) <= {"zlib"}  # Debian has that in the interpreter itself; nothing asks for it, see below
    assert board.sh("ls -d /tmp; echo >/x; echo >/etc/x; env").code == 0
    assert not (board.root / "tmp").exists() and not list(board.root.rglob("*.py"))
    without_a_worker(Session(board))
    with_the_service(Session(board))
    preflight = board.sh("edgeq work --preflight").err
    is_built_for_it = board.python.minor == sys.version_info[1]
    rebuild = "make pyz PYTHON=python3.%d\n" % board.python.minor
    assert preflight.endswith(rebuild) != is_built_for_it, preflight


def test_no_module_is_listed_that_nothing_loads(board):
    without_a_worker(Session(board, "EDGEQ_PYTHON=/usr/bin/noting", is_quiet=False))
    board.start("EDGEQ_PYTHON=/usr/bin/noting exec edgeq guard")
    wait_for(lambda: board.sh("edgeq status").code != 2, "the worker is up")
    listed, found = set(trim.read_modules(board.python.minor)), imported(board)
    assert sorted(found - CORE - OPTIONAL - listed) == [], "docs/python-modules.txt lacks these"
    assert sorted(listed - {"os"} - found) == [], "docs/python-modules.txt has these and nothing loads them"


def test_an_image_is_pruned_to_the_list(tmp_path):
    python = HERE[min(HERE)]
    whole = tmp_path / python.library.name
    shutil.copytree(python.library, whole, symlinks=True, ignore=shutil.ignore_patterns("site-packages", "dist-packages", "test"))
    trim.prune(whole)
    trim.lay_python(python, tmp_path / "root")
    wanted = tmp_path / "root/usr/lib" / python.library.name
    assert listing(whole) == listing(wanted)
    with pytest.raises(SystemExit):
        trim.prune(tmp_path / "root")


def listing(folder):
    return sorted(str(path.relative_to(folder)).replace(".pyc", ".py") for path in folder.rglob("*"))
