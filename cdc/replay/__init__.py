"""The log read again: places in it, the table as of one, the row before a change, what changed between two. Nothing here writes to the log."""
