"""Random tables, queries and histories."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

VALUES: Final = {
    "int2": ("0", "1", "2", "-1", "32767", "-32768"),
    "int4": ("0", "1", "2", "3", "-1", "2147483647", "-2147483648", "40000"),
    "int8": ("0", "1", "2", "3", "9223372036854775807", "-9223372036854775808", "4294967296"),
    "numeric(12,2)": ("0.00", "-0.00", "1.10", "-1.10", "2.50", "9999999999.99", "-9999999999.99", "1.00"),
    "numeric": ("0", "0.00", "-0.0", "1.10", "1.1", "NaN", "12345678901234567890.123", "-7"),
    "text": ("", " ", "a", "A", "ab", "B", "é", "漢", "😀x", 'q"\\', "a\tb", "\x01", "null", "NULL"),
    "bool": ("t", "f"),
    "date": ("1970-01-01", "2024-02-29", "infinity", "-infinity", "0044-03-15 BC", "9999-12-31", "10000-01-01"),
    "timestamptz": (
        "1970-01-01 00:00:00+00",
        "2024-02-29 06:30:00.123456+00",
        "infinity",
        "-infinity",
        "0044-03-15 12:00:00+00 BC",
    ),
    "timestamp": ("1969-12-31 23:59:59.999999", "2024-02-29 06:30:00", "infinity", "-infinity"),
    "uuid": (
        "00000000-0000-0000-0000-000000000000",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
    ),
    "float8": ("0", "-0", "1.5", "NaN", "Infinity", "1e-300"),
    "jsonb": ("{}", '{"a": 1.10}', "[1, null]", "null", '"x"'),
    "bytea": ("\\x", "\\x00ff"),
    "time": ("00:00:00", "24:00:00", "12:30:00.5"),
    "mood": ("sad", "{a,b}", " "),
}
"""Few values of each type, so that rows meet."""
EQUAL: Final = ("int2", "int4", "int8", "numeric(12,2)", "text", "bool", "date", "timestamptz", "timestamp", "uuid")
ORDERED: Final = tuple(one for one in EQUAL)
ELEMENTS: Final = (*EQUAL, "numeric", "float8", "jsonb")
"""Types of which there are arrays."""
INTEGERS: Final = ("int2", "int4", "int8")


@dataclass(frozen=True)
class GeneratedTable:
    name: str
    columns: dict[str, str]
    key: tuple[str, ...]

    @property
    def ddl(self) -> str:
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        return f"create table {self.name} ({columns}, primary key ({', '.join(self.key)}))"


def tables(rng: random.Random) -> list[GeneratedTable]:
    found = []
    for number in range(rng.randrange(1, 4)):
        kinds = {"k": rng.choice(("int4", "int8", "text", "uuid", "int2", "date", "numeric(12,2)"))}
        if rng.random() < 0.35:
            kinds["l"] = rng.choice(("text", "int4", "bool"))
        key = tuple(kinds)
        for place in range(rng.randrange(3, 8)):
            kinds[f"c{place}"] = rng.choice((*EQUAL, "int4", "int4", "text", *VALUES))
        found.append(GeneratedTable(f"t{number}", kinds, key))
    return found


SETUP: Final = "drop table if exists t0, t1, t2; drop type if exists mood; create type mood as enum ('sad', '{a,b}', ' ')"


# --- histories


class History:
    """Transactions over the tables."""

    def __init__(self, rng: random.Random, of: list[GeneratedTable]) -> None:
        self._rng, self._tables = rng, of

    def _value(self, kind: str, null: bool = True) -> str:
        if null and self._rng.random() < 0.15:
            return "NULL"
        text = self._rng.choice(VALUES[kind])
        quoted = text.replace("'", "''")
        return f"'{quoted}'::{kind}"

    def statements(self) -> tuple[list[str], list[str]]:
        """(statements of one range of the log, tables that it empties)."""
        made: list[str] = []
        emptied: list[str] = []
        for _ in range(self._rng.choice((0, 1, 1, 2, 4, 9))):
            table = self._rng.choice(self._tables)
            kind = self._rng.choices(
                ("insert", "update", "delete", "key", "swap", "again", "empty", "all"), (10, 6, 4, 2, 1, 2, 0.3, 0.5)
            )[0]
            made += self._everything() if kind == "all" else getattr(self, f"_{kind}")(table)
            if kind == "empty":
                emptied.append(f"public.{table.name}")
        return made, emptied

    def _insert(self, table: GeneratedTable) -> list[str]:
        rows = []
        for _ in range(self._rng.choice((1, 1, 3, 6))):
            rows.append("(" + ", ".join(self._value(kind, name not in table.key) for name, kind in table.columns.items()) + ")")
        return [f"insert into {table.name} values {row} on conflict do nothing" for row in rows]

    def _some(self, table: GeneratedTable) -> str:
        name = self._rng.choice(list(table.columns))
        if table.columns[name] in ("jsonb", "float8"):
            return "true"
        return f"{name} is not distinct from {self._value(table.columns[name])}"

    def _update(self, table: GeneratedTable) -> list[str]:
        name = self._rng.choice([one for one in table.columns if one not in table.key])
        return [f"update {table.name} set {name} = {self._value(table.columns[name])} where {self._some(table)}"]

    def _delete(self, table: GeneratedTable) -> list[str]:
        return [f"delete from {table.name} where {self._some(table)}"]

    def _key(self, table: GeneratedTable) -> list[str]:
        name = self._rng.choice(table.key)
        old, new = (self._value(table.columns[name], False) for _ in "ab")
        others = " and ".join(f"o.{one} = t.{one}" for one in table.key if one != name) or "true"
        free = f"not exists (select 1 from {table.name} o where o.{name} = {new} and {others})"
        return [f"update {table.name} t set {name} = {new} where {name} = {old} and {free}"]

    def _swap(self, table: GeneratedTable) -> list[str]:
        """Two rows exchange all but their keys: as if their keys were swapped."""
        names = [one for one in table.columns if one not in table.key]
        first, second = (
            f"(select ctid from {table.name} order by {', '.join(table.key)} {way} limit 1)" for way in ("asc", "desc")
        )
        sets = ", ".join(f"{name} = o.{name}" for name in names)
        return [
            f"update {table.name} t set {sets} from {table.name} o where (t.ctid, o.ctid) in (({first}, {second}), ({second}, {first}))"
        ]

    def _again(self, table: GeneratedTable) -> list[str]:
        """Deleted, and inserted again with other values."""
        insert = self._insert(table)
        where = self._some(table)
        return [f"delete from {table.name} where {where}", *insert]

    def _empty(self, table: GeneratedTable) -> list[str]:
        return [f"truncate {table.name}", *(self._insert(table) if self._rng.random() < 0.5 else [])]

    def _everything(self) -> list[str]:
        """Parents and children at once."""
        return [f"delete from {one.name}" for one in self._tables]


# --- queries


@dataclass
class GeneratedQuery:
    sql: str
    key: list[str]


@dataclass
class _Source:
    """FROM, and what can be asked of it."""

    sql: str
    columns: dict[str, str]
    """Expression → type."""
    key: list[str] = field(default_factory=list)


class Queries:
    """Random queries over the tables."""

    def __init__(self, rng: random.Random, of: list[GeneratedTable]) -> None:
        self._rng, self._tables = rng, of

    def query(self) -> GeneratedQuery:
        kind = self._rng.choice(
            ("plain", "plain", "group", "group", "group", "distinct", "first", "number", "union", "nested", "all")
        )
        found: GeneratedQuery = getattr(self, f"_{kind}")()
        return found

    def _from(self, most: int = 3, prefix: str = "") -> _Source:
        rng = self._rng
        found: _Source | None = None
        for number in range(rng.choice((1, 1, 2, 2, 2, 3)) if most > 1 else 1):
            if number >= most:
                break
            table = rng.choice(self._tables)
            alias = f"{prefix}a{number}"
            columns = {f"{alias}.{name}": kind for name, kind in table.columns.items()}
            key = [f"{alias}.{name}" for name in table.key]
            if found is None:
                found = _Source(f"{table.name} {alias}", columns, key)
                continue
            pairs = [(a, b) for a, of in found.columns.items() for b, other in columns.items() if _meet(of, other)]
            if not pairs:
                continue
            way = rng.choice(("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
            on = [f"{a} = {b}" for a, b in rng.sample(pairs, min(len(pairs), rng.choice((1, 1, 1, 2))))]
            if rng.random() < 0.2 and way in ("JOIN", "LEFT JOIN"):
                on.append(self._condition(columns))
            found = _Source(
                f"{found.sql} {way} {table.name} {alias} ON {' AND '.join(on)}", found.columns | columns, found.key + key
            )
        assert found is not None
        if rng.random() < 0.4:
            found.sql += f" WHERE {self._condition(found.columns)}"
            if rng.random() < 0.3:
                found.sql += f" AND {self._condition(found.columns)}"
        return found

    def _condition(self, columns: dict[str, str]) -> str:
        rng = self._rng
        name = rng.choice(list(columns))
        kind = columns[name]
        if kind not in EQUAL or rng.random() < 0.3:
            return f"{name} IS {rng.choice(('', 'NOT '))}NULL"
        if kind == "bool":
            return rng.choice((name, f"NOT {name}", f"({name} IS TRUE OR {name} IS NULL)"))
        value = rng.choice([one for one in VALUES[kind] if "BC" not in one and "10000" not in one and "\t" not in one])
        text = value.replace("'", "''")
        sign = rng.choice(("=", "<>", "<", ">="))
        if kind == "text":
            return rng.choice((f"{name} {rng.choice(('=', '<>'))} '{text}'", f"{name} COLLATE \"C\" {sign} '{text}'"))
        return f"{name} {sign} {value if kind in INTEGERS or kind.startswith('num') else repr(value)}"

    def _expression(self, columns: dict[str, str]) -> str:
        rng = self._rng
        name = rng.choice(list(columns))
        kind = columns[name]
        if kind in ("int2", "int4") and rng.random() < 0.5:
            return f"{name}::bigint * 2 + 1"
        if kind == "text" and rng.random() < 0.4:
            return rng.choice((f"{name} || '!'", f"coalesce({name}, 'none')", f"length({name})"))
        if kind.startswith("numeric(") and rng.random() < 0.4:
            return rng.choice((f"{name} * 3", f"({name} + 1)::numeric(14,2)", f"round({name}, 1)"))
        if rng.random() < 0.15:
            return f"CASE WHEN {self._condition(columns)} THEN 1 ELSE 0 END"
        return name

    def _items(self, source: _Source, most: int = 4) -> list[str]:
        return [f"{self._expression(source.columns)} AS e{number}" for number in range(self._rng.randrange(most))]

    def _plain(self, prefix: str = "") -> GeneratedQuery:
        source = self._from(prefix=prefix)
        keys = [f"{name} AS k{number}" for number, name in enumerate(source.key)]
        return GeneratedQuery(
            f"SELECT {', '.join([*keys, *self._items(source)])} FROM {source.sql}", [f"k{number}" for number in range(len(keys))]
        )

    def _grouping(self, source: _Source, most: int = 3) -> list[str]:
        fit = [name for name, kind in source.columns.items() if kind in EQUAL]
        return self._rng.sample(fit, min(len(fit), self._rng.randrange(1, most)))

    def _group(self) -> GeneratedQuery:
        source = self._from()
        groups = self._grouping(source)
        items = [f"{name} AS g{number}" for number, name in enumerate(groups)]
        items += [f"{self._aggregate(source)} AS e{number}" for number in range(self._rng.randrange(4))]
        having = f" HAVING {self._rng.choice(('count(*) > 1', 'count(*) < 3', 'bool_or(' + self._condition(source.columns) + ')'))}"
        sql = (
            f"SELECT {', '.join(items)} FROM {source.sql} GROUP BY {', '.join(groups)}{having if self._rng.random() < 0.3 else ''}"
        )
        return GeneratedQuery(sql, [f"g{number}" for number in range(len(groups))])

    def _all(self) -> GeneratedQuery:
        source = self._from()
        items = [f"{self._aggregate(source, True)} AS e{number}" for number in range(self._rng.randrange(1, 4))]
        return GeneratedQuery(f"SELECT 'all' AS k, {', '.join(items)} FROM {source.sql}", ["k"])

    def _aggregate(self, source: _Source, signed: bool = False) -> str:
        rng = self._rng
        name = rng.choice(list(source.columns))
        kind = source.columns[name]
        ways = ["count(*)", f"count({name})"]
        if kind in INTEGERS or kind.startswith("numeric("):
            ways += [f"sum({name})", f"avg({name})"] * 2
        if kind == "bool":
            ways += [f"bool_and({name})", f"bool_or({name})", f"every({name})"]
        if not signed:
            if kind in EQUAL:
                ways.append(f"count(DISTINCT {name})")
            if kind == "numeric":
                ways += [f"sum({name})", f"avg({name})"]
            if kind in INTEGERS or kind.startswith("numeric(") or kind in ("date", "timestamp", "timestamptz"):
                ways += [f"min({name})", f"max({name})", f"max({name})"]
            if kind == "text":
                collated = f'{name} COLLATE "C"'
                ways += [f"min({collated})", f"max({collated})", f"string_agg({name}, '-' ORDER BY {collated}{self._way()})"]
                ways += [f"string_agg({name}, '' ORDER BY {self._total(source)})"]
            if kind in (*INTEGERS, "text", "bool", "uuid", "numeric(12,2)", "numeric"):
                ways.append(f"jsonb_agg({name} ORDER BY {self._total(source)})")
            if kind in ELEMENTS:
                ways.append(f"array_agg({name} ORDER BY {self._total(source)})")
        found = rng.choice(ways)
        return f"{found} FILTER (WHERE {self._condition(source.columns)})" if rng.random() < 0.25 else found

    def _way(self) -> str:
        return self._rng.choice(("", " DESC", " NULLS FIRST", " DESC NULLS LAST"))

    def _total(self, source: _Source) -> str:
        fit = [name for name, kind in source.columns.items() if kind in ORDERED and name not in source.key]
        names = [*self._rng.sample(fit, min(len(fit), self._rng.randrange(2))), *source.key]
        return ", ".join(
            f"{name}{' COLLATE ' + chr(34) + 'C' + chr(34) if source.columns[name] == 'text' else ''}{self._way()}"
            for name in names
        )

    def _distinct(self) -> GeneratedQuery:
        source = self._from()
        groups = self._grouping(source, 4)
        items = [f"{name} AS g{number}" for number, name in enumerate(groups)]
        return GeneratedQuery(
            f"SELECT DISTINCT {', '.join(items)} FROM {source.sql}", [f"g{number}" for number in range(len(groups))]
        )

    def _first(self) -> GeneratedQuery:
        source = self._from()
        groups = self._grouping(source)
        items = [f"{name} AS g{number}" for number, name in enumerate(groups)] + self._items(source)
        order = ", ".join([*groups, self._total(source)])
        sql = f"SELECT DISTINCT ON ({', '.join(groups)}) {', '.join(items)} FROM {source.sql} ORDER BY {order}"
        return GeneratedQuery(sql, [f"g{number}" for number in range(len(groups))])

    def _number(self) -> GeneratedQuery:
        source = self._from()
        groups = self._grouping(source)
        items = [f"{name} AS g{number}" for number, name in enumerate(groups)] + self._items(source)
        window = f"row_number() OVER (PARTITION BY {', '.join(groups)} ORDER BY {self._total(source)}) AS n"
        outer = ", ".join(
            [*(f"s.g{number}" for number in range(len(groups))), "s.n", *(item.split(" AS ")[-1] for item in items[len(groups) :])]
        )
        sql = f"SELECT {outer} FROM (SELECT {', '.join([*items, window])} FROM {source.sql}) s WHERE s.n <= {self._rng.randrange(1, 4)}"
        return GeneratedQuery(sql, [*(f"g{number}" for number in range(len(groups))), "n"])

    def _union(self) -> GeneratedQuery:
        sql, key = [], 0
        kinds: list[str] = []
        for number in range(self._rng.randrange(2, 4)):
            source = self._from(2)
            keys = [f"{name}::text" for name in source.key]
            key = max(key, len(keys))
            kinds.append(f"SELECT 'b{number}' AS branch|{'|'.join(keys)}|{source.sql}")
        for line in kinds:
            first, *keys, source_sql = line.split("|") if "||" not in line else [*line.rsplit("|", 1)]
            padded = [*keys, *["''"] * (key - len(keys))]
            items = ", ".join(f"{one} AS k{number}" for number, one in enumerate(padded))
            sql.append(f"{first}, {items} FROM {source_sql}")
        return GeneratedQuery(" UNION ALL ".join(sql), ["branch", *(f"k{number}" for number in range(key))])

    def _nested(self) -> GeneratedQuery:
        """A group in a join: what joins is not a topic."""
        source = self._from(2, "i")
        [group] = self._grouping(source, 2)[:1] or [source.key[0]]
        kind = source.columns[group]
        table = self._rng.choice(self._tables)
        pairs = [name for name, other in table.columns.items() if _meet(kind, other)]
        if not pairs:
            return self._plain()
        way = self._rng.choice(("JOIN", "LEFT JOIN", "FULL JOIN", "RIGHT JOIN"))
        items = [f"o.{name} AS k{number}" for number, name in enumerate(table.key)]
        inner = f"SELECT {group} AS g, {self._aggregate(source)} AS m, count(*) AS n FROM {source.sql} GROUP BY {group}"
        sql = f"SELECT {', '.join(items)}, s.g, s.m, s.n FROM {table.name} o {way} ({inner}) s ON o.{self._rng.choice(pairs)} = s.g"
        if self._rng.random() < 0.4:
            sql = f"SELECT q.n AS g0, count(*) AS e0, count(q.m) AS e1 FROM ({sql}) q GROUP BY q.n"
            return GeneratedQuery(sql, ["g0"])
        return GeneratedQuery(sql, [*(f"k{number}" for number in range(len(table.key))), "g"])


def _meet(left: str, right: str) -> bool:
    if left in INTEGERS and right in INTEGERS:
        return True
    return left == right and left in EQUAL
