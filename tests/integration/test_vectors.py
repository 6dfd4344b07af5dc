"""Columns of pgvector's type in a search index, from a real Postgres on.

The node of these tests has no k-NN plugin, so that it knows no field of type ``knn_vector``: what the index would be given is compared with what OpenSearch
documents. That it is refused by name here is tested, too."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cdc.errors import ConfigError, StoreError
from cdc.log.home import open_reader
from cdc.model.batch import topic_schema
from cdc.model.position import START
from cdc.source.connection import connect
from sinks import make_sink, options_model
from sinks.heldlog import HeldLog
from tests.conftest import Database
from tests.integration.pipeline import service, settings_of
from tests.waiting import until

DDL = """
create extension vector schema public;
create table public.texts (id bigint primary key, embedding public.vector(3), loose public.vector);
create publication cdc for table public.texts;
insert into public.texts values (1, '[1,2.5,-0.1]', '[1,2]'), (2, null, null), (3, '[0.1,3.4028235e38,-1e-45]', '[7]')
"""


@pytest.mark.opensearch
@pytest.mark.xdist_group("opensearch")
def test_a_vector_is_a_field_of_its_dimension_and_an_array_of_its_numbers(
    postgres: Database, opensearch: Any, tmp_path: Path
) -> None:
    with connect(postgres.dsn) as connection:
        if not connection.execute("select 1 from pg_available_extensions where name = 'vector'").fetchone():
            pytest.skip("this Postgres has no pgvector")
        for statement in DDL.split(";"):
            connection.execute(statement.encode())
        expected = {row[0]: row[1] for row in connection.execute("select id, embedding::text from public.texts")}
    settings = settings_of(postgres, tmp_path, {})
    with service(settings), closing(open_reader(settings.log.dir)) as reader:
        until(lambda: any(topic.rows >= 3 for topic in reader.topics()))

        def held(**mapping: Any) -> tuple[HeldLog, Any]:
            given = {"kind": "opensearch", "url": opensearch.url, "tables": {"public.texts": {"mapping": mapping}}}
            options = options_model("opensearch").model_validate(given)
            return HeldLog(reader, "search", options), make_sink("search", options)

        log, sink = held(embedding={"type": "knn_vector"})
        log.check()
        batches = list(log.read("public.texts", START, reader.head().position))
        shown = [row for batch in batches if len(batch) for row in sink.preview(batch)]
        assert json.loads(shown[0]["mapping"]) == {"embedding": {"type": "knn_vector", "dimension": 3}}
        documents = {one["id"]: one for one in (json.loads(row["document"]) for row in shown)}
        for key, text in expected.items():
            assert documents[key].get("embedding") == (None if text is None else json.loads(text)), "exactly Postgres's numbers"
        sink.open(log, 1)
        with pytest.raises(StoreError, match=r"No handler for type \[knn_vector\]"):
            sink.prepare(topic_schema(batches[-1].schema))
        sink.close()
        for wish, message in (
            (
                {"embedding": {"type": "knn_vector", "dimension": 4}},
                r"embedding is public\.vector\(3\), so dimension = 4 fits no row",
            ),
            ({"loose": {"type": "knn_vector"}}, "loose has no dimension"),
        ):
            log, sink = held(**wish)
            with pytest.raises(ConfigError, match=message):
                sink.foresee([log.held(topic.schema) for topic in reader.topics()])
            sink.close()
