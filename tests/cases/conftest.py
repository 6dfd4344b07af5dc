"""The rigs' runs, each done once, when the first of its cases is looked at."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc.embedded.postgres import VOLATILE, Postgres, installations
from tests.cases import bench
from tests.cases.case import Case, Rig

OPTIONS = {
    **VOLATILE,
    "max_prepared_transactions": "20",
    # Every transaction of some size is decoded while it is still open.
    "logical_decoding_work_mem": "64kB",
}


@contextmanager
def log_folder() -> Iterator[Path]:
    """For captures' logs: in memory where there is room, since hundreds of tables mean thousands of fsyncs, and nothing crashes here."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30
    with tempfile.TemporaryDirectory(prefix="headwater-cases-", dir=memory if roomy else None) as folder:
        yield Path(folder)


class Benches:
    def __init__(self, folder: Path, selected: list[tuple[Case, int]]) -> None:
        self._folder = folder
        self._selected = selected
        self._servers: dict[int, Postgres] = {}
        self._done: dict[tuple[str, int], bench.Bench] = {}

    def of(self, rig: Rig, version: int) -> bench.Bench:
        key = (rig.name, version)
        if key not in self._done:
            cases = [case for case, wanted in self._selected if case.rig == rig and wanted == version]
            with log_folder() as folder:
                self._done[key] = bench.run(rig, cases, self.server(version), folder)
        return self._done[key]

    def server(self, version: int) -> Postgres:
        if version not in self._servers:
            if version not in installations():
                pytest.skip(f"no Postgres {version} on this machine (only the system's packages bring 15)")
            self._servers[version] = Postgres(self._folder / f"cases-postgres-{version}", version=version, options=OPTIONS)
            self._servers[version].start()
        return self._servers[version]

    def stop(self) -> None:
        for server in self._servers.values():
            server.stop("immediate")


@pytest.fixture(scope="session")
def benches(request: pytest.FixtureRequest, server_folder: Path) -> Iterator[Benches]:
    seen = {}
    for item in request.session.items:
        called = getattr(item, "callspec", None)
        if called is not None and "case" in called.params and "version" in called.params:
            seen[called.params["case"].id, called.params["version"]] = (called.params["case"], called.params["version"])
    made = Benches(server_folder, list(seen.values()))
    yield made
    made.stop()
