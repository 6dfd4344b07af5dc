"""Stores that hand changes on as events, each once and in order, instead of holding rows: what all kinds of them share, and a module or folder for each kind."""
