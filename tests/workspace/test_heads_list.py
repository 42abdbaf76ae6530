"""The list of heads of a store: what reads it, writes it and corrects it."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from msgspec.structs import replace

from odf_engine.mirror.heads_list import HeadsList
from odf_engine.workspace.workspace import Workspace
from tests.s3_server import S3Server
from tests.sync.builders import add_slices, make_root
from tests.workspace.test_dataset_store import HEAD, again, machines, stored


def test_a_first_list_needs_few_requests(tmp_path: Path, s3: S3Server) -> None:
    a, b = machines(tmp_path, f"s3+{s3.endpoint}/bucket/store")
    for number in range(4):
        make_root(a, f"numbers{number}", slices=number)
    a.close()
    s3.forget()
    listed = b.overview()
    read = [each.path.rpartition("/")[2] for each in s3.forget()]
    assert sorted(read) == ["odf-heads.json", "odf-store.json"]
    expected = [replace(summary, folder=Path()) for summary in a.summaries()]
    assert [replace(summary, folder=Path()) for summary in listed] == expected
    # The list of heads is written again: at the check of all heads, one request for each dataset is enough.
    expire_heads(s3)
    c = Workspace.init(tmp_path / "c", b.config.store.url)
    s3.forget()
    assert [summary.records for summary in c.overview()] == [0, 3, 6, 9]
    assert len([each for each in s3.forget() if each.path.endswith(HEAD)]) == 4
    # Datasets that were only listed are read when they are used.
    assert c.resolve("numbers2").dataset.state() == a.resolve("numbers2").dataset.state()
    assert [summary.records for summary in c.summaries()] == [0, 3, 6, 9]


def expire_heads(s3: S3Server) -> None:
    """Let more than an hour pass since all heads were compared with the list."""
    key = "bucket/store/odf-heads.json"
    s3.objects[key] = msgspec.json.encode(msgspec.json.decode(s3.objects[key]) | {"checked": 1.0})


def listed_heads(s3: S3Server) -> dict[str, Any]:
    key = "bucket/store/odf-heads.json"
    return {name: entry["head"] for name, entry in msgspec.json.decode(s3.objects[key])["heads"].items()}


def test_the_list_of_heads_is_corrected(tmp_path: Path, s3: S3Server) -> None:
    a, b = machines(tmp_path, f"s3+{s3.endpoint}/bucket/store")
    here, other = make_root(a, slices=1), make_root(a, "other")
    a.close()
    b = again(b)
    b.datasets()
    with mock.patch.object(HeadsList, "note"):  # a program that does not know the list
        add_slices(here)
    assert listed_heads(s3)[here.id.multibase] != str(here.dataset.head())
    b = again(b)
    there = {str(entry.alias): entry for entry in b.datasets()}["numbers"]
    assert there.dataset.head() != here.dataset.head(), "the commit is only seen by a check"
    # Whoever opens the dataset corrects the entry; otherwise the check of all heads does.
    assert b.resolve("numbers").dataset.head() == here.dataset.head()
    b = again(b)
    assert listed_heads(s3)[here.id.multibase] == str(here.dataset.head())
    with mock.patch.object(HeadsList, "note"):
        add_slices(other)
        a.delete(here)
    expire_heads(s3)
    assert [entry.dataset.head() for entry in b.datasets()] == [other.dataset.head()]
    b = again(b)
    assert listed_heads(s3) == {other.id.multibase: str(other.dataset.head())}
    # Without the list, or with a damaged one, all heads are read, and the list is written again.
    key = "bucket/store/odf-heads.json"
    for content in (b"{", None):
        if content is None:
            del s3.objects[key]
        else:
            s3.objects[key] = content
        assert [entry.dataset.head() for entry in b.datasets()] == [other.dataset.head()]
        b = again(b)
        assert listed_heads(s3) == {other.id.multibase: str(other.dataset.head())}


def test_a_write_during_a_commit_lists_the_new_head(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odf_engine.mirror.heads_list._DELAY_SECONDS", 0.0)
    a, _ = machines(tmp_path, f"s3+{s3.endpoint}/bucket/store")
    entry = make_root(a)
    for _ in range(10):
        add_slices(entry, 1)
        a.close()
        assert listed_heads(s3)[entry.id.multibase] == str(entry.dataset.head())


def test_machines_write_the_list_of_heads_at_the_same_time(tmp_path: Path, url: str) -> None:
    workspaces = [Workspace.init(tmp_path / f"m{number}", url) for number in range(4)]
    entries = [make_root(workspace, f"numbers{n}") for n, workspace in enumerate(workspaces)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda entry: add_slices(entry, 5), entries))
        list(pool.map(Workspace.close, workspaces))
    (path,) = stored(url, "odf-heads.json")
    listed = msgspec.json.decode(path.read_bytes())["heads"]
    assert {name: entry["head"] for name, entry in listed.items()} == {
        entry.id.multibase: str(entry.dataset.head()) for entry in entries
    }
    # The end of a process waits for the list.
    code = (
        "import sys; from pathlib import Path; from odf_engine.workspace.workspace import Workspace; "
        "from tests.sync.builders import add_slices; "
        "add_slices(Workspace.find(explicit=Path(sys.argv[1])).resolve('numbers0'))"
    )
    subprocess.run(
        [sys.executable, "-c", code, workspaces[0].folder], check=True, cwd=Path(__file__).parents[2]
    )
    entries[0].dataset.refresh()
    listed = msgspec.json.decode(path.read_bytes())["heads"]
    assert listed[entries[0].id.multibase]["head"] == str(entries[0].dataset.head())
