"""The catalog of a warehouse, and what its tables' files are read and written with, as its options say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError

from cdc.errors import StoreError
from sinks.sparksession import spark_session
from sinks.warehouse.catalog import Catalog
from sinks.warehouse.catalogdatabase import CatalogDatabase
from sinks.warehouse.failures import java_name
from sinks.warehouse.foldercatalog import FolderCatalog
from sinks.warehouse.generationrows import GenerationRows
from sinks.warehouse.objectstorage import ObjectStorage
from sinks.warehouse.options import Options
from sinks.warehouse.servedcatalog import ServedCatalog, ServedGeneration, Serving
from sinks.warehouse.signinoptions import SIGN_IN
from sinks.warehouse.storage import LOCAL, Storage

_JDBC: Final = "org.apache.iceberg.jdbc.JdbcCatalog"
_REST: Final = "org.apache.iceberg.rest.RESTCatalog"
_REFUSED: Final = frozenset({"NotAuthorizedException", "ForbiddenException", "BadRequestException"})
_UNSIGNED: Final = {"NotAuthorizedException": "the catalog's server asks who comes: set token_file or credential_file"}
_CONNECT_S: Final = 10
_ANSWER_S: Final = 60
"""A catalog, or a token endpoint, that is silent for so long is taken for gone."""


def connect(store: str, options: Options, aside: Path, generation: ServedGeneration | None = None) -> Catalog:
    """``options``: a generation's own (``own_options``). ``aside``: a folder in the same file system, whose content does not count. ``generation``: of a catalog
    that knows which one is live."""
    spark = spark_session(store)
    jvm, hadoop = spark._jvm, spark._jsc.hadoopConfiguration()
    if options.catalog == "hadoop":
        return FolderCatalog(jvm, hadoop, options.path, aside)
    with _signing_in(store, options):
        return ServedCatalog(jvm, hadoop, serving(options), generation)


@contextmanager
def _signing_in(store: str, options: Options) -> Iterator[None]:
    """What a server says of a secret, by the secret's name."""
    try:
        yield
    except StoreError as error:
        given = [key for key in ("token", "credential") if getattr(options, key) is not None]
        if not isinstance(error.__cause__, Py4JJavaError) or (name := java_name(error.__cause__)) not in _REFUSED:
            raise
        if not given:
            raise StoreError(str(error), retryable=False, hint=_UNSIGNED.get(name)) from None
        further = "".join(f", {key}" for key in SIGN_IN if getattr(options, key) is not None)
        raise StoreError(
            f"store {store}: the catalog's server, or its token endpoint, refuses {given[-1]}",
            retryable=False,
            hint=f"see to stores.{store}.{given[-1]}{further}, and to what that account may do there",
        ) from None


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
    given = {
        "uri": options.uri.get_secret_value(),
        "rest.client.connection-timeout-ms": str(_CONNECT_S * 1000),
        "rest.client.socket-timeout-ms": str(_ANSWER_S * 1000),
    }
    if options.token is not None:
        given["token"] = options.token.get_secret_value()
    if options.credential is not None:
        given["credential"] = options.credential.get_secret_value()
        said = {"scope": options.scope, "audience": options.audience, "resource": options.resource}
        given |= {key: value for key, value in said.items() if value is not None}
    if options.oauth2_server_uri is not None:
        # Identity providers seldom exchange a token for a younger one: each is asked for with the credential.
        given |= {"oauth2-server-uri": options.oauth2_server_uri, "rest.auth.type": "oauth2", "token-exchange-enabled": "false"}
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
