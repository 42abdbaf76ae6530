"""PushTokensController: creates and revokes the tokens for pushes to this workspace."""

from __future__ import annotations

import asyncio
from typing import Final

from odf_engine.api import ALL_DATASETS, AccessToken, is_valid_name
from odf_engine.api.text import format_time, printable
from odf_tui.features.administration.server import check_patterns, split_patterns
from odf_tui.services.controller import Controller, task
from odf_tui.text.format import Span
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import ConfirmDialog, TextDialog
from odf_tui.widgets.form import DescribedPicker, Field, FormDialog

_NEW: Final = "+"


class PushTokensController(Controller):
    """Lists the tokens, creates new ones, and revokes them."""

    @task
    async def show_tokens(self) -> None:
        """List the tokens."""
        while True:
            tokens = await asyncio.to_thread(self.workspace.push_tokens.list_tokens)
            choices = [Choice(token.name, token.name, remark=_validity(token)) for token in tokens]
            choices.append(Choice(_NEW, "new token", ("plus",), "+"))
            about = {token.name: token_lines(token) for token in tokens}
            about[_NEW] = [
                [(" A client with a token can push to the server of this workspace: press ; h", "muted")]
            ]
            picked = await self.host.ask(DescribedPicker("Tokens for pushes", choices, about))
            if picked is None:
                return
            if picked == _NEW:
                await self._create([token.name for token in tokens])
            else:
                await self._revoke(picked)

    async def _create(self, names: list[str]) -> None:
        used = {name.lower() for name in names}

        def check_name(text: str) -> str:
            if not is_valid_name(text):
                return "invalid name: use letters, digits, dots and dashes"
            return f"token '{text}' already exists" if text.lower() in used else ""

        fields = [
            Field("name", "name", "A name for the token, such as that of its client.", check=check_name),
            Field("datasets", "datasets", "Names or patterns with % of the datasets that it can push.",
                  ALL_DATASETS, check=check_patterns, example="weather.%, com.example.cases"),
            Field("days", "days", "Days until it expires. Empty: it does not expire.", check=_check_days,
                  example="90"),
        ]  # fmt: skip
        form = await self.host.ask(FormDialog("New token", fields, "creates it"))
        if form is None:
            return
        days = float(form.text("days")) if form.text("days") else None
        token, text = await asyncio.to_thread(
            self.workspace.push_tokens.create,
            form.text("name"),
            split_patterns(form.text("datasets")) or [ALL_DATASETS],
            days,
        )
        lines: list[list[Span]] = [
            [],
            [(f" {text}", "strong")],
            [],
            [(" This token is not displayed again: only its hash is stored.", "warn")],
            [(" Clients store it with odf repo login URL.", "muted")],
            *token_lines(token),
        ]
        await self.host.ask(
            TextDialog(f"Token {token.name}", lines, lambda _: self.host.copy_text("token", text))
        )

    async def _revoke(self, name: str) -> None:
        question = ConfirmDialog(f"Revoke the token {name}?", "Running servers reject it immediately.")
        if await self.host.ask(question):
            await asyncio.to_thread(self.workspace.push_tokens.revoke, name)
            self.host.notice(f"revoked token {name}")


def _check_days(text: str) -> str:
    try:
        return "" if not text or 0 < float(text) < 1e6 else "enter a number of days above 0"
    except ValueError:
        return "enter a number of days, such as 90"


def _validity(token: AccessToken) -> str:
    if token.expires is None:
        return "does not expire"
    return "expired" if token.has_expired else f"until {format_time(token.expires.isoformat())}"


def token_lines(token: AccessToken) -> list[list[Span]]:
    """Return the datasets, the validity and the last use of a token."""
    used = format_time(token.last_used.isoformat()) if token.last_used else "never"
    return [
        [(" datasets   ", "muted"), (printable(", ".join(token.datasets)), "")],
        [(" valid      ", "muted"), (_validity(token), "")],
        [(" created    ", "muted"), (format_time(token.created.isoformat()), "")],
        [(" last used  ", "muted"), (used, "")],
    ]
