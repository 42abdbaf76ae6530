"""New and changed queries of derivative datasets: their validation, and the state of the old query."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from odf_engine.errors import Cancelled, OdfError
from odf_engine.jobs.definition import (
    AppendedEvent,
    InferSource,
    InferSourceResult,
    Update,
    Validate,
    ValidateResult,
)
from odf_engine.worker.protocol import Failure, JobState
from odf_tui.actions.model import Situation
from odf_tui.actions.table import DEFAULT_KEYMAP
from odf_tui.features.definitions.controller import DefinitionsController
from odf_tui.panes.datasets.view import GraphView
from odf_tui.services.jobs_client import LeftRunning
from odf_tui.text.job_text import job_outcome
from odf_tui.widgets.dialogs import DecisionDialog, ProgressDialog
from tests.tui.conftest import Driven, driven
from tests.tui.context import Fakes
from tests.tui.haven import did
from tests.tui.scripted_worker import Scenario

DAYS = did("air-by-day")
MANIFEST = """\
kind: DatasetSnapshot
version: 1
content:
  name: new-derivative
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: port-haven.air-readings, alias: air}]
      transform:
        kind: Sql
        engine: spark
        query: |

          SELECT event_time,
            cuont(*) AS n
          FROM air
"""


async def end_job(drive: Driven, state: JobState, **fields: object) -> None:
    """End the job that the progress dialog shows, and wait until the dialog is closed."""
    await drive.until(lambda: isinstance(drive.app.screen, ProgressDialog))
    dialog = drive.app.screen
    job = drive.source.known[-1]
    drive.source.link.tell(drive.source.changed(replace(job, state=state, **fields)))
    await drive.until(lambda: drive.app.screen is not dialog)


@pytest.mark.app
async def test_an_invalid_query_is_shown_in_its_manifest_and_corrected(
    source: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = deque([MANIFEST, MANIFEST.replace("cuont", "count"), None])
    opened: list[tuple[Path, int | None]] = []

    async def edit(path: Path, line: int | None = None) -> None:
        opened.append((path, line))
        if (text := edits.popleft()) is not None:
            path.write_text(text)

    async with driven(source, (80, 24)) as drive:
        monkeypatch.setattr(drive.app, "edit", edit)
        path = drive.source.folder / "manifests" / "new-derivative.yaml"
        await drive.press("n", "d")
        await drive.until(lambda: "my.dataset" in drive.text())
        await drive.pilot.press("enter")
        await drive.until(lambda: source.link.submitted)
        await drive.until(lambda: "Validating the query" in drive.text())
        (request,) = source.link.submitted
        assert request == Validate(manifest=MANIFEST)
        failure = Failure("there is no function `cuont`", where="query, line 3, column 3", hint="count?")
        await end_job(drive, JobState.failed, error=failure)
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.settle()
        lines = drive.text().splitlines()
        at = next(at for at, line in enumerate(lines) if "cuont(*) AS n" in line)
        assert lines[at + 1].index("^") == lines[at].index("cuont")
        assert "a adds it without validation" in drive.text()
        await drive.pilot.press("e")
        await drive.until(lambda: len(source.link.submitted) == 2)
        await drive.until(lambda: isinstance(drive.app.screen, ProgressDialog))
        await drive.pilot.press("escape")  # stops the validation
        await drive.until(lambda: source.link.cancelled)
        stopped = replace(source.known[-1], state=JobState.cancelled)
        source.link.tell(source.changed(stopped))
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.settle()
        assert source.link.cancelled == [stopped.id]
        await drive.pilot.press("e")
        result = json.dumps({"name": "x", "checked": True, "schema": ["n BIGINT"], "state": "none"})
        await end_job(drive, JobState.done, result=result)
        await drive.until(lambda: "its query is valid" in drive.hint())
        assert opened[1] == (path, 15)
        assert job_outcome(source.known[-1]) == ("query valid", "good")
        await drive.until(lambda: drive.graph.row and drive.graph.row.name == "new-derivative")


def plan(**fields: Any) -> ValidateResult:
    """Return the result of the validation of a query."""
    return ValidateResult(**{"name": "x", "checked": True, "schema": ["n BIGINT"], "state": "none", **fields})


class Definitions:
    """The controller of definitions, with a fake worker and editor.

    Args:
        source: the engine.
        answers: the answers of the dialogs, in turn.
        name: the selected dataset.
        plans: the outcomes of validations, in turn.
        updates: the outcomes of changes, in turn.
        edits: the texts that the editor writes, in turn; None: it changes nothing.
        adapted: the outcomes of adaptations of sources, in turn.
    """

    def __init__(
        self,
        source: Scenario,
        answers: Sequence[Any] = (),
        name: str = "air-by-day",
        *,
        plans: Sequence[Any] = (),
        updates: Sequence[Any] = (),
        edits: Sequence[str | None] = (),
        adapted: Sequence[InferSourceResult] = (),
    ) -> None:
        found = {Validate: deque(plans), Update: deque(updates), InferSource: deque(adapted)}
        self.fakes = Fakes(
            source,
            name,
            answers=answers,
            widgets={GraphView: SimpleNamespace(selected="")},
            results={kind: lambda request: found[type(request)].popleft() for kind in found},
        )
        self.host, self.jobs = self.fakes.host, self.fakes.jobs
        for text in edits:
            self.host.terminal.edits.append(self._edit(text))
        self.controller = DefinitionsController(self.fakes.context)
        self.drafts = source.folder / ".odf" / "cache" / "edit"

    @staticmethod
    def _edit(text: str | None) -> Callable[[Path], object]:
        return lambda path: None if text is None else path.write_text(text)

    @property
    def decisions(self) -> list[str]:
        """The texts of the decision dialogs, with their titles and answers."""
        return [
            "\n".join(
                [
                    dialog._title,
                    *("".join(text for text, _ in line) for line in dialog._lines),
                    " ".join(label for _, _, label in dialog._answers),
                ]
            )
            for dialog in self.host.dialogs
            if isinstance(dialog, DecisionDialog)
        ]


def changed(source: Scenario, name: str = "air-by-day") -> str:
    """Return the definition of a dataset with another query."""
    return source.definition(did(name)).replace("SELECT * FROM", "SELECT station FROM")


def keys_of(dialog: DecisionDialog) -> dict[str, Sequence[str]]:
    """Return the keys of each answer."""
    return {answer: keys for answer, keys, _ in dialog._answers}


async def test_a_query_that_cannot_be_validated_can_be_added(source: Scenario) -> None:
    shown = Definitions(
        source,
        ["derivative", "my.dataset", "unchecked"],
        plans=[OdfError("the engine flink does not answer")],
        edits=[MANIFEST],
    )
    shown.controller.add_dataset()
    await shown.host.stories()
    assert "the engine flink does not answer" in shown.decisions[0]
    assert keys_of(shown.host.dialogs[-1])["unchecked"] == ("a",)
    assert shown.host.last_notice.startswith("added new-derivative")
    assert "query is valid" not in shown.host.last_notice
    assert "new-derivative" in [row.name for row in shown.fakes.state.datasets]


async def test_an_invalid_manifest_cannot_be_added_unchecked(source: Scenario) -> None:
    shown = Definitions(source, ["root", "my.dataset", "discard"], edits=["mrge: x\n"])

    def refuse(path: Path) -> dict[str, str]:
        raise OdfError("unknown field 'mrge'")

    source.add_manifest = refuse  # type: ignore[method-assign]
    shown.controller.add_dataset()
    await shown.host.stories()
    assert "unchecked" not in keys_of(shown.host.dialogs[-1])
    assert shown.jobs.submitted == []


@pytest.mark.parametrize("state", ["flush", "rebuild"])
async def test_incompatible_query_offers_to_flush_or_rebuild_the_state(source: Scenario, state: str) -> None:
    done = json.dumps({"name": "air-by-day", "status": "updated", "state": state + "ed"})
    shown = Definitions(
        source, [state], plans=[plan(new=["peak"], state="lost")], updates=[None], edits=[changed(source)]
    )
    shown.controller.edit_definition()
    await shown.host.stories()
    validate, update = shown.jobs.requests
    assert validate == Validate(manifest=changed(source), dataset=DAYS)
    (text,) = shown.decisions
    assert "SELECT station FROM" in text
    assert "peak: new, null in existing rows" in text
    assert "incompatible with the state of the old query" in text
    assert text.endswith("flushes rebuilds edits again discards")
    keys = keys_of(shown.host.dialogs[0])
    assert (keys["flush"], keys["rebuild"]) == (("f",), ("r",))
    assert not any("enter" in key for key in keys.values())  # no answer is the default
    assert update == Update(dataset=DAYS, manifest=changed(source), state=state, accept_columns=True)  # type: ignore[arg-type]
    assert shown.host.last_notice == "appended 1 block to air-by-day"
    assert list(shown.drafts.iterdir()) == []
    job = source.job(JobState.done, "air-by-day", "update", result=done)
    assert job_outcome(job) == (f"updated, state {state}ed", "good")


async def test_costs_of_a_query_are_shown_before_it_is_changed(source: Scenario) -> None:
    costs = {"message": "each pull reads earlier rows again (now 2.0 GB)", "warning": "more than the limit"}
    edited = changed(source, "visits-by-day")  # it was never run
    shown = Definitions(source, ["append"], "visits-by-day", plans=[plan(**costs)], edits=[edited])
    shown.controller.edit_definition()
    await shown.host.stories()
    (text,) = shown.decisions
    assert costs["message"] in text and costs["warning"] in text
    result = json.dumps({"name": "x", "checked": True, **costs})
    job = source.job(JobState.done, "air-by-day", "validate", result=result)
    assert job_outcome(job) == ("more than the limit", "warn")


async def test_query_that_reads_earlier_rows_offers_only_to_replace_the_rows(source: Scenario) -> None:
    shown = Definitions(source, [None], plans=[plan(state="lost", reads=7)], edits=[changed(source)])
    shown.controller.edit_definition()
    await shown.host.stories()
    (text,) = shown.decisions
    assert "replace the rows by those of the new query" in text and "flush" not in text
    assert {"flush", "rebuild"} & keys_of(shown.host.dialogs[0]).keys() == {"rebuild"}


async def test_new_columns_of_an_input_are_added(source: Scenario) -> None:
    shown = Definitions(
        source, ["append"], plans=[plan(), plan(new=["no2", "o3"], state="kept")], updates=[None]
    )
    shown.controller.add_new_columns()
    await shown.host.stories()
    assert "returns no new columns" in shown.host.last_notice
    shown.controller.add_new_columns()
    await shown.host.stories()
    assert "no2, o3: new, null in existing rows" in shown.decisions[0]
    assert keys_of(shown.host.dialogs[0])["append"] == ("enter",)
    assert shown.host.last_notice == "air-by-day has new columns: no2, o3"
    definition = source.definition(DAYS)
    assert shown.jobs.requests[-1] == Update(dataset=DAYS, manifest=definition, accept_columns=True)


async def test_a_source_is_adapted_after_its_changes_are_shown(source: Scenario) -> None:
    name = "port-haven.air-readings"
    adapted = InferSourceResult(name, ["separator: ',' is now ';'"], definition=source.definition(did(name)))
    changes = [AppendedEvent("SetPollingSource", ["+   separator: ;"])]
    shown = Definitions(
        source,
        [None, "append"],
        name,
        plans=[plan(changes=changes), plan(changes=changes)],
        updates=[None],
        adapted=[InferSourceResult(name), adapted, adapted],
    )
    shown.controller.adapt_source()
    await shown.host.stories()
    assert shown.host.last_notice == f"the source of {name} is unchanged"
    shown.controller.adapt_source()
    await shown.host.stories()
    assert shown.host.last_notice == f"{name} is unchanged"
    shown.controller.adapt_source()
    await shown.host.stories()
    assert all("separator: ',' is now ';'" in text and "+   separator: ;" in text for text in shown.decisions)
    update = Update(dataset=did(name), manifest=adapted.definition)
    assert [request for request in shown.jobs.requests if isinstance(request, Update)] == [update]
    assert shown.host.last_notice == f"appended 1 block to {name}"


async def test_new_columns_are_not_added_without_a_confirmation(source: Scenario) -> None:
    shown = Definitions(source, [None], plans=[plan(new=["no2"], state="kept")])
    shown.controller.add_new_columns()
    await shown.host.stories()
    assert shown.host.last_notice == "air-by-day is unchanged"
    assert [type(request) for request in shown.jobs.requests] == [Validate]


@pytest.mark.app
async def test_new_columns_of_a_root_dataset_are_shown_and_added(source: Scenario) -> None:
    name = "port-haven.air-readings"
    definition = "# Mine.\n" + source.definition(did(name))
    file = source.folder / f"{name}.yaml"
    file.write_text(definition)
    grown = definition.replace("- remark STRING\n", "- remark STRING\n        - ozone DOUBLE\n")
    assert grown != definition
    changes = [{"title": "SetDataSchema", "lines": ["+ ozone DOUBLE"]}]
    async with driven(source, (80, 24)) as drive:
        drive.graph.selected = did(name)
        await drive.settle()
        await drive.pilot.press("C")
        await drive.until(lambda: f"Finding new columns of {name}" in drive.text())
        (validate,) = source.link.submitted
        assert validate == Validate(manifest=definition, dataset=did(name))
        result = {"name": name, "checked": True, "new": ["ozone"], "changes": changes}
        await end_job(drive, JobState.done, result=json.dumps(result))
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.settle()
        assert f"New columns in {name}" in drive.text() and "+ ozone DOUBLE" in drive.text()
        assert "⏎ adds them · esc cancels" in drive.text()
        await drive.pilot.press("enter")
        await drive.until(lambda: len(source.link.submitted) == 2)
        update = Update(dataset=did(name), manifest=definition, accept_columns=True)
        assert source.link.submitted[1] == update
        result = {"name": name, "status": "updated", "definition": grown.removeprefix("# Mine.\n")}
        await end_job(drive, JobState.done, result=json.dumps(result))
        await drive.until(lambda: f"Write the definition to {file.name}?" in drive.text())
        await drive.settle()
        await drive.pilot.press("enter")
        await drive.until(lambda: f"wrote {file.name}" in drive.hint())
        assert file.read_text() == grown


def test_columns_of_a_dataset_without_data_are_those_of_its_source(source: Scenario) -> None:
    guard = DEFAULT_KEYMAP.by_id[DEFAULT_KEYMAP.find("C", "datasets").id].guard  # type: ignore[union-attr]
    (root,) = [row for row in source.rows_ if row.name == "port-haven.air-readings"]
    assert guard is not None
    assert guard(Situation(dataset=root)) is None
    unpulled = replace(root, last_pulled=None)
    assert (
        guard(Situation(dataset=unpulled))
        == f"{root.name} has no data yet: its source determines the columns"
    )


async def test_a_change_that_fails_can_be_edited_again(source: Scenario) -> None:
    shown = Definitions(
        source,
        ["append", "edit", "append"],
        plans=[plan(state="kept"), plan()],
        updates=[OdfError("somebody else committed meanwhile"), None],
        edits=[changed(source), None],
    )
    shown.controller.edit_definition()
    await shown.host.stories()
    first, second, third = shown.decisions
    assert "continues from the state of the old query" in first
    assert "somebody else committed meanwhile" in second
    assert "to append" in third
    assert shown.host.last_notice == "appended 1 block to air-by-day"


async def test_the_draft_of_a_change_is_kept_while_its_job_runs(source: Scenario) -> None:
    shown = Definitions(source, ["append"], plans=[plan()], updates=[LeftRunning()], edits=[changed(source)])
    shown.controller.edit_definition()
    await shown.host.stories()
    assert "the manifest is in .odf/cache/edit/air-by-day.yaml" in shown.host.last_notice
    assert (shown.drafts / "air-by-day.yaml").read_text() == changed(source)
    assert shown.jobs.cancelled == []


async def test_a_validation_that_is_stopped_can_be_discarded(source: Scenario) -> None:
    stopped = Cancelled("Validating the query of air-by-day: cancelled")
    shown = Definitions(source, [None], plans=[stopped], edits=[changed(source)])
    shown.controller.edit_definition()
    await shown.host.stories()
    assert "cancelled" in shown.decisions[0]
    assert shown.host.last_notice == "discarded the changes to air-by-day"
    assert list(shown.drafts.iterdir()) == []
