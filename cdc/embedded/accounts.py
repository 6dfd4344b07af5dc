"""Postgres refuses to run as root: the account it runs as then, and the places that this account can reach."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from cdc.embedded import EmbeddedError
from cdc.embedded.cache import write_whole

_CANDIDATES = ("nobody", "daemon")
_NOTE = ".stands-for"


class PopenOptions(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: int
    gid: int

    def can_reach(self, path: Path) -> bool:
        """Whether every folder from the root down to ``path`` (as far as it exists) lets this account through."""
        whole = path.resolve()
        return all(self._may_search(folder) for folder in (whole, *whole.parents) if folder.exists())

    def _may_search(self, folder: Path) -> bool:
        status = folder.stat()
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IXUSR)
        if status.st_gid == self.gid:
            return bool(status.st_mode & stat.S_IXGRP)
        return bool(status.st_mode & stat.S_IXOTH)


def popen_options(account: Account | None) -> PopenOptions:
    """The options with which ``subprocess`` starts a child as this account; nothing for our own."""
    return {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": []}


def service_account() -> Account | None:
    """The account for servers that refuse to run as root; None when we are not root. Raises EmbeddedError when there is none."""
    if os.geteuid() != 0:
        return None
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedError(
        "Postgres does not run as root, and there is no account 'nobody' to run it as", hint="run as an ordinary user"
    )


def reachable_for(account: Account | None, wanted: Path) -> Path:
    """``wanted``, or when the account cannot get there (a clone below root's own home, say) a stand-in for it elsewhere.

    The same ``wanted`` always has the same stand-in. Neither is created.
    """
    if account is None or account.can_reach(wanted):
        return wanted
    digest = hashlib.sha256(str(wanted.resolve()).encode()).hexdigest()[:12]
    return _own_folder(Path("/var/tmp") / f"headwater-{os.geteuid()}") / digest


def take_stand_in(stand_in: Path, wanted: Path) -> None:
    """Notes down what ``stand_in`` stands for, and removes the stand-ins of folders whose place is gone (a test's, say)."""
    if stand_in == wanted:
        return
    wanted.parent.mkdir(parents=True, exist_ok=True)
    write_whole(stand_in.with_suffix(_NOTE), str(wanted).encode())
    for note in stand_in.parent.glob(f"*{_NOTE}"):
        try:
            place = Path(note.read_text(encoding="utf-8")).parent
        except FileNotFoundError:
            continue  # another process was quicker
        if not place.exists():
            shutil.rmtree(note.with_suffix(""), ignore_errors=True)
            note.unlink(missing_ok=True)


def _own_folder(folder: Path) -> Path:
    """A folder of ours where everyone may write: refused when somebody else made it first."""
    folder.mkdir(mode=0o755, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise EmbeddedError(f"{folder} belongs to somebody else", hint=f"remove {folder}")
    return folder
