"""The zipapp: its bytes, its head, and the interpreters that run it.

What the builder promises is shown on a small stand-in for edgeq; what the worker costs,
on the real thing. Every Python that is found on PATH and in ~/.pyenv/versions takes
part, and always the one that runs these tests.
"""

import glob
import hashlib
import io
import json
import marshal
import os
import shutil
import stat
import subprocess
import sys
import tokenize
import zipfile

import pytest

from edgeq.cli import VERBS

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILDER = os.path.join(REPO, "tools", "build_pyz.py")
SHELLS = [["busybox", "sh"], ["dash"], ["bash"]]

# What the worker may add to a bare interpreter, and edgeq itself.
ALLOWED = set("posix gc _signal select fcntl resource syslog time errno _json binascii pwd zipimport".split())


def find_interpreters():
    """{path: (major, minor)} of every Python 3 that answers, one a minor version."""
    found = {}
    names = [sys.executable, "/usr/bin/python3", *(shutil.which("python3.%d" % minor) for minor in range(8, 20))]
    for path in [*names, *sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3")))]:
        if path and os.access(path, os.X_OK):
            child = subprocess.run([path, "-IS", "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True)
            if child.returncode == 0:
                version = tuple(map(int, child.stdout.split()))
                if version not in found.values():
                    found[path] = version
    return found


INTERPRETERS = find_interpreters()
USABLE = sorted(path for path, version in INTERPRETERS.items() if version >= (3, 11))
TOO_OLD = sorted(path for path, version in INTERPRETERS.items() if version < (3, 11))

STAND_IN = {
    "__init__.py": '__version__ = "0"\n',
    "careful.py": 'def check(x):\n    """Another docstring."""\n    assert x, "asserts are left out"\n',
    "cli/__init__.py": '''"""A docstring."""
import sys


def main(argv):
    import os
    os.chdir("/")
    if argv == ["wait"]:
        print("here", flush=True)
        sys.stdin.readline()
    from edgeq import rare
    with open("/proc/self/cmdline", "rb") as f:
        argv0 = f.read().split(b"\\0")[0].decode()
    print(repr({"argv": argv, "name": sys.argv[0], "argv0": argv0, "file": __spec__.origin, "isolated": sys.flags.isolated,
                "site": "site" in sys.modules, "runpy": "runpy" in sys.modules, "rare": rare.WORD,
                "ours": [p for p in map("/proc/self/fd/{}".format, range(20)) if os.path.realpath(p).endswith("edgeq.pyz")]}),
          flush=True)
    return 7
''',
    "rare.py": 'WORD = "found"\n',
    "store/__init__.py": "",
    "store/redis.py": "import redis\n",
    "store/spool.py": "",
}


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    for name, text in STAND_IN.items():
        path = folder / "edgeq" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def build(output, source, *words, python=sys.executable, **options):
    child = subprocess.run([python, BUILDER, "-o", str(output), "--source", str(source), *words], capture_output=True, text=True,
                           **options)
    assert child.returncode == 0, child.stderr
    return output


@pytest.fixture
def pyz(tmp_path, source):
    return build(tmp_path / "edgeq.pyz", source)


def run(command, **environment):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60,
                          env={"PATH": os.environ["PATH"], **environment})


def answer(child):
    """What the stand-in printed, as a dictionary."""
    assert (child.returncode, child.stderr) == (7, ""), child
    return eval(child.stdout)


# The bytes


def test_the_same_source_gives_the_same_bytes(tmp_path, source):
    one = build(tmp_path / "one.pyz", source, cwd=tmp_path, umask=0o022, env={"TZ": "UTC", "PYTHONHASHSEED": "1"})
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copytree(source, tmp_path / "elsewhere/copy", copy_function=shutil.copyfile)
    (copy / "edgeq/__pycache__").mkdir()
    (copy / "edgeq/__pycache__/rare.cpython-311.pyc").write_bytes(b"old")
    for path in copy.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    two = build(tmp_path / "elsewhere/two.pyz", copy, cwd="/", umask=0o077,
                env={"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "2", "PYTHONOPTIMIZE": "1", "LC_ALL": "C"})
    assert hashlib.sha256(one.read_bytes()).hexdigest() == hashlib.sha256(two.read_bytes()).hexdigest()


def test_the_real_thing_is_built_the_same_twice(tmp_path):
    one, two = build(tmp_path / "one.pyz", REPO), build(tmp_path / "two.pyz", REPO, env={"PYTHONHASHSEED": "3"})
    assert one.read_bytes() == two.read_bytes()


def test_entries_are_sorted_stored_and_without_a_date(pyz):
    entries = zipfile.ZipFile(pyz).infolist()
    assert [e.filename for e in entries] == sorted(e.filename for e in entries)
    for entry in entries:
        assert entry.compress_type == zipfile.ZIP_STORED
        assert entry.date_time == (1980, 1, 1, 0, 0, 0)
        assert (entry.create_system, stat.filemode(entry.external_attr >> 16)) == (3, "-rw-r--r--")


def test_every_module_has_its_byte_code_beside_it(pyz):
    names = zipfile.ZipFile(pyz).namelist()
    sources = {n for n in names if n.endswith(".py")}
    assert {n for n in names if n.endswith(".pyc")} == {n + "c" for n in sources}
    assert sources >= {"__main__.py", "edgeq/rare.py", "edgeq/store/spool.py"}


def test_the_redis_store_is_left_out(pyz):
    assert not [n for n in zipfile.ZipFile(pyz).namelist() if "redis" in n]


def test_byte_code_is_unchecked_relative_and_bare(pyz):
    data = zipfile.ZipFile(pyz).read("edgeq/cli/__init__.pyc")
    assert data[4:8] == b"\1\0\0\0"
    code = marshal.loads(data[16:])
    assert code.co_filename == "edgeq/cli/__init__.py"
    assert "docstring" not in repr(code.co_consts)
    code = marshal.loads(zipfile.ZipFile(pyz).read("edgeq/careful.pyc")[16:])
    check = [c for c in code.co_consts if hasattr(c, "co_consts")][0]
    assert check.co_consts == (None,)
    assert all(p[2] is None for p in check.co_positions())          # no column tables


def all_code(code):
    yield code
    for const in code.co_consts:
        if hasattr(const, "co_consts"):
            yield from all_code(const)


def test_byte_code_and_bare_source_are_those_of_the_source(real):
    archive = zipfile.ZipFile(real)
    for name in archive.namelist():
        if name.endswith(".py") and name.startswith("edgeq/"):
            with open(os.path.join(REPO, name), "rb") as f:
                wanted = compile(f.read(), name, "exec", dont_inherit=True, optimize=2)
            text = archive.read(name)
            assert not any(t.type == tokenize.COMMENT for t in tokenize.tokenize(io.BytesIO(text).readline))
            bare = compile(text, name, "exec", dont_inherit=True, optimize=2)
            packed = bare  # the rarest verbs come as source only
            if name + "c" in archive.namelist():
                packed = marshal.loads(archive.read(name + "c")[16:])
            for code, other, third in zip(all_code(wanted), all_code(bare), all_code(packed), strict=True):
                assert essence(code) == essence(other) == essence(third)


def essence(code):
    """What a code object does, and on which lines."""
    lines = [line for start, end, line in code.co_lines() for _ in range(start, end, 2)]
    return code.co_qualname, code.co_code, code.co_names, code.co_varnames, code.co_exceptiontable, code.co_firstlineno, lines


def test_bare_source_keeps_strings_that_look_like_comments(tmp_path, source):
    text = 'class A:\n    """Doc # one\n    two."""  # c\n    b = "# no"  # yes\n\n\ndef f(): "é doc"; return """#\n#"""\n'
    (source / "edgeq/rare.py").write_text(text)
    data = zipfile.ZipFile(build(tmp_path / "x.pyz", source)).read("edgeq/rare.py").decode()
    assert data == 'class A:\n ""\n\n b = "# no"\n\n\ndef f(): ""; return """#\n#"""\n'


def test_the_file_is_executable_and_replaced_whole(tmp_path, source):
    target = tmp_path / "edgeq.pyz"
    target.write_text("old")
    with open(target) as old:
        build(target, source, umask=0o077)
        assert old.read() == "old"
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    assert sorted(os.listdir(tmp_path)) == ["edgeq.pyz", "source"]


def test_a_module_that_does_not_compile_is_named_and_nothing_is_written(tmp_path, source):
    (source / "edgeq/rare.py").write_text("def f(:\n")
    child = subprocess.run([sys.executable, BUILDER, "-o", str(tmp_path / "x.pyz"), "--source", str(source)],
                           capture_output=True, text=True)
    assert child.returncode == 1
    assert "edgeq/rare.py" in child.stderr and child.stderr.count("\n") == 1
    assert not (tmp_path / "x.pyz").exists()


# The head


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
@pytest.mark.parametrize("python", USABLE, ids=lambda path: "%d.%d" % INTERPRETERS[path])
def test_it_runs_on_every_interpreter_under_every_shell(pyz, python, shell):
    got = answer(run([*shell, pyz, "work", "two words", "$x", ""], EDGEQ_PYTHON=python))
    assert got["argv"] == ["work", "two words", "$x", ""]
    assert (got["name"], got["argv0"]) == (str(pyz), python)
    assert (got["isolated"], got["site"], got["runpy"], got["rare"]) == (1, False, False, "found")
    built_for_it = INTERPRETERS[python] == sys.version_info[:2]
    assert got["file"] == str(pyz) if built_for_it else got["file"].endswith("edgeq/cli/__init__.py")


def test_a_file_that_is_replaced_under_a_running_one_does_not_mix_versions(tmp_path, source, pyz):
    child = subprocess.Popen([str(pyz), "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={"PATH": os.environ["PATH"], "EDGEQ_PYTHON": sys.executable})
    assert child.stdout.readline() == "here\n"
    (source / "edgeq/rare.py").write_text("PADDING = %r\nWORD = 'new'\n" % ("x" * 5000))
    build(pyz, source)
    out, err = child.communicate("\n", timeout=60)
    assert (child.returncode, err) == (7, "") and "'found'" in out
    assert answer(run([pyz], EDGEQ_PYTHON=sys.executable))["rare"] == "new"


def test_its_own_descriptor_is_never_a_standard_one(pyz):
    """B57: a caller that closed one of them must not find our file in its place."""
    got = answer(run(["/bin/sh", "-c", 'exec 0<&-; exec "$0" x', pyz], EDGEQ_PYTHON=sys.executable))
    assert "/proc/self/fd/0" not in got["ours"] and len(got["ours"]) == 1


@pytest.mark.parametrize("python", USABLE, ids=lambda path: "%d.%d" % INTERPRETERS[path])
def test_python_runs_it_too(pyz, python):
    assert answer(run([python, pyz, "status"]))["argv"] == ["status"]


def test_it_starts_by_its_own_name(pyz):
    assert answer(run([pyz, "x"]))["argv0"] == "/usr/bin/python3"


def test_a_relative_name_is_made_absolute(pyz):
    child = subprocess.run(["busybox", "sh", "edgeq.pyz"], cwd=pyz.parent, capture_output=True, text=True,
                           env={"EDGEQ_PYTHON": sys.executable})
    assert answer(child)["name"] == str(pyz)


def test_a_folder_with_odd_characters_is_no_obstacle(tmp_path, pyz):
    odd = tmp_path / "a b'c\"$d"
    odd.mkdir()
    shutil.copy(pyz, odd)
    assert answer(run(["busybox", "sh", odd / "edgeq.pyz"], EDGEQ_PYTHON=sys.executable))["rare"] == "found"


def test_an_interpreter_may_be_named_without_a_folder(tmp_path, pyz):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/our-python").symlink_to(os.path.realpath(sys.executable))
    got = answer(run([shutil.which("dash"), pyz], EDGEQ_PYTHON="our-python", PATH="%s/bin" % tmp_path))
    assert got["argv0"] == "%s/bin/our-python" % tmp_path


def test_python3_on_the_path_serves_where_usr_bin_has_none(tmp_path, pyz):
    data = pyz.read_bytes()
    pyz.write_bytes(data.replace(b"/usr/bin/python3", b"/usr/bin/nowhere"))      # the same length
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to(os.path.realpath(sys.executable))
    got = answer(run([shutil.which("dash"), pyz], PATH="%s/bin" % tmp_path))
    assert got["argv0"] == "%s/bin/python3" % tmp_path
    child = run([shutil.which("dash"), pyz], PATH="/nowhere")
    assert child.returncode == 69 and "no Python at /usr/bin/nowhere" in child.stderr


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
@pytest.mark.parametrize("python", ["/nowhere/python3", "no-such-python", "/", "/etc/passwd"])
def test_a_missing_interpreter_is_one_clear_line(pyz, shell, python):
    child = run([*shell, pyz, "status"], EDGEQ_PYTHON=python)
    assert (child.returncode, child.stdout, child.stderr.count("\n")) == (69, "", 1)
    assert "EDGEQ_PYTHON" in child.stderr and python in child.stderr


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_the_archive_is_never_read_as_a_script(tmp_path, pyz, shell):
    broken = tmp_path / "python"
    broken.write_text("#!/nowhere/interpreter\n")
    broken.chmod(0o755)
    child = run([*shell, pyz, "status"], EDGEQ_PYTHON=str(broken))
    assert child.returncode != 0 and child.stdout == ""
    assert "PK" not in child.stderr and child.stderr.count("\n") <= 2


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_a_file_that_was_cut_off_never_says_yes(tmp_path, pyz, shell):
    """B12: a power cut during an update. `edgeq drain && install` must not go on."""
    data, cut = pyz.read_bytes(), tmp_path / "cut.pyz"
    head = data.index(b"PK")
    for size in (60, 100, 512, head - 300, head - 2, head, head + 60, 4096, head + (len(data) - head) // 2):
        cut.write_bytes(data[:size])
        child = run([*shell, cut, "drain"], EDGEQ_PYTHON=sys.executable)
        assert child.returncode in (2, 69) and child.stdout == "" and "Traceback" not in child.stderr, (size, child)
        assert size < head or child.stderr.count("\n") == 1 and "is damaged" in child.stderr, (size, child)


def run_as_version(pyz, version):
    """The first module of the zipapp under an interpreter that says it is VERSION."""
    return run([sys.executable, "-IS", "-c",
                "import sys; sys.version_info = %r; sys.path.insert(0, %r); from edgeq_start import start; start([''])"
                % (version, str(pyz))])


def test_an_old_interpreter_is_one_clear_line(pyz):
    for child in [run_as_version(pyz, (3, 9, 2)), *(run([pyz], EDGEQ_PYTHON=python) for python in TOO_OLD)]:
        assert (child.returncode, child.stdout, child.stderr.count("\n")) == (69, "", 1), child
        assert "3.11 or newer" in child.stderr


# For an image with one Python: byte code alone


def make_board(folder, handler):
    """Its configuration and its spool, with one job in it, and a handler."""
    for name in ("spool/default/incoming", "run", "handlers"):
        (folder / name).mkdir(parents=True)
    (folder / "handlers/note").write_text(handler)
    (folder / "handlers/note").chmod(0o755)
    (folder / "spool/default/incoming/hand.json").write_text(json.dumps({"type": "note", "payload": {"a": 1}}) + "\n")
    config = folder / "edgeq.conf"
    config.write_text("SPOOL={0}/spool\nRUN_DIR={0}/run\nHANDLERS={0}/handlers\nMIN_FREE_KB=0\n".format(folder))
    return config


def test_without_source_and_sqlite_the_rest_works(tmp_path):
    lean, whole = build(tmp_path / "lean.pyz", REPO, "--no-source", "--no-sqlite"), build(tmp_path / "whole.pyz", REPO)
    assert lean.stat().st_size < 0.65 * whole.stat().st_size
    archive = zipfile.ZipFile(lean)
    assert not [name for name in archive.namelist() if b"sqlite3" in archive.read(name) and name != "edgeq/cli/check.py"]
    config = make_board(tmp_path / "board", "#!/bin/sh\ncat >%s/ran\n" % tmp_path)
    for verb in VERBS:
        child = run([lean, verb, "--help"], EDGEQ_PYTHON=sys.executable)
        assert child.returncode == 0 and child.stdout.startswith("usage: edgeq " + verb), child
    child = run([lean, "work", "--once", "--config", config], EDGEQ_PYTHON=sys.executable)
    assert child.returncode == 0 and json.loads((tmp_path / "ran").read_text()) == {"a": 1}, child
    with open(config, "a") as lines:
        lines.write("STORE=sqlite:%s/q.db\n" % tmp_path)
    child = run([lean, "ls", "--config", config], EDGEQ_PYTHON=sys.executable)
    assert child.returncode == 78 and "built without it" in child.stderr and child.stderr.count("\n") == 1


@pytest.mark.parametrize("python", USABLE, ids=lambda path: "%d.%d" % INTERPRETERS[path])
def test_without_source_another_interpreter_is_one_clear_line(tmp_path, source, python):
    lean = build(tmp_path / "edgeq.pyz", source, "--no-source")
    for command in ([lean], [python, lean]):
        child = run(command, EDGEQ_PYTHON=python)
        if INTERPRETERS[python] == sys.version_info[:2]:
            assert answer(child)["rare"] == "found"
        else:
            assert (child.returncode, child.stdout, child.stderr.count("\n")) == (69, "", 1), child
            assert "byte code for Python %d.%d and no source" % sys.version_info[:2] in child.stderr


# The device's files


def test_install_lays_out_the_device(tmp_path):
    root = tmp_path / "root"
    subprocess.run(["make", "-s", "-C", REPO, "install", "DESTDIR=%s" % root, "PYTHON=%s" % sys.executable], check=True,
                   umask=0o077, capture_output=True)
    files = {str(path.relative_to(root)): stat.filemode(path.stat().st_mode) for path in root.rglob("*")}
    assert all(mode == "drwxr-xr-x" for mode in files.values() if mode.startswith("d"))
    programs = ["usr/bin/edgeq", "usr/lib/edgeq/edgeq.pyz", "usr/lib/edgeq/json-get",
                *("etc/edgeq/handlers/" + name for name in ("send_webhook", "archive_log", "run_script"))]
    texts = ["usr/lib/edgeq/handler.sh", "etc/edgeq.conf", "etc/edgeq/handlers.conf", "etc/default/edgeq",
             "usr/share/doc/edgeq/LICENSE", "usr/share/doc/edgeq/CHANGES.md"]
    assert {name: files.get(name) for name in programs} == dict.fromkeys(programs, "-rwxr-xr-x")
    assert {name: files.get(name) for name in texts} == dict.fromkeys(texts, "-rw-r--r--")
    assert {"etc/edgeq.conf.d", "etc/edgeq/scripts"} <= set(files)


# The real thing


@pytest.fixture
def real(tmp_path):
    return build(tmp_path / "real.pyz", REPO)


@pytest.mark.parametrize("python", USABLE, ids=lambda path: "%d.%d" % INTERPRETERS[path])
def test_the_real_thing_knows_its_verbs_and_whether_it_has_byte_code(tmp_path, real, python):
    """As it is shipped, not as the source tree runs: what starts the worker, the audit, and a look by every other verb."""
    (tmp_path / "conf").write_text("SPOOL=%s/spool\nRUN_DIR=%s/run\nHANDLERS=%s\n" % (tmp_path, tmp_path, tmp_path))
    environment = {"EDGEQ_CONF": str(tmp_path / "conf"), "EDGEQ_PYTHON": python}
    child = run([real, "work", "--preflight"], **environment)
    assert child.returncode == 0 and ": fit: " in child.stdout, child
    assert ("no byte code" in child.stderr) == (INTERPRETERS[python] != sys.version_info[:2]), child
    for words in (["check"], ["enqueue", "t"], ["status", "-v"], ["ls"], ["log"], ["show", "x"], ["why", "x"], ["kick", "x"],
                  ["cancel", "x"], ["purge", "dlq"], ["pause"], ["resume"], ["wait", "x"], ["drain"], ["move"], ["forward"],
                  ["work", "--once"], ["top", "--help"]) if INTERPRETERS[python] == sys.version_info[:2] else (["check"],):
        child = run([real, *words], **environment)
        assert child.returncode in (0, 1, 2, 64, 75) and "bug" not in child.stderr, child


MEASURE = """
import sys
bare = set(sys.modules)
sys.path.insert(0, sys.argv[1])
{0}
print("\\n".join(sorted(set(sys.modules) - bare)), file=sys.__stdout__)
"""


def modules_added(python, pyz, body, *arguments):
    """Names of the modules that BODY loads into a bare interpreter."""
    child = run([python, "-IS", "-c", MEASURE.format(body), pyz, *arguments])
    assert child.returncode == 0, child.stderr
    return set(child.stdout.split())


def not_allowed(modules):
    return sorted(m for m in modules - ALLOWED if m.split(".")[0] != "edgeq")


@pytest.mark.parametrize("python", USABLE, ids=lambda path: "%d.%d" % INTERPRETERS[path])
def test_the_worker_loads_nothing_but_what_is_allowed(real, python):
    modules = modules_added(python, real, "import edgeq.worker")
    assert "edgeq.worker" in modules
    assert not_allowed(modules) == []


@pytest.mark.parametrize("python", USABLE, ids=lambda path: "%d.%d" % INTERPRETERS[path])
def test_running_a_job_loads_nothing_more(tmp_path, real, python):
    config = make_board(tmp_path / "board", "#!/bin/sh\ncat >%s/ran\n" % tmp_path)
    body = "from edgeq.cli import main\nif main(sys.argv[2:]): sys.exit(1)"
    modules = modules_added(python, real, body, "work", "--once", "--config", config)
    assert json.loads((tmp_path / "ran").read_text()) == {"a": 1}
    assert not_allowed(modules) == []
