"""Creates the deliveries of an alert, and sends them: one attempt each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from odf_engine.automation.alerts.definition import Alert, Email, EventKind, OpenLineage, Terminal, Webhook
from odf_engine.automation.alerts.events import Event, cloud_event, select_kind, stable_id
from odf_engine.automation.alerts.mail import mail_body, send_mail
from odf_engine.automation.alerts.openlineage import run_event
from odf_engine.automation.alerts.store import Delivery, NewDelivery
from odf_engine.automation.alerts.webhook import (
    Signer,
    cloud_event_headers,
    hmac_signer,
    kamu_body,
    kamu_headers,
    key_signer,
    post,
)
from odf_engine.base.files import ensure_folder, open_file, translate_os_errors
from odf_engine.base.progress import Reporter
from odf_engine.errors import NotFound, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.workspace.workspace import Workspace

TEST: Final = "Test"
"""Kind of the deliveries of ``odf alert test``."""
_LINEAGE_TIMEOUT: Final = 10.0


def make_delivery(alert: Alert, event: Event, workspace: Workspace) -> NewDelivery | None:
    """Return the delivery of an event for an alert, or None if the alert does not send it."""
    kind = select_kind(alert, event, workspace.config)
    if kind is None:
        return None
    return _delivery(alert, event, kind, _body(alert, event, kind, workspace))


def make_test_delivery(alert: Alert, workspace: Workspace) -> Delivery:
    """Return a delivery that tests an alert.

    Raises:
        UsageError: the sink has no form for a test.
    """
    now = Timestamp.now()
    text = f"Test of alert {alert.name} in workspace {workspace.folder.name}"
    event = Event(stable_id("test", alert.name, now), [], str(now), alert.name, text)
    kind: EventKind = TEST  # type: ignore[assignment]  # no alert can select it
    match alert.spec.sink:
        case OpenLineage():
            raise UsageError(
                f"alert '{alert.name}' cannot be tested: OpenLineage has no test event",
                hint="run a job, for example odf pull NAME, then odf alert history",
            )
        case Terminal():
            raise UsageError(
                f"alert '{alert.name}' cannot be tested: workstations show only messages of the worker",
                hint="run a job that the alert selects",
            )
        case Webhook(format="kamu"):
            body = b'{"version":2}'
        case _:
            body = _body(alert, event, kind, workspace)
    new = _delivery(alert, event, kind, body)
    created = now.ms / 1000
    return Delivery(0, new.id, new.alert, TEST, new.subject, "", text, body, "queued", created, created)


def _delivery(alert: Alert, event: Event, kind: EventKind, body: bytes) -> NewDelivery:
    number = stable_id("delivery", alert.name, event.id)
    return NewDelivery(number, alert.name, kind, event.subject, event.dataset, event.message, body)


def _body(alert: Alert, event: Event, kind: EventKind, workspace: Workspace) -> bytes:
    """Return the message in the form of the sink."""
    name = workspace.folder.name
    match alert.spec.sink:
        case Email():
            return mail_body(event, kind, name)
        case OpenLineage(namespace=namespace):
            return run_event(event, kind, workspace, namespace)
        case Webhook(format="kamu"):
            account = event.subject.rpartition("/")[0]
            old, new = event.data.get("old_head"), event.data["new_head"]
            return kamu_body(event.dataset, account, old, new, breaking=event.data["breaking"])
        case Terminal():
            return b""
        case _:
            return cloud_event(event, kind, name)


def send(alert: Alert, delivery: Delivery, workspace: Workspace, reporter: Reporter) -> None:
    """Send a delivery: one attempt.

    Args:
        alert: the alert.
        delivery: the delivery.
        workspace: the workspace, with the keys and credentials.
        reporter: its cancellation ends the attempt immediately.

    Raises:
        AttemptFailed, OdfError: the receiver did not confirm it.
        Cancelled: the attempt was cancelled. The receiver may have the message.
    """
    access = RemoteAccess(workspace.config, Credentials(workspace.odf), reporter)
    sink, created = alert.spec.sink, int(Timestamp.now().ms / 1000)
    match sink:
        case Webhook():
            signer = _signer(alert, sink, delivery, workspace, access.credentials)
            if sink.format == "kamu" and signer is not None:
                headers = kamu_headers(sink.url, delivery, signer, created)
            else:
                headers = cloud_event_headers(sink.url, delivery, signer, created)
            post(sink.url, headers, delivery.body, access, sink.timeout.seconds)
        case Email():
            send_mail(sink, delivery, workspace.folder.name, access)
        case OpenLineage(url=url) if url:
            headers = {"Content-Type": "application/json", "Idempotency-Key": f'"{delivery.id}"'}
            post(url, headers, delivery.body, access, _LINEAGE_TIMEOUT)
        case OpenLineage(file=file):
            _append_line(workspace.resolve_path(file), delivery.body)
        case _:
            pass  # open workstations read the queue


def _signer(
    alert: Alert, sink: Webhook, delivery: Delivery, workspace: Workspace, credentials: Credentials
) -> Signer | None:
    """Return the key for a webhook, or None if its requests are not signed.

    Raises:
        NotFound: the key is not in the workspace.
    """
    if sink.signature == "none":
        return None
    if sink.signature == "hmac-sha256":
        secret = credentials.alert_secret(alert.name)
        if secret is None:
            raise NotFound(
                f"alert '{alert.name}' has no secret", hint=f"store one: odf alert secret {alert.name}"
            )
        return hmac_signer(secret, alert.name)
    if sink.key:
        dataset = workspace.resolve(sink.key).id
    elif delivery.dataset:
        dataset = DatasetId.parse(delivery.dataset)
    else:
        raise NotFound("the event has no dataset whose key signs it", hint="set the field key of the sink")
    return key_signer(workspace.keys.private_key_pem(dataset))


def _append_line(path: Path, line: bytes) -> None:
    """Append a line to a file, and sync it.

    Raises:
        OdfError: the file cannot be written.
    """
    ensure_folder(path.parent)
    with translate_os_errors(path), open_file(path, "ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())
