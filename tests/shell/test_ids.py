"""One id, one job: what a second enqueue of an id finds, says and flushes."""

import os
import re
import shutil
import subprocess

import pytest

from tests.shell.board import journal_line, read_until, tool


def again(board, *words, id="x", **more):
    return board.edgeq("enqueue", "t", "--id", id, *words, **more)


def assert_known(board, said="already queued", **more):
    """The id is known: exit 0, the id, the reason on stderr; the spool is as it was."""
    before = board.tree()
    result = again(board, **more)
    assert (result.code, result.out, result.err) == (0, "x\n", "edgeq: enqueue: x: %s\n" % said), result
    after = board.tree()
    assert {path: what for path, what in after.items() if path.startswith(str(board.q))} == \
        {path: what for path, what in before.items() if path.startswith(str(board.q))}


TOKEN = "abcd1234-77-1000-1"


@pytest.mark.parametrize("folder, tail", [("incoming", "json"), ("failed", "json"), ("processing", TOKEN + ".json"),
                                          ("processing", TOKEN + ".settling"), ("incoming", "v2.json")])
def test_a_job_that_is_there(any_board, folder, tail):
    any_board.waiting("x", folder=folder, tail=tail, due="1798761600a", att="3r")
    assert_known(any_board)


def test_a_dead_letter(any_board):
    (any_board.q / "dlq/x.json").write_text('{"id":"x","type":"t","payload":{}}\n')
    assert_known(any_board, "already dead")


def test_a_done_job(any_board):
    any_board.segment([journal_line("x%d" % i, i) for i in range(1, 50)], seq=1)
    any_board.segment([journal_line("w", 50), journal_line("x", 51, note="r\\x20s:;"), journal_line("y", 52)], seq=2, count=49)
    assert_known(any_board, "already done")


def test_a_torn_journal_line_does_not_count(any_board):
    good = journal_line("x", 1)
    bad = [good[:-2] + ("1" if good[-2] == "0" else "0") + "\n", good.replace(" 12 ", " 13 "), "x 1\n", "x\n",
           good[:30] + "\n", good.upper(), "x " * 9 + "\n"]
    any_board.segment(bad)
    result = again(any_board)
    assert result.code == 0 and result.err == "", result
    assert len(any_board.names("incoming")) == 1


def test_names_that_only_look_alike(board):
    """The id is exactly the sixth field."""
    board.waiting("xx")
    board.waiting("y", type="x")
    board.waiting("y2", folder="processing", type="x", tail=TOKEN + ".json")
    board.waiting("y3", folder="processing", tail="x.json")
    (board.q / "incoming/note.x.json").write_text("{}")
    (board.q / "incoming/.5.1752999990000000.0.0.t.x.json").write_text("{}\n")
    (board.q / "dlq/.x.json").write_text("{}\n")
    board.segment([journal_line("xx", 1), journal_line("y", 2, note="x")])
    result = again(board)
    assert result.code == 0 and result.err == "", result


def test_a_dead_letter_that_a_person_moved_back(board):
    (board.q / "incoming/x.json").write_text('{ "id" : "x",\n "type":"t"}\n')
    assert_known(board)
    (board.q / "incoming/x.json").write_text('{"id":"other","type":"t"}\n')
    assert again(board).err == ""


@pytest.mark.parametrize("text", ["", "{", '{"id":"x","type":"t","created_at":1752999990,"payload":{}}', "\0" * 60, '{"id":"x"\n'])
@pytest.mark.parametrize("folder, tail", [("incoming", "json"), ("failed", "json"), ("processing", TOKEN + ".json")])
def test_a_torn_file_is_replaced(board, folder, tail, text):
    """B02. The new one is published and flushed before the torn one goes."""
    torn = board.waiting("x", folder=folder, tail=tail, text=text)
    if text.endswith("\n"):  # a whole line: somebody's record of several lines, not torn
        assert_known(board)
        return
    log = board.root / "strace"
    strace = [tool("strace"), "-f", "-y", "-qq", "-o", str(log), "-e", "trace=rename,fsync,unlink,unlinkat,write"]
    result = again(board, prefix=strace)
    assert (result.code, result.out, result.err) == (0, "x\n", ""), result
    assert not torn.exists()
    name, record = board.only()
    assert record.endswith('"payload":{}}\n')
    calls = log.read_text()
    order = [calls.index("rename("), calls.index("fsync("), calls.index("unlink"), calls.index('write(1<', calls.index("unlink"))]
    assert order == sorted(order), calls
    assert name in calls[order[1]:order[2]]


def test_a_torn_dead_letter_is_replaced(board):
    (board.q / "dlq/x.json").write_text("")
    assert again(board).err == ""
    assert board.names("dlq") == [] and len(board.names("incoming")) == 1


@pytest.mark.parametrize("plant", ["link", "folder", "fifo"])
def test_what_is_no_regular_file_is_not_opened(board, tmp_path, plant):
    """B71: a link, a FIFO or a folder under a job's name."""
    path = board.q / "incoming/5.1752999990000000.0.0.t.x.json"
    secret = tmp_path / "secret"
    secret.write_text("{secret}\n")
    if plant == "link":
        path.symlink_to(secret)
    elif plant == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    result = again(board)
    assert result.code == 0 and result.out == "x\n", result
    assert secret.read_text() == "{secret}\n"
    assert any(name != path.name for name in board.names("incoming"))


def test_the_existing_file_is_flushed_first(board):
    path = board.waiting("x", folder="failed")
    log = board.root / "strace"
    again(board, prefix=[tool("strace"), "-f", "-y", "-qq", "-o", str(log), "-e", "trace=openat,fsync,write"])
    calls = log.read_text()
    assert "fsync(1<%s>) = 0" % path in calls
    assert calls.index("fsync(") < calls.index('"x\\n"')
    assert not re.search(r"%s\"?, O_(WRONLY|RDWR)" % path, calls)


def test_the_journal_is_flushed_first(board):
    path = board.segment([journal_line("x", 1)])
    log = board.root / "strace"
    again(board, prefix=[tool("strace"), "-f", "-y", "-qq", "-o", str(log), "-e", "trace=fsync,write"])
    calls = log.read_text()
    assert "fsync(1<%s>) = 0" % path in calls and calls.index("fsync(") < calls.index('"x\\n"')


def test_an_existing_job_that_cannot_be_flushed_is_74(board):
    board.waiting("x")
    result = again(board, prefix=[tool("strace"), "-f", "-qq", "-o", "/dev/null", "-e", "inject=fsync:error=EIO"])
    assert result.code == 74 and result.out == "" and "repeat with the same --id x" in result.err, result


@pytest.mark.parametrize("folder", ["incoming", "failed"])
def test_after_a_failed_flush_a_new_file_takes_its_place(any_board, folder):
    """The second flush of a file proves nothing (tests/crash/doubt.py)."""
    board = any_board
    path = board.waiting("x", folder=folder)
    refused = again(board, prefix=[tool("strace"), "-f", "-qq", "-o", "/dev/null", "-e", "inject=fsync:error=EIO"])
    assert refused.code == 74 and (board.r / "doubt").stat().st_size > 0, refused
    inode, data = path.stat().st_ino, path.read_bytes()
    told = again(board)
    assert (told.code, told.out) == (0, "x\n"), told
    assert path.stat().st_ino != inode and path.read_bytes() == data and board.names(folder) == [path.name]
    refused = again(board, prefix=[tool("strace"), "-f", "-qq", "-o", "/dev/null", "-e", "inject=fsync:error=EIO"])
    assert refused.code == 74 and refused.out == "" and board.names(folder) == [path.name], refused


def test_a_failed_flush_is_noted_without_a_folder_in_ram_too(any_board):
    """An id that was generated, before any worker or lock: the repeat is another process and must know."""
    board = any_board
    shutil.rmtree(board.r, ignore_errors=True)
    fault = [tool("strace"), "-f", "-qq", "-o", "/dev/null", "-e", "inject=fsync:error=EIO"]
    refused = board.edgeq("enqueue", "t", prefix=fault)
    assert refused.code == 74 and len(refused.err.splitlines()) == 1, refused
    assert (board.r / "doubt").read_text() == "1"
    id = re.search(r"--id (\S+)$", refused.err.strip())[1]
    (name,) = board.names("incoming")
    inode = (board.q / "incoming" / name).stat().st_ino
    assert again(board, id=id).out == id + "\n"
    assert board.names("incoming") == [name] and (board.q / "incoming" / name).stat().st_ino != inode


def test_the_new_file_is_safe_before_it_has_the_name(board):
    """The one in its place may have been safe all the time."""
    path = board.waiting("x")
    board.r.mkdir(parents=True, exist_ok=True)
    (board.r / "doubt").write_text("1")
    log = board.root / "strace"
    assert again(board, prefix=[tool("strace"), "-f", "-y", "-qq", "-o", str(log), "-e", "trace=fsync,rename,write"]).code == 0
    calls = log.read_text()
    steps = [r"write\(1<%s/\.[0-9a-f-]+>" % path.parent, r"fsync\(1<%s/\." % path.parent, r"rename\(.*%s\"\)" % path.name,
             r"fsync\(1<%s>" % path.parent, r'write\(1<pipe:.*"x\\n"']
    assert re.search(".*".join(steps), calls, re.S), calls


def test_after_a_failed_flush_a_claim_is_not_touched(board):
    board.waiting("x", folder="processing", tail=TOKEN + ".json")
    board.r.mkdir(parents=True, exist_ok=True)
    (board.r / "doubt").write_text("1")
    before = board.tree()
    result = again(board)
    assert result.code == 75 and result.out == "" and "repeat when it has ended" in result.err, result
    assert {path: what for path, what in board.tree().items() if path.startswith(str(board.q))} == {
        path: what for path, what in before.items() if path.startswith(str(board.q))}


def test_an_existing_job_on_a_full_spool_is_still_known(board):
    board.waiting("x")
    board.configure(MIN_FREE_KB=999999999999, MAX_JOBS=1)
    assert_known(board)


def test_the_lookup_is_under_the_lock_on_ids(board):
    """While somebody holds id.lock, an enqueue with an id waits."""
    (board.r / "id.lock").write_text("")
    holder = subprocess.Popen([tool("flock"), str(board.r / "id.lock"), "sh", "-c", "echo held; read line"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    strace = [tool("strace"), "-f", "-qq", "-e", "trace=flock"]
    waiter = subprocess.Popen([*strace, *board.argv("enqueue", "t", "--id", "x")], env=board.env(), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
    read_until(waiter, b"flock(9, LOCK_EX")  # it has asked for the lock ...
    assert board.names("incoming") == []  # ... and does nothing before it has it
    board.waiting("x")
    holder.communicate(b"\n")
    out, err = waiter.communicate(timeout=30)
    assert out == b"x\n" and b"already queued" in err


def test_a_job_on_its_way_is_found(board):
    """RACE: its try fails while we look, after the look at failed/ and before the one at processing/ has read a name."""
    claimed = board.waiting("x", folder="processing", tail=TOKEN + ".json")
    strace = [tool("strace"), "-f", "-qq", "-P", "%s/processing/" % board.q, "-e", "trace=openat",
              "-e", "inject=openat:delay_exit=2000000:when=1"]  # strace tells of the call, then holds it
    process = subprocess.Popen([*strace, *board.argv("enqueue", "t", "--id", "x")], env=board.env(), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    read_until(process, b"O_DIRECTORY")
    os.rename(claimed, board.q / "failed" / claimed.name.replace(TOKEN + ".", ""))
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0 and out == b"x\n" and b"already queued" in err
    assert board.names("incoming") == []
