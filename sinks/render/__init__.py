"""How a column's values stand in JSON: the rules, per value (``literals``) and for whole columns (``columns``).

One rule for all stores (``docs/documents.md`` shows it by example): a value is JSON of its own kind, and a value that JSON of that kind
cannot hold exactly is the string of Postgres's exact text, in the same place. Nothing is rounded, cut or left out.
"""
