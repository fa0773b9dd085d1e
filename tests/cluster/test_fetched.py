"""Bundles by ConfigMap, volume and image, and rules of the guard by ConfigMap, on a real cluster."""

from __future__ import annotations

import base64
import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from slicepilot.cluster.fetch.fetcher import RULES_S
from slicepilot.cluster.fetch.store import FOLDER
from slicepilot.controller.promotion.certificate import FORMAT_VERSION
from slicepilot.controller.promotion.criteria import Criteria
from tests.k8s_fetch.bundles import digest, parts
from tests.node.runtimes import until

from .agents import RunningAgent, agent, condition, install, reported, slice_set
from .cluster import PAUSE, Cluster
from .test_sliceset import requests
from .upfs import NAMESPACE, PodUpfs, pod_upfs, shares

COUNT = 4
WITHIN_S = 90.0
GRANT = "slicepilot-agent-config-maps"


def config_map(name: str, of: dict[str, bytes], namespace: str = NAMESPACE) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "binaryData": {key: base64.b64encode(data).decode() for key, data in of.items()},
    }


def rules(text: str) -> dict[str, Any]:
    meta = {"name": "rules", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"guard.yaml": text}}


def promotion(of: dict[str, bytes]) -> bytes:
    """As `slicepilot promote` writes it."""
    finding = {"criterion": "x", "sign": ">=", "required": 0.0, "measured": 1.0, "ok": True, "why": ""}
    document = {
        "format_version": FORMAT_VERSION,
        "bundle": digest(of),
        "time": "2026-01-01T00:00:00Z",
        "criteria": dataclasses.asdict(Criteria.from_yaml("default")),
        "findings": [finding],
        "recording": {"ticks": 1, "runs": {}, "first": None, "last": None},
        "versions": {},
    }
    return yaml.safe_dump(document).encode()


def of_pair(number: int, name: str, mode: str = "live", **spec: Any) -> dict[str, Any]:
    """A SliceSet of two of the UPFs: a policy takes no single slice."""
    document = slice_set(name, COUNT, mode, **spec)
    document["spec"]["slices"] = document["spec"]["slices"][2 * number - 2 : 2 * number]
    return document


def bundle(kind: str, mark: str = "", **where: Any) -> dict[str, Any]:
    return {"bundle": {kind: {"digest": digest(parts(mark)), **where}}}


def message(status: dict[str, Any], kind: str = "Ready") -> str:
    return next((str(item["message"]) for item in status.get("conditions") or () if item["type"] == kind), "")


@pytest.fixture(scope="module", name="upfs")
def _upfs(cluster: Cluster) -> Iterator[PodUpfs]:
    with pod_upfs(cluster, COUNT) as upfs:
        yield upfs


@pytest.fixture(scope="module", name="volumes")
def _volumes(cluster: Cluster) -> Path:
    """As the chart mounts them into the agent's container, with a volume of the UPFs' namespace."""
    folder = cluster.folder / "volumes"
    volume = folder / NAMESPACE / "policies"
    (volume / "edge" / "one").mkdir(parents=True)
    for name, data in parts("volume").items():
        (volume / "edge" / "one" / name).write_bytes(data)
    (volume / "out").symlink_to("../../../../../../etc")
    return folder


@pytest.fixture(scope="module", name="access")
def _access(cluster: Cluster, upfs: PodUpfs) -> Path:
    del upfs  # first
    return install(cluster, bundles={"configMapNamespaces": [NAMESPACE]})


@pytest.fixture(name="running_agent")
def _running(cluster: Cluster, access: Path, volumes: Path) -> Iterator[RunningAgent]:
    cluster.kubectl("apply", given=[config_map("policy", parts("map"))])
    with agent(cluster, access, "fetching", ("--bundle-volumes", str(volumes))) as result:
        yield result
        cluster.kubectl("-n", NAMESPACE, "delete", "sls", "--all")
        until(lambda: not result.loops(), "loops go on", WITHIN_S)


def ready(cluster: Cluster, name: str) -> tuple[str, str]:
    return condition(reported(cluster, name), "Ready")


def is_ready(cluster: Cluster, *names: str) -> None:
    wanted = [("True", "LoopRunning")] * len(names)
    until(lambda: [ready(cluster, item) for item in names] == wanted, f"{', '.join(names)}: not ready", WITHIN_S)


def not_fetched(cluster: Cluster, name: str, why: str) -> None:
    until(lambda: ready(cluster, name)[1] == "NotFetched", f"{name}: {reported(cluster, name)}", WITHIN_S)
    until(lambda: why in message(reported(cluster, name)), f"{name}: {reported(cluster, name)}", WITHIN_S)


def test_bundles_are_fetched_from_both_and_act_when_they_are_promoted(
    cluster: Cluster, upfs: PodUpfs, running_agent: RunningAgent
) -> None:
    sets = {
        "by-map": of_pair(1, "by-map", policy=bundle("configMap", "map", name="policy")),
        "by-volume": of_pair(2, "by-volume", policy=bundle("volume", "volume", name="policies", path="edge/one")),
    }
    cluster.kubectl("apply", given=list(sets.values()))
    is_ready(cluster, *sets)
    for name in sets:
        assert condition(reported(cluster, name), "Controlled") == ("False", "NotPromoted"), reported(cluster, name)
        assert "never promoted; run it in shadow" in message(reported(cluster, name), "Controlled")
    kept = running_agent.root / "state" / FOLDER / "bundles" / NAMESPACE
    assert {path.name for path in kept.iterdir()} == {digest(parts(mark)) for mark in ("map", "volume")}
    (kept / digest(parts("map")) / "promotion.yaml").write_bytes(promotion(parts("map")))
    loops = running_agent.loops()
    until(lambda: condition(reported(cluster, "by-map"), "Controlled") == ("True", "Live"), "not live", WITHIN_S)
    assert running_agent.loops() == loops
    assert condition(reported(cluster, "by-volume"), "Controlled") == ("False", "NotPromoted")
    assert shares([upfs.group(3)]) == ["102"]  # as the kubelet has made it of its request


def test_what_is_refused_costs_no_neighbour(cluster: Cluster, upfs: PodUpfs, running_agent: RunningAgent) -> None:
    del upfs
    cluster.kubectl("apply", given=of_pair(1, "good", "shadow", policy=bundle("configMap", "map", name="policy")))
    is_ready(cluster, "good")
    loops = running_agent.loops()
    wrong = {
        "other-digest": (bundle("configMap", "another", name="policy"), "has the SHA-256"),
        "no-map": (bundle("configMap", "unmapped", name="nothing"), "no ConfigMap nothing"),
        "link": (bundle("volume", "linked", name="policies", path="out"), "leads out of the declared folders"),
        "unlisted": (bundle("volume", "unlisted", name="secrets"), "no volume secrets for namespace core"),
    }
    cluster.kubectl("apply", given=[of_pair(2, name, "shadow", policy=policy) for name, (policy, _) in wrong.items()])
    climbing = of_pair(2, "up", policy=bundle("volume", "volume", name="policies", path="../../etc"))
    cluster.kubectl("apply", given=climbing)
    until(lambda: ready(cluster, "up")[1] == "Invalid", f"{reported(cluster, 'up')}", WITHIN_S)
    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "up")
    # A pod is of the oldest SliceSet that selects it: what is fetched for the others is seen as each becomes that.
    for name, (_, why) in wrong.items():
        not_fetched(cluster, name, why)
        cluster.kubectl("-n", NAMESPACE, "delete", "sls", name)
    assert running_agent.loops() == loops
    assert ready(cluster, "good") == ("True", "LoopRunning")


def test_a_right_that_is_taken_away_is_reported_and_what_is_here_stays(
    cluster: Cluster, access: Path, upfs: PodUpfs, running_agent: RunningAgent
) -> None:
    del upfs
    cluster.kubectl("apply", given=of_pair(1, "good", "shadow", policy=bundle("configMap", "map", name="policy")))
    is_ready(cluster, "good")
    cluster.kubectl("-n", NAMESPACE, "delete", "rolebinding", GRANT)
    try:
        cluster.kubectl("apply", given=[config_map("second", parts("second"))])
        document = of_pair(2, "late", "shadow", policy=bundle("configMap", "second", name="second"))
        cluster.kubectl("apply", given=document)
        not_fetched(cluster, "late", "may not read ConfigMaps of namespace core")
        # Nor is anything of what is here requested, by an agent that starts.
        running_agent.stop()
        running_agent.start()
        until(lambda: len(running_agent.loops()) == 1, "no loop after the start", WITHIN_S)
        is_ready(cluster, "good")
    finally:
        assert install(cluster, bundles={"configMapNamespaces": [NAMESPACE]}) == access
    is_ready(cluster, "late")


@pytest.mark.slow
def test_rules_that_are_edited_are_taken_up(cluster: Cluster, upfs: PodUpfs, running_agent: RunningAgent) -> None:
    del upfs
    cluster.kubectl("apply", given=rules("dwell: {nice_s: 0.02}"))
    guard = {"configMap": {"name": "rules"}}
    cluster.kubectl("apply", given=of_pair(2, "ruled", guard=guard))
    is_ready(cluster, "ruled")
    until(lambda: condition(reported(cluster, "ruled"), "Controlled") == ("True", "Live"), "not live", WITHIN_S)
    [loop] = running_agent.loops()
    path = running_agent.root / "run" / "agent" / f"{NAMESPACE}.ruled.run.yaml"

    def runs_with() -> str:
        return Path(yaml.safe_load(path.read_text())["guard"]).read_text()

    assert runs_with() == "dwell: {nice_s: 0.02}"
    time.sleep(15.0)  # first words on all there is
    began_s, before = time.monotonic(), requests(cluster)
    cluster.kubectl("apply", given=rules("dwell: {nice_s: 0.5}"))
    until(lambda: runs_with() == "dwell: {nice_s: 0.5}", "rules are as they were", 1.2 * RULES_S)
    took_s, requested = time.monotonic() - began_s, requests(cluster) - before
    print(f"edited rules were taken up after {took_s:.1f} s; {requested} requests in that time")
    assert requested <= 3.0 + took_s / 10.0  # first figures may come late
    until(lambda: running_agent.loops() not in ([], [loop]), "the same loop", WITHIN_S)
    is_ready(cluster, "ruled")
    [loop] = running_agent.loops()
    cluster.kubectl("apply", given=rules("dwell: {nice_s: -1}"))
    cluster.kubectl("apply", given=of_pair(2, "ruled", guard=guard, uplinkMbps=900))  # they are requested at once
    until(lambda: condition(reported(cluster, "ruled"), "Degraded")[1] == "NotFetched", "not reported", WITHIN_S)
    assert "dwell.nice_s" in message(reported(cluster, "ruled"), "Degraded")
    is_ready(cluster, "ruled")
    assert runs_with() == "dwell: {nice_s: 0.5}"
    with pytest.raises(ProcessLookupError):
        os.kill(loop, 0)  # the edit of the SliceSet itself
    cluster.kubectl("apply", given=rules("dwell: {nice_s: 0.5}"))


def test_a_namespace_reaches_nothing_of_another(cluster: Cluster, upfs: PodUpfs, running_agent: RunningAgent) -> None:
    """By the names, and by the digest, of what another has here."""
    del upfs
    cluster.kubectl("apply", given=of_pair(1, "good", "shadow", policy=bundle("configMap", "map", name="policy")))
    is_ready(cluster, "good")
    kept = running_agent.root / "state" / FOLDER / "bundles"
    cluster.kubectl("create", "namespace", "guest")
    try:
        container = {"name": "upf", "image": PAUSE, "imagePullPolicy": "Never"}
        spec = {"containers": [container], "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "mine", "namespace": "guest", "labels": {"app": "upf", "slice": "1"}},
            "spec": spec,
        }
        policies = {
            "map": bundle("configMap", "map", name="policy"),
            "volume": bundle("volume", "volume", name="policies", path="edge/one"),
        }
        documents = [of_pair(1, name, policy=policy) for name, policy in policies.items()]
        for item in documents:
            item["metadata"]["namespace"] = "guest"
        cluster.kubectl("apply", given=[pod, *documents])

        def said(name: str) -> str:
            items = cluster.get("-n", "guest", "nsls")["items"]
            return "".join(message(item.get("status") or {}) for item in items if item["spec"]["sliceSet"] == name)

        until(lambda: "may not read ConfigMaps of namespace guest" in said("map"), "not refused", WITHIN_S)
        until(lambda: "no volume policies for namespace guest" in said("volume"), "not refused", WITHIN_S)
        assert not (kept / "guest").exists()
    finally:
        cluster.kubectl("delete", "namespace", "guest", "--timeout=60s")
