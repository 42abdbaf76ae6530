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

    path = open_workspace().config_path
    settings = config.load(path)
    if what == "list":
        listed = config.list_values(settings)
        if options_of().json:
            print_json({each.key: each.value for each in listed})
        else:
            print_table(
                ["key", "value", "what it does"],
                [[each.key, _shown(each.value), each.description] for each in listed],
            )
        return
    if key is None:
        raise UsageError("which setting?", hint="odf config list shows them all")
    if what == "get":
        found = config.get_value(settings, key)
        if options_of().json:
            print_json(found)
        else:
            sys.stdout.write(_shown(found) + "\n")
        return
    changed = config.set_value(settings, key, value)
    config.save(changed, path)
    say(f"{key} has its default again" if value is None else f"{key} is now {value}")
    if key.startswith(("spark.", "worker.")):
        say("a running worker keeps its old settings: odf worker stop")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={_shown(text)}" for name, text in value.items())
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
