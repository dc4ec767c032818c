"""The file-name codec: what is ours to the letter, and what is not."""

import pytest
from hypothesis import given, strategies as st

from edgeq.job import DLQ, FAILED, INCOMING, PROCESSING, Entry, format_version, is_word, parse_name, safe_name

words = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", fullmatch=True)


@st.composite
def entries(draw):
    state = draw(st.sampled_from((INCOMING, FAILED, PROCESSING)))
    token = draw(words) if state == PROCESSING else ""
    return Entry(state, draw(st.integers(0, 9)), draw(st.integers(0, 10 ** 16 - 1)), draw(st.integers(0, 10 ** 12 - 1)),
                 draw(st.booleans()), draw(st.integers(0, 9999)), draw(st.booleans()), draw(words), draw(words), token,
                 bool(token) and draw(st.booleans()))


@given(entries())
def test_a_name_comes_back_as_it_was(entry):
    found = parse_name(entry.state, entry.name)
    assert all(getattr(found, field) == getattr(entry, field) for field in Entry.__slots__)
    assert len(entry.name) <= 255 and "/" not in entry.name and entry.name[0] != "."


GOOD = "5.1800000000000000.0.0.mail.a.json"


@pytest.mark.parametrize("name", (
    "5.1800000000000000.0.00.mail.a.json", "5.180000000000000.0.0.mail.a.json", "5.18000000000000000.0.0.mail.a.json",
    "55.1800000000000000.0.0.mail.a.json", "5.1800000000000000.00.0.mail.a.json", "5.1800000000000000.0.0.-m.a.json",
    "5.1800000000000000.0.0.mail..json", "5.1800000000000000.0.0.mail.a.txt", "5.1800000000000000.0.0.mail.a.settling",
    "5.1800000000000000.0.0.mail.a.b.json", "\u0665.1800000000000000.0.0.mail.a.json", "5.1800000000000000.0a0.0.mail.a.json",
    "5.1800000000000000.0.0rr.mail.a.json", "5.1800000000000000.+0.0.mail.a.json", "5.1800000000000000.0.0.mail.a.json\n", "", ".",
    "a.json"))
def test_a_name_that_is_not_ours_to_the_letter_is_nobodys(name):
    assert parse_name(INCOMING, GOOD) is not None
    assert parse_name(INCOMING, name) is None


@given(st.text())
def test_no_name_breaks_the_parser(name):
    for state in (INCOMING, PROCESSING, FAILED, DLQ):
        entry = parse_name(state, name)
        assert entry is None or entry.name == name
    assert format_version(name) >= 0


@given(st.text(min_size=1))
def test_a_safe_name_is_a_plain_file_name(name):
    safe = safe_name(name)
    assert safe and safe.isascii() and safe[0] not in ".-" and "/" not in safe and len(safe) <= 161
    assert not safe.endswith(".why") and not format_version(safe)


@pytest.mark.parametrize("name", ("a.why", "..why", "a.v2.json.why", "x" * 152 + ".v2.jsonx", "x" * 156 + ".whyx"))
def test_what_is_set_aside_has_no_name_that_the_bounds_pass_over(name):
    assert not safe_name(name).endswith(".why") and not format_version(safe_name(name))


@pytest.mark.parametrize("name, version",
                         (("a.v2.json", 2), ("5.1.0.0.t.a.v12.json", 12), ("a.v1.json", 0), ("a.v.json", 0), ("a.json", 0),
                          ("v2.json", 2), ("a.v2.txt", 0), ("a.v-2.json", 0)))
def test_newer_formats_are_known_by_their_ending(name, version):
    assert format_version(name) == version


@pytest.mark.parametrize("text, is_one",
                         (("a", 1), ("_-a9", 1), ("a" * 64, 1), ("a" * 65, 0), ("-a", 0), ("a.b", 0), ("a/b", 0), ("", 0),
                          ("a\n", 0), ("\u00e4", 0), ("..", 0)))
def test_words(text, is_one):
    assert is_word(text) == bool(is_one)


def test_a_move_out_of_processing_drops_the_token():
    entry = parse_name(PROCESSING, "5.1800000000000000.0.1.mail.a.tok.json")
    assert entry.moved(FAILED, due=7).name == "5.1800000000000000.7.1.mail.a.json"
    assert entry.moved(PROCESSING, token="tok", settling=True).name == "5.1800000000000000.0.1.mail.a.tok.settling"
