"""Declarations of all settings: groups, defaults, constraints, descriptions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

IN_WORKSPACE: Final = "in-workspace"
"""Key in the ``extra`` of a setting: a regular expression of the values that the workspace's file may set.

A third party may have made a workspace, which was unpacked from an archive for example. A setting that
starts programs, loads code, sends data to other hosts or weakens the sandbox is therefore read only from
the user's own configuration. The values that the expression matches do none of this.
"""
_NEVER: Final = {IN_WORKSPACE: ""}
_SIZE: Final = r"^[1-9][0-9]*[mMgG]$"
HOST_NAME: Final = r"^[A-Za-z0-9._-]{1,253}$"


class SettingsGroup(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A group of settings."""


SystemColumns = Literal["specification", "kamu"]


class MetadataConfig(SettingsGroup, frozen=True):
    """Schemas of new datasets. Existing datasets keep theirs."""

    data_schema: Annotated[
        Literal["arrow", "odf"], Meta(description="form of the schema: arrow (ODF 0.34.1) or odf (RFC-016)")
    ] = "arrow"
    system_columns: Annotated[
        SystemColumns,
        Meta(description="types of offset and op: specification (UINT64, UINT8) or kamu (INT64, INT32)"),
    ] = "specification"


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


def is_local(master: str) -> bool:
    """Return whether Spark runs in a process of this machine."""
    return master == "local" or master.startswith("local[")


class DataFusionConfig(SettingsGroup, frozen=True):
    """DataFusion."""

    memory: Annotated[
        str, Meta(pattern=_SIZE, description="memory limit for the rows of a query, such as 2g")
    ] = "1g"


class SqlConfig(SettingsGroup, frozen=True):
    """Queries over datasets."""

    engine: Annotated[Literal["spark", "duckdb"], Meta(description="engine of SQL queries")] = "spark"
    memory: Annotated[
        str, Meta(pattern=_SIZE, description="memory limit for the rows of a DuckDB query, such as 2g")
    ] = "1g"


class WorkerConfig(SettingsGroup, frozen=True):
    """The background process that runs jobs."""

    idle_minutes: Annotated[float, Meta(gt=0, description="minutes without a job until the worker stops")] = (
        30
    )
    spark_idle_minutes: Annotated[
        float, Meta(gt=0, description="minutes without a job until Spark stops, to free its memory")
    ] = 10
    start_spark: Annotated[
        bool,
        Meta(description="start Spark with the worker, not with the first job that needs it"),
    ] = False
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
    cache: Annotated[
        dict[str, Literal["never", "once"]],
        Meta(
            description="when a source that cannot report changes is fetched, by name, id or a "
            "pattern such as % of its dataset: never (cached: in each pull) or once; default: once"
        ),
    ] = {}
    files_per_commit: Annotated[
        dict[str, Annotated[int, Meta(ge=1, le=250)]],
        Meta(
            description="how many small files of a FilesGlob one commit may have, by name, id or a pattern"
            " such as % of the dataset, with the merge strategies Append and Ledger; default: 1"
        ),
    ] = {}
    max_bytes: Annotated[int, Meta(ge=1, description="maximum size of a file from a server, in bytes")] = (
        1 << 40
    )
    max_minutes: Annotated[
        float,
        Meta(
            gt=0,
            le=525_600,
            description="maximum duration of a download, with its retries; the next pull resumes it",
        ),
    ] = 1440
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
    container_start_seconds: Annotated[
        float, Meta(gt=0, description="time limit for the start of a container that runs an engine")
    ] = 60

    def is_never_cached(self, *names: str) -> bool:
        """Return whether each pull of a dataset fetches its source, if the source cannot report changes.

        Args:
            names: the alias and the id of the dataset.
        """
        return _value_for(self.cache, names) == "never"

    def files_per_commit_of(self, *names: str) -> int:
        """Return how many small files of a folder one commit of a dataset may have.

        Args:
            names: the alias and the id of the dataset.
        """
        return _value_for(self.files_per_commit, names) or 1


class MqttConfig(SettingsGroup, frozen=True):
    """Polls of MQTT topics; timeouts as in fetch."""

    idle_seconds: Annotated[
        float, Meta(gt=0, le=3600, description="a poll ends after this time without a message")
    ] = 1
    max_seconds: Annotated[float, Meta(gt=0, description="maximum duration of a poll")] = 300
    max_messages: Annotated[int, Meta(ge=1, description="maximum number of messages per commit")] = 10_000


class EthereumConfig(SettingsGroup, frozen=True):
    """Logs of Ethereum chains; timeouts and retries as in fetch."""

    rpc_endpoints: Annotated[
        dict[Annotated[str, Meta(pattern="^[0-9]+$")], Annotated[str, Meta(pattern="^https?://[^/?#]+")]],
        Meta(
            description="URLs of nodes by chain id, such as 1: https://HOST/KEY, for sources without nodeUrl",
            extra=_NEVER,
        ),
    ] = {}
    confirmations: Annotated[
        int,
        Meta(ge=0, description="newest blocks that are not read yet, since the chain may still replace them"),
    ] = 12
    blocks_per_request: Annotated[
        int, Meta(ge=1, description="maximum number of blocks per request; reduced if a node allows less")
    ] = 100_000
    blocks_per_commit: Annotated[
        int, Meta(ge=1, description="commit after a request that reaches this number of blocks")
    ] = 1_000_000
    logs_per_commit: Annotated[
        int, Meta(ge=1, description="commit after a request that reaches this number of logs")
    ] = 10_000
    block_timestamps: Annotated[
        bool, Meta(description="request the times of blocks if the node returns logs without them")
    ] = True


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


class StoreConfig(SettingsGroup, frozen=True):
    """Object store with the datasets of the workspace, see `odf help stores`."""

    url: Annotated[
        str,
        Meta(
            pattern=r"^([a-z0-9+]+://[^/@?#]*(/[^?#]*)?)?$",  # no logins, which messages would show
            description="URL of the store, set by odf init --store; empty: the datasets are in .odf",
        ),
    ] = ""
    cache_bytes: Annotated[
        int,
        Meta(ge=0, description="limit of the cache of slices, in bytes; recently used slices remain"),
    ] = 50 << 30
    refresh_seconds: Annotated[
        float,
        Meta(ge=0, description="seconds after which lists of datasets read the store again"),
    ] = 5


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
    queries: Annotated[int, Meta(ge=1, description="maximum number of concurrent Flight SQL queries")] = 8
    query_seconds: Annotated[float, Meta(gt=0, description="maximum duration of a Flight SQL query")] = 600
    max_query_rows: Annotated[
        int, Meta(ge=0, description="maximum number of rows of a Flight SQL query; 0 means no limit")
    ] = 0
    spark: Annotated[
        bool, Meta(description="run Flight SQL queries with Spark for clients that request it")
    ] = False
    behind_proxy: Annotated[
        bool, Meta(description="trust X-Forwarded headers, which a proxy in front of the server sets")
    ] = False
    host_names: Annotated[
        list[Annotated[str, Meta(pattern=HOST_NAME)]],
        Meta(
            description="host names of the server besides localhost and its addresses, such as"
            " data.example.com; web pages of these hosts may read the datasets",
            extra=_NEVER,
        ),
    ] = []


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
    static: Annotated[
        dict[str, bool],
        Meta(
            description="whether a dataset is complete: its next pull or ingest sets its watermark to"
            " 9999-12-31, so that queries do not wait for it; default: false"
        ),
    ] = {}

    def is_static(self, *names: str) -> bool:
        """Return whether a dataset is complete.

        Args:
            names: the alias and the id of the dataset.
        """
        return _value_for(self.static, names) or False

    def lists_as_static(self, *names: str) -> bool:
        """Return whether ``static`` has one of the names of a dataset, and not only a pattern."""
        folded = {name.casefold() for name in names}
        return any(value and key.casefold() in folded for key, value in self.static.items())

    def max_ahead_of(self, *names: str) -> int | None:
        """Return how far the watermark of a dataset may pass the system time, in seconds; None: no limit.

        Args:
            names: the alias and the id of the dataset.
        """
        text = _value_for(self.max_ahead, names) or "0s"
        return None if text == "none" else parse_duration(text)

    def delay_of(self, *names: str) -> int:
        """Return how far the watermark of a dataset stays behind the latest event time, in seconds.

        Args:
            names: the alias and the id of the dataset.
        """
        return parse_duration(_value_for(self.delay, names) or "0s")


def parse_duration(text: str) -> int:
    """Return a duration such as ``1h`` (see :data:`DURATION`) in seconds."""
    text = text.rstrip("\n")  # The pattern allows one.
    return int(text[:-1]) * _SECONDS[text[-1]]


_T = TypeVar("_T")


def _value_for(values: Mapping[str, _T], names: Sequence[str]) -> _T | None:
    """Return the value for a dataset: by one of its names, else by the longest pattern that matches one."""
    matches = _matching_keys(values, names)
    return values[matches[0]] if matches else None


def _matching_keys(values: Mapping[str, object], names: Sequence[str]) -> list[str]:
    """Return the keys that match a dataset: its names first, then the patterns, longest first."""
    folded = [name.casefold() for name in names]
    matches = [
        key
        for key in values
        if any(
            re.fullmatch(".*".join(map(re.escape, key.casefold().split("%"))), name, re.DOTALL)
            for name in folded
        )
    ]
    return sorted(matches, key=lambda key: ("%" not in key, len(key)), reverse=True)


class SlicesConfig(SettingsGroup, frozen=True):
    """Size of the slices of a pull or push. More rows become several blocks of one commit."""

    target_records: Annotated[int, Meta(ge=1, description="maximum number of rows of a slice")] = 5_000_000
    target_bytes: Annotated[
        str, Meta(pattern=_SIZE, description="maximum size of the values of a slice in memory, such as 1g")
    ] = "1g"


class TransformConfig(SettingsGroup, frozen=True):
    """Computation of derivative datasets."""

    most_rows: Annotated[
        int, Meta(ge=1, description="maximum number of new rows of an input per transaction")
    ] = 50_000_000
    most_read_bytes: Annotated[
        str,
        Meta(
            pattern=r"^([1-9][0-9]*[kKmMgGtT])?$",
            description="maximum size of the slices that a transaction reads if its query reads earlier"
            " rows again, such as 50g; empty: no limit",
        ),
    ] = ""

    @property
    def most_read(self) -> int | None:
        """The limit ``most_read_bytes`` in bytes, or None if there is no limit."""
        return parse_size(self.most_read_bytes) if self.most_read_bytes else None


OnConflict = Literal["warn", "fail", "correct"]
OnBadRows = Literal["fail", "reject"]


class CompactionConfig(SettingsGroup, frozen=True):
    """Compaction of root datasets, and retention of old heads."""

    max_rows: Annotated[int, Meta(ge=2, description="maximum number of rows of a merged slice")] = 10_000_000
    max_bytes: Annotated[
        int, Meta(ge=1 << 10, description="maximum total size of the slices merged into one, in bytes")
    ] = 256 << 20
    keep_days: Annotated[
        float, Meta(ge=0, description="days until `odf gc` removes the old head of a compaction")
    ] = 7
    keep_last: Annotated[
        int, Meta(ge=0, description="number of newest old heads that `odf gc` never removes")
    ] = 0
    keep_days_of: Annotated[
        dict[str, Annotated[float, Meta(ge=0)]],
        Meta(
            description="days for single datasets, by name, id or pattern. `odf gc` then also removes"
            " their old heads of resets and forced pulls and pushes"
        ),
    ] = {}
    keep_last_of: Annotated[
        dict[str, Annotated[int, Meta(ge=0)]],
        Meta(description="number of newest old heads that are never removed, by name, id or pattern"),
    ] = {}


class SigningConfig(SettingsGroup, frozen=True):
    """Signatures of datasets."""

    commits: Annotated[
        bool,
        Meta(description="sign the new head in each commit, if the workspace has the private key"),
    ] = False
    actor: Annotated[
        str,
        Meta(
            max_length=200,
            pattern=r"^[^\x00-\x1f\x7f-\x9f]*$",
            description="who signs, as shown to readers of the dataset; by default the login name",
        ),
    ] = ""


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
    memory: Annotated[str, Meta(pattern=_SIZE, description="memory limit of the sandbox, such as 2g")] = "1g"
    disk: Annotated[str, Meta(pattern=_SIZE, description="disk space limit of the sandbox, such as 50g")] = (
        "20g"
    )
    tmp: Annotated[
        str, Meta(pattern=_SIZE, description="size of the in-memory /tmp of the sandbox, such as 64m")
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
    mouse: Annotated[bool, Meta(description="use the mouse; off: the terminal selects text with it")] = True
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
        """Check the time zone; msgspec reports the error as an invalid value."""
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
Label = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?=[^,=\s]{1,63}$")  # KEY=VALUE
]
ENGINE_ADDRESS: Final = r"^(grpc://[^/?#]+:\d+(\?.+)?|container(:.+)?)$"
EngineAddress = Annotated[str, Meta(pattern=ENGINE_ADDRESS)]


class Config(SettingsGroup, frozen=True):
    """All settings."""

    block_version: Annotated[
        int,
        Meta(ge=2, le=3, description="format version of new metadata blocks; 2 for older clients"),
    ] = 3
    metadata: MetadataConfig = MetadataConfig()
    spark: SparkConfig = SparkConfig()
    datafusion: DataFusionConfig = DataFusionConfig()
    sql: SqlConfig = SqlConfig()
    worker: WorkerConfig = WorkerConfig()
    fetch: FetchConfig = FetchConfig()
    mqtt: MqttConfig = MqttConfig()
    ethereum: EthereumConfig = EthereumConfig()
    sync: SyncConfig = SyncConfig()
    store: StoreConfig = StoreConfig()
    serve: ServeConfig = ServeConfig()
    prepare: PrepareConfig = PrepareConfig()
    watermark: WatermarkConfig = WatermarkConfig()
    slices: SlicesConfig = SlicesConfig()
    transform: TransformConfig = TransformConfig()
    compaction: CompactionConfig = CompactionConfig()
    sandbox: SandboxConfig = SandboxConfig()
    signing: SigningConfig = SigningConfig()
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
    labels: Annotated[
        dict[str, list[Label]],
        Meta(
            description="labels of datasets, by name, id or a pattern such as %: env=prod,team=data; targets "
            "of flows and checks can select datasets by them"
        ),
    ] = {}
    allowed_lateness: Annotated[
        dict[str, Annotated[str, Meta(pattern=DURATION)]],
        Meta(
            description="how long derivative datasets wait for late rows of an input, by its name, id or a "
            "pattern such as %: 1h, 2d; 0s: not at all; recorded in the chain at the next pull"
        ),
    ] = {}
    engines: Annotated[
        dict[str, EngineAddress],
        Meta(
            description="addresses of engines by their name in queries, such as flink: grpc://HOST:2884; "
            "container runs the engine's image, container:IMAGE another one",
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
            entry for key, listed in self.allowed_env.items() if key.casefold() in keys for entry in listed
        ]
        return list(dict.fromkeys(variables))

    def labels_of(self, *names: str) -> dict[str, str]:
        """Return the labels of a dataset. The exact name or the longest pattern takes precedence.

        Args:
            names: the alias and the id of the dataset.
        """
        labels: dict[str, str] = {}
        for key in reversed(_matching_keys(self.labels, names)):
            for label in self.labels[key]:
                name, _, value = label.partition("=")
                labels[name] = value
        return dict(sorted(labels.items()))

    def allowed_lateness_of(self, *names: str) -> str | None:
        """Return how long derivatives wait for late rows of an input, such as ``1h``, or None if unset.

        Args:
            names: the alias and the id of the input.
        """
        return _value_for(self.allowed_lateness, names)

    def retention_of(self, *names: str) -> tuple[float, int, bool]:
        """Return when old heads of a dataset expire.

        Args:
            names: the alias and the id of the dataset.

        Returns:
            The number of days, the number of newest heads, and whether this is for compactions only.
        """
        days = _value_for(self.compaction.keep_days_of, names)
        last = _value_for(self.compaction.keep_last_of, names)
        return (
            self.compaction.keep_days if days is None else days,
            self.compaction.keep_last if last is None else last,
            days is None and last is None,
        )

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


def parse_size(size: str) -> int:
    """Parse a size such as ``64m`` or ``2g`` into bytes."""
    return int(size[:-1]) << {"k": 10, "m": 20, "g": 30, "t": 40}[size[-1].lower()]
