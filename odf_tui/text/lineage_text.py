"""Lineage of datasets and columns as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from odf_engine.api import (
    ANY_COLUMN,
    ROWS,
    ColumnGraph,
    ColumnRef,
    DatasetKind,
    TransformationType,
    is_source,
)
from odf_engine.api.text import printable
from odf_tui.text.format import dataset_glyph
from odf_tui.text.graph_layout import lay_out

HOW_WORDS: Final[dict[TransformationType, str]] = {
    "identity": "copy",
    "transformation": "expression",
    "aggregation": "aggregate",
    "unknown": "unknown",
    "join": "join key",
    "group_by": "grouping key",
    "filter": "filter",
    "window": "window",
    "sort": "sort key",
}
SHORT: Final[dict[TransformationType, str]] = {
    "identity": "copy",
    "transformation": "expr",
    "aggregation": "agg",
    "unknown": "?",
    "join": "join",
    "group_by": "group",
    "filter": "filter",
    "window": "window",
    "sort": "sort",
}


def dataset_title(graph: ColumnGraph, dataset: str) -> str:
    """Return the title of a dataset, or of the source of a root dataset."""
    known = graph.datasets.get(dataset)
    name = dataset if known is None else known.name
    return f"source of {name}" if is_source(dataset) else name


def source_name(graph: ColumnGraph, dataset: str) -> str:
    """Return the title of a dataset in printable form, with a note if it is missing in the workspace."""
    missing = not is_source(dataset) and not graph.is_in_workspace(dataset)
    return printable(dataset_title(graph, dataset)) + (" (missing)" if missing else "")


def column_name(column: str) -> str:
    """Return the name of a column in printable form."""
    return {ROWS: "(rows)", ANY_COLUMN: "any column"}.get(column, printable(column))


def column_rows(graph: ColumnGraph, datasets: Iterable[str]) -> Iterator[list[str]]:
    """Yield the rows of a table of column lineage: dataset, column, input column, and how it contributes.

    Dataset and column are empty where they repeat the row above.

    Args:
        datasets: ids.
    """
    for dataset in datasets:
        name = graph.datasets[dataset].name
        for column in [*graph.datasets[dataset].columns, ROWS]:
            shown = printable(column) if column != ROWS else "(rows)"
            links = [
                (
                    printable(f"{dataset_title(graph, link.source.dataset)}: {link.source.column}"),
                    HOW_WORDS[link.how],
                )
                for link in graph.inputs_of(ColumnRef(dataset, column))
            ]
            for link in links or ([("", "")] if column != ROWS else []):
                yield [name, shown, *link]
                name = shown = ""


def dataset_graph_lines(
    datasets: Sequence[tuple[str, DatasetKind]], edges: Sequence[tuple[str, str]]
) -> Iterator[str]:
    """Draw the graph of datasets; inputs that are missing in the workspace have a question mark.

    Args:
        edges: names of inputs and outputs.
    """
    labels = {source: f"? {source}" for source, _ in edges}
    for name, kind in datasets:
        labels[name] = f"{dataset_glyph(derivative=kind is not DatasetKind.Root)} {name}"
    drawn = lay_out({name: len(label) for name, label in labels.items()}, edges)
    canvas = [list(line) for line in drawn.lines]
    for name, place in drawn.positions.items():
        canvas[place.y][place.x : place.x + len(labels[name])] = labels[name]
    for line in canvas:
        yield "".join(line).rstrip()
