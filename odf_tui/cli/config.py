"""The verb about configuration: get, set, list."""

from __future__ import annotations

import sys

import click

from odf_engine.errors import UsageError
from odf_tui.cli.output import open_workspace, options_of, print_json, print_table, say, verb


@verb("config", example="odf config set spark.master spark://cluster:7077", json=True)
@click.argument("what", type=click.Choice(["get", "set", "list"]))
@click.argument("key", required=False)
@click.argument("value", required=False)
def config_verb(what: str, key: str | None, value: str | None) -> None:
    """Reads and changes the workspace's settings; `set KEY` without a value takes the default again."""
    from odf_engine.workspace import config

    path = open_workspace().odf / "config.yaml"
    settings = config.load(path)
    if what == "list":
        listed = config.listed(settings)
        if options_of().json:
            print_json(listed)
        else:
            print_table(["key", "value"], [[name, config.shown(item)] for name, item in listed.items()])
        return
    if key is None:
        raise UsageError("which setting?", hint="odf config list shows them all")
    if what == "get":
        found = config.get(settings, key)
        if options_of().json:
            print_json(found)
        else:
            sys.stdout.write(config.shown(found) + "\n")
        return
    config.set(path, key, value)
    say(f"{key} is now {config.shown(config.get(config.load(path), key))}")
    if key.startswith(("spark.", "worker.")):
        say("a running worker keeps its old settings: odf worker stop")
