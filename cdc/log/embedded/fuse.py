"""Whether a writer may go on. After a sync has failed nobody knows what the disk holds, so it may not."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from cdc.errors import HeadwaterError


class Fuse:
    """``blown``: why nothing more is taken; None while all is well. The first reason stays."""

    def __init__(self) -> None:
        self.blown: str | None = None

    def blow(self, reason: str) -> None:
        self.blown = self.blown or reason

    def check(self) -> None:
        """Raises HeadwaterError once it is blown."""
        if self.blown is not None:
            raise HeadwaterError(
                f"the log's writer takes nothing more: {self.blown}", hint="restart capture, which recovers the log"
            )

    @contextmanager
    def protecting(self) -> Iterator[None]:
        """Any error inside means that nobody knows what the disk holds: the writer is over, the error goes on."""
        try:
            yield
        except BaseException as error:
            code = errno.errorcode.get(error.errno or 0, "") if isinstance(error, OSError) else type(error).__name__
            self.blown = f"the disk failed before ({code})"
            raise
