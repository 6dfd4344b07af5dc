"""Where a store begins when its user names a place of the log (`cdc follow NAME --from`).

Only a store that keeps nothing (``Traits.passing``) begins there. One that keeps rows says by itself how far it is, and there is no other place from
which its rows could become right:

- *Ahead* of what it holds, it would lack the changes between, for ever: nothing says later that they are missing.
- *Behind* what it holds, every change is there already, and what guards the store against late writes turns each of them away. A store without that guard would
  show older rows until the range is through, and rows that a TRUNCATE has taken away would come back in one that has swept once.

So both are refused, with the commands that write rows again as they are now.
"""

from __future__ import annotations

from pathlib import Path

from cdc.errors import ConfigError, PositionGone
from cdc.follow.access import Ports
from cdc.log.contract import LogReader, present_history, selected
from cdc.model.position import Cut, Lsn, Position
from cdc.replay.place import before, parse_place
from cdc.settings.models import StoreOptions
from cdc.state import status
from sinks import make_sink, refuse_without_rows, traits_of
from sinks.contract import Sink


def beginning_of(log: LogReader, run_dir: Path, store: str, options: StoreOptions, text: str) -> Cut:
    """Where the store begins: right before the first change at or after the place that the text names, be that within a commit.

    Raises ConfigError for a text that names no place, a place that the log has not reached, and a store that keeps rows; PositionGone when the log no longer
    has all changes of the store's tables from there on.
    """
    place = parse_place(text)
    if log.lineage() is None:
        raise ConfigError("there is no log yet", hint="cdc run makes one; [log] dir in cdc.toml names the place")
    after = before(log, place)
    refuse_without_rows(store, options, "it keeps its own place in the log, and begins nowhere else")
    if not traits_of(options).passing:
        raise _keeps_its_place(run_dir, store, after, text)
    topics, head = selected(log, options.tables), log.head()
    try:
        log.slices([topic.name for topic in topics], after, head.position, 1 << 62, present_history(log))
    except PositionGone as gone:
        earliest = max(topic.kept_from for topic in topics)
        raise PositionGone(
            str(gone).removeprefix(f"{gone.state}: "), hint=f"cdc follow {store} --from {earliest}, or a later place"
        ) from None
    # Of a place within a commit no LSN can be said to be reached.
    return head if after == head.position else Cut(after, Lsn(0), 0)


def beginning_at(cut: Cut) -> Ports:
    """A follower's surroundings in which each store, one that keeps nothing, begins at the cut."""

    def made(store: str, options: StoreOptions) -> Sink:
        sink = make_sink(store, options)
        sink.commit(cut)
        return sink

    return Ports(sink=made)


def _keeps_its_place(run_dir: Path, store: str, after: Position, text: str) -> ConfigError:
    seen = status.read_follower(run_dir, store)
    holds = 0 if seen is None else seen.position
    said = f"store {store} keeps its own place in the log beside its rows (it was last seen at position {holds}), so it cannot begin at {text}"
    if after > holds:
        return ConfigError(
            f"{said}: it would lack every change before that", hint=f"cdc follow {store}, which goes on from where the store stands"
        )
    return ConfigError(
        f"{said}: what has changed since then is in it, and an older change never takes the place of a newer one",
        hint=f"cdc audit {store} --repair sends the rows that differ again; cdc snapshot TABLE --where SQL, --keys FILE or --replace those that you name",
    )
