"""Pull, verify, trust and rebuild of the selected dataset."""

from __future__ import annotations

from msgspec.structs import replace

from odf_engine.coordinator.protocol import Pull, Verify
from odf_tui.features.dataset_actions import DatasetActionsController
from tests.tui.context import Fakes
from tests.tui.fake import FakeSource


def test_pull_and_verify_submit_jobs(source: FakeSource) -> None:
    fakes = Fakes(source, "smoke-and-breath")
    controller = DatasetActionsController(fakes.context)
    controller.pull()
    controller.verify()
    pull, verify = fakes.jobs.requests
    assert isinstance(pull, Pull) and pull.dataset == "did:odf:smoke-and-breath"
    assert set(pull.after or ()) == {
        "did:odf:port-haven.air-readings",
        "did:odf:port-haven.stations",
        "did:odf:port-haven.clinic-visits",
        "did:odf:air-by-day",
        "did:odf:visits-by-day",
    }
    assert verify == Verify(dataset="did:odf:smoke-and-breath")


async def test_an_untrusted_root_is_pulled_after_a_question(source: FakeSource) -> None:
    source.rows_ = [replace(row, standing="not trusted") for row in source.rows_]
    for answer in (False, True):
        fakes = Fakes(source, "harbour.tides", answers=[answer])
        DatasetActionsController(fakes.context).pull()
        await fakes.host.stories()
        assert [type(request) for request in fakes.jobs.requests] == ([Pull] if answer else [])
    assert "is trusted" in fakes.host.last_notice
