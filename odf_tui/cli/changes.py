"""How verbs show what definitions change."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from odf_engine.metadata.yaml import to_plain
from odf_engine.workspace.updating import Change, Update
from odf_tui.cli.output import console, print_json, say
from odf_tui.humane import plain

_STYLES = {"+": "green", "-": "red"}


def print_changes(updates: Sequence[Update]) -> None:
    """What would be appended, dataset by dataset, as lines of YAML with ``+`` and ``-``."""
    for update in updates:
        if update.is_new:
            sys.stdout.write(f"{update.alias}: new\n")
        elif update.changes:
            sys.stdout.write(f"{update.alias}:\n")
        for change in update.changes:
            _print_change(change, short=update.is_new)


def _print_change(change: Change, *, short: bool) -> None:
    sys.stdout.write(f"  {change.title}\n")
    if short:  # all of it is new: the manifest shows it better
        return
    if not sys.stdout.isatty():
        sys.stdout.write("".join(f"    {plain(line)}\n" for line in change.lines))
        return
    out = console()
    for line in change.lines:
        out.print(f"    {plain(line)}", style=_STYLES.get(line[:1], "dim"))


def say_done(updates: Sequence[Update], *, dry_run: bool) -> None:
    """A line about each dataset."""
    for update in updates:
        number = len(update.events)
        events = "1 event" if number == 1 else f"{number} events"
        if update.is_new:
            say(f"{update.alias} would be added" if dry_run else f"added {update.alias}")
        elif not number:
            say(f"{update.alias}: nothing to do")
        else:
            say(f"{update.alias}: would append {events}" if dry_run else f"updated {update.alias}: {events}")


def print_updates_json(updates: Sequence[Update], *, dry_run: bool) -> None:
    """The same for scripts."""
    print_json([_as_json(update, dry_run) for update in updates])


def _as_json(update: Update, dry_run: bool) -> dict[str, Any]:
    status = "added" if update.is_new else "updated" if update.events else "unchanged"
    head = update.entry.dataset.head() if update.entry is not None else None
    return {
        "name": str(update.alias),
        "status": status,
        "dry_run": dry_run,
        "head": head,
        "events": [to_plain(event) for event in update.events],
        "changes": [{"title": change.title, "lines": change.lines} for change in update.changes],
    }
