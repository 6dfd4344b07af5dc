"""A server of Iceberg's REST protocol for tests. No such server comes as an ordinary artifact, so this is a front of our own: HTTP is spoken here, and what is
asked is answered by Iceberg's own handlers (``CatalogHandlers``), which check a commit's requirements, over a catalog in the same JVM."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from py4j.protocol import Py4JJavaError

TOKEN: Final = "a-token-of-the-tests"
_SEPARATOR: Final = "\x1f"
_STATUS: Final = {
    "NoSuchTableException": 404,
    "NoSuchNamespaceException": 404,
    "AlreadyExistsException": 409,
    "CommitFailedException": 409,
    "ValidationException": 400,
    "IllegalArgumentException": 400,
}
_REST: Final = "org.apache.iceberg.rest"


class RestCatalog:
    """``catalog``: Iceberg's object for the one that keeps the tables."""

    def __init__(self, jvm: Any, catalog: Any) -> None:
        self.accepts: Callable[[str], bool] = lambda token: token == TOKEN
        self._jvm = jvm
        self._catalog = catalog
        self._handlers = jvm.org.apache.iceberg.rest.CatalogHandlers
        self._mapper = _mapper(jvm)
        modes = _class(jvm, f"{_REST}.RESTCatalogProperties$SnapshotMode")
        self._all = jvm.java.lang.Enum.valueOf(modes, "ALL")
        self.asked: list[str] = []
        server = self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        self._thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: str) -> tuple[int, str]:
        self.asked.append(f"{method} {path}")
        try:
            found = self._answer(method, [unquote(part) for part in path.strip("/").split("/")], query, body)
        except Py4JJavaError as error:
            name = error.java_exception.getClass().getSimpleName()
            status = _STATUS.get(name, 500)
            said = {"message": str(error.java_exception.getMessage()), "type": name, "code": status}
            return status, json.dumps({"error": said})
        return (204, "") if found is None else (200, found)

    def _answer(self, method: str, parts: list[str], query: dict[str, list[str]], body: str) -> str | None:
        handlers, catalog = self._handlers, self._catalog
        match method, parts:
            case "GET", ["v1", "config"]:
                return '{"defaults": {}, "overrides": {}}'
            case "GET", ["v1", "namespaces"]:
                return self._said(handlers.listNamespaces(catalog, self._namespace(query.get("parent", [""])[0])))
            case "POST", ["v1", "namespaces"]:
                return self._said(handlers.createNamespace(catalog, self._asked("requests.CreateNamespaceRequest", body)))
            case (("GET" | "HEAD"), ["v1", "namespaces", namespace]):
                return self._said(handlers.loadNamespace(catalog, self._namespace(namespace)))
            case "GET", ["v1", "namespaces", namespace, "tables"]:
                return self._said(handlers.listTables(catalog, self._namespace(namespace)))
            case "POST", ["v1", "namespaces", namespace, "tables"]:
                request = self._asked("requests.CreateTableRequest", body)
                return self._said(handlers.createTable(catalog, self._namespace(namespace), request))
            case (("GET" | "HEAD"), ["v1", "namespaces", namespace, "tables", table]):
                return self._said(handlers.loadTable(catalog, self._table(namespace, table), self._all))
            case "POST", ["v1", "namespaces", namespace, "tables", table]:
                request = self._asked("requests.UpdateTableRequest", body)
                return self._said(handlers.updateTable(catalog, self._table(namespace, table), request))
            case "DELETE", ["v1", "namespaces", namespace, "tables", table]:
                handlers.dropTable(catalog, self._table(namespace, table))
                return None
        return None  # metrics of scans and commits

    def _said(self, response: Any) -> str:
        return str(self._mapper.writeValueAsString(response))

    def _asked(self, name: str, body: str) -> Any:
        return self._mapper.readValue(body, _class(self._jvm, f"{_REST}.{name}"))

    def _namespace(self, text: str) -> Any:
        return self._table(text, "t").namespace() if text else self._jvm.org.apache.iceberg.catalog.Namespace.empty()

    def _table(self, namespace: str, name: str) -> Any:
        return self._jvm.org.apache.iceberg.catalog.TableIdentifier.parse(".".join((*namespace.split(_SEPARATOR), name)))


def _class(jvm: Any, name: str) -> Any:
    return jvm.java.lang.Class.forName(name)


def _mapper(jvm: Any) -> Any:
    """As Iceberg's client has it."""
    jackson = "org.apache.iceberg.shaded.com.fasterxml.jackson"
    made = jvm.org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper()
    enum = jvm.java.lang.Enum
    field = enum.valueOf(_class(jvm, f"{jackson}.annotation.PropertyAccessor"), "FIELD")
    made.setVisibility(field, enum.valueOf(_class(jvm, f"{jackson}.annotation.JsonAutoDetect$Visibility"), "ANY"))
    unknown = enum.valueOf(_class(jvm, f"{jackson}.databind.DeserializationFeature"), "FAIL_ON_UNKNOWN_PROPERTIES")
    made.configure(unknown, False)
    kebab = _class(jvm, f"{jackson}.databind.PropertyNamingStrategies$KebabCaseStrategy")
    made.setPropertyNamingStrategy(kebab.getDeclaredConstructors()[0].newInstance(None))
    jvm.org.apache.iceberg.rest.RESTSerializers.registerAll(made)
    return made


def _handler(server: RestCatalog) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            if not server.accepts(self.headers.get("Authorization", "").removeprefix("Bearer ")):
                status, text = 401, json.dumps({"error": {"message": "no", "type": "NotAuthorizedException", "code": 401}})
            else:
                status, text = server.answer(self.command, parts.path, parse_qs(parts.query), body)
            content = b"" if self.command == "HEAD" else text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = do_HEAD = _serve

        def log_message(self, format: str, *args: Any) -> None: ...

    return Handler
