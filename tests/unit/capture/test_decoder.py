"""The decoder whole, byte by byte, with garbage: the same groups, or our error, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from cdc.capture import decoder as decoding
from cdc.capture import tuples
from cdc.capture.authenticity import NOBODYS, Expected
from cdc.capture.ddlmessages import DDL_PREFIX
from cdc.capture.decoder import Decoder
from cdc.capture.definitions import Definitions, Outside
from cdc.capture.preparedfiles import PreparedFiles
from cdc.capture.spool import Spools
from cdc.errors import ColumnReserved, ProtocolError
from cdc.model import pgtypes
from cdc.model.batch import Op, table_of
from cdc.model.evolution import Kind, SchemaChange, schema_change_of
from cdc.model.facts import FactColumn, Facts, LeafTable, Publishing
from cdc.model.group import Group
from cdc.model.table import Column, Table
from cdc.pgvalues.values import Bytes, Flags
from tests.unit.capture import wire

ORDERS = Table(16400, "public", "orders", (Column("id", pgtypes.INT8, key=True), Column("status", pgtypes.TEXT)))
ITEMS = Table(
    16401,
    "public",
    "items",
    (Column("order_id", pgtypes.INT8, key=True), Column("line", pgtypes.INT4, key=True), Column("note", pgtypes.TEXT)),
)


class Forgetful:
    """Knows no earlier rows: whatever is partial stays so."""

    def knows(self, table: Table) -> bool:
        del table
        return False

    def fill(self, table: Table, block: Bytes, rows: tuples.RowFields) -> tuple[Bytes, Flags | None]:
        del table
        return block, rows.partial.copy() if rows.partial.any() else None

    def weigh(self, table: Table, block: Bytes, rows: tuples.RowFields) -> npt.NDArray[np.int64]:
        del table, block
        return np.zeros(len(rows.op), np.int64)

    def forget(self, relation: int) -> None:
        del relation


def _facts(oid: int, primary_key: tuple[str, ...]) -> Facts | None:
    """The catalog's word on ORDERS under replica identity FULL."""
    if not primary_key:
        return None
    columns = tuple(FactColumn(n, c.name, c.type_oid, c.typmod, "", "", False, "1") for n, c in enumerate(ORDERS.columns, 1))
    index = tuple(column.attnum for column in columns if column.name in primary_key)
    return Facts(oid, ORDERS.schema, ORDERS.name, False, "f", columns, index, {})


class Run:
    """Feeds a decoder as ingest does, and keeps what comes out as plain rows."""

    def __init__(
        self,
        durable_lsn: int = 0,
        primary_key: tuple[str, ...] = (),
        definitions: Definitions | None = None,
        spools: Spools | None = None,
        prepared: PreparedFiles | None = None,
        expected: Expected = NOBODYS,
    ) -> None:
        self.held: list[tuple[pa.RecordBatch, Mapping[str, Flags]]] = []
        self.decoder = Decoder(
            definitions or Definitions(lambda oid: _facts(oid, primary_key)),
            Forgetful(),
            lambda rows, missing: self.held.append((rows, missing)),
            durable_lsn,
            spools,
            prepared,
            expected=expected,
        )
        self.groups: list[Group] = []
        self.notices: list[bytes] = []
        self.position = 1
        self.tail = b""

    def feed(self, data: bytes) -> None:
        block = wire.block(self.tail, data)
        groups = self.decoder.groups(block, 0, len(block), lambda: self.position)
        self.notices += self.decoder.notices
        for group in groups:
            self.groups.append(group)
            self.position += sum(map(len, group.batches))
        self.tail = block[self.decoder.consumed :].tobytes()

    @property
    def rows(self) -> list[tuple[int, str, str, tuple[object, ...], int]]:
        """(position, table, operation, values, commit LSN), in position order."""
        found = []
        for group in self.groups:
            for batch in group.batches:
                table = table_of(batch.schema)
                for entry in batch.to_pylist():
                    values = tuple(entry[name] for name in table.names)
                    found.append((entry["_cdc_position"], table.name, chr(entry["_cdc_op"]), values, entry["_cdc_lsn"]))
        return sorted(found)


def sample() -> bytes:
    """Two transactions over two tables with every kind of row, and a keepalive between them."""
    return b"".join(
        (
            wire.begin(700, 100),
            wire.relation(ORDERS),
            wire.insert(ORDERS.oid, ["1", "new"]),
            wire.relation(ITEMS),
            wire.insert(ITEMS.oid, ["1", "1", None]),
            wire.update(ORDERS.oid, ["1", "paid"]),
            wire.commit(100, 140),
            wire.keepalive(150, reply=True),
            wire.begin(699, 200),
            wire.update(ORDERS.oid, ["2", "paid"], key=["1", None]),
            wire.delete(ITEMS.oid, key=["1", "1", None]),
            wire.truncate(ITEMS.oid, ORDERS.oid, flags=1),
            wire.insert(ITEMS.oid, ["3", "4", "é"]),
            wire.commit(200, 240),
        )
    )


EXPECTED = [
    (1, "orders", "c", (1, "new"), 100),
    (2, "items", "c", (1, 1, None), 100),
    (3, "orders", "u", (1, "paid"), 100),
    (4, "orders", "d", (1, None), 200),
    (5, "orders", "u", (2, "paid"), 200),
    (6, "items", "d", (1, 1, None), 200),
    (7, "items", "t", (None, None, None), 200),
    (8, "orders", "t", (None, None), 200),
    (9, "items", "c", (3, 4, "é"), 200),
]


def test_whole() -> None:
    run = Run()
    run.feed(sample())
    assert run.rows == EXPECTED
    (group,) = run.groups
    assert group.complete
    assert group.transactions.xid.tolist() == [700, 699]
    assert group.transactions.end_lsn.tolist() == [140, 240]
    assert group.transactions.last_position.tolist() == [3, 9]
    assert run.decoder.keepalive_lsn == 150
    assert run.decoder.reply_requested


def test_byte_by_byte() -> None:
    run = Run()
    for byte in sample():
        run.feed(bytes([byte]))
    assert run.rows == EXPECTED
    assert [group.transactions.end_lsn.tolist() for group in run.groups] == [[140], [240]]


def test_every_split_gives_the_same_rows() -> None:
    whole = sample()
    for at in range(len(whole)):
        run = Run()
        run.feed(whole[:at])
        run.feed(whole[at:])
        assert run.rows == EXPECTED, at


def test_a_transaction_larger_than_the_limit_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "OPEN_BYTES", 100)
    whole = sample()
    for step in (1, 7, 60, 150):
        run = Run()
        for at in range(0, len(whole), step):
            run.feed(whole[at : at + step])
        assert run.rows == EXPECTED, step
        ended = [group.transactions.end_lsn[-1] for group in run.groups if group.complete]
        assert ended == [140, 240]
        assert all(group.transactions.end_lsn[-1] == 0 for group in run.groups if not group.complete)
        assert any(not group.complete for group in run.groups)


def test_transactions_that_are_durable_already_are_skipped_by_their_end() -> None:
    run = Run(durable_lsn=140)
    run.feed(sample())
    assert [row[1:] for row in run.rows] == [row[1:] for row in EXPECTED[3:]]
    assert [row[0] for row in run.rows] == [1, 2, 3, 4, 5, 6]
    # The end of one commit is the beginning of the next: one byte less must not skip it.
    run = Run(durable_lsn=139)
    run.feed(sample())
    assert len(run.rows) == len(EXPECTED)


def test_a_description_that_the_log_has_outlived_is_not_in_force_again() -> None:
    """A partitioned table was renamed after it, of which the server tells only whoever hears the DDL's message."""
    run = Run(durable_lsn=110)
    now = replace(ORDERS, name="sales")
    run.decoder.schema.enter(now)
    run.feed(
        wire.begin(1, 100)
        + wire.relation(ORDERS)
        + wire.insert(ORDERS.oid, ["1", "a"])
        + wire.commit(100, 110)
        + wire.begin(2, 120)
        + wire.insert(ORDERS.oid, ["2", "b"])
        + wire.commit(120, 130)
    )
    assert [row[1:4] for row in run.rows] == [("sales", "c", (2, "b"))]


def test_a_watermark_ends_its_group() -> None:
    run = Run()
    run.feed(
        wire.begin(1, 100)
        + wire.relation(ORDERS)
        + wire.insert(ORDERS.oid, ["1", "a"])
        + wire.commit(100, 110)
        + wire.begin(2, 120)
        + wire.message("headwater", b"chunk 1")
        + wire.commit(120, 130)
        + wire.begin(3, 140)
        + wire.message("somebody else", b"x")
        + wire.insert(ORDERS.oid, ["2", "b"])
        + wire.commit(140, 150)
    )
    first, second = run.groups
    assert first.watermark is not None
    assert first.watermark.content == b"chunk 1"
    assert first.transactions.end_lsn.tolist() == [110, 130]
    assert first.transactions.last_position.tolist() == [1, 1]
    assert second.watermark is None
    assert [row[0] for row in run.rows] == [1, 2]


FORGED = pytest.mark.parametrize(
    ("prefix", "content"),
    [
        ("headwater", b"chunk:0123456789abcdef:1"),
        ("headwater", b"chunk 1" + b" " * 4096),
        ("headwater.ddl", b'{"password": "forged", "look": true}'),
        ("headwater.ddl", b"["),
        ("somebody else", b"chunk 1"),
    ],
)


@FORGED
def test_forged_messages_divide_nothing(prefix: str, content: bytes) -> None:
    """Neither groups nor runs of rows: each would cost as much as hundreds of rows."""
    definitions = Definitions(lambda oid: _facts(oid, ()), passwords=["secret"])
    run = Run(definitions=definitions, expected=Expected(lambda awaited: awaited == b"chunk 1"))
    run.feed(wire.begin(1, 100) + forged(prefix, content) + wire.commit(100, 110) + wire.begin(2, 120) + wire.commit(120, 130))
    assert [group.watermark for group in run.groups] == [None]
    assert sum(len(group.batches) for group in run.groups) == 1
    assert len(run.rows) == 20


def forged(prefix: str, content: bytes) -> bytes:
    """A message behind each row."""
    rows = [wire.insert(ORDERS.oid, [str(key), "a"]) + wire.message(prefix, content) for key in range(20)]
    return wire.relation(ORDERS) + b"".join(rows)


def test_a_changed_relation_divides_the_rows() -> None:
    wider = replace(ORDERS, columns=(*ORDERS.columns, Column("total", pgtypes.INT4)))
    run = Run()
    run.feed(
        wire.begin(1, 100)
        + wire.relation(ORDERS)
        + wire.insert(ORDERS.oid, ["1", "a"])
        + wire.relation(ORDERS)
        + wire.insert(ORDERS.oid, ["2", "a"])
        + wire.relation(wider)
        + wire.insert(ORDERS.oid, ["3", "b", "9"])
        + wire.commit(100, 110)
    )
    assert [len(batch) for batch in run.groups[0].batches] == [2, 1, 1]
    assert [row[2:4] for row in run.rows] == [
        ("c", (1, "a")), ("c", (2, "a")), ("s", (None, None, None)), ("c", (3, "b", 9)),
    ]  # fmt: skip
    assert schema_change_of(run.groups[0].batches[1]) == SchemaChange(wider, Kind.ALTERED)


def test_a_partition_that_is_described_beside_its_root_is_no_table_of_its_own() -> None:
    wider = [replace(table, columns=(*table.columns, Column("total", pgtypes.INT4))) for table in (ORDERS, ITEMS)]
    run = Run()
    for end, (root, leaf), row in ((110, (ORDERS, ITEMS), ["1", "a"]), (130, wider, ["2", "b", "9"])):
        run.feed(
            wire.begin(end, end - 5)
            + wire.relation(root)
            + wire.relation(leaf)
            + wire.insert(ORDERS.oid, row)
            + wire.commit(end - 5, end)
        )
    assert [row[1:4] for row in run.rows] == [
        ("orders", "c", (1, "a")), ("orders", "s", (None, None, None)), ("orders", "c", (2, "b", 9)),
    ]  # fmt: skip


def test_a_definition_is_told_before_the_first_row_under_it_whenever_that_comes() -> None:
    wider = replace(ORDERS, columns=(*ORDERS.columns, Column("total", pgtypes.INT4)))
    run = Run()
    run.feed(wire.begin(1, 100) + wire.relation(ORDERS) + wire.insert(ORDERS.oid, ["1", "a"]) + wire.commit(100, 110))
    run.feed(wire.begin(2, 120) + wire.relation(wider) + wire.commit(120, 130))
    assert [row[2] for row in run.rows] == ["c"]
    run.feed(wire.begin(3, 140) + wire.insert(ORDERS.oid, ["2", "b", "9"]) + wire.commit(140, 150))
    assert [row[2] for row in run.rows] == ["c", "s", "c"]


def test_identity_full_takes_the_primary_key_and_fills_toast_from_the_old_row() -> None:
    full = replace(ORDERS, identity="f", columns=tuple(replace(column, key=True) for column in ORDERS.columns))
    run = Run(primary_key=("id",))
    run.feed(
        wire.begin(1, 100)
        + wire.relation(full)
        + wire.update(full.oid, ["1", wire.UNCHANGED], old=["1", "kept"])
        + wire.update(full.oid, ["2", "new"], old=["1", "kept"])
        + wire.delete(full.oid, old=["2", "new"])
        + wire.commit(100, 110)
    )
    assert [row[2:4] for row in run.rows] == [("u", (1, "kept")), ("d", (1, None)), ("u", (2, "new")), ("d", (2, None))]
    assert not run.held


def test_identity_full_without_a_key_matches_nulls() -> None:
    full = replace(ORDERS, identity="f", columns=tuple(replace(column, key=True) for column in ORDERS.columns))
    run = Run()
    run.feed(
        wire.begin(1, 100)
        + wire.relation(full)
        + wire.update(full.oid, [None, "b"], old=[None, None])
        + wire.update(full.oid, [None, "b"], old=[None, "b"])
        + wire.delete(full.oid, old=[None, None])
        + wire.commit(100, 110)
    )
    assert [row[2:4] for row in run.rows] == [("d", (None, None)), ("u", (None, "b")), ("u", (None, "b")), ("d", (None, None))]


def test_rows_that_stay_partial_are_held_and_take_no_position() -> None:
    run = Run()
    run.feed(
        wire.begin(1, 100)
        + wire.relation(ORDERS)
        + wire.insert(ORDERS.oid, ["1", "a"])
        + wire.update(ORDERS.oid, ["7", wire.UNCHANGED])
        + wire.insert(ORDERS.oid, ["2", "b"])
        + wire.commit(100, 110)
    )
    assert [(row[0], row[3]) for row in run.rows] == [(1, (1, "a")), (2, (2, "b"))]
    ((rows, missing),) = run.held
    assert rows.column("id").to_pylist() == [7]
    assert rows.column("_cdc_position").to_pylist() == [2]
    assert missing["status"].tolist() == [True]
    assert missing["id"].tolist() == [False]


@pytest.mark.parametrize(
    "data",
    [
        wire.insert(1, ["1"]),
        wire.begin(1, 5) + wire.begin(2, 6),
        wire.begin(1, 5) + wire.commit(6, 7),
        wire.begin(1, 5) + wire.insert(99, ["1"]) + wire.commit(5, 7),
        wire.begin(1, 5) + wire.relation(ORDERS) + wire.insert(ORDERS.oid, ["1"]) + wire.commit(5, 7),
        wire.frame(b"x" * 30),
        wire.frame(b"w"),
        wire.xlog(b"?"),
        b"d\xff\xff\xff\xff" + bytes(10),
        b"\0" * 20,
    ],
)
def test_what_the_protocol_does_not_allow_is_our_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Run().feed(data)


def test_a_column_with_one_of_our_names_stops_capture() -> None:
    named = replace(ORDERS, columns=(Column("_cdc_op", pgtypes.INT4),))
    with pytest.raises(ColumnReserved, match=r"^COLUMN_RESERVED: .*column _cdc_op,"):
        Run().feed(wire.begin(1, 5) + wire.relation(named) + wire.insert(named.oid, ["1"]) + wire.commit(5, 7))


def test_garbage_gives_our_error_or_rows_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    whole = bytearray(sample())
    refused = 0
    for _ in range(4000):
        damaged = bytearray(whole)
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            what = rng.random()
            at = rng.randrange(len(damaged))
            if what < 0.6:
                damaged[at] = rng.randrange(256)
            elif what < 0.8:
                del damaged[at : at + rng.randrange(1, 9)]
            else:
                damaged[at:at] = rng.randbytes(rng.randrange(1, 9))
        run = Run()
        try:
            run.feed(bytes(damaged))
            for group in run.groups:
                for batch in group.batches:
                    batch.validate(full=True)
        except ProtocolError:
            refused += 1
    assert refused > 400


def test_the_end_of_the_stream_is_seen() -> None:
    for ending in (wire.frame(b"", b"c"), wire.frame(b"COPY 0\0", b"C"), wire.frame(b"SERROR\0C58P01\0Mgone\0\0", b"E")):
        run = Run()
        run.feed(sample() + ending)
        assert run.rows == EXPECTED
        assert run.decoder.ended == len(sample())


def test_messages_outside_transactions_are_passed_over_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "OPEN_BYTES", 500)
    said = [wire.message("somebody else", b"x" * 100, transactional=False) for _ in range(20)]
    run = Run()
    for message in said:
        run.feed(message)
    assert run.tail == b""
    run.feed(sample())
    for message in said:
        run.feed(message)
    run.feed(wire.begin(3, 300) + wire.insert(ORDERS.oid, ["9", "z"]) + wire.commit(300, 340))
    assert run.rows == [*EXPECTED, (10, "orders", "c", (9, "z"), 300)]


def test_every_notice_is_heard_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [wire.frame(b"SNOTICE\0C00000\0Mfirst\0\0", b"N"), wire.frame(b"SWARNING\0C55000\0Msecond\0\0", b"N")]
    data = (
        wire.begin(1, 100) + wire.relation(ORDERS) + said[0] + wire.insert(ORDERS.oid, ["1", "a"]) + said[1] + wire.commit(100, 110)
    )
    for limit in (decoding.OPEN_BYTES, 50):
        monkeypatch.setattr(decoding, "OPEN_BYTES", limit)
        for step in (1, 7, 40, len(data)):
            run = Run()
            for at in range(0, len(data), step):
                run.feed(data[at : at + step])
            assert run.notices == [message[5:] for message in said], (limit, step)
            assert len(run.rows) == 1


def test_many_tables_in_one_group_number_their_rows_in_stream_order(seed: int) -> None:
    rng = random.Random(seed)
    tables = [replace(ORDERS, oid=1000 + index, name=f"t{index}") for index in range(20)]
    data = [wire.begin(1, 100), *(wire.relation(table) for table in tables)]
    expected = []
    for number in range(1, 400):
        table = rng.choice(tables)
        data.append(wire.insert(table.oid, [str(number), "x"]))
        expected.append((number, table.name, "c", (number, "x"), 100))
    run = Run()
    run.feed(b"".join([*data, wire.commit(100, 110)]))
    assert run.rows == expected
    assert len(run.groups[0].batches) == len({row[1] for row in expected})
    assert np.all(run.groups[0].transactions.xid_of(np.arange(1, 400)) == 1)
    assert ord("c") == Op.INSERT


def test_tables_that_come_for_the_first_time_get_one_batch_each() -> None:
    tables = [replace(ORDERS, oid=5000 + n, name=f"t{n}") for n in range(50)]
    described = [wire.relation(table) + wire.insert(table.oid, [str(n), "new"]) for n, table in enumerate(tables)]
    again = [wire.insert(table.oid, [str(n), "more"]) for n, table in enumerate(tables)]
    run = Run()
    run.feed(wire.begin(700, 100) + b"".join(described + again) + wire.commit(100, 140))
    assert [len(group.batches) for group in run.groups] == [50]
    assert [row[:4] for row in run.rows] == [
        (turn * 50 + n + 1, f"t{n}", "c", (n, what)) for turn, what in enumerate(("new", "more")) for n in range(50)
    ]


def test_a_row_before_its_description_is_refused_although_the_description_follows() -> None:
    run = Run()
    with pytest.raises(ProtocolError, match="before its RELATION"):
        run.feed(wire.begin(700, 100) + wire.insert(ORDERS.oid, ["1", "new"]) + wire.relation(ORDERS) + wire.commit(100, 140))


def test_a_torn_message_says_how_much_it_lacks() -> None:
    whole = wire.begin(1, 100) + wire.relation(ORDERS) + wire.insert(ORDERS.oid, ["1", "x" * 1000])
    for at in range(1, len(whole)):
        run = Run()
        run.feed(whole[:at])
        lacks = run.decoder.lacks
        ends = [len(wire.begin(1, 100)), len(wire.begin(1, 100) + wire.relation(ORDERS)), len(whole)]
        begins = [0, *ends[:2]]
        begin, end = next((begin, end) for begin, end in zip(begins, ends, strict=True) if at <= end)
        assert lacks == (0 if at in ends or at - begin < 5 else end - at), at


def test_what_messages_say_of_definitions_before_the_logs_head_changes_nothing_there() -> None:
    """The log has come past them without a change, so there is none: what is known by now, such as from the catalog at a start, may make one of them."""
    columns = tuple(FactColumn(n, c.name, c.type_oid, c.typmod, "", "", False, "1") for n, c in enumerate(ORDERS.columns, 1))
    known = Facts(ORDERS.oid, ORDERS.schema, ORDERS.name, False, "d", columns, (1,), {ORDERS.oid: LeafTable(ORDERS.oid, True)})
    wider = replace(known, columns=(*columns, FactColumn(3, "more", pgtypes.TEXT, -1, "", "", False, "2")))
    noted: list[int] = []
    definitions = Definitions(
        lambda _: None,
        known=[known.table()],
        facts={ORDERS.oid: replace(known, publishing=Publishing(True))},
        passwords=["sesame"],
        outside=Outside(note=noted.append),
    )
    decoder = Decoder(definitions, Forgetful(), lambda *_: None, 0x100, head_lsn=0x300)
    told = wire.message(DDL_PREFIX, json.dumps({"password": "sesame", "tables": [wider.to_json()]}).encode())
    found: list[list[SchemaChange | None]] = []
    for begin, end in (0x200, 0x300), (0x300, 0x400):
        block = wire.block(wire.begin(7, begin), told, wire.commit(begin, end))
        found += [[schema_change_of(batch) for batch in group.batches] for group in decoder.groups(block, 0, len(block), lambda: 5)]
    assert found == [[], [SchemaChange(wider.table(), Kind.ALTERED)]]
    assert noted == [ORDERS.oid], "the next look at the catalog tells of it"


def test_a_definition_whose_first_row_comes_behind_the_logs_head_is_told_there() -> None:
    """Otherwise the log's own end, sent again, would seem to have a change that the log does not."""
    wider = replace(ORDERS, columns=(*ORDERS.columns, Column("more", pgtypes.TEXT)))
    decoder = Decoder(Definitions(lambda _: None, known=[ORDERS]), Forgetful(), lambda *_: None, 0x100, head_lsn=0x300)
    described = wire.begin(7, 0x200) + wire.relation(wider) + wire.commit(0x200, 0x300)
    block = wire.block(described, wire.begin(8, 0x300), wire.insert(wider.oid, ["1", "new", "x"]), wire.commit(0x300, 0x400))
    groups = list(decoder.groups(block, 0, len(block), lambda: 5))
    assert [(group.transactions.end_lsn.tolist(), len(group.batches)) for group in groups] == [([0x300], 0), ([0x400], 2)]


def test_a_table_described_before_the_logs_head_that_has_rows_only_behind_it_is_known_from_there() -> None:
    """The server describes a table once in a connection. If nobody knew it from there, its end would leave no trace: its rows would stay."""
    noted: list[int] = []
    definitions = Definitions(lambda _: None, passwords=["sesame"], outside=Outside(note=noted.append))
    decoder = Decoder(definitions, Forgetful(), lambda *_: None, 0x300, head_lsn=0x300)
    dropped = wire.message(DDL_PREFIX, json.dumps({"password": "sesame", "dropped": [ORDERS.oid]}).encode())
    block = wire.block(
        wire.begin(7, 0x200) + wire.relation(ORDERS) + wire.insert(ORDERS.oid, ["1", "old"]) + wire.commit(0x200, 0x300),
        wire.begin(8, 0x300) + wire.insert(ORDERS.oid, ["2", "new"]) + dropped + wire.commit(0x300, 0x400),
    )
    batches = [batch for group in decoder.groups(block, 0, len(block), lambda: 5) for batch in group.batches]
    assert [schema_change_of(batch) for batch in batches] == [None, SchemaChange(ORDERS, Kind.DROPPED, empties=True)]
    assert noted == [ORDERS.oid]


def test_a_message_about_a_table_that_nobody_knows_asks_for_a_look_only() -> None:
    """Who notes it would keep the look from publishing it."""
    noted: list[int] = []
    looks: list[None] = []
    outside = Outside(note=noted.append, look=lambda: looks.append(None))
    definitions = Definitions(lambda _: None, passwords=["sesame"], outside=outside)
    columns = tuple(FactColumn(n, c.name, c.type_oid, c.typmod, "", "", False, "1") for n, c in enumerate(ORDERS.columns, 1))
    created = Facts(ORDERS.oid, ORDERS.schema, ORDERS.name, False, "d", columns, (1,), {ORDERS.oid: LeafTable(ORDERS.oid, True)})
    definitions.doubt(json.dumps({"password": "sesame", "tables": [created.to_json()], "dropped": [ITEMS.oid]}).encode())
    assert (noted, len(looks)) == ([], 1)
