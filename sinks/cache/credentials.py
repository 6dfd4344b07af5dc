"""Our credentials for the server, read again for each connection: those in a file may have been rotated since the last one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pydantic import SecretStr
from redis.connection import parse_url
from redis.credentials import CredentialProvider

from cdc.settings.secretfile import SecretFile


def url_parts(url: SecretStr) -> dict[str, Any]:
    """The URL's parts, as ``redis.ConnectionPool`` takes them. Raises ValueError for one that is not a Redis address."""
    parts: dict[str, Any] = parse_url(url.get_secret_value())  # type: ignore[no-untyped-call]
    return parts


class Credentials(CredentialProvider):
    """The credentials in a store's options. Those in the URL count before ``username`` and ``password``."""

    def __init__(self, url: SecretStr, username: str | None, password: SecretStr | None) -> None:
        """Raises ValueError for an invalid URL."""
        self._url, self._username, self._password = url, username, password
        self._given = url_parts(url)

    @property
    def needed(self) -> bool:
        return any(self._pair())

    @property
    def rotating(self) -> bool:
        """They stand in a file, and so may be right a moment later."""
        return isinstance(self._url, SecretFile) or isinstance(self._password, SecretFile)

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        with suppress(ValueError):  # a file that is being written may hold half a URL: then the last whole one counts
            self._given = url_parts(self._url)
        username, password = self._pair()
        return (username, password) if username else (password,)

    def _pair(self) -> tuple[str, str]:
        password = self._password.get_secret_value() if self._password is not None else ""
        return self._given.get("username") or self._username or "", self._given.get("password") or password
