"""Groups at work: kept up by sums, or computed again from their rows."""

from __future__ import annotations

import pyarrow as pa

from cdc.views.aggregates import Finish, of_sums, sliced, where
from cdc.views.cells import conformed
from cdc.views.enginesql import engine_type, quoted
from cdc.views.held import schema_of
from cdc.views.plan import GroupNode
from cdc.views.rows import netted
from cdc.views.state import Replacement
from cdc.views.work import Deltas, Maker, asked, nothing, sliced_again


class SignedGroups:
    """Groups whose aggregates are added to and subtracted from. No rows are kept, only sums."""

    def __init__(self, workshop: Maker, node: GroupNode) -> None:
        self._node, self._state = node, workshop.state
        reads = {one.argument.name for one in node.aggregates if one.argument} | {
            one.condition for one in node.aggregates if one.condition
        }
        self._of = workshop.operator(node.input, reads | {one.name for one in node.groups})
        self.key = node.key
        self.schema = schema_of([*node.groups, *(one.column for one in node.aggregates)])
        self._groups = [one.name for one in node.groups]
        parts = {"n": pa.int64()}
        for number, one in enumerate(node.aggregates):
            parts[f"n{number}"] = pa.int64()
            if one.name in ("sum", "avg"):
                assert one.argument is not None
                kind = one.argument.held
                parts[f"s{number}"] = pa.decimal128(38, kind.scale if pa.types.is_decimal(kind) else 0)
            elif one.name in ("bool_and", "bool_or"):
                parts[f"s{number}"] = pa.int64()
        self._parts = parts
        self._sums = pa.schema([*schema_of(node.groups), *parts.items(), ("one", pa.int8())])
        self._relation = workshop.relation(self._sums, self._groups or ["one"], {})

    def advance(self, deltas: Deltas) -> Replacement:
        change = self._of.advance(deltas)
        if change.empty and self._groups:
            return nothing(self.schema)
        added = self._added(change)
        before = self._relation.of("", added.select(self._groups or ["one"]))
        after = self._total(before, added)
        self._relation.replace(before, after)
        return netted(self._state, Replacement(self._finished(before), self._finished(after)))

    def _added(self, change: Replacement) -> pa.Table:
        rows = pa.concat_tables(
            [
                change.before.append_column("sign", pa.array([-1] * change.before.num_rows, pa.int8())),
                change.after.append_column("sign", pa.array([1] * change.after.num_rows, pa.int8())),
            ]
        )
        if self._groups and not rows.num_rows:
            return self._sums.empty_table()
        made = ["coalesce(sum(sign), 0) AS n"]
        for number, one in enumerate(self._node.aggregates):
            there = [f"{quoted(one.condition)}"] if one.condition else []
            value = quoted(one.argument.name) if one.argument is not None else ""
            if value:
                there.append(f"{value} IS NOT NULL")
            made.append(f"coalesce(sum(sign) {where(there)}, 0) AS n{number}")
            if one.name in ("sum", "avg"):
                kind = engine_type(self._parts[f"s{number}"])
                signs = [f"coalesce(CAST(sum({value}) {where([*there, f'sign = {sign}'])} AS {kind}), 0)" for sign in (1, -1)]
                made.append(f"CAST({signs[0]} - {signs[1]} AS {kind}) AS s{number}")
            elif one.name in ("bool_and", "bool_or"):
                made.append(f"coalesce(sum(sign) {where([*there, value])}, 0) AS s{number}")
        groups = [quoted(one) for one in self._groups]
        behind = f" GROUP BY {', '.join(groups)}" if groups else ""
        return conformed(
            asked(self._state, f"SELECT {', '.join([*groups, *made, '1 AS one'])} FROM changed{behind}", {"changed": rows}),
            self._sums,
        )

    def _total(self, before: pa.Table, added: pa.Table) -> pa.Table:
        groups = [quoted(one) for one in self._groups]
        sums = [f"CAST(sum({name}) AS {engine_type(kind)}) AS {name}" for name, kind in self._parts.items()]
        rows = pa.concat_tables([before, added])
        behind = f" GROUP BY {', '.join(groups)} HAVING sum(n) <> 0" if groups else ""
        return conformed(
            asked(self._state, f"SELECT {', '.join([*groups, *sums, '1 AS one'])} FROM parts{behind}", {"parts": rows}), self._sums
        )

    def _finished(self, sums: pa.Table) -> pa.Table:
        columns = {name: sums.column(name) for name in self._groups}
        for number, one in enumerate(self._node.aggregates):
            count = sums.column(f"n{number}").combine_chunks()
            total = sums.column(f"s{number}").combine_chunks() if f"s{number}" in self._parts else count
            columns[one.column.name] = of_sums(one.name, one.column, count, total)
        return pa.Table.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


class SlicedGroups:
    """Groups that are computed again from all of their rows, which are kept."""

    def __init__(self, workshop: Maker, node: GroupNode) -> None:
        self._node, self._state = node, workshop.state
        reads = {one.argument.name for one in node.aggregates if one.argument} | {
            one.condition for one in node.aggregates if one.condition
        }
        reads |= {order.column for one in node.aggregates for order in one.order}
        reads |= {one.label.name for one in node.aggregates if one.label}
        self._groups = [one.name for one in node.groups]
        self._of = workshop.kept(node.input, reads, self._groups)
        self.key = node.key
        self.schema = schema_of([*node.groups, *(one.column for one in node.aggregates)])

    def advance(self, deltas: Deltas) -> Replacement:
        return sliced_again(self._state, self._of, deltas, self._groups, self.schema, self._rows)

    def _rows(self, rows: pa.Table) -> pa.Table:
        if not rows.num_rows:
            return self.schema.empty_table()
        groups = [quoted(one) for one in self._groups]
        made: list[str] = []
        finish: list[tuple[str, Finish]] = []
        for number, one in enumerate(self._node.aggregates):
            sql, last = sliced(number, one)
            made += sql
            finish.append((one.column.name, last))
        found = asked(
            self._state, f"SELECT {', '.join([*groups, *made])} FROM members GROUP BY {', '.join(groups)}", {"members": rows}
        )
        parts = {name: found.column(name).combine_chunks() for name in found.column_names}
        columns = {name: parts[name].cast(self.schema.field(name).type) for name in self._groups}
        columns |= {name: last(parts) for name, last in finish}
        return pa.Table.from_arrays(
            [columns[name].cast(self.schema.field(name).type) for name in self.schema.names], schema=self.schema
        )
