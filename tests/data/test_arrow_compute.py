"""Values as text, also those that Python cannot represent."""

from __future__ import annotations

import pyarrow as pa

from odf_engine.data.arrow_compute import describe_row, hash_values, to_text
from odf_tui.cli.shared.output import json_records

FAR = 285_744_583_800_000_000  # microseconds: the year 11024
TIME = pa.timestamp("us", "UTC")


def test_row_with_a_time_after_the_year_9999_is_described() -> None:
    nested = pa.array([{"at": FAR, "all": [FAR]}], pa.struct([("at", TIME), ("all", pa.list_(TIME))]))
    row = pa.record_batch({"offset": [7], "far": pa.array([FAR], TIME), "nested": nested, "none": [None]})
    text = describe_row(row, ["offset"])
    assert text.startswith("far=11024-11-") and text.endswith("none=null") and "offset" not in text
    assert '"at": "11024-' in to_text(nested)[0].as_py()
    (record,) = json_records(row)
    assert record["far"].startswith("11024-") and record["nested"]["at"].startswith("11024-")


def test_nanoseconds_of_times_are_complete_in_json() -> None:
    kind = pa.time64("ns")
    times = pa.array([34_200_123_456_789, 34_200_000_000_000], kind)
    nested = pa.array(
        [{"t": 1, "all": [2], "n": 5}, None],
        pa.struct([("t", kind), ("all", pa.list_(kind)), ("n", pa.int32())]),
    )
    first, second = json_records(pa.record_batch({"t": times, "nested": nested}))
    assert (first["t"], second["t"]) == ("09:30:00.123456789", "09:30:00")
    assert first["nested"] == {"t": "00:00:00.000000001", "all": ["00:00:00.000000002"], "n": 5}
    assert '"t": "00:00:00.000000001"' in to_text(nested)[0].as_py()


def test_description_of_a_row_is_limited() -> None:
    text = describe_row(pa.record_batch({f"c{number}": ["x" * 50] for number in range(20)}))
    assert len(text) == 300 and text.endswith("…")


def test_hashes_are_equal_for_equal_values_only() -> None:
    texts = pa.array([f"s-{number:06d}" for number in range(5000)])
    assert len(hash_values(texts).unique()) == 5000
    assert hash_values(texts.dictionary_encode()) == hash_values(texts)
    assert len(hash_values(pa.array([0.0, -0.0, None, None])).unique()) == 2
    # They are stored: another version must return the same.
    assert hash_values(pa.array([1])).to_pylist() == [hash_values(pa.array([1], pa.int8()))[0].as_py()]
    assert hash_values(pa.array([1], pa.uint64())).to_pylist() == [10451216379200822465]
