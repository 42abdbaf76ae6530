"""The command line for what is selected."""

from __future__ import annotations

import shlex
from types import SimpleNamespace

import pytest

from odf_engine.jobs.pull import Pull
from odf_engine.jobs.push import Push
from odf_engine.jobs.query import Query
from odf_engine.jobs.remotes import Compare
from odf_engine.jobs.trace import Trace
from odf_engine.jobs.verify import Verify
from odf_engine.jobs.views import BuildProjection
from odf_engine.worker.protocol import Job, JobState, Request
from odf_tui.actions.model import Situation
from odf_tui.features.copy_command import CopyCommandController
from odf_tui.panes.data.view import DataPane
from tests.tui.context import Fakes
from tests.tui.haven import did
from tests.tui.scripted_worker import Scenario

TIDES = did("harbour.tides")
JOB = Job("7", "pull", "harbour.tides", TIDES, JobState.done, "2024-03-11T09:00:00Z")


@pytest.mark.parametrize(
    ("request_", "arguments"),
    [
        (Pull(dataset=TIDES), "pull tides"),
        (Pull(dataset=TIDES, url="file:x/", force=True), "pull tides --force --from file:x/"),
        (Pull(dataset="file:x/", url="file:x/", alias="new"), "pull --from file:x/ --as new"),
        (Pull(dataset="file:x/", url="file:x/", crate="file:///data/a%20b.zip#new"), "pull '/data/a b.zip'"),
        (Push(dataset=TIDES, url="file:x/", force=True), "push tides --to file:x/ --force"),
        (Verify(dataset=TIDES, integrity=True), "verify tides --integrity"),
        (Verify(dataset=TIDES, recompute=True), "verify tides --recompute"),
        (Compare(dataset=TIDES), "repo status tides"),
        (Query(sql="SELECT 'a' FROM tides"), shlex.join(["sql", "SELECT 'a' FROM tides"])),
        (Trace(dataset=TIDES, runs=[(3, 3)], column="level"), "provenance tides 3 --column level"),
        (Trace(dataset=TIDES, runs=[(3, 5)]), "provenance tides 3..5"),
    ],
)
def test_job_is_converted_to_its_command_line(request_: Request, arguments: str) -> None:
    assert shlex.join(request_.command(lambda _: "tides") or []) == arguments


def test_job_without_a_command_has_none() -> None:
    assert BuildProjection(TIDES, []).command(lambda _: "tides") is None


def test_copied_command_depends_on_pane_and_selection(source: Scenario) -> None:
    rows = source.rows(TIDES)
    pane = SimpleNamespace(window=rows, front_view=None, view=SimpleNamespace(cursor=42))
    fakes = Fakes(source, "harbour.tides", widgets={DataPane: pane})
    controller = CopyCommandController(fakes.context)
    for name, command in (
        ("datasets", "show harbour.tides"),
        ("blocks", "log harbour.tides"),
        ("data", "provenance harbour.tides 42"),
    ):
        fakes.host.now = Situation(pane=name, dataset=fakes.state.row, has_rows=True)
        controller.copy()
        assert fakes.host.terminal.copied[-1] == f"odf -w {shlex.quote(str(source.folder))} {command}"
    fakes.host.now = Situation()
    controller.copy()
    assert fakes.host.last_notice == "nothing is selected"


def test_citation_of_the_selected_dataset_is_copied(source: Scenario) -> None:
    fakes = Fakes(source, "harbour.tides")
    CopyCommandController(fakes.context).copy_citation()
    (citation,) = fakes.host.terminal.copied
    assert citation.startswith(f"harbour.tides (Version at block {source['harbour.tides'].head})")
    assert fakes.host.last_notice == "citation: copied"
