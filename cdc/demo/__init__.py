"""The demo: a real airport's year in an embedded Postgres, captured into a search index, a cache and a warehouse."""
