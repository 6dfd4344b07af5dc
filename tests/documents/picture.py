"""The picture of the status page in README.md: ``python -m tests.documents.picture URL``, while the demo works behind the URL."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.end_to_end import chromium

PICTURE: Final = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "status.png"
WIDTH: Final = 1200


def main(url: str) -> int:
    program = chromium.find()
    if program is None:
        print(f"no browser: neither $CHROMIUM nor any of {', '.join(chromium.NAMES)} on the PATH", file=sys.stderr)
        return 2
    PICTURE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, chromium.browser(program, Path(folder)) as page:
        page.open(f"{url.rstrip('/')}/", width=WIDTH)
        page.until("!document.body.classList.contains('waiting')")
        page.screenshot(PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
