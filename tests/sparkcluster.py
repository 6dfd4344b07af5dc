"""A Spark cluster of its own: a standalone master and workers from pyspark's jars, on the loopback interface, which know one secret."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pyspark

from cdc.demo.configuration import Value
from cdc.embedded.archives import archive_path, options_using
from cdc.embedded.java import java, java_home
from cdc.embedded.processes import free_port, kill_group, spawn, wait_until

HEAP_MB: Final = 128
EXECUTOR_MB: Final = 512
"""Spark starts none with less."""
_CLASSES: Final = "org.apache.spark.deploy"
_LOG: Final = """status = error
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
logger.worker.name = org.apache.spark.deploy.worker.Worker
logger.worker.level = info
logger.master.name = org.apache.spark.deploy.master.Master
logger.master.level = info
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
"""


class SparkCluster:
    """Over one folder. ``cores``: of each worker; a session gets a process for each of them."""

    def __init__(self, folder: Path, cores: int = 1) -> None:
        self.folder = folder.absolute()
        self.cores = cores
        self.port = free_port()
        self.secret_file = self.folder / "secret"
        self._secret = secrets.token_hex(16)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @property
    def sections(self) -> dict[str, dict[str, Value]]:
        """``[spark]`` and ``[spark.settings]`` of a cdc.toml."""
        java_options = " ".join(_java_options())
        return {
            "spark": {
                "master": self.url,
                "secret_file": str(self.secret_file),
                "driver_memory": "512m",
                "java_options": java_options,
            },
            "spark.settings": {
                '"spark.executor.memory"': f"{EXECUTOR_MB}m",
                '"spark.executor.cores"': 1,
                '"spark.executor.extraJavaOptions"': java_options,
            },
        }

    def start(self, workers: int) -> None:
        """Raises EmbeddedError when it does not come up."""
        self.folder.mkdir(parents=True)
        (self.folder / "log4j2.properties").write_text(_LOG, encoding="utf-8")
        self.secret_file.touch(0o600)
        self.secret_file.write_text(self._secret, encoding="utf-8")
        ports = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(free_port())]
        self._started("master", "master.Master", *ports)
        # A worker waits for its master, so all of them start at the same time.
        self.workers = [self._worker(number) for number in range(workers)]
        for number, worker in enumerate(self.workers):
            log = self._log(f"worker{number}")
            wait_until(partial(_says, log, "Successfully registered"), worker, what="Spark's worker", log=log)

    def _worker(self, number: int) -> subprocess.Popen[bytes]:
        memory, folder = f"{self.cores * EXECUTOR_MB}M", self.folder / f"work{number}"
        room = ["--cores", str(self.cores), "--memory", memory, "--work-dir", str(folder)]
        where = ["--host", "127.0.0.1", "--webui-port", str(free_port()), self.url]
        return self._started(f"worker{number}", "worker.Worker", *room, *where)

    def executors(self, worker: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """The processes of a worker that work for a session."""
        return [one for one in self.all_of(worker) if "CoarseGrainedExecutorBackend" in command(one)]

    def all_of(self, worker: subprocess.Popen[bytes]) -> list[psutil.Process]:
        """The processes that a worker has started, and theirs."""
        try:
            return psutil.Process(worker.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def said(self) -> str:
        """By the processes that worked for sessions."""
        return "".join(path.read_text(errors="replace") for path in self.folder.glob("work*/*/*/std*"))

    def close(self) -> None:
        for one in self._processes:
            children = psutil.Process(one.pid).children(recursive=True) if one.poll() is None else []
            kill_group(one)
            for child in children:
                if child.is_running():
                    child.kill()
            psutil.wait_procs(children)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _started(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        options = [
            *options_using(archive_path("spark", _class_path())),
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Xmx{HEAP_MB}m",
        ]
        told = {
            "spark.authenticate": "true",
            "spark.network.crypto.enabled": "true",
            "spark.network.crypto.saslFallback": "false",
            "spark.ui.killEnabled": "false",
            "spark.master.rest.enabled": "false",
            "log4j2.configurationFile": str(self.folder / "log4j2.properties"),
        }
        argv = [
            java(),
            *options,
            *(f"-D{key}={value}" for key, value in told.items()),
            "-cp",
            _class_path(),
            f"{_CLASSES}.{program}",
            *arguments,
        ]
        environment = {
            "_SPARK_AUTH_SECRET": self._secret,
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SCALA_VERSION": "2.13",
            # What belongs to the tests' own folders is no concern of an executor.
            "PYTHONPATH": "",
        }
        process = spawn(argv, log=self._log(name), env=environment, cwd=self.folder)
        self._processes.append(process)
        return process


def command(process: psutil.Process) -> str:
    """Its command line; empty once it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@contextmanager
def spark_cluster(folder: Path, workers: int, cores: int = 1) -> Iterator[SparkCluster]:
    made = SparkCluster(folder, cores)
    try:
        made.start(workers)
        yield made
    finally:
        made.close()


def _java_options() -> list[str]:
    """All of its JVMs live for seconds."""
    return [*options_using(archive_path("spark", _class_path())), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms32m"]


def _says(log: Path, sign: str) -> bool:
    return sign in log.read_text(errors="replace")


def _home() -> Path:
    return Path(pyspark.__file__).parent


def _class_path() -> str:
    return f"{_home() / 'jars'}{os.sep}*"
