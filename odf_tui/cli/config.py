"""The verb about configuration: get, set, list; and the keys of the workstation."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from odf_engine.errors import UsageError
from odf_engine.settings import CONFIG_FILE
from odf_tui.cli.output import open_workspace, options_of, print_json, print_table, say, verb

_KEYS: Final = "ui.keys."
_SAFE: Final = "safeDirectories"


@verb("config", example="odf config set spark.master spark://cluster:7077", json=True)
@click.argument("what", type=click.Choice(["get", "set", "list", "keys"]))
@click.argument("key", required=False)
@click.argument("value", required=False)
@click.option("--user", is_flag=True, help="In your own configuration, for all workspaces.")
def config_verb(what: str, key: str | None, value: str | None, user: bool) -> None:
    """Reads and changes settings; `set KEY` without a value removes the setting.

    Settings of the workspace override those of `--user`. Settings that start programs or load code, such
    as `spark.conf` and `engines`, are never read from the workspace's folder: `set` writes them to your
    own configuration, for this workspace.

    `keys` lists the actions of the workstation with their keys: `odf config set ui.keys.ACTION KEY,KEY`
    gives one other keys, and `none` takes them away.
    """
    from odf_engine import settings as config

    odf = None if user else open_workspace().odf
    if what == "set":
        if key is None:
            raise _no_key()
        _set(key, value, odf)
        return
    settings = config.load(config.user_file()) if odf is None else config.load_workspace(odf)
    if what == "list":
        listed = config.list_settings(settings)
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
        raise _no_key()
    found = config.get_value(settings, key)
    if options_of().json:
        print_json(found)
    else:
        sys.stdout.write(_shown(found) + "\n")


def _no_key() -> UsageError:
    return UsageError("which setting?", hint="odf config list shows them all")


def _set(key: str, value: str | None, odf: Path | None) -> None:
    """Changes a setting for the workspace of an ``.odf`` folder; None: for all workspaces of the user."""
    from odf_engine import settings

    is_own = settings.is_user_setting(key)
    if key == _SAFE and odf is not None and value is not None:
        raise UsageError(
            f"{_SAFE} is for all workspaces", hint=f"odf config set --user {_SAFE} {shlex.quote(value)}"
        )
    path = (
        settings.user_file()
        if odf is None
        else settings.workspace_user_file(odf)
        if is_own
        else odf / CONFIG_FILE
    )
    is_written = value is not None or path.exists()
    if is_written:
        plain = settings.apply_change(path, key, value)
        if key.startswith(_KEYS) and value is not None:
            _check_key(key.removeprefix(_KEYS), plain["ui"]["keys"])
        settings.write(plain, path, odf)
    if odf is not None and is_own and (odf / CONFIG_FILE).exists():
        # Where it is not read any more, and would be an error.
        settings.write(settings.apply_change(odf / CONFIG_FILE, key, None), odf / CONFIG_FILE, odf)
    say(f"{key} is not set any more" if value is None else f"{key} is now {value}")
    if is_written and (odf is None or is_own):
        say(f"written to your own configuration: {path}")
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
    from odf_tui.actions.keymap import key_name

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
