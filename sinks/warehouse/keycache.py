"""Keys of data files in memory, so that the next commit finds the rows that it replaces without reading them again."""

from __future__ import annotations

from collections import OrderedDict

from sinks.warehouse.keys import FileKeys, KeyPlan


class KeyCache:
    """Keys of data files (which never change) by file and key columns; the least recently used go first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._keys: OrderedDict[tuple[str, KeyPlan], FileKeys] = OrderedDict()

    def get(self, path: str, plan: KeyPlan) -> FileKeys | None:
        found = self._keys.get((path, plan))
        if found is not None:
            self._keys.move_to_end((path, plan))
        return found

    def clear(self) -> None:
        self._keys.clear()
        self._bytes = 0

    def put(self, path: str, plan: KeyPlan, keys: FileKeys) -> None:
        if keys.bytes > self._limit_bytes:
            return
        replaced = self._keys.pop((path, plan), None)
        self._bytes += keys.bytes - (replaced.bytes if replaced else 0)
        self._keys[path, plan] = keys
        while self._bytes > self._limit_bytes:
            self._bytes -= self._keys.popitem(last=False)[1].bytes
