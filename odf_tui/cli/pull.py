"""pull, ingest: fetch data from sources, remotes and files."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import click
from msgspec import to_builtins

from odf_engine.api.pull_plan import PullPlan, PullSelection, PullTarget, datasets_of_repository, plan_pull
from odf_engine.api.text import count_of, format_bytes
from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.coordinator.protocol import Job, JobState
from odf_engine.errors import (
    NotFound,
    OdfError,
    SourceUnavailable,
    UsageError,
)
from odf_engine.jobs.base import branch_title
from odf_engine.jobs.definition import UpdateResult
from odf_engine.jobs.ingest import INGEST_FORMATS, Ingest
from odf_engine.jobs.pull import Pull, PullResult, change_counts
from odf_engine.jobs.remotes import Search
from odf_engine.storage.scratch import spool_stream
from odf_engine.workspace.dataset_graph import DatasetGraph
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.remotes import Remotes
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
from odf_tui.text.format import with_spaced_thousands
from odf_tui.text.remotes import plain_block_count

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

    A third-party dataset is specified by its URL, or as REPO/NAME (see `odf repo`). All of its
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
    options = Pull(
        dataset="",
        fetch_uncacheable=fetch_uncacheable,
        set_watermark=parse_time_option("--set-watermark", set_watermark),
        force=force,
        strict=strict,
        reset_on_divergence=reset_on_divergence,
        rederive=rederive,
        branch=branch,
        remote_branch=remote_branch,
        on_warning=on_warning,
    )
    if everything and source is not None and not names and alias is None:
        plan = _plan_repository(workspace, source)
    else:
        plan = plan_pull(workspace, PullSelection(names, everything, recursive, source, alias))
    targets, requests = plan.targets, plan.requests(options)
    jobs = follow(workspace, requests)
    if options_of().json:
        print_json(
            [pull_entry(job, target.alias or target.name) for job, target in zip(jobs, targets, strict=True)]
        )
    else:
        for job, target in zip(jobs, targets, strict=True):
            print_pull(job, workspace, target)
    if any(target.entry is None for target in targets):
        notify_datasets_changed(workspace.folder)
    sys.exit(exit_code(jobs))


def _plan_repository(workspace: Workspace, repository: str) -> PullPlan:
    """Return the plan to pull all datasets of a repository, which is queried for them."""
    remotes = Remotes(workspace.odf)
    repo = remotes.repository(repository)
    result = run_request(workspace, Search(text="", repositories=[repo.name]), f"all of {repo.name}")
    for problem in result.problems:
        raise SourceUnavailable(problem.message, where=repo.name)
    names = [dataset.name for dataset in result.datasets]
    locations = datasets_of_repository(remotes, repo.name, names)
    return plan_pull(workspace, PullSelection(locations=locations)) if locations else PullPlan(())


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
        target: the pulled dataset, or None for an ingest.
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
        remote: name of the remote, or "" for a dataset that is pulled from its source.
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
