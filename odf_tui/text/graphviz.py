"""Traces of rows, columns and datasets as Graphviz documents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from odf_engine.api import ColumnGraph, ColumnRef, DatasetKind, RowSource, TraceStep
from odf_engine.api.text import count_of, format_zoned_time, printable
from odf_tui.text.lineage_text import HOW_WORDS, dataset_title, source_name
from odf_tui.text.row_trace import runs_text

_MAX_SOURCES: Final = 20
_EDGE_STYLES: Final = {
    "identity": "solid",
    "transformation": "dashed",
    "aggregation": "bold",
    "unknown": "dotted",
}


def quote(lines: Iterable[str]) -> str:
    """Return lines as a quoted string. Untrusted text cannot end the string."""
    return json.dumps("\n".join(printable(line) for line in lines if line), ensure_ascii=False)


def dataset_graph_to_dot(
    datasets: Iterable[tuple[str, DatasetKind]], edges: Iterable[tuple[str, str]]
) -> str:
    """Return the graph of datasets; ``edges`` lead from the name of an input to its output's."""
    lines = ["digraph {", "  rankdir=LR;"]
    for name, kind in datasets:
        shape = "box" if kind is DatasetKind.Root else "ellipse"
        lines.append(f"  {quote([name])} [shape={shape}];")
    lines += [f"  {quote([source])} -> {quote([target])};" for source, target in edges]
    return "\n".join([*lines, "}"]) + "\n"


def column_graph_to_dot(graph: ColumnGraph, datasets: Iterable[str]) -> str:
    """Return the lineage of the columns of datasets (ids): each dataset is a table, edges join columns."""
    shown = set(datasets)
    links = [link for link in graph.edges if link.target.dataset in shown]
    nodes = {*shown, *(link.source.dataset for link in links)}
    lines = ["digraph {", "  rankdir=LR;", "  node [shape=plain];"]
    nodes = sorted(nodes, key=lambda dataset: dataset_title(graph, dataset))
    lines += [_column_table(graph, dataset) for dataset in nodes]
    for link in dict.fromkeys(links):
        source, target = _port(graph, link.source, "e"), _port(graph, link.target, "w")
        style = _EDGE_STYLES.get(link.how)
        look = f"style={style}" if style else f'style=dotted, color=gray, label="{HOW_WORDS[link.how]}"'
        lines.append(f"  {source} -> {target} [{look}];")
    return "\n".join([*lines, "}"]) + "\n"


def _column_table(graph: ColumnGraph, dataset: str) -> str:
    cells = "".join(
        f'<TR><TD PORT="c{at}" ALIGN="LEFT">{escape(printable(column))}</TD></TR>'
        for at, column in enumerate(graph.datasets[dataset].columns)
    )
    title = f'<TR><TD PORT="rows" BGCOLOR="lightgray"><B>{escape(source_name(graph, dataset))}</B></TD></TR>'
    table = f'<TABLE BORDER="0" CELLBORDER="1" CELLSPACING="0">{title}{cells}</TABLE>'
    return f"  {quote([dataset])} [label=<{table}>];"


def _port(graph: ColumnGraph, place: ColumnRef, side: str) -> str:
    columns = graph.datasets[place.dataset].columns
    port = f"c{columns.index(place.column)}" if place.column in columns else "rows"
    return f"{quote([place.dataset])}:{port}:{side}"


def trace_to_dot(step: TraceStep) -> str:
    """Return the graph of a trace: steps and sources are nodes, rows flow along the edges."""
    drawing = _TraceDrawing()
    drawing.add(step)
    return "\n".join(["digraph {", "  rankdir=LR;", "  node [fontname=sans];", *drawing.lines, "}"]) + "\n"


class _TraceDrawing:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: dict[tuple[str, str], str] = {}

    def add(self, step: TraceStep) -> str:
        """Draw a step and all steps upstream of it; return the name of its node."""
        key = step.dataset, runs_text(step.runs)
        if (known := self._known.get(key)) is not None:
            return known
        name = self._known[key] = f"n{len(self._known)}"
        shape = "box" if step.kind == "root" else "ellipse"
        label = [step.name, f"rows {key[1]}", *([step.problem] if step.problem else [])]
        self._node(name, label, shape, dashed=step.problem is not None)
        for feed in step.feeds:
            before = feed.step or TraceStep(feed.dataset, feed.name, "derivative", feed.runs, feed.rows)
            columns = ", ".join(f"{column} ({how})" for column, how in feed.columns)
            style = "" if step.exact else ", style=dashed"
            line = f"  {self.add(before)} -> {name} [label={quote([feed.alias, columns])}{style}];"
            self.lines.append(line)
        for source in step.sources[:_MAX_SOURCES]:
            self._source(source, name)
        if (more := len(step.sources) - _MAX_SOURCES) > 0:
            self._from(f"{name}_more", [count_of(more, "more source")], name, "")
        return name

    def _source(self, source: RowSource, name: str) -> None:
        place = source.place or source.name or source.kind
        key = "source", place + source.state
        if key not in self._known:
            self._known[key] = f"n{len(self._known)}"
            self._node(self._known[key], [place, source.state], "note")
        label = quote([format_zoned_time(source.ingested), f"rows {runs_text(source.runs)}"])
        self.lines.append(f"  {self._known[key]} -> {name} [label={label}];")

    def _from(self, node: str, label: Sequence[str], name: str, edge: str) -> None:
        self._node(node, label, "note")
        self.lines.append(f"  {node} -> {name} [label={quote([edge])}];")

    def _node(self, name: str, label: Sequence[str], shape: str, *, dashed: bool = False) -> None:
        style = ", style=dashed" if dashed else ""
        self.lines.append(f"  {name} [shape={shape}, label={quote(label)}{style}];")
