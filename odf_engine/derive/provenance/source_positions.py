"""Adds positions in the publisher's files to the sources of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.data.arrow_compute import python_values
from odf_engine.data.changelog import Op
from odf_engine.derive.provenance.model import OffsetRange, RowSource, SourcePosition
from odf_engine.derive.provenance.root_origins import RootOrigin
from odf_engine.errors import Cancelled, OdfError, Unsupported
from odf_engine.ingest.row_positions import SoughtRow, find_rows
from odf_engine.metadata.model import SetPollingSource, Snapshot
from odf_engine.rows.scan import Scan
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.column_lineage import dataset_lineage
from odf_engine.workspace.documents.private_source import local_state
from odf_engine.workspace.workspace import Workspace

_MAX_ROWS: Final = 20
"""Maximum number of rows that are searched for in files: the newest."""


def locate_sources(
    workspace: Workspace, entry: DatasetEntry, origin: RootOrigin, reporter: Reporter
) -> list[RowSource]:
    """Return the sources of rows with the positions of the newest rows.

    Args:
        workspace: the workspace.
        entry: the root dataset.
        origin: the origin of the rows.
        reporter: can cancel.

    Raises:
        Cancelled: the job was cancelled.
    """
    left = _MAX_ROWS
    located: list[RowSource] = []
    for source, (declared, state) in zip(reversed(origin.sources), reversed(origin.declared), strict=True):
        if declared is None or not left:
            located.append(source)
            continue
        try:
            rows = _sought_rows(workspace, entry, declared, _newest(source.runs, left), reporter)
            if not rows:
                located.append(source)
                continue
            positions = find_rows(workspace, entry, declared, state, rows, reporter)
        except Cancelled:
            raise
        except (OdfError, OSError, ValueError) as error:  # ValueError: an invalid URL, for example
            reason = error.message if isinstance(error, OdfError) else str(error)
            located.append(replace(source, unlocated=reason))
            continue
        left -= len(rows)
        newest_first = [
            SourcePosition(offset, str(position.path), position.place, position.line, position.text)
            for offset, position in sorted(positions.items(), reverse=True)
        ]
        located.append(replace(source, positions=newest_first))
    return located[::-1]


def _newest(runs: Sequence[OffsetRange], count: int) -> list[OffsetRange]:
    """Return the last rows of ranges."""
    kept: list[OffsetRange] = []
    for first, last in reversed(runs):
        if count <= 0:
            break
        first = max(first, last - count + 1)
        kept.append((first, last))
        count -= last - first + 1
    return kept[::-1]


def _sought_rows(
    workspace: Workspace,
    entry: DatasetEntry,
    source: SetPollingSource,
    runs: Sequence[OffsetRange],
    reporter: Reporter,
) -> list[SoughtRow]:
    """Return rows with the values that the ingest does not change, except those that the file lacks.

    The file lacks the values before a correction, and the retracted rows of a snapshot.

    Raises:
        Unsupported: the query of the source changes all columns, or was replaced.
        OdfError: the rows cannot be read.
    """
    scan = Scan.of_dataset(entry.dataset)
    offset, operation, system_time = scan.system_columns
    names = [name for name in scan.schema.names if name not in (offset, operation, system_time)]
    in_file = _unchanged_columns(workspace, entry, source, names)
    if not in_file:
        raise Unsupported("the query of the source changes all columns")
    key = {name.casefold() for name in getattr(source.merge, "primary_key", ())}
    in_key = frozenset(in_file[name] for name in in_file if name.casefold() in key)
    absent = {Op.CORRECT_FROM, *([Op.RETRACT] if isinstance(source.merge, Snapshot) else ())}
    rows: list[SoughtRow] = []
    spans = [(first, last + 1) for first, last in runs]
    for batch in scan.select([offset, operation, *in_file]).rows(spans).batches(reporter):
        columns = {name: python_values(batch.column(name)) for name in in_file}
        for at, (number, op) in enumerate(
            zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        ):
            if op not in absent:
                values = {in_file[name]: column[at] for name, column in columns.items()}
                rows.append(SoughtRow(number, values, in_key if len(in_key) == len(key) else frozenset()))
    return rows


def _unchanged_columns(
    workspace: Workspace, entry: DatasetEntry, source: SetPollingSource, names: Sequence[str]
) -> Mapping[str, str]:
    """Return the columns that are copied from the file, with their names there in lower case."""
    if source.preprocess is None:
        return {name: name.casefold() for name in names}
    current: Any = local_state(entry.dataset).polling_source
    if current != source:
        raise Unsupported("the query of the source was replaced after the rows were ingested")
    outputs = dataset_lineage(workspace, entry).outputs
    return {
        name: outputs[name][0].column.casefold()
        for name in names
        if len(outputs.get(name, ())) == 1 and outputs[name][0].how == "identity"
    }
