"""Rows of keys as of any cut, against a dict that was filled change by change."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cdc.errors import ConfigError, LogReplaced, LookupBehind, PositionGone
from cdc.log.contract import LogReader
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.lookup import entries, lookup, shelf
from cdc.lookup.entries import Entries
from cdc.lookup.lookup import FoundRows, Lookup, key_texts
from cdc.lookup.runfile import ASIDE, RunDamaged, decode, mapped, put_apart, write
from cdc.lookup.shelf import RunName, chain, folder_of, names_in
from cdc.lookup.upkeep import RunUpkeep
from cdc.model.batch import Op, topic_schema
from cdc.model.evolution import Kind
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from sinks.render.rowtext import row_text
from sinks.reshape import conformed
from tests.contract.rows import ORDERS as NARROW
from tests.contract.rows import PAIRS, Row, batch, order, schema, upserts
from tests.unit.log.compaction.test_merge import TOPIC, Log, of_topic
from tests.unit.sinks.test_past import History, logged, past_of

SPARE = np.uint64(20)
"""The bits of digests that are 0."""
Expected = Mapping[str, tuple[int, Row]]
"""Key → position and row, under the definition as of the cut."""


@pytest.fixture
def log(quick_folder: Path) -> Iterator[Log]:
    found = Log(quick_folder / "log")
    yield found
    found.close()


def shown(answer: FoundRows, asked: Sequence[str | None]) -> dict[str, tuple[int, Row]]:
    """The rows that were found, by their keys."""
    assert answer.rows.num_rows == len(answer.found) == len(asked)
    assert (answer.positions[~answer.found] == 0).all()
    if not answer.rows.schema.metadata:
        assert not answer.found.any(), "there is no table yet"
        return {}
    schema = topic_schema(answer.rows.schema)
    texts = row_text(answer.rows, schema).to_pylist()
    for number in np.flatnonzero(~answer.found):
        assert not any(texts[number].values()), "a row that was not found shows nothing"
    return {str(asked[at]): (int(answer.positions[at]), texts[at]) for at in np.flatnonzero(answer.found)}


def expected_as_of(batches: Sequence[pa.RecordBatch], cut: int) -> tuple[TopicSchema | None, dict[str, tuple[int, Row]]]:
    """The definition as of the cut, and the rows by the key that tells them apart there."""
    schema, found = past_of(batches, cut)
    if schema is None:
        return None, {}
    return schema, {key: (at, row_text(conformed(one, schema), schema).to_pylist()[0]) for key, (at, one) in found.items()}


def ask(found: Lookup, cut: int, known: Expected, chance: random.Random) -> None:
    """Every key that has a row, others, NULL and the same again, in any order."""
    asked: list[str | None] = [*known, "no such key", "17:1", "1", "2", "\\E", None, *list(known)[:3]]
    chance.shuffle(asked)
    answer = found.rows(TOPIC, Position(cut), pa.array(asked, pa.utf8()))
    assert shown(answer, asked) == known, f"as of {cut}"


def hold(log: Log, reader: LogReader, found: Lookup, chance: random.Random) -> None:
    mine = of_topic(log.all)
    clean = next((one.clean_from for one in reader.topics() if one.name == TOPIC), 0)
    for cut in [log.cuts[-1], *chance.sample(range(log.cuts[-1] + 1), 2)]:
        schema, known = expected_as_of(mine, cut)
        if 0 < cut < clean - 1:
            with pytest.raises(PositionGone):
                found.rows(TOPIC, Position(cut), pa.array(["1"]))
        elif schema is not None and not lookup.tells_rows_apart(schema):
            with pytest.raises(ConfigError):
                found.rows(TOPIC, Position(cut), pa.array(["1"]))
        else:
            ask(found, cut, known, chance)


@pytest.mark.parametrize("round", range(4))
def test_rows_are_what_a_dict_holds_whatever_runs_and_compaction_have_made_of_it(log: Log, seed: int, round: int) -> None:
    """Some keys' digests are equal: there only the key itself decides."""
    chance = random.Random(seed + round)
    reader = EmbeddedLogReader(log.root)
    standing = Lookup(reader, log.root)
    upkeep = RunUpkeep(reader, log.root, TOPIC, run_rows=chance.choice([1, 7, 40, 1000]))
    history: History | None = None
    with pytest.MonkeyPatch.context() as patch, closing(reader), closing(standing):
        few, hashed = np.uint64(chance.choice([1, 3, 2**40])), entries.hashed
        for module in ("lookup", "scan"):
            patch.setattr(f"cdc.lookup.{module}.hashed", lambda texts, key: (hashed(texts, key) >> SPARE) % few << SPARE)
        patch.setattr("cdc.lookup.scan.APART_ROWS", chance.choice([1, 5, 1000]))
        for _ in range(3):
            history = History(chance, length=80, after=history)
            waiting: list[pa.RecordBatch] = []
            for one in history.batches:
                waiting.append(one)
                if chance.random() < 0.5:
                    log.put(*waiting)
                    waiting = []
                    if chance.random() < 0.2:
                        upkeep.advance()
            log.put(*waiting)
            hold(log, reader, standing, chance)
            if chance.random() < 0.7:
                while upkeep.advance():
                    pass
            if chance.random() < 0.7:
                settled = chance.randrange(log.cuts[-1])
                log.compact(settled, chance.choice([settled, 0, chance.randrange(settled + 1)]))
            hold(log, reader, standing, chance)
            with closing(EmbeddedLogReader(log.root)) as fresh, closing(Lookup(fresh, log.root)) as other:
                hold(log, fresh, other, chance)


def answers(
    root: Path, cut: int, asked: Sequence[str | None], topic: str = "public.orders", **limits: int
) -> dict[str, tuple[int, Row]]:
    with closing(EmbeddedLogReader(root)) as reader, closing(Lookup(reader, root, **limits)) as found:
        return shown(found.rows(topic, Position(cut), pa.array(asked, pa.utf8())), asked)


def filled(log: Log, count: int = 60) -> None:
    """Every key changes three times; some are deleted at last."""
    for at in range(1, count + 1):
        key = at % (count // 3)
        log.put(batch(NARROW, [(Op.DELETE if at > count - 5 else Op.UPDATE, at, order(key, f"at {at}"))]))


def keep(log: Log, topic: str = "public.orders", run_rows: int = 9) -> list[Path]:
    """Makes the topic's runs, and returns their files."""
    with closing(EmbeddedLogReader(log.root)) as reader:
        upkeep = RunUpkeep(reader, log.root, topic, run_rows=run_rows)
        while upkeep.advance():
            pass
    folder = folder_of(log.root, topic)
    return sorted(folder / name.file for name in names_in(folder))


def test_a_key_of_two_texts_and_what_is_asked_for_as_columns() -> None:
    log = logged(
        upserts(PAIRS, 1, [{"a": "x", "b": "y", "v": "1"}, {"a": "x:y", "b": "", "v": "2"}, {"a": "x", "b": ":y", "v": "3"}]),
        batch(PAIRS, [(Op.DELETE, 4, {"a": "x", "b": "y"})]),
        batch(PAIRS, [(Op.TRUNCATE, 5, {})]),
        upserts(PAIRS, 6, [{"a": "x", "b": "y", "v": "4"}]),
    )
    asked = key_texts([pa.array(["x", "x", "x:y", None]), pa.array([":y", "y", "", "y"])])
    found = Lookup(log, Path("/nowhere"))
    values = [found.rows("public.pairs", Position(cut), asked).rows.column("v").to_pylist() for cut in range(7)[1:]]
    assert values == [
        [None, "1", None, None], [None, "1", "2", None], ["3", "1", "2", None], ["3", None, "2", None], [None] * 4, [None, "4", None, None],
    ]  # fmt: skip
    assert found.rows("public.pairs", Position(0), asked).rows.num_rows == 4
    assert not found.rows("public.absent", Position(6), asked).found.any()
    assert found.rows("public.pairs", Position(6), asked.slice(0, 0)).rows.num_rows == 0
    numbers = key_texts([pa.array([12, None], pa.int64())])
    assert numbers.to_pylist() == ["12", "\\N"]
    with pytest.raises(ValueError, match="not in the log yet"):
        found.rows("public.pairs", Position(7), asked)


def test_what_is_not_in_runs_yet_is_read_from_the_log_as_far_as_memory_allows(log: Log) -> None:
    filled(log)
    asked = [str(key) for key in range(20)]
    known = answers(log.root, 60, asked)
    assert len(known) == 15
    with pytest.raises(LookupBehind, match="is being made"):
        answers(log.root, 60, asked, tail_rows=59)
    keep(log)
    assert answers(log.root, 60, asked, tail_rows=0) == known


def test_runs_of_like_size_become_one_and_a_few_are_left(log: Log) -> None:
    with closing(EmbeddedLogReader(log.root)) as reader, closing(Lookup(reader, log.root, tail_rows=0)) as found:
        upkeep = RunUpkeep(reader, log.root, "public.orders")
        for at in range(1, 34):
            log.put(upserts(NARROW, at, [order(at)]))
            upkeep.advance()
            asked = [str(key) for key in range(1, at + 2)]
            assert len(shown(found.rows("public.orders", Position(at), pa.array(asked)), asked)) == at
            names = names_in(folder_of(log.root, "public.orders"))
            assert len(names) <= at.bit_length()
            assert len(chain(names)) == len(names), "what was merged is gone"


def test_a_table_whose_rows_cannot_be_told_apart_for_a_while(log: Log) -> None:
    """Its key is all of its columns, before and after: what comes in between under REPLICA IDENTITY FULL has no entries."""
    table = replace(PAIRS, columns=PAIRS.columns[:2], identity="d")
    whole = replace(table, identity="f")
    log.put(batch(table, [(Op.INSERT, 1, {"a": "x", "b": "1"})]))
    log.put(schema(whole, 2, Kind.ALTERED))
    log.put(batch(whole, [(Op.INSERT, 3, {"a": "y", "b": "2"}), (Op.DELETE, 4, {"a": "x", "b": "1"})]))
    log.put(schema(table, 5, Kind.ALTERED))
    log.put(batch(table, [(Op.INSERT, 6, {"a": "z", "b": "3"})]))
    for runs in (False, True):
        with closing(EmbeddedLogReader(log.root)) as reader:
            if runs:
                RunUpkeep(reader, log.root, "public.pairs").advance()
            with closing(Lookup(reader, log.root)) as found:
                answer = found.rows("public.pairs", Position(6), key_texts([pa.array(["x", "y", "z"]), pa.array(["1", "2", "3"])]))
        assert (answer.found.tolist(), answer.positions.tolist()) == ([False, True, True], [0, 3, 6]), runs


def flipped(data: bytes, at: int, chance: random.Random) -> bytes:
    """With one bit of a byte turned over."""
    changed = bytearray(data)
    changed[at] ^= 1 << chance.randrange(8)
    return bytes(changed)


def test_a_run_that_differs_in_any_byte_is_named_and_made_again(log: Log, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(seed)
    filled(log)
    asked = [str(key) for key in range(25)]
    keep(log)
    log.put(schema(NARROW, 61, Kind.ALTERED), batch(NARROW, [(Op.UPDATE, 62, order(1, "again"))]))
    files = keep(log)
    assert len(files) > 1
    known = answers(log.root, 62, asked, tail_rows=0)
    for file in files:
        whole = file.read_bytes()
        for at in (*range(16), *chance.sample(range(16, len(whole)), 500)):
            with pytest.raises(RunDamaged):
                decode(pa.py_buffer(flipped(whole, at, chance)))
        for length in {*range(20), *chance.sample(range(len(whole)), 50)}:
            with pytest.raises(RunDamaged):
                decode(pa.py_buffer(whole[:length]))
        for data in (b"", whole[:-1], whole + b"\0", *(flipped(whole, at, chance) for at in chance.sample(range(len(whole)), 3))):
            file.write_bytes(data)
            assert answers(log.root, 62, asked) == known
            assert not file.exists()
            file.write_bytes(whole)
        assert str(file) in "".join(capsys.readouterr())  # where the log's lines go depends on who has set it up
    file.write_bytes(b"x")
    assert answers(log.root, 62, asked) == known
    keep(log)
    assert answers(log.root, 62, asked, tail_rows=0) == known


def test_runs_of_another_log_topic_place_or_past_are_not_believed(log: Log, tmp_path: Path) -> None:
    filled(log)
    other = Log(tmp_path / "other")
    filled(other, 30)
    files, others = keep(log), keep(other)
    asked = [str(key) for key in range(20)]
    known = answers(other.root, 30, asked)
    # Read before anything is put there: a false run that is made again may take the name of a right one with it.
    foreign, own = files[0].read_bytes(), others[0].read_bytes()
    for content, names in ((foreign, [others[0]]), (own, sorted({*files, *others}))):
        for name in names:
            file = others[0].with_name(name.name)
            file.write_bytes(content)
            assert answers(other.root, 30, asked) == known
            keep(other)
            assert answers(other.root, 30, asked, tail_rows=0) == known
    # A copy of the log that is put back without its newest changes, with look-ups that have seen them.
    other.close()
    shutil.rmtree(folder_of(log.root, "public.orders"))
    older = tmp_path / "older"
    log.close()
    shutil.copytree(log.root, older)
    again = Log(log.root)
    again.put(batch(NARROW, [(Op.UPDATE, 61, order(1, "lost"))]))
    keep(again)
    again.close()
    shutil.copytree(log.root / "lookup", older / "lookup", dirs_exist_ok=True)
    assert answers(older, 60, ["1", "2"]).keys() == {"1", "2"}
    rest = Log(older)
    rest.put(upserts(PAIRS, 61, [{"a": "x", "b": "y", "v": "1"}]), batch(NARROW, [(Op.UPDATE, 62, order(2, "found"))]))
    assert answers(older, 62, ["1", "2"])["2"][0] == 62
    keep(rest)
    assert answers(older, 62, ["1", "2"], tail_rows=0)["2"][0] == 62
    rest.close()


def test_a_run_that_was_made_since_the_log_was_asked_for_its_head_is_one_of_this_log(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(log)
    with closing(EmbeddedLogReader(log.root)) as reader, closing(Lookup(reader, log.root)) as found:

        def names_after(folder: Path) -> frozenset[RunName]:
            monkeypatch.undo()
            log.put(batch(NARROW, [(Op.UPDATE, 61, order(1, "newer"))]))
            keep(log)
            return names_in(folder)

        monkeypatch.setattr(shelf, "names_in", names_after)
        assert found.rows("public.orders", Position(60), pa.array(["1"])).positions.tolist() == [41]
        assert max(name.high for name in names_in(folder_of(log.root, "public.orders"))) == 61


def test_a_run_that_names_changes_which_the_log_does_not_have_is_made_again(log: Log) -> None:
    """As after somebody has put another topic's files there and changed what they say."""
    filled(log)
    (file,) = keep(log)
    run, origin = mapped(file)
    false = replace(run, entries=Entries(run.entries.hashes, run.entries.positions + 1000))
    write(file, false, origin, false.entries.pairs, [false.entries])
    with closing(EmbeddedLogReader(log.root)) as reader, closing(Lookup(reader, log.root)) as found:
        log.put(*(upserts(PAIRS, at, [{"a": "x", "b": "y", "v": "1"}]) for at in range(61, 1100)))
        with pytest.raises(LookupBehind, match="named position 10"):
            found.rows("public.orders", Position(1099), pa.array(["1", "2"]))
        assert not file.exists()
        keep(log)
        assert found.rows("public.orders", Position(1099), pa.array(["1"])).positions.tolist() == [41]


@pytest.mark.parametrize("before", [0, 20])
def test_a_run_is_not_believed_where_the_log_has_changes_between_its_last_one_and_its_end(
    log: Log, tmp_path: Path, before: int
) -> None:
    """A copy of the log was put back beside newer runs, and another table's changes had been where the topic's are now."""
    log.put(upserts(PAIRS, 1, [{"a": "x", "b": "y", "v": "1"}]))
    if before:
        log.put(*(batch(NARROW, [(Op.UPDATE, at, order(1, "old"))]) for at in range(2, before)))
        keep(log)
    log.close()
    older = tmp_path / "older"
    shutil.copytree(log.root, older)
    again = Log(log.root)
    begin = max(before, 2)
    again.put(*(upserts(PAIRS, at, [{"a": "x", "b": "y", "v": "1"}]) for at in range(begin, 31)))
    keep(again)
    again.close()
    shutil.copytree(log.root / "lookup", older / "lookup", dirs_exist_ok=True)
    rest = Log(older)
    rest.put(*(batch(NARROW, [(Op.UPDATE, at, order(1, "new"))]) for at in range(begin, 31)))
    assert answers(older, 30, ["1"])["1"][0] == 30
    keep(rest)
    assert answers(older, 30, ["1"], tail_rows=0)["1"][0] == 30
    rest.close()


def test_a_run_that_names_other_keys_changes_gives_no_older_row(log: Log) -> None:
    filled(log)
    (file,) = keep(log)
    run, origin = mapped(file)
    pairs = Entries(run.entries.hashes, np.where(run.entries.positions == 41, 42, run.entries.positions))
    write(file, replace(run, entries=pairs), origin, pairs.pairs, [pairs])
    with closing(EmbeddedLogReader(log.root)) as reader, closing(Lookup(reader, log.root)) as found:
        with pytest.raises(LookupBehind, match="named position 42"):
            found.rows("public.orders", Position(60), pa.array(["1"]))
        assert not file.exists()
        assert found.rows("public.orders", Position(60), pa.array(["1"])).positions.tolist() == [41]


def test_what_was_read_into_memory_is_given_up_when_a_copy_of_the_log_is_put_back(log: Log) -> None:
    filled(log)
    log.close()
    older = log.root.with_name("older")
    shutil.copytree(log.root, older)
    with closing(EmbeddedLogReader(log.root)) as reader, closing(Lookup(reader, log.root)) as found:
        lost = Log(log.root)
        lost.put(batch(NARROW, [(Op.UPDATE, 61, order(1, "lost"))]))
        lost.close()
        assert found.rows("public.orders", Position(61), pa.array(["1"])).positions.tolist() == [61]
        log.root.rename(log.root.with_name("before"))
        older.rename(log.root)
        rest = Log(log.root)
        rest.put(upserts(PAIRS, 61, [{"a": "x", "b": "y", "v": "1"}]), batch(NARROW, [(Op.UPDATE, 62, order(2, "found"))]))
        with pytest.raises(LogReplaced):
            reader.wait(Position(62), 5.0)  # said to somebody else
        assert found.rows("public.orders", Position(62), pa.array(["1", "2"])).positions.tolist() == [41, 62]
        rest.close()


@pytest.mark.parametrize("hot", [0, 3000, 6000])
def test_runs_are_merged_in_pieces_of_bounded_size_also_where_one_key_changes_over_and_over(seed: int, hot: int) -> None:
    chance = np.random.default_rng(seed)
    runs, at = [], 1
    for count in (5000, 3000, 1, 0, 2500):
        hashes = chance.integers(0, 2**40, count).astype(np.uint64) << SPARE
        hashes[: int(min(count, hot))] = np.uint64(2**39) << SPARE
        runs.append(entries.sorted_entries(chance.permutation(hashes), np.arange(at, at + count)))
        at += count
    pieces = list(entries.merged(runs, 500))
    assert max(piece.pairs for piece in pieces) <= 1000
    whole = Entries(*(np.concatenate(arrays) for arrays in zip(*pieces, strict=True)))
    hashes, positions = (np.concatenate(arrays) for arrays in zip(*runs, strict=True))
    order = np.lexsort((positions, hashes))
    assert np.array_equal(whole.hashes, hashes[order])
    assert np.array_equal(whole.positions, positions[order])


def test_pairs_that_are_put_apart_are_the_same_and_leave_no_name(tmp_path: Path) -> None:
    pairs = Entries(np.arange(0, 7000, 7).astype(np.uint64), np.arange(1000))
    (tmp_path / f"{ASIDE}apart").write_bytes(b"of a process that was killed")
    apart = put_apart(tmp_path, pairs)
    assert list(tmp_path.iterdir()) == []
    assert np.array_equal(apart.hashes, pairs.hashes)
    assert np.array_equal(apart.positions, pairs.positions)
    with pytest.raises(OSError, match=r"aside-apart"):
        put_apart(tmp_path / "gone", pairs)


def test_rows_that_live_when_another_key_comes_are_put_apart(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds a part of them only."""
    sizes: list[int] = []
    monkeypatch.setattr("cdc.lookup.upkeep.put_apart", lambda folder, pairs: sizes.append(pairs.pairs) or put_apart(folder, pairs))
    monkeypatch.setattr("cdc.lookup.scan.APART_ROWS", 10)
    log.put(*(upserts(NARROW, at, [order(at)]) for at in range(1, 31)))
    log.put(schema(replace(NARROW, columns=tuple(replace(one, key=one.name in ("id", "status")) for one in NARROW.columns)), 31))
    with closing(EmbeddedLogReader(log.root)) as reader, closing(Lookup(reader, log.root, tail_rows=0)) as found:
        while RunUpkeep(reader, log.root, NARROW.qualified).advance():
            pass
        assert sum(sizes) == 30
        keys = key_texts([pa.array(["1", "30"]), pa.array(["new", "new"])])
        assert found.rows(NARROW.qualified, Position(31), keys).positions.tolist() == [1, 30]


def test_a_look_up_asks_twice_what_the_topics_are(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, and whether that has changed meanwhile: there may be many."""
    log.put(upserts(NARROW, 1, [order(1)]))
    with closing(EmbeddedLogReader(log.root)) as reader, closing(Lookup(reader, log.root)) as found:
        asked, topics = [], EmbeddedLogReader.topics
        monkeypatch.setattr(EmbeddedLogReader, "topics", lambda self: asked.append(1) or topics(self))
        assert found.rows(NARROW.qualified, Position(1), pa.array(["1"])).found.all()
    assert len(asked) == 2
