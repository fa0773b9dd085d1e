"""A real Prometheus server, a real publisher, a real ring: what is shipped for Prometheus and Grafana works on them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from slicepilot.controller.contracts.modes import Level, Mode
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.publisher.handle import Publisher, PublisherOptions
from slicepilot.controller.record.ring import Tick, TickRing
from slicepilot.controller.telemetry.histogram import edges_ns
from slicepilot.controller.telemetry.layout import BUCKETS
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

pytestmark = pytest.mark.live  # what a server scrapes in some seconds

ROOT = Path(__file__).parents[2]
DEPLOY, TOOLS = ROOT / "deploy", ROOT / "build" / "tools" / "usr" / "bin"
SLICES = SliceSet.from_yaml("five-video")
PERIOD_S, PACKETS_PER_S = 0.01, 4000
LAST_QUERIES_S = 10


def tool(name: str) -> str:
    """From build/tools, or installed."""
    result = shutil.which(name, path=f"{TOOLS}{os.pathsep}{os.environ['PATH']}")
    if result is None:
        pytest.skip(f"needs {name}: tests/packages.sh")
    return result


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run([tool("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# -- rules -------------------------------------------------------------------------------------------------------------


def alerts(name: str = "alerts") -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / f"{name}.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


both = pytest.mark.parametrize("name", ["alerts", "agents"])


@both
def test_alerts_are_valid(name: str) -> None:
    checked = promtool("check", "rules", DEPLOY / "prometheus" / f"{name}.yaml")
    assert f"SUCCESS: {len(alerts(name))} rules found" in checked


@both
def test_alerts_fire_when_they_should(name: str) -> None:
    assert "SUCCESS" in promtool("test", "rules", DEPLOY / "prometheus" / f"{name}_test.yaml")


@both
def test_every_alert_is_seen_to_fire(name: str) -> None:
    tests = yaml.safe_load((DEPLOY / "prometheus" / f"{name}_test.yaml").read_text())["tests"]
    fired = set(re.findall(r"alertname=\"(\w+)\"", json.dumps(tests).replace('\\"', '"')))
    fired |= {case["alertname"] for test in tests for case in test.get("alert_rule_test", ()) if case["exp_alerts"]}
    assert {alert["alert"] for alert in alerts(name)} == fired


@both
def test_every_alert_says_how_grave_it_is_and_what_to_do(name: str) -> None:
    for alert in alerts(name):
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}
        assert alert["annotations"].keys() - {"explain"} == {"summary", "description", "runbook_url"}
        assert alert["annotations"]["runbook_url"] == f"docs/runbook.md#{alert['alert'].lower()}"


def test_the_runbook_has_every_alert() -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert sorted(alert["alert"] for name in ("alerts", "agents") for alert in alerts(name)) == sorted(headings)


def test_recording_rules_are_valid_and_do_what_they_say() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "recording.yaml").read_text())["groups"][0]["rules"]
    checked = promtool("check", "rules", DEPLOY / "prometheus" / "recording.yaml")
    assert f"SUCCESS: {len(rules)} rules found" in checked
    assert "SUCCESS" in promtool("test", "rules", DEPLOY / "prometheus" / "recording_test.yaml")
    tested = (DEPLOY / "prometheus" / "recording_test.yaml").read_text()
    assert [rule["record"] for rule in rules if f"expr: {rule['record']}" not in tested] == []


# -- Kubernetes --------------------------------------------------------------------------------------------------------


def test_the_operators_rules_are_those_of_the_server(tmp_path: Path) -> None:
    program = DEPLOY / "kubernetes-monitoring" / "rules.py"
    printed = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True).stdout
    document = yaml.safe_load(printed)
    assert (document["apiVersion"], document["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    groups = tmp_path / "rules.yaml"
    groups.write_text(yaml.safe_dump(document["spec"]))
    assert "SUCCESS" in promtool("check", "rules", groups)
    reported = [
        item["annotations"]["explain"] for item in alerts_of(document["spec"]) if "explain" in item["annotations"]
    ]
    assert set(reported) == {
        (
            "kubectl -n {{ $labels.namespace }} exec {{ $labels.pod }} -- "
            "slicepilot explain --name {{ $labels.loop }} --window 5min"
        )
    }


def alerts_of(rules: dict[str, Any]) -> list[dict[str, Any]]:
    return [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]


@pytest.mark.parametrize("name", ["slicepilot", "slicepilot-cluster", "slicepilot-kubernetes"])
def test_queries_of_dashboards_are_valid(name: str, tmp_path: Path) -> None:
    queries = dashboard_queries(name)
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in promtool("check", "rules", file)
    if name == "slicepilot-cluster":
        recorded = yaml.safe_load((DEPLOY / "prometheus" / "recording.yaml").read_text())["groups"][0]["rules"]
        assert {query for query in queries if not query.startswith("ALERTS")} == {rule["record"] for rule in recorded}


def test_the_servers_configuration_is_valid() -> None:
    assert "SUCCESS" in promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yaml")


# -- dashboard ---------------------------------------------------------------------------------------------------------


def dashboard(name: str = "slicepilot") -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DEPLOY / "grafana" / f"{name}.json").read_text())
    return document


def dashboard_queries(name: str = "slicepilot") -> list[str]:
    """All expressions with the variables filled in, as Grafana does it."""
    panels = [panel for panel in dashboard(name)["panels"] if panel["type"] != "row"]
    result = [target["expr"] for panel in panels for target in panel["targets"]]
    filled = {"$__rate_interval": f"{LAST_QUERIES_S}s", "$instance": ".*", "$sliceset": ".*", "$slice": ".*"}
    for variable, value in (filled | {"$namespace": ".*"}).items():
        result = [query.replace(variable, value) for query in result]
    assert not [query for query in result if "$" in query]
    return result


# -- a node ------------------------------------------------------------------------------------------------------------


class Loop:
    """Writes ticks and delays as a loop does, from a thread."""

    def __init__(self, path: Path) -> None:
        s = len(SLICES)
        self.ring = TickRing(path, s)
        self.tick = Tick(mode=Mode.CANARY, observe_ns=20_000, infer_ns=30_000, guard_ns=10_000, apply_ns=40_000)
        self.telemetry = Telemetry.empty(s)
        self.telemetry.slices[:2] = 40.0
        self.telemetry.slices[1, 1] = 30.0
        self.telemetry.slices[3] = 2000.0
        self.wanted, self.applied = Knobs.none(s), Knobs.none(s)
        self.applied.cpu_limit_mcpu[0], self.applied.nice[0], self.applied.egress_mbps[0] = 500, -5, 80
        self.reasons = np.full(s, Reason.SLEW.bit, np.uint32)
        self.reasons[0] |= Reason.SLA_FLOOR.bit
        self.ticks = 0
        # The same delays again every second, so that every window has their quantiles.
        random = np.random.default_rng(0)
        self.delays_s = np.exp(random.normal(np.log([[1e-3], [2e-3], [5e-4], [1e-3], [8e-3]]), 0.7, (s, PACKETS_PER_S)))
        bucket = np.searchsorted(edges_ns(), 1e9 * self.delays_s, side="right") - 1
        self._counts = np.stack([np.bincount(row, minlength=BUCKETS) for row in bucket]).astype(np.uint32)
        self._describe()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _describe(self) -> None:
        run = {"run_id": "r", "name": "sp", "version": "0.1.0", "backend": "testbed", "agent": "captain"}
        run |= {"bundle": None, "slice_set": dataclasses.asdict(SLICES), "period_s": PERIOD_S, "budget_s": 0.002}
        run |= {"logical_cpus": 2.0, "uplink_mbps": 1000.0, "pid": os.getpid(), "started_ns": time.time_ns()}
        self.ring.describe(run | {"scheduling": "SCHED_FIFO", "nice_scope": "group", "hardware": "testbed"})

    def _note(self) -> None:
        foreign = {"slice": "slice2", "knob": "nice", "found": 1, "ours": 2, "policy": "respect"}
        notes = {"mode": "canary", "paused": False, "ordered_safe": False, "canary": ["slice1"], "unmeasured": []}
        notes |= {"foreign": [foreign], "supervisor": {"pid": 1, "restarts": 0, "alive": True}}
        notes |= {"publisher_restarts": 0, "last_error": None, "reload": {"time_ns": 1, "ok": True, "detail": ""}}
        totals = dict.fromkeys(("missed_ticks", "late_ticks", "unusable", "failed_applies"), 0)
        self.ring.note(notes | {"totals": totals | {"ticks": self.ticks}})

    def _run(self) -> None:
        while not self._done.wait(PERIOD_S):
            if self.ticks % round(1 / PERIOD_S) == 0:
                self._note()
                self.ring.delays(self._counts * np.uint32(1 + self.ticks * PERIOD_S))
            self.ticks += 1
            tick = self.tick._replace(time_ns=time.time_ns(), monotonic_ns=time.monotonic_ns())
            self.ring.write(tick, self.telemetry, self.wanted, self.applied, self.applied, self.reasons)

    def __enter__(self) -> Loop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.ring.close()


@dataclass
class Server:
    """A Prometheus server over one publisher."""

    url: str
    metrics: str
    loop: Loop

    def get(self, path: str, **arguments: str) -> Any:
        query = urllib.parse.urlencode(arguments)
        with urllib.request.urlopen(f"{self.url}{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        return self.get("/api/v1/query", query=expression)["result"]

    def values(self, expression: str, label: str) -> dict[str, float]:
        return {item["metric"].get(label, ""): float(item["value"][1]) for item in self.query(expression)}


def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """What a condition gives once it holds."""
    end, failure = time.monotonic() + timeout_s, None
    while time.monotonic() < end:
        try:
            if result := condition():
                return result
        except OSError as error:
            failure = error
        time.sleep(0.2)
    raise AssertionError(f"does not come about: {failure}")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    program = tool("prometheus")
    # Not below pytest's own folder: the publisher runs as a user who may not look into that.
    folder = Path(tempfile.mkdtemp(prefix="slicepilot-prometheus-"))
    folder.chmod(0o755)
    for name in ("run", "state"):
        (folder / name).mkdir()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with Loop(folder / "run" / "ticks") as loop, ours:
            options = PublisherOptions(
                run=folder / "run", state=folder / "state", listen="127.0.0.1:0", log="off", estimate_s=0
            )
            publisher = Publisher.start(options, theirs)
            try:
                target = f"127.0.0.1:{publisher.http_port}"
                with PrometheusProcess(program, folder, target) as url:
                    yield Server(url, f"http://{target}/metrics", loop)
            finally:
                publisher.stop()
    finally:
        shutil.rmtree(folder)


@dataclass
class PrometheusProcess:
    """The server's process, in a ``with`` block; small, on loopback, with what is shipped as its configuration."""

    program: str
    folder: Path
    target: str

    def __enter__(self) -> str:
        configuration = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
        configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        configuration["scrape_configs"][0]["static_configs"][0]["targets"] = [self.target]
        (self.folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
        for name in ("alerts.yaml", "recording.yaml"):
            shutil.copy(DEPLOY / "prometheus" / name, self.folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.process = subprocess.Popen(
            [
                self.program,
                f"--config.file={self.folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={self.folder / 'data'}",
                "--storage.tsdb.retention.size=64MB",
                f"--web.listen-address={address}",
                "--query.max-samples=1000000",
                "--log.level=error",
            ],
            env={"GOMEMLIMIT": "128MiB", "GOMAXPROCS": "1", "PATH": os.environ["PATH"]},
            cwd=self.folder,
        )
        return f"http://{address}"

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture(scope="module")
def filled(server: Server) -> Server:
    """A server that has scraped for longer than the queries look back."""
    until(lambda: server.query(f"count_over_time(up[1m]) > {LAST_QUERIES_S + 5}"), 60)
    return server


def test_every_metric_in_use_is_one_that_the_publisher_has(filled: Server) -> None:
    with urllib.request.urlopen(filled.metrics, timeout=10) as answer:
        text = answer.read().decode()
    exposed = set(re.findall(r"^([a-z_]\w*)(?:\{| )", text, re.MULTILINE))
    recorded = yaml.safe_load((DEPLOY / "prometheus" / "recording.yaml").read_text())["groups"][0]["rules"]
    queries = [*dashboard_queries(), *(rule["expr"] for rule in (*alerts(), *recorded))]
    for variable in dashboard()["templating"]["list"][1:]:
        queries += re.findall(r"label_values\((.*), \w+\)", variable["definition"])
    used = {name for query in queries for name in re.findall(r"\b(?:slicepilot|process)_\w+", query)}
    assert len(used) > 30
    assert used - exposed == set()


def test_the_dashboard_shows_something_everywhere(filled: Server) -> None:
    assert [query for query in dashboard_queries() if not filled.query(query)] == []


def test_quantiles_of_the_delay_are_those_of_the_packets(filled: Server) -> None:
    for level in (0.5, 0.99):
        result = filled.values(
            f"histogram_quantile({level}, sum by (slice, le) "
            f"(rate(slicepilot_slice_delay_seconds_bucket[{LAST_QUERIES_S}s])))",
            "slice",
        )
        true = dict(zip(SLICES.names, np.quantile(filled.loop.delays_s, level, axis=1).tolist(), strict=True))
        off = {name: result[name] / true[name] - 1 for name in SLICES.names}
        print(f"quantile {level}: off by", {name: f"{100 * error:+.1f}%" for name, error in off.items()})
        assert result == pytest.approx(true, rel=0.15)


def test_counts_and_rates_are_those_of_the_ticks(filled: Server) -> None:
    window = f"[{LAST_QUERIES_S}s]"
    carried = filled.values(f"8e-6 * rate(slicepilot_slice_carried_bytes_total{window})", "slice")
    assert carried == pytest.approx({name: 30.0 if name == "slice2" else 40.0 for name in SLICES.names}, rel=0.1)
    packets = filled.values(f"rate(slicepilot_slice_delay_seconds_count{window})", "slice")
    [ticks] = filled.query(f"sum(rate(slicepilot_decisions_total{window}))")  # fewer than planned on a busy machine
    expected = PACKETS_PER_S * PERIOD_S * float(ticks["value"][1])
    assert packets == pytest.approx(dict.fromkeys(SLICES.names, expected), rel=0.3)
    knobs = filled.values('slicepilot_slice_cpu_limit_cores{stage="applied"}', "slice")
    assert knobs == dict.fromkeys(SLICES.names, float("inf")) | {"slice1": 0.5}
    assert filled.values("slicepilot_mode == 1", "mode") == {"canary": 1}
    assert filled.values("slicepilot_slice_acting == 1", "slice") == {"slice1": 1}
    [stage] = filled.query(
        f'histogram_quantile(0.5, rate(slicepilot_loop_stage_seconds_bucket{{stage="infer"}}{window}))'
    )
    assert float(stage["value"][1]) == pytest.approx(30e-6, rel=0.35)


def test_all_rules_evaluate_and_what_is_wrong_fires(filled: Server) -> None:
    def firing() -> set[str]:
        return {
            item["labels"]["alertname"] for item in filled.get("/api/v1/alerts")["alerts"] if item["state"] == "firing"
        }

    def rules() -> list[dict[str, Any]]:
        return [rule for group in filled.get("/api/v1/rules")["groups"] for rule in group["rules"]]

    # Recording rules have an interval of their own (30 s), so that their first turn may be yet to come.
    until(lambda: all(rule["health"] != "unknown" for rule in rules()), 60)
    assert len([rule for rule in rules() if rule["type"] == "alerting"]) == len(alerts())
    assert [rule["lastError"] for rule in rules() if rule["health"] != "ok"] == []
    assert {"SlicepilotForeignChange", "SlicepilotGuardIntervenes"} <= until(firing)
    assert "SlicepilotGuardLatched" not in firing()
    filled.loop.tick = filled.loop.tick._replace(level=Level.LATCHED)
    until(lambda: "SlicepilotGuardLatched" in firing())
