"""Whichever controller writes at a path now: found, followed, and found again after a restart."""

from __future__ import annotations

from pathlib import Path

from slicepilot.configs import ConfigError
from slicepilot.controller.publisher.state.status import Status
from slicepilot.controller.record.ring_reader import TickReader

STALE_S = 3.0
STALE_PERIODS = 3.0


class Follower:
    """Reads the ring of one instance; opens it read-only and nothing else.

    Args:
        path: of the ring, ``RUN/ticks``.
        wait: let the controller come later.

    Attributes:
        status: of the controller that was seen last; None before the first.
        present: whether it has that path still.

    Raises:
        ConfigError: no controller runs there and nobody wants to wait; or what is there is no ring.
    """

    def __init__(self, path: Path, wait: bool = False) -> None:
        self.path = path
        self.status: Status | None = None
        self._reader: TickReader | None = None
        try:
            self._open()
        except ConfigError:
            if not (wait and not path.exists()):
                raise
        self.look()

    @property
    def present(self) -> bool:
        """Whether a controller's ring is at the path."""
        return self._reader is not None

    @property
    def stale(self) -> bool:
        """Whether what is shown is not of now: the controller has gone, or gives no sign of life."""
        if self._reader is None or self.status is None:
            return True
        period_s = self.status.description.get("period_s", 0.0)
        return self.status.beat_age_s > max(STALE_S, STALE_PERIODS * period_s)

    def look(self) -> None:
        """Take in what is new; a ring that was replaced is left for the one that has its path now."""
        if self._reader is not None and self._reader.replaced:
            if self.status is not None:
                self.status.update(self._reader)  # what it wrote last stays on the screen
            self.close()
        if self._reader is None:
            try:
                self._open()
            except ConfigError:  # gone, or not yet whole
                return
        if self._reader is not None and self.status is not None:
            self.status.update(self._reader)

    def close(self) -> None:
        """Let go of the ring; what was read stays."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _open(self) -> None:
        self._reader = TickReader(self.path)
        self.status = Status(self._reader.num_slices)
