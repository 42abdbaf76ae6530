"""Alerts as mail: one message for each event, sent with SMTP over TLS."""

from __future__ import annotations

import logging
import smtplib
import socket
from contextlib import suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP as MAIL_POLICY
from email.utils import format_datetime
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from odf_engine.automation.alerts.definition import Email, EventKind
from odf_engine.automation.alerts.events import Event
from odf_engine.automation.alerts.store import Delivery
from odf_engine.base.terminal_text import escape_controls
from odf_engine.errors import OdfError, SourceUnavailable
from odf_engine.net.address_policy import HomeNetwork
from odf_engine.net.connector import Connector
from odf_engine.net.credentials import Login, RemoteAccess
from odf_engine.net.http_client import sanitize_text
from odf_engine.net.http_connection import GuardedReader, ResponseTooLarge
from odf_engine.net.urls import origin_of

_log = logging.getLogger(__name__)
_PORTS: Final = {"smtp": 587, "smtps": 465}
_TIMEOUT: Final = 30.0
_MAX_SUBJECT: Final = 150
MAX_SECONDS: Final = 120.0
"""Maximum time that a mail server may take for all its replies."""


def mail_body(event: Event, kind: EventKind, workspace: str) -> bytes:
    """Return the text of a mail about an event: its message and its details."""
    lines = [
        event.message,
        "",
        f"event: {kind}",
        f"subject: {event.subject}",
        f"time: {event.time}",
        f"workspace: {workspace}",
    ]
    for key, value in event.data.items():
        nested = value.items() if isinstance(value, dict) else ()
        lines += [f"{key} {name}: {_text(item)}" for name, item in nested]
        lines += [] if nested else [f"{key}: {_text(value)}"]
    # Further lines of a value are indented: a text from a server must not look like another fact.
    return "".join("\n    ".join(escape_controls(line).splitlines()) + "\n" for line in lines).encode()


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def send_mail(sink: Email, delivery: Delivery, workspace: str, access: RemoteAccess) -> None:
    """Send a mail: one attempt. The credentials have the login of the mail server.

    Raises:
        OdfError: the server cannot be reached, or rejects login, sender, or a recipient.
        Cancelled: immediately.
    """
    server = origin_of(sink.server)
    login = access.credentials.of(sink.server)
    secure = sink.starttls or urlsplit(sink.server).scheme == "smtps"
    if login is not None and not secure:
        raise SourceUnavailable(
            "the login is not sent without encryption", where=server, hint="remove starttls: false"
        )
    parts = urlsplit(sink.server)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    connector = Connector(HomeNetwork(host, port), _TIMEOUT, access.reporter)
    with access.reporter.on_cancel(connector.abort):
        try:
            _converse(_Client(connector), sink, host, port, login, _message(sink, delivery, workspace))
        except smtplib.SMTPException as error:
            access.reporter.raise_if_cancelled()
            raise _smtp_error(error, server) from None
        except (OSError, ValueError) as error:
            access.reporter.raise_if_cancelled()
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            problem = f"the mail server cannot be reached: {sanitize_text(reason.lower(), 200)}"
            raise SourceUnavailable(problem, where=server, hint="check the address and the network") from None


class _Client(smtplib.SMTP):
    """An SMTP client whose sockets come from a connector: address policy, cancellation."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._end = monotonic() + MAX_SECONDS
        self.tls = False
        super().__init__(timeout=_TIMEOUT)

    def getreply(self) -> tuple[int, bytes]:
        """Read a reply, within the limits of the conversation."""
        if self.file is None and self.sock is not None:
            left = self._end - monotonic()
            self.file = GuardedReader(self.sock, max(left, 0.001), min_rate=0).makefile("rb")
        return super().getreply()

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        sock = self._connector.connect(host, port)
        sock.settimeout(timeout)
        self._host = host  # the name that certificates are checked for
        return self._connector.tls_context.wrap_socket(sock, server_hostname=host) if self.tls else sock


def _converse(
    client: _Client, sink: Email, host: str, port: int, login: Login | None, message: EmailMessage
) -> None:
    client.tls = urlsplit(sink.server).scheme == "smtps"
    try:
        client.connect(host, port)
        client.ehlo_or_helo_if_needed()
        if sink.starttls and not client.tls:
            client.starttls(context=client._connector.tls_context)
            client.ehlo()
        if login is not None:
            client.login(login.user, login.secret or login.token)
        refused = client.send_message(message, sink.sender, sink.to)
        if refused:  # the others have the mail: another attempt would send it to them again
            _log.warning("the mail server rejected %s", sanitize_text(", ".join(refused), 200))
    finally:
        with suppress(smtplib.SMTPException, OSError):
            client.quit()
        client.close()


def _message(sink: Email, delivery: Delivery, workspace: str) -> EmailMessage:
    message = EmailMessage(policy=MAIL_POLICY)
    subject = f"[odf {workspace}] {delivery.kind}: {delivery.subject}: {delivery.message}"
    message["Subject"] = _header_text(subject)
    message["From"], message["To"] = sink.sender, ", ".join(sink.to)
    message["Date"] = format_datetime(datetime.fromtimestamp(delivery.created, UTC))
    # The same id for each attempt, so that mail programs can remove duplicates.
    message["Message-ID"] = f"<{delivery.id}@{sink.sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no automatic answers
    message.set_content(delivery.body.decode())
    return message


def _header_text(text: str) -> str:
    """Return a text for a header: one line, shortened, without the start of an encoded word (RFC 2047).

    The setter of a header decodes encoded words, and what they contain could end the header.
    """
    line = " ".join(escape_controls(text).split()).replace("=?", "= ?")
    return line if len(line) <= _MAX_SUBJECT else line[: _MAX_SUBJECT - 1] + "…"


def _smtp_error(error: smtplib.SMTPException, where: str) -> OdfError:
    """Return the error of a mail server. Its text about a login is left out: it can repeat the login."""
    hint: str | None = None
    match error:
        case smtplib.SMTPAuthenticationError():
            problem = f"the mail server rejected the login ({error.smtp_code})"
            hint = f"store a valid login: odf repo login {where} --user NAME"
        case smtplib.SMTPRecipientsRefused():
            rejected: dict[str, Any] = error.recipients
            problem = f"the mail server rejected {', '.join(rejected)}"
        case smtplib.SMTPNotSupportedError():
            problem = "the mail server does not support STARTTLS, login, or addresses that are not ASCII"
            hint = "use smtps:, or set starttls: false for a server without encryption and login"
        case smtplib.SMTPResponseException():
            raw: bytes | str = error.smtp_error
            text = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
            problem = f"the mail server answered {error.smtp_code}: {sanitize_text(text, 200)}"
        case _ if isinstance(error.__context__, ResponseTooLarge):
            problem = "the mail server sends replies without end"
        case _ if isinstance(error.__context__, TimeoutError):
            problem = "the mail server does not answer in time"
        case _:
            problem = f"the mail server closed the connection: {sanitize_text(str(error), 200)}"
    return SourceUnavailable(problem, where=where, hint=hint)
