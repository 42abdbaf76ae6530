from __future__ import annotations

import pytest

from odf_engine.errors import BadData, InvalidManifest
from odf_engine.ingest.fetch.files_glob import event_time_from_path
from odf_engine.metadata.model import FromPath
from odf_engine.metadata.time_formats import parse_time


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        ("2024-03-01", "yyyy-MM-dd", "2024-03-01T00:00:00Z"),
        ("20240301", "yyyyMMdd", "2024-03-01T00:00:00Z"),
        ("1.3.2024", "d.M.yyyy", "2024-03-01T00:00:00Z"),
        ("01-Mar-24 03:05 PM", "dd-MMM-yy hh:mm a", "2024-03-01T15:05:00Z"),
        ("12:30 am 2024", "hh:mm a yyyy", "2024-01-01T00:30:00Z"),
        ("Friday, March 1, 2024", "EEEE, MMMM d, yyyy", "2024-03-01T00:00:00Z"),
        ("2024-03-01 5", "yyyy-MM-dd u", "2024-03-01T00:00:00Z"),
        ("2024-03-01T10:20:30.250+02:00", "yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2024-03-01T08:20:30.250Z"),
        ("2024061 at 5 o'clock", "yyyyDDD 'at' H 'o''clock'", "2024-03-01T05:00:00Z"),
        ("2024-03-01", "%Y-%m-%d", "2024-03-01T00:00:00Z"),
        ("01.03.24 10:20 +0200", "%d.%m.%y %H:%M %z", "2024-03-01T08:20:00Z"),
    ],
)
def test_java_and_strftime_time_formats_are_parsed(text: str, form: str, expected: str) -> None:
    assert str(parse_time(text, form)) == expected


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("2024-3-1", "yyyy-MM-dd"),
        ("2024-02-30", "yyyy-MM-dd"),
        ("2023366", "yyyyDDD"),
        ("x", "%Y"),
        ("13", "MM"),
    ],
)
def test_text_that_does_not_match_the_time_format_is_rejected(text: str, form: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' does not match the time format '{form}'"):
        parse_time(text, form)


@pytest.mark.parametrize("form", ["yyyy-QQ", "%Y-%Q", "yyyy yyyy", "uuuu-MM-dd"])
def test_invalid_time_format_is_rejected(form: str) -> None:
    with pytest.raises(InvalidManifest, match="time format"):
        parse_time("2024", form)


def test_event_time_is_extracted_from_the_path() -> None:
    pattern = r"(\d+-\d+-\d+)\.csv"
    assert str(event_time_from_path(FromPath(pattern), "cases-2024-03-01.csv")) == "2024-03-01T00:00:00Z"
    assert (
        str(event_time_from_path(FromPath("^(.*?)\\.csv"), "deep/er/2024-03-01.csv"))
        == "2024-03-01T00:00:00Z"
    )
    assert str(event_time_from_path(FromPath("^(.*?)/x", "yyyyMM"), "202403/x.csv")) == "2024-03-01T00:00:00Z"
    assert str(event_time_from_path(FromPath("(.*)"), "2024-03-01T10:00:00Z")) == "2024-03-01T10:00:00Z"
    with pytest.raises(BadData, match=r"other.txt: the file name does not match"):
        event_time_from_path(FromPath(pattern), "other.txt")
    with pytest.raises(BadData, match=r"x.csv: '2024-99-01' does not match the time format 'yyyy-MM-dd'"):
        event_time_from_path(FromPath("(.*)/"), "2024-99-01/x.csv")
    with pytest.raises(InvalidManifest, match="no group"):
        event_time_from_path(FromPath(r"\d+"), "1")
    with pytest.raises(InvalidManifest, match="not a valid regular expression"):
        event_time_from_path(FromPath("(("), "1")
