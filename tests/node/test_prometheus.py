"""A node whose UPFs a Prometheus server measures, and nothing else: watched, controlled, stepped and recorded."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from slicepilot.configs import FailureError
from slicepilot.controller.telemetry.prometheus.source import PrometheusSource
from slicepilot.data.episodes.files import read_episodes
from slicepilot.env.telemetry import SLICE_FIELDS
from slicepilot.node.config.spec import NodeSpec
from slicepilot.testbed.bench.rig import Controller
from tests.controller.telemetry.prometheus.servers import SCRAPE_S, Pod, Prometheus, exporting

from .foreign import Foreign
from .runtimes import until
from .test_foreign import controller, in_netns, knobs, slicepilot

COUNT, PERIOD_S, MBPS = 2, 2.0, 4.0
LONG_PERIOD_S = 12.0


@dataclass
class Measured:
    """UPFs, the server that measures them, and a configuration that says so."""

    foreign: Foreign
    server: Prometheus
    pods: list[Pod]
    node: Path


@pytest.fixture(scope="module", name="measured")
def _measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("node")
    folder.chmod(0o755)
    foreign = Foreign(folder, COUNT, prefix="pr")
    server = None
    try:
        pods = [Pod(f"upf-{n}", foreign.group(n), foreign.pid(n)) for n in range(1, COUNT + 1)]
        with exporting(pods) as target:
            server = Prometheus(folder / "server", target)
            document = foreign.document()
            labels = {
                f"slice{n}": {"namespace": "core", "pod": f"upf-{n}", "container": "upf", "ping": f"10.45.0.{n}"}
                for n in range(1, COUNT + 1)
            }
            prometheus = {
                "url": server.url,
                "scrape_interval_s": SCRAPE_S,
                "labels": {"n3": "n3", "n6": "n6"},
                "slices": labels,
            }
            node = folder / "node.yaml"
            node.write_text(yaml.safe_dump({**document, "telemetry": {"prometheus": prometheus}}))
            until(lambda: _scraped(node), "two scrapes", 20.0)
            yield Measured(foreign, server, pods, node)
    finally:
        if server is not None:
            server.stop()
        foreign.down()


def _scraped(node: Path) -> bool:
    spec = NodeSpec.from_yaml(str(node))
    assert spec.prometheus is not None
    try:
        PrometheusSource(spec.prometheus, spec.promised.names, PERIOD_S).close()
    except FailureError:
        return False
    return True


def controlled(
    measured: Measured, folder: Path, mode: str, period_s: float = PERIOD_S
) -> contextlib.AbstractContextManager[Controller]:
    return controller(measured.node, measured.foreign, folder, mode, period_ms=1e3 * period_s, guard="prometheus")


def last(running: Controller) -> Any:
    with closing(running.reader()) as reader:
        return reader.last(1)


def test_a_node_is_controlled_by_the_figures_of_a_server_and_restored(measured: Measured, tmp_path: Path) -> None:
    before = knobs(measured.foreign)
    with controlled(measured, tmp_path, "live") as running:
        measured.foreign.load(seconds=40, mbps=MBPS)

        def seen() -> bool:
            tick = last(running)
            if not len(tick):  # what is said of a loop is said before its first tick, where that comes late
                return False
            carried = tick["slices"][-1, SLICE_FIELDS.index("carried_mbps")]
            return bool(tick["valid"][-1][:COUNT].all()) and bool((np.abs(carried - MBPS) < 0.2 * MBPS).all())

        running.wait_for(seen, "carries what is sent", 30.0)
        tick = last(running)
        figures = {name: tick["slices"][-1, row].round(2).tolist() for row, name in enumerate(SLICE_FIELDS)}
        print(figures, "age", tick["age_s"][-1])
        assert 0 <= tick["age_s"][-1] < 3 * SCRAPE_S
        until(lambda: knobs(measured.foreign) != before, "a weight is moved")
        # A UPF of whose pod nothing is said any more is not measured; the other goes on.
        measured.pods[1].hidden = ("container_network",)
        running.wait_for(lambda: last(running)["valid"][-1][:COUNT].tolist() == [1, 0], "not measured", 20.0)
        running.wait_for(lambda: "no series fits" in str(running.notes().get("unmeasured")), "says why", 10.0)
        measured.pods[1].hidden = ()
        running.wait_for(lambda: last(running)["valid"][-1][:COUNT].tolist() == [1, 1], "measured again", 20.0)
        # No BPF program, no filter: knobs alone.
        netns = measured.foreign.netns[0]
        assert "bpf" not in in_netns(netns, "tc", "filter", "show", "dev", "n3", "ingress")
    assert running.process.returncode == 0, running.tail()
    assert knobs(measured.foreign) == before
    measured.foreign.carried_mbps()


def test_orders_and_the_end_do_not_wait_for_a_long_period(measured: Measured, tmp_path: Path) -> None:
    with controlled(measured, tmp_path, "shadow", LONG_PERIOD_S) as running:
        running.wait_for(lambda: running.ticks() >= 1, "a tick", 60.0)
        name, root = measured.foreign.prefix, str(tmp_path / "run")
        took_s = []
        for order in ("pause", "resume", "safe", "resume"):
            began = time.monotonic()
            slicepilot("control", order, "--name", name, "--run-root", root)
            took_s.append(time.monotonic() - began)
        print("orders took", [f"{seconds:.2f} s" for seconds in took_s])
        assert sum(took_s) < LONG_PERIOD_S
        began = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(10.0) == 0
        assert time.monotonic() - began < 0.6 * LONG_PERIOD_S


def test_it_is_recorded_to_learn_from(measured: Measured, tmp_path: Path) -> None:
    out = tmp_path / "log.parquet"
    slicepilot(
        *("dataset", "record", "--node", str(measured.node), "--period-ms", f"{1e3 * PERIOD_S:g}"),
        *("--seconds", "6", "--episodes", "1", "--out", str(out)),
    )
    [episode] = read_episodes(out).episodes
    assert len(episode) == 3
    assert np.isfinite(episode.rewards).all()
    assert episode.valid is not None
    assert episode.valid.all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--node", "NODE", "--seconds", "1"), "control period = 0.01 s: expected 2 to 30, twice the scrape"),
        (
            ("run", "--node", "NODE", "--period-ms", "2000", "--seconds", "1"),
            "guard: telemetry.most_age_s = 0.1: expected 2 or more",
        ),
        (("node", "check", "NODE"), "telemetry.prometheus: node check looks at packets; expected a node without it"),
        (("probe", "--node", "NODE"), "telemetry.prometheus: probe looks at packets; expected a node without it"),
        (("node", "identify", "NODE", "--out", "OUT"), "node identify looks at packets"),
    ],
)
def test_what_does_not_go_is_one_line(
    arguments: tuple[str, ...], words: str, measured: Measured, tmp_path: Path
) -> None:
    roots = {"run_root": str(tmp_path / "run"), "state_root": str(tmp_path / "state")}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(roots))
    given = [{"NODE": str(measured.node), "OUT": str(tmp_path / "out.yaml")}.get(word, word) for word in arguments]
    if given[0] == "run":
        given += ["-c", str(tmp_path / "run.yaml")]
    done = slicepilot(*given, code=2)
    *_, line = done.stderr.splitlines()  # behind what the start does
    assert words in line


def test_slices_of_one_upf_are_refused(measured: Measured, tmp_path: Path) -> None:
    document = yaml.safe_load(measured.node.read_text())
    first, second = document["slices"]
    second["upf"] = first["upf"]
    second["devices"] = first["devices"]
    for number, item in enumerate((first, second), 1):
        item["traffic"] = {"ue_pools": [f"10.61.{number}.0/24"]}
    path = tmp_path / "node.yaml"
    path.write_text(yaml.safe_dump(document))
    done = slicepilot("run", "--node", str(path), "--period-ms", "2000", "--seconds", "1", code=2)
    assert "slice1, slice2 have one UPF; expected each slice its own" in done.stderr
