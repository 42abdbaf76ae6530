"""The queries that were asked in a workspace, so that they can be asked again."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

MOST: Final = 500
_FILE: Final = Path("cache", "sql-history.jsonl")


def asked(odf: Path) -> list[str]:
    """The newest queries, the newest last; lines that cannot be read are left out.

    Args:
        odf: the workspace's ``.odf`` folder.
    """
    try:
        lines = (odf / _FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    found: list[str] = []
    for line in lines[-MOST:]:
        with suppress(ValueError, RecursionError):
            entry = json.loads(line)
            if isinstance(entry, dict) and isinstance(entry.get("sql"), str):
                found.append(entry["sql"])
    return found


def note(odf: Path, sql: str) -> None:
    """Remembers a query; one that was asked before is the newest now.

    Raises:
        OSError: the workspace cannot be written to.
    """
    sql = sql.strip()
    kept = [*(each for each in asked(odf) if each != sql), sql][-MOST:]
    path = odf / _FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps({"sql": each}) + "\n" for each in kept), encoding="utf-8")
    part.replace(path)
