"""What the targets of the fuzzing share: a folder, a workspace with files of each kind, and helpers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odf_engine.api.readers import query_history
from odf_engine.api.samples import MANIFESTS
from odf_engine.base.progress import Reporter
from odf_engine.errors import OdfError
from odf_engine.jobs.pull import Pull
from odf_engine.metadata.yaml import read_manifests
from odf_engine.net.credentials import Credentials, Login
from odf_engine.worker.job_log import JobLog
from odf_engine.worker.protocol import JobState
from odf_engine.workspace.remotes import DatasetRemotes, Remotes, RemoteStatus
from odf_engine.workspace.tokens import Tokens
from odf_engine.workspace.workspace import Workspace
from odf_tui.state import saved_session
from tests.cli.conftest import call_odf
from tests.sync import builders


class Scene:
    """A folder of a target, and a workspace that all targets share.

    Attributes:
        workspace: a workspace with datasets and a file of each kind. Targets change copies of it.
    """

    def __init__(self, folder: Path, workspace: Path) -> None:
        self.folder = folder
        self.workspace = workspace
        self.reporter = Reporter()

    def write(self, name: str, data: bytes) -> Path:
        """Write the input to a file in an empty folder."""
        folder = self.folder / "input"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / name).write_bytes(data)
        return folder / name

    def damaged(self, pattern: str, data: bytes) -> Path:
        """Return a copy of the workspace in which one file has other bytes."""
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.workspace, copy, symlinks=True)
        find_file(copy, pattern).write_bytes(data)
        return copy


def make_workspace(folder: Path) -> None:
    """Make the workspace of the targets: a root, a derivative, a foreign dataset, and a file of each kind."""
    made = Workspace.init(folder)
    root = builders.make_root(made, slices=2)
    builders.make_derivative(made, root)
    url = "http://host/numbers/"
    (foreign,) = made.add(
        read_manifests(MANIFESTS["stations.yaml"].replace("port-haven.stations", "foreign"), "f")
    )
    (foreign.dataset.folder / "info" / "origin").write_text(url)
    status = RemoteStatus(
        url=url,
        relation="ahead",
        ours=1,
        theirs=0,
        common=None,
        our_head=None,
        their_head=None,
        at="2024-05-01T00:00:00Z",
    )
    odf = made.odf
    for command in (
        "repo add there http://host/", "config set serve.pushes 7", "keys prove numbers",
        "trust foreign --yes",
    ):  # fmt: skip
        ran = call_odf(*command.split(), cwd=folder)
        assert ran.code == 0, f"odf {command}: {ran.err}"
    Tokens(odf).create("nightly", ["%"])
    Credentials(odf).set(url, Login("user", "secret"))
    Remotes(odf).set(root.id, DatasetRemotes(pull=[url], push=[url], seen=[status]))
    journal = JobLog(odf / "jobs.sqlite")
    job = journal.create(Pull(str(root.id)), "numbers")
    journal.transition(job.id, JobState.running)
    journal.append_lines(job.id, "fetched 3 rows")
    journal.transition(job.id, JobState.done, result='{"rows": 3}')
    journal.close()
    query_history.add_to_history(odf, "SELECT * FROM numbers")
    saved_session.save_layout(made.folder, saved_session.encode_layout(saved_session.SavedLayout()))
    made.summaries()
    made.index.close()


def find_file(workspace: Path, pattern: str) -> Path:
    return max((workspace / ".odf").glob(pattern), key=lambda path: (path.stat().st_size, path.name))


@dataclass(frozen=True)
class Target:
    """A decoder.

    Attributes:
        name: of the target, and of its folder in the corpus.
        seeds: inputs to mutate.
        run: decodes an input, and uses what it returns.
        allowed: errors that an input may end in.
        cost: the number of inputs of other targets that take the time of one.
    """

    name: str
    seeds: Callable[[Scene], Sequence[bytes]]
    run: Callable[[bytes, Scene], object]
    allowed: tuple[type[Exception], ...] = (OdfError,)
    cost: int = 1


def run_each(
    *calls: Callable[[Any], object], allowed: tuple[type[Exception], ...] = (OdfError,)
) -> Callable[..., None]:
    """Call all functions with an input, or with its text; an allowed error does not end the others."""

    def run(value: Any, scene: Scene) -> None:
        last: Exception | None = None
        for call in calls:
            try:
                call(value)
            except allowed as error:
                last = error
        if last is not None:
            raise last

    return run


def of_text(run: Callable[[str, Scene], object]) -> Callable[[bytes, Scene], object]:
    """A target of text: bytes that are not UTF-8 become lone surrogates."""
    return lambda data, scene: run(data.decode("utf-8", "surrogateescape"), scene)


def fixed(seeds: Sequence[bytes]) -> Callable[[Scene], Sequence[bytes]]:
    return lambda scene: seeds
