"""The certificate that the HTTP port shows, also after its files were renewed."""

from __future__ import annotations

import ssl
from pathlib import Path

import structlog

from cdc.errors import ConfigError

_log = structlog.get_logger("http")
_Stamps = tuple[tuple[int, int, int], ...]


class Certificate:
    """One thread only. Whoever is connected stays so; who connects next is shown what was read last."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises ConfigError when the files cannot be used."""
        self._files = certificate, key
        self._met = self._read = self._stamps()
        try:
            self.context = self._loaded()
        except OSError as error:
            raise ConfigError(
                f"http.tls_cert: cannot use {certificate}: {error.strerror or error}", hint="give PEM files"
            ) from None

    def look(self) -> None:
        """Takes renewed files in. To be called now and then: only what has not changed since the last call is taken, as there are two of them."""
        before, self._met = self._met, self._stamps()
        if self._met == self._read or self._met != before:
            return
        self._read = self._met
        try:
            self._loaded()  # first aside: what does not fit together must not come into use
            self.context.load_cert_chain(*self._files)
        except OSError as error:
            _log.error(
                f"http.tls_cert: cannot use {self._files[0]}, which was renewed: {error.strerror or error}; the former certificate stays in use"
            )
        else:
            _log.info("the port shows the renewed certificate from now on")

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self._files)
        return context

    def _stamps(self) -> _Stamps:
        """Equal as long as the files are the same; files that are not there have none."""
        return tuple(stamp for file in self._files if (stamp := _stamp(file)) is not None)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()  # of where a link leads: that is what certbot and Kubernetes change
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns
