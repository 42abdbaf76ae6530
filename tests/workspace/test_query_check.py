"""Queries that `odf add` refuses without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.base.config import parse_duration
from odf_engine.base.settings import set_value
from odf_engine.chain.normal_form import allowed_lateness
from odf_engine.errors import InvalidQuery
from odf_engine.metadata.model import Sql, SqlQueryStep
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.workspace import Workspace

DERIVATIVE = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{{datasetRef: input}}]
      transform:
        kind: Sql
        engine: {engine}
        query: |
          SELECT event_time,
            {value} AS x FROM input
"""
ROOT = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: main
      read: {{kind: NdJson, schema: ["t TIMESTAMP"]}}
      preprocess: {{kind: Sql, engine: {engine}, query: "SELECT now() AS t, rand() AS r FROM input"}}
      merge: {{kind: Append}}
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace.init(tmp_path / "ws")
    workspace.add(read_manifests(ROOT.format(name="input", engine="spark"), "test"))
    return workspace


def derivative(engine: str = "Spark", value: str = "1", name: str = "output") -> str:
    return DERIVATIVE.format(engine=engine, value=value, name=name)


def lateness(text: str) -> str:
    return derivative(value=f"1 AS y,\n          -- odf.allowedLateness {text}\n            2")


REFUSED = [
    (lateness('{"other": "1h"}'), "is for 'other', which is not an input", "dataset output, query"),
    (lateness('{"input": "soon"}'), "invalid allowed lateness", "dataset output, query"),
    (derivative(value="rand()"), "rand() is not deterministic", "dataset output, query, line 2, column 3"),
    (derivative(value="'${env:HOME}'"), "the variable ${env:HOME}",
     "dataset output, query, line 2, column 4"),
    (derivative(value="1 AS y, -- ${x}\n            2"), "the variable ${x}",
     "dataset output, query, line 2, column 14"),
    (ROOT.format(name="more", engine="Spark").replace("rand()", "'${system:user.home}'"),
     "the variable ${system:user.home}", "dataset more, query, line 1, column 21"),
    (derivative("flink"), "for the engine 'flink', which is not configured", "dataset output, transform"),
    (ROOT.format(name="more", engine="flink"), "for the engine 'flink', which is not configured",
     "dataset more, preprocess"),
]  # fmt: skip


IDS = [
    "other-input", "no-duration", "rand", "environment", "comment", "preprocess-variable", "engine",
    "preprocess",
]  # fmt: skip


@pytest.mark.parametrize(("text", "message", "where"), REFUSED, ids=IDS)
@pytest.mark.parametrize("update", [False, True])
def test_invalid_queries_are_refused_with_position_and_hint(
    workspace: Workspace, text: str, message: str, where: str, update: bool
) -> None:
    snapshots = read_manifests(text, "test")
    with pytest.raises(InvalidQuery) as caught:
        workspace.update(snapshots) if update else workspace.add(snapshots)
    assert message in caught.value.message
    assert str(caught.value.where).startswith(where)
    assert caught.value.hint
    assert ("odf add --translate spark" in caught.value.hint) is ("flink" in message)
    assert [str(entry.alias) for entry in workspace.datasets()] == ["input"]
    if "rand" in message:
        assert caught.value.excerpt == ("2 |   rand() AS x FROM input", "  |   ^")


def test_lateness_duration_may_end_with_a_line_break() -> None:
    """A chain of another author can have it."""
    query = 'SELECT 1\n-- odf.allowedLateness {"input": "1h\\n"}'
    found = allowed_lateness(Sql(engine="spark", queries=[SqlQueryStep(query=query)]))
    assert parse_duration(found["input"]) == 3600


def test_only_changed_queries_are_checked(workspace: Workspace) -> None:
    workspace.add(read_manifests(derivative(), "test"))
    for text, message, _ in (REFUSED[0], REFUSED[1]):
        for dry_run in (True, False):
            with pytest.raises(InvalidQuery) as caught:
                workspace.update(read_manifests(text, "test"), dry_run=dry_run)
            assert message in caught.value.message
    # An engine that is configured; and a query that does not change, whatever it is.
    address = "grpc://127.0.0.1:1"
    workspace.config = set_value(workspace.config, "engines.Flink", address)
    workspace.add(read_manifests(derivative("FLINK", "rand()", "other"), "test"))
    workspace.config = set_value(workspace.config, "engines.Flink", None)
    described = derivative("FLINK", "rand()", "other") + "    - {kind: SetInfo, description: new}\n"
    (update,) = workspace.update(read_manifests(described, "test"))
    assert len(update.events) == 1
