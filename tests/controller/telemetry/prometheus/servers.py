"""A real Prometheus server, an exporter of a real cgroup and interface by cAdvisor's names, a hostile server."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from slicepilot.controller.telemetry.prometheus.config import TAG

TOOLS = Path(__file__).parents[4] / "build" / "tools" / "usr" / "bin"
SCRAPE_S = 1.0
PINGS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
Handler = Callable[[http.server.BaseHTTPRequestHandler], None]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(handle: Handler) -> Iterator[str]:
    """An HTTP server on loopback for as long as that is."""

    class Requests(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                # What is not read makes the kernel reset the connection when it is closed, amid a long answer.
                self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                handle(self)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(request: http.server.BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def vector(value: str = "1.5", taken_s: float | None = None, slices: int = 1) -> bytes:
    """What a server says that has everything."""
    now = time.time()
    kinds = {"v": value, "t": f"{now if taken_s is None else taken_s}"}
    samples = [(f"{s}:{kind}", text) for s in range(slices) for kind, text in kinds.items()]
    result = [{"metric": {TAG: tag}, "value": [now, text]} for tag, text in samples]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


@dataclass
class Pod:
    """What cAdvisor says of a container and its network, as it is now.

    Attributes:
        group: its CPU cgroup, version 1 with cpuacct beside it, or 2.
        pid: of a process in its network namespace: cAdvisor reads /proc/PID/net/dev as well.
        hidden: metrics that are left out, by the beginning of their names.
        more: lines that come on top.
        pings: (seconds, count) of round trips so far, by upper bound.
    """

    name: str
    group: Path | None = None
    pid: int | None = None
    hidden: tuple[str, ...] = ()
    more: list[str] = field(default_factory=list)
    pings: dict[float, int] = field(default_factory=lambda: dict.fromkeys((*PINGS_S, float("inf")), 0))
    ping_s: float | None = 0.004
    quota: str | None = None

    def text(self) -> str:
        lines = [line for line in self._lines() if not line.startswith(self.hidden or ("#",))]
        return "".join(f"{line}\n" for line in [*lines, *self.more])

    def cpu_s(self) -> float:
        assert self.group is not None
        if (self.group / "cpu.stat").exists() and "usage_usec" in (text := (self.group / "cpu.stat").read_text()):
            return 1e-6 * int(text.split("usage_usec")[1].split()[0])
        accounts = Path(str(self.group).replace("/cpu/", "/cpuacct/")) / "cpuacct.usage"
        if accounts.exists():
            return 1e-9 * int(accounts.read_text())
        # A group of the CPU controller alone: what its one process has used (proc_pid_stat(5)).
        columns = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(columns[11]) + int(columns[12])) / os.sysconf("SC_CLK_TCK")

    def periods(self) -> tuple[int, int]:
        assert self.group is not None
        words = (self.group / "cpu.stat").read_text().split()
        return int(words[words.index("nr_periods") + 1]), int(words[words.index("nr_throttled") + 1])

    def octets(self) -> dict[str, tuple[int, int, int, int]]:
        """By interface: octets and packets received, octets and packets sent."""
        result = {}
        for line in Path(f"/proc/{self.pid}/net/dev").read_text().splitlines()[2:]:
            device, _, figures = line.partition(":")
            columns = [int(word) for word in figures.split()]
            result[device.strip()] = columns[0], columns[1], columns[8], columns[9]
        return result

    def _counters(self) -> Iterator[tuple[str, float]]:
        pod = f'namespace="core",pod="{self.name}"'
        if self.group is not None:
            item = f'{{{pod},container="upf",cpu="total",id="/kubepods/{self.name}",image="upf",name="c1"}}'
            periods, throttled = self.periods()
            yield f"container_cpu_usage_seconds_total{item}", self.cpu_s()
            item = item.replace('cpu="total",', "")
            yield f"container_cpu_cfs_periods_total{item}", periods
            yield f"container_cpu_cfs_throttled_periods_total{item}", throttled
        if self.pid is not None:
            for device, columns in self.octets().items():
                item = f'{{{pod},container="",interface="{device}",id="/kubepods/{self.name}",image="pause",name="p1"}}'
                names = ("receive_bytes", "receive_packets", "transmit_bytes", "transmit_packets")
                for name, value in zip(names, columns, strict=True):
                    yield f"container_network_{name}_total{item}", value

    def _lines(self) -> Iterator[str]:
        for name, value in self._counters():
            yield f"{name} {value:.9f}"
        if self.quota is not None:
            item = f'{{namespace="core",pod="{self.name}",container="upf"}}'
            yield f"container_spec_cpu_quota{item} {self.quota}"
            yield f"container_spec_cpu_period{item} 100000"
        if self.ping_s is not None:
            for _ in range(50):
                for bound in self.pings:
                    self.pings[bound] += self.ping_s <= bound
        item = f'host="10.45.0.{self.name[-1]}",ip="10.45.0.{self.name[-1]}",source=""'
        for bound, count in self.pings.items():
            le = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f'smokeping_response_duration_seconds_bucket{{{item},le="{le}"}} {count}'
        yield f"smokeping_response_duration_seconds_count{{{item}}} {self.pings[float('inf')]}"


@contextlib.contextmanager
def exporting(pods: list[Pod]) -> Iterator[str]:
    """Address of an exporter of pods; each look is as things are then."""

    def show(request: http.server.BaseHTTPRequestHandler) -> None:
        text = "".join(pod.text() for pod in pods)
        answer(request, text.encode(), Content_Type="text/plain; version=0.0.4")

    with serving(show) as address:
        yield address


class Prometheus:
    """The server's process, small, on loopback; `start` and `stop` it as often as you like.

    Args:
        folder: for configuration and data.
        target: address that it scrapes.
        web: of its `--web.config.file`: TLS and users.
    """

    def __init__(self, folder: Path, target: str, web: dict[str, Any] | None = None) -> None:
        program = shutil.which("prometheus", path=f"{TOOLS}{os.pathsep}{os.environ['PATH']}")
        if program is None:
            pytest.skip("needs prometheus: tests/packages.sh")
        self.folder, self.port, self._program = folder, free_port(), program
        self.scheme = "https" if web and "tls_server_config" in web else "http"
        self.process: subprocess.Popen[bytes] | None = None
        self.retention = "1d"
        folder.mkdir(parents=True, exist_ok=True)
        scrape = {"job_name": "pods", "static_configs": [{"targets": [target]}], "honor_timestamps": True}
        interval = f"{SCRAPE_S:g}s"
        configuration = {
            "global": {"scrape_interval": interval, "scrape_timeout": interval},
            "scrape_configs": [scrape],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
        (folder / "web.yaml").write_text(yaml.safe_dump(web or {}))
        self.start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                self._program,
                f"--config.file={self.folder / 'prometheus.yaml'}",
                f"--web.config.file={self.folder / 'web.yaml'}",
                f"--storage.tsdb.path={self.folder / 'data'}",
                f"--storage.tsdb.retention.time={self.retention}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--log.level=error",
            ],
            env={"GOMEMLIMIT": "128MiB", "GOMAXPROCS": "1", "PATH": os.environ["PATH"]},
            cwd=self.folder,
        )
        end = time.monotonic() + 20.0
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                if self.scheme == "https" or self._ready():
                    return
            time.sleep(0.1)
        raise AssertionError("prometheus does not start")

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2.0):
                return True
        except urllib.error.HTTPError as error:
            return error.code == 401

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(20)
            self.process = None


@dataclass
class Compatible:
    """What speaks the API of Prometheus with habits of its own: limits on queries, warnings, tenants.

    Attributes:
        most_query_bytes: longer queries are refused; most_url_bytes: longer request lines; most_points: of a series.
        status: of such refusals.
        get_alone: whether POST is refused.
        tenant: the header X-Scope-OrgID that is required; None requires none.
        more: fields of the answer beside ``data``.
        partial_rows: where given, only answers to queries with one of these texts have ``more``.
        queries: lengths of those that were answered.
    """

    most_query_bytes: int = 1 << 20
    most_url_bytes: int = 1 << 20
    most_points: int = 1 << 20
    status: int = 422
    get_alone: bool = False
    tenant: str | None = None
    more: dict[str, Any] = field(default_factory=dict)
    partial_rows: tuple[str, ...] = ("",)
    queries: list[int] = field(default_factory=list)

    def handle(self, request: http.server.BaseHTTPRequestHandler, body: str) -> None:
        form = body or urlsplit(request.path).query
        parameters = dict(parse_qsl(form))
        query = parameters["query"]
        if self.get_alone and request.command != "GET":
            answer(request, b"read only", 405)
        elif self.tenant is not None and request.headers["X-Scope-OrgID"] != self.tenant:
            answer(request, b"no org id\n", 401)
        elif len(request.requestline) > self.most_url_bytes:
            answer(request, b"<html><title>414 Request-URI Too Large</title></html>", 414)
        elif len(query) > self.most_query_bytes:
            self._refuse(request, f"too long query; got {len(query)} bytes; mustn't exceed {self.most_query_bytes}")
        elif "start" in parameters and self._points(parameters) > self.most_points:
            self._refuse(request, f"exceeded maximum resolution of {self.most_points} points per timeseries")
        else:
            self.queries.append(len(query))
            answer(request, self._answer(parameters))

    def _refuse(self, request: http.server.BaseHTTPRequestHandler, why: str) -> None:
        answer(request, json.dumps({"status": "error", "errorType": "execution", "error": why}).encode(), self.status)

    def _points(self, parameters: dict[str, str]) -> int:
        start, end, step = (float(parameters[name]) for name in ("start", "end", "step"))
        return int((end - start) / step) + 1

    def _answer(self, parameters: dict[str, str]) -> bytes:
        """One for each value; each sample is two seconds old."""
        times, kind = [time.time()], "value"
        if "start" in parameters:
            start, step = float(parameters["start"]), float(parameters["step"])
            times, kind = [start + step * n for n in range(self._points(parameters))], "values"
        result = []
        for tag in re.findall(rf'"{TAG}", "([0-9]+:[vt])"', parameters["query"]):
            points = [[at, f"{at - 2:.3f}" if tag.endswith("t") else "1.5"] for at in times]
            result.append({"metric": {TAG: tag, "replica": ""}, kind: points if kind == "values" else points[0]})
        more = self.more if any(text in parameters["query"] for text in self.partial_rows) else {}
        return json.dumps({"status": "success", "data": {"result": result}} | more).encode()


@contextlib.contextmanager
def compatible(**habits: Any) -> Iterator[tuple[str, Compatible]]:
    """Address of a server with these habits, and the server."""
    server = Compatible(**habits)

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        server.handle(request, request.body.decode())  # type: ignore[attr-defined]

    with serving(handle) as address:
        yield address, server
