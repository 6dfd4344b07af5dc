from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.contract.labs import LABS, Lab, Server


@pytest.fixture(scope="session")
def server_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Starts a real server the first time that it is asked for, and stops it when the session ends."""
    running: dict[str, Server] = {}

    def start(kind: str) -> Server:
        if kind not in running:
            from cdc.embedded.opensearch import OpenSearch
            from cdc.embedded.valkey import Valkey

            running[kind] = {"opensearch": OpenSearch, "redis": Valkey}[kind](tmp_path_factory.mktemp(kind))
            running[kind].start()
        return running[kind]

    yield start
    for server in running.values():
        server.stop()


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.opensearch] if "opensearch" in name else []) for name in LABS])
def lab(request: pytest.FixtureRequest, server_of: Callable[[str], Server]) -> Iterator[Lab]:
    made = LABS[request.param](server_of)
    yield made
    made.close()
