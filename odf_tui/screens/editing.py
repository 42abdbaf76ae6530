"""Writing definitions in the person's own editor: new datasets, and changes of those that are there.

What is written is checked when the editor ends; queries of derivative datasets are looked at by the
worker. Nothing that somebody wrote goes without being asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from odf_engine.coordinator.protocol import Update, Validate
from odf_engine.coordinator.results import ValidateResult
from odf_engine.errors import OdfError
from odf_tui.features.definitions import controller
from odf_tui.features.definitions.controller import ManifestDraft
from odf_tui.screens.beginning import Beginning
from odf_tui.screens.waiting import LeftRunning
from odf_tui.state.model import DatasetRow, PendingEvent
from odf_tui.text.format import format_count

if TYPE_CHECKING:
    from odf_tui.features.definitions.manifest_dialogs import TextPosition

_KINDS: Final = (
    ("data", "f", "from a data file: CSV, JSON, Parquet, here or at a URL"),
    ("root", "r", "a root dataset: polls files, URLs or a container"),
    ("push", "p", "a root dataset that data is pushed into"),
    ("derivative", "d", "a derivative dataset: a query over others"),
    ("manifest", "m", "from a manifest file that is there already"),
)
_NEXT: Final = {"root": ": p pulls it", "push": ": p says how to push into it"}

_DO: Final = ("append", "flush", "rebuild")

Answer = tuple[str, tuple[str, ...], str]
_EDIT: Final[Answer] = ("edit", ("e", "enter"), "edits again")
_DISCARD: Final[Answer] = ("discard", ("d",), "discards")
_LATER: Final[Answer] = ("leave", ("escape", "q"), "leaves it for later")
_APPEND: Final[Answer] = ("append", ("enter",), "appends")
_ADD: Final[Answer] = ("add", ("enter",), "adds it")
_TO_EDITOR: Final[Answer] = ("edit", ("e",), "opens it in your editor")
_DROP: Final[Answer] = ("discard", ("escape", "q"), "discards")
_CHANGE: Final[Answer] = ("edit", ("e",), "edits again")
_UNCHECKED: Final[Answer] = ("unchecked", ("a",), "adds it unchecked")
_FLUSH: Final[Answer] = ("flush", ("f",), "flushes")
_REBUILD: Final[Answer] = ("rebuild", ("r",), "rebuilds")
_TAKE: Final[Answer] = ("append", ("enter",), "takes them in")
_KEEP: Final[Answer] = ("leave", ("escape", "q"), "leaves it as it is")
_FORGET: Final[Answer] = ("discard", ("escape", "q"), "discards")


class Editing(Beginning):
    """The part of the workbench that writes definitions."""

    # --- New datasets ---

    def do_add(self) -> None:
        """Asks what to start from."""
        from odf_tui.widgets.choice_list import Choice
        from odf_tui.widgets.dialogs import PickerDialog

        choices = [Choice(name, title, (key,), key) for name, key, title in _KINDS]
        self.app.push_screen(PickerDialog("Add a dataset", choices, typing=False), self._add_picked)

    def _add_picked(self, picked: str | None) -> None:
        if picked == "manifest":
            self.do_add_file()
        elif picked == "data":
            self.start(self._new_of_file())
        elif picked:
            self.start(self._new_of_template(picked))

    def do_add_file(self) -> None:
        """Adds datasets from a manifest file that is there."""
        from odf_tui.features.definitions.manifest_dialogs import AddDialog

        self.app.push_screen(AddDialog(self.source), self._added)

    def _added(self, names: Mapping[str, str] | None, remark: str = ": p pulls") -> None:
        if not names:
            return
        self.graph.selected = next(iter(names))  # selected once it is there
        what = next(iter(names.values())) if len(names) == 1 else f"{format_count(len(names))} datasets"
        self.notify_line(f"added {what}{remark}")
        self.reads.datasets()

    async def _new_of_template(self, template: str) -> None:
        """Writes a dataset from a template in the person's editor."""
        name = await self._ask_name(controller.unused_dataset_name(self._taken()))
        if name:
            draft = await asyncio.to_thread(controller.create, self.source.folder, template, name)
            await self._write_new(draft, template)

    async def _new_of_file(self) -> None:
        """Makes a dataset of a data file; its first rows say what the manifest should be."""
        from odf_tui.features.definitions.file_manifest import data_files, manifest_for, suggest_name
        from odf_tui.features.definitions.manifest_dialogs import DataFilePicker, manifest_lines
        from odf_tui.widgets.dialogs import DecisionDialog

        folder = self.source.folder
        files = await asyncio.to_thread(data_files, folder)
        place = await self.app.push_screen_wait(DataFilePicker(folder, files))
        name = await self._ask_name(suggest_name(place, self._taken())) if place else None
        if not place or not name:
            return
        text = await asyncio.to_thread(manifest_for, place, folder, name)
        draft = await asyncio.to_thread(controller.write, folder, name, text)

        async def look() -> str:
            answers = (_ADD, _TO_EDITOR, _DROP)
            dialog = DecisionDialog(f"{name}, of {place}", manifest_lines(text), answers)
            return await self.app.push_screen_wait(dialog)

        await self._write_new(draft, "root", await look(), look)

    def _taken(self) -> list[str]:
        return [row.name for row in self.rows]

    async def _ask_name(self, proposed: str) -> str | None:
        from odf_tui.widgets.dialogs import PromptDialog, name_check

        remark = "letters, digits, - and . make a name"
        return await self.app.push_screen_wait(
            PromptDialog("The name of the dataset", proposed, remark, name_check(self._taken()))
        )

    async def _write_new(
        self,
        draft: ManifestDraft,
        template: str,
        answer: str = "edit",
        look: Callable[[], Coroutine[None, None, str]] | None = None,
    ) -> None:
        """Edits a new manifest, or does what ``answer`` says, until it is added or not wanted any more.

        Args:
            look: asks about a manifest that is right as it is; without, one that is not changed is not added.
        """
        line: int | None = draft.line_of("name")
        touched = False
        while answer in ("edit", "unchecked", "add"):
            if answer == "edit":
                await self._edit(draft, line)
                touched = touched or await asyncio.to_thread(draft.changed)
                if not touched:
                    if look is not None:
                        answer = await look()
                        continue
                    await asyncio.to_thread(controller.discard, draft.path)
                    self.notify_line("the manifest was left as it was: nothing is added", "warn")
                    return
            looking, plan = False, None
            try:
                derivative = await asyncio.to_thread(self.source.query_in, draft.path)
                if derivative and answer != "unchecked":
                    looking = True
                    plan = await self._look_at_query(await _read(draft.path), derivative)
                    looking = False
                names = await asyncio.to_thread(self.source.add, draft.path)
            except OdfError as error:
                skip = (_UNCHECKED,) if looking else ()
                answers = (_EDIT, *skip, _DISCARD, _LATER)
                answer, place = await self._show_problem(error, draft.path, answers)
                line = None if place is None else place.line
            else:
                path = await asyncio.to_thread(
                    controller.rename_after_dataset, draft.path, next(iter(names.values()))
                )
                self._added(names, f" ({path.name}){_NEXT.get(template, '')}{_remark(plan)}")
                return
        await self._leave(draft.path, discard=answer == "discard")

    async def _leave(self, path: Path, *, discard: bool) -> None:
        if discard:
            await asyncio.to_thread(controller.discard, path)
            self.notify_line(f"discarded {path.name}")
        else:
            self.notify_line(f"nothing was added; the manifest is kept: {self._relative(path)}", "warn")

    # --- Changes of datasets ---

    def do_edit(self) -> None:
        """Edits the definition of the selected dataset."""
        row = self.graph.row
        if row is not None:
            self.start(self._change(row))

    async def _change(self, row: DatasetRow) -> None:
        text = await asyncio.to_thread(self.source.definition, row.id)
        draft = await asyncio.to_thread(controller.copy, self.source.folder, row.name, text)
        line: int | None = None
        answer = "edit"
        changes: list[PendingEvent] = []
        while answer == "edit":
            await self._edit(draft, line)
            if not await asyncio.to_thread(draft.changed):
                answer = "nothing"
                break
            try:
                changes = await asyncio.to_thread(self.source.update, row.id, draft.path, dry_run=True)
                new_query = row.derivative and any(each.title == "SetTransform" for each in changes)
                text = await _read(draft.path)
                plan = await self._look_at_query(text, row.name, row.id) if new_query else None
                answer, line = await self._decide(row, changes, plan), None
                if answer in _DO and plan is not None and row.last_pulled:
                    await self._migrate(row, text, answer, plan)
                elif answer in _DO:
                    changes = await asyncio.to_thread(self.source.update, row.id, draft.path, dry_run=False)
            except LeftRunning:
                kept = self._relative(draft.path)
                self.notify_line(f"{row.name} is being changed; what was written stays in {kept} until then")
                return
            except OdfError as error:
                answer, place = await self._show_problem(error, draft.path, (_EDIT, _FORGET))
                line = None if place is None else place.line
        await asyncio.to_thread(controller.discard, draft.path)
        self._changed(row, changes, answer)

    async def _decide(
        self, row: DatasetRow, changes: Sequence[PendingEvent], plan: ValidateResult | None
    ) -> str:
        """What to do about the changes, and a plan for the query among them."""
        from odf_tui.features.definitions.manifest_dialogs import change_lines, migration_plan_lines
        from odf_tui.widgets.dialogs import DecisionDialog

        if not changes:
            return "nothing"
        title = f"{row.name}: {_blocks(changes)} to append"
        lines = change_lines(changes)
        answers = (_APPEND, _CHANGE, _FORGET)
        if plan is not None and row.last_pulled:
            lines += migration_plan_lines(plan)
            if plan.state == "lost":
                answers = (_FLUSH, _REBUILD, _CHANGE, _FORGET)
        return await self.app.push_screen_wait(DecisionDialog(title, lines, answers))

    async def _migrate(self, row: DatasetRow, text: str, answer: str, plan: ValidateResult) -> None:
        """Lets the old query finish, and puts the new one in its place."""
        request = Update(
            dataset=row.id,
            manifest=text,
            state="flush" if answer == "flush" else "rebuild" if answer == "rebuild" else "",
            accept_columns=bool(plan.new),
        )
        await self.result_of(request, row.name, f"Changing {row.name}", leaves=True)

    def _changed(self, row: DatasetRow, changes: Sequence[PendingEvent], answer: str) -> None:
        if answer in _DO:
            self.notify_line(f"appended {_blocks(changes)} to {row.name}")
            self.reads.datasets()
        elif answer == "nothing":
            self.notify_line(f"the definition of {row.name} stays as it is: nothing differs", "warn")
        else:
            self.notify_line(f"the changes of {row.name} are discarded", "warn")

    # --- New columns of inputs ---

    def do_take_columns(self) -> None:
        """Takes columns that the query has come to give into the dataset."""
        row = self.graph.row
        if row is not None:
            self.start(self._take_columns(row))

    async def _take_columns(self, row: DatasetRow) -> None:
        from odf_tui.features.definitions.manifest_dialogs import migration_plan_lines
        from odf_tui.widgets.dialogs import DecisionDialog

        text = await asyncio.to_thread(self.source.definition, row.id)
        plan = await self._look_at_query(text, row.name, row.id)
        if not plan.new:
            self.notify_line(f"the query of {row.name} gives no other columns than it has", "warn")
            return
        answers = (_FLUSH, _REBUILD) if plan.state == "lost" else (_TAKE,)
        title = f"{row.name}: its query gives new columns"
        answer = await self.app.push_screen_wait(
            DecisionDialog(title, migration_plan_lines(plan), (*answers, _KEEP))
        )
        if answer not in _DO:
            self.notify_line(f"{row.name} stays as it is", "warn")
            return
        try:
            await self._migrate(row, text, answer, plan)
        except LeftRunning:
            self.notify_line(f"{row.name} is being changed")
        else:
            self.notify_line(f"{row.name} has new columns: {', '.join(plan.new)}")
            self.reads.datasets()

    # --- What all need ---

    async def _look_at_query(self, text: str, name: str, dataset: str = "") -> ValidateResult:
        """Asks the worker about the query of a derivative dataset.

        Raises:
            OdfError: the query is wrong, or nobody can look at it.
        """
        title = f"Looking at the query of {name}"
        return await self.result_of(Validate(manifest=text, dataset=dataset), name, title)

    async def _edit(self, draft: ManifestDraft, line: int | None) -> None:
        """Opens the editor.

        Raises:
            OdfError: it did not do its work; what was written is kept, and the hint says where.
        """
        try:
            await self.station.edit(draft.path, line)
        except OdfError as error:
            if await asyncio.to_thread(draft.changed):
                error.hint = f"what was written is in {self._relative(draft.path)}"
            else:
                await asyncio.to_thread(controller.discard, draft.path)
            raise

    async def _show_problem(
        self, error: OdfError, path: Path, answers: Sequence[Answer]
    ) -> tuple[str, TextPosition | None]:
        from odf_tui.features.definitions.manifest_dialogs import error_position, problem_lines, text_of
        from odf_tui.widgets.dialogs import DecisionDialog

        text = await asyncio.to_thread(text_of, path)
        dialog = DecisionDialog(f"{path.name} is not right yet", problem_lines(error, text), answers)
        return await self.app.push_screen_wait(dialog), error_position(error, text)

    def _relative(self, path: Path) -> str:
        folder = self.source.folder
        return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


async def _read(path: Path) -> str:
    return await asyncio.to_thread(path.read_text, encoding="utf-8")


def _remark(plan: ValidateResult | None) -> str:
    """Describe the result of the validation of a new query."""
    if plan is None:
        return ""
    return f"; {plan.message}" if plan.message else "; its query is right"


def _blocks(changes: Sequence[PendingEvent]) -> str:
    return f"{format_count(len(changes))} block{'' if len(changes) == 1 else 's'}"
