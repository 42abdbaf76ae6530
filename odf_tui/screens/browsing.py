"""Bringing in datasets from elsewhere: which repository, which of its datasets, and how they are called."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from odf_engine.coordinator.protocol import Pull, Request, Search
from odf_engine.errors import OdfError
from odf_tui.screens.diverging import Diverging
from odf_tui.text.format import format_count, printable

if TYPE_CHECKING:
    from odf_tui.features.sharing.repository_browser import RemoteDataset
    from odf_tui.gateway.protocol import NamedUrl
    from odf_tui.widgets.choice_list import Choice

_IN = "in "
_KEYS = "123456789"


class Browsing(Diverging):
    """The part of the workbench that brings in datasets."""

    def do_browse(self) -> None:
        """Chooses a repository, or an address, and pulls from there."""
        self.start(self._browse_places())

    async def _browse_places(self) -> None:
        from odf_tui.widgets.dialogs import PickerDialog

        while True:
            repositories = await asyncio.to_thread(self.source.repositories)
            picker = PickerDialog("Datasets from elsewhere", place_choices(repositories), typing=False)
            picked = await self.app.push_screen_wait(picker)
            if picked is None:
                return
            if picked == "add":
                await self._add_repository(repositories)
            elif picked == "forget":
                await self._forget_repository(repositories)
            elif picked == "address":
                if await self._pull_address(repositories):
                    return
            else:
                names = [picked.removeprefix(_IN)] if picked.startswith(_IN) else []
                found = await self._choose_found(names or [each.name for each in repositories])
                if found:
                    await self._pull_found(found)
                    return

    async def _choose_found(self, names: list[str]) -> list[RemoteDataset] | None:
        from odf_tui.features.sharing.repository_browser import RepositoryBrowser

        title = f"Datasets of {names[0]}" if len(names) == 1 else "Datasets of all repositories"

        async def ask() -> dict[str, str]:
            link = await self.follower.link()
            return {name: await link.submit(Search(text="", repositories=[name]), name) for name in names}

        async def stop(job: str) -> None:
            with suppress(OdfError):  # it may have ended meanwhile
                await (await self.follower.link()).cancel(job)

        return await self.app.push_screen_wait(RepositoryBrowser(title, self.book, self.rows, ask, stop))

    # --- Repositories ---

    async def _add_repository(self, repositories: Sequence[NamedUrl]) -> None:
        from odf_tui.features.sharing.controller import repository_check, repository_name_check
        from odf_tui.widgets.dialogs import PromptDialog

        remark = "file:, s3:, http: of a folder; odf+http: of a server"
        url = await self.app.push_screen_wait(
            PromptDialog("Address of the repository", "", remark, repository_check)
        )
        if not url:
            return
        check = repository_name_check(repositories)
        name = await self.app.push_screen_wait(
            PromptDialog("Name of the repository", "", "how you want to call it", check)
        )
        if name:
            await asyncio.to_thread(self.source.add_repository, name, url)
            self.notify_line(f"{name} is a repository now")

    async def _forget_repository(self, repositories: Sequence[NamedUrl]) -> None:
        from odf_tui.widgets.dialogs import ConfirmDialog, PickerDialog

        choices = [_place_choice(at, each, each.name) for at, each in enumerate(repositories)]
        name = await self.app.push_screen_wait(
            PickerDialog("Forget which repository?", choices, typing=False)
        )
        if name and await self.app.push_screen_wait(
            ConfirmDialog(
                f"Forget the repository {name}?", "Nothing there changes; datasets keep their addresses."
            )
        ):
            await asyncio.to_thread(self.source.remove_repository, name)
            self.notify_line(f"{name} is forgotten")

    # --- What is brought in ---

    async def _pull_address(self, repositories: Sequence[NamedUrl]) -> bool:
        """Asks for an address and a name; whether there are both."""
        from odf_tui.features.sharing.controller import address_validator, resolve_address
        from odf_tui.widgets.dialogs import PromptDialog

        remark = "repository/name, or a URL: file:, http:, odf+https:, s3:, ipfs:"
        check = address_validator(repositories, to_push=False)
        text = await self.app.push_screen_wait(PromptDialog("Pull from", "", remark, check))
        if not text:
            return False
        place = resolve_address(text, repositories)
        row = next((row for row in self.rows if any(each.url == place.url for each in row.remotes)), None)
        if row is not None:
            self.submit([(Pull(dataset=row.id, url=place.url), row.name)], f", from {text}")
            return True
        name = await self._name_for(place.name, place.url)
        if name:
            self.submit([_new(place.url, name)], f", from {text}")
        return bool(name)

    async def _name_for(self, name: str, whence: str) -> str | None:
        from odf_tui.widgets.dialogs import PromptDialog, name_check

        check = name_check([row.name for row in self.rows])
        return await self.app.push_screen_wait(
            PromptDialog("Name of the dataset here", name, printable(whence), check)
        )

    async def _pull_found(self, wanted: Sequence[RemoteDataset]) -> None:
        """Pulls what was chosen: what is here is brought up to date, what is new gets a name."""
        from odf_tui.widgets.dialogs import name_check

        requests: list[tuple[Request, str]] = []
        taken = [row.name for row in self.rows]
        for found in wanted:
            if found.here is not None:
                requests.append((Pull(dataset=found.here.id, url=found.url), found.here.name))
                continue
            name: str | None = found.name
            if len(wanted) == 1 or name_check(taken)(found.name):
                name = await self._name_for(found.name, found.url)
            if name:
                taken.append(name)
                requests.append(_new(found.url, name))
        left = len(wanted) - len(requests)
        if requests:
            self.submit(requests, f"; {format_count(left)} left out" if left else "")


def _new(url: str, name: str) -> tuple[Pull, str]:
    return Pull(dataset=url, url=url, alias=name), name


def place_choices(repositories: Sequence[NamedUrl]) -> list[Choice]:
    """Where datasets may come from."""
    from odf_tui.widgets.choice_list import Choice

    found = [_place_choice(at, each, _IN + each.name) for at, each in enumerate(repositories)]
    if len(repositories) > 1:
        found.append(Choice("all", "all repositories", ("a",), "a"))
    found.append(Choice("address", "a dataset at an address", ("u",), "u", "a URL, or repository/name"))
    found.append(Choice("add", "add a repository", ("plus",), "+", "a folder, a bucket, a server"))
    if repositories:
        found.append(Choice("forget", "forget a repository", ("minus",), "-"))
    return found


def _place_choice(at: int, place: NamedUrl, id: str) -> Choice:
    from odf_tui.widgets.choice_list import Choice

    key = _KEYS[at : at + 1]
    return Choice(id, place.name, (key,) if key else (), key, place.url)
