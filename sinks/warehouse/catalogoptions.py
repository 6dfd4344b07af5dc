"""The warehouse's part of ``cdc.toml`` that says which catalog knows its tables, and where their files lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from sinks.warehouse.signinoptions import SIGN_IN, SignInOptions

_S3: Final = "s3://"
_SQL: Final = ("postgresql://", "postgres://")
_REST: Final = ("https://", "http://")
_OF_S3: Final = ("s3_endpoint", "s3_region", "s3_access_key", "s3_secret_key")


class CatalogOptions(SignInOptions):
    """Without any of them the warehouse's folder is its own catalog."""

    plain_schemes: ClassVar[Mapping[str, str]] = {"http": "https"}

    catalog: Literal["hadoop", "sql", "rest"] = "hadoop"
    """Who says which version of a table is the newest: `hadoop`, the folder itself; `sql`, a table `iceberg_tables` in a Postgres database; `rest`, a server that
    speaks Iceberg's REST protocol ([warehouse.md](warehouse.md#catalogs))."""
    uri: SecretStr | None = None
    """The catalog's address: `postgresql://user@host:port/database` for `sql`, which may hold the password; `https://host/path` for `rest`."""
    catalog_name: str = Field("headwater", pattern=r"^[A-Za-z0-9_-]+$")
    """The catalog's name in the database of a `sql` catalog: whoever reads must give the same."""
    password: SecretStr | None = None
    """The password of a `sql` catalog, where `uri` has none."""
    warehouse: str | None = None
    """Where the tables lie, other than in `path`: `s3://bucket/folder`; with `rest` also the name under which the server knows the warehouse."""
    s3_endpoint: str | None = None
    """`https://host:port` of an object storage other than Amazon's."""
    s3_region: str = "us-east-1"
    """The bucket's region."""
    s3_access_key: SecretStr | None = None
    """The access key's id. Left out, both come as Amazon's own programs find them: from the environment, a profile, the machine's role."""
    s3_secret_key: SecretStr | None = None
    """The access key's secret."""

    @field_validator("uri", mode="before")
    @classmethod
    def _is_an_address(cls, uri: Any) -> Any:
        text = uri.get_secret_value() if isinstance(uri, SecretStr) else uri
        if isinstance(text, str) and not text.startswith((*_SQL, *_REST)):
            raise ValueError('is not an address such as "postgresql://user@host:5432/database" or "https://host/path"')
        return uri

    @field_validator("s3_endpoint")
    @classmethod
    def _is_an_endpoint(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and not endpoint.startswith(_REST):
            raise ValueError('is not an address such as "https://host:9000"')
        return endpoint

    @model_validator(mode="after")
    def _only_what_the_catalog_knows(self) -> Self:
        remote = self.warehouse is not None and self.warehouse.startswith(_S3)
        if self.catalog == "hadoop":
            if self.warehouse is not None:
                raise ValueError(
                    'catalog = "hadoop" keeps its tables in `path`: object storage has no atomic rename, by which alone a commit there is safe;'
                    ' set catalog = "sql" or "rest"'
                )
            self._refuse(("uri", "password", "token", "credential", *SIGN_IN, *_OF_S3))
            return self
        if self.uri is None:
            raise ValueError(f'catalog = "{self.catalog}" needs `uri`')
        if self.uri.get_secret_value().startswith(_SQL) != (self.catalog == "sql"):
            raise ValueError(f'`uri` is not an address of catalog = "{self.catalog}"')
        if self.catalog == "sql":
            self._refuse(("token", "credential", *SIGN_IN))
            if self.warehouse is not None and not remote:
                raise ValueError('`warehouse` is not an address such as "s3://bucket/folder"')
        else:
            self._refuse(("password", "catalog_name"))
            self._refuse_terms_without_credential()
        if not remote and self.catalog == "sql":
            self._refuse(_OF_S3)
        if (self.s3_access_key is None) != (self.s3_secret_key is None):
            raise ValueError("s3_access_key and s3_secret_key go together")
        return self

    def _refuse(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key in self.model_fields_set:
                raise ValueError(f'catalog = "{self.catalog}" with these tables knows no `{key}`')

    @property
    def server_urls(self) -> Mapping[str, SecretStr]:
        found = {} if self.uri is None or self.catalog != "rest" else {"uri": self.uri}
        return found if self.oauth2_server_uri is None else {**found, "oauth2_server_uri": SecretStr(self.oauth2_server_uri)}
