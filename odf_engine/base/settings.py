"""Settings (``.odf/config.yaml`` and the user's configuration): loading, changing, saving."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec

from odf_engine.base.atomic_files import read_small_file, replace_text_file, write_error
from odf_engine.base.config import (
    DURATION,
    DURATION_OR_NONE,
    ENGINE_ADDRESS,
    HOST_NAME,
    IN_WORKSPACE,
    Config,
    SettingsGroup,
)
from odf_engine.errors import InvalidManifest, UsageError, disk_hint, has_surrogates

CONFIG_FILE: Final = "config.yaml"

_HEAD: Final = (
    "# Settings of this workspace; commented lines show the defaults.\n"
    "# `odf config set KEY VALUE` overwrites this file: your own comments are lost.\n"
)
_USER_HEAD: Final = (
    "# Settings of all workspaces of this user; commented lines show the defaults.\n"
    "# `odf config set --user KEY VALUE` overwrites this file: your own comments are lost.\n"
)
_USER_WORKSPACE_HEAD: Final = (
    "# Settings of one workspace that are only read from here; commented lines show the defaults.\n"
    "# `odf config set KEY VALUE` overwrites this file: your own comments are lost.\n"
    "# Workspace: {}\n"
)


class Setting(msgspec.Struct, frozen=True, omit_defaults=True):
    """One setting in a list; ``key`` is dotted, such as ``spark.driverMemory``.

    ``choices`` are the possible values, or () if there are too many to list.
    """

    key: str
    value: Any
    default: Any
    description: str
    choices: tuple[str, ...] = ()


def user_folder() -> Path:
    """Return the folder of the user's configuration. It may not exist."""
    import platformdirs  # Deferred, as PyYAML and difflib: most commands do not need it.

    return platformdirs.user_config_path("odf")


def user_file() -> Path:
    """Return the path of the user's settings for all workspaces."""
    return user_folder() / CONFIG_FILE


def workspace_user_file(odf: Path) -> Path:
    """Return the path of the user's settings for one workspace.

    Args:
        odf: the workspace's ``.odf`` folder.
    """
    folder = odf.parent.resolve()
    name = re.sub(r"[^\w.-]+", "-", folder.name)[:40].strip("-.") or "workspace"
    fingerprint = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return user_folder() / "workspaces" / f"{name}-{fingerprint}.yaml"


def load_config(path: Path) -> Config:
    """Load the settings of one file. A missing file means all defaults.

    Raises:
        InvalidManifest: the file is unreadable or not YAML, or has an unknown key (the hint suggests the
            closest one) or an invalid value.
    """
    return msgspec.convert(read(path), Config)


def load_workspace(odf: Path) -> Config:
    """Load the effective settings of a workspace, merged from all files.

    Args:
        odf: the workspace's ``.odf`` folder.

    Raises:
        InvalidManifest: as :func:`load`, or the workspace's file has a setting that is only read from the
            user's configuration.
    """
    path = odf / CONFIG_FILE
    own = read(path)
    _check_harmless(own, path)
    files = (read(user_file()), own, read(workspace_user_file(odf)))
    return msgspec.convert(_merge(files), Config)


def is_user_setting(key: str) -> bool:
    """Return whether a setting is stored in the user's configuration instead of the workspace's file.

    Raises:
        UsageError: the key is unknown; the hint suggests the closest one.
    """
    return _find_field(_resolve(key)).in_workspace is not None


def save(config: Config, path: Path) -> None:
    """Replace the file of a workspace's settings atomically; defaults become comments."""
    replace_text_file(path, render(config))


def apply_change(path: Path, key: str, text: str | None) -> dict[str, Any]:
    """Return the settings of a file after a change of one of them; :func:`write` stores them.

    Args:
        path: the file, which may not exist.
        key: the setting.
        text: its value; None removes it from the file.

    Raises:
        UsageError: the key is unknown, or the value is invalid.
        InvalidManifest: the file cannot be read.
    """
    plain = read(path)
    config = set_value(msgspec.convert(plain, Config), key, text)
    *groups, name = _resolve(key)
    members = plain
    for group in groups:
        members = members.setdefault(group, {})
    if text is None:
        members.pop(name, None)
    else:
        members[name] = _get_nested(msgspec.to_builtins(config), (*groups, name))
    return plain


def write(plain: Mapping[str, Any], path: Path, odf: Path | None = None) -> None:
    """Replace a file of settings atomically; create its folder if it is missing.

    Args:
        plain: the settings, as returned by :func:`apply_change`.
        path: the file.
        odf: the ``.odf`` folder of the workspace that the settings apply to; None: all workspaces.

    Raises:
        OdfError: the file cannot be written.
    """
    if odf is None:
        head = _USER_HEAD
    else:
        head = _HEAD if path.parent == odf else _USER_WORKSPACE_HEAD.format(odf.parent.resolve())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(path, error) from error
    replace_text_file(path, _render(plain, head))


def render(config: Config) -> str:
    """Return the text of a workspace's settings file."""
    plain, defaults = msgspec.to_builtins(config), msgspec.to_builtins(Config())
    changed: dict[str, Any] = {}
    for path, _ in _leaves():
        if (value := _get_nested(plain, path)) != _get_nested(defaults, path):
            *groups, name = path
            members = changed
            for group in groups:
                members = members.setdefault(group, {})
            members[name] = value
    return _render(changed, _HEAD)


def _render(plain: Mapping[str, Any], head: str) -> str:
    """Return the text of a settings file; settings with their default value are comments."""
    lines: list[str] = []
    defaults = msgspec.to_builtins(Config())
    for field in _fields(Config):
        if _is_group(field.type):
            lines += [f"\n# {field.type.__doc__}", f"{field.name}:"]
            members = plain.get(field.name) or {}
            lines += [_render_line(item, members, defaults[field.name], "  ") for item in _fields(field.type)]
        else:
            lines.append(_render_line(field, plain, defaults))
    return head + "\n".join(lines) + "\n"


def list_settings(config: Config) -> list[Setting]:
    """Return every setting with its value, default and description, and the members of mappings."""
    result: list[Setting] = []
    plain, defaults = msgspec.to_builtins(config), msgspec.to_builtins(Config())
    for path, field in _leaves():
        value = _get_nested(plain, path)
        choices = ("false", "true") if field.type is bool else ()
        choices = get_args(field.type) if get_origin(field.type) is Literal else choices
        default = _get_nested(defaults, path)
        result.append(Setting(".".join(path), value, default, field.description, choices))
        if isinstance(value, dict):
            result += [
                Setting(".".join((*path, name)), text, None, "") for name, text in sorted(value.items())
            ]
    return result


def get_value(config: Config, key: str) -> Any:
    """Return the setting with this dotted key.

    Raises:
        UsageError: the key is unknown; the hint suggests the closest one.
    """
    path = _resolve(key)
    try:
        return _get_nested(msgspec.to_builtins(config), path)
    except KeyError:
        raise UsageError(f"'{key}' is not set") from None


def set_value(config: Config, key: str, text: str | None) -> Config:
    """Return a copy with this setting parsed from ``text``; None resets it to the default.

    Members of a mapping have their own keys, such as ``spark.conf.NAME``. A list is separated by commas, or
    is JSON.

    Raises:
        UsageError: the key is unknown, or the value is invalid.
    """
    if has_surrogates(f"{key}{text}"):
        raise UsageError(f"the setting is not UTF-8 text: {key}", hint="correct the key or the value")
    path = _resolve(key)
    plain = msgspec.to_builtins(config)
    group = _get_nested(plain, path[:-1])
    old = group.get(path[-1])
    if text is None:
        group.pop(path[-1], None)
    elif isinstance(old, dict):
        raise UsageError(f"'{key}' is a mapping", hint=f"set one of its members: {key}.NAME")
    else:
        is_list = isinstance(old, list) or path[0] in _LISTS
        group[path[-1]] = _parse_list(text) if is_list else text
    try:
        return msgspec.convert(plain, Config, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"invalid value '{text}' for {key}: {_format_validation_error(error)}") from None


def _parse_list(text: str) -> Any:
    """Parse a list: ``A,B`` or ``["A", "B"]``."""
    if text.lstrip().startswith("["):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UsageError(f"'{text}' is not a list in JSON: {error}") from None
    return [item.strip() for item in text.split(",") if item.strip()]


_LISTS: Final = ("allowedEnv", "labels")
"""Mappings whose members are lists."""


class _Field(NamedTuple):
    name: str
    type: Any
    description: str
    in_workspace: str | None  # see IN_WORKSPACE; None: all values


def _fields(group: type[SettingsGroup]) -> Iterator[_Field]:
    for field in msgspec.structs.fields(group):
        kind, description, in_workspace = field.type, "", None
        if get_origin(kind) is Annotated:
            kind, meta = get_args(kind)[:2]
            description = meta.description
            in_workspace = (meta.extra or {}).get(IN_WORKSPACE)
        yield _Field(field.encode_name, kind, description, in_workspace)


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, SettingsGroup)


def _leaves() -> Iterator[tuple[tuple[str, ...], _Field]]:
    for field in _fields(Config):
        if _is_group(field.type):
            yield from (((field.name, member.name), member) for member in _fields(field.type))
        else:
            yield (field.name,), field


def _find_field(keys: tuple[str, ...]) -> _Field:
    """Return the setting of a resolved key, which may be one of the setting's members."""
    return next(field for path, field in _leaves() if keys[: len(path)] == path)


def _get_nested(plain: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        plain = plain[part]
    return plain


def _resolve(key: str) -> tuple[str, ...]:
    known = {".".join(path): (path, field) for path, field in _leaves()}
    if key in known:
        return known[key][0]
    for dotted, (path, field) in known.items():
        if get_origin(field.type) is dict and key.startswith(dotted + "."):
            return (*path, key[len(dotted) + 1 :])
    from difflib import get_close_matches

    close = get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'?" if close else "settings: " + ", ".join(known)
    raise UsageError(f"unknown setting '{key}'", hint=hint)


_GROUPS: Final = frozenset(field.name for field in _fields(Config) if _is_group(field.type))


def _render_line(field: _Field, group: Mapping[str, Any], defaults: dict[str, Any], indent: str = "") -> str:
    value = group.get(field.name)
    prefix, value = ("# ", defaults[field.name]) if value in (None, {}) else ("", value)
    # JSON is YAML, and always fits on one line.
    return f"{indent}{prefix}{field.name}: {msgspec.json.encode(value).decode()}  # {field.description}"


def _is_blank(line: str) -> bool:
    line = line.strip()
    return not line or line.startswith("#") or (line.endswith(":") and line[:-1] in _GROUPS)


def _parse(text: str, path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise InvalidManifest(f"the settings are not valid YAML: {error.problem}", where=place) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an invalid date or number
        raise InvalidManifest(f"the settings are not valid YAML: {error}", where=str(path)) from None
    except RecursionError:
        raise InvalidManifest("the settings are nested too deeply", where=str(path)) from None


def read(path: Path) -> dict[str, Any]:
    """Return the validated settings of a file, or empty ones if it does not exist.

    Raises:
        InvalidManifest: as :func:`load`.
    """
    try:
        text = read_small_file(path).decode("utf-8")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError:
        raise InvalidManifest("the settings are not UTF-8 text", where=str(path)) from None
    except OSError as error:
        raise InvalidManifest(
            f"the settings cannot be read: {error.strerror or error}", where=str(path), hint=disk_hint(error)
        ) from None
    if all(map(_is_blank, text.splitlines())):
        return {}  # avoids the import of PyYAML, which would slow down every start
    return _validate(_parse(text, path), path)


def _validate(plain: Any, path: Path) -> dict[str, Any]:
    if not isinstance(plain, dict):
        raise InvalidManifest("the settings are not a mapping", where=str(path))
    # A group whose members are all comments reads as null.
    plain = {key: value for key, value in plain.items() if value is not None or key not in _GROUPS}
    for key, value in plain.items():
        keys = [f"{key}.{member}" for member in value] if isinstance(value, dict) else [str(key)]
        for dotted in keys:
            if dotted in _GROUPS:
                continue  # not a mapping: msgspec.convert reports it
            try:
                _resolve(dotted)
            except UsageError as error:
                raise InvalidManifest(error.message, where=str(path), hint=error.hint) from None
    if isinstance(sql := plain.get("sql"), dict) and sql.get("engine") == "datafusion":
        plain["sql"] = {**sql, "engine": "duckdb"}  # which replaced it
    try:
        msgspec.json.encode(msgspec.convert(plain, Config))
    except msgspec.ValidationError as error:
        raise InvalidManifest(_format_validation_error(error), where=str(path)) from None
    except UnicodeEncodeError as error:
        raise InvalidManifest(f"a value is not Unicode text: {error.object!r}", where=str(path)) from None
    return plain


def _merge(files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the settings of several files: later files override earlier ones, and mappings are merged."""
    merged: dict[str, Any] = {}
    for plain in files:
        for key, value in plain.items():
            previous = merged.get(key)
            if isinstance(value, dict) and isinstance(previous, dict):
                value = _merge((previous, value))
            merged[key] = value
    return merged


def _check_harmless(plain: Mapping[str, Any], path: Path) -> None:
    """Raise if the workspace's file has a setting that is only read from the user's configuration.

    Raises:
        InvalidManifest: it has one; ``where`` is its line.
    """
    for keys, field in _leaves():
        try:
            value = _get_nested(plain, keys)
        except KeyError:
            continue
        if field.in_workspace is None or not value:
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if re.fullmatch(field.in_workspace, text) is None:
            if isinstance(value, dict):
                keys = (*keys, next(iter(value)))
            key = shlex.quote(".".join(keys))
            raise InvalidManifest(
                f"{key} is not read from the workspace file, which may have another author",
                where=f"{path}:{_find_line(path, keys)}",
                # The hint omits the value, so that users review it before they set it.
                hint=f"to use it, set it in your own configuration: odf config set {key} VALUE; "
                f"to remove it: odf config set {key}",
            )


def _find_line(path: Path, keys: tuple[str, ...]) -> int:
    """Return the line number of a setting in a file."""
    import yaml

    node = yaml.compose(path.read_text(encoding="utf-8"))
    line = 1
    for key in keys:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        for name, value in pairs:
            if name.value == key:
                line, node = name.start_mark.line + 1, value
    return line


def _format_validation_error(error: msgspec.ValidationError) -> str:
    message, _, path = str(error).partition(" - at `$.")
    message = message[:1].lower() + message[1:].replace("`", "'")
    if repr(ENGINE_ADDRESS)[1:-1] in message:
        message = "not an address such as grpc://127.0.0.1:2884, nor container or container:IMAGE"
    elif repr(HOST_NAME)[1:-1] in message:
        message = "not a host name such as data.example.com"
    elif repr(DURATION)[1:-1] in message:
        message = "not a duration such as 0s, 30m, 12h or 1d"
    elif repr(DURATION_OR_NONE)[1:-1] in message:
        message = "not a duration such as 0s, 30m, 12h or 1d, nor none"
    return f"{path.rstrip('`')}: {message}" if path else message
