"""The writer's end of the timeline, and the head: a group's entry is appended and synced, and then said to be durable."""

from __future__ import annotations

import os

from cdc.crashpoint import crashpoint
from cdc.log.embedded.disk import Disk
from cdc.log.embedded.format import HEAD_BYTES, Head, decode_head
from cdc.log.embedded.fuse import Fuse
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.records import GroupEntry, encode_group


class Journal:
    """``published``: what the head says, once the recovered log is open."""

    def __init__(self, places: LogPlaces, disk: Disk, fuse: Fuse, published: Head) -> None:
        self.published = published
        self._disk = disk
        self._fuse = fuse
        self._timeline_fd = self._head_fd = -1
        try:
            self._timeline_fd = disk.open(places.timeline)
            self._head_fd = disk.open(places.head)
        except BaseException:
            self.close()
            raise

    def append(self, group: GroupEntry) -> None:
        """Makes the group exist. Raises HeadwaterError when another writer has taken the log over; OSError when the disk refuses, with the fuse
        blown unless nothing of the group is there."""
        before = self.published
        standing = decode_head(os.pread(self._head_fd, HEAD_BYTES, 0))
        if standing is None or standing.epoch != before.epoch:
            self._fuse.blow("another writer has taken the log over")
            self._fuse.check()
        records, crc = encode_group(group, before.timeline_crc)
        try:
            crashpoint("log.timeline.before_write")
            self._disk.write(self._timeline_fd, [records], before.timeline_bytes)
        except OSError:
            with self._fuse.protecting():
                self._disk.truncate(self._timeline_fd, before.timeline_bytes)
            raise
        head = Head(
            before.log_id, before.epoch, group.last, group.commit_lsn, group.commit_ts_us,
            before.timeline_bytes + len(records), crc,
        )  # fmt: skip
        with self._fuse.protecting():
            try:
                crashpoint("log.timeline.written")
                self._disk.sync(self._timeline_fd)
            except OSError:
                # Nobody may find this entry later and take it for durable.
                self._disk.truncate(self._timeline_fd, before.timeline_bytes)
                raise
            crashpoint("log.timeline.fsynced")
            self._disk.write(self._head_fd, [head.encode()], 0)
            crashpoint("log.head.written")
        self.published = head

    def close(self) -> None:
        for fd in (self._timeline_fd, self._head_fd):
            if fd >= 0:
                os.close(fd)
        self._timeline_fd = self._head_fd = -1
