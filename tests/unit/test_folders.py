"""Whose folders are taken, what becomes of their modes, and that files written aside are never somebody else's."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cdc.capture.toast import ToastMemory
from cdc.embedded.cache import cache_folder, locked, write_whole
from cdc.errors import ConfigError, Stopped, StopState, StoreError
from cdc.folders import own, own_code, own_data
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import Position
from cdc.source.identity import Identity, record
from cdc.state import approvals, jsonfile, rebuilds, reloads, status, stops
from sinks.warehouse.options import Options
from sinks.warehouse.scratch import Scratch
from sinks.warehouse.sink import Warehouse
from snapshots.requests import Request, Requests
from tests.unit.sinks.test_past import logged

STRANGER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
Taken = Callable[[Path, str], None]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A folder that everyone may read and write, with a file in a folder in it."""
    folder = tmp_path / "wide"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").touch()
    folder.chmod(0o777)
    return folder


@pytest.mark.parametrize("take", [own, own_code])
def test_a_folder_that_is_missing_is_made_for_us_alone(tmp_path: Path, take: Taken) -> None:
    before = os.umask(0)
    try:
        take(tmp_path / "a" / "b", "run_dir")
    finally:
        os.umask(before)
    assert mode(tmp_path / "a" / "b") == 0o700


@pytest.mark.parametrize(("open_to", "closed"), [(0o755, 0o700), (0o750, 0o700), (0o777, 0o700), (0o770, 0o700), (0o700, 0o700)])
def test_ours_is_closed_to_others_and_that_is_said_once(tmp_path: Path, open_to: int, closed: int) -> None:
    tmp_path.chmod(open_to)
    with capture_logs() as said:
        own(tmp_path, "log.dir")
        own(tmp_path, "log.dir")
    assert mode(tmp_path) == closed
    assert [line["event"] for line in said] == ["a folder was open to others and no longer is"] * (open_to != closed)


@pytest.mark.parametrize(("open_to", "closed"), [(0o755, 0o755), (0o775, 0o755), (0o777, 0o755), (0o700, 0o700)])
@pytest.mark.parametrize("take", [own_code, own_data])
def test_code_and_the_warehouse_may_be_read_by_others_but_not_written(
    tmp_path: Path, open_to: int, closed: int, take: Taken
) -> None:
    tmp_path.chmod(open_to)
    take(tmp_path, "HEADWATER_CACHE")
    assert mode(tmp_path) == closed


@as_root
@pytest.mark.parametrize("take", [own, own_code, own_data])
def test_somebody_elses_folder_is_refused(tmp_path: Path, take: Taken) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    os.chown(folder, STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=f"run_dir: {folder} belongs to .*, not to root") as caught:
        take(folder, "run_dir")
    assert f"chown -R root {folder}" in (caught.value.hint or "")


@as_root
@pytest.mark.parametrize("take", [own, own_code, own_data])
def test_what_others_could_have_put_there_is_not_believed(wide: Path, take: Taken) -> None:
    take_first = wide / "deep" / "file"
    os.chown(take_first, STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=f"others may write in {wide}, and {take_first} belongs to"):
        take(wide, "run_dir")
    assert mode(wide) == 0o777, "it is asked again next time"
    take_first.unlink()
    take(wide, "run_dir")
    assert not mode(wide) & 0o022


@as_root
@pytest.mark.parametrize("take", [own, own_code, own_data])
@pytest.mark.parametrize("below", ["", "below"])
def test_a_link_is_followed_where_it_is_ours(tmp_path: Path, take: Taken, below: str) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    take(link / below, "log.dir")
    os.lchown(link, STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=f"{link} is a symbolic link that belongs to"):
        take(link / below, "log.dir")


def test_readers_that_somebody_let_in_by_name_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o750)
    monkeypatch.setattr(os, "getxattr", lambda *_: b"an access control list", raising=False)
    own(tmp_path, "log.dir")
    assert mode(tmp_path) == 0o750
    tmp_path.chmod(0o770)
    own(tmp_path, "log.dir")
    assert mode(tmp_path) == 0o700


def test_the_log_and_the_cache_are_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").mkdir(mode=0o755)
    EmbeddedLogWriter(tmp_path / "log").close()
    assert mode(tmp_path / "log") == 0o700
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    assert mode(cache_folder()) == 0o755


class Opened(Exception):
    """The warehouse's folder was taken, and its catalog is next."""


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    def connected(_: Warehouse) -> None:
        raise Opened

    monkeypatch.setattr(Warehouse, "_connected", connected)
    return Warehouse("house", Options(kind="iceberg", path=tmp_path / "wide"))


def test_a_warehouse_that_others_may_write_in_is_closed_before_it_is_read(wide: Path, warehouse: Warehouse) -> None:
    with pytest.raises(Opened):
        warehouse.open(logged(), epoch=1)
    assert mode(wide) == 0o755


@as_root
@pytest.mark.parametrize("whose", ["", "deep/file"])
def test_a_warehouse_that_holds_what_others_made_is_refused(wide: Path, warehouse: Warehouse, whose: str) -> None:
    os.chown(wide / whose, STRANGER, STRANGER)
    with pytest.raises(StoreError, match=r"stores\.house\.path: .* belongs to") as caught:
        warehouse.open(logged(), epoch=1)
    assert not caught.value.retryable


def test_a_link_in_place_of_a_lock_in_the_warehouse_is_not_followed(tmp_path: Path) -> None:
    home = tmp_path / "staging"
    home.mkdir()
    (home / ".lock").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="symbolic links"):
        Scratch(home).folder()
    assert not (tmp_path / "made").exists()


def stop(folder: Path) -> None:
    stops.record(folder, "capture", Stopped(StopState.DIVERGED, "the server lacks what the log holds"))


WRITERS: dict[str, Callable[[Path], object]] = {
    f"status/.capture.{os.getpid()}": lambda folder: status.write(folder, "capture", status.CaptureStatus()),
    f"stops/.capture.DIVERGED.json.{os.getpid()}": stop,
    f"schema/.cache.json.{os.getpid()}": lambda folder: approvals.ask(folder, "cache", "public.t", Position(7)),
    f"rebuild/.cache.json.{os.getpid()}": lambda folder: rebuilds.request(folder, "cache", StopState.DIVERGED),
    f".reload.json.{os.getpid()}": lambda folder: reloads.request(folder, StopState.DIVERGED),
    "file.aside": lambda folder: jsonfile.write(folder / "file.json", {"a": 1}),
    f".source.json.{os.getpid()}": lambda folder: record(folder, Identity("73", 1, "shop", "cdc", "cdc", 5, 0)),
    f".whole.{os.getpid()}": lambda folder: write_whole(folder / "whole", b"x"),
}


@pytest.mark.parametrize("aside", WRITERS, ids=range(len(WRITERS)))
def test_a_link_where_a_file_is_written_aside_is_not_followed(tmp_path: Path, aside: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / aside).parent.mkdir(exist_ok=True)
    (tmp_path / aside).symlink_to(victim)
    WRITERS[aside](tmp_path)
    assert victim.read_text() == "precious"
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path != victim]
    assert len(written) == 1
    assert not written[0].is_symlink()
    assert mode(written[0]) == (0o644 if "whole" in aside else 0o600), "whatever the umask"


def test_a_link_in_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".jars.lock").symlink_to(victim)
    with pytest.raises(OSError), locked("jars", tmp_path):
        pass
    assert victim.read_text() == "precious"


@as_root
@pytest.mark.parametrize("aside", [aside for aside in WRITERS if "whole" not in aside], ids=range(len(WRITERS) - 1))
def test_what_root_leaves_in_an_accounts_folder_is_the_accounts(tmp_path: Path, aside: str) -> None:
    os.chown(tmp_path, STRANGER, STRANGER)
    WRITERS[aside](tmp_path)
    Requests(tmp_path).queue(Request("public.t"))
    assert {path.stat().st_uid for path in tmp_path.rglob("*")} == {STRANGER}


@as_root
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_root_gives_away_nothing_that_an_account_put_in_a_new_folders_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The account may rename what root has just made in its folder, and put a link there."""
    victim = tmp_path / "victim"
    if kind == "file":
        victim.write_text("precious")
    else:
        victim.mkdir()
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, STRANGER, STRANGER)
    mkdir = Path.mkdir

    def swapped(folder: Path, *args: int, **options: bool) -> None:
        mkdir(folder, *args, **options)
        folder.rename(home / "away")
        folder.symlink_to(victim)

    monkeypatch.setattr(Path, "mkdir", swapped)
    with pytest.raises(NotADirectoryError):
        jsonfile.make_folder(home / "stops")
    assert victim.stat().st_uid == 0


@pytest.mark.parametrize("aside", [aside for aside in WRITERS if aside.startswith(("stops/", "schema/", "rebuild/"))], ids=range(3))
def test_what_is_durable_is_not_lost_with_the_new_folder_that_it_lies_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside: str
) -> None:
    """A file that is synced in a folder whose own name never reached the disk is gone with it after a power loss."""
    synced: list[str] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    WRITERS[aside](tmp_path / "run")
    assert {str(tmp_path), str(tmp_path / "run"), str((tmp_path / "run" / aside).parent)} <= set(synced)


def test_remembered_values_are_private(tmp_path: Path) -> None:
    memory = ToastMemory(tmp_path / "toast.db")
    memory.commit(7)
    assert {mode(path) for path in tmp_path.iterdir()} == {0o600}
    memory.close()
