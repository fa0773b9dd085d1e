"""Episodes as Minari datasets (HDF5), the format in which offline reinforcement learning exchanges them.

Layout of Minari 0.5 (https://minari.farama.org, "Dataset standards"): a folder NAME-vN with ``data/main_data.hdf5`` and
``data/metadata.json``. Observations are vectors (S * D,) and actions tables (S, 3), as in the Gymnasium environment;
``infos`` holds all else that an episode has: ``wanted``, ``log_density``, ``terms``, ``decisions`` (T rows) and
``telemetry``, ``node``, ``valid`` (T + 1 rows). What the episodes share is JSON under ``slicepilot`` in the metadata.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_dataset import DATASET_ID_RE, MinariDataset
from minari.dataset.minari_storage import METADATA_FILE_NAME, MinariStorage

from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.data.episodes.files import is_minari
from slicepilot.data.episodes.header import Header, arrays_of, episode_of
from slicepilot.data.files import sync_folder

KEY = "slicepilot"
DATA = "data"
OWN = ("observations", "actions", "rewards")
"""Arrays that Minari stores itself; all others are infos."""


def check_new(path: Path) -> None:
    """Raise ConfigError where `write_minari` could not make a dataset: a name not as Minari wants it, a path in use."""
    match = DATASET_ID_RE.fullmatch(path.name)
    if match is None or match["version"] is None:
        raise ConfigError(f"{path}: name {path.name!r}; expected NAME-vN (letters, digits, - and _), or NAME.parquet")
    if path.exists():
        raise ConfigError(f"{path}: exists; expected a folder that does not")


def write_minari(episodes: EpisodeSet, path: Path) -> None:
    """Write a set as a new dataset, all of it or nothing.

    ``minari.load_dataset(path.name)`` finds it where the environment's MINARI_DATASETS_PATH is the folder above.

    Raises:
        ConfigError: a name that is none of Minari's, a path that is there already, no episodes, episodes of different
            kinds or without a step, facts that JSON cannot hold.
        OSError: it cannot be written.
    """
    path = path.absolute()  # Minari puts relative paths together with themselves
    check_new(path)
    header = Header.of(episodes)
    if empty := [number for number, episode in enumerate(header.episodes) if not episode.steps]:
        raise ConfigError(f"episode {empty[0]}: steps = 0: expected 1 or more, in a Minari dataset")
    document = header.to_json()
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    folder = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # Opened by descriptor: the owner of the parent folder may replace it by a link.
        itself = Path(f"/proc/self/fd/{folder}")
        os.fchmod(folder, 0o755)
        (itself / DATA).mkdir()
        _write(episodes, header, document, itself / DATA, path.name)
        staging.rename(path)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    finally:
        os.close(folder)
    sync_folder(path.parent)


def read_minari(path: Path) -> EpisodeSet:
    """Read a dataset that `write_minari` wrote.

    Raises:
        ConfigError: no such folder, a damaged dataset, or a dataset of another program.
    """
    if not is_minari(path):
        raise ConfigError(f"{path}: no Minari dataset; expected a folder with {DATA}/{METADATA_FILE_NAME} in it")
    try:
        dataset = MinariDataset(path / DATA)
        document = dataset.storage.metadata.get(KEY)
        if document is None:
            raise ConfigError(f"{path}: not made by slicepilot; expected what `slicepilot dataset record` wrote")
        header = Header.from_json(document, str(path))
        result = tuple(_episodes(dataset, header))
    except ConfigError:
        raise
    except Exception as error:
        what = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(f"{path}: cannot be read ({what}); expected a whole Minari dataset") from error
    return EpisodeSet(result, header.facts)


def _write(episodes: EpisodeSet, header: Header, document: str, folder: Path, name: str) -> None:
    first = episodes.episodes[0]
    storage = MinariStorage.new(
        folder,
        observation_space=_box(first.observations.shape[1:], 1),
        action_space=_box(first.actions.shape[1:], 2),
        data_format="hdf5",
        jpeg_encoding=False,
    )
    storage.update_metadata(
        {
            "dataset_id": name,
            "minari_version": minari.__version__,
            "algorithm_name": ", ".join(episodes.behaviours),
            "description": "Control of network slices at the user plane, recorded by slicepilot.",
            "requirements": [f"slicepilot=={metadata.version('slicepilot')}"],
            KEY: document,
        }
    )
    storage.update_episodes(map(_buffer, episodes))
    storage.update_episode_metadata({"behaviour": episode.behaviour} for episode in header.episodes)


def _box(shape: tuple[int, ...], axes: int) -> gym.spaces.Box:
    """A box of entries in [-1, 1]; flattened to a vector if ``axes`` is 1."""
    flat = (int(np.prod(shape)),) if axes == 1 else shape
    return gym.spaces.Box(-1.0, 1.0, flat, np.float32)


def _buffer(episode: Episode) -> Any:
    steps = len(episode)
    ended = np.zeros(steps, np.bool_)
    ended[-1] = True
    never = np.zeros(steps, np.bool_)
    infos: dict[str, Any] = {}
    for name, array in arrays_of(episode).items():
        if name in OWN:
            continue
        mapping, dot, key = name.partition(".")
        if dot:
            infos.setdefault(mapping, {})[key] = array
        else:
            infos[name] = array
    parts: dict[str, Any] = {  # arrays, where Minari's annotations say lists
        "observations": episode.observations.reshape(steps + 1, -1),
        "actions": episode.actions,
        "rewards": episode.rewards,
        "terminations": ended if episode.terminated else never,
        "truncations": never if episode.terminated else ended,
    }
    return EpisodeBuffer(seed=episode.info.get("seed"), infos=infos, **parts)


def _episodes(dataset: Any, header: Header) -> Iterator[Episode]:
    if len(dataset) != len(header.episodes):
        raise ValueError(f"{len(dataset)} episodes instead of {len(header.episodes)}")
    for own, stored in zip(header.episodes, dataset.iterate_episodes(), strict=True):
        arrays = {}
        for array in header.arrays:
            values = getattr(stored, array.name) if array.name in OWN else _info(stored.infos, array.name)
            rows = own.steps + array.observed
            if len(values) != rows or values.dtype != array.dtype:
                raise ValueError(f"{array.name}: {len(values)} rows of {values.dtype}")
            arrays[array.name] = values.reshape(rows, *array.shape)
        yield episode_of(own, arrays)


def _info(infos: dict[str, Any], name: str) -> Any:
    mapping, dot, key = name.partition(".")
    return infos[mapping][key] if dot else infos[name]
