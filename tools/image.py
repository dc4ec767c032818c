"""Small BusyBox-init images with edgeq in them, for QEMU: build/image/ARCH/.

    python3 tools/image.py [x86_64 | arm ...]
    python3 tools/image.py --figures        what tests/image measured, as a table

The parts come from Debian's packages (kernel, busybox-static, python3-minimal and its libraries), by apt-get download with an
apt state of their own: nothing is installed. Downloads are kept in build/cache. What makes a root of it is ours: Buildroot's
skeleton and inittab in small, and `make install`.

    vmlinuz, initrd    Debian's kernel; modules for the disks, then switch_root
    root.squashfs      read-only, as on a product
    bare.squashfs      the same without edgeq: what edgeq adds is the difference
    flash.squashfs     raw flash for the tests: modules, mtd-utils, tools/flash.sh
    figures.json       sizes

The data partition is the tests' affair. qemu(arch, data) is the command that boots it.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
CACHE, IMAGES = REPO / "build/cache", REPO / "build/image"

DEBIAN = {"x86_64": "amd64", "arm": "armhf"}
KERNEL = {"x86_64": "linux-image-amd64", "arm": "linux-image-armmp"}
MEMORY_MB = {"x86_64": 96, "arm": 64}
CONSOLE = {"x86_64": "ttyS0", "arm": "ttyAMA0"}
# The last module of each line needs the ones that its file names; crc32c is asked for by name only.
MODULES = {"x86_64": "virtio_pci virtio_blk squashfs crc32c_generic ext4".split(),
           "arm": "virtio_mmio virtio_blk squashfs crc32c_generic ext4".split()}
# Loaded with `data=f2fs` on the kernel's command line only. With 64 MB ARM mounted a second f2fs 40 times of 40 while nothing
# ran (28 MB available), but ran out of memory in one mount of 16 while jobs did: the margin is the bench's.
F2FS, F2FS_MB = "crc32_generic f2fs".split(), 32
# With `data=ubifs`. The simulated flash lies in the guest's memory, and copies of it for a moment.
UBIFS, UBIFS_MB = "crc32_generic deflate lzo zstd ubi ubifs nandsim".split(), 96
MTD_UTILS = "ubiattach ubidetach ubimkvol flash_erase nandwrite".split()
LIBRARIES = {"x86_64": [], "arm": ["libgcc-s1"]}
# Parts of the standard library that no appliance has.
LEFT_OUT = ("test lib2to3 idlelib tkinter turtledemo pydoc_data ensurepip distutils unittest asyncio multiprocessing email http xml"
            " xmlrpc wsgiref concurrent sqlite3 dbm curses __pycache__").split()

INITTAB = """# Buildroot's package/busybox/inittab, and a console for the tests
::sysinit:/bin/mount -t proc proc /proc
::sysinit:/bin/mkdir -p /dev/pts /dev/shm
::sysinit:/bin/mount -a
::sysinit:/bin/hostname -F /etc/hostname
::sysinit:/etc/init.d/rcS
::respawn:/etc/console
::ctrlaltdel:/sbin/reboot
::shutdown:/etc/init.d/rcK
::shutdown:/sbin/swapoff -a
::shutdown:/bin/umount -a -r
"""

FSTAB = """proc /proc proc defaults 0 0
tmpfs /tmp tmpfs mode=1777 0 0
tmpfs /run tmpfs mode=0755,nosuid,nodev 0 0
sysfs /sys sysfs defaults 0 0
/dev/vdb /data ext4 defaults 0 0
"""

RC = """#!/bin/sh
for i in %s; do
    [ ! -f "$i" ] || "$i" %s
done
"""

# What a person at the serial console would type, line by line; an interactive ash can end when a child of it does.
CONSOLE_LOOP = """#!/bin/sh
exec </dev/console >/dev/console 2>&1
stty -echo
cd /root
echo 'CONSOLE is ready'
while IFS= read -r line; do
    eval "$line"
    echo "=$? done="
done
"""

INIT = """#!/bin/busybox sh
export PATH=/bin
busybox mount -t proc proc /proc
busybox mount -t devtmpfs dev /dev
for module in MODULES; do busybox insmod "/modules/$module.ko"; done
for round in 1 2 3 4 5 6 7 8 9 10; do
    [ -b /dev/vda ] && [ -b /dev/vdb ] && break
    busybox sleep 0.1
done
read -r line </proc/cmdline
case " $line " in *" data=f2fs "*) for module in F2FS; do busybox insmod "/modules/$module.ko"; done ;; esac
busybox mount -t squashfs -o ro /dev/vda /new || exec busybox sh
# then the ext4 line of fstab finds the place taken
case " $line " in
*" data=f2fs "*) busybox mount -t f2fs /dev/vdb /new/data ;;
*" data=ubifs "*) busybox mount -t squashfs -o ro /dev/vdb /new/mnt ;;
esac
busybox mount --move /dev /new/dev || exec busybox sh
busybox umount /proc
exec busybox switch_root /new /sbin/init
"""


def run(*command, **more):
    """Run it, or stop with what it said; what it printed."""
    return run_bytes(*command, **more).decode("utf-8", "replace")


def run_bytes(*command, **more):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)
    if done.returncode:
        raise SystemExit("image: %s: exit %d: %s" % (" ".join(map(str, command))[:200], done.returncode,
                                                     done.stderr.decode("utf-8", "replace").strip()[-800:]))
    return done.stdout


def tool(name, package):
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    return path or sys.exit("image: no %s here: apt-get install %s" % (name, package))


# --- Debian's packages ------------------------------------------------------------------------------------------


class Apt:
    """apt for another machine, or for another release of Debian: its own lists, status and cache, and nothing of this one's."""

    def __init__(self, arch, suite=None):
        self.arch = DEBIAN[arch]
        self.folder = CACHE / (self.arch + ("-" + suite if suite else ""))
        self.debs = self.folder / "debs"
        state = self.folder / "apt"
        for path in (self.debs, state / "lists/partial", state / "cache/archives/partial"):
            path.mkdir(parents=True, exist_ok=True)
        (state / "status").touch()
        self.options = []
        for key, value in (("APT::Architecture", self.arch), ("APT::Architectures", self.arch), ("Dir::State", state),
                           ("Dir::State::lists", state / "lists"), ("Dir::State::status", state / "status"),
                           ("Dir::Cache", state / "cache"), ("APT::Sandbox::User", "root"), ("Acquire::Retries", "3"),
                           ("Acquire::Languages", "none"), *self._sources(suite)):
            self.options += ["-o", "%s=%s" % (key, value)]

    def _sources(self, suite):
        """Options that take the packages from another release, off the mirror that this machine uses."""
        if not suite:
            return []
        lines = run("apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(COMPONENT) $(REPO_URI)", "Created-By: Packages")
        found = re.findall(r"^Debian Debian main (\S+)$", lines, re.M)
        write(self.folder / "sources.list", "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n" % (
            (found or ["http://deb.debian.org/debian"])[0], suite))
        return [("Dir::Etc::SourceList", self.folder / "sources.list"), ("Dir::Etc::SourceParts", "/dev/null")]

    def update(self):
        # a mirror in mid-sync fails some index; what counts is whether the packages can be had
        subprocess.run(["apt-get", "-q", *self.options, "update"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def fetch_all(self, names):
        """Deb files of the packages and of all that they depend on, downloaded unless that was done."""
        archives = self.folder / ("all-" + hashlib.sha256(" ".join(names).encode()).hexdigest()[:12])
        if not (archives / "whole").exists():
            (archives / "partial").mkdir(parents=True, exist_ok=True)
            self.update()
            run("apt-get", "-q", "-y", *self.options, "-o", "Dir::Cache::archives=%s" % archives, "--no-install-recommends",
                "--download-only", "install", *names)
            (archives / "whole").touch()
        return sorted(archives.glob("*.deb"))

    def fetch(self, names):
        """{package: deb file}, downloaded unless all are there. A name like `python3-minimal` stands for what it needs as well."""
        manifest = self.folder / "packages.json"
        if manifest.exists():
            found = json.loads(manifest.read_text())
            if found["asked"] == names and all((self.debs / name).exists() for name in found["debs"].values()):
                return {package: self.debs / name for package, name in found["debs"].items()}
        self.update()
        debs = {}
        for name in names:
            for package in [name] + self._resolved(name):
                before = set(os.listdir(self.debs))
                said = run("apt-get", "-q", *self.options, "download", package, cwd=self.debs)
                new = set(os.listdir(self.debs)) - before
                debs[package] = new.pop() if new else self._had(package, said)
        manifest.write_text(json.dumps({"asked": names, "debs": debs}, indent=1))
        return {package: self.debs / name for package, name in debs.items()}

    def _had(self, package, said):
        found = sorted(self.debs.glob(package + "_*.deb"), key=os.path.getmtime)
        return found[-1].name if found else sys.exit("image: %s did not come: %s" % (package, said))

    def _resolved(self, name):
        """The real packages behind `linux-image-ARCH` and `python3-minimal`."""
        text = run("apt-cache", *self.options, "depends", "--no-recommends", "--no-suggests", name)
        found = re.findall(r"Depends: (linux-image-\d\S+|python3\.\d+-minimal)$", text, re.M)
        return found + ["lib%s-stdlib" % p[:-len("-minimal")] for p in found if p.startswith("python")] + [
            "lib" + p for p in found if p.startswith("python")]


def unpack(deb, folder):
    run("dpkg-deb", "-x", deb, folder)


def unpack_all(debs, root):
    """A root file system of a merged /usr, no package configured."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (root / name).is_symlink():
            (root / name).symlink_to("usr/" + name)
    for deb in debs:
        tar = run_bytes("dpkg-deb", "--fsys-tarfile", deb)
        run("tar", "-x", "--keep-directory-symlink", "-C", root, input=tar)


# --- parts ---------------------------------------------------------------------------------------------------------


def module_files(folder, names):
    """Module files in the order of loading, what they depend on first. Built into the kernel: not there."""
    files = {path.name[:-3].replace("-", "_"): path for path in folder.rglob("*.ko")}
    order = []

    def add(name):
        if name not in files or files[name] in order:
            return
        found = re.search(rb"\0depends=([^\0]*)\0", b"\0" + files[name].read_bytes())
        for other in filter(None, found[1].decode().split(",") if found else []):
            add(other.replace("-", "_"))
        order.append(files[name])

    for name in names:
        add(name)
    return order


def applets(busybox):
    """The names in Debian's BusyBox that Buildroot's default has too."""
    image = busybox.read_bytes()
    start = image.index(b"[\0[[\0")
    ours = {name.decode() for name in image[start:image.index(b"\0\0", start)].split(b"\0")}
    return sorted(ours & set((REPO / "tests/shell/applets.txt").read_text().split()))


def write(path, text, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def make_root(root, debs, arch, python=True):
    """A root file system without edgeq; `python`: with an interpreter."""
    stage = root.parent / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    for package, deb in debs.items():
        if not package.startswith("linux-image"):
            unpack(deb, stage)
    for folder in "bin dev proc sys run tmp root data mnt etc/init.d usr/bin usr/lib var/lib".split():
        (root / folder).mkdir(parents=True)
    for link, target in (("sbin", "bin"), ("lib", "usr/lib"), ("usr/sbin", "../bin"), ("var/run", "../run"), ("var/log", "../tmp"),
                         ("var/spool", "../tmp"), ("var/tmp", "../tmp")):
        (root / link).symlink_to(target)
    shutil.copy2(stage / "bin/busybox", root / "bin/busybox")
    for name in applets(root / "bin/busybox"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "bin/flock").unlink(missing_ok=True)
    shutil.copy2(stage / "usr/bin/flock", root / "bin/flock")
    copy_libraries(stage, root)
    if python:
        copy_python(stage, root)
    write(root / "etc/inittab", INITTAB)
    write(root / "etc/fstab", FSTAB)
    write(root / "etc/hostname", "board\n")
    write(root / "etc/passwd", "root:x:0:0:root:/root:/bin/sh\nedgeq:x:871:871:edgeq queue worker:/var/lib/edgeq:/bin/false\n"
                               "ann:x:1001:1001::/:/bin/sh\n")
    write(root / "etc/group", "root:x:0:\nedgeq:x:871:ann\nann:x:1001:\n")
    write(root / "etc/console", CONSOLE_LOOP, 0o755)
    write(root / "etc/init.d/rcS", RC % ("/etc/init.d/S??*", "start"), 0o755)
    write(root / "etc/init.d/rcK", RC % ("$(ls -r /etc/init.d/S??*)", "stop"), 0o755)
    write(root / "etc/init.d/S01syslogd", "#!/bin/sh\n[ \"$1\" != start ] || syslogd -O /tmp/messages\n", 0o755)
    shutil.rmtree(stage)


def copy_libraries(stage, root):
    """Shared libraries and the dynamic linker, where they were (on a merged /usr)."""
    for base in ("lib", "usr/lib"):
        for path in sorted((stage / base).glob("*-linux-gnu*/*.so*")) + sorted((stage / base).glob("ld-*.so*")):
            target = root / "usr/lib" / path.relative_to(stage / base)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                shutil.copy2(path, target, follow_symlinks=False)
    if (stage / "lib64").is_dir():
        (root / "lib64").mkdir()
        for path in (stage / "lib64").iterdir():
            target = os.path.relpath(path.resolve(), stage / "lib64")
            (root / "lib64" / path.name).symlink_to(target.replace("../lib/", "../usr/lib/"))


def copy_python(stage, root):
    """python3 and its library: byte code only, as Buildroot's default, when this interpreter can make it."""
    (python,) = (path for path in (stage / "usr/bin").glob("python3.*") if re.fullmatch(r"python3\.\d+", path.name))
    shutil.copy2(python, root / "usr/bin" / python.name)
    (root / "usr/bin/python3").symlink_to(python.name)
    target = root / "usr/lib" / python.name
    shutil.copytree(stage / "usr/lib" / python.name, target, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for name in list(target.rglob("sitecustomize.py")) + list(target.glob("config-*")):
        shutil.rmtree(name) if name.is_dir() and not name.is_symlink() else name.unlink()
    if python.name == "python%d.%d" % sys.version_info[:2]:
        run(sys.executable, "-m", "compileall", "-q", "-b", "--invalidation-mode", "unchecked-hash", "-s", root, target)
        for path in target.rglob("*.py"):
            path.unlink()


def add_edgeq(root):
    """What `make install` lays out, and a product's configuration: the spool on the data partition."""
    run("make", "-s", "-C", REPO, "install", "DESTDIR=%s" % root)
    conf = (root / "etc/edgeq.conf").read_text()
    write(root / "etc/edgeq.conf", re.sub(r"(?m)^SPOOL=.*\n", "", conf) + "SPOOL=/data/edgeq\nREQUIRE_MOUNT=/data\n")
    shutil.rmtree(root / "usr/share/doc")


def add_tests(root):
    """Handlers of the boot tests, and an S script that queues a job before S85."""
    write(root / "etc/edgeq/handlers/note", "#!/bin/sh\nread -r now _ </proc/uptime\n"
          "echo \"$EDGEQ_ID $now $EDGEQ_REDELIVERED\" >>/tmp/ran\n", 0o755)
    write(root / "etc/edgeq/handlers/slow", "#!/bin/sh\necho $EDGEQ_ID >>/tmp/began\nsleep ${1:-600}\n", 0o755)
    write(root / "etc/edgeq/handlers/cut", "#!/bin/sh\nset -- $(md5sum)\necho \"$EDGEQ_ID $1\" >>/tmp/ran\n", 0o755)
    write(root / "etc/edgeq/handlers/bad", "#!/bin/sh\nset -- $(md5sum)\necho \"$EDGEQ_ID $1\" >>/tmp/ran\nexit 1\n", 0o755)
    write(root / "etc/edgeq/handlers/boom", "#!/bin/sh\necho \"boom $EDGEQ_ID $EDGEQ_REDELIVERED.\" >/dev/console\n"
          "exec reboot -f\n", 0o755)
    write(root / "etc/edgeq.conf.d/boom.conf", "BASE_DELAY_S=0\nMAX_ATTEMPTS=2\n")
    write(root / "etc/edgeq.conf.d/cut.conf", "BASE_DELAY_S=0\nMAX_ATTEMPTS=99\n")
    write(root / "etc/edgeq.conf.d/bad.conf", "BASE_DELAY_S=0\nMAX_ATTEMPTS=2\n")
    write(root / "etc/init.d/S02flash", "#!/bin/sh\n[ \"$1\" = start ] && [ -e /mnt/flash.sh ] || exit 0\n. /mnt/flash.sh\n"
          "flash_load && flash_open 0 0 /data || echo 'no flash'\n", 0o755)
    write(root / "etc/init.d/S84early", "#!/bin/sh\n[ \"$1\" != start ] || edgeq enqueue note\n", 0o755)


def build_without_python(arch, program, path):
    """A root at `path` with BusyBox, libc and edgeq whose zipapp is `program` (tools/binary.py), and no other library."""
    root = path.parent / (path.stem + ".d")
    debs = Apt(arch).fetch_all(["busybox-static", "libc6", "util-linux"])
    make_root(root, {deb.name: deb for deb in debs}, arch, python=False)
    for library in list((root / "usr/lib").rglob("*.so*")):
        if not re.match(r"ld-linux|lib(c|m|dl|pthread|rt|gcc_s)\.so", library.name):
            shutil.rmtree(library) if library.is_dir() else library.unlink()
    add_edgeq(root)
    add_tests(root)
    shutil.copytree(program, root / "usr/lib/edgeq", symlinks=True, dirs_exist_ok=True)
    squash(root, path)


def make_flash(folder, deb, kernel, loaded):
    """flash.squashfs; `loaded`: modules that the initrd has loaded already."""
    modules = [module for module in module_files(kernel, UBIFS) if module not in loaded]
    for name in ("bin", "modules"):
        (folder / name).mkdir(parents=True)
    for module in modules:
        shutil.copy(module, folder / "modules")
    order = [module.name for module in modules if module.name != "nandsim.ko"]
    write(folder / "modules/order", "".join(name + "\n" for name in order))
    unpack(deb, folder / "stage")
    for name in MTD_UTILS:
        shutil.copy2(folder / "stage/usr/sbin" / name, folder / "bin")
    shutil.rmtree(folder / "stage")
    shutil.copy2(REPO / "tools/flash.sh", folder)
    squash(folder, folder.with_suffix(".squashfs"))
    shutil.rmtree(folder)


def make_initrd(path, busybox, modules, f2fs):
    """A cpio archive with BusyBox and the modules for the disks; `f2fs`: those that are loaded on demand."""
    folder = path.parent / "initrd.d"
    for name in ("bin", "dev", "proc", "new", "modules"):
        (folder / name).mkdir(parents=True)
    shutil.copy2(busybox, folder / "bin/busybox")
    for module in modules + f2fs:
        shutil.copy(module, folder / "modules")
    init = INIT
    for word, files in (("MODULES", modules), ("F2FS", f2fs)):
        init = re.sub(r"\b%s\b" % word, " ".join(module.name[:-3] for module in files), init)
    write(folder / "init", init, 0o755)
    names = "\n".join(str(found.relative_to(folder)) for found in sorted(folder.rglob("*"))) + "\n"
    cpio = subprocess.run([tool("busybox", "busybox-static"), "cpio", "-o", "-H", "newc"], cwd=folder, input=names.encode(),
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
    path.write_bytes(subprocess.run(["gzip", "-1n"], input=cpio, stdout=subprocess.PIPE, check=True).stdout)
    shutil.rmtree(folder)


def squash(root, path):
    path.unlink(missing_ok=True)
    run(tool("mksquashfs", "squashfs-tools"), root, path, "-noappend", "-all-root", "-comp", "gzip", "-quiet", "-no-progress")
    return path.stat().st_size


def fingerprint():
    """What an image is made of, as one word."""
    digest = hashlib.sha256()
    for path in [Path(__file__), REPO / "Makefile"] + sorted(
            path for folder in ("edgeq", "overlay", "init.d", "tools") for path in (REPO / folder).rglob("*") if path.is_file()):
        if path.suffix != ".pyc":
            digest.update(b"%s\0%s\0" % (str(path.relative_to(REPO)).encode(), path.read_bytes()))
    return "%s %d.%d" % (digest.hexdigest(), *sys.version_info[:2])


def build(arch):
    """Everything below build/image/ARCH, unless it is there and of today's source; its path. One builder at a time."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with open(IMAGES / (arch + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _build(arch)


def _build(arch):
    image, made_of = IMAGES / arch, fingerprint()
    if (image / "made-of").exists() and (image / "made-of").read_text() == made_of:
        return image
    shutil.rmtree(image, ignore_errors=True)
    image.mkdir(parents=True)
    debs = Apt(arch).fetch(["busybox-static", "python3-minimal", "libc6", "zlib1g", "libexpat1", "util-linux", "mtd-utils",
                            KERNEL[arch]] + LIBRARIES[arch])
    mtd_utils = debs.pop("mtd-utils")  # of the bench, not of the root
    root = image / "root"
    make_root(root, debs, arch)
    bare = squash(root, image / "bare.squashfs")
    add_edgeq(root)
    add_tests(root)
    full = squash(root, image / "root.squashfs")
    kernel = image / "kernel"
    unpack(next(deb for package, deb in debs.items() if re.match(r"linux-image-\d", package)), kernel)
    shutil.copy(next((kernel / "boot").glob("vmlinuz-*")), image / "vmlinuz")
    modules = module_files(kernel, MODULES[arch])
    f2fs = [module for module in module_files(kernel, MODULES[arch] + F2FS) if module not in modules]
    make_initrd(image / "initrd", root / "bin/busybox", modules, f2fs)
    make_flash(image / "flash", mtd_utils, kernel, modules)
    shutil.rmtree(kernel)
    shutil.rmtree(root)
    figures = {"arch": arch, "memory_mb": MEMORY_MB[arch], "bare_bytes": bare, "edgeq_bytes": full - bare}
    (image / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    (image / "made-of").write_text(made_of)
    print("image: %s: root %d KiB, of which edgeq %d KiB" % (image.relative_to(REPO), full // 1024, (full - bare) // 1024))
    return image


def qemu(arch, data, kind_of_data="ext4", others=(), root=None):
    """The command that boots the image with `data` (a file or an nbd: address) as its second disk, and `others` as vdc and so on,
    whose changes are not kept; console on stdio, software emulation. ubifs: `data` is vdc, the slots of tools/flash.sh.
    `root`: instead of the image's own."""
    image = IMAGES / arch
    kind = {"x86_64": "virtio-blk-pci", "arm": "virtio-blk-device"}[arch]
    memory_mb = MEMORY_MB[arch] + {"f2fs": F2FS_MB, "ubifs": UBIFS_MB}.get(kind_of_data, 0)
    disks = [("root", root or image / "root.squashfs", ",readonly=on")]
    disks += [("flash", image / "flash.squashfs", ",readonly=on")] if kind_of_data == "ubifs" else []
    disks += [("data", data, ",cache=writeback")]
    disks += [("other%d" % n, path, ",snapshot=on,cache=unsafe") for n, path in enumerate(others)]
    command = {"x86_64": [tool("qemu-system-x86_64", "qemu-system-x86"), "-M", "pc", "-cpu", "qemu64"],
               "arm": [tool("qemu-system-arm", "qemu-system-arm"), "-M", "virt", "-cpu", "cortex-a7"]}[arch]
    command += ["-accel", "tcg", "-m", str(memory_mb), "-nodefaults", "-no-user-config", "-display", "none",
                "-monitor", "none", "-serial", "stdio", "-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initrd"),
                "-append", "console=%s quiet panic=-1 data=%s" % (CONSOLE[arch], kind_of_data)]
    for name, path, more in disks:
        command += ["-drive", "if=none,format=raw,id=%s,file=%s%s" % (name, path, more)]
    # on virt the slots fill from the end: the last device is vda
    for name, *_ in disks if arch == "x86_64" else reversed(disks):
        command += ["-device", "%s,drive=%s" % (kind, name)]
    return command


def print_figures():
    rows = [("", "x86_64", "ARM"), ("RAM of the machine, MB", "memory_mb"), ("RAM available with edgeq up, KiB", "available_kb"),
            ("the same with edgeq stopped, KiB", "available_without_kb"), ("power-on to first job, s (boot clock)", "first_job_s"),
            ("bytes that edgeq adds to the root (squashfs, gzip)", "edgeq_bytes"), ("root without it, bytes", "bare_bytes")]
    paths = {arch: IMAGES / arch / "figures.json" for arch in DEBIAN}
    found = {arch: json.loads(path.read_text()) for arch, path in paths.items() if path.exists()}
    for what, *cells in rows:
        if len(cells) == 1:
            cells = [str(found.get(arch, {}).get(cells[0], "-")) for arch in DEBIAN]
        print("| %-52s | %10s | %10s |" % (what, *cells))
        if not what:
            print("|%s|-----------:|-----------:|" % ("-" * 54))
    cuts = {path.stem[len("cuts-"):]: json.loads(path.read_text()) for path in sorted(IMAGES.glob("cuts-*.json"))}
    for name, one in cuts.items():
        print("power cuts, %s: %d survived, %d images, %d ids, %d losses, %d findings; without a flush %d losses; %d s" % (
            name, *(one[key] for key in ("cuts", "images", "acks", "losses", "findings", "canary_losses", "wall_s"))))
    if cuts:
        sums = {}
        for name, one in cuts.items():
            kind = name.split("-")[1]
            sums[kind] = sums.get(kind, 0) + one["cuts"]
        print("power cuts: %d survived (%s), %d images, losses %d" % (
            sum(sums.values()), ", ".join("%s %d" % pair for pair in sorted(sums.items())),
            *(sum(one[key] for one in cuts.values()) for key in ("images", "losses"))))


def main(argv):
    if argv == ["--figures"]:
        return print_figures()
    for arch in argv or list(DEBIAN):
        if arch not in DEBIAN:
            raise SystemExit("image: %s: not one of %s" % (arch, " ".join(DEBIAN)))
        build(arch)


if __name__ == "__main__":
    main(sys.argv[1:])
