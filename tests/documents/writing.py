"""Pages that are written by hand but for some parts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


def written(file: Path, parts: Mapping[str, str]) -> str:
    """The page with its generated parts as they should be."""
    page = file.read_text(encoding="utf-8")
    for name, text in parts.items():
        pattern = rf"(<!-- {name}: generated -->\n).*?(<!-- {name}: end -->)"
        page, count = re.subn(pattern, lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page, flags=re.DOTALL)  # type: ignore[misc]
        assert count == 1, f"{file} has not one place for {name}"
    return page
