"""The datasets that tests of exchange are made of are right."""

from __future__ import annotations

from pathlib import Path

from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.dataset import Dataset
from odf_engine.workspace.workspace import Workspace
from tests.sync import builders


def test_builders_create_the_requested_datasets(here: Workspace, there: Workspace, tmp_path: Path) -> None:
    root = builders.make_root(there, slices=2, blocks=3)
    builders.add_files(root, 2, 100)
    state = root.dataset.state()
    assert (state.blocks, state.slices, state.records) == (9, 4, 8)
    derived = builders.make_derivative(there, root)
    assert derived.dataset.state().last_checkpoint is not None
    copy = builders.copy_into(here, root)
    assert copy.dataset.state() == state
    builders.describe(copy, "another way")
    assert root.dataset.head() == state.head != copy.dataset.head()
    builders.as_old_repository(root.dataset.folder, tmp_path / "old")
    old = Dataset(tmp_path / "old", BlockIndex(":memory:"))
    assert old.state() == state
    assert all(old.slice_path(row).is_file() for row in old.slices())
