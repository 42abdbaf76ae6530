"""Datasets that are pulled, for the tests of whole pulls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from odf_engine.chain.dataset import Dataset
from odf_engine.chain.state import ChainUpdate
from odf_engine.data.parquet.slices import read_batches
from odf_engine.errors import OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.ingest.polling_source import PullOptions, pull
from odf_engine.metadata.model import AddData
from odf_engine.metadata.yaml import read_manifests
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.changelog_state import latest_state
from tests.ingest.recorder import Recorder

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
{source}
"""


class Pulled:
    """A workspace in which datasets are made from manifests and pulled."""

    def __init__(self, workspace: Workspace, runtime: SparkRuntime) -> None:
        self.workspace = workspace
        self.runtime = runtime
        self.reporter = Recorder()
        self.entry: DatasetEntry

    @property
    def dataset(self) -> Dataset:
        return self.entry.dataset

    def add(self, source: str, *, name: str = "data", more: str = "") -> DatasetEntry:
        """A dataset with this polling source in YAML; ``more`` are further events."""
        indented = "\n".join("      " + line for line in source.strip("\n").splitlines())
        events = "\n".join("    " + line for line in more.strip("\n").splitlines())
        text = MANIFEST.format(name=name, source=indented) + events
        (self.entry,) = self.workspace.add(read_manifests(text, "test.yaml"))
        return self.entry

    def write(self, name: str, text: str | bytes) -> Path:
        """A file in the workspace's folder."""
        path = self.workspace.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def pull(self, **options: Any) -> ChainUpdate:
        """Pulls; nothing temporary may be left."""
        self.reporter = Recorder()
        try:
            return pull(self.workspace, self.entry, self.runtime, self.reporter, PullOptions(**options))
        finally:
            assert list((self.workspace.odf / "cache").glob("pull-*")) == []
            assert [path.name for path in self.dataset.folder.glob("*/.pending*")] == []

    def fails(self, kind: type[OdfError], *texts: str, **options: Any) -> OdfError:
        """Pulls and expects an error whose text and hint have these parts; the head stays."""
        head = self.dataset.head()
        files = sorted(self.dataset.folder.glob("*/*"))
        with pytest.raises(kind) as caught:
            self.pull(**options)
        said = f"{caught.value} {caught.value.hint} {caught.value.excerpt}"
        for text in texts:
            assert text in said, said
        assert self.dataset.head() == head
        assert [path for path in sorted(self.dataset.folder.glob("[bdr]*/*")) if path not in files] == []
        return caught.value

    def table(self, name: str | None = None) -> pa.Table:
        """All rows of the dataset."""
        paths = [self.dataset.slice_path(row) for row in self.dataset.slices()]
        return pa.concat_tables(pa.Table.from_batches(read_batches(path)) for path in paths)

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """All rows, of these columns."""
        table = self.table().select(list(columns))
        return [tuple(row.values()) for row in table.to_pylist()]

    def state_after(self, block: Multihash, primary_key: list[str]) -> pa.Table:
        """What the changelog amounts to at a block."""
        event = self.dataset.block(block).block.event
        assert isinstance(event, AddData)
        assert event.new_data is not None
        slices = self.dataset.slices(last_offset=event.new_data.offset_interval.end)
        batches = (batch for row in slices for batch in read_batches(self.dataset.slice_path(row)))
        return latest_state(batches, primary_key, self.dataset.state().vocabulary)

    def kinds(self) -> list[str]:
        """The kinds of events of the chain, oldest first."""
        return [row.kind for row in reversed(self.dataset.list_blocks(1000))]

    def newest(self) -> AddData:
        """The newest block's event."""
        event = next(iter(self.dataset.blocks())).block.event
        assert isinstance(event, AddData)
        return event
