"""``python -m cdc.embedded fetch`` gets everything that the demo, the tests and the benchmarks need; ``forget`` removes it again.

``fetch spark`` gets only what the daemon needs.
"""

from __future__ import annotations

import sys
import time

from cdc.embedded import EmbeddedError, jars, opensearch
from cdc.embedded.cache import cache_folder, forget
from cdc.embedded.java import java_home


def main(arguments: list[str]) -> int:
    try:
        match arguments:
            case ["forget"]:
                forget()
            case ["fetch", *names] if set(names) <= set(jars.ALL):
                fetch(*names)
            case _:
                print(f"usage: python -m cdc.embedded fetch [{'|'.join(jars.ALL)}] | forget", file=sys.stderr)
                return 2
    except EmbeddedError as error:
        print(error.line(), file=sys.stderr)
        return error.exit_code
    return 0


def fetch(*names: str, warm: bool = True) -> None:
    """The named sets of jars, or all of them, verified. Says something only when there was something to do. Raises EmbeddedError.

    ``warm``: also spends ten seconds once, so that every later node starts in half the time.
    """
    started = time.monotonic()
    java_home()
    wanted = names or jars.ALL
    for name in wanted:
        jars.fetch(name, _say)
    if warm and jars.OPENSEARCH in wanted and opensearch.warm():
        _say(f"all in {cache_folder()} after {time.monotonic() - started:.0f} s")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
