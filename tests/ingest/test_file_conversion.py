"""Files that a filter converts: spreadsheets, XML, lists of lists, compressed files and archives."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

import openpyxl
import pyarrow as pa
import pytest
from openpyxl.workbook import Workbook

from odf_engine.api import FileChoices, InferredFile, Reporter, infer_file, load_sample, manifest_text
from odf_engine.errors import BadData
from odf_engine.metadata.yaml import read_manifests
from tests.ingest.pulling import Pulled

ROWS = [("A", 1, 2.5), ("B", 4, 5.0)]
CSV = b"area,cases,rate\nA,1,2.5\nB,4,5.0\n"
LISTS = b'[["area","cases","rate"],["A",1,2.5],["B",4,5.0]]'
PAGED = b'[{"page":1,"pages":1},[{"area":"A","cases":1,"rate":2.5},{"area":"B","cases":4,"rate":5.0}]]'
XML = b"""<?xml version="1.0"?>
<table xmlns="urn:example"><meta unit="persons"/>
  <row area="A"><cases>1</cases><rate>2.5</rate></row>
  <row area="B"><cases>4</cases><rate>5.0</rate></row>
</table>
"""


def workbook(*sheets: str) -> bytes:
    """Return a workbook with the table in the last sheet, below a title and above notes."""
    book = Workbook()
    book.remove(book.worksheets[0])
    for name in sheets:
        book.create_sheet(name)["A1"] = f"About {name}"
    table = book[sheets[-1]]
    for row in [[None], ["area", "cases", "rate"], *ROWS, [None], ["Source: the register"]]:
        table.append(list(row))
    hidden = book.create_sheet("Hidden")
    for _ in range(20):
        hidden.append([1, 2, 3])
    hidden.sheet_state = "hidden"
    output = io.BytesIO()
    book.save(output)
    return output.getvalue()


def zipped(**members: bytes) -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("_", "."), data)
    return output.getvalue()


def tarred(**members: bytes) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name.replace("_", "."))
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return output.getvalue()


def zstandard(data: bytes) -> bytes:
    output = pa.BufferOutputStream()
    with pa.CompressedOutputStream(output, "zstd") as stream:
        stream.write(data)
    return output.getvalue().to_pybytes()


def with_far_cell() -> bytes:
    """Return a workbook with values in the first and the last possible cell."""
    plain, output = zipfile.ZipFile(io.BytesIO(workbook("Table"))), io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        for name in plain.namelist():
            data = plain.read(name)
            if name == "xl/worksheets/sheet1.xml":
                cell = b'<row r="1048576"><c r="XFD1048576"><v>2</v></c></row></sheetData>'
                data = data.replace(b"</sheetData>", cell)
            archive.writestr(name, data)
    return output.getvalue()


FILES: Mapping[str, Callable[[], bytes]] = {
    "book.xlsx": lambda: workbook("Contents", "Table 1"),
    "lists.json": lambda: LISTS,
    "paged.json": lambda: PAGED,
    "rows.xml": lambda: XML,
    "rows.csv.xz": lambda: lzma.compress(CSV),
    "rows.csv.bz2": lambda: bz2.compress(CSV),
    "rows.csv.zst": lambda: zstandard(CSV),
    "rows.tgz": lambda: gzip.compress(tarred(readme_md=b"?", rows_csv=CSV)),
    "parts.tar": lambda: tarred(a_csv=CSV[:24], b_csv=CSV[:16] + CSV[24:]),
    "mixed.tar": lambda: tarred(about_csv=b"a,b\n1,2\n", rows_csv=CSV),
    "parts.zip": lambda: zipped(a_csv=CSV[:24], b_csv=CSV[:16] + CSV[24:]),
    "mixed.zip": lambda: zipped(about_csv=b"a,b\n1,2\n", book_xlsx=workbook("Table")),
    "download": lambda: workbook("Table"),  # its name does not show the format
}


def infer(pulled: Pulled, name: str, data: bytes) -> InferredFile:
    pulled.write(name, data)
    reporter = Reporter()
    return infer_file(load_sample(name, pulled.workspace.folder, reporter), FileChoices(), reporter)


def test_converted_files_are_pulled_with_their_inferred_manifests(pulled: Pulled) -> None:
    for name, create in FILES.items():
        found = infer(pulled, name, create())
        columns = [(column.name, column.type) for column in found.columns]
        assert columns == [("area", "STRING"), ("cases", "BIGINT"), ("rate", "DOUBLE")], name
        dataset = name.replace(".", "-")
        (pulled.entry,) = pulled.workspace.add(read_manifests(manifest_text(name, dataset, found), name))
        assert pulled.pull().records == 2, name
        assert pulled.rows("area", "cases", "rate") == ROWS, name


def test_sheet_and_title_rows_are_shown_as_evidence(pulled: Pulled) -> None:
    found = infer(pulled, "book.xlsx", workbook("Contents", "Table 1"))
    assert found.filters == (
        ("sheet", "--sheet", "Table 1", "--all-rows"),
        ("csv", "--skip", "2", "--stop-at-blank", "--drop-empty"),
    )
    assert found.evidence == (
        "the largest table of 2 sheets is in Table 1: Contents, Table 1",
        "1 title line above the header",
        "1 line of notes below the table",
        "rows without values",
    )


def test_plain_sheet_needs_one_filter_and_keeps_types(pulled: Pulled) -> None:
    book = openpyxl.Workbook()
    sheet: Any = book.active
    for row in [["day", "code", "ok"], [date(2024, 1, 2), "007", True], [date(2024, 1, 3), "010", False]]:
        sheet.append(row)
    output = io.BytesIO()
    book.save(output)
    found = infer(pulled, "plain.xlsx", output.getvalue())
    assert found.filters == (("sheet", "--sheet", "Sheet"),)
    assert [column.type for column in found.columns] == ["DATE", "STRING", "BOOLEAN"]


def test_sheet_that_requires_too_much_memory_ends_only_its_filter(pulled: Pulled) -> None:
    with pytest.raises(BadData, match="the filter requires too much memory"):
        infer(pulled, "far.xlsx", with_far_cell())
    pulled.add(
        "fetch: {kind: Url, url: 'file:far.xlsx'}\n"
        "prepare: [{kind: Pipe, command: [odf, filter, sheet]}]\n"
        "read: {kind: Csv, header: true, schema: [area STRING]}\nmerge: {kind: Append}"
    )
    with pytest.raises(BadData, match=r"far.xlsx: the filter requires too much memory"):
        pulled.pull()


def test_errors_of_later_steps_name_the_place_in_the_file(pulled: Pulled) -> None:
    book = openpyxl.Workbook()
    sheet: Any = book.active
    for row in [["Report"], [None], ["area", "cases"], ["A", 1], [None], ["B", "many"]]:
        sheet.append(row)
    output = io.BytesIO()
    book.save(output)
    pulled.write("book.xlsx", output.getvalue())
    pulled.write("report.csv", "Report;\n\narea;cases\n# note\nA;1\nB;many\n")
    for name, filters, place in (
        ("report.csv", "csv, --separator, ;, --skip, '2', --comment, '#'", "report.csv: line 6"),
        ("book.xlsx", "sheet, --all-rows|csv, --skip, '2', --drop-empty", "book.xlsx: sheet Sheet, row 6"),
    ):
        steps = ", ".join(f"{{kind: Pipe, command: [odf, filter, {words}]}}" for words in filters.split("|"))
        pulled.add(
            f"fetch: {{kind: Url, url: 'file:{name}'}}\nprepare: [{steps}]\n"
            "read: {kind: Csv, header: true, schema: [area STRING, cases BIGINT]}\nmerge: {kind: Append}",
            name=name.replace(".", "-"),
        )
        with pytest.raises(BadData) as caught:
            pulled.pull()
        assert caught.value.where == f'{place}, column "cases"'
        assert caught.value.excerpt == ("6 | B;many" if name == "report.csv" else "6 | B,many",)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.xlsx", b"PK\x03\x04 cut off", "the archive cannot be read"),
        ("a.xls", b"\xd0\xcf\x11\xe0 no workbook", "not a spreadsheet"),
        ("a.xml", b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "without repeated"),
        ("a.xml", b"<?xml version='1.0'?><a><b x='1'/><b x='2'></a>", "invalid XML: mismatched tag"),
        ("a.xml", b"<!DOCTYPE a [<!ENTITY x 'y'>]><a><b x='1'/></a>", "declares a document type"),
        ("a.xml", b"<?xml version='1.0'?>" + b"<a>" * 200, "nested too deeply"),
        ("a.tgz", gzip.compress(tarred(readme_md=b"?")), "the archive has no CSV"),
        ("a.csv.xz", lzma.compress(CSV * 9)[:-20], "damaged archive"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,  # gzip has the time
)
def test_damaged_files_are_errors(pulled: Pulled, name: str, data: bytes, message: str) -> None:
    with pytest.raises(BadData, match=message):
        infer(pulled, name, data)
