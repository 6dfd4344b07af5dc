"""Writes the generated parts of docs/configuration.md, docs/expressions.md and docs/documents.md: ``make docs``. With the word ``configuration`` or ``expressions`` only that page, which needs no server."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psycopg

from cdc.embedded.opensearch import OpenSearch
from cdc.embedded.postgres import NEWEST, VOLATILE, Postgres
from cdc.embedded.valkey import Valkey
from cdc.spark import session
from tests.conftest import Cache
from tests.documents import configuration, expressions
from tests.documents.page import PAGE, parts
from tests.documents.writing import written


def main() -> None:
    for name, page in (("configuration", configuration), ("expressions", expressions)):
        if sys.argv[1:] in ([], [name]):
            page.PAGE.write_text(written(page.PAGE, page.parts()), encoding="utf-8")
    if sys.argv[1:]:
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-docs-")))
        folder.chmod(0o755)
        postgres = Postgres(folder / "postgres", version=NEWEST, options=VOLATILE)
        postgres.start()
        stack.callback(postgres.stop, "immediate")
        opensearch, valkey = OpenSearch(folder / "opensearch"), Valkey(folder / "valkey")
        for server in (opensearch, valkey):
            server.start()
            stack.callback(server.stop)
        spark = session.session(app="headwater-docs", warehouse=folder / "warehouse", scratch=folder / "spark")
        stack.callback(session.stop)
        given = {"opensearch": opensearch, "valkey": Cache(valkey), "spark": spark, "tmp_path": folder / "iceberg"}
        connection = stack.enter_context(psycopg.connect(postgres.dsn(), autocommit=True))
        PAGE.write_text(written(PAGE, parts(connection, given.__getitem__)), encoding="utf-8")


if __name__ == "__main__":
    main()
