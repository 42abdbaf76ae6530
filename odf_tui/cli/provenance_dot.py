"""A trace as a Graphviz document: sources and datasets as nodes, and which rows went where."""

from __future__ import annotations

import json
from typing import Final

from odf_engine.provenance.model import RowSource, TraceStep
from odf_tui import humane
from odf_tui.cli.provenance_tree import numbered, runs_text

_MOST_SOURCES: Final = 20


def graph(step: TraceStep) -> str:
    """The document."""
    drawing = _Drawing()
    drawing.add(step)
    return "\n".join(["digraph {", "  rankdir=LR;", "  node [fontname=sans];", *drawing.lines, "}"]) + "\n"


class _Drawing:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: dict[tuple[str, str], str] = {}

    def add(self, step: TraceStep) -> str:
        """Draws a step and all before it; returns the name of its node."""
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
        for source in step.sources[:_MOST_SOURCES]:
            self._source(source, name)
        if (more := len(step.sources) - _MOST_SOURCES) > 0:
            self._from(f"{name}_more", [f"{numbered(more, 'more source')}"], name, "")
        return name

    def _source(self, source: RowSource, name: str) -> None:
        place = source.place or source.name or source.kind
        key = "source", place + source.state
        if key not in self._known:
            self._known[key] = f"n{len(self._known)}"
            self._node(self._known[key], [place, source.state], "note")
        label = _text([humane.moment(source.ingested), f"rows {runs_text(source.runs)}"])
        self.lines.append(f"  {self._known[key]} -> {name} [label={label}];")

    def _from(self, node: str, label: list[str], name: str, edge: str) -> None:
        self._node(node, label, "note")
        self.lines.append(f"  {node} -> {name} [label={_text([edge])}];")

    def _node(self, name: str, label: list[str], shape: str, *, dashed: bool = False) -> None:
        style = ", style=dashed" if dashed else ""
        self.lines.append(f"  {name} [shape={shape}, label={_text(label)}{style}];")


def _text(lines: list[str]) -> str:
    """A label of some lines; the dataset's own text cannot break out of it."""
    return json.dumps("\n".join(humane.plain(line) for line in lines if line), ensure_ascii=False)
