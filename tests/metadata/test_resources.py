"""Resources of RFC-018: datasets and sources as definitions, others as errors that name them."""

# ruff: noqa: E501 (manifests)

from __future__ import annotations

import pytest

from odf_engine.errors import InvalidManifest
from odf_engine.metadata import model
from odf_engine.metadata.resources import SourceDefinition
from odf_engine.metadata.yaml import read_manifests, read_value_sets, snapshot_to_yaml

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
        "---\n".join([
            DATASET.replace("a.b", "d.e"),
            SOURCE,
            SOURCE.replace("a.b", "p.q").replace('{kind: Url, url: "https://example.com/a.csv"}', "{kind: RestEndpoint}"),
        ]),
        "test",
    )  # fmt: skip
    assert isinstance(root, SourceDefinition) and not isinstance(push, SourceDefinition)
    assert (derivative.name, derivative.kind) == ("alice/d.e", model.DatasetKind.Derivative)
    assert [model.kind_of(event) for event in derivative.metadata] == ["SetTransform"]
    assert (root.name, root.kind) == ("alice/a.b", model.DatasetKind.Root)
    vocab, source = root.metadata
    assert isinstance(vocab, model.SetVocab) and vocab.event_time_column == "date"
    assert isinstance(source, model.SetPollingSource) and source.preprocess is not None
    assert source.fetch == model.Url("https://example.com/a.csv")
    assert source.merge == model.Ledger(["x"])
    pushed = push.metadata[-1]
    assert isinstance(pushed, model.AddPushSource) and pushed.source_name == "default"
    for definition in (derivative, root, push):
        assert read_manifests(snapshot_to_yaml(definition), "test") == [definition]


ID = "6767a4ee-d74d-436e-84f9-709407869a26"


def test_canonical_form_and_authored_form_are_the_same_definition() -> None:
    config = "{token: {type: SecretSet, name: keys, path: token}, day: 'VariableSet:bob/vars#first.day'}"
    authored = SOURCE.replace("spec:", f"spec:\n  config: {config}")
    canonical = authored.replace("v1alpha1/Source\n", "v1alpha1/SourceInput\n")
    canonical = canonical.replace(
        "account: alice", f"account: {{id: {ID}, did: 'did:odf:fed0', name: alice}}, id: {ID}, generation: 4"
    )
    canonical += "status: {phase: Ready, observedGeneration: 4}\n"
    (one,), (other,) = read_manifests(authored, "test"), read_manifests(canonical, "test")
    assert isinstance(one, SourceDefinition) and isinstance(other, SourceDefinition)
    assert one.config == {"token": "SecretSet:keys#token", "day": "VariableSet:bob/vars#first.day"}
    assert (one.resource_id, other.resource_id) == ("", ID)
    assert (one.name, one.metadata, one.config) == (other.name, other.metadata, other.config)


def test_value_sets_are_read_beside_definitions() -> None:
    secrets = (
        HEAD.format("config/v1alpha1/SecretSet") + "spec: {secrets: {token: abc, pin: {value: '0123'}}}\n"
    )
    variables = HEAD.format("config/v1alpha1/VariableSet").replace("account: alice, ", "")
    text = "---\n".join([secrets, SOURCE, variables + "spec: {variables: {port: 5113}}\n"])
    assert [definition.name for definition in read_manifests(text, "test")] == ["alice/a.b"]
    assert read_value_sets(text, "test") == [
        ("SecretSet", "alice/a.b", {"token": "abc", "pin": "0123"}),
        ("VariableSet", "a.b", {"port": "5113"}),
    ]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{secrets: {token: {value: x, contentEncoding: jwe}}}", "encrypted values are not supported"),
        ("{secrets: {token: [1]}}", "spec.secrets.token: expected a text"),
        ("{secrets: {token: a, token: b}}", "duplicate field 'token'"),
        ("{secrets: 1}", "expected 'secrets' with names and values"),
        ("{variables: {a: b}}", "unknown field 'variables'"),
    ],
)
def test_invalid_value_sets_are_rejected(spec: str, message: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        read_value_sets(HEAD.format("config/v1alpha1/SecretSet") + f"spec: {spec}", "test")
    assert message in str(caught.value) and (caught.value.where or "").startswith("test:3:")


PROBLEMS = [
    (HEAD.format("flow/v1alpha1/Flow") + "spec: {}", "test:1:10: the resource Flow is not supported", "odf flow add"),
    (HEAD.format("auth/v1alpha1/Account") + "spec: {}", "the resource Account is not supported", "accounts"),
    ("$schema: https://example.com/x\nspec: {}", "unknown schema of a resource", "Dataset, Source"),
    (DATASET.replace("spec:", "state: {}\nspec:"), "test:3:1: unknown field 'state'", "headers and spec"),
    (DATASET.replace("kind: Derivative", "kind: Derivative\n  did: x"), "spec: unsupported 'did'", "created when it is added"),
    (DATASET.replace("datasetRef", "datasetReff"), "test:7:17: spec.metadata[0].inputs[0]: unknown field 'datasetReff'", "datasetRef"),
    (SOURCE.replace("spec:", "spec:\n  config: {a: b}"), "test:4:15: spec.config.a: expected a reference", "SecretSet:NAME#VALUE"),
    (SOURCE.replace("name: a.b", "name: a.b, id: 7"), "test:2:26: headers.id: expected a UUID", "created when it is added"),
    (SOURCE.replace("account: alice", "account: {id: x, name: y}"), "headers.account.id: expected a UUID", ""),
    (SOURCE.replace("account: alice", f"account: {{id: {ID}}}"), "headers.account: expected the name of the account", "prefixes"),
    (SOURCE.replace("spec:", "spec:\n  config: {a: b}").replace("kind: Url", "kind: RestEndpoint"), "unsupported 'config'", "no values"),
    (SOURCE.replace("kind: Url", "buffer: {kind: Memory}, kind: RestEndpoint"), "unsupported 'buffer'", "at once"),
    (SOURCE.replace("name: a.b, ", ""), "missing field 'name'", ""),
    (SOURCE.replace("headers:", "header:"), "missing field 'headers'", ""),
    (SOURCE.replace("name: a.b", "name: [a]"), "test:2:17: headers.name: expected a text", ""),
    (SOURCE.replace("account: alice", "account: {a: b}"), "headers.account.a: an account has id, did and name", ""),
    (SOURCE.replace("name: a.b", "name: a.b, name: c"), "test:2:22: headers: duplicate field 'name'", ""),
    (SOURCE + "spec: {}\n", "test:9:1: duplicate field 'spec'", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message", "hint"), PROBLEMS)
def test_unsupported_and_invalid_resources_are_rejected(text: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        read_manifests(text, "test")
    error = f"{caught.value} {caught.value.hint}"
    assert message in error and hint in error, error
