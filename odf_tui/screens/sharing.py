"""Exchange with other places: pull from them, push to them, look at them. All of it is jobs of the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from odf_engine.coordinator.protocol import Compare, Job, Pull, Push
from odf_tui.screens.waiting import JobsClient
from odf_tui.state.model import DatasetRow
from odf_tui.text.format import printable
from odf_tui.text.job_text import may_have_diverged
from odf_tui.text.remotes import Remote, direction, is_writable, pull_remotes, push_remotes, relation_text

if TYPE_CHECKING:
    from odf_tui.gateway.protocol import NamedUrl
    from odf_tui.widgets.choice_list import Choice

_REPOSITORY_KEYS: Final = "123456789"
_TYPED: Final = "typed"


class Sharing(JobsClient):
    """The part of the workbench that exchanges the selected dataset with other places."""

    # --- Pull, and look ---

    def synchronise(self, row: DatasetRow) -> None:
        """Takes over what is new where a dataset comes from."""
        known = pull_remotes(row.remotes)
        if len(known) == 1:
            self._pull_from(row, known[0])
        else:
            self.start(self._choose_source(row, known))

    async def _choose_source(self, row: DatasetRow, known: Sequence[Remote]) -> None:
        remote = await self.choose_remote(f"Pull {row.name} from", known)
        if remote is not None:
            self._pull_from(row, remote)

    def _pull_from(self, row: DatasetRow, remote: Remote) -> None:
        self.submit([(Pull(dataset=row.id, url=remote.url), row.name)], f", from {remote.label}")

    def do_look(self) -> None:
        """Looks how the selected dataset stands to its remotes now."""
        row = self.graph.row
        if row is not None:
            self.submit([(Compare(dataset=row.id), row.name)])

    def do_look_all(self) -> None:
        """Looks how all datasets stand to their remotes now; those that are being looked at are left out."""
        busy = {job.dataset for job in self.book.active_jobs() if job.kind == "compare"}
        wanted = [row for row in self.rows if row.remotes and not row.problem and row.id not in busy]
        if wanted:
            self.submit([(Compare(dataset=row.id), row.name) for row in wanted])
        else:
            self.notify_line("all of them are being looked at already")

    # --- Push ---

    def do_push(self) -> None:
        """Pushes the selected dataset to where it goes; asks where to if that is not one place."""
        row = self.graph.row
        if row is None:
            return
        known = push_remotes(row.remotes)
        if len(known) == 1:
            self._push(row, known[0].url, known[0].label)
        else:
            self.start(self._push_somewhere(row))

    def do_push_to(self) -> None:
        """Pushes the selected dataset to a place that is asked for."""
        row = self.graph.row
        if row is not None:
            self.start(self._push_somewhere(row))

    async def _push_somewhere(self, row: DatasetRow) -> None:
        place = await self.ask_where_to(row, f"Push {row.name} to")
        if place is not None:
            self._push(row, place.url, place.name)

    def _push(self, row: DatasetRow, url: str, label: str) -> None:
        self.submit([(Push(dataset=row.id, url=url), row.name)], f", to {label}")

    async def ask_where_to(self, row: DatasetRow, title: str, without: str = "") -> NamedUrl | None:
        """A place that can be written: where it went before, its place in a repository, or a typed one.

        Args:
            without: a URL that is not meant.
        """
        from odf_tui.features.sharing.controller import (
            address_in_repository,
            address_validator,
            resolve_address,
        )
        from odf_tui.gateway.protocol import NamedUrl
        from odf_tui.widgets.dialogs import PickerDialog, PromptDialog

        repositories = await asyncio.to_thread(self.source.repositories)
        places = [NamedUrl(each.label, each.url) for each in push_remotes(row.remotes)]
        places += [address_in_repository(each, row.name) for each in repositories if is_writable(each.url)]
        by_url = {each.url: each for each in reversed(places) if each.url != without}
        places = [each for each in dict.fromkeys(places) if by_url.get(each.url) == each]
        picked: str | None = _TYPED
        if places:
            choices = [_choice(at, each.url, each.name, each.url) for at, each in enumerate(places)]
            choices.append(_typed("another address"))
            picked = await self.app.push_screen_wait(PickerDialog(printable(title), choices, typing=False))
        if picked != _TYPED:
            return by_url.get(picked or "")
        remark = "repository/name, or a URL: file:, s3:, odf+https:"
        check = address_validator(repositories, to_push=True)
        text = await self.app.push_screen_wait(PromptDialog(title, "", remark, check))
        return NamedUrl(text, resolve_address(text, repositories).url) if text else None

    # --- Remotes ---

    async def choose_remote(self, title: str, remotes: Sequence[Remote]) -> Remote | None:
        """One of them; it is asked which where there are several."""
        from odf_tui.widgets.dialogs import PickerDialog

        if len(remotes) < 2:
            return remotes[0] if remotes else None
        choices = [
            _choice(at, each.url, each.label, f"{direction(each)} · {relation_text(each)}")
            for at, each in enumerate(remotes)
        ]
        picked = await self.app.push_screen_wait(PickerDialog(printable(title), choices, typing=False))
        return next((each for each in remotes if each.url == picked), None)

    def do_detach(self) -> None:
        """Asks, and forgets that the selected dataset comes from a remote, or goes there."""
        row = self.graph.row
        if row is not None:
            self.start(self._detach_from(row))

    async def _detach_from(self, row: DatasetRow) -> None:
        from odf_tui.widgets.dialogs import ConfirmDialog

        remote = await self.choose_remote(f"Detach {row.name} from", row.remotes)
        if remote is None:
            return
        stays, then = "What it has stays, here and there.", "Pull and push forget that address."
        if remote.pull and len(pull_remotes(row.remotes)) == 1:
            then = "From then on p makes it here, as its source says."
        if await self.app.push_screen_wait(ConfirmDialog(f"Detach from {remote.label}?", stays, then)):
            await asyncio.to_thread(self.source.detach, row.id, remote.url)
            self.notify_line(f"{row.name} is detached from {remote.label}")
            self.reads.datasets()

    # --- What the worker tells ---

    def tell_of_divergence(self, job: Job) -> None:
        """Says what to do when a job failed because two histories went apart."""
        row = self.row_of(job.dataset)
        if may_have_diverged(job) and row is not None and job.error is not None:
            first = job.error.message.partition("\n")[0]
            self.notify_line(f"{job.kind} {job.target}: V shows both histories; {first}", "bad")


def _choice(at: int, id: str, title: str, remark: str) -> Choice:
    from odf_tui.widgets.choice_list import Choice

    key = _REPOSITORY_KEYS[at : at + 1]
    return Choice(id, title, (key,) if key else (), key, remark)


def _typed(title: str) -> Choice:
    from odf_tui.widgets.choice_list import Choice

    return Choice(_TYPED, title, ("a",), "a", "a URL, or repository/name")
