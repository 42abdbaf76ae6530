"""TrustDetailsController: shows and changes trust and environment variables of a dataset."""

from __future__ import annotations

import asyncio
import os
import re
from typing import Final

from odf_engine.api import EXECUTION_KINDS
from odf_engine.api.administration import VariableAccess
from odf_engine.api.model import DatasetRow, TrustStatus
from odf_engine.api.text import printable
from odf_tui.features.dataset_actions import trust_request_lines
from odf_tui.services.controller import Controller, dataset_task
from odf_tui.text.format import Span
from odf_tui.widgets.dialogs import DecisionDialog, TypedConfirmation
from odf_tui.widgets.form import Field, FormDialog

_STATES: Final = {
    "own": ("your own dataset: its sources run", "good"),
    "trusted": ("trusted: its sources run until a block changes them", "good"),
    "not trusted": ("untrusted: its sources do not run", "warn"),
}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class TrustDetailsController(Controller):
    """Shows what a dataset runs and reads, and grants or revokes access."""

    @dataset_task
    async def show_details(self, row: DatasetRow) -> None:
        """Show trust and executions of the selected dataset."""
        request = await asyncio.to_thread(self.workspace.trust_status, row.id)
        access = await asyncio.to_thread(self.workspace.variables, row.id)
        private = await asyncio.to_thread(self.workspace.allows_private_network, row.id)
        lines = trust_lines(row, request, access, private=private)
        answers: list[tuple[str, tuple[str, ...], str]] = []
        if row.untrusted:
            answers.append(("trust", ("t",), "trusts"))
        if row.standing != "own" and not private:
            answers.append(("network", ("n",), "trusts, with private network"))
        if row.standing == "trusted":
            answers.append(("revoke", ("U",), "revokes"))
        if row.polls:
            answers.append(("variables", ("e",), "variables"))
        answers.append(("leave", ("escape", "enter"), "closes"))
        answer = await self.host.ask(DecisionDialog(f"Trust in {row.name}", lines, answers))
        if answer == "trust":
            self.host.perform("trust")
        elif answer == "revoke":
            self.host.perform("untrust")
        elif answer == "variables":
            await self._change_variables(row)
        elif answer == "network":
            await self._trust_with_network(row, request)

    async def _trust_with_network(self, row: DatasetRow, request: TrustStatus) -> None:
        lines = [
            *trust_request_lines(row, request),
            [],
            [(" It may also access this machine and its private network.", "bad")],
        ]
        dialog = TypedConfirmation(
            f"Trust {row.name}, with access to the private network?",
            lines,
            [row.name],
            f"type {row.name} to trust it",
        )
        if not await self.host.ask(dialog):
            self.host.notice(f"the trust in {row.name} is unchanged", "warn")
            return
        await asyncio.to_thread(self._grant, row, request)
        self.host.notice(f"{row.name} is trusted, with access to the private network: press U to revoke it")
        self.state.datasets_outdated.send(None)

    def _grant(self, row: DatasetRow, request: TrustStatus) -> None:
        self.workspace.trust(request, private_network=True)

    def change_variables(self) -> None:
        """Change the environment variables that the source of the selected dataset may read."""
        row = self.state.row
        if row is not None:
            self.host.start(self._change_variables(row))

    async def _change_variables(self, row: DatasetRow) -> None:
        access = await asyncio.to_thread(self.workspace.variables, row.id)
        field = Field(
            "names",
            "variables",
            "Names, separated by commas. Empty: none. The source can send their values to its server.",
            ", ".join(access.allowed),
            check=_check_names,
            example=", ".join(access.used) or "API_TOKEN",
        )
        dialog = FormDialog(f"Variables of {row.name}", [field], "allows them", lines=variable_lines(access))
        form = await self.host.ask(dialog)
        if form is None:
            return
        names = ",".join(_names(form.text("names")))
        await asyncio.to_thread(self.workspace.change_setting, access.setting, names or None)
        now = await asyncio.to_thread(self.workspace.variables, row.id)
        self.host.notice(f"{row.name} may read {', '.join(now.allowed) or 'no environment variables'}")


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(text.replace(",", " ").split()))


def _check_names(text: str) -> str:
    wrong = [name for name in _names(text) if not _VARIABLE.fullmatch(name)]
    return f"{wrong[0]}: use letters, digits and _ in names of variables" if wrong else ""


def variable_lines(access: VariableAccess) -> list[list[Span]]:
    """Return the variables that a source uses or may read, and whether they are set."""
    lines: list[list[Span]] = []
    for name in dict.fromkeys([*access.used, *access.allowed]):
        state, style = ("allowed", "good") if name in access.allowed else ("not allowed", "warn")
        unused = "" if name in access.used else ", not used by the definition"
        missing = "" if name in os.environ else ", not set in this terminal"
        lines.append([(f"   {name}  ", "strong"), (state, style), (unused + missing, "muted")])
    return lines or [[(" The definition uses no environment variables.", "muted")]]


def trust_lines(
    row: DatasetRow, request: TrustStatus, access: VariableAccess, *, private: bool
) -> list[list[Span]]:
    """Return trust, network access, variables and executions of a dataset."""
    text, style = _STATES[row.standing]
    network = "allowed" if private else "not allowed"
    lines: list[list[Span]] = [
        [(" trust            ", "muted"), (text, style)],
        [(" private network  ", "muted"), (network, "")],
    ]
    if row.polls:
        lines += [[(" setting          ", "muted"), (printable(access.setting), "")], *variable_lines(access)]
    lines.append([])
    if not request.runs:
        return [*lines, [(" It runs nothing.", "muted")]]
    if row.standing == "own":
        steps = [[(f"   {EXECUTION_KINDS.get(run.kind, run.kind)}  ", "muted"), (printable(line), "strong")]
                 for run in request.runs for line in run.text.splitlines()[:1]]  # fmt: skip
        return [*lines, *steps]
    return [*lines, *map(list, trust_request_lines(row, request))]
