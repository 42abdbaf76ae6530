"""The workspace for others: serve."""

from __future__ import annotations

import os
import sys

import click

from odf_tui.cli.output import open_workspace, options_of, verb

_SERVER = "odf_engine.sync.server.__main__"


@verb("serve", example="odf serve --host 0.0.0.0 --port 8080 --dataset 'weather.%'", json=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 takes a free one."
)
@click.option(
    "--dataset", "patterns", multiple=True, metavar="PATTERN", help="Serve only these; again for more."
)
@click.option("--allow-push", is_flag=True, help="Let holders of a token push (odf keys token new NAME).")
@click.option("--tls-cert", type=click.Path(), metavar="FILE", help="Certificate chain in PEM, for https.")
@click.option("--tls-key", type=click.Path(), metavar="FILE", help="Its private key in PEM.")
@click.option(
    "--behind-proxy", is_flag=True, help="Believe X-Forwarded-Proto and -Host: a proxy in front sets them."
)
def serve_verb(
    host: str,
    port: int,
    patterns: tuple[str, ...],
    allow_push: bool,
    tls_cert: str | None,
    tls_key: str | None,
    behind_proxy: bool,
) -> None:
    """Serves the workspace's datasets to others, until ^C, by the simple and smart transfer protocols.

    Everybody who reaches it can read all datasets, or those that --dataset names; nobody can change
    any, unless --allow-push lets holders of a token push those that the token is for. Datasets whose key
    is here are never pushed to: they are made here.

    A browser shows what there is. Others pull with: odf pull odf+http://HOST:PORT/NAME/

    It listens on this machine only, unless --host says otherwise. Limits are settings: odf config list
    shows them under serve. With --json, one line says the url once it listens.
    """
    options = options_of()
    command = [sys.executable, "-m", _SERVER, "--workspace", str(open_workspace().folder)]
    command += ["--host", host, "--port", str(port)]
    for pattern in patterns:
        command.append(f"--dataset={pattern}")
    for name, value in (("--tls-cert", tls_cert), ("--tls-key", tls_key)):
        if value is not None:
            command.append(f"{name}={value}")
    flags = {
        "--allow-push": allow_push,
        "--behind-proxy": behind_proxy,
        "--json": options.json,
        "--quiet": options.quiet,
        "--verbose": options.verbose,
    }
    command += [name for name, given in flags.items() if given]
    # The server replaces this process: signals go to it, and nothing of the command line stays in memory.
    os.execv(sys.executable, command)
