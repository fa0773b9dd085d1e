"""`testbed up` notices a user plane that carries nothing, and says where the packets are lost."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.testbed.lifecycle.carrying import NotCarriedError
from slicepilot.testbed.lifecycle.removal import running, take_down
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"this machine lacks {'; '.join(missing())}")
NAME = "sptc"


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    made = Testbed.up(TestbedSpec(name=NAME, burn_us=0, ues=1), owned=True)
    yield made
    take_down(NAME)


def modify(testbed: Testbed, gate: str) -> None:
    """Set a gate of slice1 by its SMF."""
    name, state = gate.split("=")
    smf = testbed.smf()
    try:
        smf.ask("modify", session="slice1/0", **{name: state})
    finally:
        smf.close()


UPLINK = r"slice slice1, uplink: no packet from UE 10\.60\.0\.2 through TEID 0x1000 at 10\.100\.0\.2 to 10\.103\.0\.2 "
DOWNLINK = (
    r"slice slice1, downlink: no packet from 10\.103\.0\.2 to UE 10\.60\.0\.2 through TEID 0x1000 at 10\.100\.0\.1 "
)


@pytest.mark.parametrize(
    ("fault", "repair", "said"),
    [
        pytest.param(
            "gate_ul=closed",
            "gate_ul=open",
            UPLINK + r"arrives; of 20, 20 reached N3, 0 left the UPF for its TUN device \(tun in sptc-upf-slice1\), "
            r"the UPF dropped 20 \(gate\)",
            id="closed gate",
        ),
        pytest.param(
            "upf-slice1 route del default",
            "upf-slice1 route add default via 10.102.0.1",
            UPLINK + r"arrives; of 20, 20 reached N3, 20 left the UPF for its TUN device, "
            r"0 left on N6 \(n6 in sptc-upf-slice1\)",
            id="no route to N6",
        ),
        pytest.param(
            "up route del 10.60.0.0/24",
            "up route add 10.60.0.0/24 via 10.102.0.2",
            DOWNLINK + r"arrives; of 20, 20 came over the shared uplink, \d reached N6 \(n6 in sptc-upf-slice1\)",
            id="no route to the UE",
        ),
        pytest.param(
            "gate_dl=closed",
            "gate_dl=open",
            DOWNLINK + r"arrives; of 20, 20 came over the shared uplink, 20 reached N6, 20 reached the UPF's TUN "
            r"device, \d left the UPF on N3 \(n3 in sptc-upf-slice1\), "
            r"the UPF dropped 20 \(gate\)",
            id="closed downlink gate",
        ),
        pytest.param(
            "upf-slice1 link set n3 mtu 68",  # the other end's packets are longer than it takes
            "upf-slice1 link set n3 mtu 1600",
            UPLINK + r"arrives; of 20, \d reached N3 \(n3 in sptc-upf-slice1\)",
            id="narrow N3",
        ),
    ],
)
def test_says_where_packets_are_lost(testbed: Testbed, fault: str, repair: str, said: str) -> None:
    def change(what: str) -> None:
        if what.startswith("gate"):
            modify(testbed, what)
        else:
            subprocess.run(f"ip -n {NAME}-{what}".split(), check=True)

    change(fault)
    try:
        with pytest.raises(NotCarriedError) as raised:
            testbed.check_carrying()
    finally:
        change(repair)
    assert re.fullmatch(said, str(raised.value)), str(raised.value)
    testbed.check_carrying()


def test_a_upf_that_is_gone_is_named(testbed: Testbed) -> None:
    testbed.upf("slice5").stop()
    with pytest.raises(NotCarriedError) as raised:
        testbed.check_carrying()
    line, _ = str(raised.value).splitlines()
    assert line.startswith("slice slice5, uplink: no packet from UE 10.60.4.2 "), line
    assert line.endswith("none can have left the UPF for its TUN device: tun in sptc-upf-slice5 does not exist"), line


def test_up_fails_in_one_line_per_direction_and_leaves_nothing() -> None:
    """As the command does, with a gate closed and a route missing before it looks."""
    name = "sptd"
    program = (
        "import subprocess\n"
        "from slicepilot.testbed.lifecycle.testbed import Testbed\n"
        "set_up = Testbed._set_up_sessions\n"
        "def broken(self, smf):\n"
        "    set_up(self, smf)\n"
        "    smf = self.smf()\n"
        "    smf.ask('modify', session='slice2/0', gate_ul='closed', gate_dl='closed')\n"
        "    smf.close()\n"
        f"    subprocess.run(['ip', '-n', '{name}-up', 'route', 'del', '10.60.3.0/24'], check=True)\n"
        "Testbed._set_up_sessions = broken\n"
        "from slicepilot.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", program, "testbed", "up", "--name", name, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        assert ended.returncode == 1
        assert ended.stdout == ""
        lines = ended.stderr.splitlines()
        starts = (
            "slicepilot: error: slice slice2, uplink: ",
            "slicepilot: error: slice slice2, downlink: ",
            "slicepilot: error: slice slice4, downlink: ",
        )
        assert len(lines) == len(starts), lines
        assert all(line.startswith(start) for start, line in zip(starts, lines, strict=True)), lines
        assert name not in running()
        assert list(Path("/run/netns").glob(f"{name}-*")) == []
    finally:
        take_down(name)
