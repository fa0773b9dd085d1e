"""Failed requests to the API server, and the wait before the next."""

from __future__ import annotations

import random
from collections.abc import Callable

LONGEST_S = 600.0
"""Longest wait that a server may ask for."""


class ApiError(Exception):
    """A request that did not succeed.

    Attributes:
        status: HTTP's; 0 where there was no answer.
        retry_after_s: the wait that the server asks for (RFC 9110, section 10.2.3); None: there is no such header.
    """

    def __init__(self, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status, self.retry_after_s = status, retry_after_s


def retry_after_s(header: str | None) -> float | None:
    """The header ``Retry-After`` in seconds, the form that API servers use."""
    if header is None or not header.strip().isdecimal():
        return None
    return min(float(header), LONGEST_S)


class BackOff:
    """Waits that grow with each failure in a row; half of each is random, so that clients do not return together.

    Args:
        first_s, most_s: the wait after the first failure, and the longest.
        draw: a number from 0 to 1.
    """

    def __init__(self, first_s: float = 0.5, most_s: float = 30.0, draw: Callable[[], float] = random.random) -> None:
        self._first_s, self._most_s, self._draw = first_s, most_s, draw
        self.failures = 0

    def succeeded(self) -> None:
        self.failures = 0

    def failed(self, error: Exception | None = None) -> float:
        """The wait before the next request, s; never less than the server demands."""
        wait_s: float = min(self._first_s * 2.0 ** min(self.failures, 20), self._most_s)
        self.failures += 1
        asked_s = error.retry_after_s if isinstance(error, ApiError) and error.retry_after_s is not None else 0.0
        return max(asked_s, 0.0) + wait_s * (0.5 + 0.5 * self._draw())
