"""Pull, verify, trust and rebuild of the selected dataset, with fakes of everything else."""

from __future__ import annotations

from msgspec.structs import replace

from odf_engine.api.model import Remote
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.verify import Verify
from odf_engine.worker.protocol import JobState
from odf_tui.features.dataset_actions import DatasetActionsController
from tests.tui.context import Fakes
from tests.tui.haven import TIDES, did, distrust
from tests.tui.scripted_worker import Scenario


def test_pull_and_verify_submit_jobs(source: Scenario) -> None:
    fakes = Fakes(source, "smoke-and-breath")
    controller = DatasetActionsController(fakes.context)
    controller.pull()
    controller.verify()
    pull, verify = fakes.jobs.requests
    assert isinstance(pull, Pull) and pull.dataset == did("smoke-and-breath")
    assert set(pull.after or ()) == {
        did("port-haven.air-readings"),
        did("port-haven.stations"),
        did("port-haven.clinic-visits"),
        did("air-by-day"),
        did("visits-by-day"),
    }
    assert verify == Verify(dataset=did("smoke-and-breath"))


async def test_an_untrusted_root_is_pulled_after_a_question(source: Scenario) -> None:
    distrust(source.entry(TIDES))
    for answer in (False, True):
        fakes = Fakes(source, "harbour.tides", answers=[answer])
        DatasetActionsController(fakes.context).pull()
        await fakes.host.stories()
        assert [type(request) for request in fakes.jobs.requests] == ([Pull] if answer else [])
    assert "is trusted" in fakes.host.last_notice


async def test_without_consent_nothing_runs(source: Scenario) -> None:
    distrust(source.entry(TIDES))
    fakes = Fakes(source, "harbour.tides", answers=[False])
    DatasetActionsController(fakes.context).pull()
    await fakes.host.stories()
    assert fakes.host.notices == [("harbour.tides is still untrusted: nothing was run", "warn")]
    assert fakes.state.row is not None and fakes.state.row.untrusted


async def test_trust_alone_pulls_nothing_and_can_be_revoked(source: Scenario) -> None:
    distrust(source.entry(TIDES))
    fakes = Fakes(source, "harbour.tides", answers=[lambda dialog: "harbour.tides" in dialog._accepted])
    controller = DatasetActionsController(fakes.context)
    controller.trust()
    await fakes.host.stories()
    row = fakes.state.row
    assert row is not None
    assert row.standing == "trusted"
    assert fakes.jobs.requests == []
    controller.revoke_trust()
    await fakes.host.stories()
    row = fakes.state.row
    assert row is not None
    assert row.untrusted
    assert fakes.host.last_notice == "harbour.tides is untrusted now"


def test_pull_all_skips_what_is_busy_untrusted_or_diverged(source: Scenario) -> None:
    rows = {
        "harbour.tides": {"standing": "not trusted"},
        "air-by-day": {"diverged": ("port-haven.stations",)},
        "visits-by-day": {"behind": True},
    }
    source.rows_ = [replace(row, **rows.get(row.name, {})) for row in source.rows_]
    source.changed(source.job(JobState.running, "port-haven.clinics"))
    fakes = Fakes(source)
    DatasetActionsController(fakes.context).pull_all()
    names = [name for _, name in fakes.jobs.submitted]
    assert set(names) == {
        "port-haven.air-readings",
        "port-haven.stations",
        "port-haven.clinic-visits",
        "visits-by-day",
        "smoke-and-breath",
    }
    assert names.index("port-haven.clinic-visits") < names.index("visits-by-day")
    assert fakes.jobs.remarks == ["; 1 untrusted; 1 diverged from upstream: D rebuilds them"]


async def test_a_diverged_dataset_is_rebuilt_after_its_name_was_typed(source: Scenario) -> None:
    source.rows_ = [
        replace(row, diverged=("port-haven.stations",)) if row.name == "air-by-day" else row
        for row in source.rows_
    ]
    for answer in (False, True):
        fakes = Fakes(source, "air-by-day", answers=[answer])
        DatasetActionsController(fakes.context).rebuild()
        await fakes.host.stories()
        dialog = fakes.host.dialogs[0]
        assert list(dialog._accepted) == ["air-by-day"]
        if answer:
            (request,) = fakes.jobs.requests
            assert isinstance(request, Pull)
            assert request.reset_on_divergence
        else:
            assert fakes.host.notices == [("air-by-day is unchanged", "warn")]
            assert not fakes.jobs.requests


async def test_a_pulled_copy_is_pulled_from_its_remote(source: Scenario) -> None:
    remotes = [Remote(url=f"https://{name}.example/tides", label=name, pull=True) for name in "ab"]
    for found, answers, url in (
        (remotes[:1], [], 0),
        (remotes, [remotes[1].url], 1),
        (remotes, [None], None),
    ):
        source.rows_ = [replace(row, remotes=tuple(found)) for row in source.rows_ if row.id == TIDES]
        fakes = Fakes(source, "harbour.tides", answers=answers)
        DatasetActionsController(fakes.context).pull()
        await fakes.host.stories()
        expected = [] if url is None else [Pull(dataset=TIDES, url=remotes[url].url)]
        assert fakes.jobs.requests == expected
