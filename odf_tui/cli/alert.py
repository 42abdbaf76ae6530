"""Send messages about events: failed jobs, flows and checks, and new heads of datasets.

An alert has events, targets and a sink: a webhook, mail, open workstations, or OpenLineage. Its
definition is a YAML file in the folder .odf/alerts. The worker delivers the messages. See odf help
alerts.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import click

from odf_engine.alerts.definition import Alert, Webhook, accepted_alerts, active_alerts, alert_files
from odf_engine.alerts.store import MAX_DEAD, AlertStore, has_queue, read_newest
from odf_engine.api import Delivery, Timestamp
from odf_engine.api.text import count_of, format_count, format_time_seconds, printable
from odf_engine.errors import NotFound, UsageError
from odf_engine.flows.documents import Unreadable
from odf_engine.net.credentials import Credentials
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.shared.input import read_documents
from odf_tui.cli.shared.options import CommandGroup
from odf_tui.cli.shared.output import Table, print_note, select_fields, show
from odf_tui.cli.shared.workspace import open_engine_workspace as open_workspace
from odf_tui.cli.shared.workspace import start_worker, use_timezone

ORDER = 440
MEANINGS = "alerts webhook webhooks notification notifications mail email smtp openlineage hook"

_MIN_SECRET: Final = 16

command = CommandGroup("alert", help=__doc__, example="odf alert add ops.yaml")


def _open_store(workspace: Workspace) -> contextlib.closing[AlertStore]:
    return contextlib.closing(AlertStore(workspace.odf))


@command.subcommand("add", example="odf alert add ops.yaml")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--replace", is_flag=True, help="Replace an alert of the same name.")
def add(files: Sequence[str], replace: bool) -> None:
    """Add alerts from YAML files, or from standard input (-)."""
    workspace = open_workspace()
    for text, source in read_documents(files):
        alert = alert_files(workspace.odf).write(text, source, replace=replace)
        _activate(workspace, alert)
        print_note(f"added alert {alert.name}")
        if _lacks_secret(workspace, alert):
            print_note(f"! it has no secret, and cannot send: odf alert secret {alert.name}")
    start_worker(workspace)


def _activate(workspace: Workspace, alert: Alert) -> None:
    """Accept an alert. It sends the events from now on."""
    from odf_engine.coordinator.alert_events import EventCollector  # deferred: slow to import

    others = [other for other in active_alerts(workspace.odf) if other.name != alert.name]
    with _open_store(workspace) as store, contextlib.closing(EventCollector(workspace.odf, store)) as events:
        events.begin([alert], workspace, replace=not others)
    accepted_alerts(workspace.odf).accept(alert.name, alert.digest)


def _lacks_secret(workspace: Workspace, alert: Alert) -> bool:
    sink = alert.spec.sink
    signed = isinstance(sink, Webhook) and sink.signature == "hmac-sha256"
    return signed and Credentials(workspace.odf).alert_secret(alert.name) is None


@command.subcommand("list", example="odf alert list", json=True)
def list_alerts() -> None:
    """List the alerts with their state, events, sink, and numbers of deliveries."""
    workspace = open_workspace()
    accepted = accepted_alerts(workspace.odf).read()
    counts: dict[tuple[str, Any], int] = {}
    if has_queue(workspace.odf):
        with _open_store(workspace) as store:
            counts = dict(store.counts())
    rows: list[dict[str, Any]] = [
        _alert_json(workspace, alert, accepted.get(alert.name))
        | {state: counts.get((alert.name, state), 0) for state in ("queued", "dead")}
        for alert in alert_files(workspace.odf).read_all()
    ]
    headers = ["alert", "state", "events", "target", "sink", "queued", "dead"]
    cells = [
        [
            row["name"],
            row["state"] + (f": {row['reason']}" if row["reason"] else ""),
            ", ".join(row["events"]),
            ", ".join(row["targets"]),
            printable(f"{row['sink'] or ''} {row['address'] or ''}".strip()),
            format_count(row["queued"]),
            format_count(row["dead"]),
        ]
        for row in rows
    ]
    empty = "no alerts; to add one: odf alert add FILE, see odf help alerts"
    show(rows, Table(headers, cells, ["queued", "dead"], empty))


def _alert_json(workspace: Workspace, alert: Alert | Unreadable, accepted: str | None) -> dict[str, Any]:
    """Return an alert for ``odf alert list --json``. The path of its address can be a secret."""
    if isinstance(alert, Unreadable):
        document = {"name": alert.name, "state": "invalid", "reason": alert.error.format_line}
        return document | {"events": [], "targets": [], "sink": None, "address": None}
    state, reason = "active", None
    if accepted != alert.digest:
        state = "new" if accepted is None else "changed"
        reason = f"odf alert accept {alert.name} accepts it"
    elif _lacks_secret(workspace, alert):
        state, reason = "incomplete", f"store its secret: odf alert secret {alert.name}"
    return {
        "name": alert.name,
        "state": state,
        "reason": reason,
        "events": list(alert.spec.kinds),
        "targets": list(map(str, alert.spec.targets)),
        "sink": str(alert.spec.sink.__struct_config__.tag),
        "address": alert.spec.sink.address,
    }


@command.subcommand("show", example="odf alert show ops")
@click.argument("alert_name", metavar="ALERT")
def show_alert(alert_name: str) -> None:
    """Show the definition of an alert."""
    files = alert_files(open_workspace().odf)
    sys.stdout.write(files.text(alert_name).decode(errors="replace"))


@command.subcommand("accept", example="odf alert accept ops")
@click.argument("alert_names", nargs=-1, required=True, metavar="ALERT...")
def accept(alert_names: Sequence[str]) -> None:
    """Accept new and changed alerts. Review the files first: they send data to other hosts."""
    workspace = open_workspace()
    for name in alert_names:
        alert = alert_files(workspace.odf).read(name)
        _activate(workspace, alert)
        print_note(f"accepted alert {name}")
    start_worker(workspace)


@command.subcommand("remove", example="odf alert remove ops")
@click.argument("alert_names", nargs=-1, required=True, metavar="ALERT...")
def remove(alert_names: Sequence[str]) -> None:
    """Remove alerts, with their secrets, their queued deliveries, and their dead letters."""
    workspace = open_workspace()
    for name in alert_names:
        alert_files(workspace.odf).remove(name)
        accepted_alerts(workspace.odf).accept(name, None)
        Credentials(workspace.odf).set_alert_secret(name, None)
        with _open_store(workspace) as store:
            store.forget(name)
        print_note(f"removed alert {name}")


@command.subcommand("secret", example="odf alert secret ops")
@click.argument("alert_name", metavar="ALERT")
@click.option("--generate", is_flag=True, help="Generate a secret, and print it once.")
@click.option("--stdin", is_flag=True, help="Read the secret from stdin instead of the terminal.")
def secret(alert_name: str, generate: bool, stdin: bool) -> None:
    """Store the secret that signs the requests of a webhook (HMAC).

    It is stored with the private keys of the workspace. The receiver needs the same secret.
    """
    workspace = open_workspace()
    alert = alert_files(workspace.odf).read(alert_name)
    if not isinstance(alert.spec.sink, Webhook) or alert.spec.sink.signature != "hmac-sha256":
        raise UsageError(
            f"alert '{alert_name}' has no secret", hint="set signature: hmac-sha256 in its Webhook sink"
        )
    if generate and stdin:
        raise UsageError("--generate and --stdin exclude each other")
    if generate:
        value = secrets.token_hex(32)
    elif stdin:
        value = sys.stdin.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        value = click.prompt("secret", hide_input=True, err=True)
    else:
        raise UsageError(
            "cannot prompt for the secret: stdin is not a terminal",
            hint="pipe it to stdin, and use --stdin; or use --generate",
        )
    if len(value) < _MIN_SECRET or not value.isprintable():
        raise UsageError(f"invalid secret: fewer than {_MIN_SECRET} characters, or control characters")
    Credentials(workspace.odf).set_alert_secret(alert_name, value)
    print_note(f"stored the secret of alert {alert_name}")
    if generate:
        sys.stdout.write(value + "\n")


@command.subcommand("test", example="odf alert test ops")
@click.argument("alert_name", metavar="ALERT")
def test(alert_name: str) -> None:
    """Send a test message now, and report whether the receiver confirmed it."""
    from odf_engine.alerts.delivery import make_test_delivery, send  # deferred: slow to import
    from odf_engine.api import Reporter
    from odf_engine.net.download import AttemptFailed

    workspace = open_workspace()
    alert = alert_files(workspace.odf).read(alert_name)
    if accepted_alerts(workspace.odf).read().get(alert_name) != alert.digest:
        raise UsageError(
            f"alert '{alert_name}' is not accepted",
            hint=f"review the definition, then accept it: odf alert accept {alert_name}",
        )
    try:
        send(alert, make_test_delivery(alert, workspace), workspace, Reporter())
    except AttemptFailed as failure:
        raise failure.error from None
    print_note(f"sent a test message to {alert.spec.sink.address}")


@command.subcommand("history", example="odf alert history", json=True)
@click.argument("alert_name", required=False, metavar="[ALERT]")
@click.option(
    "-n", "limit", type=click.IntRange(1), default=30, show_default=True, help="Number of messages."
)
def history(alert_name: str | None, limit: int) -> None:
    """List messages with their state, newest first: queued, sent, or dead."""
    workspace = open_workspace()
    _check_alert(workspace, alert_name)
    _show_deliveries(workspace, read_newest(workspace.odf, limit, alert_name), "no messages")


def _check_alert(workspace: Workspace, name: str | None) -> None:
    """Check that there is an alert of this name."""
    if name is not None and name not in alert_files(workspace.odf).stamps():
        raise NotFound(f"alert '{name}' not found", hint="list the alerts: odf alert list")


def _show_deliveries(workspace: Workspace, deliveries: Sequence[Delivery], empty: str) -> None:
    zone = use_timezone(workspace)
    rows = [
        [
            str(delivery.number),
            format_time_seconds(_format_utc(delivery.created)),
            delivery.alert,
            delivery.kind,
            delivery.state,
            str(delivery.attempts),
            printable(delivery.message),
            printable(delivery.error),
        ]
        for delivery in deliveries
    ]
    headers = ["number", f"time ({zone})", "alert", "event", "state", "attempts", "message", "error"]
    documents = [_delivery_json(delivery) for delivery in deliveries]
    show(documents, Table(headers, rows, ["number", "attempts"], empty))


def _format_utc(seconds: float) -> str:
    return str(Timestamp.from_seconds(seconds))


def _delivery_json(delivery: Delivery) -> dict[str, Any]:
    """Return a message for ``--json``, without its body, which can have secrets. Times are RFC 3339."""
    return {
        **select_fields(delivery, "number", "id", "alert"),
        "event": delivery.kind,
        **select_fields(delivery, "subject", "message", "state"),
        "created": _format_utc(delivery.created),
        "due": _format_utc(delivery.due) if delivery.state == "queued" else None,
        "ended": None if delivery.ended is None else _format_utc(delivery.ended),
        "attempts": delivery.attempts,
        "error": delivery.error or None,
    }


dead = CommandGroup(
    "dead", help="Messages whose delivery has failed for good.", example="odf alert dead list"
)
command.add_command(dead)


@dead.subcommand("list", example="odf alert dead list", json=True)
@click.argument("alert_name", required=False, metavar="[ALERT]")
def list_dead(alert_name: str | None) -> None:
    """List dead letters, newest first."""
    workspace = open_workspace()
    _check_alert(workspace, alert_name)
    _show_deliveries(workspace, read_newest(workspace.odf, MAX_DEAD, alert_name, "dead"), "no dead letters")


@dead.subcommand("retry", example="odf alert dead retry 12")
@click.argument("numbers", nargs=-1, type=int, metavar="NUMBER...")
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@click.option("--alert", "alert_name", metavar="ALERT", help="With --all: only dead letters of this alert.")
def retry_dead(numbers: Sequence[int], everything: bool, alert_name: str | None) -> None:
    """Queue dead letters again. They keep their ids."""
    workspace = open_workspace()
    selected = _selected(workspace, numbers, everything, alert_name)
    with _open_store(workspace) as store:
        count = store.retry(selected, time.time(), alert_name)
    print_note(f"queued {count_of(count, 'message')}")
    start_worker(workspace)


@dead.subcommand("remove", example="odf alert dead remove --all")
@click.argument("numbers", nargs=-1, type=int, metavar="NUMBER...")
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@click.option("--alert", "alert_name", metavar="ALERT", help="With --all: only dead letters of this alert.")
def remove_dead(numbers: Sequence[int], everything: bool, alert_name: str | None) -> None:
    """Delete dead letters."""
    workspace = open_workspace()
    selected = _selected(workspace, numbers, everything, alert_name)
    with _open_store(workspace) as store:
        count = store.remove_dead(selected, alert_name)
    print_note(f"deleted {count_of(count, 'message')}")


def _selected(
    workspace: Workspace, numbers: Sequence[int], everything: bool, alert_name: str | None
) -> Sequence[int] | None:
    """Return the selected numbers, or None for all."""
    _check_alert(workspace, alert_name)
    if alert_name is not None and numbers:
        raise UsageError("--alert requires --all instead of numbers")
    if bool(numbers) == everything:
        raise UsageError("specify either numbers or --all", hint="list the dead letters: odf alert dead list")
    return None if everything else numbers
