"""The verb about places elsewhere: repositories, logins for them, and how datasets stand to them."""

from __future__ import annotations

import sys

import click

from odf_engine.coordinator.endpoint import notify_datasets_changed
from odf_engine.errors import NotFound, UsageError
from odf_engine.net.credentials import Credentials, Login
from odf_engine.net.urls import folder_of, is_s3, normalize_url, origin_of, supports_login
from odf_engine.workspace.remotes import KINDS, Kind, Remotes
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.output import open_workspace, options_of, print_json, print_table, say, verb
from odf_tui.cli.pulling import address_in
from odf_tui.cli.standing import status


@click.group("repo", epilog="Example:  odf repo add lab odf+https://data.example.com/")
def repo_verb() -> None:
    """Places elsewhere: repositories, logins for them, and how datasets stand to them.

    A repository is a folder, a bucket or a server with datasets in it. `odf pull REPO/NAME` brings one
    of them here, `odf push NAME --to REPO` takes one there, `odf search` looks for them.
    """


@verb("add", example="odf repo add lab odf+https://data.example.com/")
@click.argument("new", metavar="NAME")
@click.argument("url")
def add(new: str, url: str) -> None:
    """Gives a place a name.

    \b
    URL is one of    file:///mnt/stick, or the path of a folder
                     https://host/path           a server of files: read only
                     odf+https://host/path       a server of datasets, such as odf serve
                     s3://bucket/path            and s3+https://host/bucket/path
                     ipfs://… and ipns://…       through a gateway: read only

    Logins never belong into a URL: odf repo login keeps them.
    """
    repo = Remotes(open_workspace().odf).add(new, url)
    say(f"{repo.name} is {repo.url}")
    folder = folder_of(repo.url)
    if folder is not None and not folder.is_dir():
        say(f"! there is no folder {folder} yet: make it, or mount it")
    if supports_login(repo.url):
        say(f"if it asks who you are: odf repo login {repo.name}")


@verb("list", example="odf repo list --json", json=True)
def list_repositories() -> None:
    """Lists the repositories, and whether a login is kept for them."""
    workspace = open_workspace()
    kept = set(Credentials(workspace.odf).origins())
    repos = [(repo, origin_of(repo.url) in kept) for repo in Remotes(workspace.odf).repositories()]
    if options_of().json:
        print_json([{"name": repo.name, "url": repo.url, "login": login} for repo, login in repos])
    elif not repos:
        say("no repositories yet: odf repo add NAME URL")
    else:
        rows = [[repo.name, repo.url, "kept" if login else ""] for repo, login in repos]
        print_table(["name", "url", "login"], rows)


@verb("remove", example="odf repo remove lab")
@click.argument("repository")
def remove(repository: str) -> None:
    """Forgets a repository; what came from there stays, and goes on to come from its URL."""
    workspace = open_workspace()
    repo = Remotes(workspace.odf).remove(repository)
    say(f"{repo.name} is forgotten")
    if Credentials(workspace.odf).of(repo.url) is not None:
        say(f"its login is still kept: odf repo logout {repo.url}")


# --- Logins ----------------------------------------------------------------------------------------


@verb("login", example="odf repo login lab --user jane")
@click.argument("repository")
@click.option("--user", metavar="U", help="User; of S3 the access key. Without it: a token.")
@click.option("--stdin", is_flag=True, help="Read the secret from stdin, and not from the terminal.")
def login(repository: str, user: str | None, stdin: bool) -> None:
    """Keeps the login for a repository or a URL: a token, or user and password.

    It is kept beside the private keys of the workspace, and sent to this host and port alone. What is
    typed is not shown. With --stdin it is the first line there; for S3 a session's token may be the second.
    """
    workspace = open_workspace()
    url = _url(workspace, repository)
    if not supports_login(url):
        raise UsageError(f"nobody asks for a login at {url}")
    made = _read_login(url, user, stdin)
    origin = Credentials(workspace.odf).set(url, made)
    say(f"the login for {origin} is kept")
    if url.startswith(("http:", "odf+http:", "s3+http:")) and not _is_loopback(origin):
        say("! it is sent in the clear: whoever listens on the way can read it; https is better")


@verb("logout", example="odf repo logout lab")
@click.argument("repository")
def logout(repository: str) -> None:
    """Forgets the login for a repository or a URL."""
    workspace = open_workspace()
    url = _url(workspace, repository)
    was = Credentials(workspace.odf).forget(url)
    say(f"the login for {origin_of(url)} is forgotten" if was else f"none was kept for {origin_of(url)}")


def _url(workspace: Workspace, text: str) -> str:
    remotes = Remotes(workspace.odf)
    if "://" not in text:
        return remotes.repository(text).url
    return normalize_url(text)


def _read_login(url: str, user: str | None, stdin: bool) -> Login:
    if not stdin and not sys.stdin.isatty():
        raise UsageError("nobody is here to type the secret", hint="give it on stdin, with --stdin")
    if is_s3(url):
        user = user or (None if stdin else click.prompt("access key", err=True))
        if not user:
            raise UsageError("which access key?", hint="--user KEY")
        lines = _lines() if stdin else [_ask("secret key"), _ask("token of the session (or nothing)", True)]
        return Login(user, lines[0], lines[1] if len(lines) > 1 else "")
    lines = _lines() if stdin else [_ask(f"password of {user}" if user else "token")]
    return Login(user, lines[0]) if user else Login(token=lines[0])


def _lines() -> list[str]:
    lines = sys.stdin.read(1 << 16).splitlines()
    if not lines or not lines[0]:
        raise UsageError("there is no secret on stdin")
    return lines


def _ask(what: str, optional: bool = False) -> str:
    return click.prompt(what, hide_input=True, err=True, default="" if optional else None, show_default=False)


def _is_loopback(origin: str) -> bool:
    host = origin.partition("://")[2]
    return host.startswith(("localhost", "127.", "[::1]"))


# --- What comes from where -------------------------------------------------------------------------


@click.group("alias", epilog="Example:  odf repo alias list")
def alias() -> None:
    """Where datasets come from and go to, as pulls and pushes have remembered it."""


@verb("list", example="odf repo alias list", json=True)
@click.argument("names", nargs=-1)
def list_aliases(names: tuple[str, ...]) -> None:
    """Lists the addresses of datasets, by default of all."""
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
        for kind in KINDS
        for url in getattr(each, kind)
    ]
    if rows:
        print_table(["dataset", "", "address"], rows)
    else:
        say("nothing comes from elsewhere or goes there yet")


@verb("add", example="odf repo alias add cities lab --push")
@click.argument("name")
@click.argument("place", metavar="REPO|URL")
@click.option("--pull", "kind", flag_value="pull", help="It comes from there.")
@click.option("--push", "kind", flag_value="push", help="It goes there.")
def add_alias(name: str, place: str, kind: Kind | None) -> None:
    """Remembers that a dataset comes from a place (--pull) or goes there (--push)."""
    if kind is None:
        raise UsageError("does it come from there, or go there?", hint="--pull or --push")
    workspace = open_workspace()
    entry, remotes = workspace.resolve(name), Remotes(workspace.odf)
    url = address_in(remotes, place, entry)
    remotes.attach(entry.id, url, kind)
    notify_datasets_changed(workspace.folder)
    say(f"{entry.alias} {'comes from' if kind == 'pull' else 'goes to'} {url}")
    if kind == "pull" and workspace.keys.has_key(entry.id):
        say("its own source or query does not run while it comes from there")


@verb("remove", example="odf repo alias remove cities https://data.example.com/cities/")
@click.argument("name")
@click.argument("place", metavar="[REPO|URL]", required=False)
@click.option("--pull", "kind", flag_value="pull", help="Only as where it comes from.")
@click.option("--push", "kind", flag_value="push", help="Only as where it goes to.")
def remove_alias(name: str, place: str | None, kind: Kind | None) -> None:
    """Forgets an address of a dataset, or all of them. The dataset stays as it is.

    One that does not come from elsewhere any more is polled or transformed here again; its source runs
    nothing before you allow it: odf trust NAME.
    """
    workspace = open_workspace()
    entry, remotes = workspace.resolve(name), Remotes(workspace.odf)
    known = remotes.get(entry.id)
    kinds: tuple[Kind, ...] = KINDS if kind is None else (kind,)
    if place is None:
        urls = list(dict.fromkeys(url for each in kinds for url in getattr(known, each)))
    else:
        urls = [address_in(remotes, place, entry)]
    was = [(url, gone) for url in urls if (gone := remotes.detach(entry.id, url, kinds))]
    if not was:
        hint = f"odf repo alias list {entry.alias}"
        raise NotFound(f"{entry.alias} has no such address", hint=hint)
    notify_datasets_changed(workspace.folder)
    for url, gone in was:
        words = " or ".join({"pull": "come from", "push": "go to"}[each] for each in gone)
        say(f"{entry.alias} does not {words} {url} any more")


alias.add_command(list_aliases)
alias.add_command(add_alias)
alias.add_command(remove_alias)
for _command in (add, list_repositories, remove, login, logout, status, alias):
    repo_verb.add_command(_command)
