"""A twin of a schema registry: what Confluent's API reference says of registering and reading Avro schemas, over real HTTP.

``POST /subjects/S/versions`` answers 200 with the id, the same for a schema that is there (under any subject), 409 for one that is not BACKWARD compatible with the subject's latest version
(unless its compatibility is NONE), 422 with 42201 for what is not a schema. ``GET /schemas/ids/N`` answers 404 with 40403 for an id that nobody has, ``GET /subjects/S/versions`` 404 with 40401.
``PUT /config/S`` sets a subject's compatibility. With an account, every other answers 401.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote

import fastavro

PROMOTED: Final = {
    ("long", "int"),
    ("float", "int"),
    ("double", "int"),
    ("float", "long"),
    ("double", "long"),
    ("double", "float"),
} | {
    ("string", "bytes"),
    ("bytes", "string"),
}
"""(reader, writer) of types of which the first reads the second, by Avro's specification."""


class Refusal(Exception):
    """``status`` and ``error_code`` of the answer."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.answer = status, {"error_code": code, "message": message}


class RegistryTwin:
    """``fail``: the statuses that the next requests are answered with."""

    def __init__(self, account: tuple[str, str] | None = None, certificate: tuple[Path, Path] | None = None) -> None:
        self.schemas: list[str] = []
        """By id, from 1 on."""
        self.subjects: dict[str, list[int]] = {}
        self.compatibility: dict[str, str] = {}
        self.fail: list[int] = []
        self.posts = 0
        self._account = account
        self._lock = threading.Lock()
        twin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer()

            do_POST = do_PUT = do_GET

            def _answer(self) -> None:
                given = self.rfile.read(int(self.headers.get("content-length") or 0))
                try:
                    twin._let_in(self.headers.get("authorization"))
                    with twin._lock:
                        status, found = 200, twin._found(self.command, self.path, json.loads(given) if given else None)
                except Refusal as refusal:
                    status, found = refusal.answer
                body = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("content-type", "application/vnd.schemaregistry.v1+json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign, assignment]
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def _let_in(self, given: str | None) -> None:
        if self._account is None:
            return
        known = "Basic " + base64.b64encode(":".join(self._account).encode()).decode()
        if given != known:
            raise Refusal(401, 40101, "Unauthorized")

    def _found(self, method: str, path: str, given: Any) -> Any:
        if self.fail:
            raise Refusal(self.fail.pop(0), 50001, "Error in the backend data store")
        match method, [unquote(part) for part in path.strip("/").split("/")]:
            case "POST", ["subjects", subject, "versions"]:
                self.posts += 1
                return {"id": self._register(subject, given["schema"])}
            case "GET", ["schemas", "ids", number]:
                if not 1 <= int(number) <= len(self.schemas):
                    raise Refusal(404, 40403, "Schema not found")
                return {"schema": self.schemas[int(number) - 1]}
            case "GET", ["subjects"]:
                return list(self.subjects)
            case "GET", ["subjects", subject, "versions"]:
                if subject not in self.subjects:
                    raise Refusal(404, 40401, "Subject not found")
                return list(range(1, len(self.subjects[subject]) + 1))
            case "PUT", ["config", subject]:
                self.compatibility[subject] = given["compatibility"]
                return given
        raise Refusal(404, 404, "HTTP 404 Not Found")

    def _register(self, subject: str, schema: str) -> int:
        try:
            fastavro.parse_schema(json.loads(schema))
        except Exception:
            raise Refusal(422, 42201, "Invalid schema") from None
        versions = self.subjects.get(subject, [])
        if schema in self.schemas and (number := self.schemas.index(schema) + 1) in versions:
            return number
        if versions and self.compatibility.get(subject) != "NONE":
            latest = json.loads(self.schemas[versions[-1] - 1])
            if not Reading(json.loads(schema), latest).possible:
                raise Refusal(409, 409, "Schema being registered is incompatible with an earlier schema")
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        self.subjects.setdefault(subject, []).append(number)
        return number

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Reading:
    """Whether a reader's schema reads what a writer's has written, by Avro's rules of schema resolution, for the types that we write."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._named: dict[tuple[int, str], Any] = {}
        for side, schema in enumerate((reader, writer)):
            self._gather(side, schema, "")
        self.possible = self._reads(reader, writer)

    def _gather(self, side: int, schema: Any, space: str) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._gather(side, branch, space)
        if isinstance(schema, dict) and schema["type"] == "record":
            space = schema.get("namespace", space)
            self._named[side, f"{space}.{schema['name']}"] = schema
            for one in schema["fields"]:
                self._gather(side, one["type"], space)

    def _reads(self, reader: Any, writer: Any) -> bool:
        reader, writer = self._named.get((0, str(reader)), reader), self._named.get((1, str(writer)), writer)
        if isinstance(writer, list):
            return all(self._reads(reader, branch) for branch in writer)
        if isinstance(reader, list):
            return any(self._reads(branch, writer) for branch in reader)
        mine, theirs = _kind(reader), _kind(writer)
        if mine == theirs == "record":
            return reader["name"] == writer["name"] and self._reads_fields(reader, writer)
        if "decimal" in (_logical(reader), _logical(writer)):
            return bool(reader == writer)
        return mine == theirs or (mine, theirs) in PROMOTED

    def _reads_fields(self, reader: Any, writer: Any) -> bool:
        written = {one["name"]: one for one in writer["fields"]}
        return all(
            self._reads(one["type"], written[one["name"]]["type"]) if one["name"] in written else "default" in one
            for one in reader["fields"]
        )


def _kind(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, dict) else schema


def _logical(schema: Any) -> Any:
    return schema.get("logicalType") if isinstance(schema, dict) else None
