"""Large results in order, and pulls that are stopped."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from odf_engine.errors import Cancelled
from odf_engine.ingest.polling_source import pull
from odf_engine.spark import row_order
from tests.ingest.pulling import Pulled
from tests.ingest.recorder import Recorder

SOURCE = """
fetch: {{kind: Url, url: data.csv}}
read: {{kind: Csv, schema: [id INT, event_time TIMESTAMP]}}
merge: {merge}
"""
ROWS = 100_000  # two batches


def times(kind: str) -> Callable[[int], str]:
    """The event time of a row as text."""
    random.seed(7)
    values = [random.randrange(1000) for _ in range(ROWS)]

    def text(seconds: int) -> str:
        return f"2024-01-01T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"

    match kind:
        case "in order":
            return lambda row: text(row // 1000)
        case "late":
            return lambda row: text(5 if row == 90_000 else row // 1000)
        case "without":
            return lambda row: ""
        case _:
            return lambda row: text(values[row]) if row % 5 else ""


@pytest.mark.parametrize(
    ("kind", "again"), [("in order", False), ("late", True), ("random", False), ("without", False)]
)
@pytest.mark.complete
def test_rows_larger_than_memory_have_the_same_order(
    pulled: Pulled, monkeypatch: pytest.MonkeyPatch, kind: str, again: bool
) -> None:
    """What does not fit into memory comes in the same order as what does."""
    time_of = times(kind)
    path = pulled.write("data.csv", "".join(f"{row},{time_of(row)}\n" for row in range(ROWS)))
    modified = path.stat().st_mtime_ns // 1_000_000
    pulled.add(SOURCE.format(merge="{kind: Append}"))
    assert pulled.pull().records == ROWS
    table = pulled.table()
    rows = list(
        zip(table.column("event_time").cast("int64").to_pylist(), table.column("id").to_pylist(), strict=True)
    )
    assert rows == sorted(rows)
    assert sorted(row[1] for row in rows) == list(range(ROWS))
    assert {row[0] for row in rows if not time_of(row[1])} <= {modified}

    monkeypatch.setattr(row_order, "_MAX_MEMORY_BYTES", 1 << 19)
    monkeypatch.setattr(row_order, "SORT_PARTITIONS", 4)
    pulled.add(SOURCE.format(merge="{kind: Append}"), name="again")
    assert pulled.pull().records == ROWS
    assert pulled.table().drop_columns(["system_time"]).equals(table.drop_columns(["system_time"]))
    assert any("sorting them" in text for _, text in pulled.reporter.lines) is again


@pytest.mark.parametrize("merge", ["Ledger", "Snapshot"])
@pytest.mark.complete
def test_keyed_merge_larger_than_memory_gives_the_same_rows(
    pulled: Pulled, monkeypatch: pytest.MonkeyPatch, merge: str
) -> None:
    random.seed(3)
    rows = 80_000
    keys = random.sample(range(rows), rows)
    first = "".join(f"{key},\n" for key in keys[: rows // 2])
    second = "".join(f"{key},2030-01-{key % 28 + 1:02}\n" for key in keys[1000:])
    tables = []
    for name in ("one", "two"):
        pulled.add(SOURCE.format(merge=f"{{kind: {merge}, primaryKey: [id]}}"), name=name)
        pulled.write("data.csv", first)
        assert pulled.pull().records == rows // 2
        pulled.write("data.csv", second)
        changes = 1000 + 2 * (rows // 2 - 1000) if merge == "Snapshot" else 0
        assert pulled.pull().records == rows // 2 + changes
        event_time = pulled.table().column("event_time").cast("int64")
        tables.append(
            pulled.table()
            .select(["offset", "op", "id"])
            .append_column("later", [[value > 1893456000000 for value in event_time.to_pylist()]])
        )
        monkeypatch.setattr(row_order, "_MAX_MEMORY_BYTES", 1 << 19)
        monkeypatch.setattr(row_order, "SORT_PARTITIONS", 4)
    assert tables[0].equals(tables[1])


@pytest.mark.parametrize("phase", ["fetch", "read", "merge", "write", "commit"])
def test_cancelling_at_any_phase_leaves_nothing(pulled: Pulled, phase: str) -> None:
    pulled.add(SOURCE.format(merge="{kind: Append}"))
    pulled.write("data.csv", "1,\n2,\n")
    head = pulled.dataset.head()
    reporter = Recorder()
    reporter.on_phase = lambda name: reporter.cancel() if name == phase else None
    with pytest.raises(Cancelled):
        pull(pulled.workspace, pulled.entry, pulled.runtime, reporter)
    assert pulled.dataset.head() == head
    assert list((pulled.workspace.odf / "cache").iterdir()) == []
    assert list(pulled.dataset.folder.glob("data/*")) == []
    assert pulled.pull().records == 2


def test_cancelling_during_the_write_leaves_nothing(pulled: Pulled) -> None:
    pulled.add(SOURCE.format(merge="{kind: Append}"))
    line = "1,2024-01-01T00:00:00Z\n"
    pulled.write("data.csv", line * 500_000)
    head = pulled.dataset.head()
    reporter = Recorder()
    reporter.on_amount = lambda amounts: amounts.get("rows", 0) > 0 and reporter.cancel()
    with pytest.raises(Cancelled):
        pull(pulled.workspace, pulled.entry, pulled.runtime, reporter)
    assert "commit" not in reporter.phases
    assert reporter.amounts["total_bytes"] == len(line) * 500_000
    assert pulled.dataset.head() == head
    assert list((pulled.workspace.odf / "cache").iterdir()) == []
    assert list(pulled.dataset.folder.glob("data/*")) == []


def test_file_changed_while_it_is_read_is_rejected(pulled: Pulled) -> None:
    pulled.add(SOURCE.format(merge="{kind: Append}"))
    path = pulled.write("data.csv", "1,\n2,\n")
    reporter = Recorder()
    reporter.on_phase = lambda name: path.write_text("1,\n") and None if name == "merge" else None
    pulled.reporter = reporter
    from odf_engine.errors import BadData

    with pytest.raises(BadData, match=r"data\.csv: the file changed while it was read"):
        pull(pulled.workspace, pulled.entry, pulled.runtime, reporter)
    assert pulled.pull().records == 1
