"""README's steps from an own database to a checked configuration, run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from cdc.embedded.postgres import Postgres, installations
from tests.integration.certificates import Authority

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "s3cr3t canary'@/%"
VERSION = next((version for version in (17, 15) if version in installations()), None)
pytestmark = pytest.mark.skipif(VERSION is None, reason="no Postgres here was built with TLS")


def steps() -> list[str]:
    """The shell commands of "With your own database", in order."""
    _, _, chapter = (ROOT / "README.md").read_text().partition("## With your own database")
    chapter, _, _ = chapter.partition("\n## ")
    return [textwrap.dedent(block) for block in re.findall(r"```sh\n(.*?)```", chapter, re.DOTALL)]


@pytest.fixture
def internal(tmp_path: Path, server_folder: Path) -> Iterator[Postgres]:
    """The database ``shop`` on db.internal, which takes TLS and passwords only."""
    authority = Authority()
    server = Postgres(server_folder / "readme", version=VERSION or 0)
    server.start()
    try:
        with psycopg.connect(server.unix_dsn(), autocommit=True) as admin:
            admin.execute("create database shop")
        with psycopg.connect(server.unix_dsn("shop"), autocommit=True) as shop:
            shop.execute("create table orders (id int primary key); create table loose (id int)")
        server.stop()
        owner = server.data.stat()
        pair = authority.server(host="db.internal")
        for name, content in (("server.crt", pair.certificate), ("server.key", pair.key)):
            path = server.data / name
            path.touch(0o600)
            path.write_bytes(content)
            os.chown(path, owner.st_uid, owner.st_gid)
        (server.data / "pg_hba.conf").write_text("local all postgres trust\nhostssl all all all scram-sha-256\n")
        (tmp_path / "ca.crt").write_bytes(authority.pem)
        server.options |= {"ssl": "on", "listen_addresses": "127.0.0.1"}
        server.start()
        yield server
    finally:
        server.stop("immediate")


def test_the_steps_to_an_own_database_work_as_printed(internal: Postgres, tmp_path: Path) -> None:
    role, configuration = steps()
    path = os.pathsep.join((str(internal.binary("psql").parent), str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "PGPORT": str(internal.port)}

    def run(script: str, said: str, folder: Path, **variables: str) -> str:
        # A session of its own, so that psql asks its standard input for the password instead of our terminal.
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            input=said,
            cwd=folder,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            start_new_session=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(role, f"{PASSWORD}\n{PASSWORD}\n", ROOT, PGHOST=str(internal.socket_folder), PGUSER="postgres")
    # The name is the network's business.
    network = {"PGHOSTADDR": "127.0.0.1", "PGSSLROOTCERT": str(tmp_path / "ca.crt")}
    folder = tmp_path / "here"
    folder.mkdir()
    run(configuration, f"{PASSWORD}\n", folder, **network)
    written = folder / "cdc.toml"
    assert PASSWORD not in written.read_text()
    assert "${CDC_SOURCE_PASSWORD}" in written.read_text()
    assert '"public.orders"' in written.read_text()
    found = run("cdc doctor --json || true", "", folder, CDC_SOURCE_PASSWORD=PASSWORD, **network)
    assert '"source TLS", "message": "sslmode=verify-full' in found
    assert '"fail"' not in found, found
