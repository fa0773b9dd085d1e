"""Grosvik's study: figures of bins, verdicts by criteria, and the simulator's egress kinds and uplink classes."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from slicepilot.configs import ConfigError
from slicepilot.data.reference import bottleneck_scenarios, published_mechanisms
from slicepilot.training.studies.grosvik.bins import Bins, figures_of_bins
from slicepilot.training.studies.grosvik.criteria import WAIT_MS, isolates, most_classes, reallocates
from slicepilot.training.studies.grosvik.measured import Control, binned
from slicepilot.training.studies.grosvik.policies import (
    AGENT,
    FRAME_BYTES,
    LINK_MBPS,
    POLICIES,
    Policy,
    flows_of,
    with_agents,
)
from slicepilot.training.studies.grosvik.rig import Rig, Run, classes_of, schedule
from slicepilot.training.studies.grosvik.simulated import play, simulate, slices_of
from slicepilot.training.studies.report import render
from slicepilot.training.studies.reproduce import Reproduction, study_of
from slicepilot.training.studies.study import Effort, Store


@pytest.fixture(scope="module")
def simulated() -> Reproduction:
    study = study_of("grosvik")
    effort = Effort(True, (), 7, lambda what, share: None)
    return Reproduction(study, {"simulated": simulate(effort, Store(None, False))})


def test_all_verdicts_of_the_simulator_are_as_published(simulated: Reproduction) -> None:
    verdicts = simulated.verdicts()
    printed = [verdict for verdict in verdicts if verdict["published"] is not None]
    assert len(printed) == 21
    assert [v["claim"] for v in printed if v["simulated"] != v["published"]] == []
    agent = [verdict for verdict in verdicts if verdict["published"] is None]
    assert [verdict["simulated"] for verdict in agent] == [True] * 3


def test_the_agent_loses_nothing_and_leaves_nothing(simulated: Reproduction) -> None:
    """What the study has no policy for: in all seven loads no loss of critical, 95% of the rest for best effort."""
    values = simulated.sources["simulated"].values
    for load in bottleneck_scenarios():
        prefix = f"{AGENT}/{load.scenario}"
        assert max(values[f"{prefix}/critical/loss/{phase}"].value for phase in ("on", "off", "change")) == 0.0
        assert min(values[f"{prefix}/best-effort/share/{phase}"].value for phase in ("on", "off")) >= 95.0


def test_the_report_names_criteria_and_figures(simulated: Reproduction) -> None:
    document = render(simulated)["report.html"]
    assert "tail_drop: resource reallocation" in document
    assert "carried of what is left" in document
    rows = {row["row"]: row for row in simulated.rows()}
    assert rows["priority/classes"]["verdict"] == "agrees"
    assert rows["none/6/critical/loss/on"]["simulated"] == pytest.approx(100.0 * (1.0 - 35.0 / 45.5), rel=0.02)


def test_published_mechanisms_and_loads() -> None:
    rows = {row.policy: row for row in published_mechanisms()}
    assert [policy.name for policy in POLICIES] == list(rows)
    assert (rows["none"].classes, rows["priority"].classes, rows["priority"].levels) == (None, 256, 2)
    peaks = [load.critical_pct + load.best_effort_pct + load.on_off_pct for load in bottleneck_scenarios()]
    assert peaks == [95, 105, 110, 115, 120, 125, 130]


def test_flows_of_a_load_are_on_every_other_second() -> None:
    critical, constant, more = flows_of(bottleneck_scenarios()[6], 5.0, 0.5)
    assert (critical.mbps, constant.mbps, more.mbps) == pytest.approx((15.75, 15.75, 14.0))
    assert more.spans == ((0.5, 1.5), (2.5, 3.5), (4.5, 5.0))


def test_bins_tell_steady_state_from_transients() -> None:
    offered = np.stack([np.full(80, 15.0), np.tile(np.repeat([15.0, 30.0], 20), 2)])
    carried = np.minimum(offered, [[15.0], [20.0]])
    bins = Bins(offered, carried, offered - carried, np.ones((2, 80)), np.full((2, 80), 2.0))
    phases = bins.phases()
    assert [int(phases[name].sum()) for name in ("on", "off", "change")] == [28, 28, 24]
    assert not (phases["on"] & phases["off"]).any()
    figures = figures_of_bins(bins)
    assert figures["best-effort/throughput/on"] == 20.0
    assert figures["best-effort/loss/on"] == pytest.approx(100 / 3)
    assert figures["best-effort/share/on"] == pytest.approx(100.0)


def test_criteria_need_all_figures_and_tell_policies_apart() -> None:
    good = {f"critical/loss/{phase}": 0.0 for phase in ("on", "off", "change")}
    good |= {"critical/delay-p99/on": 1.0 + 0.9 * WAIT_MS, "critical/delay-p99/off": 1.0}
    good |= {"best-effort/share/on": 96.0, "best-effort/share/off": 100.0}
    assert isolates(good) is reallocates(good) is True
    assert isolates(good | {"critical/loss/change": 0.5}) is False
    assert isolates(good | {"critical/delay-p99/on": 1.0 + 1.2 * WAIT_MS}) is False
    assert reallocates(good | {"best-effort/share/on": 94.0}) is False
    assert isolates({}) is reallocates({}) is None
    worse = good | {"best-effort/share/on": 80.0}
    [(key, figure)] = most_classes("x", {2: good, 16: good, 64: worse, 256: good})
    assert (key, figure.value) == ("x/classes", 16.0)


def test_classes_share_loads_and_rates_evenly() -> None:
    slices = slices_of(8)
    assert (len(slices), slices.names[0], slices.names[-1]) == (16, "critical-0", "best-effort-7")
    rng = np.random.default_rng(0)
    bins = play(POLICIES[1], bottleneck_scenarios()[6], 8, 6.0, rng)
    on = bins.phases()["on"]
    assert bins.carried[0, on].mean() == pytest.approx(15.75, rel=1e-3)
    assert bins.carried[1, on].mean() == pytest.approx(LINK_MBPS - 15.75, rel=1e-3)


def test_there_is_no_release() -> None:
    with pytest.raises(ConfigError, match="no release"):
        study_of("grosvik").release(None, Effort(True, (), 0, print))  # type: ignore[arg-type]


def test_agents_are_further_policies() -> None:
    names = [policy.name for policy in with_agents(("mpc", AGENT))]
    assert names == [*(policy.name for policy in POLICIES), AGENT, "mpc"]
    assert replace(with_agents(())[-1], agent=None).classes is not None
    assert isinstance(with_agents(())[0], Policy)


def test_a_schedule_has_the_rates_and_the_frames() -> None:
    flows = flows_of(bottleneck_scenarios()[6], 4.0, 1.0)
    due_s, of = schedule(flows, 4, 4.0)
    assert (np.diff(due_s) >= 0).all()
    mbit = FRAME_BYTES * 8e-6
    assert (of < 4).sum() * mbit / 4.0 == pytest.approx(15.75, rel=1e-3)
    on = (due_s >= 1.0) & (due_s < 2.0)
    assert (of[on] >= 4).sum() * mbit == pytest.approx(29.75, rel=2e-3)
    assert np.ptp(np.bincount(of[of >= 4])[4:]) <= 2, "classes of a group take turns"
    framed, _ = schedule(flows_of(bottleneck_scenarios()[6], 4.0, 1.0, framed=True)[:1], 1, 4.0)
    assert len(np.unique(framed)) == pytest.approx(240, abs=6)
    assert len(framed) * mbit / 4.0 == pytest.approx(15.75, rel=1e-3)


def test_packets_become_bins() -> None:
    """Two bins: all critical packets come 2 ms later, of best effort every second is lost."""
    critical = np.arange(0, 100_000_000, 1_000_000)
    best_effort = np.arange(0, 100_000_000, 2_000_000)
    sent = np.concatenate([critical, best_effort])
    flows = np.repeat([0, 1], [len(critical), len(best_effort)])
    received = np.where(flows == 0, sent + 2_000_000, sent + 10_000_000)
    received[flows == 1] *= np.arange(len(best_effort)) % 2
    bins = binned(Run(flows, sent, received, 0), 1, 0.1)
    assert bins.offered[0].tolist() == pytest.approx([10.0, 10.0])
    assert bins.carried[0].tolist() == pytest.approx([9.6, 10.0]), "by when they come"
    assert bins.lost[1] == pytest.approx(bins.offered[1] / 2, abs=0.11)
    assert np.allclose(bins.delay_p99[0], 2.0)
    assert np.allclose(bins.delay_p50[1], 10.0)


def test_classes_of_a_policy_share_its_rates() -> None:
    policies = {policy.name: policy for policy in with_agents(())}
    critical, best_effort = classes_of(policies["priority"], 1)
    assert (critical.guarantee_mbps, critical.ceiling_mbps, critical.priority, critical.burst_ms) == (
        17.5,
        17.5,
        0,
        200,
    )
    assert (best_effort.priority, best_effort.ceiling_mbps) == (1, LINK_MBPS)
    many = classes_of(policies["tail_drop"], 128)
    assert [each.number for each in many] == list(range(2, 258))
    assert sum(each.ceiling_mbps for each in many[128:]) == pytest.approx(17.5)
    assert classes_of(policies["tail_drop"], 1)[1].queue_packets < classes_of(policies["shaping"], 1)[1].queue_packets
    assert [(each.guarantee_mbps, each.priority) for each in policies[AGENT].classes or ()] == [(17.5, 0), (1, 1)]


@pytest.mark.live
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
def test_policies_in_the_kernel() -> None:
    """A second of each: what best effort is held to, what critical loses, and that nothing is left behind."""
    policies = {policy.name: policy for policy in with_agents(())}
    heaviest = bottleneck_scenarios()[6]
    figures = {}
    with Rig() as rig:
        for name in ("none", "policing", "wred", AGENT):
            control = Control(AGENT, 1) if name == AGENT else None
            run = rig.play(policies[name], flows_of(heaviest, 1.2, 0.0), 1, 1.2, control)
            figures[name] = figures_of_bins(binned(run, 1, 1.2))
            assert control is None or control.decisions >= 20
        path = rig.netns
    assert not path.exists()
    assert figures["none"]["critical/loss/on"] > 10.0
    assert figures["policing"]["best-effort/throughput/on"] == pytest.approx(17.5, rel=0.03)
    assert figures["wred"]["best-effort/throughput/on"] < 17.9
    assert figures["wred"]["best-effort/delay-p50/on"] < 10.0
    for name in ("policing", "wred", AGENT):
        assert figures[name]["critical/loss/on"] == 0.0
    assert figures[AGENT]["best-effort/share/on"] > 95.0
    assert figures[AGENT]["critical/delay-p50/on"] < 5.0 < figures["none"]["critical/delay-p50/on"]
