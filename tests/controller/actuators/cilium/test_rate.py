"""A pod's rate in Cilium's map as an egress knob: chosen, set, watched, given back."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import time

import pytest

from slicepilot.controller.actuators.cilium.choice import choose
from slicepilot.controller.actuators.cilium.endpoints import Endpoint, endpoints
from slicepilot.controller.actuators.cilium.layout import entry_of
from slicepilot.controller.actuators.cilium.rate import OriginalThrottle, ThrottleRate
from slicepilot.controller.actuators.egress import EgressRate
from slicepilot.controller.actuators.node import NodeActuator, SliceTargets
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net.links import other_end
from slicepilot.controller.watchdog.external_change import ExternalChangeWatch
from slicepilot.env.knobs import Knobs

from .machine import ENDPOINT, ORIGINAL, Agent, Pod, untyped_map, value_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: BPF maps, network namespaces")


def target(pod: Pod, agent: Agent) -> SliceTargets:
    return SliceTargets("a", None, "eth0", pod.netns, cilium=agent.paths)


def knobs(egress_mbps: float) -> Knobs:
    result = Knobs.none(1)
    result.values[2, 0, 0] = egress_mbps
    return result


def original_of(pod: Pod, agent: Agent) -> OriginalThrottle:
    result = choose("eth0", pod.netns, agent.paths).throttle
    assert result is not None
    return result


# -- choosing ----------------------------------------------------------------------------------------------------------


def test_a_pod_with_an_entry_is_chosen(paced: Agent, pod: Pod) -> None:
    choice = choose("eth0", pod.netns, paced.paths)
    assert choice.throttle is not None
    assert (choice.throttle.endpoint, choice.throttle.bytes_per_s) == (ENDPOINT, 6_250_000)
    assert choice.why == "Cilium paces its endpoint 1234 (core/upf-0) with 50 Mbit/s"


def test_a_pod_without_an_annotation_needs_one_first(paced: Agent, pod: Pod) -> None:
    paced.delete(ENDPOINT)
    choice = choose("eth0", pod.netns, paced.paths)
    assert choice.throttle is None
    assert "has to have the annotation kubernetes.io/egress-bandwidth first" in choice.why


def test_another_pods_file_that_names_the_link_is_not_believed(paced: Agent, pod: Pod) -> None:
    other = Pod(9)
    paced.endpoint(77, other.link, pod.ifindex)  # by number alone
    paced.endpoint(78, pod.link, other.ifindex)  # by name alone
    assert original_of(pod, paced).endpoint == ENDPOINT
    paced.endpoint(79, pod.link, pod.ifindex)  # by both: which of them is it?
    choice = choose("eth0", pod.netns, paced.paths)
    assert choice.throttle is None
    assert "endpoints 79 and 1234 have the same link lxc1; expected one" in choice.why
    other.close()


def test_a_link_that_a_pod_makes_up_is_not_its_end(paced: Agent, pod: Pod) -> None:
    """A device of the pod whose other end has the number of somebody's link, elsewhere."""
    victim, inner = Pod(5), Pod(6, "other")
    paced.endpoint(88, victim.link, victim.ifindex)
    paced.write(88, ORIGINAL)
    number = str(victim.ifindex)
    command = ["ip", "link", "add", "fake", "type", "veth", "peer", "name", victim.link, "index", number]
    pod.tool(*command, "netns", str(inner.pid))
    assert other_end(pod.netns, "fake") is None
    assert choose("fake", pod.netns, paced.paths).throttle is None
    for item in (victim, inner):
        item.close()


def test_state_that_others_can_change_is_not_read(paced: Agent, pod: Pod) -> None:
    paced.paths.state.chmod(0o777)
    choice = choose("eth0", pod.netns, paced.paths)
    assert choice.throttle is None
    assert "can be changed by others; expected root's alone" in choice.why
    paced.paths.state.chmod(0o755)
    folder = paced.paths.state / str(ENDPOINT)
    folder.chmod(0o770)
    assert choose("eth0", pod.netns, paced.paths).throttle is None
    folder.chmod(0o750)
    assert choose("eth0", pod.netns, paced.paths).throttle is not None
    os.chown(folder, 1000, 1000)
    assert choose("eth0", pod.netns, paced.paths).throttle is None


def test_files_of_older_versions_are_read_too(agent: Agent) -> None:
    document = {"ID": 7, "IfName": "lxc7", "IfIndex": 12, "K8sNamespace": "core", "K8sPodName": "upf-7"}
    folder = agent.paths.state / "7"
    folder.mkdir()
    encoded = base64.b64encode(json.dumps(document).encode()).decode()
    (folder / "ep_config.h").write_text(f"/*\n * CILIUM_BASE64_djEuMTM=:{encoded}\n *\n */\n#define LXC_ID 7\n")
    assert endpoints(agent.paths.state) == [Endpoint(7, "lxc7", 12, "core", "upf-7")]
    (folder / "ep_config.json").write_text(json.dumps(document | {"K8sPodName": "newer"}))
    assert endpoints(agent.paths.state) == [Endpoint(7, "lxc7", 12, "core", "newer")]
    for name in ("7_next", "8", "x", "70000"):
        (agent.paths.state / name).mkdir()
    (agent.paths.state / "8" / "ep_config.json").symlink_to(folder / "ep_config.json")
    assert [endpoint.id for endpoint in endpoints(agent.paths.state)] == [7]


# -- setting -----------------------------------------------------------------------------------------------------------


def test_a_rate_is_set_and_given_back(paced: Agent, pod: Pod) -> None:
    with contextlib.closing(ThrottleRate(original_of(pod, paced))) as rate:
        assert rate.mbps == rate.read() == 50
        assert rate.set(10) == 10
        assert paced.read(ENDPOINT) == value_of(1_250_000, last_ns=77, prio=9), "nothing else has changed"
        assert rate.deviation() is None
        assert rate.set(10.02) == 10, "within the dead band"
        assert rate.set(math.inf) == 50, "none is the original rate"
        assert rate.set(400) == 50, "and no more than that"
        assert rate.set(10) == 10
        rate.restore()
        assert paced.read(ENDPOINT) == ORIGINAL


def test_a_drop_horizon_is_set_where_it_is_configured(paced: Agent, pod: Pod) -> None:
    with contextlib.closing(ThrottleRate(original_of(pod, paced), horizon_ms=50)) as rate:
        assert paced.read(ENDPOINT) == ORIGINAL, "not before the first rate"
        rate.set(20)
        assert paced.read(ENDPOINT) == value_of(2_500_000, 77, 50_000_000, prio=9)
        paced.write(ENDPOINT, value_of(2_500_000, 77, 2_000_000_000, prio=9))
        assert rate.deviation() == "a drop horizon of 2000 ms instead of 50 ms"
        rate.reassert()
        assert entry_of(paced.read(ENDPOINT)).horizon_ns == 50_000_000
        rate.restore()
        assert paced.read(ENDPOINT) == ORIGINAL


def test_what_the_agent_writes_is_not_written_over_before_it_is_judged(paced: Agent, pod: Pod) -> None:
    with contextlib.closing(ThrottleRate(original_of(pod, paced))) as rate:
        rate.set(10)
        paced.write(ENDPOINT, value_of(5_000_000, prio=9))
        with pytest.raises(ActuatorError, match="40 Mbit/s instead of 10 Mbit/s") as raised:
            rate.set(12)
        assert not raised.value.vanished
        assert paced.read(ENDPOINT) == value_of(5_000_000, prio=9)
        assert rate.deviation() == "40 Mbit/s instead of 10 Mbit/s"
        assert rate.reassert() == 10
        assert rate.set(12) == 12


@pytest.mark.parametrize("what", ["entry", "map", "pin", "pod"])
def test_what_vanishes_is_gone(paced: Agent, pod: Pod, what: str) -> None:
    with contextlib.closing(ThrottleRate(original_of(pod, paced))) as rate:
        rate.set(10)
        if what == "entry":
            paced.delete(ENDPOINT)
        elif what == "map":
            descriptor = untyped_map()
            paced.pin(descriptor)
            paced.write(ENDPOINT, ORIGINAL)
            os.close(descriptor)
        elif what == "pin":
            paced.paths.pin.unlink()
        else:
            pod.close()
        if what != "pod":
            with pytest.raises(ActuatorError) as raised:
                rate.deviation()
            assert raised.value.vanished
            assert "\n" not in str(raised.value)
        if what in {"entry", "pod"}:  # of a map that nobody uses any more it does not matter
            with pytest.raises(ActuatorError, match="is gone") as raised:
                rate.restore()
            assert raised.value.vanished
        if what == "pod":  # the number may be another pod's by now
            assert entry_of(paced.read(ENDPOINT)).bytes_per_s == 1_250_000


# -- as the egress knob ------------------------------------------------------------------------------------------------


def test_without_an_entry_the_slice_is_shaped_in_its_pod(paced: Agent, pod: Pod) -> None:
    paced.delete(ENDPOINT)
    with NodeActuator([target(pod, paced)]) as node:
        node.apply(knobs(10))
        assert "htb" in pod.tool("tc", "qdisc", "show", "dev", "eth0")
    assert "htb" not in pod.tool("tc", "qdisc", "show", "dev", "eth0")
    with contextlib.closing(EgressRate("eth0", pod.netns)) as rate:  # and a slice with neither has none
        rate.restore()
    with NodeActuator([SliceTargets("a", None, cilium=paced.paths)]) as node:
        assert float(node.apply(knobs(10)).applied.values[2, 0, 0]) == math.inf


def test_a_slice_goes_on_with_a_shaper_when_its_annotation_is_taken_away(paced: Agent, pod: Pod) -> None:
    with NodeActuator([target(pod, paced)]) as node:
        node.apply(knobs(10))
        paced.delete(ENDPOINT)
        for _ in range(100):
            node.deviations()
            lost = node.refresh()
            node.apply(knobs(10))
            if not lost and "htb" in pod.tool("tc", "qdisc", "show", "dev", "eth0"):
                break
            time.sleep(0.02)
        assert float(node.apply(knobs(12)).applied.values[2, 0, 0]) == 12
        assert "12Mbit" in pod.tool("tc", "class", "show", "dev", "eth0")
    assert "htb" not in pod.tool("tc", "qdisc", "show", "dev", "eth0")


def test_a_write_of_the_agent_is_noticed_and_left_to_it(paced: Agent, pod: Pod) -> None:
    with NodeActuator([target(pod, paced)]) as node:
        watch = ExternalChangeWatch(node)
        node.apply(knobs(10))
        assert watch.look(0) == []
        theirs = value_of(2_500_000, prio=7)
        paced.write(ENDPOINT, theirs)
        [change] = watch.look(1)
        assert (change.found, change.ours, change.policy) == (20, 10, "respect")
        assert change.text == "20 Mbit/s instead of 10 Mbit/s"
        assert float(node.apply(knobs(5)).applied.values[2, 0, 0]) == 20
    assert paced.read(ENDPOINT) == theirs, "what was left to others is not restored"
