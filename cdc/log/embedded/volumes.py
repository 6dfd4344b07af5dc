"""The timeline's files as a reader has them open: the newest, and those of the earlier ones that it was asked about last.

Not thread-safe: a reader asks under its lock.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from cdc.errors import LogCorrupt
from cdc.log.embedded import plainfile
from cdc.log.embedded.format import Damaged, Head
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.timeline import Timeline
from cdc.model.position import Cut

EARLIER: Final = 4
"""Earlier files that stay decoded: about 10 MB each."""


class Volumes:
    """``newest`` is None until there is a log. All others of its answers raise LogCorrupt for damage, naming the file and the byte."""

    def __init__(self, places: LogPlaces) -> None:
        self.newest: Timeline | None = None
        self._places = places
        self._fd = -1
        self._earlier: OrderedDict[int, Timeline] = OrderedDict()

    def catch_up(self, head: Head) -> Timeline:
        """Takes in the groups up to what the head says."""
        path, offset = self._places.timeline(head.timeline), 0
        try:
            timeline = self._of(head)
            offset = timeline.length
            data = _read_range(self._fd, offset, head.timeline_bytes)
            done = timeline.extend(data)
        except FileNotFoundError:
            raise LogCorrupt(f"{path}: missing") from None
        except Damaged as damage:
            raise LogCorrupt(f"{path} at byte {offset + damage.offset}: {damage.what}") from None
        if offset + done < head.timeline_bytes:
            raise LogCorrupt(f"{path} at byte {offset + done}: the entry is damaged, though it was durable")
        if head.timeline_crc != timeline.crc or head.position != timeline.head.position:
            raise LogCorrupt(f"{path} at byte {timeline.length}: does not end as the head says")
        return timeline

    def _of(self, head: Head) -> Timeline:
        """The file that the head names, as far as it has been taken in. Raises Damaged, FileNotFoundError."""
        timeline = self.newest
        if timeline is None or timeline.number < head.timeline:
            fd = plainfile.opened(self._places.timeline(head.timeline))
            try:
                found = Timeline.beginning(_read_range(fd, 0, head.timeline_bytes))
                if found.number != head.timeline or (timeline is not None and found.log_id != timeline.log_id):
                    raise Damaged(0, "the file is another one, or of another log")
                if timeline is not None:
                    self._take_leave(timeline, found)
            except BaseException:
                os.close(fd)
                raise
            self._close_newest()
            self._fd, timeline = fd, found
            self.newest = timeline
        if head.log_id != timeline.log_id or head.timeline < timeline.number or head.timeline_bytes < timeline.length:
            raise Damaged(0, "the head is of another log, or an older one")
        return timeline

    def _take_leave(self, last: Timeline, found: Timeline) -> None:
        """The file that was the newest until now has to end as the checkpoint in the new one says: else this is a log with another past, of
        which this reader has told things that are not so. Raises Damaged."""
        length, crc = _end_of(found, last.number)
        last.extend(_read_range(self._fd, last.length, length))
        if (last.length, last.crc) != (length, crc):
            raise Damaged(
                0,
                f"what this reader knows of file {last.number} is not what this one follows: an older copy of the log was restored",
            )

    def _earlier_file(self, newest: Timeline, number: int) -> Timeline:
        found = self._earlier.pop(number, None)
        if found is None or (found.length, found.crc) != _end_of(newest, number):
            found = self._read(newest, number)
        self._earlier[number] = found
        while len(self._earlier) > EARLIER:
            self._earlier.popitem(last=False)
        return found

    def _read(self, newest: Timeline, number: int) -> Timeline:
        path, (length, crc) = self._places.timeline(number), _end_of(newest, number)
        try:
            found = Timeline.whole(plainfile.content(path)[:length])
        except FileNotFoundError:
            raise LogCorrupt(f"{path}: missing") from None
        except Damaged as damage:
            raise LogCorrupt(f"{path} at byte {damage.offset}: {damage.what}") from None
        if (found.log_id, found.number, found.length, found.crc) != (newest.log_id, number, length, crc):
            raise LogCorrupt(f"{path} at byte {found.length}: does not end as the file after it says")
        return found

    # --- which file knows --------------------------------------------------------------------------------------------

    def behind(self, position: int) -> Timeline | None:
        """The file that has the first cut behind a position, and the last one at or below it or directly before its own first."""
        newest = self.newest
        if newest is None or position >= newest.before.head.position:
            return newest
        earlier = newest.before.volumes
        return self._earlier_file(newest, newest.number - len(earlier) + int(earlier["last"].searchsorted(position, "right")))

    def over(self, after: int, upto: int, most: int) -> list[Timeline] | None:
        """The files whose groups hold positions in (after, upto]; None for more than so many."""
        newest = self.newest
        if newest is None:
            return []
        ends = newest.before.volumes["last"]
        low, high = int(ends.searchsorted(after, "right")), int(ends.searchsorted(upto, "left"))
        if high - low >= most:
            return None
        first = newest.number - len(ends)
        return [newest if number == len(ends) else self._earlier_file(newest, first + number) for number in range(low, high + 1)]

    def reaching(self, lsn: int) -> Timeline | None:
        """The file that has the first cut which reaches the LSN; the newest when none does."""
        newest = self.newest
        if newest is None:
            return None
        earlier = newest.before.volumes
        present = int(earlier["groups"].searchsorted(newest.lsns_rise_from, "right"))
        number = present + int(earlier["lsn"][present:].searchsorted(lsn, "left"))
        return newest if number == len(earlier) else self._earlier_file(newest, newest.number - len(earlier) + number)

    # --- questions about all cuts ------------------------------------------------------------------------------------

    def within(self, after: int, max_rows: int, max_bytes: int) -> Cut | None:
        """See ``LogReader.cut_within``; None without a log."""
        newest, at = self.newest, self.behind(after)
        if newest is None or at is None:
            return None
        next_one = at.following(after)
        if next_one is None:
            return newest.head
        cut, done = next_one
        position, running = after + max_rows, done + max_bytes
        earlier = newest.before.volumes
        # The first file that ends beyond one of the limits has the furthest cut within them, or begins behind it.
        number = min(int(earlier[name].searchsorted(most, "right")) for name, most in (("last", position), ("bytes", running)))
        last = newest if number == len(earlier) else self._earlier_file(newest, newest.number - len(earlier) + number)
        furthest = last.furthest(position, running)
        return furthest if furthest.position >= cut.position else cut

    def cuts(self, since: int) -> Iterator[Cut]:
        """Every cut from the one with this number on, in order."""
        newest = self.newest
        if newest is None:
            return
        earlier = newest.before.volumes
        first = newest.number - len(earlier)
        for number in range(int(earlier["groups"].searchsorted(since, "right")), len(earlier) + 1):
            file = newest if number == len(earlier) else self._earlier_file(newest, first + number)
            yield from (file.cut(one) for one in range(max(0, since - file.before.groups), len(file.cuts)))

    def close(self) -> None:
        self._close_newest()
        self._earlier.clear()
        self.newest = None

    def _close_newest(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _end_of(newest: Timeline, number: int) -> tuple[int, int]:
    """(length, last checksum) of an earlier file, as the newest one's checkpoint has it."""
    end = newest.before.volumes[number - newest.number]
    return int(end["length"]), int(end["end_crc"])


def _read_range(fd: int, start: int, end: int) -> bytes:
    """Bytes [start, end), or as many of them as there are."""
    pieces = []
    end = min(end, os.fstat(fd).st_size)  # never room for more than there is, whatever the head says
    while start < end and (piece := os.pread(fd, end - start, start)):
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
