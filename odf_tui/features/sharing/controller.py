"""SharingController: push, compare, settle diverged histories, manage repositories, pull from an address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from odf_engine.coordinator.protocol import Compare, Job, Pull, Push, Request, Search
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.identity.names import DatasetAliasRemote, DatasetUrl, is_valid_name, parse_ref_remote
from odf_engine.net.urls import dataset_name_from_url, normalize_url
from odf_tui.features.sharing.remote_picker import choose_remote, numbered_choice
from odf_tui.gateway.protocol import DivergedBranches, NamedUrl
from odf_tui.services.controller import Controller
from odf_tui.state.model import BlockSummary, DatasetRow
from odf_tui.text.format import (
    Span,
    count_of,
    ellipsize_middle,
    error_with_hint,
    format_count,
    format_time,
    printable,
)
from odf_tui.text.job_text import remote_from_comparison
from odf_tui.text.remotes import (
    Remote,
    diverged_remotes,
    is_writable,
    pull_remotes,
    push_remotes,
    relation_text,
)

if TYPE_CHECKING:
    from odf_tui.features.sharing.repository_browser import RemoteDataset
    from odf_tui.widgets.choice_list import Choice

SHOWN: Final = 6
"""Blocks of ours that are drawn one by one."""
_HASH: Final = 8
_WHAT: Final = 20
_LABEL: Final = 36
_TYPED: Final = "typed"
_IN: Final = "in "
Lines = list[list[Span]]
_Answer = tuple[str, tuple[str, ...], str]
"""The result of a decision, its keys, and what it does."""
_THEIRS: Final[_Answer] = ("theirs", ("t",), "theirs")
_OURS: Final[_Answer] = ("ours", ("o",), "ours")
_BOTH: Final[_Answer] = ("both", ("b",), "both")
_AGAIN: Final[_Answer] = ("again", ("r",), "looks again")
_LEAVE: Final[_Answer] = ("leave", ("escape",), "leaves it")


class SharingController(Controller):
    """Pushes and compares datasets, settles diverged histories, and pulls new datasets from repositories."""

    # --- Compare ---

    def compare(self) -> None:
        """Compare the selected dataset with its remotes."""
        row = self.state.row
        if row is not None:
            self.jobs.submit([(Compare(dataset=row.id), row.name)])

    def compare_all(self) -> None:
        """Compare all datasets with their remotes, except those that are being compared."""
        busy = {job.dataset for job in self.state.jobs.active_jobs() if job.kind == "compare"}
        rows = [row for row in self.state.datasets if row.remotes and not row.problem and row.id not in busy]
        if rows:
            self.jobs.submit([(Compare(dataset=row.id), row.name) for row in rows])
        else:
            self.host.notice("all of them are being looked at already")

    # --- Push ---

    def push(self) -> None:
        """Push the selected dataset to its only push remote, else to an address that the user chooses."""
        row = self.state.row
        if row is None:
            return
        remotes = push_remotes(row.remotes)
        if len(remotes) == 1:
            self._push(row, remotes[0].url, remotes[0].label)
        else:
            self.host.start(self._push_to_address(row))

    def push_to_address(self) -> None:
        """Push the selected dataset to an address that the user chooses."""
        row = self.state.row
        if row is not None:
            self.host.start(self._push_to_address(row))

    async def _push_to_address(self, row: DatasetRow) -> None:
        address = await self._choose_push_address(row, f"Push {row.name} to")
        if address is not None:
            self._push(row, address.url, address.name)

    def _push(self, row: DatasetRow, url: str, label: str) -> None:
        self.jobs.submit([(Push(dataset=row.id, url=url), row.name)], f", to {label}")

    async def _choose_push_address(self, row: DatasetRow, title: str, without: str = "") -> NamedUrl | None:
        """Return a writable address: a push remote, one in a repository, or a typed one. None if cancelled.

        Args:
            row: the dataset.
            title: title of the dialog.
            without: a URL that is not offered.
        """
        from odf_tui.widgets.dialogs import PickerDialog, PromptDialog  # deferred: loads faster

        repositories = await asyncio.to_thread(self.gateway.repositories)
        addresses = [NamedUrl(each.label, each.url) for each in push_remotes(row.remotes)]
        addresses += [address_in_repository(each, row.name) for each in repositories if is_writable(each.url)]
        by_url = {each.url: each for each in reversed(addresses) if each.url != without}
        addresses = [each for each in dict.fromkeys(addresses) if by_url.get(each.url) == each]
        picked: str | None = _TYPED
        if addresses:
            choices = [
                numbered_choice(at, each.url, each.name, each.url) for at, each in enumerate(addresses)
            ]
            choices.append(_typed_choice("another address"))
            picked = await self.host.ask(PickerDialog(printable(title), choices, typing=False))
        if picked != _TYPED:
            return by_url.get(picked or "")
        remark = "repository/name, or a URL: file:, s3:, odf+https:"
        check = address_validator(repositories, to_push=True)
        text = await self.host.ask(PromptDialog(title, "", remark, check))
        return NamedUrl(text, resolve_address(text, repositories).url) if text else None

    # --- Detach ---

    def detach(self) -> None:
        """Remove a remote of the selected dataset, after confirmation."""
        row = self.state.row
        if row is not None:
            self.host.start(self._detach(row))

    async def _detach(self, row: DatasetRow) -> None:
        from odf_tui.widgets.dialogs import ConfirmDialog

        remote = await choose_remote(self.host, f"Detach {row.name} from", row.remotes)
        if remote is None:
            return
        stays, then = "What it has stays, here and there.", "Pull and push forget that address."
        if remote.pull and len(pull_remotes(row.remotes)) == 1:
            then = "From then on p makes it here, as its source says."
        if await self.host.ask(ConfirmDialog(f"Detach from {remote.label}?", stays, then)):
            await asyncio.to_thread(self.gateway.detach, row.id, remote.url)
            self.host.notice(f"{row.name} is detached from {remote.label}")
            self.state.datasets_outdated.send(None)

    # --- Diverged histories ---

    def show_branches(self) -> None:
        """Show both histories of the selected dataset, or of the dataset of the selected pull or push job."""
        job = self.host.situation().job if self.state.pane == "jobs" else None
        if job is None or job.kind not in ("pull", "push"):
            if (row := self.state.row) is not None:
                self.host.start(self._settle_divergence(row))
        elif (row := self.state.row_of(job.dataset)) is None:
            self.host.notice(f"{job.target} is not in this workspace", "warn")
        elif diverged_remotes(row.remotes):
            self.host.start(self._settle_divergence(row))
        else:
            self.host.start(self._settle_divergence_of_job(row, job))

    async def _settle_divergence_of_job(self, row: DatasetRow, job: Job) -> None:
        """Settle the divergence that made a job fail. The remote is that of its request."""
        request = await asyncio.to_thread(self.gateway.request_of_job, job)
        url = getattr(request, "url", None)
        remote = next((each for each in row.remotes if each.url == url), None)
        if remote is None and url:
            remote = Remote(url=url, label=url)
        await self._settle_divergence(row, remote)

    async def _settle_divergence(self, row: DatasetRow, remote: Remote | None = None) -> None:
        if remote is None:
            title = f"{row.name} and which remote?"
            remotes = diverged_remotes(row.remotes) or row.remotes
            remote = await choose_remote(self.host, title, remotes)
        if remote is None:
            self.host.notice(f"{row.name} has no remote", "warn")
            return
        answer = "" if remote.relation == "diverged" else "again"
        while answer in ("", "again"):
            if answer:
                remote = await self._compare_now(row, remote)
            if remote.relation == "behind":
                await self._pull_missing(row, remote)
                return
            if remote.relation != "diverged":
                self.host.notice(f"{row.name} and {remote.label}: {relation_text(remote)}")
                return
            answer = await self._choose_history(row, remote)
        if answer == "theirs":
            await self._take_theirs(row, remote)
        elif answer == "ours":
            await self._push_ours(row, remote)
        elif answer == "both":
            await self._keep_both(row, remote)

    async def _compare_now(self, row: DatasetRow, remote: Remote) -> Remote:
        """Return the remote with its current relation to the dataset.

        Raises:
            OdfError: the remote cannot be read, or has no such dataset.
        """
        request = Compare(dataset=row.id, urls=[remote.url])
        result = await self.jobs.outcome(request, row.name, f"Looking at {remote.label}")
        for problem in result.problems:
            raise OdfError(f"{remote.label}: {problem.message}")
        for seen in result.seen:
            return remote_from_comparison(seen, remote.label, remote)
        raise NotFound(f"nothing was found at {remote.label}")

    async def _choose_history(self, row: DatasetRow, remote: Remote) -> str:
        from odf_tui.widgets.dialogs import DecisionDialog

        branches = await asyncio.to_thread(self.gateway.branches, row.id, remote.common, SHOWN)
        downstream = self.state.downstream_names(row)
        lines = divergence_lines(row, remote, branches, downstream, writable=remote.writable)
        answers = [_THEIRS, *([_OURS] if remote.writable else []), _BOTH, _AGAIN, _LEAVE]
        return await self.host.ask(DecisionDialog("Two histories", lines, answers)) or "leave"

    async def _pull_missing(self, row: DatasetRow, remote: Remote) -> None:
        """Pull the blocks that only the remote has, after confirmation. It may be no pull remote."""
        from odf_tui.widgets.dialogs import ConfirmDialog

        remarks = (f"The two did not go apart: {remote.label}", "just has more.")
        question = ConfirmDialog(f"Pull {blocks(remote.theirs)} into {row.name}?", *remarks)
        if await self.host.ask(question):
            self.jobs.submit([(Pull(dataset=row.id, url=remote.url), row.name)], f", from {remote.label}")

    async def _take_theirs(self, row: DatasetRow, remote: Remote) -> None:
        from odf_tui.widgets.dialogs import ConfirmDialog

        remarks = [
            f"{blocks(remote.ours)} of ours {leaves_text(remote.ours)} the chain.",
            "They stay as refs/before-… in its folder.",
        ]
        if await self.host.ask(ConfirmDialog(f"Take the history of {remote.label}?", *remarks)):
            self._force_pull(row, remote)

    def _force_pull(self, row: DatasetRow, remote: Remote, remark: str = "") -> None:
        request = Pull(dataset=row.id, url=remote.url, force=True)
        self.jobs.submit([(request, row.name)], f", the history of {remote.label}{remark}")

    async def _push_ours(self, row: DatasetRow, remote: Remote) -> None:
        from odf_tui.widgets.dialogs import TypedConfirmation

        title, asks = f"Push over {remote.label}?", f"type {row.name} to push over it"
        if await self.host.ask(TypedConfirmation(title, force_push_lines(row, remote), [row.name], asks)):
            request = Push(dataset=row.id, url=remote.url, force=True)
            self.jobs.submit([(request, row.name)], f", over {remote.label}")
        else:
            self.host.notice(f"{remote.label} stays as it is", "warn")

    async def _keep_both(self, row: DatasetRow, remote: Remote) -> None:
        """Push our history to another address; pull that of the remote only if the push succeeded."""
        address = await self._choose_push_address(row, f"Keep our {row.name} at", without=remote.url)
        if address is None:
            return
        request = Push(dataset=row.id, url=address.url)
        await self.jobs.outcome(request, row.name, f"Pushing ours to {address.name}")
        if all(each.url != address.url for each in row.remotes):  # the copy there must not change
            await asyncio.to_thread(self.gateway.detach, row.id, address.url)
        self._force_pull(row, remote, f"; ours is kept at {address.name}")

    # --- Repositories ---

    def browse(self) -> None:
        """Choose a repository or an address, and pull datasets from there."""
        self.host.start(self._browse())

    async def _browse(self) -> None:
        from odf_tui.widgets.dialogs import PickerDialog

        while True:
            repositories = await asyncio.to_thread(self.gateway.repositories)
            choices = source_choices(repositories)
            picked = await self.host.ask(PickerDialog("Datasets from elsewhere", choices, typing=False))
            if picked is None:
                return
            if picked == "add":
                await self._add_repository(repositories)
            elif picked == "forget":
                await self._remove_repository(repositories)
            elif picked == "address":
                if await self._pull_from_address(repositories):
                    return
            else:
                names = [picked.removeprefix(_IN)] if picked.startswith(_IN) else []
                found = await self._choose_datasets(names or [each.name for each in repositories])
                if found:
                    await self._pull_found(found)
                    return

    async def _choose_datasets(self, names: list[str]) -> list[RemoteDataset] | None:
        """Return the datasets that the user chooses in these repositories."""
        from odf_tui.features.sharing.repository_browser import RepositoryBrowser

        title = f"Datasets of {names[0]}" if len(names) == 1 else "Datasets of all repositories"

        async def search() -> dict[str, str]:
            return {
                name: await self.jobs.submit_one(Search(text="", repositories=[name]), name) for name in names
            }

        browser = RepositoryBrowser(title, self.state.jobs, self.state.datasets, search, self.jobs.cancel)
        return await self.host.ask(browser)

    async def _add_repository(self, repositories: Sequence[NamedUrl]) -> None:
        from odf_tui.widgets.dialogs import PromptDialog

        remark = "file:, s3:, http: of a folder; odf+http: of a server"
        url = await self.host.ask(PromptDialog("Address of the repository", "", remark, repository_check))
        if not url:
            return
        check = repository_name_check(repositories)
        name = await self.host.ask(
            PromptDialog("Name of the repository", "", "how you want to call it", check)
        )
        if name:
            await asyncio.to_thread(self.gateway.add_repository, name, url)
            self.host.notice(f"{name} is a repository now")

    async def _remove_repository(self, repositories: Sequence[NamedUrl]) -> None:
        from odf_tui.widgets.dialogs import ConfirmDialog, PickerDialog

        choices = [
            numbered_choice(at, each.name, each.name, each.url) for at, each in enumerate(repositories)
        ]
        name = await self.host.ask(PickerDialog("Forget which repository?", choices, typing=False))
        if name and await self.host.ask(
            ConfirmDialog(
                f"Forget the repository {name}?", "Nothing there changes; datasets keep their addresses."
            )
        ):
            await asyncio.to_thread(self.gateway.remove_repository, name)
            self.host.notice(f"{name} is forgotten")

    # --- Pull of new datasets ---

    async def _pull_from_address(self, repositories: Sequence[NamedUrl]) -> bool:
        """Pull from a typed address, under a typed name. Returns whether a job was submitted."""
        from odf_tui.widgets.dialogs import PromptDialog

        remark = "repository/name, or a URL: file:, http:, odf+https:, s3:, ipfs:"
        check = address_validator(repositories, to_push=False)
        text = await self.host.ask(PromptDialog("Pull from", "", remark, check))
        if not text:
            return False
        address = resolve_address(text, repositories)
        rows = self.state.datasets
        row = next((row for row in rows if any(each.url == address.url for each in row.remotes)), None)
        if row is not None:
            self.jobs.submit([(Pull(dataset=row.id, url=address.url), row.name)], f", from {text}")
            return True
        name = await self._choose_name(address.name, address.url)
        if name:
            self.jobs.submit([_first_pull(address.url, name)], f", from {text}")
        return bool(name)

    async def _choose_name(self, name: str, url: str) -> str | None:
        """Return a name for a new dataset; ``name`` is proposed. None if cancelled."""
        from odf_tui.widgets.dialogs import PromptDialog, name_check

        check = name_check([row.name for row in self.state.datasets])
        return await self.host.ask(PromptDialog("Name of the dataset here", name, printable(url), check))

    async def _pull_found(self, chosen: Sequence[RemoteDataset]) -> None:
        """Pull datasets of repositories. Those that are not in the workspace get a name first."""
        from odf_tui.widgets.dialogs import name_check

        requests: list[tuple[Request, str]] = []
        taken = [row.name for row in self.state.datasets]
        for found in chosen:
            if found.here is not None:
                requests.append((Pull(dataset=found.here.id, url=found.url), found.here.name))
                continue
            name: str | None = found.name
            if len(chosen) == 1 or name_check(taken)(found.name):
                name = await self._choose_name(found.name, found.url)
            if name:
                taken.append(name)
                requests.append(_first_pull(found.url, name))
        left = len(chosen) - len(requests)
        if requests:
            self.jobs.submit(requests, f"; {format_count(left)} left out" if left else "")


# --- Requests and choices ---


def _first_pull(url: str, name: str) -> tuple[Pull, str]:
    """Return the request that pulls a dataset into the workspace for the first time, and its name."""
    return Pull(dataset=url, url=url, alias=name), name


def _typed_choice(title: str) -> Choice:
    from odf_tui.widgets.choice_list import Choice

    return Choice(_TYPED, title, ("a",), "a", "a URL, or repository/name")


def source_choices(repositories: Sequence[NamedUrl]) -> list[Choice]:
    """Return the choices of the dialog of repositories."""
    from odf_tui.widgets.choice_list import Choice

    choices = [
        numbered_choice(at, _IN + each.name, each.name, each.url) for at, each in enumerate(repositories)
    ]
    if len(repositories) > 1:
        choices.append(Choice("all", "all repositories", ("a",), "a"))
    choices.append(Choice("address", "a dataset at an address", ("u",), "u", "a URL, or repository/name"))
    choices.append(Choice("add", "add a repository", ("plus",), "+", "a folder, a bucket, a server"))
    if repositories:
        choices.append(Choice("forget", "forget a repository", ("minus",), "-"))
    return choices


# --- Addresses ---


def resolve_address(text: str, repositories: Sequence[NamedUrl]) -> NamedUrl:
    """The dataset that a URL or ``repository/name`` means; its name is empty where the URL says none.

    Raises:
        OdfError: it is neither, or there is no such repository.
    """
    ref = parse_ref_remote(text)
    if isinstance(ref, DatasetUrl):
        url = normalize_url(ref.url)
        try:
            return NamedUrl(dataset_name_from_url(url), url)
        except UsageError:
            return NamedUrl("", url)
    if isinstance(ref, DatasetAliasRemote):
        for each in repositories:
            if each.name.lower() == ref.repo.lower():
                return NamedUrl(ref.name, address_in_repository(each, str(ref.alias)).url)
        raise NotFound(f"there is no repository '{ref.repo}'")
    raise UsageError("elsewhere a dataset is found by name", hint="repository/name, or its URL")


def address_in_repository(repository: NamedUrl, dataset: str) -> NamedUrl:
    """Where a dataset is, or would be, in a repository; its name is ``repository/name``."""
    return NamedUrl(f"{repository.name}/{dataset}", f"{repository.url}{quote(dataset)}/")


def address_validator(repositories: Sequence[NamedUrl], *, to_push: bool) -> Callable[[str], str]:
    """What is wrong with an address that was typed."""

    def check(text: str) -> str:
        try:
            url = resolve_address(text, repositories).url
        except OdfError as error:
            return error_with_hint(error)
        if to_push and not is_writable(url):
            return "there one can only read: file:, s3:, odf+https: or odf+http: can be pushed to"
        return ""

    return check


def repository_check(text: str) -> str:
    """What is wrong with the URL of a repository."""
    try:
        normalize_url(text)
    except OdfError as error:
        return error_with_hint(error)
    return ""


def repository_name_check(repositories: Sequence[NamedUrl]) -> Callable[[str], str]:
    """What is wrong with the name of a new repository."""
    taken = {each.name.lower() for each in repositories}

    def check(text: str) -> str:
        if not is_valid_name(text):
            return "a name has letters, digits, dots and dashes"
        return f"there is a repository {text} already" if text.lower() in taken else ""

    return check


# --- Diverged histories in words ---


def blocks(number: int) -> str:
    """A number of blocks in words."""
    return count_of(number, "block")


def leaves_text(number: int) -> str:
    """What so many blocks do."""
    return "leaves" if number == 1 else "leave"


def divergence_lines(
    row: DatasetRow, remote: Remote, branches: DivergedBranches, below: Sequence[str] = (), *, writable: bool
) -> Lines:
    """What happened, the drawing, and what can be done about it.

    Args:
        below: names of datasets that are made of this one.
        writable: whether ours can be pushed over theirs.
    """
    label = printable(ellipsize_middle(remote.label, _LABEL))
    seen = f", looked at {format_time(remote.at)}" if remote.at else ""
    name: Span = (f" {printable(row.name)}", "strong")
    title: list[Span] = [name, (" and ", ""), (label, "strong"), (" went apart", ""), (seen, "muted")]
    lines: Lines = [title, [], *_drawing(remote, branches), []]
    goes = f"{blocks(remote.ours)} of ours {leaves_text(remote.ours)}"
    lines.append([(" t  ", "key"), (f"take theirs: {goes} the chain, kept as refs/before-…", "")])
    if below:
        names = printable(ellipsize_middle(", ".join(below), _LABEL))
        lines.append([("    ", ""), (f"then {names} may have to be made anew", "warn")])
    if writable:
        goes = f"{blocks(remote.theirs)} of theirs {leaves_text(remote.theirs)}"
        lines.append([(" o  ", "key"), (f"push ours: {goes} the chain there, for everybody", "")])
    lines.append([(" b  ", "key"), ("keep both: ours goes to another place first, then theirs is taken", "")])
    lines.append([("esc ", "key"), ("leave it: nothing changes, and neither can be brought up to date", "")])
    return lines


def _drawing(remote: Remote, branches: DivergedBranches) -> Lines:
    """Our blocks, their head and how many lie below it, and where they part."""
    lines: Lines = []
    for at, line in enumerate(branches.ours):
        head = "  ours" if not at else ""
        lines.append([(" ● ", "good"), *_block(line), (head, "muted")])
    if branches.more:
        lines.append([(" ┊ ", "good"), (f"   {format_count(branches.more)} more of ours", "muted")])
    their_head = f"…{remote.their_head[-_HASH:]}" if remote.their_head else "?"
    number = "" if branches.common is None else format_count(branches.common.sequence_number + remote.theirs)
    lines.append(
        [(" │ ", "good"), ("○ ", "warn"), (f"{number:>5}  ", "strong"), (f"{their_head}  theirs", "muted")]
    )
    if remote.theirs > 1:
        more = f"       {format_count(remote.theirs - 1)} more of theirs, not here yet"
        lines.append([(" │ ", "good"), ("┊ ", "warn"), (more, "muted")])
    lines.append([(" ├─", "good"), ("╯", "warn")])
    if branches.common is None:
        lines.append([(" ? ", "muted"), ("the block that both have is not here any more", "muted")])
    else:
        lines.append([(" ● ", "strong"), *_block(branches.common), ("  both", "muted")])
        if branches.common.sequence_number:
            lines.append([(" ┊ ", "muted")])
    return lines


def _block(line: BlockSummary) -> list[Span]:
    what = (
        f"+{format_count(line.rows)} rows"
        if line.rows is not None
        else ellipsize_middle(printable(line.summary), _WHAT)
    )
    return [
        (f"{format_count(line.sequence_number):>5}  ", "strong"),
        (f"{printable(line.event):<16} ", ""),
        (f"{what}  ", ""),
        (format_time(line.time), "muted"),
    ]


def force_push_lines(row: DatasetRow, remote: Remote) -> Lines:
    """Return the consequences of a forced push: lost blocks, new blocks, and who is affected."""
    return [
        [(" The history there is not the one of ", ""), (printable(row.name), "strong"), (" here.", "")],
        [],
        [("   goes   ", "bad"), (f"{blocks(remote.theirs)} that only {printable(remote.label)} has", "")],
        [("   comes  ", "good"), (f"{blocks(remote.ours)} that only we have", "")],
        [("   then   ", "warn"), ("everybody who pulled from there has diverged from it", "")],
    ]
