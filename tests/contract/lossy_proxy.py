"""A TCP proxy that can swallow answers: the request arrives and is carried out, and whoever asked never learns it."""

from __future__ import annotations

import contextlib
import select
import socket
import threading


class LossyProxy:
    """Listens on a loopback port and forwards to ``target_port``. While ``lose_answers`` is set, the first byte of an answer
    closes the connection instead of passing. ``only_to``: only an answer to a request that holds these bytes, and not before the server has carried out all
    that it was sent."""

    def __init__(self, target_port: int, *, only_to: bytes = b"") -> None:
        self.target_port = target_port
        self.only_to = only_to
        self.lose_answers = False
        self.lost = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.target_port)) as server:
            asked = not self.only_to
            while True:
                ready, _, _ = select.select([client, server], [], [])
                if client in ready:
                    data = client.recv(1 << 16)
                    if not data:
                        return
                    server.sendall(data)
                    asked = self.only_to in data
                if server in ready:
                    data = server.recv(1 << 16)
                    if not data:
                        return
                    if asked and self.lose_answers:
                        self.lost += 1
                        if self.only_to:
                            server.shutdown(socket.SHUT_WR)
                            while server.recv(1 << 16):
                                pass
                        return
                    client.sendall(data)
