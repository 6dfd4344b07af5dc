"""The pictures of the status page in the documentation: ``python -m tests.documents.picture URL``, while the demo works behind the URL."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.documents.smallpng import small
from tests.end_to_end import chromium

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "pictures"
PICTURES: Final = {
    "status.png": (1400, False),
    "status-dark.png": (1400, True),
    "status-narrow.png": (390, False),
    "status-narrow-dark.png": (390, True),
}
"""Name → the page's width in pixels, and whether it is dark."""


def main(url: str) -> int:
    program = chromium.find()
    if program is None:
        print(f"no browser: neither $CHROMIUM nor any of {', '.join(chromium.NAMES)} on the PATH", file=sys.stderr)
        return 2
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, chromium.browser(program, Path(folder)) as page:
        for name, (width, dark) in PICTURES.items():
            page.open(f"{url.rstrip('/')}/", width=width, dark=dark)
            page.until("!document.body.classList.contains('waiting')")
            page.screenshot(FOLDER / name)
            (FOLDER / name).write_bytes(small((FOLDER / name).read_bytes()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
