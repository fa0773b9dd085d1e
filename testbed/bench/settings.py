"""The settings of a study on real UPFs: which queue stands, and who runs when.

Run it as ``python -m slicepilot.testbed.bench.settings``. It plays experiments 1, 5, 6, 7 and 8 of Andrade and
Wickboldt (2025), scaled to the CPUs of this machine, and prints for slice 1 and the mean of the others, besides rates
and delays, what the kernel says of the UPF's threads, of which one at a time reads N3, and of its N3 socket:

- ran, waited: shares of the time in which they ran, and in which they could have run and did not
  (``/proc/PID/task/TID/schedstat``; kernel: Documentation/scheduler/sched-stats.rst);
- lost: of the time in which the socket held packets, the rest. The reader neither ran nor waited nor slept: its limit
  had run out, or its CPU served interrupts or another virtual machine, which is charged to nobody where the kernel
  counts it apart;
- queue: median and 90th percentile of the packets in the N3 socket (``/proc/PID/net/udp``).
"""

from __future__ import annotations

import argparse
import dataclasses
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.scenario import Load, Scenario
from slicepilot.testbed.backend.backend import SETTLE_S, TestbedBackend
from slicepilot.testbed.lifecycle.layout import GTPU_PORT
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed

EXPERIMENTS = (1, 5, 6, 7, 8)
# Demand of slice 1's thread and of the others', in CPUs, and the others' limits by experiment. The study's slice 1
# needs three quarters of a CPU beside what interrupts take: nearly all of one. The others want 1.3 times their share of
# the node, and their limits are half and a quarter of what they want.
PRIORITY_DEMAND, OTHERS_DEMAND = 0.85, 0.45
OTHERS_LIMIT = {7: 0.5, 8: 0.25}
PACKET_BYTES = 1400.0
FORWARD_US = 12.0
SAMPLE_S = 0.005


@dataclass(frozen=True)
class Seen:
    """What one slice came to under one setting: rates in Mbit/s, delays in ms, shares of time, packets."""

    offered_mbps: float
    carried_mbps: float
    delay_p50_ms: float
    delay_p99_ms: float
    ran: float
    waited: float
    lost: float
    throttled: float
    queue_p50: float
    queue_p90: float


class QueueSampler:
    """Samples the bytes in the N3 sockets of UPFs, and whether they hold any, until it is stopped."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._paths = [Path(f"/proc/{pid}/net/udp") for pid in pids]
        self._stop = threading.Event()
        self.samples: list[list[int]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.samples.append([_waiting_bytes(path) for path in self._paths])

    def stop(self) -> np.ndarray[Any, Any]:
        """Bytes as the kernel counts them, (samples, UPFs)."""
        self._stop.set()
        self._thread.join()
        return np.asarray(self.samples, float)


def _waiting_bytes(path: Path) -> int:
    port = f":{GTPU_PORT:04X}"
    for line in path.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(port):
            return int(fields[4].split(":")[1], 16)
    return 0


def _thread_times(pid: int) -> tuple[int, int]:
    """Nanoseconds that a process's threads ran and waited for a CPU, in all."""
    times = [(task / "schedstat").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(ran) for ran, _, _ in times), sum(int(waited) for _, waited, _ in times)


def scenario_of(experiment: int, spec: TestbedSpec, seconds: float) -> Scenario:
    """Loads of one experiment: video, four flows in slice 1 and five in the others; experiment 1 has slice 1 alone."""
    mbps_per_cpu = 8.0 * PACKET_BYTES / (spec.burn_us + FORWARD_US)
    loads: dict[str, tuple[Load, ...]] = {}
    for number, name in enumerate(spec.slice_set().names):
        demand, flows = (PRIORITY_DEMAND, 4) if number == 0 else (OTHERS_DEMAND, 5)
        rate = round(demand * mbps_per_cpu / flows, 2)
        if number == 0 or experiment != 1:
            loads[name] = (Load("video", rate_mbps=rate, flows=flows, packet_bytes=PACKET_BYTES),)
    return Scenario(
        name=f"experiment-{experiment}",
        description="an experiment of the study, scaled to this machine",
        slices=spec.slices,
        hardware="testbed",
        duration_s=SETTLE_S + seconds,
        control_period_s=0.05,
        loads=loads,
    )


def play(experiment: int, testbed: Testbed, backend: TestbedBackend, seconds: float, seed: int) -> list[Seen]:
    """Play one experiment and say what became of every slice, (S)."""
    names = testbed.slices.names
    # As the kubelet weighs pods: a limit without a request becomes the request, no request is BestEffort.
    requests = np.zeros((len(names), 1), np.float32)
    knobs = Knobs.none(len(names))
    if experiment >= 6:
        requests[0] = 1000.0
        knobs.cpu_limit_mcpu[0] = 1000.0
    if share := OTHERS_LIMIT.get(experiment):
        knobs.cpu_limit_mcpu[1:] = 1000.0 * OTHERS_DEMAND * share
    testbed.deploy(requests[:, 0])
    backend.play(scenario_of(experiment, testbed.spec, seconds))
    backend.reset(seed)
    backend.apply(knobs)
    time.sleep(1.0)  # until the queues stand
    pids = [testbed.upf(name).pid for name in names]
    before, started = [_thread_times(pid) for pid in pids], time.monotonic_ns()
    sampler = QueueSampler(pids)
    seen = [backend.observe() for _ in range(backend.context.num_steps)]
    queued = sampler.stop()
    after, elapsed = [_thread_times(pid) for pid in pids], time.monotonic_ns() - started
    rows = []
    for s in range(len(names)):
        ran, waited = (float(now - then) for now, then in zip(after[s], before[s], strict=True))
        held = float((queued[:, s] > 0).mean())
        rows.append(
            Seen(
                offered_mbps=float(np.mean([t.offered_mbps[s] for t in seen])),
                carried_mbps=float(np.mean([t.carried_mbps[s] for t in seen])),
                delay_p50_ms=1e-3 * float(np.median([t.delay_p50_us[s] for t in seen])),
                delay_p99_ms=1e-3 * float(np.median([t.delay_p99_us[s] for t in seen])),
                ran=ran / elapsed,
                waited=waited / elapsed,
                lost=max(0.0, held - (ran + waited) / elapsed),
                throttled=float(np.mean([t.throttled_ratio[s] for t in seen])),
                queue_p50=float(np.median(queued[:, s])) / BYTES_PER_PACKET,
                queue_p90=float(np.quantile(queued[:, s], 0.9)) / BYTES_PER_PACKET,
            )
        )
    return rows


# What the kernel counts for a packet of 1400 bytes in a socket's buffer.
BYTES_PER_PACKET = 2304.0


def main() -> None:
    """Play the experiments and print a table; see the module's documentation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    # Quota period and buffers (some 2000 packets) as in the study.
    spec = dataclasses.replace(TestbedSpec(), name="spset", quota_period_ms=100.0, n3_buffer_bytes=4_608_000, ues=5)
    testbed = Testbed.up(spec, owned=True)
    backend = TestbedBackend(testbed, scenario_of(5, spec, args.seconds), owned=True)
    columns = [field.name for field in dataclasses.fields(Seen)]
    print(f"{'exp':>4} {'slice':>7} " + " ".join(f"{name:>12}" for name in columns))
    try:
        for experiment in EXPERIMENTS:
            runs = [play(experiment, testbed, backend, args.seconds, seed) for seed in range(args.repetitions)]
            table = np.asarray([[dataclasses.astuple(row) for row in run] for run in runs]).mean(0)
            groups = {"slice1": table[0], "others": table[1:].mean(0)}
            for name, row in groups.items():
                print(f"{experiment:>4} {name:>7} " + " ".join(f"{value:12.2f}" for value in row))
    finally:
        backend.close()


if __name__ == "__main__":
    main()
