"""Columns of years, quarters, months and days that become rows."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.filters.command_line import run_filter
from odf_engine.ingest.inference.file_inference import FileChoices, InferredFile, infer_csv

PERIODS = {
    "year": ["2019", "2020", "2021"],
    "fiscal_year": ["2019/20", "2020/21", "2021/22"],
    "quarter": ["2019 Q1", "2019 Q2", "2019 Q3"],
    "month": ["Jan 2020", "Feb 2020", "Mar 2020"],
    "date": ["1/22/20", "1/23/20", "1/24/20"],
}


def infer(text: str, choices: FileChoices | None = None) -> InferredFile:
    return infer_csv(text, choices or FileChoices(), Reporter())


def filtered(found: InferredFile, text: str) -> list[list[str]]:
    """Return the records that the filters write."""
    data = text.encode()
    for arguments in found.filters:
        output = io.BytesIO()
        run_filter(arguments, io.BytesIO(data), output)
        data = output.getvalue()
    return list(csv.reader(io.StringIO(data.decode())))


@pytest.mark.parametrize("kind", PERIODS)
def test_periods_become_rows(kind: str) -> None:
    text = "\n".join(["area;" + ";".join(PERIODS[kind]), "A;1;2;3", "B;4;;6"]) + "\n"
    found = infer(text)
    assert [column.name for column in found.columns] == ["area", kind, "value"]
    assert [row for _, row in found.rows] == [
        ("A", PERIODS[kind][0], "1"), ("A", PERIODS[kind][1], "2"), ("A", PERIODS[kind][2], "3"),
        ("B", PERIODS[kind][0], "4"), ("B", PERIODS[kind][2], "6"),
    ]  # fmt: skip
    assert found.periods in found.evidence[-1]
    kept = infer(text, FileChoices(unpivot=False))
    assert (len(kept.columns), kept.filters, kept.periods) == (4, (), found.periods)


@given(
    rows=st.lists(
        st.lists(st.sampled_from(["", "1", "2.5", "x", "1,000"]), min_size=4, max_size=4), min_size=2
    ),
    separator=st.sampled_from([",", ";", "\t"]),
    title=st.booleans(),
)
def test_filter_returns_the_inferred_rows(rows: list[list[str]], separator: str, title: bool) -> None:
    output = io.StringIO()
    writer = csv.writer(output, delimiter=separator, lineterminator="\n")
    if title:
        output.write("A report\n")
    writer.writerow(["area", "code", *PERIODS["year"], "note"])
    for at, row in enumerate(rows):
        writer.writerow([f"area {at}", *row, "n"])
    text = output.getvalue()
    found = infer(text)
    names, *records = filtered(found, text)
    assert names == [column.name for column in found.columns]
    for record, (_, row) in zip(records, found.rows, strict=True):
        assert [cell for cell, shown in zip(record, row, strict=True) if shown is not None] == [
            shown for shown in row if shown is not None
        ]


@pytest.mark.parametrize(
    "header",
    ["area,2019,2020", "2019,2020,2021", "area,2019,note,2020,2021", "year,2019,2020,2021", "area,1,2,3"],
)
def test_other_columns_stay(header: str) -> None:
    found = infer(f"{header}\n" + ",".join("abcde"[: header.count(",") + 1]) + "\n")
    assert found.periods == ""
