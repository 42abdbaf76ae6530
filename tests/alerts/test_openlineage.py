"""OpenLineage events, checked with the classes that OpenLineage generates from its published schema."""

from __future__ import annotations

import json
import re
import types
import typing
import uuid
from pathlib import Path
from typing import Any

import attr
import pytest
from openlineage.client import event_v2, facet_v2
from openlineage.client.generated import base

from odf_engine.automation.alerts.event_collector import job_event
from odf_engine.automation.alerts.openlineage import run_event
from odf_engine.worker.protocol import Failure, Job, JobState
from odf_engine.workspace.workspace import Workspace
from tests.alerts.conftest import Odf
from tests.alerts.receivers import HttpReceiver
from tests.waiting import wait_until

DERIVED = """\
kind: DatasetSnapshot
version: 1
content:
  name: my.counts
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: my.rows, alias: rows}]
      transform:
        kind: Sql
        engine: spark
        query: SELECT event_time, upper(name) AS label, id FROM rows WHERE id > 1
"""
CHECK = """\
headers: {name: ids}
spec:
  target: my.rows
  rules:
    - {kind: NotNull, columns: [name]}
    - {kind: Range, column: id, max: 100, onFailure: warn}
"""


VERSION = re.compile(r"\d+-\d+-\d+")


def facet_class(schema_url: str) -> Any:
    """The generated class of a facet."""
    name = schema_url.rpartition("/")[2]
    modules = [getattr(facet_v2, each) for each in dir(facet_v2)]
    found = [getattr(module, name) for module in [base, *modules] if hasattr(module, name)]
    assert found, f"{schema_url} is not published"
    return found[0]


def check(value: Any, kind: Any, where: str) -> None:
    """Check a value against a type of the generated classes: required and unknown fields, types."""
    if kind is Any:
        return
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is not None:
            check(value, next(argument for argument in arguments if argument is not type(None)), where)
        else:
            assert type(None) in arguments, where
    elif origin is list:
        assert isinstance(value, list), where
        for index, each in enumerate(value):
            check(each, arguments[0], f"{where}[{index}]")
    elif origin is dict:
        assert isinstance(value, dict), where
        for key, each in value.items():
            declared = arguments[1]
            if isinstance(each, dict) and "_schemaURL" in each:
                declared = facet_class(each["_schemaURL"])
                published = VERSION.sub("", declared._get_schema())  # newer releases have newer versions
                assert VERSION.sub("", each["_schemaURL"]) == published, f"{where}.{key}"
            check(each, declared, f"{where}.{key}")
    elif attr.has(kind):
        assert isinstance(value, dict), where
        hints = typing.get_type_hints(kind)
        fields = {field.name: field for field in attr.fields(kind)}
        for name, field in fields.items():
            if name in value:
                check(value[name], hints[name], f"{where}.{name}")
            else:
                assert field.default is not attr.NOTHING, f"{where}.{name} is missing"
        assert not value.keys() - fields.keys(), f"{where}: {value.keys() - fields.keys()}"
    elif kind is float:
        assert isinstance(value, int | float) and not isinstance(value, bool), where
    elif kind is event_v2.RunState:
        assert value in event_v2.RunState.__members__, where
    else:
        assert isinstance(value, kind) and (kind is bool or not isinstance(value, bool)), where


def checked(text: bytes | str) -> Any:
    """The event, after its check."""
    event = json.loads(text)
    check(event, event_v2.RunEvent, "event")
    uuid.UUID(event["run"]["runId"])
    assert event["schemaURL"].endswith("/OpenLineage.json#/$defs/RunEvent")
    base.BaseEvent(eventTime=event["eventTime"], producer=event["producer"])
    assert all(each["_producer"] == event["producer"] for each in facets(event))
    return event


def facets(event: Any) -> list[Any]:
    owners = [event["run"], event["job"], *event["inputs"], *event["outputs"]]
    names = ("facets", "inputFacets", "outputFacets")
    return [facet for owner in owners for name in names for facet in owner.get(name, {}).values()]


def test_worker_jobs_produce_valid_openlineage_events(folder: Path, odf: Odf, receiver: HttpReceiver) -> None:
    (folder / "check.yaml").write_text(CHECK)
    assert odf("check", "add", "check.yaml").code == 0
    for name, sink in (
        ("file", "file: out/lineage.ndjson, namespace: lab"),
        ("http", f"url: '{receiver.url}/v1'"),
    ):
        text = f"headers: {{name: {name}}}\nspec: {{sink: {{kind: OpenLineage, {sink}}}}}\n"
        assert odf("alert", "add", "-", input=text).code == 0
    good = '{"id": 1, "name": "x"}\n{"id": 700, "name": "y"}\n'
    assert odf("ingest", "my.rows", "-", "--format", "ndjson", input=good).code == 0
    assert odf("ingest", "my.rows", "-", "--format", "ndjson", input='{"id": 2, "name": null}\n').code == 1
    file = folder / "out" / "lineage.ndjson"
    wait_until(lambda: file.exists() and len(file.read_text().splitlines()) == 4)
    wait_until(lambda: len(receiver.requests) == 4)
    start, complete, second, failed = map(checked, file.read_text().splitlines())
    for received in receiver.requests:
        checked(received.body)
    assert [each["eventType"] for each in (start, complete, second, failed)] == [
        "START",
        "COMPLETE",
        "START",
        "FAIL",
    ]
    assert start["run"] == {"runId": complete["run"]["runId"], "facets": {}}
    assert start["run"]["runId"] != second["run"]["runId"] == failed["run"]["runId"]
    assert complete["job"]["namespace"] == "lab" and complete["job"]["name"] == "my.rows.ingest"
    (output,) = complete["outputs"]
    found = output["facets"]
    (dataset,) = odf("list", "--json").json
    assert found["version"]["datasetVersion"] == dataset["head"]
    columns = {each["name"]: each["type"] for each in found["schema"]["fields"]}
    assert (columns["id"], columns["name"]) == ("INT", "STRING")
    assertions = {each["name"]: each for each in found["dataQualityAssertions"]["assertions"]}
    assert assertions["NotNull(name)"]["success"] and assertions["NotNull(name)"]["column"] == "name"
    warned = assertions["Range(id)"]
    assert (warned["success"], warned["severity"], warned["assertion"]) == (False, "warn", "range")
    metrics = found["dataQualityMetrics"]["columnMetrics"]["id"]
    assert (metrics["nullCount"], metrics["min"], metrics["max"]) == (0, 1, 700)
    statistics = output["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["fileCount"]) == (2, 1) and statistics["size"] > 0
    assert "NotNull(name)" in failed["run"]["facets"]["errorMessage"]["message"]
    (rejected,) = failed["outputs"]
    first = rejected["facets"]["dataQualityAssertions"]["assertions"][0]
    assert (first["success"], first["severity"]) == (False, "error")


@pytest.mark.complete
def test_derivative_event_has_column_lineage(folder: Path, odf: Odf) -> None:
    (folder / "derived.yaml").write_text(DERIVED)
    assert odf("ingest", "my.rows", "-", "--format", "ndjson", input='{"id": 1, "name": "x"}\n').code == 0
    assert odf("add", "derived.yaml").code == 0
    workspace = Workspace.find(explicit=folder)
    entry = workspace.resolve("my.counts")
    now = "2026-03-01T10:00:00Z"
    error = Failure("query failed", kind="InvalidQuery")
    job = Job("7", "pull", "my.counts", str(entry.id), JobState.failed, now, now, now, error=error)
    event = job_event(job)
    assert event is not None
    found = checked(run_event(event, "JobFailed", workspace, ""))
    workspace.index.close()
    assert found["job"]["facets"]["sql"]["query"].startswith("SELECT")
    (source,) = found["inputs"]
    assert source["name"] == "my.rows" and "schema" in source["facets"]
    lineage = found["outputs"][0]["facets"]["columnLineage"]
    (field,) = lineage["fields"]["label"]["inputFields"]
    assert (field["name"], field["field"], field["transformations"][0]["type"]) == (
        "my.rows",
        "name",
        "DIRECT",
    )
    assert [(each["field"], each["transformations"][0]["subtype"]) for each in lineage["dataset"]] == [
        ("id", "FILTER")
    ]
