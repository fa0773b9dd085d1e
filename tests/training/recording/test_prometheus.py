"""A range of time in a real Prometheus server becomes episodes, with its gaps."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from slicepilot.data.episodes.files import read_episodes
from slicepilot.env.encoding import FEATURES
from slicepilot.env.telemetry import SLICE_FIELDS
from tests.command import slicepilot
from tests.controller.telemetry.prometheus.servers import Prometheus

pytestmark = pytest.mark.live

PERIOD_S, HOLE = 30, (2400, 3000)
START_S = 1_790_000_000
POD = 'namespace="core",pod="upf-{n}"'


def at(second: int) -> dict[str, float]:
    """What the pods' counters were: 100 packets of 1058 octets a second for the first slice, twice as many for the
    second; half a CPU; a restart of all counters after 1500 s."""
    since = second - 1500 if second >= 1500 else second
    result = {}
    for n in (1, 2):
        pod = POD.format(n=n)
        for name, octets in (("receive", 1058), ("transmit", 1014)):
            item = f'{{{pod},interface="eth0"}}'
            result[f"container_network_{name}_packets_total{item}"] = 100.0 * n * since
            result[f"container_network_{name}_bytes_total{item}"] = 100.0 * n * since * octets
        result[f'container_cpu_usage_seconds_total{{{pod},container="upf"}}'] = 0.5 * since
        result[f'container_spec_cpu_quota{{{pod},container="upf"}}'] = 60_000 if n == 1 else math.nan
        result[f'container_spec_cpu_period{{{pod},container="upf"}}'] = 100_000
        for bound in ("0.01", "0.02", "+Inf"):
            share = 0.0 if bound == "0.01" else 1.0
            result[f'smokeping_response_duration_seconds_bucket{{host="10.45.0.{n}",le="{bound}"}}'] = share * since
        result[f'smokeping_response_duration_seconds_count{{host="10.45.0.{n}"}}'] = since
    return {name: value for name, value in result.items() if not math.isnan(value)}


def history(seconds: int = 3600) -> str:
    """OpenMetrics, as ``promtool tsdb create-blocks-from openmetrics`` takes it: a sample every 15 s, and a hole for
    the second slice."""
    lines = []
    names = sorted(at(0))
    for name in names:
        for second in range(0, seconds + 1, 15):
            if '"upf-2"' in name and HOLE[0] <= second < HOLE[1]:
                continue
            lines.append(f"{name} {at(second)[name]:.3f} {START_S + second}")
    kinds = sorted({name.partition("{")[0] for name in names})
    ordered = []
    for kind in kinds:
        ordered.append(f"# TYPE {kind} unknown")
        ordered += [line for line in lines if line.startswith(f"{kind}{{")]
    return "\n".join([*ordered, "# EOF", ""])


@dataclass
class Stored:
    """A server with an hour of the past, and a node whose slices are in it."""

    server: Prometheus
    node: Path

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = slicepilot("dataset", "import-prometheus", self.node, *arguments, timeout=120)
        assert done.returncode == code, done.stderr
        return done


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    folder = tmp_path_factory.mktemp("stored")
    server = Prometheus(folder / "server", "127.0.0.1:1")
    server.stop()
    past = folder / "past.om"
    past.write_text(history())
    promtool = Path(server._program).with_name("promtool")
    made = subprocess.run(
        [str(promtool), "tsdb", "create-blocks-from", "openmetrics", str(past), str(folder / "server" / "data")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    server.retention = "10y"
    server.start()
    slices = [
        {
            "name": f"s{n}",
            "s_nssai": {"sst": 1, "sd": f"{n:06d}"},
            "sla": {"committed_mbps": 1, "delay_bound_ms": 50},
            "weight": 3 - n,
            "upf": {"pod": {"name": f"upf-{n}", "namespace": "core", "container": "upf"}},
        }
        for n in (1, 2)
    ]
    labels = {f"s{n}": {"ping": f"10.45.0.{n}"} for n in (1, 2)}
    node = folder / "node.yaml"
    prometheus = {"url": server.url, "slices": labels}
    node.write_text(
        yaml.safe_dump({"name": "edge", "uplink_mbps": 100, "slices": slices, "telemetry": {"prometheus": prometheus}})
    )
    try:
        yield Stored(server, node)
    finally:
        server.stop()


def said(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(START_S + second))


@pytest.mark.parametrize("out", ["log.parquet", "edge-v0"])
def test_an_hour_becomes_episodes_with_its_gap(out: str, stored: Stored, tmp_path: Path) -> None:
    path = tmp_path / out
    document: dict[str, Any] = json.loads(
        stored.run("--start", said(60), "--end", said(3600), "--episode-s", "1800", "--out", str(path), "--json").stdout
    )
    assert (document["episodes"], document["steps"]) == (2, 118)
    [missing] = document["missing"]
    hole_steps = sum(HOLE[0] + 45 < second <= HOLE[1] + 15 for second in range(60, 3601, PERIOD_S))
    assert missing["unmeasured_by_slice"]["s1"] == 0
    assert missing["unmeasured"] == pytest.approx(hole_steps, abs=2)
    if path.suffix != ".parquet":
        return
    episodes = read_episodes(path)
    assert set(episodes.behaviours) == {"as-found"}
    assert episodes.facts["period_s"] == PERIOD_S
    assert episodes.facts["stand_ins"]["runqueue_delay_us"] == "not measured"
    first, second = episodes.episodes
    assert first.telemetry is not None
    assert second.telemetry is not None
    assert second.valid is not None
    rows = {name: first.telemetry[:, SLICE_FIELDS.index(name)] for name in SLICE_FIELDS}
    # 100 packets a second with 1000 octets of the UE's in each, and twice as many; through a counter's restart as well.
    away = np.abs(rows["offered_mbps"] - [0.8, 1.6]) / [0.8, 1.6]
    assert np.median(away) < 1e-3
    assert away.max() < 0.5, "a counter that begins anew is no burst"
    assert rows["carried_mbps"][0] == pytest.approx([0.8, 1.6], rel=1e-3)
    assert rows["cpu_use_mcpu"][0] == pytest.approx([500, 500], rel=1e-3)
    assert rows["delay_p99_us"][0] == pytest.approx([19_900, 19_900], rel=1e-3)
    assert np.isnan(rows["runqueue_delay_us"]).all()
    # The hole is in the second half, of the second slice alone.
    assert second.valid[:, 0].all()
    lacking = ~second.valid[:, 1]
    assert lacking.sum() == pytest.approx(hole_steps, abs=2)
    assert np.isnan(second.telemetry[lacking, SLICE_FIELDS.index("carried_mbps"), 1]).all()
    assert not second.observations[lacking, 1, FEATURES.index("active")].any()
    # A reward is also of what others than the first carry: without the second there is no other.
    assert (np.isfinite(second.rewards) == ~lacking[1:]).all()
    assert np.asarray(first.decisions["age_s"]).max() <= 15
    assert np.isinf(second.decisions["age_s"][lacking[:-1], 1]).all()
    # The first slice had 600 mCPU; the second no limit.
    assert len(np.unique(first.actions[:, 0, 0])) == 1
    assert (first.actions[:, 1, 0] > 0.9).all()
    assert (first.actions[:, 0, 0] < 0.9).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--start", "yesterday"), "start = 'yesterday': expected a time such as"),
        (("--start", "@3600", "--end", "@60"), "start, end: -1 steps of 30 s; expected 1 to"),
        (("--start", "@60", "--end", "2999-01-01"), "start, end: "),
        (("--start", "@60", "--end", "@3600", "--period-s", "15"), "control period = 15 s: expected 30 to 30"),
        (("--start", "@7200", "--end", "@9000"), "no step of which enough was measured for a reward: s1: offered_mbps"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], words: str, stored: Stored, tmp_path: Path) -> None:
    given = [said(int(text[1:])) if text.startswith("@") else text for text in arguments]
    done = stored.run(*given, "--out", str(tmp_path / "log.parquet"), code=2)
    [line] = done.stderr.splitlines()
    assert words in line
    assert not list(tmp_path.iterdir())


def test_a_node_without_telemetry_has_nothing_to_import(stored: Stored, tmp_path: Path) -> None:
    document = yaml.safe_load(stored.node.read_text())
    del document["telemetry"]
    path = tmp_path / "plain.yaml"
    path.write_text(yaml.safe_dump(document))
    plain = Stored(stored.server, path)
    done = plain.run("--start", said(60), "--out", str(tmp_path / "log.parquet"), code=2)
    assert "no telemetry; expected telemetry: {prometheus: {url: ...}}" in done.stderr
