"""What the workbench is made of: four panes, two lines below them, and which of them can be seen.

The screen is put together from this file, ``verbs.py`` (keys, and what every pane does), ``places.py``
(where it goes), a ``pane_*.py`` for each pane (what it learns and does), ``editing.py`` (the definitions it
lets a person write), ``trusting.py`` (what others may run here), and ``sharing.py``, ``diverging.py`` and
``browsing.py`` (exchange with other places).
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from textual import on
from textual.app import ComposeResult
from textual.containers import Container
from textual.geometry import Size
from textual.screen import Screen
from textual.widgets import Input

from odf_engine.coordinator.protocol import Request, WorkerStatus
from odf_engine.errors import OdfError
from odf_tui.actions import table, user_keys
from odf_tui.actions.model import PANES, Situation
from odf_tui.gateway.protocol import Gateway
from odf_tui.panes.blocks.view import BlocksPane
from odf_tui.panes.data.view import DataPane
from odf_tui.panes.datasets.view import DatasetsPane, GraphView
from odf_tui.panes.jobs.view import JobsPane
from odf_tui.services.controller import Reader
from odf_tui.services.jobs_client import WorkerConnection
from odf_tui.state import saved_session
from odf_tui.state.app_state import EarlyReads
from odf_tui.state.job_book import JobBook
from odf_tui.state.model import DatasetRow, Health
from odf_tui.text.format import ellipsize_middle, error_line, format_count
from odf_tui.widgets.line_view import LineView
from odf_tui.widgets.pane_frame import Pane
from odf_tui.widgets.status_bar import KeyHints, Notice, StatusLine

if TYPE_CHECKING:
    from odf_tui.app import Workstation

CARD_SIZE: Final = Size(38, 9)


class Parts(Screen[None]):
    """Panes and lines.

    Attributes:
        source: the engine.
        early: datasets and jobs, read while Textual was being imported.
        book: the jobs.
        rows, healths: the datasets, and how they are.
        pane: the pane that has the keys.
        worker_state, worker_status: the connection, and what the worker last said of itself.
        remembered: how the screen was left, and what is chosen since.
        keys, key_problems: which key does what, and what is wrong with those that were changed.
        trail: from where links were followed, the newest last.
    """

    trail: tuple[Any, ...] = ()

    def __init__(self, source: Gateway, early: EarlyReads | None = None) -> None:
        super().__init__()
        self.source = source
        self.early = early
        self.book = JobBook()
        self.reads = Reader(self, source)
        self.follower = WorkerConnection(source, self.post_message, lambda: self.book.last_seq)
        self.rows: list[DatasetRow] = []
        self.healths: dict[str, Health] = {}
        self.pane = PANES[0]
        self.worker_state = "starting"
        self.worker_status: WorkerStatus | None = None
        self.remembered = saved_session.load_layout(source.folder)
        self.keys, self.key_problems = user_keys.load(source.ui.keys, user_keys.user_keys_path())
        if self.keys is not table.DEFAULT_KEYMAP:
            for key in set(self.keys.all_keys()) - set(table.all_keys()):
                self._bindings.bind(key, f"press('{key}')", show=False)

    def compose(self) -> ComposeResult:
        """Panes, filter, status, hints."""
        with Container(id="panes"):
            yield DatasetsPane("datasets", classes="-front")
            yield BlocksPane("blocks")
            yield DataPane("data", classes="-lower")
            yield JobsPane("jobs", self.book)
        yield StatusLine(self.source.folder)
        yield KeyHints()
        line = Input(id="filter", compact=True, placeholder="only what holds these letters")
        line.cursor_blink = False
        line.display = False
        yield line

    @property
    def station(self) -> Workstation:
        """The application."""
        return cast("Workstation", self.app)

    @property
    def graph(self) -> GraphView:
        """The graph of datasets."""
        return self.query_one(GraphView)

    @property
    def datasets_pane(self) -> DatasetsPane:
        """Pane 1."""
        return self.query_one(DatasetsPane)

    @property
    def blocks_pane(self) -> BlocksPane:
        """Pane 2."""
        return self.query_one(BlocksPane)

    @property
    def data_pane(self) -> DataPane:
        """Pane 3."""
        return self.query_one(DataPane)

    @property
    def jobs_pane(self) -> JobsPane:
        """Pane 4."""
        return self.query_one(JobsPane)

    def situation(self) -> Situation:
        """What the guards of actions look at."""
        row = self.graph.row
        up = "filter" if self.query_one("#filter").display or self.front.filter else ""
        up = up or ("zoom" if self.has_class("-zoomed") else "") or ("pane" if self.pane != PANES[0] else "")
        return Situation(
            pane=self.pane,
            dataset=row,
            dataset_job=None if row is None else self.book.active_job_of(row.id),
            block=self.blocks_pane.view.block,
            job=self.jobs_pane.view.job,
            has_rows=self.data_pane.view.count() > 0,
            datasets=len(self.rows),
            pullable=sum(row.polls or row.derivative or row.comes_from_elsewhere for row in self.rows),
            remotes=sum(bool(row.remotes) for row in self.rows),
            worker=self.worker_state,
            up=up,
            findings=bool(self.blocks_pane.view.findings),
            trail=bool(self.trail),
        )

    def row_of(self, dataset: str) -> DatasetRow | None:
        """A dataset by its id."""
        return next((row for row in self.rows if row.id == dataset), None)

    def show_hints(self) -> None:
        """Keys for the situation."""
        self.query_one(KeyHints).show(self.keys.hints(self.situation()))

    def _show_status(self) -> None:
        """What is selected, and what runs."""
        row = self.graph.row
        health = self.healths.get(row.id) if row is not None else None
        self.query_one(StatusLine).show(row, health, len(self.rows), self.book.active_jobs())
        self.show_hints()

    def notify_line(self, text: str, style: str = "good") -> None:
        """Tells something in the line of hints."""
        self.query_one(KeyHints).tell(text, style)

    def submit(self, requests: Sequence[tuple[Request, str]], remark: str = "") -> None:
        """Hands requests to the worker, each with its dataset's name; it is started if there is none."""

        async def submit() -> None:
            try:
                link = await self.follower.link()
                for request, target in requests:
                    await link.submit(request, target)
            except OdfError as error:
                hint = f" – {error.hint}" if error.hint else ""
                self.post_message(Notice(f"{error}{hint}", "bad"))

        kind = type(requests[0][0]).__name__.lower() if requests else "pull"
        what = requests[0][1] if len(requests) == 1 else f"{format_count(len(requests))} datasets"
        self.notify_line(f"{kind} {what}: handed to the worker{remark}")
        self.run_worker(submit(), group="commands")

    def start(self, story: Coroutine[None, None, None]) -> None:
        """Does something that takes its time and may ask the person; errors are told."""

        async def guarded() -> None:
            try:
                await story
            except Exception as error:  # whatever it is, it is told, and the screen lives on
                hint = f" – {error.hint}" if isinstance(error, OdfError) and error.hint else ""
                self.notify_line(error_line(error) + hint, "bad")

        self.run_worker(guarded(), group="stories", name="story")

    # --- Focus ---

    @property
    def front(self) -> Pane:
        """The pane that has the keys."""
        return self.query_one(f"#{self.pane}", Pane)

    def go_to(self, name: str) -> None:
        """Gives the keys to a pane."""
        self.pane = name
        self.set_focus(None)
        self.dress_panes()
        self.arrange_panes()

    @on(Pane.Chosen)
    def _pane_chosen(self, message: Pane.Chosen) -> None:
        self.go_to(message.pane)

    def dress_panes(self) -> None:
        """Shows which pane has the keys, in the colours of the theme."""
        for pane in self.query(Pane):
            pane.apply_theme(pane.id == self.pane)

    def on_resize(self) -> None:
        """The panes have other sizes, once the breakpoints have been looked at."""
        self.call_next(self.arrange_panes)

    def arrange_panes(self) -> None:
        """Says which panes are shown when there is no room for all: see the style sheet."""
        if any(map(self.has_class, ("-narrow", "-low", "-zoomed"))):
            for pane in self.query(Pane):
                pane.set_class(pane.id == self.pane, "-front")
                if self.pane != PANES[0]:
                    pane.set_class(pane.id == self.pane, "-lower")
        self.make_room_for_card()
        self.show_hints()

    def make_room_for_card(self) -> None:
        """The card stands beside the graph, or below it, or nowhere: where the graph leaves it the room."""
        pane, need = self.datasets_pane, self.graph.size_needed
        if not self.rows:
            pane.card.display = False
            pane.set_subtitle("")
            return
        beside = pane.size.width - need.width >= CARD_SIZE.width or pane.size.width >= 3 * CARD_SIZE.width
        below = pane.size.height - max(need.height, 2) >= CARD_SIZE.height
        pane.card.display = beside or below
        self.query_one("#home").set_class(below and not beside, "-below")
        pane.set_subtitle(
            "" if pane.card.display else ellipsize_middle(pane.card.why, max(pane.size.width - 4, 0))
        )

    @on(LineView.Moved, "#chain")
    @on(LineView.Moved, "#job-list")
    def _moved(self) -> None:
        self.show_hints()

    @on(Notice)
    def _notice(self, message: Notice) -> None:
        self.notify_line(message.text, message.style)
