"""FakeQueries, queries and their results in memory."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from odf_engine.coordinator.protocol import Job
from odf_engine.errors import NotFound
from odf_tui.text.row_text import TableWindow

SYSTEM = ("offset", "op", "system_time", "event_time")
COLUMNS = [
    ("offset", "BIGINT"), ("op", "INT"), ("system_time", "TIMESTAMP(3)"), ("event_time", "TIMESTAMP(3)"),
    ("station", "STRING"), ("pm25", "DOUBLE"), ("no2", "INT"), ("wind speed", "DOUBLE"),
]  # fmt: skip


class FakeQueries:
    """Queries and results.

    Attributes:
        kept: rows of results by path.
        history: the history of queries.
        questions: queries by id of the job.
        sql_engine: the engine of queries.
    """

    sql_engine: Literal["spark", "datafusion"] = "spark"

    kept: dict[str, pa.Table]
    history: list[str]
    questions: dict[str, str]

    def columns(self, dataset: str) -> list[tuple[str, str]]:
        """Return the same columns for each dataset."""
        return COLUMNS

    def result(self, path: str) -> TableWindow:
        """Return the rows of a result."""
        if path not in self.kept:
            raise NotFound("the result of this query was removed", hint="run the query again")
        return TableWindow(self.kept[path], SYSTEM)

    def query_of_job(self, job: Job) -> str:
        """Return the query of a job."""
        return self.questions[job.id]

    def query_history(self) -> list[str]:
        """Return the history."""
        return list(self.history)

    def add_to_query_history(self, sql: str) -> None:
        """Add a query to the history."""
        self.history = [*(each for each in self.history if each != sql), sql]
