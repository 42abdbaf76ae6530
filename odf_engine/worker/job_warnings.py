"""The warnings of a job, and which blocks they are about."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from odf_engine.base.progress import JobWarning, count_of
from odf_engine.errors import JobWarned, OdfError, escape_surrogates
from odf_engine.on_demand import block_warnings

if TYPE_CHECKING:
    from collections.abc import Callable

    from odf_engine.workspace.workspace import Workspace

_MAX_WARNINGS: Final = 50
_MAX_CHARACTERS: Final = 1000
_log = logging.getLogger(__name__)


class WarningList:
    """Collects the warnings of a job. Thread-safe.

    A warning is about the next block that the job commits, or the last one if no other follows.

    Args:
        dataset: name of the dataset.
    """

    def __init__(self, dataset: str) -> None:
        self._dataset = dataset
        self._lock = threading.Lock()
        self._found: list[JobWarning] = []
        self._omitted = 0
        self._pending: list[JobWarning] = []
        self._of_blocks: dict[tuple[str, str], list[JobWarning]] = {}
        self._last: tuple[str, str] | None = None

    def add(self, kind: str, text: str, count: int | None = None) -> None:
        """Add a warning. After 50, only the number of others is stored."""
        text = escape_surrogates(text)
        text = text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + " …"
        with self._lock:
            warning = JobWarning(kind, text, count, self._dataset)
            if len(self._found) == _MAX_WARNINGS:
                self._omitted += 1
            else:
                self._found.append(warning)
            if len(self._pending) < _MAX_WARNINGS:
                self._pending.append(warning)

    def committed(self, dataset: str, block: str) -> None:
        """Assign the warnings since the last commit to a block."""
        with self._lock:
            self._last = (dataset, block)
            if self._pending:
                self._of_blocks.setdefault(self._last, []).extend(self._pending)
                self._pending = []

    def require_none(self) -> None:
        """Check that there are no warnings since the last commit.

        Raises:
            JobWarned: there are some.
        """
        with self._lock:
            if not self._pending:
                return
            first, *others = self._pending
            done = "nothing was committed" if self._last is None else "earlier blocks of the job remain"
        more = f" (and {count_of(len(others), 'other warning')})" if others else ""
        raise JobWarned(
            f"warning: {first.text}{more}",
            hint=f"{done}; to commit with warnings, run without --on-warning fail, or set onWarning of the"
            " flow to continue",
        )

    def listed(self) -> list[JobWarning]:
        """Return all warnings; the last one has the number of those that are not stored."""
        with self._lock:
            omitted = self._omitted
            text = f"{count_of(omitted, 'more warning')}: odf logs shows them"
            last = [JobWarning("more", text, omitted, self._dataset)] if omitted else []
            return [*self._found, *last]

    def assign_rest(self) -> None:
        """Assign the warnings after the last commit to its block. Call it when the job has succeeded."""
        with self._lock:
            last = self._last
        if last is not None:
            self.committed(*last)

    def store(self, open_workspace: Callable[[], Workspace]) -> None:
        """Store the warnings of blocks in the folders of their datasets. Errors are logged only.

        Args:
            open_workspace: returns the workspace of the job; only called if there are warnings.
        """
        with self._lock:
            of_blocks = dict(self._of_blocks)
        for (dataset, block), warnings in of_blocks.items():
            try:
                folder = open_workspace().resolve(dataset).dataset.folder
                block_warnings.store_block_warnings(folder, block, warnings)
            except OdfError as error:
                _log.warning("the warnings of block %s are not stored: %s", block, error)
