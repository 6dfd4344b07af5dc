"""The command line as users meet it: real processes, a real Postgres, exit codes, and one clear line for each wrong input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pyarrow.parquet as pq
import pytest

from cdc.embedded import passfile
from cdc.log.home import open_reader
from cdc.report.collector import gather
from cdc.report.probe import SourceProbe
from cdc.settings.file import load
from cdc.source.slot import read_slot
from sinks import options_model
from sinks.cache import ledger
from tests.conftest import Cache, Database
from tests.waiting import until

CANARY = "s3cr3t-canary"
DEADLINE_S = 120.0
SPARK_S = 150
"""Spark's start on a machine with much else to do."""


@dataclass
class Shop:
    """A database with one table, a configuration for it, and `cdc` to run on it."""

    database: Database
    folder: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.folder / "cdc.toml"

    @property
    def slot(self) -> str:
        return f"slot_{self.database.name}"

    def configure(self, *, dsn: str | None = None, tables: str = '["public.*"]', more: str = "") -> None:
        self.config.touch(0o600)
        self.config.write_text(
            f'[source]\ndsn = "{dsn or self.database.dsn}"\ntables = {tables}\nslot = "{self.slot}"\n[http]\nlisten = "127.0.0.1:0"\n{more}\n'
        )

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "cdc", "--config", str(self.config), *arguments]

    def cdc(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            timeout=SPARK_S + DEADLINE_S,
            env={**os.environ, **(env or {})},
            cwd=self.folder,
        )
        assert CANARY not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def facts(self, *arguments: str) -> Any:
        done = self.cdc(*arguments, "--json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def report(self) -> Any:
        """What `cdc status --json` prints, without starting a process for each look."""
        settings = load(self.config, options_model)
        with closing(SourceProbe(settings.source.dsn, settings.source.slot)) as probe:
            return json.loads(json.dumps(gather(settings, open_reader(settings.log.dir), probe).to_json()))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        with open(self.folder / "run.log", "a") as log:
            process = subprocess.Popen(self.command(*arguments), stderr=log, text=True, cwd=self.folder)
        self.running.append(process)
        return process

    def stop_all(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.running:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
                process.kill()
                process.wait()


@pytest.fixture
def shop(postgres: Database, tmp_path: Path) -> Iterator[Shop]:
    postgres.connect().execute(
        "create table orders (id int primary key, status text); insert into orders select n, 'new' from generate_series(1, 100) n"
    )
    shop = Shop(postgres, tmp_path)
    shop.configure()
    yield shop
    shop.stop_all()


def refused(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line that the command said."""
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


# Bad input


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["stats"],
        ["wait"],
        ["status", "--nope"],
        ["wait", "cache", "--timeout", "soon"],
        ["run", "--only", "everything"],
        ["follow", "nobody"],
    ],
)
def test_usage(shop: Shop, arguments: list[str]) -> None:
    assert "→" in refused(shop.cdc(*arguments), 2)


def test_no_configuration(shop: Shop) -> None:
    shop.config.unlink()
    assert "cdc.toml does not exist → cdc init" in refused(shop.cdc("status"), 2)


def test_an_unknown_key(shop: Shop) -> None:
    shop.configure(more='[lok]\ndir = "x"')
    assert refused(shop.cdc("run"), 2).endswith("lok: unknown key → did you mean log?")


def test_the_doctors_findings_as_json_say_what_helps(shop: Shop, free_port: Callable[[], int]) -> None:
    shop.configure(dsn=f"host=127.0.0.1 port={free_port()} dbname=shop user=nobody")
    done = shop.cdc("doctor", "--json")
    assert done.returncode == 1
    findings = json.loads(done.stdout)["findings"]
    assert all(set(finding) == {"level", "check", "message", "hint"} for finding in findings)
    assert all(finding["hint"] for finding in findings if finding["level"] == "fail")


@pytest.mark.parametrize("verb", [("run", "--only", "capture"), ("doctor",)])
def test_a_dsn_that_leads_nowhere(shop: Shop, verb: tuple[str, ...], free_port: Callable[[], int]) -> None:
    port = free_port()
    shop.configure(dsn=f"postgresql://u:{CANARY}@127.0.0.1:{port}/shop")
    done = shop.cdc(*verb)
    said = failures(done) if verb == ("doctor",) else refused(done, 2)
    assert f"cannot connect to 127.0.0.1:{port}/shop" in said
    assert "Connection refused" in said


@pytest.mark.parametrize("verb", [("run", "--only", "capture"), ("doctor",)])
def test_a_dsn_that_is_none(shop: Shop, verb: tuple[str, ...]) -> None:
    shop.configure(dsn=f"postgresql://u:{CANARY}:{CANARY}@h:x/d")
    done = shop.cdc(*verb)
    assert "source.dsn is not a connection string" in (failures(done) if verb == ("doctor",) else refused(done, 2))


@pytest.mark.parametrize("verb", [("run", "--only", "capture"), ("doctor",)])
def test_a_table_without_identity(shop: Shop, verb: tuple[str, ...]) -> None:
    shop.database.connect().execute("create table loose (id int)")
    done = shop.cdc(*verb)
    said = failures(done) if verb == ("doctor",) else refused(done, 2)
    assert "table public.loose" in said
    assert 'ALTER TABLE "public"."loose" REPLICA IDENTITY FULL' in said


@pytest.mark.parametrize("verb", [("run", "--only", "capture"), ("doctor",)])
def test_a_role_without_rights(shop: Shop, verb: tuple[str, ...]) -> None:
    role = f"r_{shop.database.name}"
    admin = shop.database.connect()
    admin.execute(f"create role {role} login; create publication cdc for table orders; grant select on orders to {role}")
    shop.configure(dsn=shop.database.server.dsn(shop.database.name, user=role))
    done = shop.cdc(*verb)
    assert f'ALTER ROLE "{role}" REPLICATION' in (failures(done) if verb == ("doctor",) else refused(done, 2))
    admin.execute(f"drop owned by {role}; drop role {role}")


@pytest.mark.parametrize("verb", [("run", "--only", "capture"), ("doctor",)])
def test_a_server_without_logical_wal(shop: Shop, postgres_server: Any, verb: tuple[str, ...]) -> None:
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as admin:
        admin.execute("create table orders (id int primary key)")
        admin.execute("alter system set wal_level = replica")
    postgres_server.options.pop("wal_level", None)
    postgres_server.options["wal_level"] = "replica"
    postgres_server.restart()
    shop.configure(dsn=postgres_server.dsn())
    done = shop.cdc(*verb)
    assert "ALTER SYSTEM SET wal_level = logical" in (failures(done) if verb == ("doctor",) else refused(done, 2))


def failures(done: subprocess.CompletedProcess[str]) -> str:
    """What doctor found to fail, one line each."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr == ""
    found = [line for line in done.stdout.splitlines() if line.startswith("fail ")]
    assert found
    assert all("→" in line for line in found)
    return "\n".join(found)


# Doctor and init


def test_doctor_then_fix(shop: Shop) -> None:
    before = shop.cdc("doctor")
    assert before.returncode == 0, before.stdout
    assert before.stdout.count("→ cdc doctor --fix") == 2
    fixed = shop.facts("doctor", "--fix")
    assert fixed["ok"]
    checks = {finding["check"]: finding["level"] for finding in fixed["findings"]}
    assert checks["publication"] == checks["slot"] == checks["table public.orders"] == checks["java"] == "ok"


def test_doctor_on_a_store_that_is_down(shop: Shop, free_port: Callable[[], int]) -> None:
    shop.configure(more=f'[stores.cache]\nkind = "redis"\nurl = "redis://:{CANARY}@127.0.0.1:{free_port()}/0"')
    assert "fail store cache: " in failures(shop.cdc("doctor"))


def test_doctor_on_keys_that_a_table_cannot_have(shop: Shop, valkey: Cache) -> None:
    shop.configure(more=f'[stores.cache]\nkind = "redis"\nurl = "{valkey.url}"\nkey = "order:{{nope}}"')
    assert " has no column nope" in failures(shop.cdc("doctor"))


def test_doctor_on_a_store_with_another_logs_rows_before_there_is_a_log(shop: Shop, valkey: Cache) -> None:
    store = f'[stores.cache]\nkind = "redis"\nurl = "{valkey.url}"\nkey = "order:{{nope}}"'
    shop.configure(more=store)
    theirs = ledger.beginning("f" * 16, "e" * 32, 1, ledger.Projection("{table}:{id}", "json"))
    valkey.client().hset(ledger.key_of("cache"), mapping=theirs)
    found = failures(shop.cdc("doctor"))
    assert "store cache holds the rows of another log (ffffffffffffffff)" in found
    assert "cdc resume OTHER_LOG --rebuild" in found
    assert " has no column nope" in found, "what the store is asked for is looked at all the same"


@pytest.mark.parametrize("tables", ['["public.ordrs"]', '["public.*", "public.ordrs"]'])
def test_a_store_of_a_table_that_does_not_exist(shop: Shop, valkey: Cache, tables: str) -> None:
    store = f'[stores.cache]\nkind = "redis"\nurl = "{valkey.url}"\ntables = {tables}'
    shop.configure(more=store)
    said = "stores.cache.tables: no table public.ordrs is captured → did you mean public.orders?"
    assert said in failures(shop.cdc("doctor"))
    for verb in (("run",), ("run", "--only", "capture"), ("run", "--only", "follow:cache")):
        assert said in refused(shop.cdc(*verb), 2)
    shop.configure()
    shop.start("run", "--only", "capture")
    until(lambda: streaming(shop))
    assert not any("ordrs" in problem for problem in shop.report()["problems"])
    shop.configure(more=store)
    assert any(said in problem for problem in shop.report()["problems"])
    assert said in shop.cdc("status").stdout


def test_a_view_over_a_mistyped_table_is_refused_at_the_start(shop: Shop) -> None:
    said = "views.typo: no table public.ordrs is captured → did you mean public.orders?"
    shop.configure(more='[views.typo]\nsql = "select id from public.ordrs"\nkey = ["id"]')
    refused = shop.cdc("run")
    assert refused.returncode == 2
    assert said in refused.stderr
    assert "views.typo: no table public.ordrs is captured" in shop.cdc("doctor").stdout


def test_a_store_may_name_what_is_in_the_log_alone(shop: Shop, valkey: Cache) -> None:
    shop.configure(more=f'[stores.cache]\nkind = "redis"\nurl = "{valkey.url}"\ntables = ["public.orders"]')
    shop.start("run", "--only", "capture")
    until(lambda: streaming(shop))
    shop.database.connect().execute("create table other (id int primary key); drop table orders")
    assert "store tables" not in shop.cdc("doctor").stdout
    assert not any("stores.cache.tables" in problem for problem in shop.report()["problems"])


def test_doctor_leaves_a_warehouse_to_its_writer(shop: Shop) -> None:
    shop.configure(more='[stores.warehouse]\nkind = "iceberg"\npath = "house"')
    done = shop.cdc("doctor")
    assert f"ok   store warehouse: iceberg in {shop.folder / 'house'}" in done.stdout
    assert not (shop.folder / "house").exists()


def test_init_writes_what_doctor_accepts(shop: Shop) -> None:
    shop.database.connect().execute("create table loose (id int)")
    shop.config.unlink()
    url = shop.database.dsn.replace("postgres@", "postgres:${CDC_SOURCE_PASSWORD}@")
    assert "CDC_SOURCE_PASSWORD" in refused(shop.cdc("init", "--source", url), 2)
    secret = {"CDC_SOURCE_PASSWORD": passfile.password()}
    made = shop.cdc("init", "--source", url, env=secret)
    assert made.returncode == 0
    assert "(1 more cannot be captured as they are)" in made.stdout
    text = shop.config.read_text()
    assert passfile.password() not in text
    assert '"public.orders"' in text
    assert "# public.loose has no primary key" in text
    done = shop.cdc("doctor", env=secret)
    assert done.returncode == 0, done.stdout
    assert "CDC_SOURCE_PASSWORD" in refused(shop.cdc("doctor"), 2)
    assert "exists already" in refused(shop.cdc("init", "--source", url), 2)
    assert shop.config.read_text() == text


def test_init_without_a_source(shop: Shop) -> None:
    shop.config.unlink()
    assert shop.cdc("init").returncode == 0
    assert 'tables = ["public.*"]' in shop.config.read_text()


# The daemon


def streaming(shop: Shop) -> Any:
    report = shop.report()
    return report if (report["capture"] or {}).get("state") == "streaming" and report["log"]["rows"] >= 100 else None


def test_capture_alone_and_what_the_log_then_shows(shop: Shop) -> None:
    process = shop.start("run", "--only", "capture")
    report = until(lambda: (told := streaming(shop)) and told["healthy"] and told["source"]["slot"]["active"] and told)
    shop.database.connect().execute("update orders set status = 'sent' where id = 7")
    envelope = until(lambda: [row for row in envelopes(shop) if row["op"] == "u"])[0]
    assert envelope["after"] == {"id": 7, "status": "sent"}
    (topic,) = shop.facts("log", "ls")
    assert (topic["topic"], topic["rows"]) == ("public.orders", 101)
    assert shop.facts("log", "stat")["position"] == 101
    assert "public.orders id=7 status='sent'" in shop.cdc("log", "cat", "public.orders", "--from", "101").stdout
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0
    after = shop.facts("status")
    assert after.keys() == report.keys()
    assert not after["healthy"]
    assert "capture does not run → cdc run" in after["problems"]
    assert shop.cdc("status").stdout.startswith("source 127.0.0.1:")


def test_the_log_is_read_again_by_place(shop: Shop) -> None:
    process = shop.start("run", "--only", "capture")
    until(lambda: streaming(shop))
    source = shop.database.connect()
    # The last commit may have ended at the very LSN that is inserted at, and would be one of those "at or after" it.
    source.execute("select pg_logical_emit_message(false, 'a test', '')")
    (loaded,) = source.execute("select pg_current_wal_insert_lsn()::text, clock_timestamp()::text").fetchall()
    for statement in (
        "update orders set status = 'sent' where id = 7",
        "update orders set status = 'back' where id = 7",
        "delete from orders where id = 9",
    ):
        source.execute(statement)
    until(lambda: [row for row in envelopes(shop) if row["op"] == "d"])
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0
    for place in ("101", *loaded):
        shown = shop.cdc("log", "cat", "public.orders", "--from", place).stdout.splitlines()
        assert [line.split(" ", 2)[2] for line in shown] == [
            "u public.orders id=7 status='sent'",
            "u public.orders id=7 status='back'",
            "d public.orders id=9",
        ], place
    lsn, time = loaded
    assert len(shop.cdc("log", "cat", "public.orders", "--at", time).stdout.splitlines()) == 100
    assert len(shop.cdc("log", "cat", "public.orders").stdout.splitlines()) == 103
    differing = shop.cdc("log", "diff", "public.orders", "--from", "100")
    assert differing.stdout.splitlines()[0] == "~ id=7 status='new' → 'back'"
    assert differing.stdout.splitlines()[1].startswith("- id=9 status=")
    assert differing.stderr.endswith("0 inserted, 1 updated, 1 deleted\n")
    assert len(shop.cdc("log", "grep", "^(sent|back)$", "-E", "--column", "status").stdout.splitlines()) == 2
    assert shop.cdc("log", "grep", "nowhere").returncode == 1
    out = shop.folder / "orders.parquet"
    assert shop.cdc("log", "export", "public.orders", str(out), "--from", lsn).returncode == 0
    assert pq.read_table(out).column("status").to_pylist() == ["sent", "back", None]
    full = shop.cdc("log", "export", "public.orders", "-", "--format", "debezium", "--from", lsn).stdout.splitlines()
    assert [(json.loads(line)["payload"]["before"] or {}).get("status") for line in full] == ["new", "sent", "new"]


def envelopes(shop: Shop) -> list[dict[str, Any]]:
    lines = shop.cdc("log", "cat", "--format", "json").stdout.splitlines()
    return [json.loads(line)["payload"] for line in lines]


def test_wait_times_out_naming_who_lags(shop: Shop, valkey: Cache) -> None:
    shop.configure(more=f'[stores.cache]\nkind = "redis"\nurl = "{valkey.url}"')
    assert "capture has never run" in refused(shop.cdc("wait", "cache", "--timeout", "0.2"), 3)
    assert "is not an LSN" in refused(shop.cdc("wait", "cache", "--lsn", "soon"), 2)
    assert "known stores: cache" in refused(shop.cdc("wait", "search"), 2)


def test_the_supervisor_restarts_what_is_killed_and_drains(shop: Shop) -> None:
    daemon = shop.start("run")
    until(lambda: streaming(shop))
    (child,) = shop.report()["processes"]
    assert (child["name"], child["state"]) == ("capture", "running")
    os.kill(child["pid"], signal.SIGKILL)
    shop.database.connect().execute("insert into orders select n from generate_series(101, 200) n")
    # What the killed one had not yet noted as read comes again.
    until(lambda: shop.report()["log"]["rows"] >= 200)
    (again,) = until(lambda: [told for told in shop.report()["processes"] if told["pid"] not in (0, None, child["pid"])])
    assert again["restarts"] == 1
    assert again["exit_code"] == -signal.SIGKILL
    assert "another cdc run" in refused(shop.cdc("run"), 2)
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(DEADLINE_S) == 0
    assert not lives(again["pid"])


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_children_die_with_a_killed_supervisor(shop: Shop) -> None:
    daemon = shop.start("run")
    until(lambda: streaming(shop))
    (child,) = shop.report()["processes"]
    daemon.kill()
    daemon.wait()
    until(lambda: not lives(child["pid"]))


def test_a_stop_state_waits_for_resume(shop: Shop) -> None:
    first = shop.start("run", "--only", "capture")
    until(lambda: streaming(shop))
    first.send_signal(signal.SIGTERM)
    assert first.wait(DEADLINE_S) == 0
    admin = shop.database.connect()
    until(lambda: not read_slot(admin, shop.slot).reader)  # the server lets go of it a little after capture has gone
    admin.execute("select pg_drop_replication_slot(%s)", (shop.slot,))
    shop.start("run")
    stop = until(lambda: shop.report()["stops"])[0]
    assert (stop["state"], stop["part"], stop["name"]) == ("SLOT_MISSING", "capture", "SLOT_MISSING:capture")
    until(lambda: shop.report()["processes"][0]["state"] == "stopped")
    assert "SLOT_MISSING" in refused(shop.cdc("run", "--only", "capture"), 4)
    assert any("SLOT_MISSING" in problem for problem in shop.report()["problems"])
    assert "stopped are: SLOT_MISSING:capture" in refused(shop.cdc("resume", "SLOT_LOST"), 2)
    resumed = shop.cdc("resume", "SLOT_MISSING")
    assert resumed.stdout == "resumed capture (was SLOT_MISSING)\n"
    # Nothing was mended, so it comes back, under a newer time.
    until(lambda: [held for held in shop.report()["stops"] if held["since"] > stop["since"]])


def test_ctrl_c(shop: Shop) -> None:
    watching = subprocess.Popen(
        shop.command("status", "--watch", "--json"),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what a shell starts in the background ignores it
    )
    assert watching.stdout is not None
    assert json.loads(watching.stdout.readline())["healthy"] is False
    watching.send_signal(signal.SIGINT)
    assert watching.wait(DEADLINE_S) == 130
    watching.stdout.close()


# With a store


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_daemon_keeps_a_store_equal_and_both_children_may_be_killed(shop: Shop, valkey: Cache) -> None:
    shop.configure(more=f'[stores.cache]\nkind = "redis"\nurl = "{valkey.url}"\nkey = "order:{{id}}"')
    daemon = shop.start("run")
    orders = shop.database.connect()
    with valkey.client() as client:
        told = shop.facts("wait", "cache", "--timeout", str(SPARK_S))
        assert told["store"] == "cache"
        assert json.loads(client.get("order:7") or "")["status"] == "new"
        for name in ("followers", "capture"):
            (pid,) = [process["pid"] for process in shop.report()["processes"] if process["name"] == name]
            os.kill(pid, signal.SIGKILL)
            orders.execute("update orders set status = %s", (name,))
            assert shop.cdc("wait", "cache", "--timeout", str(SPARK_S)).returncode == 0
            assert json.loads(client.get("order:100") or "")["status"] == name
        assert shop.cdc("audit").stdout.splitlines()[0] == "cache public.orders: equal, 100 rows in the database, 100 in the store"
        client.delete("order:7")
        audited = shop.facts("audit", "cache", "--table", "public.*")
        assert not audited["equal"]
        (table,) = audited["stores"][0]["tables"]
        assert table["differences"] == [{"kind": "missing", "key": {"id": "7"}, "columns": []}]
        done = shop.cdc("audit")
        assert done.returncode == 1
        assert "  missing (id=7)" in done.stdout
    assert "no table 'nope'" in refused(shop.cdc("audit", "cache", "--table", "nope"), 2)
    until(lambda: shop.report()["followers"][0]["lag"] == {"changes": 0, "bytes": 0, "seconds": 0.0})
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(DEADLINE_S) == 0
    caught_up = shop.cdc("follow", "cache", "--until-caught-up")
    assert caught_up.returncode == 0
