"""A declarative pipeline: a table that grows by what is new in the log, and a view of the orders as they are now."""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from cdc.spark.source import CdcSource

OPTIONS = {"log": os.environ["HEADWATER_LOG"], "table": "public.orders"}
spark = SparkSession.active()
spark.dataSource.register(CdcSource)


@dp.table
def changes() -> DataFrame:
    """Every change of the table: each run appends those that are new."""
    return spark.readStream.format("cdc").options(**OPTIONS).load().drop("_cdc_exact")


@dp.materialized_view
def orders_by_status() -> DataFrame:
    """The table as it is now, counted: computed from the whole log in each run."""
    orders = spark.read.format("cdc").options(**OPTIONS).load()
    emptied = orders.where("_cdc_op = 't'").agg(F.coalesce(F.max("_cdc_position"), F.lit(0)).alias("emptied"))
    rows = orders.where("_cdc_op in ('c', 'u', 'd', 'r')").crossJoin(emptied).where("_cdc_position > emptied")
    newest = F.row_number().over(Window.partitionBy("id").orderBy(F.desc("_cdc_position")))
    now = rows.withColumn("newest", newest).where("newest = 1 and _cdc_op <> 'd'")
    return now.groupBy("status").agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
