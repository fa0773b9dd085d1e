"""Figures of Cilium's bandwidth manager for docs/cilium.md, by the model: `python -m
tests.controller.actuators.cilium.measure`. As root; two minutes. Everything is in namespaces of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from slicepilot.controller.actuators.cilium.layout import entry_of
from slicepilot.controller.actuators.cilium.rate import OriginalThrottle, ThrottleRate
from slicepilot.controller.actuators.cilium.throttle import pinned_id

from .machine import ENDPOINT, Agent, Datapath, own_namespaces, value_of
from .packets import first_after, in_time, send, send_segments

MBPS = 125_000
RATE_MBPS = 5.0


@contextlib.contextmanager
def datapath(stamped: bool = True) -> Iterator[tuple[Agent, Datapath]]:
    """A pod whose packets pass the model."""
    with tempfile.TemporaryDirectory() as made, own_namespaces():
        folder = Path(made)
        agent = Agent(folder)
        with contextlib.closing(Datapath(agent, folder, stamped=stamped)) as path:
            yield agent, path


def knob(agent: Agent, path: Datapath, horizon_ms: float | None = None) -> ThrottleRate:
    """The actuator on the entry as it is."""
    entry = entry_of(agent.read(ENDPOINT))
    number = pinned_id(agent.places.pin)
    assert number is not None
    where = path.pod.link, path.pod.ifindex
    result = OriginalThrottle(str(agent.places.pin), number, ENDPOINT, entry.bytes_per_s, entry.horizon_ns, *where)
    return ThrottleRate(result, horizon_ms, dead_band_ratio=0)


def accuracy() -> None:
    """Rates that are kept, under twice the load."""
    with datapath() as (agent, path):
        for rate in (2.0, 5.0, 20.0):
            agent.write(ENDPOINT, value_of(round(rate * MBPS)))
            flow = send(path, 2 * rate, 3)
            report = f"{flow.rate_mbps():.3f} Mbit/s ({100 * (flow.rate_mbps() / rate - 1):+.2f}%)"
            print(f"rate {rate:g} Mbit/s, offered {2 * rate:g}: kept {report}")


def horizons() -> None:
    """What waits, and what is lost, under twice the load for 8 s."""
    for horizon_ms in (2000, 50):
        with datapath() as (agent, path):
            agent.write(ENDPOINT, value_of(round(RATE_MBPS * MBPS), horizon_ns=horizon_ms * 1_000_000))
            flow = send(path, 2 * RATE_MBPS, 8)
            waits = ", ".join(f"p{100 * q:.0f} {flow.wait_ms(q, 4):.1f} ms" for q in (0.5, 0.99))
            late = sorted(flow.late_ms)[len(flow.late_ms) * 99 // 100]
            print(
                f"horizon {horizon_ms} ms, offered twice the rate: waits {waits}, lost {100 * flow.loss:.1f}%, "
                f"kept {flow.rate_mbps():.3f} Mbit/s (held {late:.1f} ms too long at p99)"
            )


def segments() -> None:
    """Large segments, two at once, at half the rate."""
    for horizon_ms in (2000, 50):
        with datapath(stamped=False) as (agent, path):
            agent.write(ENDPOINT, value_of(round(RATE_MBPS * MBPS), horizon_ns=horizon_ms * 1_000_000))
            sent, arrived = send_segments(path, 2 * 2 * 60_000 * 8e-6 / RATE_MBPS, 2, 4)
            lost = 100 * (1 - arrived / sent)
            print(f"horizon {horizon_ms} ms, segments of 60 kB in pairs at half the rate: lost {lost:.0f}%")


def raising() -> None:
    """How long it takes until a higher rate is felt."""
    for horizon_ms in (2000, 50):
        with datapath() as (agent, path):
            low, high = 12.0, 48.0  # below some 10.5 Mbit/s the knob does not go with a horizon of 50 ms
            agent.write(ENDPOINT, value_of(round(high * MBPS), horizon_ns=horizon_ms * 1_000_000))
            with contextlib.closing(knob(agent, path)) as rate:
                rate.set(low)
                raised: list[float] = []

                def raise_it(
                    seconds: float, rate: ThrottleRate = rate, raised: list[float] = raised, to: float = high
                ) -> None:
                    if seconds > 4 and not raised:
                        rate.set(to)
                        raised.append(time.monotonic())

                flow = send(path, 2 * low, 5, raise_it)
                print(
                    f"horizon {horizon_ms} ms, rate raised from {low:g} to {high:g} Mbit/s under load: "
                    f"the first packet sent after that leaves {1e3 * first_after(flow, raised[0]):.0f} ms later"
                )


WRITER = """
import json, os, sys, time
from slicepilot.controller.actuators.cilium.rate import OriginalThrottle, ThrottleRate
rate, every_s, writes = ThrottleRate(OriginalThrottle(**json.loads(sys.argv[1]))), float(sys.argv[2]), 0
print("ready", flush=True)
end = time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    rate.reassert()
    writes += 1
    time.sleep(every_s) if every_s else None
print(writes, flush=True)
"""


def lost_updates() -> None:
    """What a pod gains by writes that race with the program's, which another process makes on another CPU."""
    seconds = 6.0
    for name, every_s in (("no writes", None), ("a write every 10 ms", 0.01), ("writes all the time", 0.0)):
        with datapath() as (agent, path):
            agent.write(ENDPOINT, value_of(round(20 * MBPS), horizon_ns=200_000_000))
            with contextlib.closing(knob(agent, path)) as rate:
                result = json.dumps(asdict(rate.original))
            command = [sys.executable, "-c", WRITER, result, str(every_s), str(seconds)]
            writes = 0
            if every_s is None:
                flow = send(path, 40, seconds)
            else:
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
                    assert writer.stdout is not None
                    assert writer.stdout.readline() == "ready\n"
                    flow = send(path, 40, seconds)
                    writes = int(writer.stdout.readline())
            kept = flow.rate_mbps()
            report = f"{writes / seconds:.0f} a second, kept {kept:.3f} Mbit/s ({100 * (kept / 20 - 1):+.2f}%)"
            print(f"20 Mbit/s, offered 40, {name}: {report}")


def main() -> None:
    """All of them."""
    parts: tuple[Callable[[], None], ...] = (accuracy, horizons, segments, raising, lost_updates)
    for part in parts:
        with in_time():
            part()


if __name__ == "__main__":
    main()
