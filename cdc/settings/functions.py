"""Functions of the user's own, in Python, that ``cdc.toml`` names as ``module:function``.

Which function is loaded comes from ``cdc.toml`` and from nowhere else: what a store or a state says of one is compared, and never imported. ``known`` holds what has been
loaded; the code is that of the process' first look.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cdc.errors import ConfigError

_REFERENCE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Loaded:
    """``code``: the digest of the module's source, ``file``; both are empty where that cannot be had."""

    function: Callable[..., Any]
    code: str
    file: str

    def where(self, error: BaseException) -> str:
        """Where in this module it was raised."""
        return _where(error, self.file)


known: Final[dict[str, Loaded]] = {}
"""What has been loaded, by its name in the configuration."""


def check_reference(text: str, example: str) -> str:
    """Raises ValueError for a text that names no function."""
    if not _REFERENCE.fullmatch(text):
        raise ValueError(f"{text!r} is not module:function, such as {example}")
    return text


def load(reference: str, key: str) -> Loaded:
    """The function with this name, loaded once. ``key``: that of ``cdc.toml`` which names it, for errors. Raises ConfigError where it cannot be loaded."""
    if reference not in known:
        known[reference] = _loaded(reference, f"{key} = {reference!r}")
    return known[reference]


def loaded_before(reference: str) -> Loaded | None:
    """The function that ``load`` returned for this name; None where it was never asked."""
    return known.get(reference)


def mark_of(reference: str, version: str | None, key: str, version_key: str) -> str:
    """The text that tells one version of the function from another. Raises ConfigError as ``load`` does, and where nobody can say which version this is."""
    code = load(reference, key).code
    if version is None and not code:
        raise ConfigError(f"{key} = {reference!r}: its module has no source to tell versions by", hint=f"set {version_key}")
    return f"code {code}" if version is None else f"version {version}"


def _loaded(reference: str, where: str) -> Loaded:
    module_name, _, name = reference.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        what = f"there is no module {error.name}"
        raise ConfigError(f"{where}: {what}", hint="install it beside cdc, or name its folder in PYTHONPATH") from None
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{where}: importing {module_name} raised {type(error).__name__}{_where(error)}",
            hint=f"python -c 'import {module_name}'",
        ) from None
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{where}: {module_name} has no function {name}", hint="write module:function")
    source = inspect.getsourcefile(module)
    code = "" if source is None or not Path(source).is_file() else hashlib.sha256(Path(source).read_bytes()).hexdigest()[:32]
    return Loaded(function, code, "" if source is None else source)


def _where(error: BaseException, file: str = "") -> str:
    """Where in the user's code it was raised. ``file``: that code; otherwise all but this module is."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" at {Path(error.filename).name}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    mine = [one for one in frames if (one.filename == file if file else Path(one.filename) != Path(__file__))]
    return f" at {Path(mine[-1].filename).name}:{mine[-1].lineno}" if mine else ""
