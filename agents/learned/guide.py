"""The additional observation of a guided policy, and how its corrections change the rule's decision.

A guided policy does not decide on knobs but on how to correct the decision of a rule, `queue-greedy`: it starts as good
as the rule and learns where the rule errs (Johannink et al. 2019, "Residual Reinforcement Learning for Robot Control").
It can move a slice in the order in which promises are served and scale what the slice is taken to need, so that whole
promises are kept or left; then it can depart from the knobs that the rule makes of that. The rule's averages over rates
and costs are the policy's memory.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from slicepilot.agents.bounds import smoothing
from slicepilot.agents.heuristics.queue_greedy import PACKET_MBIT, QueueGreedy
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import PACERS, Context
from slicepilot.env.encoding import NUM_FEATURES, KnobDecoder, ObservationEncoder, encoder_layout
from slicepilot.env.knobs import NUM_KNOBS, Knobs, NiceScope
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from . import guide_kernels as kernels
from .guide_kernels import (
    BID_REACH,
    CORRECTIONS,
    CPU_REACH,
    EGRESS_REACH,
    FREE_ABOVE,
    FREE_OFFSET,
    LET_GO_ABOVE,
    NEED_REACH,
    NICE_REACH,
    NUM_CORRECTIONS,
)

FIXED_FEATURES = (
    *("buffer_time", "period_over_cfs", "pacer_queue", "requested", "cores_per_cpu"),
    *(f"pacer_{kind}" for kind in PACERS),
)
GUIDE_FEATURES = (*kernels.RULE_FEATURES, *kernels.MEASURED_FEATURES, *FIXED_FEATURES)
NUM_GUIDED = NUM_FEATURES + len(GUIDE_FEATURES)
RULE_AT = NUM_FEATURES
HISTORY_S = 1.0
LEAST_MBPS = np.float32(0.01)
LEAST_REQUEST_MCPU = np.float32(2.0)  # the least `cpu.shares` is 2


class Guide:
    """`ObservationEncoder`'s table with `GUIDE_FEATURES` behind it, and knobs from `CORRECTIONS`.

    Tables are float32 (L, S, D + G), every entry in [-1, 1]. Keeps averages: it has to see each control period of a run
    once, in order, before `decode` is called.
    """

    columns: ClassVar[int] = NUM_GUIDED
    actions: ClassVar[int] = NUM_CORRECTIONS

    def __init__(self, slices: SliceSet, context: Context, nice_scope: NiceScope = "group") -> None:
        self._plain, self._axes = ObservationEncoder(context), KnobDecoder(slices).axes
        self._nice_scope: NiceScope = nice_scope
        self._rule = QueueGreedy()
        self._rule.reset(slices, context, seed=0)
        shape = context.promises.weight.shape
        self._ones, self._averages = np.ones(shape, np.float32), np.zeros((2, *shape), np.float32)
        self._pace = smoothing(context.period_s, HISTORY_S)
        traits = context.traits
        self._paced = np.ones(shape[1], np.bool_) if traits is None else traits.pacer != PACERS.index("none")
        self._fixed = _fixed_features(context)

    def encode(self, telemetry: Telemetry, knob_rows: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Encode the next measurement; ``knob_rows`` and ``out`` as `ObservationEncoder.encode` takes them."""
        if out is None:
            out = np.empty((*telemetry.valid.shape[::-1], NUM_GUIDED), np.float32)
        self._held, rule = knob_rows, self._rule
        rule.measure(telemetry)
        self._plain.encode(telemetry, knob_rows, out)
        seen = telemetry.slices, telemetry.valid, self._ones, self._ones, self._pace, self._axes
        made = rule.settings, rule.state, rule.nodes, self._averages, self._fixed
        kernels.look(*seen, *made, NUM_FEATURES, out)
        return out

    def decode(self, action: FloatArray) -> tuple[Knobs, FloatArray]:
        """Knobs for corrections (L, S, 5) of the rule's decision on what `encode` has seen last, and their rows.

        An egress that the node cannot pace is left alone. A slice that is absent keeps its knobs.

        Raises:
            ValueError: wrong shape, or a correction that is not a number.
        """
        table, rule = np.asarray(action, np.float32, order="C"), self._rule
        shape = (*rule.state.shape[::-1], NUM_CORRECTIONS)
        if table.shape != shape:
            raise ValueError(f"action: shape {table.shape}; expected {shape}")
        values, rows = np.empty((2, NUM_KNOBS, *rule.state.shape), np.float32)
        made = rule.settings, rule.state, rule.nodes, values, rows
        if not kernels.correct(table, self._held, self._paced, self._axes, *made):
            raise ValueError("action: not a number; expected finite values")
        return Knobs(values, self._nice_scope), rows


def _fixed_features(context: Context) -> FloatArray:
    """Features (K, S, L) that are fixed for a run; zeros where nothing is known of the node."""
    features = np.zeros((len(FIXED_FEATURES), *context.promises.weight.shape), np.float32)
    traits, promises = context.traits, context.promises
    if traits is None:
        return features
    # How late a full N3 buffer makes packets at the promised rate, over the bound on that.
    rate = np.maximum(promises.committed_mbps, LEAST_MBPS)
    packet_us = np.asarray(np.float32(1e6) * PACKET_MBIT / rate, np.float32)
    buffer_us = packet_us * traits.n3_buffer_packets
    queue_us = np.asarray(np.float32(1e3) * traits.pacer_ms + packet_us * traits.pacer_packets, np.float32)
    # What nice 0 means: groups of little weight are not helped by their nice alone.
    requests = np.maximum(traits.request_mcpu, LEAST_REQUEST_MCPU)
    rows = (
        _log_ratio(buffer_us, promises.delay_bound_us),
        _log_ratio(context.period_s, traits.cfs_period_s),
        _log_ratio(queue_us, promises.delay_bound_us),
        _log_ratio(requests, requests.mean(axis=0)),
        traits.physical_cores / context.logical_cpus,
        *(traits.pacer == kind for kind in range(len(PACERS))),
    )
    for k, row in enumerate(rows):
        features[k] = np.clip(row, -1.0, 1.0)
    return features


def _log_ratio(over: FloatArray, under: FloatArray) -> FloatArray:
    """`kernels.log_ratio` for arrays."""
    tiny = kernels.TINY
    return np.asarray(np.clip(np.log((over + tiny) / (under + tiny)) / kernels.LOG_SCALE, -1.0, 1.0), np.float32)


def guided_layout() -> dict[str, Any]:
    """`slicepilot.env.encoding.encoder_layout` for the wider table."""
    plain = encoder_layout()
    return plain | {"features": [*plain["features"], *GUIDE_FEATURES]}


def corrections_layout() -> dict[str, Any]:
    """The meaning of columns of corrections, beside `slicepilot.agents.learned.bundle.decoder_layout`."""
    return {
        "corrections": list(CORRECTIONS),
        "reach": {
            "bid": round(float(BID_REACH), 6),
            "need": round(float(NEED_REACH), 6),
            "cpu_limit": round(float(CPU_REACH), 6),
            "nice": round(float(NICE_REACH), 6),
            "egress": round(float(EGRESS_REACH), 6),
        },
        "free_above": round(float(FREE_ABOVE), 6),
        "let_go_above": round(float(LET_GO_ABOVE), 6),
        "free_offset": round(float(FREE_OFFSET), 6),
    }
