"""The part of the source in memory about queries."""

from __future__ import annotations

import pyarrow as pa

from odf_engine.coordinator.protocol import Job
from odf_engine.errors import NotFound
from odf_tui.gateway.row_text import TableWindow

SYSTEM = ("offset", "op", "system_time", "event_time")
COLUMNS = [
    ("offset", "BIGINT"), ("op", "INT"), ("system_time", "TIMESTAMP(3)"), ("event_time", "TIMESTAMP(3)"),
    ("station", "STRING"), ("pm25", "DOUBLE"), ("no2", "INT"), ("wind speed", "DOUBLE"),
]  # fmt: skip


class FakeQueries:
    """Queries and results; ``kept`` has the rows of results by their path."""

    kept: dict[str, pa.Table]
    history: list[str]
    questions: dict[str, str]

    def columns(self, dataset: str) -> list[tuple[str, str]]:
        """The same for every dataset."""
        return COLUMNS

    def result(self, path: str) -> TableWindow:
        """The rows of a result."""
        if path not in self.kept:
            raise NotFound("the result of this query is not kept any more", hint="run the query again")
        return TableWindow(self.kept[path], SYSTEM)

    def query_of_job(self, job: Job) -> str:
        """The query of a job."""
        return self.questions[job.id]

    def query_history(self) -> list[str]:
        """What was asked."""
        return list(self.history)

    def add_to_query_history(self, sql: str) -> None:
        """Notes it."""
        self.history = [*(each for each in self.history if each != sql), sql]
