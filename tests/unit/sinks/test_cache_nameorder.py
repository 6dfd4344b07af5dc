"""Names of keys in the order in which their rows were probably written."""

from __future__ import annotations

import random

import pyarrow as pa

from sinks.cache.nameorder import put_in_order


def ordered(names: list[str], behind: int) -> list[str]:
    given = pa.array([name.encode() for name in names], pa.large_binary())
    found = put_in_order(given, behind)
    assert found.type == pa.large_binary()
    return [name.decode() for name in found.to_pylist()]


def test_numbers_stand_in_their_order() -> None:
    names = [f"order:{number}" for number in (0, 7, 10, 99, 100, 4096, 10**18, 10**18 + 1)]
    shuffled = random.Random(1).sample(names, len(names))
    assert ordered(shuffled, len("order:")) == names


def test_texts_stand_in_the_order_of_their_first_bytes() -> None:
    names = ["o:", "o:aa", "o:ab", "o:ab:1", "o:b", "o:é"]
    shuffled = random.Random(2).sample(names, len(names))
    assert ordered(shuffled, len("o:")) == names


def test_every_name_stays_there_once_whatever_it_is() -> None:
    names = ["", "o", "o:", "o:-5", "o:99999999999999999999999", "o:1x", "other", "o:" + "ab" * 40]
    names += [f"o:{number}" for number in range(1000)]
    assert sorted(ordered(names, len("o:"))) == sorted(names)


def test_a_slice_of_names_is_put_in_order_alone() -> None:
    names = pa.array([b"o:9", b"o:3", b"o:2", b"o:1"], pa.large_binary()).slice(1, 2)
    assert put_in_order(names, 2).to_pylist() == [b"o:2", b"o:3"]


def test_nothing_is_in_order() -> None:
    assert ordered([], 3) == []
