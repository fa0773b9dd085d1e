"""TCP through a terminal's tunnel, and PFCP transactions beside it, on real UPFs."""

import contextlib
import os
import time
from dataclasses import replace

import numpy as np
import pytest

from slicepilot.configs import ConfigError
from slicepilot.env.simulator.scenario import Load, Scenario
from slicepilot.testbed.backend.backend import open_backend
from slicepilot.testbed.backend.traffic import LOAD_PRIORITY, LoadRun, plan_of
from slicepilot.testbed.lifecycle.testbed import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"this machine lacks {'; '.join(missing())}")


def test_a_user_loads_by_tcp_while_sessions_come_and_go() -> None:
    scenario = replace(Scenario.from_yaml("testbed-mishra-light"), duration_s=2.0)
    with contextlib.closing(open_backend(scenario, config="mishra", record_packets=True, read_only=True)) as backend:
        smf = next(entry["pid"] for entry in backend.testbed.journal.entries("process") if entry["program"] == "smf")
        run = LoadRun(backend.testbed, scenario, 0)
        run.start()
        with contextlib.closing(backend.transactions()) as transactions:
            assert os.sched_getscheduler(smf) == os.SCHED_FIFO
            assert os.sched_getparam(smf).sched_priority == LOAD_PRIORITY
            asked = []
            for _ in range(20):
                transactions.begin()
                time.sleep(0.1)
                asked += transactions.read()
            time.sleep(0.5)
            asked += transactions.read()
        assert os.sched_getscheduler(smf) == os.SCHED_OTHER
        reports, events = run.stop(), backend.packet_events()
        assert transactions.failures == []
        assert sorted({kind for kind, _ in asked}) == ["deletion", "establishment", "modification"]
        assert len(asked) == 60
        assert all(latency_us > 0 for _, latency_us in asked)
        [report] = [report for name, report in reports.items() if name == "ue-mMTC"]
        assert report["failures"] == report["discarded"] == report["foreign"] == 0
        assert report["octets"] > 1e6
        # What leaves the terminal is seen at N3 and at N6: requests and acknowledgements, one for some segments.
        own = events[events["slice"] == 2]
        assert 0.9 * report["uplink_packets"] <= len(own) <= report["uplink_packets"]
        assert 1.5 < report["downlink_packets"] / report["uplink_packets"] < 60
        assert np.median(own["bytes"]) == 52
        assert (own["exit_ns"] > own["n3_ns"]).all()


def test_tcp_is_alone_in_its_slice_and_asks_for_something() -> None:
    scenario = Scenario.from_yaml("testbed-mishra-light")
    [tcp] = scenario.loads["mMTC"]

    class Laid:
        from slicepilot.testbed.lifecycle.layout import Layout

        layout = Layout("sp", scenario.slice_set().names, (9, 9, 9))

    for loads in ((tcp, Load("cbr", rate_mbps=1.0)), (replace(tcp, answer_bytes=0),), (replace(tcp, start_s=1.0),)):
        with pytest.raises(ConfigError, match=r"loads.mMTC: kind 'tcp'; expected on a testbed"):
            plan_of(replace(scenario, loads={"mMTC": loads}), Laid(), 0)  # type: ignore[arg-type]
