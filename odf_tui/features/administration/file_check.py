"""FileCheckController: checks the files of the workspace, and repairs them."""

from __future__ import annotations

from functools import partial

from odf_engine.api import FsckReport, Reporter
from odf_engine.api.text import count_of
from odf_tui.services.controller import Controller, task
from odf_tui.text.format import Span
from odf_tui.text.verification_text import workspace_check_lines
from odf_tui.widgets.dialogs import ConfirmDialog, DecisionDialog


class FileCheckController(Controller):
    """Shows orphaned, incomplete and damaged files, and removes or rebuilds them after a confirmation."""

    @task
    async def check(self) -> None:
        """Check the files of the workspace."""
        repair = now = False
        while True:
            title = "Repairing files" if repair else "Checking files"
            report = await self.host.run_shown(title, partial(self._check, repair, now))
            if repair:
                self.state.datasets_outdated.send(None)
            if report is None:
                self.host.notice(f"{title}: cancelled", "warn")
                return
            self.host.notice(check_summary(report), "warn" if report.left else "good")
            repairs = [
                ("repair", ("r",), "repairs"),
                ("now", ("n",), "repairs, recent files too"),
            ]
            answers = [*(repairs if report.left else ()), ("leave", ("escape", "enter"), "closes")]
            answer = await self.host.ask(DecisionDialog("File check", check_lines(report), answers))
            if answer not in ("repair", "now"):
                return
            now = answer == "now"
            if not await self._confirm(now):
                return
            repair = True

    def _check(self, repair: bool, now: bool, reporter: Reporter) -> FsckReport:
        return self.workspace.check_files(reporter, repair=repair, now=now)

    async def _confirm(self, now: bool) -> bool:
        remark = "Blocks and data of datasets, and private keys of datasets, are never removed."
        recent = ("Files of a running program that were written within the last hour may be removed.",)
        question = "Remove orphaned files, and rebuild damaged caches?"
        return bool(await self.host.ask(ConfirmDialog(question, remark, *(recent if now else ()))))


def check_summary(report: FsckReport) -> str:
    """Return the result of a check in one line."""
    if not report.findings:
        return f"files of {count_of(report.datasets, 'dataset')} are clean"
    repaired = len(report.findings) - len(report.left)
    if report.repair:
        return f"{repaired} repaired, {len(report.left)} not repaired"
    return count_of(len(report.findings), "finding")


def check_lines(report: FsckReport) -> list[list[Span]]:
    """Return the findings and remarks of a check."""
    return [[], *([(f" {line}", "")] for line in workspace_check_lines(report))]
