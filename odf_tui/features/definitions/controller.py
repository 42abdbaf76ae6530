"""DefinitionsController: new datasets from files, templates and manifests; edits of definitions; the demo."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from odf_engine.api import (
    DeclaredTable,
    FileChoices,
    InferSource,
    Pull,
    RemoteInputs,
    TextPosition,
    Update,
    UpdateResult,
    Validate,
    ValidateResult,
    choose_members,
    error_position,
    example_file,
    find_data_files,
    list_archive,
    list_tables,
    load_choices,
    load_table,
    manifest_text,
    match_members,
    resolve_pattern,
    suggest_name,
)
from odf_engine.api.model import DatasetRow, PendingEvent
from odf_engine.api.samples import MANIFESTS, demo_files
from odf_engine.api.text import count_of, format_count, printable
from odf_engine.errors import OdfError
from odf_tui.features.definitions import manifest_draft
from odf_tui.features.definitions.file_dialog import DataFileDialog, ImportedFile
from odf_tui.features.definitions.manifest_dialogs import (
    AddManifestDialog,
    DataFilePicker,
    MemberPicker,
    UnresolvedManifest,
    change_lines,
    difference_lines,
    manifest_change_lines,
    manifest_lines,
    migration_plan_lines,
    problem_lines,
    read_manifest_text,
    translation_lines,
)
from odf_tui.features.definitions.manifest_draft import ManifestDraft
from odf_tui.panes.datasets.view import GraphView
from odf_tui.panes.jobs.view import JobsPane
from odf_tui.services.controller import Controller, Host, dataset_task, task
from odf_tui.services.jobs_client import LeftRunning
from odf_tui.state.app_state import JobNews
from odf_tui.state.saved_session import TOUR
from odf_tui.text.format import Span, error_with_hint
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import ConfirmDialog, DecisionDialog, PickerDialog, PromptDialog, name_check

_KINDS: Final = (
    ("data", "f", "from a data file or URL: CSV, JSON, Parquet"),
    ("root", "r", "a root dataset with a polling source: files, URLs, container"),
    ("push", "p", "a root dataset with a push source"),
    ("derivative", "d", "a derivative dataset: a query over other datasets"),
    ("manifest", "m", "from an existing manifest file"),
)
_SYSTEM_COLUMNS: Final = ("offset", "op", "system_time")
_NEXT: Final = {"root": ": p pulls it", "push": ": p shows how to push into it"}

_APPLIED: Final = ("append", "flush", "rebuild")
"""Answers that change the dataset."""

Answer = tuple[str, tuple[str, ...], str]
"""An answer of a DecisionDialog, its keys, and its label."""
_EDIT: Final[Answer] = ("edit", ("e", "enter"), "edits again")
_DISCARD: Final[Answer] = ("discard", ("d",), "discards")
_KEEP: Final[Answer] = ("leave", ("escape", "q"), "saves it for later")
_APPEND: Final[Answer] = ("append", ("enter",), "appends")
_ADD_NEW: Final[Answer] = ("add", ("enter",), "adds it")
_OPEN_EDITOR: Final[Answer] = ("edit", ("e",), "opens it in the editor")
_DISCARD_NEW: Final[Answer] = ("discard", ("escape", "q"), "discards")
_BACK: Final[Answer] = ("back", ("escape", "q"), "goes back")
_EDIT_AGAIN: Final[Answer] = ("edit", ("e",), "edits again")
_UNCHECKED: Final[Answer] = ("unchecked", ("a",), "adds it without validation")
_FLUSH: Final[Answer] = ("flush", ("f",), "flushes")
_REBUILD: Final[Answer] = ("rebuild", ("r",), "rebuilds")
_ADD_COLUMNS: Final[Answer] = ("append", ("enter",), "adds them")
_LEAVE: Final[Answer] = ("leave", ("escape", "q"), "cancels")
_WRITE: Final[Answer] = ("write", ("enter",), "writes it")
_KEEP_FILE: Final[Answer] = ("leave", ("escape", "q"), "leaves the file unchanged")
_TRANSLATE: Final[Answer] = ("translate", ("t",), "translates the query into Spark SQL")
_DISCARD_CHANGES: Final[Answer] = ("discard", ("escape", "q"), "discards")


def _state_answers(plan: ValidateResult) -> tuple[Answer, ...]:
    """Return the answers for a query that cannot continue; one that reads earlier rows has none to flush."""
    return (_FLUSH, _REBUILD) if plan.reads is None else (_REBUILD,)


class DefinitionsController(Controller):
    """Adds datasets, and edits their definitions in the user's editor.

    A manifest is checked when the editor ends. The worker validates queries of derivative datasets. A file
    that the user changed is removed only after a confirmation.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._demo_jobs: set[str] = set()  # until the state has them
        self.state.jobs_changed.connect(self._select_first_demo_job)

    def add_dataset(self) -> None:
        """Add a dataset. The user chooses its kind."""
        choices = [Choice(name, title, (key,), key) for name, key, title in _KINDS]
        self.host.open(PickerDialog("Add a dataset", choices, typing=False), self._add_kind)

    def _add_kind(self, kind: str | None) -> None:
        if kind == "manifest":
            self.add_from_manifest()
        elif kind == "data":
            self._add_from_data_file()
        elif kind:
            self._add_from_template(kind)

    def add_from_manifest(self) -> None:
        """Add the datasets of a manifest file."""
        self.host.open(AddManifestDialog(self.workspace), self._dialog_ended)

    def _dialog_ended(self, result: Mapping[str, str] | UnresolvedManifest | None) -> None:
        if result is None or isinstance(result, Mapping):
            self._added(result)
        else:
            self._resolve_manifest(result.path, result.error)

    @task
    async def _resolve_manifest(self, path: Path, error: OdfError) -> None:
        """Add the datasets of a manifest after the remedies of its errors, each with a confirmation."""
        while await self._resolve(error, path):
            try:
                names = await asyncio.to_thread(self.workspace.add_manifest, path)
            except OdfError as next_error:
                error = next_error
            else:
                self._added(names)
                return
        self.host.notice("nothing was added", "warn")

    async def _resolve(self, error: OdfError, path: Path) -> bool:
        """Remedy an error of a manifest, after a confirmation. Returns whether it was remedied.

        Raises:
            OdfError: a pull failed, or the file could not be written.
        """
        if isinstance(error, RemoteInputs):
            return await self._pull_inputs(error)
        translates = await asyncio.to_thread(self.workspace.can_translate, path)
        answer, _ = await self._show_problem(error, path, (*((_TRANSLATE,) if translates else ()), _LEAVE))
        if answer != "translate":
            return False
        try:
            if not await self._translate(path):
                return False
            derivative = await asyncio.to_thread(self.workspace.derivative_in_manifest, path)
            if derivative:
                await self._validate_query(await _read_file(path), derivative)
        except RemoteInputs as missing:
            return await self._pull_inputs(missing)
        except OdfError as problem:
            await self._show_problem(problem, path, (_LEAVE,))
            return False
        return True

    async def _pull_inputs(self, error: RemoteInputs) -> bool:
        """Pull inputs that are in remotes, after a confirmation. Returns whether they were pulled.

        Raises:
            OdfError: a pull failed.
        """
        display_name = self.workspace.remotes.display_name
        names = {dependency.url: display_name(dependency.url) for dependency in error.inputs}
        question = (
            f"Pull {count_of(len(names), 'input')} from {'its remote' if len(names) == 1 else 'remotes'}?"
        )
        if not await self.host.ask(ConfirmDialog(question, *names.values())):
            return False
        for missing_input in error.inputs:
            request = Pull.of_new_dataset(missing_input.url, missing_input.name)
            await self.jobs.outcome(request, missing_input.name, f"Pulling {names[missing_input.url]}")
        self.state.datasets_outdated.send(None)
        return True

    async def _translate(self, path: Path) -> bool:
        """Translate the queries of a manifest file, after a confirmation. Returns whether it was written.

        Raises:
            OdfError: a part of a query has no translation, or the file cannot be written.
        """
        change, queries = await asyncio.to_thread(self.workspace.translate, path)
        title = f"Write the translated {'query' if len(queries) == 1 else 'queries'} to {path.name}?"
        if await self._decide(title, translation_lines(queries), (_WRITE, _KEEP_FILE)) != "write":
            return False
        await asyncio.to_thread(self.workspace.write_manifest, change)
        return True

    def _added(self, names: Mapping[str, str] | None, remark: str = ": p pulls") -> None:
        if not names:
            return
        self.host.query_one(GraphView).selected = next(iter(names))  # selected as soon as the graph has it
        what = next(iter(names.values())) if len(names) == 1 else f"{format_count(len(names))} datasets"
        self.host.notice(f"added {what}{remark}")
        self.state.datasets_outdated.send(None)

    @task
    async def _add_from_template(self, template: str) -> None:
        name = await self._ask_name(manifest_draft.find_unused_name(self._dataset_names()))
        if name:
            source = await asyncio.to_thread(self._selected_table) if template == "derivative" else None
            draft = await asyncio.to_thread(
                manifest_draft.create, self.workspace.folder, template, name, source
            )
            await self._add_draft(draft, template)

    def _selected_table(self) -> manifest_draft.SourceTable | None:
        """Return the selected dataset as the input of a new one."""
        row = self.state.row
        if row is None or row.missing:
            return None
        names = [name for name, _ in self.workspace.columns(row.id)]
        return manifest_draft.SourceTable(row.name, [name for name in names if name not in _SYSTEM_COLUMNS])

    @task
    async def _add_from_data_file(self) -> None:
        """Add a dataset with a manifest inferred from the first rows of a data file."""
        folder = self.workspace.folder
        files = await asyncio.to_thread(find_data_files, folder)
        source = await self.host.ask(DataFilePicker(folder, files))
        if source:
            await self._add_inferred(source)

    @task
    async def add_data_file(self, source: str) -> None:
        """Add a dataset from a data file: a path, relative to the workspace or absolute, or a URL."""
        await self._add_inferred(source)

    async def _add_inferred(self, location: str) -> None:
        folder = self.workspace.folder
        source, pattern = await asyncio.to_thread(resolve_pattern, location, folder)
        table = await self._choose_table(source)
        if table is None:
            return
        name = await self._ask_name(
            suggest_name(table.entry if table.name else location, self._dataset_names())
        )
        if not name:
            return
        title, text, answer = f"{name} from {pattern or table.label}", "", "back"
        members = await asyncio.to_thread(_read_members, table, folder)
        choices = await asyncio.to_thread(_read_choices, table, folder)
        imported: ImportedFile | None = ImportedFile(None, choices)
        while answer == "back":
            load = partial(load_table, table, folder)
            imported = await self.host.ask(
                DataFileDialog(title, load, imported.choices, rejects=imported.rejects, caps=imported.caps)
            )
            if imported is None:
                return
            problem = " ".join(imported.problem.split())
            file = imported.found or example_file(table.location)
            problem = f"Example columns: {problem}" if problem else ""
            text = manifest_text(table.location, name, file, problem, table, pattern)
            answer = "edit"
            if not imported.edits:
                answer = await self._decide(title, manifest_lines(text), (_ADD_NEW, _OPEN_EDITOR, _BACK))
            before, members = members, await asyncio.to_thread(_read_members, table, folder)
            if answer == "add" and members != before:
                self.host.notice(_members_change(table, before, members), "warn")
                answer = "back"
        draft = await asyncio.to_thread(manifest_draft.write, folder, name, text)

        async def review() -> str:
            return await self._decide(title, manifest_lines(text), (_ADD_NEW, _OPEN_EDITOR, _DISCARD_NEW))

        await self._add_draft(draft, "root", answer, review, settings=imported.settings)

    async def _choose_table(self, source: str) -> DeclaredTable | None:
        """Return the table of a file; of a collection the table that the user chooses, or None."""
        folder = self.workspace.folder
        try:
            if (listing := await asyncio.to_thread(list_archive, source, folder)) is not None:
                picker = MemberPicker(printable(f"Members of {source}"), listing)
                if (members := await self.host.ask(picker)) is None:
                    return None
                return await asyncio.to_thread(choose_members, source, folder, members.splitlines())
            tables = await asyncio.to_thread(list_tables, source, folder)
        except OdfError as error:
            self.host.notice(error_with_hint(error), "bad")
            return None
        except OSError:
            return DeclaredTable(location=source)  # the dialog shows why it cannot be read
        if len(tables) == 1:
            return tables[0]
        by_name = {table.name: table for table in tables}
        choices = [Choice(name, name, remark=table.label) for name, table in by_name.items()]
        title = f"Table of {source} (odf new --from adds all tables)"
        chosen = await self.host.ask(PickerDialog(printable(title), choices, typing=True))
        return None if chosen is None else by_name[chosen]

    def _dataset_names(self) -> list[str]:
        return [row.name for row in self.state.datasets]

    async def _ask_name(self, proposed: str) -> str | None:
        remark = "letters, digits, - and ."
        check = name_check(self._dataset_names())
        return await self.host.ask(PromptDialog("Dataset name", proposed, remark, check))

    async def _add_draft(
        self,
        draft: ManifestDraft,
        template: str,
        answer: str = "edit",
        review: Callable[[], Coroutine[Any, Any, str]] | None = None,
        *,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Edit a new manifest until it is added, discarded or saved for later.

        Args:
            draft: the manifest.
            template: the template of the manifest.
            answer: the first step: ``edit``, ``add``, ``unchecked``, ``discard`` or ``leave``.
            review: returns the next step if the manifest was not edited. Without it, an unedited manifest is
                discarded.
            settings: settings of the new datasets, with their values.
        """
        line: int | None = draft.find_line("name")
        edited = False
        while answer in ("edit", "unchecked", "add"):
            if answer == "edit":
                await self._edit(draft, line)
                edited = edited or await asyncio.to_thread(draft.is_changed)
                if not edited:
                    if review is not None:
                        answer = await review()
                        continue
                    await asyncio.to_thread(manifest_draft.discard, draft.path)
                    self.host.notice("the manifest is unchanged: nothing was added", "warn")
                    return
            validating, plan = False, None
            try:
                derivative = await asyncio.to_thread(self.workspace.derivative_in_manifest, draft.path)
                if derivative and answer != "unchecked":
                    validating = True
                    plan = await self._validate_query(await _read_file(draft.path), derivative)
                    validating = False
                names = await asyncio.to_thread(self.workspace.add_manifest, draft.path)
            except OdfError as error:
                skip = (_UNCHECKED,) if validating else ()
                answers = (_EDIT, *skip, _DISCARD, _KEEP)
                remedied, answer, position = await self._remedy(error, draft.path, answers)
                if remedied:
                    edited, answer = True, "add"
                    continue
                line = None if position is None else position.line
            else:
                path = await asyncio.to_thread(
                    manifest_draft.rename_after_dataset, draft.path, next(iter(names.values()))
                )
                await asyncio.to_thread(self.workspace.record_manifest, names, path)
                for name in names.values():
                    await self._change_settings(name, settings or {})
                self._added(names, f" ({path.name}){_NEXT.get(template, '')}{_describe_plan(plan)}")
                return
        await self._keep_or_discard(draft.path, discard=answer == "discard")

    async def _remedy(
        self, error: OdfError, path: Path, answers: Sequence[Answer]
    ) -> tuple[bool, str, TextPosition | None]:
        """Show why a manifest is invalid, with its remedy if there is one.

        Returns:
            Whether the error is remedied; otherwise the answer of the user and the position of the error.
        """
        try:
            if isinstance(error, RemoteInputs) and await self._pull_inputs(error):
                return True, "", None
            if await asyncio.to_thread(self.workspace.can_translate, path):
                answer, position = await self._show_problem(
                    error, path, (answers[0], _TRANSLATE, *answers[1:])
                )
                if answer != "translate":
                    return False, answer, position
                if await self._translate(path):
                    return True, "", None
        except OdfError as next_error:
            error = next_error
        return False, *await self._show_problem(error, path, answers)

    async def _change_settings(self, name: str, settings: Mapping[str, str]) -> None:
        try:
            for key, value in settings.items():
                await asyncio.to_thread(self.workspace.change_setting, f"{key}.{name}", value)
        except OdfError as error:
            self.host.notice(error_with_hint(error), "bad")

    async def _keep_or_discard(self, path: Path, *, discard: bool) -> None:
        if discard:
            await asyncio.to_thread(manifest_draft.discard, path)
            self.host.notice(f"discarded {path.name}")
        else:
            self.host.notice(
                f"nothing was added; the manifest is saved in {self._relative_path(path)}", "warn"
            )

    @dataset_task
    async def edit_definition(self, row: DatasetRow) -> None:
        """Edit the definition of the selected dataset."""
        text = await asyncio.to_thread(self.workspace.definition, row.id)
        draft = await asyncio.to_thread(manifest_draft.copy, self.workspace.folder, row.name, text)
        line: int | None = None
        answer = "edit"
        changes: list[PendingEvent] = []
        while answer == "edit":
            await self._edit(draft, line)
            if not await asyncio.to_thread(draft.is_changed):
                answer = "nothing"
                break
            try:
                changes = await asyncio.to_thread(self.workspace.update, row.id, draft.path, dry_run=True)
                new_query = row.derivative and any(change.title == "SetTransform" for change in changes)
                text = await _read_file(draft.path)
                plan = await self._validate_query(text, row.name, row.id) if new_query else None
                answer, line = await self._decide_on_changes(row, changes, plan), None
                if answer in _APPLIED and plan is not None and row.last_pulled:
                    await self._migrate(row, text, answer, plan)
                elif answer in _APPLIED:
                    changes = await asyncio.to_thread(
                        self.workspace.update, row.id, draft.path, dry_run=False
                    )
            except LeftRunning:
                path = self._relative_path(draft.path)
                self.host.notice(f"{row.name} is being changed; the manifest is in {path} until then")
                return
            except OdfError as error:
                answers = (_EDIT, _DISCARD_CHANGES)
                remedied, answer, position = await self._remedy(error, draft.path, answers)
                answer = "edit" if remedied else answer  # the editor shows the new query
                line = None if position is None else position.line
        await asyncio.to_thread(manifest_draft.discard, draft.path)
        self._report_changes(row, changes, answer)
        if answer in (*_APPLIED, "nothing"):
            await self._offer_manifest(row, text, drifted=answer == "nothing")

    async def _offer_manifest(
        self, row: DatasetRow, text: str, *, drifted: bool = False, keeps_comments: bool = False
    ) -> None:
        """Offer to write a definition into the manifest file of its dataset.

        Args:
            row: the dataset.
            text: its definition.
            drifted: only if the file differs from the dataset by more than its text.
            keeps_comments: as for :meth:`manifest_change` of the workspace.
        """
        try:
            change = await asyncio.to_thread(
                self.workspace.manifest_change, row.id, text, drifted=drifted, keeps_comments=keeps_comments
            )
            if change is None:
                return
            path = self._relative_path(change.path)
            lines = manifest_change_lines(change.old, change.new)
            if await self._decide(f"Write the definition to {path}?", lines, (_WRITE, _KEEP_FILE)) == "write":
                await asyncio.to_thread(self.workspace.write_manifest, change)
                self.host.notice(f"wrote {path}")
                self.state.datasets_outdated.send(None)
        except OdfError as error:
            self.host.notice(f"the manifest was not written: {error}", "warn")

    async def _decide_on_changes(
        self, row: DatasetRow, changes: Sequence[PendingEvent], plan: ValidateResult | None
    ) -> str:
        """Show changes, and the plan for a new query among them. Returns the answer of the user."""
        if not changes:
            return "nothing"
        lines = change_lines(changes)
        answers = (_APPEND, _EDIT_AGAIN, _DISCARD_CHANGES)
        if plan is not None and (row.last_pulled or plan.message):
            lines += migration_plan_lines(plan)
            if plan.state == "lost":
                answers = (*_state_answers(plan), _EDIT_AGAIN, _DISCARD_CHANGES)
        blocks = _count_blocks(changes)
        title = f"{row.name}: {blocks} to append" if blocks else f"{row.name}: change of its source"
        return await self._decide(title, lines, answers)

    async def _migrate(
        self, row: DatasetRow, text: str, answer: str, plan: ValidateResult
    ) -> UpdateResult | None:
        """Replace the definition of a dataset that has data; return the result of the job.

        Raises:
            LeftRunning: the user left the dialog.
            OdfError: the definition was not replaced.
        """
        request = Update(
            dataset=row.id,
            manifest=text,
            state="flush" if answer == "flush" else "rebuild" if answer == "rebuild" else "",
            accept_columns=bool(plan.new),
        )
        return await self.jobs.outcome(request, row.name, f"Changing {row.name}", leaves=True)

    def _report_changes(self, row: DatasetRow, changes: Sequence[PendingEvent], answer: str) -> None:
        if answer in _APPLIED:
            blocks = _count_blocks(changes)
            done = f"appended {blocks} to" if blocks else "changed the source of"
            self.host.notice(f"{done} {row.name}")
            self.state.datasets_outdated.send(None)
        elif answer == "nothing":
            self.host.notice(f"the definition of {row.name} is unchanged", "warn")
        else:
            self.host.notice(f"discarded the changes to {row.name}", "warn")

    @dataset_task
    async def add_new_columns(self, row: DatasetRow) -> None:
        """Add the new columns of the selected dataset's query or sources to its schema."""
        text = await asyncio.to_thread(self.workspace.definition, row.id)
        origin = f"the query of {row.name}" if row.derivative else row.name
        title = "Validating" if row.derivative else "Finding new columns of"
        plan = await self._validate_query(text, row.name, row.id, f"{title} {origin}")
        if not plan.new:
            verb = "returns" if row.derivative else "has"
            self.host.notice(f"{origin} {verb} no new columns", "warn")
            return
        answers = _state_answers(plan) if plan.state == "lost" else (_ADD_COLUMNS,)
        changes = [PendingEvent(change.title, tuple(change.lines)) for change in plan.changes]
        lines = migration_plan_lines(plan) if row.derivative else change_lines(changes)
        answer = await self._decide(f"New columns in {origin}", lines, (*answers, _LEAVE))
        if answer not in _APPLIED:
            self.host.notice(f"{row.name} is unchanged", "warn")
            return
        try:
            result = await self._migrate(row, text, answer, plan)
        except LeftRunning:
            self.host.notice(f"{row.name} is being changed")
            return
        self.host.notice(f"{row.name} has new columns: {', '.join(plan.new)}")
        self.state.datasets_outdated.send(None)
        if result is not None and result.definition is not None:
            await self._offer_manifest(row, result.definition, keeps_comments=True)

    @dataset_task
    async def adapt_source(self, row: DatasetRow) -> None:
        """Adapt the source of the selected dataset to the file that it gives now."""
        title = f"Reading the source of {row.name}"
        adapted = await self.jobs.outcome(InferSource(dataset=row.id), row.name, title)
        if not adapted.differences:
            self.host.notice(f"the source of {row.name} is unchanged", "warn")
            return
        plan = await self._validate_query(adapted.definition, row.name, row.id, f"Checking {row.name}")
        changes = [PendingEvent(change.title, tuple(change.lines)) for change in plan.changes]
        lines = [*difference_lines(adapted.differences), *change_lines(changes)]
        answers = (_APPEND, _LEAVE) if changes else (_LEAVE,)
        answer = await self._decide(f"The source of {row.name}", lines, answers)
        if answer not in _APPLIED:
            self.host.notice(f"{row.name} is unchanged", "warn")
            return
        try:
            result = await self._migrate(row, adapted.definition, answer, plan)
        except LeftRunning:
            self.host.notice(f"{row.name} is being changed")
            return
        self._report_changes(row, changes, answer)
        definition = adapted.definition if result is None else result.definition or adapted.definition
        await self._offer_manifest(row, definition, keeps_comments=True)

    async def _validate_query(
        self, text: str, name: str, dataset: str = "", title: str = ""
    ) -> ValidateResult:
        """Validate a query, or find the new columns of a root dataset, in the worker.

        Raises:
            OdfError: the query is invalid, or was not validated.
        """
        title = title or f"Validating the query of {name}"
        return await self.jobs.outcome(Validate(manifest=text, dataset=dataset), name, title)

    async def _edit(self, draft: ManifestDraft, line: int | None) -> None:
        """Open a manifest in the editor, and wait until it ends.

        Raises:
            OdfError: the editor failed. A changed file is not removed, and the hint has its path.
        """
        try:
            await self.host.terminal.edit(draft.path, line)
        except OdfError as error:
            if await asyncio.to_thread(draft.is_changed):
                error.hint = f"your changes are in {self._relative_path(draft.path)}"
            else:
                await asyncio.to_thread(manifest_draft.discard, draft.path)
            raise

    async def _show_problem(
        self, error: OdfError, path: Path, answers: Sequence[Answer]
    ) -> tuple[str, TextPosition | None]:
        """Show why a manifest is invalid. Returns the answer of the user, and the position of the error."""
        text = await asyncio.to_thread(read_manifest_text, path)
        answer = await self._decide(f"{path.name} is invalid", problem_lines(error, text), answers)
        return answer, error_position(error, text)

    async def _decide(self, title: str, lines: Sequence[Sequence[Span]], answers: Sequence[Answer]) -> str:
        """Show a DecisionDialog. Returns the name of the answer; escape is the last one."""
        return await self.host.ask(DecisionDialog(title, lines, answers)) or answers[-1][0]

    def _relative_path(self, path: Path) -> str:
        folder = self.workspace.folder
        return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)

    @task
    async def make_demo(self) -> None:
        """Create the demo in this workspace, after a confirmation."""
        files = len(await asyncio.to_thread(demo_files)) - len(MANIFESTS)
        remarks = (
            f"Writes {format_count(files)} files to sources/, {format_count(len(MANIFESTS))} to manifests/,",
            "and adds the datasets of a small harbour town.",
            "They are pulled and verified: see pane 4.",
            "No network is needed. Spark takes a moment to start.",
        )
        if not await self.host.ask(ConfirmDialog("Create the demo in this workspace?", *remarks)):
            self.host.notice("nothing was written", "warn")
            return
        requests = await asyncio.to_thread(self.workspace.make_demo)
        self.host.notice("demo created; pane 4 shows the jobs that pull and verify it")
        self.state.layout.tour = list(TOUR)
        self.host.load("features.tour.TourController")
        self.state.datasets_outdated.send(None)
        if self.host.has_class("-narrow"):
            self.state.focus_pane("jobs")  # a narrow screen shows it below the graph
        self._demo_jobs = {await self.jobs.submit_one(request, name) for request, name in requests}
        self._select_first_demo_job()

    def _select_first_demo_job(self, news: JobNews | None = None) -> None:
        """Select the first job of the demo, as soon as all of them are listed."""
        if self._demo_jobs and self._demo_jobs <= self.state.jobs.jobs.keys():
            self._demo_jobs = set()
            self.host.query_one(JobsPane).view.move("last")  # jobs are listed newest first


async def _read_file(path: Path) -> str:
    return await asyncio.to_thread(path.read_text, encoding="utf-8")


def _describe_plan(plan: ValidateResult | None) -> str:
    """Return the result of the validation of a new query as text."""
    if plan is None:
        return ""
    return f"; {plan.warning or plan.message or 'its query is valid'}"


def _count_blocks(changes: Sequence[PendingEvent]) -> str:
    """Return the number of blocks that changes append, or "" if only a source outside the chain changes."""
    blocks = sum(change.in_chain for change in changes)
    return count_of(blocks, "block") if blocks else ""


def _read_choices(table: DeclaredTable, folder: Path) -> FileChoices:
    """Return what the metadata of a table declare. The dialog shows why its file cannot be read."""
    try:
        return load_choices(table, folder)
    except (OdfError, OSError):
        return FileChoices()


def _read_members(table: DeclaredTable, folder: Path) -> list[str]:
    """Return the members of a local archive that are the rows of a table, or [] if there are none."""
    if not table.entry and not table.members:
        return []
    try:
        return match_members(table, folder)
    except (OdfError, OSError):
        return []


def _members_change(table: DeclaredTable, before: Sequence[str], after: Sequence[str]) -> str:
    """Return a notice about members of an archive that were added or removed."""
    gone, new = [name for name in before if name not in after], [name for name in after if name not in before]
    parts = [
        f"{label} {names[0]}" + (f" and {format_count(len(names) - 1)} more" if len(names) > 1 else "")
        for label, names in (("removed", gone), ("added", new))
        if names
    ]
    change = ", ".join(parts)
    return printable(f"{table.location} has changed: {change}. Check the rows, or press esc to choose again")
