"""When a pod's field is to be set, and to what: one field of one pod, what was sent, and what others made of it."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field

from slicepilot.cluster.client.errors import ApiError, BackOff

REFUSED_AGAIN_S = 30.0
MOST_REASSERTS, WINDOW_S = 3, 60.0
DEAD_BAND = 0.05


@dataclass
class Course:
    """Of one field.

    Attributes:
        every_s: at most one change in so long.
        reassert: whether what others set is set again, a few times, or left to them at once.
        yielded: somebody else has the field, until the SliceSet is edited.
        trouble: why it does not follow, in a line.
        contested: somebody else has set it, and it is to be set again.
    """

    every_s: float
    reassert: bool
    yielded: bool = False
    trouble: str | None = None
    contested: bool = False
    _sent: str | None = None
    _seen: bool = False
    _sent_s: float = -1e9
    _again_s: float = -1e9
    _back_off: BackOff = field(default_factory=BackOff)
    _reasserts: collections.deque[float] = field(default_factory=collections.deque)

    def look(self, has: str | None, by: str, now_s: float) -> None:
        """See what the API server has.

        Args:
            has: the field, as text; None: it is not set.
            by: who has set it last, for people.
            now_s: by the monotonic clock.
        """
        if self._sent is None or self.yielded:
            return
        if has == self._sent:
            self._seen = True
        elif self._seen:  # it was as we had set it, and is not any more
            self._seen = False
            while self._reasserts and now_s - self._reasserts[0] > WINDOW_S:
                self._reasserts.popleft()
            if self.reassert and len(self._reasserts) < MOST_REASSERTS:
                self._reasserts.append(now_s)
                self.contested = True
                return
            self.yielded, self.contested = True, False
            often = f", {len(self._reasserts)} times" if self.reassert else ""
            self.trouble = f"{has or 'nothing'} in place of {self._sent}, set by {by}{often}: left to them"

    def due(self, has: str | None, wanted: str | None, near: bool, now_s: float) -> bool:
        """Whether it is to be sent now. ``near``: what it has is good enough, unless it is not ours."""
        if self.yielded or now_s < self._again_s or now_s - self._sent_s < self.every_s:
            return False
        return has != wanted and not near

    def sent(self, value: str | None, now_s: float) -> None:
        """It was taken."""
        self._sent, self._seen, self._sent_s = value, False, now_s
        self.trouble, self.contested = None, False
        self._back_off.succeeded()

    def refused(self, error: ApiError, now_s: float) -> None:
        """It was not: said no to, or nobody has answered."""
        if error.status in {400, 403, 404, 405, 422}:
            self.trouble = str(error)
            self._again_s = now_s + REFUSED_AGAIN_S
        elif error.status != 409:  # the pod has changed meanwhile: looked at again
            self._again_s = now_s + self._back_off.failed(error)

    def wait(self, why: str, now_s: float, seconds: float = REFUSED_AGAIN_S) -> None:
        """Not for so long."""
        self.trouble, self._again_s = why, now_s + seconds


def near(has: float, wanted: float) -> bool:
    """Whether a change would hardly be one."""
    return abs(has - wanted) <= DEAD_BAND * max(has, wanted)
