"""What a workspace's screen looked like when it was left: ``.odf/cache/ui.json``.

A cache: it may be missing, broken, or of another version; what cannot be read is as if it had never been
written, each part for itself. Of two screens the last one to write wins.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, TypedDict

import msgspec

from odf_engine.storage.atomic_files import read_small_file

MOST_RECENT: Final = 8
MOST_DATASETS: Final = 200
_WRONG: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


LEAST_SHARE: Final = 20
Share = Annotated[int, msgspec.Meta(ge=LEAST_SHARE, le=100 - LEAST_SHARE)]
"""A part of the screen in percent: all panes can be seen."""


class Shares(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How the panes share the screen, in percent; None: as usual.

    Attributes:
        left: the width of the left column.
        upper: the height of the upper row.
        single: the height of the datasets where the panes stand in one column.
    """

    left: Share | None = None
    upper: Share | None = None
    single: Share | None = None


class Columns(TypedDict, total=False):
    """How pane 3 shows the columns of a dataset; see :class:`odf_tui.widgets.arrangement.Arrangement`."""

    order: list[str]
    hidden: list[str]
    frozen: str


class Remembered(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """What is remembered.

    Attributes:
        theme: the theme that was chosen at the screen; ``theme_setting`` is what the settings said then:
            when they say something else by now, they win.
        pane, zoomed, shares: which pane had the keys, whether alone, and how large all are.
        dataset: the id of the selected one.
        filters: by pane.
        graph: how pane 1 shows the datasets, in its own terms.
        columns: how pane 3 shows the columns of datasets, by their ids; the newest last.
        wrap: whether the lines of logs are wrapped.
        recent: ids of what was chosen last in the list of everything, the newest first.
    """

    theme: str = ""
    theme_setting: str = ""
    pane: str = ""
    zoomed: bool = False
    shares: Shares = Shares()
    dataset: str = ""
    filters: dict[str, str] = {}
    graph: dict[str, Any] = {}
    columns: dict[str, Columns] = {}
    wrap: bool | None = None
    recent: list[str] = []


def path_in(folder: Path) -> Path:
    """Where it is in a workspace."""
    return folder / ".odf" / "cache" / "ui.json"


def load(folder: Path) -> Remembered:
    """What is remembered of a workspace; nothing, when it cannot be read."""
    try:
        parts = msgspec.json.decode(read_small_file(path_in(folder)), type=dict[str, msgspec.Raw])
    except (OSError, *_WRONG):
        return Remembered()
    known: dict[str, Any] = {}
    for field in msgspec.structs.fields(Remembered):
        if field.encode_name in parts:
            with suppress(*_WRONG):
                known[field.name] = msgspec.json.decode(parts[field.encode_name], type=field.type)
    return Remembered(**known)


def encode(remembered: Remembered) -> bytes:
    """What is written."""
    return msgspec.json.encode(remembered)


def save(folder: Path, content: bytes) -> None:
    """Replaces the file in one step; where that is not possible, nothing is remembered."""
    path = path_in(folder)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".ui-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise


def theme(remembered: Remembered, setting: str) -> str:
    """The theme to use: the one that was chosen, unless the settings were changed since."""
    return remembered.theme if remembered.theme and remembered.theme_setting == setting else setting
