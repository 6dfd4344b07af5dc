"""The log as a folder on this machine: format, writer, reader, recovery, sealing. ``docs/log-format.md`` has the bytes."""
