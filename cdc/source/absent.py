"""Tables that have left the publication because they could not be captured, and have not been seen there again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from cdc.source.trigger import SetAside


class Absent:
    """By OID. ``remember`` makes them durable, before one more is taken out."""

    def __init__(self, out: Mapping[int, SetAside], remember: Callable[[Mapping[int, SetAside]], None]) -> None:
        self._out = dict(out)
        self._remember = remember

    def __contains__(self, oid: int) -> bool:
        return oid in self._out

    @property
    def oids(self) -> Set[int]:
        return self._out.keys()

    def may_return(self, oid: int) -> bool:
        """False: it had a column list or a row filter, which may have kept something back."""
        return oid not in self._out or self._out[oid].again

    def learn(self, aside: Mapping[int, SetAside]) -> None:
        """Takes in the tables that the event trigger has taken out."""
        self._out |= {oid: one for oid, one in aside.items() if one.entry is None}

    def leaves(self, oid: int, *, again: bool) -> None:
        """Durable on return. ``again``: it may come back as it was."""
        self._out[oid] = SetAside(None, again)
        self._remember(self._out)

    def stays(self, oid: int) -> None:
        """It is in the publication (again), or is gone for good."""
        self._out.pop(oid, None)
