"""The log's tier on a real S3 server, started once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from cdc.embedded.s3 import CREDENTIAL, S3
from cdc.errors import LogAway, LogCorrupt
from cdc.log.embedded import tierstore
from cdc.log.embedded.away import TierPlace
from cdc.log.embedded.writer import EmbeddedLogWriter
from tests.unit.log.test_tier import ALL, all_away, all_back, local, log, read, root, stubs

__all__ = ["log", "root"]

BUCKET: Final = "headwater-logs"


@pytest.fixture
def quick_folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    found = S3(tmp_path_factory.mktemp("s3"))
    found.start()
    (found.folder / "data" / BUCKET).mkdir()
    yield found
    found.crash()


@pytest.fixture(autouse=True)
def environment(server: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tierstore, "ATTEMPTS", 1)
    monkeypatch.setattr(tierstore, "REQUEST_S", 5.0)
    tierstore.store_of.cache_clear()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


def objects(server: S3) -> list[Path]:
    return sorted((server.folder / "data" / BUCKET).rglob("*.parquet"))


def test_files_go_are_read_and_come_back(log: EmbeddedLogWriter, root: Path, server: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(log.tiering(TierPlace(server.url(f"{BUCKET}/some/folder"), 2**30))) as moves:
        moves.begin()
        assert all_away(moves) == len(stubs(root)) == len(objects(server)) > 0
        assert read(root) == ALL
        # One that was cut, and one that is gone.
        victim = next(path for path in objects(server) if path.name.startswith(f"{1:020d}-"))
        content = victim.read_bytes()
        for copy in (root / "cache").glob("*.parquet"):
            copy.unlink()
        store = tierstore.TierStore(server.url(f"{BUCKET}/some/folder"))
        key = str(victim.relative_to(server.folder / "data" / BUCKET / "some/folder"))
        store.put(key, pa.py_buffer(content[:-1]))
        with pytest.raises(LogCorrupt, match="has another content"):
            read(root)
        store.remove(key)
        with pytest.raises(LogAway, match="is not in the log's tier"):
            read(root)
        store.put(key, pa.py_buffer(content))
        assert read(root) == ALL
        count = len(stubs(root))
        assert all_back(moves) == moves.sweep() == count
        assert not objects(server)
        assert len(local(root)) == count + 2
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    refused_by(tierstore.TierStore(server.url(f"{BUCKET}/some/folder")), "SIGNATURE_DOES_NOT_MATCH")


def refused_by(store: tierstore.TierStore, why: str) -> None:
    with pytest.raises(LogAway, match=why) as refused:
        store.keys("x")
    line = refused.value.line()
    assert "another" not in line
    assert CREDENTIAL not in line
    assert os.environ["AWS_ACCESS_KEY_ID"] not in line


def test_a_server_that_is_down_or_has_no_such_bucket(server: S3) -> None:
    with pytest.raises(LogAway, match="NO_SUCH_BUCKET"):
        tierstore.TierStore(server.url("no-such-bucket/x")).put("x", pa.py_buffer(b"1"))
    server.crash()
    with pytest.raises(LogAway, match="NETWORK_CONNECTION"):
        tierstore.TierStore(server.url(f"{BUCKET}/x")).size("x")
    server.start()
    assert tierstore.TierStore(server.url(f"{BUCKET}/x")).keys("") == []
