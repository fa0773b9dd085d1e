"""Five UPF pods measured by what a real kubelet's cAdvisor says of them, beside the probe that measures the same."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from slicepilot.configs import ConfigError
from slicepilot.controller.record.ring_reader import TickReader
from slicepilot.env.telemetry import SLICE_FIELDS
from tests.cluster.agents import RunningAgent
from tests.cluster.cluster import Cluster
from tests.cluster.upfs import NAMESPACE, PodUpfs
from tests.node.machine import children

from .scraping import Scraping
from .setting import CADVISOR_S, COUNT, LOOP, MBPS, SLICES

PERIOD_S = 30
TICKS = 4
CONFIGS = Path(__file__).parents[3] / "configs" / "prometheus"
# The most that they may be apart, as a share of the probe's figure. cAdvisor's window begins and ends up to a scrape
# earlier or later than what it is held against.
RATE_APART, CPU_APART = 0.1, 0.3
pytestmark = pytest.mark.slow


@dataclass
class Measured:
    """A controller with the server's figures alone, and its ticks with all slices measured."""

    node: Path
    ticks: list[Any]


def queries(cluster: Cluster) -> Path:
    """The shipped queries, with delays of the node's probe: nobody behind these UPFs answers pings."""
    document = yaml.safe_load((CONFIGS / "cadvisor.yaml").read_text())
    for level, row in ((0.5, "delay_p50_us"), (0.99, "delay_p99_us")):
        of = f'loop="{LOOP}", slice="$named"'
        rate = f"rate(slicepilot_slice_delay_seconds_bucket{{{of}}}[$window])"
        document["slices"][row]["query"] = f"histogram_quantile({level}, sum by (le) ({rate}))"
        document["slices"][row]["samples"] = f"slicepilot_slice_delay_seconds_count{{{of}}}"
    path = cluster.folder / "queries.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def node_file(cluster: Cluster, server: Scraping, upfs: PodUpfs) -> Path:
    """What the agent has written for its loop, with a server that measures."""
    agents = cluster.machine.root / "run" / "slicepilot" / "agent" / f"{LOOP}.node.yaml"
    document = yaml.safe_load(agents.read_text())
    labels = {
        name: {"namespace": NAMESPACE, "pod": pod, "container": "upf", "named": name}
        for name, pod in zip(SLICES, upfs.slices, strict=True)
    }
    wanted = {"url": server.url, "queries": str(queries(cluster)), "slices": labels, "scrape_interval_s": CADVISOR_S}
    document["telemetry"] = {"prometheus": wanted}
    path = cluster.folder / "node.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(scope="module", name="measured")
def _measured(
    cluster: Cluster,
    server: Scraping,
    running: RunningAgent,
    upfs: PodUpfs,
) -> Iterator[Measured]:
    del running
    everywhere = f'count(rate(container_network_receive_bytes_total{{namespace="{NAMESPACE}",interface="eth0"}}[1m]))'
    server.until(lambda: server.values(everywhere, "") == {"": COUNT}, 90.0, "cAdvisor knows not all pods")
    node = node_file(cluster, server, upfs)
    log = (cluster.folder / "measured.log").open("w")
    command = ["slicepilot", "run", "--node", str(node), "--instance", "measured", "--agent", "static-weights-9"]
    command += ["--period-ms", str(1000 * PERIOD_S), "--guard", "prometheus", "--mode", "shadow"]
    with log:
        process = cluster.machine.start(*command, stdout=log, stderr=subprocess.STDOUT)
    ring = cluster.machine.root / "run" / "slicepilot" / "measured" / "ticks"
    result: list[Any] = []
    end_s = time.monotonic() + (TICKS + 4) * PERIOD_S
    try:
        while len(result) < TICKS:
            assert time.monotonic() < end_s, f"{len(result)} ticks; {(cluster.folder / 'measured.log').read_text()}"
            assert process.poll() is None, (cluster.folder / "measured.log").read_text()
            with contextlib.suppress(ConfigError), closing(TickReader(ring)) as reader:
                result = [item for item in reader.last(50) if item["valid"][:COUNT].all()]
            time.sleep(1.0)
        yield Measured(node, result)
    finally:
        for child in children(process.pid):
            os.kill(child, signal.SIGTERM)
        process.wait(30)
        print((cluster.folder / "measured.log").read_text())


def test_figures_agree_with_the_probes(server: Scraping, measured: Measured) -> None:
    window = f"[{PERIOD_S + CADVISOR_S}s]"
    of = f'{{loop="{LOOP}"}}'
    wanted = {
        "offered_mbps": (f"8e-6 * rate(slicepilot_slice_offered_bytes_total{of}{window})", RATE_APART),
        "carried_mbps": (f"8e-6 * rate(slicepilot_slice_carried_bytes_total{of}{window})", RATE_APART),
        "cpu_use_mcpu": (f"1e3 * rate(slicepilot_slice_cpu_seconds_total{of}{window})", CPU_APART),
    }
    worst = dict.fromkeys(wanted, 0.0)
    for tick in measured.ticks:
        at = f"{tick['time_ns'] / 1e9 - float(tick['age_s']):.3f}"
        for row, (query, _) in wanted.items():
            answer = server.get("/api/v1/query", query=query, time=at)["result"]
            probe = {item["metric"]["slice"]: float(item["value"][1]) for item in answer}
            ours = dict(zip(SLICES, tick["slices"][SLICE_FIELDS.index(row)][:COUNT].tolist(), strict=True))
            apart = {name: ours[name] / probe[name] - 1.0 for name in SLICES}
            worst[row] = max(worst[row], *map(abs, apart.values()))
            print(row, {name: f"{ours[name]:.3g} ({apart[name]:+.1%})" for name in SLICES})
    print("at most apart:", {row: f"{share:.1%}" for row, share in worst.items()})
    for row, (_, most) in wanted.items():
        assert worst[row] < most, row


def test_ages_and_periods_are_right(measured: Measured) -> None:
    ages = [float(tick["age_s"]) for tick in measured.ticks]
    times_s, numbers = (np.array([int(tick[name]) for tick in measured.ticks]) for name in ("time_ns", "sequence"))
    periods = np.diff(times_s) / 1e9 / np.diff(numbers)  # a slice may not have been measured in between
    print("age_s", [f"{age:.1f}" for age in ages], "periods", [f"{item:.2f}" for item in periods])
    # A scrape, half a scrape until its query, and what cAdvisor itself keeps back: 15 s at most (its source).
    assert all(0 < age < 2.5 * CADVISOR_S for age in ages)
    assert periods == pytest.approx(PERIOD_S, abs=0.5)


def test_the_range_becomes_episodes_that_can_be_learned_from(
    cluster: Cluster,
    measured: Measured,
    server: Scraping,
) -> None:
    del server  # still there
    pytest.importorskip("torch")
    from slicepilot.training.offline.data import open_dataset, select

    first_s, last_s = (int(measured.ticks[i]["time_ns"]) / 1e9 for i in (0, -1))
    start, end = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in (first_s, last_s))
    out = cluster.folder / "log.parquet"
    command = ["slicepilot", "dataset", "import-prometheus", str(measured.node), "--start", start, "--end", end]
    document = json.loads(cluster.machine.run(*command, "--out", str(out), "--json"))
    assert document["steps"] >= TICKS - 2
    result = select(open_dataset(str(out)), ("*",))
    assert all(np.isfinite(episode.rewards).all() for episode in result.episodes)
    row = SLICE_FIELDS.index("carried_mbps")
    carried = np.concatenate([item.telemetry[:, row].ravel() for item in result.episodes if item.telemetry is not None])
    carried = carried[np.isfinite(carried)]
    assert len(carried) >= COUNT * (TICKS - 2)
    assert carried == pytest.approx(MBPS, rel=RATE_APART)
    print(f"{document['steps']} steps, carried {carried.min():.2f} to {carried.max():.2f} Mbit/s")
