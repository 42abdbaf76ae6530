"""Words for which columns feed which."""

from __future__ import annotations

from typing import Final

from odf_engine.sql.lineage_model import ANY_COLUMN, TransformationType
from odf_engine.workspace.column_lineage import ROWS, ColumnGraph, is_source
from odf_tui.humane import plain

HOW_WORDS: Final[dict[TransformationType, str]] = {
    "identity": "as it is",
    "transformation": "made from it",
    "aggregation": "from many rows",
    "unknown": "not known how",
    "join": "joins rows",
    "group_by": "groups rows",
    "filter": "chooses rows",
    "window": "puts rows into windows",
    "sort": "orders rows",
}
SHORT: Final[dict[TransformationType, str]] = {
    "identity": "as is",
    "transformation": "made",
    "aggregation": "many",
    "unknown": "?",
    "join": "join",
    "group_by": "group",
    "filter": "filter",
    "window": "window",
    "sort": "sort",
}


def title_of(graph: ColumnGraph, dataset: str) -> str:
    """What a dataset is called; what a root reads is its source."""
    known = graph.datasets.get(dataset)
    name = dataset if known is None else known.name
    return f"the source of {name}" if is_source(dataset) else name


def source_name(graph: ColumnGraph, dataset: str) -> str:
    """The same, and that an input is not here."""
    missing = not is_source(dataset) and not graph.is_in_workspace(dataset)
    return plain(title_of(graph, dataset)) + (" (not here)" if missing else "")


def column_name(column: str) -> str:
    """What a column is called."""
    return {ROWS: "its rows", ANY_COLUMN: "any column"}.get(column, plain(column))
