"""Dataset: reads, ingestion, verification and provenance of one dataset."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from odf_engine.api.dataset_chain import DatasetChain
from odf_engine.api.plans.pull_plan import PullSelection, plan_pull
from odf_engine.api.rows import Rows
from odf_engine.base.atomic_files import atomic_file
from odf_engine.base.html_text import fields_html, text_html
from odf_engine.base.progress import JobWarning, Reporter
from odf_engine.base.terminal_text import escape_controls
from odf_engine.chain.linked_objects import export_object, linked_objects
from odf_engine.chain.schema_evolution import column_descriptions, odf_declaration, read_declaration
from odf_engine.checks.reports import StoredReport, read_report, read_summaries, report_json
from odf_engine.derive.provenance.model import TraceStep
from odf_engine.errors import AlreadyExists, InvalidManifest, NotFound, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.jobs.compact import Compact, CompactResult
from odf_engine.jobs.ingest import Ingest
from odf_engine.jobs.preview import Preview
from odf_engine.jobs.pull import Pull, PullResult
from odf_engine.jobs.push import Push, PushResult
from odf_engine.jobs.trace import Trace
from odf_engine.jobs.verify import Verify, VerifyResult
from odf_engine.jobs.views import BuildProjection
from odf_engine.metadata.attachments import attachment_path
from odf_engine.metadata.timestamp import parse_user_time
from odf_engine.on_demand import (
    citation,
    crate,
    dataset_tables,
    definitions,
    latest_state,
    metadata_yaml,
    row_scan,
    row_window,
)
from odf_engine.rows import PinnedVersion
from odf_engine.worker.job_log import read_journal
from odf_engine.worker.protocol import JobState
from odf_engine.workspace.block_warnings import blocks_with_warnings, read_block_warnings
from odf_engine.workspace.dataset_folders import LateRowsFile, Rejects, list_late_rows, read_rejects
from odf_engine.workspace.remotes import DatasetRemotes, Remotes

if TYPE_CHECKING:
    import pyarrow as pa

    from odf_engine.metadata.model import DataSchema, DatasetSnapshot
    from odf_engine.publication.citation import Citation, CitedVersion
    from odf_engine.publication.crate import CrateResult
    from odf_engine.rows.row_window import RowWindowReader
    from odf_engine.tables import TableFormat
    from odf_engine.tables.dataset_tables import WrittenTable
    from odf_engine.workspace.dataset_summary import Summary

_MAX_JOBS: Final = 1000
"""Maximum number of newest jobs that a search for a verification reads."""
Moment = str | date | datetime
"""A time: text as ``2024-01-31`` or RFC 3339, a date (its first moment in UTC), or a datetime with a zone."""
Version = int | Moment
"""A version of a dataset: the number of a block, its hash, or a system time."""


class LinkedObject(NamedTuple):
    """An object that columns with links refer to.

    Attributes:
        hash: its hash, as in the columns.
        links: the number of links to it.
        size: its size in bytes, or None if it is missing.
    """

    hash: Multihash
    links: int
    size: int | None


SUMMARY_COLUMNS: Final[Mapping[str, Callable[[Summary], object]]] = {
    "name": lambda summary: summary.name,
    "kind": lambda summary: summary.kind.name.lower(),
    "blocks": lambda summary: summary.blocks,
    "rows": lambda summary: summary.records,
    "bytes": lambda summary: summary.size,
    "watermark": lambda summary: summary.watermark,
    "last pulled": lambda summary: summary.last_pulled,
}
"""The fields of a dataset that notebooks display."""


class Dataset(DatasetChain):
    """A dataset of a workspace. Rows and blocks are read from disk on each access.

    >>> dataset = workspace["city.population"]
    >>> dataset.name, dataset.kind
    ('city.population', 'root')
    >>> len(dataset.blocks()) > 2
    True
    """

    @property
    def definition(self) -> str:
        """The current definition: a manifest in YAML.

        >>> print(workspace["city.population"].definition.splitlines()[0])
        kind: DatasetSnapshot
        """
        return metadata_yaml.snapshot_to_yaml(self.snapshot())

    def snapshot(self) -> DatasetSnapshot:
        """Return the current definition."""
        return definitions.read_definition(self._entry, self._workspace.datasets())

    @property
    def schema(self) -> pa.Schema | None:
        """The columns, or None if the dataset has no data yet and declares none.

        >>> workspace["city.population"].schema.names
        ['offset', 'op', 'system_time', 'event_time', 'city', 'population']
        """
        return read_declaration(self.state)

    @property
    def odf_schema(self) -> DataSchema | None:
        """The columns as an ODF schema, or None as in :attr:`schema`."""
        return odf_declaration(self.state)

    @property
    def column_descriptions(self) -> dict[str, str]:
        """The descriptions of the columns by name, from ODF schemas and from comments in DDL.

        >>> workspace["city.population"].column_descriptions
        {}
        """
        return column_descriptions(self.state)

    def checks(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the stored results of checks, oldest block first: ``block``, ``signed``, ``results``, ….

        Args:
            limit: the maximum number of newest blocks with results.

        Raises:
            BadData: a report is damaged.

        >>> workspace["city.population"].checks()
        []
        """
        newest = reversed(self._entry.dataset.slices())
        reports = ((data_slice, self.check_report(data_slice.physical_hash)) for data_slice in newest)
        results = ({"block": row.sequence_number, **report_json(stored)} for row, stored in reports if stored)
        return list(islice(results, limit))[::-1]

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        as_at: Version | None = None,
        offsets: tuple[int | None, int | None] | None = None,
        event_time: tuple[Moment | None, Moment | None] | None = None,
        system_time: tuple[Moment | None, Moment | None] | None = None,
    ) -> Rows:
        """Return the rows as they were committed, with retractions and corrections.

        Args:
            columns: names of columns; by default all.
            as_at: only the rows that were known at a version; by default all.
            offsets, event_time, system_time: the start of a range (inclusive) and its end (exclusive), or
                None for no limit. Row groups outside of a range are not read.

        Raises:
            NotFound: there is no such version, or a slice is missing.
            KeyError: there is no such column.

        >>> rows = workspace["city.population"].scan(columns=["city", "population"])
        >>> rows.to_arrow().num_rows
        3
        >>> len(workspace["city.population"].scan(offsets=(0, 1)).to_arrow())
        1
        """
        if as_at is None:
            scan = row_scan.Scan.of_dataset(self._entry.dataset)
        else:
            version = self.version(version_text(as_at))
            scan = row_scan.Scan.of_dataset(self.at(version)._entry.dataset, version.scan_offset)
        scan = scan.where(
            offsets=offsets, event_time=_time_range(event_time), system_time=_time_range(system_time)
        )
        title = self.name if as_at is None else f"{self.name} as at {as_at}"
        return Rows(scan if columns is None else scan.select(columns), title)

    def write_attachments(self, folder: Path) -> list[Path]:
        """Write the attachments of the dataset to files in a folder, and return the files.

        Raises:
            NotFound: there are no attachments.
            InvalidManifest: a path leaves the folder. Nothing is written.
            AlreadyExists: there is a file of the same name with other contents. Nothing is written.
            OdfError: a file cannot be written.
        """
        items = self.state.attachments.items if self.state.attachments is not None else []
        if not items:
            raise NotFound(f"{self.name} has no attachments")
        texts = {folder / attachment_path(item): item.content.encode() for item in items}
        for file, text in texts.items():
            if not file.parent.resolve().is_relative_to(folder.resolve()):
                raise InvalidManifest("a link in the folder leads out of it", where=str(file.parent))
            if file.is_symlink() or (file.exists() and not (file.is_file() and file.read_bytes() == text)):
                raise AlreadyExists("the file exists", where=str(file), hint="choose another folder")
        for file, text in texts.items():
            with atomic_file(file, 0o666) as temporary:
                temporary.write_bytes(text)
        return list(texts)

    @property
    def remotes(self) -> DatasetRemotes:
        """The URLs that the dataset is pulled from and pushed to."""
        return Remotes(self._workspace.odf).get(self._entry.id)

    def row_window(self, version: PinnedVersion | None = None) -> RowWindowReader:
        """Return a reader of all rows, or of a version's rows, by position. It needs no job.

        >>> workspace["city.population"].row_window().tail(1)["city"].to_pylist()
        ['Oslo']
        """
        if version is None:
            return row_window.RowWindowReader(self._entry.dataset)
        return row_window.RowWindowReader(self.at(version)._entry.dataset, last_offset=version.scan_offset)

    def late_rows(self) -> list[LateRowsFile]:
        """Return the files of rows that were dropped because they are late, newest block first.

        >>> workspace["city.population"].late_rows()
        []
        """
        return list_late_rows(self._entry.dataset)

    def rejects(self) -> Mapping[str, Rejects]:
        """Return the rejected rows of the source by the hash of their block.

        >>> workspace["city.population"].rejects()
        {}
        """
        return read_rejects(self.folder)

    def warnings(self, blocks: Iterable[str]) -> dict[str, list[JobWarning]]:
        """Return the warnings of jobs by the hash of the block that they wrote, if there are any.

        >>> workspace["city.population"].warnings([])
        {}
        """
        warned = blocks_with_warnings(self.folder)
        return {
            block: warnings
            for block in blocks
            if block in warned and (warnings := read_block_warnings(self.folder, block))
        }

    def check_summaries(self) -> Mapping[int, str]:
        """Return the results of checks as text, by the number of their block.

        >>> workspace["city.population"].check_summaries()
        {}
        """
        return read_summaries(self.folder, self._entry.id, self._entry.dataset.slices())

    def check_report(self, physical_hash: Multihash) -> StoredReport | None:
        """Return the results of checks of a slice, or None if it was not checked.

        Raises:
            BadData: the report is damaged.
        """
        return read_report(self.folder, self._entry.id, physical_hash)

    def linked_objects(self) -> list[LinkedObject]:
        """Return the objects that columns with links refer to.

        >>> workspace["city.population"].linked_objects()
        []
        """
        dataset = self._entry.dataset
        objects: list[LinkedObject] = []
        for link, links in linked_objects(dataset, Reporter()).items():
            path = dataset.slice_path(link)
            objects.append(LinkedObject(link, links, path.stat().st_size if path.is_file() else None))
        return objects

    def export_object(self, link: str, target: Path) -> None:
        """Copy a linked object to a file. Its bytes are verified.

        Raises:
            NotFound: there is no such object.
            BadData: the object is damaged.
        """
        export_object(self._entry.dataset, Multihash.parse(link), target, Reporter())

    def latest(self, key: Sequence[str] = (), *, as_at: Version | None = None) -> Rows:
        """Return the latest row of each key, without retracted keys.

        Args:
            key: by default the primary key of the merge strategy, or the columns that the query groups by.
            as_at: only the rows that were known at a version.

        Raises:
            UsageError: there is no key.

        >>> latest = workspace["city.population"].latest(["city"]).to_arrow()
        >>> sorted(latest["city"].to_pylist())
        ['Oslo', 'Rome']
        """
        return self._project(key, as_at, None)

    def as_of(self, moment: Moment, key: Sequence[str] = ()) -> Rows:
        """Return the latest row of each key among the events up to an event time.

        >>> oslo = workspace["city.population"].as_of("2024-01-31", ["city"]).to_arrow()
        >>> oslo["population"].to_pylist()
        [700000]
        """
        return self._project(key, None, moment)

    def _project(self, key: Sequence[str], as_at: Version | None, as_of: Moment | None) -> Rows:
        version = None if as_at is None else version_text(as_at)
        moment = None if as_of is None else instant_text(as_of)
        request = BuildProjection(self.id, list(key), as_at=version, as_of=moment)
        result = self._runner.run(request, self.name)
        by = ", ".join(result.key)
        title = f"{self.name} by {by}{f' as of {moment}' if moment else ''}"
        return Rows.of_file(Path(result.file), title, self.state.vocabulary)

    def pull(
        self,
        *,
        force: bool = False,
        fetch_uncacheable: bool = False,
        set_watermark: Moment | None = None,
        inputs: str = "",
    ) -> PullResult:
        """Poll the source, run the query, or synchronize with the remote, until there are no more data.

        A dataset of :meth:`on_branch` is pulled into its branch.

        Args:
            force: fetch even if the source reports no changes; replace a diverged history.
            fetch_uncacheable: fetch a source that cannot report changes again.
            set_watermark: only set the watermark.
            inputs: the branch that the query of a branch reads of the inputs that have it, or "" for the
                heads.

        Returns:
            The status, and the numbers of new blocks and rows.

        Raises:
            NotTrusted: its definition is third-party, and untrusted.
            OdfError: a step of the ingest failed. Nothing, or complete blocks, were committed.

        >>> workspace["city.population"].pull(set_watermark="2024-03-01").status
        'updated'
        """
        watermark = None if set_watermark is None else instant_text(set_watermark)
        options = Pull(
            "",
            force=force,
            fetch_uncacheable=fetch_uncacheable,
            set_watermark=watermark,
            branch=self.branch,
            inputs=inputs,
        )
        ((request, name),) = plan_pull(self._workspace, PullSelection([self.id])).requests(options)
        return self._runner.run(request, name)

    def preview(self, limit: int = 1000, *, force: bool = False) -> Rows | None:
        """Return the rows that the next pull would commit, or None without new rows. Nothing is committed.

        If the source has several new files, the first one with new rows is read. Checks are not evaluated.

        Args:
            limit: the maximum number of rows.
            force: fetch even if the source reports no change.

        Raises:
            NotTrusted, OdfError: as in :meth:`pull`.
        """
        result = self._runner.run(Preview(self.id, limit, force), self.name)
        if not result.rows:
            return None
        title = f"{self.name}, from {result.origin}"
        return Rows.of_file(self._workspace.folder / result.path, title, self.state.vocabulary)

    def ingest(
        self,
        data: Any,
        *,
        source: str | None = None,
        format: str | None = None,
        event_time: Moment | None = None,
        force: bool = False,
        idempotency_key: str | None = None,
        attach: str | Path | Sequence[str | Path] = (),
    ) -> PullResult:
        """Add rows to a push source.

        Args:
            data: a path or several; a list of mappings; or anything with the Arrow PyCapsule interface, such
                as a table of pyarrow, pandas or Polars.
            source: name of the push source; not needed if there is only one.
            format: format of the files; by default the source's, or by the file's name.
            event_time: event time of rows without one.
            force: add the rows of files even if they have not changed since the source ingested them.
            idempotency_key: identifies the data. Data with the key of an earlier call are not added, so that
                a call can be repeated after a failure.
            attach: files, or folders of files, to store as linked objects. Columns with links may have their
                names instead of their hashes.

        Raises:
            BadData: a value does not fit the schema; nothing was committed of this file.
            UsageError: ``data`` has another type, or is an empty list.

        >>> dataset = workspace["city.population"]
        >>> result = dataset.ingest([{"event_time": "2024-03-01", "city": "Oslo", "population": 720000}])
        >>> result.status, result.records
        ('updated', 1)
        """
        moment = None if event_time is None else instant_text(event_time)
        request = Ingest(
            self.id,
            [],
            source=source,
            event_time=moment,
            force=force,
            idempotency_key=idempotency_key,
            attach=[str(path.expanduser().resolve()) for path in _paths_of(attach) or ()],
        )
        paths = _paths_of(data)
        if paths is not None:
            files = [str(path.expanduser().resolve()) for path in paths]
            return self._runner.run(replace(request, files=files, format=format), self.name)
        with tempfile.TemporaryDirectory(prefix="odf-ingest-") as folder:
            path = Path(folder) / "rows.parquet"
            _write_parquet(data, path)
            return self._runner.run(replace(request, files=[str(path)], format="parquet"), self.name)

    def push(self, url: str, *, force: bool = False) -> PushResult:
        """Push the chain and the data to a URL, such as ``file:///srv/odf/my.cases/``.

        Args:
            url: the address of the dataset there.
            force: replace a diverged history there.

        >>> target = workspace.folder.parent / "copies" / "population"
        >>> workspace["city.population"].push(target.as_uri() + "/").status
        'updated'
        """
        return self._runner.run(Push(self.id, url, force=force), self.name)

    def compact(self, *, dry_run: bool = False) -> CompactResult:
        """Merge adjacent small slices of a root dataset; rows, offsets and times do not change.

        Args:
            dry_run: only return what would be merged.

        Raises:
            Unsupported: it is a derivative dataset.
            Conflict: the dataset has changed in the meantime.

        >>> workspace["city.population"].compact(dry_run=True).status  # it has one slice
        'unchanged'
        """
        return self._runner.run(Compact(self.id, dry_run=dry_run), self.name)

    def write_table(
        self, format: TableFormat, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> WrittenTable:
        """Write a Delta Lake or Apache Iceberg table over the slices, or add what it lacks.

        Commits keep the table current. Versions of a Delta table and ids of Iceberg snapshots are the numbers
        of the blocks.

        Args:
            format: the format.
            on_progress: receives the numbers of added versions and of versions to add.

        Raises:
            NotFound: a slice is missing, or the dataset has no columns yet.
            Unsupported: the format does not have the type of a column.

        >>> workspace["city.population"].write_table("delta").version > 2
        True
        """
        return dataset_tables.write_table(self._entry.dataset, format, on_progress)

    def write_latest_table(self, format: TableFormat, reporter: Reporter | None = None) -> WrittenTable:
        """Write a Delta Lake or Apache Iceberg table of the latest state by key, or bring it up to date.

        Its rows are a copy in one file, and its earlier versions cannot be read. Jobs that change a small
        dataset update its tables.

        Args:
            format: the format.
            reporter: receives rows, and can cancel.

        Raises:
            UsageError: the dataset has no primary key.
            NotFound: it has no rows yet, or a slice is missing.
            Unsupported: the format does not have the type of a column.
        """
        workspace, dataset = self._workspace, self._entry.dataset
        return latest_state.write_latest_table(workspace.odf, dataset, format, reporter or Reporter())

    def table_path(self, format: TableFormat, *, latest: bool = False) -> str:
        """Return the folder of a table, or its URL in a store, whether or not it exists.

        >>> Path(workspace["city.population"].table_path("iceberg", latest=True)).name
        'iceberg-latest'
        """
        return dataset_tables.table_path(self._entry.dataset, format, latest=latest)

    def remove_table(self, format: TableFormat, *, latest: bool = False) -> bool:
        """Remove a table; return whether there was one. The slices remain.

        Args:
            format: the format.
            latest: whether the table of the latest state is removed instead of the table of all rows.

        >>> workspace["city.population"].remove_table("delta")
        False
        """
        return dataset_tables.remove_table(self._entry.dataset, format, latest=latest)

    def verify(
        self, *, integrity: bool = False, recompute: bool = False, compatible: bool = False
    ) -> VerifyResult:
        """Verify the chain, slices and hashes, and replay the transactions.

        Args:
            integrity: whether transactions are not replayed.
            recompute: instead of a replay, compare the rows with the query over the latest state of the
                inputs.
            compatible: replay with the present version of the engine, and record it in the chain if all rows
                are equal.

        Returns:
            ``valid``, ``findings``, and what was checked.

        >>> workspace["city.population"].verify().findings
        []
        """
        request = Verify(self.id, integrity=integrity, recompute=recompute, compatible=compatible)
        return self._runner.run(request, self.name)

    def cite(self, at: Version | None = None) -> Citation:
        """Return the citation of a version, as text in APA style and as BibTeX.

        Args:
            at: a block, a tag or a time; by default the newest block.

        Raises:
            NotFound: there is no such version.

        >>> workspace["city.population"].cite(at=0).sequence_number
        0
        """
        return citation.cite(self._cited_version(at))

    def write_crate(
        self,
        target: str | Path,
        at: Version | None = None,
        *,
        with_data: bool = False,
        reporter: Reporter | None = None,
    ) -> CrateResult:
        """Write a version as an RO-Crate: metadata, manifest, citation, lineage in PROV, hashes.

        Args:
            target: a ``.zip`` file, which is replaced; or a new folder.
            at: as for :meth:`cite`.
            with_data: include the blocks and the data of the dataset and of everything upstream.
            reporter: receives the progress. By default it is shown as the progress of a job.

        Raises:
            Unsupported: the optional packages are not installed.
            NotFound: there is no such version; or an upstream dataset is missing, with ``with_data``.
            OdfError: the crate cannot be written.
        """
        version = self._cited_version(at)

        def write(reporter: Reporter) -> CrateResult:
            return crate.write_crate(
                self._workspace,
                version,
                Path(target).expanduser().absolute(),
                reporter,
                with_data=with_data,
                verification=self._last_verification(str(version.state.head)),
            )

        return self._runner.run_function(write, f"cite {self.name}") if reporter is None else write(reporter)

    def _cited_version(self, at: Version | None) -> CitedVersion:
        return citation.read_version(self._entry, None if at is None else version_text(at))

    def _last_verification(self, head: str) -> dict[str, Any] | None:
        """Return the result of the newest verification of a version in the journal of jobs."""
        for job in read_journal(self._workspace.folder).jobs(_MAX_JOBS):
            if job.kind == "verify" and job.dataset == self.id and job.state is JobState.done:
                report = job.result_of(Verify)
                if report is not None and report.head == head:
                    fields = {"time": job.ended, "valid": report.valid}
                    return {**fields, "replayed": report.transforms, "findings": len(report.findings)}
        return None

    def provenance(
        self, offset: int, last: int | None = None, *, column: str | None = None, depth: int | None = None
    ) -> Provenance:
        """Trace rows to the rows and sources that they come from.

        Args:
            offset, last: the first and the last offset; by default one row.
            column: trace the values of this column instead of complete rows.
            depth: number of datasets upstream; by default up to the sources.

        >>> trace = workspace["city.population"].provenance(0)
        >>> print(trace.tree().splitlines()[0])
        city.population 0
        """
        runs = [(offset, offset if last is None else last)]
        request = Trace(self.id, runs, column, depth, branch=self.branch)
        return Provenance(self._runner.run(request, self.name))

    def __repr__(self) -> str:
        return f"<Dataset {self.name} ({self.kind})>"

    def _repr_html_(self) -> str:
        (summary,) = self._workspace.summaries([self._entry])
        fields = [(name, value(summary)) for name, value in SUMMARY_COLUMNS.items()]
        return fields_html([*fields, ("id", self.id), ("head", summary.head), ("problem", summary.problem)])


class Provenance:
    """A trace of rows.

    Attributes:
        step: the rows, their transactions, sources, and the rows of inputs with steps of their own.

    >>> workspace["city.population"].provenance(1).step.runs
    [(1, 1)]
    """

    def __init__(self, step: TraceStep) -> None:
        self.step = step

    def tree(self) -> str:
        """Return the trace as an indented text: one line for each dataset, transaction and source.

        >>> len(workspace["city.population"].provenance(0, 2).tree().splitlines()) > 1
        True
        """
        return "\n".join(_tree_lines(self.step, ""))

    def __repr__(self) -> str:
        return escape_controls(self.tree())

    def _repr_html_(self) -> str:
        return f"<pre>{text_html(self.tree())}</pre>"


def _tree_lines(step: TraceStep, indent: str) -> Iterator[str]:
    exact = "" if step.exact else f" (not exact: {step.reason})"
    yield f"{indent}{step.name} {_ranges_text(step.runs)}{exact}"
    for block in step.made:
        yield f"{indent}  block {block.sequence_number} {block.system_time} {_ranges_text(block.runs)}"
    for source in step.sources:
        yield f"{indent}  {source.kind} {source.place or source.name} {source.ingested}"
    if step.problem:
        yield f"{indent}  {step.problem}"
    for rows in step.feeds:
        if rows.step is not None:
            yield from _tree_lines(rows.step, indent + "  ")
        else:
            yield f"{indent}  {rows.name} {_ranges_text(rows.runs)}"


def _ranges_text(runs: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{first}" if first == last else f"{first}..{last}" for first, last in runs) or "-"


def version_text(version: Version) -> str:
    """Convert a version to the text that requests use: a block or a time."""
    return str(version) if isinstance(version, int) else moment_text(version)


def moment_text(moment: Moment) -> str:
    """Convert a time to text.

    Raises:
        UsageError: a datetime has no time zone.
    """
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise UsageError(f"{moment} has no time zone", hint="use datetime(..., tzinfo=timezone.utc)")
        return moment.isoformat()
    return moment.isoformat() if isinstance(moment, date) else moment


def instant_text(moment: Moment) -> str:
    """Convert a time to RFC 3339; a date is its first moment in UTC.

    Raises:
        UsageError: a datetime has no time zone, or a text is not a time.
    """
    return str(parse_user_time(moment_text(moment)))


def _time_range(limits: tuple[Moment | None, Moment | None] | None) -> Any:
    if limits is None:
        return None
    return tuple(None if limit is None else parse_user_time(moment_text(limit)) for limit in limits)


def _paths_of(data: Any) -> list[Path] | None:
    """Return the paths that ``data`` consists of, or None if it consists of rows."""
    if isinstance(data, str | Path):
        return [Path(data)]
    if isinstance(data, Sequence) and data and all(isinstance(item, str | Path) for item in data):
        return [Path(path) for path in data]
    return None


def _write_parquet(data: Any, path: Path) -> None:
    import pyarrow as pa  # deferred: most scripts that pull do not need it
    import pyarrow.parquet as pq

    if hasattr(data, "__arrow_c_stream__"):
        stream = pa.RecordBatchReader.from_stream(data)
        with pq.ParquetWriter(path, stream.schema) as writer:
            for batch in stream:
                writer.write_batch(batch)
        return
    if not isinstance(data, Sequence) or not all(isinstance(row, Mapping) for row in data):
        raise UsageError(
            f"rows cannot be read from {type(data).__name__}",
            hint="pass a path, a list of dictionaries, or a table of pyarrow, pandas or Polars",
        )
    if not data:
        raise UsageError("there are no rows to ingest: the list is empty")
    pq.write_table(pa.Table.from_pylist([dict(row) for row in data]), path)
