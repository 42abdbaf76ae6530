"""ProofsController: writes proofs of query results, and verifies them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

from odf_engine.api import CheckProof, CheckProofResult, Query, one_line_summary, replace_text_file
from odf_engine.api.administration import read_proof
from odf_engine.api.model import DatasetRow
from odf_engine.api.text import count_of, printable
from odf_tui.features.sql.sql_editor import SqlPanel
from odf_tui.services.controller import Controller, task
from odf_tui.services.jobs_client import LeftRunning
from odf_tui.text.format import Span
from odf_tui.text.verification_text import proof_verdict
from odf_tui.widgets.dialogs import ConfirmDialog, TextDialog
from odf_tui.widgets.form import Field, FormDialog, existing_file, required

_UNSIGNED: Final = ""


class ProofsController(Controller):
    """Writes a proof of the result of a query, and verifies proofs."""

    @task
    async def write_proof(self) -> None:
        """Run the query of the editor, or of the selected query job, and write a proof of its result."""
        sql = await self._current_query()
        if not sql:
            self.host.notice("no query: press s to write one, or select a query in pane 4", "warn")
            return
        keys = await asyncio.to_thread(self._datasets_with_keys)
        signers = ((_UNSIGNED, "unsigned"), *((row.id, row.name) for row in keys))
        fields = [
            Field("file", "file", "Path of the proof, relative to the current folder.", "proof.json",
                  check=required("enter the path of a file"), is_path=True),
            Field("sign", "signed by", "The dataset whose private key signs the proof.", _UNSIGNED, signers),
        ]  # fmt: skip
        lines = [[(f" {printable(one_line_summary(sql))}", "strong")]]
        form = await self.host.ask(FormDialog("Prove a query result", fields, "runs the query", lines=lines))
        if form is None:
            return
        path = Path(form.text("file")).expanduser().absolute()
        if path.exists():
            question = ConfirmDialog(f"{path.name} already exists. Overwrite?", "Its contents will be lost.")
            if path.is_dir() or not await self.host.ask(question):
                self.host.notice(f"{path.name} is unchanged", "warn")
                return
        query = Query(sql=sql, limit=None, proof=True, sign=form.text("sign") or None)
        result = await self.jobs.outcome(query, one_line_summary(sql), "Running the query")
        text = json.dumps(result.proof, indent=2, ensure_ascii=False) + "\n"
        await asyncio.to_thread(replace_text_file, path, text)
        self.host.notice(f"proof of {count_of(result.rows, 'row')} in {path.name}: press ; v to verify it")

    def _datasets_with_keys(self) -> list[DatasetRow]:
        rows = [row for row in self.state.datasets if not row.missing and not row.problem]
        return [row for row in rows if self.workspace.holds_key(row.id)]

    async def _current_query(self) -> str:
        """Return the query of the selected job in pane 4, else of the editor, or "" if absent."""
        job = self.host.situation().job if self.state.pane == "jobs" else None
        if job is not None and job.kind == "sql":
            return await asyncio.to_thread(self.workspace.query_of_job, job)
        panel = self.host.find(SqlPanel)
        return panel.editor.text.strip() if panel is not None else ""

    @task
    async def check_proof(self) -> None:
        """Verify a proof by a replay of its query."""
        about = "Path of a proof, relative to the current folder. → completes."
        field = Field("file", "file", about, check=existing_file, is_path=True, example="proof.json")
        form = await self.host.ask(FormDialog("Verify a proof", [field], "verifies"))
        if form is None:
            return
        path = Path(form.text("file")).expanduser().absolute()
        request = CheckProof(proof=await asyncio.to_thread(read_proof, path))
        try:
            report = await self.jobs.outcome(
                request, f"proof {path.name}", f"Verifying {path.name}", leaves=True
            )
        except LeftRunning:
            self.host.notice("the proof is being verified: see its job in pane 4")
            return
        names = {row.id: row.name for row in self.state.datasets}
        lines = proof_lines(report, names)
        self.host.open(TextDialog(path.name, lines, lambda text: self.host.copy_text("proof", text)))


def proof_lines(report: CheckProofResult, names: dict[str, str]) -> list[list[Span]]:
    """Return the verdict on a proof, and the findings.

    Args:
        names: names of datasets by their ids.
    """
    style = "good" if report.valid else "bad" if report.checked else "warn"
    lines: list[list[Span]] = [[], [(f" {proof_verdict(report, names)}", style)]]
    for finding in report.findings if not report.valid else ():
        lines += [[], [(f"   {printable(finding.message)}", "")]]
        if finding.hint:
            lines.append([(f"   {printable(finding.hint)}", "muted")])
    return lines
