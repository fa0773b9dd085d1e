"""When a controller that does not beat counts as hung."""

from __future__ import annotations

LOOKS_PER_HANG = 10
SLACK_PART = 4  # a wait may count as longer than asked for by one in so many parts of an interval
START_GRACE_S = 30.0  # until the first beat: before it ticks a controller compiles and warms up


class Silence:
    """How long a controller has been silent, in time during which this process was running.

    A machine that was suspended, or a supervisor that was stopped, proves nothing about the controller: of each wait
    no more counts than it was to take.

    Args:
        beat_ns: the newest beat.
        hang_s: the silence that counts as a hang.
    """

    def __init__(self, beat_ns: int, hang_s: float) -> None:
        self._beat_ns, self._hang_ns = beat_ns, round(hang_s * 1e9)
        self._interval_ns = self._hang_ns // LOOKS_PER_HANG
        self._silent_ns, self._limit_ns = 0, round(max(hang_s, START_GRACE_S) * 1e9)

    def next_look_ns(self) -> int:
        """How long to wait before the next look."""
        return max(min(self._interval_ns, self._limit_ns - self._silent_ns), 0)

    def look(self, beat_ns: int, began_ns: int, now_ns: int) -> bool:
        """Take the newest beat after a wait; whether it is a hang."""
        waited_ns = min(now_ns - began_ns, self._interval_ns + self._interval_ns // SLACK_PART)
        if beat_ns != self._beat_ns:
            self._beat_ns, self._limit_ns = beat_ns, self._hang_ns
            self._silent_ns = min(max(now_ns - beat_ns, 0), waited_ns)
        else:
            self._silent_ns += waited_ns
        return self._silent_ns >= self._limit_ns
