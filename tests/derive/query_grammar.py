"""Random queries of all kinds, composed by a small grammar.

Every relation of the grammar has the columns event_time (never null), city, x (BIGINT) and d (DOUBLE), so
that each can be the source of any other. The results are unique: rows that tie in an ORDER BY are equal, and
floating point sums are exact except in the outermost query. DuckDB understands most of Spark's text.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

TABLES: Final = ("a", "b", "c")
_COLUMNS: Final = "event_time, city, x, d"
_EPOCH: Final = "TIMESTAMP '2024-01-01 00:00:00'"
_CONSTANT: Final = (
    f"SELECT {_EPOCH} AS event_time, 'k' AS city, CAST(1 AS BIGINT) AS x, CAST(0.5 AS DOUBLE) AS d"
)
_SET_OPERATIONS: Final = (
    "UNION", "UNION ALL", "UNION ALL", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL",
)  # fmt: skip
_JOINS: Final = ("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "FULL JOIN", "CROSS JOIN")
_JOIN_TIMES: Final = {"RIGHT JOIN": "{1}.event_time", "FULL JOIN": "coalesce({0}.event_time, {1}.event_time)"}
_ROW_FRAMES: Final = (
    "ROWS UNBOUNDED PRECEDING",
    "ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING",
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
)


class RandomQuery(NamedTuple):
    """A query.

    Attributes:
        text: the query.
        inputs: names of its inputs.
    """

    text: str
    inputs: Sequence[str]


def random_query(random: Random) -> RandomQuery:
    """Return a random query over some of :data:`TABLES`."""
    grammar = _Grammar(random)
    text = grammar.result(random.choice((1, 2, 2, 2, 3)))
    return RandomQuery(text, sorted(grammar.inputs))


class _Grammar:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._tables = random.sample(TABLES, random.choice((1, 2, 2, 3)))
        self._aliases = 0
        self.inputs: set[str] = set()

    def result(self, depth: int) -> str:
        """Return the outermost query."""
        inner = self._relation(depth)
        kind = self._random.random()
        if kind < 0.1:
            return (
                "SELECT min(event_time) AS event_time, city, sum(d / 3) AS s, avg(x / 7) AS m, "
                f"stddev(x) AS v, median(x) AS h\nFROM ({inner})\nGROUP BY city"
            )
        if kind < 0.2:
            over = f"ORDER BY {self._total_order('t', ['x'])} {self._random.choice(_ROW_FRAMES)}"
            keys = self._random.choice(("", "PARTITION BY t.city "))
            return f"SELECT {_COLUMNS}, sum(t.d / 3) OVER ({keys}{over}) AS s\nFROM ({inner}) t"
        return inner

    def _relation(self, depth: int) -> str:
        """Return a query with the columns of a relation."""
        if depth <= 0:
            return f"SELECT {_COLUMNS} FROM {self._table()}"
        shapes = (
            self._filtered, self._filtered, self._projected, self._joined, self._joined, self._joined,
            self._semi_joined, self._grouped, self._grouped, self._grouped, self._windowed, self._windowed,
            self._top, self._combined, self._combined, self._distinct, self._limited, self._exploded,
            self._lateral, self._with_cte, self._with_constants, self._scalar,
        )  # fmt: skip
        return self._random.choice(shapes)(depth - 1)

    # Sources

    def _table(self) -> str:
        name = self._random.choice(self._tables)
        self.inputs.add(name)
        return name

    def _source(self, depth: int) -> str:
        """Return a table, or a query in parentheses."""
        return self._table() if depth <= 0 or self._random.random() < 0.3 else f"({self._relation(depth)})"

    def _alias(self) -> str:
        self._aliases += 1
        return f"t{self._aliases}"

    def _where(self, alias: str, depth: int, chance: float = 0.3) -> str:
        return f" WHERE {self._predicate(alias, depth)}" if self._random.random() < chance else ""

    # Expressions

    def _integer(self, alias: str) -> str:
        return self._random.choice((
            "{0}.x", "{0}.x", "{0}.x", "{0}.x + 1", "{0}.x % 3", "coalesce({0}.x, 0)", "-{0}.x",
            "CAST(length({0}.city) AS BIGINT)", "CASE WHEN {0}.city = 'a' THEN {0}.x END",
        )).format(alias)  # fmt: skip

    def _number(self, alias: str) -> str:
        return self._random.choice((
            "{0}.d", "{0}.d", "{0}.d", "{0}.d + {0}.x", "{0}.x / 2", "coalesce({0}.d, 0.5)", "-{0}.d",
            "{0}.d * 2", "CASE WHEN {0}.x > 1 THEN {0}.d ELSE {0}.x / 4 END",
        )).format(alias)  # fmt: skip

    def _text(self, alias: str) -> str:
        return self._random.choice((
            "{0}.city", "{0}.city", "{0}.city", "upper({0}.city)", "coalesce({0}.city, 'z')",
            "{0}.city || '-'", "CAST({0}.x AS STRING)",
        )).format(alias)  # fmt: skip

    def _time(self, alias: str) -> str:
        return self._random.choice(
            ("{0}.event_time", "{0}.event_time", "date_trunc('day', {0}.event_time)")
        ).format(alias)

    def _predicate(self, alias: str, depth: int = 0) -> str:
        random = self._random
        kind = random.random()
        if kind < 0.15:
            return f"NOT ({self._predicate(alias, depth)})"
        if kind < 0.35:
            word = random.choice(("AND", "OR"))
            return f"({self._predicate(alias, depth)} {word} {self._predicate(alias)})"
        if kind < 0.6 and depth >= 0:
            return self._subquery_predicate(alias, depth)
        return random.choice((
            "{0}.x > 1", "{0}.x < 3", "{0}.x IS NULL", "{0}.city = 'a'", "{0}.city IN ('a', 'b')",
            "{0}.city IS NOT NULL", "{0}.d > 1", "{0}.d <> 0.5", "{0}.x % 2 = 0", "{0}.city >= 'b'",
            "{0}.x IS NOT DISTINCT FROM 2", "{0}.event_time > TIMESTAMP '2024-01-02 00:00:00'",
        )).format(alias)  # fmt: skip

    def _subquery_predicate(self, alias: str, depth: int) -> str:
        random, inner = self._random, self._alias()
        source = f"{self._source(depth)} {inner}"
        same = self._correlation(alias, inner)
        more = random.choice(("", "", f" AND {self._predicate(inner, -1)}"))
        plain = random.choice(("", f" WHERE {self._predicate(inner, -1)}"))
        negation = random.choice(("", "NOT "))
        return random.choice((
            f"{negation}EXISTS (SELECT 1 FROM {source} WHERE {same}{more})",
            f"{negation}EXISTS (SELECT 1 FROM {source}{plain})",
            f"{alias}.city {negation}IN (SELECT {inner}.city FROM {source}{plain})",
            f"{alias}.x {negation}IN (SELECT {inner}.x FROM {source} WHERE {same}{more})",
            f"{alias}.x {negation}IN (SELECT max({inner}.x) FROM {source}{plain} GROUP BY {inner}.city)",
            f"{alias}.x >= (SELECT avg({inner}.x) FROM {source}{plain})",
            f"{alias}.x < (SELECT max({inner}.x) FROM {source} WHERE {inner}.city = {alias}.city{more})",
            f"(SELECT count(*) FROM {source} WHERE {inner}.city = {alias}.city{more}) > 1",
        ))  # fmt: skip

    def _correlation(self, one: str, other: str) -> str:
        return self._random.choice((
            "{1}.city = {0}.city", "{1}.city = {0}.city AND {1}.x > {0}.x", "{1}.x < {0}.x",
            "{1}.city IS NOT DISTINCT FROM {0}.city", "{1}.x = {0}.x + 1", "{1}.d <= {0}.d",
            "{1}.event_time < {0}.event_time AND {1}.city = {0}.city", "{1}.city <> {0}.city",
        )).format(one, other)  # fmt: skip

    def _total_order(self, alias: str, first: Sequence[str] = ()) -> str:
        """Return sort terms with all columns."""
        random = self._random
        rest = ["event_time", "city", "x", "d"]
        random.shuffle(rest)
        names = [*first, *(name for name in rest if name not in first)]
        return ", ".join(
            f"{alias}.{name} {random.choice(('ASC', 'DESC'))} NULLS {random.choice(('FIRST', 'LAST'))}"
            for name in names
        )

    # Relations

    def _filtered(self, depth: int) -> str:
        t = self._alias()
        return f"SELECT {_columns(t)} FROM {self._source(depth)} {t}{self._where(t, depth, 1)}"

    def _projected(self, depth: int) -> str:
        t = self._alias()
        return (
            f"SELECT {self._time(t)} AS event_time, {self._text(t)} AS city, {self._integer(t)} AS x, "
            f"{self._number(t)} AS d FROM {self._source(depth)} {t}{self._where(t, -1)}"
        )

    def _scalar(self, depth: int) -> str:
        t, u = self._alias(), self._alias()
        function = self._random.choice(("sum({}.x)", "count(*)", "max({}.x)", "count(DISTINCT {}.x)")).format(
            u
        )
        where = self._random.choice(("", f" WHERE {u}.city = {t}.city", f" WHERE {u}.x = {t}.x"))
        value = f"(SELECT {function} FROM {self._source(depth)} {u}{where})"
        return f"SELECT {t}.event_time, {t}.city, {value} AS x, {t}.d FROM {self._source(depth)} {t}"

    def _joined(self, depth: int) -> str:
        t, u = self._alias(), self._alias()
        sides = f"{self._source(depth)} {t}", f"{self._source(depth)} {u}"
        return self._join_of(sides, t, u)

    def _join_of(self, sides: tuple[str, str], t: str, u: str) -> str:
        random = self._random
        kind = random.choice(_JOINS)
        using = kind != "CROSS JOIN" and random.random() < 0.15
        condition = (
            "" if kind == "CROSS JOIN" else " USING (city)" if using else f" ON {self._condition(t, u)}"
        )
        text = random.choice(("{0}.city", "{1}.city", "coalesce({1}.city, {0}.city)")).format(t, u)
        integer = random.choice(("{0}.x", "{1}.x", "{0}.x + {1}.x", "coalesce({1}.x, {0}.x)")).format(t, u)
        number = random.choice(("{0}.d", "{1}.d", "{0}.d + {1}.d")).format(t, u)
        time = _JOIN_TIMES.get(kind, "{0}.event_time").format(t, u)
        where = f" WHERE {self._predicate(t, -1)}" if random.random() < 0.2 else ""
        return (
            f"SELECT {time} AS event_time, {'city' if using else text} AS city, {integer} AS x, "
            f"{number} AS d FROM {sides[0]} {kind} {sides[1]}{condition}{where}"
        )

    def _condition(self, t: str, u: str) -> str:
        more = self._random.choice(
            ("", "", f" AND {self._predicate(t, -1)}", f" AND {self._predicate(u, 0)}")
        )
        return self._correlation(t, u) + more

    def _semi_joined(self, depth: int) -> str:
        t, u = self._alias(), self._alias()
        kind = self._random.choice(("SEMI", "ANTI"))
        return (
            f"SELECT {_columns(t)} FROM {self._source(depth)} {t} {kind} JOIN {self._source(depth)} {u} "
            f"ON {self._condition(t, u)}"
        )

    def _lateral(self, depth: int) -> str:
        t, u, v = self._alias(), self._alias(), self._alias()
        where = self._random.choice(
            (f"{v}.city = {t}.city", f"{v}.city = {t}.city AND {v}.x <> 2", f"{v}.x = {t}.x")
        )
        inner = self._random.choice((
            f"SELECT sum({v}.x) AS x, max({v}.d) AS d FROM {self._source(depth)} {v} WHERE {where}",
            f"SELECT {v}.x, {v}.d FROM {self._source(depth)} {v} WHERE {where}",
            f"SELECT {_columns(v)} FROM {self._source(depth)} {v} WHERE {where} "
            f"ORDER BY {self._total_order(v)} LIMIT 2",
        ))  # fmt: skip
        join = self._random.choice((f", LATERAL ({inner}) {u}", f" LEFT JOIN LATERAL ({inner}) {u} ON true"))
        return f"SELECT {t}.event_time, {t}.city, {u}.x, {u}.d FROM {self._source(depth)} {t}{join}"

    def _grouped(self, depth: int) -> str:
        random, t = self._random, self._alias()
        mode = random.choice(("", "", "", "", "ROLLUP", "CUBE", "SETS", "ALL"))
        source = f"{self._source(depth)} {t}{self._where(t, depth)}"
        keys = {
            "city": random.choice((f"{t}.city", f"{t}.city", f"coalesce({t}.city, 'z')")),
            "x": random.choice((f"{t}.x", f"{t}.x % 2")),
            "d": f"{t}.d",
            "event_time": random.choice((f"{t}.event_time", f"date_trunc('day', {t}.event_time)")),
        }
        names = random.sample(sorted(keys), random.randint(1, 2))
        if mode:
            names = [name for name in names if name != "event_time"] or ["city"]
        values = {
            "event_time": f"min({t}.event_time)",
            "city": random.choice((f"max({t}.city)", f"min({t}.city)", self._listed(t))),
            "x": self._integer_aggregate(t),
            "d": self._number_aggregate(t),
        }
        values |= {name: keys[name] for name in names if mode != "ALL"}
        columns = ", ".join(f"{value} AS {name}" for name, value in values.items())
        having = random.choice(
            ("", "", " HAVING count(*) > 1", f" HAVING sum({t}.x) > 2", f" HAVING max({t}.d) > 1")
        )
        if mode:
            having = having.replace(" HAVING", " HAVING count(*) > 0 AND") or " HAVING count(*) > 0"
        grouped = ", ".join(keys[name] for name in names)
        by = {"": grouped, "ALL": "", "SETS": f"GROUPING SETS (({grouped}), ({keys[names[0]]}), ())"}
        clause = by.get(mode, f"{mode} ({grouped})")
        return f"SELECT {columns} FROM {source}{f' GROUP BY {clause}' if clause else ''}{having}"

    def _listed(self, t: str) -> str:
        return f"listagg({t}.city, ',') WITHIN GROUP (ORDER BY {t}.city)"

    def _filter_clause(self, t: str) -> str:
        return f" FILTER (WHERE {self._predicate(t, -1)})" if self._random.random() < 0.25 else ""

    def _integer_aggregate(self, t: str) -> str:
        return self._random.choice((
            "count(*){1}", "count({0}.x){1}", "sum({0}.x){1}", "min({0}.x){1}", "max({0}.x){1}",
            "count(DISTINCT {0}.x){1}", "sum(DISTINCT {0}.x){1}", "count(DISTINCT {0}.city, {0}.x)",
            "max({0}.x) - min({0}.x)", "CAST(size(collect_set({0}.x)) AS BIGINT)",
        )).format(t, self._filter_clause(t))  # fmt: skip

    def _number_aggregate(self, t: str) -> str:
        return self._random.choice((
            "sum({0}.d){1}", "avg({0}.x){1}", "min({0}.d){1}", "max({0}.d){1}", "avg(DISTINCT {0}.x)",
            "sum(DISTINCT {0}.d)", "median({0}.x)", "CAST(max({0}.x) AS DOUBLE)",
        )).format(t, self._filter_clause(t))  # fmt: skip

    def _windowed(self, depth: int) -> str:
        t = self._alias()
        values = {"x": f"{t}.x", "d": f"{t}.d"}
        # Of two functions with other orders, the values of equal rows could be paired in many ways.
        name = self._random.choice(("x", "d"))
        values[name] = self._window_value(t, name)
        columns = ", ".join(f"{value} AS {name}" for name, value in values.items())
        source = self._source(depth)
        return f"SELECT {t}.event_time, {t}.city, {columns} FROM {source} {t}{self._where(t, -1)}"

    def _window_value(self, t: str, name: str) -> str:
        random = self._random
        keys = random.choice(
            ("", f"PARTITION BY {t}.city ", f"PARTITION BY {t}.city ", f"PARTITION BY {t}.x % 2 ")
        )
        total = f"{keys}ORDER BY {self._total_order(t, random.choice(([], ['x'], ['event_time'])))}"
        ties = f"{keys}ORDER BY {t}.{random.choice(('x', 'city', 'event_time'))} NULLS FIRST"
        whole = keys.strip()
        frame, span = random.choice(_ROW_FRAMES), "RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING"
        by_x = f"{keys}ORDER BY {t}.x NULLS LAST {span}"
        if name == "x":
            return random.choice((
                f"CAST(row_number() OVER ({total}) AS BIGINT)", f"CAST(rank() OVER ({ties}) AS BIGINT)",
                f"CAST(dense_rank() OVER ({ties}) AS BIGINT)", f"CAST(ntile(2) OVER ({total}) AS BIGINT)",
                f"lag({t}.x) OVER ({total})", f"lead({t}.x, 2, 9) OVER ({total})",
                f"first_value({t}.x) OVER ({total})", f"last_value({t}.x) OVER ({total} {frame})",
                f"nth_value({t}.x, 2) OVER ({total} {frame})", f"sum({t}.x) OVER ({total} {frame})",
                f"sum({t}.x) OVER ({ties})", f"count(*) OVER ({by_x})", f"max({t}.x) OVER ({whole})",
                f"min({t}.x) OVER ({total} {frame})",
            ))  # fmt: skip
        return random.choice((
            f"avg({t}.x) OVER ({whole})", f"percent_rank() OVER ({ties})", f"cume_dist() OVER ({ties})",
            f"sum({t}.d) OVER ({total} {frame})", f"max({t}.d) OVER ({total})", f"lag({t}.d) OVER ({total})",
            f"avg({t}.x) OVER ({by_x})",
        ))  # fmt: skip

    def _top(self, depth: int) -> str:
        random, t, u = self._random, self._alias(), self._alias()
        keys = random.choice(("", f"PARTITION BY {t}.city ", f"PARTITION BY {t}.x "))
        function = random.choice((
            f"row_number() OVER ({keys}ORDER BY {self._total_order(t)})",
            f"rank() OVER ({keys}ORDER BY {t}.d DESC NULLS LAST)",
            f"dense_rank() OVER ({keys}ORDER BY {t}.event_time)",
        ))  # fmt: skip
        limit = random.choice(("= 1", "<= 2", "> 1", "BETWEEN 2 AND 3"))
        inner = f"SELECT {_columns(t)}, {function} AS n FROM {self._source(depth)} {t}"
        return f"SELECT {_columns(u)} FROM ({inner}) {u} WHERE {u}.n {limit}"

    def _combined(self, depth: int) -> str:
        t, coarse = self._alias(), self._random.random() < 0.5
        sides = [self._relation(depth), self._relation(depth)]
        if self._random.random() < 0.1:
            sides[self._random.randrange(2)] = _CONSTANT
        if coarse:
            sides = [
                f"SELECT date_trunc('day', s.event_time) AS event_time, s.city, s.x % 2 AS x, "
                f"CAST(NULL AS DOUBLE) AS d FROM ({side}) s"
                for side in sides
            ]
        operation = self._random.choice(_SET_OPERATIONS)
        return f"SELECT {_columns(t)} FROM (({sides[0]}) {operation} ({sides[1]})) {t}"

    def _distinct(self, depth: int) -> str:
        t = self._alias()
        columns = self._random.choice((
            _columns(t),
            f"{self._time(t)} AS event_time, {t}.city, {t}.x % 2 AS x, CAST(NULL AS DOUBLE) AS d",
        ))  # fmt: skip
        return f"SELECT DISTINCT {columns} FROM {self._source(depth)} {t}{self._where(t, -1)}"

    def _limited(self, depth: int) -> str:
        t = self._alias()
        offset = self._random.choice(("", "", " OFFSET 1"))
        order = f"ORDER BY {self._total_order(t)} LIMIT {self._random.randint(1, 5)}{offset}"
        return f"SELECT {_columns(t)} FROM {self._source(depth)} {t}{self._where(t, -1)} {order}"

    def _exploded(self, depth: int) -> str:
        t, outer = self._alias(), self._random.choice(("", "OUTER "))
        array = self._random.choice((
            f"sequence(CAST(0 AS BIGINT), abs({t}.x) % 3)", f"array({t}.x, CAST(7 AS BIGINT))",
            f"IF({t}.x > 1, array({t}.x, {t}.x), array())",
        ))  # fmt: skip
        return (
            f"SELECT {t}.event_time, {t}.city, e AS x, {t}.d FROM {self._source(depth)} {t} "
            f"LATERAL VIEW {outer}explode({array}) AS e"
        )

    def _with_cte(self, depth: int) -> str:
        t, u, name = self._alias(), self._alias(), f"w{self._aliases}"
        inner = self._relation(depth)
        if self._random.random() < 0.5:
            return f"WITH {name} AS ({inner}) {self._join_of((f'{name} {t}', f'{name} {u}'), t, u)}"
        return (
            f"WITH {name} AS ({inner}) SELECT {t}.event_time, {t}.city, (SELECT count(*) FROM {name}) AS x, "
            f"{t}.d FROM {name} {t} WHERE {t}.x >= (SELECT min({u}.x) FROM {name} {u})"
        )

    def _with_constants(self, depth: int) -> str:
        t, u = self._alias(), self._alias()
        kind = self._random.choice(("JOIN", "LEFT JOIN", "SEMI JOIN", "ANTI JOIN"))
        x = f"{t}.x" if kind in ("SEMI JOIN", "ANTI JOIN") else f"{u}.k"
        return (
            f"SELECT {t}.event_time, {t}.city, CAST({x} AS BIGINT) AS x, {t}.d "
            f"FROM {self._source(depth)} {t} {kind} (VALUES ('a', 1), ('b', 2), ('b', 3)) AS {u}(name, k) "
            f"ON {t}.city = {u}.name"
        )


def _columns(alias: str) -> str:
    return ", ".join(f"{alias}.{name}" for name in _COLUMNS.split(", "))
