"""A cluster in place of this machine's cores: Spark's settings for it, and whether its workers answer.

The cluster's secret reaches Spark's JVM through its environment, from which it takes it before anything else. What Spark calls settings stands on that JVM's command
line, and goes to every worker.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext

import cdc
from cdc.errors import HeadwaterError
from cdc.settings.sparkoptions import SparkOptions

WORKERS_S: Final = 120.0
"""Work that no worker has taken for so long is given up: a cluster may be full, or its workers may be gone."""
CONNECT_S: Final = 5.0
_LOOK_S: Final = 1.0
_SECRET: Final = "_SPARK_AUTH_SECRET"
"""Spark's own name for it, under which its workers are given it as well."""
_ELSEWHERE: Final = "of-the-environment"
"""Spark wants to see a setting before it looks into the environment."""

_LOGS_NOTHING: Final = "-Dslf4j.provider=org.slf4j.helpers.NOP_FallbackServiceProvider"
"""The workers' processes: with the error of a task they would log what a row holds. Whoever waits for the task gets the error. It is an option of their JVMs, for a log level
that the driver sends reaches them some time after they have begun."""

GIVES_BACK: Final[Mapping[str, str]] = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
}
"""For a session that has nothing to do for hours: workers that are idle for a minute go back to the cluster."""


def settings_of(spark: SparkOptions) -> dict[str, str]:
    """Spark's settings where the master is a cluster's."""
    here = spark.host or "127.0.0.1"
    return {
        "spark.driver.host": here,
        "spark.driver.bindAddress": spark.bind or here,
        **({"spark.authenticate.secret": _ELSEWHERE} if spark.standalone else {}),
        # What is shipped to workers holds secrets of stores, and a worker that lacks memory writes it to its disk.
        "spark.io.encryption.enabled": "true",
        "spark.executor.defaultJavaOptions": _LOGS_NOTHING,
        "spark.executorEnv.PYTHONPATH": str(Path(cdc.__file__).resolve().parents[1]),
    }


def python_of(spark: SparkOptions) -> str:
    """The workers' Python."""
    return spark.python or sys.executable


@contextmanager
def secret_lent(spark: SparkOptions) -> Iterator[None]:
    """A JVM that is started meanwhile has the cluster's secret."""
    if spark.secret is None:
        yield
        return
    os.environ[_SECRET] = spark.secret.get_secret_value()
    try:
        yield
    finally:
        os.environ.pop(_SECRET, None)


def unreachable(spark: SparkOptions) -> str | None:
    """Says which masters do not answer, where none does; else None. Nothing is known of one that does not tell its port."""
    found = []
    for host, port in spark.standalone:
        try:
            socket.create_connection((host, port), CONNECT_S).close()
        except OSError as error:
            found.append(f"{host}:{port}: {(error.strerror or type(error).__name__).lower()}")
        else:
            return None
    return "; ".join(found) or None


class NoWorkers(HeadwaterError):
    """The cluster has nobody for the work."""


class WorkerWatch:
    """Notices that a cluster takes no work. A local Spark has its workers with it. For one thread."""

    def __init__(self, context: SparkContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._context, self._clock = context, clock
        self._cluster = not is_local(context)
        self._looked = clock()
        self._lacking_since: float | None = None

    def check(self) -> None:
        """Raises NoWorkers when there was work for ``WORKERS_S``, and nobody to take it. Asks Spark once a second at most."""
        now = self._clock()
        if not self._cluster or now - self._looked < _LOOK_S:
            return
        self._looked = now
        try:
            taken = workers(self._context) > 0 or not self._context.statusTracker().getActiveJobsIds()
        except (Py4JError, OSError):
            return  # whoever waits for the work learns what has become of Spark
        if taken:
            self._lacking_since = None
            return
        self._lacking_since = now if self._lacking_since is None else self._lacking_since
        if now - self._lacking_since >= WORKERS_S:
            raise NoWorkers(
                f"the Spark cluster has had no worker for this work for {WORKERS_S:.0f} s",
                hint="start workers, or let others' work there end; it is tried again by itself",
            )


def is_local(context: SparkContext) -> bool:
    """Whether the session's workers are processes of this machine, which come and go with it."""
    return str(context.master).startswith("local")


def workers(context: SparkContext) -> int:
    """How many processes of the cluster's workers the session has now. Raises Py4JError, OSError."""
    jsc: Any = context._jsc
    return int(jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is among them


def ended_by_the_cluster(context: SparkContext) -> bool:
    """The session is over although its JVM runs, as when too many of its workers could not start. A local one never is."""
    if is_local(context):
        return False
    try:
        jsc: Any = context._jsc
        return bool(jsc.sc().isStopped())
    except (Py4JError, OSError):
        return False
