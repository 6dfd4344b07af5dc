"""`make roles`: writes the catalog's queries (``cdc.source.facts.FACTS``, ``partitions``) into deploy/roles.sql, where the event trigger asks the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from cdc.source.facts import FACTS
from cdc.source.partitions import partitions

FILE: Final = Path(__file__).parents[1] / "deploy/roles.sql"
_QUERY: Final = re.compile(r"(?<=as \$facts\$\nselect\n).*?(?=from pg_class c where c\.oid = relation\b)", re.DOTALL)


_TREE: Final = re.compile(r"(?<=as \$with\$\n)select .*?\nfrom .*?(?= tree\n\$with\$;)", re.DOTALL)


def with_facts(text: str) -> str:
    """The file's text with the queries as they are now."""
    tree = "select coalesce(array_agg(tree.oid), '{}')\nfrom " + partitions("select unnest(tables)")
    for query, now in ((_QUERY, FACTS.lstrip("\n")), (_TREE, tree)):
        text, times = query.subn(lambda _, now=now: now, text)
        assert times == 1, "the function that holds the query is not to be found"
    return text


def main() -> None:
    FILE.write_text(with_facts(FILE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
