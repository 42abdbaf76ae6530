"""Dialog that selects a remote, and the numbered choices of such dialogs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from odf_engine.api.model import Remote
from odf_engine.api.text import printable
from odf_tui.text.remotes import direction, relation_text
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import PickerDialog

if TYPE_CHECKING:
    from odf_tui.services.controller import Host

_KEYS: Final = "123456789"


async def choose_remote(host: Host, title: str, remotes: Sequence[Remote]) -> Remote | None:
    """Return the remote that the user selects, or None if absent, or the dialog was closed.

    The dialog opens only if there are several remotes.
    """
    if len(remotes) < 2:
        return remotes[0] if remotes else None
    choices = [
        numbered_choice(at, remote.url, remote.label, f"{direction(remote)} · {relation_text(remote)}")
        for at, remote in enumerate(remotes)
    ]
    picked = await host.ask(PickerDialog(printable(title), choices, typing=False))
    return next((remote for remote in remotes if remote.url == picked), None)


def numbered_choice(at: int, id: str, title: str, remark: str) -> Choice:
    """Return a choice. The first nine choices have the keys 1 to 9.

    Args:
        at: index of the choice, from 0.
        id: result of the dialog if it is picked.
        title: text of its line.
        remark: text after the title.
    """
    key = _KEYS[at : at + 1]
    return Choice(id, title, (key,) if key else (), key, remark)
