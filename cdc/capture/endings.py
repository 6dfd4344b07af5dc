"""The server's words besides changes (notices, and the error that ends a stream), and errors that come again at the same place. Pure.

DETAIL and CONTEXT may quote rows; of CONTEXT only the LSN is taken that the output plugin was at.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg

from cdc.errors import HeadwaterError, ProtocolError, Stopped, StopState, presentable
from cdc.model.position import Lsn, format_lsn, parse_lsn

_ASSOCIATED: Final = re.compile(rb"associated LSN ([0-9A-F]{1,8}/[0-9A-F]{1,8})")
_UNDECODABLE: Final = ("0A", "22", "42", "54", "XX")
"""SQLSTATE classes of what fails again at the same place, however often it is sent: unsupported, data, undefined, too large, internal."""
_UNMAPPED: Final = re.compile(r"could not map filen(ode|umber) .* to relation OID")
"""Internal errors are in no server's language but English; filenode up to 15."""
TRIES: Final = 3
_HINT: Final = (
    "deploy/runbook.md, POISON_ROW; cdc resume POISON_ROW tries again, with --skip LSN it passes and reads the tables again"
)


class StreamEnded(ConnectionError):
    """The server ended the stream with an error of its own. ``lsn``: of the change that it was at, where it says so."""

    def __init__(self, text: str, sqlstate: str, lsn: Lsn | None) -> None:
        super().__init__(f"the server ended the stream: {text}")
        self.text = text
        self.sqlstate = sqlstate
        self.lsn = lsn

    @property
    def undecodable(self) -> bool:
        """Connecting again leads to the same error, as far as its class tells."""
        return self.sqlstate[:2] in _UNDECODABLE

    @property
    def unmapped(self) -> bool:
        """A slot made while a table was being rewritten or truncated may not know the table's files of that moment, and never will."""
        return self.sqlstate == "XX000" and _UNMAPPED.search(self.text) is not None


class Unforeseen(ProtocolError):
    """The decoder failed with an error that it has no words for. It names the kind and the place: the error's own text may quote a row."""

    def __init__(self, error: Exception) -> None:
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        where = f" at {Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}" if at is not None else ""
        super().__init__(f"decoding it failed with {type(error).__name__}{where}")


@contextmanager
def decoding() -> Iterator[None]:
    """Turns an unexpected error into ``Unforeseen``, to be counted: the same bytes would cause it at every attempt.

    Errors of what the decoder asks while it is at it (files, the TOAST memory, the catalog) say nothing of the bytes and pass.
    """
    try:
        yield
    except (HeadwaterError, OSError, psycopg.Error, sqlite3.Error):
        raise
    except Exception as error:
        raise Unforeseen(error) from None


def ending(message: bytes) -> Exception:
    """Why the server ended the stream: its last message, whole. A Stopped, StreamEnded, or plain ConnectionError."""
    if message[:1] != b"E":
        return ConnectionError("the server ended the stream")
    fields = _fields(message[5:])
    sqlstate, text = fields.get("C", "?????"), _text(fields)
    if sqlstate == "42704" and "publication" in text:
        return _publication_lost(text)
    at = _ASSOCIATED.search(message)
    return StreamEnded(text, sqlstate, parse_lsn(at[1].decode()) if at else None)


def notice(fields: bytes) -> str:
    """The notice's text. Raises Stopped (PUBLICATION_LOST): from version 18 on, a server whose publication is gone warns once and
    leaves every change out, silently from then on."""
    said = _fields(fields)
    text = _text(said)
    if said.get("C") == "55000" and "publication" in text:
        raise _publication_lost(text)
    return text


@dataclass(slots=True)
class Poison:
    """Counts failures to get past one place. ``TRIES`` of the same kind there, with nothing made durable in between, are not an accident."""

    _at: tuple[int, str] = (-1, "")
    _times: int = field(default=0)

    def failed(self, durable_lsn: int, what: str, lsn: Lsn | None = None) -> None:
        """what: the error, without anything that may quote a row. Raises Stopped (POISON_ROW) when it has happened often enough."""
        place = (durable_lsn, what)
        self._times = self._times + 1 if place == self._at else 1
        self._at = place
        if self._times >= TRIES:
            where = f"at LSN {format_lsn(lsn)}" if lsn else f"in the first transaction behind LSN {format_lsn(durable_lsn)}"
            raise Stopped(StopState.POISON_ROW, f"a change {where} cannot be captured: {what}", hint=_HINT)


def _publication_lost(text: str) -> Stopped:
    hint = "cdc resume PUBLICATION_LOST --rebuild (reads the tables again; deploy/runbook.md, PUBLICATION_LOST)"
    return Stopped(StopState.PUBLICATION_LOST, f"the publication was dropped, for a while at least: {text}", hint=hint)


def _fields(body: bytes) -> dict[str, str]:
    return {chr(piece[0]): piece[1:].decode(errors="replace") for piece in body.split(b"\0") if piece}


def _text(fields: dict[str, str]) -> str:
    state = fields.get("C", "?????")
    text = presentable(state, fields.get("M", "unknown error"))
    return text if text.endswith(")") else f"{text} (SQLSTATE {state})"
