"""Real servers for the tests, each started once per xdist worker, when the first test asks for it.

Which worker gets what: under ``--dist loadgroup`` every test that uses ``spark`` runs in one worker, so that there is one Spark session,
and every other test that uses ``opensearch`` runs in one worker as well, and so for ``kafka``. A test that uses both goes with Spark, whose worker then starts
a node of its own, unless it names another group. Postgres and Valkey are cheap: each worker has them.

Isolation: a test's ``postgres`` is a database of its own, Valkey is emptied before each test, and OpenSearch's indices are deleted after.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import psycopg
import pytest
import redis

from cdc.embedded.kafka import Kafka
from cdc.embedded.opensearch import OpenSearch
from cdc.embedded.postgres import NEWEST, VOLATILE, Postgres, installations
from cdc.embedded.processes import free_port as _free_port
from cdc.embedded.s3 import S3
from cdc.embedded.valkey import Valkey
from tests.lakes import BUCKET, Lake
from tests.rediscluster import RedisCluster
from tests.securekafka import SecureKafka, secure_kafka

SEED_VARIABLE = "HEADWATER_SEED"
# Every process that the tests start inherits this mark, by which the last check finds those that are left.
_RUN_VARIABLE = "HEADWATER_TEST_RUN"
_WHOLE_VARIABLE = "HEADWATER_WHOLE_SUITE"
_VERSIONS = (15, 16, 17, 18)
# Of what every version of Postgres is asked, a run of the whole suite asks the newest all, and each older one a quarter.
_OLDER_SAMPLE = 4
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 8 * 2**30
_FILES = 20_000

pytest_plugins = ["tests.counters"]


# What runs where, with which seed


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        _work_in_memory()
        os.environ[_RUN_VARIABLE] = uuid.uuid4().hex
        if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            os.environ[_WHOLE_VARIABLE] = "1"  # xdist gives its workers the folders by name
        os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(2**32)))
    if config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(_run_seed())
    # What takes long on a busy machine is no fault.
    hypothesis.settings.register_profile("headwater", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
    hypothesis.settings.load_profile("headwater")
    # Some tests hold more files and connections open than an ordinary account may without asking.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES if most == resource.RLIM_INFINITY else min(_FILES, most), most))
    # Spark's Python workers must be this environment's.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def _work_in_memory() -> None:
    """Most of what OpenSearch does for a small index is to wait for the disk: in memory its tests take half as long. Where a file system in
    memory is too small for all servers and logs, or may hold no program (a JVM puts its libraries there), and where the caller names a
    place, that is left alone."""
    if "TMPDIR" in os.environ or not _MEMORY.is_dir() or not os.access(_MEMORY, os.W_OK):
        return
    found = os.statvfs(_MEMORY)
    if found.f_bavail * found.f_frsize >= _ROOM_BYTES and not found.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None  # nothing had asked for it before, or it asks again


def pytest_report_header() -> list[str]:
    versions = ", ".join(str(version) for version in sorted(installations()))
    return [
        f"servers: Postgres {versions}; OpenSearch 3.8; Valkey 9; their files: {tempfile.gettempdir()}",
        f"seed: {_run_seed()} (replay: {SEED_VARIABLE}={_run_seed()})",
    ]


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    for item in items:
        used = getattr(item, "fixturenames", ())
        for name in ("spark", "opensearch", "kafka"):
            if name in used or item.get_closest_marker(name):
                item.add_marker(getattr(pytest.mark, name))
                if item.get_closest_marker("xdist_group") is None:
                    item.add_marker(pytest.mark.xdist_group(name))
                break
        if "pg_versions" in used and item.callspec.params["pg_versions"] != NEWEST:  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.sampled(_OLDER_SAMPLE))
    _leave_out_what_is_slow(config, items)
    yield
    if getattr(config.option, "loadgroup", False):
        for item in items:
            _name_the_group(item)


def _leave_out_what_is_slow(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests are asked for by `make faults` alone. Of those that are sampled, a run of the whole suite takes its share, which its seed
    chooses; `make faults`, and whoever names a test, has them all."""
    slow = {item for item in items if item.get_closest_marker("slow")}
    sampled = [(item, mark.args[0]) for item in items if (mark := item.get_closest_marker("sampled"))]
    for item in (*slow, *(item for item, _ in sampled)):
        item.add_marker(pytest.mark.faults)
    if "HEADWATER_FAULTS" in os.environ:
        return
    if _WHOLE_VARIABLE in os.environ:
        slow |= {item for item, share in sampled if zlib.crc32(f"{_run_seed()} {item.nodeid}".encode()) % share}
    if slow:
        items[:] = [item for item in items if item not in slow]
        config.hook.pytest_deselected(items=list(slow))


def _name_the_group(item: pytest.Item) -> None:
    """What xdist goes by is the group's name behind an ``@`` at the end of the id. pytest 9.2 keeps its ids elsewhere than xdist 3.8 writes
    them, and without the name the tests of a group are spread over all workers, each with servers of its own
    (https://github.com/pytest-dev/pytest-xdist/issues/1386)."""
    group = item.get_closest_marker("xdist_group")
    if group is None or item.nodeid.endswith(f"@{group.args[0]}"):
        return
    item._id = type(item._id).parse(f"{item.nodeid}@{group.args[0]}")  # type: ignore[attr-defined]
    if not item.nodeid.endswith(f"@{group.args[0]}"):
        raise pytest.UsageError("the tests of a group would be spread over the workers: pytest keeps its ids in yet another way")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed and "seed" in getattr(item, "fixturenames", ()):
        report.sections.append(("seed", f"{SEED_VARIABLE}={_run_seed()}"))
    return report


def _run_seed() -> int:
    return int(os.environ[SEED_VARIABLE])


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The test's own seed: derived from the run's (printed in the header) and the test's name, so one test can be replayed alone."""
    return random.Random(f"{_run_seed()}:{request.node.nodeid.split('@')[0]}").randrange(2**32)


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Call it for a TCP port of the loopback interface that nobody listens on."""
    return _free_port


# Nothing is left behind


def _left_over(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.pid != os.getpid()
                and process.environ().get(_RUN_VARIABLE) == mark
                and process.status() != psutil.STATUS_ZOMBIE
                and not (process.ppid() == os.getpid() and "multiprocessing.resource_tracker" in " ".join(process.cmdline()))
            ):
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess, ProcessLookupError):
            continue
    return found


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return
    deadline = time.monotonic() + 120
    left = _left_over(os.environ[_RUN_VARIABLE])
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = _left_over(os.environ[_RUN_VARIABLE])
    for process in left:
        command = " ".join(process.cmdline())[:120]
        print(f"\nleft running by the tests: pid {process.pid}: {command}", file=sys.stderr)
        process.kill()
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    """For servers' data. Not below pytest's own folder, which other accounts (as root, Postgres runs as one) may not enter."""
    folder = Path(tempfile.mkdtemp(prefix="headwater-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


# Postgres


@dataclass
class Database:
    """A test's own database on the session's server."""

    server: Postgres
    name: str
    _open: ExitStack = field(default_factory=ExitStack)

    @property
    def dsn(self) -> str:
        """Over TCP."""
        return self.server.dsn(self.name)

    @property
    def unix_dsn(self) -> str:
        """Over the Unix socket."""
        return self.server.unix_dsn(self.name)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """A new connection, in autocommit unless told otherwise; closed after the test."""
        return self._open.enter_context(psycopg.connect(self.dsn, **{"autocommit": True, **options}))

    def drop(self) -> None:
        """Ends every session in the database and removes it with its slots."""
        self._open.close()
        with psycopg.connect(self.server.dsn(), autocommit=True) as admin:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and pid <> pg_backend_pid()", [self.name]
            )
            deadline = time.monotonic() + 60
            while slots := admin.execute(
                "select slot_name, active_pid from pg_replication_slots where database = %s", [self.name]
            ).fetchall():
                for slot, active in slots:
                    if active is None:
                        admin.execute("select pg_drop_replication_slot(%s)", [slot])
                    else:
                        admin.execute("select pg_terminate_backend(%s)", [active])
                if time.monotonic() > deadline:
                    raise TimeoutError(f"slots of {self.name} are still in use")
                time.sleep(0.01)
            admin.execute(f'drop database if exists "{self.name}" with (force)')


class PostgresServers:
    """One server per version, started when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[int, Postgres] = {}

    def of(self, version: int) -> Postgres:
        server = self._running.get(version)
        if server is None:
            if version not in installations():
                pytest.skip(f"no Postgres {version} on this machine (only the system's packages bring 15)")
            server = self._running[version] = Postgres(self._folder / f"postgres-{version}", version=version, options=VOLATILE)
        server.start()
        return server

    def stop(self) -> None:
        for server in self._running.values():
            server.stop("immediate")


@pytest.fixture(scope="session")
def postgres_servers(server_folder: Path) -> Iterator[PostgresServers]:
    servers = PostgresServers(server_folder)
    yield servers
    servers.stop()


def _database(server: Postgres) -> Iterator[Database]:
    database = Database(server, f"test_{uuid.uuid4().hex[:12]}")
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        # Copying files takes a third less of the processor than writing every page of the template to the WAL.
        admin.execute(f'create database "{database.name}" strategy file_copy')
    yield database
    if server.running:
        database.drop()


@pytest.fixture
def postgres(postgres_servers: PostgresServers) -> Iterator[Database]:
    """A fresh database on Postgres 18."""
    yield from _database(postgres_servers.of(NEWEST))


@pytest.fixture(params=_VERSIONS, ids=lambda version: f"pg{version}")
def pg_versions(request: pytest.FixtureRequest, postgres_servers: PostgresServers) -> Iterator[Database]:
    """A fresh database on each version in turn."""
    yield from _database(postgres_servers.of(request.param))


@pytest.fixture(scope="session")
def _fresh_data(server_folder: Path) -> Path:
    """The data folder of a server that nobody has used: a copy of it takes a tenth of what initdb takes."""
    server = Postgres(server_folder / "fresh", options=VOLATILE)
    server.start()
    server.stop()
    return server.data


@pytest.fixture
def postgres_server(server_folder: Path, _fresh_data: Path) -> Iterator[Postgres]:
    """A private server that the test may crash, stop and restart. All of them have the same system identifier."""
    server = Postgres(server_folder / f"private-{uuid.uuid4().hex[:8]}", options=VOLATILE)
    server.folder.mkdir()
    subprocess.run(["cp", "-a", _fresh_data, server.data], check=True)
    server.start()
    yield server
    server.stop("immediate")
    shutil.rmtree(server.folder, ignore_errors=True)


# Valkey


@dataclass
class Cache:
    """The session's Valkey, empty when the test starts."""

    server: Valkey

    @property
    def url(self) -> str:
        return self.server.url

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis.from_url(self.url, **options)


@pytest.fixture(scope="session")
def _valkey_server(server_folder: Path) -> Iterator[Valkey]:
    server = Valkey(server_folder / "valkey")
    yield server
    server.stop()


@pytest.fixture
def valkey(_valkey_server: Valkey) -> Cache:
    _valkey_server.start()
    cache = Cache(_valkey_server)
    with cache.client() as client:
        client.flushall()
        client.script_flush()
    return cache


@pytest.fixture(scope="session")
def _redis_cluster(server_folder: Path) -> Iterator[RedisCluster]:
    cluster = RedisCluster(server_folder / "cluster")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def redis_cluster(_redis_cluster: RedisCluster) -> RedisCluster:
    """The session's, empty when the test starts."""
    _redis_cluster.flush()
    return _redis_cluster


@pytest.fixture
def private_cluster(server_folder: Path) -> Iterator[RedisCluster]:
    """One of the test's own, whose slots it may move and whose nodes it may take down."""
    cluster = RedisCluster(server_folder / f"cluster-{uuid.uuid4().hex[:8]}")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def valkey_server(server_folder: Path) -> Iterator[Valkey]:
    """A private server that the test may crash, stop and restart."""
    server = Valkey(server_folder / f"valkey-{uuid.uuid4().hex[:8]}")
    server.start()
    yield server
    server.stop()


# OpenSearch


@pytest.fixture(scope="session")
def _opensearch_server(server_folder: Path) -> Iterator[OpenSearch]:
    server = OpenSearch(server_folder / "opensearch")
    yield server
    server.stop()


@pytest.fixture
def opensearch(_opensearch_server: OpenSearch) -> Iterator[OpenSearch]:
    """A running node without indices (``.url``, ``.request(method, path, body)``; ``.crash()`` and ``.restart()`` keep the port)."""
    _opensearch_server.start()
    yield _opensearch_server
    _opensearch_server.start()
    for index in _opensearch_server.request("GET", "/_cat/indices?format=json&expand_wildcards=all"):
        _opensearch_server.request("DELETE", f"/{index['index']}")
    for template in _opensearch_server.request("GET", "/_index_template")["index_templates"]:
        _opensearch_server.request("DELETE", f"/_index_template/{template['name']}")


# Kafka


@pytest.fixture(scope="session")
def secured(server_folder: Path) -> Iterator[SecureKafka]:
    made = secure_kafka(server_folder / "kafka")
    made.kafka.start()
    yield made
    made.kafka.stop()


@pytest.fixture(scope="session")
def kafka(secured: SecureKafka) -> Kafka:
    """The session's broker, which keeps its topics from test to test: each test has names of its own."""
    return secured.kafka


@pytest.fixture
def kafka_server(server_folder: Path) -> Iterator[Kafka]:
    """A private broker that the test may crash, stop and restart."""
    server = Kafka(server_folder / f"kafka-{uuid.uuid4().hex[:8]}")
    server.start()
    yield server
    server.stop()


# Spark


@pytest.fixture(scope="session")
def s3(server_folder: Path, spark: Any) -> Iterator[S3]:
    """An S3 server, with the bucket of ``tests.lakes``. It knows nothing of S3's newer checksums, so this process and Spark's send none."""
    server = S3(server_folder / "s3")
    server.folder.mkdir()
    server.start()
    (server.folder / "data" / BUCKET).mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        for name in ("aws.requestChecksumCalculation", "aws.responseChecksumValidation"):
            spark._jvm.java.lang.System.setProperty(name, "when_required")
        yield server
    server.crash()


@pytest.fixture
def lake_of(spark: Any, postgres: Database, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Lake]]:
    """Gives a warehouse by its kind: ``sql`` or ``rest``, with ``-s3`` where its files are on the S3 server."""
    made: list[Lake] = []

    def lake(kind: str) -> Lake:
        s3 = request.getfixturevalue("s3") if kind.endswith("-s3") else None
        made.append(Lake(spark, postgres.dsn, tmp_path / "lake", s3=s3, rest=kind.startswith("rest")))
        return made[-1]

    yield lake
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def spark(server_folder: Path) -> Iterator[Any]:
    """The one Spark session (see the module's text for how that comes about); its catalog ``warehouse`` is an empty folder at first."""
    from cdc.spark import session

    yield session.session(app="headwater-tests", warehouse=server_folder / "warehouse", scratch=server_folder / "spark")
    session.stop()
