"""Open5GS's UPF, where it is installed: SLICEPILOT_OPEN5GS names open5gs-upfd, or a folder with it or its bin.

No package registry has it, so that CI cannot run this; docs/node.md says which release has passed.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.node.find.discover import discover

from .foreign import Foreign
from .test_foreign import slicepilot

VARIABLE, PROGRAM = "SLICEPILOT_OPEN5GS", "open5gs-upfd"
GIVEN = os.environ.get(VARIABLE)

pytestmark = [
    pytest.mark.opt_in,
    pytest.mark.skipif(not GIVEN, reason=f"opt-in: {VARIABLE} does not name an {PROGRAM} of Open5GS 2.7 or later"),
]


@pytest.fixture(name="open5gs", scope="module")
def _open5gs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    given = Path(GIVEN or "").absolute()
    locations = [given, given / PROGRAM, given / "bin" / PROGRAM]
    result = [path for path in locations if path.is_file() and os.access(path, os.X_OK)]
    assert result, f"{VARIABLE} = {given}: expected an executable {PROGRAM}, or a folder with it or its bin"
    with Foreign(
        tmp_path_factory.mktemp("open5gs"), count=2, prefix="fg", KIND="open5gs", PROGRAM=str(result[0])
    ) as node:
        yield node


def test_it_is_discovered_measured_and_its_knobs_act(open5gs: Foreign, tmp_path: Path) -> None:
    """Each of two, which have each other to be weighed against."""
    both = [item for item in discover() if item.netns_name in open5gs.netns]
    assert [(item.confidence, item.why[0]) for item in both] == [("sure", "its program is that of Open5GS")] * 2
    assert [(item.devices.n3, item.devices.n6, item.devices.tun) for item in both] == [("n3", "n6", "ogstun")] * 2

    path = open5gs.draft(tmp_path / "node.yaml")
    open5gs.load(seconds=15, mbps=8)
    checked = json.loads(slicepilot("node", "check", str(path), "--seconds", "2", "--json").stdout)
    open5gs.carried_mbps()
    assert len(checked) == 2
    for item in checked:
        assert item["traffic"]["match_ratio"] > 0.99
        assert all(knob["authority"] for knob in item["knobs"].values())
        assert "us of CPU time a packet" in item["knobs"]["cpu_limit"]["why"]
