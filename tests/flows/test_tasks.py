"""Tasks of flows without a worker: the requests of their jobs, and what they do themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from odf_engine.automation.flows.definition import Flow
from odf_engine.automation.flows.tasks import AnyTask, JobTask, Requests
from odf_engine.automation.flows.trial import FlowTrial, try_flow
from odf_engine.chain.dataset import Dataset
from odf_engine.chain.references import create_branch
from odf_engine.errors import OdfError
from odf_engine.jobs import JOB_KINDS
from odf_engine.metadata.model import Append, Csv, SetPollingSource, Url
from odf_engine.worker.protocol import Request
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.documents.document import read_document
from odf_engine.workspace.remotes import Remotes
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import add_slices, commit, make_derivative, make_root


class Context:
    """Records the jobs. The source of ``ingested`` was read by an earlier attempt."""

    flow_name = "f"
    is_trial = False
    on_warning: Literal["continue", "fail"] = "fail"

    def __init__(
        self, folder: Path, entries: Sequence[DatasetEntry], ingested: Dataset | None = None
    ) -> None:
        self.folder, self.entries, self._ingested = folder, entries, ingested
        self.requests: list[Request] = []
        self.notices = 0
        self.outputs: list[tuple[Sequence[str], str]] = []

    def is_ingested(self, dataset: Dataset) -> bool:
        return self._ingested is not None and dataset.folder == self._ingested.folder

    async def run_jobs(self, kind: str, requests: Requests) -> None:
        for entry, fields in requests:
            request = JOB_KINDS[kind](dataset=str(entry.id), **fields)  # type: ignore[call-arg]
            # As the worker's client: a field of another type is an error of the job.
            self.requests.append(msgspec.json.decode(msgspec.json.encode(request), type=Request))

    async def notify_datasets_changed(self) -> None:
        self.notices += 1

    def add_output(self, command: Sequence[str], output: str) -> None:
        self.outputs.append((command, output))


def read_task(text: str) -> AnyTask:
    document = f"headers: {{name: f}}\nspec: {{target: my.%, tasks: [{{{text}}}]}}\n"
    return read_document(document.encode(), "f.yaml", Flow).spec.tasks[0]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace.init(tmp_path)
    Remotes(workspace.odf).add("copy", (tmp_path / "copy").as_uri())
    return workspace


@pytest.fixture
def entries(workspace: Workspace) -> list[DatasetEntry]:
    """A root, and a derivative dataset of it."""
    root = make_root(workspace, "my.root", slices=1)
    return [root, make_derivative(workspace, root, "my.derived")]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (
            "kind: Pull, force: true, resetOnDivergence: true, branch: next",
            {"force": True, "reset_on_divergence": True, "branch": "next", "on_warning": "fail"},
        ),
        ("kind: Verify, integrity: true, branch: next", {"integrity": True, "branch": "next"}),
        ("kind: Verify, recompute: true", {"recompute": True}),
        ("kind: Check, branch: next", {"branch": "next"}),
        ("kind: Push, to: copy, force: true", {"force": True}),
        ("kind: Export, path: 'out/{name}.json', format: json", {"format": "json", "replace": True}),
        ("kind: Compact", {}),
    ],
)
async def test_a_task_submits_jobs_with_its_fields(
    workspace: Workspace, entries: list[DatasetEntry], text: str, fields: dict[str, Any]
) -> None:
    task = read_task(text)
    assert isinstance(task, JobTask)
    context = Context(workspace.folder, entries)
    await task.run(context)
    expected = entries[:1] if "Compact" in text else entries
    assert [request.dataset_id for request in context.requests] == [str(entry.id) for entry in expected]
    for request in context.requests:
        assert type(request) is JOB_KINDS[task.job_kind()]
        assert fields.items() <= msgspec.structs.asdict(request).items()


async def test_a_pull_waits_for_inputs_and_reads_no_source_twice(
    workspace: Workspace, entries: list[DatasetEntry]
) -> None:
    context = Context(workspace.folder, entries, ingested=entries[0].dataset)
    await read_task("kind: Pull, fetchUncacheable: true").run(context)
    first, second = map(msgspec.structs.asdict, context.requests)
    assert (first["after"], first["fetch_uncacheable"]) == ([], False)
    assert (second["after"], second["fetch_uncacheable"]) == ([str(entries[0].id)], True)


async def test_a_push_names_the_datasets_of_a_repository(
    workspace: Workspace, entries: list[DatasetEntry], tmp_path: Path
) -> None:
    context = Context(workspace.folder, entries)
    await read_task("kind: Push, to: copy").run(context)
    names = [msgspec.structs.asdict(request)["url"].rstrip("/") for request in context.requests]
    assert names == [f"{(tmp_path / 'copy').as_uri()}/{entry.alias}" for entry in entries]


async def test_a_promotion_that_fails_for_one_dataset_moves_the_others(
    workspace: Workspace, entries: list[DatasetEntry]
) -> None:
    root, derived = entries
    head = root.dataset.state().head
    create_branch(root.dataset, "next", head)
    branch = root.on_branch("next")
    add_slices(branch)
    context = Context(workspace.folder, [derived, root])
    with pytest.raises(OdfError, match=r"promote my.derived: .*'next' not found"):
        await read_task("kind: Promote, branch: next").run(context)
    assert root.dataset.head() == branch.dataset.head() != head
    assert context.notices == 1


async def test_a_command_runs_once_or_for_each_dataset(
    workspace: Workspace, entries: list[DatasetEntry]
) -> None:
    context = Context(workspace.folder, entries)
    for argument in ("once", "{name}"):
        script = 'echo "$ODF_FLOW $0" >> ran'
        await read_task(f"kind: Command, run: [sh, -c, '{script}', '{argument}']").run(context)
    assert (workspace.folder / "ran").read_text().splitlines() == ["f once", "f my.root", "f my.derived"]
    output = "seq 1 20000; echo the reason; exit 3"
    with pytest.raises(OdfError, match=r"(?s)^sh ended with exit code 3: .*\n20000\nthe reason$"):
        await read_task(f"kind: Command, run: [sh, -c, '{output}']").run(context)
    printed = r"printf '\\033[1mone\\033[0m\\n 10%%\\r 90%%\\r\\n\\007\\tdone\\n' >&2"
    await read_task(f'kind: Command, run: [sh, -c, "{printed}"]').run(context)
    (_, long), (command, short) = context.outputs[-2:]
    assert 65_000 < len(long) < 66_000 and long.endswith("19999\n20000\nthe reason")
    assert long.startswith("1\n2\n3\n") and "\n… the middle of the output is left out …\n" in long
    assert command[0] == "sh" and short == "one\n 90%\n\tdone"
    with pytest.raises(OdfError, match="no-such-program: No such file"):
        await read_task("kind: Command, run: [no-such-program]").run(context)


def try_text(workspace: Workspace, tasks: str, triggers: str = "[]") -> FlowTrial:
    text = f"headers: {{name: f}}\nspec: {{target: my.%, triggers: {triggers}, tasks: [{tasks}]}}\n"
    return try_flow(workspace, read_document(text.encode(), "f.yaml", Flow), 1_700_000_000.0)


def test_a_trial_lists_commands_and_times_and_changes_nothing(
    workspace: Workspace, entries: list[DatasetEntry]
) -> None:
    root, _ = entries
    commit(root, [SetPollingSource(fetch=Url("file:x.csv"), read=Csv(), merge=Append())])
    tasks = (
        "{kind: Pull, branch: next}, {kind: Check, branch: next}, {kind: Promote, branch: next},"
        "{kind: Export, path: 'out/{name}.csv'}, {kind: Compact}, {kind: Command, run: [sh, -c, 'rm {name}']}"
    )
    trial = try_text(
        workspace, tasks, "[{kind: Schedule, cron: '0 3 * * *'}, {kind: Inputs}, {kind: Remote, every: 1h}]"
    )
    assert not trial.problems
    assert [list(task.commands) for task in trial.tasks[:3]] == [
        [f"odf pull {entry.alias} --branch next" for entry in entries],
        [f"odf check run {entry.alias} --branch next" for entry in entries],
        [f"odf branch {entry.alias} --promote next" for entry in entries],
    ]
    assert [list(task.commands) for task in trial.tasks[4:]] == [
        ["odf compact my.root"], ["sh -c 'rm my.root'", "sh -c 'rm my.derived'"],
    ]  # fmt: skip
    # 2023-11-14 22:13:20 UTC; then 03:00 on three days.
    assert trial.times == [1_700_017_200.0 + day * 86_400 for day in range(3)]
    assert trial.warnings == [
        "trigger Inputs never starts a run: the targets have no inputs",
        "trigger Remote never starts a run: no target is pulled from a remote",
    ]
    assert not root.dataset.branch_names() and not (workspace.folder / "out").exists()
    assert try_text(workspace, "{kind: Compact}", "[{kind: Interval, every: 1h}]").times == [
        1_700_000_000.0 + hour * 3600 for hour in range(3)
    ]


@pytest.mark.parametrize(
    ("tasks", "problem", "hint"),
    [
        ("{kind: Check, branch: next}", "branch 'next' not found", "odf branch"),
        ("{kind: Promote, branch: next}", "branch 'next' not found", "odf branch"),
        ("{kind: Push, to: nowhere}", "repository 'nowhere' not found", "copy"),
        ("{kind: Export, path: x.csv}", "several datasets require {name}", None),
        ("{kind: Command, run: [no-such-program]}", "program 'no-such-program' not found", "sh, -c"),
        ("{kind: Command, run: [scripts/x.sh]}", "program 'scripts/x.sh' not found", "sh, -c"),
        ("{kind: Pull}", "environment variable TOKEN", "allowedEnv.my.root TOKEN"),
    ],
)  # fmt: skip
def test_trial_reports_missing_prerequisites(
    workspace: Workspace, entries: list[DatasetEntry], tasks: str, problem: str, hint: str | None
) -> None:
    source = Url("https://x.example/${{ env.TOKEN }}")
    commit(entries[0], [SetPollingSource(fetch=source, read=Csv(), merge=Append())])
    trial = try_text(workspace, f"{{kind: Compact}}, {tasks}")
    (found,) = trial.problems
    assert trial.tasks[1].problem is found and problem in found.message
    assert (hint or "") in (found.hint or "")
