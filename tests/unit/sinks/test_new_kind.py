"""A kind of store that nobody has heard of: one module and one line, and everything in the product serves it."""

from __future__ import annotations

import ast
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest
from pydantic import SecretStr

from cdc.client import wait as waiting
from cdc.commands import preflight, starter
from cdc.commands.transport import check_transport
from cdc.errors import ConfigError
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Lsn
from cdc.model.topic import TopicSchema
from cdc.report.collector import gather
from cdc.report.probe import SourceProbe
from cdc.settings.file import SettingsError, load
from cdc.settings.models import Settings
from cdc.source.slot import SlotFacts
from cdc.spark.queries import run_followers
from cdc.state import status
from sinks import KINDS, options_model
from sinks.contract import Traits
from sinks.memory import MemorySink
from sinks.memory import Options as MemoryOptions
from tests.contract.rows import ORDERS, batch, order

ROOT = Path(__file__).resolve().parents[3]
WITH_SERVERS = {"demo", "embedded"}
"""They start a server for some kinds."""
ROOMS = sorted({path.parent.name for path in (ROOT / "cdc").glob("*/__init__.py")} - WITH_SERVERS)
KIND = "shelf"


class Options(MemoryOptions):
    plain_schemes: ClassVar = {"shelf": "shelfs"}
    example: ClassVar = ("shelf", 'url = "shelf://127.0.0.1:1"')

    url: SecretStr
    fits: bool = True

    @property
    def server_urls(self) -> Mapping[str, SecretStr]:
        return {"url": self.url}


class Shelf(MemorySink):
    """A memory sink that remembers what it was asked."""

    refreshed: ClassVar[list[str]] = []

    def __init__(self, name: str, options: Options) -> None:
        super().__init__(name, options)
        self._fits = options.fits

    def foresee(self, schemas: Sequence[TopicSchema]) -> None:
        if not self._fits:
            raise ConfigError(f"{schemas[0].topic} does not fit on a shelf")

    def make_visible(self) -> None:
        self.refreshed.append(self.name)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = ModuleType("made_up_shelf")
    vars(module).update(Options=Options, make=Shelf, traits=lambda _: Traits(refreshes=True))
    monkeypatch.setitem(sys.modules, "made_up_shelf", module)
    monkeypatch.setitem(KINDS, KIND, "made_up_shelf")
    yield
    Shelf.refreshed.clear()


class Probe(SourceProbe):
    """A source with one slot, without a server."""

    def _facts(self) -> SlotFacts | None:
        return SlotFacts(name="cdc", exists=True, server_lsn=Lsn(1))


def configured(folder: Path, **more: str) -> Settings:
    lines = [
        *("[source]", 'dsn = "postgresql://h/d"', "[log]", 'dir = "log"', f"[stores.s{uuid.uuid4().hex[:8]}]"),
        *(f'kind = "{KIND}"', 'url = "shelf://u:canary@elsewhere:1"', *(f"{key} = {value}" for key, value in more.items())),
    ]
    file = folder / "cdc.toml"
    file.write_text("\n".join(lines))
    file.chmod(0o600)
    return load(file, options_model)


@contextmanager
def followed(settings: Settings) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(
        target=run_followers, args=(settings.log.dir, settings.run_dir, settings.stores), kwargs={"stop": stop}
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


def test_it_is_followed_reported_and_waited_for(tmp_path: Path) -> None:
    settings = configured(tmp_path)
    [name] = settings.stores
    with closing(EmbeddedLogWriter(settings.log.dir)) as writer:
        writer.append(batch(ORDERS, [(Op.INSERT, 1, order(1, "new"))]))
        writer.commit(Lsn(1), 1)
    status.write(settings.run_dir, "capture", status.CaptureStatus(pid=1, state="streaming", received_lsn=1, complete_position=0))
    with followed(settings), closing(EmbeddedLogReader(settings.log.dir)) as reader:
        assert Shelf.refreshed == []
        waiting.wait(settings, reader, name, lsn=Lsn(1), timeout_s=60)
        [follower] = gather(settings, reader, Probe(settings.source.dsn, "cdc")).followers
        assert (follower.store, follower.kind, follower.position, follower.written) == (name, KIND, 1, 1)
    assert Shelf.refreshed == [name], "what is waited for has to be visible"


def test_doctor_asks_it_and_names_what_does_not_fit(tmp_path: Path) -> None:
    settings = configured(tmp_path)
    [name] = settings.stores
    EmbeddedLogWriter(settings.log.dir).close()
    assert [finding.level for finding in preflight._store(settings, name, [ORDERS])] == ["ok"]
    assert [finding.check for finding in check_transport(settings)][-1:] == [f"store {name} TLS"]
    settings = configured(tmp_path, fits="false")
    [name] = settings.stores
    [found] = preflight._store(settings, name, [ORDERS])
    assert (found.level, found.message) == ("fail", "public.orders does not fit on a shelf")


def test_it_is_proposed_and_its_own_keys_are_known(tmp_path: Path) -> None:
    lines = list(starter.configuration(None, []))
    assert lines[-6:-3] == ["# [stores.shelf]", '# kind = "shelf"', '# url = "shelf://127.0.0.1:1"']
    with pytest.raises(SettingsError, match="fitss: unknown key") as caught:
        configured(tmp_path, fitss="true")
    assert caught.value.hint == "did you mean fits?"


def _named(path: Path) -> Iterator[str]:
    """The kinds that code names: whole texts equal to one, and imports of a store's module. What a docstring says is no code."""
    folders = {module.rpartition(".")[2] for module in KINDS.values()} | {"search", "cache", "warehouse"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and node.value in KINDS:
            yield f"{path.name}:{node.lineno} names {node.value}"
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [name.name for name in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            room, _, folder = module.partition(".")
            if room == "sinks" and folder.split(".")[0] in folders:
                yield f"{path.name}:{node.lineno} imports {module}"


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_outside_a_stores_folder_names_its_kind(room: str) -> None:
    assert [line for path in sorted((ROOT / "cdc" / room).rglob("*.py")) for line in _named(path)] == []


def test_what_names_a_kind_is_found(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text('if kind == "redis":\n    import sinks.search.sink\nfrom sinks.cache import resp\nimport sinks.contract\n')
    assert len(list(_named(file))) == 3
