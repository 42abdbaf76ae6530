"""Manage repositories, credentials and remotes.

A repository is a folder, a bucket or a server that contains datasets. `odf pull REPO/NAME` pulls a
dataset, `odf push NAME --to REPO` pushes one, and `odf search` searches for datasets.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from odf_engine.api import (
    REMOTE_KINDS,
    Compare,
    Kind,
    Login,
    Request,
    folder_of,
    is_s3,
    normalize_login_url,
    origin_of,
    supports_login,
)
from odf_engine.api.administration import unencrypted_warning
from odf_engine.api.model import Remote
from odf_engine.api.workspace import Workspace
from odf_engine.errors import NotFound, UsageError
from odf_tui.cli.shared.datasets import remote_json, remotes_of
from odf_tui.cli.shared.job_progress import exit_code, follow, print_failures
from odf_tui.cli.shared.options import DATASET, REPOSITORY, CommandGroup
from odf_tui.cli.shared.output import Table, print_note, show
from odf_tui.cli.shared.workspace import open_workspace
from odf_tui.text.remotes import direction, relation_text_for_people

ORDER = 250
MEANINGS = "remote remotes repos repository repositories login logout"

command = CommandGroup("repo", help=__doc__, example="odf repo add lab odf+https://data.example.com/")


@command.subcommand("status", example="odf repo status --json", json=True)
@click.argument("names", nargs=-1, type=DATASET)
def status(names: tuple[str, ...]) -> None:
    """Compare datasets with their remotes.

    Compares the datasets NAMES, or all datasets with remotes. No data is transferred. `odf show` and
    the workstation display the result of the last comparison.
    """
    workspace = open_workspace()
    known = remotes_of(workspace, workspace.summaries())
    selected = workspace.match(names) if names else list(workspace)
    datasets = [dataset for dataset in selected if known.get(dataset.id)]
    for dataset in selected if names else ():
        if not known.get(dataset.id):
            print_note(f"{dataset.name} has no remotes")
    requests: list[tuple[Request, str]] = [(Compare(dataset.id), dataset.name) for dataset in datasets]
    jobs = follow(workspace, requests)
    remotes = remotes_of(workspace, workspace.summaries())
    problems = {
        (job.dataset, problem.url): problem.message
        for job in jobs
        if (result := job.result_of(Compare))
        for problem in result.problems
    }
    _show_comparison(
        [
            (dataset.name, remote, problems.get((dataset.id, remote.url)))
            for dataset in datasets
            for remote in remotes.get(dataset.id, ())
        ]
    )
    print_failures(jobs)
    sys.exit(max(exit_code(jobs), 1 if problems else 0))


def _show_comparison(compared: Sequence[tuple[str, Remote, str | None]]) -> None:
    rows = [
        [name, direction(remote), remote.label, problem or relation_text_for_people(remote)]
        for name, remote, problem in compared
    ]
    empty = "no dataset has remotes: odf pull REPO/NAME, odf push NAME --to REPO"
    show(
        [{"name": name, **remote_json(remote), "error": problem} for name, remote, problem in compared],
        Table(["dataset", "", "remote", "status"], rows, empty=empty),
    )


@command.subcommand("add", example="odf repo add lab odf+https://data.example.com/")
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
    repo = open_workspace().remotes.add(new, url)
    print_note(f"added repository {repo.name}: {repo.url}")
    folder = folder_of(repo.url)
    if folder is not None and not folder.is_dir():
        print_note(f"! folder {folder} does not exist yet: create or mount it")
    if supports_login(repo.url):
        print_note(f"if it requires credentials: odf repo login {repo.name}")


@command.subcommand("list", example="odf repo list --json", json=True)
def list_repositories() -> None:
    """List repositories, and whether credentials are stored for them."""
    workspace = open_workspace()
    stored = set(workspace.credentials.origins())
    repos = [(repo, origin_of(repo.url) in stored) for repo in workspace.remotes.repositories()]
    rows = [[repo.name, repo.url, "stored" if login else ""] for repo, login in repos]
    show(
        [{"name": repo.name, "url": repo.url, "login": login} for repo, login in repos],
        Table(["name", "url", "credentials"], rows, empty="no repositories yet: odf repo add NAME URL"),
    )


@command.subcommand("remove", example="odf repo remove lab")
@click.argument("repository", type=REPOSITORY)
def remove(repository: str) -> None:
    """Remove a repository.

    Datasets that were pulled from it remain, and are still pulled from its URL.
    """
    workspace = open_workspace()
    repo = workspace.remotes.remove(repository)
    print_note(f"removed repository {repo.name}")
    if workspace.credentials.of(repo.url) is not None:
        print_note(f"its credentials are still stored: odf repo logout {repo.url}")


@command.subcommand("login", example="odf repo login lab --user jane")
@click.argument("repository", type=REPOSITORY)
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
    workspace = open_workspace()
    url = _resolve_url(workspace, repository)
    if not supports_login(url):
        raise UsageError(f"no credentials can be used for {url}")
    new_login = _read_login(url, user, stdin)
    origin = workspace.credentials.set(url, new_login)
    print_note(f"stored credentials for {origin}")
    if warning := unencrypted_warning(url):
        print_note(f"! {warning}")


@command.subcommand("logout", example="odf repo logout lab")
@click.argument("repository", type=REPOSITORY)
def logout(repository: str) -> None:
    """Remove the stored credentials of a repository, a URL, or an MQTT broker."""
    workspace = open_workspace()
    url = _resolve_url(workspace, repository)
    was_stored = workspace.credentials.forget(url)
    print_note(f"{'removed credentials' if was_stored else 'no credentials stored'} for {origin_of(url)}")


def _resolve_url(workspace: Workspace, text: str) -> str:
    return normalize_login_url(text) if "://" in text else workspace.remotes.repository(text).url


def _read_login(url: str, user: str | None, stdin: bool) -> Login:
    if not stdin and not sys.stdin.isatty():
        raise UsageError(
            "cannot prompt for the secret: stdin is not a terminal", hint="pipe it to stdin, and use --stdin"
        )
    if is_s3(url):
        user = user or (None if stdin else click.prompt("access key", err=True))
        if not user:
            raise UsageError("missing access key", hint="use --user KEY")
        prompts = ("secret key", False), ("session token (optional)", True)
        lines = _read_secret_lines() if stdin else [_prompt_secret(*prompt) for prompt in prompts]
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


alias = CommandGroup(
    "alias",
    help="""Manage the remotes of datasets.

    Pulls and pushes add the remotes that they use.
    """,
    example="odf repo alias list",
)
command.add_command(alias)


@alias.subcommand("list", example="odf repo alias list", json=True)
@click.argument("names", nargs=-1, type=DATASET)
def list_aliases(names: tuple[str, ...]) -> None:
    """List the remotes of datasets.

    Lists the remotes of the datasets NAMES, or of all datasets.
    """
    workspace = open_workspace()
    datasets = workspace.match(names) if names else list(workspace)
    attached = [(dataset.name, dataset.remotes) for dataset in datasets]
    rows = [
        [name, {"pull": "from", "push": "to"}[kind], url]
        for name, addresses in attached
        for kind in REMOTE_KINDS
        for url in getattr(addresses, kind)
    ]
    show(
        [{"name": name, "pull": addresses.pull, "push": addresses.push} for name, addresses in attached],
        Table(
            ["dataset", "", "url"], rows, empty="no remotes yet: odf pull REPO/NAME, odf push NAME --to REPO"
        ),
    )


@alias.subcommand("add", example="odf repo alias add cities lab --push")
@click.argument("name", type=DATASET)
@click.argument("place", metavar="REPO|URL", type=REPOSITORY)
@click.option("--pull", "kind", flag_value="pull", help="Pull the dataset from this remote.")
@click.option("--push", "kind", flag_value="push", help="Push the dataset to this remote.")
def add_alias(name: str, place: str, kind: Kind | None) -> None:
    """Add a remote to pull a dataset from (--pull) or push it to (--push)."""
    if kind is None:
        raise UsageError("missing kind of remote", hint="use --pull or --push")
    workspace = open_workspace()
    dataset = workspace.resolve(name)
    url = workspace.remote_url(dataset.id, place)
    workspace.attach(dataset.id, url, kind)
    print_note(f"{dataset.name} is {'pulled from' if kind == 'pull' else 'pushed to'} {url}")
    if kind == "pull" and workspace.has_private_key(dataset.id):
        print_note("its source or query does not run while it is pulled from a remote")


@alias.subcommand("remove", example="odf repo alias remove cities https://data.example.com/cities/")
@click.argument("name", type=DATASET)
@click.argument("place", metavar="[REPO|URL]", required=False, type=REPOSITORY)
@click.option("--pull", "kind", flag_value="pull", help="Detach it for pulls only.")
@click.option("--push", "kind", flag_value="push", help="Detach it for pushes only.")
def remove_alias(name: str, place: str | None, kind: Kind | None) -> None:
    """Detach a dataset from a remote, or from all remotes.

    The dataset itself is not changed. If it is not pulled from a remote any more, its own source or
    query runs on the next pull. The source has to be trusted first: odf trust NAME.
    """
    workspace = open_workspace()
    dataset = workspace.resolve(name)
    kinds: tuple[Kind, ...] = REMOTE_KINDS if kind is None else (kind,)
    if place is not None:
        urls = [workspace.remote_url(dataset.id, place)]
    else:
        known = dataset.remotes
        urls = list(dict.fromkeys(url for kind in kinds for url in getattr(known, kind)))
    if not urls:
        hint = f"odf repo alias list {dataset.name}"
        raise NotFound(f"{dataset.name} has no such remote", hint=hint)
    for url in urls:
        removed = workspace.detach(dataset.id, url, kinds)
        words = " or ".join({"pull": "pulled from", "push": "pushed to"}[kind] for kind in removed)
        print_note(f"{dataset.name} is no longer {words} {url}")
