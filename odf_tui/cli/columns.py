"""Which columns feed which, as a table, as JSON and as a graph for Graphviz."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from odf_engine.workspace.column_lineage import (
    ROWS,
    ColumnEdge,
    ColumnGraph,
    ColumnRef,
    DatasetColumns,
    build_column_graph,
    is_source,
)
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.output import options_of, print_json, print_table, say
from odf_tui.columnwords import HOW_WORDS, source_name, title_of
from odf_tui.humane import plain

_LINES: Final = {"identity": "solid", "transformation": "dashed", "aggregation": "bold", "unknown": "dotted"}


def show_columns(workspace: Workspace, names: Sequence[str], *, dot: bool) -> None:
    """Shows the columns of datasets and what feeds them; of all, or with names of these.

    Raises:
        NotFound: a name that no dataset has.
    """
    entries = workspace.match(names) if names else workspace.datasets()
    graph = build_column_graph(workspace, [entry.id for entry in entries] if names else None)
    if options_of().json:
        print_json({"datasets": [_document(graph, graph.datasets[str(entry.id)]) for entry in entries]})
    elif dot:
        sys.stdout.write(_dot(graph, entries))
    elif not entries:
        say("no datasets yet: odf new NAME --root prints a manifest to start from, odf add adds it")
    else:
        print_table(["dataset", "column", "from", "how"], _table(graph, entries))
        for entry in entries:
            if problem := graph.datasets[str(entry.id)].lineage.problem:
                say(f"{entry.alias}: {plain(problem)}; so every column may come from every other")


# --- For people ---


def _table(graph: ColumnGraph, entries: Iterable[DatasetEntry]) -> list[list[str]]:
    """A line for each link; what is said in the line above is left out."""
    rows: list[list[str]] = []
    for entry in entries:
        name = str(entry.alias)
        for column in [*graph.datasets[str(entry.id)].columns, ROWS]:
            shown = plain(column) if column != ROWS else "(its rows)"
            links = graph.inputs_of(ColumnRef(str(entry.id), column))
            for each in _from(graph, links) or ([("", "")] if column != ROWS else []):
                rows.append([name, shown, *each])
                name = shown = ""
    return rows


def _from(graph: ColumnGraph, links: Sequence[ColumnEdge]) -> list[tuple[str, str]]:
    return [
        (plain(f"{title_of(graph, link.source.dataset)}: {link.source.column}"), HOW_WORDS[link.how])
        for link in links
    ]


# --- For programs ---


def _document(graph: ColumnGraph, dataset: DatasetColumns) -> dict[str, Any]:
    """A dataset in JSON; the words for how are those of OpenLineage's column lineage."""
    outputs = [
        {
            "name": column,
            "from": [_part(graph, link) for link in graph.inputs_of(ColumnRef(dataset.id, column))],
        }
        for column in dataset.columns
    ]
    return {
        "id": dataset.id,
        "name": dataset.name,
        "columns": outputs,
        "rows": [_part(graph, link) for link in graph.inputs_of(ColumnRef(dataset.id, ROWS))],
        "problem": dataset.lineage.problem,
    }


def _part(graph: ColumnGraph, link: ColumnEdge) -> dict[str, Any]:
    if is_source(link.source.dataset):
        return {"source": True, "column": link.source.column, "how": link.how}
    known = graph.datasets[link.source.dataset]
    return {"dataset": known.name, "id": known.id, "column": link.source.column, "how": link.how}


# --- For Graphviz ---


def _dot(graph: ColumnGraph, entries: Sequence[DatasetEntry]) -> str:
    """Each dataset a table whose lines are columns, with links between them."""
    shown = {str(entry.id) for entry in entries}
    links = [link for link in graph.edges if link.target.dataset in shown]
    nodes = [*shown, *(link.source.dataset for link in links)]
    lines = ["digraph {", "  rankdir=LR;", "  node [shape=plain];"]
    lines += [_node(graph, dataset) for dataset in sorted(set(nodes), key=lambda each: title_of(graph, each))]
    for link in dict.fromkeys(links):
        source, target = _port(graph, link.source, "e"), _port(graph, link.target, "w")
        style = _LINES.get(link.how)
        look = f"style={style}" if style else f'style=dotted, color=gray, label="{HOW_WORDS[link.how]}"'
        lines.append(f"  {source} -> {target} [{look}];")
    return "\n".join([*lines, "}"]) + "\n"


def _node(graph: ColumnGraph, dataset: str) -> str:
    known = graph.datasets[dataset]
    cells = "".join(
        f'<TR><TD PORT="c{at}" ALIGN="LEFT">{escape(plain(column))}</TD></TR>'
        for at, column in enumerate(known.columns)
    )
    title = f'<TR><TD PORT="rows" BGCOLOR="lightgray"><B>{escape(source_name(graph, dataset))}</B></TD></TR>'
    table = f'<TABLE BORDER="0" CELLBORDER="1" CELLSPACING="0">{title}{cells}</TABLE>'
    return f"  {_quoted(dataset)} [label=<{table}>];"


def _port(graph: ColumnGraph, place: ColumnRef, side: str) -> str:
    columns = graph.datasets[place.dataset].columns
    port = f"c{columns.index(place.column)}" if place.column in columns else "rows"
    return f"{_quoted(place.dataset)}:{port}:{side}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
