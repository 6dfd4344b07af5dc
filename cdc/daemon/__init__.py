"""`cdc run`: the supervisor, its signals, and the configuration that its processes go by."""
