"""The demo's tour, once it has run for a while. Four stations, all under traffic, each what an operator would type:

1. the search index is built a second time beside the live one, and takes its place;
2. somebody changes two stores behind Headwater's back, and an audit finds and repairs it;
3. a flight comes that the departure board cannot hold, until an operator says what it is to hold instead;
4. the application diverts two flights and says so in the same transactions, of which one is rolled back.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

AFTER_S: Final = 180.0
"""The first minutes are for the stores' own first load."""
SEARCH: Final = "search"
BOARD: Final = "board"
FLIGHTS: Final = "public.flights"
KEEP_OLD: Final = "10m"
SPEED: Final = "mph"
"""The computed column that a flight of no time in the air has no value of."""
_END_S: Final = 30.0
_ARRIVES_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Said:
    """A command's last line of JSON, or why there is none."""

    facts: dict[str, Any] | None = None
    why: str = ""


Way = Generator[subprocess.Popen[str] | None, Said, None]
"""A station: yields the command that it waits for, or None to look again later; gets what the command said."""


class Accidents(Protocol):
    """Things that happen outside Headwater. Each returns once it has happened."""

    def damage(self) -> str:
        """Changes what two stores hold behind Headwater's back; returns what was done."""
        ...

    def fly_nowhere(self) -> None:
        """Commits a flight that has landed and was in the air for no time at all."""
        ...

    def correct(self, values: dict[str, Any]) -> str:
        """Writes a corrected row for ``cdc dlq edit``; returns the file's name."""
        ...

    def divert(self) -> tuple[str, str]:
        """Emits an event in a transaction that is committed, and one in another that is rolled back; returns their ids."""
        ...

    def heard(self, event: str) -> dict[str, int]:
        """Event store → how often this event is there."""
        ...

    def tidy(self) -> None:
        """Removes that flight from the database."""
        ...


@dataclass(slots=True)
class Tour:
    """One thread only. ``begin``: starts ``cdc`` with these arguments; the process writes its output to a pipe. ``say``: prints a line.
    ``after_s``: how long the demo runs before."""

    begin: Callable[..., subprocess.Popen[str]]
    say: Callable[[str], None]
    accidents: Accidents
    clock: Callable[[], float] = time.monotonic
    after_s: float = AFTER_S
    _since: float | None = field(default=None, init=False)
    """Since when the demo runs."""
    running: subprocess.Popen[str] | None = field(default=None, init=False)
    _way: Way | None = field(default=None, init=False)
    over: bool = field(default=False, init=False)

    def look(self, told: dict[str, Any] | None) -> None:
        """Takes the daemon's status. To be called about once a second."""
        if self._since is None:
            self._since = self.clock()
        if self.over:
            return
        if self._way is None:
            if told is not None and self.clock() - self._since >= self.after_s and _is_settled(told):
                self._way = self._stations()
                self._go_on(None)
        elif self.running is None:
            self._go_on(Said())
        elif self.running.poll() is not None:
            self._go_on(_said(*self.running.communicate()))

    def end(self) -> None:
        """Ends what is under way: the live index stays as it is."""
        self.over = True
        if self.running is not None and self.running.poll() is None:
            self.running.terminate()
            try:
                self.running.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.running.kill()
                self.running.wait()

    def _go_on(self, said: Said | None) -> None:
        assert self._way is not None
        try:
            self.running = next(self._way) if said is None else self._way.send(said)
        except StopIteration:
            self.running, self.over = None, True

    def _stations(self) -> Way:
        yield from self._bootstrap()
        yield from self._repair()
        yield from self._letter()
        yield from self._event()
        self.say("tour: that was all of it; the demo goes on")

    # -- a store's next generation ------------------------------------------------------------------------------------

    def _bootstrap(self) -> Way:
        self.say(
            f"tour 1: cdc bootstrap {SEARCH} builds the search index again from the log, beside the live one and under traffic"
        )
        said = yield self.begin("bootstrap", SEARCH, "--keep-old", KEEP_OLD, "--json")
        done = said.facts
        if done is None:
            self.say(f"tour 1: the search index was not built again: {said.why}")
        elif not done["swapped"]:
            self.say(f"tour 1: generation {done['generation']} differs from the log, so readers go on with the one that they had")
        else:
            self.say(
                f"tour 1: {done['rows']:,} rows were built, compared with the log and swapped in {done['seconds']:.0f} s; "
                f"searches see generation {done['generation']} now"
            )
            self.say(
                f"tour 1: generation {done['former']} is kept and fed for {KEEP_OLD}: cdc rollback {SEARCH} would put it back, "
                f"cdc generations {SEARCH} lists both"
            )

    # -- drift --------------------------------------------------------------------------------------------------------

    def _repair(self) -> Way:
        self.say(f"tour 2: behind Headwater's back, {self.accidents.damage()}")
        for store in (BOARD, SEARCH):
            self.say(f"tour 2: cdc audit {store} --table {FLIGHTS} --repair")
            said = yield self.begin("audit", store, "--table", FLIGHTS, "--repair", "--json")
            self.say(f"tour 2: {_audited(store, said)}")

    # -- a dead letter ------------------------------------------------------------------------------------------------

    def _letter(self) -> Way:
        self.accidents.fly_nowhere()
        self.say(
            f"tour 3: a flight has landed after 0 minutes: the board's {SPEED} divides by zero, so it is set aside, and others flow"
        )
        deadline = self.clock() + _ARRIVES_S
        while not (found := (yield from self._letters())):
            if self.clock() > deadline:
                self.say(f"tour 3: cdc dlq ls {BOARD} lists nothing after {_ARRIVES_S:.0f} s")
                return
            yield None
        letter = found[0]["letter"]
        self.say(f"tour 3: cdc dlq ls {BOARD} lists {letter}: {found[0]['reason']}")
        said = yield self.begin("dlq", "replay", BOARD, letter, "--json")
        self.say(f"tour 3: cdc dlq replay {BOARD} {letter}: {_answer(said)}")
        said = yield self.begin("dlq", "edit", BOARD, letter, self.accidents.correct({SPEED: 0}), "--json")
        self.say(f"tour 3: cdc dlq edit {BOARD} {letter} with {{{json.dumps(SPEED)}: 0}}: {_answer(said)}")
        self.accidents.tidy()
        self.say("tour 3: the flight is deleted in the database, and with it the letter ends")

    # -- events -------------------------------------------------------------------------------------------------------

    def _event(self) -> Way:
        committed, rolled_back = self.accidents.divert()
        self.say(
            f"tour 4: two transactions said that a flight is diverted; event {committed} was committed, {rolled_back} rolled back"
        )
        deadline = self.clock() + _ARRIVES_S
        while not all(self.accidents.heard(committed).values()):
            if self.clock() > deadline:
                self.say(f"tour 4: the event has not come to all after {_ARRIVES_S:.0f} s: {self.accidents.heard(committed)}")
                return
            yield None
        self.say(
            f"tour 4: the committed one came, as often as {self.accidents.heard(committed)} says; the other one {self.accidents.heard(rolled_back)}"
        )

    def _letters(self) -> Generator[subprocess.Popen[str] | None, Said, list[dict[str, Any]]]:
        said = yield self.begin("dlq", "ls", BOARD, "--json")
        return [] if said.facts is None else list(said.facts["letters"])


def _said(out: str, errors: str) -> Said:
    lines = [line for line in out.splitlines() if line.startswith("{")]
    why = (errors.strip().splitlines() or ["no word"])[-1].removeprefix("error: ")
    return Said(json.loads(lines[-1])) if lines else Said(why=why)


def _audited(store: str, said: Said) -> str:
    if said.facts is None:
        return f"{store} was not audited: {said.why}"
    found = [table for one in said.facts["stores"] for table in one["tables"]]
    rows = sum(table["source_rows"] for table in found)
    drift = ", ".join(
        f"{count} {kind}" for kind in ("missing", "extra", "different") if (count := sum(table[kind] for table in found))
    )
    end = "sent again through the log, and all of it is equal now" if said.facts["whole"] else "and it is not all equal yet"
    return f"{rows:,} rows of {store} compared: {drift or 'no difference'}; {end if drift else 'nothing to repair'}"


def _answer(said: Said) -> str:
    return said.why if said.facts is None else "; ".join(one["text"] for one in said.facts["letters"])


def _is_settled(told: dict[str, Any]) -> bool:
    """Every store has been loaded, and follows. Under traffic none is ever up to date for long."""
    capture, followers = told["capture"], told["followers"]
    follows = all(one["state"] == "following" and one["catch_up"] is None for one in followers)
    return bool(capture and followers and capture["state"] == "streaming" and follows)
