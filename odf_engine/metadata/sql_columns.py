"""Which columns of a query's inputs feed which columns of its result, by looking at the query alone.

The answer is never too small: a column that is not named in it has no part in the value. It may be
larger than need be, as where a structure is taken apart whose fields the query does not show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from odf_engine.metadata.model import SqlQueryStep

How = Literal[
    "identity", "transformation", "aggregation", "unknown", "join", "group_by", "filter", "window", "sort"
]

ANY: Final = "*"
"""Stands for the columns of an input, or of a result, whose names are not known."""


class From(msgspec.Struct, frozen=True):
    """A column that has part in a result.

    Attributes:
        input: what the query calls the input.
        column: its name there, as the input writes it; :data:`ANY` where that is not known.
        how: of a value, whether it is handed on as it is (``identity``), something is made of it
            (``transformation``), it is one of many that were put together (``aggregation``), or whatever
            it may be (``unknown``). Of rows, what the column decides: which go together (``join``,
            ``group_by``, ``window``), which stay (``filter``), their order (``sort``).
    """

    input: str
    column: str
    how: How


class Columns(msgspec.Struct, frozen=True):
    """What feeds the columns of a result.

    Attributes:
        outputs: for each column of the result, in order, those that its values can come from.
        rows: those that decide which rows there are, and what is put together in them.
        problem: why the query could not be followed; everything is ``unknown`` then.
    """

    outputs: dict[str, list[From]]
    rows: list[From]
    problem: str | None = None


def columns_of(
    queries: Sequence[SqlQueryStep],
    inputs: Mapping[str, Sequence[str] | None],
    *,
    outputs: Sequence[str] | None = None,
    times: Mapping[str, str] | None = None,
) -> Columns:
    """What feeds the columns of a query's result.

    Args:
        queries: the steps; each sees the inputs, and the steps before it by their aliases.
        inputs: the columns of each input by the name that the query uses; None where they are not known.
        outputs: what the columns of the result are called, where that is known: it tells what `SELECT *`
            and columns without a name amount to.
        times: the event time of inputs that are joined FOR SYSTEM_TIME AS OF.
    """
    from odf_engine.metadata.sql_parsing import NotFollowed
    from odf_engine.metadata.sql_relations import of_inputs
    from odf_engine.metadata.sql_selects import followed

    try:
        relation = followed(queries, of_inputs(inputs), times or {})
    except NotFollowed as error:
        return unknown(inputs, outputs, str(error))
    except RecursionError:
        return unknown(inputs, outputs, "the query is nested too deeply")
    found: dict[str, list[From]] = {}
    for name, value in relation.named(outputs).items():
        found[name] = [From(*column, how) for column, how in value.items()]
    return Columns(found, [From(*row) for row in relation.rows])


def unknown(
    inputs: Mapping[str, Sequence[str] | None], outputs: Sequence[str] | None, problem: str
) -> Columns:
    """The answer where nothing is known: everything may come from everything."""
    everything = [
        From(name, column, "unknown")
        for name, columns in inputs.items()
        for column in ([ANY] if columns is None else columns)
    ]
    return Columns(dict.fromkeys(outputs or [ANY], everything), everything, problem)
