"""Serve the Spark engine over gRPC."""

from __future__ import annotations

import os
import sys

import click

from odf_engine.errors import NotFound
from odf_tui.cli.shared.options import CommandGroup
from odf_tui.cli.shared.workspace import open_workspace

ORDER = 460

_ENGINE_SERVER_MODULE = "odf_engine.engines.grpc_server"

command = CommandGroup("engine", help=__doc__, example="odf engine serve --port 5544")


@command.subcommand("serve", example="odf engine serve --port 5544")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=5544,
    show_default=True,
    help="Port to listen on; 0 for a free one.",
)
def serve(host: str, port: int) -> None:
    """Serve the Spark engine over gRPC.

    Runs until ^C. The engine serves coordinators that have access to the same files. Every client that
    can connect can read and write files through the engine. It therefore listens on this machine only,
    unless --host specifies another address. Spark uses the settings of the workspace, if there is one.

    To run the queries of the engine NAME on a served engine, use
    `odf config set engines.NAME grpc://HOST:PORT`. If the engine can access only the folder DIR, under the
    path PATH, append ?folder=DIR&as=PATH to the address.
    """
    arguments = [sys.executable, "-m", _ENGINE_SERVER_MODULE, "--host", host, "--port", str(port)]
    try:
        arguments += ["--settings-of", str(open_workspace().odf)]
    except NotFound:
        pass  # the engine needs no workspace
    # The server replaces this process: Spark is never imported here, and the server receives signals.
    os.execv(sys.executable, arguments)
