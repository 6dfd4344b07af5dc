"""A real S3 API over a folder: s3proxy in a JVM of its own. For tests of the log's tier."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cdc.embedded import jars
from cdc.embedded.java import java
from cdc.embedded.processes import free_port, listens, spawn, wait_until
from cdc.embedded.server import EmbeddedServer

IDENTITY: Final = "local-identity"
CREDENTIAL: Final = "local-credential"
_QUIET: Final = '<configuration><root level="OFF"/></configuration>'


class S3(EmbeddedServer):
    """Its buckets are the folders in ``folder/data``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a client of it needs; it knows nothing of S3's newer checksums."""
        return {
            "AWS_ACCESS_KEY_ID": IDENTITY,
            "AWS_SECRET_ACCESS_KEY": CREDENTIAL,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        }

    def url(self, path: str) -> str:
        """``path``: bucket and folder."""
        return f"s3://{path}?endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"

    def start(self) -> None:
        found = jars.fetch("s3")
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        (self.folder / "quiet.xml").write_text(_QUIET, encoding="utf-8")
        (self.folder / "s3proxy.conf").write_text(
            "s3proxy.authorization=aws-v2-or-v4\n"
            f"s3proxy.endpoint=http://127.0.0.1:{self.port}\n"
            f"s3proxy.identity={IDENTITY}\ns3proxy.credential={CREDENTIAL}\n"
            f"jclouds.provider=filesystem-nio2\njclouds.filesystem.basedir={data}\n",
            encoding="utf-8",
        )
        options = [
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Dlogback.configurationFile={self.folder / 'quiet.xml'}",
        ]
        path = ":".join(map(str, found))
        argv: list[str | Path] = [
            java(),
            *options,
            "-cp",
            path,
            "org.gaul.s3proxy.Main",
            "--properties",
            str(self.folder / "s3proxy.conf"),
        ]
        self._process = spawn(argv, log=self.log)
        wait_until(lambda: listens(self.port), self._process, what="s3proxy", log=self.log)
