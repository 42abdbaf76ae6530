"""The real :class:`odf_tui.state.Source`: a workspace, its journal and its worker.

What is heavy (Arrow, the YAML writer) is imported when it is first needed, in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

from msgspec.structs import replace

from odf_engine.chain.rows import BlockRow
from odf_engine.coordinator.client import Client, read_journal
from odf_engine.coordinator.protocol import Job, JournalEvent
from odf_engine.errors import Conflict, InvalidManifest, NotFound, OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.refs import DatasetAlias
from odf_engine.metadata import model
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace import config as settings
from odf_engine.workspace import trust
from odf_engine.workspace.lineage import Graph
from odf_engine.workspace.summary import is_behind
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import DatasetEntry, Summary, Workspace
from odf_tui.humane import count
from odf_tui.source import Link, RowWindow
from odf_tui.state import BlockLine, BlockText, Change, DatasetRow, Detail, Execution, Standing

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.workspace.preview import Preview

JOBS: Final = 200


class WorkspaceSource:
    """What the screen needs of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._trust = Trust(workspace)
        self._entries: dict[str, DatasetEntry] = {}

    @property
    def folder(self) -> Path:
        """The workspace's folder."""
        return self._workspace.folder

    @property
    def theme(self) -> str:
        """The configured theme."""
        return self._workspace.config.ui.theme

    def save_theme(self, name: str) -> None:
        """Remembers the theme in the workspace's settings."""
        path = self._workspace.config_path
        settings.save(settings.set_value(settings.load(path), "ui.theme", name), path)

    # --- Datasets ---

    def datasets(self) -> list[DatasetRow]:
        """Every dataset, and inputs that are not here."""
        summaries = self._workspace.summaries()
        known = {dataset: str(entry.alias) for dataset, entry in self._entries.items()}
        if any(known.get(str(summary.id)) != summary.name for summary in summaries):
            self._entries = {}  # there are new ones, or other names
        rows = [
            replace(row, standing=self._standing(summary))
            for row, summary in zip(dataset_rows(summaries), summaries, strict=True)
        ]
        missing = (node for node in Graph(summaries).nodes.values() if node.missing)
        return rows + [DatasetRow(id=str(node.id), name=node.name, missing=True) for node in missing]

    def _standing(self, summary: Summary) -> Literal["own", "trusted", "not trusted"]:
        if not (summary.polls or summary.push_sources):
            return "own"  # nothing of it runs
        try:
            return self._trust.standing(self._entry(str(summary.id)))
        except OdfError:
            return "not trusted"

    def _entry(self, dataset: str) -> DatasetEntry:
        entry = self._entries.get(dataset)
        if entry is None or not entry.dataset.folder.is_dir():
            self._entries = {str(each.id): each for each in self._workspace.datasets()}
            entry = self._entries.get(dataset)
        if entry is None:
            raise NotFound("this dataset is not in the workspace")
        return entry

    def detail(self, dataset: str) -> Detail:
        """What is known of a dataset."""
        from odf_tui.details import detail_of

        return detail_of(self._workspace, self._entry(dataset))

    # --- Blocks ---

    def blocks(self, dataset: str, limit: int, before: int | None, text: str) -> list[BlockLine]:
        """Blocks, newest first; ``text`` matches kinds of events, a sequence number or a hash."""
        chain = self._entry(dataset).dataset
        if not text:
            return [_line(row) for row in chain.page(limit, before)]
        kinds = {kind for kind in _KINDS if text.lower() in kind.lower()}
        found = [_line(row) for row in chain.page(limit, before, kinds)] if kinds else []
        if text.isdigit():
            found += [_line(row) for row in chain.page(1, int(text) + 1) if row.sequence_number == int(text)]
        if len(text) >= 4:
            found += self._by_hash(dataset, text)
        unique = {line.sequence_number: line for line in found}
        return sorted(unique.values(), key=lambda line: -line.sequence_number)

    def _by_hash(self, dataset: str, text: str) -> list[BlockLine]:
        chain = self._entry(dataset).dataset
        try:
            number = chain.block(chain.find_block(text)).block.sequence_number
        except OdfError:
            return []
        return [_line(row) for row in chain.page(1, number + 1)]

    def block(self, dataset: str, sequence_number: int) -> BlockText:
        """A block as its YAML manifest; what comes from a newer specification is named above it."""
        from odf_engine.metadata.yaml import block_to_yaml
        from odf_tui.transactions import transaction_of

        entry = self._entry(dataset)
        stored = entry.dataset.block(sequence_number)
        head = f"# {stored.hash}\n# {count(stored.size)} bytes\n"
        if stored.unknown:
            head += "# from a newer specification: " + ", ".join(stored.unknown) + "\n"
        text = head + block_to_yaml(stored.block, stored.version)
        return BlockText(text, transaction_of(self._workspace, entry, stored))

    def rows(self, dataset: str) -> RowWindow:
        """The rows of a dataset."""
        from odf_engine.workspace.preview import Preview

        chain = self._entry(dataset).dataset
        vocabulary = chain.state().vocabulary
        return _Rows(Preview(chain), vocabulary)

    # --- Doing ---

    def add(self, path: Path) -> dict[str, str]:
        """Adds the datasets of a manifest file: all of them or none."""
        entries = self._workspace.add(self._manifests(path))
        return {str(entry.id): str(entry.alias) for entry in entries}

    def _manifests(self, path: Path) -> list[model.DatasetSnapshot]:
        from odf_engine.metadata.yaml import read_manifests

        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InvalidManifest("is not UTF-8 text", where=str(path)) from None
        except FileNotFoundError:
            raise NotFound("there is no such file", where=str(path)) from None
        except OSError as error:
            raise NotFound(f"cannot be read: {error.strerror}", where=str(path)) from None
        name = str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else str(path)
        return read_manifests(text, name)

    def query_in(self, path: Path) -> str:
        """The name of the one derivative dataset of a manifest file; empty when it has another or several."""
        snapshots = self._manifests(path)
        derivative = len(snapshots) == 1 and snapshots[0].kind is model.DatasetKind.Derivative
        return snapshots[0].name if derivative else ""

    def definition(self, dataset: str) -> str:
        """A dataset's definition as its chain has it, as a manifest."""
        from odf_engine.metadata.yaml import snapshot_to_yaml
        from odf_engine.workspace.definitions import snapshot_of

        names = {entry.id: str(entry.alias) for entry in self._workspace.datasets()}
        return snapshot_to_yaml(snapshot_of(self._entry(dataset), names))

    def update(self, dataset: str, path: Path, *, dry_run: bool) -> list[Change]:
        """Makes a dataset what a manifest says."""
        alias = self._entry(dataset).alias
        snapshots = self._manifests(path)
        if len(snapshots) != 1 or DatasetAlias.parse(snapshots[0].name) != alias:
            raise InvalidManifest(
                f"this has to be the definition of {alias}, and of nothing else",
                hint="odf rename gives a dataset another name; a adds another dataset",
            )
        (update,) = self._workspace.update(snapshots, dry_run=dry_run)
        return [Change(change.title, tuple(change.lines)) for change in update.changes]

    # --- Trust ---

    def standing(self, dataset: str) -> Standing:
        """What a dataset that somebody else wrote would run."""
        entry = self._entry(dataset)
        return Standing(
            self._trust.origin(entry) or "",
            _shown(self._trust.what_runs(entry)),
            self._trust.grant_of(entry) is not None,
        )

    def trust(self, dataset: str, shown: Standing) -> None:
        """Lets a dataset run what was shown."""
        entry = self._entry(dataset)
        runs = self._trust.what_runs(entry)
        if _shown(runs) != shown.runs:
            raise Conflict("its sources changed meanwhile", hint="look at what they run now, and decide")
        self._trust.grant(entry, shown=runs)

    def untrust(self, dataset: str) -> bool:
        """Takes that back."""
        return self._trust.revoke(self._entry(dataset))

    # --- Jobs ---

    def jobs(self) -> tuple[list[Job], int]:
        """Recent jobs, and up to where the journal was read."""
        journal = read_journal(self._workspace.folder)
        last = journal.last_seq()  # before the jobs: what comes between is told twice, never lost
        return journal.jobs(JOBS), last

    def log(self, job: str) -> Sequence[JournalEvent]:
        """The journal of one job."""
        from odf_tui.state import LOG_LINES

        return read_journal(self._workspace.folder).tail(LOG_LINES, job=job)

    async def connect(self) -> Link:
        """Attaches to the worker, or starts it."""
        return cast("Link", await Client.connect(self._workspace.folder))


class _Rows:
    """A preview, and which of its columns are the system's."""

    def __init__(self, preview: Preview, vocabulary: model.DatasetVocabulary) -> None:
        self._preview = preview
        self.system_columns = (
            vocabulary.offset_column,
            vocabulary.operation_type_column,
            vocabulary.system_time_column,
            vocabulary.event_time_column,
        )

    @property
    def columns(self) -> pa.Schema:
        return self._preview.columns

    @property
    def row_count(self) -> int:
        return self._preview.row_count

    def window(self, start: int, count: int) -> pa.Table:
        return self._preview.window(start, count)


_KINDS: Final = [member.__name__ for member in model.MetadataEvent.__args__]


def _shown(runs: Sequence[trust.Execution]) -> tuple[Execution, ...]:
    return tuple(Execution(trust.KINDS.get(run.kind, run.kind), run.text, str(run.block)) for run in runs)


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


def _line(row: BlockRow) -> BlockLine:
    adds = row.kind in ("AddData", "ExecuteTransform")
    return BlockLine(
        row.sequence_number,
        str(row.hash),
        str(row.system_time),
        row.kind,
        row.rows if adds else None,
        row.summary,
    )
