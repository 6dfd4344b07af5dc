"""A store's dead letters, in a table beside its marks: what one transaction makes of them, written by it.

``stands``: of a row that nothing tells apart, what the table holds in the place of the letter's change (JSON, canonical text by column), so that it is found again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.errors import StoreError
from cdc.model.position import Position
from sinks.contract import DeadLetter
from sinks.deadletters import Letter, Letters, LetterState, TakenChanges, check_share
from sinks.sql import ledger
from sinks.sql.dialect import SqlSession
from sinks.sql.names import LEDGER_SCHEMA
from sinks.sql.refusals import DEAD_ROWS_MIN

_TABLE: Final = f"{LEDGER_SCHEMA}.letters"


class LettersStop(Exception):
    """The store stops for its letters. Its transaction is undone; these are to be recorded by another one, so that an operator can decide about them."""

    def __init__(self, found: Sequence[Letter], error: StoreError) -> None:
        super().__init__(str(error))
        self.found = found
        self.error = error


class LettersDraft:
    """The letters of one store as a transaction is about to leave them."""

    def __init__(self, store: str, before: Letters, share_max: float) -> None:
        self.known = Letters(store, before.all)
        self.refused: list[DeadLetter] = []
        """What was set aside."""
        self.store = store
        self._share_max = share_max
        self._touched: dict[str, None] = {}

    @property
    def changed(self) -> bool:
        return bool(self._touched)

    def enough(self, rows: int) -> Callable[[int], bool]:
        """Says of a number of refused rows, among ``rows``, whether the store stops for them, whichever of them it knows already and has accepted."""
        most = len(self.known.by_id) + min(max(DEAD_ROWS_MIN, int(self._share_max * rows)), max(self.known.room, 0))
        return lambda found: found > most

    def took(
        self, topic: str, keys: Callable[[], pa.Array], positions: npt.NDArray[np.int64], written: npt.NDArray[np.bool_]
    ) -> None:
        """Ends the letters that these changes end. ``written``: which of them the table has taken."""
        self._remove(self.known.ended(topic, keys, positions, TakenChanges(np.ones(len(positions), np.bool_), written)))

    def set_aside(self, topic: str, fresh: Sequence[Letter], rows: int) -> None:
        """Each is the last change of its key. ``rows``: so many were written with them. Raises LettersStop."""
        newest = {one.key: one.position for one in fresh}
        self._remove([one.id for one in self.known.of(topic) if one.key in newest and one.position < newest[one.key]])
        added = self.known.refused(fresh)
        fitting = self.known.fitting(added)
        self._add(fitting)
        if len(fitting) < len(added):
            raise LettersStop(self._recorded(), self.known.too_many())
        self.refused += [one.as_outcome() for one in fresh]
        undecided = [one.as_outcome() for one in fresh if self.known.by_id[one.id].state is not LetterState.ACCEPTED]
        try:
            check_share(self.store, undecided, rows, share_max=self._share_max, rows_min=DEAD_ROWS_MIN)
        except StoreError as error:
            raise LettersStop(self._recorded(), error) from None

    def end_before(self, topic: str, position: Position) -> None:
        """Every row of before is gone."""
        self._remove(self.known.before(topic, position, emptied=True))

    def keep(self, letters: Collection[Letter]) -> None:
        self._add(letters)

    def forget(self, ids: Collection[str]) -> None:
        self._remove(ids)

    def write(self, session: SqlSession) -> None:
        there = {one: self.known.by_id.get(one) for one in self._touched}
        remove(session, self.store, [name for name, letter in there.items() if letter is None])
        put(session, self.store, [letter for letter in there.values() if letter is not None])

    def _recorded(self) -> list[Letter]:
        return [letter for one in self._touched if (letter := self.known.by_id.get(one)) is not None]

    def _add(self, letters: Iterable[Letter]) -> None:
        found = list(letters)
        self.known.add(found)
        self._touched |= dict.fromkeys(one.id for one in found)

    def _remove(self, ids: Iterable[str]) -> None:
        found = list(ids)
        if found:
            self.known.remove(found)
            self._touched |= dict.fromkeys(found)


def read(session: SqlSession, store: str) -> tuple[Letter, ...]:
    """As they are now, by position."""
    if not ledger.exists(session, "letters"):
        return ()
    found = (_letter(*row) for row in session.rows(f"select id, letter from {_TABLE} where store = :store", store=store))
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.position))


def put(session: SqlSession, store: str, letters: Sequence[Letter]) -> None:
    """Records them, each in place of a letter of its id."""
    if letters:
        session.write(
            f"""insert into {_TABLE} (store, id, letter)
            select :store, unnest(cast(:ids as text[])), unnest(cast(:letters as text[]))
            on conflict (store, id) do update set letter = excluded.letter""",
            store=store,
            ids=[one.id for one in letters],
            letters=[one.to_json() for one in letters],
        )


def remove(session: SqlSession, store: str, ids: Collection[str]) -> None:
    if ids:
        session.write(
            f"delete from {_TABLE} where store = :store and id in (select unnest(cast(:ids as text[])))", store=store, ids=list(ids)
        )


def remove_all(session: SqlSession, store: str) -> None:
    session.write(f"delete from {_TABLE} where store = :store", store=store)


def standing(session: SqlSession, store: str, letter: str) -> Mapping[str, str | None] | None:
    """The row that the table holds in the place of this letter's change, as ``stands`` says; None: nothing, or it is found by its key."""
    found = session.rows(f"select stands from {_TABLE} where store = :store and id = :id", store=store, id=letter)
    texts: Mapping[str, str | None] | None = json.loads(found[0][0]) if found and found[0][0] is not None else None
    return texts


def set_standing(session: SqlSession, store: str, letter: str, texts: Mapping[str, str | None] | None) -> None:
    session.write(
        f"update {_TABLE} set stands = :stands where store = :store and id = :id",
        store=store,
        id=letter,
        stands=None if texts is None else json.dumps(dict(texts), ensure_ascii=False),
    )


def _letter(name: Any, text: Any) -> Letter | None:
    """None for what nobody here wrote."""
    try:
        letter = Letter.from_json(text)
    except (ValueError, KeyError, TypeError):
        return None
    return letter if letter.id == name else None
