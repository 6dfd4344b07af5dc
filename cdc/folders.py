"""Folders that nobody else may put anything into, or even read: the log and what processes tell each other, code that we keep for ourselves, and
the warehouse, which others may read.

What belongs to us and is open to others is closed. What somebody else made or could have put something into is refused, because what is
found in it would be believed: a row, a stop state, a class that is loaded.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import Final

import structlog

from cdc.errors import ConfigError

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_ACL: Final = "system.posix_acl_access"

_log = structlog.get_logger("folders")


def own(folder: Path, setting: str) -> None:
    """Makes the folder, or what is there ours alone (mode 0700). ``setting``: what names it. Raises ConfigError, and OSError of ``mkdir``.

    Readers that an access control list names stay: somebody has let them in on purpose.
    """
    folder = folder.absolute()
    found = _made(folder, setting, 0o700)
    if not found.st_mode & _OTHERS or (not found.st_mode & (_OTHERS_WRITE | stat.S_IRWXO) and _has_acl(folder)):
        return
    if found.st_mode & _OTHERS_WRITE:
        _refuse_planted(folder, setting)
    _close(folder, 0o700, setting)


def own_code(folder: Path, setting: str) -> None:
    """Makes sure that nobody but us and root has put, or can put, anything into a folder whose content is run. It need not be secret.

    Makes it where it is missing. Raises ConfigError, naming what is wrong and the command that helps, and OSError of ``mkdir``.
    """
    folder = folder.absolute()
    _refuse_led_astray(folder, setting)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid not in _trusted():
        raise _not_ours(folder, found.st_uid, setting)
    if not found.st_mode & _OTHERS_WRITE:
        return
    _refuse_planted(folder, setting)
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"{setting}: others may write in {folder}, and what lies there is run", hint=f"let root run: chmod go-w {folder}"
        )
    _close(folder, stat.S_IMODE(found.st_mode) & ~_OTHERS_WRITE, setting)


def own_data(folder: Path, setting: str) -> None:
    """Makes sure that a folder is ours, and that nobody else has put, or can put, anything into it. Who may read it stays as it is.

    Makes it where it is missing. Raises ConfigError, naming what is wrong and the command that helps, and OSError of ``mkdir``.
    """
    folder = folder.absolute()
    found = _made(folder, setting, 0o777)  # less what the umask takes away: somebody may be meant to read it
    if found.st_mode & _OTHERS_WRITE:
        _refuse_planted(folder, setting)
        _close(folder, stat.S_IMODE(found.st_mode) & ~_OTHERS_WRITE, setting)


def _made(folder: Path, setting: str, mode: int) -> os.stat_result:
    """Makes the folder where it is missing. Raises ConfigError when it is not ours, or a link leads there, and OSError of ``mkdir``."""
    _refuse_led_astray(folder, setting)
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise _not_ours(folder, found.st_uid, setting)
    return found


def _close(folder: Path, mode: int, setting: str) -> None:
    before = stat.S_IMODE(folder.stat().st_mode)
    folder.chmod(mode)
    after = stat.S_IMODE(folder.stat().st_mode)
    if after == mode:
        _log.info(
            "a folder was open to others and no longer is",
            setting=setting,
            folder=str(folder),
            was=f"{before:04o}",
            now=f"{after:04o}",
        )
    else:
        _log.warning("a folder is open to others: its file system keeps no modes", setting=setting, folder=str(folder))


def _refuse_led_astray(folder: Path, setting: str) -> None:
    """A symbolic link of somebody else's decides where our files go, today or tomorrow."""
    for place in (*reversed(folder.parents), folder):
        if place.is_symlink() and (owner := place.lstat().st_uid) not in _trusted():
            raise ConfigError(
                f"{setting}: {place} is a symbolic link that belongs to {_name(owner)}",
                hint=f"name the folder that is meant in {setting}",
            )


def _refuse_planted(folder: Path, setting: str) -> None:
    """Others could write here: what they left is found before it is believed."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            if (owner := path.lstat().st_uid) not in _trusted():
                raise ConfigError(
                    f"{setting}: others may write in {folder}, and {path} belongs to {_name(owner)}",
                    hint=f"see what it is and remove it, then: chmod -R go-w {folder}",
                )


def _not_ours(folder: Path, owner: int, setting: str) -> ConfigError:
    us = _name(os.geteuid())
    return ConfigError(
        f"{setting}: {folder} belongs to {_name(owner)}, not to {us}, as whom this runs",
        hint=f"name a folder that does not exist yet, or: sudo chown -R {us} {folder} && chmod 0700 {folder}",
    )


def _has_acl(folder: Path) -> bool:
    try:
        return bool(os.getxattr(folder, _ACL))
    except (OSError, AttributeError):
        return False


def _trusted() -> frozenset[int]:
    return frozenset((0, os.geteuid()))


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
