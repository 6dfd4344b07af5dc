"""Jars by Maven coordinates: resolved by Ivy (it ships with pyspark, and knows the public repository by itself), verified by us.

A ``*.lock`` beside this module lists a set's files, one ``sha256  path`` a line; a path is where Maven's layout puts the jar and so holds
its coordinates. Each file is fetched by itself, without its dependencies: the lock is the whole truth about what is on a class path.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from cdc.embedded import EmbeddedError
from cdc.embedded.cache import cache_folder, locked
from cdc.embedded.java import java, java_home
from cdc.embedded.truststore import system_trust_options

KAFKA, OPENSEARCH, SPARK = "kafka", "opensearch", "spark"
ALL = (SPARK, OPENSEARCH, KAFKA)
_ATTEMPTS = 4
_FETCHERS = 4
"""Ivy fetches one file after the other; so many of it run side by side."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Jar:
    """One locked file. ``path`` is relative, in Maven's layout: group/as/folders/artifact/version/artifact-version.jar, or …/artifact-version-classifier.extension."""

    sha256: str
    path: str

    @property
    def coordinates(self) -> tuple[str, str, str]:
        """(organisation, artifact, version)."""
        *group, artifact, version, _file = self.path.split("/")
        return ".".join(group), artifact, version

    @property
    def kind(self) -> tuple[str, str]:
        """(classifier, extension); a jar has no classifier."""
        *_, artifact, version, file = self.path.split("/")
        classifier, _, extension = file.removeprefix(f"{artifact}-{version}").partition(".")
        return classifier.removeprefix("-"), extension


@dataclass(frozen=True, slots=True)
class SparkJars:
    """The jars that a Spark session needs from outside pyspark."""

    java_home: Path
    iceberg: Path
    bare_naked: Path
    """The file system class that does not fork; it goes on the driver's own class path, not into ``spark.jars``."""
    beside: tuple[Path, ...] = ()
    """What Iceberg needs for other catalogs and for object storage."""


def spark_jars(report: Report = lambda _line: None) -> SparkJars:
    """Fetches what is missing. Raises EmbeddedError when a file cannot be had or is not the one that we locked."""
    iceberg, bare_naked, *beside = fetch(SPARK, report)
    return SparkJars(java_home(), iceberg, bare_naked, tuple(beside))


def lock(name: str) -> tuple[Jar, ...]:
    lines = (Path(__file__).parent / f"{name}.lock").read_text(encoding="utf-8").splitlines()
    return tuple(Jar(*line.split()) for line in lines if line and not line.startswith("#"))


def fetch(name: str, report: Report = lambda _line: None) -> list[Path]:
    """The set's files, all present and verified, in the lock's order; ``report`` gets a line of progress now and then.

    Raises EmbeddedError when a file cannot be had or is not the one that we locked.
    """
    jars = lock(name)
    home = cache_folder() / "jars"
    if not _missing(jars, home):
        return [home / jar.path for jar in jars]
    with locked("jars"):
        for attempt in range(_ATTEMPTS):
            missing = _missing(jars, home)
            if not missing:
                break
            if attempt:
                time.sleep(2**attempt)
            report(f"{name}: fetching {len(missing)} of {len(jars)} jars")
            _fetch_missing(missing, home)
        missing = _missing(jars, home)
    if missing:
        raise EmbeddedError(
            f"{len(missing)} jars of {name} could not be fetched, the first is {missing[0].path}",
            hint=f"is the package registry reachable? What Ivy said is in {home / 'ivy.log'}",
        )
    report(f"{name}: {len(jars)} jars verified")
    return [home / jar.path for jar in jars]


def _missing(jars: Iterable[Jar], home: Path) -> list[Jar]:
    # Read each time (0.1 s of Spark's start): what is on a class path is not believed because of where it lies: others may write there.
    return [jar for jar in jars if _sha256(home / jar.path) != jar.sha256]


def _sha256(path: Path) -> str | None:
    """None when the file does not exist."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _fetch_missing(jars: Sequence[Jar], home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix=".fetch-") as scratch:
        trust = system_trust_options(Path(scratch) / "trust.jks")
        shares = [share for share in (jars[start::_FETCHERS] for start in range(_FETCHERS)) if share]
        running = [_start_ivy(share, Path(scratch) / str(number), trust) for number, share in enumerate(shares)]
        for process in running:
            process.wait()
        with (home / "ivy.log").open("wb") as said:
            for number, share in enumerate(shares):
                folder = Path(scratch) / str(number)
                said.write((folder / "ivy.log").read_bytes())
                for jar in share:
                    _take(jar, folder / "out" / jar.path, home)


def _take(jar: Jar, fetched: Path, home: Path) -> None:
    if not fetched.is_file():
        return
    found = _sha256(fetched)
    if found != jar.sha256:
        raise EmbeddedError(
            f"{jar.path} is not the file that we locked: its sha256 is {found}, expected {jar.sha256}",
            hint="do not use it; compare with another network, then tell the maintainers",
        )
    target = home / jar.path
    target.parent.mkdir(parents=True, exist_ok=True)
    with fetched.open("rb") as handle:
        os.fsync(handle.fileno())
    shutil.move(fetched, target)


def _start_ivy(jars: Sequence[Jar], folder: Path, options: Sequence[str]) -> subprocess.Popen[bytes]:
    folder.mkdir()
    (folder / "settings.xml").write_text(_SETTINGS, encoding="utf-8")
    (folder / "ivy.xml").write_text(_module(jars), encoding="utf-8")
    argv = [java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *options, *_proxy_options()]
    argv += ["-cp", _ivy_jar(), "org.apache.ivy.Main", "-settings", folder / "settings.xml", "-cache", folder / "cache"]
    argv += ["-ivy", folder / "ivy.xml", "-confs", "default", "-warn"]
    argv += ["-retrieve", f"{folder}/out/[orgPath]/[module]/[revision]/[artifact]-[revision](-[classifier]).[ext]"]
    with (folder / "ivy.log").open("wb") as said:
        return subprocess.Popen([str(part) for part in argv], stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=folder)


# No POMs (the lock names every file) and no checksums from the repository (ours are better): one request a jar.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="public"/>
  <property name="ivy.checksums" value=""/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false" useMavenMetadata="false"/></resolvers>
</ivysettings>
"""


def _module(jars: Iterable[Jar]) -> str:
    lines = []
    for jar in jars:
        organisation, artifact, version = map(quoteattr, jar.coordinates)
        classifier, extension = map(quoteattr, jar.kind)
        lines.append(
            f'    <dependency org={organisation} name={artifact} rev={version} transitive="false" conf="default->default">'
            f"<artifact name={artifact} type={extension} ext={extension}"
            + (f" m:classifier={classifier}/></dependency>" if jar.kind[0] else "/></dependency>")
        )
    body = "\n".join(lines)
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">\n  <info organisation="headwater" module="jars"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f'  <dependencies defaultconf="default">\n{body}\n    <conflict manager="all"/>\n  </dependencies>\n</ivy-module>\n'
    )


def _proxy_options() -> list[str]:
    """Java does not read the proxy variables that every other client does."""
    address = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY")
    if not address:
        return []
    parts = urlsplit(address)
    return [f"-Dhttps.proxyHost={parts.hostname}", f"-Dhttps.proxyPort={parts.port or 443}"]


def _ivy_jar() -> Path:
    import pyspark

    found = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise EmbeddedError("pyspark brings no Ivy, which fetches the jars", hint="make setup installs the pyspark that does")
    return found[-1]
