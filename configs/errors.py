"""The two errors that a user sees as one line: bad input from outside, and a failure of the world."""

from __future__ import annotations


class ConfigError(ValueError):
    """Bad input from outside: the message is one line that names the field, the value and what is accepted.

    The command line ends with exit code 2.
    """


class FailureError(RuntimeError):
    """Something outside did not do what it was asked to (the kernel, a program, a peer); the message is one line.

    The command line ends with exit code 1.
    """
