"""A store's generations beside each other while a view's topic gets another key, or other types: whichever is live, it shows the rows of now."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from cdc.follow.follower import Follower
from cdc.follow.rules import Rules
from cdc.generations.alone import alone
from cdc.generations.bootstrap import Bootstrap
from cdc.generations.follower import GenerationFollower
from cdc.generations.rollback import roll_back
from sinks import generations_of, make_sink, options_model
from sinks.heldlog import HeldLog
from tests.contract.labs import Fixture
from tests.contract.test_sinks import held
from tests.logs import LooseLog
from tests.redefining import RedefinedTopic, Values

BEFORE: Final = pa.schema([("id", pa.int64()), ("place", pa.utf8()), ("amount", pa.utf8())])
OLD: Final[Sequence[Values]] = [{"id": n, "place": f"{n % 3}", "amount": "7" if n % 2 else "none"} for n in range(1, 8)]
TYPES: Final = pa.schema([("id", pa.int64()), ("place", pa.int64()), ("amount", pa.decimal128(12, 2))])
KEY: Final = pa.schema([("id", pa.int64()), ("place", pa.utf8()), ("amount", pa.int64())])
KEEP_S: Final = 3600.0
STORE: Final = "shown"


class Stage:
    def __init__(self, folder: Path, given: dict[str, Any]) -> None:
        self._folder, self.log = folder, LooseLog()
        self.topic = RedefinedTopic(self.log)
        self._options = options_model(given["kind"]).model_validate({**given, "tables": ["views.*"]})
        self._rules = Rules(STORE, self._options)

    def _held(self) -> HeldLog:
        return HeldLog(self.log.reader(), STORE, self._options)

    def follow(self) -> None:
        run = self._folder / "run"
        follower = Follower(STORE, self._options, self._folder, self.log.reader(), run, threading.Event())
        assert follower.start()
        follower.follow_to(self.log.head)
        assert follower.applied == self.log.head, follower.status.error
        follower.close()
        follower.release_lease()

    def build(self) -> None:
        run, stop = self._folder / "run", threading.Event()
        with closing(generations_of(STORE, self._options)) as found:
            assert Bootstrap(self._folder, run, self._held(), found, self._rules, KEEP_S, stop).carry_out().swapped

    def roll_back(self) -> None:
        follower = GenerationFollower(self._folder, self._held(), self._rules, threading.Event())
        with closing(generations_of(STORE, self._options)) as found, alone(self._folder, STORE):
            roll_back(follower, found, self._folder / "run", KEEP_S, None)

    def shows(self, rows: Sequence[Values]) -> None:
        assert self.topic.known is not None
        key = [column.name for column in self.topic.known.key]
        with closing(make_sink(STORE, self._options)) as sink:
            sink.open(self.log.reader())
            found = [tuple(row[name] for name in key) for row in held(sink, self.topic.known)]
        assert sorted(found) == sorted(tuple(str(row[name]) for name in key) for row in rows)


def _cache(fixture: Fixture) -> dict[str, Any]:
    return {"kind": "redis", "url": fixture("valkey").url, "pointer": "shown:live"}


def _index(fixture: Fixture) -> dict[str, Any]:
    return {"kind": "opensearch", "url": fixture("opensearch").url}


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(_cache, id="redis"),
        pytest.param(_index, id="opensearch", marks=[pytest.mark.opensearch, pytest.mark.sampled(4)]),
    ],
)
@pytest.mark.parametrize(
    ("schema", "key", "rows", "gone"),
    [
        (TYPES, ["id"], [{"id": n, "place": n % 2, "amount": None if n == 3 else 1} for n in range(1, 7)], [{"id": 7}]),
        (KEY, ["id", "place"], [{"id": n, "place": f"{p}{n}", "amount": n} for n in range(3) for p in "pq"], []),
    ],
    ids=["types", "key"],
)
def test_the_one_that_is_live_shows_the_rows_of_now(
    tmp_path: Path, request: pytest.FixtureRequest, given: Any, schema: pa.Schema, key: Sequence[str], rows: Any, gone: Any
) -> None:
    stage = Stage(tmp_path, given(request.getfixturevalue))
    stage.topic.brings(BEFORE, ["id"], OLD)
    stage.follow()
    stage.build()
    stage.shows(OLD)
    stage.topic.brings(schema, key, rows, gone)
    stage.follow()
    stage.roll_back()
    stage.shows(rows)
    stage.topic.brings(BEFORE, ["id"], OLD)
    stage.roll_back()
    stage.shows(OLD)
    stage.topic.brings(schema, key, rows, gone)
    stage.build()
    stage.follow()
    stage.shows(rows)
