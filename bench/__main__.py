"""`python -m bench NAME [options]`: runs one benchmark."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main() -> int:
    known = names()
    if len(sys.argv) < 2 or sys.argv[1] not in known:
        print(f"usage: python -m bench {{{','.join(known)}}} [options]", file=sys.stderr)
        return 2
    module = importlib.import_module(f"bench.{sys.argv[1].replace('-', '_')}")
    return int(module.main(sys.argv[2:]) or 0)


def names() -> list[str]:
    """The benchmarks: the modules of this folder that have a ``main``."""
    return sorted(path.stem.replace("_", "-") for path in Path(__file__).parent.glob("*.py") if hasattr_main(path))


def hasattr_main(path: Path) -> bool:
    return not path.stem.startswith("_") and "\ndef main(arguments" in path.read_text()


if __name__ == "__main__":
    sys.exit(main())
