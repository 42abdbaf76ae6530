"""The text of SQL for DuckDB: names, literals, and the statements that confine a connection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
"""Settings of each connection."""
PREPARATION: Final = (
    # The statistics of Parquet files do not count NaN, which is greater than every number in a query.
    "SET parquet_can_have_nan = true",
    "SET python_enable_replacements = false",  # variables of Python as tables
    "SET TimeZone = 'UTC'",  # times without a zone are in UTC
    "SET disabled_optimizers = 'common_subexpressions'",  # takes half a minute for 2,500 columns
)
"""Statements that each connection executes first."""
_TEXT_TYPES: Final = (
    "INTERVAL", "TIME", "UUID", "BIT", "VARIANT", "GEOMETRY", "JSON", "ENUM", "UNION", '"NULL"',
)  # fmt: skip


def quoted(name: str) -> str:
    """Return a name as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as a literal."""
    return "'" + text.replace("'", "''") + "'"


def path_list(paths: Iterable[Path]) -> str:
    """Return the list of files as an argument of a table function."""
    return f"[{', '.join(literal(_pattern(str(path))) for path in paths)}]"


def _pattern(path: str) -> str:
    """Return the pattern of one file: characters such as * have a meaning in a path."""
    return re.sub(r"[*?\[]", lambda match: f"[{match[0]}]", path)


def confinement(folders: Iterable[Path], files: Iterable[str]) -> Iterator[str]:
    """Yield the statements that confine a connection to folders and files, and fix its settings.

    DuckDB compares names after links are resolved, of files both before and after patterns are.
    """
    names = dict.fromkeys(name for file in files for name in (file, _pattern(file)))
    yield f"SET allowed_directories = [{', '.join(literal(str(folder.resolve())) for folder in folders)}]"
    yield f"SET allowed_paths = [{', '.join(map(literal, names))}]"
    yield "SET enable_external_access = false"
    yield "SET lock_configuration = true"


def storable_value(expression: str, kind: str) -> str:
    """Return a value in a type that Parquet and Arrow have.

    Args:
        expression: the value.
        kind: its type; HUGEINT becomes a decimal, and types that only DuckDB has become text.
    """
    if kind in ("HUGEINT", "UHUGEINT"):
        return f"CAST({expression} AS DECIMAL(38, 0))"
    if kind.partition("(")[0].partition(" ")[0] in _TEXT_TYPES:
        return f"CAST({expression} AS VARCHAR)"
    return expression
