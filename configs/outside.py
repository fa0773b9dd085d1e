"""Whether this process has created something outside itself (a testbed, moved knobs) that it must remove at its end.

Without it the process may end at once, anywhere; with it only by unwinding.
"""

from __future__ import annotations

_made: list[str] = []


def will_make(what: str) -> None:
    """Call this before the first such thing is created."""
    _made.append(what)


def made() -> bool:
    """Whether `will_make` was called."""
    return bool(_made)
