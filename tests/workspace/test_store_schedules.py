"""Every order of the requests of two machines that create and delete datasets in one store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.derive.verify.integrity import verify
from odf_engine.errors import AlreadyExists, Conflict, NotFound, OdfError
from odf_engine.identity.multiformats import Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.mirror import dataset_store
from odf_engine.mirror.heads_list import HeadsList
from odf_engine.sync.pull import clone_dataset
from odf_engine.sync.remotes.folder_remote import FolderRemote
from odf_engine.workspace.fsck import check_workspace
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import add_slices, make_root
from tests.workspace.store_schedule import Killed, Schedule, follow_schedule, restore
from tests.workspace.test_dataset_store import again, age_unused, stored

NUMBERS = DatasetAlias.parse("numbers")
Work = Callable[[Workspace], object]


@pytest.fixture(autouse=True)
def _no_list_of_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of heads is written in the background, without a schedule."""
    monkeypatch.setattr(HeadsList, "note", lambda *_, **__: None)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A dataset to pull, and an empty store of two machines."""
    folder = tmp_path_factory.mktemp("machines") / "now"
    folder.mkdir()
    make_root(Workspace.init(folder / "source"), slices=1)
    (folder / "store").mkdir()
    for name in "ab":
        Workspace.init(folder / name, (folder / "store").as_uri())
    stored = folder.with_name("template")
    shutil.copytree(folder, stored)
    yield stored
    shutil.rmtree(stored)


def pull(workspace: Workspace) -> None:
    source = Workspace(workspace.folder.parent / "source").resolve("numbers").dataset.folder
    clone_dataset(workspace, NUMBERS, FolderRemote(f"file://{source}/"), Reporter(), parallel=1)


def delete(workspace: Workspace) -> None:
    workspace.delete(workspace.resolve("numbers"))


def commit(workspace: Workspace) -> None:
    add_slices(workspace.resolve("numbers"), city="Basel")


def run(
    template: Path,
    works: tuple[Work, Work],
    schedule: Schedule,
    *,
    is_pulled: bool = False,
) -> list[BaseException | None]:
    """Run the works in the order of a schedule, and check the store afterwards."""
    folder = template.with_name("now")
    restore(template, folder)
    if is_pulled:
        pull(again(Workspace(folder / "a")))
        again(Workspace(folder / "b")).datasets()
    machines = [again(Workspace(folder / name)) for name in "ab"]
    with pytest.MonkeyPatch.context() as patched:
        follow_schedule(patched, schedule)
        errors = schedule.run(*(lambda n=n: works[n](machines[n]) for n in range(2)))
    for error in errors:
        assert error is None or isinstance(error, Conflict | AlreadyExists | NotFound | Killed), error
    check(folder)
    return errors


def check(folder: Path) -> None:
    """A new machine can read what the list has; no objects remain of what it does not have."""
    reader = Workspace.init(folder / "reader", (folder / "store").as_uri())
    listed = reader.datasets()
    for entry in listed:
        assert not verify(entry.dataset, Reporter()).findings
    with (
        mock.patch.object(dataset_store, "_LEASE_SECONDS", -1.0),
        mock.patch.object(dataset_store, "_UNKNOWN_AGE", timedelta(seconds=-1)),
    ):
        report = check_workspace(reader, Reporter(), repair=True)
        assert not [each for each in report.left if each.kind == "unfinished-dataset"], report.left
    names = {path.name for path in (folder / "store").iterdir() if path.is_dir()}
    assert names == {entry.id.multibase for entry in listed}
    for entry in again(reader).datasets():
        assert not verify(entry.dataset, Reporter()).findings


def prepare_unused(folder: Path) -> None:
    """A dataset of both machines with unused objects, whose names were stored long ago."""
    entry = make_root(Workspace(folder / "a"), slices=3)
    head, first = entry.dataset.head(), entry.dataset.block(1).hash
    assert head is not None
    (folder / "head").write_text(str(head))
    entry.dataset.reset(first, expected_head=head)
    entry.dataset.remove_reference(f"before-reset-{head.abbreviated}", head)
    url = (folder / "store").as_uri()
    for path in stored(url, "*/*/f*"):
        os.utime(path, (1, 1))
    collect(again(Workspace(folder / "b")))
    assert len(stored(url, "*/data/*")) == 3
    age_unused(url)


def collect(workspace: Workspace) -> None:
    check_workspace(workspace, Reporter(), repair=True)


def move_back(workspace: Workspace) -> None:
    """Use the unused objects, by a head that has them."""
    dataset = workspace.resolve("numbers").dataset
    dataset.reset(_old_head(workspace), expected_head=dataset.state().head)


def branch(workspace: Workspace) -> None:
    workspace.resolve("numbers").dataset.move_branch("trial", None, _old_head(workspace))


def repeat(workspace: Workspace) -> None:
    """Commit the same rows again: the slice and the block have the same names as unused ones."""
    add_slices(workspace.resolve("numbers"))


def _old_head(workspace: Workspace) -> Multihash:
    return Multihash.parse((workspace.folder.parent / "head").read_text())


@pytest.mark.parametrize(
    ("work", "step"),
    [
        *(pytest.param(work, 14) for work in (move_back, branch, repeat)),
        *(pytest.param(work, 5, marks=pytest.mark.complete) for work in (move_back, branch, repeat)),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_used_objects_are_not_collected(template: Path, work: Work, step: int) -> None:
    folder = template.with_name("now")
    unused = template.with_name(f"unused-{work.__name__}-{step}")  # type: ignore[attr-defined]
    restore(template, folder)
    prepare_unused(folder)
    shutil.copytree(folder, unused)
    outcomes: set[str] = set()

    def run_schedule(schedule: Schedule) -> None:
        restore(unused, folder)
        machines = [again(Workspace(folder / name)) for name in "ba"]
        with pytest.MonkeyPatch.context() as patched:
            follow_schedule(patched, schedule)
            errors = schedule.run(lambda: collect(machines[0]), lambda: work(machines[1]))
        assert errors[0] is None and isinstance(errors[1], Conflict | None), errors
        reader = Workspace.init(folder / "reader", (folder / "store").as_uri())
        report = check_workspace(reader, Reporter(), repair=False)
        assert not [
            finding for finding in report.findings if "missing" in finding.kind or "broken" in finding.kind
        ]
        assert not verify(reader.resolve("numbers").dataset, Reporter()).findings
        url = (folder / "store").as_uri()
        kept = "kept" if len(stored(url, "*/data/*")) == 3 else "deleted"
        outcomes.add(f"{kept}, {'refused' if errors[1] else 'committed'}")

    counted = Schedule([10_000])
    run_schedule(counted)
    for order in turns(max(counted.requests), step):
        run_schedule(Schedule(order))
    assert "kept, committed" in outcomes and len(outcomes) > 1, outcomes


def turns(count: int, step: int) -> Iterator[tuple[int, ...]]:
    """The machine changes after so many requests, and once or twice again."""
    for first in range(0, count, step):
        yield (first + 1,)
        for second in range(0, count, step):
            yield (first + 1, second + 1)


PAIRS = {
    "pull pull": (pull, pull),
    "delete pull": (delete, pull),
    "delete delete": (delete, delete),
    "delete commit": (delete, commit),
}


def try_again(work: Work) -> Work:
    """Repeat what a machine was refused, as a user does; the other one may delete the dataset first."""

    def repeat(workspace: Workspace) -> None:
        for attempt in range(3):
            try:
                work(again(workspace))
                return
            except (Conflict, AlreadyExists):
                if attempt == 2:
                    raise

    return repeat


@pytest.mark.parametrize(
    ("pair", "step"),
    [
        *(pytest.param(pair, 14) for pair in PAIRS),
        *(pytest.param(pair, 5, marks=pytest.mark.complete) for pair in PAIRS),
    ],
)
def test_no_order_of_requests_loses_objects(template: Path, pair: str, step: int) -> None:
    works, is_pulled = PAIRS[pair], pair.startswith("delete")
    counted = Schedule([10_000])
    run(template, works, counted, is_pulled=is_pulled)
    for order in turns(max(counted.requests), step):
        errors = run(template, works, Schedule(order), is_pulled=is_pulled)
        if pair == "pull pull":
            assert None in errors, (order, errors)
    if pair == "pull pull":
        for order in turns(max(counted.requests), step * 2):
            run(template, (try_again(pull), try_again(pull)), Schedule(order))
            assert again(Workspace(template.with_name("now") / "b")).datasets()


@pytest.mark.parametrize("pair", [pytest.param(pair, marks=pytest.mark.complete) for pair in PAIRS])
def test_a_kill_leaves_nothing_that_fsck_does_not_repair(template: Path, pair: str) -> None:
    works, is_pulled = PAIRS[pair], pair.startswith("delete")
    counted = Schedule([10_000])
    run(template, works, counted, is_pulled=is_pulled)
    for killed in range(counted.requests[0]):
        for order in ((killed,), (10_000,)):
            run(template, works, Schedule(order, killed), is_pulled=is_pulled)
            again(Workspace(template.with_name("now") / "a")).datasets()


def test_the_same_machine_continues_after_a_kill(template: Path) -> None:
    """It does not wait until its own reservation has expired."""
    counted = Schedule([10_000])
    run(template, (pull, lambda workspace: None), counted)
    for killed in range(0, counted.requests[0], 6):
        folder = template.with_name("now")
        restore(template, folder)
        schedule = Schedule([10_000], killed)
        with pytest.MonkeyPatch.context() as patched:
            follow_schedule(patched, schedule)
            schedule.run(lambda folder=folder: pull(Workspace(folder / "a")), lambda: None)
        try:
            pull(again(Workspace(folder / "a")))
        except OdfError as error:
            assert isinstance(error, AlreadyExists) and killed == counted.requests[0] - 1, (killed, error)
        check(folder)
