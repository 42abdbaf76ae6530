"""NoticeLog: the newest notices, and which errors among them were not read."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from odf_engine.api import Timestamp

MAX_NOTICES: Final = 50


@dataclass
class PastNotice:
    """A notice that was shown.

    Attributes:
        time: when it was shown, RFC 3339.
        text, style: as it was shown.
        unread: whether it is an error that was not read.
    """

    time: str
    text: str
    style: str
    unread: bool


class NoticeLog:
    """The newest notices.

    Attributes:
        notices: the notices, oldest first.
    """

    def __init__(self) -> None:
        self.notices: deque[PastNotice] = deque(maxlen=MAX_NOTICES)

    def add(self, text: str, style: str) -> None:
        """Add a notice."""
        self.notices.append(PastNotice(str(Timestamp.now()), text, style, style == "bad"))

    @property
    def unread(self) -> int:
        """The number of unread errors."""
        return sum(notice.unread for notice in self.notices)

    def mark_read(self) -> None:
        """Mark all errors as read."""
        for notice in self.notices:
            notice.unread = False
