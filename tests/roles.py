"""`make roles`: writes the facts' query (``cdc.source.facts.FACTS``) into deploy/roles.sql, where the event trigger asks the same of a table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from cdc.source.facts import FACTS

FILE: Final = Path(__file__).parents[1] / "deploy/roles.sql"
_QUERY: Final = re.compile(r"(?<=as \$facts\$\nselect\n).*?(?=from pg_class c where c\.oid = relation\b)", re.DOTALL)


def with_facts(text: str) -> str:
    """The file's text with the query as it is now."""
    written, times = _QUERY.subn(lambda _: FACTS.lstrip("\n"), text)
    assert times == 1, "the function that holds the query is not to be found"
    return written


def main() -> None:
    FILE.write_text(with_facts(FILE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
