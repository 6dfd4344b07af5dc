"""A real browser without a driver: headless Chromium, spoken to over its debugging pipe (NUL-ended JSON on descriptors 3 and 4)."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """$CHROMIUM, else the first of NAMES on the PATH."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. Everything returns when the browser has answered; ``problems`` collects what its console complains about."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def open(self, url: str, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 700)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression. Raises RuntimeError when it throws."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "script failed"))
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """What a reader sees there; empty when nothing is shown."""
        found: str = self.run(f"((e) => e?.checkVisibility() ? e.innerText : '')(document.querySelector({json.dumps(selector)}))")
        return found

    def until(self, script: str, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.run(script):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {script}\n{self.run('document.body.innerText')}\n{self.problems}")
            time.sleep(0.05)

    def screenshot(self, path: Path) -> None:
        """The whole page, however long."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        image = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(image["data"]))

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self._answers, 1 << 20)
            if not piece:
                raise RuntimeError("the browser is gone")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        details = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(details["exceptionDetails"].get("exception", {}).get("description", "exception"))
            case "Log.entryAdded" if details["entry"]["level"] == "error":
                self.problems.append(f"{details['entry']['text']} {details['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled" if details["type"] in ("error", "warning", "assert"):
                self.problems.append(str([argument.get("value") for argument in details["args"]]))


@contextmanager
def browser(program: str, folder: Path) -> Iterator[Page]:
    """A headless browser with an empty profile in ``folder``; ends with the context."""
    commands_in, commands = os.pipe()
    answers, answers_out = os.pipe()

    def place_pipes() -> None:
        # By way of free high numbers: the ends may themselves be 3 or 4, or any other that is chosen here.
        high_in, high_out = (fcntl.fcntl(end, fcntl.F_DUPFD, 64) for end in (commands_in, answers_out))
        os.dup2(high_in, 3)
        os.dup2(high_out, 4)

    argv = [
        program,
        "--headless=new",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder / 'profile'}",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--no-proxy-server",
        "--disable-background-networking",
        "--disable-component-update",
        "--hide-scrollbars",
        "about:blank",
    ]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
        preexec_fn=place_pipes,  # pass_fds cannot renumber
        start_new_session=True,
    )
    os.close(commands_in)
    os.close(answers_out)
    try:
        page = Page(commands, answers)
        yield page
        page._session = None
        page.call("Browser.close")
        process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()
        os.close(commands)
        os.close(answers)
