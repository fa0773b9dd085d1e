"""Limits above a UPF's own group, and the CPUs that it may use, are looked at while a controller runs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from slicepilot.agents.heuristics.queue_greedy import QueueGreedy
from slicepilot.configs import validate
from slicepilot.controller.actuators.quota import CpuQuota
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.node.config.spec import NodeSpec
from slicepilot.node.live.backend import NodeBackend

from .foreign import COUNT, Foreign
from .runtimes import until
from .test_foreign import controller

NOTICED_S = 1.2  # it looks once a second


@contextlib.contextmanager
def backend_of(foreign: Foreign, **first: object) -> Iterator[NodeBackend]:
    document = foreign.document()
    document["slices"][0] |= first
    backend = NodeBackend(validate(NodeSpec, document, "test"), 0.01)
    try:
        yield backend
    finally:
        backend.close()


@contextlib.contextmanager
def limited(group: Path, mcpu: float) -> Iterator[None]:
    """Somebody limits a group."""
    quota = CpuQuota(CpuGroup.at(group))
    try:
        quota.set(mcpu)
        yield
    finally:
        quota.restore()
        quota.close()


def test_a_parents_limit_is_reported_and_reaches_the_policy(foreign: Foreign) -> None:
    parent = foreign.group(1).parent
    with backend_of(foreign) as backend:
        agent = QueueGreedy()
        agent.reset(backend.slices, backend.context, 0)
        telemetry = backend.start()
        agent.decide(telemetry, backend.receipt.applied)
        assert backend.check() == []
        with limited(parent, 250.0):
            reported = backend.check()
            assert len(reported) == COUNT
            assert reported[0] == f"slice1: can use 0.25 CPUs, 1 at the start: {parent} limits it to 250 mCPU"
            assert backend.context.threads.tolist() == [[0.25]] * COUNT
            telemetry = telemetry.copy()
            telemetry.slices[:] = 0.0
            telemetry.cpu_use_mcpu[:], telemetry.carried_mbps[:] = 400.0, 10.0
            telemetry.offered_mbps[:] = 30.0
            telemetry.node[:] = 1.0
            agent.decide(telemetry, backend.receipt.applied)
            # It counts on no more than what the UPFs can use.
            assert np.all(agent.state["peak_mcpu"] <= 250.0)
        assert backend.check() == []
        assert backend.context.threads.tolist() == [[1.0]] * COUNT
        agent.decide(telemetry, backend.receipt.applied)
        assert np.all(agent.state["peak_mcpu"] > 250.0)


def test_fewer_cpus_to_run_on_are_reported(foreign: Foreign) -> None:
    cpus = os.sched_getaffinity(foreign.pid(1))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    with backend_of(foreign, upf_threads=2) as backend:
        assert backend.context.threads[0, 0] == 2.0
        try:
            os.sched_setaffinity(foreign.pid(1), {min(cpus)})
            [reported] = backend.check()
            assert reported == "slice1: can use 1 CPUs, 2 at the start: it may run on 1 of them only"
            assert backend.context.threads[0, 0] == 1.0
        finally:
            os.sched_setaffinity(foreign.pid(1), cpus)
        assert backend.check() == []


def test_a_controller_says_it_within_a_second(foreign: Foreign, node: Path, tmp_path: Path) -> None:
    with controller(node, foreign, tmp_path, "shadow") as running:
        assert not running.notes()["unmeasured"]
        started = time.monotonic()
        with limited(foreign.group(1).parent, 250.0):
            until(lambda: bool(running.notes()["unmeasured"]), "not reported", 3.0)
            took = time.monotonic() - started
            assert "limits it to 250 mCPU" in running.notes()["unmeasured"][0]
        until(lambda: not running.notes()["unmeasured"], "still reported", 3.0)
    assert took < NOTICED_S
