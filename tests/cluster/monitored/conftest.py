"""Five UPF pods under traffic, an agent that serves metrics, and a Prometheus server that scrapes it and kubelet."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.agents import RunningAgent, agent, install, slice_set
from tests.cluster.cluster import ADDRESS, Cluster
from tests.cluster.upfs import NAMESPACE, PodUpfs
from tests.node.runtimes import until

from .scraping import DEPLOY, Scraping, agent_job, kubelet_job, scraping, token
from .setting import CADVISOR_S, LOAD_S, LOOP, MBPS, PORT, WITHIN_S


def rules() -> list[dict[str, Any]]:
    """The operator's, evaluated each second, and alerts at once."""
    program = runpy.run_path(str(DEPLOY / "kubernetes-monitoring" / "rules.py"))
    groups: list[dict[str, Any]] = program["document"]()["spec"]["groups"]
    for group in groups:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule.pop("for", None)
    return groups


@pytest.fixture(scope="module", name="running")
def _running(cluster: Cluster, upfs: PodUpfs) -> Iterator[RunningAgent]:
    """With a loop that keeps not all promises: one of 1 us cannot be kept."""
    access = install(cluster)
    # The usual folders, as in a pod: who asks loops for their metrics is nobody, and may not look into pytest's.
    options = ["--metrics", f"{ADDRESS}:{PORT}", "--run-root", "/run/slicepilot", "--state-root", "/var/lib/slicepilot"]
    with agent(cluster, access, "monitored", options) as running:
        document = slice_set(mode="shadow")
        document["spec"]["slices"][0]["promise"]["delayBoundMs"] = 0.001
        cluster.kubectl("apply", given=document)
        upfs.load(seconds=LOAD_S, mbps=MBPS)
        until(lambda: len(running.loops()) == 1, "no loop", WITHIN_S)
        yield running
        cluster.kubectl("-n", NAMESPACE, "delete", "sls", "--all")
        upfs.stop_loads()


@pytest.fixture(scope="module", name="server")
def _server(cluster: Cluster, running: RunningAgent) -> Iterator[Scraping]:
    """That has seen the loop for a while."""
    del running  # first
    access = token(cluster)
    jobs = [
        agent_job(f"{ADDRESS}:{PORT}"),
        kubelet_job("/metrics", access, "kubelet"),
        kubelet_job("/metrics/cadvisor", access, "cadvisor", f"{CADVISOR_S}s"),
    ]
    with scraping(cluster, jobs, rules()) as server:
        server.until(
            lambda: server.query(f'count_over_time(slicepilot_mode{{loop="{LOOP}",mode="shadow"}}[5m]) > 20'),
            WITHIN_S,
            "the agent's loop is not scraped",
        )
        yield server
