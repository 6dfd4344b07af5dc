"""Files in the inbox with damage at any byte: refused in words, and nothing of them is in the log."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from cdc.errors import StopState
from cdc.inbox.folder import InboxFolder
from cdc.inbox.groupfile import GroupHeader, GroupName, GroupRefused, HandedOver, decode, digest_of, encode
from cdc.log.home import open_reader
from cdc.model.position import Position
from cdc.state import stops
from tests.fuzz.damage import damaged, outcome
from tests.unit.inbox.parts import KEY, TOPIC, deadline, handover, inbox_of, logged, rows, serve_all, written

GROUP = encode(GroupHeader("job", "", "1", TOPIC, KEY, 2), rows(1, 2))
OPENING = encode(GroupHeader("job", token="0" * 32))
CASES = 400
SERVED = 40
"""Each of them is a file that is synced, moved aside and noted."""


def decoded(raw: bytes, name: GroupName) -> HandedOver | str:
    def decided() -> HandedOver | str:
        try:
            return decode(raw, name)
        except GroupRefused as refused:
            return str(refused)

    found = outcome("inbox files", decided)
    assert isinstance(found, HandedOver | str)
    return found


@pytest.mark.parametrize("honest", [GROUP, OPENING], ids=["group", "opening"])
def test_damage_does_not_go_with_the_name(honest: bytes, seed: int) -> None:
    name = GroupName("job", 1, 1, digest_of(honest))
    assert isinstance(decoded(honest, name), HandedOver)
    for raw in damaged(honest, seed, CASES):
        assert decoded(raw, name) == "its bytes are not those that its name says"


@pytest.mark.parametrize("honest", [GROUP, OPENING], ids=["group", "opening"])
def test_damage_under_a_name_that_goes_with_it_is_refused_or_a_whole_group(honest: bytes, seed: int) -> None:
    said = set[str]()
    for raw in damaged(honest, seed, CASES):
        found = decoded(raw, GroupName("job", 1, 1, digest_of(raw)))
        if isinstance(found, str):
            said.add(found)
            continue
        for batch in found.batches:
            batch.validate(full=True)
            assert len(batch.to_pylist()) == len(batch)
    assert len(said) > 2


def test_the_writer_takes_nothing_of_a_damaged_file_and_goes_on(tmp_path: Path, seed: int) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        given = handover(tmp_path, inbox)
        given.open(deadline())
        marks, folder = dict(writer.marks()), InboxFolder(tmp_path / "log")
        for raw in islice(damaged(GROUP, seed, CASES), SERVED):
            name = folder.hand_over("job", 1, 1, raw)
            told = GroupName("job", 1, 1, digest_of(GROUP))
            (folder.root / name.file).rename(folder.root / told.file)
            serve_all(inbox)
            assert folder.reason(told) == "its bytes are not those that its name says"
            assert not folder.waits(told)
            assert (writer.head.position, dict(writer.marks())) == (0, marks)
        given.give("1", TOPIC, KEY, rows(1, 2), deadline())
    assert [one for _, _, one, _ in logged(tmp_path)] == [1, 2]


def test_the_log_stays_whole_whatever_a_file_says_under_its_own_hash(tmp_path: Path, seed: int) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        handover(tmp_path, inbox).open(deadline())
        folder = InboxFolder(tmp_path / "log")
        for number, raw in enumerate(islice(damaged(GROUP, seed, CASES), SERVED), 1):
            folder.hand_over("job", 1, number, raw)
            serve_all(inbox)
            for stop in stops.held(tmp_path / "run"):
                assert stop.state is StopState.INBOX_CONFLICT, "two that are groups all the same, for one step"
                stops.clear(tmp_path / "run", stop.name)
            with closing(open_reader(tmp_path / "log")) as log:
                head = log.head().position
                read = sum(len(batch) for topic in log.topics() for batch in log.read(topic.name, Position(0), head))
            assert read == head == writer.head.position
        assert sorted(path.name for path in folder.root.iterdir()) == ["refused"]
        handover(tmp_path, inbox, "honest").open(deadline())
