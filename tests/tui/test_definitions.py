"""Definitions in the user's editor, which is a script here: new datasets, invalid manifests, changes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from odf_engine.api import TextPosition
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.metadata.model import SetTransform, Sql
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.workspace import Workspace
from odf_tui.app import Workstation
from odf_tui.features.definitions import manifest_draft
from odf_tui.features.definitions.controller import DefinitionsController
from odf_tui.features.definitions.manifest_dialogs import UnresolvedManifest, excerpt_lines
from odf_tui.panes.datasets.view import GraphView
from odf_tui.theming import terminal
from odf_tui.theming.terminal import ExternalEditor
from odf_tui.widgets.dialogs import DecisionDialog, PromptDialog
from tests.tui.conftest import Driven
from tests.tui.context import Fakes, FakeTerminal
from tests.tui.scripted_worker import Scenario
from tests.tui.test_workspace_reads import MANIFEST
from tests.waiting import read_until

SCRIPT = """\
#!/bin/sh
# Notes how it was called, and does what the next line of 'steps' says to the file.
cd "$(dirname "$0")" || exit 9
for file; do :; done
echo "$*" >>calls
step=$(head -n 1 steps)
sed -i 1d steps
eval "$step"
"""


class Typist:
    """An editor that runs one step each time it is opened."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        (folder / "vi").write_text(SCRIPT)
        (folder / "vi").chmod(0o755)
        self.next()

    def next(self, *steps: str) -> None:
        """Set the next steps: shell commands in which ``$file`` is the file."""
        (self.folder / "steps").write_text("".join(f"{step}\n" for step in steps))

    @property
    def calls(self) -> list[str]:
        """The arguments of each run."""
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def typist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Typist:
    """The user's editor."""
    made = Typist(tmp_path / "programs")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", shlex.quote(str(made.folder / "vi")))
    return made


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """An empty workspace."""
    return Workspace.init(tmp_path / "harbour")


@asynccontextmanager
async def opened(workspace: Workspace, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Driven]:
    """Open the workstation on a real workspace."""
    app = Workstation(Scenario(workspace))
    async with app.run_test(size=size) as pilot:
        drive = Driven(app, pilot, None)  # type: ignore[arg-type]
        await drive.settle()
        yield drive


def manifests(workspace: Workspace) -> list[str]:
    """Return the names of the manifest files in the workspace."""
    return sorted(path.name for path in workspace.folder.glob("*.yaml"))


async def named(drive: Driven, template: str) -> None:
    """Add a dataset from a template, with the proposed name."""
    await drive.press("n", template)
    await drive.until(lambda: isinstance(drive.app.screen, PromptDialog))
    await drive.settle()
    await drive.pilot.press("enter")


def hinted(drive: Driven, text: str) -> Callable[[], bool]:
    """Return a condition: the line of hints has a text."""
    return lambda: text in drive.hint()


@pytest.mark.app
async def test_new_dataset_is_created_from_a_template_and_edited(
    workspace: Workspace, typist: Typist
) -> None:
    async with opened(workspace) as drive:
        # Two errors. The second run of the editor starts at the line of the first error.
        typist.next(
            'sed -i "s/keywords:/kywords:/; s/header: true/header: perhaps/" "$file"',
            'sed -i "s/kywords:/keywords:/; s/perhaps/true/" "$file"',
        )
        await drive.press("a")
        assert "a query over other datasets" in drive.text()
        await drive.press("r")
        await drive.until(lambda: "my.dataset" in drive.text())
        await drive.press("=no name", "enter")
        assert "invalid dataset alias 'no name'" in drive.text()
        await drive.press("=boats")
        await drive.pilot.press("enter")
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.settle()
        text = drive.text()
        assert "expected true or false" in text
        assert "unknown field 'kywords' (did you mean 'keywords'?)" in text
        assert "e edits again · d discards · esc saves it for later" in text
        lines = text.splitlines()
        at = next(at for at, line in enumerate(lines) if " header:" in line)
        assert lines[at + 1].index("^") == lines[at].index("perhaps")
        at = next(at for at, line in enumerate(lines) if " kywords:" in line)
        assert lines[at + 1].index("^") == lines[at].index("kywords")
        await drive.pilot.press("e")
        await drive.until(lambda: drive.graph.row and drive.graph.row.name == "boats")
        assert drive.app.screen is drive.bench
        assert "added boats (boats.yaml): p pulls it" in drive.hint()
        draft = workspace.folder / "new-root.yaml"
        first = re.search(r"in new-root.yaml:(\d+)", text)
        assert first is not None
        assert typist.calls == [f"+4 {draft}", f"+{first[1]} {draft}"]
        assert manifests(workspace) == ["boats.yaml"]

        # Its definition is edited: the plan shows what is appended.
        typist.next('sed -i "s/description: .*/description: Vessels/" "$file"')
        await drive.pilot.press("e")
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.settle()
        assert "boats: 1 block to append" in drive.text()
        assert "description: Vessels" in drive.text()
        assert "⏎ appends · e edits again · esc discards" in drive.text()
        await drive.pilot.press("enter")
        await drive.until(lambda: "Write the definition to boats.yaml?" in drive.text())
        await drive.settle()
        assert "⏎ writes it · esc leaves the file unchanged" in drive.text()
        await drive.pilot.press("enter")
        await drive.until(hinted(drive, "wrote boats.yaml"))
        await drive.settle()
        assert "description: Vessels" in (workspace.folder / "boats.yaml").read_text()
        info = workspace.resolve("boats").dataset.state().info
        assert info is not None and info.description == "Vessels"

        # A used name is an error without a position. Escape keeps the file.
        typist.next('sed -i "s/my.dataset/boats/" "$file"')
        await named(drive, "p")
        await drive.until(lambda: isinstance(drive.app.screen, DecisionDialog))
        await drive.settle()
        assert "dataset boats already exists" in drive.text()
        await drive.press("escape")
        assert "nothing was added; the manifest is saved in new-push.yaml" in drive.hint()
        # The file can be added later.
        (workspace.folder / "new-push.yaml").write_text(
            (workspace.folder / "new-push.yaml").read_text().replace("boats", "gauges")
        )
        await drive.press("a", "m", "=new-push.yaml", "enter")
        await drive.until(lambda: drive.graph.row and drive.graph.row.name == "gauges")


class EditorTerminal(FakeTerminal):
    """An application that opens the user's editor."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    async def edit(self, path: Path, line: int | None = None) -> None:
        """Run the editor until it ends."""
        await asyncio.to_thread(terminal.run_editor, terminal.find_editor(), path, line, self._folder)


class Writing:
    """Definitions that are written without a screen.

    Attributes:
        texts: title and lines of each DecisionDialog.
    """

    def __init__(self, workspace: Workspace, selected: str = "") -> None:
        source: Any = OpenWorkspace(workspace)
        self.graph = SimpleNamespace(selected="")
        self.fakes = Fakes(source, selected, widgets={GraphView: self.graph})
        self.host = self.fakes.host
        self.host.terminal = EditorTerminal(workspace.folder)
        self.controller = DefinitionsController(self.fakes.context)
        self.texts: list[str] = []

    async def add(self, template: str, *decisions: str, name: str = "my.dataset") -> str:
        """Add a dataset from a template. Returns the notice."""
        self.host.answers.extend([template, name, *map(self._decide, decisions)])
        self.controller.add_dataset()
        return await self._end()

    async def edit(self, *decisions: str) -> str:
        """Edit the definition of the selected dataset. Returns the notice."""
        self.host.answers.extend(map(self._decide, decisions))
        self.controller.edit_definition()
        return await self._end()

    async def _end(self) -> str:
        await self.host.stories()
        assert not self.host.answers
        return self.host.last_notice

    def _decide(self, answer: str) -> Callable[[DecisionDialog], str]:
        def decide(dialog: DecisionDialog) -> str:
            assert answer in [each for each, _, _ in dialog._answers]
            lines = ["".join(text for text, _ in line) for line in dialog._lines]
            self.texts.append("\n".join([dialog._title, *lines]))
            return answer

        return decide


async def test_a_manifest_that_is_invalid_is_kept_or_discarded(workspace: Workspace, typist: Typist) -> None:
    writing = Writing(workspace)
    typist.next(
        'sed -i "s/keywords:/kywords:/" "$file"',
        'sed -i "s/kywords:/keywords:/" "$file"',
        'echo "# mine" >>"$file"',
        'echo "nonsense" >"$file"',
    )
    assert await writing.add("push", "edit", name="boats") == (
        "added boats (boats.yaml): p shows how to push into it"
    )
    assert "new-push.yaml is invalid" in writing.texts[0]
    assert "unknown field 'kywords'" in writing.texts[0]
    assert writing.graph.selected == str(workspace.resolve("boats").id)
    assert manifests(workspace) == ["boats.yaml"]
    # The second opening starts at the line of the error.
    lines = [call.split()[0] for call in typist.calls]
    assert lines[0] != lines[1] and lines[1][0] == "+"
    # The same name again is an error without a line of its own. The text stays.
    assert await writing.add("push", "leave", name="boats") == (
        "nothing was added; the manifest is saved in new-push.yaml"
    )
    assert "dataset boats already exists" in writing.texts[1]
    # It is never overwritten, and the next one can be discarded.
    assert await writing.add("push", "discard") == "discarded new-push-2.yaml"
    assert manifests(workspace) == ["boats.yaml", "new-push.yaml"]


async def test_failed_editor_is_reported_and_changes_are_kept(
    workspace: Workspace, typist: Typist, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = Writing(workspace)
    typist.next("true", 'false "$file"', 'echo x >>"$file"; kill -TERM $$', "true")
    assert "the manifest is unchanged: nothing was added" in await writing.add("root")
    assert "the editor vi exited with code 1" in await writing.add("derivative")
    assert manifests(workspace) == []
    assert "terminated by signal 15 – your changes are in new-derivative.yaml" in await writing.add(
        "derivative"
    )
    assert manifests(workspace) == ["new-derivative.yaml"]
    monkeypatch.setenv("VISUAL", "no-such-editor --wait")
    problem = "no-such-editor (from $VISUAL) cannot be started: No such file or directory"
    assert problem in await writing.add("root")
    monkeypatch.setenv("VISUAL", "vi 'half")
    assert "invalid command in $VISUAL" in await writing.add("root")
    assert manifests(workspace) == ["new-derivative.yaml"]


async def test_only_what_differs_in_a_definition_is_appended(workspace: Workspace, typist: Typist) -> None:
    (workspace.folder / "boats.yaml").write_text(MANIFEST)
    OpenWorkspace(workspace).add(workspace.folder / "boats.yaml")
    entry = workspace.resolve("boats")
    head = entry.dataset.head()
    writing = Writing(workspace, "boats")
    # What breaks a rule is reported with its line; after discard, nothing is left.
    typist.next('sed -i "s/name STRING/name STRIN/" "$file"', "true", 'sed -i "s/boats/ships/" "$file"')
    assert await writing.edit("discard") == "discarded the changes to boats"
    assert "boats.yaml is invalid" in writing.texts[0]
    assert "name STRIN" in writing.texts[0]
    assert await writing.edit() == "the definition of boats is unchanged"
    await writing.edit("discard")
    assert "the manifest must define boats, and no other dataset" in writing.texts[1]
    assert entry.dataset.head() == head
    # A plan shows what is added and removed; it can be edited again before it is appended.
    typist.next('sed -i "s/Boats in/Ships in/" "$file"', 'sed -i "s/Ships in/Vessels in/" "$file"')
    assert await writing.edit("edit", "append", "leave") == "appended 1 block to boats"
    assert "Write the definition to boats.yaml?" in writing.texts[4]
    assert "+  description: Vessels" in re.sub(r"\+ +d", "+  d", writing.texts[4])
    assert "boats: 1 block to append" in writing.texts[2]
    assert "SetInfo" in writing.texts[3]
    assert "-description: Boats in the harbour" in writing.texts[3].replace("- d", "-d")
    assert "+description: Vessels in the harbour" in writing.texts[3].replace("+ d", "+d")
    info = entry.dataset.state().info
    assert info is not None
    assert info.description == "Vessels in the harbour"
    # The file differs now: the card shows it, and the next edit offers to write it again.
    opened = OpenWorkspace(workspace)
    assert ("manifest", "boats.yaml differs: SetInfo") in opened.detail(str(entry.id)).facts
    assert "- description: Vessels" in str(opened.detail(str(entry.id)).sections[0])
    typist.next("true")
    assert await writing.edit("write") == "wrote boats.yaml"
    assert "description: Vessels in the harbour" in (workspace.folder / "boats.yaml").read_text()
    assert "manifest" not in dict(opened.detail(str(entry.id)).facts)
    assert list((workspace.odf / "cache" / "edit").iterdir()) == []
    assert all(call.endswith("/edit/boats.yaml") for call in typist.calls)


PROGRAM = """\
import sys
from pathlib import Path
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_tui.panes.datasets.view import GraphView
from odf_tui.theming import terminal
terminal.configure_environment()
from odf_tui.app import Workstation
from odf_engine.workspace.workspace import Workspace
from tests.tui.scripted_worker import Scenario
Workstation(Scenario(Workspace(Path(sys.argv[1])))).run()
"""


class Terminal:
    """A program in a terminal of 80 × 24."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.shown = b""
        self.end, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder)],
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "TERM": "xterm-256color", **environment},
        )
        os.close(end)

    def until(self, text: str) -> bytes:
        """Wait until a text is shown; return what was shown before it since the last call."""
        shown = read_until(self.end, lambda shown: text.encode() in shown and shown, self.shown)
        before, _, self.shown = shown.partition(text.encode())
        return before

    def type(self, text: str) -> None:
        """Type a text."""
        os.write(self.end, text.encode())


SOURCE = """\
$schema: https://opendatafabric.org/schemas/source/v1alpha1/Source
headers: {name: boats}
spec:
  ingress: {kind: FilesGlob, path: in/*.csv, order: ByName}
  read: {kind: Csv, header: true, schema: {fields: [{name: x, type: int64}]}}
"""


async def test_source_outside_the_chain_is_edited_without_a_block(
    workspace: Workspace, typist: Typist
) -> None:
    OpenWorkspace(workspace).add(SOURCE)
    entry = workspace.resolve("boats")
    head, writing = entry.dataset.head(), Writing(workspace, "boats")
    typist.next('sed -i "s,in/,out/," "$file"')
    assert await writing.edit("append") == "changed the source of boats"
    assert "boats: change of its source" in writing.texts[0]
    assert entry.dataset.head() == head
    assert "fetch" in str(OpenWorkspace(workspace).detail(str(entry.id)).sections)
    assert "outside the chain: not published" in str(OpenWorkspace(workspace).detail(str(entry.id)).sections)


@pytest.mark.complete
def test_the_editor_gets_the_complete_terminal_and_returns_it(source: Scenario, typist: Typist) -> None:
    typist.next("stty -a | grep -q ' icanon' && echo COOKED; read -r word; echo GOT $word; kill -INT 0; true")
    terminal = Terminal(source.folder, {"EDITOR": os.environ["EDITOR"], "VISUAL": ""})
    try:
        terminal.until("1 Datasets")
        terminal.type("a")
        terminal.until("a query over other datasets")
        terminal.type("r")
        terminal.until("Dataset name")
        terminal.type("\r")
        left = terminal.until("COOKED")
        assert b"\x1b[?1049l" in left  # the other screen
        terminal.type("q\n")
        unseen = terminal.until("GOT q")  # the key went to the editor
        assert b"\x1b[" not in unseen  # and nothing is painted meanwhile
        back = terminal.until("1 Datasets")
        assert b"\x1b[?1049h" in back
        terminal.until("was terminated by signal 2")  # ^C ended the editor, and nothing else
        terminal.type("q")
        assert terminal.program.wait(30) == 0
    finally:
        terminal.program.kill()
        terminal.program.wait()
        os.close(terminal.end)


def test_the_editor_is_found_and_opened_at_a_line(tmp_path: Path) -> None:
    assert terminal.find_editor({"VISUAL": "code --wait", "EDITOR": "vi"}) == ExternalEditor(
        ("code", "--wait"), "$VISUAL"
    )
    assert terminal.find_editor({"VISUAL": " ", "EDITOR": "'/a b/vi' -n"}) == ExternalEditor(
        ("/a b/vi", "-n"), "$EDITOR"
    )
    (tmp_path / "vi").write_text("")
    (tmp_path / "vi").chmod(0o755)
    assert terminal.find_editor({"PATH": str(tmp_path)}) == ExternalEditor(("vi",))
    with pytest.raises(NotFound, match="no editor found"):
        terminal.find_editor({"PATH": str(tmp_path / "nowhere")})
    with pytest.raises(UsageError):
        terminal.find_editor({"EDITOR": '"'})
    path = Path("/w/m.yaml")
    for command, opening in [
        ("nano", "nano +7 /w/m.yaml"),
        ("/usr/bin/vim -n", "/usr/bin/vim -n +7 /w/m.yaml"),
        ("code", "code --wait --goto /w/m.yaml:7"),
        ("code -w", "code -w --goto /w/m.yaml:7"),
        ("subl", "subl --wait /w/m.yaml:7"),
        ("hx", "hx /w/m.yaml:7"),
        ("my-editor", "my-editor /w/m.yaml"),
    ]:
        assert " ".join(ExternalEditor(tuple(command.split())).build_command(path, 7)) == opening
    assert ExternalEditor(("vi",)).build_command(path) == ["vi", "/w/m.yaml"]


def test_a_derivative_reads_the_selected_dataset(tmp_path: Path) -> None:
    columns = ["event_time", "id", "no. of boats", *(f"a_long_name_of_a_column_{n}" for n in range(5))]
    source = manifest_draft.SourceTable("port-haven.air-readings", columns)
    draft = manifest_draft.create(tmp_path, "derivative", "mine", source)
    (snapshot,) = read_manifests(draft.text, "draft")
    (event,) = [each for each in snapshot.metadata if isinstance(each, SetTransform)]
    assert [(each.dataset_ref, each.alias) for each in event.inputs] == [(source.name, "air_readings")]
    assert isinstance(event.transform, Sql)
    first, *lines, last = (event.transform.query or "").splitlines()
    assert first == "SELECT event_time, id, `no. of boats`, a_long_name_of_a_column_0,"
    assert (last, len(lines)) == ("FROM air_readings", 2)
    assert "FROM input" not in draft.text
    # Without columns, the query of the template reads the dataset.
    text = manifest_draft.create(tmp_path, "derivative", "x", manifest_draft.SourceTable("a/2024")).text
    assert "datasetRef: a/2024\n" in text
    assert "FROM input\n" in text


def test_drafts_never_overwrite_files(tmp_path: Path) -> None:
    first = manifest_draft.create(tmp_path, "root", manifest_draft.find_unused_name(["My.Dataset"]))
    assert "name: my.dataset-2" in first.text
    assert not first.is_changed()
    second = manifest_draft.create(tmp_path, "root", "x")
    assert (first.path.name, second.path.name) == ("new-root.yaml", "new-root-2.yaml")
    second.path.write_text("mine")
    assert second.is_changed()
    (tmp_path / "boats.yaml").write_text("older")
    assert manifest_draft.rename_after_dataset(second.path, "boats").name == "boats-2.yaml"
    assert manifest_draft.rename_after_dataset(first.path, "org/../x").name == "org-..-x.yaml"
    assert {path.name for path in tmp_path.iterdir()} == {"boats.yaml", "boats-2.yaml", "org-..-x.yaml"}
    (tmp_path / "manifests").mkdir()
    assert manifest_draft.create(tmp_path, "push", "x").path.parent.name == "manifests"
    with pytest.raises(OdfError, match="cannot write a manifest"):
        manifest_draft.create(tmp_path / "nowhere", "push", "x")


def test_long_lines_are_shown_around_their_column() -> None:
    lines = excerpt_lines("a\n" + "x" * 200 + "HERE" + "y" * 200 + "\nb", TextPosition(2, 201))
    shown, mark = ("".join(text for text, _ in line) for line in lines[1:3])
    assert mark.index("^") == shown.index("HERE")
    assert len(shown) <= 70


FOREIGN = """\
kind: DatasetSnapshot
version: 1
content:
  name: scores
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: main
      read: {kind: NdJson, schema: ["event_time TIMESTAMP", "score BIGINT"]}
      preprocess: {kind: Sql, engine: risingwave, query: 'select event_time, "score" from input'}
      merge: {kind: Append}
"""


async def test_a_query_for_another_engine_is_translated(
    workspace: Workspace, typist: Typist, tmp_path: Path
) -> None:
    (tmp_path / "foreign.yaml").write_text(FOREIGN)
    writing = Writing(workspace)
    typist.next(f'cp "{tmp_path}/foreign.yaml" "$file"')
    notice = await writing.add("push", "translate", "write")
    assert notice.startswith("added scores (scores.yaml)")
    assert "the query is for the engine 'risingwave', which is not configured" in writing.texts[0]
    assert "scores: from risingwave to Spark" in writing.texts[1] and "+  `score`" in writing.texts[1]
    text = (workspace.folder / "scores.yaml").read_text()
    assert "# Translated from risingwave" in text and "engine: spark" in text
    # Without a translation, the problem is shown at its position.
    (tmp_path / "foreign.yaml").write_text(
        FOREIGN.replace("scores", "more").replace('"score"', "mystery(score) as score")
    )
    typist.next(f'cp "{tmp_path}/foreign.yaml" "$file"')
    assert "discarded" in await writing.add("push", "translate", "discard")
    assert "the function mystery has no known equivalent" in writing.texts[-1]
    assert [str(entry.alias) for entry in workspace.datasets()] == ["scores"]

    # The dialog of a file offers the same.
    path = workspace.folder / "third.yaml"
    path.write_text(FOREIGN.replace("scores", "third"))
    error = NotFound("no engine")
    writing.host.answers.extend(
        [UnresolvedManifest(path, error), writing._decide("translate"), writing._decide("write")]
    )
    writing.controller.add_from_manifest()
    assert (await writing._end()).startswith("added third")
    assert "engine: spark" in path.read_text()
