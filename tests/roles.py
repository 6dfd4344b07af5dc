"""`make roles`: writes the catalog's queries into deploy/roles.sql, where the event trigger asks the same: ``FACTS``, the recursions of
``cdc.source.descent``, and what the server refuses (``cdc.source.replicaidentity``).

Written by hand is the rest of that file, of which nothing has a second home. The trigger's other functions act: they try, wait, take out, put back
and report, in PL/pgSQL, and ask about ``headwater.set_aside`` and the tables of one DDL statement, which nobody else sees. The publication that the
file makes for a newcomer takes only tables that no version refuses, a partitioned one only when all of its partitions are plain: fewer than can be
captured, on purpose, with the names of psql's variables inside. Rights and owners are statements, not questions.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from cdc.source.descent import partitions, types_made_of
from cdc.source.facts import FACTS
from cdc.source.replicaidentity import BREAKS

FILE: Final = Path(__file__).parents[1] / "deploy/roles.sql"
_GENERATED: Final = (
    (r"(?<=as \$facts\$\nselect\n).*?(?=from pg_class c where c\.oid = relation\b)", FACTS.lstrip("\n")),
    (
        r"(?<=as \$with\$\n)select .*?\nfrom .*?(?= tree\n\$with\$;)",
        "select coalesce(array_agg(tree.oid), '{}')\nfrom " + partitions("select unnest(tables)", overlapping=True),
    ),
    (
        r"(?<= into changed\n  from )\(\n    with recursive .*?(?= y join pg_depend d\n)",
        types_made_of("select unnest(retyped)"),
    ),
    (r"(?<=as \$breaks\$\n).*?(?=\$breaks\$;)", BREAKS),
)
"""Where each of them stands, and what stands there."""


def with_queries(text: str) -> str:
    """The file's text with the queries as they are now."""
    for place, query in _GENERATED:
        text, times = re.subn(place, lambda _, query=query: query, text, flags=re.DOTALL)
        assert times == 1, "the function that holds the query is not to be found"
    return text


def without_queries(text: str) -> str:
    """What of the file is written by hand."""
    for place, _ in _GENERATED:
        text = re.sub(place, "", text, flags=re.DOTALL)
    return text


def main() -> None:
    FILE.write_text(with_queries(FILE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
