"""Transactions that come before their end: whole, byte by byte, torn, with garbage; aborted in part; interleaved; prepared."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc.capture import decoder as decoding
from cdc.capture import spool as spooling
from cdc.capture.authenticity import NOBODYS, Expected
from cdc.capture.ddlmessages import DDL_PREFIX
from cdc.capture.definitions import Definitions, Outside
from cdc.capture.preparedfiles import PreparedFiles
from cdc.capture.spool import Spools
from cdc.errors import HeadwaterError, LogCorrupt, ProtocolError
from cdc.model import pgtypes
from cdc.model.table import Column
from tests.unit.capture import wire
from tests.unit.capture.test_decoder import FORGED, ITEMS, ORDERS, Run, forged

WIDER = replace(ORDERS, columns=(*ORDERS.columns, Column("total", pgtypes.INT4)))


class Connections:
    """Runs over one folder, each a connection of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._spools: list[Spools] = []

    def run(self, durable_lsn: int = 0, definitions: Definitions | None = None, expected: Expected = NOBODYS) -> Run:
        spools, prepared = Spools(self.folder), PreparedFiles(self.folder)
        prepared.settle(durable_lsn)
        self._spools.append(spools)
        return Run(durable_lsn, definitions=definitions, spools=spools, prepared=prepared, expected=expected)

    def close(self) -> None:
        for spools in self._spools:
            spools.close()

    def kept(self) -> list[str]:
        folder = self.folder / "prepared"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def connections(tmp_path: Path) -> Iterator[Connections]:
    made = Connections(tmp_path)
    yield made
    made.close()


def order(number: int, status: str = "new") -> bytes:
    return wire.insert(ORDERS.oid, [str(number), status])


def ids(run: Run) -> list[object]:
    return [row[3][0] for row in run.rows]


def sample() -> bytes:
    """Two streamed transactions interleaved with each other and with an ordinary one; one subtransaction rolled back."""
    return b"".join(
        (
            wire.stream(700, wire.relation(ORDERS), order(1), wire.by(701, order(2)), wire.by(702, order(3))),
            wire.keepalive(50),
            wire.stream(800, wire.relation(ORDERS), order(10), wire.relation(ITEMS), wire.insert(ITEMS.oid, ["1", "1", None])),
            wire.begin(900, 100),
            wire.relation(ORDERS),
            order(20),
            wire.commit(100, 140),
            wire.stream_abort(700, 702),
            wire.stream(700, wire.relation(ORDERS), order(4), wire.truncate(ORDERS.oid), order(5), first=False),
            wire.stream(800, order(11), first=False),
            wire.stream_commit(800, 200, 240),
            wire.keepalive(240),
            wire.stream_commit(700, 300, 340),
            wire.begin(901, 400),
            order(21),
            wire.commit(400, 440),
        )
    )


EXPECTED = [
    (1, "orders", "c", (20, "new"), 100),
    (2, "orders", "c", (10, "new"), 200),
    (3, "items", "c", (1, 1, None), 200),
    (4, "orders", "c", (11, "new"), 200),
    (5, "orders", "c", (1, "new"), 300),
    (6, "orders", "c", (2, "new"), 300),
    (7, "orders", "c", (4, "new"), 300),
    (8, "orders", "t", (None, None), 300),
    (9, "orders", "c", (5, "new"), 300),
    (10, "orders", "c", (21, "new"), 400),
]


def test_whole(connections: Connections) -> None:
    run = connections.run()
    run.feed(sample())
    assert run.rows == EXPECTED
    complete = [group for group in run.groups if group.complete]
    assert [int(xid) for group in complete for xid in group.transactions.xid] == [900, 800, 700, 901]
    assert [int(lsn) for group in complete for lsn in group.transactions.end_lsn] == [140, 240, 340, 440]
    assert all(group.transactions.end_lsn[-1] == 0 for group in run.groups if not group.complete)
    # Visibility is a matter of top-level transactions: pg_current_snapshot knows no others.
    assert {int(xid) for group in run.groups for xid in group.transactions.xid} == {700, 800, 900, 901}


@pytest.mark.parametrize("step", [1, 3, 40, 111])
def test_in_pieces_of_any_size(connections: Connections, step: int) -> None:
    run = connections.run()
    whole = sample()
    for at in range(0, len(whole), step):
        run.feed(whole[at : at + step])
    assert run.rows == EXPECTED
    assert run.tail == b""


def test_every_split_gives_the_same_rows(connections: Connections) -> None:
    whole = sample()
    for at in range(1, len(whole), 3):
        run = connections.run()
        run.feed(whole[:at])
        run.feed(whole[at:])
        assert run.rows == EXPECTED, at
        connections.close()


@pytest.mark.parametrize("limit", [8, 60, 200])
def test_small_pieces_are_replayed_as_incomplete_groups(
    connections: Connections, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(spooling, "PIECE_BYTES", limit)
    monkeypatch.setattr(decoding, "OPEN_BYTES", 100)
    run = connections.run()
    run.feed(sample())
    assert run.rows == EXPECTED
    assert sum(not group.complete for group in run.groups) > 4
    assert [int(group.transactions.end_lsn[-1]) for group in run.groups if group.complete] == [140, 240, 340, 440]


def test_nothing_of_a_transaction_comes_before_its_end(connections: Connections) -> None:
    run = connections.run()
    run.feed(wire.stream(700, wire.relation(ORDERS), order(1)) + wire.stream(800, wire.relation(ORDERS), order(2)))
    assert run.groups == []
    assert run.decoder.consumed == len(wire.stream(700, wire.relation(ORDERS), order(1))) * 2
    run.feed(wire.stream_abort(700, 700) + wire.stream_commit(800, 200, 240))
    assert ids(run) == [2]
    # The whole transaction is gone; its xid could begin another.
    with pytest.raises(ProtocolError):
        run.feed(wire.stream_commit(700, 300, 340))


def test_parallel_servers_say_more_of_an_abort(connections: Connections) -> None:
    run = connections.run()
    run.feed(wire.stream(700, wire.relation(ORDERS), order(1), wire.by(701, order(2))) + wire.stream_abort(700, 701, parallel=True))
    run.feed(wire.stream_abort(999, 1000, parallel=True) + wire.stream_commit(700, 200, 240))
    assert ids(run) == [1]


def test_a_transaction_whose_rows_are_all_rolled_back_is_delivered_empty(connections: Connections) -> None:
    run = connections.run()
    run.feed(wire.stream(700, wire.by(701, wire.relation(ORDERS), order(2))) + wire.stream_abort(700, 701))
    run.feed(wire.stream_commit(700, 200, 240))
    assert run.rows == []
    assert run.groups[-1].complete
    assert run.groups[-1].transactions.xid.tolist() == [700]
    assert run.groups[-1].transactions.end_lsn.tolist() == [240]


def test_many_aborted_subtransactions(connections: Connections, seed: int) -> None:
    rng = random.Random(seed)
    data, kept, first = [], [], True
    for number in range(600):
        subxid = 5_000_000 - number if number % 3 else 1000 + number  # xids of subtransactions need not ascend: they wrap
        data.append(wire.stream(700, wire.relation(ORDERS), wire.by(subxid, order(number)), first=first))
        first = False
        if rng.random() < 0.6:
            data.append(wire.stream_abort(700, subxid))
        else:
            kept.append(number)
    run = connections.run()
    run.feed(b"".join([*data, wire.stream_commit(700, 200, 240)]))
    assert ids(run) == kept


def test_durable_transactions_are_skipped_and_the_next_is_not(connections: Connections) -> None:
    run = connections.run(durable_lsn=240)
    run.feed(sample())
    assert ids(run) == [1, 2, 4, None, 5, 21]
    # The end of one commit may be where the next begins.
    run = connections.run(durable_lsn=200)
    run.feed(sample())
    assert ids(run)[:3] == [10, 1, 11]


def test_a_watermark_inside_comes_with_the_last_group(connections: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooling, "PIECE_BYTES", 8)
    run = connections.run()
    run.feed(wire.stream(700, wire.relation(ORDERS), order(1), wire.message("headwater", b"chunk 1", lsn=7), order(2)))
    run.feed(wire.stream_commit(700, 200, 240) + wire.begin(901, 400) + order(21) + wire.commit(400, 440))
    marks = [group.watermark for group in run.groups]
    assert [mark is not None for mark in marks] == [False] * (len(marks) - 2) + [True, False]
    assert run.groups[-2].complete
    assert marks[-2] is not None
    assert (marks[-2].content, marks[-2].lsn) == (b"chunk 1", 7)


def test_a_watermark_in_an_early_piece_of_an_ordinary_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "OPEN_BYTES", 50)
    run = Run()
    data = wire.begin(1, 100) + wire.relation(ORDERS) + wire.message("headwater", b"chunk 1") + order(1)
    for at in range(0, len(data), 30):
        run.feed(data[at : at + 30])
    run.feed(order(2) + wire.commit(100, 140))
    assert [group.watermark is not None for group in run.groups if group.complete] == [True]


def test_keepalives_count_between_blocks_only(connections: Connections) -> None:
    run = connections.run()
    run.feed(wire.stream(700, wire.relation(ORDERS), order(1)) + wire.keepalive(90, reply=True))
    # The server keeps a running transaction's WAL, and sends it again if it commits behind what is confirmed.
    assert run.decoder.keepalive_lsn == 90
    assert run.decoder.reply_requested
    block = wire.stream(700, order(2), first=False)
    cut = len(block) - len(wire.xlog(b"E"))
    run.feed(block[:cut] + wire.keepalive(99))
    assert run.decoder.keepalive_lsn == 0
    run.feed(block[cut:] + wire.keepalive(101))
    assert run.decoder.keepalive_lsn == 101


# Definitions


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("aborted", [False, True])
def test_a_message_of_a_rolled_back_savepoint_cannot_be_told_from_others(
    connections: Connections, *, aborted: bool, prepared: bool
) -> None:
    """pgoutput gives every message the top-level transaction's xid, whichever subtransaction said it: so the catalog is asked."""
    noted: list[int] = []
    run = connections.run(definitions=Definitions(lambda _: None, passwords=["sesame"], outside=Outside(note=noted.append)))
    run.feed(wire.begin(600, 50) + wire.relation(ORDERS) + order(1) + wire.commit(50, 60))
    noted.clear()
    dropped = wire.message(DDL_PREFIX, json.dumps({"password": "sesame", "dropped": [ORDERS.oid]}).encode())
    run.feed(wire.stream(700, wire.relation(ORDERS), order(2), dropped, wire.by(701, wire.relation(ITEMS))))
    run.feed(wire.stream_abort(700, 701) if aborted else b"")
    end = wire.prepare(700, 1, 150, "g", streamed=True) + wire.commit_prepared(700, 200, 240, "g")
    run.feed(end if prepared else wire.stream_commit(700, 200, 240))
    assert [row[2] for row in run.rows] == (["c", "c"] if aborted else ["c", "c", "s"])
    assert noted == ([ORDERS.oid] if aborted else [])


def test_a_definition_in_an_aborted_subtransaction_is_not_in_force(connections: Connections) -> None:
    run = connections.run()
    run.feed(
        wire.stream(
            700,
            wire.relation(ORDERS),
            order(1),
            wire.by(701, wire.relation(WIDER), wire.insert(WIDER.oid, ["2", "b", "9"])),
        )
        + wire.stream_abort(700, 701)
        # The server tells the definition again after the abort of a subtransaction.
        + wire.stream(700, wire.relation(ORDERS), order(3), first=False)
        + wire.stream_commit(700, 200, 240)
    )
    assert [row[3] for row in run.rows] == [(1, "new"), (3, "new")]


def test_each_streamed_transaction_has_its_own_definitions_until_it_commits(connections: Connections) -> None:
    """700 saw the table before a column list changed, an ordinary transaction after; then 700 commits, then another without RELATION."""
    run = connections.run()
    run.feed(
        wire.stream(700, wire.relation(ORDERS), order(1))
        + wire.begin(900, 100)
        + wire.relation(WIDER)
        + wire.insert(WIDER.oid, ["2", "b", "9"])
        + wire.commit(100, 140)
        + wire.stream_commit(700, 200, 240)
        + wire.begin(901, 300)
        + wire.insert(WIDER.oid, ["3", "b", "9"])
        + wire.commit(300, 340)
    )
    assert [row[3] for row in run.rows if row[2] != "s"] == [(2, "b", 9), (1, "new"), (3, "b", 9)]
    assert [row[2] for row in run.rows] == ["c", "s", "c", "s", "c"]


def test_a_definition_of_a_committed_stream_holds_for_what_follows(connections: Connections) -> None:
    run = connections.run()
    run.feed(
        wire.begin(900, 100)
        + wire.relation(ORDERS)
        + order(1)
        + wire.commit(100, 140)
        + wire.stream(700, wire.relation(ORDERS), order(2), wire.relation(WIDER), wire.insert(WIDER.oid, ["3", "b", "9"]))
        + wire.stream_commit(700, 200, 240)
        + wire.begin(901, 300)
        + wire.insert(WIDER.oid, ["4", "b", "9"])
        + wire.commit(300, 340)
    )
    assert [row[3] for row in run.rows if row[2] != "s"] == [(1, "new"), (2, "new"), (3, "b", 9), (4, "b", 9)]


# What the protocol does not allow


@pytest.mark.parametrize(
    "data",
    [
        wire.stream(700, order(1), first=False),
        wire.stream(700) + wire.stream(700),
        wire.stream_commit(700, 1, 2),
        wire.xlog(b"E"),
        wire.begin(1, 5) + wire.stream(700),
        wire.xlog(b"S" + bytes(4)),
        wire.xlog(b"S" + bytes(6)),
        wire.xlog(b"S" + bytes(5)) + wire.begin(1, 5),
        wire.stream(700, wire.by(700, wire.xlog(b"I"))) + wire.stream_commit(700, 1, 2),
        wire.stream(700, wire.xlog(b"?")),
        wire.stream(700, order(1)) + wire.stream_commit(700, 1, 2),
        wire.xlog(b"A" + bytes(9)),
        wire.prepare(1, 2, 3, "g"),
        wire.prepare(1, 2, 3, "g", streamed=True),
        wire.begin_prepare(1, 2, 3, "g") + wire.begin(1, 5),
        wire.commit_prepared(1, 2, 3, "g"),
        wire.xlog(b"K" + bytes(29) + b"no end"),
    ],
)
def test_what_the_protocol_does_not_allow_is_our_error(connections: Connections, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        connections.run().feed(data)


def test_who_has_not_asked_for_it_refuses_it() -> None:
    with pytest.raises(ProtocolError, match="not asked for"):
        Run().feed(wire.stream(700, order(1)))


def test_garbage_gives_our_error_or_rows_and_nothing_else(connections: Connections, seed: int) -> None:
    rng = random.Random(seed)
    whole = bytearray(sample() + prepared_sample())
    refused = 0
    for _ in range(1500):
        damaged = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at, what = rng.randrange(len(damaged)), rng.random()
            if what < 0.6:
                damaged[at] = rng.randrange(256)
            elif what < 0.8:
                del damaged[at : at + rng.randrange(1, 9)]
            else:
                damaged[at:at] = rng.randbytes(rng.randrange(1, 9))
        run = connections.run()
        try:
            run.feed(bytes(damaged))
            for group in run.groups:
                for batch in group.batches:
                    batch.validate(full=True)
        except ProtocolError:
            refused += 1
        connections.close()
    assert refused > 150


def test_a_full_disk_is_said_clearly(connections: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = connections.run()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match=r"cannot spool a transaction in progress in .*: No space left on device"):
            run.feed(wire.stream(700, wire.relation(ORDERS), order(1)))
    # The connection starts over, and the server sends everything again.
    run = connections.run()
    run.feed(sample())
    assert run.rows == EXPECTED


def test_nothing_is_left_on_disk(connections: Connections) -> None:
    run = connections.run()
    run.feed(wire.stream(700, wire.relation(ORDERS), order(1)))
    assert list(connections.folder.iterdir()) == []
    del run


# Prepared transactions


@pytest.mark.parametrize("call", ["mkdir", "open", "pwrite", "fsync", "rename"])
def test_a_full_disk_under_a_prepared_transaction_is_said_clearly(
    connections: Connections, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    holder: Any = os if call in ("open", "pwrite", "fsync") else Path
    works = getattr(holder, call)

    def full(at: Any, *arguments: Any, **options: Any) -> Any:
        path = Path(f"/proc/self/fd/{at}").readlink() if isinstance(at, int) else Path(at)
        if "prepared" in (path.name, path.parent.name):
            raise OSError(errno.ENOSPC, "No space left on device")
        return works(at, *arguments, **options)

    run = connections.run()
    with monkeypatch.context() as patch:
        patch.setattr(holder, call, full)
        with pytest.raises(OSError, match=r"cannot keep a prepared transaction in .*: No space left on device"):
            run.feed(prepared_sample())
    run = connections.run()
    run.feed(prepared_sample())
    assert run.rows, "it came again, and there was room"


def prepared_sample() -> bytes:
    return b"".join(
        (
            wire.begin(1000, 500),
            wire.relation(ORDERS),
            order(30),
            wire.commit(500, 540),
            wire.begin_prepare(1001, 600, 640, "one"),
            order(31),
            wire.relation(ITEMS),
            wire.insert(ITEMS.oid, ["2", "1", "x"]),
            wire.prepare(1001, 600, 640, "one"),
            wire.stream(1002, wire.relation(ORDERS), order(32), wire.by(1003, order(33))),
            wire.stream_abort(1002, 1003),
            wire.prepare(1002, 650, 660, "two", streamed=True),
            wire.begin_prepare(1004, 670, 680, "three"),
            order(34),
            wire.prepare(1004, 670, 680, "three"),
            wire.rollback_prepared(1004, "three"),
            wire.begin(1005, 700),
            wire.insert(ITEMS.oid, ["3", "1", "y"]),
            wire.commit(700, 740),
        )
    )


ENDS = wire.commit_prepared(1002, 800, 840, "two") + wire.commit_prepared(1001, 900, 940, "one")


def test_prepared_transactions_come_at_their_commit(connections: Connections) -> None:
    run = connections.run()
    for piece in (prepared_sample(), ENDS):
        for at in range(0, len(piece), 50):
            run.feed(piece[at : at + 50])
        if piece != ENDS:
            assert [row[3][0] for row in run.rows] == [30, 3]
            assert [name[-8:] for name in connections.kept()] == [f"{1001:08x}", f"{1002:08x}"]
    assert [(row[1], row[3][0], row[4]) for row in run.rows] == [
        ("orders", 30, 500),
        ("items", 3, 700),
        ("orders", 32, 800),
        ("orders", 31, 900),
        ("items", 2, 900),
    ]
    run.decoder.settle(939)
    assert [name[-16:] for name in connections.kept()] == [f"{940:016x}"]
    run.decoder.settle(940)
    assert connections.kept() == []


def test_prepared_transactions_survive_a_restart_with_their_definitions(connections: Connections) -> None:
    connections.run().feed(prepared_sample())
    run = connections.run(durable_lsn=740)
    run.feed(ENDS)
    assert [(row[1], row[3][0]) for row in run.rows] == [("orders", 32), ("orders", 31), ("items", 2)]
    # The log did not make it: the same once more.
    run = connections.run(durable_lsn=840)
    assert len(connections.kept()) == 1
    run.feed(ENDS)
    assert [row[3][0] for row in run.rows] == [31, 2]
    connections.run(durable_lsn=940)
    assert connections.kept() == []


def test_a_prepare_that_comes_again_replaces_the_first(connections: Connections) -> None:
    for _ in range(2):
        connections.run().feed(prepared_sample())
    run = connections.run()
    run.feed(prepared_sample() + ENDS)
    assert len(connections.kept()) == 2
    assert len(run.rows) == 5


def test_a_prepare_that_was_being_written_is_dropped(connections: Connections) -> None:
    folder = connections.folder / "prepared"
    folder.mkdir()
    (folder / "0000000000000280-000003e9.tmp").write_bytes(b"HWPREP1\n")
    connections.run()
    assert connections.kept() == []


def test_every_flipped_byte_of_a_kept_transaction_is_found(connections: Connections) -> None:
    connections.run().feed(prepared_sample())
    path = next((connections.folder / "prepared").glob(f"*-{1001:08x}"))
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        run = connections.run(durable_lsn=840)
        with pytest.raises(LogCorrupt, match="damaged"):
            run.feed(ENDS)
        assert run.rows == []
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(HeadwaterError):
            connections.run(durable_lsn=840).feed(ENDS)


def test_a_definition_that_a_replay_brings_back_is_not_told_once_it_has_been_overtaken(connections: Connections) -> None:
    """All but the last transaction is in the log already: a store that was told of the older definition would drop the new column's values."""
    run = connections.run(durable_lsn=340, definitions=Definitions(lambda _: None, known=[WIDER]))
    run.feed(
        b"".join(
            (
                wire.stream(700, wire.relation(ORDERS), order(1)),
                wire.begin(701, 100),
                wire.relation(ORDERS),
                order(2),
                wire.commit(100, 140),
                wire.stream_commit(700, 200, 240),
                wire.begin(702, 300),
                wire.relation(WIDER),
                wire.insert(WIDER.oid, ["3", "new", "30"]),
                wire.commit(300, 340),
            )
        )
    )
    run.feed(wire.begin(703, 400) + wire.insert(WIDER.oid, ["4", "new", "40"]) + wire.commit(400, 440))
    assert run.rows == [(1, "orders", "c", (4, "new", 40), 400)]


def test_a_prepared_transaction_that_alters_a_table_has_its_first_rows_under_the_definition_before(
    connections: Connections,
) -> None:
    run = connections.run()
    run.feed(wire.begin(700, 100) + wire.relation(ORDERS) + order(1) + wire.commit(100, 140))
    run.feed(
        b"".join(
            (
                wire.begin_prepare(701, 200, 240, "one"),
                order(2),
                wire.relation(WIDER),
                wire.insert(WIDER.oid, ["3", "new", "30"]),
                wire.prepare(701, 200, 240, "one"),
                wire.commit_prepared(701, 300, 340, "one"),
            )
        )
    )
    assert [row[3] for row in run.rows if row[2] == "c"] == [(1, "new"), (2, "new"), (3, "new", 30)]


def test_a_definition_that_was_prepared_and_rolled_back_is_not_told(connections: Connections) -> None:
    run = connections.run()
    run.feed(wire.begin(700, 100) + wire.relation(ORDERS) + order(1) + wire.commit(100, 140))
    run.feed(
        b"".join(
            (
                wire.begin_prepare(701, 200, 240, "one"),
                wire.relation(WIDER),
                wire.insert(WIDER.oid, ["3", "new", "30"]),
                wire.prepare(701, 200, 240, "one"),
                wire.rollback_prepared(701, "one"),
                wire.begin_prepare(702, 300, 340, "two"),
                wire.relation(ORDERS),
                order(2),
                wire.prepare(702, 300, 340, "two"),
                wire.commit_prepared(702, 400, 440, "two"),
            )
        )
    )
    assert [row[2:4] for row in run.rows] == [("c", (1, "new")), ("c", (2, "new"))]


@pytest.mark.parametrize("end", [wire.rollback_prepared(701, "one"), b""], ids=["rolled back", "still open"])
def test_a_definition_that_a_prepared_transaction_has_shown_first_is_told_before_the_next_row(
    connections: Connections, end: bytes
) -> None:
    """Somebody altered the table before it. The server describes it within the prepared transaction, and not once more for the rows behind that."""
    run = connections.run()
    run.feed(wire.begin(700, 100) + wire.relation(ORDERS) + order(1) + wire.commit(100, 140))
    run.feed(
        b"".join(
            (
                wire.begin_prepare(701, 200, 240, "one"),
                wire.relation(replace(ORDERS, name="sold")),
                order(2),
                wire.prepare(701, 200, 240, "one"),
                end,
                wire.begin(702, 300),
                order(3),
                wire.commit(300, 340),
            )
        )
    )
    assert [row[1:3] for row in run.rows] == [("orders", "c"), ("orders", "s"), ("sold", "c")]


def test_a_prepared_transaction_that_is_replayed_after_a_restart_leaves_once(connections: Connections) -> None:
    """Its file is named after its end before the log holds it, and goes as soon as the log does, in the middle of the replay."""
    connections.run().feed(
        b"".join(
            (
                wire.begin_prepare(701, 200, 240, "one"),
                wire.relation(ORDERS),
                order(1),
                wire.prepare(701, 200, 240, "one"),
                wire.commit_prepared(701, 300, 340, "one"),
            )
        )
    )
    again = PreparedFiles(connections.folder)
    with again.ending(701, "one", 340):
        again.settle(340)
    again.settle(400)
    assert connections.kept() == []


def test_a_definition_under_which_no_row_comes_is_not_told_however_it_came(connections: Connections) -> None:
    """One was prepared and rolled back, and is in force again after a replay; one was rolled back with its savepoint."""
    run = connections.run()
    run.feed(wire.begin(700, 100) + wire.relation(ORDERS) + order(1) + wire.commit(100, 140))
    run.feed(
        b"".join(
            (
                wire.begin_prepare(701, 200, 240, "one"),
                wire.relation(WIDER),
                wire.insert(WIDER.oid, ["9", "new", "90"]),
                wire.prepare(701, 200, 240, "one"),
                wire.rollback_prepared(701, "one"),
                wire.stream(702, wire.relation(ORDERS), order(2)),
                wire.prepare(702, 300, 340, "two", streamed=True),
                wire.commit_prepared(702, 400, 440, "two"),
                wire.begin(703, 500),
                wire.relation(ORDERS),
                order(3),
                wire.commit(500, 540),
                wire.stream(704, wire.relation(ORDERS), order(4)),
                wire.stream(704, wire.by(705, wire.relation(WIDER), wire.insert(WIDER.oid, ["9", "new", "90"])), first=False),
                wire.stream_abort(704, 705),
                wire.stream(704, wire.relation(ORDERS), order(5), first=False),
                wire.stream_commit(704, 600, 640),
            )
        )
    )
    assert [row[2:4] for row in run.rows] == [("c", (number, "new")) for number in (1, 2, 3, 4, 5)]


@FORGED
def test_forged_messages_divide_nothing_in_a_streamed_transaction(connections: Connections, prefix: str, content: bytes) -> None:
    run = connections.run(expected=Expected(lambda awaited: awaited == b"chunk 1"))
    run.feed(wire.stream(700, forged(prefix, content)) + wire.stream_commit(700, 100, 110))
    assert [group.watermark for group in run.groups] == [None] * len(run.groups)
    assert sum(len(group.batches) for group in run.groups) == 1
    assert len(run.rows) == 20
