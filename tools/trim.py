"""How small Python can get: an interpreter with the modules of docs/python-modules.txt and nothing else.

    python3 tools/trim.py [x86_64 | arm ...]     bytes of the parts, and of the whole as squashfs keeps it, with edgeq
    python3 tools/trim.py --prune DIR            remove all else from DIR, the usr/lib/python3.N of an image

From Debian's packages, unpacked and not installed (tools/image.py): what Buildroot would compile is taken ready made, so the
figures are on the safe side: Debian's interpreter has 50 extension modules built in and links libz and libexpat.

Interpreters of other minors for the tests come the same way: debian_python("trixie") and so on.
"""

import fcntl
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from tools import image  # noqa: E402

REPO = image.REPO
MODULES = REPO / "docs/python-modules.txt"
PYZ = REPO / "dist/edgeq.pyz"


def read_modules(minor):
    """{name: python | c} for Python 3.minor."""
    lines = (line.split() for line in MODULES.read_text().splitlines() if line and not line.startswith("#"))
    return {words[0]: words[1] for words in lines if int(words[2].partition(".")[2]) <= minor}


# --- ELF, as far as it says what it needs -------------------------------------------------------------------------


def read_needs(path):
    """(the loader's path or None, names of the shared libraries) of an ELF file."""
    data = Path(path).read_bytes()
    is_64 = data[4] == 2
    head, size = (0x20, "<Q") if is_64 else (0x1c, "<I")
    (start,) = struct.unpack_from(size, data, head)
    entry_size, entries_n = struct.unpack_from("<HH", data, 0x36 if is_64 else 0x2a)
    loader, segments, dynamic = None, [], None
    for at in range(start, start + entry_size * entries_n, entry_size):
        if is_64:
            kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, at)
        else:
            kind, offset, address, _, length = struct.unpack_from("<IIIII", data, at)
        if kind == 1:
            segments.append((address, offset, length))
        elif kind == 2:
            dynamic = (offset, length)
        elif kind == 3:
            loader = data[offset:offset + length].rstrip(b"\0").decode()
    tags = []
    if dynamic:
        width = struct.Struct("<qQ" if is_64 else "<iI")
        tags = [width.unpack_from(data, at) for at in range(dynamic[0], sum(dynamic), width.size)]
    names = 0
    for tag, value in tags:
        if tag == 5:  # DT_STRTAB, an address
            names = next(value - address + offset for address, offset, length in segments if address <= value < address + length)
    return loader, [data[names + value:data.index(b"\0", names + value)].decode() for tag, value in tags if tag == 1]


# --- interpreters -------------------------------------------------------------------------------------------------


class Python:
    """An interpreter, wherever it lies. root: of the file system that its libraries come from."""

    def __init__(self, binary, library, root=Path("/"), library_path=()):
        self.binary, self.library, self.root = Path(binary), Path(library), Path(root)
        self.minor = int(re.fullmatch(r"python3\.(\d+)", self.library.name)[1])
        self.name = "%s 3.%d" % ("debian" if self.root != Path("/") else "here", self.minor)
        self.folders = [*map(Path, library_path)] + [
            path for base in ("lib", "usr/lib") for path in [*sorted((self.root / base).glob("*-linux-gnu*")), self.root / base]]

    def find_libraries(self, paths):
        """{name: path} of the shared libraries that `paths` need, and theirs; the loader under the name it is asked for."""
        found, waiting = {}, list(paths)
        while waiting:
            loader, names = read_needs(waiting.pop())
            if loader:
                found[loader] = self.root / loader.lstrip("/")
            for name in names:
                if name not in found and not name.startswith("ld-linux"):
                    path = next((folder / name for folder in self.folders if (folder / name).exists()), None)
                    if path is None:
                        raise SystemExit("trim: %s: no %s in %s" % (self.binary, name, " ".join(map(str, self.folders))))
                    found[name] = path
                    waiting.append(path)
        return found

    def command(self, *words):
        """What runs it on this machine where it lies, with its whole library."""
        head = []
        if self.root != Path("/"):
            loader, _ = read_needs(self.binary)
            head = [self.root / loader.lstrip("/"), "--library-path", ":".join(map(str, self.folders))]
        return [*map(str, head), str(self.binary), *words]

    def compile(self, folder):
        """Byte code in the place of every module below `folder`, as Buildroot does by default."""
        command = self.command() if self.minor != sys.version_info[1] else [sys.executable]
        image.run(*command, "-m", "compileall", "-q", "-b", "--invalidation-mode", "unchecked-hash", "-s", folder, folder)
        for path in Path(folder).rglob("*.py"):
            path.unlink()


def find_pythons():
    """The interpreters of this machine, one a minor from 3.11 on."""
    ask = ("import sys, os; print(os.path.realpath(sys.executable), os.path.dirname(os.__file__), sys.base_prefix,"
           " *sys.version_info[:2])")
    found = {}
    for path in [os.path.realpath(sys.executable), "/usr/bin/python3",
                 *map(shutil.which, ("python3.%d" % n for n in range(11, 20))),
                 *sorted(map(str, Path.home().glob(".pyenv/versions/3.*/bin/python3")))]:
        if path and os.access(path, os.X_OK):
            done = subprocess.run([path, "-IS", "-c", ask], capture_output=True, text=True)
            words = done.stdout.split()
            if done.returncode == 0 and words[-2] == "3" and int(words[-1]) >= 11 and int(words[-1]) not in found:
                found[int(words[-1])] = Python(words[0], words[1], library_path=[words[2] + "/lib"])
    return found


def debian_python(suite, arch="x86_64"):
    """The interpreter of a release of Debian (None: of this machine's), below build/python/."""
    root = REPO / "build/python" / ("%s-%s" % (arch, suite or "own"))
    root.parent.mkdir(parents=True, exist_ok=True)
    with open(str(root) + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "made").exists():
            shutil.rmtree(root, ignore_errors=True)
            apt = image.Apt(arch, suite)
            apt.update()
            depends = image.run("apt-cache", *apt.options, "depends", "--no-recommends", "--no-suggests", "python3-minimal")
            (minimal,) = re.findall(r"Depends: (python3\.\d+-minimal)$", depends, re.M)
            names = [minimal, "lib%s-stdlib" % minimal[:-len("-minimal")], "libc6"]
            image.unpack_all(apt.fetch_all(names), root)
            (root / "made").touch()
    (binary,) = (path for path in (root / "usr/bin").glob("python3.*") if re.fullmatch(r"python3\.\d+", path.name))
    return Python(binary, root / "usr/lib" / binary.name, root)


# --- a root with little in it ---------------------------------------------------------------------------------------


def lay_python(python, root):
    """/usr/bin/python3 with its library and its shared libraries below `root`; {part: bytes}."""
    library = root / "usr/lib" / python.library.name
    (library / "lib-dynload").mkdir(parents=True)
    extensions = []
    for name, kind in read_modules(python.minor).items():
        if kind == "python":
            copy_module(python.library, name, library)
        else:
            extensions += sorted((python.library / "lib-dynload").glob(name + ".*.so"))
    for path in extensions:
        shutil.copy(path, library / "lib-dynload")
    python.compile(library)
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(python.binary, root / "usr/bin" / python.library.name)
    (root / "usr/bin/python3").symlink_to(python.library.name)
    libraries = python.find_libraries([python.binary, *extensions])
    for name, path in libraries.items():
        target = root / name.lstrip("/") if name.startswith("/") else root / "usr/lib" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return {"interpreter": python.binary.stat().st_size,
            "modules": sum(path.stat().st_size for path in library.rglob("*") if path.is_file()),
            "libraries": {Path(name).name: path.stat().st_size for name, path in libraries.items()}}


def copy_module(source, name, library):
    path = source / name.replace(".", "/")
    target = library / path.relative_to(source)
    if path.is_dir():
        path, target = path / "__init__", target / "__init__"
    target.parent.mkdir(parents=True, exist_ok=True)
    for ending in (".py", ".pyc"):
        if path.with_name(path.name + ending).exists():
            shutil.copy(path.with_name(path.name + ending), target.with_name(target.name + ending))
            return
    raise SystemExit("trim: no module %s in %s" % (name, source))


def prune(library):
    """Remove every module that is not in the list, of an image's library."""
    found = re.fullmatch(r"python3\.(\d+)", library.name)
    if not found or not library.is_dir() or library.resolve() == Path(os.__file__).resolve().parent:
        raise SystemExit("trim: %s: not the folder usr/lib/python3.N of an image" % library)
    kept = read_modules(int(found[1]))
    for path in sorted(library.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()) and path.name != "lib-dynload":
                path.rmdir()
            continue
        name = str(path.relative_to(library)).replace("lib-dynload/", "").split(".")[0].removesuffix("/__init__").replace("/", ".")
        if kept.get(name) != ("c" if path.suffix == ".so" else "python"):
            path.unlink()


OF_LIBC = re.compile(r"(ld-linux|libc\.so|libm\.so|libpthread|libdl|librt|libgcc_s)")


def measure(arch):
    """{figure: bytes}. Squashfs with xz, as small boards have it; without the libc, which is there anyway, unless said."""
    folder = REPO / "build/trimmed" / arch
    shutil.rmtree(folder, ignore_errors=True)
    root = folder / "root"
    root.mkdir(parents=True)
    for name in ("lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to("usr/" + name)
    python = debian_python(None, arch)
    figures = lay_python(python, root)
    figures["minor"] = python.minor
    libraries = figures.pop("libraries")
    figures["libraries"] = sum(size for name, size in libraries.items() if not OF_LIBC.match(name))
    figures["library_names"] = sorted(name for name in libraries if not OF_LIBC.match(name))
    figures["with_libc"] = squash(root, folder / "with-libc.squashfs")
    for path in [*(root / "usr/lib").glob("*.so*"), *(root / "usr/lib64").glob("*.so*")]:
        if OF_LIBC.match(path.name):
            path.unlink()
    figures["python_squashfs"] = squash(root, folder / "python.squashfs")
    image.run("make", "-s", "-C", REPO, "install", "DESTDIR=%s" % root)
    shutil.rmtree(root / "usr/share")
    figures["with_edgeq"] = squash(root, folder / "with-edgeq.squashfs")
    return figures


def squash(root, path):
    path.unlink(missing_ok=True)
    image.run(image.tool("mksquashfs", "squashfs-tools"), root, path, "-noappend", "-nopad", "-all-root", "-comp", "xz", "-quiet",
              "-no-progress")
    return path.stat().st_size


def main(argv):
    if argv[:1] == ["--prune"] and len(argv) == 2:
        return prune(Path(argv[1]))
    archs = argv or list(image.DEBIAN)
    figures = {arch: measure(arch) for arch in archs}
    rows = (("interpreter", "interpreter"), ("modules and extensions", "modules"), ("shared libraries beside libc", "libraries"),
            ("all this in squashfs (xz)", "python_squashfs"), ("with edgeq", "with_edgeq"),
            ("Python with libc, without edgeq", "with_libc"))
    print("KiB: Debian's Python 3.%d, trimmed to docs/python-modules.txt (%d modules)" % (
        figures[archs[0]]["minor"], len(read_modules(figures[archs[0]]["minor"]))))
    print("  %-34s %s" % ("", " ".join("%9s" % arch for arch in archs)))
    for what, key in rows:
        print("  %-34s %s" % (what, " ".join("%9.0f" % (figures[arch][key] / 1024) for arch in archs)))
    for arch in archs:
        print("  shared libraries, %s: %s" % (arch, " ".join(figures[arch]["library_names"]) or "none"))


if __name__ == "__main__":
    main(sys.argv[1:])
