"""The envelope of one node as arrays for the guard's kernels, checked: what contradicts itself is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import TypeVar

import numpy as np

from slicepilot.configs import ConfigError, did_you_mean
from slicepilot.data.nice_weights import NICE_0_WEIGHT, PRIO_TO_WEIGHT
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import CPU_LIMIT, KNOB_FIELDS, NICE, NUM_KNOBS, NiceScope
from slicepilot.env.slices import NICE_MAX, NICE_MIN, SliceSet
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS

from .config import PRIORITY, GuardConfig, SafeSetting
from .layout import CONDITION_RULES, KNOB_RULES, NODE_RULES, SLICE_RULES, Structured

T = TypeVar("T")

# A rate or CPU use above these is a broken counter whatever the node: the averages keep their precision below.
_MOST_MBPS, _MOST_MCPU, _MOST_USE_RATIO = 1e7, 1e8, 1e3
# A pod without a request has the least weight there is: 2 shares of 1024 a CPU (`GroupWeight`).
_LEAST_REQUEST_MCPU = 2.0
# The node's load is smoothed over this time; what traffic costs at least, and others use, is forgotten over that.
_SMOOTHING_S, _LEAST_S = 1.0, 60.0
# The kernel's CPU shares and ours are the same number but for rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Rules:
    """What the kernels go by; records as in `layout`.

    Attributes:
        node: `NODE_RULES`, (). slices: `SLICE_RULES`, (S,). knobs: `KNOB_RULES`, (S, 3).
        conditions: `CONDITION_RULES` of the node's conditions, (CONDITIONS,). missing: of a slice's own, ().
        window: ticks that rates are averaged over. reversals: that a knob may make in `Oscillation.window_s`.
    """

    node: Structured
    slices: Structured
    knobs: Structured
    conditions: Structured
    missing: Structured
    window: int
    reversals: int

    @classmethod
    def of(
        cls,
        config: GuardConfig,
        slices: SliceSet,
        context: Context,
        nice_scope: NiceScope,
        request_mcpu: FloatArray | None,
    ) -> Rules:
        """The rules of a node; raises ConfigError where they contradict each other, see `check`."""
        period_s = context.period_s.item()
        if config.telemetry.most_age_s < context.oldest_s:
            raise ConfigError(
                f"guard: telemetry.most_age_s = {config.telemetry.most_age_s:g}: accepted: {context.oldest_s:g} or "
                "more, as old as measurements of this node are at times; the guard called prometheus has 60"
            )
        hold = config.telemetry.hold_s, config.telemetry.recover_s
        rules = cls(
            node=_node_rules(config, context, nice_scope),
            slices=_slice_rules(config, slices, context, request_mcpu),
            knobs=_knob_rules(config, slices, context),
            conditions=_delays(hold, astuple(config.not_a_number), astuple(config.policy_error)),
            missing=_delays(hold)[0],
            window=max(1, math.ceil(config.sla_floor.window_s / period_s - _ROUNDING)),
            reversals=config.oscillation.reversals,
        )
        _check(rules, slices)
        return rules


def of_slices(field: str, default: T, named: Mapping[str, T], slices: SliceSet) -> list[T]:
    """Each slice's own entry, or the default; `PRIORITY` is the slice of highest weight unless one is called so.

    Raises:
        ConfigError: an unknown slice.
    """
    for name in named:
        if name not in slices.names and name != PRIORITY:
            known = did_you_mean(name, slices.names, ", ".join((*slices.names, PRIORITY)))
            raise ConfigError(f"guard: {field}.slices = {name!r}: unknown slice; {known}")
    entries = [named.get(name, default) for name in slices.names]
    first = slices.names[slices.priority_index]
    if PRIORITY in named and PRIORITY not in slices.names and first not in named:
        entries[slices.priority_index] = named[PRIORITY]
    return entries


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)


def _knob_rules(config: GuardConfig, slices: SliceSet, context: Context) -> Structured:
    floors = of_slices("floor", config.floor.default, config.floor.slices, slices)
    settings = of_slices("safe", config.safe.default, config.safe.slices, slices)
    rules = np.zeros((len(slices), NUM_KNOBS), KNOB_RULES)
    for one, spec, floor, setting in zip(rules, slices.slices, floors, settings, strict=True):
        bounds = (spec.bounds.cpu_limit_mcpu, spec.bounds.nice, spec.bounds.egress_mbps)
        one["low"], one["high"] = np.asarray(bounds, float).T
        # A limit below its share would deny it.
        one["floor"] = max(floor.cpu_limit_mcpu, floor.cpu_share_mcpu), -math.inf, floor.egress_mbps
        one["safe"] = _plain(setting)
    # Declared in double precision, applied in float32: whatever is compared has to be the same.
    for field in ("low", "high", "floor", "safe"):
        rules[field] = rules[field].astype(np.float32)
    for field in ("low", "high"):
        rules[field][:, NICE] = rules[field][:, NICE].clip(NICE_MIN, NICE_MAX)
    small, dwell, slew, turn = config.hysteresis, config.dwell, config.slew, config.oscillation
    rules["small"] = small.limit_ratio, small.nice_levels, small.egress_ratio
    rules["dwell_ns"] = 1e9 * np.asarray([dwell.cpu_limit_s, dwell.nice_s, dwell.egress_s])
    rules["slew_per_ns"] = 1e-9 * np.asarray([slew.cpu_limit_per_s, slew.nice_levels_per_s, slew.egress_per_s])
    rules["movable"] = True if context.moves is None else context.moves[..., 0].T
    rules["significant"] = math.log(turn.factor), turn.nice_levels, math.log(turn.factor)
    return rules


def _plain(setting: SafeSetting) -> tuple[float, float, float]:
    limit, rate = setting.cpu_limit_mcpu, setting.egress_mbps
    return math.inf if limit is None else limit, setting.nice, math.inf if rate is None else rate


def _slice_rules(
    config: GuardConfig, slices: SliceSet, context: Context, request_mcpu: FloatArray | None
) -> Structured:
    floors = of_slices("floor", config.floor.default, config.floor.slices, slices)
    services = of_slices("sla_floor", config.sla_floor.default, config.sla_floor.slices, slices)
    requests = slices.column("cpu_request_mcpu").ravel() if request_mcpu is None else request_mcpu.ravel()
    rules = np.zeros(len(slices), SLICE_RULES)
    rules["share_floor_mcpu"] = [floor.cpu_share_mcpu for floor in floors]
    rules["base_weight"] = np.maximum(requests, _LEAST_REQUEST_MCPU)
    for group in context.sharing:  # one cgroup weighs as much as any other, however many slices are in it
        members = list(group)
        if not requests[members].any():
            rules["base_weight"][members] /= len(members)
    rules["committed_mbps"] = [spec.sla.committed_mbps for spec in slices.slices]
    rules["carried_ratio"] = [service.carried_ratio for service in services]
    rules["floor_patience_ns"] = [_ns(service.patience_s) for service in services]
    trial_s = config.sla_floor.trial.patience_s
    rules["trial_patience_ns"] = rules["floor_patience_ns"] if trial_s is None else _ns(trial_s)
    rules["most_delay_us"] = [
        math.inf if service.delay_factor is None else 1e3 * service.delay_factor * spec.sla.delay_bound_ms
        for service, spec in zip(services, slices.slices, strict=True)
    ]
    # Who is promised less has proved as much as there can be by asking for all of it.
    rules["least_mbps"] = np.minimum([service.least_mbps for service in services], rules["committed_mbps"])
    return rules


def reckon_with(cpus: float, config: GuardConfig, rules: Structured) -> None:
    """So many CPUs are there now, more or fewer than when ``rules`` of the node were made.

    The budget stays as it was declared and checked. What CPU use cannot be is never lowered: a CPU that comes back is
    used before anybody has looked.
    """
    rules["node_mcpu"] = 1e3 * cpus
    rules["most_cpu_mcpu"] = np.maximum(rules["most_cpu_mcpu"], config.telemetry.cpu_ratio * 1e3 * cpus)


def _node_rules(config: GuardConfig, context: Context, nice_scope: NiceScope) -> Structured:
    rules = np.zeros((), NODE_RULES)
    period_s, node_mcpu = context.period_s.item(), 1e3 * context.logical_cpus.item()
    turn, ratio = config.oscillation, config.budget.cpu_limits_ratio
    rules["period_ns"] = 1e9 * period_s
    rules["most_elapsed_ns"] = 1e9 * period_s * config.slew.most_periods
    reckon_with(context.logical_cpus.item(), config, rules)
    rules["limits_mcpu"] = math.inf if ratio is None else ratio * node_mcpu
    rules["window_ns"] = 1e9 * max(turn.window_s, 2 * turn.reversals * period_s)
    rules["freeze_ns"] = _ns(turn.freeze_s)
    rules["most_freeze_ns"] = _ns(max(turn.most_freeze_s, turn.freeze_s))
    rules["forget_freeze_ns"] = _ns(turn.forget_s)
    # Between pods the nice of a process ranks nothing.
    rules["nice_weight"] = np.asarray(PRIO_TO_WEIGHT) / NICE_0_WEIGHT if nice_scope == "group" else 1.0
    distrust, safe = config.telemetry, config.safe
    rules["most_age_s"] = distrust.most_age_s
    rules["frozen_ticks"] = math.inf if distrust.frozen_ticks is None else distrust.frozen_ticks
    rules["most_carried_mbps"] = distrust.uplink_ratio * context.uplink_mbps.item()
    rules["most_gain"] = distrust.uplink_ratio
    rules["safe_ns"] = _ns(safe.hold_s)
    rules["most_safe_ns"] = _ns(max(safe.most_hold_s, safe.hold_s))
    rules["forget_trips_ns"] = _ns(safe.forget_s)
    rules["latch_after"] = safe.latch_after
    most = _most(config)
    trial = config.sla_floor.trial
    rules["settle_ns"] = _ns(config.sla_floor.window_s)
    rules["short_ratio"], rules["better_share"] = trial.short_ratio, trial.better_share
    rules["tolerance_ratio"] = trial.tolerance_ratio
    rules["spare_ns"] = _ns(trial.spare_s)
    rules["most_spare_ns"] = _ns(max(trial.most_spare_s, trial.spare_s))
    rules["eased_load_ratio"], rules["eased_idle_ratio"] = trial.eased_load_ratio, trial.eased_idle_ratio
    rules["room_ratio"] = math.inf if trial.room_ratio is None else trial.room_ratio
    rules["uplink_mbps"] = context.uplink_mbps.item()
    rules["settling"] = min(period_s / config.sla_floor.window_s, 1.0)
    rules["smoothing"] = min(period_s / _SMOOTHING_S, 1.0)
    rules["fading"] = min(period_s / trial.memory_s, 1.0)
    rules["forgetting"] = min(period_s / _LEAST_S, 1.0)
    rules["most_of_slice"] = [most[field] for field in SLICE_FIELDS]
    rules["most_of_node"] = [most[field] for field in NODE_FIELDS]
    return rules


def _most(config: GuardConfig) -> dict[str, float]:
    """What each figure can be."""
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


def _delays(*patience_and_recovery_s: tuple[float, ...]) -> Structured:
    """Rules of conditions, one for each pair of seconds."""
    pairs = [tuple(map(_ns, pair)) for pair in patience_and_recovery_s]
    return np.array(pairs, CONDITION_RULES)


def _check(rules: Rules, slices: SliceSet) -> None:
    """The safe setting lies inside the envelope, and the envelope on the node."""
    for s, name in enumerate(slices.names):
        _check_safe(rules, s, name)
    node, budget = rules.node["node_mcpu"].item(), rules.node["limits_mcpu"].item()
    least = rules.knobs["floor"][:, CPU_LIMIT].sum().item()
    if least > min(node, budget) * (1 + _ROUNDING):
        raise ConfigError(
            f"guard: floor: CPU floors of all slices = {least:g} mCPU: accepted: at most {min(node, budget):g} together"
        )
    limits = rules.knobs["safe"][:, CPU_LIMIT]
    limited = limits[np.isfinite(limits)].sum().item()
    if limited > budget * (1 + _ROUNDING):
        raise ConfigError(
            f"guard: safe: CPU limits of all slices = {limited:g} mCPU: accepted: at most {budget:g} by "
            "budget.cpu_limits_ratio"
        )
    nices = rules.knobs["safe"][:, NICE].astype(int)
    weights = rules.slices["base_weight"] * rules.node["nice_weight"][nices - NICE_MIN]
    shares = node * weights / weights.sum()
    for s, name in enumerate(slices.names):
        floor = rules.slices["share_floor_mcpu"][s].item()
        if shares[s] < floor * (1 - _ROUNDING):
            raise ConfigError(
                f"guard: floor of {name}: cpu_share_mcpu = {floor:g}: accepted: at most {shares[s]:g}, its share under "
                "the safe setting's nice levels"
            )


def _check_safe(rules: Rules, s: int, name: str) -> None:
    nones_of: tuple[tuple[float, ...], ...] = (math.inf,), (), (math.inf, 0.0)
    for k, (knob, nones) in enumerate(zip(KNOB_FIELDS, nones_of, strict=True)):
        low, high, floor, value = (rules.knobs[field][s, k].item() for field in ("low", "high", "floor", "safe"))
        if floor > high:
            raise ConfigError(f"guard: floor of {name}: {knob} = {floor:g}: accepted: at most its bound {high:g}")
        if value not in nones and not max(low, floor) <= value <= high:
            also = "".join(f"{'none' if none else '0'}, " for none in nones)
            raise ConfigError(
                f"guard: safe setting of {name}: {knob} = {value:g}: accepted: {also}{max(low, floor):g} to {high:g}"
            )
