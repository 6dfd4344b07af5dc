"""The Spark session: one JVM beside this process, set up so that a micro-batch costs milliseconds and starts nothing.

Secrets never enter Spark's configuration: sinks get theirs inside the functions that Spark ships.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from cdc.embedded.jars import SparkJars, spark_jars
from cdc.embedded.workers import worker_python
from cdc.errors import HeadwaterError
from cdc.settings.sparkoptions import SparkOptions
from cdc.spark import cluster
from cdc.spark.causes import place_of
from cdc.spark.sessionfolder import SessionFolder
from cdc.state import jsonfile
from sinks.sparksession import use_session

CHECKPOINTS: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""With the bare local file system: no ``chmod`` process per file, 25 of which a micro-batch would start otherwise."""

_ICEBERG_SQL: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

CORES: Final = 2
"""Of this machine, where nothing else is said."""
END_S: Final = 20.0
"""A JVM that was asked to end and takes longer is killed."""

_SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.scheduler.mode": "FAIR",
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "1",
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.ui.retainedExecutions": "5",
    # Limits on time that only tell a dead part from a living one, and everything here lives and dies with one process. A machine that stood
    # still for two minutes, or has twenty processes for each core, must not end a query.
    "spark.network.timeout": "1200s",
    "spark.executor.heartbeatInterval": "120s",
    "spark.python.authenticate.socketTimeout": "120s",
}

_PRIVATE: Final[Mapping[str, str]] = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}
"""The driver's ports read Java objects, and what is shipped through them holds the stores' secrets: loopback alone would let every user of the
machine in, and on a network everybody. A local master makes itself a secret for each run, which no file and no setting ever holds; that of a cluster is in the JVM's
environment (``cdc.spark.cluster``)."""


def session(
    *,
    app: str = "headwater",
    options: SparkOptions | None = None,
    warehouse: Path | None = None,
    scratch: Path | None = None,
    settings: Mapping[str, str] | None = None,
    iceberg_sql: bool = True,
) -> SparkSession:
    """The process's session, made on the first call. Raises EmbeddedError when Java or a jar cannot be had, and HeadwaterError where a cluster gives none.

    options: ``[spark]`` of a configuration. warehouse: the folder that ``SELECT … FROM warehouse.schema.table`` reads. scratch: where Spark puts its own files; nobody else may
    write there. Left out, it is a folder that goes with the process.
    settings: Spark's own settings, which win over ours, as those of ``options`` do over them. iceberg_sql: MERGE, CALL and the like in Spark's SQL; followers do without,
    for its rules run in every micro-batch.
    """
    active = running()
    if active is not None:
        return active
    options = (options or SparkOptions()).locally(CORES, 1)
    distant = options.cluster
    if distant and (silent := cluster.unreachable(options)) is not None:
        raise HeadwaterError(
            f"the Spark cluster at {options.master} does not answer: {silent}", hint="see master in [spark], and whether it runs"
        )
    jars = spark_jars()
    os.environ["JAVA_HOME"] = str(jars.java_home)
    # Workers must be this Python (else they time out), wherever the session was started from.
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = cluster.python_of(options) if distant else str(worker_python())
    folder = _own_scratch(scratch)
    builder: Any = SparkSession.builder.appName(app).master(options.master)
    given = {
        **_SETTINGS,
        **_of_this_machine(jars, folder, options.java_options),
        "spark.driver.memory": options.driver_memory,
        **(cluster.settings_of(options) if distant else {}),
        **({"spark.jars": ",".join(map(str, (jars.iceberg, jars.bare_naked, *jars.beside)))} if distant and iceberg_sql else {}),
        **({"spark.sql.extensions": _ICEBERG_SQL} if iceberg_sql else {}),
        **_catalog(warehouse),
        **(settings or {}),
        **options.passed_on,
        **_PRIVATE,
    }
    for key, value in given.items():
        builder = builder.config(key, value)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    made: SparkSession = _of_a_cluster(builder, options) if distant else builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


_FOLDER: Final[list[SessionFolder]] = []
"""Of the process's session; at most one."""


def _own_scratch(parent: Path | None) -> Path:
    _leave_scratch()
    _FOLDER.append(SessionFolder(parent))
    return _FOLDER[0].path


def _leave_scratch() -> None:
    """Once its JVM has ended."""
    while _FOLDER:
        _FOLDER.pop().remove()


def _of_this_machine(jars: SparkJars, folder: Path, java_options: str) -> dict[str, str]:
    """What the JVM beside this process stands on, and where it writes."""
    ours = f"-XX:-UsePerfData -Dderby.system.home={folder} -Dlog4j2.configurationFile=file:{_log4j(folder)}"
    return {
        # The bare file system and Iceberg stand on the driver's own class path: local executors are the driver.
        "spark.driver.extraClassPath": os.pathsep.join(map(str, (jars.bare_naked, jars.iceberg, *jars.beside))),
        "spark.driver.extraJavaOptions": f"{java_options} {ours}".strip(),
        "spark.local.dir": str(folder),
        "spark.hadoop.fs.permissions.umask-mode": f"{_umask():03o}",
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
    }


def _of_a_cluster(builder: Any, options: SparkOptions) -> SparkSession:
    try:
        with cluster.secret_lent(options):
            made: SparkSession = builder.getOrCreate()
            return made
    except Exception as error:
        why = place_of(error)
        _end_jvm(_gateway())
        _forget_classes()
        raise HeadwaterError(
            f"the Spark cluster at {options.master} gives no session: {why}",
            hint="see that it runs, has the secret of [spark], and reaches the host that is named there",
        ) from None


def running() -> SparkSession | None:
    """The process's session, whichever thread made it; None when there is none, its JVM has ended (as when memory ran out), or a cluster has ended it."""
    made: SparkSession | None = SparkSession._instantiatedSession
    if made is None or made.sparkContext._jsc is None:
        return None
    gateway: Any = made.sparkContext._gateway
    if gateway.proc.poll() is not None:
        _forget(made)
        return None
    if cluster.ended_by_the_cluster(made.sparkContext):
        _end_jvm(gateway)
        _forget(made)
        return None
    return made


def _forget(lost: SparkSession) -> None:
    lost.sparkContext._jsc = None
    _forget_classes()
    _leave_scratch()


def _forget_classes() -> None:
    """PySpark keeps what belongs to a JVM in its classes, and would hand out the one that has ended."""
    from pyspark import SparkContext

    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None


def stop() -> None:
    """Ends the process's session and its JVM."""
    active = running()
    if active is not None:
        gateway = active.sparkContext._gateway
        active.stop()
        _end_jvm(gateway)


def _gateway() -> Any:
    """The way to the JVM, which may have no session; None where there is none."""
    from pyspark import SparkContext

    return SparkContext._gateway


def _end_jvm(gateway: Any) -> None:
    """``gateway``: None where there is no JVM."""
    from pyspark import SparkContext

    # Without this the next session would talk to the JVM that is gone.
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(timeout=END_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()  # every store is closed: there is nothing left that it could do
        gateway.proc.wait()
    _leave_scratch()


@contextmanager
def lent(purpose: str, run_dir: Path, options: SparkOptions) -> Iterator[None]:
    """Stores that need a session get this process's; it is ended here when it was made here. They need its JVM alone. ``purpose``: a word that names its folder in ``run_dir``."""
    ours = running() is None  # not "active", which each thread has its own answer to
    scratch = run_dir / "spark" / purpose
    use_session(lambda: session(app=f"headwater-{purpose}", options=options.alone, scratch=scratch))
    try:
        yield
    finally:
        if ours:
            stop()


def _umask() -> int:
    """This process's. Hadoop heeds none but its own, which is 022."""
    found = os.umask(0o077)
    os.umask(found)
    return found


def _catalog(warehouse: Path | None) -> dict[str, str]:
    if warehouse is None:
        return {}
    name = "spark.sql.catalog.warehouse"
    return {
        name: "org.apache.iceberg.spark.SparkCatalog",
        f"{name}.type": "hadoop",
        f"{name}.warehouse": str(warehouse.absolute()),
        f"{name}.cache-enabled": "false",
    }


_QUIET: Final = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short}
rootLogger.level = error
rootLogger.appenderRef.stdout.ref = console
# Else Spark sets a level of its own for shells, and says on three lines how to set another.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


def _log4j(folder: Path) -> Path:
    """Spark says nothing below an error, and no page of a stack trace: those can hold rows."""
    path = folder / "headwater-log4j2.properties"
    with open(jsonfile.create(path), "w", encoding="utf-8") as file:
        file.write(_QUIET)
    return path
