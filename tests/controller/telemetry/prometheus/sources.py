"""Sources of telemetry as tests make them, and how they are waited for."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from slicepilot.configs import FailureError, validate
from slicepilot.controller.telemetry.prometheus.config import PrometheusSpec
from slicepilot.controller.telemetry.prometheus.source import PrometheusSource

from .servers import SCRAPE_S

PERIOD_S = 2 * SCRAPE_S


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
