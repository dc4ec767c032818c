"""Hostile input, made up by a generator: file names, job files, arguments, configuration files.

Whatever comes: the worker goes on and runs a good job behind it, nothing outside the spool changes, status is one line, nobody says
a traceback, memory stays bounded; shell and Python read a configuration alike. The choices are hypothesis's: derandomized, so that
every run is the same; SEED=N makes another; EXAMPLES=N more of them.
"""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fault.outside import WRAPPER
from tests.field.bench import private_kb, tree, wait_for

EXAMPLES = int(os.environ.get("EXAMPLES", "60"))
SEED = os.environ.get("SEED")
PLAN = settings(max_examples=EXAMPLES, deadline=None, derandomize=SEED is None, database=None, phases=[Phase.generate],
                suppress_health_check=list(HealthCheck))


def planned(examples=None):
    """PLAN as a decorator; the seed is printed when there is one."""
    def wrap(test):
        if SEED is not None:
            print("SEED=%s" % SEED)
            test = seed(int(SEED))(test)
        return settings(PLAN, max_examples=examples or EXAMPLES)(test)

    return wrap


# --- what is thrown in ------------------------------------------------------------------------------------------------

NAME = st.one_of(
    st.binary(min_size=1, max_size=60),
    st.text(alphabet="a.5jsonok-_ \n\r\t\x1b\"'$`;|&*?[]{}\\ü\u202e", min_size=1, max_size=60).map(lambda text: text.encode()),
    st.builds(lambda *fields: ".".join(fields).encode(), st.sampled_from(["5", "0", "9", "55", "-", "", "x"]),
              st.sampled_from(["1700000000000000", "0", "9" * 16, "9" * 40, "-1", "17"]),
              st.sampled_from(["0", "4102444800", "4102444800a", "99999999999", "-1", "a", ""]),
              st.sampled_from(["0", "0r", "999", "99999", "-1", "1rr", ""]),
              st.sampled_from(["ok", "no", "../ok", "-x", "", "a" * 64]), st.sampled_from(["id1", "..", "", "x" * 70, "a b"]),
              st.sampled_from(["json", "v2.json", "tok.json", "settling", "JSON"])),
    st.sampled_from([b"x" * 255, b"-rf", b"*", b"ok.json", b"CON", b".json", b"..json", b"5.json", b"\xff\xfe", b"a.why"]),
).filter(lambda name: b"/" not in name and b"\0" not in name and name not in
         (b".", b"..") and len(name) <= 255 and name[:1] != b".")

ANY = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
                   lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
                   max_leaves=10)
FIELD = st.sampled_from("id type payload priority max_attempts timeout_s expires_s key latest available_at created_at attempts "
                        "last_error failed_at v state token".split())
NASTY = st.sampled_from([
    '"ok"', '"\\ud800"', '"\\udc00\\ud800"', '"' + "x" * 5000 + '"', "1" * 400, "-0", "1e999", "0.1", "NaN", "Infinity",
    "[" * 100 + "]" * 100, "[" * 50000, '{"a":' * 300 + "1" + "}" * 300, '"\\u0000"', '"a\nb"', "tru", "'x'", '"\x7f"',
    '"../../etc"', "null", "[]", "{}", '{"a":1,"a":2}', "9" * 5000, '"' + "\\" * 1001 + '"', "\ufeff1"
])


@st.composite
def records(draw):
    """The bytes of something that is nearly a job."""
    fields = draw(st.lists(st.tuples(FIELD, st.one_of(NASTY, ANY.map(json.dumps))), max_size=6))
    if draw(st.booleans()):
        fields.append(("type", '"%s"' % draw(st.sampled_from(["ok", "no", "bad"]))))
    data = ("{%s}" % ",".join("%s:%s" % (json.dumps(key), value) for key, value in fields)).encode("utf-8", "surrogatepass")
    shape = draw(st.integers(0, 11))
    end = draw(st.sampled_from([b"\n", b"", b"\n\n", b"\r\n", b"\0", b"\n\0\0\0", b"\n\xff\xff", b" \n"]))
    if shape == 0:
        data = data[:draw(st.integers(0, len(data)))]
    elif shape == 1:
        data = draw(st.binary(max_size=300))
    elif shape == 2:
        data = b"\xef\xbb\xbf" + data
    elif shape == 3:
        data = data.decode("utf-8", "replace").encode("utf-16")
    elif shape == 4:
        data = data.replace(b'"', b"\xff", 1)
    elif shape == 5:
        data = data + b"\0" * draw(st.integers(1, 5000))
    elif shape == 6:
        data = b" " * draw(st.integers(1, 100000)) + data
    elif shape == 7:
        data = data + data
    return data + end


@pytest.mark.parametrize("folder", ["incoming", "failed", "processing", "dlq", "corrupt", "done"])
def test_any_file_under_any_name(make_bench, tmp_path, folder):
    """B02, B08, B28, B68, B71, B77: in each folder; the worker that stands before it lives to run a good job, bounded."""
    bench = make_bench(SAFETY_SCAN_S=0.2, MAX_PAYLOAD_KB=32, CORRUPT_KEEP=5000, CORRUPT_KEEP_KB=1000000, CONCURRENCY=4,
                       MAX_ATTEMPTS=2)
    bench.handler("ok", "cat >/dev/null")
    bench.handler("bad", "cat; exit 65")
    bench.lets_dots = True
    bench.once()
    thrown = []

    @planned(EXAMPLES * 2)
    @given(NAME, records())
    def collect(name, data):
        thrown.append((name, data))

    collect()
    before = tree(tmp_path, (bench.spool, bench.run_dir, bench.ran_path, bench.root / "worker-0.log"))
    worker = bench.worker().wait_asleep()
    memory = private_kb(worker.pid)
    for name, data in thrown:
        path = os.fsencode(bench.q / folder) + b"/" + name
        try:
            with open(path, "xb") as file:
                file.write(data)
        except FileExistsError:
            pass
    bench.enqueue("ok", "--id", "behind", by="wrapper")
    bench.wait_done("behind")
    if folder == "incoming":
        wait_for(lambda: not [n for n in bench.names(folder) if n.count(".") < 6],
                 lambda: "all looked at: %s" % bench.names(folder)[:9])
    else:
        stamp = (bench.r / "status").stat().st_mtime_ns
        wait_for(lambda: bench.enqueue("ok", "--id", "again") and (bench.r / "status").stat().st_mtime_ns != stamp, "it scanned")
        bench.wait_done("again")
    assert worker.process.poll() is None
    assert private_kb(worker.pid) - memory < 3072
    for by in ("wrapper", "pyz"):
        bench.status(by)
    for verb in (["ls"], ["ls", folder if folder != "incoming" else "ready"], ["ls", "corrupt"], ["ls", "done"], ["ls", "dlq"],
                 ["status", "-v"], ["status", "--json"], ["check"], ["log"], ["show", "id1"], ["why", "id1"]):
        result = bench.edgeq(*verb)
        assert result.code in (0, 1, 2, 65), (verb, result)
        assert all(line.isprintable() for line in result.out.splitlines()) or verb[0] == "show", (verb, result.out)
    assert worker.stop() == 0
    assert all(line.isprintable() for line in worker.log.splitlines()), worker.log
    assert tree(tmp_path, (bench.spool, bench.run_dir, bench.ran_path, bench.root / "worker-0.log")) == before
    bench.accepted = [id for id in set(bench.accepted) if len(bench.where().get(id, ())) == 1]
    assert "behind" in bench.accepted
    check_alone(bench)


def check_alone(bench):
    """The rest of the standing checks would not understand such a spool: leave them an empty one."""
    import shutil
    shutil.rmtree(bench.q)
    bench.accepted = []


WORD = st.one_of(
    st.text(alphabet=st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]),
            max_size=40).map(lambda text: text.encode()),
    st.binary(max_size=20).map(lambda data: data.replace(b"\0", b"")),
    st.sampled_from([
        b"", b"-", b"--", b"---", b"-x", b"--id", b"--id=", b"--id=a=b", b"--delay", b"9" * 400, b"-1", b"0x10", b"1e9", b"--at",
        b"2026-13-45T99:99:99Z", b"--text", b"--file", b"/dev/null", b"/no/such", b"--priority", b"--key", b"--latest", b"--batch",
        b"--fast", b"--timeout", b"{}", b"[1,", b'"\\ud800"', b"ok", b"$(id)", b"`id`", b"a;b", b"../../x", b"\xff", b"--queue",
        b"--expires", b"--max-attempts", b"--for", b"ever", b"--type", b"--all", b"--help", b"--json", b"--prom"
    ]))
VERB = st.sampled_from(
    [b"enqueue", b"status", b"pause", b"resume", b"ls", b"show", b"why", b"kick", b"cancel", b"check", b"enqeue", b"", b"-h"])
QUICK = (b"wait", b"top", b"guard", b"drain", b"work", b"purge", b"move", b"forward", b"log")


@pytest.mark.parametrize("by", ["wrapper", "pyz"])
def test_any_arguments(make_bench, tmp_path, by):
    """B68, B77, B60, 9.3: every word of every verb: an exit code of ours, one line, nothing outside touched."""
    bench = make_bench()
    bench.handler("ok", "exit 0")
    bench.once()
    before = tree(tmp_path, (bench.spool, bench.run_dir))

    @planned(EXAMPLES if by == "pyz" else EXAMPLES * 2)
    @given(VERB, st.lists(WORD, max_size=5))
    def throw(verb, words):
        if b"--config" in words or any(word.startswith((b"--config", b"--output", b"--c", b"--o")) for word in words):
            return  # names a file of the caller's own
        result = bench.edgeq(verb, *words, by=by)
        assert result.code in (0, 1, 2, 64, 65, 69, 73, 74, 75, 77, 78), (verb, words, result)
        assert result.code in (0, 1, 2) or result.out == "", (verb, words, result)
        assert result.code != 0 or verb != b"enqueue" or result.out, (verb, words, result)
        assert all(line.isprintable() for line in result.err.splitlines()), (verb, words, result.err)
        assert result.code == 64 or verb == b"check" or len(result.err.splitlines()) <= 2, (verb, words, result)

    throw()
    assert tree(tmp_path, (bench.spool, bench.run_dir)) == before
    bench.edgeq("resume")
    for name in list(bench.q.glob("paused*")):
        name.unlink()
    assert bench.once().code in (0, 75)


SHELL_KEYS = {
    "SPOOL": "SPOOL", "RUN_DIR": "RUN_DIR", "QUEUE": "QUEUE", "MIN_FREE_KB": "MIN_FREE_KB", "MAX_JOBS": "MAX_JOBS",
    "MAX_PAYLOAD_KB": "MAX_PAYLOAD_KB", "REQUIRE_MOUNT": "REQUIRE_MOUNT", "CLOCK": "CLOCK", "USER": "USER_KEY"
}
VALUES = ([
    "/a/b", "/", "//", "/x/", "/x//", "rel", "", '"/q d"', '"/q" # c', '"/open', "/a#b", " /lead", "/trail ", "default", "-q",
    "a.b", "5", "05", "0", "00", "-1", "1.5", "9999999999999", "1 2", "none", "None", '"none"', "a=b", "ü", "$HOME", "$(id)",
    "`id`", "spool:/s", "spool:rel", "spool:", "spool:/", "spool:/s//", "sqlite:/d/q.db", "sqlite:q.db", "sqlite:/q.db", "x" * 70,
    "edgeq", "\x0b/v", "/v\x0c", '""', '"a" b'
])
VALUE = st.sampled_from(VALUES)
LINE = st.one_of(
    st.builds(
        lambda key, value, lead, trail: lead + key + "=" + value + trail,
        st.sampled_from(
            sorted(SHELL_KEYS) + ["STORE", "SPOOL", "QUEUE", "UNKNOWN_KEY", "spool", "SPOOL ", " SPOOL", "SP-OOL", "SPÖOL", ""]),
        VALUE, st.sampled_from(["", " ", "\t", "export ", "\x0b"]), st.sampled_from(["", " ", "\r", "\t\r", "\x0c"])),
    st.sampled_from(["", "#", "# SPOOL=/no", "   # x", "rubbish", "=", "==", "SPOOL", "\r", "\x0b", "\ufeffSPOOL=/bom"]))

ASK_PYTHON = """
import sys
sys.path.insert(0, sys.argv[1])
from edgeq import config
from edgeq.errors import BadConfig
for line in sys.stdin:
    path = line.rstrip("\\n")
    try:
        c = config.load(path)
        print("|".join(["0", c.spool.rstrip("/"), c.run_dir.rstrip("/"), c.queue,
                        str(c.min_free_kb), str(c.max_jobs), str(c.max_payload_kb),
                        c.require_mount.rstrip("/"), c.clock, c.user]))
    except BadConfig as error:
        assert str(error).count("\\n") == 0
        print("78")
"""


def test_shell_and_python_read_a_configuration_alike(make_bench, tmp_path):
    """B94, 9.3: any file: both take it and see the same values, or both refuse it with 78 in one line; it is never executed."""
    bench = make_bench()
    head, _, _ = WRAPPER.read_text().partition("\n#--- clocks ---")
    probe = tmp_path / "probe"
    probe.write_text(
        head + "\nverb=probe\n${READER-configure} || { echo -; exit 0; }\n"
        "printf '%s|%s|%s|%s|%s|%s|%s|%s|%s|%s\\n' 0 \"${SPOOL%/}\" \"${RUN_DIR%/}\" \"$QUEUE\" "
        "\"$MIN_FREE_KB\" \"$MAX_JOBS\" \"$MAX_PAYLOAD_KB\" \"${REQUIRE_MOUNT%/}\" \"$CLOCK\" \"$USER_KEY\"\n")
    files = []

    @planned(EXAMPLES * 5)
    @given(st.lists(LINE, max_size=6), st.sampled_from(["\n", "", "\n\n"]))
    def collect(lines, end):
        files.append("\n".join(lines) + end)

    collect()
    files += ["%s=%s\n" % (key, value) for key in sorted(SHELL_KEYS) + ["STORE"] for value in VALUES]
    usual = ["SPOOL=/data/edgeq", "# a comment, with 'signs'", "LOG=syslog", "  CONCURRENCY=2", "RUN_DIR=/run/x",
             "MAX_JOBS=1000000"]
    files += ["\n".join(usual[:n] + [line] + usual[n:]) + "\n" for n in (0, len(usual)) for line in (
        ["%s=%s" % (key, value) for key in ("MIN_FREE_KB", "MAX_JOBS", "MAX_PAYLOAD_KB", "MAX_ATTEMPTS", "SAFETY_SCAN_S")
         for value in (0, "00", 1, "01", 9, 10, 64, 512, 999, 1000, 16385, 999999, 9999999, 10000001, 99999999999999, "1x", "")]
        + ["%s=%s" % (key, value) for key in ("SPOOL", "RUN_DIR")
           for value in ("/", "//", "/a/", "//a", "/a//b", "a", "", "/ä", "/a b")]
        + ["SAFETY_SCAN_S=%s" % value
           for value in (".", ".0", ".05", ".1", "0.1", "0.09", "5.", "86400.0", "86400.1", "86401", "1.2.3", "00.5", "0.", "1e3",
                         "12345678901234", "99999.")]
        + ["A=b", "1=b", "Ä=b", "=b", "a-b=c", "x", "A=b=c", "A='b'", "A=\"b", "A=b #c", "USER=", "STORE=", "CLOCK=",
           "QUEUE=q", "QUEUE=-q", "QUEUE=-q\nQUEUE=q", "QUEUE=", "QUEUE=../q", "QUEUE=%s" % ("q" * 65),
           "REQUIRE_MOUNT=/data", "REQUIRE_MOUNT=x", "REQUIRE_MOUNT=", "MAX_JOBS"])]
    folder = tmp_path / "conf"
    folder.mkdir()
    for n, text in enumerate(files):
        (folder / ("c%04d" % n)).write_text(text)
    paths = "".join("%s\n" % path for path in sorted(folder.iterdir()))
    script = 'while read -r p; do EDGEQ_CONF=$p sh "$0" 2>>"$1" || echo $?; done'
    asked, quick = (subprocess.run(
        [str(bench.bin / "sh"), "-c", script, str(probe), str(tmp_path / "err")], input=paths, capture_output=True, text=True,
        env={"PATH": str(bench.bin), "READER": reader}, timeout=120) for reader in ("configure", "read_plain_conf"))
    told = subprocess.run([os.environ.get("PYTHON", "python3"), "-c", ASK_PYTHON,
                           str(Path(__file__).parents[2])], input=paths, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    shell, python = asked.stdout.splitlines(), told.stdout.splitlines()
    assert len(shell) == len(python) == len(files), (asked, told)
    plain = quick.stdout.splitlines()  # the quick reader takes only what it reads as the careful one does
    assert len(plain) == len(files) and sum(line != "-" for line in plain) > 60
    assert [(text, line) for text, line, careful in zip(files, plain, shell) if line not in ("-", careful)] == []
    shell = [line.replace("//", "/") for line in shell]
    python = [line.replace("//", "/") for line in python]
    differ = [(text, ours, theirs) for text, ours, theirs in zip(files, shell, python) if ours != theirs]
    assert differ == [], "%d of %d: %s" % (len(differ), len(files), "\n".join(
        map(repr,
            sorted(differ, key=lambda d: len(d[0]))[:12])))
    assert len([line for line in python if line != "78"]) > len(files) // 20
    assert all(line.isprintable() for line in (tmp_path / "err").read_text("utf-8", "replace").splitlines())


def test_a_configuration_of_any_bytes(make_bench, tmp_path):
    """B94: torn, NULs, binary, huge: the wrapper and the zipapp end with 0 or 78, in one line, and touch no job by it."""
    bench = make_bench()
    good = bench.conf.read_bytes()
    dice = random.Random(int(SEED or 9))
    forms = [
        b"", b"\0" * 512, good + b"\0" * 512, good[:len(good) // 2], b"\xff\xfe" + good.decode().encode("utf-16"),
        b"\xef\xbb\xbf" + good, good + b"X=" + b"y" * 70000 + b"\n",
        good.replace(b"\n", b"\r\n"), b"#" * 65000 + b"\n" + good,
        dice.randbytes(3000), b"=" * 500
    ]
    for n, data in enumerate(forms):
        bench.conf.write_bytes(data)
        for by in ("wrapper", "pyz"):
            result = bench.edgeq("status", by=by) if n not in (0, 3) else None
            if result is not None:
                assert result.code in (0, 1, 2, 78), (n, by, result)
                assert len(result.err.splitlines()) <= 1 and all(line.isprintable()
                                                                 for line in result.err.splitlines()), (n, by, result)
    bench.conf.write_bytes(good)
    link = tmp_path / "link.conf"
    link.symlink_to(bench.conf)
    for by in ("wrapper", "pyz"):  # the file on the data partition, a link in /etc
        assert bench.edgeq("status", "--config", str(link), by=by).code in (0, 1, 2)
