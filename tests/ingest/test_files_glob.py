from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from odf_engine.base.config import FetchConfig
from odf_engine.chain.block_index import BlockIndex
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import BadData, InvalidManifest, SourceUnavailable
from odf_engine.identity.names import DatasetAlias
from odf_engine.ingest.fetch.fetch_step import fetch
from odf_engine.ingest.fetch.model import FetchContext
from odf_engine.metadata.model import (
    AddData,
    Append,
    Csv,
    DatasetKind,
    FilesGlob,
    Forever,
    FromMetadata,
    FromPath,
    SetPollingSource,
    SourceOrdering,
    SourceState,
    Url,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.workspace.workspace import Workspace
from tests.ingest.recorder import Recorder

pytestmark = pytest.mark.net

STEP = FilesGlob("in/*.csv")


class Glob:
    """A dataset whose pulls take files and commit nothing but the source state."""

    def __init__(self, workspace: Workspace, reporter: Recorder) -> None:
        self.workspace = workspace
        self.reporter = reporter
        self.folder = workspace.folder / "in"
        self.folder.mkdir()
        source = SetPollingSource(fetch=STEP, read=Csv(), merge=Append())
        self.dataset = workspace.create_dataset(
            DatasetAlias(None, "files"), DatasetKind.Root, [source]
        ).dataset

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / f"{name}.csv").write_text(text)

    def pull(self, step: FilesGlob = STEP, *, force: bool = False, fail_at: str | None = None) -> list[str]:
        state = self.dataset.state().source_state
        context = FetchContext(
            self.workspace.resolve_path, self.workspace.folder, self.dataset, state,
            self.folder, FetchConfig(), self.reporter, force,
        )  # fmt: skip
        names = []
        for payload in fetch(step, context):
            if payload.name == fail_at:
                break
            names.append(payload.name)
            self.commit(AddData(new_source_state=payload.state))
        return names

    def commit(self, event: object) -> None:
        self.dataset.commit(
            [event],  # type: ignore[list-item]
            system_time=Timestamp.now(),
            expected_head=self.dataset.head(),
        )

    def value(self) -> str:
        state = self.dataset.state().source_state
        assert state is not None
        return state.value


@pytest.fixture
def files(workspace: Workspace, reporter: Recorder) -> Glob:
    return Glob(workspace, reporter)


def test_each_file_is_fetched_once_in_name_order(files: Glob) -> None:
    files.write(b="2", a="1")
    assert files.pull() == ["a.csv", "b.csv"]
    name, digest = files.value().split("\t")
    assert name == "b.csv"
    assert digest.startswith("f1220")
    assert files.pull() == []
    files.write(c="3")
    assert files.pull() == ["c.csv"]


def test_late_file_with_an_earlier_name_is_fetched(files: Glob) -> None:
    files.write(b="2", d="4")
    files.pull()
    files.write(a="1", c="3", e="5")
    assert files.pull() == ["a.csv", "c.csv", "e.csv"]
    assert files.pull() == []
    files.write(aa="0")
    assert files.pull() == ["aa.csv"]
    # Whoever looks at the greatest name alone goes on after it.
    assert files.value().startswith("e.csv\t")
    assert files.value().endswith("\taa.csv")
    assert files.value() < "e.csv.gz"


@pytest.mark.parametrize("pulled", [False, True])
def test_files_of_merged_blocks_are_fetched_once(files: Glob, pulled: bool) -> None:
    """Two compactions. The merged blocks have the states of their last files."""
    names: list[str] = []
    for part in ("abc", "de"):
        files.write(**dict.fromkeys(part, "1"))
        names += files.pull()
        if pulled:
            assert files.pull() == []
        compact(files.dataset, CompactionPolicy(), Recorder())
        assert files.dataset.state().blocks == 3
        assert files.pull() == []
    assert names == ["a.csv", "b.csv", "c.csv", "d.csv", "e.csv"]
    (files.folder / "b.csv").write_text("2")
    assert files.pull(force=True) == ["b.csv"]


def test_a_failed_file_is_fetched_again(files: Glob) -> None:
    files.write(a="1", b="2", c="3")
    assert files.pull(fail_at="b.csv") == ["a.csv"]
    assert files.pull() == ["b.csv", "c.csv"]


@pytest.mark.parametrize("harm", ["lost", "damaged", "kept"])
def test_fetched_files_are_known_from_the_chain_alone(files: Glob, tmp_path: Path, harm: str) -> None:
    files.write(b="2")
    files.pull()
    files.write(a="1")
    files.pull()
    clone = tmp_path / "clone"
    shutil.copytree(files.dataset.folder, clone)
    if harm == "lost":
        shutil.rmtree(clone / "info")
    elif harm == "damaged":
        (clone / "info" / "taken.sqlite").write_bytes(b"no database" * 100)
    files.dataset = Dataset(clone, BlockIndex(":memory:"))
    files.write(c="3")
    assert files.pull() == ["c.csv"]


def test_files_of_reset_blocks_are_fetched_again(files: Glob) -> None:
    files.write(a="1")
    files.pull()
    head = files.dataset.head()
    files.write(b="2")
    files.pull()
    files.pull()  # this one has seen the block of b.csv
    (files.dataset.folder / "refs" / "head").write_text(str(head))
    files.dataset = Dataset(files.dataset.folder, BlockIndex(":memory:"))
    assert files.pull() == ["b.csv"]


def test_changed_file_is_skipped_with_a_warning_unless_forced(files: Glob) -> None:
    files.write(a="1", b="2")
    files.pull()
    files.write(a="changed")
    assert files.pull() == []
    assert files.reporter.warnings == [
        "a.csv was ingested before and has changed: skipped (use --force to ingest it again)"
    ]
    assert files.pull(FilesGlob(STEP.path, cache=Forever())) == []
    assert len(files.reporter.warnings) == 1
    assert files.pull(force=True) == ["a.csv"]
    assert files.pull() == []
    assert len(files.reporter.warnings) == 1
    # The same content with another time is no change.
    os.utime(files.folder / "b.csv", (1, 1))
    files.pull()
    assert len(files.reporter.warnings) == 1


def test_source_state_with_only_a_file_name_is_accepted(files: Glob) -> None:
    files.commit(AddData(new_source_state=SourceState("default", "odf/etag", "b.csv")))
    files.write(a="1", b="2", c="3")
    assert files.pull() == ["c.csv"]
    assert files.value().startswith("c.csv\t")


def test_state_of_another_source_is_ignored(files: Glob) -> None:
    files.commit(SetPollingSource(fetch=Url("http://x.org"), read=Csv(), merge=Append()))
    files.commit(AddData(new_source_state=SourceState("default", "odf/etag", "z.csv")))
    files.commit(SetPollingSource(fetch=STEP, read=Csv(), merge=Append()))
    files.write(a="1")
    assert files.pull() == ["a.csv"]
    # A wider pattern does not take again what was taken.
    step = FilesGlob("in/*")
    files.commit(SetPollingSource(fetch=step, read=Csv(), merge=Append()))
    files.write(b="2")
    assert files.pull(step) == ["b.csv"]
    assert files.pull(step) == []


def test_recursive_glob_fetches_files_in_subfolders(files: Glob) -> None:
    for folder in ("2023", "2024"):
        (files.folder / folder).mkdir()
        (files.folder / folder / "x.csv").write_text(folder)
    (files.folder / "2024" / "folder.csv").mkdir()
    assert files.pull(FilesGlob(f"{files.folder}/**/*.csv")) == ["2023/x.csv", "2024/x.csv"]


def test_files_with_special_names_are_fetched_once(files: Glob) -> None:
    names = ["a b.csv", "b\tc.csv", "c\nd.csv", "d[1].csv", "e%20.csv", "ä.csv", "名.csv"]
    for name in names:
        (files.folder / name).write_text(name)
    (files.folder / ".hidden.csv").write_text("")
    assert files.pull() == names
    assert files.pull() == []
    files.write(A="late")
    files.dataset = Dataset(files.dataset.folder, BlockIndex(":memory:"))
    (files.dataset.folder / "info" / "taken.sqlite").unlink()
    assert files.pull() == ["A.csv"]
    assert files.pull() == []
    assert files.reporter.warnings == []


def test_file_deleted_during_the_pull_fails_the_pull(files: Glob) -> None:
    files.write(a="1", b="2", c="3")
    files.reporter.on_line = lambda text: (files.folder / "b.csv").unlink() if "3 new" in text else None
    with pytest.raises(SourceUnavailable, match=r"b\.csv: the file was deleted during the pull"):
        files.pull()
    assert files.value().startswith("a.csv\t")
    files.reporter.on_line = lambda text: (files.folder / "a.csv").unlink() if "1 new" in text else None
    assert files.pull() == ["c.csv"]


def test_files_are_ordered_by_event_time(files: Glob) -> None:
    pattern = FromPath(r"(\d+)", "ddMMyyyy")
    files.write(x_01032024="", x_02012024="", x_03022023="")
    step = FilesGlob(STEP.path, event_time=pattern, order=SourceOrdering.ByEventTime)
    assert files.pull(step) == ["x_03022023.csv", "x_02012024.csv", "x_01032024.csv"]
    files.write(y="", z="")
    os.utime(files.folder / "y.csv", (2, 2))
    os.utime(files.folder / "z.csv", (1, 1))
    step = FilesGlob("in/[yz].csv", event_time=FromMetadata(), order=SourceOrdering.ByEventTime)
    assert files.pull(step) == ["z.csv", "y.csv"]
    files.write(w="")
    with pytest.raises(InvalidManifest, match="ByEventTime"):
        files.pull(FilesGlob("in/*", order=SourceOrdering.ByEventTime))


def test_file_name_that_is_not_utf8_is_rejected(files: Glob) -> None:
    Path(os.fsdecode(bytes(files.folder) + b"/\xff.csv")).write_text("")
    with pytest.raises(BadData, match="not UTF-8"):
        files.pull()


def test_glob_without_matches_fails_on_first_pull_only(files: Glob) -> None:
    with pytest.raises(SourceUnavailable, match=r"no files match 'in/\*\.csv'"):
        files.pull()
    files.write(a="")
    files.pull()
    (files.folder / "a.csv").unlink()
    assert files.pull() == []


@pytest.mark.parametrize("walked", ["at once", "pull by pull"])
def test_same_name_in_another_folder_is_new_unless_content_matches(files: Glob, walked: str) -> None:
    """Unless somebody only moved them; and whoever comes back to a folder knows what was taken there."""

    def look_into(path: str) -> FilesGlob:
        step = FilesGlob(path)
        files.commit(SetPollingSource(fetch=step, read=Csv(), merge=Append()))
        if walked == "at once":
            (files.dataset.folder / "info" / "taken.sqlite").unlink()
        return step

    files.write(a="1", b="2")
    assert files.pull() == ["a.csv", "b.csv"]
    other = files.workspace.folder / "other"
    other.mkdir()
    for name, text in {"a": "1", "b": "3", "c": "1"}.items():
        (other / f"{name}.csv").write_text(text)
    step = look_into("other/*.csv")
    assert files.pull(step) == ["b.csv", "c.csv"]
    assert files.pull(step) == []
    files.write(c="1", d="4")
    step = look_into("in/*.csv")
    assert files.pull(step) == ["d.csv"]
    assert files.pull(look_into("in/**/[a-z].csv")) == []
    assert files.pull(step, force=True) == ["c.csv"]
