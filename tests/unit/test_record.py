"""Records: JSON in and out, the payload to the byte, what is torn."""

import json

import pytest
from hypothesis import given, strategies as st

from edgeq import record as records
from edgeq.errors import BadJob
from edgeq.job import Entry, INCOMING, Job
from edgeq.record import check_payload, decode, encode, encode_dead, text_payload, to_job

LIMIT = 65536
values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(
    st.characters(exclude_categories=["Cs"])), lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(
        exclude_categories=["Cs"])), inner), max_leaves=8)


@given(values, st.booleans())
def test_every_json_value_is_a_payload_and_comes_back_to_the_byte(value, ascii):
    payload = json.dumps(value, ensure_ascii=ascii).encode()
    assert check_payload(payload, LIMIT).encode() == payload
    record = decode(encode(Job("t", payload, id="a"), 1_800_000_000_000_000, 0), LIMIT)
    assert record.payload == payload and (record.id, record.type) == ("a", "t")
    dead = decode(encode_dead(record, Entry(INCOMING, 5, 1, 0, False, 1, False, "t", "a"), 3, 'why "\n', 7.9), LIMIT)
    assert dead.payload == payload and dead.attempts == 3 and json.loads(dead.raw["last_error"]) == 'why "\n' and dead.was_dead
    if isinstance(value, str):
        assert record.stdin() == value.encode()


@given(st.binary(max_size=60))
def test_whatever_is_taken_for_json_is_json(data):
    try:
        text = check_payload(data, LIMIT)
    except BadJob:
        return
    json.loads(data)
    assert "\n" not in text


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60))
def test_text_becomes_its_json_string(text):
    assert json.loads(text_payload(text.encode())) == text


@given(st.integers(1, 200))
def test_a_record_cut_anywhere_is_torn(size):
    whole = encode(Job("mail", b'{"url":"https://example.net/hook"}', id="a", priority=1, key="k", max_attempts=3),
                   1_800_000_000_000_000, 1)
    if size < len(whole):
        with pytest.raises(BadJob):
            decode(whole[:size], LIMIT)


BAD = (b"", b" ", b"{", b"nul", b"[1,]", b"{'a':1}", b'"\x01"', b'"a\nb"', b'"a\rb"', b'"a\tb"', b"1 2", b"{} x", b"01", b".5",
       b"1.", b"NaN", b"-Infinity", b'"\\x"',
       b'"\\ud800"', b'"\\udc00\\ud800"', b'["\\ud83d","\\ude00"]', b'"\\uD83Dx\\uDE00"', b"\xff", b'"\xed\xa0\x80"',
       b"[" * 65 + b"]" * 65,
       b'{"a":' * 65 + b"1" + b"}" * 65, b"\xef\xbb\xbf{}", b"//x\n{}", b'"' + b"x" * LIMIT + b'"')


@pytest.mark.parametrize("payload", BAD, ids=range(len(BAD)))
def test_a_payload_that_is_no_json_is_refused(payload):
    with pytest.raises(BadJob) as caught:
        check_payload(payload, LIMIT)
    assert "\n" not in str(caught.value)


def test_line_breaks_between_tokens_become_blanks():
    assert check_payload(b'\n{\r\n"a":\n1}\n', LIMIT) == '{  "a": 1}'


@pytest.mark.parametrize("depth", (64,))
def test_the_deepest_payload_is_readable_as_a_record(depth):
    payload = b"[" * depth + b"]" * depth
    check_payload(payload, LIMIT)
    assert decode(encode(Job("t", payload, id="a"), 1, 0), LIMIT).payload == payload


@pytest.mark.parametrize("text", (
    '{"type":"t","priority":10}', '{"type":"t","priority":-1}', '{"type":"t","priority":"1"}', '{"type":"t","priority":1.0}',
    '{"type":"t","max_attempts":0}', '{"type":"t","max_attempts":1000}', '{"type":"t","timeout_s":0}', '{"type":"t","expires_s":0}',
    '{"type":"t","available_at":99999999999}', '{"type":"t","key":""}', '{"type":"t","key":"../x"}', '{"type":"t","key":7}',
    '{"id":"a"}',
    '{"type":7}', '{"type":"a b"}', '{"type":"t","id":"a/b"}', '{"type":"t","id":-1}', '{"type":"t","v":2}', '[]', '"t"',
    '{"type":"t",}',
    '{"type":"t" "id":"a"}', '{"type" "t"}', '{type:"t"}', '{"type":"t"}{}', '{"type":"t","type":"t"}', '{"a'))
def test_a_record_with_a_bad_field_is_refused(text):
    with pytest.raises(BadJob):
        decode(text.encode() + b"\n", LIMIT)


def test_a_dropped_record_asks_for_what_it_says_and_no_more():
    job = to_job(decode(b'{"type":"t","id":12,"priority":0,"attempts":4,"created_at":1,"available_at":1900000000,"key":"a.b",'
                        b'"x":[1]}\n', LIMIT))
    assert (job.id, job.type, job.priority, job.at, job.key, job.payload) == ("12", "t", 0, 1_900_000_000, "a.b", b"{}")


def test_unknown_fields_survive_a_death():
    record = decode(b'{"type":"t","id":"a","site":{"n":1e999},"payload":[ 1 ]}\n', LIMIT)
    dead = encode_dead(record, Entry(INCOMING, 5, 1, 0, False, 1, False, "t", "a"), 1, "x", 7)
    assert b'"site":{"n":1e999}' in dead and dead.endswith(b'"payload":[ 1 ]}\n')


def test_a_nul_in_text_is_refused():
    with pytest.raises(BadJob):
        text_payload(b"a\0b")


SPELLINGS = st.sampled_from([
    '"id":"a-1"', '"id":"a b"', '"id":""', '"id":7', '"id":07', '"id":"\\u0061"', '"type":"t"', '"type":"t" ', '"created_at":5',
    '"created_at":-1', '"priority":9', '"priority":null', '"key":"k.1"', '"key":"k,1"', '"latest":true', '"v":1', '"note":"x"',
    '"attempts":1e3', '"timeout_s":１', '', '"payload":3'])
PAYLOADS = st.sampled_from([
    '{}', ' {}', '{} ', '1', '1 2', '"a,\\"payload\\":"', '{"payload":1}', '[1,]', '', 'NaN', '{"a":1},"payload":2', '{"a":1}}'])


@given(st.lists(SPELLINGS, max_size=4), PAYLOADS, st.sampled_from(["}\n", "}", "} \n", "}\n\n", "\n"]))
def test_the_short_way_reads_what_the_long_one_reads(fields, payload, end):
    text = "{" + ",".join(fields + ['"payload":' + payload]) + end
    short = records._canonical_fields(text)
    if short is not None:
        assert short == records._fields(text)
