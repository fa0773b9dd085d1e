"""The last word before the kernel: whatever a policy says, what reaches an actuator lies inside the declared envelope.

`_apply_rules` is the list of rules, from top to bottom: first whether the policy goes on, for the node and for each
slice (`trust`, `service`), then how far each knob may go, and whether the knobs of all slices fit together
(`knob_rules`). Each rule is a function that can be read alone; those that can be switched off safely are named after
their section of the configuration, which has ``enabled``. A rule changes what knobs are to be set to (``value``), or
what a slice or the node does (``action``), and adds its reason. What rules share is in `records`, and what a
configuration declares for them comes from `envelope`.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError
from slicepilot.controller.contracts.charge import GUARD_MASK, InCharge
from slicepilot.controller.contracts.modes import Level
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.compiled import kernel, never_compile_again
from slicepilot.env.knobs import EGRESS, NICE, NUM_KNOBS, Knobs, NiceScope
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import SLICE_FIELDS, Telemetry

from .config import GuardConfig
from .envelope import count_cpus, declare, window_of
from .knob_rules import cpu_budget, cpu_shares, note_change, oscillation, rest, shape
from .records import FOLLOW, HOLD, NEVER_NS, RATE, SAFE, Records, State
from .service import balance, service_floors
from .trust import Figures, decisions, late_decisions, measurements, orders

_LEVELS = tuple(Level)
_SAFE_BIT = Reason.SAFE_SETTING.bit
_POLICY, _GUARD, _ALL_SAFE, _NOBODY = map(int, InCharge)
# What came out: just what was wanted, what holds, or something else.
_AS_WANTED, _AS_HELD, _CHANGED = range(3)


@kernel
def _apply_rules(figures: Figures, state: State) -> None:
    """All rules, in order."""
    node, slices, knobs = state.node[0], state.slices, state.knobs
    measurements(figures, node, slices, state.past)
    decisions(node, knobs)
    orders(node)
    late_decisions(node)
    service_floors(node, slices, knobs)
    elapsed_ns = float(node.period_ns)
    if node.before_ns != NEVER_NS:
        elapsed_ns = min(max(float(node.now_ns - node.before_ns), elapsed_ns), node.most_elapsed_ns)
    for i in range(len(knobs)):
        knob, slice_ = knobs[i], slices[knobs[i].slice]
        action = max(node.action, slice_.action)
        if knob.movable == 0 or action != FOLLOW:
            knob.value = knob.safe if action == SAFE and knob.movable != 0 else knob.held
            rest(knob)
            continue
        shape(knob, slice_, node.now_ns, elapsed_ns)
        oscillation(knob, slice_, node.now_ns, node.flip_window_ns, state.turns[i])
    balance(node, slices, knobs)
    cpu_shares(node, slices, knobs)
    cpu_budget(node, slices, knobs)


@kernel
def _judge(
    measured_slices: npt.NDArray[np.float32],
    measured_node: npt.NDArray[np.float32],
    age_s: npt.NDArray[np.float32],
    valid: npt.NDArray[np.bool_],
    wanted: npt.NDArray[np.float32],
    held: npt.NDArray[np.float32],
    failed: bool,
    now_ns: int,
    node: Records,
    slices: Records,
    knobs: Records,
    past: npt.NDArray[np.float32],
    turns: npt.NDArray[np.int64],
    out: npt.NDArray[np.float32],
    reasons: npt.NDArray[np.uint32],
) -> tuple[int, int, int, bool]:
    """One tick: outcome, level, the node's reasons, whether it cannot wait; what is let through is in ``out``, float32
    (3, S, 1), and why in ``reasons``, (S,).

    Takes the parts of `Figures` and `State` as separate arguments: passing a tuple from Python costs more than arrays.
    """
    own, count = node[0], len(slices)
    own.now_ns, own.failed, own.action, own.reasons = now_ns, failed, FOLLOW, 0
    for s in range(count):
        slices[s].action, slices[s].reasons, slices[s].urgent = FOLLOW, 0, 0
    for i in range(len(knobs)):
        knob = knobs[i]
        knob.wanted = wanted[knob.kind, knob.slice, 0]
        knob.held = _sound(knob, held[knob.kind, knob.slice, 0])
        note_change(knob, own.before_ns, turns[i])
    state = State(node, slices, knobs, past, turns, out, reasons)
    _apply_rules(Figures(measured_slices, measured_node, age_s, valid), state)
    own.before_ns = now_ns
    as_wanted, as_held, urgent = not failed, True, own.action >= SAFE
    for i in range(len(knobs)):
        knob = knobs[i]
        slice_, before = slices[knob.slice], held[knob.kind, knob.slice, 0]
        out[knob.kind, knob.slice, 0] = knob.value if knob.movable != 0 else before
        value = out[knob.kind, knob.slice, 0]
        knob.last_value = value
        if value != knob.wanted:
            as_wanted = False
            slice_.reasons |= own.reasons
        if value != before:
            as_held = False
            urgent = urgent or slice_.urgent != 0 or slice_.action == SAFE
    for s in range(count):
        reasons[s] = slices[s].reasons
    _count(own, slices)
    level = own.action + (1 if own.latched != 0 else 0)
    return (_AS_WANTED if as_wanted else _AS_HELD if as_held else _CHANGED), level, own.reasons, urgent


@kernel
def _sound(knob: np.record, held: float) -> float:
    """The held value, or the safe value if that is no valid setting."""
    if knob.kind == NICE:
        return held if -20.0 <= held <= 19.0 and held == np.rint(held) else knob.safe
    return held if held > 0.0 or (knob.kind == EGRESS and held == 0.0) else knob.safe


@kernel
def _count(node: np.record, slices: Records) -> None:
    """Count reasons, and what was in charge."""
    together, all_safe = node.reasons, True
    for s in range(len(slices)):
        _tally(slices[s].reasons, slices[s].counts)
        together |= slices[s].reasons
        all_safe = all_safe and slices[s].reasons & _SAFE_BIT != 0
    _tally(node.reasons, node.counts)
    node.charge = _POLICY
    if node.powerless != 0:
        node.charge = _NOBODY
    elif node.action >= SAFE or all_safe:
        node.charge = _ALL_SAFE
    elif node.action == HOLD or together & GUARD_MASK != 0:
        node.charge = _GUARD
        _tally(together & GUARD_MASK, node.rules_in_charge)
    node.charges[node.charge] += 1


@kernel
def _tally(mask: int, counts: npt.NDArray[np.int64]) -> None:
    """Count each reason in a mask."""
    bit = 0
    while mask != 0:
        counts[bit] += mask & 1
        mask >>= 1
        bit += 1


class GuardDecision(NamedTuple):
    """The guard's decision at a tick.

    Attributes:
        allowed: what goes to the actuator: the same as was wanted when nothing was changed (`Knobs.same_as`), and the
            same as holds when all of it stays.
        reasons: uint32 (S,), masks of `Reason` by slice; a view that holds until the guard decides again.
        node_reasons: the mask for the node.
        level: how far the guard trusts measurements and policy.
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
        floor: which floor.
        offered_mbps, carried_mbps, delay_p99_us: when it tripped; rates are means over ``sla_floor.window_s``.
        floor_mbps: the rate that the floor required.
        began_ns: when it tripped, on the clock of `Guard.judge`.
        trips: in a row, that count.
        on_trial: the safe setting may turn out not to keep the floor either.
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
    """Judges the decisions for one live node.

    Each knob that `judge` returns is inside the slice's bounds and above its floors, or the value that holds already,
    or the declared safe value; in levels SAFE and LATCHED it is the safe setting exactly.

    While the policy acts, a slice that is measured stays below its service floor (`ServiceFloors`) for at most
    ``sla_floor.window_s + patience_s``, each rounded up to whole control periods, and one period more; then the slice
    gets what the safe setting of all would give it (`Balance`). Bad measurements lead to the safe setting of all after
    ``telemetry.hold_s`` and at most one period.

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
        if config.telemetry.most_age_s < context.oldest_s:
            raise ConfigError(
                f"guard: telemetry.most_age_s = {config.telemetry.most_age_s:g}: expected {context.oldest_s:g} or "
                "more, as old as measurements of this node are at times; the guard called prometheus has 60"
            )
        self.config, self.level = config, Level.NORMAL
        self._scope: NiceScope = nice_scope
        self._context, self._cpus, self._count = context, context.logical_cpus.item(), len(slices)
        self._overruns = deque[int](maxlen=config.overruns.most + 1)
        self._declared = slices, context, nice_scope, request_mcpu
        self._state, self._rehearsed = (
            State.new(len(slices), window_of(config, context), config.oscillation.reversals) for _ in range(2)
        )
        # Arrays of bytes are copied ten times as fast as fields, and a view of records takes as long as a copy.
        self._copied = [
            (copy.view(np.uint8), array.view(np.uint8))
            for copy, array in zip(self._rehearsed, self._state, strict=True)
        ]
        declare(self._state, config, *self._declared)
        self._node = self._state.node
        # Compiled, or taken from the cache, before the first tick; never in one.
        none = Knobs.none(len(slices), nice_scope=nice_scope)
        self.warm_up(Telemetry.empty(len(slices)), none, none)
        never_compile_again(_judge)

    def judge(self, telemetry: Telemetry, wanted: Knobs | None, held: Knobs, now_ns: int) -> GuardDecision:
        """The knobs that may go to the actuator now.

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
            count_cpus(self._node, cpus, self.config)
        decision = self._run(telemetry, wanted, held, now_ns, self._state)
        self.level = decision.level
        return decision

    def warm_up(self, telemetry: Telemetry, wanted: Knobs | None, held: Knobs) -> None:
        """Go through the motions of `judge` on a copy of what the guard remembers."""
        for copy, array in self._copied:
            np.copyto(copy, array)
        self._run(telemetry, wanted, held, self._node["before_ns"].item() + 1, self._rehearsed)

    def _run(self, telemetry: Telemetry, wanted: Knobs | None, held: Knobs, now_ns: int, state: State) -> GuardDecision:
        shape = NUM_KNOBS, self._count, 1
        if telemetry.slices.shape != (len(SLICE_FIELDS), *shape[1:]) or held.values.shape != shape:
            raise ValueError(f"guard: telemetry or held knobs of another shape; expected ({self._count}, 1) by slice")
        failed = wanted is None or wanted.nice_scope != self._scope or wanted.values.shape != shape
        decision = held if wanted is None or failed else wanted
        arrays = telemetry.slices, telemetry.node, telemetry.age_s, telemetry.valid, decision.values, held.values
        rest = failed, now_ns, *state
        try:
            outcome, level, node_reasons, urgent = _judge(*arrays, *rest)
        except TypeError:  # arrays of another layout or precision, before anything was touched
            plain = (np.array(array, array.dtype if array.dtype == bool else np.float32, order="C") for array in arrays)
            outcome, level, node_reasons, urgent = _judge(*plain, *rest)
        allowed = (decision, held)[outcome] if outcome != _CHANGED else Knobs(state.out.copy(), self._scope)
        return GuardDecision(allowed, state.reasons, node_reasons, _LEVELS[level], urgent)

    def overran(self, now_ns: int) -> None:
        """A decision came too late and was not applied. Under the safe setting that counts for nothing."""
        if self.level >= Level.SAFE:
            return
        node = self._node[0]
        if node.charge == InCharge.POLICY:
            node.charge = InCharge.GUARD
            node.charges[InCharge.POLICY] -= 1
            node.charges[InCharge.GUARD] += 1
            node.rules_in_charge[Reason.OVERRUN] += 1
        times, window_ns = self._overruns, 1e9 * self.config.overruns.window_s
        times.append(now_ns)
        if self.config.overruns.enabled and len(times) == times.maxlen and now_ns - times[0] < window_ns:
            times.clear()
            node.overran = 1

    def pause(self) -> None:
        """The operator's order that knobs stay as they are, unless it has to be the safe setting."""
        self._node["paused"] = 1

    def order_safe(self) -> None:
        """The operator's order of the safe setting."""
        self._node["ordered_safe"] = 1

    def resume(self) -> None:
        """End pause, ordered safe setting and latches, with the trips that led to them; all else goes on."""
        self._node["paused"] = self._node["ordered_safe"] = 0
        for records in self._node, self._state.slices:
            latched = records["latched"] != 0
            for field in ("tripped", "latched"):
                records[field][latched] = 0
            records["trip"]["count"][latched], records["trip"]["until_ns"][latched] = 0, NEVER_NS

    def follow(self, previous: Guard) -> None:
        """Take over from the guard of another configuration on the same slices: orders, trips and what is frozen stay,
        and what has gone on for a while goes on. Services are averaged, and reasons counted, anew."""
        for own, old in zip(self._state[:3], previous._state[:3], strict=True):
            own[:] = old
        self._state.watch_anew()
        declare(self._state, self.config, *self._declared)
        self.level = previous.level

    @property
    def powerless(self) -> bool:
        """Whether no knob can be moved at the next tick, so that nobody is in charge of it."""
        return bool(self._node["powerless"][0])

    @powerless.setter
    def powerless(self, value: bool) -> None:
        self._node["powerless"] = value

    @property
    def in_control(self) -> bool:
        """Whether decisions reach the node. If not (shadow), a starved slice is not the policy's fault: no trips."""
        return bool(self._node["in_control"][0])

    @in_control.setter
    def in_control(self, value: bool) -> None:
        self._node["in_control"] = value

    @property
    def paused(self) -> bool:
        return bool(self._node["paused"][0])

    @property
    def ordered_safe(self) -> bool:
        return bool(self._node["ordered_safe"][0])

    @property
    def trips(self) -> dict[int, int]:
        """Trips in a row (see `Safe`) by index of the slice (-1: the node); without zeros."""
        counts = enumerate([*self._state.slices["trip"]["count"].tolist(), *self._node["trip"]["count"].tolist()])
        return {s if s < self._count else -1: count for s, count in counts if count}

    @property
    def tripped(self) -> list[SliceTrip]:
        """Slices that have their safe setting now because they were below a service floor, in order."""
        slices, same = self._state.slices, ("offered_mbps", "carried_mbps", "delay_p99_us", "floor_mbps", "began_ns")
        return [
            SliceTrip(
                slice_index=s,
                floor="rate" if slices["floor"][s] == RATE else "delay",
                **{field: slices[field][s].item() for field in same},
                trips=slices["trip"]["count"][s].item(),
                on_trial=self.config.sla_floor.trial.enabled and not slices["latched"][s],
                latched=bool(slices["latched"][s]),
            )
            for s in np.flatnonzero(slices["tripped"]).tolist()
        ]

    @property
    def counts(self) -> dict[tuple[Reason, int], int]:
        """Ticks in which a reason was given, by reason and index of the slice (-1: the node); without zeros."""
        table: Any = np.concatenate([self._state.slices["counts"], self._node["counts"]]).T
        return {
            (Reason(row), column if column < self._count else -1): table[row, column].item()
            for row, column in np.argwhere(table).tolist()
        }

    @property
    def charges(self) -> dict[str, int]:
        """Ticks by what was in charge (`InCharge`)."""
        return {charge.label: self._node["charges"][0, charge].item() for charge in InCharge}

    @property
    def rules_in_charge(self) -> dict[str, int]:
        """Ticks of those in which the guard was in charge, by reason; a tick may have several. Without zeros."""
        counts = self._node["rules_in_charge"][0]
        return {reason.label: counts[reason].item() for reason in Reason if counts[reason]}
