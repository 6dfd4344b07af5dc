"""A table with all that are partitions of it: a part of other queries, and of the event trigger's functions in deploy/roles.sql (`make roles`).

pg_partition_tree says the same, but locks each of them until the transaction ends, which may be the application's.
"""

from __future__ import annotations

from typing import Final, LiteralString

_BELOW: Final[LiteralString] = """
      union
      select i.inhrelid from tree t join pg_class k on k.oid = t.oid and k.relkind = 'p'
      join pg_inherits i on i.inhparent = t.oid where not i.inhdetachpending)
    select tree.oid from tree)"""


def partitions(tables: LiteralString) -> LiteralString:
    """In parentheses, to be selected from: ``oid``. ``tables``: what selects the OIDs that it begins with. Children by INHERITS are tables of
    their own."""
    return "(\n    with recursive tree(oid) as (\n      " + tables + _BELOW
