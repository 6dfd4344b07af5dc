"""The generations of one view that have a state: each is of one definition. Two at most take room for long: the one that is live, and beside it the next one while
that is being built, or the former one for as long as it is kept.

Which of them is live is not said here: the log's mark says it, in the same cut as the topic's rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from cdc.derive.course import LeftState
from cdc.derive.ports import DeclaredView
from cdc.derive.statefolder import StateFolder
from cdc.derive.viewstate import ViewState
from cdc.errors import Stopped
from cdc.model.position import Position
from cdc.state import status


class ViewGenerations:
    """For one thread."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder
        self._states: dict[int, ViewState] = {}
        self.former: DeclaredView | None = None
        """The definition that the topic's rows are of, where it is another than the declared one and can be computed again."""
        self.refused: Stopped | None = None
        """Why the declared one cannot be kept up, as long as the former one is still to be computed again."""

    def look(self) -> None:
        """Closes what is open, and looks again."""
        self.close()
        self._states = {number: ViewState(number, one) for number, one in self._folder.generations().items()}

    def of(self, digest: str) -> ViewState | None:
        """The newest state of this definition; None where there is none."""
        return next(
            (one for _, one in sorted(self._states.items(), reverse=True) if one.facts and one.facts.digest == digest), None
        )

    @property
    def next_number(self) -> int:
        """That of the next one that is made."""
        return max(self._states, default=0) + 1

    def made(self) -> ViewState:
        """A new one, which has no state yet."""
        number = self.next_number
        self._states[number] = ViewState(number, self._folder.generation(number))
        return self._states[number]

    def forget(self, state: ViewState) -> None:
        """Removes it."""
        self._states.pop(state.number, None)
        state.remove()

    def keep_only(self, states: Collection[ViewState | None]) -> None:
        """All others go."""
        kept = {one.number for one in states if one is not None}
        for number in [number for number in self._states if number not in kept]:
            self.forget(self._states[number])

    @property
    def left(self) -> list[ViewState]:
        """Those that are kept though they are live no more, the last one last."""
        found = [(one.facts.left.at, number, one) for number, one in self._states.items() if one.facts and one.facts.left]
        return [one for *_, one in sorted(found, key=lambda one: one[:2])]

    def kept(self, kept_s: float) -> Iterator[status.ViewGeneration]:
        """The same, as the view's status says it."""
        for number, one in ((each.number, each.facts.left) for each in self.left if each.facts):
            if one is not None:
                yield status.ViewGeneration(number, "kept", one.cut, left_at=one.at, until=one.at + kept_s)

    def leave(self, digest: str, at: float, cut: Position) -> None:
        """The state of this definition, if there is one, is kept from now on; durable on return."""
        state = self.of(digest)
        if state is not None and state.facts is not None and not state.facts.loading:
            state.note(left=LeftState(at, cut))

    def count_from(self, now: float) -> None:
        """Those that were left later than that, by a clock that was ahead, were left now."""
        for state in self.left:
            if state.facts is not None and state.facts.left is not None and state.facts.left.at > now:
                state.note(left=replace(state.facts.left, at=now))

    def drop(self, before: float) -> bool:
        """Removes those that were left before this time; whether there were any."""
        old = [one for one in self.left if one.facts and one.facts.left and one.facts.left.at <= before]
        for one in old:
            self.forget(one)
        return bool(old)

    def bytes(self) -> dict[int, int]:
        """The size of each on the disk, by number."""
        return {number: one.bytes() for number, one in self._states.items()}

    def close(self) -> None:
        for one in self._states.values():
            one.close()
