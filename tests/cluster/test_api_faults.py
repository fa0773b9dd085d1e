"""An API server that is slow, or says no: loops go on, and what is declared meanwhile is taken up as soon as can be."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..node.machine import children
from ..node.runtimes import until
from .agents import SYSTEM, agent, condition, rights, slice_set, told
from .cluster import Cluster
from .rings import goes_on, written
from .upfs import NAMESPACE, PodUpfs

pytestmark = pytest.mark.slow
COUNT, PORT = 2, 7443
WITHIN_S, FAULT_S, AFTER_S = 30.0, 20.0, 60.0


Fault = Callable[[dict[str, Any]], None]


@pytest.fixture(name="fault")
def _fault(cluster: Cluster, access: Path) -> Iterator[Fault]:
    """Has things go wrong on the way that `agent.yaml` leads to from now on."""
    file = cluster.folder / "fault.json"

    def fault(what: dict[str, Any]) -> None:
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(what))
        fresh.rename(file)

    fault({})
    script = Path(__file__).with_name("way.py")
    way = cluster.machine.start("python", str(script), str(PORT), str(cluster.folder / "pki" / "ca.crt"), str(file))
    document = yaml.safe_load(access.read_text())
    before = access.read_text()
    document["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{PORT}"}
    access.write_text(yaml.safe_dump(document))
    try:
        yield fault
    finally:
        access.write_text(before)
        for pid in children(way.pid):
            os.kill(pid, signal.SIGKILL)
        way.wait(10)


@pytest.mark.parametrize(
    ("what", "meanwhile"),
    [
        ({"delay_s": 5.0}, True),
        ({"status": 410, "watches": True}, True),
        ({"status": 429, "retry_after_s": 2.0}, False),
        ({"status": 500}, False),
    ],
    ids=["slow", "410", "429", "500"],
)
def test_loops_go_on_and_an_edit_is_taken_up(
    cluster: Cluster, upfs: PodUpfs, access: Path, fault: Fault, what: dict[str, Any], meanwhile: bool
) -> None:
    """``meanwhile``: while things go wrong, since the server can be asked in another way, or answers in the end."""
    before = upfs.knobs()
    with agent(cluster, access) as running:
        cluster.kubectl("apply", given=slice_set(count=COUNT))
        until(lambda: upfs.knobs() != before, "nothing was moved", WITHIN_S)
        until(lambda: condition(told(cluster), "Controlled") == ("True", "Live"), "not live", WITHIN_S)
        [loop] = running.loops()
        moved, ring = upfs.knobs(), running.root / "run" / f"{NAMESPACE}.video" / "ticks"
        fault(what)
        ticks, began_s = written(ring), time.monotonic()
        cluster.kubectl("apply", given=slice_set(count=COUNT, mode="shadow"))
        if meanwhile:
            taken_s = until(lambda: upfs.knobs() == before, "not taken up", AFTER_S)
            print(f"{what}: an edit was taken up meanwhile, after {taken_s:.1f} s")
        else:
            time.sleep(FAULT_S)
            assert upfs.knobs() == moved
        rate = (written(ring) - ticks) / (time.monotonic() - began_s)
        assert rate > 50, "of 100 ticks a second"
        assert goes_on(running, loop)
        fault({})
        until(lambda: condition(told(cluster), "Controlled") == ("False", "Shadow"), f"{told(cluster)}", AFTER_S)
        assert goes_on(running, loop)
        assert upfs.knobs() == before
    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video")


COMPACT = """
import json, urllib.request

def ask(what, body):
    request = urllib.request.Request(f"http://127.0.0.1:2379/v3/kv/{what}", json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request, timeout=10))

revision = ask("range", {"key": "AA=="})["header"]["revision"]
ask("compaction", {"revision": revision, "physical": True})
print(revision)
"""


def test_what_the_store_has_forgotten_is_listed_anew(
    cluster: Cluster, upfs: PodUpfs, access: Path, fault: Fault
) -> None:
    """etcd's history is compacted, and the API server started again, while the agent cannot watch."""
    before = upfs.knobs()
    with agent(cluster, access) as running:
        cluster.kubectl("apply", given=slice_set(count=COUNT))
        until(lambda: condition(told(cluster), "Controlled") == ("True", "Live"), "not live", WITHIN_S)
        [loop] = running.loops()
        fault({"status": 503, "watches": True})
        cluster.kubectl("apply", given=slice_set(count=COUNT, mode="shadow"))
        revision = int(cluster.machine.run("python", "-c", COMPACT))
        cluster.machine.run("systemctl", "restart", "kube-apiserver")
        until(lambda: cluster.kubectl("get", "--raw", "/readyz", code=None).strip() == "ok", "no API server", AFTER_S)
        fault({})
        until(lambda: condition(told(cluster), "Controlled") == ("False", "Shadow"), f"{told(cluster)}", AFTER_S)
        gone = [line["event"] for line in running.lines() if "410" in line["event"] or "too old" in line["event"]]
        assert gone, f"nothing was forgotten up to revision {revision}"
        print(f"compacted up to revision {revision}: {gone[0]}")
        assert goes_on(running, loop)
        assert upfs.knobs() == before
    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video")


def roles() -> dict[str, dict[str, Any]]:
    """What an agent may do, by kind of the role."""
    return {one["kind"]: one for one in rights() if one["kind"] in {"Role", "ClusterRole"}}


def each_right() -> list[tuple[str, str, str]]:
    """Kind of the role, resource and verb."""
    return [
        (kind, resource, verb)
        for kind, role in roles().items()
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


@contextlib.contextmanager
def without(cluster: Cluster, kind: str, resource: str, verb: str) -> Iterator[None]:
    """The agent's role without one verb of one resource."""
    role = roles()[kind]
    rules = [
        {"apiGroups": rule["apiGroups"], "resources": [each], "verbs": left}
        for rule in role["rules"]
        for each in rule["resources"]
        if (left := [one for one in rule["verbs"] if (each, one) != (resource, verb)])
    ]
    command = ["apply", "--server-side", "--force-conflicts"]
    cluster.kubectl(*command, given={**role, "rules": rules})
    try:
        yield
    finally:
        cluster.kubectl(*command, given=role)


@pytest.mark.parametrize(("kind", "resource", "verb"), each_right(), ids=lambda one: str(one).replace("/", "-"))
def test_each_right_is_needed_and_one_that_lacks_is_named(
    cluster: Cluster, upfs: PodUpfs, access: Path, kind: str, resource: str, verb: str
) -> None:
    before = upfs.knobs()
    if resource == "leases" and verb == "create":
        cluster.kubectl("-n", SYSTEM, "delete", "lease", "--all")
    with without(cluster, kind, resource, verb), agent(cluster, access) as running:
        cluster.kubectl("apply", given=slice_set(count=COUNT))
        if verb == "delete":
            until(lambda: condition(told(cluster), "Ready")[0] == "True", f"{told(cluster)}", WITHIN_S)
            cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video", "--cascade=orphan")
        lines = f'cannot {verb} resource "{resource}"'
        # A Lease that it has made itself is renewed after 40 s.
        until(lambda: any(lines in line["event"] for line in running.lines()), lines, 2 * WITHIN_S)
        assert Path(f"/proc/{running.pid}").exists()
    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "--all")
    cluster.kubectl("-n", NAMESPACE, "delete", "nsls", "--all")
    until(lambda: upfs.knobs() == before, "knobs are not as found", WITHIN_S)
