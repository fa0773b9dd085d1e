"""What a bundle would have changed, worked out again from ticks that its controller has sealed.

The publisher estimates while it runs, for whoever looks; its files are not what a promotion rests on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slicepilot.configs import ConfigError
from slicepilot.controller.record.estimate import Estimator
from slicepilot.controller.record.estimate_file import rows_of
from slicepilot.controller.record.reader import Stretch


class Estimates:
    """Follows the ticks of runs (`slicepilot.controller.record.estimate`).

    Args:
        every_s: time from one window to the next.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._run_id = ""
        self._estimator: Estimator | None = None

    def add(self, stretch: Stretch) -> Iterator[dict[str, Any]]:
        """Take more ticks, oldest first within a run; rows of a window in shadow, by slice, when one was due."""
        if stretch.key != self._run_id:
            self._run_id, self._estimator = stretch.key, _estimator(stretch.description, self._every_s)
        if self._estimator is None:
            return
        self._estimator.description = stretch.description
        second = max(1, round(1 / stretch.description["period_s"]))
        for start in range(0, len(stretch.records), second):
            estimate = self._estimator.add(stretch.records[start : start + second])
            if estimate is not None and estimate["mode"] == "shadow":
                yield from rows_of(estimate)


def _estimator(description: dict[str, Any], every_s: float) -> Estimator | None:
    try:
        return Estimator(description, every_s)
    except ConfigError:  # hardware that was never identified: nothing can be said
        return None
