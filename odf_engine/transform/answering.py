"""A query over datasets, asked once: its rows as they come, and the hash of them where it is to be proven."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from odf_engine.progress import Reporter
from odf_engine.workspace.answers import Column, Outcome

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.data.digest import LogicalHasher
    from odf_engine.metadata.sql_calls import TableCall
    from odf_engine.spark.frames import DataFrame, SparkSession
    from odf_engine.transform.contract import TableFiles

_PARTITION_BYTES: Final = 32 << 20
_MOST_PARTITIONS: Final = 200


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
    sql: str,
    names: Collection[str],
    find: Callable[[str, TableCall | None], TableFiles],
    session: SparkSession,
    reporter: Reporter,
    *,
    proven: bool = False,
) -> Iterator[Answer]:
    """Runs a query. Errors within the block, also while rows are read, have their place in the query.

    Args:
        sql: the query.
        names: the names of all tables that it can read.
        find: returns the files of a table by its name, and by the table function it stands for, if any.
        session: of its own.
        reporter: receives progress, and can cancel.
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
    from odf_engine.spark.slices import slices_frame

    question = Question(sql, names)
    size = 0

    def frame_of(name: str) -> DataFrame:
        nonlocal size
        files = find(name, question.calls.get(name))
        frame = slices_frame(session, files.paths, files.schema, files.vocab)
        size += sum(path.stat().st_size for path in files.paths)
        return frame

    with question.placing():
        frame = question.ask(session, frame_of)
        # Each partition that Spark sorts or groups has to fit in memory.
        partitions = min(max(2, size // _PARTITION_BYTES + 1), _MOST_PARTITIONS)
        session.conf.set("spark.sql.shuffle.partitions", str(partitions))
        reporter.phase("query")
        frame, ordered = in_one_order(session, frame) if proven else (frame, False)
        schema, batches = arrow_batches(frame, reporter)
        with LogicalHasher(schema) if proven else nullcontext() as hasher:
            answer = Answer(schema, batches, hasher, ordered)
            try:
                yield answer
            finally:
                answer.batches.close()  # what Spark reads ahead is not wanted any more


@contextmanager
def memory_given_back() -> Iterator[None]:
    """The worker lives on, and Arrow keeps what it had."""
    import pyarrow as pa

    try:
        yield
    finally:
        pa.default_memory_pool().release_unused()
