"""Ingestion of several small files as one commit, with the rows of one commit for each file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from msgspec.structs import astuple

from odf_engine.base.files import remove_temporary
from odf_engine.base.progress import ForwardingReporter, count_of
from odf_engine.data.parquet.slices import WrittenSlice
from odf_engine.errors import Cancelled, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.ingest.fetch.files_glob import join_states
from odf_engine.ingest.fetch.model import Payload
from odf_engine.ingest.merge.base import MergeInputs
from odf_engine.ingest.merge.merge_strategy import merge_files, repeats_rows_by_file
from odf_engine.ingest.payload import IngestContext, PayloadJob, StagedSlices
from odf_engine.ingest.write_progress import WriteProgress
from odf_engine.metadata.model import Append, FilesGlob, Ledger, SetPollingSource

MAX_BYTES: Final = 16 << 20
"""Bytes of the files of a commit. A larger file has a commit of its own."""


class NotOneCommit(OdfError):
    """The files would not have the rows of one commit for each file, or a message must name one file."""


def files_per_commit(context: IngestContext, source: SetPollingSource) -> int:
    """Return how many files of a source one commit may have.

    Only appends are independent of the boundaries of commits: a snapshot compares each file with the state
    before, the rows of a stream depend on their order, and checks evaluate a commit.
    """
    entry, config = context.entry, context.workspace.config
    names = (str(entry.alias), str(entry.id))
    merge = source.merge
    is_possible = (
        isinstance(source.fetch, FilesGlob)
        and context.checks is None
        and (
            isinstance(merge, Append)
            or (isinstance(merge, Ledger) and config.conflict_action(*names) != "correct")
        )
    )
    return config.fetch.files_per_commit_of(*names) if is_possible else 1


class FileGroups:
    """Groups of payloads, one for each commit. Payloads are fetched when their group is requested.

    Args:
        payloads: the payloads.
        limit: how many payloads a group may have. It can be changed between two groups.
    """

    def __init__(self, payloads: Iterator[Payload], limit: int) -> None:
        self._payloads = payloads
        self.limit = limit

    def __iter__(self) -> Iterator[list[Payload]]:
        """Yield the groups, each of up to ``MAX_BYTES``.

        Raises:
            Cancelled: the pull was cancelled. Payloads that have not been yielded are dropped.
            OdfError: the next payload cannot be fetched. All earlier payloads have been yielded.
        """
        group: list[Payload] = []
        size = 0
        failure: Exception | None = None
        while True:
            try:
                payload = next(self._payloads, None)
            except Cancelled:
                raise
            except (OdfError, OSError) as error:
                payload, failure = None, error
            if payload is None:
                break
            of_payload = 0 if payload.stamp is None else payload.stamp[1]
            if group and size + of_payload > MAX_BYTES:
                yield group
                group, size = [], 0
            group.append(payload)
            size += of_payload
            if len(group) >= self.limit:
                yield group
                group, size = [], 0
        if group:
            yield group
        if failure is not None:
            raise failure


class FileBatchJob(PayloadJob):
    """Reads, merges and commits the files of a polling source.

    The rows, their order and their event times are the same as after one commit for each file. Only their
    system time can differ. Anything else is an error, and the caller ingests the files one by one: invalid
    rows, warnings, keys in several files, files with other columns.
    """

    def __init__(
        self,
        context: IngestContext,
        source: SetPollingSource,
        payloads: Sequence[Payload],
        folder: Path,
        *,
        after: Multihash | None,
    ) -> None:
        """Prepare the ingestion into the current head.

        Args:
            context: the dataset, and what its payloads share.
            source: the source event.
            payloads: the fetched files, in order.
            folder: for temporary files; the caller removes it.
            after: the expected head, or None for a dataset without blocks.

        Raises:
            Conflict: the head is not ``after``.
        """
        context = context._replace(reporter=_StrictReporter(context.reporter))
        super().__init__(context, source, _join_payloads(payloads), folder, after=after)
        self._files: list[PayloadJob] = []
        for number, payload in enumerate(payloads):
            scratch = folder / str(number)
            scratch.mkdir()
            # Rows without an event time have the system time of this commit.
            file = replace(payload, event_time=payload.event_time or self._system_time)
            self._files.append(PayloadJob(context, source, file, scratch, after=after))
        self._rows_by_file: list[int] = []

    @contextmanager
    def staged(self) -> Iterator[StagedSlices | None]:
        """Yield the slices that :meth:`run` would commit, or None for empty files; remove them afterwards.

        Raises:
            OdfError: the files have to be ingested one by one.
        """
        staged: StagedSlices | None = None
        try:
            staged = self._stage_files()
            if staged is not None and staged.merged.written and isinstance(self._source.merge, Append):
                self._check_repetition(staged.merged.written)
            for file in self._files:
                file.payload.check_unchanged()
            yield staged
        finally:
            for part in () if staged is None else staged.merged.written:
                remove_temporary(part.path)

    def _stage_files(self) -> StagedSlices | None:
        inputs: list[MergeInputs] = []
        for file in self._files:
            self._reporter.raise_if_cancelled()
            self._reporter.set_amounts(files=file.payload.number, file=file.payload.name)
            opened = file.open_rows()
            if opened is not None:
                self.engine_version = file.engine_version
                inputs.append(file.merge_inputs(opened))
        if not inputs:
            return None
        schema, columns = inputs[0].schema, inputs[0].new.schema
        if any(file.schema != schema or file.new.schema != columns for file in inputs):
            raise NotOneCommit("the files have different columns")
        if inputs[0].changelog is not None:
            raise NotOneCommit("the rows have operations")
        self._reporter.phase("merge")
        merge = self._source.merge
        assert isinstance(merge, Append | Ledger)
        size = sum(file.payload.path.stat().st_size for file in self._files)
        self._progress = WriteProgress(self._reporter, size, total_known=False)
        return self._run_merge(merge_files(merge, inputs, self._rows_by_file), schema)

    def _report_repetition(self, written: Sequence[WrittenSlice]) -> None:
        pass  # Each file is checked when the slices can be removed.

    def _check_repetition(self, written: Sequence[WrittenSlice]) -> None:
        """Check that no file has only rows that repeat earlier rows.

        Raises:
            NotOneCommit: the first row of a file is stored, or all its rows are in earlier files.
        """
        new, ignored = [part.path for part in written], astuple(self._state.vocabulary)
        if repeats_rows_by_file(new, self._rows_by_file, self._dataset, ignored, self._reporter):
            raise NotOneCommit("all rows of a file may repeat earlier rows")


def _join_payloads(payloads: Sequence[Payload]) -> Payload:
    first, last = payloads[0], payloads[-1]
    return replace(
        last,
        name=f"{count_of(len(payloads), 'file')}, {first.name} to {last.name}",
        state=join_states([payload.state for payload in payloads if payload.state is not None]),
        event_time=None,
        stamp=None,
    )


class _StrictReporter(ForwardingReporter):
    """Raises an error for a warning, which has to name one file."""

    def log(self, text: str, level: str = "info") -> None:
        if level in ("warning", "error"):
            raise NotOneCommit(text)
        super().log(text, level)

    def warn(self, text: str, kind: str, count: int | None = None) -> None:
        raise NotOneCommit(text)
