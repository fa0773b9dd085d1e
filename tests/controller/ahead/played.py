"""All that a loop calls, on figures of which many make no sense: ``played.py POLICY FOLDER numba|ahead``.

What comes out is left in the folder, and so are the modules that were imported.
"""

import sys
from pathlib import Path

import numpy as np

TICKS = 3000
PERIOD_S = 0.005


def main(model: Path, folder: Path, how: str) -> None:
    if how == "ahead":
        from slicepilot.controller.ahead import library

        if missing := library.take():
            sys.exit(missing)
    from slicepilot.agents.runtime.codec import CompiledCodec
    from slicepilot.agents.runtime.policy import CompiledPolicy
    from slicepilot.agents.runtime.program import compile_policy
    from slicepilot.configs import validate
    from slicepilot.controller.guard.config import GuardConfig
    from slicepilot.controller.guard.guard import Guard
    from slicepilot.controller.record.ring import Tick, TickRing
    from slicepilot.controller.telemetry import source
    from slicepilot.env.backend import Context
    from slicepilot.env.encoding import NUM_FEATURES, KnobDecoder, ObservationEncoder
    from slicepilot.env.knobs import Knobs
    from slicepilot.env.slices import Promises, SliceSet
    from slicepilot.env.sliding import SlidingView
    from slicepilot.env.telemetry import Telemetry

    slices, one, rng = SliceSet.from_yaml("testbed-five"), np.ones(1, np.float32), np.random.default_rng(5)
    count = len(slices)
    context = Context(PERIOD_S * one, 2 * one, 1000 * one, Promises.of(slices, 1), slices.column("upf_threads"), 1)
    guard, view = Guard(validate(GuardConfig, {}, "test"), slices, context), SlidingView(context)
    decoder, program = KnobDecoder(slices), compile_policy(model.read_bytes(), (1, count, NUM_FEATURES))
    policy = CompiledPolicy(program, CompiledCodec(ObservationEncoder(context), decoder))
    ring = TickRing(folder / f"{how}.ring", count)
    held = Knobs.none(count)
    rows, told = policy.codec.knob_rows(held), []
    share, busy = np.ones((count, 1)), 1.0
    for tick in range(TICKS):
        if tick % 200 == 100:
            share, busy = rng.choice([0.2, 1.0, 1.0], (count, 1)), rng.choice([1.0, 100.0])
        telemetry = Telemetry.empty(count)
        telemetry.offered_mbps[:] = rng.uniform(20.0, 40.0, (count, 1))
        telemetry.carried_mbps[:] = share * telemetry.offered_mbps
        telemetry.delay_p50_us[:] = busy * rng.uniform(50.0, 100.0, (count, 1))
        telemetry.delay_p99_us[:] = 10.0 * telemetry.delay_p50_us
        telemetry.loss_ratio[:] = 1.0 - share
        telemetry.cpu_use_mcpu[:] = 8.0 * telemetry.carried_mbps
        telemetry.throttled_ratio[:] = rng.random((count, 1))
        telemetry.runqueue_delay_us[:] = busy * rng.uniform(10.0, 50.0, (count, 1))
        telemetry.node[:] = rng.random((2, 1))
        telemetry.valid[:] = rng.random((count, 1)) < 0.98
        if rng.random() < 0.01:
            telemetry.slices[rng.integers(8), rng.integers(count)] = rng.choice([np.nan, np.inf, -1.0])
        seen = view.see(telemetry)
        try:
            wanted, rows = policy.decide(seen, rows)
        except ValueError:
            wanted = None
        verdict = guard.judge(telemetry, wanted, held, round(1e9 * PERIOD_S) * (tick + 1))
        ring.write(Tick(tick, tick), telemetry, wanted or held, verdict.allowed, held, verdict.reasons)
        held = verdict.allowed
        decided = held if wanted is None else wanted
        told.append(np.concatenate([part.ravel() for part in (seen.slices, seen.node, decided.values, held.values)]))
    records = np.concatenate([records for records, _ in ring.pieces(max(0, TICKS - ring.slots), TICKS)])
    filled = np.zeros(8 * count + 2, np.float32)
    source._fill(rng.integers(0, 1 << 60, 100).astype(np.uint64), count, filled)
    modules = np.array(sorted(sys.modules))
    np.savez(folder / f"{how}.npz", told=told, records=records.view(np.uint8), filled=filled, modules=modules)
    reasons = sorted({reason.label for reason, _ in guard.counts})
    print(*reasons)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
