"""enqueue: every option, the bytes it writes, what it refuses and how it says so."""

import json
import os
import re
import subprocess
import time

import pytest

from tests.shell.board import WRAPPER, journal_line, tool, uptime

NAME = re.compile(r"(\d)\.(\d{16})\.(\d+a?)\.0\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.json")


def parts(board):
    name, text = board.only()
    match = NAME.fullmatch(name)
    assert match, name
    return match.groups(), text


def test_the_record_to_the_byte(any_board):
    id = any_board.enqueue("t")
    (prio, seq, due, type, named), text = parts(any_board)
    assert (prio, due, type, named) == ("5", "0", "t", id)
    assert re.fullmatch(seq + "-[0-9a-f]{8}", id)
    assert text == '{"id":"%s","type":"t","created_at":%d,"payload":{}}\n' % (id, int(seq) // 1000000)


def test_every_option_to_the_byte(any_board):
    id = any_board.enqueue("send_webhook", '{"a": [1,2]}', "--id", "job-1", "--delay", "60", "--priority", "0",
                           "--max-attempts", "7", "--timeout", "30", "--expires", "86400", "--key", "site.a-1", "--fast")
    (prio, seq, due, type, named), text = parts(any_board)
    assert (prio, type, named, id) == ("0", "send_webhook", "job-1", "job-1")
    created = int(seq) // 1000000
    assert int(due) in (created + 60, created + 61) and int(due) * 1000000 >= int(seq) + 60000000  # never early
    assert text == ('{"id":"job-1","type":"send_webhook","created_at":%d,"priority":0,"max_attempts":7,"timeout_s":30,'
                    '"expires_s":86400,"key":"site.a-1","available_at":%s,"payload":{"a": [1,2]}}\n' % (created, due))


def test_options_may_be_written_with_an_equals_sign_and_before_the_type(board):
    assert board.enqueue("--id=a", "--priority=9", "t", "--text=x=y") == "a"
    name, text = board.only()
    assert name.startswith("9.") and text.endswith('"priority":9,"payload":"x=y"}\n')


def test_the_usual_priority_is_not_written(board):
    board.enqueue("t", "--priority", "5")
    assert "priority" not in board.only()[1]


@pytest.mark.parametrize("text, seconds", [
    ("2027-01-01T00:00:00Z", 1798761600), ("2028-02-29T23:59:59Z", 1835481599), ("2038-01-19T03:14:08Z", 2147483648),
    ("2100-03-01T00:00:00Z", 4107542400), ("1970-01-01T00:00:01Z", 1), ("2000-02-29T12:00:00Z", 951825600),
    ("4102444800", 4102444800), ("08", 8)])
def test_at_is_a_point_in_time(board, text, seconds):
    board.enqueue("t", "--at", text)
    name, record = board.only()
    assert name.split(".")[2] == "%da" % seconds
    assert '"available_at":%d,' % seconds in record


@pytest.mark.parametrize("text", ["2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-00-10T00:00:00Z", "2026-01-01T24:00:00Z",
                                  "2026-01-01 00:00:00", "2026-01-01T00:00:00", "tomorrow", "", "-1", "0", "1e18", "9000000000",
                                  "1000000000000000000", "NaN", "9999-12-31T23:59:59Z", "2100-02-29T00:00:00Z"])
def test_no_such_time(board, text):
    assert_refused(board, 64, "enqueue", "t", "--at", text)


def test_delay_zero_is_now(board):
    board.enqueue("t", "--delay", "0")
    assert board.only()[0].split(".")[2] == "0"


def assert_refused(board, code, *words, says="", **more):
    """Refused with `code`, one line on stderr, nothing printed, nothing written."""
    before = board.tree()
    result = board.edgeq(*words, **more)
    assert result.code == code, result
    assert result.out == ""
    assert re.fullmatch(r"edgeq: [ -~]*\n", result.err), result
    assert says in result.err, result
    assert board.tree() == before
    return result


@pytest.mark.parametrize("words, says", [
    (["t", "--delay"], "--delay: needs a value"),
    (["t", "--delay", "x"], "--delay: not a whole number from 0 to 315360000"),
    (["t", "--delay", "-1"], "--delay"), (["t", "--delay", "315360001"], "--delay"),
    (["t", "--delay", "99999999999999999999"], "--delay"),
    (["t", "--priority", "10"], "--priority: not a whole number from 0 to 9"), (["t", "--priority", ""], "--priority"),
    (["t", "--max-attempts", "0"], "--max-attempts"), (["t", "--max-attempts", "1000"], "--max-attempts"),
    (["t", "--timeout", "0"], "--timeout"), (["t", "--timeout", "604801"], "--timeout"), (["t", "--expires", "0"], "--expires"),
    (["t", "--key", ".x"], "--key"), (["t", "--key", "a/b"], "--key"), (["t", "--key", "k" * 65], "--key"),
    (["t", "--latest"], "--latest: needs --key"),
    (["t", "--delay", "1", "--at", "5"], "one of --delay and --at"),
    (["t", "{}", "{}"], "one argument too many"), (["t", "{}", "--text", "x"], "one payload only"),
    (["t", "--text", "x", "--file", "/x"], "one payload only"),
    (["t", "--nonsense"], "--nonsense: no such option"), (["t", "-x"], "-x: no such option"), (["t", "--fast=1"], "no such option"),
    (["t", "--queue", "a/b"], "--queue: not a queue name"), (["t", "--queue"], "--queue: needs a value"),
    ([], "TYPE: missing"), (["--fast"], "TYPE: missing"),
])
def test_bad_usage_is_64_and_named(board, words, says):
    assert_refused(board, 64, "enqueue", *words, says=says)


HOSTILE = ["../x", "/etc/passwd", ".", "..", "", "a/b", "a\\b", "x" * 300, "a\nb", "-rf", ".hidden", "con*?", "a b", "$(id)",
           "`id`", "a;id", "ü", "a\x1b[2J", "x" * 65, "%s", "a.b"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("place", ["id", "type", "key", "queue"])
def test_hostile_words_are_refused(board, place, text):
    """B68: ids, types, keys and queues are checked before they come near a path, and never shown raw (B77)."""
    if place == "key" and text == "a.b":
        return
    words = ["--", text] if place == "type" else ["t", "--%s=%s" % (place, text)]
    assert_refused(board, 64, "enqueue", *words)


def test_a_type_that_looks_like_an_option_is_one(board):
    assert_refused(board, 64, "enqueue", "-rf")


def test_bare_edgeq_is_a_short_usage(board):
    result = board.edgeq()
    assert result.code == 64 and result.out == "" and result.err.startswith("usage: edgeq enqueue TYPE")
    assert all(len(line) <= 80 for line in result.err.splitlines())
    assert board.edgeq("--queue", "x").code == 64


def test_another_queue(bare_board):
    assert bare_board.edgeq("--queue", "urgent", "enqueue", "t").code == 0
    assert bare_board.edgeq("enqueue", "t", "--queue=urgent").code == 0
    assert len(os.listdir(bare_board.spool / "urgent/incoming")) == 2
    assert os.listdir(bare_board.spool) == ["urgent"]


# --- the configuration ----------------------------------------------------------------------------------------


def test_config_option_before_and_after_the_verb(board, tmp_path):
    other = tmp_path / "other.conf"
    lines = '# a comment\n\nSPOOL="%s"  # quoted\r\nRUN_DIR=%s\r\nQUEUE=q2\nNEVER_HEARD=1\n'
    other.write_text(lines % (tmp_path / "s", tmp_path / "r"))
    for words in (["--config", str(other), "enqueue", "t"], ["enqueue", "t", "--config=%s" % other]):
        assert board.edgeq(*words).code == 0
    assert len(os.listdir(tmp_path / "s/q2/incoming")) == 2
    assert board.names("incoming") == []


def test_the_last_of_equal_keys_wins_and_the_queue_file_overrides(board, tmp_path):
    board.conf.write_text("SPOOL=/nowhere\nSPOOL=%s\nRUN_DIR=%s\nMAX_PAYLOAD_KB=64\n" % (board.spool, board.run_dir))
    (tmp_path / "board/edgeq.conf.d").mkdir()
    (tmp_path / "board/edgeq.conf.d/@default.conf").write_text("MAX_PAYLOAD_KB=1\n")
    assert board.edgeq("enqueue", "t", "--text", "x" * 1500).code == 65
    assert board.edgeq("enqueue", "t", "--text", "x" * 1500, "--queue", "other").code == 0


def test_a_long_configuration_is_read_whole(board):
    board.conf.write_text("# a comment of no use\n" * 300 + "SPOOL=%s\nRUN_DIR=%s" % (board.spool, board.run_dir) + "\n" * 5)
    board.enqueue("t")
    board.conf.write_text("SPOOL=%s\nRUN_DIR=%s\n%sMAX_JOBS=x\n" % (board.spool, board.run_dir, "# a comment of no use\n" * 300))
    assert_refused(board, 78, "enqueue", "t", says="line 303: MAX_JOBS=x: not a whole number")


def test_the_configuration_is_never_executed(board, tmp_path):
    marker = tmp_path / "executed"
    board.conf.write_text("SPOOL=%s\nRUN_DIR=%s\nLOG=$(touch %s)\nNODE=`touch %s`\nHANDLERS=/x;touch %s\n"
                          % (board.spool, board.run_dir, marker, marker, marker))
    board.enqueue("t")
    assert not marker.exists()


@pytest.mark.parametrize("line, says", [
    ("MAX_JOBS=many", "line 3: MAX_JOBS=many: not a whole number"), ("MAX_JOBS=0", "line 3"), ("MAX_JOBS=", "line 3"),
    ("MIN_FREE_KB=-1", "line 3"), ("MAX_PAYLOAD_KB=99999999", "line 3"), ("SPOOL=relative", "not an absolute path"),
    ("RUN_DIR=x", "not an absolute path"), ("QUEUE=../x", "not a queue name"), ("CLOCK=sundial", "CLOCK=sundial"),
    ("just words", "no KEY=value"), ("=x", "no KEY=value"), ("BAD-KEY=1", "no KEY=value"), ('SPOOL="/x', "quote is not closed"),
    ('SPOOL="/x" y', "quote is not closed"), ("MAX_ATTEMPTS=0", "line 3"), ("REQUIRE_MOUNT=data", "not an absolute path"),
    ("MAX_JOBS=1\x1b[2J", "not printable"), ("SAFETY_SCAN_S=soon", "SAFETY_SCAN_S")])
def test_a_bad_value_is_78_with_file_and_line(board, line, says):
    """B94: before anything is touched."""
    board.conf.write_text("SPOOL=%s\nRUN_DIR=%s\n%s\n" % (board.spool, board.run_dir, line))
    result = assert_refused(board, 78, "enqueue", "t", says=says)
    assert str(board.conf) in result.err


def test_a_configuration_of_nuls_is_78(board):
    board.conf.write_bytes(b"\0" * 4096)
    assert_refused(board, 78, "enqueue", "t", says="not a text file")


def test_a_folder_for_a_configuration_is_78(board):
    assert_refused(board, 78, "enqueue", "t", "--config", str(board.root), says="cannot be read")


def test_a_missing_configuration_means_the_defaults(board):
    result = board.edgeq("status", env={"EDGEQ_CONF": "/nonexistent/edgeq.conf"})
    assert "queue=default " in result.out


# --- the environment (B75, B63, B73, B74) -----------------------------------------------------------------------


def test_from_an_unreadable_folder_without_home_and_stdin(board, tmp_path):
    (tmp_path / "gone").mkdir()
    script = 'cd "$1" && rmdir "$1" && exec "$2" "$3" enqueue t <&-'
    result = board.sh(script, str(tmp_path / "gone"), str(board.bin / "sh"), board.argv()[1])
    assert result.code == 0 and result.err == "", result


def test_tmpdir_is_not_used(board):
    assert board.edgeq("enqueue", "t", env={"TMPDIR": "/dev/shm/none", "HOME": "/nonexistent"}).code == 0


@pytest.mark.parametrize("mask", ["000", "022", "027", "077", "777"])
def test_the_mode_does_not_depend_on_the_umask(bare_board, mask):
    """B73."""
    script = 'umask "$1"; "$2" "$3" enqueue t --id "u$1" && "$2" "$3" pause'
    result = bare_board.sh(script, mask, str(bare_board.bin / "sh"), bare_board.argv()[1])
    assert result.code == 0, result
    q, r = bare_board.q, bare_board.r
    name, text = bare_board.only()
    assert os.stat(q / "incoming" / name).st_mode & 0o7777 == 0o640
    assert os.stat(q / "paused").st_mode & 0o7777 == 0o640
    assert os.stat(q / "incoming").st_mode & 0o7777 == 0o3770
    for folder in ("processing", "failed", "dlq", "corrupt", "done"):
        assert os.stat(q / folder).st_mode & 0o7777 == 0o2750
    assert os.stat(r / "seq").st_mode & 0o7777 == os.stat(r / "id.lock").st_mode & 0o7777 == 0o660


def test_who_may_not_write_is_told_77(board):
    """B73: not in the group."""
    os.chmod(board.q / "incoming", 0o750)
    board.open_to_all()
    result = board.edgeq("enqueue", "t", user=65534, group=65534, extra_groups=[])
    assert result.code == 77 and result.out == "", result
    assert "group edgeq" in result.err and result.err.count("\n") == 1
    assert board.names("incoming") == []


def test_a_member_of_the_group_may_enqueue_with_any_umask(bare_board):
    """B73: the folders that root's first enqueue made are good for the group."""
    bare_board.open_to_all()
    bare_board.enqueue("t")
    os.system("chgrp -R 4321 %s %s" % (bare_board.q, bare_board.r))
    result = bare_board.edgeq("enqueue", "t", "--id", "mine", user=65534, group=65534, extra_groups=[4321])
    assert result.code == 0, result
    assert len(bare_board.names("incoming")) == 2


def test_closed_stdout_queues_nothing(board):
    """B59: the id could not be told."""
    result = board.sh('"$@" >&-', *map(os.fsdecode, board.argv("enqueue", "t")))
    assert result.code == 74 and "stdout" in result.err and result.err.count("\n") == 1
    assert board.names("incoming") == []


def test_full_stdout_is_an_error_that_names_the_id(board):
    result = board.sh('"$@" >/dev/full', *map(os.fsdecode, board.argv("enqueue", "t", "--id", "x1")))
    assert result.code == 74 and "x1: was queued" in result.err
    assert len(board.names("incoming")) == 1


def test_closed_stderr_harms_nothing(board):
    result = board.sh('"$@" 2>&-', *map(os.fsdecode, board.argv("enqueue", "t", "--fast")))
    assert result.code == 0 and result.out.strip()
    (name,) = board.names("incoming")
    assert json.loads((board.q / "incoming" / name).read_text())["type"] == "t"


def test_nothing_ties_the_job_to_its_submitter(board):
    """B63: the session is killed right after exit 0."""
    script = '"$@" >/dev/null && kill -9 0'
    words = map(os.fsdecode, board.argv("enqueue", "t"))
    subprocess.run([tool("setsid"), str(board.bin / "sh"), "-c", script, "sh", *words], env=board.env())
    assert board.only()[1].endswith('"payload":{}}\n')


# --- room, mounts, stores ------------------------------------------------------------------------------------------


def test_too_little_free_space_is_75_bytes(board):
    board.configure(MIN_FREE_KB=999999999999)
    assert_refused(board, 75, "enqueue", "t", says="no room: bytes")


def test_too_many_jobs_is_75_jobs(board):
    board.configure(MAX_JOBS=3)
    board.waiting("a")
    board.waiting("b", folder="failed")
    board.enqueue("t")
    assert_refused(board, 75, "enqueue", "t", says="no room: jobs: 3 waiting, MAX_JOBS=3")


def test_the_limit_counts_one_folder_too(board):
    board.configure(MAX_JOBS=1)
    board.enqueue("t")
    assert_refused(board, 75, "enqueue", "t", says="no room: jobs: 1 waiting")


@pytest.mark.parametrize("what", ["bytes 12 KiB free", "inodes 3 free", "jobs 10000", "SPOOL_MAX_KB 512"])
def test_a_living_workers_verdict_counts(board, what):
    board.has_worker()
    ok = (board.r / "space").read_text()
    (board.r / "space").write_text(ok.replace("ok", "full").strip() + " %s\n" % what)
    assert_refused(board, 75, "enqueue", "t", says="no room: " + what)
    board.configure(MIN_FREE_KB=999999999999, MAX_JOBS=1)
    board.waiting("a")
    (board.r / "space").write_text(ok)  # it looks after both; the wrapper asks nobody else
    board.enqueue("t")


def test_a_dead_workers_verdict_does_not_count(board):
    (board.r / "space").write_text("full 999999999 1 bytes\n")
    board.enqueue("t")
    (board.r / "space").write_text("full %d 1 bytes\n" % os.getpid())  # the pid lives, but it is somebody else
    board.enqueue("t")
    (board.r / "space").write_bytes(b"\xff\0rubbish")
    board.enqueue("t")


def test_a_required_mount_that_is_not_there_is_75(bare_board):
    """B44: nothing is written below it."""
    bare_board.configure(REQUIRE_MOUNT=bare_board.root)
    assert_refused(bare_board, 75, "enqueue", "t", says="not mounted")
    assert_refused(bare_board, 75, "pause", says="not mounted")
    bare_board.configure(REQUIRE_MOUNT="/proc")
    bare_board.enqueue("t")
    (bare_board.root / "data").symlink_to("/proc")
    (bare_board.root / "away").symlink_to("/proc/self/nothing")
    bare_board.configure(REQUIRE_MOUNT=bare_board.root / "data")  # as the worker sees it
    bare_board.enqueue("t")
    bare_board.enqueue("t", "--id", "a")
    bare_board.configure(REQUIRE_MOUNT=bare_board.root / "away")
    assert_refused(bare_board, 75, "enqueue", "t", says="not mounted")


def test_a_fresh_board_is_made_ready(bare_board):
    """Before S85, in a recovery shell: no spool, no folder in RAM."""
    bare_board.enqueue("t")
    assert len(bare_board.names("incoming")) == 1
    assert (bare_board.r / "seq").read_text() == bare_board.names("incoming")[0].split(".")[1] + "\n"


def test_no_folder_in_ram_and_none_can_be_made(board):
    board.configure(RUN_DIR="/proc/nowhere")
    first, second = board.enqueue("t"), board.enqueue("t")
    assert first < second
    assert board.enqueue("t", "--id", "x") == board.enqueue("t", "--id", "x") == "x"


def test_a_file_in_a_folders_place_is_73(bare_board):
    bare_board.spool.mkdir()
    bare_board.q.write_text("")
    result = bare_board.edgeq("enqueue", "t")
    assert result.code == 73 and result.err.count("\n") == 1 and result.out == "", result


# --- what is Python's ------------------------------------------------------------------------------------------------


@pytest.fixture
def pyz(board):
    board.pyz.write_text('#!/bin/sh\necho python "$#" "$@" LC_ALL="${LC_ALL-unset}" umask=$(umask)\nexit 7\n')
    return board


@pytest.mark.parametrize("words", [
    ["work", "--once"], ["ls"], ["--help"], ["--version"], ["--queue", "q", "show", "x y"], ["enqueue", "--batch"],
    ["enqueue", "t", "--help"], ["enqueue", "t", "--key", "k", "--latest"], ["status", "-v"], ["status", "--json"],
    ["status", "--prom"],
    ["status", "--all"], ["drain"], ["--config", "/x", "check"], ["nonsense"]])
def test_other_verbs_go_to_the_zipapp_with_all_their_words(pyz, words):
    result = pyz.edgeq(*words)
    assert result.code == 7
    assert result.out == "python %d %s LC_ALL=unset umask=0022\n" % (len(words), " ".join(words))


@pytest.mark.parametrize("words", [["drain"], ["cancel", "x"], ["guard"]])
def test_an_empty_zipapp_never_says_yes(pyz, words):
    """B12: files of no length after an update; to a shell each is a script that succeeds."""
    pyz.pyz.write_text("")
    result = pyz.edgeq(*words)
    assert result.code == 69 and result.out == "" and result.err.count("\n") == 1, result


def test_the_zipapp_gets_the_callers_locale(pyz):
    assert "LC_ALL=de_DE.UTF-8 " in pyz.edgeq("ls", env={"LC_ALL": "de_DE.UTF-8"}).out


@pytest.mark.parametrize("store, words", [("sqlite:/x/queue.db", words) for words in (["status"], ["wait", "x"])] + [
    ("redis://h/0?queue=q", words) for words in (["enqueue", "t"], ["status"], ["pause"], ["resume"], ["wait", "x"])])
def test_another_store_is_the_zipapps(pyz, words, store):
    pyz.configure(STORE=store)
    assert pyz.edgeq(*words).code == 7
    pyz.has_worker()
    assert pyz.edgeq("status").code == 0  # a worker's own words need no Python


def test_beside_a_database_lies_a_drop_box(board, tmp_path):
    """Producers and operators of a board without Python: no zipapp is there."""
    board.configure(STORE="sqlite:%s/db/queue.db" % tmp_path)
    id = board.enqueue("t", '{"x":1}')
    name, = os.listdir(tmp_path / "db/default/incoming")
    assert name.endswith(".t.%s.json" % id)
    assert board.edgeq("pause", "t").code == 0 and (tmp_path / "db/default/paused.t").exists()
    assert board.edgeq("resume", "t").code == 0 and not (tmp_path / "db/default/paused.t").exists()


def test_a_spool_store_names_the_spool(board, tmp_path):
    board.configure(STORE="spool:%s/elsewhere/" % tmp_path)
    board.enqueue("t")
    assert len(os.listdir(tmp_path / "elsewhere/default/incoming")) == 1


def test_a_missing_zipapp_is_69(board):
    assert_refused(board, 69, "work", says="edgeq.pyz")


# --- the order of jobs ---------------------------------------------------------------------------------------------------


def test_seq_never_goes_back(board, tmp_path):
    """A clock step back of an hour, and a board that wakes up in 1970 (F4)."""
    offset = tmp_path / "clock"
    ids = []
    for text in ("0", "-3600", "-1700000000.5", "0"):
        offset.write_text(text + "\n")
        ids.append(board.enqueue("t", env={"EDGEQ_TEST_CLOCK": str(offset)}))
    assert ids == sorted(ids) and len(set(ids)) == 4


def test_a_board_without_a_clock_counts_from_1970(board, tmp_path):
    (tmp_path / "clock").write_text("-99999999999\n")
    id = board.enqueue("t", "--delay", "5", env={"EDGEQ_TEST_CLOCK": str(tmp_path / "clock")})
    name, text = board.only()
    assert name == "5.0000000000000001.6.0.t.%s.json" % id
    assert '"created_at":0,"available_at":6,' in text


def test_who_seeds_seq_notes_the_clocks(board, tmp_path):
    """P8: what is queued before the network tells the time, and before a worker is up, must not expire by that step."""
    (tmp_path / "clock").write_text("-3600\n")
    env = {"EDGEQ_TEST_CLOCK": str(tmp_path / "clock")}
    board.enqueue("t", "--expires", "600", env=env)
    offset, newest = (board.r / "clock").read_text().split()
    assert (board.r / "clock").stat().st_mode & 0o777 == 0o644  # the worker may be another user
    assert abs(time.time() - 3600 - uptime() - int(offset)) <= 2 and newest == "0"
    (tmp_path / "clock").write_text("0\n")
    (board.r / "seq").write_bytes(b"")  # seeded once more: the first look stands
    board.enqueue("t", env=env)
    assert (board.r / "clock").read_text() == "%s %s\n" % (offset, newest)


@pytest.mark.parametrize("prio", [2, 7, 9])
@pytest.mark.parametrize("where", ["incoming", "processing", "failed", "dlq", "segment", "line", "torn line"])
def test_after_a_reboot_seq_is_seeded_from_the_spool(board, where, prio):
    """R is empty: the highest number anywhere counts, of whatever priority."""
    high = 4102444800000000
    board.waiting("low", seq=1752999990000000)
    board.waiting("claimed", folder="processing", seq=1752999990000002, prio=0, tail="abcd1234-1-1-2.json")
    board.waiting("more", prio=9, seq=1752999990000001)
    (board.q / "incoming/9.9999999.json").write_text("{}")
    want = high
    if where in ("incoming", "failed"):
        board.waiting("h", folder=where, seq=high, prio=prio)
    elif where == "processing":
        board.waiting("h", folder=where, seq=high, prio=prio, tail="abcd1234-1-1-1.settling")
    elif where == "dlq":
        (board.q / "dlq" / ("%d-0123abcd.json" % high)).write_text("{}\n")
    elif where == "segment":
        board.segment([], seq=high)
    else:
        good, torn = journal_line("a", 1, seq=high), journal_line("b", 2, seq=high + 5)
        board.segment([journal_line("z", 1, seq=high - 9), good, torn if where == "line" else torn[:-3] + "00\n"])
        want = high + 5 if where == "line" else high
    id = board.enqueue("t")
    assert id.startswith("%d-" % (want + 1))
    assert (board.r / "seq").read_text() == "%d\n" % (want + 1)


def test_a_given_id_that_looks_generated_seeds_nothing(board):
    """A dead letter called 2046072010150012-00000007 by a device is no job of the year 2034: SEQ would be ahead of every clock."""
    born = '{"id":"%s","type":"t","created_at":%d,"priority":5,"payload":{"created_at":%d}}\n'
    for id, created_at in (("2046072010150012-00000007", 1752999990), ("2046072010150011-sensor-7", 2046072010),
                           ("1800000000000005-0123abcd", 1800000000), ("1800000000000004-0123abcd", 1800000000)):
        (board.q / "dlq" / (id + ".json")).write_text(born % (id, created_at, int(id[:10])))
    clock = board.root / "clock"
    clock.write_text("-99999999999\n")
    assert board.enqueue("t", env={"EDGEQ_TEST_CLOCK": str(clock)}).startswith("1800000000000006-")


def test_a_damaged_seq_file_is_seeded_anew(board):
    """B06."""
    for rubbish in (b"", b"\xff" * 100, b"12\n", b"abcdabcdabcdabcd\n", b"\0" * 17):
        (board.r / "seq").write_bytes(rubbish)
        board.enqueue("t")
        assert re.fullmatch(rb"\d{16}\n", (board.r / "seq").read_bytes()[:17])
    assert len(board.names("incoming")) == 5


def test_a_fake_date_that_does_not_know_nanoseconds(board, tmp_path):
    """B75: the wrapper never asks for %N."""
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "date").write_text('#!/bin/sh\ncase "$*" in *%N*) echo "%N" ;; *) echo 1795999999 ;; esac\n')
    os.chmod(fake / "date", 0o755)
    board.shell = "dash"
    env = {"PATH": "%s:/usr/bin:/bin" % fake}
    ids = [board.enqueue("t", env=env) for _ in range(3)]
    assert [id.split("-")[0] for id in ids] == ["1795999999000000", "1795999999000001", "1795999999000002"]


def test_many_at_once_are_all_accepted(board):
    """B64: fifty producers; ids differ, SEQ stays a number."""
    running = [subprocess.Popen(board.argv("enqueue", "t"), env=board.env(), stdout=subprocess.PIPE) for _ in range(50)]
    ids = [process.communicate(timeout=60)[0].decode().strip() for process in running]
    assert all(process.returncode == 0 for process in running)
    assert len(set(ids)) == 50
    names = board.names("incoming")
    assert sorted(name.split(".")[5] for name in names) == sorted(ids)
    seqs = [int(name.split(".")[1]) for name in names]
    last = (board.r / "seq").read_text()
    assert re.fullmatch(r"\d{16}\n", last) and int(last) in seqs
    assert int(board.enqueue("t").split("-")[0]) > max(seqs)


def test_one_id_many_at_once_is_one_job(board):
    running = [subprocess.Popen(board.argv("enqueue", "t", "--id", "same"), env=board.env(), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE) for _ in range(20)]
    said = [process.communicate(timeout=60) for process in running]
    assert all(process.returncode == 0 for process in running)
    assert {out for out, _ in said} == {b"same\n"}
    assert sum(b"already queued" in err for _, err in said) == 19
    assert len(board.names("incoming")) == 1


def test_the_script_is_clean():
    subprocess.run([tool("shellcheck"), str(WRAPPER)], check=True)
    assert os.access(WRAPPER, os.X_OK)
    text = WRAPPER.read_text()
    assert "eval" not in re.sub(r"#.*", "", text).split()
    assert "\n  " not in text.split("usage()")[0]
