"""Random queries: while one is put together, what it has to say is worked out beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from random import Random

import pytest

from odf_engine.metadata.model import SqlQueryStep
from odf_engine.sql.query_lineage import trace_columns

INPUTS = {"p": ["a", "b", "c"], "q": ["a", "d"], "dot.ted": ["Month", "e f", "a"]}
IDENTITY, TRANSFORMED, AGGREGATED = range(3)
NAMES = ["identity", "transformation", "aggregation"]
Value = dict[tuple[str, str], int]


def over(values: list[Value], least: int) -> Value:
    """What something that is made of several values comes from."""
    found: Value = {}
    for value in values:
        for column, how in value.items():
            found[column] = max(found.get(column, 0), how, least)
    return found


@dataclass
class Made:
    """A query, and what it has to say of its columns."""

    sql: str
    columns: list[tuple[str, Value]]
    rows: set[tuple[str, str, str]] = field(default_factory=set)


class Maker:
    """Puts queries together."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.numbers = count()
        self.steps: list[tuple[str, Made]] = []

    def fresh(self, prefix: str = "c") -> str:
        return f"{prefix}{next(self.numbers)}"

    def quoted(self, name: str) -> str:
        """The name in one of the ways in which it can be written."""
        if not name.isidentifier():
            return f"`{name}`"
        return self.random.choice([name, f"`{name}`", name.upper(), name.swapcase()])

    def source(self, depth: int) -> tuple[str, Made]:
        """What can stand behind FROM, without its alias."""
        if self.steps and self.random.random() < 0.3:
            name, made = self.random.choice(self.steps)
            return self.quoted(name), made
        if depth > 0 and self.random.random() < 0.6:
            made = self.query(depth - 1)
            return f"({made.sql})", made
        name = self.random.choice(list(INPUTS))
        return self.quoted(name), Made("", [(each, {(name, each): IDENTITY}) for each in INPUTS[name]])

    def expression(self, names: dict[str, Value], depth: int = 2) -> tuple[str, Value]:
        """Something that is worked out from columns."""
        name = self.random.choice(list(names))
        if depth == 0 or self.random.random() < 0.3:
            return name, names[name]
        one, of_one = self.expression(names, depth - 1)
        two, of_two = self.expression(names, depth - 1)
        text = self.random.choice([
            "{0} + {1}", "coalesce({0}, {1}, 'it''s')", "CASE WHEN {0} > 1 THEN {1} ELSE 0 END",
            "({0} BETWEEN 1 AND {1})", "array({0}, {1})[0]", "named_struct('x', {0}, 'y', {1})",
            "CAST({0} AS STRING) || {1}", "transform(array({0}), e -> e + {1})", "if({0} IS NULL, 1, {1})",
            "map('k', {0}, /* d */ 'l', {1})", "(({0}) IN (1, {1}))", "date_add({0}, {1}) -- c\n",
        ])  # fmt: skip
        return text.format(one, two), over([of_one, of_two], TRANSFORMED)

    def aggregate(self, names: dict[str, Value]) -> tuple[str, Value]:
        """Something that is worked out from the columns of many rows."""
        one, of_one = self.expression(names, 1)
        two, of_two = self.expression(names, 1)
        text = self.random.choice(
            ["max_by({0}, {1})", "sum({0}) FILTER (WHERE {1} > 0)", "count(DISTINCT {0}, {1})"]
        )
        return text.format(one, two), over([of_one, of_two], AGGREGATED)

    def table(self, depth: int, made: Made) -> tuple[str, dict[str, Value]]:
        """FROM with joins; what each name in the query stands for."""
        text, first = self.source(depth)
        alias = self.fresh("t")
        made.rows |= first.rows
        names = {f"{alias}.{self.quoted(name)}": value for name, value in first.columns}
        sql = f"{text} AS {alias}"
        for _ in range(self.random.choice([0, 0, 1, 2])):
            text, other = self.source(depth)
            alias = self.fresh("t")
            made.rows |= other.rows
            added = {f"{alias}.{self.quoted(name)}": value for name, value in other.columns}
            left, of_left = self.expression(names, 1)
            right, of_right = self.expression(added, 1)
            kind = self.random.choice(["JOIN", "LEFT JOIN", "FULL OUTER JOIN", "LEFT SEMI JOIN"])
            sql += f" {kind} {text} {alias} ON {left} = {right}"
            made.rows |= {(*column, "join") for column in {**of_left, **of_right}}
            if "SEMI" not in kind:
                names |= added
        if self.random.random() < 0.2:
            text, value = self.expression(names, 1)
            alias, column = self.fresh("v"), self.fresh()
            sql += f" LATERAL VIEW explode(array({text})) {alias} AS {column}"
            names[column] = over([value], TRANSFORMED)
        return sql, names

    def select(self, depth: int) -> Made:
        """A SELECT."""
        made = Made("", [])
        table, names = self.table(depth, made)
        sql, items = f"FROM {table}", []
        if self.random.random() < 0.3:
            text, value = self.expression(names)
            sql += f" WHERE {text} > 0"
            made.rows |= {(*column, "filter") for column in value}
        grouped = self.random.random() < 0.3
        if grouped:
            keys = [self.expression(names, 1) for _ in range(self.random.choice([1, 2]))]
            sql += " GROUP BY " + ", ".join(text for text, _ in keys)
            made.rows |= {(*column, "group_by") for _, value in keys for column in value}
            items += keys
        for _ in range(self.random.choice([1, 2, 3])):
            items.append(self.aggregate(names) if grouped else self.expression(names))
        shown: list[str] = []
        for text, value in items:
            name = self.fresh()
            made.columns.append((name, value))
            shown.append(f"{text} AS {self.quoted(name)}")
        if not grouped and self.random.random() < 0.2:
            self.ranked(names, made, shown)
        distinct = self.random.random() < 0.2
        if distinct:
            made.rows |= {(*column, "group_by") for _, value in made.columns for column in value}
        made.sql = f"SELECT {'DISTINCT ' if distinct else ''}{', '.join(shown)} {sql}"
        return made

    def ranked(self, names: dict[str, Value], made: Made, shown: list[str]) -> None:
        """Adds a function over a window of rows."""
        (part, of_part), (order, of_order) = self.expression(names, 1), self.expression(names, 1)
        name = self.fresh()
        shown.append(f"rank() OVER (PARTITION BY {part} ORDER BY {order} DESC) AS {name}")
        made.columns.append((name, over([of_order], AGGREGATED)))
        made.rows |= {(*column, "window") for column in {**of_part, **of_order}}

    def starred(self, depth: int) -> Made:
        """Everything of a source, but perhaps a column."""
        text, made = self.source(depth)
        alias = self.fresh("t")
        gone = self.random.choice(made.columns)[0] if len(made.columns) > 1 else None
        but = f" EXCEPT ({self.quoted(gone)})" if gone else ""
        star = self.random.choice(["*", f"{alias}.*"])
        columns = [column for column in made.columns if column[0] != gone]
        return Made(f"SELECT {star}{but} FROM {text} {alias}", columns, set(made.rows))

    def union(self, depth: int) -> Made:
        """A union, by place."""
        one, two = self.select(depth), self.select(depth)
        width = min(len(one.columns), len(two.columns))
        sides = []
        for each in (one, two):
            names = ", ".join(self.quoted(name) for name, _ in each.columns[:width])
            sides.append(f"(SELECT {names} FROM ({each.sql}))")
        pairs = zip(one.columns[:width], two.columns[:width], strict=True)
        columns = [(name, over([value, other], IDENTITY)) for (name, value), (_, other) in pairs]
        return Made(" UNION ALL ".join(sides), columns, one.rows | two.rows)

    def common(self, depth: int) -> Made:
        """A query that is named before it is used; it hides an input of that name."""
        inner = self.query(depth)
        name = self.random.choice(["p", "q", "w"])
        columns = self.random.sample(inner.columns, self.random.randint(1, len(inner.columns)))
        shown = ", ".join(f"{name}.{self.quoted(each)}" for each, _ in columns)
        return Made(f"WITH {name} AS ({inner.sql}) SELECT {shown} FROM {name}", columns, set(inner.rows))

    def query(self, depth: int) -> Made:
        """A query of any shape."""
        shapes = [self.select, self.select, self.select, self.starred]
        if depth > 0:
            shapes += [self.union, self.common]
        return self.random.choice(shapes)(depth)


@pytest.mark.parametrize("start", range(0, 120, 60))
def test_lineage_of_random_queries_matches_a_reference_model(start: int) -> None:
    for seed in range(start, start + 60):
        check(Random(seed))


def check(random: Random) -> None:
    """One query, perhaps of several steps."""
    maker = Maker(random)
    steps: list[SqlQueryStep] = []
    for _ in range(random.choice([0, 0, 1, 2])):
        made, name = maker.query(1), maker.fresh("step")
        steps.append(SqlQueryStep(alias=name, query=made.sql))
        maker.steps.append((name, made))
    made = maker.query(2)
    found = trace_columns([*steps, SqlQueryStep(query=made.sql)], INPUTS)
    assert found.problem is None, made.sql
    got = {
        name.lower(): {(each.input, each.column): each.how for each in value}
        for name, value in found.outputs.items()
    }
    wanted = {
        name.lower(): {column: NAMES[how] for column, how in value.items()} for name, value in made.columns
    }
    assert got == wanted, made.sql
    assert {(row.input, row.column, row.how) for row in found.rows} == made.rows, made.sql
