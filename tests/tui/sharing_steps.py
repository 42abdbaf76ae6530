"""Steps that tests of remotes and repositories share: remotes, answers to dialogs, golden texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from textual.screen import Screen

from odf_engine.api.model import DatasetRow, NamedUrl, Relation, Remote
from odf_engine.workspace.remotes import REMOTE_KINDS
from odf_engine.workspace.workspace import Workspace
from odf_tui.widgets.dialogs import ConfirmDialog, PickerDialog, PromptDialog
from tests.tui.conftest import Driven
from tests.tui.haven import append, create_derivative, create_root, did, mask_hashes
from tests.tui.scripted_worker import Scenario

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
HOSPITAL = "https://hospital.example/data/visits/"
BACKUP = "file:///srv/backup/visits/"
AT = "2024-03-11T08:59:00Z"
REPOSITORIES = [
    NamedUrl("hospital", "https://hospital.example/data/"),
    NamedUrl("backup", "file:///srv/backup/"),
    NamedUrl("lake", "s3://lake/odf/"),
]


def compare_golden(drive: Driven, name: str) -> None:
    """Compare the screen, without its two last lines, with ``tests/golden/share-<size>-<name>.txt``.

    ``ODF_UPDATE_GOLDEN=1`` writes the file.
    """
    size = drive.app.size
    path = GOLDEN / f"share-{size.width}x{size.height}-{name}.txt"
    text = mask_hashes("\n".join(drive.text().splitlines()[:-2]) + "\n")
    if os.environ.get("ODF_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


async def open_dialog(drive: Driven, *keys: str, kind: type[Screen[Any]]) -> None:
    """Press keys; each opens a dialog, the last one of a class."""
    for key in keys:
        before = drive.app.screen
        await drive.press(key)
        await drive.until(lambda before=before: drive.app.screen not in (before, drive.bench))
        await drive.settle()
    assert isinstance(drive.app.screen, kind), drive.text()


def pick(choice: str, *, title: str = "", without: Collection[str] = ()) -> Callable[[Any], str]:
    """Return an answer that picks a choice by its id; none of ``without`` may be offered."""

    def answer(dialog: Any) -> str:
        assert isinstance(dialog, PickerDialog), dialog
        offered = {each.id for each in dialog.find_choices("")}
        assert choice in offered and not offered.intersection(without), offered
        assert title in dialog._title
        return choice

    return answer


def type_in(text: str, *, wrong: dict[str, str] | None = None, proposed: str = "") -> Callable[[Any], str]:
    """Return an answer that types a text.

    Args:
        text: the text; the dialog must accept it.
        wrong: texts that the dialog must refuse, with parts of the messages.
        proposed: the text that the dialog must propose.
    """

    def answer(dialog: Any) -> str:
        assert isinstance(dialog, PromptDialog), dialog
        assert dialog._value == proposed
        for each, message in (wrong or {}).items():
            assert message in dialog._check(each)
        assert dialog._check(text) == ""
        return text

    return answer


def confirm(yes: bool, *parts: str) -> Callable[[Any], bool]:
    """Return an answer to a confirmation, whose text must have these parts."""

    def answer(dialog: Any) -> bool:
        assert isinstance(dialog, ConfirmDialog), dialog
        assert all(part in dialog_text(dialog) for part in parts), dialog_text(dialog)
        return yes

    return answer


def dialog_text(dialog: Any) -> str:
    """Return the lines of a dialog as text."""
    return spans_text(dialog._lines)


def spans_text(lines: Any) -> str:
    """Return lines of spans as text."""
    return "\n".join("".join(text for text, _ in line) for line in lines)


def hospital(relation: Relation = "behind", ours: int = 0, theirs: int = 3, **more: object) -> Remote:
    """Return the pull remote of visits. It is read-only."""
    known = {
        "url": HOSPITAL,
        "label": "hospital/visits",
        "pull": True,
        "at": AT,
        "their_head": "f1620abcdef12",
    }
    return Remote(**{**known, "relation": relation, "ours": ours, "theirs": theirs, **more})  # type: ignore[arg-type]


def backup(relation: Relation = "ahead", ours: int = 2, theirs: int = 0) -> Remote:
    """Return the push remote of visits."""
    return Remote(
        url=BACKUP,
        label="backup/visits",
        push=True,
        at=AT,
        relation=relation,
        ours=ours,
        theirs=theirs,
    )


def build_visits(workspace: Workspace) -> None:
    """Create visits, whose last two blocks are local, days derived from them, and tides."""
    visits = create_root(workspace, "visits", 880)
    append(visits.dataset, 10)
    append(visits.dataset, 10)
    create_derivative(workspace, "visits-by-day", [visits], 9)
    create_root(workspace, "tides", 96)


def with_remotes(source: Scenario, *remotes: Remote, **more: object) -> DatasetRow:
    """Set the remotes of visits, and add three repositories."""
    shared = source.entry(did("visits")).dataset.block(4).hash
    compared = [replace(remote, common=str(shared)) for remote in remotes]
    for remote in remotes:
        for kind in REMOTE_KINDS:
            if getattr(remote, kind):
                source.attach(did("visits"), remote.url, kind)
    rows = {row.name: row for row in source.datasets()}
    rows["visits"] = row = replace(rows["visits"], remotes=tuple(compared), **more)  # type: ignore[arg-type]
    source.rows_ = [rows[name] for name in ("visits", "visits-by-day", "tides")]
    for name, url in [] if source.repositories() else REPOSITORIES:
        source.remotes.add(name, url)
    return row
