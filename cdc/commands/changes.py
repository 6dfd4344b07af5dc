"""`cdc log cat|grep|diff|export`: the changes themselves. These print row values, on standard output and nowhere else."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from cdc.commands.invocation import invocation, open_log
from cdc.commands.output import progress_bar, say, say_lines
from cdc.errors import ConfigError
from cdc.model.position import format_lsn
from cdc.terminal import counted, quoted, visible

if TYPE_CHECKING:
    from cdc.log.contract import LogReader, Topic
    from cdc.replay.former import WithFormer
    from cdc.replay.query import LogQuery

PRINTED_CHARACTERS: Final = 2**20
"""After so many, lines are printed and no more are collected."""


class Format(StrEnum):
    text = "text"
    json = "json"


class FileFormat(StrEnum):
    parquet = "parquet"
    ndjson = "ndjson"
    debezium = "debezium"


PLACE: Final = (
    "a position (4711), an LSN (16/B374D848; of a source that was restored, one of its newest history) "
    "or a time (2026-11-22T18:00:00Z; without a zone UTC)"
)
Topics = Annotated[str | None, typer.Argument(help="schema.table; all topics when left out.")]
OneTopic = Annotated[str, typer.Argument(metavar="TOPIC", help="schema.table")]
From = Annotated[str | None, typer.Option("--from", metavar="PLACE", help=f"Begin with the first change at or after {PLACE}.")]
To = Annotated[str | None, typer.Option("--to", metavar="PLACE", help="End with the last change at or before such a place.")]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="PLACE", help="In place of changes: the rows of the table as they were at such a place."),
]
Key = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        help="Only changes of this key: its value, or column=value for each column of the key. Numbers, booleans, bytes, uuids, dates and times may "
        "be spelled as Postgres takes them, a char(n) without its padding; every other type as Postgres prints it (SELECT column::text). "
        "The key is that of the newest definition: deletes from before another column became the key do not carry it and are not found.",
    ),
]
Form = Annotated[Format, typer.Option("--format", help="json: one Debezium-style envelope a line.")]
AsJson = Annotated[bool, typer.Option("--json", help="The same as --format json.")]


def cat(
    context: typer.Context,
    topic: Topics = None,
    begin: From = None,
    to: To = None,
    at: At = None,
    key: Key = None,
    form: Form = Format.text,
    as_json: AsJson = False,
) -> None:
    """The changes themselves, in position order: position, LSN, operation, table, columns. This prints row values.

    The operation is c (insert), u (update), d (delete), r (read by a snapshot), t (TRUNCATE) or s (another definition). A name that is not one plain
    word is shown in quotes, with escapes, as values are.
    """
    from cdc.replay.match import KeyMatch
    from cdc.replay.query import topics

    with closing(open_log(invocation(context).settings())) as log:
        found = topics(log, topic)
        if topic is None and (key or at):
            raise ConfigError("--key and --at are of one table", hint="cdc log cat TOPIC …; cdc log ls names the topics")
        match = KeyMatch.of(found[0].schema, key) if key else None
        enveloped = as_json or form is Format.json
        printed = _print(log, found, _query(log, begin, to, at, match=match, sent=enveloped), enveloped)
        if match is not None and not printed:
            sys.stderr.write(f"{visible(match.absence())}\n")


def grep(
    context: typer.Context,
    pattern: Annotated[str, typer.Argument(help="The text to look for in the columns' values.")],
    topic: Topics = None,
    column: Annotated[
        list[str] | None, typer.Option("--column", help="Look in this column only; may be given several times.")
    ] = None,
    regex: Annotated[
        bool, typer.Option("--regex", "-E", help="PATTERN is a regular expression (RE2); one that begins with (?i) heeds no case.")
    ] = False,
    begin: From = None,
    to: To = None,
    as_json: AsJson = False,
) -> None:
    """The changes with a column whose value holds a text; a delete has the columns of its key. This prints row values. Exit 1 when there are none."""
    from cdc.replay.match import TextMatch
    from cdc.replay.query import topics

    match = TextMatch(pattern, tuple(column or ()), regex)
    with closing(open_log(invocation(context).settings())) as log:
        found = topics(log, topic)
        match.check([one.schema for one in found])
        query = _query(log, begin, to, None, match=match, sent=as_json)
        if not _print(log, found, query, as_json):
            raise typer.Exit(1)


def diff(
    context: typer.Context,
    topic: OneTopic,
    begin: Annotated[str, typer.Option("--from", metavar="PLACE", help=f"The rows as they were at {PLACE} …")],
    to: Annotated[str | None, typer.Option("--to", metavar="PLACE", help="… and as they were at this one (default: now).")] = None,
    form: Form = Format.text,
    as_json: AsJson = False,
) -> None:
    """Show how a table differs between two places: per key the row before and after, however often it changed in between. This prints row values."""
    from cdc.model.batch import OP
    from cdc.replay.netchange import net_changes
    from cdc.replay.place import parse_place, upto
    from cdc.replay.query import sliced, topics

    with closing(open_log(invocation(context).settings())) as log:
        (one,) = topics(log, topic)
        after = upto(log, parse_place(begin))
        until = log.head().position if to is None else upto(log, parse_place(to))
        if until < after:
            raise ConfigError(f"{to} lies before {begin} in the log", hint="exchange the two")
        totals = dict.fromkeys("cud", 0)
        with _progress("diff", None) as advance:
            for replaced in net_changes(log, one.name, after, until):
                for letter in totals:
                    totals[letter] += int((replaced.changes.column(OP).to_numpy() == ord(letter)).sum())
                if as_json or form is Format.json:
                    _say_rendered(FileFormat.debezium, [replaced])
                else:
                    for some in sliced([replaced]):
                        for shown in _differences(some):
                            say(shown)
                advance(len(replaced.changes))
    sys.stderr.write(f"{totals['c']} inserted, {totals['u']} updated, {totals['d']} deleted\n")


def export(
    context: typer.Context,
    topic: OneTopic,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A new file, or - for standard output.")],
    form: Annotated[FileFormat | None, typer.Option("--format", help="Default: by the file's ending.")] = None,
    begin: From = None,
    to: To = None,
    at: At = None,
    before: Annotated[
        bool,
        typer.Option(
            "--before/--no-before",
            help="debezium: look up the rows that updates and deletes replaced, where the source did not send them.",
        ),
    ] = True,
) -> None:
    """Write a table's changes to a file: Parquet (typed columns), NDJSON (flat objects) or Debezium's envelopes. It holds row values."""
    from cdc.replay.export import write
    from cdc.replay.query import topics
    from cdc.replay.state import definition_at

    chosen = form or _by_ending(file)
    if chosen is FileFormat.parquet and file == "-":
        raise ConfigError("Parquet cannot be written to standard output", hint="name a file, or --format ndjson")
    with closing(open_log(invocation(context).settings())) as log:
        (one,) = topics(log, topic)
        enveloped = chosen is FileFormat.debezium
        query = _query(log, begin, to, at, sent=enveloped, former=before and enveloped)
        rows = sum(piece.rows for piece in log.slices([one.name], query.after, query.upto, 2**62, query.history))
        with _progress("export", rows) as advance:
            answer = _counted(query.of(log, one.name), advance)
            if file == "-":
                _say_rendered(chosen, answer)
                return
            written = write(Path(file), chosen, definition_at(log, one.name, query.upto) or one.schema, answer)
    sys.stderr.write(f"{counted(written, 'change')} written\n")


def _by_ending(file: str) -> FileFormat:
    found = {".parquet": FileFormat.parquet, ".ndjson": FileFormat.ndjson, ".jsonl": FileFormat.ndjson}.get(Path(file).suffix)
    if found is None:
        raise ConfigError("the file's ending does not say its format", hint="--format parquet, ndjson or debezium")
    return found


def _query(log: LogReader, begin: str | None, to: str | None, at: str | None, **more: Any) -> LogQuery:
    from cdc.log.contract import present_history
    from cdc.replay.place import parse_place, upto
    from cdc.replay.query import LogQuery, span

    if at is not None:
        if begin is not None or to is not None:
            raise ConfigError("--at asks for rows, --from and --to for changes", hint="leave one of them out")
        from cdc.model.position import START

        return LogQuery(START, upto(log, parse_place(at)), state=True, **more)
    after, until = span(log, None if begin is None else parse_place(begin), None if to is None else parse_place(to))
    return LogQuery(after, until, history=present_history(log), **more)


def _print(log: LogReader, found: Iterable[Topic], query: LogQuery, as_json: bool) -> int:
    """Prints the answer, and returns how many changes that were."""
    each = [(_enveloped if as_json else _told)(query.of(log, topic.name)) for topic in found]
    merged = each[0] if len(each) == 1 else heapq.merge(*each, key=lambda one: one[0])
    printed = 0
    for some in _portions(merged):
        printed += len(some)
        if as_json:
            say_lines("".join(line + "\n" for _, line in some))
        else:
            for _, line in some:
                say(line)
    return printed


def _portions(lines: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """What is printed at once: a thousand lines, fewer of long ones."""
    some: list[tuple[int, str]] = []
    size = 0
    for line in lines:
        some.append(line)
        size += len(line[1])
        if len(some) == 1000 or size >= PRINTED_CHARACTERS:
            yield some
            some, size = [], 0
    if some:
        yield some


def _enveloped(answer: Iterable[WithFormer]) -> Iterator[tuple[int, str]]:
    from cdc.model.batch import POSITION
    from cdc.replay.envelope import envelopes
    from cdc.replay.query import sliced

    for replaced in sliced(answer):
        lines = envelopes(replaced).decode().split("\n")[:-1]
        yield from zip(replaced.changes.column(POSITION).to_pylist(), lines, strict=True)


def _say_rendered(form: FileFormat, answer: Iterable[WithFormer]) -> None:
    from cdc.replay.export import rendered
    from cdc.replay.query import sliced

    for replaced in sliced(answer):
        say_lines(rendered(form, replaced).decode())


def _told(answer: Iterable[WithFormer]) -> Iterator[tuple[int, str]]:
    """Position, LSN, operation, table and values of each change, as a line."""
    from cdc.model.batch import LSN, OP, POSITION, topic_schema
    from cdc.replay.envelope import values
    from cdc.replay.query import sliced

    for replaced in sliced(answer):
        changes = replaced.changes
        schema, now = topic_schema(changes.schema), values(changes)
        keys = [column.name for column in schema.key]
        heads = zip(*(changes.column(name).to_pylist() for name in (POSITION, OP, LSN)), strict=True)
        for row, (position, op, lsn) in enumerate(heads):
            names: Iterable[str] = {"d": keys, "t": (), "s": ()}.get(chr(op), now)
            shown = [f"{quoted(name)}={_value(now[name][row])}" for name in names]
            yield position, " ".join([str(position), format_lsn(lsn), chr(op), quoted(schema.topic), *shown])


def _differences(replaced: WithFormer) -> Iterator[str]:
    """One line for each key: + for a new row, - for one that is gone, ~ for one that is another."""
    from cdc.model.batch import OP, topic_schema
    from cdc.replay.envelope import values

    keys = [column.name for column in topic_schema(replaced.changes.schema).key]
    now, was = values(replaced.changes), None if replaced.former is None else values(replaced.former)
    for row, op in enumerate(replaced.changes.column(OP).to_pylist()):
        if chr(op) != "u" or was is None:
            yield " ".join(chain("-" if chr(op) == "d" else "+", (f"{quoted(name)}={_value(now[name][row])}" for name in now)))
            continue
        before = was
        changed = [name for name in now if before[name][row] != now[name][row]]
        same = [f"{quoted(name)}={_value(now[name][row])}" for name in keys if name not in changed]
        yield " ".join(
            ["~", *same, *(f"{quoted(name)}={_value(before[name][row])} → {_value(now[name][row])}" for name in changed)]
        )


def _value(value: Any) -> str:
    return "NULL" if value is None else repr(value)


def _counted(answer: Iterable[WithFormer], advance: Callable[[int], None]) -> Iterator[WithFormer]:
    for replaced in answer:
        yield replaced
        advance(len(replaced.changes))


@contextmanager
def _progress(what: str, rows: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error where that is a terminal and standard output is not."""
    shown = sys.stderr.isatty() and not sys.stdout.isatty()
    with progress_bar(Console(stderr=True), what, rows, shown=shown) as update:
        yield lambda done: update(advance=done)
