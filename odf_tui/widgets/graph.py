"""Pane 1: who feeds whom, and how everybody is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.geometry import Size

from odf_engine.coordinator.protocol import Failure, Job
from odf_tui.dag import Layout, Place, layout
from odf_tui.humane import plain, shorten
from odf_tui.layers import Edge
from odf_tui.state import DatasetRow, Detail, Health
from odf_tui.widgets.lines import LineView, Paragraphs, Span
from odf_tui.widgets.pane import Pane

UNTRUSTED = "⊘"
_NAME_WIDTH = 34
_CARD_KEYS = 11


def visible_graph(rows: Sequence[DatasetRow], text: str) -> tuple[list[DatasetRow], list[Edge]]:
    """The datasets whose names hold ``text``, and who feeds whom among them, directly or through others."""
    by_id = {row.id: row for row in rows}
    shown = {row.id for row in rows if text.lower() in row.name.lower()}
    edges: list[Edge] = []
    for row in rows:
        if row.id not in shown:
            continue
        seen: set[str] = set()
        todo = list(row.inputs)
        while todo:
            source = todo.pop()
            if source in seen:
                continue
            seen.add(source)
            if source in shown:
                edges.append((source, row.id))
            elif source in by_id:
                todo += by_id[source].inputs
    return [row for row in rows if row.id in shown], edges


def _closure(start: str, arrows: Mapping[str, Sequence[str]]) -> set[str]:
    seen: set[str] = set()
    todo = list(arrows.get(start, ()))
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += arrows.get(node, ())
    return seen


class GraphView(LineView):
    """The graph: h and l walk along the lineage, j and k through the rows."""

    def __init__(self) -> None:
        super().__init__(id="graph")
        self.rows: list[DatasetRow] = []
        self.healths: Mapping[str, Health] = {}
        self.selected: str | None = None
        self.filter = ""
        self._shown: dict[str, DatasetRow] = {}
        self._key: object = None
        self._layout: Layout = layout({}, [])
        self._at_row: list[list[tuple[Place, str]]] = []
        self._inputs: dict[str, list[str]] = {}
        self._outputs: dict[str, list[str]] = {}
        self._related: set[str] = set()
        self._lit: set[tuple[int, int]] = set()

    def load(self, rows: Sequence[DatasetRow], healths: Mapping[str, Health], text: str) -> None:
        """Shows these datasets; the drawing is made anew only when names or arrows changed."""
        self.rows, self.healths, self.filter = list(rows), healths, text
        shown, edges = visible_graph(rows, text)
        self._shown = {row.id: row for row in shown}
        key = [(row.id, row.name, row.untrusted) for row in shown], edges
        if key != self._key:
            self._key = key
            self._layout = layout({row.id: len(self._label(row)) for row in shown}, edges)
            self._inputs = {row.id: [] for row in shown}
            self._outputs = {row.id: [] for row in shown}
            for source, target in edges:
                self._inputs[target].append(source)
                self._outputs[source].append(target)
            self._at_row = [[] for _ in self._layout.lines]
            for node, place in self._layout.places.items():
                self._at_row[place.y].append((place, node))
            for found in self._at_row:
                found.sort(key=lambda each: each[0].x)
        if self.selected not in self._shown:
            self.selected = self._first()
            self.post_message(self.Moved(self))
        self._light()
        self.reset()

    def set_healths(self, healths: Mapping[str, Health]) -> None:
        """Shows how the datasets are; repaints the rows of those that changed."""
        for row in self._shown.values():
            if healths.get(row.id) != self.healths.get(row.id):
                self.refresh_line(self._layout.places[row.id].y)
        self.healths = healths

    @property
    def row(self) -> DatasetRow | None:
        """The selected dataset."""
        return self._shown.get(self.selected or "")

    @property
    def size_needed(self) -> Size:
        """Cells that the whole drawing takes."""
        return Size(self._layout.width, self._layout.height)

    def select(self, dataset: str) -> None:
        """Selects a dataset, if it is shown."""
        if dataset not in self._shown:
            return
        if dataset != self.selected:
            self.selected = dataset
            self._light()
            self.refresh()
            self.post_message(self.Moved(self))
        self._reveal()

    def move(self, move: str) -> None:
        """Moves the selection."""
        if (row := self.row) is None:
            return
        place = self._layout.places[row.id]
        page = max(self.room.height - 1, 1)
        last = len(self._layout.lines) - 1
        found: str | None = None
        match move:
            case "left":
                found = self._nearest(self._inputs[row.id], place) or self._beside(place, -1)
            case "right":
                found = self._nearest(self._outputs[row.id], place) or self._beside(place, 1)
            case "down":
                found = self._in_row(range(place.y + 1, last + 1), place.x)
            case "above":
                found = self._in_row(range(place.y - 1, -1, -1), place.x)
            case "page_down":
                found = self._in_row(range(min(place.y + page, last), place.y, -1), place.x)
            case "page_up":
                found = self._in_row(range(max(place.y - page, 0), place.y), place.x)
            case "first":
                found = self._in_row(range(last + 1), 0)
            case "last":
                found = self._in_row(range(last, -1, -1), 0)
        if found is not None:
            self.select(found)

    def _in_row(self, rows: range, x: int) -> str | None:
        for row in rows:
            if found := self._at_row[row]:
                return min(found, key=lambda each: abs(each[0].x - x))[1]
        return None

    def _nearest(self, nodes: Sequence[str], place: Place) -> str | None:
        places = self._layout.places
        return min(nodes, key=lambda node: abs(places[node].y - place.y), default=None)

    def _beside(self, place: Place, step: int) -> str | None:
        row = [node for _, node in self._at_row[place.y]]
        at = row.index(self.selected or "") + step
        return row[at] if 0 <= at < len(row) else None

    def _first(self) -> str | None:
        return next((found[0][1] for found in self._at_row if found), None)

    def _light(self) -> None:
        """What the selected dataset is made of, and what is made of it."""
        self._related, self._lit = set(), set()
        if self.row is None:
            return
        before = _closure(self.row.id, self._inputs)
        after = _closure(self.row.id, self._outputs)
        self._related = before | after
        for (source, target), cells in self._layout.paths.items():
            back = target in before | {self.row.id} and source in before
            if back or (source in after | {self.row.id} and target in after):
                self._lit |= cells

    def _reveal(self) -> None:
        if self.row is None:
            return
        place, width = self._layout.places[self.row.id], len(self._label(self.row))
        self.show(place.y)
        left, room = self.scroll_offset.x, self.room.width
        if place.x < left:
            self.scroll_to(x=place.x, animate=False)
        elif place.x + width > left + room:
            # Of a label that is wider than the window, the beginning tells more.
            self.scroll_to(x=min(place.x, place.x + width - room), animate=False)

    def keep_in_view(self) -> None:
        """Scrolls to the selection."""
        self._reveal()

    # --- Drawing ---

    def count(self) -> int:
        """Rows of the drawing."""
        return self._layout.height

    def widest(self) -> int:
        """Cells of the drawing."""
        return self._layout.width

    def style_of(self, index: int) -> str:
        """The selection is a label, never a whole line."""
        return ""

    def _label(self, row: DatasetRow) -> str:
        kind = "◆" if row.derivative else "◇"
        health = self.healths.get(row.id, Health.new)
        mark = UNTRUSTED if row.untrusted else ""
        return f"{kind} {shorten(plain(row.name), _NAME_WIDTH)} {mark}{health.glyph}"

    def spans(self, index: int) -> list[Span]:
        """Edges and labels of a row."""
        spans: list[Span] = []
        x = 0
        line = self._layout.lines[index]
        for place, node in self._at_row[index]:
            spans += self._edges(line, index, x, place.x)
            row = self._shown[node]
            spans += self._node(row)
            x = place.x + len(self._label(row))
        return spans + self._edges(line, index, x, len(line))

    def _edges(self, line: str, y: int, start: int, end: int) -> list[Span]:
        spans: list[Span] = []
        for x in range(start, end):
            style = "lineage" if (x, y) in self._lit else "rule"
            if spans and spans[-1][1] == style:
                spans[-1] = (spans[-1][0] + line[x], style)
            else:
                spans.append((line[x], style))
        return spans

    def _node(self, row: DatasetRow) -> list[Span]:
        label = self._label(row)
        if row.id == self.selected:
            return [(label, "cursor" if self.active else "idle")]
        name = "lineage" if row.id in self._related else ""
        health = self.healths.get(row.id, Health.new)
        kind = "name" if row.derivative else "muted"
        marks = 1 + row.untrusted
        return [
            (label[:2], kind), (label[2:-marks], name), (label[-marks:-1], "warn"), (label[-1], health.style)
        ]  # fmt: skip

    def empty(self) -> Sequence[Sequence[Span]]:
        """What to do when nothing is here."""
        if self.filter:
            return [[(" no dataset has ", "muted"), (self.filter, "strong"), (" in its name", "muted")]]
        return [
            [(" There are no datasets yet.", "strong")],
            [],
            [(" Press ", "muted"), ("a", "key"), (" to write the manifest of one in your editor,", "muted")],
            [(" or ", "muted"), ("A", "key"), (" to add those of a file that is there already;", "muted")],
            [(" or leave with ", "muted"), ("q", "key"), (" and run ", "muted"), ("odf demo", "strong")],
            [(" for a workspace with sample data.", "muted")],
        ]

    def clicked(self, x: int, y: int) -> bool:
        """Selects the label at a cell of the window."""
        x, y = x + self.scroll_offset.x, y + self.scroll_offset.y
        for place, node in self._at_row[y] if y < len(self._at_row) else ():
            if place.x <= x < place.x + len(self._label(self._shown[node])):
                self.select(node)
                return True
        return False


class Card(Paragraphs):
    """What is known of the selected dataset, in a few lines.

    Attributes:
        why: why its last pull failed, in a line; empty when it did not.
    """

    def __init__(self) -> None:
        super().__init__(id="card")
        self.why = ""

    def load(
        self, row: DatasetRow | None, health: Health | None, detail: Detail | None, job: Job | None
    ) -> None:
        """Shows a dataset; ``detail`` may come later. ``job`` is the newest that brought data."""
        lines: list[list[Span]] = []
        self.why = ""
        if row is not None and health is not None:
            kind = "derivative" if row.derivative else "root"
            lines = [
                [(plain(row.name), "title")],
                [(f"{kind}  ", "muted"), (f"{health.glyph} {health.word}", health.style)],
            ]
            if row.untrusted:
                lines.append([(f"{UNTRUSTED} ", "warn"), ("not trusted: p shows what would run", "warn")])
            if row.diverged:
                names = plain(", ".join(row.diverged))
                lines.append(
                    [("why  ", "bad"), (f"{names}, which it was made from, was reset or replaced", "bad")]
                )
                lines.append([("try  ", "muted"), ("D makes it anew", "good")])
                self.why = f"{health.glyph} {names} was reset or replaced: D makes it anew"
            if health is Health.failed and job is not None and job.error is not None:
                lines += self._failure(job.error)
            lines.append([])
            for name, value in detail.facts if detail else ():
                lines.append([(f"{name:<{_CARD_KEYS}}", "muted"), (plain(value), "")])
        self.set(lines)

    def _failure(self, error: Failure) -> list[list[Span]]:
        first = plain(error.message.partition("\n")[0])
        self.why = f"{Health.failed.glyph} {first}"
        lines: list[list[Span]] = [[("why  ", "bad"), (first, "bad")]]
        if error.hint:  # before the place: where there is little room, it matters more
            lines.append([("try  ", "muted"), (plain(error.hint), "good")])
        if error.where:
            lines.append([("at   ", "muted"), (plain(error.where), "")])
        return lines


class DatasetsPane(Pane):
    """The graph, and beside it the card."""

    number = 1
    label = "Datasets"

    def compose(self) -> ComposeResult:
        """Graph and card."""
        with Horizontal(id="home"):
            yield GraphView()
            yield Card()

    @property
    def view(self) -> GraphView:
        """The graph."""
        return self.query_one(GraphView)

    @property
    def card(self) -> Card:
        """The card."""
        return self.query_one(Card)

    @property
    def shown(self) -> list[DatasetRow]:
        """The datasets that match the filter."""
        return visible_graph(self.view.rows, self.filter)[0]

    def set_filter(self, text: str) -> None:
        """Shows the datasets whose names match."""
        super().set_filter(text)
        self.view.load(self.view.rows, self.view.healths, text)

    def copied(self) -> tuple[str, str] | None:
        """The dataset's id."""
        row = self.view.row
        return None if row is None else ("id", row.id)
