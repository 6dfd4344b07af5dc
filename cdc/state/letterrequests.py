"""An operator's decisions about dead letters, on their way to the follower of the store: small files under ``run_dir/letters/STORE``.

`cdc dlq` leaves a request there, whose name rises with time. The follower, which alone writes to the store, carries it out between two ranges,
leaves the answer beside it, and removes it; after a crash in between it is carried out again, which comes to the same. Whoever asked removes the
answer. One that nobody has taken goes after ``ANSWERS_KEPT_S``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final
from uuid import uuid4

from cdc.errors import StoreError
from cdc.state.statefile import StateFile

ANSWERS_KEPT_S: Final = 86_400.0
_ASKED: Final = ".asked.json"
_ANSWERED: Final = ".answered.json"


class Verb(StrEnum):
    REPLAY = "replay"
    EDIT = "edit"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class LetterRequest:
    """``letters``: their ids; ``by``: who asks; ``values``: for an edit the columns that are corrected, as canonical text, and ``numbers`` their
    fields' numbers (``TopicField.origin``)."""

    verb: Verb
    letters: Sequence[str]
    by: str
    values: Mapping[str, str | None] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LetterAnswer:
    """The outcome for one letter. ``done``: what was asked for; otherwise ``text`` says why not, without a value of the row."""

    letter: str
    done: bool
    text: str


def ask(run_dir: Path, store: str, request: LetterRequest) -> str:
    """Durable on return. Gives the request's name."""
    name = f"{time.time_ns():020d}-{uuid4().hex[:8]}"
    _REQUEST.save(_folder(run_dir, store) / f"{name}{_ASKED}", request)
    return name


def asked(run_dir: Path, store: str) -> list[str]:
    """The names of the requests that wait, the oldest first."""
    folder = _folder(run_dir, store)
    return sorted(path.name.removesuffix(_ASKED) for path in folder.glob(f"[!.]*{_ASKED}"))


def request(run_dir: Path, store: str, name: str) -> LetterRequest | None:
    """None when it was withdrawn or carried out. Raises StoreError when the file is damaged."""
    return _REQUEST.load(_folder(run_dir, store) / f"{name}{_ASKED}")


def answer(run_dir: Path, store: str, name: str, answers: Sequence[LetterAnswer]) -> None:
    """The request is done with. Durable on return."""
    folder = _folder(run_dir, store)
    _ANSWER.save(folder / f"{name}{_ANSWERED}", answers)
    _REQUEST.remove(folder / f"{name}{_ASKED}")
    for path in folder.glob(f"[!.]*{_ANSWERED}"):
        if time.time_ns() - int(path.name.partition("-")[0]) > ANSWERS_KEPT_S * 1e9:
            _ANSWER.remove(path)


def taken_answer(run_dir: Path, store: str, name: str) -> Sequence[LetterAnswer] | None:
    """The answer, which is removed; None before it is there."""
    path = _folder(run_dir, store) / f"{name}{_ANSWERED}"
    found = _ANSWER.load(path)
    if found is not None:
        _ANSWER.remove(path)
    return found


def forget(run_dir: Path, store: str) -> None:
    """Removes everything of a store that is no longer configured."""
    folder = _folder(run_dir, store)
    for path in folder.glob("*.json"):
        _REQUEST.remove(path)


def _folder(run_dir: Path, store: str) -> Path:
    return run_dir / "letters" / store


def _unreadable(path: Path, what: str) -> StoreError:
    return StoreError(f"{path} {what}", retryable=False, hint="remove it, and ask again with cdc dlq")


_REQUEST: Final = StateFile(
    format=1,
    encode=asdict,
    decode=lambda raw: LetterRequest(
        Verb(raw["verb"]), tuple(raw["letters"]), str(raw["by"]), dict(raw["values"]), dict(raw["numbers"])
    ),
    unreadable=_unreadable,
    shared=True,
)
_ANSWER: Final[StateFile[Sequence[LetterAnswer]]] = StateFile(
    format=1,
    encode=lambda answers: {"answers": [asdict(one) for one in answers]},
    decode=lambda raw: tuple(LetterAnswer(one["letter"], one["done"], one["text"]) for one in raw["answers"]),
    unreadable=_unreadable,
    shared=True,
)
