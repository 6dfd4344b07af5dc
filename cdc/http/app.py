"""The HTTP port: the page, the API, the metrics. Nothing here changes anything.

==================  ===================================================================================================================
``/``               the status page
``/healthz``        200 while the process answers
``/readyz``         200 ``{"ready": true}`` when the service is healthy, or 503 ``{"ready": false, "reasons": […]}`` with its problems
``/metrics``        ``cdc.http.metrics``, in Prometheus's text format (OpenMetrics when asked for)
``/v1/status``      ``cdc.report.shape.Report.to_json()``; 503 ``{"error", "hint"}`` when the log cannot be read
``/v1/wait``        ``?store=NAME&lsn=16/B374D848&timeout=60``: 200 ``{"reached": true, "store", "lsn", "position", "seconds"}``; 504
                    ``{"reached": false, "error", "hint"}`` after the timeout (seconds, at most 300); 409 when a part that is waited
                    for is in a stop state; 503 when nobody can tell, or the daemon ends; 400 for bad input; 404 for an unknown store; without
                    ``lsn`` everything committed by now
``/v1/events``      server-sent: ``history`` once, then ``status`` (as ``/v1/status``) or ``failure`` every second
==================  ===================================================================================================================
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from threading import Event
from typing import Final

import anyio
import anyio.to_thread
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from cdc.client import wait as waiting
from cdc.client.wait import Waited
from cdc.errors import ConfigError, HeadwaterError, Stopped, WaitTimeout
from cdc.http.events import EventStream, Failure, Feed
from cdc.http.guard import Guard, access_of
from cdc.http.metrics import ReportCollector
from cdc.http.waits import Waits, wait_while_asked
from cdc.log.home import open_reader
from cdc.model.position import Lsn, format_lsn
from cdc.report.collector import gather
from cdc.report.currentlog import CurrentLog
from cdc.report.probe import SourceProbe
from cdc.report.shape import Report
from cdc.settings.models import Settings

DEFAULT_WAIT_S: Final = 60.0
MAX_WAIT_S: Final = 300.0
MAX_WAITERS: Final = 32
_PAGE: Final = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/parts.js": ("parts.js", "text/javascript"),
    "/words.js": ("words.js", "text/javascript"),
    "/draw.js": ("draw.js", "text/javascript"),
    "/stream.js": ("stream.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

Take = Callable[[], Report]
Wait = Callable[[str, Lsn | None, float, Event], Waited]
"""(store, LSN, timeout in seconds, set when the client has gone) → what the store shows."""


def make_app(
    settings: Settings, *, take: Take | None = None, wait: Wait | None = None, current: Callable[[], Settings] | None = None
) -> Starlette:
    """The application for these settings. ``take`` and ``wait`` stand in for the real report and the real waiting.

    current: the settings in force, whose stores may change.
    Raises ConfigError when ``[http]`` would open the port to others without a token and TLS.
    """
    now = current or (lambda: settings)
    access = access_of(settings.http)
    reader = open_reader(settings.log.dir)
    probe = SourceProbe(settings.source.dsn, settings.source.slot)
    feed = Feed(take or _looking(CurrentLog(reader, settings.log.dir), now, probe), settings.run_dir)
    wait_for = wait or (lambda *asked: wait_while_asked(now(), reader, *asked))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.waiters = anyio.CapacityLimiter(MAX_WAITERS)
        sampling = asyncio.create_task(feed.run())
        try:
            yield
        finally:
            sampling.cancel()
            with suppress(asyncio.CancelledError):
                await sampling
            probe.close()
            reader.close()

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        reasons = unready(await feed.latest())
        return JSONResponse({"ready": not reasons, **({"reasons": reasons} if reasons else {})}, 503 if reasons else 200)

    async def status(_: Request) -> Response:
        latest = await feed.latest()
        return JSONResponse(latest.to_json(), 503 if isinstance(latest, Failure) else 200)

    async def metrics(request: Request) -> Response:
        latest = await feed.latest()
        if isinstance(latest, Failure):
            return JSONResponse(latest.to_json(), 503)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(ReportCollector(latest))
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": content_type})

    async def events(_: Request) -> Response:
        if not feed.readers.enter():
            return JSONResponse({"error": "too many pages are open"}, 503, {"Retry-After": "10"})
        return EventStream(feed)

    async def wait_route(request: Request) -> Response:
        return await _wait(request, now(), wait_for)

    routes: list[BaseRoute] = [Route(path, _static(*page)) for path, page in _PAGE.items()]
    routes += [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", metrics),
        Route("/v1/status", status),
        Route("/v1/wait", wait_route),
        Route("/v1/events", events),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(Guard, access=access)], lifespan=lifespan)
    app.state.feed, app.state.waits = feed, Waits()
    return app


def _looking(log: CurrentLog, settings: Callable[[], Settings], probe: SourceProbe) -> Take:
    def look() -> Report:
        with log.looked_at() as reader:
            return gather(settings(), reader, probe)

    return look


def unready(latest: Report | Failure) -> list[str]:
    """Why the service is not ready: all that is wrong with it."""
    return [latest.error] if isinstance(latest, Failure) else list(latest.problems)


async def _wait(request: Request, settings: Settings, wait: Wait) -> Response:
    asked = request.query_params
    store = asked.get("store", "")
    try:
        if not store:
            raise ConfigError("store is missing", hint="/v1/wait?store=NAME&lsn=16/B374D848&timeout=60")
        if unknown := set(asked) - {"store", "lsn", "timeout"}:
            raise ConfigError(f"there is no parameter {min(unknown)!r}", hint="store, lsn, timeout")
        lsn = waiting.parse_wanted(asked["lsn"]) if "lsn" in asked else None
        timeout_s = _timeout_s(asked.get("timeout"))
    except ConfigError as error:
        return _refused(error, 400)
    if store not in settings.stores:
        return _refused(ConfigError(f"there is no store {store!r}", hint=f"stores: {', '.join(settings.stores) or 'none'}"), 404)
    limiter: anyio.CapacityLimiter = request.app.state.waiters
    if limiter.available_tokens < 1:
        return JSONResponse({"reached": False, "error": "too many are waiting already"}, 503, {"Retry-After": "5"})
    waits: Waits = request.app.state.waits
    with waits.one() as gone:
        watching = asyncio.create_task(_watch(request, gone))
        try:
            waited = await anyio.to_thread.run_sync(wait, store, lsn, timeout_s, gone, abandon_on_cancel=True, limiter=limiter)
        except WaitTimeout as error:
            if waits.ended:
                return _refused(HeadwaterError("this daemon is ending"), 503, {"Retry-After": "5"})
            return _refused(error, 504)
        except Stopped as error:
            return _refused(error, 409)
        except HeadwaterError as error:
            return _refused(error, 503)
        finally:
            watching.cancel()
    return JSONResponse(
        {
            "reached": True,
            "store": waited.store,
            "lsn": format_lsn(waited.lsn),
            "position": int(waited.position),
            "seconds": waited.seconds,
        }
    )


async def _watch(request: Request, gone: Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()


def _timeout_s(text: str | None) -> float:
    if text is None:
        return DEFAULT_WAIT_S
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = math.nan
    if not 0 <= timeout_s <= MAX_WAIT_S:
        raise ConfigError(f"timeout is a number of seconds from 0 to {MAX_WAIT_S:g}")
    return timeout_s


def _refused(error: HeadwaterError, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"reached": False, "error": str(error), "hint": error.hint}, status, headers)


def _static(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    body = files("cdc.http.page").joinpath(name).read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=media_type, headers=headers)

    return answer
