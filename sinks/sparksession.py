"""Where stores that need a Spark session (``Traits.needs_spark``) get it: the room that makes sessions is above this one, and says how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cdc.errors import StoreError

SessionFactory = Callable[[], Any]

_factory: SessionFactory | None = None


def use_session(factory: SessionFactory) -> None:
    """Says where a SparkSession comes from when a store that needs one is opened."""
    global _factory
    _factory = factory


def spark_session(store: str) -> Any:
    """The session, which is made now if need be. Raises StoreError where nobody has said how, and none runs."""
    if _factory is not None:
        return _factory()
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None:
        hint = "sinks.sparksession.use_session(cdc.spark.session.session)"
        raise StoreError(f"store {store} needs a Spark session", retryable=False, hint=hint)
    return active


def jvm_thread_s() -> float:
    """CPU time that Spark's JVM has used so far for the calls of this thread, which has one of its own there. What its collector and compiler use is of
    nobody. 0 where there is none, or where it does not answer."""
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    made: Any = SparkSession._instantiatedSession
    if made is None or made.sparkContext._jsc is None:
        return 0.0
    try:
        gateway, java = made.sparkContext._gateway, made.sparkContext._jvm.java.lang
        # The bean's own class is closed to callers from outside; its interface is not.
        asked = java.Class.forName("java.lang.management.ThreadMXBean").getMethod(
            "getCurrentThreadCpuTime", gateway.new_array(java.Class, 0)
        )
        bean = java.management.ManagementFactory.getThreadMXBean()
        return float(asked.invoke(bean, gateway.new_array(java.Object, 0))) / 1e9
    except (Py4JError, OSError):
        return 0.0
