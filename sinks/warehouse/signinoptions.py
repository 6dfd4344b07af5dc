"""The warehouse's part of ``cdc.toml`` that says how it signs in to a catalog's server."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from sinks.keptrows import KeptOptions

SIGN_IN: Final = ("oauth2_server_uri", "scope", "audience", "resource")
"""The options about the token that ``credential`` is for."""


class SignInOptions(KeptOptions):
    """Either a token, or what a server gives tokens for."""

    token: SecretStr | None = None
    """The bearer token of a `rest` catalog."""
    credential: SecretStr | None = None
    """`client:secret`, for which a `rest` catalog's server gives a token."""
    oauth2_server_uri: str | None = None
    """`https://host/path` of the token endpoint that `credential` is for, where the catalog's server has none itself, such as an identity provider's."""
    scope: str | None = Field(None, min_length=1)
    """The scope of the token that `credential` is for. Left out: `catalog`."""
    audience: str | None = Field(None, min_length=1)
    """The audience of that token, where the token endpoint asks for one."""
    resource: str | None = Field(None, min_length=1)
    """The resource of that token, where the token endpoint asks for one."""

    @field_validator("oauth2_server_uri")
    @classmethod
    def _is_a_token_endpoint(cls, uri: str | None) -> str | None:
        if uri is not None and (
            not uri.startswith(("https://", "http://")) or not urlsplit(uri).hostname or urlsplit(uri).username is not None
        ):
            raise ValueError(
                'is not an address such as "https://login.internal/oauth2/token", without a user'
            )  # never shown: it may hold a secret
        return uri

    def _refuse_terms_without_credential(self) -> None:
        """Raises ValueError where something is said of a token that nothing asks for."""
        said = next((key for key in SIGN_IN if key in self.model_fields_set), None)
        if said is not None and self.credential is None:
            raise ValueError(f"`{said}` is about the token that `credential` is for; set credential_file")
