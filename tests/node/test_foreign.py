"""UPFs that slicepilot has not started are watched and controlled, followed, and restored."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from slicepilot.configs import ConfigError
from slicepilot.controller.system.net.namespaces import NAMED
from slicepilot.controller.system.processes import start_ticks
from slicepilot.controller.telemetry.discover import Devices, Upf, points_of
from slicepilot.env.telemetry import SLICE_FIELDS
from slicepilot.testbed.bench.rig import KNOB_FILES, Controller
from tests.command import slicepilot as run_slicepilot

from .foreign import COUNT, Foreign
from .runtimes import until

SLICEPILOT = [sys.executable, "-m", "slicepilot.cli"]
STOPPED_S = 60.0  # on a machine that others use, too
AGENT = "static-weights-9"


def slicepilot(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_slicepilot(*arguments, timeout=120)
    assert done.returncode == code, done.stderr
    return done


def knobs(foreign: Foreign) -> dict[str, str]:
    """Content of every control file, and the root qdisc of every N6, by UPF."""
    result = {}
    for number in range(1, foreign.count + 1):
        for name in KNOB_FILES:
            with contextlib.suppress(OSError):
                result[f"{number}/{name}"] = (foreign.group(number) / name).read_text().strip()
        result[f"{number}/n6"] = in_netns(foreign.netns[number - 1], "tc", "qdisc", "show", "dev", "n6", "root")
    return result


def picture(foreign: Foreign) -> dict[str, str]:
    """The same with all qdiscs and filters of all devices, what is pinned, and what lies under /run."""
    result = knobs(foreign)
    for netns in [*foreign.netns, f"{foreign.prefix}-dn", f"{foreign.prefix}-ran"]:
        result[f"{netns}/qdiscs"] = in_netns(netns, "tc", "qdisc", "show")
        for device in json.loads(in_netns(netns, "ip", "-json", "link")):
            for hook in ("ingress", "egress"):
                where = f"{netns}/{device['ifname']}/{hook}"
                result[where] = in_netns(netns, "tc", "filter", "show", "dev", device["ifname"], hook)
    result["pins"] = "\n".join(sorted(str(path) for path in Path("/sys/fs/bpf").rglob("*")))
    links = [path.name for path in Path("/run/slicepilot-private").glob("slicepilot-upfs-*")]
    # Those of processes that live are other tests'.
    result["links"] = "\n".join(sorted(name for name in links if start_ticks(int(name.split("-")[2])) is None))
    return result


def in_netns(netns: str, *command: str) -> str:
    return subprocess.run(["ip", "netns", "exec", netns, *command], capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def controller(
    node: Path,
    foreign: Foreign,
    folder: Path,
    mode: str = "live",
    agent: str = AGENT,
    period_ms: float = 10.0,
    foreign_changes: dict[str, Any] | None = None,
    **more: Any,
) -> Iterator[Controller]:
    """``slicepilot run`` on the node, by default with an agent that ranks the first slice before the others.

    ``foreign_changes`` and ``more`` are of its configuration.
    """
    folder.chmod(0o755)
    roots = {"run_root": str(folder / "run"), "state_root": str(folder / "state")}
    config = roots | {"publish": {"log": "pretty"}, "foreign": foreign_changes or {}} | more
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    log = folder / "log"
    command = [*SLICEPILOT, "run", "-c", folder / "run.yaml", "--node", node, "--mode", mode, "--agent", agent]
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*command, f"--period-ms={period_ms:g}"], stdout=out, stderr=out, stdin=subprocess.DEVNULL
        )
    running = Controller(process, folder / "run" / foreign.prefix / "ticks", log)
    try:
        running.wait_ready(mode, ticks=20 if period_ms < 1000 else 1)
        yield running
    finally:
        running.stop(STOPPED_S)


def measured(running: Controller, number: int) -> bool:
    """Whether a slice is measured, and packets of it leave."""
    with closing(running.reader()) as reader:
        last = reader.last(5)
    carried = last["slices"][:, SLICE_FIELDS.index("carried_mbps"), number - 1]
    return bool(last["valid"][-1, number - 1]) and bool((carried > 0).any())


def test_from_nothing_to_p99_in_two_commands_and_nothing_is_changed(foreign: Foreign, tmp_path: Path) -> None:
    before, started = picture(foreign), time.monotonic()
    foreign.load(seconds=20, mbps=4)
    path = foreign.draft(tmp_path / "draft.yaml")
    report = json.loads(slicepilot("run", "--node", str(path), "--seconds", "3", "--json").stdout)
    took_s = time.monotonic() - started
    assert len(report["slices"]) == COUNT
    for item in report["slices"]:
        assert item["carried_mbps"] > 2.0
        assert item["delay_p99_us"] > 0.0
    assert report["mode"] == "shadow"
    assert took_s < 60.0
    foreign.stop_loads()
    assert picture(foreign) == before


def test_lost_packets_are_reported_as_lost_and_broken_and_not_as_late(foreign: Foreign, node: Path) -> None:
    foreign.load(seconds=30, mbps=4)
    os.kill(foreign.pid(2), signal.SIGSTOP)
    try:
        report = json.loads(slicepilot("run", "--node", str(node), "--seconds", "4", "--json").stdout)
    finally:
        os.kill(foreign.pid(2), signal.SIGCONT)
    kept, lost = report["slices"][0], report["slices"][1]
    assert lost["offered_mbps"] > 1
    assert lost["lost_pct"] > 95
    assert lost["broken_s"] > 3
    assert lost["delay_p99_us"] == 0, "no packet left"
    assert kept["broken_s"] < 2
    assert kept["lost_pct"] < 50
    assert kept["delay_p99_us"] > 0


def test_a_knob_that_would_not_be_seen_to_act_is_left_alone(foreign: Foreign, node: Path, tmp_path: Path) -> None:
    """Without N6's far end packets are measured before a shaper; and what an operator says is not ours stays."""
    document = foreign.document()
    del document["slices"][0]["devices"]
    document["slices"][1]["leave"] = ["nice"]
    node.write_text(yaml.safe_dump(document | {"slices": document["slices"][:1]}))
    # Its exit code says whether a slice is measured, for which an earlier test's packets may have to do.
    done = run_slicepilot("node", "check", str(node), "--seconds", "0.3", "--json", timeout=60)
    [result] = json.loads(done.stdout)
    assert result["knobs"]["egress"]["authority"] is False
    assert "after the last point" in result["knobs"]["egress"]["why"]

    document["slices"][0]["devices"] = {"n6_netns": f"{foreign.prefix}-dn", "n6_far": "n6-1"}
    node.write_text(yaml.safe_dump(document))
    before = knobs(foreign)
    with controller(node, foreign, tmp_path):
        until(lambda: knobs(foreign) != before, "no weight was moved")
        time.sleep(0.3)
        moved = {name for name, value in knobs(foreign).items() if value != before[name]}
    assert {"3/cpu.shares", "3/cpu.weight"} & moved
    assert not {"2/cpu.shares", "2/cpu.weight"} & moved
    assert knobs(foreign) == before


def test_nobody_is_in_charge_where_no_knob_acts(foreign: Foreign, node: Path) -> None:
    document = foreign.document()
    for item in document["slices"]:
        item["leave"] = ["cpu_limit_mcpu", "nice", "egress_mbps"]
    node.write_text(yaml.safe_dump(document))
    foreign.load(seconds=20, mbps=4)
    before = knobs(foreign)
    run = ["run", "--node", str(node), "--mode", "live", "--agent", AGENT, "--seconds", "2"]
    report = json.loads(slicepilot(*run, "--json").stdout)
    assert report["in_charge"] == {"policy": 0, "guard": 0, "safe": 0, "nobody": 1}
    assert "nobody 100.0%" in slicepilot(*run).stdout
    assert knobs(foreign) == before


def test_a_qdisc_that_somebody_has_configured_stays(foreign: Foreign, node: Path, tmp_path: Path) -> None:
    in_netns(foreign.netns[4], "tc", "qdisc", "add", "dev", "n6", "root", "handle", "7:", "pfifo", "limit", "77")
    try:
        before = knobs(foreign)
        with controller(node, foreign, tmp_path):
            until(lambda: knobs(foreign)["1/n6"] != before["1/n6"], "nothing was shaped")
            assert knobs(foreign)["5/n6"] == before["5/n6"]
            assert {name for name, value in knobs(foreign).items() if name[0] == "5" and value != before[name]}
        assert knobs(foreign) == before
    finally:
        in_netns(foreign.netns[4], "tc", "qdisc", "delete", "dev", "n6", "root")


def test_restore_puts_knobs_back_after_sigkill_of_both_processes(foreign: Foreign, node: Path, tmp_path: Path) -> None:
    before, whole = knobs(foreign), picture(foreign)
    with controller(node, foreign, tmp_path) as running:
        until(lambda: knobs(foreign) != before, "nothing was moved")
        os.kill(running.supervisor, signal.SIGKILL)
        running.process.kill()
        running.process.wait()
        assert knobs(foreign) != before
        assert json.loads(slicepilot("restore", "--state", str(tmp_path / "state"), "--json").stdout)
        assert knobs(foreign) == before
    assert picture(foreign) | {"links": ""} == whole | {"links": ""}


def test_a_upf_that_restarts_in_a_new_cgroup_is_taken_up_again(foreign: Foreign, node: Path, tmp_path: Path) -> None:
    before = knobs(foreign)
    foreign.load(seconds=25, mbps=4)
    with controller(node, foreign, tmp_path) as running:
        until(lambda: measured(running, 2), "not measured")
        foreign.stop_upf(2)
        foreign.remove_group(2)
        time.sleep(0.3)
        foreign.start_upf(2)
        until(lambda: measured(running, 2), "not measured again")
        name = next(name for name in KNOB_FILES if name in {"cpu.shares", "cpu.weight"} and f"1/{name}" in before)
        until(lambda: knobs(foreign)[f"2/{name}"] != before[f"2/{name}"], "not moved again")
    assert knobs(foreign) == before
    foreign.stop_loads()


def test_a_upf_that_moves_leaves_its_old_cgroup_as_it_was(foreign: Foreign, node: Path, tmp_path: Path) -> None:
    before = knobs(foreign)
    other = foreign.group(3).with_name("elsewhere")
    other.mkdir()
    name = next(name for name in ("cpu.shares", "cpu.weight") if (other / name).exists())
    try:
        fresh = (other / name).read_text()
        with controller(node, foreign, tmp_path):
            until(lambda: knobs(foreign)[f"3/{name}"] != before[f"3/{name}"], "nothing was moved")
            (other / "cgroup.procs").write_text(str(foreign.pid(3)))
            until(lambda: (other / name).read_text() != fresh, "not followed")
            until(lambda: knobs(foreign)[f"3/{name}"] == before[f"3/{name}"], "the old group was left as it was moved")
        assert (other / name).read_text() == fresh
        assert knobs(foreign) == before
    finally:
        (foreign.group(3) / "cgroup.procs").write_text(str(foreign.pid(3)))
        other.rmdir()


def test_a_namespace_that_is_made_anew_is_measured_again(foreign: Foreign, node: Path, tmp_path: Path) -> None:
    foreign.load(seconds=25, mbps=4)
    with controller(node, foreign, tmp_path) as running:
        until(lambda: measured(running, 4), "not measured")
        foreign.stop_upf(4)
        foreign.replace_netns(4)
        until(lambda: not measured(running, 4), "still measured")
        foreign.start_upf(4)
        until(lambda: measured(running, 4), "not measured again", 12.0)
        shaped = "tc", "qdisc", "show", "dev", "n6", "root"
        until(lambda: in_netns(foreign.netns[3], *shaped).startswith("qdisc htb"), "not shaped again")
    assert not in_netns(foreign.netns[3], *shaped).startswith("qdisc htb")
    foreign.stop_loads()


def test_on_a_terminal_it_runs_as_well(foreign: Foreign, node: Path) -> None:
    """A bar that a thread draws would hold on to the capabilities that the controller gives up."""
    ours, theirs = pty.openpty()
    command = [*SLICEPILOT, "run", "--node", str(node), "--seconds", "2"]
    environment = os.environ | {"TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # EIO once nobody has the other end
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    assert process.returncode == 0, shown.decode()
    assert f"shadow on {foreign.prefix}".encode() in shown


def test_a_far_end_that_is_missing_is_reported_by_the_field_that_names_it(foreign: Foreign) -> None:
    upf, label = Upf("slice1", NAMED / foreign.netns[0], None), "slices.slice1.devices."
    for role, elsewhere in (("n3", f"{foreign.prefix}-dn"), ("n6", f"{foreign.prefix}-ran")):
        for netns, what in (
            ("vanished", "no such network namespace; expected "),
            (elsewhere, f"the other end of {role} is not there; expected the network namespace of the far end, or "),
        ):
            given = Devices(**{f"{role}_netns": netns, "near": "n6"})
            with pytest.raises(ConfigError, match=re.escape(f"{label}{role}_netns = {netns}: {what}")):
                points_of(upf, given, label)
    with pytest.raises(ConfigError, match=r"^--n6-netns = vanished: no such network namespace; expected "):
        points_of(upf, Devices(n6_netns="vanished"))
    with pytest.raises(ConfigError, match=r"^--n6-netns = .*: no interface n6 there; expected .* or --n6: one of lo, "):
        points_of(
            Upf("ran", NAMED / f"{foreign.prefix}-ran", None), Devices(n3="n3-1", n6_netns=f"{foreign.prefix}-ran")
        )


def test_bad_input_is_one_line(foreign: Foreign, node: Path) -> None:
    def error_of(change: Callable[[dict[str, Any]], None]) -> str:
        document = foreign.document()
        change(document)
        node.write_text(yaml.safe_dump(document))
        error = slicepilot("run", "--node", str(node), "--seconds", "1", code=2).stderr
        lines = [line for line in error.splitlines() if line]
        assert len(lines) == 1, error
        return lines[0]

    def upf(number: int, **selector: Any) -> Callable[[dict[str, Any]], None]:
        return lambda document: document["slices"][number].update(upf=selector)

    def devices(**names: str) -> Callable[[dict[str, Any]], None]:
        return lambda document: document["slices"][0].update(devices=names)

    # Other tests may have UPFs, too.
    several = r"slices\.slice1\.upf: process = upf, user = root: fits \d+ processes: upf \(\d+\), "
    assert re.search(several, error_of(upf(0, process={"name": "upf"}, user="root")))
    assert "no such process runs" in error_of(upf(0, process={"name": "vanished"}))
    assert "slices.slice1: its N3 is also that of slice2" in error_of(
        upf(1, process={"name": "upf"}, netns=foreign.netns[0])
    )
    for role in ("n3", "tun"):
        error = error_of(devices(**{role: "n9"}))
        assert f"slices.slice1.devices.{role} = n9: no such interface; expected lo, n3, n4, n6, tun" in error
    near = error_of(devices(n6="n9", n6_netns=f"{foreign.prefix}-ran"))
    assert "slices.slice1.devices.n6 = n9: no such interface; expected lo, n3, n4, n6, tun" in near
    assert "devices.n6_netns = vanished: no such network namespace" in error_of(devices(n6_netns="vanished"))
    far = error_of(devices(n3_netns=f"{foreign.prefix}-ran", n3_far="n9"))
    assert (
        f"slices.slice1.devices.n3_far = n9: no such interface in {foreign.prefix}-ran; expected lo, n3-1, n4-1" in far
    )
    assert "slices.slice1.weight" in error_of(lambda document: document["slices"][0].update(weight=-1))
    assert (
        "expected none with a node"
        in slicepilot("run", "--node", str(node), "--scenario", "testbed-contention", code=2).stderr
    )
