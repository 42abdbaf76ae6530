"""Times outside of the years 1 to 9999, which Python has not, in values and in messages about them."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_engine.data.arrow_compute import python_rows, to_text
from odf_engine.errors import BadData
from tests.ingest.pulling import Pulled

DAYS = pa.array([2932897, -800000, 0], pa.int32()).cast(pa.date32())
ROWS = {
    "d": DAYS,
    "t": pa.array([253402300800000, -70000000000000, 0], pa.timestamp("ms", "UTC")),
    "s": pa.StructArray.from_arrays([DAYS], ["x"]),
}
TEXTS = {
    "d": ["10000-01-01", "-0221-09-04", "1970-01-01"],
    "t": ["10000-01-01T00:00:00Z", "-0249-10-15T19:33:20Z", "1970-01-01T00:00:00Z"],
    "s": ['{"x": "10000-01-01"}', '{"x": "-0221-09-04"}', '{"x": "1970-01-01"}'],
}


def pull_rows(pulled: Pulled, values: list[int], **more: Any) -> None:
    table = pa.table(
        {"id": pa.array([1, 2, 3], pa.int64()), **ROWS, "v": pa.array(values, pa.int64()), **more}
    )
    pq.write_table(table, pulled.workspace.folder / "in")
    pulled.pull()


def add(pulled: Pulled, merge: str) -> None:
    pulled.add(f"fetch: {{kind: Url, url: in}}\nread: {{kind: Parquet}}\nmerge: {{{merge}}}")


@pytest.mark.parametrize("key", ["id", "d", "t"])
@pytest.mark.parametrize("kind", ["Append", "Ledger", "Snapshot", "UpsertStream"])
def test_times_are_stored_exactly_by_each_merge_strategy(pulled: Pulled, kind: str, key: str) -> None:
    add(pulled, f"kind: {kind}" + ("" if kind == "Append" else f", primaryKey: [{key}]"))
    pull_rows(pulled, [1, 2, 3])
    table = pulled.table()
    for row, place in enumerate(table["id"].to_pylist()):
        assert {name: to_text(table[name])[row].as_py() for name in TEXTS} == {
            name: texts[place - 1] for name, texts in TEXTS.items()
        }
    pull_rows(pulled, [1, 9, 3])
    warnings = " ".join(pulled.reporter.warnings)
    if kind == "Ledger":
        assert warnings.endswith("v was 2, is 9")
        assert "t was" not in warnings
    pull_rows(pulled, [1, 2, 3])
    if kind == "Append":
        assert "all 3 rows repeat earlier rows" in " ".join(pulled.reporter.warnings)


def test_invalid_operations_of_rows_with_such_times_are_described(pulled: Pulled) -> None:
    add(pulled, "kind: ChangelogStream, primaryKey: [id]")
    with pytest.raises(BadData, match="d=10000-01-01, t=10000-01-01T00:00:00Z"):
        pull_rows(pulled, [1, 2, 3], op=pa.array([1, 0, 0], pa.int32()))


def test_only_values_outside_of_the_range_are_texts() -> None:
    rows = python_rows(pa.table(ROWS))
    assert [row["d"] for row in rows] == ["10000-01-01", "-0221-09-04", date(1970, 1, 1)]
    assert [row["s"] for row in rows] == [{"x": "10000-01-01"}, {"x": "-0221-09-04"}, {"x": date(1970, 1, 1)}]
