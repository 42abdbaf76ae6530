"""Settings (``.odf/config.yaml`` and the user's configuration): declarations, defaults, loading, saving."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Meta

from odf_engine.errors import InvalidManifest, UsageError, disk_hint, has_surrogates
from odf_engine.storage.atomic_files import read_small_file, replace_text_file, write_error

IN_WORKSPACE: Final = "in-workspace"
"""Key in the ``extra`` of a setting: a regular expression of the values that the workspace's file may set.

A workspace may have another author, for example when it was unpacked from an archive. A setting that starts
programs, loads code, sends data to other hosts or weakens the sandbox is therefore read only from the user's
own configuration. The values that the expression matches do none of this.
"""
_NEVER: Final = {IN_WORKSPACE: ""}


class SettingsGroup(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A group of settings."""


class SparkConfig(SettingsGroup, frozen=True):
    """Spark."""

    master: Annotated[
        str,
        Meta(
            min_length=1,
            description="where Spark runs: local[N], local[*], spark://HOST:7077, yarn, k8s://…",
            extra={IN_WORKSPACE: r"local(\[[0-9*, ]+\])?"},
        ),
    ] = "local[*]"
    driver_memory: Annotated[
        str, Meta(pattern=r"^[1-9][0-9]*[kKmMgGtT]$", description="memory of the Java process, such as 2g")
    ] = "1500m"
    conf: Annotated[
        dict[str, str],
        Meta(description="other Spark settings by their names", extra=_NEVER),
    ] = {}


class WorkerConfig(SettingsGroup, frozen=True):
    """The background process that runs jobs."""

    idle_minutes: Annotated[float, Meta(gt=0, description="minutes without a job until the worker stops")] = (
        30
    )
    spark_idle_minutes: Annotated[
        float, Meta(gt=0, description="minutes without a job until Spark stops, to free its memory")
    ] = 10
    max_jobs: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="maximum number of concurrent jobs; remote transfers are counted separately",
        ),
    ] = 2


class FetchConfig(SettingsGroup, frozen=True):
    """Network access to sources."""

    connect_timeout_seconds: Annotated[float, Meta(gt=0, description="timeout for connecting")] = 30
    read_timeout_seconds: Annotated[float, Meta(gt=0, description="maximum time without receiving data")] = 60
    retries: Annotated[
        int, Meta(ge=0, le=20, description="retries after a broken connection or a 5xx response")
    ] = 3
    max_redirects: Annotated[int, Meta(ge=0, le=50, description="maximum number of redirects")] = 10
    longest_pause_seconds: Annotated[
        float,
        Meta(gt=0, description="maximum pause before a retry; a transfer fails if the server requests more"),
    ] = 60
    s3_endpoint: Annotated[str, Meta(description="URL of the S3 service; by default Amazon")] = ""
    s3_region: Annotated[
        str, Meta(description="region of the S3 service; by default from the environment or the bucket")
    ] = ""
    s3_anonymous: Annotated[
        bool, Meta(description="access S3 without credentials, as for public buckets")
    ] = False
    container_runtime: Annotated[
        str,
        Meta(
            min_length=1,
            description="container runtime: auto, podman, docker, or the path of a program",
            extra={IN_WORKSPACE: "auto|podman|docker"},
        ),
    ] = "auto"
    container_memory: Annotated[
        str,
        Meta(
            pattern=r"^([1-9][0-9]*[kKmMgG])?$",
            description="memory limit of a container, such as 2g; empty: no limit",
        ),
    ] = "2g"


class SyncConfig(SettingsGroup, frozen=True):
    """Pull and push of datasets; timeouts as in fetch."""

    parallel: Annotated[int, Meta(ge=1, le=64, description="maximum number of concurrent file transfers")] = 4
    most_message_bytes: Annotated[
        int,
        Meta(
            ge=1 << 16,
            description="maximum message size of a smart transfer, in bytes; most servers accept 64 MiB",
        ),
    ] = 64 << 20
    ipfs_gateway: Annotated[
        str, Meta(pattern=r"^https?://[^/?#]+(/.*)?$", description="gateway for ipfs: and ipns: URLs")
    ] = "http://localhost:8080"


class ServeConfig(SettingsGroup, frozen=True):
    """Limits for clients of `odf serve`."""

    connections: Annotated[int, Meta(ge=1, le=65_536, description="maximum number of open connections")] = (
        1024
    )
    connections_each: Annotated[
        int, Meta(ge=1, description="maximum number of open connections per client address")
    ] = 512
    sessions: Annotated[int, Meta(ge=1, description="maximum number of concurrent smart pulls")] = 128
    sessions_each: Annotated[
        int, Meta(ge=1, description="maximum number of smart pulls per client address")
    ] = 80
    pushes: Annotated[int, Meta(ge=1, le=64, description="maximum number of concurrent pushes")] = 4
    idle_seconds: Annotated[
        float, Meta(gt=0, description="idle time after which a client is disconnected")
    ] = 60
    session_minutes: Annotated[float, Meta(gt=0, description="maximum duration of a transfer")] = 720
    most_message_bytes: Annotated[
        int, Meta(ge=1 << 16, description="maximum message size of a smart transfer, in bytes")
    ] = 64 << 20
    most_push_blocks: Annotated[int, Meta(ge=1, description="maximum number of blocks per push")] = 1_000_000
    most_push_objects: Annotated[
        int, Meta(ge=0, description="maximum number of slices and checkpoints per push")
    ] = 100_000
    most_push_bytes: Annotated[
        int, Meta(ge=0, description="maximum size of a push, blocks and objects together, in bytes")
    ] = 1 << 40
    behind_proxy: Annotated[
        bool, Meta(description="trust X-Forwarded headers, which a proxy in front of the server sets")
    ] = False


class PrepareConfig(SettingsGroup, frozen=True):
    """Limits for unpacked and piped data, against archives that would fill the disk."""

    most_bytes: Annotated[int, Meta(ge=1, description="maximum output size of a prepare step, in bytes")] = (
        256 << 30
    )
    most_ratio: Annotated[
        int, Meta(ge=1, description="maximum ratio of unpacked to packed size; applies above 256 MiB")
    ] = 250


_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
DURATION: Final = r"^[0-9]{1,9}[smhdw]$"
DURATION_OR_NONE: Final = r"^([0-9]{1,9}[smhdw]|none)$"


class WatermarkConfig(SettingsGroup, frozen=True):
    """Watermarks of root datasets, by dataset: a name, an id, or a pattern such as % for all."""

    max_ahead: Annotated[
        dict[str, Annotated[str, Meta(pattern=DURATION_OR_NONE)]],
        Meta(
            description="how far the watermark may pass the system time, such as 12h; none: no limit; "
            "default: 0s"
        ),
    ] = {}
    delay: Annotated[
        dict[str, Annotated[str, Meta(pattern=DURATION)]],
        Meta(description="how far the watermark stays behind the latest event time, such as 1d; default: 0s"),
    ] = {}

    def max_ahead_of(self, *names: str) -> int | None:
        """Return how far the watermark of a dataset may pass the system time, in seconds; None: no limit.

        Args:
            names: the alias and the id of the dataset.
        """
        text = _value_for(self.max_ahead, names) or "0s"
        return None if text == "none" else _parse_duration(text)

    def delay_of(self, *names: str) -> int:
        """Return how far the watermark of a dataset stays behind the latest event time, in seconds.

        Args:
            names: the alias and the id of the dataset.
        """
        return _parse_duration(_value_for(self.delay, names) or "0s")


def _parse_duration(text: str) -> int:
    return int(text[:-1]) * _SECONDS[text[-1]]


def _value_for(values: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Return the value for a dataset: by one of its names, else by the longest pattern that matches one."""
    folded = [name.casefold() for name in names]
    matches = [
        key
        for key in values
        if any(
            re.fullmatch(".*".join(map(re.escape, key.casefold().split("%"))), name, re.DOTALL)
            for name in folded
        )
    ]
    best = max(matches, key=lambda key: ("%" not in key, len(key)), default=None)
    return None if best is None else values[best]


class TransformConfig(SettingsGroup, frozen=True):
    """Computation of derivative datasets."""

    most_rows: Annotated[
        int, Meta(ge=1, description="maximum number of new rows of an input per transaction")
    ] = 50_000_000


OnConflict = Literal["warn", "fail", "correct"]
OnBadRows = Literal["fail", "reject"]


class SandboxConfig(SettingsGroup, frozen=True):
    """The sandbox for queries of untrusted datasets."""

    program: Annotated[
        Literal["auto", "bwrap", "unshare"],
        Meta(description="sandbox program: bwrap, unshare, or auto for the first that works"),
    ] = "auto"
    allow_without: Annotated[
        bool,
        Meta(
            description="run untrusted queries without a sandbox if none is available",
            extra={IN_WORKSPACE: "false"},
        ),
    ] = False
    memory: Annotated[
        str,
        Meta(pattern=r"^[1-9][0-9]*[mMgG]$", description="memory limit of the sandbox, such as 2g"),
    ] = "1g"
    disk: Annotated[
        str,
        Meta(
            pattern=r"^[1-9][0-9]*[mMgG]$",
            description="disk space limit of the sandbox, such as 50g",
        ),
    ] = "20g"
    tmp: Annotated[
        str,
        Meta(
            pattern=r"^[1-9][0-9]*[mMgG]$",
            description="size of the in-memory /tmp of the sandbox, such as 64m",
        ),
    ] = "64m"
    processes: Annotated[
        int, Meta(ge=256, description="maximum number of processes and threads in the sandbox")
    ] = 4096
    minutes: Annotated[float, Meta(gt=0, description="maximum duration of a transaction in the sandbox")] = 60


class UiConfig(SettingsGroup, frozen=True):
    """The user interface of the workstation."""

    theme: Annotated[str, Meta(min_length=1, description="name of the colour theme, or auto")] = "auto"
    ascii: Annotated[
        Literal["auto", "always", "never"],
        Meta(description="use ASCII only; auto: if the locale is not UTF-8"),
    ] = "auto"
    keys: Annotated[
        dict[str, str | list[str]],
        Meta(description="key bindings, such as pull: ctrl+l, zoom: [z, Z], add: none"),
    ] = {}
    timezone: Annotated[
        str,
        Meta(
            min_length=1,
            description="time zone of times in the workstation and in tables: UTC, local, or a name such as "
            "Europe/Berlin",
        ),
    ] = "UTC"
    notify_after_seconds: Annotated[
        float,
        Meta(ge=0, description="minimum duration of a job that causes a notification; 0: no notifications"),
    ] = 10
    notify_by: Annotated[
        Literal["both", "bell", "osc9", "none"],
        Meta(description="kind of notification: bell, osc9 (terminal notification), both, or none"),
    ] = "both"

    def __post_init__(self) -> None:
        """Check the time zone; msgspec reports the error as that of an invalid value."""
        if self.timezone in ("UTC", "local"):
            return
        from zoneinfo import ZoneInfo  # deferred: most users do not need it

        try:
            ZoneInfo(self.timezone)
        except (OSError, ValueError, LookupError):
            raise ValueError(
                f"unknown time zone '{self.timezone}': use UTC, local, or a name such as Europe/Berlin"
            ) from None


Variable = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
ENGINE_ADDRESS: Final = r"^grpc://[^/?#]+:\d+(\?.+)?$"
EngineAddress = Annotated[str, Meta(pattern=ENGINE_ADDRESS)]


class Config(SettingsGroup, frozen=True):
    """All settings."""

    block_version: Annotated[
        int,
        Meta(ge=2, le=3, description="format version of new metadata blocks; 2 for older clients"),
    ] = 3
    spark: SparkConfig = SparkConfig()
    worker: WorkerConfig = WorkerConfig()
    fetch: FetchConfig = FetchConfig()
    sync: SyncConfig = SyncConfig()
    serve: ServeConfig = ServeConfig()
    prepare: PrepareConfig = PrepareConfig()
    watermark: WatermarkConfig = WatermarkConfig()
    transform: TransformConfig = TransformConfig()
    sandbox: SandboxConfig = SandboxConfig()
    allowed_env: Annotated[
        dict[str, list[Variable]],
        Meta(description="environment variables that a source may read, by dataset name or id"),
    ] = {}
    on_conflict: Annotated[
        dict[str, OnConflict],
        Meta(
            description="what Ledger sources of a dataset, by name or id, do with changed rows: warn (and "
            "keep the old rows), fail, or correct"
        ),
    ] = {}
    on_bad_rows: Annotated[
        dict[str, OnBadRows],
        Meta(
            description="what sources of a dataset, by name, id or a pattern such as %, do with invalid rows "
            "of a file: fail, or reject (and ingest the other rows)"
        ),
    ] = {}
    engines: Annotated[
        dict[str, EngineAddress],
        Meta(
            description="engines by their name in queries, such as flink: grpc://HOST:2884",
            extra=_NEVER,
        ),
    ] = {}
    safe_directories: Annotated[
        list[str],
        Meta(
            description="allowed workspaces of other users, and allowed targets of symbolic links in .odf",
            extra=_NEVER,
        ),
    ] = []
    ui: UiConfig = UiConfig()

    def allowed_for(self, *names: str) -> list[str]:
        """Return the environment variables that a dataset may read.

        Args:
            names: the alias and the id of the dataset; compared without case.
        """
        keys = {name.casefold() for name in names}
        variables = [
            each for key, listed in self.allowed_env.items() if key.casefold() in keys for each in listed
        ]
        return list(dict.fromkeys(variables))

    def bad_rows_action(self, *names: str) -> OnBadRows:
        """Return what the sources of a dataset do with invalid rows of a file.

        Args:
            names: the alias and the id of the dataset.
        """
        return "reject" if _value_for(self.on_bad_rows, names) == "reject" else "fail"

    def conflict_action(self, *names: str) -> OnConflict:
        """Return what the Ledger sources of a dataset do with a changed row of a known key.

        Args:
            names: the alias and the id of the dataset; compared without case.
        """
        keys = {name.casefold() for name in names}
        for key, action in self.on_conflict.items():
            if key.casefold() in keys:
                return action
        return "warn"


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

    ``choices`` are the possible values; empty if there are too many to list.
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


def load(path: Path) -> Config:
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
            lines += [_render_line(each, members, defaults[field.name], "  ") for each in _fields(field.type)]
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
        group[path[-1]] = _parse_list(text) if path[0] in _LISTS else text
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


_LISTS: Final = ("allowedEnv", "safeDirectories")


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
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise InvalidManifest(f"the settings are not valid YAML: {error.problem}", where=where) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an invalid date or number
        raise InvalidManifest(f"the settings are not valid YAML: {error}", where=str(path)) from None
    except RecursionError:
        raise InvalidManifest("the settings are nested too deeply", where=str(path)) from None


def read(path: Path) -> dict[str, Any]:
    """Return the validated settings of a file; empty if there is no file.

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
        message = "not an address such as grpc://127.0.0.1:2884"
    elif repr(DURATION)[1:-1] in message:
        message = "not a duration such as 0s, 30m, 12h or 1d"
    elif repr(DURATION_OR_NONE)[1:-1] in message:
        message = "not a duration such as 0s, 30m, 12h or 1d, nor none"
    return f"{path.rstrip('`')}: {message}" if path else message
