"""Read and change settings.

Settings of the workspace override settings of the user. Settings that start programs or load code, such as
spark.conf and engines, are never read from the folder of the workspace.
"""

from __future__ import annotations

import sys
from functools import partial

import click

from odf_engine.api import Config, get_value, is_user_setting, load_config, user_file
from odf_engine.api import list_settings as all_settings
from odf_engine.api.administration import change_setting
from odf_tui.actions import user_keys
from odf_tui.actions.model import key_name
from odf_tui.cli.shared.options import CommandGroup, options_of
from odf_tui.cli.shared.output import print_json, print_note, print_table
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.text.format import format_setting

ORDER = 470
MEANINGS = "settings set options preferences"

_user_option = click.option(
    "--user", is_flag=True, help="Use the configuration of the user, for all workspaces."
)

command = CommandGroup("config", help=__doc__, example="odf config set spark.master spark://cluster:7077")


@command.subcommand("get", example="odf config get spark.master", json=True)
@click.argument("key")
@_user_option
def get(key: str, user: bool) -> None:
    """Print a setting."""
    value = get_value(_load_config(user), key)
    if options_of().json:
        print_json(value)
    else:
        sys.stdout.write(format_setting(value) + "\n")


@command.subcommand("set", example="odf config set spark.master spark://cluster:7077")
@click.argument("key")
@click.argument("value", required=False)
@_user_option
def set_(key: str, value: str | None, user: bool) -> None:
    """Change a setting, or remove it if VALUE is missing.

    Settings that start programs or load code are written to the configuration of the user, for this
    workspace only.

    `odf config set ui.keys.ACTION KEY,KEY` changes the keys of an action, and the value none removes them.
    """
    check = partial(user_keys.check_key_setting, key)
    if user:
        path = change_setting(key, value, None, check)
    else:
        path = open_workspace().change_setting(key, value, check=check)
    print_note(f"removed {key}" if value is None else f"set {key} to {value}")
    if path is not None and (user or is_user_setting(key)):
        print_note(f"written to the configuration of the user: {path}")
    if key.startswith(("spark.", "worker.")):
        print_note("a running worker uses the old settings until it is restarted: run odf worker stop")


@command.subcommand("list", example="odf config list", json=True)
@_user_option
def list_settings(user: bool) -> None:
    """List all settings."""
    entries = all_settings(_load_config(user))
    if options_of().json:
        print_json({entry.key: entry.value for entry in entries})
    else:
        print_table(
            ["key", "value", "description"],
            [[entry.key, format_setting(entry.value), entry.description] for entry in entries],
        )


@command.subcommand("keys", example="odf config keys", json=True)
@_user_option
def list_keys(user: bool) -> None:
    """List the actions of the workstation with their keys."""
    bindings, problems = user_keys.load(_load_config(user).ui.keys, user_keys.user_keys_path())
    if options_of().json:
        print_json({action.id: list(action.keys) for action in bindings.actions})
        return
    print_table(
        ["action", "keys", "scope", "description"],
        [
            [
                action.id,
                " ".join(map(key_name, action.keys)) or bindings.display_key(action.id) or "none",
                action.scope,
                action.title,
            ]
            for action in bindings.actions
        ],
    )
    for problem in problems:
        print_note(f"! {problem}")


def _load_config(user: bool) -> Config:
    return load_config(user_file()) if user else open_workspace().saved_config()
