"""The demo's servers and its configuration, all under one folder that a second start finds again."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import psycopg
from psycopg import sql

from cdc.demo import departures, flightviews
from cdc.demo.configuration import toml
from cdc.demo.receiver import SECRET, DemoReceiver
from cdc.demo.traffic import OUTBOX
from cdc.embedded import EmbeddedError
from cdc.embedded.cache import write_whole
from cdc.embedded.opensearch import OpenSearch
from cdc.embedded.postgres import Postgres
from cdc.embedded.processes import free_port_like
from cdc.embedded.valkey import Valkey
from cdc.settings.views import topic_of

DATABASE: Final = "airport"
# Wished for, so that what the demo prints stays true over restarts; another port is taken where somebody has these.
_POSTGRES_PORT, _VALKEY_PORT, _OPENSEARCH_PORT, _HTTP_PORT, _RECEIVER_PORT = 54642, 63642, 9242, 8642, 8742

_NOTES: Final = {
    "": "Written by the demo at every start.",
    f"views.{flightviews.DELAYS}": "How late flights leave: a row for each airport, day and hour of its clock.",
    f"views.{flightviews.FLYING_DAYS}": "The days on which each plane flies: the roots of the documents below.",
    f"views.{flightviews.PLANE_DAYS}": "Each plane's day as one document: the plane, its legs with their airports, and totals.",
    "stores.search": "Answers questions about flights.",
    "stores.board": "The departure board: one JSON value per flight.",
    "stores.departures": "Each departure, once, as an entry of a stream.",
    "stores.warehouse": "The delays.",
    "outbox": "What the application tells other programs, in its own transactions.",
    "stores.bus": "Those events as a stream.",
    "stores.tower": "The same as POST requests to a program that the demo runs.",
}
STORES: Final = ("search", "board", "warehouse")
"""Those that hold rows, which are compared at the end."""
EVENT_STORES: Final = ("bus", "tower")
STREAM: Final = "outbox.flight"


@dataclass(slots=True)
class Stage:
    """Everything that runs beside the daemon."""

    folder: Path
    postgres: Postgres
    opensearch: OpenSearch
    valkey: Valkey
    receiver: DemoReceiver
    http_port: int
    first: bool
    """No demo has run in the folder before."""
    _lock: IO[str]

    @property
    def configuration(self) -> Path:
        return self.folder / "cdc.toml"

    @property
    def page(self) -> str:
        return page_at(self.http_port)

    @property
    def dsn(self) -> str:
        return self.postgres.unix_dsn(DATABASE)

    def write_configuration(self) -> None:
        text = toml(
            {
                "": {"run_dir": "run"},
                # Small chunks, as each is one step of a store's load.
                "source": {"dsn": self.dsn, "tables": ["public.*"], "snapshot_chunk_rows": 5_000},
                "log": {"dir": "log"},
                "outbox": {"prefix": OUTBOX},
                **flightviews.SECTIONS,
                "stores.search": {
                    "kind": "opensearch",
                    "url": self.opensearch.url,
                    "tables": ["public.flights", "public.airports", "public.airlines"],
                    "views": flightviews.HELD,
                },
                "stores.board": {"kind": "redis", "url": self.valkey.url, "views": flightviews.HELD},
                "stores.board.tables": {"select": ["public.flights"]},
                'stores.board.tables."public.flights"': {"key": "flight:{id}"},
                'stores.board.tables."public.flights".computed': {"mph": "60 * distance_miles / air_time_min"},
                **{f'stores.board.tables."{topic_of(view)}"': {"key": flightviews.CACHE_KEYS[view]} for view in flightviews.HELD},
                "stores.departures": {
                    "kind": "redis-stream",
                    "url": self.valkey.url,
                    "tables": ["public.flights"],
                    "stream": departures.STREAM,
                    "when": "op = 'update' AND changed(status) AND status = 'departed'",
                    "maxlen": 10_000,
                },
                "stores.warehouse": {"kind": "iceberg", "path": "warehouse", "tables": ["public.*"]},
                "stores.bus": {"kind": "redis-stream", "url": self.valkey.url, "tables": ["outbox.*"], "begin": "start"},
                "stores.tower": {
                    "kind": "webhook",
                    "url": f"{self.receiver.url}/{{type}}",
                    "secret": SECRET,
                    "tables": ["outbox.*"],
                    "begin": "start",
                },
                "http": {"listen": f"127.0.0.1:{self.http_port}"},
            },
            _NOTES,
        )
        write_whole(self.configuration, text.encode(), 0o600)  # as every file that a secret stands in

    def start(self, say: Callable[[str], None]) -> None:
        """Starts the servers. Raises EmbeddedError when one does not start."""
        # The slowest first: it comes up while the others start.
        (self.folder / "opensearch").mkdir(exist_ok=True)
        self.opensearch.launch()
        self.postgres.start()
        say(f"Postgres {self.postgres.version}: {self.postgres.unix_dsn(DATABASE)}")
        self.valkey.start()
        say(f"Valkey on port {self.valkey.port}")
        _create_database(self.postgres)

    def wait_ready(self, say: Callable[[str], None]) -> None:
        """Returns when the slowest server is there, too. Raises EmbeddedError."""
        self.opensearch.wait_ready()
        say(f"OpenSearch on port {self.opensearch.port}")

    def stop(self) -> None:
        """Ends the servers; what they hold stays."""
        self.receiver.stop()
        self.opensearch.stop()
        self.valkey.stop()
        self.postgres.stop()
        self._lock.close()


def set_up(folder: Path, *, fresh: bool, say: Callable[[str], None]) -> Stage:
    """Takes the folder, says the page's address, and starts the servers. Raises EmbeddedError when one does not start, or when another demo
    runs in the folder."""
    stage = claim(folder, fresh=fresh, say=say)
    try:
        stage.start(say)
        stage.wait_ready(say)
    except BaseException:
        stage.stop()
        raise
    return stage


def claim(folder: Path, *, fresh: bool, say: Callable[[str], None]) -> Stage:
    """Takes the folder and says where the page will be; nothing runs yet. Raises EmbeddedError when another demo runs in the folder."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # the servers' files are readable to all where the umask lets them
    first = not (folder / ".lock").exists()
    lock = (folder / ".lock").open("w", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise EmbeddedError(f"another demo runs in {folder}", hint="end it first, or use --folder") from None
    http_port = free_port_like(_HTTP_PORT)
    say(f"status page: {page_at(http_port)} (answers in half a minute)")
    # Over its socket alone: the traffic's superuser is not for everyone on this machine.
    postgres = Postgres(folder / "postgres", options={"listen_addresses": ""}, port=free_port_like(_POSTGRES_PORT))
    if fresh:
        _clear(folder, postgres.folder)
    return Stage(
        folder,
        postgres,
        OpenSearch(folder / "opensearch", heap_mb=512, preferred_port=_OPENSEARCH_PORT),
        Valkey(folder / "valkey", port=free_port_like(_VALKEY_PORT)),
        DemoReceiver(free_port_like(_RECEIVER_PORT)),
        http_port,
        first,
        lock,
    )


def page_at(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _clear(folder: Path, data: Path) -> None:
    shutil.rmtree(data, ignore_errors=True)
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != ".lock":
            entry.unlink()


def _create_database(server: Postgres) -> None:
    with psycopg.connect(server.unix_dsn(), autocommit=True) as connection:
        if connection.execute("select 1 from pg_database where datname = %s", [DATABASE]).fetchone() is None:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
