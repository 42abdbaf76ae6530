"""Provenance of one row of a windowed aggregate, compared with a replay of its transaction.

The input is one slice of 10 million rows, grouped by day and region in one transaction. The row is computed
from about 6,600 rows, all of which are named. Both run in the same warm Java.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from odf_engine.base.progress import Reporter
from odf_engine.derive.provenance.step import TransactionTrace, producing_transactions, trace_back
from odf_engine.derive.run import execute_transaction, make_request
from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.bench.common import append_rows
from tests.bench.measure import Figure, Metric, Size, best, cost
from tests.bench.spark import Derivations, start_spark

QUERY = (
    "SELECT window.start AS event_time, region, count(*) AS n, sum(visits) AS visits, "
    "max(temperature) AS hottest FROM input GROUP BY window(event_time, '1 day'), region"
)
METRICS = {"trace": Metric("provenance of a row of a window", "replay of the transaction", "<= 1.5x")}


def run(size: Size, folder: Path) -> list[Figure]:
    runs = size.pick(3, 1)
    with start_spark(folder) as spark:
        derivations = Derivations(folder, spark)
        append_rows(derivations.source("input"), size.pick(10_000_000, 500_000))
        entry = derivations.derivative("windows", QUERY, "input")
        derivations.run(entry)
        offset = size.pick(700, 7)

        def trace() -> list[TransactionTrace]:
            return trace_back(derivations.workspace, entry, [(offset, offset)], spark, Reporter())

        (answer,) = trace()
        assert answer.exact, answer.reason
        baseline = best([cost(lambda: replay(derivations, entry)) for _ in range(runs)])
        return [METRICS["trace"].figure(best([cost(trace) for _ in range(runs)]), baseline)]


def replay(derivations: Derivations, entry: DatasetEntry) -> None:
    """Run the transaction again, and compare the logical hashes."""
    ((history, _),) = producing_transactions(entry, [(0, 0)])
    with tempfile.TemporaryDirectory(dir=derivations.folder) as name:
        folder = Path(name)
        workspace = derivations.workspace
        transaction = history.transaction(workspace)
        request = make_request(
            transaction, folder, folder / "data", history.block.block.system_time, Reporter()
        )
        result = execute_transaction(workspace, derivations.engine, transaction, request, Reporter())
    assert result.written is not None and history.event.new_data is not None
    assert result.written.logical_hash == history.event.new_data.logical_hash
