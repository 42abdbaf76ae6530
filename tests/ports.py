"""Ports for servers that cannot choose one themselves."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

_RANGE = range(20_000, 30_000)
"""Below the ports that Linux gives to connections and to servers that bind port 0.

A port of that range may be taken by another test between its choice and the start of the server.
"""
_choices = random.SystemRandom()


def unused_port(host: str = "127.0.0.1") -> int:
    """Return a port on which nothing listens, and which no other program is given by chance."""
    while True:
        port = _choices.choice(_RANGE)
        with suppress(OSError), socket.create_server((host, port)):
            return port
