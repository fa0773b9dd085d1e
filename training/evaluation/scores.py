"""Scores of a rollout: a number per seed for each figure of merit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slicepilot.data.intervals import Array, weighted_quantile
from slicepilot.env.promises import AVERAGING_WINDOW_S

from .rollouts import BoolArray, Rollout

BROKEN_S, BEST_EFFORT_LOSS, CPU_WASTED = "sla_violation_s", "best_effort_loss_pct", "cpu_wasted_core_s"
EDGE_WORK, EPISODE_REWARD = "edge_work", "episode_reward"
# Less best effort than this share of all that was offered counts as this much: a loss is no share of nothing.
LEAST_BEST_EFFORT = 0.01
ECDF_LEVELS = np.linspace(0.0, 1.0, 201)
Scores = dict[str, Array]
Window = tuple[float, float]


def in_window(recording: Rollout, window_s: Window | None) -> BoolArray:
    """Mask (T,) of the periods in a span (from, to]; all periods without a span."""
    if window_s is None:
        return np.ones(len(recording.time_s), np.bool_)
    half = 0.5 * recording.period_s
    return (recording.time_s > window_s[0] + half) & (recording.time_s < window_s[1] + half)


def group_volumes(recording: Rollout, window_s: Window | None = None) -> tuple[Array, Array]:
    """Volume of the priority slice and of the others together, (L,) each; the others' is the mean of those present."""
    inside = recording.row("carried_mbps")[in_window(recording, window_s)]
    volume = inside.sum(axis=0, dtype=np.float64) * recording.period_s
    priority = recording.slices.priority_index
    others = np.delete(volume, priority, axis=0)
    present = np.delete(recording.valid.any(axis=(0, 2)), priority)
    return volume[priority], others.sum(axis=0) / max(1, int(present.sum()))


def best_effort_mbit(recording: Rollout) -> Array:
    """Volume that all slices carry beyond their promises, (L,).

    A rate is promised as a mean over `AVERAGING_WINDOW_S`, or over a control period where that is longer. So the run is
    cut into blocks of that length, the last of which may be shorter, and of each slice's volume in a block counts what
    exceeds its committed rate times the time that it was there.
    """
    periods = max(1, round(AVERAGING_WINDOW_S / recording.period_s))
    starts = np.arange(0, len(recording.time_s), periods)
    carried = np.add.reduceat(recording.row("carried_mbps").astype(np.float64), starts, axis=0)
    present = np.add.reduceat(recording.valid.astype(np.float64), starts, axis=0)
    beyond = carried - present * recording.committed_mbps
    return np.maximum(beyond, 0.0).sum(axis=(0, 1)) * recording.period_s


def best_effort_loss_pct(recording: Rollout, uncontrolled: Rollout) -> Array:
    """How much less all slices carry beyond their promises than under no control, in % of that (negative: more), (L,).

    The share is of `LEAST_BEST_EFFORT` of all that was offered, where that is more.
    """
    mine, free = best_effort_mbit(recording), best_effort_mbit(uncontrolled)
    offered = uncontrolled.row("offered_mbps").sum(axis=(0, 1), dtype=np.float64) * uncontrolled.period_s
    return 100.0 * (free - mine) / np.maximum(np.maximum(free, LEAST_BEST_EFFORT * offered), 1e-9)


def cpu_wasted_core_s(recording: Rollout) -> Array:
    """Core-seconds that limits held and no slice used, (L,)."""
    idle = recording.cpu_held.astype(np.float64) - 1e-3 * recording.cpu_use_mcpu
    return np.maximum(idle, 0.0).sum(axis=0) * recording.period_s


def loss_pct(volume: Array, reference: Array) -> Array:
    """How much less was carried than in the reference run on the same seed, in % (negative: more), (L,)."""
    return 100.0 * (1.0 - volume / np.maximum(reference, 1e-9)) * (reference > 0)


def delay_p99_us(recording: Rollout) -> Array:
    """99th percentile of each slice's delay, (S, L): of all packets, where they were timed individually.

    Else over time of the per-period p99 delay, periods weighted by the volume carried. A slice that carries nothing in
    a whole run is weighted by what it offered; a slice that offers nothing gives 0.
    """
    if recording.packets_p99_us is not None:
        return recording.packets_p99_us
    carried, offered = recording.row("carried_mbps"), recording.row("offered_mbps")
    weight = np.where(carried.sum(axis=0) > 0, carried, offered)
    return weighted_quantile(recording.row("delay_p99_us"), weight, 0.99)


def delay_ecdf_us(recording: Rollout) -> npt.NDArray[np.float32]:
    """Quantiles (Q,) at `ECDF_LEVELS` of the priority slice's per-period p99 delay over time and seeds, by volume."""
    s = recording.slices.priority_index
    values = recording.row("delay_p99_us")[:, s].ravel()
    weights = recording.row("carried_mbps")[:, s].ravel().astype(np.float64)
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    if cumulative[-1] <= 0:
        return np.zeros(len(ECDF_LEVELS), np.float32)
    at = np.searchsorted(cumulative, ECDF_LEVELS * cumulative[-1] * (1 - 1e-12))
    return values[order][np.minimum(at, len(values) - 1)]


def broken_s(recording: Rollout) -> Array:
    """Seconds of broken promises, weighted by slice, (L,)."""
    weight, broken = recording.weight.astype(np.float64), recording.violated.sum(axis=0) * recording.period_s
    return (broken * weight / weight.sum(axis=0)).sum(axis=0)


def score(recording: Rollout, alone: Rollout, uncontrolled: Rollout, window_s: Window | None) -> Scores:
    """All figures of merit of an agent, (L,) each.

    Args:
        recording: the agent's run.
        alone: only the priority slice active, no control (experiment 1).
        uncontrolled: all slices active, no control (experiment 5).
        window_s: span in which the two headline losses are taken; None: the whole run.

    Keys:
        slice1_loss_pct, others_loss_pct: volume the priority slice lost against ``alone``, and the others together
            against ``uncontrolled``, in the window; slice1_loss_whole_pct, others_loss_whole_pct: over the whole run.
        slice1_delay_p99_us: `delay_p99_us` of the priority slice.
        sla_violation_s: sum over periods and slices of weight / sum of weights x period where the promise is broken.
        cpu_held_core_s: core-seconds that the limits held (`slicepilot.env.promises.cpu_held`).
        best_effort_loss_pct: `best_effort_loss_pct` against ``uncontrolled``.
        cpu_wasted_core_s: `cpu_wasted_core_s`.
        churn_pct: mean over periods of the share of the knobs' full range that was moved, in %.
        return: mean reward per control period, which compares across run lengths.
        episode_reward: sum of the rewards of a run, which Stable-Baselines3's ``evaluate_policy`` reports.
        edge_work: work done by the node's edge application, where there is an application.
    """
    whole = [group_volumes(r) for r in (recording, alone, uncontrolled)]
    windowed = [group_volumes(r, window_s) for r in (recording, alone, uncontrolled)]
    priority = recording.slices.priority_index
    edge = {} if recording.work_done is None else {EDGE_WORK: recording.work_done}
    return {
        "slice1_loss_pct": loss_pct(windowed[0][0], windowed[1][0]),
        "others_loss_pct": loss_pct(windowed[0][1], windowed[2][1]),
        "slice1_loss_whole_pct": loss_pct(whole[0][0], whole[1][0]),
        "others_loss_whole_pct": loss_pct(whole[0][1], whole[2][1]),
        "slice1_delay_p99_us": delay_p99_us(recording)[priority],
        BROKEN_S: broken_s(recording),
        "cpu_held_core_s": recording.cpu_held.sum(axis=0, dtype=np.float64) * recording.period_s,
        BEST_EFFORT_LOSS: best_effort_loss_pct(recording, uncontrolled),
        CPU_WASTED: cpu_wasted_core_s(recording),
        "churn_pct": 100.0 * recording.churn.mean(axis=0, dtype=np.float64),
        "return": recording.reward.mean(axis=0, dtype=np.float64),
        EPISODE_REWARD: recording.reward.sum(axis=0, dtype=np.float64),
        **edge,
    }
