"""A view's definition: its text, checked and planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cdc.expressions.refusal import PartRefused, near
from cdc.model.outline import Outline, outline_text
from cdc.model.topic import TopicField, TopicSchema
from cdc.views.callplanner import planned_call
from cdc.views.contract import ViewRefused
from cdc.views.groupcall import DeclaredFunction, GroupCall
from cdc.views.parser import parsed_query
from cdc.views.plan import Knowledge, LeafNode, Node, PlanColumn, leaves, looked_up_first
from cdc.views.planner import Planner


@dataclass(frozen=True, eq=False)
class ViewDefinition:
    """A view that can be kept up exactly."""

    name: str
    sql: str
    key: tuple[str, ...]
    columns: Mapping[str, PlanColumn]
    """The view's columns in order."""
    node: Node
    outlines: Mapping[str, Outline]
    """Of columns of JSON, by name, what their documents look like."""
    call: GroupCall | None = None
    """The function that computes the view's rows from those of the SELECT, if one does."""

    @cached_property
    def fields(self) -> tuple[TopicField, ...]:
        """The view's fields, as its topic has them."""
        fields = (column.topic_field(name, name in self.key) for name, column in self.columns.items())
        return tuple(replace(one, outline=outline_text(self.outlines.get(one.name))) for one in fields)

    @cached_property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Topic → the fields that are read, those of the key among them; in the order in which topics are read from the beginning."""
        found: dict[str, dict[str, None]] = {}
        for leaf in leaves(self.node):
            found.setdefault(leaf.topic, {}).update(dict.fromkeys(leaf.columns))
        return {leaf.topic: tuple(found[leaf.topic]) for leaf in looked_up_first(self.node)}

    @cached_property
    def identity(self) -> str:
        """Equal for two definitions whose state is the same."""
        read = [(leaf.topic, [(name, str(one.held), one.kind) for name, one in leaf.columns.items()]) for leaf in leaves(self.node)]
        called = () if self.call is None else (self.call.declared.identity,)
        return repr((self.sql, self.key, read, *called))


def define(
    name: str,
    sql: str,
    key: Sequence[str],
    topics: Mapping[str, TopicSchema],
    places: Sequence[str] = (),
    function: DeclaredFunction | None = None,
) -> ViewDefinition:
    """Checks and plans the view. ``topics``: by name, ``namespace.name``, all that it may read. ``places``: of each line, where it comes from, if nobody wrote the SQL.
    ``function``: computes its rows, if they are not those of the SELECT.

    Raises ViewRefused, which says what cannot be kept up, in which line and column or at which of the places, and what to write instead.
    """
    try:
        planner = Planner(sql, topics)
        relation = planner.query(parsed_query(sql))
        if function is None:
            _check_key(name, key, relation.names, relation.node, planner.knowledge)
    except PartRefused as refusal:
        placed = refusal.placed(sql)
        shown = f"{places[placed.place[0] - 1]}: {refusal}" if places else str(placed)
        raise ViewRefused(f"view {name}, {shown}", hint=placed.hint) from None
    if function is not None:
        call = planned_call(name, key, relation.names, function)
        columns = {**{one: call.given[one] for one in function.by}, **call.made}
        return ViewDefinition(name, sql, tuple(key), columns, relation.node, {}, call)
    outlines = {shown: planner.outlines.get(column.name) for shown, column in relation.names.items()}
    return ViewDefinition(name, sql, tuple(key), relation.names, relation.node, outlines)


def _check_key(name: str, key: Sequence[str], names: Mapping[str, PlanColumn], node: Node, knowledge: Knowledge) -> None:
    if not key:
        raise ViewRefused(f"view {name} has no key", hint="name columns that tell its rows apart")
    for one in key:
        if one not in names:
            raise ViewRefused(
                f"view {name}: {one} of its key is not one of its columns", hint=near(one, names) or f"they are {', '.join(names)}"
            )
    if knowledge.covers([names[one].name for one in key], node.keys):
        return
    closed = knowledge.closed([names[one].name for one in key])
    lacking = min((sorted(one - closed) for one in node.keys), key=len, default=[])
    shown = {column.name: shown for shown, column in names.items()}
    of_leaves = {
        column.name: f"{leaf.topic.partition('.')[2]}.{column_name}"
        for leaf in leaves(node)
        if isinstance(leaf, LeafNode)
        for column_name, column in leaf.columns.items()
    }
    missing = [shown.get(one) or of_leaves.get(one) or "a computed column" for one in lacking]
    raise ViewRefused(
        f"view {name}: two rows can have one key ({', '.join(key)}), as {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in it",
        hint=f"select {' and '.join(missing)} and add {'it' if len(missing) == 1 else 'them'} to the key",
    )
