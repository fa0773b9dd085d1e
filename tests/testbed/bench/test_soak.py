"""A live controller under random loads and faults for three minutes; ``slicepilot bench soak`` plays an hour."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from slicepilot.testbed.bench.soak import SoakRun
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import missing
from tests.testbed.controlled import fresh_testbed

pytestmark = [
    pytest.mark.realtime,
    pytest.mark.skipif(bool(missing()), reason=f"this machine lacks {'; '.join(missing())}"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
NAME = "spk"
# How long, how often, and how many kinds of the 11 faults have to come, each of them before any comes again.
SECONDS, FAULT_EVERY_S, KINDS = 180, 12, 8
BUNDLE = Path(__file__).parents[2] / "data" / "starves-priority"


def test_faults_leave_nothing_behind() -> None:
    # The worst policy there is: the guard acts all the time, too. Other users cannot look into pytest's folders.
    settings = {"bundle": str(BUNDLE), "guard": "default"}
    with (
        fresh_testbed(TestbedSpec(name=NAME, burn_us=50)) as testbed,
        tempfile.TemporaryDirectory(prefix="slicepilot-soak-") as folder,
    ):
        soak = SoakRun(testbed, Path(folder), settings, seed=1, advance=lambda _: None).run(SECONDS, FAULT_EVERY_S)
    print(*soak.events, sep="\n")
    assert [event for event in soak.events if event.failure] == []
    assert soak.crashes == []
    assert len({event.fault for event in soak.events}) >= KINDS
    for process in ("loop", "publisher", "supervisor"):
        assert soak.growth(process, "descriptors") <= 3
        assert soak.growth(process, "threads") <= 1
        assert soak.growth(process, "resident_kb") < 16_384
