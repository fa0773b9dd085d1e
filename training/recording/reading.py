"""`slicepilot.read_dataset`: episodes and tables by path, of any supported format."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from slicepilot.configs import ConfigError
from slicepilot.controller.record.reader import SegmentReader
from slicepilot.controller.record.segments import list_segments
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.data.episodes.files import is_minari, read_episodes
from slicepilot.data.files import what_else
from slicepilot.data.recorded import find
from slicepilot.data.tables.tidy import describe_if_tidy, is_parquet, read_tidy
from slicepilot.env.reward import RewardWeights

from .decision_records import episodes_of


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
    if is_minari(source):
        from .minari_files import read_minari  # Minari, which nothing else needs

        return read_minari(source)
    if source.is_dir() and list_segments(source):
        return episodes_of(SegmentReader(source).stretches(), RewardWeights.from_yaml(reward))
    if not source.is_dir():
        if problem := what_else(source):
            raise ConfigError(f"path = {str(source)!r}: {problem}; expected a regular file or folder")
        if not is_parquet(source):
            raise ConfigError(
                f"path = {str(source)!r}: no Parquet; expected what `slicepilot dataset import` makes of it"
            )
        if describe_if_tidy(source) is not None:
            stream = read_tidy(source)
            return pa.Table.from_batches(stream.batches, stream.schema)
    return read_episodes(source)
