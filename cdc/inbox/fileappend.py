"""Appends a user's file to a topic, in as many groups as it takes, so that the same append again
goes on where the last one ended.

The producer's marks are ``NUMBER-DIGEST-ROWS``: the number of the append, the digest of what is
appended, and how many of its rows are in the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cdc.errors import ConfigError
from cdc.inbox.groupfile import MAX_GROUP_BYTES, MAX_GROUP_ROWS, encode
from cdc.inbox.handover import Handover, HandoverDeadline
from cdc.inbox.rows import FileRows
from cdc.model.position import Position

_MARK: Final = re.compile(r"([1-9]\d{0,17})-([0-9a-f]{32})-(\d{1,18})")


@dataclass(frozen=True, slots=True)
class AppendProgress:
    """How far the log holds what was appended last."""

    number: int = 0
    digest: str = ""
    rows: int = 0

    @property
    def text(self) -> str:
        """As a mark."""
        return f"{self.number}-{self.digest}-{self.rows}"

    @classmethod
    def of(cls, mark: str) -> AppendProgress:
        """Raises ConfigError for a mark that an append did not make: the producer is somebody
        else's, whose chain of groups would break.
        """
        if not mark:
            return cls()
        found = _MARK.fullmatch(mark)
        if found is None:
            raise ConfigError(
                "this producer's groups come from another program than cdc log append", hint="choose another --producer"
            )
        return cls(int(found[1]), found[2], int(found[3]))


@dataclass(frozen=True, slots=True)
class Appended:
    """``rows``: how many were appended now; the others were in the log already. ``position``: of
    the topic's last change.
    """

    rows: int
    position: Position
    mark: str


def begin(progress: AppendProgress, digest: str, mark: str, wanted: str | None) -> AppendProgress:
    """Where this append begins. ``wanted``: the mark that it has to begin at, if any. Raises
    ConfigError when the log has come elsewhere.
    """
    if wanted is not None and wanted == mark:
        return AppendProgress(progress.number + 1, digest)
    if progress.digest == digest:
        return progress
    if wanted is not None:
        raise ConfigError(
            f"the log's mark of this producer is {mark or 'empty'}, not {wanted}", hint="something else was appended since"
        )
    return AppendProgress(progress.number + 1, digest)


def append_rows(
    handover: Handover, topic: str, file: FileRows, wanted: str | None, deadline: HandoverDeadline, show: Callable[[int], None]
) -> Appended:
    """Opens the producer and hands over what the log does not have. ``show``: takes how many rows
    are in the log.

    Raises what ``Handover`` does, and ConfigError as ``begin``.
    """
    mark = handover.open(deadline)
    at = begin(AppendProgress.of(mark.to), file.digest, mark.to, wanted)
    first, position = at.rows, handover.position(topic)
    step = min(MAX_GROUP_ROWS, max(1, len(file.rows)))
    while at.rows < len(file.rows):
        batches = file.rows.slice(at.rows, step).combine_chunks().to_batches()
        to = AppendProgress(at.number, at.digest, at.rows + sum(len(batch) for batch in batches))
        raw = encode(handover.header(to.text, topic, file.key, batches), batches)
        if len(raw) > MAX_GROUP_BYTES:
            if step == 1:
                raise ConfigError(f"row {at.rows + 1} is larger than a group may be ({MAX_GROUP_BYTES} bytes)")
            step = (step + 1) // 2
            continue
        position = handover.give_encoded(raw, to.text, topic, deadline)
        at = to
        show(at.rows)
    return Appended(at.rows - first, position, handover.mark.to)
