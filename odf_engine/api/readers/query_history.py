"""The history of SQL queries of a workspace."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from odf_engine.base.atomic_files import read_small_file
from odf_engine.base.files import open_file

MAX_QUERIES: Final = 500
_FILE: Final = Path("cache", "sql-history.jsonl")


def load_history(odf: Path) -> list[str]:
    """Return the newest queries, the newest last. Unreadable entries are skipped.

    Args:
        odf: the ``.odf`` folder of the workspace.
    """
    try:
        lines = read_small_file(odf / _FILE).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    queries: list[str] = []
    for line in lines[-MAX_QUERIES:]:
        with suppress(ValueError, RecursionError):
            entry = json.loads(line)
            if isinstance(entry, dict) and isinstance(entry.get("sql"), str):
                queries.append(entry["sql"])
    return queries


def add_to_history(odf: Path, sql: str) -> None:
    """Append a query to the history; an equal older entry is removed.

    Raises:
        OSError: the workspace cannot be written to.
    """
    sql = sql.strip()
    kept = [*(query for query in load_history(odf) if query != sql), sql][-MAX_QUERIES:]
    path = odf / _FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with open_file(part, "wb") as file:
        file.write("".join(json.dumps({"sql": query}) + "\n" for query in kept).encode())
    part.replace(path)
