"""Send messages about events: failed jobs, flows and checks, and new heads of datasets.

An alert has events, targets and a sink: a webhook, mail, open workstations, or OpenLineage. Its
definition is a YAML file in the folder .odf/alerts. The worker delivers the messages. See odf help
alerts.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import click

from odf_engine.api import Alert, Delivery, DocumentEntry, Timestamp, Unreadable
from odf_engine.api.alerts import WorkspaceAlerts
from odf_engine.api.text import count_of, format_count, format_time_seconds, printable
from odf_engine.api.workspace import Workspace
from odf_engine.errors import UsageError
from odf_tui.cli.shared.documents import DocumentCommands, entry_json, state_text
from odf_tui.cli.shared.options import CommandGroup
from odf_tui.cli.shared.output import Table, print_note, select_fields, show
from odf_tui.cli.shared.workspace import open_workspace, start_worker, use_timezone

ORDER = 440
MEANINGS = "alerts webhook webhooks notification notifications mail email smtp openlineage hook"

command = CommandGroup("alert", help=__doc__, example="odf alert add ops.yaml")


class _AlertCommands(DocumentCommands[Alert]):
    kind, example = Alert, "ops"
    help: ClassVar = {
        "add": "Add alerts from YAML files, or from standard input (-).",
        "accept": "Accept new and changed alerts. Review the files first: they send data to other hosts.",
        "remove": "Remove alerts, with their secrets, their queued deliveries, and their dead letters.",
    }

    def accept(self, workspace: Workspace, document: Alert) -> str:
        workspace.alerts.accept(document)
        return ""

    def describe_added(self, workspace: Workspace, document: Alert) -> str:
        if not workspace.alerts.lacks_secret(document):
            return ""
        return f"\n! it has no secret, and cannot send: odf alert secret {document.name}"

    def remove(self, workspace: Workspace, name: str) -> None:
        workspace.alerts.remove(name)

    def finish(self, workspace: Workspace) -> None:
        start_worker(workspace)


_AlertCommands().define(command)


@command.subcommand("list", example="odf alert list", json=True)
def list_alerts() -> None:
    """List the alerts with their state, events, sink, and numbers of deliveries."""
    alerts = open_workspace().alerts
    counts = alerts.counts()
    rows: list[dict[str, Any]] = [
        _alert_json(alerts, entry)
        | {state: counts.get((entry.name, state), 0) for state in ("queued", "dead")}
        for entry in alerts.entries()
    ]
    headers = ["alert", "state", "events", "target", "sink", "queued", "dead"]
    cells = [
        [
            row["name"],
            state_text(row),
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


def _alert_json(alerts: WorkspaceAlerts, entry: DocumentEntry[Alert] | Unreadable) -> dict[str, Any]:
    """Return an alert for ``odf alert list --json``. The path of its address can be a secret."""
    document = entry_json(entry)
    if isinstance(entry, Unreadable):
        return document | {"events": [], "targets": [], "sink": None, "address": None}
    alert = entry.document
    if entry.state == "active" and alerts.lacks_secret(alert):
        document |= {"state": "incomplete", "reason": f"store its secret: odf alert secret {alert.name}"}
    return document | {
        "events": list(alert.spec.kinds),
        "targets": list(map(str, alert.spec.targets)),
        "sink": str(alert.spec.sink.__struct_config__.tag),
        "address": alert.spec.sink.address,
    }


@command.subcommand("secret", example="odf alert secret ops")
@click.argument("alert_name", metavar="ALERT")
@click.option("--generate", is_flag=True, help="Generate a secret, and print it once.")
@click.option("--stdin", is_flag=True, help="Read the secret from stdin instead of the terminal.")
def secret(alert_name: str, generate: bool, stdin: bool) -> None:
    """Store the secret that signs the requests of a webhook (HMAC).

    It is stored with the private keys of the workspace. The receiver needs the same secret.
    """
    alerts = open_workspace().alerts
    alerts.require_signed(alert_name)
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
    alerts.set_secret(alert_name, value)
    print_note(f"stored the secret of alert {alert_name}")
    if generate:
        sys.stdout.write(value + "\n")


@command.subcommand("test", example="odf alert test ops")
@click.argument("alert_name", metavar="ALERT")
def test(alert_name: str) -> None:
    """Send a test message now, and report whether the receiver confirmed it."""
    address = open_workspace().alerts.send_test(alert_name)
    print_note(f"sent a test message to {address}")


@command.subcommand("history", example="odf alert history", json=True)
@click.argument("alert_name", required=False, metavar="[ALERT]")
@click.option(
    "-n", "limit", type=click.IntRange(1), default=30, show_default=True, help="Number of messages."
)
def history(alert_name: str | None, limit: int) -> None:
    """List messages with their state, newest first: queued, sent, or dead."""
    workspace = open_workspace()
    _show_deliveries(workspace, workspace.alerts.messages(limit, alert_name), "no messages")


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
    _show_deliveries(workspace, workspace.alerts.dead_letters(alert_name), "no dead letters")


@dead.subcommand("retry", example="odf alert dead retry 12")
@click.argument("numbers", nargs=-1, type=int, metavar="NUMBER...")
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@click.option("--alert", "alert_name", metavar="ALERT", help="With --all: only dead letters of this alert.")
def retry_dead(numbers: Sequence[int], everything: bool, alert_name: str | None) -> None:
    """Queue dead letters again. They keep their ids."""
    workspace = open_workspace()
    selected = _selected(workspace, numbers, everything, alert_name)
    count = workspace.alerts.retry_dead_letters(selected, alert_name)
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
    count = workspace.alerts.remove_dead_letters(selected, alert_name)
    print_note(f"deleted {count_of(count, 'message')}")


def _selected(
    workspace: Workspace, numbers: Sequence[int], everything: bool, alert_name: str | None
) -> Sequence[int] | None:
    """Return the selected numbers, or None for all."""
    workspace.alerts.require(alert_name)
    if alert_name is not None and numbers:
        raise UsageError("--alert requires --all instead of numbers")
    if bool(numbers) == everything:
        raise UsageError("specify either numbers or --all", hint="list the dead letters: odf alert dead list")
    return None if everything else numbers
