"""One entry of the table, and the notation of its steps and expectations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from cdc.embedded.postgres import NEWEST

ALL: Final = (15, 16, 17, 18)
EXTENSIONS: Final = "ext"
"""The schema that holds the extensions a rig's cases need."""
_KNOWN_OPS: Final = "cudrts"


@dataclass(frozen=True, slots=True)
class Rig:
    """What the cases that run together share: one database, one publication, one capture.

    ``publication``: SQL of the owner, run before the setups, which then add their tables; "" leaves the publication to capture.
    """

    name: str
    publication: str = ""
    database: str = ""
    """Options of CREATE DATABASE."""


PLAIN: Final = Rig("plain")


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the contract, or one aspect of it.

    ``$S`` in any SQL stands for the case's own schema, which is also the session's ``search_path``; further schemas of a case are named
    ``$S__something`` and shown as ``something.table``.
    """

    id: str
    """``B<line>-<aspect>``; names the schema, so unique and at most 50 characters."""
    title: str
    setup: str
    steps: str = ""
    """A script, see ``script``: what happens while capture streams."""
    log: str | None = None
    """The records that the steps lead to, in order, see ``record``; None: only the content counts."""
    rows: Mapping[str, str] = field(default_factory=dict)
    """Literal final content by table, one row a line, in any order."""
    kind: str = ""
    """For cases made by ``values``: the type, the values as SQL, and the canonical text of each."""
    literals: tuple[str, ...] = ()
    texts: tuple[str | None, ...] = ()
    keyed: bool = False
    versions: tuple[int, ...] = (NEWEST,)
    rig: Rig = PLAIN
    needs: str = ""
    """The extension, or ``xml``, without which the case is skipped."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of ``[source]``, for cases with a capture of their own."""
    refusal: tuple[str, ...] = ()
    """For cases with a capture of their own: what the error line says with which capture ends."""
    wrong: str = ""
    """Why the case fails today; strict, so that the entry turns red once it is fixed."""

    @property
    def schema(self) -> str:
        return _schema(self.id)

    def sql(self, text: str) -> str:
        return text.replace("$S", self.schema)

    def table_of(self, topic: str) -> str | None:
        """The topic's name as the case's expectations write it, None for another case's topic."""
        schema, _, name = topic.partition(".")
        if schema == self.schema:
            return name
        head, found, further = schema.partition(f"{self.schema}__")
        return f"{further}.{name}" if found and not head else None


@cache
def _schema(case: str) -> str:
    """Asked for each case and each of hundreds of topics."""
    return re.sub(r"[^a-z0-9]+", "_", case.lower())


@dataclass(frozen=True, slots=True)
class Step:
    """``session: SQL``. ``waits`` False: the session is left working (``2&:``); ``fails``: the server refuses it (``1!:``)."""

    session: str
    text: str
    waits: bool = True
    fails: bool = False


def script(text: str) -> Iterator[Step]:
    """One step a line; a line without ``name:`` at its beginning goes on with the step before."""
    steps: list[list[str]] = []
    for line in text.split("\n"):
        found = re.match(r"\s*([a-z0-9]+)([&!]?): ?(.*)$", line)
        if found:
            steps.append([found[1], found[2], found[3]])
        elif line.strip():
            steps[-1][2] += "\n" + line
    for session, mark, sql in steps:
        yield Step(session, sql, waits=mark != "&", fails=mark == "!")


@dataclass(frozen=True, slots=True)
class Record:
    """One change as the log holds it. ``values``: canonical text; None is NULL or, in a delete, "not sent"."""

    position: int
    op: str
    table: str
    values: tuple[str | None, ...]
    kind: str = ""
    """Of a schema change."""
    lsn: int = 0


def record(found: Record) -> str:
    """``op table value | value``: op as in the log (c u d r t s), see ``cell`` for values; a schema change has its kind instead."""
    head = f"{found.op} {found.table}"
    if found.op == "t":
        return head
    return f"{head} {found.kind or line(found.values)}"


def line(values: Sequence[str | None]) -> str:
    return " | ".join(map(cell, values))


def cell(value: str | None) -> str:
    r"""``~`` is NULL or "not sent", ``""`` the empty text; a space at either end is ``\s``, and ``\ | \n ~`` are escaped."""
    if value is None:
        return "~"
    if value == "":
        return '""'
    text = value.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "\\n")
    if text in ("~", '""'):
        text = "\\" + text
    stripped = text.strip(" ")
    left, right = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    return "\\s" * left + stripped + ("\\s" * right if stripped else "")


def lines(text: str) -> list[str]:
    """The expectation's lines, each stripped."""
    found = [piece.strip() for piece in text.splitlines() if piece.strip()]
    for one in found:
        assert one, one
    return found


def records(text: str) -> list[str]:
    found = lines(text)
    for one in found:
        assert one[0] in _KNOWN_OPS, f"not a record: {one}"
        assert one[1] == " ", f"not a record: {one}"
    return found


def values(
    id: str,
    title: str,
    kind: str,
    *given: str | tuple[str, str],
    setup: str = "",
    keyed: bool = True,
    versions: tuple[int, ...] = (NEWEST,),
    needs: str = "",
    rig: Rig = PLAIN,
    wrong: str = "",
) -> Case:
    """A case that puts values of one type through everything: snapshot, insert, update, and as a key (unless ``keyed``: as whole old rows).

    Each value is written as the SQL literal's text, or as ``=expression``; a pair adds the canonical text where it is another one.
    Under ``keyed`` no two values may be equal to Postgres.
    """
    pairs = [(one, one) if isinstance(one, str) else one for one in given]
    literals = [text[1:] if text.startswith("=") else _quoted(text) for text, _ in pairs]
    everything = [*literals, "null"]

    def insert(table: str, base: int, what: Sequence[str]) -> str:
        return f"insert into {table} values " + ", ".join(f"({base + number}, {one})" for number, one in enumerate(what))

    statements = [setup, f"create table t (id int primary key, v {kind}, n int)", insert("t", 1, everything)]
    steps = [
        insert("t", 101, everything),
        "update t set n = 1 where id > 100",
        "insert into t select id + 100, null from t where id > 100",
        "update t set v = (select v from t o where o.id = t.id - 100) where id > 200",
    ]
    if keyed:
        statements += [
            f"create table k (v {kind} primary key, n int)",
            "insert into k values " + ", ".join(f"({one}, 0)" for one in literals),
        ]
        first = f"{literals[0]}::{kind}"
        steps += ["update k set n = 1", f"delete from k where v = {first}", f"insert into k values ({literals[0]}, 2)"]
    else:
        statements += [f"create table f (id int, v {kind})", "alter table f replica identity full", insert("f", 1, everything)]
        steps += [
            insert("f", 101, everything),
            "update f set id = id + 1000 where id > 100",
            f"delete from f where id <= {len(everything)}",
        ]
    return Case(
        id=id,
        title=title,
        setup=";\n".join(statement for statement in statements if statement),
        steps="\n".join(f"1: {step}" for step in steps),
        kind=kind,
        literals=tuple(everything),
        texts=(*(text for _, text in pairs), None),
        keyed=keyed,
        versions=versions,
        needs=needs,
        rig=rig,
        wrong=wrong,
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
