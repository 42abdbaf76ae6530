"""repo, push, search: repositories, credentials and remotes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click
from msgspec import to_builtins

from odf_engine.api.model import Remote
from odf_engine.api.text import format_bytes, format_count, printable
from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.coordinator.protocol import Job, JobState, Request
from odf_engine.errors import InvalidIdentity, NotFound, UsageError
from odf_engine.identity.names import DatasetAliasRemote
from odf_engine.jobs.base import branch_title
from odf_engine.jobs.push import Push, PushResult
from odf_engine.jobs.remotes import Compare, FoundDataset, Search, SearchResult
from odf_engine.net.credentials import Credentials, Login
from odf_engine.net.urls import folder_of, is_s3, normalize_login_url, origin_of, supports_login
from odf_engine.workspace.dataset_summary import DatasetEntry, Summary
from odf_engine.workspace.remotes import REMOTE_KINDS, Kind, Remotes, resolve_address
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.follow import error_entry, exit_code, follow, print_failure
from odf_tui.cli.output import (
    branch_option,
    open_workspace,
    options_of,
    print_json,
    print_note,
    print_result,
    print_table,
    verb,
)
from odf_tui.text.format import fit_width
from odf_tui.text.remotes import direction, plain_block_count, relation_text_for_people


@verb("status", example="odf repo status --json", json=True)
@click.argument("names", nargs=-1)
def status(names: tuple[str, ...]) -> None:
    """Compare datasets with their remotes.

    Compares the datasets NAMES, or all datasets with remotes. No data is transferred. `odf show` and
    the workstation display the result of the last comparison.
    """
    workspace = open_workspace()
    known = remotes_of(workspace, workspace.summaries())
    selected = workspace.match(names) if names else workspace.datasets()
    entries = [entry for entry in selected if known.get(str(entry.id))]
    for entry in selected if names else ():
        if entry not in entries:
            print_note(f"{entry.alias} has no remotes")
    requests: list[tuple[Request, str]] = [(Compare(str(entry.id)), str(entry.alias)) for entry in entries]
    jobs = follow(workspace, requests)
    after = remotes_of(workspace, workspace.summaries())
    problems = {
        (job.dataset, problem.url): problem.message
        for job in jobs
        if (result := job.result_of(Compare))
        for problem in result.problems
    }
    found = [
        (entry, remote, problems.get((str(entry.id), remote.url)))
        for entry in entries
        for remote in after.get(str(entry.id), ())
    ]
    _print_comparison(found)
    for job in jobs:
        if job.state is not JobState.done:
            print_failure(job)
    sys.exit(max(exit_code(jobs), 1 if problems else 0))


def _print_comparison(found: Sequence[tuple[DatasetEntry, Remote, str | None]]) -> None:
    if options_of().json:
        print_json(
            [
                {"name": str(entry.alias), **remote_json(remote), "error": problem}
                for entry, remote, problem in found
            ]
        )
    elif found:
        print_table(
            ["dataset", "", "remote", "status"],
            [
                [
                    str(entry.alias),
                    direction(remote),
                    remote.label,
                    problem or relation_text_for_people(remote),
                ]
                for entry, remote, problem in found
            ],
        )
    elif not options_of().quiet:
        print_note("no dataset has remotes: odf pull REPO/NAME, odf push NAME --to REPO")


def remotes_of(workspace: Workspace, summaries: Sequence[Summary]) -> dict[str, tuple[Remote, ...]]:
    """Return the remotes of datasets by dataset id: as last compared, with the local commits since then."""
    from odf_engine.api.readers.dataset_reader import RemoteReader

    return dict(RemoteReader(workspace).read_remotes(list(summaries)))


def remote_json(remote: Remote) -> dict[str, Any]:
    """Return a remote for ``--json``.

    ``relation`` is equal, ahead, behind, diverged, new, or null if it is unknown.
    """
    return {
        "url": remote.url,
        "label": remote.label,
        "pull": remote.pull,
        "push": remote.push,
        "relation": remote.relation or None,
        "ours": remote.ours,
        "theirs": remote.theirs,
        "their_head": remote.their_head or None,
        "looked_at": remote.at or None,
    }


@click.group("repo", epilog="Example:  odf repo add lab odf+https://data.example.com/")
def repo_verb() -> None:
    """Manage repositories, credentials and remotes.

    A repository is a folder, a bucket or a server that contains datasets. `odf pull REPO/NAME` pulls a
    dataset, `odf push NAME --to REPO` pushes one, and `odf search` searches for datasets.
    """


@verb("add", example="odf repo add lab odf+https://data.example.com/")
@click.argument("new", metavar="NAME")
@click.argument("url")
def add(new: str, url: str) -> None:
    """Add a repository.

    \b
    URL is one of:
      file:///mnt/stick            a folder, also as a path
      https://host/path            a file server, read-only
      odf+https://host/path        a dataset server, such as odf serve
      s3://bucket/path             an S3 bucket
      s3+https://host/bucket/path  an S3-compatible bucket
      gs://bucket/path             a bucket of Google Cloud Storage
      az://container/path          a container of Azure Blob Storage
      ipfs://… and ipns://…        IPFS through a gateway, read-only

    URLs must not contain credentials. Store credentials with `odf repo login`.
    """
    repo = Remotes(open_workspace().odf).add(new, url)
    print_note(f"added repository {repo.name}: {repo.url}")
    folder = folder_of(repo.url)
    if folder is not None and not folder.is_dir():
        print_note(f"! folder {folder} does not exist yet: create or mount it")
    if supports_login(repo.url):
        print_note(f"if it requires credentials: odf repo login {repo.name}")


@verb("list", example="odf repo list --json", json=True)
def list_repositories() -> None:
    """List repositories, and whether credentials are stored for them."""
    workspace = open_workspace()
    stored = set(Credentials(workspace.odf).origins())
    repos = [(repo, origin_of(repo.url) in stored) for repo in Remotes(workspace.odf).repositories()]
    if options_of().json:
        print_json([{"name": repo.name, "url": repo.url, "login": login} for repo, login in repos])
    elif not repos:
        print_note("no repositories yet: odf repo add NAME URL")
    else:
        rows = [[repo.name, repo.url, "stored" if login else ""] for repo, login in repos]
        print_table(["name", "url", "credentials"], rows)


@verb("remove", example="odf repo remove lab")
@click.argument("repository")
def remove(repository: str) -> None:
    """Remove a repository.

    Datasets that were pulled from it remain, and are still pulled from its URL.
    """
    workspace = open_workspace()
    repo = Remotes(workspace.odf).remove(repository)
    print_note(f"removed repository {repo.name}")
    if Credentials(workspace.odf).of(repo.url) is not None:
        print_note(f"its credentials are still stored: odf repo logout {repo.url}")


# --- Credentials -----------------------------------------------------------------------------------


@verb("login", example="odf repo login lab --user jane")
@click.argument("repository")
@click.option(
    "--user",
    metavar="USER",
    help="User name; for S3 the access key, for Azure the account. Default: a token.",
)
@click.option("--stdin", is_flag=True, help="Read the secret from stdin instead of the terminal.")
def login(repository: str, user: str | None, stdin: bool) -> None:
    """Store the credentials of a repository, a URL, or an MQTT broker: mqtt://HOST:PORT.

    Credentials are a token, or a user name and a password. They are stored with the private keys of the
    workspace, and sent to this host and port only.

    The secret is prompted for without echo. With --stdin, it is the first line of stdin. For S3, the
    second line may be a session token. For Azure, it is the key of the account or a shared access signature.
    For Google, it is an access token, or the JSON key of a service account in one line.
    """
    from odf_engine.api.administration import unencrypted_warning  # deferred: few verbs need it

    workspace = open_workspace()
    url = _resolve_url(workspace, repository)
    if not supports_login(url):
        raise UsageError(f"no credentials can be used for {url}")
    new_login = _read_login(url, user, stdin)
    origin = Credentials(workspace.odf).set(url, new_login)
    print_note(f"stored credentials for {origin}")
    if warning := unencrypted_warning(url):
        print_note(f"! {warning}")


@verb("logout", example="odf repo logout lab")
@click.argument("repository")
def logout(repository: str) -> None:
    """Remove the stored credentials of a repository, a URL, or an MQTT broker."""
    workspace = open_workspace()
    url = _resolve_url(workspace, repository)
    was_stored = Credentials(workspace.odf).forget(url)
    print_note(
        f"removed credentials for {origin_of(url)}"
        if was_stored
        else f"no credentials stored for {origin_of(url)}"
    )


def _resolve_url(workspace: Workspace, text: str) -> str:
    remotes = Remotes(workspace.odf)
    if "://" not in text:
        return remotes.repository(text).url
    return normalize_login_url(text)


def _read_login(url: str, user: str | None, stdin: bool) -> Login:
    if not stdin and not sys.stdin.isatty():
        raise UsageError(
            "cannot prompt for the secret: stdin is not a terminal", hint="pipe it to stdin, and use --stdin"
        )
    if is_s3(url):
        user = user or (None if stdin else click.prompt("access key", err=True))
        if not user:
            raise UsageError("missing access key", hint="use --user KEY")
        lines = (
            _read_secret_lines()
            if stdin
            else [_prompt_secret("secret key"), _prompt_secret("session token (optional)", True)]
        )
        return Login(user, lines[0], lines[1] if len(lines) > 1 else "")
    lines = _read_secret_lines() if stdin else [_prompt_secret(f"password of {user}" if user else "token")]
    return Login(user, lines[0]) if user else Login(token=lines[0])


def _read_secret_lines() -> list[str]:
    lines = sys.stdin.read(1 << 16).splitlines()
    if not lines or not lines[0]:
        raise UsageError("no secret on stdin")
    return lines


def _prompt_secret(what: str, optional: bool = False) -> str:
    return click.prompt(what, hide_input=True, err=True, default="" if optional else None, show_default=False)


# --- Remotes of datasets ---------------------------------------------------------------------------


@click.group("alias", epilog="Example:  odf repo alias list")
def alias() -> None:
    """Manage the remotes of datasets.

    Pulls and pushes add the remotes that they use.
    """


@verb("list", example="odf repo alias list", json=True)
@click.argument("names", nargs=-1)
def list_aliases(names: tuple[str, ...]) -> None:
    """List the remotes of datasets.

    Lists the remotes of the datasets NAMES, or of all datasets.
    """
    workspace = open_workspace()
    remotes = Remotes(workspace.odf)
    entries = workspace.match(names) if names else workspace.datasets()
    known = [(str(entry.alias), remotes.get(entry.id)) for entry in entries]
    if options_of().json:
        print_json([{"name": name, "pull": each.pull, "push": each.push} for name, each in known])
        return
    rows = [
        [name, {"pull": "from", "push": "to"}[kind], url]
        for name, each in known
        for kind in REMOTE_KINDS
        for url in getattr(each, kind)
    ]
    if rows:
        print_table(["dataset", "", "url"], rows)
    else:
        print_note("no remotes yet: odf pull REPO/NAME, odf push NAME --to REPO")


@verb("add", example="odf repo alias add cities lab --push")
@click.argument("name")
@click.argument("place", metavar="REPO|URL")
@click.option("--pull", "kind", flag_value="pull", help="Pull the dataset from this remote.")
@click.option("--push", "kind", flag_value="push", help="Push the dataset to this remote.")
def add_alias(name: str, place: str, kind: Kind | None) -> None:
    """Add a remote to pull a dataset from (--pull) or push it to (--push)."""
    if kind is None:
        raise UsageError("missing kind of remote", hint="use --pull or --push")
    workspace = open_workspace()
    entry, remotes = workspace.resolve(name), Remotes(workspace.odf)
    url = resolve_address(remotes, place, entry.alias)
    remotes.attach(entry.id, url, kind)
    notify_datasets_changed(workspace.folder)
    print_note(f"{entry.alias} is {'pulled from' if kind == 'pull' else 'pushed to'} {url}")
    if kind == "pull" and workspace.keys.has_key(entry.id):
        print_note("its source or query does not run while it is pulled from a remote")


@verb("remove", example="odf repo alias remove cities https://data.example.com/cities/")
@click.argument("name")
@click.argument("place", metavar="[REPO|URL]", required=False)
@click.option("--pull", "kind", flag_value="pull", help="Detach it for pulls only.")
@click.option("--push", "kind", flag_value="push", help="Detach it for pushes only.")
def remove_alias(name: str, place: str | None, kind: Kind | None) -> None:
    """Detach a dataset from a remote, or from all remotes.

    The dataset itself is not changed. If it is not pulled from a remote any more, its own source or
    query runs on the next pull. The source has to be trusted first: odf trust NAME.
    """
    workspace = open_workspace()
    entry, remotes = workspace.resolve(name), Remotes(workspace.odf)
    known = remotes.get(entry.id)
    kinds: tuple[Kind, ...] = REMOTE_KINDS if kind is None else (kind,)
    if place is None:
        urls = list(dict.fromkeys(url for each in kinds for url in getattr(known, each)))
    else:
        urls = [resolve_address(remotes, place, entry.alias)]
    removed = [
        (url, removed_kinds) for url in urls if (removed_kinds := remotes.detach(entry.id, url, kinds))
    ]
    if not removed:
        hint = f"odf repo alias list {entry.alias}"
        raise NotFound(f"{entry.alias} has no such remote", hint=hint)
    notify_datasets_changed(workspace.folder)
    for url, removed_kinds in removed:
        words = " or ".join({"pull": "pulled from", "push": "pushed to"}[each] for each in removed_kinds)
        print_note(f"{entry.alias} is no longer {words} {url}")


alias.add_command(list_aliases)
alias.add_command(add_alias)
alias.add_command(remove_alias)
for _command in (add, list_repositories, remove, login, logout, status, alias):
    repo_verb.add_command(_command)


_LONGEST = 60


@verb("push", example="odf push port-haven.stations --to lab", json=True)
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Push all datasets of the workspace.")
@click.option(
    "--to",
    "place",
    metavar="REPO|URL",
    help="Remote to push to. Default: the push remote, else the only repository.",
)
@click.option("--force", is_flag=True, help="Overwrite the history of the remote if it has diverged.")
@branch_option("Push this branch of the datasets, to the branch of the same name.")
def push_verb(names: tuple[str, ...], everything: bool, place: str | None, force: bool, branch: str) -> None:
    """Push datasets to remotes.

    NAMES are names of datasets, or patterns with %, such as 'weather.%'.

    A dataset is pushed to the remote that it was pushed to before, else to the only repository. Only
    blocks and data that the remote does not have are sent.

    If the remote has blocks that the dataset does not have, the push fails. With --force, these blocks
    are removed from the history of the remote.

    --branch requires a folder or a bucket with the dataset: the smart transfer protocol has no branches.
    """
    workspace = open_workspace()
    if bool(names) == everything:
        raise UsageError(
            "specify either datasets or --all" if names else "no datasets specified",
            hint="specify names or patterns with %, or use --all",
        )
    found = workspace.datasets() if everything else workspace.match(names)
    entries = [entry.on_branch(branch) for entry in found]
    targets = [_push_url(workspace, entry, place, len(entries) > 1) for entry in entries]
    requests: list[tuple[Request, str]] = [
        (Push(str(entry.id), url, force, branch), branch_title(str(entry.alias), branch))
        for entry, url in zip(entries, targets, strict=True)
    ]
    jobs = follow(workspace, requests)
    if options_of().json:
        pushed = zip(jobs, targets, entries, strict=True)
        print_json([push_entry(job, url, str(entry.alias)) for job, url, entry in pushed])
    else:
        remotes = Remotes(workspace.odf)
        for job, url in zip(jobs, targets, strict=True):
            _print_push(job, remotes.display_name(url))
    sys.exit(exit_code(jobs))


def _push_url(workspace: Workspace, entry: DatasetEntry, place: str | None, several: bool) -> str:
    """Return the address that a dataset is pushed to.

    Raises:
        UsageError: the arguments and the known remotes do not select one address.
    """
    remotes = Remotes(workspace.odf)
    if place is not None:
        return resolve_address(remotes, place, entry.alias, several)
    known = remotes.get(entry.id).push
    if len(known) == 1:
        return known[0]
    if known:
        raise UsageError(
            f"{entry.alias} has several push remotes: {', '.join(known)}", hint="select one with --to"
        )
    repos = remotes.repositories()
    if len(repos) == 1:
        return resolve_address(remotes, repos[0].name, entry.alias)
    names = ", ".join(repo.name for repo in repos)
    hint = f"use --to REPO, one of {names}" if names else "use --to URL, or odf repo add NAME URL"
    raise UsageError(f"{entry.alias} has no push remote", hint=hint)


def push_entry(job: Job, url: str, name: str) -> dict[str, Any]:
    """Return the ``--json`` entry of a push of the dataset ``name``."""
    result = job.result_of(Push)
    entry = to_builtins(result or PushResult(name=name, url=url, status="failed"))
    label = entry.pop("label")
    return {**entry, **({"label": label} if result else {}), "error": error_entry(job)}


def _print_push(job: Job, label: str) -> None:
    result = job.result_of(Push) or PushResult()
    if job.state is not JobState.done:
        print_failure(job)
    else:
        print_result(push_line(job.target, result, label))


def push_line(target: str, result: PushResult, remote: str) -> str:
    """Describe the result of a push of the dataset ``target`` in a line; ``remote`` is the remote's name."""
    if result.status != "updated":
        return f"{target}: {remote} is up to date"
    new = "new at the remote, " if result.old_head is None else ""
    return f"{target}: {new}{plain_block_count(result.blocks)}, {format_bytes(result.bytes)} to {remote}"


@verb("search", example="odf search weather --repo lab", json=True)
@click.argument("text", default="")
@click.option(
    "--repo",
    "repositories",
    multiple=True,
    metavar="REPO",
    help="Search only this repository. Can be repeated.",
)
def search_verb(text: str, repositories: tuple[str, ...]) -> None:
    """Search repositories for datasets.

    Searches for the words of TEXT in names and ids, and in descriptions and keywords if the repository
    provides them. Without TEXT, lists all datasets. Repositories that do not answer are reported. The
    search fails only if none answers.
    """
    workspace = open_workspace()
    remotes = Remotes(workspace.odf)
    named = [remotes.repository(name).name for name in repositories]
    if not remotes.repositories():
        raise NotFound("no repositories to search", hint="run odf repo add NAME URL")
    request = Search(text=text, repositories=named)
    (job,) = follow(workspace, [(request, f"'{text}'" if text else "all datasets")])
    result = job.result_of(Search) or SearchResult()
    if options_of().json:
        datasets = [{**to_builtins(dataset), "pull": _pull_command(dataset)} for dataset in result.datasets]
        document = {"datasets": datasets, "problems": result.problems}
        print_json({**document, "error": error_entry(job)} if job.error else document)
    elif job.state is JobState.done:
        _print_search_results(result.datasets)
    if job.state is not JobState.done:
        print_failure(job)
    searched = len(set(named)) or len(remotes.repositories())
    none_answered = len(result.problems) >= searched
    if result.problems:
        failed = ", ".join(problem.repository for problem in result.problems)
        sys.stderr.write(
            f"error: no repository answered: {failed}\n"
            if none_answered
            else f"! no answer from {failed}: its datasets are missing above\n"
        )
    sys.exit(max(exit_code([job]), int(none_answered)))


def _pull_command(dataset: FoundDataset) -> str:
    """Return the command that pulls a dataset. Its name and URL are untrusted text."""
    with suppress(InvalidIdentity):
        name = DatasetAliasRemote.parse(f"{dataset.repository}/{dataset.name}")
        return f"odf pull {name}"
    return f"odf pull {shlex.quote(dataset.url)}"


def _print_search_results(datasets: Sequence[FoundDataset]) -> None:
    if not datasets:
        print_note("no datasets found")
        return
    # The texts are untrusted: control characters are shown as symbols.
    rows = [
        [
            printable(f"{dataset.repository}/{dataset.name}"),
            printable(dataset.kind or ""),
            format_count(dataset.records),
            format_bytes(dataset.size),
            fit_width(text, _LONGEST).rstrip() if (text := printable(dataset.description)) else "",
            printable(_pull_command(dataset)),
        ]
        for dataset in datasets
    ]
    shown = [at for at in range(len(_COLUMNS)) if at in (0, 5) or any(row[at] for row in rows)]
    columns = [_COLUMNS[at] for at in shown]
    right = [column for column in columns if column in ("rows", "size")]
    print_table(columns, [[row[at] for at in shown] for row in rows], right=right)


_COLUMNS = ("dataset", "kind", "rows", "size", "description", "pull command")
