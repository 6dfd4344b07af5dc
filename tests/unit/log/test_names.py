from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.log.embedded.names import Sealed, first_of, folder_of, sealed_of, segment_name

NASTY = ["../../x", "..", ".", "CON", "a/b", "a\0b", "", "T", "t", "x" * 300, "ü" * 100, "a.b", "a%2eb", "\n", "~", "-rf"]


@pytest.mark.parametrize("name", NASTY)
def test_a_folders_name_is_harmless(name: str) -> None:
    folder = folder_of(name)
    assert 0 < len(folder) <= 200
    assert set(folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-%")


def test_twins_get_folders_of_their_own() -> None:
    twins = ["é", unicodedata.normalize("NFD", "é"), "T", "t", "x" * 200, "x" * 201, "a.b", "a%2eb"]
    assert len({folder_of(name).casefold() for name in twins}) == len(twins)


CRAFTED = tuple(f"public.{'ü' * 28}{letters}" for letters in ("aaabvxf", "aaafegv"))
"""Two table names with the same first 160 bytes and the same BLAKE2b of 4 bytes, found in less than a second."""


def test_names_that_somebody_made_to_collide() -> None:
    assert len({folder_of(name) for name in CRAFTED}) == 2


@given(st.text(max_size=130), st.text(max_size=130))
def test_different_topics_different_folders(left: str, right: str) -> None:
    assert (folder_of(left) == folder_of(right)) == (left == right)


def test_a_name_stays_readable() -> None:
    assert folder_of("public.orders").startswith("public%2eorders-")


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 10**9), st.integers(0, 2**32 - 1))
def test_file_names_round_trip(first: int, last: int, rows: int, crc: int) -> None:
    assert first_of(segment_name(first)) == first
    sealed = Sealed(first, last, rows, crc)
    assert sealed_of(sealed.file) == sealed
    assert first_of(sealed.file) is None
    assert sealed_of(segment_name(first)) is None
