"""Serve the datasets of the workspace over HTTP, or by Arrow Flight SQL.

Runs until ^C. Uses the simple and the smart transfer protocol. Clients pull a dataset with
`odf pull odf+http://HOST:PORT/NAME/`. A browser shows the list of datasets.

Every client that can connect can read all datasets, or those selected by --dataset. With
--allow-push, clients with a token can push to the datasets of the token. Datasets whose private key
is in this workspace do not accept pushes.

With --flight, clients of Arrow Flight SQL (ADBC, JDBC, Polars, DuckDB) query the datasets in SQL. With
--require-token, they need a token. See odf help flight.

With --metrics, every client that can connect can also read numbers of jobs, and names and states of
flows and alerts. See odf help alerts.

The server listens on this machine only, unless --host specifies another address. It answers requests
for localhost, IP addresses, the host name of this machine, and the names of --host and --host-name.
Web pages of other sites are refused. Its limits are the settings serve.* of `odf config list`. With
--json, prints one line with the URL when it is ready.
"""

from __future__ import annotations

import os
import sys

import click

from odf_engine.api.operations.server_process import SERVER_MODULE
from odf_tui.cli.shared.options import DATASET, define_command, options_of
from odf_tui.cli.shared.output import select_fields
from odf_tui.cli.shared.workspace import open_workspace

ORDER = 360
MEANINGS = "server http listen flight adbc jdbc"


@define_command(
    "serve", help=__doc__, example="odf serve --host 0.0.0.0 --port 8080 --dataset 'weather.%'", json=True
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 for a free one. Default: 8080, or 32010 with --flight.",
)
@click.option(
    "--host-name",
    "host_names",
    multiple=True,
    metavar="NAME",
    help="Answer requests for this host name too, and web pages of this host. Can be repeated.",
)
@click.option(
    "--dataset",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    type=DATASET,
    help="Serve only these datasets. Can be repeated.",
)
@click.option(
    "--allow-push", is_flag=True, help="Accept pushes by clients with a token (see odf keys token)."
)
@click.option("--flight", is_flag=True, help="Serve Arrow Flight SQL instead of HTTP.")
@click.option(
    "--require-token",
    is_flag=True,
    help="With --flight, accept only clients with a token (see odf keys token).",
)
@click.option("--metrics", is_flag=True, help="Serve metrics for Prometheus at /metrics.")
@click.option("--tls-cert", type=click.Path(), metavar="FILE", help="TLS certificate chain in PEM.")
@click.option("--tls-key", type=click.Path(), metavar="FILE", help="Private key of the certificate in PEM.")
@click.option(
    "--behind-proxy",
    is_flag=True,
    help="Trust X-Forwarded-Proto and X-Forwarded-Host, which a reverse proxy sets.",
)
def command(
    host_names: tuple[str, ...], patterns: tuple[str, ...], **options: str | int | bool | None
) -> None:
    arguments = [sys.executable, "-m", SERVER_MODULE, "--workspace", str(open_workspace().folder)]
    arguments += [f"--host-name={name}" for name in host_names]
    arguments += [f"--dataset={pattern}" for pattern in patterns]
    for name, value in {**options, **select_fields(options_of(), "json", "quiet", "verbose")}.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(option)
        elif value is not None and value is not False:
            arguments.append(f"{option}={value}")
    # The server replaces this process: it receives signals, and the command line uses no memory.
    os.execv(sys.executable, arguments)
