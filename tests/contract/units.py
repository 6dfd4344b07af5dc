"""What of each kind of store can be lost or restored by itself, and how that is done to the real one."""

from __future__ import annotations

import re
import shutil
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import duckdb
import psycopg

from sinks.cache.lane import Lane
from sinks.memory import STORES
from sinks.memoryunits import Store
from tests.rediscluster import Node, RedisCluster

PUT_BACK_WITHIN_S: Final = 60.0


class Units(Protocol):
    """One lab's place in its store. Names are the kind's own."""

    def there(self) -> list[str]:
        """The names of those that there are now."""
        ...

    def of(self, topic: str | None) -> str:
        """The unit that holds this topic's rows; None: the ledger."""
        ...

    def lose(self, *names: str) -> None: ...

    def copy(self) -> Any:
        """All of them, as they are now."""
        ...

    def restore(self, copy: Any, *names: str) -> None:
        """Puts these back as the copy has them; one that it does not have is lost."""
        ...

    def close(self) -> None: ...


class MemoryUnits:
    def __init__(self, store: str) -> None:
        self._name = store

    @property
    def _store(self) -> Store:
        return STORES.setdefault(self._name, Store())

    def there(self) -> list[str]:
        return [unit or "ledger" for unit in self._store.units]

    def of(self, topic: str | None) -> str:
        return topic or "ledger"

    def lose(self, *names: str) -> None:
        self._store.lose(*(None if name == "ledger" else name for name in names))

    def copy(self) -> Any:
        return self._store.copy()

    def restore(self, copy: Any, *names: str) -> None:
        self._store.restore(copy, *(None if name == "ledger" else name for name in names))

    def close(self) -> None:
        STORES.pop(self._name, None)


_DUMP_ALL = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  found[#found + 1] = key
  found[#found + 1] = redis.call('DUMP', key)
end
return found
"""
"""Of one moment, as the server's own copies are."""


class RedisUnits:
    """A server is one unit: ledger and rows live and die together."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def there(self) -> list[str]:
        return ["server"] if self._client.dbsize() else []

    def of(self, topic: str | None) -> str:  # noqa: ARG002
        return "server"

    def lose(self, *names: str) -> None:
        if names:
            self._client.flushdb()

    def copy(self) -> Any:
        found = self._client.eval(_DUMP_ALL, 0)
        return dict(zip(found[::2], found[1::2], strict=True))

    def restore(self, copy: Any, *names: str) -> None:
        if names:
            with self._client.pipeline(transaction=True) as at_once:
                at_once.flushdb()
                for key, value in copy.items():
                    at_once.restore(key, 0, value)
                at_once.execute()

    def close(self) -> None:
        self._client.close()


class RedisLanes:
    """Each lane of a store on a cluster: a slot, whose keys come and go together."""

    def __init__(self, cluster: RedisCluster, lanes: int) -> None:
        self._cluster = cluster
        self._slots = {f"lane {number}": Lane(number, lanes).slot for number in range(lanes)}

    def there(self) -> list[str]:
        return [name for name in self._slots if self._keys(name)]

    def of(self, topic: str | None) -> str:
        """The lane that has come furthest with the topic."""
        return max(self._slots, key=lambda name: 0 if topic is None else self._progress(name, topic))

    def lose(self, *names: str) -> None:
        self.restore({}, *names)

    def copy(self) -> Any:
        return {name: {key: self._node(name).ask("DUMP", key) for key in self._keys(name)} for name in self._slots}

    def restore(self, copy: Any, *names: str) -> None:
        for name in names:
            with self._node(name).client() as client, client.pipeline(transaction=True) as at_once:
                for key in self._keys(name):
                    at_once.delete(key)
                for key, value in copy.get(name, {}).items():
                    at_once.restore(key, 0, value)
                at_once.execute()

    def _node(self, name: str) -> Node:
        return self._cluster.owner(self._slots[name])

    def _keys(self, name: str) -> list[bytes]:
        found: list[bytes] = self._node(name).ask("CLUSTER", "GETKEYSINSLOT", self._slots[name], 1_000_000)
        return found

    def _progress(self, name: str, topic: str) -> int:
        ledger = next((key for key in self._keys(name) if key.endswith(b":ledger")), b"none")
        return int(self._node(name).ask("HGET", ledger, f"at:{topic}") or 0)

    def close(self) -> None: ...


class OpenSearchUnits:
    """Each index, with its aliases and hidden documents; copies are the server's own snapshots."""

    def __init__(self, server: Any, store: str) -> None:
        self._server = server
        self._store = store
        self._repository = uuid.uuid4().hex[:8]
        self._made = False

    def there(self) -> list[str]:
        return sorted(index["index"] for index in self._server.request("GET", "/_cat/indices?format=json&expand_wildcards=all"))

    def of(self, topic: str | None) -> str:
        ledger = f".headwater-{self._store}"
        if topic is None:
            return ledger
        indices: Mapping[str, Any] = self._server.request("GET", "/_all/_mapping?expand_wildcards=all")
        for name, index in indices.items():
            if index["mappings"].get("_meta", {}).get("headwater", {}).get("table") == topic:
                return name
        raise LookupError(f"no index of {topic} among {sorted(indices)}")

    def lose(self, *names: str) -> None:
        for name in set(names) & set(self.there()):
            with suppress(ValueError):  # its owner has just removed it
                self._server.request("DELETE", f"/{name}")

    def copy(self) -> Any:
        if not self._made:
            place = str(self._server.repository / self._repository)
            self._server.request("PUT", f"/_snapshot/{self._repository}", {"type": "fs", "settings": {"location": place}})
            self._made = True
        shot, held = uuid.uuid4().hex[:8], self.there()
        body = {"indices": ",".join(held), "include_global_state": False}
        self._server.request("PUT", f"/_snapshot/{self._repository}/{shot}?wait_for_completion=true", body)
        return shot, held

    def restore(self, copy: Any, *names: str) -> None:
        shot, held = copy
        back = sorted(set(names) & set(held))
        body = {"indices": ",".join(back), "include_global_state": False}
        until = time.monotonic() + PUT_BACK_WITHIN_S
        while True:
            self.lose(*names)
            try:
                if back:
                    self._server.request("POST", f"/_snapshot/{self._repository}/{shot}/_restore?wait_for_completion=true", body)
                return
            except ValueError:  # a follower that lives has just made one of them again
                if time.monotonic() > until:
                    raise

    def close(self) -> None:
        if self._made:
            self._server.request("DELETE", f"/_snapshot/{self._repository}")


class WarehouseUnits:
    """Each table's folder, the ledger's among them."""

    def __init__(self, folder: Path, store: str) -> None:
        self._folder = folder
        self._store = store
        self._copies = folder.with_name(f"{folder.name}-copies")

    def there(self) -> list[str]:
        return sorted(str(path.parent.parent.relative_to(self._folder)) for path in self._folder.rglob("version-hint.text"))

    def of(self, topic: str | None) -> str:
        return f"_headwater/{self._store}" if topic is None else topic.replace(".", "/")

    def lose(self, *names: str) -> None:
        for name in names:
            if (self._folder / name).exists():  # at once: somebody may be writing there
                self._copies.mkdir(parents=True, exist_ok=True)
                (self._folder / name).rename(gone := self._copies / uuid.uuid4().hex)
                shutil.rmtree(gone)

    def copy(self) -> Any:
        copy = self._copies / uuid.uuid4().hex
        for name in self.there():
            shutil.copytree(self._folder / name, copy / name)
        return copy

    def restore(self, copy: Any, *names: str) -> None:
        for name in names:
            back = self._copies / uuid.uuid4().hex
            if (copy / name).exists():
                shutil.copytree(copy / name, back)
            self.lose(name)
            while back.exists():
                (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
                try:
                    back.rename(self._folder / name)
                except OSError:  # somebody has written there again
                    self.lose(name)

    def close(self) -> None:
        shutil.rmtree(self._copies, ignore_errors=True)


class SqlUnits:
    """The ledger's row, and each table. A table that comes back by itself is another one; a whole database comes back as it was."""

    def __init__(self, dsn: str, store: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._store = store
        self._copies = 0

    def there(self) -> list[str]:
        if self._one("select to_regclass('headwater_stores.marks')") is None:
            return []
        marks = self._all("select 'ledger' from headwater_stores.marks where store = %s", self._store)
        return sorted([*marks, *self._tables()])

    def of(self, topic: str | None) -> str:
        return topic or "ledger"

    def lose(self, *names: str) -> None:
        for name in set(names) & set(self.there()):
            if name == "ledger":
                self._connection.execute("delete from headwater_stores.marks where store = %s", [self._store])
            else:
                self._connection.execute(f"drop table {self._tables()[name]}")
        if "ledger" in names and not self.there():
            self._connection.execute("delete from headwater_stores.tables where store = %s", [self._store])

    def copy(self) -> Any:
        self._copies += 1
        schema = f"copies_{self._copies}"
        self._connection.execute(f"create schema {schema}")
        tables = self._tables() if self.there() else {}
        for number, name in enumerate(tables.values()):
            self._connection.execute(f"create table {schema}.t{number} (like {name} including all)")
            self._connection.execute(f"insert into {schema}.t{number} select * from {name}")
        for kept in ("marks", "tables") if self.there() else ():
            self._connection.execute(
                f"create table {schema}.{kept} as select * from headwater_stores.{kept} where store = %s", [self._store]
            )
        return {
            topic: (f"{schema}.t{number}", name, self._comment(name)) for number, (topic, name) in enumerate(tables.items())
        } | {"ledger": schema}

    def restore(self, copy: Any, *names: str) -> None:
        whole = set(names) >= {*self.there(), *copy} - (
            {"ledger"} if not self._one(f"select to_regclass('{copy['ledger']}.marks')") else set()
        )
        self.lose(*names)
        for name in set(names) & set(copy) - {"ledger"}:
            kept, place, comment = copy[name]
            self._connection.execute(f"create table {place} (like {kept} including all)")
            self._connection.execute(f"insert into {place} select * from {kept}")
            self._connection.execute(f"comment on table {place} is '{comment}'")
        if whole:  # of one moment, under the same OIDs, as the server's own copies are
            self._connection.execute("delete from headwater_stores.tables where store = %s", [self._store])
            self._connection.execute(f"insert into headwater_stores.tables select * from {copy['ledger']}.tables")
            self._connection.execute(
                "update headwater_stores.tables set table_number = to_regclass(format('%%I.%%I', table_schema, table_name))::oid::bigint"
                " where store = %s and table_number is not null",
                [self._store],
            )
        if "ledger" in names:
            self._connection.execute(f"insert into headwater_stores.marks select * from {copy['ledger']}.marks")

    def close(self) -> None:
        self._connection.close()

    def _tables(self) -> dict[str, str]:
        found = self._connection.execute(
            "select topic, format('%%I.%%I', table_schema, table_name) from headwater_stores.tables where store = %s"
            " and to_regclass(format('%%I.%%I', table_schema, table_name)) is not null",
            [self._store],
        )
        return dict(found.fetchall())

    def _comment(self, name: str) -> Any:
        return self._one("select obj_description(%s::regclass, 'pg_class')", name)

    def _all(self, query: str, *values: str) -> list[Any]:
        return [row[0] for row in self._connection.execute(query, values).fetchall()]

    def _one(self, query: str, *values: str) -> Any:
        return self._all(query, *values)[0]


class DuckUnits:
    """As ``SqlUnits``, in a DuckDB file. A table that comes back by itself has no number, a whole file comes back as it was."""

    def __init__(self, path: Path, store: str) -> None:
        self._path = path
        self._store = store
        self._copies = 0

    def there(self) -> list[str]:
        marks = "select 'ledger' from headwater_stores.marks where store = ?"
        return sorted([*(row[0] for row in self._ask(marks, self._store)), *self._tables()]) if self._begun() else []

    def of(self, topic: str | None) -> str:
        return topic or "ledger"

    def lose(self, *names: str) -> None:
        for name in set(names) & set(self.there()):
            if name == "ledger":
                self._ask("delete from headwater_stores.marks where store = ?", self._store)
            else:
                self._ask(f"drop table {self._tables()[name]}")
        if "ledger" in names and self._begun() and not self.there():
            self._ask("delete from headwater_stores.tables where store = ?", self._store)

    def copy(self) -> Any:
        self._copies += 1
        copy = self._path.with_suffix(f".copy{self._copies}")
        if self._path.exists():
            shutil.copy(self._path, copy)
        return copy

    def restore(self, copy: Any, *names: str) -> None:
        there = DuckUnits(copy, self._store).there()
        if set(names) >= {*self.there(), *there}:
            self._path.unlink(missing_ok=True)
            if copy.exists():
                shutil.copy(copy, self._path)
            return
        self.lose(*names)
        for name in set(names) & set(there):
            if name == "ledger":
                self._ask("insert into headwater_stores.marks select * from before.headwater_stores.marks", before=copy)
            else:
                table = DuckUnits(copy, self._store)._tables()[name]
                self._ask(f"create table {table} as select * from before.{table}", before=copy)
                [(sign,)] = DuckUnits(copy, self._store)._ask(
                    "select comment from duckdb_tables() where (schema_name || '.' || table_name) = ?", name
                )
                unnumbered = re.sub(', "number": [0-9]+', "", sign)
                self._ask(f"comment on table {table} is '{unnumbered}'")

    def close(self) -> None: ...

    def _begun(self) -> bool:
        return bool(self._ask("select 1 from duckdb_tables() where schema_name = 'headwater_stores'"))

    def _tables(self) -> dict[str, str]:
        found = self._ask(
            """select l.topic, l.table_schema, l.table_name from headwater_stores.tables l
            join duckdb_tables() t on (t.schema_name, t.table_name) = (l.table_schema, l.table_name) where l.store = ?""",
            self._store,
        )
        return {topic: f'"{schema}"."{name}"' for topic, schema, name in found}

    def _ask(self, statement: str, *values: str, before: Path | None = None) -> list[Any]:
        if not self._path.exists():
            return []
        with duckdb.connect(str(self._path)) as connection:
            if before is not None:
                connection.execute(f"attach '{before}' as before (read_only)")
            found: list[Any] = connection.execute(statement, list(values)).fetchall()
            return found


class NoUnits:
    """What was printed is nobody's to lose."""

    def there(self) -> list[str]:
        return []

    def of(self, topic: str | None) -> str:
        raise LookupError(topic)

    def lose(self, *names: str) -> None: ...

    def copy(self) -> Any: ...

    def restore(self, copy: Any, *names: str) -> None: ...

    def close(self) -> None: ...
