"""ChecksScreen: the checks of the workspace, and the check results of one dataset."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import ClassVar, Final

from textual.binding import Binding, BindingType

from odf_engine.api import Check, CheckDefinition, CheckReport, CheckResult, DocumentEntry, Unreadable
from odf_engine.api.flows import ChecksView
from odf_engine.api.model import DatasetRow
from odf_engine.api.text import count_of, format_time_seconds, printable, zone_label
from odf_engine.errors import OdfError, UsageError
from odf_tui.features.automation.document_editor import Lines
from odf_tui.features.automation.documents_screen import (
    STATE_STYLES,
    Column,
    DocumentLine,
    DocumentsScreen,
    Listing,
    entry_spans,
)
from odf_tui.features.automation.templates import Template, TemplateDataset, check_templates
from odf_tui.services.controller import Host
from odf_tui.text.format import Span, error_with_hint
from odf_tui.text.job_text import check_result_spans, latest_check_spans

_COMMITS: Final = 20
"""Number of commits whose results are shown."""


class ChecksScreen(DocumentsScreen[CheckDefinition]):
    """Lists all checks, with the checks of one dataset first, and tries and runs them.

    Args:
        host: has the workspace and the jobs, and shows notices.
        dataset: the dataset whose results are shown.
    """

    kind = CheckDefinition
    columns = (Column("check", 22), Column("state", 9), Column("target", 24, wide=True), Column("rules"))
    advice = (
        "no checks yet: press n",
        "A check examines new rows before they are committed: odf help checks",
    )
    keys = "a accepts · r runs"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "run", "run the checks of the dataset on its stored rows", show=False),
    ]

    def __init__(self, host: Host, dataset: DatasetRow) -> None:
        super().__init__(host, dataset)
        self._row = dataset

    def heading(self) -> str:
        """Return the title."""
        return f"Checks of {self._row.name} (times: {zone_label()})"

    def load(self, name: str) -> Listing:
        """Read the checks, and the results of the dataset."""
        entries = self.workspace.documents(CheckDefinition).entries()
        view = self.workspace.dataset_checks(self._row.id, _COMMITS)
        entries.sort(key=lambda entry: entry.name not in view.rules)
        entry = next((entry for entry in entries if entry.name == name), entries[0] if entries else None)
        lines = [_line(entry, view) for entry in entries]
        latest = latest_check_spans(self.host.state.jobs.newest_first(), self._row.id)
        about = [*(self._entry_lines(entry) if entry is not None else []), *check_lines(view, latest)]
        return Listing(lines, entry.name if entry is not None else "", about)

    def _entry_lines(self, entry: DocumentEntry[CheckDefinition] | Unreadable) -> list[list[Span]]:
        """Return why a check cannot be evaluated, such as a column that is gone."""
        lines = entry_spans(entry)
        if not isinstance(entry, Unreadable):
            try:
                self.workspace.check_document(entry.document)
            except OdfError as error:
                lines.append([(f" {error_with_hint(error)}: press e to edit {entry.name}", "bad")])
        return lines

    def templates(self, dataset: TemplateDataset, used: Collection[str]) -> list[Template]:
        """Return the templates of checks."""
        return check_templates(dataset, used)

    def remove_remark(self) -> str:
        """Return what remains of a removed check."""
        return "Its results are retained."

    def trial(self) -> Callable[[str], Awaitable[Lines]] | None:
        """Return what evaluates a definition on the stored rows of one of its datasets."""
        return self._try

    async def _try(self, text: str) -> Lines:
        """Evaluate a definition on the stored rows of the dataset, or else of its first target.

        Raises:
            OdfError: it is invalid, or the job failed.
        """
        names = await asyncio.to_thread(lambda: self.workspace.check_document(self._parse(text, "")))
        rows = [row for row in self.host.state.datasets if row.name in names]
        row = next((row for row in rows if row.id == self._row.id), rows[0] if rows else None)
        if row is None:
            raise UsageError("there is nothing to try: no dataset matches the target")
        request = Check(dataset=row.id, definition=text)
        return _trial_lines(
            await self.host.jobs.outcome(request, row.name, f"Trying the check on {row.name}")
        )

    def action_run(self) -> None:
        """Run the stored checks of the dataset."""
        self.start(self._run())

    async def _run(self) -> None:
        title = f"Checking {self._row.name}"
        await self.host.jobs.outcome(Check(dataset=self._row.id), self._row.name, title)


def _line(entry: DocumentEntry[CheckDefinition] | Unreadable, view: ChecksView) -> DocumentLine:
    state = (entry.state, STATE_STYLES[entry.state])
    if isinstance(entry, Unreadable):
        return DocumentLine(entry.name, [state, ("", ""), ("", "")])
    spec = entry.document.spec
    style = "" if entry.name in view.rules else "muted"
    targets = ", ".join(map(str, spec.targets))
    return DocumentLine(
        entry.name, [state, (targets, "muted"), (", ".join(rule.label for rule in spec.rules), style)]
    )


def _trial_lines(result: CheckResult) -> Lines:
    """Return the results of checks on stored rows as lines."""
    if not result.results:
        return [[(f" {printable(result.name)}: no checks, or no rows yet", "warn")]]
    return [[(" ", ""), *line] for line in check_result_spans(result)]


def check_lines(checks: ChecksView, latest: Sequence[list[Span]] = ()) -> list[list[Span]]:
    """Return the lines about the checks of a dataset: rules, results of commits, rejected rows.

    Args:
        checks: the checks.
        latest: lines with the results of the newest check of all rows.
    """
    lines: list[list[Span]] = [[]]
    if checks.problem:
        lines += [[(f" {printable(checks.problem)}", "bad")], []]
    for name, rules in checks.rules.items():
        lines.append([(f" {printable(name)}  ", "name"), (printable(", ".join(rules)), "")])
    if not checks.rules and not checks.problem:
        lines.append([(" no checks: press n", "muted")])
    has_results = bool(checks.commits or latest)
    lines += [[], [(" results", "head"), ("" if has_results else "  none", "muted")], *latest]
    for commit in checks.commits:
        report = commit.stored.report
        signed = "  signed" if commit.stored.signed else ""
        when = format_time_seconds(report.system_time)
        lines.append([(f" {when}  block {commit.block}  ", "muted"), (report.summary, _report_style(report)),
                      (signed, "muted")])  # fmt: skip
        lines += _result_lines(report)
    lines += [[], [(" rejected rows", "head"), ("" if checks.rejected else "  none", "muted")]]
    for batch in checks.rejected:
        when, rows = format_time_seconds(batch.report.system_time), count_of(batch.rows, "row")
        lines.append([(f" {when}  ", "muted"), (rows, "bad"), (f"  {printable(str(batch.path))}", "muted")])
        lines += _result_lines(batch.report)
    return lines


def _report_style(report: CheckReport) -> str:
    return "bad" if report.failed else "warn" if report.warnings else "good"


def _result_lines(report: CheckReport) -> list[list[Span]]:
    """Return the violated rules with their first failing rows."""
    lines: list[list[Span]] = []
    for result in report.failed + report.warnings:
        style = "bad" if result.outcome == "failed" else "warn"
        lines.append([(f"   {result.outcome:<7}  ", style), (printable(result.text), "")])
        for row in result.sample:
            values = ", ".join(f"{name}={value}" for name, value in row.items())
            lines.append([(f"            {printable(values)}", "muted")])
    return lines
