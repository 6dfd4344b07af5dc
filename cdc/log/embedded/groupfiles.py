"""The two files that make a group exist: its entry in the timeline, and behind that the head, which readers believe."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import Final

from cdc.crashpoint import crashpoint
from cdc.errors import LogCorrupt
from cdc.log.embedded import checkpoint
from cdc.log.embedded.disk import Disk
from cdc.log.embedded.format import HEAD_BYTES, Damaged, Head, decode_head
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.records import GroupEntry, encode_group
from cdc.log.embedded.timeline import Timeline

FILE_BYTES: Final = 8 * 2**20
"""A file of the timeline is about so long: what a reader decodes when it opens the log."""


class GroupFiles:
    """The writer's open timeline and head. Publishing a group is ``enter``, a sync of ``timeline_fd``, then ``advance``; before that ``take_back``
    undoes it.

    Every method raises OSError as the disk gives it. What the disk then holds is for the caller to judge.
    """

    def __init__(self, places: LogPlaces, disk: Disk, head: Head, *, file_bytes: int = FILE_BYTES, begun: int = 0) -> None:
        """``head``: what both files say already. ``begun``: how much of the timeline's file is its checkpoint. ``file_bytes``: so many bytes of groups
        make a file long enough for the next one to begin."""
        self._disk = disk
        self._places = places
        self._file_bytes = file_bytes
        self._full_at = begun + max(file_bytes, begun)
        self.timeline_fd = disk.open(places.timeline(head.timeline))
        """The timeline's newest file. The caller syncs it together with what the entry names."""
        try:
            self._head_fd = disk.open(places.head)
        except BaseException:
            os.close(self.timeline_fd)
            raise
        self.head = head
        """The last one that was published."""

    def is_ours(self) -> bool:
        """Whether the file still has a head of this writer: one that opens the log begins an epoch of its own."""
        standing = decode_head(os.pread(self._head_fd, HEAD_BYTES, 0))
        return standing is not None and standing.epoch == self.head.epoch

    def enter(self, group: GroupEntry) -> Head:
        """Writes the group's entry, and returns the head that publishes it. Nothing is durable yet, and an error may leave part of it behind."""
        before = self.head
        records, crc = encode_group(group, before.timeline_crc)
        crashpoint("log.timeline.before_write")
        self._disk.write(self.timeline_fd, [records], before.timeline_bytes)
        crashpoint("log.timeline.written")
        return Head(
            before.log_id, before.epoch, group.last, group.commit_lsn, group.commit_ts_us,
            before.timeline, before.timeline_bytes + len(records), crc,
        )  # fmt: skip

    def take_back(self, *, durably: bool = False) -> None:
        """Removes what was entered and is not published. ``durably``: what a power loss brought back behind a shorter entry would pass for a group
        that follows it."""
        self._disk.truncate(self.timeline_fd, self.head.timeline_bytes)
        if durably:
            self._disk.sync(self.timeline_fd)

    def advance(self, head: Head) -> None:
        """Publishes what was entered. It is durable, and so is what it names."""
        self._disk.write(self._head_fd, [head.encode()], 0)
        crashpoint("log.head.written")
        self.head = head

    # --- the timeline's next file ------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether the timeline's next file should begin. A checkpoint is never the larger part of what is written."""
        return self.head.timeline_bytes >= self._full_at

    def write_next(self) -> Head:
        """Writes the next file aside, synced, and returns the head that names it. Raises LogCorrupt when the one at hand is damaged. An error of the
        disk changes nothing; the next attempt is made when the file has grown again."""
        self._full_at = self.head.timeline_bytes + self._file_bytes
        head, aside = self.head, self._places.aside_timeline
        data, crc = next_file(self._places, head)
        aside.unlink(missing_ok=True)
        fd = self._disk.create(aside)
        try:
            crashpoint("log.rollover.created")
            self._disk.write(fd, [data], 0)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        crashpoint("log.rollover.written")
        return replace(head, timeline=head.timeline + 1, timeline_bytes=len(data), timeline_crc=crc)

    def begin_next(self, head: Head) -> None:
        """From now on groups go into the file that was written aside. The head's own file says so with the next group."""
        path = self._places.timeline(head.timeline)
        if path.exists():
            raise FileExistsError(errno.EEXIST, "somebody else has begun the timeline's next file", str(path))
        self._disk.rename(self._places.aside_timeline, path)
        crashpoint("log.rollover.named")
        self._disk.sync_folder(path.parent)
        crashpoint("log.rollover.begun")
        fd = self._disk.open(path)
        self._disk.close(self.timeline_fd)
        self.timeline_fd, self.head = fd, head
        self._full_at = head.timeline_bytes + max(self._file_bytes, head.timeline_bytes)

    def close(self) -> None:
        for fd in (self.timeline_fd, self._head_fd):
            if fd >= 0:
                os.close(fd)
        self.timeline_fd = self._head_fd = -1


def next_file(places: LogPlaces, head: Head) -> tuple[bytes, int]:
    """(its first bytes, the last checksum) of the timeline's file behind the one that the head names. Raises LogCorrupt."""
    path = places.timeline(head.timeline)
    try:
        timeline = Timeline.whole(path.read_bytes()[: head.timeline_bytes])
    except Damaged as damage:
        raise LogCorrupt(f"{path} at byte {damage.offset}: {damage.what}") from None
    if (timeline.length, timeline.crc) != (head.timeline_bytes, head.timeline_crc):
        raise LogCorrupt(f"{path} at byte {timeline.length}: does not end as it was written")
    return checkpoint.encode(timeline)
