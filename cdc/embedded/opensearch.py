"""An embedded single-node OpenSearch 3.8, from locked jars on the wheel's Java."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import re
import socket
import tempfile
from pathlib import Path
from typing import Any, Final

from cdc.embedded import EmbeddedError, jars
from cdc.embedded.archives import archive_path, options_making, options_using
from cdc.embedded.cache import write_whole
from cdc.embedded.java import java
from cdc.embedded.processes import free_port, spawn, wait_until
from cdc.embedded.server import EmbeddedServer

_RUNNER = "org.codelibs.opensearch.runner.OpenSearchRunner"

# The runner takes no other port, and when one is taken it silently goes on to the next: its output names the one that it got.
_PORTS = range(9201, 9300)
_BOUND = re.compile(rb"AbstractHttpServerTransport\] publish_address \{127\.0\.0\.1:(\d+)\}")

_NODE = """network.host: 127.0.0.1
transport.port: {transport_port}
cluster.routing.allocation.disk.threshold_enabled: false
path.repo: ["{repository}"]
"""

_QUICK: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Starts and stays small on a busy machine; indexes several times slower once warm."""
_QUICK_NODE: Final = "indices.breaker.total.use_real_memory: false\n"
"""By default a node counts its garbage as memory in use and turns requests away for it; only G1 is then told to collect it."""
_PRODUCTION: Final = ("-XX:+UseG1GC",)
PRODUCTION_HEAP_MB: Final = 1024


class OpenSearch(EmbeddedServer):
    """One node over one folder. No TLS and no users: loopback only."""

    def __init__(self, folder: Path, *, heap_mb: int = 256, preferred_port: int | None = None, production: bool = False) -> None:
        """``preferred_port``: taken when it is free (from 9201 to 9299; the runner knows no others).

        ``production``: the JVM's flags are those of a node in production, with at least ``PRODUCTION_HEAP_MB``: for benchmarks.
        """
        super().__init__(folder)
        self._preferred_port = preferred_port
        self.port = 0
        """0 until the node is ready; then it stays the same over restarts."""
        self.heap_mb = max(heap_mb, PRODUCTION_HEAP_MB) if production else heap_mb
        self.jvm_options = _PRODUCTION if production else _QUICK
        self._node_settings = "" if production else _QUICK_NODE
        self._archive_options: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Starts the process and returns at once; ``wait_ready`` waits for it. Fetches the jars when they are missing."""
        if self.running:
            return
        class_path = _class_path()
        self._write_node_settings()
        argv: list[str | Path] = [
            java(),
            f"-Xms{self.heap_mb}m",
            f"-Xmx{self.heap_mb}m",
            *self.jvm_options,
        ]
        argv += [
            *(self._archive_options or options_using(archive_path("opensearch", class_path))),
            "-Djava.locale.providers=CLDR,SPI",
        ]
        argv += ["-cp", class_path, _RUNNER, "-basePath", self.folder, "-numOfNode", "1"]
        argv += ["-clusterName", self._cluster, "-baseHttpPort", str((self.port or self._preferred_port or _free_port()) - 1)]
        with self.log.open("wb"):
            pass
        self._process = spawn(argv, log=self.log, cwd=self.folder)

    def wait_ready(self, timeout_s: float = 120) -> None:
        """Returns when every primary shard is up. Raises EmbeddedError when the node does not come up."""
        if self._process is None:
            raise EmbeddedError("this OpenSearch was never started", hint="start()")
        wait_until(self._is_ready, self._process, what="OpenSearch", log=self.log, timeout_s=timeout_s)

    def start(self) -> None:
        """Raises EmbeddedError when the node does not come up, or (a restart) no longer gets its port."""
        self.launch()
        self.wait_ready()

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """One JSON request to the node; for set-up and checks. Raises OSError when it is not reachable, ValueError on a status >= 400."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status >= 400:
            raise ValueError(f"{method} {path} answered {response.status}")
        return json.loads(answer) if answer else None

    @property
    def repository(self) -> Path:
        """Where snapshot repositories of type ``fs`` may lie."""
        return self.folder / "repository"

    @property
    def _cluster(self) -> str:
        # Made from the folder, so that another folder's node on our port is not taken for ours.
        return "headwater-" + hashlib.sha256(str(self.folder).encode()).hexdigest()[:12]

    def _is_ready(self) -> bool:
        bound = _BOUND.search(self.log.read_bytes())
        if bound is None:
            return False
        port = int(bound[1])
        if self.port not in (0, port):
            raise EmbeddedError(f"OpenSearch's port {self.port} was taken while it was down", hint="end whatever listens there")
        self.port = port
        try:
            health = self.request("GET", "/_cluster/health")
        except (OSError, ValueError, http.client.HTTPException):
            return False
        return health["cluster_name"] == self._cluster and health["status"] in ("yellow", "green")

    def _write_node_settings(self) -> None:
        config = self.folder / "node_1" / "config"
        config.mkdir(parents=True, exist_ok=True)
        (config / "opensearch.yml").write_text(
            _NODE.format(transport_port=free_port(), repository=self.repository) + self._node_settings, encoding="utf-8"
        )


def warm() -> bool:
    """Starts and stops a node once, so that the next one starts in half the time; False when that was done before."""
    archive = archive_path("opensearch", _class_path())
    if archive.is_file():
        return False
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="headwater-") as folder:
        made = Path(folder) / "new.jsa"
        node = OpenSearch(Path(folder) / "node")
        node._archive_options = options_making(made)
        node.start()
        node.request("PUT", "/warm", {"settings": {"number_of_replicas": 0}})
        node.request("PUT", "/warm/_doc/1?refresh=true", {"text": "warm"})
        node.request("GET", "/warm/_search")
        node.stop()
        if made.is_file():
            write_whole(archive, made.read_bytes())
    return True


def _class_path() -> str:
    return os.pathsep.join(str(path) for path in jars.fetch(jars.OPENSEARCH))


def _free_port() -> int:
    # At random, as several test runs of one machine may look at the same moment.
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise EmbeddedError(f"all ports from {_PORTS.start} to {_PORTS.stop - 1} are taken", hint="end whatever listens there")
