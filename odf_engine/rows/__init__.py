"""Reads committed data: scans, row windows, AS AT and AS OF states, diff, statistics, export, ad-hoc SQL.

:mod:`.scan` is the way to read rows; the other modules build on it. Only :mod:`.execution` uses Spark.
Must not import the packages that write (``ingest``, ``derive``, ``sync``).
"""

from __future__ import annotations

import msgspec


class PinnedVersion(msgspec.Struct, frozen=True):
    """A version of a dataset.

    Attributes:
        dataset: its id.
        name: its name in the workspace.
        block: the hash of the block, in base16.
        sequence_number: the sequence number of the block.
        system_time: the system time of the block, as RFC 3339.
        last_offset: the last offset of the newest row up to the block, or None without rows.
        head: whether it is the newest block.
        in_chain: whether it belongs to the current chain, not to a branch or an earlier history.
        history: the branch, tag or earlier history that the caller named, or "".
    """

    dataset: str = ""
    name: str = ""
    block: str = ""
    sequence_number: int = 0
    system_time: str = ""
    last_offset: int | None = None
    head: bool = False
    in_chain: bool = True
    history: str = ""

    @property
    def scan_offset(self) -> int:
        """``last_offset`` as :meth:`odf_engine.rows.scan.Scan.of_dataset` takes it, or -1 without rows."""
        return -1 if self.last_offset is None else self.last_offset
