"""What pane 1 reads: datasets, and what is known of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from odf_engine.errors import OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.metadata import model
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.dataset_summary import Summary, is_behind
from odf_tui.engine.sharing import ShareReads
from odf_tui.remotes import Remote
from odf_tui.state import DatasetRow, Detail


class DatasetReads(ShareReads):
    """Reads datasets."""

    def datasets(self) -> list[DatasetRow]:
        """Every dataset, and inputs that are not here."""
        entries = self.workspace.datasets()
        self._entries = {str(entry.id): entry for entry in entries}
        summaries = self.workspace.summaries(entries)
        remotes = self.remotes_of(summaries)
        rows = [
            with_remotes(replace(row, standing=self._standing(summary)), remotes.get(row.id, ()))
            for row, summary in zip(dataset_rows(summaries), summaries, strict=True)
        ]
        missing = (node for node in DatasetGraph(summaries).nodes.values() if node.missing)
        return rows + [DatasetRow(id=str(node.id), name=node.name, missing=True) for node in missing]

    def _standing(self, summary: Summary) -> Literal["own", "trusted", "not trusted"]:
        if not (summary.polls or summary.push_sources):
            return "own"  # nothing of it runs
        try:
            return self.trusts.describe_status(self._entries[str(summary.id)])
        except OdfError:
            return "not trusted"

    def detail(self, dataset: str) -> Detail:
        """What is known of a dataset."""
        from odf_tui.details import detail_of

        return detail_of(self.workspace, self.entry(dataset))


def with_remotes(row: DatasetRow, remotes: tuple[Remote, ...]) -> DatasetRow:
    """A dataset with its remotes. One that comes from elsewhere is not made here: how it stands to its
    inputs says nothing."""
    row = replace(row, remotes=remotes)
    return replace(row, behind=False, diverged=()) if row.comes_from_elsewhere else row


def dataset_rows(summaries: Sequence[Summary]) -> list[DatasetRow]:
    """Datasets as lists and graphs show them."""
    by_id = {summary.id: summary for summary in summaries}
    return [_dataset_row(summary, by_id) for summary in summaries]


def _dataset_row(summary: Summary, others: Mapping[DatasetId, Summary]) -> DatasetRow:
    return DatasetRow(
        id=str(summary.id),
        name=summary.name,
        derivative=summary.kind is model.DatasetKind.Derivative,
        inputs=tuple(str(each) for each in summary.inputs),
        head=str(summary.head or ""),
        blocks=summary.blocks,
        records=summary.records,
        size=summary.size,
        watermark=_time(summary.watermark),
        last_pulled=_time(summary.last_pulled),
        polls=summary.polls,
        push_sources=tuple(summary.push_sources),
        problem=summary.problem,
        behind=is_behind(summary, others),
        diverged=tuple(others[each].name if each in others else str(each) for each in summary.diverged),
    )


def _time(value: Timestamp | None) -> str | None:
    return None if value is None else str(value)
