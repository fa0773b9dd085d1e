"""Episodes and tables by path, of any supported format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pyarrow as pa

from slicepilot.configs import ConfigError
from slicepilot.controller.record.reader import SegmentReader
from slicepilot.controller.record.segments import list_segments
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.data.episodes.files import is_minari, read_episodes, read_header, says_episodes
from slicepilot.data.files import what_else
from slicepilot.data.recorded import find
from slicepilot.data.tables.tidy import describe_if_tidy, is_parquet, read_tidy
from slicepilot.env.reward import RewardWeights

from .decision_records import episodes_of

What = Literal["tidy", "episodes", "minari", "records", "folder", "file"]


def read_dataset(path: str | Path, *, reward: str = "default") -> EpisodeSet | pa.Table:
    """Read a dataset that slicepilot or Minari has written.

    Args:
        path: a file or folder of episodes (``dataset record``, ``run --record``), the name of a shipped dataset, a
            folder of Minari's, the records of a controller, or a table of ``dataset import``.
        reward: weights by which a controller's records are scored; episodes have their own.

    Returns:
        Episodes, whose arrays have a row for each step, or for a table an Arrow table with a row for each measurement:
        ``to_pandas()`` makes a data frame of it.

    Raises:
        ConfigError: the path does not exist, is damaged, or is no dataset.
    """
    source = find(str(path))
    if what_is(source) == "tidy":
        stream = read_tidy(source)
        return pa.Table.from_batches(stream.batches, stream.schema)
    return read_any_episodes(source, reward)


def read_any_episodes(
    source: Path, reward: str = "default", note: Callable[[str], None] = lambda line: None
) -> EpisodeSet:
    """Episodes of a file, a folder of files, a Minari dataset, or a controller's records scored by a reward.

    Args:
        source: their path.
        reward: weights, for records.
        note: called with a line for each file of records that was left out.

    Raises:
        ConfigError: as `read_dataset`, and for a table.
    """
    what = what_is(source)
    if what == "minari":
        from .minari_files import read_minari  # Minari, which nothing else needs

        return read_minari(source)
    if what == "records":
        records = SegmentReader(source)
        episodes = episodes_of(records.stretches(), RewardWeights.from_yaml(reward))
        for name, why in sorted(records.broken.items()):
            note(f"left out: {name}: {why}")
        return episodes
    if what == "file":
        raise ConfigError(f"path = {str(source)!r}: no Parquet; expected a file of episodes, such as NAME.parquet")
    return read_episodes(source)


def what_is(path: Path) -> What:
    """The type of data at a path.

    ``tidy``: a table of `dataset import`. ``episodes``: a file, or folder of files. ``minari``: a dataset's folder.
    ``records``: those of a controller. ``folder``: any other. ``file``: any other, a release's perhaps.

    Raises:
        ConfigError: nothing, what is no file or folder, or a Parquet file of something else.
    """
    if path.is_dir():
        if is_minari(path):
            return "minari"
        if list_segments(path):
            return "records"
        parquet = [file for file in path.glob("*.parquet") if not file.name.startswith(".")]
        return "episodes" if parquet and all(map(_holds_episodes, parquet)) else "folder"
    if problem := what_else(path):
        raise ConfigError(f"path = {str(path)!r}: {problem}; expected a regular file or folder")
    if not is_parquet(path):
        return "file"
    if describe_if_tidy(path) is not None:
        return "tidy"
    if says_episodes(path):
        read_header(path)  # or says what is wrong with it
        return "episodes"
    raise ConfigError(f"path = {str(path)!r}: Parquet, but neither a table of `dataset import` nor episodes")


def _holds_episodes(path: Path) -> bool:
    try:
        read_header(path)
    except ConfigError:
        return False
    return True
