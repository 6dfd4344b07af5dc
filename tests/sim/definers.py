"""What the clients do to definitions: they create tables, publish and drop them, and alter them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.sim.catalog import altered, triggered
from tests.sim.course import Course
from tests.sim.source import PUBLICATION, Session, Source
from tests.sim.tables import keyless, make_table, retyped
from tests.sim.wal import Change

MOST_TABLES: Final = 5


class Definers:
    def __init__(self, course: Course, source: Source) -> None:
        self._course = course
        self._source = source
        self._made = 0
        self._free: list[str] = []
        """Names that tables once had."""
        self._altered: set[int] = set()
        """Tables that were given another definition, without a trigger that tells of it."""

    def step(self, session: Session) -> bool:
        """Perhaps a statement of this session; whether it was one."""
        ddl, chance = self._course.ddl, self._course.chance
        if not ddl.any or session.savepoints or not self._course.faulty:
            return False
        roll = chance.random()
        if roll < ddl.creates:
            return self._create(session)
        roll -= ddl.creates
        if roll < ddl.publishes:
            return self._publish(session)
        roll -= ddl.publishes
        if roll < ddl.drops:
            return self._drop(session)
        roll -= ddl.drops
        return roll < ddl.retypes and self._retype(session)

    def alter(self, session: Session, oid: int) -> None:
        """Not of a table without a key: only the catalog, which tells too late, tells that the new column is part of what identifies a row."""
        source = self._source
        table = source.table(session, oid)
        if not source.can_exclude(session, oid) or keyless(table):
            return
        # Under FULL the stream does not tell the key: without a trigger, the catalog may have another name for it already.
        keys = self._course.ways.triggers or table.identity != "f"
        what, after = altered(self._course.chance, table, source.highest[oid] + 1, keys=keys)
        if after.name != table.name:
            if after.name in source.names(session):
                return
            self._free.append(table.name)
        self._course.counts[what] += 1
        change = source.alter(session, after)
        self._tell(session, change, oid)

    def _retype(self, session: Session) -> bool:
        """Not of a table without a key, as above; a tag stays what it is."""
        source, chance = self._source, self._course.chance
        oids = [oid for oid in source.oids(session) if source.can_exclude(session, oid) and not keyless(source.table(session, oid))]
        if not oids or session.defines:
            return False
        table = source.table(session, chance.choice(oids))
        # Of another type, a key lets the whole table be read again, whatever else was missed of it.
        keys = chance.random() < 0.15
        columns = [column for column in table.columns if column.name != "tag" and (keys or not column.key)]
        column = chance.choice(columns) if columns else None
        found = None if column is None else retyped(chance, column)
        if found is None or column is None:
            return False
        new, rewrites = found
        after = tuple(new if one is column else one for one in table.columns)
        self._course.counts["types changed" if rewrites else "types changed without a rewrite"] += 1
        change = source.alter(session, replace(table, columns=after), rewrites=rewrites)
        self._course.say(f"{session.xid} gives {table.name}.{column.name} type {new.type_oid} {new.typmod}")
        self._tell(session, change, table.oid)
        return True

    def _tell(self, session: Session, change: Change, oid: int) -> None:
        if self._course.ways.triggers:
            change.content = triggered(self._source.facts(oid, session))
        else:
            self._altered.add(oid)

    def _create(self, session: Session) -> bool:
        source, chance = self._source, self._course.chance
        held = source.names(session)
        if len(held) >= MOST_TABLES:
            return False
        free = [name for name in self._free if name not in held]
        if free and chance.random() < 0.7:
            self._named(session, free[0])
        else:
            self._made += 1
            self._named(session, f"late{self._made}")
        return True

    def _named(self, session: Session, name: str) -> None:
        source = self._source
        table = make_table(self._course.chance, source.new_oid(), name, late=True)
        source.highest[table.oid] = len(table.columns)
        self._course.counts["tables created under a former name" if name in self._free else "tables created"] += 1
        self._free = [one for one in self._free if one != name]
        change = source.create(session, table)
        self._course.say(f"{session.xid} creates {name} ({table.oid})")
        if self._course.ways.triggers:
            change.content = triggered(source.facts(table.oid, session))

    def _publish(self, session: Session) -> bool:
        source = self._source
        oids = [oid for oid in source.oids(session) if not source.listing(session, oid).way and source.can_publish(session, oid)]
        if not oids:
            return False
        oid = self._course.chance.choice(oids)
        change = source.publish(session, oid)
        self._course.counts["tables published later"] += 1
        self._course.say(f"{session.xid} publishes {oid}")
        if self._course.ways.triggers:
            change.content = triggered(look=True)
        return True

    def _drop(self, session: Session) -> bool:
        source = self._source
        oids = [oid for oid in source.oids(session) if source.can_exclude(session, oid) and self._key_known(session, oid)]
        if not oids:
            return False
        oid = self._course.chance.choice(oids)
        listing = source.listing(session, oid)
        change = source.drop(session, oid)
        self._course.counts["tables dropped"] += 1
        self._course.say(f"{session.xid} drops {listing.table.name} ({oid})")
        if self._course.ways.triggers:
            change.content = triggered(dropped=[oid], look=listing.way not in (0, PUBLICATION))
        self._free.append(listing.table.name)
        if self._course.chance.random() < 0.4:
            self._named(session, listing.table.name)
        return True

    def _key_known(self, session: Session, oid: int) -> bool:
        """Under FULL the catalog alone tells the key: what is dropped before a process has looked there keeps the whole row as its key, and so may
        what is dropped behind a definition that nobody has looked at."""
        table = self._source.table(session, oid)
        return table.identity != "f" or keyless(table) or (oid in self._source.told and oid not in self._altered)
