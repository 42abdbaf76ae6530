"""The verbs of the ``odf`` command."""

from __future__ import annotations

import importlib
import os
from typing import Final

import click

from odf_tui.cli.output import common_options

# Verb -> the module that holds it. A module is imported when its verb is used: `odf list` should
# not wait for what `odf demo` needs.
VERBS: Final = {
    "init": "datasets",
    "add": "datasets",
    "new": "datasets",
    "delete": "datasets",
    "rename": "datasets",
    "list": "datasets",
    "show": "datasets",
    "graph": "datasets",
    "path": "datasets",
    "log": "chain",
    "schema": "chain",
    "tail": "chain",
    "sql": "sql",
    "provenance": "provenance",
    "diff": "diff",
    "pull": "data",
    "ingest": "ingest",
    "repo": "repositories",
    "push": "sharing",
    "search": "sharing",
    "trust": "trust",
    "untrust": "trust",
    "verify": "verifying",
    "fsck": "fsck",
    "keys": "keys",
    "serve": "serve",
    "demo": "demo",
    "jobs": "jobs",
    "cancel": "jobs",
    "logs": "jobs",
    "worker": "jobs",
    "engine": "engine",
    "config": "config",
    "completions": "completions",
    "block": "plumbing",
    "digest": "plumbing",
}


COMPLETION: Final = "_ODF_COMPLETE"
"""The variable of the environment by which a shell asks for completions."""


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"odf_tui.cli.{VERBS[cmd_name]}")
        command = getattr(module, cmd_name + "_verb")
        if COMPLETION in os.environ:
            from odf_tui.cli.completions import complete_names

            complete_names(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], VERBS, 1)
            ctx.fail(f"no verb '{args[0]}'" + (f": did you mean '{close[0]}'?" if close else ""))
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@common_options
@click.version_option(package_name="odf-workstation", prog_name="odf")
@click.pass_context
def cli(ctx: click.Context, **common: object) -> None:
    """Open Data Fabric in your terminal. Without a verb, `odf` opens the workstation.

    \b
    Begin with:  odf demo        a workspace with sample data, pulled and verified
                 odf init        an empty workspace in this folder
    """
    if ctx.invoked_subcommand is None:
        from odf_tui.cli.main import open_workstation
        from odf_tui.cli.output import options_of

        open_workstation(options_of(ctx).workspace)
