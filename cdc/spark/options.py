"""The options of ``format("cdc")``, checked; ``cdc.spark.source`` lists them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Final

from cdc.errors import ConfigError
from cdc.log.contract import LogReader, Topic, selected
from cdc.log.home import open_reader
from cdc.model.position import Position
from cdc.model.selection import literal
from cdc.replay.place import LogPlace, parse_place
from cdc.spark.checkpoint import position_in

_NAMES: Final = (
    *("log", "table", "tables", "as", "asOf", "preimages", "columns", "startPosition", "endPosition", "ranges", "history"),
    *("maxRows", "maxBytes", "checkpoint", "fresh", "waitSeconds", "sliceBytes"),
)
_SPARKS: Final = frozenset({"path", "paths"})
"""What Spark adds by itself."""
_ALTERNATIVES: Final = (
    ("table", "tables"),
    *(("asOf", name) for name in ("startPosition", "endPosition", "ranges")),
    *(("ranges", name) for name in ("startPosition", "endPosition")),
)
"""Of each pair one."""


class RowForm(StrEnum):
    """The rows of a read."""

    CHANGES = "changes"
    CHANGEFEED = "changefeed"
    SLICES = "slices"
    ROWS = "rows"
    """The rows of the table as of a cut; asked for with the option ``asOf``."""


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """The limits of a stream's micro-batches, and what it knows of its start."""

    max_rows: int
    max_bytes: int
    wait_s: float
    fresh: bool
    checkpoint: str | None

    def known_start(self, start: Position) -> Position | None:
        """Where the stream stands; None when nothing tells. Raises ConfigError for a checkpoint that cannot be read."""
        if self.fresh:
            return start
        return None if self.checkpoint is None else Position(max(start, position_in(self.checkpoint)))


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """All of them."""

    dir: Path
    tables: tuple[str, ...]
    form: RowForm
    start: Position
    end: Position | None
    ranges: tuple[tuple[Position, Position], ...] | None
    """In place of start and end: pieces (after, upto] of a batch read."""
    columns: tuple[str, ...] | None
    as_of: LogPlace | None
    history: str | None
    """In which whoever asks came to where he begins to read (``LogReader.read``)."""
    preimages: bool
    slice_bytes: int
    stream: MicroBatches

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadPlan:
        """Raises ConfigError, naming the option."""
        _check_names(options)
        end = None if "endPosition" not in options else Position(_number(options, "endPosition", 0))
        start = Position(_number(options, "startPosition", 0))
        columns, as_of, ranges = options.get("columns"), options.get("asOf"), options.get("ranges")
        form, preimages = _form(options), _yes(options, "preimages")
        if preimages and form is not RowForm.CHANGEFEED:
            raise ConfigError("the option preimages belongs to as = changefeed", hint='.option("as", "changefeed")')
        if columns is not None and form is RowForm.SLICES:
            raise ConfigError("the option columns is not for as = slices", hint="leave one of them out")
        if end is not None and start > end:
            raise ConfigError(
                f"the option startPosition, {start}, lies beyond endPosition, {end}", hint="name the earlier one first"
            )
        return cls(
            dir=Path(_needed(options, "log")),
            tables=_patterns(options),
            form=form,
            start=start,
            end=end,
            ranges=None if ranges is None else _pairs(ranges),
            columns=None if columns is None else _names(columns, "columns"),
            as_of=None if as_of is None else parse_place(as_of),
            history=options.get("history"),
            preimages=preimages,
            # Former rows cost one look at all earlier changes for each piece.
            slice_bytes=_number(options, "sliceBytes", (128 if preimages else 16) * 2**20),
            stream=MicroBatches(
                max_rows=_number(options, "maxRows", 1_000_000),
                max_bytes=_number(options, "maxBytes", 256 * 2**20),
                wait_s=_seconds(options, "waitSeconds", 1.0),
                fresh=_yes(options, "fresh"),
                checkpoint=options.get("checkpoint"),
            ),
        )

    def log(self) -> LogReader:
        """Raises ConfigError when there is no log: a wrong path must not look like an empty table."""
        if not self.dir.is_dir():
            raise ConfigError(f"there is no log in {self.dir}", hint="name the folder that [log] dir of cdc.toml names")
        return open_reader(self.dir)

    def topics(self, log: LogReader) -> list[str]:
        return [topic.name for topic in selected(log, self.tables)]

    def one_topic(self, log: LogReader) -> Topic:
        found = selected(log, self.tables)
        if len(found) == 1:
            return found[0]
        what = "no table" if not found else f"{len(found)} tables"
        hint = 'cdc log ls names the tables; read one with .option("table", "schema.name"), or .option("as", "slices")'
        raise ConfigError(f"{', '.join(self.tables)} matches {what} of the log in {self.dir}", hint=hint)

    def wanted(self, log: LogReader) -> Sequence[tuple[Position, Position]]:
        """The pieces (after, upto] of a batch read, none of them beyond the head."""
        head = log.head().position
        whole = ((self.start, head if self.end is None else self.end),)
        return [(after, Position(min(upto, head))) for after, upto in (whole if self.ranges is None else self.ranges)]


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.casefold() for name in _NAMES} | _SPARKS
    for name in options:
        if name.casefold() not in known:
            raise ConfigError(f'format("cdc") has no option {name}: it has {", ".join(_NAMES)}')
    for one, other in _ALTERNATIVES:
        if one in options and other in options:
            raise ConfigError(f"the options {one} and {other} exclude each other", hint="leave one of them out")


def _form(options: Mapping[str, str]) -> RowForm:
    text = options.get("as") or ("rows" if "asOf" in options else "changes")
    if text not in [form.value for form in RowForm]:
        raise ConfigError(
            f'the option as is {text!r}: format("cdc") gives changes, changefeed, slices or rows', hint='.option("as", "changes")'
        )
    if (text == RowForm.ROWS) != ("asOf" in options):
        raise ConfigError("as = rows and asOf belong together", hint='.option("asOf", a position, an LSN or a time)')
    return RowForm(text)


def _needed(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        raise ConfigError(f'format("cdc") needs the option {name}', hint=f'.option("{name}", …)')
    return value


def _patterns(options: Mapping[str, str]) -> tuple[str, ...]:
    table, tables = options.get("table"), options.get("tables")
    if table:
        return (literal(table),)
    if not tables:
        raise ConfigError('format("cdc") needs the option table or tables', hint='.option("table", "schema.name")')
    return _names(tables, "tables")


def _names(text: str, option: str) -> tuple[str, ...]:
    """A list as JSON, for names that hold a comma, or separated by commas."""
    if not text.startswith('["'):
        return tuple(part.strip() for part in text.split(","))
    found = _json(text)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ConfigError(f"the option {option} is not a list of names as JSON", hint=f"""{option} = '["a", "b"]'""")
    return tuple(found)


def _pairs(text: str) -> tuple[tuple[Position, Position], ...]:
    found = _json(text)
    if not isinstance(found, list) or not all(map(_is_pair, found)):
        raise ConfigError("the option ranges is not a JSON list of pairs [after, upto]", hint='.option("ranges", "[[0, 10]]")')
    return tuple((Position(after), Position(upto)) for after, upto in found)


def _is_pair(found: object) -> bool:
    """Whether it is [after, upto], two positions in order."""
    return isinstance(found, list) and [type(one) for one in found] == [int, int] and 0 <= found[0] <= found[1]


def _json(text: str) -> object:
    """None for what is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name)
    if text is None:
        return default
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not isfinite(found) or found < 0:
        raise ConfigError(f"the option {name} is not a number of seconds", hint=f'.option("{name}", "1")')
    return found


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isdecimal():
        raise ConfigError(f"the option {name} is not a whole number")
    return int(text)


def _yes(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name) or "false"
    if text not in ("true", "false"):
        raise ConfigError(f"the option {name} is neither true nor false", hint=f'.option("{name}", "true")')
    return text == "true"
