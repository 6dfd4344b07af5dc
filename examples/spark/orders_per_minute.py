"""A Structured Streaming job: how many orders changed in each minute, kept up in a topic of the log, each change counted once.

Run it in the folder of cdc.toml, while `cdc run` is running. It stops when it has read all that there is; `--follow` keeps it running.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc.spark.session import session
from cdc.spark.source import CdcSource

LOG, RUN, CHECKPOINT = (str(Path(name).absolute()) for name in ("var/log", "var/run", "var/orders_per_minute"))


def hand_over(groups: DataFrame, number: int) -> None:
    """The groups that a micro-batch has changed."""
    (
        groups.write.format("cdc")
        .option("log", LOG)
        .option("runDir", RUN)
        .option("topic", "derived.orders_per_minute")
        .option("key", "minute")
        .option("microBatch", number)
        .mode("append")
        .save()
    )


def main(follow: bool) -> None:
    spark = session(app="orders per minute")
    spark.dataSource.register(CdcSource)
    changes = (
        spark.readStream.format("cdc").option("log", LOG).option("table", "public.orders").option("checkpoint", CHECKPOINT).load()
    )
    per_minute = (
        changes.where("_cdc_op in ('c', 'u', 'd')")
        .groupBy(F.date_trunc("minute", "_cdc_ts").alias("minute"))
        # The position says how far the log has been counted. It makes a repeated micro-batch the same one to the log.
        .agg(F.count("*").alias("changes"), F.max("_cdc_position").alias("_cdc_position"))
    )
    # Spark 4.1 lets no Python sink take updated groups by itself, but foreachBatch does.
    query = per_minute.writeStream.outputMode("update").foreachBatch(hand_over).option("checkpointLocation", CHECKPOINT).start()
    if follow:
        query.awaitTermination()
    query.processAllAvailable()
    query.stop()


if __name__ == "__main__":
    main("--follow" in sys.argv[1:])
