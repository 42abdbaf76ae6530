"""Alerts as mail, to a real SMTP server with TLS and a login."""

from __future__ import annotations

import email.policy
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from email import message_from_bytes
from email.message import EmailMessage
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from odf_engine.automation.alerts.definition import Email
from odf_engine.automation.alerts.events import Event
from odf_engine.automation.alerts.mail import _message, mail_body
from odf_engine.automation.alerts.store import Delivery
from tests.alerts.conftest import Odf
from tests.ingest.ftp_server import make_certificate
from tests.ports import unused_port
from tests.waiting import wait_until

MANIFEST = """
kind: DatasetSnapshot
version: 1
content:
  name: web
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: Url, url: "{url}"}}
      read: {{kind: Csv, header: true, schema: [x STRING]}}
      merge: {{kind: Append}}
"""
PASSWORD = "pass-w0rd-of-mail"


class MailServer:
    """An SMTP server that requires STARTTLS and a login, and rejects recipients named ``nobody``."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.messages: list[EmailMessage] = []
        login = {"authenticator": self.authenticate, "auth_required": True, "auth_require_tls": True}
        options: dict[str, Any] = (
            {"tls_context": context, "require_starttls": True, **login} if context else {}
        )
        self.port = unused_port()
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
def raw_server() -> Iterator[Callable[[bytes], int]]:
    """Starts a server that sends the same bytes to each client; returns its port."""
    sockets: list[socket.socket] = []

    def start(answer: bytes) -> int:
        listening = socket.create_server(("127.0.0.1", 0))
        sockets.append(listening)
        Thread(target=serve, args=(listening, answer), daemon=True).start()
        return listening.getsockname()[1]

    def serve(listening: socket.socket, answer: bytes) -> None:
        with suppress(OSError):
            while True:
                with listening.accept()[0] as connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

    yield start
    for listening in sockets:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


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


@pytest.mark.complete
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


HOSTILE = [
    "=?utf-8?q?=0AReply-To=3Am@e.io=0A=0APay?=",
    "=?utf-8?b?ClJlcGx5LVRvOiBtQGUuaW8KClBheQ==?=",
    "x =?utf-8?q?a?= =?utf-8?q?=0D=0AReply-To=3Am@e.io=0D=0A=0D=0APay?=",
    "=?=?utf-8?q?=3D=3Futf-8?=?",
    "=\x1b?utf-8?q?=0AReply-To=3Am@e.io?=",
    "a\nReply-To: m@e.io\r\n\r\nPay",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_subject_contains_no_encoded_word_of_a_message(text: str) -> None:
    sink = Email(server="smtp://x.example", to=["a@b.example"], sender="c@d.example")
    for place in ("subject", "message"):
        texts = {"subject": "web", "message": "failed", place: text}
        state = {"state": "queued", "created": 0, "due": 0, "dataset": "", "body": b"body"}
        delivery = Delivery(1, "id", "post", "JobFailed", **state, **texts)  # type: ignore[arg-type]
        sent = message_from_bytes(_message(sink, delivery, "ws").as_bytes(), policy=email.policy.default)
        assert sent["Reply-To"] is None and sent.get_content().strip() == "body"
        assert len(sent["Subject"].splitlines()) == 1
        assert sent["Subject"].strip().startswith("[odf ws] JobFailed: ")


@pytest.mark.complete
def test_texts_of_a_server_become_neither_headers_nor_facts(
    odf: Odf, raw_server: Callable[[bytes], int]
) -> None:
    web = raw_server(f"HTTP/1.1 404 {HOSTILE[0]}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    plain = MailServer(None)
    try:
        sink = f"server: 'smtp://localhost:{plain.port}', starttls: false"
        add_alert(odf, f"{sink}, from: odf@lab.example, to: [ops@lab.example]")
        text = MANIFEST.format(url=f"http://127.0.0.1:{web}/x")
        assert odf("add", "-", input=text).code == 0
        assert odf("pull", "web").code == 1
        wait_until(lambda: plain.messages)
    finally:
        plain.close()
    (message,) = plain.messages
    assert set(message.keys()) - {"Received", "X-Peer", "X-MailFrom", "X-RcptTo"} == {
        "Subject", "From", "To", "Date", "Message-ID", "Auto-Submitted", "Content-Type",
        "Content-Transfer-Encoding", "MIME-Version",
    }  # fmt: skip
    assert message["Subject"].startswith("[odf ws] JobFailed: web: ")
    assert "\n" not in message["Subject"] and "404" in message["Subject"]
    lines = message.get_content().splitlines()
    assert [line for line in lines if line.startswith("subject:")] == ["subject: web"]


def test_lines_of_a_message_are_indented() -> None:
    event = Event(
        "1", [], "2024-01-01T00:00:00Z", "web", "failed\nsubject: other\r\n\nPay", data={"a": "b\nc: d"}
    )
    text = mail_body(event, "JobFailed", "ws").decode()
    assert text.splitlines() == [
        "failed", "    subject: other", "    ", "    Pay", "", "event: JobFailed", "subject: web",
        "time: 2024-01-01T00:00:00Z", "workspace: ws", "a: b", "    c: d",
    ]  # fmt: skip
