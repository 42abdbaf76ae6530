"""Files with the rows of a query proof are recognized, and others are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.data.ddl import type_ddl
from odf_engine.data.digest import LogicalHasher
from odf_engine.derive.verify.result_file import check_result_file
from odf_engine.errors import BadData, NotFound, Unsupported
from odf_engine.rows.export import write_stream
from odf_engine.rows.query_proof import ProofColumn, ResultSummary

TYPES = {
    "n": pa.int64(), "u": pa.uint64(), "x": pa.float64(), "f": pa.float32(), "t": pa.string(),
    "b": pa.bool_(), "d": pa.date32(), "m": pa.timestamp("ms", "UTC"), "us": pa.timestamp("us", "UTC"),
    "p": pa.decimal128(38, 9),
}  # fmt: skip
TEXTS = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=5)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(-(2**63), 2**63 - 1),
    "u": st.integers(0, 2**64 - 1),
    "x": st.floats(allow_nan=False),
    "f": st.floats(width=32, allow_nan=False),
    "t": TEXTS | st.sampled_from(["", " ", '"', "a,b", "a\nb", "null"]),
    "b": st.booleans(),
    "d": st.dates(),
    "m": st.datetimes().map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)),
    "us": st.datetimes(),
    "p": st.decimals(-(10**20), 10**20, places=9),
}
ROW = st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()})


def summary_of(table: pa.Table) -> ResultSummary:
    """The description of rows in a proof."""
    columns = [ProofColumn(field.name, type_ddl(field.type)) for field in table.schema]
    with LogicalHasher(table.schema) as hasher:
        for batch in table.to_batches():
            hasher.update(batch)
        return ResultSummary(columns, table.num_rows, str(hasher.finish()), "query")


def write_csv(path: Path, table: pa.Table) -> None:
    """Write a file as `odf sql` does."""
    write_stream(path, "csv", table.schema, table.to_batches(), Reporter())


@settings(max_examples=60)
@given(rows=st.lists(ROW, max_size=4))
def test_csv_with_the_rows_of_a_proof_is_recognized(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    table = pa.Table.from_pylist(rows, pa.schema(list(TYPES.items())))
    path = tmp_path_factory.mktemp("result") / "rows.csv"
    write_csv(path, table)
    assert check_result_file(path, summary_of(table), Reporter()) is None


@pytest.mark.parametrize("values", [[None], [1, None, 2], ["", None, ""], [None, None]])
def test_rows_of_one_null_are_not_lost(tmp_path: Path, values: list[Any]) -> None:
    table = pa.table({"a": pa.array(values, None if any(values) else pa.string())})
    write_csv(tmp_path / "rows.csv", table)
    assert check_result_file(tmp_path / "rows.csv", summary_of(table), Reporter()) is None


def test_other_rows_are_found(tmp_path: Path) -> None:
    table = pa.table({"a b": [1, 2, None], "t": ["x", "", None]})
    result, path = summary_of(table), tmp_path / "rows.csv"
    changes = {
        "a row more": (lambda text: text + "4,y\n", "4 instead of 3"),
        "another order": (lambda text: text.replace("1,x\n2,", "2,x\n1,"), "or their order"),
        "null instead of empty": (lambda text: text.replace('""', ""), "or their order"),
    }
    for change, message in changes.values():
        write_csv(path, table)
        path.write_text(change(path.read_text()))
        finding = check_result_file(path, result, Reporter())
        assert finding is not None and message in finding.message
    pq.write_table(table, tmp_path / "rows.parquet")
    assert check_result_file(tmp_path / "rows.parquet", result, Reporter()) is None
    pq.write_table(table.slice(1), tmp_path / "rows.parquet")
    assert "2 instead of 3" in str(check_result_file(tmp_path / "rows.parquet", result, Reporter()))


def test_files_that_cannot_be_compared_are_errors(tmp_path: Path) -> None:
    result, path = summary_of(pa.table({"a": [1]})), tmp_path / "rows.csv"
    with pytest.raises(NotFound, match="file not found"):
        check_result_file(path, result, Reporter())
    for text, message in (("b\n1\n", "other columns"), ("a\nx\n", "cannot be read"), ("", "cannot be read")):
        path.write_text(text)
        with pytest.raises(BadData, match=message):
            check_result_file(path, result, Reporter())
    path.write_text("a\n1\n")
    for column in (pa.array([[1]]), pa.array([b"x"]), pa.array([b"xy"], pa.binary(2)), pa.array([{"b": 1}])):
        with pytest.raises(Unsupported, match="column 'a' cannot be compared with CSV"):
            check_result_file(path, summary_of(pa.table({"a": column})), Reporter())
