"""Inputs of manifests that are in remotes: the prompt, the pull, and errors without a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Odf
from tests.sync.builders import as_repository, make_root

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{{datasetRef: {ref}}}]
      transform: {{kind: Sql, engine: spark, query: "SELECT event_time FROM `{ref}`"}}
"""


@pytest.fixture
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the datasets ``numbers`` and ``joe/cities``."""
    folder, there = tmp_path_factory.mktemp("shop"), Workspace.init(tmp_path_factory.mktemp("there"))
    for name in ("numbers", "joe/cities"):
        as_repository(make_root(there, name, slices=1).dataset.folder, folder / name)
    return folder


def test_missing_remote_inputs_require_pull_inputs(fresh: Odf, shop: Path, tmp_path: Path) -> None:
    assert fresh("repo", "add", "shop", str(shop)).code == 0
    url = f"file://{shop}/joe/cities"
    (tmp_path / "first.yaml").write_text(MANIFEST.format(name="first", ref="shop/numbers"))
    (tmp_path / "second.yaml").write_text(MANIFEST.format(name="second", ref=url))
    ran = fresh("add", "first.yaml", "second.yaml")
    assert ran.code == 1 and "inputs are in remotes and not in this workspace" in ran.err
    assert f"'shop/numbers' (input of first), '{url}' (input of second)" in ran.err
    assert "odf add --pull-inputs, or: odf pull shop/numbers shop/joe/cities" in ran.err
    assert fresh("list", "--json").json == []
    ran = fresh("add", "first.yaml", "second.yaml", "--pull-inputs", "--json")
    assert ran.code == 0, ran.err
    assert [each["name"] for each in ran.json] == ["first", "second"]
    workspace = Workspace(tmp_path)
    for name, text, local in (("first", "shop/numbers", "numbers"), ("second", url, "cities")):
        transform = workspace.resolve(name).dataset.state().transform
        assert transform is not None
        (item,) = transform.inputs
        assert (item.dataset_ref, item.alias) == (str(workspace.resolve(local).id), text)
    # The input was pulled: neither a prompt nor the option is required, and the manifest does not differ.
    (tmp_path / "third.yaml").write_text(MANIFEST.format(name="third", ref="shop/numbers"))
    assert fresh("add", "third.yaml").code == 0
    assert fresh("add", "--update", "third.yaml", "--json").json[0]["status"] == "unchanged"
    # An unknown repository is an account, and an unreachable remote is an error.
    (tmp_path / "fourth.yaml").write_text(MANIFEST.format(name="fourth", ref="shop/nothing"))
    ran = fresh("add", "fourth.yaml", "--pull-inputs")
    assert ran.code == 1 and "shop/nothing" in ran.err
    (tmp_path / "fifth.yaml").write_text(MANIFEST.format(name="fifth", ref="http://user:x@host/a"))
    ran = fresh("add", "fifth.yaml", "--pull-inputs")
    assert ran.code == 2 and "dataset fifth, input" in ran.err
    assert fresh("worker", "status").out.splitlines()[1].strip() == "Spark: off"
