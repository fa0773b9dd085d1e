"""What a guided policy is shown beside the plain observation, and what becomes of its corrections.

A guided policy does not decide on knobs but on how to correct the decision of a rule, `queue-greedy`: it starts as good
as the rule and learns where the rule errs (Johannink et al. 2019, "Residual Reinforcement Learning for Robot Control").
It can move a slice in the order in which promises are served and scale what the slice is taken to need, so that whole
promises are kept or left; then it can depart from the knobs that the rule makes of that. The rule's averages over rates
and costs are the policy's memory.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from slicepilot.agents.bounds import smoothing
from slicepilot.agents.heuristics.queue_greedy import QueueGreedy
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import PACERS, Context
from slicepilot.env.encoding import NONE_ABOVE, NUM_FEATURES, KnobDecoder, ObservationEncoder, encoder_layout
from slicepilot.env.knobs import CPU_LIMIT, EGRESS, NICE, NUM_KNOBS, Knobs, NiceScope
from slicepilot.env.promises import promise_scores
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

RULE_FEATURES = ("rule_cpu_limit", "rule_nice", "rule_egress", "share_cpu", "share_egress")
GUIDE_FEATURES = (
    *RULE_FEATURES,
    *("kept", "tight", "need_cpu", "offered_cpu", "peak_cpu", "need_uplink", "offered_uplink"),
    *("node_offered_cpu", "node_offered_uplink", "node_idle", "over_threads", "trend", "rate_kept", "delay_kept"),
    *("lateness", "lateness_average", "broken_average", "buffer_time", "period_over_cfs", "pacer_queue"),
    *("requested", "cores_per_cpu"),
    *(f"pacer_{kind}" for kind in PACERS),
)
NUM_GUIDED = NUM_FEATURES + len(GUIDE_FEATURES)
RULE_AT = NUM_FEATURES
SHARED = slice(GUIDE_FEATURES.index("need_cpu"), GUIDE_FEATURES.index("node_offered_uplink") + 1)
HISTORY_S = 1.0
# Logarithms of ratios are shown over this, e to the power of which is about 400.
LOG_SCALE = np.float32(6.0)
MOST_SHARE = np.float32(2.0)
PACKET_BITS = np.float32(8 * 1400)
TINY = np.float32(1e-6)
MOST_MEASURED = np.float32(1e9)
LEAST_MBPS = np.float32(0.01)
LEAST_REQUEST_MCPU = np.float32(2.0)  # the least `cpu.shares` is 2

CORRECTIONS = ("bid", "need", "cpu_limit", "nice", "egress")
"""Columns of a guided policy's action, each in [-1, 1], 0 = as the rule does."""
NUM_CORRECTIONS = len(CORRECTIONS)
# e to the power of these is the largest factor of a slice's rank in the order, and of its need.
BID_REACH, NEED_REACH = 3.0, 0.5
# A slice that the rule leaves free stays free above the first departure; a limited slice is set free above the second.
FREE_ABOVE, LET_GO_ABOVE = -0.3, 0.6
# Departures to positions on the axes: a CPU limit and an egress rate move by up to a factor of some 1.8, nice by ten
# levels.
CPU_REACH, EGRESS_REACH, NICE_REACH = 0.3, 0.12, 0.5
FREE_OFFSET = 0.6  # where a free slice is first limited, over its share, in reaches


class Guide:
    """`ObservationEncoder`'s table with `GUIDE_FEATURES` behind it, and knobs from `CORRECTIONS`.

    Tables are float32 (L, S, D + G), every entry in [-1, 1]. Keeps averages: it has to see each control period of a run
    once, in order, before `decode` is called.
    """

    columns: ClassVar[int] = NUM_GUIDED
    actions: ClassVar[int] = NUM_CORRECTIONS

    def __init__(self, slices: SliceSet, context: Context, nice_scope: NiceScope = "group") -> None:
        self._plain, self._decoder = ObservationEncoder(context), KnobDecoder(slices, nice_scope)
        self._context = context
        self._rule = QueueGreedy()
        self._rule.reset(slices, context, seed=0)
        shape = context.promises.weight.shape
        self._rate = smoothing(context.period_s, HISTORY_S)
        self._lateness, self._broken = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._features = np.zeros((len(GUIDE_FEATURES), *shape), np.float32)
        traits = context.traits
        self._paced = np.ones(shape[1], np.bool_) if traits is None else traits.pacer != PACERS.index("none")
        self._fixed()

    def _fixed(self) -> None:
        context, at = self._context, GUIDE_FEATURES.index
        traits = context.traits
        if traits is None:
            return
        promises = context.promises
        # How late a full N3 buffer makes packets at the promised rate, over the bound on that.
        rate = np.maximum(promises.committed_mbps, LEAST_MBPS)
        buffer_us = (PACKET_BITS * traits.n3_buffer_packets / rate).astype(np.float32)
        queue_us = (np.float32(1e3) * traits.pacer_ms + PACKET_BITS * traits.pacer_packets / rate).astype(np.float32)
        self._features[at("buffer_time")] = log_ratio(buffer_us, promises.delay_bound_us)
        self._features[at("period_over_cfs")] = log_ratio(context.period_s, traits.cfs_period_s)
        self._features[at("pacer_queue")] = log_ratio(queue_us, promises.delay_bound_us)
        # What nice 0 means: groups of little weight are not helped by their nice alone.
        requests = np.maximum(traits.request_mcpu, LEAST_REQUEST_MCPU)
        self._features[at("requested")] = log_ratio(requests, requests.mean(axis=0))
        self._features[at("cores_per_cpu")] = traits.physical_cores / context.logical_cpus
        for kind in range(len(PACERS)):
            self._features[at(f"pacer_{PACERS[kind]}")] = traits.pacer == kind

    def encode(self, telemetry: Telemetry, knob_rows: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Encode the next measurement; ``knob_rows`` and ``out`` as `ObservationEncoder.encode` takes them."""
        # What is no number would stay in the averages for ever.
        slices, node = (np.fmin(np.fmax(part, 0.0), MOST_MEASURED) for part in (telemetry.slices, telemetry.node))
        telemetry = Telemetry(slices, node, telemetry.age_s, telemetry.valid)
        self._held, self._valid = knob_rows, telemetry.valid
        self._rule.measure(telemetry)
        rule = self._decoder.encode(Knobs.of(*self._rule.grant()))
        made = self._rule.workings
        assert made is not None
        promises, valid = self._context.promises, telemetry.valid
        rate_kept, delay_kept = promise_scores(telemetry, self._context)
        late = log_ratio(telemetry.delay_p99_us, promises.delay_bound_us)
        self._lateness += self._rate * (late - self._lateness)
        self._broken += self._rate * ((np.minimum(rate_kept, delay_kept) < 1.0) - self._broken)
        cpu, uplink = made.cost_mcpu_per_mbps / made.capacity_mcpu, np.float32(1.0) / np.maximum(made.uplink_mbps, TINY)
        offered_cpu, offered_uplink = made.offered_mbps * cpu, made.offered_mbps * uplink
        features, shares = self._features, self._shares()
        features[:NUM_KNOBS] = rule
        rows = (
            *(shares[CPU_LIMIT], shares[EGRESS], made.kept, made.tight),
            *(made.need_cpu_mbps * cpu, offered_cpu, self._rule.peak_mcpu / made.capacity_mcpu),
            *(made.need_uplink_mbps * uplink, offered_uplink),
            *((offered_cpu * valid).sum(axis=0), (offered_uplink * valid).sum(axis=0), made.idle_ratio),
            log_ratio(made.need_cpu_mbps * made.cost_mcpu_per_mbps, np.float32(1e3) * self._context.threads),
            *(log_ratio(telemetry.offered_mbps, made.offered_mbps), rate_kept, delay_kept),
            *(late, self._lateness, self._broken),
        )
        for k, row in enumerate(rows):
            np.clip(row, -1.0, MOST_SHARE, out=features[NUM_KNOBS + k])
        features[SHARED] /= MOST_SHARE
        np.clip(features, -1.0, 1.0, out=features)
        if out is None:
            out = np.empty((*self._valid.shape[::-1], NUM_GUIDED), np.float32)
        self._plain.encode(telemetry, knob_rows, out)
        out[..., NUM_FEATURES:] = features.transpose(2, 1, 0)
        return out

    def decode(self, action: FloatArray) -> tuple[Knobs, FloatArray]:
        """Knobs for corrections (L, S, 5) of the rule's decision on what `encode` has seen last, and their rows.

        An egress that the node cannot pace is left alone. A slice that is absent keeps its knobs.

        Raises:
            ValueError: wrong shape, or a correction that is not a number.
        """
        table = np.asarray(action, np.float32)
        shape = (*self._valid.shape[::-1], NUM_CORRECTIONS)
        if table.shape != shape:
            raise ValueError(f"action: shape {table.shape}; expected {shape}")
        corrections = table.transpose(2, 1, 0)
        if not math.isfinite(np.add.reduce(corrections, axis=None)):
            raise ValueError("action: not a number; expected finite values")
        bid, need, cpu, nice, egress = np.clip(corrections, -1.0, 1.0)
        granted = self._rule.grant(np.exp(np.float32(BID_REACH) * bid), np.exp(np.float32(NEED_REACH) * need))
        rule, shares = self._decoder.encode(Knobs.of(*granted)), self._shares()
        rows = np.empty_like(rule)
        rows[CPU_LIMIT] = departed(cpu, rule[CPU_LIMIT], shares[CPU_LIMIT], CPU_REACH)
        rows[NICE] = rule[NICE] + np.float32(NICE_REACH) * nice
        rows[EGRESS] = np.where(self._paced, departed(egress, rule[EGRESS], shares[EGRESS], EGRESS_REACH), 1.0)
        rows = np.where(self._valid, rows, self._held)
        knobs, _ = self._decoder.decode(rows.transpose(2, 1, 0))
        settled = self._rule.settle(knobs.cpu_limit_mcpu, knobs.egress_mbps)
        knobs.values[[CPU_LIMIT, EGRESS]] = settled
        return knobs, self._decoder.encode(knobs)

    def _shares(self) -> FloatArray:
        """Rows (3, S, L) of limits at what the rule gives each slice."""
        made = self._rule.workings
        assert made is not None
        shares = np.array([made.share_mcpu, np.zeros_like(made.share_mcpu), made.share_mbps], np.float32)
        return self._decoder.encode(Knobs(np.maximum(shares, TINY)))


def departed(departure: FloatArray, rule: FloatArray, share: FloatArray, reach: float) -> FloatArray:
    """Positions of limits on their axis, for departures in [-1, 1] from those of the rule.

    Towards lower values a limit goes down from where it is, towards higher ones up and then away. Beside a rule that
    leaves a slice free, it starts at the share, and nothing happens near 0.
    """
    free = rule > NONE_ABOVE
    none = departure > np.where(free, FREE_ABOVE, LET_GO_ABOVE)
    start = np.where(free, share + np.float32(FREE_OFFSET * reach), rule)
    limited = np.clip(start + np.float32(reach) * departure, -1.0, NONE_ABOVE)
    return np.where(none, np.float32(1.0), limited).astype(np.float32)


def log_ratio(over: FloatArray, under: FloatArray) -> FloatArray:
    """0 where both are the same, 1 at some 400 times, -1 at the inverse of that."""
    ratio = np.log((over + TINY) / (under + TINY)) / LOG_SCALE
    return np.asarray(np.clip(ratio, -1.0, 1.0), np.float32)


def guided_layout() -> dict[str, Any]:
    """As `slicepilot.env.encoding.encoder_layout`, of the wider table."""
    plain = encoder_layout()
    return plain | {"features": [*plain["features"], *GUIDE_FEATURES]}


def corrections_layout() -> dict[str, Any]:
    """What columns of corrections mean, beside `slicepilot.agents.learned.bundle.decoder_layout`."""
    return {
        "corrections": list(CORRECTIONS),
        "reach": {
            "bid": BID_REACH,
            "need": NEED_REACH,
            "cpu_limit": CPU_REACH,
            "nice": NICE_REACH,
            "egress": EGRESS_REACH,
        },
        "free_above": FREE_ABOVE,
        "let_go_above": LET_GO_ABOVE,
        "free_offset": FREE_OFFSET,
    }
