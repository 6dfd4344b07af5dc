"""What the followers' process says of its stores in the daemon's log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cdc.embedded.valkey import Valkey
from tests.integration.spark.process import FollowersProcess
from tests.integration.spark.traffic import Traffic

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def traffic(tmp_path: Path, seed: int) -> Iterator[Traffic]:
    made = Traffic(tmp_path / "log", seed)
    yield made
    made.close()


def test_a_store_that_goes_down_and_comes_back_is_followed_in_the_log(
    traffic: Traffic, tmp_path: Path, valkey_server: Valkey
) -> None:
    for _ in range(3):
        traffic.bulk(4_000)
    stores = {"cache": {"kind": "redis", "url": valkey_server.url}}
    with FollowersProcess(tmp_path, stores) as followers:
        followers.until(
            lambda: len(followers.words("store cache")) >= 2 or "opened; follows" in followers.words("store cache"),
            "the first load",
        )
        # The first commits may come before the first look at the store: then it says what was left by then, if anything was.
        begun, *done = followers.words("store cache")
        if done:
            left, loaded = (line["changes"] for line in followers.lines("store cache")[:2])
            assert begun in (f"opened; loads: {left:,} changes to write", f"opened; catches up: {left:,} changes to write")
            assert done[0].startswith((f"loaded: {loaded:,} changes in ", f"caught up: {loaded:,} changes in "))
            assert 0 < left <= loaded <= 12_000
        said = len(followers.words("store cache"))

        valkey_server.crash()
        cut = traffic.transactions(10)
        followers.until(lambda: len(followers.words("store cache")) > said, "a word about the outage")
        waits = followers.lines("store cache")[said]
        assert (waits["level"], waits["state"]) == ("warning", "waiting")
        assert waits["event"].startswith("waits: ")
        assert " → " in waits["event"]

        valkey_server.start()
        followers.until(lambda: followers.status("cache").position >= cut.position, "the store to be followed")
        followers.until(lambda: "follows again after " in followers.words("store cache")[-1], "a word about its end")
    assert followers.process.returncode == 0
    assert followers.words("store cache")[-1] == "closed"
    assert all("\x1b" not in words for words in followers.words("store cache"))
    assert len(followers.words("store cache")) <= 8


def test_a_jvm_that_was_killed_is_replaced_and_the_store_that_needs_it_goes_on(traffic: Traffic, tmp_path: Path) -> None:
    """As the kernel does when memory runs out: no process of ours ends, and nobody has to do anything."""
    traffic.transactions(20)
    with FollowersProcess(tmp_path, {"lake": {"kind": "iceberg", "path": "lake"}}) as followers:
        followers.until(lambda: followers.status("lake").position >= traffic.writer.head.position, "the first commit")
        for _ in range(2):
            (java,) = (child for child in psutil.Process(followers.process.pid).children(recursive=True) if child.name() == "java")
            java.kill()
            traffic.transactions(20)
            followers.until(lambda: followers.status("lake").position >= traffic.writer.head.position, "another JVM")
            assert followers.status("lake").state == "following"
    assert followers.process.returncode == 0
