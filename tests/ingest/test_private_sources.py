"""Sources outside the chain (RFC-018): pulled, shown and changed, and never in a block."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler

import pytest

import odf_engine
from odf_engine.errors import AlreadyExists, Conflict, InvalidManifest, SourceUnavailable, UsageError
from odf_engine.metadata.model import DisablePollingSource, kind_of
from odf_engine.metadata.yaml import read_manifests, read_value_sets, snapshot_to_yaml
from odf_engine.rows.projection import dataset_key
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.definitions.definition import commit_update, current_definition
from odf_engine.workspace.documents.private_source import (
    local_state,
    read_private_source,
    source_path,
    store_value_sets,
)
from odf_engine.workspace.environment import read_allowed_variables
from odf_engine.workspace.workspace import Workspace
from tests.ingest.conftest import WebServer, reply
from tests.ingest.pulling import Pulled

SECRET = "s3cret-token"
SCHEMAS = "https://opendatafabric.org/schemas"
DATASET = f"""\
$schema: {SCHEMAS}/dataset/v1alpha1/Dataset
headers: {{name: data}}
spec:
  kind: Root
  metadata:
    - {{kind: SetLicense, shortName: CC0-1.0, name: CC0, websiteUrl: "https://example.com"}}
"""
SOURCE = f"""\
$schema: {SCHEMAS}/source/v1alpha1/Source
headers: {{name: data}}
spec:
  config: {{token: "SecretSet:keys#token"}}
  ingress:
    kind: Url
    url: http://127.0.0.1:1/a.csv
    headers: [{{name: Authorization, value: "Bearer ${{{{ config.token }}}}"}}]
  read: {{kind: Csv, header: true, schema: {{fields: [{{name: day, type: Date}}, {{name: x, type: int64}}]}}}}
  merge: {{kind: Ledger, primaryKey: [day]}}
  vocab: {{eventTimeColumn: day}}
"""
SECRETS = f"""\
$schema: {SCHEMAS}/config/v1alpha1/SecretSet
headers: {{name: keys}}
spec: {{secrets: {{token: {SECRET}}}}}
"""
FILES = f"""\
$schema: {SCHEMAS}/source/v1alpha1/SourceInput
headers: {{name: data}}
spec:
  ingress: {{kind: FilesGlob, path: in/*.csv, order: ByName}}
  read: {{kind: Csv, header: true, schema: {{fields: [{{name: x, type: int64}}]}}}}
"""


class PrivatePulls(Pulled):
    """Pulls of a dataset whose source is outside the chain."""

    def define(self, *documents: str, update: bool = False) -> list[str]:
        """Adds or updates the dataset; returns the titles of the changes of an update."""
        text = "---\n".join(documents)
        store_value_sets(self.workspace.odf, read_value_sets(text, "test.yaml"))
        definitions = read_manifests(text, "test.yaml")
        if not update:
            (self.entry,) = self.workspace.add(definitions)
            return []
        (changed,) = self.workspace.update(definitions)
        return [change.title for change in changed.changes]

    def texts(self) -> str:
        """All files of the dataset, apart from the data."""
        files = [path for path in self.dataset.folder.rglob("*") if path.is_file()]
        return "".join(path.read_text("latin-1") for path in files)


@pytest.fixture
def pulls(workspace: Workspace, runtime: SparkRuntime) -> PrivatePulls:
    return PrivatePulls(workspace, runtime)


@pytest.fixture
def server(web: WebServer) -> WebServer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        if request.headers["Authorization"] != f"Bearer {SECRET}":
            reply(request, 401)
        elif request.headers["If-None-Match"] == '"1"':
            reply(request, 304)
        else:
            reply(request, 200, b"day,x\n2025-01-01,1\n", ETag='"1"')

    web.answer = answer
    return web


@pytest.mark.net
def test_pull_reads_the_private_source_and_publishes_nothing_of_it(
    pulls: PrivatePulls, server: WebServer
) -> None:
    pulls.define(SECRETS, DATASET, SOURCE.replace("http://127.0.0.1:1", server.url))
    assert pulls.pull().records == 1
    assert pulls.kinds() == ["Seed", "SetVocab", "SetLicense", "SetDataSchema", "AddData"]
    assert server.url.removeprefix("http://") not in pulls.texts() and SECRET not in pulls.texts()
    with odf_engine.open(pulls.workspace.folder, progress=False) as opened:
        opened["data"].write_crate(pulls.workspace.folder / "crate", with_data=True)
        published = [opened.catalog(base="http://example.com")]
    published += [path.read_bytes() for path in (pulls.workspace.folder / "crate").rglob("*.*")]
    assert server.url.removeprefix("http://").encode() not in b"".join(published)
    assert pulls.pull().blocks == 0
    assert server.requests[-1].headers["If-None-Match"] == '"1"'  # the state is in the chain
    assert dataset_key(pulls.dataset) == ["day"]
    assert pulls.workspace.summaries()[0].polls
    assert source_path(pulls.dataset.folder).stat().st_mode & 0o077 == 0


@pytest.mark.net
def test_values_come_from_sets_or_from_the_environment_of_the_request(
    pulls: PrivatePulls, server: WebServer
) -> None:
    pulls.define(SOURCE.replace("http://127.0.0.1:1", server.url))
    variable = "ODF_VALUE_KEYS_TOKEN"
    pulls.fails(SourceUnavailable, "SecretSet:keys#token has no value", f"export {variable}=…")
    assert pulls.pull(environment={"ODF_VALUE_KEYS_TOKEN": SECRET}).records == 1
    store_value_sets(pulls.workspace.odf, read_value_sets(SECRETS.replace(SECRET, "wrong"), "test.yaml"))
    error = pulls.fails(SourceUnavailable, "401", environment={"ODF_VALUE_KEYS_TOKEN": SECRET}, force=True)
    assert "wrong" not in f"{error} {error.hint}"
    without = SECRETS.replace("token", "other")
    store_value_sets(pulls.workspace.odf, read_value_sets(without, "test.yaml"))
    pulls.fails(SourceUnavailable, "has no value", force=True)  # the new set replaces the old one


def test_variables_of_a_private_source_are_sent_with_its_jobs(
    pulls: PrivatePulls, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulls.define(SOURCE)
    monkeypatch.setenv("ODF_VALUE_KEYS_TOKEN", SECRET)
    monkeypatch.setenv("OTHER", "x")
    read = read_allowed_variables(pulls.workspace.odf, str(pulls.entry.id), "data")
    assert read == {"ODF_VALUE_KEYS_TOKEN": SECRET}


def test_update_changes_the_source_without_a_block(pulls: PrivatePulls) -> None:
    pulls.define(FILES)
    pulls.write("in/a.csv", "x\n1\n")
    assert pulls.pull().records == 1
    head, before = pulls.dataset.head(), read_private_source(pulls.dataset.folder)
    assert pulls.define(FILES, update=True) == []
    assert pulls.define(FILES.replace("header: true", "header: true, separator: ;"), update=True) == [
        "source, outside the chain"
    ]
    after = read_private_source(pulls.dataset.folder)
    assert before is not None and after is not None and pulls.dataset.head() == head
    assert before.id == after.id, "the same files: the state remains valid"
    pulls.define(FILES.replace("in/*.csv", "other/*.csv"), update=True)
    moved = read_private_source(pulls.dataset.folder)
    assert moved is not None and moved.id != before.id
    pulls.write("other/a.csv", "x\n2\n")
    assert pulls.pull().records == 1, "a file of the same name in another folder"


@pytest.mark.parametrize("restarts", [False, True])
def test_source_moves_out_of_the_chain_and_back_without_reading_files_again(
    pulls: PrivatePulls, restarts: bool
) -> None:
    in_chain = """
fetch: {kind: FilesGlob, path: in/*.csv, order: ByName}
read: {kind: Csv, header: true, ddlSchema: [x BIGINT NOT NULL]}
merge: {kind: Append}
"""
    pulls.add(in_chain)
    pulls.write("in/a.csv", "x\n1\n")
    assert pulls.pull().records == 1
    titles = pulls.define(FILES, update=True)
    assert titles == ["DisablePollingSource", "source, outside the chain"]
    assert isinstance(
        pulls.dataset.block(pulls.dataset.list_blocks(1)[0].hash).block.event, DisablePollingSource
    )
    if restarts:
        (pulls.dataset.cache_folder / "taken.sqlite").unlink()
    pulls.write("in/b.csv", "x\n2\n")
    assert pulls.pull().records == 1
    assert pulls.pull().records == 0
    assert pulls.rows("x") == [(1,), (2,)]
    definition = snapshot_to_yaml(current_definition(pulls.entry))
    assert [
        change.title for change in pulls.workspace.update(read_manifests(definition, "x"))[0].changes
    ] == []


def test_deleted_dataset_has_no_source(pulls: PrivatePulls) -> None:
    pulls.define(FILES)
    path = source_path(pulls.dataset.folder)
    path.with_name("notes.yaml").touch()
    assert path.exists() and pulls.workspace.summaries()[0].polls
    pulls.workspace.delete(pulls.entry)
    assert not path.exists()


def test_conflicting_commit_leaves_the_source_unchanged(pulls: PrivatePulls) -> None:
    pulls.define(FILES)
    changed = FILES.replace("in/*.csv", "other/*.csv")
    license = DATASET.replace("v1alpha1/Dataset", "v1alpha1/DatasetInput")
    (plan,) = pulls.workspace.update(
        read_manifests("---\n".join([changed, license]), "test.yaml"), dry_run=True
    )
    before = source_path(pulls.dataset.folder).read_text()
    pulls.define("---\n".join([FILES, DATASET]), update=True)  # another process commits meanwhile
    with pytest.raises(Conflict):
        commit_update(pulls.entry, plan, block_version=3)
    assert source_path(pulls.dataset.folder).read_text() == before


def test_source_from_a_url_is_refused(pulls: PrivatePulls) -> None:
    definitions = read_manifests(SOURCE, "test.yaml")
    with pytest.raises(UsageError, match="could send your values elsewhere"):
        pulls.workspace.add(definitions, {"data": "https://example.com/source.yaml"})
    assert pulls.workspace.datasets() == []


def test_damaged_source_is_reported_and_the_data_remains_readable(pulls: PrivatePulls) -> None:
    pulls.define(FILES)
    pulls.write("in/a.csv", "x\n1\n")
    pulls.pull()
    source_path(pulls.dataset.folder).write_text("spec: [")
    with pytest.raises(InvalidManifest):
        local_state(pulls.dataset)
    pulls.fails(InvalidManifest, "sources/", "odf add --update")
    assert pulls.rows("x") == [(1,)]
    source_path(pulls.dataset.folder).unlink()
    assert pulls.define(FILES, update=True) == ["source, outside the chain"]
    assert pulls.pull().records == 0


def test_dataset_and_source_of_the_same_name_are_one_definition(pulls: PrivatePulls) -> None:
    (joined,) = read_manifests("---\n".join([SOURCE, DATASET]), "test.yaml")
    assert [kind_of(event) for event in joined.metadata] == ["SetVocab", "SetPollingSource", "SetLicense"]
    assert read_manifests(snapshot_to_yaml(joined), "again") == [joined]
    with pytest.raises(AlreadyExists):
        pulls.workspace.add(read_manifests("---\n".join([SOURCE, SOURCE]), "test.yaml"))
