"""The machine's trusted certificates as a Java trust store.

A wheel's Java brings certificates of its own and so does not know a company's; Python's client does, and so shall Java's.
The file is a JKS (format described at the top of OpenJDK's JavaKeyStore.java), written here because the runtime has no keytool.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
from pathlib import Path

from cdc.embedded.cache import write_whole

_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
PASSWORD = "changeit"
"""Java's customary one: it protects nothing but the file's integrity, as everything in it is public."""


def system_trust_options(path: Path) -> list[str]:
    """Writes the trust store to ``path`` and returns the JVM options that use it; no options when the machine has no bundle."""
    bundle = ssl.get_default_verify_paths().cafile
    if bundle is None or not os.access(bundle, os.R_OK):
        return []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(bundle)
    certificates = context.get_ca_certs(binary_form=True)
    if not certificates:
        return []
    write_whole(path, java_key_store(certificates))
    return [
        f"-Djavax.net.ssl.trustStore={path}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={PASSWORD}",
    ]


def java_key_store(certificates: list[bytes]) -> bytes:
    """A JKS file that trusts these DER certificates."""
    parts = [struct.pack(">III", _MAGIC, _VERSION, len(certificates))]
    for number, certificate in enumerate(certificates):
        parts.append(struct.pack(">I", _TRUSTED_CERTIFICATE) + _utf(f"ca{number}") + struct.pack(">Q", 0))
        parts.append(_utf("X.509") + struct.pack(">I", len(certificate)) + certificate)
    body = b"".join(parts)
    salted = PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(salted).digest()


def _utf(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">H", len(raw)) + raw
