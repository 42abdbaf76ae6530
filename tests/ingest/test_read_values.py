"""What is read from CSV and JSON is what was written, or its row is invalid, against an oracle."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from odf_engine.workspace.dataset_folders import read_rejects
from odf_engine.workspace.workspace import Workspace
from tests.ingest.pulling import Pulled

INVALID: Final = object()
_NUMBER: Final = re.compile(r" *[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)? *")
_JSON_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?")
_ZONES: Final = ("America/New_York", "Australia/Lord_Howe", "Europe/Paris", "Asia/Kolkata")
_BITS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}


class Cell(NamedTuple):
    """A text in a column, and its value in the dataset: :data:`INVALID`, or None for null."""

    column: str
    text: str
    value: Any


def integer(kind: str) -> Callable[[str], Any]:
    limit = 1 << (_BITS[kind] - 1)

    def parse(text: str) -> Any:
        if re.fullmatch(" *[+-]?[0-9]+ *", text) and -limit <= int(text) < limit:
            return int(text)
        return INVALID

    return parse


def decimal(precision: int, scale: int) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if not _NUMBER.fullmatch(text):
            return INVALID
        with localcontext(prec=500):
            value = Decimal(text.strip())
            unscaled = value.scaleb(scale)
            if unscaled != unscaled.to_integral_value() or abs(unscaled) >= 10**precision:
                return INVALID
            return value.quantize(Decimal(1).scaleb(-scale)) + 0  # there is no -0

    return parse


def floating(kind: pa.DataType) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if text.strip().lower() in ("nan", "inf", "-infinity"):
            return float(text)
        if not _NUMBER.fullmatch(text):
            return INVALID
        value = pa.array([text.strip().removeprefix("+")]).cast(kind)[0].as_py()
        if math.isinf(value) or (value == 0 and Decimal(text.strip()) != 0):
            return INVALID
        return value

    return parse


def boolean(text: str) -> Any:
    folded = text.strip().lower()
    known = {"t": True, "true": True, "y": True, "yes": True, "1": True}
    known |= {"f": False, "false": False, "n": False, "no": False, "0": False}
    return known.get(folded, INVALID)


def day(text: str) -> Any:
    try:
        return date(*map(int, text.split("-"))) if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else INVALID
    except ValueError:
        return INVALID


def nanoseconds(text: str) -> int | None:
    """A time of the day, or None if there is no such time."""
    match = _TIME.fullmatch(text)
    if match is None or int(match[1]) > 23 or int(match[2]) > 59 or int(match[3]) > 59:
        return None
    seconds = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])
    return seconds * 10**9 + int((match[4] or "").ljust(9, "0"))


def clock(unit_ns: int) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        time = nanoseconds(text)
        return INVALID if time is None else time // unit_ns

    return parse


def moment(unit_ns: int) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        match = re.fullmatch(r"(\S{10})[T ](\d\d:\d\d:\d\d(?:\.\d+)?)(Z|[+-]\d\d:\d\d| \S+/\S+|)", text)
        if match is None or day(match[1]) is INVALID or (time := nanoseconds(match[2])) is None:
            return INVALID
        local = datetime.fromisoformat(f"{match[1]}T00:00:00") + timedelta(microseconds=time // 1000)
        zone = match[3].strip()
        if "/" in zone:
            instants = {
                local.replace(tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC).replace(tzinfo=None)
                for fold in (0, 1)
            }
            if len(instants) > 1:  # the time is in a gap or an overlap
                return INVALID
            (instant,) = instants
        else:
            hours, _, minutes = zone.strip("Z+-").partition(":")
            offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
            if offset > timedelta(hours=18) or int(minutes or 0) > 59:
                return INVALID
            instant = local + offset if zone.startswith("-") else local - offset
        return (instant - datetime(1970, 1, 1)) // timedelta(microseconds=1) * 1000 // unit_ns

    return parse


TYPES: Final[dict[str, Callable[[str], Any]]] = {
    **{kind: integer(kind) for kind in _BITS},
    "DECIMAL(38,0)": decimal(38, 0),
    "DECIMAL(38,18)": decimal(38, 18),
    "DECIMAL(10,2)": decimal(10, 2),
    "DOUBLE": floating(pa.float64()),
    "FLOAT": floating(pa.float32()),
    "BOOLEAN": boolean,
    "STRING": lambda text: text,
    "DATE": day,
    "TIME": clock(1000),
    "TIME(9)": clock(1),
    "TIMESTAMP": moment(10**6),
    "TIMESTAMP(6)": moment(1000),
}
NUMBERS = [kind for kind in TYPES if kind in _BITS or kind.startswith(("DEC", "DOUBLE", "FLOAT"))]

digits = st.text("0123456789", max_size=45)
number_texts = st.one_of(
    st.tuples(
        st.sampled_from(["", "-", "+", " "]),
        digits | st.sampled_from(["127", "128", "32768", "2147483648", "9223372036854775807", "9" * 38]),
        st.sampled_from(["", ".", ".0", ".5", ".005", f".{'0' * 40}", f".{'0' * 40}1"])
        | digits.map(".{}".format),
        st.sampled_from(["", "", "", "e0", "E+5", "e-19", "e-400", "e400", "e", "d", "F", "L", "p1", " "]),
    ).map("".join),
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["NaN", "inf", "-Infinity", "0x1p3", "\uff11\uff12", "1_000", "1,5", "--1", "٣"]),
)
time_texts = st.tuples(
    st.integers(0, 24),
    st.integers(0, 60),
    st.integers(0, 60),
    st.just("") | st.text("0129", min_size=1, max_size=9),
).map(lambda parts: "{:02}:{:02}:{:02}".format(*parts) + (f".{parts[3]}" if parts[3] else ""))
day_texts = st.one_of(
    st.dates(date(1, 1, 2), date(9999, 12, 30)).map(date.isoformat),
    st.tuples(st.integers(1990, 2030), st.integers(0, 13), st.integers(0, 32)).map(
        lambda parts: "{:04}-{:02}-{:02}".format(*parts)
    ),
)
zoned_days = st.dates(date(1980, 1, 1), date(2036, 1, 1)).map(date.isoformat) | st.sampled_from(
    ["2024-03-10", "2024-11-03", "2024-04-07", "2024-10-06", "2024-03-31", "2024-10-27"]
)
moment_texts = st.one_of(
    st.tuples(
        day_texts, st.sampled_from("T "), time_texts, st.sampled_from(["", "Z", "+00:00", "-05:30", "+18:30"])
    ).map("".join),
    st.tuples(zoned_days, st.sampled_from("T "), time_texts, st.sampled_from(_ZONES).map(" {}".format)).map(
        "".join
    ),
)
string_texts = st.text(
    st.sampled_from("ab,;\"'\\\n\r\t \0\x1f\ufeff\u2028é\U0001f600") | st.characters(codec="utf-8"),
    max_size=8,
)
TEXTS = {
    **dict.fromkeys(NUMBERS, number_texts),
    "BOOLEAN": st.sampled_from(["true", "FALSE", "t", "f", "yes", "No", "1", "0", "2", "on", "truee"]),
    "STRING": string_texts,
    "DATE": day_texts,
    "TIME": time_texts,
    "TIME(9)": time_texts,
    "TIMESTAMP": moment_texts,
    "TIMESTAMP(6)": moment_texts,
}
CELLS = st.sampled_from(list(TYPES)).flatmap(lambda kind: st.tuples(st.just(kind), TEXTS[kind]))
FILES = st.lists(CELLS, min_size=60, max_size=120)
NAMES = {kind: f"c{at}" for at, kind in enumerate(TYPES)}
_count = iter(range(1000))


def write_csv(cells: list[tuple[str, str]]) -> tuple[str, list[Cell]]:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")  # so that it quotes both
    found: list[Cell] = []
    for number, (kind, text) in enumerate(cells):
        writer.writerow([number, *(text if each == kind else "" for each in TYPES)])
        value = INVALID if "\0" in text else TYPES[kind](text) if text else None
        found.append(Cell(NAMES[kind], text, value))
    return out.getvalue(), found


def write_json(cells: list[tuple[str, str]]) -> tuple[str, list[Cell]]:
    lines: list[str] = []
    found: list[Cell] = []
    for number, (kind, text) in enumerate(cells):
        is_plain = kind in NUMBERS and _JSON_NUMBER.fullmatch(text) and number % 2
        lines.append(f'{{"id": {number}, "{NAMES[kind]}": {text if is_plain else json.dumps(text)}}}\n')
        found.append(Cell(NAMES[kind], text, TYPES[kind](text)))
    return "".join(lines), found


def stored_values(table: pa.Table) -> dict[int, dict[str, Any]]:
    """The values of the rows that are not null, by id; times as numbers."""
    columns: dict[str, list[Any]] = {}
    for name in NAMES.values():
        column = table.column(name)
        if pa.types.is_timestamp(column.type) or pa.types.is_time64(column.type):
            column = column.cast(pa.int64())
        columns[name] = column.to_pylist()
    ids = table.column("id").to_pylist()
    return {
        number: {name: values[at] for name, values in columns.items() if values[at] is not None}
        for at, number in enumerate(ids)
    }


def rejected_columns(pulled: Pulled) -> dict[int, str]:
    """The columns of the rejected rows, by id."""
    rejects = read_rejects(pulled.dataset.folder).get(str(pulled.dataset.head()))
    if rejects is None:
        return {}
    found: dict[int, str] = {}
    with rejects.file.open(newline="") as file:
        for row in csv.DictReader(file):
            match = re.match(r'(?:\{"id": )?(\d+)', row["record"])
            assert match is not None, row
            found[int(match[1])] = row["column"]
    return found


def check(pulled: Pulled, read: str, text: str, cells: list[Cell]) -> None:
    name = f"data{next(_count)}"
    schema = ", ".join(f"'{column} {kind}'" for kind, column in NAMES.items())
    (pulled.workspace.odf / "config.yaml").write_text("onBadRows: {'%': reject}\n")
    pulled.workspace = Workspace(pulled.workspace.folder)
    source = f"fetch: {{kind: Url, url: {name}}}\nread: {{kind: {read}, schema: [id BIGINT, {schema}]}}"
    pulled.add(f"{source}\nmerge: {{kind: Append}}", name=name)
    pulled.write(name, text + ("-1" + "," * len(TYPES) + "\n" if read == "Csv" else '{"id": -1}\n'))
    pulled.pull()
    rejected, stored = rejected_columns(pulled), stored_values(pulled.table())
    assert stored.pop(-1) == {}
    wrong = []
    for number, cell in enumerate(cells):
        expected = {} if cell.value is None else {cell.column: cell.value}
        if cell.value is INVALID:
            if rejected.pop(number, None) != cell.column or number in stored:
                wrong.append((cell, stored.get(number)))
        elif str(stored.pop(number, None)) != str(expected):  # NaN is not equal to itself
            wrong.append((cell, rejected.get(number)))
    assert not wrong


BOUNDARIES = [
    ("DECIMAL(38,0)", "1.5"),
    ("DECIMAL(38,18)", "1e-19"),
    ("DECIMAL(10,2)", f"1.23{'0' * 38}1"),
    ("DECIMAL(10,2)", "\uff11"),
    ("DOUBLE", "12D"),
    ("DOUBLE", "0x1p3"),
    ("DOUBLE", "1e-400"),
    ("FLOAT", "1f"),
    ("FLOAT", "3.5e38"),
    ("TIME", "10:00:00.1234567"),
    ("TIME(9)", "23:59:59.999999999"),
    ("TIMESTAMP", "2024-01-01T10:00:00.1239Z"),
    ("TIMESTAMP", "2024-03-10T02:30:00 America/New_York"),
    ("TIMESTAMP", "2024-11-03T01:30:00 America/New_York"),
    ("TIMESTAMP", "1969-12-31T23:59:59.9999Z"),
    ("TIMESTAMP(6)", "1969-12-31T23:59:59.999999Z"),
    *(("STRING", text) for text in ("a\0b", 'a"b', '"', "\n", "\r", " ")),
    *(
        (kind, str(sign * (1 << (bits - 1)) + step))
        for kind, bits in _BITS.items()
        for sign in (1, -1)
        for step in (0, -1)
    ),
]


@pytest.mark.complete
@pytest.mark.parametrize("read", ["Csv", "NdJson"])
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
    phases=[Phase.explicit, Phase.generate],  # the message has the wrong cells only
)
@example(cells=BOUNDARIES)
@given(cells=FILES)
def test_values_are_read_exactly_or_rejected(pulled: Pulled, read: str, cells: list[tuple[str, str]]) -> None:
    text, expected = (write_csv if read == "Csv" else write_json)(cells)
    check(pulled, read, text, expected)
