"""Variables in a query, such as ``${env:HOME}``, which some engines replace before they parse it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from odf_engine.sql.query_text import line_and_column

_ANY: Final = re.compile(r"\$\{\S+?\}")
_EXTERNAL: Final = re.compile(
    r"\$\{(?:(?:env|system|spark|sparkconf|hiveconf|hivevar):|spark\.)\S+?\}", re.IGNORECASE
)
_MAX_TEXT: Final = 40


class QueryVariable(NamedTuple):
    """A variable in a query, with its line and column, both from 1."""

    text: str
    line: int
    column: int

    @property
    def message(self) -> str:
        """Why the query is invalid."""
        return f"a query cannot contain the variable {self.text}: engines replace it with different values"

    @property
    def hint(self) -> str:
        """How to write the query."""
        return "write the value itself; for this text as a value, write concat('$', '{…}')"


def find_variable(query: str, *, external: bool = False) -> QueryVariable | None:
    """Return the first variable of a query, also in a text or a comment.

    Args:
        query: the query.
        external: return only a variable of the environment, of Java or of Spark.
    """
    match = (_EXTERNAL if external else _ANY).search(query)
    if match is None:
        return None
    text = match[0] if len(match[0]) <= _MAX_TEXT else f"{match[0][: _MAX_TEXT - 1]}…"
    return QueryVariable(text, *line_and_column(query, match.start()))
