"""What a guided policy is shown beside the plain observation: the greedy rule's decision, and what it came from.

A guided policy does not decide on knobs but on how far to go from those of `greedy-egress`: it starts as good as the
rule and learns where the rule errs (Johannink et al. 2019, "Residual Reinforcement Learning for Robot Control"). The
rule's averages over rates and costs are the policy's memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...env.backend import PACERS, Context
from ...env.encoding import NUM_FEATURES, KnobDecoder, ObservationEncoder, encoder_layout
from ...env.knobs import CPU_LIMIT, EGRESS, NUM_KNOBS, Knobs
from ...env.promises import promise_scores
from ...env.slices import FloatArray, SliceSet
from ...env.telemetry import Telemetry
from ..heuristics.bounds import smoothing, within_bounds
from ..heuristics.greedy import Greedy

RULE_FEATURES = ("rule_cpu_limit", "rule_nice", "rule_egress", "share_cpu", "share_egress")
GUIDE_FEATURES = (
    *RULE_FEATURES,
    *("kept", "tight", "promised_cpu", "offered_cpu", "promised_uplink", "offered_uplink"),
    *("node_offered_cpu", "node_offered_uplink", "node_idle", "trend", "rate_kept", "delay_kept"),
    *("lateness", "lateness_average", "broken_average", "buffer_time", "period_over_cfs", "pacer_queue"),
    *("requested", "cores_per_cpu"),
    *(f"pacer_{kind}" for kind in PACERS),
)
NUM_GUIDED = NUM_FEATURES + len(GUIDE_FEATURES)
RULE_AT = NUM_FEATURES
HISTORY_S = 1.0
# Logarithms of ratios are shown over this, e to the power of which is about 400.
LOG_SCALE = np.float32(6.0)
MOST_SHARE = np.float32(2.0)
PACKET_BITS = np.float32(8 * 1400)
TINY = np.float32(1e-6)
MOST_MEASURED = np.float32(1e9)
LEAST_MBPS = np.float32(0.01)
LEAST_REQUEST_MCPU = np.float32(2.0)  # the least `cpu.shares` is 2


class GuidedEncoder:
    """`ObservationEncoder`'s table with `GUIDE_FEATURES` behind it: float32 (L, S, D + G), every entry in [-1, 1].

    Keeps averages: it has to see each control period of a run once, in order.
    """

    def __init__(self, slices: SliceSet, context: Context) -> None:
        self._plain, self._decoder = ObservationEncoder(context), KnobDecoder(slices)
        self._slices, self._context = slices, context
        self._rule = Greedy(egress=True)
        self._rule.reset(slices, context, seed=0)
        shape = context.promises.weight.shape
        self._rate = smoothing(context.period_s, HISTORY_S)
        self._lateness, self._broken = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._features = np.zeros((len(GUIDE_FEATURES), *shape), np.float32)
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
        self._features[at("buffer_time")] = log_ratio(buffer_us, promises.delay_bound_us)
        self._features[at("period_over_cfs")] = log_ratio(context.period_s, traits.cfs_period_s)
        self._features[at("pacer_queue")] = np.log1p(traits.pacer_ms) / LOG_SCALE
        # What nice 0 stands for: groups of little weight are not helped by their nice alone.
        requests = np.maximum(traits.request_mcpu, LEAST_REQUEST_MCPU)
        self._features[at("requested")] = log_ratio(requests, requests.mean(axis=0))
        self._features[at("cores_per_cpu")] = traits.physical_cores / context.logical_cpus
        for kind in range(len(PACERS)):
            self._features[at(f"pacer_{PACERS[kind]}")] = traits.pacer == kind

    def encode(self, telemetry: Telemetry, knob_rows: FloatArray) -> FloatArray:
        """Encode the next measurement; ``knob_rows`` as `ObservationEncoder.encode` takes them."""
        # What is no number would stay in the averages for ever.
        slices, node = (np.fmin(np.fmax(part, 0.0), MOST_MEASURED) for part in (telemetry.slices, telemetry.node))
        telemetry = Telemetry(slices, node, telemetry.age_s, telemetry.valid)
        rule = self._rule.decide(telemetry, Knobs(knob_rows))
        made = self._rule.workings
        assert made is not None
        shares = np.array([made.share_mcpu, np.zeros_like(made.share_mcpu), made.share_mbps], np.float32)
        share_rows = self._decoder.encode(within_bounds(Knobs(np.maximum(shares, TINY)), self._slices))
        promises, valid = self._context.promises, telemetry.valid
        rate_kept, delay_kept = promise_scores(telemetry, self._context)
        late = log_ratio(telemetry.delay_p99_us, promises.delay_bound_us)
        self._lateness += self._rate * (late - self._lateness)
        self._broken += self._rate * ((np.minimum(rate_kept, delay_kept) < 1.0) - self._broken)
        cpu, uplink = made.cost_mcpu_per_mbps / made.capacity_mcpu, np.float32(1.0) / np.maximum(made.uplink_mbps, TINY)
        offered_cpu, offered_uplink = made.offered_mbps * cpu, made.offered_mbps * uplink
        features = self._features
        features[:NUM_KNOBS] = self._decoder.encode(rule)
        rows = (
            *(share_rows[CPU_LIMIT], share_rows[EGRESS], made.kept, made.tight),
            *(made.promised_mbps * cpu, offered_cpu, made.promised_mbps * uplink, offered_uplink),
            *((offered_cpu * valid).sum(axis=0), (offered_uplink * valid).sum(axis=0), made.idle_ratio),
            *(log_ratio(telemetry.offered_mbps, made.offered_mbps), rate_kept, delay_kept),
            *(late, self._lateness, self._broken),
        )
        for k, row in enumerate(rows):
            np.clip(row, -1.0, MOST_SHARE, out=features[NUM_KNOBS + k])
        shared = slice(GUIDE_FEATURES.index("promised_cpu"), GUIDE_FEATURES.index("node_offered_uplink") + 1)
        features[shared] /= MOST_SHARE
        np.clip(features, -1.0, 1.0, out=features)
        plain = self._plain.encode(telemetry, knob_rows)
        return np.concatenate([plain, features.transpose(2, 1, 0)], axis=-1)


def log_ratio(over: FloatArray, under: FloatArray) -> FloatArray:
    """0 where both are the same, 1 at some 400 times, -1 at the inverse of that."""
    ratio = np.log((over + TINY) / (under + TINY)) / LOG_SCALE
    return np.asarray(np.clip(ratio, -1.0, 1.0), np.float32)


def guided_layout() -> dict[str, Any]:
    """As `slicepilot.env.encoding.encoder_layout`, of the wider table."""
    plain = encoder_layout()
    return plain | {"features": [*plain["features"], *GUIDE_FEATURES]}
