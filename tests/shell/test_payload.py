"""The door for payloads: exactly JSON, exactly the text. Checked against Python's own parser.

The awk program is taken out of the wrapper and given a loop of its own, so that thousands of documents cost one process. What
the loop leaves out (arguments, stdin, files) is tested through the wrapper.
"""

import json
import random
import re
import subprocess

import pytest

from tests.shell.board import WRAPPER, tool

LIMIT = 65536
CHECK = re.search(r"^door='\n(.*?)^BEGIN \{", WRAPPER.read_text(), re.S | re.M).group(1)
PLAIN = re.search(r"^is_plain\(\) \{\n.*?^\}\n", WRAPPER.read_text(), re.S | re.M).group(0)
LOOP = r'''
BEGIN {
    while ((getline line) > 0) {
        gsub(/%0A/, "\n", line); gsub(/%25/, "%", line)
        out = ""
        code = check(line "", ENVIRON["MODE"], ENVIRON["LIMIT"] + 0)
        gsub(/\n/, "%0A", out)
        print code " " out
    }
}'''


def ask(awk, documents, mode="json"):
    """[(code, out)] of the door for each of `documents` (bytes)."""
    lines = b"".join(document.replace(b"%", b"%25").replace(b"\n", b"%0A") + b"\n" for document in documents)
    done = subprocess.run([*awk, CHECK + LOOP], input=lines, env={"LC_ALL": "C", "MODE": mode, "LIMIT": str(LIMIT)},
                          capture_output=True, timeout=120)
    assert done.returncode == 0 and done.stderr == b"", done.stderr[:500]
    answers = done.stdout.split(b"\n")[:-1]
    assert len(answers) == len(documents)
    return [(int(answer[:1]), answer[2:]) for answer in answers]


def no_constant(word):
    raise ValueError(word)


def depth(value):
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def is_json(document):
    """What the door must say, by Python's parser: strict, no constants, no lone surrogates, nesting up to 64."""
    try:
        text = document.decode("utf-8")
        if text.strip(" \t\n\r") != text.strip(" \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\xa0"):
            return False
        value = json.loads(text, parse_constant=no_constant, parse_int=str, parse_float=str)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return depth(value) <= 64


def stored(document):
    return document.replace(b"\n", b" ").replace(b"\r", b" ").strip(b" \t")


GOOD = [
    b"{}", b"[]", b"0", b"-0", b"1", b"-1.5e+10", b"1E5", b"1e-5", b"0.0", b"true", b"false", b"null", b'""', b'"a"', b" {} ",
    b"\n[\n]\n", b'{"a":1}', b'{"a":{"b":[1,2,{"c":null}]}}', b'[1,"a",true,null,{"x":[]},[[]]]', b'{"a":1,"a":2}',
    b'"\\u0041"', b'"\\ud83d\\ude00"', b'"\\uD83D\\uDE00"', b'"\\\\"', b'"\\""', b'"\\\\\\""', b'"\\/\\b\\f\\n\\r\\t"',
    "\"ü温😀\"".encode(), b'"\x7f"', b'["a\\\\","b"]', b'"[1,2"', b'"true"', b'{"":""}', b'{"a":"b","c":"d"}', b'[ 1 , 2 ]',
    b'{ "a" : 1 , "b" : [ ] }', b"[" * 64 + b"]" * 64, b'{"a":' * 64 + b"1" + b"}" * 64, b'"\\\\u0041"', b'"\\\\ud800"',
    b"123456789012345678901234567890", b'"' + b"x" * 1000 + b'"', b"[1,\r\n\t2]", b'{"a":[1,2],"b":{"c":1},"d":"e"}',
    b'"\xf4\x8f\xbf\xbf"', b'"\xed\x9f\xbf"', b'"\\u0000"', b'"%0A %25"',
]
BAD = [
    b"", b" ", b"N", b"NaN", b"Infinity", b"-Infinity", b"tru", b"True", b"nul", b"tru\ne", b"tr ue", b"truefalse",
    b"true false", b"1 2", b"01", b"-01", b"1.", b".5", b"+1", b"1e", b"1e+", b"0x1", b"--1", b"-", b"1_0", b"{", b"}", b"[",
    b"]", b"[1", b"[1,]", b"[,1]", b"[1 2]", b"[1,,2]", b'{"a"}', b'{"a":}', b'{"a":1,}', b'{,"a":1}', b"{a:1}", b"{'a':1}",
    b'{1:2}', b'{"a":1 "b":2}', b'{"a":1:2}', b'["a":1]', b'{"a","b":1}', b'["a",{"b"}]', b'{"a":"b":1}', b'{"a":1},', b"[]]",
    b"[[]", b"{}{}", b"[][]", b'"', b'"a', b'a"', b'"a""b"', b'"\t"', b'"a\nb"', b'"\x01"', b'"\x1f"', b"\x01", b'"\\x"',
    b'"\\u12"', b'"\\u123g"', b'"\\"', b'"\\', b"\\n", b'\\"a"', b'"\\ud800"', b'"\\udc00"', b'"\\ud800\\ud800"',
    b'"\\ud800\\u0041"', b'"\\ud800 \\udc00"', b'"\\udc00\\ud800"', b'"\\ud83d\\\\ude00"', b'"\xff"', b'"\xc3"', b'"\xc0\x80"',
    b'"\xe0\x80\x80"', b'"\xed\xa0\x80"', b'"\xf5\x80\x80\x80"', b'"\xf4\x90\x80\x80"', b'"\x80"', b'"\xe2\x82"', b"\xc3\xbc",
    b"\xef\xbb\xbf{}", b"[" * 65 + b"]" * 65, b'{"a":' * 65 + b"1" + b"}" * 65, b"[1]x", b"x[1]", b"// c\n1", b"[1]/**/",
    b"\x0b1", b"1\x0c", b"\xc2\xa01", b'{"a":1;"b":2}', b"[1;2]", b"(1)", b'[1,"k":[2]]', b'{"a":[1,2}', b'[{"a":1]', b"\x02",
    b"[\x03]", b"\x03,\x03", b'{\x04}', b"[\x051]", b"1,", b",1", b'"a":1', b'{"a":1]}', b"[true1]", b"[1true]", b'["a"1]',
    b'[1"a"]', b"[null null]", b"1-1", b"[1.2.3]", b"[1e5e5]",
]


def awks():
    return {"busybox": [tool("busybox"), "awk"], "mawk": [tool("mawk")]}


@pytest.mark.parametrize("awk", ["busybox", "mawk"])
def test_the_corpus(awk):
    for document, (code, out) in zip(GOOD, ask(awks()[awk], GOOD)):
        assert (code, out) == (0, stored(document)), document
    for document, (code, out) in zip(BAD, ask(awks()[awk], BAD)):
        assert code == 1 and re.fullmatch(rb"[ -~]+", out), (document, out)
    assert [is_json(document) for document in GOOD] == [True] * len(GOOD)
    assert [is_json(document) for document in BAD] == [False] * len(BAD)


def some_value(rng, level=0):
    kind = rng.randrange(9 if level < 5 else 6)
    if kind < 2:
        return rng.choice(["0", "-1", "12.5", "1e9", "-0.0E-7", "true", "false", "null", "9" * 30])
    if kind < 6:
        return some_string(rng)
    blank = rng.choice(["", "", "", " ", "\n", "\t", "\r\n"])
    if kind == 6:
        return "[%s%s]" % (blank, ("," + blank).join(some_value(rng, level + 1) for _ in range(rng.randrange(4))))
    return "{%s%s}" % (blank, (blank + ",").join(some_string(rng) + blank + ":" + some_value(rng, level + 1)
                                                 for _ in range(rng.randrange(4))))


def some_string(rng):
    pieces = ["a", "B", "0", " ",
              "\\n", "\\\\", '\\"', "\\/", "\\u00e9", "\\ud83d\\ude00", "ü", "温", "😀", "{", "]", ",", ":", "true", "\x7f",
              "\\\\u", "%", "&", "'"]
    return '"%s"' % "".join(rng.choice(pieces) for _ in range(rng.randrange(6)))


def damaged(rng, data):
    """`data` (bytes) with a byte or two changed, added, taken or doubled."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.randrange(len(data) + 1)
        how = rng.randrange(4)
        byte = rng.choice(b'{}[]",:\\/u0123456789aedD-+.tfn \n\t\r\x01\x02\x03\x04\x05\x06\x1f\x7f\x80\xbf\xc3\xe2\xed\xf0\xff')
        if how == 0:
            data.insert(at, byte)
        elif how == 1 and at < len(data):
            data[at] = byte
        elif how == 2 and at < len(data):
            del data[at]
        else:
            piece = data[at:at + rng.randrange(1, 6)]
            data[at:at] = piece
    return bytes(data).replace(b"\0", b"")


@pytest.mark.parametrize("awk", ["busybox", "mawk"])
def test_thousands_of_documents_agree_with_python(awk):
    seed = 20260720
    rng = random.Random(seed)
    documents = []
    for _ in range(10000):
        whole = some_value(rng).encode()
        documents.append(whole)
        documents.append(damaged(rng, whole))
    accepted = 0
    for document, (code, out) in zip(documents, ask(awks()[awk], documents)):
        want = is_json(document)
        accepted += want
        assert (code == 0) == want, (seed, document, out)
        if want:
            assert out == stored(document), (seed, document)
    assert 10000 < accepted < 15000  # both answers are well represented


@pytest.mark.parametrize("awk", ["busybox", "mawk"])
def test_texts_come_back_to_the_byte(awk):
    rng = random.Random(7)
    alphabet = [chr(i) for i in range(1, 256)] + ["温", "😀", "\u2028", "\ufeff", "\\", '"', "&", "\\&", "\\\\"]
    texts = ["", "&", "\\&", '\\"', "\\\\&&", "a\nb", "\n", "\r\n", "%0A", "x"] + [
        "".join(rng.choice(alphabet) for _ in range(rng.randrange(12))) for _ in range(2000)]
    for text, (code, out) in zip(texts, ask(awks()[awk], [text.encode() for text in texts], "text")):
        assert code == 0 and json.loads(out) == text, (text, out)
        assert re.fullmatch(rb'[^\x00-\x1f\x7f]*', out)


def test_text_that_is_not_utf8_is_refused():
    for code, _ in ask(awks()["busybox"], [b"\xff", b"\xc3", b"\xed\xa0\x80", b"a\x80b"], "text"):
        assert code == 1


def test_the_limit_is_on_the_stored_bytes():
    big = [b'"' + b"x" * (LIMIT - 2) + b'"', b'"' + b"x" * (LIMIT - 1) + b'"', b" " * LIMIT + b"1" + b"\n" * 200]
    assert [code for code, _ in ask(awks()["busybox"], big)] == [0, 3, 0]
    texts = [b"x" * (LIMIT - 2), b"x" * (LIMIT - 1), b"\n" * (LIMIT // 2)]
    assert [code for code, _ in ask(awks()["busybox"], texts, "text")] == [0, 3, 3]


# --- without awk ---------------------------------------------------------------------------------------------------


def ask_plain(shell, documents):
    """[bool] of the shell's own check for each of `documents`, which have no line breaks."""
    script = PLAIN + "nl='\n'\nset -u\nwhile IFS= read -r doc; do if is_plain \"$doc\"; then echo 1; else echo 0; fi; done"
    done = subprocess.run([*shell, "-c", script], input=b"".join(document + b"\n" for document in documents), env={"LC_ALL": "C"},
                          capture_output=True, timeout=120)
    assert done.returncode == 0 and done.stderr == b"", done.stderr[:500]
    answers = done.stdout.split()
    assert len(answers) == len(documents)
    return [answer == b"1" for answer in answers]


SHELLS = {"ash": [tool("busybox"), "sh"], "dash": [tool("dash")]}
USUAL = [
    b"{}", b"[]", b"0", b"-0", b"-1.5", b'"a"', b"true", b'{"a":1}', b'{"a": [1, 2.25, {"b": null}], "c": "d, \'*$(x)`"}',
    b'{"":""}', b'[[],{},[{"a":[]}]]', b'{"url":"https://example.net/hook","n":12345,"ok":false}', b'{"a":"","b":["x","y z"]}']


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_what_the_shell_takes_for_json_is_json(shell):
    """It may be wrong in one direction only: what it does not take, awk looks at."""
    rng = random.Random(20261129)
    documents = [document for document in GOOD + BAD if not re.search(rb"[\n\0]", document)]
    while len(documents) < 8000:
        whole = some_value(rng).encode()
        documents += [one for one in (whole, damaged(rng, whole), damaged(rng, rng.choice(USUAL))) if b"\n" not in one]
    taken = [document for document, is_taken in zip(documents, ask_plain(SHELLS[shell], documents)) if is_taken]
    for document in taken:
        assert is_json(document) and stored(document) == document, document
    assert len(taken) > 1000
    assert all(ask_plain(SHELLS[shell], USUAL))


# --- through the wrapper ---------------------------------------------------------------------------------------


def payload(board):
    text = (board.q / "incoming" / board.names("incoming")[-1]).read_bytes()
    assert text.count(b"\n") == 1 and text.endswith(b"}\n")
    return re.search(rb'"payload":(.*)}\n\Z', text, re.S).group(1)


@pytest.mark.parametrize("document", [
    b'{"a": "\xc3\xbc"}', b"[1,\n2]", b" -5 ", b'"\\ud83d\\ude00 & \\\\ \\n"', b'"it\'s $(date) `x` \\\\$y %s"',
    b"[" * 64 + b"]" * 64, b'"' + b"y" * 40000 + b'"'])
def test_json_as_an_argument_and_from_stdin(any_board, document):
    any_board.enqueue("t", document)
    assert payload(any_board) == stored(document)
    any_board.enqueue("t", "-", input=document + b"\n")
    assert payload(any_board) == stored(document)


def test_a_negative_number_is_no_option(board):
    board.enqueue("t", "-1.5")
    assert payload(board) == b"-1.5"


@pytest.mark.parametrize("document", [
    b"", b"{", b"NaN", b'"\xff"', b'{"a":1}\0', b"\0", b'"\\ud800"', b"[" * 65 + b"]" * 65, b'{"a":1}{"a":1}'])
def test_bad_json_is_65_and_nothing_is_written(board, document):
    before = board.tree()
    for words, data in ((["-"], document), ([document], b"")):
        if b"\0" in document and words != ["-"]:
            continue
        result = board.edgeq("enqueue", "t", *words, input=data)
        assert result.code == 65 and result.out == "" and re.fullmatch(r"edgeq: enqueue: payload: [ -~]+\n", result.err), result
    assert board.tree() == before


@pytest.mark.parametrize("text", [
    "", "x", "hello wide world", 'a"b\\c', "ü温😀", "line\nline\n", "\n", "tab\tbell\x07", "\x01\x1f\x7f", "-x", "--id", "$(date)",
    "%s&\\&", "'", "no newline", "trailing blank \n\n", "\r\n", "x" * 50000])
def test_text_round_trips(any_board, tmp_path, text):
    any_board.enqueue("t", "--text", text)
    assert json.loads(payload(any_board)) == text
    (tmp_path / "file").write_bytes(text.encode())
    any_board.enqueue("t", "--file", str(tmp_path / "file"))
    assert json.loads(payload(any_board)) == text
    any_board.enqueue("t", "--file", "-", input=text.encode())
    assert json.loads(payload(any_board)) == text
    any_board.enqueue("t", "--text=" + text)
    assert json.loads(payload(any_board)) == text


@pytest.mark.parametrize("data", [b"\0", b"a\0b\n", b"\xff\xfe", b"\xc3"])
def test_a_file_with_nul_or_not_utf8_is_65(board, tmp_path, data):
    (tmp_path / "file").write_bytes(data)
    before = board.tree()
    result = board.edgeq("enqueue", "t", "--file", str(tmp_path / "file"))
    assert result.code == 65 and "UTF-8" in result.err and "NUL" in result.err
    assert board.tree() == before


def test_files_that_cannot_be_read(board, tmp_path):
    assert "no such file" in board.edgeq("enqueue", "t", "--file", str(tmp_path / "none")).err
    assert board.edgeq("enqueue", "t", "--file", str(tmp_path / "none")).code == 65
    assert board.edgeq("enqueue", "t", "--file", str(tmp_path)).code == 65
    assert board.edgeq("enqueue", "t", "--file", "").code == 64
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    board.open_to_all()
    tmp_path.chmod(0o755)
    assert board.edgeq("enqueue", "t", "--file", str(tmp_path / "secret"), user=65534, group=65534, extra_groups=[]).code == 77
    assert board.names("incoming") == []


def test_stdin_closed_is_65(board):
    result = board.sh('"$@" <&-', str(board.bin / "sh"), str(WRAPPER), "enqueue", "t", "-")
    assert result.code == 65 and "stdin" in result.err


def test_the_limit_is_named(board):
    board.configure(MAX_PAYLOAD_KB=1)
    board.enqueue("t", "--text", "x" * 1022)
    for words, data in ((["--text", "x" * 1023], b""), (['"%s"' % ("x" * 1023)], b""), (["-"], b'"%s"' % (b"x" * 1023)),
                        (["--file", "-"], b"x" * 1023), (["-"], b"1" + b" " * 3000000), (["--file", "-"], b"x" * 3000000)):
        result = board.edgeq("enqueue", "t", *words, input=data)
        assert result.code == 65 and "MAX_PAYLOAD_KB=1 allows" in result.err, (words[0], result)
    board.configure(MAX_PAYLOAD_KB=256)
    board.enqueue("t", "-", input=b'"%s"' % (b"x" * 200000))
    board.enqueue("t", '"%s"' % ("x" * 130000))
    assert len(board.names("incoming")) == 3


def test_an_endless_input_ends(board):
    """No memory is filled by a device that never stops."""
    result = board.sh('"$@" </dev/zero', str(board.bin / "sh"), str(WRAPPER), "enqueue", "t", "--file", "-")
    assert result.code == 65


def test_a_read_error_is_not_a_short_payload(board, tmp_path):
    """EIO in the middle of the file."""
    (tmp_path / "file").write_bytes(b"x" * 200000)
    board.configure(MAX_PAYLOAD_KB=512)
    strace = [tool("strace"), "-f", "-qq", "-o", "/dev/null", "-P", str(tmp_path / "file"), "-e", "inject=read:error=EIO:when=2"]
    result = board.edgeq("enqueue", "t", "--file", str(tmp_path / "file"), prefix=strace)
    assert result.code == 65 and "cannot be read" in result.err, result
    assert board.names("incoming") == []
