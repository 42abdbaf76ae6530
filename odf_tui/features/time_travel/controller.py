"""Shows other times and current states in the data pane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

from odf_tui.features.time_travel.timeline import PointInTime
from odf_tui.gateway.protocol import FileTimeRange, Timeline

if TYPE_CHECKING:
    from odf_tui.widgets.row_table import LoadedWindow


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
    found: Sequence[FileTimeRange]


@dataclass
class TimeOpened(Message):
    """The rows of another time can be shown; ``stay``: where the cursor is."""

    dataset: str
    place: PointInTime
    stay: bool
    opened: LoadedWindow | None
    error: str = ""


@dataclass
class BlockLocated(Message):
    """The number of the block that was typed."""

    dataset: str
    number: int | None
    error: str = ""
