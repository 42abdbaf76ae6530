"""The current state of a changelog by key."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.chain.dataset import Dataset
from odf_engine.data.changelog import Op
from odf_engine.errors import Cancelled, InvalidSchema, NotFound, OdfError, UsageError
from odf_engine.metadata.model import DEFAULT_VOCABULARY, SetInfo
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.rows.projection import Projection, build_projection, primary_key, write_projection
from odf_engine.rows.scan import Scan, ScanFile
from odf_engine.workspace.workspace import Workspace
from tests.workspace.conftest import Append

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: stations
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, schema: ["station STRING", "floor INT", "owner STRING"]}
      merge: {kind: Snapshot, primaryKey: [station, Floor]}
"""
A, R, C_FROM, C_TO = Op
Key = tuple[str | None, int]


def changes(rows: Sequence[tuple[Op, Key, str]]) -> pa.Table:
    return pa.table(
        {
            "op": pa.array([op for op, _, _ in rows], pa.uint8()),
            "station": pa.array([key[0] for _, key, _ in rows], pa.string()),
            "floor": pa.array([key[1] for _, key, _ in rows], pa.int32()),
            "owner": pa.array([owner for _, _, owner in rows], pa.string()),
        }
    )


@pytest.fixture
def stations(workspace: Workspace) -> Dataset:
    return workspace.add(read_manifests(MANIFEST, "stations.yaml"))[0].dataset


def stored(folder: Path, *tables: pa.Table) -> Scan:
    """Changes in files."""
    parts: list[ScanFile] = []
    for table in tables:
        offset = sum(part.rows for part in parts)
        offsets = pa.array(range(offset, offset + table.num_rows), pa.uint64())
        path = folder / f"{len(parts)}.parquet"
        pq.write_table(
            table.add_column(0, "offset", offsets), path, row_group_size=max(7, table.num_rows // 5)
        )
        parts.append(ScanFile(path, table.num_rows, path.name, path.name))
    return Scan(pq.read_schema(parts[0].path), DEFAULT_VOCABULARY, parts, "here")


def shown(found: Projection) -> list[tuple[Any, ...]]:
    table = pq.read_table(found.file)
    assert table["offset"].to_pylist() == sorted(table["offset"].to_pylist())
    columns = (table[name].to_pylist() for name in ("station", "floor", "owner"))
    return list(zip(*columns, strict=True))


STORY = [
    (A, ("Quay", 0), "city"),
    (A, ("Quay", 1), "harbour"),
    (A, ("Hill", 0), "city"),
    (C_FROM, ("Quay", 0), "city"),
    (C_TO, ("Quay", 0), "county"),
    (R, ("Hill", 0), "city"),
    (A, (None, 0), "nobody"),
]


def test_projection_has_the_newest_row_of_each_key(
    workspace: Workspace, stations: Dataset, append: Append
) -> None:
    append(stations, changes(STORY[:4]))
    append(stations, changes(STORY[4:]))
    found = build_projection(workspace.odf, stations, [], Reporter())
    assert found.key == ["station", "floor"]  # as the dataset writes them
    assert (found.rows, found.of) == (3, 7)
    assert shown(found) == [("Quay", 1, "harbour"), ("Quay", 0, "county"), (None, 0, "nobody")]
    assert build_projection(workspace.odf, stations, ["owner"], Reporter()).rows == 3  # Hill's took city away
    assert len(list(found.file.parent.iterdir())) == 2


def test_unchanged_rows_reuse_the_cached_projection(
    workspace: Workspace, stations: Dataset, append: Append
) -> None:
    append(stations, changes(STORY))
    found = build_projection(workspace.odf, stations, ["STATION"], Reporter())
    before = found.file.stat().st_ino
    assert build_projection(workspace.odf, stations, ["station"], Reporter()) == found
    assert found.file.stat().st_ino == before
    append(stations, changes([(A, ("Lighthouse", 0), "city")]))
    assert build_projection(workspace.odf, stations, ["station"], Reporter()).of == 8


def test_projection_continues_from_a_cached_earlier_state(
    workspace: Workspace, stations: Dataset, append: Append
) -> None:
    append(stations, changes(STORY[:4]))
    first = build_projection(workspace.odf, stations, [], Reporter())
    append(stations, changes(STORY[4:]))
    append(stations, changes([(A, ("Lighthouse", 0), "city"), (R, (None, 0), "nobody")]))
    old = stations.slice_path(stations.slices()[0])
    old.rename(old.with_name("away"))
    found = build_projection(workspace.odf, stations, [], Reporter())  # which needs the new slices only
    assert shown(found) == [("Quay", 1, "harbour"), ("Quay", 0, "county"), ("Lighthouse", 0, "city")]
    assert (found.rows, found.of) == (3, 9)
    assert build_projection(workspace.odf, stations, [], Reporter(), last_offset=3) == first
    middle = build_projection(workspace.odf, stations, [], Reporter(), last_offset=6)
    assert (middle.rows, middle.of) == (3, 7)
    none = build_projection(workspace.odf, stations, [], Reporter(), last_offset=-1)
    assert (none.rows, none.of) == (0, 0)
    # A block without rows changes nothing, and a file that is damaged is made anew.
    stations.commit([SetInfo("x")], system_time=Timestamp.now(), expected_head=stations.head())
    assert build_projection(workspace.odf, stations, [], Reporter()) == found
    old.with_name("away").rename(old)
    for each in (found.file, middle.file):
        each.unlink()
    damaged = bytearray(first.file.read_bytes())
    damaged[4:200] = bytes(196)
    first.file.write_bytes(damaged)
    assert build_projection(workspace.odf, stations, [], Reporter()) == found
    assert not first.file.exists()


def test_projection_never_continues_from_another_dataset(
    workspace: Workspace, stations: Dataset, append: Append
) -> None:
    append(stations, changes(STORY))
    build_projection(workspace.odf, stations, [], Reporter())
    text = MANIFEST.replace("name: stations", "name: others")
    other = workspace.add(read_manifests(text, "others.yaml"))[0].dataset
    append(other, changes([(A, ("Tower", 0), "king")]))
    append(other, changes([(A, ("Tower", 1), "queen")]))
    found = build_projection(workspace.odf, other, [], Reporter())
    assert shown(found) == [("Tower", 0, "king"), ("Tower", 1, "queen")]


def test_projection_can_be_built_as_of_an_event_time(
    workspace: Workspace, stations: Dataset, append: Append
) -> None:
    times = pa.array([1, 1, 2, 1, 5, 2, 9], pa.timestamp("s", "UTC")).cast(pa.timestamp("ms", "UTC"))
    append(stations, changes(STORY).append_column("event_time", times))
    found = build_projection(workspace.odf, stations, [], Reporter(), as_of=Timestamp.from_ms(4000))
    # The county took over at 5. The snapshot without the hill was published at 9, as its newest row.
    assert shown(found) == [("Quay", 0, "city"), ("Quay", 1, "harbour"), ("Hill", 0, "city")]
    assert build_projection(workspace.odf, stations, [], Reporter(), as_of=Timestamp.from_ms(4000)) == found
    later = build_projection(workspace.odf, stations, [], Reporter(), as_of=Timestamp.from_ms(5000))
    assert shown(later) == [("Quay", 1, "harbour"), ("Hill", 0, "city"), ("Quay", 0, "county")]
    assert (
        build_projection(workspace.odf, stations, ["owner"], Reporter(), as_of=Timestamp.from_ms(9000)).rows
        == 3
    )
    known = build_projection(
        workspace.odf, stations, [], Reporter(), as_of=Timestamp.from_ms(5000), last_offset=-1
    )
    assert (known.rows, known.of) == (0, 0)


@st.composite
def changelogs(draw: st.DrawFn) -> tuple[list[tuple[Op, Key, str]], dict[Key, str]]:
    """Operations that go with each other, and what they come to."""
    state: dict[Key, str] = {}
    rows: list[tuple[Op, Key, str]] = []
    keys = st.tuples(st.sampled_from(["Quay", "Hill", "", None]), st.integers(-2, 2))
    owners = st.text("ab'\n", max_size=3)
    for _ in range(draw(st.integers(1, 25))):
        key = draw(keys)
        if key not in state:
            state[key] = draw(owners)
            rows.append((A, key, state[key]))
        elif draw(st.booleans()):
            rows.append((R, key, state.pop(key)))
        else:
            rows.append((C_FROM, key, state[key]))
            state[key] = draw(owners)
            rows.append((C_TO, key, state[key]))
    return rows, state


@given(changelogs(), st.integers(1, 50))
@settings(max_examples=25, deadline=None)
def test_any_changelog_gives_the_expected_latest_state(log: tuple[list, dict], cut: int) -> None:
    rows, state = log
    with tempfile.TemporaryDirectory() as folder:
        parts = [changes(part) for part in (rows[:cut], rows[cut:]) if part]
        log_ = stored(Path(folder), *parts)
        path = Path(folder) / "state.parquet"
        found = write_projection(path, log_, ["station", "floor"], Reporter())
        assert {(station, floor): owner for station, floor, owner in shown(found)} == state
        assert (found.rows, found.of) == (len(state), len(rows))


def test_unknown_or_missing_key_is_refused(workspace: Workspace, stations: Dataset, append: Append) -> None:
    append(stations, changes(STORY))
    with pytest.raises(InvalidSchema, match="column 'town' not found") as error:
        build_projection(workspace.odf, stations, ["town"], Reporter())
    assert "station" in (error.value.hint or "")
    bare = workspace.add(
        read_manifests(MANIFEST.partition("    - kind")[0].replace("stations", "b") + "    []", "b")
    )
    assert primary_key(bare[0].dataset.state()) == []
    with pytest.raises(UsageError, match="no primary key"):
        build_projection(workspace.odf, bare[0].dataset, [], Reporter())
    with pytest.raises(NotFound, match="no rows yet"):
        build_projection(workspace.odf, bare[0].dataset, ["station"], Reporter())
    with pytest.raises(NotFound, match="no rows yet"):
        build_projection(workspace.odf, bare[0].dataset, [], Reporter(), as_of=Timestamp.now())


def test_sources_with_different_keys_give_no_primary_key(workspace: Workspace) -> None:
    other = MANIFEST.replace("stations", "two") + MANIFEST[MANIFEST.index("    - kind") :].replace(
        "default", "second"
    ).replace("[station, Floor]", "[owner]")
    two = workspace.add(read_manifests(other, "two.yaml"))[0].dataset
    assert len(two.state().push_sources) == 2
    assert primary_key(two.state()) == []


def test_cancelled_projection_leaves_no_files(
    workspace: Workspace, stations: Dataset, append: Append
) -> None:
    append(stations, changes(STORY))
    reporter = Reporter()
    reporter.phase = lambda name: reporter.cancel() if name == "write" else None  # type: ignore[method-assign]
    with pytest.raises(Cancelled):
        build_projection(workspace.odf, stations, [], reporter)
    assert list((workspace.odf / "cache" / "projections").iterdir()) == []


def test_unwritable_cache_is_reported(workspace: Workspace, stations: Dataset, append: Append) -> None:
    append(stations, changes(STORY))
    (workspace.odf / "cache").write_text("not a folder")
    with pytest.raises(OdfError, match="cannot be written"):
        build_projection(workspace.odf, stations, [], Reporter())
