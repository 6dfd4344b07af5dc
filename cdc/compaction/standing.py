"""How each topic is kept, and who holds that back: for ``cdc log stat``; and compaction at once, for ``cdc log compact``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from cdc.compaction import retention
from cdc.compaction.merge import Merged, compact
from cdc.compaction.pins import Pins, cleanup_of
from cdc.compaction.worker import retired, settled, wanted
from cdc.errors import ConfigError
from cdc.log.contract import LogReader, Topic
from cdc.log.home import await_seals, closed_ranges, open_reader, open_writer, states_of, upkeep_of
from cdc.model.position import START
from cdc.settings.models import Cleanup, Settings


@dataclass(frozen=True, slots=True)
class TopicKept:
    """``clean_from``, ``kept_from``, ``whole``: see ``cdc.log.contract.Topic``. ``held_by``: stores that have not read what could be dropped by its age or
    the topic's size, each with its position; ``lapsed``: those of them that no longer hold anything, each with why."""

    topic: str
    cleanup: Cleanup
    rows: int
    clean_from: int
    held_by: dict[str, int]
    kept_from: int
    whole: bool
    lapsed: dict[str, str]
    states: int
    """How many there are (``LogReader.state``), their bytes, and the cut of the newest (0: none)."""
    state_bytes: int
    state_at: int


def kept(settings: Settings, reader: LogReader) -> list[TopicKept]:
    """Each topic of the log, by name."""
    now_us = time.time_ns() // 1000
    stores = Pins(lambda: settings).every(time.monotonic(), reader)
    topics, states = [], states_of(settings.log.dir, reader)
    for topic in sorted(reader.topics(), key=lambda one: one.name):
        due, cleanup = 0, cleanup_of(settings.log, settings.stores.values(), topic)
        ranges = [] if cleanup == "keep" else closed_ranges(settings.log.dir, topic.name)
        if cleanup == "compact":
            due = min(settled(reader, settings.log, topic, ranges, now_us).changes, topic.last)
        elif cleanup == "delete":
            due = retention.kept_from(topic, ranges, retention.old(reader, settings.log, topic, ranges, now_us), ()) - 1
        behind = [pin for pin in stores if cleanup != "keep" and pin.position < due and pin.holds(topic.schema)]
        held_by = {
            pin.store: pin.position for pin in behind if pin.lapsed is None and (topic.whole or pin.position + 1 >= topic.kept_from)
        }
        lapsed = {pin.store: pin.lapsed for pin in behind if pin.lapsed is not None}
        there = [one for one in states.standing(topic.name) if one.kept]
        size, newest = sum(one.bytes for one in there), max((one.cut for one in there), default=START)
        topics.append(
            TopicKept(
                topic.name,
                cleanup,
                topic.rows,
                topic.clean_from,
                held_by,
                topic.kept_from,
                topic.whole,
                lapsed,
                len(there),
                size,
                newest,
            )
        )
    return topics


def compact_now(settings: Settings, name: str | None) -> Iterator[Merged]:
    """Compacts the topic, or every one, as far as its age and the stores allow. For a log that nobody else writes.

    It may use the reserve: there is no capture that could need it. Raises ConfigError while ``cdc run`` writes, and for a topic that the log does
    not have or that is kept; LogCorrupt, OSError.
    """
    log = settings.log
    with closing(open_reader(log.dir)) as reader:
        if reader.lineage() is None:  # a writer would make one
            raise ConfigError(f"there is no log in {log.dir}", hint="cdc run makes one; [log] dir in cdc.toml names the place")
    with closing(open_writer(log.dir, segment_bytes=log.segment_bytes, source=settings.source.name)) as writer:
        upkeep = upkeep_of(writer)
        if upkeep is None:
            return

        def recorded() -> None:
            writer.commit()
            upkeep.remove_replaced()  # the next stretch may need its room

        await_seals(writer)  # what opening has found unsealed
        with closing(open_reader(log.dir)) as reader:
            pins = Pins(lambda: settings)
            for topic in _chosen(settings, reader, name):
                if cleanup_of(log, settings.stores.values(), topic) == "delete":
                    gone = retired(reader, upkeep, log, topic, lambda: pins.look(time.monotonic(), reader), recorded)
                    yield Merged(topic.name, topic.rows, gone, why="too old or too many")
                    continue
                old_enough = settled(reader, log, topic, upkeep.ranges(topic.name), time.time_ns() // 1000)
                holding = pins.look(time.monotonic(), reader)
                points = wanted(reader, upkeep, topic, old_enough, holding)
                yield compact(upkeep, topic.name, points, recorded, at_least=0.0, target_bytes=log.segment_bytes)


def _chosen(settings: Settings, reader: LogReader, name: str | None) -> list[Topic]:
    topics = [topic for topic in reader.topics() if name in (None, topic.name)]
    if name is not None and not topics:
        raise ConfigError(f"the log has no topic {name}", hint="cdc log ls")
    chosen = [topic for topic in topics if cleanup_of(settings.log, settings.stores.values(), topic) != "keep"]
    if name is not None and not chosen and settings.log.cleanup_of(topics[0].table) != "keep":
        raise ConfigError(
            f"{name} is kept whole: a store names places of its rows by columns that change",
            hint="name them by the key's columns alone, in the store's section",
        )
    if name is not None and not chosen:
        raise ConfigError(
            f"{name} is kept whole", hint='cleanup = "compact" or "delete" in [log], or in [log.tables] for this table'
        )
    return chosen
