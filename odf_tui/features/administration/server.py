"""ServerController: starts a server for the datasets of the workspace, shows its log, and stops it."""

from __future__ import annotations

import asyncio
import re

from odf_engine.api import HOST_NAME, DatasetPattern
from odf_engine.api.operations.server_process import ServerProcess
from odf_engine.api.text import printable
from odf_engine.errors import OdfError
from odf_tui.services.controller import Controller, Host, task
from odf_tui.text.format import Span, error_with_hint
from odf_tui.widgets.dialogs import ConfirmDialog, DecisionDialog
from odf_tui.widgets.form import Field, FormDialog, FormValues, existing_file

_LOCAL: tuple[str, ...] = ("127.0.0.1", "::1", "localhost")
_SHOWN_LINES = 40


class ServerController(Controller):
    """Runs one server, which stops with the workstation."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._server: ServerProcess | None = None

    @task
    async def show_server(self) -> None:
        """Start a server, or show the running one."""
        if self._server is None:
            await self._start()
            return
        answer = "refresh"
        while answer == "refresh":
            answers = [
                ("copy", ("y",), "copies the URL"),
                ("refresh", ("r",), "refreshes"),
                ("stop", ("x",), "stops it"),
                ("leave", ("escape", "enter"), "closes"),
            ]
            lines = server_lines(self._server)
            answer = await self.host.ask(DecisionDialog("Server", lines, answers)) or "leave"
        if answer == "copy":
            self.host.copy_text("URL", self._server.url)
        elif answer == "stop" or not self._server.is_running:
            server, self._server = self._server, None
            self.host.notice(f"stopping the server at {server.url}")
            await asyncio.to_thread(server.stop)
            self.host.notice("the server is stopped")

    async def _start(self) -> None:
        form = await self.host.ask(
            FormDialog("Serve the datasets", server_fields(), "starts", check=_check_files)
        )
        if form is None or not await self._confirm(form):
            return
        self.host.notice("starting the server")
        self._server = await asyncio.to_thread(self.workspace.start_server, server_options(form))
        self.host.notice(f"serving at {self._server.url} until the workstation closes: press ; h to stop it")

    async def _confirm(self, form: FormValues) -> bool:
        """Require a confirmation if other machines can connect."""
        host = form.text("host")
        if host in _LOCAL:
            return True
        remarks = ["Every client that can connect can read the served datasets."]
        if form.flag("push") and not form.text("certificate") and not form.flag("proxy"):
            remarks.append("Tokens are sent unencrypted: use a certificate if possible.")
        return bool(await self.host.ask(ConfirmDialog(f"Serve to other machines at {host}?", *remarks)))


def server_fields() -> list[Field]:
    """Return the options of a server."""
    return [
        Field("protocol", "protocol", "HTTP: clients pull datasets. Flight SQL: clients query them.", "http",
              (("http", "HTTP"), ("flight", "Flight SQL"))),
        Field("host", "host", "Address to listen on. 0.0.0.0: all addresses of this machine.", "127.0.0.1",
              check=lambda text: "" if text else "enter an address"),
        Field("port", "port", "Port to listen on. Empty: 8080, or 32010 for Flight SQL. 0: a free port.",
              check=_check_port, example="8080"),
        Field("names", "host names", "Further host names of the server, such as that of a reverse proxy.",
              check=check_host_names, example="data.example.com"),
        Field("datasets", "datasets", "Names or patterns with %. Empty: all datasets.",
              check=check_patterns, example="weather.%, com.example.cases"),
        Field("push", "allow push", "Accept pushes by clients with a token: press ; t to create one.",
              value=False),
        Field("tokens", "require tokens", "Flight SQL: accept only clients with a token.", value=False),
        Field("certificate", "TLS certificate", "Certificate chain in PEM, for https.", is_path=True),
        Field("key", "TLS key", "Private key of the certificate in PEM.", is_path=True),
        Field("proxy", "behind a proxy", "Trust the X-Forwarded headers that a reverse proxy sets.",
              value=False),
    ]  # fmt: skip


def server_options(form: FormValues) -> list[str]:
    """Return the command line options of the server."""
    options = ["--host", form.text("host"), *(["--flight"] if form.text("protocol") == "flight" else [])]
    options += [f"--host-name={pattern}" for pattern in split_patterns(form.text("names"))]
    options += [f"--dataset={pattern}" for pattern in split_patterns(form.text("datasets"))]
    for name, field in (("--port", "port"), ("--tls-cert", "certificate"), ("--tls-key", "key")):
        if text := form.text(field):
            options.append(f"{name}={text}")
    flags = (("--allow-push", "push"), ("--require-token", "tokens"), ("--behind-proxy", "proxy"))
    return options + [name for name, field in flags if form.flag(field)]


def split_patterns(text: str) -> list[str]:
    """Return the patterns in a text, which are separated by commas or spaces."""
    return text.replace(",", " ").split()


def check_patterns(text: str) -> str:
    """Return why patterns of datasets are invalid, or "" if they are valid."""
    try:
        for pattern in split_patterns(text):
            DatasetPattern.parse(pattern)
    except OdfError as error:
        return error_with_hint(error)
    return ""


def check_host_names(text: str) -> str:
    """Return why host names are invalid, or "" if they are valid."""
    wrong = next((name for name in split_patterns(text) if not re.fullmatch(HOST_NAME, name)), None)
    return "" if wrong is None else f"{wrong} is not a host name such as data.example.com"


def _check_port(text: str) -> str:
    return "" if not text or (text.isdecimal() and int(text) <= 65535) else "enter a port: 0 to 65535"


def _check_files(form: FormValues) -> str:
    files = [form.text("certificate"), form.text("key")]
    if any(files) and not all(files):
        return "TLS requires both a certificate and a key"
    return next((problem for file in files if file and (problem := existing_file(file))), "")


def server_lines(server: ServerProcess) -> list[list[Span]]:
    """Return the URL of a server, its state, and the end of its log."""
    state: Span = ("running", "good") if server.is_running else ("stopped", "bad")
    lines: list[list[Span]] = [
        [(" url    ", "muted"), (server.url, "strong")],
        [(" state  ", "muted"), state],
        [],
        [(" Log", "title")],
    ]
    log = list(server.lines)[-_SHOWN_LINES:]
    return lines + ([[(f"   {printable(line)}", "")] for line in log] or [[("   no requests yet", "muted")]])
