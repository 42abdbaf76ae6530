"""The worker as a service of the user: units of systemd and launchd."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from odf_engine.base.atomic_files import replace_text_file
from odf_engine.base.files import ensure_folder, remove_file

_ALREADY_RUNNING_SECONDS: Final = 30
"""Delay before the service tries again while another worker of the workspace runs."""


class WorkerService(NamedTuple):
    """A service.

    Attributes:
        path: file of the definition.
        text: the definition.
        enable_commands: shell commands that start it now, and with every session.
        disable_commands: shell commands that stop it after the file was removed.
    """

    path: Path
    text: str
    enable_commands: Sequence[str]
    disable_commands: Sequence[str]

    def write(self) -> None:
        """Write the definition.

        Raises:
            OdfError: the file cannot be written.
        """
        ensure_folder(self.path.parent)
        replace_text_file(self.path, self.text)

    def remove(self) -> bool:
        """Remove the definition; return whether there was one.

        Raises:
            OdfError: the file cannot be removed.
        """
        return remove_file(self.path)


def find_service(folder: Path) -> WorkerService:
    """Return the service of a workspace's worker, of the service manager of this system."""
    folder = folder.resolve()
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    name = f"odf-worker-{re.sub(r'[^A-Za-z0-9]+', '-', folder.name).strip('-') or 'workspace'}-{digest}"
    command = [sys.executable, "-P", "-m", "odf_engine.worker.process", str(folder), "--foreground"]
    return _launchd(name, command) if sys.platform == "darwin" else _systemd(name, folder, command)


def _systemd(name: str, folder: Path, command: Sequence[str]) -> WorkerService:
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = base / "systemd" / "user" / f"{name}.service"
    text = (
        "[Unit]\n"
        f"Description=odf worker of {_escape_specifiers(str(folder))}\n\n"
        "[Service]\n"
        f"ExecStart={' '.join(map(_quote_systemd, command))} --spark-later\n"
        "Restart=on-failure\n"
        f"RestartSec={_ALREADY_RUNNING_SECONDS}\n\n"
        "[Install]\n"
        "WantedBy=default.target\n"
    )
    reload = "systemctl --user daemon-reload"
    unit = shlex.quote(path.name)
    return WorkerService(
        path,
        text,
        [reload, f"systemctl --user enable --now {unit}", "loginctl enable-linger"],
        [f"systemctl --user stop {unit}", reload],
    )


def _escape_specifiers(text: str) -> str:
    """Escape ``%``, which introduces a specifier in units, and line ends."""
    return text.replace("%", "%%").replace("\n", " ")


def _quote_systemd(argument: str) -> str:
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$").replace("\n", "\\n")
    return f'"{_escape_specifiers(escaped)}"'


def _launchd(name: str, command: Sequence[str]) -> WorkerService:
    import plistlib  # slow to import

    path = Path.home() / "Library" / "LaunchAgents" / f"org.opendatafabric.{name}.plist"
    document = {
        "Label": path.stem,
        "ProgramArguments": [*command, "--spark-later"],
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": _ALREADY_RUNNING_SECONDS,
    }
    target = shlex.quote(str(path))
    return WorkerService(
        path,
        plistlib.dumps(document).decode(),
        [f"launchctl load -w {target}"],
        [f"launchctl remove {shlex.quote(path.stem)}"],
    )
