"""The two errors that a user sees as one line: bad input from outside, and a failure of the world."""

from __future__ import annotations

from collections.abc import Iterable


class ConfigError(ValueError):
    """Bad input from outside: the message is one line that names the field, the value and what is accepted.

    The command line ends with exit code 2.
    """


class FailureError(RuntimeError):
    """Something outside did not do what it was asked to (the kernel, a program, a peer); the message is one line.

    The command line ends with exit code 1.
    """


def did_you_mean(given: object, names: Iterable[str], accepted: str | None = None, most: int = 1) -> str:
    """The end of an error about an unknown name: the nearest names, at most ``most``, then what is accepted.

    ``accepted`` stands for the list of names where that would be too long, or is not all.
    """
    import difflib  # only here: whoever imports the errors, the supervisor too, seldom needs it

    known = list(names)
    near = ", ".join(difflib.get_close_matches(given, known, n=most)) if isinstance(given, str) else ""
    hint = f"did you mean {near}? " if near else ""
    return f"{hint}accepted: {accepted or ', '.join(known) or 'none'}"
