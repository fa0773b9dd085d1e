"""Episodes as one Parquet file: a row per step, a column per quantity, and a header that says what they are.

An episode of T decisions has T + 1 rows. A row holds what was seen before a decision (``slice1.observed_carried_mbps``
as the policy saw it, ``slice1.carried_mbps`` as it was measured over the period that had just ended), the decision
(``slice1.action_cpu_limit``, ``slice1.wanted_cpu_limit``, ``log_density``, ``decision_held``) and what came of it in
the period that followed (``reward``, ``term_sla``). In an episode's last row, on which nothing was decided, these are
null. ``episode`` and ``step`` count from 0; ``behaviour`` names the acting policy.

The header (`slicepilot.data.episodes.header.Header`) is JSON under the key `KEY` of the file's metadata. Numbers are
kept bit by bit. A column whose numbers hardly repeat is stored as byte streams, one of which holds all exponents, which
zstd makes smaller; all others get a dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from slicepilot.configs import ConfigError
from slicepilot.data.arrow import hardly_repeats, numbers, values_of, words
from slicepilot.data.files import replace_file
from slicepilot.data.tables.tidy import damaged, opened

from .episodes import Episode, EpisodeSet
from .header import Array, ArrayHeader, Header, arrays_of, episode_of

KEY = "slicepilot.episodes"
OWN_TO_A_FILE = ("created", "versions", "machine", "command")
"""Facts in which the files of a folder may differ."""
COMPRESSION_LEVEL = 12
EXPECTED = "a file of episodes"


def write_episodes(episodes: EpisodeSet, path: Path) -> None:
    """Write a set as one file, replacing any older file; readers see the old or the new file, never half of either.

    Raises:
        ConfigError: no episodes, episodes of different kinds, or facts that JSON cannot hold.
        OSError: it cannot be written.
    """
    header = Header.of(episodes)
    parts = [arrays_of(episode) for episode in episodes]
    steps = np.asarray([len(episode) for episode in episodes])
    decided = np.ones(header.rows, np.bool_)
    decided[np.cumsum(steps + 1) - 1] = False
    columns = _own_columns(header, steps)
    for array in header.arrays:
        table = _table(array, [part[array.name] for part in parts], decided)
        for index, name in enumerate(array.columns):
            columns[name] = numbers(table[:, index], valid=None if array.observed else decided)
    noisy = [name for array in header.arrays for name in array.columns if hardly_repeats(columns[name])]
    sink = pa.BufferOutputStream()
    table = pa.table(columns)
    options: dict[str, Any] = {
        "compression": "zstd",
        "compression_level": COMPRESSION_LEVEL,
        "use_dictionary": [name for name in columns if name not in noisy],
        "column_encoding": dict.fromkeys(noisy, "BYTE_STREAM_SPLIT") or None,
        "write_statistics": ["episode", "step", "behaviour"],
        "write_page_checksum": True,
        "store_schema": False,
    }
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({KEY: header.to_json()})
    replace_file(path, bytes(sink.getvalue()))


def is_minari(path: Path) -> bool:
    """Whether a path is a folder of Minari's, see `slicepilot.training.recording.minari_files`."""
    return (path / "data" / "metadata.json").is_file()


def says_episodes(path: Path) -> bool:
    """Whether a Parquet file says that it holds episodes; raises ConfigError where it cannot be read."""
    with opened(path, EXPECTED) as file:
        return KEY.encode() in (file.metadata.metadata or {})


def files_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """Files of episodes in a folder, and the files in it that are not, both by name; hidden files are in neither.

    Raises:
        ConfigError: a Parquet file that cannot be read.
    """
    visible = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and not path.is_dir())
    own = [path for path in visible if path.suffix == ".parquet" and says_episodes(path)]
    return own, [path for path in visible if path not in own]


def read_episodes(path: Path) -> EpisodeSet:
    """Read a file, or all files of episodes in a folder in the order of their names, if their facts are the same.

    Other files in a folder, such as tables, are left out (`files_in`).

    Raises:
        ConfigError: the file is missing, damaged, of another format or of another program; facts differ.
    """
    if not path.is_dir():
        return _read(path)
    files, _ = files_in(path)
    if not files:
        raise ConfigError(f"{path}: no files of episodes; expected a folder with NAME.parquet in it")
    sets = [_read(file) for file in files]
    for file, other in zip(files, sets, strict=True):
        if (key := _difference(sets[0].facts, other.facts)) is not None:
            raise ConfigError(f"{file}: {key}: differs from that of {files[0].name}; expected episodes of one kind")
    return EpisodeSet(tuple(episode for own in sets for episode in own), sets[0].facts)


def read_header(path: Path) -> Header:
    """The header of a file; raises ConfigError as `read_episodes` does."""
    with opened(path, EXPECTED) as file:
        return _header(file, path)


def _read(path: Path) -> EpisodeSet:
    with opened(path, EXPECTED) as file:
        header = _header(file, path)
        try:
            table = file.read(use_threads=False)
            episodes = _episodes(header, table)
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise damaged(path, error, EXPECTED) from error
    return EpisodeSet(episodes, header.facts)


def _episodes(header: Header, table: Any) -> tuple[Episode, ...]:
    """Cut the rows of a file; raises ValueError and KeyError where they are not what the header says."""
    if table.num_rows != header.rows:
        raise ValueError(f"{table.num_rows} rows instead of {header.rows}")
    whole = {array.name: _stacked(array, table) for array in header.arrays}
    result, at = [], 0
    for episode in header.episodes:
        own = {array.name: whole[array.name][at : at + episode.steps + array.observed] for array in header.arrays}
        result.append(episode_of(episode, own))
        at += episode.steps + 1
    return tuple(result)


def _stacked(array: ArrayHeader, table: Any) -> Array:
    """One array of all rows, (rows, ...)."""
    whole = np.empty((table.num_rows, len(array.columns)), array.dtype)
    for index, name in enumerate(array.columns):
        column = table.column(name)
        if column.type != pa.from_numpy_dtype(whole.dtype):
            raise ValueError(f"{name}: a column of {column.type} instead of {whole.dtype}")
        whole[:, index] = values_of(column)
    return whole.reshape(table.num_rows, *array.shape)


def _header(file: pq.ParquetFile, path: Path) -> Header:
    text = (file.metadata.metadata or {}).get(KEY.encode())
    if text is None:
        raise ConfigError(f"{path}: Parquet, but no episodes; expected a file that `slicepilot dataset record` wrote")
    return Header.from_json(text, str(path))


def _difference(facts: Mapping[str, Any], others: Mapping[str, Any]) -> str | None:
    """The first fact that differs and that files of the same set must share."""
    keys = [*facts, *(key for key in others if key not in facts)]
    return next((key for key in keys if key not in OWN_TO_A_FILE and facts.get(key) != others.get(key)), None)


def _own_columns(header: Header, steps: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Columns with the episode, step and behaviour of each row."""
    names = list(dict.fromkeys(episode.behaviour for episode in header.episodes))
    codes = np.asarray([names.index(episode.behaviour) for episode in header.episodes], np.int32)
    number = np.repeat(np.arange(len(steps), dtype=np.int32), steps + 1)
    first = np.repeat(np.cumsum(steps + 1) - (steps + 1), steps + 1)
    return {
        "episode": numbers(number),
        "step": numbers((np.arange(header.rows) - first).astype(np.int32)),
        "behaviour": words(codes[number], names),
    }


def _table(array: ArrayHeader, parts: Sequence[Array], decided: npt.NDArray[np.bool_]) -> Array:
    """An array of all episodes, a row per row of the file, (rows, columns)."""
    stacked = np.concatenate(parts)
    rows = stacked.reshape(len(stacked), len(array.columns))
    if array.observed:
        return rows
    table = np.zeros((len(decided), len(array.columns)), array.dtype)
    table[decided] = rows
    return table
