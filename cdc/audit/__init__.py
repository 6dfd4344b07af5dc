"""The audit: every row of a store against the database, at one position. The shell around ``cdc.audit.engine`` and ``cdc.audit.suspects``.

Per store: one snapshot of the source with its LSN; wait until the store has applied that LSN; scan both sides whole, the source in
a second thread; then settle the keys that do not agree with fresh looks at both sides, so that rows in flight raise no alarm.

The continuous audit is another shell around the same engine: ``rounds.py`` goes over the stores, ``logcomparison.py`` compares with what the log says,
and asks no database.

``stores.py`` begins an audit; ``comparison.py`` and ``settlement.py`` are its two halves; ``findings.py`` is what it says.
"""
