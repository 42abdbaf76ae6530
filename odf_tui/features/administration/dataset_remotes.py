"""DatasetRemotesController: shows, adds and removes the remotes of a dataset."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from odf_engine.api import REMOTE_KINDS as REMOTE_KINDS
from odf_engine.api import Kind
from odf_engine.api.model import DatasetRow, Remote
from odf_engine.api.text import format_time, printable
from odf_tui.features.sharing.controller import address_validator, resolve_address
from odf_tui.services.controller import Controller, dataset_task
from odf_tui.text.format import Span
from odf_tui.text.remotes import direction, relation_text
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import ConfirmDialog, PickerDialog
from odf_tui.widgets.form import DescribedPicker, Field, FormDialog, FormValues

_ADD: Final = "+"
_KINDS: Final = (("pull", "pull from it"), ("push", "push to it"), ("both", "pull and push"))
_KEYS: Final = {"pull": "p", "push": "u"}
_WORDS: Final = {"pull": "pulls", "push": "pushes"}


class DatasetRemotesController(Controller):
    """Lists the remotes of the selected dataset, adds one, and detaches them."""

    @dataset_task
    async def show_remotes(self, row: DatasetRow) -> None:
        """List the remotes of the selected dataset."""
        choices = [
            Choice(remote.url, remote.label, remark=f"{direction(remote)} · {relation_text(remote)}")
            for remote in row.remotes
        ]
        choices.append(Choice(_ADD, "add a remote", ("plus",), "+"))
        about = {remote.url: remote_lines(remote) for remote in row.remotes}
        picked = await self.host.ask(DescribedPicker(f"Remotes of {row.name}", choices, about))
        if picked == _ADD:
            await self._add(row)
        elif picked is not None:
            await self._detach(row, next(remote for remote in row.remotes if remote.url == picked))

    async def _add(self, row: DatasetRow) -> None:
        repositories = await asyncio.to_thread(self.workspace.repositories)

        def check(form: FormValues) -> str:
            return address_validator(repositories, to_push=form.text("kind") != "pull")(form.text("address"))

        fields = [
            Field("address", "address", "REPOSITORY/NAME, or a URL: file:, s3:, odf+https:.",
                  example=f"{repositories[0].name}/{row.name}" if repositories else "odf+https://…"),
            Field("kind", "use", "What the remote is used for.", "push", _KINDS),
        ]  # fmt: skip
        form = await self.host.ask(FormDialog(f"Remote of {row.name}", fields, "adds it", check=check))
        if form is None:
            return
        url = resolve_address(form.text("address"), repositories).url
        kind = form.text("kind")
        if kind != "push" and (row.polls or row.derivative) and not row.has_pull_remote:
            question = ConfirmDialog(
                f"Pull {row.name} from {form.text('address')}?",
                "Its own source or query does not run while it has a remote to pull from.",
            )
            if not await self.host.ask(question):
                return
        for remote_kind in REMOTE_KINDS if kind == "both" else (cast("Kind", kind),):
            await asyncio.to_thread(self.workspace.attach, row.id, url, remote_kind)
        self.state.datasets_outdated.send(None)
        self.host.notice(f"added the remote {form.text('address')} to {row.name}")

    async def _detach(self, row: DatasetRow, remote: Remote) -> None:
        """Detach a remote for pulls, for pushes, or for both."""
        used: list[Kind] = [kind for kind in REMOTE_KINDS if getattr(remote, kind)]
        actions = [
            Choice(kind, f"do not use it for {_WORDS[kind]}", (_KEYS[kind],), _KEYS[kind])
            for kind in (used if len(used) > 1 else ())
        ]
        actions.append(Choice("all", "detach the dataset from it", ("d",), "d", "the data there remains"))
        answer = await self.host.ask(PickerDialog(printable(remote.label), actions, typing=False))
        if answer is None:
            return
        kinds = REMOTE_KINDS if answer == "all" else (cast("Kind", answer),)
        await asyncio.to_thread(self.workspace.detach, row.id, remote.url, kinds)
        self.state.datasets_outdated.send(None)
        what = "is detached from" if answer == "all" else f"has no {_WORDS[answer]} with"
        self.host.notice(f"{row.name} {what} {remote.label}")


def remote_lines(remote: Remote) -> list[list[Span]]:
    """Return the URL of a remote, and the time of the last comparison."""
    compared = format_time(remote.at) if remote.at else "never: m compares"
    return [
        [(" url       ", "muted"), (printable(remote.url), "")],
        [(" compared  ", "muted"), (compared, "")],
    ]
