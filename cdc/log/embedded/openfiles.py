"""The segments' files that the writer keeps open between commits."""

from __future__ import annotations

import os
import resource
from collections import OrderedDict
from typing import Final

from cdc.log.embedded.disk import Disk
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.tail import OpenTopic

OPEN_FILES: Final = 2048
"""The most that stay open between commits, where the process may have four times as many files open."""


class OpenFiles:
    """By topic and segment; the one that was used longest ago is closed first."""

    def __init__(self, places: LogPlaces, disk: Disk) -> None:
        self._places = places
        self._disk = disk
        self._fds: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._most = min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)

    def of(self, topic: OpenTopic, segment: int) -> int:
        """The segment's descriptor. Raises OSError."""
        key = (topic.number, segment)
        fd = self._fds.get(key)
        if fd is None:
            fd = self._fds[key] = self._disk.open(self._places.segment(topic.name, segment))
        else:
            self._fds.move_to_end(key)
        return fd

    def create(self, topic: OpenTopic, segment: int) -> int:
        """The descriptor of a segment that is new, as its topic's folder may be. Raises OSError."""
        path = self._places.segment(topic.name, segment)
        if not topic.folder_exists:
            self._disk.make_folder(path.parent)
        fd = self._fds[topic.number, segment] = self._disk.create(path)
        return fd

    def forget(self, number: int, segment: int) -> None:
        """``number``: the topic's. Closes the file, if it is open."""
        fd = self._fds.pop((number, segment), None)
        if fd is not None:
            self._disk.close(fd)

    def trim(self) -> None:
        """Closes what is too many."""
        while len(self._fds) > self._most:
            self._disk.close(self._fds.popitem(last=False)[1])

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
