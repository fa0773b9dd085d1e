"""Knobs that another program sets while a controller runs: noticed, reported, and respected or set again."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field

from slicepilot.controller.system.kernel_file import ActuatorError

if TYPE_CHECKING:
    from slicepilot.controller.actuators.node import Deviation, NodeActuator
    from slicepilot.env.knobs import KnobName

    from .keeper import JournalKeeper

Policy = Literal["respect", "reassert"]
REPORTED = 20
"""Changes that were undone, the latest in a window, that are reported."""


@dataclass(frozen=True)
class ExternalChangeConfig:
    """What is done about a knob that another program has set.

    Attributes:
        policy: ``respect`` keeps the other program's value until an operator resumes; ``reassert`` sets ours again,
            and respects a program that insists.
        most_reasserts: of one knob in a window; after that the change is respected.
        window_s: length of that window.
        restore: what CPU knobs that were reasserted are restored to: their ``first`` original settings, or the
            ``newest`` that another program has set.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    policy: Policy = "respect"
    most_reasserts: Annotated[int, Field(ge=1, le=100)] = 3
    window_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    restore: Literal["first", "newest"] = "first"


@dataclass(frozen=True)
class ExternalChange:
    """A change that was noticed.

    Attributes:
        slice: its name.
        knob: its name.
        found: the value that another program has set, in the knob's unit (inf: no limit).
        ours: the value that held before.
        policy: ``respect``: the other program's value stays; ``reassert``: ours was set again.
        text: both values as the kernel has them, and why ours was not set again if it should have been.
        time_ns: CLOCK_REALTIME.
    """

    slice: str
    knob: KnobName
    found: float
    ours: float
    policy: Policy
    text: str
    time_ns: int = field(default_factory=time.time_ns, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {name: None if value == math.inf else value for name, value in dataclasses.asdict(self).items()}


class Reasserts:
    """Limits how often ours is set again, as the configuration says."""

    def __init__(self, config: ExternalChangeConfig) -> None:
        self._config = config
        self._times: dict[object, deque[int]] = {}

    def refusal(self, key: object, now_ns: int) -> str | None:
        """Why ours is not set again (empty if the policy is to respect); None, and it is counted, if it is. ``key`` is
        what changed, ``now_ns`` CLOCK_MONOTONIC."""
        if self._config.policy == "respect":
            return ""
        times = self._times.setdefault(key, deque())
        while times and now_ns - times[0] > self._config.window_s * 1e9:
            times.popleft()
        if len(times) >= self._config.most_reasserts:
            return f"reasserted {len(times)} times in {self._config.window_s:g} s"
        times.append(now_ns)
        return None

    def clear(self) -> None:
        self._times.clear()


class ExternalChangeWatch:
    """Compares what the kernel has with what was written last, and acts on a difference once. What is respected is
    released in the journal, and so not restored.

    Attributes:
        reasserted: the latest changes that were undone.
    """

    def __init__(
        self, actuator: NodeActuator, config: ExternalChangeConfig | None = None, keeper: JournalKeeper | None = None
    ) -> None:
        self._actuator, self._config, self._keeper = actuator, config or ExternalChangeConfig(), keeper
        self._reasserts = Reasserts(self._config)
        self._standing: dict[tuple[str, KnobName], ExternalChange] = {}
        self.reasserted: deque[ExternalChange] = deque(maxlen=REPORTED)

    @property
    def standing(self) -> list[ExternalChange]:
        return list(self._standing.values())

    def report(self) -> list[dict[str, Any]]:
        """All changes that are respected, and those of the last window that were undone, by time."""
        oldest_ns = time.time_ns() - 1e9 * self._config.window_s
        recent = [change for change in self.reasserted if change.time_ns >= oldest_ns]
        return [change.to_json() for change in sorted([*self.standing, *recent], key=lambda change: change.time_ns)]

    def look(self, now_ns: int) -> list[ExternalChange]:
        """Read every knob back; call it between ticks, about once a second.

        It takes some 15 us a slice. Knobs that are respected are read too, so that receipts have their present value.
        Returns what another program has changed since the last look; ``now_ns`` is CLOCK_MONOTONIC.

        Raises:
            ActuatorError: a knob cannot be read, or the journal cannot be written.
        """
        yielded = self._actuator.yielded
        for name, knob in list(self._standing):
            if (name, knob) not in yielded:  # the slice was made anew
                del self._standing[name, knob]
                continue
            try:
                self._actuator.yield_knob(name, knob)
            except ActuatorError as error:
                if not error.vanished:
                    raise
        return [self._act(deviation, now_ns) for deviation in self._actuator.deviations()]

    def resume(self) -> None:
        """Take all knobs back for an operator; their first original settings will be restored again.

        Raises:
            ActuatorError: a knob cannot be set; it stays respected.
        """
        self._reasserts.clear()
        self.reasserted.clear()
        for name, knob in list(self._standing):
            if self._keeper is not None:
                self._keeper.reclaim(name, knob)
            self._actuator.reassert(name, knob)
            del self._standing[name, knob]

    def respect(self, change: ExternalChange) -> ExternalChange:
        """Leave a knob to the program that has changed it; raises ActuatorError."""
        key: tuple[str, KnobName] = (change.slice, change.knob)
        self._actuator.yield_knob(*key)
        self._standing[key] = change
        if self._keeper is not None:
            self._keeper.release(*key)
        return change

    def undone(self, change: ExternalChange) -> ExternalChange:
        """Note a change that was undone; raises ActuatorError."""
        self.reasserted.append(change)
        if self._config.restore == "newest" and self._keeper is not None:
            self._keeper.rebase(change.slice, self._actuator.original_cpu(change.slice))
        return change

    def _act(self, deviation: Deviation, now_ns: int) -> ExternalChange:
        """Set ours again, unless that is not wanted, was done too often or fails."""
        key: tuple[str, KnobName] = (deviation.slice, deviation.knob)
        refusal = self._reasserts.refusal(key, now_ns)
        if refusal is None:
            try:
                self._actuator.reassert(*key, newest=self._config.restore == "newest")
            except ActuatorError as error:
                refusal = str(error)
            else:
                return self.undone(ExternalChange(*key, deviation.actual, deviation.ours, "reassert", deviation.text))
        text = "; ".join(filter(None, (deviation.text, refusal)))
        return self.respect(ExternalChange(*key, deviation.actual, deviation.ours, "respect", text))
