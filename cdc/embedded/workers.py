"""The Python of Spark's local workers: this one, without the zip of pyspark's sources that Spark puts first on its path.

Nothing in that zip is compiled, so every worker, and a query starts two of them, would compile pyspark again: 0.8 s of CPU in place of 0.3.
Spark gives a worker 10 s to report, and on a machine with much else to do that makes the difference.

The process that reads a stream's offsets is always ended by closing its socket, and then writes a page of traces. What goes wrong in it reaches
Spark as an exception besides, so its standard error has nothing to add.
"""

from __future__ import annotations

import hashlib
import shlex
import sys
from pathlib import Path

from cdc.embedded.cache import cache_folder, write_whole

_WRAPPER = """#!/bin/sh
set -f; IFS=: rest=
for part in $PYTHONPATH; do case $part in */pyspark.zip) ;; *) rest=$rest${{rest:+:}}$part ;; esac; done
unset IFS
case "$*" in *pyspark.sql.streaming.python_streaming_source_runner*) exec 2>/dev/null ;; esac
PYTHONPATH=$rest exec {python} "$@"
"""


def worker_python() -> Path:
    """The command to name in PYSPARK_PYTHON. Its pyspark is the one that this process imports."""
    wrapper = cache_folder() / "python" / hashlib.sha256(sys.executable.encode()).hexdigest()[:12] / "python"
    content = _WRAPPER.format(python=shlex.quote(sys.executable)).encode()
    if not wrapper.is_file() or wrapper.read_bytes() != content:
        write_whole(wrapper, content, mode=0o755)
    return wrapper
