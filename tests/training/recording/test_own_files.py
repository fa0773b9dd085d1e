"""Users' own files become episodes, and what they lack for it is said."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.data.episodes.checks import check_episodes
from slicepilot.data.faults import Faults
from slicepilot.training.offline.data import open_dataset, read_dataset, slices_of
from tests.command import slicepilot

HEAD = "time,run,slice,offered_mbps,carried_mbps,delay_p99_us,cpu_limit_mcpu,nice\n"


def run(*arguments: object) -> Any:
    result = slicepilot("dataset", *arguments, "--json", env=os.environ | {"COLUMNS": "80"})
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def written(path: Path, lines: list[str], head: str = HEAD) -> Path:
    path.write_text(head + "".join(f"{line}\n" for line in lines))
    return path


def limit(name: str, period: int) -> str:
    return "none" if name == "a" else f"{400 + 10 * period}" if period % 2 == 0 else ""


def log(gap: int = -1) -> list[str]:
    """Two runs of two slices, 20 seconds each: the limit of the second slice is not logged at odd times."""
    return [
        f"{n},{r},{s},{50 - n},{40 - n},{300 + 10 * n},{limit(s, n)},{5 * k}"
        for r in (1, 2)
        for n in range(20)
        for k, s in enumerate("ab")
        if not (r == 1 and n == gap)
    ]


def test_a_log_with_knobs_becomes_episodes_without_an_edit(tmp_path: Path) -> None:
    source, out = written(tmp_path / "log.csv", log(gap=10)), tmp_path / "tables"
    proposed = run("map", source, "--out", tmp_path / "map.yaml")
    assert proposed["missing_for_episodes"] == []
    made = run("import", "--map", tmp_path / "map.yaml", source, "--out", out)
    assert made["episodes"]["episodes"] == 3, "a period that is missing ends an episode"
    episodes = read_dataset(str(out))
    assert [len(episode) for episode in episodes] == [9, 8, 19]
    assert episodes.behaviours == ("as-logged",)
    assert [episode.info["run"]["run"] for episode in episodes] == ["1", "1", "2"]
    faults = Faults()
    check_episodes(episodes, faults)
    assert not faults
    last = episodes.episodes[2]
    assert last.telemetry is not None
    assert last.telemetry[3, :2].tolist() == [[47, 47], [37, 37]]
    assert last.telemetry[3, 4] == pytest.approx(1 - 37 / 47), "loss is worked out"
    assert (last.actions[:, 0, 0] == last.actions[0, 0, 0]).all(), "no limit all the time"
    steps = np.diff(last.actions[:, 1, 0])
    assert (steps[::2] > 0).all()
    assert (steps[1::2] == 0).all(), "what is not logged holds"
    assert open_dataset(str(out)).num_steps == 36
    assert slices_of(episodes).names == ("a", "b")
    assert slices_of(episodes).slices[0].sla.committed_mbps == pytest.approx(40, abs=1)


def test_what_is_missing_for_episodes_is_said_at_once(tmp_path: Path) -> None:
    lines = [f"{n},a,{50 + n}" for n in range(9)]
    source = written(tmp_path / "rates.csv", lines, "time,slice,offered_mbps\n")
    assert len(run("map", source, "--out", tmp_path / "map.yaml")["missing_for_episodes"]) == 3
    section = "episodes: {slices: [{name: a, committed_mbps: 50, delay_bound_ms: 5}], period_s: 1}\n"
    (tmp_path / "map.yaml").write_text((tmp_path / "map.yaml").read_text() + section)
    refused = slicepilot("dataset", "import", "--map", tmp_path / "map.yaml", source, "--out", tmp_path / "t")
    assert refused.returncode == 2
    [line] = refused.stderr.splitlines()
    for lacking in ("carried_mbps", "delay_p99_us", "cpu_limit_mcpu, nice, egress_mbps"):
        assert lacking in line
    assert not (tmp_path / "t").exists()


def test_stand_ins_and_no_knobs_are_declared(tmp_path: Path) -> None:
    lines = [f"{n},a,{50 + n},{5 + n}" for n in range(9)]
    source = written(tmp_path / "rates.csv", lines, "time,slice,carried_mbps,rtt_ms\n")
    run("map", source, "--out", tmp_path / "map.yaml")
    section = (
        "episodes: {slices: [{name: a, committed_mbps: 50, delay_bound_ms: 5}], period_s: 1, knobs: none,\n"
        "  stand_ins: {offered_mbps: carried_mbps}}\n"
    )
    (tmp_path / "map.yaml").write_text((tmp_path / "map.yaml").read_text() + section)
    run("import", "--map", tmp_path / "map.yaml", source, "--out", tmp_path / "t")
    episodes = read_dataset(str(tmp_path / "t"))
    assert episodes.facts["stand_ins"]["offered_mbps"] == "carried_mbps"
    assert episodes.facts["stand_ins"]["delay_p99_us"] == "latency_ms"
    [episode] = episodes
    assert episode.telemetry is not None
    assert episode.telemetry[0, 3, 0] == 5000
    assert np.isfinite(episode.rewards).all()


def test_a_stand_in_is_converted_to_the_unit_of_its_column(tmp_path: Path) -> None:
    lines = [f"{n},a,{50 + n},{60 + n},{5 + n}" for n in range(9)]
    source = written(tmp_path / "rates.csv", lines, "time,slice,carried_mbps,offered_mbps,jitter_ms\n")
    run("map", source, "--out", tmp_path / "map.yaml")
    section = (
        "episodes: {slices: [{name: a, committed_mbps: 50, delay_bound_ms: 5}], period_s: 1, knobs: none,\n"
        "  stand_ins: {delay_p99_us: jitter_ms}}\n"
    )
    proposed = (tmp_path / "map.yaml").read_text()
    (tmp_path / "map.yaml").write_text(proposed + section)
    run("import", "--map", tmp_path / "map.yaml", source, "--out", tmp_path / "t")
    [episode] = read_dataset(str(tmp_path / "t"))
    assert episode.telemetry is not None
    assert episode.telemetry[0, 3, 0] == 5000
    (tmp_path / "map.yaml").write_text(proposed + section.replace("jitter_ms", "carried_mbps"))
    refused = slicepilot("dataset", "import", "--map", tmp_path / "map.yaml", source, "--out", tmp_path / "u")
    assert refused.returncode == 2
    assert "episodes.stand_ins.delay_p99_us = 'carried_mbps': " in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_periods_that_begin_at_a_half_stay_apart(tmp_path: Path) -> None:
    source = written(tmp_path / "log.csv", [line.replace(",", ".5,", 1) for line in log()])
    run("map", source, "--out", tmp_path / "map.yaml")
    run("import", "--map", tmp_path / "map.yaml", source, "--out", tmp_path / "t")
    assert [len(episode) for episode in read_dataset(str(tmp_path / "t"))] == [19, 19]
