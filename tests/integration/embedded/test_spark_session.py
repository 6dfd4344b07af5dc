"""The Spark session runs on the wheel's Java with the locked jars, and reads and writes Iceberg."""

from __future__ import annotations

from typing import Any

import pyspark


def test_an_iceberg_table_on_the_file_system_that_does_not_fork(spark: Any) -> None:
    spark.sql("create table warehouse.fixtures.t (a bigint) using iceberg")
    spark.sql("insert into warehouse.fixtures.t values (41), (1)")
    spark.sql("merge into warehouse.fixtures.t using (select 1 a) s on t.a = s.a when matched then delete")
    assert [row.a for row in spark.sql("select a from warehouse.fixtures.t").collect()] == [41]
    spark.sql("drop table warehouse.fixtures.t purge")


def test_workers_import_pyspark_as_this_process_does(spark: Any) -> None:
    def where(_: Any) -> str:
        import pyspark as there

        return str(there.__file__)

    assert spark.sparkContext.parallelize([1], 1).map(where).collect() == [pyspark.__file__]
