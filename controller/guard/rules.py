"""The envelope of one node as arrays for the guard's kernels, checked: what contradicts itself is refused."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ...configs import ConfigError
from ...env.backend import Context
from ...env.knobs import CPU_LIMIT, KNOB_FIELDS, NICE, NUM_KNOBS, NiceScope
from ...env.slices import NICE_MAX, NICE_MIN, FloatArray, SliceSet
from ...env.telemetry import NODE_FIELDS, SLICE_FIELDS
from ..actuators.weight import NICE_0_WEIGHT, PRIO_TO_WEIGHT
from . import layout as at
from .config import PRIORITY, GuardConfig, SafeSetting
from .layout import FloatRows, IntRows

T = TypeVar("T")

# A rate or CPU use above these is a broken counter whatever the node: the averages keep their precision below.
_MOST_MBPS, _MOST_MCPU, _MOST_USE_RATIO = 1e7, 1e8, 1e3
# A pod without a request has the least weight there is: 2 shares of 1024 a CPU (`GroupWeight`).
_LEAST_REQUEST_MCPU = 2.0
# The kernel's CPU shares and ours are the same number but for rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Rules:
    """What the kernels go by; rows as in `guard_layout`.

    Attributes:
        knobs: (KNOB_RULES, 3, S). slices: (SLICE_RULES, S). moves: (MOVE_RULES,). trust: (TRUST_RULES,).
        most: what each figure can be, (8 + 2,). delays: ints (2, CONDITIONS + S). nice_weight: (40,), 1 at nice 0.
        window: ticks that rates are averaged over. reversals: that a knob may make in `Oscillation.window_s`.
    """

    knobs: FloatRows
    slices: FloatRows
    moves: FloatRows
    trust: FloatRows
    most: FloatRows
    delays: IntRows
    nice_weight: FloatRows
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
        rules = cls(
            _knob_rules(config, slices),
            _slice_rules(config, slices, request_mcpu),
            _move_rules(config, period_s, 1e3 * context.logical_cpus.item()),
            _trust_rules(config, context),
            _most(config),
            _delays(config, len(slices)),
            # Between pods the nice of a process ranks nothing.
            np.asarray(PRIO_TO_WEIGHT) / NICE_0_WEIGHT if nice_scope == "group" else np.ones(len(PRIO_TO_WEIGHT)),
            max(1, math.ceil(config.sla_floor.window_s / period_s - _ROUNDING)),
            config.oscillation.reversals,
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
            near = difflib.get_close_matches(name, slices.names, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            accepted = ", ".join((*slices.names, PRIORITY))
            raise ConfigError(f"guard: {field}.slices = {name!r}: unknown slice; {hint}accepted: {accepted}")
    entries = [named.get(name, default) for name in slices.names]
    first = slices.names[slices.priority_index]
    if PRIORITY in named and PRIORITY not in slices.names and first not in named:
        entries[slices.priority_index] = named[PRIORITY]
    return entries


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)


def _knob_rules(config: GuardConfig, slices: SliceSet) -> FloatRows:
    floors = of_slices("floor", config.floor.default, config.floor.slices, slices)
    settings = of_slices("safe", config.safe.default, config.safe.slices, slices)
    rules = np.zeros((at.KNOB_RULES, NUM_KNOBS, len(slices)))
    for s, (spec, floor, setting) in enumerate(zip(slices.slices, floors, settings, strict=True)):
        bounds = (spec.bounds.cpu_limit_mcpu, spec.bounds.nice, spec.bounds.egress_mbps)
        rules[at.LOW, :, s], rules[at.HIGH, :, s] = np.asarray(bounds, float).T
        # A limit below its share would deny it.
        rules[at.FLOOR_AT, :, s] = max(floor.cpu_limit_mcpu, floor.cpu_share_mcpu), -math.inf, floor.egress_mbps
        rules[at.SAFE_AT, :, s] = _plain(setting)
    # Declared in double precision, applied in float32: whatever is compared has to be the same.
    rules = rules.astype(np.float32).astype(float)
    rules[at.LOW : at.HIGH + 1, NICE] = rules[at.LOW : at.HIGH + 1, NICE].clip(NICE_MIN, NICE_MAX)
    small, dwell, slew, turn = config.hysteresis, config.dwell, config.slew, config.oscillation
    rules[at.SMALL] = _column(small.limit_ratio, small.nice_levels, small.egress_ratio)
    rules[at.DWELL_NS] = 1e9 * _column(dwell.cpu_limit_s, dwell.nice_s, dwell.egress_s)
    rules[at.SLEW] = 1e-9 * _column(slew.cpu_limit_per_s, slew.nice_levels_per_s, slew.egress_per_s)
    rules[at.SIGNIFICANT] = _column(math.log(turn.factor), turn.nice_levels, math.log(turn.factor))
    return rules


def _column(limit: float, nice: float, egress: float) -> FloatRows:
    return np.asarray([[limit], [nice], [egress]])


def _plain(setting: SafeSetting) -> tuple[float, float, float]:
    limit, rate = setting.cpu_limit_mcpu, setting.egress_mbps
    return math.inf if limit is None else limit, setting.nice, math.inf if rate is None else rate


def _slice_rules(config: GuardConfig, slices: SliceSet, request_mcpu: FloatArray | None) -> FloatRows:
    floors = of_slices("floor", config.floor.default, config.floor.slices, slices)
    services = of_slices("sla_floor", config.sla_floor.default, config.sla_floor.slices, slices)
    requests = slices.column("cpu_request_mcpu").ravel() if request_mcpu is None else request_mcpu.ravel()
    rules = np.zeros((at.SLICE_RULES, len(slices)))
    rules[at.SHARE_FLOOR] = [floor.cpu_share_mcpu for floor in floors]
    rules[at.BASE_WEIGHT] = np.maximum(requests, _LEAST_REQUEST_MCPU)
    rules[at.COMMITTED] = [spec.sla.committed_mbps for spec in slices.slices]
    rules[at.CARRIED_RATIO] = [service.carried_ratio for service in services]
    rules[at.FLOOR_PATIENCE] = [_ns(service.patience_s) for service in services]
    rules[at.MOST_DELAY_US] = [
        math.inf if service.delay_factor is None else 1e3 * service.delay_factor * spec.sla.delay_bound_ms
        for service, spec in zip(services, slices.slices, strict=True)
    ]
    return rules


def _move_rules(config: GuardConfig, period_s: float, node_mcpu: float) -> FloatRows:
    rules, turn, ratio = np.zeros(at.MOVE_RULES), config.oscillation, config.budget.cpu_limits_ratio
    rules[at.PERIOD_NS] = 1e9 * period_s
    rules[at.MOST_ELAPSED_NS] = 1e9 * period_s * config.slew.most_periods
    rules[at.NODE_MCPU] = node_mcpu
    rules[at.LIMITS_MCPU] = math.inf if ratio is None else ratio * node_mcpu
    rules[at.WINDOW_NS] = 1e9 * max(turn.window_s, 2 * turn.reversals * period_s)
    rules[at.FREEZE_NS] = _ns(turn.freeze_s)
    rules[at.MOST_FREEZE_NS] = _ns(max(turn.most_freeze_s, turn.freeze_s))
    rules[at.FORGET_FREEZE_NS] = _ns(turn.forget_s)
    return rules


def _trust_rules(config: GuardConfig, context: Context) -> FloatRows:
    rules, distrust, safe = np.zeros(at.TRUST_RULES), config.telemetry, config.safe
    rules[at.MOST_AGE_S] = distrust.most_age_s
    rules[at.FROZEN_TICKS] = math.inf if distrust.frozen_ticks is None else distrust.frozen_ticks
    rules[at.MOST_CARRIED] = distrust.uplink_ratio * context.uplink_mbps.item()
    rules[at.MOST_CPU] = distrust.cpu_ratio * 1e3 * context.logical_cpus.item()
    rules[at.SAFE_NS] = _ns(safe.hold_s)
    rules[at.MOST_SAFE_NS] = _ns(max(safe.most_hold_s, safe.hold_s))
    rules[at.FORGET_TRIPS_NS] = _ns(safe.forget_s)
    rules[at.LATCH_AFTER] = safe.latch_after
    return rules


def _most(config: GuardConfig) -> FloatRows:
    delay, ratio = 1e6 * config.telemetry.most_delay_s, config.telemetry.most_ratio
    most = {
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
    return np.asarray([most[field] for field in (*SLICE_FIELDS, *NODE_FIELDS)])


def _delays(config: GuardConfig, num_slices: int) -> IntRows:
    telemetry = config.telemetry
    hold = (_ns(telemetry.hold_s), _ns(telemetry.recover_s))
    number, error = (
        (_ns(patience.patience_s), _ns(patience.recover_s)) for patience in (config.not_a_number, config.policy_error)
    )
    return np.asarray([hold, number, error, *num_slices * [hold]], np.int64).T.copy()


def _check(rules: Rules, slices: SliceSet) -> None:
    """The safe setting lies inside the envelope, and the envelope on the node."""
    for s, name in enumerate(slices.names):
        _check_safe(rules, s, name)
    node, budget = rules.moves[at.NODE_MCPU].item(), rules.moves[at.LIMITS_MCPU].item()
    least = rules.knobs[at.FLOOR_AT, CPU_LIMIT].sum().item()
    if least > min(node, budget) * (1 + _ROUNDING):
        raise ConfigError(
            f"guard: floor: CPU floors of all slices = {least:g} mCPU: accepted: at most {min(node, budget):g} together"
        )
    limits = rules.knobs[at.SAFE_AT, CPU_LIMIT]
    limited = limits[np.isfinite(limits)].sum().item()
    if limited > budget * (1 + _ROUNDING):
        raise ConfigError(
            f"guard: safe: CPU limits of all slices = {limited:g} mCPU: accepted: at most {budget:g} by "
            "budget.cpu_limits_ratio"
        )
    nices = rules.knobs[at.SAFE_AT, NICE].astype(int)
    weights = rules.slices[at.BASE_WEIGHT] * rules.nice_weight[nices - NICE_MIN]
    shares = node * weights / weights.sum()
    for s, name in enumerate(slices.names):
        floor = rules.slices[at.SHARE_FLOOR, s].item()
        if shares[s] < floor * (1 - _ROUNDING):
            raise ConfigError(
                f"guard: floor of {name}: cpu_share_mcpu = {floor:g}: accepted: at most {shares[s]:g}, its share under "
                "the safe setting's nice levels"
            )


def _check_safe(rules: Rules, s: int, name: str) -> None:
    nones_of: tuple[tuple[float, ...], ...] = (math.inf,), (), (math.inf, 0.0)
    for k, (knob, nones) in enumerate(zip(KNOB_FIELDS, nones_of, strict=True)):
        low, high, floor, value = (rules.knobs[row, k, s].item() for row in (at.LOW, at.HIGH, at.FLOOR_AT, at.SAFE_AT))
        if floor > high:
            raise ConfigError(f"guard: floor of {name}: {knob} = {floor:g}: accepted: at most its bound {high:g}")
        if value not in nones and not max(low, floor) <= value <= high:
            also = "".join(f"{'none' if none else '0'}, " for none in nones)
            raise ConfigError(
                f"guard: safe setting of {name}: {knob} = {value:g}: accepted: {also}{max(low, floor):g} to {high:g}"
            )
