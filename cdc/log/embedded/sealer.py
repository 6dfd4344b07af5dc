"""Sealing: a closed segment becomes Parquet, in the background, and readers do not notice.

Order of the steps, so that a crash leaves the segment or its Parquet files or both, never neither: each file is written aside
and synced, all are renamed, the folder is synced, and only then the segment goes.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa

from cdc.background import lower_priority
from cdc.crashpoint import crashpoint
from cdc.errors import LogCorrupt
from cdc.log.embedded.disk import Disk
from cdc.log.embedded.names import ASIDE, LogPlaces, Sealed
from cdc.log.embedded.sealedsegment import encode
from cdc.log.embedded.segment import Segment, SegmentPlace
from cdc.log.embedded.topicindex import SegmentRun

JOB = tuple[SegmentPlace, SegmentRun]
CHUNK_BYTES: Final = 4 * 2**20
"""How much of the segment is mapped at a time; a row group's batches and the Parquet file's own bytes come on top."""
RETRY_S: Final = 5.0
NICE: Final = 10
"""The thread's priority (Linux: a thread has its own): what is to be durable, and the server that sends it, come first."""


def seal(places: LogPlaces, disk: Disk, place: SegmentPlace, run: SegmentRun) -> None:
    """Turns one durable, closed segment (``run``: all of it) into Parquet and removes it.

    Raises LogCorrupt when the segment is damaged, OSError when the disk refuses; the segment is then still there.
    """
    crashpoint("seal.begun")
    segment = Segment(places.segment(place.name, place.first), place)
    folder = segment.path.parent
    try:
        put(disk, folder, encode(place, segment.scan(run, CHUNK_BYTES)))
        crashpoint("seal.before_remove")
        disk.remove(segment.path)
        crashpoint("seal.removed")
        disk.sync_folder(folder)
    finally:
        segment.close()


def put(disk: Disk, folder: Path, files: Iterable[tuple[Sealed, pa.Buffer]]) -> list[tuple[Sealed, int]]:
    """Puts sealed files into a topic's folder, durably: each is written aside and synced, and only when all are there do they get their
    names. Returns these, and each file's bytes. Raises OSError when the disk refuses; what was written aside is then gone again, so that
    a full disk does not stay full of it."""
    written: list[tuple[Sealed, int]] = []
    aside: Path | None = None
    try:
        for name, data in files:
            aside = folder / f"{ASIDE}{name.file}"
            aside.unlink(missing_ok=True)
            fd = disk.create(aside)
            try:
                disk.write(fd, [data], 0)
                disk.sync(fd)
            finally:
                disk.close(fd)
            written.append((name, data.size))
            crashpoint("seal.written_aside")
        for name, _ in written:
            disk.rename(folder / f"{ASIDE}{name.file}", folder / name.file)
            crashpoint("seal.renamed")
        disk.sync_folder(folder)
    except Exception:
        for path in (*(folder / f"{ASIDE}{name.file}" for name, _ in written), *([aside] if aside else ())):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        raise
    return written


class Sealer:
    """The background thread. It only touches closed segments, so it never waits for the writer nor the writer for it."""

    def __init__(self, places: LogPlaces, disk: Disk) -> None:
        self._places = places
        self._disk = disk
        self._jobs: queue.Queue[JOB | None] = queue.Queue()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.corrupt: LogCorrupt | None = None
        """Damage that was met; the writer raises it at its next commit."""
        self.refused: OSError | None = None
        """Why the disk refused the last attempt (it is repeated every few seconds); None once it worked."""

    def add(self, place: SegmentPlace, run: SegmentRun) -> None:
        self._jobs.put((place, run))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="log-seal", daemon=True)
            self._thread.start()

    def drain(self) -> None:
        """Returns when everything added so far is sealed, or is damaged. Where the disk refuses, it waits until the disk takes it."""
        self._jobs.join()

    def idle(self) -> bool:
        """Whether nothing is left to seal that the disk does not refuse, or nobody is left to do it."""
        ended = self._thread is not None and not self._thread.is_alive()
        return self.refused is not None or not self._jobs.unfinished_tasks or ended

    def close(self) -> None:
        """Finishes the segment at hand; the others are sealed by the next writer."""
        self._stopping.set()
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()

    def _work(self) -> None:
        lower_priority(NICE)
        while True:
            job = self._jobs.get()
            try:
                if job is None or self._stopping.is_set():
                    return
                self._seal(*job)
            finally:
                self._jobs.task_done()

    def _seal(self, place: SegmentPlace, run: SegmentRun) -> None:
        while True:
            try:
                seal(self._places, self._disk, place, run)
                self.refused = None
                return
            except LogCorrupt as error:
                self.corrupt = error
                return
            except OSError as error:
                self.refused = error
                if self._stopping.wait(RETRY_S):
                    return
