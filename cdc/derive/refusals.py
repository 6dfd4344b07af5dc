"""A view that cannot be kept up as it is defined, in words: they name the view once, and both ways on."""

from __future__ import annotations

from cdc.errors import HeadwaterError, Stopped, StopState
from cdc.state import status


def refused(name: str, refusal: HeadwaterError) -> Stopped:
    """A view that is defined otherwise is tried again by itself."""
    named = f"view {name}"
    message = str(refusal) if str(refusal).startswith(named) else f"{named}: {refusal}"
    ways = f"{refusal.hint}; " if refusal.hint else ""
    return Stopped(StopState.VIEW_REFUSED, message, hint=f"{ways}{ways_on(name)}")


def ways_on(name: str) -> str:
    """The ways on, for an operator."""
    return f"with another [views.{name}] restart cdc run, else cdc resume VIEW_REFUSED:{status.view_part(name)}"
