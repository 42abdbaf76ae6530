"""The verb about configuration: get, set, list; and the keys of the workstation."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click

from odf_engine.errors import UsageError
from odf_tui.cli.output import open_workspace, options_of, print_json, print_table, say, verb

_KEYS: Final = "ui.keys."


@verb("config", example="odf config set spark.master spark://cluster:7077", json=True)
@click.argument("what", type=click.Choice(["get", "set", "list", "keys"]))
@click.argument("key", required=False)
@click.argument("value", required=False)
def config_verb(what: str, key: str | None, value: str | None) -> None:
    """Reads and changes the workspace's settings; `set KEY` without a value takes the default again.

    `keys` lists the actions of the workstation with their keys: `odf config set ui.keys.ACTION KEY,KEY`
    gives one other keys, and `none` takes them away.
    """
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
    if what == "keys":
        _list_keys(settings.ui.keys)
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
    if key.startswith(_KEYS) and value is not None:
        _check_key(key.removeprefix(_KEYS), changed.ui.keys)
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


def _list_keys(keys: Mapping[str, str | Sequence[str]]) -> None:
    from odf_tui import keymap
    from odf_tui.actions import key_name

    found, problems = keymap.load(keys, keymap.own_file())
    if options_of().json:
        print_json({action.id: list(action.keys) for action in found.actions})
        return
    print_table(
        ["action", "keys", "where", "what it does"],
        [
            [action.id, " ".join(map(key_name, action.keys)) or "none", action.scope, action.title]
            for action in found.actions
        ],
    )
    for problem in problems:
        say(f"! {problem}")


def _check_key(action: str, keys: Mapping[str, str | Sequence[str]]) -> None:
    """Refuses what the workstation would complain of at its start.

    Raises:
        UsageError: there is no such action, or a key that does not arrive or is another action's.
    """
    from odf_tui import keymap

    _, problems = keymap.load(keys)
    told = [
        problem
        for problem in problems
        if problem.startswith((f"{action}:", f"there is no action '{action}'"))
    ]
    if told:
        raise UsageError("; ".join(told), hint="the actions and their keys: odf config keys")
