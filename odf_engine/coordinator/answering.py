"""A query over datasets, asked once: its rows as they come, and the hash of them where it is to be proven."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from odf_engine.coordinator.rendezvous import engine_version
from odf_engine.progress import Reporter
from odf_engine.workspace.answers import Column, Engine, Outcome

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.coordinator.tables import Tables
    from odf_engine.data.digest import LogicalHasher
    from odf_engine.spark.frames import SparkSession


class Answer:
    """What comes back.

    Attributes:
        schema: of the rows.
        batches: the rows, to be taken once.
    """

    def __init__(
        self,
        schema: pa.Schema,
        batches: Iterator[pa.RecordBatch],
        hasher: LogicalHasher | None,
        ordered: bool,
    ) -> None:
        self.schema = schema
        self._hasher = hasher
        self._ordered = ordered
        self._rows = 0
        self.batches = self._counted(batches)

    @property
    def columns(self) -> list[Column]:
        """Names and types of the columns."""
        from odf_engine.data.ddl import type_ddl

        return [Column(field.name, type_ddl(field.type)) for field in self.schema]

    def outcome(self, reporter: Reporter) -> Outcome:
        """What is to be proven; takes the rows that are left."""
        assert self._hasher is not None
        for _ in self.batches:
            reporter.check()
        return Outcome(
            columns=self.columns,
            rows=self._rows,
            hash=str(self._hasher.finish()),
            order="query" if self._ordered else "all columns",
        )

    def _counted(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        for batch in batches:
            if self._hasher is not None:
                self._hasher.update(batch)
            self._rows += batch.num_rows
            yield batch


@contextmanager
def answering(
    sql: str, tables: Tables, session: SparkSession, reporter: Reporter, *, proven: bool = False
) -> Iterator[Answer]:
    """Asks a query; errors within, also while rows are taken, have their place in it.

    Args:
        sql: the query.
        tables: what it reads.
        session: of its own.
        reporter: hears of progress, and is asked whether to stop.
        proven: whether the rows come in one order only, and are hashed.

    Raises:
        InvalidQuery: it cannot be asked, or cannot be proven.
        OdfError: a value that an expression cannot take, a slice that is missing, Spark that fails.
        Cancelled: in the middle; Spark's jobs are stopped.
    """
    from odf_engine.data.digest import LogicalHasher
    from odf_engine.spark.asking import Question  # after Spark has started, see warm_up
    from odf_engine.spark.frames import arrow_batches
    from odf_engine.spark.ordered import in_one_order

    question = Question(sql, tables.names)
    tables.calls = question.calls
    with question.placing():
        frame = question.ask(session, tables.find)
        tables.check_all_used()
        tables.size_up()
        reporter.phase("query")
        frame, ordered = in_one_order(session, frame) if proven else (frame, False)
        schema, batches = arrow_batches(frame, reporter)
        with LogicalHasher(schema) if proven else nullcontext() as hasher:
            answer = Answer(schema, batches, hasher, ordered)
            try:
                yield answer
            finally:
                answer.batches.close()  # what Spark reads ahead is not wanted any more


def this_engine(session: SparkSession) -> Engine:
    """What computes answers here."""
    return Engine("odf", engine_version(), session.version)


@contextmanager
def memory_given_back() -> Iterator[None]:
    """The worker lives on, and Arrow keeps what it had."""
    import pyarrow as pa

    try:
        yield
    finally:
        pa.default_memory_pool().release_unused()
