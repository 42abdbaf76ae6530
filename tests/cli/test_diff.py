"""``odf diff``: two versions of a dataset or two datasets, as text, JSON, CSV and files."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pyarrow.parquet as pq

from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Odf
from tests.sync.builders import add_slices, describe, make_root


def test_diff_prints_changed_events_and_rows(fresh: Odf, tmp_path: Path) -> None:
    workspace = Workspace.find(tmp_path)
    entry = make_root(workspace, "numbers", slices=1)
    describe(entry, "people \x1b[31mby city")
    add_slices(entry, rows=2, city="Th\x07un")
    ran = fresh("diff", "numbers")
    assert (ran.code, ran.out.splitlines()) == (0, [
        "numbers: block 2 (2024-05-01T00:00:01Z) → block 4 (2024-05-01T00:00:03Z)",
        "  + 2 added  - 0 removed  3 unchanged · entire rows (no key)",
        "  2 blocks · changelog 3 → 5 rows · watermark 2024-05-01T00:00:01Z → 2024-05-01T00:00:03Z",
        "SetInfo",
        "  + kind: SetInfo",
        '  + description: "people \\e[31mby city"',
        "rows",
        "  +  event_time=2024-05-01 00:00:03Z  city=Th␇un  people=3  #3",
        "  +  event_time=2024-05-01 00:00:03Z  city=Th␇un  people=4  #4",
    ])  # fmt: skip
    by_city = ("diff", "numbers", "--from", "2", "--to", "2024-06-01", "--key", "city")
    ran = fresh(*by_city, "-n", "0")
    assert "+ 1 added  - 0 removed  ~ 0 changed  1 unchanged · by city" in ran.out
    assert "1 more row, use -n" in ran.err
    told = fresh(*by_city, "--json").json
    assert (told["added"], told["unchanged"], told["new"]["sequence_number"]) == (1, 1, 4)
    assert told["changes"] == [{
        "change": "added", "key": {"city": "Th\x07un"}, "old": {},
        "new": {"event_time": "2024-05-01T00:00:03Z", "people": 4}, "offsets": {"new": 4},
    }]  # fmt: skip
    _other_dataset(fresh, workspace, tmp_path)
    _what_is_wrong(fresh)
    _earlier_history(fresh, entry)


def test_differing_rows_are_traced_to_lines_of_files(odf: Odf) -> None:
    removed = odf("diff", "port-haven.stations", "--why").out.splitlines()[-3:]
    assert removed[0].startswith("  -  station=ph-04") and removed[0].endswith("#3")
    assert removed[1] == (
        "     row 3: 2024-03-01.csv, line 5: ph-04,Orchard School,49.26120,-123.09840,SDS-011,active"
    )
    assert removed[2].startswith("     row 3: not in 2024-03-07.csv (20")
    days = odf("diff", "port-haven.air-by-day", "--why", "-n", "1").out.splitlines()
    assert days[-9].endswith("#0")
    assert [line.partition(", ")[0] for line in days[-8:]] == [
        "     port-haven.air-readings",
        "       92: event_time=2024-03-01T23:00:00Z",
        "       88: event_time=2024-03-01T22:00:00Z",
        "       84: event_time=2024-03-01T21:00:00Z",
        "       and 21 older rows",
        "       row 92: air-readings.csv",
        "       row 88: air-readings.csv",
        "       row 84: air-readings.csv",
    ]
    (change,) = odf("diff", "port-haven.air-by-day", "--why", "-n", "1", "--json").json["changes"]
    assert change["why"]["feeds"][0]["step"]["sources"][0]["positions"][0]["line"] == 94
    ran = odf("diff", "port-haven.stations", "--why", "--csv")
    assert (ran.code, ran.out) == (2, "") and "--why needs" in ran.err


def _earlier_history(odf: Odf, entry: DatasetEntry) -> None:
    """The history before a reset is read by its reference, without changes of the current one."""
    old = entry.dataset.state()
    log, rows = odf("log", "numbers", "--json").json, odf("tail", "numbers", "--json").json
    schema = entry.dataset.block(1).block.event
    entry.dataset.restart_chain([schema], system_time=old.system_time, expected_head=old.head)
    name = f"before-reset-{old.head.abbreviated}"
    assert odf("diff", "numbers", "--from", name, "--key", "city", "--json").json["removed"] == 2
    add_slices(entry, rows=1, city="Bern")
    assert odf("show", "numbers", "--json").json["references"] == {name: str(old.head)}
    assert odf("log", "numbers", "--as-at", name, "--json").json == log
    within = odf("log", "numbers", "--as-at", log[2]["hash"], "-n", "1")
    assert within.out.splitlines()[1].split()[0] == "2"
    tail = odf("tail", "numbers", "--as-at", name, "--json")
    assert tail.json == rows and f"of {name} · 5 rows" in tail.err
    ran = odf("diff", "numbers", "--from", name, "--key", "people")
    assert ran.out.splitlines()[0].startswith(f"numbers: block 4 of {name} (")
    told = odf("diff", "numbers", "--from", name, "--key", "people", "--json").json
    counts = [told[each] for each in ("added", "removed", "changed", "unchanged")]
    assert (counts, told["blocks"], told["old"]["in_chain"]) == ([0, 4, 1, 0], None, False)
    assert told["settings"][0]["title"] == "SetInfo"
    rows_differ = odf("diff", "numbers", "--to", name, "--from", "head", "--json").json
    assert (rows_differ["added"], rows_differ["removed"], rows_differ["unchanged"]) == (5, 1, 0)
    one = odf("diff", "numbers", "--from", log[2]["hash"], "--to", name, "--json").json
    assert (one["blocks"], one["added"], one["unchanged"]) == (2, 2, 3)
    assert odf("diff", "numbers", "--to", name, "--json").json["added"] == 2
    current = odf("tail", "numbers", "--as-at", name, "--key", "city", "--json").json
    assert [row["city"] for row in current] == ["Bern", "Th\x07un"]
    # A reset restores it, and another one the present history.
    head = str(entry.dataset.head())
    assert "requires confirmation" in odf("reset", "numbers", name).err
    ran = odf("reset", "numbers", name, "--yes")
    assert ran.err.startswith(f"reset numbers to block 4 of {name}; the earlier history is before-")
    assert odf("tail", "numbers", "--json").json == rows
    assert "unchanged, block 4 is the newest block" in odf("reset", "numbers", "4").err
    assert odf("reset", "numbers", head, "--yes").code == 0
    assert str(entry.dataset.head()) == head


def _other_dataset(odf: Odf, workspace: Workspace, folder: Path) -> None:
    make_root(workspace, "others", slices=1, rows=4)
    args = ("diff", "numbers", "others", "--key", "people")
    ran = odf(*args, "--csv", "-n", "1")
    assert list(csv.DictReader(io.StringIO(ran.out))) == [{
        "change": "changed", "people": "3", "old_city": "Th\x07un", "new_city": "Bern",
        "old_event_time": "2024-05-01T00:00:03Z", "new_event_time": "2024-05-01T00:00:01Z",
        "old_offset": "3", "new_offset": "3",
    }]  # fmt: skip
    assert (
        "~  people=3  event_time=2024-05-01 00:00:03Z → 2024-05-01 00:00:01Z  city=Th␇un → Bern"
        in odf(*args).out
    )
    assert [row["change"] for row in odf(*args, "--json").json["changes"]] == ["changed", "removed"]
    for ending in ("parquet", "csv", "ndjson", "json"):
        assert odf(*args, "-o", str(folder / f"x.{ending}")).err.endswith(
            f"2 rows in {folder / f'x.{ending}'}\n"
        )
    assert pq.read_table(folder / "x.parquet").column("change").to_pylist() == ["changed", "removed"]
    assert len((folder / "x.ndjson").read_text().splitlines()) == 2


def _what_is_wrong(odf: Odf) -> None:
    for arguments, code, words in (
        (("numbers", "--from", "4", "--to", "4"), 2, "both versions are block 4 of numbers"),
        (("numbers", "numbers"), 0, ""),
        (("numbers", "--from", "1999-01-01"), 2, "has no blocks at 1999-01-01"),
        (("numbers", "--from", "2024-13-01"), 2, "'2024-13-01' is not a time"),
        (("numbers", "--to", "77"), 1, "block 77 not found"),
        (("numbers", "--key", "nope"), 1, "column 'nope' not found"),
        (("numbers", "nothing"), 1, "nothing"),
        (("numbers", "--csv", "--json"), 2, "--json, --csv and -o exclude each other"),
        (("numbers", "-o", "x.txt"), 2, "unknown file format"),
    ):
        ran = odf("diff", *arguments)
        assert (ran.code, words in ran.err) == (code, True), (arguments, ran)
