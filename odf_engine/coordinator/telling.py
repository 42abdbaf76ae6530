"""Telling those who look at a workspace that somebody changed it without a job."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Final

from odf_engine.coordinator.protocol import Touch, encode_line
from odf_engine.coordinator.rendezvous import Rendezvous
from odf_engine.errors import OdfError

_PATIENCE: Final = 0.2


def tell_changed(workspace: Path) -> None:
    """Lets a running worker tell all screens to read the datasets again; without one nobody is told.

    Takes a millisecond or two, and never fails: whoever is not told sees it at the next reading.
    """
    files = Rendezvous(workspace)
    with contextlib.suppress(OSError, OdfError):
        if not files.worker_alive():
            return
        files.check_owner()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE)
            connection.connect(files.address())
            connection.sendall(encode_line(Touch()))
