"""Generations of a store, built beside the live one from the log, compared with it, and put in its place in one step."""
