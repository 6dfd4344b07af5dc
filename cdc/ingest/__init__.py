"""The capture process: from a connection to the source to durable groups in the log.

``process.py`` connects and connects again, ``preparation.py`` says what must be true before a stream starts, ``loop.py`` is the stream itself,
``definitions.py`` knows the tables' definitions, ``meter.py`` writes the status, ``slotalarms.py`` warns of what threatens the slot.
"""
