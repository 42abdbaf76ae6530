"""Keys that a user has changed, for a workspace or in keys.yaml; normalised and checked for clashes."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from textual.keys import _character_to_key

from odf_engine.settings import user_folder
from odf_engine.storage.atomic_files import read_small_file
from odf_tui.actions.model import ANYWHERE, KeyMap, key_name
from odf_tui.actions.table import DEFAULT_KEYMAP

KeyOverrides = Mapping[str, str | Sequence[str]]

_CHARACTER_KEYS: Final = frozenset(
    map(_character_to_key, string.ascii_letters + string.digits + string.punctuation)
)
_NAMED_KEYS: Final = frozenset(
    {
        *("up", "down", "left", "right", "home", "end", "pageup", "pagedown"),
        *("tab", "shift+tab", "enter", "escape", "space", "f1"),
    }
)
PORTABLE_KEYS: Final = _CHARACTER_KEYS | _NAMED_KEYS | {f"ctrl+{letter}" for letter in "cdfgloprsu"}
"""The keys that every terminal passes on, also through SSH, tmux and screen."""

_KEY_ALIASES: Final = {
    "esc": "escape", "return": "enter", "pgup": "pageup", "pgdn": "pagedown", "page_up": "pageup",
    "page_down": "pagedown",
}  # fmt: skip
_UNUSABLE_KEYS: Final = {
    "ctrl+m": "terminals send it as enter",
    "ctrl+i": "terminals send it as tab",
    "ctrl+h": "terminals send it as backspace",
    "ctrl+j": "terminals send it as enter",
    "ctrl+b": "tmux keeps it for itself",
    "ctrl+a": "screen keeps it for itself",
    "ctrl+z": "it stops programs",
    "ctrl+q": "it always leaves, and terminals may keep it",
}


def user_keys_path() -> Path:
    """Where a person's keys for all workspaces are, if they have changed any."""
    return user_folder() / "keys.yaml"


def load(overrides: KeyOverrides, file: Path | None = None) -> tuple[KeyMap, list[str]]:
    """The keys to use, and what is wrong with those that were overrides.

    Args:
        overrides: of the workspace; they win over those of the file.
        file: of the person, for all workspaces; it need not be there.
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
    import yaml  # not at the top: most people have no such file

    try:
        found = yaml.safe_load(text)
        json.dumps(found, default=str, skipkeys=True, ensure_ascii=False).encode()  # escapes may be no text
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the latter: no date, nested too deeply
        problems.append(f"{file} is not valid YAML: {' '.join(str(error).split())}")
        return {}
    if found is None:
        return {}
    if not isinstance(found, dict):
        problems.append(f"{file} is no list of actions and their keys, such as 'pull: ctrl+l'")
        return {}
    return {str(name): keys for name, keys in found.items()}


def _apply_overrides(overrides: Mapping[str, Any], problems: list[str]) -> KeyMap:
    keys: dict[str, list[str]] = {}
    for name, value in overrides.items():
        if name not in DEFAULT_KEYMAP.by_id:
            similar = get_close_matches(name, DEFAULT_KEYMAP.by_id, n=1, cutoff=0.5)
            problems.append(f"there is no action '{name}'" + (f": {similar[0]}?" if similar else ""))
            continue
        found = [_parse_key(text, name, problems) for text in _split_keys(value)]
        valid = list(dict.fromkeys(key for key in found if key))
        if valid or not found:
            keys[name] = valid
    return _resolve_clashes(keys, problems)


def _split_keys(value: Any) -> list[str]:
    """The keys of an entry as texts; ``none`` is no key."""
    if value is None or value is False:  # how YAML reads `none`'s relatives
        return []
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    text = str(value).strip()
    if text.lower() in ("none", ""):
        return []
    return [text] if text == "," else [part.strip() for part in text.split(",") if part.strip()]


def _parse_key(text: str, action: str, problems: list[str]) -> str | None:
    """A key as Textual names it; None for one that would not arrive."""
    key = normalize_key(text)
    if key in PORTABLE_KEYS:
        return key
    if key in _UNUSABLE_KEYS:
        reason = _UNUSABLE_KEYS[key]
    elif key.startswith(("alt+", "meta+", "super+", "ctrl+", "shift+")):
        reason = "many terminals do not pass it on"
    elif key[:1] == "f" and key[1:].isdigit():
        reason = "terminals and desktops keep it for themselves"
    else:
        reason = "it is no key"
    problems.append(f"{action}: {text} cannot be used, {reason}")
    return None


def normalize_key(text: str) -> str:
    """A key, however it is written, as Textual names it: ``/``, ``^l``, ``C-l``, ``Ctrl+L``, ``esc``."""
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
    """Two actions of a scope do not share a key: the one that was changed gives way."""
    assigned = {name: list(found) for name, found in keys.items()}
    for name in keys:
        scope = DEFAULT_KEYMAP.by_id[name].scope
        for key in keys[name]:
            for other in DEFAULT_KEYMAP.actions:
                if other.id == name or other.scope != scope or key not in assigned.get(other.id, other.keys):
                    continue
                assigned[name].remove(key)
                where = "" if scope == ANYWHERE else f" in the pane of {scope}"
                problems.append(f"{name}: {key_name(key)} is the key of {other.id}{where}")
                break
        if keys[name] and not assigned[name]:
            del assigned[name]  # the usual keys come back; they may be taken by now
            taken = {
                key
                for other in DEFAULT_KEYMAP.actions
                if other.id != name and other.scope == scope
                for key in assigned.get(other.id, other.keys)
            }
            assigned[name] = [key for key in DEFAULT_KEYMAP.by_id[name].keys if key not in taken]
    return DEFAULT_KEYMAP.with_keys(assigned)
