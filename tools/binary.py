"""edgeq with its interpreter inside, for boards without Python: dist/edgeq-ARCH/, by PyInstaller.

    python3 tools/binary.py [x86_64 | arm ...]

    edgeq.pyz     what the wrapper and the guard start: a shell script in the zipapp's place
    slim/         the program: a folder, not one file, which would unpack itself into RAM at each start

Put both into /usr/lib/edgeq after `make install`. The modules are those of docs/python-modules.txt.

It is built inside a root made of Debian's packages (tools/image.py). Nothing of this machine's Python is in it, and the glibc of
that Debian is the oldest it runs on (printed). PyInstaller comes from its source, because there is no wheel for 32-bit ARM: its
loader is compiled in the root. ARM runs under qemu-user, which the kernel starts by a binfmt_misc of the build's own user
namespace: nothing is registered on this machine. A kernel before 6.7 cannot do that; there qemu-arm must be registered already.

build/binary/ARCH/log has what the tools said. tests/small/try_binary.py tries the result.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from tools import build_pyz, image, trim  # noqa: E402

REPO = image.REPO
BUILD, DIST = REPO / "build/binary", REPO / "dist"
PACKAGES = "python3 python3-dev gcc libc6-dev binutils libc-bin dash bash coreutils sed grep".split()
WHEELS = "altgraph packaging pyinstaller-hooks-contrib setuptools".split()
QEMU = {"x86_64": None, "arm": "qemu-arm-static"}
# flags P: BusyBox asks for its argv[0]; F: qemu is opened now, it is not in the root
MAGIC = (r":edgeq-arm:M::\x7f\x45\x4c\x46\x01\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x28\x00"
         r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:%s:PF")

LAUNCHER = """#!/bin/sh
# edgeq with its own interpreter, in the place of the zipapp: the program lies in slim/ beside this file.
here=$0
case $here in */*) ;; *) here=./$here ;; esac
exec "${here%/*}/slim/edgeq" "$@"
"""

ENTRY = """import sys
from edgeq.cli import main
sys.exit(main(sys.argv[1:]))
"""

# Analysed as a whole, then filtered: the base modules of PyInstaller cannot be excluded, and most of them nobody asks for.
SPEC = """import os, zipfile
kept = set(%(kept)r)
a = Analysis(["/opt/entry.py"], pathex=["/opt/src"], hiddenimports=%(ours)r, optimize=2,
             excludes=["sqlite3", "redis", "ssl", "json"])
a.pure = [entry for entry in a.pure if entry[0] in kept]
a.binaries = [entry for entry in a.binaries if "/" not in entry[0] and not entry[0].startswith("lib-dynload")
              or os.path.basename(entry[0]).split(".")[0] in kept]
for n, (name, path, kind) in enumerate(a.datas):
    if name == "base_library.zip":
        with zipfile.ZipFile(path) as whole, zipfile.ZipFile("/opt/work/base_library.zip", "w") as slim:
            for entry in whole.namelist():
                if entry.removesuffix(".pyc").removesuffix("/__init__").replace("/", ".") in kept:
                    slim.writestr(zipfile.ZipInfo(entry, (1980, 1, 1, 0, 0, 0)), whole.read(entry))
        a.datas[n] = (name, "/opt/work/base_library.zip", kind)
a.datas = [entry for entry in a.datas if entry[0] == "base_library.zip"]
a.scripts = [entry for entry in a.scripts if not entry[0].startswith("pyi_rth_")]  # hooks for inspect and the like
exe = EXE(PYZ(a.pure), a.scripts, exclude_binaries=True, name="edgeq", strip=True, upx=False)
COLLECT(exe, a.binaries, a.datas, strip=True, upx=False, name="slim")
"""
# What PyInstaller's own loader imports, and the frozen modules of Python, should one not be frozen.
BASE = "os io abc codecs stat posixpath genericpath _collections_abc struct encodings.latin_1 encodings.ascii".split()

ENTER = """set -e
mount --make-rprivate /
root=$1 magic=$2
shift 2
if [ -n "$magic" ]; then
    mount -t binfmt_misc binfmt "$root/mnt" 2>/dev/null && printf %s "$magic" >"$root/mnt/register" ||
        grep -qs ^enabled /proc/sys/fs/binfmt_misc/qemu-arm || { echo "no binfmt_misc for ARM can be had here" >&2; exit 1; }
fi
mount -t proc proc "$root/proc"
for node in null zero full random urandom; do : >"$root/dev/$node"; mount --bind "/dev/$node" "$root/dev/$node"; done
exec chroot "$root" "$@"
"""


def emulation(arch):
    """(the command that makes the namespaces, what binfmt_misc is told) to run programs of `arch`."""
    if QEMU[arch] is None or os.uname().machine.startswith(arch):
        return [image.tool("unshare", "util-linux"), "--mount", "--pid", "--fork", "--kill-child"], ""
    return [sys.executable, str(REPO / "tools/namespace.py")], MAGIC % image.tool(QEMU[arch], "qemu-user-static")


def run_inside(arch, root, script, log):
    apart, magic = emulation(arch)
    words = [*apart, "/bin/sh", "-c", ENTER, "enter", str(root), magic, "/bin/sh", "-c", script]
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "PYTHONPATH": "/opt/pyinstaller:/opt/site",
               "LC_ALL": "C.UTF-8"}
    done = subprocess.run(words, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    if done.returncode:
        log.flush()
        raise SystemExit("binary: %s: exit %d: %s" % (script[:80], done.returncode, Path(log.name).read_text()[-1500:]))


def download():
    """PyInstaller's source and the wheels it needs, from PyPI: their folder."""
    folder = image.CACHE / "pypi"
    wanted = re.search(r'^build = \["(pyinstaller.*?)"\]$', (REPO / "pyproject.toml").read_text(), re.M)[1]
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d", folder]
            image.run(*command, "--no-binary", "pyinstaller", wanted)
            image.run(*command, "--only-binary", ":all:", *WHEELS)
            (folder / "whole").touch()
    return folder


def make_root(arch, root, log):
    """A Debian with a compiler, Python and PyInstaller, its loader compiled."""
    image.unpack_all(image.Apt(arch).fetch_all(PACKAGES), root)
    for name in ("proc", "dev", "mnt", "tmp", "opt/site", "opt/work"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    folder = download()
    (source,) = folder.glob("pyinstaller-*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(root / "opt", filter="data")
    (root / "opt" / source.name.removesuffix(".tar.gz")).rename(root / "opt/pyinstaller")
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(root / "opt/site")
    run_inside(arch, root, "ldconfig && cd /opt/pyinstaller/bootloader && PYI_STATIC_ZLIB=1 python3 ./waf distclean all", log)


def our_modules():
    names = build_pyz.find_modules(str(REPO))
    return sorted(re.sub(r"(/__init__)?\.py$", "", name).replace("/", ".") for name in names if not name.endswith("__main__.py"))


def freeze(arch, root, log):
    shutil.rmtree(root / "opt/src", ignore_errors=True)
    for name in build_pyz.find_modules(str(REPO)):
        target = root / "opt/src" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(build_pyz.without_comments((REPO / name).read_bytes()))
    (root / "opt/entry.py").write_text(ENTRY)
    (binary,) = (path for path in (root / "usr/bin").glob("python3.*") if re.fullmatch(r"python3\.\d+", path.name))
    kept = [*trim.read_modules(int(binary.name.split(".")[1])), *BASE, *our_modules()]
    (root / "opt/edgeq.spec").write_text(SPEC % {"kept": kept, "ours": our_modules()})
    run_inside(arch, root, "cd /opt && python3 -m PyInstaller --distpath /opt/out --workpath /opt/work --noconfirm edgeq.spec", log)


def fingerprint():
    digest = hashlib.sha256()
    for path in [Path(__file__), trim.MODULES] + [REPO / name for name in build_pyz.find_modules(str(REPO))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def build(arch):
    """dist/edgeq-ARCH, unless it is there and of today's source; its path. One builder at a time."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / (arch + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        target, made_of = DIST / ("edgeq-" + arch), fingerprint()
        stamp = BUILD / (arch + ".made-of")
        if stamp.exists() and stamp.read_text() == made_of and target.exists():
            return target
        root = BUILD / arch
        with open(BUILD / (arch + ".log"), "w") as log:
            if not (root / "made").exists():
                shutil.rmtree(root, ignore_errors=True)
                make_root(arch, root, log)
                (root / "made").touch()
            freeze(arch, root, log)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        shutil.copytree(root / "opt/out/slim", target / "slim", symlinks=True)
        prune_libraries(target / "slim")
        image.write(target / "edgeq.pyz", LAUNCHER, 0o755)
        stamp.write_text(made_of)
    return target


def prune_libraries(slim):
    """Remove the shared libraries that only left out extensions asked for."""
    inside = slim / "_internal"
    waiting, needed = [slim / "edgeq", *inside.glob("libpython*.so*"), *inside.rglob("lib-dynload/*.so")], set()
    while waiting:
        for name in trim.read_needs(waiting.pop())[1]:
            if name not in needed and (inside / name).exists():
                needed.add(name)
                waiting.append(inside / name)
    for path in inside.glob("*.so*"):
        if path.name not in needed and not path.name.startswith("libpython"):
            path.unlink()


def glibc_floor(folder):
    """The newest symbol version of glibc that a file below `folder` asks for, as text."""
    found = {(0,)}
    for path in folder.rglob("*"):
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
            found |= {tuple(map(int, v.split(b"."))) for v in re.findall(rb"\0GLIBC_(\d+(?:\.\d+)+)(?=\0)", path.read_bytes())}
    return ".".join(map(str, max(found)))


def describe(arch, folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    archive = BUILD / (folder.name + ".tar.xz")
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(folder, folder.name)
    squashed = trim.squash(folder, BUILD / (folder.name + ".squashfs"))
    return "%s: %d files, %.0f KiB; as tar.xz %.0f, in squashfs (xz) %.0f; glibc %s or newer" % (
        folder.relative_to(REPO), len(files), sum(path.stat().st_size for path in files) / 1024, archive.stat().st_size / 1024,
        squashed / 1024, glibc_floor(folder))


def main(argv):
    for arch in argv or list(QEMU):
        if arch not in QEMU:
            raise SystemExit("binary: %s: not one of %s" % (arch, " ".join(QEMU)))
        print(describe(arch, build(arch)))


if __name__ == "__main__":
    main(sys.argv[1:])
