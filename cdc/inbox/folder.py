"""The inbox's folder: files that wait to be taken, and those that were refused. The only file of
this room that touches the disk.

```
<log>/inbox/PRODUCER~EPOCH~NUMBER~HASH.arrow    handed over: written aside, synced, renamed, the folder synced
<log>/inbox/.aside-…                            being written; does not count
<log>/inbox/refused/NAME, NAME.reason           put aside, with the reason; only the newest are kept
```
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

from cdc.crashpoint import crashpoint
from cdc.folders import own
from cdc.inbox.groupfile import MAX_GROUP_BYTES, GroupName, GroupRefused, digest_of, name_of
from cdc.state import jsonfile

FOLDER: Final = "inbox"
KEPT_REFUSALS: Final = 32
MAX_LISTED: Final = 10_000
"""The most producers, and the most names of anything else, that one look at the folder brings."""

_REFUSED: Final = "refused"
_REASON: Final = ".reason"
_ASIDE: Final = ".aside-"
_LEFT_OVER_S: Final = 86_400.0
_NONBLOCKING: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class InboxFolder:
    """``log``: the log's folder. Makes the inbox where it is missing, and closes it to others."""

    def __init__(self, log: Path) -> None:
        """Raises ConfigError when the folder is not ours, OSError."""
        self.root = log / FOLDER
        new = not self.root.exists()
        own(self.root, "log.dir")
        if new:
            jsonfile.sync_folder(log)
        self._refused = self.root / _REFUSED
        self._stuck: dict[str, float] = {}
        """File → until when it is passed over."""
        self.followed: set[str] = set()
        """The producers of which several groups waited when it was looked last."""

    # --- the producer's side ---------------------------------------------------------------------------------------------

    def hand_over(self, producer: str, epoch: int, number: int, raw: bytes) -> GroupName:
        """Durable on return. Raises OSError, which names the file."""
        name = GroupName(producer, epoch, number, digest_of(raw))
        aside = self.root / f"{_ASIDE}{secrets.token_hex(8)}"
        try:
            with open(jsonfile.create(aside), "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            crashpoint("inbox.handed.written_aside")
            aside.rename(self.root / name.file)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(aside)) from error  # a write does not say where
        crashpoint("inbox.handed.renamed")
        jsonfile.sync_folder(self.root)
        return name

    def waits(self, name: GroupName) -> bool:
        """Whether the writer has not looked at it yet."""
        return (self.root / name.file).exists()

    def reason(self, name: GroupName) -> str | None:
        """Why it was refused; None when it was not, or so long ago that nothing is kept of it."""
        try:
            return (self._refused / f"{name.file}{_REASON}").read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None

    def left_over(self, older_than_s: float = _LEFT_OVER_S) -> None:
        """Removes what producers that have ended left half written."""
        before = time.time() - older_than_s
        for entry in self._entries():
            if entry.name.startswith(_ASIDE) and entry.stat(follow_symlinks=False).st_mtime < before:
                with suppress(OSError):
                    Path(entry.path).unlink()

    # --- the writer's side -----------------------------------------------------------------------------------------------

    def waiting(self, now: float) -> tuple[list[GroupName], list[str]]:
        """The first group of each producer that has one, and the names of whatever else lies there.
        The folder lists names in any order, so all of them are seen, however many there are.
        """
        self._stuck = {file: until for file, until in self._stuck.items() if until > now}
        first: dict[str, GroupName] = {}
        self.followed = set()
        strange: list[str] = []
        for entry in self._entries():
            if entry.name == _REFUSED or entry.name.startswith(_ASIDE) or entry.name in self._stuck:
                continue
            name = name_of(entry.name)
            if name is None:
                if len(strange) < MAX_LISTED:
                    strange.append(entry.name)
            elif name.producer in first:
                self.followed.add(name.producer)
                first[name.producer] = min(name, first[name.producer])
            elif len(first) < MAX_LISTED:
                first[name.producer] = name
        return sorted(first.values()), strange

    def newest_epoch(self, producer: str) -> int:
        """The newest opening of which something of this producer waits; 0 where nothing does."""
        names = (name_of(entry.name) for entry in self._entries())
        return max((name.epoch for name in names if name is not None and name.producer == producer), default=0)

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        with os.scandir(self.root) as entries:
            yield from entries

    def read(self, name: GroupName) -> bytes:
        """All of the file's bytes. Raises GroupRefused for what is not an ordinary file of ours,
        FileNotFoundError when it is gone, OSError.
        """
        try:
            descriptor = os.open(self.root / name.file, _NONBLOCKING)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise GroupRefused("it is not an ordinary file") from None
            raise
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise GroupRefused("it is not an ordinary file")
        with open(descriptor, "rb") as file:
            if found.st_uid != os.geteuid():
                raise GroupRefused("it belongs to another account than the one that writes the log")
            if found.st_size > MAX_GROUP_BYTES:
                raise GroupRefused(f"a group is at most {MAX_GROUP_BYTES} bytes long")
            return file.read(MAX_GROUP_BYTES + 1)

    def remove(self, name: GroupName) -> None:
        """Removes what has been taken. Not synced: a file that comes back after a power loss is a
        repeat.
        """
        (self.root / name.file).unlink(missing_ok=True)

    def put_aside(self, file: str, reason: str) -> None:
        """Keeps it where nobody takes it, with the reason. Raises OSError."""
        kept = file if name_of(file) is not None else f"unknown-{blake2b(os.fsencode(file), digest_size=16).hexdigest()}"
        try:
            jsonfile.make_folder(self._refused)
            with open(jsonfile.create(self._refused / f"{kept}{_REASON}"), "w", encoding="utf-8") as note:
                note.write(f"{reason}\n")
            crashpoint("inbox.refused.written")
            (self.root / file).rename(self._refused / kept)
            self._forget_the_oldest()
        except FileNotFoundError:
            return

    def pass_over(self, file: str, until: float) -> None:
        """Looks at it no more until then: it can neither be removed nor put aside."""
        self._stuck[file] = until

    def _forget_the_oldest(self) -> None:
        kept = sorted(self._refused.iterdir(), key=lambda path: (path.lstat().st_mtime, path.name), reverse=True)
        for old in kept[2 * KEPT_REFUSALS :]:
            if stat.S_ISDIR(old.lstat().st_mode):
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.unlink(missing_ok=True)
