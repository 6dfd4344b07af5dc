"""The real servers, started from wheels and jars alone, for the demo, the tests and the benchmarks.

Every server listens on 127.0.0.1 only, keeps its data in the folder it is given and dies with the process that started it.
"""

from __future__ import annotations

from cdc.errors import HeadwaterError


class EmbeddedError(HeadwaterError):
    """A server, a jar or Java itself cannot be had on this machine."""
