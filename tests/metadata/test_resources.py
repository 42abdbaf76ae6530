"""Resources of RFC-018: datasets and sources as definitions, others as errors that name them."""

# ruff: noqa: E501 (manifests)

from __future__ import annotations

import pytest

from odf_engine.errors import InvalidManifest
from odf_engine.metadata import model
from odf_engine.metadata.yaml import read_manifests, snapshot_to_yaml

HEAD = "$schema: https://opendatafabric.org/schemas/{}\nheaders: {{name: a.b, account: alice, labels: {{x: y}}}}\n"
DATASET = (
    HEAD.format("dataset/v1alpha1/Dataset")
    + """\
spec:
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: c}]
      transform: {kind: Sql, engine: spark, query: SELECT event_time FROM c}
"""
)
SOURCE = (
    HEAD.format("source/v1alpha1/Source")
    + """\
spec:
  ingress: {kind: Url, url: "https://example.com/a.csv"}
  read: {kind: Csv, header: true}
  preprocess: {kind: Sql, engine: spark, query: SELECT * FROM input}
  merge: {kind: Ledger, primaryKey: [x]}
  vocab: {eventTimeColumn: date}
"""
)


def test_dataset_and_source_resources_become_definitions() -> None:
    derivative, root, push = read_manifests(
        "---\n".join([DATASET, SOURCE, SOURCE.replace('{kind: Url, url: "https://example.com/a.csv"}', "{kind: RestEndpoint}")]),
        "test",
    )  # fmt: skip
    assert (derivative.name, derivative.kind) == ("alice/a.b", model.DatasetKind.Derivative)
    assert [model.kind_of(event) for event in derivative.metadata] == ["SetTransform"]
    assert (root.name, root.kind) == ("alice/a.b", model.DatasetKind.Root)
    vocab, source = root.metadata
    assert isinstance(vocab, model.SetVocab) and vocab.event_time_column == "date"
    assert isinstance(source, model.SetPollingSource) and source.preprocess is not None
    assert source.fetch == model.Url("https://example.com/a.csv")
    assert source.merge == model.Ledger(["x"])
    pushed = push.metadata[-1]
    assert isinstance(pushed, model.AddPushSource) and pushed.source_name == "default"
    for each in (derivative, root, push):
        assert read_manifests(snapshot_to_yaml(each), "test") == [each]


PROBLEMS = [
    (HEAD.format("flow/v1alpha1/Flow") + "spec: {}", "test:1:10: the resource Flow is not supported", "odf flow add"),
    (HEAD.format("config/v1alpha1/SecretSet") + "spec: {}", "the resource SecretSet is not supported", "env.NAME"),
    (HEAD.format("auth/v1alpha1/Account") + "spec: {}", "the resource Account is not supported", "accounts"),
    ("$schema: https://example.com/x\nspec: {}", "unknown schema of a resource", "Dataset, Source"),
    (DATASET.replace("spec:", "status: {}\nspec:"), "test:3:1: unknown field 'status'", "headers and spec"),
    (DATASET.replace("kind: Derivative", "kind: Derivative\n  did: x"), "spec: unsupported 'did'", "created when it is added"),
    (DATASET.replace("datasetRef", "datasetReff"), "test:7:17: spec.metadata[0].inputs[0]: unknown field 'datasetReff'", "datasetRef"),
    (SOURCE.replace("spec:", "spec:\n  config: {a: b}"), "spec: unsupported 'config'", "env.NAME"),
    (SOURCE.replace("kind: Url", "buffer: {kind: Memory}, kind: RestEndpoint"), "unsupported 'buffer'", "at once"),
    (SOURCE.replace("name: a.b, ", ""), "missing field 'name'", ""),
    (SOURCE.replace("headers:", "header:"), "missing field 'headers'", ""),
    (SOURCE.replace("name: a.b", "name: [a]"), "test:2:17: headers.name: expected a text", ""),
    (SOURCE.replace("account: alice", "account: {a: b}"), "headers.account: expected a text", ""),
    (SOURCE.replace("name: a.b", "name: a.b, name: c"), "test:2:22: headers: duplicate field 'name'", ""),
    (SOURCE + "spec: {}\n", "test:9:1: duplicate field 'spec'", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message", "hint"), PROBLEMS)
def test_unsupported_and_invalid_resources_are_rejected(text: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        read_manifests(text, "test")
    error = f"{caught.value} {caught.value.hint}"
    assert message in error and hint in error, error
