"""Filters: any dialect becomes RFC 4180 CSV, any archive its members; errors name the line."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from datetime import date, datetime
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import openpyxl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from odf_engine.errors import BadData, OdfError, UsageError
from odf_engine.filters import command_line, csv_filter
from odf_engine.filters.command_line import FILTERS, run_filter


def run(data: str | bytes, *arguments: str) -> str:
    """Return the output of a filter as text."""
    target = io.BytesIO()
    run_filter(arguments, io.BytesIO(data.encode() if isinstance(data, str) else data), target)
    return target.getvalue().decode()


CELLS = st.text(st.sampled_from("ab,;| \t'\"\\\n0é"), max_size=6)
TABLES = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=0, max_size=6)
)


@given(TABLES, st.sampled_from([",", ";", "|", "\t", ", ", "||"]), st.sampled_from(["utf-8", "utf-16"]))
@settings(deadline=None)
def test_a_table_in_any_dialect_is_read_back(rows: list[list[str]], separator: str, encoding: str) -> None:
    width = len(rows[0]) if rows else 2
    names = [f"n{at}" for at in range(width)]
    lines = [separator.join('"' + cell.replace('"', '""') + '"' for cell in row) for row in [names, *rows]]
    text = "\r\n".join(lines)
    result = run(text.encode(encoding), "csv", "--separator", separator)
    assert list(csv.reader(io.StringIO(result, newline=""))) == [names, *rows]


RAW_CELLS = st.one_of(
    st.text(st.sampled_from("ab,;|\t'\"\\#0 é"), max_size=4),
    st.sampled_from(
        ["", "7", "-1.234,5", "1,5", " 2 ", "1 234", "x", "<5", " ", "\u00a0", "Total", "\x1c", "٣"]
    ),
    st.text(st.sampled_from("ab\"\n\r ,'\x1f\x1e"), max_size=5).map(
        lambda text: '"' + text.replace('"', '""') + '"'
    ),
)
SEMICOLON = ("--separator", ";")
CSV_OPTIONS = st.tuples(
    st.sampled_from([",", ",", ";", r"\t", "||", "é"]).map(lambda text: ["--separator", text]),
    st.sampled_from([[], ["--quote", "'"], ["--quote", ""], ["--escape", "\\"]]),
    st.sampled_from([[], [], ["--stop-at-blank"], ["--drop-empty"], ["--until", "^T"], ["--comment", "#"]]),
    st.sampled_from([[], ["--decimal", ","], ["--decimal", ",", "--thousands", "."], ["--thousands", " "]]),
    st.sampled_from([[], ["--null", "<5", "--null", "x"], ["--null", "", "--flag", "a"]]),
    st.sampled_from([[], [], ["--ragged", "pad"], ["--ragged", "skip"], ["--drop-last", "2"]]),
    st.sampled_from([[], [], ["--unpivot", "[bc]"]]),
)  # fmt: skip


@given(
    st.integers(1, 3).flatmap(
        lambda width: st.lists(
            st.one_of(
                st.lists(RAW_CELLS, min_size=width, max_size=width),
                st.lists(RAW_CELLS, min_size=width, max_size=width),
                st.lists(RAW_CELLS, max_size=4),
            ),
            max_size=8,
        ).map(lambda rows: [list("abc"[:width]), *rows])
    ),
    CSV_OPTIONS,
    st.sampled_from(["\n", "\n", "\r\n", "\r"]),
    st.integers(1, 40),
)
@example([["a", "b"], ["\\,", "c"]], ([*SEMICOLON], ["--escape", "\\"], [], [], [], [], []), "\n", 4)
@example([["a", "b"], ["", "Total"]], ([*SEMICOLON], [], ["--until", "^T"], [], [], [], []), "\n", 4)
@example([["a", "b"], ['"1"', "2"]], ([*SEMICOLON], ["--quote", ""], [], [], [], [], []), "\n", 4)
@example([["a", "b"], ['"1||2"', "3"]], (["--separator", "||"], [], [], [], [], [], []), "\n", 4)
@example([["a", "b"], ["٣,5", "2"]], ([*SEMICOLON], [], [], ["--decimal", ","], [], [], []), "\n", 4)
@example([["a", "b"], ["#1", "2"]], ([*SEMICOLON], [], ["--comment", "#"], [], [], [], []), "\n", 4)
@example([["a", "b"], ['"1\r\n2"', "3"]], ([*SEMICOLON], [], [], [], [], [], []), "\r\n", 4)
@example([["a", "b"], ["1", "2\r3", "4"], ["5"]], ([*SEMICOLON], [], [], [], [], [], []), "\n", 4)
@example([["a", "b"], ['"1""2"', "3"]], ([*SEMICOLON], ["--escape", "\\"], [], [], [], [], []), "\n", 4)
@settings(deadline=None, max_examples=400)
def test_blocks_are_converted_as_records(
    rows: list[list[str]], options: Sequence[Sequence[str]], end: str, size: int
) -> None:
    arguments = ["csv", *chain.from_iterable(options)]
    separator = options[0][1].replace(r"\t", "\t")
    data = end.join(separator.join(row) for row in [*rows, []]).encode()

    def result(block: int) -> str:
        target = io.BytesIO()
        with mock.patch.object(csv_filter, "_BLOCK", block):
            try:
                return run_filter(arguments, io.BytesIO(data), target) + target.getvalue().decode()
            except OdfError as error:
                return str(error)

    assert result(size) == result(1 << 20)


@pytest.mark.parametrize(
    ("data", "arguments", "expected"),
    [
        ("Report,,\n\nday,n\n1,2\n", ["--skip", "1"], "day,n\n1,2\n"),
        ("a;b\n1;2\n", ["--separator", ";"], "a,b\n1,2\n"),
        ("a\tb\n1\t2\n", ["--separator", r"\t"], "a,b\n1,2\n"),
        ("a,b\r1,2\r", [], "a,b\n1,2\n"),
        ("'a','b'\n'it''s','2'\n", ["--quote", "'"], "a,b\nit's,2\n"),
        ('a,b\n"x \\"y\\"",2\n', ["--escape", "\\"], 'a,b\n"x ""y""",2\n'),
        ('a,b\nx "y" z,2\n', ["--quote", ""], 'a,b\n"x ""y"" z",2\n'),
        ("é,b\nü,2\n".encode("latin-1"), [], "é,b\nü,2\n"),
        ("€\n1\n".encode("cp1252"), ["--encoding", "windows-1252"], "€\n1\n"),
        ("\ufeffa,b\n1,2\n", [], "a,b\n1,2\n"),
        ("Cases,,Deaths,\n2019,2020,2019,2020\n1,2,3,4\n", ["--header-rows", "2"],
         "Cases 2019,Cases 2020,Deaths 2019,Deaths 2020\n1,2,3,4\n"),
        ("1,2\n3,4\n", ["--header-rows", "0"], "c1,c2\n1,2\n3,4\n"),
        ("1,2\n,\n3,4\n", ["--header-rows", "0", "--drop-empty"], "c1,c2\n1,2\n3,4\n"),
        ("1,2\n3,4\n", ["--header-rows", "0", "--names", "x, y"], "x,y\n1,2\n3,4\n"),
        ("a,A,,a\n1,2,3,4\n", [], "a,A_2,c3,a_3\n1,2,3,4\n"),
        ("a,b\n1,2\n3,4\nTotal,6\nSource,x\n", ["--drop-last", "2"], "a,b\n1,2\n3,4\n"),
        ("a,b\n1,2\n ,\nTotal,6\nSource,x\n", ["--until", "^Total$"], "a,b\n1,2\n ,\n"),
        ("# c\na,b\n# d,x\n1,2\n", ["--comment", "#"], "a,b\n1,2\n"),
        ("a,b\n1,2\n,\nNotes,\n", ["--stop-at-blank"], "a,b\n1,2\n"),
        ("a,b,\n1,2,\n,,\n3,4,\n", ["--drop-empty"], "a,b\n1,2\n3,4\n"),
        ("a,b\n1\n1,2,\n", ["--ragged", "pad"], "a,b\n1,\n1,2\n"),
        ("a,b\n1\n1,2\n1,2,3\n", ["--ragged", "skip"], "a,b\n1,2\n"),
        ("a,b\n\"1.234,5\",1.2.3\n", ["--decimal", ",", "--thousands", "."], "a,b\n1234.5,1.2.3\n"),
        ("a,b\n<5,*\n7,x\n", ["--null", "<5", "--null", "*", "--flag", "a"], "a,b,a_flag\n,,<5\n7,x,\n"),
        ("k,2019,2020\nx,1,\n", ["--unpivot", r"^\d{4}$", "--name", "year", "--value", "n"],
         "k,year,n\nx,2019,1\n"),
    ],
)  # fmt: skip
def test_options_of_csv(data: str | bytes, arguments: Sequence[str], expected: str) -> None:
    assert run(data, "csv", *arguments) == expected


@pytest.mark.parametrize(
    ("data", "arguments", "expected"),
    [
        ("1\n2\n3\n", ["--skip", "1"], "2\n3\n"),
        ("x\n## data\n1\n\n2\n", ["--from", "^## "], "## data\n1\n\n2\n"),
        ("1\n2\nNotes\n3\n", ["--until", "^Notes"], "1\n2\n"),
        ("# a\n1\n  # b\n2", ["--comment", "#"], "1\n2"),
        ("1\n2\n3\n", ["--drop-last", "2"], "1\n"),
        ("1\n2\n\n3\n", ["--stop-at-blank"], "1\n2\n"),
    ],
)
def test_options_of_lines(data: str, arguments: Sequence[str], expected: str) -> None:
    assert run(data, "lines", *arguments) == expected


def test_encoding_is_detected_after_much_ascii_text() -> None:
    data = "a,b\n" + "1,2\n" * 30_000 + "Численность населения Москвы,3\n" * 50
    assert run(data.encode("cp1251"), "csv") == data


@pytest.mark.parametrize("null", ["-", "--", "-999"])
def test_null_is_a_text_that_starts_with_a_dash(null: str) -> None:
    assert run(f"a,b\n{null},2\n", "csv", f"--null={null}") == "a,b\n,2\n"


@pytest.mark.parametrize(
    ("end", "mark"), [(["--until", "^Total$"], "Total,3\n"), (["--stop-at-blank"], "\n")]
)
def test_many_records_below_the_end_of_a_table_are_a_warning(end: list[str], mark: str) -> None:
    rows = "".join(f"{at},1\n" for at in range(30))
    few = io.BytesIO(f"n,m\n{rows}{mark}Source: x\n".encode())
    assert run_filter(["csv", *end], few, io.BytesIO()) == ""
    many = io.BytesIO(f"n,m\n1,2\n{mark}{rows}".encode())
    warning = run_filter(["csv", *end], many, io.BytesIO())
    assert warning == "left out 30 records below the end of the table in line 3"


@pytest.mark.parametrize(
    ("data", "arguments", "kind", "message"),
    [
        ("a,b\n1,2\n3\n", ["csv"], BadData, "line 3: 1 value for 2 columns"),
        ('a,b\n"x\ny",2\n1,2,3\n', ["csv"], BadData, "line 4: 3 values for 2 columns"),
        ("a,b\n", ["csv", "--skip", "5"], BadData, "no more than 5 records"),
        ("", ["csv"], BadData, "no header"),
        (b"a\n\xff\xfe\x81\n", ["csv", "--encoding", "utf-8"], BadData, "line 2: byte 0xff is not utf-8"),
        (b"PK\3\4\0\0", ["csv"], BadData, "not a text file"),
        ("a\n", ["csv", "--encoding", "klingon"], UsageError, "unknown encoding"),
        ("a\n", ["csv", "--flag", "b"], UsageError, "column 'b' not found"),
        ("a\n", ["csv", "--skip", "x"], UsageError, "'x' is not a number"),
        ("a\n", ["csv", "--unpivot", "z"], UsageError, "no column matches"),
        ("a\n", ["csv", "--unpivot", "("], UsageError, "invalid --unpivot"),
        ("a\n", ["csv", "--separator", ""], UsageError, "invalid --separator"),
        ("a\n", ["csv", "--quote", "ab"], UsageError, "invalid --quote"),
        ("a\n", ["csv", "--escape", "ab"], UsageError, "invalid --escape"),
        ("a\n", ["csv", "--separator", '"'], UsageError, "--separator is also the quote"),
        ("a\n", ["csv", "--encoding", "base64"], UsageError, "unknown encoding 'base64'"),
        ("a\n", ["lines", "--until", "("], UsageError, "invalid --until"),
        ("a\n", ["cvs"], UsageError, "unknown filter 'cvs'"),
        ("a\n", ["lines", "--from", "b"], BadData, "no line matches"),
        ("x", ["sheet"], BadData, "not a spreadsheet"),
        ("{", ["json"], BadData, "line 1: invalid JSON"),
        ("{}", ["json"], BadData, "no list of items"),
        ('{"a": {"b": []}}', ["json", "--items", "a.c"], BadData, "'c' of --items a.c not found"),
        ("[1]", ["json"], BadData, "item 1: an item is not an object"),
        ("<a>", ["xml", "--row", "b"], BadData, "line 1: invalid XML"),
        ('<?xml version="1.0" encoding="shift_jis"?><a/>', ["xml", "--row", "a"], BadData, "multi-byte"),
        ('<?xml version="1.0" encoding="x-none"?><a/>', ["xml", "--row", "a"], BadData, "unknown encoding"),
        ("<a/>", ["xml", "--row", "b"], BadData, "no element b found"),
        ('<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>', ["xml", "--row", "a"], BadData, "document type"),
        ("abc\n", ["fixed", "--widths", "1,1"], BadData, "line 1: the line has more than 2 characters"),
        ("a\tb\n1\n", ["rdb"], BadData, "line 2: 1 values for 2 columns"),
        ("text", ["unpack"], BadData, "not an archive"),
    ],
)
def test_errors_name_the_place(
    data: str | bytes, arguments: Sequence[str], kind: type[OdfError], message: str
) -> None:
    with pytest.raises(kind) as error:
        run(data, *arguments)
    assert message in str(error.value)


def _packed(members: dict[str, bytes], kind: str) -> bytes:
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        return buffer.getvalue()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    pack: dict[str, Callable[[bytes], bytes]] = {
        "tar": bytes, "tar.gz": gzip.compress, "tar.bz2": bz2.compress, "tar.xz": lzma.compress,
        "tar.zst": _zstandard,
    }  # fmt: skip
    return pack[kind](buffer.getvalue())


def _zstandard(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


KINDS = ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz", "tar.zst"]


@pytest.mark.parametrize("kind", KINDS)
def test_members_are_written_in_the_order_of_their_names(kind: str) -> None:
    members = {"b/2.csv": b"n\n2", "b/10.txt": b"x\n", "a.csv": b"n\n1"}
    packed = _packed(members, kind)
    assert run(packed, "unpack", "--member", "*.csv") == "n\n1\n2"
    assert run(packed, "unpack") == "n\n1\nx\n2"
    with_names = run(packed, "unpack", "--member", "*.csv", "--member-column", "file")
    assert with_names == "file,n\na.csv,1\nb/2.csv,2\n"
    with pytest.raises(BadData, match=r"no member matches '\*\.json'"):
        run(packed, "unpack", "--member", "*.json")


def test_lines_that_are_equal_to_a_first_line_are_lost_in_no_other_format() -> None:
    packed = _packed({"1.ndjson": b'{"n": 1}\n', "2.ndjson": b'{"n": 1}\n'}, "zip")
    assert run(packed, "unpack") == '{"n": 1}\n{"n": 1}\n'


def test_members_in_one_table_have_one_header() -> None:
    long = "x" * 200_000  # longer than the default limit of the reader
    packed = _packed({"1.csv": b"a,b\n", "2.csv": f"a,b\n1,{long}\n".encode()}, "zip")
    assert run(packed, "unpack", "--member-column", "file") == f"file,a,b\n2.csv,1,{long}\n"
    packed = _packed({"1.csv": b"a,b\n1,2\n", "2.csv": b"b,a\n2,1\n"}, "zip")
    with pytest.raises(BadData, match=r"2\.csv, line 1: the header differs"):
        run(packed, "unpack", "--member-column", "file")


def test_long_equal_lines_are_no_headers() -> None:
    line = b"x" * (1 << 21)
    packed = _packed({"1.csv": line, "2.csv": line}, "zip")
    assert run(packed, "unpack") == f"{line.decode()}\n{line.decode()}"


def test_tar_without_the_mark_of_posix_is_unpacked() -> None:
    archive = bytearray(_packed({"a.csv": b"n\n1\n"}, "tar"))
    archive[257:265] = bytes(8)
    archive[148:156] = b" " * 8
    archive[148:156] = b"%06o\0 " % sum(archive[:512])
    assert run(bytes(archive), "unpack") == "n\n1\n"
    assert run(gzip.compress(archive), "unpack") == "n\n1\n"


def test_compressed_files_are_unpacked() -> None:
    data = b"a,b\n" * 1000
    for packed in (gzip.compress(data), bz2.compress(data), lzma.compress(data), _zstandard(data)):
        assert run(packed, "unpack") == data.decode()
    for packed in (gzip.compress(data)[:-20], bz2.compress(data)[:-20], lzma.compress(data)[:-20]):
        with pytest.raises(BadData, match="damaged archive"):
            run(packed, "unpack")


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a\\..\\..\\evil"])
def test_names_outside_the_folder_are_refused(name: str) -> None:
    for kind in ("zip", "tar"):
        with pytest.raises(BadData, match="outside its folder"):
            run(_packed({name: b"x"}, kind), "unpack")


def test_links_and_bombs_are_refused() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("link")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry)
    with pytest.raises(BadData, match="is a link"):
        run(buffer.getvalue(), "unpack")
    with pytest.raises(BadData, match="decompression bomb"):
        run(_zstandard(bytes(400 << 20)), "unpack")


def test_cells_of_a_spreadsheet_are_typed(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    workbook = openpyxl.Workbook()
    sheet = workbook.active
    sheet.title = "Cases"
    sheet["B2"] = "Department of Health"
    for at, text in ((2, "Cases"), (4, "Deaths")):
        sheet.cell(4, at, text)
        sheet.merge_cells(start_row=4, start_column=at, end_row=4, end_column=at + 1)
    for row, values in enumerate(
        [
            ["2019", "2020", "2019", "day"],
            [1, 1.5, True, datetime(2024, 1, 2)],
            [2, "#N/A", None, date(2024, 1, 3)],
        ],
        start=5,
    ):
        for column, value in enumerate(values, start=2):
            sheet.cell(row, column, value)
    workbook.create_sheet("Other")["A1"] = "x"
    buffer = io.BytesIO()
    workbook.save(buffer)
    expected = "Cases 2019,Cases 2020,Deaths 2019,Deaths day\n1,1.5,true,2024-01-02\n2,,,2024-01-03\n"
    data = buffer.getvalue()
    assert run(data, "sheet", "--range", "B4:E", "--header-rows", "2") == expected
    assert run(data, "sheet", "--sheet", "1", "--range", "B4", "--header-rows", "2") == expected
    assert run(data, "sheet", "--sheet", "Cases", "--range", "B5:C6") == "2019,2020\n1,1.5\n"
    assert run(data, "sheet", "--sheet", "Other") == "x\n"
    assert run(data, "sheet", "--sheet", "Other", "--header-rows", "0") == "c1\nx\n"
    with pytest.raises(BadData, match="sheet 'None' not found"):
        run(data, "sheet", "--sheet", "None")
    with pytest.raises(UsageError, match="invalid range"):
        run(data, "sheet", "--range", "5A")


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.none() | st.integers() | st.text()), max_size=5))
def test_items_of_json_are_lines(items: list[dict[str, Any]]) -> None:
    for document, arguments in (
        (items, []),
        ({"n": 1, "rows": items}, []),
        ({"d": {"i": items}}, ["--items", "d.i"]),
    ):
        lines = run(json.dumps(document), "json", *arguments).split("\n")
        assert [json.loads(line) for line in lines if line] == items


def test_lone_surrogates_of_json_are_kept() -> None:
    assert run('[{"a": "\\ud800 é"}]', "json") == '{"a":"\\ud800 é"}\n'


def test_other_documents_become_objects() -> None:
    digits = '{"a":0.12345678901234567890123,"b":123456789012345678901234567890}'
    assert run(f"[{digits}]", "json") == f"{digits}\n"
    with pytest.raises(BadData, match="NaN is not a number"):
        run('[{"a": NaN}]', "json")
    assert run('[["a","b"],[1,null]]', "json") == '{"a":1,"b":null}\n'
    assert run('[{"a":{"b":{"c":1}},"d":[2]}]', "json", "--flatten") == '{"a.b.c":1,"d":[2]}\n'
    rows = '<Cube c="USD" r="1.1"/><Cube c="JPY"><n>5</n></Cube>'
    xml = f'<f xmlns="urn:x"><Cube time="2024-01-01">{rows}</Cube></f>'
    assert run(xml, "xml", "--row", "Cube/Cube") == '{"c":"USD","r":"1.1"}\n{"c":"JPY","n":"5"}\n'
    assert run("ab 1\ncd22\n", "fixed", "--widths", "2,2", "--names", "k,v") == "k,v\nab,1\ncd,22\n"
    assert run("# c\nsite\tn\n5s\t3n\nA\t1\n", "rdb") == "site,n\nA,1\n"


def test_no_option_of_a_filter_is_a_file() -> None:
    """Steps that run a filter need no trust, so that no option may name a file, a URL or a program."""
    known = {
        "skip", "start", "until", "comment", "drop_last", "stop_at_blank", "sheet", "range",
        "header_rows",
        "all_rows", "locate", "lists",
        "items", "flatten", "row", "widths", "names", "encoding", "member", "member_column", "separator",
        "quote", "escape", "decimal", "thousands", "nulls", "flags", "ragged", "drop_empty", "unpivot",
        "name", "value", "help",
    }  # fmt: skip
    for name, described in FILTERS.items():
        parser = command_line._parser(name, described.summary)
        assert {action.dest for action in parser._actions} <= known
        assert not parser.fromfile_prefix_chars


@given(
    records=st.lists(st.sampled_from(["", "#note", "row", "two\nlines", "total"]), min_size=1, max_size=12),
    title=st.booleans(),
    options=st.lists(
        st.sampled_from(
            ["--drop-empty", "--comment=#", "--until=^total", "--drop-last=2", "--unpivot=^[bc]$"]
        ),
        unique=True,
    ),
)
def test_csv_locates_the_input_line_of_each_output_line(
    records: list[str], title: bool, options: list[str]
) -> None:
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    output.write("A title\n" if title else "")
    writer.writerow(["a", "b", "c"])
    for at, text in enumerate(records):
        if text == "#note":
            output.write(f"#note {at}\n")
        else:
            writer.writerow([f"{text} id{at}." if text else "", f"id{at}." if text else "", ""])
    data = output.getvalue()
    lines = data.split("\n")
    arguments = ["csv", *(["--skip", "1"] if title else []), *options, "--ragged", "skip"]
    header, *rows = csv.reader(io.StringIO(run(data, *arguments), newline=""))
    assert run(data, *arguments, "--locate", "1") == "", header
    line = 2
    for row in rows:
        place = run(data, *arguments, "--locate", str(line))
        first = int(place.removeprefix("line "))
        wanted = next((cell.split()[-1] for cell in row if "id" in cell), "")
        assert wanted in "\n".join(lines[first - 1 : first + 1])
        line += 1 + row[0].count("\n")
    assert run(data, *arguments, "--locate", str(line)) == ""


def test_sheet_and_lines_locate_the_input_of_an_output_line() -> None:
    book = openpyxl.Workbook()
    sheet: Any = book.active
    sheet.title = "Cases"
    for row in [["Report"], [None], ["area", "n"], [None, None], ["A", "two\nlines"], [None], ["B", 2]]:
        sheet.append(row)
    data = io.BytesIO()
    book.save(data)
    book_bytes = data.getvalue()
    places = [run(book_bytes, "sheet", "--all-rows", "--locate", str(line)) for line in range(1, 10)]
    rows = [1, 2, 3, 4, 5, 5, 6, 7]
    assert places == [*(f"sheet Cases, row {row}" for row in rows), ""]
    places = [run(book_bytes, "sheet", "--range", "A3", "--locate", str(line)) for line in range(1, 6)]
    assert places == ["", *(f"sheet Cases, row {row}" for row in (5, 5, 7)), ""]
    text = "title\na\n# b\nc\n"
    arguments = ("lines", "--skip", "1", "--comment", "#", "--locate")
    assert [run(text, *arguments, str(line)) for line in (1, 2, 3)] == ["line 2", "line 4", ""]
