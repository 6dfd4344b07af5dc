"""Names, values and messages as a terminal may show them: a table's name must not move the cursor or forge a line."""

from __future__ import annotations

import re
from typing import Final

_ACTED_ON: Final = re.compile(r"[^\x20-\x7e]")
"""Characters that may have to be escaped: all but ASCII's printable ones are looked at one by one."""
_PLAIN: Final = re.compile(r"[\w.$-]+")
_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7f]")


def visible(text: str) -> str:
    r"""The text on one line: control characters, escape sequences and marks that reorder what follows are shown as escapes.

    >>> visible("orders\x1b[2J\n")
    'orders\\x1b[2J\\n'
    """
    if text.isprintable():
        return text
    # Lone surrogates, which no stream can encode, are among what is not printable.
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def quoted(name: str) -> str:
    """A name among other words of a line: as it is where that is one plain word; else as values are shown, in quotes and with escapes.

    >>> quoted("public.orders"), quoted("a=b c")
    ('public.orders', "'a=b c'")
    """
    return name if _PLAIN.fullmatch(name) else repr(name)


def counted(number: int, noun: str) -> str:
    """ "1 table", "2 tables"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def visible_json(text: str) -> str:
    r"""The same JSON, with what a terminal would act on as JSON's own escapes. Line ends between documents stay.

    >>> visible_json('{"name": "\x9b2J"}')
    '{"name": "\\u009b2J"}'
    """
    return _ACTED_ON.sub(lambda found: found[0] if found[0] == "\n" or found[0].isprintable() else _json_escape(found[0]), text)


def json_in_ascii(text: str) -> str:
    r"""The same JSON, with every character that ASCII lacks as JSON's own escape.

    >>> json_in_ascii('{"name": "é"}')
    '{"name": "\\u00e9"}'
    """
    return text if text.isascii() else _BEYOND_ASCII.sub(lambda found: _json_escape(found[0]), text)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
