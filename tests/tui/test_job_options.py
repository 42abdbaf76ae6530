"""Pull, push of rows, verification and proofs with options: forms, requests and confirmations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from odf_engine.api.model import Remote
from odf_engine.base.settings import load_workspace
from odf_engine.derive.verify.finding_kinds import ProofFinding
from odf_engine.jobs.compact import Compact
from odf_engine.jobs.ingest import Ingest
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.query import CheckProof, CheckProofResult, Query, QueryResult
from odf_engine.jobs.verify import Verify
from odf_engine.worker.protocol import JobState
from odf_tui.features.job_options import JobOptionsController
from odf_tui.features.proofs import ProofsController
from odf_tui.widgets.dialogs import TextDialog, TypedConfirmation
from tests.tui.conftest import driven
from tests.tui.context import Fakes
from tests.tui.form_steps import fill
from tests.tui.haven import did
from tests.tui.scripted_worker import Scenario

TIDES, AIR, READINGS = "harbour.tides", "air-by-day", "port-haven.air-readings"


def change(source: Scenario, name: str, **more: Any) -> None:
    """Change a dataset."""
    source.rows_ = [replace(row, **more) if row.name == name else row for row in source.rows_]


async def run(source: Scenario, name: str, action: str, *answers: Any) -> Fakes:
    """Run an action on a dataset with answers of dialogs."""
    fakes = Fakes(source, name, answers=answers)
    getattr(JobOptionsController(fakes.context), action)()
    await fakes.host.stories()
    assert not fakes.host.answers
    return fakes


async def test_a_pull_has_the_options_of_the_form(source: Scenario) -> None:
    fakes = await run(source, TIDES, "pull", fill(uncacheable=True, force=True, strict=True))
    request = Pull(dataset=did("harbour.tides"), fetch_uncacheable=True, force=True, strict=True)
    assert fakes.jobs.submitted == [(request, TIDES)]
    assert (await run(source, TIDES, "pull", None)).jobs.submitted == []


async def test_a_source_that_cannot_report_changes_is_fetched_in_each_pull(source: Scenario) -> None:
    fakes = await run(source, TIDES, "pull", fill(never_cached=True))
    assert fakes.jobs.submitted == [(Pull(dataset=did("harbour.tides")), TIDES)]
    assert load_workspace(source.odf).fetch.cache == {TIDES: "never"}


async def test_a_recursive_pull_includes_upstream_datasets(source: Scenario) -> None:
    change(source, "port-haven.stations", standing="not trusted")
    fakes = await run(source, AIR, "pull", fill(strict=True))
    assert [name for _, name in fakes.jobs.submitted] == [READINGS, AIR]  # the untrusted one is skipped
    requests = [request for request in fakes.jobs.requests if isinstance(request, Pull)]
    assert all(request.strict for request in requests)
    assert did("port-haven.air-readings") in requests[1].after
    fakes = await run(source, AIR, "pull", fill(recursive=False))
    assert [name for _, name in fakes.jobs.submitted] == [AIR]


async def test_setting_a_watermark_requires_typing_the_dataset_name(source: Scenario) -> None:
    form = fill(watermark="2026-03-01")
    fakes = await run(source, TIDES, "pull", form, False)
    assert not fakes.jobs.submitted and "is unchanged" in fakes.host.last_notice
    fakes = await run(source, TIDES, "pull", form, lambda dialog: TIDES in dialog._accepted)
    (request,) = fakes.jobs.requests
    assert isinstance(request, Pull) and request.set_watermark == "2026-03-01T00:00:00Z"
    await run(source, TIDES, "pull", fill("is not a time", watermark="soon"))
    await run(source, TIDES, "pull", fill("is already 2024-03-10", watermark="2024-03-10"))
    change(source, TIDES, polls=False, push_sources=("default",))
    await run(source, TIDES, "pull", fill("enter a time"))


async def test_options_that_replace_rows_require_a_typed_confirmation(source: Scenario) -> None:
    change(source, AIR, diverged=("port-haven.stations",))
    fakes = await run(source, AIR, "pull", fill(recursive=False), True)  # the rebuild is the default
    assert isinstance(fakes.host.dialogs[-1], TypedConfirmation)
    (request,) = fakes.jobs.requests
    assert isinstance(request, Pull) and request.reset_on_divergence
    change(source, AIR, diverged=())
    fakes = await run(source, AIR, "pull", fill(rederive=True), True)
    assert isinstance(fakes.host.dialogs[-1], TypedConfirmation)
    assert [each.rederive for each in fakes.jobs.requests if isinstance(each, Pull)][-1]
    remotes = tuple(
        Remote(url=f"file:///{name}/", label=name, pull=True) for name in ("hub/tides", "lake/tides")
    )
    change(source, TIDES, remotes=remotes)
    fakes = await run(source, TIDES, "pull", fill(remote="file:///lake/tides/", force=True), True)
    request = Pull(dataset=did("harbour.tides"), force=True, url="file:///lake/tides/")
    assert fakes.jobs.requests == [request]


async def test_a_compaction_is_confirmed(source: Scenario) -> None:
    async with driven(source) as drive:
        (link, *_) = source.links
        await drive.press("comma", "s")
        assert "Merge small slices of" in drive.text()
        await drive.press("n")
        assert link.submitted == []
        await drive.press("comma", "s", "y")
        await drive.until(lambda: link.submitted)
        (request,) = link.submitted
        assert isinstance(request, Compact) and not request.dry_run


async def test_rows_are_pushed_from_files(
    source: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b c.csv"):
        (tmp_path / name).touch()
    change(source, TIDES, polls=False, push_sources=("station", "boat"))
    form = fill(files="a.csv 'b c.csv'", source="boat", format="ndjson", time="2026-03-01", strict=True)
    fakes = await run(source, TIDES, "ingest", form)
    request = Ingest(
        dataset=did("harbour.tides"),
        files=[str(tmp_path / "a.csv"), str(tmp_path / "b c.csv")],
        source="boat",
        format="ndjson",
        event_time="2026-03-01T00:00:00Z",
        strict=True,
    )
    assert fakes.jobs.submitted == [(request, TIDES)]
    for problem, files in (
        ("enter the path", ""),
        ("missing.csv: file not found", "missing.csv"),
        ("is a folder", str(tmp_path)),
        ("not closed", "'a.csv"),
    ):
        await run(source, TIDES, "ingest", fill(problem, files=files))


async def test_a_verification_has_the_options_of_the_form(source: Scenario) -> None:
    fakes = await run(source, AIR, "verify", fill(integrity=True, rows=True))
    assert fakes.jobs.requests == [Verify(dataset=did("air-by-day"), integrity=True, rows=True)]
    fakes = await run(source, AIR, "verify", fill(recompute=True))
    assert fakes.jobs.requests == [Verify(dataset=did("air-by-day"), recompute=True)]
    fakes = await run(source, AIR, "verify", fill(compatible=True))
    assert fakes.jobs.requests == [Verify(dataset=did("air-by-day"), compatible=True)]
    fakes = await run(source, AIR, "verify", fill(scope="inputs"))
    assert {name for _, name in fakes.jobs.submitted} == {READINGS, "port-haven.stations", AIR}
    source.changed(source.job(JobState.running, TIDES, "verify"))
    fakes = await run(source, TIDES, "verify", fill(scope="all"))
    assert len(fakes.jobs.submitted) == len(source.rows_) - 1  # without the one that is being verified


async def test_a_proof_of_a_query_is_written_and_verified(source: Scenario, tmp_path: Path) -> None:
    job = source.job(JobState.done, "SELECT 1", "sql")
    source.changed(job, Query(sql="SELECT 1"))
    path = tmp_path / "proof.json"
    finding = ProofFinding(kind="rows", message="the rows differ", hint="query again")
    results: dict[type, Any] = {
        Query: QueryResult(rows=1, proof={"rows": 1}),
        CheckProof: CheckProofResult(valid=False, query="SELECT 1", findings=[finding]),
    }
    fakes = Fakes(source, answers=[fill(file=str(path))], results=results)
    controller = ProofsController(fakes.context)
    controller.write_proof()
    await fakes.host.stories()
    assert "no query: press s" in fakes.host.last_notice

    fakes.state.focus_pane("jobs")
    fakes.host.now = replace(fakes.host.now, job=job)
    controller.write_proof()
    await fakes.host.stories()
    (request,) = fakes.jobs.requests
    assert request == Query(sql="SELECT 1", limit=None, proof=True)
    assert json.loads(path.read_text()) == {"rows": 1}

    fakes.host.answers += [fill(file=str(path)), None]
    controller.check_proof()
    await fakes.host.stories()
    assert fakes.jobs.requests[-1] == CheckProof(proof=path.read_text())
    dialog = fakes.host.dialogs[-1]
    assert isinstance(dialog, TextDialog)
    shown = "\n".join("".join(text for text, _ in line) for line in dialog._lines)
    assert "proof INVALID: SELECT 1" in shown and "the rows differ" in shown and "query again" in shown
