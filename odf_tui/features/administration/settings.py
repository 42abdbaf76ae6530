"""SettingsController: shows all settings with their documentation, and changes them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from odf_engine.api import Config, Setting, set_value
from odf_engine.api.text import printable
from odf_engine.errors import OdfError
from odf_tui.actions.user_keys import check_key_setting
from odf_tui.services.controller import Controller, task
from odf_tui.text.format import Span, error_with_hint, format_setting
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.form import DescribedPicker, Field, FormDialog, FormValues, required

_WORKSPACE: Final = "workspace"
_USER: Final = "user"
_SCOPES: Final = ((_WORKSPACE, "this workspace"), (_USER, "all my workspaces"))
_USER_ONLY: Final = "safeDirectories"


class SettingsController(Controller):
    """Lists the settings, and changes one at a time."""

    @task
    async def show_settings(self) -> None:
        """List the settings, and change those that the user selects."""
        key = ""
        while True:
            settings = await asyncio.to_thread(self.workspace.settings)
            by_key = {setting.key: setting for setting in settings}
            about = {setting.key: setting_lines(setting, by_key) for setting in settings}
            dialog = DescribedPicker("Settings", list(map(_choice, settings)), about, typing=True)
            dialog.cursor = list(by_key).index(key) if key in by_key else 0
            picked = await self.host.ask(dialog)
            if picked is None:
                return
            key = picked
            try:
                await self._change(by_key[key], by_key)
            except OdfError as error:
                self.host.notice(error_with_hint(error), "bad")

    async def _change(self, setting: Setting, known: dict[str, Setting]) -> None:
        """Request a new value, and store it."""

        def check(form: FormValues) -> str:
            try:
                if not form.flag("remove"):
                    config = Config()  # the value is checked alone: others may be invalid
                    set_value(config, changed_key(setting, form), form.text("value"))
            except OdfError as error:
                return error_with_hint(error)
            return ""

        lines = setting_lines(setting, known)
        form = await self.host.ask(
            FormDialog(setting.key, setting_fields(setting), "stores", lines=lines, check=check)
        )
        if form is None:
            return
        key = changed_key(setting, form)
        value = None if form.flag("remove") else form.text("value")
        is_user = form.text("scope") == _USER
        change = partial(self.workspace.change_setting, user=is_user, check=partial(check_key_setting, key))
        path = await asyncio.to_thread(change, key, value)
        done = f"removed {key}" if value is None else f"set {key} to {printable(value)}"
        effect = _effect(key)
        if path is not None and not is_user and path.parent != self.workspace.folder / ".odf":
            effect = f"; written to {path}{effect}"
        self.host.notice(f"{done}{effect}")


def _effect(key: str) -> str:
    """Return when a change takes effect, unless it does so immediately."""
    if key.startswith(("spark.", "worker.")):
        return "; effective after odf worker stop"
    return "; effective at the next start of the workstation" if key.startswith("ui.") else ""


def _choice(setting: Setting) -> Choice:
    changed = "  changed" if setting.value != setting.default else ""
    return Choice(setting.key, setting.key, remark=f"{format_setting(setting.value)}{changed}")


def _is_mapping(setting: Setting) -> bool:
    return isinstance(setting.default, dict)


def changed_key(setting: Setting, form: FormValues) -> str:
    """Return the key that a form changes. In a mapping it is a member's key."""
    return f"{setting.key}.{form.text('name')}" if _is_mapping(setting) else setting.key


def setting_fields(setting: Setting) -> list[Field]:
    """Return the fields for a change of a setting."""
    fields: list[Field] = []
    if _is_mapping(setting):
        check = required("enter the name of a member")
        fields.append(Field("name", "name", f"Name of the member of {setting.key}.", check=check))
        fields.append(Field("value", "value", "Value of the member."))
    elif setting.choices:
        choices = tuple((choice, choice) for choice in setting.choices)
        fields.append(Field("value", "value", "The new value.", format_setting(setting.value), choices))
    else:
        fields.append(Field("value", "value", "The new value.", format_setting(setting.value)))
    scopes = _SCOPES[1:] if setting.key == _USER_ONLY else _SCOPES
    return [
        *fields,
        Field("scope", "applies to", "A setting of a workspace precedes that of the user.",
              scopes[0][0], scopes),
        Field("remove", "remove", "Remove the setting from this file instead: the default applies.",
              value=False),
    ]  # fmt: skip


def setting_lines(setting: Setting, known: dict[str, Setting]) -> list[list[Span]]:
    """Return the documentation of a setting; a member of a mapping has the mapping's."""
    parent = known.get(setting.key.rpartition(".")[0])
    described = parent if parent is not None and not setting.description else setting
    lines: list[list[Span]] = [[(f" {described.description}", "")]]
    value = format_setting(setting.value) or "empty"
    lines.append([(" value    ", "muted"), (printable(value), "strong")])
    if described is setting:
        default = format_setting(setting.default) or "empty"
        lines.append([(" default  ", "muted"), (printable(default), "")])
    return lines
