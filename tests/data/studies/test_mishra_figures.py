import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.data.faults import Faults
from slicepilot.data.studies.mishra.figures import (
    LEVELS,
    load_of,
    summarise_forwarding,
    summarise_pfcp,
)
from slicepilot.data.studies.mishra.generate import write_forwarding
from slicepilot.data.studies.mishra.tables import FORWARDING_COLUMNS

ROWS = 30_000
Groups = dict[Any, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mishra") / "o1_forwarding_exp_medium.csv"
    write_forwarding(made, ROWS, load="medium")
    return made


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows by Python's own reader."""
    with path.open() as file:
        return [
            {"slice": r["slice"], "delay": float(r["delay_us"])}
            | {name: int(r[name]) for name in ("pkt_len", "ts_rx_ns", "ts_tx_ns")}
            for r in csv.DictReader(file)
        ]


def grouped(rows: list[dict[str, Any]]) -> Groups:
    groups: Groups = defaultdict(list)
    for item in rows:
        groups[item["slice"]].append(item)
    return groups


def test_a_summary_is_what_plain_python_makes_of_the_rows(path: Path) -> None:
    faults, shares = Faults(), []
    summary = summarise_forwarding(path, faults, shares.append)
    assert not faults
    assert shares[-1] == 1.0
    assert (summary.rows, summary.load) == (ROWS, "medium")
    groups = grouped(rows_of(path))
    assert [item.name for item in summary.slices] == list(groups)
    for item in summary.slices:
        own = groups[item.name]
        delays = np.asarray([r["delay"] for r in own])
        assert item.count == len(own)
        assert item.bytes == sum(r["pkt_len"] for r in own)
        assert (item.min_us, item.max_us) == (delays.min(), delays.max())
        assert item.mean_us == pytest.approx(delays.mean(), rel=1e-12)
        assert item.std_us == pytest.approx(delays.std(ddof=1), rel=1e-9)
        exact = np.quantile(delays, list(LEVELS.values()))
        assert list(item.quantiles_us.values()) == pytest.approx(exact, rel=0.004)
        assert item.first_received_ns == min(r["ts_rx_ns"] for r in own)
        assert item.last_sent_ns == max(r["ts_tx_ns"] for r in own)
        assert item.mean_mbps == pytest.approx(8e-6 * item.bytes / item.seconds)
    published = summary.published()[0]
    assert list(published) == ["slice", "load", "n", "mean_us", "p50_us", "p99_us"]
    assert published["p99_us"] == summary.slices[0].quantiles_us["p99"]


def test_a_single_packet_and_slices_without_a_good_row(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text(f"{','.join(FORWARDING_COLUMNS)}\n1,93.5,66,6500,100000,eth0\n2,93.5,-1,6500,100000,eth0\n")
    faults = Faults()
    [item] = summarise_forwarding(path, faults).slices
    assert faults.counts == {"range": 1}
    assert (item.name, item.count, item.std_us, item.quantiles_us["p99"], item.mean_us) == ("1", 1, 0.0, 93.5, 93.5)


def test_pfcp_latencies_by_type(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "o1_pfcp_exp_heavy.csv"
    latencies = {"establishment": rng.uniform(200, 3000, 173), "modification": rng.uniform(90, 200, 66)}
    rows = [f"{name},{value}\n" for name, values in latencies.items() for value in values.tolist()]
    path.write_text("pfcp_type,latency_us\n" + "".join(rows))
    summary = summarise_pfcp(path, Faults())
    assert (summary.rows, summary.load) == (239, "heavy")
    for item, published in zip(summary.types, summary.published(), strict=True):
        own = latencies[item.name]
        assert list(published) == ["load", "type", "n", "mean_us", "p99_us"]
        assert published["n"] == len(own)
        assert published["mean_us"] == pytest.approx(own.mean())
        assert published["p99_us"] == pytest.approx(np.quantile(own, 0.99), rel=0.004)


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("o1_forwarding_exp_light.csv", "light"),
        ("o1_forwarding_heavy.csv.gz", "heavy"),
        ("o1_pfcp_exp_medium.csv", "medium"),
        ("o1_forwarding_20260101.csv", ""),
        ("lightning.csv", ""),
    ],
)
def test_the_load_stands_in_the_name(name: str, load: str) -> None:
    assert load_of(f"heavy/{name}") == load
