"""Dialog to choose a remote, and the numbered choices of such dialogs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from odf_tui.text.format import printable
from odf_tui.text.remotes import Remote, direction, relation_text

if TYPE_CHECKING:
    from odf_tui.services.host import Host
    from odf_tui.widgets.choice_list import Choice

_KEYS: Final = "123456789"


async def choose_remote(host: Host, title: str, remotes: Sequence[Remote]) -> Remote | None:
    """Return one of the remotes; a dialog opens only if there are several. None if it was closed."""
    from odf_tui.widgets.dialogs import PickerDialog  # deferred: loads faster

    if len(remotes) < 2:
        return remotes[0] if remotes else None
    choices = [
        numbered_choice(at, each.url, each.label, f"{direction(each)} · {relation_text(each)}")
        for at, each in enumerate(remotes)
    ]
    picked = await host.ask(PickerDialog(printable(title), choices, typing=False))
    return next((each for each in remotes if each.url == picked), None)


def numbered_choice(at: int, id: str, title: str, remark: str) -> Choice:
    """Return a choice; the first nine have the keys 1 to 9.

    Args:
        at: its index among the choices.
        id: the result of the dialog.
        title: the text of its line.
        remark: the text after the title.
    """
    from odf_tui.widgets.choice_list import Choice

    key = _KEYS[at : at + 1]
    return Choice(id, title, (key,) if key else (), key, remark)
