"""``url = "https://billing.internal/hooks/{type}"``: where an event goes. Pure.

An event's values stand in the path or the query only, and stay one segment of it whatever they hold: so no event chooses the receiver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Final
from urllib.parse import quote, urlsplit

from cdc.settings.refusals import is_loopback

PLACES: Final = ("topic", "type", "op", "key")
"""The parts of an event that a URL may name (``sinks.events.event``)."""


class Unaddressed(ValueError):
    """The event has no URL."""


@dataclass(frozen=True, slots=True)
class ReceiverAddress:
    """``parts``: of path and query, (literal, the place behind it, or None at the end)."""

    scheme: str
    host: str
    port: int
    parts: tuple[tuple[str, str | None], ...]

    @property
    def where(self) -> str:
        """As it may be shown: a path may hold a token."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def target(self, values: Mapping[str, str | None]) -> str:
        """Path and query for an event. Raises Unaddressed, whose text names the place and not the value."""
        return "".join(literal + (_segment(place, values[place]) if place is not None else "") for literal, place in self.parts)


def parsed(url: str, *, plain: bool) -> ReceiverAddress:
    """The address that is written so. ``plain``: http may be used with any host. Raises ValueError, which does not quote it: a path may hold a token."""
    try:
        given = urlsplit(url)
        port = given.port
    except ValueError:
        raise ValueError(_NOT_ONE) from None
    host = given.hostname or ""
    if given.scheme not in ("http", "https") or not host or port == 0 or not url.isascii() or any(one <= " " for one in url):
        raise ValueError(_NOT_ONE)
    if "{" in given.netloc or "}" in given.netloc:
        raise ValueError("names a part of the event in its host: an event must not choose the receiver")
    if "@" in given.netloc:
        raise ValueError("holds a user: write `headers.Authorization` instead")
    if given.path.startswith("//"):
        raise ValueError("has a path that begins with //, behind which a client looks for another host")
    if given.fragment or "#" in url:
        raise ValueError("holds a #, behind which nothing is sent")
    if given.scheme == "http" and not plain and not is_loopback(host):
        raise ValueError("is http, so anybody on the way may read along: use https, or set plain_http = true")
    target = (given.path or "/") + (f"?{given.query}" if given.query else "")
    return ReceiverAddress(given.scheme, host, port or (443 if given.scheme == "https" else 80), _parts(target))


_NOT_ONE: Final = 'is not an address such as "https://billing.internal/hooks/{type}"'


def _parts(target: str) -> tuple[tuple[str, str | None], ...]:
    found = []
    try:
        for literal, place, form, conversion in Formatter().parse(target):
            if place is not None and (place not in PLACES or form or conversion):
                raise ValueError(f"names a part of the event that there is not: use {', '.join(f'{{{one}}}' for one in PLACES)}")
            found.append((literal, place))
    except ValueError as error:
        if str(error).startswith("names"):
            raise
        raise ValueError("has a brace without its other one") from None
    return tuple(found)


def _segment(place: str, value: str | None) -> str:
    if not value:
        raise Unaddressed(f"the event has no {place}, which its URL names")
    if value in (".", ".."):
        raise Unaddressed(f"the event's {place} is dots alone, which in a URL mean another path")
    return quote(value, safe="", errors="replace")
