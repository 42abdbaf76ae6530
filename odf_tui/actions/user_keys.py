"""Keys changed by the user, in the workspace or in keys.yaml: normalised and checked for clashes."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from textual.keys import _character_to_key

from odf_engine.api import read_small_file, user_folder
from odf_engine.errors import UsageError
from odf_tui.actions.model import ANYWHERE, KeyMap, key_name
from odf_tui.actions.table import DEFAULT_KEYMAP

SETTING: Final = "ui.keys."
KeyOverrides = Mapping[str, str | Sequence[str]]

_CHARACTER_KEYS: Final = frozenset(
    map(_character_to_key, string.ascii_letters + string.digits + string.punctuation)
)
_NAMED_KEYS: Final = frozenset(
    {
        *("up", "down", "left", "right", "home", "end", "pageup", "pagedown"),
        *("tab", "shift+tab", "enter", "escape", "space"),
        *(f"f{number}" for number in range(1, 13)),
    }
)
PORTABLE_KEYS: Final = _CHARACTER_KEYS | _NAMED_KEYS | {f"ctrl+{letter}" for letter in "cdfgloprsu"}
"""The keys that all terminals send, also through SSH, tmux and screen."""

_KEY_ALIASES: Final = {
    "esc": "escape", "return": "enter", "pgup": "pageup", "pgdn": "pagedown", "page_up": "pageup",
    "page_down": "pagedown",
}  # fmt: skip
_UNUSABLE_KEYS: Final = {
    "ctrl+m": "terminals send it as enter",
    "ctrl+i": "terminals send it as tab",
    "ctrl+h": "terminals send it as backspace",
    "ctrl+j": "terminals send it as enter",
    "ctrl+b": "tmux intercepts it",
    "ctrl+a": "screen intercepts it",
    "ctrl+z": "it suspends programs",
    "ctrl+q": "it always quits, and terminals may intercept it",
}


def user_keys_path() -> Path:
    """Return the path of the user's keys for all workspaces. The file may not exist."""
    return user_folder() / "keys.yaml"


def load(overrides: KeyOverrides, file: Path | None = None) -> tuple[KeyMap, list[str]]:
    """Return the keys in use, and the problems of the changed ones.

    Args:
        overrides: keys of the workspace, by id of the action. They precede the file's keys.
        file: a YAML file with keys for all workspaces. It may not exist.
    """
    problems: list[str] = []
    user_overrides = _read_overrides(file, problems) if file is not None else {}
    merged = {**user_overrides, **overrides}
    if not merged:
        return DEFAULT_KEYMAP, problems
    return _apply_overrides(merged, problems), problems


def _read_overrides(file: Path, problems: list[str]) -> dict[str, Any]:
    try:
        text = read_small_file(file).decode("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{file} cannot be read: {error}")
        return {}
    import yaml  # imported here for a fast start: most users have no such file

    try:
        content = yaml.safe_load(text)
        # Escapes may be invalid UTF-8.
        json.dumps(content, default=str, skipkeys=True, ensure_ascii=False).encode()
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also invalid dates and deep nesting
        problems.append(f"{file} is not valid YAML: {' '.join(str(error).split())}")
        return {}
    if content is None:
        return {}
    if not isinstance(content, dict):
        problems.append(f"{file} is not a mapping of actions to keys, such as 'pull: ctrl+l'")
        return {}
    return {str(name): keys for name, keys in content.items()}


def _apply_overrides(overrides: Mapping[str, Any], problems: list[str]) -> KeyMap:
    keys: dict[str, list[str]] = {}
    for name, value in overrides.items():
        if name not in DEFAULT_KEYMAP.by_id:
            similar = get_close_matches(name, DEFAULT_KEYMAP.by_id, n=1, cutoff=0.5)
            problems.append(f"unknown action '{name}'" + (f": did you mean {similar[0]}?" if similar else ""))
            continue
        parsed = [_parse_key(text, name, problems) for text in _split_keys(value)]
        valid = list(dict.fromkeys(key for key in parsed if key))
        if valid or not parsed:
            keys[name] = valid
    return _resolve_clashes(keys, problems)


def _split_keys(value: Any) -> list[str]:
    """Return the keys of an entry, or an empty list for ``none``."""
    if value is None or value is False:  # YAML reads `null` and `no` as these
        return []
    if isinstance(value, list | tuple):
        return [str(key) for key in value]
    text = str(value).strip()
    if text.lower() in ("none", ""):
        return []
    return [text] if text == "," else [part.strip() for part in text.split(",") if part.strip()]


def _parse_key(text: str, action: str, problems: list[str]) -> str | None:
    """Return the name of a key in Textual, or None for one that terminals do not send."""
    key = normalize_key(text)
    is_letter = len(key) == 1 and key.isalpha()  # such as ü
    if key in PORTABLE_KEYS or is_letter:
        return key
    if key in _UNUSABLE_KEYS:
        reason = _UNUSABLE_KEYS[key]
    elif key.startswith(("alt+", "meta+", "super+", "ctrl+", "shift+")):
        reason = "many terminals do not pass it on"
    else:
        reason = "unknown key"
    problems.append(f"{action}: {text} cannot be used: {reason}")
    return None


def normalize_key(text: str) -> str:
    """Return the name of a key in Textual for its notations: ``/``, ``^l``, ``C-l``, ``Ctrl+L``, ``esc``."""
    text = text.strip()
    if len(text) == 1:
        return _character_to_key(text)
    if len(text) == 2 and text[0] == "^":
        return f"ctrl+{text[1].lower()}"
    text = text.lower().replace(" ", "_")
    if text.startswith(("c-", "ctrl-")):
        text = "ctrl+" + text.partition("-")[2]
    return _KEY_ALIASES.get(text, text)


def _resolve_clashes(keys: Mapping[str, list[str]], problems: list[str]) -> KeyMap:
    """Remove changed keys that another action of the same scope uses."""
    assigned = {name: list(names) for name, names in keys.items()}
    for name in keys:
        scope = DEFAULT_KEYMAP.by_id[name].scope
        for key in keys[name]:
            for other in DEFAULT_KEYMAP.actions:
                if other.id == name or other.scope != scope or key not in assigned.get(other.id, other.keys):
                    continue
                assigned[name].remove(key)
                place = "" if scope == ANYWHERE else f" in pane {scope}"
                problems.append(f"{name}: {key_name(key)} is already used by {other.id}{place}")
                break
        if keys[name] and not assigned[name]:
            del assigned[name]  # the default keys are used, except those that other actions use now
            taken = {
                key
                for other in DEFAULT_KEYMAP.actions
                if other.id != name and other.scope == scope
                for key in assigned.get(other.id, other.keys)
            }
            assigned[name] = [key for key in DEFAULT_KEYMAP.by_id[name].keys if key not in taken]
    return DEFAULT_KEYMAP.with_keys(assigned)


def check_key_setting(key: str, settings: Mapping[str, Any]) -> None:
    """Check a setting of keys as the workstation does at its start. Other settings are not checked.

    Args:
        key: the changed setting, such as ``ui.keys.quit``.
        settings: all settings of the file, with the change.

    Raises:
        UsageError: unknown action, or a key that terminals do not send or that another action has.
    """
    action = key.removeprefix(SETTING)
    if action == key:
        return
    _, problems = load(settings["ui"]["keys"])
    own_problems = [
        problem for problem in problems if problem.startswith(f"{action}:") or f"action '{action}'" in problem
    ]
    if own_problems:
        raise UsageError(
            "; ".join(own_problems), hint="run odf config keys to see the actions and their keys"
        )
