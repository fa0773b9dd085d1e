"""Telemetry from a real Prometheus server of a real cgroup and interface, which stops, hangs and loses series."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator

import pytest

from .servers import SCRAPE_S, Pod, Prometheus, exporting
from .sources import answers, reported, source_of, spec_of, until, valid


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
