"""Captain, the local controller of Autothrottle: CPU limits that follow a target of CPU throttling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...env.backend import Context
from ...env.knobs import Knobs
from ...env.slices import FloatArray, SliceSet
from ...env.telemetry import Telemetry
from .bounds import most_cpu_mcpu, within_bounds

BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
CFS_PERIOD_S = 0.1
MIN_WINDOW = 5


@dataclass(frozen=True)
class CaptainConfig:
    """Constants as in the authors' published implementation; periods are CFS periods of 100 ms.

    Attributes:
        decide_periods: N, periods between two decisions.
        history_periods: M, periods of CPU use that scaling down looks back on.
        alpha: throttling above alpha x target scales up, or takes a scale-down back.
        beta_max: a proposal must lie below beta_max x quota to be taken up.
        beta_min: one scale-down goes no lower than beta_min x quota.
        target: throttle ratio aimed at for the slice of highest weight.
        max_target: for any slice.
    """

    decide_periods: int = 10
    history_periods: int = 50
    alpha: float = 3.0
    beta_max: float = 0.9
    beta_min: float = 0.5
    target: float = 0.02
    max_target: float = 0.3


class Captain:
    """The per-service half of Autothrottle (Wang et al., "Autothrottle: A Practical Bi-Level Approach to Resource
    Management for SLO-Targeted Microservices", NSDI 2024, section 3.2), written from the paper's description.

    Every N periods, with r the ratio of throttled periods and t the target:

    - margin <- max(0, margin + r - t);
    - if r > alpha t: quota <- quota (1 + r - alpha t);
    - else proposal <- max(use) + margin std(use) over the last M periods, and if proposal <= beta_max quota:
      quota <- max(beta_min quota, proposal);
    - in the N periods after a scale-down: as soon as the throttled ones among them exceed alpha t N, the quota before
      it is restored and the amount taken away is added to it; margin grows by r - t.

    The other half, Tower, learns targets per service every minute; here they are static by weight, which is all that
    the slices' promises say: ``target`` for the highest weight, growing with the inverse square root of the relative
    weight up to ``max_target``, so that a slice that matters less is squeezed harder.

    Control periods stand for CFS periods: shorter ones are joined to samples of 100 ms, longer ones are one sample each
    (and one decision each from N periods on), with at least `MIN_WINDOW` samples of history.

    Args:
        config: constants.
        targets: throttle ratios per slice (S,) in place of the rule by weight.
        name: as shown in tables.
    """

    request_mcpu: FloatArray | None = None

    def __init__(
        self, config: CaptainConfig | None = None, targets: FloatArray | None = None, name: str = "captain"
    ) -> None:
        self.config, self.targets, self.name = config or CaptainConfig(), targets, name

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start from the largest useful quota."""
        cfg = self.config
        self._slices = slices
        self._least, self._most = slices.bound("cpu_limit_mcpu", 0), most_cpu_mcpu(slices, context)
        shape, lanes = self._most.shape, self._most.shape[1]
        weight = context.promises.weight
        by_weight = np.minimum(cfg.target * np.sqrt(weight.max(axis=0) / weight), cfg.max_target)
        self._target = by_weight if self.targets is None else np.broadcast_to(self.targets[:, None], shape)
        # Control periods that make up one sample, and one decision; CFS periods in each of them.
        self._per_sample = np.maximum(np.rint(CFS_PERIOD_S / context.period_s), 1)
        decide_s = CFS_PERIOD_S * cfg.decide_periods
        self._per_decision = np.maximum(np.rint(decide_s / context.period_s), 1)
        sample_s = np.maximum(context.period_s, CFS_PERIOD_S)
        self._window = np.clip(
            np.rint(CFS_PERIOD_S * cfg.history_periods / sample_s), min(MIN_WINDOW, cfg.history_periods), None
        )
        self._history = np.zeros((int(self._window.max()), *shape), np.float32)
        self._head = np.zeros(lanes, np.intp)
        self._samples = np.zeros(lanes, np.intp)
        self._use = np.zeros(shape, np.float32)
        self._in_sample, self._in_decision = np.zeros(lanes, np.float32), np.zeros(lanes, np.float32)
        self._throttled = np.zeros(shape, np.float32)
        self._lanes = np.arange(lanes)
        self.quota_mcpu = self._most.copy()
        self.margin = np.zeros(shape, np.float32)
        self._before = self.quota_mcpu.copy()
        self._watching = np.zeros(shape, np.bool_)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """Count throttled periods, remember the use, move quotas where N periods are over."""
        self._remember(telemetry.cpu_use_mcpu)
        self._throttled += telemetry.throttled_ratio
        self._in_decision += 1
        answered = self._roll_back()
        due = self._in_decision >= self._per_decision
        if due.any():
            self._scale(due & ~answered)
            self._throttled *= ~due
            self._in_decision *= ~due
        quota = self.quota_mcpu.copy()
        return within_bounds(Knobs.of(quota, np.zeros_like(quota), np.full_like(quota, np.inf)), self._slices)

    def _remember(self, use_mcpu: FloatArray) -> None:
        """Append to the ring of samples, per lane where one is complete."""
        self._use += use_mcpu
        self._in_sample += 1
        done = self._in_sample >= self._per_sample
        lanes = self._lanes[done]
        self._history[self._head[lanes], :, lanes] = (self._use[:, lanes] / self._per_sample[lanes]).T
        self._head[lanes] = (self._head[lanes] + 1) % self._window[lanes].astype(np.intp)
        self._samples[lanes] += 1
        self._use *= ~done
        self._in_sample *= ~done

    def _roll_back(self) -> BoolArray:
        """Take a scale-down back as soon as the N periods after it hold too many throttled ones; says where, (S, L)."""
        ratio = self._throttled / self._per_decision
        back = self._watching & (ratio > self.config.alpha * self._target)
        restored = self._before + (self._before - self.quota_mcpu)
        self.quota_mcpu = np.where(back, np.minimum(restored, self._most), self.quota_mcpu)
        self.margin = np.where(back, np.maximum(self.margin + ratio - self._target, 0.0), self.margin)
        self._watching &= ~back
        # What was counted has been answered; it must not scale up as well.
        self._throttled *= ~back
        return back

    def _scale(self, due: BoolArray) -> None:
        """Scale up or down where a decision is due, (S, L)."""
        cfg = self.config
        ratio = self._throttled / self._per_decision
        excess = ratio - cfg.alpha * self._target
        margin = np.maximum(self.margin + ratio - self._target, 0.0)
        quota = self.quota_mcpu
        up = np.minimum(quota * (1.0 + excess), self._most)
        most_used, deviation = self._usage()
        proposal = most_used + margin * deviation
        # Not before the window is full: the first samples of a run say too little about its peaks.
        known = self._samples >= self._window
        shrink = (excess <= 0) & (proposal <= cfg.beta_max * quota) & known
        down = np.maximum(np.maximum(cfg.beta_min * quota, proposal), self._least)
        shrink &= down < quota
        self._before = np.where(due & shrink, quota, self._before)
        self._watching = np.where(due, shrink, self._watching)
        self.margin = np.where(due, margin, self.margin).astype(np.float32)
        moved = np.where(excess > 0, up, np.where(shrink, down, quota))
        self.quota_mcpu = np.where(due, moved, quota).astype(np.float32)

    def _usage(self) -> tuple[FloatArray, FloatArray]:
        """Largest and standard deviation of the samples in each lane's window, (S, L) each."""
        index = np.arange(len(self._history))[:, None]
        used = (index < np.minimum(self._window, self._samples))[:, None]
        count = np.maximum(used.sum(axis=0), 1)
        mean = np.add.reduce(self._history, axis=0, where=used) / count
        square = np.add.reduce((self._history - mean) ** 2, axis=0, where=used) / count
        largest = np.max(self._history, axis=0, where=used, initial=0.0)
        return largest, np.sqrt(square).astype(np.float32)
