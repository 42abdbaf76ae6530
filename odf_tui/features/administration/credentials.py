"""CredentialsController: stores and removes the credentials of repositories and URLs."""

from __future__ import annotations

import asyncio
from typing import Final

from odf_engine.api import Login, is_s3, normalize_login_url, origin_of, supports_login
from odf_engine.api.administration import unencrypted_warning
from odf_engine.api.model import NamedUrl
from odf_engine.api.text import printable
from odf_engine.errors import OdfError
from odf_tui.services.controller import Controller, task
from odf_tui.text.format import Span, error_with_hint
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import ConfirmDialog, PickerDialog, PromptDialog
from odf_tui.widgets.form import DescribedPicker, Field, FormDialog, required

_ADDRESS: Final = "+"
_STORED: Final = "stored"


class CredentialsController(Controller):
    """Lists repositories and other origins with their credentials, and changes these."""

    @task
    async def show_credentials(self) -> None:
        """List the repositories, and whether credentials are stored for them."""
        while True:
            repositories = await asyncio.to_thread(self.workspace.repositories)
            origins = await asyncio.to_thread(self.workspace.credentials.origins)
            rows = credential_rows(repositories, origins)
            choices = [Choice(row.url, row.name, remark=_status(row.url, origins)) for row in rows]
            choices.append(Choice(_ADDRESS, "another URL", ("plus",), "+"))
            about = {row.url: credential_lines(row.url) for row in rows}
            picked = await self.host.ask(DescribedPicker("Credentials", choices, about))
            if picked is None:
                return
            if picked == _ADDRESS:
                remark = "credentials apply to the host and the port of the URL"
                url = await self.host.ask(PromptDialog("Credentials for", "https://", remark, _check_url))
                if url:
                    await self._log_in(normalize_login_url(url))
            elif not supports_login(picked):
                self.host.notice(f"no credentials can be used for {picked}", "warn")
            elif origin_of(picked) in origins:
                await self._change(picked)
            else:
                await self._log_in(picked)

    async def _change(self, url: str) -> None:
        """Replace or remove stored credentials."""
        origin = origin_of(url)
        actions = [
            Choice("replace", "replace the credentials", ("r",), "r"),
            Choice("remove", "remove the credentials", ("d",), "d"),
        ]
        answer = await self.host.ask(PickerDialog(printable(origin), actions, typing=False))
        if answer == "replace":
            await self._log_in(url)
        elif answer == "remove" and await self.host.ask(
            ConfirmDialog(f"Remove the credentials for {origin}?", "Pulls and pushes are then anonymous.")
        ):
            await asyncio.to_thread(self.workspace.credentials.forget, url)
            self.host.notice(f"removed credentials for {origin}")

    async def _log_in(self, url: str) -> None:
        lines: list[list[Span]] = [
            [(" Sent to ", "muted"), (printable(origin_of(url)), "strong"), (" only.", "muted")]
        ]
        if warning := unencrypted_warning(url):
            lines.append([(f" {warning[0].upper()}{warning[1:]}.", "warn")])
        form = await self.host.ask(
            FormDialog(f"Credentials for {origin_of(url)}", login_fields(url), "stores", lines=lines)
        )
        if form is None:
            return
        user, secret = form.text("user"), form.text("secret")
        if is_s3(url):
            login = Login(user, secret, form.text("session"))
        else:
            login = Login(user, secret) if user else Login(token=secret)
        origin = await asyncio.to_thread(self.workspace.credentials.set, url, login)
        self.host.notice(f"stored credentials for {origin}")


def login_fields(url: str) -> list[Field]:
    """Return the fields for the credentials of a URL: S3 keys, or a user with a password, or a token."""
    if is_s3(url):
        return [
            Field("user", "access key", "The access key.", check=required("enter the access key")),
            Field("secret", "secret key", "The secret key.", secret=True,
                  check=required("enter the secret key")),
            Field("session", "session token", "Optional: of temporary credentials.", secret=True),
        ]  # fmt: skip
    return [
        Field("user", "user", "The user name. Empty: the secret is a token."),
        Field("secret", "secret", "The password of the user, or the token.", secret=True,
              check=required("enter a password or a token")),
    ]  # fmt: skip


def credential_rows(repositories: list[NamedUrl], origins: list[str]) -> list[NamedUrl]:
    """Return the repositories, and the origins with credentials that are of no repository."""
    known = {origin_of(repository.url) for repository in repositories}
    return [*repositories, *(NamedUrl(origin, origin) for origin in origins if origin not in known)]


def _status(url: str, origins: list[str]) -> str:
    if not supports_login(url):
        return "not required"
    return _STORED if origin_of(url) in origins else "none"


def credential_lines(url: str) -> list[list[Span]]:
    """Return the URL of a repository, and the origin of its credentials."""
    lines: list[list[Span]] = [[(" url     ", "muted"), (printable(url), "")]]
    if supports_login(url):
        lines.append([(" origin  ", "muted"), (printable(origin_of(url)), "")])
    return lines


def _check_url(text: str) -> str:
    try:
        url = normalize_login_url(text)
    except OdfError as error:
        return error_with_hint(error)
    return "" if supports_login(url) else f"no credentials can be used for {url}"
