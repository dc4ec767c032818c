"""The Redis edition where it is put: `make install`, the systemd units, the Buildroot package's recipe, a Python without ssl."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import redis as redis_py

from tests.redis.bench import QUEUE

REPO = Path(__file__).resolve().parents[2]
REDIS_PY = os.path.dirname(redis_py.__file__)
MAKE = """
BR2_EXTERNAL_EDGEQ_PATH = %(repo)s/buildroot
BR2_PACKAGE_EDGEQ_SPOOL = "/var/lib/edgeq"
BR2_PACKAGE_EDGEQ_QUEUES = "default"
BR2_PACKAGE_EDGEQ_REDIS = y
HOST_DIR = %(root)s/host
TARGET_DIR = %(root)s/target
PYTHON3_VERSION_MAJOR = %(version)s
INSTALL = install
SED = sed -i -e
qstrip = $(strip $(subst ",,$(1)))
include $(BR2_EXTERNAL_EDGEQ_PATH)/package/edgeq/edgeq.mk
%(root)s/build/.stamp:
\t$(EDGEQ_BUILD_CMDS)
\t$(EDGEQ_INSTALL_TARGET_CMDS)
\t@echo 'depends: $(EDGEQ_DEPENDENCIES)'
"""


def copy_tree(target):
    """The source as Buildroot copies it."""
    left_out = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", "tests", "*.egg-info")
    shutil.copytree(REPO, target, ignore=left_out, dirs_exist_ok=True)


def runs(pyz, bench):
    """Whether that file takes a job and runs it."""
    def run(*words):
        return subprocess.run([sys.executable, str(pyz), "--config", str(bench.conf), *words], capture_output=True, text=True,
                              timeout=60, env={"PATH": os.environ["PATH"]})
    assert run("enqueue", "mail", "{}", "--id", "a").stdout == "a\n"
    assert run("work", "--once").returncode == 0
    return bench.ran() == ["a"]


def test_make_install_lays_the_edition_out(bench, tmp_path):
    tree, target = tmp_path / "tree", tmp_path / "target"
    copy_tree(tree)
    done = subprocess.run(["make", "install", "REDIS=1", "DESTDIR=%s" % target, "PYTHON=" + sys.executable, "REDIS_PY=" + REDIS_PY],
                          cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (target / "usr/lib/systemd/system/edgeq-redis@.service").exists()
    assert (target / "usr/share/doc/edgeq/edgeq-supervisor.conf").exists()
    assert (target / "usr/lib/edgeq/edgeq.pyz").exists() and runs(target / "usr/lib/edgeq/edgeq-redis.pyz", bench)


def test_the_buildroot_recipe_builds_and_installs_it(bench, tmp_path):
    """The package's own commands, with this Python as the host's and redis-py where python-redis puts it."""
    version = "%d.%d" % sys.version_info[:2]
    copy_tree(tmp_path / "build")
    (tmp_path / "host/bin").mkdir(parents=True)
    (tmp_path / "host/bin/python3").symlink_to(sys.executable)
    site = tmp_path / ("target/usr/lib/python%s/site-packages" % version)
    shutil.copytree(REDIS_PY, site / "redis", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "Makefile").write_text(MAKE % {"repo": REPO, "root": tmp_path, "version": version})
    done = subprocess.run(["make", "-f", str(tmp_path / "Makefile"), str(tmp_path / "build/.stamp")], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    pyz = tmp_path / "target/usr/lib/edgeq/edgeq-redis.pyz"
    assert "python-redis" in done.stdout.partition("depends: ")[2] and runs(pyz, bench)


@pytest.mark.parametrize("name", sorted(path.name for path in (REPO / "init.d").glob("*.service")))
def test_systemd_takes_the_units(tmp_path, name):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = (REPO / "init.d" / name).read_text()
    for path in ("/usr/lib/edgeq/edgeq-redis.pyz", "/usr/bin/edgeq"):
        text = text.replace("=" + path, "=%s" % program)
    (tmp_path / name).write_text(text)
    tool = shutil.which("systemd-analyze")
    assert tool, "no systemd-analyze: tools/setup-test.sh installs it"
    done = subprocess.run([tool, "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_python_without_ssl_is_told_in_one_line(bench):
    code = ("import sys; sys.modules['ssl'] = sys.modules['_ssl'] = None\n"
            "from edgeq.cli import main; sys.exit(main(['--config', %r, 'enqueue', 'mail', '{}']))" % str(bench.conf))
    done = subprocess.run([sys.executable, "-c", code], env=bench.env(), capture_output=True, text=True)
    assert done.returncode == 78 and done.stderr.count("\n") == 1 and "ssl" in done.stderr
    assert bench.lengths() == (0, 0, 0) and bench.client.exists(QUEUE) == 0
