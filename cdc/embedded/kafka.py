"""An embedded Kafka 4.3: one broker that is its own controller, from locked jars on the wheel's Java."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cdc.embedded import EmbeddedError, jars
from cdc.embedded.archives import archive_path, options_using
from cdc.embedded.java import java
from cdc.embedded.processes import free_port, spawn, wait_until
from cdc.embedded.server import EmbeddedServer

CLUSTER: Final = "aGVhZHdhdGVyLWthZmthLQ"
"""The id that the folder is formatted with; Kafka wants 16 bytes of base64."""
LISTENER: Final = "CLIENTS"
"""By this name ``settings`` say more of how clients are let in."""
_STARTED: Final = b"Kafka Server started"

_ALONE: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "auto.create.topics.enable": "false",
}
_LOG: Final = """rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
logger.started.name = kafka.server.KafkaRaftServer
logger.started.level = INFO
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
"""


class Kafka(EmbeddedServer):
    """One broker over one folder, which listens on the loopback interface only."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        """``settings``: lines of ``server.properties``, over ours."""
        super().__init__(folder)
        self.port = free_port()
        self.controller_port = free_port()
        self.settings = dict(settings or {})

    @property
    def servers(self) -> str:
        """For a client's ``bootstrap.servers``."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Raises EmbeddedError when the broker does not come up. Fetches the jars when they are missing."""
        if self.running:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        class_path = os.pathsep.join(str(path) for path in jars.fetch(jars.KAFKA))
        settings = self._write_settings()
        self._format(class_path, settings)
        with self.log.open("wb"):
            pass
        self._process = spawn([*self._java(class_path), "kafka.Kafka", settings], log=self.log, cwd=self.folder)
        wait_until(lambda: _STARTED in self.log.read_bytes(), self._process, what="Kafka", log=self.log)

    def _java(self, class_path: str) -> list[str | Path]:
        options = [*options_using(archive_path("kafka", class_path)), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return [java(), "-Xmx192m", *options, logging, "-cp", class_path]

    def _write_settings(self) -> Path:
        own = {
            **_ALONE,
            "listeners": f"{LISTENER}://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"{LISTENER}://127.0.0.1:{self.port}",
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{LISTENER}:PLAINTEXT",
            "inter.broker.listener.name": LISTENER,
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "log.dirs": str(self.folder / "data"),
            **self.settings,
        }
        (self.folder / "log4j2.properties").write_text(_LOG, encoding="utf-8")
        path = self.folder / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in own.items()), encoding="utf-8")
        return path

    def _format(self, class_path: str, settings: Path) -> None:
        if (self.folder / "data" / "meta.properties").is_file():
            return
        argv = [*self._java(class_path), "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", settings]
        with (self.folder / "format.log").open("wb") as said:
            done = subprocess.run(list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False)
        if done.returncode:
            raise EmbeddedError("Kafka's folder could not be formatted", hint=f"see {self.folder / 'format.log'}")
