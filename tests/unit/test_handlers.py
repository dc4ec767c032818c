"""The handlers that ship, run as the worker runs them, by BusyBox ash and by dash.

PATH holds BusyBox's applets and only those named in APPLETS, all of them in Buildroot's
default set. Debian's BusyBox shell prefers its own applets to PATH, so it is dash that
proves the list complete.
"""

import gzip
import hashlib
import http.server
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
APPLETS = "awk cat cut dd grep gzip mkdir mv readlink realpath rm sha256sum tail tr wget".split()
SHELLS = {"ash": ["busybox", "sh"], "dash": ["dash"]}


class Board:
    """A root folder with the handlers in it, and what runs them."""

    def __init__(self, root, shell):
        self.root, self.shell = root, shell
        for part in ("etc/edgeq/handlers", "usr/lib/edgeq"):
            shutil.copytree(os.path.join(REPO, "overlay", part), root / part)
        self.bin = root / "bin"
        self.bin.mkdir()
        for applet in APPLETS:
            (self.bin / applet).symlink_to(shutil.which("busybox"))
        for folder in ("logs", "archive", "scripts"):
            (root / folder).mkdir()
        (root / "etc/edgeq/handlers.conf").write_text(
            "# a comment\nLOG_ROOT=/nowhere\nLOG_ROOT={0}/logs\nARCHIVE_DIR=\"{0}/archive\"\nSCRIPT_DIR={0}/scripts".format(root))

    def command(self, program, *arguments):
        shell = SHELLS[self.shell]
        return [shutil.which(shell[0]), *shell[1:], str(self.root / program), *arguments]

    def environment(self, job):
        return {"PATH": str(self.bin), "EDGEQ_ID": job, "EDGEQ_CTL": str(self.root / "ctl")}

    def run(self, handler, payload, job="job-1"):
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        return subprocess.run(self.command("etc/edgeq/handlers/" + handler), input=data, env=self.environment(job),
                              cwd="/", capture_output=True, timeout=60, start_new_session=True)

    def json_get(self, document, *arguments):
        data = document if isinstance(document, bytes) else document.encode()
        return subprocess.run(self.command("usr/lib/edgeq/json-get", *arguments), input=data,
                              env=self.environment("j"), capture_output=True, timeout=60)


@pytest.fixture(params=sorted(SHELLS))
def board(request, tmp_path):
    return Board(tmp_path, request.param)


class Receiver(http.server.BaseHTTPRequestHandler):
    """Answers /CODE with CODE, /hang never."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, dict(self.headers), body))
        word = self.path.strip("/").partition("?")[0]
        if word == "hang":
            self.server.arrived.set()
            self.server.closing.wait(60)
            return
        self.send_response(int(word))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def receiver():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.seen, server.arrived, server.closing = [], threading.Event(), threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    server.url = "http://127.0.0.1:%d/" % server.server_port
    yield server
    server.closing.set()
    server.shutdown()
    thread.join()
    server.server_close()


def last_words(result):
    """What the handler said, which must be one line."""
    text = result.stderr.decode()
    assert text.count("\n") == 1, text
    return text


# send_webhook


@pytest.mark.parametrize("body", [
    {"a": [1, 2.5, None, True], "text": "quote \" backslash \\ $(id) `id` %s é\n"}, "a text", 7, None, [], {},
], ids=str)
def test_webhook_posts_the_body_as_json_with_the_key(board, receiver, body):
    result = board.run("send_webhook", {"url": receiver.url + "200", "body": body}, "20260720-AB")
    assert (result.returncode, result.stderr) == (0, b"")
    (path, headers, data), = receiver.seen
    assert json.loads(data) == body
    assert headers["Idempotency-Key"] == "20260720-AB"
    assert headers["Content-Type"] == "application/json"


def test_webhook_without_a_body_posts_an_empty_object(board, receiver):
    assert board.run("send_webhook", {"url": receiver.url + "204"}).returncode == 0
    assert receiver.seen[0][2] == b"{}"


def test_webhook_posts_a_large_body_whole(board, receiver):
    body = {"rows": [["line %d" % n, "\"\\"] for n in range(2500)]}
    assert board.run("send_webhook", {"url": receiver.url + "200", "body": body}).returncode == 0
    assert json.loads(receiver.seen[0][2]) == body


@pytest.mark.parametrize("status, code", [
    (400, 65), (404, 65), (410, 65), (408, 75), (425, 75), (429, 75), (500, 75), (503, 75),
])
def test_webhook_exit_code_of_an_answer(board, receiver, status, code):
    result = board.run("send_webhook", {"url": receiver.url + str(status)})
    assert result.returncode == code
    assert "answered %d" % status in last_words(result)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_webhook_with_nobody_listening_says_destination_down(board):
    result = board.run("send_webhook", {"url": "http://127.0.0.1:%d/" % free_port()})
    assert result.returncode == 69
    assert "refused" in last_words(result)


def test_webhook_to_an_unknown_name_says_destination_down(board):
    assert board.run("send_webhook", {"url": "http://nosuch.invalid/"}).returncode == 69


def test_webhook_that_hangs_ends_at_term(board, receiver):
    payload = json.dumps({"url": receiver.url + "hang"}).encode()
    child = subprocess.Popen(board.command("etc/edgeq/handlers/send_webhook"), stdin=subprocess.PIPE, stderr=subprocess.PIPE,
                             env=board.environment("job-1"), start_new_session=True)
    with child:
        child.stdin.write(payload)
        child.stdin.close()
        assert receiver.arrived.wait(30)
        os.killpg(child.pid, signal.SIGTERM)
        assert child.wait(30) == -signal.SIGTERM


def test_webhook_does_not_repeat_secrets_of_the_address(board, receiver):
    address = receiver.url.replace("//", "//user:secret@") + "400?token=hidden"
    words = last_words(board.run("send_webhook", {"url": address}))
    assert "secret" not in words and "hidden" not in words
    assert receiver.seen[0][0] == "/400?token=hidden"


@pytest.mark.parametrize("payload", [
    {}, [], "text", {"url": 7}, {"url": ""}, {"url": "http://"}, {"url": "file:///etc/passwd"},
    {"url": "ftp://127.0.0.1/x"},
    {"url": "-O/etc/x"}, {"url": "http://127.0.0.1:1/ x"}, {"url": "http://127.0.0.1:1/\r\nX: y"},
    {"url": "http://127.0.0.1:1/\n"},
    {"url": "http://127.0.0.1:1/\u0000"}, {"url": "http://127.0.0.1:1/é"}, {"url": ["http://127.0.0.1:1/"]},
    b"", b"{", b"{\"url\":}",
], ids=repr)
def test_webhook_refuses_what_is_no_address(board, payload):
    assert board.run("send_webhook", payload).returncode == 65


# archive_log


def manifest(board):
    return (board.root / "archive/MANIFEST").read_text().splitlines()


def archives(board):
    return sorted(name for name in os.listdir(board.root / "archive") if name != "MANIFEST")


def make_log(board, name="app.log", text=b"line one\nline two\n" * 500):
    (board.root / "logs" / name).write_bytes(text)
    return {"path": str(board.root / "logs" / name)}


def test_archive_is_the_log_compressed_and_its_checksum_holds(board):
    payload = make_log(board)
    result = board.run("archive_log", payload, "7-AB")
    assert (result.returncode, result.stderr) == (0, b"")
    assert archives(board) == ["app.log.7-AB.gz"]
    data = (board.root / "archive/app.log.7-AB.gz").read_bytes()
    assert gzip.decompress(data) == (board.root / "logs/app.log").read_bytes()
    assert manifest(board) == ["%s  app.log.7-AB.gz" % hashlib.sha256(data).hexdigest()]
    assert (board.root / "ctl").read_text() == "result=app.log.7-AB.gz\n"


def test_archive_again_changes_nothing(board):
    payload = make_log(board)
    assert board.run("archive_log", payload).returncode == 0
    before = archives(board), manifest(board), (board.root / "archive" / archives(board)[0]).stat().st_mtime_ns
    os.unlink(payload["path"])
    assert board.run("archive_log", payload).returncode == 0
    assert (archives(board), manifest(board), (board.root / "archive" / archives(board)[0]).stat().st_mtime_ns) == before


def test_archive_completes_what_a_power_cut_left(board):
    payload = make_log(board)
    (board.root / "archive/.app.log.job-1.gz").write_bytes(b"half")
    (board.root / "archive/MANIFEST").write_text("0123  torn")
    assert board.run("archive_log", payload).returncode == 0
    assert archives(board) == ["app.log.job-1.gz"]
    assert manifest(board)[0] == "0123  torn" and len(manifest(board)) == 2
    (board.root / "archive/MANIFEST").unlink()
    assert board.run("archive_log", payload).returncode == 0
    assert len(manifest(board)) == 1


def test_archives_of_many_jobs_at_once_share_the_manifest(board):
    payload = json.dumps(make_log(board)).encode()
    children = []
    for n in range(8):
        child = subprocess.Popen(board.command("etc/edgeq/handlers/archive_log"), stdin=subprocess.PIPE,
                                 env=board.environment("job-%d" % n))
        child.stdin.write(payload)
        child.stdin.close()
        children.append(child)
    assert [child.wait(60) for child in children] == [0] * 8
    assert sorted(line.split("  ")[1] for line in manifest(board)) == archives(board)
    assert len(archives(board)) == 8


def test_archive_name_is_made_safe(board):
    for name in ("two words.log", "$(id).log", "-rf", ".hidden", "é.log"):
        board.run("archive_log", make_log(board, name), "j" + str(len(name)))
    assert len(archives(board)) == 5
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") for name in archives(board))


@pytest.mark.parametrize("path", [
    "{root}/logs/../secret", "{root}/secret", "{root}/logs/link", "{root}/logs/folder/secret", "/etc/passwd",
    "logs/app.log", "", "{root}/logs/..", "{root}/logs/a\nb", "{root}/logsother/x", "{root}/logs/*",
])
def test_archive_reads_nothing_outside_the_log_folder(board, path):
    (board.root / "secret").write_text("secret")
    (board.root / "logsother").mkdir()
    (board.root / "logsother/x").write_text("secret")
    (board.root / "logs/link").symlink_to(board.root / "secret")
    (board.root / "logs/folder").symlink_to(board.root)
    result = board.run("archive_log", {"path": path.format(root=board.root)})
    assert result.returncode in (65, 66)
    assert archives(board) == []


def test_archive_of_a_missing_log_is_wrong_for_ever(board):
    assert board.run("archive_log", {"path": str(board.root / "logs/none")}).returncode == 66


def test_archive_of_a_pipe_does_not_block(board):
    os.mkfifo(board.root / "logs/pipe")
    assert board.run("archive_log", {"path": str(board.root / "logs/pipe")}).returncode == 66


def test_archive_works_where_the_log_folder_is_a_link(board):
    (board.root / "tmp").mkdir()
    (board.root / "logs").rmdir()
    (board.root / "logs").symlink_to("tmp")
    assert board.run("archive_log", make_log(board)).returncode == 0
    assert len(archives(board)) == 1


def test_archive_that_cannot_be_written_is_tried_again_and_leaves_nothing(board):
    payload = make_log(board)
    os.rmdir(board.root / "archive")
    (board.root / "archive").write_text("a file is in the way")
    assert board.run("archive_log", payload).returncode == 75
    os.unlink(board.root / "archive")
    os.mkdir(board.root / "archive")
    (board.root / "bin/gzip").unlink()
    (board.root / "bin/gzip").write_text("#!/bin/sh\nexit 1\n")
    os.chmod(board.root / "bin/gzip", 0o755)
    if board.shell == "dash":                       # BusyBox takes its own gzip
        assert board.run("archive_log", payload).returncode == 75
        assert archives(board) == []


# run_script


def make_script(board, name, text):
    path = board.root / "scripts" / name
    path.write_text("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)


def test_script_gets_its_arguments_exactly(board):
    make_script(board, "show", 'for a in "$@"; do printf "<%s>\\n" "$a"; done\n')
    arguments = ["plain", "two words", "", "$(touch /tmp/x)", "`id`", "'\"\\", "*", "-n", "é", "%s", "a;b|c&d"]
    result = board.run("run_script", {"script": "show", "args": arguments})
    assert result.returncode == 0
    assert result.stdout.decode() == "".join("<%s>\n" % a for a in arguments)


def test_script_without_arguments_gets_none(board):
    make_script(board, "count", 'echo "$#"\n')
    assert board.run("run_script", {"script": "count"}).stdout == b"0\n"
    assert board.run("run_script", {"script": "count", "args": []}).stdout == b"0\n"
    assert board.run("run_script", {"script": "count", "args": [""]}).stdout == b"1\n"
    assert board.run("run_script", {"script": "count", "args": [7, True]}).stdout == b"2\n"


@pytest.mark.parametrize("code", [0, 1, 65, 69, 75])
def test_script_exit_code_is_passed_through(board, code):
    make_script(board, "end", "exit %d\n" % code)
    assert board.run("run_script", {"script": "end"}).returncode == code


def test_script_reads_no_payload(board):
    make_script(board, "read", "cat\n")
    assert board.run("run_script", {"script": "read"}).stdout == b""


@pytest.mark.parametrize("payload", [
    {}, {"script": ""}, {"script": "../outside"}, {"script": "/bin/sh"}, {"script": "."}, {"script": ".."}, {"script": "sub/x"},
    {"script": "$(id)"}, {"script": "ok\n"}, {"script": "ok x"}, {"script": "-c"}, {"script": "ok;id"}, {"script": "none"},
    {"script": "plain"}, {"script": "sub"}, {"script": "ok", "args": "x"}, {"script": "ok", "args": ["a\nb"]},
    {"script": "ok", "args": ["x"] * 65}, {"script": ["ok"]}, b"not json", b"{\"script\":\"ok\"",
], ids=repr)
def test_script_that_is_not_in_the_folder_is_not_run(board, payload):
    make_script(board, "ok", "touch %s/ran\n" % board.root)
    (board.root / "scripts/sub").mkdir()
    (board.root / "scripts/plain").write_text("touch %s/ran\n" % board.root)
    make_script(board, "../outside", "touch %s/ran\n" % board.root)
    result = board.run("run_script", payload)
    assert result.returncode in (65, 66)
    assert not (board.root / "ran").exists()


def test_handler_without_a_job_id_refuses(board):
    environment = board.environment("a/../b")
    for handler in os.listdir(board.root / "etc/edgeq/handlers"):
        result = subprocess.run(board.command("etc/edgeq/handlers/" + handler), input=b"{}", env=environment,
                                capture_output=True, timeout=60)
        assert result.returncode == 64


# json-get


@pytest.mark.parametrize("document, key, text", [
    ('{"a":{"url":1},"url": "b\\"c\\\\"  }', "url", 'b"c\\'),
    ('{"a":"\\u00e9\\ud83d\\ude00\\/"}', "a", "\u00e9\U0001f600/"),
    ('{"\\u0061":7}', "a", "7"),
    ('{"a":1,"a":2}', "a", "2"),
    ('{"a":\n[1,\n2]}', "a", "[1, 2]"),
    ('{"a":[1,"x",{"y":[2]}]}', "a[2]", '{"y":[2]}'),
    ('{"a":[""]}', "a[0]", ""),
    ('{"a":-1.5e3}', "a", "-1.5e3"),
    ('{"a":"b","x":"\\\\"}', "x", "\\"),
])
def test_json_get_prints_the_value(board, document, key, text):
    result = board.json_get(document, key)
    assert (result.returncode, result.stdout.decode()) == (0, text + "\n")


@pytest.mark.parametrize("document, key", [
    ("{}", "a"), ('{"a":{"b":1}}', "b"), ('{"a":[]}', "a[0]"), ('{"a":[1]}', "a[1]"), ('{"b":[1]}', "a[0]"),
])
def test_json_get_says_what_is_not_there(board, document, key):
    result = board.json_get(document, key)
    assert (result.returncode, result.stdout, result.stderr) == (1, b"", b"")


@pytest.mark.parametrize("document", [
    "", "[1]", "7", '"a"', "{", '{"a"}', '{"a":}', "{,}", '{"a":1,}', 'x{"a":1}', '{"a":1}}', '{"a":1}{"a":2}',
    '{"a":"b" "c"}', '{"a":tru}', '{"a":"x\ny"}', '{"a":"x\\ny"}', '{"a":"\\u0000"}', '{"a":"\\ud83d"}',
    '{"a":"\\ude00"}', '{"a":"\\x"}', '{"a":"x\x7fy"}', '{"a":"\x01"}', b'{"a":"x\0y"}',
], ids=repr)
def test_json_get_refuses(board, document):
    result = board.json_get(document, "a")
    assert (result.returncode, result.stdout) == (65, b"")
    assert result.stderr.count(b"\n") == 1


def random_text(rng):
    return "".join(rng.choice([*"a\"\\é\U0001f600/{}[],: `'", "$(x)", "%s", "\\u0041"]) for _ in range(rng.randrange(8)))


def random_value(rng, depth=0):
    kind = rng.random()
    if kind < 0.45 or depth > 3:
        return random_text(rng)
    if kind < 0.6:
        return rng.choice([0, -1, 1.5, 1e30, True, False, None])
    if kind < 0.8:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {random_text(rng): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}


def test_json_get_agrees_with_python(board):
    seed = time.time_ns()
    rng = random.Random(seed)
    for _ in range(150):
        value = {random_text(rng): random_value(rng) for _ in range(rng.randrange(1, 5))}
        document = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
        key = rng.choice([key for key in value])
        if key.endswith("]"):
            continue
        raw = board.json_get(document, "-r", key)
        assert (raw.returncode, raw.stdout.count(b"\n")) == (0, 1), (seed, document, key)
        assert json.loads(raw.stdout) == value[key], (seed, document, key)
        if isinstance(value[key], str):
            assert board.json_get(document, key).stdout.decode() == value[key] + "\n", (seed, document, key)
