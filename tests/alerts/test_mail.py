"""Alerts as mail, to a real SMTP server with TLS and a login."""

from __future__ import annotations

import email.policy
import socket
import ssl
from collections.abc import Iterator
from email import message_from_bytes
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from tests.alerts.conftest import Odf
from tests.ingest.ftp_server import make_certificate
from tests.waiting import wait_until

PASSWORD = "pass-w0rd-of-mail"


class MailServer:
    """An SMTP server that requires STARTTLS and a login, and rejects recipients named ``nobody``."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.messages: list[EmailMessage] = []
        login = {"authenticator": self.authenticate, "auth_required": True, "auth_require_tls": True}
        options: dict[str, Any] = (
            {"tls_context": context, "require_starttls": True, **login} if context else {}
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        options["server_hostname"] = "localhost"
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port, **options)
        self._controller.start()

    def authenticate(
        self, server: object, session: object, envelope: object, how: str, data: Any
    ) -> AuthResult:
        assert isinstance(data, LoginPassword)
        return AuthResult(success=data.password.decode() == PASSWORD, handled=False)

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if address.startswith("nobody"):
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        found = message_from_bytes(envelope.content, policy=email.policy.default)
        self.messages.append(cast("EmailMessage", found))
        return "250 OK"

    def close(self) -> None:
        self._controller.stop()


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A certificate of this machine, which this process and the worker trust."""
    path = make_certificate(tmp_path / "localhost.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    return path


@pytest.fixture
def server(certificate: Path) -> Iterator[MailServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = MailServer(context)
    yield server
    server.close()


def add_alert(odf: Odf, sink: str, events: str = "JobFailed") -> None:
    text = f"headers: {{name: post}}\nspec: {{events: [{events}], sink: {{kind: Email, {sink}}}}}\n"
    ran = odf("alert", "add", "--replace", "-", input=text)
    assert ran.code == 0, ran.err


def test_failed_job_is_sent_as_mail(odf: Odf, server: MailServer, folder: Path) -> None:
    url = f"smtp://localhost:{server.port}"
    add_alert(odf, f"server: '{url}', from: odf@lab.example, to: [ops@lab.example]")
    assert odf("repo", "login", url, "--user", "odf", "--stdin", input=PASSWORD + "\n").code == 0
    assert odf("ingest", "my.rows", "-", "--format", "ndjson", input="{bad\n").code == 1
    wait_until(lambda: server.messages)
    (message,) = server.messages
    assert message["Subject"].startswith("[odf ws] JobFailed: my.rows: ingest my.rows failed: ")
    assert (message["From"], message["To"]) == ("odf@lab.example", "ops@lab.example")
    assert "subject: my.rows" in message.get_content().splitlines()
    wait_until(lambda: [row["state"] for row in odf("alert", "history", "--json").json][:1] == ["sent"])
    delivery = odf("alert", "history", "--json").json[0]
    assert message["Message-ID"] == f"<{delivery['id']}@lab.example>"
    # Errors of the server, without the password.
    assert odf("repo", "login", url, "--user", "odf", "--stdin", input="not-the-password\n").code == 0
    ran = odf("alert", "test", "post")
    assert (ran.code, "rejected the login (535)" in ran.err) == (1, True), ran.err
    assert "not-the-password" not in ran.err + (folder / ".odf" / "worker.log").read_text()
    assert odf("repo", "login", url, "--user", "odf", "--stdin", input=PASSWORD + "\n").code == 0
    add_alert(odf, f"server: '{url}', from: odf@lab.example, to: [nobody@lab.example]")
    ran = odf("alert", "test", "post")
    assert (ran.code, "rejected nobody@lab.example" in ran.err) == (1, True), ran.err
    # A login is never sent without encryption.
    add_alert(odf, f"server: '{url}', from: odf@lab.example, to: [ops@lab.example], starttls: false")
    ran = odf("alert", "test", "post")
    assert (ran.code, "not sent without encryption" in ran.err) == (1, True), ran.err


def test_mail_is_not_sent_without_valid_tls_unless_disabled(
    odf: Odf, server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    add_alert(odf, f"server: 'smtp://localhost:{server.port}', from: a@b.example, to: [c@d.example]")
    ran = odf("alert", "test", "post")
    assert (ran.code, "certificate" in ran.err, "Traceback" in ran.err) == (1, True, False), ran.err
    plain = MailServer(None)
    try:
        add_alert(odf, f"server: 'smtp://localhost:{plain.port}', from: a@b.example, to: [c@d.example]")
        ran = odf("alert", "test", "post")
        assert (ran.code, "does not support STARTTLS" in ran.err) == (1, True), ran.err
        url = f"smtp://localhost:{plain.port}"
        add_alert(odf, f"server: '{url}', from: a@b.example, to: [c@d.example], starttls: false")
        assert odf("alert", "test", "post").code == 0 and len(plain.messages) == 1
    finally:
        plain.close()
    ran = odf("alert", "test", "post")
    assert (ran.code, "cannot be reached" in ran.err) == (1, True), ran.err
