"""Evaluation of the checks of a dataset on a slice, before its commit or later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.progress import Reporter, count_of
from odf_engine.chain.block_summary import SliceSummary
from odf_engine.chain.schema_evolution import declared_schema
from odf_engine.checks.definition import (
    NEW_ROWS,
    CheckDefinition,
    Freshness,
    Reference,
    Retractions,
    RowCount,
    Rule,
    SqlRule,
    Unique,
    checks_of,
)
from odf_engine.checks.key_rules import KeyedRows, find_missing_keys, find_repeated_keys, select_examined
from odf_engine.checks.reports import (
    CheckReport,
    RuleResult,
    encode_report,
    store_rejected,
    store_report,
)
from odf_engine.checks.retractions import find_retractions
from odf_engine.checks.row_rules import MAX_SAMPLE, RowRule, RuleFinding, make_row_rule, sample_rows
from odf_engine.data.parquet.slices import TableFiles, WrittenSlice, read_batches
from odf_engine.errors import CheckFailed, InvalidManifest, NotFound, NotTrusted, OdfError
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.rows.execution import Tables, TimeTravelDefaults, check_query, execute_query
from odf_engine.rows.projection import primary_key
from odf_engine.sql.query_lineage import find_unknown_column
from odf_engine.sql.query_text import table_names
from odf_engine.storage.scratch import job_scratch_folder
from odf_engine.workspace.documents.document import read_document
from odf_engine.workspace.documents.private_source import local_state
from odf_engine.workspace.documents.store import DocumentEntry

if TYPE_CHECKING:
    from odf_engine.spark import SparkSession
    from odf_engine.sql.table_functions import TableFunctionCall
    from odf_engine.workspace.dataset_summary import DatasetEntry
    from odf_engine.workspace.workspace import Workspace

_VERSION_DIGITS: Final = 16
StartSession = Callable[[], "SparkSession"]
"""Returns a new Spark session; starts Spark if it does not run."""


@dataclass(frozen=True)
class ExaminedRows:
    """The rows that checks examine.

    Attributes:
        paths: slices with the rows.
        history: the other slices of the dataset, oldest first.
        schema: columns of the rows.
        last_rows: number of rows of the last commit before them, or None if absent.
        watermark: watermark of the dataset with the rows.
        now: the system time that the watermark is compared to.
    """

    paths: Sequence[Path]
    history: Sequence[Path]
    schema: pa.Schema
    last_rows: int | None
    watermark: Timestamp | None
    now: Timestamp


class DatasetChecks:
    """The checks of a dataset.

    Args:
        workspace: the workspace.
        entry: the dataset.
        session: returns a Spark session for queries, or None if there is no Spark.
        definitions: checks that replace the stored ones. Without a session, only the columns of their queries
            are checked.

    Raises:
        InvalidManifest: a file is invalid, or names a column that the dataset does not have.
        NotFound: a rule refers to a dataset that does not exist.
        NotTrusted: a file with queries is new or has changed, and is not accepted.
        InvalidQuery: a query is invalid.
    """

    def __init__(
        self,
        workspace: Workspace,
        entry: DatasetEntry,
        session: StartSession | None,
        definitions: Sequence[CheckDefinition] | None = None,
    ) -> None:
        self._workspace, self._entry, self._session = workspace, entry, session
        with_queries = definitions is None or session is not None
        if definitions is None:
            entries = checks_of(workspace.odf, entry.alias, entry.id, workspace.config)
            _require_acceptance(entries)
            definitions = [check.document for check in entries]
        self._checks = definitions
        if not definitions:
            return
        self._vocab = entry.dataset.state().vocabulary
        if (declared := declared_schema(entry.dataset.state())) is not None:
            for check, index, rule in self._rules():
                self._check_rule(check, index, rule, declared)
                if isinstance(rule, SqlRule) and with_queries:
                    self._check_query(check, index, rule, declared)
                elif isinstance(rule, SqlRule):
                    self._check_columns(check, index, rule, declared)

    def __bool__(self) -> bool:
        return bool(self._checks)

    def _rules(self) -> Iterator[tuple[CheckDefinition, int, Rule]]:
        for check in self._checks:
            for index, rule in enumerate(check.spec.rules):
                yield check, index, rule

    def _check_rule(self, check: CheckDefinition, index: int, rule: Rule, schema: pa.Schema) -> None:
        """Check that a rule fits the columns.

        Raises:
            InvalidManifest: it does not.
            NotFound: the other dataset of a reference does not exist.
        """
        for position, name in enumerate(rule.used_columns):
            if name not in schema.names:
                is_list = "columns" in rule.__struct_fields__
                _raise_unknown_column(
                    name, schema.names, check.where(index, f".columns[{position}]" if is_list else ".column")
                )
        make_row_rule(rule, schema, self._vocab.offset_column, partial(check.where, index))
        if isinstance(rule, Reference):
            self._other(check, index, rule)

    def _table_names(self) -> list[str]:
        datasets = self._workspace.datasets()
        return [NEW_ROWS, *(name for dataset in datasets for name in (str(dataset.alias), str(dataset.id)))]

    def _other(self, check: CheckDefinition, index: int, rule: Reference) -> KeyedRows:
        """Return the rows of the other dataset of a reference."""
        try:
            entry = self._workspace.resolve(rule.dataset)
        except OdfError as error:
            raise InvalidManifest(error.message, where=check.where(index, ".dataset")) from None
        state = entry.dataset.state()
        keys = rule.keys or rule.columns
        schema = declared_schema(state)
        for position, name in enumerate(keys):
            if schema is not None and name not in schema.names:
                _raise_unknown_column(name, schema.names, check.where(index, f".keys[{position}]"))
        paths = [entry.dataset.slice_path(data_slice) for data_slice in entry.dataset.slices()]
        return KeyedRows(paths, keys, state.vocabulary)

    def evaluate(self, rows: ExaminedRows, reporter: Reporter) -> list[RuleResult]:
        """Evaluate all rules.

        Raises:
            InvalidManifest: a rule does not fit the columns of the rows.
            InvalidQuery: a query is invalid.
            Cancelled: the job was cancelled.
        """
        single: dict[int, RowRule] = {}
        others: list[int] = []
        rules = list(self._rules())
        offset, operations = self._vocab.offset_column, self._vocab.operation_type_column
        columns: set[str] = {offset, operations}
        for position, (check, index, rule) in enumerate(rules):
            self._check_rule(check, index, rule, rows.schema)
            evaluation = make_row_rule(rule, rows.schema, offset, partial(check.where, index))
            if evaluation is None:
                others.append(position)
            else:
                single[position] = evaluation
                columns.update(rule.used_columns)
        count = 0
        names = [name for name in rows.schema.names if name in columns]
        for path in rows.paths:
            known = names if single else [operations]
            for batch in read_batches(path, known):
                reporter.raise_if_cancelled()
                selected = select_examined(batch, operations)
                count += selected.num_rows
                for evaluation in single.values():
                    evaluation.update(selected)
        findings: dict[int, RuleFinding | None] = {at: state.finish() for at, state in single.items()}
        for at in others:
            reporter.raise_if_cancelled()
            check, index, rule = rules[at]
            findings[at] = self._evaluate_other(check, index, rule, rows, count, reporter)
        return [_result(*rules[at], count, findings[at]) for at in range(len(rules))]

    def _evaluate_other(
        self,
        check: CheckDefinition,
        index: int,
        rule: Rule,
        rows: ExaminedRows,
        count: int,
        reporter: Reporter,
    ) -> RuleFinding | None:
        match rule:
            case Unique(columns=columns, within=within):
                new, is_within = KeyedRows(rows.paths, columns, self._vocab), within == "slice"
                with job_scratch_folder(self._workspace.odf / "cache", "query") as folder:
                    return find_repeated_keys(new, rows.history, folder, reporter, within_slice=is_within)
            case Reference(columns=columns, dataset=name):
                new, other = KeyedRows(rows.paths, columns, self._vocab), self._other(check, index, rule)
                with job_scratch_folder(self._workspace.odf / "cache", "query") as folder:
                    return find_missing_keys(new, other, name, folder, reporter)
            case RowCount():
                return _find_row_count(rule, count, rows.last_rows)
            case Retractions():
                keys = primary_key(local_state(self._entry.dataset))
                return find_retractions(rule, rows.paths, rows.history, keys, self._vocab, reporter)
            case Freshness(max_age=limit):
                return _find_age(limit.seconds, rows.watermark, rows.now)
            case SqlRule():
                return self._run_query(check, index, rule, rows, reporter)
        return None

    def _run_query(
        self, check: CheckDefinition, index: int, rule: SqlRule, rows: ExaminedRows, reporter: Reporter
    ) -> RuleFinding | None:
        count, sample = 0, list[dict[str, str | None]]()
        names = self._table_names()
        with (
            self._locate_query_errors(check, index) as session,
            job_scratch_folder(self._workspace.odf / "cache", "query") as folder,
        ):
            # Spark ignores files whose names start with a dot, as those of staged slices do.
            paths = [folder / f"{number}.parquet" for number in range(len(rows.paths))]
            for path, link in zip(rows.paths, paths, strict=True):
                link.symlink_to(path.resolve())
            find = self._table_finder(paths, rows.schema, reporter)
            with execute_query(rule.query, names, find, session, reporter) as answer:
                for batch in answer.batches:
                    reporter.raise_if_cancelled()
                    count += batch.num_rows
                    if free := MAX_SAMPLE - len(sample):
                        sample += sample_rows(batch.slice(0, free), None, batch.schema.names)
        return RuleFinding(count, f"the query returns {count_of(count, 'row')}", sample) if count else None

    def _check_query(self, check: CheckDefinition, index: int, rule: SqlRule, schema: pa.Schema) -> None:
        """Check tables, columns and types of a query.

        Raises:
            InvalidQuery: it is invalid.
        """
        with (
            self._locate_query_errors(check, index) as session,
            job_scratch_folder(self._workspace.odf / "cache", "query") as folder,
        ):
            pq.write_table(schema.empty_table(), folder / "0.parquet")
            find = self._table_finder([folder / "0.parquet"], schema, Reporter())
            check_query(rule.query, self._table_names(), find, session)

    def _check_columns(self, check: CheckDefinition, index: int, rule: SqlRule, schema: pa.Schema) -> None:
        """Check the columns of a query, as far as they can be resolved without Spark.

        Raises:
            InvalidManifest: a column does not exist.
        """
        inputs: dict[str, Sequence[str] | None] = {NEW_ROWS: schema.names}
        for table in table_names(rule.query):
            if table.call is not None:  # its arguments would be read as columns
                return
            with suppress(OdfError):  # a run reports the error
                declared = declared_schema(self._workspace.resolve(table.name).dataset.state())
                inputs[table.name] = None if declared is None else declared.names
        unknown = find_unknown_column(rule.query, inputs)
        if unknown is not None:
            names = list(dict.fromkeys(name for columns in inputs.values() for name in columns or ()))
            name = unknown.rpartition(".")[2]
            _raise_unknown_column(name, names, check.where(index, ".query"))

    @contextmanager
    def _locate_query_errors(self, check: CheckDefinition, index: int) -> Iterator[SparkSession]:
        """Yield a session. Errors in the block get the position of the query in the file."""
        place = check.where(index, ".query")
        if self._session is None:
            raise InvalidManifest("a rule with a query requires Spark", where=place)
        try:
            yield self._session()
        except OdfError as error:
            error.where = f"{place}: {error.where}" if error.where else place
            raise

    def _table_finder(
        self, paths: Sequence[Path], schema: pa.Schema, reporter: Reporter
    ) -> Callable[[str, TableFunctionCall | None], TableFiles]:
        """Return a function that returns the files of a dataset, or of the new rows, by name."""
        tables = Tables(self._workspace, reporter, TimeTravelDefaults())

        def find(name: str, call: TableFunctionCall | None) -> TableFiles:
            if name.casefold() == NEW_ROWS:
                return TableFiles(name, paths, schema, self._vocab)
            return tables.files(name, call)

        return find

    def check_slices(
        self,
        written: Sequence[WrittenSlice],
        schema: pa.Schema,
        *,
        system_time: Timestamp,
        watermark: Timestamp | None,
        reporter: Reporter,
    ) -> None:
        """Evaluate the rules on the slices of a commit, and store the report under the hash of the last one.

        Call it directly before the commit. Without checks or slices it does nothing.

        Args:
            written: the slices.
            schema: their complete schema.
            system_time: of their rows.
            watermark: the watermark of the dataset after the commit.
            reporter: receives the phase and the warnings, and cancels.

        Raises:
            CheckFailed: a rule with ``onFailure: block`` is violated. The slices were moved to the cache.
            OdfError: a rule cannot be evaluated, or the report cannot be stored.
        """
        if not self._checks or not written:
            return
        began = monotonic()
        reporter.phase("check")
        dataset = self._entry.dataset
        slices = dataset.slices()
        rows = ExaminedRows(
            [written_slice.path for written_slice in written],
            dataset.slice_paths(slices, reporter),
            schema,
            next(commit_rows(slices), None),
            watermark,
            system_time,
        )
        report = CheckReport(
            str(self._entry.id),
            str(written[-1].physical_hash),
            written[0].offset_interval.start,
            written[-1].offset_interval.end,
            str(system_time),
            self.evaluate(rows, reporter),
        )
        reporter.log(f"checks: {report.summary}, in {monotonic() - began:.1f} s")
        for result in report.warnings:
            reporter.warn(f"check {result.text}", "check", result.failing)
        if report.failed:
            self._reject(written, report, reporter)
        store_report(dataset.folder, written[-1].physical_hash, encode_report(report, self._key()))

    def _reject(self, written: Sequence[WrittenSlice], report: CheckReport, reporter: Reporter) -> None:
        name = self._entry.alias
        for result in report.failed[1:]:  # the error of the job has the first one
            reporter.log(f"check {result.text}", "error")
        hint = f"nothing was committed; odf check rejected {name} shows the rows"
        try:
            for written_slice in written:
                part = msgspec.structs.replace(
                    report,
                    slice=str(written_slice.physical_hash),
                    first_offset=written_slice.offset_interval.start,
                    last_offset=written_slice.offset_interval.end,
                )
                store_rejected(self._workspace.odf, written_slice.path, part)
        except OdfError as error:
            reporter.log(f"the rejected rows cannot be stored: {error}", "warning")
            hint = "nothing was committed"
        first, *more = report.failed
        others = f", and {count_of(len(more), 'other rule')} failed" if more else ""
        raise CheckFailed(f"check {first.text}{_sample_text(first)}{others}", where=str(name), hint=hint)

    def _key(self) -> str | None:
        try:
            return self._workspace.keys.private_key_pem(self._entry.id)
        except NotFound:
            return None

    def check_stored(self, reporter: Reporter) -> list[RuleResult]:
        """Evaluate the rules on all rows of the dataset. Nothing is stored.

        Rules about the numbers of rows and retractions examine the newest commit. Queries read all rows as
        ``new_rows``.

        Raises:
            OdfError: a rule cannot be evaluated.
        """
        dataset = self._entry.dataset
        state, slices = dataset.state(), dataset.slices()
        schema = declared_schema(state)
        if not self._checks or not slices or schema is None:
            return []
        paths = dataset.slice_paths(slices, reporter)
        rows = ExaminedRows(paths, [], schema, None, state.watermark, Timestamp.now())
        reporter.phase("check")
        findings = self.evaluate(rows, reporter)
        newest = _newest_commit(rows, slices)
        for at, (check, index, rule) in enumerate(self._rules()):
            if isinstance(rule, RowCount | Retractions):
                count = sum(
                    data_slice.end - data_slice.start + 1 for data_slice in slices[len(newest.history) :]
                )
                finding = self._evaluate_other(check, index, rule, newest, count, reporter)
                findings[at] = _result(check, index, rule, count, finding)
        return findings


def _require_acceptance(checks: Sequence[DocumentEntry[CheckDefinition]]) -> None:
    for check in checks:
        if check.state != "active":
            word = "has changed" if check.state == "changed" else "is new"
            raise NotTrusted(
                f"the check '{check.name}' has queries and {word}",
                where=check.document.source.name,
                hint=f"review the file, then accept it: odf check accept {check.name}",
            )


def _newest_commit(rows: ExaminedRows, slices: Sequence[SliceSummary]) -> ExaminedRows:
    """Return the rows of the newest commit among all rows of a dataset. ``slices`` has their slices."""
    first = next(
        at for at, data_slice in enumerate(slices) if data_slice.system_time == slices[-1].system_time
    )
    last_rows = next(commit_rows(slices[:first]), None)
    return replace(rows, paths=rows.paths[first:], history=rows.paths[:first], last_rows=last_rows)


def commit_rows(slices: Sequence[SliceSummary]) -> Iterator[int]:
    """Yield the numbers of rows of the commits, newest first. The slices of a commit have one system time."""
    for _, group in groupby(reversed(slices), key=attrgetter("system_time")):
        yield sum(commit_slice.end - commit_slice.start + 1 for commit_slice in group)


def load_checks(
    workspace: Workspace, entry: DatasetEntry, session: StartSession | None, definition: str = ""
) -> DatasetChecks | None:
    """Return the checks of a dataset, or None if it has none. See :class:`DatasetChecks`.

    Args:
        workspace, entry, session: see :class:`DatasetChecks`.
        definition: the text of a check that replaces the stored ones, or "".
    """
    given = [read_document(definition.encode(), "check", CheckDefinition)] if definition else None
    return DatasetChecks(workspace, entry, session, given) or None


def _result(
    check: CheckDefinition, index: int, rule: Rule, count: int, finding: RuleFinding | None
) -> RuleResult:
    result = RuleResult(
        check.name,
        check.digest[:_VERSION_DIGITS],
        rule.label,
        str(rule.__struct_config__.tag),
        rule.on_failure or check.spec.on_failure,
        count,
    )
    if finding is None:
        return result
    changes: dict[str, Any] = {
        "failing": finding.failing,
        "message": finding.message,
        "sample": finding.sample,
    }
    return msgspec.structs.replace(result, **changes)


def _find_row_count(rule: RowCount, count: int, last: int | None) -> RuleFinding | None:
    limits = [
        (rule.min is not None and count < rule.min, f"fewer than {rule.min}"),
        (rule.max is not None and count > rule.max, f"more than {rule.max}"),
    ]
    if last:
        ratio = count / last
        of_last = f"times the {count_of(last, 'row')} of the last commit"
        min_ratio, max_ratio = rule.min_ratio, rule.max_ratio
        limits += [
            (min_ratio is not None and ratio < min_ratio, f"less than {min_ratio} {of_last}"),
            (max_ratio is not None and ratio > max_ratio, f"more than {max_ratio} {of_last}"),
        ]
    for violated, limit in limits:
        if violated:
            return RuleFinding(1, f"{count_of(count, 'row')}: {limit}", [])
    return None


def _find_age(seconds: float, watermark: Timestamp | None, now: Timestamp) -> RuleFinding | None:
    if watermark is None:
        return RuleFinding(1, "the dataset has no watermark", [])
    age = (now.ns - watermark.ns) / 1e9
    if age <= seconds:
        return None
    return RuleFinding(1, f"the watermark {watermark} is {age / 3600:,.1f} h before the system time", [])


def _sample_text(result: RuleResult) -> str:
    if not result.sample:
        return ""
    row = ", ".join(f"{name}={value}" for name, value in result.sample[0].items())
    return f" (first: {row[:200]})"


def _raise_unknown_column(name: str, names: Sequence[str], where: str) -> None:
    close = get_close_matches(name, names, 1)
    hint = f"did you mean {close[0]}?" if close else f"columns: {', '.join(names)}"
    raise InvalidManifest(f"unknown column '{name}'", where=where, hint=hint)
