"""The embedded Postgres: every version starts, takes both transports, and keeps committed rows over a crash."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc.embedded import EmbeddedError, passfile
from cdc.embedded.accounts import Account, reachable_for, take_stand_in
from cdc.embedded.postgres import Installation, Postgres, installation
from tests.conftest import Database


def test_each_version_streams_logically_over_both_transports(pg_versions: Database) -> None:
    for dsn in (pg_versions.dsn, pg_versions.unix_dsn):
        with psycopg.connect(dsn, autocommit=True) as connection:
            assert connection.info.server_version // 10000 == pg_versions.server.version
            connection.execute("select pg_create_logical_replication_slot('s', 'pgoutput')")
            connection.execute("select pg_drop_replication_slot('s')")


def test_nobody_without_the_password_gets_in_over_tcp(pg_versions: Database) -> None:
    parts = conninfo_to_dict(pg_versions.dsn)
    assert parts["host"] == "127.0.0.1"
    assert "password" not in parts
    pg_versions.connect().execute(f'create role "r_{pg_versions.name}" superuser login')
    for user in ("postgres", f"r_{pg_versions.name}"):
        for database in ("postgres", pg_versions.name):
            stranger = {**parts, "user": user, "dbname": database, "passfile": os.devnull}
            with pytest.raises(psycopg.OperationalError, match="no password supplied"):
                psycopg.connect(make_conninfo("", **stranger))
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                psycopg.connect(make_conninfo("", **stranger, password="guessed"))
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(make_conninfo("", **{**parts, "passfile": os.devnull}, replication="database"))


@pytest.mark.parametrize("name", ["short", "long" * 30])
def test_nobody_else_gets_to_the_socket(server_folder: Path, name: str) -> None:
    server = Postgres(server_folder / f"mine-{name}")
    server.start()
    try:
        assert server.socket_folder.stat().st_mode & 0o777 == 0o700
        assert not (server.folder / ".password").exists()
        if os.geteuid() == 0:
            daemon = pwd.getpwnam("daemon")
            reached = subprocess.run(
                [server.binary("psql"), "-X", "-c", "select 1", server.unix_dsn()],
                user=daemon.pw_uid,
                group=daemon.pw_gid,
                extra_groups=[],
                capture_output=True,
                text=True,
                cwd="/",
                check=False,
            )
            assert reached.returncode != 0
            assert "Permission denied" in reached.stderr
    finally:
        server.stop()


def test_the_passfile_is_a_child_s_too_and_goes_with_its_maker() -> None:
    environment = {name: value for name, value in os.environ.items() if name != passfile.VARIABLE}
    code = (
        "import os, subprocess, sys; from cdc.embedded import passfile; mine = passfile.password(); path = os.environ['PGPASSFILE']\n"
        "assert os.stat(path).st_mode & 0o777 == 0o600\n"
        "ask = 'from cdc.embedded import passfile; print(passfile.password())'\n"
        "assert subprocess.run([sys.executable, '-c', ask], stdout=subprocess.PIPE, text=True).stdout.strip() == mine\n"
        "assert passfile.password() == mine; print(path)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).exists()


def test_a_test_database_takes_its_slots_and_sessions_with_it(postgres: Database) -> None:
    postgres.connect().execute("select pg_create_logical_replication_slot('left_over', 'pgoutput')")
    outsider = psycopg.connect(postgres.dsn)
    postgres.drop()
    with pytest.raises(psycopg.OperationalError):
        outsider.execute("select 1")
    with psycopg.connect(postgres.server.dsn()) as admin:
        assert admin.execute("select count(*) from pg_replication_slots where slot_name = 'left_over'").fetchone() == (0,)


def test_a_crash_kills_every_process_and_keeps_what_was_committed(postgres_server: Postgres) -> None:
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute("create table t (a int)")
        connection.execute("insert into t select generate_series(1, 1000)")
        port, processes = postgres_server.port, [psutil.Process(postgres_server.pid)]
        processes += processes[0].children(recursive=True)
        assert len(processes) > 3
        postgres_server.crash()
    assert not psutil.wait_procs(processes, timeout=60)[1]
    postgres_server.start()
    assert postgres_server.port == port
    with psycopg.connect(postgres_server.dsn()) as connection:
        assert connection.execute("select count(*) from t").fetchone() == (1000,)


def test_restart_and_options(server_folder: Path) -> None:
    server = Postgres(server_folder / "with-options", options={"wal_level": "replica", "work_mem": "7MB"})
    server.start()
    try:
        server.restart()
        with psycopg.connect(server.unix_dsn()) as connection:
            assert connection.execute("show wal_level").fetchone() == ("replica",)
            assert connection.execute("show work_mem").fetchone() == ("7MB",)
    finally:
        server.stop()
    assert not server.running


def test_a_later_process_gets_in_over_tcp_too(server_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The password goes with the process that made it; the data stays."""
    first = Postgres(server_folder / "later")
    first.start()
    first.stop()
    monkeypatch.delenv(passfile.VARIABLE)
    later = Postgres(server_folder / "later")
    later.start()
    try:
        with psycopg.connect(later.dsn()) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(make_conninfo(later.dsn(), password="another"))
    finally:
        later.stop("immediate")


def test_a_refused_option_is_named_with_the_log(server_folder: Path) -> None:
    server = Postgres(server_folder / "refused", options={"no_such_option": "1"})
    with pytest.raises(EmbeddedError) as raised:
        server.start()
    assert str(server.log) in raised.value.line()
    assert b"no_such_option" in server.log.read_bytes()


def test_a_data_folder_of_another_version_is_refused(server_folder: Path) -> None:
    made = Postgres(server_folder / "old", version=16)
    made.start()
    made.stop()
    with pytest.raises(EmbeddedError, match="made by Postgres 16"):
        Postgres(server_folder / "old", version=17).start()


def test_a_long_folder_still_has_a_socket(server_folder: Path) -> None:
    server = Postgres(server_folder / ("long" * 30))
    server.start()
    try:
        with psycopg.connect(server.unix_dsn()) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
    finally:
        server.stop()
    assert not server.socket_folder.joinpath(f".s.PGSQL.{server.port}").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_servers_die_with_the_process_that_started_them(server_folder: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from cdc.embedded.postgres import Postgres; from cdc.embedded.valkey import Valkey\n"
        "p, v = Postgres(Path(sys.argv[1]) / 'pg'), Valkey(Path(sys.argv[1]) / 'vk'); p.start(); v.start()\n"
        "print(p.pid, v.pid, flush=True); time.sleep(600)"
    )
    folder = server_folder / "orphan"
    folder.mkdir()
    starter = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    servers = [psutil.Process(int(pid)) for pid in starter.stdout.readline().split()]
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    assert not psutil.wait_procs(servers, timeout=60)[1]


def test_no_such_version() -> None:
    with pytest.raises(EmbeddedError, match="no Postgres 9"):
        installation(9)


def test_as_root_a_folder_out_of_reach_has_a_stand_in_in_reach(tmp_path: Path) -> None:
    stranger = Account("stranger", 4_000_000, 4_000_000)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    wanted = closed / "data"
    assert not stranger.can_reach(wanted)
    stand_in = reachable_for(stranger, wanted)
    assert stand_in != wanted
    assert stranger.can_reach(stand_in)
    assert reachable_for(stranger, wanted) == stand_in
    assert reachable_for(None, wanted) == wanted


def test_stand_ins_of_folders_that_are_gone_are_removed(tmp_path: Path) -> None:
    stand_ins = tmp_path / "stand-ins"
    for name in ("gone", "kept"):
        (stand_ins / name / "data").mkdir(parents=True)
        take_stand_in(stand_ins / name, tmp_path / name / "postgres")
    (tmp_path / "gone").rmdir()
    take_stand_in(stand_ins / "kept", tmp_path / "kept" / "postgres")
    assert sorted(path.name for path in stand_ins.iterdir()) == ["kept", "kept.stands-for"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to run Postgres as somebody else")
def test_as_root_binaries_and_data_out_of_reach_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = installation(18)
    hidden = tmp_path / "root" / "site" / "package"
    shutil.copytree(real.root, hidden / "pginstall", ignore=shutil.ignore_patterns("include"), symlinks=True)
    for sibling in real.siblings:
        shutil.copytree(sibling, hidden.parent / sibling.name)
    tmp_path.chmod(0o700)
    moved = Installation(18, hidden / "pginstall", tuple(hidden.parent / sibling.name for sibling in real.siblings))
    monkeypatch.setattr("cdc.embedded.postgres.installation", lambda _version: moved)
    server = Postgres(tmp_path / "data")
    server.start()
    try:
        assert not server.binary("postgres").is_relative_to(tmp_path)
        assert not server.folder.is_relative_to(tmp_path)
        assert server.run("psql", "-X", "-At", "-c", "select 41 + 1", server.unix_dsn()).stdout == "42\n"
    finally:
        server.stop()
        shutil.rmtree(server.folder)
        server.folder.with_suffix(".stands-for").unlink()
        shutil.rmtree(server.binary("postgres").parents[3])
