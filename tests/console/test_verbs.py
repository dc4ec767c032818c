"""Every verb's exit codes, in Python and, where the shell does it, by the wrapper; and the help that helps."""

import re
import subprocess

import pytest

from edgeq import cli
from tests.console.console import COLUMNS, REPO, wait_for

SHELL_VERBS = ("enqueue", "status", "pause", "resume", "wait")
# state of the board: nothing, or one job each that waits, is delayed, died, is done
TABLE = [  # words, code on an empty queue, code on a full one
    ("enqueue t", 0, 0), ("enqueue t --id waits", 0, 0), ("enqueue t --id dead", 0, 0), ("enqueue t --id done", 0, 0),
    ("enqueue", 64, 64), ("enqueue t {", 65, 65), ("enqueue t 1 2", 64, 64), ("enqueue t --delay x", 64, 64),
    ("enqueue t --file /no/such", 65, 65), ("enqueue t --latest", 64, 64), ("enqueue t --key k --latest", 0, 0),
    ("enqueue --batch", 65, 65), ("enqueue a/b", 64, 64),
    ("enqueue t --priority 10", 64, 64), ("enqueue t --at 0", 64, 64), ("enqueue t -5", 0, 0),
    ("status", 2, 2), ("status -v", 2, 2), ("status --json", 2, 2), ("status --prom", 2, 2), ("status --all", 2, 2),
    ("status --output /x", 64, 64), ("status x", 64, 64), ("status --nonsense", 64, 64),
    ("pause", 0, 0), ("pause t --for 5", 0, 0), ("pause t --for ever", 0, 0), ("pause --for 0", 64, 64), ("pause a b", 64, 64),
    ("pause --for 315360000", 0, 0), ("pause --for 315360001", 64, 64),
    ("resume", 1, 1), ("resume t", 1, 1), ("resume a b", 64, 64),
    ("wait done", 1, 0), ("wait dead", 1, 1), ("wait waits --timeout 0", 1, 75), ("wait", 64, 64), ("wait a/b", 64, 64),
    ("pause a/b", 64, 64),
    ("drain", 0, 0), ("drain x", 64, 64), ("drain --timeout 0", 0, 0),
    ("work --once", 0, 75), ("work --preflight", 0, 0), ("work x", 64, 64), ("work --concurrency 0", 64, 64),
    ("ls", 1, 0), ("ls ready", 1, 0), ("ls delayed", 1, 0), ("ls running", 1, 1), ("ls dead", 1, 0), ("ls done", 1, 0),
    ("ls corrupt", 1, 1), ("ls nonsense", 64, 64), ("ls --type t", 1, 0), ("ls --type u", 1, 1), ("ls a b", 64, 64),
    ("show waits", 1, 0), ("show done", 1, 0), ("show dead", 1, 0), ("show a/b", 64, 64), ("show", 64, 64),
    ("why waits", 1, 0), ("why later", 1, 0), ("why done", 1, 0), ("why dead", 1, 0), ("why", 64, 64), ("why a/b", 64, 64),
    ("kick dead", 1, 0), ("kick waits", 1, 75), ("kick done", 1, 75), ("kick --all", 1, 0), ("kick --all --type bad", 1, 0),
    ("kick --all --type u", 1, 1), ("kick", 64, 64), ("kick dead --type t", 64, 64), ("kick --all dead", 64, 64),
    ("cancel waits", 1, 0), ("cancel dead", 1, 0), ("cancel done", 1, 1), ("cancel", 64, 64), ("cancel --running waits", 1, 0),
    ("cancel a/b", 64, 64),
    ("purge dlq", 0, 0), ("purge done", 0, 0), ("purge corrupt", 0, 0), ("purge incoming", 64, 64), ("purge failed --force", 0, 0),
    ("purge all", 64, 64), ("purge all --force", 0, 0), ("purge nonsense", 64, 64), ("purge processing --force", 64, 64),
    ("check x", 64, 64), ("top --interval 0", 64, 64), ("top", 0, 0), ("log", 1, 0), ("log -n 1", 1, 0), ("log x", 64, 64),
    ("", 64, 64), ("nonsense", 64, 64), ("--help", 0, 0), ("--version", 0, 0), ("help", 0, 0), ("--queue", 64, 64),
    ("--queue a/b status", None, None)]


def fill(console):
    console.handler("good", ":")
    console.handler("bad", "exit 65")
    console.ok("enqueue", "good", "--id", "done")
    console.ok("enqueue", "bad", "--id", "dead")
    console.ok("work", "--once")
    console.ok("enqueue", "t", "--id", "waits")
    console.ok("enqueue", "t", "--id", "later", "--delay", "3600")


@pytest.fixture(scope="module")
def full_root(tmp_path_factory):
    from tests.console.console import Console
    console = Console(tmp_path_factory.mktemp("full"))
    fill(console)
    return console.root


@pytest.mark.parametrize("full", [False, True], ids=["empty", "full"])
def test_every_exit_code(console, full_root, full):
    """One line on stderr at the most where the answer is no, and no traceback anywhere."""
    wrong = []
    for words, empty_code, full_code in TABLE:
        want = full_code if full else empty_code
        for by in ("python", "wrapper") if words.split(" ")[0] in SHELL_VERBS else ("python",):
            for folder in ("spool", "run"):
                subprocess.run(["rm", "-rf", str(console.root / folder)], check=True)
                if full:
                    subprocess.run(["cp", "-a", str(full_root / folder), str(console.root / folder)], check=True)
            result = console.edgeq(*words.split(), by=by)
            is_refusal = want is None and result.code in (64, 65, 78)
            is_one_line = result.err.count("\n") <= 1 or words in ("", "--queue") or words.startswith("work")
            if not (result.code == want or is_refusal) or not is_one_line or "Traceback" in result.err or "bug:" in result.err:
                wrong.append("%s, by %s: wanted %s: %r" % (words, by, want, result))
    assert wrong == []


def test_check_says_clean_or_what(console):
    console.ok("enqueue", "good")
    missing = console.edgeq("check")
    assert missing.code == 1 and missing.lines[-1] == "1 finding" and "handlers/good is missing" in missing.out
    console.handler("good", ":")
    assert console.edgeq("check").lines[-1] == "clean"


def test_status_is_healthy_degraded_broken(console):
    console.handler("bad", "exit 65")
    console.start()
    assert console.edgeq("status").code == console.edgeq("status", by="wrapper").code == 0
    console.ok("enqueue", "bad")
    wait_for(lambda: "dead=1" in console.edgeq("status").out, "one is dead")
    assert console.edgeq("status").code == console.edgeq("status", by="wrapper").code == 1
    console.stop()
    assert console.edgeq("status").code == console.edgeq("status", by="wrapper").code == 2


@pytest.mark.parametrize("by", ["python", "wrapper"])
@pytest.mark.parametrize("words, meant", [
    ("enqeue t", "enqueue"), ("stauts", "status"), ("kik --all", "kick"), ("enqueue t --prioritty 1", "--priority"),
    ("status --jsn", "--json"), ("pause --fro 5", "--for"), ("purge dlq --forse", "--force"), ("wait x --timeot 1", "--timeout")])
def test_did_you_mean(console, words, meant, by):
    result = console.edgeq(*words.split(), by=by)
    assert result.code == 64 and "did you mean '%s'?" % meant in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize("verb", sorted(cli.VERBS))
def test_help_of_a_verb_fits_the_console_and_gives_an_example(console, verb):
    result = console.edgeq(verb, "--help")
    assert result.code == 0 and result.err == ""
    assert [line for line in result.lines[1:] if len(line) > COLUMNS] == []
    assert result.out.isascii()
    assert re.search(r"^  +edgeq .*%s" % verb, result.out, re.M) or verb in ("move", "forward"), result.out


def test_help_fits_the_console(console):
    result = console.edgeq("--help")
    assert result.code == 0 and [line for line in result.lines if len(line) > COLUMNS] == []
    assert set(cli.VERBS) <= set(re.findall(r"^  (\w+)", result.out, re.M))
    wrapper = console.edgeq(by="wrapper")
    assert wrapper.code == 64 and all(len(line) <= COLUMNS for line in wrapper.err.splitlines())


@pytest.mark.parametrize("page", ["verbs.md", "edgeq.1"])
def test_the_manual_has_every_verb_and_option(page):
    text = (REPO / "docs" / page).read_text()
    plain = text.replace("Fl Fl ", "--").replace("Fl ", "-")
    for verb in cli.VERBS:
        assert re.search(r"(###.*|\.It.*|Cm |edgeq )\b%s\b" % verb, text) or verb in ("move", "forward"), verb
        options = __import__("edgeq.cli." + cli.VERBS[verb][0], None, None, ["OPTIONS"]).OPTIONS.get(verb, {})
        for option in options if page == "verbs.md" and verb not in ("move", "forward") else ():
            assert ("-" if len(option) == 1 else "--") + option in plain, (verb, option)


def test_the_man_page_is_clean():
    done = subprocess.run(["mandoc", "-T", "lint", str(REPO / "docs/edgeq.1")], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_manual_has_every_key():
    from edgeq.config import KEYS, TYPE_KEYS
    text = (REPO / "docs/configuration.md").read_text()
    assert [key for key in [*KEYS, *TYPE_KEYS] if not re.search(r"\b%s\b" % key, text)] == []


def test_the_last_words_of_a_worker_that_left_are_told_by_both(console):
    console.configure(LINGER_S=1)
    console.type_conf("bad", MAX_ATTEMPTS=1)
    console.handler("bad", "echo no such host; exit 1")
    id = console.ok("enqueue", "bad")
    worker = console.start(up=False)
    assert worker.wait(20) == 0
    wrapper, python = (console.edgeq("status", by=by) for by in ("wrapper", "python"))
    assert ' worker=idle ' in wrapper.out and ' last_error="bad %s: exit 1: no such host"' % id in wrapper.out
    for line in (wrapper, python):
        line.out = line.out.partition(" ")[2].partition(" free_kb=")[::2]
    assert wrapper.out[0] == python.out[0]
    assert wrapper.out[1].partition(" ")[2] == python.out[1].partition(" ")[2] and wrapper.code == python.code == 1


@pytest.mark.parametrize("made", ["", "spool"])
def test_a_board_where_nothing_was_queued_is_told_alike(console, made):
    (console.root / made).mkdir(parents=True, exist_ok=True)
    lines = [re.sub(r"^\S+|free_kb=[1-9]\d*", "", console.edgeq("status", by=by).out) for by in ("wrapper", "python")]
    assert lines[0] == lines[1] and 'last_error=""' in lines[0]
