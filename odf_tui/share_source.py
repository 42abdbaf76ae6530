"""What exchange with other places needs of the engine. It never uses the network: jobs do that."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from odf_tui.state import BlockLine


class Place(NamedTuple):
    """A repository, or a dataset in one: its name, and its URL."""

    name: str
    url: str


class Branches(msgspec.Struct, frozen=True):
    """What our chain has had since the newest block that it shares with another one.

    Attributes:
        ours: our newest blocks since then, newest first.
        more: how many of ours are older than these.
        common: the block that both have; None when it is not here any more.
    """

    ours: tuple[BlockLine, ...]
    more: int
    common: BlockLine | None


class ShareSource(Protocol):
    """Repositories, addresses and histories. All of them may block: call them in a thread."""

    def repositories(self) -> list[Place]:
        """All of them, by name."""
        ...

    def add_repository(self, name: str, url: str) -> None:
        """Remembers a repository; an error says what is wrong with the name or the URL."""
        ...

    def remove_repository(self, name: str) -> None:
        """Forgets a repository; datasets keep their addresses."""
        ...

    def branches(self, dataset: str, common: str, limit: int) -> Branches:
        """Our blocks since a block; at most so many."""
        ...

    def detach(self, dataset: str, url: str) -> None:
        """Forgets that a dataset comes from a URL, or goes there."""
        ...
