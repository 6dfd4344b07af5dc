"""Accidents on the demo's tour, outside Headwater: two stores are changed behind its back, and a flight comes that the board cannot hold."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import redis

from cdc.demo.eventcount import arrived
from cdc.demo.stage import Stage
from cdc.demo.traffic import diverted

_NOWHERE: Final = 0
"""The number of the flight that was in the air for no time at all: the traffic's begin at 1."""
_INSERT: Final = """insert into flights
select %s, day, carrier, -1, tailnum, origin, origin, 0, scheduled_departure, scheduled_departure, scheduled_departure, scheduled_departure,
       0, 0, 0, 'landed'
from flights where status = 'landed' order by id limit 1"""


@dataclass(frozen=True, slots=True)
class DemoAccidents:
    """``cdc.demo.tour.Accidents`` on the demo's servers."""

    stage: Stage

    def damage(self) -> str:
        lost, wrong, unfound = self._landed()
        with redis.Redis.from_url(self.stage.valkey.url) as cache:
            cache.delete(f"flight:{lost}")
            held = json.loads(cache.get(f"flight:{wrong}") or "{}")
            cache.set(f"flight:{wrong}", json.dumps({**held, "dest": "XXX"}))
        self.stage.opensearch.request("DELETE", f"/{self._index()}/_doc/{unfound}")
        return f"flight {lost} is deleted from the board, which sends flight {wrong} to XXX, and flight {unfound} from the search index"

    def fly_nowhere(self) -> None:
        with psycopg.connect(self.stage.dsn, autocommit=True) as connection:
            connection.execute(_INSERT, [_NOWHERE])

    def correct(self, values: dict[str, Any]) -> str:
        path: Path = self.stage.folder / "corrected.json"
        path.write_text(json.dumps(values), encoding="utf-8")
        return str(path)

    def divert(self) -> tuple[str, str]:
        (flight, *_) = self._landed()
        with psycopg.connect(self.stage.dsn) as connection:
            rolled_back = diverted(connection, flight)
            connection.rollback()
            committed = diverted(connection, flight)
            connection.commit()
        return str(committed), str(rolled_back)

    def heard(self, event: str) -> dict[str, int]:
        return {store: taken[event] for store, taken in arrived(self.stage).items()}

    def tidy(self) -> None:
        with psycopg.connect(self.stage.dsn, autocommit=True) as connection:
            connection.execute("delete from flights where id = %s", [_NOWHERE])

    def _landed(self) -> tuple[int, int, int]:
        """Three flights that nothing changes any more."""
        with psycopg.connect(self.stage.dsn) as connection:
            rows = connection.execute("select id from flights where status = 'landed' order by id limit 3").fetchall()
        return rows[0][0], rows[1][0], rows[2][0]

    def _index(self) -> str:
        """The live generation's index: documents cannot be deleted through a name that stands for several."""
        (index,) = self.stage.opensearch.request("GET", "/_alias/public.flights")
        return str(index)
