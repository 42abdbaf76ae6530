"""Reads blocks, jumps between them, shows verification findings, signs blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from textual.message import Message


@dataclass
class BlockAnswer(Message):
    """Something about a block was read, or could not be; ``then`` takes both."""

    then: Callable[[Any, str], None]
    found: Any
    error: str
