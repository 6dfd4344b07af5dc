"""A promise that was broken."""

from __future__ import annotations


class Violation(AssertionError):
    """``rule``: its letter in the table of ``tests.sim.checker``; several where it cannot be said which."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"({rule}) {text}")
        self.rule = rule
