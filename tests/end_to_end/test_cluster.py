"""`cdc run` as a process with two caches on a Redis Cluster of three nodes, whose slots move while changes come."""

from __future__ import annotations

import io
import json
from binascii import crc_hqx
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final

import pytest

from cdc.__main__ import main
from sinks.cache.lane import Lane
from tests.conftest import Database
from tests.end_to_end.daemon import DEADLINE_S, Daemon
from tests.end_to_end.test_repair import traffic
from tests.rediscluster import RedisCluster

LANES: Final = 6
CONFIGURATION: Final = """
run_dir = "run"
[source]
dsn = "{dsn}"
tables = ["public.t"]
slot = "{slot}"
[log]
dir = "log"
[stores.cache]
kind = "redis"
url = "{cache}"
lanes = {lanes}
key = "t:{{lane}}:{{id}}"
[stores.hashes]
kind = "redis"
url = "{cache}"
lanes = {lanes}
value = "hash"
[http]
listen = "127.0.0.1:0"
"""


@pytest.mark.timeout(1200)
def test_a_running_daemon_keeps_a_cluster_equal_while_slots_move(
    postgres: Database, private_cluster: RedisCluster, tmp_path: Path, seed: int
) -> None:
    sql = postgres.connect(autocommit=True)
    sql.execute("create table public.t (id int primary key, a text)")
    sql.execute("insert into public.t select g, 'v' || g from generate_series(1, 700) g")
    config = tmp_path / "cdc.toml"
    config.touch(0o600)
    config.write_text(CONFIGURATION.format(dsn=postgres.dsn, slot=postgres.name, cache=private_cluster.url, lanes=LANES))
    daemon = Daemon(tmp_path, lambda: None)

    def cdc(*arguments: str, code: int = 0) -> str:
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            found = main(["--config", str(config), *arguments])
        assert found == code, f"{arguments}: {out.getvalue()}\n{daemon.said()}"
        return out.getvalue()

    def equal() -> None:
        assert cdc("audit", "--timeout", str(DEADLINE_S)).count(": equal at ") == 2

    slots = [Lane(number, LANES).slot for number in range(LANES)]
    daemon.start()
    try:
        cdc("wait", "cache", "--timeout", str(DEADLINE_S))
        equal()
        name = f"t:{{{crc_hqx(b'7', 0) % LANES}}}:7"
        assert name in cdc("preview", "cache", "--table", "public.t", "--key", "7")
        assert name in private_cluster.places()
        with traffic(postgres.dsn, seed):
            for slot in slots:
                others = [node for node in private_cluster.nodes if node is not private_cluster.owner(slot)]
                private_cluster.move(slot, others[slot % 2])
                daemon.moves_on("cache", "hashes")
        cdc("wait", "cache", "--timeout", str(DEADLINE_S))
        cdc("wait", "hashes", "--timeout", str(DEADLINE_S))
        equal()
        told = {one["store"]: one for one in json.loads(cdc("status", "--json"))["followers"]}
        assert {name: one["state"] for name, one in told.items()} == {"cache": "following", "hashes": "following"}
        private_cluster.places()[name].ask("DEL", name)
        assert "DIFFERENT" in cdc("audit", "cache", "--timeout", str(DEADLINE_S), code=1)
        assert "repaired" in cdc("audit", "cache", "--repair", "--timeout", str(DEADLINE_S))
        assert name in private_cluster.places()
        cdc("bootstrap", "hashes", "--in-place")
        daemon.until(lambda: daemon.follower("hashes").state == "following", "the store to be built again")
        equal()
    finally:
        daemon.drain()
