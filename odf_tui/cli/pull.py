"""pull, ingest: fetch data from sources, remotes and files."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple

import click
from msgspec import to_builtins

from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.coordinator.protocol import Job, JobState, Request
from odf_engine.errors import (
    AlreadyExists,
    InvalidIdentity,
    NotFound,
    OdfError,
    SourceUnavailable,
    UsageError,
)
from odf_engine.identity.did import DatasetId
from odf_engine.identity.names import (
    DatasetAlias,
    DatasetAliasRemote,
)
from odf_engine.jobs.base import branch_title
from odf_engine.jobs.definition import UpdateResult
from odf_engine.jobs.ingest import INGEST_FORMATS, Ingest
from odf_engine.jobs.pull import Pull, PullResult, change_counts
from odf_engine.jobs.remotes import Search
from odf_engine.storage.scratch import spool_stream
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.remotes import Remotes, ResolvedUrl, resolve_address, resolve_location
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.follow import (
    SECONDS_BETWEEN_LINES,
    error_entry,
    exit_code,
    follow,
    print_failure,
    run_request,
)
from odf_tui.cli.output import (
    branch_option,
    clear_line,
    open_workspace,
    options_of,
    print_json,
    print_note,
    print_result,
    verb,
)
from odf_tui.text.format import count_of, format_bytes, with_spaced_thousands
from odf_tui.text.remotes import plain_block_count


class PullTarget(NamedTuple):
    """A dataset to pull.

    Attributes:
        target: name for messages.
        entry: the dataset; None if it is not in the workspace yet.
        url: address of the remote; None if the dataset has its own source or query, or several remotes.
        alias: name of a new dataset.
        after: ids of datasets whose jobs run first.
    """

    target: str
    entry: DatasetEntry | None
    url: str | None
    alias: str | None = None
    after: Sequence[str] = ()


class PullArguments(NamedTuple):
    """The arguments of `odf pull` that select datasets; ``locations`` are those of a repository."""

    names: Sequence[str]
    everything: bool = False
    recursive: bool = False
    source: str | None = None
    alias: str | None = None
    locations: Sequence[ResolvedUrl] = ()


def resolve_targets(workspace: Workspace, arguments: PullArguments) -> list[PullTarget]:
    """Return the datasets that the arguments select: those of remotes first, then inputs before outputs.

    Raises:
        UsageError: the arguments exclude each other.
        NotFound: unknown dataset or repository.
        AlreadyExists: another dataset in the workspace has the name.
    """
    return _TargetResolver(workspace).resolve(arguments)


class _TargetResolver:
    """Resolves the arguments of `odf pull`.

    Attributes:
        known: addresses that datasets are pulled from, by dataset.
        urls: the address to pull from, by dataset, where the arguments name one.
        new: locations of datasets that are not in the workspace yet, by address.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.remotes = Remotes(workspace.odf)
        self.entries = {entry.id: entry for entry in workspace.datasets()}
        self.graph = DatasetGraph(workspace.summaries())
        self.known = {dataset: self.remotes.get(dataset).pull for dataset in self.entries}
        self.urls: dict[DatasetId, str] = {}
        self.new: dict[str, ResolvedUrl] = {}

    def resolve(self, arguments: PullArguments) -> list[PullTarget]:
        _check_arguments(arguments)
        if arguments.locations:
            datasets = {dataset for place in arguments.locations for dataset in self._find_at(place)}
        else:
            datasets = set(self.entries) if arguments.everything else self._find_named(arguments)
        if arguments.alias is not None:
            self._set_alias(arguments.alias)
        for place in self.new.values():
            self._check_name_is_free(place)
        if arguments.recursive:
            datasets.update(*[self._find_inputs(dataset) for dataset in datasets])
        new_targets = [
            PullTarget(self.remotes.display_name(place.url), None, place.url, place.name)
            for place in self.new.values()
        ]
        order = [dataset for dataset in self.graph.order(datasets) if dataset in self.entries]
        # Pulls from remotes need no other job and no Spark, and other jobs may wait for them: they go first.
        return new_targets + sorted(map(self._make_target, order), key=lambda each: each.url is None)

    def _make_target(self, dataset: DatasetId) -> PullTarget:
        entry, known = self.entries[dataset], self.known[dataset]
        url = self.urls.get(dataset) or (known[0] if len(known) == 1 else None)
        made_of = set() if known or url else self._find_inputs(dataset)
        after = [*map(str, made_of), *self.new] if made_of else []
        return PullTarget(str(entry.alias), entry, url, None, after)

    def _find_inputs(self, dataset: DatasetId) -> set[DatasetId]:
        """Return all upstream datasets, but not those upstream of a dataset that is pulled from a remote."""
        found: set[DatasetId] = set()
        waiting = [dataset]
        while waiting:
            each = waiting.pop()
            if self.known.get(each) or each in self.urls:
                continue
            more = set(self.graph.inputs(each)) - found
            found |= more
            waiting += more
        return found

    def _find_named(self, arguments: PullArguments) -> set[DatasetId]:
        if arguments.source is None:
            return {dataset for name in arguments.names for dataset in self._find_matching(name)}
        if not arguments.names:
            place = resolve_location(self.remotes, arguments.source)
            if place is None:
                hint = "use a URL or REPO/NAME; odf repo list shows the repositories"
                raise UsageError(f"--from {arguments.source}: not a remote", hint=hint)
            return set(self._find_at(place))
        try:
            entries = self.workspace.match(arguments.names)
        except NotFound as error:
            hint = f"to create it, use odf pull --from {arguments.source} --as NAME"
            raise NotFound(error.message, hint=hint) from None
        for entry in entries:
            url = resolve_address(self.remotes, arguments.source, entry.alias, len(entries) > 1)
            self.urls[entry.id] = url
        return {entry.id for entry in entries}

    def _find_matching(self, name: str) -> Iterable[DatasetId]:
        place = resolve_location(self.remotes, name)
        if place is not None:
            return self._find_at(place)
        return [entry.id for entry in self.workspace.match([name])]

    def _find_at(self, place: ResolvedUrl) -> Iterable[DatasetId]:
        dataset = self.remotes.find_by_url(place.url)
        if dataset is None or dataset not in self.entries:
            self.new[place.url] = place
            return ()
        self.urls[dataset] = place.url
        return (dataset,)

    def _set_alias(self, alias: str) -> None:
        name = DatasetAlias.parse(alias)
        here = [self.entries[dataset] for dataset in self.urls]
        if len(self.new) + len(here) != 1:
            raise UsageError(
                f"--as {alias} applies to exactly one new dataset", hint="pull the dataset alone"
            )
        for entry in here:
            if entry.alias != name:
                where = self.urls[entry.id]
                raise AlreadyExists(
                    f"the dataset already exists as {entry.alias}",
                    where=where,
                    hint=f"to rename it, run odf rename {entry.alias} {name}",
                )
        for url, place in self.new.items():
            self.new[url] = place._replace(name=str(name))

    def _check_name_is_free(self, place: ResolvedUrl) -> None:
        alias = DatasetAlias.parse(place.name)
        same_name = [entry for entry in self.entries.values() if entry.alias == alias]
        if same_name or [each.name for each in self.new.values()].count(place.name) > 1:
            exists, ambiguous = "a dataset with this name already exists", "several datasets have this name"
            problem = exists if same_name else ambiguous
            raise AlreadyExists(
                f"{alias}: {problem}",
                where=place.url,
                hint=f"use --as NAME; for the existing dataset, use odf pull {alias} --from {place.url}",
            )


def datasets_of_repository(remotes: Remotes, repository: str, names: Iterable[str]) -> list[ResolvedUrl]:
    """Return the locations of datasets of a repository by their names there; invalid names are skipped."""
    places: list[ResolvedUrl] = []
    for name in names:
        with suppress(InvalidIdentity):  # names are untrusted
            ref = DatasetAliasRemote.parse(f"{repository}/{name}")
            places.append(remotes.locate(ref)._replace(name=str(ref.alias)))
    return places


def _check_arguments(arguments: PullArguments) -> None:
    has_selection = bool(arguments.names or arguments.locations) or arguments.source is not None
    if has_selection == arguments.everything:
        hint = "specify names, patterns with % or URLs, or use --all"
        raise UsageError(
            "specify either datasets or --all" if has_selection else "no datasets specified", hint=hint
        )
    if arguments.alias is not None and arguments.everything:
        raise UsageError("--as applies to exactly one new dataset", hint="do not combine it with --all")


_on_warning_option = click.option(
    "--on-warning",
    type=click.Choice(["continue", "fail"]),
    default="continue",
    show_default=True,
    help="Whether rows and transactions with warnings are committed, or the job fails without them.",
)


@verb("pull", example="odf pull port-haven.stations", json=True)
@click.argument("names", nargs=-1)
@click.option(
    "--all", "everything", is_flag=True, help="Pull all datasets; with --from REPO, all of the repository."
)
@click.option("-r", "--recursive", is_flag=True, help="Pull inputs first.")
@click.option("--from", "source", metavar="URL|REPO/NAME", help="Pull from this remote.")
@click.option("--as", "alias", metavar="NAME", help="Name of a new dataset.")
@click.option(
    "--fetch-uncacheable", is_flag=True, help="Fetch sources that cannot report whether they have changed."
)
@click.option("--set-watermark", metavar="TIME", help="Only set the watermark to this time (RFC 3339).")
@click.option(
    "--force",
    is_flag=True,
    help="Fetch unchanged sources too. Overwrite a local history that has diverged from the remote. Rebuild "
    "missing and damaged slices of derivative datasets.",
)
@click.option(
    "--strict", is_flag=True, help="Fail on rows whose key is already in the ledger with other values."
)
@_on_warning_option
@click.option(
    "--reset-on-divergence",
    is_flag=True,
    help="Rebuild derivative datasets whose inputs were reset or replaced.",
)
@click.option(
    "--rederive",
    is_flag=True,
    help="Derive derivative datasets again from the start of their inputs, by the current rules.",
)
@branch_option("Pull into this branch of the datasets. Their heads do not move.")
@click.option(
    "--remote-branch",
    metavar="BRANCH",
    default="",
    help="Pull this branch of the remote, into --branch or the branch of the same name.",
)
def pull_verb(
    names: tuple[str, ...],
    everything: bool,
    recursive: bool,
    source: str | None,
    alias: str | None,
    fetch_uncacheable: bool,
    set_watermark: str | None,
    force: bool,
    strict: bool,
    on_warning: Literal["continue", "fail"],
    reset_on_divergence: bool,
    rederive: bool,
    branch: str,
    remote_branch: str,
) -> None:
    """Pull new data into datasets.

    NAMES are names of datasets, or patterns with %, such as 'weather.%'.

    Polls the source of a root dataset until it has no more data. Runs the query of a derivative dataset
    over the new rows of its inputs.

    A dataset by another author is specified by its URL, or as REPO/NAME (see `odf repo`). All of its
    blocks and data are pulled and verified. Afterwards, `odf pull NAME` pulls new blocks from the same
    remote, and the source or query of the dataset does not run.

    If the dataset and its remote have diverged, the pull fails. With --force, the history of the remote
    replaces the local one, which remains available under a reference.

    With --branch, the new blocks follow those of a branch (see `odf branch`). The query of a derivative
    dataset reads the heads of its inputs. --remote-branch creates the local branch if it does not exist.
    """
    branch = branch or remote_branch
    if branch and recursive:
        raise UsageError("--branch and --recursive exclude each other", hint="pull the inputs first")
    workspace = open_workspace()
    watermark = parse_time_option("--set-watermark", set_watermark)
    if everything and source is not None and not names and alias is None:
        found = _resolve_repository(workspace, source)
    else:
        found = resolve_targets(workspace, PullArguments(names, everything, recursive, source, alias))
    if watermark is not None:
        _check_is_local(workspace, found)
    for each in found if branch else ():
        if each.entry is None:
            raise UsageError(f"{each.target} is a new dataset: pull it without branches first")
        if not remote_branch:
            each.entry.on_branch(branch)
    requests: list[tuple[Request, str]] = [
        (
            Pull(
                dataset=each.url or "" if each.entry is None else str(each.entry.id),
                after=list(each.after),
                fetch_uncacheable=fetch_uncacheable,
                set_watermark=watermark,
                force=force,
                strict=strict,
                reset_on_divergence=reset_on_divergence,
                rederive=rederive,
                url=each.url,
                alias=each.alias,
                branch=branch,
                remote_branch=remote_branch,
                on_warning=on_warning,
            ),
            branch_title(each.target, branch),
        )
        for each in found
    ]
    jobs = follow(workspace, requests)
    if options_of().json:
        print_json(
            [pull_entry(job, each.alias or each.target) for job, each in zip(jobs, found, strict=True)]
        )
    else:
        for job, each in zip(jobs, found, strict=True):
            print_pull(job, workspace, each)
    if any(each.entry is None for each in found):
        notify_datasets_changed(workspace.folder)
    sys.exit(exit_code(jobs))


def _resolve_repository(workspace: Workspace, repository: str) -> list[PullTarget]:
    """Return all datasets of a repository, which is queried for them."""
    remotes = Remotes(workspace.odf)
    repo = remotes.repository(repository)
    result = run_request(workspace, Search(text="", repositories=[repo.name]), f"all of {repo.name}")
    for problem in result.problems:
        raise SourceUnavailable(problem.message, where=repo.name)
    locations = datasets_of_repository(remotes, repo.name, [each.name for each in result.datasets])
    return resolve_targets(workspace, PullArguments((), locations=locations)) if locations else []


def _check_is_local(workspace: Workspace, found: Sequence[PullTarget]) -> None:
    for each in found:
        if each.url is not None:
            raise UsageError(
                f"{each.target} is pulled from {each.url}: its watermark is set there",
                hint=f"to detach it, use odf repo alias remove {each.target}" if each.entry else None,
            )


def parse_time_option(option: str, text: str | None) -> str | None:
    """Return the time of an option as RFC 3339.

    Raises:
        UsageError: it is no time.
    """
    if text is None:
        return None
    from odf_engine.metadata.timestamp import Timestamp

    try:
        return str(Timestamp.parse(text))
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def select_datasets(
    workspace: Workspace, names: tuple[str, ...], everything: bool, recursive: bool
) -> list[DatasetEntry]:
    """Return the datasets in the workspace that the arguments select, inputs before their outputs.

    Raises:
        UsageError: neither names nor ``--all`` are given, or both.
    """
    if bool(names) == everything:
        raise UsageError(
            "specify either datasets or --all" if names else "no datasets specified",
            hint="specify names or patterns with %, or use --all",
        )
    entries = workspace.datasets() if everything else workspace.match(names)
    graph = DatasetGraph(workspace.summaries())
    selected = {entry.id for entry in entries}
    if recursive:
        selected.update(*(graph.upstream(entry.id) for entry in entries))
    by_id = {entry.id: entry for entry in workspace.datasets()}
    return [by_id[dataset] for dataset in graph.order(selected) if dataset in by_id]


def pull_entry(job: Job, name: str | None = None) -> dict[str, Any]:
    """Return the ``--json`` entry of a pull or an ingest; ``name`` is the name of a new dataset."""
    warnings = {"warnings": to_builtins(job.warnings)} if job.warnings else {}
    return {**to_builtins(_pull_result(job, name)), "error": error_entry(job), **warnings}


def _pull_result(job: Job, name: str | None = None) -> PullResult:
    return job.result_of(Pull) or PullResult(name=name or job.target, status="failed")


def print_pull(job: Job, workspace: Workspace | None = None, target: PullTarget | None = None) -> None:
    """Print the result of a pull or an ingest as text.

    Args:
        target: the pulled dataset; None for an ingest.
    """
    if job.state is not JobState.done:
        print_failure(job)
        return
    result = _pull_result(job)
    label = Remotes(workspace.odf).display_name(result.url) if workspace and result.url else ""
    is_new = target is not None and target.entry is None and result.old_head is None
    print_result(pull_line(result, label, is_new=is_new))


def changes_in_brackets(result: PullResult | UpdateResult) -> str:
    """Return the numbers of added, retracted and corrected rows, or "" if rows were only added."""
    changes = change_counts(result.added, result.retracted, result.corrected)
    return with_spaced_thousands(f" ({changes})") if changes else ""


def plain_row_count(number: int) -> str:
    """Return a number of rows without separators, as the command line prints it."""
    return count_of(number, "row", separators=False)


def pull_line(result: PullResult, remote: str, *, is_new: bool = False) -> str:
    """Describe the result of a pull or an ingest in a line.

    Args:
        remote: name of the remote; empty for a dataset that is pulled from its source.
        is_new: whether the pull created the dataset.
    """
    if result.status == "updated":
        new = "new, " if is_new else ""
        size = f", {format_bytes(result.bytes)}" if result.bytes else ""
        origin = f", from {remote}" if remote else ""
        rows = plain_row_count(result.records) + changes_in_brackets(result)
        amount = f"{rows} in {plain_block_count(result.blocks)}{size}"
        refused = (
            f", {count_of(result.already_ingested, 'file', separators=False)} already ingested"
            if result.already_ingested
            else ""
        )
        repeated = f", {plain_row_count(result.repeated)} repeated" if result.repeated else ""
        rejected = f", {plain_row_count(result.rejected)} rejected" if result.rejected else ""
        late = f", {plain_row_count(result.late)} late" if result.late else ""
        waiting = f"; {result.waiting.text}" if result.waiting else ""
        return f"{result.title}: {new}{amount}{repeated}{rejected}{late}{origin}{refused}{waiting}"
    if result.waiting:
        return f"{result.title}: {result.waiting.text}"
    if result.already_ingested:
        return f"{result.title}: already ingested"
    ahead = f" ({plain_block_count(result.ahead)} ahead of {remote})" if result.ahead else ""
    origin = f" with {remote}" if remote and not ahead else ""
    return f"{result.title}: up to date{origin}{ahead}"


_SPECIAL: Final = ("/dev/", "/proc/")


@verb("ingest", example="odf ingest port-haven.events today.ndjson", json=True)
@click.argument("name")
@click.argument("files", nargs=-1, type=click.Path(), metavar="[FILE…|-]")
@click.option("--source", metavar="S", help="Push source. Required if the dataset has several.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(INGEST_FORMATS, case_sensitive=False),
    help="Format of the files. Default: by the file name, else that of the source.",
)
@click.option(
    "--event-time",
    metavar="TIME",
    help="Event time of rows without one (RFC 3339). Default: the current time.",
)
@click.option("--ignore-unknown", is_flag=True, help="Ignore unknown columns, and set missing ones to null.")
@click.option(
    "--strict", is_flag=True, help="Fail on rows whose key is already in the ledger with other values."
)
@_on_warning_option
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="Skip the push if an earlier one had this key.",
)
@click.option(
    "--attach",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Store this file, or the files of this folder, as linked objects. Can be repeated.",
)
@click.option("--force", is_flag=True, help="Ingest files again that are already ingested.")
@branch_option("Ingest into this branch. The head of the dataset does not move.")
def ingest_verb(
    name: str,
    files: tuple[str, ...],
    source: str | None,
    format_: str | None,
    event_time: str | None,
    ignore_unknown: bool,
    strict: bool,
    on_warning: Literal["continue", "fail"],
    idempotency_key: str | None,
    attach: tuple[Path, ...],
    force: bool,
    branch: str,
) -> None:
    """Ingest rows from files or stdin into a push source.

    Each file is one commit. The extensions .csv, .json, .ndjson and .parquet select the format of a
    file. Other files have the format of the source. --format overrides both.

    Columns are matched by name. A file must have exactly the columns that the source declares. In CSV
    without a header, columns are matched by position.

    A file that has not changed since it was ingested is skipped, unless --force is used. Equal contents in
    another file or on stdin are new rows. To repeat a push safely, use --idempotency-key: a push with the
    key of an earlier one is skipped. The exit code is 0 in both cases.

    Columns with links to objects have the hashes of files, or the names of attached files.
    """
    workspace = open_workspace()
    entry = workspace.resolve(name).on_branch(branch)
    time_ = parse_time_option("--event-time", event_time)
    if idempotency_key is not None and len(files) > 1:
        raise UsageError(
            f"--idempotency-key identifies one file, not {len(files)}", hint="ingest the files separately"
        )
    for path in attach:
        if not path.exists():
            raise NotFound("file not found", where=str(path))
    if not files and sys.stdin.isatty():
        raise UsageError("no files specified", hint="specify files, or pipe rows to stdin")
    with ExitStack() as spools:
        paths = [spools.enter_context(_open_readable(workspace, file)) for file in files or ("-",)]
        request = Ingest(
            dataset=str(entry.id),
            files=[str(path) for path in paths],
            source=source,
            format=format_,
            event_time=time_,
            ignore_unknown=ignore_unknown,
            strict=strict,
            force=force,
            idempotency_key=idempotency_key,
            attach=[str(path.resolve()) for path in attach],
            branch=branch,
            on_warning=on_warning,
        )
        jobs = follow(workspace, [(request, branch_title(str(entry.alias), branch))])
    if options_of().json:
        print_json([pull_entry(job, str(entry.alias)) for job in jobs])
    else:
        for job in jobs:
            print_pull(job)
    sys.exit(exit_code(jobs))


@contextmanager
def _open_readable(workspace: Workspace, file: str) -> Iterator[Path]:
    """Yield a path that the worker can read: the file itself, or a copy of a pipe or a device.

    Raises:
        NotFound: the file does not exist.
        UsageError: it is a folder.
        OdfError: it cannot be read or copied.
    """
    path = Path.cwd() / file
    if file != "-" and not path.exists():
        raise NotFound("file not found", where=file)
    if path.is_dir():
        raise UsageError("is a folder", hint=f"specify its files: {file.rstrip('/')}/*")
    # Files in /dev and /proc depend on the process: the worker would read others.
    if file != "-" and path.is_file() and not str(path).startswith(_SPECIAL):
        yield path.resolve()
        return
    name = "stdin" if file == "-" else path.name
    with ExitStack() as stack:
        try:
            stream = sys.stdin.buffer if file == "-" else stack.enter_context(path.open("rb"))
            copy = stack.enter_context(_spool(workspace, stream, name))
        except OSError as error:
            problem = error.strerror or str(error)
            raise OdfError(
                f"cannot be read or copied: {problem}", where=str(error.filename or name)
            ) from error
        yield copy


@contextmanager
def _spool(workspace: Workspace, stream: BinaryIO, name: str) -> Iterator[Path]:
    with spool_stream(workspace.odf, stream, name, _make_size_printer(name)) as path:
        if sys.stderr.isatty() and not options_of().quiet:
            clear_line()
        yield path


def _make_size_printer(name: str) -> Callable[[int], None]:
    """Return a function that prints the size so far, at intervals: on one line of a terminal, or in lines."""
    live = sys.stderr.isatty()
    pause = 0.25 if live else SECONDS_BETWEEN_LINES
    last_printed = time.monotonic()

    def print_size(size: int) -> None:
        nonlocal last_printed
        if time.monotonic() - last_printed < pause:
            return
        last_printed = time.monotonic()
        text = f"{name}: {format_bytes(size)} read"
        if not live:
            print_note(text)
        elif not options_of().quiet:
            with contextlib.suppress(OSError):
                clear_line()
                sys.stderr.write(text)
                sys.stderr.flush()

    return print_size
