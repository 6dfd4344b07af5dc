"""Bugs that we plant, one at a time, to see whether the tests notice. See ``seeded.py`` for the list."""
