"""The keys that are kept beside a dataset: never a wrong answer, whatever happens to their files."""

from __future__ import annotations

import json
import os
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.data.changelog import replay_changelog
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
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.ingest.pulling import Pulled

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


def test_finds_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_damage_is_seen_where_it_matters(tmp_path: Path) -> None:
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
def test_a_description_that_says_what_cannot_be(tmp_path: Path, wrong: dict[str, object]) -> None:
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


def test_a_description_that_nests_too_deeply(tmp_path: Path) -> None:
    text = b"[" * 100_000
    (tmp_path / "keys").write_bytes(text + struct.pack("<QI", len(text), zlib.crc32(text)))
    with pytest.raises(CorruptKeyFile):
        KeyFile(tmp_path / "keys")


SOURCE = """
fetch: {{kind: FilesGlob, path: "*.csv"}}
read: {{kind: Csv, schema: [id INT, n INT]}}
merge: {{kind: {merge}, primaryKey: [id]}}
"""


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), 7):
        data[at] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("merge", ["Ledger", "Snapshot"])
def test_merges_whatever_happens_to_the_files(pulled: Pulled, merge: str) -> None:
    pulled.add(SOURCE.format(merge=merge))
    info = pulled.dataset.folder / "info"
    random.seed(1)
    ids = [random.sample(range(6 + 2 * day), 5) for day in range(7)]
    days = [{key: random.randrange(2) for key in day} for day in ids]
    state: dict[int, int] = {}

    def each(change: Callable[[Path], None]) -> Callable[[], None]:
        return lambda: [change(path) for path in info.glob("keys/*/*.keys")] and None

    happenings: list[Callable[[], object]] = [
        lambda: None,
        each(os.unlink),
        each(flip),
        lambda: flip(next(info.glob("keys/*/index.json"))),
        each(lambda path: path.write_bytes(path.read_bytes()[:-1])),
        each(lambda path: path.write_bytes(b"")),
        lambda: None,
    ]
    for number, (day, happens) in enumerate(zip(days, happenings, strict=True)):
        pulled.write(f"{number}.csv", "".join(f"{key},{value}\n" for key, value in day.items()))
        assert len(list(info.glob("keys/*/index.json"))) == (number > 0)
        happens()
        pulled.pull()
        state = {**day, **state} if merge == "Ledger" else day
        table = replay_changelog([pulled.table()], ["id"], pulled.dataset.state().vocabulary)
        assert {row["id"]: row["n"] for row in table.to_pylist()} == state
        assert len(list(info.glob("keys/*/*"))) <= 4


def test_a_history_that_was_taken_back(pulled: Pulled) -> None:
    """What was kept of other slices at the same offsets does not count."""
    pulled.add(
        """
fetch: {kind: Url, url: data.csv}
read: {kind: Csv, schema: [id INT]}
merge: {kind: Snapshot, primaryKey: [id]}
"""
    )

    def pull(rows: str) -> int:
        pulled.write("data.csv", rows)
        return pulled.pull(force=True).records

    assert pull("1\n") == 1
    head = pulled.dataset.head()
    assert [pull("1\n2\n"), pull("1\n2\n3\n")] == [1, 1]
    (pulled.dataset.folder / "refs" / "head").write_text(str(head))
    dataset = Dataset(pulled.dataset.folder, BlockIndex(":memory:"))
    pulled.entry = DatasetEntry(pulled.entry.id, pulled.entry.alias, dataset)
    assert [pull("1\n7\n"), pull("1\n7\n")] == [1, 0]
    assert pulled.rows("id") == [(1,), (7,)]
