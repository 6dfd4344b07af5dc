"""The two files that make a group exist: its entry in the timeline, and behind that the head, which readers believe."""

from __future__ import annotations

import os

from cdc.crashpoint import crashpoint
from cdc.log.embedded.disk import Disk
from cdc.log.embedded.format import HEAD_BYTES, GroupEntry, Head, decode_head, encode_group
from cdc.log.embedded.names import LogPlaces


class GroupFiles:
    """The writer's open timeline and head. Publishing a group is ``enter``, then ``advance``; between the two ``take_back`` undoes it.

    Every method raises OSError as the disk gives it. What the disk then holds is for the caller to judge.
    """

    def __init__(self, places: LogPlaces, disk: Disk, head: Head) -> None:
        """``head``: what both files say already."""
        self._disk = disk
        self._timeline_fd = disk.open(places.timeline)
        try:
            self._head_fd = disk.open(places.head)
        except BaseException:
            os.close(self._timeline_fd)
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
        self._disk.write(self._timeline_fd, [records], before.timeline_bytes)
        return Head(
            before.log_id, before.epoch, group.last, group.commit_lsn, group.commit_ts_us,
            before.timeline_bytes + len(records), crc,
        )  # fmt: skip

    def take_back(self) -> None:
        """Removes what was entered and is not published."""
        self._disk.truncate(self._timeline_fd, self.head.timeline_bytes)

    def advance(self, head: Head) -> None:
        """Makes the entry durable and publishes it. An entry that could not be synced is taken back."""
        try:
            crashpoint("log.timeline.written")
            self._disk.sync(self._timeline_fd)
        except OSError:
            # Nobody may find this entry later and take it for durable.
            self.take_back()
            raise
        crashpoint("log.timeline.fsynced")
        self._disk.write(self._head_fd, [head.encode()], 0)
        crashpoint("log.head.written")
        self.head = head

    def close(self) -> None:
        for fd in (self._timeline_fd, self._head_fd):
            if fd >= 0:
                os.close(fd)
        self._timeline_fd = self._head_fd = -1
