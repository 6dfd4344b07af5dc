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
