"""``${NAME}`` in a configuration's values: the environment's variable, put in so that it stays one value whatever it holds.

``$${`` is a plain ``${``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

_VARIABLE: Final = re.compile(r"(?P<escaped>\$\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}")
_UNKNOWN: Final = "\ufffc"
"""Stands for a variable's value where only its being one counts."""
_PAIR: Final = re.compile(r"(?P<key>[A-Za-z_]+\s*=\s*)(?P<value>'(?:[^'\\]|\\.)*'?|(?:[^\s\\]|\\.)*)", re.DOTALL)
"""One of libpq's ``name=value``: in quotes, or up to the next space."""
_BARE_QUOTE: Final = re.compile(r"(\\.)|'", re.DOTALL)
_SPECIAL: Final = re.compile(r"([\\'])")
_ESCAPED: Final = r"\\\1"
_CONNINFO: Final = re.compile(r"\s*[A-Za-z_]+\s*=")
_PASSWORD: Final = re.compile(r"(?:ssl)?password\s*=\s*", re.IGNORECASE)
_IN_QUERY: Final = re.compile(r"(?:^|&)(?:ssl)?password=([^&#]*)", re.IGNORECASE)


def interpolate(value: str, environment: Mapping[str, str], *, conninfo: bool = False) -> str:
    """The value with its variables replaced. Raises KeyError with the name that the environment lacks.

    conninfo: it is libpq's connection string. Inside a URL a variable's value is percent-encoded, inside ``name=value`` notation it is quoted.

    >>> interpolate("postgresql://cdc:${PW}@db/shop", {"PW": "a/b@c"})
    'postgresql://cdc:a%2Fb%40c@db/shop'
    >>> interpolate("host=db password=${PW} dbname=shop", {"PW": ""}, conninfo=True)
    "host=db password='' dbname=shop"
    """

    def plain(found: re.Match[str]) -> str:
        return "${" if found["escaped"] else environment[found["name"]]

    def in_url(found: re.Match[str]) -> str:
        text = plain(found)
        return quote(text, safe="") if not found["escaped"] and "://" in value[: found.start()] else text

    def pair(found: re.Match[str]) -> str:
        text = found["value"]
        if not _VARIABLE.search(text):
            return found[0]
        inner = text[1:].removesuffix("'") if text.startswith("'") else _BARE_QUOTE.sub(lambda one: one[1] or r"\'", text)
        return f"{found['key']}'{_VARIABLE.sub(lambda one: _SPECIAL.sub(_ESCAPED, plain(one)), inner)}'"

    if conninfo and _CONNINFO.match(value):
        return _PAIR.sub(pair, value)
    return _VARIABLE.sub(in_url, value)


def holds_secret(written: str, *, address: bool) -> bool:
    """Whether a secret stands in this text as it is, instead of as a variable. address: of a URL or connection string the password is the secret.

    >>> [holds_secret(text, address=True) for text in ("postgresql://cdc:${PW}@db/shop", "host=db password=s3cret", "postgresql://cdc@db/shop")]
    [False, True, False]
    """
    text = _VARIABLE.sub(lambda found: "" if found["escaped"] else _UNKNOWN, written)
    secrets = _passwords(text) if address else [text]
    return any(secret.replace(_UNKNOWN, "") for secret in secrets)


def _passwords(address: str) -> list[str]:
    if _CONNINFO.match(address):
        return [pair["value"].strip("'") for pair in _PAIR.finditer(address) if _PASSWORD.fullmatch(pair["key"])]
    _, _, rest = address.partition("://")
    user, _, _ = re.split("[/?#]", rest, maxsplit=1)[0].rpartition("@")
    return [user.partition(":")[2], *_IN_QUERY.findall(rest.partition("?")[2])]
