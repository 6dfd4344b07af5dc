from __future__ import annotations

import json
import random

import pytest

from cdc.terminal import visible, visible_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("public.orders", "public.orders"),
        ("naïve ☂ 表 🙂", "naïve ☂ 表 🙂"),
        ("[/x][bold]", "[/x][bold]"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("\u202eevil\u2066", r"\u202eevil\u2066"),
        ("a\u2028b", r"a\u2028b"),
        ("\ud83d", r"\ud83d"),
    ],
)
def test_what_a_terminal_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown
    visible(text).encode()


def test_json_says_the_same_afterwards(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(500):
        text = "".join(
            chr(chance.choice((chance.randrange(0x100), chance.randrange(0x2000, 0x2070), 0x1F642, 0xE0041))) for _ in range(9)
        )
        shown = visible_json(json.dumps({text: [text]}, ensure_ascii=False) + "\n" + json.dumps(text))
        first, second = shown.split("\n")
        assert (json.loads(first), json.loads(second)) == ({text: [text]}, text)
        assert first.isprintable()
        assert second.isprintable()
