"""What was read for going back in time, told to the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

from odf_tui.timeline import Place, Probe, Timeline

if TYPE_CHECKING:
    from odf_tui.widgets.chunks import Opened


@dataclass
class TimelineRead(Message):
    """The history of a dataset; ``wanted``: the person wants the slider, else a place is shown again."""

    dataset: str
    line: Timeline | None
    wanted: bool
    error: str = ""


@dataclass
class Probed(Message):
    """Some files have said what they know of themselves."""

    line: Timeline
    found: Sequence[Probe]


@dataclass
class TimeOpened(Message):
    """The rows of another time can be shown; ``stay``: where the cursor is."""

    dataset: str
    place: Place
    stay: bool
    opened: Opened | None
    error: str = ""


@dataclass
class BlockLocated(Message):
    """The number of the block that was typed."""

    dataset: str
    number: int | None
    error: str = ""
