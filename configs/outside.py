"""Whether this process has made something outside itself (a testbed, knobs moved) that it puts away when it ends.

Until then it may end at once, wherever it is; from then on only by unwinding.
"""

from __future__ import annotations

_made: list[str] = []


def will_make(what: str) -> None:
    """To be said before the first such thing is made."""
    _made.append(what)


def made() -> bool:
    """Whether that has been said."""
    return bool(_made)
