"""Key files: damage is found where it matters. See test_merge_rows for merges with damaged files."""

from __future__ import annotations

import json
import random
import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from odf_engine.ingest.merge import key_file
from odf_engine.ingest.merge.key_file import (
    KEY,
    OFFSET,
    SECOND,
    TIME,
    VALUES,
    CorruptKeyFile,
    KeyFile,
    KeySorter,
    RepeatedKey,
    merge_files,
)

NAMES = [KEY, SECOND, OFFSET, TIME, VALUES]
Rows = list[tuple[int, int, int, int, int]]


def write(path: Path, rows: Rows, *, unique: bool = True) -> KeyFile:
    spool = KeySorter(NAMES, path.parent, unique=unique)
    half = len(rows) // 2
    for part in (rows[:half], rows[half:]):
        if part:
            spool.add([pa.array(column, pa.int64()) for column in zip(*part, strict=True)])
    spool.finish(path, form="x")
    return KeyFile(path)


def some(count: int, seed: int) -> Rows:
    dice = random.Random(seed)

    def number() -> int:
        return dice.randrange(-(2**63), 2**63)

    # Some keys share their first number.
    keys = [number() for _ in range(count - count // 50)]
    keys += dice.choices(keys, k=count // 50)
    return [(key, number(), at, number(), number()) for at, key in enumerate(keys)]


def look_up(file: KeyFile, rows: Rows) -> dict[tuple[int, int], tuple[int, int, int]]:
    ordered = sorted(rows)
    keys, seconds = (pa.array([row[at] for row in ordered], pa.int64()) for at in (0, 1))
    found, places = file.find(keys, seconds)
    order = sorted(range(len(places)), key=lambda at: places[at].as_py())
    places = pa.array([places[at].as_py() for at in order], pa.int64())
    values = [file.take(name, places).to_pylist() for name in NAMES[2:]]
    known = [ordered[found[at].as_py()][:2] for at in order]
    return dict(zip(known, zip(*values, strict=True), strict=True))


def content(rows: Rows) -> dict[tuple[int, int], tuple[int, int, int]]:
    return {row[:2]: row[2:] for row in rows}


def test_key_file_finds_exactly_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = some(5000, 1)
    others = some(3000, 2) + [(key, second + 1, 0, 0, 0) for key, second, *_ in rows[:100]]
    for limit in (1 << 20, 700):  # at once, and in buckets
        monkeypatch.setattr(key_file, "_IN_MEMORY", limit)
        monkeypatch.setattr(key_file, "_RANGE", limit)
        file = write(tmp_path / f"{limit}.keys", rows)
        assert file.rows == len(rows)
        assert look_up(file, rows + others) == content(rows)
        assert look_up(file, others) == {}
        with pytest.raises(RepeatedKey):
            write(tmp_path / "twice", [*rows, rows[17]])
        # Later rows count, and a key that was taken away is forgotten.
        changes: Rows = [(*row[:2], 10_000 + at, at, at) for at, row in enumerate(rows[1000:1500])]
        gone: Rows = [(*row[:2], ~20_000, 0, 0) for row in rows[1200:1300]]
        newer = write(tmp_path / f"{limit}-newer", changes + gone + others[:500], unique=False)
        for drop in (False, True):
            merge_files(file, newer, tmp_path / "merged", drop_gone=drop)
            expected = content(rows + changes + gone + others[:500])
            expected = {key: values for key, values in expected.items() if not drop or values[0] >= 0}
            assert look_up(KeyFile(tmp_path / "merged"), rows + others) == expected


def test_damaged_key_file_never_returns_wrong_rows(tmp_path: Path) -> None:
    rows = some(3000, 3)
    write(tmp_path / "keys", rows)
    good = (tmp_path / "keys").read_bytes()
    dice = random.Random(4)
    seen = 0
    for round_ in range(300):
        bad = bytearray(good)
        at = dice.randrange(len(good))
        bad[at] ^= 1 << dice.randrange(8)
        if round_ % 10 == 0:
            bad = bad[:at]
        (tmp_path / "keys").write_bytes(bad)
        wanted = dice.sample(rows, 20) + some(20, round_)
        try:
            found = look_up(KeyFile(tmp_path / "keys"), wanted)
        except CorruptKeyFile:
            seen += 1
        else:
            assert found == {key: values for key, values in content(rows).items() if key in content(wanted)}
    assert seen > 50
    with pytest.raises(CorruptKeyFile):
        KeyFile(tmp_path / "missing")


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": -1}, {"rows": 1 << 70}, {"rows": 1e400}, {"rows": 1 << 40}, {"rows": None},
        {"stride": 1 << 70}, {"stride": -4096}, {"stride": 4095},
        {"names": ["a"]}, {"names": []}, {"names": [1, 2]}, {"names": [["a"], ["b"]]}, {"names": {"a": 1}},
    ],
    ids=str,
)  # fmt: skip
def test_impossible_description_is_reported_as_corrupt(tmp_path: Path, wrong: dict[str, object]) -> None:
    rows = some(600, 5)
    write(tmp_path / "keys", rows)
    data = (tmp_path / "keys").read_bytes()
    length, _ = struct.unpack("<QI", data[-12:])
    facts = json.loads(data[-12 - length : -12]) | wrong
    body, text = data[: -12 - length], json.dumps(facts).encode()
    try:
        pages = (8 * facts["rows"] + 4095) // 4096 * len(facts["names"])
        table = body[facts["stride"] * len(facts["names"]) :][: 4 * pages]
    except (TypeError, OverflowError):
        table = b""
    tail = struct.pack("<QI", len(text), zlib.crc32(text, zlib.crc32(table)))
    (tmp_path / "keys").write_bytes(body + text + tail)
    with pytest.raises(CorruptKeyFile):
        look_up(KeyFile(tmp_path / "keys"), rows[:20])


def test_deeply_nested_description_is_reported_as_corrupt(tmp_path: Path) -> None:
    text = b"[" * 100_000
    (tmp_path / "keys").write_bytes(text + struct.pack("<QI", len(text), zlib.crc32(text)))
    with pytest.raises(CorruptKeyFile):
        KeyFile(tmp_path / "keys")
