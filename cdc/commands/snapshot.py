"""`cdc snapshot`: reads a table, some of its rows or certain keys once more while streaming goes on."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.commands.invocation import finite, invocation
from cdc.commands.output import console, print_json, say
from cdc.errors import ConfigError, HeadwaterError, Stopped, WaitTimeout
from cdc.settings.models import Settings
from cdc.state import status, stops
from cdc.terminal import counted, visible

if TYPE_CHECKING:
    from snapshots.requests import RequestOutcome, Requests

_LOOK_S = 0.2


def snapshot(
    context: typer.Context,
    table: Annotated[str, typer.Argument(help="schema.table, as the publication has it.")],
    where: Annotated[str | None, typer.Option(help="Only the rows that meet this SQL condition.")] = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            help="Only the rows with these keys, one a line; a JSON array for a key of several columns, in the index's order."
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Read the whole table, and remove what the log has of rows that are gone.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when the rows are in the log, or at once.")] = True,
    timeout: Annotated[float | None, typer.Option(help="Seconds to wait; exit 3 after that.", min=0.0, callback=finite)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read a table again into the log while streaming goes on.

    Rows that are stale in the log are corrected. A row that the source has no more is removed with --replace (the whole table) and with
    --keys (a key that no row has becomes a delete), not with --where. The request is durable: capture takes it up as soon as it runs.
    """
    from snapshots.requestcheck import WrongKey, check_request
    from snapshots.requests import Request, Requests
    from snapshots.session import Unreachable, open_session

    settings = invocation(context).settings()
    if where is not None and keys is not None:
        raise ConfigError("give either --where or --keys")
    if replace and (where is not None or keys is not None):
        raise ConfigError("--replace reads the whole table", hint="leave --where and --keys out")
    wanted = None if keys is None else read_keys(keys)
    request = Request(table, where, None if wanted is None else tuple(wanted.values()), replace)
    try:
        with closing(open_session(settings.source.dsn.get_secret_value())) as connection:
            check_request(connection, request, settings.source)
    except Unreachable as error:
        raise HeadwaterError(str(error), hint="cdc doctor") from None
    except WrongKey as error:
        raise ConfigError(f"{keys}, line {list(wanted or ())[error.place]}: {error.problem}") from None
    requests = Requests(settings.log.dir)
    running = _capture_runs(settings)
    if wait and not running:
        stops.check(settings.run_dir, "capture")
    name = requests.queue(request)
    if not wait:
        _print(name, request.table, requests.outcome(name), as_json, running)
        return
    try:
        outcome = _wait(settings, requests, name, table, timeout, quiet=as_json)
    except KeyboardInterrupt:
        _warn(f"request {name} is kept, and {_later(settings)}")
        raise
    requests.forget(name)
    if outcome.state == "failed":
        raise HeadwaterError(f"the snapshot of {table} failed: {outcome.error}")
    _print(name, table, outcome, as_json, running)


def read_keys(path: Path) -> dict[int, tuple[str, ...]]:
    """The keys that the file lists, by line number: a line is a key, or a JSON array of its columns. Raises ConfigError naming the line."""
    try:
        lines = (
            path.read_bytes().decode("utf-8-sig").split("\n")
        )  # splitlines also cuts at what keys may hold: form feeds, Unicode's separators
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {(error.strerror or type(error).__name__).lower()}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    keys: dict[int, tuple[str, ...]] = {}
    for number, line in enumerate((line.removesuffix("\r") for line in lines), 1):
        if not line:
            continue
        if not line.startswith("["):
            keys[number] = (line,)
            continue
        try:
            fields = json.loads(line, parse_int=str, parse_float=str)
        except (ValueError, RecursionError):
            hint = 'a key that itself begins with [ is written as an array of one, such as ["[1,5)"]'
            raise ConfigError(f"{path}, line {number}: is not a JSON array", hint=hint) from None
        if not fields or not all(isinstance(field, str) for field in fields):
            raise ConfigError(f"{path}, line {number}: a key's columns are texts or numbers")
        if any("\ud800" <= letter <= "\udfff" for field in fields for letter in field):
            raise ConfigError(f"{path}, line {number}: no database holds half of a surrogate pair")
        keys[number] = tuple(fields)
    if not keys:
        raise ConfigError(f"{path} lists no key")
    return keys


def _capture_runs(settings: Settings) -> bool:
    capture = status.read_capture(settings.run_dir)
    return capture is not None and capture.state not in ("exited", "stopped") and status.alive(capture.pid)


def _wait(settings: Settings, requests: Requests, name: str, table: str, timeout_s: float | None, *, quiet: bool) -> RequestOutcome:
    from snapshots.display import ProgressDisplay

    display = ProgressDisplay(console())
    began, ran = time.monotonic(), True
    try:
        while (outcome := requests.outcome(name)).state not in ("done", "failed"):
            _refuse_stopped(settings, name)
            runs = _capture_runs(settings)
            if timeout_s is not None and time.monotonic() - began > timeout_s:
                what = f"the snapshot of {table} is not done after {timeout_s:g} s; request {name} is kept, and {_later(settings)}"
                raise WaitTimeout(what, hint="cdc status" if runs else "cdc run")
            if ran and not runs:
                _warn(f"request {name} is kept, and {_later(settings)}")
            ran = runs
            if not quiet and outcome.state == "running":
                display.update([status.TableProgress(table, outcome.rows, outcome.total)])
            time.sleep(_LOOK_S)
        return outcome
    finally:
        display.close()


def _refuse_stopped(settings: Settings, name: str) -> None:
    """Raises Stopped where capture waits for an operator."""
    try:
        stops.check(settings.run_dir, "capture")
    except Stopped:
        _warn(f"request {name} is kept, and taken up once capture was resumed")
        raise


def _later(settings: Settings) -> str:
    if _capture_runs(settings):
        return "goes on in capture (cdc status)"
    return "taken up as soon as capture runs (cdc run); it does not run now"


def _warn(text: str) -> None:
    """Beside the outcome, which may be JSON."""
    sys.stderr.write(f"{visible(text)}\n")


def _print(name: str, table: str, outcome: RequestOutcome, as_json: bool, running: bool) -> None:
    if as_json:
        facts = {"request": name, "table": table, "state": outcome.state, "rows": outcome.rows, "capture_runs": running}
        print_json(facts)
    elif outcome.state == "done":
        say(f"{table}: {counted(outcome.rows, 'row')} read into the log")
    else:
        later = "capture takes it up now" if running else "taken up as soon as capture runs (cdc run); it does not run now"
        say(f"{table}: request {name} is kept; {later}")
