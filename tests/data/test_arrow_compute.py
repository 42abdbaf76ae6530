"""Values as text, also those that Python cannot represent."""

from __future__ import annotations

import pyarrow as pa

from odf_engine.data.arrow_compute import describe_row, to_text
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
    assert record["far"].startswith("11024-") and "11024-" in record["nested"]


def test_description_of_a_row_is_limited() -> None:
    text = describe_row(pa.record_batch({f"c{number}": ["x" * 50] for number in range(20)}))
    assert len(text) == 300 and text.endswith("…")
