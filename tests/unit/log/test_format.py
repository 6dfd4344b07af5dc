"""The bytes: what was encoded decodes to the same values; cut, flipped and foreign bytes raise Damaged and nothing else."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.log.embedded import timeline as timeline_module
from cdc.log.embedded.format import (
    Damaged,
    FrameKind,
    Head,
    LogFrame,
    SegmentHeader,
    chain,
    decode_frame,
    decode_head,
    decode_segment_header,
    encode_frame,
)
from cdc.log.embedded.records import (
    RECORD_BYTES,
    GroupEntry,
    GroupPart,
    NewMark,
    NewProducer,
    NewTopic,
    Replaced,
    Retired,
    TimelineHeader,
    decode_timeline_header,
    encode_group,
    encode_timeline_header,
    whole_records,
)
from cdc.log.embedded.timeline import Timeline
from cdc.model.position import Cut, Lsn, Position

position = st.integers(0, 2**63 - 1)
word = st.integers(0, 2**32 - 1)


@given(st.integers(0, 2**64 - 1), word, st.text(max_size=200), position, position, position, word)
def test_segment_header(log_id: int, topic: int, name: str, first: int, previous: int, last: int, crc: int) -> None:
    header = SegmentHeader(log_id, topic, name, first, previous, last, crc)
    raw, checksum = header.encode()
    assert len(raw) % 8 == 0
    assert decode_segment_header(raw + b"what follows") == (header, len(raw), checksum)
    for length in range(len(raw)):
        with pytest.raises(Damaged):
            decode_segment_header(raw[:length])


def frame_bytes() -> tuple[bytes, int]:
    body = bytes(range(48))
    head, crc = encode_frame(FrameKind.BATCH, [body], offset=96, schema_at=64, topic=7, first=11, last=19, rows=5)
    return head + body, crc


def test_frame() -> None:
    raw, crc = frame_bytes()
    found = decode_frame(pa.py_buffer(b"junk" + raw + b"more"), 4, offset=96, topic=7)
    assert found == LogFrame(FrameKind.BATCH, 96, 48, 64, 7, 11, 19, 5, crc)
    assert (found.body, found.end) == (96 + 48, 96 + 96)
    with pytest.raises(Damaged, match="elsewhere"):
        decode_frame(pa.py_buffer(raw), 0, offset=104, topic=7)
    with pytest.raises(Damaged, match="elsewhere"):
        decode_frame(pa.py_buffer(raw), 0, offset=96, topic=8)
    for body in (b"1234567", b"123456789"):
        with pytest.raises(ValueError):
            encode_frame(FrameKind.BATCH, [body], offset=0, schema_at=0, topic=1)


def test_frame_damaged_anywhere() -> None:
    raw, _ = frame_bytes()
    for length in range(len(raw)):
        with pytest.raises(Damaged):
            decode_frame(pa.py_buffer(raw[:length]), 0, offset=96, topic=7)
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            decode_frame(pa.py_buffer(bytes(flipped)), 0, offset=96, topic=7)


def test_garbage_is_damaged(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(2000):
        raw = chance.randbytes(chance.randrange(200))
        lucky = (b"HWFR\x01\x02" + raw, b"HWSEGMNT\x01\x00" + raw, raw)
        for data in lucky:
            with pytest.raises(Damaged):
                decode_frame(pa.py_buffer(data), 0, offset=0, topic=1)
            with pytest.raises(Damaged):
                decode_segment_header(data)
            with pytest.raises(Damaged):
                decode_timeline_header(data)
            assert decode_head(data) is None
            assert Timeline(1, 2).extend(data) == 0


@given(word, position, position, position, st.integers(-(2**62), 2**62), word, word, word)
def test_head(epoch: int, log_id: int, at: int, lsn: int, ts: int, number: int, length: int, crc: int) -> None:
    head = Head(log_id, epoch, at, lsn, ts, number, length, crc)
    raw = head.encode()
    assert decode_head(raw) == head
    assert decode_head(raw[:-1]) is None
    assert decode_head(bytes(len(raw))) is None


def groups() -> list[GroupEntry]:
    return [
        GroupEntry(
            1,
            3,
            10,
            100,
            1,
            (NewTopic(1, "a"), NewTopic(2, "long " * 20, 2)),
            (GroupPart(1, 1, 64, 128, 2, 2, 5, 6), GroupPart(2, 3, 64, 80, 3, 1, 7, 8)),
            (NewProducer(1, "postgres"), NewProducer(2, "view " * 9)),
            (NewMark(2, b"as far as here " * 5),),
        ),
        GroupEntry(4, 3, 20, 50, 1, (), ()),
        GroupEntry(4, 9, 20, 50, 2, (), (GroupPart(1, 1, 128, 256, 9, 6, 6, 9),)),
    ]


def encoded() -> tuple[bytes, list[int]]:
    header, crc = encode_timeline_header(TimelineHeader(77))
    raw, ends = header, []
    for group in groups():
        records, crc = encode_group(group, crc)
        raw += records
        ends.append(len(raw))
    return raw, ends


def decoded(raw: bytes) -> Timeline:
    return Timeline.whole(raw)


def test_timeline_whole_and_piece_by_piece() -> None:
    raw, ends = encoded()
    whole = decoded(raw)
    assert whole.log_id == 77
    assert whole.length == len(raw)
    assert whole.head == Cut(Position(9), Lsn(20), 50)
    assert [whole.cut(number) for number in range(3)] == [Cut(g.last, g.commit_lsn, g.commit_ts_us) for g in groups()]  # type: ignore[arg-type]
    assert whole.numbers == {"a": 1, "long " * 20: 2}
    assert (whole.topics[1].rows, whole.topics[1].bytes, whole.topics[1].last) == (8, 192, 9)
    pieces = Timeline.beginning(raw[:RECORD_BYTES])
    for start, end in zip([RECORD_BYTES, *ends], ends, strict=False):
        assert pieces.extend(raw[start:end]) == end - start
    assert pieces.crc == whole.crc
    assert pieces.marks() == whole.marks() == {"postgres": b"0/14", "view " * 9: b"as far as here " * 5}
    assert whole.marks(2) == {}
    assert whole.marks(3) == whole.marks(9)
    assert {topic.name: topic.producer for topic in whole.topics.values()} == {"a": "postgres", "long " * 20: "view " * 9}
    assert pieces.head == whole.head
    assert (pieces.cuts == whole.cuts).all()
    assert all((pieces.topics[n].parts == whole.topics[n].parts).all() for n in (1, 2))


def test_timeline_cut_at_every_byte_keeps_the_whole_groups() -> None:
    raw, ends = encoded()
    for length in range(RECORD_BYTES, len(raw)):
        assert decoded(raw[:length]).length == max(end for end in [RECORD_BYTES, *ends] if end <= length)


def test_many_records_are_checked_at_once_and_the_damaged_one_found() -> None:
    _, crc = encode_timeline_header(TimelineHeader(1))
    raw, running = b"", crc
    for number in range(1, 101):
        records, running = encode_group(GroupEntry(1, 0, number, 0, 1, (), ()), running)
        raw += records
    records_array = np.frombuffer(raw, np.uint8).reshape(-1, RECORD_BYTES)
    assert whole_records(records_array, crc) == 100
    assert whole_records(records_array, crc + 1) == 0
    for broken in (0, 1, 50, 98, 99):
        flipped = records_array.copy()
        flipped[broken, 20] ^= 4
        assert whole_records(flipped, crc) == broken


_P = (NewProducer(1, "postgres"),)
_ONE = (GroupPart(1, 1, 64, 72, 1, 1, 0, 0),)


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(GroupEntry(1, 1, 0, 0, 1, (NewTopic(1, "a"),), _ONE), id="no producer"),
        pytest.param(GroupEntry(1, 1, 0, 0, 1, (NewTopic(1, "a", 2),), _ONE, _P), id="another producer"),
        pytest.param(GroupEntry(1, 1, 0, 0, 1, (NewTopic(1, "a"),), _ONE, (*_P, *_P)), id="producer twice"),
        pytest.param(GroupEntry(1, 0, 0, 0, 1, (), (), _P, (NewMark(2, b"x"),)), id="a mark of nobody"),
        pytest.param(
            GroupEntry(1, 1, 0, 0, 1, (NewTopic(1, "a"),), _ONE, _P, replaced=(Replaced(1, 1, 1, 9, 1, 1, 1),)), id="newest"
        ),
        pytest.param(GroupEntry(1, 1, 0, 0, 1, (NewTopic(1, "a"),), _ONE, _P, retired=(Retired(1, 1, 1, 3),)), id="to come"),
        pytest.param(GroupEntry(1, 1, 0, 0, 1, (NewTopic(1, "a"),), _ONE, _P, retired=(Retired(1, 2, 1, 2),)), id="disordered"),
        pytest.param(GroupEntry(1, 1, 0, 0, 1, (NewTopic(1, "a"),), _ONE, _P, retired=(Retired(2, 1, 1, 1),)), id="unknown"),
        pytest.param(GroupEntry(2, 2, 0, 0, 1, (NewTopic(1, "a"),), (GroupPart(1, 2, 64, 72, 2, 1, 0, 0),), _P), id="gap"),
        pytest.param(GroupEntry(1, 2, 0, 0, 1, (NewTopic(1, "a"),), (GroupPart(1, 1, 64, 72, 2, 1, 0, 0),), _P), id="rows missing"),
        pytest.param(GroupEntry(1, 1, 0, 0, 1, (), (GroupPart(1, 1, 64, 72, 1, 1, 0, 0),), _P), id="no name"),
        pytest.param(
            GroupEntry(1, 1, 0, 0, 1, (NewTopic(1, "a"), NewTopic(1, "b")), (GroupPart(1, 1, 64, 72, 1, 1, 0, 0),), _P),
            id="named twice",
        ),
        pytest.param(GroupEntry(1, 1, 0, 0, 1, (NewTopic(1, "a"),), (GroupPart(1, 1, 72, 72, 1, 1, 0, 0),), _P), id="no bytes"),
    ],
)
def test_a_timeline_that_contradicts_itself_is_damaged(group: GroupEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    records, _ = encode_group(group, 5)
    for few in (0, 10**6):
        monkeypatch.setattr(timeline_module, "FEW_RECORDS", few)
        with pytest.raises(Damaged):
            Timeline(1, 5).extend(records)


@pytest.mark.parametrize("seed", range(20))
def test_few_records_and_many_are_taken_in_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    taken = broken = dropped = 0
    for _ in range(100):
        records = b"".join(_some_groups(chance))
        outcomes: list[object] = []
        for few in (0, 10**6):
            monkeypatch.setattr(timeline_module, "FEW_RECORDS", few)
            timeline = Timeline(1, 5)
            try:
                done = timeline.extend(records)
            except Damaged:
                outcomes.append(None)
                continue
            topics = {name: timeline.topics[number] for name, number in timeline.numbers.items()}
            parts = {name: (topic.number, topic.producer, topic.retired, topic.parts.tolist()) for name, topic in topics.items()}
            dropped += sum(topic.generation > 0 or topic.retired.kept_from > 0 for topic in topics.values())
            rise, marks = timeline.number_at_lsn(0), [timeline.marks(upto) for upto in range(timeline.head.position + 1)]
            outcomes.append(
                (done, timeline.length, timeline.crc, timeline.epoch, timeline.head, timeline.cuts.tolist(), parts, rise, marks)
            )
        assert outcomes[0] == outcomes[1]
        taken += outcomes[0] is not None
        broken += outcomes[0] is None
    assert min(taken, broken, dropped) > 10


def _some_groups(chance: random.Random) -> list[bytes]:
    """Groups of two topics one behind the other, sometimes with a number that no writer would have written, or with an end torn off."""
    found, at, crc, bytes_of, rows_of = [], 0, 5, {1: 64, 2: 64}, {1: (0, 1), 2: (0, 1)}
    wrong = chance.random() < 0.5
    dropping = _Dropping({1: {}, 2: {}})
    for number in range(chance.randrange(1, 7)):
        parts, first = [], at + 1
        for topic in chance.sample((1, 2), chance.randrange(3)):
            for _ in range(chance.choice((1, 1, 2))):
                rows, size = chance.randrange(1, 4), chance.randrange(8, 99)
                segment = first if chance.random() < 0.3 and first > rows_of[topic][0] else rows_of[topic][1]
                at += rows
                part = GroupPart(
                    topic,
                    segment,
                    bytes_of[topic],
                    bytes_of[topic] + size,
                    at,
                    rows,
                    chance.randrange(2**32),
                    chance.randrange(2**32),
                )
                bytes_of[topic], rows_of[topic] = part.end, (at, segment)
                dropping.segments[topic][segment] = at
                if wrong and chance.random() < 0.15:
                    field = chance.choice(("topic", "segment", "end", "last", "rows"))
                    part = replace(part, **{field: max(0, getattr(part, field) + chance.choice((-60, -1, 1, 2)))})
                parts.append(part)
        names: tuple[NewTopic, ...] = (NewTopic(1, "a"), NewTopic(2, "long " * 20)) if number == 0 else ()
        if wrong and chance.random() < 0.1:
            odd = (
                ((), (NewTopic(1, "a"), NewTopic(2, "a")), (NewTopic(3, "c", 3),))
                if number == 0
                else ((NewTopic(8, "a"),), (NewTopic(9, "c"),))
            )
            names = chance.choice(odd)
        producers = (
            (NewProducer(1, "postgres"), NewProducer(2, "view")) if number == 0 and not (wrong and chance.random() < 0.1) else ()
        )
        marks = tuple(NewMark(2, chance.randbytes(chance.randrange(90))) for _ in range(chance.choice((0, 0, 1, 2))))
        replaced, retired = dropping.some(chance, wrong=wrong)
        lsn = chance.choice((number * 10, number * 10, 3))
        group = GroupEntry(
            first + (wrong and chance.random() < 0.05),
            at,
            lsn,
            number,
            chance.randrange(1, 3),
            names,
            tuple(parts),
            producers,
            marks,
            replaced,
            retired,
        )
        records, crc = encode_group(group, crc)
        found.append(records)
    if chance.random() < 0.3:
        found[-1] = found[-1][: chance.randrange(len(found[-1]))]
    return found


@dataclass
class _Dropping:
    """What replaces or retires segments of the groups made so far."""

    segments: dict[int, dict[int, int]]
    """Topic → a segment's first position → its last."""
    generation: int = 0
    kept_from: dict[int, int] = field(default_factory=dict)
    raised: dict[int, int] = field(default_factory=dict)

    def some(self, chance: random.Random, *, wrong: bool) -> tuple[tuple[Replaced, ...], tuple[Retired, ...]]:
        replaced, retired = [], []
        for topic, segments in self.segments.items():
            begins = list(segments)
            if len(begins) > 1 and chance.random() < 0.3:
                low, high = sorted(chance.choices(range(len(begins) - (not wrong or chance.random() < 0.5)), k=2))
                self.generation += 1
                replaced.append(
                    Replaced(
                        topic, begins[low], segments[begins[high]], 50, chance.randrange(2), self.generation, chance.randrange(99)
                    )
                )
                segments[begins[low]] = segments[begins[high]]
                for gone in begins[low + 1 : high + 1]:
                    del segments[gone]
            elif begins and chance.random() < 0.1:
                at = max(self.kept_from.get(topic, 0), chance.randrange(begins[-1] + 1))
                if at > self.kept_from.get(topic, 0):
                    self.raised[topic] = self.raised.get(topic, 0) + 1
                self.kept_from[topic] = at
                raised = self.raised.get(topic, 0) + wrong * chance.choice((0, 0, 0, 1))
                retired.append(Retired(topic, at, at, at + wrong * chance.randrange(2), self.generation, raised))
                for gone in [begin for begin in begins[:-1] if segments[begin] < at]:
                    del segments[gone]
        return tuple(replaced), tuple(retired)


def test_the_chain_depends_on_the_order() -> None:
    assert chain(chain(0, 1), 2) != chain(chain(0, 2), 1)
