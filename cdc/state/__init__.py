"""State that processes share with each other and with their own next start: status files, stop states, requests, approvals, leases.

``jsonfile.py`` writes the bytes, ``statefile.py`` is one kind of such a file.
"""
