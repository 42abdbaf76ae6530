"""Where rows come from, through datasets of datasets: values, missing inputs, rows of somebody else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from odf_engine.base.progress import Reporter
from odf_engine.data.ddl import parse_ddl
from odf_engine.derive.provenance.step import TransactionTrace
from odf_engine.derive.provenance.trace import Tracer
from odf_engine.derive.provenance.trace_check import check_trace
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_folders import ORIGIN_FILE
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.derive.deriving import Deriving

R, CF, CT = 1, 2, 3
MAP = "SELECT event_time, upper(city) AS town, x * 10 AS y, 7 AS seven FROM input WHERE x <> 2"
BOTH = "SELECT event_time, town, y FROM doubled UNION ALL SELECT event_time, city AS town, 0 AS y FROM other"


@pytest.fixture(scope="module")
def deriving(tmp_path_factory: pytest.TempPathFactory, runtime: SparkRuntime) -> Deriving:
    """input -> doubled, doubled + other -> output; no test changes anything."""
    deriving = Deriving(Workspace.init(tmp_path_factory.mktemp("w") / "a [b] {c}*d 100%"), runtime)
    root, other = deriving.root(), deriving.root("other")
    doubled = deriving.derivative(MAP, name="doubled")
    made = deriving.derivative(BOTH, "doubled", "other")
    deriving.rows(root, (1, "a", 1), (1, "b", 2))
    deriving.rows(other, (1, "z", 5))
    deriving.run(doubled)
    deriving.run(made)
    deriving.rows(root, (1, "a", 1, CF), (2, "a", 3, CT), (2, "c", 4))
    deriving.run(doubled)
    deriving.run(made)
    return deriving


@pytest.fixture
def made(deriving: Deriving) -> DatasetEntry:
    return deriving.workspace.resolve("output")


@pytest.fixture
def copied(deriving: Deriving, runtime: SparkRuntime, tmp_path: Path) -> Deriving:
    """A copy of it, to be changed."""
    shutil.copytree(deriving.workspace.folder, tmp_path / "copy")
    return Deriving(Workspace(tmp_path / "copy"), runtime)


@pytest.fixture
def own(tmp_path: Path, runtime: SparkRuntime) -> Deriving:
    return Deriving(Workspace.init(tmp_path / "own"), runtime)


class Tracing:
    """Traces with a Spark, and says how often it was asked for."""

    def __init__(self, deriving: Deriving, runtime: SparkRuntime) -> None:
        self.tracer = Tracer(deriving.workspace, self._spark, Reporter())
        self._runtime = runtime
        self.asked = 0

    def _spark(self, _: Reporter) -> SparkRuntime:
        self.asked += 1
        return self._runtime


def test_trace_reaches_sources_through_derivatives(
    deriving: Deriving, runtime: SparkRuntime, made: DatasetEntry
) -> None:
    assert deriving.result(made, "op", "town", "y") == [
        (0, "A", 10), (0, "z", 0), (CF, "A", 10), (CT, "A", 30), (0, "C", 40)
    ]  # fmt: skip
    tracing = Tracing(deriving, runtime)
    step = tracing.tracer.trace(made, [(0, 1)])
    assert (step.kind, step.name, step.exact, step.rows) == ("derivative", "output", True, 2)
    assert [(each.sequence_number, each.runs) for each in step.made] == [(3, [(0, 1)])]
    assert step.made[0].query[0][1].startswith("SELECT event_time, town, y FROM doubled")
    assert [(feed.alias, feed.name, feed.runs, feed.columns) for feed in step.feeds] == [
        ("doubled", "doubled", [(0, 0)], []), ("other", "other", [(0, 0)], [])
    ]  # fmt: skip
    inner = step.feeds[0].step
    assert inner is not None and (inner.kind, inner.name, inner.runs) == ("derivative", "doubled", [(0, 0)])
    root = inner.feeds[0].step
    assert root is not None and (root.kind, root.runs) == ("root", [(0, 0)])
    assert root.sources[0].runs == [(0, 0)]

    # A correction has both rows of the one before, and the row that it takes back.
    step = tracing.tracer.trace(made, [(3, 3)], depth=1)
    assert [(feed.runs, feed.step) for feed in step.feeds] == [([(1, 2)], None)]
    assert (step.earlier, step.how[0]) == ([(0, 0)], "1 row corrected, new values (+C)")
    # Two transactions at once.
    step = tracing.tracer.trace(made, [(0, 0), (4, 4)], depth=2)
    assert [len(each.runs) for each in step.made] == [1, 1]
    assert [feed.runs for feed in step.feeds] == [[(0, 0), (3, 3)]]
    assert step.feeds[0].step is not None and [
        (feed.runs, feed.step) for feed in step.feeds[0].step.feeds
    ] == [([(0, 0), (4, 4)], None)]
    before = tracing.asked
    root = tracing.tracer.trace(deriving.workspace.resolve("input"), [(2, 3)])
    assert (root.earlier, tracing.asked) == ([(0, 0)], before)


def test_trace_of_a_value_names_contributing_columns(
    deriving: Deriving, runtime: SparkRuntime, made: DatasetEntry
) -> None:
    tracer = Tracing(deriving, runtime).tracer
    step = tracer.trace(made, [(0, 1)], "Y")
    assert [(feed.alias, feed.columns) for feed in step.feeds] == [("doubled", [("y", "identity")])]
    assert step.how[-1] == "no value of y comes from other, whose rows decide which rows the result has"
    inner = step.feeds[0].step
    assert inner is not None and [feed.columns for feed in inner.feeds] == [[("x", "transformation")]]
    doubled = deriving.workspace.resolve("doubled")
    constant = tracer.trace(doubled, [(0, 0)], "seven", depth=1)
    assert constant.how[-1] == "no input column contributes to seven: it depends only on which rows exist"
    assert [(feed.runs, feed.columns) for feed in constant.feeds] == [([(0, 0)], [])]
    whole = tracer.trace(made, [(0, 0)], "offset", depth=1)
    assert [feed.columns for feed in whole.feeds] == [[]]


@pytest.mark.parametrize("window", ["", "window(event_time, '1 day'), "])
@pytest.mark.complete(after=1)
def test_rows_that_differ_by_a_microsecond_are_traced_separately(
    own: Deriving, runtime: SparkRuntime, window: str
) -> None:
    root = own.root(schema=parse_ddl(["event_time TIMESTAMP", "at TIMESTAMP(6)"]))
    columns = f"SELECT {'window.start' if window else 'max(event_time)'} AS event_time, at, count(*) AS n"
    output = own.derivative(f"{columns} FROM input GROUP BY {window}at")
    for day in range(2):
        times = pa.array([day * 86_400_000] * 4, pa.timestamp("ms", "UTC"))
        micros = pa.array([1, 2, 1, 3], pa.timestamp("us", "UTC"))
        own.batch(root, pa.record_batch({"event_time": times, "at": micros}), day * 86_400_000)
    own.run(output)
    row, *_ = [row for row, (at, _) in enumerate(own.result(output, "at", "n")) if at.microsecond == 1]
    step = Tracing(own, runtime).tracer.trace(output, [(row, row)])
    assert step.exact and [feed.runs for feed in step.feeds] == [[(0, 0), (2, 2)]]


def test_trace_reports_missing_inputs_and_slices(copied: Deriving, runtime: SparkRuntime) -> None:
    """The trace goes as far as it can, and says what to pull."""
    workspace = copied.workspace
    made = workspace.resolve("output")
    root = workspace.resolve("input")
    (slice_,) = root.dataset.slices(0, 0)
    root.dataset.slice_path(slice_).unlink()
    tracer = Tracing(copied, runtime).tracer
    doubled = tracer.trace(made, [(0, 0)]).feeds[0].step
    assert doubled is not None and not doubled.exact and doubled.reason is not None
    assert [feed.runs for feed in doubled.feeds] == [[(0, 1)]]  # all that it can have been
    ended = doubled.feeds[0].step
    assert ended is not None and ended.problem is not None and "file not found" in ended.problem

    gone = workspace.resolve("other")
    folder = gone.dataset.folder
    folder.rename(folder.with_name(folder.name + "x"))
    step = Tracer(Workspace(workspace.folder), lambda _: runtime, Reporter()).trace(made, [(1, 1)])
    feeds = {feed.alias: feed for feed in step.feeds}
    assert not step.exact and feeds["other"].missing and feeds["other"].runs == [(0, 0)]
    problem = feeds["other"].step and feeds["other"].step.problem
    assert problem is not None and "pull it to continue" in problem and str(gone.id) in problem


def test_trace_of_third_party_query_requests_a_sandbox(
    copied: Deriving, runtime: SparkRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run where their verification runs, and nowhere else."""
    made = copied.workspace.resolve("output")
    (made.dataset.folder / ORIGIN_FILE).write_text("https://elsewhere.example")
    shut_in: list[str] = []

    def no_walls(*_: object, **__: object) -> None:
        shut_in.append("asked")

    monkeypatch.setattr("odf_engine.engines.sandbox.find_program", no_walls)
    tracer = Tracing(copied, runtime).tracer
    step = tracer.trace(made, [(3, 3)], depth=1)
    assert (step.exact, [feed.runs for feed in step.feeds], shut_in) == (True, [[(1, 2)]], ["asked"])
    assert tracer.check_newest_step(made, step)[0].startswith("yes: ") and len(shut_in) > 1


def test_trace_check_finds_a_wrong_answer(
    deriving: Deriving, runtime: SparkRuntime, made: DatasetEntry
) -> None:
    tracer = Tracing(deriving, runtime).tracer
    step = tracer.trace(made, [(4, 4)], depth=1)
    assert [line.partition(":")[0] for line in tracer.check_newest_step(made, step)] == ["yes", "yes"]
    (block,) = step.made
    feeds = [("doubled", step.feeds[0].dataset, [(1, 2)]), ("other", "", [])]
    wrong = TransactionTrace(block, True, None, feeds, [])
    said = check_trace(deriving.workspace, made, [wrong], deriving.engine, Reporter())
    assert said == [
        "no: with these rows alone, the query returns other rows",
        "no: without these rows, the query still returns the traced rows",
    ]
    root = tracer.trace(deriving.workspace.resolve("input"), [(0, 0)])
    assert tracer.check_newest_step(deriving.workspace.resolve("input"), root)[0].startswith("not checked: ")
