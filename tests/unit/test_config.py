"""Configuration: read, never executed; a bad value names its line, an unknown key is not fatal."""

import pytest

from edgeq.config import KEYS, TYPE_KEYS, Config, load, load_type
from edgeq.errors import BadConfig


@pytest.fixture
def write(tmp_path):
    """write(text, name) -> path of the configuration."""
    def write(text, name="edgeq.conf"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(tmp_path / "edgeq.conf")
    return write


def test_a_missing_file_means_the_defaults(tmp_path):
    config = load(str(tmp_path / "none"))
    assert {key: getattr(config, key.lower()) for key in KEYS if key != "STORE"} == {
        key: default for key, (default, _) in KEYS.items() if key != "STORE"}
    assert config.store == "spool:/var/lib/edgeq"
    assert config.spool_path == "/var/lib/edgeq/default" and config.run_path == "/run/edgeq/default"


def test_every_default_passes_its_own_check():
    for key, (default, parse) in list(KEYS.items()) + list(TYPE_KEYS.items()):
        if default:
            assert parse(str(default)) == default, key


def test_quotes_comments_blank_lines_and_the_last_of_equals(write):
    config = load(write('# a comment\n\n  \nLEASE_S=7\r\nLEASE_S="9" # why\n\tQUEUE=urgent\nHANDLERS="/a b/c/"\nGRACE_S=2.5\n'))
    assert (config.lease_s, config.queue, config.handlers, config.grace_s) == (9, "urgent", "/a b/c", 2.5)


def test_nothing_is_expanded_or_executed(write):
    assert load(write("HANDLERS=/$HOME/`id`$(id)\n")).handlers == "/$HOME/`id`$(id)"


@pytest.mark.parametrize("line", (
    "LEASE_S=", "LEASE_S=0", "LEASE_S=-1", "LEASE_S=1e3", "LEASE_S=\u0661", "LEASE_S=nan", "CONCURRENCY=0", "CONCURRENCY=1.5",
    "JITTER=0.6", "SPOOL=var",
    "QUEUE=a b", "QUEUE=../x", "QUEUE=", "LOG=file", "CLOCK=gps", 'LEASE_S="9', 'LEASE_S="9"x', "no equals", "A B=1",
    "MAX_ATTEMPTS=1000",
    "USER=-x", "DONE_KEEP_KB=1", "STORE=spool:relative"))
def test_a_bad_line_is_named(write, line):
    path = write("# first\n%s\n" % line)
    with pytest.raises(BadConfig) as caught:
        load(path)
    assert path in str(caught.value) and "line 2" in str(caught.value) and caught.value.exit_code == 78


@pytest.mark.parametrize("content", (b"\0", b"#" * 70000))
def test_a_file_that_is_no_text_is_refused(write, content):
    with pytest.raises(BadConfig):
        load(write(content))


def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    (tmp_path / "edgeq.conf").mkdir()
    with pytest.raises(BadConfig):
        load(str(tmp_path / "edgeq.conf"))


def test_an_unknown_key_is_remembered_and_ignored(write):
    config = load(write("FROM_THE_FUTURE=1\nLEASE_S=9\nFROM_THE_FUTURE=2\n"))
    assert config.unknown == ["FROM_THE_FUTURE"] and config.lease_s == 9


def test_a_queue_has_its_own_file_over_the_common_one(write):
    write("LEASE_S=5\n", "edgeq.conf.d/@urgent.conf")
    path = write("LEASE_S=9\nGRACE_S=3\n")
    assert (load(path, "urgent").lease_s, load(path, "urgent").grace_s, load(path).lease_s) == (5, 3, 9)
    assert load(path, "urgent").spool_path.endswith("/urgent")
    with pytest.raises(BadConfig, match="--queue"):
        load(path, "../x")


def test_the_store_url_of_a_spool_says_where_it_lies(write):
    assert load(write("STORE=spool:/data/q/\n")).spool_path == "/data/q/default"


def test_a_type_takes_what_its_file_does_not_say_from_the_configuration(write):
    write("TIMEOUT_S=7\nNEEDS=net\nUNKNOWN=1\n", "edgeq.conf.d/mail.conf")
    config = load(write("MAX_ATTEMPTS=9\nTIMEOUT_S=100\nCONCURRENCY=4\n"))
    mail, other = load_type(config, "mail"), load_type(config, "other")
    assert (mail.timeout_s, mail.max_attempts, mail.needs, mail.concurrency, mail.bad) == (7, 9, "net", 0, "")
    assert (other.timeout_s, other.needs, other.user, other.nice) == (100, "", "", 0)


def test_a_bad_type_file_holds_its_type_only(write):
    write("TIMEOUT_S=soon\n", "edgeq.conf.d/mail.conf")
    config = load(write(""))
    assert "mail.conf line 1" in load_type(config, "mail").bad and not load_type(config, "other").bad
    assert isinstance(config, Config)
