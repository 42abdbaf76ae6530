"""Messages of the smart protocol: the texts of both eras, round trips, and shapes that are refused."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.errors import AlreadyExists, BadData, Conflict, OdfError, SourceUnavailable
from odf_engine.identity.multiformats import Multihash, base58btc_encode
from odf_engine.sync.smart import messages as m

HERE = "odf+http://host/city/"
HASH = Multihash.parse("f16208a51920c4c13476b55c4987a2224f35d21eda3593395a2eae010c99a7e32a3e4")
PLAN = m.TransferPlan(6, 1, 4646, 4136, 148978)
OBJECT = m.ObjectReference("DataSlice", HASH, 148978)
URL = m.TransferUrl("http://host/vessels.gps/data/x", [m.HeaderRow("authorization", "Bearer x")])

# As the older reference writes and reads them.
TRANSCRIPT = [
    ('{"begin_after":null,"stop_at":null}', m.PullRequest()),
    (
        '{"Ok":{"transfer_plan":{"num_blocks":6,"num_objects":1,"num_records":4646,'
        '"bytes_in_raw_blocks":4136,"bytes_in_raw_objects":148978}}}',
        m.PullAccepted(PLAN),
    ),
    (
        '{"blocks":{"num_blocks":6,"media_type":"application/tar+gzip","encoding":"raw","payload":[31,139,8,0]}}',
        m.PullBlocks(m.batch_of(6, b"\x1f\x8b\x08\x00")),
    ),
    (
        f'{{"object_files":[{{"object_type":"DataSlice","physical_hash":"{HASH}","size":148978}}]}}',
        m.PullObjects([OBJECT]),
    ),
    (
        f'{{"object_transfer_strategies":[{{"object_file":{{"object_type":"DataSlice","physical_hash":"{HASH}",'
        '"size":148978},"pull_strategy":"HttpDownload","download_from":{"url":"http://host/vessels.gps/data/x",'
        '"headers":[{"name":"authorization","value":"Bearer x"}],"expires_at":null}}]}',
        m.PullStrategies([m.PullStrategy(OBJECT, "HttpDownload", URL)]),
    ),
    (
        '{"current_head":null,"transfer_plan":{"num_blocks":6,"num_objects":1,"num_records":4646,'
        '"bytes_in_raw_blocks":4136,"bytes_in_raw_objects":148978}}',
        m.PushRequest(PLAN),
    ),
    ('{"Ok":{}}', m.Empty()),
    ("{}", m.Empty()),
    (
        f'{{"object_files":[{{"object_type":"DataSlice","physical_hash":"{HASH}","size":148978}}],'
        '"is_truncated":false}',
        m.PushObjects([OBJECT]),
    ),
    (
        f'{{"object_transfer_strategies":[{{"object_file":{{"object_type":"DataSlice","physical_hash":"{HASH}",'
        '"size":148978},"push_strategy":"SkipUpload","upload_to":null}]}',
        m.PushStrategies([m.PushStrategy(OBJECT, "SkipUpload")]),
    ),
    ('{"details":{"Running":{"uploaded_objects_count":7}}}', m.PushProgress(m.RunningDetails(m.Running(7)))),
    ('{"details":"Complete"}', m.PushProgress("Complete")),
]


@pytest.mark.parametrize(("text", "message"), TRANSCRIPT, ids=lambda value: type(value).__name__)
def test_reference_transcript_is_read_and_written(text, message):
    assert m.read_answer(text, type(message), HERE) == message
    written = json.loads(m.answer_text(message, wrapped=text.startswith('{"Ok"')))
    old = json.loads(text)
    assert {key: written[key] for key in old} == old  # the newer era has more fields


def test_fields_of_the_newer_protocol_are_always_sent():
    assert json.loads(m.encode_message(m.PullRequest(HASH))) == {
        "begin_after": str(HASH),
        "stop_at": None,
        "force_update_if_diverged": False,
    }
    pushed = json.loads(m.encode_message(m.PushRequest(PLAN, force_update_if_diverged=True)))
    assert pushed["force_update_if_diverged"] is True
    assert pushed["visibility_for_created_dataset"] == "Private"


def test_unknown_fields_are_ignored_and_base58_hashes_read():
    old = base58btc_encode(bytes(HASH))
    text = f'{{"begin_after":"{old}","more":[{{"x":1}}]}}'
    assert m.read_message(text, m.PullRequest, HERE) == m.PullRequest(HASH)


@pytest.mark.parametrize("wrapped", [True, False])
def test_answers_of_both_protocol_versions_are_read(wrapped):
    answer = m.PushStrategies([m.PushStrategy(OBJECT, "HttpUpload", URL)])
    assert m.read_answer(m.answer_text(answer, wrapped), m.PushStrategies, HERE) == answer


numbers = st.integers(0, 2**63 - 1)
hashes = st.binary(min_size=32, max_size=32).map(lambda digest: Multihash(0x16, digest))
references = st.builds(m.ObjectReference, st.sampled_from(["DataSlice", "Checkpoint"]), hashes, numbers)
plans = st.builds(m.TransferPlan, numbers, numbers, numbers, numbers, numbers)
urls = st.builds(m.TransferUrl, st.text(), st.lists(st.builds(m.HeaderRow, st.text(), st.text()), max_size=3))
messages = st.one_of(
    st.builds(m.PullRequest, st.none() | hashes, st.none() | hashes, st.booleans()),
    st.builds(m.PullAccepted, plans),
    st.builds(m.PullObjects, st.lists(references, max_size=4)),
    st.builds(
        m.PullStrategies, st.lists(st.builds(m.PullStrategy, references, st.just("HttpDownload"), urls))
    ),
    st.builds(m.PushRequest, plans, st.none() | hashes, st.booleans(), st.text()),
    st.builds(m.PushObjects, st.lists(references, max_size=4), st.booleans()),
    st.builds(m.PushBlocks, st.builds(m.batch_of, numbers, st.binary(max_size=50))),
)


@settings(max_examples=80, deadline=None)
@given(messages, st.booleans())
def test_messages_round_trip(message, wrapped):
    text = m.answer_text(message, wrapped)
    assert m.read_answer(text, type(message), HERE) == message
    assert m.read_answer(text.decode(), type(message), HERE) == message


plain = st.none() | st.booleans() | st.integers() | st.text()
names = st.sampled_from(["Ok", "Err", "blocks", "transfer_plan", "details", "payload"])


@settings(max_examples=60, deadline=None)
@given(st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(names, inner), max_leaves=8))
def test_any_json_is_read_or_a_clear_error(value):
    text = json.dumps(value)
    for kind in (m.PullAccepted, m.PullBlocks, m.PushProgress, m.PushRequest, m.Empty):
        try:
            m.read_answer(text, kind, HERE)
        except OdfError as error:
            assert error.where == HERE and error.message.isprintable()


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "<html>",
            "[]",
            "null",
            "7",
            '{"Ok":7}',
            '{"Ok":{"transfer_plan":{"num_blocks":-1}}}',
            "\ud800",
        ),
        *("[" * 100_000, '{"Ok":' * 50_000, '{"Ok":{"transfer_plan":null}}'),
    ],
)
def test_malformed_answer_is_rejected(text):
    with pytest.raises(BadData, match="smart protocol"):
        m.read_answer(text, m.PullAccepted, HERE)


@pytest.mark.parametrize("text", ['"xyz"', '""', "7", '"f1620"', '"' + "f" * 5000 + '"'])
def test_invalid_hash_is_rejected(text):
    with pytest.raises(BadData):
        m.read_message(f'{{"begin_after":{text}}}', m.PullRequest, HERE)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=3000))
def test_payload_round_trips(data):
    assert m.from_number_array(m.to_number_array(data), HERE) == data


def test_large_payload_round_trips():
    data = bytes(range(256)) * 5000
    assert m.from_number_array(m.to_number_array(data), HERE) == data
    spaced = msgspec.Raw(json.dumps(list(data[:100_000]), indent=1).encode())
    assert m.from_number_array(spaced, HERE) == data[:100_000]


@pytest.mark.parametrize(
    "text",
    ["null", '"H4sI"', "{}", "[256]", "[-1]", "[1,[2]]", "[1.5]", "[99999999999999999999]", '["1"]', "7"],
)
def test_invalid_payload_is_rejected(text):
    with pytest.raises(BadData, match="not an array of bytes"):
        m.from_number_array(msgspec.Raw(text.encode()), HERE)


def test_unknown_archive_type_is_rejected():
    batch = m.ObjectsBatch(1, "application/zip", "raw", m.to_number_array(b"x"))
    with pytest.raises(BadData, match="application/zip"):
        m.archive_of(batch, HERE)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (
            f'{{"InvalidInterval":{{"head":"{HASH}","tail":"{HASH}"}}}}',
            Conflict,
            "does not have the local head",
        ),
        (f'{{"InvalidHead":{{"actual_head":null,"expected_head":"{HASH}"}}}}', Conflict, str(HASH)),
        ('{"SeedBlockOverwriteRestricted":{}}', Conflict, "a different one"),
        ('"SeedBlockOverwriteRestricted"', Conflict, "a different one"),
        ('{"RefCollision":{"dataset_id":"did:odf:x"}}', Conflict, "did:odf:x"),
        ('{"NameCollision":{"dataset_alias":"city"}}', AlreadyExists, "city"),
        ('{"Internal":{"error_message":"disk full"}}', SourceUnavailable, "disk full"),
        ('{"Internal":{"phase":{"Push":"ObjectsRequest"},"error_message":"no"}}', SourceUnavailable, "no"),
        ('{"New":{"x":1}}', SourceUnavailable, "New"),
        ('{"Internal":{"error_message":"\\u001b[2Jx' + "y" * 9000 + '"}}', SourceUnavailable, "…"),
        ("17", SourceUnavailable, "17"),
        ('{"InvalidHead":[]}', Conflict, "None"),
    ],
)
def test_server_errors_become_matching_exceptions(text, kind, words):
    with pytest.raises(OdfError) as caught:
        m.read_answer(f'{{"Err":{text}}}', m.Empty, HERE)
    assert type(caught.value) is kind
    assert words in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 500


def test_errors_in_close_frames_are_parsed():
    assert m.problem_of_close("", HERE) is None
    whole = m.problem_of_close('{"Err":{"NameCollision":{"dataset_alias":"city"}}}', HERE)
    assert isinstance(whole, AlreadyExists)
    cut = m.problem_of_close('{"Err":{"Internal":{"phase":{"Push":"Obj', HERE)
    assert isinstance(cut, SourceUnavailable) and "Internal" in cut.message


def test_error_text_has_the_reference_format():
    assert json.loads(m.error_text("InvalidHead", actual_head=None, expected_head=HASH)) == {
        "Err": {"InvalidHead": {"actual_head": None, "expected_head": str(HASH)}}
    }
