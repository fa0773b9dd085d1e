"""The last word before the kernel: whatever a policy says, what reaches an actuator lies inside the declared envelope.

`Guard` is a thin shell. Its rules are in `config`, all that it goes by and remembers is one structured array
(`layout`), and four small kernels work on it: `telemetry` (can the measurement be believed?), `watch` (does the policy
go on? With `trips`, `floors` and `capacity`: whose fault is a broken service floor?), `moves` (how far may a knob go?)
and `node` (does it fit together?).
"""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from slicepilot.controller.contracts.charge import InCharge
from slicepilot.controller.contracts.modes import Level
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.compiled import never_compile_again
from slicepilot.env.knobs import Knobs, NiceScope
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from . import layout as at
from .config import GuardConfig
from .rules import Rules, reckon_with
from .work import Work, judge

_LEVELS = tuple(Level)
_NO_TRIP = np.array((at.NEVER_NS, 0, 0, at.NEVER_NS, 0), at.TRIP)


class GuardDecision(NamedTuple):
    """What the guard says to a tick.

    Attributes:
        allowed: what goes to the actuator: the same as was wanted when nothing was changed (`Knobs.same_as`), and the
            same as holds when all of it stays.
        reasons: uint32 (S,), masks of `Reason` by slice; a view that holds until the guard is asked again.
        node_reasons: the mask for the node.
        level: how far the guard trusts what it sees and is told.
        urgent: ``allowed`` has to be applied even if the decision is late: all of the node is safe, or a slice has its
            safe setting only then.
    """

    allowed: Knobs
    reasons: npt.NDArray[np.uint32]
    node_reasons: int
    level: Level
    urgent: bool


class SliceTrip(NamedTuple):
    """A slice that has its safe setting because a service floor of it was broken.

    Attributes:
        slice_index: which slice.
        floor: which one.
        offered_mbps, carried_mbps, delay_p99_us: when it tripped; rates are means over ``sla_floor.window_s``.
        floor_mbps: what the rate floor asked for.
        began_ns: when it tripped, on the clock of `Guard.judge`.
        trips: in a row, that count.
        on_trial: it may turn out to be nobody's fault.
        latched: it stays until an operator resumes.
    """

    slice_index: int
    floor: Literal["rate", "delay"]
    offered_mbps: float
    carried_mbps: float
    delay_p99_us: float
    floor_mbps: float
    began_ns: int
    trips: int
    on_trial: bool
    latched: bool


class Guard:
    """Judges one live node's decisions, one after the other.

    What leaves `judge` is, knob by knob, inside the slice's bounds and above its floors, or what holds already, or the
    declared safe value; in levels SAFE and LATCHED it is the safe setting exactly.

    While the policy acts, a slice that is measured stays below its service floor (`SlaFloor`) for at most
    ``sla_floor.window_s + patience_s``, each rounded up to whole control periods, and one period more; then the slice
    has what the safe setting of all would give it (`node`), unless the floor is spared because nobody could keep it
    (`Trial`). Bad measurements lead to the safe setting of all after ``telemetry.hold_s`` and at most one period.

    Args:
        config: the envelope.
        slices: order of all arrays.
        context: of a live node: one lane.
        nice_scope: of the policy. Knobs of another scope are refused as a failure of the policy.
        request_mcpu: CPU requests (S,) that the pods are deployed with, from which their weights follow; none takes
            those of the slice set.

    Raises:
        ConfigError: rules that name an unknown slice, or that contradict each other or the node.
    """

    def __init__(
        self,
        config: GuardConfig,
        slices: SliceSet,
        context: Context,
        nice_scope: NiceScope = "group",
        request_mcpu: FloatArray | None = None,
    ) -> None:
        self.config, self.level = config, Level.NORMAL
        self._scope: NiceScope = nice_scope
        self._rules = Rules.of(config, slices, context, nice_scope, request_mcpu)
        self._context, self._cpus = context, context.logical_cpus.item()
        num_slices = len(slices)
        self._num_slices = num_slices
        self._work, self._warm_up_work = (Work(self._rules, num_slices) for _ in range(2))
        self._state, self._node = self._work.state, self._work.state.node["memory"]
        self._overruns = deque[int](maxlen=config.overruns.most + 1)
        self._overrun_window_ns = round(1e9 * config.overruns.window_s)
        none = Knobs.none(num_slices, nice_scope=nice_scope)
        # Compiled, or taken from the cache, before the first tick; never in one.
        self.warm_up(Telemetry.empty(num_slices), none, none)
        never_compile_again(judge)

    def judge(self, telemetry: Telemetry, wanted: Knobs | None, held: Knobs, now_ns: int) -> GuardDecision:
        """What may go to the actuator now.

        Args:
            telemetry: of this tick, not averaged; one lane.
            wanted: the policy's decision, (S, 1); None: it has failed.
            held: the knobs that hold, (S, 1).
            now_ns: of a clock that does not go back.

        Raises:
            ValueError: telemetry or held knobs of another shape.
        """
        if (cpus := self._context.logical_cpus.item()) != self._cpus:
            self._cpus = cpus
            reckon_with(cpus, self.config, self._state.node["rules"])
        verdict = self._judge(telemetry, wanted, held, now_ns, self._work)
        self.level = verdict.level
        return verdict

    def warm_up(self, telemetry: Telemetry, wanted: Knobs | None, held: Knobs) -> None:
        """Go through the motions of `judge` on a copy of what the guard remembers."""
        self._warm_up_work.take(self._work)
        now_ns = self._node["before_ns"].item() + 1
        self._judge(telemetry, wanted, held, now_ns, self._warm_up_work)

    def overran(self, now_ns: int) -> None:
        """A decision came too late and was not applied. Under the safe setting that counts for nothing."""
        if self.level >= Level.SAFE:
            return
        if self._node["charge"] == InCharge.POLICY:
            charges = self._state.node["charges"][0]
            self._node["charge"] = InCharge.GUARD
            charges[InCharge.POLICY] -= 1
            charges[InCharge.GUARD] += 1
            self._state.node["rules_in_charge"][0, Reason.OVERRUN] += 1
        self._overruns.append(now_ns)
        if len(self._overruns) == self._overruns.maxlen and now_ns - self._overruns[0] < self._overrun_window_ns:
            self._overruns.clear()
            self._node["overran"] = 1

    def pause(self) -> None:
        """The operator's order that knobs stay as they are, unless it has to be the safe setting."""
        self._node["paused"] = 1

    def order_safe(self) -> None:
        """The operator's order of the safe setting."""
        self._node["ordered_safe"] = 1

    def resume(self) -> None:
        """End pause, ordered safe setting and latches, with the trips that led to them; all else goes its way."""
        node, slices = self._state.node, self._state.slices
        self._node["paused"] = self._node["ordered_safe"] = 0
        if node["trip"]["latched"][0]:
            node["trip"], self._node["by_overrun"] = _NO_TRIP, 0
        slices["trip"][slices["trip"]["latched"] != 0] = _NO_TRIP

    def follow(self, previous: Guard) -> None:
        """Take over from the guard of another configuration on the same slices: orders, trips and what is frozen stand,
        and what has gone on for a while goes on. Services are averaged, and reasons counted, anew."""
        old, new = previous._state, self._state
        new.node["memory"], new.node["trip"] = old.node["memory"], old.node["trip"]
        new.node["conditions"]["memory"] = old.node["conditions"]["memory"]
        new.slices["missing"]["memory"] = old.slices["missing"]["memory"]
        new.slices["knobs"]["memory"] = old.slices["knobs"]["memory"]
        for field in ("floors", "trip", "trial", "told", "left_out"):
            new.slices[field] = old.slices[field]
        new.slices["floors"]["since_ns"] = at.NEVER_NS
        new.node["memory"]["ticks"] = new.node["memory"]["same_ticks"] = 0
        new.node["memory"]["charge"] = -1
        new.slices["knobs"]["memory"]["reversal"] = 0
        self.level = previous.level

    @property
    def in_control(self) -> bool:
        """Whether decisions reach the node. If not (shadow), a starved slice is not the policy's fault: no trips."""
        return bool(self._node["in_control"])

    @in_control.setter
    def in_control(self, value: bool) -> None:
        self._node["in_control"] = value

    @property
    def paused(self) -> bool:
        """Whether `pause` is in force."""
        return bool(self._node["paused"])

    @property
    def ordered_safe(self) -> bool:
        """Whether `order_safe` is in force."""
        return bool(self._node["ordered_safe"])

    @property
    def trips(self) -> dict[int, int]:
        """Trips in a row (see `Safe`) by index of the slice (-1: the node); without zeros."""
        counts = [*self._state.slices["trip"]["count"].tolist(), *self._state.node["trip"]["count"].tolist()]
        return {s if s < self._num_slices else -1: count for s, count in enumerate(counts) if count}

    @property
    def tripped(self) -> list[SliceTrip]:
        """Slices that have their safe setting now because they were below a service floor, in order."""
        found = []
        for s in np.flatnonzero(self._state.slices["tripped"]).tolist():
            one = self._state.slices[s]
            trip, told = one["trip"], one["told"]
            found.append(
                SliceTrip(
                    slice_index=s,
                    floor="rate" if told["floor"] == at.RATE else "delay",
                    offered_mbps=told["offered_mbps"].item(),
                    carried_mbps=told["carried_mbps"].item(),
                    delay_p99_us=told["delay_p99_us"].item(),
                    floor_mbps=told["floor_mbps"].item(),
                    began_ns=told["began_ns"].item(),
                    trips=trip["count"].item(),
                    on_trial=one["trial"]["counts_at_ns"].item() != at.NEVER_NS,
                    latched=bool(trip["latched"]),
                )
            )
        return found

    @property
    def counts(self) -> dict[tuple[Reason, int], int]:
        """Ticks in which a reason was given, by reason and index of the slice (-1: the node); without zeros."""
        num_slices = self._num_slices
        table = np.concatenate([self._state.slices["counts"], self._state.node["counts"]]).T
        return {
            (Reason(row), column if column < num_slices else -1): table[row, column].item()
            for row, column in np.argwhere(table).tolist()
        }

    @property
    def charges(self) -> dict[str, int]:
        """Ticks by who was in charge (`InCharge`)."""
        return {one.label: self._state.node["charges"][0, one].item() for one in InCharge}

    @property
    def rules_in_charge(self) -> dict[str, int]:
        """Ticks of those in which the guard was in charge, by reason; a tick may have several. Without zeros."""
        counts = self._state.node["rules_in_charge"][0]
        return {reason.label: counts[reason].item() for reason in Reason if counts[reason]}

    def _judge(self, telemetry: Telemetry, wanted: Knobs | None, held: Knobs, now_ns: int, work: Work) -> GuardDecision:
        failed = wanted is None or wanted.nice_scope != self._scope
        decision = held if failed or wanted is None else wanted
        outcome, node_reasons, level, urgent = work.run(telemetry, decision, held, failed, now_ns)
        if outcome == at.AS_WANTED:
            allowed = decision
        elif outcome == at.AS_HELD:
            allowed = held
        elif outcome == at.CHANGED:
            allowed = Knobs(work.out.copy(), self._scope)
        else:
            raise ValueError(
                f"guard: telemetry or held knobs of another shape; accepted: ({self._num_slices}, 1) by slice"
            )
        return GuardDecision(allowed, work.state.reasons, node_reasons, _LEVELS[level], urgent)
