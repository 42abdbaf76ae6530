"""Settings of a workspace: ``.odf/config.yaml``, every key optional, documented where it is declared.

The file is written from these declarations: settings at their default stand there as comments.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin

import msgspec

from odf_engine.errors import InvalidManifest, UsageError
from odf_engine.workspace.setting_groups import (
    ENGINE_ADDRESS,
    Config,
    FetchConfig,
    PrepareConfig,
    SandboxConfig,
    ServeConfig,
    Settings,
    SparkConfig,
    SyncConfig,
    TransformConfig,
    UiConfig,
    WorkerConfig,
)
from odf_engine.workspace.small_files import write_text

__all__ = [
    "ENGINE_ADDRESS",
    "Config",
    "FetchConfig",
    "PrepareConfig",
    "SandboxConfig",
    "ServeConfig",
    "Setting",
    "Settings",
    "SparkConfig",
    "SyncConfig",
    "TransformConfig",
    "UiConfig",
    "WorkerConfig",
]

_HEAD: Final = (
    "# Settings of this workspace; a line behind '#' shows the default.\n"
    "# `odf config set KEY VALUE` writes this file anew: remarks of your own are lost then.\n"
)


class Setting(msgspec.Struct, frozen=True, omit_defaults=True):
    """One setting as people list it; ``key`` is dotted, such as ``spark.driverMemory``."""

    key: str
    value: Any
    default: Any
    description: str


def load(path: Path) -> Config:
    """Reads the settings; a missing file means all defaults.

    Raises:
        InvalidManifest: not YAML, an unknown key (the hint says which one may be meant) or a wrong value.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Config()
    except UnicodeDecodeError:
        raise InvalidManifest("the settings are not UTF-8 text", where=str(path)) from None
    except OSError as error:
        raise InvalidManifest(f"the settings cannot be read: {error.strerror}", where=str(path)) from None
    if all(map(_says_nothing, text.splitlines())):
        return Config()  # spares the import of the YAML reader, which every start would pay for
    return _convert(_parse(text, path), path)


def save(config: Config, path: Path) -> None:
    """Writes the settings, defaults as comments, replacing the file in one step."""
    write_text(path, render(config))


def render(config: Config) -> str:
    """The text of ``config.yaml``."""
    lines: list[str] = []
    plain, defaults = msgspec.to_builtins(config), msgspec.to_builtins(Config())
    for field in _fields(Config):
        value, default = plain[field.name], defaults[field.name]
        if _is_group(field.type):
            lines += [f"\n# {field.type.__doc__}", f"{field.name}:"]
            lines += [_line(member, value, default, "  ") for member in _fields(field.type)]
        else:
            lines.append(_line(field, plain, defaults))
    return _HEAD + "\n".join(lines) + "\n"


def list_values(config: Config) -> list[Setting]:
    """Every setting with its value, its default and what it does; members of mappings too."""
    found: list[Setting] = []
    plain, defaults = msgspec.to_builtins(config), msgspec.to_builtins(Config())
    for path, field in _leaves():
        value = _at(plain, path)
        found.append(Setting(".".join(path), value, _at(defaults, path), field.description))
        if isinstance(value, dict):
            found += [
                Setting(".".join((*path, name)), text, None, "") for name, text in sorted(value.items())
            ]
    return found


def get_value(config: Config, key: str) -> Any:
    """The setting with this dotted key.

    Raises:
        UsageError: there is no such key; the hint says which one may be meant.
    """
    path = _resolve(key)
    try:
        return _at(msgspec.to_builtins(config), path)
    except KeyError:
        raise UsageError(f"'{key}' is not set") from None


def set_value(config: Config, key: str, text: str | None) -> Config:
    """A copy with this setting read from ``text``; None puts the default back.

    Members of a mapping have keys of their own, such as ``spark.conf.NAME``; a list is written with
    commas, or as JSON.

    Raises:
        UsageError: there is no such key, or the value does not fit.
    """
    path = _resolve(key)
    plain = msgspec.to_builtins(config)
    group = _at(plain, path[:-1])
    old = group.get(path[-1])
    if text is None:
        group.pop(path[-1], None)
    elif isinstance(old, dict):
        raise UsageError(f"'{key}' is a mapping", hint=f"set one of its members: {key}.NAME")
    else:
        group[path[-1]] = _items(text) if path[0] == "allowedEnv" else text
    try:
        return msgspec.convert(plain, Config, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"'{text}' does not fit {key}: {_tidy(error)}") from None


def _items(text: str) -> Any:
    """A list as people write it: ``A,B`` or ``["A", "B"]``."""
    if text.lstrip().startswith("["):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise UsageError(f"'{text}' is not a list in JSON: {error}") from None
    return [item.strip() for item in text.split(",") if item.strip()]


class _Field(NamedTuple):
    name: str
    type: Any
    description: str


def _fields(group: type[Settings]) -> Iterator[_Field]:
    for field in msgspec.structs.fields(group):
        kind, description = field.type, ""
        if get_origin(kind) is Annotated:
            kind, meta = get_args(kind)[:2]
            description = meta.description
        yield _Field(field.encode_name, kind, description)


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Settings)


def _leaves() -> Iterator[tuple[tuple[str, ...], _Field]]:
    for field in _fields(Config):
        if _is_group(field.type):
            yield from (((field.name, member.name), member) for member in _fields(field.type))
        else:
            yield (field.name,), field


def _at(plain: Any, path: tuple[str, ...]) -> Any:
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
    raise UsageError(f"there is no setting '{key}'", hint=hint)


_GROUPS: Final = frozenset(field.name for field in _fields(Config) if _is_group(field.type))


def _line(field: _Field, group: dict[str, Any], defaults: dict[str, Any], indent: str = "") -> str:
    value = group[field.name]
    mark = "# " if value == defaults[field.name] else ""
    # JSON is YAML, and always fits on one line.
    return f"{indent}{mark}{field.name}: {msgspec.json.encode(value).decode()}  # {field.description}"


def _says_nothing(line: str) -> bool:
    line = line.strip()
    return not line or line.startswith("#") or (line.endswith(":") and line[:-1] in _GROUPS)


def _parse(text: str, path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise InvalidManifest(f"the settings are not valid YAML: {error.problem}", where=where) from None
    except (yaml.YAMLError, ValueError) as error:  # the latter: a number or a date that there is not
        raise InvalidManifest(f"the settings are not valid YAML: {error}", where=str(path)) from None
    except RecursionError:
        raise InvalidManifest("the settings nest too deeply", where=str(path)) from None


def _convert(plain: Any, path: Path) -> Config:
    if not isinstance(plain, dict):
        raise InvalidManifest("the settings are not a mapping", where=str(path))
    # A group whose members are all comments reads as null.
    plain = {key: value for key, value in plain.items() if value is not None or key not in _GROUPS}
    for key, value in plain.items():
        keys = [f"{key}.{member}" for member in value] if isinstance(value, dict) else [str(key)]
        for dotted in keys:
            if dotted in _GROUPS:
                continue  # not a mapping: the conversion says so
            try:
                _resolve(dotted)
            except UsageError as error:
                raise InvalidManifest(error.message, where=str(path), hint=error.hint) from None
    try:
        config = msgspec.convert(plain, Config)
        msgspec.json.encode(config)
    except msgspec.ValidationError as error:
        raise InvalidManifest(_tidy(error), where=str(path)) from None
    except UnicodeEncodeError as error:
        raise InvalidManifest(f"a value is not Unicode text: {error.object!r}", where=str(path)) from None
    return config


def _tidy(error: msgspec.ValidationError) -> str:
    message, _, place = str(error).partition(" - at `$.")
    message = message[:1].lower() + message[1:].replace("`", "'")
    if repr(ENGINE_ADDRESS)[1:-1] in message:
        message = "it is no address such as grpc://127.0.0.1:2884"
    return f"{place.rstrip('`')}: {message}" if place else message
