"""The catalog of a warehouse, and what its tables' files are read and written with, as its options say."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from sinks.sparksession import spark_session
from sinks.warehouse.catalog import Catalog
from sinks.warehouse.catalogdatabase import CatalogDatabase
from sinks.warehouse.foldercatalog import FolderCatalog
from sinks.warehouse.generationrows import GenerationRows
from sinks.warehouse.objectstorage import ObjectStorage
from sinks.warehouse.options import Options
from sinks.warehouse.servedcatalog import ServedCatalog, ServedGeneration, Serving
from sinks.warehouse.storage import LOCAL, Storage

_JDBC: Final = "org.apache.iceberg.jdbc.JdbcCatalog"
_REST: Final = "org.apache.iceberg.rest.RESTCatalog"
_CONNECT_S: Final = 10
_ANSWER_S: Final = 60
"""A database that is silent for so long is taken for gone."""


def connect(store: str, options: Options, aside: Path, generation: ServedGeneration | None = None) -> Catalog:
    """``options``: a generation's own (``own_options``). ``aside``: a folder in the same file system, whose content does not count. ``generation``: of a catalog
    that knows which one is live."""
    spark = spark_session(store)
    jvm, hadoop = spark._jvm, spark._jsc.hadoopConfiguration()
    if options.catalog == "hadoop":
        return FolderCatalog(jvm, hadoop, options.path, aside)
    return ServedCatalog(jvm, hadoop, serving(options), generation)


def generation_rows(store: str, options: Options) -> GenerationRows:
    """``options``: of a catalog in a database."""
    return GenerationRows(store, options.catalog_name, CatalogDatabase(spark_session(store)._jvm, _of_database(options)))


def serving(options: Options) -> Serving:
    """``options``: of a catalog beside the files. Pure."""
    sql = options.catalog == "sql"
    return Serving(
        _JDBC if sql else _REST,
        options.catalog_name,
        {**(_of_database(options) if sql else _of_server(options)), **_of_storage(options)},
        not sql,
        _Storages(options),
        options.namespace,
    )


def _of_database(options: Options) -> dict[str, str]:
    assert options.uri is not None
    address = urlsplit(options.uri.get_secret_value())
    password = options.password.get_secret_value() if options.password is not None else unquote(address.password or "")
    host = address.netloc.rpartition("@")[2]
    query = f"?{address.query}" if address.query else ""
    given = {
        "uri": f"jdbc:postgresql://{host}{address.path}{query}",
        "jdbc.schema-version": "V1",
        "jdbc.connectTimeout": str(_CONNECT_S),
        "jdbc.socketTimeout": str(_ANSWER_S),
        "jdbc.ApplicationName": "headwater",
    }
    if address.username:
        given["jdbc.user"] = unquote(address.username)
    if password:
        given["jdbc.password"] = password
    return given


def _of_server(options: Options) -> dict[str, str]:
    assert options.uri is not None
    given = {"uri": options.uri.get_secret_value()}
    if options.token is not None:
        given["token"] = options.token.get_secret_value()
    if options.credential is not None:
        given["credential"] = options.credential.get_secret_value()
    return given


def _of_storage(options: Options) -> dict[str, str]:
    where = options.warehouse
    given = {"warehouse": where or str(options.path.absolute())}
    if where is None or not where.startswith("s3://"):
        return given
    given |= {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "client.region": options.s3_region,
        "http-client.type": "urlconnection",
    }
    if options.s3_endpoint is not None:
        given |= {"s3.endpoint": options.s3_endpoint, "s3.path-style-access": "true"}
    if options.s3_access_key is not None and options.s3_secret_key is not None:
        given |= {
            "s3.access-key-id": options.s3_access_key.get_secret_value(),
            "s3.secret-access-key": options.s3_secret_key.get_secret_value(),
        }
    return given


class _Storages:
    """What a location of the warehouse is read and written with."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._remote: ObjectStorage | None = None

    def __call__(self, location: str) -> Storage:
        if "://" not in location:
            return LOCAL
        if self._remote is None:
            self._remote = ObjectStorage(self._options)
        return self._remote
