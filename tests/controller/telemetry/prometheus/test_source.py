"""Telemetry from a real Prometheus server of a real cgroup and interface, and from servers that are down or hostile."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.configs import ConfigError, FailureError, validate
from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.telemetry.prometheus.client import Client
from slicepilot.controller.telemetry.prometheus.config import (
    TAG,
    PrometheusSpec,
    Queries,
    check_period,
    check_spec,
    rows_of,
)
from slicepilot.controller.telemetry.prometheus.source import PrometheusSource
from tests.controller.conftest import remove_group
from tests.controller.namespaces import Namespace
from tests.node.traffic import ending

from .servers import SCRAPE_S, Pod, Prometheus, answer, compatible, exporting, serving

PERIOD_S = 2 * SCRAPE_S
QUOTA_RATIO = 0.3
# Ten datagrams of 1000 octets a second, at least, by a process that does nothing else.
DATAGRAMS = """
import socket, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    sender.sendto(bytes(1000), ("10.231.7.2", 9))
    time.sleep(0.002)
"""


def spec_of(url: str, pods: tuple[str, ...] = ("upf-1",), **more: Any) -> PrometheusSpec:
    """Of slices s1, s2 and so on, one pod each."""
    slices = {
        f"s{number}": {"namespace": "core", "pod": pod, "container": "upf", "ping": f"10.45.0.{pod[-1]}"}
        for number, pod in enumerate(pods, 1)
    }
    given = {"url": url, "slices": slices, "scrape_interval_s": SCRAPE_S, **more}
    return validate(PrometheusSpec, given, "test")


@contextlib.contextmanager
def source_of(spec: PrometheusSpec, **more: Any) -> Iterator[PrometheusSource]:
    with PrometheusSource(spec, tuple(spec.slices), PERIOD_S, **more) as source:
        yield source


def until(what: Callable[[], Any], seconds: float = 15.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := what():
            return result
        time.sleep(0.1)
    raise AssertionError("does not come about")


def answers(spec: PrometheusSpec) -> bool:
    """Whether two scrapes are in."""
    try:
        with source_of(spec):
            return True
    except FailureError:
        return False


def valid(source: PrometheusSource) -> list[bool]:
    return source.measure().valid[:, 0].tolist()


def reported(source: PrometheusSource, words: str) -> list[str]:
    """What the source has to report that has these words."""
    source.measure()
    return [line for line in source.check() if re.search(words, line)]


# -- a real group, a real interface, a real server ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def pod() -> Iterator[Pod]:
    """A group of the CPU controller with a busy process and a quota, and a namespace with a veth that packets pass."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    hierarchy = CpuHierarchy.find()
    group = hierarchy.root / f"prom{os.getpid()}"
    groups = [group]
    if hierarchy.version == 1 and not (group.parent / "cpuacct.usage").exists():
        groups.append(Path("/sys/fs/cgroup/cpuacct") / group.name)
    quota_us, device = round(QUOTA_RATIO * 100_000), f"hp{os.getpid()}"
    with contextlib.ExitStack() as undo:
        for item in groups:
            item.mkdir(exist_ok=True)
            undo.callback(remove_group, item)
        file, text = (
            ("cpu.cfs_quota_us", f"{quota_us}") if hierarchy.version == 1 else ("cpu.max", f"{quota_us} 100000")
        )
        (group / file).write_text(text)
        home = undo.enter_context(contextlib.closing(Namespace()))
        add = f"ip link add {device} type veth peer name eth0 netns {home.pid}"
        host = f"{add}; ip addr add 10.231.7.1/24 dev {device}; ip link set {device} up"
        subprocess.run(["sh", "-ec", host], check=True)
        home.sh("ip addr add 10.231.7.2/24 dev eth0; ip link set eth0 up")
        commands = (
            ["nsenter", f"--net={home.path}", "sh", "-c", "while :; do :; done"],
            [sys.executable, "-c", DATAGRAMS],
        )
        busy, _ = (undo.enter_context(ending(subprocess.Popen(command))) for command in commands)
        for item in groups:
            (item / "cgroup.procs").write_text(str(busy.pid))
        yield Pod("upf-1", group, busy.pid, quota="30000")


@pytest.fixture(scope="module")
def other() -> Pod:
    """A pod of which there are pings alone."""
    return Pod("upf-2")


@pytest.fixture(scope="module")
def server(pod: Pod, other: Pod, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with exporting([pod, other]) as target:
        running = Prometheus(tmp_path_factory.mktemp("prometheus"), target)
        try:
            until(lambda: answers(spec_of(running.url)))
            yield running
        finally:
            running.stop()


@pytest.fixture
def whole(pod: Pod, other: Pod, server: Prometheus) -> Iterator[Prometheus]:
    """The server, with everything put right again that a test has changed."""
    yield server
    pod.hidden, pod.more, pod.ping_s = (), [], 0.004
    other.more = []
    if server.process is None:
        server.start()
    until(lambda: answers(spec_of(server.url)), 30.0)


def test_figures_are_those_of_the_group_and_the_interface(pod: Pod, whole: Prometheus) -> None:
    with source_of(spec_of(whole.url), uplink_mbps=100.0) as source:
        source.measure()
        began_s, cpu_s, periods, octets = time.monotonic(), pod.cpu_s(), pod.periods(), pod.octets()["eth0"]
        time.sleep(5.0)
        passed_s = time.monotonic() - began_s
        telemetry = source.measure()
        assert telemetry.valid.all()
        true_mcpu = 1e3 * (pod.cpu_s() - cpu_s) / passed_s
        ended, throttled = (now - then for now, then in zip(pod.periods(), periods, strict=True))
        received = [now - then for now, then in zip(pod.octets()["eth0"], octets, strict=True)]
        true_mbps = 8e-6 * (received[0] - 58 * received[1]) / passed_s
        print(f"CPU {telemetry.cpu_use_mcpu.item():.0f} of {true_mcpu:.0f} mCPU,", end=" ")
        print(f"offered {telemetry.offered_mbps.item():.3f} of {true_mbps:.3f} Mbit/s")
        assert telemetry.cpu_use_mcpu.item() == pytest.approx(true_mcpu, rel=0.25)
        assert telemetry.throttled_ratio.item() == pytest.approx(throttled / ended, abs=0.25)
        assert telemetry.offered_mbps.item() == pytest.approx(true_mbps, rel=0.25)
        # All pings took 4 ms: between 2 and 5, and the quantile lies in that bucket.
        assert 2_000 < telemetry.delay_p50_us.item() < telemetry.delay_p99_us.item() <= 5_000
        assert telemetry.runqueue_delay_us.item() == 0
        assert 0 <= telemetry.age_s.item() <= 2.5 * SCRAPE_S
        carried, offered = telemetry.carried_mbps.item(), telemetry.offered_mbps.item()
        assert telemetry.loss_ratio.item() == pytest.approx(max(1 - carried / offered, 0), abs=1e-3)
        assert telemetry.uplink_use_ratio.item() == pytest.approx(carried / 100.0, rel=1e-3)
        assert source.check() == []
        assert source.delay_counts().sum() == 0


def test_a_server_that_goes_makes_figures_old_and_one_that_comes_back_is_believed(whole: Prometheus) -> None:
    with source_of(spec_of(whole.url)) as source:
        whole.stop()
        ages = []
        for _ in range(4):
            ages.append(source.measure().age_s.item())
            time.sleep(0.4)
        assert ages == sorted(ages)
        until(lambda: valid(source) == [False])
        assert not source.measure().slices.any()
        assert source.measure().age_s.item() > source.queries.most_age_s
        assert reported(source, "cannot be reached: Connection refused")
        whole.start()
        until(lambda: valid(source) == [True], 30.0)
        until(lambda: source.check() == [])


def test_nobody_waits_for_a_server_that_hangs(whole: Prometheus) -> None:
    with source_of(spec_of(whole.url, timeout_s=1.0)) as source:
        assert whole.process is not None
        whole.process.send_signal(signal.SIGSTOP)
        try:
            took = []
            end = time.monotonic() + 5.0
            while time.monotonic() < end:
                began = time.perf_counter()
                source.measure()
                took.append(time.perf_counter() - began)
                time.sleep(0.005)
            print(f"measure: median {1e6 * statistics.median(took):.0f} us, longest {1e3 * max(took):.2f} ms")
            assert statistics.median(took) < 0.001
            assert reported(source, "no answer within 1 s")
            assert valid(source) == [False]
        finally:
            whole.process.send_signal(signal.SIGCONT)
        until(lambda: valid(source) == [True], 30.0)


def test_a_series_that_goes_takes_its_slice_and_no_other(pod: Pod, other: Pod, whole: Prometheus) -> None:
    third = [line.replace("upf-1", "upf-2").replace("c1", "c2") for line in pod._lines() if "network" in line]
    third += [line.replace("upf-1", "upf-2") for line in pod._lines() if line.startswith("container_cpu")]
    other.more = third
    with source_of(spec_of(whole.url, ("upf-1", "upf-2"))) as source:
        until(lambda: valid(source) == [True, True])
        pod.hidden = ("container_cpu_usage",)
        until(lambda: valid(source) == [False, True])
        assert reported(source, "s1: cpu_use_mcpu: no series fits container_cpu_usage_seconds_total")
        assert not source.measure().slices[:, 0].any()
        pod.hidden = ()
        until(lambda: valid(source) == [True, True])


def test_two_series_for_one_slice_are_none(pod: Pod, whole: Prometheus) -> None:
    with source_of(spec_of(whole.url)) as source:
        item = '{namespace="core",pod="upf-1",container="upf",cpu="total",id="/kubepods/other",image="upf",name="c9"}'
        pod.more = [f"container_cpu_usage_seconds_total{item} 7"]
        until(lambda: valid(source) == [False])
        assert reported(source, "cpu_use_mcpu: 2 series fit")
        assert reported(source, "expected one; they differ in id, name")


def test_pings_that_nobody_answers_are_no_delay(pod: Pod, whole: Prometheus) -> None:
    pod.ping_s = None
    with source_of(spec_of(whole.url)) as source:
        until(lambda: valid(source) == [False])
        assert reported(source, "delay_p99_us: its query gives nan, which is not believed")


# -- authentication --------------------------------------------------------------------------------------------------


def certificate(folder: Path, name: str, issuer: tuple[str, str] | None = None) -> tuple[str, str]:
    """Files of a certificate for this machine and of its key; without an issuer it is an authority's."""
    file, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    signed = [] if issuer is None else ["-CA", issuer[0], "-CAkey", issuer[1]]
    options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", *options, *names, "-keyout", key, "-out", file, *signed]
    subprocess.run(command, check=True, capture_output=True)
    return file, key


def test_tls_names_users_and_certificates(pod: Pod, tmp_path: Path) -> None:
    authority = certificate(tmp_path, "authority")
    ca, (strange, _) = authority[0], certificate(tmp_path, "stranger")
    (file, key), (mine, my_key) = (certificate(tmp_path, name, authority) for name in ("server", "client"))
    tls = {"cert_file": file, "key_file": key, "client_ca_file": ca, "client_auth_type": "RequireAndVerifyClientCert"}
    password = tmp_path / "password"
    password.write_text("wrong\n")
    password.chmod(0o600)
    with exporting([pod]) as target:
        web = {"tls_server_config": tls, "basic_auth_users": {"slicepilot": bcrypt("secret")}}
        server = Prometheus(tmp_path / "data", target, web)
        try:
            user = {"user": "slicepilot", "password_file": str(password)}
            client = {"file": mine, "key_file": my_key}
            good = {"ca_file": ca, "client_certificate": client, "basic_auth": user}
            refused = {
                "answers 401: .*the client is not known": good,
                "certificate verify failed": {**good, "ca_file": strange},
                "cannot be reached": {"ca_file": ca, "basic_auth": user},
            }
            for words, settings in refused.items():
                with pytest.raises(FailureError, match=words):
                    PrometheusSource(spec_of(server.url, **settings), ("s1",), PERIOD_S)
            password.write_text("secret\n")
            until(lambda: answers(spec_of(server.url, **good)), 20.0)
            with source_of(spec_of(server.url, **good)) as source:
                # What is in a file now is what is used: the first is refused, the second let in.
                password.write_text("changed\n")
                until(lambda: reported(source, "answers 401"))
                password.write_text("secret\n")
                until(lambda: source.check() == [] and valid(source) == [True])
        finally:
            server.stop()


def bcrypt(word: str) -> str:
    """Of a password, by the C library's crypt(3) (crypt(5), "bcrypt")."""
    import ctypes

    library = ctypes.CDLL("libcrypt.so.1")
    library.crypt.restype = ctypes.c_char_p
    return library.crypt(word.encode(), b"$2b$05$abcdefghijklmnopqrstuu").decode()


# -- servers that are not what they should be --------------------------------------------------------------------------


def vector(value: str = "1.5", taken_s: float | None = None, slices: int = 1) -> bytes:
    """What a server says that has everything."""
    now = time.time()
    kinds = {"v": value, "t": f"{now if taken_s is None else taken_s}"}
    samples = [(f"{s}:{kind}", text) for s in range(slices) for kind, text in kinds.items()]
    result = [{"metric": {TAG: tag}, "value": [now, text]} for tag, text in samples]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def endless(request: http.server.BaseHTTPRequestHandler, pause_s: float = 0.0, status: int = 200) -> None:
    request.send_response(status)
    request.send_header("Location", "http://elsewhere.example/api/v1/query")
    request.end_headers()
    chunk = b" " if pause_s else bytes(1 << 20)
    for _ in range(1 << 10):
        request.wfile.write(chunk)
        time.sleep(pause_s)


BAD: dict[str, tuple[Callable[[Any], None], str]] = {
    "a gigabyte": (endless, r"answers with more than 1 MB \(most_mbytes\)"),
    "a redirect with a gigabyte": (lambda r: endless(r, status=302), "answers 302, a redirect to elsewhere.example"),
    "a byte now and then": (lambda r: endless(r, 0.2), "no answer within 1 s"),
    "slow": (lambda r: time.sleep(10), "no answer within 1 s"),
    "NaN": (lambda r: answer(r, vector("NaN")), "its query gives nan, which is not believed"),
    "Inf": (lambda r: answer(r, vector("+Inf")), "its query gives inf, which is not believed"),
    "too much": (lambda r: answer(r, vector("1e300")), r"its query gives 1e\+300, which is not believed"),
    "negative": (lambda r: answer(r, vector("-3")), "its query gives -3, which is not believed"),
    "old": (lambda r: answer(r, vector(taken_s=time.time() - 90)), r"the newest sample of .* is 90 s old"),
    "from the future": (lambda r: answer(r, vector(taken_s=time.time() + 90)), "are 90 s ahead of this machine's"),
    "no JSON": (lambda r: answer(r, b"<html>hello</html>"), "not an answer of a Prometheus server"),
    "deep JSON": (lambda r: answer(r, b"[" * 500_000), "not an answer of a Prometheus server"),
    "another JSON": (lambda r: answer(r, b'{"data": {"result": [7]}}'), "not an answer of a Prometheus server"),
    "no number": (lambda r: answer(r, vector("many")), "a value that is no number"),
    "compressed": (lambda r: answer(r, b"x", Content_Encoding="gzip"), "answers compressed"),
    "401": (
        lambda r: answer(r, b"", 401),
        "answers 401: .*the client is not known: give token_file",
    ),
    "503": (lambda r: answer(r, b"\x1b[2Jaway", 503), r"answers 503: \?\[2Jaway$"),
    "an error": (lambda r: answer(r, b'{"error": "\\u001b[2J no"}', 422), r"offered_mbps: answers 422: \?\[2J no"),
}


@pytest.mark.parametrize("name", ["503", "another JSON", "a byte now and then"])
def test_a_hostile_server_at_the_start_is_one_line(name: str) -> None:
    handle, words = BAD[name]
    with serving(handle) as address:
        began = time.monotonic()
        with pytest.raises(FailureError, match=words) as caught:
            PrometheusSource(spec_of(f"http://{address}", timeout_s=1.0, most_mbytes=1.0), ("s1",), PERIOD_S)
        assert time.monotonic() - began < 8.0
        assert str(caught.value).isprintable()


def test_a_redirect_is_not_followed_and_the_token_stays_here(tmp_path: Path) -> None:
    requested: list[str | None] = []

    def note(request: http.server.BaseHTTPRequestHandler) -> None:
        requested.append(request.headers["Authorization"])
        answer(request, vector())

    token = tmp_path / "token"
    token.write_text("of-us-alone\n")
    with serving(note) as other:

        def lead(request: http.server.BaseHTTPRequestHandler) -> None:
            requested.append(request.headers["Authorization"])
            answer(request, b"", 307, Location=f"http://{other}/api/v1/query")

        with serving(lead) as address:
            spec = spec_of(f"http://{address}", token_file=str(token))
            with pytest.raises(FailureError, match=rf"answers 307, a redirect to {other}: set url"):
                PrometheusSource(spec, ("s1",), PERIOD_S)
    assert requested == ["Bearer of-us-alone"]


def test_a_server_that_turns_hostile_takes_nothing_with_it() -> None:
    """One after the other, on a source that has begun well; a proxy of the environment is not used."""
    good: Callable[[Any], None] = lambda request: answer(request, vector("0.5"))  # noqa: E731
    now: list[Any] = [good]
    os.environ["http_proxy"] = "http://127.0.0.1:1"
    try:
        with (
            serving(lambda request: now[0](request)) as address,  # noqa: PLW0108 (another each time)
            source_of(spec_of(f"http://{address}", timeout_s=1.0, most_mbytes=1.0)) as source,
        ):
            for bad, words in BAD.values():
                now[0] = bad
                lines = until(lambda words=words: reported(source, words))
                assert all(line.isprintable() for line in lines)
                now[0] = good
                until(lambda: valid(source) == [True] and source.check() == [])
    finally:
        del os.environ["http_proxy"]


# -- settings ----------------------------------------------------------------------------------------------------------


def test_a_period_below_twice_the_scrape_interval_is_refused() -> None:
    queries = Queries.from_yaml("cadvisor")
    assert queries.scrape_interval_s == 15
    check_period(queries, 30.0)
    with pytest.raises(ConfigError, match=r"^control period = 29 s: expected 30 to 30, twice the scrape interval"):
        check_period(queries, 29.0)
    slow = spec_of("http://localhost:1", scrape_interval_s=30.0).loaded_queries()
    with pytest.raises(ConfigError, match=r"^scrape_interval_s = 30: expected at most 15"):
        check_period(slow, 30.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"url": "ftp://a"}, r"url = 'ftp://a': expected http://HOST:PORT"),
        ({"url": "http://me:secret@a"}, "and no password"),
        ({"url": "https://a", "slices": {"s": {"pod": 'x"} or vector(1)'}}}, r"slices\.s\.pod"),
        ({"url": "https://a", "token_file": "relative"}, "token_file"),
        ({"url": "https://a", "headers": {"X-Scope-OrgID": "a\r\nb"}}, r"headers\.X-Scope-OrgID"),
        ({"url": "https://a", "headers": {"Content-Length": "7"}}, "Content-Length: the client sets it itself"),
        ({"url": "https://a", "headers": {"X-A": "1", "x-a": "2"}}, "X-A: given twice"),
        ({"url": "https://a", "headers": {"X-A": {"file": "relative"}}}, r"headers\.X-A"),
    ],
)
def test_settings_that_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        validate(PrometheusSpec, given, "node.yaml")


# -- servers that speak the same API -----------------------------------------------------------------------------------

MANY = tuple(f"upf-{number}" for number in range(24))
UNSPLIT_BYTES = 30_000


@pytest.mark.parametrize(
    "habits",
    [
        {"most_query_bytes": 1 << 14},
        {"most_query_bytes": 3000},
        {"most_query_bytes": 3000, "status": 400},
        {"most_query_bytes": 3000, "status": 413},
        {"get_alone": True, "most_url_bytes": 8192},
        {"get_alone": True, "most_url_bytes": 4000},
    ],
)
def test_a_query_that_is_too_long_for_a_server_is_split(habits: dict[str, Any]) -> None:
    """VictoriaMetrics/VictoriaMetrics#5875: 24 slices in one query are more than 16 KiB."""
    with compatible(**habits) as (address, server), source_of(spec_of(f"http://{address}", MANY)) as source:
        assert valid(source) == [True] * 24
        assert source.check() == []
        assert max(server.queries) < UNSPLIT_BYTES
        assert len(server.queries) > len(source.queries.slices)


def test_a_query_of_one_slice_that_is_too_long_is_reported_with_the_servers_words() -> None:
    with compatible(most_query_bytes=50) as (address, _), pytest.raises(FailureError) as caught:
        PrometheusSource(spec_of(f"http://{address}", MANY), tuple(f"s{n}" for n in range(1, 25)), PERIOD_S)
    assert re.search(r"offered_mbps: answers 422: too long query; got \d+ bytes; mustn't exceed 50$", str(caught.value))


def test_a_range_of_too_many_points_is_split() -> None:
    spec = spec_of("http://localhost:1", MANY[:3])
    rows = rows_of(spec.loaded_queries(), spec, tuple(spec.slices), PERIOD_S)
    times_s = 1_700_000_000 + 15 * np.arange(1001, dtype=np.float64)
    with compatible(most_points=300) as (address, server):
        reading = Client(dataclasses.replace(spec, url=f"http://{address}"), {}).over(rows[0], 60.0, times_s)
        assert reading.values.shape == (1001, 3)
        assert np.isfinite(reading.values).all()
        np.testing.assert_allclose(reading.newest_s, np.repeat(times_s[:, None] - 2, 3, axis=1))
        assert reading.why == (None,) * 3
        assert len(server.queries) == 4


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"warnings": ["No StoreAPIs matched\x1b[2J", "receive series: rpc error"]},
            r"No StoreAPIs matched\?\[2J; rec",
        ),
        ({"warnings": "one text"}, "one text"),
        ({"isPartial": True}, "isPartial"),
    ],
)
def test_a_partial_answer_is_counted_reported_and_not_acted_on(more: dict[str, Any], words: str) -> None:
    """thanos-io/thanos#622: what a store that is away had is missing in sums."""
    with compatible() as (address, server), source_of(spec_of(f"http://{address}", MANY[:2])) as source:
        assert valid(source) == [True, True]
        assert source.counts["prometheus_partial_answers"] == 0
        server.more, server.partial_rows = more, ("quantile(0.99",)
        lines = until(lambda: reported(source, f"delay_p99_us: a partial answer: {words}"))
        assert all(line.isprintable() for line in lines)
        assert valid(source) == [False, False]
        until(lambda: source.counts["prometheus_partial_answers"] >= 2)
        server.more = {}
        until(lambda: valid(source) == [True, True] and source.check() == [])
        server.more, server.partial_rows = more, ("",)
        with pytest.raises(FailureError, match=words):
            PrometheusSource(spec_of(f"http://{address}"), ("s1",), PERIOD_S)


def test_remarks_on_queries_are_counted_and_shown_and_the_figures_used() -> None:
    with (
        compatible(more={"infos": ["PromQL info: metric might not be a counter\x00"]}) as (address, _),
        source_of(spec_of(f"http://{address}")) as source,
    ):
        assert valid(source) == [True]
        assert source.check() == []
        assert source.counts["prometheus_remarked_answers"] >= len(source.queries.slices)
        assert "prometheus offered_mbps: PromQL info: metric might not be a counter?" in source.remarks


def test_a_tenant_goes_as_a_header_and_its_lack_is_not_told_as_wrong_credentials(tmp_path: Path) -> None:
    """grafana/mimir#2310; the header's file is read again when it changes."""
    file = tmp_path / "tenant"
    file.write_text("edge-1\n")
    with compatible(tenant="edge-1") as (address, server):
        with pytest.raises(FailureError) as caught:
            PrometheusSource(spec_of(f"http://{address}"), ("s1",), PERIOD_S)
        assert "answers 401: no org id: set telemetry.prometheus.headers" in str(caught.value)
        assert "not known" not in str(caught.value)
        with source_of(spec_of(f"http://{address}", headers={"X-Scope-OrgID": "edge-1"})) as source:
            assert valid(source) == [True]
        with source_of(spec_of(f"http://{address}", headers={"x-scope-orgid": {"file": str(file)}})) as source:
            assert valid(source) == [True]
            server.tenant = "edge-2"
            until(lambda: reported(source, "no org id"))
            file.write_text("edge-2\n")
            until(lambda: valid(source) == [True] and source.check() == [])
        file.write_text("two\nlines\n")
        with pytest.raises(ConfigError, match=r"headers.x-scope-orgid file .*: expected one line of printable"):
            PrometheusSource(
                spec_of(f"http://{address}", headers={"x-scope-orgid": {"file": str(file)}}), ("s1",), PERIOD_S
            )


def test_secret_headers_go_to_this_machine_or_over_tls_only() -> None:
    for headers in ({"X-Key": {"file": "/key"}}, {"Authorization": "ApiKey 1"}):
        spec = spec_of("http://elsewhere.example:9090", headers=headers)
        with pytest.raises(ValueError, match="would show the header"):
            check_spec(spec)
        check_spec(spec_of("https://elsewhere.example:9090", headers=headers))
    check_spec(spec_of("http://elsewhere.example:9090", headers={"X-Scope-OrgID": "edge"}))


def test_an_empty_label_is_a_label_that_a_series_lacks() -> None:
    spec = spec_of("http://localhost:1", labels={"container": ""})
    query = "container_cpu_usage_seconds_total"
    slices = {"s1": {"namespace": "core", "pod": "upf-1", "container": "", "ping": "10.45.0.1"}}
    rows = rows_of(spec.loaded_queries(), dataclasses.replace(spec, slices=slices), ("s1",), PERIOD_S)
    assert any(query in part and 'container=""' in part for row in rows for part in row.parts)
