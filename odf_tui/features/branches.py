"""BranchesController: lists, creates, checks, compares and promotes branches of a dataset, and its tags."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from odf_engine.api import Branch, Check, Diff, Job, Pull, Verify
from odf_engine.api.model import DatasetRow
from odf_engine.api.text import count_of, format_count, format_zoned_time, printable, short_hash
from odf_engine.errors import Conflict, NotFound, OdfError
from odf_tui.services.controller import Controller, dataset_task
from odf_tui.services.jobs_client import LeftRunning
from odf_tui.state import typed_keys
from odf_tui.text.format import Span, error_with_hint, fit_width, right
from odf_tui.text.job_text import job_outcome
from odf_tui.text.remotes import pull_remotes
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import MOVE_KEYS, ConfirmDialog, Dialog, PickerDialog
from odf_tui.widgets.form import Field, FormDialog, FormValues, required
from odf_tui.widgets.line_view import LineView, WrappedLines

if TYPE_CHECKING:
    from odf_engine.api.dataset import Dataset

_DEFAULT_NAME: Final = "review"
_NO_BRANCH: Final = "this is the head, not a branch: select a branch, or n creates one"
_STATE: Final = 10
_COLUMNS: Final = (("blocks", 7), ("rows", 9), ("ahead", 6), ("rows", 9), ("behind", 6), ("rows", 9))
_JOBS: Final = ("pull", "ingest", "check", "verify")
_REFRESH_SECONDS: Final = 1.0
_KEYS: Final = "n new · p pull · c check · v verify · d compare · P promote · ? keys"


def branch_state(branch: Branch) -> Span:
    """Return the state of a branch relative to the head, and the style of the text."""
    if branch.problem is not None:
        return "damaged", "bad"
    if branch.is_tag:
        return "tag", "muted"
    if branch.ahead:
        return ("diverged", "warn") if branch.behind else ("ahead", "good")
    return ("behind", "warn") if branch.behind else ("up to date", "muted")


def _own_text(branch: Branch) -> str:
    return f"{count_of(branch.ahead, 'block')} with {count_of(branch.rows_ahead, 'row')}"


class BranchList(LineView):
    """The head, the branches and the tags of a dataset: sizes, differences from the head, state."""

    headed = True

    def __init__(self, row: DatasetRow) -> None:
        super().__init__(id="branches")
        self.active = True
        self._row = row
        self._branches: Sequence[Branch] = ()

    def show_branches(self, row: DatasetRow, branches: Sequence[Branch], name: str) -> None:
        """Show branches, with the cursor on the one with a name, or on its line if there is none."""
        self._row, self._branches = row, branches
        names = [branch.name for branch in branches]
        self.cursor = names.index(name) + 1 if name in names else self.cursor
        self.reset()

    @property
    def branch(self) -> Branch | None:
        """The branch under the cursor, or None for the head."""
        return self._branches[self.cursor - 1] if 0 < self.cursor <= len(self._branches) else None

    @property
    def names(self) -> list[str]:
        """The names of the branches."""
        return [branch.name for branch in self._branches]

    def count(self) -> int:
        """Return the number of lines."""
        return len(self._branches) + 1

    def _line(self, name: str, cells: Sequence[str], state: Span, style: str) -> list[Span]:
        width = max(self.room.width - sum(size + 1 for _, size in _COLUMNS) - _STATE - 3, 8)
        texts = [right(text, size) for text, (_, size) in zip(cells, _COLUMNS, strict=True)]
        return [
            (f" {fit_width(printable(name), width)} ", style or "name"),
            (" ".join(texts) + "  ", style),
            (fit_width(state[0], _STATE), style or state[1]),
        ]

    def header(self) -> Sequence[Span]:
        """Return the header line."""
        return self._line("branch", [label for label, _ in _COLUMNS], ("state", ""), "head")

    def spans(self, index: int) -> Sequence[Span]:
        """Return the line of the head or of a branch."""
        if index == 0:
            counts = [format_count(self._row.blocks), format_count(self._row.records), "", "", "", ""]
            return self._line("head", counts, ("", ""), "")
        branch = self._branches[index - 1]
        differences = (branch.ahead, branch.rows_ahead, branch.behind, branch.rows_behind)
        counts = [format_count(branch.blocks), format_count(branch.records)]
        counts += [format_count(number) if number else "" for number in differences]
        return self._line(branch.name, counts, branch_state(branch), "")


class BranchesScreen(Dialog[str]):
    """The branches of a dataset, and the newest jobs of the one under the cursor.

    The result is ``show`` or ``compare``, and the name of the branch, or "" for the head.

    Args:
        row: the dataset.
        controller: runs the actions.
        name: the branch with the cursor at first, or "" for the head.
        problem: an error to show, or "".
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "close", show=False),
        Binding("enter", "open", "show its blocks in pane 2", show=False),
        Binding("n", "run('create')", "create a branch", show=False),
        Binding("p", "run('pull')", "pull new data into the branch", show=False),
        Binding("c", "run('check')", "run the checks on the rows of the branch", show=False),
        Binding("v", "run('verify')", "verify the branch", show=False),
        Binding("d", "compare", "compare the branch with the head", show=False),
        Binding("t", "run('tag')", "tag the branch or the head: a name that cannot move", show=False),
        Binding("P", "run('promote')", "promote the branch: move the head to it", show=False),
        Binding("f", "run('move')", "move the branch to the head", show=False),
        Binding("r", "run('rename')", "rename the branch", show=False),
        Binding("x", "run('delete')", "delete the branch", show=False),
        *MOVE_KEYS,
    ]

    def __init__(self, row: DatasetRow, controller: BranchesController, name: str, problem: str) -> None:
        super().__init__()
        self._row, self._controller, self._name = row, controller, name
        self._message: Span = (problem, "bad")
        self._next: tuple[str, Span] | None = None  # a branch and a message to show after the next read
        self._ended: list[str] = []  # ids of the jobs of branches that have ended

    def compose(self) -> ComposeResult:
        """Yield the list, and the facts about one branch."""
        with Vertical(classes="dialog reader documents") as box:
            box.border_title = Content(f"Branches of {printable(self._row.name)}")
            box.border_subtitle = Content(_KEYS)
            yield BranchList(self._row)
            yield WrappedLines(id="about-branch")

    @property
    def list(self) -> BranchList:
        """The list."""
        return self.query_one(BranchList)

    def on_mount(self) -> None:
        """Read the branches; again when a job of one of them ends."""
        self._ended = self._ended_jobs()
        self.reload(self._name)
        self.set_interval(_REFRESH_SECONDS, self._follow_jobs)

    def _ended_jobs(self) -> list[str]:
        return [job.id for job in self._controller.jobs_of(self._row) if job.state.final]

    def _follow_jobs(self) -> None:
        ended = self._ended_jobs()
        if ended != self._ended:
            self._ended = ended
            self.reload(self._selected)
        else:
            self._describe()

    def reload(self, name: str, message: Span | None = None) -> None:
        """Read the branches, put the cursor on the one with a name, if it is not "", then show a message."""
        typed_keys.hold(self)
        if message is not None:
            self._next = name, message
        self._controller.read(self._row, partial(self._show, name, self._selected))

    @property
    def _selected(self) -> str:
        branch = self.list.branch
        return branch.name if branch else ""

    def _show(self, name: str, selected: str, branches: Sequence[Branch] | None, error: str) -> None:
        if not self.query(BranchList):  # closed since
            return
        if self._next is not None:
            (name, self._message), self._next = self._next, None
        if self._selected != selected:  # the user moved the cursor since: it stays
            name = self._selected
        row = self._controller.state.row_of(self._row.id) or self._row
        if branches is None:
            self._message = (error, "bad")
        else:
            self.list.show_branches(row, branches, name)
        self._describe()
        typed_keys.release(self)

    def show_notice(self, text: str) -> None:
        """Show the end of a job, or another notice of the workbench."""
        self.show_message(text, "")

    def show_message(self, text: str, style: str) -> None:
        """Show the result of an action, until the cursor moves."""
        self._message = (text, style)
        self._describe()

    def on_line_view_moved(self) -> None:
        """Describe the branch under the cursor."""
        self._message = ("", "")
        self._describe()

    def on_line_view_opened(self) -> None:
        """Show the blocks of the branch that was double-clicked."""
        self.action_open()

    def _describe(self) -> None:
        if not self.query("#about-branch"):  # not composed yet: it is shown after the first read
            return
        text, style = self._message
        lines: list[list[Span]] = [[(f" {printable(text)}", style)], []] if text else []
        lines += about_lines(self.list.branch, self.list.names, self._controller.jobs_of(self._row))
        self.query_one("#about-branch", WrappedLines).set(lines)

    def action_move(self, move: str) -> None:
        """Move the cursor."""
        self.list.move(move)

    def action_open(self) -> None:
        """Close, and show the blocks of the branch under the cursor."""
        self.dismiss(f"show {self._selected}")

    def action_compare(self) -> None:
        """Close, and compare the branch under the cursor with the head."""
        branch = self.list.branch
        if branch is None:
            self.show_message(_NO_BRANCH, "bad")
        else:
            self.dismiss(f"compare {branch.name}")

    def action_run(self, action: str) -> None:
        """Run an action for the branch under the cursor."""
        self._controller.run(self, self._row, action)


def about_lines(branch: Branch | None, names: Sequence[str], jobs: Sequence[Job]) -> list[list[Span]]:
    """Return the lines about a branch: its newest block, why it cannot be read, its newest jobs.

    Args:
        branch: the branch, or None for the head.
        names: the names of all branches.
        jobs: the jobs of all branches, oldest first.
    """
    if branch is None:
        if names:
            return []
        text = "no branches: n creates one, p pulls into it, P promotes it after a review"
        return [[(f" {text}", "muted")]]
    if branch.problem is not None:
        return [[(f" {printable(branch.problem)}", "bad")]]
    time = format_zoned_time(branch.system_time) if branch.system_time else ""
    lines: list[list[Span]] = [
        [(" newest block  ", "muted"), (f"{short_hash(str(branch.head))}  {time}", "")]
    ]
    newest = {job.kind: job for job in jobs if job.branch == branch.name and job.kind in _JOBS}
    for kind in _JOBS:
        if (job := newest.get(kind)) is not None:
            when = f"  {format_zoned_time(job.ended)}" if job.ended else ""
            outcome, style = job_outcome(job)
            lines.append([(f" {kind:<12}  ", "muted"), (printable(outcome), style), (when, "muted")])
    return lines


class BranchesController(Controller):
    """Opens the dialog of the branches of a dataset, and runs its actions."""

    @dataset_task
    async def show_branches(self, row: DatasetRow) -> None:
        """List the branches of the selected dataset."""
        name = problem = ""
        while (answer := await self.host.ask(BranchesScreen(row, self, name, problem))) is not None:
            verb, _, name = answer.partition(" ")
            if verb == "show":
                blocks: Any = self.host.load("panes.blocks.controller.BlocksController")
                self.host.perform("pane_2")
                blocks.show_branch(row, name)
                return
            differences: Any = self.host.load("features.dataset_diff.DatasetDiffController")
            problem = ""
            try:
                await differences.compare(row, Diff(row.id, as_at="refs/head", other_as_at=f"refs/{name}"))
            except OdfError as error:
                problem = error_with_hint(error)

    def read(self, row: DatasetRow, then: Callable[[list[Branch] | None, str], object]) -> None:
        """Read the branches of a dataset in a thread."""
        self.host.read("branches", partial(self.workspace.list_branches, row.id), then)

    def jobs_of(self, row: DatasetRow) -> list[Job]:
        """Return the jobs of the branches of a dataset, oldest first."""
        return [job for job in self.state.jobs.jobs.values() if job.dataset == row.id and job.branch]

    def run(self, screen: BranchesScreen, row: DatasetRow, action: str) -> None:
        """Run an action for the branch under the cursor, and show its result in the dialog."""
        self.host.start(_Action(self, screen, row).run(action))


class _Action:
    """An action of the dialog. Its methods return the message to show, or "" if nothing has changed."""

    def __init__(self, controller: BranchesController, screen: BranchesScreen, row: DatasetRow) -> None:
        self._controller, self._host = controller, controller.host
        self._screen, self._row = screen, row
        self._shown = screen.list.branch
        self._name = self._shown.name if self._shown else ""

    async def run(self, action: str) -> None:
        """Run an action by its name."""
        try:
            if not self._name and action not in ("create", "tag"):
                raise OdfError(_NO_BRANCH)
            message, style = await getattr(self, action)(), "good"
        except LeftRunning:
            message, style = "continues in the background: its log is in pane 4", ""
        except OdfError as error:
            message, style = error_with_hint(error), "bad"
        self._screen.reload(self._name, (message, style))

    @property
    def _title(self) -> str:
        return f"{self._row.name}@{self._name}"

    def _dataset(self) -> Dataset:
        return self._controller.workspace.resolve(self._row.id)

    async def _read(self) -> Branch:
        """Return the branch as it is now.

        Raises:
            NotFound: it was deleted or renamed.
            OdfError: it cannot be read.
        """
        branches = await asyncio.to_thread(self._controller.workspace.list_branches, self._row.id)
        branch = next((branch for branch in branches if branch.name == self._name), None)
        if branch is None:
            raise NotFound(f"branch '{self._name}' was deleted or renamed meanwhile", hint="select another")
        if branch.problem is not None:
            raise OdfError(branch.problem, hint="x deletes the branch")
        return branch

    async def _change(self, change: Callable[[Dataset], object]) -> None:
        """Change the branches of the dataset, and update the lists."""
        await asyncio.to_thread(lambda: change(self._dataset()))
        self._controller.state.datasets_outdated.send(None)

    async def _fill(
        self, title: str, fields: Sequence[Field], change: Callable[[Dataset, FormValues], object]
    ) -> bool:
        """Change the branches by a form, which stays open with the error while the change fails."""
        problem = ""
        while True:
            lines = [[(f" {printable(problem)}", "bad")]] if problem else ()
            form = await self._host.ask(FormDialog(title, fields, "continues", lines=lines))
            if form is None:
                return False
            try:
                await self._change(lambda dataset, form=form: change(dataset, form))
            except OdfError as error:
                problem = error_with_hint(error)
                fields = [replace(field, value=form.text(field.id)) for field in fields]
            else:
                self._name = form.text("name")
                return True

    async def create(self) -> str:
        """Create a branch at the head, or at the version that the user enters."""
        used = self._screen.list.names
        candidates = (_DEFAULT_NAME + (f"-{at}" if at > 1 else "") for at in range(1, len(used) + 2))
        name = next(candidate for candidate in candidates if candidate not in used)
        fields = [
            Field("name", "name", "Letters, digits, '.', '-' and '_'.", name, check=required("enter a name")),
            Field("at", "start", "A block, a time or a reference. Empty: the head.", example="2026-03-01"),
        ]
        is_created = await self._fill(
            f"New branch of {self._row.name}",
            fields,
            lambda dataset, form: dataset.create_branch(form.text("name"), form.text("at") or None),
        )
        return f"created {self._name}: p pulls into it, c checks it, P promotes it" if is_created else ""

    async def tag(self) -> str:
        """Create a tag at the branch under the cursor, or at the version that the user enters."""
        fields = [
            Field("name", "name", "Letters, digits, '.', '-' and '_'.", check=required("enter a name")),
            Field("at", "version", "A block, a time or a reference. Empty: the head.", self._name),
        ]
        is_created = await self._fill(
            f"New tag of {self._row.name}",
            fields,
            lambda dataset, form: dataset.create_tag(form.text("name"), form.text("at") or None),
        )
        return f"tagged {self._row.name}@{self._name}" if is_created else ""

    async def rename(self) -> str:
        """Rename the branch."""
        old = self._name
        field = Field("name", "new name", "Letters, digits, '.', '-' and '_'.", old)
        is_renamed = await self._fill(
            f"Rename {self._title}",
            [field],
            lambda dataset, form: dataset.rename_branch(old, form.text("name")),
        )
        return f"renamed {old} to {self._name}" if is_renamed else ""

    async def delete(self) -> str:
        """Delete the branch. The user confirms the loss of blocks that only the branch has."""
        branches = await asyncio.to_thread(self._controller.workspace.list_branches, self._row.id)
        branch = next((branch for branch in branches if branch.name == self._name), Branch(name=self._name))
        loses = bool(branch.ahead or branch.problem)
        if loses:
            lost = branch.problem or f"Only the branch has {_own_text(branch)}. odf gc removes them later."
            if not await self._host.ask(ConfirmDialog(f"Delete {self._title}?", lost)):
                return ""
        if branch.is_tag:
            await self._change(lambda dataset: dataset.delete_tag(self._name))
        else:
            await self._change(lambda dataset: dataset.delete_branch(self._name, force=loses))
        return f"deleted {self._name}"

    async def move(self) -> str:
        """Move the branch to the head. The user confirms the loss of blocks that only the branch has."""
        branch = await self._read()
        if branch.ahead:
            remark = f"Discards {_own_text(branch)}, which only the branch has."
            if not await self._host.ask(ConfirmDialog(f"Move {self._title} to the head?", remark)):
                return ""
        await self._change(lambda dataset: dataset.create_branch(self._name, force=True))
        return f"{self._name} is at the head: p pulls into it"

    async def pull(self) -> str:
        """Pull into the branch; push rows from files if the dataset has no polling source."""
        row = self._row
        if row.push_sources and not (row.polls or row.derivative or row.has_pull_remote):
            forms: Any = self._host.load("features.job_options.JobOptionsController")
            await forms.push_rows(row, self._name)
            return ""
        remotes = [remote.url for remote in pull_remotes(row.remotes)]
        inputs = await self._choose_inputs() if row.derivative and not remotes else ""
        if inputs is None:
            return ""
        request = replace(Pull.of_known_dataset(row.id, remotes, ()), branch=self._name, inputs=inputs)
        result = await self._controller.jobs.outcome(
            request, row.name, f"Pulling into {self._title}", leaves=True
        )
        return f"pulled into {self._name}: {result.summary.text}"

    async def _choose_inputs(self) -> str | None:
        """Return the branch of the inputs to read, "" for the heads, or None to pull nothing."""
        rows = [row for row in self._controller.state.datasets if row.id in self._row.inputs]
        names = [row.name for row in rows if self._name in row.branches]
        if not names:
            return ""
        choices = [
            Choice(self._name, f"branch {self._name} of {', '.join(names)}", ("b",), "b"),
            Choice("", "the heads of all inputs", ("h",), "h"),
        ]
        return await self._host.ask(PickerDialog(f"Pull into {self._title} from", choices, typing=False))

    async def check(self) -> str:
        """Evaluate the checks of the dataset on the rows of the branch."""
        result = await self._controller.jobs.outcome(
            Check(self._row.id, self._name), self._row.name, f"Checking {self._title}", leaves=True
        )
        if problem := Check.failure(result):
            raise OdfError(f"check of {self._name}: {problem}", hint="its log in pane 4 lists the rows")
        return f"check of {self._name}: {Check.summarize(result).text}"

    async def verify(self) -> str:
        """Verify the branch."""
        result = await self._controller.jobs.outcome(
            Verify(self._row.id, branch=self._name), self._row.name, f"Verifying {self._title}", leaves=True
        )
        if Verify.failure(result):
            text = Verify.summarize(result).text
            raise OdfError(f"{self._name} is {result.verdict}: {text}", hint="its log in pane 4 lists them")
        return f"verified {self._name}: {Verify.summarize(result).text}"

    async def promote(self) -> str:
        """Move the head to the branch, after the user has confirmed what changes."""
        branch, row = await self._read(), self._row
        if self._shown is not None and branch.head != self._shown.head:
            raise Conflict(
                f"branch '{self._name}' has moved since it was read",
                hint="review its new blocks, then press P again",
            )
        if not branch.ahead:
            raise OdfError(
                f"nothing to promote: the head has all blocks of {self._name}", hint="p pulls into it"
            )
        if branch.behind:
            newer = count_of(branch.behind, "block")
            raise Conflict(
                f"{self._name} cannot be promoted: the head has {newer} that it lacks",
                hint="d compares them; f moves the branch to the head, then p pulls into it again",
            )
        await asyncio.to_thread(lambda: self._dataset().check_promotion(self._name))
        remarks = [f"{row.name} gets {_own_text(branch)}."]
        readers = [dataset.name for dataset in self._controller.state.datasets if row.id in dataset.inputs]
        remarks += [f"Their next pulls read them: {', '.join(readers)}."] if readers else []
        if not await self._host.ask(ConfirmDialog(f"Promote {self._title}?", *remarks)):
            return ""
        await self._change(lambda dataset: dataset.promote_branch(self._name, branch.head))
        return f"promoted {self._name}: {_own_text(branch)}"
