"""From `kubectl apply` of a SliceSet to a live loop on UPF pods, and what becomes of it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicepilot.controller.system.processes import start_ticks
from tests.node.machine import children
from tests.node.runtimes import until

from .agents import (
    ACCOUNT,
    RunningAgent,
    agent,
    condition,
    refused,
    reported,
    slice_set,
    summed,
)
from .cluster import Cluster
from .rings import goes_on, written
from .upfs import NAMESPACE, PodUpfs, shares

COUNT = 5
MOST_S = 10.0  # from `kubectl apply` to knobs that move
WITHIN_S = 30.0
AWAY_S = 60.0  # the API server
WATCHED_S = 120.0


@pytest.fixture(scope="module", name="shared")
def _shared(cluster: Cluster, access: Path) -> Iterator[RunningAgent]:
    with agent(cluster, access) as running:
        until(lambda: any(line["event"] == "acting" for line in running.lines()), "does not act", WITHIN_S)
        yield running


@pytest.fixture(name="running")
def _running(cluster: Cluster, shared: RunningAgent) -> Iterator[RunningAgent]:
    """An agent, the same for all tests; after each no SliceSet is left, and no loop."""
    yield shared
    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "--all")
    until(lambda: not shared.loops(), "loops go on", WITHIN_S)


def groups_of(upfs: PodUpfs) -> list[Path]:
    """CPU cgroups of all UPFs, as long as their containers last."""
    return [upfs.group(number) for number in range(1, COUNT + 1)]


def live(cluster: Cluster, name: str = "video") -> bool:
    return condition(reported(cluster, name), "Controlled") == ("True", "Live")


def test_from_apply_to_a_live_loop_and_what_kubectl_shows(
    cluster: Cluster, upfs: PodUpfs, running: RunningAgent
) -> None:
    before, groups = upfs.knobs(), groups_of(upfs)
    result = shares(groups)
    upfs.load(seconds=40, mbps=4)
    started = time.monotonic()
    cluster.kubectl("apply", given=slice_set())
    until(lambda: shares(groups) != result, "nothing was moved", WITHIN_S)
    moved_s = time.monotonic() - started
    until(lambda: live(cluster), "not live", WITHIN_S)
    print(f"from kubectl apply to knobs that move: {moved_s:.1f} s; to a status that says so: ", end="")
    print(f"{time.monotonic() - started:.1f} s")
    assert moved_s < MOST_S

    def all_kept() -> bool:
        return reported(cluster).get("kept") == f"{COUNT}/{COUNT}"

    until(all_kept, f"{reported(cluster)}", WITHIN_S)
    status = reported(cluster)
    assert [item["name"] for item in status["slices"]] == [f"slice{i}" for i in range(1, COUNT + 1)]
    for item, pod in zip(status["slices"], upfs.slices, strict=True):
        assert item["pod"] == pod
        assert item["measured"]
        assert item["carriedMbps"] > 3.5
        assert 0 < item["p99Ms"] < 500
        assert item["inCharge"] in {"policy", "guard", "safe"}
    until(lambda: summed(cluster).get("kept") == f"{COUNT}/{COUNT}", "not summed up", WITHIN_S)
    assert condition(summed(cluster), "Ready") == ("True", "LoopsRunning")
    shown = cluster.kubectl("-n", NAMESPACE, "get", "sls").splitlines()
    assert shown[0].split() == ["NAME", "MODE", "SLICES", "NODES", "KEPT", "READY", "AGE"]
    assert shown[1].split()[:6] == ["video", "live", "5", "1", "5/5", "True"]
    print("\n".join(shown))
    print(cluster.kubectl("-n", NAMESPACE, "get", "nsls"))
    upfs.unload()
    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video")
    until(lambda: upfs.knobs() == before, "knobs are not restored", WITHIN_S)
    until(lambda: not reported(cluster), "its object stays", WITHIN_S)


def test_an_edit_changes_the_mode_of_the_loop_that_runs_and_whatever_else_by_a_new_one(
    cluster: Cluster, upfs: PodUpfs, running: RunningAgent
) -> None:
    groups = groups_of(upfs)
    result = shares(groups)
    cluster.kubectl("apply", given=slice_set(mode="shadow"))
    until(lambda: condition(reported(cluster), "Controlled") == ("False", "Shadow"), "not in shadow", WITHIN_S)
    [loop] = running.loops()
    assert shares(groups) == result
    cluster.kubectl("apply", given=slice_set(mode="canary", canary=["slice1"]))
    until(lambda: condition(reported(cluster), "Controlled") == ("True", "Canary"), "no canary", WITHIN_S)
    assert goes_on(running, loop)
    assert shares(groups)[1:] == result[1:]
    cluster.kubectl("apply", given=slice_set())
    until(lambda: live(cluster), "not live", WITHIN_S)
    assert goes_on(running, loop)
    until(lambda: shares(groups) != result, "nothing was moved", WITHIN_S)
    cluster.kubectl("apply", given=slice_set(mode="shadow"))
    until(lambda: shares(groups) == result, "not given back", WITHIN_S)
    cluster.kubectl("apply", given=slice_set(count=2, uplinkMbps=900))

    def two_live() -> bool:
        status = reported(cluster)  # in one look
        return condition(status, "Controlled") == ("True", "Live") and len(status["slices"]) == 2

    until(two_live, "not two slices", WITHIN_S)
    assert running.loops() != [loop]
    assert shares(groups)[2:] == result[2:]
    generation = cluster.get("-n", NAMESPACE, "sls", "video")["metadata"]["generation"]
    until(lambda: summed(cluster).get("observedGeneration") == generation, "not summed up", WITHIN_S)
    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video")
    until(lambda: shares(groups) == result, "knobs are not restored", WITHIN_S)
    until(lambda: not running.loops(), "its loop goes on", WITHIN_S)


def test_a_pod_that_is_made_anew_is_taken_up_by_the_loop_that_runs(
    cluster: Cluster, upfs: PodUpfs, running: RunningAgent
) -> None:
    cluster.kubectl("apply", given=slice_set())
    until(lambda: live(cluster), "not live", WITHIN_S)
    [loop] = running.loops()
    old = upfs.group(2)
    cluster.kubectl("-n", NAMESPACE, "delete", "pod", upfs.slices[1])
    until(lambda: condition(reported(cluster), "Degraded") == ("True", "PodAway"), f"{reported(cluster)}", WITHIN_S)
    upfs.ready()
    upfs.sessions()
    upfs.load(seconds=45, mbps=4)  # figures are written every 30 s
    until(lambda: reported(cluster)["slices"][1].get("carriedMbps", 0) > 3, "not measured again", WITHIN_S + 30)
    until(lambda: condition(reported(cluster), "Degraded")[0] == "False", f"{reported(cluster)}", WITHIN_S)
    assert goes_on(running, loop)
    assert upfs.group(2) != old
    upfs.unload()


def test_what_is_invalid_or_claims_the_pod_of_another_stops_nobody(
    cluster: Cluster, upfs: PodUpfs, running: RunningAgent
) -> None:
    del upfs
    cluster.kubectl("apply", given=slice_set("first", count=2))
    until(lambda: live(cluster, "first"), "not live", WITHIN_S)
    [loop] = running.loops()
    time.sleep(1.1)  # the API's times of creation are whole seconds
    cluster.kubectl("apply", given=slice_set("second", count=3))
    cluster.kubectl("apply", given=slice_set("wrong", policy={"agent": "no-such-agent"}))
    until(lambda: live(cluster, "second"), "not live", WITHIN_S)
    assert [item["name"] for item in reported(cluster, "second")["slices"]] == ["slice3"]
    assert condition(reported(cluster, "second"), "Degraded") == ("True", "PodConflict")
    until(lambda: condition(reported(cluster, "wrong"), "Ready") == ("False", "Invalid"), "not reported", WITHIN_S)
    [ready] = [item for item in reported(cluster, "wrong")["conditions"] if item["type"] == "Ready"]
    assert "policy.agent: unknown name 'no-such-agent'" in ready["message"]
    assert loop in running.loops()
    assert len(running.loops()) == 2
    # Whose are the pods when the older goes?
    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "first")
    until(lambda: len(reported(cluster, "second").get("slices") or ()) == 3, "not taken over", WITHIN_S)
    until(lambda: live(cluster, "second"), "not live", WITHIN_S)
    assert condition(reported(cluster, "second"), "Degraded")[0] == "False"


@pytest.mark.slow
def test_the_loop_does_not_notice_that_the_api_server_is_away(
    cluster: Cluster, upfs: PodUpfs, running: RunningAgent
) -> None:
    groups = groups_of(upfs)
    result = shares(groups)
    cluster.kubectl("apply", given=slice_set())
    until(lambda: live(cluster), "not live", WITHIN_S)
    until(lambda: shares(groups) != result, "nothing was moved", WITHIN_S)
    [loop] = running.loops()
    ring = running.root / "run" / f"{NAMESPACE}.video" / "ticks"
    moved, before = shares(groups), written(ring)
    cluster.machine.run("systemctl", "stop", "kube-apiserver")
    try:
        time.sleep(AWAY_S)
        assert goes_on(running, loop)
        assert shares(groups) == moved
        ticks = written(ring) - before
        print(f"{ticks} ticks of 10 ms in {AWAY_S:g} s without an API server")
        assert ticks > 0.5 * AWAY_S / 0.01
    finally:
        cluster.machine.run("systemctl", "start", "kube-apiserver")
    started = time.monotonic()
    until(lambda: cluster.kubectl("get", "--raw", "/readyz", code=None).strip() == "ok", "no API server", 60)
    cluster.kubectl("apply", given=slice_set(mode="shadow"))
    until(lambda: condition(reported(cluster), "Controlled") == ("False", "Shadow"), "not taken up", 90)
    print(f"an edit was taken up {time.monotonic() - started:.1f} s after its start")
    assert goes_on(running, loop)
    assert shares(groups) == result


def test_of_two_agents_one_acts(cluster: Cluster, upfs: PodUpfs, access: Path, running: RunningAgent) -> None:
    groups = groups_of(upfs)
    result = shares(groups)
    cluster.kubectl("apply", given=slice_set())
    until(lambda: live(cluster), "not live", WITHIN_S)
    with agent(cluster, access, "other") as other:  # with folders of its own: nothing but the Lease is between them
        until(lambda: waits(other, "Lease"), "does not wait", WITHIN_S)
        time.sleep(3.0)
        assert not other.loops()
        assert len(running.loops()) == 1
        running.stop()
        assert shares(groups) == result
        until(lambda: len(other.loops()) == 1, "does not take over", 60)
        until(lambda: shares(groups) != result, "nothing was moved", WITHIN_S)
    assert shares(groups) == result
    running.start()


def test_knobs_are_as_found_when_the_agent_is_killed(cluster: Cluster, upfs: PodUpfs, running: RunningAgent) -> None:
    groups = groups_of(upfs)
    result = shares(groups)
    cluster.kubectl("apply", given=slice_set())
    until(lambda: live(cluster), "not live", WITHIN_S)
    until(lambda: shares(groups) != result, "nothing was moved", WITHIN_S)
    [loop] = running.loops()
    killed_s = time.monotonic()
    os.kill(running.pid, signal.SIGKILL)
    until(lambda: shares(groups) == result, "knobs are not restored", WITHIN_S)
    restored_s = time.monotonic() - killed_s
    running.kill()
    until(lambda: start_ticks(loop) is None, "the loop goes on", WITHIN_S)
    print(f"{1e3 * restored_s:.0f} ms from SIGKILL of the agent to restored knobs")
    running.start()
    acting_s = until(lambda: shares(groups) != result, "does not act again", WITHIN_S)
    print(f"{acting_s:.1f} s from the next agent's start to knobs that move")
    # Its loop and the loop's supervisor with it: then the next agent puts the knobs back, whatever is declared by then.
    [loop] = running.loops()
    until(lambda: live(cluster), "not live", WITHIN_S)
    supervisors = supervisors_of(loop)
    assert len(supervisors) == 1
    for pid in (*supervisors, loop):
        os.kill(pid, signal.SIGKILL)
    running.kill()
    assert shares(groups) != result
    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video")
    running.start()
    until(lambda: shares(groups) == result, "knobs are not restored", WITHIN_S)


@pytest.mark.slow
def test_steady_state_asks_less_than_once_in_ten_seconds(
    cluster: Cluster, upfs: PodUpfs, running: RunningAgent
) -> None:
    """By the API server's own count of the agent's requests, watches left out."""
    upfs.load(seconds=int(WATCHED_S) + 40, mbps=4)
    cluster.kubectl("apply", given=slice_set())
    until(lambda: reported(cluster).get("kept") == f"{COUNT}/{COUNT}", "not kept", WITHIN_S)
    time.sleep(15.0)
    before = requests(cluster)
    time.sleep(WATCHED_S)
    wanted = requests(cluster) - before
    cpu_s, memory_mib = usage(running)
    print(f"{wanted} requests in {WATCHED_S:g} s; the agent used {cpu_s:.1f} s of CPU and {memory_mib:.0f} MiB so far")
    assert wanted <= WATCHED_S / 10.0
    upfs.unload()


def requests(cluster: Cluster) -> int:
    """That the API server has had requests of the agent's service account."""
    lines = (cluster.folder / "audit.log").read_text().splitlines()
    return sum(1 for line in lines if ACCOUNT in line and '"verb":"watch"' not in line)


def usage(running: RunningAgent) -> tuple[float, float]:
    """CPU time and memory of the agent's own process, its loops left out."""
    fields = Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()
    kib = next(
        line for line in Path(f"/proc/{running.pid}/status").read_text().splitlines() if line.startswith("VmRSS")
    )
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(kib.split()[1]) / 1024


def waits(running: RunningAgent, why: str) -> bool:
    return any(line["event"] == "waiting" and why in line["why"] for line in running.lines())


def supervisors_of(loop: int) -> list[int]:
    """Of a loop, as this machine numbers them."""
    result = []
    for child in children(loop):
        with contextlib.suppress(OSError):
            if b"supervisor" in Path(f"/proc/{child}/cmdline").read_bytes():
                result.append(child)
    return result


def with_slice(**fields: Any) -> dict[str, Any]:
    """A SliceSet whose first slice has other fields."""
    document = slice_set()
    document["spec"]["slices"][0] |= fields
    return document


BUNDLE = {"configMap": {"name": "b", "digest": "0" * 64}}
REJECTED = {
    "no slices": (slice_set(slices=[]), "spec.slices in body should have at least 1 items"),
    "a name twice": (with_slice(name="slice2"), 'duplicate entries for key [name="slice2"]'),
    "an S-NSSAI twice": (with_slice(sNssai={"sst": 1, "sd": "000002"}), "each slice needs an sNssai of its own"),
    "no S-NSSAI": (with_slice(sNssai={}), "sNssai.sst: Required value"),
    "an SD that is none": (with_slice(sNssai={"sst": 1, "sd": "xyz"}), "sNssai.sd"),
    "a selector that means all": (with_slice(podSelector={}), "a podSelector says something"),
    "values where none belong": (
        with_slice(podSelector={"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
        "values are given with In and NotIn, and only there",
    ),
    "bounds upside down": (
        with_slice(bounds={"cpuLimitMcpu": {"low": 500, "high": 100}}),
        "low is below high",
    ),
    "nice upside down": (with_slice(bounds={"nice": {"low": 5, "high": 5}}), "low is below high"),
    "less than the least quota": (
        with_slice(bounds={"cpuLimitMcpu": {"low": 1, "high": 5}}),
        "the kernel's least quota",
    ),
    "an unknown knob": (with_slice(leave=["memory"]), 'Unsupported value: "memory"'),
    "no promise": (with_slice(promise={"committedMbps": 0, "delayBoundMs": 5}), "should be greater than 0"),
    "traffic of nobody": (with_slice(traffic={"qfis": [1]}), "traffic says whose packets they are"),
    "an unknown mode": (slice_set(mode="on"), 'Unsupported value: "on"'),
    "a canary in live": (slice_set(canary=["slice1"]), "canary names at least one slice with mode canary"),
    "a canary of nobody": (slice_set(mode="canary"), "canary names at least one slice with mode canary"),
    "a canary of others": (slice_set(mode="canary", canary=["x"]), "canary names a slice that is not among slices"),
    "two policies": (slice_set(policy={"agent": "vpa", "bundle": BUNDLE}), "exactly one of agent and bundle"),
    "no policy": (slice_set(policy={}), "exactly one of agent and bundle"),
    "two bundles": (
        slice_set(policy={"bundle": {**BUNDLE, "shipped": "generalist"}}),
        "exactly one of shipped, configMap and volume is given; an OCI image or a claim is a volume of",
    ),
    "a bundle in an image": (
        slice_set(policy={"bundle": {"image": {"reference": "r.example/b:1", "digest": "0" * 64}}}),
        "policy.bundle.image: field not declared in schema",
    ),
    "a volume without a name": (
        slice_set(policy={"bundle": {"volume": {"digest": "0" * 64}}}),
        "volume.name: Required value",
    ),
    "a bundle without digest": (slice_set(policy={"bundle": {"configMap": {"name": "b"}}}), "digest: Required value"),
    "two guards": (
        slice_set(guard={"shipped": "default", "configMap": {"name": "g"}}),
        "exactly one of shipped and configMap",
    ),
    "an unknown field": (slice_set(weights=1), ".spec.weights: field not declared in schema"),
}


def test_what_could_never_run_is_refused_by_the_api_server(cluster: Cluster, access: Path) -> None:
    """All in one request of kubectl, each by a name of its own."""
    del access  # resources are there
    documents = []
    for number, (document, _) in enumerate(REJECTED.values()):
        documents.append({**document, "metadata": {**document["metadata"], "name": f"case-{number:02}"}})
    out = refused(cluster, documents)
    errors = {match: text for text in re.split(r"\n(?=\S)", out) for match in re.findall(r"case-\d\d", text)}
    for number, (name, (_, why)) in enumerate(REJECTED.items()):
        assert why in errors.get(f"case-{number:02}", ""), f"{name}: {out}"
