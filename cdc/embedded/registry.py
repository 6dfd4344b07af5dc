"""A real schema registry: Apicurio in a JVM of its own, which keeps its schemas in memory. For tests of the event sinks."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Final

from cdc.embedded import jars
from cdc.embedded.java import java
from cdc.embedded.processes import free_port, listens, spawn, wait_until
from cdc.embedded.server import EmbeddedServer

_PATH: Final = "/apis/ccompat/v7"
"""Where it answers as other registries do."""


class SchemaRegistry(EmbeddedServer):
    """One registry, on the loopback interface only."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{_PATH}"

    def start(self) -> None:
        (archive,) = jars.fetch("registry")
        program = self.folder / "program"
        if not program.is_dir():
            with tarfile.open(archive) as packed:
                packed.extractall(program, filter="data")
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self.port),
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": str(free_port()),
        }
        options = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        given = [f"-D{name}={value}" for name, value in settings.items()]
        argv: list[str | Path] = [java(), *options, *given, "-jar", program / "quarkus-run.jar"]
        self._process = spawn(argv, log=self.log, cwd=self.folder)
        wait_until(lambda: listens(self.port), self._process, what="the schema registry", log=self.log)
