"""Looking through text files and marking where records end, against slower ways to know."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, Cancelled
from odf_engine.spark import text_files
from odf_engine.spark.csv_records import Dialect, QuoteScan, invalid_value
from odf_engine.spark.errors import RejectedRow
from odf_engine.spark.text_files import FractionScan, JsonScan, prepare_text_file, read_records

CUTS = some.lists(some.integers(1, 9), max_size=12)


def parts(data: bytes, cuts: list[int]) -> list[bytes]:
    """The bytes cut into parts of these sizes, over and over."""
    found, at, sizes = [], 0, iter(cuts * len(data) or [len(data)] * len(data))
    while at < len(data):
        size = next(sizes, len(data))
        found.append(data[at : at + size])
        at += size
    return found


def record_end(text: str, at: int) -> tuple[int, bool]:
    """The end of the record that begins at a position, and whether its quoted values are valid, by RFC 4180.

    An invalid record ends at the first line end after the opening quote.
    """
    while at < len(text):
        if text[at] == '"':
            end = start = at + 1
            while end < len(text) and (text[end] != '"' or text[end + 1 : end + 2] == '"'):
                end += 1 if text[end] != '"' else 2
            if end >= len(text) or text[end + 1 : end + 2] not in ("", ",", "\r", "\n"):
                return start + len(re.split("[\r\n]", text[start:])[0]), False
            at = end + 1
        while at < len(text) and text[at] not in ",\r\n":
            at += 1
        if at < len(text) and text[at] in "\r\n":
            break
        at += 1
    return min(at, len(text)), True


def records(text: str) -> list[tuple[str, bool]]:
    """The records of a CSV file that are not blank, and whether their quoted values are valid."""
    found, at = [], 0
    while at < len(text):
        end, is_valid = record_end(text, at)
        if text[at:end].strip():
            found.append((text[at:end], is_valid))
        at = end + (2 if text[end : end + 2] == "\r\n" else 1)
    return found


QUOTED = some.text('ab,"\n\r', max_size=40) | some.lists(
    some.sampled_from(['"a', '"a"', '"a\nb"', '"a""b"', '"a"b', 'a"', ",", ",", "\n", "\r\n"]), max_size=14
).map("".join)


@settings(max_examples=300, deadline=None)
@given(QUOTED, CUTS)
def test_quoted_values_that_do_not_end_in_their_line_are_detected(text: str, cuts: list[int]) -> None:
    scan = QuoteScan(Dialect())
    for part in parts(text.encode(), cuts):
        scan.feed(part)
    scan.finish()
    lines = [line for line in re.split("\r\n|\n|\r", text) if line.strip()]
    assert scan.found or records(text) == [(line, True) for line in lines]


@settings(max_examples=300, deadline=None)
@given(QUOTED, some.integers(1, 64))
def test_invalid_quotes_end_their_record_at_the_line_end(text: str, chunk: int) -> None:
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "_READ_SIZE", chunk)
        folder = Path(name)
        (folder / "x.csv").write_bytes(text.encode())
        ready = prepare_text_file(folder / "x.csv", folder, name="x", dialect=Dialect())
        found = [record for _, record in read_records(ready, Reporter())]
    assert [(each.decode(), invalid_value(each, Dialect()) is None) for each in found] == records(text)
    assert ready.has_invalid == any(not is_valid for _, is_valid in records(text))


@settings(max_examples=100, deadline=None)
@example(b":11.1111", [1])
@given(some.lists(some.sampled_from([b":11.", b":1", b"1", b"11", b"."]), max_size=8).map(b"".join), CUTS)
def test_times_with_more_than_three_digits_are_detected_in_any_chunk(data: bytes, cuts: list[int]) -> None:
    scan = FractionScan()
    for part in parts(data, cuts):
        scan.feed(part)
    scan.finish()
    assert scan.found == (re.search(b":11[.]1111", data) is not None)


LINES = some.lists(
    some.one_of(
        some.just(""),
        some.dictionaries(some.text("a}{", max_size=3), some.integers() | some.text("} {\n", max_size=4)).map(
            json.dumps
        ),
        some.sampled_from(
            ["{}", "{} {}", "{}x", "[{}]", '{"a":1}{"b":2}', "{}\t{}", "7", "{} ", ' {"a":{}}\r']
        ),
    ),
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(LINES, CUTS, some.booleans())
def test_lines_of_more_than_one_object_are_found(lines: list[str], cuts: list[int], ended: bool) -> None:
    data = ("\n".join(lines) + ("\n" if ended else "")).encode()
    problem = None
    try:
        scan = JsonScan("x")
        for part in parts(data, cuts):
            scan.feed(part)
        scan.finish()
    except RejectedRow as error:
        problem = error.where
    wrong = [number for number, line in enumerate(lines, 1) if line.strip() and not is_object(line)]
    assert problem == (f"x: line {wrong[0]}" if wrong else None)


def is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


ROWS = some.lists(
    some.lists(some.text("ab\"\n\r,'", max_size=6), min_size=2, max_size=2), min_size=1, max_size=8
)


@settings(max_examples=120, deadline=None)
@given(ROWS, some.sampled_from(["\n", "\r\n"]), some.integers(1, 64))
def test_record_boundaries_match_the_csv_module(rows: list[list[str]], end: str, chunk: int) -> None:
    written = io.StringIO()
    csv.writer(written, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(rows)
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "_READ_SIZE", chunk)
        folder = Path(name)
        file = folder / "x.csv"
        file.write_bytes(written.getvalue().encode())
        ready = prepare_text_file(file, folder, name="x", dialect=Dialect())
        data = ready.path.read_bytes().decode()
    if ready.line_separator is None:
        records = data.splitlines()
        assert not any("\n" in value or "\r" in value for row in rows for value in row)
    else:
        records = data.removesuffix(ready.line_separator).split(ready.line_separator)
    assert [next(csv.reader(io.StringIO(record, newline=""))) for record in records] == rows


def test_a_plain_file_is_not_copied(tmp_path: Path) -> None:
    file = tmp_path / "_x.csv.gz"
    file.write_bytes(b'1,"a ""b"""\n')
    ready = prepare_text_file(file, tmp_path, name="x", dialect=Dialect())
    assert ready.path.is_symlink()
    assert ready.path.resolve() == file.resolve()
    assert ready.path.name == "input.txt"


def test_record_separator_is_a_character_absent_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(b'1,"\x1e\n"\n2,\x1f\n')
    ready = prepare_text_file(file, tmp_path, name="x", dialect=Dialect())
    assert ready.line_separator == "\x1d"
    file.write_bytes(b'"\n"' + bytes(range(1, 32)))
    with pytest.raises(BadData, match="control characters"):
        prepare_text_file(file, tmp_path, name="x", dialect=Dialect())


def test_undecodable_bytes_are_found_in_any_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "_READ_SIZE", 7)
    file = tmp_path / "x.csv"
    good = "é,ü,日本\n" * 20
    file.write_bytes(good.encode())
    prepare_text_file(file, tmp_path, name="x")
    for line in (1, 7, 20):
        lines = good.encode().splitlines(keepends=True)
        lines[line - 1] = b"\xe9" + lines[line - 1]
        file.write_bytes(b"".join(lines))
        with pytest.raises(BadData, match=rf"x: line {line}: byte 0xe9 at \d+ is not UTF-8"):
            prepare_text_file(file, tmp_path, name="x")


def test_text_scan_can_be_cancelled(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(b"1,2\n")
    reporter = Reporter()
    reporter.cancel()
    with pytest.raises(Cancelled):
        prepare_text_file(file, tmp_path, name="x", reporter=reporter)


def test_too_long_lines_are_rejected_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "_READ_SIZE", 7)
    monkeypatch.setattr(text_files, "_MAX_LINE", 20)
    file = tmp_path / "x"
    file.write_bytes((b"x" * 19 + b"\n") * 3 + b"y" * 19 + b"\r" + b"z" * 9)
    prepare_text_file(file, tmp_path, name="x", dialect=Dialect())
    for scan, hint in ((None, "is CSV"), (JsonScan("x"), "read.kind Json")):
        file.write_bytes(b"{}\n" + b"x" * 40)
        with pytest.raises(BadData, match="x: line 2: a line is longer than 0 MB") as caught:
            prepare_text_file(file, tmp_path, name="x", objects=scan)
        assert hint in str(caught.value.hint)
