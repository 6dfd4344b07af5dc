"""A row of 40 MB with every character that a format may trip over, from Postgres into caches and a warehouse: applied, found equal, and repaired."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.audit.stores import audit
from tests.conftest import Database
from tests.integration.pipeline import service, settings_of
from tests.integration.test_audit import CATCH_UP_S, CacheKeys, Lake

ODD: Final = (
    "".join(map(chr, range(1, 0x20)))
    + "\x7f\u0085\u2028\u2029\ufeff\uffff"
    + "'\"\\ \\\\N \\u0000 \\x ${id} \r\n"
    + "\U0001f6eb\U0010ffff é e\u0301"
)
"""Every control character that a text may hold, both line ends of JavaScript, lone quotes and backslashes, characters of four bytes."""
LARGE_BYTES: Final = 40_000_000 if "HEADWATER_FAULTS" in os.environ else 2_000_000
LARGE: Final = ODD * (LARGE_BYTES // len(ODD.encode()))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "where",
    [
        "redis",
        pytest.param("redis-hash", marks=pytest.mark.slow),
        pytest.param("warehouse", marks=[pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]),
    ],
)
def test_a_large_row_with_odd_characters_is_held_and_repaired_whole(
    postgres: Database, tmp_path: Path, where: str, request: pytest.FixtureRequest
) -> None:
    store: CacheKeys | Lake
    if where == "warehouse":
        store = Lake(request.getfixturevalue("spark"), tmp_path / "warehouse")
    else:
        store = CacheKeys(request.getfixturevalue("valkey"), hashes=where == "redis-hash")
    settings = settings_of(postgres, tmp_path, {"copy": store.options})
    wanted = {1: ODD, 2: LARGE, 3: "plain"}

    def found(*, repair: bool = False) -> Any:
        (one,) = audit(settings, timeout_s=10 * CATCH_UP_S, repair=repair)
        (table,) = one.tables
        assert table.error is None
        assert table.tally.aside == 0
        return table

    with postgres.connect(autocommit=True) as connection:
        connection.execute("create table public.t (id int primary key, a text, n int)")
        connection.execute("create publication cdc for table public.t")
        connection.execute("insert into public.t values (1, %s, 1)", (ODD,))  # is read
        with service(settings):
            assert found().equal
            connection.execute("insert into public.t values (2, %s, 2), (3, 'plain', 3)", (LARGE,))  # is streamed
            connection.execute("update public.t set n = 22 where id = 2")  # without the large value, which has not changed
            assert found().equal
            assert {key: store.read(key)["a"] for key in wanted} == wanted
            for key in (1, 2):
                store.write(key, {**store.read(key), "a": wanted[key].replace("\u2028", "\u2029", 1)})
            store.remove(3)
            table = found()
            assert (table.tally.missing, table.tally.extra, table.tally.different) == (1, 0, 2)
            table = found(repair=True)
            assert table.repair is not None
            assert table.repair.left == 0
            assert found().equal
            assert {key: store.read(key)["a"] for key in wanted} == wanted
            assert int(store.read(2)["n"]) == 22
