"""The small JSON files in the log's folder and under run_dir."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cdc.errors import HeadwaterError, Stopped, StopState
from cdc.log.embedded import histories
from cdc.model.facts import FactColumn, Facts, LeafTable, Publishing
from cdc.model.position import Position
from cdc.privacy.decisions import Decided, Decisions, load_decisions, save_decisions
from cdc.source import facts as catalog
from cdc.source import identity
from cdc.source.aside import load_aside, save_aside
from cdc.source.membership import Membership
from cdc.source.trigger import SetAside
from cdc.state import approvals, jsonfile, rebuilds, reloads, status, stops
from snapshots.catalog import SourceTable
from snapshots.progress import SnapshotProgress
from snapshots.requests import Request, RequestOutcome, Requests
from tests.fuzz.damage import cuts, damaged, flips, outcome
from tests.unit.capture.test_decoder import ORDERS

FACTS = Facts(
    ORDERS.oid, "public", "orders", False, "d", (FactColumn(1, "id", 20, -1, "", "", True, "7"),), (1,), {ORDERS.oid: LeafTable(5, True)},
    publishing=Publishing(True, (1,), False, None),
)  # fmt: skip
DECISIONS = Decisions(
    {7: Decided("public.users", {"note": (5, "drop"), "pay": (0, "keep")}, frozenset({"old"}))}, {8: "public.users"}
)
LOG = 0x00C0FFEE_12345678
STOPPED = Stopped(StopState.DIVERGED, "the server lacks what the log holds")


@dataclass(frozen=True)
class Artefact:
    name: str
    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    """Gives what can be compared; reads as the product does."""
    lenient: Any = None
    """What a damaged file gives where that is no error: as if it had not been written."""


def progress(folder: Path) -> None:
    made = SnapshotProgress(folder, interval_s=0.0)
    run = made.begin(SourceTable(ORDERS, ("id",), False, None, 100, 1000, 9), "files")
    made.advance(ORDERS.oid, run.number, (0, 4), 40, waiting=False)
    made.restart(99, empties=True)


def source(folder: Path) -> None:
    membership = Membership(5, {16400: ("public.orders", (1, 2))})
    identity.record(folder, identity.Identity("7301", 1, "shop", "headwater", "cdc", 123456, 77, membership))


def request(folder: Path) -> None:
    Requests(folder).queue(Request("public.orders", keys=(("1",), ("2",))))


def begin_histories(folder: Path) -> None:
    for since in (0, 7, 7, 2**40):
        histories.begin(folder, LOG, Position(since))


def told(folder: Path) -> None:
    (folder / "requests").mkdir()
    Requests(folder).tell("a", RequestOutcome("running", 5, 9))


def capture_status(folder: Path) -> None:
    said = status.CaptureStatus(pid=7, state="streaming", position=9, snapshot=[status.TableProgress("public.orders", 1, 2)])
    status.write(folder, "capture", said)


def supervisor_status(folder: Path) -> None:
    status.write(folder, "supervisor", status.SupervisorStatus(pid=7, processes=[status.ProcessStatus("capture")]))


ARTEFACTS = [
    Artefact("snapshot.json", progress, lambda folder: SnapshotProgress(folder)._records),
    Artefact("source.json", source, identity.recorded),
    Artefact("catalog.json", lambda folder: catalog.save_facts(folder, {FACTS.oid: FACTS}), catalog.load_facts),
    Artefact("decided.json", lambda folder: save_decisions(folder, DECISIONS), load_decisions),
    Artefact("aside.json", lambda folder: save_aside(folder, {16384: SetAside(None, again=False)}), load_aside),
    Artefact("reload.json", lambda folder: reloads.request(folder, StopState.SLOT_LOST), reloads.requested),
    Artefact(
        "rebuild request",
        lambda folder: rebuilds.request(folder, "search", StopState.OTHER_LOG),
        lambda folder: rebuilds.requested(folder, "search"),
    ),
    Artefact("histories.json", begin_histories, lambda folder: histories.lineage_of(folder, LOG)),
    Artefact("snapshot request", request, lambda folder: list(Requests(folder).pending().values())),
    Artefact(
        "snapshot outcome",
        told,
        lambda folder: Requests(folder).outcome("a"),
    ),
    Artefact(
        "approvals",
        lambda folder: approvals.ask(folder, "cache", "public.orders", Position(7)),
        lambda folder: (approvals.approved(folder, "cache"), approvals.asked_topics(folder)),
    ),
    Artefact("capture status", capture_status, status.read_capture),
    Artefact("supervisor status", supervisor_status, status.read_supervisor),
    Artefact(
        "follower status",
        lambda folder: status.write(folder, "follow-cache", status.FollowerStatus("cache", position=9)),
        lambda folder: next(iter(status.read_followers(folder)), None),
    ),
]


def only_file(folder: Path) -> Path:
    [path] = [path for path in folder.rglob("*") if path.is_file()]
    return path


@pytest.mark.parametrize("artefact", ARTEFACTS, ids=lambda artefact: artefact.name)
def test_damaged_anywhere(artefact: Artefact, tmp_path: Path, seed: int) -> None:
    artefact.write(tmp_path)
    path = only_file(tmp_path)
    data, whole = path.read_bytes(), artefact.read(tmp_path)
    assert whole
    forgiven = "status" in artefact.name
    for case in damaged(data, seed, most=4000):
        path.write_bytes(case)
        found = outcome(artefact.name, lambda: artefact.read(tmp_path))
        if isinstance(found, HeadwaterError):
            assert not forgiven
            assert found.hint, found
            assert str(tmp_path) in str(found)
        else:
            assert found == whole or (forgiven and found is None), case


@pytest.mark.parametrize("artefact", ARTEFACTS, ids=lambda artefact: artefact.name)
@pytest.mark.parametrize("shape", ["[]", "null", "7", '"x"', "{}", "[[" * 50_000, '{"format": 1}', '{"format": []}', "\ufeff{}"])
def test_json_of_another_shape(artefact: Artefact, shape: str, tmp_path: Path) -> None:
    artefact.write(tmp_path)
    path = only_file(tmp_path)
    path.write_text(shape)
    found = outcome(artefact.name, lambda: artefact.read(tmp_path))
    assert found is None if "status" in artefact.name else isinstance(found, HeadwaterError)


@pytest.mark.parametrize(
    "name",
    [
        "snapshot.json",
        "source.json",
        "catalog.json",
        "decided.json",
        "aside.json",
        "reload.json",
        "histories.json",
        "rebuild request",
        "snapshot request",
    ],
)
def test_a_good_checksum_over_another_format_or_lacking_entries(name: str, tmp_path: Path) -> None:
    [artefact] = [artefact for artefact in ARTEFACTS if artefact.name == name]
    artefact.write(tmp_path)
    path = only_file(tmp_path)
    content = jsonfile.decode(path.read_bytes())
    for wrong in ({**content, "format": 99}, *({k: v for k, v in content.items() if k != key} for key in content)):
        if wrong and wrong.keys() != content.keys() - {"replace", "where", "keys"}:
            path.write_text(jsonfile.encode(wrong))
            found = outcome(name, lambda: artefact.read(tmp_path))
            optional = content.keys() - wrong.keys() <= {"replace", "where", "plugin"} and wrong.get("format") != 99
            assert optional or isinstance(found, HeadwaterError), wrong.keys()


def test_a_damaged_stop_state_still_stops_its_part_and_can_be_resumed(tmp_path: Path, seed: int) -> None:
    stops.record(tmp_path, "follow-a.b", STOPPED)
    path = only_file(tmp_path)
    data = path.read_bytes()
    [whole] = stops.held(tmp_path)
    for case in damaged(data, seed, most=4000):
        path.write_bytes(case)
        found = outcome("stop state", lambda: stops.held(tmp_path))
        assert not isinstance(found, HeadwaterError)
        [held] = found
        assert (held.state, held.part, held.name) == (whole.state, whole.part, whole.name)
        assert held == whole or "damaged" in held.message
        assert held.hint
    with pytest.raises(Stopped):
        stops.check(tmp_path, "follow-a.b")
    stops.record(tmp_path, "follow-a.b", STOPPED)
    path.write_bytes(b"")
    assert len(stops.clear(tmp_path, "DIVERGED")) == 1
    assert stops.held(tmp_path) == []


def test_the_checksum_sees_every_flip_and_cut_and_the_text_stays_json() -> None:
    content = {"format": 1, "ü": [1, None, "é🎉"], "lsn": 2**62}
    data = jsonfile.encode(content).encode()
    assert jsonfile.decode(data) == content
    assert json.loads(data).keys() == {"crc32c", *content}
    for case in (*flips(data), *cuts(data)):
        with pytest.raises(ValueError, match="checksum"):
            jsonfile.decode(case)
