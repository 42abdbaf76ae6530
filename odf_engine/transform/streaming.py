"""Transactions of queries that keep state: windows, joins in a time bound, groupings, deduplication."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.changelog import Op
from odf_engine.data.slices import WrittenSlice, write_slice
from odf_engine.errors import BadData, InvalidQuery, Unsupported
from odf_engine.metadata.model import Checkpoint, TransformRequest
from odf_engine.progress import Reporter
from odf_engine.spark.query import run_query
from odf_engine.spark.settings import is_here
from odf_engine.spark.slices import plain_schema, plain_slice
from odf_engine.spark.stateful import ROWS, Stateful, stateful
from odf_engine.spark.streams import Streams, is_plain
from odf_engine.spark.types import arrow_schema
from odf_engine.transform.arranging import Arranging
from odf_engine.transform.batches import (
    END_OF_TIME,
    Batch,
    Marks,
    Slice,
    batches,
    batches_by_watermark,
    read_slices,
)
from odf_engine.transform.changes import Emitted, read_emitted
from odf_engine.transform.checkpoint import (
    ENGINE,
    FORMAT,
    About,
    read_about,
    read_checkpoint,
    write_checkpoint,
)
from odf_engine.transform.contract import Result
from odf_engine.transform.output import Contract

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame
    from odf_engine.spark.session import SparkSession

_EMITTED: Final = "emitted.arrow"


class Ready(NamedTuple):
    """A query that is about to run: over which slices, and of a grouping without a window what it gave."""

    query: Stateful
    contract: Contract
    slices: list[Slice]
    emitted: Emitted | None


class Streaming:
    """One transaction.

    Args:
        session: the job's own, in which ``system_time()`` is defined.
        request: what to run; its checkpoints' folder is used for temporary files.
        declared: the schema of the dataset; None before it has one.
        reporter: hears of amounts and late rows, and is asked whether to stop.
        state: what the query's state depends on (:attr:`Validated.state`).
    """

    def __init__(
        self,
        session: SparkSession,
        request: TransformRequest,
        declared: pa.Schema | None,
        reporter: Reporter,
        state: str,
    ) -> None:
        self._session = session
        self._request = request
        self._depends = state
        self._declared = declared
        self._reporter = reporter
        self._new_checkpoint = Path(request.new_checkpoint_path)
        folder = self._folder = plain_folder(
            self._new_checkpoint.with_name("stream"), str(session.sparkContext.master)
        )
        self._kept = folder / "kept"
        self._scratch = folder / "scratch"
        self._scratch.mkdir(parents=True)
        self._arrange = Arranging(session, self._scratch, reporter)
        self._streams = Streams(session, self._kept / "state", folder)

    def run(self) -> Result:
        """Runs it and writes slice and checkpoint.

        Raises:
            InvalidQuery, Unsupported: the query; BadData: a value, a slice or the checkpoint.
            Cancelled: nothing is left.
        """
        return self._cleared(self._run)

    def finish(self) -> Result:
        """Writes the rows that were still to come, and no checkpoint; the request brings nothing.

        Raises:
            OdfError: as for :meth:`run`.
        """
        return self._cleared(self._finish)

    def rebuild(self) -> Result:
        """Writes the state after everything that the request brings, begun from nothing.

        The rows until then are dropped. Of a grouping without a window the slice has what turns the rows
        of the query whose checkpoint the request names into its own.

        Raises:
            OdfError: as for :meth:`run`.
        """
        return self._cleared(self._rebuild)

    def _cleared(self, work: Callable[[], Result]) -> Result:
        try:
            return work()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> Result:
        about = self._before()
        ready = self._ready()
        marks = Marks(about.watermarks)
        if ready.emitted is not None:
            ready.emitted.load(self._kept / _EMITTED)
        todo = self._batches(ready, marks)
        written = self._write(chain.from_iterable(self._results(ready, todo)), ready.contract)
        after = marks.after(self._request.query_inputs, None)
        checkpoint = None
        if todo or after != marks or self._request.prev_checkpoint_path is None:
            checkpoint = self._save(ready, after)
        return Result(written, ready.contract.schema, checkpoint)

    def _finish(self) -> Result:
        self._before()
        ready = self._ready()
        if ready.emitted is not None:
            ready.emitted.load(self._kept / _EMITTED)
        rows = self._results(ready, [Batch([], END_OF_TIME)])
        written = self._write(chain.from_iterable(rows), ready.contract)
        return Result(written, ready.contract.schema)

    def _rebuild(self) -> Result:
        ready, nothing = self._ready(), Marks({})
        todo = self._batches(ready, nothing)
        for rows in self._results(ready, todo):
            deque(rows, maxlen=0)
        written = None
        if ready.emitted is not None:
            changes = _with_operations(*ready.emitted.instead_of(self._emitted_before()))
            written = self._write(iter(changes), ready.contract)
        checkpoint = self._save(ready, nothing.after(self._request.query_inputs, None))
        return Result(written, ready.contract.schema, checkpoint)

    def _ready(self) -> Ready:
        slices = read_slices(self._request.query_inputs)
        aliases = {self._request.query_inputs[each.at].query_alias for each in slices if each.changes}
        query = self._query(aliases)
        columns = arrow_schema(query.frame.schema)
        own = pa.schema([columns.field(name) for name in query.own(columns.names)])
        contract = Contract(own, self._request.vocab, self._declared)
        self._check(query, slices)
        emitted = Emitted(own, query.keys, contract.event_time) if query.mode == "update" else None
        return Ready(query, contract, slices, emitted)

    def _batches(self, ready: Ready, marks: Marks) -> list[Batch]:
        inputs = self._request.query_inputs
        if ready.query.by_commit:
            return list(batches_by_watermark(ready.slices, inputs, marks, each=True))
        return list(batches(ready.slices, inputs, marks, each=ready.emitted is not None))

    def _results(self, ready: Ready, todo: Sequence[Batch]) -> list[Iterator[pa.RecordBatch]]:
        """Runs batches; the rows of each in order."""
        results: list[Iterator[pa.RecordBatch]] = []
        for number, batch in enumerate(todo):
            rows = self._batch(ready.query, ready.contract, batch, number)
            results.append(rows if ready.emitted is None else _changed(ready.emitted, rows))
        if not ready.query.order:
            return results
        rows = chain.from_iterable(results)
        schema = arrow_schema(ready.query.frame.schema)
        return [self._arrange.ordered(rows, schema, ready.query.order, ready.contract.event_time)]

    # --- The query and its state --------------------------------------------------------------

    def _query(self, changing: set[str]) -> Stateful:
        views: dict[str, DataFrame] = {}
        for at, each in enumerate(self._request.query_inputs):
            schema = plain_schema(pq.read_schema(each.schema_file), each.vocab)
            views[each.query_alias] = self._streams.view(at, schema, each.vocab)
        frame = run_query(self._session, views, self._request.transform.queries or [])
        inputs = {each.query_alias: each.vocab for each in self._request.query_inputs}
        return stateful(self._session, frame, inputs, self._request.vocab.event_time_column, changing)

    def _before(self) -> About:
        """The state after the transaction before, unpacked."""
        path = self._request.prev_checkpoint_path
        if path is None:
            return About(
                format=FORMAT, engine=ENGINE, query=_hash(self._request), watermarks={}, watermark=None
            )
        about = read_checkpoint(Path(path), self._kept)
        if about.query != _hash(self._request) and about.state != self._depends:
            raise Unsupported(
                "the checkpoint holds the state of another query or of other inputs",
                where=path,
                hint="put the old query back; odf add --update sees to the state where a query changes",
            )
        return about

    def _emitted_before(self) -> pa.Table | None:
        """The newest rows of the groups of the query before, where it had such."""
        path, folder = self._request.prev_checkpoint_path, self._scratch / "before"
        if path is None:
            return None
        folder.mkdir()
        read_checkpoint(Path(path), folder)
        return read_emitted(folder / _EMITTED)

    def _save(self, ready: Ready, marks: Marks) -> Checkpoint:
        if ready.emitted is not None:
            ready.emitted.save(self._kept / _EMITTED)
        aliases = [each.query_alias for each in self._request.query_inputs]
        about = About(
            format=FORMAT,
            engine=ENGINE,
            query=_hash(self._request),
            state=self._depends,
            watermarks=dict(marks.known),
            watermark=marks.least(aliases),
        )
        return write_checkpoint(self._new_checkpoint, about, self._kept)

    def _check(self, query: Stateful, slices: Sequence[Slice]) -> None:
        """Refuses rows that the query would get wrong."""
        plain, streamed = self._plain(query), self._streamed(query)
        for each in slices:
            name = self._request.query_inputs[each.at].query_alias
            if each.changes and name in plain:
                raise InvalidQuery(
                    f"the input '{name}' has retractions or corrections, and {plain[name]} "
                    "cannot take rows back",
                    where="query",
                    hint="count, sum and avg can; or say what they mean to the query, such as WHERE op = 0",
                )
            if name in streamed and each.earliest is not None and each.earliest < 0:
                raise BadData(
                    f"the input '{name}' has rows from before 1970, which a query with state cannot have",
                    where=str(each.path),
                    hint="filter them out in a dataset of its own",
                )

    def _plain(self, query: Stateful) -> Mapping[str, str]:
        """Inputs whose retractions and corrections the query cannot take, and what in it cannot."""
        return query.plain

    def _streamed(self, query: Stateful) -> set[str]:
        """Inputs whose rows have to be in the time that Spark knows for streams."""
        aliases = {each.query_alias for each in self._request.query_inputs}
        return aliases if query.mode == "append" else set()

    # --- Batches ------------------------------------------------------------------------------

    def _batch(
        self, query: Stateful, contract: Contract, batch: Batch, number: int
    ) -> Iterator[pa.RecordBatch]:
        """Runs a batch; its rows in order."""
        files = self._files(batch, number)
        taken: list[Iterator[pa.RecordBatch]] = []

        def take(frame: DataFrame) -> None:
            gather = self._arrange.kept if query.order else self._arrange.sorted
            taken.append(gather(frame, contract, number))

        # A row may still come whose time is exactly the watermark, where that makes a difference.
        mark = max(0, (batch.watermark or 0) - query.exact)
        late = self._streams.run(query.frame, query.mode, files, mark, take, self._reporter)
        if late:
            self._reporter.line(f"{late:,} rows came too late for what they belong to: left out", "warning")
        return chain.from_iterable(taken)

    def _files(self, batch: Batch, number: int) -> list[list[Path]]:
        """What a batch reads, by number of the input."""
        inputs = self._request.query_inputs
        files: list[list[Path]] = [[] for _ in inputs]
        for each in batch.slices:
            name = f"{number}-{each.at}-{len(files[each.at])}.parquet"
            path = plain_slice(each.path, inputs[each.at].vocab, self._scratch / f"copy-{name}")
            files[each.at].append(path if is_plain(path) else _link(self._scratch / f"link-{name}", path))
        return files

    def _write(self, rows: Iterator[pa.RecordBatch], contract: Contract) -> WrittenSlice | None:
        request = self._request
        return write_slice(
            (_finished(contract, batch) for batch in rows),
            schema=contract.schema,
            vocab=request.vocab,
            path=Path(request.new_data_path),
            first_offset=request.next_offset,
            system_time=request.system_time,
            fallback_event_time=request.system_time,
            reporter=self._reporter,
        )


def goes_on(request: TransformRequest) -> About | None:
    """The state that the transaction goes on from, where it is that of the very same query.

    Raises:
        BadData, Unsupported: the checkpoint cannot be read.
    """
    path = request.prev_checkpoint_path
    about = None if path is None else read_about(Path(path))
    return about if about is not None and about.query == _hash(request) else None


def _hash(request: TransformRequest) -> str:
    """Of what the state belongs to."""
    steps = msgspec.json.encode(request.transform.queries or [], order="sorted")
    if request.transform.temporal_tables:
        steps += msgspec.json.encode(request.transform.temporal_tables, order="sorted")
    aliases = [f"{each.dataset_id} {each.query_alias}" for each in request.query_inputs]
    return hashlib.sha3_256(b"\n".join([steps, *map(str.encode, aliases)])).hexdigest()


def plain_folder(folder: Path, master: str) -> Path:
    """This folder, or another one where its name would mean something else to Spark.

    Raises:
        Unsupported: the machines of a cluster would not see another one.
    """
    if is_plain(folder):
        return folder
    if not is_here(master):
        raise Unsupported(
            "on a cluster, a query with state needs a workspace whose path has no other characters than "
            "letters, digits and _ . - /",
            where=str(folder),
            hint="move the workspace, or run Spark here: odf config set spark.master 'local[*]'",
        )
    return Path(tempfile.mkdtemp(prefix="odf-stream-"))


def _link(link: Path, path: Path) -> Path:
    link.symlink_to(path)
    return link


_OPERATION: Final = "odf_operation"


def _finished(contract: Contract, batch: pa.RecordBatch) -> pa.RecordBatch:
    if _OPERATION in batch.schema.names:
        return contract.finished(batch, batch.column(_OPERATION))
    return contract.finished(batch, pa.repeat(pa.scalar(int(Op.APPEND), pa.int32()), batch.num_rows))


def _changed(emitted: Emitted, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the newest rows of groups change, with the operation of each row."""
    found = list(rows)
    if not found:
        return iter(())
    table = pa.Table.from_batches(found)
    alive = [count > 0 for count in table.column(ROWS).to_pylist()]
    return iter(_with_operations(*emitted.changes(table, alive)))


def _with_operations(changes: pa.Table, operations: Sequence[int]) -> list[pa.RecordBatch]:
    made = changes.append_column(_OPERATION, pa.array(operations, pa.int32()))
    return made.to_batches(max_chunksize=1 << 16)
