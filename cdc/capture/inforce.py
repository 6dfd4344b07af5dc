"""Which definition of each table is in force on this connection, from message to message. Pure.

The server describes a table (RELATION, and TYPE for types of the user's own) before its first row, and again whenever it has changed. What it
has described within a transaction it takes for known once that transaction has committed, and the order in which it *sent* descriptions is not
the order in which their rows are decoded here: a streamed transaction's rows wait for its end, and those of a transaction that is being
prepared for its COMMIT PREPARED. So there are two orders, and each description has an ordinal that says where it was sent:

- a description that was sent later than the one in force takes its place for good;
- one that was sent earlier comes from a transaction that is replayed: it is in force while the replay lasts, and the newer one *returns* after it;
- a transaction that is being prepared describes tables for those behind it at once, although its rows wait: what holds for its own rows
  (``Needs``) is kept beside them, because another process may replay them.

What is in force here need not be in the log yet: the server describes tables of which no row ever comes (the partition behind a
partitioned table), and a replay brings definitions back that another transaction has overtaken. Those are ``untold`` until a row comes.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cdc.capture import letters
from cdc.capture.definitions import Definitions
from cdc.capture.messages import RARE, Commit, body_of, scan_spooled
from cdc.capture.relations import Relations, parse_truncate
from cdc.model.table import Table
from cdc.pgvalues.values import Bytes

_Newest = dict[tuple[int, int], bytes]
"""The newest RELATION and TYPE messages, by letter and OID."""


class Needs:
    """The definitions from before a transaction being prepared, on which its rows rely."""

    def __init__(self, before: _Newest) -> None:
        self._before = before
        """As it was before the transaction, which may have altered tables."""
        self._used: set[int] = set()
        """OIDs of the tables that it has changed before it described them itself."""
        self._within: set[int] = set()
        """Those that it has described."""

    def use(self, oids: Iterable[int]) -> None:
        self._used.update(set(oids) - self._within)

    def described(self, oid: int) -> None:
        self._within.add(oid)

    def frames(self) -> bytes:
        chosen = [(letter, body) for (letter, oid), body in self._before.items() if letter == letters.TYPE or oid in self._used]
        messages = [b"w" + bytes(24) + bytes([letter]) + body for letter, body in sorted(chosen, reverse=True)]
        return b"".join(b"d" + (len(message) + 4).to_bytes(4, "big") + message for message in messages)


class InForce:
    """The definitions in force. ``schema``: what the log says of each table."""

    def __init__(self, schema: Definitions) -> None:
        self.relations = Relations(schema)
        self.ordinal = 0
        """Odd within a streamed block, even between two: orders descriptions as they were sent, whenever their rows are decoded."""
        self.untold: dict[int, Table] = {}
        """Definitions in force that are not in the log yet: no row has come under them."""
        self._sent: dict[int, int] = {}
        """Table OID → ordinal of the description in force for what comes."""
        self._returning: dict[int, Table] = {}
        """Definitions newer than those of the transaction that is being replayed, to be in force again after it."""
        self._newest: _Newest = {}
        self._needs = Needs({})

    def on_type(self, body: bytes) -> None:
        self.relations.on_type(body)
        self._newest[letters.TYPE, int.from_bytes(body[:4], "big")] = body

    def define(self, table: Table, body: bytes, ordinal: int) -> None:
        """The table has this definition from here on, or while the replayed transaction lasts."""
        if self._sent.get(table.oid, -1) > ordinal:
            self._returning.setdefault(table.oid, self.relations.table(table.oid))
        else:
            self._sent[table.oid] = ordinal
            self._returning.pop(table.oid, None)
            self._newest[letters.RELATION, table.oid] = body
        self.relations.put(table)

    def replayed(self) -> None:
        """A transaction has been replayed: the newer definitions return."""
        for table in self._returning.values():
            self.relations.put(table)
        self.untold |= self._returning
        self._returning.clear()

    def begin_prepare(self) -> None:
        self._needs = Needs(dict(self._newest))

    def needed(self) -> bytes:
        """The definitions on which the transaction that was being prepared relies, as frames."""
        return self._needs.frames()

    def define_now(self, span: Bytes) -> None:
        """Frames of the transaction being prepared: the definitions in it hold for what follows, although its rows wait."""
        index = scan_spooled(span, 0, len(span), Commit(0, 0, 0, 0), None)
        begin = 0
        for at in map(int, np.flatnonzero(RARE[index.kind])):
            body = body_of(span, index, at)
            self._needs.use(index.relation[begin:at].tolist())
            begin = at
            match chr(index.kind[at]):
                case "Y":
                    self.on_type(body)
                case "R":
                    table = self.relations.parse_relation(body)
                    self.define(table, body, self.ordinal)
                    self.untold[table.oid] = table
                    self._needs.described(table.oid)
                case "T":
                    self._needs.use(parse_truncate(body).relations)
                case _:
                    pass
        self._needs.use(index.relation[begin:].tolist())
