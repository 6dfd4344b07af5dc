"""Every planted bug is caught by the quick tests that are named beside it, and those tests pass without it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests import counters
from tests.mutants.breeding import ROOT
from tests.mutants.found import FOUND
from tests.mutants.seeded import MUTANTS, Mutant

PASSED, FAILED = 0, 1
# Those that start servers of their own take long, and are kept from holding up the others.
GROUPS = (("mutants", MUTANTS), ("found", FOUND))


class Breeder:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.breeding"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._healthy: dict[tuple[str, ...], dict[str, Any]] = {}

    def run(self, tests: tuple[str, ...], jit: bool, mutant: Mutant | None = None) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        file, old, new = (mutant.file, mutant.old, mutant.new) if mutant else ("", "", "")
        bug = {"file": file, "old": old, "new": new, "tests": tests, "jit": jit}
        self._process.stdin.write(json.dumps(bug).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def healthy(self, tests: tuple[str, ...]) -> dict[str, Any]:
        """What these tests, interpreted, say of the product as it is."""
        if tests not in self._healthy:
            self._healthy[tests] = self.run(tests, jit=False)
        return self._healthy[tests]

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def breeder() -> Iterator[Breeder]:
    one = Breeder()
    yield one
    one.close()


def test_there_are_enough_and_each_has_a_name_of_its_own() -> None:
    assert len(MUTANTS) >= 30
    assert len(FOUND) >= 45
    names = [mutant.name for _, mutants in GROUPS for mutant in mutants]
    assert len(set(names)) == len(names)


def test_every_bug_has_its_place() -> None:
    """Quick, for whoever has moved code."""
    found = {f"{mutant.file}: {mutant.name}": _places(mutant) for _, mutants in GROUPS for mutant in mutants}
    assert {what: number for what, number in found.items() if number != 1} == {}


@pytest.mark.sampled(4)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mutant",
    [pytest.param(mutant, id=mutant.name, marks=pytest.mark.xdist_group(group)) for group, mutants in GROUPS for mutant in mutants],
)
def test_is_caught(breeder: Breeder, mutant: Mutant) -> None:
    assert _places(mutant) == 1, f"{mutant.file} has changed: the bug's place was found {_places(mutant)} times"
    answer = breeder.run(mutant.tests, mutant.jit, mutant)
    if (
        os.geteuid() != 0
        and answer["code"] == PASSED
        and re.search(r"\d skipped", answer["said"])
        and "passed" not in answer["said"]
    ):
        pytest.skip("all of its tests need root")
    assert answer["code"] in (FAILED, None), f"the bug lives (pytest ended with {answer['code']})\n{answer['said']}"
    if answer["code"] == FAILED:
        assert re.search(r"\b1 failed\b", answer["said"]), f"no test failed, something else did\n{answer['said']}"
    if not mutant.jit:
        # Interpreted, the tests run nowhere else; all others are part of every run.
        healthy = breeder.healthy(mutant.tests)
        assert healthy["code"] == PASSED, healthy["said"]
    counters.add("mutants", "caught")


def _places(mutant: Mutant) -> int:
    path = ROOT / mutant.file
    return path.read_text(encoding="utf-8").count(mutant.old) if path.exists() else 0
