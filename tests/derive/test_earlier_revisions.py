"""Chains whose transactions were written by earlier rules of the Spark engine."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.chain.normal_form import spark_engine_version
from odf_engine.derive.run import rederive
from odf_engine.derive.verify import replay
from odf_engine.engines.spark_engine import SparkEngine
from odf_engine.engines.stateful.checkpoint import (
    CheckpointMetadata,
    read_checkpoint,
    write_checkpoint,
)
from odf_engine.errors import OdfError, StateUnusable, Unsupported
from odf_engine.metadata.model import ExecuteTransform, SetTransform, TransformRequest
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.engine_versions import other_versions
from tests.derive.deriving import Deriving, earlier_rules
from tests.derive.test_as_of_corrections import OUTER
from tests.derive.test_query_migration import becomes
from tests.derive.test_recompute import QUERIES, recompute
from tests.derive.test_replay import check
from tests.derive.test_stateful import CF, CT, R
from tests.log_lines import LogLines

MINIMUM = QUERIES["grouping"]
UNBOUNDED = "SELECT t.event_time, t.city, t.x, r.x AS rate FROM trades t JOIN rates r ON t.city = r.city"
OPEN = ("window", "session")
"""Queries that drop corrections of rows before the watermark."""
FINAL = ("left join", "running", "ranked")
"""Queries that do not support corrections."""


class OtherRules(SparkEngine):
    """Runs another query than the request has, as if its rules returned other rows."""

    query = MINIMUM.replace("FROM trades", "FROM trades WHERE x < 5")

    def run(self, operation: Any, request: TransformRequest, declared: Any, reporter: Reporter) -> Any:
        steps = [replace((request.transform.queries or [])[-1], query=self.query)]
        request = replace(request, transform=replace(request.transform, queries=steps))
        return super().run(operation, request, declared, reporter)


def derive(deriving: Deriving, name: str) -> DatasetEntry:
    """Create a derivative of new root datasets."""
    query = {**QUERIES, "unbounded": UNBOUNDED, "as of": OUTER}[name]
    inputs = [root for root in ("trades", "rates") if re.search(rf"(FROM|JOIN) {root}\b", query)]
    for each in inputs:
        deriving.root(each)
    keys = {"rates": "city"} if name == "as of" else {}
    return deriving.derivative(query, *inputs, **keys)


def commit_rows(deriving: Deriving, day: float, *trades: tuple[Any, ...]) -> None:
    for root in deriving.workspace.datasets():
        if root.alias.name == "rates":
            deriving.rows(deriving.workspace.resolve(root.alias.name), (day, "a", day * 10), (day, "b", 7))
    deriving.rows(deriving.workspace.resolve("trades"), *trades)


def versions(entry: DatasetEntry) -> list[str | None]:
    """Return the engine version of each transaction, oldest first."""
    found: list[str | None] = []
    version = None
    for stored in reversed(list(entry.dataset.blocks())):
        event = stored.block.event
        if isinstance(event, SetTransform):
            version = event.transform.version
        elif isinstance(event, ExecuteTransform):
            found.append(version)
    return found


@pytest.mark.parametrize(
    "name", ["stateless", "window", "unbounded", "session", "grouping", "left join", "ranked", "as of"]
)
@pytest.mark.complete(after=3)
def test_pull_continues_with_a_recomputed_state(deriving: Deriving, runtime: SparkRuntime, name: str) -> None:
    with earlier_rules(5) as old:
        entry = derive(deriving, name)
        commit_rows(deriving, 1, (1, "a", 1), (1, "b", 8))
        commit_rows(deriving, 2, (2, "a", 3), (2.5, "b", 5))
        deriving.run(entry)
    commit_rows(deriving, 3, (3, "a", 6), (3.25, "b", 4))
    if name not in FINAL:
        corrected = [] if name in OPEN else [(2, "a", 3, CF), (2, "a", 9, CT)]
        deriving.rows(deriving.workspace.resolve("trades"), *corrected, (3, "a", 6, R))
    deriving.run(entry, log := LogLines())
    is_stateful = name != "stateless"
    assert any("computing the state again" in line for line in log.lines) == is_stateful
    commit_rows(deriving, 4, (4, "a", 2), (4, "b", 2))
    commit_rows(deriving, 9, (9, "z", 0))
    deriving.run(entry, log := LogLines())
    assert not any("computing the state again" in line for line in log.lines)

    result = recompute(deriving, entry, runtime)
    assert (result.missing, result.extra, result.differences) == (0, 0, []) and result.rows > 0
    new = spark_engine_version()
    assert versions(entry) == [old, new, new]
    assert other_versions(entry.dataset, ()) == [f"spark {old}"]
    report = check(deriving, entry)
    assert (report.findings, report.unchecked, report.transforms) == ([], [], 3)


def test_rows_of_other_rules_are_reported_and_not_continued(
    deriving: Deriving, runtime: SparkRuntime
) -> None:
    with earlier_rules(5) as old:
        entry = derive(deriving, "grouping")
        commit_rows(deriving, 1, (1, "a", 1), (1, "b", 8))
        present, deriving.engine = deriving.engine, OtherRules(runtime)
        deriving.run(entry)
        deriving.engine = present
    new = spark_engine_version()
    findings = check(deriving, entry).findings
    assert {finding.kind for finding in findings} == {"transform-version"}
    finding = findings[-1]
    assert f"(stored by {old}, replayed by {new})" in finding.message
    assert "odf pull --rederive output" in finding.message
    commit_rows(deriving, 2, (2, "b", 9))
    head = entry.dataset.state().head
    with pytest.raises(Unsupported, match="and the query now returns other rows") as raised:
        deriving.run(entry)
    assert f"written by version {old} of the engine, but this is {new}" in str(raised.value)
    assert "odf pull --rederive output" in str(raised.value.hint)
    assert entry.dataset.state().head == head

    rederive(deriving.workspace, entry, deriving.engine, Reporter())
    assert recompute(deriving, entry, runtime).is_equal
    assert check(deriving, entry).findings == [] and versions(entry) == [new]


def test_replay_of_a_query_that_is_no_longer_valid_accuses_no_file(
    deriving: Deriving, runtime: SparkRuntime
) -> None:
    deriving.root("trades")
    with earlier_rules(5) as old:
        entry = deriving.derivative("SELECT event_time, missing FROM trades", "trades")
        deriving.rows(deriving.workspace.resolve("trades"), (1, "a", 1))
        present, deriving.engine = deriving.engine, OtherRules(runtime)
        deriving.run(entry)
        deriving.engine = present
    (finding,) = check(deriving, entry).findings
    assert finding.kind == "transform-version" and f"stored by {old}" in finding.message
    assert "and the replay failed: " in finding.message and "missing" in finding.message


@pytest.mark.complete
def test_pending_rows_of_an_earlier_state_are_flushed(deriving: Deriving) -> None:
    with earlier_rules(5):
        entry = derive(deriving, "window")
        deriving.rows(deriving.workspace.resolve("trades"), (1, "a", 1), (2.5, "b", 8))
        deriving.run(entry)
    changed = QUERIES["window"].replace("1 day", "2 days")
    assert becomes(deriving, entry, changed, "trades", choice="flush").state == "flushed"
    assert deriving.result(entry, "city", "s") == [("a", 1), ("b", 8)]
    assert check(deriving, entry).findings == []


def test_result_of_an_earlier_state_is_not_compared_with_a_new_query(deriving: Deriving) -> None:
    with earlier_rules(5):
        entry = derive(deriving, "unbounded")
        commit_rows(deriving, 1, (1, "a", 1))
        deriving.run(entry)
    with pytest.raises(StateUnusable, match=r"\+odf5 of the engine, but this is") as raised:
        becomes(deriving, entry, f"{UNBOUNDED} WHERE t.x > 0", "trades", "rates", choice="rebuild")
    assert "odf pull --rederive" in str(raised.value.hint)


@pytest.mark.parametrize(("number", "error"), [(1, StateUnusable), (3, Unsupported)])
def test_checkpoint_in_another_format_is_not_read(tmp_path: Path, number: int, error: type[OdfError]) -> None:
    metadata = CheckpointMetadata(
        format=number, engine="4.1.0+odf1", query="q", state="s", watermarks={}, watermark=None
    )
    write_checkpoint(tmp_path / "checkpoint", metadata, tmp_path / "state")
    with pytest.raises(error, match=r"4\.1\.0\+odf1") as raised:
        read_checkpoint(tmp_path / "checkpoint", tmp_path / "read")
    assert type(raised.value) is error and raised.value.hint


@pytest.mark.parametrize("is_earlier", [True, False], ids=["earlier rules", "present rules"])
def test_another_watermark_is_no_finding_for_earlier_rules(
    deriving: Deriving, monkeypatch: pytest.MonkeyPatch, is_earlier: bool
) -> None:
    with earlier_rules(5) if is_earlier else nullcontext():
        entry = derive(deriving, "stateless")
        commit_rows(deriving, 1, (1, "a", 1))
        deriving.run(entry)
    monkeypatch.setattr(replay, "output_watermark", lambda transaction, result: Timestamp.from_ms(0))
    report = check(deriving, entry)
    assert report.valid == is_earlier
    (finding,) = report.unchecked if is_earlier else report.findings
    assert finding.kind == ("transform-version" if is_earlier else "transform-watermark")
    assert "the watermark is" in finding.message
