"""Knobs that another program sets while a controller runs: noticed, reported, and respected or set again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import ConfigDict, Field

from slicepilot.controller.system.kernel_file import ActuatorError

if TYPE_CHECKING:
    from slicepilot.controller.actuators.node import Deviation, NodeActuator
    from slicepilot.env.knobs import KnobName

Policy = Literal["respect", "reassert"]


@dataclass(frozen=True)
class ExternalChangeConfig:
    """What is done about a knob that another program has set.

    Attributes:
        policy: ``respect`` leaves it to them until an operator resumes; ``reassert`` sets ours again, and respects
            a program that insists.
        most_reasserts: of one knob in a window; beyond, it is respected.
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
        knob: which.
        found: what another program has set, in the knob's unit (inf: none).
        ours: what held before.
        policy: what was done: theirs respected, or ours reasserted.
        text: both as the kernel has them, and why ours was not reasserted if it should have been.
    """

    slice: str
    knob: KnobName
    found: float
    ours: float
    policy: Policy
    text: str


class Reasserts:
    """How often ours was set again, by what it is called; rationed as the configuration says."""

    def __init__(self, config: ExternalChangeConfig) -> None:
        self._config = config
        self._times: dict[object, deque[int]] = {}

    def refusal(self, key: object, now_ns: int) -> str | None:
        """Why ours is not set again, and theirs respected (nothing to say where that is the rule); None, and it counts
        as done, where it is.

        Args:
            key: what it is about.
            now_ns: CLOCK_MONOTONIC.
        """
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
        """An operator has spoken: count from nothing."""
        self._times.clear()


class ExternalChangeWatch:
    """Compares what the kernel has with what was written last, and acts on a difference once.

    Args:
        actuator: whose knobs.
        config: what is done.
        release, reclaim: called for each knob that is respected, and for each that is taken back: the journal's
            (`JournalKeeper`). They may write to disk; hand in something that returns at once where that would hurt.
    """

    def __init__(
        self,
        actuator: NodeActuator,
        config: ExternalChangeConfig | None = None,
        release: Callable[[str, KnobName], object] | None = None,
        reclaim: Callable[[str, KnobName], object] | None = None,
    ) -> None:
        self._actuator, self.config = actuator, config or ExternalChangeConfig()
        self._release, self._reclaim = release, reclaim
        self._reasserts = Reasserts(self.config)
        self._standing: dict[tuple[str, KnobName], ExternalChange] = {}

    @property
    def standing(self) -> list[ExternalChange]:
        """Changes that are respected now."""
        return list(self._standing.values())

    def look(self, now_ns: int) -> list[ExternalChange]:
        """Read every knob back; call it between ticks, about once a second.

        Some 15 us a slice. Knobs that are respected are read, so that receipts say what
        they have now.

        Args:
            now_ns: CLOCK_MONOTONIC.

        Returns:
            What has changed since the last look and was not ours.

        Raises:
            ActuatorError: a knob cannot be read.
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
        """An operator takes all knobs back; their first original settings will be restored again.

        Raises:
            ActuatorError: a knob cannot be set; it stays respected.
        """
        self._reasserts.clear()
        for name, knob in list(self._standing):
            if self._reclaim is not None:
                self._reclaim(name, knob)
            self._actuator.reassert(name, knob)
            del self._standing[name, knob]

    def _act(self, deviation: Deviation, now_ns: int) -> ExternalChange:
        key: tuple[str, KnobName] = (deviation.slice, deviation.knob)
        refusal = self._reassert(deviation, now_ns)
        if refusal is None:
            return ExternalChange(*key, deviation.found, deviation.ours, "reassert", deviation.text)
        text = "; ".join(filter(None, (deviation.text, refusal)))
        return self.respect(ExternalChange(*key, deviation.found, deviation.ours, "respect", text))

    def respect(self, change: ExternalChange) -> ExternalChange:
        """Leave a knob to the program that has changed it; raises ActuatorError."""
        key: tuple[str, KnobName] = (change.slice, change.knob)
        self._actuator.yield_knob(*key)
        self._standing[key] = change
        if self._release is not None:
            self._release(*key)
        return change

    def _reassert(self, deviation: Deviation, now_ns: int) -> str | None:
        """Set ours again; why not, where that is not wanted, was done too often or does not go."""
        refusal = self._reasserts.refusal((deviation.slice, deviation.knob), now_ns)
        if refusal is None:
            try:
                self._actuator.reassert(deviation.slice, deviation.knob, newest=self.config.restore == "newest")
            except ActuatorError as error:
                refusal = str(error)
        return refusal
