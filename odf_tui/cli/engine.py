"""The Spark engine by itself: engine serve."""

from __future__ import annotations

import os
import sys

import click

from odf_engine.errors import NotFound
from odf_tui.cli.output import open_workspace, verb

_SERVER = "odf_engine.transform.engines.grpc_server"


@verb("engine", example="odf engine serve --port 5544")
@click.argument("what", type=click.Choice(["serve"]))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=5544, show_default=True)
def engine_verb(what: str, host: str, port: int) -> None:
    """Serves the Spark engine over gRPC, until ^C, to coordinators that see the same files.

    Who can reach it can have it read and write files: it listens on this machine only, unless told
    otherwise. Spark is set up as the workspace says, if there is one.

    A workspace has queries for an engine NAME run by one that serves: odf config set engines.NAME
    grpc://HOST:PORT, with ?folder=DIR&as=PATH after it where the engine sees only a folder, as PATH.
    """
    command = [sys.executable, "-m", _SERVER, "--host", host, "--port", str(port)]
    try:
        command += ["--settings-of", str(open_workspace().odf)]
    except NotFound:
        pass  # it needs no workspace
    # The server replaces this process: Spark is never imported here, and ^C and signals go to it.
    os.execv(sys.executable, command)
