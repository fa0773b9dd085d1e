"""Captain without Tower: Autothrottle's local controller, CPU limits that follow a target of CPU throttling."""

from __future__ import annotations

import numpy as np

from slicepilot.agents.bounds import within_bounds
from slicepilot.env.arrays import BoolArray, FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

CFS_PERIOD_S = 0.1
MIN_WINDOW = 5
# Constants of the authors' implementation; periods are CFS periods of 100 ms.
DECIDE_PERIODS = 10  # N, between two decisions
HISTORY_PERIODS = 50  # M, of CPU use that scaling down looks back on
ALPHA = 3.0  # throttling above alpha x target scales up, or reverts a scale-down
BETA_MAX, BETA_MIN = 0.9, 0.5  # x quota: below the first a proposal is taken up; no scale-down goes below the second
INITIAL_MARGIN = 3.0  # standard deviations above the largest use that are left at first
TARGET, MAX_TARGET = 0.02, 0.3  # throttle ratios aimed at: of the slice of highest weight, and at most


class Captain:
    """Captain without Tower: the per-service half of Autothrottle (Wang et al., "Autothrottle: A Practical Bi-Level
    Approach to Resource Management for SLO-Targeted Microservices", NSDI 2024, section 3.2), with the constants and the
    order of steps of the authors' code (``CaptainScaler`` in ``worker-daemon.py`` of github.com/microsoft/autothrottle,
    commit d237d7f; read, not copied).

    It starts with the node's CPUs as quota (``evaluation.py`` there: 32 CPUs), a margin of 3 and M samples of no CPU
    use, so that the deviation of the unseen samples delays the first scale-downs. In each CFS period, with r the number
    of throttled periods since the last decision over N and t the target:

    - after a scale-down, as soon as r > alpha t: quota <- 2 x the quota before it - quota; margin <- margin + r - t;
      the count of throttled periods starts again at 0.

    Every N periods then, also where that has just happened, with what is left in the count:

    - margin <- max(0, margin + r - t);
    - if r > alpha t: quota <- quota (1 + r - alpha t);
    - else proposal <- max(use) + margin std(use) over the last M periods, the deviation being that of a sample (M - 1),
      and if proposal <= beta_max quota: quota <- max(beta_min quota, proposal).

    Tower, the other half, sets the targets (`slicepilot.agents.heuristics.tower`); here they are static by weight,
    which is all that the slices' promises say: `TARGET` for the highest weight, growing with the inverse square root
    of the relative weight up to `MAX_TARGET`, so that a slice that matters less is squeezed harder.

    What still differs, because control periods replace CFS periods:

    - Shorter control periods are joined to samples of 100 ms. Longer control periods are a sample each, of their mean
      use, with at least `MIN_WINDOW` samples of history; from N CFS periods on each is a decision too. Then a roll-back
      and the next decision always coincide, which happens in the authors' code in one case of ten: the quota is
      restored, and may at once be lowered again as far as the margin, now larger, allows.
    - A roll-back is tried in each control period, not in each CFS period.
    - Quotas stay inside the slice's bounds and the node. The authors' have a floor of 10 mCPU and no ceiling.
    """

    name = "captain"
    request_mcpu: FloatArray | None = None

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start from the node's CPUs, as far as the bounds allow."""
        self._slices = slices
        self._least, highest = slices.bound("cpu_limit_mcpu", 0), slices.bound("cpu_limit_mcpu", 1)
        shape = context.promises.weight.shape
        self._most = np.clip(np.float32(1e3) * context.logical_cpus, self._least, highest) * np.ones(shape, np.float32)
        lanes = shape[1]
        weight = context.promises.weight
        by_weight = np.minimum(TARGET * np.sqrt(weight.max(axis=0) / weight), MAX_TARGET)
        self.target_ratio = np.array(by_weight, np.float32)
        # Control periods in a sample and in a decision.
        self._per_sample = np.maximum(np.rint(CFS_PERIOD_S / context.period_s), 1)
        decide_s = CFS_PERIOD_S * DECIDE_PERIODS
        self._per_decision = np.maximum(np.rint(decide_s / context.period_s), 1)
        sample_s = np.maximum(context.period_s, CFS_PERIOD_S)
        self._window = np.maximum(np.rint(CFS_PERIOD_S * HISTORY_PERIODS / sample_s), MIN_WINDOW)
        self._history = np.zeros((int(self._window.max()), *shape), np.float32)
        self._head = np.zeros(lanes, np.intp)
        self._use = np.zeros(shape, np.float32)
        self._in_sample, self._in_decision = np.zeros(lanes, np.float32), np.zeros(lanes, np.float32)
        self._throttled = np.zeros(shape, np.float32)
        self._lanes = np.arange(lanes)
        self.quota_mcpu = self._most.copy()
        self.margin = np.full(shape, INITIAL_MARGIN, np.float32)
        self._before = self.quota_mcpu.copy()
        self._watching = np.zeros(shape, np.bool_)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """Count throttled periods, remember the use, move quotas where N periods are over."""
        self._remember(telemetry.cpu_use_mcpu)
        self._throttled += telemetry.throttled_ratio
        self._in_decision += 1
        self._roll_back()
        due = self._in_decision >= self._per_decision
        if due.any():
            self._scale(due)
            self._throttled *= ~due
            self._in_decision *= ~due
        quota = self.quota_mcpu.copy()
        return within_bounds(Knobs.of(quota, np.zeros_like(quota), np.full_like(quota, np.inf)), self._slices)

    def _remember(self, use_mcpu: FloatArray) -> None:
        """Append to the ring of samples, in lanes whose sample is complete."""
        self._use += use_mcpu
        self._in_sample += 1
        done = self._in_sample >= self._per_sample
        lanes = self._lanes[done]
        self._history[self._head[lanes], :, lanes] = (self._use[:, lanes] / self._per_sample[lanes]).T
        self._head[lanes] = (self._head[lanes] + 1) % self._window[lanes].astype(np.intp)
        self._use *= ~done
        self._in_sample *= ~done

    def _roll_back(self) -> None:
        """Revert a scale-down as soon as too many of the N periods after it were throttled."""
        ratio = self._throttled / self._per_decision
        back = self._watching & (ratio > ALPHA * self.target_ratio)
        restored = self._before + (self._before - self.quota_mcpu)
        self.quota_mcpu = np.where(back, np.minimum(restored, self._most), self.quota_mcpu)
        self.margin = np.where(back, self.margin + ratio - self.target_ratio, self.margin).astype(np.float32)
        self._watching &= ~back
        # What was counted has been answered; it must not scale up as well.
        self._throttled *= ~back

    def _scale(self, due: BoolArray) -> None:
        """Scale up or down where a decision is due, (L,)."""
        ratio = self._throttled / self._per_decision
        excess = ratio - ALPHA * self.target_ratio
        margin = np.maximum(self.margin + ratio - self.target_ratio, 0.0)
        quota = self.quota_mcpu
        up = np.minimum(quota * (1.0 + excess), self._most)
        most_used, deviation = self._usage()
        proposal = most_used + margin * deviation
        down = np.maximum(np.maximum(BETA_MIN * quota, proposal), self._least)
        shrink = (excess <= 0) & (proposal <= BETA_MAX * quota) & (down < quota)
        self._before = np.where(due & shrink, quota, self._before)
        self._watching = np.where(due, shrink, self._watching)
        self.margin = np.where(due, margin, self.margin).astype(np.float32)
        moved = np.where(excess > 0, up, np.where(shrink, down, quota))
        self.quota_mcpu = np.where(due, moved, quota).astype(np.float32)

    def _usage(self) -> tuple[FloatArray, FloatArray]:
        """Largest and standard deviation (of a sample) of each lane's window, (S, L) each; what is not yet filled of
        it is no use, as in the authors' code."""
        used = (np.arange(len(self._history))[:, None] < self._window)[:, None]
        mean = np.add.reduce(self._history, axis=0, where=used) / self._window
        square = np.add.reduce((self._history - mean) ** 2, axis=0, where=used) / np.maximum(self._window - 1, 1)
        largest = np.max(self._history, axis=0, where=used, initial=0.0)
        return largest, np.sqrt(square).astype(np.float32)
