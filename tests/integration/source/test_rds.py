"""Where the right to replicate is membership in rds_replication, as on Amazon RDS and Aurora, and nobody is a superuser."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import SecretStr

from cdc.settings.models import Source
from cdc.source import connect
from cdc.source.checks import Finding, check_source
from tests.conftest import Database

ROLES = Path(__file__).parents[3] / "deploy/roles.sql"


@dataclass(frozen=True, slots=True)
class Rds:
    """A database with the roles that there are on RDS; ``master`` owns it."""

    database: Database
    master: str
    reader: str

    def dsn(self, role: str) -> str:
        return self.database.server.dsn(self.database.name, user=role)

    def finding(self) -> Finding:
        """What `cdc doctor` says of the reader's role."""
        source = Source(dsn=SecretStr(self.dsn(self.reader)), slot=f"s_{self.database.name}")
        with connect(self.dsn(self.reader)) as connection:
            (found,) = [one for one in check_source(connection, source, log_has_begun=False) if one.check == "role"]
        return found


@pytest.fixture
def rds(postgres: Database) -> Iterator[Rds]:
    admin = postgres.connect()
    made = Rds(postgres, f"master_{postgres.name}", f"reader_{postgres.name}")
    admin.execute("create role rds_superuser; create role rds_replication")
    admin.execute(f"create role {made.master} login createrole in role rds_superuser; create role {made.reader} login")
    admin.execute(f"grant rds_replication to {made.master} with admin option")
    admin.execute(f"alter database {postgres.name} owner to {made.master}")
    admin.execute(f"set role {made.master}; create table orders (id int primary key); reset role")
    yield made
    admin.execute(f"alter database {postgres.name} owner to postgres")
    admin.execute(f"drop owned by {made.reader} cascade; drop owned by {made.master} cascade")
    admin.execute(f"revoke rds_replication from {made.master} cascade")
    admin.execute(f"drop role {made.reader}, {made.master}, rds_replication, rds_superuser")


def test_membership_in_rds_replication_is_the_right_to_replicate(rds: Rds) -> None:
    lacks = rds.finding()
    assert (lacks.level, lacks.message) == ("fail", f"{rds.reader} lacks REPLICATION")
    assert f'GRANT rds_replication TO "{rds.reader}"' in str(lacks)
    command = [
        str(rds.database.server.binary("psql")),
        "-Xqd",
        rds.dsn(rds.master),
        "-v",
        f"role={rds.reader}",
        "-v",
        "schema=public",
    ]
    for _ in range(2):
        done = subprocess.run([*command, "-f", str(ROLES)], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
    assert rds.finding().level == "ok"


def test_a_role_of_that_name_elsewhere_is_none(rds: Rds) -> None:
    with rds.database.connect() as admin:
        admin.execute(f"grant rds_replication to {rds.reader}")
        admin.execute(f"revoke rds_superuser from {rds.master}; alter role rds_superuser rename to not_rds")
        try:
            found = rds.finding()
            assert (found.level, f'ALTER ROLE "{rds.reader}" REPLICATION' in str(found)) == ("fail", True)
        finally:
            admin.execute("alter role not_rds rename to rds_superuser")
