"""Workspace: opens a workspace, finds and adds datasets, runs queries, watches jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from msgspec.structs import replace

from odf_engine.api.administration import Administration
from odf_engine.api.dataset import SUMMARY_COLUMNS, Dataset, Moment, Version, instant_text, version_text
from odf_engine.api.dataset_editor import DatasetEditor
from odf_engine.api.jobs import JobRunner
from odf_engine.api.plans.crate_pull import plan_crate_pull
from odf_engine.api.plans.pull_plan import PullPlan, PullSelection, PullTarget, plan_input_pulls, plan_pull
from odf_engine.api.plans.push_plan import PushPlan, plan_push
from odf_engine.api.readers.block_reader import BlockReader
from odf_engine.api.readers.dataset_reader import DatasetReader
from odf_engine.api.readers.fingerprint import data_fingerprint
from odf_engine.api.readers.job_reader import JobReader
from odf_engine.api.readers.row_reader import RowReader, SqlReader, StatisticsReader, TimelineReader
from odf_engine.api.rows import Rows
from odf_engine.api.watch import Watch
from odf_engine.base.config import Config, UiConfig
from odf_engine.base.html_text import table_html
from odf_engine.base.progress import Reporter
from odf_engine.errors import NotFound, OdfError, SourceUnavailable, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.jobs.pull import Pull, PullResult
from odf_engine.jobs.query import Query
from odf_engine.jobs.remotes import FoundDataset, Search
from odf_engine.on_demand import catalog, crate_data, metadata_yaml, remotes
from odf_engine.sql.query_text import file_names, line_and_column
from odf_engine.worker.client import run_jobs
from odf_engine.worker.endpoint import notify_datasets_changed
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.definitions.error_position import locate_errors
from odf_engine.workspace.workspace import Workspace as EngineWorkspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odf_engine.worker.protocol import Event, Job, Request
    from odf_engine.workspace.dataset_summary import DatasetEntry, Summary


def open(
    path: str | Path | None = None,
    *,
    in_process: bool | None = None,
    spark: SparkSession | None = None,
    progress: bool | None = None,
) -> Workspace:
    """Open a workspace.

    Args:
        path: its folder; by default ``$ODF_WORKSPACE``, else the working folder or the nearest parent.
        in_process: whether jobs run in this process, where the first job that needs Spark starts it. If
            False, the workspace's worker is started and runs them. By default, they run in the worker if
            it is running, else in this process.
        spark: a running Spark session. Jobs run in this process, in new sessions of it with the settings that
            the engine requires: results are the same as without it. Its own settings and views do not change,
            and it is never stopped. It must not be a session of Spark Connect, or have
            ``spark.sql.extensions``. Its limits apply, such as ``spark.driver.maxResultSize``. Untrusted
            queries run in the sandbox, which starts its own Spark. Functions that parse XML (``xpath``)
            require that the JVM has ``-Djavax.xml.accessExternalDTD=``.
        progress: whether jobs show a progress bar. By default on terminals and in notebooks.

    Raises:
        NotFound: there is no workspace.
        Unsupported: a newer version of this program created it, or ``spark`` cannot be used.
        UsageError: ``spark`` was started with a setting that changes results.

    >>> with odf.open(workspace.folder) as again:
    ...     [dataset.name for dataset in again]
    ['city.population']
    """
    folder = None if path is None else Path(path).expanduser()
    engine_workspace = EngineWorkspace.find(explicit=folder)
    return Workspace(engine_workspace, in_process=in_process, spark=spark, progress=progress)


def init(
    path: str | Path,
    *,
    store: str | None = None,
    in_process: bool | None = None,
    spark: SparkSession | None = None,
    progress: bool | None = None,
) -> Workspace:
    """Create a workspace in a folder, and open it. A missing folder is created. See :func:`open`.

    Args:
        store: the URL of an object store for the datasets, which may have datasets.

    Raises:
        AlreadyExists: it is a workspace.

    >>> created = odf.init(workspace.folder.parent / "another")
    >>> len(created)
    0
    """
    engine_workspace = EngineWorkspace.init(Path(path).expanduser(), store)
    return Workspace(engine_workspace, in_process=in_process, spark=spark, progress=progress)


class Workspace(
    DatasetReader,
    BlockReader,
    RowReader,
    StatisticsReader,
    TimelineReader,
    SqlReader,
    JobReader,
    DatasetEditor,
    Administration,
):
    """An open workspace: a collection of datasets. Use it as a context manager, or call :meth:`close`.

    Methods that get the id of a dataset raise OdfError if it does not exist or its chain cannot be read.
    All methods except :meth:`connect` and :meth:`stop_worker` may block.

    >>> [dataset.name for dataset in workspace]
    ['city.population']
    >>> "city.population" in workspace, "city.weather" in workspace
    (True, False)
    """

    def __init__(
        self,
        workspace: EngineWorkspace,
        *,
        in_process: bool | None = None,
        spark: SparkSession | None = None,
        progress: bool | None = None,
    ) -> None:
        super().__init__(workspace)
        self._runner = JobRunner(workspace, in_process, progress, spark)

    @property
    def ui(self) -> UiConfig:
        """The settings of the workstation; the defaults if the file of settings is invalid."""
        return self._settings[0].ui

    def complete_query(self, query: Query) -> Query:
        """Return a query with its engine, and with the files that it names.

        Args:
            query: the query. If its ``engine`` is "", DuckDB runs a query over files, Spark runs a query with
                a proof, and the engine of the setting ``sql.engine`` runs other queries.

        Raises:
            UsageError: the engine is unknown, or cannot read files.
        """
        names = file_names(query.sql)
        default = "duckdb" if names else "spark" if query.proof else self._settings[0].sql.engine
        query = replace(query, engine=query.engine or default)
        if query.engine == "duckdb":
            return replace(query, files={table.name: _location(table.name) for table in names})
        if names and query.engine == "spark":
            line, column = line_and_column(query.sql, names[0].start)
            raise UsageError(
                f"Spark cannot read the file '{names[0].name}' in a query",
                where=f"query, line {line}, column {column}",
                hint="use the engine duckdb, or add the file as a dataset: odf add FILE",
            )
        return query

    @property
    def settings_problem(self) -> str:
        """Why the settings cannot be read, or "" if they can."""
        return self._settings[1]

    @cached_property
    def _settings(self) -> tuple[Config, str]:
        try:
            return self._workspace.config, ""
        except OdfError as error:
            return Config(), error.format_line

    def data_fingerprint(self) -> str:
        """Return a fingerprint of the files of datasets and jobs, which any change to them changes."""
        return data_fingerprint(self.folder)

    def __getitem__(self, name: str) -> Dataset:
        """Return a dataset by its name or id.

        Raises:
            KeyError: there is no such dataset.

        >>> dataset = workspace["city.population"]
        >>> workspace[dataset.id].name
        'city.population'
        """
        try:
            return self._dataset(self._workspace.resolve(name))
        except NotFound as error:
            raise KeyError(str(error)) from None

    def __iter__(self) -> Iterator[Dataset]:
        """Yield the datasets by name."""
        return iter([self._dataset(entry) for entry in self._workspace.datasets()])

    def __len__(self) -> int:
        return len(self._workspace.datasets())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and any(
            name in (str(entry.alias), str(entry.id)) for entry in self._workspace.datasets()
        )

    def _dataset(self, entry: DatasetEntry) -> Dataset:
        return Dataset(self._workspace, entry, self._runner)

    def resolve(self, name: str) -> Dataset:
        """Return a dataset by its name or id.

        Raises:
            NotFound: there is no such dataset; the hint suggests a similar name.
            InvalidIdentity: it is neither a name nor an id.

        >>> workspace.resolve("City.Population").name
        'city.population'
        """
        return self._dataset(self._workspace.resolve(name))

    def match(self, names: Sequence[str]) -> list[Dataset]:
        """Return the datasets that match names, ids, or patterns with ``%``, without duplicates.

        Raises:
            NotFound: no dataset matches one of them.

        >>> [dataset.name for dataset in workspace.match(["city.%"])]
        ['city.population']
        """
        return [self._dataset(entry) for entry in self._workspace.match(names)]

    def in_order(self, datasets: Sequence[Dataset], *, recursive: bool = False) -> list[Dataset]:
        """Return datasets, inputs before their outputs; ``recursive`` adds everything upstream.

        >>> [dataset.name for dataset in workspace.in_order(list(workspace))]
        ['city.population']
        """
        graph = DatasetGraph(self._workspace.summaries())
        selected = {DatasetId.parse(dataset.id) for dataset in datasets}
        if recursive:
            selected.update(*[graph.upstream(dataset) for dataset in selected])
        by_id = {entry.id: entry for entry in self._workspace.datasets()}
        return [self._dataset(by_id[dataset]) for dataset in graph.order(selected) if dataset in by_id]

    def summaries(self) -> list[Summary]:
        """Return the size, watermark, inputs, … of all datasets, by name.

        >>> [(summary.name, summary.records) for summary in workspace.summaries()]
        [('city.population', 3)]
        """
        return self._workspace.overview()

    @property
    def config(self) -> Config:
        """The settings.

        Raises:
            UsageError: a file of settings is invalid.
        """
        return self._workspace.config

    @property
    def store_problem(self) -> OdfError | None:
        """Why the store of the datasets cannot be read, or None if it can or the datasets are local."""
        return self._workspace.store_problem

    def plan_pull(self, selection: PullSelection) -> PullPlan:
        """Return the datasets that a pull updates, with their remotes, in order.

        Raises:
            UsageError: parts of the selection exclude each other.
            NotFound: unknown dataset or repository.
            AlreadyExists: another dataset in the workspace has the name.
            OdfError: a repository cannot be listed.
        """
        return plan_pull(self._workspace, selection, self._list_repository)

    @contextmanager
    def planned_pull(self, selection: PullSelection, reporter: Reporter | None = None) -> Iterator[PullPlan]:
        """Yield the plan of a pull, as :meth:`plan_pull`, or of a pull from a crate.

        The name of a crate is its path: a zip archive, or a folder. The names of datasets and repositories
        come first. The crate is unpacked until the end of the ``with`` body.

        Args:
            selection: what is pulled.
            reporter: receives the progress of the check of a crate. By default it is shown as the progress
                of a job.

        Raises:
            BadData: the crate is damaged.
            NotFound: it has no data.
        """
        crate = next(filter(self.is_crate, selection.names), None)
        if crate is None:
            yield self.plan_pull(selection)
            return
        with ExitStack() as stack:

            def check(reporter: Reporter) -> PullPlan:
                return stack.enter_context(plan_crate_pull(self._workspace, crate, selection, reporter))

            yield self._runner.run_function(check, f"check {crate}") if reporter is None else check(reporter)

    def is_crate(self, name: str) -> bool:
        """Return whether a name is the path of a crate. Names of datasets and repositories come first."""
        if not crate_data.is_crate(name):
            return False
        if remotes.Remotes(self._workspace.odf).is_repository(name.partition("/")[0]):
            return False
        aliases = (str(entry.alias) for entry in self._workspace.datasets())
        return name.casefold() not in map(str.casefold, aliases)

    def plan_input_pulls(self, pulled: Sequence[PullTarget]) -> PullPlan:
        """Return the inputs to pull from remotes after the copies of their outputs; empty if there are none.

        Args:
            pulled: all datasets that were pulled before. They are not pulled again.

        Raises:
            NotFound: the repository of an output does not list an input.
            AlreadyExists: another dataset in the workspace has the name of an input.
            OdfError: a repository cannot be listed.
        """
        return plan_input_pulls(self._workspace, pulled, self._list_repository)

    def plan_push(
        self, datasets: Sequence[str], place: str | None = None, *, recursive: bool = False
    ) -> PushPlan:
        """Return the datasets that a push sends, with their remotes, inputs first.

        Args:
            datasets: ids of the selected datasets.
            place: a repository, ``REPOSITORY/NAME`` or a URL. By default, the push remote of each dataset,
                else the only repository.
            recursive: push the inputs too, except inputs that are pulled from the same repository.

        Raises:
            UsageError: a dataset has no address, or several.
        """
        ids = [DatasetId.parse(dataset) for dataset in datasets]
        return plan_push(self._workspace, ids, place, recursive=recursive)

    def _list_repository(self, name: str) -> list[FoundDataset]:
        result = self._runner.run(Search(text="", repositories=[name]), f"datasets of {name}")
        for problem in result.problems:
            raise SourceUnavailable(problem.message, where=name)
        return result.datasets

    def run_jobs(
        self, requests: Sequence[tuple[Request, str]], on_event: Callable[[Event], None]
    ) -> list[Job]:
        """Run requests in the worker, which is started, and return the jobs in the same order.

        An interrupt (^C) cancels them and waits until they end.

        Args:
            requests: the requests, with the names of their targets for messages.
            on_event: called with each event of these jobs.
        """
        jobs = run_jobs(self.folder, list(requests), on_event)
        if not all(request.read_only for request, _ in requests):
            notify_datasets_changed(self.folder)
        return jobs

    def add(self, definition: str | Path | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[Dataset]:
        """Create datasets from their definitions: all or none.

        Args:
            definition: a manifest: its path (:class:`pathlib.Path`, or text that ends in ``.yaml`` or
                ``.yml``), its text in YAML, or its content as a mapping; or several mappings.

        Raises:
            InvalidManifest: it is not a valid definition; the error has line and column.
            AlreadyExists: a dataset of the name exists.

        >>> content = {"name": "city.weather", "kind": "Root", "metadata": []}
        >>> workspace.add({"kind": "DatasetSnapshot", "version": 1, "content": content})
        [<Dataset city.weather (root)>]
        """
        if isinstance(definition, str) and definition.endswith((".yaml", ".yml")) and "\n" not in definition:
            definition = Path(definition)
        if isinstance(definition, Path):
            try:
                text, source = definition.expanduser().read_bytes(), str(definition)
            except OSError as error:
                raise NotFound(f"cannot be read: {error.strerror}", where=str(definition)) from None
        elif isinstance(definition, str):
            text, source = definition, "definition"
        else:
            documents = [definition] if isinstance(definition, Mapping) else definition
            text, source = "\n---\n".join(map(json.dumps, documents)), "definition"
        definitions = metadata_yaml.read_manifests(text, source)
        sets = metadata_yaml.read_value_sets(text, source)
        manifests = {source: str(text, "utf-8-sig") if isinstance(text, bytes) else text}
        with locate_errors(manifests if isinstance(definition, str | Path) else {}):
            datasets = [self._dataset(entry) for entry in self._workspace.add(definitions)]
        self.store_value_sets(sets)
        return datasets

    def pull(
        self,
        *names: str,
        everything: bool = False,
        recursive: bool = False,
        source: str | None = None,
        alias: str | None = None,
        force: bool = False,
        set_watermark: Moment | None = None,
    ) -> list[PullResult]:
        """Pull new data into several datasets, or a new dataset from a remote: ``odf pull``.

        Args:
            names: names of datasets, patterns with ``%``, URLs of datasets, or the path of a crate.
            everything: pull all datasets; with ``source``, all of that repository.
            recursive: pull the inputs too: first, or after the copy of a remote dataset, from its repository.
            source: the remote to pull from: a URL, or ``REPOSITORY/NAME``.
            alias: name of a new dataset.
            force: as in :meth:`odf_engine.api.dataset.Dataset.pull`.
            set_watermark: only set the watermark.

        Returns:
            The results: datasets of remotes, then inputs before outputs, then inputs of the former.

        Raises:
            NotFound: no dataset has one of the names.
            UsageError: the arguments exclude each other.
            OdfError: a pull failed. The datasets before it are pulled.

        >>> [(result.name, result.status) for result in workspace.pull("city.%", set_watermark="2024-03-02")]
        [('city.population', 'updated')]
        """
        watermark = None if set_watermark is None else instant_text(set_watermark)
        options = Pull(dataset="", force=force, set_watermark=watermark)
        pulled: list[PullTarget] = []
        results: list[PullResult] = []
        with self.planned_pull(PullSelection(names, everything, recursive, source, alias)) as plan:
            while plan.targets:
                results += [self._runner.run(request, name) for request, name in plan.requests(options)]
                pulled += plan.targets
                plan = self.plan_input_pulls(pulled) if recursive else PullPlan([])
        return results

    def catalog(self, *names: str, base: str = "") -> bytes:
        """Return a catalog of datasets as JSON-LD, in the terms of DCAT 3 and of schema.org.

        Args:
            names: names of datasets, or patterns with ``%``; by default all datasets.
            base: the address of a server or a repository with the datasets, or "".

        Raises:
            NotFound: no dataset has one of the names.

        >>> b'"dct:title": "city.population"' in workspace.catalog()
        True
        """
        entries = self._workspace.match(names) if names else self._workspace.datasets()
        return catalog.CatalogBuilder().catalog(entries, f"{base.rstrip('/')}/" if base else "")

    def sql(
        self,
        query: str,
        *,
        as_at: Version | None = None,
        as_of: Moment | None = None,
        limit: int | None = 1_000_000,
        engine: Literal["spark", "duckdb"] | None = None,
    ) -> Rows:
        """Run a SQL query over the datasets of the workspace, by their names.

        Args:
            query: the query. DuckDB also reads files, as in ``FROM 'cases.csv'``.
            as_at: a system time: all datasets as at that time.
            as_of: an event time: only the events up to it.
            limit: maximum number of rows, or None for all.
            engine: the engine, and its SQL dialect; DuckDB does not start Spark. By default DuckDB for files,
                and the setting ``sql.engine`` for other queries, which is Spark.

        Raises:
            InvalidQuery: the error has the position in the query.
            UsageError: the engine is unknown, or cannot read files.

        >>> workspace.sql("SELECT city, max(population) AS n FROM city.population GROUP BY city ORDER BY n")
        result: 2 rows
        city  n
        Oslo  710000
        Rome  2800000
        """
        request = Query(
            sql=query,
            engine=engine or "",
            limit=limit,
            as_at=None if as_at is None else version_text(as_at),
            as_of=None if as_of is None else instant_text(as_of),
        )
        result = self._runner.run(self.complete_query(request), " ".join(query.split())[:60])
        return Rows.of_file(self.folder / result.path, "result")

    def watch(self, listener: Callable[[Event], object]) -> Watch:
        """Call a function with each event of the worker, in a thread, until the watch is closed.

        The worker is started if it does not run. Events are from :mod:`odf_engine.worker.protocol`,
        such as ``JobChanged``, ``JobProgress`` and ``Committed``::

            with workspace.watch(print):
                ...
        """
        return Watch(self.folder, listener)

    def close(self) -> None:
        """Stop Spark, if the workspace started it in this process. The worker continues.

        >>> workspace.close()
        """
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Workspace {self.folder}: {self._count()}>"

    def _repr_html_(self) -> str:
        rows = [
            [value(summary) for value in SUMMARY_COLUMNS.values()] for summary in self._workspace.summaries()
        ]
        return table_html(list(SUMMARY_COLUMNS), rows, f"{self.folder}: {self._count()}")

    def _count(self) -> str:
        return f"{len(self)} dataset{'' if len(self) == 1 else 's'}"


def _location(name: str) -> str:
    """Return the absolute path of a file in a query, or its URL."""
    return name if "://" in name else str(Path(name).expanduser().absolute())
