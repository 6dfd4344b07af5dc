"""Values that are compared by the JSON that they are written as."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from zlib import crc32


class JsonValue:
    """To be derived from by frozen dataclasses with ``eq=False``.

    Asked for with every batch, mostly of an equal value that is the same object; where it is not, one text is compared and not every part.
    """

    @cached_property
    @abstractmethod
    def _json(self) -> str: ...

    def to_json(self) -> str:
        return self._json

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and self._json == other._json)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Asked for several times with every batch. Not Python's hash of a text: what is pickled hashes alike elsewhere.
        return crc32(self._json.encode())
