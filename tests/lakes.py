"""Warehouses whose catalog is beside their files: in Postgres, or behind Iceberg's REST protocol (``restcatalog``), on this machine or on an S3 server."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import psycopg

from cdc.embedded import passfile
from cdc.embedded.s3 import CREDENTIAL, IDENTITY, S3
from sinks.warehouse.connection import serving
from sinks.warehouse.options import Options
from tests.restcatalog import TOKEN, RestCatalog

BUCKET = "lake"


class Lake:
    """One warehouse of its own. ``options``: those of a store there, but for its kind and path."""

    def __init__(self, spark: Any, dsn: str, folder: Path, *, s3: S3 | None, rest: bool) -> None:
        self.dsn = dsn
        prefix = uuid.uuid4().hex[:8]
        self.files = folder if s3 is None else s3.folder / "data" / BUCKET / prefix
        """What is in the warehouse, as files of this machine."""
        self._rest: RestCatalog | None = None
        sql: dict[str, Any] = {"catalog": "sql", "uri": dsn, "password": passfile.password(), "catalog_name": f"c{prefix}"}
        stored: dict[str, Any] = {}
        if s3 is not None:
            self.files.parent.mkdir(exist_ok=True)
            keys = {"s3_access_key": IDENTITY, "s3_secret_key": CREDENTIAL}
            stored = {"warehouse": f"s3://{BUCKET}/{prefix}", "s3_endpoint": f"http://127.0.0.1:{s3.port}", **keys}
        self.options = {**sql, **stored}
        self.name: str = sql["catalog_name"]
        if rest:
            made = serving(Options(kind="iceberg", path=folder, **self.options))
            given = spark._jvm.java.util.HashMap()
            for key, value in made.properties.items():
                given.put(key, value)
            kept = spark._jvm.org.apache.iceberg.CatalogUtil.loadCatalog(
                made.implementation, made.name, given, spark._jsc.hadoopConfiguration()
            )
            self._rest = RestCatalog(spark._jvm, kept)
            self.options = {"catalog": "rest", "uri": self._rest.url, "token": TOKEN, **stored}

    def tables(self) -> list[str]:
        with psycopg.connect(self.dsn) as connection:
            if connection.execute("select to_regclass('iceberg_tables')").fetchone() == (None,):
                return []
            asked = "select table_namespace || '.' || table_name from iceberg_tables where catalog_name = %s order by 1"
            return [name for (name,) in connection.execute(asked, [self.name]).fetchall()]

    def close(self) -> None:
        if self._rest is not None:
            self._rest.close()


class LakeUnits:
    """Each table: its row in the catalog and its files."""

    def __init__(self, lake: Lake, store: str, copies: Path) -> None:
        self._lake = lake
        self._store = store
        self._copies = copies

    def there(self) -> list[str]:
        return self._lake.tables()

    def of(self, topic: str | None) -> str:
        return f"_headwater.{self._store}" if topic is None else topic

    def lose(self, *names: str) -> None:
        for name in set(names) & set(self.there()):
            self._run("delete from iceberg_tables where catalog_name = %s and table_namespace = %s and table_name = %s", name)
            shutil.rmtree(self._folder(name), ignore_errors=True)

    def copy(self) -> Any:
        copy = self._copies / uuid.uuid4().hex
        rows = {}
        for name in self.there():
            shutil.copytree(self._folder(name), copy / name)
            asked = (
                "select metadata_location from iceberg_tables where catalog_name = %s and table_namespace = %s and table_name = %s"
            )
            rows[name] = self._run(asked, name)[0][0]
        return copy, rows

    def restore(self, copy: Any, *names: str) -> None:
        folder, rows = copy
        for name in names:
            self.lose(name)
            if name in rows:
                shutil.copytree(folder / name, self._folder(name))
                self._run(
                    "insert into iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
                    f" values (%s, %s, %s, '{rows[name]}', 'TABLE')",
                    name,
                )

    def close(self) -> None:
        self._lake.close()
        shutil.rmtree(self._copies, ignore_errors=True)

    def _folder(self, name: str) -> Path:
        return self._lake.files.joinpath(*name.split("."))

    def _run(self, statement: str, name: str) -> list[Any]:
        namespace, _, table = name.rpartition(".")
        with psycopg.connect(self._lake.dsn, autocommit=True) as connection:
            found = connection.execute(statement, [self._lake.name, namespace, table])
            return found.fetchall() if found.description else []
