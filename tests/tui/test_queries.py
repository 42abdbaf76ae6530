"""Writing the queries of derivative datasets: looked at by the worker, and what becomes of their state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from odf_engine.coordinator.protocol import Failure, JobState, Update, Validate
from odf_engine.errors import InvalidQuery
from odf_tui.features.definitions.manifest_dialogs import TextPosition, error_position
from odf_tui.text.job_text import job_outcome
from odf_tui.widgets.dialogs import DecisionDialog, JobProgressDialog
from tests.tui.conftest import Driven, driven
from tests.tui.fake import FakeSource
from tests.tui.test_editing import Typist, hinted, named, typist

pytestmark = pytest.mark.app

__all__ = ["typist"]

DAYS = "did:odf:air-by-day"
MANIFEST = """\
content:
  metadata:
    - kind: SetTransform
      transform:
        query: |

          SELECT event_time,
            cuont(*) AS n
          FROM air
"""


async def ends(drive: Driven, state: JobState, **more: object) -> None:
    """The job that the screen waits for ends."""
    await drive.until(lambda: isinstance(drive.app.screen, JobProgressDialog))
    link = drive.source.link
    job = drive.source.known[-1]
    drive.source.link.tell(drive.source.changed(replace(job, state=state, **more)))
    await drive.until(lambda: not isinstance(drive.app.screen, JobProgressDialog))
    assert link is drive.source.link


def plan(**parts: object) -> str:
    """What the worker says of a query."""
    known = {"name": "x", "checked": True, "message": None, "schema": ["n BIGINT"], "new": []}
    known["state"] = "none"
    return json.dumps({**known, **parts})


def test_a_place_in_a_query_is_a_place_in_its_manifest() -> None:
    def place(where: str, text: str = MANIFEST) -> TextPosition | None:
        return error_position(InvalidQuery("no", where=where), text)

    # The query begins with an empty line, which counts.
    found = place("query, line 3, column 3")
    assert found == TextPosition(8, 13)
    assert MANIFEST.splitlines()[7][12:].startswith("cuont")
    steps = "queries:\n  - alias: a\n    query: SELECT 1\n  - query: 'SELECT x'\n"
    assert place("query step 1 of 2, line 1, column 8", steps) == TextPosition(3, 19)
    assert place("query step 2 of 2, line 1, column 8", steps) == TextPosition(4, 20)
    assert place("dataset a: query, line 1, column 1", "query: >\n  SELECT\n") == TextPosition(1)
    assert place("query step 3 of 3, line 1, column 8", steps) is None


async def test_a_wrong_query_is_shown_in_the_manifest_and_mended(source: FakeSource, typist: Typist) -> None:
    async with driven(source, (80, 24)) as drive:
        path = drive.source.folder / "manifests" / "new-derivative.yaml"
        body = MANIFEST.replace("\n", "\\n")
        typist.next(f"printf '{body}' > \"$file\"", 'sed -i s/cuont/count/ "$file"', "true")
        await named(drive, "d")
        await drive.until(lambda: source.link.submitted)
        await drive.until(lambda: "Looking at the query" in drive.text())
        (request,) = source.link.submitted
        assert request == Validate(manifest=MANIFEST)
        wrong = Failure("there is no function `cuont`", where="query, line 3, column 3", hint="count?")
        await ends(drive, JobState.failed, error=wrong)
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.settle()
        lines = drive.text().splitlines()
        at = next(at for at, line in enumerate(lines) if "cuont(*) AS n" in line)
        assert lines[at + 1].index("^") == lines[at].index("cuont")
        assert "a adds it unchecked" in drive.text()
        await drive.pilot.press("e")
        await drive.until(lambda: len(source.link.submitted) == 2)
        await drive.until(lambda: isinstance(drive.app.screen, JobProgressDialog))
        await drive.pilot.press("escape")  # it takes too long
        await drive.until(lambda: source.link.cancelled)
        stopped = replace(source.known[-1], state=JobState.cancelled)
        source.link.tell(source.changed(stopped))
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.settle()
        assert source.link.cancelled == [stopped.id]
        await drive.pilot.press("e")
        await ends(drive, JobState.done, result=plan())
        await drive.until(hinted(drive, "its query is right"))
        assert typist.calls[1] == f"+8 {path}"
        assert job_outcome(source.known[-1]) == ("the query is right", "good")
        assert drive.graph.selected == "did:odf:new-derivative"


async def test_a_query_that_nobody_can_look_at_can_be_added(source: FakeSource, typist: Typist) -> None:
    async with driven(source, (80, 24)) as drive:
        typist.next('echo query: SELECT 1 > "$file"')
        await named(drive, "d")
        await ends(drive, JobState.failed, error=Failure("the engine flink does not answer"))
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.pilot.press("a")
        await drive.until(hinted(drive, "added new-derivative"))
        assert "query is right" not in drive.hint()


@pytest.mark.parametrize("wanted", ["flush", "rebuild"])
async def test_a_new_query_whose_state_is_lost(
    source: FakeSource, typist: Typist, wanted: Literal["flush", "rebuild"]
) -> None:
    async with driven(source, (80, 24)) as drive:
        typist.next('echo changed > "$file"')
        await drive.press("l")
        await drive.pilot.press("e")
        await ends(drive, JobState.done, result=plan(new=["peak"], state="lost"))
        assert source.link.submitted[-1] == Validate(manifest="changed\n", dataset=DAYS)
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.settle()
        text = drive.text()
        assert "+changed" in text
        assert "peak: new, empty in the rows before" in text
        assert "cannot go on from the state of the old one" in text
        assert "f flushes · r rebuilds · e edits again" in text
        await drive.pilot.press("enter")  # this is no answer here
        await drive.pilot.press(wanted[0])
        await drive.until(lambda: isinstance(drive.app.screen, JobProgressDialog))
        assert source.link.submitted[-1] == Update(
            dataset=DAYS, manifest="changed\n", state=wanted, accept_columns=True
        )
        done = json.dumps({"name": "air-by-day", "status": "updated", "state": wanted + "ed"})
        await ends(drive, JobState.done, result=done)
        await drive.until(hinted(drive, "appended 1 block to air-by-day"))
        assert list((source.folder / ".odf" / "cache" / "edit").iterdir()) == []
        assert job_outcome(source.known[-1]) == (f"updated, state {wanted}ed", "good")


async def test_columns_that_an_input_got_are_taken_in(source: FakeSource) -> None:
    async with driven(source, (80, 24)) as drive:
        await drive.press("C")
        assert "port-haven.air-readings has no query" in drive.hint()
        await drive.press("l")
        await drive.pilot.press("C")
        await ends(drive, JobState.done, result=plan())
        await drive.until(hinted(drive, "gives no other columns than it has"))
        await drive.pilot.press("C")
        await ends(drive, JobState.done, result=plan(new=["no2", "o3"], state="kept"))
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.settle()
        assert "no2, o3: new, empty in the rows before" in drive.text()
        await drive.pilot.press("enter")
        await ends(drive, JobState.done, result="{}")
        await drive.until(hinted(drive, "air-by-day has new columns: no2, o3"))
        definition = source.definition(DAYS)
        assert source.link.submitted[-1] == Update(dataset=DAYS, manifest=definition, accept_columns=True)


async def test_what_was_written_stays_when_a_change_fails_or_goes_on_alone(
    source: FakeSource, typist: Typist
) -> None:
    async with driven(source, (80, 24)) as drive:
        typist.next('echo changed > "$file"', "true")
        await drive.press("l")
        await drive.pilot.press("e")
        await ends(drive, JobState.done, result=plan(state="kept"))
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.settle()
        assert "goes on from the state of the old one" in drive.text()
        await drive.pilot.press("enter")
        await ends(drive, JobState.failed, error=Failure("somebody else committed meanwhile"))
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.settle()
        assert "somebody else committed meanwhile" in drive.text()
        await drive.pilot.press("e")
        await ends(drive, JobState.done, result=plan(state="none"))
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.pilot.press("enter")
        await drive.until(lambda: isinstance(drive.app.screen, JobProgressDialog))
        await drive.pilot.press("b")
        await drive.until(hinted(drive, "what was written stays in .odf/cache/edit/air-by-day.yaml"))
        kept: Path = source.folder / ".odf" / "cache" / "edit" / "air-by-day.yaml"
        assert kept.read_text() == "changed\n"
        assert source.link.cancelled == []
