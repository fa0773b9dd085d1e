"""`testbed up` notices a user plane that carries nothing."""

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


UPLINK = "slice slice1, uplink: no packet from UE 10.60.0.2 through TEID 0x1000 at 10.100.0.2 to 10.103.0.2 arrives"
DOWNLINK = "slice slice1, downlink: no packet from 10.103.0.2 to UE 10.60.0.2 through TEID 0x1000 at 10.100.0.1 arrives"


@pytest.mark.parametrize(
    ("fault", "repair", "said"),
    [
        pytest.param(
            "upf-slice1 route del default", "upf-slice1 route add default via 10.102.0.1", UPLINK, id="no route to N6"
        ),
        pytest.param(
            "up route del 10.60.0.0/24", "up route add 10.60.0.0/24 via 10.102.0.2", DOWNLINK, id="no route to the UE"
        ),
        pytest.param(
            "upf-slice1 link set n3 mtu 68",  # the other end's packets are longer than it takes
            "upf-slice1 link set n3 mtu 1600",
            UPLINK,
            id="narrow N3",
        ),
    ],
)
def test_names_the_direction_that_loses_packets(testbed: Testbed, fault: str, repair: str, said: str) -> None:
    subprocess.run(f"ip -n {NAME}-{fault}".split(), check=True)
    try:
        with pytest.raises(NotCarriedError) as raised:
            testbed.check_carrying()
    finally:
        subprocess.run(f"ip -n {NAME}-{repair}".split(), check=True)
    [line] = str(raised.value).splitlines()
    assert line.startswith(said)
    testbed.check_carrying()


def test_a_upf_that_is_gone_is_named(testbed: Testbed) -> None:
    testbed.upf("slice5").stop()
    with pytest.raises(NotCarriedError) as raised:
        testbed.check_carrying()
    for line, direction in zip(str(raised.value).splitlines(), ("uplink", "downlink"), strict=True):
        assert line.startswith(f"slice slice5, {direction}: no packet"), line


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
