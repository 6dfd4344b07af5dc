"""Another program of the demo's airport: it takes the application's events as signed POST requests, and remembers them."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections import Counter
from typing import Final

from cdc.demo.loopback import LoopbackServer, QuietHandler

SECRET: Final = "whsec_" + base64.b64encode(b"the demo is no secret to anybody").decode()


class DemoReceiver(LoopbackServer):
    """Listens on loopback at ``port`` until it is stopped. ``taken``: how often each event came, by its id."""

    def __init__(self, port: int) -> None:
        self.taken: Counter[str] = Counter()
        taken = self.taken

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                names = ("webhook-id", "webhook-timestamp", "webhook-signature")
                identity, moment, signature = (self.headers.get(name, "") for name in names)
                known = _is_signed(identity, moment, body, signature)
                if known:
                    taken[identity] += 1
                self.send_response(204 if known else 401)
                self.send_header("content-length", "0")
                self.end_headers()

        super().__init__(port, Handler, "receiver")


def _is_signed(identity: str, moment: str, body: bytes, signature: str) -> bool:
    """As any library of Standard Webhooks checks it; a receiver that is not a demo refuses an old moment as well."""
    text = b".".join((identity.encode(), moment.encode(), body))
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    expected = "v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
    return any(hmac.compare_digest(one, expected) for one in signature.split())
