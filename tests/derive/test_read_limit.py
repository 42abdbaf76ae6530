"""The limit of the bytes that a query whose rows can change at any time reads in a transaction."""

from __future__ import annotations

import pytest

from odf_engine.base.config import Config, TransformConfig
from odf_engine.base.progress import Reporter
from odf_engine.data.parquet.slices import read_batches
from odf_engine.derive.query_migration import MigrationOptions, migrate_query
from odf_engine.derive.read_limit import excessive_read
from odf_engine.derive.run import rederive
from odf_engine.errors import Unsupported
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.derive.deriving import Deriving
from tests.derive.test_query_migration import definition
from tests.derive.test_replay import check

CHANGING = "SELECT * FROM input WHERE x IN (SELECT x - 1 FROM input)"


def limit(deriving: Deriving, size: str) -> None:
    deriving.workspace.config = Config(transform=TransformConfig(most_read_bytes=size))


def refused(deriving: Deriving, entry: DatasetEntry) -> str:
    """Return the message of a refused transaction, which commits nothing."""
    before = entry.dataset.head()
    with pytest.raises(Unsupported, match="earlier rows of its inputs again") as error:
        deriving.run(entry)
    assert entry.dataset.head() == before
    assert error.value.hint and "odf config set transform.mostReadBytes" in error.value.hint
    return error.value.message


def fill(deriving: Deriving, root: DatasetEntry, day: int) -> int:
    """Commit a slice of more than 1 KiB; return the size of all slices."""
    deriving.rows(root, *((day, f"city {at * 7919 % 1000}", at) for at in range(100)))
    return sum(row.size for row in root.dataset.slices())


def test_limit_applies_to_earlier_and_new_slices_of_each_transaction(deriving: Deriving) -> None:
    root = deriving.root()
    made = deriving.derivative(CHANGING)
    one = fill(deriving, root, 1)
    limit(deriving, "1k")
    assert f"{one / 1000:.1f} kB, more than transform.mostReadBytes (1k)" in refused(deriving, made)
    limit(deriving, f"{-(-one // 1024)}k")
    assert deriving.run(made) == 1

    two = fill(deriving, root, 2)
    assert f"would read {two / 1000:.1f} kB" in refused(deriving, made)
    for value in (f"{-(-two // 1024)}k", ""):
        limit(deriving, value)
        assert deriving.run(made) == (1 if value else 0)
    assert deriving.result(made, "x").count((5,)) == 2
    limit(deriving, "1k")
    assert check(deriving, made).findings == []  # a replay is not limited


def test_limit_does_not_apply_to_queries_that_read_new_rows_only(deriving: Deriving) -> None:
    root = deriving.root()
    stateless = deriving.derivative("SELECT * FROM input", name="stateless")
    grouped = deriving.derivative(
        "SELECT max(event_time) AS event_time, city, count(*) AS n FROM input GROUP BY city", name="grouped"
    )
    limit(deriving, "1k")
    for day in (1, 2):
        assert fill(deriving, root, day) > 1024
        assert deriving.run(stateless) == deriving.run(grouped) == 1


def test_limit_is_checked_before_a_rebuild_or_a_reset(deriving: Deriving) -> None:
    root = deriving.root()
    made = deriving.derivative(CHANGING)
    fill(deriving, root, 1)
    deriving.run(made)
    limit(deriving, "1k")
    before = made.dataset.head()
    changed = definition(made, CHANGING.replace("- 1", "- 2"))
    with pytest.raises(Unsupported, match=r"mostReadBytes \(1k\)"):
        migrate_query(
            deriving.workspace, made, changed, deriving.engine, Reporter(), MigrationOptions(choice="rebuild")
        )
    with pytest.raises(Unsupported, match=r"mostReadBytes \(1k\)"):
        rederive(deriving.workspace, made, deriving.engine, Reporter())
    assert made.dataset.head() == before
    limit(deriving, "1m")
    rederive(deriving.workspace, made, deriving.engine, Reporter())
    (row,) = made.dataset.slices()
    assert sum(batch.num_rows for batch in read_batches(made.dataset.slice_path(row))) == 99


def test_suggested_limit_is_sufficient() -> None:
    for size in (1025, 5_000, 3 << 20, (7 << 30) + 1, 5 << 40):
        error = excessive_read(size, TransformConfig(most_read_bytes="1k"))
        assert error is not None and error.hint is not None
        value = error.hint.split("mostReadBytes ")[1].split(";")[0]
        assert excessive_read(2 * size, TransformConfig(most_read_bytes=value)) is None
        assert excessive_read(4 * size + 2048, TransformConfig(most_read_bytes=value)) is not None
