"""The two errors that a user sees as one line: bad input, and a failure of something outside."""

from __future__ import annotations

import re
from collections.abc import Iterable


class ConfigError(ValueError):
    """Bad input: one line with the field, its value and what is expected. The command line exits with code 2."""


class FailureError(RuntimeError):
    """A failure of the kernel, a program or a peer, in one line. The command line exits with code 1."""


def did_you_mean(given: object, names: Iterable[str], expected: str | None = None, most: int = 1) -> str:
    """The end of an error about an unknown name: at most ``most`` similar names, then all.

    ``expected`` replaces the list of all names where that is too long or incomplete.
    """
    import difflib  # rarely needed, and the supervisor imports the errors

    known = list(names)
    near = ", ".join(difflib.get_close_matches(given, known, n=most)) if isinstance(given, str) else ""
    hint = f"did you mean {near}? " if near else ""
    return f"{hint}expected {expected or 'one of ' + (', '.join(known) or 'none')}"


def expectation(message: str) -> str:
    """A message of pydantic as the end of an error: ``expected a number greater than 0``."""
    message = message.removeprefix("Value error, ").partition(", unable to parse")[0]
    message = re.sub("^Input should be (?=greater|less)", "expected a number ", message)
    message = re.sub("^Input should (be|have) (an instance of )?", "expected ", message)
    message = message.replace("a valid integer", "an integer").replace("a valid ", "a ")
    return re.sub("^expected a tuple$", "expected a list", message)
