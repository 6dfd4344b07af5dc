"""One generation's state: the kernel that is open, and what its folder says of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdc.derive.course import KernelFacts
from cdc.derive.inforce import ViewInForce
from cdc.derive.statefolder import GenerationFolder
from cdc.views.contract import Kernel


class ViewState:
    """For one thread. ``number``: the generation's."""

    def __init__(self, number: int, folder: GenerationFolder) -> None:
        self.number = number
        self._folder = folder
        self._kernel: Kernel | None = None
        self.facts = folder.load()
        """None where there is no state that can be used."""

    @property
    def kernel(self) -> Kernel:
        """The one that is open."""
        assert self._kernel is not None, "it has to be opened first"
        return self._kernel

    @property
    def history(self) -> str:
        """In which its changes were read."""
        assert self.facts is not None
        return self.facts.history

    @property
    def scratch(self) -> Path:
        """A folder for whatever makes it, gone with it."""
        return self._folder.scratch

    def open(self, view: ViewInForce) -> Kernel:
        """Raises whatever a damaged state leads to."""
        self.close()
        self._kernel = view.view.open(self._folder.kernel)
        return self._kernel

    def begin_again(self, facts: KernelFacts) -> None:
        """Throws away what there is; durable on return."""
        self.close()
        self._folder.clear()
        self._folder.save(facts)
        self.facts = facts

    def note(self, **changed: Any) -> None:
        """Changes what is said of the state, durably on return where that is anything else than before."""
        assert self.facts is not None
        facts = replace(self.facts, **changed)
        if facts != self.facts:
            self._folder.save(facts)
            self.facts = facts

    def bytes(self) -> int:
        """Its size on the disk."""
        return self._folder.bytes()

    def remove(self) -> None:
        """There is nothing of it any more."""
        self.close()
        self._folder.remove()
        self.facts = None

    def close(self) -> None:
        if self._kernel is not None:
            with suppress(Exception):  # it may be what failed
                self._kernel.close()
            self._kernel = None
