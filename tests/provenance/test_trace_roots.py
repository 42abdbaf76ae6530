"""Where rows of root datasets come from: sources, versions, files, and the earlier rows they take back."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.derive.provenance.model import (
    MAX_TRACE_RANGES,
    RowSource,
    TracedInput,
    TraceStep,
    merge_nearest_ranges,
    truncate_trace,
)
from odf_engine.derive.provenance.trace import Tracer
from odf_engine.errors import UsageError
from odf_engine.metadata.model import (
    AddPushSource,
    Append,
    CompressionFormat,
    Container,
    Csv,
    Decompress,
    DisablePollingSource,
    DisablePushSource,
    EthereumLogs,
    FilesGlob,
    Ledger,
    MergeStrategy,
    Mqtt,
    MqttTopicSubscription,
    NdJson,
    Pipe,
    SetPollingSource,
    Snapshot,
    SourceState,
    Sql,
    SqlQueryStep,
    Url,
)
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.derive.deriving import Deriving

R, CF, CT = 1, 2, 3
ETAG, CHANGED = "odf/etag", "odf/last-modified"


class Rooted(Deriving):
    """Roots alone: no Spark is needed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Workspace.init(folder), cast("Any", None))
        self.state: SourceState | None = None

    def commit(self, entry: DatasetEntry, events: list[Any], *more: Any, **named: Any) -> None:
        """With the state of the source as it was told last."""
        told = [replace(event, new_source_state=self.state) if hasattr(event, "new_source_state") else event
                for event in events]  # fmt: skip
        super().commit(entry, told, *more, **named)

    def trace(self, entry: DatasetEntry, *runs: tuple[int, int], column: str | None = None) -> TraceStep:
        return Tracer(self.workspace, cast("Any", None), Reporter()).trace(entry, runs, column)


@pytest.fixture
def rooted(tmp_path: Path) -> Rooted:
    return Rooted(tmp_path / "a [b] {c}*d 100%")


def polling(fetch: Any, merge: MergeStrategy | None = None, **more: Any) -> SetPollingSource:
    return SetPollingSource(fetch=fetch, read=Csv(header=True), merge=merge or Append(), **more)


def test_each_row_has_the_source_of_its_time(rooted: Rooted) -> None:
    root = rooted.root()
    query = Sql(engine="spark", queries=[SqlQueryStep(query="SELECT *,\n x AS y FROM input")])
    steps = [Decompress(CompressionFormat.Gzip), Pipe(["jq", "."])]
    old = polling(Url("https://a.example/x.csv"), Ledger(["city"]), prepare=steps, preprocess=query)
    rooted.commit(root, [old])
    rooted.state = SourceState("default", ETAG, '"v1"')
    rooted.rows(root, (1, "a", 1), (1, "b", 2))
    rooted.state = SourceState("default", CHANGED, "2024-02-03T00:00:00Z")
    rooted.rows(root, (2, "c", 3))
    rooted.commit(root, [polling(FilesGlob("in/*.csv"))])
    rooted.state = SourceState("default", ETAG, "b.csv\tf1220" + "0" * 64)
    rooted.rows(root, (3, "d", 4))
    rooted.state = SourceState("default", ETAG, "b.csv\tf1220" + "1" * 64 + "\ta.csv")
    rooted.rows(root, (3, "e", 5))
    rooted.commit(root, [polling(Container("busybox:1", ["cat"], ["x y"]))])
    rooted.state = None
    rooted.rows(root, (4, "f", 6))
    rooted.commit(root, [polling(Mqtt(host="h", port=1883, topics=[MqttTopicSubscription("t/#")]))])
    rooted.rows(root, (5, "g", 7))
    logs = EthereumLogs(1, "https://jane:secret@node", filter="block_number\n > 5")
    rooted.commit(root, [polling(logs)])
    rooted.state = SourceState("default", ETAG, "20@" + "0" * 64)
    rooted.rows(root, (6, "h", 8))

    step = rooted.trace(root, (1, 3), (3, 7))
    assert (step.kind, step.runs, step.rows, step.exact, step.feeds) == ("root", [(1, 7)], 7, True, [])
    assert [
        (source.kind, source.place, source.state.partition(", ")[0], source.runs) for source in step.sources
    ] == [
        ("polling", "https://a.example/x.csv", 'ETag "v1"', [(1, 1)]),
        ("polling", "https://a.example/x.csv", "changed at 2024-02-03T00:00:00Z", [(2, 2)]),
        ("polling", "in/b.csv", "file b.csv", [(3, 3)]),
        ("polling", "in/a.csv", "file a.csv", [(4, 4)]),
        ("polling", "container busybox:1 cat x y", "", [(5, 5)]),
        ("polling", "mqtt://h:1883 t/#", "", [(6, 6)]),
        (
            "polling",
            "logs of the Ethereum chain 1 at https://node block_number > 5",
            "up to block 20",
            [(7, 7)],
        ),
    ]
    assert step.sources[0].steps == [
        "fetched from https://a.example/x.csv",
        "unpacked (gzip)",
        "piped through: jq .",
        "read as CSV, header",
        "query (spark): SELECT *, x AS y FROM input",
        "appended where city was new",
    ]
    slices = root.dataset.slices()
    assert [source.block for source in step.sources] == [
        str(root.dataset.block(each.sequence_number).hash) for each in slices
    ]
    assert [source.ingested for source in step.sources] == [str(each.system_time) for each in slices]
    assert step.how == ["7 rows appended (+A)"]


def test_pushed_rows_trace_to_the_active_push_sources(rooted: Rooted) -> None:
    root = rooted.root()
    push = AddPushSource(source_name="hand", read=NdJson(schema=["x BIGINT"]), merge=Append())
    rooted.commit(root, [push])
    rooted.rows(root, (1, "a", 1))
    rooted.commit(root, [replace(push, source_name="other")])
    rooted.rows(root, (2, "b", 2))
    rooted.commit(root, [DisablePushSource("hand")])
    rooted.rows(root, (3, "c", 3))
    rooted.commit(root, [DisablePushSource("other"), polling(Url("https://a.example/x"))])
    rooted.state = SourceState("default", ETAG, '"1"')
    rooted.rows(root, (4, "d", 4))
    rooted.commit(root, [DisablePollingSource()])
    sources = rooted.trace(root, (0, 3)).sources
    assert [(each.kind, each.name, each.place) for each in sources] == [
        ("push", "hand", ""),
        ("push", "", ""),
        ("push", "other", ""),
        ("polling", "", "https://a.example/x"),
    ]
    assert sources[0].steps == [
        "pushed to the source 'hand'", "read as JSON, one object per line", "appended to the existing rows"
    ]  # fmt: skip
    assert sources[1].steps == [
        "pushed to the source 'hand' or pushed to the source 'other': the chain does not record which one"
    ]
    nameless = rooted.root("nameless")
    rooted.rows(nameless, (1, "a", 1))
    (source,) = rooted.trace(nameless, (0, 0)).sources
    assert source.kind == "unknown" and "has no source" in source.steps[0]


def test_retractions_and_corrections_trace_to_earlier_rows(rooted: Rooted) -> None:
    """Those that a row takes back or replaces: by the key of the source, or else by all values."""
    root = rooted.root()
    rooted.commit(root, [polling(Url("https://a.example/x"), Snapshot(["city"]))])
    rooted.rows(root, (1, "a", 1), (1, "b", 2), (1, None, 3))
    rooted.rows(root, (1, "a", 1, CF), (2, "a", 10, CT), (2, None, 3, R))
    rooted.rows(root, (2, "a", 10, CF), (3, "a", 11, CT), (3, "c", 1))
    rooted.rows(root, (4, "a", 11, R), (4, "b", 2, R))
    assert rooted.trace(root, (0, 2)).earlier == []
    assert rooted.trace(root, (4, 4)).earlier == [(0, 0)]
    pair = rooted.trace(root, (3, 4))
    assert (pair.earlier, pair.how) == (
        [(0, 0)],
        ["1 row corrected, old values (-C)", "1 row corrected, new values (+C)"],
    )
    assert rooted.trace(root, (5, 5)).earlier == [(2, 2)]
    assert rooted.trace(root, (7, 7)).earlier == [(4, 4)]
    assert rooted.trace(root, (9, 10)).earlier == [(1, 1), (7, 7)]
    assert rooted.trace(root, (8, 8)).earlier == []

    loose = rooted.root("loose")
    rooted.rows(loose, (1, "a", 1), (1, "a", 2), (1, "a", 1))
    rooted.rows(loose, (1, "a", 2, CF), (1, "a", 3, CT), (1, "a", 1, R), (1, "z", 9, R))
    assert rooted.trace(loose, (4, 4)).earlier == [(1, 1)]
    assert rooted.trace(loose, (5, 5)).earlier == [(2, 2)]
    assert rooted.trace(loose, (6, 6)).earlier == []


def test_unknown_rows_and_columns_are_rejected(rooted: Rooted) -> None:
    root = rooted.root()
    with pytest.raises(UsageError, match="has no rows yet"):
        rooted.trace(root, (0, 0))
    rooted.rows(root, (1, "a", 1), (1, "b", 2))
    for runs, message in (
        ([(2, 2)], "input has no row 2: its offsets are 0 to 1"),
        ([(0, 7)], "input has no row 7"),
        ([(1, 0)], "the first is after the last"),
        ([(-1, 0)], "has no row -1"),
        ([], "no rows specified"),
    ):
        with pytest.raises(UsageError, match=message):
            rooted.trace(root, *runs)
    with pytest.raises(UsageError, match="has no column 'citty'") as error:
        rooted.trace(root, (0, 0), column="citty")
    assert error.value.hint == "did you mean city?"
    assert rooted.trace(root, (0, 0), column="CITY").rows == 1
    with pytest.raises(UsageError, match="at least 1"):
        Tracer(rooted.workspace, cast("Any", None), Reporter()).trace(root, [(0, 0)], depth=0)


def test_large_traces_are_truncated() -> None:
    scattered = [(at * 10, at * 10 + (at % 3)) for at in range(30_000)]
    assert merge_nearest_ranges([(0, 1), (4, 4), (6, 9), (20, 20)], 2) == [(0, 9), (20, 20)]
    assert merge_nearest_ranges([(0, 1), (4, 4)], 2) == [(0, 1), (4, 4)]
    source = RowSource("block", "push", "x", "", "", "", [], [(0, 0)])
    root = TraceStep("b", "b", "root", scattered, 60_000, sources=[source] * 1_500)
    step = truncate_trace(
        TraceStep(
            "a",
            "a",
            "derivative",
            [(0, 0)],
            1,
            feeds=[TracedInput("b", "b", "b", scattered, 60_000, step=root)],
        )
    )
    (feed,) = step.feeds
    assert len(feed.runs) <= MAX_TRACE_RANGES and feed.rows == 60_000
    assert not step.exact and "the ranges include other rows" in str(step.reason)
    assert feed.step is not None and (feed.step.exact, len(feed.step.sources)) == (True, 1_000)
    assert feed.step.how == ["500 older blocks with some of the rows are omitted"]
    assert truncate_trace(step) == step


def test_recorded_push_source_and_key_are_traced(rooted: Rooted) -> None:
    root = rooted.root()
    push = AddPushSource(source_name="hand", read=NdJson(schema=["x BIGINT"]), merge=Append())
    rooted.commit(root, [push, replace(push, source_name="other")])
    rooted.state = SourceState("other", "odf/payload-hash", "f1220ab\t2024-01-01T00:00:00Z")
    rooted.rows(root, (1, "a", 1))
    rooted.state = SourceState("hand", "odf/idempotency-key", "k1")
    rooted.rows(root, (2, "b", 2))
    sources = rooted.trace(root, (0, 1)).sources
    assert [(source.kind, source.name, source.state, source.steps[0]) for source in sources] == [
        (
            "push",
            "other",
            "payload SHA2-256 ab, event time 2024-01-01T00:00:00Z",
            "pushed to the source 'other'",
        ),
        ("push", "hand", "idempotency key k1", "pushed to the source 'hand'"),
    ]
