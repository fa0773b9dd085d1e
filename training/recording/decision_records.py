"""Records of a running controller as episodes, from which policies are learnt and judged offline.

An episode is a stretch of decisions a period apart, in the same mode and under the same description of the run. A tick
between two modes belongs to neither. Observations are computed anew (`slicepilot.training.recording.relabel`). They are
averages over several periods, so the first ticks after a gap only serve to compute later observations.

An action is the knobs after the tick, whatever set them: in live mode the guarded decision, in shadow mode the settings
of others, independent of the policy's decision. ``wanted`` is what a policy drew, also beyond the declared bounds, with
its density. For a policy that does not draw, or for records from before draws were kept, it is the decision as knobs,
inside the bounds and without a density.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError, validate
from slicepilot.controller.contracts.modes import Level, Mode
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.record.columns import FLAGS
from slicepilot.controller.record.moments import rfc3339
from slicepilot.controller.record.reader import Stretch
from slicepilot.controller.record.ring import Records
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.data.episodes.files import OWN_TO_A_FILE
from slicepilot.env.backend import Context
from slicepilot.env.knobs import NICE
from slicepilot.env.reward import RewardWeights
from slicepilot.env.slices import SliceSet
from slicepilot.env.sliding import WINDOW_S

from .recording import facts_of
from .relabel import Trace, actions_of, episode_of, relabel

OTHERS = "others"
"""Behaviour of the steps while a controller is in shadow."""
CODES = {
    "mode": {mode.label: int(mode) for mode in Mode},
    "level": {level.label: int(level) for level in Level},
    "reasons": {reason.label: reason.bit for reason in Reason},
}
"""Meanings of numbers in the columns of decisions; in `EpisodeSet.facts` as ``codes``."""


def episodes_of(stretches: Iterable[Stretch], weights: RewardWeights) -> EpisodeSet:
    """Ticks by time (`slicepilot.controller.record.reader.SegmentReader.stretches`), of one run or several.

    Raises:
        ConfigError: not three ticks in a row; runs that differ in slices, control period or node.
    """
    runs: dict[str, _Run] = {}
    for stretch in stretches:
        if not len(stretch.records):
            continue
        if stretch.key not in runs:
            runs[stretch.key] = _Run(stretch.description)
        runs[stretch.key].add(stretch)
    result: list[Episode] = []
    facts: dict[str, Any] = {}
    for run_id, run in runs.items():
        own = facts_of(run.slices, run.context, weights) | {"codes": CODES}
        facts = facts or own
        if other := [key for key in own if own[key] != facts[key] and key not in OWN_TO_A_FILE]:
            raise ConfigError(f"run {run_id}: {other[0]}: differs from that of another run; expected the same in all")
        result += run.episodes(weights)
    if not result:
        raise ConfigError("records: no decision with what came of it; expected three ticks in a row, or more")
    return EpisodeSet(tuple(result), facts)


class _Run:
    """The ticks of a run.

    Raises:
        ConfigError: a description without slices.
    """

    def __init__(self, description: dict[str, Any]) -> None:
        run_id = description.get("run_id")
        self.slices = validate(SliceSet, description["slice_set"], f"run {run_id}")
        threads = np.asarray(description["threads"], np.float32)[:, None]
        period_s, cpus, uplink = (description[name] for name in ("period_s", "logical_cpus", "uplink_mbps"))
        self.context = replace(Context.alike(self.slices, period_s, cpus, uplink, num_steps=0), threads=threads)
        self._descriptions: dict[int, dict[str, Any]] = {}
        self._parts: list[Records] = []

    def add(self, stretch: Stretch) -> None:
        """More of them, in any order."""
        self._descriptions |= dict.fromkeys(np.unique(stretch.records["description"]).tolist(), stretch.description)
        self._parts.append(stretch.records)

    def episodes(self, weights: RewardWeights) -> Iterator[Episode]:
        """Of every stretch without a gap."""
        records = np.concatenate(self._parts)
        records = records[np.unique(records["sequence"], return_index=True)[1]]
        for generation, description in self._descriptions.items():
            if description["nice_scope"] == "process":
                # It ranks threads inside a pod; actions speak of the weights of pods, which it leaves alone.
                ticks = records["description"] == generation
                for stage in ("wanted", "applied"):
                    records[stage][ticks, NICE] = 0.0
        for part in np.split(records, np.flatnonzero(np.diff(records["sequence"]) != 1) + 1):
            if len(part) > 2:
                yield from self._unbroken(part, weights)

    def _unbroken(self, ticks: Records, weights: RewardWeights) -> Iterator[Episode]:
        """Of ticks that follow each other."""
        held = np.concatenate([ticks["applied"][:1], ticks["applied"][:-1]])
        trace = Trace(
            slices=np.ascontiguousarray(ticks["slices"])[..., None],
            node=np.ascontiguousarray(ticks["node"])[..., None],
            valid=ticks["valid"][:, : len(self.slices), None] != 0,
            knobs=held[..., None],
        )
        seen = relabel(trace, self.slices, self.context, weights)
        asked_for = actions_of(np.ascontiguousarray(ticks["wanted"])[..., None], self.slices)[0]
        for first, end in _spans(self._usable(ticks)):
            decided = slice(first, end)
            actions = seen.actions[0, decided]
            own = ticks[decided]
            drew = np.isfinite(own["drawn"]).all(axis=(1, 2))
            wanted = np.where(np.isnan(own["wanted"].swapaxes(1, 2)), actions, asked_for[decided])
            wanted[drew] = own["drawn"][drew]
            description = self._descriptions[int(own["description"][0])]
            mode = Mode(int(own["mode"][0]))
            density = own["log_density"].astype(np.float64)
            density[~drew] = np.nan
            decisions = _decisions(own)
            if mode is Mode.SHADOW:
                density[:], decisions["held"][:] = np.nan, False
            acted = OTHERS if mode is Mode.SHADOW else description["agent"]
            info = {name: description[name] for name in ("run_id", "backend", "agent")} | {
                "mode": mode.label,
                "bundle": description["bundle"] and description["bundle"]["digest"],
                "start": rfc3339(int(own["time_ns"][0])),
            }
            drawn = {"wanted": wanted.astype(np.float32), "log_density": density}
            yield episode_of(seen, 0, first, end, acted, **drawn, decisions=decisions, info=info)

    def _usable(self, ticks: Records) -> npt.NDArray[np.bool_]:
        """Which ticks have a decision, the observation before it and the measurement of the single period after it."""
        usable = np.zeros(len(ticks), np.bool_)
        # The ticks just before and after count too: with the mode, the source of the knobs changes between two ticks.
        same = (np.diff(ticks["mode"]) == 0) & (np.diff(ticks["description"]) == 0)
        usable[1:-1] = same[:-1] & same[1:] & (np.diff(ticks["missed"])[1:] == 0)
        if ticks["sequence"][0] != 1:
            usable[: max(round(WINDOW_S / self.context.period_s.item()), 1) - 1] = False
        return usable


def _decisions(ticks: Records) -> dict[str, npt.NDArray[Any]]:
    """Further columns of decisions, (T,) and (T, S)."""
    return {
        **{name: ticks["flags"] & bit != 0 for name, bit in FLAGS.items()},
        "mode": ticks["mode"].copy(),
        "level": ticks["level"].copy(),
        "node_reasons": ticks["node_reasons"].copy(),
        "reasons": ticks["reasons"].copy(),
    }


def _spans(usable: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """First and end of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], usable, [False]])))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
