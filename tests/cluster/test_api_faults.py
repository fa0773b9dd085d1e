"""An API server that is slow, or says no: loops go on, and what is declared meanwhile is taken up as soon as can be."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.node.machine import children
from tests.node.runtimes import until

from .agents import SYSTEM, agent, condition, reported, rights, slice_set
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


FAULTS: dict[str, tuple[dict[str, Any], bool]] = {
    "slow": ({"delay_s": 5.0}, True),
    "410": ({"status": 410, "watches": True}, True),
    "429": ({"status": 429, "retry_after_s": 2.0}, False),
    "500": ({"status": 500}, False),
}
"""Each with whether an edit is taken up meanwhile, since the server can be reached in another way, or answers in the
end."""


def test_loops_go_on_and_an_edit_is_taken_up(cluster: Cluster, upfs: PodUpfs, access: Path, fault: Fault) -> None:
    before = upfs.knobs()
    with agent(cluster, access) as running:
        cluster.kubectl("apply", given=slice_set(count=COUNT))
        until(lambda: upfs.knobs() != before, "nothing was moved", WITHIN_S)
        [loop], moved = running.loops(), upfs.knobs()
        ring = running.root / "run" / f"{NAMESPACE}.video" / "ticks"
        for name, (what, meanwhile) in FAULTS.items():
            until(lambda: condition(reported(cluster), "Controlled") == ("True", "Live"), f"not live: {name}", AFTER_S)
            until(lambda: upfs.knobs() == moved, f"not moved: {name}", WITHIN_S)
            fault(what)
            ticks, began_s = written(ring), time.monotonic()
            cluster.kubectl("apply", given=slice_set(count=COUNT, mode="shadow"))
            if meanwhile:
                taken_s = until(lambda: upfs.knobs() == before, f"not taken up: {name}", AFTER_S)
                print(f"{name}: an edit was taken up meanwhile, after {taken_s:.1f} s")
            else:
                time.sleep(FAULT_S)
                assert upfs.knobs() == moved, name
            rate = (written(ring) - ticks) / (time.monotonic() - began_s)
            assert rate > 50, f"{name}: of 100 ticks a second"
            fault({})
            until(
                lambda: condition(reported(cluster), "Controlled") == ("False", "Shadow"),
                f"{reported(cluster)}",
                AFTER_S,
            )
            assert goes_on(running, loop), name
            assert upfs.knobs() == before, name
            cluster.kubectl("apply", given=slice_set(count=COUNT))
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
        until(lambda: condition(reported(cluster), "Controlled") == ("True", "Live"), "not live", WITHIN_S)
        [loop] = running.loops()
        fault({"status": 503, "watches": True})
        cluster.kubectl("apply", given=slice_set(count=COUNT, mode="shadow"))
        revision = int(cluster.machine.run("python", "-c", COMPACT))
        cluster.machine.run("systemctl", "restart", "kube-apiserver")
        until(lambda: cluster.kubectl("get", "--raw", "/readyz", code=None).strip() == "ok", "no API server", AFTER_S)
        fault({})
        until(
            lambda: condition(reported(cluster), "Controlled") == ("False", "Shadow"), f"{reported(cluster)}", AFTER_S
        )
        gone = [line["event"] for line in running.lines() if "410" in line["event"] or "too old" in line["event"]]
        assert gone, f"nothing was forgotten up to revision {revision}"
        print(f"compacted up to revision {revision}: {gone[0]}")
        assert goes_on(running, loop)
        assert upfs.knobs() == before
    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video")


def test_each_right_is_needed_and_one_that_lacks_is_named(cluster: Cluster, upfs: PodUpfs, access: Path) -> None:
    """An agent starts without any, and is given those that it names; in the end it has all, and no other."""
    before = upfs.knobs()
    roles = {role["kind"]: role for role in rights() if role["kind"] in {"Role", "ClusterRole"}}
    rules = [(kind, rule) for kind, role in roles.items() for rule in role["rules"]]
    missing = {(resource, verb) for _, rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    cluster.kubectl("-n", SYSTEM, "delete", "lease", "--all")

    def grant() -> None:
        for kind, role in roles.items():
            admitted = [
                {"apiGroups": rule["apiGroups"], "resources": [resource], "verbs": verbs}
                for other, rule in rules
                for resource in rule["resources"]
                if other == kind and (verbs := [verb for verb in rule["verbs"] if (resource, verb) not in missing])
            ]
            cluster.kubectl("apply", "--server-side", "--force-conflicts", given={**role, "rules": admitted})

    grant()
    try:
        with agent(cluster, access) as running:

            def named() -> set[tuple[str, str]]:
                events = [line["event"] for line in running.lines()]
                return {
                    (resource, verb)
                    for resource, verb in missing
                    if any(f'cannot {verb} resource "{resource}"' in event for event in events)
                }

            cluster.kubectl("apply", given=slice_set(count=COUNT))
            while missing:
                if {verb for _, verb in missing} == {"delete"}:
                    until(lambda: condition(reported(cluster), "Ready")[0] == "True", f"{reported(cluster)}", WITHIN_S)
                    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video", "--cascade=orphan")
                # A Lease that it has made itself is renewed after 40 s.
                until(lambda: bool(named()), f"none of {missing} is named", 2 * AFTER_S)
                missing -= named()
                grant()
                assert Path(f"/proc/{running.pid}").exists()
    finally:
        missing.clear()
        grant()
    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "--all")
    cluster.kubectl("-n", NAMESPACE, "delete", "nsls", "--all")
    until(lambda: upfs.knobs() == before, "knobs are not restored", WITHIN_S)
