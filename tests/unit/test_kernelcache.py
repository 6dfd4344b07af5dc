"""Machine code kept on disk is that of the kernels as they are, also of those that a kernel calls in another file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba import config

import cdc
from cdc.errors import ConfigError
from cdc.kernels.cache import Chosen

_CALLED = "from cdc.kernels.jit import kernel\n\n@kernel\ndef called(x):\n    return x + {}\n"
_CALLS = (
    "from cdc.kernels.jit import kernel\nfrom cdc.called import called\n\n@kernel\ndef calls(x):\n    return called(x) * 10\n\n"
    "print(calls(1), sum(calls.stats.cache_hits.values()))\n"
)
_NUMBER = "NUMBER = {}\n"
_NAMED = "from cdc.number import NUMBER as NUMBER\n"
_FREEZES = (
    "from cdc.kernels.jit import kernel\n{}\n\n@kernel\ndef calls(x):\n    return (x + NUMBER) * 10\n\n"
    "print(calls(1), sum(calls.stats.cache_hits.values()))\n"
)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A house of kernels alone."""
    kernels = tmp_path / "cdc" / "kernels"
    kernels.mkdir(parents=True)
    for name in ("kernels/jit.py", "kernels/cache.py", "folders.py", "errors.py"):
        shutil.copy(Path(cdc.__file__).parent / name, kernels.parent / name)
    for folder in (kernels, kernels.parent):
        (folder / "__init__.py").touch()
    return kernels.parent


def run(house: Path) -> list[str]:
    left = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    done = subprocess.run(
        [sys.executable, "-m", "cdc.calls"], cwd=house.parent, env=left, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_kernel_is_compiled_again_when_one_that_it_calls_has_changed(house: Path) -> None:
    (house / "calls.py").write_text(_CALLS)
    (house / "called.py").write_text(_CALLED.format(1))
    assert run(house) == ["20", "0"]
    assert run(house) == ["20", "1"], "kept on disk"
    (house / "called.py").write_text(_CALLED.format(2))
    assert run(house) == ["30", "0"], "the file of the kernel itself has not changed"


@pytest.mark.parametrize(
    "imported", ["from cdc.number import NUMBER", "from cdc import number\nNUMBER = number.NUMBER", "from cdc.named import NUMBER"]
)
def test_a_kernel_is_compiled_again_when_a_number_that_it_holds_has_changed(house: Path, imported: str) -> None:
    """numba freezes globals: they are in the machine code, wherever they come from."""
    (house / "calls.py").write_text(_FREEZES.format(imported))
    (house / "named.py").write_text(_NAMED)
    (house / "number.py").write_text(_NUMBER.format(1))
    assert run(house) == ["20", "0"]
    assert run(house) == ["20", "1"], "kept on disk"
    (house / "number.py").write_text(_NUMBER.format(2))
    assert run(house) == ["30", "0"], "the file of the kernel itself has not changed"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("planted", ["", "left"])
def test_a_cache_that_others_can_write_to_is_not_unpickled(tmp_path: Path, planted: str) -> None:
    """Whoever puts a file there runs what she likes in our name."""
    folder = tmp_path / "numba"
    (folder / "left").mkdir(parents=True)
    folder.chmod(0o777)
    os.chown(folder / planted, 65534, 65534)
    done = subprocess.run(
        [sys.executable, "-c", "import cdc.capture.messages"], env={**os.environ, "NUMBA_CACHE_DIR": str(folder)}, cwd=Path(cdc.__file__).parents[1],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "ConfigError: NUMBA_CACHE_DIR: " in done.stderr
    assert not list(folder.rglob("*.nbi"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("planted", ["", "left"])
def test_a_locator_takes_no_folder_that_others_can_write_to(tmp_path: Path, planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "left").mkdir()
    tmp_path.chmod(0o777)
    os.chown(tmp_path / planted, 65534, 65534)
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="NUMBA_CACHE_DIR"):
        Chosen(run, __file__).ensure_cache_path()
