"""Texts for column lineage; row provenance as Graphviz documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from odf_engine.provenance.model import OffsetRange, RowSource, TraceStep
from odf_engine.sql.lineage_model import ANY_COLUMN, TransformationType
from odf_engine.workspace.column_lineage import ROWS, ColumnGraph, is_source
from odf_tui.text import format
from odf_tui.text.format import printable

_MAX_RUNS: Final = 6


def runs_text(runs: Sequence[OffsetRange]) -> str:
    """Format ranges of offsets, such as ``3, 5..9``. Of many ranges only the first are shown."""
    shown = ", ".join(str(first) if first == last else f"{first}..{last}" for first, last in runs[:_MAX_RUNS])
    more = len(runs) - _MAX_RUNS
    return f"{shown}, …{runs[-1][1]}" if more > 0 else shown


def format_quantity(number: int, what: str) -> str:
    """Format a number of things, such as ``1 more block`` or ``3 more blocks``."""
    return f"{format.format_count(number)} {what}{'' if number == 1 else 's'}"


_MAX_SOURCES: Final = 20


def graphviz_document(step: TraceStep) -> str:
    """Return a trace as a Graphviz document."""
    drawing = _Drawing()
    drawing.add(step)
    return "\n".join(["digraph {", "  rankdir=LR;", "  node [fontname=sans];", *drawing.lines, "}"]) + "\n"


class _Drawing:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: dict[tuple[str, str], str] = {}

    def add(self, step: TraceStep) -> str:
        """Draw a step and all its inputs. Returns the name of its node."""
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
            line = f"  {self.add(before)} -> {name} [label={_text([feed.alias, columns])}{style}];"
            self.lines.append(line)
        for source in step.sources[:_MAX_SOURCES]:
            self._source(source, name)
        if (more := len(step.sources) - _MAX_SOURCES) > 0:
            self._from(f"{name}_more", [f"{format_quantity(more, 'more source')}"], name, "")
        return name

    def _source(self, source: RowSource, name: str) -> None:
        place = source.place or source.name or source.kind
        key = "source", place + source.state
        if key not in self._known:
            self._known[key] = f"n{len(self._known)}"
            self._node(self._known[key], [place, source.state], "note")
        label = _text([format.format_time(source.ingested), f"rows {runs_text(source.runs)}"])
        self.lines.append(f"  {self._known[key]} -> {name} [label={label}];")

    def _from(self, node: str, label: list[str], name: str, edge: str) -> None:
        self._node(node, label, "note")
        self.lines.append(f"  {node} -> {name} [label={_text([edge])}];")

    def _node(self, name: str, label: list[str], shape: str, *, dashed: bool = False) -> None:
        style = ", style=dashed" if dashed else ""
        self.lines.append(f"  {name} [shape={shape}, label={_text(label)}{style}];")


def _text(lines: list[str]) -> str:
    """Quote lines as a label. Text of a dataset cannot end the label."""
    return json.dumps("\n".join(format.printable(line) for line in lines if line), ensure_ascii=False)


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


def dataset_title(graphviz_document: ColumnGraph, dataset: str) -> str:
    """Return the name of a dataset, or of the source of a root."""
    known = graphviz_document.datasets.get(dataset)
    name = dataset if known is None else known.name
    return f"the source of {name}" if is_source(dataset) else name


def source_name(graphviz_document: ColumnGraph, dataset: str) -> str:
    """Return the name of a dataset or source, marked if it is not in the workspace."""
    missing = not is_source(dataset) and not graphviz_document.is_in_workspace(dataset)
    return printable(dataset_title(graphviz_document, dataset)) + (" (not here)" if missing else "")


def column_name(column: str) -> str:
    """Return the name of a column for the screen."""
    return {ROWS: "its rows", ANY_COLUMN: "any column"}.get(column, printable(column))
