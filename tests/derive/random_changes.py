"""Random queries over random changelogs, compared with Spark and DuckDB over the latest state of the inputs.

    python -m tests.derive.random_changes SEEDS [FIRST]

Runs SEEDS seeds from FIRST on (0 by default), and prints the seeds that fail with their queries and rows.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import duckdb
import pyarrow as pa
from msgspec import UNSET
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from odf_engine.base.progress import Reporter
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.engines.stateful.checkpoint import read_checkpoint_metadata
from odf_engine.errors import OdfError
from odf_engine.metadata.model import ExecuteTransform
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.spark.runtime.spark_conf import SparkOptions
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.derive.deriving import DATA, Deriving
from tests.derive.query_grammar import random_query

A, R, CF, CT = 0, 1, 2, 3
_SCHEMA: Final = DATA.append(pa.field("d", pa.float64()))
_COLUMNS: Final = ("event_time TIMESTAMP", "city STRING", "x BIGINT", "d DOUBLE")
_BEFORE_ALL: Final = 1_700_000_000_000
_START: Final = datetime(2024, 1, 1)
_END: Final = "2025-01-01T00:00:00Z"
Row = tuple[Any, ...]
_ROW: Final[Row] = (_START, "a", 1, 1.0)


class Outcome(NamedTuple):
    """What became of a seed.

    Attributes:
        query: the query.
        kind: ``changes``, ``state`` or ``stateless``: how the engine runs it; ``invalid``: Spark rejects it;
            ``refused``: only the engine does.
        duckdb: whether DuckDB could run it.
        problems: descriptions of the differences; the message of the engine if it is refused.
        rows: number of rows in the result.
    """

    query: str
    kind: str
    duckdb: bool
    problems: Sequence[str]
    rows: int = 0


class ChangingInput:
    """A root dataset with random changes.

    Attributes:
        rows: the latest state.
    """

    def __init__(self, deriving: Deriving, name: str, random: Random) -> None:
        self._deriving, self._random = deriving, random
        self._has_retractions = random.random() < 0.8
        self._has_odd_numbers = random.random() < 0.15
        self.entry = deriving.root(name, _SCHEMA)
        self.rows: list[Row] = []

    def commit(self) -> None:
        """Commit random changes."""
        random, changes = self._random, list[Row]()
        for _ in range(random.choice((1, 1, 2, 3, 4, 6))):
            kind = random.random() if self.rows and self._has_retractions else 1.0
            old = self.rows.pop(random.randrange(len(self.rows))) if kind < 0.5 else None
            if old is not None and kind < 0.25:
                changes.append((*old, R))
                continue
            new = self._new_row(old)
            changes += [(*new, A)] if old is None else [(*old, CF), (*new, CT)]
            self.rows.append(new)
        columns = list(zip(*changes, strict=True))
        batch = pa.record_batch(
            [
                pa.array([column.replace(tzinfo=UTC) for column in columns[0]], pa.timestamp("ms", "UTC")),
                pa.array(columns[1], pa.string()),
                pa.array(columns[2], pa.int64()),
                pa.array(columns[3], pa.float64()),
                pa.array(columns[4], pa.int32()),
            ],
            names=[*_SCHEMA.names, "op"],
        )
        self._deriving.batch(self.entry, batch, _BEFORE_ALL)

    def end(self) -> None:
        """Commit a watermark after all rows, so that no window waits."""
        self._deriving.rows(self.entry, watermark=_END)

    def compact(self) -> None:
        """Merge the slices."""
        compact(self.entry.dataset, CompactionPolicy(), Reporter())

    def _new_row(self, old: Row | None) -> Row:
        random = self._random
        if self.rows and random.random() < 0.15:
            return random.choice(self.rows)
        row = [
            _START + timedelta(hours=random.choice((0, 6, 24, 30, 48))),
            random.choice(("a", "b", "c", None)),
            random.choice((0, 1, 2, 3, 4, None)),
            random.choice((0.0, 0.5, 1.0, 1.5, 2.0, None)),
        ]
        if self._has_odd_numbers and random.random() < 0.4:
            row[3] = random.choice((math.nan, -0.0))
        if old is not None and random.random() < 0.5:
            kept = random.randrange(4)
            row = [row[at] if at == kept else old[at] for at in range(4)]
        return tuple(row)


def compare(deriving: Deriving, runtime: SparkRuntime, seed: int) -> Outcome:
    """Run the query of a seed after random commits; compare its latest state with the batch queries."""
    random = Random(seed)
    query = random_query(random)
    inputs = [ChangingInput(deriving, name, random) for name in query.inputs]
    entry, refusal = None, ""
    try:
        entry = deriving.derivative(query.text, *query.inputs)
        _pull_in_parts(deriving, entry, inputs, random)
    except OdfError as error:
        refusal = f"{type(error).__name__}: {error}"
    rows = {each.entry.alias.name: each.rows or [_ROW] * bool(refusal) for each in inputs}
    try:
        expected = _batch(runtime, query.text, rows)
    except (PySparkException, Py4JJavaError) as error:  # Spark's optimizer fails for some queries
        return Outcome(query.text, "invalid", False, [str(error).splitlines()[0], refusal])
    if entry is None or refusal:
        # For some queries, Spark's optimizer fails over files alone: `odf add` refuses them.
        kind = "invalid" if refusal.startswith("SparkFailed") else "refused"
        return Outcome(query.text, kind, False, [refusal])
    actual, problems = _latest_state(deriving, entry)
    problems += differences("Spark", actual, expected)
    other = _duckdb(query.text, rows)
    if other is not None:
        problems += differences("DuckDB", actual, other)
    if problems:
        problems += [f"{name}: {_shown(Counter(map(comparable_row, each)))}" for name, each in rows.items()]
    return Outcome(query.text, _kind(entry), other is not None, problems, len(expected))


def compare_latest_state(
    deriving: Deriving,
    runtime: SparkRuntime,
    entry: DatasetEntry,
    query: str,
    inputs: Mapping[str, Sequence[Row]],
) -> list[str]:
    """Compare the latest state of a dataset with the batch query of DuckDB, or of Spark if they differ.

    Args:
        inputs: the latest states of the inputs: event time, city and x of each row.
    """
    actual, problems = _latest_state(deriving, entry)
    if problems:
        return problems
    other = _duckdb(query, inputs, _COLUMNS[:3])
    if other is not None and not differences("DuckDB", actual, other):
        return []
    return differences("Spark", actual, _batch(runtime, query, inputs, _COLUMNS[:3]))


def _pull_in_parts(
    deriving: Deriving, entry: DatasetEntry, inputs: Sequence[ChangingInput], random: Random
) -> None:
    for each in inputs:
        if random.random() < 0.8:
            each.commit()
    for _ in range(random.randint(1, 3)):
        if random.random() < 0.8:
            deriving.run(entry)
        for each in random.sample(inputs, random.randint(1, len(inputs))):
            for _ in range(random.choice((1, 1, 2))):
                each.commit()
        if random.random() < 0.15:
            random.choice(inputs).compact()
    if random.random() < 0.5:
        deriving.run(entry)
    for each in inputs:
        each.end()
    deriving.run(entry)


def _kind(entry: DatasetEntry) -> str:
    events = (block.block.event for block in entry.dataset.blocks())
    checkpoints = (event.new_checkpoint for event in events if isinstance(event, ExecuteTransform))
    checkpoint = next((each for each in checkpoints if each is not None), None)
    if checkpoint is None:
        return "stateless"
    metadata = read_checkpoint_metadata(entry.dataset.checkpoint_path(checkpoint.physical_hash))
    return "state" if metadata is None or metadata.result is UNSET else "changes"


def _latest_state(deriving: Deriving, entry: DatasetEntry) -> tuple[Counter[Row], list[str]]:
    state: Counter[Row] = Counter()
    if not list(entry.dataset.slices()):
        return state, []
    for row in deriving.table(entry).drop_columns(["offset", "system_time"]).to_pylist():
        sign = -1 if row.pop("op") in (R, CF) else 1
        key = comparable_row(row.values())
        state[key] += sign
        if state[key] < 0:
            return state, [f"the result retracts a row that it does not have: {key}"]
    return +state, []


def _batch(
    runtime: SparkRuntime,
    query: str,
    inputs: Mapping[str, Sequence[Row]],
    columns: Sequence[str] = _COLUMNS,
) -> Counter[Row]:
    session = runtime.session()
    for name, rows in inputs.items():
        frame = session.createDataFrame(list(rows), ", ".join(columns))
        frame.createOrReplaceTempView(name)
    return Counter(comparable_row(row.values()) for row in session.sql(query).toArrow().to_pylist())


def _duckdb(
    query: str, inputs: Mapping[str, Sequence[Row]], columns: Sequence[str] = _COLUMNS
) -> Counter[Row] | None:
    """Return the result of DuckDB, or None if it cannot run the query."""
    with duckdb.connect() as connection:
        for name, rows in inputs.items():
            connection.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
            if rows:
                values = ", ".join("?" * len(columns))
                connection.executemany(f"INSERT INTO {name} VALUES ({values})", list(rows))
        try:
            return Counter(map(comparable_row, connection.execute(query).fetchall()))
        except (duckdb.ProgrammingError, duckdb.NotSupportedError):
            return None


def comparable_row(row: Sequence[Any] | Any) -> Row:
    """Return a row with values that compare in the same way for all engines."""
    return tuple(map(_normalized, row))


def _normalized(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, Decimal):  # the sum of integers
        return int(value)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def differences(name: str, actual: Counter[Row], expected: Counter[Row]) -> list[str]:
    """Return the rows that differ, apart from rounding errors of floats; ``name`` is where they come from."""
    missing, surplus = expected - actual, actual - expected
    for row in list(missing.elements()):
        match = next((each for each in surplus if surplus[each] and _are_close(row, each)), None)
        if match is not None:
            missing[row] -= 1
            surplus[match] -= 1
    missing, surplus = +missing, +surplus
    return [f"{name}: missing {_shown(missing)}\n  surplus {_shown(surplus)}"] if missing or surplus else []


def _are_close(one: Row, other: Row) -> bool:
    return all(
        math.isclose(value, match, rel_tol=1e-9, abs_tol=1e-9)
        if isinstance(value, float) and isinstance(match, float)
        else value == match
        for value, match in zip(one, other, strict=True)
    )


def _shown(rows: Counter[Row]) -> str:
    return "; ".join(
        f"{count} × "
        + ", ".join(f"{each:%d %H}" if isinstance(each, datetime) else str(each) for each in row)
        for row, count in rows.items()
    )


def _run(runtime: SparkRuntime, top: str, seeds: Sequence[int]) -> Iterator[tuple[int, Outcome]]:
    for seed in seeds:
        with tempfile.TemporaryDirectory(dir=top) as folder:
            deriving = Deriving(Workspace.init(Path(folder) / "workspace"), runtime)
            yield seed, compare(deriving, runtime, seed)


def main() -> None:
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    started, kinds, failed = time.monotonic(), Counter[str](), list[int]()
    with tempfile.TemporaryDirectory() as top:
        interpreted = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
        options = SparkOptions(master="local[2]", driver_memory="768m", conf=interpreted)
        runtime = SparkRuntime(options, Path(top) / "spark.log", Path(top) / "cache")
        runtime.start()
        for seed, outcome in _run(runtime, top, range(first, first + count)):
            kinds[outcome.kind] += 1
            kinds["duckdb"] += outcome.duckdb
            kinds["empty"] += not outcome.rows
            if outcome.problems:
                print(
                    f"\nseed {seed}: {outcome.kind}", outcome.query, *outcome.problems, sep="\n", flush=True
                )
                failed += [seed] * (outcome.kind not in ("invalid", "refused"))
            print(f"{time.monotonic() - started:.0f} s, seed {seed} {outcome.kind}", file=sys.stderr)
        runtime.stop()
    print(f"{dict(kinds)}; seeds that failed: {', '.join(map(str, failed)) or 'none'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
