"""Pushes of rows with links to objects (RFC-017). See tests/sync/test_linked_objects for their transfer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from odf_engine.base.config import MetadataConfig
from odf_engine.base.progress import Reporter
from odf_engine.derive.verify.integrity import verify
from odf_engine.errors import BadData, NotFound, OdfError, Unsupported, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.ingest.push_source import PushOptions, push
from odf_engine.metadata.data_types import schema_descriptions
from odf_engine.metadata.model import (
    DataField,
    DataSchema,
    ExtraAttributes,
    Int64,
    List,
    Option,
    String,
)
from odf_engine.metadata.object_links import LinkedTotals, find_link_columns
from odf_engine.metadata.yaml import read_manifests
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.sync.pull import clone_dataset, pull_dataset
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace
from tests.ingest.pulling import Pulled
from tests.ingest.recorder import Recorder
from tests.sync.in_process_server import served
from tests.sync.linked import make_linked

A = "f1620ffd8538233905b7fb9a9c7bff1315bbb3f9eaecd1746c6562426328835785dcb"
B = "f162068c16896aced6b7498e338dc150640a07a7330c0f158bcb3365795c3f4418976"
C = "f16200846676d7d1ef6da1f516eca9e656d4c1a7058a5f6ba1559d7a2ef1c729303ed"


def link(**link_type: str) -> ExtraAttributes:
    return ExtraAttributes({"opendatafabric.org/type": {"kind": "ObjectLink", "linkType": link_type}})


def fields(photo: Any, extra: ExtraAttributes | None) -> DataSchema:
    return DataSchema([DataField("photo", photo, extra), DataField("n", Option(Int64()))])


MULTIHASH = link(kind="Multihash")


def push_links(pulled: Pulled, *links: str | None, attach: list[Path] | None = None) -> int:
    rows = [json.dumps({"photo": each, "n": number}) + "\n" for number, each in enumerate(links)]
    path = pulled.workspace.folder / "rows.ndjson"
    if not path.exists() or path.read_text() != "".join(rows):
        path = pulled.write("rows.ndjson", "".join(rows))
    options = PushOptions(attach=attach or [])
    done = push(pulled.workspace, pulled.entry, pulled.runtime, Recorder(), [path], options)
    return done.update.records


def refuses(
    pulled: Pulled, kind: type[OdfError], text: str, *links: str, attach: list[Path] | None = None
) -> None:
    head = pulled.dataset.head()
    with pytest.raises(kind, match=text):
        push_links(pulled, *links, attach=attach)
    assert pulled.dataset.head() == head


def test_pushed_links_require_stored_or_attached_objects(pulled: Pulled) -> None:
    pulled.entry = make_linked(pulled.workspace)
    a, b = pulled.write("in/a.txt", "census_a"), pulled.write("in/deep/b.txt", "census_b")
    refuses(pulled, NotFound, f"linked objects are missing: {A}", A)
    refuses(pulled, BadData, "row 2, column \"photo\": 'b.txt' is not the hash", "a.txt", "b.txt", attach=[a])
    assert push_links(pulled, "a.txt", "deep/b.txt", None, A, attach=[a.parent]) == 4
    assert pulled.rows("photo") == [(A,), (B,), (None,), (A,)]
    extra = pulled.newest().extra
    assert extra is not None
    summary = {"numObjectsNaive": 3, "sizeNaive": 24}
    assert extra.entries == {"opendatafabric.org/linkedObjects": summary}
    assert push_links(pulled, None) == 1
    extra = pulled.newest().extra
    assert extra is not None and [*extra.entries.values()] == [{"numObjectsNaive": 0, "sizeNaive": 0}]
    assert push_links(pulled, B) == 1  # stored before

    # The same rows with another file are other rows; without a change they are already ingested.
    assert push_links(pulled, "a.txt", attach=[a]) == 1
    a.write_text("census_c")
    assert push_links(pulled, "a.txt", attach=[a]) == 1
    assert push_links(pulled, "a.txt", attach=[a]) == 0
    assert pulled.rows("photo")[-2:] == [(A,), (C,)]
    assert pulled.dataset.state().linked == LinkedTotals(6, 48)
    assert verify(pulled.dataset, Recorder()).valid

    pulled.dataset.slice_path(Multihash.parse(B)).write_bytes(b"census_x")
    refuses(pulled, BadData, "damaged: its bytes do not match its hash", B, B)
    refuses(pulled, NotFound, "file not found", A, attach=[pulled.workspace.folder / "missing.txt"])
    refuses(
        pulled,
        UsageError,
        "two attached files have the name 'b.txt'",
        A,
        attach=[b, pulled.write("b.txt", "")],
    )
    assert push_links(pulled, "b.txt", attach=[b]) == 1  # which replaces the damaged object
    assert verify(pulled.dataset, Recorder()).valid

    pulled.entry = make_linked(pulled.workspace, "plain", None)
    refuses(pulled, UsageError, "no column with links", "a.txt", attach=[a])
    assert push_links(pulled, "a.txt") == 1
    assert pulled.newest().extra is None
    for number, schema in enumerate(
        (
            fields(String(), link(kind="Url")),
            fields(Int64(), MULTIHASH),
            fields(List(Option(Int64())), MULTIHASH),
        )
    ):
        pulled.entry = make_linked(pulled.workspace, f"unsupported-{number}", schema)
        refuses(pulled, Unsupported, "column 'photo': .*ObjectLink", "a.txt")


PHOTOS = """
kind: DatasetSnapshot
version: 1
content:
  kind: Root
  name: photos
  metadata:
    - kind: AddPushSource
      sourceName: main
      read:
        kind: NdJson
        schema:
          extra: {example.com/owner: survey}
          fields:
            - name: photo
              type: {kind: option, inner: string}
              extra:
                opendatafabric.org/description: of the town
                opendatafabric.org/type: {kind: ObjectLink, linkType: {kind: Multihash}}
            - {name: n, type: int64}
      merge: {kind: Append}
"""


@pytest.mark.net
def test_linked_objects_are_transferred_by_clone_and_pull(pulled: Pulled, tmp_path: Path) -> None:
    """The first commit stores the attributes that the source declares, and honours its link columns."""
    there = pulled.workspace
    (pulled.entry,) = there.add(read_manifests(PHOTOS, "test"))
    a = pulled.write("in/a.txt", "census_a")
    # An Arrow schema has no attributes.
    refuses(pulled, UsageError, "no column with links", "a.txt", attach=[a])
    there.__dict__["config"] = replace(there.config, metadata=MetadataConfig("odf"))
    refuses(pulled, NotFound, f"linked objects are missing: {A}", A)
    assert push_links(pulled, "a.txt", None, attach=[a]) == 2
    theirs = pulled.entry
    state = theirs.dataset.state()
    assert state.schema is None and state.linked == LinkedTotals(1, 8)
    schema = state.odf_schema
    assert schema is not None and schema.extra == ExtraAttributes({"example.com/owner": "survey"})
    assert find_link_columns(schema) == ["photo"]
    assert schema_descriptions(schema) == {"photo": "of the town"}

    here = Workspace.init(tmp_path / "here")
    access = RemoteAccess(here.config, Credentials(here.odf), Reporter())
    with served(there) as server:
        remote = open_remote(f"{server.url}photos/", access)
        mine, _ = clone_dataset(here, DatasetAlias.parse("photos"), remote, Reporter(), parallel=1)
        remote.close()
    assert verify(mine.dataset, Reporter()).valid
    assert mine.dataset.slice_path(Multihash.parse(A)).read_bytes() == b"census_a"
    Trust(here).grant(mine)
    copy = Pulled(here, pulled.runtime)
    copy.entry = mine
    assert push_links(copy, "b.txt", attach=[copy.write("b.txt", "census_b")]) == 1
    assert verify(mine.dataset, Reporter()).valid

    remote = open_remote(f"file://{mine.dataset.folder}/", access)
    pull_dataset(theirs, remote, Reporter(), force=False, parallel=1)
    remote.close()
    assert theirs.dataset.head() == mine.dataset.head()
    assert theirs.dataset.slice_path(Multihash.parse(B)).read_bytes() == b"census_b"
    Trust(there).grant(theirs)  # since the block is by another author
    assert push_links(pulled, B, A) == 2
    assert pulled.rows("photo") == [(A,), (None,), (B,), (B,), (A,)]
    assert theirs.dataset.state().linked == LinkedTotals(4, 32)
    assert verify(theirs.dataset, Reporter()).valid
