"""A UPF is the one process that all conditions fit, or nobody's."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.configs import ConfigError
from slicepilot.configs.text import printable
from slicepilot.controller.system.cgroup import CpuGroup, CpuHierarchy
from slicepilot.controller.system.kernel_file import ActuatorError, KernelFile
from slicepilot.node.config.selectors import ComposeSelector, PodSelector, ProcessSelector, UpfSelector
from slicepilot.node.config.spec import NodeSpec
from slicepilot.node.find.containers import CRIO_KEYS, Container, containers
from slicepilot.node.find.discover import _selector
from slicepilot.node.find.follow import Follower
from slicepilot.node.find.links import PREFIX, UpfLinks
from slicepilot.node.find.locate import Finder
from slicepilot.node.find.processes import RESTS_AFTER, Process, companions, eldest, look_at, snapshot
from slicepilot.node.live.own_groups import OwnGroups

from .runtimes import until

USER = str(os.getuid())
IDENTITY = "4f1e9c0d2b3a4f1e" * 4
OTHER = "5a5a5a5a5a5a5a5a" * 4


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[int]:
    """A process of this name: the interpreter, under arguments that nothing else has."""
    command = [sys.executable, "-c", "import time; time.sleep(60)", *arguments]
    with subprocess.Popen(command) as process:
        try:
            while (seen := look_at(process.pid)) is None or "-c" not in seen.arguments:
                time.sleep(0.005)
            yield process.pid
        finally:
            process.kill()


def program() -> str:
    own = look_at(os.getpid())
    assert own is not None
    return own.program


def proc(pid: int, parent: int = 1, group: str = "/", program: str = "upf") -> Process:
    names = frozenset(group.split("/")) - {""}
    return Process(pid, parent, 1, program[:15], 0, program, (program,), (("cpu", group),), (1, 2), names)


def test_program_and_arguments_select_a_process() -> None:
    with running("--n3", "192.0.2.1") as first, running("--n3", "192.0.2.2"):
        selector = UpfSelector(process=ProcessSelector(program(), ("192.0.2.1",)), user=USER)
        assert Finder().find("a", selector).process.pid == first


def test_two_that_fit_are_named_and_neither_is_taken() -> None:
    with running("192.0.2.3") as first, running("192.0.2.3") as second, pytest.raises(ConfigError) as error:
        Finder().find("a", UpfSelector(process=ProcessSelector(program(), ("192.0.2.3",))))
    assert "slices.a.upf" in str(error.value)
    assert f"({first})" in str(error.value)
    assert f"({second})" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_another_users_process_of_the_name_is_not_it() -> None:
    with running("192.0.2.4"), pytest.raises(ConfigError, match="no such process runs"):
        Finder().find("a", UpfSelector(process=ProcessSelector(program(), ("192.0.2.4",)), user=str(os.getuid() + 1)))


def test_of_a_program_and_its_workers_it_is_the_program() -> None:
    everybody = {process.pid: process for process in (proc(10), proc(11, 10), proc(12, 11), proc(20), proc(30, 2))}
    assert [process.pid for process in eldest(everybody.values(), everybody)] == [10, 20, 30]


def test_parents_that_go_round_are_survived() -> None:
    """Numbers are used again while a picture is taken."""
    everybody = {process.pid: process for process in (proc(10, 11), proc(11, 10))}
    assert eldest([everybody[10]], everybody) == [everybody[10]]


def test_a_containers_init_and_workers_are_no_companions() -> None:
    init, upf, worker, sidecar = proc(1), proc(10, 1, "/a"), proc(11, 10, "/a"), proc(12, 1, "/a")
    elsewhere = proc(13, 1, "/b")
    tini = proc(9, 1, "/a")
    under = proc(14, 9, "/a")
    everybody = {process.pid: process for process in (init, upf, worker, sidecar, elsewhere)}
    assert companions(upf, everybody) == [sidecar]
    assert companions(under, {process.pid: process for process in (init, tini, under)}) == []


def test_links_of_the_dead_go_when_the_next_are_made(tmp_path: Path) -> None:
    with running("links") as pid:
        (tmp_path / f"{PREFIX}{pid}-x").mkdir()
        first = UpfLinks(tmp_path)
        assert (tmp_path / f"{PREFIX}{pid}-x").exists()
    second = UpfLinks(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([first.folder, second.folder])
    assert first.folder.stat().st_mode & 0o077 == 0
    second.close()
    first.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("selector", "group"),
    [
        (UpfSelector(unit="open5gs-upfd@a.service"), "/system.slice/open5gs-upfd@a.service"),
        (UpfSelector(container=IDENTITY[:12]), f"/system.slice/docker-{IDENTITY}.scope"),
        (UpfSelector(container="edge-upf"), f"/docker/{IDENTITY}"),
        (UpfSelector(compose=ComposeSelector("upf")), f"/docker/{IDENTITY}"),
        (UpfSelector(compose=ComposeSelector("upf", "edge")), f"/kubepods/pod1/{IDENTITY}"),
        (UpfSelector(pod=PodSelector("upf-0", "core")), f"/kubepods/burstable/pod77/{IDENTITY}"),
        (
            UpfSelector(pod=PodSelector("upf-0", "core", "upf", "77")),
            f"/kubepods.slice/cri-containerd-{IDENTITY}.scope",
        ),
        (UpfSelector(pod=PodSelector("upf-1", "core", "upf")), f"/kubepods.slice/crio-{OTHER}.scope"),
    ],
)
def test_units_and_containers_are_known_by_their_groups(selector: UpfSelector, group: str) -> None:
    labels = {"com.docker.compose.service": "upf", "com.docker.compose.project": "edge"}
    ours, theirs = "io.kubernetes.cri.", "io.kubernetes."  # containerd's and CRI-O's
    labels |= {f"{ours}sandbox-name": "upf-0", f"{ours}sandbox-namespace": "core", f"{ours}sandbox-uid": "77"}
    labels |= {f"{ours}container-name": "upf", f"{ours}container-type": "container"}
    crio = {f"{theirs}pod.name": "upf-1", f"{theirs}pod.namespace": "core", f"{theirs}container.name": "upf"}
    known = [
        Container(IDENTITY, "edge-upf", labels),
        Container("0" * 60, "other", {}),
        Container(OTHER, "k8s_x", crio, CRIO_KEYS),
    ]
    own = look_at(os.getpid())
    assert own is not None
    processes = {own.pid: dataclasses.replace(own, group_names=frozenset(group.split("/")))}
    assert Finder(processes, known).find("a", selector).process.pid == own.pid
    with pytest.raises(ConfigError, match="no such process runs"):
        Finder({7: proc(7, group="/system.slice/docker-1234.scope")}, known).find("a", selector)


@pytest.mark.parametrize("scope", ["cri-containerd-{}.scope", "{}"], ids=["systemd", "cgroupfs"])
def test_a_pod_is_proposed_by_its_name_which_outlasts_its_container(scope: str) -> None:
    """Systemd's driver makes a unit of each container, named after its id."""
    notes = {"sandbox-name": "upf-0", "sandbox-namespace": "core", "sandbox-uid": "77", "container-name": "upf"}
    known = [Container(IDENTITY, "upf", {f"io.kubernetes.cri.{key}": text for key, text in notes.items()})]
    upf = proc(7, group=f"/kubepods.slice/kubepods-pod77.slice/{scope.format(IDENTITY)}")
    assert _selector(upf, None, Finder({7: upf}, known)) == UpfSelector(pod=PodSelector("upf-0", "core"))


@pytest.mark.parametrize(
    "other",
    [
        PodSelector("upf-1", "core"),
        PodSelector("upf-0"),
        PodSelector("upf-0", "core", "sidecar"),
        PodSelector("upf-0", "core", uid="78"),
    ],
)
def test_another_pod_is_not_taken_for_it(other: PodSelector) -> None:
    notes = {"sandbox-name": "upf-0", "sandbox-namespace": "core", "sandbox-uid": "77", "container-name": "upf"}
    labels = {f"io.kubernetes.cri.{key}": text for key, text in notes.items()}
    sandbox = labels | {"io.kubernetes.cri.container-type": "sandbox"}
    processes = {
        7: proc(7, group=f"/kubepods/pod77/{IDENTITY}"),
        8: proc(8, group=f"/kubepods/pod77/{OTHER}"),
    }
    finder = Finder(processes, [Container(IDENTITY, "upf", labels), Container(OTHER, OTHER, sandbox)])
    assert finder.find("a", UpfSelector(pod=PodSelector("upf-0", "core"))).process.pid == 7
    with pytest.raises(ConfigError, match="no such process runs"):
        finder.find("a", UpfSelector(pod=other))


def test_what_is_run_beside_a_container_is_not_its_upf() -> None:
    """``kubectl exec`` runs it in the container's groups, as a child of the runtime's."""
    known = [Container(IDENTITY, "upf", init=7)]
    group, runtime = f"/docker/{IDENTITY}", f"/system.slice/crio-conmon-{IDENTITY}.scope"
    processes = {
        5: proc(5, group=runtime, program="conmon"),  # its group has the container's id as well
        7: proc(7, parent=5, group=group, program="sh"),
        8: proc(8, parent=7, group=group),
        9: proc(9, parent=5, group=group),
    }
    finder = Finder(processes, known)
    assert finder.find("a", UpfSelector(container="upf")).process.pid == 7
    assert finder.find("a", UpfSelector(container="upf", process=ProcessSelector("upf"))).process.pid == 8
    with pytest.raises(ConfigError, match="fits 2 processes"):
        Finder(processes, [Container(IDENTITY, "upf")]).find("a", UpfSelector(container=IDENTITY[:12]))


@pytest.mark.skipif(os.geteuid() != 0 or not os.access("/sys/fs/cgroup", os.W_OK), reason="needs cgroups to make")
@pytest.mark.parametrize("name", ["upf@a.service", f"docker-{IDENTITY}.scope"])
def test_who_has_a_subtree_of_groups_of_his_own_names_no_unit_and_no_container(name: str) -> None:
    folder = CpuHierarchy.find().root / f"delegated-{os.getpid()}"
    group = folder / name
    group.mkdir(parents=True)
    with running("delegated") as pid:
        try:
            (group / "cgroup.procs").write_text(str(pid))
            seen = look_at(pid)
            assert seen is not None
            assert {folder.name, name} <= seen.group_names, "as long as it is root's"
            os.chown(folder, 65534, -1)
            seen = look_at(pid)
            assert seen is not None
            assert folder.name in seen.group_names
            assert name not in seen.group_names
        finally:
            (folder.parent / "cgroup.procs").write_text(str(pid))
            os.chown(folder, 0, -1)
            group.rmdir()
            folder.rmdir()


@pytest.mark.parametrize("runtime", ["docker", "crio"])
def test_a_pods_own_annotations_do_not_make_it_another(tmp_path: Path, runtime: str) -> None:
    """CRI-O writes those of the pod beside its own, Docker the image's labels: who may make pods may choose them."""
    said = {"sandbox-name": "upf-0", "sandbox-namespace": "core", "sandbox-uid": "77", "container-name": "upf"}
    notes = {f"io.kubernetes.cri.{key}": text for key, text in said.items()}
    notes |= {"io.kubernetes.cri.container-type": "sandbox"}  # and it does not hide itself
    notes |= {"io.kubernetes.pod.name": "evil", "io.kubernetes.pod.namespace": "theirs", "io.kubernetes.pod.uid": "9"}
    notes |= {"io.kubernetes.container.name": "x"}
    documents = {
        "crio": (tmp_path / "crio" / IDENTITY / "userdata", {"annotations": notes}),
        "docker": (tmp_path / "docker" / IDENTITY, {"Config": {"Labels": notes}}),
    }
    folder, document = documents[runtime]
    folder.mkdir(parents=True)
    (folder / ("config.json" if runtime == "crio" else "config.v2.json")).write_text(json.dumps(document))
    [result] = containers(tmp_path / "docker", tmp_path / "containerd", tmp_path / "crio")
    assert result.pod == ("evil", "theirs", "9", "x")


def test_names_of_containers_come_from_their_runtimes_files(tmp_path: Path) -> None:
    docker, containerd, crio = tmp_path / "docker", tmp_path / "containerd", tmp_path / "crio"
    for path, text in {
        docker
        / IDENTITY
        / "config.v2.json": '{"Name": "/upf-a", "Config": {"Labels": {"a": "b"}}, "State": {"Pid": 11}}',
        docker / "broken" / "config.v2.json": "{",
        docker / "odd" / "config.v2.json": "[1]",
        docker / "deep" / "config.v2.json": "[" * 100_000,
        docker / "huge" / "config.v2.json": " " * 2_000_000 + "{}",
        containerd / "k8s.io" / "c1" / "config.json": '{"annotations": {"io.kubernetes.cri.container-name": "upf"}}',
        crio / "c3" / "userdata" / "config.json": '{"annotations": {"io.kubernetes.pod.name": "a"}}',
        containerd / "k8s.io" / "c1" / "init.pid": "12",
        crio / "c3" / "userdata" / "pidfile": "13\n",
        containerd / "default" / "c2" / "init.pid": "1" * 100,
        containerd / "default" / "c2" / "config.json": '{"annotations": {"nerdctl/name": "upf-b"}}',
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    inits = {container.identity: container.init for container in containers(docker, containerd, crio)}
    assert {name: pid for name, pid in inits.items() if pid is not None} == {IDENTITY: 11, "c1": 12, "c3": 13}
    result = {container.identity: container.name for container in containers(docker, containerd, crio)}
    assert result == {
        IDENTITY: "upf-a",
        "broken": "",
        "odd": "",
        "deep": "",
        "huge": "",
        "c1": "upf",
        "c2": "upf-b",
        "c3": "c3",
    }


def test_there_is_no_process_of_the_kernels_in_the_picture() -> None:
    seen = snapshot()
    assert os.getpid() in seen
    assert all(process.arguments and process.pid != 2 for process in seen.values())


def test_who_looks_at_many_processes_ahead_of_others_rests_in_between() -> None:
    idle = [subprocess.Popen(["sleep", "60"]) for _ in range(2 * RESTS_AFTER)]
    try:
        began_s = time.monotonic()
        seen = snapshot(rest_s=0.1)
        assert time.monotonic() - began_s > 0.2
        assert {process.pid for process in idle} <= set(seen) & set(snapshot())
    finally:
        for process in idle:
            process.kill()
            process.wait()


def test_what_is_printed_has_no_line_ends_nor_terminal_codes() -> None:
    assert printable("upf\nname: x\x1b[2J") == "upf?name: x?[2J"
    assert "\n" not in str(proc(1, program="upf\n  - evil"))


NODE = """
name: edge
slices:
  - name: a
    s_nssai: {sst: 1}
    sla: {committed_mbps: 1, delay_bound_ms: 10}
    upf: {UPF}
"""


@pytest.mark.parametrize(
    ("upf", "said"),
    [
        ("{}", "nothing says which process it is"),
        ("{user: root}", "nothing says which process it is"),
        ("{pid: 0}", "slices.a.upf.pid = 0"),
        ("{process: {name: ''}}", "slices.a.upf.process.name"),
        ("{unit: 7}", "slices.a.upf.unit = 7"),
        ("{container: [a]}", "slices.a.upf.container"),
        ("{nmae: upf}", "nmae"),
    ],
)
def test_bad_selectors_are_reported_in_one_line(upf: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(NODE.replace("{UPF}", upf))
    with pytest.raises(ConfigError) as error:
        NodeSpec.from_yaml(str(path))
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_node_says_what_it_promises_without_where() -> None:
    node = NodeSpec.from_yaml("testbed")
    assert node.promised.names == tuple(f"slice{i}" for i in range(1, 6))
    assert node.promised_within(dict.fromkeys(node.promised.names, 0.5)).column("upf_threads").max() == 0.5


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        (UpfSelector(process=ProcessSelector("upf"), user="opne5gs"), "upf.user = opne5gs: no such user here"),
        (
            UpfSelector(process=ProcessSelector("upf"), user="65534"),
            r"; but for user = 65534 it would be upf \(7\), which runs as user root \(0\)$",
        ),
        (
            UpfSelector(process=ProcessSelector("upfd"), unit="a.service"),
            r"; but for process = upfd it would be upf \(7\)$",
        ),
        (UpfSelector(process=ProcessSelector("upfd"), user="root"), "no such process runs; expected that of a running"),
    ],
)
def test_the_condition_that_does_not_hold_is_named(selector: UpfSelector, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        Finder({7: proc(7, group="/a.service")}, []).find("a", selector)
    assert ("but for" in str(error.value)) == ("but for" in message)


def test_a_upf_whose_cgroup_was_removed_is_told_apart_from_a_upf_that_has_ended(tmp_path: Path) -> None:
    root = CpuHierarchy.find().root
    first, second = root / f"sp-follow-a{os.getpid()}", root / f"sp-follow-b{os.getpid()}"
    first.mkdir()
    second.mkdir()
    with contextlib.ExitStack() as undo:
        undo.callback(second.rmdir)
        pid = undo.enter_context(running("--follow"))
        (first / "cgroup.procs").write_text(str(pid))
        selector = UpfSelector(pid=pid)
        located = {"a": Finder().find("a", selector)}
        with contextlib.closing(UpfLinks(tmp_path)) as links:
            links.lead_to("a", located["a"].netns, first)
            follower = Follower({"a": selector}, located, links, OwnGroups("edge", {}, {}))
            assert follower.look() == []
            (second / "cgroup.procs").write_text(str(pid))
            first.rmdir()
            with pytest.raises(ActuatorError, match=f"^{first}: no such cgroup"):
                CpuGroup.at(links.cgroup("a"))
            with pytest.raises(ActuatorError, match=f"^{first}/cpu.max: open: "):
                KernelFile(links.cgroup("a") / "cpu.max")
            [text] = follower.look()
            assert f"({pid}), lives in another cgroup: {second}, before in {first}, which was removed" in text
            until(lambda: follower.located["a"].cgroup == second, "not found again")
            os.kill(pid, signal.SIGKILL)
            while (now := look_at(pid)) is not None and now.arguments:
                time.sleep(0.01)
            [text] = follower.look()
            follower.close()
            assert "a: its UPF has ended: process" in text
