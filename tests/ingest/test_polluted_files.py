"""The tables of CSV files with the faults of published files."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData
from odf_engine.filters.command_line import run_filter
from odf_engine.ingest.inference.file_inference import FileChoices, infer_csv
from tests.bench.ingest.pollock import LoadedTable, connected, load_table, measures
from tests.ingest.polluted_files import KINDS, Form, polluted_files, random_tables

SCORES = {"ragged_row": 9.9, "stray_quote": 9.7, "other_separator": 9.9}
"""Scores of kinds with rows that are left out: of files with more than five rows."""


@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_polluted_files_are_read(kind: str, tmp_path: Path) -> None:
    scores: dict[str, float] = {}
    with connected() as connection:
        for file in polluted_files(kind):
            if kind in SCORES and len(file.rows) <= 5:
                continue
            path = tmp_path / file.name
            path.write_bytes(file.data)
            table = load_table(path, connection)
            scores[file.name] = sum(measures(LoadedTable(file.header, file.rows), table))
    low = {name: score for name, score in scores.items() if score < 10}
    assert sum(scores.values()) / len(scores) >= SCORES.get(kind, 10), low


@pytest.mark.parametrize("kind", KINDS)
def test_filter_returns_the_inferred_rows(kind: str) -> None:
    for file in polluted_files(kind):
        try:
            found = infer_csv(file.data.decode(), FileChoices(), Reporter())
        except BadData:
            continue
        if found.filters:
            output = io.BytesIO()
            run_filter(found.filters[0], io.BytesIO(file.data), output)
            names, *rows = list(csv.reader(io.StringIO(output.getvalue().decode())))
            assert names == [column.name for column in found.columns], file.name
            assert rows == [[cell or "" for cell in row] for _, row in found.rows], file.name


def test_clean_tables_need_no_filter() -> None:
    for table, separator in random_tables(400):
        text = Form(separator).text([table.header, *table.rows])
        found = infer_csv(text, FileChoices(), Reporter())
        assert (found.filters, found.header, found.separator) == ((), True, separator), text
        assert [[cell or "" for cell in row] for _, row in found.rows] == table.rows, text


def test_clean_files_need_no_filter() -> None:
    for file in polluted_files("plain"):
        assert infer_csv(file.data.decode(), FileChoices(), Reporter()).filters == (), file.name
