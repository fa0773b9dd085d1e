"""Mishra and Pandey reproduced: cells, findings, packets in the simulator, files in the study's schema."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.configs.backends import plugin
from slicepilot.data.faults import Faults
from slicepilot.data.reference import forwarding_delays, pfcp_latencies
from slicepilot.data.studies.mishra.tables import forwarding_batches, pfcp_batches
from slicepilot.env.simulator.scenario import Load
from slicepilot.training.studies.mishra.packets import PacketPath, arrivals_s, delays_us, packets_per_s
from slicepilot.training.studies.mishra.samples import (
    LOADS,
    figures_of_cell,
    matched_as_in_the_study,
    write_forwarding,
    write_pfcp,
)
from slicepilot.training.studies.mishra.simulated import scenario_of
from slicepilot.training.studies.reproduce import Reproduction, as_figures, study_of
from slicepilot.training.studies.study import Findings
from tests.command import slicepilot

REFERENCE = Path(__file__).parents[3] / "data" / "reference"
NO_PAUSES = PacketPath(paused_ratio=0.0, cost_cv=0.0, wake_us=0.0)


def printed() -> dict[str, float]:
    return study_of("mishra").printed()


def test_all_printed_figures_have_a_row() -> None:
    assert len(printed()) == 3 * len(forwarding_delays()) + 2 * len(pfcp_latencies()) == 39
    assert printed()["heavy/eMBB/delay/p99"] == 1243.0
    assert printed()["light/pfcp/establishment/mean"] == 600.0


def test_what_the_study_answers_holds_in_print_and_the_rest_is_not_printed() -> None:
    verdicts = Reproduction(study_of("mishra")).verdicts()
    assert [verdict["published"] for verdict in verdicts] == [True] * 10 + [None] * 4


@pytest.mark.parametrize(
    ("key", "value", "failed"),
    [
        ("heavy/eMBB/delay/p99", 700.0, "eMBB's delay is sensitive to load."),
        ("heavy/URLLC/delay/p99", 700.0, "URLLC's delay is not sensitive to load."),
        ("medium/mMTC/delay/p50", 100.0, "mMTC's tail is wide."),
        ("medium/pfcp/modification/p99", 2100.0, "A PFCP session modification is inside 2 ms whatever the load."),
        ("light/pfcp/establishment/p99", 1900.0, "An establishment is not inside 2 ms."),
    ],
)
def test_an_answer_fails_by_its_figure(key: str, value: float, failed: str) -> None:
    result = Reproduction(study_of("mishra"), {"measured": Findings(values=as_figures(printed() | {key: value}))})
    wrong = {verdict["claim"] for verdict in result.verdicts() if verdict["measured"] is False}
    assert failed in wrong


def test_the_loads_shipped_are_those_of_the_study() -> None:
    """eMBB's rate is one of payload; a call has three messages; TCP sends as many packets as the study counted."""
    rates = dict(line.split(",", 1) for line in (REFERENCE / "mishra_loads.csv").read_text().splitlines())
    counts = {(row.load, row.slice): row.n for row in forwarding_delays()}
    for at, load in enumerate(LOADS):
        scenario = scenario_of(load)
        assert scenario.duration_s == 600
        [embb], [urllc], [mmtc] = (scenario.loads[name] for name in ("eMBB", "URLLC", "mMTC"))
        assert embb.rate_mbps * 1332 / 1360 == pytest.approx(float(rates["eMBB"].split(",")[2 + at]), 1e-3)
        assert packets_per_s(urllc) == pytest.approx(3 * float(rates["URLLC"].split(",")[2 + at]), 1e-3)
        assert mmtc.pause_s == 0.05
        for name, source in (("eMBB", embb), ("URLLC", urllc), ("mMTC", mmtc)):
            assert 600 * packets_per_s(source) == pytest.approx(counts[load, name], rel=0.02)
    assert [spec.dnn for spec in scenario_of("light").slice_set().slices] == ["internet", "voip", "streaming"]


def test_packets_wait_for_each_other_and_for_the_pause() -> None:
    rng = np.random.default_rng(0)
    load = Load("cbr", rate_mbps=8.0, packet_bytes=1000)
    even = arrivals_s(load, 1.0, NO_PAUSES, 100.0, rng)
    assert len(even) == 1000
    assert delays_us(even, 1000.0, NO_PAUSES, 100.0, rng) == pytest.approx(np.full(1000, 100.0))
    together = np.array([0.0, 0.0, 0.0, 1.0])
    assert delays_us(together, 3.0, NO_PAUSES, 100.0, rng) == pytest.approx([100.0, 200.0, 300.0, 100.0])
    paused = arrivals_s(load, 10.0, PacketPath(paused_ratio=0.2, pause_s=0.01), 100.0, rng)
    assert (np.diff(paused) == 0).mean() == pytest.approx(0.17, abs=0.05), "those held come together"
    windows = [
        arrivals_s(Load("tcp", rate_mbps=8, packet_bytes=100), 10.0, PacketPath(window_packets=n), 10.0, rng)
        for n in (10, 100)
    ]
    assert max(np.bincount(np.searchsorted(np.unique(windows[0]), windows[0]))) <= 10 + 1


def test_deep_sleep_costs_the_rare_packet_more() -> None:
    rng, path = np.random.default_rng(1), PacketPath(paused_ratio=0.0)
    medians = [
        float(np.median(delays_us(np.arange(4000) / pps, 8000.0, path, 18.0, rng))) for pps in (10.0, 1000.0, 10_000.0)
    ]
    assert medians[0] > medians[1] > medians[2] > 17.0
    lone, among = (float(np.median(delays_us(np.arange(4000) / 10, n, path, 18.0, rng))) for n in (0.0, 1e6))
    assert lone > among + 50, "a busy server sleeps less deeply"


def test_files_are_of_the_study_s_schema(tmp_path: Path) -> None:
    """Its own reader takes them without a fault, in the order in which packets left."""
    rng = np.random.default_rng(2)
    parts: list[dict[str, Any]] = []
    for name, count in (("eMBB", 3000), ("mMTC", 5000)):
        received = np.sort(rng.integers(0, 10**10, count))
        sent = received + rng.integers(5_000, 3_000_000, count)
        parts.append({"slice": name, "received_ns": received, "sent_ns": sent, "packet_bytes": 52})
    file = tmp_path / "o1_forwarding_exp_light.csv"
    write_forwarding(file, parts)
    assert file.read_text().startswith("slice,delay_us,pkt_len,ts_rx_ns,ts_tx_ns,netif_rx\n")
    faults = Faults()
    batches = list(forwarding_batches(file, faults))
    assert (faults.total, sum(batch.num_rows for batch in batches)) == (0, 8000)
    sent_ns = np.concatenate([batch.column("sent_ns").to_numpy() for batch in batches])
    assert (np.diff(sent_ns) >= 0).all()
    write_pfcp(tmp_path / "o1_pfcp_exp_light.csv", ["establishment", "deletion"], np.array([310.5, 120.0]))
    [batch] = pfcp_batches(tmp_path / "o1_pfcp_exp_light.csv", faults)
    assert batch.column("latency_us").to_pylist() == [310.5, 120.0]
    assert faults.total == 0


def test_the_study_s_matching_swaps_packets_that_queue() -> None:
    """The packet that left first gets the time of the latest that came: two of 300 us become 100 and 500."""
    received, sent = np.array([0, 200_000]), np.array([300_000, 500_000])
    assert matched_as_in_the_study(received, sent).tolist() == [100.0, 500.0]
    alone = np.arange(0, 10**9, 10**6)
    assert matched_as_in_the_study(alone, alone + 40_000) == pytest.approx(np.full(1000, 40.0))
    assert matched_as_in_the_study(alone[:1], alone[:1] + 11_000_000).size == 0, "it is forgotten after 10 ms"


def test_statistics_of_a_cell() -> None:
    delays = np.random.default_rng(3).exponential(100.0, 20_000)
    figures = dict(figures_of_cell(delays))
    assert figures["p95"].value == pytest.approx(-100 * math.log(0.05), rel=0.05)
    assert all(figure.low is not None and figure.low <= figure.value for figure in figures.values())
    assert dict(figures_of_cell(delays[:50]))["mean"].low is None


def test_the_study_comes_back_with_one_command_and_its_files_as_a_release(tmp_path: Path) -> None:
    out = tmp_path / "mishra"
    done = slicepilot("reproduce", "mishra", "--quick", "--json", "--agents", "no-control", "--out", str(out))
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    found = {verdict["claim"]: verdict["simulated"] for verdict in document["verdicts"]}
    assert found["eMBB's delay is sensitive to load."]
    assert found["URLLC's delay is not sensitive to load."]
    assert found["mMTC's tail is wide."]
    assert all(rank["spearman"] > 0.8 for rank in document["ranks"])
    rows = {row["row"]: row for row in document["rows"]}
    assert rows["no-control/heavy/eMBB/delay/p95"]["simulated"] == rows["heavy/eMBB/delay/p95"]["simulated"]
    assert sum(row["verdict"] == "agrees" for row in rows.values()) >= 24
    assert {path.name for path in (out / "simulated").iterdir()} == {f"o1_forwarding_exp_{load}.csv" for load in LOADS}
    for load in LOADS:
        write_pfcp(out / "simulated" / f"o1_pfcp_exp_{load}.csv", ["modification"] * 3, np.array([100.0, 120.0, 140.0]))
    again = slicepilot("reproduce", "mishra", "--data", str(out / "simulated"), "--json")
    assert again.returncode == 0, again.stderr
    rows = {row["row"]: row for row in json.loads(again.stdout)["rows"]}
    assert rows["heavy/eMBB/delay/p50"]["release"] == pytest.approx(rows["heavy/eMBB/delay/p50"]["published"], rel=0.3)
    assert rows["heavy/pfcp/modification/mean"]["release"] == pytest.approx(120.0)


def test_a_release_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    (tmp_path / "o1_pfcp_exp_light.csv").write_text("pfcp_type,latency_us\nmodification,100.0\n")
    done = slicepilot("reproduce", "mishra", "--data", str(tmp_path))
    assert done.returncode == 2
    assert "o1_forwarding_exp_heavy.csv" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.live
@pytest.mark.slow
def test_the_study_comes_back_from_real_upfs_with_a_controller(tmp_path: Path) -> None:
    """All cells are measured, the files are of the study's schema, and nothing of the testbed is left."""
    if lacks := plugin("testbed").call("missing"):
        pytest.skip("; ".join(lacks))
    out = tmp_path / "mishra"
    done = slicepilot("reproduce", "mishra", "--in", "testbed", "--quick", "--json", "--out", str(out), timeout=400)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    rows = {row["row"]: row for row in document["rows"]}
    assert all(row["measured"] > 0 for row in rows.values())
    # Also as the study's script would have matched packets, and PFCP without any load.
    assert len(rows) == 2 * (3 * 3 * 4 + 3 * 3 * 4 + 3 * 3 * 4) + 3 * 4
    assert all(verdict["measured"] is not None for verdict in document["verdicts"])
    for folder in ("measured", "measured-queue-greedy"):
        for load in LOADS:
            faults = Faults()
            file = out / folder / f"o1_forwarding_exp_{load}.csv"
            count = sum(batch.num_rows for batch in forwarding_batches(file, faults))
            assert count > 5000
            assert faults.total == 0
    assert not Path("/run/netns/sp-ran").exists()
