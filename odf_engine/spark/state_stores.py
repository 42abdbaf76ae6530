"""The files of a streaming query's state: written as a whole after each batch, so that they stay small.

Spark writes what a batch changed (``N.delta``), and now and then everything (``N.snapshot``). It does the
latter in the background, when a timer says so; a checkpoint has to be whole at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE: Final = re.compile(r"(\d+)\.(delta|snapshot)")


def compact(session: SparkSession, root: Path, run: str, version: int) -> None:
    """Has every store written as a whole, and no longer held in memory.

    On a cluster the state is in the memory of executors. Those of most operators write it when their task
    ends (``unloadOnCommit``); what joins keep is read here from the files, store by store.

    Args:
        session: of the query, with its settings.
        root: the folder of the state, which has one folder an operator.
        run: id of the query's run.
        version: of the state after the batch.

    Raises:
        PySparkException, Py4JError: Spark cannot read or write the state.
    """
    java: Any = session._jvm
    package = java.org.apache.spark.sql.execution.streaming.state
    stores = getattr(getattr(package, "StateStore$"), "MODULE$")
    run_id = java.java.util.UUID.fromString(run)
    for operator, partition, name in _stores(root):
        first, here = (
            package.StateStoreProviderId(package.StateStoreId(f"file:{root}", operator, at, name), run_id)
            for at in (0, partition)
        )
        loaded = stores.isLoaded(here)
        if not loaded and _is_long(_folder(root, operator, partition, name)):
            _load(session, stores, first, here, version)
            loaded = True
        if loaded:
            stores.doMaintenanceAndUnload(here)


def prune(root: Path) -> None:
    """Removes files that the newest version of each store does not need."""
    for folder in {path.parent for path in root.rglob("*.delta")}:
        versions = _versions(folder)
        whole = _newest_whole(versions)
        for path, (number, kind) in versions.items():
            if number < whole or (number == whole and kind == "delta"):
                path.unlink(missing_ok=True)


def _load(session: SparkSession, stores: Any, first: Any, store: Any, version: int) -> None:
    """Reads a store into the memory of this process; ``first`` is its first partition, with the schema."""
    java: Any = session._jvm
    package = java.org.apache.spark.sql.execution.streaming.state
    state: Any = session._jsparkSession
    hadoop = state.sessionState().newHadoopConf()
    checker = package.StateSchemaCompatibilityChecker
    files = getattr(checker, "$lessinit$greater$default$3")()
    nothing = java.scala.Option.empty()
    schema = checker(first, hadoop, files, nothing, False).readSchemaFile().head()
    keys = package.NoPrefixKeyStateEncoderSpec(schema.keySchema())
    settings = package.StateStoreConf.apply(state.sessionState().conf())
    stores.getReadOnly(
        store, schema.keySchema(), schema.valueSchema(), keys, version, nothing, nothing, False, settings,
        hadoop, False,
    ).abort()  # fmt: skip


def _stores(root: Path) -> Iterator[tuple[int, int, str]]:
    """Operator, partition and name of each store of a state."""
    for partition in sorted(root.glob("[0-9]*/[0-9]*")):
        names = [each.name for each in partition.iterdir() if each.is_dir() and each.name != "_metadata"]
        for name in sorted(names) or ["default"]:
            yield int(partition.parent.name), int(partition.name), name


def _folder(root: Path, operator: int, partition: int, name: str) -> Path:
    folder = root / str(operator) / str(partition)
    return folder if name == "default" else folder / name


def _is_long(folder: Path) -> bool:
    """Whether there is more to read than one file."""
    versions = _versions(folder)
    whole = _newest_whole(versions)
    return sum(number > whole or kind == "snapshot" for number, kind in versions.values()) > 1


def _versions(folder: Path) -> dict[Path, tuple[int, str]]:
    found = {path: _FILE.fullmatch(path.name) for path in folder.iterdir()}
    return {path: (int(match[1]), match[2]) for path, match in found.items() if match}


def _newest_whole(versions: dict[Path, tuple[int, str]]) -> int:
    return max((number for number, kind in versions.values() if kind == "snapshot"), default=0)
