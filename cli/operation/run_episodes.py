"""``slicepilot run --record``: convert the records of a run to episodes after its loop has ended."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicepilot.cli.shared.output import progress_bar
from slicepilot.configs import ConfigError

if TYPE_CHECKING:
    from slicepilot.controller.record.reader import Stretch
    from slicepilot.controller.service.run_config import RunConfig

TICKS = 100_000
"""In a file, at most; they take some 0.7 GiB of memory while they are turned into episodes."""


def check(folder: Path, settings: RunConfig) -> None:
    """Check before a run that its episodes can be written after it; raises ConfigError."""
    if not settings.publish.records_mb:
        raise ConfigError("publish.records_mb = 0: accepted with --record: more than 0, as episodes come from records")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"record = {str(folder)!r}: {error.strerror}; expected a writable folder") from error


def write(folder: Path, settings: RunConfig, since_ns: int) -> dict[str, Any]:
    """Write the episodes of this process's run as NAME-TIME.parquet and, where Minari is installed, NAME-TIME-v0.

    A long run, which began at ``since_ns`` (CLOCK_REALTIME), becomes several of them, each named after its first tick.

    Raises:
        ConfigError: no records, or nowhere to write; says how to do it later.
    """
    from slicepilot.controller.record.reader import SegmentReader

    instance = settings.instance or settings.name
    records = Path(settings.state_root) / instance / "records"
    own = (s for s in SegmentReader(records).stretches(since_ns) if s.description["pid"] == os.getpid())
    written: dict[str, Any] = {"parquet": [], "minari": [], "episodes": 0, "steps": 0}
    try:
        with progress_bar() as progress:
            task = progress.add_task("episodes", total=None)
            for part in _parts(own):
                _write(folder, instance, part, written)
                progress.update(task, description=f"episodes, {written['steps']:,} steps")
    except OSError as error:
        raise ConfigError(
            f"record = {str(folder)!r}: {error.strerror}; expected a writable folder. "
            f"The records are still there: slicepilot dataset convert {records} NAME.parquet"
        ) from error
    if not written["parquet"]:
        raise ConfigError(
            f"state_root = {settings.state_root}: no records of this run; expected a folder that its publisher's "
            f"user, {settings.publish.user}, can reach"
        )
    return written


def _parts(stretches: Iterable[Stretch]) -> Iterator[list[Stretch]]:
    """Some `TICKS` at a time."""
    part: list[Stretch] = []
    for stretch in stretches:
        part.append(stretch)
        if sum(len(stretch.records) for stretch in part) >= TICKS:
            yield part
            part = []
    if part:
        yield part


def _write(folder: Path, instance: str, part: list[Stretch], written: dict[str, Any]) -> None:
    from slicepilot.controller.record.moments import at_ns
    from slicepilot.data.episodes.files import write_episodes
    from slicepilot.env.reward import RewardWeights
    from slicepilot.training.recording.decision_records import episodes_of

    first = min(int(stretch.records["time_ns"][0]) for stretch in part if len(stretch.records))
    name = f"{instance}-{at_ns(first):%Y%m%dT%H%M%SZ}".replace(".", "_")
    episodes = episodes_of(part, RewardWeights.from_yaml())
    write_episodes(episodes, folder / f"{name}.parquet")
    written["parquet"].append(str(folder / f"{name}.parquet"))
    if importlib.util.find_spec("minari") is not None:
        from slicepilot.training.recording.minari_files import write_minari

        write_minari(episodes, folder / f"{name}-v0")
        written["minari"].append(str(folder / f"{name}-v0"))
    written["episodes"] += len(episodes)
    written["steps"] += episodes.num_steps
