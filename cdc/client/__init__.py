"""For programs that write to Postgres and read from a store: ``cdc.connect(config)``, and waiting until a store shows an LSN."""
