"""The real :class:`odf_tui.state.Source`: a workspace, its journal and its worker.

What is heavy (Arrow, the YAML writer) is imported when it is first needed, in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from odf_engine.chain.rows import BlockRow
from odf_engine.chain.state import ChainState
from odf_engine.coordinator.client import Client, read_journal
from odf_engine.coordinator.protocol import Job, JournalEvent
from odf_engine.errors import InvalidManifest, NotFound, OdfError
from odf_engine.metadata import model
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace import config as settings
from odf_engine.workspace.lineage import Graph
from odf_engine.workspace.workspace import DatasetEntry, Summary, Workspace
from odf_tui.humane import count, moment, size
from odf_tui.state import BlockLine, DatasetRow, Detail, Link, RowWindow

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.workspace.preview import Preview

JOBS: Final = 200


class WorkspaceSource:
    """What the screen needs of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
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
        rows = [dataset_row(summary) for summary in summaries]
        missing = (node for node in Graph(summaries).nodes.values() if node.missing)
        return rows + [DatasetRow(id=str(node.id), name=node.name, missing=True) for node in missing]

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
        entry = self._entry(dataset)
        state = entry.dataset.state()
        return Detail(tuple(_facts(entry, state, self._workspace)), _text(entry, state))

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

    def block_text(self, dataset: str, sequence_number: int) -> str:
        """A block as its YAML manifest; what comes from a newer specification is named above it."""
        from odf_engine.metadata.yaml import block_to_yaml

        stored = self._entry(dataset).dataset.block(sequence_number)
        head = f"# {stored.hash}\n# {count(stored.size)} bytes\n"
        if stored.unknown:
            head += "# from a newer specification: " + ", ".join(stored.unknown) + "\n"
        return head + block_to_yaml(stored.block, stored.version)

    def rows(self, dataset: str) -> RowWindow:
        """The rows of a dataset."""
        from odf_engine.workspace.preview import Preview

        chain = self._entry(dataset).dataset
        vocabulary = chain.state().vocabulary
        return _Rows(Preview(chain), vocabulary)

    # --- Doing ---

    def add(self, path: Path) -> dict[str, str]:
        """Adds the datasets of a manifest file: all of them or none."""
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
        entries = self._workspace.add(read_manifests(text, name))
        return {str(entry.id): str(entry.alias) for entry in entries}

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


def dataset_row(summary: Summary) -> DatasetRow:
    """A dataset as lists and graphs show it."""
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
        problem=summary.problem,
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


def _facts(entry: DatasetEntry, state: ChainState, workspace: Workspace) -> list[tuple[str, str]]:
    facts = [
        ("records", count(state.records)),
        ("data", f"{size(state.data_size)} in {count(state.slices)} slice{'' if state.slices == 1 else 's'}"),
        ("blocks", count(state.blocks)),
        ("watermark", moment(_time(state.watermark)) or "none yet"),
        ("pulled", moment(_time(state.last_data_time)) or "never"),
    ]
    if state.polling_source is not None:
        source = state.polling_source
        facts.append(("source", _fetch(source.fetch)))
        facts.append(("read", type(source.read).__name__))
        keys = ", ".join(getattr(source.merge, "primary_key", ()))
        facts.append(("merge", type(source.merge).__name__ + (f" on {keys}" if keys else "")))
    elif state.push_sources:
        facts.append(("push", ", ".join(state.push_sources)))
    if state.transform is not None:
        names = {str(each.id): str(each.alias) for each in workspace.datasets()}
        inputs = [names.get(str(each), str(each)) for each in state.inputs()]
        facts.append(("inputs", ", ".join(inputs)))
        facts.append(("engine", getattr(state.transform.transform, "engine", "?")))
    if state.license is not None:
        facts.append(("licence", state.license.short_name))
    if state.info is not None and state.info.description:
        facts.append(("about", state.info.description))
    facts.append(("id", "…" + str(entry.id)[-12:]))
    return facts


def _fetch(fetch: Any) -> str:
    for name in ("url", "path", "image", "host"):
        if value := getattr(fetch, name, None):
            return str(value)
    return type(fetch).__name__


def _text(entry: DatasetEntry, state: ChainState) -> str:
    """All of it as YAML: the settings in force, as events."""
    from odf_engine.metadata.yaml import to_yaml

    head = {
        "id": str(entry.id),
        "name": str(entry.alias),
        "kind": state.kind.value,
        "head": str(state.head),
        "folder": str(entry.dataset.folder),
    }
    lines = [f"{name}: {value}" for name, value in head.items()]
    settings_in_force: list[msgspec.Struct | None] = [
        state.polling_source,
        *state.push_sources.values(),
        state.transform,
        state.info,
        state.license,
        state.vocabulary,
    ]
    for event in settings_in_force:
        if event is not None:
            lines += ["", to_yaml(cast("Any", event)).rstrip()]
    if state.schema is not None:
        from odf_engine.data.arrow_schema import decode_schema

        lines += ["", "columns:"]
        for field in decode_schema(state.schema):
            null = "" if field.nullable else ", not null"
            lines.append(f"  {field.name}: {field.type}{null}")
    return "\n".join(lines) + "\n"
