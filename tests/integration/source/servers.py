"""Clusters that a test may copy, crash and promote. Each is stopped and removed by ``Clusters``."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import psycopg

from cdc.embedded.postgres import NEWEST, VOLATILE, Postgres


class Clusters:
    """Made below ``folder``, which every account may enter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[Postgres] = []

    def empty(self, version: int = NEWEST, **options: str) -> Postgres:
        """Running, freshly initialised."""
        server = self._new(version, options)
        server.start()
        return server

    def copy(self, of: Postgres, *, promote: bool = False) -> Postgres:
        """A running copy of a stopped cluster's files, slots included. ``promote``: through archive recovery to its end, so on a new timeline."""
        server = self._new(of.version, {})
        server.folder.mkdir(parents=True)
        # With owner and mode: the server's account owns its data.
        self._copy_owned(of.folder, server.folder)
        if promote:
            (server.data / "recovery.signal").touch()
            server.options["restore_command"] = "false"
        server.start()
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            while admin.execute("select pg_is_in_recovery()").fetchone() != (False,):
                pass
        return server

    def standby(self, of: Postgres, *, keeps_slots: bool = False) -> Postgres:
        """A running standby; ``of`` has to be running. ``keeps_slots``: it synchronises failover slots (from 17 on)."""
        options = {"hot_standby_feedback": "on"}
        if keeps_slots:
            connection = f"host={of.socket_folder} port={of.port} user=postgres dbname=postgres"
            options |= {"sync_replication_slots": "on", "primary_slot_name": "standby", "primary_conninfo": connection}
            with psycopg.connect(of.dsn(), autocommit=True) as admin:
                admin.execute("select pg_create_physical_replication_slot('standby', true)")
        server = self._new(of.version, options)
        server._make_folder()
        of.run("pg_basebackup", "-D", str(server.data), "-d", of.unix_dsn(), "-R", "-c", "fast", "-X", "stream")
        server.start()
        return server

    def stop(self) -> None:
        for server in self._made:
            server.stop("immediate")
            shutil.rmtree(server.folder, ignore_errors=True)

    def _new(self, version: int, options: dict[str, str]) -> Postgres:
        server = Postgres(self._folder / f"cluster-{uuid.uuid4().hex[:8]}", version=version, options={**VOLATILE, **options})
        self._made.append(server)
        return server

    @staticmethod
    def _copy_owned(source: Path, target: Path) -> None:
        import subprocess

        subprocess.run(["cp", "-a", f"{source}/.", str(target)], check=True)


def promote(server: Postgres) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        assert admin.execute("select pg_promote(true, 120)").fetchone() == (True,)
