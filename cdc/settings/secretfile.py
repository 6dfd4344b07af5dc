"""A secret that stands in a file, which may be rotated while we run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import structlog
from pydantic import SecretStr

MAX_FILE_BYTES: Final = 1 << 20
"""Nobody writes a longer configuration by hand."""

_log = structlog.get_logger("settings")


class SecretFile(SecretStr):
    """A secret that stands in a file. It is read again each time it is asked for, so that a rotated password counts from the next
    connection on; while the file cannot be read, the last one that could counts, which is said once."""

    def __init__(self, secret: str, path: Path) -> None:
        super().__init__(secret)
        self._path = path
        self._problem: str | None = None

    def get_secret_value(self) -> str:
        problem = None
        try:
            with open(self._path, encoding="utf-8") as file:
                text = file.read(MAX_FILE_BYTES + 1)
        except (OSError, UnicodeDecodeError) as error:
            problem = getattr(error, "strerror", None) or "it is not text"
        else:
            if text and len(text) <= MAX_FILE_BYTES:
                self._secret_value = text.rstrip("\r\n")
            else:
                problem = "it is too long" if text else "it is empty"
        if problem not in (None, self._problem):
            hint = f"make it readable for this account again: {self._path}"
            _log.warning(
                "a secret's file cannot be read, so the last secret counts", file=str(self._path), problem=problem, hint=hint
            )
        self._problem = problem
        return self._secret_value


def is_secret(annotation: Any) -> bool:
    """Whether what a key of this type holds is secret: one text, several in a list, or several by their names."""
    return annotation is SecretStr or SecretStr in get_args(annotation)


def may_be_a_file(annotation: Any) -> bool:
    """Whether such a key, KEY, may be given as KEY_file."""
    return is_secret(annotation) and get_origin(annotation) is not Mapping


def texts_in(value: object) -> Iterator[str]:
    """The texts of what stands in a secret key."""
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else (value,)
    return (one for one in inside if isinstance(one, str))
