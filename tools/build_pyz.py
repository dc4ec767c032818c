"""Build dist/edgeq.pyz: the whole program in one file that a board can run.

    python3 tools/build_pyz.py [-o FILE] [--source DIR] [--no-source] [--no-sqlite | --redis DIR]

What it promises
    The same source and the same interpreter give the same bytes, wherever and
    whenever they are built: the entries are sorted, stored (the device's Python
    has no zlib) and carry one date, mode and system. `python -m zipapp` does none
    of that.

    Each module but the rarest is there twice. NAME.pyc is for the minor version that builds:
    compiled without asserts, docstrings and column tables, trusted without a look
    at the source. NAME.py beside it is what every other minor falls back to; it has no
    comments and no docstrings, but every line where it was: a device reads neither, and
    English is what squashfs can do least about.

    The file starts as a shell script. `python3 edgeq.pyz` would go through runpy,
    which costs 3.8 ms and a megabyte before our first line; the head execs
    `python3 -IS -c ...` instead: same pid, and argv[0] stays the interpreter's
    path, which is what start-stop-daemon compares.

    Python's own importer of zip archives opens the file anew for each module and asks the
    path for each: a third of our start. So the first entry, `PACK`, is a loader that knows
    where in this very file the byte code of each module lies and reads it there, through one
    descriptor: a file that is replaced while a worker runs does not mix two versions. It is
    used by the minor version that built it; the others, and modules that are source only, take
    the way through the archive.

What it leaves out
    store/redis.py and what only it needs: the device has no Redis. `--redis DIR` keeps them and bundles redis-py,
    the package's folder DIR, for dist/edgeq-redis.pyz.

    --no-source: NAME.py where NAME.pyc is, for an image that has just one Python; another minor says so and ends. --no-sqlite: the
    SQLite store, for an image whose Python has no sqlite3. Both together take a third off what flash keeps.

How it fails
    One line on stderr and exit 1; the old file stays. The new one takes its place
    by one rename, so that a test or a running worker never sees half of it.

The child that compiles runs alone, with its hash seed fixed and no site: marshal
writes down which objects are shared, so byte code depends on what else is loaded.
"""

import argparse
import ast
import hashlib
import importlib.util
import io
import os
import subprocess
import sys
import tokenize
import zipfile

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGE = "edgeq"
LEFT_OUT = ("edgeq/store/redis.py", "edgeq/store/fleet/", "edgeq/api.py")  # how their names begin
SQLITE = ("edgeq/store/sqlite", "edgeq/store/tables/")
# Verbs that a person types now and then: source only. Their byte code would take more flash than the
# milliseconds of compiling them are worth; the worker, enqueue and status never load them.
RARE_VERBS = ("check", "forward", "jobs", "log", "move", "operate", "preflight", "stop", "top")
RARE_ROOMS = ("audit", "carry", "tables/carry", "tables/operate")
SOURCE_ONLY = {"edgeq/cli/%s.py" % name for name in RARE_VERBS} | {"edgeq/store/%s.py" % name for name in RARE_ROOMS}
ALWAYS_SOURCE = ("__main__.py", "edgeq_start.py")  # what tells another interpreter what is wrong
OLDEST = (3, 11)
NO_SERVICE = 69

# The two small modules that run before anything of edgeq is imported: an interpreter
# that is too old must be able to read them, and to say what is wrong.
START = """import sys


def start(argv):
    if sys.version_info < {version}:
        sys.stderr.write("edgeq: cannot start on Python %d.%d: Python {oldest} or newer is needed:"
                         " install it, or name it in EDGEQ_PYTHON\\n" % sys.version_info[:2])
        sys.exit({code})
    sys.argv = argv
    import gc
    gc.disable()  # nothing of what is imported is garbage: looking for some is a tenth of our start (cli/__init__.py: open_store)
    try:
        from edgeq.cli import main
    except ImportError as error:
        if "magic" not in str(error):
            raise
        sys.stderr.write("edgeq: cannot start on Python %d.%d: this file holds byte code for Python {minor} and no source:"
                         " build it for this one, or name the other in EDGEQ_PYTHON\\n" % sys.version_info[:2])
        sys.exit({code})
    code = main(argv[1:])
    # Everything was written by write(2): to take the interpreter apart would free, for 2 ms, what the kernel frees anyway, and
    # what Python itself could not tell (of a wake-up pipe that fails) would make it exit 120.
    import posix
    posix._exit(code or 0)
""".format(version=OLDEST, oldest="%d.%d" % OLDEST, code=NO_SERVICE, minor="%d.%d" % sys.version_info[:2])

MAIN = """import sys
from edgeq_start import start
start(sys.argv)
"""

HEAD = """#!/bin/sh
{{ # read whole, or not run at all: half of it would say yes to everything
# The zipapp of edgeq: this script, then a zip archive. EDGEQ_PYTHON names another
# interpreter than /usr/bin/python3. "python3 edgeq.pyz" works too.
z=$0
case $z in /*) ;; *) z=$PWD/$z ;; esac
py=${{EDGEQ_PYTHON:-/usr/bin/python3}}
case $py in */*) ;; *) py=$(command -v "$py") ;; esac
if [ -z "${{EDGEQ_PYTHON:-}}" ] && [ ! -x "$py" ]; then py=$(command -v python3); fi
if [ ! -f "$py" ] || [ ! -x "$py" ]; then
    echo "edgeq: cannot start: no Python at ${{EDGEQ_PYTHON:-/usr/bin/python3}}:\\
 install Python {oldest} or newer, or name it in EDGEQ_PYTHON" >&2
    exit {code}
fi
exec "$py" -IS -c 'import sys
z = sys.argv[1]
sys.path.append(z)
try:
    if sys.modules["_frozen_importlib_external"].MAGIC_NUMBER.hex() == "{magic}":
        import marshal, posix
        fd = posix.open(z, posix.O_RDONLY | posix.O_CLOEXEC)
        exec(marshal.loads(posix.pread(fd, {size:7}, {offset:7})))
    from edgeq_start import start
    start(sys.argv[1:])
except Exception as error:
    sys.stderr.write("edgeq: cannot start: %s is damaged: %s: %s: install it again\\n" % (z, type(error).__name__, error))
    sys.exit({code})' "$z" "$@"
exit {code}
}}
"""

# Runs in __main__ of the interpreter: z is our path, fd the file, open. The table is a line for each
# module: name, offset and size of its code (of fixed width, so that its own size depends on no number), `p` for a package.
PACK = """
from _frozen_importlib import ModuleSpec


class Pack:
    low = []
    while fd < 3:
        low.append(fd)
        fd = posix.dup(fd)
    for spare in low:
        posix.close(spare)
    fd, z = fd, z
    table = {line[0]: line[1:] for line in map(str.split, %r.splitlines())}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in cls.table:
            return None
        spec = ModuleSpec(name, cls, origin=cls.z, is_package=len(cls.table[name]) == 3)
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(cls.z + "/" + name.replace(".", "/"))
        return spec

    @staticmethod
    def create_module(spec):
        return None

    @classmethod
    def exec_module(cls, module):
        offset, size = cls.table[module.__name__][:2]
        module.__file__ = cls.z  # by hand: the importer would look for the name of a cached copy, too
        exec(marshal.loads(posix.pread(cls.fd, int(size), int(offset))), module.__dict__)


sys.meta_path.insert(0, Pack)
"""
PYC_HEADER, ZIP_HEADER = 16, 30

# Reads and writes (length, bytes) pairs: name and source in, code out. The compiler
# writes a line entry for each instruction; one for each run of instructions on the same
# line says as much, in a third of the bytes (Objects/locations.md in CPython: a first
# byte 1kkkknnn, kind 13 a line without columns, kind 15 none, for n + 1 code units).
COMPILE = """
import marshal, sys, types

def take():
    return sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(4), "little"))

def varint(n):
    out = b""
    while n > 63:
        out += bytes([64 | n & 63])
        n >>= 6
    return out + bytes([n])

def with_short_lines(code):
    runs, table, last = [], b"", code.co_firstlineno
    for start, end, line in code.co_lines():
        if runs and runs[-1][1] == line:
            runs[-1][0] += (end - start) // 2
        else:
            runs.append([(end - start) // 2, line])
    for units, line in runs:
        while units > 0:
            n = min(units, 8)
            units -= n
            if line is None:
                table += bytes([0x80 | 15 << 3 | n - 1])
            else:
                step, last = line - last, line
                table += bytes([0x80 | 13 << 3 | n - 1]) + varint(step << 1 if step >= 0 else -step << 1 | 1)
    consts = tuple(with_short_lines(c) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    return code.replace(co_linetable=table, co_consts=consts)

while name := take().decode():
    code = compile(take(), name, "exec", dont_inherit=True, optimize=2)
    data = marshal.dumps(with_short_lines(code))
    sys.stdout.buffer.write(len(data).to_bytes(4, "little") + data)
"""


def find_modules(source, package=PACKAGE, left_out=LEFT_OUT):
    """Names of the modules below SOURCE/PACKAGE, relative to SOURCE, sorted."""
    names = []
    for folder, folders, files in os.walk(os.path.join(source, package)):
        folders[:] = [f for f in folders if f != "__pycache__" and not f.startswith(".")]
        for name in files:
            path = os.path.relpath(os.path.join(folder, name), source).replace(os.sep, "/")
            if name.endswith(".py") and not name.startswith(".") and not path.startswith(left_out):
                names.append(path)
    return sorted(names)


def without_comments(text):
    """The module's source without comments and docstrings, indented by one blank, every statement on the line it was on."""
    lines = text.decode().splitlines(keepends=True)
    in_string = set()  # rows that begin inside a string: their blanks are somebody's text
    for token in tokenize.generate_tokens(iter(lines).__next__):
        if token.type == tokenize.COMMENT:
            row, column = token.start[0] - 1, token.start[1]
            lines[row] = lines[row][:column].rstrip() + "\n"
        elif token.type == tokenize.STRING:
            in_string.update(range(token.start[0], token.end[0]))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, False) is not None:
            string = node.body[0]
            first, last = string.lineno - 1, string.end_lineno - 1
            tail = lines[last].encode()[string.end_col_offset:].decode()
            lines[first:last + 1] = [lines[first][:string.col_offset] + '""' + "\n" * (last - first) + tail] + [""] * (last - first)
    for row, line in enumerate(lines):
        bare = line.lstrip(" ")
        if row not in in_string and len(bare) < len(line):
            lines[row] = " " * ((len(line) - len(bare)) // 4) + bare
    return "".join(lines).encode()


def as_chunk(data):
    return len(data).to_bytes(4, "little") + data


def compile_modules(texts):
    """{name: marshalled code object}, made by an interpreter that holds nothing else."""
    chunks = [as_chunk(part) for name in sorted(texts) for part in (name.encode(), texts[name])]
    child = subprocess.run([sys.executable, "-s", "-S", "-P", "-X", "no_debug_ranges", "-c", COMPILE],
                           env={"PYTHONHASHSEED": "0"}, input=b"".join(chunks) + as_chunk(b""),
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if child.returncode:
        lines = child.stderr.decode("utf-8", "replace").strip().splitlines() or ["exit %d" % child.returncode]
        where = [line.strip() for line in lines if line.lstrip().startswith("File ")]
        raise SystemExit("build_pyz: cannot compile: %s (%s)" % (lines[-1], where[-1] if where else "?"))
    codes, out = {}, io.BytesIO(child.stdout)
    for name in sorted(texts):
        codes[name] = out.read(int.from_bytes(out.read(4), "little"))
    return codes


def as_pyc(code, source_bytes):
    """A .pyc of kind UNCHECKED_HASH: no date in it, and never compared with its source."""
    return importlib.util.MAGIC_NUMBER + b"\1\0\0\0" + importlib.util.source_hash(source_bytes) + code


def collect_redis(folder):
    """Entries of redis-py, the package in FOLDER: its sources untouched, byte code beside them, its licence."""
    parent, package = os.path.split(os.path.abspath(folder))
    if package != "redis" or not os.path.isfile(os.path.join(folder, "client.py")):
        raise SystemExit("build_pyz: no redis-py in %s: give the folder redis/ of an installed one" % folder)
    texts = {}
    for name in find_modules(parent, package, ()):
        with open(os.path.join(parent, name), "rb") as f:
            texts[name] = f.read()
    entries = dict(texts)
    for name, code in compile_modules(texts).items():
        entries[name + "c"] = as_pyc(code, texts[name])
    with open(find_licence(parent), "rb") as f:
        entries["redis/LICENSE"] = f.read()
    return entries


def find_licence(site):
    """The licence that was installed with redis-py, or our copy of it."""
    for info in sorted(os.listdir(site)):
        for name in ("licenses/LICENSE", "LICENSE"):
            path = os.path.join(site, info, name)
            if info.startswith("redis-") and info.endswith(".dist-info") and os.path.isfile(path):
                return path
    return os.path.join(REPO, "tools", "redis-py.LICENSE")


def collect(source, redis_py=None, has_source=True, has_sqlite=True):
    """All entries of the archive: {name: bytes}. redis_py: the folder of redis-py, for the Redis edition."""
    names = find_modules(source, PACKAGE, () if redis_py else LEFT_OUT if has_sqlite else LEFT_OUT + SQLITE)
    if PACKAGE + "/__init__.py" not in names:
        raise SystemExit("build_pyz: no package %s in %s" % (PACKAGE, source))
    texts = {"__main__.py": MAIN.encode(), "edgeq_start.py": START.encode()}
    for name in names:
        with open(os.path.join(source, name), "rb") as f:
            texts[name] = f.read()
        try:
            texts[name] = without_comments(texts[name])
        except (SyntaxError, ValueError, tokenize.TokenError) as error:
            raise SystemExit("build_pyz: cannot read %s: %s" % (name, error))
    entries = dict(texts)
    for name, code in compile_modules({name: text for name, text in texts.items() if name not in SOURCE_ONLY}).items():
        entries[name + "c"] = as_pyc(code, texts[name])
    if not has_source:
        entries = {name: data for name, data in entries.items() if name + "c" not in entries or name in ALWAYS_SOURCE}
    return dict(entries, **collect_redis(redis_py)) if redis_py else entries


def find_offsets(entries, at):
    """{name: offset of its bytes} in an archive that begins at `at` and stores the entries in this order."""
    offsets = {}
    for name, data in entries.items():
        offsets[name] = at + ZIP_HEADER + len(name)
        at = offsets[name] + len(data)
    return offsets


def pack_table(entries, offsets):
    """The table of PACK: our own modules that have byte code."""
    lines = []
    for name in entries:
        if name.endswith(".pyc") and name.startswith(PACKAGE):
            module, package, _ = name[:-4].replace("/", ".").partition(".__init__")
            lines.append("%s %7d %7d%s" % (module, offsets[name] + PYC_HEADER, len(entries[name]) - PYC_HEADER,
                                           " p" if package else ""))
    return "\n".join(lines)


def with_pack(entries):
    """(shell head, entries in their order with PACK as the first).

    Made three times: its size is known after the first, the offsets after the second.
    """
    entries = {"PACK": b"", **{name: entries[name] for name in sorted(entries)}}
    head, offsets = "", dict.fromkeys(entries, 0)
    for _ in range(3):
        source = (PACK % pack_table(entries, offsets)).encode()
        entries["PACK"] = compile_modules({"PACK": source})["PACK"]
        head = HEAD.format(oldest="%d.%d" % OLDEST, code=NO_SERVICE, magic=importlib.util.MAGIC_NUMBER.hex(),
                           size=len(entries["PACK"]), offset=offsets["PACK"])
        offsets = find_offsets(entries, len(head.encode()))
    return head.encode(), entries


def pack(entries):
    """The file's bytes: shell head, then the archive."""
    head, entries = with_pack(entries)
    out = io.BytesIO()
    out.write(head)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in entries:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, entries[name])
    return out.getvalue()


def replace(path, data):
    """Put DATA at PATH, mode 0755, by one rename."""
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, ".%s.%d" % (os.path.basename(path), os.getpid()))
    try:
        with open(temporary, "wb") as f:
            f.write(data)
            os.fchmod(f.fileno(), 0o755)
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def main(argv):
    parser = argparse.ArgumentParser(prog="build_pyz.py", description="Build the zipapp of edgeq, reproducibly.")
    parser.add_argument("-o", "--output", metavar="FILE",
                        help="dist/edgeq.pyz, with --redis dist/edgeq-redis.pyz")
    parser.add_argument("--source", default=REPO, metavar="DIR", help="the folder that holds edgeq/")
    parser.add_argument("--redis", metavar="DIR", help="the folder redis/ of redis-py, to bundle it")
    parser.add_argument("--no-source", action="store_true", help="byte code alone: for an image with this very minor of Python")
    parser.add_argument("--no-sqlite", action="store_true", help="without the SQLite store")
    options = parser.parse_args(argv)
    if options.redis and options.no_sqlite:
        parser.error("--no-sqlite is for a board, --redis for a fleet")
    options.output = options.output or os.path.join(REPO, "dist", "edgeq-redis.pyz" if options.redis else "edgeq.pyz")
    if sys.version_info < OLDEST:
        raise SystemExit("build_pyz: Python %d.%d or newer is needed" % OLDEST)
    entries = collect(options.source, options.redis, not options.no_source, not options.no_sqlite)
    data = pack(entries)
    try:
        replace(options.output, data)
    except OSError as error:
        raise SystemExit("build_pyz: cannot write %s: %s" % (options.output, error.strerror))
    byte_code = sum(len(entries[name]) for name in entries if name.endswith(".pyc"))
    print("%s: %d bytes, byte code for Python %d.%d %d bytes, sha256 %s" % (
        os.path.relpath(options.output), len(data), *sys.version_info[:2], byte_code, hashlib.sha256(data).hexdigest()))


if __name__ == "__main__":
    main(sys.argv[1:])
