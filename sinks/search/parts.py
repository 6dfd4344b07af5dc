"""The parts that one generation of a store is worked on with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cdc.crashpoint import crashpoint
from sinks.followedlog import Followed
from sinks.render.choices import Choices
from sinks.search.barriers import SearchBarriers
from sinks.search.documents import Documents
from sinks.search.indices import Indices
from sinks.search.ledger import SearchLedger
from sinks.search.looks import StoreLooks
from sinks.search.options import Options
from sinks.search.overview import Overview
from sinks.search.purge import Purging
from sinks.search.rows import Rows
from sinks.search.shown import Shown
from sinks.search.statements import Statements
from sinks.search.tables import Tables
from sinks.search.wire import Cluster


@dataclass(frozen=True, slots=True)
class Parts:
    shown: Shown
    cluster: Cluster
    ledger: SearchLedger
    tables: Tables
    rows: Rows
    barriers: SearchBarriers
    purging: Purging
    looks: StoreLooks
    documents: Documents

    def close(self) -> None:
        self.rows.close()
        self.cluster.close()


def parts_of(
    shown: Shown, options: Options, choices: Choices, settings: Callable[[], dict[str, Any]], clock: Callable[[], float]
) -> Parts:
    """``settings``: those of a new index."""
    cluster = Cluster(shown.names.owner, options)
    ledger = SearchLedger(cluster, shown)
    followed, indices = Followed(shown.names.owner), Indices(cluster, choices.style, shown, options.index_pattern)
    overview = Overview(indices, followed, options.index, options.tables)
    tables = Tables(followed, indices, overview, Statements(cluster, followed), settings, options.indices_max)
    rows = Rows(cluster, ledger.letters(), tables, request_bytes=options.request_bytes, dead_share_max=options.dead_share_max)
    barriers = SearchBarriers(cluster, tables, rows)
    return Parts(
        shown,
        cluster,
        ledger,
        tables,
        rows,
        barriers,
        Purging(cluster, tables, barriers, options.purge_after_s, clock),
        StoreLooks(ledger, tables, clock),
        Documents(cluster, tables, choices),
    )


def remove(parts: Parts) -> None:
    """Deletes the generation's indices, its ledger last: as long as that is there, it is known that there is something to remove."""
    indices, ledgers = parts.tables.indices, parts.ledger.indices
    indices.delete(
        one.index for one in indices.all(standings=False) if indices.mine(one) and not one.renamed and one.index not in ledgers
    )
    crashpoint("generations.search_indices_removed")
    indices.delete(ledgers)
