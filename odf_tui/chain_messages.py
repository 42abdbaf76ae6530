"""What the parts of pane 2 tell each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from textual.message import Message

from odf_tui.chain_state import BlockPage, Want


@dataclass
class BlocksWanted(Message):
    """The block explorer shows blocks that it does not have: from a place on, or the newest."""

    dataset: str
    first: int | None
    want: Want


@dataclass
class BlocksRead(Message):
    """Some blocks were read, or could not be."""

    asked: BlocksWanted
    page: BlockPage | None
    error: str = ""


@dataclass
class BlockAnswer(Message):
    """Something about a block was read, or could not be; ``then`` takes both."""

    then: Callable[[Any, str], None]
    found: Any
    error: str
