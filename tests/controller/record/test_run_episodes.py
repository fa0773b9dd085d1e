"""What a run has left in its records becomes files of episodes, of bounded size, and of that run alone."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.cli.operation import run_episodes
from slicepilot.configs import ConfigError
from slicepilot.controller.contracts.modes import Mode
from slicepilot.controller.publisher.config import PublishConfig
from slicepilot.controller.record.ring import Records
from slicepilot.controller.record.segments import SegmentWriter
from slicepilot.controller.service.run_config import RunConfig
from slicepilot.data.episodes.files import read_episodes
from slicepilot.training.recording.minari_files import read_minari

Ticks = Callable[..., Records]
Description = Callable[..., dict[str, Any]]
SINCE_NS = 1_770_000_000_000_000_000  # of the first tick


@pytest.fixture
def settings(tmp_path: Path, ticks: Ticks, description: Description) -> RunConfig:
    """Of a run of 900 ticks, in segments of 300; others have left records, too."""
    writer = SegmentWriter(tmp_path / "state" / "node.1" / "records", 1 << 24, segment_s=1.5)
    for run_id, pid in (("before", 1), ("own", os.getpid())):
        for part in np.array_split(ticks(900), 3):
            part["mode"] = Mode.LIVE
            writer.add(part, description(run_id, pid=pid), 2)
    writer.close()
    return RunConfig(name="node.1", state_root=str(tmp_path / "state"))


def test_a_long_run_becomes_several_files(tmp_path: Path, settings: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_episodes, "TICKS", 600)
    out = tmp_path / "out"
    run_episodes.check(out, settings)
    told = run_episodes.write(out, settings, SINCE_NS)
    names = ["node_1-20260202T024000Z", "node_1-20260202T024003Z"]
    assert [Path(path).name for path in told["parquet"]] == [f"{name}.parquet" for name in names]
    assert [Path(path).name for path in told["minari"]] == [f"{name}-v0" for name in names]
    episodes = read_episodes(out)
    assert {episode.info["run_id"] for episode in episodes} == {"own"}
    # The first and the last tick of each part are known with one neighbour only; later parts look back over ten.
    assert [len(episode) for episode in episodes] == [598, 300 - 9 - 1]
    assert (told["episodes"], told["steps"]) == (2, 598 + 290)
    assert [len(read_minari(Path(path))) for path in told["minari"]] == [1, 1]


def test_a_run_without_records_is_told_why(tmp_path: Path, settings: RunConfig) -> None:
    none = dataclasses.replace(settings, publish=PublishConfig(records_mb=0))
    with pytest.raises(ConfigError, match=r"publish\.records_mb = 0"):
        run_episodes.check(tmp_path / "out", none)
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(ConfigError, match="expected a writable folder"):
        run_episodes.check(blocked / "out", settings)
    with pytest.raises(ConfigError, match="no records of this run"):
        run_episodes.write(tmp_path, settings, SINCE_NS + 10**12)
