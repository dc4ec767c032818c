"""What the disk sees, in which order, and what happens when a call fails (P2, P3, P7)."""

import re
import subprocess

import pytest

from tests.shell.board import WRAPPER, tool

OBJECT = '{"url":"https://example.net/hook","n":12345,"list":[1,2,3],"text":"hello wide world, one two three"}'


def trace(board, *words, calls="openat,write,rename,renameat,renameat2,unlink,unlinkat,fsync,fdatasync,sync,syncfs,link,linkat"):
    log = board.root / "strace"
    result = board.edgeq(*words, prefix=[tool("strace"), "-f", "-y", "-qq", "-s", "100", "-o", str(log), "-e", "trace=" + calls])
    return result, log.read_text().splitlines()


def inject(board, *words, what, path=None):
    """The wrapper's result with a fault injected by strace."""
    strace = [tool("strace"), "-f", "-qq", "-o", "/dev/null", "-e", "inject=" + what]
    return board.edgeq(*words, prefix=strace + (["-P", str(path)] if path else []))


def at(lines, pattern):
    found = [i for i, line in enumerate(lines) if re.search(pattern, line)]
    assert len(found) == 1, (pattern, [lines[i] for i in found], lines)
    return found[0]


def test_write_rename_flush_and_then_the_id(board):
    """B03: the flush goes to the file that was written, and the id comes after it."""
    result, lines = trace(board, "enqueue", "t", OBJECT)
    id = result.out.strip()
    (name,) = board.names("incoming")
    final = re.escape(str(board.q / "incoming" / name))
    dot = re.escape(str(board.q / "incoming")) + r"/\.[0-9a-f]{8}-[0-9a-f-]{27}"
    order = [at(lines, r'openat\(.*"%s", O_WRONLY\|O_CREAT\|O_TRUNC.*, 0666' % dot), at(lines, r'write\(\d+<%s>, "\{' % dot),
             at(lines, r'rename\("%s", "%s"\) = 0' % (dot, final)), at(lines, r"fsync\(\d+<%s>\) = 0" % final),
             at(lines, r'write\(1<.*>, "%s\\n"' % id)]
    assert order == sorted(order)
    assert not [line for line in lines if re.search(r"\b(sync|syncfs|fdatasync|link|unlink)", line)]
    assert sum("fsync(" in line for line in lines) == 1


def test_nothing_below_the_spool_is_opened_for_writing_by_its_final_name(board):
    _, lines = trace(board, "enqueue", "t")
    writes = [line for line in lines if str(board.q) in line and re.search(r"O_WRONLY|O_RDWR", line)]
    assert len(writes) == 1 and "/incoming/." in writes[0]


def test_fast_does_not_flush_and_says_so(board):
    result, lines = trace(board, "enqueue", "t", "--id", "x", "--fast")
    assert result.code == 0 and not [line for line in lines if "sync(" in line]
    assert "x: not flushed (--fast): a power cut may still lose it" in result.err


@pytest.mark.parametrize("words, forks", [
    ((), 2), (("{}",), 2), (("--text", "hello wide world"), 2), (("--delay", "5", "--priority", "1"), 2),
    (("--key", "k"), 4),
    ((OBJECT,), 2),
    (("--text", 'a "quoted" word'), 3), (("--id", "x"), 3), (("--id", "x", OBJECT), 3), (("--fast",), 1)])
def test_forks_are_few(board, words, forks):
    """A builtin beats an applet."""
    board.has_worker()
    board.edgeq("enqueue", "t", "--fast", "--priority", "9")
    log = board.root / "strace"
    strace = [tool("strace"), "-f", "-qq", "-o", str(log), "-e", "trace=clone,clone3,fork,vfork"]
    assert board.edgeq("enqueue", "t", *words, prefix=strace).code == 0
    assert len(re.findall(r"(?:clone3?|v?fork)\(.*= \d", log.read_text())) == forks


def test_the_status_of_a_living_worker_costs_one_fork(board):
    board.has_worker()
    log = board.root / "strace"
    strace = [tool("strace"), "-f", "-qq", "-o", str(log), "-e", "trace=clone,clone3,fork,vfork"]
    assert board.edgeq("status", prefix=strace).code == 0
    assert len(re.findall(r"(?:clone3?|v?fork)\(.*= \d", log.read_text())) == 1


def test_a_failed_flush_is_74_and_names_the_id(board):
    """B18: no silent second try; the job may still run, and a repeat with the id is safe."""
    result = inject(board, "enqueue", "t", what="fsync:error=EIO:when=1")
    assert result.code == 74 and result.out == "", result
    (name,) = board.names("incoming")
    id = name.split(".")[5]
    assert re.fullmatch(r"edgeq: enqueue: %s: the flush failed: [^:]+: it may still run; repeat with the same --id %s\n" % (id, id),
                        result.err)
    repeat = board.edgeq("enqueue", "t", "--id", id)
    assert (repeat.code, repeat.out) == (0, id + "\n") and "already queued" in repeat.err
    assert len(board.names("incoming")) == 1


@pytest.mark.parametrize("error", ["EINVAL", "EOPNOTSUPP", "ENOSYS"])
def test_a_file_system_that_cannot_flush_a_file(board, error):
    """B18: accepted, the whole system is flushed, and it is said once."""
    result = inject(board, "enqueue", "t", what="fsync:error=" + error)
    assert result.code == 0 and result.out, result
    assert result.err.count("\n") == 1 and "durability is reduced" in result.err


@pytest.mark.parametrize("call, error, code, says", [
    ("rename", "EIO", 74, "I/O error"), ("rename", "ENOSPC", 75, "no room"), ("rename", "EROFS", 74, "read-only"),
    ("rename", "EACCES", 77, "not permitted"), ("rename", "EDQUOT", 75, "quota"), ("rename", "EMFILE", 73, ""),
    # the builtins give no errno; an applet (a subshell) asked for it finds the disk well again
    ("write", "EIO", 74, "the write failed"), ("openat", "EIO", 73, "see 'edgeq check'")])
def test_a_failing_call_is_told_apart_and_leaves_nothing(board, call, error, code, says):
    """The call that touches the new file fails (and, but for the write, what the same process asks after it)."""
    board.has_worker()
    board.enqueue("t")  # R/seq is there from now on: each run makes the same calls
    (board.q / "incoming" / board.names("incoming")[0]).unlink()
    _, lines = trace(board, "enqueue", "t", "--text", "a fine long text", calls=call)
    (board.q / "incoming" / board.names("incoming")[0]).unlink()
    lines = [line for line in lines if call + "(" in line]
    mine = next(i for i, line in enumerate(lines) if "/incoming/." in line)
    number = sum(line.split()[0] == lines[mine].split()[0] for line in lines[:mine + 1])  # strace counts per process
    when = "%d" if call == "write" else "%d+"
    result = inject(board, "enqueue", "t", "--text", "a fine long text", what="%s:error=%s:when=%s" % (call, error, when % number))
    assert result.code == code and result.out == "", (number, result)
    assert re.fullmatch(r"edgeq: enqueue: [ -~]+\n", result.err) and says in result.err, result
    assert board.names("incoming") == []


def in_small_spool(board, options, script, *words):
    """Run `script` in a namespace where the spool is a tiny tmpfs. $E is the wrapper."""
    setup = ("mount -t tmpfs -o %s spool %s || exit 99; mkdir -p %s; E='%s %s'; PATH=%s; export PATH\n"
             % (options, board.spool, " ".join(str(board.q / name) for name in
                                               ("incoming", "processing", "failed", "dlq", "corrupt", "done")),
                board.bin / "sh", WRAPPER, board.bin))
    done = subprocess.run([tool("unshare"), "-Urm", "sh", "-c", setup + script, "sh", *words], env=board.env(PATH="/usr/bin:/bin"),
                          capture_output=True, timeout=60)
    assert done.returncode != 99, done.stderr
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("size", [200, 20000, 60000])
def test_a_full_disk_is_75_bytes_and_leaves_nothing(board, size):
    """B14: no part of a record is visible, no id is printed; with room again the same request is accepted."""
    script = """
        dd if=/dev/zero of=$Q/fill bs=4096 2>/dev/null
        $E enqueue t --text "$1"; echo code $?
        ls -A $Q/incoming
        rm $Q/fill
        $E enqueue t --text "$1" >/dev/null; echo code $?
        ls $Q/incoming | wc -l""".replace("$Q", str(board.q))
    code, out, err = in_small_spool(board, "size=256k", script, "x" * size)
    assert out == "code 75\ncode 0\n1\n", (out[:200], err)
    assert re.fullmatch(r"edgeq: enqueue: \S+: no room: bytes: [ -~]+\n", err), err


def test_no_inodes_is_75_inodes(board):
    script = """
        i=0; while touch $Q/fill$i 2>/dev/null; do i=$((i + 1)); done
        $E enqueue t; echo code $?
        ls -A $Q/incoming""".replace("$Q", str(board.q))
    code, out, err = in_small_spool(board, "size=4m,nr_inodes=40", script)
    err = "".join(line for line in err.splitlines(True) if line.startswith("edgeq:"))
    assert out == "code 75\n", (out, err)
    assert re.fullmatch(r"edgeq: enqueue: \S+: no room: inodes: [ -~]+\n", err), err


def test_a_read_only_spool_is_74_and_status_still_speaks(board):
    """B17."""
    script = """
        mount -o remount,ro %s
        $E enqueue t; echo code $?
        $E enqueue t --id x; echo code $?
        $E pause; echo code $?
        $E status; echo code $?""" % board.spool
    code, out, err = in_small_spool(board, "size=1m", "PATH=/usr/bin:/bin; " + script)
    lines = out.splitlines()
    assert lines[:3] == ["code 74"] * 3, (out, err)
    assert re.fullmatch(r"\S+ queue=default .* worker=down .* last_error=\"\"", lines[3]) and lines[4] == "code 2"
    assert err.count("read-only file system: remount the spool read-write") == 3 and err.count("\n") == 3


def test_a_spool_below_a_required_mount(board):
    board.configure(REQUIRE_MOUNT=board.spool)
    code, out, err = in_small_spool(board, "size=1m", "$E enqueue t --id x; umount %s; $E enqueue t --id y" % board.spool)
    assert out == "x\n" and "not mounted" in err and code == 75


def test_killed_at_any_call_leaves_nothing_half_done(board):
    """Kill the wrapper or an applet at the n-th call: an acknowledged job is whole, any other is whole or a dot-file."""
    for call in ("openat", "write", "rename", "fsync"):
        for number in range(1, 30):
            before = set(board.names("incoming"))
            strace = [tool("strace"), "-f", "-qq", "-o", "/dev/null", "-e", "inject=%s:signal=KILL:when=%d" % (call, number)]
            done = subprocess.run(strace + board.argv("enqueue", "t", OBJECT), env=board.env(), capture_output=True, timeout=60)
            new = set(board.names("incoming")) - before
            whole = [name for name in new if not name.startswith(".")]
            for name in whole:
                assert (board.q / "incoming" / name).read_text().endswith("}\n")
            assert len(new) <= 1
            if done.stdout:
                assert [name.split(".")[5] for name in whole] == [done.stdout.decode().strip()]
            if done.returncode == 0 and not new:
                raise AssertionError("success and no job")
            if done.returncode == 0:
                break


def test_a_pause_is_published_like_a_job(board):
    result, lines = trace(board, "pause", "t")
    final = re.escape(str(board.q / "paused.t"))
    order = [at(lines, r'write\(\d+<%s/\.[0-9a-f-]{36}>' % re.escape(str(board.q))), at(lines, r'rename\(".*", "%s"\) = 0' % final),
             at(lines, r"fsync\(\d+<%s>\) = 0" % final)]
    assert order == sorted(order) and result.code == 0


def test_resume_flushes_the_folder(board):
    board.edgeq("pause")
    result, lines = trace(board, "resume")
    folder = re.escape(str(board.q))
    order = [at(lines, r'unlink(at)?\(.*"%s/paused"' % folder), at(lines, r"fsync\(1<%s>\) = 0" % folder)]
    assert order == sorted(order) and result.code == 0


def test_a_pause_that_cannot_be_flushed_is_74(board):
    assert inject(board, "pause", what="fsync:error=EIO").code == 74
    board.edgeq("pause")
    assert inject(board, "resume", what="fsync:error=EIO").code == 74
