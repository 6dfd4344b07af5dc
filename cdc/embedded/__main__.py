"""``python -m cdc.embedded fetch`` gets everything that the demo, the tests and the benchmarks need; ``forget`` removes it again."""

from __future__ import annotations

import sys
import time

from cdc.embedded import EmbeddedError, jars, opensearch
from cdc.embedded.cache import cache_folder, forget
from cdc.embedded.java import java_home


def main(arguments: list[str]) -> int:
    if arguments == ["forget"]:
        forget()
        return 0
    if arguments != ["fetch"]:
        print("usage: python -m cdc.embedded fetch | forget", file=sys.stderr)
        return 2
    try:
        fetch()
    except EmbeddedError as error:
        print(error.line(), file=sys.stderr)
        return error.exit_code
    return 0


def fetch() -> None:
    """Everything, verified. Says something only when there was something to do. Raises EmbeddedError."""
    started = time.monotonic()
    java_home()
    for name in jars.ALL:
        jars.fetch(name, _say)
    if opensearch.warm():
        _say(f"all in {cache_folder()} after {time.monotonic() - started:.0f} s")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
