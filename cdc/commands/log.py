"""`cdc log`: look into the log."""
