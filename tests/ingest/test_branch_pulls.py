"""Pulls and transforms into a branch, with the checks and the source state of the branch."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from odf_engine.chain.references import create_branch, promote_branch
from odf_engine.derive.plan import Diverged
from odf_engine.derive.promotion import promote
from odf_engine.derive.provenance.trace import Tracer
from odf_engine.derive.run import transform
from odf_engine.derive.verify.integrity import verify
from odf_engine.derive.verify.replay import Replay
from odf_engine.derive.verify.report import dataset_origins
from odf_engine.engines.spark_engine import SparkEngine
from odf_engine.errors import CheckFailed, Conflict
from odf_engine.metadata.yaml import read_manifests
from tests.ingest.pulling import Pulled
from tests.ingest.test_checks import DERIVED, SOURCE, add, rows

DAY = "2024-01-01"


@pytest.mark.spark
def test_branch_pull_leaves_the_head_until_promotion(pulled: Pulled) -> None:
    entry = pulled.add(SOURCE)
    pulled.write("in/1.ndjson", rows((1, "a", 1, DAY)))
    pulled.pull()
    head = entry.dataset.state().head
    create_branch(entry.dataset, "staging", head)
    add(pulled, "good", "data", "- {kind: Range, column: value, max: 5}\n- {kind: Unique, columns: [id]}")

    # The source state is that of the branch; the head does not move.
    branch = pulled.entry = entry.on_branch("staging")
    pulled.write("in/2.ndjson", rows((2, "b", 2, DAY)))
    assert pulled.pull().records == 1
    assert pulled.pull().status == "up-to-date"
    assert (entry.dataset.state().head, branch.dataset.state().records) == (head, 2)

    # A bad batch does not get into the branch; rows of the branch are compared with its own rows.
    pulled.write("in/3.ndjson", rows((3, "c", 9, DAY)))
    before = branch.dataset.head()
    with pytest.raises(CheckFailed, match="above 5"):
        pulled.pull()
    pulled.write("in/3.ndjson", rows((2, "c", 1, DAY)))
    with pytest.raises(CheckFailed, match="repeated"):
        pulled.pull()
    assert branch.dataset.head() == before
    pulled.write("in/3.ndjson", rows((3, "c", 3, DAY)))
    pulled.pull()
    assert verify(branch.dataset, pulled.reporter).valid

    # A derivative dataset reads the head of its input, also into a branch.
    (derived,) = pulled.workspace.add(read_manifests(DERIVED, "derived.yaml"))
    create_branch(derived.dataset, "next", derived.dataset.state().head)
    engine = SparkEngine(pulled.runtime)
    transform(pulled.workspace, derived.on_branch("next"), engine, pulled.reporter)
    assert derived.on_branch("next").dataset.state().records == 1

    promoted = promote_branch(entry.dataset, "staging")
    assert (promoted.old_head, promoted.blocks, promoted.records) == (head, 2, 2)
    pulled.entry = replace(entry)
    assert pulled.pull().status == "up-to-date"
    assert pulled.rows("offset", "id") == [(0, 1), (1, 2), (2, 3)]
    transform(pulled.workspace, derived.on_branch("next"), engine, pulled.reporter)
    assert derived.dataset.state().records == 0
    assert promote_branch(derived.dataset, "next").records == 3


SUM = """
kind: DatasetSnapshot
version: 1
content:
  name: derived
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: data}, {datasetRef: other}]
      transform:
        kind: Sql
        engine: spark
        query: SELECT event_time, id FROM data UNION ALL SELECT event_time, id FROM other
"""


@pytest.mark.spark
def test_branch_derived_from_branches_of_inputs_is_promoted_after_them(pulled: Pulled) -> None:
    workspace, engine = pulled.workspace, SparkEngine(pulled.runtime)
    pulled.add(SOURCE.replace("in/", "other/"), name="other")
    pulled.write("other/1.ndjson", rows((7, "z", 1, DAY)))
    pulled.pull()
    source = pulled.add(SOURCE)
    pulled.write("in/1.ndjson", rows((1, "a", 1, DAY)))
    pulled.pull()
    (derived,) = workspace.add(read_manifests(SUM, "derived.yaml"))
    transform(workspace, derived, engine, pulled.reporter)
    for entry in (source, derived):
        create_branch(entry.dataset, "review", entry.dataset.state().head)
    pulled.entry = source.on_branch("review")
    pulled.write("in/2.ndjson", rows((2, "b", 2, DAY)))
    pulled.pull()

    # Only one of the inputs has the branch: the head of the other is read.
    branch = derived.on_branch("review")
    transform(workspace, branch, engine, pulled.reporter)
    assert branch.dataset.state().records == 2
    with_inputs = replace(branch, inputs="review")
    transform(workspace, with_inputs, engine, pulled.reporter)
    assert (branch.dataset.state().records, derived.dataset.state().records) == (3, 2)

    # A verification replays the same blocks. Without --inputs, the branch cannot be continued.
    replayed = Replay(workspace, branch, engine, pulled.reporter)
    report = verify(branch.dataset, pulled.reporter, replay=replayed)
    assert (report.valid, report.transforms, report.unchecked) == (True, 2, [])
    assert not [origin.problem for origin in dataset_origins(workspace, branch) if origin.problem]

    # Rows are traced in the branch that each transaction has read.
    tracer = Tracer(workspace, lambda _: pulled.runtime, pulled.reporter)
    old, new = (tracer.trace(branch, [(offset, offset)]) for offset in (0, 2))
    assert [(step.branch, step.exact, step.problem) for step in (old, new)] == [("review", True, None)] * 2
    assert [feed.branch for feed in old.feeds] == [""]
    (feed,) = new.feeds
    assert (feed.name, feed.branch, feed.runs) == ("data", "review", [(1, 1)])
    assert feed.step is not None and feed.step.branch == "review"
    assert [position.place for position in feed.step.sources[0].positions] == ["line 1"]
    with pytest.raises(Diverged, match="only 'review' of input 'data'"):
        transform(workspace, branch, engine, pulled.reporter)

    # A head never refers to blocks that the heads of the inputs lack.
    with pytest.raises(Conflict, match="the head of data lacks") as refused:
        promote(workspace, derived, "review")
    assert refused.value.hint == "promote data first: odf branch data --promote review"
    assert derived.dataset.state().records == 2
    promote(workspace, source, "review")
    assert promote(workspace, derived, "review").records == 1
    replayed = Replay(workspace, derived, engine, pulled.reporter)
    assert verify(derived.dataset, pulled.reporter, replay=replayed).transforms == 2
    transform(workspace, branch, engine, pulled.reporter)
    assert branch.dataset.head() == derived.dataset.head()

    # The branch of the input is moved to another history.
    create_branch(source.dataset, "review", source.dataset.block_hash(1), replace=True)
    with pytest.raises(Diverged, match="'review' of input 'data' lacks blocks"):
        transform(workspace, with_inputs, engine, pulled.reporter)
