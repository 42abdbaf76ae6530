"""FakeSharing, repositories and remotes in memory."""

from __future__ import annotations

from odf_engine.api.model import BlockLine, DivergedBranches, NamedUrl
from odf_engine.errors import AlreadyExists


class FakeSharing:
    """Repositories and remotes.

    Attributes:
        places: the repositories.
        detached: dataset and URL of each remote that was removed.
        own_since: number of local blocks after the newest shared one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.places: list[NamedUrl] = []
        self.detached: list[tuple[str, str]] = []
        self.own_since: int = 2

    def repositories(self) -> list[NamedUrl]:
        """Return the repositories, by name."""
        return sorted(self.places)

    def add_repository(self, name: str, url: str) -> None:
        """Add a repository."""
        if any(place.name == name for place in self.places):
            raise AlreadyExists(f"there is a repository '{name}' already")
        self.places.append(NamedUrl(name, url.rstrip("/") + "/"))

    def remove_repository(self, name: str) -> None:
        """Remove a repository."""
        self.places = [place for place in self.places if place.name != name]

    def branches(self, dataset: str, common: str, limit: int) -> DivergedBranches:
        """Return ``own_since`` local blocks after the shared block 4."""
        own = [_line(number) for number in range(4 + self.own_since, 4, -1)]
        return DivergedBranches(tuple(own[:limit]), max(len(own) - limit, 0), _line(4))

    def detach(self, dataset: str, url: str) -> None:
        """Record the removal."""
        self.detached.append((dataset, url))


def _line(number: int) -> BlockLine:
    time = f"2024-03-{10 + number // 24:02d}T{number % 24:02d}:15:00Z"
    return BlockLine(number, "f1620" + f"{number:02x}" * 32, time, "AddData", number * 10, "")
