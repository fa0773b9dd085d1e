"""One field of one pod: when it is to be set, and what to do about values that others set."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field

from slicepilot.cluster.client.errors import ApiError, BackOff

RETRY_REFUSED_S = 30.0
MOST_REASSERTS, WINDOW_S = 3, 60.0
DEAD_BAND = 0.05


@dataclass
class FieldSync:
    """The state of one field.

    Attributes:
        every_s: least time between two changes.
        reassert: whether a value of another manager is replaced, a few times, or left at once.
        yielded: another manager has the field, until the SliceSet is edited.
        trouble: why the field does not follow, in a line.
        contested: another manager has set it, and it is to be set again.
    """

    every_s: float
    reassert: bool
    yielded: bool = False
    trouble: str | None = None
    contested: bool = False
    _sent: str | None = None
    _confirmed: bool = False
    _sent_s: float = -1e9
    _again_s: float = -1e9
    _back_off: BackOff = field(default_factory=BackOff)
    _reasserts: collections.deque[float] = field(default_factory=collections.deque)

    def observe(self, value: str | None, by: str, now_s: float) -> None:
        """Take note of the API server's value.

        Args:
            value: as text; None: the field is not set.
            by: name of the manager that has set it last.
            now_s: by the monotonic clock.
        """
        if self._sent is None or self.yielded:
            return
        if value == self._sent:
            self._confirmed = True
        elif self._confirmed:  # another manager has changed our value
            self._confirmed = False
            while self._reasserts and now_s - self._reasserts[0] > WINDOW_S:
                self._reasserts.popleft()
            if self.reassert and len(self._reasserts) < MOST_REASSERTS:
                self._reasserts.append(now_s)
                self.contested = True
                return
            self.yielded, self.contested = True, False
            often = f", {len(self._reasserts)} times" if self.reassert else ""
            self.trouble = f"{by} has set {value or 'nothing'} instead of {self._sent}{often}: left to them"

    def due(self, value: str | None, wanted: str | None, near: bool, now_s: float) -> bool:
        """Whether ``wanted`` is to be sent now. ``near``: the present value is close enough."""
        if self.yielded or now_s < self._again_s or now_s - self._sent_s < self.every_s:
            return False
        return value != wanted and not near

    def sent(self, value: str | None, now_s: float) -> None:
        self._sent, self._confirmed, self._sent_s = value, False, now_s
        self.trouble, self.contested = None, False
        self._back_off.succeeded()

    def refused(self, error: ApiError, now_s: float) -> None:
        if error.status in {400, 403, 404, 405, 422}:
            self.wait(str(error), now_s)
        elif error.status != 409:  # after a conflict the pod is read again
            self._again_s = now_s + self._back_off.failed(error)

    def wait(self, why: str, now_s: float, seconds: float = RETRY_REFUSED_S) -> None:
        self.trouble, self._again_s = why, now_s + seconds


def near(value: float, wanted: float) -> bool:
    """Whether two values differ by no more than the dead band."""
    return abs(value - wanted) <= DEAD_BAND * max(value, wanted)
