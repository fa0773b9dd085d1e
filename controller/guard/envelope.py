"""Writes a configuration's rules for a node into the guard's records, and refuses rules that contradict each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from slicepilot.configs import ConfigError, did_you_mean
from slicepilot.data.nice_weights import NICE_0_WEIGHT, PRIO_TO_WEIGHT
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import CPU_LIMIT, EGRESS, KNOB_FIELDS, NICE, NUM_KNOBS, NiceScope
from slicepilot.env.promises import static_order
from slicepilot.env.slices import NICE_MIN, SliceSet
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS

from .config import PRIORITY, Floor, GuardConfig, SafeSetting, SlaFloor
from .records import Records, State
from .service import CLEARLY

T_co = TypeVar("T_co", covariant=True)

# A rate or CPU use above these is a broken counter whatever the node: the averages keep their precision below.
_MOST_MBPS, _MOST_MCPU, _MOST_USE_RATIO = 1e7, 1e8, 1e3
# A pod without a request has the least weight there is: 2 shares of 1024 a CPU (`GroupWeight`).
_LEAST_REQUEST_MCPU = 2.0
MOST_PATIENCE_S = 1e6  # as `Seconds` in the configuration: nanoseconds stay integers
# The kernel's CPU shares and ours are the same number but for rounding.
_ROUNDING = 1e-9


class Section(Protocol[T_co]):
    """A section of the configuration with an entry for some slices, and an entry for all others."""

    @property
    def default(self) -> T_co: ...
    @property
    def slices(self) -> Mapping[str, T_co]: ...


def entries(name: str, section: Section[T_co], slices: SliceSet) -> list[T_co]:
    """Each slice's own entry, or the default; `PRIORITY` is the slice of highest weight unless a slice is called so.

    Raises:
        ConfigError: an unknown slice.
    """
    named = section.slices
    for given in named:
        if given not in slices.names and given != PRIORITY:
            known = did_you_mean(given, slices.names, ", ".join((*slices.names, PRIORITY)))
            raise ConfigError(f"guard: {name}.slices = {given!r}: unknown slice; {known}")
    own = [named.get(slice_name, section.default) for slice_name in slices.names]
    first = slices.names[slices.priority_index]
    if PRIORITY in named and PRIORITY not in slices.names and first not in named:
        own[slices.priority_index] = named[PRIORITY]
    return own


def window_of(config: GuardConfig, context: Context) -> int:
    """Control periods that rates are averaged over."""
    return max(1, math.ceil(config.sla_floor.window_s / context.period_s.item() - _ROUNDING))


def declare(
    state: State,
    config: GuardConfig,
    slices: SliceSet,
    context: Context,
    nice_scope: NiceScope,
    request_mcpu: FloatArray | None,
) -> None:
    """Fill all declared fields of the records. A rule that is switched off gets values with which it does nothing.

    Raises:
        ConfigError: an unknown slice, or limits that contradict each other or the node.
    """
    _declare_node(state.node[0], config, context, nice_scope)
    _declare_slices(state.slices, config, slices, context, request_mcpu)
    declare_knobs(state.knobs, config, slices, context, nice_scope)
    safe_nice = state.knobs["safe"].reshape(NUM_KNOBS, -1)[NICE].astype(int)
    safe_weights = state.slices["weight"] * state.node["nice_weight"][0, safe_nice - NICE_MIN]
    state.slices["safe_share"] = safe_weights / safe_weights.sum()
    state.node["shares"] = state.slices["share_mcpu"].any()
    _check(state, slices)


def count_cpus(node: Records, cpus: float, config: GuardConfig) -> None:
    """So many CPUs are there now.

    The budget stays as it was declared and checked. What CPU use cannot be is never lowered: a CPU that comes back is
    used before anybody has looked.
    """
    node["node_mcpu"] = 1e3 * cpus
    node["most_cpu_mcpu"] = max(node["most_cpu_mcpu"], config.telemetry.cpu_ratio * 1e3 * cpus)


def flip_window_ns(config: GuardConfig, period_s: float) -> float:
    """Time over which turns of a knob are counted; 0: none are."""
    flips = config.oscillation
    return 1e9 * max(flips.window_s, 2 * flips.reversals * period_s) if flips.enabled else 0.0


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)


def _fill(record: Any, **values: Any) -> None:
    for name, value in values.items():
        record[name] = value


def _condition(record: Any, patience_s: float, recover_s: float) -> None:
    _fill(record, patience_ns=_ns(patience_s), recover_ns=_ns(recover_s))


def _back_off(record: Any, first_s: float, most_s: float, forget_s: float) -> None:
    _fill(record, first_ns=_ns(first_s), most_ns=_ns(most_s), forget_ns=_ns(forget_s))


def _declare_node(node: Any, config: GuardConfig, context: Context, nice_scope: NiceScope) -> None:
    period_s, distrust, service, safe = context.period_s.item(), config.telemetry, config.sla_floor, config.safe
    cpus = context.logical_cpus.item()
    ratio = config.budget.cpu_limits_ratio if config.budget.enabled else None
    most = _most(config)
    _fill(
        node,
        period_ns=_ns(period_s),
        most_elapsed_ns=1e9 * period_s * config.slew.most_periods,
        most_age_s=distrust.most_age_s,
        frozen_ticks=math.inf if distrust.frozen_ticks is None else distrust.frozen_ticks,
        most_carried_mbps=distrust.uplink_ratio * context.uplink_mbps.item(),
        most_gain=distrust.uplink_ratio,
        most_cpu_mcpu=0.0,
        most_of_slice=[most[name] for name in SLICE_FIELDS],
        most_of_node=[most[name] for name in NODE_FIELDS],
        latch_after=safe.latch_after,
        floors=service.enabled,
        trials=service.trial.enabled,
        window_ns=_ns(service.window_s),
        tolerance=service.trial.tolerance_ratio,
        flip_window_ns=flip_window_ns(config, period_s),
        ranks=nice_scope == "group",  # between pods the nice of a process ranks nothing
        nice_weight=np.asarray(PRIO_TO_WEIGHT) / NICE_0_WEIGHT if nice_scope == "group" else 1.0,
        limits_mcpu=math.inf if ratio is None else 1e3 * cpus * ratio,
    )
    count_cpus(node, cpus, config)
    _condition(node["telemetry"], distrust.hold_s, distrust.recover_s)
    _condition(node["not_a_number"], config.not_a_number.patience_s, config.not_a_number.recover_s)
    _condition(node["policy_error"], config.policy_error.patience_s, config.policy_error.recover_s)
    _back_off(node["trip"], safe.hold_s, safe.most_hold_s, safe.forget_s)


def _most(config: GuardConfig) -> dict[str, float]:
    """The largest plausible value of each figure."""
    delay, ratio = 1e6 * config.telemetry.most_delay_s, config.telemetry.most_ratio
    return {
        "offered_mbps": _MOST_MBPS,
        "carried_mbps": _MOST_MBPS,
        "delay_p50_us": delay,
        "delay_p99_us": delay,
        "loss_ratio": ratio,
        "cpu_use_mcpu": _MOST_MCPU,
        "throttled_ratio": ratio,
        "runqueue_delay_us": delay,
        "cpu_idle_ratio": ratio,
        "uplink_use_ratio": _MOST_USE_RATIO,  # as tolerant as towards the carried rates, whose mean is judged
    }


def _declare_slices(
    records: Records, config: GuardConfig, slices: SliceSet, context: Context, request_mcpu: FloatArray | None
) -> None:
    requests = (slices.column("cpu_request_mcpu") if request_mcpu is None else request_mcpu).ravel()
    records["weight"] = np.maximum(requests, _LEAST_REQUEST_MCPU)
    for group in context.sharing:  # one cgroup weighs as much as any other, however many slices are in it
        members = list(group)
        if not requests[members].any():
            records["weight"][members] /= len(members)
    trial, safe = config.sla_floor.trial, config.safe
    services = entries("sla_floor", config.sla_floor, slices)
    floors = entries("floor", config.floor, slices)
    records["share_mcpu"] = [floor.cpu_share_mcpu * config.floor.enabled for floor in floors]
    for slice_, spec, floor, part in zip(
        records, slices.slices, services, _parts(config, slices, services), strict=True
    ):
        factor, ratio = floor.delay_factor, floor.carried_ratio * part
        _fill(
            slice_,
            committed_mbps=spec.sla.committed_mbps,
            carried_ratio=ratio,
            most_delay_us=math.inf if factor is None else 1e3 * factor * spec.sla.delay_bound_ms,
            # A slice that is promised less has proved as much as there can be by asking for all of it.
            least_mbps=min(floor.least_mbps, spec.sla.committed_mbps),
            patience_ns=_ns(min(floor.patience_s / part, MOST_PATIENCE_S)),
            trial_patience_ns=_ns(floor.patience_s if trial.patience_s is None else trial.patience_s),
            # No more can be carried than is offered.
            clearly=max(1.0, min(CLEARLY, 0.98 / ratio)) if ratio else 1.0,
        )
    _condition(records["missing"], config.telemetry.hold_s, config.telemetry.recover_s)
    _back_off(records["trip"], safe.hold_s, safe.most_hold_s, safe.forget_s)
    _back_off(records["floors"]["lowered"], trial.spare_s, trial.most_spare_s, safe.forget_s)


def _parts(config: GuardConfig, slices: SliceSet, services: list[SlaFloor]) -> list[float]:
    """Each slice's share of `SlaFloors.default`: its weight over the highest weight."""
    parts = slices.column("weight").ravel() / slices.column("weight").max()
    follows = [config.sla_floor.by_weight and own is config.sla_floor.default for own in services]
    return np.where(follows, parts, 1.0).tolist()


def _safe_nice(settings: list[SafeSetting], slices: SliceSet, nice_scope: NiceScope) -> list[float]:
    """Each slice's safe level."""
    order = np.zeros((len(slices), 1), np.float32)
    if nice_scope == "group":
        weight = slices.column("weight")
        order = np.clip(static_order(weight, weight > 0), slices.bound("nice", 0), slices.bound("nice", 1))
    levels = zip(settings, order.ravel().tolist(), strict=True)
    return [own if setting.nice is None else setting.nice for setting, own in levels]


def declare_knobs(
    records: Records, config: GuardConfig, slices: SliceSet, context: Context, nice_scope: NiceScope
) -> None:
    """Fill the declared fields of the records of knobs, (3S,)."""
    small, dwell, slew, flips = config.hysteresis, config.dwell, config.slew, config.oscillation
    smalls = (small.limit_ratio, small.nice_levels, small.egress_ratio) if small.enabled else (0, 0, 0)
    rests_s = (dwell.cpu_limit_s, dwell.nice_s, dwell.egress_s) if dwell.enabled else (0, 0, 0)
    never, at_once = (math.inf,) * NUM_KNOBS, (1e9,) * NUM_KNOBS
    per_s = (slew.cpu_limit_per_s, slew.nice_levels_per_s, slew.egress_per_s) if slew.enabled else at_once
    turns = (math.log(flips.factor), flips.nice_levels, math.log(flips.factor)) if flips.enabled else never
    floors, settings = entries("floor", config.floor, slices), entries("safe", config.safe, slices)
    levels = _safe_nice(settings, slices, nice_scope)
    for kind, row in enumerate(records.reshape(NUM_KNOBS, len(slices))):
        _fill(row, kind=kind, slice=range(len(slices)), small=smalls[kind], rest_ns=1e9 * rests_s[kind])
        _fill(row, per_ns=1e-9 * per_s[kind], significant=turns[kind])
        row["movable"] = True if context.moves is None else context.moves[kind, :, 0]
        for knob, spec, floor, setting, level in zip(row, slices.slices, floors, settings, levels, strict=True):
            own = floor if config.floor.enabled else Floor()
            limit, rate = setting.cpu_limit_mcpu, setting.egress_mbps
            safe = math.inf if limit is None else limit, level, math.inf if rate is None else rate
            # A limit below its share would deny it.
            least = max(own.cpu_limit_mcpu, own.cpu_share_mcpu), -math.inf, own.egress_mbps
            low, high = getattr(spec.bounds, KNOB_FIELDS[kind])
            _fill(knob, low=low, high=high, floor=least[kind], safe=safe[kind])
    # Declared in double precision, applied in float32: what is compared has to be the same.
    for field in ("low", "high", "floor", "safe"):
        records[field] = records[field].astype(np.float32)


def _check(state: State, slices: SliceSet) -> None:
    """The safe setting lies inside the envelope, and the envelope on the node."""
    for knob in state.knobs:
        _check_knob(knob, slices.names[knob.slice])
    limits = state.knobs[CPU_LIMIT * len(slices) : len(slices)]
    node_mcpu, budget = state.node[0].node_mcpu, state.node[0].limits_mcpu
    least, most = limits["floor"].sum(), min(node_mcpu, budget)
    if least > most * (1 + _ROUNDING):
        raise ConfigError(
            f"guard: floor: CPU floors of all slices = {least:g} mCPU: expected at most {most:g} together"
        )
    limited = limits["safe"][np.isfinite(limits["safe"])].sum()
    if limited > budget * (1 + _ROUNDING):
        raise ConfigError(
            f"guard: safe: CPU limits of all slices = {limited:g} mCPU: expected at most {budget:g} by "
            "budget.cpu_limits_ratio"
        )
    for name, slice_ in zip(slices.names, state.slices, strict=True):
        share_mcpu = node_mcpu * slice_.safe_share
        if share_mcpu < slice_.share_mcpu * (1 - _ROUNDING):
            raise ConfigError(
                f"guard: floor of {name}: cpu_share_mcpu = {slice_.share_mcpu:g}: expected at most {share_mcpu:g}, "
                "its share under the safe setting's nice levels"
            )


def _check_knob(knob: Any, name: str) -> None:
    field, value, least = KNOB_FIELDS[knob.kind], knob.safe, max(knob.low, knob.floor)
    if knob.floor > knob.high:
        raise ConfigError(f"guard: floor of {name}: {field} = {knob.floor:g}: expected at most its bound {knob.high:g}")
    is_none = (value == math.inf and knob.kind != NICE) or (value == 0.0 and knob.kind == EGRESS)
    if not is_none and not least <= value <= knob.high:
        also = ("none, ", "", "none, 0, ")[knob.kind]
        raise ConfigError(
            f"guard: safe setting of {name}: {field} = {value:g}: expected {also}{least:g} to {knob.high:g}"
        )
