"""The settings of a workspace, by what they are about: each with its default and what it does."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

IN_WORKSPACE: Final = "in-workspace"
"""In the ``extra`` of a setting: which values the file of a workspace may give it, a regular expression.

A workspace may have come from others, for instance in an archive. A setting that starts programs, loads
code, sends data elsewhere to be computed or weakens the sandbox is therefore read from the user's own
configuration. Values that can do none of this are harmless.
"""
_NEVER: Final = {IN_WORKSPACE: ""}


class Settings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A group of settings."""


class SparkConfig(Settings, frozen=True):
    """How Spark runs."""

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
        Meta(description="any other setting of Spark, as its documentation names them", extra=_NEVER),
    ] = {}


class WorkerConfig(Settings, frozen=True):
    """The background process that runs jobs."""

    idle_minutes: Annotated[
        float, Meta(gt=0, description="the worker ends by itself after this long without a job")
    ] = 30
    max_jobs: Annotated[
        int,
        Meta(
            ge=1, le=64, description="how many jobs run at the same time, and how many more exchange datasets"
        ),
    ] = 2


class FetchConfig(Settings, frozen=True):
    """How sources are fetched from the network."""

    connect_timeout_seconds: Annotated[float, Meta(gt=0, description="patience for a connection")] = 30
    read_timeout_seconds: Annotated[float, Meta(gt=0, description="patience for the next bytes")] = 60
    retries: Annotated[
        int, Meta(ge=0, le=20, description="further attempts after a broken connection or a 5xx answer")
    ] = 3
    max_redirects: Annotated[int, Meta(ge=0, le=50, description="redirects to follow")] = 10
    longest_pause_seconds: Annotated[
        float, Meta(gt=0, description="give up when a server asks to wait longer than this")
    ] = 60
    s3_endpoint: Annotated[
        str, Meta(description="URL of the S3 service, where it is another one than Amazon's")
    ] = ""
    s3_region: Annotated[
        str, Meta(description="region of the S3 service; by default the environment or the bucket says it")
    ] = ""
    s3_anonymous: Annotated[bool, Meta(description="ask S3 without credentials, as for public buckets")] = (
        False
    )
    container_runtime: Annotated[
        str,
        Meta(
            min_length=1,
            description="what runs containers: auto, podman, docker, or a program's path",
            extra={IN_WORKSPACE: "auto|podman|docker"},
        ),
    ] = "auto"
    container_memory: Annotated[
        str,
        Meta(
            pattern=r"^([1-9][0-9]*[kKmMgG])?$",
            description="memory that a container may use, such as 2g; empty: all",
        ),
    ] = "2g"


class SyncConfig(Settings, frozen=True):
    """How datasets are exchanged with other places; patience is that of fetch."""

    parallel: Annotated[int, Meta(ge=1, le=64, description="how many files travel at the same time")] = 4
    most_message_bytes: Annotated[
        int,
        Meta(
            ge=1 << 16,
            description="a message of a smart transfer, in bytes; most servers take 64 MiB",
        ),
    ] = 64 << 20
    ipfs_gateway: Annotated[
        str, Meta(pattern=r"^https?://[^/?#]+(/.*)?$", description="through which ipfs: and ipns: are read")
    ] = "http://localhost:8080"


class ServeConfig(Settings, frozen=True):
    """Bounds on what others may ask of `odf serve`."""

    connections: Annotated[int, Meta(ge=1, le=65_536, description="open connections in all")] = 1024
    connections_each: Annotated[int, Meta(ge=1, description="open connections of one address")] = 512
    sessions: Annotated[int, Meta(ge=1, description="smart pulls at the same time")] = 128
    sessions_each: Annotated[int, Meta(ge=1, description="smart pulls of one address")] = 80
    pushes: Annotated[int, Meta(ge=1, le=64, description="pushes at the same time")] = 4
    idle_seconds: Annotated[
        float, Meta(gt=0, description="a client that neither sends nor takes anything for so long is let go")
    ] = 60
    session_minutes: Annotated[float, Meta(gt=0, description="a transfer ends after this long")] = 720
    most_message_bytes: Annotated[
        int, Meta(ge=1 << 16, description="a message of a smart transfer, in bytes")
    ] = 64 << 20
    most_push_blocks: Annotated[int, Meta(ge=1, description="blocks of one push")] = 1_000_000
    most_push_objects: Annotated[int, Meta(ge=0, description="slices and checkpoints of one push")] = 100_000
    most_push_bytes: Annotated[
        int, Meta(ge=0, description="what one push may bring, in bytes, blocks and objects together")
    ] = 1 << 40
    behind_proxy: Annotated[
        bool, Meta(description="believe X-Forwarded-Proto and -Host: a proxy in front of it sets them")
    ] = False


class PrepareConfig(Settings, frozen=True):
    """Bounds on what is unpacked or piped, against archives that would fill the disk."""

    most_bytes: Annotated[int, Meta(ge=1, description="what a prepare step may write, in bytes")] = 256 << 30
    most_ratio: Annotated[
        int, Meta(ge=1, description="how many times its packed size a file may unpack to, from 256 MiB on")
    ] = 250


class TransformConfig(Settings, frozen=True):
    """How derivative datasets are made."""

    most_rows: Annotated[
        int, Meta(ge=1, description="so many new rows of an input go into one transaction, and one commit")
    ] = 50_000_000


class SandboxConfig(Settings, frozen=True):
    """Where queries of datasets run that are somebody else's and not trusted."""

    program: Annotated[
        Literal["auto", "bwrap", "unshare"],
        Meta(description="what shuts the engine in: bwrap, unshare, or auto for whichever works here"),
    ] = "auto"
    allow_without: Annotated[
        bool,
        Meta(
            description="run such queries like one's own where no sandbox can be had",
            extra={IN_WORKSPACE: "false"},
        ),
    ] = False
    memory: Annotated[
        str,
        Meta(pattern=r"^[1-9][0-9]*[mMgG]$", description="memory of the engine in the sandbox, such as 2g"),
    ] = "1g"
    disk: Annotated[
        str,
        Meta(
            pattern=r"^[1-9][0-9]*[mMgG]$",
            description="disk space that the engine in the sandbox may use, such as 50g",
        ),
    ] = "20g"
    tmp: Annotated[
        str,
        Meta(
            pattern=r"^[1-9][0-9]*[mMgG]$",
            description="size of /tmp in the sandbox, which is in memory, such as 64m",
        ),
    ] = "64m"
    processes: Annotated[
        int, Meta(ge=256, description="processes and threads in the sandbox at the same time")
    ] = 4096
    minutes: Annotated[float, Meta(gt=0, description="a transaction in the sandbox ends after this long")] = (
        60
    )


class UiConfig(Settings, frozen=True):
    """The workstation's looks."""

    theme: Annotated[str, Meta(min_length=1, description="name of the colour theme, or auto")] = "auto"
    ascii: Annotated[
        Literal["auto", "always", "never"],
        Meta(description="draw with ASCII alone; auto: where the locale is not UTF-8"),
    ] = "auto"
    keys: Annotated[
        dict[str, str | list[str]],
        Meta(description="keys of actions, such as pull: ctrl+l, zoom: [z, Z], add: none"),
    ] = {}
    notify_after_seconds: Annotated[
        float, Meta(ge=0, description="a job that took so long is announced when it ends; 0: none is")
    ] = 10
    notify_by: Annotated[
        Literal["both", "bell", "osc9", "none"],
        Meta(description="how: the terminal's bell, its notifications (OSC 9), both, or none"),
    ] = "both"


Variable = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
ENGINE_ADDRESS: Final = r"^grpc://[^/?#]+:\d+(\?.+)?$"
EngineAddress = Annotated[str, Meta(pattern=ENGINE_ADDRESS)]


class Config(Settings, frozen=True):
    """All settings."""

    block_version: Annotated[
        int,
        Meta(ge=2, le=3, description="version of new metadata blocks; 2 for older peers"),
    ] = 3
    spark: SparkConfig = SparkConfig()
    worker: WorkerConfig = WorkerConfig()
    fetch: FetchConfig = FetchConfig()
    sync: SyncConfig = SyncConfig()
    serve: ServeConfig = ServeConfig()
    prepare: PrepareConfig = PrepareConfig()
    transform: TransformConfig = TransformConfig()
    sandbox: SandboxConfig = SandboxConfig()
    allowed_env: Annotated[
        dict[str, list[Variable]],
        Meta(description="environment variables that the source of a dataset, by name or id, may read"),
    ] = {}
    engines: Annotated[
        dict[str, EngineAddress],
        Meta(
            description="engines elsewhere, by the name that queries give, such as flink: grpc://HOST:2884",
            extra=_NEVER,
        ),
    ] = {}
    safe_directories: Annotated[
        list[str],
        Meta(
            description="workspaces of other users to open, and folders that links in .odf may lead to",
            extra=_NEVER,
        ),
    ] = []
    ui: UiConfig = UiConfig()

    def allowed_for(self, *names: str) -> list[str]:
        """The environment variables that a dataset of these names (its alias, its id) may read."""
        keys = {name.casefold() for name in names}
        found = [
            each for key, listed in self.allowed_env.items() if key.casefold() in keys for each in listed
        ]
        return list(dict.fromkeys(found))
