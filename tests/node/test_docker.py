"""UPFs in containers of a real Docker are discovered, checked and controlled; `docker update` is noticed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import yaml

from .foreign import restored_ms
from .machine import booted
from .runtimes import DockerUpfs, changes, checked, controller, until
from .test_foreign import measured

NOTICED_S = 1.2  # it looks once a second
MOST_RESTORED_MS = 500.0  # beside other tests; alone it takes some 7: test_faults.py


@pytest.fixture(scope="module", name="upfs")
def _upfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerUpfs]:
    with booted(tmp_path_factory.mktemp("docker")) as machine:
        yield DockerUpfs(machine)


def quota_us(upfs: DockerUpfs, number: int) -> str:
    group = upfs.group(number)
    return next((group / name).read_text() for name in ("cpu.max", "cpu.cfs_quota_us") if (group / name).exists())


def test_services_are_selected_by_the_labels_of_compose_and_checked(upfs: DockerUpfs) -> None:
    document = upfs.discovered()
    assert [item["name"] for item in document["slices"]] == list(upfs.slices)
    for number, item in enumerate(document["slices"], 1):
        assert item["upf"] == {"compose": {"service": f"upf{number}", "project": "sp"}}
        assert item["devices"] == {
            "n3": "eth1",
            "tun": "tun",
            "n6": "eth0",
            "n6_netns": "/proc/1/ns/net",
            "n4": "eth2",
        }
    for item in checked(upfs, upfs.node()).values():
        assert item["measured"]
        assert item["traffic"]["match_ratio"] > 0.99
        assert all(knob["authority"] for knob in item["knobs"].values())
        assert any("Docker (at `docker update`)" in note for note in item["notes"])


@pytest.mark.parametrize("policy", ["respect", "reassert"])
def test_docker_update_is_noticed_in_a_second(upfs: DockerUpfs, policy: str) -> None:
    node, before, result = upfs.node(), upfs.knobs(), quota_us(upfs, 1)
    with controller(upfs, node, foreign={"policy": policy}) as running:
        until(lambda: upfs.knobs() != before, "nothing was moved")
        started = time.time()
        upfs.machine.run("docker", "update", "--cpus", "0.5", upfs.slices[0])
        theirs = quota_us(upfs, 1)
        assert theirs != result
        until(lambda: bool(changes(running)), "not noticed", 3.0)
        [item] = changes(running)
        assert (item["slice"], item["knob"], item["policy"]) == (upfs.slices[0], "cpu_limit_mcpu", policy)
        assert item["found"] == 500
        assert item["time_ns"] / 1e9 - started < NOTICED_S
        assert "perhaps by Docker" in item["text"]
        assert running.notes()["totals"]["foreign_changes"] == 1
        if policy == "reassert":
            until(lambda: quota_us(upfs, 1) == result, "not set again", 3.0)
    # What was respected is theirs, also at the end.
    assert quota_us(upfs, 1) == (theirs if policy == "respect" else result)
    upfs.group(1).joinpath("cpu.cfs_quota_us" if result.strip() == "-1" else "cpu.max").write_text(result)
    assert upfs.knobs() == before


def test_a_service_that_is_made_anew_is_taken_up_again(upfs: DockerUpfs) -> None:
    """Another container: another id, cgroup, namespace, and another name of N6's far end. A SIGKILL ends it."""
    node, before, old = upfs.node(), upfs.knobs(), upfs.group(2)
    upfs.load(seconds=25, mbps=4)
    with controller(upfs, node) as running:
        until(lambda: measured(running, 2), "not measured")
        upfs.compose("up", "-d", "--force-recreate", "--no-deps", "upf2")
        group = upfs.group(2)
        assert group != old
        until(lambda: measured(running, 2), "not measured again")
        until(lambda: upfs.knobs()["2/cpu.shares"] != before["2/cpu.shares"], "not moved again")
        assert "htb" in upfs.knobs()["2/n6"]
        assert restored_ms(running.inside, upfs.machine.folder / "state") < MOST_RESTORED_MS
    assert upfs.knobs() == before
    upfs.unload()


def test_a_container_of_the_same_name_is_taken_up_again(upfs: DockerUpfs) -> None:
    """By `docker rm -f` and `docker create`: its name is all that is left of it."""
    node = upfs.node()
    document = yaml.safe_load(node.read_text())
    document["slices"][1]["upf"] = {"container": "by-hand"}
    node.write_text(yaml.safe_dump(document))
    run = upfs.machine.run
    run("docker", "rm", "-f", upfs.slices[1])
    create(upfs)
    upfs.load(seconds=25, mbps=4)
    try:
        with controller(upfs, node) as running:
            until(lambda: measured(running, 2), "not measured")
            run("docker", "rm", "-f", "by-hand")
            until(lambda: not measured(running, 2), "still measured", 3.0)
            create(upfs)
            until(lambda: measured(running, 2), "not measured again")
    finally:
        run("docker", "rm", "-f", "by-hand")
        upfs.compose("up", "-d", "--no-deps", "upf2")
        upfs.unload()


def create(upfs: DockerUpfs) -> None:
    """The second UPF without Compose, on Compose's networks."""
    run = upfs.machine.run
    options = ["--cap-add=NET_ADMIN", "--device=/dev/net/tun", "--sysctl=net.ipv4.ip_forward=1"]
    options += [f"--sysctl=net.ipv4.conf.{name}.rp_filter=0" for name in ("all", "default")]
    upf = ["upf", "--n4", "10.211.2.2", "--n3", "10.210.2.2", "--tun", "tun", "--ue-pool", "10.61.2.0/24"]
    run("docker", "create", "--name=by-hand", "--network=sp_n6", "--ip=10.213.0.3", *options, *upf)
    for name, address in (("sp_n3-2", "10.210.2.2"), ("sp_n4-2", "10.211.2.2")):
        run("docker", "network", "connect", "--ip", address, name, "by-hand")
    run("docker", "start", "by-hand")
