"""The options of ``format("cdc")``: each is obeyed, or refused by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from cdc.errors import ConfigError
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import Lsn
from cdc.spark.options import ReadPlan
from cdc.spark.source import CdcSource
from tests.contract.rows import ORDERS, order, upserts


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"asOf": "10", "endPosition": "5"}, "options asOf and endPosition exclude"),
        ({"asOf": "10", "startPosition": "5"}, "options asOf and startPosition exclude"),
        ({"asOf": "10", "ranges": "[[0, 1]]"}, "options asOf and ranges exclude"),
        ({"ranges": "[[0, 1]]", "endPosition": "5"}, "options ranges and endPosition exclude"),
        ({"tables": "public.*"}, "options table and tables exclude"),
        ({"as_of": "10"}, "has no option as_of"),
        ({"startposition2": "10"}, "has no option startposition2"),
        ({"startPosition": "50", "endPosition": "5"}, "startPosition, 50, lies beyond endPosition, 5"),
        ({"startPosition": "-5"}, "option startPosition is not a whole number"),
        ({"waitSeconds": "soon"}, "option waitSeconds is not a number of seconds"),
        ({"waitSeconds": "nan"}, "option waitSeconds is not a number of seconds"),
        ({"waitSeconds": "-1"}, "option waitSeconds is not a number of seconds"),
        ({"ranges": "x"}, "option ranges is not a JSON list of pairs"),
        ({"ranges": "[[1]]"}, "option ranges is not a JSON list of pairs"),
        ({"ranges": "[[5, 1]]"}, "option ranges is not a JSON list of pairs"),
        ({"ranges": "[[true, 1]]"}, "option ranges is not a JSON list of pairs"),
        ({"columns": '["a"'}, "option columns is not a list of names as JSON"),
        ({"columns": '["a", 1]'}, "option columns is not a list of names as JSON"),
        ({"columns": "id", "as": "slices"}, "option columns is not for as = slices"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_by_name(given: dict[str, str], says: str) -> None:
    plain = {"log": "x", "table": "public.t"} | given
    for options in (plain, CaseInsensitiveDict(plain)):
        with pytest.raises(ConfigError, match=f"(?i){says}"):
            ReadPlan.of(options)


def test_options_in_spark_s_small_letters_and_one_of_its_own() -> None:
    given = {"log": "x", "table": "public.t", "startPosition": "5", "endPosition": "5", "waitSeconds": "0.5", "path": "/x"}
    for options in (given, CaseInsensitiveDict(given)):
        plan = ReadPlan.of(options)
        assert (plan.start, plan.end, plan.stream.wait_s) == (5, 5, 0.5)
    assert ReadPlan.of({"log": "x", "table": "t", "ranges": "[[0, 3], [5, 9]]"}).ranges == ((0, 3), (5, 9))


def test_a_column_twice_and_an_end_of_a_stream(tmp_path: Path) -> None:
    writer = EmbeddedLogWriter(tmp_path / "log", seal=False)
    writer.append(upserts(ORDERS, 1, [order(1)]))
    writer.commit(Lsn(10), 0)
    writer.close()
    given = {"log": str(tmp_path / "log"), "table": "public.orders"}
    with pytest.raises(ConfigError, match="columns names 'id' twice"):
        CdcSource(given | {"columns": "id,status,id"}).schema()
    source = CdcSource(given | {"endPosition": "1"})
    with pytest.raises(ConfigError, match="endPosition"):
        source.streamReader(source.schema())
