"""``cdc.toml``: its values (``models.py``), reading it (``file.py``), and variables and secrets in it."""
