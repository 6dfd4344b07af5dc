"""A TLS end in front of a plain server on loopback, for stores whose test server speaks no TLS itself."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path


@contextmanager
def tls_front(certificate: Path, key: Path, target_port: int, *, postgres: bool = False) -> Iterator[int]:
    """The port on which TLS connections are taken and passed on, in plain text, to ``target_port``.

    postgres: libpq asks in plain text whether there is TLS before it begins.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        threads: list[threading.Thread] = []
        open_sockets: list[socket.socket] = []

        def accept() -> None:
            with suppress(OSError):
                while True:
                    plain, _ = listening.accept()
                    open_sockets.append(plain)
                    threads.append(threading.Thread(target=serve, args=(plain,), daemon=True))
                    threads[-1].start()

        def serve(plain: socket.socket) -> None:
            # A client that does not like the certificate ends the handshake: that is the test.
            with suppress(OSError):
                if postgres:
                    plain.recv(8, socket.MSG_WAITALL)
                    plain.sendall(b"S")
                client = context.wrap_socket(plain, server_side=True)
                upstream = socket.create_connection(("127.0.0.1", target_port))
                open_sockets.extend((client, upstream))
                back = threading.Thread(target=pump, args=(upstream, client), daemon=True)
                back.start()
                pump(client, upstream)
                back.join()

        def pump(source: socket.socket, sink: socket.socket) -> None:
            with suppress(OSError):
                while piece := source.recv(1 << 16):
                    sink.sendall(piece)
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            for one in open_sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            accepting.join(5)
            for thread in threads:
                thread.join(5)


@contextmanager
def plain_server() -> Iterator[int]:
    """The port of a server that speaks no TLS: it answers whatever comes with an error in plain text."""

    class Plain(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            self.request.sendall(b"-ERR what is this\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Plain) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join(5)
