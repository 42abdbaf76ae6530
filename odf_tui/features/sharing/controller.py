"""SharingController: push, compare, diverged histories, repositories, pulls from new addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final
from urllib.parse import quote

from odf_engine.api import (
    Compare,
    DatasetAliasRemote,
    DatasetUrl,
    Job,
    JobState,
    Pull,
    Push,
    Reporter,
    Search,
    Verify,
    dataset_name_from_url,
    is_valid_name,
    normalize_url,
    parse_ref_remote,
)
from odf_engine.api.model import BlockLine, DatasetRow, DivergedBranches, NamedUrl, Remote, is_writable
from odf_engine.api.plans.crate_pull import NameTaken
from odf_engine.api.plans.pull_plan import PullPlan, PullSelection, PullTarget
from odf_engine.api.plans.push_plan import PushTarget
from odf_engine.api.text import count_of, format_count, format_zoned_time, printable
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_tui.features.sharing.remote_picker import choose_remote, numbered_choice
from odf_tui.features.sharing.repository_browser import ChosenDatasets, RepositoryBrowser
from odf_tui.services.controller import Controller, dataset_task, task
from odf_tui.text.format import Span, ellipsize_middle, error_with_hint
from odf_tui.text.job_text import job_outcome
from odf_tui.text.remotes import (
    diverged_remotes,
    pull_remotes,
    push_remotes,
    relation_text,
    remote_from_comparison,
)
from odf_tui.text.verification_text import verdict_line
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import (
    ConfirmDialog,
    DecisionDialog,
    PickerDialog,
    PromptDialog,
    TypedConfirmation,
    name_check,
)

MAX_BRANCH_BLOCKS: Final = 6
"""Greatest number of local blocks that are drawn."""
_HASH_LENGTH: Final = 8
_SUMMARY_WIDTH: Final = 20
_LABEL_WIDTH: Final = 36
_MAX_NAMES: Final = 4
"""Number of inputs that a choice names."""
_TYPED_ADDRESS: Final = "typed"
_REPOSITORY: Final = "in "
Lines = list[list[Span]]
_Answer = tuple[str, tuple[str, ...], str]
"""An answer of a decision: result of the dialog, keys, label."""
_THEIRS: Final[_Answer] = ("theirs", ("t",), "theirs")
_OURS: Final[_Answer] = ("ours", ("o",), "ours")
_BOTH: Final[_Answer] = ("both", ("b",), "both")
_COMPARE_AGAIN: Final[_Answer] = ("again", ("r",), "compares again")
_LEAVE: Final[_Answer] = ("leave", ("escape",), "cancels")


class SharingController(Controller):
    """Pushes and compares datasets, resolves diverged histories, and pulls new datasets from repositories."""

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
            self.host.notice("all remotes are being compared already")

    def push(self) -> None:
        """Push the selected dataset to its only push remote, else to an address that the user chooses."""
        row = self.state.row
        if row is None:
            return
        remotes = push_remotes(row.remotes)
        if len(remotes) == 1:
            self._push_to(row, NamedUrl(remotes[0].label, remotes[0].url))
        else:
            self.push_to_address()

    @dataset_task
    async def push_to_address(self, row: DatasetRow) -> None:
        """Push the selected dataset to an address that the user chooses."""
        address = await self._choose_push_address(row, f"Push {row.name} to")
        if address is not None:
            await self._push(row, address)

    @task
    async def _push_to(self, row: DatasetRow, address: NamedUrl) -> None:
        await self._push(row, address)

    async def _push(self, row: DatasetRow, address: NamedUrl) -> None:
        """Push a dataset, and its inputs if the user agrees: nobody can replay its query without them."""
        remark = f", to {address.name}"
        alone = plan = await asyncio.to_thread(self.workspace.plan_push, [row.id], address.url)
        try:
            plan = await asyncio.to_thread(self.workspace.plan_push, [row.id], address.url, recursive=True)
        except UsageError as error:
            remark = f"{remark}; {error.message}"
        if not plan.inputs:
            plan = alone
        else:
            choices = [
                Choice("inputs", f"push inputs first: {_names_text(plan.inputs)}", ("i",), "i"),
                Choice("alone", f"push only {row.name}", ("o",), "o"),
            ]
            count = count_of(len(plan.inputs), "input")
            title = f"{row.name}: the repository lacks the newest blocks of {count}"
            answer = await self.host.ask(PickerDialog(printable(title), choices, typing=False))
            if answer is None:
                return
            plan = plan if answer == "inputs" else alone
        if len(plan.targets) == 1:
            self.jobs.submit(plan.requests(), remark)
            return
        repository = plan.targets[-1].label.partition("/")[0]
        self.host.notice(*push_outcome(await self.jobs.run_all(plan.requests(), remark), repository))

    async def _choose_push_address(self, row: DatasetRow, title: str, without: str = "") -> NamedUrl | None:
        """Return a writable address: a push remote, one in a repository, or a typed one. None if cancelled.

        Args:
            row: the dataset.
            title: title of the dialog.
            without: a URL that is not offered.
        """
        repositories = await asyncio.to_thread(self.workspace.repositories)
        addresses = [NamedUrl(remote.label, remote.url) for remote in push_remotes(row.remotes)]
        addresses += [
            address_in_repository(repository, row.name)
            for repository in repositories
            if is_writable(repository.url)
        ]
        by_url = {address.url: address for address in reversed(addresses) if address.url != without}
        addresses = [fromkey for fromkey in dict.fromkeys(addresses) if by_url.get(fromkey.url) == fromkey]
        picked: str | None = _TYPED_ADDRESS
        if addresses:
            choices = [
                numbered_choice(at, address.url, address.name, address.url)
                for at, address in enumerate(addresses)
            ]
            choices.append(_typed_choice("another address"))
            picked = await self.host.ask(PickerDialog(printable(title), choices, typing=False))
        if picked != _TYPED_ADDRESS:
            return by_url.get(picked or "")
        remark = "repository/name, or a URL: file:, s3:, odf+https:"
        check = address_validator(repositories, to_push=True)
        text = await self.host.ask(PromptDialog(title, "", remark, check))
        return NamedUrl(text, resolve_address(text, repositories).url) if text else None

    @dataset_task
    async def detach(self, row: DatasetRow) -> None:
        """Remove a remote of the selected dataset, after confirmation."""
        remote = await choose_remote(self.host, f"Detach {row.name} from", row.remotes)
        if remote is None:
            return
        remark = "The blocks in the workspace and at the remote are retained."
        consequence = "Pull and push no longer use this remote."
        if remote.pull and len(pull_remotes(row.remotes)) == 1:
            consequence = "Then p uses the dataset's own source or inputs."
        if await self.host.ask(ConfirmDialog(f"Detach from {remote.label}?", remark, consequence)):
            await asyncio.to_thread(self.workspace.detach, row.id, remote.url)
            self.host.notice(f"{row.name} is detached from {remote.label}")
            self.state.datasets_outdated.send(None)

    def show_branches(self) -> None:
        """Show both histories of the selected dataset, or of the dataset of the selected pull or push job."""
        job = self.host.situation().job if self.state.pane == "jobs" else None
        if job is None or job.kind not in ("pull", "push"):
            if (row := self.state.row) is not None:
                self.host.start(self._resolve_divergence(row))
        elif (row := self.state.row_of(job.dataset)) is None:
            self.host.notice(f"{job.target} is not in this workspace", "warn")
        elif diverged_remotes(row.remotes):
            self.host.start(self._resolve_divergence(row))
        else:
            self._resolve_divergence_of_job(row, job)

    @task
    async def _resolve_divergence_of_job(self, row: DatasetRow, job: Job) -> None:
        """Resolve the divergence that made a job fail, with the remote of its request."""
        request = await asyncio.to_thread(self.workspace.request_of_job, job)
        url = getattr(request, "url", None)
        remote = next((candidate for candidate in row.remotes if candidate.url == url), None)
        if remote is None and url:
            remote = Remote(url=url, label=url)
        await self._resolve_divergence(row, remote)

    async def _resolve_divergence(self, row: DatasetRow, remote: Remote | None = None) -> None:
        """Compare the histories of a dataset and a remote, and run the action that the user selects.

        Without a remote, the user selects one. A relation other than ``diverged`` is compared again first.
        """
        if remote is None:
            title = f"Compare {row.name} with"
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
            await self._pull_theirs(row, remote)
        elif answer == "ours":
            await self._push_ours(row, remote)
        elif answer == "both":
            await self._store_both(row, remote)

    async def _compare_now(self, row: DatasetRow, remote: Remote) -> Remote:
        """Return the remote with its current relation to the dataset.

        Raises:
            OdfError: the remote cannot be read, or has no such dataset.
        """
        request = Compare(dataset=row.id, urls=[remote.url])
        result = await self.jobs.outcome(request, row.name, f"Comparing with {remote.label}")
        for problem in result.problems:
            raise OdfError(f"{remote.label}: {problem.message}")
        for relation in result.seen:
            return remote_from_comparison(relation, remote.label, remote)
        raise NotFound(f"no dataset found at {remote.label}")

    async def _choose_history(self, row: DatasetRow, remote: Remote) -> str:
        """Return the selected action: ``theirs``, ``ours``, ``both``, ``again`` or ``leave``."""
        branches = await asyncio.to_thread(self.workspace.branches, row.id, remote.common, MAX_BRANCH_BLOCKS)
        downstream = self.state.downstream_names(row)
        lines = divergence_lines(row, remote, branches, downstream, writable=remote.writable)
        answers = [_THEIRS, *([_OURS] if remote.writable else []), _BOTH, _COMPARE_AGAIN, _LEAVE]
        return await self.host.ask(DecisionDialog("Diverged histories", lines, answers)) or "leave"

    async def _pull_missing(self, row: DatasetRow, remote: Remote) -> None:
        """Pull the blocks that only the remote has, after confirmation. It may be a push remote."""
        remarks = ("The histories have not diverged:", f"{remote.label} is ahead.")
        question = ConfirmDialog(f"Pull {count_of(remote.theirs, 'block')} into {row.name}?", *remarks)
        if await self.host.ask(question):
            self.jobs.submit([(Pull(dataset=row.id, url=remote.url), row.name)], f", from {remote.label}")

    async def _pull_theirs(self, row: DatasetRow, remote: Remote) -> None:
        """Replace the local history by the remote's, after confirmation."""
        remarks = [
            f"Removes {count_of(remote.ours, 'local block')} from the chain.",
            "The old head is retained as refs/before-… in its folder.",
        ]
        if await self.host.ask(ConfirmDialog(f"Use the history of {remote.label}?", *remarks)):
            self._force_pull(row, remote)

    def _force_pull(self, row: DatasetRow, remote: Remote, remark: str = "") -> None:
        request = Pull(dataset=row.id, url=remote.url, force=True)
        self.jobs.submit([(request, row.name)], f", with the history of {remote.label}{remark}")

    async def _push_ours(self, row: DatasetRow, remote: Remote) -> None:
        """Replace the history of the remote by the local one, after the name was typed."""
        title, placeholder = f"Overwrite {remote.label}?", f"type {row.name} to overwrite it"
        if await self.host.ask(
            TypedConfirmation(title, force_push_lines(row, remote), [row.name], placeholder)
        ):
            request = Push(dataset=row.id, url=remote.url, force=True)
            self.jobs.submit([(request, row.name)], f", overwriting {remote.label}")
        else:
            self.host.notice(f"{remote.label} is unchanged", "warn")

    async def _store_both(self, row: DatasetRow, remote: Remote) -> None:
        """Push the local history to another address, then pull the remote's.

        If the push fails, nothing is pulled.
        """
        address = await self._choose_push_address(row, f"Push the local {row.name} to", without=remote.url)
        if address is None:
            return
        request = Push(dataset=row.id, url=address.url)
        await self.jobs.outcome(request, row.name, f"Pushing the local history to {address.name}")
        if all(other.url != address.url for other in row.remotes):  # later pushes must not change the copy
            await asyncio.to_thread(self.workspace.detach, row.id, address.url)
        self._force_pull(row, remote, f"; the local history is at {address.name}")

    @task
    async def browse(self) -> None:
        """Pull datasets from a repository or an address that the user selects."""
        while True:
            repositories = await asyncio.to_thread(self.workspace.repositories)
            choices = repository_choices(repositories)
            picked = await self.host.ask(PickerDialog("Import datasets", choices, typing=False))
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
                names = [picked.removeprefix(_REPOSITORY)] if picked.startswith(_REPOSITORY) else []
                chosen = await self._choose_datasets(
                    names or [repository.name for repository in repositories]
                )
                if chosen is not None:
                    await self._pull_chosen(chosen)
                    return

    async def _choose_datasets(self, names: list[str]) -> ChosenDatasets | None:
        """Return the datasets that the user selects in repositories, or None if the browser was closed."""
        title = f"Datasets in {names[0]}" if len(names) == 1 else "Datasets in all repositories"

        async def search() -> dict[str, str]:
            return {
                name: await self.jobs.submit_one(Search(text="", repositories=[name]), name) for name in names
            }

        browser = RepositoryBrowser(title, self.state.jobs, self.state.datasets, search, self.jobs.cancel)
        return await self.host.ask(browser)

    async def _add_repository(self, repositories: Sequence[NamedUrl]) -> None:
        remark = "file:, s3:, http: for a folder; odf+http: for a server"
        url = await self.host.ask(PromptDialog("Repository URL", "", remark, check_repository_url))
        if not url:
            return
        check = repository_name_validator(repositories)
        name = await self.host.ask(
            PromptDialog("Repository name", "", "a short name, for use as NAME/dataset", check)
        )
        if name:
            await asyncio.to_thread(self.workspace.remotes.add, name, url)
            self.host.notice(f"added repository {name}")

    async def _remove_repository(self, repositories: Sequence[NamedUrl]) -> None:
        choices = [
            numbered_choice(at, repository.name, repository.name, repository.url)
            for at, repository in enumerate(repositories)
        ]
        name = await self.host.ask(PickerDialog("Remove a repository", choices, typing=False))
        if name and await self.host.ask(
            ConfirmDialog(
                f"Remove the repository {name}?", "Its contents and the remotes of datasets are retained."
            )
        ):
            await asyncio.to_thread(self.workspace.remotes.remove, name)
            self.host.notice(f"removed repository {name}")

    async def _pull_from_address(self, repositories: Sequence[NamedUrl]) -> bool:
        """Pull a dataset from a typed address, or all of a crate. Return whether a job was submitted."""
        remark = "repository/name, a crate, or a URL: file:, http:, odf+https:, s3:"
        check = address_validator(repositories, to_push=False)
        is_crate = self.workspace.is_crate
        text = await self.host.ask(
            PromptDialog("Pull from", "", remark, lambda text: "" if is_crate(text) else check(text))
        )
        if not text:
            return False
        if is_crate(text):
            return await self._pull_crate(text)
        address = resolve_address(text, repositories)
        rows = self.state.datasets
        row = next((row for row in rows if any(remote.url == address.url for remote in row.remotes)), None)
        if row is not None:
            self.jobs.submit([(Pull(dataset=row.id, url=address.url), row.name)], f", from {text}")
            return True
        name = await self._choose_name(address.name, address.url)
        if name:
            self.jobs.submit([_first_pull(address.url, name)], f", from {text}")
        return bool(name)

    async def _pull_crate(self, crate: str, alias: str | None = None) -> bool:
        """Check a crate, and pull its datasets. Return whether the user did not cancel.

        If the name of the crate's dataset is in use, the user enters another one, the ``alias``.
        """
        selection = PullSelection([crate], alias=alias)
        stack = ExitStack()

        def check(reporter: Reporter) -> PullPlan:
            return stack.enter_context(self.workspace.planned_pull(selection, reporter))

        try:
            plan = await self.host.run_shown("Checking the crate", check)
            if plan is not None:
                await self.jobs.run_all(plan.requests(Pull("")), f", from {printable(crate)}")
            return plan is not None
        except NameTaken as error:
            name = await self._choose_name(error.name, crate)
            return bool(name) and await self._pull_crate(crate, name)
        finally:
            await asyncio.to_thread(stack.close)

    async def _choose_name(self, name: str, url: str) -> str | None:
        """Return a valid unused name for a new dataset; ``name`` is proposed. None if cancelled."""
        check = name_check([row.name for row in self.state.datasets])
        return await self.host.ask(PromptDialog("Name in this workspace", name, printable(url), check))

    async def _pull_chosen(self, chosen: ChosenDatasets) -> None:
        """Pull datasets of repositories. The user enters another name for a new one if its own is in use."""
        requests: list[tuple[Pull, str]] = []
        used = [row.name for row in self.state.datasets]
        for dataset in chosen.datasets:
            if dataset.local is not None:
                requests.append((Pull(dataset=dataset.local.id, url=dataset.url), dataset.local.name))
                continue
            name: str | None = dataset.name
            if len(chosen.datasets) == 1 or name_check(used)(dataset.name):
                name = await self._choose_name(dataset.name, dataset.url)
            if name:
                used.append(name)
                requests.append(_first_pull(dataset.url, name))
        skipped = len(chosen.datasets) - len(requests)
        remark = f"; {format_count(skipped)} skipped" if skipped else ""
        if requests and chosen.verifies:
            await self._pull_and_verify(requests, remark)
        elif requests:
            self.jobs.submit(requests, remark)

    async def _pull_and_verify(self, requests: Sequence[tuple[Pull, str]], remark: str) -> None:
        """Pull datasets and the inputs that replays of them require, and verify them. Shows the verdict."""
        targets: list[PullTarget] = []
        pulls: list[Job] = []
        problem = ""
        while requests:
            targets += [
                PullTarget(name, None, pull.url, pull.alias, is_located=True) for pull, name in requests
            ]
            pulls += await self.jobs.run_all(requests, f"{remark}, then verify")
            try:
                plan = await asyncio.to_thread(self.workspace.plan_input_pulls, targets)
            except OdfError as error:  # the pulled datasets are verified as far as possible
                plan, problem = PullPlan([]), error_with_hint(error)
            requests = plan.requests(Pull(""))
        results = [result for job in pulls if (result := job.result_of(Pull)) is not None]
        ids = await asyncio.to_thread(lambda: [self.workspace.resolve(result.name).id for result in results])
        verifies = [(Verify(dataset=id), result.name) for id, result in zip(ids, results, strict=True)]
        checks = await self.jobs.run_all(verifies) if verifies else []
        failed = [job for job in (*pulls, *checks) if job.state is not JobState.done]
        reports = [report for job in checks if (report := job.result_of(Verify)) is not None]
        texts = [verdict_line(reports)] if reports else []
        texts += [f"{job.kind} {_failure_text(job)}" for job in failed[:1]]
        valid = not failed and not problem and all(report.valid for report in reports)
        self.host.notice("; ".join([*texts, *([problem] if problem else [])]), "good" if valid else "bad")


def _first_pull(url: str, name: str) -> tuple[Pull, str]:
    """Return the first pull request of a new dataset, and its name."""
    return Pull.of_new_dataset(url, name), name


def _typed_choice(title: str) -> Choice:
    return Choice(_TYPED_ADDRESS, title, ("a",), "a", "a URL, or repository/name")


def repository_choices(repositories: Sequence[NamedUrl]) -> list[Choice]:
    """Return the choices of the dialog of repositories."""
    choices = [
        numbered_choice(at, _REPOSITORY + repository.name, repository.name, repository.url)
        for at, repository in enumerate(repositories)
    ]
    if len(repositories) > 1:
        choices.append(Choice("all", "all repositories", ("a",), "a"))
    places = "a URL, repository/name, or a crate"
    choices.append(Choice("address", "a dataset at an address", ("u",), "u", places))
    choices.append(Choice("add", "add a repository", ("plus",), "+", "a folder, a bucket, a server"))
    if repositories:
        choices.append(Choice("forget", "remove a repository", ("minus",), "-"))
    return choices


def resolve_address(text: str, repositories: Sequence[NamedUrl]) -> NamedUrl:
    """Return the dataset that a URL or ``repository/name`` refers to.

    The name is empty if the URL contains none.

    Raises:
        OdfError: the text is neither, or the repository is unknown.
    """
    ref = parse_ref_remote(text)
    if isinstance(ref, DatasetUrl):
        url = normalize_url(ref.url)
        try:
            return NamedUrl(dataset_name_from_url(url), url)
        except UsageError:
            return NamedUrl("", url)
    if isinstance(ref, DatasetAliasRemote):
        for repository in repositories:
            if repository.name.lower() == ref.repo.lower():
                return NamedUrl(ref.name, address_in_repository(repository, str(ref.alias)).url)
        raise NotFound(f"repository '{ref.repo}' not found")
    raise UsageError("invalid address", hint="use repository/name or a URL")


def address_in_repository(repository: NamedUrl, dataset: str) -> NamedUrl:
    """Return ``repository/name`` and the URL of a dataset in a repository."""
    return NamedUrl(f"{repository.name}/{dataset}", f"{repository.url}{quote(dataset)}/")


def _names_text(inputs: Sequence[PushTarget]) -> str:
    """Return up to four names of inputs, and the number of the others."""
    names = [target.name for target in inputs[:_MAX_NAMES]]
    more = len(inputs) - len(names)
    return printable(", ".join(names) + (f" and {format_count(more)} more" if more else ""))


def push_outcome(jobs: Sequence[Job], remote: str) -> tuple[str, str]:
    """Return the notice about ended pushes, and its style."""
    done = ", ".join(job.target for job in jobs if job.state is JobState.done)
    failed = [job for job in jobs if job.state is not JobState.done]
    if not failed:
        return f"pushed to {remote}: {done}", "good"
    names = ", ".join(job.target for job in failed)
    return f"not pushed to {remote}: {names}; {_failure_text(failed[0])}" + (
        f"; pushed: {done}" if done else ""
    ), "bad"


def _failure_text(job: Job) -> str:
    """Return why a job failed, with the hint."""
    hint = f" – {job.error.hint}" if job.error is not None and job.error.hint else ""
    return f"{job.target}: {job_outcome(job)[0]}{hint}"


def address_validator(repositories: Sequence[NamedUrl], *, to_push: bool) -> Callable[[str], str]:
    """Return a function that checks a typed address: it returns an error message, or an empty text.

    Args:
        repositories: the repositories whose names an address may start with.
        to_push: whether the address must be writable.
    """

    def check(text: str) -> str:
        try:
            url = resolve_address(text, repositories).url
        except OdfError as error:
            return error_with_hint(error)
        if to_push and not is_writable(url):
            return "read-only address: use file:, s3:, gs:, az:, odf+https: or odf+http:"
        return ""

    return check


def check_repository_url(text: str) -> str:
    """Return why the URL of a repository is invalid, or "" if it is valid."""
    try:
        normalize_url(text)
    except OdfError as error:
        return error_with_hint(error)
    return ""


def repository_name_validator(repositories: Sequence[NamedUrl]) -> Callable[[str], str]:
    """Return a function that checks the name of a new repository, as :func:`address_validator` does."""
    used = {repository.name.lower() for repository in repositories}

    def check(text: str) -> str:
        if not is_valid_name(text):
            return "invalid name: use letters, digits, dots and dashes"
        return f"repository '{text}' already exists" if text.lower() in used else ""

    return check


def divergence_lines(
    row: DatasetRow,
    remote: Remote,
    branches: DivergedBranches,
    downstream: Sequence[str] = (),
    *,
    writable: bool,
) -> Lines:
    """Return lines that describe two diverged histories: title, drawing and possible actions.

    Args:
        row: the dataset.
        remote: the remote that diverged.
        branches: the local blocks after the newest shared block.
        downstream: names of the downstream datasets.
        writable: whether the remote can be pushed to.
    """
    label = printable(ellipsize_middle(remote.label, _LABEL_WIDTH))
    compared = f", compared {format_zoned_time(remote.at)}" if remote.at else ""
    name: Span = (f" {printable(row.name)}", "strong")
    title: list[Span] = [name, (" and ", ""), (label, "strong"), (" have diverged", ""), (compared, "muted")]
    lines: Lines = [title, [], *_branch_lines(remote, branches), []]
    ours = count_of(remote.ours, "local block")
    lines.append([(" t  ", "key"), (f"use theirs (remote): {ours} move to refs/before-…", "")])
    if downstream:
        names = printable(ellipsize_middle(", ".join(downstream), _LABEL_WIDTH))
        lines.append([("    ", ""), (f"then {names} may need a rebuild", "warn")])
    if writable:
        theirs = count_of(remote.theirs, "remote block")
        lines.append([(" o  ", "key"), (f"push ours (local): overwrites {theirs}", "")])
    lines.append([(" b  ", "key"), ("keep both: push to another address first, then use theirs", "")])
    lines.append([("esc ", "key"), ("cancel: change nothing", "")])
    return lines


def _branch_lines(remote: Remote, branches: DivergedBranches) -> Lines:
    """Draw the local blocks, the head of the remote, and the newest shared block."""
    lines: Lines = []
    for at, line in enumerate(branches.ours):
        head = "  local" if not at else ""
        lines.append([(" ● ", "good"), *_block_spans(line), (head, "muted")])
    if branches.more:
        lines.append([(" ┊ ", "good"), (f"   {format_count(branches.more)} more local", "muted")])
    their_head = f"…{remote.their_head[-_HASH_LENGTH:]}" if remote.their_head else "?"
    number = "" if branches.common is None else format_count(branches.common.sequence_number + remote.theirs)
    lines.append(
        [(" │ ", "good"), ("○ ", "warn"), (f"{number:>5}  ", "strong"), (f"{their_head}  remote", "muted")]
    )
    if remote.theirs > 1:
        more = f"       {format_count(remote.theirs - 1)} more remote, not pulled"
        lines.append([(" │ ", "good"), ("┊ ", "warn"), (more, "muted")])
    lines.append([(" ├─", "good"), ("╯", "warn")])
    if branches.common is None:
        lines.append([(" ? ", "muted"), ("the common block is not in this workspace", "muted")])
    else:
        lines.append([(" ● ", "strong"), *_block_spans(branches.common), ("  common", "muted")])
        if branches.common.sequence_number:
            lines.append([(" ┊ ", "muted")])
    return lines


def _block_spans(line: BlockLine) -> list[Span]:
    amount = (
        f"+{count_of(line.rows, 'row')}"
        if line.rows is not None
        else ellipsize_middle(printable(line.summary), _SUMMARY_WIDTH)
    )
    return [
        (f"{format_count(line.sequence_number):>5}  ", "strong"),
        (f"{printable(line.event):<16} ", ""),
        (f"{amount}  ", ""),
        (format_zoned_time(line.time), "muted"),
    ]


def force_push_lines(row: DatasetRow, remote: Remote) -> Lines:
    """Return lines that describe a forced push: dropped blocks, new blocks, and affected copies."""
    return [
        [(" The remote and ", ""), (printable(row.name), "strong"), (" have diverged.", "")],
        [],
        [
            ("   drops  ", "bad"),
            (f"{count_of(remote.theirs, 'block')} that only {printable(remote.label)} has", ""),
        ],
        [("   adds   ", "good"), (count_of(remote.ours, "local block"), "")],
        [("   then   ", "warn"), ("copies that were pulled from the remote diverge", "")],
    ]
