"""The contract's edge cases as a table: SQL in, log records and a store's content out, on real servers.

One entry is one frozen ``Case`` in ``entries/``; adding a case is adding one entry. The runner works on many cases at once: all setups, one
snapshot, all steps, one reading of the log, one more snapshot by a second capture; then each case is looked at on its own.
"""
