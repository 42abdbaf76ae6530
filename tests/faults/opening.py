"""Opens a workspace with damaged files, also by commands: ``python opening.py SCRATCH [short]``.

Runs in a jail; prints what did not work, a line each, and exits with 1 then. ``short``: files are
damaged in two ways at once, and the workspace is not opened again after its damaged caches were replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import io
import os
import random
import resource
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from unittest import mock

import textual._wait

from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.identity.names import DatasetAlias
from odf_engine.jobs.pull import Pull
from odf_engine.metadata.model import DatasetKind
from odf_engine.worker.job_log import JobLog
from odf_engine.worker.protocol import JobState
from odf_engine.workspace.workspace import Workspace
from odf_tui import start
from odf_tui.app import Workstation
from odf_tui.main import main
from odf_tui.theming import terminal
from tests.tui.test_workspace_reads import LonelySource, add_rows
from tests.tui.waiting import screen_text, until

CACHES = (
    "cache/screen.msgpack", "cache/ui.json", "cache/sql-history.jsonl", "index.sqlite", "jobs.sqlite",
    "worker.pid", "remotes/{key}.json", "repositories.json", "trust/{key}.json",
)  # fmt: skip
"""Files in ``.odf`` that the workstation reads when it starts, and does not need."""
SETTINGS = ("config.yaml", "keys.yaml", "themes/tide.toml")
"""Files of the person: those in ``.odf``, and those of the configuration."""
MOST_MEMORY = 4 << 30
MOST_SECONDS = 90


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(5000))


def truncated(path: Path) -> None:
    data = path.read_bytes() if path.exists() else b'{"a": 1}'
    path.write_bytes(data[: len(data) // 2])


def not_utf8(path: Path) -> None:
    data = path.read_bytes() if path.exists() else b'{"pull": "boats"}'
    for text in (b"boats", b"datasets", b"Settings", b"background"):
        data = data.replace(text, b"\xff" + text[1:])
    path.write_bytes(data)


def nested_lists(path: Path) -> None:
    path.write_bytes(b"[" * 100_000)


def nested_objects(path: Path) -> None:
    path.write_bytes(b'{"a":' * 100_000)


def wrong_types(path: Path) -> None:
    path.write_text(
        '{"theme": 5, "pane": 1, "shares": {"left": 100000000000000000000}, "zoomed": "x", "recent": [1],'
        ' "graph": {"mode": "list", "sort": "x", "reverse": true}, "columns": {"a": {"order": 5}}}'
    )


def wrong_numbers(path: Path) -> None:
    path.write_text('{"theme": "none", "shares": {"left": -100000, "upper": 100000}, "wrap": false}')


def enormous(path: Path) -> None:
    path.touch()
    os.truncate(path, 100 << 30)


def folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    (path / "inside").mkdir(parents=True)


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link_to_itself(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


def endless(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def not_readable(path: Path) -> None:
    path.touch()
    path.chmod(0)


LINKS = (link_to_itself, endless)
DAMAGES = (
    garbage, truncated, not_utf8, nested_lists, nested_objects, wrong_types, wrong_numbers, enormous, folder,
    pipe, *LINKS, not_readable,
)  # fmt: skip


def open_workstation(home: Path) -> str:
    """Opens the workstation as ``odf`` does, goes through its panes, and leaves; what it showed."""
    shown = ""

    async def drive(station: Workstation) -> None:
        nonlocal shown
        async with station.run_test(size=(120, 36)) as pilot:
            for key in ("1", "2", "3", "4", "s", "escape"):
                await pilot.press(key)
            with contextlib.suppress(AssertionError):
                await until(pilot, lambda: "boats" in screen_text(station.screen))
            shown = screen_text(station.screen)
            station.action_leave()
            await pilot.pause()

    with (
        mock.patch.object(terminal, "require_capable_terminal", lambda: None),
        mock.patch.object(Workstation, "run", lambda station, **_: asyncio.run(drive(station))),
        mock.patch.object(OpenWorkspace, "connect", LonelySource.connect),
    ):
        start.run(home)
    gc.enable()
    return shown


def run_command(home: Path, *arguments: str) -> tuple[int, str]:
    """The exit code of a command, and what it said on standard error."""
    said = io.StringIO()
    with (
        contextlib.chdir(home),
        mock.patch.object(sys, "argv", ["odf", *arguments]),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(said),
    ):
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0), said.getvalue()


def make_workspace(home: Path) -> None:
    """A workspace that was open once, so that its caches are there."""
    workspace = Workspace.init(home)
    add_rows(workspace.create_dataset(DatasetAlias.parse("boats"), DatasetKind.Root), 2, 20)
    workspace.index.close()
    journal = JobLog(workspace.odf / "jobs.sqlite")
    job = journal.create(Pull("boats"), "boats")
    journal.transition(job.id, JobState.running)
    journal.transition(job.id, JobState.done)
    journal.close()
    (workspace.odf / "cache").mkdir(exist_ok=True)
    (workspace.odf / "cache" / "sql-history.jsonl").write_text('{"sql": "SELECT * FROM boats"}\n')
    open_workstation(home)
    assert (workspace.odf / "cache" / "screen.msgpack").is_file()


def try_damages(
    name: str, damages: Sequence[Callable[[Path], None]], pristine: Path, work: Path, openings: int
) -> list[str]:
    """What does not work with damaged caches, or with damaged settings: each file has one of the damages."""
    is_linked = any(damage in LINKS for damage in damages)
    shutil.rmtree(work, ignore_errors=True)
    home, own = work / "home", work / "config" / "odf"
    shutil.copytree(pristine, home)
    os.environ["XDG_CONFIG_HOME"] = str(own.parent)
    key = next((home / ".odf" / "keys").iterdir()).stem
    caches = [home / ".odf" / each.format(key=key) for each in CACHES]
    settings = [own / each for each in SETTINGS[1:]]
    if not is_linked:
        settings.append(home / ".odf" / SETTINGS[0])
    paths = caches if name == "caches" else settings
    for path, damage in zip(paths, cycle(damages)):
        path.parent.mkdir(parents=True, exist_ok=True)
        damage(path)
    problems = []
    if name == "caches" and is_linked:
        # A link may lead to a file outside the workspace: opening it is refused.
        code, said = run_command(home, "list")
        return [] if code == 1 and "is a symbolic link" in said else [f"odf list ends with {code}: {said}"]
    try:
        for opening in ("first", "second")[:openings]:
            if "boats" not in open_workstation(home):
                problems.append(f"the {opening} opening does not show the dataset")
        for command in ("list", "jobs", "show boats", "log boats", "config list", "fsck"):
            code, said = run_command(home, *command.split())
            needed = command in ("list", "show boats", "log boats")
            needed = needed or (command, name) == ("config list", "caches")
            if (code and needed) or (code and "error: " not in said and command != "fsck"):
                problems.append(f"odf {command} ends with {code}: {said}")
    except BaseException:
        problems.append(traceback.format_exc())
    return problems


def run(scratch: Path, form: str = "long") -> int:
    """Tries all damages."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    textual._wait.SLEEP_GRANULARITY, textual._wait.SLEEP_IDLE = 0.002, 0.0005
    os.environ.pop("ODF_WORKSPACE", None)
    make_workspace(scratch / "pristine")
    failed, size = False, 1 if form == "long" else 2
    for name in ("caches", "settings"):
        openings = 2 if name == "caches" and form == "long" else 1
        for at in range(0, len(DAMAGES), size):
            damages = DAMAGES[at : at + size]
            names = ", ".join(damage.__name__ for damage in damages)
            faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)  # it waits for something
            for problem in try_damages(name, damages, scratch / "pristine", scratch / "work", openings):
                failed = True
                print(f"{name}, {names}: {problem}", flush=True)
            faulthandler.cancel_dump_traceback_later()
    return int(failed)


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), *sys.argv[2:]))
